"""Rotations of space."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._series import cosc, cotc, sinc, sinc1
from .rotations import Rotations

GENERATORS = np.cross(np.eye(3)[:, None], np.eye(3)).transpose(0, 2, 1)
"""hat(e_k), whose columns are e_k x e_j."""


@jax.tree_util.register_static
@dataclass(frozen=True)
class SO3(Rotations):
    """3 x 3 rotation matrices; hat(w) u = w x u."""

    @property
    def size(self) -> int:
        return 3

    def hat(self, xi: Array) -> Array:
        return jnp.tensordot(xi, GENERATORS, 1)

    def vee(self, matrix: Array) -> Array:
        return 0.5 * twice_vee(matrix)

    def exp(self, xi: Array) -> Array:
        """Rodrigues: 1 + sin t/t xi + (1 - cos t)/t^2 xi^2."""
        x = xi @ xi
        return rodrigues(xi, sinc(x), cosc(x))

    def principal_log(self, g: Array) -> Array:
        """2 atan2(|q|, q0) q/|q| from the quaternion, which is accurate at every angle; q0 = 0 keeps q's sign."""
        scalar, vector = unit_quaternion(g)
        sine = jnp.sqrt(vector @ vector)
        small = sine == 0.0
        half = jnp.arctan2(sine, scalar) / jnp.where(small, 1.0, sine)
        return 2.0 * jnp.where(small, 1.0, half) * vector

    def cayley(self, xi: Array) -> Array:
        scale = 1.0 / (1.0 + 0.25 * (xi @ xi))
        return rodrigues(xi, scale, 0.5 * scale)

    def principal_cayley_inverse(self, g: Array) -> Array:
        """2 q/q0."""
        scalar, vector = quaternion_row(g)
        return 2.0 * vector / scalar

    def mean(self, omega: Array, v: Array) -> Array:
        x = omega @ omega
        return polynomial(omega, cosc(x), sinc1(x), v)

    def mean_inverse(self, omega: Array, v: Array) -> Array:
        return polynomial(omega, -0.5, cotc(omega @ omega), v)

    def resolvent_fraction(self, omega: Array) -> tuple[Array, Array]:
        """(1 + hat(y) + y y^T, 1 + |y|^2) with y = omega/2."""
        half = 0.5 * omega
        return jnp.eye(3) + self.hat(half) + jnp.outer(half, half), 1.0 + half @ half

    def Ad(self, g: Array, xi: Array) -> Array:
        return g @ xi

    def ad(self, xi: Array, eta: Array) -> Array:
        return jnp.cross(xi, eta)

    def normalise(self, g: Array) -> Array:
        """Newton's correction of two columns, the third from them: the drift of a step enters only squared."""
        first, second = g[:, 0], g[:, 1]
        first = first * (1.5 - 0.5 * (first @ first))
        second = second - (first @ second) * first
        second = second * (1.5 - 0.5 * (second @ second))
        return jnp.stack([first, second, jnp.cross(first, second)], axis=1)

    def moment(self, x: Array, force: Array) -> Array:
        return jnp.cross(x, force)

    def dexp(self, xi: Array, eta: Array) -> Array:
        """1 - (1 - cos t)/t^2 ad + (t - sin t)/t^3 ad^2."""
        x = xi @ xi
        return polynomial(xi, -cosc(x), sinc1(x), eta)

    def dexp_inverse(self, xi: Array, eta: Array) -> Array:
        """1 + ad/2 + (1 - (t/2) cot(t/2))/t^2 ad^2."""
        return polynomial(xi, 0.5, cotc(xi @ xi), eta)

    def dcayley(self, xi: Array, eta: Array) -> Array:
        """(1 - ad/2)/(1 + |xi|^2/4)."""
        return (eta - 0.5 * jnp.cross(xi, eta)) / (1.0 + 0.25 * (xi @ xi))

    def dcayley_inverse(self, xi: Array, eta: Array) -> Array:
        """1 + ad/2 + xi xi^T/4."""
        return eta + 0.5 * jnp.cross(xi, eta) + 0.25 * (xi @ eta) * xi

    def mean_dcayley(self, xi: Array) -> Array:
        return jnp.broadcast_to(1.0 + 0.25 * (xi @ xi), (3,))


def polynomial(xi: Array, first: Array | float, second: Array | float, eta: Array) -> Array:
    """eta + first xi x eta + second xi x (xi x eta)."""
    turned = jnp.cross(xi, eta)
    return eta + first * turned + second * jnp.cross(xi, turned)


def rodrigues(xi: Array, first: Array, second: Array) -> Array:
    """1 + first hat(xi) + second hat(xi)^2."""
    a, b, c = xi
    fa, fb, fc = first * a, first * b, first * c
    ab, ac, bc = second * a * b, second * a * c, second * b * c
    aa, bb, cc = second * a * a, second * b * b, second * c * c
    return jnp.array(
        [
            [1.0 - (bb + cc), ab - fc, ac + fb],
            [ab + fc, 1.0 - (aa + cc), bc - fa],
            [ac - fb, bc + fa, 1.0 - (aa + bb)],
        ]
    )


def twice_vee(matrix: Array) -> Array:
    """vee(X - X^T)."""
    return jnp.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]])


def quaternion_row(g: Array) -> tuple[Array, Array]:
    """A multiple (q0, q) of the quaternion of g with q0 >= 0: the row of 4 q q^T with the largest diagonal entry.

    No entry of that row suffers cancellation (Shepperd 1978), so the small q0 near angle pi comes from the skew part
    and the axis from the symmetric part.
    """
    x, y, z = twice_vee(g)
    xx, yy, zz = g[0, 0], g[1, 1], g[2, 2]
    xy, xz, yz = g[0, 1] + g[1, 0], g[0, 2] + g[2, 0], g[1, 2] + g[2, 1]
    rows = [
        (1.0 + xx + yy + zz, jnp.array([1.0 + xx + yy + zz, x, y, z])),
        (1.0 + xx - yy - zz, jnp.array([x, 1.0 + xx - yy - zz, xy, xz])),
        (1.0 - xx + yy - zz, jnp.array([y, xy, 1.0 - xx + yy - zz, yz])),
        (1.0 - xx - yy + zz, jnp.array([z, xz, yz, 1.0 - xx - yy + zz])),
    ]
    largest, row = rows[0]
    for diagonal, candidate in rows[1:]:
        row = jnp.where(diagonal > largest, candidate, row)
        largest = jnp.maximum(diagonal, largest)
    row = jnp.where(row[0] < 0.0, -row, row)
    return row[0], row[1:]


def unit_quaternion(g: Array) -> tuple[Array, Array]:
    """The quaternion (q0, q) of g with q0 >= 0."""
    scalar, vector = quaternion_row(g)
    scale = 1.0 / jnp.sqrt(scalar * scalar + vector @ vector)
    return scale * scalar, scale * vector
