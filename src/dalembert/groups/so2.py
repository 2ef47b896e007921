"""Rotations of the plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .._series import cosc, cotc, sinc
from ._input import normalised, parse, require_rotation
from .rotations import Rotations


@jax.tree_util.register_static
@dataclass(frozen=True)
class SO2(Rotations):
    """2 x 2 rotation matrices; hat((w,)) = [[0, -w], [w, 0]]. Abelian, with an angle."""

    @property
    def size(self) -> int:
        return 2

    def hat(self, xi: Array) -> Array:
        (w,) = xi
        return jnp.array([[0.0, -w], [w, 0.0]])

    def vee(self, matrix: Array) -> Array:
        return 0.5 * (matrix[1, 0] - matrix[0, 1])[None]

    def exp(self, xi: Array) -> Array:
        return turn(xi[0])

    def principal_log(self, g: Array) -> Array:
        return self.angles(g)

    def cayley(self, xi: Array) -> Array:
        half = 0.5 * xi[0]
        scale = 1.0 / (1.0 + half * half)
        cosine, sine = (1.0 - half * half) * scale, 2.0 * half * scale
        return jnp.array([[cosine, -sine], [sine, cosine]])

    def principal_cayley_inverse(self, g: Array) -> Array:
        """2 tan(angle/2) = 2 sin/(1 + cos) = 2 (1 - cos)/sin, whichever does not cancel."""
        cosine, sine = cosine_and_sine(g)
        right = cosine > 0.0
        return (2.0 * jnp.where(right, sine, 1.0 - cosine) / jnp.where(right, 1.0 + cosine, sine))[None]

    def mean(self, omega: Array, v: Array) -> Array:
        (w,) = omega
        x = w * w
        along, across = sinc(x), w * cosc(x)
        return jnp.array([along * v[0] - across * v[1], across * v[0] + along * v[1]])

    def mean_inverse(self, omega: Array, v: Array) -> Array:
        (w,) = omega
        along, across = 1.0 - w * w * cotc(w * w), 0.5 * w
        return jnp.array([along * v[0] + across * v[1], along * v[1] - across * v[0]])

    def resolvent_fraction(self, omega: Array) -> tuple[Array, Array]:
        half = 0.5 * omega[0]
        return jnp.array([[1.0, -half], [half, 1.0]]), 1.0 + half * half

    def Ad(self, g: Array, xi: Array) -> Array:
        return xi

    def ad(self, xi: Array, eta: Array) -> Array:
        return jnp.zeros_like(eta)

    def normalise(self, g: Array) -> Array:
        cosine, sine = cosine_and_sine(g)
        scale = 1.5 - 0.5 * (cosine * cosine + sine * sine)
        cosine, sine = scale * cosine, scale * sine
        return jnp.array([[cosine, -sine], [sine, cosine]])

    def moment(self, x: Array, force: Array) -> Array:
        return (x[0] * force[1] - x[1] * force[0])[None]

    def dexp(self, xi: Array, eta: Array) -> Array:
        return eta

    def dexp_inverse(self, xi: Array, eta: Array) -> Array:
        return eta

    def dcayley(self, xi: Array, eta: Array) -> Array:
        return eta / (1.0 + 0.25 * xi * xi)

    def dcayley_inverse(self, xi: Array, eta: Array) -> Array:
        return eta * (1.0 + 0.25 * xi * xi)

    def mean_dcayley(self, xi: Array) -> Array:
        return 1.0 + 0.25 * xi * xi

    def element(self, value: Any) -> Array:
        """A rotation matrix, or an angle."""
        array = parse(value, str(self), {(2, 2): "a rotation matrix", (): "an angle", (1,): "an angle"})
        if array.ndim < 2:
            return turn(array.reshape(()))
        require_rotation(array, str(self))
        return normalised(self, array)

    def angles(self, g: Array) -> Array:
        cosine, sine = cosine_and_sine(g)
        return jnp.arctan2(jnp.where(sine == 0.0, 0.0, sine), cosine)[None]

    def winding(self, g0: Array, g1: Array) -> Array:
        (c0, s0), (c1, s1) = cosine_and_sine(g0), cosine_and_sine(g1)
        cross = c0 * s1 - s0 * c1
        forward = (s0 >= 0.0) & (s1 < 0.0) & (cross > 0.0)
        backward = (s0 < 0.0) & (s1 >= 0.0) & (cross < 0.0)
        return jnp.where(forward, 1.0, jnp.where(backward, -1.0, 0.0))[None]


def turn(angle: Array | float) -> Array:
    """The rotation by an angle."""
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.array([[cosine, -sine], [sine, cosine]])


def cosine_and_sine(g: Array) -> tuple[Array, Array]:
    """The first column of a rotation matrix."""
    return g[0, 0], g[1, 0]
