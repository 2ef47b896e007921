"""Questions that a function's jaxpr answers without evaluating it.

One question is whether constraints are already solved for some velocities: A has literal unit columns, and
xi_f = b_f - K xi_a. Then M x + A^T l = top, A x = bottom is n - m equations in x_a, with the reduced metric B^T M B,
B = (1, -K), in place of n + m equations with pivots: the horizontal equations of an Ehresmann connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..kernels import Builder, Lowering, LoweringError, map_elements, pack_values, scalar_type
from .solvers import direction

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr


LOOPS = ("while", "scan")
MOVES = (
    "add", "broadcast_in_dim", "concatenate", "convert_element_type", "dynamic_slice", "gather", "neg", "reshape",
    "slice", "squeeze", "sub", "transpose",
)  # fmt: skip
"""What moves and adds numbers, and leaves zeros zero."""
PICKS = ("dynamic_slice", "gather")  # their further inputs are places
PRODUCTS = ("dot_general", "mul")
"""What is zero where one of its factors is."""
CALLS = ("jit", "pjit")


def depends(function: Callable[..., Any], argument: Any) -> bool:
    """Whether the value of `function` can depend on `argument` (False is a proof, True is not)."""
    closed = jax.make_jaxpr(function)(argument)
    return any(_reach(closed.jaxpr, [True] * len(closed.jaxpr.invars)))


def vanishes(function: Callable[..., Any], argument: Any) -> bool:
    """Whether the value of `function` is zero by its very form (True is a proof, False is not)."""
    closed = jax.make_jaxpr(function)(argument)
    return all(_nulls(closed.jaxpr, closed.consts, [False] * len(closed.jaxpr.invars)))


def _nulls(jaxpr: Jaxpr, consts: Sequence[Any], given: list[bool]) -> list[bool]:
    """Which outputs are zero when the inputs marked in `given` are."""
    from jax.extend.core import Literal

    null = {var for var, value in zip(jaxpr.constvars, consts, strict=True) if not np.asarray(value).any()}
    null |= {var for var, mark in zip(jaxpr.invars, given, strict=True) if mark}

    def is_null(atom: Any) -> bool:
        return not np.asarray(atom.val).any() if isinstance(atom, Literal) else atom in null

    for eqn in jaxpr.eqns:
        inputs = [is_null(atom) for atom in eqn.invars]
        name = eqn.primitive.name
        outputs = [
            (name in MOVES and all(inputs[: 1 if name in PICKS else None])) or (name in PRODUCTS and any(inputs))
        ] * len(eqn.outvars)
        if eqn.primitive.name in CALLS:
            inner = eqn.params["jaxpr"]
            outputs = _nulls(inner.jaxpr, inner.consts, inputs)
        null |= {var for var, zero in zip(eqn.outvars, outputs, strict=True) if zero}
    return [is_null(atom) for atom in jaxpr.outvars]


def _reach(jaxpr: Jaxpr, marked: list[bool]) -> list[bool]:
    """Which outputs the marked inputs reach."""
    from jax.extend.core import ClosedJaxpr, Jaxpr, Literal  # late, for few runs ask and the import takes its time

    reached = {var for var, mark in zip(jaxpr.invars, marked, strict=True) if mark}

    def touches(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in reached

    for eqn in jaxpr.eqns:
        inputs = [touches(atom) for atom in eqn.invars]
        inner = next((eqn.params[key] for key in ("jaxpr", "call_jaxpr") if key in eqn.params), None)
        inner = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
        constant = eqn.primitive.name == "integer_pow" and eqn.params["y"] == 0
        outputs = [any(inputs) and not constant] * len(eqn.outvars)
        if isinstance(inner, Jaxpr) and len(inner.invars) == len(inputs) and eqn.primitive.name not in LOOPS:
            outputs = _reach(inner, inputs)
        reached |= {var for var, mark in zip(eqn.outvars, outputs, strict=True) if mark}
    return [touches(atom) for atom in jaxpr.outvars]


Units = tuple[tuple[int, int], ...]


def fibre(system: Any, t: Any, g: Any, xi: Any) -> Units | None:
    """For each row of the constraint a literal unit column (its index, its sign), for all states and parameters."""
    leaves, structure = jax.tree.flatten((system, t, g, xi))
    return _fibre(structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


@lru_cache(maxsize=128)
def _fibre(structure: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...]) -> Units | None:
    def rows(*flat: Any) -> Any:
        system, t, g, xi = jax.tree.unflatten(structure, flat)
        return system.rows(t, g)(xi)

    try:
        shapes = (jax.ShapeDtypeStruct(*leaf) for leaf in leaves)  # type: ignore[no-untyped-call]  # JAX has no types
        known = literals(rows, *shapes)
    except LoweringError:  # an operation that only XLA knows
        return None
    units = [
        next(((int(j), int(known[i, j])) for j in np.flatnonzero(known[i]) if _is_unit(known[:, j], i)), None)
        for i in range(known.shape[0])
    ]
    return None if None in units else tuple(unit for unit in units if unit)


def _is_unit(column: np.ndarray[Any, Any], i: int) -> bool:
    return bool(abs(column[i]) == 1.0 and not np.delete(column, i).any())


def literals(function: Callable[..., Any], *args: Any) -> np.ndarray[Any, Any]:
    """The entries of the function's value that are the same numbers for all arguments, NaN where they are not."""
    lowering = Lowering(Builder())
    inputs = [
        pack_values([lowering.builder.source("input", scalar_type(arg.dtype)) for _ in range(arg.size)], arg.shape)
        for arg in jax.tree.leaves(args)
    ]
    (result,) = lowering.lower_closed(jax.make_jaxpr(function)(*args), inputs)
    return map_elements(lambda value: value.data if value.op == "const" else np.nan, result).astype(float)


def solve_reduced(units: Units, metric: Array, rows: Array, top: Array, bottom: Array) -> tuple[Array, Array]:
    """(x, l) with M x + A^T l = top and A x = bottom, where `units` are the literal unit columns of A."""
    bound = np.array([j for j, _ in units], int)
    signs = jnp.array([sign for _, sign in units], float)
    free = np.setdiff1d(np.arange(len(top)), bound)
    K, fixed = signs[:, None] * rows[:, free], signs * bottom
    mixed = metric[free][:, bound] - K.T @ metric[bound][:, bound]
    reduced = metric[free][:, free] - K.T @ metric[bound][:, free] - mixed @ K
    x = _solve(jnp.triu(reduced) + jnp.triu(reduced, 1).T, top[free] - K.T @ top[bound] - mixed @ fixed)
    full = jnp.zeros_like(top).at[free].set(x).at[bound].set(fixed - K @ x)
    return full, signs * (top - metric @ full)[bound]


@jax.custom_jvp
def _solve(matrix: Array, rhs: Array) -> Array:
    return direction(matrix, rhs[:, None])[0][:, 0]


@_solve.defjvp
def _solve_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (matrix, rhs), (d_matrix, d_rhs) = primals, tangents
    solution = _solve(matrix, rhs)
    return solution, _solve(matrix, d_rhs - d_matrix @ solution)
