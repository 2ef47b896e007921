"""Nonholonomic leapfrog and geometric nonholonomic integrators: their definition, order, reversibility and D."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import CAYLEY, EXPONENTIAL, case, distance, flow, gap

import dalembert as da
from dalembert.analysis.order import convergence

LEAPFROG, GNI = da.Leapfrog(), da.integrators.GeometricNonholonomic()


# -- systems with a mass matrix M(q) ----------------------------------------------------------------------------------
def _curved_lagrangian(t, q, v, p):
    x, y, z = q
    mass = jnp.array([[1.5 + y * y, 0.3 * jnp.sin(z), 0.0], [0.3 * jnp.sin(z), 2 + jnp.cos(x), 0.2], [0.0, 0.2, 1.3]])
    return 0.5 * v @ mass @ v - 0.5 * x * x - jnp.cos(y) - 0.25 * z**4


def _curved_constraint(t, q, p):
    return jnp.stack([-q[1], 0.3 * jnp.sin(q[0]), jnp.ones_like(q[1])])[None]


def curved():
    """A particle in R^3 with a full mass matrix M(q)."""
    system = da.System(da.Euclidean(3), _curved_lagrangian, _curved_constraint)
    q = jnp.array([0.3, 0.5, -0.2])
    return system, system.state(q, system.project(q, [1.1, 0.7, 0.5]))


def _arm_lagrangian(t, q, v, p):
    bend = jnp.cos(q[0] - q[1])
    kinetic = (
        v[0] ** 2 + 0.5 * v[1] ** 2 + bend * v[0] * v[1] + 0.5 * (1.2 + 0.4 * jnp.sin(q[1])) * (v[2] ** 2 + v[3] ** 2)
    )
    return kinetic + 2 * jnp.cos(q[0]) + jnp.cos(q[1]) - 0.5 * q[2] ** 2 + 0.3 * v[2] * q[3]


def _arm_constraint(t, q, p):
    zero = jnp.zeros_like(q[0])
    return jnp.stack(
        [jnp.stack([jnp.sin(q[2]), zero, zero + 1.0, q[0]]), jnp.stack([zero, zero - 0.4, q[1], zero + 1.0])]
    )


def arm():
    """A double pendulum coupled to a slide by two constraints, in R^4, with a term linear in the velocity (a magnetic
    field).
    """
    system = da.System(da.Euclidean(4), _arm_lagrangian, _arm_constraint)
    q = jnp.array([0.6, -0.4, 0.3, 0.2])
    return system, system.state(q, system.project(q, [0.9, -0.5, 0.4, 0.3]))


@cache
def take(key):
    return {"curved": curved, "arm": arm}[key]() if key in ("curved", "arm") else case(key)


def _along(run, function):
    return [np.asarray(values) for values in jax.jit(jax.vmap(function))(run.t, run.g)]


# -- the definition ---------------------------------------------------------------------------------------------------
def test_the_leapfrog_is_that_of_mclachlan_and_perlmutter():
    """q+ - 2q + q- = h^2 (F + A^T l), A(q)(q+ - q-) = 0, v = (q+ - q-)/2h and v_{1/2} = v_0 + (h/2)(F + A^T l_0),
    explicitly.
    """
    system, h = da.models.pendulum_cvt(0.3), 0.1
    state = system.state([1.0, 0.0, 0.0], [0.3, 0.0, 2.0])
    run = da.simulate(system, LEAPFROG, state, step=h, steps=50).check()
    q, v, reaction = (np.asarray(values) for values in (run.g, run.xi, run.multipliers))
    force, rows = _along(run, lambda t, x: (system.L_g(t, x, jnp.zeros(3)), system.A(t, x)[0]))
    second = q[2:] - 2 * q[1:-1] + q[:-2]
    assert np.abs(second - h * h * (force + rows * reaction)[1:-1]).max() < 1e-14
    assert np.abs(np.einsum("ki,ki->k", rows[1:-1], q[2:] - q[:-2])).max() < 1e-15
    assert np.abs(v[1:-1] - (q[2:] - q[:-2]) / (2 * h)).max() < 1e-13
    assert np.abs((q[1] - q[0]) / h - v[0] - h / 2 * (force[0] + rows[0] * reaction[0])).max() < 1e-13
    np.testing.assert_allclose(reaction[0], jax.jit(system.multipliers)(0.0, q[0], v[0]), rtol=1e-13)
    assert not np.asarray(run.iterations).any()


def _heavy_lagrangian(t, q, v, p):
    return 0.5 * v @ p["mass"] @ v - 0.5 * q @ q - jnp.cos(q[0] * q[2])


def test_any_constant_mass_keeps_the_leapfrog_explicit_and_an_affine_constraint_moves_the_mirror():
    mass = np.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.2], [0.1, -0.2, 1.0]])
    system = da.System(
        da.Euclidean(3),
        _heavy_lagrangian,
        _curved_constraint,
        parameters={"mass": jnp.asarray(mass)},
        drift=lambda t, q, p: jnp.stack([0.4 + 0.2 * q[0] + 0.1 * jnp.sin(t)]),
    )
    start, h = jnp.array([0.3, 0.5, -0.2]), 0.05
    run = da.simulate(
        system, LEAPFROG, system.state(start, system.project(start, [1.1, 0.7, 0.5])), step=h, steps=40
    ).check()
    q, t = np.asarray(run.g), np.asarray(run.t)
    force, rows, drift = _along(
        run, lambda t, x: (system.L_g(t, x, jnp.zeros(3)), system.A(t, x)[0], system.b(t, x)[0])
    )
    reaction = rows * np.asarray(run.multipliers)
    assert not np.asarray(run.iterations).any() and t[-1] == pytest.approx(2.0)
    assert np.abs((q[2:] - 2 * q[1:-1] + q[:-2]) @ mass - h * h * (force + reaction)[1:-1]).max() < 1e-14
    slip = np.einsum("ki,ki->k", rows[1:-1], q[2:] - q[:-2]) / (2 * h) - drift[1:-1]
    assert np.abs(slip).max() < 1e-13


@pytest.mark.parametrize("key", ["curved", pytest.param("heavy_suslov", marks=pytest.mark.heavy)])
def test_the_leapfrog_is_the_geometric_integrator_of_node_0(key):
    system, state = take(key)
    ours = da.simulate(system, LEAPFROG, state, step=0.1, steps=10).check()
    general = da.simulate(system, da.integrators.GeometricNonholonomic(CAYLEY, 0.0), state, step=0.1, steps=10).check()
    assert distance((ours.g, ours.xi), (general.g, general.xi)) < 1e-13
    assert distance(ours.multipliers, general.multipliers) < 1e-11


def _midpoint(group, q0, q1, h):
    return 0.5 * (q0 + q1), (q1 - q0) / h


def test_any_discrete_lagrangian_may_be_given():
    system, state = take("driven")
    pair = da.mechanics.from_difference(system, _midpoint, node=0.5)
    ours = flow(da.integrators.GeometricNonholonomic(pair=pair), system, state, 0.1, 10)
    assert gap(ours, flow(GNI, system, state, 0.1, 10)) < 1e-12


@pytest.mark.heavy
def test_without_constraints_it_is_the_variational_integrator():
    system, state = take("heavy_top")
    ours = flow(GNI, system, state, 0.1, 20)
    assert gap(ours, flow(da.LagrangeDAlembert(CAYLEY, 0.5), system, state, 0.1, 20)) < 1e-12


@pytest.mark.parametrize("key", ["curved", pytest.param("heavy_suslov", marks=pytest.mark.heavy)])
def test_p_minus_is_p_plus_reflected_in_d(key):
    """P* p^- = P* p^+ and Q* p^- = -Q* p^+ with the projectors of the metric, from L_d by differentiation."""
    system, state = take(key)
    g0, g1, g2 = da.simulate(system, GNI, state, step=0.1, steps=2).check().g
    pair = da.mechanics.from_difference(system, da.mechanics.FiniteDifference(CAYLEY, 0.5))

    @jax.jit
    def momenta(a, b, c):
        return pair.D2(0.0, a, b, 0.1), -pair.D1(0.1, b, c, 0.1), system.A(0.1, b), system.metric(0.1, b, jnp.zeros(3))

    arriving, leaving, rows, metric = map(np.asarray, momenta(g0, g1, g2))
    onto = np.linalg.solve(metric, rows.T) @ np.linalg.solve(rows @ np.linalg.solve(metric, rows.T), rows)  # Q
    assert np.abs(onto.T @ (leaving + arriving)).max() < 1e-12
    assert np.abs((np.eye(3) - onto).T @ (leaving - arriving)).max() < 1e-12
    assert np.abs(onto.T @ leaving).max() > 1e-3  # the reaction is there


# -- order ------------------------------------------------------------------------------------------------------------
ORDERS = [
    ("particle", LEAPFROG),
    ("driven", LEAPFROG),
    ("curved", LEAPFROG),
    ("quartic", GNI),
    ("heavy_suslov", GNI),
]
SLOW = [
    *[(key, method) for key in ("particle", "driven", "curved", "arm", "quartic") for method in (LEAPFROG, GNI)],
    *[(key, method) for key in ("heavy_suslov", "ball", "knife_edge", "suslov") for method in (LEAPFROG, GNI)],
    ("heavy_suslov", da.integrators.GeometricNonholonomic(EXPONENTIAL, 0.2)),
    ("sleigh", da.integrators.GeometricNonholonomic(CAYLEY, 0.3)),
    ("ball", da.Leapfrog(EXPONENTIAL)),
]


def name(value):
    return value if isinstance(value, str) else f"{value.name}{getattr(value, 'node', '')}"


def _second_order(key, method, exact=None):
    system, state = take(key)
    found = convergence(system, method, state, duration=0.8, counts=(16, 32, 64, 128), exact=exact)
    for quantity in found.norms:
        assert found.order(quantity) == pytest.approx(2.0, abs=0.12), (quantity, found.norms[quantity])
    assert "multipliers" in found.norms


@pytest.mark.parametrize("key, method", ORDERS, ids=name)
def test_positions_velocities_energy_and_multipliers_are_of_second_order(key, method):
    """Against its own finer runs, which is fast to compile; `test_second_order_on_every_system` compares with the
    motion.
    """
    _second_order(key, method, exact="richardson")


@pytest.mark.heavy
@pytest.mark.parametrize("key, method", SLOW, ids=name)
def test_second_order_on_every_system(key, method):
    _second_order(key, method)
    system, state = take(key)
    assert da.analysis.reversibility(system, method, state, step=0.1, steps=20) < 1e-13


def test_an_unsymmetric_lagrangian_gives_neither_second_order_nor_reversibility():
    system, state = take("driven")
    method = da.integrators.GeometricNonholonomic(
        pair=da.mechanics.from_difference(system, lambda _, q0, q1, h: (q0, (q1 - q0) / h), node=0.0)
    )
    found = convergence(system, method, state, duration=0.8, counts=(16, 32, 64), exact="richardson")
    assert found.order("configuration") == pytest.approx(1.0, abs=0.15)
    assert da.analysis.reversibility(system, method, state, step=0.1, steps=20) > 1e-3


# -- reversibility and D ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key, method", ORDERS, ids=name)
def test_steps_back_undo_steps_forward_and_v_stays_in_d(key, method):
    system, state = take(key)
    assert da.analysis.reversibility(system, method, state, step=0.1, steps=200) < 1e-11
    run = da.simulate(system, method, state, step=0.1, steps=200).check()
    assert np.max(run.constraint_residual()) < 1e-14 * (1 + np.abs(run.xi).max() ** 2)


def test_a_restart_from_a_state_alone_is_not_the_way_back():
    """The carry holds a momentum off D that the state does not show: p^- = L_v + (h/2) A^T l with the discrete l."""
    system, state = take("driven")
    there = flow(LEAPFROG, system, state, 0.1, 20)
    assert 1e-7 < gap(flow(LEAPFROG, system, there, -0.1, 20), state) < 1e-2
    assert da.analysis.reversibility(system, LEAPFROG, state, step=0.1, steps=20) < 1e-13
    assert da.analysis.reversibility(system, da.RungeKutta(), state, step=0.1, steps=20) > 1e-8


def _speed_limit(t, q, v, p):
    return jnp.stack([v[0] ** 2 + v[1] ** 2 - (1.0 + q[2] ** 2)])


def test_a_constraint_that_is_not_linear_in_the_velocity():
    system = da.mechanics.NonlinearSystem(da.Euclidean(3), lambda t, q, v, p: 0.5 * v @ v - 0.5 * q @ q, _speed_limit)
    q = jnp.array([0.3, 0.5, -0.2])
    state = system.state(q, system.project(q, [0.8, 0.7, 0.5]))
    found = convergence(system, LEAPFROG, state, duration=0.8, counts=(16, 32, 64), exact="richardson")
    assert found.order("configuration") == pytest.approx(2.0, abs=0.12)
    assert da.analysis.reversibility(system, LEAPFROG, state, step=0.05, steps=40) < 1e-12


# -- where they fail --------------------------------------------------------------------------------------------------
def test_they_fail_on_a_body_whose_motion_contracts_phase_volume():
    """heavy_suslov: all energy comes and goes in 5000 units of time, exactly on D and exactly reversibly."""
    system, state = take("heavy_suslov")
    run = da.simulate(system, GNI, state, step=0.1, steps=50_000, save_every=10).check()
    assert np.abs(run.energy_error()).max() > 1.0
    assert np.max(run.constraint_residual()) < 1e-14


@pytest.mark.heavy
@pytest.mark.parametrize("method", [LEAPFROG, GNI], ids=name)
def test_the_alternating_error_of_the_multipliers_grows_as_fast_as_phase_volume_shrinks(method):
    """l_k = l + (-1)^k c, and c'/c = -div of the reduced motion: near a Suslov body's stable rotation 0.3628."""
    system, state = case("suslov")
    run = da.simulate(system, method, state, step=0.05, steps=400).check()
    continuous = jax.jit(jax.vmap(system.multipliers))(run.t, run.g, run.xi)
    t, error = np.asarray(run.t), np.asarray(run.multipliers - continuous)[:, 0]
    late = slice(200, None)
    assert (np.sign(error[late][1:]) == -np.sign(error[late][:-1])).all()
    growth = np.polyfit(t[late], np.log(np.abs(error[late])), 1)[0]
    basis, inertia = system.subspace, system.inertia

    def reduced(m):
        xi = basis @ jnp.linalg.solve(basis.T @ inertia @ basis, m)
        return basis.T @ system.group.ad_star(xi, inertia @ xi)

    shrinking = -float(jnp.trace(jax.jacfwd(reduced)(basis.T @ inertia @ run.xi[300])))
    assert growth == pytest.approx(shrinking, rel=0.01) and growth > 0.3
    keeps = da.simulate(system, da.LagrangeDAlembert(CAYLEY, 0.5), state, step=0.05, steps=4000).check()
    loses = da.simulate(system, method, state, step=0.05, steps=4000).check()
    assert np.abs(keeps.energy_error()).max() < 2e-4 < 1.0 < np.abs(loses.energy_error()).max()
