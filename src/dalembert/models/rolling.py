"""Convex bodies that roll without slipping on a plane: SO(3) x R^2, the rotation and the place of the centre of mass.

A body is its support function H(n) = max <x, n> over its points x, measured from the centre of mass. With the plane's normal
c = R^T e3 in the body, the centre is H(-c) above the plane and the body touches it at r = H'(-c). The point of contact has the
velocity of the plane: place' + (R (w x r))_12 = rotation e3 x (place + (R r)_12), an affine constraint when the plane turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..groups import SO3, Euclidean
from ..mechanics import System, symmetric
from ..numerics import array, finite, namespace, not_negative, positive
from .sleigh import pull

GROUP = SO3() * Euclidean(2)


def rolling_body(support: Callable, shape: Any, mass=1.0, inertia=(1.0, 1.0, 1.0), slope=0.0, gravity=9.81) -> System:
    """Any smooth strictly convex body on a plane inclined by `slope`, x down the slope: support(n, shape) is H (Borisov-Mamaev 2002).

    L = m |place'|^2/2 + m z'^2/2 + <I w, w>/2 - V, z = H(-c), z' = <c, r x w>, V = m g (z cos(slope) - x sin(slope)). Algebra
    (w1, w2, w3, x', y'), w in the body; `inertia` (kg m^2): 3 moments or 3 x 3, about the centre of mass.
    """
    mass = positive("mass", mass)
    parameters = {
        "mass": mass,
        "inertia": symmetric(inertia, 3, "inertia"),
        "pull": pull(mass, slope, gravity),
        "weight": mass * finite("gravity", gravity) * namespace(slope).cos(finite("slope", slope)),
        "shape": jax.tree.map(array, shape),
    }
    return System(GROUP, *_functions(support), parameters=parameters)


@lru_cache
def _functions(support: Callable) -> tuple[Callable, Callable]:
    """The Lagrangian and the constraint of a body; the same functions for the same support, so that nothing compiles twice."""

    def lagrangian(t, g, xi, p):
        normal, w = g[0][2], xi[:3]
        height, contact = jax.value_and_grad(support)(-normal, p["shape"])
        climb = normal @ jnp.cross(contact, w)
        return _moving(xi, p) + 0.5 * p["mass"] * climb**2 - p["weight"] * height + p["pull"] * g[1][0]

    def constraint(t, g, p):
        contact = jax.grad(support)(-g[0][2], p["shape"])
        return jnp.concatenate([-g[0][:2] @ SO3().hat(contact), jnp.eye(2)], axis=1)

    return lagrangian, constraint


def _moving(xi, p) -> Array:
    """The kinetic energy of turning and of moving along the plane."""
    return 0.5 * xi[:3] @ p["inertia"] @ xi[:3] + 0.5 * p["mass"] * xi[3:] @ xi[3:]


def sphere(n, shape) -> Array:
    """H of a sphere of `radius` about the point `centre` of the body."""
    return shape["radius"] * jnp.sqrt(n @ n) + shape["centre"] @ n


def ellipsoid(n, shape) -> Array:
    """H of an ellipsoid with semi-axes `axes` along the body axes, about the point `centre` of the body."""
    stretched = shape["axes"] * n
    return jnp.sqrt(stretched @ stretched) + shape["centre"] @ n


def circle(n, shape) -> Array:
    """H of a flat disk of `radius` with the body's second axis as its axle."""
    return shape["radius"] * jnp.sqrt(n[0] * n[0] + n[2] * n[2])


# -- bodies -----------------------------------------------------------------------------------------------------------------------
def rolling_disk(mass=1.0, radius=1.0, axial=None, diametral=None, gravity=9.81) -> System:
    """A thin disk that rolls on a horizontal plane and may lean and fall (Appell 1900, Korteweg 1899; Bloch 2003, 1.4).

    The body's second axis is the axle: at the identity the disk stands upright and rolls along x. `axial` and `diametral` are the
    moments about the axle and across it (kg m^2; default: m r^2/2 and m r^2/4, a uniform disk). The model ends where it lies flat.
    """
    mass, radius = positive("mass", mass), positive("radius", radius)
    axial = mass * radius**2 / 2 if axial is None else positive("axial", axial)
    diametral = mass * radius**2 / 4 if diametral is None else positive("diametral", diametral)
    moments = array([diametral, axial, diametral])
    return rolling_body(circle, {"radius": radius}, mass, moments, gravity=gravity)


def rattleback(
    mass=1.0,
    inertia=((2e-4, -2e-5, 0.0), (-2e-5, 1.6e-3, 0.0), (0.0, 0.0, 1.7e-3)),
    axes=(0.2, 0.03, 0.02),
    depth=0.01,
    gravity=9.81,
) -> System:
    """A celt: an ellipsoid whose principal axes are turned against its axes of shape, so that it prefers one sense of spin (Walker 1896).

    `axes` are the semi-axes (m), the third one downwards, `depth` is how far the centre of mass lies below the ellipsoid's centre.
    The defaults are those of Kane and Levinson (1982): spun the wrong way, it begins to rattle and turns back.
    """
    axes = array(axes)
    if axes.shape != (3,) or not _all(axes, lambda a: a > 0):
        raise InvalidInput(f"axes is {axes.tolist()}; allowed: three positive numbers")
    centre = array([0.0, 0.0, not_negative("depth", depth)])
    return rolling_body(ellipsoid, {"axes": axes, "centre": centre}, mass, inertia, gravity=gravity)


def chaplygin_ball(mass=1.0, inertia=(0.3, 0.4, 0.5), radius=1.0) -> System:
    """A ball with three different moments and its centre of mass in the middle (Chaplygin 1903; Fedorov 2007).

    L = m |place'|^2/2 + <I w, w>/2, x' = a W2, y' = -a W1 with W = R w. The momentum about the point of contact is constant in
    space: see `contact_momentum`.
    """
    parameters = _ball(mass, symmetric(inertia, 3, "inertia"), radius)
    return System(GROUP, _level_lagrangian, _ball_constraint, parameters=parameters)


def rolling_ball(mass=1.0, moment=None, radius=1.0, slope=0.0, gravity=9.81) -> System:
    """A round ball on a plane inclined by `slope` (radians), x down the slope: x' = a W2, y' = -a W1 (Bloch 2003, 1.9).

    `moment` (kg m^2; default 2 m a^2/5) is about any axis. It moves like a particle with 1/(1 + moment/(m a^2)) of the gravity.
    """
    return System(
        GROUP, _ball_lagrangian, _ball_constraint, parameters=_round_ball(mass, moment, radius, slope, gravity)
    )


def ball_on_table(mass=1.0, moment=None, radius=1.0, rotation=1.0, slope=0.0, gravity=9.81) -> System:
    """A round ball on a plane that turns about e3 with angular velocity `rotation`: x' = a W2 - W y, y' = -a W1 + W x (Earnshaw 1844).

    The constraint is affine. On a level table the ball runs on circles with angular velocity rotation/(1 + m a^2/moment): 2/7 of
    the table's if it is solid. `slope` tilts the axis with the plane (x down the slope): the ball drifts across the slope, not down.
    """
    parameters = _round_ball(mass, moment, radius, slope, gravity) | {"rotation": finite("rotation", rotation)}
    return System(GROUP, _ball_lagrangian, _ball_constraint, parameters=parameters, drift=_turning)


def _ball(mass, inertia, radius) -> dict[str, Array]:
    return {"mass": positive("mass", mass), "inertia": inertia, "radius": positive("radius", radius)}


def _round_ball(mass, moment, radius, slope, gravity) -> dict[str, Array]:
    mass, radius = positive("mass", mass), positive("radius", radius)
    moment = 0.4 * mass * radius**2 if moment is None else positive("moment", moment)
    return _ball(mass, array(moment * np.eye(3)), radius) | {"pull": pull(mass, slope, gravity)}


# The middle of a ball stays at one height: these are `rolling_body` with `sphere` and less work.
def _level_lagrangian(t, g, xi, p) -> Array:
    return _moving(xi, p)


def _ball_lagrangian(t, g, xi, p) -> Array:
    return _moving(xi, p) + p["pull"] * g[1][0]


def _ball_constraint(t, g, p) -> Array:
    slip = p["radius"] * jnp.stack([-g[0][1], g[0][0]])
    return jnp.concatenate([slip, jnp.eye(2)], axis=1)


def _turning(t, g, p) -> Array:
    return p["rotation"] * jnp.stack([-g[1][1], g[1][0]])


# -- what is known about them -------------------------------------------------------------------------------------------------
def contact_momentum(system: System, g, xi) -> Array:
    """R (I w + m r x (w x r)) of a ball, its momentum about the point of contact: constant for Chaplygin's ball and on a level plane."""
    p = system.parameters
    contact, w = -p["radius"] * g[0][2], xi[:3]
    return g[0] @ (p["inertia"] @ w + p["mass"] * jnp.cross(contact, jnp.cross(w, contact)))


def exact_ball(
    t, place, velocity, *, mass=1.0, moment=None, radius=1.0, rotation=0.0, slope=0.0, gravity=9.81
) -> np.ndarray:
    """(x, y, x', y') at times t of a round ball from `place` with `velocity`, shape (..., 4).

    With z = x + i y: z'' = i k z' + f, k = rotation/(1 + m a^2/moment), f = g sin(slope)/(1 + moment/(m a^2)).
    """
    t = np.asarray(t, float)
    ratio = 0.4 if moment is None else moment / (mass * radius**2)
    turn, fall = 1j * rotation * ratio / (1 + ratio), gravity * np.sin(slope) / (1 + ratio)
    z, v = complex(*place), complex(*velocity)
    once, twice = _means(turn * t)
    here = z + v * t * once + fall * t**2 * twice
    speed = v * np.exp(turn * t) + fall * t * once
    return np.stack([here.real, here.imag, speed.real, speed.imag], axis=-1)


def _means(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((e^s - 1)/s, (e^s - 1 - s)/s^2) for imaginary s, by sines of s/2 and, near 0, by series."""
    small = np.abs(s) < 1e-2
    safe = np.where(small, 1.0, s)
    once = np.where(small, sum(s**k / float(_factorial(k + 1)) for k in range(7)), (np.exp(safe) - 1) / safe)
    twice = np.where(small, sum(s**k / float(_factorial(k + 2)) for k in range(7)), (np.exp(safe) - 1 - safe) / safe**2)
    return once, twice


def _factorial(n: int) -> int:
    return int(np.prod(np.arange(1, n + 1)))


def _all(values: Array, test: Callable[[np.ndarray], np.ndarray]) -> bool:
    return isinstance(values, jax.core.Tracer) or bool(np.all(np.isfinite(values)) and np.all(test(np.asarray(values))))
