"""Plans against closed forms, gradients through the simulation, and sentences for what cannot be planned."""

import dataclasses
import itertools
import re
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import dalembert as da
from dalembert.kernels import StaleEntry, evaluate, plans
from dalembert.mechanics import accessibility, choose_velocities, names_of
from dalembert.optimise import plan, planning, solver
from dalembert.papers import control


def pose(theta, x, y):
    c, s = np.cos(theta), np.sin(theta)
    return np.array([[c, -s, x], [s, c, y], [0.0, 0.0, 1.0]])


def turn(angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])


def extrapolate(costs):
    """Richardson's table for an expansion in h^2, and the ratios of the differences: 4 for order 2."""
    costs = np.asarray(costs)
    differences = np.diff(costs)
    rows = [costs]
    for k in range(1, len(costs)):
        rows.append(rows[-1][1:] + np.diff(rows[-1]) / (4**k - 1))
    return rows[-1][-1], differences[:-1] / differences[1:]


def unicycle():
    """A kinematic one: what the Lagrangian is does not matter."""
    return da.System(
        da.SE2(), lambda t, g, xi, p: 0.5 * xi @ xi, constraint=lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]])
    )


def offset_unicycle():
    """Problem 7 of CONTROL.md: m = 1, J = 0.4 about the centre of mass, a = 0.2."""

    def lagrangian(t, g, xi, p):
        w, v1, v2 = xi
        m, J, a = p
        return 0.5 * (J + m * a**2) * w**2 + 0.5 * m * (v1**2 + v2**2) + m * a * w * v2

    return da.System(
        da.SE2(),
        lagrangian,
        constraint=lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]),
        force=lambda t, g, xi, u, p: jnp.stack([u[1], u[0], jnp.zeros(())]),
        parameters=jnp.array([1.0, 0.4, 0.2]),
        inputs=("force", "torque"),
    )


def satellite(inertia):
    return da.System(
        da.SO3(),
        lambda t, g, xi, p: 0.5 * xi @ (p * xi),
        force=lambda t, g, xi, u, p: u,
        parameters=jnp.asarray(inertia),
        inputs=("t1", "t2", "t3"),
    )


def effort(t, g, xi, u):
    return u @ u


def park(steps, **options):
    system = offset_unicycle()
    return plan(
        system,
        start=pose(0, 0, 0),
        goal=system.state(pose(0, 0, 1), np.zeros(3)),
        steps=steps,
        duration=5.0,
        cost=effort,
        **options,
    )


@pytest.mark.parametrize(("distance", "exact"), [(1.0, 11.158158715164), (0.5, 5.910577194306)])
def test_a_unicycle_goes_sideways_at_the_least_cost(distance, exact):
    """Sub-Riemannian geodesics of SE(2), problem 2: the order is 2, and the limit is the closed form."""
    options = {"duration": 1.0, "cost": lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2, "kinematic": True, "starts": 4}
    plans = [plan(unicycle(), start=pose(0, 0, 0), goal=pose(0, 0, distance), steps=N, **options) for N in (20, 40, 80)]
    limit, ratios = extrapolate([each.check().cost for each in plans])
    assert limit == pytest.approx(exact, rel=1e-7)
    np.testing.assert_allclose(ratios, 4.0, atol=0.1)
    # the Hamiltonian is the cost here: constant along the motion, to the order of the method
    rates = [np.sum(each.controls**2, axis=1) for each in plans]
    spread = [np.ptp(rate) / rate.mean() for rate in rates]
    np.testing.assert_allclose(np.divide(spread[:-1], spread[1:]), 4.0, atol=0.5)


@pytest.mark.heavy
def test_a_plan_is_a_run_whose_gradient_in_the_controls_is_the_multipliers():
    """Problem 7. The gradient of cost and goal through the simulation, by other code, vanishes at the plan."""
    made = park(20)
    assert made.status == "optimal" and made.strict
    system, run = made.system, made.run
    np.testing.assert_allclose(run.g[-1], pose(0, 0, 1), atol=1e-10)
    np.testing.assert_allclose(run.xi[-1], 0.0, atol=1e-10)
    start = system.state(xi=np.zeros(3))
    retraction = da.Cayley()

    def lagrangian(u):
        moved = da.simulate(system, made.method, start, step=made.step, steps=20, controls=u)
        g, xi = jax.tree.map(lambda leaf: leaf[-1], (moved.records.state.g, moved.records.state.xi))
        apart = retraction.inverse(system.group, system.group.compose(pose(0, 0, -1), g))
        goal = jnp.concatenate([apart, xi[:2]])
        return made.step * jnp.sum(u**2) + made.goal_multipliers @ goal

    slope = jax.grad(lagrangian)(jnp.asarray(made.controls))
    assert float(jnp.abs(slope).max()) < 1e-7


def slopes_of_step(consts, lane):
    """The derivatives of a step from a node, in charts at both ends, by JAX."""
    (discrete, *consts), (x, after, u) = consts, lane

    def moved(d, u):
        return discrete.apart(consts, after, discrete.advance(consts, discrete.move(consts, x, d), u))

    return jax.jacfwd(moved, (0, 1))(jnp.zeros(discrete.dim), u)


def test_costates_are_transported_by_the_adjoint_of_the_step():
    """Problem 9. lambda_k = Df* lambda_{k+1} and 0 = 2 h u + Df_u* lambda_{k+1}, where the cost has no states."""
    made = park(20)
    discrete, numbers, nodes = made.problem
    lane = (*(jax.tree.map(lambda leaf: leaf[k : k + 20], nodes) for k in (0, 1)), made.controls)
    system = made.system
    function = lambda consts, lane: slopes_of_step((discrete, *consts), lane)
    by_state, by_control = evaluate(function, (system, numbers), lane, lanes=20, axes=(None, 0))
    back = np.einsum("kij,ki->kj", by_state, made.costates)
    np.testing.assert_allclose(back[1:], made.costates[:-1], atol=1e-8)
    force = np.einsum("kij,ki->kj", by_control, made.costates)
    sign = np.sign(force[0, 0] * made.controls[0, 0])
    np.testing.assert_allclose(sign * force, 2 * made.step * made.controls, atol=1e-8)


def test_the_symplectic_product_of_two_variations_is_the_same_at_all_nodes():
    """Problem 9. Plans with a shifted start and a shifted goal beside a third: dx1 . dp2 - dp1 . dx2 at its nodes."""
    starts = [pose(0, 0, 0), pose(1e-4, 0, 0), pose(0, 0, 0)]
    goals = [pose(0, 0, 1), pose(0, 0, 1), pose(0, 1e-4, 1)]
    options = {"steps": 20, "duration": 1.0, "kinematic": True, "tolerance": 1e-11}
    plans = plan(unicycle(), start=starts, goal=goals, cost=lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2, **options)
    assert {each.status for each in plans} == {"optimal"}
    discrete, numbers, _ = plans[0].problem
    consts, products = (plans[0].system, numbers), []

    @jax.jit
    def chart(base, other):
        there = lambda d: discrete.apart(consts, base, discrete.move(consts, other, d))
        return there(jnp.zeros(3)), jax.jacfwd(there)(jnp.zeros(3))

    for k in range(1, 20):
        base, *others = (jax.tree.map(lambda leaf: jnp.asarray(leaf[k]), each.problem[2]) for each in plans)
        (one, slope), (two, other) = (chart(base, each) for each in others)
        first, second = (
            np.linalg.solve(np.asarray(slope).T, each.costates[k - 1]) - plans[0].costates[k - 1]
            for slope, each in zip((slope, other), plans[1:], strict=True)
        )
        products.append(one @ second - first @ two)
    assert abs(products[0]) > 1e-9
    np.testing.assert_allclose(products, products[0], rtol=5e-3)


def test_controls_are_a_guess_with_the_motion_that_they_make():
    """Those of an optimal plan need no iteration but to find the multipliers."""
    made = park(20)
    again = park(20, guess=made.controls)
    assert again.status == "optimal" and again.iterations <= 3 < made.iterations
    assert again.cost == pytest.approx(made.cost, rel=1e-10)


def test_a_plan_as_a_guess_brings_its_multipliers():
    """A finer plan takes few iterations from a coarse one: a large barrier would lead away from it."""
    bounds = {"force": (-0.3, 0.3)}
    coarse = park(20, bounds=bounds)
    finer, anew = park(40, bounds=bounds, guess=coarse), park(40, bounds=bounds)
    assert finer.status == "optimal" and finer.iterations < 0.7 * anew.iterations
    assert finer.cost == pytest.approx(anew.cost, rel=1e-6)  # the barrier of the last iterate
    again = park(40, bounds={"force": (-0.4, 0.4)}, guess=finer)  # other numbers of the same problem
    assert again.status == "optimal" and again.cost < finer.cost
    free = park(40, guess=finer)  # other rows: its bounds are gone
    assert free.status == "optimal" and free.cost == pytest.approx(park(40).cost, rel=1e-10)
    failed = replace(finer, status="stalled", costates=np.full_like(finer.costates, np.nan))
    assert park(40, bounds=bounds, guess=failed).status == "optimal"  # of a plan that failed nothing is believed


@pytest.mark.parametrize(
    ("x", "y"), [(12, 3), pytest.param(3, 6, marks=pytest.mark.heavy), pytest.param(10, 5, marks=pytest.mark.heavy)]
)
def test_a_steered_edge_falls_in_least_time_to_other_ends(x, y):
    """Problem 5 between other points, with wide bounds of the duration: cycloids."""
    edge, end = control.steered_edge(), brentq(lambda s: (s - np.sin(s)) / (1 - np.cos(s)) - x / y, 1e-6, 6.28)
    exact, guess, times = end * np.sqrt(y / (1 - np.cos(end)) / control.PULL), None, []
    start, goal = edge.state(pose(-1.4, 0, 10), np.zeros(3)), edge.state(pose(-0.4, x, 10 - y), [0.0, 9.0, 0.0])
    for steps in (40, 80, 160):
        for weight in (1e-2, 1e-4):
            guess = plan(
                edge, start=start, goal=goal, free_start=("along w", "w"), free_goal=("along w", "velocity"),
                steps=steps, duration=(0.3, 4.0), cost=partial(control._time_and_steering, weight), guess=guess,
            ).check()  # fmt: skip
        times.append(guess.duration)
        assert steps == 40 or guess.iterations <= 10
    assert extrapolate(times)[0] == pytest.approx(exact, rel=1e-8)


def test_a_spherical_satellite_turns_from_rest_to_rest():
    """Problem 3: 12 I^2 theta^2/T^3."""
    sphere = satellite([2.0, 2.0, 2.0])
    options = {"start": np.eye(3), "goal": sphere.state(turn(1.2), np.zeros(3)), "duration": 1.0, "cost": effort}
    limit, _ = extrapolate([plan(sphere, steps=N, **options).check().cost for N in (10, 20, 40)])
    assert limit == pytest.approx(12 * 4 * 1.2**2, rel=1e-8)


@pytest.mark.heavy
def test_bounds_hold_and_cost_something():
    free, bounded = park(20), park(20, bounds={"force": (-0.3, 0.3)})
    assert bounded.status == "optimal" and bounded.cost > free.cost
    assert np.abs(bounded.controls[:, 0]).max() <= 0.3
    assert (bounded.bound_multipliers >= 0).all() and bounded.bound_multipliers.max() > 1e-3


def test_a_path_goes_around_an_obstacle():
    options = {
        "start": pose(0, 0, 0), "goal": pose(0, 2, 0), "steps": 30, "duration": 1.0, "kinematic": True,
        "cost": lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2,
    }  # fmt: skip
    straight = plan(unicycle(), **options).check()
    around = plan(
        unicycle(), path=lambda t, g, xi, u: (g[0, 2] - 1.0) ** 2 + (g[1, 2] - 0.1) ** 2 - 0.25, **options
    ).check()
    x, y = np.asarray(around.states.g)[:, 0, 2], np.asarray(around.states.g)[:, 1, 2]
    assert np.hypot(x - 1.0, y - 0.1)[1:].min() >= 0.5 - 1e-9
    assert straight.cost == pytest.approx(4.0) and around.cost > straight.cost


def test_a_thin_post_that_a_step_jumps_over_is_named():
    """The path holds at the states; what is between them is asked of the plan that was found."""

    def cross(steps, radius):
        return plan(
            unicycle(), start=pose(0, 0, 0), goal=pose(0, 2, 0), steps=steps, duration=1.0, kinematic=True,
            cost=lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2,
            path=lambda t, g, xi, u: (g[0, 2] - 1.0) ** 2 + g[1, 2] ** 2 - radius**2,
        )  # fmt: skip

    thin = cross(5, 0.1)
    places = np.asarray(thin.g)[:, :2, 2] - [1.0, 0.0]
    assert thin.status == "optimal" and np.linalg.norm(places, axis=1).min() >= 0.1 - 1e-9
    k = int(np.argmax(places[:, 0] > 0)) - 1
    assert np.abs(places[k : k + 2, 1]).max() < 0.05  # it goes right through the middle
    with pytest.warns(UserWarning, match=rf"between the states {k} and {k + 1} row 0 of the path is broken by 0\.0"):
        thin.check()
    assert "take smaller steps" in repr(thin) and "broken by" in cross(5, 0.02).reason
    free = plan(
        unicycle(), start=pose(0, 0, 0), goal=pose(0, 2, 0), steps=5, duration=1.0, kinematic=True, cost=effort,
        path=lambda t, g, xi, u: g[1, 2] + 1.0,
    )  # fmt: skip
    assert free.reason == ""


def test_an_obstacle_that_moves_compiles_nothing(monkeypatch):
    """The arrays that a path closes over are numbers of the compiled problem."""

    def around(*disc):
        place = np.array(disc)
        return plan(
            unicycle(), start=pose(0, 0, 0), goal=pose(0, 2, 0), steps=30, duration=1.0, kinematic=True,
            cost=lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2,
            path=lambda t, g, xi, u: (g[0, 2] - place[0]) ** 2 + (g[1, 2] - place[1]) ** 2 - 0.25,
        ).check()  # fmt: skip

    def refuse(*_, **__):
        raise AssertionError("it compiles again")

    above = np.asarray(around(1.0, 0.1).states.g)[:, :2, 2]
    monkeypatch.setattr("dalembert.kernels.problem.lower", refuse)
    for y in (0.12, 0.15):
        moved = np.asarray(around(1.0, y).states.g)[:, :2, 2]
        assert np.hypot(moved[:, 0] - 1.0, moved[:, 1] - y)[1:].min() >= 0.5 - 1e-9
        assert np.abs(moved - above).max() > 1e-3


@pytest.mark.heavy
def test_a_goal_and_a_start_by_names_leave_the_rest_free():
    """Coordinates that nobody named are theta, x and y; on a straight way the cost is the square of its length."""
    options = {"steps": 20, "duration": 1.0, "kinematic": True, "cost": lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2}
    turned = plan(unicycle(), start={"x": 0, "y": 0}, goal={"x": 1, "y": 1}, **options).check()
    assert turned.cost == pytest.approx(2.0) and np.arctan2(*turned.g[0][1::-1, 0]) == pytest.approx(np.pi / 4)
    half = plan(unicycle(), start={"x": 0, "y": 0, "theta": 0.5}, goal={"theta": 0.5 + np.pi}, **options).check()
    assert half.cost == pytest.approx(np.pi**2, rel=1e-2)  # as the angle of a step goes: order 2


@pytest.mark.heavy
def test_a_goal_by_names_is_the_goal_as_a_state():
    made, rest = park(20), {"theta": 0, "x": 0, "y": 0}
    named = plan(
        made.system, start=rest, goal=rest | {"y": 1, "w": 0, "v1": 0}, steps=20, duration=5.0, cost=effort
    ).check()
    np.testing.assert_allclose(named.controls, made.controls, atol=1e-6)


@pytest.mark.parametrize("bounds", [{"force": (-3, 3)}, {"force": (-3, 3), "torque": (-1, 2), "x": (-1, 1)}])
def test_where_nothing_is_to_be_done_that_is_optimal(bounds):
    """All multipliers vanish there, and the product of slack and multiplier has no scale of its own."""
    options = {"steps": 20, "duration": 2.0, "cost": effort, "bounds": bounds}
    found = plan(offset_unicycle(), start=pose(0, 0, 0), goal=pose(0, 0, 0), **options)
    assert found.status == "optimal" and found.iterations < 30 and np.abs(found.controls).max() < 1e-6


def test_a_second_plan_traces_nothing(monkeypatch):
    """Names, shapes and programs are known then: tracing took longer than the plan."""
    first = pushed_cart(goal={"q1": 1.0}).check()
    for name in ("eval_shape", "make_jaxpr"):
        monkeypatch.setattr(jax, name, lambda *_, **__: pytest.fail("it traces again"))
    again = plan(first.system, start=[0.0], goal={"q1": 1.0}, steps=4, duration=1.0, cost=effort)
    np.testing.assert_array_equal(again.controls, first.controls)


def rolling_ball(radius=1.0):
    """A ball on a plane on SO(3) x R^2: the point of contact rests."""
    rows = lambda t, g, p: jnp.concatenate([radius * jnp.stack([-g[0][1], g[0][0]]), jnp.eye(2)], axis=1)
    return da.System(da.SO3() * da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi @ xi, constraint=rows)


@pytest.mark.parametrize("radius", [0.1, 1.0, 3.0])
def test_velocities_are_free_that_determine_the_others_everywhere(radius):
    """At the start the velocity of the centre does as well as two rates of the attitude, in whatever units."""
    ball, here = rolling_ball(radius), (np.eye(3), np.zeros(2))
    starts = jax.tree.map(lambda leaf: leaf[None], ball.state(here, np.zeros(5)))
    task = planning._Task(ball, da.LagrangeDAlembert(), starts, here, 4, 1.0, True)
    assert list(task.free) == [0, 1, 2] and not task.redundant


@pytest.mark.parametrize("turns", [2, 3])
def test_the_rate_along_a_circle_alone_determines_how_a_ball_turns(turns):
    """In units in which it is as large as the others it looks worse."""
    ball, here = control.ball_on_circle(), (np.array([0.95 * np.sqrt(turns**2 - 1), 0.0]), np.eye(3))
    starts = jax.tree.map(lambda leaf: leaf[None], ball.state(here, np.zeros(5)))
    task = planning._Task(ball, da.LagrangeDAlembert(), starts, None, 4, 1.0, True)
    assert list(task.free) == [1] and not task.redundant


@pytest.mark.heavy
@pytest.mark.parametrize("radius", [1.0, 3.0])
def test_a_ball_rolls_to_a_place_and_an_attitude(radius):
    """Velocities that determine the others at both ends do not where the ball has turned by a right angle between."""
    ball, start = rolling_ball(radius), (np.eye(3), np.zeros(2))
    options = {"steps": 40, "duration": 1.0, "kinematic": True, "cost": lambda t, g, xi, u: xi[:3] @ xi[:3]}
    for goal in ((turn(2.0), radius * np.ones(2)), (np.eye(3), np.array([radius, 0.0])), (turn(1.5), np.zeros(2))):
        made = plan(ball, start=start, goal=goal, **options).check()
        assert made.inputs == ("w1", "w2", "w3") and made.iterations < 40
        np.testing.assert_allclose(made.g[0][-1], goal[0], atol=1e-8)
        np.testing.assert_allclose(made.g[1][-1], goal[1], atol=1e-8)
        contact = np.einsum("kij,kj->ki", made.g[0][:-1], made.xi[:-1, :3])  # the angular velocity in space
        assert np.abs(contact[:, 1] * radius - made.xi[:-1, 3]).max() < 0.2 * radius * np.abs(contact).max()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cost": None}, "nothing to minimise"),
        ({"steps": 0}, "steps is 0; allowed"),
        ({"duration": -1.0}, "duration is -1.0; allowed"),
        ({"bounds": {"forze": (0, 1)}}, "unknown bound 'forze'. Did you mean 'force'"),
        ({"bounds": {"force": (1, 0)}}, "allowed: low < high"),
        ({"bounds": {"force": 3.0}}, r"bounds of force are 3.0; allowed: \(low, high\)"),
        ({"bounds": [("force", 0, 1)]}, "bounds is .*; allowed: a dictionary"),
        ({"free_goal": ("speed",)}, "unknown free_goal 'speed'"),
        ({"method": da.LagrangeDAlembert(nodes="velocity")}, "carries more than a state"),
        ({"starts": 0}, "starts is 0; allowed"),
        ({"seed": "x"}, "seed is 'x'; allowed"),
        ({"step": 0.1}, r"plan does not take step; it takes \(system, .* duration, "),
        ({"steps": 10**30}, "allowed: at most 1000000"),
        ({"duration": np.zeros((2, 3))}, "duration is .*; allowed"),
        ({"kinematic": "yes"}, "kinematic is 'yes'; allowed: True or False"),
        ({"periodic": 3}, "periodic is 3; allowed: names"),
        ({"max_iterations": 1.5}, "max_iterations is 1.5; allowed"),
        ({"progress": 3}, "progress is 3; allowed"),
        ({"start": {"x": 0}}, "the start names x; these cannot hold while theta, y are free: name more"),
        ({"goal": {"speed": 1}}, "unknown name of the goal 'speed'. Allowed: theta, v1, v2, w, x, y"),
        ({"goal": {}}, "the goal has no names; allowed: names with values"),
        ({"goal": [{"x": 1}]}, "goal is .*; or for all plans alike names with values"),
        ({"cost": lambda u: u @ u}, r"called as cost\(t, g, xi, u\), but it takes \(u\)"),
        ({"goal": {"x": "far"}}, "x of the goal is 'far'; allowed"),
        ({"cost": lambda t, g, xi, u: u[2] ** 2}, r"cost\(t, g, xi, u\) reads more controls than the 2 of this plan"),
        ({"path": lambda t, g, xi, u: 1.0 - u[5]}, r"path\(t, g, xi, u\) reads more controls than the 2"),
        ({"start": "here"}, "start is 'here'; allowed|configuration"),
        ({"goal": [pose(0, 0, 1), pose(0, 0, 2)]}, "there are 1 starts and 2 goals"),
        ({"guess": np.zeros((3, 2))}, r"guess has shape \(3, 2\); allowed: \(10, 2\)"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, sentence):
    system = offset_unicycle()
    given = {"start": pose(0, 0, 0), "goal": pose(0, 0, 1), "steps": 10, "duration": 1.0, "cost": effort} | change
    with pytest.raises(da.InvalidInput, match=sentence):
        plan(system, given.pop("method", None), **given)


def test_lists_of_numbers_are_configurations():
    """On R^n a list of numbers, on SE(2) a list of rows: one start each."""
    options = {"steps": 5, "duration": 1.0, "kinematic": True, "cost": lambda t, g, xi, u: xi @ xi}
    line = da.System(da.Euclidean(1), lambda t, g, xi, p: 0.5 * xi @ xi)
    assert plan(line, start=[0.0], goal=[2.0], **options).cost == pytest.approx(4.0)
    made = plan(unicycle(), start=pose(0, 0, 0).tolist(), goal=pose(0, 2, 0).tolist(), **options)
    assert made.cost == pytest.approx(4.0)


def test_a_kinematic_plan_refuses_a_goal_that_moves():
    """Its velocities are controls: that of a goal would be ignored, unless it is said to be free."""
    system, options = unicycle(), {"start": pose(0, 0, 0), "steps": 5, "duration": 1.0, "kinematic": True}
    options["cost"] = lambda t, g, xi, u: xi @ xi
    still, moving = (system.state(pose(0, 2, 0), np.array([0.0, v, 0.0])) for v in (0.0, 1.0))
    with pytest.raises(da.InvalidInput, match=r"the goal has the velocity .*1.* which a kinematic plan cannot reach"):
        plan(system, goal=moving, **options)
    with pytest.raises(da.InvalidInput, match="the goal has the velocity"):
        plan(system, goal=[moving, still], **options | {"start": [pose(0, 0, 0)] * 2})
    assert plan(system, goal=still, **options).cost == pytest.approx(4.0)
    assert plan(system, goal=moving, free_goal="velocity", **options).cost == pytest.approx(4.0)


def test_a_goal_of_some_other_kind_says_how_to_leave_parts_free():
    with pytest.raises(da.InvalidInput, match=r"goal is 'there'.*or a function \(t, g, xi\).*leave the rest free"):
        plan(offset_unicycle(), start=pose(0, 0, 0), goal="there", steps=10, duration=1.0, cost=effort)


def test_a_system_without_inputs_is_refused():
    with pytest.raises(da.InvalidInput, match="no inputs"):
        plan(unicycle(), start=pose(0, 0, 0), goal=pose(0, 0, 1), steps=5, duration=1.0, cost=effort)


def heisenberg_group():
    return da.System(
        da.Euclidean(3),
        lambda t, g, xi, p: 0.5 * xi @ xi,
        constraint=lambda t, g, p: jnp.stack([g[1], jnp.zeros(()), -jnp.ones(())])[None],
    )


def test_what_is_periodic_or_free_at_the_ends():
    """A loop of area 1 costs the same wherever it begins; half a loop that may end anywhere on a line costs half."""
    options = {
        "start": np.zeros(3), "steps": 25, "duration": 1.0, "kinematic": True, "starts": 4,
        "cost": lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2,
    }  # fmt: skip
    loop = plan(
        heisenberg_group(), goal=lambda t, g, xi: g[2] - 1.0, periodic=("q1", "q2"), free_start=("q1",), **options
    ).check()
    ends = np.asarray(loop.g)[[0, -1]]
    np.testing.assert_allclose(ends[0, :2], ends[1, :2], atol=1e-9)
    assert loop.cost == pytest.approx(4 * np.pi, rel=1e-2) and ends[1, 2] == pytest.approx(1.0)
    half = plan(heisenberg_group(), goal=np.array([0.0, 0.0, 1.0]), free_goal=("q1",), **options).check()
    assert half.cost == pytest.approx(2 * np.pi, rel=1e-2)


@pytest.mark.heavy
def test_plans_side_by_side_are_the_plans_one_by_one():
    """Several starts in one call are lanes of the same iteration, each with its own search, retries and end."""
    system = offset_unicycle()
    starts = [pose(0, 0, y) for y in (0.0, 0.5, -0.2)]
    goal = system.state(pose(0, 0, 1), np.zeros(3))
    bounds = dict.fromkeys(("force", "torque"), (-0.7, 0.7))
    options = {"steps": 20, "duration": (1.0, 9.0), "bounds": bounds}
    together = plan(system, start=starts, goal=goal, **options)
    alone = [plan(system, start=start, goal=goal, **options) for start in starts]
    assert together.status == [one.status for one in alone] == ["optimal"] * 3
    assert [each.iterations for each in together] == [one.iterations for one in alone]
    np.testing.assert_allclose(together.cost, [one.cost for one in alone], rtol=1e-9)
    starts = [pose(0, 0, y) for y in (0.0, 0.1, -0.2)]
    options = {"steps": 12, "duration": 1.0, "kinematic": True, "cost": lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2}
    together = plan(unicycle(), start=starts, goal=pose(0, 0, 1), **options)
    for start, one in zip(starts, together, strict=True):
        alone = plan(unicycle(), start=start, goal=pose(0, 0, 1), **options)
        assert one.status == alone.status == "optimal"
        assert one.cost == pytest.approx(alone.cost, rel=1e-9)
    assert len({round(each.cost, 6) for each in together}) == 3
    assert all(a.cost != b.cost for a, b in itertools.pairwise(together))


def test_many_plans_are_done_in_parts_and_an_interrupt_keeps_the_best_of_each(monkeypatch):
    """Parts of few lanes, the last of which overlap, are the plans one by one; who stops them gets what there is."""
    monkeypatch.setattr(solver, "LEAST_LANES", 2)
    monkeypatch.setattr(solver, "SIDE_BY_SIDE", 3)
    told, starts = [], [pose(0, 0, y) for y in np.linspace(-0.2, 0.2, 7)]
    options = {"steps": 12, "duration": 1.0, "kinematic": True, "cost": lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2}
    whole = plan(unicycle(), start=starts, goal=pose(0, 0, 1), progress=lambda *given: told.append(given), **options)
    assert whole.status == ["optimal"] * 7 and told and all(count <= 7 and gap < 1e-4 for count, _, gap in told)
    for k in (0, 3, 6):
        alone = plan(unicycle(), start=starts[k], goal=pose(0, 0, 1), **options)
        assert whole[k].iterations == alone.iterations and whole.cost[k] == pytest.approx(alone.cost, rel=1e-9)

    def stop(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(solver, "count_processors", lambda: 1)
    some = plan(unicycle(), start=starts, goal=pose(0, 0, 1), progress=stop, **options)
    assert some.status == ["optimal"] * 3 + ["interrupted"] * 3 + ["interrupted"]
    assert np.isfinite(some.controls).all() and np.isfinite(some.cost).all()


def test_an_interrupt_stops_other_threads_that_still_work_and_keeps_all_plans(monkeypatch):
    """The own parts are done, and the call waits for the others: it used to wait to the end, and to lose all."""
    search, main, events = solver.Solver._search, threading.main_thread(), [threading.Event(), threading.Event()]

    def slow(self, at, *options):
        search(self, at, *options)
        began, ended = events
        if threading.current_thread() is main:
            assert began.wait(20.0)
            ended.set()
            return
        began.set()
        assert ended.wait(20.0)
        time.sleep(0.3)
        signal.pthread_kill(main.ident, signal.SIGINT)
        for _ in range(500):
            time.sleep(0.0 if self.stopped else 0.01)

    monkeypatch.setattr(solver, "LEAST_LANES", 2)
    monkeypatch.setattr(solver, "count_processors", lambda: 2)
    monkeypatch.setattr(solver.Solver, "_search", slow)
    starts = [pose(0, 0, y) for y in np.linspace(-0.2, 0.2, 4)]
    options = {"steps": 12, "duration": 1.0, "kinematic": True, "cost": lambda t, g, xi, u: xi[0] ** 2 + xi[1] ** 2}
    assert plan(unicycle(), start=starts, goal=pose(0, 0, 1), **options).status == ["optimal"] * 4


def test_many_starts_have_one_time_and_goals_one_kind():
    """The time of the first start was that of all, and goals without velocities made those of others free."""
    system = pushed_cart(goal={"q1": 1.0}).system
    options = {"steps": 4, "duration": 1.0, "cost": lambda t, g, xi, u: (1 + t) * u @ u}
    starts = [system.state([0.0], [0.0], t=t) for t in (0.0, 5.0)]
    with pytest.raises(da.InvalidInput, match=r"starts have the times .*0.*5.*allowed: one time"):
        plan(system, start=starts, goal=np.ones(1), **options)
    goals = [np.ones(1), system.state([1.0], [2.0])]
    with pytest.raises(da.InvalidInput, match="states and configurations"):
        plan(system, start=starts[:1] * 2, goal=goals, **options)


def test_velocities_determine_the_others_at_all_of_many_starts():
    """A sleigh in coordinates, x' sin(theta) = y' cos(theta): that heading along y lost its velocity in silence."""
    sleigh = da.System(
        da.Euclidean(3), lambda t, g, xi, p: 0.5 * xi @ xi, inputs=("force", "torque"),
        constraint=lambda t, g, p: jnp.array([[jnp.sin(g[2]), -jnp.cos(g[2]), 0.0]]),
        force=lambda t, g, xi, u, p: jnp.stack([u[0] * jnp.cos(g[2]), u[0] * jnp.sin(g[2]), u[1]]),
    )  # fmt: skip
    headings, options = (0.0, np.pi / 2), {"steps": 8, "duration": 1.0, "cost": effort}
    starts = [sleigh.state([0.0, 0.0, a], [np.cos(a), np.sin(a), 0.0], project=True) for a in headings]
    goals = [np.array([1.2 * np.cos(a), 1.2 * np.sin(a), a]) for a in headings]
    made = plan(sleigh, start=starts, goal=goals, **options)
    assert made.status == ["optimal"] * 2
    for each, first in zip(made, starts, strict=True):
        np.testing.assert_allclose(each.xi[0], first.xi, atol=1e-9)
    assert made.cost[1] == pytest.approx(made.cost[0], rel=1e-6)


def test_a_search_is_the_same_native_or_walked_through(monkeypatch):
    """One native call for many iterations, with retries and shorter steps, or line by line as on a GPU: all bits."""
    system, found, calls = offset_unicycle(), [], []
    bounds = dict.fromkeys(("force", "torque"), (-0.7, 0.7))
    options = {"start": pose(0, 0, 0), "goal": system.state(pose(0, 0, 1), np.zeros(3)), "steps": 20}
    walk = plans.Routine._walk
    monkeypatch.setattr(plans.Routine, "_walk", lambda self: calls.append(self) or walk(self))
    for native in (True, False):
        monkeypatch.setattr(plans.Routine, "is_native", property(lambda self, native=native: native))
        monkeypatch.setattr(solver, "_machines", type(solver._machines)())
        found.append(plan(system, duration=(1.0, 9.0), bounds=bounds, **options))
        assert bool(calls) == (not native)
    assert found[0].status == "optimal" and found[0].iterations == found[1].iterations > 3
    np.testing.assert_array_equal(found[0].controls, found[1].controls)
    np.testing.assert_array_equal(found[0].gains, found[1].gains)


def test_a_plan_as_a_guess_begins_at_the_start_that_is_asked_for():
    """It began where the guess begins, and said nothing. What is free of the start comes from the guess."""
    options = {
        "goal": pose(0, 0, 1),
        "steps": 12,
        "duration": 1.0,
        "kinematic": True,
        "cost": lambda t, g, xi, u: u @ u,
    }
    near = plan(unicycle(), start=pose(0, 0, 0), **options).check()
    there = plan(unicycle(), start=pose(0, 0.2, 0.1), guess=near, **options).check()
    np.testing.assert_allclose(there.g[0], pose(0, 0.2, 0.1), atol=1e-14)
    assert there.cost == pytest.approx(plan(unicycle(), start=pose(0, 0.2, 0.1), **options).cost, rel=1e-9)
    both = plan(unicycle(), start=[pose(0, 0, 0), pose(0, 0.2, 0.1)], guess=near, starts=3, **options)
    assert both.cost == pytest.approx([near.cost, there.cost], rel=1e-9)
    free = plan(unicycle(), start=pose(0, 0.2, 0), guess=near, free_start=("along w",), **options).check()
    np.testing.assert_allclose(free.g[0][:2, 2], [0.2, 0.0], atol=1e-12)
    assert free.cost < there.cost


@pytest.mark.heavy
def test_a_drawn_robot_drives_to_a_pose_with_its_motors():
    """A mechanism on SE(2) x R^4 with five constraints: its step is long, and has second derivatives."""
    robot = da.Mechanism("robot")
    robot.body("base", mass=9.0, centre=(0.05, 0, 0.15), box=(0.4, 0.3, 0.2))
    robot.planar("base")
    robot.wheel("left", "base", at=(0, 0.2, 0.1), mass=0.6, motor=True)
    robot.wheel("right", "base", at=(0, -0.2, 0.1), mass=0.6, motor=True)
    robot.castor("castor", "base", at=(0.3, 0), trail=0.04, radius=0.05)
    system = robot.system()

    def goal(t, g, xi):
        seen = system.observe(t, g, xi)
        return jnp.stack([seen[0] - 1.0, seen[1] - 0.5, seen[2], seen[7], seen[9]])

    made = plan(system, start=system.state(speed=0.0), goal=goal, steps=40, duration=4.0, cost=effort).check()
    run = made.run
    assert run["x"][-1] == pytest.approx(1.0, abs=1e-8) and run["y"][-1] == pytest.approx(0.5, abs=1e-8)
    assert made.strict


@pytest.mark.heavy
@pytest.mark.parametrize("method", [da.RungeKutta(), da.Gauss(), da.DiscreteGradient()], ids=lambda each: each.name)
def test_other_methods_find_the_same_motion(method):
    """Plans by other methods of order two or more differ by their discretisation alone."""
    system = offset_unicycle()
    goal = system.state(pose(0, 0, 1), np.zeros(3))
    made = plan(system, method, start=pose(0, 0, 0), goal=goal, steps=100, duration=5.0, cost=effort).check()
    assert made.cost == pytest.approx(1.4200379, rel=2e-3)
    np.testing.assert_allclose(made.run.g[-1], pose(0, 0, 1), atol=1e-8)


def pushed_point(price=1e5, **options):
    """A point in the plane with a force in each direction: one goes to its bound, the other has a cost of its own."""
    system = da.System(
        da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v, force=lambda t, q, v, u, p: u, inputs=("a", "b")
    )

    def cost(t, q, v, u):
        return u[1] ** 2 + (q[1] - 1.0) ** 2

    return plan(
        system,
        start=np.zeros(2),
        steps=10,
        duration=1.0,
        cost=cost,
        final_cost=lambda t, q, v: -price * q[0],
        **options,
    )


@pytest.mark.parametrize("held", ["bound", "path"])
def test_second_order_conditions_are_seen_beside_a_strongly_active_constraint(held):
    """Its barrier is 10^13 times as stiff as the cost of the other control."""
    if held == "bound":
        made = pushed_point(bounds={"a": (-1.0, 1.0)})
        dashed = [[line.get_ydata()[0] for line in axes.lines] for axes in made.plot().axes[1:]]
        assert dashed[0] == [-1.0, 1.0] and not any(dashed[1:])  # those of the plan, not of the inputs
        np.testing.assert_allclose(made.controls[:, 0], 1.0)
    else:
        made = pushed_point(path=lambda t, q, v, u: jnp.stack([1.0 - u[0] - 0.5 * u[1]]))
        np.testing.assert_allclose(made.controls @ [1.0, 0.5], 1.0)
    assert made.status == "optimal" and made.bound_multipliers.max() > 1e3
    assert made.strict


@pytest.mark.parametrize("price", [1e6, 1e9])
def test_a_path_that_pushes_hard_is_planned(price):
    """Its barrier mixes both controls and is 10^16 times as stiff as their cost, which has to be felt beside it."""
    made = pushed_point(price, path=lambda t, q, v, u: jnp.stack([1.0 - u[0] - 0.5 * u[1]]))
    assert made.status == "optimal" and made.strict
    np.testing.assert_allclose(made.controls @ [1.0, 0.5], 1.0, atol=1e-6)
    np.testing.assert_allclose(made.bound_multipliers[:, 0], 0.1 * price * (0.95 - 0.1 * np.arange(10)), rtol=1e-6)


def test_the_unit_of_the_cost_does_not_matter():
    """The barrier and the tolerances go with it: a cost of 1e-8 u.u had controls that were wrong by two fifths."""
    bounds = {"push": (-5.0, 5.0)}
    one = pushed_cart(10, bounds=bounds).check()
    assert (np.abs(one.controls) > 4.99).any() and one.strict
    for factor in (1e-8, 1e8):
        made = pushed_cart(10, bounds=bounds, cost=lambda t, q, v, u, c=factor: c * (u @ u)).check()
        np.testing.assert_allclose(made.controls, one.controls, rtol=1e-9, atol=1e-9)
        assert made.cost == pytest.approx(factor * one.cost, rel=1e-10) and made.iterations == one.iterations
        for name in ("costates", "goal_multipliers", "bound_multipliers"):
            want = factor * getattr(one, name)
            np.testing.assert_allclose(getattr(made, name), want, rtol=1e-7, atol=1e-9 * np.abs(want).max())


@pytest.mark.heavy
def test_a_plan_without_second_derivatives_of_the_step(monkeypatch):
    """As a bicycle is planned: Gauss and Newton, with the derivatives of a step one column after the other."""
    system, goal = offset_unicycle(), (pose(0.0, 0.0, 0.7), np.zeros(3))

    def make(cost):
        return plan(system, start=pose(0, 0, 0), goal=system.state(*goal), steps=12, duration=5.0, cost=cost)

    own = make(lambda t, g, xi, u: u @ u)
    monkeypatch.setattr("dalembert.optimise.solver.MAX_EXACT", 0)
    made = make(lambda t, g, xi, u: 1.0 * (u @ u))
    assert made.status == "optimal" and made.iterations > own.iterations and not made.strict
    np.testing.assert_allclose(made.controls, own.controls, atol=1e-6)


def test_an_entry_of_the_cache_that_is_stale_is_replaced(monkeypatch):
    """It told of another program, and is gone: the loops are made again."""
    compile_it, calls = plans.native_function, []

    def stale(*given):
        calls.append(given)
        if len(calls) == 2:
            raise StaleEntry("the cache told of another program than this step's")
        return compile_it(*given)

    monkeypatch.setattr(plans, "native_function", stale)
    system = da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v, force=lambda t, q, v, u, p: u, inputs=("a",))
    made = plan(
        system, start=[0.0], goal=system.state([1.0], [0.0]), steps=5, duration=1.0, cost=lambda t, q, v, u: u @ u
    )
    assert made.status == "optimal" and made.strict


@pytest.mark.heavy
def test_a_bicycle_rights_itself():
    """Whipple's, on SE(3) x R^3: steered out of a lean by its torque, and ends upright and straight."""
    bicycle = da.models.bicycle()
    names = (*bicycle.coordinate_names, *bicycle.rate_names)
    wanted = [names.index(name) for name in ("lean", "steer", "lean rate", "steer rate")]

    def upright(t, g, xi):
        return bicycle.observe(t, g, xi)[np.array(wanted)]

    start = bicycle.state(speed=5.0, lean=0.1)
    made = plan(bicycle, start=start, goal=upright, steps=100, duration=2.0, cost=lambda t, g, xi, u: 0.01 * u @ u)
    assert made.status == "optimal"
    np.testing.assert_allclose(made.run.xi, made.xi, atol=1e-9)
    lean = [
        bicycle.observe(0.0, *jax.tree.map(lambda leaf, k=k: leaf[k], (made.g, made.xi)))[wanted[0]] for k in (0, -1)
    ]
    np.testing.assert_allclose(lean, [0.1, 0.0], atol=1e-8)


def pushed_cart(steps=4, goal=None, **options):
    """A cart on a line that a force brings a metre on, if it can."""
    cart = da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v, force=lambda t, q, v, u, p: u, inputs=("push",))
    goal = cart.state([1.0], [0.0]) if goal is None else goal
    return plan(cart, start=[0.0], goal=goal, steps=steps, duration=1.0, **{"cost": effort} | options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cost": lambda t, q, v, u: u @ u + jnp.sqrt(v[0])}, "or a derivative of them, is not finite on the way"),
        ({"cost": lambda t, q, v, u: -(u @ u)}, "the cost falls without end, to -"),
        ({"steps": 1}, "1 steps have 1 numbers to choose, and the goal asks for 2: take more steps"),
        ({"bounds": {"q1": (None, 0.5)}, "max_iterations": 20}, "the goal itself is outside the bounds of q1: widen"),
        (
            {"bounds": {"q1": (None, 0.5)}, "max_iterations": 20, "goal": {"q1": 1.0}},
            "the goal itself is outside the bounds of q1: widen",
        ),
        (
            {"path": lambda t, q, v, u: (q - 0.9) ** 2 - 0.2**2},
            r"the goal itself breaks the path, .*: row 0 is -0.03 there .*: move the goal or what is in its way",
        ),
        (
            {"path": lambda t, q, v, u: jnp.stack([2.0 - u[0], 0.5 - q[0]]), "goal": {"q1": 1.0}},
            "the goal itself breaks the path, .*: row 1 is -0.5 there",
        ),
        (
            {"goal": lambda t, q, v: jnp.stack([q[0] - 1.0, 0.0 * v[0] + 1.0])},
            r"cannot change row 1 of goal\(t, g, xi\)\. The .* Lie brackets of them reach 2 of 2 .* not sufficient",
        ),
    ],
)
def test_a_plan_that_fails_says_why(options, sentence):
    made = pushed_cart(**options)
    assert made.status != "optimal" and not made.strict
    with pytest.raises(da.NumericalFailure, match=sentence):
        made.check()


@pytest.mark.parametrize(
    ("goal", "path"),
    [
        ({"q1": 1.0}, lambda t, q, v, u: 3.0 - v),  # the speed at the goal is free
        ({"q1": 1.0}, lambda t, q, v, u: 10.0 - u),
        ({"v1": 0.5}, lambda t, q, v, u: 0.3 - q),
    ],
)
def test_a_goal_is_not_called_blocked_for_what_is_free_there(goal, path):
    assert pushed_cart(goal=goal, path=path).status == "optimal"


def test_a_start_in_an_obstacle_and_a_step_too_long_for_the_damping_are_named():
    """A cart with a damper of -50 1/s, and steps of 0.25 s: Runge-Kutta is not stable there."""
    cart = da.System(
        da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v, inputs=("push", "turn"),
        force=lambda t, q, v, u, p: u - jnp.array([0.0, 50.0]) * v,
    )  # fmt: skip
    options = {"start": [0.0, 0.0], "goal": [1.0, 0.1], "duration": 1.0, "cost": effort, "max_iterations": 1}
    made = plan(cart, da.RungeKutta(), steps=4, path=lambda t, q, v, u: q @ q - 0.04, **options)
    assert "The start itself breaks the path (row 0 is -0.04 there)" in made.reason
    assert re.search(
        r"The step of 0.25 s is 1[23](\.\d)? times the time of the fastest motion at the start \(-50 1/s\), and "
        r"runge-kutta is not stable above 2.8: take at least 18 steps", made.reason,
    )  # fmt: skip
    assert "second-order" not in repr(made)


def test_the_same_without_bounds_is_tried_when_somebody_asks_why(monkeypatch):
    """It compiles another problem, for seconds: who takes the best of several plans does not ask."""
    asked = []
    tried = planning._Task._reaches_without_bounds
    monkeypatch.setattr(planning._Task, "_reaches_without_bounds", lambda *args: asked.append(1) or tried(*args))
    made = pushed_cart(bounds={"push": (-0.1, 0.1)}, max_iterations=20)
    assert made.status != "optimal" and not made.strict and not asked
    for _ in range(2):
        assert "Without bounds and path it is reached: they may be too tight" in made.reason and len(asked) == 1


def test_a_smooth_plan_that_is_only_feasible_begins_the_search_for_the_cost(monkeypatch):
    """A trial that meets the goal, and ends before it is smoothest, was thrown away: then there was no plan."""
    own, solve = park(20), planning.Solver.solve

    def give_up(self, x, u, known=None):
        self.options = replace(self.options, max_iterations=1)
        return solve(self, x, u, known)

    monkeypatch.setattr(planning.Solver, "solve", give_up)
    monkeypatch.setattr(planning, "MAX_TRIAL", 5)
    made = park(20)
    assert made.status == "optimal" and made.cost == pytest.approx(own.cost, rel=1e-8)


def two_carts(spring):
    """One is pushed; a spring may pull the other."""
    return da.System(
        da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v - 0.5 * p * (q[0] - q[1]) ** 2, parameters=jnp.asarray(spring),
        force=lambda t, q, v, u, p: jnp.stack([u[0], 0.0]), inputs=("push",),
    )  # fmt: skip


def test_a_goal_that_no_input_can_change_is_said_to_be_out_of_reach():
    carts = two_carts(0.0)
    alone = plan(carts, start=[0.0, 0.0], goal=[1.0, 1.0], steps=8, duration=1.0, cost=effort)
    assert "change 2 of the 4 dimensions of positions and velocities (growth vector (1, 2, 2)" in alone.reason
    assert "no control changes q2, by 1." in alone.reason
    assert accessibility(carts, carts.state()) == ((1, 2, 2), (1, 2, 2), 4, True)


def test_brackets_that_vanish_at_the_start_count_nothing_there():
    """Wheels inside a satellite keep its angular momentum in space: 9 of 12 dimensions, also from rest."""

    def lagrangian(t, g, xi, p):
        return 0.5 * xi[:3] @ (p * xi[:3]) + 0.025 * (xi[:3] + xi[3:]) @ (xi[:3] + xi[3:])

    satellite = da.System(
        da.Product((da.SO3(), da.Euclidean(3))), lagrangian, parameters=jnp.array([2.0, 1.6, 1.1]),
        force=lambda t, g, xi, u, p: jnp.concatenate([jnp.zeros(3), u]), inputs=("x", "y", "z"),
    )  # fmt: skip
    assert accessibility(satellite, satellite.state()) == ((3, 6, 6, 9), (3, 6, 9, 9), 12, True)


@pytest.mark.heavy
def test_brackets_of_drift_and_inputs_are_those_of_known_systems():
    """Kalman's ranks of two carts with a spring; a wheel on an axis keeps w1^2 + w2^2; a bracket parks a unicycle."""
    spun = da.System(
        da.SO3(), lambda t, g, xi, p: 0.5 * xi @ (p * xi), force=lambda t, g, xi, u, p: jnp.stack([0.0, 0.0, u[0]]),
        parameters=jnp.array([1.0, 1.0, 3.0]), inputs=("torque",),
    )  # fmt: skip
    known = [(two_carts(1.0), (1, 2, 3, 4), 4), (spun, (1, 2, 3, 4, 5, 5), 6), (offset_unicycle(), (2, 4, 5), 5)]
    for system, growth, dimension in known:
        assert accessibility(system, system.state())[1:] == (growth, dimension, True)
    assert max(accessibility(spun, spun.state()).growth) == 2  # at rest it turns about its axis alone


def test_a_failed_plan_without_a_run_says_why():
    """Its run says why there is no plan, not why a step under controls that mean nothing has no solution."""
    system = offset_unicycle()
    goal = system.state(pose(0, 0.2, 0), np.zeros(3))
    made = plan(system, start=pose(0, 0, 0), goal=goal, steps=4, duration=1.0, cost=effort)
    assert made.run.status == "ok"
    wild = np.full_like(made.controls, 1e200)
    broken = dataclasses.replace(made, controls=wild, status="stalled", explain=lambda: "the search is stuck")
    with pytest.raises(da.errors.NumericalFailure, match="no plan was found: the search is stuck"):
        broken.run  # noqa: B018


def on_leaves(goal, **options):
    """A point in space whose third coordinate goes with the first: q3 - q1 stays."""
    system = da.System(
        da.Euclidean(3), lambda t, q, v, p: 0.5 * v @ v, constraint=lambda t, q, p: jnp.array([[1.0, 0.0, -1.0]])
    )
    return plan(system, start=[0.0, 0, 0], goal=goal, steps=6, duration=1.0, kinematic=True, cost=effort, **options)


def test_a_holonomic_part_is_a_reason_only_for_goals_that_it_forbids():
    """A goal that leaves the leaf open, or lies on it, is reached, or missed for another reason."""
    assert "growth vector (2,)" in on_leaves({"q1": 1.0, "q3": 0.5}).reason
    assert "no control changes" in on_leaves([1.0, 1.0, 0.5]).reason
    assert on_leaves({"q1": 1.0, "q2": 1.0}).status == on_leaves([1.0, 2.0, 1.0]).status == "optimal"
    slow = on_leaves({"q1": 9.0}, bounds={"v3": (-1.0, 1.0)})
    assert slow.status != "optimal" and "growth" not in slow.reason and "they are too tight" in slow.reason


@pytest.mark.heavy
def test_a_truck_with_a_tank_at_rest_drives_straight():
    """R^8 and five rows: a step has its second derivatives, and one that bends away from the constraint is taken.

    Steering costs next to nothing, so that it is far from what is needed after a first guess with waves. Another goal
    compiles no stages, and one that the torques are too weak for is said to be so, not that a leaf forbids it.
    """

    def lagrangian(t, q, v, p):
        a, turning = q[2] + q[4], v[2] + v[4]
        x, y = v[0] + 4.0 * jnp.sin(a) * turning, v[1] - 4.0 * jnp.cos(a) * turning
        aside, rate = 1.2 * jnp.sin(q[5]), 1.2 * jnp.cos(q[5]) * v[5]
        sideways = x - rate * jnp.sin(a) - aside * jnp.cos(a) * turning
        tank = jnp.stack([sideways, y + rate * jnp.cos(a) - aside * jnp.sin(a) * turning, aside * v[5]])
        moving = 3000.0 * (v[0] ** 2 + v[1] ** 2) + 4500.0 * v[2] ** 2 + 50.0 * (v[3] + v[2]) ** 2
        moving += 4500.0 * (x**2 + y**2) + 20000.0 * turning**2 + 4000.0 * tank @ tank
        return moving + 10.0 * (v[6] ** 2 + v[7] ** 2) + 8000.0 * 9.81 * 1.2 * jnp.cos(q[5])

    def constraint(t, q, p):
        a, f, z = q[2] + q[4], q[2] + q[3], 0.0 * q[0]
        sine, cosine = jnp.sin(jnp.stack([q[2], f, a])), jnp.cos(jnp.stack([q[2], f, a]))
        return jnp.stack([
            jnp.stack([-sine[0], cosine[0], z, z, z, z, z, z]),
            jnp.stack([-sine[1], cosine[1], 3.6 * jnp.cos(q[3]), z, z, z, z, z]),
            jnp.stack([-sine[2], cosine[2], z - 7.0, z, z - 7.0, z, z, z]),
            jnp.stack([cosine[0], sine[0], z, z, z, z, z - 0.5, z]),
            jnp.stack([cosine[1], sine[1], 3.6 * jnp.sin(q[3]), z, z, z, z, z - 0.5]),
        ])  # fmt: skip

    truck = da.System(
        da.Euclidean(8), lagrangian, constraint,
        force=lambda t, q, v, u, p: jnp.stack([0.0, 0.0, 0.0, u[1], 0.0, -500.0 * v[5], u[0], 0.0]),
        inputs=[da.Input("drive", "N m", -8000, 8000), da.Input("steer", "N m", -500, 500)],
    )  # fmt: skip
    options = {"steps": 40, "duration": 3.0, "cost": lambda t, q, v, u: 1e-7 * u @ u}
    made = plan(truck, start=np.zeros(8), goal={"q1": 2.0, "q2": 0.0, "q3": 0.0}, **options)
    assert made.status == "optimal" and made.strict and made.iterations < 100, made
    far = plan(truck, start=np.zeros(8), goal={"q1": 100.0, "q2": 1.0}, **options)
    assert far.status == "stalled" and far.iterations < 60, far
    assert "too tight" in far.reason and "holonomic" not in far.reason


def test_why_there_is_no_plan_of_a_mass_on_a_line():
    """A start outside its bounds and a cost without end are named; where nothing costs anything, a plan is found."""
    mass = da.System(
        da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v, force=lambda t, q, v, u, p: u,
        inputs=(da.Input("push", "N", -1.0, 1.0),),
    )  # fmt: skip
    options = {"goal": [0.0], "steps": 20, "duration": 3.0, "seed": np.int64(1)}
    cost = lambda t, q, v, u: u @ u
    far = plan(mass, start=[2.0], cost=cost, bounds={"q1": (-1.0, 0.5)}, **options)
    assert "start itself is outside the bounds of q1" in far.reason
    corner = plan(mass, start=[0.5], cost=lambda t, q, v, u: jnp.abs(u[0]), **options)
    assert "corners" in corner.reason and corner.status == "feasible" and corner.infeasibility < 1e-8
    with pytest.raises(da.NumericalFailure, match="a plan was found that is not optimal: the goal is reached, but"):
        corner.check()
    free = {"push": (None, None)}
    endless = plan(mass, start=[0.5], cost=lambda t, q, v, u: u[0], bounds=free, **options | {"goal": None})
    assert "no least value" in endless.reason or "without end" in endless.reason
    for nothing in (lambda t, q, v, u: 0.0 * u[0], lambda t, q, v, u: 1.0 + 0.0 * u[0]):
        made = plan(mass, start=[0.5], cost=nothing, bounds=free, **options)
        assert made.status == "optimal" and made.infeasibility < 1e-8, made
    for start, goal in (({"q1": [1.0, 2.0]}, [0.0]), ([0.5], {"q1": [1.0, 2.0]})):
        with pytest.raises(da.InvalidInput, match=r"q1 of the (start|goal) is .* allowed: one finite number"):
            plan(mass, start=start, cost=cost, **options | {"goal": goal})


@pytest.mark.parametrize(("limit", "duration"), [(np.inf, 3.0), (3.0, 6.0)])
def test_the_unit_of_a_cost_does_not_matter(limit, duration):
    """With and without bounds: as many iterations, the same controls, and cost and multipliers in the user's unit."""
    pendulum = da.System(
        da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v + 9.81 * jnp.cos(q[0]), force=lambda t, q, v, u, p: u,
        inputs=(da.Input("torque", "N m", -limit, limit),),
    )  # fmt: skip
    options = {"start": np.zeros(1), "goal": pendulum.state([np.pi], [0.0]), "steps": 40, "duration": duration}
    found = [plan(pendulum, cost=lambda t, q, v, u, c=c: c * u @ u, **options) for c in (1.0, 1e-10, 1e7)]
    for made, c in zip(found, (1.0, 1e-10, 1e7), strict=True):
        assert made.status == "optimal" and made.strict and made.iterations == found[0].iterations
        np.testing.assert_allclose(made.controls, found[0].controls, atol=1e-9)
        for name in ("cost", "costates", "goal_multipliers"):
            np.testing.assert_allclose(getattr(made, name), c * getattr(found[0], name), rtol=1e-7, atol=1e-9 * c)


def test_the_heading_of_a_mechanism_is_a_goal_up_to_turns():
    """With friction too, where only the yaw turns, and not what stands first in a chart of its group."""
    skate = da.Mechanism("skate")
    skate.body("base", mass=1.0, box=(1.0, 0.5, 0.2))
    skate.planar("base")
    skate.skate("base", at=(0, 0, 0))
    system = skate.system()
    for each in (system, da.with_friction(system, viscous=0.1)):
        assert names_of(each) == (("x", "y", "yaw"), (False, False, True))


def tug():
    """A tricycle whose front wheel drives and steers."""
    made = da.Mechanism("tug")
    made.body("chassis", mass=400.0, centre=(0.5, 0, 0.4), box=(1.6, 0.9, 0.6))
    made.body("fork", mass=14.0, centre=(1.1, 0, 0.5), inertia=(0.3, 0.3, 0.1))
    made.planar("chassis")
    made.hinge("steer", "chassis", "fork", at=(1.1, 0, 0.5), axis=(0, 0, 1), damping=1.0)
    made.wheel("rear left", "chassis", at=(0, 0.4, 0.18), mass=6.0)
    made.wheel("rear right", "chassis", at=(0, -0.4, 0.18), mass=6.0)
    made.wheel("front", "fork", at=(1.1, 0, 0.2), mass=9.0, motor=(-60.0, 60.0))
    made.motor("steer", low=-40.0, high=40.0)
    return made.system()


def loader():
    """Two bodies on an axle each, bent by a motor between them."""
    made = da.Mechanism("loader")
    made.body("front", mass=2000.0, centre=(0.2, 0, 0.6), box=(1.6, 1.6, 1.0))
    made.body("rear", mass=2500.0, centre=(-1.4, 0, 0.6), box=(1.8, 1.6, 1.0))
    made.planar("front")
    made.hinge("bend", "front", "rear", at=(-0.8, 0, 0.6), axis=(0, 0, 1), damping=200.0)
    for side, y in (("left", 0.7), ("right", -0.7)):
        made.wheel(f"front {side}", "front", at=(0, y, 0.5), mass=60.0, motor=(-3000.0, 3000.0))
        made.wheel(f"rear {side}", "rear", at=(-1.6, y, 0.5), mass=60.0)
    made.motor("bend", low=-8000.0, high=8000.0)
    return made.system()


@pytest.mark.parametrize(
    "make", [tug, loader, da.models.ackermann_car, da.models.differential_drive, da.models.tractor, da.models.bicycle]
)
def test_few_velocities_of_a_vehicle_determine_the_others(make):
    """Whatever the radii of its wheels: a determinant of many small rows is small, but they are independent."""
    system = make()
    free, redundant, _ = choose_velocities(system, 0.0, [system.state().g])
    assert not redundant and len(free) == system.group.dim - system.constraints


@pytest.mark.heavy  # for the derivatives of its step, which are compiled for 12 s
def test_a_steered_mechanism_is_planned_from_names_to_names():
    """Wheels of which the goal says nothing roll in the first guess; the last steps are taken by their residual."""
    start = {"x": 0.0, "y": 0.0, "yaw": 0.0, "steer": 0.0}
    goal = {"x": 4.0, "y": 1.0, "yaw": 0.0, "steer": 0.0, "speed": 0.0, "steer_rate": 0.0}
    system = tug()
    made = plan(
        system, start=start, goal=goal, steps=40, duration=8.0,
        cost=lambda t, g, xi, u: (u[0] / 60) ** 2 + (u[1] / 40) ** 2 + 0.1 * xi[3] ** 2,
    )  # fmt: skip
    assert made.status == "optimal" and made.iterations < 100
    free = plan(
        system, start=start, goal=goal, steps=40, duration=8.0,
        cost=lambda t, g, xi, u: (u[0] / 60) ** 2 + (u[1] / 40) ** 2,
    )  # fmt: skip
    assert free.status in ("optimal", "feasible") and free.infeasibility < 1e-6, free
    assert free.run["x"][-1] == pytest.approx(4.0, abs=1e-6) and free.run["y"][-1] == pytest.approx(1.0, abs=1e-6)
    assert free.status == "optimal" or "to shake them is often the cheapest way" in free.reason
    rolled = system.state(**start, speed=0.5)
    first = {"start": start | {"speed": 0.5}, "goal": {"x": 4.0}, "steps": 4, "duration": 8.0, "cost": effort}
    np.testing.assert_allclose(plan(system, **first).xi[0], rolled.xi, atol=1e-12)


@pytest.mark.heavy  # for the second derivatives of its step, which are compiled for a minute
@pytest.mark.parametrize(
    ("x", "y", "yaw", "duration", "steps"),
    [(3, 1, 0, 6, 40), (6, 6, np.pi / 2, 8, 40), (-2, 0, 0, 6, 40), (0, 2, 0, 12, 60)],
)
def test_a_car_with_ackermanns_steering_goes_where_it_is_sent(x, y, yaw, duration, steps):
    """Steering costs next to nothing in the squares of the torques: a plan is found, and says what it is."""
    start = {"x": 0.0, "y": 0.0, "yaw": 0.0, "steer": 0.0}
    goal = {"x": x, "y": y, "yaw": yaw, "steer": 0.0, "speed": 0.0, "steer_rate": 0.0}
    made = plan(da.models.ackermann_car(), start=start, goal=goal, steps=steps, duration=duration, cost=effort)
    assert made.status in ("optimal", "feasible") and made.infeasibility < 1e-6, made
    assert [made.run[name][-1] for name in ("x", "y")] == pytest.approx([x, y], abs=1e-6)
    assert made.status == "optimal" or "least is the cost plus" in made.reason


@pytest.mark.heavy
def test_a_snakeboard_goes_ahead():
    """It is driven by shaking alone: the goal is reached by a smooth motion."""
    start = dict.fromkeys(("heading", "x", "y", "rotor", "wheels"), 0.0)
    made = plan(da.models.snakeboard(), start=start, goal={"x": 0.5}, steps=60, duration=6.0, cost=effort)
    assert made.status in ("optimal", "feasible") and made.infeasibility < 1e-6, made
    assert made.run["x"][-1] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.heavy  # for the derivatives of its step, which are compiled for 20 s
def test_a_loader_goes_around_an_obstacle_on_its_way():
    """The shift of a Hessian is measured by its curvature: with that of the barrier nothing moved any more."""
    sizes = np.array([3000.0, 3000.0, 8000.0])
    goal = {"x": 8.0, "y": 0.0, "yaw": 0.0, "bend": 0.0, "speed": 0.0, "bend_rate": 0.0}
    made = plan(
        loader(), start={"x": 0.0, "y": 0.0, "yaw": 0.0, "bend": 0.0}, goal=goal, steps=40, duration=12.0,
        cost=lambda t, g, xi, u: jnp.sum((u / sizes) ** 2),
        path=lambda t, g, xi, u: jnp.sum((g[0][:2, 2] - jnp.array([4.0, 0.3])) ** 2)[None] - 1.5**2,
    )  # fmt: skip
    assert made.status == "optimal" and made.iterations < 100, made
    assert np.hypot(made.run["x"] - 4.0, made.run["y"] - 0.3).min() == pytest.approx(1.5, abs=1e-6)
