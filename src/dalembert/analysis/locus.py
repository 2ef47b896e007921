"""The discrete momentum locus u = F l_d(tau(d)) of an LL system: surface, equation, singularities, shadow.

Everything is in impulses h M, in which the locus does not depend on h; divide by h for momenta. Surfaces
(two-dimensional d in a three-dimensional algebra) have curves and points to be found; the equations and the tangent
plane exist for any system.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidInput, NumericalFailure
from ..integrators import EulerPoincareSuslov
from ..mechanics import InvariantSystem
from .branches import Chart
from .legendre import AlgebraicMap, LegendreMap, algebraic_map, angle_map
from .polynomials import Polynomials, deduplicate, exponents, vanishing_polynomials

MAX_DEGREE = 10
MAX_MONOMIALS = 3000


@dataclass(frozen=True, eq=False)
class Locus:
    """{h F l_d(W): W in tau(d)} in the dual of the algebra."""

    system: InvariantSystem
    integrator: EulerPoincareSuslov

    @cached_property
    def map(self) -> LegendreMap:
        """The parametrisation y -> h F l_d(W(y)), in coordinates that reach every displacement."""
        return angle_map(self.system, self.integrator)

    def surface(
        self, *, extent: float = 4.0, points: int = 81, angles: tuple[float, float] = (0.0, np.pi)
    ) -> tuple[np.ndarray, np.ndarray]:
        """(y, impulses): a grid of the surface for plotting, shapes (points, points, 2) and (points, points, n).

        On rotations the grid is polar: the angle between `angles`, then the axis (2 arccos(0.8), 2 arccos(0.4) give the
        section 0.4 <= q0 <= 0.8 of Figure 6.2 of fedorov-zenkov); otherwise each coordinate goes up to `extent`.
        """
        self._require_surface()
        chart = Chart.of(self.system, self.integrator, extent)
        if chart.projective:
            radius, turn = np.meshgrid(np.linspace(*angles, points), np.linspace(0, 2 * np.pi, points), indexing="ij")
            y = radius[..., None] * np.stack([np.cos(turn), np.sin(turn)], -1)
        else:
            axes = [np.linspace(-width, width, points) for width in chart.window]
            y = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
        return y, self.map.impulse(y)

    def tangent_plane(self) -> np.ndarray:
        """Unit normals (n - r, n) of the locus at 0: they annihilate d* = I d, to which it is tangent.

        This is Proposition 5.1 of garcia-naranjo-jimenez.
        """
        return np.linalg.svd(self.map.slope(np.zeros(self.map.rank)).T)[2][self.map.rank :]

    def distance(self, momentum: ArrayLike) -> np.ndarray:
        """rho: the signed distance of momenta (..., n) from d* = I d along each normal, shape (..., n - r).

        The normal points as the last algebra direction that is not in d does: for the Suslov problem M3 > 0 of d* is
        positive.
        """
        image = np.asarray(self.system.inertia) @ self.map.subspace
        normals = np.linalg.svd(image.T)[2][self.map.rank :]
        outer = np.asarray(self.system.annihilator)
        signs = np.sign(np.einsum("ij,ij->i", normals, outer / np.linalg.norm(outer, axis=1, keepdims=True)))
        return np.asarray(momentum @ (normals * np.where(signs == 0, 1, signs)[:, None]).T)

    def bounded(self, *, far: float = 1e6) -> bool:
        """Whether the impulse stays bounded along random lines of displacements, some along each axis of d."""
        f = algebraic_map(self.system, self.integrator) or self.map
        rng = np.random.default_rng(0)
        lines = np.concatenate([rng.normal(size=(100, f.rank)), np.repeat(np.eye(f.rank), 20, axis=0)])
        base = rng.normal(size=lines.shape)
        near, distant = (np.abs(f.impulse(base + size * lines)).max() for size in (1e2, far))
        return bool(distant < 10 * near)

    def implicit(self, degree: int | None = None) -> Polynomials:
        """The polynomials of lowest (or of this) degree in h M that vanish on the locus, one column each.

        For the Suslov problem p4 with Moser-Veselov (the Steiner quartic (6.11) of fedorov-zenkov for diagonal J) and
        q7 with Cayley, up to a factor. They are the null space of the matrix of monomials on complex points of the
        locus, so that no rank is lost to real gaps.
        """
        f = algebraic_map(self.system, self.integrator)
        if f is None:
            raise InvalidInput("the locus of this method is not algebraic: it has no polynomial equation")
        for trial in range(1, MAX_DEGREE + 1) if degree is None else (degree,):
            size = len(exponents(f.dim, trial))
            if size > MAX_MONOMIALS:
                break
            rng, count = np.random.default_rng(1), 3 * size // 2 + 20  # complex points of the locus of moderate size
            x = rng.normal(size=(count, f.rank)) + 1j * rng.normal(size=(count, f.rank))
            found = vanishing_polynomials(f.impulse(x * np.sqrt(rng.random((count, 1)) + 0.2)), trial)
            if found.coefficients.shape[1]:
                rows = np.abs(found.coefficients).argmax(0)  # the largest coefficient becomes 1
                scaled = found.coefficients / found.coefficients[rows, np.arange(found.coefficients.shape[1])]
                scaled = scaled.real if np.abs(scaled.imag).max() < 1e-8 else scaled
                return Polynomials(found.exponents, np.where(np.abs(scaled) < 1e-12, 0.0, scaled))
        tried = trial if degree is None else degree
        raise NumericalFailure(f"no polynomial of degree up to {tried} vanishes on this locus")

    def pinch_points(self, *, extent: float = 6.0, starts: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """(y, impulses) of the real points without a tangent plane, Whitney's umbrellas; shapes (k, 2), (k, n).

        Gauss-Newton for slope(y) v = 0, |v| = 1 from many starts.
        """
        self._require_surface()
        f, rng = self.map, np.random.default_rng(0)
        window = Chart.of(self.system, self.integrator, extent).window
        y, v = rng.uniform(-1, 1, (starts, 2)) * window, rng.normal(size=(starts, 2))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        for _ in range(60):
            slope = f.slope(y)
            residual = np.concatenate([np.einsum("kij,kj->ki", slope, v), np.sum(v**2, 1, keepdims=True) - 1], axis=1)
            matrix = np.zeros((starts, f.dim + 1, 4))
            matrix[:, :-1, :2], matrix[:, :-1, 2:] = np.einsum("kijl,kj->kil", f.bend(y), v), slope
            matrix[:, -1, 2:] = 2 * v
            update = np.einsum("kij,kj->ki", np.linalg.pinv(matrix), residual)
            size = np.linalg.norm(update, axis=1, keepdims=True)
            update *= np.minimum(1, 0.3 * window.max() / np.maximum(size, 1e-300))
            y, v = y - update[:, :2], v - update[:, 2:]
        values = np.linalg.svd(f.slope(y), compute_uv=False)
        good = (values[:, 1] < 1e-9 * values[:, 0]) & Chart.of(self.system, self.integrator, extent).inside(y)
        places = deduplicate(np.concatenate([f.impulse(y[good]), y[good]], axis=1)[:, : f.dim], 1e-6)
        index = [int(np.argmin(np.abs(f.impulse(y[good]) - place).max(1))) for place in places]
        return y[good][index], places

    def self_intersections(self, *, extent: float = 6.0, length: float = 12.0) -> list[np.ndarray]:
        """The double curves of a surface: lists of impulses (k, n), each met at two displacements.

        They are followed from the pinch points, where the two displacements meet, until they end in another one or
        leave the window.
        """
        self._require_surface()
        chart = Chart.of(self.system, self.integrator, extent)
        curves: list[np.ndarray] = []
        for y in self.pinch_points(extent=extent)[0]:
            kernel = np.linalg.svd(self.map.slope(y))[2][-1]
            pairs = _double_curve(self.map, y, kernel, length, chart)
            curve = self.map.impulse(pairs[:, :2])
            if len(curve) <= 2:
                continue
            middle = curve[len(curve) // 2]
            if not any(np.abs(c - middle).max(1).min() < 1e-2 * np.ptp(c, axis=0).max() for c in curves):
                curves.append(curve)
        return curves

    def intersection_with_plane(self, *, extent: float = 4.0, points: int = 201) -> list[tuple[np.ndarray, np.ndarray]]:
        """(y, impulses) along the curves in which the surface meets its tangent plane d* at 0, where they cross."""
        self._require_surface()
        normal = self.tangent_plane()[0]
        chart = Chart.of(self.system, self.integrator, extent)
        return [(y, self.map.impulse(y)) for y in chart.zeros(lambda y: self.map.impulse(y) @ normal, points=points)]

    def discriminant(self, *, extent: float = 4.0, points: int = 201) -> list[tuple[np.ndarray, np.ndarray]]:
        """(y, restricted impulses) along the folds det Df = 0 of the projection to restricted momenta, both (k, 2).

        The images are the curves across which the number of real branches changes by two.
        """
        chart = Chart.of(self.system, self.integrator, extent)
        folds = chart.zeros(lambda y: np.linalg.det(self.map.jacobian(y)), points=points)
        return [(y, self.map.restriction(y)) for y in folds]

    def cusps(self, *, extent: float = 4.0, points: int = 201) -> tuple[np.ndarray, np.ndarray]:
        """(y, restricted impulses) of the cusps of the discriminant: the kernel of Df is tangent to the fold."""
        found = []
        for y, image in self.discriminant(extent=extent, points=points):
            if np.ptp(image, axis=0).max() < 1e-9 * np.abs(self.map.jacobian(np.zeros(2))).max():
                continue  # a fold that collapses to a point
            ahead = np.diff(image, axis=0)
            for k in np.flatnonzero(np.sum(ahead[1:] * ahead[:-1], axis=1) < 0):  # the image turns back
                found.append(_cusp(self.map, y[k + 1]))
        places = deduplicate(np.array([y for y in found if y is not None]).reshape(-1, 2), 1e-6)
        return places, self.map.restriction(places)

    def _require_surface(self) -> None:
        if (self.map.rank, self.map.dim) != (2, 3):
            raise InvalidInput(
                "this is for surfaces: d of dimension 2 in an algebra of dimension 3; "
                f"given {self.map.rank} in {self.map.dim}"
            )


def _double_curve(f: LegendreMap, y: np.ndarray, kernel: np.ndarray, length: float, chart: Chart) -> np.ndarray:
    """Pairs (k, 4) of displacements with one impulse, from a pinch point on: pseudo-arclength continuation."""
    # on rotations y is regular below 2 pi
    reach = (lambda y: np.linalg.norm(y, axis=-1) < 6.0) if chart.projective else chart.inside
    pair = np.concatenate([y + 0.02 * kernel, y - 0.02 * kernel])
    direction = np.concatenate([kernel, -kernel]) / np.sqrt(2)
    path, step, gone = [np.concatenate([y, y])], 0.05, 0.0
    gap = _displacement_difference(f, pair)
    for _ in range(2000):
        new = pair
        for _ in range(12):
            residual = np.append(f.impulse(new[:2]) - f.impulse(new[2:]), (new - pair) @ direction)
            matrix = np.vstack([np.hstack([f.slope(new[:2]), -f.slope(new[2:])]), direction])
            update = np.linalg.lstsq(matrix, residual, rcond=None)[0]
            new = new - update
            if np.abs(update).max() < 1e-12:
                break
        new_gap = _displacement_difference(f, new)
        through = len(path) > 1 and new_gap @ gap <= 1e-3 * step**2  # the two displacements meet: another pinch point
        if np.abs(update).max() > 1e-9 or through or not np.all(reach(new.reshape(2, 2))) or gone > length:
            break
        path.append(new)
        gap = new_gap
        tangent = np.linalg.svd(np.hstack([f.slope(new[:2]), -f.slope(new[2:])]))[2][-1]
        direction = tangent if tangent @ direction > 0 else -tangent
        pair, gone = new + step * direction, gone + step
    return np.array(path)


def _displacement_difference(f: LegendreMap, pair: np.ndarray) -> np.ndarray:
    """The difference of two displacements."""
    if isinstance(f, AlgebraicMap):
        return np.ravel(f.displacement(pair[:2]) - f.displacement(pair[2:]))
    return np.asarray(pair[:2] - pair[2:])


def _cusp(f: LegendreMap, y: np.ndarray) -> np.ndarray | None:
    """Newton's method (numerical slope) for det Df = 0 and its derivative along the kernel = 0."""
    from scipy.optimize import root

    def equations(y: np.ndarray) -> list[float]:
        D, bend = f.jacobian(y), f.curvature(y)
        left, _, right = np.linalg.svd(D)
        kernel, other = right[-1], left[:, -1]
        return [np.linalg.det(D), other @ np.einsum("ijk,j,k->i", bend, kernel, kernel)]

    found = root(equations, y, tol=1e-13)
    return found.x if np.abs(found.fun).max() < 1e-8 and np.linalg.norm(found.x - y) < 0.5 else None
