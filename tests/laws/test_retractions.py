"""The axioms of retractions and of their logarithmic derivatives, over groups, sampled where formulas change or break."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dalembert._series import CUT
from dalembert.groups import SE2, SE3, SO2, SO3, Euclidean, Product, SEn, SOn
from dalembert.groups.matrix_exponential import RADIUS
from dalembert.retractions import Cayley, Exponential, Retraction

GROUPS = [Euclidean(3), SO2(), SO3(), SE2(), SE3(), SOn(4), SOn(5), SEn(4), SO3() * Euclidean(2) * SE2()]
RETRACTIONS = [Exponential(), Cayley()]
CUTS = [factor * cut for cut in (CUT, RADIUS, 2 * RADIUS) for factor in (0.999, 1.001)]
SIZES = [0.0, 1e-9, 1e-5, 0.1, 1.0, *CUTS, 3.1, np.pi - 1e-6]
over_groups = pytest.mark.parametrize("group", GROUPS, ids=str)
over_retractions = pytest.mark.parametrize("retraction", RETRACTIONS, ids=lambda retraction: type(retraction).__name__)


def angle(group, xi):
    """The largest angle by which hat(xi) turns."""
    return max(np.abs(np.linalg.eigvals(hat)).max() for hat in jax.tree.leaves(group.hat(jnp.asarray(xi))))


def samples(group):
    """xi: 0, then turns by each of SIZES; eta, zeta, mu: generic."""
    rng = np.random.default_rng(11)
    directions = rng.normal(size=(len(SIZES), group.dim))
    turns = [size * xi / (angle(group, xi) or 1.0) for size, xi in zip(SIZES, directions, strict=True)]
    return np.array([np.zeros(group.dim), *turns]), *rng.normal(size=(3, 1 + len(SIZES), group.dim))


def gap(a, b):
    """The largest difference between two points or vectors."""
    return functools.reduce(jnp.maximum, jax.tree.leaves(jax.tree.map(lambda x, y: jnp.abs(x - y).max(), a, b)))


def slope(function, x, direction):
    return jax.jvp(function, (x,), (direction,))[1]


def laws(T, G, xi, eta, zeta, mu):
    """What each law leaves."""
    g, left, right = T.tau(G, xi), T.left(G, xi, eta), T.right(G, xi, eta)
    there_and_back = lambda x: T.inverse(G, T.tau(G, x))
    derivative_and_inverse = lambda x: T.left_inverse(G, x, T.left(G, x, eta))
    zero = jnp.zeros(G.dim)
    return {
        "tau(-xi) is the inverse of tau(xi)": gap(T.tau(G, -xi), G.inverse(g)),
        "tau stays on the group": G.distance(g),
        "inverse": gap(there_and_back(xi), xi),
        "left is its definition": gap(left, Retraction.left(T, G, xi, eta)),
        "left_inverse": gap(T.left_inverse(G, xi, left), eta),
        "right is Ad left": gap(right, G.Ad(g, left)),
        "right_inverse": gap(T.right_inverse(G, xi, right), eta),
        "left_star": gap(T.left_star(G, xi, mu) @ eta, mu @ left),
        "right_star": gap(T.right_star(G, xi, mu) @ eta, mu @ right),
        "left_inverse_star": gap(T.left_inverse_star(G, xi, mu) @ left, mu @ eta),
        "right_inverse_star": gap(T.right_inverse_star(G, xi, mu) @ right, mu @ eta),
        "first derivative of tau^-1 tau": gap(slope(there_and_back, xi, eta), eta),
        "second derivative of tau^-1 tau": gap(slope(lambda x: slope(there_and_back, x, eta), xi, zeta), zero),
        "derivative of dtau^-1 dtau": gap(slope(derivative_and_inverse, xi, zeta), zero),
        "gradient of tau^-1 tau": gap(jax.grad(lambda x: mu @ there_and_back(x))(xi), mu),
    }


LAWS = list(jax.eval_shape(functools.partial(laws, Cayley(), Euclidean(1)), *4 * [jnp.zeros(1)]))


@functools.cache
def evaluated(retraction, group):
    """(what each law leaves, left, the matrices of xi, eta and tau(xi)), compiled once for each pair."""

    def function(xi, eta, *more):
        matrices = group.hat(xi), group.hat(eta), group.matrix(retraction.tau(group, xi))
        return laws(retraction, group, xi, eta, *more), retraction.left(group, xi, eta), matrices

    return jax.jit(jax.vmap(function), compiler_options={"xla_backend_optimization_level": 0})(*samples(group))


@over_groups
@over_retractions
@pytest.mark.parametrize("law", LAWS)
def test_law(law, retraction, group):
    assert evaluated(retraction, group)[0][law].max() < 1e-13


def by_sample(tree):
    """A tuple for each sample with the matrices of each factor."""
    return zip(*(np.asarray(leaf) for leaf in jax.tree.leaves(tree)), strict=True)


def reference_dexp(hat, direction):
    """exp(-X) dexp_X(Y) from exp [[X, Y], [0, X]] in 30 digits, rounded."""
    n = len(hat)
    with mpmath.workdps(30):
        block = mpmath.expm(mpmath.matrix(np.block([[hat, direction], [np.zeros_like(hat), hat]]).tolist()))
        left = mpmath.expm(mpmath.matrix((-hat).tolist())) * block[:n, n:]
        return np.array(left.tolist(), dtype=float)


@over_groups
def test_left_derivative_of_exp_in_high_precision(group):
    _, given, (hats, directions, _) = evaluated(Exponential(), group)
    for left, *factors in zip(given, by_sample(hats), by_sample(directions), strict=True):
        exact = tuple(reference_dexp(hat, direction) for hat, direction in zip(*factors, strict=True))
        exact = exact if isinstance(group, Product) else exact[0]
        np.testing.assert_allclose(left, group.vee(exact), rtol=0, atol=1e-14)


@over_groups
def test_cayley_is_its_definition(group):
    _, _, (hats, _, matrices) = evaluated(Cayley(), group)
    for factors in zip(by_sample(hats), by_sample(matrices), strict=True):
        for hat, matrix in zip(*factors, strict=True):
            one = np.eye(len(hat))
            np.testing.assert_allclose(matrix, np.linalg.solve(one - hat / 2, one + hat / 2), rtol=0, atol=5e-15)


@pytest.mark.parametrize("group", [SO2(), SO3(), SE2(), SE3(), SOn(4)], ids=str)
def test_inverse_of_cayley_near_half_turns(group):
    """Vectors of length 2 tan(angle/2) up to 2e6 come back with the relative accuracy that rounding g allows."""
    xi = np.random.default_rng(2).normal(size=group.dim)
    xi *= 2e6 / angle(group, xi)
    back = jax.jit(lambda x: group.cayley_inverse(group.cayley(x)))(xi)
    np.testing.assert_allclose(back, xi, rtol=0, atol=1e-8 * np.abs(xi).max())


@pytest.mark.parametrize("group", [SO3(), SE2()], ids=str)
def test_a_new_retraction_needs_only_tau_and_its_inverse(group):
    """The definitions in the base class agree with the closed forms."""

    class Plain(Retraction):
        def tau(self, group, xi):
            return group.exp(xi)

        def inverse(self, group, g):
            return group.log(g)

    def gaps(xi, eta, mu):
        names = ["left", "right", "left_inverse", "right_inverse"]
        pairs = [(name, eta) for name in names] + [(f"{name}_star", mu) for name in names]
        return [gap(getattr(Plain(), name)(group, xi, v), getattr(Exponential(), name)(group, xi, v)) for name, v in pairs]

    xi, eta, _, mu = samples(group)
    assert max(np.max(gaps) for gaps in jax.jit(jax.vmap(gaps))(xi, eta, mu)) < 1e-14


def test_retractions_are_static_values():
    assert Cayley() == Cayley() != Exponential() and len({Cayley(), Cayley(), Exponential()}) == 2
    assert jax.tree.leaves(Cayley()) == []
