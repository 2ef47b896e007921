"""Rigid motions of the plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .._series import cosc, cotc, sinc1
from ._input import normalised, parse
from .motions import Motions, require_motion
from .so2 import SO2, turn


@jax.tree_util.register_static
@dataclass(frozen=True)
class SE2(Motions):
    """3 x 3 matrices [[R, x], [0, 1]]; algebra coordinates (omega, v1, v2)."""

    @property
    def rotations(self) -> SO2:
        return SO2()

    def dexp(self, xi: Array, eta: Array) -> Array:
        """1 - (1 - cos t)/t^2 ad + (t - sin t)/t^3 ad^2, since ad^3 = -t^2 ad."""
        x = xi[0] * xi[0]
        once = self.ad(xi, eta)
        return eta - cosc(x) * once + sinc1(x) * self.ad(xi, once)

    def dexp_inverse(self, xi: Array, eta: Array) -> Array:
        """1 + ad/2 + (1 - (t/2) cot(t/2))/t^2 ad^2."""
        once = self.ad(xi, eta)
        return eta + 0.5 * once + cotc(xi[0] * xi[0]) * self.ad(xi, once)

    def mean_dcayley(self, xi: Array) -> Array:
        return jnp.broadcast_to(1.0 + 0.25 * xi[0] * xi[0], (3,))

    def element(self, value: Any) -> Array:
        """A matrix, or (angle, x, y)."""
        array = parse(value, str(self), {(3, 3): "a matrix [[R, x], [0, 1]]", (3,): "(angle, x, y)"})
        if array.ndim == 1:
            return self.motion(turn(array[0]), array[1:])
        require_motion(array, str(self))
        return normalised(self, array)
