"""Vehicles and linkages from bodies, joints, wheels and motors: `Mechanism` collects them, `system()` makes (Q, L, D).

A mechanism is drawn once, in its reference configuration, with all points and axes in the coordinates of the ground: x
forward, y to the left, z up, SI units. The pose (R, x) of a body takes a point r of the drawing to R r + x, so all
poses are 1 in the drawing. Bodies form a tree: each hangs by one joint on the ground or on another body, and a joint
that closes a loop becomes a holonomic constraint. A joint that is geared to others has no coordinate in Q: it is what
the gear makes of theirs. With the screw S = (n, a x n) of a hinge about n through a and its
displacement H, poses and body velocities V = (w, v) follow along the tree (Featherstone 2008, chapter 4):

    pose_child = pose_parent H(q),    V_child = Ad(H^-1) V_parent + S q'.

L = sum (m |v + w x c|^2 + w . I w)/2 - V. A body that is a solid of revolution about its hinge is not turned: its
inertia and its contact do not see its angle. Contacts are geometry (`_touch`): the lowest point of a wheel has the
height of the ground (holonomic) and the velocity of the ground (the rows of rolling, along and across the wheel).
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, UnknownName
from ..groups import SE2, SE3, SO3, AlgebraAxis, Euclidean, Group, Product
from ..kernels import compile_function, evaluate, holds, keep
from ..numerics import (
    find_root,
    finite,
    finite_reals,
    known_arguments,
    not_negative,
    not_zero,
    own_value,
    positive,
    read_reals,
    require_function,
    require_known,
    show,
    vector,
)
from ..numerics.types import AnyArray as Array
from ..numerics.types import Element, Scalar, Velocity
from .system import FUNCTIONS, Input, State, System, jacobian, register_system

GROUND = "ground"
SPACE = "xyz"
MOMENTS = ("xx", "yy", "zz", "xy", "xz", "yz")
HAT = np.cross(np.eye(3)[None], np.eye(3)[:, None]).transpose(2, 0, 1)  # HAT @ a is the matrix of a x
HEADING = ("yaw", "roll", "pitch")  # R = Rz(yaw) Rx(roll) Ry(pitch): a lean does not change with the pitch
SAMPLES = 4  # configurations at which constraints are tried for redundancy
VANISHING = 1e-9  # what counts as 0 where lengths are of size 1
MAX_STARTS = 16  # configurations with named rates whose rows a system keeps
RANK = 1e-7  # singular values, relative to the largest, that count as 0
LIGHTEST, HEAVIEST, LONGEST = 1e-6, 1e7, 1e4  # kg and m: beyond these a drawing is probably not in SI units

Reals = NDArray[np.float64]
Entries = dict[str, Any]  # a vector or matrix by its entries that are not 0 in the drawing: {"x": 0.3, "z": 0.9}


class Joint(NamedTuple):
    """How a body hangs on another: `slot` is its factor of the group, or its entry of R^k for hinges and sliders."""

    name: str
    kind: str  # free, planar, hinge, slider, ball, fixed
    parent: int  # -1: the ground
    slot: int
    names: tuple[str, ...] = ()  # of its coordinates
    spins: bool = False  # the body is a solid of revolution about this hinge, and is not turned
    follows: bool = False  # a castor: where nothing is said of it, it turns as it must
    geared: tuple[int, ...] = ()  # the bodies whose joints move this one: then it has no slot
    by: Callable[..., Any] | None = None  # its coordinate as a function of theirs; None: the sum with their ratios


class ClosedLoop(NamedTuple):
    """A joint between two bodies that hang elsewhere already; `keeps` are the numbers of its equations."""

    name: str
    kind: str
    first: int
    second: int
    keeps: tuple[int, ...]


class Contact(NamedTuple):
    """Where a body touches the ground or another body: `rows` of rolling that hold, and whether its height does."""

    name: str
    kind: str  # wheel, omni, ball, ellipsoid, blade, point
    body: int
    on: int
    rows: tuple[int, ...]
    height: bool


class ForceElement(NamedTuple):
    """A spring between two points, or an input: a motor of a joint, a thrust, a torque."""

    name: str
    kind: str  # joint, spring, motor, thrust, torque
    first: int  # a body, or the one whose joint it is
    second: int = -1


@jax.tree_util.register_static
@dataclass(frozen=True)
class Parts:
    """What a mechanism is made of, without its numbers: they are the parameters of the system, by the same names."""

    name: str
    bodies: tuple[str, ...]
    joints: tuple[Joint, ...]  # one for each body, in an order in which parents come first
    loops: tuple[ClosedLoop, ...]
    contacts: tuple[Contact, ...]
    parts: tuple[ForceElement, ...]
    group: Group
    terrain: Callable[..., Array] | None = None
    shapes: tuple[str, ...] = ()  # of each body: box, cylinder, ball, inertia; none of a carrier
    redundant: tuple[str, ...] = ()  # constraints that follow from others, and are left out
    shared: tuple[str, ...] = ()  # the loads that carry theirs

    @property
    def flat(self) -> int:
        """The number of hinges and sliders that move on their own, the entries of the last factor R^k."""
        return sum(joint.kind in ("hinge", "slider") and not joint.geared for joint in self.joints)

    @property
    def gears(self) -> list[int]:
        """The bodies whose joints are geared to others, along the tree."""
        return [k for k in self.order() if self.joints[k].geared]

    @cached_property
    def coordinate_names(self) -> tuple[str, ...]:
        """The names of the coordinates, along the tree."""
        return tuple(name for k in self.order() for name in self.joints[k].names)

    @cached_property
    def rate_names(self) -> tuple[str, ...]:
        """The names of the rates of the coordinates, then the speeds of free bodies along their headings."""
        moving = _free_joints(self)
        tails = [f" {self.bodies[self.joints.index(joint)]}" for joint in moving] if moving[1:] else [""]
        return (*(f"{name} rate" for name in self.coordinate_names), *(f"speed{tail}" for tail in tails[: len(moving)]))

    @cached_property
    def start_names(self) -> tuple[str, ...]:
        """Both, as a state takes them."""
        return tuple(name.replace(" ", "_") for name in (*self.coordinate_names, *self.rate_names))

    def factor(self, g: Element, slot: int) -> Any:
        """A factor of a configuration."""
        return g[slot] if len(self.group.factors) > 1 else g

    def share(self, xi: Velocity, slot: int) -> Array:
        """A factor of a velocity."""
        ends = np.cumsum([factor.dim for factor in self.group.factors])
        return xi[int(ends[slot]) - self.group.factors[slot].dim : int(ends[slot])]

    def order(self) -> Iterator[int]:
        """The bodies, parents first."""
        done: set[int] = {-1}
        while len(done) <= len(self.joints):
            for k, joint in enumerate(self.joints):
                if k not in done and joint.parent in done:
                    done.add(k)
                    yield k


@dataclass(frozen=True)
class Space(Product):
    """The configurations of a mechanism: a product whose velocities have names and units."""

    labels: tuple[AlgebraAxis, ...] = ()

    def axes(self) -> list[AlgebraAxis]:
        return list(self.labels)


Pose = tuple[Array, Array]  # (R, x)
Twist = tuple[Array, Array]  # (w, v) in the axes of the body, v at the origin of the drawing


def _vector(entries: Entries) -> Array:
    return jnp.stack([jnp.asarray(entries.get(name, 0.0), float) for name in SPACE])


def _direction(entries: Entries) -> Array:
    """A unit vector; along an axis of the drawing it is {"-y": None}, which has no number."""
    if len(entries) == 1:
        (name,) = entries
        return jnp.asarray(np.eye(3)[SPACE.index(name[-1])] * (-1.0 if name[0] == "-" else 1.0))
    given = _vector(entries)
    return given / jnp.sqrt(given @ given)


def _matrix(entries: Entries) -> Array:
    xx, yy, zz, xy, xz, yz = (jnp.asarray(entries.get(name, 0.0), float) for name in MOMENTS)
    return jnp.stack([jnp.stack([xx, xy, xz]), jnp.stack([xy, yy, yz]), jnp.stack([xz, yz, zz])])


def _cross(a: Array, b: Array) -> Array:
    """a x b in a dozen equations, not forty: mechanisms have many products, and JAX differentiates each equation."""
    return _shift(a * _shift(b) - _shift(a) * b)


def _shift(a: Array) -> Array:
    return jnp.concatenate([a[1:], a[:1]])


def _turn(axis: Array, angle: Array) -> Array:
    """The rotation about a unit vector by an angle."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    return c * jnp.eye(3) + s * (jnp.asarray(HAT) @ axis) + (1 - c) * axis[:, None] * axis[None, :]


def _axis(parts: Parts, p: Any, body: int) -> tuple[Array, Array]:
    """(a, n): a point of the axis of the joint of a body, and its direction."""
    own = p["joints"][parts.joints[body].name]
    return _vector(own["at"]), _direction(own["axis"])


def _coordinate(parts: Parts, p: Any, flat: Array, body: int) -> Array:
    """The coordinate of the hinge or slider of a body: an entry of R^k, or what its gear makes of others."""
    joint = parts.joints[body]
    if not joint.geared:
        return flat[joint.slot]
    own, moving = p["gears"][joint.name], [_coordinate(parts, p, flat, k) for k in joint.geared]
    if joint.by is not None:
        return _evaluate_coupling(joint.name, joint.by, own, moving)
    turned: list[Array] = [own[parts.joints[k].name] * q for k, q in zip(joint.geared, moving, strict=True)]
    return sum(turned[1:], turned[0])


def _evaluate_coupling(joint: str, by: Callable[..., Any], numbers: Any, moving: Sequence[Array]) -> Array:
    return own_value(f"the coupling of '{joint}'", partial(by, **numbers), *moving)


def _rate(parts: Parts, g: Element, p: Any, xi: Velocity, body: int) -> Array:
    """The rate of the coordinate of a hinge or slider."""
    rates = parts.share(xi, -1)
    if not parts.joints[body].geared:
        return rates[parts.joints[body].slot]
    return cast(Array, jax.jvp(lambda q: _coordinate(parts, p, q, body), (parts.factor(g, -1),), (rates,))[1])


def _poses(parts: Parts, g: Element, p: Any) -> list[Pose]:
    """The pose of every body."""
    poses: dict[int, Pose] = {-1: (jnp.eye(3), jnp.zeros(3))}
    for k in parts.order():
        joint = parts.joints[k]
        R, x = poses[joint.parent]
        if joint.spins or joint.kind == "fixed":
            poses[k] = R, x
            continue
        H = _displacement(parts, g, p, k)
        poses[k] = H if joint.parent < 0 else (R @ H[0], R @ H[1] + x)
    return [poses[k] for k in range(len(parts.joints))]


def _displacement(parts: Parts, g: Element, p: Any, body: int) -> Pose:
    """H(q) of the joint of a body."""
    joint = parts.joints[body]
    if joint.kind == "planar":
        pose = parts.factor(g, joint.slot)
        zero, one = jnp.zeros(()), jnp.ones(())
        rows = [[pose[0, 0], pose[0, 1], zero], [pose[1, 0], pose[1, 1], zero], [zero, zero, one]]
        return jnp.stack([jnp.stack(row) for row in rows]), jnp.stack([pose[0, 2], pose[1, 2], zero])
    if joint.kind == "free":
        pose = parts.factor(g, joint.slot)
        return pose[:3, :3], pose[:3, 3]
    if joint.kind == "ball":
        at, Q = _vector(p["joints"][joint.name]["at"]), parts.factor(g, joint.slot)
        return Q, at - Q @ at
    at, axis = _axis(parts, p, body)
    q = _coordinate(parts, p, parts.factor(g, -1), body)
    if joint.kind == "slider":
        return jnp.eye(3), q * axis
    Q = _turn(axis, q)
    return Q, at - Q @ at


def _twists(parts: Parts, g: Element, xi: Velocity, p: Any) -> list[Twist]:
    """The velocity of every body, in its own axes."""
    still = jnp.zeros(3)
    twists: dict[int, Twist] = {-1: (still, still)}
    for k in parts.order():
        joint = parts.joints[k]
        w, v = twists[joint.parent]
        if joint.kind == "fixed":
            twists[k] = w, v
            continue
        if joint.kind in ("free", "planar"):
            own = parts.share(xi, joint.slot)
            zero = jnp.zeros(())
            planar = (jnp.stack([zero, zero, own[0]]), jnp.stack([own[1], own[2], zero])) if len(own) == 3 else None
            added = planar or (own[:3], own[3:])
        elif joint.kind == "ball":
            at, own = _vector(p["joints"][joint.name]["at"]), parts.share(xi, joint.slot)
            added = own, _cross(at, own)
        else:
            (at, axis), rate = _axis(parts, p, k), _rate(parts, g, p, xi, k)
            added = (still, rate * axis) if joint.kind == "slider" else (rate * axis, rate * _cross(at, axis))
        if joint.parent >= 0 and not joint.spins:
            Q, y = _displacement(parts, g, p, k)
            w, v = (w, v + _cross(w, y)) if joint.kind == "slider" else (w @ Q, (v + _cross(w, y)) @ Q)
        twists[k] = (w + added[0], v + added[1]) if joint.parent >= 0 else added
    return [twists[k] for k in range(len(parts.joints))]


def _centre(parts: Parts, p: Any, body: int, section: str = "bodies", name: str = "") -> Array:
    """A point of a body: its centre of mass or the middle of a wheel, on the axis of a body that spins."""
    own = p[section][name or parts.bodies[body]]
    if not parts.joints[body].spins:
        return _vector(own["centre"])
    at, axis = _axis(parts, p, body)
    return at + own["offset"] * axis if "offset" in own else at


def _inertia_of(parts: Parts, p: Any, body: int) -> Callable[[Array], Array]:
    """w -> w . I w about the centre of mass."""
    own = p["bodies"][parts.bodies[body]]["inertia"]
    if not parts.joints[body].spins:
        return lambda w: w @ _matrix(own) @ w
    axis = _axis(parts, p, body)[1]
    return lambda w: own["across"] * (w @ w) + (own["along"] - own["across"]) * (w @ axis) ** 2


@dataclass(frozen=True)
class Energy:
    """The Lagrangian of a mechanism."""

    parts: Parts

    def __call__(self, t: Scalar, g: Element, xi: Velocity, p: Any) -> Array:
        parts, gravity = self.parts, _vector(p["gravity"])
        poses, twists = _poses(parts, g, p), _twists(parts, g, xi, p)
        total = jnp.zeros(())
        for k, name in enumerate(parts.bodies):
            if name not in p["bodies"]:  # a carrier
                continue
            (R, x), (w, v), mass = poses[k], twists[k], p["bodies"][name]["mass"]
            c = _centre(parts, p, k)
            moving = v + _cross(w, c)
            total += 0.5 * (mass * (moving @ moving) + _inertia_of(parts, p, k)(w))
            total += mass * (gravity @ x + (gravity @ R) @ c)
        for part in parts.parts:
            if part.kind == "joint":
                own = p["joints"][part.name]
                if "stiffness" in own:
                    q = _coordinate(parts, p, parts.factor(g, -1), part.first)
                    total -= 0.5 * own["stiffness"] * (q - own.get("rest", 0.0)) ** 2
            elif part.kind == "spring":
                own, gap = p["springs"][part.name], _gap(parts, poses, p, part)
                stretched = gap @ gap if "length" not in own else (jnp.sqrt(gap @ gap) - own["length"]) ** 2
                total -= 0.5 * own["stiffness"] * stretched
        return total


def _gap(parts: Parts, poses: list[Pose], p: Any, part: ForceElement) -> Array:
    """From the second end of a spring to its first."""
    own = p["springs"][part.name]
    ends = [_vector(own[side]) for side in ("start", "end")]
    there = [end if k < 0 else poses[k][0] @ end + poses[k][1] for k, end in zip(part[2:], ends, strict=True)]
    return there[0] - there[1]


class Touch(NamedTuple):
    """A contact in the axes of its body: the point, the normal, directions of rolling; and the height of the point."""

    point: Array
    normal: Array
    ways: tuple[Array, ...]
    height: Array


def _touch(parts: Parts, contact: Contact, poses: list[Pose], p: Any) -> Touch:
    """Where a body touches. A wheel about n does at c + rho d - tyre N, d = ((N.n) n - N)/|..| being its way down."""
    own = p["contacts"][contact.name]
    R, x = poses[contact.body]
    c = _centre(parts, p, contact.body, "contacts", contact.name)
    round_ = contact.kind in ("wheel", "omni", "ball")
    radius = own["radius"] if round_ else 0.0
    tyre = own["radius"] if contact.kind == "ball" else own.get("tyre", 0.0)
    if contact.kind in ("wheel", "omni"):
        axle = _axis(parts, p, contact.body)[1] if parts.joints[contact.body].spins else _direction(own["axis"])

    def arm(N: Array) -> Array:
        """From the centre to the contact, where the normal is N in the axes of the body."""
        if contact.kind in ("blade", "point"):
            return -own["radius"] * N if "radius" in own else jnp.zeros(3)
        if contact.kind == "ball":
            return jnp.asarray(-tyre * N)
        if contact.kind == "ellipsoid":  # where the outward normal is -N
            spread = _vector(own["axes"]) ** 2 * N
            return -spread / jnp.sqrt(N @ spread)
        down = (N @ axle) * axle - N
        reach: Array = (radius - tyre) * down / jnp.sqrt(down @ down)
        return reach - tyre * N if "tyre" in own else reach

    if contact.on >= 0:  # the plane of another body, z = height there
        turned, origin = poses[contact.on]
        there = _vector(own["plane"])
        up = turned[:, 2]
        N = up @ R
        point = c + arm(N)
        height = up @ (x - origin) + N @ point - there[2]
        flat = (turned[:, 0] @ R, turned[:, 1] @ R)
    elif parts.terrain is None:
        N = R[2]
        point = c + arm(N)
        height = x[2] + N @ point
        flat = (R[0], R[1])
    else:
        terrain = parts.terrain

        def surface(s: Array) -> tuple[Array, Array]:
            z, slope = jax.value_and_grad(lambda at: jnp.asarray(own_value("ground(x, y)", terrain, *at)))(s)
            up = jnp.concatenate([-slope, jnp.ones(1)])
            return z, up / jnp.sqrt(up @ up)

        def off(s: Array) -> Array:
            return (x + R @ (c + arm(surface(s)[1] @ R)))[:2] - s

        s = find_root(off, (x + R @ c)[:2]).x
        z, up = surface(s)
        N = up @ R
        point = c + arm(N)
        height = (x[2] + R[2] @ point - z) * up[2]
        first = jnp.stack([up[2], 0.0, -up[0]]) / jnp.sqrt(up[2] ** 2 + up[0] ** 2)
        flat = (first @ R, _cross(up, first) @ R)
    if contact.kind in ("ball", "ellipsoid", "point"):
        return Touch(point, N, flat, height)
    along = _cross(axle, N) if round_ else _direction(own["along"])
    if not round_:
        along = along - (along @ N) * N
    along = along / jnp.sqrt(along @ along)
    across = _cross(N, along)
    if contact.kind == "blade":
        return Touch(point, N, (across,), height)
    if contact.kind == "omni":
        angle = own.get("angle", 0.0)
        return Touch(point, N, (jnp.cos(angle) * along + jnp.sin(angle) * across,), height)
    return Touch(point, N, (along, across), height)


@dataclass(frozen=True)
class Rolling:
    """The rows A(t, g) of rolling: the velocity of the point of contact along each of its directions."""

    parts: Parts

    def __call__(self, t: Scalar, g: Element, p: Any) -> Array:
        parts, poses = self.parts, _poses(self.parts, g, p)
        touches = [(contact, _touch(parts, contact, poses, p)) for contact in parts.contacts if contact.rows]

        def slips(xi: Velocity) -> Array:
            twists, found = _twists(parts, g, xi, p), []
            for contact, touch in touches:
                w, v = twists[contact.body]
                slip = v + _cross(w, touch.point)
                if contact.on >= 0:
                    (R, x), (S, y), (spin, moving) = poses[contact.body], poses[contact.on], twists[contact.on]
                    there = (R @ touch.point + x - y) @ S
                    slip -= (S @ (moving + _cross(spin, there))) @ R
                found += [touch.ways[row] @ slip for row in contact.rows]
            return jnp.stack(found) if found else jnp.zeros(0)

        return jacobian(slips, jnp.zeros(parts.group.dim))


@dataclass(frozen=True)
class Closing:
    """The holonomic constraints: heights of contacts, then the equations of joints that close loops."""

    parts: Parts

    def __call__(self, t: Scalar, g: Element, p: Any) -> Array:
        parts, poses = self.parts, _poses(self.parts, g, p)
        found = [_touch(parts, contact, poses, p).height for contact in parts.contacts if contact.height]
        for loop in parts.loops:
            own = p["joints"][loop.name]
            at = _vector(own["at"])
            (R, x), (S, y) = (poses[k] if k >= 0 else (jnp.eye(3), jnp.zeros(3)) for k in (loop.first, loop.second))
            gap = (R @ at + x - S @ at - y) @ R
            entries = [gap[0], gap[1], gap[2]]
            turned = R.T @ S
            if loop.kind == "fixed":
                entries += [turned[2, 1], turned[0, 2], turned[1, 0]]
            if loop.kind == "hinge":
                first, second, axis = _direction(own["across"]), _direction(own["upward"]), _direction(own["axis"])
                entries += [first @ turned @ axis, second @ turned @ axis]
            found += [entries[k] for k in loop.keeps]
        return jnp.stack(found) if found else jnp.zeros(0)


@dataclass(frozen=True)
class Acting:
    """The forces of motors, thrusts, torques and dampers: each acts along the derivative of its velocity in xi."""

    parts: Parts

    def __call__(self, t: Scalar, g: Element, xi: Velocity, u: Array, p: Any) -> Array:
        parts, poses = self.parts, _poses(self.parts, g, p)
        zero = jnp.zeros(parts.group.dim)
        stretched = [part for part in parts.parts if part.kind == "spring" and "damping" in p["springs"][part.name]]
        rubbing = [part for part in parts.parts if part.kind == "joint" and "damping" in p["joints"][part.name]]

        def driven(eta: Velocity) -> Array:
            """The velocities along which the inputs act."""
            twists, found = _twists(parts, g, eta, p), []
            for part in parts.parts:
                if part.kind == "motor":
                    found.append(_rate(parts, g, p, eta, part.first))
                elif part.kind in ("thrust", "torque"):
                    own = p["inputs"][part.name]
                    (w, v), along = twists[part.first], _direction(own["along"])
                    speed = along @ w if part.kind == "torque" else along @ (v + _cross(w, _vector(own["at"])))
                    if part.second >= 0:  # the torque acts back on this body
                        R, S = poses[part.first][0], poses[part.second][0]
                        speed -= along @ ((S @ twists[part.second][0]) @ R)
                    found.append(speed)
            return jnp.stack(found)

        def damped(eta: Velocity) -> Array:
            """The velocities of dampers."""

            def lengths(s: Array) -> list[Array]:
                moved = _poses(parts, parts.group.shift(g, s * eta), p)
                gaps = [_gap(parts, moved, p, part) for part in stretched]
                return [jnp.sqrt(gap @ gap) for gap in gaps]

            rates = jax.jvp(lengths, (jnp.zeros(()),), (jnp.ones(()),))[1] if stretched else []
            return jnp.stack([*(_rate(parts, g, p, eta, part.first) for part in rubbing), *rates])

        force = u @ jacobian(driven, zero) if len(u) else zero
        if rubbing or stretched:
            own = [*(p["joints"][part.name] for part in rubbing), *(p["springs"][part.name] for part in stretched)]
            force -= (jnp.stack([each["damping"] for each in own]) * damped(xi)) @ jacobian(damped, zero)
        return force


def _chart(parts: Parts, p: Any, q: Array) -> Element:
    """The configuration with these coordinates, in the order of `coordinate_names`."""
    factors: list[Any] = [None] * len(parts.group.factors)
    flat: list[Array] = [jnp.zeros(())] * parts.flat
    at = 0
    for k in parts.order():
        joint = parts.joints[k]
        own = q[at : at + len(joint.names)]
        at += len(joint.names)
        if joint.kind == "planar":
            R = _turn(np.eye(3)[2], own[2])[:2, :2]
            factors[joint.slot] = SE2().motion(R, own[:2] + (at_point := _mark(p, joint)[:2]) - R @ at_point)
        elif joint.kind == "free":
            turns = [_turn(np.eye(3)[axis], own[3 + k]) for k, axis in enumerate((2, 0, 1))]
            R = turns[0] @ turns[1] @ turns[2]
            factors[joint.slot] = SE3().motion(R, own[:3] + (at_point := _mark(p, joint)) - R @ at_point)
        elif joint.kind == "ball":
            factors[joint.slot] = SO3().exp(own)
        elif joint.kind in ("hinge", "slider") and not joint.geared:
            flat[joint.slot] = own[0]
    if flat:
        factors[-1] = jnp.stack(flat)
    return tuple(factors) if len(factors) > 1 else factors[0]


def _mark(p: Any, joint: Joint) -> Array:
    """The point of a free body whose displacement is (x, y, z)."""
    return _vector(p["joints"][joint.name]["at"])


def _coordinates(parts: Parts, p: Any, g: Element) -> Array:
    """The coordinates of a configuration, in the order of `coordinate_names`."""
    found: list[Array] = []
    for k in parts.order():
        joint = parts.joints[k]
        if joint.kind in ("hinge", "slider"):
            found.append(_coordinate(parts, p, parts.factor(g, -1), k))
        elif joint.kind == "ball":
            found += list(SO3().log(parts.factor(g, joint.slot)))
        elif joint.kind == "planar":
            pose, mark = parts.factor(g, joint.slot), _mark(p, joint)[:2]
            found += [*(pose[:2, 2] + pose[:2, :2] @ mark - mark), jnp.arctan2(pose[1, 0], pose[0, 0])]
        elif joint.kind == "free":
            R, mark = (pose := parts.factor(g, joint.slot))[:3, :3], _mark(p, joint)
            x = pose[:3, 3] + R @ mark - mark
            roll = jnp.arctan2(R[2, 1], jnp.sqrt(R[2, 0] ** 2 + R[2, 2] ** 2))
            found += [*x, jnp.arctan2(-R[0, 1], R[1, 1]), roll, jnp.arctan2(-R[2, 0], R[2, 2])]
    return jnp.stack(found)


@partial(jax.tree_util.register_dataclass, data_fields=("parameters",), meta_fields=("parts",))
@dataclass(frozen=True, eq=False)
class Drawing:
    """The parts with their numbers, which native code packs once (`words_of`)."""

    parts: Parts
    parameters: Any

    @cached_property
    def priority(self) -> list[int]:
        return priority(self.parts)


@partial(compile_function, place=False)
def _at_coordinates(drawing: Drawing, q: Array) -> tuple[Element, Array, Array]:
    """(g, phi, dphi/dq) at coordinates q; phi has what coordinates of geared joints are off after the constraints."""
    parts, p = drawing.parts, drawing.parameters
    geared = [parts.coordinate_names.index(parts.joints[k].names[0]) for k in parts.gears]

    def phi(at: Array) -> Array:
        g = _chart(parts, p, at)
        closing = Closing(parts)(0.0, g, p)
        return jnp.concatenate([closing, (at - _coordinates(parts, p, g))[np.array(geared)]]) if geared else closing

    return _chart(parts, p, q), phi(q), jacobian(phi, q)


@partial(compile_function, place=False)
def _rates_at(drawing: Drawing, g: Element) -> tuple[Array, Array]:
    """(A, C) at a configuration: all rows of its constraints, and C with the rates C xi."""
    parts, p = drawing.parts, drawing.parameters
    return _all_rows(drawing, g), jacobian(partial(_rates, parts, p, g), jnp.zeros(parts.group.dim))


def _all_rows(drawing: Drawing, g: Element) -> Array:
    """All rows of the constraints at a configuration."""
    parts, p = drawing.parts, drawing.parameters
    height = jacobian(lambda eta: Closing(parts)(0.0, parts.group.shift(g, eta), p), jnp.zeros(parts.group.dim))
    return jnp.concatenate([Rolling(parts)(0.0, g, p), height])


_rows_at = compile_function(_all_rows, place=False)


def _rates(parts: Parts, p: Any, g: Element, xi: Velocity) -> Array:
    """The rates of the coordinates, then the speeds of the free bodies along their headings."""
    names = parts.coordinate_names

    def moved(s: Array) -> Array:
        return _coordinates(parts, p, parts.group.shift(g, s * xi))

    q, rate = jax.jvp(moved, (jnp.zeros(()),), (jnp.ones(()),))
    speeds = []
    for joint in _free_joints(parts):
        x, yaw = names.index(joint.names[0]), q[names.index(joint.names[2 if joint.kind == "planar" else 3])]
        speeds.append(jnp.cos(yaw) * rate[x] + jnp.sin(yaw) * rate[x + 1])
    return jnp.concatenate([rate, jnp.stack(speeds)]) if speeds else rate


def _free_joints(parts: Parts) -> list[Joint]:
    """The joints of bodies that move freely over the ground: each has a speed."""
    return [parts.joints[k] for k in parts.order() if parts.joints[k].kind in ("free", "planar")]


class Picture(NamedTuple):
    """A mechanism in space: a point r of the drawing of body k is at turns[k] r + places[k], wheels by their angles."""

    turns: Array  # (bodies, 3, 3)
    places: Array  # (bodies, 3)
    velocities: Array  # of the centres of mass, (bodies, 3)
    contacts: Array  # their points, and the directions in which they must not slip (0: none), (contacts, 2, 3)


@register_system(FUNCTIONS, ("group", "inputs", "names"))
@dataclass(frozen=True, eq=False, repr=False)
class MechanismSystem(System):
    """The system that `Mechanism.system()` makes; its coordinates, rates, inputs and loads have names and units.

    Its parameters are the numbers of the drawing that are not 0, by the names of the parts; what is 0 there stays 0.
    """

    def __repr__(self) -> str:
        counts = f"{len(self.parts.bodies)} bodies, {self.constraints} constraints, {len(self.inputs or ())} inputs"
        return f"<MechanismSystem {self.parts.name} on {self.group}: {counts}>"

    @property
    def quadratic(self) -> bool:
        """The velocities of bodies are linear in xi, so that nothing has to be traced to know it."""
        return isinstance(self.lagrangian, Energy) or super().quadratic

    @property
    def parts(self) -> Parts:
        """What the mechanism is made of."""
        return cast(Energy, self.lagrangian).parts

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """The names of the coordinates: poses of free bodies, angles of hinges, distances of sliders."""
        return self.parts.coordinate_names

    @property
    def turning_names(self) -> tuple[str, ...]:
        """The angles of poses; those of hinges count turns."""
        after = {"planar": 2, "free": 3}
        posed = [joint for joint in self.parts.joints if joint.kind in after]
        return tuple(name for joint in posed for name in joint.names[after[joint.kind] :])

    @property
    def rate_names(self) -> tuple[str, ...]:
        """The names of the rates of the coordinates, then the speeds of free bodies along their headings."""
        return self.parts.rate_names

    @property
    def start_names(self) -> tuple[str, ...]:
        return self.parts.start_names

    @property
    def shape_names(self) -> tuple[str, ...]:
        """The coordinates that show how the mechanism is bent: all but place, heading and the angles of wheels."""
        free, bent = _free_joints(self.parts), [joint for joint in self.parts.joints if not joint.spins]
        placed = {joint.names[k] for joint in free for k in (0, 1, 2 if joint.kind == "planar" else 3)}
        return tuple(name for joint in bent for name in joint.names if name not in placed)

    @property
    def kept_components(self) -> Reals:
        parts, n, kept = self.parts, self.group.dim, super().kept_components
        rolling = {contact.body for contact in parts.contacts}
        for body, joint in enumerate(parts.joints):
            if joint.spins and not joint.geared:
                place = n - parts.flat + joint.slot
                kept[place], kept[n + place] = 0.0, body not in rolling
        return kept

    @property
    def load_names(self) -> tuple[str, ...]:
        """The names of the Lagrange multipliers: forces of contact (N), then forces and torques of closed loops."""
        return _load_names(self.parts)

    @property
    def units(self) -> dict[str, str]:
        """The SI units of coordinates, rates and loads by their names."""
        units = [unit for k in self.parts.order() for unit in COORDINATE_UNITS[self.parts.joints[k].kind]]
        found = dict(zip(self.coordinate_names, units, strict=True))
        rates = [*(f"{unit} s-1" for unit in units), *("m s-1" for _ in _free_joints(self.parts))]
        found |= dict(zip(self.rate_names, rates, strict=True))
        found |= {name: "N m" if " torque " in name else "N" for name in self.load_names}
        return found | {each.name: each.unit for each in self.inputs or ()}

    @property
    def title(self) -> str:
        return self.parts.name

    def observe(self, t: Scalar, g: Element, xi: Velocity) -> Array:
        p = self.parameters
        return jnp.concatenate([_coordinates(self.parts, p, g), _rates(self.parts, p, g, xi)])

    def picture(self, g: Element, xi: Velocity) -> Picture:
        """Where the bodies and their contacts are, and how fast: what a scene draws."""
        parts, p = self.parts, self.parameters
        turned = replace(parts, joints=tuple(joint._replace(spins=False) for joint in parts.joints))
        poses, unturned, twists, touches = _poses(turned, g, p), _poses(parts, g, p), _twists(parts, g, xi, p), []
        for contact in parts.contacts:
            touch, (R, x) = _touch(parts, contact, unturned, p), unturned[contact.body]
            across = touch.ways[-1] if contact.kind in ("wheel", "blade") else jnp.zeros(3)
            touches.append(jnp.stack([R @ touch.point + x, R @ across]))
        moving = [
            R @ (v + _cross(w, _centre(parts, p, k) if name in p["bodies"] else jnp.zeros(3)))
            for k, (name, (R, _), (w, v)) in enumerate(zip(parts.bodies, unturned, twists, strict=True))
        ]
        turns, places = (jnp.stack(each) for each in zip(*poses, strict=True))
        return Picture(turns, places, jnp.stack(moving), jnp.stack(touches) if touches else jnp.zeros((0, 2, 3)))

    def coordinates(self, g: Element) -> dict[str, Reals]:
        """The coordinates of configurations by their names; g may have leading axes."""
        lead = np.shape(jax.tree.leaves(g)[-1])[: -1 if self.parts.flat else -2]
        own = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[len(lead) :])), g)
        values = np.asarray(_all_coordinates(self.parts, self.parameters, own)).reshape(*lead, -1)
        return {name: values[..., k] for k, name in enumerate(self.coordinate_names)}

    named_coordinates = coordinates

    def state(
        self, g: Any = None, xi: Any = None, *, momentum: Any = None, t: Scalar = 0.0, project: Any = False,
        **named: float) -> State:  # fmt: skip
        """A state from names: `state(speed=5, lean_rate=0.5)`; or from g and xi, as `System.state` takes them.

        Coordinates that are not named are as in the drawing, and rates that are not named are 0, as far as the
        constraints allow: heights and pitch, and the turning of wheels and castors, are found before anything else.
        """
        if isinstance(xi, Mapping):
            named, xi = {**named, **xi}, None
        if g is not None or xi is not None or momentum is not None:
            if named:
                raise InvalidInput(f"give g and xi, or names ({', '.join(named)}), not both")
            return super().state(g, xi, momentum=momentum, t=t, project=project)
        positions, rates = self._read(named)
        numbers, starts, drawing = self.__dict__.get("_starts", (None, {}, None))
        if not holds(self.parameters, numbers):
            starts, drawing = {}, Drawing(self.parts, self.parameters)
            self.__dict__["_starts"] = keep(self.parameters), starts, drawing
        if (start := starts.get(key := (*positions.items(), *rates))) is None:
            last = next(reversed(starts.values()), None)
            if len(starts) >= MAX_STARTS:
                starts.clear()
            start = starts[key] = _find_start(drawing, self.load_names, positions, list(rates), last)
        return super().state(start.g, _velocity(self, start, rates), t=t)

    def _read(self, named: Mapping[str, float]) -> tuple[dict[int, float], dict[int, float]]:
        """Given values by the places of their coordinates and rates."""
        known, count = self.start_names, len(self.coordinate_names)
        found: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for name, value in named.items():
            if name.replace(" ", "_") not in known:
                raise UnknownName(f"coordinate or rate of {self.parts.name}", name, known)
            k = known.index(name.replace(" ", "_"))
            require_known("a state by its names", {name: value}, "give state(g, xi) that is found outside")
            found[k >= count][k - count * (k >= count)] = float(finite(name, value))
        return found


def priority(parts: Parts) -> list[int]:
    """The coordinates in the order in which they keep their values: those that give way come last."""
    ranks: dict[str, int] = {}
    for joint in parts.joints:
        last = 8 if joint.geared else 7 if joint.spins else 6 if joint.follows else 1
        for k, name in enumerate(joint.names):
            free = {"planar": (5, 4, 2), "free": (5, 4, 3, 2, 0, 3)}.get(joint.kind)
            ranks[name] = free[k] if free else last
    names = parts.coordinate_names
    return sorted(range(len(names)), key=lambda k: ranks[names[k]])


def _assemble(drawing: Drawing, given: Mapping[int, float], near: Any = None) -> Element:
    """The configuration with these coordinates that meets the holonomic constraints.

    From the drawing only as many coordinates move as must; from coordinates `near` all do, by steps of least length.
    """
    parts = drawing.parts
    q = np.zeros(len(parts.coordinate_names)) if near is None else np.array(near)
    q[list(given)] = list(given.values())
    loose = [] if near is None else list(range(len(q)))
    for step in range(60):
        g, phi, slope = _at_coordinates(drawing, q)
        if not phi.size or np.abs(phi).max() < 1e-13 * (1.0 + np.abs(q).max()):
            return g
        if not step and near is None:
            loose = _first_rows(slope.T, [k for k in reversed(drawing.priority) if k not in given])
        change = np.linalg.lstsq(slope[:, loose], -phi, rcond=RANK)[0] if loose else np.zeros(0)
        if not np.isfinite(change).all() or np.abs(change).max(initial=0.0) < 1e-15 * (1.0 + np.abs(q).max()):
            break
        q[loose] += change / max(1.0, np.abs(change).max())
    if np.abs(phi).max() < 1e-10 * (1.0 + np.abs(q).max()):
        return g
    held_by = [*_holonomic_names(parts), *(f"the gear of {parts.joints[k].name}" for k in parts.gears)]
    names = [name for name, off in zip(held_by, ~(np.abs(phi) < 1e-10), strict=True) if off]
    held = ", ".join(f"{parts.coordinate_names[k]} = {value:g}" for k, value in given.items())
    raise InvalidInput(
        f"{parts.name} cannot be assembled{f' with {held}' if held else ''}: no configuration was found in which the "
        f"constraints of {' and '.join(names)} hold (off by {np.abs(phi).max():.3g}). Wheels must be able to touch the "
        "ground and loops to close: check radii, lengths and the coordinates given"
    )


class Start(NamedTuple):
    """A configuration, and the rows of constraints and rates there: `inverse` is that of those that are `chosen`."""

    g: Element
    constraints: int
    rows: Reals
    chosen: list[int]
    inverse: Reals


def _find_start(
    drawing: Drawing, loads: Sequence[str], positions: Mapping[int, float], wanted: list[int], last: Start | None
) -> Start:
    """The start with these coordinates, where rates that are not wanted are 0 if they can be; `last` is another one."""
    g = _assemble(drawing, positions)
    rows, rates = _rates_at(drawing, g)
    everything, count = np.concatenate([rows, rates]), len(rows)
    order = [*range(count), *(count + k for k in wanted), *(count + k for k in drawing.priority if k not in wanted)]
    alike = last is not None and _are_first(everything, order, last.chosen)
    chosen = last.chosen if last is not None and alike else _first_rows(everything, order)
    if lost := [name for k, name in enumerate(loads) if k not in chosen]:
        raise InvalidInput(
            f"in this configuration the constraints of {' and '.join(lost)} follow from the others, but nearby "
            "they do not, so the motion is not determined. Remove a constraint (let one of two wheels on an axle "
            "slip sideways: omni=0.0), give the parts more freedom, or start from another configuration"
        )
    return Start(g, count, everything, chosen, np.linalg.inv(everything[chosen]))


def _velocity(system: MechanismSystem, start: Start, given: Mapping[int, float]) -> Reals:
    """The velocity in D with these rates; others are 0 where they can be."""
    values = np.zeros(len(start.rows))
    for k, value in given.items():
        values[start.constraints + k] = value
    xi: Reals = start.inverse @ values[start.chosen]
    names = system.rate_names
    for k, value in given.items():
        found = float(start.rows[start.constraints + k] @ xi)
        if abs(found - value) > 1e-9 * (1.0 + abs(value)):
            others = ", ".join(f"{names[j]} = {given[j]:g}" for j in given if j != k)
            raise InvalidInput(
                f"{names[k]} = {value:g} is not possible{f' with {others}' if others else ''}: the constraints make "
                f"it {found:.9g} there. Leave it out, or change the others"
            )
    return xi


def _are_first(rows: Any, order: list[int], guess: list[int]) -> bool:
    """Whether so many of these rows as there are columns are those that `_first_rows` finds: a third of its time."""
    if len(guess) < rows.shape[1] or not set(guess) <= set(order):
        return False
    places = np.array([order.index(k) for k in guess])
    if np.any(np.diff(places) < 0):
        return False
    sizes = np.linalg.norm(rows[order], axis=1)
    along = (rows[order] / np.where(sizes > 0.0, sizes, 1.0)[:, None]) @ np.linalg.qr(rows[guess].T)[0]
    before = np.searchsorted(places, np.arange(len(order)))
    far = np.sum(np.where(np.arange(len(guess)) >= before[:, None], along, 0.0) ** 2, axis=1) > RANK**2
    return bool(far[places].all()) and int(far.sum()) == len(guess)


def _first_rows(rows: Any, order: list[int]) -> list[int]:
    """The first of these rows that are linearly independent, at most as many as there are columns."""
    places = np.array(order, int)[np.linalg.norm(rows[order], axis=1) > 0.0]
    left = rows[places] / np.linalg.norm(rows[places], axis=1)[:, None]  # less their parts along those chosen
    basis, chosen, first = np.zeros((0, rows.shape[1])), list[int](), 0
    while len(basis) < rows.shape[1]:
        far = np.flatnonzero(np.einsum("ij,ij->i", left[first:], left[first:]) > RANK**2)
        if not far.size:
            break
        first += int(far[0])
        unit = left[first] - basis.T @ (basis @ left[first])
        unit /= np.linalg.norm(unit)
        chosen.append(int(places[first]))
        basis = np.concatenate([basis, [unit]])
        left -= np.outer(left @ unit, unit)
    return chosen


@jax.jit
def _all_coordinates(parts: Parts, p: Any, g: Element) -> Array:
    return jax.vmap(partial(_coordinates, parts, p))(g)


ROLLING_NAMES = {
    "wheel": ("drive force", "side force"),
    "omni": ("drive force",),
    "ball": ("force x", "force y"),
    "ellipsoid": ("force x", "force y"),
    "blade": ("side force",),
    "point": (),
}
COORDINATE_UNITS = {
    "free": ("m", "m", "m", "rad", "rad", "rad"),
    "planar": ("m", "m", "rad"),
    "ball": ("rad", "rad", "rad"),
    "hinge": ("rad",),
    "slider": ("m",),
    "fixed": (),
}
LOOP_NAMES = {
    "hinge": ("force x", "force y", "force z", "torque across", "torque upward"),
    "ball": ("force x", "force y", "force z"),
    "fixed": ("force x", "force y", "force z", "torque x", "torque y", "torque z"),
}


def _load_names(parts: Parts) -> tuple[str, ...]:
    rolling = [f"{each.name} {ROLLING_NAMES[each.kind][row]}" for each in parts.contacts for row in each.rows]
    names = (*rolling, *_holonomic_names(parts))
    return tuple(f"{name} (shared)" if name in parts.shared else name for name in names)


def _holonomic_names(parts: Parts) -> tuple[str, ...]:
    heights = [f"{each.name} load" for each in parts.contacts if each.height]
    return (*heights, *(f"{loop.name} {LOOP_NAMES[loop.kind][k]}" for loop in parts.loops for k in loop.keeps))


@dataclass(frozen=True)
class JointSpace(Euclidean):
    """R^n, the configurations of a mechanism of hinges and sliders; its velocities have names and units."""

    labels: tuple[AlgebraAxis, ...] = ()

    def axes(self) -> list[AlgebraAxis]:
        return list(self.labels)


@dataclass
class _Body:
    mass: float
    centre: Reals
    inertia: Reals
    shape: str = ""  # box, cylinder, ball, inertia


@dataclass
class _Link:
    """A joint as it was given, with numbers."""

    name: str
    kind: str
    parent: str
    child: str
    numbers: dict[str, Any]
    names: tuple[str, ...] = ()
    follows: bool = False


@dataclass
class _Use:
    """A contact, a spring or an input as it was given, with numbers."""

    name: str
    kind: str
    first: str
    second: str
    numbers: dict[str, Any]


@dataclass
class _Gear:
    """What a joint is geared to, as it was given: ratios by joints, or a function with its numbers."""

    to: tuple[str, ...]
    numbers: dict[str, float]
    by: Callable[..., Any] | None = None


@known_arguments("a drawing decides by its numbers what is redundant. Vary system.parameters instead")
class Mechanism:
    """A vehicle, robot or toy from its drawing: bodies, joints, wheels, springs, motors in SI units; no equations.

    `system()` makes the mechanical system:

        robot = Mechanism("robot")
        robot.body("base", mass=9.0, centre=(0.05, 0, 0.15), box=(0.4, 0.3, 0.2))
        robot.planar("base")
        robot.wheel("left", "base", at=(0, 0.2, 0.1), mass=0.6, motor=True)
        robot.wheel("right", "base", at=(0, -0.2, 0.1), mass=0.6, motor=True)
        robot.castor("castor", "base", at=(0.3, 0), trail=0.04, radius=0.05)
        system = robot.system()
        start = system.state(speed=1.0)

    Points and axes are those of the reference configuration, in the coordinates of the ground: x forward, y to the
    left, z up. `gravity` is a number (downwards) or a vector; `slope` tilts the ground so that x points downhill by
    this angle; `ground` is None for the plane z = 0, or a function f(x, y) of JAX for the surface z = f(x, y).
    `any_size=True` accepts masses and lengths that look as if they were in other units.
    """

    def __init__(
        self,
        name: str = "mechanism",
        *,
        gravity: Any = 9.81,
        slope: float = 0.0,
        ground: Callable[..., Any] | None = None,
        any_size: bool = False,
    ) -> None:
        require_function("ground", ground, "(x, y)")
        angle = float(finite("slope", slope))
        pull = finite_reals("gravity", gravity)
        pull = [0.0, 0.0, -float(pull)] if np.ndim(pull) == 0 else pull
        c, s = math.cos(angle), math.sin(angle)
        self.name, self.ground, self.any_size = name, ground, any_size
        self.gravity = np.array([[c, 0.0, -s], [0.0, 1.0, 0.0], [s, 0.0, c]]) @ np.asarray(vector(pull, 3, "gravity"))
        self._bodies: dict[str, _Body] = {}
        self._links: list[_Link] = []
        self._contacts: list[_Use] = []
        self._springs: list[_Use] = []
        self._inputs: list[tuple[_Use, Input]] = []
        self._gears: dict[str, _Gear] = {}
        self.unread: tuple[str, ...] = ()  # what a file says and the mechanism does not do, a sentence each

    def __repr__(self) -> str:
        counts = {"bodies": len(self._bodies), "joints": len(self._links), "contacts": len(self._contacts)}
        counts |= ({"gears": len(self._gears)} if self._gears else {}) | {"inputs": len(self._inputs)}
        return f"<Mechanism {self.name}: {', '.join(f'{count} {word}' for word, count in counts.items())}>"

    # -- bodies --------------------------------------------------------------------------------------------------------
    def body(
        self,
        name: str,
        *,
        mass: float,
        centre: Any = (0.0, 0.0, 0.0),
        inertia: Any = None,
        box: Any = None,
        cylinder: Any = None,
        ball: Any = None,
        axis: Any = "z",
    ) -> str:
        """Add a body with its mass (kg), its centre of mass (m), and its inertia about that centre (kg m^2).

        `inertia` is three moments about the axes of the drawing, or a symmetric matrix; 0 is a point. Instead of it a
        homogeneous shape may stand: `box=(a, b, c)` with edges along x, y, z, `cylinder=(radius, length)` about `axis`,
        `ball=radius`.
        """
        self._new("body", name, (*self._bodies, GROUND))
        weight, middle = float(positive(f"mass of '{name}'", mass)), self._point(f"centre of '{name}'", centre)
        shapes = {"inertia": inertia, "box": box, "cylinder": cylinder, "ball": ball}
        given = [word for word, value in shapes.items() if value is not None]
        if len(given) != 1:
            said = f"has {' and '.join(given)}" if given else "has no inertia"
            raise InvalidInput(
                f"body '{name}' {said}; allowed: one of inertia, box, cylinder, ball (inertia=0: a point)"
            )
        self._require_size(f"the mass of '{name}'", weight, LIGHTEST, HEAVIEST, "kg")
        moments = _moments(name, weight, given[0], shapes[given[0]], _axis_of(f"axis of '{name}'", axis))
        self._bodies[name] = _Body(weight, middle, moments, given[0])
        return name

    def carrier(self, name: str) -> str:
        """Add a frame without mass that joints hang on, such as the yoke of a coin, which leans but does not spin."""
        self._new("body", name, (*self._bodies, GROUND))
        self._bodies[name] = _Body(0.0, np.zeros(3), np.zeros((3, 3)))
        return name

    # -- joints --------------------------------------------------------------------------------------------------------
    def free(self, body: str, *, at: Any = (0.0, 0.0, 0.0), **names: str) -> None:
        """Let a body move freely in space, with coordinates x, y, z, yaw, roll, pitch; `roll="lean"` renames one.

        x, y, z say how far its point `at` has moved from the drawing; R = Rz(yaw) Rx(roll) Ry(pitch). Of a ball or a
        coin take the centre: the point on the ground does not move when it rolls.
        """
        self._base("free", body, ("x", "y", "z", *HEADING), at, names)

    def planar(self, body: str, *, at: Any = (0.0, 0.0, 0.0), **names: str) -> None:
        """Let a body slide and turn on the plane z = 0, with coordinates x, y, yaw; `yaw="heading"` renames one."""
        self._base("planar", body, ("x", "y", "yaw"), at, names)

    def hinge(
        self,
        name: str,
        parent: str,
        child: str,
        *,
        axis: Any,
        at: Any = None,
        stiffness: float | None = None,
        damping: float | None = None,
        rest: float | None = None,
        follows: bool = False,
    ) -> str:
        """Join a body to another (or to "ground") so that it turns about `axis` through `at` (the child's centre).

        `stiffness` (N m/rad) with the angle of `rest` (rad), and `damping` (N m s/rad), act in the joint.
        `follows=True` is for swivels of castors: `state(...)` chooses their rates first to satisfy the constraints.
        """
        self._join(name, "hinge", parent, child, axis, at, stiffness, damping, rest)
        self._links[-1].follows = follows
        return name

    def slider(
        self,
        name: str,
        parent: str,
        child: str,
        *,
        axis: Any,
        stiffness: float | None = None,
        damping: float | None = None,
        rest: float | None = None,
    ) -> str:
        """Join a body to another so that it slides along `axis`; `stiffness` (N/m), `damping` (N s/m), `rest` (m)."""
        return self._join(name, "slider", parent, child, axis, None, stiffness, damping, rest)

    def ball(self, name: str, parent: str, child: str, *, at: Any) -> str:
        """Join a body to another so that it turns every way about the point `at`."""
        return self._join(name, "ball", parent, child, None, at)

    def fix(self, parent: str, child: str, *, name: str = "") -> str:
        """Join a body to another so that both move as one."""
        return self._join(name or f"{parent} with {child}", "fixed", parent, child, None, (0.0, 0.0, 0.0))

    def gear(self, joint: str, to: Any, *, ratio: Any = 1.0) -> str:
        """Gear a hinge or slider to another: its coordinate is `ratio` times the other's, no degree of freedom.

        Two trucks that steer against each other have the ratio -1; a rotor that turns n times as fast as a joint has n.
        With names and ratios of several joints it is their sum: the shaft of a differential that drives two wheels has
        `to=("left", "right"), ratio=(n/2, n/2)`.
        """
        names = (to,) if isinstance(to, str) else tuple(to)
        ratios = [ratio] * len(names) if np.ndim(ratio) == 0 else list(ratio)
        if len(ratios) != len(names) or len(set(names)) != len(names):
            raise InvalidInput(
                f"'{joint}' is geared to {', '.join(map(str, names)) or 'nothing'} with {len(ratios)} ratios; allowed: "
                "one joint and its ratio, or several different ones with a ratio each"
            )
        what = f"ratio of '{joint}'"
        return self._couple(joint, names, {k: float(not_zero(what, v)) for k, v in zip(names, ratios, strict=True)})

    def couple(self, joint: str, to: Any, by: Callable[..., Any], **numbers: float) -> str:
        """Let a hinge or slider follow others by a function of JAX: its coordinate is by(q, ..., **numbers).

        The `numbers` become parameters of the system. Use it for cams and for Ackermann's steering.
        """
        require_function(f"by of '{joint}'", by, "coordinates", optional=False)
        names = (to,) if isinstance(to, str) else tuple(to)
        given = {k: float(finite(f"{k} of '{joint}'", v)) for k, v in numbers.items()}
        drawn = np.asarray(evaluate(partial(_evaluate_coupling, joint, by), given, (0.0,) * len(names)))
        if drawn.shape or not np.isfinite(drawn):
            raise InvalidInput(f"the coupling of '{joint}' gave {drawn} in the drawing; allowed: one finite number")
        return self._couple(joint, names, given, by)

    # -- contacts ------------------------------------------------------------------------------------------------------
    def roll(
        self, body: str, *, radius: float, name: str = "", centre: Any = None, axis: Any = None, tyre: float = 0.0,
        on: str = GROUND, plane: float = 0.0,
    ) -> str:  # fmt: skip
        """Let a body roll without slipping on its wheel of this radius about `axis` (that of its hinge) at `centre`.

        `tyre` is the radius of the tyre's section: 0 is a thin disc, otherwise the wheel is a torus. `on` may be
        another body, with the plane z = `plane` of the drawing on it.
        """
        return self._touch("wheel", body, name, centre, on, plane, axis=axis, radius=radius, tyre=tyre)

    def roll_ball(
        self, body: str, *, radius: float, name: str = "", centre: Any = None, on: str = GROUND, plane: float = 0.0
    ) -> str:
        """Let a body roll without slipping as a ball of this radius about `centre` (its centre of mass)."""
        return self._touch("ball", body, name, centre, on, plane, radius=radius)

    def roll_ellipsoid(self, body: str, *, axes: Any, name: str = "", centre: Any = None) -> str:
        """Let a body roll without slipping as an ellipsoid with these half axes along x, y, z about `centre`."""
        given = np.asarray(vector(axes, 3, f"axes of '{name or body}'"))
        if not (given > 0).all():
            raise InvalidInput(f"axes of '{name or body}' are {given.tolist()}; allowed: positive lengths")
        return self._touch("ellipsoid", body, name, centre, GROUND, 0.0, axes=_entries(given))

    def roll_omni(
        self, body: str, *, radius: float, angle: float = 0.0, name: str = "", centre: Any = None, axis: Any = None
    ) -> str:
        """Let a body roll on an omni wheel: it holds the ground in one direction only, and slips across it.

        That direction is the way ahead, turned to the left by `angle` (rad). 0: rollers across the wheel, or a wheel
        that may slip sideways. A Mecanum platform has -pi/4 front left and rear right, pi/4 front right and rear left.
        """
        return self._touch("omni", body, name, centre, GROUND, 0.0, axis=axis, radius=radius, angle=angle)

    def skate(
        self, body: str, *, at: Any, along: Any = "x", name: str = "", on: str = GROUND, plane: float = 0.0
    ) -> str:
        """Put a blade under a body: the point `at` stays on the ground and moves only along the blade."""
        return self._touch("blade", body, name, at, on, plane, along=along)

    def support(self, body: str, *, at: Any, radius: float | None = None, name: str = "") -> str:
        """Put the point `at` of a body on the ground, on which it slides without friction; with a radius: a ball."""
        numbers = {} if radius is None else {"radius": radius}
        return self._touch("point", body, name, at, GROUND, 0.0, **numbers)

    def wheel(
        self,
        name: str,
        parent: str,
        *,
        at: Any,
        mass: float,
        radius: float | None = None,
        width: float = 0.0,
        inertia: Any = None,
        axis: Any = "y",
        tyre: float = 0.0,
        omni: float | None = None,
        motor: Any = False,
        damping: float | None = None,
    ) -> str:
        """Add a wheel on an axle: a body, its hinge on `parent` through `at`, and its rolling on the ground.

        `radius` is the height of `at` where it is left out. `inertia` is (across, along) the axle; without it the wheel
        is a disc of this `width`. `omni` is the angle (rad) of an omni wheel, as in `roll_omni`. `motor` adds the input
        "NAME torque": True, or its bounds (low, high) in N m; `damping` (N m s/rad) is that of the axle.
        """
        is_pair = (bounds := read_reals(motor)) is not None and bounds.shape == (2,)
        if not is_pair and not isinstance(motor, bool | np.bool_):
            raise InvalidInput(f"motor of '{name}' is {show(motor)}; allowed: True, False, or (low, high) in N m")
        middle, along = self._point(f"at of '{name}'", at), _axis_of(f"axis of '{name}'", axis)
        meant = ", the height of at," if radius is None else ""
        reach = float(positive(f"radius of '{name}'{meant}", float(middle[2]) if radius is None else radius))
        if inertia is None:
            self.body(name, mass=mass, centre=middle, cylinder=(reach, width), axis=along)
        else:
            across, own = np.asarray(vector(inertia, 2, f"inertia of '{name}'"))
            moments = across * np.eye(3) + (own - across) * np.outer(along, along)
            self.body(name, mass=mass, centre=middle, inertia=moments)
        self.hinge(name, parent, name, axis=along, damping=damping)
        if omni is None:
            self.roll(name, radius=reach, tyre=tyre)
        else:
            self.roll_omni(name, radius=reach, angle=omni)
        if is_pair:
            self.motor(name, low=float(bounds[0]), high=float(bounds[1]))
        elif motor:
            self.motor(name)
        return name

    def castor(
        self, name: str, parent: str, *, at: Any, trail: float, radius: float, mass: float = 0.2, fork: float = 0.1
    ) -> str:
        """Add a castor: a fork of mass `fork` that swivels about the vertical through `at`, and its wheel behind.

        The axle of the wheel of this mass and radius is `trail` behind the swivel.
        """
        x, y = np.asarray(vector(np.atleast_1d(finite_reals(f"at of '{name}'", at))[:2], 2, f"at of '{name}'"))
        offset, reach = float(finite(f"trail of '{name}'", trail)), float(positive(f"radius of '{name}'", radius))
        size = max(abs(offset), reach)
        self.body(f"{name} fork", mass=fork, centre=(x - offset / 2, y, 1.5 * reach), box=(size, size / 2, reach))
        self.hinge(f"{name} swivel", parent, f"{name} fork", at=(x, y, 0.0), axis="z", follows=True)
        return self.wheel(f"{name} wheel", f"{name} fork", at=(x - offset, y, reach), mass=mass, width=reach / 3)

    # -- forces and inputs ---------------------------------------------------------------------------------------------
    def spring(
        self,
        name: str,
        first: str,
        start: Any,
        second: str,
        end: Any,
        *,
        stiffness: float,
        length: float | None = None,
        damping: float | None = None,
    ) -> str:
        """Add a spring (N/m) between the point `start` of a body and `end` of another, of this free length (m).

        Without a length it is the distance in the drawing; a spring of length 0 pulls with stiffness times distance.
        `damping` (N s/m) makes it a spring with a damper, which acts along the line between the two points.
        """
        self._new("spring", name, [each.name for each in self._springs])
        ends = self._point(f"start of '{name}'", start), self._point(f"end of '{name}'", end)
        free = float(np.linalg.norm(ends[0] - ends[1]) if length is None else finite("length", length))
        numbers: dict[str, Any] = {"start": _entries(ends[0]), "end": _entries(ends[1])}
        numbers |= {"stiffness": float(not_negative("stiffness", stiffness))} | ({"length": free} if free else {})
        if damping is not None:
            if not np.linalg.norm(ends[0] - ends[1]):
                raise InvalidInput(f"the ends of '{name}' are at one point, where a damper has no direction: move one")
            numbers["damping"] = float(not_negative("damping", damping))
        self._springs.append(_Use(name, "spring", self._known(first), self._known(second), numbers))
        return name

    def motor(self, joint: str, *, name: str = "", low: float = -math.inf, high: float = math.inf) -> str:
        """Make the torque (N m) of a hinge, or the force (N) of a slider, an input with these bounds."""
        word, unit = ("torque", "N m") if self._movable(joint).kind == "hinge" else ("force", "N")
        return self._input(_Use(joint, "motor", joint, GROUND, {}), Input(name or f"{joint} {word}", unit, low, high))

    def thrust(
        self, name: str, body: str, *, at: Any, along: Any, low: float = -math.inf, high: float = math.inf
    ) -> str:
        """Add an input: a force (N) on the point `at` of a body in a direction that turns with it."""
        numbers = {"at": _entries(self._point("at", at)), "along": _axis_entries(_axis_of("along", along))}
        return self._input(_Use(name, "thrust", self._moved(body), GROUND, numbers), Input(name, "N", low, high))

    def torque(
        self, name: str, body: str, *, axis: Any, against: str = GROUND, low: float = -math.inf, high: float = math.inf
    ) -> str:
        """Add an input: a torque (N m) on a body about an axis that turns with it; it acts back on `against`."""
        numbers = {"along": _axis_entries(_axis_of("axis", axis))}
        use = _Use(name, "torque", self._moved(body), self._known(against), numbers)
        return self._input(use, Input(name, "N m", low, high))

    # -- the system ----------------------------------------------------------------------------------------------------
    def system(self) -> MechanismSystem:
        """The system (Q, L, D) of the mechanism, on the product of SE(3), SE(2), SO(3) and R^k of its joints.

        Heights that cannot change are no coordinates, and a constraint that follows from others is left out. The
        others then carry its load too: their loads are called "shared".
        """
        parts, numbers = self._lay_out()
        parts = _without_redundant(parts, numbers)
        made = self._made(parts, numbers)
        names = [*made.coordinate_names, *made.rate_names, *made.load_names, *(each.name for each in made.inputs or ())]
        plain = [name.replace(" ", "_") for name in names]
        if twice := [name for name, same in zip(names, plain, strict=True) if plain.count(same) > 1]:
            raise InvalidInput(f"two quantities of {self.name} are called '{twice[0]}': rename a joint or an input")
        return made

    def _couple(
        self, joint: str, to: tuple[str, ...], numbers: dict[str, float], by: Callable[..., Any] | None = None
    ) -> str:
        for name in (joint, *to):
            self._movable(name)
        if joint in self._gears:
            raise InvalidInput(f"'{joint}' is geared to {', '.join(self._gears[joint].to)} already: say it once")
        if not to:
            raise InvalidInput(f"'{joint}' is geared to nothing: name the joints that move it")
        behind = [*to]
        while behind:
            name = behind.pop()
            if name == joint:
                raise InvalidInput(f"'{joint}' cannot be geared to {', '.join(to)}: then it would move itself")
            behind += self._gears[name].to if name in self._gears else ()
        self._gears[joint] = _Gear(to, numbers, by)
        return joint

    def _movable(self, joint: str) -> _Link:
        """The hinge or slider of this name."""
        links = {link.name: link for link in self._links if link.kind in ("hinge", "slider")}
        if joint not in links:
            raise UnknownName("hinge or slider", joint, links)
        return links[joint]

    def _made(self, parts: Parts, numbers: dict[str, Any]) -> MechanismSystem:
        """The system of parts with their numbers."""
        rows = any(contact.rows for contact in parts.contacts)
        closing = any(contact.height for contact in parts.contacts) or any(loop.keeps for loop in parts.loops)
        acting = self._inputs or any(
            "damping" in own for kind in ("joints", "springs") for own in numbers[kind].values()
        )
        return MechanismSystem(
            parts.group,
            Energy(parts),
            Rolling(parts) if rows else None,
            parameters=numbers,
            force=Acting(parts) if acting else None,
            holonomic=Closing(parts) if closing else None,
            inputs=tuple(each for _, each in self._inputs),
        )

    def _lay_out(self) -> tuple[Parts, dict[str, Any]]:
        """The parts with their places, all constraints among them, and their numbers."""
        tree, loops = self._tree()
        bodies = list(self._bodies)
        spinning = {name for name, link in tree.items() if self._spins(link, loops)}
        factors: list[Group] = []
        labels: list[AlgebraAxis] = []
        flat: list[AlgebraAxis] = []
        joints: dict[str, Joint] = {}
        bases = sum(link.kind in ("free", "planar") for link in tree.values())
        for name in bodies:
            link = tree[name]
            parent = bodies.index(link.parent) if link.parent != GROUND else -1
            slot = -1
            gear = self._gears.get(link.name, _Gear((), {}))
            geared = tuple(bodies.index(self._movable(other).child) for other in gear.to)
            if link.kind in ("hinge", "slider") and not geared:
                slot = len(flat)
                units = ("rad s-1", "kg m2 s-1", "N m") if link.kind == "hinge" else ("m s-1", "kg m s-1", "N")
                flat.append(AlgebraAxis(f"{link.name} rate", *units))
            elif link.kind != "fixed" and not geared:
                slot = len(factors)
                factor: Group = {"free": SE3(), "planar": SE2(), "ball": SO3()}[link.kind]
                head = f"{link.name} " if bases > 1 or link.kind == "ball" else ""
                labels += [axis._replace(name=f"{head}{axis.name}") for axis in factor.axes()]
                factors.append(factor)
            joints[name] = Joint(
                link.name, link.kind, parent, slot, link.names, name in spinning, link.follows, geared, gear.by
            )
        if flat:
            factors.append(JointSpace(len(flat), tuple(flat)))
        if not factors:
            raise InvalidInput(f"{self.name} cannot move: all its bodies are fixed to the ground")
        group = Space(tuple(factors), (*labels, *flat)) if len(factors) > 1 else factors[0]
        place = {GROUND: -1} | {name: k for k, name in enumerate(bodies)}
        contacts = tuple(
            Contact(use.name, use.kind, place[use.first], place[use.second], rows, True)
            for use in self._contacts
            for rows in [tuple(range(len(ROLLING_NAMES[use.kind])))]
        )
        closed = tuple(
            ClosedLoop(
                link.name, link.kind, place[link.parent], place[link.child], tuple(range(len(LOOP_NAMES[link.kind])))
            )
            for link in loops
        )
        acting = [
            ForceElement(link.name, "joint", place[link.child])
            for link in tree.values()
            if {"stiffness", "damping"} & set(link.numbers)
        ]
        acting += [ForceElement(use.name, "spring", place[use.first], place[use.second]) for use in self._springs]
        for use, _ in self._inputs:
            first = place[self._movable(use.first).child if use.kind == "motor" else use.first]
            acting.append(ForceElement(use.name, use.kind, first, place[use.second]))
        parts = Parts(
            self.name, tuple(bodies), tuple(joints[name] for name in bodies), closed, contacts, tuple(acting), group,
            self.ground, tuple(body.shape for body in self._bodies.values()),
        )  # fmt: skip
        return parts, self._numbers(tree, loops, spinning)

    def _numbers(self, tree: Mapping[str, _Link], loops: list[_Link], spinning: set[str]) -> dict[str, Any]:
        """The parameters of the system: the numbers of the drawing that are not 0."""
        bodies: dict[str, Any] = {}
        for name, body in self._bodies.items():
            if not body.mass:
                continue
            if name not in spinning:
                moments = dict(zip(MOMENTS, body.inertia[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]], strict=True))
                inertia = {entry: float(value) for entry, value in moments.items() if value}
                bodies[name] = {"mass": body.mass, "centre": _entries(body.centre), "inertia": inertia}
                continue
            axis, at = tree[name].numbers["axis"], tree[name].numbers["at"]
            along = float(axis @ body.inertia @ axis)
            inertia = {"across": (float(np.trace(body.inertia)) - along) / 2, "along": along}
            bodies[name] = {"mass": body.mass, "inertia": inertia} | _offset(body.centre, at, axis)
        links = {link.name: _joint_numbers(link) for link in [*tree.values(), *loops] if link.numbers}
        contacts: dict[str, Any] = {}
        for use in self._contacts:
            own = dict(use.numbers)
            centre, axis = own.pop("centre"), own.pop("axis", None)
            if use.first in spinning:
                link = tree[use.first].numbers
                own |= _offset(centre, link["at"], link["axis"])
            else:
                own |= {"centre": _entries(centre)} | ({} if axis is None else {"axis": _axis_entries(axis)})
            contacts[use.name] = own
        return {
            "bodies": bodies,
            "joints": links,
            "contacts": contacts,
            "gears": {name: gear.numbers for name, gear in self._gears.items()},
            "springs": {use.name: use.numbers for use in self._springs},
            "inputs": {use.name: use.numbers for use, _ in self._inputs if use.numbers},
            "gravity": _entries(self.gravity),
        }

    def _tree(self) -> tuple[dict[str, _Link], list[_Link]]:
        """The joint by which each body hangs, and the joints that close loops."""
        if not self._bodies:
            raise InvalidInput(f"{self.name} has no bodies: add one with body(name, mass=..., ...)")
        tree: dict[str, _Link] = {}
        loops = []
        for link in self._links:
            if link.child in tree:
                if link.kind not in LOOP_NAMES:
                    raise InvalidInput(
                        f"'{link.child}' hangs on '{tree[link.child].parent}' by {tree[link.child].kind} "
                        f"'{tree[link.child].name}' already, and {link.kind} '{link.name}' cannot close a loop; "
                        f"allowed for that: {', '.join(LOOP_NAMES)}"
                    )
                used = [*(use.first for use, _ in self._inputs), *self._gears]
                used += [name for gear in self._gears.values() for name in gear.to]
                if {"stiffness", "damping"} & set(link.numbers) or link.name in used:
                    raise InvalidInput(
                        f"{link.kind} '{link.name}' closes a loop, because '{link.child}' hangs on "
                        f"'{tree[link.child].parent}' already: it cannot have a motor, a gear, a spring or a damper. "
                        f"Join '{link.child}' by it first, and let another joint close the loop"
                    )
                loops.append(link)
            else:
                tree[link.child] = link
        for name in self._bodies:
            seen, at = [name], name
            while at != GROUND:
                if at not in tree:
                    more = f" (on which '{name}' hangs)" if at != name else ""
                    raise InvalidInput(
                        f"body '{at}'{more} is not connected to anything: join it with hinge, slider, ball or fix, or "
                        f"let it move with free('{at}') or planar('{at}')"
                    )
                at = tree[at].parent
                if at in seen:
                    raise InvalidInput(f"bodies {', '.join(seen)} hang on each other, and none on the ground")
                seen.append(at)
        return tree, loops

    def _spins(self, link: _Link, loops: list[_Link]) -> bool:
        """Whether the body of a hinge is a solid of revolution about it, with all that hangs on it and touches it."""
        if link.kind != "hinge" or link.parent == GROUND or not self._bodies[link.child].mass:
            return False
        name, body, axis = link.child, self._bodies[link.child], link.numbers["axis"]
        used = [other.parent for other in self._links] + [end for each in loops for end in (each.parent, each.child)]
        used += [end for use in self._springs for end in (use.first, use.second)]
        used += [end for use, _ in self._inputs if use.kind != "motor" for end in (use.first, use.second)]
        used += [use.second for use in self._contacts]
        used += [use.first for use in self._contacts if use.kind not in ("wheel", "omni")]
        if name in used:
            return False
        size = float(np.trace(body.inertia)) or 1.0
        turned = _about(axis)
        round_ = np.abs(turned @ body.inertia @ turned.T - body.inertia).max() <= 1e-12 * size
        points = [body.centre, *(use.numbers["centre"] for use in self._contacts if use.first == name)]
        axes = [use.numbers["axis"] for use in self._contacts if use.first == name]
        centred = all(np.linalg.norm(np.cross(point - link.numbers["at"], axis)) <= 1e-12 for point in points)
        return bool(round_ and centred and all(np.linalg.norm(np.cross(each, axis)) <= 1e-12 for each in axes))

    # -- what is given -------------------------------------------------------------------------------------------------
    def _new(self, kind: str, name: Any, known: Any) -> None:
        if not isinstance(name, str) or not name.strip():
            raise InvalidInput(f"the name of a {kind} is {name!r}; allowed: a text")
        if name in known:
            raise InvalidInput(f"the name '{name}' is taken by another {kind}: choose another one")

    def _known(self, body: str) -> str:
        if body != GROUND and body not in self._bodies:
            raise UnknownName("body", body, (*self._bodies, GROUND))
        return body

    def _moved(self, body: str) -> str:
        if self._known(body) == GROUND:
            raise InvalidInput("nothing moves the ground: name the body on which the input acts")
        return body

    def _point(self, what: str, given: Any) -> Reals:
        point = np.asarray(vector(given, 3, what))
        self._require_size(what, float(np.abs(point).max()), 0.0, LONGEST, "m")
        return point

    def _require_size(self, what: str, value: float, low: float, high: float, unit: str) -> None:
        if not (self.any_size or low <= value <= high):
            raise InvalidInput(
                f"{what} is {value:g} {unit}, which looks like another unit; give kg, m and kg m^2, or take it as "
                "it is with Mechanism(..., any_size=True)"
            )

    def _base(self, kind: str, body: str, names: tuple[str, ...], at: Any, renamed: Mapping[str, str]) -> None:
        for key in renamed:
            if key not in names:
                raise UnknownName(f"coordinate of a {kind} body", key, names)
        many = [link for link in self._links if link.kind in ("free", "planar")]
        if body in [link.child for link in many]:
            raise InvalidInput(f"'{body}' is free or planar already: say once how it moves")
        head = f"{body} " if many else ""
        chosen = tuple(renamed.get(name, f"{head}{name}") for name in names)
        numbers = {"at": self._point(f"at of '{body}'", at)}
        self._link(_Link(body, kind, GROUND, self._known(body), numbers, chosen))

    def _join(
        self, name: str, kind: str, parent: str, child: str, axis: Any, at: Any, stiffness: Any = None,
        damping: Any = None, rest: Any = None,
    ) -> str:  # fmt: skip
        self._known(parent)
        if self._known(child) == GROUND:
            raise InvalidInput(f"the ground cannot hang on '{parent}': swap parent and child of {kind} '{name}'")
        if parent == child:
            raise InvalidInput(f"{kind} '{name}' joins '{parent}' with itself")
        place = self._bodies[child].centre if at is None else self._point(f"at of '{name}'", at)
        numbers: dict[str, Any] = {"at": place}
        if axis is not None:
            numbers["axis"] = _axis_of(f"axis of '{name}'", axis)
        for word, value in (("stiffness", stiffness), ("damping", damping)):
            if value is not None:
                numbers[word] = float(not_negative(f"{word} of '{name}'", value))
        if rest is not None:
            if stiffness is None:
                raise InvalidInput(f"rest of '{name}' is the place at which its spring is free: give stiffness too")
            numbers["rest"] = float(finite(f"rest of '{name}'", rest))
        words = {"hinge": (name,), "slider": (name,), "ball": tuple(f"{name} {axis}" for axis in SPACE)}
        self._link(_Link(name, kind, parent, child, numbers if kind != "fixed" else {}, words.get(kind, ())))
        return name

    def _link(self, link: _Link) -> None:
        self._new("joint", link.name, [each.name for each in self._links])
        taken = [name for each in self._links for name in each.names]
        if twice := [name for name in link.names if [*taken, *link.names].count(name) > 1]:
            raise InvalidInput(f"there is a coordinate called '{twice[0]}' already: rename one")
        self._links.append(link)

    def _touch(
        self, kind: str, body: str, name: str, centre: Any, on: str, plane: float, *, axis: Any = None, **numbers: Any
    ) -> str:
        self._known(on)
        if self._known(body) in (GROUND, on):
            raise InvalidInput(f"'{body}' cannot touch itself; allowed: a body on the ground or on another body")
        label = name or body
        self._new("contact", label, [each.name for each in self._contacts])
        own = self._bodies[body]
        middle = own.centre if centre is None else self._point(f"centre of '{label}'", centre)
        given: dict[str, Any] = {"centre": middle}
        for word, value in numbers.items():
            if word == "along":
                given[word] = _axis_entries(_axis_of(f"along of '{label}'", value))
            elif word == "axes":
                given[word] = value
            elif word == "radius":
                given[word] = float(positive(f"radius of '{label}'", value))
                self._require_size(f"the radius of '{label}'", given[word], 0.0, LONGEST, "m")
            elif value:
                given[word] = float(finite(f"{word} of '{label}'", value))
        if given.get("tyre", 0.0) < 0 or given.get("tyre", 0.0) >= given.get("radius", math.inf):
            raise InvalidInput(f"tyre of '{label}' is {given['tyre']:g}; allowed: from 0 to less than the radius")
        if kind in ("wheel", "omni"):
            hinges = [link.numbers["axis"] for link in self._links if link.child == body and link.kind == "hinge"]
            if axis is None and not hinges:
                raise InvalidInput(f"'{body}' has no hinge about which its wheel could turn: give axis=...")
            given["axis"] = hinges[0] if axis is None else _axis_of(f"axis of '{label}'", axis)
            if abs(given["axis"][2]) > 1 - VANISHING:
                raise InvalidInput(
                    f"the axle of '{label}' is vertical in the drawing, so that its wheel lies flat: tilt it"
                )
        if on != GROUND:
            given["plane"] = {"z": float(finite("plane", plane))}
        self._contacts.append(_Use(label, kind, body, on, given))
        return label

    def _input(self, use: _Use, made: Input) -> str:
        self._new("input", made.name, [each.name for _, each in self._inputs])
        use.name = made.name
        self._inputs.append((use, made))
        return made.name


def _axis_of(what: str, given: Any) -> Reals:
    """A unit vector, given as one of any length or as "x", "-y", ..."""
    if isinstance(given, str):
        if given.lstrip("-") not in SPACE or len(given) > 2:
            raise InvalidInput(f"{what} is {given!r}; allowed: x, y, z, -x, -y, -z, or three numbers")
        return np.asarray(np.eye(3)[SPACE.index(given[-1])] * (-1.0 if given[0] == "-" else 1.0))
    direction = np.asarray(vector(given, 3, what))
    if not np.linalg.norm(direction):
        raise InvalidInput(f"{what} is 0; allowed: a direction")
    return np.asarray(direction / np.linalg.norm(direction))


def _entries(point: Any) -> Entries:
    return {name: float(value) for name, value in zip(SPACE, point, strict=True) if value}


def _axis_entries(axis: Any) -> Entries:
    entries = _entries(axis)
    if len(entries) > 1:
        return entries
    ((name, value),) = entries.items()
    return {f"-{name}" if value < 0 else name: None}


def point_of(entries: Entries) -> Reals:
    """A vector from its entries, as numbers."""
    return np.array([float(entries.get(name, 0.0)) for name in SPACE])


def direction_of(entries: Entries) -> Reals:
    """A unit vector from its entries, as numbers."""
    return _axis_of("axis", next(iter(entries)) if len(entries) == 1 else point_of(entries))


def _offset(point: Any, at: Any, axis: Any) -> dict[str, float]:
    """How far along its axis a point of a spinning body lies, where that is not 0."""
    along = float((point - at) @ axis)
    return {"offset": along} if abs(along) > 1e-15 else {}


def _about(axis: Any) -> Reals:
    """A rotation about an axis by an angle that no symmetry has."""
    c, s = math.cos(1.0), math.sin(1.0)
    return np.asarray(c * np.eye(3) + s * np.cross(axis, np.eye(3)).T + (1 - c) * np.outer(axis, axis))


def _joint_numbers(link: _Link) -> dict[str, Any]:
    numbers = dict(link.numbers)
    at, axis = numbers.pop("at"), numbers.pop("axis", None)
    if axis is None:
        return {"at": _entries(at)} | numbers
    across = np.cross(axis, np.eye(3)[int(np.argmin(np.abs(axis)))])
    across /= np.linalg.norm(across)
    frame = {"across": _axis_entries(across), "upward": _axis_entries(np.cross(axis, across))}
    return {"at": _entries(at), "axis": _axis_entries(axis)} | frame | numbers


def _moments(name: str, mass: float, kind: str, given: Any, axis: Any) -> Reals:
    """The inertia about the centre of mass, as a matrix."""
    what = f"{kind} of '{name}'"
    if kind == "ball":
        return np.asarray(0.4 * mass * float(positive(what, given)) ** 2 * np.eye(3))
    if kind in ("box", "cylinder") and np.any(np.asarray(vector(given, 3 if kind == "box" else 2, what)) < 0):
        raise InvalidInput(f"{what} is {given!r}; allowed: lengths that are not negative")
    if kind == "box":
        a, b, c = np.asarray(vector(given, 3, what)) ** 2
        return np.diag([b + c, a + c, a + b]) * mass / 12
    if kind == "cylinder":
        radius, length = np.asarray(vector(given, 2, what))
        along, across = 0.5 * mass * radius**2, mass * (radius**2 / 4 + length**2 / 12)
        return np.asarray(across * np.eye(3) + (along - across) * np.outer(axis, axis))
    values = np.asarray(finite_reals(what, given))
    matrix = np.diag(np.broadcast_to(values, 3)) if values.ndim < 2 and values.size in (1, 3) else values
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, rtol=1e-12, atol=0):
        raise InvalidInput(f"{what} is {given!r}; allowed: 0, three moments, or a symmetric matrix")
    principal = np.linalg.eigvalsh(matrix)
    if principal[0] < -1e-12 * abs(principal[2]) or principal[2] > (principal[0] + principal[1]) * (1 + 1e-9):
        shown = ", ".join(f"{value:.6g}" for value in principal)
        raise InvalidInput(
            f"no body has the principal moments of inertia {shown} of '{name}': each is at most the sum of the others"
        )
    return np.array(matrix)


def _without_redundant(parts: Parts, p: Any) -> Parts:
    """The parts without heights that cannot change, and without constraints that follow from others."""
    rng, size = np.random.default_rng(0), len(parts.coordinate_names)
    trials = [np.zeros(size), *(0.3 * rng.normal(size=(SAMPLES, size)))]
    count, drawing = len(_holonomic_names(parts)), Drawing(parts, p)
    found = [tuple(np.asarray(part)[:count] for part in _at_coordinates(drawing, q)[1:]) for q in trials]
    fixed = np.all([np.abs(slope).max(axis=1, initial=0.0) < VANISHING for _, slope in found], axis=0)
    for name, off in zip(np.array(_holonomic_names(parts), str)[fixed], found[0][0][fixed], strict=True):
        if abs(off) > VANISHING:
            raise InvalidInput(
                f"'{name.removesuffix(' load')}' cannot touch or close: it is {off:.6g} m away in every position. "
                "Check its height and its radius"
            )
    rolling = len(_load_names(parts)) - len(fixed)
    parts = _keep(parts, np.concatenate([np.ones(rolling, bool), ~fixed]))
    names = np.array(_load_names(parts), str)
    order = [*range(rolling, len(names)), *range(rolling)]
    drawing = Drawing(parts, p)
    samples = [np.asarray(_rows_at(drawing, _assemble(drawing, {})))]
    for q in trials[1:]:
        try:
            samples.append(np.asarray(_rows_at(drawing, _assemble(drawing, {}, q))))
        except InvalidInput:  # too far from any
            continue
    independent = np.zeros(len(names), bool)
    for k in order:
        before = [i for i in order[: order.index(k)] if independent[i]]
        independent[k] = any(k in _first_rows(rows, [*before, k]) for rows in samples[1:] or samples)
    if (held := int(independent.sum())) >= parts.group.dim:
        raise InvalidInput(
            f"{parts.name} cannot move: its {parts.group.dim} freedoms are held by {held} independent constraints "
            f"({', '.join(names[independent])})"
        )
    if independent.all():
        return parts
    rows = samples[-1]
    weights = np.linalg.lstsq(rows[independent].T, rows[~independent].T, rcond=None)[0]
    shared = names[independent][np.abs(weights).max(axis=1) > 1e-6]
    return replace(
        _keep(parts, independent), shared=tuple(shared.tolist()), redundant=tuple(names[~independent].tolist())
    )


def _keep(parts: Parts, which: Any) -> Parts:
    """The parts with some of their constraints, in the order of `load_names`."""
    rest = iter(which.tolist())
    rows = [tuple(row for row in contact.rows if next(rest)) for contact in parts.contacts]
    heights = [contact.height and next(rest) for contact in parts.contacts]
    loops = tuple(loop._replace(keeps=tuple(k for k in loop.keeps if next(rest))) for loop in parts.loops)
    kept = zip(parts.contacts, rows, heights, strict=True)
    contacts = tuple(contact._replace(rows=row, height=height) for contact, row, height in kept)
    return replace(parts, contacts=contacts, loops=loops)
