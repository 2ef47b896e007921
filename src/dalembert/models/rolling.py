"""Convex bodies that roll without slipping on a plane: SO(3) x R^2, the rotation and the place of the centre of mass.

A body is its support function H(n) = max <x, n> over its points x, measured from the centre of mass. With the plane's
normal c = R^T e3 in the body, the centre is H(-c) above the plane and the body touches it at r = H'(-c). The point of
contact has the velocity of the plane: place' + (R (w x r))_12 = rotation e3 x (place + (R r)_12). The constraint is
affine when the plane turns. Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..groups import SO3, Euclidean
from ..mechanics import FUNCTIONS, System, register_system, symmetric_matrix
from ..numerics import array, finite, namespace, not_negative, positive, solve_reduced
from ..numerics.types import Array, Controls, Scalar
from .registry import (
    MOMENTS,
    ROLLING_NAMES,
    Numbers,
    Real,
    Reals,
    Values,
    cached_partial,
    downhill_force,
    positive_vector,
    register,
    with_units,
)  # fmt: skip

Pose = tuple[Array, Array]  # the rotation and the place
Support = Callable[[Array, Any], Array]
GROUP = SO3() * Euclidean(2)
ROLLING = with_units(*ROLLING_NAMES, "contact force x [N], contact force y [N]")  # of the plane on the body


@register_system(FUNCTIONS, ("group", "inputs", "names"))
@dataclass(frozen=True, eq=False)
class RollingBody(System):
    """A convex body on a plane, with its equations of motion as Newton and Euler write them in the body.

    The centre moves with V = r x w, and the force f at the contact r gives m (V' + w x V) = f + R^T (P, -weight) and
    I w' = I w x w + F_w + r x f, with r' from c' = c x w. Here R^T R = 1 was used, which no derivative of L knows: half
    the operations are left.
    """

    def _acceleration(self, t: Scalar, g: Pose, xi: Array, u: Controls) -> tuple[Array, Array]:
        parts = [getattr(part, "func", None) for part in (self.lagrangian, self.constraint)]
        if parts != [_rolling_lagrangian, _rolling_constraint] or self.drift or self.holonomic:
            return super()._acceleration(t, g, xi, u)  # somebody replaced a part
        (rotation, _), w, p, F = g, xi[:3], self.parameters, self.F(t, g, xi, u)
        support, normal = cast(Any, self.lagrangian).args[0], rotation[2]
        along = -jnp.cross(normal, w)
        r, r_rate = jax.jvp(lambda n: jax.grad(support)(n, p["shape"]), (-normal,), (along,))
        turning = jnp.cross(r_rate, w) + jnp.cross(w, jnp.cross(r, w))  # V' + w x V without r x w'
        push = F[3:] + jnp.stack([p["pull"], jnp.zeros(())])
        load = p["mass"] * turning + p["weight"] * normal - push @ rotation[:2]
        momentum = p["inertia"] @ w
        metric = p["inertia"] + p["mass"] * (r @ r * jnp.eye(3) - jnp.outer(r, r))
        torque = jnp.cross(momentum, w) + F[:3] + jnp.cross(r, load)
        w_rate, _ = solve_reduced((), metric, jnp.zeros((0, 3)), torque, jnp.zeros(0))
        place_rate = rotation[:2] @ (turning + jnp.cross(r, w_rate))
        return jnp.concatenate([w_rate, place_rate]), p["mass"] * place_rate - push


def rolling_body(
    support: Support,
    shape: Any,
    mass: Real = 1.0,
    inertia: Numbers = (1.0, 1.0, 1.0),
    slope: Real = 0.0,
    gravity: Real = 9.81,
) -> System:
    """Any smooth strictly convex body that rolls on a plane, level or inclined by `slope` (x down the slope).

    `support(n, shape)` is its support function H. L = m |place'|^2/2 + m z'^2/2 + <I w, w>/2 - V, z = H(-c), z' = <c,
    r x w>, V = m g (z cos(slope) - x sin(slope)) (Borisov-Mamaev 2002). Algebra (w1, w2, w3, x', y'), w and `inertia`
    (3 moments or 3 x 3, kg m^2) in the body.
    """
    m = positive("mass", mass)
    parameters = {
        "mass": m,
        "inertia": symmetric_matrix(inertia, 3, "inertia"),
        "pull": downhill_force(mass, slope, gravity),
        "weight": m * finite("gravity", gravity) * namespace(slope).cos(finite("slope", slope)),
        "shape": jax.tree.map(array, shape),
    }
    lagrangian, rows = (cached_partial(part, support) for part in (_rolling_lagrangian, _rolling_constraint))
    return RollingBody(GROUP, lagrangian, rows, parameters=parameters, names=ROLLING)


def _rolling_lagrangian(support: Support, t: Scalar, g: Pose, xi: Array, p: dict[str, Any]) -> Array:
    normal, w = g[0][2], xi[:3]
    height, contact = jax.value_and_grad(support)(-normal, p["shape"])
    climb = normal @ jnp.cross(contact, w)
    kinetic = _level_lagrangian(t, g, xi, p) + 0.5 * p["mass"] * climb**2
    return cast(Array, kinetic - p["weight"] * height + p["pull"] * g[1][0])


def _rolling_constraint(support: Support, t: Scalar, g: Pose, p: dict[str, Any]) -> Array:
    contact = jax.grad(support)(-g[0][2], p["shape"])
    return jnp.concatenate([-g[0][:2] @ SO3().hat(contact), jnp.eye(2)], axis=1)


def _level_lagrangian(t: Scalar, g: Pose, xi: Array, p: Values) -> Array:
    """The kinetic energy of turning and of moving along the plane."""
    return 0.5 * xi[:3] @ p["inertia"] @ xi[:3] + 0.5 * p["mass"] * xi[3:] @ xi[3:]


def sphere(n: Array, shape: Values) -> Array:
    """The support function H of a sphere of `radius` about the point `centre` of the body."""
    return shape["radius"] * jnp.sqrt(n @ n) + shape["centre"] @ n


def ellipsoid(n: Array, shape: Values) -> Array:
    """The support function H of an ellipsoid with semi-axes `axes` along the body axes, about the point `centre`."""
    stretched = shape["axes"] * n
    return jnp.sqrt(stretched @ stretched) + shape["centre"] @ n


def circle(n: Array, shape: Values) -> Array:
    """The support function H of a flat disk of `radius` with the body's second axis as its axle."""
    return shape["radius"] * jnp.sqrt(n[0] * n[0] + n[2] * n[2])


@register(
    "rolling-disk",
    example={"radius": 0.5},
    initial={"velocity": [0.2, 6.0, 0.5, 3.0, -0.1]},
    step=0.01,
    steps=300,
    why="A coin that rolls and leans: the faster it spins the more upright it stays. Where it touches the floor it "
    "does not slip; the two curves, on the floor and on the rim, roll on each other.",
    tries=(("slow: it wobbles", "initial.velocity", [0.2, 2.5, 0.5, 1.25, -0.1]),),
    meaning={
        "axial": "moment about the axle; absent: a uniform disk",
        "diametral": "moment across the axle; absent: a uniform disk",
    },
)
def rolling_disk(
    mass: Real = 1.0, radius: Real = 1.0, axial: Real | None = None, diametral: Real | None = None, gravity: Real = 9.81
) -> System:
    """A thin disk that rolls on a horizontal plane and may lean and fall (Appell 1900, Korteweg 1899; Bloch 2003, 1.4).

    The body's second axis is the axle: at the identity the disk stands upright and rolls along x; the model ends where
    it lies flat. `axial` and `diametral` are the moments about the axle and across it (default: a uniform disk's).
    """
    m, r = positive("mass", mass), positive("radius", radius)
    axle = m * r**2 / 2 if axial is None else positive("axial", axial)
    across = m * r**2 / 4 if diametral is None else positive("diametral", diametral)
    return rolling_body(circle, {"radius": r}, m, array([across, axle, across]), gravity=gravity)


@register(
    "rattleback",
    example={"depth": 0.01},
    initial={"velocity": [0.5, 0.0, -5.0, 0.0, -0.005]},
    step=0.002,
    steps=4000,
    why="A half ellipsoid whose mass is turned against its shape. Spun the wrong way it begins to rattle, and turns "
    "back: the constraint lets energy pass from the spin to the rocking and back.",
    tries=(("spun the right way", "initial.velocity", [0.5, 0.0, 5.0, 0.0, -0.005]),),
    meaning={
        "depth": "how far the centre of mass lies below the middle of the ellipsoid",
        "inertia": "about the centre of mass; its off-diagonal entry makes the two senses of spin differ",
        "axes": "semi-axes of the ellipsoid, the third one downwards",
    },
)
def rattleback(
    mass: Real = 1.0,
    inertia: Numbers = ((2e-4, -2e-5, 0.0), (-2e-5, 1.6e-3, 0.0), (0.0, 0.0, 1.7e-3)),
    axes: Numbers = (0.2, 0.03, 0.02),
    depth: Real = 0.01,
    gravity: Real = 9.81,
) -> System:
    """A celt: an ellipsoid with its principal axes turned against its axes of shape, which prefers one sense of spin.

    `axes` are the semi-axes (m), the third one downwards, `depth` is how far the centre of mass lies below the
    ellipsoid's centre (Walker 1896). The defaults are those of Kane and Levinson (1982).
    """
    shape = {"axes": positive_vector("axes", axes, 3), "centre": array([0.0, 0.0, not_negative("depth", depth)])}
    return rolling_body(ellipsoid, shape, mass, inertia, gravity=gravity)


@register(
    "chaplygin-ball",
    title="Chaplygin's ball",
    example={"inertia": [0.3, 0.4, 0.5]},
    initial={"velocity": [0.9, 0.5, 0.7, 0.5, -0.9]},
    steps=160,
    why="The ball is round, but its mass is not: the stripes wander as it rolls. Its momentum about the point of "
    "contact (purple) is constant in space.",
    meaning={"inertia": MOMENTS},
)
def chaplygin_ball(mass: Real = 1.0, inertia: Numbers = (0.3, 0.4, 0.5), radius: Real = 1.0) -> System:
    """A ball with three different moments and its centre of mass in the middle (Chaplygin 1903; Fedorov 2007).

    L = m |place'|^2/2 + <I w, w>/2, x' = a W2, y' = -a W1 with W = R w. The momentum about the point of contact is
    constant in space: see `contact_momentum`.
    """
    sizes = {"mass": positive("mass", mass), "radius": positive("radius", radius)}
    parameters = sizes | {"inertia": symmetric_matrix(inertia, 3, "inertia")}
    return System(GROUP, _level_lagrangian, _ball_constraint, parameters=parameters, names=ROLLING)


@register(
    "rolling-ball",
    title="Ball on a slope",
    example={"slope": 0.1},
    initial={"velocity": [0.3, 0.5, 0.2, 0.5, -0.3]},
    steps=80,
    why="The ball rolls down the slope without slipping, like a particle with 5/7 of the gravity. The stripes show how"
    " it turns.",
)
def rolling_ball(
    mass: Real = 1.0, moment: Real | None = None, radius: Real = 1.0, slope: Real = 0.0, gravity: Real = 9.81
) -> System:
    """A round ball that rolls on a plane, level or inclined by `slope` in radians, x down the slope (Bloch 2003, 1.9).

    x' = a W2, y' = -a W1. `moment` (default 2 m a^2/5) is about any axis. It moves like a particle with 1/(1 +
    moment/(m a^2)) of the gravity.
    """
    parameters = _round_ball(mass, moment, radius, slope, gravity)
    return System(GROUP, _ball_lagrangian, _ball_constraint, parameters=parameters, names=ROLLING)


@register(
    "ball-on-table",
    title="Ball on a turning table",
    example={"rotation": 1.5},
    initial={"velocity": [0.3, 0.5, 0.2, 0.5, -0.3]},
    why="The table turns under the ball and drives it by friction alone, yet the ball does not fly off: it runs on a "
    "circle, with 2/7 of the table's angular velocity.",
    tries=(("a table at rest", "system.rotation", 0.0), ("a table that turns back", "system.rotation", -1.5)),
    meaning={"rotation": "angular velocity of the table"},
)
def ball_on_table(
    mass: Real = 1.0,
    moment: Real | None = None,
    radius: Real = 1.0,
    rotation: Real = 1.0,
    slope: Real = 0.0,
    gravity: Real = 9.81,
) -> System:
    """A round ball that rolls on a turntable, whose angular velocity is `rotation` (Earnshaw 1844).

    The constraint is affine: x' = a W2 - W y, y' = -a W1 + W x. On a level table the ball runs on circles with angular
    velocity rotation/(1 + m a^2/moment): 2/7 of the table's if it is solid. `slope` tilts the axis with the plane (x
    down the slope): the ball drifts across the slope, not down.
    """
    parameters = _round_ball(mass, moment, radius, slope, gravity) | {"rotation": finite("rotation", rotation)}
    return System(GROUP, _ball_lagrangian, _ball_constraint, parameters=parameters, drift=_table_drift, names=ROLLING)


def _round_ball(mass: Real, moment: Real | None, radius: Real, slope: Real, gravity: Real) -> Values:
    m, r = positive("mass", mass), positive("radius", radius)
    about = 0.4 * m * r**2 if moment is None else positive("moment", moment)
    return {"mass": m, "inertia": array(about * np.eye(3)), "radius": r, "pull": downhill_force(m, slope, gravity)}


# The middle of a ball stays at one height: this and `_level_lagrangian` are `rolling_body` with `sphere` and less work.
def _ball_lagrangian(t: Scalar, g: Pose, xi: Array, p: Values) -> Array:
    return _level_lagrangian(t, g, xi, p) + p["pull"] * g[1][0]


def _ball_constraint(t: Scalar, g: Pose, p: Values) -> Array:
    slip = p["radius"] * jnp.stack([-g[0][1], g[0][0]])
    return jnp.concatenate([slip, jnp.eye(2)], axis=1)


def _table_drift(t: Scalar, g: Pose, p: Values) -> Array:
    return p["rotation"] * jnp.stack([-g[1][1], g[1][0]])


def contact_momentum(system: System, g: Pose, xi: Array) -> Array:
    """The angular momentum R (I w + m r x (w x r)) of a ball about its point of contact, seen from space.

    It is conserved for Chaplygin's ball and on a level plane.
    """
    p = system.parameters
    contact, w = -p["radius"] * g[0][2], xi[:3]
    return cast(Array, g[0] @ (p["inertia"] @ w + p["mass"] * jnp.cross(contact, jnp.cross(w, contact))))


def exact_ball(
    t: Numbers,
    place: tuple[float, float],
    velocity: tuple[float, float],
    *,
    mass: float = 1.0,
    moment: float | None = None,
    radius: float = 1.0,
    rotation: float = 0.0,
    slope: float = 0.0,
    gravity: float = 9.81,
) -> Reals:
    """The exact motion of a ball from `place` with `velocity`: rows (x, y, x', y') at the times t, shape (..., 4).

    With z = x + i y: z'' = i k z' + f, k = rotation/(1 + m a^2/moment), f = g sin(slope)/(1 + moment/(m a^2)).
    """
    t = np.asarray(t, float)
    ratio = 0.4 if moment is None else moment / (mass * radius**2)
    turn, fall = 1j * rotation * ratio / (1 + ratio), gravity * np.sin(slope) / (1 + ratio)
    z, v = complex(*place), complex(*velocity)
    once, twice = (_mean(turn * t, order) for order in (1, 2))
    here = z + v * t * once + fall * t**2 * twice
    speed = v * np.exp(turn * t) + fall * t * once
    return np.stack([here.real, here.imag, speed.real, speed.imag], axis=-1)


def _mean(s: Any, order: int) -> Any:
    """(e^s - 1)/s for order 1, (e^s - 1 - s)/s^2 for order 2, at imaginary s; near 0 by series."""
    small = np.abs(s) < 1e-2
    safe = np.where(small, 1.0, s)
    closed = (np.exp(safe) - 1 - (safe if order == 2 else 0)) / safe**order
    return np.where(small, sum(s**k / float(factorial(k + order)) for k in range(7)), closed)
