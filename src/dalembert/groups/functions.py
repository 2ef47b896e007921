"""Functions that closed forms need: even functions of an angle t, and the matrix exponential.

The even functions are written in x = t^2 and are exact, with all derivatives, at 0 and everywhere else. Below t = CUT a
Taylor polynomial is used, above it the closed form, which has no cancellation there. Both branches get harmless
arguments where they are not selected, so that gradients of the selection are finite (the "double where").
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import comb, factorial

import jax.numpy as jnp
from jax import Array

from ..numerics.types import AnyShape, Matrix, Number

CUT = 1.5
_TERMS = 20


def _bernoulli(count: int) -> list[Fraction]:
    """B_0, ..., B_count from sum_j C(m+1, j) B_j = 0."""
    numbers = [Fraction(1)]
    for m in range(1, count + 1):
        numbers.append(-sum((comb(m + 1, j) * numbers[j] for j in range(m)), Fraction(0)) / (m + 1))
    return numbers


def _significant_terms(coefficients: list[Fraction]) -> list[Fraction]:
    """The terms that matter below the cut, in the value and in two derivatives."""
    return [c for k, c in enumerate(coefficients) if abs(c / coefficients[0]) * Fraction(CUT) ** (2 * k) > 1e-19]


def _derivative(coefficients: list[Fraction]) -> list[Fraction]:
    return [k * c for k, c in enumerate(coefficients)][1:]


def _even_function(coefficients: list[Fraction], closed: Callable[[Array], Array]) -> Callable[[AnyShape], AnyShape]:
    """The function that is the polynomial for x < CUT^2 and the closed form elsewhere."""

    def value(x: AnyShape) -> AnyShape:
        small = x < CUT**2
        inside = jnp.where(small, x, 0.0)
        series = jnp.full_like(inside, float(coefficients[-1]))
        for c in reversed(coefficients[:-1]):
            series = series * inside + float(c)
        return jnp.where(small, series, closed(jnp.where(small, CUT**2, x)))

    return value


_SINC = _significant_terms([Fraction((-1) ** k, factorial(2 * k + 1)) for k in range(_TERMS)])
_COSC = _significant_terms([Fraction((-1) ** k, factorial(2 * k + 2)) for k in range(_TERMS)])
_SINC1 = _significant_terms([Fraction((-1) ** k, factorial(2 * k + 3)) for k in range(_TERMS)])
_B = _bernoulli(2 * _TERMS)
_COTC = _significant_terms([abs(_B[2 * k]) / factorial(2 * k) for k in range(1, _TERMS + 1)])


def _sinc_closed(x: AnyShape) -> AnyShape:
    t = jnp.sqrt(x)
    return jnp.sin(t) / t


def _cosc_closed(x: AnyShape) -> AnyShape:
    half = jnp.sin(0.5 * jnp.sqrt(x))
    return 2.0 * half * half / x


def _sinc1_closed(x: AnyShape) -> AnyShape:
    return (1.0 - _sinc_closed(x)) / x


def _cotc_closed(x: AnyShape) -> AnyShape:
    half = 0.5 * jnp.sqrt(x)
    return (1.0 - half * jnp.cos(half) / jnp.sin(half)) / x


def _d_cotc_closed(x: AnyShape) -> AnyShape:
    half = 0.5 * jnp.sqrt(x)
    sine = jnp.sin(half)
    return (0.125 / (sine * sine) - 0.5 * half * jnp.cos(half) / (sine * x) - _cotc_closed(x)) / x


sinc = _even_function(_SINC, _sinc_closed)
"""sin t / t."""
cosc = _even_function(_COSC, _cosc_closed)
"""(1 - cos t) / t^2."""
sinc1 = _even_function(_SINC1, _sinc1_closed)
"""(t - sin t) / t^3."""
cotc = _even_function(_COTC, _cotc_closed)
"""(1 - (t/2) cot(t/2)) / t^2, the coefficient of ad^2 in the inverse of dexp; its pole is t = 2 pi."""
d_cosc = _even_function(_derivative(_COSC), lambda x: (0.5 * _sinc_closed(x) - _cosc_closed(x)) / x)
"""Derivative of `cosc` in x."""
d_sinc1 = _even_function(_derivative(_SINC1), lambda x: 0.5 * (_cosc_closed(x) - 3.0 * _sinc1_closed(x)) / x)
"""Derivative of `sinc1` in x."""
d_cotc = _even_function(_derivative(_COTC), _d_cotc_closed)
"""Derivative of `cotc` in x."""

DEGREE = 20
BLOCK = 5
RADIUS = 1.25
SQUARINGS = 8


def exponential(matrix: Matrix, square: Number) -> Matrix:
    """exp(X) without LAPACK, branches or a linear solve, for rotation parts up to 320 in norm.

    It is the Taylor polynomial of degree 20 with up to eight squarings.
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


def _taylor(matrix: Matrix) -> Matrix:
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


def frobenius(matrix: AnyShape) -> Number:
    """The norm (sum of squares)^1/2, with gradient 0 at 0."""
    square = jnp.sum(matrix * matrix)
    positive = square > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
