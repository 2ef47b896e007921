"""One's own systems in the studio: files of Python, robots in URDF files, systems of a script; their sliders, their
scene, and driving them.
"""

from __future__ import annotations

import inspect
import json
import pickle
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from studio.test_studio_server import ask, post

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.io.config import load_job
from dalembert.models import rolling_disk
from dalembert.studio.catalogue import entry, example, input_of_file, input_of_system, make_catalogue, start
from dalembert.studio.presentation import (
    PLAN_STEPS,
    Drive,
    axle_of,
    goal_kind,
    idle_names,
    present,
    show_run,
    size_of,
    wheelbase,
)
from dalembert.studio.requests import StudioInput
from dalembert.studio.view import unpack_array

EXAMPLES = Path(__file__).parents[2] / "examples"
URDF = Path(__file__).parents[1] / "data" / "urdf"
ROBOT = URDF / "differential-drive.urdf"
pytestmark = pytest.mark.filterwarnings("ignore::dalembert.errors.NotRead")


def shown(opened):
    return present({**start(opened), "frames": 20}, opened)


@pytest.mark.heavy
def test_a_robot_in_a_urdf_file_opens_with_its_parts_and_sliders():
    opened = input_of_file(ROBOT)
    answer = shown(opened)
    names = {part["name"] for part in answer["scene"]["parts"]}
    assert {"frame of left_wheel", "frame of right_wheel", "spoke", "point of contact"} <= names
    legend = {part.get("legend", part["name"]) for part in answer["scene"]["parts"]}
    assert {"left_wheel", "right_wheel"} <= legend and not legend & {"disk", "arm of base"}
    assert answer["inputs"] and answer["runs"][0]["status"] == "ok"
    assert answer["title"] == "robot", "the name of the robot, and not of a file and a function"
    parameters = {each["label"]: each for each in entry("file", opened)["parameters"]}
    mass = next(each for name, each in parameters.items() if name.endswith("mass"))
    assert mass["help"] == "kg" and mass["low"] > 0 and make_catalogue(opened)["systems"][0]["name"] == "file"
    # another process reads the file again
    again = pickle.loads(pickle.dumps(opened))
    assert again.job(start(again)["config"]).system.group == opened.job(start(opened)["config"]).system.group
    # a slider changes the motion, and nonsense is refused
    heavier = {**start(opened)["config"]}
    key = mass["place"].partition(".")[2]
    heavier["system"] = {**heavier["system"], key: 3 * mass["value"]}
    assert opened.job(heavier).system.parameters != opened.job(start(opened)["config"]).system.parameters
    heavier["system"] = {**heavier["system"], key: -1.0}
    with pytest.raises(InvalidInput, match="positive"):
        opened.job(heavier)
    with pytest.raises(InvalidInput, match="no configuration names"):
        from dalembert.studio.server import make_download

        make_download({"kind": "toml", "request": start(opened)}, opened)


@pytest.mark.heavy
def test_an_arm_opens_fixed_and_wheels_without_a_radius_are_asked_for():
    assert shown(input_of_file(URDF / "double-pendulum.urdf"))["runs"][0]["status"] == "ok"
    with pytest.raises(InvalidInput, match=r"radius.*read_urdf"):
        input_of_file(URDF / "mobile-arm.urdf")


def test_a_configuration_of_a_plan_opens_with_its_obstacles():
    opened = input_of_file(EXAMPLES / "plan-park.toml")
    answer = shown(opened)
    assert answer["discs"] == [(0.05, 0.6, 0.15)] and answer["runs"][0]["steps"] == 50 and answer["goal"] == "pose"
    other = {**start(opened), "config": example("car"), "frames": 20}
    assert present(other, opened)["discs"] == [], "another system has none"


def test_a_configuration_with_events_opens_ends_where_they_say_and_tells_when():
    opened = input_of_file(EXAMPLES / "cusp.toml")
    answer, job = shown(opened), load_job(EXAMPLES / "cusp.toml")
    run = da.simulate(job.system, job.integrator, job.state, step=job.run["step"], steps=400, events=job.events)
    times = {name: [f"{t:.4g}" for t in found.t] for name, found in run.events.items()}
    assert run.stopped_by == "full turn" and times["cusp"]
    assert f"The event 'cusp' happens at t = {', '.join(times['cusp'])}." in answer["caption"]
    assert f"The event 'full turn' happens at t = {times['full turn'][0]} and ends the run." in answer["caption"]
    assert unpack_array(answer["time"])[-1] == pytest.approx(float(run.t[-1]), rel=1e-6)
    longer = json.loads(json.dumps(start(opened)))
    longer["config"]["event"] = longer["config"]["event"][:1]
    assert unpack_array(present({**longer, "frames": 20}, opened)["time"])[-1] == pytest.approx(20.0)
    for wrong, told in ((7, "list"), ([3], "list"), ([{"quantity": "speed"}], "quantity")):
        longer["config"]["event"] = wrong
        with pytest.raises(InvalidInput, match=told):
            present(longer, opened)


@pytest.mark.parametrize("file", ["fit-sleigh.toml", "suslov.toml"])
def test_of_a_configuration_of_something_else_the_run_is_shown(file):
    assert shown(input_of_file(EXAMPLES / file))["runs"][0]["status"] == "ok"


def test_what_cannot_be_opened_is_refused(tmp_path):
    (tmp_path / "robot.urdf").write_text("<robot name='r'/>")
    with pytest.raises(InvalidInput, match="read_urdf"):
        input_of_file(tmp_path / "robot.urdf")
    with pytest.raises(InvalidInput, match="allowed: a configuration"):
        input_of_file(tmp_path / "robot.step")
    with pytest.raises(InvalidInput, match="not 7"):
        input_of_system(7)
    with pytest.raises(InvalidInput, match="Annotated"):
        input_of_system(rolling_disk, units={"mass": "kg"})
    with pytest.raises(InvalidInput, match="number of the system"):
        input_of_system(rolling_disk(), units={"maas": "kg"})


def sleigh(mass: Annotated[float, "kg", (0.5, 3.0)] = 1.0, a: float = 0.2) -> da.System:
    """A sleigh of my own."""
    return da.models.chaplygin_sleigh(mass=mass, a=a)


def test_a_function_has_sliders_with_names_units_and_ranges():
    opened = input_of_system(sleigh, initial={"velocity": [0.5, 1.0, 0.0]}, steps=50)
    mass, a = entry("file", opened)["parameters"]
    assert (mass["label"], mass["help"], mass["low"], mass["high"]) == ("mass", "kg", 0.5, 3.0)
    assert a["label"] == "a" and a["help"] == "" and shown(opened)["runs"][0]["steps"] == 50
    assert "A sleigh of my own" in entry("file", opened)["summary"]


def test_a_system_of_a_script_is_served_shown_and_driven():
    server = da.studio(
        da.models.unicycle(), browser=False, wait=False, units={"mass": "kg"}, ranges={"mass": (1.0, 30.0)}
    )
    try:
        assert server.url in repr(server) and server.url in server._repr_html_()
        catalogue = ask(server, "GET", "/api/catalogue")[2]
        assert b'"file"' in catalogue
        first = start(server.opened)
        status, answer = post(server, "/api/show", {**first, "frames": 20})
        assert status == 200 and answer["runs"][0]["status"] == "ok" and len(answer["inputs"]) == 2
        status, begun = post(server, "/api/drive", {"request": first})
        assert status == 200 and begun["inputs"] == answer["inputs"]
        status, moved = post(server, "/api/drive", {"session": begun["session"], "stick": [0.0, 1.0], "steps": 10})
        turning, driving = np.array(moved["controls"]).T
        assert status == 200 and len(driving) == 10 and np.all(driving > 0) and not np.any(turning)
        mass = next(each for each in json.loads(catalogue)["systems"][0]["parameters"] if each["label"] == "mass")
        assert (mass["help"], mass["low"], mass["high"]) == ("kg", 1.0, 30.0)
        status, told = post(server, "/api/drive", {"session": begun["session"], "stick": [0.0], "steps": 10})
        assert status == 400 and "stick" in told["error"]["message"]
        assert post(server, "/api/drive", {"session": begun["session"], "end": True})[0] == 200
    finally:
        server.close()


def telescope(heavy: Annotated[float, "kg m2", (0.5, 3.0)] = 2.0) -> da.System:
    """A body of my own with three weak wheels."""

    def lagrangian(t, g, xi, p):
        return 0.5 * jnp.sum(jnp.array([1.0, 1.4, p["heavy"]]) * xi**2)

    wheels = [da.Input(f"wheel {k}", "N m", -0.4, 0.4) for k in (1, 2, 3)]
    turn = lambda t, g, xi, u, p: u
    return da.System(da.SO3(), lagrangian, force=turn, parameters={"heavy": heavy}, inputs=wheels)


def kart(mass: float = 2.0, base: float = 0.8) -> da.System:
    """A car of my own, whose first input steers."""

    def lagrangian(t, g, xi, p):
        w, v1, v2, s = xi
        turning = 0.3 * w**2 + 0.05 * (w + s) ** 2
        return 0.5 * (p["mass"] * (v1**2 + (v2 + 0.4 * p["base"] * w) ** 2) + turning)

    def axles(t, g, p):
        (c, _), (s, _) = g[1]
        return jnp.array([[0.0, 0.0, 1.0, 0.0], [p["base"] * c, -s, c, 0.0]])

    drive = lambda t, g, xi, u, p: jnp.array([0.0, u[1], 0.0, u[0]])
    given = {"parameters": {"mass": mass, "base": base}, "inputs": [da.Input("steering torque"), da.Input("motor")]}
    return da.System(da.SE2() * da.SO2(), lagrangian, axles, force=drive, **given)


def test_one_s_own_has_a_goal_where_a_built_in_model_of_its_kind_has_one():
    kinds = {telescope: "attitude", kart: "pose", da.models.unicycle: "pose", sleigh: None, da.models.snakeboard: None}
    models = da.models
    kinds |= {models.differential_drive: "pose", models.omni_base: "pose", models.tractor: "pose", models.bicycle: None}
    kinds |= {tricycle: "pose", models.ackermann_car: "pose"}
    for make, kind in kinds.items():
        made = make()
        assert goal_kind("", made.system() if isinstance(made, da.Mechanism) else made) == kind, make
    assert wheelbase(kart(base=0.7)) == pytest.approx((0.7, 0.0))
    assert wheelbase(da.models.car(length=1.2)) == pytest.approx((1.2, 0.0))
    assert wheelbase(tricycle().system()) == pytest.approx((1.1, -0.2)), "from its axle, which lies 0.2 m behind"
    assert wheelbase(da.models.roller_racer()) is None and goal_kind("snakeboard", da.models.snakeboard()) is None


def tricycle() -> da.Mechanism:
    """A tricycle of my own, drawn from 0.2 m ahead of its axle; its front wheel drives and steers, both bounded."""
    made = da.Mechanism("tricycle")
    made.body("chassis", mass=400.0, centre=(0.3, 0, 0.4), box=(1.6, 0.9, 0.6))
    made.body("fork", mass=14.0, centre=(0.9, 0, 0.5), inertia=(0.3, 0.3, 0.1))
    made.planar("chassis")
    made.hinge("steer", "chassis", "fork", at=(0.9, 0, 0.5), axis=(0, 0, 1), damping=1.0)
    made.wheel("rear left", "chassis", at=(-0.2, 0.4, 0.18), mass=6.0)
    made.wheel("rear right", "chassis", at=(-0.2, -0.4, 0.18), mass=6.0)
    made.wheel("front", "fork", at=(0.9, 0, 0.2), mass=9.0, motor=(-60.0, 60.0))
    made.motor("steer", low=-40.0, high=40.0)
    return made


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["tricycle", "ackermann-car", "tractor"])
def test_what_is_steered_by_a_joint_is_parked_pushed_and_brought_back(name):
    """From the way of a car as long: beside, behind and ahead; a plan that is not the cheapest is told to be so."""
    opened = input_of_system(tricycle()) if name == "tricycle" else StudioInput()
    config = start(opened)["config"] if name == "tricycle" else example(name)
    request = {"config": {**config, "initial": dict.fromkeys(config["initial"], 0.0)}}
    driven = Drive(request, opened)
    length = driven.parking["length"]
    goals = [[3.0, 1.0, 0.5], [0.0, 2.0, 0.0], [-3.0, 0.5, 0.0], [3.0, 0.0, 0.0]]
    goals = [[length * x, length * y, angle] for x, y, angle in goals]
    found = [driven.plan(goal) for goal in goals]
    reached = [each for each in found if each["path"]]
    assert len(reached) >= (4 if name == "ackermann-car" else 3), [each["reason"] for each in found]
    for goal, each in zip(goals, found, strict=True):
        assert np.allclose(each["path"][-1], goal[:2], atol=0.01) if each["path"] else each["reason"]
    if name != "ackermann-car":
        return
    driven = Drive(request, opened)
    assert driven.plan(goals[0])["status"] == "optimal"
    while driven.planned < PLAN_STEPS:
        driven.park(10, driven.planned == 30)
    pose = np.asarray(driven.state.g[0])
    assert np.allclose(pose[:2, 2], goals[0][:2], atol=0.05 * length)
    assert abs(np.arctan2(pose[1, 0], pose[0, 0]) - 0.5) < 0.05


def robot(track: float = 0.3) -> da.Mechanism:
    """A robot of my own on two wheels, drawn from its middle: its axle lies 0.1 m behind, a ball supports it."""
    made = da.Mechanism("my robot")
    made.body("base", mass=5.0, centre=(-0.05, 0, 0.1), box=(0.4, 0.3, 0.1))
    made.planar("base")
    for name, side in (("left", 1), ("right", -1)):
        made.wheel(name, "base", at=(-0.1, side * track / 2, 0.08), mass=0.4, width=0.02, motor=True)
    made.support("base", at=(0.2, 0, 0))
    return made


def test_a_function_may_return_a_mechanism(tmp_path):
    """As a file that somebody opens, as a function of a script, and in a configuration."""
    assert {each["label"] for each in entry("file", input_of_system(robot))["parameters"]} == {"track"}
    source = inspect.getsource(robot).replace("def robot", "def make")
    (tmp_path / "robot.py").write_text(f"import dalembert as da\n\n{source}")
    (tmp_path / "robot.toml").write_text(
        '[system]\npython = "robot.py:make"\ntrack = 0.4\n[method]\nname = "runge-kutta"\n[initial]\nspeed = 1.0\n'
        "[run]\nstep = 0.01\nsteps = 5\n"
    )
    for name in ("robot.py", "robot.toml"):
        assert shown(input_of_file(tmp_path / name))["title"] == "my robot"
    speed, *others = entry("file", input_of_file(tmp_path / "robot.toml"))["initial"]
    assert (speed["label"], speed["help"], speed["low"] > 0) == ("speed", "m s-1", True)
    assert {each["label"]: each["help"] for each in others}["yaw rate"] == "rad s-1"
    assert all(each["low"] == -each["high"] for each in others), "it may begin elsewhere, and turned either way"


def test_the_axle_of_an_own_robot_is_found_and_its_wheels_are_no_goal():
    system = robot().system()
    assert axle_of(system) == pytest.approx(-0.1) and axle_of(da.models.omni_base()) is None
    assert idle_names(system) == ["left", "right"] and size_of(system) == pytest.approx(4 * 0.2)
    assert "castor swivel" in idle_names(da.models.differential_drive())


@pytest.mark.heavy
def test_an_own_robot_is_parked_pushed_and_brought_back():
    opened = input_of_system(robot())
    request = start(opened)
    request["config"]["initial"] = {"speed": 0.0}
    driven = Drive(request, opened)
    for goal in ([1.0, 0.5, 0.4], [0.0, 1.0, 0.0], [-1.0, 0.2, 0.0]):
        found = driven.plan(goal)
        assert found["status"] == "optimal" and np.allclose(found["path"][-1], goal[:2], atol=1e-3), goal
    assert driven.plan([1.5, 0.0, 0.0], [[0.75, 0.05, 0.1]])["status"] == "optimal", "around an obstacle"
    assert driven.plan([1.0, 0.5, 0.4])["status"] == "optimal"
    while driven.planned < PLAN_STEPS:
        driven.park(10, driven.planned == 30)
    pose = np.asarray(driven.state.g[0])
    assert np.allclose(pose[:2, 2], [1.0, 0.5], atol=0.05) and abs(np.arctan2(pose[1, 0], pose[0, 0]) - 0.4) < 0.05
    assert np.abs(np.asarray(driven.state.xi)[:3]).max() < 0.05


@pytest.mark.heavy
@pytest.mark.parametrize(("make", "goals"), [
    (telescope, [[0.0, 0.7, 0.0, 0.7], [0.5, -0.5, 0.5, 0.5], [1.0, 0.2, 0.1, -0.05]]),
    (kart, [[3.0, 1.0, 0.5], [0.0, 2.0, 0.0], [-3.0, 0.5, 0.0]]),
    (da.models.unicycle, [[3.0, 1.0, 0.5], [0.0, 2.0, 0.0], [12.0, 3.0, 0.0]]),
])  # fmt: skip
def test_one_s_own_is_planned_driven_pushed_and_brought_back(make, goals):
    opened = input_of_system(make)
    request = start(opened)
    request["config"]["initial"] = {"velocity": [0.0] * make().group.dim}
    driven = Drive(request, opened)
    assert all(driven.plan(goal)["status"] == "optimal" for goal in goals)
    assert driven.plan(goals[0])["status"] == "optimal"
    while driven.planned < PLAN_STEPS:
        driven.park(10, driven.planned == 30)
    g, end = driven.state.g, driven.known.g
    for one, other in zip(jax.tree.leaves(g), jax.tree.leaves(end), strict=True):
        assert np.allclose(one, other[-1], atol=0.06)
    assert np.abs(driven.state.xi).max() < 0.1


@pytest.mark.heavy
def test_the_stick_drives_an_own_robot_ahead_and_to_the_right():
    opened, ends = input_of_system(StudioInput().job(example("differential-drive")).system), []
    for stick in ([0.0, 1.0], [1.0, 1.0], [-1.0, 1.0]):
        driven = Drive({"config": {**start(opened)["config"], "initial": {"speed": 0.0}}}, opened)
        driven.go(stick, 50)
        ends.append(np.asarray(driven.state.xi)[:2])  # yaw rate and speed
    ahead, right, left = ends
    assert ahead[1] > 0.1 and abs(ahead[0]) < 1e-9 and right[0] < -0.1 and left[0] > 0.1 and right[1] > 0.1


def make_sled():
    def lagrangian(t, g, xi, p):
        return 17.5 * (xi[1] ** 2 + (xi[2] + 0.2 * xi[0]) ** 2) + 1.25 * xi[0] ** 2 + 60.0 * g[0, 2]

    names = {"system": "Sled", "velocities": ["yaw rate [rad s-1]", "glide [m s-1]", "skid [m s-1]"]}
    sled = da.System(da.SE2(), lagrangian, lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]), names=names)
    return da.with_friction(sled, viscous=[0.5, 6.0, 0.0])


@pytest.mark.parametrize("every", [1, 4])
def test_a_file_of_ones_own_system_with_friction_is_told_by_its_own_words(every, tmp_path):
    """The file has the work, the names and the steps; friction is no error of the method."""
    sled = make_sled()
    start_at = sled.state(glide=2.0, yaw_rate=0.6)
    run = da.simulate(sled, da.LagrangeDAlembert(), start_at, step=0.01, steps=400, save_every=every).check()
    run.save(tmp_path / "sled.nc")
    saved = StudioInput(saved=tmp_path / "sled.nc")
    answer = present({**start(saved), "frames": 40}, saved)
    (summary,), plots = answer["runs"], {plot["title"]: plot for plot in answer["plots"]}
    assert answer["title"] == "Sled" and summary["steps"] == 400 and summary["label"] == "lagrange-dalembert"
    lost = float(np.abs(np.asarray(run.energy_error())).max())
    known = {1: ("Energy balance", np.abs(da.analysis.energy_balance(run)).max() if every == 1 else 0.0)}
    title, size = known.get(every, ("Energy change", lost))
    assert title in plots and "Energy error" not in plots and summary["energy_title"] == title
    assert summary["energy_error"] == pytest.approx(size) and lost > 1.0
    assert plots["Forward velocity"]["y"] == "glide, m/s" and plots["Yaw rate"]["y"] == "yaw rate, rad/s"
    assert "wheels" not in answer["caption"]


def test_a_run_with_controls_has_one_word_and_one_number_for_its_energy():
    car = da.models.unicycle()
    run = da.simulate(car, da.RungeKutta(), car.state(), step=0.05, steps=40, controls=np.full((40, 2), 0.3)).check()
    answer = show_run(run)
    (summary,), energy = answer["runs"], answer["plots"][0]
    assert energy["title"] == summary["energy_title"] == "Energy balance"
    assert summary["energy_error"] == pytest.approx(np.abs(da.analysis.energy_balance(run)).max())
    curve = unpack_array(energy["curves"][0]["y"])
    assert curve.max() == pytest.approx(summary["energy_error"], rel=1e-5)
