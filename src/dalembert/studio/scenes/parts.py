"""What several scenes are made of: rotations, allowed directions, arrows of a readable length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...plotting.geometry import sides
from ...plotting.stage import BODY, Motion
from ..seen import Seen
from ..shapes import View, box


def about_z(angle: np.ndarray | float) -> np.ndarray:
    """The rotation by an angle, or the track of rotations by angles, about the vertical."""
    c, s, zero, one = _entries(angle)
    return np.stack([np.stack([c, -s, zero], -1), np.stack([s, c, zero], -1), np.stack([zero, zero, one], -1)], -2)


def about_y(angle: np.ndarray | float) -> np.ndarray:
    """The rotation, or track of rotations, by an angle about y: a wheel that rolls along x turns so."""
    c, s, zero, one = _entries(angle)
    return np.stack([np.stack([c, zero, s], -1), np.stack([zero, one, zero], -1), np.stack([-s, zero, c], -1)], -2)


def _entries(angle: np.ndarray | float) -> tuple[np.ndarray, ...]:
    angle = np.asarray(angle, float)
    return np.cos(angle), np.sin(angle), np.zeros_like(angle), np.ones_like(angle)


def facing(directions: np.ndarray) -> np.ndarray:
    """Rotations (..., 3, 3) that turn e3 into these directions (..., 3)."""
    z = unit(np.asarray(directions, float))
    flat = z.reshape(-1, 3)
    reference = np.eye(3)[int(np.argmin(np.abs(flat).max(axis=0)))]
    x = unit(np.cross(np.broadcast_to(reference, z.shape), z))
    return np.stack([x, np.cross(z, x), z], axis=-1)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; those of no length stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-300)


def turned(rotations: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """R v at every frame."""
    return np.einsum("...ij,...j->...i", rotations, vectors)


def raised(points: np.ndarray, height: float) -> np.ndarray:
    """Points in the plane (k, 2) or in space (k, 3), `height` above where they are."""
    flat = np.asarray(points, float)
    return np.column_stack([flat[:, :2], (flat[:, 2] if flat.shape[1] > 2 else 0.0) + np.full(len(flat), height)])


def arrows(vectors: np.ndarray, length: float) -> np.ndarray:
    """Vectors to draw: the longest of them has this length."""
    return vectors * (length / max(float(np.linalg.norm(vectors, axis=-1).max()), 1e-9))


def is_constant(track: np.ndarray) -> bool:
    """Whether a track stays where it starts."""
    return bool(np.abs(track - track[:1]).max(initial=0.0) < 1e-9 * (1 + np.abs(track).max(initial=0.0)))


def allowed(rows: np.ndarray, components: slice) -> np.ndarray:
    """An orthonormal basis (d, k) of the velocities in some components that constraint rows (m, n) leave: what ker A projects to."""
    _, sizes, v = np.linalg.svd(rows)
    free = v[int(np.count_nonzero(sizes > 1e-12)) :][:, components]
    directions, strengths, _ = np.linalg.svd(free.T, full_matrices=False)
    return directions[:, strengths > 1e-9]


def body_colour(seen: Seen) -> str:
    return BODY if seen.first else seen.colour


def principal(inertia: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moments and principal axes (a rotation) of an inertia given by three moments or a tensor."""
    tensor = np.diag(inertia) if np.ndim(inertia) == 1 else np.asarray(inertia, float)
    if not np.any(tensor - np.diag(np.diag(tensor))):
        return np.diag(tensor), np.eye(3)
    moments, axes = np.linalg.eigh(tensor)
    return moments, axes * np.sign(np.linalg.det(axes))


def brick(
    view: View, seen: Seen, inertia: np.ndarray | None, parent: int, scale: float = 1.0, opacity: float = 0.85
) -> None:
    """A box of the proportions that the moments say, in its principal axes."""
    known = inertia is not None and np.asarray(inertia).shape in ((3,), (3, 3))
    moments, axes = principal(np.asarray(inertia, float)) if known else (None, np.eye(3))
    size = 2 * scale * sides(moments)
    view.add(
        "body",
        box(*size),
        body_colour(seen),
        rotation=axes,
        opacity=opacity * seen.opacity,
        parent=parent,
        run=seen.number,
    )


def factors(seen: Seen) -> list[Seen]:
    """A run on a product as runs on its factors, each with the constraint rows that are its own."""
    found, first = [], 0
    for name, part in zip(seen.motion.group.split(" x "), seen.motion.parts, strict=True):
        own = np.arange(first, first + dimension(name))
        others = np.setdiff1d(np.arange(seen.velocity.shape[1]), own)
        kept = np.abs(seen.rows[:, :, others]).max(axis=(0, 2), initial=0.0) == 0
        rows, velocity, reaction = seen.rows[:, kept][:, :, own], seen.velocity[:, own], seen.reaction[:, own]
        motion = Motion(seen.motion.t, name, (part,))
        found.append(replace(seen, motion=motion, system=None, rows=rows, velocity=velocity, reaction=reaction))
        first += len(own)
    return found


def dimension(group: str) -> int:
    """The dimension of a factor by its name, R^n, SO(n) or SE(n)."""
    if group.startswith("R^"):
        return int(group[2:])
    n = int(group[3:-1])
    return n * (n - 1) // 2 + (n if group.startswith("SE") else 0)
