"""Small dense linear algebra in plain JAX: no LAPACK call, so that a step compiles to straight scalar code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._elimination import eliminate

FAIR = 2.0**-40  # of the square of a row, for the square of its pivot
DEFINITE = 2.0**-16  # of the largest element on the diagonal of a metric, for its pivots


@jax.jit  # traced once for its shapes
def reduce(matrix: Array, *rhs: Array) -> tuple[Array, ...]:
    """(A^-1 B for every B, the pivots) by Gauss-Jordan elimination without exchanges: for a definite A, where that is stable."""
    left, right, pivots = matrix, list(rhs), []
    for k in range(matrix.shape[0]):
        here = np.arange(matrix.shape[0])[:, None] == k
        pivot, column = left[k : k + 1, :1], left[:, :1]
        inverse = 1.0 / pivot

        def cleared(part, k=k, here=here, inverse=inverse, column=column):
            row = part[k : k + 1] * inverse
            return jnp.where(here, row, part - column * row)

        left, right = cleared(left[:, 1:]), [cleared(part) for part in right]
        pivots.append(pivot[0, 0])
    return *right, jnp.array(pivots)


def direction(matrix: Array, rhs: Array, split: int | None = None) -> tuple[Array, Array]:
    """(A^-1 B, sign det A) for Newton's iteration, which corrects what this loses: by cofactors up to four unknowns.

    One division and no pivots, so no chain of comparisons. With `split` = n the matrix is [[K, D], [C, 0]] with a regular K
    of n rows, as a constraint makes it, and its Schur complement C K^-1 D is used.
    """
    size = matrix.shape[0]
    if split is None or split == size:
        return COFACTORS[size](matrix, rhs) if size in COFACTORS else _checked(matrix, rhs)
    (k, d), (c, _) = ((row[:, :split], row[:, split:]) for row in (matrix[:split], matrix[split:]))
    both, sign_k = direction(k, jnp.concatenate([rhs[:split], d], axis=1))
    free, coupling = both[:, : rhs.shape[1]], both[:, rhs.shape[1] :]
    reaction, sign_s = direction(c @ coupling, c @ free - rhs[split:])
    return jnp.concatenate([free - coupling @ reaction, reaction]), sign_k * sign_s


def _checked(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    """Without exchanges of rows unless a pivot is small in its row: a step's matrix is near a metric."""
    (pivots,) = reduce(matrix)
    fair = jnp.all(pivots * pivots > FAIR * jnp.sum(matrix * matrix, axis=1))
    sign = jnp.prod(jnp.where(pivots < 0, -1.0, 1.0))
    return jax.lax.cond(fair, lambda b: (reduce(matrix, b)[0], sign), lambda b: eliminate(matrix, b), rhs)


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
    return _solve_saddle(metric, rows, (top, bottom))


@jax.custom_jvp
def _solve_saddle(metric: Array, rows: Array, rhs: tuple[Array, Array]) -> tuple[Array, Array]:
    """By the Schur complement A M^-1 A^T of a definite M, which needs no exchanges of rows; else the whole matrix, with exchanges."""

    def complement(top, bottom):
        free, coupling, _ = reduce(metric, top[:, None], rows.T)
        first, _ = reduce(rows @ coupling, rows @ free - bottom[:, None])
        # what a light coordinate lost by cancellation in M^-1 (top - A^T l): once more, so that A x = bottom to round-off
        again, _ = reduce(rows @ coupling, rows @ (free - coupling @ first) - bottom[:, None])
        return (free - coupling @ first - coupling @ again)[:, 0], (first + again)[:, 0]

    def whole(top, bottom):
        solution, _ = eliminate(saddle(metric, rows), jnp.concatenate([top, bottom])[:, None])
        return solution[: len(top), 0], solution[len(top) :, 0]

    definite = jnp.min(reduce(metric)[0]) > DEFINITE * jnp.max(jnp.diagonal(metric))
    return jax.lax.cond(definite, complement, whole, *rhs)


@_solve_saddle.defjvp
def _solve_saddle_jvp(primals, tangents):
    metric, rows, _ = primals
    d_metric, d_rows, (d_top, d_bottom) = tangents
    x, l = solution = _solve_saddle(*primals)
    change = d_top - d_metric @ x - d_rows.T @ l, d_bottom - d_rows @ x
    return solution, _solve_saddle(metric, rows, change)
