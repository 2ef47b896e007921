"""The motion to round-off in pure JAX, so that it can be vmapped, differentiated and used inside Newton's method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import NumericalFailure

STAGES = 8
LIMIT = 60


def _gauss(stages: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes c, weights b and matrix a of Gauss collocation on [0, 1], through Legendre polynomials."""
    legendre = np.polynomial.legendre
    x, weights = legendre.leggauss(stages)
    values = legendre.legvander(x, stages - 1)
    integrals = np.stack([legendre.legval(x, legendre.legint(unit, lbnd=-1)) for unit in np.eye(stages)], axis=1)
    return (x + 1) / 2, weights / 2, integrals @ np.linalg.inv(values) / 2


NODES, WEIGHTS, MATRIX = _gauss(STAGES)


def flow(field: Callable, t, y: Array, duration, pieces: Any = 1) -> Array:
    """y(t + duration) of y' = field(t, y), by Gauss collocation of order 16 in `pieces` equal steps."""
    h = duration / pieces
    many = jax.vmap(field)

    def stages(t, y):
        def improve(state):
            slopes, _, change, count = state
            new = many(t + NODES * h, y + h * MATRIX @ slopes)
            return new, change, jnp.max(jnp.abs(new - slopes)), count + 1

        def shrinking(state):
            _, before, change, count = state
            return (count < LIMIT) & ((count < 2) | (change < 0.5 * before)) & (change > 0)

        zero = jnp.zeros((), y.dtype)
        begin = (jnp.tile(field(t, y), (STAGES, 1)), zero, zero + jnp.inf, 0)
        return jax.lax.while_loop(shrinking, improve, begin)[0]

    def piece(k, y):
        return y + h * WEIGHTS @ stages(t + k * h, y)

    return jax.lax.fori_loop(0, pieces, piece, y)


def enough_pieces(run: Callable[[int], Array], tolerance: float = 1e-14, limit: int = 128) -> int:
    """The number of pieces from which on halving them leaves the end of a motion, `run(pieces)`, at `tolerance` relative to its size."""
    last = np.asarray(run(1))
    for pieces in 2 ** np.arange(int(np.log2(limit)) + 1):
        new = np.asarray(run(2 * int(pieces)))
        if np.abs(new - last).max() <= tolerance * (1 + np.abs(new).max()):
            return int(pieces)
        last = new
    raise NumericalFailure(
        f"the motion is not resolved by {2 * limit} pieces of order {2 * STAGES}: take a shorter time"
    )
