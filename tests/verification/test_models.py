"""The models against equations of motion written down independently, exact solutions and invariants; friction; steering.

The independent equations know nothing of Lagrangians on groups: those of Newton and Euler for bodies that roll, and for vehicles
free planar bodies with the reactions of joints and wheels, the constraints differentiated by a complex step.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import dalembert as da
from dalembert.kernels.run import run

models = da.models
MIDPOINT = da.LagrangeDAlembert(da.Cayley(), node=0.5)


# -- independent equations: bodies that roll ----------------------------------------------------------------------------------
class Roller:
    """An ellipsoid (a disk if one axis is 0, a ball if all are equal) by Newton and Euler: m V' = N + m G, (I w)' = r x N in the body."""

    def __init__(self, axes, centre, mass, inertia, gravity):
        self.squares, self.centre = np.asarray(axes, float) ** 2, np.asarray(centre, float)
        self.mass, self.inertia, self.gravity = mass, np.asarray(inertia, float), np.asarray(gravity, float)

    def contact(self, normal, change):
        """r and its rate, for the plane's normal in the body."""
        scaled, moved = self.squares * normal, self.squares * change
        size = np.sqrt(normal @ scaled)
        return self.centre - scaled / size, scaled * (normal @ moved) / size**3 - moved / size

    def acceleration(self, R, w):
        """(w', the acceleration of the centre in space)."""
        r, rate = self.contact(R[2], np.cross(R[2], w))
        v, pull, m = -np.cross(w, r), self.gravity @ R, self.mass
        carried = -np.cross(w, rate) + np.cross(w, v)
        left = self.inertia + m * ((r @ r) * np.eye(3) - np.outer(r, r))
        torque = -np.cross(w, self.inertia @ w) + m * np.cross(r, carried - pull)
        turn = np.linalg.solve(left, torque)
        return turn, R @ (carried - np.cross(turn, r))

    def __call__(self, g, xi, u):
        turn, acceleration = self.acceleration(np.asarray(g[0]), np.asarray(xi[:3]))
        return np.concatenate([turn, acceleration[:2]])

    def flow(self, R, w, times):
        """(R, w) at the times, by DOP853."""

        def field(t, y):
            R, w = y[:9].reshape(3, 3), y[9:]
            return np.concatenate([(R @ np.cross(np.eye(3), w)).ravel(), self.acceleration(R, w)[0]])

        y = solve_ivp(field, (0, times[-1]), np.append(np.ravel(R), w), "DOP853", times, rtol=1e-12, atol=1e-12).y
        return y[:9].T.reshape(-1, 3, 3), y[9:].T


# -- independent equations: vehicles of free planar bodies --------------------------------------------------------------------
def reacting(masses, rows, q, v, force):
    """q'' of M q'' = force + A^T l with A(q) q' = 0 for constant masses."""
    A, step = rows(q).real, 1e-30
    rate = rows(q + 1j * step * v).imag / step
    size, m = len(q), len(A)
    left = np.block([[np.diag(masses), A.T], [A, np.zeros((m, m))]])
    return np.linalg.solve(left, np.concatenate([force, -rate @ v]))[:size]


def e(angle):
    return np.array([np.cos(angle), np.sin(angle)])


def n(angle):
    return np.array([-np.sin(angle), np.cos(angle)])


def trivialised(angle, w, v, turn, acceleration):
    """(w', v1', v2') from the angular acceleration and the acceleration in space of the body frame's origin."""
    return np.array([turn, e(angle) @ acceleration + w * v[1], n(angle) @ acceleration - w * v[0]])


def angle_of(rotation):
    return np.arctan2(rotation[1, 0], rotation[0, 0])


class Cart:
    """The body of a unicycle or car by its centre of mass, `ahead` of the axle; a car's front wheel has its own angle."""

    def __init__(self, mass, inertia, ahead, length=None, steering=None):
        self.masses = np.array([mass, mass, inertia] + ([] if steering is None else [steering]))
        self.ahead, self.length = ahead, length

    def rows(self, q):
        axle = np.append(n(q[2]), -self.ahead)
        if self.length is None:
            return axle[None]
        lever = (self.length - self.ahead) * np.cos(q[3])
        return np.array([[*axle, 0.0], [*n(q[2] + q[3]), lever, 0.0]])

    def __call__(self, g, xi, u):
        pose, shape = (g, []) if self.length is None else (g[0], [angle_of(g[1])])
        theta, w, b = angle_of(pose), xi[0], self.ahead
        speed = xi[1] * e(theta) + xi[2] * n(theta)
        q = np.concatenate([pose[:2, 2] + b * e(theta), [theta], shape])
        v = np.concatenate([speed + b * w * n(theta), [w], xi[3:]])
        turning, drive, *steer = (u[0], u[1]) if self.length is None else (0.0, u[0], u[1])
        a = reacting(self.masses, self.rows, q, v, np.concatenate([drive * e(theta), [turning], steer]))
        origin = a[:2] - b * (a[2] * n(theta) - w**2 * e(theta))
        return np.concatenate([trivialised(theta, w, xi[1:3], a[2], origin), a[3:]])


class Board:
    """Board, rotor and two wheel trucks with absolute angles; a gear turns the trucks by opposite angles."""

    def __init__(self, mass, inertia, rotor, wheels, length):
        self.masses, self.length = np.array([mass, mass, inertia, rotor, wheels, wheels]), length

    def rows(self, q):
        def truck(place, angle, column):
            row = np.zeros(6, complex)
            row[:2], row[2] = n(angle), place * np.cos(angle - q[2])
            return row

        gear = np.array([0, 0, -2, 0, 1, 1], complex)
        return np.array([truck(self.length, q[4], 4), truck(-self.length, q[5], 5), gear])

    def __call__(self, g, xi, u):
        theta, a, b = angle_of(g[0]), angle_of(g[1]), angle_of(g[2])
        w = xi[0]
        q = np.array([*g[0][:2, 2], theta, theta + a, theta + b, theta - b])
        v = np.array([*(xi[1] * e(theta) + xi[2] * n(theta)), w, w + xi[3], w + xi[4], w - xi[4]])
        force = np.array([0, 0, -u[0], u[0], u[1] / 2, -u[1] / 2])
        a = reacting(self.masses, self.rows, q, v, force)
        return np.array([*trivialised(theta, w, xi[1:3], a[2], a[:2]), a[3] - a[2], (a[4] - a[5]) / 2])


class Racer:
    """Two bodies on their axles, with a pin joint."""

    def __init__(self, mass, inertia, rider, rider_inertia, front, arm):
        self.masses = np.array([mass, mass, inertia, rider, rider, rider_inertia])
        self.front, self.arm = front, arm

    def rows(self, q):
        pin = np.zeros((2, 6), complex)
        pin[:, :2], pin[:, 3:5] = np.eye(2), -np.eye(2)
        pin[:, 2], pin[:, 5] = self.front * n(q[2]), self.arm * n(q[5])
        zero = np.zeros(3)
        return np.vstack([pin, [*n(q[2]), 0, *zero], [*zero, *n(q[5]), 0]])

    def __call__(self, g, xi, u):
        theta, second = angle_of(g[0]), angle_of(g[0]) + angle_of(g[1])
        w, w2 = xi[0], xi[0] + xi[3]
        place, speed = g[0][:2, 2], xi[1] * e(theta) + xi[2] * n(theta)
        other = place + self.front * e(theta) + self.arm * e(second)
        moving = speed + self.front * w * n(theta) + self.arm * w2 * n(second)
        q, v = np.array([*place, theta, *other, second]), np.array([*speed, w, *moving, w2])
        a = reacting(self.masses, self.rows, q, v, np.array([0, 0, -u[0], 0, 0, u[0]]))
        return np.array([*trivialised(theta, w, xi[1:3], a[2], a[:2]), a[5] - a[2]])


TENSOR = np.array([[0.5, 0.1, -0.05], [0.1, 0.7, 0.02], [-0.05, 0.02, 0.9]])
CELT = np.array([[2e-4, -2e-5, 0.0], [-2e-5, 1.6e-3, 0.0], [0.0, 0.0, 1.7e-3]])
DOWN = np.array([0.0, 0.0, -9.81])
SLOPE = 9.81 * np.array([np.sin(0.3), 0.0, -np.cos(0.3)])
PAIRS = {
    "rolling-disk": (
        models.rolling_disk(1.3, 0.6),
        Roller((0.6, 0, 0.6), np.zeros(3), 1.3, np.diag([0.117, 0.234, 0.117]), DOWN),
    ),
    "rattleback": (models.rattleback(), Roller((0.2, 0.03, 0.02), (0, 0, 0.01), 1.0, CELT, DOWN)),
    "chaplygin-ball": (models.chaplygin_ball(1.4, TENSOR, 0.8), Roller((0.8,) * 3, np.zeros(3), 1.4, TENSOR, DOWN)),
    "rolling-ball": (
        models.rolling_ball(1.4, 0.3, 0.8, 0.3),
        Roller((0.8,) * 3, np.zeros(3), 1.4, 0.3 * np.eye(3), SLOPE),
    ),
    "unicycle": (models.unicycle(1.4, 0.6, 0.3), Cart(1.4, 0.6, 0.3)),
    "car": (models.car(1.4, 0.6, 1.2, 0.5, 0.2), Cart(1.4, 0.6, 0.5, 1.2, 0.2)),
    "snakeboard": (models.snakeboard(2.0, 0.3, 0.2, 0.1, 0.4), Board(2.0, 0.3, 0.2, 0.1, 0.4)),
    "roller-racer": (models.roller_racer(1.4, 0.6, 0.5, 0.2, 0.7, -0.3), Racer(1.4, 0.6, 0.5, 0.2, 0.7, -0.3)),
}
CONTROLS = {"unicycle": 2, "car": 2, "snakeboard": 2, "roller-racer": 1}


def stay(system, point, u):
    return point


def motion(system, point):
    """(an admissible velocity, its rate, dE/dt less the power of the controls)."""
    g, raw, u = point
    xi = system.project(g, raw)
    rate, _ = system.acceleration(0.0, g, xi, u)
    moved = lambda s: system.energy(0.0, system.group.shift(g, s * xi), xi + s * rate)
    return xi, rate, jax.jvp(moved, (0.0,), (1.0,))[1] - system.F(0.0, g, xi, u) @ xi


def at(function, system, points, lanes):
    """function(system, point) at every point, natively."""
    found = run(stay, function, system, points, saves=1, lanes=lanes, axes=(None, 0)).records
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], found)


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
    """A vector constant in space: |K|, <K, e3> and two more integrals; with dE/dt = 0 above the problem is integrable."""
    momentum, rate = at(contact_change, PAIRS["chaplygin-ball"][0], samples(PAIRS["chaplygin-ball"][0], 5), 5)
    assert np.abs(rate).max() < 1e-12 and np.abs(momentum).max() > 0.5


# -- exact solutions ------------------------------------------------------------------------------------------------------------
def order(system, state, exact, step, steps):
    """The observed order of the midpoint method between step and step/2, and its error at step/2; exact(run) = (found, expected)."""
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
            {"turning": 0.6 + 1.4 * 0.25, "driving": 1.4 * 1.44, "length": 1.2},
        )
        g, rates = [[0.0, 0.0, 0.0], [0.3]], [0.4]
    else:
        system, constants = models.snakeboard(2.0, 0.3, 0.2, 0.1, 0.4), {"turning": 0.5, "driving": 0.32, "length": 0.4}
        g, rates = [[0.0, 0.0, 0.0], [0.5], [0.3]], [1.1, 0.4]
    spin = 1.3
    xi = [spin * np.sin(0.3), constants["length"] * spin * np.cos(0.3), 0.0, *rates]
    return system, system.state(g, xi), {"angle": 0.3, "rate": 0.4, "spin": spin, **constants}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["car", "snakeboard"])
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
    if name == "snakeboard":  # nothing turns the rotor but its axle
        run = da.simulate(system, MIDPOINT, state, step=0.05, steps=60).check()
        turning = np.asarray(run.xi[:, 0] + run.xi[:, 3])
        assert np.ptp(turning) < 1e-12


def test_the_rattleback_turns_back():
    """Kane and Levinson's celt: spun one way it rattles and reverses, spun the other way it does not."""
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


# -- friction -----------------------------------------------------------------------------------------------------------------------
def balance(system, method, state, step, steps, controls=None):
    """The largest failure of the energy balance over a run, and what the run lost."""
    trajectory = da.simulate(system, method, state, step=step, steps=steps, controls=controls).check()
    energy = np.asarray(trajectory.energy())
    return np.abs(da.diagnostics.energy_balance(trajectory, controls)).max(), energy


@pytest.mark.parametrize("method", [MIDPOINT, pytest.param(da.RetractionAdapted(node=0.5), marks=pytest.mark.heavy)])
def test_friction_takes_energy_and_the_books_balance_with_the_order_of_the_method(method):
    """A sleigh with viscous and dry friction: the energy only falls, and what the books miss falls like h^2."""
    sleigh = models.chaplygin_sleigh(1.4, 0.8, 0.3, 0.1)
    system = da.with_friction(da.with_friction(sleigh, viscous=0.1), dry=0.3, along=[0.0, 1.0, 0.0], width=0.05)
    state = system.state(xi=[0.9, 1.2, 0.0])
    (first, energy), (second, _) = (balance(system, method, state, 0.04 / k, 50 * k) for k in (1, 2))
    assert np.all(np.diff(energy) < 0) and energy[-1] < 0.4 * energy[0]
    assert np.log2(first / second) == pytest.approx(2.0, abs=0.2) and second < 1e-4


def test_viscous_friction_stops_a_unicycle_exponentially_and_dry_friction_in_finite_time():
    ahead = [0.0, 1.0, 0.0]
    unicycle = models.unicycle(1.4, 0.6)
    state = unicycle.state(xi=[0.0, 1.2, 0.0])
    viscous = da.simulate(
        da.with_friction(unicycle, viscous=0.7, along=ahead), MIDPOINT, state, step=0.01, steps=200
    ).check()
    np.testing.assert_allclose(viscous.xi[:, 1], 1.2 * np.exp(-0.7 / 1.4 * np.asarray(viscous.t)), atol=1e-5)
    sticky = da.with_friction(unicycle, dry=0.7, along=ahead, width=1e-3)
    dry = da.simulate(sticky, MIDPOINT, state, step=0.01, steps=400).check()
    moving = np.asarray(dry.t) < 2.3  # v reaches 0 at t = 1.2 * 1.4/0.7 = 2.4
    np.testing.assert_allclose(dry.xi[moving, 1], 1.2 - 0.5 * np.asarray(dry.t)[moving], atol=1e-4)
    assert np.abs(dry.xi[-100:, 1]).max() < 1e-6


def test_controls_are_in_the_books_although_they_jump():
    """Torques held over each step: the balance of the accurate motion closes to the order of the quadrature, 4."""
    racer, push = PAIRS["roller-racer"][0], np.random.default_rng(0).normal(size=(40, 1))
    state = racer.state(xi=[-0.0, 0.4, 0.0, 0.0])
    left = [balance(racer, da.RungeKutta(), state, 0.1 / k, 40 * k, np.repeat(push, k, axis=0))[0] for k in (1, 2)]
    assert left[1] < 1e-5 and np.log2(left[0] / left[1]) > 3.5
    trajectory = da.simulate(racer, da.RungeKutta(), state, step=0.1, steps=40, controls=push, save_every=2)
    with pytest.raises(da.InvalidInput, match="save_every = 1"):
        da.diagnostics.work(trajectory, push)


@pytest.mark.heavy
@pytest.mark.parametrize("name", PAIRS)
def test_every_model_with_friction_balances(name):
    system = da.with_friction(PAIRS[name][0], viscous=0.05, dry=0.02, width=0.1)
    model = models.MODELS[name]
    g = system.group.exp(0.1 * jnp.ones(system.group.dim))
    scale = 0.1 if name == "rattleback" else 1.0
    state = system.state(g, system.project(g, scale * jnp.asarray(model.initial["velocity"])))
    h = 0.2 * model.step
    (first, energy), (second, _) = (balance(system, MIDPOINT, state, h / k, 100 * k) for k in (1, 2))
    assert energy[-1] < energy[0]
    assert np.log2(first / second) == pytest.approx(2.0, abs=0.3)


# -- steering -----------------------------------------------------------------------------------------------------------------------
def wave(x):
    """y = sin(x), followed to the right."""
    return x[1] - jnp.sin(x[0])


def ring(x):
    """The circle of radius 2 about the origin, followed counterclockwise."""
    return 4.0 - x @ x


def distances(path, trajectory):
    """F/|F'| along the run."""
    pose = trajectory.g[0] if isinstance(trajectory.g, tuple) else trajectory.g
    values, slopes = jax.vmap(jax.value_and_grad(path))(jnp.asarray(pose[:, :2, 2]))
    return np.abs(values / jnp.linalg.norm(slopes, axis=1))


def drive(loop, start, path, steps, step=0.02):
    """A closed loop from the pose `start` at rest in shape; the distances from the path."""
    group = loop.group
    g = group.element([start, *([0.0] * (len(group.factors) - 1))]) if len(group.factors) > 1 else group.element(start)
    state = loop.state(g, loop.project(g, jnp.zeros(group.dim).at[1].set(0.3)))
    trajectory = da.simulate(loop, MIDPOINT, state, step=step, steps=steps).check()
    return trajectory, distances(path, trajectory)


def test_a_car_comes_onto_a_winding_path_and_stays_on_it():
    trajectory, off = drive(
        models.car_on_path(models.car(1.4, 0.6, 1.2, 0.5, 0.2), wave, quickness=15.0), [0.4, 0.0, 0.8], wave, 800
    )
    assert off[0] > 0.5 and off[400:].max() < 5e-3
    np.testing.assert_allclose(trajectory.xi[200:, 1], 1.0, atol=1e-3)
    assert float(trajectory.g[0][-1, 0, 2]) > 10.0  # it went along


@pytest.mark.heavy
@pytest.mark.parametrize("path, start, tolerance", [(ring, [0.3, 2.6, 0.0], 1e-4), (wave, [0.4, 0.0, 0.8], 1e-4)])
def test_a_unicycle_follows_paths(path, start, tolerance):
    _, off = drive(models.unicycle_on_path(models.unicycle(1.4, 0.6, 0.3), path), start, path, 1500)
    assert off[0] > 0.5 and off[1000:].max() < tolerance


@pytest.mark.heavy
def test_a_car_on_a_ring_loses_its_distance_entirely_and_on_a_wave_up_to_the_lag_of_its_steering():
    car = models.car(1.4, 0.6, 1.2, 0.5, 0.2)
    _, off = drive(models.car_on_path(car, ring), [0.3, 2.6, 0.0], ring, 3000, 0.01)
    assert off[-1] < 1e-9
    slow, quick = (
        drive(models.car_on_path(car, wave, quickness=q), [0.4, 0.0, 0.8], wave, 2400, 0.01)[1][1400:].max()
        for q in (10.0, 20.0)
    )
    assert np.log2(slow / quick) == pytest.approx(2.0, abs=0.3)


@pytest.mark.heavy
@pytest.mark.parametrize("path, start, tolerance", [(ring, [1.6, 2.2, 0.0], 1e-5), (wave, [0.3, 0.0, 0.3], 2e-3)])
def test_a_snakeboard_pumps_itself_along_paths(path, start, tolerance):
    """It has no motor and starts almost at rest: the rotor drives it wherever the path bends."""
    trajectory, off = drive(models.snakeboard_on_path(models.snakeboard(), path), start, path, 3000)
    assert off[0] > 0.15 and off[2000:].max() < tolerance
    assert np.abs(trajectory.xi[2000:, 1] - 0.5).max() < 0.1


def swing(rotor_rate, wheel_rate, steps, step=0.01):
    """A snakeboard by a gait from rest, and its gait."""
    loop = models.snakeboard_gait(
        models.snakeboard(), rotor=0.7, wheels=0.7, rotor_rate=rotor_rate, wheel_rate=wheel_rate
    )
    state = loop.state(xi=[0.0, 0.0, 0.0, 0.7 * rotor_rate, 0.7 * wheel_rate])
    return da.simulate(loop, MIDPOINT, state, step=step, steps=steps).check(), loop.policy


def by_hand(gait, times):
    """(theta, x, y) of the board if its shape swings exactly: the momentum equation of Bloch et al. 1996 and the connection."""
    p = {key: float(value) for key, value in gait.p.items()}
    turning, driving = p["inertia"] + 2 * p["wheels"], p["mass"] * p["length"] ** 2
    A, B, ra, rb = (float(value) for value in (gait.rotor, gait.wheels, gait.rotor_rate, gait.wheel_rate))

    def field(t, y):
        b, db, dda = B * np.sin(rb * t), B * rb * np.cos(rb * t), -A * ra**2 * np.sin(ra * t)
        inertia = (turning + p["rotor"]) * np.sin(b) ** 2 + driving * np.cos(b) ** 2
        change = (turning + p["rotor"] - driving) * np.sin(b) * np.cos(b) * db * y[3] + p["rotor"] * np.sin(b) * dda
        ahead = p["length"] * y[3] * np.cos(b)
        return [y[3] * np.sin(b), ahead * np.cos(y[0]), ahead * np.sin(y[0]), -change / inertia]

    return solve_ivp(field, (0, times[-1]), np.zeros(4), "DOP853", times, rtol=1e-12, atol=1e-12).y[:3].T


def test_a_snakeboard_by_a_driving_gait():
    """The shape follows its gait, and the board goes where the momentum equation says."""
    trajectory, gait = swing(3.0, 3.0, 400)
    assert np.abs(trajectory.angles[:, 1:] - jax.vmap(gait.shape)(jnp.asarray(trajectory.t))).max() < 2e-4
    pose = np.column_stack([trajectory.angles[:, 0], trajectory.g[0][:, :2, 2]])
    assert np.abs(pose - by_hand(gait, np.asarray(trajectory.t))).max() < 2e-3
    assert pose[-1, 1] > 0.8 and abs(pose[-1, 2]) < 0.2


@pytest.mark.heavy
def test_gaits_turn_and_park_a_snakeboard():
    turned, _ = swing(6.0, 3.0, 2000)
    parked, _ = swing(6.0, 4.0, 2000)
    assert turned.angles[-1, 0] > 6.0 and np.abs(turned.g[0][:, :2, 2]).max() < 0.2
    assert parked.g[0][-1, 1, 2] > 0.6 and abs(parked.g[0][-1, 0, 2]) < 0.3 and abs(parked.angles[-1, 0]) < 0.5


# -- examples -----------------------------------------------------------------------------------------------------------------------
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.heavy
def test_the_examples_steer(capsys):
    off = runpy.run_path(str(EXAMPLES / "car.py"))["main"]()
    assert off[0] > 0.5 and off[400:].max() < 5e-3
    ridden = runpy.run_path(str(EXAMPLES / "snakeboard.py"))["main"]()
    assert abs(np.hypot(*ridden.g[0][-1, :2, 2]) - 1) < 1e-9
    assert "park sideways" in capsys.readouterr().out
