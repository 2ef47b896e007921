"""The studio's data: every model has controls and a scene in which the constraint is seen, and a show says how its run
went.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.integrators import METHODS, Claims
from dalembert.kernels import problem
from dalembert.models import MODELS, circle, ellipsoid, exact_body
from dalembert.plotting.runs import Bar, align_z, allowed_directions
from dalembert.studio.catalogue import entry, example, input_of_file, make_catalogue, start
from dalembert.studio.presentation import judge_claims, present
from dalembert.studio.requests import (
    Cancelled,
    RunFrames,
    StudioInput,
    compile_steps,
    dependent_components,
    integrate,
    kind_of,
    rehearse,
)
from dalembert.studio.scenes import Roller, make_scene
from dalembert.studio.server import make_download, page_with
from dalembert.studio.view import CONSTRAINT, MOMENTUM, REACTION, VELOCITY, pack_array
from dalembert.studio.view import unpack_array as array

OPENED = StudioInput(max_steps=50_000)
SLEIGH = example("chaplygin-sleigh")


def changed(place: str, value, config=SLEIGH):
    """A request for the configuration with another value at a place."""
    copy = json.loads(json.dumps(config))
    section, _, key = place.partition(".")
    copy[section][key] = value
    return {"config": copy}


@pytest.fixture(scope="module")
def sleigh():
    return present({"config": SLEIGH, "against": {"name": "runge-kutta"}, "frames": 50}, OPENED)


def part(view, name: str, run: int = 0):
    return next(p for p in view["parts"] if p["name"] == name and p["run"] == run)


# -- a show -----------------------------------------------------------------------------------------------------------
def test_a_show_is_json_with_both_runs_in_step(sleigh):
    json.dumps(sleigh, allow_nan=False)
    frames = sleigh["time"]["shape"][0]
    assert 40 <= frames <= 52 and [run["label"] for run in sleigh["runs"]] == ["euler-poincare-suslov", "runge-kutta"]
    for run in (0, 1):
        assert array(part(sleigh["scene"], "path of the contact", run)["shape"]["points"]).shape == (frames, 3)
    for view in (sleigh["scene"], sleigh["momentum"]):
        for k, entry_ in enumerate(view["parts"]):
            assert entry_["parent"] is None or entry_["parent"] < k
            for track in (entry_["position"], entry_["rotation"]):
                assert not isinstance(track, dict) or track["shape"][0] == frames
    assert tomllib.loads(sleigh["config"])["system"]["name"] == "chaplygin-sleigh"


def test_the_sleigh_moves_along_its_blade_and_is_pushed_across(sleigh):
    turn = array(part(sleigh["scene"], "frame of the body")["rotation"])
    x, y, z, w = turn.T
    heading = np.stack([1 - 2 * (y**2 + z**2), 2 * (x * y + z * w), 0 * x], axis=-1)
    arrows = {name: part(sleigh["scene"], name)["shape"] for name in ("velocity", "push of the ground")}
    velocity, push = (array(arrow["to"]) - array(arrow["from"]) for arrow in arrows.values())
    assert np.abs(np.cross(velocity, heading)).max() < 1e-5 * np.abs(velocity).max()
    assert np.abs(np.sum(push * heading, axis=1)).max() < 1e-5 * np.abs(push).max()


def test_claims_are_judged_by_the_run(sleigh):
    kept = {claim["about"]: claim["held"] for claim in sleigh["runs"][0]["claims"]}
    assert kept["constraint"] is True and kept["group"] is True and kept["order"] is None
    assert sleigh["runs"][0]["energy_error"] < 1e-13 < sleigh["runs"][1]["energy_error"]
    one, rows = np.ones((1, 3)), np.zeros((1, 1, 3))
    scalars = [np.ones(1)] * 3
    run = RunFrames(np.zeros(1), "SE(2)", (np.eye(3)[None],), one, one, *scalars, rows, one, 1)
    drifted = judge_claims(
        Claims(2, energy=True, momentum=True), run, {"energy_error": 1e-3, "constraint": 0.0, "group": 0.0}, None
    )
    assert [claim["held"] for claim in drifted] == [None, False, None]


def test_a_change_of_a_parameter_or_of_the_length_compiles_nothing(sleigh):
    from dalembert.kernels import llvm as native

    before = len(native._functions)
    answer = present(changed("system.a", 0.37) | {"frames": 20}, OPENED)
    assert len(native._functions) == before and answer["runs"][0]["status"] == "ok"


def test_a_run_that_fails_says_when_and_stands_still():
    config = {**SLEIGH, "run": {"step": 1.0, "steps": 12}}
    answer = present({"config": config, "against": {"name": "runge-kutta"}}, OPENED)
    failed, other = answer["runs"]
    assert failed["status"] == "failed" and failed["reason"] and failed["time_failed"] == failed["failed_at"] == 1
    assert other["status"] == "ok" and answer["time"]["shape"] == [13]
    assert [curve["x"]["shape"] for curve in answer["plots"][0]["curves"]] == [[2], [13]]
    path = array(part(answer["scene"], "path of the contact")["shape"]["points"])
    assert np.ptp(path[1:], axis=0).max() == 0 < np.ptp(path[:2], axis=0).max()


def test_every_method_is_there_in_plain_words():
    assert all(method.words and method.use_when for method in METHODS.values())


def test_a_run_without_a_start_is_shown_where_it_stands():
    for step in (3.0, 1e150):
        answer = present({"config": {**SLEIGH, "run": {"step": step, "steps": 5}}}, OPENED)
        json.dumps(answer, allow_nan=False)
        run = answer["runs"][0]
        assert run["failed_at"] == -1 and run["steps"] == 0 and answer["time"]["shape"] == [1]
        assert run["energy_error"] is None and all(claim["held"] is None for claim in run["claims"])


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("system.mass", -1.0, "system.mass"),
        ("system.wheels", 3, "system.wheels"),
        ("system.name", "sledge", "system.name"),
        ("method.name", "euler", "method.name"),
        ("method.retraction", "log", "method.retraction"),
        ("run.step", 0, "run.step"),
        ("run.steps", 0.5, "run.steps"),
        ("run.steps", 50_001, "run.steps"),
        ("initial.velocity", [0.5, 1.0, 0.3], "initial.velocity"),
        ("initial.velocity", [0.5, 1.0], "initial.velocity"),
    ],
)
def test_a_bad_value_says_where_it_stands(place, value, named):
    with pytest.raises(InvalidInput) as fault:
        present(changed(place, value), OPENED)
    assert fault.value.place == named, str(fault.value)


def test_faults_of_the_second_method_and_of_the_request_are_told():
    with pytest.raises(InvalidInput) as fault:
        present({"config": SLEIGH, "against": {"name": "rattle"}}, OPENED)
    assert fault.value.place == "against.name"
    for request in (
        {"config": SLEIGH, "frames": 1},
        {"config": SLEIGH, "code": "x"},
        [],
        {"config": {"system": 3}},
        {},
    ):
        with pytest.raises(InvalidInput):
            present(request, OPENED)


def test_a_page_can_bring_no_code(tmp_path):
    (tmp_path / "trap.py").write_text("raise SystemExit('run')")
    for system in ({"python": "trap.py:make"}, {"name": "file"}, {"name": "file", "python": "trap.py:make"}):
        with pytest.raises(InvalidInput):
            present({"config": {**SLEIGH, "system": system}}, StudioInput(folder=tmp_path))


def test_who_does_not_wait_is_not_served():
    job = OPENED.job({**SLEIGH, "run": {"step": 0.01, "steps": 50_000}})
    with pytest.raises(Cancelled):
        integrate(job, 100, lambda: True)


def test_a_run_is_given_up_when_it_is_foreseen_to_take_too_long(monkeypatch):
    monkeypatch.setattr("dalembert.studio.requests.FORECAST_SECONDS", 0.05)
    config = {**SLEIGH, "run": {"step": 1e-4, "steps": 9_000_000}}
    integrate(OPENED.job({**SLEIGH, "run": {"step": 1e-4, "steps": 1}}), 1)
    with pytest.raises(InvalidInput, match=r"takes longer than 0\.3 s: take fewer steps") as fault:
        integrate(OPENED.job(config), 100_000, opened=StudioInput(max_seconds=0.3))
    assert fault.value.place == "run.steps"
    with pytest.raises(InvalidInput, match="MiB"):
        integrate(OPENED.job(config), 1)


def test_the_constraint_fills_in_what_it_determines():
    answer = present(changed("initial.velocity", [0.5, 1.0, None]) | {"complete": True}, OPENED)
    assert answer["initial"] == {"velocity": [0.5, 1.0, 0.0]} or answer["initial"] == {}
    moved = present(changed("initial.velocity", [0.5, 1.0, 0.7]) | {"complete": True}, OPENED)
    assert moved["initial"]["velocity"] == [0.5, 1.0, 0.0]
    assert dependent_components(np.array([[0.0, 0.0, 1.0, 0.0], [0.2, -0.9, 0.0, 0.0]])) == [1, 2]


# -- controls ---------------------------------------------------------------------------------------------------------
def test_every_model_and_method_has_controls():
    found = make_catalogue(OPENED)
    assert [system["name"] for system in found["systems"]] == list(MODELS)
    assert [method["name"] for method in found["methods"]] == list(METHODS)
    json.dumps(found, allow_nan=False)
    for system in found["systems"]:
        assert system["why"] and system["title"], system["name"]
        assert {control["label"] for control in system["parameters"]} == {
            name.replace("_", " ") for name in MODELS[system["name"]].parameters
        }
        for control in system["parameters"]:
            given = system["example"]["system"].get(control["place"].partition(".")[2])
            assert control["optional"] if given is None else control["value"] == given
            if control["kind"] in ("number", "integer", "vector") and given is not None:
                assert control["low"] <= np.min(given) and np.max(given) <= control["high"], control


def test_an_entry_says_which_methods_fit():
    found = entry("chaplygin-sleigh", OPENED)
    assert "runge-kutta" in found["methods"] and "SE(2)" in found["refused"]["rattle"]
    velocity = next(control for control in found["initial"] if control["place"] == "initial.velocity")
    assert velocity["dependent"] == [2] and velocity["entries"] == ["w", "v1", "v2"]
    assert "configuration" in found["example"]["initial"] and OPENED.job(found["example"]).state is not None
    with pytest.raises(InvalidInput, match="sledge"):
        entry("sledge", OPENED)


# -- scenes -----------------------------------------------------------------------------------------------------------
def standing(name: str, frames: int = 4) -> RunFrames:
    """A run that goes on a little from its initial state: nothing is compiled for it."""
    job = OPENED.job(example(name))
    system, state = job.system, job.state
    with jax.disable_jit():
        rows = np.asarray(system.rows(state.t, state.g)(state.xi))
        times = 0.01 * np.arange(frames)
        moved = [system.group.compose(state.g, system.group.exp(float(t) * state.xi)) for t in times]
    parts = [part if isinstance(part, tuple) else (part,) for part in moved]
    tracks = tuple(np.stack([np.asarray(part[k]) for part in parts]) for k in range(len(parts[0])))
    parameters = {**MODELS[name].parameters, **job.config["system"]}
    repeat = lambda values: np.repeat(np.asarray(values, float)[None], frames, axis=0)
    velocity, momentum = repeat(state.xi), repeat(state.momentum)
    one = np.ones(frames)
    scalars, forces = (one, 0 * one, 0 * one), (repeat(rows), 0 * velocity)
    arrays = (times, str(system.group), tracks, velocity, momentum, *scalars, *forces, frames)
    return RunFrames(*arrays, name, parameters, system=system)


COLOUR_MEANINGS = {
    CONSTRAINT: "forbidden|allowed|blade|wheel|contact|rod|plane along",
    VELOCITY: "velocity",
    MOMENTUM: "momentum|invariable plane",
    REACTION: "push|reaction|force",
}
"""One colour, one meaning: what a part with this colour is about."""
SLOW = ("rigid-body-n", "suslov-n", "skate-on-ellipsoid", "hinged-sleighs", "pendulum-chain", "chaplygin-sphere")
SLOW += tuple(name for name, model in MODELS.items() if model.starts_by_names and name != "omni-base")
"""Systems that take a second or more to build."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.heavy) if n in SLOW else n for n in MODELS])
def test_every_model_has_a_scene_in_which_the_constraint_is_seen(name):
    run = standing(name)
    view, caption = make_scene([run, dataclasses.replace(run, index=1)])
    data = view.data()
    json.dumps(data, allow_nan=False)
    names = {part["name"] for part in data["parts"] if part["run"] in (0, None)}
    seen = {"forbidden", "forbidden axis", "point of contact", "plane of allowed velocities", "invariable plane", "rod"}
    free = run.rows.shape[1] == 0 and "momentum" in names  # nothing is forbidden: what is kept is seen
    assert names & seen or "velocity of the tips" in names or free, names
    assert len(caption) > 20 and any(part["run"] == 1 for part in data["parts"])
    for shown in data["parts"]:
        meant = COLOUR_MEANINGS.get(shown["colour"])
        assert meant is None or not shown["name"] or re.search(meant, shown["name"]), shown["name"]
        rotation = shown["rotation"]
        if rotation is not None:
            quaternion = array(rotation) if isinstance(rotation, dict) else np.array(rotation)
            np.testing.assert_allclose(np.linalg.norm(quaternion, axis=-1), 1.0, atol=1e-6)


GROUPS = (
    "R^1",
    "R^2",
    "R^5",
    "SO(2)",
    "SO(3)",
    "SE(3)",
    "SO(4)",
    "SE(4)",
    "SO(2) x SO(2)",
    "SO(3) x SO(3)",
    "SE(3) x R^1",
    "R^3 x SO(3)",
)


@pytest.mark.parametrize("group", [*GROUPS, "SE(2)", "SE(2) x R^2"])
def test_every_group_has_a_scene(group):
    """A system of the user's own, one constraint or none."""
    times, tracks, dim = np.linspace(0, 1, 3), [], 0
    for name in group.split(" x "):
        n = int(re.search(r"\d+", name)[0])
        size = n + name.startswith("SE")
        tracks.append(np.outer(times, np.arange(1.0, n + 1)) if name.startswith("R") else np.stack([np.eye(size)] * 3))
        dim += n if name.startswith("R") else n * (n - 1) // 2 + n * name.startswith("SE")
    for count in (0, 1):
        rows, velocity, one = np.zeros((3, count, dim)), np.ones((3, dim)), np.ones(3)
        rows[:, :, -1] = 1.0
        run = RunFrames(times, group, tuple(tracks), velocity, velocity, one, one, one, rows, velocity, 3)
        view, caption = make_scene([run, dataclasses.replace(run, index=1)])
        json.dumps(view.data(), allow_nan=False)
        assert len(view.parts) >= 4 and caption


@pytest.mark.parametrize("name", ["chaplygin-sleigh", "unicycle", "nonholonomic-particle", "suslov"])
def test_what_stands_still_is_drawn_at_a_scale_of_its_own(name):
    """Nothing moves, and so no path is a scale: the picture is not one of a tenth of a millimetre."""
    config = {**example(name), "initial": {"velocity": [0.0, 0.0, 0.0]}}
    answer = present({"config": config, "frames": 20}, OPENED)
    assert answer["runs"][0]["status"] == "ok"
    for scene in filter(None, (answer["scene"], answer["momentum"])):
        position, target = (np.array(scene["camera"][key]) for key in ("position", "target"))
        assert 0.1 < np.linalg.norm(position - target) < 20.0
        assert scene["ground"] is None or 0.1 < scene["ground"]["size"] < 20.0


def test_the_velocity_of_a_particle_lies_in_its_plane():
    run = standing("nonholonomic-particle")
    view, _ = make_scene([run])
    data = view.data()
    arrow, patch = part(data, "velocity")["shape"], part(data, "plane of allowed velocities")
    x, y, z, w = array(patch["rotation"]).T
    normal = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x**2 + y**2)], axis=-1)
    velocity = array(arrow["to"]) - array(arrow["from"])
    assert np.abs(np.sum(normal * velocity, axis=1))[0] < 1e-6 * np.abs(velocity).max()


def test_poinsots_ellipsoid_rolls_on_its_plane():
    inertia, times = np.array([0.6, 0.8, 1.0]), np.linspace(0, 10, 40)
    motion = exact_body(inertia, [1.8, 0.4, -0.9], times)
    velocity = motion.momentum / inertia
    energy = 0.5 * np.sum(velocity * motion.momentum, axis=1)
    zero = np.zeros(len(times))
    rows, model = np.zeros((len(times), 0, 3)), ("rigid-body", {"inertia": list(inertia)})
    scalars, forces = (energy, zero, zero), (rows, 0 * velocity)
    arrays = (times, "SO(3)", (motion.attitude,), velocity, motion.momentum, *scalars, *forces, len(times))
    view, _ = make_scene([RunFrames(*arrays, *model)])
    data = view.data()
    height = array(part(data, "herpolhode")["shape"]["points"])[:, 2]
    assert np.ptp(height) < 1e-6 and abs(height[0] - part(data, "invariable plane", None)["position"][2]) < 1e-6
    momentum = part(data, "momentum")["shape"]
    np.testing.assert_allclose(array(momentum["to"])[:, :2], 0.0, atol=1e-6)


@pytest.mark.parametrize(("support", "name"), [(ellipsoid, "rattleback"), (circle, "rolling-disk")])
def test_a_rolling_body_touches_the_floor_where_its_support_function_says(support, name):
    parameters = {"axes": [0.2, 0.03, 0.02], "depth": 0.01} if name == "rattleback" else {"radius": 0.5}
    turn = np.asarray(da.SO3().exp(jnp.array([0.3, -0.2, 0.9])))
    shape = {"axes": jnp.array([0.2, 0.03, 0.02]), "centre": jnp.array([0.0, 0.0, 0.01]), "radius": 0.5}
    height, contact = jax.value_and_grad(support)(-jnp.asarray(turn[2]), shape)
    body = Roller.of(name, parameters)
    np.testing.assert_allclose(body.contact(turn[None])[0], contact, atol=1e-15)
    np.testing.assert_allclose(body.centres(turn[None], np.array([[1.0, 2.0]]))[0], [1.0, 2.0, height], atol=1e-15)


def test_geometry_of_bars_planes_and_packing():
    bar = Bar(1.0, np.array([0.0, 2.0]), np.array([0.0, np.pi / 2]), 0.5).pose(0.3)
    ends = bar["position"][1] + bar["rotation"][1] @ [0.5, 0.0, 0.0]
    np.testing.assert_allclose(ends, [1.0, 2.5, 0.3], atol=1e-15)
    directions = np.random.default_rng(0).normal(size=(5, 3))
    turns = align_z(directions)
    np.testing.assert_allclose(turns @ np.swapaxes(turns, 1, 2), np.broadcast_to(np.eye(3), (5, 3, 3)), atol=1e-14)
    np.testing.assert_allclose(turns[:, :, 2], directions / np.linalg.norm(directions, axis=1, keepdims=True))
    assert allowed_directions(np.array([[0.0, 0.0, 1.0]]), slice(1, 3)).ravel().tolist() in ([1.0, 0.0], [-1.0, 0.0])
    assert array(pack_array([1e300, np.nan, -1.0])).tolist()[1:] == [0.0, -1.0]


# -- files ------------------------------------------------------------------------------------------------------------
OWN = '''
import jax.numpy as jnp
import dalembert as da

def make(mass=1.0, tilt=0.2):
    """A skate that is turned in its body."""
    rows = jnp.array([[0.0, -jnp.sin(tilt), jnp.cos(tilt)]])
    lagrangian = lambda t, g, xi, p: 0.5 * p * xi @ xi
    return da.System(group=da.SE2(), lagrangian=lagrangian, constraint=lambda t, g, p: rows, parameters=mass)
'''


def test_a_system_of_the_users_own_has_the_scene_of_its_group(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    velocity = [0.4, float(np.cos(0.3)), float(np.sin(0.3))]
    config = {
        "system": {"python": "mine.py:make", "tilt": 0.3},
        "method": {"name": "runge-kutta"},
        "initial": {"velocity": velocity},
        "run": {"step": 0.1, "steps": 5},
    }
    opened = StudioInput(config, tmp_path)
    own = make_catalogue(opened)["systems"][0]
    assert own["name"] == "file" and {c["label"]: c["value"] for c in own["parameters"]} == {"mass": 1.0, "tilt": 0.3}
    answer = present(start(opened), opened)
    blade = part(answer["scene"], "blade")
    angle = 2 * np.arctan2(array(blade["rotation"])[0, 2], array(blade["rotation"])[0, 3])
    assert abs(np.sin(angle - 0.3)) < 1e-6 and "mine.py:make" in answer["config"]


def test_a_saved_run_is_shown_without_running_anything(tmp_path, monkeypatch):
    job = OPENED.job({**SLEIGH, "run": {"step": 0.1, "steps": 30}})
    run, *_ = integrate(job, 1, lambda: False)
    da.io.save_run(run, tmp_path / "sleigh.nc", {"config": job.text, "system": "chaplygin-sleigh"})
    monkeypatch.setattr("dalembert.studio.requests.simulate", None)
    opened = StudioInput(saved=tmp_path / "sleigh.nc")
    request = start(opened)
    assert request["saved"] and request["config"]["system"]["name"] == "chaplygin-sleigh"
    answer = present({**request, "frames": 10}, opened)
    assert 10 <= answer["time"]["shape"][0] <= 12 and answer["runs"][0]["status"] == "ok"
    assert array(answer["time"])[-1] == pytest.approx(3.0) and part(answer["scene"], "blade")
    assert make_download({"request": request, "kind": "nc"}, opened)[2] == (tmp_path / "sleigh.nc").read_bytes()
    with pytest.raises(InvalidInput, match="no data file"):
        present({"saved": True}, OPENED)


def test_what_is_downloaded(monkeypatch):
    request = {"config": {**SLEIGH, "run": {"step": 0.1, "steps": 20}}, "against": None}
    kinds = {kind: make_download({"request": request, "kind": kind}, OPENED) for kind in ("toml", "nc", "png", "html")}
    assert tomllib.loads(kinds["toml"][2].decode())["run"] == {"step": 0.1, "steps": 20}
    assert kinds["nc"][2][:8] == b"\x89HDF\r\n\x1a\n" and kinds["png"][2][:4] == b"\x89PNG"
    assert kinds["html"][0] == "chaplygin-sleigh.html" and b'id="show"' in kinds["html"][2]
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(InvalidInput, match="ffmpeg"):
        make_download({"request": request, "kind": "mp4"}, OPENED)
    with pytest.raises(InvalidInput, match="exe"):
        make_download({"request": request, "kind": "exe"}, OPENED)


def test_an_exported_page_is_whole(sleigh):
    text = page_with({**sleigh, "caption": "</script><script>alert(1)</script>"})
    assert "<script>alert" not in text
    assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="(?!data:)', text)
    imports = json.loads(re.search(r'<script type="importmap">(.*?)</script>', text)[1])["imports"]
    for name, address in imports.items():
        module = base64.b64decode(address.partition("base64,")[2]).decode()
        wanted = re.findall(r'^(?:import|export)\b.*\bfrom "([^"]+)"', module, re.MULTILINE)
        assert set(wanted) <= set(imports), name
    held = re.search(r'id="show">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(held)["runs"] == sleigh["runs"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", MODELS)
def test_every_model_plays_beside_another_method(name):
    answer = present({"config": example(name), "against": {"name": "runge-kutta"}}, StudioInput())
    assert all(run["status"] == "ok" for run in answer["runs"]) and answer["plots"]
    json.dumps(answer, allow_nan=False)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.tries])
def test_what_is_worth_trying_runs(name):
    for _, place, value in MODELS[name].tries:
        answer = present(changed(place, value, example(name)) | {"complete": True, "frames": 50}, StudioInput())
        assert answer["runs"][0]["status"] == "ok", (name, place, value)


@pytest.mark.heavy
@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_fits_plays(method):
    found = entry("rigid-body", OPENED)
    name = "rigid-body" if method in found["methods"] else "veselova"
    config = {**example(name), "method": {"name": method}, "run": {"step": 0.05, "steps": 40}}
    answer = present({"config": config, "against": {"name": "runge-kutta"}, "frames": 20}, OPENED)
    json.dumps(answer, allow_nan=False)
    run = answer["runs"][0]
    assert run["status"] == "ok" and run["claims"] and all(claim["held"] is not False for claim in run["claims"])


@pytest.mark.heavy
def test_a_film_is_downloaded():
    request = {"config": {**SLEIGH, "run": {"step": 0.1, "steps": 20}}}
    assert make_download({"request": request, "kind": "gif"}, OPENED)[2][:4] == b"GIF8"


def test_a_python_file_opens_with_a_start_and_sliders(tmp_path):
    """`dalembert studio my_vehicle.py`: the function's parameters are sliders, and the start is on the constraint."""
    file = tmp_path / "skate.py"
    make = "def make(mass=2.0, a=0.4):\n    return da.models.chaplygin_sleigh(mass=mass, a=a)\n"
    file.write_text(f"import dalembert as da\n\n\n{make}")
    opened = input_of_file(file)
    config = opened.config
    assert config["system"]["python"] == "skate.py:make" and config["initial"]["velocity"] == [0.5, 0.5, 0.0]
    own = make_catalogue(opened)["systems"][0]
    assert [control["label"] for control in own["parameters"]] == ["mass", "a"] and start(opened)["config"]["run"]
    assert opened.job(start(opened)["config"]).system.group.dim == 3
    with pytest.raises(InvalidInput, match="other"):
        input_of_file(tmp_path / "skate.py:other")


def test_another_process_can_compile_the_steps_and_the_scene_ahead(monkeypatch):
    """What was compiled ahead, without the state of the request, is all that its show needs of large programs."""
    monkeypatch.setenv("DALEMBERT_CACHE", "off")
    request = changed("method.node", 0.37, example("unicycle"))  # which no other test has compiled
    lowered, lower = [], problem.lower

    def record(*given, **options):
        lowered.extend(part.__qualname__ for part in given[:2])
        return lower(*given, **options)

    monkeypatch.setattr(problem, "lower", record)
    compile_steps(request, OPENED)
    make_scene([rehearse(OPENED.job(request["config"]))])
    assert {"run_kernel.<locals>.begin", "run_kernel.<locals>.advance"} <= set(lowered)
    lowered.clear()
    assert present(request, OPENED)["runs"][0]["status"] == "ok"
    assert not {*lowered} & {"_evaluate_state", "picture", *(f"run_kernel.<locals>.{x}" for x in ("begin", "advance"))}


def test_programs_are_those_of_a_kind():
    """A slider changes no program; a count of dimensions, an option of the method and another system may."""
    request = {"config": SLEIGH}
    assert kind_of(changed("system.a", 0.7)) == kind_of(request)
    others = [changed("method.name", "runge-kutta"), {"config": example("suslov")}, changed("system.n", 3)]
    assert len({kind_of(request), *map(kind_of, others)}) == 4
