"""A step in as many unknowns as the motion has freedoms: the velocity w by coordinates on the discrete constraint, multipliers eliminated.

Where -D1 L_d = mu0(w) is explicit, p_k + A(g_k)^T h l = mu0(w) says that mu0 - p_k annihilates D at g_k: n - m equations for the n - m
coordinates of w, and h l is read off afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._fibre import literals
from .._linalg import solve
from ..differences import FiniteDifference
from ..invariant import InvariantSystem
from ..kernels.program import LoweringError


class Coordinates(Protocol):
    """Coordinates x on the velocities w that a step may have, and the pairing of covectors c = mu0 - p with D."""

    def of(self, system: Any, w: Array) -> tuple[Array, Array]:
        """(x, what else w is made of)."""

    def velocity(self, system: Any, x: Array, rest: Array) -> Array: ...

    def rest(self, off: Callable[[Array], Array], x: Array) -> Array:
        """What else w is made of, so that off(w) = 0: the discrete constraint."""

    def on_D(self, system: Any, rows: Array, c: Array) -> Array:
        """c on the kernel of `rows`, n - m numbers."""

    def reaction(self, system: Any, rows: Array, c: Array) -> Array:
        """l with rows^T l = c, for a c that is zero on D."""


class OnSubspace(NamedTuple):
    """w = B x where d is constant."""

    def of(self, system: InvariantSystem, w: Array) -> tuple[Array, Array]:
        return system.coordinates(w), jnp.zeros(0)

    def velocity(self, system: InvariantSystem, x: Array, rest: Array) -> Array:
        return system.subspace @ x

    def rest(self, off: Callable[[Array], Array], x: Array) -> Array:
        return jnp.zeros(0)

    def on_D(self, system: InvariantSystem, rows: Array, c: Array) -> Array:
        return system.subspace.T @ c

    def reaction(self, system: InvariantSystem, rows: Array, c: Array) -> Array:
        return solve(rows @ rows.T, rows @ c)


class OnFibre(NamedTuple):
    """w = (x, w_f) where the discrete constraint is w_f = r(x) as it is written, and A(g_k) = (K, +-1): an Ehresmann connection."""

    free: tuple[int, ...]
    bound: tuple[int, ...]
    signs: tuple[int, ...]

    def of(self, system: Any, w: Array) -> tuple[Array, Array]:
        return w[_index(self.free)], w[_index(self.bound)]

    def velocity(self, system: Any, x: Array, rest: Array) -> Array:
        return jnp.concatenate([x, rest])[np.argsort(_index(self.free + self.bound))]

    def rest(self, off: Callable[[Array], Array], x: Array) -> Array:
        return off(self.velocity(None, x, jnp.zeros(len(self.bound)))) * -np.array(self.signs, float)

    def on_D(self, system: Any, rows: Array, c: Array) -> Array:
        return c[_index(self.free)] - rows[:, _index(self.free)].T @ self.reaction(system, rows, c)

    def reaction(self, system: Any, rows: Array, c: Array) -> Array:
        return c[_index(self.bound)] * np.array(self.signs, float)


def _index(places: tuple[int, ...]) -> np.ndarray:
    return np.array(places, int)


Off = Callable[[Any, Any, Any, Array, Any], Array]


def coordinates(system: Any, difference: FiniteDifference, off: Off, t, g, h) -> Coordinates | None:
    """Coordinates on off(system, t, g, w, h) = 0 that leave no multipliers; None where there are none, or where mu0(w) is not explicit."""
    if not difference.explicit(system.group) or system.holonomic_constraints:
        return None
    if isinstance(system, InvariantSystem):
        return OnSubspace()
    leaves, structure = jax.tree.flatten((system, t, g, h))
    return _on_fibre(off, structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


@lru_cache(maxsize=1024)
def _on_fibre(off: Off, structure, leaves) -> OnFibre | None:
    """Each row needs a column that is literally a unit vector, in the derivative of the discrete constraint and in A(g_k)."""

    def slopes(w, *flat):
        system, t, g, h = jax.tree.unflatten(structure, flat)
        return jnp.concatenate([jax.jacfwd(lambda w: off(system, t, g, w, h))(w), system.rows(t, g)(w)])

    shapes = [jax.ShapeDtypeStruct(*leaf) for leaf in leaves]
    n = jax.tree.unflatten(structure, shapes)[0].group.dim
    try:
        known = literals(slopes, jax.ShapeDtypeStruct((n,), float), *shapes)
    except LoweringError:
        return None
    units = [_column(known, np.tile(unit, 2)) for unit in np.eye(known.shape[0] // 2)]
    if None in units:
        return None
    bound, signs = zip(*units, strict=True) if units else ((), ())
    return OnFibre(tuple(j for j in range(n) if j not in bound), bound, signs)


def _column(matrix: np.ndarray, unit: np.ndarray) -> tuple[int, int] | None:
    """(j, s) with column j equal to s * unit."""
    signed = ((j, s) for s in (1, -1) for j in range(matrix.shape[1]) if np.array_equal(matrix[:, j], s * unit))
    return next(signed, None)
