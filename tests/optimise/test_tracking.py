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


@pytest.mark.parametrize("horizon", [0, 10])
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
    state = lane_change.system.state(pose(0.0, 0.0, 0.01), [0.0, 1.0, 0.0])
    there = tracker.control(0, state)
    np.testing.assert_allclose(
        there, lane_change.controls[0] + tracker.gains[0] @ np.array([0.0, 0.0, 0.01, 0.0, 0.0]), atol=1e-12
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"state_weight": -1.0}, "state_weight is -1.0; allowed"),
        ({"control_weight": 0.0}, "control_weight has to be positive"),
        ({"state_weight": np.ones(3)}, "allowed: a number, 5 numbers or a 5 x 5 matrix"),
        ({"horizon": -2}, "horizon is -2; allowed"),
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
