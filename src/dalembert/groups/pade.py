"""The matrix exponential without LAPACK and without branches."""

from __future__ import annotations

from math import factorial

import jax.numpy as jnp
from jax import Array

from .._linalg import solve

DEGREE = 13
RADIUS = 5.37
SQUARINGS = 6
_COEFFICIENTS = [
    factorial(2 * DEGREE - k) * factorial(DEGREE) / (factorial(2 * DEGREE) * factorial(k) * factorial(DEGREE - k))
    for k in range(DEGREE + 1)
]


def exponential(matrix: Array, square: Array) -> Array:
    """exp(X) by the [13/13] Pade approximant and up to six squarings (Higham 2005).

    `square` bounds the squared spectral norm of the rotation part of X, which alone decides the number of squarings;
    |X| <= 343 is covered. The approximant of a skew matrix is orthogonal, whatever its size.
    """
    scale, halvings = jnp.ones_like(square), []
    for k in range(SQUARINGS):
        large = square > (RADIUS * 2.0**k) ** 2
        scale = jnp.where(large, 0.5 * scale, scale)
        halvings.append(large)
    value = _approximant(scale * matrix)
    for large in halvings:
        value = jnp.where(large, value @ value, value)
    return value


def _approximant(matrix: Array) -> Array:
    """q(X)^-1 q(-X) with the even and odd parts of q from powers of X^2 (Higham 2005, (10.33))."""
    b, one = _COEFFICIENTS, jnp.eye(len(matrix), dtype=matrix.dtype)
    two = matrix @ matrix
    four = two @ two
    six = two @ four
    odd = six @ (b[13] * six + b[11] * four + b[9] * two) + b[7] * six + b[5] * four + b[3] * two + b[1] * one
    even = six @ (b[12] * six + b[10] * four + b[8] * two) + b[6] * six + b[4] * four + b[2] * two + b[0] * one
    odd = matrix @ odd
    return solve(even - odd, even + odd)
