"""First integrals of the discrete Suslov problem, sleigh and other LL systems: energy, equilibria, curves, limits.

Energies are those of the restricted momentum with the factor 1/2, E_c = <iota* M, (B^T I B)^-1 iota* M>/2. For the
Suslov problem R = 2 I11 I22 E_c (Proposition 7.1 of garcia-naranjo-jimenez) with Moser-Veselov and Q = 2 I11 I22 E_c
(Proposition 7.2) with Cayley; (6.17) of fedorov-zenkov is 2 det(B^T I B) E_c and (7.21) is 2 m (J + m a^2) E_c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidInput, NumericalFailure
from ..groups import Cayley
from ..integrators import EulerPoincareSuslov
from ..mechanics import InvariantSystem
from . import legendre
from .branches import displacement_coordinates, sample_ball


def discrete_energy(system: InvariantSystem, integrator: EulerPoincareSuslov, increment: ArrayLike, step: float) -> Any:
    """E_c of F l_d(tau(h w)) at increments w (..., n): R, Q and (6.18) of fedorov-zenkov up to constant factors."""
    f = legendre.legendre_map(system, integrator, step)
    return legendre.impulse_energy(f, displacement_coordinates(system, increment, step)) / step**2


def energy_jump(system: InvariantSystem, integrator: EulerPoincareSuslov, increment: ArrayLike, step: float) -> Any:
    """E_c after a step minus E_c before, on every branch: 0 with Moser-Veselov, O(h^3) with Cayley unless I11 = I22."""
    f = legendre.legendre_map(system, integrator, step)
    x = displacement_coordinates(system, increment, step)
    return (legendre.constrained_energy(system, f.transport(x)) - legendre.impulse_energy(f, x)) / step**2


@dataclass(frozen=True, eq=False)
class CriticalPoint:
    """A critical point of the energy on the displacements: coordinates, h^2 E_c, and index (0 minimum, r maximum)."""

    coordinates: np.ndarray
    value: float
    index: int


def critical_points(
    system: InvariantSystem, integrator: EulerPoincareSuslov, *, extent: float = 4.0, starts: int = 200
) -> list[CriticalPoint]:
    """The real critical points of E_c on the displacements, lowest first, by Newton's method from many starts.

    For the Suslov problem on RP^2: the minimum 0 at W = 1, h* at the saddles (the separatrix) and h** at the centres,
    above which there are no real curves. Coordinates are those of `angle_map`; opposite points at |y| = pi are one.
    """
    f = legendre.angle_map(system, integrator)
    radius = np.pi if f.angles else extent
    metric = np.linalg.inv(f.subspace.T @ np.asarray(system.inertia) @ f.subspace)
    x = sample_ball(starts, f.rank, radius)
    update = np.zeros_like(x)
    for _ in range(41):
        x = x - update
        rho, D, D2 = f.restriction(x), f.jacobian(x), f.curvature(x)
        slope = np.einsum("...i,ij,...jk->...k", rho, metric, D)
        hessian = np.einsum("...ij,ik,...kl->...jl", D, metric, D) + np.einsum("...i,...ijk->...jk", rho @ metric, D2)
        update = np.einsum("...ij,...j->...i", np.linalg.pinv(hessian), slope)
        update *= np.minimum(1.0, 0.2 * radius / np.maximum(np.linalg.norm(update, axis=1, keepdims=True), 1e-300))
    good = (np.abs(slope).max(1) < 1e-9 * np.abs(hessian).max((1, 2))) & (np.linalg.norm(x, axis=1) < 1.001 * radius)
    found: list[CriticalPoint] = []
    for point, curvature in zip(x[good], hessian[good], strict=True):
        if not any(_gap(f, point, f, other.coordinates) < 1e-5 for other in found):
            value = float(legendre.impulse_energy(f, point))
            found.append(CriticalPoint(point, value, int(np.sum(np.linalg.eigvalsh(curvature) < 0))))
    return sorted(found, key=lambda point: point.value)


def largest_step_of_level(system: InvariantSystem, integrator: EulerPoincareSuslov, energy: float) -> float:
    """The h below which every momentum of this energy has a displacement on the sheet through the identity, or inf.

    It is sqrt(h*/E), h* the lowest critical value of the energy on the edge of that sheet.
    """
    f, near = legendre.angle_map(system, integrator), legendre.legendre_map(system, integrator)
    for point in critical_points(system, integrator):
        x, exists = near.start((1 - 1e-8) * f.restriction(point.coordinates))
        if point.index > 0 and exists and _gap(near, x, f, point.coordinates) < 1e-2:
            return float(np.sqrt(point.value / energy))
    return np.inf


def invariant_curves(
    system: InvariantSystem,
    integrator: EulerPoincareSuslov,
    value: float,
    *,
    extent: float | None = None,
    points: int = 201,
) -> list[np.ndarray]:
    """Trace the invariant curves h^2 E_c = value on a two-dimensional d.

    There is an entry (k, 2) for each component, with NaN between its pieces. Points have the coordinates of
    `angle_map`; `projective(y)` gives the (q1, q2, q0) of fedorov-zenkov on SO(3).
    """
    chart = legendre.Chart.of(system, integrator, extent)
    lines = chart.zeros(lambda y: legendre.impulse_energy(chart.map, y) - value, points=points)
    label = legendre.connected_components(chart, lines)
    gap = np.full((1, 2), np.nan)
    return [
        np.vstack([piece for i in np.flatnonzero(label == name) for piece in (lines[i], gap)])[:-1]
        for name in np.unique(label)
    ]


def projective(y: ArrayLike) -> np.ndarray:
    """(q1, q2, q0) = (sin(t/2) y/t, cos(t/2)), t = |y|, of rotations with exponential coordinates y; q0 >= 0."""
    y = np.asarray(y, float)
    half = np.hypot(y[..., 0], y[..., 1]) / 2
    q = np.concatenate([0.5 * np.sinc(half / np.pi)[..., None] * y, np.cos(half)[..., None]], axis=-1)
    return np.where(q[..., 2:] < 0, -q, q)


def equilibrium_line(system: InvariantSystem, integrator: EulerPoincareSuslov) -> np.ndarray:
    """The unit w (n,) in a two-dimensional d of the stationary displacements tau(t w), stable for small t > 0.

    A step changes the restricted momentum by -f(x) - f(-x) = s(x) (x2, -x1) + O(x^4) with a linear form s, whose zero
    is the line. A balanced body has s = 0 (all is stationary): refused.
    """
    f = legendre.legendre_map(system, integrator)
    if f.rank != 2:
        raise InvalidInput(f"a line of equilibria needs a two-dimensional d; this one has dimension {f.rank}")
    bend = f.curvature(np.zeros(2))
    form = np.array([bend[1, 0, 0], -bend[0, 1, 1]])
    if np.abs(form).max() < 1e-12 * np.abs(np.asarray(system.inertia)).max():
        raise InvalidInput("the body is balanced: every displacement is stationary")
    x = np.array([-form[1], form[0]]) / np.hypot(*form)
    x = x if form @ np.linalg.solve(f.jacobian(np.zeros(2)), [-x[1], x[0]]) > 0 else -x
    for size in (0.1, 0.7):
        if np.abs(f.transport(size * x) - f.restriction(size * x)).max() > 1e-9 * np.abs(f.restriction(size * x)).max():
            raise NumericalFailure("the stationary displacements of this map are not on a line")
    return np.asarray(f.subspace @ x)


def jacobian_determinant(
    system: InvariantSystem, integrator: EulerPoincareSuslov, increment: ArrayLike, step: float
) -> np.ndarray:
    """det d(iota* M_{k+1})/d(iota* M_k) at increments (..., n): 1 where the map preserves the volume of momenta."""
    f = legendre.legendre_map(system, integrator, step)
    x = displacement_coordinates(system, increment, step)
    return np.asarray(np.linalg.det(f.transport_slope(x)) / np.linalg.det(f.jacobian(x)))


@dataclass(frozen=True, eq=False)
class Limits:
    """The increments (n,) to which a motion tends, and how often the map was applied to get there."""

    before: np.ndarray
    after: np.ndarray
    steps: int


def limits(
    system: InvariantSystem,
    integrator: EulerPoincareSuslov,
    momentum: ArrayLike,
    step: float,
    *,
    max_steps: int = 200_000,
) -> Limits:
    """The limits of the increments of a motion for k -> -inf and k -> +inf (Theorem 6.3 of fedorov-zenkov).

    Mutually inverse displacements mean before = -after; that is so where the energy is conserved.
    """
    f = legendre.legendre_map(system, integrator, step)
    pairs = _outward(f, f.target(momentum, step), max_steps)
    ends, count = next(pairs), 0
    for new in pairs:
        moved, ends, count = np.abs(new - ends).max(), new, count + 1
        if moved < 1e-15 * np.abs(ends).max():
            break
    return Limits(-ends[0] @ f.subspace.T / step, ends[1] @ f.subspace.T / step, count)


def discrete_total_turning(
    system: InvariantSystem, integrator: EulerPoincareSuslov, momentum: ArrayLike, step: float
) -> float:
    """The sum of the sleigh's turns dtheta_k from k = -inf to inf; the flow's is (pi/a) sqrt((J + m a^2)/m)."""
    if not system.group.is_motion_group(2):
        raise InvalidInput(f"the total turning is that of a sleigh on SE(2); given a system on {system.group}")
    f = legendre.legendre_map(system, integrator, step)

    def angle(x: np.ndarray) -> Any:
        return 2 * np.arctan(x[..., 0] / 2) if isinstance(integrator.retraction, Cayley) else x[..., 0]

    pairs = _outward(f, f.target(momentum, step), 1_000_000)
    turned = angle(next(pairs)[1])
    for both in pairs:
        turn = angle(both) * [-1, 1]
        turned += turn.sum()
        if np.abs(turn).max() < 1e-16 * max(1.0, abs(turned)):
            break
    return float(turned)


def _outward(f: legendre.LegendreMap, target: np.ndarray, steps: int) -> Iterator[np.ndarray]:
    """(-x, x), then both after each step: one from -x is a step back from x, since x -> -x reverses the map."""
    f.require_reversible()
    x, exists = f.start(target)
    if not exists:
        raise NumericalFailure("this momentum has no displacement on the branch through 0; take a smaller step")
    both = np.array([-x, x])
    yield both
    for _ in range(steps):
        both, good = f.image(both)
        if not np.all(good):
            raise NumericalFailure("the branch that the motion follows ends; take a smaller step")
        yield both


def _gap(f: legendre.LegendreMap, x: np.ndarray, g: legendre.LegendreMap, y: np.ndarray) -> float:
    """The distance of the displacements with coordinates x of f and y of g."""
    if isinstance(f, legendre.AlgebraicMap) and isinstance(g, legendre.AlgebraicMap):
        return float(np.abs(f.displacement(x) - g.displacement(y)).max())
    return float(np.abs(x - y).max())
