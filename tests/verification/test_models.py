"""The models against equations of motion written down independently (`newton`), exact solutions and invariants."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from newton import CONTROLS, PAIRS
from registry import sampled
from scipy.integrate import solve_ivp

import dalembert as da
from dalembert.kernels import evaluate

models = da.models
MIDPOINT = da.LagrangeDAlembert(da.Cayley(), node=0.5)


def motion(system, point):
    """(an admissible velocity, its rate, dE/dt less the power of the controls)."""
    g, raw, u = point
    xi = system.project(g, raw)
    rate, _ = system.acceleration(0.0, g, xi, u)
    moved = lambda s: system.energy(0.0, system.group.shift(g, s * xi), xi + s * rate)
    return xi, rate, jax.jvp(moved, (0.0,), (1.0,))[1] - system.F(0.0, g, xi, u) @ xi


def at(function, system, points, lanes):
    """function(system, point) at every point, natively."""
    return jax.tree.map(np.asarray, evaluate(function, system, points, lanes=lanes, axes=(None, 0)))


def samples(system, count, controls=0, size=0.7, seed=1):
    rng, group = np.random.default_rng(seed), system.group
    g = jax.jit(jax.vmap(group.exp))(size * rng.normal(size=(count, group.dim)))
    u = rng.normal(size=(count, controls)) if controls else None
    return g, rng.normal(size=(count, group.dim)), u


@pytest.mark.parametrize("name", PAIRS)
def test_equations_of_motion(name):
    system, independent = PAIRS[name]
    count = 6
    g, raw, u = samples(system, count, CONTROLS.get(name, 0))
    xi, rate, leak = at(motion, system, (g, raw, u), count)
    for k in range(count):
        here = jax.tree.map(lambda leaf: np.asarray(leaf[k]), g)
        expected = independent(here, xi[k], None if u is None else u[k])
        np.testing.assert_allclose(rate[k], expected, atol=1e-10 * max(1.0, np.abs(expected).max()))
        assert abs(leak[k]) < 1e-10 * max(1.0, np.abs(expected).max())
    assert np.abs(rate).max() > 0.1


def test_a_ball_is_a_rolling_body():
    """The same ball by its own equations, and by its support function."""
    ball = PAIRS["rolling-ball"][0]
    shape = {"radius": 0.8, "centre": np.zeros(3)}
    whole = models.rolling_body(models.sphere, shape, 1.4, 0.3 * np.eye(3), 0.3)
    points = samples(ball, 4)
    for a, b in zip(at(motion, whole, points, 4), at(motion, ball, points, 4), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def contact_change(system, point):
    """The contact momentum and its rate along the motion."""
    g, raw, _ = point
    xi = system.project(g, raw)
    rate, _ = system.acceleration(0.0, g, xi)
    moved = lambda s: models.contact_momentum(system, system.group.shift(g, s * xi), xi + s * rate)
    return jax.jvp(moved, (0.0,), (1.0,))


def test_chaplygins_ball_keeps_its_momentum_about_the_contact():
    """A vector constant in space: |K|, <K, e3> and two more integrals; with dE/dt = 0 above the problem is
    integrable.
    """
    momentum, rate = at(contact_change, PAIRS["chaplygin-ball"][0], samples(PAIRS["chaplygin-ball"][0], 5), 5)
    assert np.abs(rate).max() < 1e-12 and np.abs(momentum).max() > 0.5


# -- exact solutions --------------------------------------------------------------------------------------------------
def order(system, state, exact, step, steps):
    """The observed order of the midpoint method between step and step/2, and its error at step/2; exact(run) = (found,
    expected).
    """
    found = []
    for k in (1, 2):
        trajectory = da.simulate(system, MIDPOINT, state, step=step / k, steps=steps * k).check()
        values, expected = exact(trajectory)
        found.append(np.abs(np.asarray(values) - expected).max())
    return np.log2(found[0] / found[1]), found[1]


def ball_on_table(trajectory):
    t = np.asarray(trajectory.t)
    options = {"mass": 1.4, "moment": 0.3, "radius": 0.8, "rotation": 1.7, "slope": 0.2}
    values = np.column_stack([trajectory.g[1], trajectory.xi[:, 3:]])
    return values, models.exact_ball(t, values[0, :2], values[0, 2:], **options)


def test_a_ball_on_a_turning_table_runs_on_a_curve_known_exactly():
    system = models.ball_on_table(1.4, 0.3, 0.8, 1.7, 0.2)
    g = system.group.element([np.eye(3), [0.3, -0.2]])
    state = system.state(g, system.project(g, jnp.array([0.3, 0.5, 0.4, 0.1, 0.2])))
    observed, error = order(system, state, ball_on_table, 0.02, 100)
    assert observed == pytest.approx(2.0, abs=0.05) and error < 1e-3


def test_on_a_level_table_a_solid_ball_runs_on_circles_at_two_sevenths():
    t = np.linspace(0.0, 2 * np.pi / (2 / 7 * 1.4), 9)
    path = models.exact_ball(t, [0.5, 0.2], [0.3, 0.1], rotation=1.4)
    np.testing.assert_allclose(path[-1], path[0], atol=1e-12)
    centre = path[0, :2] + np.array([-0.1, 0.3]) / (2 / 7 * 1.4)
    np.testing.assert_allclose(np.hypot(*(path[:, :2] - centre).T), np.hypot(0.3, 0.1) / (2 / 7 * 1.4), rtol=1e-12)


@pytest.mark.parametrize("rate", [0.0, 1e-6, 1e-3, 0.0101])
def test_the_exact_ball_is_smooth_where_the_table_stops(rate):
    t = np.array([0.5, 1.0, 2.0])
    options = {"mass": 1.4, "moment": 0.3, "radius": 0.8, "slope": 0.2, "rotation": rate}

    def field(s, y):
        k, fall = rate / (1 + 1.4 * 0.64 / 0.3), 9.81 * np.sin(0.2) / (1 + 0.3 / (1.4 * 0.64))
        return [y[2], y[3], fall - k * y[3], k * y[2]]

    y = solve_ivp(field, (0, 2.0), [0.1, 0.2, 0.3, -0.4], "DOP853", t, rtol=1e-13, atol=1e-13).y.T
    np.testing.assert_allclose(models.exact_ball(t, [0.1, 0.2], [0.3, -0.4], **options), y, atol=1e-11)


@pytest.mark.heavy
@pytest.mark.parametrize("turn", [0.8, 0.0])
def test_inclined_disk(turn):
    options = {"mass": 1.3, "rolling": 0.5, "radius": 0.7, "slope": 0.25}
    system = models.inclined_disk(turning=0.25, **options)
    state = system.state(xi=[turn, 0.7, 0.0, 1.0])

    def exact(trajectory):
        values = np.column_stack([trajectory.angles[:, 0], trajectory.g[0][:, :2, 2], trajectory.angles[:, 1]])
        return values, models.exact_inclined_disk(np.asarray(trajectory.t), state.xi, **options)

    observed, error = order(system, state, exact, 0.02, 100)
    assert observed == pytest.approx(2.0, abs=0.05) and error < 1.5e-3


def coasting(name):
    """A car or snakeboard without controls, its state, and the constants of `exact_coasting`."""
    if name == "car":
        system, constants = (
            models.car(1.4, 0.6, 1.2, 0.5, 0.2),
            {"turning": 0.6 + 1.4 * 0.25, "driving": 1.4 * 1.44, "length": 1.2, "carried": 1.0},
        )
        g, rates = [[0.0, 0.0, 0.0], [0.3]], [0.4]
    else:
        system = models.snakeboard(2.0, 0.3, 0.2, 0.1, 0.4)
        constants = {"turning": 0.5, "driving": 0.32, "length": 0.4, "carried": 0.0}
        g, rates = [[0.0, 0.0, 0.0], [0.5], [0.3]], [1.1, 0.4]
    spin = 1.3
    xi = [spin * np.sin(0.3), constants["length"] * spin * np.cos(0.3), 0.0, *rates]
    return system, system.state(g, xi), {"angle": 0.3, "rate": 0.4, "spin": spin, **constants}


@pytest.mark.parametrize("name", sampled(["car", "snakeboard"]))
def test_coasting(name):
    system, state, constants = coasting(name)

    def exact(trajectory):
        steering, pose = models.exact_coasting(np.asarray(trajectory.t), **constants)
        values = np.column_stack(
            [trajectory.angles[:, -1], trajectory.xi[:, 0], trajectory.angles[:, 0], trajectory.g[0][:, :2, 2]]
        )
        angle, spin = steering.T
        return values, np.column_stack([angle, spin * np.sin(angle), pose])

    observed, error = order(system, state, exact, 0.05, 60)
    assert observed == pytest.approx(2.0, abs=0.1) and error < 2e-3
    run = da.simulate(system, MIDPOINT, state, step=0.05, steps=60).check()
    turning = np.asarray(run.xi[:, 0] + run.xi[:, 3])
    assert np.ptp(turning) < 1e-12  # nothing turns the rotor of the board, or the front wheels of the car


@pytest.mark.heavy
def test_the_rattleback_turns_back():
    """Kane and Levinson's celt: spun one way it rattles and reverses in 10 s, spun the other way not yet."""
    system, independent = PAIRS["rattleback"]
    spins = {}
    for sense in (-1.0, 1.0):
        state = system.state(xi=[0.5, 0.0, 5.0 * sense, 0.0, -0.005])
        trajectory = da.simulate(system, MIDPOINT, state, step=0.002, steps=5000).check()
        spins[sense] = np.asarray(trajectory.xi[:, 2])
        assert np.abs(trajectory.energy_error()).max() < 5e-3 * float(trajectory.energy()[0])
    assert spins[-1.0][0] < -4.99 and spins[-1.0][-1] > 4.5
    assert spins[1.0].min() > 4.0
    times = np.array([0.0, 0.5, 1.0])
    _, expected = independent.flow(np.eye(3), np.array([0.5, 0.0, -5.0]), times)
    assert np.abs(spins[-1.0][[0, 250, 500]] - expected[:, 2]).max() < 2e-2
