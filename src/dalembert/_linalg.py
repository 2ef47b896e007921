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


def direction(matrix: Array, rhs: Array, split: int | None = None) -> tuple[Array, Array]:
    """(A^-1 B, sign det A) for Newton's iteration, which corrects what this loses: by cofactors up to four unknowns.

    One division and no pivots, so no chain of comparisons. With `split` = n the matrix is [[K, D], [C, 0]] with a regular K
    of n rows, as a constraint makes it, and its Schur complement C K^-1 D is used.
    """
    size = matrix.shape[0]
    if split is None or split == size:
        return COFACTORS[size](matrix, rhs) if size in COFACTORS else eliminate(matrix, rhs)
    (k, d), (c, _) = ((row[:, :split], row[:, split:]) for row in (matrix[:split], matrix[split:]))
    both, sign_k = direction(k, jnp.concatenate([rhs[:split], d], axis=1))
    free, coupling = both[:, : rhs.shape[1]], both[:, rhs.shape[1] :]
    reaction, sign_s = direction(c @ coupling, c @ free - rhs[split:])
    return jnp.concatenate([free - coupling @ reaction, reaction]), sign_k * sign_s


def _divided(adjugate: Array, determinant: Array, rhs: Array) -> tuple[Array, Array]:
    return (adjugate @ rhs) * (1.0 / determinant), jnp.where(determinant < 0, -1.0, 1.0)


def _cofactors1(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    return _divided(jnp.ones((1, 1)), matrix[0, 0], rhs)


def _cofactors2(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    (a, b), (c, d) = matrix
    return _divided(jnp.array([[d, -b], [-c, a]]), a * d - b * c, rhs)


def _cofactors3(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    a, b, c = matrix
    first = jnp.cross(b, c)
    return _divided(jnp.stack([first, jnp.cross(c, a), jnp.cross(a, b)], axis=1), a @ first, rhs)


def _cofactors4(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    """By the 2 x 2 minors of the upper and of the lower two rows (Laplace)."""
    a, b, c, d = matrix

    def minors(p, q):
        return {(i, j): p[i] * q[j] - q[i] * p[j] for i in range(4) for j in range(i + 1, 4)}

    upper, lower = minors(a, b), minors(c, d)
    signs = {(0, 1): 1, (0, 2): -1, (0, 3): 1, (1, 2): 1, (1, 3): -1, (2, 3): 1}
    other = {key: tuple(sorted({0, 1, 2, 3} - set(key))) for key in signs}
    determinant = sum(sign * upper[key] * lower[other[key]] for key, sign in signs.items())

    def entry(column, row, block):
        """(-1)^column times the row expanded along the minors that avoid the column."""
        i, j, k = sorted({0, 1, 2, 3} - {column})
        return (-1) ** column * (row[i] * block[j, k] - row[j] * block[i, k] + row[k] * block[i, j])

    rows = [[entry(i, b, lower), -entry(i, a, lower), entry(i, d, upper), -entry(i, c, upper)] for i in range(4)]
    return _divided(jnp.array(rows), determinant, rhs)


COFACTORS = {1: _cofactors1, 2: _cofactors2, 3: _cofactors3, 4: _cofactors4}


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
