"""jimenez-scheurle 2015 on R^n: every form of its integrators against its (corrected) equations, the orders, the
continuous side.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rn
from registry import sampled
from rn import largest, velocity_form

import dalembert as da
from dalembert.analysis.order import (
    ExactConstraint,
    consistency_order,
    constraint_order,
    exact_flow,
    solve_shooting,
)

H = 0.1


def take(system, method, state, steps=3, h=H):
    return da.simulate(system, method, state, step=h, steps=steps).check()


# -- the continuous side ----------------------------------------------------------------------------------------------
@jax.jit
def _parts(system, q, v):
    mixed = jax.jvp(lambda q: system.momentum(0.0, q, v), (q,), (v,))[1]
    phi = lambda q, v: system.residual(0.0, q, v)
    return (
        system.metric(0.0, q, v),
        system.L_g(0.0, q, v) - mixed,
        jax.jacfwd(phi, 0)(q, v),
        jax.jacfwd(phi, 1)(q, v),
        system.acceleration(0.0, q, v),
    )


def check_reaction(system, q, v):
    """(23) and (95) in NumPy: l = -C (<phi_q, v> + <phi_v, f_v>) with C = (phi_v m^-1 phi_v^T)^-1."""
    mass, force, by_q, by_v, (rate, multipliers) = jax.tree.map(np.asarray, _parts(system, q, v))
    free = np.linalg.solve(mass, force)
    C = np.linalg.inv(by_v @ np.linalg.solve(mass, by_v.T))
    expected = -C @ (by_q @ np.asarray(v) + by_v @ free)
    np.testing.assert_allclose(multipliers, expected, atol=1e-13)
    np.testing.assert_allclose(rate, free + np.linalg.solve(mass, by_v.T @ expected), atol=1e-13)


def test_the_motion_is_the_ode_on_D_of_proposition_2_1():
    system, state = rn.SYSTEMS["curved"]()
    check_reaction(system, state.g, state.xi)


@pytest.mark.heavy
def test_adapted_coordinates_solve_the_same_motion():
    """(26)-(29), (46): psi is a chart of D, its slope is tangent to D, and its field is the motion."""
    system, state = rn.SYSTEMS["followers"]()
    chart = da.mechanics.ehresmann(system, state)
    z = chart.coordinates(state.g, state.xi)

    @jax.jit
    def geometry(z):
        q, v = chart.lift(z)
        slope = chart.slope(z)
        normal = jax.jacfwd(lambda x: system.residual(0.0, *jnp.split(x, 2)))(jnp.concatenate([q, v]))
        motion = jnp.concatenate([v, system.acceleration(0.0, q, v)[0]])
        other = v + jnp.arange(1.0, 5.0)
        parts = chart.horizontal(0.0, q, other), chart.vertical(0.0, q, other)
        off = system.residual(0.0, q, parts[0]), parts[0] + parts[1] - other, parts[1][jnp.array(chart.base)]
        return (q - state.g, v - state.xi), normal @ slope, slope @ chart.field(0.0, z) - motion, off

    assert max(largest(leaf) for leaf in jax.tree.leaves(geometry(z))) < 1e-13
    assert len(chart.base) == 2 and set(chart.base) | set(chart.fibre) == set(range(4))


# -- the integrators --------------------------------------------------------------------------------------------------
def nodes_of(run, node):
    """q_k and q_{k+1} around each redefined node (q~, v)."""
    q, v = np.asarray(run.g), np.asarray(run.xi)
    return q - node * H * v, q + (1 - node) * H * v


def test_position_form():
    """(59) with M(q) and m = 2: D1 L_d + D2 L_d = -h mu^T l at the nodes, mu(q~) v = 0, L_d written out here."""
    system, state = rn.SYSTEMS["followers"]()

    def L_d(a, b, node):
        return H * system.L(0.0, (1 - node) * a + node * b, (b - a) / H)

    @jax.jit
    def balance(a, b, c, multipliers, node):
        return jax.grad(L_d, 0)(b, c, node) + jax.grad(L_d, 1)(a, b, node) + H * system.A(0.0, b).T @ multipliers

    for node in (0.0, 0.3, 1.0):
        run = take(system, velocity_form(node), state)
        first, last = nodes_of(run, node)
        np.testing.assert_allclose(last[:-1], first[1:], atol=1e-14)
        for k in range(3):
            assert largest(balance(first[k], first[k + 1], last[k + 1], run.multipliers[k + 1], node)) < 1e-13
        assert largest(run.constraint_residual()) < 1e-14


def simple_parts(system):
    """(M, -grad V, mu) of a simple mechanical system with constant M, as functions on NumPy arrays."""
    at = lambda q: _parts(system, jnp.asarray(q), jnp.zeros(3))
    return np.asarray(at(np.zeros(3))[0]), lambda q: np.asarray(at(q)[1]), lambda q: np.asarray(at(q)[3])


def test_velocity_form_is_the_corrected_76():
    """(76) with constant M and eps before the reaction in (76c), solved here in its own unknowns."""
    system, state = rn.SYSTEMS["anharmonic"]()
    run = take(system, velocity_form(0.5), state, steps=1)
    q, v = np.asarray(state.g), np.asarray(state.xi)
    mass, force, rows = simple_parts(system)
    v1, multipliers = np.asarray(run.xi[1]), np.asarray(run.multipliers[1])
    half = q + H / 2 * v
    q1 = half + H / 2 * v1
    kick = H / 2 * (force(q1) + force(q))
    np.testing.assert_allclose(run.g[1], q1, atol=1e-15)
    np.testing.assert_allclose(mass @ (v1 - v), kick + H * rows(half).T @ multipliers, atol=1e-14)
    assert largest(mass @ (v1 - v) - kick - rows(half).T @ multipliers) > 0.1  # as printed


def test_velocity_form_is_71_with_the_explicit_multipliers_72():
    system, state = rn.SYSTEMS["anharmonic"]()
    run = take(system, velocity_form(0.0), state, steps=1)
    mass, force, rows_at = simple_parts(system)
    q1 = np.asarray(state.g) + H * np.asarray(state.xi)
    free = np.asarray(state.xi) + H * np.linalg.solve(mass, force(q1))
    rows = rows_at(q1)
    multipliers = -np.linalg.solve(rows @ np.linalg.solve(mass, rows.T), rows @ free) / H
    np.testing.assert_allclose(run.multipliers[1], multipliers, atol=1e-12)
    np.testing.assert_allclose(run.xi[1], free + H * np.linalg.solve(mass, rows.T @ multipliers), atol=1e-14)


@pytest.mark.heavy
def test_ehresmann_form():
    """The velocity form in (q, v^a), corrected: n unknowns and no multipliers among them, M(q), m = 2."""
    system, state = rn.SYSTEMS["followers"]()
    chart = da.mechanics.ehresmann(system, state)
    step = jax.jit(lambda z, node: chart.velocity_step(z, H, node))
    for node in (0.0, 0.3, 1.0):
        run = take(system, velocity_form(node), state)
        z = chart.coordinates(state.g, state.xi)
        for k in range(3):
            z, multipliers = step(z, node)
            np.testing.assert_allclose(z, chart.coordinates(run.g[k + 1], run.xi[k + 1]), atol=1e-14)
            np.testing.assert_allclose(multipliers, run.multipliers[k + 1], atol=2e-12)


@pytest.mark.heavy
def test_the_forms_are_one_method_after_the_shift_of_the_start():
    """Velocity and deformed nodes of one sequence q_k: (q~, v) and (q_{k+1}, v)."""
    system, state = rn.SYSTEMS["curved"]()
    velocity = take(system, velocity_form(0.3), state)
    _, last = nodes_of(velocity, 0.3)
    shifted = state._replace(g=jnp.asarray(last[0]), t=state.t + 0.7 * H)
    deformed = take(system, velocity_form(0.3, "deformed"), shifted)
    np.testing.assert_allclose(deformed.g, last, atol=1e-14)
    np.testing.assert_allclose(deformed.xi, velocity.xi, atol=1e-14)
    np.testing.assert_allclose(deformed.multipliers[1:], velocity.multipliers[1:], atol=1e-12)
    np.testing.assert_allclose(
        velocity_form(0.3, "deformed").reaction_time(deformed.t, H)[1:], velocity.t[:-1] + 0.7 * H, atol=1e-15
    )


# -- deformed constraints ---------------------------------------------------------------------------------------------
def on_deformed(eps):
    """Data with v_z = y v_x - (eps/2) v_x v_y."""
    system, state = rn.particle()
    v = jnp.array([1.1, 0.7, 1.1 * (0.5 - eps / 2 * 0.7)])
    return system, state._replace(xi=v, momentum=v, increment=v)


def step_89(q, v, eps):
    """(89) of the paper, in closed form."""
    multiplier = v[1] * v[0] / (1 + q[1] * (q[1] + eps / 2 * v[1]))
    v = v + eps * multiplier * np.array([-q[1], 0.0, 1.0])
    return q + eps * v, v, multiplier


def test_original_nodes_keep_the_deformed_constraint():
    """(87)-(89): the closed form, and (88) = the `deformed` system = `perturbed` with g = v_x v_y/2 and delta = eps."""
    system, state = on_deformed(H)
    run = take(system, velocity_form(0.5, "deformed"), state)
    q, v = np.asarray(state.g), np.asarray(state.xi)
    bent = da.mechanics.deform_constraint(system, da.mechanics.FiniteDifference(node=0.5), H)
    same = da.mechanics.perturb_constraint(system, lambda t, q, v: 0.5 * jnp.stack([v[0] * v[1]]), H)
    for k in range(3):
        q, v, multiplier = step_89(q, v, H)
        np.testing.assert_allclose(run.g[k + 1], q, atol=1e-14)
        np.testing.assert_allclose(run.xi[k + 1], v, atol=1e-14)
        np.testing.assert_allclose(run.multipliers[k + 1], [multiplier], atol=1e-12)
        assert largest(bent.residual(0.0, q, v)) < 1e-15 and largest(same.residual(0.0, q, v)) < 1e-15
    assert largest(run.constraint_residual()) == pytest.approx(H / 2 * v[0] * v[1], rel=0.2)  # off D itself


def test_data_on_D_halve_the_first_multiplier_of_the_deformed_nodes():
    """An erratum: only data on D_eps start (89) with the right reaction; from D the local error of v is O(eps)."""
    system, state = rn.particle()
    eps = 1e-3
    wrong = take(system, velocity_form(0.5, "deformed"), state, steps=1, h=eps)
    truth = float(system.multipliers(0.0, state.g, state.xi)[0])
    assert float(wrong.multipliers[1, 0]) == pytest.approx(truth / 2, rel=2e-3)
    right = take(*(lambda s, x: (s, velocity_form(0.5, "deformed"), x))(*on_deformed(eps)), steps=1, h=eps)
    assert float(right.multipliers[1, 0]) == pytest.approx(truth, rel=2e-3)


def test_perturbed_constraint_obeys_95():
    """(93)-(95) written out, and the original motion as delta -> 0."""
    system, state = rn.SYSTEMS["curved"]()
    bump = lambda t, q, v: jnp.stack([v[0] * v[1] + q[2] * v[2] ** 2])
    bent = da.mechanics.perturb_constraint(system, bump, 0.2)
    check_reaction(bent, state.g, state.xi)  # the formulas hold off the constraint too
    straight = jax.tree.map(lambda leaf: 0.0 * leaf, bent)  # its only parameter is delta
    np.testing.assert_allclose(
        _parts(straight, state.g, state.xi)[4][0], _parts(system, state.g, state.xi)[4][0], atol=1e-13
    )


# -- nonlinear and time-dependent constraints -------------------------------------------------------------------------
G, C, RATE = 9.81, 2.0, 0.5


def _falling(t, q, v, p):
    return 0.5 * v @ v - G * q[1]


def _speed(t, q, v, p):
    return jnp.stack([v @ v - (C + p["rate"] * t) ** 2])


def steady(rate):
    """A particle that falls with the prescribed speed C + rate t: phi(t, v) = |v|^2 - (C + rate t)^2."""
    return da.mechanics.NonlinearSystem(da.Euclidean(2), _falling, _speed, parameters={"rate": jnp.asarray(rate)})


def steady_exact(t, rate):
    """The angle theta of the velocity solves theta' = -(g/speed) cos(theta)."""
    angle = -G / rate * np.log1p(rate * t / C) if rate else -G * t / C
    return (C + rate * t) * np.array([1 / np.cosh(angle), np.tanh(angle)])


def test_time_dependent_nonlinear_constraint():
    """Theorem 2.1 on an exact solution; the discrete principle keeps phi = 0 to round-off and is of order 2 at node
    1/2.
    """
    system = steady(RATE)
    state = system.state([0.0, 0.0], [C, 0.0])
    T = 0.5
    run = da.simulate(system, da.integrators.Reference(), state, step=T / 2, steps=2).check()
    np.testing.assert_allclose(run.xi[-1], steady_exact(T, RATE), atol=1e-12)
    assert largest(run.constraint_residual()) < 1e-12
    errors = []
    for n in (20, 40):
        run = da.simulate(system, velocity_form(0.5), state, step=T / n, steps=n).check()
        errors.append(largest(run.xi[-1] - steady_exact(T, RATE)))
        assert largest(run.constraint_residual()) < 1e-14
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.1)
    power = 0.5 * float(run.xi[-1] @ run.xi[-1]) + G * float(run.g[-1, 1])  # the constraint does work
    assert abs(power - 0.5 * C**2) > 0.1


def test_appell_hamel():
    """z' = -a |(x', y')|: the horizontal direction is kept and the acceleration is uniform (Appell 1911)."""
    a = 0.7
    system = da.mechanics.NonlinearSystem(
        da.Euclidean(3),
        lambda t, q, v, p: 0.5 * v @ v - G * q[2],
        lambda t, q, v, p: jnp.stack([v[2] + a * jnp.sqrt(v[0] ** 2 + v[1] ** 2)]),
    )
    v = jnp.array([0.6, 0.8, -a])
    state = system.state(jnp.zeros(3), v)
    run = da.simulate(system, da.RungeKutta(), state, step=0.1, steps=10).check()
    speed, gain = np.hypot(*np.asarray(v[:2])), a * G / (1 + a * a)
    expected = np.array([*np.asarray(v[:2]) / speed * (speed + gain), -a * (speed + gain)])
    np.testing.assert_allclose(run.xi[-1], expected, rtol=1e-12)


# -- the exact discrete constraint ------------------------------------------------------------------------------------
@pytest.mark.parametrize("node, order", [(0.5, 2), (0.0, 1)])
def test_distance_from_the_exact_discrete_constraint(node, order):
    """Remark 5.4: D_d of the node 1/2 is within O(h^3) of D_d^E, others within O(h^2)."""
    system, state = rn.particle("harmonic")
    measured = constraint_order(
        da.mechanics.from_difference(system, da.mechanics.FiniteDifference(node=node)), state, steps=(0.05, 0.025)
    )
    assert measured.order == pytest.approx(order, abs=0.1), measured


def test_shooting_decides_membership():
    """A pair joined by the motion is in D_d^E, with the velocity that joins it; a pair of the midpoint D_d is off by
    O(h^2).
    """
    system, state = rn.particle()
    aim = jax.jit(lambda g1: solve_shooting(system, 0.0, state.g, g1, H))
    exact, _ = da.models.exact_particle(H, state.g, state.xi)
    hit = aim(jnp.asarray(exact))
    assert bool(hit.converged)
    np.testing.assert_allclose(hit.xi, state.xi, atol=1e-13)
    assert largest(hit.phi) < 1e-13
    miss = aim(jnp.asarray(exact) + jnp.array([0.0, 0.0, 1e-3]))
    assert float(miss.phi[0]) == pytest.approx(1e-3 / H, rel=0.05)


# -- orders -----------------------------------------------------------------------------------------------------------
def check_orders(name, node, steps):
    system, state = rn.SYSTEMS[name]()
    found = consistency_order(system, velocity_form(node), state, steps=steps)
    p = 2 if node == 0.5 else 1
    assert found.ps == pytest.approx((p, 0), abs=0.15), found
    assert found.at_node == pytest.approx(p - 1, abs=0.15), found  # the stamp of the node: (2, 1) at beta = 1/2
    assert found.rebuilt == pytest.approx(p, abs=0.2), found  # Remark 4.3


@pytest.mark.parametrize("node", sampled([0.5, 0.0]))
def test_orders_with_a_mass_matrix_that_varies(node):
    """Propositions 6.1 and 6.2 beyond constant M: (1, 0) and (2, 0)."""
    check_orders("curved", node, (0.016, 0.008, 0.004))


@pytest.mark.heavy
@pytest.mark.parametrize("node", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("name", rn.SYSTEMS)
def test_orders_on_five_nonlinear_systems(name, node):
    check_orders(name, node, (0.004, 0.002, 0.001))


@pytest.mark.heavy
@pytest.mark.parametrize("node", [0.0, 0.5])
@pytest.mark.parametrize("name", rn.SYSTEMS)
def test_D_is_kept_for_a_million_steps(name, node):
    system, state = rn.SYSTEMS[name]()
    run = da.simulate(
        system, velocity_form(node), state, step=0.01, steps=10**6, save_every=10**5, monitor=True
    ).check()
    scale = (1 + largest(run.xi)) * (1 + largest(run.g))  # A(q~) v sees the rounding of q~
    assert float(run.final.peaks.constraint) < 2e-15 * scale, float(run.final.peaks.constraint)


@pytest.mark.heavy
def test_the_exact_discrete_constraint_as_a_discretisation():
    """D_d^E passes the axioms of a discrete constraint for a free system, and its distance from itself is round-off."""
    system, state = rn.particle()
    pair = da.mechanics.Discretisation(
        system,
        da.mechanics.from_difference(system, da.mechanics.FiniteDifference(node=0.5)).lagrangian,
        ExactConstraint(),
    )
    da.mechanics.check_discretisation(pair)
    assert constraint_order(pair, state, steps=(0.1, 0.05)).order == np.inf


def test_the_exact_discrete_constraint_has_a_slope():
    """phi vanishes on the motion, and z enters it as z/h: by differentiating through the shooting."""
    system, state = rn.particle()
    end = jnp.asarray(da.models.exact_particle(H, state.g, state.xi)[0])
    phi = partial(ExactConstraint(), 0.0, state.g, h=H, system=system)
    value, slope = jax.jit(lambda g1: jax.jvp(phi, (g1,), (jnp.array([0.0, 0.0, 1.0]),)))(end)
    assert largest(value) < 1e-13 and float(slope[0]) == pytest.approx(1 / H, rel=0.05)


def test_the_exact_motion_by_its_series():
    system, state = rn.particle()
    q, v = jax.jit(lambda: exact_flow(system, 0.0, state.g, state.xi, 1.0, 2))()
    expected = da.models.exact_particle(1.0, state.g, state.xi)
    np.testing.assert_allclose(q, expected[0], atol=1e-14)
    np.testing.assert_allclose(v, expected[1], atol=1e-14)
