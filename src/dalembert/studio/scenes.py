"""What several scenes are made of: rotations, allowed directions, arrows of a readable length.

Cusps of a path on the plane: where a body stops on its blade and turns back.

Bodies in more than three dimensions: the images of their basis vectors, seen in three of the directions; and products, side by side.

Bodies on the plane: sleighs on a blade, vehicles on wheels, disks that roll upright.

Points in R^n: the trace, and at places along it the plane in which the velocity must lie.

Bodies that roll in space: what touches the floor stands still, so the curves of contact on floor and body roll on each other.

Bodies that turn about a point or fly through space: free ones after Poinsot, constrained ones with what they may not do crossed out.

Which scene a motion gets: by its model where that has a look of its own, else by its group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..mechanics import generators
from ..models import MODELS
from ..plotting.scenes import BODY, Motion, Roller, Stroke, Vehicle, globe, sides, suslov_wheel, vehicle
from ..plotting.style import COLOURS
from .frames import RunFrames
from .view import (
    CONSTRAINT,
    DARK,
    MOMENTUM,
    NOTHING,
    PALE,
    REACTION,
    SURFACE,
    VELOCITY,
    View,
    box,
    cylinder,
    ellipsoid,
    label,
    mesh,
    plane,
    prism,
    sphere,
    surface,
    torus,
)


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


def body_colour(seen: RunFrames) -> str:
    return BODY if seen.first else seen.colour


def principal(inertia: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moments and principal axes (a rotation) of an inertia given by three moments or a tensor."""
    tensor = np.diag(inertia) if np.ndim(inertia) == 1 else np.asarray(inertia, float)
    if not np.any(tensor - np.diag(np.diag(tensor))):
        return np.diag(tensor), np.eye(3)
    moments, axes = np.linalg.eigh(tensor)
    return moments, axes * np.sign(np.linalg.det(axes))


def brick(
    view: View, seen: RunFrames, inertia: np.ndarray | None, parent: int, scale: float = 1.0, opacity: float = 0.85
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


def factors(seen: RunFrames) -> list[RunFrames]:
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


def mark_cusps(view: View, seen: RunFrames, place: np.ndarray, turn: np.ndarray, size: float) -> str:
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


AXES = (COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3], COLOURS[4], COLOURS[5])


def basis_images(view: View, seen: RunFrames) -> str:
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


def _rates(seen: RunFrames) -> np.ndarray:
    """g hat(xi) at every frame, (k, N, N)."""
    matrices = seen.motion.parts[0]
    if seen.system is None:
        return np.gradient(matrices, seen.motion.t, axis=0)
    return matrices @ np.einsum("ki,iab->kab", seen.velocity, generators(seen.system.group))


def side_by_side(view: View, seen: RunFrames, draw: Callable[[RunFrames], Callable[[View, RunFrames], str]]) -> str:
    """The factors of a product, each with its own scene, in a row."""
    texts, start = [], view.offset
    for k, alone in enumerate(factors(seen)):
        view.offset = start + np.array([3.0 * k, 0.0, 0.0])
        texts.append(f"{alone.motion.group}: {draw(alone)(view, alone)}")
    view.offset = start
    return " ".join(texts)


LAID = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
"""The rotation that lays the axis of a cylinder along y: the axle of a wheel that rolls along x."""


def poses(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places (k, 2) and rotations in space (k, 3, 3) of a track (k, 3, 3) in SE(2)."""
    return frames[:, :2, 2], about_z(np.arctan2(frames[:, 1, 0], frames[:, 0, 0]))


def slope(seen: RunFrames) -> np.ndarray:
    """The rotation that tilts the plane of a model with a slope, x down."""
    return about_y(seen.motion.number("slope", 0.0))


def planar(view: View, seen: RunFrames) -> str:
    """A body with its blade or wheels: it may move along them, never across."""
    place, turn = poses(seen.motion.parts[0])
    body = _body(seen)
    size = float(np.hypot(*body.outline.T).max())
    height, lift = 0.12 * size, 0.3 * size
    above = lift + 0.5 * height
    add = partial(view.add, run=seen.number)
    frame = add("frame of the body", NOTHING, DARK, position=raised(place, 0.0), rotation=turn)
    inside = partial(add, parent=frame)
    inside("body", prism(body.outline, height), body_colour(seen), position=[0, 0, lift], opacity=0.45 * seen.opacity)
    if body.centre is not None:
        inside("centre of mass", sphere(0.13 * size), DARK, position=[*body.centre, lift + height])
        reach = float(body.centre[0])
        if len(body.wheels) == 1 and abs(reach) > 1e-9:
            lever = box(abs(reach), 0.05 * size, 0.05 * size)
            inside("lever a of the push", lever, DARK, position=[reach / 2, 0, lift + 1.2 * height])
    for bar in body.bars:
        inside("bar", box(2 * bar.half, 0.12 * size, 0.08 * size), DARK, **_along(bar, lift + 1.3 * height))
    for wheel in body.wheels:
        _wheel(view, seen, wheel, frame, size, above if len(body.wheels) == 1 else 0.0)
    view.trace("path of the contact", raised(place, 0.004 * size), seen.colour, width=3.0, run=seen.number)
    origin = raised(place, 0.3 * lift)
    moving = arrows(_across(turn, seen.velocity), 2.0 * size)
    view.arrow("velocity", origin, origin + moving, VELOCITY, width=0.05 * size, run=seen.number)
    pushed = len(seen.motion.parts) == 1 and len(body.wheels) == 1 and np.abs(seen.reaction[:, 1:3]).max() > 1e-9
    if pushed:
        push = arrows(_across(turn, seen.reaction), 2.4 * size)
        view.arrow("push of the ground", origin, origin + push, REACTION, width=0.05 * size, run=seen.number)
    turning = mark_cusps(view, seen, place, turn, size)
    _stand(view, place, size)
    return (
        f"Orange-red: {'the blade' if len(body.wheels) == 1 else 'wheels'}, with the direction of no motion crossed out. "
        "Amber: the velocity."
        + (" Pink: the push of the ground that keeps the blade from slipping." if pushed else "")
        + (" Dark ball: the centre of mass." if body.centre is not None else "")
        + turning
    )


def _wheel(view: View, seen: RunFrames, wheel: Stroke, frame: int, size: float, fin: float) -> None:
    """A blade, a fin of this height that cuts the floor; or a wheel. Across it nothing moves."""
    radius = min(wheel.half, 0.18 * size)
    part: dict[str, Any] = {"parent": frame, "run": seen.number}
    if fin:
        foot = view.add("blade", box(2 * wheel.half, 0.045 * size, fin), CONSTRAINT, **_along(wheel, fin / 2), **part)
    else:
        foot = view.add("heading of the wheel", NOTHING, CONSTRAINT, **_along(wheel, radius), **part)
        view.add("wheel", cylinder(radius, 0.06 * size), CONSTRAINT, rotation=LAID, parent=foot, run=seen.number)
    _forbid(view, seen, max(1.2 * wheel.half, 0.35 * size), 0.02 * size - (fin / 2 or radius), foot)


def _body(seen: RunFrames) -> Vehicle:
    """The vehicle; a user's own has a blade along the directions that its constraint leaves, if that is one."""
    body = vehicle(seen.motion)
    if seen.motion.name in MODELS:
        return body
    left = [allowed(rows, slice(1, 3)) for rows in seen.rows]
    if any(directions.shape[1] != 1 for directions in left):
        return body._replace(wheels=[], centre=None)
    along = np.array([directions[:, 0] for directions in left])
    angle = np.unwrap(np.arctan2(along[:, 1], along[:, 0]), period=np.pi)
    return body._replace(wheels=[body.wheels[0]._replace(angle=angle)], centre=None)


def _along(stroke: Stroke, z: float) -> dict[str, Any]:
    """Position and rotation of a stroke in the frame of its body."""
    x, y, angle = np.broadcast_arrays(*map(np.asarray, stroke[:3]))
    return {"position": np.stack([x, y, np.full(x.shape, z)], axis=-1), "rotation": about_z(angle)}


def _across(turn: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The plane components 1 and 2 of velocities or forces in the body, seen from space."""
    return turned(turn, np.column_stack([values[:, 1:3], np.zeros(len(values))]))


def _forbid(view: View, seen: RunFrames, reach: float, z: float, parent: int) -> None:
    """The direction across, crossed out; for one run is enough."""
    if seen.first:
        ends = [0.0, -reach, z], [0.0, reach, z]
        width = 0.04 * reach
        view.arrow("forbidden", *ends, CONSTRAINT, width=width, crossed=True, parent=parent, run=seen.number)


def _stand(view: View, place: np.ndarray, size: float) -> None:
    """The floor under a path, and the path in the picture."""
    view.see(raised(place, 0.0) @ view.tilt.T, 1.4 * size)
    view.floor((place.max(axis=0) + place.min(axis=0)) / 2, 1.3 * float(np.ptp(place, axis=0).max()) + 6 * size)


def hinged(view: View, seen: RunFrames) -> str:
    """Two sleighs, each with its blade, and the hinge that joins them."""
    text = ""
    reach = (seen.motion.number("front", 0.5), -seen.motion.number("arm", 0.3))
    for k, alone in enumerate(factors(seen)):
        text = planar(view, alone)
        place, turn = poses(alone.motion.parts[0])
        joint = raised(place + reach[k] * turn[:, :2, 0], 0.0)
        size = 0.1 * sum(map(abs, reach))
        frame = view.add(
            "frame of the bar", NOTHING, DARK, position=raised(place, size), rotation=turn, run=seen.number
        )
        bar = box(abs(reach[k]), 0.4 * size, 0.4 * size)
        view.add("bar to the hinge", bar, DARK, position=[reach[k] / 2, 0, 0], parent=frame, run=seen.number)
        view.add("hinge", sphere(0.5 * size), alone.colour, position=raised(joint, size), run=seen.number)
    return text + " The two balls of the hinge must stay together."


def upright_disk(view: View, seen: RunFrames) -> str:
    """A disk that rolls upright: along its heading by what it turns, never across."""
    place, turn = poses(seen.motion.parts[0])
    roll = np.arctan2(seen.motion.parts[1][:, 1, 0], seen.motion.parts[1][:, 0, 0])
    radius = seen.motion.number("radius", 1.0)
    centre = raised(place, radius)
    frame = view.add("heading", NOTHING, DARK, position=centre, rotation=turn, run=seen.number)
    wheel = view.add("frame of the disk", NOTHING, DARK, rotation=about_y(roll), parent=frame, run=seen.number)
    coin(view, seen, radius, wheel)
    view.trace("path of the contact", raised(place, 0.004 * radius), seen.colour, width=3.0, run=seen.number)
    forward = arrows(turn[:, :, 0] * seen.velocity[:, 1:2], 1.8 * radius)
    view.arrow("velocity", centre, centre + forward, VELOCITY, width=0.05 * radius, run=seen.number)
    _forbid(view, seen, 0.7 * radius, -0.98 * radius, frame)
    turning = mark_cusps(view, seen, place, turn, radius)
    _stand(view, place, radius)
    return (
        "Orange-red: the spoke that was lowest at the start, and (crossed) the direction in which the disk cannot slip. "
        "Amber: the velocity, always along the disk." + turning
    )


def coin(view: View, seen: RunFrames, radius: float, parent: int) -> None:
    """A disk whose axle is y, with four spokes that show how it turns."""
    part: dict[str, Any] = {"parent": parent, "run": seen.number}
    view.add(
        "disk", cylinder(radius, 0.06 * radius), body_colour(seen), rotation=LAID, opacity=0.8 * seen.opacity, **part
    )
    for k in range(4):
        turn = about_y(k * np.pi / 2)
        spoke = box(0.05 * radius, 0.09 * radius, radius)
        colour = CONSTRAINT if k == 0 else DARK
        view.add("spoke", spoke, colour, position=turn @ [0, 0, -radius / 2], rotation=turn, **part)


PLANES = 16


def point(view: View, seen: RunFrames) -> str:
    """Three coordinates of a point, with its field of planes; fewer are drawn in the plane, one over time."""
    q = seen.motion.parts[0]
    chosen = _chosen(seen)
    points, velocity = _three(q, chosen, seen), _three(seen.velocity, chosen, seen, rate=True)
    stretch = _evened(points)
    points, velocity = points * stretch, velocity * stretch
    reach = max(float(np.ptp(points, axis=0).max()), 1e-3)
    part: dict[str, Any] = {"run": seen.number}
    view.trace("path", points, seen.colour, width=3.0, **part)
    view.add("particle", sphere(0.03 * reach), seen.colour, position=points, **part)
    tip = points + arrows(velocity, 0.3 * reach)
    view.arrow("velocity", points, tip, VELOCITY, width=0.01 * reach, **part)
    if seen.first:
        _axes(view, points, reach, [f"q{i + 1}" for i in chosen] if q.shape[1] > 1 else ["time", "q1"])
    text = _planes(view, seen, points, chosen, stretch, reach) if seen.rows.shape[1] == 1 and len(chosen) == 3 else ""
    return f"Amber: the velocity. {text}".strip()


def _chosen(seen: RunFrames) -> list[int]:
    """Which coordinates are drawn: the first three, and of pairs (y, z) the first pair."""
    n = seen.motion.parts[0].shape[1]
    if seen.motion.name == "chaotic-quartic":
        return [0, 1, 1 + (n - 1) // 2]
    return list(range(min(n, 3)))


def _three(values: np.ndarray, chosen: list[int], seen: RunFrames, rate: bool = False) -> np.ndarray:
    """Some components as points in space."""
    shown = values[:, chosen]
    if values.shape[1] == 1:
        time = np.ones(len(values)) if rate else seen.motion.t * _stretch(seen)
        return np.column_stack([time * (_stretch(seen) if rate else 1.0), shown, np.zeros(len(values))])
    return shown if len(chosen) == 3 else np.column_stack([shown, np.zeros((len(values), 3 - len(chosen)))])


def _stretch(seen: RunFrames) -> float:
    """How long a unit of time is drawn: the whole run is three times as long as it is high."""
    height = float(np.ptp(seen.motion.parts[0])) or 1.0
    return 3 * height / max(float(np.ptp(seen.motion.t)), 1e-300)


def _axes(view: View, points: np.ndarray, reach: float, names: list[str]) -> None:
    """Axes in the corner of what is seen."""
    corner = points.min(axis=0) - 0.1 * reach
    for name, axis in zip(names, np.eye(3), strict=False):
        end = corner + 0.25 * reach * axis
        view.arrow("", corner, end, DARK, width=0.006 * reach)
        view.add("", label(name), DARK, position=corner + 0.29 * reach * axis)


def _evened(points: np.ndarray) -> np.ndarray:
    """Factors (3,) that make the extents of a path alike where one is many times another."""
    extents = np.ptp(points, axis=0)
    wide = np.where(extents > 1e-3 * max(float(extents.max()), 1e-300), extents, extents.max() or 1.0)
    return wide.max() / wide if wide.max() > 4 * wide.min() else np.ones(3)


def _planes(
    view: View, seen: RunFrames, points: np.ndarray, chosen: list[int], stretch: np.ndarray, reach: float
) -> str:
    """The plane A v = 0 along the path and at the particle, with its normal crossed out."""
    normals = unit(seen.rows[:, 0, chosen] / stretch)  # covectors: the plane A v = 0 is stretched with the path
    if np.linalg.norm(normals, axis=1).min() < 0.5:
        return ""
    if seen.first:
        gone = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1)))
        spots = np.unique(np.searchsorted(gone, np.linspace(0, gone[-1], PLANES)).clip(0, len(points) - 1))
        for k in spots if len(spots) > 1 else []:
            patch: dict[str, Any] = {"position": points[k], "rotation": facing(normals[k]), "opacity": 0.18}
            view.add("plane along the path", plane(0.16 * reach), CONSTRAINT, **patch)
        across = 0.17 * reach * normals
        view.arrow("forbidden", points - across, points + across, CONSTRAINT, width=0.008 * reach, crossed=True, run=0)
    patch = {"position": points, "rotation": facing(normals), "opacity": 0.5 * seen.opacity, "run": seen.number}
    view.add("plane of allowed velocities", plane(0.36 * reach), CONSTRAINT, **patch)
    if seen.velocity.shape[1] == 3:
        return "Orange-red: the planes in which the velocity must lie, along the path and here; the direction across is crossed out."
    return "Orange-red: the plane in which the velocity would lie if the coordinates that are not drawn stood still."


def chain(view: View, seen: RunFrames) -> str:
    """Masses on rods, hung from the origin, in the plane (drawn upright) or in space."""
    lengths = np.asarray(seen.motion.parameters.get("lengths", [1.0]), float)
    masses = np.asarray(seen.motion.parameters.get("masses", np.ones(len(lengths))), float)
    places = seen.motion.parts[0].reshape(len(seen.motion.t), len(lengths), -1)
    if places.shape[2] == 2:
        places = np.stack([places[..., 0], 0 * places[..., 0], places[..., 1]], axis=-1)
    above = np.zeros((len(places), 3))
    size = float(lengths.mean())
    for i, (mass, length) in enumerate(zip(masses, lengths, strict=True)):
        here = places[:, i]
        middle, turn = (here + above) / 2, facing(here - above)
        view.add(
            "rod",
            cylinder(0.02 * size, length),
            CONSTRAINT,
            position=middle,
            rotation=turn,
            opacity=seen.opacity,
            run=seen.number,
        )
        radius = 0.1 * size * (mass / masses.max()) ** (1 / 3)
        view.add("mass", sphere(radius), seen.colour, position=here, opacity=seen.opacity, run=seen.number)
        above = here
    view.trace("path of the last mass", above, seen.colour, run=seen.number)
    view.add("support", sphere(0.05 * size), DARK, position=np.zeros(3))
    view.see([[0.0, 0.0, 0.0]], 1.05 * float(lengths.sum()))
    return "Orange-red: the rods, which must keep their lengths. They are drawn with these lengths: a gap is an error of the method."


STRIPES = (CONSTRAINT, COLOURS[2], COLOURS[3])


def rolling(view: View, seen: RunFrames) -> str:
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


def _shape(view: View, seen: RunFrames, body: Roller, frame: int) -> None:
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
    view: View, seen: RunFrames, body: Roller, centre: np.ndarray, contact: np.ndarray, turns: np.ndarray, size: float
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


def _momentum(view: View, seen: RunFrames, centre: np.ndarray, turns: np.ndarray, size: float) -> str:
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


def _floor(view: View, seen: RunFrames, place: np.ndarray, size: float) -> None:
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


def inertia_of(seen: RunFrames) -> np.ndarray | None:
    """Moments or tensor of a body on SO(3), where they are known."""
    given = seen.motion.parameters.get("inertia")
    return None if given is None or np.shape(given) not in ((3,), (3, 3)) else np.asarray(given, float)


def upward(seen: RunFrames) -> np.ndarray:
    """The rotation that turns the momentum of a free body upwards, so that its invariable plane lies level."""
    momentum = seen.motion.parts[0][0] @ seen.momentum[0]
    return facing(momentum).T if np.linalg.norm(momentum) > 1e-9 else np.eye(3)


def poinsot(view: View, seen: RunFrames) -> str:
    """A free body: its ellipsoid <I x, x> = 1 rolls on the plane across the momentum, which stands still (Poinsot 1834).

    The point of contact is x = w/sqrt(2 E): it draws the polhode on the body and the herpolhode on the plane.
    """
    attitude, inertia = seen.motion.parts[0], inertia_of(seen)
    assert inertia is not None
    moments, axes = principal(inertia)
    semi = 1 / np.sqrt(moments)
    scale = 1 / semi.max()
    doubled = np.maximum(2 * seen.energy, 1e-300)
    contact = -scale * seen.velocity / np.sqrt(doubled)[:, None]  # below: the ellipsoid is its own mirror image
    momentum = turned(attitude, seen.momentum)
    part: dict[str, Any] = {"run": seen.number}
    frame = view.add("frame of the body", NOTHING, DARK, rotation=attitude, **part)
    brick(view, seen, inertia, frame, scale=0.6)
    shell = ellipsoid(*(scale * semi))
    view.add("inertia ellipsoid", shell, SURFACE, rotation=axes, opacity=0.25 * seen.opacity, parent=frame, **part)
    view.trace("polhode", contact, DARK, width=1.5, parent=frame, **part)
    view.trace("herpolhode", turned(attitude, contact), seen.colour, width=3.0, **part)
    if seen.first:
        height = scale * np.sqrt(doubled[0]) / max(float(np.linalg.norm(momentum[0])), 1e-300)
        down = -unit(momentum[0])
        patch: dict[str, Any] = {"position": height * down, "rotation": facing(momentum[0]), "opacity": 0.35}
        view.add("invariable plane", plane(2.6), CONSTRAINT, **patch)
    view.arrow("momentum", np.zeros(3), arrows(momentum, 1.7), MOMENTUM, width=0.05, **part)
    view.arrow(
        "angular velocity", np.zeros(3), arrows(turned(attitude, seen.velocity), 1.5), VELOCITY, width=0.04, **part
    )
    view.see([[-1.4, -1.4, -1.2], [1.4, 1.4, 1.6]])
    return (
        "Pink: the momentum, which a good method keeps fixed in space. Amber: the angular velocity. Orange-red: the invariable plane, "
        "on which the ellipsoid rolls, drawing the polhode (dark) on itself and the herpolhode on the plane. The momentum is drawn upwards."
    )


def turning(view: View, seen: RunFrames) -> str:
    """A body about a fixed point, or in space: its axes of turning and, in space, its directions of moving that are left and forbidden."""
    frames = seen.motion.parts[0]
    attitude = frames[:, :3, :3]
    place = frames[:, :3, 3] if frames.shape[-1] == 4 else np.zeros((len(frames), 3))
    still = frames.shape[-1] == 3
    size = 1.0 if still else max(0.12 * float(np.ptp(place, axis=0).max()), 0.3)
    part: dict[str, Any] = {"run": seen.number}
    frame = view.add("frame of the body", NOTHING, DARK, position=place, rotation=attitude, **part)
    brick(view, seen, inertia_of(seen), frame, scale=0.8 * size, opacity=0.6)
    if still:
        view.trace("path of the third axis", attitude[:, :, 2], seen.colour, **part)
        view.arrow("third axis", np.zeros(3), [0, 0, 1.0], seen.colour, width=0.03, parent=frame, **part)
    else:
        view.trace("path of the reference point", place, seen.colour, width=3.0, **part)
    spin = arrows(seen.velocity[:, :3], 1.5 * size)
    view.arrow("angular velocity", np.zeros(3), spin, VELOCITY, width=0.04 * size, parent=frame, **part)
    text = _turning_left(view, seen, attitude, place, size, frame) if seen.rows.shape[1] else ""
    if seen.motion.name == "skate-on-ellipsoid" and seen.first:
        view.add("surface", ellipsoid(*seen.motion.parameters["axes"]), SURFACE, opacity=0.35)
        view.see([[0.0, 0.0, 0.0]], float(np.max(seen.motion.parameters["axes"])))
    if not still:
        text += _moving_left(view, seen, size, frame)
    view.see(place, 1.3 * size)
    return f"Amber: the angular velocity{'' if still else ' and the velocity'}. {text}".strip()


def _turning_left(view: View, seen: RunFrames, attitude: np.ndarray, place: np.ndarray, size: float, frame: int) -> str:
    """The axis about which the body may not turn, crossed out, and the plane that is left for its angular velocity."""
    left = allowed(seen.rows[0], slice(0, 3))
    if left.shape[1] != 2:
        return "The angular velocity is free. " if left.shape[1] == 3 else ""
    normals = _normals(seen.rows)
    in_body, in_space = is_constant(normals), is_constant(turned(attitude, normals))
    where: dict[str, Any] = {"parent": frame} if in_body else {}
    normal = normals[:1] if in_body else turned(attitude, normals)[: 1 if in_space else None]
    if seen.first:
        ends = -1.35 * size * normal, 1.35 * size * normal
        if not in_body:
            ends = ends[0] + place[: len(normal)], ends[1] + place[: len(normal)]
        view.arrow("forbidden axis", *ends, CONSTRAINT, width=0.035 * size, crossed=True, run=seen.number, **where)
        patch: dict[str, Any] = {"rotation": facing(normal[0]) if len(normal) == 1 else facing(normal), "opacity": 0.22}
        disc = cylinder(1.5 * size, 0.01 * size)
        view.add("plane of allowed angular velocities", disc, CONSTRAINT, run=seen.number, **patch, **where)
    if in_body:
        _sharp_wheel(view, seen, normal[0], size, frame)
    fixed = "in the body" if in_body else "in space"
    return f"Orange-red: the axis about which the body may not turn (crossed), fixed {fixed}; the angular velocity stays in the disc."


def _normals(rows: np.ndarray) -> np.ndarray:
    """The axes (k, 3) across the angular velocities that are left."""
    if rows.shape[1:] == (1, 3):
        return unit(rows[:, 0])
    axes = []
    for frame in rows[:1] if is_constant(rows) else rows:
        left = allowed(frame, slice(0, 3))
        normal = np.cross(left[:, 0], left[:, 1])
        axes.append(normal * np.sign(normal[int(np.argmax(np.abs(normal)))]))
    return np.broadcast_to(unit(np.array(axes)), (len(rows), 3))


def _sharp_wheel(view: View, seen: RunFrames, normal: np.ndarray, size: float, frame: int) -> None:
    """The wheel that keeps the body from turning about the normal, on its arm."""
    _, middle, axle = suslov_wheel(normal)
    part: dict[str, Any] = {"parent": frame, "run": seen.number}
    view.add(
        "sharp wheel",
        torus(0.16 * size, 0.02 * size),
        CONSTRAINT,
        position=size * middle,
        rotation=facing(axle),
        **part,
    )
    view.line("arm of the wheel", np.stack([0 * middle, size * middle]), CONSTRAINT, width=2.0, **part)


def _moving_left(view: View, seen: RunFrames, size: float, frame: int) -> str:
    """The blade along which the reference point moves, if the constraint leaves one direction."""
    part: dict[str, Any] = {"parent": frame, "run": seen.number}
    moving = arrows(seen.velocity[:, 3:6], 2.2 * size)
    view.arrow("velocity", np.zeros(3), moving, VELOCITY, width=0.05 * size, **part)
    left = allowed(seen.rows[0], slice(3, 6)) if seen.rows.shape[1] else np.eye(3)
    if left.shape[1] == 2:
        patch: dict[str, Any] = {"rotation": facing(np.cross(left[:, 0], left[:, 1])), "opacity": 0.3}
        view.add("plane of allowed velocities", plane(2 * size), CONSTRAINT, **patch, **part)
        return "The velocity stays in the orange-red plane of the body."
    if left.shape[1] != 1:
        return ""
    turn = facing(left[:, 0])
    view.add("blade", box(0.06 * size, 0.5 * size, 1.6 * size), CONSTRAINT, rotation=turn, **part)
    if seen.first:
        for across in (turn[:, 0], turn[:, 1]):
            ends = -0.9 * size * across, 0.9 * size * across
            view.arrow("forbidden", *ends, CONSTRAINT, width=0.03 * size, crossed=True, **part)
    return "Orange-red: the blade; the body moves along it only, the directions across are crossed out."


def dial(view: View, seen: RunFrames) -> str:
    """A single angle: a hand on a disk."""
    frames = seen.motion.parts[0]
    turn = np.zeros((len(frames), 3, 3))
    turn[:, :2, :2], turn[:, 2, 2] = frames, 1.0
    frame = view.add("dial", cylinder(1.0, 0.06), SURFACE, rotation=turn, opacity=0.7 * seen.opacity, run=seen.number)
    view.add("hand", box(1.0, 0.08, 0.08), seen.colour, position=[0.5, 0, 0.06], parent=frame, run=seen.number)
    view.trace("path of the hand", raised(frames[:, :, 0], 0.05), seen.colour, run=seen.number)
    view.see([[-1.2, -1.2, 0], [1.2, 1.2, 0.3]])
    return "The hand shows the angle."


Draw = Callable[[View, RunFrames], str]
NAMED: dict[str, Draw] = {"hinged-sleighs": hinged, "pendulum-chain": chain}


def scene(runs: Sequence[RunFrames]) -> tuple[View, str]:
    """The runs in one space, and a caption that says what is drawn in which colour."""
    draw = drawing(runs[0])
    tilt = (
        upward(runs[0]) if draw is poinsot else slope(runs[0]) if draw in (planar, upright_disk, rolling) else np.eye(3)
    )
    view = View(runs[0].motion.name or runs[0].motion.group, tilt)
    captions = [draw(view, seen) for seen in runs]
    return view, captions[0]


def drawing(seen: RunFrames) -> Draw:
    """What draws a run."""
    motion, group = seen.motion, seen.motion.group
    if motion.name in NAMED:
        return NAMED[motion.name]
    if group == "SE(2) x SO(2)" and "radius" in motion.parameters:
        return upright_disk
    if group.startswith("SE(2)"):
        return planar
    if group == "SO(3) x R^2":
        return rolling
    if " x " in group:
        return partial(side_by_side, draw=drawing)
    if group == "SO(3)" and motion.name == "rigid-body" and inertia_of(seen) is not None and seen.energy[0] > 0:
        return poinsot
    if group in ("SO(3)", "SE(3)"):
        return turning
    if group == "SO(2)":
        return dial
    return point if group.startswith("R^") else basis_images
