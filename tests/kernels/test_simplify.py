"""A function with fewer equations computes the same, and has the same derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import sampled

from dalembert.kernels import columns, eliminate, simplify
from dalembert.kernels.lowering import count_calls


def turned(x, times=12):
    """Rotations about the axes in turn, written with matrices; most of their entries are 0 and 1."""
    v = x
    for k in range(times):
        axis = jnp.eye(3)[k % 3]
        hat = jnp.cross(jnp.eye(3), axis)
        v = (jnp.eye(3) + jnp.sin(x[k % 3]) * hat + (1.0 - jnp.cos(x[k % 3])) * hat @ hat) @ v
    return v


def implicit(x):
    """What has rules of its own stays: a solve, a loop, a branch, a Jacobian."""
    v = turned(x)
    solved = eliminate(jnp.diag(2.0 + v * v), v[:, None])[0][:, 0]
    looped = jax.lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] * 0.5, s[1] + 1), (solved, 0))[0]
    chosen = jax.lax.cond(v[0] > 0.0, lambda w: w * w, lambda w: -w, looped)
    return chosen + columns(lambda w: jnp.sin(w) * w[0], v)[1] @ v / jnp.sqrt(1.0 + v @ v)


def simple(function, x):
    closed = jax.make_jaxpr(function)(x)
    made = simplify(closed)
    return closed, made, lambda y: jax.core.eval_jaxpr(made.jaxpr, made.consts, y)[0]


@pytest.mark.parametrize("function", sampled([turned, implicit]))
def test_values_and_derivatives_are_the_same(function):
    x = jnp.array([0.3, -0.7, 1.1])
    closed, made, f = simple(function, x)
    assert 2 * count_calls(made.jaxpr) <= count_calls(closed.jaxpr)
    np.testing.assert_allclose(f(x), function(x), rtol=1e-14)
    np.testing.assert_allclose(jax.jacfwd(f)(x), jax.jacfwd(function)(x), rtol=1e-12, atol=1e-14)
    if function is turned:
        np.testing.assert_allclose(jax.hessian(f)(x), jax.hessian(function)(x), rtol=1e-11, atol=1e-13)


def test_traced_constants_and_types_stay():
    @jax.jit
    def through(a, x):
        def inner(y):
            return turned(a * y), jnp.int64(3), y[0] > a[1]

        closed = jax.make_jaxpr(inner)(x)
        made = simplify(closed)
        assert made is not closed
        assert [v.aval.dtype for v in made.jaxpr.outvars] == [v.aval.dtype for v in closed.jaxpr.outvars]
        return jax.core.eval_jaxpr(made.jaxpr, made.consts, x)

    a, x = jnp.array([1.0, 2.0, 0.5]), jnp.array([0.3, -0.7, 1.1])
    value, whole, truth = through(a, x)
    np.testing.assert_allclose(value, turned(a * x), rtol=1e-14)
    assert (int(whole), bool(truth)) == (3, False)


@pytest.mark.parametrize(
    "function",
    [lambda x: x * x, lambda x: turned(x, 40) + jnp.sum(jnp.outer(jnp.tile(x, 20), jnp.tile(x, 20))), jnp.floor],
    ids=["short", "long by scalars", "without derivatives"],
)
def test_what_gains_nothing_stays(function):
    closed, made, _ = simple(function, jnp.array([0.3, -0.7, 1.1]))
    assert made is closed


def cayley(x):
    """(1 - hat(x)/2)^-1 (1 + hat(x)/2) on SO(3), a quotient by 1 + |x|^2/4."""
    hat = jnp.cross(jnp.eye(3), -x)
    return jnp.eye(3) + (hat + hat @ hat / 2) / (1.0 + x @ x / 4)


def momenta(x):
    """The skew part of W J W^T - J W^T, which has twice the denominator, and of which half cancels."""
    W, J, target = cayley(x), jnp.diag(jnp.array([0.9, 0.7, 0.4])), jnp.array([0.2, -0.3, 0.5])
    moved = W @ J @ W.T - J @ W.T
    return jnp.stack([moved[2, 1] - moved[1, 2], moved[0, 2] - moved[2, 0], moved[1, 0] - moved[0, 1]]) - target


def two_denominators(x):
    first, second = 1.0 + x[1] * x[1], 2.0 + 0.5 * x[0] * x[0]
    return jnp.stack([x[0] / first + x[0] * x[1] / first - 0.3, x[1] / second - x[2] / second, x[2] - 1.0])


def solvable(function, x):
    closed = jax.make_jaxpr(function)(x)
    made = simplify(closed, solved=True)
    return closed, made, lambda y: jax.core.eval_jaxpr(made.jaxpr, made.consts, y)[0]


@pytest.mark.parametrize(
    ("function", "denominators"),
    [
        (momenta, lambda x: 1.0 + x @ x / 4),
        (two_denominators, lambda x: jnp.stack([1.0 + x[1] ** 2, 2.0 + 0.5 * x[0] ** 2, 1.0])),
    ],
)
def test_equations_are_multiplied_by_denominators(function, denominators):
    """f q is what is solved, with its derivative, and nothing is divided by what depends on the unknowns."""
    x = jnp.array([0.3, -0.7, 1.1])
    _, _, f = solvable(function, x)
    wanted = lambda y: denominators(y) * function(y)
    np.testing.assert_allclose(f(x), wanted(x), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(jax.jacfwd(f)(x), jax.jacfwd(wanted)(x), rtol=1e-12, atol=1e-13)
    assert "div" not in str(jax.make_jaxpr(f)(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 1.0 / (1.0 - x * x) - 2.0,
        lambda x: 1.0 / (2.0 + x) - 1.0,
        lambda x: jnp.sin(x) / (1.0 + x * x),
        lambda x: x / (1.0 + 1.0 / (1.0 + x * x)),
        lambda x: x / 3.0 - 1.0,
    ],
    ids=["pole", "sign", "no polynomial", "nested", "nothing to multiply by"],
)
def test_other_equations_stay(function):
    closed, made, _ = solvable(function, jnp.array([0.3]))
    assert made is closed
