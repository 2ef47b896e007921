"""Laws of the one-step methods: equal schemes, adjoints, forms, D, energy, equivariance, reversibility, momenta.

That maps without constraint are symplectic, the claims machine measures (tests/claims).
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import CAYLEY, EXPONENTIAL, case, distance, flow, gap, more

import dalembert as da

RETRACTIONS = [CAYLEY, EXPONENTIAL]


def name(value):
    return type(value).__name__ if isinstance(value, da.groups.Retraction) else str(value)


# -- one scheme, several doors ----------------------------------------------------------------------------------------
SAME = [more("suslov", CAYLEY), more("suslov", EXPONENTIAL), ("sleigh", CAYLEY), more("suslov_4", CAYLEY)]


@pytest.mark.parametrize("key, retraction", SAME, ids=name)
def test_node_0_is_euler_poincare_suslov_with_the_retraction_lagrangian(key, retraction):
    system, state = case(key)
    suslov = flow(da.EulerPoincareSuslov("retraction", retraction), system, state, 0.1, 20)
    adapted = flow(da.RetractionAdapted(retraction, 0.0), system, state, 0.1, 20)
    general = flow(da.LagrangeDAlembert(retraction, 0.0), system, state, 0.1, 20)
    assert gap(suslov, adapted) < 1e-12
    assert gap(suslov, general) < 1e-12
    assert gap(suslov, flow(da.EulerPoincareSuslov("retraction", retraction), system, state, 0.1, 19)) > 1e-3


def test_the_retraction_lagrangian_has_a_closed_legendre_map():
    """`legendre` of "retraction" is a closed form; the definition is the derivative of l_d(W) = h l(tau^-1(W)/h)."""
    for key, retraction in [("suslov", EXPONENTIAL), ("sleigh", CAYLEY)]:
        system, _ = case(key)
        closed = da.EulerPoincareSuslov("retraction", retraction)
        defined = da.EulerPoincareSuslov(da.mechanics.retracted_lagrangian(retraction), retraction)
        w = system.subspace @ jnp.linspace(0.7, -1.1, system.subspace.shape[1])
        found, expected = jax.jit(lambda w: [each.legendre(system, w, 0.3) for each in (closed, defined)])(w)
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("key, lagrangian", [("suslov", "moser-veselov"), more("sleigh", "retraction")])
def test_the_general_method_with_the_invariant_pair_is_euler_poincare_suslov(key, lagrangian):
    system, state = case(key)
    method = da.EulerPoincareSuslov(lagrangian)
    run = da.simulate(system, method, state, step=0.1, steps=10).check()
    # A general pair starts from the momentum D2 L_d that the first displacement would have received.
    begin = run.records.state
    moved = jax.tree.map(lambda leaf: leaf[1], begin)
    momentum = system.group.Ad_star(
        system.group.compose(system.group.inverse(begin.g[0]), begin.g[1]), begin.momentum[0]
    )
    state = system.state(moved.g, system.velocity(0.0, moved.g, momentum), t=moved.t)
    pair = method.pair(system)
    np.testing.assert_allclose(pair.D2(0.0, begin.g[0], begin.g[1], 0.1), momentum, rtol=1e-12, atol=1e-12)
    general = da.simulate(system, da.LagrangeDAlembert(pair=pair), state, step=0.1, steps=9).check()
    assert distance(general.g, run.g[1:]) < 1e-12
    assert distance(general.xi, run.xi[1:]) < 1e-12
    assert distance(general.multipliers[2:], run.multipliers[2:-1]) < 1e-10


def _weighted(beta):
    """rho^beta of jimenez-scheurle (64) as a user would write it."""
    return lambda group, q0, q1, h: ((1 - beta) * q0 + beta * q1, (q1 - q0) / h)


@pytest.mark.parametrize("beta", [more(0.5), 0.3])
def test_a_pair_from_a_users_difference_map_is_the_method_of_that_node(beta):
    """On a system where L, A, b and F all depend on time."""
    system, state = case("driven")
    pair = da.mechanics.from_difference(system, _weighted(beta), node=beta)
    ours = flow(da.LagrangeDAlembert(pair=pair), system, state, 0.1, 10)
    assert gap(ours, flow(da.LagrangeDAlembert(node=beta), system, state, 0.1, 10)) < 1e-12
    assert gap(ours, flow(da.LagrangeDAlembert(node=0.8), system, state, 0.1, 10)) > 1e-3


@pytest.mark.parametrize("node", [more(0.0), 1.0])
def test_a_pair_from_a_finite_difference_is_the_method_of_that_node_on_a_group(node):
    system, state = case("heavy_suslov")
    pair = da.mechanics.from_difference(system, da.mechanics.FiniteDifference(CAYLEY, node))
    ours = flow(da.LagrangeDAlembert(pair=pair), system, state, 0.1, 10)
    assert gap(ours, flow(da.LagrangeDAlembert(CAYLEY, node), system, state, 0.1, 10)) < 1e-12


# -- adjoints and reversibility ---------------------------------------------------------------------------------------
ADJOINT = [
    ("heavy_suslov", CAYLEY, 0.3),
    more("heavy_suslov", EXPONENTIAL, 0.3),
    more("heavy_suslov", CAYLEY, 0.0),
    more("knife_edge", CAYLEY, 0.3),
    more("knife_edge", EXPONENTIAL, 0.0),
    more("ball", CAYLEY, 0.3),
    more("ball", EXPONENTIAL, 0.3),
    more("particle", CAYLEY, 0.3),
    ("particle", CAYLEY, 0.0),
    ("driven", CAYLEY, 0.3),
]


@pytest.mark.parametrize("key, retraction, node", ADJOINT, ids=name)
def test_the_adjoint_of_node_s_is_node_1_minus_s(key, retraction, node):
    system, state = case(key)
    there = flow(da.LagrangeDAlembert(retraction, node), system, state, 0.1, 5)
    back = flow(da.LagrangeDAlembert(retraction, 1 - node), system, there, -0.1, 5)
    again = flow(da.LagrangeDAlembert(retraction, node), system, there, -0.1, 5)
    assert gap(back, state) < 2e-12
    assert float(back.t) == pytest.approx(float(state.t), abs=1e-14)
    assert gap(again, state) > 1e-4  # the same node does not return: the law is not empty


@pytest.mark.parametrize("key, retraction", [more("heavy_suslov", EXPONENTIAL), ("knife_edge", CAYLEY)], ids=name)
def test_the_adjoint_of_the_retraction_adapted_scheme(key, retraction):
    system, state = case(key)
    there = flow(da.RetractionAdapted(retraction, 0.3), system, state, 0.1, 5)
    back = flow(da.RetractionAdapted(retraction, 0.7), system, there, -0.1, 5)
    again = flow(da.RetractionAdapted(retraction, 0.3), system, there, -0.1, 5)
    assert gap(back, state) < 2e-12
    assert gap(again, state) > 1e-4


@pytest.mark.parametrize("key", ["heavy_suslov", "particle"])
def test_node_one_half_is_reversible_and_node_0_is_not(key):
    system, state = case(key)
    half = da.analysis.reversibility(system, da.LagrangeDAlembert(CAYLEY, 0.5), state, step=0.1, steps=20)
    zero = da.analysis.reversibility(system, da.LagrangeDAlembert(CAYLEY, 0.0), state, step=0.1, steps=20)
    assert half < 1e-11
    assert zero > 1e-3


# -- three forms of one map -------------------------------------------------------------------------------------------
def _shifted(system, state, retraction, node, h):
    """The original node after the redefined one (g~, v), with the momentum D2 L_d of the step that would lead there."""
    group = system.group
    before = group.compose(state.g, retraction.tau(group, -node * h * state.xi))
    after = group.compose(state.g, retraction.tau(group, (1 - node) * h * state.xi))
    pair = da.mechanics.from_difference(system, da.mechanics.FiniteDifference(retraction, node))
    t = state.t - node * h
    return t + h, after, pair.D2(t, before, after, h)


FORMS = [
    more("particle", CAYLEY, 0.5),
    more("particle", CAYLEY, 0.3),
    more("driven", CAYLEY, 0.5),
    more("heavy_suslov", EXPONENTIAL, 0.5),
    ("heavy_suslov", CAYLEY, 1.0),
]


@pytest.mark.parametrize("key, retraction, node", FORMS, ids=name)
def test_the_three_forms_agree_after_the_shift_of_the_start(key, retraction, node):
    system, state = case(key)
    h, steps = 0.1, 12
    t, g, momentum = _shifted(system, state, retraction, node, h)
    v = system.velocity(t, g, momentum)
    original = system.state(g, v, t=t)
    deformed = original._replace(xi=state.xi, momentum=system.momentum(t, g, state.xi))

    def run(nodes, start):
        return da.simulate(system, da.LagrangeDAlembert(retraction, node, nodes), start, step=h, steps=steps).check()

    velocity, original, deformed = run("velocity", state), run("original", original), run("deformed", deformed)
    assert distance(velocity.xi[1:], original.increment[1:]) < 1e-12
    assert distance(velocity.xi, deformed.xi) < 1e-12
    assert distance(original.g, deformed.g) < 1e-12
    group = system.group
    inner = jax.vmap(lambda g, w: group.compose(g, retraction.tau(group, node * h * w)))(
        jax.tree.map(lambda leaf: leaf[:-1], original.g), original.increment[1:]
    )
    assert distance(jax.tree.map(lambda leaf: leaf[1:], velocity.g), inner) < 1e-12
    np.testing.assert_allclose(velocity.t, np.asarray(original.t) - (1 - node) * h, atol=1e-13)
    assert distance(velocity.multipliers[2:], original.multipliers[2:]) < 1e-9
    assert distance(velocity.multipliers[1], original.multipliers[1]) < 0.1


def test_the_shift_of_the_start_on_a_vector_space():
    """q_0 = q~_0 + h (1 - b) v_0 and p_0 = L_v + h b L_q (DESIGN.md, section 1)."""
    system, state = case("particle")
    h, beta = 0.1, 0.3
    carry, _ = da.LagrangeDAlembert(node=beta, nodes="velocity").start(system, state, h)
    np.testing.assert_allclose(carry.g, state.g + h * (1 - beta) * state.xi, rtol=1e-14)
    expected = state.xi - h * beta * jnp.array([state.g[0], state.g[1], 0.0])
    np.testing.assert_allclose(carry.p, expected, rtol=1e-13)


# -- what the methods keep --------------------------------------------------------------------------------------------
PRESERVED = [
    ("particle", "velocity", 0.3),
    more("particle", "original", 0.3),
    ("driven", "velocity", 0.5),
    more("driven", "original", 0.5),
    more("ball", "velocity", 0.5),
    more("ball", "original", 0.0),
    ("heavy_suslov", "velocity", 1.0),
    ("quartic", "velocity", 0.5),
]


@pytest.mark.parametrize("key, nodes, node", PRESERVED)
def test_D_is_preserved(key, nodes, node):
    system, state = case(key)
    run = da.simulate(system, da.LagrangeDAlembert(node=node, nodes=nodes), state, step=0.05, steps=200).check()
    scale = 1 + np.abs(run.xi).max()
    assert run.constraint_residual().max() < 1e-13 * scale
    assert run.group_distance().max() < 2e-15
    assert np.abs(run.xi - run.xi[0]).max() > 0.1


def test_the_deformed_form_leaves_D_but_stays_on_its_own_constraint():
    system, state = case("particle")
    h, node = 0.05, 0.5
    method = da.LagrangeDAlembert(node=node, nodes="deformed")
    run = da.simulate(system, method, state, step=h, steps=100).check()
    assert run.constraint_residual()[1:].max() > 1e-3
    inner = run.g[1:] - (1 - node) * h * run.xi[1:]
    assert np.abs(jax.vmap(system.residual)(run.t[1:], inner, run.xi[1:])).max() < 1e-13


@pytest.mark.parametrize("key, step", [("suslov", 0.1), more("suslov_4", 0.3)])
def test_moser_veselov_conserves_the_constrained_energy(key, step):
    """On SO(n) for every n (ERRATA, fedorov-zenkov); the retraction Lagrangian does not."""
    system, state = case(key)
    run = da.simulate(system, da.EulerPoincareSuslov(), state, step=step, steps=300).check()
    energy = np.asarray(run.energy())
    assert np.abs(energy / energy[0] - 1).max() < 1e-13
    assert np.abs(run.xi - run.xi[0]).max() > 0.1
    other = da.simulate(system, da.EulerPoincareSuslov("retraction"), state, step=step, steps=30).check()
    assert np.abs(other.energy_error()).max() > 1e-6


@cache
def _translation(group):
    return group.exp(jnp.asarray(np.linspace(-0.9, 1.3, group.dim)))


@pytest.mark.parametrize(
    "method",
    [da.EulerPoincareSuslov(), da.RetractionAdapted(CAYLEY, 0.5), da.LagrangeDAlembert(CAYLEY, 0.5), da.RungeKutta()],
    ids=lambda m: m.name,
)
@pytest.mark.parametrize("key", ["suslov", more("sleigh")])
def test_left_translation_moves_solutions_to_solutions(key, method):
    system, state = case(key)
    group, k = system.group, _translation(system.group)
    moved = flow(method, system, state._replace(g=group.compose(k, state.g)), 0.1, 10)
    plain = flow(method, system, state, 0.1, 10)
    assert gap(moved, plain._replace(g=group.compose(k, plain.g))) < 1e-13


# -- no constraint: a variational integrator --------------------------------------------------------------------------
@pytest.mark.parametrize("retraction, node", [(CAYLEY, 0.5), more(EXPONENTIAL, 0.3)], ids=name)
def test_without_constraint_the_momentum_map_of_a_symmetry_is_conserved(retraction, node):
    """A heavy top turns freely about the vertical."""
    system, state = case("heavy_top")
    run = da.simulate(system, da.LagrangeDAlembert(retraction, node), state, step=0.1, steps=100).check()
    vertical = np.asarray(da.analysis.momentum_map(run, lambda g: g[2]))
    spatial = np.asarray(da.analysis.spatial_momentum(run))
    assert np.abs(vertical - vertical[0]).max() < 1e-12
    np.testing.assert_allclose(spatial[:, 2], vertical, atol=1e-13)
    assert np.abs(spatial - spatial[0])[:, :2].max() > 0.1
    assert np.abs(run.energy_error()).max() < 0.05 * abs(float(run.energy()[0]))


@pytest.mark.parametrize(
    "method",
    [da.EulerPoincareSuslov(), da.EulerPoincareSuslov("retraction", EXPONENTIAL), da.LagrangeDAlembert(CAYLEY, 0.3)],
    ids=str,
)
def test_a_free_body_conserves_its_spatial_momentum(method):
    system = da.models.rigid_body([[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]])
    run = da.simulate(system, method, system.state(momentum=[1.8, 2.4, -0.9]), step=0.1, steps=100).check()
    spatial = np.asarray(da.analysis.spatial_momentum(run))
    assert np.abs(spatial - spatial[0]).max() < 1e-12
    assert np.abs(run.momentum - run.momentum[0]).max() > 0.1


def test_a_constraint_breaks_the_momentum_map():
    """The vertical momentum of the heavy Suslov body is not conserved: the law above sees more than a constant."""
    system, state = case("heavy_suslov")
    run = da.simulate(system, da.LagrangeDAlembert(CAYLEY, 0.5), state, step=0.1, steps=50).check()
    vertical = np.asarray(da.analysis.momentum_map(run, lambda g: g[2]))
    assert np.abs(vertical - vertical[0]).max() > 1e-2


def test_the_measure_of_a_free_motion_is_invariant_and_that_of_suslov_is_not():
    free = da.System(da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v - 0.3 * (q @ q) ** 2 - q[0] ** 3)
    method = da.LagrangeDAlembert(CAYLEY, 0.5)
    state = free.state([0.7, -0.4], [0.5, 1.1])
    assert abs(da.analysis.log_jacobian(free, method, state, step=0.2)) < 1e-13
    system, state = case("suslov")
    change = da.analysis.log_jacobian(system, method, state, step=1e-3) / 1e-3
    rho = np.asarray(system.subspace.T @ state.momentum)

    def rate(rho):
        xi = system.velocity(0.0, state.g, jnp.concatenate([rho, jnp.zeros(1)]))
        return system.subspace.T @ system.inertia @ system.acceleration(0.0, state.g, xi)[0]

    divergence = float(jnp.trace(jax.jacfwd(rate)(jnp.asarray(rho))))
    assert abs(divergence) > 0.04
    assert change == pytest.approx(divergence, rel=1e-2)
