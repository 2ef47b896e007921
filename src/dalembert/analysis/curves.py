"""Curves in the displacements of a two-dimensional d: level sets of functions, refined to round-off, and their components.

The chart has exponential coordinates y of W where Moser-Veselov allows them (so that rotations by pi are inside) and the
integrator's own otherwise. On rotations y and its antipode y (1 - 2 pi/|y|) are one displacement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidInput
from ..groups import SO3, SOn
from ..integrators.euler_poincare_suslov import EulerPoincareSuslov
from ..invariant import InvariantSystem
from ..retractions import Cayley
from .algebraic import AlgebraicMap, angle_map, logarithm
from .legendre import LegendreMap, energy_on

Scalar = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Chart:
    """Coordinates y (..., 2) of the displacements of a two-dimensional d, and the window in which curves are sought."""

    map: LegendreMap
    window: np.ndarray  # half-widths
    projective: bool  # |y| <= pi with opposite points identified

    @staticmethod
    def of(system: InvariantSystem, integrator: EulerPoincareSuslov, extent: float | None = None) -> Chart:
        """`extent` bounds the coordinates that are not angles (default 4, in units of h w)."""
        f = angle_map(system, integrator)
        if f.rank != 2:
            raise InvalidInput(f"curves are drawn on a two-dimensional d; this one has dimension {f.rank}")
        angles = isinstance(f, AlgebraicMap) and f.angles
        projective = angles and isinstance(system.group, SO3 | SOn)
        window = np.full(2, 4.0 if extent is None else float(extent))
        if angles:
            turning = np.array([np.abs(np.linalg.eigvals(E)).max() > 0 for E in f.basis])  # type: ignore[attr-defined]
            window = np.where(turning, 1.02 * np.pi, window)
        return Chart(f, window, projective)

    def inside(self, y: np.ndarray) -> np.ndarray:
        """Where a point is in the chart."""
        return (
            np.hypot(y[..., 0], y[..., 1]) < 1.02 * np.pi if self.projective else np.all(np.abs(y) <= self.window, -1)
        )

    def from_coordinates(self, x) -> np.ndarray:
        """y of points given in the integrator's own coordinates."""
        f = self.map
        if not (isinstance(f, AlgebraicMap) and f.angles and isinstance(f.integrator.retraction, Cayley)):
            return np.asarray(x)
        W = AlgebraicMap(f.system, f.integrator).displacement(np.atleast_2d(x))
        y = np.array([logarithm(f, w) for w in W]) @ np.linalg.pinv(f.subspace).T
        return y.reshape(np.shape(x))

    def antipode(self, y: np.ndarray) -> np.ndarray:
        """The other coordinates of a rotation: y (1 - 2 pi/|y|)."""
        return y * (1 - 2 * np.pi / np.hypot(y[..., 0], y[..., 1]))[..., None]

    def zeros(self, function: Scalar, *, points: int = 201) -> list[np.ndarray]:
        """The curves function(y) = 0 in the chart: polylines (k, 2) whose points satisfy the equation to round-off."""
        from contourpy import contour_generator

        axes = [np.linspace(-width, width, points + i) for i, width in enumerate(self.window)]  # 0 is no grid point
        grid = np.stack(np.meshgrid(*axes), axis=-1)
        values = np.where(self.inside(grid), function(grid), np.nan)
        lines = contour_generator(axes[0], axes[1], np.ma.masked_invalid(values)).lines(0.0)
        return [self._refined(function, np.asarray(line)) for line in lines if len(line) > 1]

    def _refined(self, function: Scalar, y: np.ndarray) -> np.ndarray:
        """Newton's method along the gradient, which stops where it would leave the neighbourhood of a vertex."""
        cell = 2 * self.window / 100
        begin = y
        for _ in range(6):
            slope = gradient(function, y)
            size = np.sum(slope**2, -1, keepdims=True)
            new = y - function(y)[:, None] * slope / np.where(size > 0, size, np.inf)
            y = np.where(np.all(np.abs(new - begin) < cell, -1, keepdims=True), new, y)
        return y


def gradient(function: Scalar, y: np.ndarray) -> np.ndarray:
    """By central differences: it only steers Newton's method."""
    step = 1e-6
    return np.stack([(function(y + e) - function(y - e)) / (2 * step) for e in step * np.eye(2)], axis=-1)


def components(chart: Chart, lines: list[np.ndarray]) -> np.ndarray:
    """The number of the connected component of each line: lines that meet, also across the cut at pi, are one."""
    label = np.arange(len(lines))
    near = 3 * 2 * chart.window.max() / 200
    for i, line in enumerate(lines):
        ends = line[[0, -1]]
        if chart.projective:
            ends = np.vstack([ends, chart.antipode(ends)])
        for j, other in enumerate(lines):
            gaps = np.linalg.norm(ends[:, None] - other[None], axis=-1).min()
            if i != j and gaps < near:
                label[label == label[j]] = label[i]
    return label


def on_one_component(system: InvariantSystem, integrator: EulerPoincareSuslov, x, other) -> bool:
    """Whether two displacements (coordinates in the basis of d) are on one component of a level of the constrained energy."""
    chart = Chart.of(system, integrator, extent=2 + 2 * float(np.abs([x, other]).max()))
    y, z = chart.from_coordinates(np.array([x, other], float))
    level = energy_on(chart.map, y)
    lines = chart.zeros(lambda p: energy_on(chart.map, p) - level)
    label = components(chart, lines)
    nearest = [
        min(range(len(lines)), key=lambda i: _distance(chart, lines[i], point)) if lines else -1 for point in (y, z)
    ]
    return bool(lines) and bool(label[nearest[0]] == label[nearest[1]])


def _distance(chart: Chart, line: np.ndarray, point: np.ndarray) -> float:
    places = [point, chart.antipode(point)] if chart.projective else [point]
    return min(float(np.linalg.norm(line - place, axis=-1).min()) for place in places)
