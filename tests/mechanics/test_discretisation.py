"""Pairs (L_d, D_d) and difference maps: axioms, consistency, regularity."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import CAYLEY, EXPONENTIAL, case, more
from tools.claims.cases import cases

import dalembert as da
from dalembert.errors import InconsistentDiscretisation as Inconsistent
from dalembert.kernels import evaluate

GROUPS = [da.Euclidean(3), da.SO3(), da.SE2()]


def element(group, seed):
    return jax.jit(group.random)(jax.random.PRNGKey(seed))


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize(
    "retraction, node",
    [(CAYLEY, 0.4), *(pytest.param(*case, marks=pytest.mark.heavy) for case in ((CAYLEY, 0.0), (EXPONENTIAL, 0.3)))],
    ids=str,
)
def test_finite_difference_maps_satisfy_their_axioms(group, retraction, node):
    rho = da.mechanics.FiniteDifference(retraction, node)
    da.mechanics.check_difference(rho, group)

    def there_and_back(_, start):
        g0, xi = start
        return rho(group, g0, rho.end(group, g0, xi), 0.1), rho.inner(group, g0, xi)

    xi = 0.3 * np.cos(np.arange(group.dim))
    (inner, v), expected = evaluate(there_and_back, (), (element(group, 1), xi))
    np.testing.assert_allclose(v, xi / 0.1, rtol=1e-12)
    np.testing.assert_allclose(inner, expected, rtol=0, atol=1e-13)


def test_the_adjoint_of_a_difference_map():
    """rho_s(g1, g0, -h) and rho_{1-s}(g0, g1, h) are the same point and velocity."""
    group, rho, adjoint = (
        da.SE2(),
        da.mechanics.FiniteDifference(CAYLEY, 0.3),
        da.mechanics.FiniteDifference(CAYLEY, 0.7),
    )

    def there_and_back(_, start):
        g0, xi = start
        g1 = rho.end(group, g0, xi)
        return rho(group, g0, g1, 0.1), adjoint(group, g1, g0, -0.1)

    there, back = evaluate(there_and_back, (), (element(group, 2), np.array([0.4, -0.3, 0.2])))
    np.testing.assert_allclose(there[0], back[0], atol=1e-14)
    np.testing.assert_allclose(there[1], back[1], atol=1e-12)


SPOILED = {
    "moves the diagonal": lambda group, a, b, h: (a + 0.1, (b - a) / h),
    "gives the velocity": lambda group, a, b, h: (a, (b - a) / h + 1.0),
    "no local diffeomorphism": lambda group, a, b, h: (a, jnp.stack([b[0] - a[0], b[1] - a[1], 0.0 * a[0]]) / h),
    "to first order": lambda group, a, b, h: (a, 2 * (b - a) / h),
}


@pytest.mark.parametrize("reason", SPOILED)
def test_maps_that_are_no_difference_maps_are_refused(reason):
    with pytest.raises(Inconsistent, match=reason):
        da.mechanics.check_difference(SPOILED[reason], da.Euclidean(3))


PAIRS = {
    "difference": lambda: da.mechanics.from_difference(case("particle")[0], da.mechanics.FiniteDifference()),
    "ball": lambda: da.mechanics.from_difference(case("ball")[0], da.mechanics.FiniteDifference(CAYLEY, 0.0)),
    "cayley": lambda: da.EulerPoincareSuslov("retraction").pair(case("suslov")[0]),
    "moser-veselov": lambda: da.EulerPoincareSuslov("moser-veselov").pair(case("suslov")[0]),
    "sleigh": lambda: da.EulerPoincareSuslov("retraction", EXPONENTIAL).pair(case("sleigh")[0]),
    "free": lambda: da.mechanics.from_difference(case("heavy_top")[0], da.mechanics.FiniteDifference(CAYLEY, 1.0)),
}


@pytest.mark.parametrize("key", PAIRS)
def test_pairs_satisfy_the_axioms(key):
    da.mechanics.check_discretisation(PAIRS[key]())


def _with_constraint(function):
    system, _ = case("particle")
    good = da.mechanics.from_difference(system, da.mechanics.FiniteDifference())
    return da.mechanics.Discretisation(system, good.lagrangian, lambda t, a, b, h, s: function(a, b - a))


BAD_PAIRS = {
    "not in D_d": lambda q, d: jnp.stack([d[2] - q[1] * d[0] + 0.1]),
    "not tangent to D": lambda q, d: jnp.stack([d[2] + q[1] * d[0]]),
    "components": lambda q, d: jnp.stack([d[2] - q[1] * d[0], d[0]]),
    "dependent rows": lambda q, d: jnp.stack([(d[2] - q[1] * d[0]) ** 3]),
}


@pytest.mark.parametrize("reason", BAD_PAIRS)
def test_pairs_that_violate_an_axiom_are_refused(reason):
    with pytest.raises(Inconsistent, match=reason):
        da.mechanics.check_discretisation(_with_constraint(BAD_PAIRS[reason]))


def test_a_constraint_that_moves_the_diagonal_in_one_argument_only_is_refused():
    """It vanishes at the sampled diagonal point but not next to it: the derivatives in g0 and g1 are not opposite."""
    system, _ = case("particle")
    good = da.mechanics.from_difference(system, da.mechanics.FiniteDifference())
    centre = system.group.random(jax.random.PRNGKey(0))

    def constraint(t, a, b, h, s):
        d = b - a
        return jnp.stack([d[2] - a[1] * d[0] + a[0] - centre[0]])

    with pytest.raises(Inconsistent, match="not opposite"):
        da.mechanics.check_discretisation(da.mechanics.Discretisation(system, good.lagrangian, constraint))


def test_consistency_is_relative_to_a_difference_map():
    """Proposition 2.1 of garcia-naranjo-jimenez: yes for the Cayley pair, no for Moser-Veselov, both against Cayley."""
    system, _ = case("suslov")
    cayley = da.mechanics.FiniteDifference(CAYLEY, 0.0)
    assert da.mechanics.is_consistent(da.EulerPoincareSuslov("retraction").pair(system), cayley)
    assert not da.mechanics.is_consistent(da.EulerPoincareSuslov("moser-veselov").pair(system), cayley)
    assert not da.mechanics.is_consistent(
        da.EulerPoincareSuslov("retraction").pair(system), da.mechanics.FiniteDifference(EXPONENTIAL, 0.0)
    )


@pytest.mark.parametrize(
    "name, power",
    [("suslov", 1), ("chaplygin-sleigh", 2), more("suslov", 2), more("chaplygin-sleigh", 1)]
    + [more("random-subspace-so4", power) for power in (1, 2)],
)
def test_consistency_sees_l_d_off_the_discrete_constraint(name, power):
    """L_d + 0.8 phi_d has the same values on D_d, and is another integrator: Definition 2.3 asks near the diagonal."""
    system = cases()[name].system
    pair, cayley = da.EulerPoincareSuslov("retraction").pair(system), da.mechanics.FiniteDifference(CAYLEY, 0.0)
    assert da.mechanics.is_consistent(pair, cayley)

    def lagrangian(t, a, b, h, s):
        return pair.lagrangian(t, a, b, h, s) + 0.8 * jnp.sum(pair.constraint(t, a, b, h, s)) ** power

    assert not da.mechanics.is_consistent(da.mechanics.Discretisation(system, lagrangian, pair.constraint), cayley)


def test_consistency_sees_the_constraint():
    """The right L_d on the wrong D_d is not consistent."""
    system, _ = case("particle")
    rho = da.mechanics.FiniteDifference(CAYLEY, 0.5)
    good = da.mechanics.from_difference(system, rho)
    other = da.mechanics.from_difference(system, da.mechanics.FiniteDifference(CAYLEY, 0.0))
    assert da.mechanics.is_consistent(good, rho)
    assert not da.mechanics.is_consistent(da.mechanics.Discretisation(system, good.lagrangian, other.constraint), rho)


def test_regularity():
    system, state = case("particle")
    pair = da.mechanics.from_difference(system, da.mechanics.FiniteDifference(CAYLEY, 0.5))
    g1 = state.g + 0.1 * state.xi
    matrix = da.mechanics.regularity_matrix(pair, state.g, g1, 0.1)
    assert matrix.shape == (4, 4)
    np.testing.assert_allclose(matrix[:3, :3], -np.eye(3) / 0.1 - 0.1 / 4 * np.diag([1.0, 1.0, 0.0]), atol=1e-12)
    np.testing.assert_allclose(matrix[:3, 3], system.A(0.0, state.g)[0])
    da.mechanics.check_regular(pair, state.g, g1, 0.1)


def test_a_degenerate_pair_is_refused():
    """L_d does not see y, an admissible direction: no step is defined."""
    system, state = case("particle")
    good = da.mechanics.from_difference(system, da.mechanics.FiniteDifference(CAYLEY, 0.5))
    blind = da.mechanics.Discretisation(
        system, lambda t, a, b, h, s: ((b - a)[0] ** 2 + (b - a)[2] ** 2) / (2 * h), good.constraint
    )
    with pytest.raises(Inconsistent, match=r"not defined here.*singular"):
        da.mechanics.check_regular(blind, state.g, state.g + 0.1 * state.xi, 0.1)


def test_reduced_moser_veselov_is_the_trace():
    system, _ = case("suslov")
    W = system.group.exp(jnp.array([0.3, -0.2, 0.5]))
    mass = system.mass_matrix()
    expected = (jnp.trace(mass) - jnp.trace(W @ mass)) / 0.1
    np.testing.assert_allclose(da.mechanics.moser_veselov(W, 0.1, system), expected, rtol=1e-13)
    np.testing.assert_allclose(mass, np.trace(system.inertia) / 2 * np.eye(3) - system.inertia, atol=1e-14)
