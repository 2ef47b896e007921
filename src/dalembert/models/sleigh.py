"""Sleighs, upright disks and knife edges: left-invariant systems on SE(2), SE(2) x SO(2) and SE(n).

Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..groups import SE, SE2, SO2
from ..mechanics import InvariantSystem, generators, inertia_of_mass, mass_tensor
from ..numerics import array, diagonal, finite, positive, real
from ..numerics.types import Array, Scalar
from .registry import SUSLOV_METHOD, Numbers, Real, Values, downhill_force, register

Reals = NDArray[np.float64]
LARGEST_DIMENSION = 6  # n of the sleighs on SE(n)


@register(
    "chaplygin-sleigh",
    title="Chaplygin's sleigh",
    example={"mass": 1.0, "inertia": 1.0, "a": 0.3, "b": 0.2},
    initial={"velocity": [0.5, -1.0, 0.0]},
    step=0.1,
    steps=160,
    method=SUSLOV_METHOD,
    why="It is launched backwards, with its centre of mass (dark ball) trailing. The blade cannot slip sideways, so "
    "the ground pushes on it (pink arrow), square to it. The push has a lever, the distance a along the blade to "
    "the centre of mass: it swings the sleigh round like a castor. The blade stops and reverses at the cusp of its"
    " path, and the centre of mass leads from then on. With a = 0 there is no lever, and it circles for ever.",
    tries=(
        ("a = 0: no lever, it runs on a circle", "system.a", 0.0),
        ("a = -0.3: the centre of mass leads from the start, no cusp", "system.a", -0.3),
        ("a = 0.8: a long lever", "system.a", 0.8),
    ),
    meaning={
        "a": "how far the centre of mass lies from the contact, to the front of the blade: the lever of the push",
        "inertia": "moment of inertia about the centre of mass",
        "b": "how far the centre of mass lies to the left, looking to the front of the blade",
    },
)
def chaplygin_sleigh(mass: Real = 1.0, inertia: Real = 1.0, a: Real = 0.3, b: Real = 0.0) -> InvariantSystem:
    """A body on a blade at the origin of the body frame, along its first axis: v2 = 0.

    Caratheodory 1933; fedorov-zenkov (5.1). The centre of mass is at (a, b) in the body, `inertia` is about it. Algebra
    (w, v1, v2): L = [(J + m (a^2 + b^2)) w^2 + m (v1^2 + v2^2)]/2 + m w (a v2 - b v1). The basis of d is
    (w, v1).
    """
    m, a, b = positive("mass", mass), finite("a", a), finite("b", b)
    turning = positive("inertia", inertia) + m * (a**2 + b**2)
    tensor = array([[turning, -m * b, m * a], [-m * b, m, 0.0], [m * a, 0.0, m]])
    return InvariantSystem(SE2(), tensor, annihilator=[0.0, 0.0, 1.0])


def exact_sleigh(
    t: Numbers, velocity: Reals, *, mass: float = 1.0, inertia: float = 1.0, a: float = 0.3, b: float = 0.0
) -> tuple[Reals, Reals]:
    """((w, v1), (theta, x, y)) at times t, shapes (..., 2) and (..., 3), of a sleigh that starts at 1 with (w0, v1_0).

    With V = v1 - b w and Jc = J + m a^2 it is the sleigh with b = 0: m V' = m a w^2, Jc w' = -m a w V, so that
    V = r tanh(k t + c), w = w_max sech(k t + c), k = a m r/Jc. Positions are quadratures of (cos, sin)(theta) v1.
    """
    from scipy.integrate import quad_vec

    t = np.atleast_1d(np.asarray(t, float))
    w0, V0 = float(velocity[0]), float(velocity[1]) - b * float(velocity[0])
    about = inertia + mass * a**2
    r = np.sqrt(V0**2 + about * w0**2 / mass)
    k = a * mass * r / about
    c = np.arcsinh(V0 / (abs(w0) * np.sqrt(about / mass))) if w0 else 0.0

    def gudermann(x: Any) -> Any:
        return 2 * np.arctan(np.tanh(x / 2))

    def motion(s: Reals) -> tuple[Reals, Reals, Reals]:
        if w0 == 0 or k == 0:  # straight, or balanced: the velocity is constant
            w, V = np.full_like(s, w0), np.full_like(s, V0)
            return w, V + b * w, w0 * s
        w = np.sign(w0) * r * np.sqrt(mass / about) / np.cosh(k * s + c)
        turned = np.sign(w0) * r * np.sqrt(mass / about) / k * (gudermann(k * s + c) - gudermann(c))
        return w, r * np.tanh(k * s + c) + b * w, turned

    def displacement(s: float) -> Reals:
        _, v, theta = motion(np.asarray(s))
        return np.array([v * np.cos(theta), v * np.sin(theta)])

    w, v, theta = motion(t)
    places = [quad_vec(displacement, 0.0, end, epsabs=1e-13, epsrel=1e-13, limit=10000)[0] for end in t]
    return np.stack([w, v], axis=-1), np.column_stack([theta, np.stack(places)])


def total_turning(mass: float = 1.0, inertia: float = 1.0, a: float = 0.3) -> float:
    """The angle through which a sleigh turns between t = -infinity and infinity: (pi/a) sqrt((J + m a^2)/m)."""
    return float(np.pi / abs(a) * np.sqrt((inertia + mass * a**2) / mass))


@register(
    "vertical-disk",
    title="Upright disk",
    example={"radius": 0.7},
    initial={"velocity": [0.8, 0.7, 0.0, 1.0]},
    step=0.1,
    why="The disk rolls along its heading and cannot slip across: turning and rolling steadily, it runs on a circle. "
    "The spoke touches the floor once a turn, always where the path has grown by one circumference.",
    meaning={"rolling": "moment of inertia about the axle", "turning": "moment of inertia about the vertical"},
)
def vertical_disk(mass: Real = 1.0, rolling: Real = 0.5, turning: Real = 0.25, radius: Real = 1.0) -> InvariantSystem:
    """A disk that rolls upright without slipping, on SE(2) x SO(2): v2 = 0, v1 = radius phi' (retraction-maps, II).

    Algebra (w, v1, v2, phi'); `rolling` and `turning` are the moments about the axle and the vertical. The basis of d
    is (turn, roll) = (1, 0, 0, 0), (0, radius, 0, 1). Both speeds are constant, the contact point runs on a circle.
    """
    mass = positive("mass", mass)
    moments = array([positive("turning", turning), mass, mass, positive("rolling", rolling)])
    return InvariantSystem(SE2() * SO2(), diagonal(moments), _rolls(radius))


@register(
    "inclined-disk",
    title="Upright disk on a slope",
    example={"slope": 0.3, "radius": 0.7},
    initial={"velocity": [0.8, 0.7, 0.0, 1.0]},
    why="Gravity pulls down the slope, but while the disk turns it can only go where it heads: it runs to and fro and "
    "drifts sideways, never down for good.",
    tries=(("a level plane: a circle", "system.slope", 0.0),),
)
def inclined_disk(
    mass: Real = 1.0,
    rolling: Real = 0.5,
    turning: Real = 0.25,
    radius: Real = 1.0,
    slope: Real = 0.3,
    gravity: Real = 9.81,
) -> InvariantSystem:
    """A disk that rolls upright on a plane inclined by `slope` (radians), x down the slope (Neimark-Fufaev 1967, ch.
    III).

    `vertical_disk` with the potential -m g sin(slope) x. Like the knife edge it never rolls down for good while it
    turns.
    """
    disk, pull = vertical_disk(mass, rolling, turning, radius), downhill_force(mass, slope, gravity)
    return InvariantSystem(disk.group, disk.inertia, _rolls(radius), None, _inclined, {"pull": pull})


def _rolls(radius: Real) -> list[list[float]]:
    """The basis (turn, roll) of d."""
    return [[1.0, 0.0], [0.0, float(positive("radius", radius))], [0.0, 0.0], [0.0, 1.0]]


def _inclined(t: Scalar, g: tuple[Array, Array], p: Values) -> Array:
    return _slope(t, g[0], p)


def exact_disk(t: Numbers, velocity: Reals, *, radius: float = 1.0) -> Reals:
    """(theta, x, y, phi) at times t, shape (..., 4), of a disk that starts at 1 with velocity (w, v1, 0, phi')."""
    t = np.asarray(t, float)
    w, v = float(velocity[0]), float(velocity[1])
    theta = w * t
    x = v * t * np.sinc(theta / np.pi)
    y = v * t * np.sin(theta / 2) * np.sinc(theta / 2 / np.pi)
    return np.stack([theta, x, y, v / radius * t], axis=-1)


def exact_inclined_disk(
    t: Numbers,
    velocity: Reals,
    *,
    mass: float = 1.0,
    rolling: float = 0.5,
    radius: float = 1.0,
    slope: float = 0.3,
    gravity: float = 9.81,
) -> Reals:
    """(theta, x, y, phi) at times t, shape (..., 4), of an inclined disk from 1 with velocity (w, v1, 0, phi').

    Rolling adds rolling/radius^2 to the mass that gravity moves; the rest is `exact_knife_edge`.
    """
    t, v = np.asarray(t, float), float(velocity[1])
    gravity = gravity * mass / (mass + rolling / radius**2)
    theta, x, y, _ = np.moveaxis(exact_knife_edge(t, velocity, slope=slope, gravity=gravity), -1, 0)
    run = v * t + gravity * np.sin(slope) * t**2 / 2 * np.sinc(theta / 2 / np.pi) ** 2
    return np.stack([theta, x, y, run / radius], axis=-1)


@register(
    "knife-edge",
    title="Knife edge on a slope",
    example={"slope": 0.3},
    initial={"velocity": [1.0, 0.2, 0.0]},
    why="A skate on a slope. It wants to slide down, but while it turns it can only go where it heads: it runs on a "
    "cycloid and drifts sideways, never down for good.",
    tries=(("a level plane: a circle", "system.slope", 0.0), ("steep", "system.slope", 0.7)),
)
def knife_edge(mass: Real = 1.0, inertia: Real = 1.0, slope: Real = 0.5, gravity: Real = 9.81) -> InvariantSystem:
    """A knife edge under its centre of mass on a plane inclined by `slope`, x down the slope (Neimark-Fufaev 1967).

    L = (J w^2 + m (v1^2 + v2^2))/2 + m g sin(slope) x on SE(2), v2 = 0. Algebra (w, v1, v2), basis of d (w, v1).
    """
    m, pull = positive("mass", mass), downhill_force(mass, slope, gravity)
    moments = array([positive("inertia", inertia), m, m])
    return InvariantSystem(SE2(), diagonal(moments), None, [0.0, 0.0, 1.0], _slope, {"pull": pull})


def _slope(t: Scalar, g: Array, p: Values) -> Array:
    """-m g sin(slope) x."""
    return -p["pull"] * g[0, 2]


def exact_knife_edge(t: Numbers, velocity: Reals, *, slope: float = 0.5, gravity: float = 9.81) -> Reals:
    """(theta, x, y, v1) at times t, shape (..., 4), of a knife edge that starts at 1 with velocity (w, v1).

    w is constant and v1' = g sin(slope) cos(w t): for w != 0 it never slides down for good, it runs on a cycloid.
    """
    t = np.asarray(t, float)
    w, v = float(velocity[0]), float(velocity[1])
    pull = gravity * np.sin(slope)
    theta = w * t
    if w == 0:
        return np.stack([theta, v * t + pull * t**2 / 2, 0 * t, v + pull * t], axis=-1)
    x = v / w * np.sin(theta) + pull / (2 * w**2) * np.sin(theta) ** 2
    y = v / w * (1 - np.cos(theta)) + pull / (2 * w**2) * (theta - np.sin(theta) * np.cos(theta))
    return np.stack([theta, x, y, v + pull / w * np.sin(theta)], axis=-1)


@register(
    "sleigh-n",
    title="Sleigh in n dimensions",
    example={"tensor": [0.5, 0.7, 0.9], "centre": [0.3, 0.1, -0.2]},
    initial={"momentum": [0.5, -0.3, 0.8]},
    step=0.1,
    steps=300,
    method=SUSLOV_METHOD,
    why="A body in space on a blade: it moves along its first axis only, and turns in the planes that contain it. The "
    "centre of mass swings ahead, as in the plane.",
    meaning={
        "centre": "where the centre of mass lies, from the blade",
        "tensor": "mass tensor J about the centre of mass",
        "directions": "absent: the sleigh of the paper; k: free turning, velocity in the first k directions",
    },
)
def sleigh_n(tensor: Numbers, centre: Numbers, mass: float = 1.0, directions: int | None = None) -> InvariantSystem:
    """The generalised Chaplygin sleigh on SE(n), n = 2 ... 6, with mass tensor J about its centre of mass a.

    `tensor` is J (n numbers or n x n), `centre` a. L = tr(xi JJ xi^T)/2 with JJ = [[J + m a a^T, m a], [m a^T, m]]:
    (5.8) of fedorov-zenkov. `directions=None`: the matrices (5.10), only the planes that contain e1 turn and v is along
    e1. `directions=k`: the body turns freely and the velocity of the reference point stays in the span of e1, ..., ek
    of the body. For n = 2 either is the Chaplygin sleigh with moment J11 + J22. The basis of d is (12, .., 1n, v1), or
    (all rotations, v1, .., vk).
    """
    J, a, mass = mass_tensor(tensor), np.asarray(real("centre", centre)), float(positive("mass", mass))
    n = len(J)
    if not 2 <= n <= LARGEST_DIMENSION:
        raise InvalidInput(f"tensor is {n} x {n}; allowed: sizes 2 to {LARGEST_DIMENSION}")
    if a.shape != (n,) or not np.all(np.isfinite(a)):
        raise InvalidInput(f"centre is {a.tolist()}; allowed: {n} finite numbers, as many as the tensor has rows")
    if directions is not None and (not isinstance(directions, int) or directions not in range(1, n)):
        raise InvalidInput(f"directions is {directions!r}; allowed: None, or a whole number from 1 to {n - 1}")
    homogeneous = np.block([[J + mass * np.outer(a, a), mass * a[:, None]], [mass * a[None], mass]])
    group = SE(n)
    held = [(i, n) for i in range(directions or 1, n)]
    if directions is None:
        held += [(i, j) for i in range(1, n) for j in range(i + 1, n)]
    basis = generators(group)  # the covectors xi -> hat(xi)_ij vanish on d
    rows = np.array([basis[:, i, j] for i, j in held]).reshape(len(held), group.dim)
    return InvariantSystem(group, inertia_of_mass(group, homogeneous), annihilator=rows)


def planar_body(mass: Real = 1.0, inertia: Real = 1.0, a: Real = 0.3, b: Real = 0.0) -> InvariantSystem:
    """The sleigh without its blade: a free rigid body on SE(2), whose discrete motion is (7.8) of fedorov-zenkov."""
    return InvariantSystem(SE2(), chaplygin_sleigh(mass, inertia, a, b).inertia)
