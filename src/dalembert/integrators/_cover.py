"""Variables for the Taylor series of a curve g' = g xi: the entries of g, and for rotations of space the unit quaternion.

A quaternion turns half as fast as the rotation and has four entries instead of nine: the series of both are entire, and that of
the quaternion gives the same accuracy in substeps up to twice as long.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import jax.numpy as jnp
from jax import Array

from ..groups import SE2, SO3, Group
from ..groups.product import Product


class Cover:
    """The entries of g themselves: q(0) = g, q' = q xi."""

    def __init__(self, group: Group):
        self.group = group

    def start(self, g) -> Any:
        return g

    def rate(self, q, xi: Array) -> Any:
        return self.group.tangent(q, xi)

    def element(self, g, q) -> Any:
        """The configuration that q stands for in a substep from g."""
        return q


class Quaternion(Cover):
    """g(t) = g R(q), q(0) = 1, q' = q xi/2, scalar first."""

    def start(self, g) -> Array:
        return jnp.array([1.0, 0.0, 0.0, 0.0])

    def rate(self, q, xi: Array) -> Array:
        half = 0.5 * xi
        return jnp.concatenate([-(q[1:] @ half)[None], q[0] * half + jnp.cross(q[1:], half)])

    def element(self, g, q) -> Array:
        """R(q) u = u + 2 q0 v x u + 2 v x (v x u) for |q| = 1; written without that, as a multiple of a rotation by |q|^2."""
        a, b, c, d = q
        return g @ jnp.array([
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a - b * b + c * c - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a - b * b - c * c + d * d],
        ])  # fmt: skip


class Planar(Cover):
    """(cos, sin, x, y) of a motion of the plane."""

    def start(self, g) -> Array:
        return jnp.stack([g[0, 0], g[1, 0], g[0, 2], g[1, 2]])

    def rate(self, q, xi: Array) -> Array:
        (c, s, _, _), (w, u, v) = q, xi
        return jnp.stack([-s * w, c * w, c * u - s * v, s * u + c * v])

    def element(self, g, q) -> Array:
        c, s, x, y = q
        return jnp.array([[c, -s, x], [s, c, y], [0.0, 0.0, 1.0]])


class Factors(Cover):
    """Each factor of a product in its own variables."""

    def __init__(self, group: Product):
        self.parts, self.split = [cover(factor) for factor in group.factors], group.split

    def start(self, g) -> tuple:
        return tuple(part.start(x) for part, x in zip(self.parts, g, strict=True))

    def rate(self, q, xi: Array) -> tuple:
        return tuple(part.rate(x, v) for part, x, v in zip(self.parts, q, self.split(xi), strict=True))

    def element(self, g, q) -> tuple:
        return tuple(part.element(x, y) for part, x, y in zip(self.parts, g, q, strict=True))


@singledispatch
def cover(group: Group) -> Cover:
    """The variables for the curves of a group."""
    return Cover(group)


@cover.register
def _(group: SO3) -> Cover:
    return Quaternion(group)


@cover.register
def _(group: SE2) -> Cover:
    return Planar(group)


@cover.register
def _(group: Product) -> Cover:
    return Factors(group)
