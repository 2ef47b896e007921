"""Polynomials in several variables: found by interpolation of functions and as the equations that points satisfy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from ..errors import NumericalFailure


@dataclass(frozen=True, eq=False)
class Polynomials:
    """k polynomials in r variables: sum over rows of `exponents` (m, r) of the `coefficients` (m, k) times the monomial."""

    exponents: np.ndarray
    coefficients: np.ndarray

    @property
    def degrees(self) -> np.ndarray:
        """The total degree of each polynomial, shape (k,)."""
        present = np.abs(self.coefficients) > 0
        return np.where(present, self.exponents.sum(1)[:, None], 0).max(0)

    def __call__(self, x) -> np.ndarray:
        """Values at points x of shape (..., r): shape (..., k)."""
        return monomials(x, self.exponents) @ self.coefficients

    def derivative(self) -> tuple[Polynomials, ...]:
        """The partial derivatives, one for each variable."""
        parts = []
        for i in range(self.exponents.shape[1]):
            power = self.exponents[:, i]
            keep = power > 0
            lower = self.exponents[keep].copy()
            lower[:, i] -= 1
            parts.append(Polynomials(lower, self.coefficients[keep] * power[keep, None]))
        return tuple(parts)

    def slope(self, x) -> np.ndarray:
        """The Jacobian at points x, shape (..., k, r)."""
        return np.stack([part(x) for part in self.derivative()], axis=-1)

    def terms(self, which: int = 0, tolerance: float = 1e-12) -> dict[tuple[int, ...], complex]:
        """{exponents: coefficient} of one polynomial, without what is below `tolerance` of the largest."""
        column = self.coefficients[:, which]
        large = np.abs(column) > tolerance * np.abs(column).max()
        return {tuple(map(int, e)): c.item() for e, c in zip(self.exponents[large], column[large], strict=True)}


def exponents(variables: int, degree: int) -> np.ndarray:
    """All monomials of total degree at most `degree`, lower degrees first, shape (m, variables)."""
    rows = []
    for total in range(degree + 1):
        for choice in combinations_with_replacement(range(variables), total):
            rows.append(np.bincount(np.array(choice, int), minlength=variables))
    return np.array(rows, int).reshape(-1, variables)


def monomials(x, powers: np.ndarray) -> np.ndarray:
    """The values of monomials (m, r) at points (..., r): shape (..., m)."""
    x = np.asarray(x)
    table = np.ones((*x.shape, int(powers.max(initial=0)) + 1), x.dtype)
    for k in range(1, table.shape[-1]):
        table[..., k] = table[..., k - 1] * x
    value = table[..., 0, powers[:, 0]]
    for i in range(1, powers.shape[1]):
        value = value * table[..., i, powers[:, i]]
    return value


def interpolate(function: Callable, variables: int, degree: int, *, radius: float = 1.0) -> Polynomials:
    """The polynomials of at most this degree in each variable that `function` (points, r) -> (points, k) is.

    Values on roots of unity, whose Fourier transform gives the coefficients without loss of digits.
    """
    count = degree + 1
    circle = radius * np.exp(2j * np.pi * np.arange(count) / count)
    grid = np.stack(np.meshgrid(*[circle] * variables, indexing="ij"), axis=-1)
    values = np.asarray(function(grid.reshape(-1, variables)))
    values = values.reshape(*grid.shape[:-1], -1)
    found = np.fft.fftn(values, axes=range(variables)) / count**variables
    powers = np.stack(np.meshgrid(*[np.arange(count)] * variables, indexing="ij"), axis=-1).reshape(-1, variables)
    found = found.reshape(len(powers), -1) * radius ** -powers.sum(1)[:, None].astype(float)
    found[np.abs(found) < 1e-13 * np.abs(found).max(0)] = 0.0
    keep = np.abs(found).max(1) > 0
    return Polynomials(
        powers[keep], found[keep].real if np.abs(found.imag).max() < 1e-12 * np.abs(found).max() else found[keep]
    )


def vanishing(points: np.ndarray, degree: int, *, tolerance: float = 1e-12) -> Polynomials:
    """A basis of the polynomials of this degree that vanish at all points (p, n); none: zero columns.

    The null space of the matrix of monomials at the points, in coordinates scaled to unit size.
    """
    scale = np.sqrt(np.mean(np.abs(points) ** 2, axis=0))
    powers = exponents(points.shape[1], degree)
    null, next_value = _null_space(points / scale, powers, tolerance)
    if null.shape[1] and next_value < 30 * tolerance:
        raise NumericalFailure(
            f"the polynomials of degree {degree} that vanish on these points cannot be told from those that nearly do "
            f"(a singular value is {next_value:.1e} of the largest)"
        )
    if null.shape[1] == 1:  # fewer monomials are better conditioned: drop those that are not there
        kept = np.abs(null[:, 0]) > 1e-7 * np.abs(null).max()
        fewer, _ = _null_space(points / scale, powers[kept], tolerance)
        if fewer.shape[1] == 1:
            powers, null = powers[kept], fewer
    return Polynomials(powers, null * np.prod(scale ** -powers.astype(float), axis=1)[:, None])


def _null_space(points: np.ndarray, powers: np.ndarray, tolerance: float) -> tuple[np.ndarray, float]:
    """(null vectors as columns, the smallest singular value that counts as not zero, relative to the largest)."""
    matrix = monomials(points, powers)
    matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    norms = np.linalg.norm(matrix, axis=0)
    _, values, rows = np.linalg.svd(matrix / norms, full_matrices=len(matrix) < len(powers))
    count = len(powers) - np.count_nonzero(values >= tolerance * values[0])
    rest = values[len(powers) - count - 1] / values[0] if count < len(powers) else 0.0
    return rows[len(powers) - count :].conj().T / norms[:, None], float(rest)
