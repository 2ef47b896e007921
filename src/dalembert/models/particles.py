"""Particles in R^3 with a nonholonomic constraint."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import UnknownName
from ..groups import Euclidean
from ..system import System


def nonholonomic_particle(potential: str = "free") -> System:
    """A particle of unit mass in R^3 with z' = y x' (Rosenberg 1977; jimenez-scheurle, section 6.3). The basis of D is (d_x + y d_z, d_y).

    `potential`: "free", or "harmonic" for V = (x^2 + y^2)/2.
    """
    if potential not in LAGRANGIANS:
        raise UnknownName("potential", potential, LAGRANGIANS)
    return System(Euclidean(3), LAGRANGIANS[potential], _contact)


def _contact(t, q, p) -> Array:
    return jnp.stack([-q[1], jnp.zeros_like(q[1]), jnp.ones_like(q[1])])[None]


def _free(t, q, v, p) -> Array:
    return 0.5 * v @ v


def _harmonic(t, q, v, p) -> Array:
    return 0.5 * v @ v - 0.5 * (q[0] ** 2 + q[1] ** 2)


LAGRANGIANS = {"free": _free, "harmonic": _harmonic}


def exact_particle(t, q, v) -> tuple[np.ndarray, np.ndarray]:
    """(q(t), v(t)) of the free particle, shapes (..., 3): y is linear and x' sqrt(1 + y^2) = c is constant."""
    t = np.asarray(t, float)
    (x0, y0, z0), (u, w) = np.asarray(q, float), np.asarray(v, float)[:2]
    y = y0 + w * t
    c = u * np.hypot(1, y0)
    if w == 0:
        x, z = x0 + u * t, z0 + y0 * u * t
    else:
        x, z = x0 + c / w * (np.arcsinh(y) - np.arcsinh(y0)), z0 + c / w * (np.hypot(1, y) - np.hypot(1, y0))
    speed = c / np.hypot(1, y)
    return np.stack([x, y, z], axis=-1), np.stack([speed, np.full_like(y, w), y * speed], axis=-1)
