"""Configurations as people give them: coordinates, overrides, systems of their own, files to start from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import dalembert as da
from dalembert.cli.runs import run_with_progress
from dalembert.errors import InvalidInput, UnknownName, spell
from dalembert.groups import euler_angles, quaternions
from dalembert.io import config as _toml
from dalembert.io.config import apply_settings, model_template
from dalembert.io.config import load_job as load
from dalembert.io.config import parse_job as parse
from dalembert.io.dataset import save_run
from dalembert.models import MODELS

TURN = Rotation.from_rotvec([0.4, -1.1, 0.7])
RUN = {"method": {"name": "runge-kutta"}, "initial": {"velocity": [1.0]}, "run": {"step": 0.1, "steps": 2}}


# -- coordinates ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "given",
    [
        {"quaternion": np.roll(TURN.as_quat(), 1).tolist()},
        {"quaternion": (-np.roll(TURN.as_quat(), 1)).tolist()},
        {"euler": TURN.as_euler("ZXZ").tolist()},
        {"euler": TURN.as_euler("zyx", degrees=True).tolist(), "convention": "zyx", "degrees": True},
        {"euler": TURN.as_euler("XYZ").tolist(), "convention": "XYZ"},
        {"rotation_vector": TURN.as_rotvec().tolist()},
        {"matrix": TURN.as_matrix().tolist()},
        TURN.as_matrix().tolist(),
    ],
)
def test_an_attitude_in_any_form(given):
    np.testing.assert_allclose(da.SO3().configuration(given), TURN.as_matrix(), atol=1e-15)


def test_the_classical_angles_turn_about_z_then_the_turned_x_then_the_turned_z():
    def about(axis, angle):
        return np.asarray(da.SO3().exp(angle * np.eye(3)[axis]))

    a, b, c = 0.3, 0.7, -1.1
    expected = about(2, a) @ about(0, b) @ about(2, c)
    np.testing.assert_allclose(da.SO3().configuration({"euler": [a, b, c]}), expected, atol=1e-15)
    fixed = about(2, c) @ about(1, b) @ about(0, a)
    np.testing.assert_allclose(da.SO3().configuration({"euler": [a, b, c], "convention": "xyz"}), fixed, atol=1e-15)


def test_places_and_products():
    pose = da.SE2().configuration({"angle": 90.0, "degrees": True, "position": [1, 2]})
    np.testing.assert_allclose(pose, [[0, -1, 1], [1, 0, 2], [0, 0, 1]], atol=1e-15)
    np.testing.assert_allclose(da.SE2().configuration([np.pi / 2, 1, 2]), pose, atol=1e-15)
    space = da.SE3().configuration({"quaternion": [1, 0, 0, 0], "position": [1, 2, 3]})
    np.testing.assert_allclose(space[:3, 3], [1, 2, 3])
    both = (da.SE2() * da.SO2()).configuration([{"angle": 0.2, "position": [1, 2]}, {"angle": 0.5}])
    again = (da.SE2() * da.SO2()).configuration((da.SE2() * da.SO2()).describe(both, [0.2, 0.5]))
    for one, other in zip(both, again, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-15)
    assert da.Euclidean(2).describe(np.zeros(2)) is None


@pytest.mark.parametrize(
    "group, given, message",
    [
        (da.SO3(), {"quaternion": [1, 0, 0, 1]}, "norm 1"),
        (da.SO3(), {"quaternion": [1, 0, 0]}, r"has shape \(3,\); allowed: \(4,\)"),
        (da.SO3(), {"euler": [0, float("nan"), 0]}, "euler must be finite"),
        (da.SO3(), {"euler": [0, 0, 0], "convention": "ZZX"}, "none twice in a row"),
        (da.SO3(), {"euler": [0, 0, 0], "convention": "zXz"}, "three axes"),
        (da.SO3(), {"eulr": [0, 0, 0]}, "Did you mean 'euler'"),
        (da.SO3(), {"euler": [0, 0, 0], "quaternion": [1, 0, 0, 0]}, "one of"),
        (da.SO3(), {"degrees": True}, "one of"),
        (da.SO3(), {"euler": [0, 0, 0], "degrees": 1}, "true or false"),
        (da.SE2(), {"angle": "x"}, "one finite number"),
        (da.SE2(), {"angle": 0.0, "position": [1]}, r"has shape \(1,\); allowed: \(2,\)"),
        (da.Euclidean(3), {"position": [0, 0, 0]}, "a vector"),
        (da.SE2() * da.SO2(), {"angle": 0.0}, "one entry for each factor"),
    ],
)
def test_bad_coordinates_say_what_is_allowed(group, given, message):
    with pytest.raises(InvalidInput, match=message):
        group.configuration(given)


def test_angles_and_quaternions_are_continuous_over_turns():
    """A body that nods while it turns three times: the classical angles are those it was made of, through
    every 2 pi.
    """
    s = np.linspace(0, 1, 400)
    angles = np.stack([6 * np.pi * s, 0.8 + 0.5 * np.sin(9 * s), -20 * s], axis=-1)
    turns = Rotation.from_euler("ZXZ", angles).as_matrix()
    np.testing.assert_allclose(euler_angles(turns), angles, atol=1e-10)
    q = quaternions(turns)
    assert np.abs(np.diff(q, axis=0)).max() < 0.1
    np.testing.assert_allclose(Rotation.from_quat(np.roll(q, -1, axis=1)).as_matrix(), turns, atol=1e-14)
    passing = np.stack([0.3 + 0 * s, 2 * np.pi * s, 0.4 + 0 * s], axis=-1)  # through both singular positions
    there = euler_angles(Rotation.from_euler("ZXZ", passing).as_matrix())
    np.testing.assert_allclose(there[[50, 150, 250, 390]], passing[[50, 150, 250, 390]], atol=1e-7)


def test_components_have_names_and_units():
    assert [axis.name for axis in da.groups.SO(4).axes()] == ["w12", "w13", "w14", "w23", "w24", "w34"]
    names = (da.SO3() * da.Euclidean(2)).axes()
    assert [axis.name for axis in names] == ["w1", "w2", "w3", "v1", "v2"]
    assert names[0].force == "N m" and names[3].velocity == "[q] s-1"
    shared = (da.SE2() * da.groups.SO2() * da.Euclidean(1)).axes()
    assert [axis.name for axis in shared] == ["w_0", "v1_0", "v2", "w_1", "v1_2"]


def test_the_numbered_names_of_earlier_files_are_understood():
    """Version 0.1 wrote x_0 where x says it; what was no such name stays what it is, and nothing is guessed."""
    known = ("theta_0", "x", "y", "theta_1", "velocity_v1", "velocity.w1", "along v2", "position", "steer rate")
    older = {"x_0": "x", "y_0": "y", "velocity_v1_0": "velocity_v1", "velocity.w1_1": "velocity.w1"}
    older["along v2_0"] = "along v2"
    assert {name: spell(name, known) for name in older} == older
    for name in (*known, "position_0", "theta_2", "z_0", "steer_rate_0"):
        assert spell(name, known) == name


# -- overrides --------------------------------------------------------------------------------------------------------
BASE = {
    "system": {"name": "suslov", "inertia": [3, 4, 5]},
    "method": {"name": "euler-poincare-suslov", "lagrangian": "retraction"},
    "initial": {"velocity": [1, 2, 0]},
    "run": {"step": 0.1, "steps": 3},
}


@pytest.mark.parametrize(
    "setting, section, expected",
    [
        ("run.step=0.01", "run", {"step": 0.01, "steps": 3}),
        ("run.t_end=2.5", "run", {"step": 0.1, "t_end": 2.5}),
        ("initial.momentum=[1, 2]", "initial", {"momentum": [1, 2]}),
        ("method.retraction=exponential", "method", {**BASE["method"], "retraction": "exponential"}),
        ("method.name=runge-kutta", "method", {"name": "runge-kutta"}),
        ("method.name=euler-poincare-suslov", "method", BASE["method"]),
        ("system.python=mine.py:make", "system", {"python": "mine.py:make"}),
        (
            "initial.configuration.quaternion=[1,0,0,0]",
            "initial",
            {"velocity": [1, 2, 0], "configuration": {"quaternion": [1, 0, 0, 0]}},
        ),
    ],
)
def test_a_setting_overrides_the_file(setting, section, expected):
    changed = apply_settings(BASE, [setting])
    assert changed[section] == expected
    assert {key: part for key, part in changed.items() if key != section} == {
        key: part for key, part in BASE.items() if key != section
    }


def test_options_of_a_new_method_may_come_before_its_name():
    changed = apply_settings(BASE, ["method.node=0.25", "method.name=lagrange-dalembert"])
    assert changed["method"] == {"name": "lagrange-dalembert", "node": 0.25}


@pytest.mark.parametrize("setting", ["run", "run=3", "run.step", ".step=1", "run.=1"])
def test_a_bad_setting_says_how(setting):
    with pytest.raises(InvalidInput, match=r"run\.step=0\.01"):
        apply_settings(BASE, [setting])


def test_toml_is_read_back_as_it_was():
    config = {
        "a": {"x": 0.1 + 0.2, "n": 3, "on": True, "text": 'say "é" \\ \n', "deep": [[1.0, 2], [-0.0, 1e300]]},
        "b": {"table": {"angle": 0.5, "position": [1, 2.5]}, "number": np.float64(0.3)},
    }
    assert tomllib.loads(_toml.to_toml(config)) == config


# -- a system of one's own --------------------------------------------------------------------------------------------
OWN = """import dalembert as da
from helper_of_mine import HALF
def make(mass=2.0):
    return da.System(da.Euclidean(1), lambda t, q, v, p: HALF * p * v @ v, parameters=mass)
"""


def job(folder, text, **system):
    (folder / "mine.py").write_text(text)
    return parse({**RUN, "system": {"python": "mine.py:make", **system}}, folder)


def test_a_file_beside_the_configuration_makes_the_system(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helper_of_mine.py").write_text("HALF = 0.5")
    (tmp_path / "sub" / "mine.py").write_text(OWN)
    config = {**RUN, "system": {"python": "mine.py:make", "mass": 3.0}}
    (tmp_path / "sub" / "job.toml").write_text(_toml.to_toml(config))
    made = load(tmp_path / "sub" / "job.toml")
    assert made.names["system"] == "mine.py:make" and float(made.state.momentum[0]) == 3.0


def test_the_example_of_one_is_a_skate_on_a_slope():
    """At the start the pull m g sin(slope) acts along the blade by its cosine: v1' = pull cos(theta)/m + a w^2."""
    made = load(Path(__file__).parents[2] / "examples" / "own_system.toml")
    t, g, xi = made.state.t, made.state.g, made.state.xi
    rate, _ = jax.jit(made.system.acceleration)(t, g, xi)
    assert float(rate[1]) == pytest.approx(0.8 * np.cos(np.pi / 6) + 0.2 * float(xi[0]) ** 2, rel=1e-12)


@pytest.mark.parametrize(
    "text, message",
    [
        ("def mak(): ...", "Did you mean 'mak'"),
        ("def make(): return 3", "returned int"),
        ("def make(): pass", "is there a return"),
        ("def make(\n", "line 1: SyntaxError"),
        ("def make():\n    return 1 / 0", r"mine.py, line 2, in make: ZeroDivisionError.*\n    return 1 / 0"),
        ("import sys\nsys.exit(3)", "line 2, in <module>: SystemExit"),
        ("import not_there", "line 1, in <module>: ModuleNotFoundError"),
        (
            "import dalembert as da\nmake = lambda: da.System(da.Euclidean(1), lambda t, q, v, p: v)",
            r"gave shape \(1,\)",
        ),
        (
            "import dalembert as da\nmake = lambda: da.System(da.Euclidean(1), lambda t, q, v: 0.5 * v @ v)",
            "but it takes",
        ),
        (
            "import dalembert as da\nmake = lambda: da.System(da.Euclidean(1), lambda t, q, v, p: v @ v,\n"
            "    force=lambda t, q, v, u, p: nowhere)",
            "NameError: name 'nowhere' is not defined",
        ),
    ],
)
def test_faults_in_it_are_told_with_their_line(text, message, tmp_path):
    with pytest.raises(InvalidInput, match=message):
        job(tmp_path, text)


def test_its_parameters_are_checked(tmp_path):
    with pytest.raises(UnknownName, match="Did you mean 'mass'"):
        job(tmp_path, "def make(mass): ...", mas=1.0)
    with pytest.raises(InvalidInput, match="missing a required argument: 'mass'"):
        job(tmp_path, "def make(mass): ...")
    with pytest.raises(InvalidInput, match="there is no file"):
        parse({**RUN, "system": {"python": "none.py:make"}}, tmp_path)
    with pytest.raises(InvalidInput, match=r"file\.py:function"):
        parse({**RUN, "system": {"python": "mine.py"}}, tmp_path)
    with pytest.raises(InvalidInput, match="give one"):
        parse({**RUN, "system": {"python": "mine.py:make", "name": "suslov"}}, tmp_path)


# -- files to start from ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_configuration_to_start_from(name):
    model, config = MODELS[name], tomllib.loads(model_template(name, "x.toml"))
    assert config["system"] == {"name": name, **json.loads(json.dumps(model.example))}
    assert config["method"] == dict(model.method) and config["run"]["step"] == model.step
    assert config["initial"] == json.loads(json.dumps(dict(model.initial)))


# -- starts by names --------------------------------------------------------------------------------------------------
def named(**initial) -> dict:
    return {"system": {"name": "coin"}, "method": {"name": "runge-kutta"}, "initial": initial, "run": RUN["run"]}


def driven(**controls) -> dict:
    start = {"initial": {"speed": 0.5}, "run": {"step": 0.1, "steps": 4, "t0": 1.0}}
    return RUN | start | {"system": {"name": "differential-drive"}, "controls": controls}


def test_controls_by_the_names_of_the_inputs():
    left = {"amplitude": 0.3, "rate": 2.0, "phase": 0.5, "offset": 0.1}
    job = parse(driven(left_torque=left, **{"right torque": {"times": [1.1, 1.3], "values": [0.2, -0.2]}}))
    t = 1.0 + 0.1 * (np.arange(4) + 0.5)
    np.testing.assert_allclose(job.controls[:, 0], 0.1 + 0.3 * np.sin(2.0 * t + 0.5), rtol=1e-14)
    assert job.controls[:, 1].tolist() == [0.0, 0.2, 0.2, -0.2]
    assert tomllib.loads(job.text)["controls"]["left_torque"] == left
    held = parse(driven(left_torque=0.2, right_torque=[0.1, 1.0, 0.0])).controls
    np.testing.assert_allclose(held, np.stack([np.full(4, 0.2), 0.1 * np.sin(t)], axis=1), rtol=1e-14)


@pytest.mark.parametrize(
    ("controls", "words"),
    [
        ({"left_torqe": 1.0}, "unknown input 'left_torqe'. Did you mean 'left torque'"),
        ({"left_torque": "full"}, r"left torque is 'full' in \[controls\]; allowed: a number; {amplitude"),
        ({"left_torque": {"amplitud": 1.0}}, r"left torque is {'amplitud': 1.0} in \[controls\]"),
        ({"left_torque": {"times": [1.0, 0.0], "values": [1.0, 2.0]}}, "each value holds from its time on"),
        ({"left_torque": {"times": [1.0], "values": [1.0, 2.0]}}, "each value holds from its time on"),
        ({"left_torque": {"times": 1.0, "values": 1.0}}, "each value holds from its time on"),
        ({"left_torque": True}, "left torque is True"),
    ],
)
def test_controls_that_do_not_fit_are_refused(controls, words):
    with pytest.raises(InvalidInput, match=words) as refused:
        parse(driven(**controls))
    assert refused.value.place == "controls"


def test_controls_are_refused_where_runs_have_none():
    with pytest.raises(InvalidInput, match="has no inputs"):
        parse(RUN | {"system": {"name": "suslov", **MODELS["suslov"].example}, "controls": {"push": 1.0}}
              | {"initial": {"momentum": [3.0, 2.0]}})  # fmt: skip
    with pytest.raises(InvalidInput, match=r"a sweep has no \[controls\]: .*da.with_feedback"):
        da.sweep(driven(left_torque=0.1) | {"sweep": {"system.mass": [9.0, 10.0]}})
    with pytest.raises(InvalidInput, match=r"a study has no \[controls\]"):
        parse(driven(left_torque=0.1)).require_uncontrolled("a study")


def test_a_driven_run_goes_on_bit_for_bit(tmp_path):
    push = MODELS["unicycle"].make({}).inputs[1].name
    base = driven(**{push: [0.3, 2.0, 0.0]}) | {"system": {"name": "unicycle"}, "initial": MODELS["unicycle"].initial}
    job = lambda steps: parse(base | {"run": {"step": 0.1, "steps": steps}})
    first, whole = (run_with_progress(job(steps), states=True) for steps in (3, 8))
    save_run(first, tmp_path / "driven.nc", {"config": job(3).text})
    again = _toml.resume_run(job(8), tmp_path / "driven.nc")
    assert np.array_equal(again.xi, whole.xi) and np.array_equal(again.controls, whole.controls)
    free = parse({key: part for key, part in job(8).config.items() if key != "controls"})
    with pytest.raises(InvalidInput, match=f"holds another run: its controls.{push}"):
        _toml.resume_run(free, tmp_path / "driven.nc")


def test_a_mechanism_starts_by_names():
    job = parse(named(lean=0.4, spin_rate=6.0, yaw_rate=3.0))
    told = job.system.state(lean=0.4, spin_rate=6.0, yaw_rate=3.0)
    np.testing.assert_array_equal(job.state.xi, told.xi)
    assert tomllib.loads(job.text)["initial"] == {"lean": 0.4, "spin_rate": 6.0, "yaw_rate": 3.0}
    rest = parse(named()).state
    assert np.abs(rest.xi).max() == 0.0  # nothing is named: it stands as it is drawn
    again = parse(named(configuration=[{"angle": 0.0, "position": [0.0, 0.0]}, [0.0] * 3], velocity=[0.0] * 6))
    np.testing.assert_array_equal(again.state.xi, rest.xi)


@pytest.mark.parametrize(
    ("initial", "words"),
    [
        ({"lean": 0.4, "velocity": [0.0] * 6}, r"has names \(lean\) and velocity: give one kind"),
        ({"leam": 0.4}, "Did you mean 'lean'"),
        ({"lean": [0.4]}, r"lean is \[0.4\] in \[initial\]; allowed: a finite number"),
        ({"configuration": [[0.0] * 3, [0.0] * 3]}, "needs either velocity or momentum"),
        ({"lean": 0.4, "height": 0.3}, "cannot be assembled with height = 0.3, lean = 0.4|lean = 0.4, height = 0.3"),
    ],
)
def test_names_that_do_not_fit_are_refused(initial, words):
    with pytest.raises(InvalidInput, match=words):
        parse(named(**initial))


def test_other_systems_have_no_names():
    with pytest.raises(UnknownName, match="configuration, momentum, project, velocity"):
        parse(named(speed=1.0) | {"system": {"name": "unicycle"}})


def test_a_velocity_by_names():
    """Names stand for components, the others are 0, beside any configuration; those of a mechanism are completed."""
    place = {"angle": 0.3, "position": [1.0, 2.0]}
    start = lambda velocity: named(configuration=place, velocity=velocity) | {"system": {"name": "unicycle"}}
    told, listed = parse(start({"v1": 0.5})), parse(start([0.0, 0.5, 0.0]))
    assert told.text == listed.text and told.state.xi.tolist() == [0.0, 0.5, 0.0]
    np.testing.assert_array_equal(told.state.g, listed.state.g)
    coin = parse(named(lean=0.4, velocity={"spin rate": 6.0, "yaw_rate": 3.0}))
    np.testing.assert_array_equal(coin.state.xi, coin.system.state(lean=0.4, spin_rate=6.0, yaw_rate=3.0).xi)
    with pytest.raises(UnknownName, match=r"unknown velocity 'v3'. Did you mean 'v"):
        parse(start({"v3": 0.5}))
    with pytest.raises(InvalidInput, match=r"allowed: a list of numbers, or a table of names such as \{w = 1.0\}"):
        parse(start({"v1": "fast"}))


def test_a_start_by_names_on_a_product_with_vectors(tmp_path):
    """A vector has no other form than its entries: [initial] by names of such a system was refused."""
    (tmp_path / "own.py").write_text(
        "import dalembert as da\n"
        "def make():\n"
        "    group = da.Product((da.groups.SE2(), da.Euclidean(2)))\n"
        "    names = {'coordinates': ['heading', 'x', 'y', 'sway', 'lift']}\n"
        "    return da.System(group, lambda t, g, xi, p: 0.5 * xi @ xi, names=names)\n"
    )
    config = {"system": {"python": "own.py:make"}, "method": {"name": "lagrange-dalembert"}}
    config |= {"initial": {"lift": 0.25, "x": 2.0}, "run": {"step": 0.1, "steps": 2}}
    state = parse(config, folder=tmp_path).state
    assert np.allclose(state.g[1], [0.0, 0.25]) and state.g[0][0, 2] == 2.0
