"""Is there an energy-like integral? The asymptotic rotations decide (the open question of Remark 7.1 of garcia-naranjo-jimenez).

On a two-dimensional d every motion near 0 goes from an unstable stationary displacement tau(-a_- w) to a stable one tau(a_+ w) on the
line of equilibria. x -> -x reverses the map, so the motions on the other side of the line go from a_+ to a_-: the two sides have the
maps phi: a_- -> a_+ and its inverse. A continuous first integral F gives F(-a w) = F(phi(a) w) = F(phi^-1(a) w). If phi(a) != a for
0 < a <= a_0, the iterates of phi^2 or of its inverse take every such a to 0, so F is constant on the line of equilibria, and
with it everywhere: there is no integral but constants. If phi = 1, E_c at the limit is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import NumericalFailure
from ..integrators.euler_poincare_suslov import EulerPoincareSuslov
from ..invariant import InvariantSystem
from .algebraic import legendre_map
from .integrals import equilibrium_line


@dataclass(frozen=True, eq=False)
class Scattering:
    """Sizes a_-, a_+ (k,) of h w of the stationary displacements between which motions go, one motion an entry."""

    before: np.ndarray
    after: np.ndarray

    @property
    def gain(self) -> np.ndarray:
        """(a_+ - a_-)/a_-: 0 for all motions if and only if a continuous energy-like integral exists."""
        return (self.after - self.before) / self.before

    @property
    def exponent(self) -> float:
        """The slope of log|gain| against log a."""
        return float(np.polyfit(np.log(self.before), np.log(np.abs(self.gain)), 1)[0])


def scattering(
    system: InvariantSystem, integrator: EulerPoincareSuslov, sizes, *, side: float = 1.0, most: int = 200_000
) -> Scattering:
    """The limits of motions through x = size * n, n the normal of the line of equilibria on the given side (h is 1: x = h w)."""
    f = legendre_map(system, integrator)
    f.require_reversible()
    line = np.linalg.lstsq(f.subspace, equilibrium_line(system, integrator), rcond=None)[0]
    line /= np.linalg.norm(line)
    begin = np.outer(np.asarray(sizes, float), side * np.array([-line[1], line[0]]))
    ends = np.concatenate([-begin, begin])
    for _ in range(most):
        new, good = f.image(ends)
        if not np.all(good):
            raise NumericalFailure("a branch ends: take smaller sizes")
        still = np.abs(new - ends).max(1) < 1e-15 * np.abs(new).max(1)
        ends = new
        if np.all(still):
            break
    along = ends @ line
    return Scattering(along[: len(begin)], along[len(begin) :])
