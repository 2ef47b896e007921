"""The genus of a plane algebraic curve P(u, v) = 0 by its monodromy over the u-line (Riemann and Hurwitz).

The sheets v_1, ..., v_d are followed around every branch point; a cycle of length e of the permutation is one place with ramification
e, and a component of degree d has 2 g - 2 = -2 d + sum (e - 1). Nothing is asked of the singularities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import InvalidInput, NumericalFailure
from ..integrators.euler_poincare_suslov import EulerPoincareSuslov
from ..invariant import InvariantSystem
from .algebraic import algebraic_map
from .polynomials import Polynomials, interpolate


@dataclass(frozen=True, eq=False)
class CurveGenus:
    """The genus of every irreducible component of a curve, and the sheets that it has over the line."""

    genera: tuple[int, ...]
    sheets: tuple[int, ...]
    branch_points: np.ndarray

    @property
    def genus(self) -> int:
        """The genus of an irreducible curve."""
        if len(self.genera) != 1:
            raise InvalidInput(f"the curve has {len(self.genera)} components of genera {self.genera}")
        return self.genera[0]


def energy_curve(system: InvariantSystem, integrator: EulerPoincareSuslov, value: float) -> Polynomials:
    """The polynomial in x (Cayley coordinates h w in the basis of d) of the invariant curve h^2 E_c = value, r = 2."""
    f = algebraic_map(system, integrator)
    if f is None or f.rank != 2:
        raise InvalidInput("invariant curves are algebraic curves for a two-dimensional d and an algebraic method")
    metric = np.linalg.inv(f.subspace.T @ np.asarray(system.inertia) @ f.subspace)
    N, D = f.rational.numerator, f.rational.denominator

    def polynomial(x):
        value_N, value_D = N(x), D(x)
        return np.einsum("ki,ij,kj->k", value_N, metric, value_N)[:, None] - 2 * value * value_D**2

    degree = 2 * int(max(N.degrees.max(), D.degrees.max()))
    return interpolate(polynomial, 2, degree)


def genus(curve: Polynomials, *, generic: bool = True) -> CurveGenus:
    """The genus of the compact Riemann surface of P(u, v) = 0, component by component.

    A random change of coordinates makes the projection generic, with simple branch points; `generic=False` keeps (u, v), which is better
    for a curve of low degree in v and high degree in u, singular at infinity.
    """
    turn = np.random.default_rng(0).normal(size=(2, 2)) if generic else np.eye(2)
    degree = int(curve.degrees.max())
    turned = interpolate(lambda x: curve(x @ turn.T), 2, degree)
    rows = np.zeros((degree + 1, degree + 1), complex)  # [power of v, power of u]
    rows[turned.exponents[:, 1], turned.exponents[:, 0]] = turned.coefficients[:, 0]
    points = _discriminant_roots(rows)
    base = 1.7 * max(np.abs(points).max(initial=0.0), _typical_radius(rows)) * np.exp(0.37j)
    sheets = _roots(rows, base)
    permutations = [_around(rows, base, sheets, point, points) for point in points]
    return _riemann_hurwitz([*permutations, _circle(rows, base, sheets)], points)


def _riemann_hurwitz(permutations: list[np.ndarray], points: np.ndarray) -> CurveGenus:
    size = len(permutations[0])
    label = np.arange(size)
    for permutation in permutations:
        for i, j in enumerate(permutation):
            label[label == label[j]] = label[i]
    genera, sheets = [], []
    for name in np.unique(label):
        members = np.flatnonzero(label == name)
        ramification = sum(len(members) - _cycles(permutation, members) for permutation in permutations)
        genera.append(1 - len(members) + ramification // 2)
        sheets.append(len(members))
    return CurveGenus(tuple(genera), tuple(sheets), points)


def _cycles(permutation: np.ndarray, members: np.ndarray) -> int:
    seen, count = set(), 0
    for start in members:
        if start not in seen:
            count += 1
            while start not in seen:
                seen.add(start)
                start = permutation[start]
    return count


def _discriminant_roots(rows: np.ndarray) -> np.ndarray:
    """The u at which two sheets meet or one goes to infinity, clusters as one point: zeros of the discriminant in v."""
    degree = len(rows) - 1
    count = 2 * degree * degree + 1
    radius = _typical_radius(rows)
    u = radius * np.exp(2j * np.pi * np.arange(count) / count)
    values = np.array([_discriminant(rows, point) for point in u])
    coefficients = np.fft.fft(values) / count
    keep = np.flatnonzero(np.abs(coefficients) > 1e-10 * np.abs(coefficients).max())
    roots = radius * np.roots(coefficients[keep[0] : keep[-1] + 1][::-1])
    roots = np.r_[roots, 0.0] if keep[0] > 0 else roots
    clusters: list[list[complex]] = []
    for root in roots:
        near = [c for c in clusters if abs(np.mean(c) - root) < 2e-3 * (radius + abs(root))]
        near[0].append(root) if near else clusters.append([root])
    return np.array([np.mean(c) for c in clusters])


def _typical_radius(rows: np.ndarray) -> float:
    """A circle about 0 that is of the size of the branch points."""
    spread = [np.abs(np.roots(_coefficients(rows.T, v)[::-1])) for v in (0.3, 1.0, 3.0j)]
    return float(np.median(np.concatenate(spread)))


def _discriminant(rows: np.ndarray, u: complex) -> complex:
    coefficients = _coefficients(rows, u)
    roots = np.roots(coefficients[::-1])
    d = len(roots)
    gaps = [roots[i] - roots[j] for i in range(d) for j in range(i)]
    return coefficients[-1] ** (2 * d - 2) * np.prod(gaps) ** 2


def _coefficients(rows: np.ndarray, u: complex) -> np.ndarray:
    """The coefficients of v^0, v^1, ... at u."""
    values = np.polynomial.polynomial.polyval(u, rows.T)
    return values[: np.flatnonzero(np.abs(rows).max(1) > 0)[-1] + 1]


def _roots(rows: np.ndarray, u: complex) -> np.ndarray:
    return np.roots(_coefficients(rows, u)[::-1])


def _moved(rows: np.ndarray, sheets: np.ndarray, path) -> np.ndarray:
    """The sheets continued along u = path(t), t from 0 to 1, in steps so small that roots cannot be confused."""
    t, step = 0.0, 0.01
    while t < 1:
        new = _roots(rows, path(min(1.0, t + step)))
        distance = np.abs(sheets[:, None] - new[None])
        nearest = distance.argmin(1)
        apart = np.abs(new[:, None] - new[None]) + np.diag(np.full(len(new), np.inf))
        clear = distance.min(1) < 0.2 * apart.min(1)[nearest]
        if len(set(nearest)) == len(new) and np.all(clear):
            sheets, t, step = new[nearest], t + step, min(2 * step, 0.05)
        else:
            step /= 2
            if step < 1e-9:
                raise NumericalFailure("two sheets of the curve come too close on a path between branch points")
    return sheets


def _around(rows: np.ndarray, base: complex, sheets: np.ndarray, point: complex, points: np.ndarray) -> np.ndarray:
    """The permutation of the sheets at the base along a loop around one branch point."""
    others = np.abs(points - point)
    radius = 0.4 * np.min(others[others > 0], initial=np.abs(base - point))
    edge = point + radius * (base - point) / abs(base - point)
    there = _moved(rows, sheets, lambda t: base + t * (edge - base))
    turned = _moved(rows, there, lambda t: point + (edge - point) * np.exp(2j * np.pi * t))
    return np.array([int(np.abs(there - v).argmin()) for v in turned])


def _circle(rows: np.ndarray, base: complex, sheets: np.ndarray) -> np.ndarray:
    """The permutation along the circle through the base around all branch points: that of infinity, inverted."""
    turned = _moved(rows, sheets, lambda t: base * np.exp(2j * np.pi * t))
    return np.array([int(np.abs(sheets - v).argmin()) for v in turned])
