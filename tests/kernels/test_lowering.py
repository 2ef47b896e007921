"""Every primitive that steps use gives what JAX gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from registry import sampled

from dalembert.kernels import LoweringError, columns, eliminate, lowering, make_problem, run_problem
from dalembert.numerics import solve

jax.config.update("jax_enable_x64", True)
X = np.array([0.3, -1.7, 2.5, 0.9])
M = np.random.default_rng(1).normal(size=(4, 4))


def native(function, x=X):
    """function(x) through the LLVM backend."""
    shape = jax.eval_shape(function, x)
    carry = {"x": x, "y": jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shape)}
    problem = make_problem(
        lambda c, carry, u: carry | {"y": function(carry["x"])}, lambda c, carry: carry["y"], None, carry
    )
    result = run_problem(problem, saves=1, backend="llvm")
    return jax.tree.map(lambda leaf: leaf[0], result.records)


def largest(x):
    return jnp.argmax(jnp.abs(x))


@jax.custom_jvp
def doubled(x):
    return 2 * x


@jax.custom_vjp
def tripled(x):
    return 3 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))
tripled.defvjp(lambda x: (3 * x, None), lambda _, g: (3 * g,))

CASES = {
    "arithmetic": lambda x: (x + x[::-1]) * x - x / (1 + x * x) + (-x),
    "powers": lambda x: (x**2, x**3, x**-2, jnp.abs(x) ** 2.5, jnp.sqrt(jnp.abs(x)), jnp.square(x)),
    "rounding": lambda x: (jnp.floor(x), jnp.ceil(x), jnp.round(x), lax.round(x), jnp.trunc(x)),
    "signs": lambda x: (jnp.sign(x), jnp.abs(x), jnp.maximum(x, 0.5), jnp.minimum(x, 0.5), jnp.clip(x, -1, 1)),
    "comparisons": lambda x: (
        x > 0,
        x >= 0.9,
        x < 0.9,
        x <= 0.3,
        x == 0.3,
        x != 0.3,
        jnp.isfinite(x / (x - x)),
        jnp.isnan(x),
    ),
    "logic": lambda x: (
        (x > 0) & (x < 1),
        (x > 0) | (x < -1),
        ~(x > 0),
        (x > 0) ^ (x > 1),
        jnp.all(x > 0),
        jnp.any(x > 0),
    ),
    "integers": lambda x: (
        x.astype(int),
        x.astype(int) // 2,
        x.astype(int) % 3,
        jnp.arange(4) - 2,
        -jnp.arange(4) // 2,
        jnp.maximum(jnp.arange(4), 2),
        jnp.abs(jnp.arange(4) - 2),
        jnp.sign(jnp.arange(4) - 2),
    ),
    "modulus": lambda x: (jnp.mod(x, 0.7), jnp.fmod(x, 0.7), jnp.remainder(x, -0.7)),
    "where": lambda x: (jnp.where(x > 0, x, -x), jnp.select([x > 1, x > 0], [x, 2 * x], 3 * x)),
    "shapes": lambda x: (
        x.reshape(2, 2).T,
        x[None, :, None],
        jnp.broadcast_to(x, (2, 4)),
        x[::-1],
        jnp.roll(x, 1),
        jnp.flip(x),
    ),
    "joins": lambda x: (
        jnp.concatenate([x, x[:2]]),
        jnp.stack([x, -x], 1),
        jnp.pad(x, (1, 2)),
        jnp.tile(x, 2),
        lax.pad(x, 0.5, [(-1, 1, 1)]),
        jnp.hstack(jnp.split(x, 2)),
        jnp.repeat(x, 2),
        *jnp.unstack(x),
    ),
    "products": lambda x: (
        M @ x,
        x @ M,
        M @ jnp.outer(x, x),
        x @ x,
        jnp.cross(x[:3], x[1:]),
        jnp.trace(M @ jnp.diag(x)),
        jnp.einsum("ij,jk,k->i", M, M, x),
        jnp.einsum("i,j->ij", x, x),
        jnp.kron(x[:2], x),
    ),
    "reductions": lambda x: (
        x.sum(),
        x.prod(),
        x.max(),
        x.min(),
        x.mean(),
        jnp.linalg.norm(x),
        x.reshape(2, 2).sum(0),
        jnp.var(x),
    ),
    "positions": lambda x: (jnp.argmax(x), jnp.argmin(x), jnp.argmax(x.reshape(2, 2), 1)),
    "cumulative": lambda x: (jnp.cumsum(x), jnp.cumprod(x), lax.cummax(x), lax.cummin(x, reverse=True)),
    "sorting": lambda x: (jnp.sort(x), jnp.argsort(x), jnp.sort(M, 1), lax.sort_key_val(-x, x)[1]),
    "static indices": lambda x: (
        x[1],
        x[-1],
        x[1:3],
        x[np.array([2, 0])],
        jnp.take(x, 3),
        M[np.array([1, 2]), np.array([0, 3])] * x[0],
    ),
    "static updates": lambda x: (
        x.at[1].set(5.0),
        x.at[2].add(x[0]),
        x.at[1:3].mul(2.0),
        x.at[0].min(-9.0),
        x.at[0].max(9.0),
    ),
    "dynamic indices": lambda x: (
        x[largest(x)],
        (M * x)[largest(x)],
        lax.dynamic_slice(x, (largest(x),), (2,)),
        jnp.take(M * x, largest(x), 1),
    ),
    "dynamic updates": lambda x: (
        x.at[largest(x)].set(7.0),
        x.at[largest(x)].add(x[0]),
        (M * x).at[largest(x)].set(x),
        lax.dynamic_update_slice(x, x[:2], (largest(x),)),
    ),
    "beyond the end": lambda x: (
        x.at[largest(x) + 9].set(1.0),
        x.at[largest(x) + 9].get(mode="fill", fill_value=3.0),
        x.at[largest(x) + 9].get(mode="clip"),
    ),
    "cond": lambda x: (
        lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
        lax.cond(x[1] > 0, lambda x: M @ M @ M @ jnp.sin(x), lambda x: -x, x),
    ),
    "switch": lambda x: lax.switch(largest(x), [jnp.sin, lambda x: M @ M @ jnp.cos(x), lambda x: M @ jnp.exp(x)], x),
    "while of lanes": jax.vmap(lambda x: lax.while_loop(lambda y: jnp.abs(y) < 3.0, lambda y: 1.5 * y, x)),
    "while": lambda x: lax.while_loop(
        lambda c: c[0] < 100, lambda c: (2 * c[0] + 1, c[1] / 2, c[2]), (jnp.abs(x[0]), x, x)
    ),
    "fori": lambda x: (
        lax.fori_loop(0, 5, lambda i, y: y + i * x, x),
        lax.fori_loop(0, 3000, lambda i, y: jnp.cos(y), x),
    ),
    "scan": lambda x: lax.scan(lambda c, y: (c * 0.5 + y, c + y), 0.0, x, reverse=True),
    "nested loops": lambda x: lax.fori_loop(
        0, largest(x), lambda i, y: lax.while_loop(lambda z: jnp.sum(z * z) > i, lambda z: z * 0.7, y + 1), x
    ),
    "calls": lambda x: (
        jax.jit(jnp.sin)(x),
        doubled(x),
        tripled(x),
        jax.checkpoint(jnp.cos)(x),
        lax.stop_gradient(x),
        jnp.copy(x),
    ),
    "linear solve": lambda x: lax.custom_linear_solve(lambda y: 3 * y, x, lambda mv, b: b / 3, lambda mv, b: b / 3),
    "tangents": lambda x: jax.jvp(lambda x: M @ jnp.sin(x) / x[0] + jnp.where(x > 0, x, 0) ** 3, (x,), (jnp.ones(4),)),
    "gradients": lambda x: jax.grad(lambda x: jnp.sum(jnp.sin(M @ x) ** 2) / (1 + x @ x))(x),
    "hessian": lambda x: jax.hessian(lambda x: jnp.cos(x[0] * x[1]) * jnp.exp(-x @ x))(x),
}


@pytest.mark.parametrize("name", CASES)
def test_primitives_agree_with_jax(name):
    found, expected = native(CASES[name]), jax.jit(CASES[name])(jnp.asarray(X))
    assert jax.tree.structure(found) == jax.tree.structure(jax.tree.map(np.asarray, expected))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-14)


@jax.custom_jvp
def with_a_slope_of_its_own(x):
    return jnp.sin(x)


with_a_slope_of_its_own.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 7 * tangents[0]))
FUNCTIONS = "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log1p"
DERIVED = CASES | {
    "functions": lambda x: [
        getattr(lax, name)(0.3 + 0.1 * x if name in ("asin", "acos", "atanh") else 4.0 + x)
        for name in FUNCTIONS.split()
    ],
    "more functions": lambda x: [
        *(getattr(lax, name)(4.0 + x) for name in ("logistic", "cbrt", "rsqrt", "sign", "square", "sqrt")),
        lax.atan2(x, x[::-1]), lax.pow(4.0 + x, x[::-1]), lax.rem(x, 0.7 + x[::-1] ** 2), lax.clamp(-1.0, x, 2.0),
    ],
    "quotients": lambda x: (1.0 / x, x / x[0], x[0] / (x * x), -x / (1.0 + x[::-1]), 3.0 / (x[0] * x[1])),
    "solves": lambda x: (jnp.stack(solve(M + jnp.diag(x), jnp.outer(x, x))), eliminate(M * x[0], M * x)[0]),
    "slopes of their own": lambda x: with_a_slope_of_its_own(x) * x + lax.stop_gradient(x) * x,
    "nothing to derive": lambda x: (jnp.ones(3), 0.0 * x),
}  # fmt: skip


def derivable(function, x):
    """What of a function is numbers, as one vector."""
    leaves = [leaf.ravel() for leaf in map(jnp.asarray, jax.tree.leaves(function(x))) if leaf.dtype == float]
    return jnp.concatenate([jnp.zeros(1), *leaves])


BY_JAX = (
    "cond",
    "switch",
    "while of lanes",
    "while",
    "fori",
    "scan",
    "nested loops",
    "rounding",
)  # and extremes of rows:
BY_JAX = (*BY_JAX, "comparisons", "reductions", "cumulative", "static updates")


@pytest.mark.parametrize("name", sampled([name for name in DERIVED if name != "calls"]))  # tripled has no jvp
def test_jacobians_agree_with_jax(name, monkeypatch):
    """All columns at once: by the chain rule on scalars, or by JAX where there are loops."""
    f, expand, by_jax = lambda x: derivable(DERIVED[name], x), lowering._expand_columns, []
    monkeypatch.setattr(lowering, "_expand_columns", lambda *args: by_jax.append(name) or expand(*args))
    found, expected = native(lambda x: columns(f, x)), jax.jit(lambda x: (f(x), jax.jacfwd(f)(x)))(jnp.asarray(X))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    assert bool(by_jax) == (name in BY_JAX), "scalars have no derivatives of loops and extremes, and of all else"


def test_an_unknown_primitive_is_named():
    with pytest.raises(LoweringError, match="'cholesky'"):
        native(lambda x: jnp.linalg.cholesky(jnp.outer(x, x) + 9 * jnp.eye(4)))


def test_single_precision_is_refused():
    with pytest.raises(LoweringError, match="float32"):
        native(lambda x: x.astype(jnp.float32).sum())


def test_a_changing_carry_is_named():
    with pytest.raises(LoweringError, match=r"carry\['x'\] is int64\[4\], not float64\[4\]"):
        problem = make_problem(
            lambda c, carry, u: {"x": carry["x"].astype(int)}, lambda c, carry: carry, None, {"x": X}
        )
        run_problem(problem, saves=1, backend="llvm")
