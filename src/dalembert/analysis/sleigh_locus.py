"""The momentum locus of the discrete Chaplygin sleigh with Moser-Veselov: Lemma 7.2 of fedorov-zenkov, every part computed.

For b = 0 the paper draws the surface in the coordinates (p_theta, ph, z) with ph = a p1 + 2 m a^2 and z = sin(dtheta); b is
removed by p_theta -> p_theta + b p1, V1 -> V1 - b sin(dtheta). Momenta are impulses (h times physical ones).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import InvalidInput
from ..groups import SE2
from ..integrators.euler_poincare_suslov import EulerPoincareSuslov
from ..invariant import InvariantSystem
from .algebraic import AlgebraicMap
from .locus import Locus
from .polynomials import Polynomials, vanishing


@dataclass(frozen=True, eq=False)
class SleighLocus:
    """The surface (p_theta, ph, z) of a sleigh (`models.chaplygin_sleigh`)."""

    system: InvariantSystem

    def __post_init__(self):
        inertia = np.asarray(self.system.inertia)
        blade = np.allclose(np.asarray(self.system.annihilator), [[0, 0, 1]])
        if not (isinstance(self.system.group, SE2) and blade and inertia[1, 1] == inertia[2, 2] and inertia[1, 2] == 0):
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

    def plane(self, impulse) -> np.ndarray:
        """(p_theta + b p1, ph) of impulses (..., 3) or restricted ones (..., 2)."""
        m, _, a, b = self.parameters
        impulse = np.asarray(impulse)
        return np.stack([impulse[..., 0] + b * impulse[..., 1], a * impulse[..., 1] + 2 * m * a * a], axis=-1)

    def points(self, angle, V1) -> np.ndarray:
        """(p_theta, ph, z) at displacements with these dtheta and V1 = Omega_13 - b sin(dtheta), shape (..., 3)."""
        angle, V1 = np.broadcast_arrays(np.asarray(angle), np.asarray(V1))
        y = np.stack([angle, V1 / np.sinc(angle / np.pi) + self.parameters[3] * angle], axis=-1)
        return np.concatenate([self.plane(self.map.impulse(y)), np.sin(angle)[..., None]], axis=-1)

    def cubic(self) -> Polynomials:
        """(7.16) by elimination: the cubic in (p_theta, ph, z) that vanishes on the surface, z^3 with coefficient J^2."""
        rng = np.random.default_rng(0)
        m, J, a, _ = self.parameters
        size = np.sqrt((J + m * a * a) / m)
        found = vanishing(self.points(rng.uniform(-2.5, 2.5, 80), size * rng.normal(size=80)), 3)
        if found.coefficients.shape[1] != 1:
            raise InvalidInput("a sleigh with a = 0 is balanced: its surface is a plane and no cubic is singled out")
        (top,) = found.coefficients[np.all(found.exponents == [0, 0, 3], axis=1), 0]
        return Polynomials(found.exponents, found.coefficients.real * (J * J / np.real(top)))

    def tangent_line(self, side: int) -> np.ndarray:
        """(alpha, beta, gamma): the plane z = side (+1 or -1) touches the surface along alpha p_theta + beta ph = gamma, beta = -1.

        There the cubic is the square of this equation, from whose coefficients it is read.
        """
        terms: dict[tuple[int, int], float] = {}
        for (i, j, k), c in self.cubic().terms(tolerance=1e-11).items():
            terms[i, j] = terms.get((i, j), 0.0) + float(np.real(c)) * side**k
        square = np.array(  # of alpha p + beta ph - gamma
            [
                [terms.get((2, 0), 0.0), terms.get((1, 1), 0.0) / 2, -terms.get((1, 0), 0.0) / 2],
                [terms.get((1, 1), 0.0) / 2, terms.get((0, 2), 0.0), -terms.get((0, 1), 0.0) / 2],
                [-terms.get((1, 0), 0.0) / 2, -terms.get((0, 1), 0.0) / 2, terms.get((0, 0), 0.0)],
            ]
        )
        values, vectors = np.linalg.eigh(side * square)
        if np.abs(values[:2]).max() > 1e-8 * values[2]:
            raise InvalidInput(f"the plane z = {side} does not touch the surface along a line")
        line = vectors[:, 2]
        return -line / line[1]

    def folds(self, *, points: int = 401) -> list[np.ndarray]:
        """The discriminant curve of the projection in the (p_theta, ph) plane, as polylines (k, 2)."""
        return [self.plane(image) for _, image in self._locus().discriminant(extent=self._extent(), points=points)]

    def discriminant(self) -> Polynomials:
        """The quartic in (p_theta, ph) of Lemma 7.2 (3) by elimination, ph^4 with coefficient 1."""
        points = np.vstack(self.folds())
        points = points[np.linspace(0, len(points) - 1, 200).astype(int)]
        found = vanishing(points, 4, tolerance=1e-9)
        (top,) = found.coefficients[np.all(found.exponents == [0, 4], axis=1), 0]
        return Polynomials(found.exponents, (found.coefficients / top).real)

    def cusps(self) -> np.ndarray:
        """The cusps of the discriminant curve in the (p_theta, ph) plane, shape (k, 2)."""
        return self.plane(self._locus().cusps(extent=self._extent(), points=401)[1])

    def ellipse(self, points: int = 200) -> np.ndarray:
        """(7.17): the image of V1 = 0 in the (p_theta, ph) plane, shape (points, 2)."""
        angle = np.linspace(0, 2 * np.pi, points)
        return self.points(angle, 0.0)[:, :2]

    def _locus(self) -> Locus:
        return Locus(self.system, EulerPoincareSuslov("moser-veselov"))

    def _extent(self) -> float:
        """|v| in which the triangle lies: its corners have |ph| of the order of J."""
        m, J, a, _ = self.parameters
        return 8 * (J + m * a * a) / (m * abs(a)) if a else 4.0
