"""Driving: what was driven is the run that `simulate` makes of the recorded controls, and a session ends by itself."""

from __future__ import annotations

import json
import time

import jax
import numpy as np
import pytest
from registry import more
from scipy.spatial.transform import Rotation
from studio.test_studio_server import ask, post, serving

from dalembert.errors import InvalidInput
from dalembert.io.config import build_system
from dalembert.kernels import llvm as native
from dalembert.models import MODELS
from dalembert.optimise import plan
from dalembert.simulation import simulate
from dalembert.studio import requests, workers
from dalembert.studio.catalogue import STORIES, example
from dalembert.studio.presentation import (
    HELD_ANGLE,
    MOTOR_SECONDS,
    PLAN_STEPS,
    STRENGTH,
    Drive,
    _along_arc,
    present,
    ways_to,
)
from dalembert.studio.requests import StudioInput
from dalembert.studio.scenes import AIM

OPENED = StudioInput()
STICKS = [([0.0, 1.0], 12), ([0.7, 1.0], 5), ([-1.0, 0.3], 9), ([0.0, -5.0], 4)]


def drive(name: str) -> tuple[Drive, list[list[float]], list[dict]]:
    request = {"config": example(name)}
    driven, rows, answers = Drive(request, OPENED), [], []
    begun = driven.begin(request, OPENED)
    assert begun["inputs"] == driven.names and begun["show"]["scene"]["parts"]
    for stick, steps in STICKS:
        answers.append(json.loads(json.dumps(driven.go(stick, steps), allow_nan=False)))
        rows += answers[-1]["controls"]
    return driven, rows, answers


FAST, GUESSED = ["car", "roller-racer"], ["omni-base", "tractor", "ackermann-car"]
DRIVEN = {*FAST, *GUESSED, *STORIES["drive"]}


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(n, marks=pytest.mark.heavy) for n in sorted(DRIVEN.difference(FAST)))]
)
def test_what_was_driven_is_simulate_with_the_recorded_controls_bit_for_bit(name):
    driven, rows, answers = drive(name)
    job = driven.job
    controls = np.array(rows)
    assert controls.shape == (30, len(driven.names)) and np.abs(controls).max() > 0
    run = simulate(job.system, job.integrator, job.state, step=job.run["step"], steps=30, controls=controls)
    for one, other in zip(jax.tree.leaves(run.last), jax.tree.leaves(driven.run.last), strict=True):
        assert np.array_equal(one, other)
    assert answers[-1]["time"] == pytest.approx(30 * job.run["step"])
    keys = [key for key, *_ in answers[-1]["pose"]]
    assert keys and len(set(keys)) == len(keys) and answers[0]["pose"] != answers[-1]["pose"], "it moves on the page"
    # as the page asks for it afterwards: through JSON, with the controls in the request
    request = {"config": {**example(name), "run": {"step": job.run["step"], "steps": 30}}, "controls": rows}
    (again,), _ = requests.jobs_of(request, OPENED)
    shown, _, _ = requests.integrate(again, 1, controls=requests.controls_of(request, again))
    assert np.array_equal(shown.last.xi, driven.run.last.xi)


def test_a_drive_that_has_begun_compiles_nothing_more():
    """Whoever presses a key at once would wait for it."""
    request = {"config": example("unicycle") | {"method": {"name": "lagrange-dalembert", "node": 0.43}}}
    driven = Drive(request, OPENED)
    driven.begin(request, OPENED)
    before = len(native._functions)
    assert driven.steps == 0 and driven.run is None and len(driven.go([0.3, 1.0], 3)["controls"]) == 3
    assert len(native._functions) == before


def has_inputs(name):
    return bool(build_system(example(name)["system"], OPENED.folder, OPENED.load)[1].inputs)


@pytest.mark.parametrize("name", ["unicycle", "chaplygin-sleigh"])
def test_what_has_inputs_is_offered_to_be_driven(name):
    """The page has the button where the show has inputs."""
    shown = present({"config": example(name), "frames": 10}, OPENED)["inputs"]
    assert has_inputs(name) == (name in DRIVEN) == bool(shown)


@pytest.mark.heavy
def test_every_model_with_inputs_is_offered_to_be_driven_and_no_other():
    found = {name for name in MODELS if has_inputs(name)}
    assert found == DRIVEN
    for name in found:
        assert present({"config": example(name), "frames": 10}, OPENED)["inputs"], name


@pytest.mark.parametrize("name", ["roller-racer", *(pytest.param(n, marks=pytest.mark.heavy) for n in GUESSED)])
def test_a_law_that_is_guessed_steers_to_the_right_and_drives_at_a_speed_that_fits(name):
    """A stick that is held to the right turns it clockwise, less far than wheels may turn; wheels find their rate."""
    ends = []
    for stick in ([0.0, 1.0], [1.0, 1.0]):
        driven = Drive({"config": example(name)}, OPENED)
        for _ in range(4):
            assert "failed" not in driven.go(stick, 40)
        system, state = driven.job.system, driven.state
        seen = np.asarray(system.observe(state.t, state.g, state.xi))
        ends.append(dict(zip((*system.coordinate_names, *system.rate_names), seen, strict=True)))
    turning = "w" if name == "roller-racer" else "yaw rate"
    assert ends[1][turning] < -0.2 and abs(ends[0][turning]) < 0.1
    held = [key for key in ("steer", "pivot") if key in ends[1]]
    assert all(abs(ends[1][key] + HELD_ANGLE) < 0.05 for key in held) and (held or name == "omni-base")
    if name != "roller-racer":  # which is driven by swinging its handle
        rates = [abs(ends[0][key]) for key in ends[0] if key in ("rear left rate", "rear axle rate", "wheel 2 rate")]
        assert 6.0 < max(rates) < STRENGTH * MOTOR_SECONDS


def test_the_stick_does_what_it_says():
    """Forward makes a car faster, and to the right turns it clockwise."""
    driven, _, _ = drive("car")
    start = float(example("car")["initial"]["velocity"][1])
    ahead = Drive({"config": example("car")}, OPENED)
    ahead.go([0.0, 1.0], 40)
    assert float(ahead.run.last.xi[1]) > 1.5 * start
    ahead.go([1.0, 1.0], 40)
    assert float(ahead.run.last.xi[0]) < -0.5
    for stick, steps in (
        ([0.0], 1),
        ("left", 1),
        ([0.0, "x"], 1),
        ([0.0, 0.0], 0),
        ([0.0, 0.0], 10_000),
        ([0.0, 0.0], 1.5),
    ):
        with pytest.raises(InvalidInput, match="stick"):
            driven.go(stick, steps)
    with pytest.raises(InvalidInput, match="inputs"):
        Drive({"config": example("chaplygin-sleigh")}, OPENED)


@pytest.mark.heavy
def test_a_ball_robot_balances_where_the_stick_sends_it():
    driven = Drive({"config": example("ball-robot")}, OPENED)
    for stick, ahead in (([0.0, 0.0], 0.0), ([0.0, 1.0], 1.0), ([0.0, 0.0], 0.0)):
        for _ in range(8):
            driven.go(stick, 50)
        pose, neck = map(np.asarray, driven.state.g)
        turn, speed = pose[:3, :3] @ neck, neck.T @ np.asarray(driven.state.xi)[3:6]
        assert turn[2, 2] > np.cos(0.1), "it stands"
        assert abs(speed[0] - ahead) < 0.3 and abs(speed[1]) < 0.3


def test_a_plan_parks_it_and_feedback_brings_it_back_after_a_push():
    config = {**example("unicycle"), "initial": {"velocity": [0.0, 0.0, 0.0]}}
    driven = Drive({"config": config}, OPENED)
    with pytest.raises(InvalidInput, match="plan first"):
        driven.park(10, False)
    goal, ends = [2.0, 1.0, 0.4], {}
    planned = driven.plan(goal)
    assert planned["status"] == "optimal" and planned["cost"] > 0 and len(planned["planned"]) == PLAN_STEPS
    assert planned["path"][0] == [0.0, 0.0] and np.allclose(planned["path"][-1], goal[:2], atol=1e-6)
    for pushed in (False, True):
        again, rows = Drive({"config": config}, OPENED), []
        again.known = driven.known
        again.plan(goal)
        while again.planned < PLAN_STEPS:
            rows += again.park(10, pushed and again.planned == 20)["controls"]
        ends[pushed], pose = rows, np.asarray(again.state.g)
        assert (
            np.allclose(pose[:2, 2], goal[:2], atol=0.03) and abs(np.arctan2(pose[1, 0], pose[0, 0]) - goal[2]) < 0.03
        )
        assert np.abs(again.state.xi).max() < 0.02
        job = again.job
        run = simulate(job.system, job.integrator, job.state, step=job.run["step"], steps=100, controls=np.array(rows))
        assert np.array_equal(run.last.xi, again.state.xi)
    apart = np.abs(np.array(ends[True]) - np.array(ends[False])).max(axis=1)
    assert apart[:20].max() < 1e-9 and apart[20:].max() > 1, "the push, and what answers it"
    for bad in ([1.0, 2.0], "there", [1.0, 2.0, 1e9], [1.0, None, 2.0]):
        with pytest.raises(InvalidInput, match="the goal is"):
            driven.plan(bad)
    with pytest.raises(InvalidInput, match="unicycle"):
        Drive({"config": example("snakeboard")}, OPENED).plan(goal)


TURNS = [[0.0, 0.0, 0.7, 0.7], [0.5, -0.5, 0.5, 0.5], [1.0, 0.2, 0.1, -0.05], [0.0, 0.1, 0.0, 1.0]]


@pytest.mark.parametrize(("turns", "pushes"), [((), (True,)), more(TURNS, (False, True))], ids=["one", "all"])
def test_a_satellite_is_turned_by_the_plan_of_the_same_problem_and_brought_back_after_a_push(turns, pushes):
    config = {**example("satellite"), "initial": {"velocity": [0.0, 0.0, 0.0]}}
    driven = Drive({"config": config}, OPENED)
    for quaternion in turns:
        found, job = driven.plan(quaternion), driven.job
        goal = Rotation.from_quat(quaternion).as_matrix()
        assert found["status"] == "optimal" and np.allclose(driven.known.g[-1], goal, atol=1e-6)
        assert np.allclose(np.linalg.norm(found["path"], axis=1), AIM)
        asked = {"start": job.state, "goal": job.system.state(goal, np.zeros(3)), "steps": PLAN_STEPS}
        same = plan(job.system, job.integrator, duration=driven.known.duration, cost=lambda t, g, xi, u: u @ u, **asked)
        assert found["cost"] == pytest.approx(float(same.check().cost), rel=1e-5), "no longer way round"
        assert np.allclose(found["planned"], same.controls, atol=1e-4)
    for pushed in pushes:
        again, rows, far = Drive({"config": config}, OPENED), [], 0.0
        again.plan(TURNS[1])
        while again.planned < PLAN_STEPS:
            rows += again.park(10, pushed and again.planned == 40)["controls"]
            far = max(far, np.abs(np.asarray(again.state.g) - np.asarray(again.known.g)[again.planned]).max())
        goal = Rotation.from_quat(TURNS[1]).as_matrix()
        assert np.abs(np.asarray(again.state.g) - goal).max() < 0.01 and np.abs(again.state.xi).max() < 0.05
        assert (far > 0.05) == pushed, far
        job = again.job
        run = simulate(job.system, job.integrator, job.state, step=again.step, steps=100, controls=np.array(rows))
        assert np.array_equal(run.last.xi, again.state.xi)
    for bad in ([0.0] * 4, [1.0, 0.0, 0.0], [1.0, None, 0.0, 0.0], "up"):
        with pytest.raises(InvalidInput, match=r"the goal is .* quaternion"):
            driven.plan(bad)


def test_ways_of_arcs_and_lines_end_where_they_should():
    law = {"radius": 1.3}
    for goal in np.random.default_rng(1).uniform([-5, -5, -3.1], [5, 5, 3.1], (200, 3)):
        ways = ways_to(tuple(goal), law)
        assert ways, goal
        for way in ways:
            pose = np.eye(3)
            for turn, size in way:
                pose = pose @ _along_arc(np.array([size]), turn / law["radius"])[0]
            assert np.allclose(pose[:2, 2], goal[:2], atol=1e-9), way
            assert np.cos(np.arctan2(pose[1, 0], pose[0, 0]) - goal[2]) > 1 - 1e-9, way


GOALS = [(3.0, 0.0, 0.0), (3.0, 1.5, 0.5), (0.0, 2.0, 0.0), (0.0, -2.0, 1.0), (-3.0, 0.5, 0.0), (1.0, 2.0, 3.1)]


@pytest.mark.heavy
def test_the_car_is_parked_in_front_beside_and_behind_around_an_obstacle():
    config = {**example("car"), "initial": {"velocity": [0.0] * 4}}
    driven = Drive({"config": config}, OPENED)
    found = [driven.plan(list(goal)) for goal in GOALS]
    assert sum(each["status"] == "optimal" for each in found) >= 5, [each["reason"] for each in found]
    for goal, each in zip(GOALS, found, strict=True):
        assert each["reason"] if each["status"] != "optimal" else np.allclose(each["path"][-1], goal[:2], atol=1e-5)
    free = np.array(driven.plan([5.0, 0.0, 0.0])["path"])
    assert np.abs(free[:, 1]).max() < 0.1
    around = driven.plan([5.0, 0.0, 0.0], [[2.5, 0.1, 0.4]])
    assert around["status"] == "optimal"
    assert np.linalg.norm(np.array(around["path"]) - [2.5, 0.1], axis=1).min() > 0.4 + 0.4
    hurried, patient = (
        driven.plan([-3.5, 2.5, 1.0], [[-1.6, 1.4, 0.4], [-2.2, 0.6, 0.4]], patient=each) for each in (False, True)
    )
    lengths = [np.linalg.norm(np.diff(each["path"], axis=0), axis=1).sum() for each in (hurried, patient)]
    assert patient["status"] == "optimal" and lengths[1] <= lengths[0] * 1.001, "who waits goes no longer way"
    driven.plan([5.0, 0.0, 0.0], [[2.5, 0.1, 0.4]])
    while driven.planned < PLAN_STEPS:
        driven.park(10, driven.planned == 30)
    pose = np.asarray(driven.state.g[0])
    assert np.allclose(pose[:2, 2], [5.0, 0.0], atol=0.1), "feedback brings it back"
    for bad in ([[1.0, 2.0]], "round", [[0.0, 0.0, 1.0]] * 4, [[1.0, None, 2.0]], [[2.0, 1.0, -0.2]]):
        with pytest.raises(InvalidInput, match="the discs are"):
            driven.plan([5.0, 0.0, 0.0], bad)


@pytest.mark.heavy
def test_laws_of_driving_name_what_the_systems_have():
    for name, laws in STORIES["drive"].items():
        system = OPENED.job(example(name)).system
        known = (*system.coordinate_names, *system.rate_names)
        assert set(laws) <= {each.name for each in system.inputs} | {"balance"}, name
        for law in (each for key, each in laws.items() if key != "balance"):
            assert set(law) <= {"x", "y", "feel", "spring", "angle", "to"} and ("angle" in law) == ("spring" in law)
            assert set(law.get("feel", {})) <= set(known), name


@pytest.mark.heavy
def test_a_session_goes_on_and_ends(monkeypatch):
    monkeypatch.setattr(workers, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(workers, "WATCH_SECONDS", 0.1)
    with serving(StudioInput()) as server:
        status, begun = post(server, "/api/drive", {"request": {"config": example("car"), "frames": 50}})
        assert status == 200 and begun["step"] == 0.05
        name, rows = begun["session"], []
        process = server.sessions.all[name][0].process
        for _ in range(3):
            status, moved = post(server, "/api/drive", {"session": name, "stick": [0.3, 1.0], "steps": 2})
            assert status == 200
            rows += moved["controls"]
        assert len(rows) == 6 and moved["time"] == pytest.approx(0.3)
        for _ in range(8):  # somebody who thinks for longer than a page may be silent
            time.sleep(0.2)
            assert post(server, "/api/drive", {"session": name, "alive": True}) == (200, {"alive": True})
        assert process.is_alive()
        status, told = post(server, "/api/drive", {"session": name, "stick": "fast", "steps": 2})
        assert status == 400 and "stick" in told["error"]["message"]
        status, told = post(server, "/api/drive", {"session": name, "stick": [0, 1], "steps": 2, "stik": [0, 0]})
        assert status == 400 and "unknown key of a drive 'stik'. Did you mean 'stick'?" in told["error"]["message"]
        config = {**example("car"), "run": {"step": 0.05, "steps": 6}}
        status, shown = post(server, "/api/show", {"config": config, "controls": rows})
        assert status == 200 and shown["runs"][0]["status"] == "ok"
        end = time.monotonic() + 30
        while process.is_alive() and time.monotonic() < end:
            time.sleep(0.1)
        assert not process.is_alive() and not server.sessions.all, "a page that is silent has left"
        assert post(server, "/api/drive", {"session": name, "stick": [0, 0], "steps": 1})[0] == 404
        for bad in (7, {}, {"session": 3}, {"request": {"config": 3}}, {"request": {"config": example("car"), "x": 1}}):
            assert post(server, "/api/drive", bad)[0] in (400, 404), bad
        status, _, _ = ask(
            server, "POST", "/api/drive", "{}", {"Content-Type": "application/json", "Origin": "http://evil"}
        )
        assert status == 403
        monkeypatch.setattr(server.sessions, "most", 0)
        assert post(server, "/api/drive", {"request": {"config": example("car")}})[0] == 503


def test_a_driven_run_is_shown_and_limits_hold(monkeypatch):
    monkeypatch.setattr("dalembert.studio.presentation.MAX_DRIVEN", 10)
    driven = Drive({"config": example("car")}, OPENED)
    driven.go([0.0, 0.0], 5)
    with pytest.raises(InvalidInput, match="at most 10 controls"):
        driven.go([0.0, 0.0], 1)
    config = {**example("car"), "run": {"step": 0.05, "steps": 3}}
    answer = present({"config": config, "controls": [[1.0, 0.0]] * 3, "frames": 10}, OPENED)
    assert answer["runs"][0]["energy_title"] in ("Energy change", "Energy balance"), "power enters"
