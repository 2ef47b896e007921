"""Bodies that turn about a point or fly through space: free ones after Poinsot, constrained ones with what they may not do crossed out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...plotting.geometry import suslov_wheel
from ..seen import Seen
from ..shapes import (
    CONSTRAINT,
    DARK,
    MOMENTUM,
    NOTHING,
    SURFACE,
    VELOCITY,
    View,
    box,
    cylinder,
    ellipsoid,
    plane,
    torus,
)
from .parts import allowed, arrows, brick, facing, is_constant, principal, raised, turned, unit


def inertia_of(seen: Seen) -> np.ndarray | None:
    """Moments or tensor of a body on SO(3), where they are known."""
    given = seen.motion.parameters.get("inertia")
    return None if given is None or np.shape(given) not in ((3,), (3, 3)) else np.asarray(given, float)


def upward(seen: Seen) -> np.ndarray:
    """The rotation that turns the momentum of a free body upwards, so that its invariable plane lies level."""
    momentum = seen.motion.parts[0][0] @ seen.momentum[0]
    return facing(momentum).T if np.linalg.norm(momentum) > 1e-9 else np.eye(3)


def poinsot(view: View, seen: Seen) -> str:
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


def turning(view: View, seen: Seen) -> str:
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


def _turning_left(view: View, seen: Seen, attitude: np.ndarray, place: np.ndarray, size: float, frame: int) -> str:
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


def _sharp_wheel(view: View, seen: Seen, normal: np.ndarray, size: float, frame: int) -> None:
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


def _moving_left(view: View, seen: Seen, size: float, frame: int) -> str:
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


def dial(view: View, seen: Seen) -> str:
    """A single angle: a hand on a disk."""
    frames = seen.motion.parts[0]
    turn = np.zeros((len(frames), 3, 3))
    turn[:, :2, :2], turn[:, 2, 2] = frames, 1.0
    frame = view.add("dial", cylinder(1.0, 0.06), SURFACE, rotation=turn, opacity=0.7 * seen.opacity, run=seen.number)
    view.add("hand", box(1.0, 0.08, 0.08), seen.colour, position=[0.5, 0, 0.06], parent=frame, run=seen.number)
    view.trace("path of the hand", raised(frames[:, :, 0], 0.05), seen.colour, run=seen.number)
    view.see([[-1.2, -1.2, 0], [1.2, 1.2, 0.3]])
    return "The hand shows the angle."
