"""Bodies that roll in space: what touches the floor stands still, so the curves of contact on floor and body roll on each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...plotting.geometry import Roller, globe
from ...plotting.style import COLOURS
from ..seen import Seen
from ..shapes import (
    CONSTRAINT,
    DARK,
    MOMENTUM,
    NOTHING,
    PALE,
    VELOCITY,
    View,
    box,
    cylinder,
    ellipsoid,
    mesh,
    sphere,
    surface,
    torus,
)
from .parts import about_z, arrows, body_colour, raised, turned
from .planar import coin

STRIPES = (CONSTRAINT, COLOURS[2], COLOURS[3])


def rolling(view: View, seen: Seen) -> str:
    """A ball, a leaning disk or a half ellipsoid on its floor, which may slope or turn."""
    turns, place = seen.motion.parts
    body = Roller.of(seen.motion)
    size = float(body.semi.max())
    centre, contact = body.centres(turns, place), body.contact(turns)
    touched = raised((centre + turned(turns, contact))[:, :2], 0.003 * size)
    part: dict[str, Any] = {"run": seen.number}
    frame = view.add("frame of the body", NOTHING, DARK, position=centre, rotation=turns, **part)
    _shape(view, seen, body, frame)
    view.trace("contact on the floor", touched, seen.colour, width=3.0, **part)
    view.trace("contact on the body", contact, DARK, width=1.5, parent=frame, **part)
    view.add("point of contact", sphere(0.05 * size), CONSTRAINT, position=touched, **part)
    _velocities(view, seen, body, centre, contact, turns, size)
    text = _momentum(view, seen, centre, turns, size)
    _floor(view, seen, place, size)
    view.see(centre @ view.tilt.T, 1.2 * size)
    still = (
        "moves with the table" if seen.motion.number("rotation", 0.0) else "stands still for a moment: it does not slip"
    )
    return f"Orange-red: the point of contact, which {still}. Amber: the velocities of the middle and of the point opposite. {text}".strip()


def _shape(view: View, seen: Seen, body: Roller, frame: int) -> None:
    part: dict[str, Any] = {"parent": frame, "run": seen.number}
    if not body.semi.all():
        coin(view, seen, float(body.semi.max()), frame)
    elif np.ptp(body.semi) > 0:
        half = globe(body.semi, 49, 13, np.pi / 2) + body.shift
        rim = half[:-1, 0]
        lid = np.concatenate([body.shift[None], rim])
        fan = [[0, k + 1, (k + 1) % len(rim) + 1] for k in range(len(rim))]
        shown: dict[str, Any] = {"opacity": 0.9 * seen.opacity, **part}
        view.add("body", surface(half), body_colour(seen), **shown)
        view.add("flat top", mesh(lid, np.array(fan)), PALE, **shown)
        top = body.shift + np.array([0.0, 0.0, 0.01 * body.semi[2]])
        view.line(
            "long axis", top + np.array([[-body.semi[0], 0, 0], [body.semi[0], 0, 0]]), CONSTRAINT, width=3.0, **part
        )
    else:
        radius = float(body.semi[0])
        view.add("ball", ellipsoid(*body.semi), body_colour(seen), opacity=0.45 * seen.opacity, **part)
        for stripe, colour in zip(np.eye(3), STRIPES, strict=True):
            turn = np.stack([np.roll(stripe, 1), np.roll(stripe, 2), stripe], axis=-1)
            view.add("stripe", torus(radius, 0.022 * radius), colour, rotation=turn, **part)


def _velocities(
    view: View, seen: Seen, body: Roller, centre: np.ndarray, contact: np.ndarray, turns: np.ndarray, size: float
) -> None:
    """The velocity of the centre and, of a round body, of the point opposite to the contact: twice as fast on a floor at rest."""
    spin = seen.velocity[:, :3]
    climb = -turned(turns, np.cross(spin, contact))[:, 2:]
    middle = np.concatenate([seen.velocity[:, 3:5], climb], axis=1)
    top = middle + turned(turns, np.cross(spin, -contact))
    both = arrows(np.concatenate([middle, top]), 1.8 * size)
    moving, opposite = both[: len(middle)], both[len(middle) :]
    view.arrow("velocity", centre, centre + moving, VELOCITY, width=0.05 * size, run=seen.number)
    if np.ptp(body.semi[body.semi > 0]) == 0:
        start = centre - turned(turns, contact)
        view.arrow(
            "velocity of the point opposite", start, start + opposite, VELOCITY, width=0.035 * size, run=seen.number
        )


def _momentum(view: View, seen: Seen, centre: np.ndarray, turns: np.ndarray, size: float) -> str:
    """R (I w + m r x (w x r)), the momentum about the contact of a ball with its centre of mass in the middle."""
    given = seen.motion.parameters.get("inertia")
    if not seen.motion.name.startswith("chaplygin-") or given is None:
        return ""
    tensor = np.diag(given) if np.ndim(given) == 1 else np.asarray(given, float)
    spin, down = seen.velocity[:, :3], -seen.motion.number("radius", 1.0) * turns[:, 2]
    about = spin @ tensor.T + seen.motion.number("mass", 1.0) * np.cross(down, np.cross(spin, down))
    tip = centre + arrows(turned(turns, about), 2.2 * size)
    view.arrow("momentum about the contact", centre, tip, MOMENTUM, width=0.05 * size, run=seen.number)
    return "Pink: the momentum about the point of contact, constant in space."


def _floor(view: View, seen: Seen, place: np.ndarray, size: float) -> None:
    """The floor; one that turns is a table with rays."""
    if not seen.first:
        return
    rotation = seen.motion.number("rotation", 0.0)
    if not rotation:
        view.floor((place.max(axis=0) + place.min(axis=0)) / 2, 1.3 * float(np.ptp(place, axis=0).max()) + 6 * size)
        return
    reach = 1.15 * float(np.linalg.norm(place, axis=1).max()) + 1.5 * size
    turn = about_z(rotation * seen.motion.t)
    below = -0.02 * size
    table = view.add("table", cylinder(reach, 2 * abs(below)), PALE, position=[0, 0, below], rotation=turn, opacity=0.8)
    for k in range(6):
        ray = about_z(k * np.pi / 3)
        bar = box(reach, 0.02 * reach, 2.05 * abs(below))
        view.add(
            "ray of the table", bar, DARK, position=ray @ [reach / 2, 0, 0], rotation=ray, opacity=0.5, parent=table
        )
