"""Scenes: what a run looks like in space, as a `View`.

A body on the plane comes with its blade or wheels, a rolling body with its contact curves, a free body with Poinsot's
ellipsoid, a point with its planes; what the constraint forbids is crossed out. A model with a look of its own chooses
its scene by name, every other run by its group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..kernels import evaluate
from ..mechanics import Driven, MechanismSystem, generators
from ..mechanics.mechanism import Parts, Picture, direction_of, point_of
from ..models import MODELS
from ..plotting.runs import (
    VEHICLES,
    Bar,
    Solid,
    Vehicle,
    about,
    align_z,
    allowed_directions,
    angle_of,
    normalise,
    principal_axes,
    sleigh_look,
    vehicle_model,
)
from . import view as shapes
from .requests import RunFrames
from .view import CONSTRAINT, DARK, EMPTY, GREY, INKS, MOMENTUM, PALE, REACTION, SURFACE, TEXTS, VELOCITY, Array, View

CAPTIONS: dict[str, str] = TEXTS["captions"]
STRIPE_COLOURS = (DARK, GREY, PALE)
AXLE_ALONG_Y = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
"""The rotation that lays the axis of a cylinder along y: the axle of a wheel that rolls along x."""
PLANE_COUNT = 16
MAX_CUSPS = 40
CUSP_SPEED_RATIO = 0.1
"""A cusp needs a speed between two frames below this part of theirs: else the body turned sharply between them."""
AIM = 1.25
"""How far from a satellite is drawn where its antenna points."""
MOTIONLESS = 1e-6
"""The part of a metre, or of how far away it is, by which something has to move for its path to be a scale."""
TURNING_POINT_YAW = 1e-6
"""Yaw rates beside the largest below which the way back is the way there: a turning point, no cusp."""


def rotate(rotations: Array, vectors: Array) -> Array:
    """R v at every frame."""
    return np.asarray(np.einsum("...ij,...j->...i", rotations, vectors))


def at_height(points: Array, height: float) -> Array:
    """Points in the plane (k, 2) or in space (k, 3), `height` above where they are."""
    flat = np.asarray(points, float)
    return np.column_stack([flat[:, :2], (flat[:, 2] if flat.shape[1] > 2 else 0.0) + np.full(len(flat), height)])


def scale_arrows(vectors: Array, length: float) -> Array:
    """Vectors to draw: the longest of them gets this length."""
    return np.asarray(vectors) * (length / max(float(np.linalg.norm(vectors, axis=-1).max()), 1e-9))


def extent_of(points: Array) -> float:
    """The longest side of a path (k, n); 1 where nothing moves, for a picture needs a scale."""
    side = float(np.ptp(points, axis=0).max())
    return side if side > MOTIONLESS * (1.0 + float(np.abs(points).max())) else 1.0


def stretch_of(points: Array) -> Array:
    """Factors that make the extents of coordinates alike where they are not; a coordinate that hardly moves stays."""
    extents, most = np.ptp(points, axis=0), extent_of(points)
    wide = np.where(extents > 1e-3 * most, extents, most)
    return wide.max() / wide if wide.max() > 4 * wide.min() else np.ones(len(wide))


def told_scale(scale: float) -> str:
    return f" It is drawn {scale:.1f} times as large as it is." if scale > 1.05 else ""


def is_constant(track: Array) -> bool:
    """Whether a track stays where it starts."""
    return bool(np.abs(track - track[:1]).max(initial=0.0) < 1e-9 * (1 + np.abs(track).max(initial=0.0)))


def revolve(radii: Any, heights: Any, longitudes: int) -> Array:
    """The surface of revolution about z with this profile, as a grid (longitudes, profile, 3)."""
    angle = np.linspace(0, 2 * np.pi, longitudes)[:, None]
    return np.stack([np.cos(angle) * radii, np.sin(angle) * radii, 0 * angle + heights], axis=-1)


def globe(semi: Any, longitudes: int, latitudes: int, lowest: float = 0.0) -> Array:
    """An ellipsoid with these semi-axes as a grid (longitudes, latitudes, 3), from a polar angle down to its pole."""
    polar = np.linspace(lowest, np.pi, latitudes)
    return np.asarray(revolve(np.sin(polar), np.cos(polar), longitudes) * semi)


def body_colour(run: RunFrames) -> str:
    return SURFACE if run.is_first else run.colour


def inertia_of(run: RunFrames) -> Array | None:
    """Moments or tensor of a body on SO(3), where they are known."""
    given = run.parameters.get("inertia")
    return None if given is None or np.shape(given) not in ((3,), (3, 3)) else np.asarray(given, float)


def add_inertia_box(view: View, run: RunFrames, parent: int, scale: float = 1.0, opacity: float = 0.85) -> None:
    """A homogeneous box with the body's moments, in its principal axes, the longest side 1.6 `scale`."""
    inertia = inertia_of(run)
    moments, axes = (np.array([1.0, 1.3, 1.5]), np.eye(3)) if inertia is None else principal_axes(inertia)
    sides = np.sqrt(np.maximum(moments.sum() / 2 - moments, 0.02 * moments.max()))
    shape = shapes.box(*(1.6 * scale * sides / sides.max()))
    view.add("body", shape, body_colour(run), rotation=axes, opacity=opacity * run.opacity, parent=parent)


def add_disk(view: View, run: RunFrames, radius: float, parent: int, width: float = 0.0, name: str = "disk") -> None:
    """A disk whose axle is y, with four spokes that show how it turns."""
    style: dict[str, Any] = {"rotation": AXLE_ALONG_Y, "opacity": 0.8 * run.opacity, "parent": parent}
    width = max(width, 0.06 * radius)
    view.add(name, shapes.cylinder(radius, width), body_colour(run), **style)
    for k in range(4):
        turn, spoke = about(1, k * np.pi / 2), shapes.box(0.05 * radius, width + 0.03 * radius, radius)
        colour = PALE if k == 0 else DARK
        style = {"position": turn @ [0, 0, -radius / 2], "rotation": turn, "parent": parent, "legend": ""}
        view.add("spoke", spoke, colour, **style)


def vehicle(run: RunFrames) -> Vehicle:
    """The body of a run on SE(2) and shape angles, large enough to be seen on its path.

    A user's own system has a blade along the direction that its constraint leaves, if that is one.
    """
    size = 0.07 * extent_of(run.parts[0][:, :2, 2])
    angles = [angle_of(part) for part in run.parts[1:] if part.shape[1:] == (2, 2)]
    given = {name: float(value) for name, value in run.parameters.items() if isinstance(value, int | float)}
    known = vehicle_model(run.system)
    name, numbers = (run.name, given) if run.name in MODELS or known is None else known
    body = VEHICLES.get(name, sleigh_look)(numbers, angles, size)
    if name in MODELS:
        return body
    left = [allowed_directions(rows, slice(1, 3)) for rows in run.rows]
    if any(directions.shape[1] != 1 for directions in left):
        return body._replace(wheels=[], centre=None)
    along = np.array([directions[:, 0] for directions in left])
    angle = np.unwrap(np.arctan2(along[:, 1], along[:, 0]), period=np.pi)
    return body._replace(wheels=[body.wheels[0]._replace(angle=angle)], centre=None)


class Roller(NamedTuple):
    """A body that rolls: its semi-axes (a disk's middle one is 0), and its middle from its centre of mass."""

    semi: Array
    shift: Array

    @classmethod
    def of(cls, name: str, parameters: Any) -> Roller:
        semi = np.array(parameters.get("axes", [parameters.get("radius", 1.0)] * 3), float)
        if name == "rolling-disk":
            semi = semi * [1.0, 0.0, 1.0]
        return cls(semi, np.array([0.0, 0.0, parameters.get("depth", 0.0)]))

    def contact(self, turns: Array) -> Array:
        """The contact in the body (k, 3): H'(n) at n = -R^T e3, where H(n) = |semi n| + <shift, n>."""
        down = -np.asarray(turns)[..., 2, :]
        length = np.linalg.norm(self.semi * down, axis=-1, keepdims=True)
        return np.asarray(self.semi**2 * down / np.maximum(length, 1e-300) + self.shift)

    def centres(self, turns: Array, places: Array) -> Array:
        """The centre of mass in space (k, 3): the body's lowest point is on the floor."""
        height = np.sum(self.contact(turns) * -np.asarray(turns)[..., 2, :], axis=-1)
        return np.concatenate([places, height[..., None]], axis=-1)


def planar_poses(frames: Array) -> tuple[Array, Array]:
    """Places (k, 2) and rotations in space (k, 3, 3) of a track (k, 3, 3) in SE(2)."""
    return frames[:, :2, 2], about(2, angle_of(frames))


def draw_planar(view: View, run: RunFrames) -> str:
    """A body with its blade or wheels: it may move along them, never across."""
    place, turn = planar_poses(run.parts[0])
    body = vehicle(run)
    size = float(np.hypot(*body.outline.T).max())
    height, lift = 0.12 * size, 0.3 * size
    frame = view.add("frame of the body", EMPTY, DARK, position=at_height(place, 0.0), rotation=turn)
    inside = partial(view.add, parent=frame)
    prism = shapes.prism(body.outline, height)
    inside("body", prism, body_colour(run), position=[0, 0, lift], opacity=0.45 * run.opacity)
    if body.centre is not None:
        inside("centre of mass", shapes.sphere_shape(0.13 * size), DARK, position=[*body.centre, lift + height])
        reach = float(body.centre[0])
        if len(body.wheels) == 1 and abs(reach) > 1e-9:
            lever = shapes.box(abs(reach), 0.05 * size, 0.05 * size)
            inside("lever a of the push", lever, DARK, position=[reach / 2, 0, lift + 1.2 * height])
    for bar in body.bars:
        inside("bar", shapes.box(2 * bar.half, 0.12 * size, 0.08 * size), DARK, **bar.pose(lift + 1.3 * height))
    for wheel in body.wheels:
        if len(body.wheels) == 1:
            low, fin = 0.0, lift + 0.5 * height
            foot = inside("blade", shapes.box(2 * wheel.half, 0.045 * size, fin), CONSTRAINT, **wheel.pose(fin / 2))
        else:
            fin, low = 0.0, min(wheel.half, 0.18 * size)
            foot = inside("heading of the wheel", EMPTY, CONSTRAINT, **wheel.pose(low))
            rolled = about(1, _rolled_angles(run, wheel, low)) @ AXLE_ALONG_Y
            view.add("wheel", shapes.cylinder(low, 0.06 * size), CONSTRAINT, rotation=rolled, parent=foot)
        _forbid_across(view, run, max(1.2 * wheel.half, 0.35 * size), 0.02 * size - (fin / 2 or low), foot)
    view.trace("path of the contact", at_height(place, 0.004 * size), run.colour, width=3.0)
    origin = at_height(place, 0.3 * lift)
    moving = scale_arrows(_planar_part(turn, run.velocity), 2.0 * size)
    view.arrow("velocity", origin, origin + moving, VELOCITY, width=0.05 * size)
    pushed = len(run.parts) == 1 and len(body.wheels) == 1 and np.abs(run.reaction[:, 1:3]).max() > 1e-9
    if pushed:
        push = scale_arrows(_planar_part(turn, run.reaction), 2.4 * size)
        view.arrow("push of the ground", origin, origin + push, REACTION, width=0.05 * size)
    cusps = mark_cusps(view, run, place, turn, size)
    _add_floor(view, place, size, 1.4 * size)
    view.flat = True
    texts = [("planar", "planar_blade", "planar_wheels")[min(len(body.wheels), 2)]] + ["push"] * bool(pushed)
    texts += ["centre"] * (body.centre is not None)
    return " ".join(CAPTIONS[name] for name in texts) + cusps + told_scale(body.scale)


def _rolled_angles(run: RunFrames, wheel: Bar, radius: float) -> Array:
    """The angles by which a wheel has turned: its way along itself over its radius."""
    w, v1, v2 = run.velocity[:, :3].T
    along = (v1 - w * wheel.y) * np.cos(wheel.angle) + (v2 + w * wheel.x) * np.sin(wheel.angle)
    return np.append(0.0, np.cumsum(np.diff(run.t) * (along[1:] + along[:-1]) / 2)) / radius


def _planar_part(turn: Array, values: Array) -> Array:
    """The plane components 1 and 2 of velocities or forces in the body, in space."""
    return rotate(turn, np.column_stack([values[:, 1:3], np.zeros(len(values))]))


def _forbid_across(view: View, run: RunFrames, reach: float, z: float, parent: int) -> None:
    """The direction across, crossed out; it is drawn for one run only."""
    if run.is_first:
        ends = [0.0, -reach, z], [0.0, reach, z]
        view.arrow("forbidden", *ends, CONSTRAINT, width=0.04 * reach, crossed=True, parent=parent)


def _add_floor(view: View, place: Array, size: float, margin: float | None = None) -> None:
    if margin is not None:
        view.include(at_height(place, 0.0) @ view.tilt.T, margin)
    view.add_floor((place.max(axis=0) + place.min(axis=0)) / 2, 1.3 * float(np.ptp(place, axis=0).max()) + 6 * size)


class Cusp(NamedTuple):
    time: float
    place: Array  # (2,)
    name: str


def find_cusps(t: Array, place: Array, turn: Array, velocity: Array) -> list[Cusp]:
    """Where velocities (k, 3) in the body, (yaw rate, v1, v2), pass through zero between frames and come out backwards.

    The time is that of the smallest speed of (v1, v2) between two frames, taken as linear. The place follows from the
    velocities in space at both ends (Hermite), since the chord of two frames misses the tip.
    """
    along = velocity[:, 1:3]
    change, before = np.diff(along, axis=0), along[:-1]
    back = np.einsum("ki,ki->k", before, along[1:]) < 0
    part = -np.einsum("ki,ki->k", before, change) / np.maximum(np.einsum("ki,ki->k", change, change), 1e-300)
    slowest = np.linalg.norm(before + part[:, None] * change, axis=1)
    fastest = np.maximum(np.linalg.norm(before, axis=1), np.linalg.norm(along[1:], axis=1))
    space = _planar_part(turn, velocity)[:, :2]
    largest_yaw = float(np.abs(velocity[:, 0]).max())
    found = []
    for k in np.flatnonzero(back & (slowest <= CUSP_SPEED_RATIO * fastest)):
        s, h = part[k], t[k + 1] - t[k]
        ends = (1 + 2 * s) * (1 - s) ** 2 * place[k] + s**2 * (3 - 2 * s) * place[k + 1]
        tip = ends + h * (s * (1 - s) ** 2 * space[k] - s**2 * (1 - s) * space[k + 1])
        yaw = velocity[k, 0] + s * (velocity[k + 1, 0] - velocity[k, 0])
        name = "cusp" if abs(yaw) > TURNING_POINT_YAW * largest_yaw else "turning point"
        found.append(Cusp(float(t[k] + s * h), tip, name))
    return found


def mark_cusps(view: View, run: RunFrames, place: Array, turn: Array, size: float) -> str:
    """Draw a ball at every cusp before the run ended, the first with its name; a sentence if there are any."""
    frames = slice(0, run.valid)
    found = find_cusps(run.t[frames], place[frames], turn[frames], run.velocity[frames, :3])
    if not found or len(found) > MAX_CUSPS:
        return ""
    for k, (when, where, name) in enumerate(found):
        at = at_height(where[None], 0.02 * size)[0]
        since = int(np.argmax(np.abs(run.t - run.t[0]) >= abs(when - run.t[0])))  # a film shows it when it happens
        view.add(name, shapes.sphere_shape(0.07 * size), run.colour, position=at, since=since)
        if k == 0 and run.is_first:
            above = at + np.array([0.0, 0.0, 0.35 * size])
            view.add("", shapes.label(name), run.colour, position=above, since=since)
    times = ", ".join(f"{time:.2f}" for time, *_ in found[:3]) + (", .." if len(found) > 3 else "")
    return f" Ball on the path: where it stops and turns back (t = {times})."


def draw_hinged_sleighs(view: View, run: RunFrames) -> str:
    """Two sleighs, each with its blade, and the hinge that joins them."""
    lengths = (run.parameter("front", 0.5), -run.parameter("arm", 0.3))
    size = 0.1 * sum(map(abs, lengths))
    for length, sleigh in zip(lengths, split_factors(run), strict=True):
        text = draw_planar(view, sleigh)
        place, turn = planar_poses(sleigh.parts[0])
        frame = view.add("frame of the bar", EMPTY, DARK, position=at_height(place, size), rotation=turn)
        bar = shapes.box(abs(length), 0.4 * size, 0.4 * size)
        view.add("bar to the hinge", bar, DARK, position=[length / 2, 0, 0], parent=frame)
        joint = at_height(place + length * turn[:, :2, 0], size)
        view.add("hinge", shapes.sphere_shape(0.5 * size), sleigh.colour, position=joint)
    return f"{text} The two balls of the hinge must stay together."


def draw_upright_disk(view: View, run: RunFrames) -> str:
    """A disk that rolls upright: along its heading by what it turns, never across."""
    (place, turn), radius = planar_poses(run.parts[0]), run.parameter("radius", 1.0)
    centre = at_height(place, radius)
    frame = view.add("heading", EMPTY, DARK, position=centre, rotation=turn)
    roll = about(1, angle_of(run.parts[1]))
    add_disk(view, run, radius, view.add("frame of the disk", EMPTY, DARK, rotation=roll, parent=frame))
    view.trace("path of the contact", at_height(place, 0.004 * radius), run.colour, width=3.0)
    forward = scale_arrows(turn[:, :, 0] * run.velocity[:, 1:2], 1.8 * radius)
    view.arrow("velocity", centre, centre + forward, VELOCITY, width=0.05 * radius)
    _forbid_across(view, run, 0.7 * radius, -0.98 * radius, frame)
    cusps = mark_cusps(view, run, place, turn, radius)
    _add_floor(view, place, radius, 1.4 * radius)
    return f"{CAPTIONS['disk']}{cusps}"


def draw_rolling(view: View, run: RunFrames) -> str:
    """A ball, a leaning disk or a half ellipsoid on its floor, which may slope or turn.

    The contact stands still, so the curves of contact on the floor and on the body roll on each other.
    """
    turns, place = run.parts
    body = Roller.of(run.name, run.parameters)
    size = float(body.semi.max())
    centre, contact, spin = body.centres(turns, place), body.contact(turns), run.velocity[:, :3]
    floor_contact = at_height((centre + rotate(turns, contact))[:, :2], 0.003 * size)
    frame = view.add("frame of the body", EMPTY, DARK, position=centre, rotation=turns)
    _add_roller(view, run, body, frame)
    view.trace("contact on the floor", floor_contact, run.colour, width=3.0)
    view.trace("contact on the body", contact, DARK, width=1.5, parent=frame)
    view.add("point of contact", shapes.sphere_shape(0.05 * size), CONSTRAINT, position=floor_contact)
    # the velocity of the centre and, of a round body, of the point opposite: twice as fast on a floor at rest
    climb = -rotate(turns, np.cross(spin, contact))[:, 2:]
    middle = np.concatenate([run.velocity[:, 3:5], climb], axis=1)
    top = middle + rotate(turns, np.cross(spin, -contact))
    moving, opposite = np.split(scale_arrows(np.concatenate([middle, top]), 1.8 * size), 2)
    view.arrow("velocity", centre, centre + moving, VELOCITY, width=0.05 * size)
    if np.ptp(body.semi[body.semi > 0]) == 0:
        start = centre - rotate(turns, contact)
        view.arrow("velocity of the point opposite", start, start + opposite, VELOCITY, width=0.035 * size)
    given, rotation, text = run.parameters.get("inertia"), run.parameter("rotation", 0.0), ""
    if run.name.startswith("chaplygin-") and given is not None:
        # R (I w + m r x (w x r)), the momentum about the contact of a ball with its centre of mass in the middle
        tensor, down = np.diag(given) if np.ndim(given) == 1 else np.asarray(given, float), -size * turns[:, 2]
        momentum = spin @ tensor.T + run.parameter("mass", 1.0) * np.cross(down, np.cross(spin, down))
        tip = centre + scale_arrows(rotate(turns, momentum), 2.2 * size)
        view.arrow("momentum about the contact", centre, tip, MOMENTUM, width=0.05 * size)
        text = "Purple: the momentum about the point of contact, constant in space."
    if rotation and run.is_first:  # the floor is a table that turns, with rays
        reach, below = 1.15 * float(np.linalg.norm(place, axis=1).max()) + 1.5 * size, -0.02 * size
        plate, turn = shapes.cylinder(reach, -2 * below), about(2, rotation * run.t)
        table = view.add("table", plate, PALE, position=[0, 0, below], rotation=turn, opacity=0.8, shared=True)
        bar = shapes.box(reach, 0.02 * reach, -2.05 * below)
        add = partial(view.add, "ray of the table", bar, DARK, opacity=0.5, parent=table, shared=True)
        for ray in about(2, np.arange(6) * np.pi / 3):
            add(position=ray @ [reach / 2, 0, 0], rotation=ray)
    elif run.is_first:
        _add_floor(view, place, size)
    view.include(centre @ view.tilt.T, 1.2 * size)
    moves = "moves with the table" if rotation else "stands still for a moment: it does not slip"
    return CAPTIONS["rolling"].format(moves=moves, momentum=text).strip()


def _add_roller(view: View, run: RunFrames, body: Roller, frame: int) -> None:
    if not body.semi.all():
        add_disk(view, run, float(body.semi.max()), frame)
    elif np.ptp(body.semi) > 0:
        half = globe(body.semi, 49, 13, np.pi / 2) + body.shift
        rim = half[:-1, 0]
        fan = [[0, k + 1, (k + 1) % len(rim) + 1] for k in range(len(rim))]
        style: dict[str, Any] = {"opacity": 0.9 * run.opacity, "parent": frame}
        view.add("body", shapes.surface(half), body_colour(run), **style)
        view.add("flat top", shapes.mesh(np.concatenate([body.shift[None], rim]), np.array(fan)), PALE, **style)
        along, above = np.diag(body.semi)[[0, 2]]
        ends = body.shift + 0.01 * above + np.stack([-along, along])
        view.line("long axis", ends, DARK, width=3.0, parent=frame)
    else:
        add_ball(view, run, float(body.semi[0]), frame)


def add_ball(view: View, run: RunFrames, radius: float, parent: int, name: str = "ball") -> None:
    """A ball with three stripes that show how it turns."""
    view.add(name, shapes.sphere_shape(radius), body_colour(run), opacity=0.45 * run.opacity, parent=parent)
    for axis, colour in zip(np.eye(3), STRIPE_COLOURS, strict=True):
        turn = np.stack([np.roll(axis, 1), np.roll(axis, 2), axis], axis=-1)
        view.add("stripe", shapes.torus(radius, 0.022 * radius), colour, rotation=turn, parent=parent, legend="")


def mechanism_of(run: RunFrames) -> MechanismSystem | None:
    """The mechanism of a run, also of one with friction or feedback."""
    system = run.system
    while isinstance(system, Driven):
        system = system.system
    return system if isinstance(system, MechanismSystem) else None


def draw_mechanism(view: View, run: RunFrames) -> str:
    """Bodies, wheels with spokes, joints and contacts of any mechanism, enlarged where its path is long."""
    system = mechanism_of(run)
    assert system is not None
    parts, p = system.parts, system.parameters
    g = run.parts if len(system.group.factors) > 1 else run.parts[0]
    found = evaluate(picture, system, (g, run.velocity), lanes=len(run.t), axes=(None, 0))
    turned, placed, moving, touching = (np.asarray(each) for each in found)
    solids = {k: Solid.of(parts, p, k) for k, name in enumerate(parts.bodies) if name in p["bodies"]}
    centres = {k: placed[:, k] + rotate(turned[:, k], solid.middle) for k, solid in solids.items()}
    base = min(solids)
    reach = max(float(np.linalg.norm(centre[0] - centres[base][0])) + solids[k].size for k, centre in centres.items())
    extent = float(np.ptp(centres[base][:, :2], axis=0).max())
    scale = 1.0 if parts.terrain else max(1.0, 0.18 * extent / reach)
    anchor = centres[base] * [1.0, 1.0, 0.0] if scale > 1 else np.zeros(3)
    grow: Callable[[Array], Array] = lambda points: anchor + scale * (points - anchor)
    for k, solid in solids.items():
        name, turns = parts.bodies[k], turned[:, k]
        frame = view.add(f"frame of {name}", EMPTY, DARK, position=grow(placed[:, k]), rotation=turns)
        _add_solid(view, run, name, solid, scale, frame, k == base)
        for end in _joint_points(parts, p, k, solid):
            if np.linalg.norm(end - solid.middle) > 1e-9:
                ends = scale * np.stack([solid.middle, end])
                view.line(f"arm of {name}", ends, DARK, width=3.0, parent=frame, legend="")
    for contact, (places, across) in zip(parts.contacts, np.moveaxis(touching, 0, 2), strict=True):
        at, size = grow(places), scale * solids[contact.body].size
        view.add("point of contact", shapes.sphere_shape(0.06 * size), CONSTRAINT, position=at)
        view.trace("path of the contact", at, run.colour)
        if np.any(across) and run.is_first:
            left, right = at - 0.6 * size * across, at + 0.6 * size * across
            view.arrow("forbidden", left, right, CONSTRAINT, width=0.03 * size, crossed=True)
    start = grow(centres[base])
    tip = start + scale_arrows(moving[:, base], 0.9 * scale * reach)
    view.arrow("velocity", start, tip, VELOCITY, width=0.03 * scale * reach)
    view.include(start @ view.tilt.T, scale * reach)
    if parts.terrain is None:
        place = start[:, :2]
        view.add_floor((place.max(axis=0) + place.min(axis=0)) / 2, 1.3 * extent + 4 * scale * reach)
    elif run.is_first:
        low, high = start[:, :2].min(axis=0) - 2 * reach, start[:, :2].max(axis=0) + 2 * reach
        x, y = np.meshgrid(*np.linspace(low, high, 41).T)
        z = np.asarray(np.vectorize(parts.terrain)(x, y), float)
        view.add("ground", shapes.surface(np.stack([x, y, z], axis=-1)), PALE, opacity=0.6, shared=True)
    return CAPTIONS["mechanism"] + told_scale(scale)


def picture(system: MechanismSystem, moving: Any) -> Picture:
    return system.picture(*moving)


def _add_solid(view: View, run: RunFrames, name: str, solid: Solid, scale: float, frame: int, is_base: bool) -> None:
    """A body in its frame, `scale` times as large."""
    semi = scale * solid.semi
    inside: dict[str, Any] = {"position": scale * solid.middle, "rotation": solid.axes, "parent": frame}
    if solid.kind in ("wheel", "ball"):
        hub = view.add(f"hub of {name}", EMPTY, DARK, **inside)
        if solid.kind == "ball":
            return add_ball(view, run, semi[0], hub, name)
        hub = view.add("axle", EMPTY, DARK, rotation=AXLE_ALONG_Y.T, parent=hub)
        return add_disk(view, run, semi[0], hub, 2 * semi[2], name)
    shape = {"cylinder": shapes.cylinder(semi[0], 2 * semi[2]), "ellipsoid": shapes.ellipsoid_shape(*semi)}
    style = inside | {"opacity": (0.45 if is_base else 0.8) * run.opacity}
    view.add(name, shape.get(solid.kind, shapes.box(*(2 * semi))), body_colour(run) if is_base else PALE, **style)


def _joint_points(parts: Parts, p: Any, body: int, solid: Solid) -> list[Array]:
    """Where the joints of a body are: on the axis of a hinge next to the body, or in the middle of a wheel."""
    found = []
    for k, joint in enumerate(parts.joints):
        if joint.kind not in ("hinge", "ball") or body not in (k, joint.parent) or solid.kind == "wheel":
            continue
        at = point_of(p["joints"][joint.name]["at"])
        if joint.kind == "hinge" and not joint.spins:
            axis = direction_of(p["joints"][joint.name]["axis"])
            at = at + axis * (axis @ (solid.middle - at))
        found.append(at)
    return found


def draw_poinsot(view: View, run: RunFrames) -> str:
    """A free body: its ellipsoid <I x, x> = 1 rolls on the plane across the constant momentum (Poinsot 1834).

    The point of contact is x = w/sqrt(2 E): it draws the polhode on the body and the herpolhode on the plane.
    """
    attitude, inertia = run.parts[0], inertia_of(run)
    assert inertia is not None
    moments, axes = principal_axes(inertia)
    semi, doubled = 1 / np.sqrt(moments), np.maximum(2 * run.energy, 1e-300)
    scale = 1 / semi.max()
    contact = -scale * run.velocity / np.sqrt(doubled)[:, None]  # below: the ellipsoid is its own mirror image
    momentum = rotate(attitude, run.momentum)
    frame = view.add("frame of the body", EMPTY, DARK, rotation=attitude)
    add_inertia_box(view, run, frame, scale=0.6)
    shell = shapes.ellipsoid_shape(*(scale * semi))
    view.add("inertia ellipsoid", shell, SURFACE, rotation=axes, opacity=0.25 * run.opacity, parent=frame)
    view.trace("polhode", contact, DARK, width=1.5, parent=frame)
    view.trace("herpolhode", rotate(attitude, contact), run.colour, width=3.0)
    if run.is_first:
        height = scale * np.sqrt(doubled[0]) / max(float(np.linalg.norm(momentum[0])), 1e-300)
        position = -height * normalise(momentum[0])
        patch: dict[str, Any] = {"position": position, "rotation": align_z(momentum[0]), "opacity": 0.35}
        view.add("invariable plane", shapes.plane(2.6), MOMENTUM, **patch, shared=True)
    view.arrow("momentum", np.zeros(3), scale_arrows(momentum, 1.7), MOMENTUM, width=0.05)
    spin = scale_arrows(rotate(attitude, run.velocity), 1.5)
    view.arrow("angular velocity", np.zeros(3), spin, VELOCITY, width=0.04)
    view.include([[-1.4, -1.4, -1.2], [1.4, 1.4, 1.6]])
    return CAPTIONS["poinsot"]


def draw_satellite(view: View, run: RunFrames) -> str:
    """A satellite: its body with its moments, two panels along its first axis, an antenna along the third."""
    attitude = run.parts[0]
    frame = view.add("satellite", EMPTY, DARK, rotation=attitude, follow=True, ghost=True)
    add = partial(view.add, opacity=run.opacity, parent=frame, legend="")
    add_inertia_box(view, run, frame, scale=0.5, opacity=1.0)
    for side in (-1.0, 1.0):
        add("panel", shapes.box(0.75, 0.42, 0.03), run.colour, position=[0.95 * side, 0, 0])
        add("boom", shapes.box(0.6, 0.04, 0.04), DARK, position=[0.3 * side, 0, 0])
    profile = np.linspace(0.0, 1.0, 7)
    add("mast", shapes.cylinder(0.03, 0.7), DARK, position=[0, 0, 0.35])
    add("dish", shapes.surface(revolve(0.3 * profile, 0.46 + 0.12 * profile**2, 25)), PALE)
    add("feed", shapes.sphere_shape(0.05), DARK, position=[0, 0, 0.7])
    view.trace("where the antenna points", AIM * attitude[:, :, 2], run.colour)
    momentum, spin = rotate(attitude, run.momentum), rotate(attitude, run.velocity)
    view.arrow("momentum", np.zeros(3), scale_arrows(momentum, 1.5), MOMENTUM, width=0.04)
    view.arrow("angular velocity", np.zeros(3), scale_arrows(spin, 1.35), VELOCITY, width=0.04)
    view.include([[-1.4, -1.4, -1.2], [1.4, 1.4, 1.4]])
    return CAPTIONS["satellite"]


def draw_body(view: View, run: RunFrames) -> str:
    """A body about a fixed point, or in space: the turning and moving that are left, and those that are forbidden."""
    frames = run.parts[0]
    attitude, still = frames[:, :3, :3], frames.shape[-1] == 3
    place = np.zeros((len(frames), 3)) if still else frames[:, :3, 3]
    size = 1.0 if still else max(0.12 * float(np.ptp(place, axis=0).max()), 0.3)
    frame = view.add("frame of the body", EMPTY, DARK, position=place, rotation=attitude, ghost=still)
    add_inertia_box(view, run, frame, scale=0.8 * size, opacity=0.6)
    if still:
        view.trace("path of the third axis", attitude[:, :, 2], run.colour)
        view.arrow("third axis", np.zeros(3), [0, 0, 1.0], run.colour, width=0.03, parent=frame)
    else:
        view.trace("path of the reference point", place, run.colour, width=3.0)
    spin = scale_arrows(run.velocity[:, :3], 1.5 * size)
    view.arrow("angular velocity", np.zeros(3), spin, VELOCITY, width=0.04 * size, parent=frame)
    text = _add_forbidden_axis(view, run, attitude, place, size, frame) if run.rows.shape[1] else ""
    if run.name == "skate-on-ellipsoid" and run.is_first:
        view.add("surface", shapes.ellipsoid_shape(*run.parameters["axes"]), SURFACE, opacity=0.35, shared=True)
        view.include([[0.0, 0.0, 0.0]], float(np.max(run.parameters["axes"])))
    if not still:
        text = f"{text} {_add_blade_in_space(view, run, size, frame)}"
    view.include(place, 1.3 * size)
    return f"Amber: the angular velocity{'' if still else ' and the velocity'}. {text}".strip()


def _add_forbidden_axis(view: View, run: RunFrames, attitude: Array, place: Array, size: float, frame: int) -> str:
    """The axis about which the body may not turn, crossed out, and the plane that is left for its angular velocity.

    If the axis is fixed in the body, a sharp wheel on an arm keeps the body from turning about it (Wagner 1941).
    """
    left = allowed_directions(run.rows[0], slice(0, 3))
    if left.shape[1] != 2:
        return "The angular velocity is free." if left.shape[1] == 3 else ""
    normals = _forbidden_axes(run.rows)
    in_body, in_space = is_constant(normals), is_constant(rotate(attitude, normals))
    part: dict[str, Any] = {"parent": frame} if in_body else {}
    normal = normals[:1] if in_body else rotate(attitude, normals)[: 1 if in_space else None]
    if run.is_first:
        middle = np.zeros(3) if in_body or is_constant(place) else place
        ends = middle - 1.35 * size * normal, middle + 1.35 * size * normal
        view.arrow("forbidden axis", *ends, CONSTRAINT, width=0.035 * size, crossed=True, **part)
        disc, turn = shapes.cylinder(1.5 * size, 0.01 * size), align_z(normal[0] if len(normal) == 1 else normal)
        patch: dict[str, Any] = {"position": middle, "rotation": turn, "opacity": 0.22, **part}
        view.add("plane of allowed angular velocities", disc, CONSTRAINT, **patch)
    if in_body:
        arm = np.cross(normal[0], np.eye(3)[int(np.argmin(np.abs(normal[0])))])
        arm /= np.linalg.norm(arm)
        middle, axle = 0.92 * size * arm, np.cross(normal[0], arm)
        wheel = shapes.torus(0.16 * size, 0.02 * size)
        view.add("sharp wheel", wheel, CONSTRAINT, position=middle, rotation=align_z(axle), **part)
        view.line("arm of the wheel", np.stack([0 * middle, middle]), CONSTRAINT, width=2.0, **part)
    return CAPTIONS["forbidden_axis"].format(where="the body" if in_body else "space")


def _forbidden_axes(rows: Array) -> Array:
    """The axes (k, 3) across the angular velocities that are left."""
    if rows.shape[1:] == (1, 3):
        return normalise(rows[:, 0])
    axes = []
    for frame in rows[:1] if is_constant(rows) else rows:
        left = allowed_directions(frame, slice(0, 3))
        normal = np.cross(left[:, 0], left[:, 1])
        axes.append(normal * np.sign(normal[int(np.argmax(np.abs(normal)))]))
    return np.broadcast_to(normalise(np.array(axes)), (len(rows), 3))


def _add_blade_in_space(view: View, run: RunFrames, size: float, frame: int) -> str:
    """The blade along which the reference point moves, if the constraint leaves one direction."""
    moving = scale_arrows(run.velocity[:, 3:6], 2.2 * size)
    view.arrow("velocity", np.zeros(3), moving, VELOCITY, width=0.05 * size, parent=frame)
    left = allowed_directions(run.rows[0], slice(3, 6)) if run.rows.shape[1] else np.eye(3)
    add = partial(view.add, parent=frame)
    if left.shape[1] == 2:
        turn = align_z(np.cross(left[:, 0], left[:, 1]))
        add("plane of allowed velocities", shapes.plane(2 * size), CONSTRAINT, rotation=turn, opacity=0.3)
        return "The velocity stays in the orange-red plane of the body."
    if left.shape[1] != 1:
        return ""
    turn = align_z(left[:, 0])
    add("blade", shapes.box(0.06 * size, 0.5 * size, 1.6 * size), CONSTRAINT, rotation=turn)
    if run.is_first:
        for across in 0.9 * size * turn[:, :2].T:
            view.arrow("forbidden", -across, across, CONSTRAINT, width=0.03 * size, crossed=True, parent=frame)
    return CAPTIONS["blade"]


def draw_dial(view: View, run: RunFrames) -> str:
    """A single angle: a hand on a disk."""
    frames, face = run.parts[0], shapes.cylinder(1.0, 0.06)
    frame = view.add("dial", face, SURFACE, rotation=about(2, angle_of(frames)), opacity=0.7 * run.opacity)
    view.add("hand", shapes.box(1.0, 0.08, 0.08), run.colour, position=[0.5, 0, 0.06], parent=frame)
    view.trace("path of the hand", at_height(frames[:, :, 0], 0.05), run.colour)
    view.include([[-1.2, -1.2, 0], [1.2, 1.2, 0.3]])
    view.flat = True
    return "The hand shows the angle."


def draw_point(view: View, run: RunFrames) -> str:
    """Three coordinates of a point, with its field of planes; fewer are drawn in the plane, one over time."""
    q = run.parts[0]
    n = q.shape[1]
    pair = [0, 1, 1 + (n - 1) // 2]  # x, and the first of the pairs (y, z)
    chosen = pair if run.name == "chaotic-quartic" else list(range(min(n, 3)))
    points, velocity = q[:, chosen], run.velocity[:, chosen]
    if n == 1:
        points, velocity = np.column_stack([run.t, q]), np.insert(velocity, 0, 1.0, axis=1)
    missing = np.zeros((len(q), 3 - points.shape[1]))
    points, velocity = np.column_stack([points, missing]), np.column_stack([velocity, missing])
    scale = stretch_of(points)
    if n == 1:  # the run is drawn three times as long as it is high
        scale = np.array([3 * extent_of(q) / max(float(np.ptp(run.t)), 1e-300), 1.0, 1.0])
    view.scale = view.scales.setdefault(tuple(view.offset), scale)  # a second run is drawn to the scale of the first
    points, velocity = points * view.scale, velocity * view.scale
    reach = extent_of(points)
    view.trace("path", points, run.colour, width=3.0)
    view.add("particle", shapes.sphere_shape(0.03 * reach), run.colour, position=points)
    tip = points + scale_arrows(velocity, 0.3 * reach)
    view.arrow("velocity", points, tip, VELOCITY, width=0.01 * reach)
    known = run.system.coordinate_names if run.system is not None else [f"q{i + 1}" for i in range(n)]
    names = [known[i] for i in chosen] if n > 1 else ["time", known[0]]
    if run.is_first:
        corner = points.min(axis=0) - 0.1 * reach
        for name, axis in zip(names, np.eye(3), strict=False):
            view.arrow("", corner, corner + 0.25 * reach * axis, DARK, width=0.006 * reach, shared=True)
            view.add("", shapes.label(name), DARK, position=corner + 0.29 * reach * axis, shared=True)
    view.flat, view.axis_names = len(names) < 3, tuple(names)
    text = _add_planes(view, run, points, chosen, reach) if run.rows.shape[1] == 1 and len(chosen) == 3 else ""
    return f"Amber: the velocity. {text}".strip()


def _add_planes(view: View, run: RunFrames, points: Array, chosen: list[int], reach: float) -> str:
    """The plane A v = 0 along the path and at the particle, with its normal crossed out."""
    normals = normalise(run.rows[:, 0, chosen] / view.scale)  # covectors: the plane A v = 0 is stretched with the path
    if np.linalg.norm(normals, axis=1).min() < 0.5:
        return ""
    if run.is_first:
        lengths = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1)))
        spots = np.unique(np.searchsorted(lengths, np.linspace(0, lengths[-1], PLANE_COUNT)).clip(0, len(points) - 1))
        add = partial(view.add, "plane along the path", shapes.plane(0.16 * reach), CONSTRAINT, shared=True)
        for k in spots if len(spots) > 1 else []:
            add(position=points[k], rotation=align_z(normals[k]), opacity=0.18)
        across = 0.17 * reach * normals
        view.arrow("forbidden", points - across, points + across, CONSTRAINT, width=0.008 * reach, crossed=True)
    patch: dict[str, Any] = {"position": points, "rotation": align_z(normals), "opacity": 0.5 * run.opacity}
    view.add("plane of allowed velocities", shapes.plane(0.36 * reach), CONSTRAINT, **patch)
    return CAPTIONS["planes" if run.velocity.shape[1] == 3 else "plane_of_some"]


def draw_pendulum_chain(view: View, run: RunFrames) -> str:
    """Masses on rods, hung from the origin, in the plane (drawn upright) or in space."""
    lengths = np.asarray(run.parameters.get("lengths", [1.0]), float)
    masses = np.asarray(run.parameters.get("masses", np.ones(len(lengths))), float)
    places = run.parts[0].reshape(len(run.t), len(lengths), -1)
    if places.shape[2] == 2:
        places = np.stack([places[..., 0], 0 * places[..., 0], places[..., 1]], axis=-1)
    above, size, add = np.zeros((len(places), 3)), float(lengths.mean()), partial(view.add, opacity=run.opacity)
    for mass, length, here in zip(masses, lengths, np.swapaxes(places, 0, 1), strict=True):
        rod = shapes.cylinder(0.02 * size, length)
        add("rod", rod, CONSTRAINT, position=(here + above) / 2, rotation=align_z(here - above))
        add("mass", shapes.sphere_shape(0.1 * size * (mass / masses.max()) ** (1 / 3)), run.colour, position=here)
        above = here
    view.trace("path of the last mass", above, run.colour)
    view.add("support", shapes.sphere_shape(0.05 * size), DARK, shared=True)
    view.include([[0.0, 0.0, 0.0]], 1.05 * float(lengths.sum()))
    return CAPTIONS["pendulum_chain"]


def draw_basis_images(view: View, run: RunFrames) -> str:
    """g e_1, ..., g e_n in three directions of space, with the velocities of their tips and the path of the body."""
    matrices, (group, *_) = run.parts[0], run.factors
    moving = group is not None and group.is_motion_group()
    n = matrices.shape[1] - moving
    place = matrices[:, :3, n] if moving else np.zeros((len(matrices), 3))
    size = max(0.15 * float(np.ptp(place, axis=0).max()), 0.3) if moving else 1.0
    if run.system is None:
        rates = np.gradient(matrices, run.t, axis=0)
    else:  # g hat(xi) at every frame, (k, N, N)
        rates = matrices @ np.einsum("ki,iab->kab", run.velocity, generators(run.system.group))
    if n < 3:  # a group of 2 x 2 matrices: the third direction of space is empty
        matrices, rates = (np.pad(values, ((0, 0), (0, 1), (0, 0))) for values in (matrices, rates))
    longest = 0.7 * size / max(float(np.abs(rates[:, :3, :n]).max()), 1e-9)
    for i in range(n):
        colour = INKS[i % len(INKS)]
        tip = place + size * matrices[:, :3, i]
        style: dict[str, Any] = {"width": 0.03 * size, "opacity": run.opacity, "named": False}  # e1 stands at its tip
        view.arrow(f"image of e{i + 1}", place, tip, colour, **style)
        view.add("", shapes.label(f"e{i + 1}"), colour, position=place + 1.12 * size * matrices[:, :3, i])
        if run.is_first and not moving:
            view.trace("", tip, colour, width=1.2, whole=False)
        if run.is_first:
            end = tip + longest * rates[:, :3, i]
            view.arrow("velocity of the tips", tip, end, VELOCITY, width=0.02 * size)
    if moving:
        view.trace("path of the reference point", place, run.colour, width=3.0)
        view.add("reference point", shapes.sphere_shape(0.06 * size), DARK, position=place)
        forward = scale_arrows(rates[:, :3, n], 2.0 * size)
        view.arrow("velocity", place, place + forward, VELOCITY, width=0.05 * size)
    view.include(place, 1.2 * size)
    text = CAPTIONS.get(f"basis_images {run.name}", CAPTIONS["basis_images"]).format(n=n)
    return f"The images of the basis vectors. Amber: the velocities of their tips. {text}"


def split_factors(run: RunFrames) -> list[RunFrames]:
    """A run on a product as runs on its factors, each with the constraint rows that are its own."""
    found, first = [], 0
    for factor, name, part in zip(run.factors, run.group.split(" x "), run.parts, strict=True):
        own = np.arange(first, first + (factor.dim if factor else 0))
        others = np.setdiff1d(np.arange(run.velocity.shape[1]), own)
        private = np.abs(run.rows[:, :, others]).max(axis=(0, 2), initial=0.0) == 0
        rows, velocity, reaction = run.rows[:, private][:, :, own], run.velocity[:, own], run.reaction[:, own]
        arrays: dict[str, Any] = {"rows": rows, "velocity": velocity, "reaction": reaction, "parts": (part,)}
        found.append(replace(run, group=name, name="", parameters={}, system=None, **arrays))
        first += len(own)
    return found


def draw_product(view: View, run: RunFrames) -> str:
    """The factors of a product, each with its own scene, in a row."""
    texts, start = [], view.offset
    for k, factor in enumerate(split_factors(run)):
        view.offset = start + np.array([3.0 * k, 0.0, 0.0])
        texts.append(f"{factor.group}: {choose_scene(factor)(view, factor)}")
    view.offset, view.flat, view.axis_names, view.scale = start, False, (), np.ones(3)
    return " ".join(texts)


DrawScene = Callable[[View, RunFrames], str]
SCENES_BY_MODEL: dict[str, DrawScene] = {
    "hinged-sleighs": draw_hinged_sleighs,
    "pendulum-chain": draw_pendulum_chain,
    "satellite": draw_satellite,
}


def make_scene(runs: Sequence[RunFrames], beside: View | None = None) -> tuple[View, str]:
    """The runs in one space, to the scale of the view `beside` it, and a caption that says what each colour means."""
    draw, first = choose_scene(runs[0]), runs[0]
    tilt = np.eye(3)
    if draw is draw_poinsot:  # the momentum is drawn upwards, so that the invariable plane lies level
        momentum = first.parts[0][0] @ first.momentum[0]
        tilt = align_z(momentum).T if np.linalg.norm(momentum) > 1e-9 else tilt
    elif draw in (draw_planar, draw_upright_disk, draw_rolling):  # x points down the slope of the floor
        tilt = about(1, first.parameter("slope", 0.0))
    elif (mechanism := mechanism_of(first)) is not None:
        pull = point_of(mechanism.parameters["gravity"])
        tilt = about(1, np.arctan2(pull[0], -pull[2])) if pull.any() else tilt
    view = View(first.name or first.group, tilt, scales={} if beside is None else beside.scales)
    captions = []
    for run in runs:
        view.run = run.index
        captions.append(draw(view, run))
    return view, captions[0]


def choose_scene(run: RunFrames) -> DrawScene:
    """The function that draws a run: its model's own, or that of its group."""
    if run.name in SCENES_BY_MODEL:
        return SCENES_BY_MODEL[run.name]
    if mechanism_of(run) is not None:
        return draw_mechanism
    pictures = [factor.picture if factor else "" for factor in run.factors]
    if pictures == ["plane", "dial"] and "radius" in run.parameters:
        return draw_upright_disk
    if pictures[0] == "plane":
        return draw_planar
    if pictures == ["attitude", "point"] and run.parts[1].shape[1] == 2:
        return draw_rolling
    if len(pictures) > 1 and all(run.factors):
        return draw_product
    if pictures == ["attitude"] and run.name == "rigid-body" and inertia_of(run) is not None and run.energy[0] > 0:
        return draw_poinsot
    by_picture = {"attitude": draw_body, "body": draw_body, "dial": draw_dial}
    return by_picture.get(pictures[0], draw_point if run.parts[0].ndim == 2 else draw_basis_images)
