"""Polynomials in several variables: by interpolation, as the equations that points satisfy, and their solutions.

`RationalMap` finds all solutions of N(x) = c D(x), r polynomial equations in C^r: the fibres of the map N/D, by
homotopies. A generic fibre is found once, from the total-degree start system x_i^{d_i} = 1, or by monodromy where its
Bezout number is large; every other fibre is then the end of paths that begin there. Paths that end on D = 0 or at
infinity are no solutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, pairwise, product

import numpy as np
from numpy.typing import ArrayLike

from ..errors import NumericalFailure


@dataclass(frozen=True, eq=False)
class Polynomials:
    """k polynomials in r variables: the sum of `coefficients` (m, k) times monomials with `exponents` (m, r)."""

    exponents: np.ndarray
    coefficients: np.ndarray

    @property
    def degrees(self) -> np.ndarray:
        """The total degree of each polynomial, shape (k,)."""
        present = np.abs(self.coefficients) > 0
        return np.asarray(np.where(present, self.exponents.sum(1)[:, None], 0).max(0))

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """Values at points x of shape (..., r): shape (..., k)."""
        return np.asarray(monomials(x, self.exponents) @ self.coefficients)

    def derivative(self) -> tuple[Polynomials, ...]:
        """The partial derivatives, one for each variable."""
        units = np.eye(self.exponents.shape[1], dtype=int)
        return tuple(
            Polynomials(self.exponents[power > 0] - unit, self.coefficients[power > 0] * power[power > 0, None])
            for unit, power in zip(units, self.exponents.T, strict=True)
        )

    def slope(self, x: ArrayLike) -> np.ndarray:
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


def monomials(x: ArrayLike, powers: np.ndarray) -> np.ndarray:
    """The values of monomials (m, r) at points (..., r): shape (..., m)."""
    x = np.asarray(x)
    table = np.ones((*x.shape, int(powers.max(initial=0)) + 1), x.dtype)
    for k in range(1, table.shape[-1]):
        table[..., k] = table[..., k - 1] * x
    value = table[..., 0, powers[:, 0]]
    for i in range(1, powers.shape[1]):
        value = value * table[..., i, powers[:, i]]
    return value


def interpolate(function: Callable[[np.ndarray], np.ndarray], variables: int, degree: int) -> Polynomials:
    """The polynomials of at most this degree in each variable that `function` (points, r) -> (points, k) is.

    Values on roots of unity, whose Fourier transform gives the coefficients without loss of digits.
    """
    count = degree + 1
    circle = np.exp(2j * np.pi * np.arange(count) / count)
    grid = np.stack(np.meshgrid(*[circle] * variables, indexing="ij"), axis=-1)
    values = np.asarray(function(grid.reshape(-1, variables))).reshape(*grid.shape[:-1], -1)
    powers = np.stack(np.meshgrid(*[np.arange(count)] * variables, indexing="ij"), axis=-1).reshape(-1, variables)
    found = np.fft.fftn(values, axes=range(variables)).reshape(len(powers), -1) / count**variables
    found[np.abs(found) < 1e-13 * np.abs(found).max(0)] = 0.0
    keep = np.abs(found).max(1) > 0
    real = np.abs(found.imag).max() < 1e-12 * np.abs(found).max()
    return Polynomials(powers[keep], found[keep].real if real else found[keep])


def vanishing_polynomials(points: np.ndarray, degree: int, *, tolerance: float = 1e-12) -> Polynomials:
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
        present = np.abs(null[:, 0]) > 1e-7 * np.abs(null).max()
        fewer, _ = _null_space(points / scale, powers[present], tolerance)
        if fewer.shape[1] == 1:
            powers, null = powers[present], fewer
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


MAX_NORM = 1e6
MAX_PATHS = 2000
MAX_IDLE_LOOPS = 12

Family = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""(x, s) -> (F, F_x, F_s) of a homotopy F(x, s) = 0 on a batch of points x (k, r) with parameters s (k,)."""


@dataclass(frozen=True, eq=False)
class RationalMap:
    """N/D: C^r -> C^r, both polynomials; D has one column."""

    numerator: Polynomials
    denominator: Polynomials

    @property
    def rank(self) -> int:
        """The number r of unknowns."""
        return int(self.numerator.exponents.shape[1])

    @cached_property
    def _parts(self) -> tuple[Polynomials, ...]:
        """N, D and their derivatives on common monomials, so that one table of powers serves all."""
        return (self.numerator, self.denominator, *self.numerator.derivative(), *self.denominator.derivative())

    def equations(self, x: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(N - c D, its derivative in x, D) at x (k, r) for targets c (k, r)."""
        r = self.rank
        N, D, *slopes = (part(x) for part in self._parts)
        dN, dD = np.stack(slopes[:r], -1), np.stack(slopes[r:], -1)
        return N - c * D, dN - c[..., None] * dD, D

    def value(self, x: np.ndarray) -> np.ndarray:
        """N(x)/D(x) at points (k, r)."""
        return np.asarray(self.numerator(x) / self.denominator(x))

    def generic_fibre(self, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """(c, all x with N(x) = c D(x)) at a random complex c; their number is the degree of the map."""
        rng = np.random.default_rng(seed)
        base = self.value(0.7 * _draw_random(rng, 1, self.rank))[0]
        degrees = np.maximum(self.numerator.degrees, self.denominator.degrees.max())
        if np.prod(degrees.astype(float)) <= MAX_PATHS:
            return base, self._total_degree(base, degrees, rng)
        return self._monodromy(rng)

    def fibre(self, generic: tuple[np.ndarray, np.ndarray], target: np.ndarray) -> tuple[np.ndarray, int]:
        """(all isolated x with N(x) = target D(x), how many have gone to infinity), continued from a generic fibre."""
        ends = self._continue(generic[1], generic[0], np.asarray(target, complex))
        finite = np.isfinite(ends).all(1)
        return ends[finite], int(np.count_nonzero(~finite))

    def _total_degree(self, base: np.ndarray, degrees: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The ends of (1 - s) g (x^d - 1) + s (N - c D) that are regular and not on D = 0."""
        roots = [np.exp(2j * np.pi * np.arange(d) / d) for d in degrees]
        starts = np.array(list(product(*roots)))
        gamma = np.exp(2j * np.pi * rng.random(self.rank)) * np.abs(self.numerator.coefficients).max()

        def family(x: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            F, dF, _ = self.equations(x, np.broadcast_to(base, x.shape))
            G = gamma * (x**degrees - 1)
            dG = gamma[:, None] * np.eye(self.rank) * (degrees * x ** (degrees - 1))[:, None, :]
            s = s[:, None]
            return (1 - s) * G + s * F, (1 - s)[..., None] * dG + s[..., None] * dF, F - G

        ends = follow(family, starts)
        ends = ends[np.isfinite(ends).all(1)]
        _, dF, D = self.equations(ends, np.broadcast_to(base, ends.shape))
        degree = self.denominator.degrees.max()
        size = np.linalg.norm(self.denominator.coefficients) * (1 + np.abs(ends).max(1)) ** degree
        regular = (np.abs(D[:, 0]) > 1e-7 * size) & (np.linalg.cond(dF) < 1e10)
        return deduplicate(ends[regular])

    def _monodromy(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A fibre from one of its points by loops of c, until `MAX_IDLE_LOOPS` loops in a row bring nothing new.

        The graph of the map is irreducible, so the loops act transitively on a fibre.
        """
        found = 0.7 * _draw_random(rng, 1, self.rank)
        base, idle = self.value(found)[0], 0
        while idle < MAX_IDLE_LOOPS:
            corners = [base, *self.value(0.7 * _draw_random(rng, 2, self.rank)), base]
            moved = found
            for here, there in pairwise(corners):
                moved = self._continue(moved, here, there)
                moved = moved[np.isfinite(moved).all(1)]
            larger = deduplicate(np.vstack([found, moved]))
            idle = idle + 1 if len(larger) == len(found) else 0
            found = larger
        return base, found

    def _continue(self, x: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        def family(x: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            F, dF, D = self.equations(x, begin + s[:, None] * (end - begin))
            return F, dF, -(end - begin) * D

        return follow(family, x)


@np.errstate(all="ignore")
def follow(family: Family, x: np.ndarray) -> np.ndarray:
    """The ends at s = 1 of the paths F(x(s), s) = 0 that begin at the rows of x; NaN where a path goes to infinity.

    Runge-Kutta predicts x' = -F_x^-1 F_s and Newton corrects, every path with its own step.
    """

    def field(x: np.ndarray, s: np.ndarray) -> np.ndarray:
        _, slope, change = family(x, s)
        return -solve_batch(slope, change)

    x = np.array(x, complex)
    s, ds, alive = np.zeros(len(x)), np.full(len(x), 0.05), np.ones(len(x), bool)
    while np.any(active := alive & (s < 1)):
        here, at, step = x[active], s[active], np.minimum(ds[active], 1 - s[active])
        h = step[:, None]
        k1 = field(here, at)
        k2 = field(here + h / 2 * k1, at + step / 2)
        k3 = field(here + h / 2 * k2, at + step / 2)
        k4 = field(here + h * k3, at + step)
        new, sizes = here + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), []
        for _ in range(3):
            value, slope, _ = family(new, at + step)
            update = solve_batch(slope, value)
            new = new - update
            sizes.append(np.where(np.isfinite(update).all(1), np.abs(update).max(1), np.inf))
        first, *_, last = sizes
        size = 1 + np.abs(new).max(1)
        ending = at > 1 - 1e-8  # here a path may run into a multiple root, where Newton's method is slow
        good = (first < 1e-3 * size) & (last < np.where(ending, 1e-5, 1e-10) * size)
        ended = (step < 1e-12) & ~good | (np.abs(here).max(1) > MAX_NORM)
        x[active] = np.where(good[:, None], new, here)
        s[active] = np.where(good, np.where(step >= 1 - at, 1.0, at + step), at)
        ds[active] = np.where(good, np.where(first < 1e-5 * size, 2 * step, step), step / 4)
        alive[np.flatnonzero(active)[ended]] = False
    return np.where(alive[:, None], x, np.nan)


def deduplicate(points: np.ndarray, tolerance: float = 1e-6) -> np.ndarray:
    """The points without repetitions, in their order."""
    unique: list[np.ndarray] = []
    for point in points:
        if not any(np.abs(point - other).max() < tolerance * (1 + np.abs(point).max()) for other in unique):
            unique.append(point)
    return np.array(unique).reshape(-1, points.shape[-1])


def solve_batch(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """matrix^-1 vector on a batch; singular or infinite members give NaN."""
    one = np.eye(matrix.shape[-1])
    bad = ~np.isfinite(matrix).all((-1, -2)) | ~np.isfinite(vector).all(-1)
    safe = np.where(bad[..., None, None], one, matrix)
    bad |= np.linalg.det(safe) == 0
    safe = np.where(bad[..., None, None], one, safe)
    return np.where(bad[..., None], np.nan, np.linalg.solve(safe, vector[..., None])[..., 0])


def _draw_random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape) + 1j * rng.normal(size=shape))
