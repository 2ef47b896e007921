"""Sleighs, upright disks, knife edges and skates: bodies on a blade or a wheel, on SE(2), SE(2) x SO(2) and SE(n).

The skate on a surface and the hinged sleighs have holonomic constraints phi(g) = 0 as well.
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..groups import SE, SE2, SE3, SO2
from ..mechanics import Input, InvariantSystem, System, generators, inertia_of_mass, mass_tensor, symmetric_matrix
from ..numerics import array, diagonal, finite, positive, vector
from ..numerics.types import Array, Scalar
from .registry import (
    MOMENTS,
    PLACE,
    SUSLOV_METHOD,
    TWIST,
    Numbers,
    Real,
    Reals,
    Values,
    downhill_force,
    positive_vector,
    register,
    with_units,
)  # fmt: skip

Pair = tuple[Array, Array]  # of SE(2) x SE(2)
LARGEST_DIMENSION = 6  # n of the sleighs on SE(n)
DISK = with_units(f"{PLACE}, roll [rad]", f"{TWIST}, roll rate [rad s-1]")
SLEIGHS = with_units(
    "first heading [rad], first x [m], first y [m], second heading [rad], second x [m], second y [m]",
    "first w [rad s-1], first v1 [m s-1], first v2 [m s-1], second w [rad s-1], second v1 [m s-1], second v2 [m s-1]",
    "first side force [N], second side force [N], hinge force x [N], hinge force y [N]",
)


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
    (w, v1, v2), basis (w, v1) of d: L = [(J + m (a^2 + b^2)) w^2 + m (v1^2 + v2^2)]/2 + m w (a v2 - b v1).
    """
    m, a, b = positive("mass", mass), finite("a", a), finite("b", b)
    turning = positive("inertia", inertia) + m * (a**2 + b**2)
    tensor = array([[turning, -m * b, m * a], [-m * b, m, 0.0], [m * a, 0.0, m]])
    return InvariantSystem(SE2(), tensor, annihilator=[0.0, 0.0, 1.0])


def exact_sleigh(
    t: Numbers, velocity: Reals, *, mass: float = 1.0, inertia: float = 1.0, a: float = 0.3, b: float = 0.0
) -> tuple[Reals, Reals]:
    """The exact motion of Chaplygin's sleigh: ((w, v1), (theta, x, y)) at the times t, shapes (..., 2) and (..., 3).

    It starts at the identity with `velocity` = (w, v1). With V = v1 - b w and Jc = J + m a^2 it is the sleigh with
    b = 0: m V' = m a w^2, Jc w' = -m a w V, so that V = r tanh(k t + c), w = w_max sech(k t + c), k = a m r/Jc.
    Positions are quadratures of (cos, sin)(theta) v1.
    """
    from scipy.integrate import quad_vec

    t = np.atleast_1d(np.asarray(t, float))
    w0, V0 = float(velocity[0]), float(velocity[1]) - b * float(velocity[0])
    about = inertia + mass * a**2
    r = np.sqrt(V0**2 + about * w0**2 / mass)
    k = a * mass * r / about
    c = np.arcsinh(V0 / (abs(w0) * np.sqrt(about / mass))) if w0 else 0.0

    def motion(s: Reals) -> tuple[Reals, Reals, Reals]:
        if w0 == 0 or k == 0:  # straight, or balanced: the velocity is constant
            w, V = np.full_like(s, w0), np.full_like(s, V0)
            return w, V + b * w, w0 * s
        w = np.sign(w0) * r * np.sqrt(mass / about) / np.cosh(k * s + c)
        phase, start = (2 * np.arctan(np.tanh(x / 2)) for x in (k * s + c, c))  # Gudermann's function
        return w, r * np.tanh(k * s + c) + b * w, np.sign(w0) * r * np.sqrt(mass / about) / k * (phase - start)

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
    """A disk that rolls upright without slipping, on SE(2) x SO(2): v2 = 0, v1 = radius phi' (arXiv:2604.04962, II).

    Algebra (w, v1, v2, phi'); `rolling` and `turning` are the moments about the axle and the vertical. The basis of d
    is (turn, roll) = (1, 0, 0, 0), (0, radius, 0, 1). Both speeds are constant, the contact point runs on a circle.
    """
    mass = positive("mass", mass)
    moments = array([positive("turning", turning), mass, mass, positive("rolling", rolling)])
    return InvariantSystem(SE2() * SO2(), diagonal(moments), _rolls(radius), names=DISK)


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
    """A disk that rolls upright on a plane inclined by `slope`, x down the slope (Neimark-Fufaev 1967, ch. III).

    `vertical_disk` with the potential -m g sin(slope) x: while it turns it never rolls down for good.
    """
    disk, pull = vertical_disk(mass, rolling, turning, radius), downhill_force(mass, slope, gravity)
    return InvariantSystem(disk.group, disk.inertia, _rolls(radius), None, _slope_potential, {"pull": pull}, DISK)


def _rolls(radius: Real) -> list[list[float]]:
    """The basis (turn, roll) of d."""
    return [[1.0, 0.0], [0.0, float(positive("radius", radius))], [0.0, 0.0], [0.0, 1.0]]


def _slope_potential(t: Scalar, g: tuple[Array, Array], p: Values) -> Array:
    return _slope(t, g[0], p)


def exact_disk(t: Numbers, velocity: Reals, *, radius: float = 1.0) -> Reals:
    """The exact motion of the upright disk from the identity with this velocity (w, v1, 0, phi').

    Rows (theta, x, y, phi) at the times t, shape (..., 4). The contact point runs on a circle."""
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
    """The exact motion of the disk on an incline, from the identity with this velocity (w, v1, 0, phi').

    Rows (theta, x, y, phi) at the times t, shape (..., 4). Rolling adds rolling/radius^2 to the mass that gravity
    moves; the rest is `exact_knife_edge`.
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
    """The exact motion of the knife edge on an incline, from the identity with this velocity (w, v1).

    Rows (theta, x, y, v1) at the times t, shape (..., 4). w is constant and v1' = g sin(slope) cos(w t): for w != 0
    it never slides down for good, it runs on a cycloid.
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
    e1. `directions=k`: the body turns freely and the velocity of the reference point stays in the span of e1, ..., e_k
    of the body. For n = 2 either is the Chaplygin sleigh with moment J11 + J22. The basis of d is
    (12, .., 1n, v1), or (all rotations, v1, .., v_k).
    """
    J, mass = mass_tensor(tensor), float(positive("mass", mass))
    n = len(J)
    if not 2 <= n <= LARGEST_DIMENSION:
        raise InvalidInput(f"tensor is {n} x {n}; allowed: sizes 2 to {LARGEST_DIMENSION}")
    a = np.asarray(vector(centre, n, "centre"))
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


@register(
    "skate-on-ellipsoid",
    title="Skate on an ellipsoid",
    example={"axes": [1.5, 1.2, 1.0], "inertia": [0.1, 0.2, 0.3]},
    initial={
        "configuration": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]],
        "velocity": [0.0, 0.8 / 2.25, 1.5, 0.8, 0.0, 0.0],
    },
    step=0.02,
    why="A skate glides on a curved surface, along its blade and never across. The surface is a holonomic constraint, "
    "the blade a nonholonomic one.",
    meaning={"inertia": MOMENTS},
)
def skate_on_ellipsoid(
    axes: Numbers = (1.0, 1.0, 1.0), mass: Real = 1.0, inertia: Numbers = (0.1, 0.2, 0.3), gravity: Real = 9.81
) -> System:
    """A skate on an ellipsoid: its blade, along e1 of the body, cannot slip along e2; e3 is normal to the surface.

    L = [<I w, w> + m |v|^2]/2 - m g z on SE(3), algebra (w, v); v2 = 0 beside phi = ((<x, n> - 1)/2, <R e1, n>, <R e2,
    n>), n = x/axes^2 for the semi-axes `axes`, with the centre of mass in the contact. On the sphere of radius r it is
    Suslov's problem for I + m r^2 (1, 1, 0), normal e1 and weight m g r e3. `inertia`: three moments or a matrix.
    """
    parameters = {
        "axes": positive_vector("axes", axes, 3),
        "mass": positive("mass", mass),
        "inertia": symmetric_matrix(inertia, 3, "inertia"),
        "gravity": finite("gravity", gravity),
    }
    return System(SE3(), _skate_lagrangian, _skate_blade, parameters=parameters, holonomic=_skate_contact)


def _skate_lagrangian(t: Scalar, g: Array, xi: Array, p: Values) -> Array:
    kinetic = 0.5 * (xi[:3] @ p["inertia"] @ xi[:3] + p["mass"] * xi[3:] @ xi[3:])
    return kinetic - p["mass"] * p["gravity"] * g[2, 3]


def _skate_blade(t: Scalar, g: Array, p: Values) -> Array:
    return jnp.array([[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]])


def _skate_contact(t: Scalar, g: Array, p: Values) -> Array:
    place = g[:3, 3]
    normal = place / p["axes"] ** 2
    return jnp.concatenate([0.5 * (place @ normal - 1.0)[None], (normal @ g[:3, :3])[:2]])


@register(
    "hinged-sleighs",
    example={"front": 0.5, "arm": 0.3},
    initial={
        "configuration": [[[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[1, 0, 0.8], [0, 1, 0], [0, 0, 1]]],
        "velocity": [-0.375, 0.6, 0.0, 0.625, 0.6, 0.0],
    },
    why="Two sleighs, each on its blade, joined by a hinge: when one turns, the blades together leave one way to go. "
    "The hinge must not come apart.",
    meaning={"front": "from the first blade to the hinge", "arm": "from the hinge to the second blade"},
)
def hinged_sleighs(
    mass: Real = 1.0,
    inertia: Real = 0.3,
    rider: Real = 0.2,
    rider_inertia: Real = 0.05,
    front: Real = 0.5,
    arm: Real = 0.3,
) -> System:
    """Two sleighs with a blade each, hinged: the roller racer with both bodies in full, or a car with a trailer.

    The hinge is `front` ahead of the first blade, the second blade `arm` beyond it (either sign), each body with its
    mass on its blade, on SE(2) x SE(2): L = [m |v|^2 + J w^2 + m2 |V|^2 + J2 W^2]/2, v2 = V2 = 0, and phi = x + R
    (front, 0) - X + S (arm, 0) (Krishnaprasad-Tsakiris 2001; `roller_racer` is the same in SE(2) x SO(2)). Control: the
    torque in the hinge (N m) on the second body.
    """
    sizes = {"mass": mass, "inertia": inertia, "rider": rider, "rider_inertia": rider_inertia}
    parameters = {name: positive(name, value) for name, value in sizes.items()}
    parameters |= {"front": finite("front", front), "arm": finite("arm", arm)}
    return System(
        SE2() * SE2(),
        _sleighs_lagrangian,
        _sleighs_blades,
        parameters=parameters,
        force=_hinge_torque,
        holonomic=_hinge,
        inputs=(Input("hinge torque", "N m"),),
        names=SLEIGHS,
    )


def _sleighs_lagrangian(t: Scalar, g: Pair, xi: Array, p: Values) -> Array:
    first, second = xi[:3], xi[3:]
    moving = p["mass"] * first[1:] @ first[1:] + p["rider"] * second[1:] @ second[1:]
    return 0.5 * (moving + p["inertia"] * first[0] ** 2 + p["rider_inertia"] * second[0] ** 2)


def _sleighs_blades(t: Scalar, g: Pair, p: Values) -> Array:
    return jnp.eye(6)[jnp.array([2, 5])]


def _hinge(t: Scalar, g: Pair, p: Values) -> Array:
    first, second = g
    return (first[:2, 2] + p["front"] * first[:2, 0]) - (second[:2, 2] - p["arm"] * second[:2, 0])


def _hinge_torque(t: Scalar, g: Pair, xi: Array, u: Array, p: Values) -> Array:
    return jnp.array([-1.0, 0.0, 0.0, 1.0, 0.0, 0.0]) * u[0]
