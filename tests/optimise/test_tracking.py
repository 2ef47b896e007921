"""Feedback along a plan: exact without disturbances, near the plan with another plant, within the bounds of inputs."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from registry import sampled

import dalembert as da
from dalembert.optimise import plan, track


def sleigh(mass=1.0, limit=np.inf):
    """An offset unicycle with a force and a torque."""

    def lagrangian(t, g, xi, p):
        w, v1, v2 = xi
        return 0.5 * p * (0.44 * w**2 + v1**2 + v2**2) + 0.2 * p * w * v2

    return da.System(
        da.SE2(),
        lagrangian,
        constraint=lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]),
        force=lambda t, g, xi, u, p: jnp.stack([u[1], u[0], jnp.zeros(())]),
        parameters=jnp.asarray(mass),
        inputs=(da.Input("force", "N", -limit, limit), da.Input("torque", "N m", -limit, limit)),
    )


def pose(theta, x, y):
    c, s = np.cos(theta), np.sin(theta)
    return np.array([[c, -s, x], [s, c, y], [0.0, 0.0, 1.0]])


@pytest.fixture(scope="module")
def lane_change():
    """Three metres ahead and half a metre to the left, at a speed of 1 before and after."""
    system = sleigh()
    ends = [system.state(pose(0, x, y), [0.0, 1.0, 0.0]) for x, y in ((0.0, 0.0), (3.0, 0.5))]
    return plan(system, start=ends[0], goal=ends[1], steps=30, duration=3.0, cost=lambda t, g, xi, u: u @ u).check()


@pytest.mark.parametrize("horizon", sampled([0, 10]))
def test_the_planned_system_needs_no_feedback(lane_change, horizon):
    run = track(lane_change, horizon=horizon).follow()
    np.testing.assert_allclose(run.controls, lane_change.controls, atol=1e-9)
    np.testing.assert_allclose(run.g[-1], pose(0, 3, 0.5), atol=1e-9)


@pytest.mark.parametrize("horizon", [0, 10])
def test_another_plant_is_brought_back(lane_change, horizon):
    """A plant 30 % heavier than planned that starts 10 cm and 0.1 rad off, with and without feedback."""
    plant = sleigh(1.3)
    start = plant.state(pose(0.1, 0.0, 0.1), [0.0, 0.9, 0.0])
    open_loop = da.simulate(
        plant, lane_change.method, start, step=lane_change.step, steps=30, controls=lane_change.controls
    )
    run = track(lane_change, state_weight=10.0, control_weight=0.01, horizon=horizon).follow(plant, start)
    off = [np.abs(each.g[-1] - pose(0, 3, 0.5)).max() for each in (open_loop, run)]
    assert run.status == "ok" and run.controls.shape == (30, 2)
    assert off[1] < 0.2 * off[0]


@pytest.fixture(scope="module")
def bounded():
    """A lane change of a sleigh whose inputs have bounds."""
    system = sleigh(limit=1.2)
    goal = system.state(pose(0, 3, 0.5), [0.0, 1.0, 0.0])
    return plan(
        system,
        start=system.state(xi=[0.0, 1.0, 0.0]),
        goal=goal,
        steps=20,
        duration=3.0,
        cost=lambda t, g, xi, u: u @ u,
    ).check()


@pytest.mark.parametrize("horizon", sampled([0, 8]))
def test_bounds_of_inputs_hold_in_the_closed_loop(bounded, horizon):
    start = bounded.system.state(pose(0.3, 0.0, 0.3), [0.0, 0.5, 0.0])
    run = track(bounded, state_weight=100.0, control_weight=0.01, horizon=horizon).follow(sleigh(1.3, 1.2), start)
    assert np.abs(run.controls).max() <= 1.2 + 1e-12


def test_a_control_is_the_feedback_at_the_measured_state(lane_change):
    tracker = track(lane_change)
    assert "Tracker of 30 steps" in repr(tracker) and "array" not in repr(tracker)
    state = lane_change.system.state(pose(0.0, 0.0, 0.01), [0.0, 1.0, 0.0])
    there = tracker.control(0, state)
    np.testing.assert_allclose(
        there, lane_change.controls[0] + tracker.gains[0] @ np.array([0.0, 0.0, 0.01, 0.0, 0.0]), atol=1e-12
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"state_weight": -1.0}, "state_weight is -1.0; allowed"),
        ({"control_weight": 0.0}, "control_weight must be positive"),
        ({"state_weight": np.ones(3)}, "allowed: a number, 5 numbers or a 5 x 5 matrix"),
        ({"horizon": -2}, "horizon is -2; allowed"),
        ({"state_weight": {"speeed": 1.0}}, r"unknown name in state_weight .speeed.\..* Allowed: "),
        ({"control_weight": {"forces": 1.0}}, r"unknown name in control_weight .forces.\. Did you mean .force"),
        ({"state_weight": {"v1": -1.0}}, "state_weight of v1 is -1.0; allowed: one number, not negative"),
    ],
)
def test_weights_that_make_no_sense_are_refused(lane_change, options, sentence):
    with pytest.raises(da.InvalidInput, match=sentence):
        track(lane_change, **options)


def test_a_plant_with_other_inputs_is_refused(lane_change):
    with pytest.raises(da.InvalidInput, match=r"SO\(3\) and 3 inputs; allowed: those of the plan"):
        track(lane_change).follow(
            da.System(da.SO3(), lambda t, g, xi, p: 0.5 * xi @ xi, force=lambda t, g, xi, u, p: u, inputs=3)
        )


def test_bounds_that_are_whole_numbers_hold_the_feedback():
    """`Input("push", low=-2, high=2)`: in a run of rows whole numbers would be read as other ones."""
    cart = da.System(
        da.Euclidean(1), lambda t, g, xi, p: 0.5 * xi @ xi, force=lambda t, g, xi, u, p: u,
        inputs=(da.Input("push", "N", low=-2, high=2),),
    )  # fmt: skip
    goal, cost = cart.state([1.0], [0.0]), lambda t, g, xi, u: u @ u
    tracker = track(plan(cart, start=[0.0], goal=goal, steps=10, duration=1.8, cost=cost), state_weight=100.0)
    driven = np.asarray(tracker.follow(cart, cart.state([-0.5], [0.0])).controls)
    assert driven[0, 0] == 2.0 == np.abs(driven).max()


def test_a_plan_that_is_not_optimal_is_tracked_with_a_word(lane_change):
    unfinished = dataclasses.replace(lane_change, status="max iterations", infeasibility=0.09)
    with pytest.warns(UserWarning, match=r"not optimal \(max iterations\): .* to 9.0e-02"):
        da.track(unfinished)


def trolley(mass=1000.0):
    """A cart on rails with a wheel that its motor turns."""
    drawing = da.Mechanism("trolley")
    drawing.body("cart", mass=mass, box=(1.0, 0.5, 0.5))
    drawing.slider("x", "ground", "cart", axis="x")
    drawing.wheel("left wheel", "cart", at=(0.0, 0.0, 0.25), mass=20.0, width=0.1, motor=(-900, 900))
    return drawing.system()


@pytest.fixture(scope="module")
def transfer():
    system = trolley()
    goal, cost = {"x": 3.0, "x rate": 0.0}, lambda t, g, xi, u: 1e-5 * u @ u
    return plan(system, start=system.state(), goal=goal, steps=30, duration=6.0, cost=cost).check()


@pytest.mark.parametrize("horizon", sampled([0, 15]))
def test_a_mechanism_with_wheels_is_brought_back_by_default(transfer, horizon):
    """A plant 30 % heavier that starts 0.4 m off: the angle of its wheel must not hold it there, nor its torques."""
    plant = trolley(1300.0)
    run = track(transfer, horizon=horizon).follow(plant, plant.state(x=-0.4))
    assert run.status == "ok" and abs(run["x"][-1] - 3.0) < 0.05, run["x"][-1]


def test_weights_by_names_are_those_of_what_is_seen(lane_change, transfer):
    """On the plane x is along the room, not along the robot; names that are left out weigh nothing."""
    by_name = track(lane_change, state_weight={"x": 4.0, "v1": 2.0}, control_weight={"torque": 0.5})
    for Q, g in zip(by_name.weights[0], np.asarray(lane_change.g), strict=True):
        ahead = np.array([0.0, g[0, 0], g[0, 1], 0.0, 0.0])  # x in the axes of the robot
        np.testing.assert_allclose(Q, 4.0 * np.outer(ahead, ahead) + np.diag([0.0, 0.0, 0.0, 0.0, 2.0]), atol=1e-12)
    size = np.abs(lane_change.controls[:, 0]).max()
    np.testing.assert_allclose(by_name.numbers["R"], np.diag([0.1 / size**2, 0.5]))
    spelled = [track(transfer, state_weight={name: 3.0}).gains for name in ("left wheel rate", "left_wheel_rate")]
    assert np.abs(spelled[0]).max() > 0
    np.testing.assert_array_equal(*spelled)


def test_default_weights_have_no_unit(transfer):
    """In kN m the same feedback: the weight of a control is relative to its bound."""
    tracker = track(transfer)
    np.testing.assert_allclose(tracker.numbers["R"], [[0.1 / 900.0**2]])
    x, wheel = (transfer.coordinates.index(name) for name in ("x", "left wheel"))
    assert tracker.weights[0][0, x, x] == 1.0 and not tracker.weights[0][:, wheel].any()


def test_a_plan_calls_coordinates_of_an_error_by_what_they_are():
    """An error of a body in the plane is a turn, then ways in its axes: not x, y, heading."""
    drawing = da.Mechanism("puck")
    drawing.body("puck", mass=1.0, box=(1.0, 0.5, 0.5))
    drawing.planar("puck", yaw="heading")
    drawing.thrust("push", "puck", at=(0, 0, 0), along="x")
    puck = drawing.system()
    known = "unknown free_goal 'x'.* Allowed: along v1, along v2, along w, configuration, v1, v2, velocity, w"
    options = {"steps": 4, "duration": 1.0, "cost": lambda t, g, xi, u: u @ u}
    with pytest.raises(da.InvalidInput, match=known):
        plan(puck, start=puck.state(), goal=puck.state(x=0.1), free_goal=["x"], **options)


def test_the_angle_of_a_wheel_is_free_by_its_name():
    """On a product, the coordinate of a wheel is that along its rate; the message says which names are coordinates."""
    names = {"coordinates": ["heading", "x", "y", "wheel"], "velocities": ["turn", "speed", "slip", "spin"]}
    body = da.System(
        da.Product([da.SE2(), da.SO2()]), lambda t, g, xi, p: 0.5 * xi @ xi, names=names,
        force=lambda t, g, xi, u, p: jnp.array([u[0], u[1], 0.0, u[0] + u[1]]), inputs=[da.Input("a"), da.Input("b")],
    )  # fmt: skip
    options = {"steps": 4, "duration": 1.0, "cost": lambda t, g, xi, u: u @ u, "start": body.state()}
    goal = body.state(x=0.1, wheel=2.0)
    found = [plan(body, goal=goal, free_goal=[name, "spin"], **options).check() for name in ("wheel", "along spin")]
    assert abs(found[0].run["x"][-1] - 0.1) < 1e-6 and abs(found[0].run["wheel"][-1] - 0.1) < 1e-4
    np.testing.assert_array_equal(*(each.run["wheel"] for each in found))
    with pytest.raises(da.InvalidInput, match=r"unknown free_goal 'x'.*'along NAME' is the coordinate.*NAME alone is"):
        plan(body, goal=goal, free_goal=["x"], **options)
