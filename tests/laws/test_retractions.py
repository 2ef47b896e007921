"""The axioms of retractions and their logarithmic derivatives, sampled where formulas change or break."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from own_groups import SU2, Heisenberg
from sampling import angle, gap, on_samples

from dalembert.groups import SE2, SE3, SO2, SO3, Cayley, Euclidean, Exponential, Product, Retraction, SEn, SOn

GROUPS = [Euclidean(3), SO2(), SO3(), SE2(), SE3(), SOn(4), SEn(4), SO2() * Euclidean(2) * SE2(), Heisenberg(), SU2()]
RETRACTIONS = [Exponential(), Cayley()]
SLOW = (SOn(4), SEn(4), SU2(), Heisenberg())  # a minute of compilation; SE(3) and the product are like them
over_groups = pytest.mark.parametrize(
    "group", [pytest.param(group, marks=[pytest.mark.heavy] * (group in SLOW)) for group in GROUPS], ids=str
)
over_retractions = pytest.mark.parametrize("retraction", RETRACTIONS, ids=lambda retraction: type(retraction).__name__)


def laws(T, G, xi, eta, zeta, mu):
    """What each law leaves."""

    def there_and_back(x):
        return T.inverse(G, T.tau(G, x))

    def derivative_and_inverse(x):
        left = T.left(G, x, eta)
        return left, T.left_inverse(G, x, left)

    g, zero = T.tau(G, xi), jnp.zeros(G.dim)
    (left, same), (_, change) = jax.jvp(derivative_and_inverse, (xi,), (zeta,))
    (back, first), (_, second) = jax.jvp(lambda x: jax.jvp(there_and_back, (x,), (eta,)), (xi,), (zeta,))
    right = T.right(G, xi, eta)
    return {
        "tau(-xi) is the inverse of tau(xi)": gap(T.tau(G, -xi), G.inverse(g)),
        "tau stays on the group": G.distance(g),
        "inverse": gap(back, xi),
        "first derivative of tau^-1 tau": gap(first, eta),
        "second derivative of tau^-1 tau": gap(second, zero),
        "gradient of tau^-1 tau": gap(jax.grad(lambda x: mu @ there_and_back(x))(xi), mu),
        "left is its definition": gap(left, Retraction.left(T, G, xi, eta)),
        "left_inverse": gap(same, eta),
        "derivative of left_inverse left": gap(change, zero),
        "left_star": gap(T.left_star(G, xi, mu) @ eta, mu @ left),
        "left_inverse_star": gap(T.left_inverse_star(G, xi, mu) @ left, mu @ eta),
        "right is Ad left": gap(right, G.Ad(g, left)),
    }


@functools.cache
def evaluated(retraction, group):
    """(what each law leaves, left, the matrices of xi, eta and tau(xi)), compiled once for each pair."""

    def function(xi, eta, *more):
        matrices = group.hat(xi), group.hat(eta), group.matrix(retraction.tau(group, xi))
        return laws(retraction, group, xi, eta, *more), retraction.left(group, xi, eta), matrices

    return on_samples(group, function)


@over_groups
@over_retractions
def test_laws(retraction, group):
    """All laws of a retraction on a group in one test, which compiles them once whatever worker it runs on."""
    left = {law: float(values.max()) for law, values in evaluated(retraction, group)[0].items()}
    assert len(left) == 12 and not {law: most for law, most in left.items() if not most < 4e-14}


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


def test_a_new_retraction_needs_only_tau_and_its_inverse():
    """The definitions in the base class agree with the closed forms."""

    group = SE2()

    class Plain(Retraction):
        def tau(self, group, xi):
            return group.exp(xi)

        def inverse(self, group, g):
            return group.log(g)

    def gaps(xi, eta, _, mu):
        found = []
        for name in ("left", "right", "left_inverse", "right_inverse"):
            value, star = (getattr(Plain(), suffixed) for suffixed in (name, f"{name}_star"))
            closed, closed_star = (getattr(Exponential(), suffixed) for suffixed in (name, f"{name}_star"))
            found.append(gap(value(group, xi, eta), closed(group, xi, eta)))
            found.append(gap(star(group, xi, mu), closed_star(group, xi, mu)))
            found.append(gap(closed_star(group, xi, mu) @ eta, mu @ closed(group, xi, eta)))
        right = Exponential().right(group, xi, eta)
        return [*found, gap(Exponential().right_inverse(group, xi, right), eta)]

    assert max(np.max(gaps) for gaps in on_samples(group, gaps)) < 1e-14


def test_retractions_are_static_values():
    assert Cayley() == Cayley() != Exponential() and len({Cayley(), Cayley(), Exponential()}) == 2
    assert jax.tree.leaves(Cayley()) == []
