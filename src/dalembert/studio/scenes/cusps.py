"""Cusps of a path on the plane: where a body stops on its blade and turns back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..seen import Seen
from ..shapes import View, label, sphere
from .parts import raised, turned

NEARLY_STILL = 0.1
"""How slow, beside the fastest of the motion, a body has to become between two frames: else it turned sharply, or frames are missing."""
MOST = 40
STRAIGHT = 1e-6
"""Yaw rates beside the largest below which the way back is the way there: a turning point, no cusp."""


class Cusp(NamedTuple):
    time: float
    place: np.ndarray  # (2,)
    name: str


def cusps(t: np.ndarray, place: np.ndarray, turn: np.ndarray, velocity: np.ndarray) -> list[Cusp]:
    """Where velocities (k, 3) in the body, (yaw rate, v1, v2), pass through zero and come out backwards: between two frames.

    The moment is that of the smallest speed of (v1, v2) between them, taken as linear; the place follows from the velocities in space at
    both ends (Hermite), since the chord of two frames misses the tip.
    """
    along = velocity[:, 1:3]
    change, before = np.diff(along, axis=0), along[:-1]
    back = np.einsum("ki,ki->k", before, along[1:]) < 0
    part = -np.einsum("ki,ki->k", before, change) / np.maximum(np.einsum("ki,ki->k", change, change), 1e-300)
    slowest = np.linalg.norm(before + part[:, None] * change, axis=1)
    still = slowest <= NEARLY_STILL * np.maximum(np.linalg.norm(before, axis=1), np.linalg.norm(along[1:], axis=1))
    space = turned(turn, np.column_stack([along, np.zeros(len(along))]))[:, :2]
    fastest = float(np.abs(velocity[:, 0]).max())
    found = []
    for k in np.flatnonzero(back & still):
        s, h = part[k], t[k + 1] - t[k]
        ends = (1 + 2 * s) * (1 - s) ** 2 * place[k] + s**2 * (3 - 2 * s) * place[k + 1]
        tip = ends + h * (s * (1 - s) ** 2 * space[k] - s**2 * (1 - s) * space[k + 1])
        yaw = velocity[k, 0] + s * (velocity[k + 1, 0] - velocity[k, 0])
        found.append(Cusp(float(t[k] + s * h), tip, "cusp" if abs(yaw) > STRAIGHT * fastest else "turning point"))
    return found


def mark_cusps(view: View, seen: Seen, place: np.ndarray, turn: np.ndarray, size: float) -> str:
    """A ball at every cusp of the path before the run ended, the first with its name; a sentence if there are any."""
    frames = slice(0, seen.good)
    found = cusps(seen.motion.t[frames], place[frames], turn[frames], seen.velocity[frames, :3])
    if not found or len(found) > MOST:
        return ""
    for k, (_, where, name) in enumerate(found):
        at = raised(where[None], 0.02 * size)[0]
        view.add(name, sphere(0.07 * size), seen.colour, position=at, run=seen.number)
        if k == 0 and seen.first:
            view.add("", label(name), seen.colour, position=at + np.array([0.0, 0.0, 0.35 * size]), run=seen.number)
    times = ", ".join(f"{time:.2f}" for time, *_ in found[:3]) + (", .." if len(found) > 3 else "")
    return f" Ball on the path: where it stops and turns back (t = {times})."
