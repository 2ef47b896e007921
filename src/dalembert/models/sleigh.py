"""Sleighs and wheels on the plane: left-invariant systems on SE(2) and SE(2) x SO(2).

Sleighs in n dimensions: a rigid body on SE(n) whose blade holds its reference point (fedorov-zenkov, section 5).
"""

from __future__ import annotations

import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..groups import SE, SE2, SO2, Group
from ..mechanics import InvariantSystem, generators, inertia_of_mass
from ..numerics import array, diagonal, finite, namespace, positive
from .bodies import mass_tensor


def chaplygin_sleigh(mass=1.0, inertia=1.0, a=0.3, b=0.0) -> InvariantSystem:
    """A body on a blade at the origin of the body frame, along its first axis: v2 = 0 (Caratheodory 1933; fedorov-zenkov (5.1)).

    The centre of mass is at (a, b) in the body, `inertia` is about the centre of mass. Algebra (w, v1, v2):
    L = [(J + m (a^2 + b^2)) w^2 + m (v1^2 + v2^2)]/2 + m w (a v2 - b v1). The basis of d is (w, v1).
    """
    mass, inertia = positive("mass", mass), positive("inertia", inertia)
    a, b = finite("a", a), finite("b", b)
    turning = inertia + mass * (a**2 + b**2)
    tensor = array([[turning, -mass * b, mass * a], [-mass * b, mass, 0.0], [mass * a, 0.0, mass]])
    return InvariantSystem(SE2(), tensor, annihilator=[0.0, 0.0, 1.0])


def exact_sleigh(t, velocity, *, mass=1.0, inertia=1.0, a=0.3, b=0.0) -> tuple[np.ndarray, np.ndarray]:
    """((w, v1), (theta, x, y)) at times t of a sleigh that starts at the identity with velocity (w0, v1_0); shapes (..., 2) and (..., 3).

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

    def motion(s):
        if w0 == 0 or k == 0:  # straight, or balanced: the velocity is constant
            w, V = np.full_like(s, w0), np.full_like(s, V0)
            return w, V + b * w, w0 * s
        w = np.sign(w0) * r * np.sqrt(mass / about) / np.cosh(k * s + c)
        turned = np.sign(w0) * r * np.sqrt(mass / about) / k * (_gudermann(k * s + c) - _gudermann(c))
        return w, r * np.tanh(k * s + c) + b * w, turned

    def displacement(s):
        _, v, theta = motion(np.asarray(s))
        return np.array([v * np.cos(theta), v * np.sin(theta)])

    w, v, theta = motion(t)
    places = [quad_vec(displacement, 0.0, end, epsabs=1e-13, epsrel=1e-13, limit=10000)[0] for end in t]
    return np.stack([w, v], axis=-1), np.column_stack([theta, np.stack(places)])


def total_turning(mass=1.0, inertia=1.0, a=0.3) -> float:
    """The angle through which a sleigh turns between t = -infinity and infinity: (pi/a) sqrt((J + m a^2)/m)."""
    return float(np.pi / abs(a) * np.sqrt((inertia + mass * a**2) / mass))


def _gudermann(x):
    return 2 * np.arctan(np.tanh(x / 2))


def vertical_disk(mass=1.0, rolling=0.5, turning=0.25, radius=1.0) -> InvariantSystem:
    """A disk that rolls upright without slipping, on SE(2) x SO(2): v2 = 0, v1 = radius phi' (retraction-maps, section II).

    Algebra (w, v1, v2, phi'); `rolling` and `turning` are the moments about the axle and the vertical. The basis of d is
    (turn, roll) = (1, 0, 0, 0), (0, radius, 0, 1). Both speeds are constant, the contact point runs on a circle.
    """
    return _upright_disk(mass, rolling, turning, radius)


def inclined_disk(mass=1.0, rolling=0.5, turning=0.25, radius=1.0, slope=0.3, gravity=9.81) -> InvariantSystem:
    """A disk that rolls upright on a plane inclined by `slope` (radians), x down the slope (Neimark-Fufaev 1967, ch. III).

    `vertical_disk` with the potential -m g sin(slope) x. Like the knife edge it never rolls down for good while it turns.
    """
    return _upright_disk(mass, rolling, turning, radius, _inclined, {"pull": pull(mass, slope, gravity)})


def _upright_disk(mass, rolling, turning, radius, potential=None, parameters=None) -> InvariantSystem:
    mass = positive("mass", mass)
    moments = array([positive("turning", turning), mass, mass, positive("rolling", rolling)])
    subspace = [[1.0, 0.0], [0.0, float(positive("radius", radius))], [0.0, 0.0], [0.0, 1.0]]
    return InvariantSystem(SE2() * SO2(), diagonal(moments), subspace, None, potential, parameters)


def _inclined(t, g, p) -> Array:
    return _slope(t, g[0], p)


def exact_disk(t, velocity, *, radius=1.0) -> np.ndarray:
    """(theta, x, y, phi) at times t of a disk that starts at the identity with velocity (w, v1, 0, phi'), shape (..., 4)."""
    t = np.asarray(t, float)
    w, v = float(velocity[0]), float(velocity[1])
    theta = w * t
    x = v * t * np.sinc(theta / np.pi)
    y = v * t * np.sin(theta / 2) * np.sinc(theta / 2 / np.pi)
    return np.stack([theta, x, y, v / radius * t], axis=-1)


def exact_inclined_disk(t, velocity, *, mass=1.0, rolling=0.5, radius=1.0, slope=0.3, gravity=9.81) -> np.ndarray:
    """(theta, x, y, phi) at times t of an inclined disk that starts at the identity with velocity (w, v1, 0, phi'), shape (..., 4).

    Rolling adds rolling/radius^2 to the mass that gravity moves; the rest is `exact_knife_edge`.
    """
    t, v = np.asarray(t, float), float(velocity[1])
    gravity = gravity * mass / (mass + rolling / radius**2)
    theta, x, y, _ = np.moveaxis(exact_knife_edge(t, velocity, slope=slope, gravity=gravity), -1, 0)
    run = v * t + gravity * np.sin(slope) * t**2 / 2 * np.sinc(theta / 2 / np.pi) ** 2
    return np.stack([theta, x, y, run / radius], axis=-1)


def knife_edge(mass=1.0, inertia=1.0, slope=0.5, gravity=9.81) -> InvariantSystem:
    """A knife edge under its centre of mass on a plane inclined by `slope` (radians), x down the slope (Neimark-Fufaev 1967).

    L = (J w^2 + m (v1^2 + v2^2))/2 + m g sin(slope) x on SE(2), v2 = 0. Algebra (w, v1, v2), basis of d (w, v1).
    """
    mass, inertia = positive("mass", mass), positive("inertia", inertia)
    moments = array([inertia, mass, mass])
    return InvariantSystem(
        SE2(),
        diagonal(moments),
        annihilator=[0.0, 0.0, 1.0],
        potential=_slope,
        parameters={"pull": pull(mass, slope, gravity)},
    )


def pull(mass, slope, gravity) -> Array:
    """m g sin(slope): what pulls a body down an inclined plane."""
    return mass * finite("gravity", gravity) * namespace(slope).sin(finite("slope", slope))


def _slope(t, g, p) -> Array:
    """-m g sin(slope) x."""
    return -p["pull"] * g[0, 2]


def exact_knife_edge(t, velocity, *, slope=0.5, gravity=9.81) -> np.ndarray:
    """(theta, x, y, v1) at times t of a knife edge that starts at the identity with velocity (w, v1), shape (..., 4).

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


MOST = 6


def sleigh_n(tensor, centre, mass=1.0, directions: int | None = None) -> InvariantSystem:
    """The generalised Chaplygin sleigh on SE(n), n = 2 ... 6: a body with mass tensor J about its centre of mass a (fedorov-zenkov (5.8)).

    `tensor` is J (n numbers or n x n), `centre` a. L = tr(xi JJ xi^T)/2 with JJ = [[J + m a a^T, m a], [m a^T, m]].
    `directions=None`: the matrices (5.10), only the planes that contain e1 turn and v is along e1. `directions=k`: the body turns freely
    and the velocity of the reference point stays in the span of e1, ..., ek of the body. For n = 2 either is the Chaplygin sleigh with
    moment J11 + J22. The basis of d is (12, .., 1n, v1), or (all rotations, v1, .., vk).
    """
    tensor = mass_tensor(tensor)
    n, mass = tensor.shape[0], float(mass)
    centre = np.asarray(centre, float)
    if not 2 <= n <= MOST:
        raise InvalidInput(f"tensor is {n} x {n}; allowed: sizes 2 to {MOST}")
    if centre.shape != (n,) or not np.all(np.isfinite(centre)):
        raise InvalidInput(f"centre is {centre.tolist()}; allowed: {n} finite numbers, as many as the tensor has rows")
    if not (np.isfinite(mass) and mass > 0):
        raise InvalidInput(f"mass is {mass}; allowed: a positive number")
    if directions is not None and directions not in range(1, n):
        raise InvalidInput(f"directions is {directions!r}; allowed: None, or a whole number from 1 to {n - 1}")
    whole = np.block([[tensor + mass * np.outer(centre, centre), mass * centre[:, None]], [mass * centre[None], mass]])
    group = SE(n)
    held = [(i, n) for i in range(directions or 1, n)]
    if directions is None:
        held += [(i, j) for i in range(1, n) for j in range(i + 1, n)]
    return InvariantSystem(group, inertia_of_mass(group, whole), annihilator=entries(group, held))


def entries(group: Group, places: list[tuple[int, int]]) -> np.ndarray:
    """The covectors xi -> hat(xi)_ij, one row for each place (i, j)."""
    basis = generators(group)
    return np.array([basis[:, i, j] for i, j in places]).reshape(len(places), group.dim)


def planar_body(mass=1.0, inertia=1.0, a=0.3, b=0.0) -> InvariantSystem:
    """The sleigh without its blade: a free rigid body on SE(2), whose discrete motion is (7.8) of fedorov-zenkov."""
    return InvariantSystem(SE2(), chaplygin_sleigh(mass, inertia, a, b).inertia)
