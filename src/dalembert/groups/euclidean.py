"""The vector group (R^n, +)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..numerics import array, parse
from ..numerics.types import Matrix, Number, Velocity
from .base import Group


@dataclass(frozen=True)
class Euclidean(Group):
    """R^n under addition: elements have shape (n,), matrices are translations [[1, x], [0, 1]] of size n + 1."""

    n: int
    is_flat = True
    picture = "point"

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int | np.integer) or self.n < 1:
            raise InvalidInput(f"R^n needs a whole number n >= 1, but n = {self.n!r} was given")

    def __str__(self) -> str:
        return f"R^{self.n}"

    @property
    def dim(self) -> int:
        return self.n

    def identity(self) -> Velocity:
        return array(np.zeros(self.n))

    def compose(self, g: Velocity, h: Velocity) -> Velocity:
        return g + h

    def inverse(self, g: Velocity) -> Velocity:
        return -g

    def matrix(self, g: Velocity) -> Matrix:
        return jnp.eye(self.n + 1) + self.hat(g)

    def hat(self, xi: Velocity) -> Matrix:
        return jnp.pad(xi[:, None], ((0, 1), (self.n, 0)))

    def vee(self, matrix: Matrix) -> Velocity:
        return matrix[: self.n, self.n]

    def exp(self, xi: Velocity) -> Velocity:
        return xi

    def principal_log(self, g: Velocity) -> Velocity:
        return g

    def cayley(self, xi: Velocity) -> Velocity:
        return xi

    def principal_cayley_inverse(self, g: Velocity) -> Velocity:
        return g

    def Ad(self, g: Velocity, xi: Velocity) -> Velocity:
        return xi

    def ad(self, xi: Velocity, eta: Velocity) -> Velocity:
        return jnp.zeros_like(eta)

    def velocity(self, g: Velocity, dg: Velocity) -> Velocity:
        return dg

    def tangent(self, g: Velocity, xi: Velocity) -> Velocity:
        return xi

    def dexp(self, xi: Velocity, eta: Velocity) -> Velocity:
        return eta

    dexp_inverse = dcayley = dcayley_inverse = dexp

    def mean_dcayley(self, xi: Velocity) -> Velocity:
        return jnp.ones_like(xi)

    def resolvent_fraction(self, xi: Velocity) -> tuple[Matrix, float]:
        return jnp.eye(self.n + 1) + 0.5 * self.hat(xi), 1.0

    def element(self, value: Any) -> Velocity:
        return parse(value, str(self), {(self.n,): "a vector"})

    def distance(self, g: Velocity) -> Number:
        return jnp.zeros(())

    def normalise(self, g: Velocity) -> Velocity:
        return g
