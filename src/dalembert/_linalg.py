"""Small dense linear algebra in plain JAX: no LAPACK call, so that a step compiles to straight scalar code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def eliminate(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    """Gaussian elimination with partial pivoting: (A^-1 B, sign det A), for A (n, n) and B (n, k).

    The pivot is bubbled up by selects, so the code is free of branches and of data-dependent indices.
    """
    size = matrix.shape[0]
    if size == 2:
        return _cramer(matrix, rhs)
    left, right = list(matrix), list(rhs)  # kept apart: right stays linear, so that the solve can be transposed
    sign = jnp.ones((), matrix.dtype)
    for k in range(size):
        for i in range(k + 1, size):
            larger = jnp.abs(left[i][k]) > jnp.abs(left[k][k])
            left[k], left[i] = jnp.where(larger, left[i], left[k]), jnp.where(larger, left[k], left[i])
            right[k], right[i] = jnp.where(larger, right[i], right[k]), jnp.where(larger, right[k], right[i])
            sign = jnp.where(larger, -sign, sign)
        pivot = left[k][k]
        sign = jnp.where(pivot < 0, -sign, sign)
        left[k], right[k] = left[k] * (1.0 / pivot), right[k] * (1.0 / pivot)
        for i in range(k + 1, size):
            left[i], right[i] = left[i] - left[i][k] * left[k], right[i] - left[i][k] * right[k]
    for k in reversed(range(size)):
        for i in range(k):
            right[i] = right[i] - left[i][k] * right[k]
    return jnp.stack(right) if size else rhs, sign


def _cramer(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    """Two unknowns, by one division and no pivoting."""
    (a, b), (c, d) = matrix
    determinant = a * d - b * c
    inverse = 1.0 / determinant
    solution = jnp.stack([(d * rhs[0] - b * rhs[1]) * inverse, (a * rhs[1] - c * rhs[0]) * inverse])
    return solution, jnp.where(determinant < 0, -1.0, 1.0)


@jax.custom_jvp
def solve(matrix: Array, rhs: Array) -> Array:
    """A^-1 b for A (n, n) and b (n,) or (n, k); its derivative is A^-1 (db - dA A^-1 b)."""
    columns = rhs if rhs.ndim == 2 else rhs[:, None]
    return eliminate(matrix, columns)[0].reshape(rhs.shape)


@solve.defjvp
def _solve_jvp(primals, tangents):
    matrix, rhs = primals
    d_matrix, d_rhs = tangents
    solution = solve(matrix, rhs)
    return solution, solve(matrix, d_rhs - d_matrix @ solution)


def saddle(metric: Array, rows: Array) -> Array:
    """The KKT matrix [[M, A^T], [A, 0]]."""
    zero = jnp.zeros((rows.shape[0], rows.shape[0]), metric.dtype)
    return jnp.block([[metric, rows.T], [rows, zero]])


def solve_saddle(metric: Array, rows: Array, top: Array, bottom: Array) -> tuple[Array, Array]:
    """(x, l) with M x + A^T l = top and A x = bottom."""
    solution = solve(saddle(metric, rows), jnp.concatenate([top, bottom]))
    return solution[: top.shape[0]], solution[top.shape[0] :]
