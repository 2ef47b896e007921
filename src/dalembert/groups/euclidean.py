"""The vector group (R^n, +)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..numerics import array, parse
from .base import Group


@jax.tree_util.register_static
@dataclass(frozen=True)
class Euclidean(Group):
    """R^n under addition: elements have shape (n,), matrices are translations [[1, x], [0, 1]] of size n + 1."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidInput(f"R^n needs n >= 1, but n = {self.n} was given")

    def __str__(self) -> str:
        return f"R^{self.n}"

    @property
    def dim(self) -> int:
        return self.n

    def identity(self) -> Array:
        return array(np.zeros(self.n))

    def compose(self, g: Array, h: Array) -> Array:
        return g + h

    def inverse(self, g: Array) -> Array:
        return -g

    def matrix(self, g: Array) -> Array:
        return jnp.eye(self.n + 1) + self.hat(g)

    def hat(self, xi: Array) -> Array:
        return jnp.pad(xi[:, None], ((0, 1), (self.n, 0)))

    def vee(self, matrix: Array) -> Array:
        return matrix[: self.n, self.n]

    def exp(self, xi: Array) -> Array:
        return xi

    def principal_log(self, g: Array) -> Array:
        return g

    def cayley(self, xi: Array) -> Array:
        return xi

    def principal_cayley_inverse(self, g: Array) -> Array:
        return g

    def Ad(self, g: Array, xi: Array) -> Array:
        return xi

    def ad(self, xi: Array, eta: Array) -> Array:
        return jnp.zeros_like(eta)

    def velocity(self, g: Array, dg: Array) -> Array:
        return dg

    def tangent(self, g: Array, xi: Array) -> Array:
        return xi

    def dexp(self, xi: Array, eta: Array) -> Array:
        return eta

    def dexp_inverse(self, xi: Array, eta: Array) -> Array:
        return eta

    def dcayley(self, xi: Array, eta: Array) -> Array:
        return eta

    def dcayley_inverse(self, xi: Array, eta: Array) -> Array:
        return eta

    def mean_dcayley(self, xi: Array) -> Array:
        return jnp.ones_like(xi)

    def resolvent_fraction(self, xi: Array) -> tuple[Array, float]:
        return jnp.eye(self.n + 1) + 0.5 * self.hat(xi), 1.0

    def element(self, value: Any) -> Array:
        return parse(value, str(self), {(self.n,): "a vector"})

    def distance(self, g: Array) -> Array:
        return jnp.zeros(())

    def normalise(self, g: Array) -> Array:
        return g
