"""Bodies on the plane: sleighs on a blade, vehicles on wheels, disks that roll upright."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...models.registry import MODELS
from ...plotting.geometry import Stroke, Vehicle, vehicle
from ..seen import Seen
from ..shapes import CONSTRAINT, DARK, NOTHING, REACTION, VELOCITY, View, box, cylinder, prism, sphere
from .cusps import mark_cusps
from .parts import about_y, about_z, allowed, arrows, body_colour, factors, raised, turned

LAID = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
"""The rotation that lays the axis of a cylinder along y: the axle of a wheel that rolls along x."""


def poses(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places (k, 2) and rotations in space (k, 3, 3) of a track (k, 3, 3) in SE(2)."""
    return frames[:, :2, 2], about_z(np.arctan2(frames[:, 1, 0], frames[:, 0, 0]))


def slope(seen: Seen) -> np.ndarray:
    """The rotation that tilts the plane of a model with a slope, x down."""
    return about_y(seen.motion.number("slope", 0.0))


def planar(view: View, seen: Seen) -> str:
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


def _wheel(view: View, seen: Seen, wheel: Stroke, frame: int, size: float, fin: float) -> None:
    """A blade, a fin of this height that cuts the floor; or a wheel. Across it nothing moves."""
    radius = min(wheel.half, 0.18 * size)
    part: dict[str, Any] = {"parent": frame, "run": seen.number}
    if fin:
        foot = view.add("blade", box(2 * wheel.half, 0.045 * size, fin), CONSTRAINT, **_along(wheel, fin / 2), **part)
    else:
        foot = view.add("heading of the wheel", NOTHING, CONSTRAINT, **_along(wheel, radius), **part)
        view.add("wheel", cylinder(radius, 0.06 * size), CONSTRAINT, rotation=LAID, parent=foot, run=seen.number)
    _forbid(view, seen, max(1.2 * wheel.half, 0.35 * size), 0.02 * size - (fin / 2 or radius), foot)


def _body(seen: Seen) -> Vehicle:
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


def _forbid(view: View, seen: Seen, reach: float, z: float, parent: int) -> None:
    """The direction across, crossed out; for one run is enough."""
    if seen.first:
        ends = [0.0, -reach, z], [0.0, reach, z]
        width = 0.04 * reach
        view.arrow("forbidden", *ends, CONSTRAINT, width=width, crossed=True, parent=parent, run=seen.number)


def _stand(view: View, place: np.ndarray, size: float) -> None:
    """The floor under a path, and the path in the picture."""
    view.see(raised(place, 0.0) @ view.tilt.T, 1.4 * size)
    view.floor((place.max(axis=0) + place.min(axis=0)) / 2, 1.3 * float(np.ptp(place, axis=0).max()) + 6 * size)


def hinged(view: View, seen: Seen) -> str:
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


def upright_disk(view: View, seen: Seen) -> str:
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


def coin(view: View, seen: Seen, radius: float, parent: int) -> None:
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
