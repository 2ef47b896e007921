"""Rigid motions of space."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax import Array

from .._series import cosc, cotc, d_cosc, d_cotc, d_sinc1, sinc1
from .motions import Motions
from .so3 import SO3


@jax.tree_util.register_static
@dataclass(frozen=True)
class SE3(Motions):
    """4 x 4 matrices [[R, x], [0, 1]]; algebra coordinates (omega, v)."""

    @property
    def rotations(self) -> SO3:
        return SO3()

    def dexp(self, xi: Array, eta: Array) -> Array:
        """1 - (c - x c') ad + (b - x b') ad^2 + c' ad^3 - b' ad^4 with c = (1 - cos t)/t^2, b = (t - sin t)/t^3.

        Hermite interpolation of (1 - exp(-z))/z, since ad (ad^2 + x)^2 = 0, x = t^2 (Selig 2005, section 7.5).
        """
        x = xi[:3] @ xi[:3]
        c, dc, b, db = cosc(x), d_cosc(x), sinc1(x), d_sinc1(x)
        one = self.ad(xi, eta)
        two = self.ad(xi, one)
        three = self.ad(xi, two)
        return eta - (c - x * dc) * one + (b - x * db) * two + dc * three - db * self.ad(xi, three)

    def dexp_inverse(self, xi: Array, eta: Array) -> Array:
        """1 + ad/2 + (d - x d') ad^2 - d' ad^4 with d = (1 - (t/2) cot(t/2))/t^2, x = t^2."""
        x = xi[:3] @ xi[:3]
        d, dd = cotc(x), d_cotc(x)
        one = self.ad(xi, eta)
        two = self.ad(xi, one)
        return eta + 0.5 * one + (d - x * dd) * two - dd * self.ad(xi, self.ad(xi, two))
