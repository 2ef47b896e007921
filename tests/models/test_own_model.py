"""One file and one decorator add a model: a model registered here works wherever a model of dalembert does."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import dalembert as da
from dalembert.cli import app
from dalembert.errors import InvalidInput, UnknownName
from dalembert.io.config import model_template, parse_job
from dalembert.models import MODELS, register
from dalembert.studio.catalogue import entry, make_catalogue
from dalembert.studio.presentation import present
from dalembert.studio.requests import StudioInput

NAME, PLAIN = "skate-on-rink", "bead-on-line"
START = {"configuration": {"angle": 0.5, "position": [0.0, 0.0]}, "velocity": [1.0, 0.5, 0.0]}


def lagrangian(t, g, xi, p):
    w, v1, v2 = xi
    return 0.5 * (p["mass"] * (v1**2 + v2**2) + p["inertia"] * w**2) + p["pull"] * g[0, 2]


def blade(t, g, p):
    return jnp.array([[0.0, 0.0, 1.0]])


def skate(mass=1.0, inertia=0.5, pull=0.8):
    """A skate on an inclined rink, x down the slope.

    Its blade cannot slip sideways.
    """
    return da.System(da.SE2(), lagrangian, blade, parameters={"mass": mass, "inertia": inertia, "pull": pull})


def bead():
    return da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v)


@pytest.fixture(scope="module", autouse=True)
def registered():
    before = list(MODELS)
    register(
        NAME,
        title="Skate",
        example={"pull": 0.8},
        initial=START,
        step=0.02,
        steps=120,
        method={"name": "runge-kutta"},
        why="It slides across the slope.",
        tries=[("a level rink", "system.pull", 0.0)],
        meaning={"pull": "m g sin(slope)"},
    )(skate)
    register(PLAIN, example={}, initial={"velocity": [1.0]})(bead)
    assert list(MODELS) == [*before, NAME, PLAIN]
    yield
    del MODELS[NAME], MODELS[PLAIN]
    assert list(MODELS) == before


def config(steps: int = 50) -> dict:
    model = MODELS[NAME]
    run = {"step": model.step, "steps": steps}
    return {"system": {"name": NAME, "pull": 0.4}, "method": dict(model.method), "initial": START, "run": run}


def test_it_runs_and_is_compared():
    model = MODELS[NAME]
    system = model.make(model.example)
    state = system.state([0.5, 0.0, 0.0], START["velocity"])
    run = da.simulate(system, da.LagrangeDAlembert(), state, step=model.step, steps=50).check()
    assert run.constraint_residual().max() < 1e-14
    methods = {"ours": da.LagrangeDAlembert(), "rk4": da.RungeKutta()}
    table = da.compare(system, methods, state, steps=[0.1, 0.05], t_end=0.5)
    assert {row.method for row in table.rows} == set(methods)


def test_a_configuration_names_it_and_its_run_is_loaded_and_drawn(tmp_path):
    job = parse_job(config())
    run = da.simulate(job.system, job.integrator, job.state, step=0.02, steps=50)
    run.save(tmp_path / "python.nc")
    assert da.load(tmp_path / "python.nc", system=job.system).energy().shape == (51,)  # a file holds no code
    (tmp_path / "run.toml").write_text(job.text)
    words = ["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run.nc"), "--plot", str(tmp_path / "run.png")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    back = da.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(back.g, run.g)
    np.testing.assert_array_equal(back.energy(), run.energy())
    back.plot(tmp_path / "again.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000 and (tmp_path / "again.png").stat().st_size > 10_000


def test_commands_list_it_and_write_its_template():
    found = CliRunner().invoke(app, ["list", "systems", "--json"])
    assert json.loads(found.stdout)[NAME]["summary"] == "A skate on an inclined rink, x down the slope."
    assert f'name = "{NAME}"' in model_template(NAME, "x.toml") and "mass = 1.0" in model_template(NAME, "x.toml")


def test_the_studio_shows_it():
    opened = StudioInput(max_steps=5000)
    shown = {system["name"]: system for system in make_catalogue(opened)["systems"]}
    assert shown[NAME]["title"] == "Skate" and shown[NAME]["why"] == "It slides across the slope."
    assert shown[NAME]["tries"] == [{"text": "a level rink", "place": "system.pull", "value": 0.0}]
    assert [c["help"] for c in shown[NAME]["parameters"]] == [
        "kg",
        MODELS["unicycle"].help("inertia"),
        "m g sin(slope)",
    ]
    assert "runge-kutta" in entry(NAME, opened)["methods"] and entry(NAME, opened)["example"]["run"]["steps"] == 120
    answer = present({"config": config(), "against": {"name": "lagrange-dalembert"}, "frames": 20}, opened)
    json.dumps(answer, allow_nan=False)
    assert answer["title"] == "Skate" and [run["status"] for run in answer["runs"]] == ["ok", "ok"]


def test_texts_are_not_needed():
    model, opened = MODELS[PLAIN], StudioInput(max_steps=5000)
    assert (model.title, model.why, model.summary) == ("Bead on line", "", "Bead on line")
    shown = {system["name"]: system for system in make_catalogue(opened)["systems"]}[PLAIN]
    assert present({"config": shown["example"], "frames": 10}, opened)["runs"][0]["status"] == "ok"
    name = register("a-skate", example={}, initial=START)(skate) and MODELS.pop("a-skate")
    assert name.why == "A skate on an inclined rink, x down the slope."


@pytest.mark.parametrize(
    ("change", "fault", "message"),
    [
        ({"name": NAME}, InvalidInput, "already, .*skate: choose another name"),
        ({"name": "suslov"}, InvalidInput, r"already, dalembert.models.bodies.suslov"),
        ({"name": "My Skate"}, InvalidInput, "lower-case words joined by hyphens"),
        ({"name": "own"}, InvalidInput, "not own or file"),
        ({"example": {"pul": 0.8}}, UnknownName, "Did you mean 'pull'"),
        ({"initial": {}}, InvalidInput, "exactly one of velocity and momentum"),
        ({"initial": {**START, "momentum": [1.0]}}, InvalidInput, "exactly one"),
        ({"initial": {"place": 1.0, "velocity": [1.0]}}, UnknownName, "configuration, momentum, velocity"),
        ({"step": 0.0}, InvalidInput, "positive"),
        ({"method": {"order": 2}}, InvalidInput, "a table with a name"),
        ({"meaning": {"pul": "?"}}, UnknownName, "Did you mean 'pull'"),
        ({"tries": [("?", "system.pul", 1.0)]}, UnknownName, "Did you mean 'system.pull'"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(change, fault, message):
    given = {"name": "fresh", "example": {}, "initial": START, **change}
    with pytest.raises(fault, match=message):
        register(given.pop("name"), **given)(skate)
    assert "fresh" not in MODELS


def test_an_example_must_have_what_has_no_default():
    with pytest.raises(InvalidInput, match="the example of model 'fresh' has no inertia, and inertia has no default"):
        register("fresh", example={}, initial={"velocity": [1.0]})(lambda inertia: da.models.rigid_body(inertia))
