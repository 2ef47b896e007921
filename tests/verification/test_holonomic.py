"""Holonomic constraints against the same systems in fewer coordinates: orders, phi at round-off, energy, symplecticity,
reversibility.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import distance, flow, gap, sampled
from scipy.integrate import solve_ivp

import dalembert as da
from dalembert.models import MODELS

models = da.models
METHOD = da.LagrangeDAlembert()
TIME = 1.0


def accurate(system, state):
    """The end of the motion: Runge-Kutta with errors of 1e-12 (natively; SciPy's would wait for XLA)."""
    return flow(da.RungeKutta(), system, state, TIME / 2000, 2000)


def order(errors) -> float:
    """The slope of the last halving."""
    return float(np.log2(errors[-2] / errors[-1]))


# -- the same systems in fewer coordinates ----------------------------------------------------------------------------
MASSES, LENGTHS, GRAVITY = np.array([1.0, 0.6]), np.array([1.0, 0.8]), 9.81


def double_pendulum(time, angles, rates):
    """(angles, rates) of the double pendulum from the vertical, by DOP853 on its equations in two angles."""
    (m1, m2), (l1, l2) = MASSES, LENGTHS

    def field(t, y):
        a, b, u, v = y
        c, s = np.cos(a - b), np.sin(a - b)
        mass = [[(m1 + m2) * l1**2, m2 * l1 * l2 * c], [m2 * l1 * l2 * c, m2 * l2**2]]
        force = [
            -m2 * l1 * l2 * s * v**2 - (m1 + m2) * GRAVITY * l1 * np.sin(a),
            m2 * l1 * l2 * s * u**2 - m2 * GRAVITY * l2 * np.sin(b),
        ]
        return np.concatenate([[u, v], np.linalg.solve(mass, force)])

    return solve_ivp(field, (0, time), [*angles, *rates], "DOP853", rtol=1e-12, atol=1e-12).y[:, -1]


def hung(angles, rates):
    """(q, v) in the plane of the masses that hang at these angles."""
    rods = LENGTHS[:, None] * np.stack([np.sin(angles), -np.cos(angles)], axis=1)
    turns = (LENGTHS * rates)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.cumsum(rods, axis=0).ravel(), np.cumsum(turns, axis=0).ravel()


@cache
def chain():
    system = models.pendulum_chain(MASSES, LENGTHS, GRAVITY)
    q, v = hung(np.array([0.9, 1.4]), np.array([1.0, -0.7]))
    end = double_pendulum(TIME, [0.9, 1.4], [1.0, -0.7])
    return system, system.state(q, v), hung(end[:2], end[2:])


@cache
def skate():
    """On the sphere: Suslov's problem with gravity, whose inertia has the mass on the circle."""
    radius, mass, inertia = 1.3, 0.7, np.array([[0.3, 0.05, 0.02], [0.05, 0.4, -0.1], [0.02, -0.1, 0.5]])
    system = models.skate_on_ellipsoid([radius] * 3, mass, inertia, 2.0)
    whole = inertia + mass * radius**2 * np.diag([1.0, 1.0, 0.0])
    reduced = models.suslov(whole, normal=[1.0, 0.0, 0.0], weight=[0.0, 0.0, mass * 2.0 * radius])
    R = reduced.group.exp(jnp.array([0.4, 0.7, -0.3]))
    w = jnp.array([0.0, 0.9, -1.3])

    def lifted(R, w):
        g = jnp.eye(4).at[:3, :3].set(R).at[:3, 3].set(radius * R[:, 2])
        return g, jnp.concatenate([w, radius * jnp.stack([w[1], -w[0], 0.0 * w[0]])])

    end = accurate(reduced, reduced.state(R, w))
    return system, system.state(*lifted(R, w)), lifted(end.g, end.xi)


@cache
def sleighs():
    """The roller racer on SE(2) x SO(2)."""
    given = {"mass": 1.1, "inertia": 0.3, "rider": 0.4, "rider_inertia": 0.07, "front": 0.5, "arm": 0.3}
    system, racer = models.hinged_sleighs(**given), models.roller_racer(**given)
    group = da.SE2()

    def lifted(g, xi):
        """The second body is reached over the hinge."""
        turn = jnp.eye(3).at[:2, :2].set(g[1])
        reach = group.compose(group.exp(jnp.array([0.0, 0.5, 0.0])), turn)
        reach = group.compose(reach, group.exp(jnp.array([0.0, 0.3, 0.0])))
        carried = group.Ad(group.inverse(reach), xi[:3])
        swing = group.Ad(group.exp(jnp.array([0.0, -0.3, 0.0])), jnp.stack([xi[3], 0.0 * xi[3], 0.0 * xi[3]]))
        return (g[0], group.compose(g[0], reach)), jnp.concatenate([xi[:3], carried + swing])

    w, rate, angle = 0.4, -0.9, 0.8
    forward = (0.5 * w * np.cos(angle) + 0.3 * (w + rate)) / np.sin(angle)
    state = racer.state(racer.group.exp(jnp.array([0.3, 0.2, -0.1, angle])), [w, forward, 0.0, rate])
    end = accurate(racer, state)
    return system, system.state(*lifted(state.g, state.xi)), lifted(end.g, end.xi)


CASES = {"chain": chain, "skate": skate, "sleighs": sleighs}


def monitored(method, key, h, steps, start=None):
    system, state, _ = CASES[key]()
    start = state if start is None else start
    return da.simulate(system, method, start, step=h, steps=steps, save_every=steps, monitor=True).check()


def errors(method, key, counts):
    runs = [monitored(method, key, TIME / n, n) for n in counts]
    return [distance((run.last.g, run.last.xi), CASES[key]()[2]) for run in runs]


@pytest.mark.parametrize("key", sampled(["chain", "skate", "sleighs"]))
def test_order_2_phi_at_round_off_and_reversibility(key):
    """Against fewer coordinates; phi and the hidden constraint over 1e5 steps; steps of -h return."""
    found = errors(METHOD, key, (40, 80))
    assert order(found) == pytest.approx(2.0, abs=0.06)
    assert found[-1] < 5e-3
    peaks = monitored(METHOD, key, 0.02, 100_000).final.peaks
    assert float(np.max(peaks.holonomic)) < 2e-14 and float(peaks.constraint) < 1e-13
    assert float(peaks.energy_error) < 0.05 * (1 + abs(float(peaks.energy)))
    there = monitored(METHOD, key, 0.02, 50).last
    back = monitored(METHOD, key, -0.02, 50, there).last
    assert gap(back, CASES[key]()[1]) < 1e-11 and gap(there, back) > 0.1


@pytest.mark.parametrize("key", ["chain", pytest.param("sleighs", marks=pytest.mark.heavy)])
def test_composition_gives_order_4(key):
    method = da.Composition("yoshida-4")
    assert order(errors(method, key, (80, 160))) == pytest.approx(4.0, abs=0.15)
    assert float(np.max(monitored(method, key, 0.02, 50).final.peaks.holonomic)) < 1e-14


# -- symplecticity ----------------------------------------------------------------------------------------------------
@cache
def spherical():
    """The spherical pendulum, away from its equilibria."""
    system = models.pendulum_chain([0.7], [1.2], GRAVITY, dimension=3)
    return system, system.state(1.2 * np.array([0.6, 0.0, -0.8]), [0.8, 1.5, 0.6])


def symplectic_defect(method, steps=10, h=0.05) -> float:
    """max |J^T w J - w| on T*S^2: w(a, b) = dq_a . dp_b - dq_b . dp_a of tangent vectors carried along by the run."""
    system, state = spherical()
    n, frame = 3, np.linalg.svd(np.asarray(state.g)[None])[2][1:]

    def curve(direction):
        def problem(s):
            q = state.g + s * direction[:n]
            q = q * (1.2 / jnp.sqrt(q @ q))
            v = state.xi + s * direction[n:]
            v = v - q * (q @ v) / 1.2**2
            return system, da.State(state.t, q, v, 0.7 * v, v), jnp.asarray(h)

        return problem

    zero = np.zeros_like(frame)
    directions = np.concatenate([np.hstack([frame, zero]), np.hstack([zero, frame])])
    before, after = [], []
    for direction in directions:
        run = da.simulate(system, method, state, step=h, steps=steps, save_every=steps, tangents=curve(direction))
        moved = run.tangents.state
        before.append(np.concatenate([moved.g[0], moved.momentum[0]]))
        after.append(np.concatenate([moved.g[-1], moved.momentum[-1]]))
    J = np.block([[np.zeros((n, n)), np.eye(n)], [-np.eye(n), np.zeros((n, n))]])
    first, last = (np.array(each) @ J @ np.array(each).T for each in (before, after))
    assert np.linalg.svd(first, compute_uv=False)[-1] > 0.1  # the form is not degenerate on these vectors
    return float(np.abs(last - first).max() / np.abs(first).max())


@pytest.mark.parametrize(
    "method",
    [
        METHOD,
        *(
            pytest.param(m, marks=pytest.mark.heavy)
            for m in (da.LagrangeDAlembert(node=0.3), da.integrators.ProjectedRungeKutta())
        ),
    ],
    ids=str,
)
def test_holonomic_motion_is_symplectic_for_every_node_and_projection_is_not(method):
    defect = symplectic_defect(method)
    assert defect > 1e-7 if isinstance(method, da.integrators.ProjectedRungeKutta) else defect < 1e-12


# -- everything at once -----------------------------------------------------------------------------------------------
def _lagrangian(t, q, v, p):
    return 0.5 * v @ v * (1 + 0.2 * jnp.sin(t)) + 0.1 * q[0] * v[1] - 0.5 * q @ q


def _blade(t, q, p):
    return jnp.stack([-q[1], 0.3 * jnp.sin(t), 0.0 * t, jnp.ones_like(q[1])])[None]


def _sphere(t, q, p):
    """A sphere in the first three coordinates that drifts, and breathes from t = 0.4 on."""
    place = q[:3] - 0.1 * t * jnp.array([0.0, 0.0, 1.0])
    return (place @ place - 1.1 - p["breath"] * (1.0 - jnp.cos(2.0 * (t - 0.4))))[None]


def _force(t, q, v, u, p):
    return -0.2 * v + jnp.stack([jnp.sin(t), 0.0 * t, q[1], 0.0 * t])


@cache
def driven():
    """L, A, b, phi and F depend on time; phi with k = 1 beside an affine nonholonomic constraint."""
    system = da.System(
        da.Euclidean(4),
        _lagrangian,
        _blade,
        drift=lambda t, q, p: (0.4 * jnp.cos(t) + 0.2 * q[0])[None],
        force=_force,
        holonomic=_sphere,
        parameters={"breath": jnp.array(0.2)},
    )
    t, place = 0.4, np.array([0.7, 0.5, 0.6])
    q = [*(place + np.array([0.0, 0.0, 0.04])), 0.1]
    v = np.cross(place, [0.3, -0.7, 0.5]) + np.array([0.0, 0.0, 0.1])
    last = 0.4 * np.cos(t) + 0.2 * q[0] + q[1] * v[0] - 0.3 * np.sin(t) * v[1]
    return system, system.state(q, [*v, last], t=t)


def test_a_driven_system_with_both_kinds_of_constraints():
    system, state = driven()
    reference = accurate(system, state)
    found = [gap(flow(METHOD, system, state, TIME / n, n), reference) for n in (20, 40)]
    assert order(found) == pytest.approx(2.0, abs=0.06)
    run = da.simulate(system, METHOD, state, step=0.05, steps=100).check()
    assert run.holonomic_residual().max() < 1e-14 and run.constraint_residual().max() < 1e-13
    there = flow(METHOD, system, state, 0.1, 5)
    assert gap(flow(METHOD, system, there, -0.1, 5), state) < 2e-12


@pytest.mark.heavy
def test_the_adjoint_of_node_s_is_node_1_minus_s_on_phi_too():
    system, state = driven()
    there = flow(da.LagrangeDAlembert(node=0.3), system, state, 0.1, 5)
    back = flow(da.LagrangeDAlembert(node=0.7), system, there, -0.1, 5)
    assert gap(back, state) < 2e-12 and gap(flow(da.LagrangeDAlembert(node=0.3), system, there, -0.1, 5), state) > 1e-4


@pytest.mark.heavy
def test_lanes_and_tangents():
    """Every lane is its own run bit for bit, each with its own parameter of phi, and tangents are derivatives by it."""
    system, state = driven()

    def problem(s):
        return jax.tree.map(lambda leaf: leaf + s, system), state, jnp.asarray(0.05)

    members = [problem(s)[0] for s in (0.0, 1e-4, -1e-4)]
    lanes = da.ensemble(members, METHOD, state, step=0.05, steps=20).check()
    single = da.simulate(system, METHOD, state, step=0.05, steps=20, tangents=problem).check()
    np.testing.assert_array_equal(lanes.g[0], da.simulate(system, METHOD, state, step=0.05, steps=20).g)
    slope = (np.asarray(lanes.g[1]) - np.asarray(lanes.g[2])) / 2e-4
    np.testing.assert_allclose(single.tangents.state.g, slope, atol=1e-6)
    assert np.abs(slope[-1]).max() > 0.1 and float(lanes.holonomic_residual().max()) < 1e-14


def test_the_multipliers_are_the_tensions_of_the_rods():
    """At rest the weights below each rod; on a sphere m (|v|^2 - g z)/l, to second order at the node before."""
    system, _, _ = chain()
    q, v = hung(np.zeros(2), np.zeros(2))
    run = da.simulate(system, METHOD, system.state(q, v), step=0.02, steps=5, monitor=True).check()
    np.testing.assert_allclose(run.multipliers, np.tile([-GRAVITY * 1.6, -GRAVITY * 0.6], (6, 1)), rtol=1e-12)

    def off(h):
        run = da.simulate(*spherical()[:1], METHOD, spherical()[1], step=h, steps=round(0.5 / h)).check()
        tension = 0.7 * (np.sum(run.xi**2, axis=1) - GRAVITY * run.g[:, 2]) / 1.2
        return np.abs(run.multipliers[2:, 0] + tension[1:-1]).max()

    assert order([off(0.01), off(0.005)]) == pytest.approx(2.0, abs=0.1)


# -- long runs and larger steps ---------------------------------------------------------------------------------------
@pytest.mark.heavy
@pytest.mark.parametrize("key", CASES)
def test_a_million_steps(key):
    system, state, _ = CASES[key]()
    run = da.simulate(system, METHOD, state, step=0.01, steps=1_000_000, save_every=1000, monitor=True).check()
    peaks = run.final.peaks
    assert float(np.max(peaks.holonomic)) < 5e-14 and float(peaks.constraint) < 5e-13
    error = np.abs(np.asarray(run.energy_error()))
    assert error.max() < 0.05 * (1 + abs(float(peaks.energy)))
    if key != "sleighs":
        assert error[len(error) // 2 :].max() < 3 * error[: len(error) // 2].max()


DRIFTING = [
    da.RungeKutta(),
    da.integrators.ProjectedRungeKutta(),
    da.integrators.Lobatto(3),
    da.Leapfrog(),
    da.integrators.GeometricNonholonomic(),
    da.DiscreteGradient(),
]


@pytest.mark.heavy
@pytest.mark.parametrize("method", DRIFTING, ids=lambda method: method.name)
def test_other_methods_converge_and_keep_phi_up_to_their_order(method):
    wanted = 4 if isinstance(method, da.RungeKutta | da.integrators.ProjectedRungeKutta | da.integrators.Lobatto) else 2
    system, state, _ = sleighs()
    assert order(errors(method, "sleighs", (20, 40))) == pytest.approx(wanted, abs=0.1)
    off = [da.simulate(system, method, state, step=TIME / n, steps=n).holonomic_residual().max() for n in (20, 40)]
    if isinstance(method, da.integrators.ProjectedRungeKutta):
        assert max(off) < 1e-14
    else:
        assert order(off) == pytest.approx(wanted, abs=0.3)


@pytest.mark.heavy
def test_small_steps_from_rest_converge():
    """Near rest the round-off of phi(g)/h is larger than that of the velocity: Newton's method has to see that."""
    model = MODELS["pendulum-chain"]
    chain = model.make(model.example)
    start = chain.state(chain.group.configuration(model.initial["configuration"]), np.zeros(chain.group.dim))
    run = da.simulate(chain, da.Composition("kahan-li-8"), start, step=0.001, steps=20).check()
    assert np.abs(run.energy_error()).max() < 1e-12
