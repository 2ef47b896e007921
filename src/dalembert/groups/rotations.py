"""What SO(2), SO(3) and SO(n) share."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._input import array
from .._linalg import solve
from ._input import normalised, parse, require_rotation
from .base import Group


@dataclass(frozen=True)
class Rotations(Group):
    """n x n rotation matrices, with what rigid motions need of them."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The n of SO(n)."""

    @property
    def dim(self) -> int:
        return self.size * (self.size - 1) // 2

    def __str__(self) -> str:
        return f"SO({self.size})"

    @abc.abstractmethod
    def mean(self, omega: Array, v: Array) -> Array:
        """The mean of the rotated vector, integral of exp(s omega) v over 0 <= s <= 1."""

    @abc.abstractmethod
    def mean_inverse(self, omega: Array, v: Array) -> Array:
        """The inverse of `mean` in v."""

    @abc.abstractmethod
    def resolvent_fraction(self, omega: Array) -> tuple[Array, Array | float]:
        """(N, c) with (1 - omega/2)^-1 = N/c, polynomials where they are known; the transpose is (1 + omega/2)^-1."""

    def resolvent(self, omega: Array) -> Array:
        """The matrix (1 - omega/2)^-1."""
        numerator, c = self.resolvent_fraction(omega)
        return numerator * (1.0 / c)

    def identity(self) -> Array:
        return array(np.eye(self.size))

    def compose(self, g: Array, h: Array) -> Array:
        return g @ h

    def inverse(self, g: Array) -> Array:
        return g.T

    def matrix(self, g: Array) -> Array:
        return g

    def Ad(self, g: Array, xi: Array) -> Array:
        return self.vee(g @ self.hat(xi) @ g.T)

    def ad(self, xi: Array, eta: Array) -> Array:
        product = self.hat(xi) @ self.hat(eta)
        return self.vee(product - product.T)

    def Ad_star(self, g: Array, mu: Array) -> Array:
        """Ad_(g^-1) mu, since Ad_g is orthogonal in these coordinates."""
        return self.Ad(g.T, mu)

    def ad_star(self, xi: Array, mu: Array) -> Array:
        return self.ad(mu, xi)

    def moment(self, x: Array, force: Array) -> Array:
        """The covector omega -> <force, omega x> (on SO(3) the torque x cross force)."""
        return 2.0 * self.vee(jnp.outer(force, x))

    def cayley(self, xi: Array) -> Array:
        """2 (1 - xi/2)^-1 - 1."""
        return 2.0 * self.resolvent(xi) - jnp.eye(self.size)

    def principal_cayley_inverse(self, g: Array) -> Array:
        one = jnp.eye(self.size)
        return self.vee(2.0 * solve(g + one, g - one))

    def dcayley(self, xi: Array, eta: Array) -> Array:
        """(1 + xi/2)^-1 eta (1 - xi/2)^-1."""
        inverse = self.resolvent(xi)
        return self.vee(inverse.T @ self.hat(eta) @ inverse)

    def dcayley_inverse(self, xi: Array, eta: Array) -> Array:
        """(1 + xi/2) eta (1 - xi/2)."""
        factor = jnp.eye(self.size) - 0.5 * self.hat(xi)
        return self.vee(factor.T @ self.hat(eta) @ factor)

    def velocity(self, g: Array, dg: Array) -> Array:
        return self.vee(g.T @ dg)

    def tangent(self, g: Array, xi: Array) -> Array:
        return g @ self.hat(xi)

    def element(self, value: Any) -> Array:
        matrix = parse(value, str(self), {(self.size, self.size): "a rotation matrix"})
        require_rotation(matrix, str(self))
        return normalised(self, matrix)

    def distance(self, g: Array) -> Array:
        return frobenius(g.T @ g - jnp.eye(self.size))

    def normalise(self, g: Array) -> Array:
        return g @ (1.5 * jnp.eye(self.size) - 0.5 * (g.T @ g))


def frobenius(matrix: Array) -> Array:
    """The norm (sum of squares)^1/2, with gradient 0 at 0."""
    square = jnp.sum(matrix * matrix)
    positive = square > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
