"""Constraints that say some velocities in terms of the others as they are written: xi_f = b_f - K xi_a, where A has literal units.

Then M x + A^T l = top, A x = bottom is n - m equations in x_a, with the reduced metric B^T M B, B = (1, -K), in place of n + m with
pivots: the horizontal equations of an Ehresmann connection, whose coordinates f the compiler can see.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._linalg import direction
from .kernels.program import LoweringError


def fibre(system: Any, t, g, xi) -> tuple[tuple[int, int], ...] | None:
    """For each row of the constraint a (column, sign) that is literally a unit vector, whatever the time, state and parameters; or None."""
    leaves, structure = jax.tree.flatten((system, t, g, xi))
    return _fibre(structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


@lru_cache(maxsize=1024)
def _fibre(structure, leaves) -> tuple[tuple[int, int], ...] | None:
    def rows(*flat):
        system, t, g, xi = jax.tree.unflatten(structure, flat)
        return system.rows(t, g)(xi)

    try:
        known = literals(rows, *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves))
    except LoweringError:  # an operation that only XLA knows
        return None
    units = [
        next(((int(j), int(known[i, j])) for j in np.flatnonzero(known[i]) if _unit(known[:, j], i)), None)
        for i in range(known.shape[0])
    ]
    return None if None in units else tuple(unit for unit in units if unit)


def _unit(column: np.ndarray, i: int) -> bool:
    return abs(column[i]) == 1.0 and not np.delete(column, i).any()


def literals(function, *args) -> np.ndarray:
    """The entries of the function's value that are the same numbers for all arguments, NaN where they are not."""
    from .kernels.builder import Builder  # late: a run that finds its program on disk needs none of it
    from .kernels.lower import Lowering
    from .kernels.rules import mapped, packed, scalar_type

    lowering = Lowering(Builder())
    inputs = [
        packed([lowering.builder.source("input", scalar_type(arg.dtype)) for _ in range(arg.size)], arg.shape)
        for arg in jax.tree.leaves(args)
    ]
    (result,) = lowering.closed(jax.make_jaxpr(function)(*args), inputs)
    return mapped(lambda value: value.data if value.op == "const" else np.nan, result).astype(float)


def solve_reduced(
    units: tuple[tuple[int, int], ...], metric: Array, rows: Array, top: Array, bottom: Array
) -> tuple[Array, Array]:
    """(x, l) with M x + A^T l = top and A x = bottom, where `units` are the literal unit columns of A."""
    bound = np.array([j for j, _ in units], int)
    signs = jnp.array([sign for _, sign in units], float)
    free = np.setdiff1d(np.arange(len(top)), bound)
    K, fixed = signs[:, None] * rows[:, free], signs * bottom
    mixed = metric[free][:, bound] - K.T @ metric[bound][:, bound]
    reduced = metric[free][:, free] - K.T @ metric[bound][:, free] - mixed @ K
    x = _solve(jnp.triu(reduced) + jnp.triu(reduced, 1).T, top[free] - K.T @ top[bound] - mixed @ fixed)
    whole = jnp.zeros_like(top).at[free].set(x).at[bound].set(fixed - K @ x)
    return whole, signs * (top - metric @ whole)[bound]


@jax.custom_jvp
def _solve(matrix: Array, rhs: Array) -> Array:
    return direction(matrix, rhs[:, None])[0][:, 0]


@_solve.defjvp
def _solve_jvp(primals, tangents):
    (matrix, rhs), (d_matrix, d_rhs) = primals, tangents
    solution = _solve(matrix, rhs)
    return solution, _solve(matrix, d_rhs - d_matrix @ solution)
