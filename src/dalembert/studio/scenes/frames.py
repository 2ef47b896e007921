"""Bodies in more than three dimensions: the images of their basis vectors, seen in three of the directions; and products, side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...invariant import generators
from ...plotting.style import COLOURS
from ..seen import Seen
from ..shapes import DARK, VELOCITY, View, label, sphere
from .parts import arrows, factors

AXES = (COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3], COLOURS[4], COLOURS[5])


def basis_images(view: View, seen: Seen) -> str:
    """R e_1, ..., R e_n in three directions of space, with the velocities of their tips (and the path of the reference point)."""
    matrices = seen.motion.parts[0]
    moving = seen.motion.group.startswith("SE")
    n = matrices.shape[1] - moving
    place = matrices[:, :3, n] if moving else np.zeros((len(matrices), 3))
    size = max(0.15 * float(np.ptp(place, axis=0).max()), 0.3) if moving else 1.0
    part: dict[str, Any] = {"run": seen.number}
    rates = _rates(seen)
    longest = 0.7 * size / max(float(np.abs(rates[:, :3, :n]).max()), 1e-9)
    for i in range(n):
        colour = AXES[i % len(AXES)]
        tip = place + size * matrices[:, :3, i]
        view.arrow(f"image of e{i + 1}", place, tip, colour, width=0.03 * size, opacity=seen.opacity, **part)
        view.add("", label(f"e{i + 1}"), colour, position=place + 1.12 * size * matrices[:, :3, i], **part)
        if seen.first and not moving:
            view.trace("", tip, colour, width=1.2, whole=False, **part)
        if seen.first:
            view.arrow(
                "velocity of the tips", tip, tip + longest * rates[:, :3, i], VELOCITY, width=0.02 * size, **part
            )
    if moving:
        view.trace("path of the reference point", place, seen.colour, width=3.0, **part)
        view.add("reference point", sphere(0.06 * size), DARK, position=place, **part)
        forward = arrows(rates[:, :3, n], 2.0 * size)
        view.arrow("velocity", place, place + forward, VELOCITY, width=0.05 * size, **part)
    view.see(place, 1.2 * size)
    if seen.motion.name == "suslov-n":
        text = f"The constraint: the tips of all arrows but the last move along the last one (e{n}) only."
    elif seen.motion.name == "sleigh-n":
        text = "The constraint: the body moves along e1 only, and the other tips move towards it or away."
    else:
        text = "The arrows look shorter when they point out of the three directions that are drawn."
    return f"The images of the basis vectors. Amber: the velocities of their tips. {text}"


def _rates(seen: Seen) -> np.ndarray:
    """g hat(xi) at every frame, (k, N, N)."""
    matrices = seen.motion.parts[0]
    if seen.system is None:
        return np.gradient(matrices, seen.motion.t, axis=0)
    return matrices @ np.einsum("ki,iab->kab", seen.velocity, generators(seen.system.group))


def side_by_side(view: View, seen: Seen, draw: Callable[[Seen], Callable[[View, Seen], str]]) -> str:
    """The factors of a product, each with its own scene, in a row."""
    texts, start = [], view.offset
    for k, alone in enumerate(factors(seen)):
        view.offset = start + np.array([3.0 * k, 0.0, 0.0])
        texts.append(f"{alone.motion.group}: {draw(alone)(view, alone)}")
    view.offset = start
    return " ".join(texts)
