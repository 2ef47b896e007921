"""The second view: momenta on the surfaces that hold them.

A free body's lie on a sphere and an ellipsoid, a constrained one's on the plane I(d) or, discretised by Moser and Veselov's
Lagrangian or another, on the locus that stands in its place; those of an LR system, seen from space, on a line.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..integrators import EulerPoincareSuslov
from ..invariant import InvariantSystem
from ..plotting.geometry import globe
from ..plotting.surfaces import momentum_surface
from ..right_invariant import LRSystem
from .scenes.parts import principal, turned
from .seen import Seen
from .shapes import CONSTRAINT, DARK, MOMENTUM, SURFACE, VELOCITY, View, label, sphere, surface

GRID = 25


def momentum_view(runs: Sequence[Seen]) -> View | None:
    """Momenta in three dimensions, where the system has so many and its kinetic energy alone."""
    system = runs[0].system
    if system is None or system.group.dim != 3 or not isinstance(system, InvariantSystem | LRSystem):
        return None
    view = View("Momentum")
    points = [_full(seen) for seen in runs]
    size = max(float(np.abs(np.concatenate(points)).max()), 1e-9)
    if isinstance(system, LRSystem):
        view.title = "Momentum seen from space"
        if str(system.group) != "SO(3)":
            return None
        points = [turned(seen.motion.parts[0], m) for seen, m in zip(runs, points, strict=True)]
        _line(view, system, points[0][0], size)
    elif not system.annihilator.shape[0]:
        view.title = "Momentum in the body: sphere and energy ellipsoid"
        _free(view, system, runs[0], points[0][0])
    elif system.subspace.shape[1] == 2:
        view.title = "Momentum in the body: plane I(d)"
        _constrained(view, system, runs, size)
    for seen, momentum in zip(runs, points, strict=True):
        view.trace("momentum", momentum, seen.colour, width=3.0, run=seen.number)
        view.add("momentum now", sphere(0.035 * size), seen.colour, position=momentum, run=seen.number)
    _axes(view, size)
    return view


def _full(seen: Seen) -> np.ndarray:
    """All three components: the method's own momentum, or I xi where it has a restricted one."""
    if seen.momentum.shape[1] == 3:
        return seen.momentum
    return seen.velocity @ np.asarray(seen.system.inertia).T  # type: ignore[union-attr]


def _axes(view: View, size: float) -> None:
    for k, axis in enumerate(np.eye(3)):
        view.line("", np.stack([0 * axis, 1.25 * size * axis]), DARK, width=1.0)
        view.add("", label(f"M{k + 1}"), DARK, position=1.33 * size * axis)


def _free(view: View, system: InvariantSystem, seen: Seen, start: np.ndarray) -> None:
    """|m| and the energy <m, I^-1 m>/2 are constant: the polhode is where their surfaces meet."""
    radius, energy = float(np.linalg.norm(start)), max(float(seen.energy[0]), 0.0)
    if str(system.group) == "SO(3)" and radius > 0:
        view.add("sphere of constant momentum", sphere(radius), SURFACE, opacity=0.25)
    if energy > 0 and system.potential is None:
        moments, axes = principal(np.asarray(system.inertia))
        shell = globe(np.sqrt(2 * energy * moments), 41, 21) @ axes.T
        view.add("ellipsoid of constant energy", surface(shell), CONSTRAINT, opacity=0.3)


def _constrained(view: View, system: InvariantSystem, runs: Sequence[Seen], size: float) -> None:
    """The plane I(d) with the ellipse of constant energy, and the loci of the methods that leave the plane."""
    subspace, inertia = np.asarray(system.subspace), np.asarray(system.inertia)
    spread = inertia @ subspace  # from coordinates on d to momenta
    reduced = subspace.T @ spread
    orthogonal, _ = np.linalg.qr(spread)
    square = 1.2 * size * np.stack(np.meshgrid([-1.0, 1.0], [-1.0, 1.0], indexing="ij"), axis=-1)
    view.add("plane I(d) of the exact motion", surface(square @ orthogonal.T), VELOCITY, opacity=0.3)
    energy = float(runs[0].energy[0])
    if energy > 0 and system.potential is None:
        angle = np.linspace(0, 2 * np.pi, 97)
        circle = np.sqrt(2 * energy) * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        ellipse = np.linalg.solve(np.linalg.cholesky(reduced).T, circle.T).T @ spread.T
        view.line("ellipse of constant energy", ellipse, MOMENTUM, width=2.0)
    for seen in runs:
        integrator = seen.trajectory.integrator if seen.trajectory is not None else None
        if isinstance(integrator, EulerPoincareSuslov) and seen.trajectory is not None:
            reach = 1.15 * np.abs(np.asarray(seen.trajectory.increment) @ np.linalg.pinv(subspace).T).max(axis=0)
            sides = [np.linspace(-r, r, GRID) for r in np.maximum(reach, max(0.3 * reach.max(), 1e-6))]
            grid = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1)
            locus = momentum_surface(system, integrator, float(seen.trajectory.step), grid)
            if np.all(np.isfinite(locus)):
                view.title = "Momentum in the body: plane I(d) and discrete locus"
                view.add("locus of the discrete momentum", surface(locus), seen.colour, opacity=0.35, run=seen.number)


def _line(view: View, system: LRSystem, start: np.ndarray, size: float) -> None:
    """The components on d are kept, so the momentum moves along the annihilator of d."""
    if system.annihilator.shape[0] != 1:
        return
    direction = np.asarray(system.annihilator)[0]
    direction = 1.3 * size * direction / np.linalg.norm(direction)
    across = start - (start @ direction) / (direction @ direction) * direction
    view.line(
        "line of constant momentum on d", np.stack([across - direction, across + direction]), CONSTRAINT, width=2.0
    )


def momentum_change(seen: Seen) -> np.ndarray | None:
    """How far the momenta that symmetries conserve are from their start, relative to their size; None where none is known.

    A free left-invariant system keeps all of Ad*_{g^-1} m, an LR system the components of that on d.
    """
    system = seen.system
    if seen.momentum.ndim != 2 or seen.momentum.shape[1] != seen.velocity.shape[1]:
        return None
    free = isinstance(system, InvariantSystem) and not system.annihilator.shape[0] and system.potential is None
    if free and str(system.group) == "SO(3)":  # type: ignore[union-attr]
        spatial = turned(seen.motion.parts[0], seen.momentum)
    elif isinstance(system, LRSystem):
        if str(system.group) not in ("SO(3)", "SO(3) x R^2"):
            return None
        parts = [turned(seen.motion.parts[0], seen.momentum[:, :3]), seen.momentum[:, 3:]]
        spatial = np.concatenate(parts, axis=1) @ np.asarray(system.subspace)
    else:
        return None
    return np.linalg.norm(spatial - spatial[0], axis=1) / max(float(np.linalg.norm(spatial[0])), 1e-300)
