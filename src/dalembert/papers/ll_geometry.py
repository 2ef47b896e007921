"""Geometry of discrete LL systems (fedorov-zenkov): symmetric pairs, the sleigh's momentum locus, genera of curves.

Symmetric pairs decide when S = exp d is a submanifold, and which displacements it holds (sections 3 and 6).

Lemma 7.2 describes the momentum locus of the discrete Chaplygin sleigh with Moser-Veselov; here every part is computed.
For b = 0 the paper draws the surface in the coordinates (p_theta, ph, z) with ph = a p1 + 2 m a^2 and z = sin(dtheta).
b is removed by p_theta -> p_theta + b p1, V1 -> V1 - b sin(dtheta). Momenta are impulses (h times physical ones).

The genus of a plane algebraic curve P(u, v) = 0 follows from its monodromy over the u-line (Riemann and Hurwitz). The
sheets v_1, ..., v_d are followed around every branch point. A cycle of length e of the permutation is one place with
ramification e, and a component of degree d has 2 g - 2 = -2 d + sum (e - 1). Nothing is asked of the singularities.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..analysis.legendre import AlgebraicMap, algebraic_map
from ..analysis.locus import Locus
from ..analysis.polynomials import Polynomials, interpolate, vanishing_polynomials
from ..errors import InvalidInput, NumericalFailure
from ..groups import Group
from ..integrators import EulerPoincareSuslov
from ..mechanics import InvariantSystem, block, generators
from ..numerics.types import Element


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

    def polynomial(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.einsum("ki,ij,kj->k", N(x), metric, N(x))[:, None] - 2 * value * D(x) ** 2)

    return interpolate(polynomial, 2, 2 * int(max(N.degrees.max(), D.degrees.max())))


def genus(curve: Polynomials, *, generic: bool = True) -> CurveGenus:
    """The genus of the compact Riemann surface of P(u, v) = 0, component by component.

    A random change of coordinates makes the projection generic, with simple branch points. `generic=False` keeps
    (u, v), which is better for a curve of low degree in v and high degree in u, singular at infinity.
    """
    turn = np.random.default_rng(0).normal(size=(2, 2)) if generic else np.eye(2)
    degree = int(curve.degrees.max())
    turned = interpolate(lambda x: curve(x @ turn.T), 2, degree)
    rows = np.zeros((degree + 1, degree + 1), complex)  # [power of v, power of u]
    rows[turned.exponents[:, 1], turned.exponents[:, 0]] = turned.coefficients[:, 0]
    points = _discriminant_roots(rows)
    base = 1.7 * max(np.abs(points).max(initial=0.0), _typical_radius(rows)) * np.exp(0.37j)
    sheets = np.roots(_coefficients(rows, base)[::-1])
    permutations = [_monodromy(rows, base, sheets, point, points) for point in points]
    # along the circle through the base around all branch points: the permutation of infinity, inverted
    turned_sheets = _continue_sheets(rows, sheets, lambda t: base * np.exp(2j * np.pi * t))
    permutations.append(np.array([int(np.abs(sheets - v).argmin()) for v in turned_sheets]))
    label = np.arange(len(sheets))
    for permutation in permutations:
        for i, j in enumerate(permutation):
            label[label == label[j]] = label[i]
    genera, counts = [], []
    for name in np.unique(label):
        members = np.flatnonzero(label == name)
        ramification = sum(len(members) - _cycles(permutation, members) for permutation in permutations)
        genera.append(1 - len(members) + ramification // 2)
        counts.append(len(members))
    return CurveGenus(tuple(genera), tuple(counts), points)


def _cycles(permutation: np.ndarray, members: np.ndarray) -> int:
    """The number of cycles of a permutation among these members."""
    seen, count = set(), 0
    for start in members:
        count += start not in seen
        while start not in seen:
            seen.add(start)
            start = permutation[start]
    return count


def _discriminant_roots(rows: np.ndarray) -> np.ndarray:
    """The u at which two sheets meet or one goes to infinity, clusters as one point: zeros of the discriminant in v."""

    def discriminant(u: complex) -> complex:
        coefficients = _coefficients(rows, u)
        roots = np.roots(coefficients[::-1])
        d = len(roots)
        gaps = [roots[i] - roots[j] for i in range(d) for j in range(i)]
        return complex(coefficients[-1] ** (2 * d - 2) * np.prod(gaps) ** 2)

    count = 2 * (len(rows) - 1) ** 2 + 1
    radius = _typical_radius(rows)
    circle = radius * np.exp(2j * np.pi * np.arange(count) / count)
    coefficients = np.fft.fft(np.array([discriminant(u) for u in circle])) / count
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


def _coefficients(rows: np.ndarray, u: complex) -> np.ndarray:
    """The coefficients of v^0, v^1, ... at u."""
    values = np.polynomial.polynomial.polyval(u, rows.T)
    return np.asarray(values[: np.flatnonzero(np.abs(rows).max(1) > 0)[-1] + 1])


def _continue_sheets(rows: np.ndarray, sheets: np.ndarray, path: Callable[[float], complex]) -> np.ndarray:
    """The sheets continued along u = path(t), t from 0 to 1, in steps so small that roots cannot be confused."""
    t, step = 0.0, 0.01
    while t < 1:
        new = np.roots(_coefficients(rows, path(min(1.0, t + step)))[::-1])
        distance = np.abs(sheets[:, None] - new[None])
        nearest = distance.argmin(1)
        separation = np.abs(new[:, None] - new[None]) + np.diag(np.full(len(new), np.inf))
        clear = distance.min(1) < 0.2 * separation.min(1)[nearest]
        if len(set(nearest)) == len(new) and np.all(clear):
            sheets, t, step = new[nearest], t + step, min(2 * step, 0.05)
        else:
            step /= 2
            if step < 1e-9:
                raise NumericalFailure("two sheets of the curve come too close on a path between branch points")
    return sheets


def _monodromy(rows: np.ndarray, base: complex, sheets: np.ndarray, point: complex, points: np.ndarray) -> np.ndarray:
    """The permutation of the sheets at the base along a loop around one branch point."""
    others = np.abs(points - point)
    radius = 0.4 * np.min(others[others > 0], initial=np.abs(base - point))
    edge = point + radius * (base - point) / abs(base - point)
    there = _continue_sheets(rows, sheets, lambda t: base + t * (edge - base))
    turned = _continue_sheets(rows, there, lambda t: point + (edge - point) * np.exp(2j * np.pi * t))
    return np.array([int(np.abs(there - v).argmin()) for v in turned])


BRACKET_TOLERANCE = 1e-9


@dataclass(frozen=True)
class SymmetricPair:
    """g = h + d, and the parts of the brackets that (3.3) of fedorov-zenkov forbids.

    `defects` are the sizes of [h, h] outside h, of [d, d] outside h, and of [h, d] outside d.
    """

    group: Group
    d: np.ndarray
    h: np.ndarray
    defects: tuple[float, float, float]

    @property
    def holds(self) -> bool:
        """Whether (3.3) holds: then exp d is the Cartan model of G/H, a smooth submanifold (Proposition 3.1)."""
        return max(self.defects) < BRACKET_TOLERANCE

    @property
    def involution(self) -> np.ndarray:
        """The matrix of sigma = 1 on h, -1 on d: an automorphism of the algebra exactly when (3.3) holds."""
        both = np.hstack([self.h, self.d])
        signs = np.repeat([1.0, -1.0], [self.h.shape[1], self.d.shape[1]])
        return np.asarray(both @ np.diag(signs) @ np.linalg.inv(both))

    def residual(self, W: Element) -> float:
        """|sigma Ad_W sigma Ad_W - 1|: W in exp d satisfies sigma(W) = W^-1, which on SO(n) is (6.6)."""
        matrix, basis = np.asarray(block(self.group.matrix(W))), generators(self.group)
        adjoint = _coordinates(basis, matrix @ basis @ np.linalg.inv(matrix))
        return float(np.abs(self.involution @ adjoint @ self.involution @ adjoint - np.eye(self.group.dim)).max())

    def __str__(self) -> str:
        sizes = dict(zip(("[h, h] in h", "[d, d] in h", "[h, d] in d"), self.defects, strict=True))
        broken = [f"{name} fails by {size:.3g}" for name, size in sizes.items() if size >= BRACKET_TOLERANCE]
        return "a symmetric pair" if not broken else "no symmetric pair: " + ", ".join(broken)


def symmetric_pair(group: Group, subspace: ArrayLike, complement: ArrayLike | None = None) -> SymmetricPair:
    """The test (3.3) for d (columns of `subspace`) and h (`complement`; default: the one that the brackets determine).

    h must contain [d, d] and normalise d. Where [d, d], or the normaliser of d, is a complement of d it is taken.
    """
    d = _orthonormal(np.asarray(subspace, float))
    n = group.dim
    basis = generators(group)
    products = np.einsum("aij,bjk->abik", basis, basis)
    # structure constants (k, i, j): [e_i, e_j] = sum c_kij e_k
    structure = _coordinates(basis, products - products.swapaxes(0, 1)).reshape(n, n, n)

    def brackets(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The brackets of two bases, as columns."""
        return np.asarray(np.einsum("kij,ia,jb->kab", structure, x, y).reshape(n, -1))

    def complements(x: np.ndarray) -> bool:
        return x.shape[1] == n - d.shape[1] and bool(
            np.linalg.matrix_rank(np.hstack([x, d]), tol=BRACKET_TOLERANCE) == n
        )

    if complement is None:
        outside = np.eye(n) - d @ d.T
        normaliser = _kernel(np.einsum("kl,kij,jb->lbi", outside, structure, d).reshape(-1, n))
        candidates = [x for x in (_orthonormal(brackets(d, d)), normaliser) if complements(x)]
        if not candidates:
            raise InvalidInput(
                "neither [d, d] nor the normaliser of d is a complement of d, so no h is singled out; "
                "give one by its basis (complement)"
            )
        h = candidates[0]
    else:
        h = _orthonormal(np.asarray(complement, float))
        if not complements(h):
            raise InvalidInput(
                f"complement must span a complement of d: {n - d.shape[1]} independent columns of length {n}"
            )
    split = np.linalg.inv(np.hstack([h, d]))
    in_h, in_d = split[: h.shape[1]], split[h.shape[1] :]
    defects = (
        float(np.abs(in_d @ brackets(h, h)).max(initial=0.0)),
        float(np.abs(in_d @ brackets(d, d)).max(initial=0.0)),
        float(np.abs(in_h @ brackets(h, d)).max(initial=0.0)),
    )
    return SymmetricPair(group, d, h, defects)


def rotation_of_sphere(z: ArrayLike) -> np.ndarray:
    """(6.7) of fedorov-zenkov: the rotation exp(theta u ^ e_n) of a point z of the unit sphere.

    z = (cos(theta/2), sin(theta/2) u); z and -z give the same rotation.
    """
    z = np.asarray(z)
    first, rest = float(z[0]), np.asarray(z[1:], float)
    side = 2 * first * rest[:, None]
    return np.block([[np.eye(rest.size) - 2 * np.outer(rest, rest), side], [-side.T, 2 * first**2 - 1]])


def sphere_of_rotation(W: ArrayLike) -> np.ndarray:
    """The inverse of (6.7) of fedorov-zenkov, with the sign that makes z_0 >= 0: exp d is the projective space."""
    W = np.asarray(W)
    cosine = np.sqrt(0.5 * (1.0 + np.clip(W[-1, -1], -1.0, 1.0)))
    if cosine > 1e-8:
        return np.concatenate([[cosine], 0.5 * W[:-1, -1] / cosine])
    square = 0.5 * (np.eye(W.shape[0] - 1) - W[:-1, :-1])  # z z^T at angle pi
    k = int(np.argmax(np.diag(square)))
    return np.concatenate([[0.0], square[:, k] / np.sqrt(square[k, k])])


def _coordinates(basis: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """The coordinates of algebra elements given as matrices (..., N, N), as columns."""
    flat = basis.reshape(len(basis), -1).T
    return np.asarray(np.linalg.lstsq(flat, matrices.reshape(-1, len(flat)).T, rcond=None)[0])


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the span."""
    columns = columns[:, None] if columns.ndim == 1 else columns
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > BRACKET_TOLERANCE * max(1.0, sizes.max(initial=0.0))])


def _kernel(matrix: np.ndarray) -> np.ndarray:
    """An orthonormal basis of {x: matrix x = 0}."""
    _, sizes, right = np.linalg.svd(matrix)
    rank = int(np.count_nonzero(sizes > BRACKET_TOLERANCE))
    return np.asarray(right[rank:].T)


@dataclass(frozen=True, eq=False)
class SleighLocus:
    """The surface (p_theta, ph, z) of a sleigh (`models.chaplygin_sleigh`)."""

    system: InvariantSystem

    def __post_init__(self) -> None:
        inertia = np.asarray(self.system.inertia)
        blade = np.allclose(np.asarray(self.system.annihilator), [[0, 0, 1]])
        plane = self.system.group.is_motion_group(2) and inertia[1, 1] == inertia[2, 2] and inertia[1, 2] == 0
        if not (plane and blade):
            raise InvalidInput("this is for the Chaplygin sleigh on SE(2) with v2 = 0; use models.chaplygin_sleigh")

    @property
    def parameters(self) -> tuple[float, float, float, float]:
        """(m, J, a, b) with J about the centre of mass."""
        inertia = np.asarray(self.system.inertia)
        m = float(inertia[1, 1])
        a, b = float(inertia[0, 2]) / m, -float(inertia[0, 1]) / m
        return m, float(inertia[0, 0]) - m * (a * a + b * b), a, b

    @property
    def map(self) -> AlgebraicMap:
        """In coordinates (dtheta, v), v = V1 dtheta/sin(dtheta)."""
        return AlgebraicMap(self.system, EulerPoincareSuslov("moser-veselov"), angles=True)

    def plane(self, impulse: ArrayLike) -> np.ndarray:
        """(p_theta + b p1, ph) of impulses (..., 3) or restricted ones (..., 2)."""
        m, _, a, b = self.parameters
        impulse = np.asarray(impulse)
        return np.stack([impulse[..., 0] + b * impulse[..., 1], a * impulse[..., 1] + 2 * m * a * a], axis=-1)

    def points(self, angle: ArrayLike, V1: ArrayLike) -> np.ndarray:
        """(p_theta, ph, z) at displacements with these dtheta and V1 = Omega_13 - b sin(dtheta), shape (..., 3)."""
        angle, V1 = np.broadcast_arrays(np.asarray(angle), np.asarray(V1))
        y = np.stack([angle, V1 / np.sinc(angle / np.pi) + self.parameters[3] * angle], axis=-1)
        return np.concatenate([self.plane(self.map.impulse(y)), np.sin(angle)[..., None]], axis=-1)

    def cubic(self) -> Polynomials:
        """(7.16) of fedorov-zenkov by elimination: the cubic in (p_theta, ph, z) that vanishes on the surface.

        The coefficient of z^3 is J^2.
        """
        rng = np.random.default_rng(0)
        m, J, a, _ = self.parameters
        size = np.sqrt((J + m * a * a) / m)
        found = vanishing_polynomials(self.points(rng.uniform(-2.5, 2.5, 80), size * rng.normal(size=80)), 3)
        if found.coefficients.shape[1] != 1:
            raise InvalidInput("a sleigh with a = 0 is balanced: its surface is a plane and no cubic is singled out")
        (top,) = found.coefficients[np.all(found.exponents == [0, 0, 3], axis=1), 0]
        return Polynomials(found.exponents, found.coefficients.real * (J * J / np.real(top)))

    def tangent_line(self, side: int) -> np.ndarray:
        """(alpha, -1, gamma): the plane z = side touches the surface along alpha p_theta - ph = gamma, side = +1 or -1.

        There the cubic is the square of this equation, from whose coefficients it is read.
        """
        c: defaultdict[tuple[int, int], float] = defaultdict(float)
        for (i, j, k), coefficient in self.cubic().terms(tolerance=1e-11).items():
            c[i, j] += float(np.real(coefficient)) * side**k
        square = np.array(  # of alpha p + beta ph - gamma
            [
                [c[2, 0], c[1, 1] / 2, -c[1, 0] / 2],
                [c[1, 1] / 2, c[0, 2], -c[0, 1] / 2],
                [-c[1, 0] / 2, -c[0, 1] / 2, c[0, 0]],
            ]
        )
        values, vectors = np.linalg.eigh(side * square)
        if np.abs(values[:2]).max() > 1e-8 * values[2]:
            raise InvalidInput(f"the plane z = {side} does not touch the surface along a line")
        return np.asarray(-vectors[:, 2] / vectors[1, 2])

    def folds(self, *, points: int = 401) -> list[np.ndarray]:
        """The discriminant curve of the projection in the (p_theta, ph) plane, as polylines (k, 2)."""
        return [self.plane(image) for _, image in self._locus().discriminant(extent=self._extent(), points=points)]

    def discriminant(self) -> Polynomials:
        """The quartic in (p_theta, ph) of Lemma 7.2 (3) by elimination, ph^4 with coefficient 1."""
        points = np.vstack(self.folds())
        points = points[np.linspace(0, len(points) - 1, 200).astype(int)]
        found = vanishing_polynomials(points, 4, tolerance=1e-9)
        (top,) = found.coefficients[np.all(found.exponents == [0, 4], axis=1), 0]
        return Polynomials(found.exponents, (found.coefficients / top).real)

    def cusps(self) -> np.ndarray:
        """The cusps of the discriminant curve in the (p_theta, ph) plane, shape (k, 2)."""
        return self.plane(self._locus().cusps(extent=self._extent(), points=401)[1])

    def ellipse(self, points: int = 200) -> np.ndarray:
        """(7.17) of fedorov-zenkov: the image of V1 = 0 in the (p_theta, ph) plane, shape (points, 2)."""
        return np.asarray(self.points(np.linspace(0, 2 * np.pi, points), 0.0)[:, :2])

    def _locus(self) -> Locus:
        return Locus(self.system, EulerPoincareSuslov("moser-veselov"))

    def _extent(self) -> float:
        """|v| in which the triangle lies: its corners have |ph| of the order of J."""
        m, J, a, _ = self.parameters
        return 8 * (J + m * a * a) / (m * abs(a)) if a else 4.0
