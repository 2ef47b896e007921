"""The matrix exponential without LAPACK, without branches and without a linear solve."""

from __future__ import annotations

from math import factorial

import jax.numpy as jnp
from jax import Array

DEGREE = 20
BLOCK = 5
RADIUS = 1.25
SQUARINGS = 8


def exponential(matrix: Array, square: Array) -> Array:
    """exp(X) by its Taylor polynomial of degree 20 and up to eight squarings, for rotation parts up to 320 in norm.

    `square` bounds the squared spectral norm of the rotation part of X, which alone decides the number of squarings.
    The terms fall from the first on (the radius is 1.25, where the remainder is 3e-18), so nothing cancels.
    """
    scale, halvings = jnp.ones_like(square), []
    for k in range(SQUARINGS):
        large = square > (RADIUS * 2.0**k) ** 2
        scale = jnp.where(large, 0.5 * scale, scale)
        halvings.append(large)
    value = _taylor(scale * matrix)
    for large in halvings:
        value = jnp.where(large, value @ value, value)
    return value


def _taylor(matrix: Array) -> Array:
    """sum of X^k/k! over k <= 20 by Paterson and Stockmeyer's seven products."""
    powers = [jnp.eye(len(matrix), dtype=matrix.dtype), matrix]
    for _ in range(2, BLOCK + 1):
        powers.append(powers[-1] @ matrix)

    def block(start: int) -> Array:
        terms = [powers[k] * (1.0 / factorial(start + k)) for k in range(BLOCK)]
        return sum(terms[1:], terms[0])

    value = block(DEGREE - BLOCK) + powers[BLOCK] * (1.0 / factorial(DEGREE))
    for start in range(DEGREE - 2 * BLOCK, -1, -BLOCK):
        value = value @ powers[BLOCK] + block(start)
    return value
