"""What SO(2), SO(3) and SO(n) share.

Rotations of the plane.

Rotations of space.

Rotations in any dimension.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..numerics import array, normalised, parse, require_rotation, solve
from .base import Group, columns
from .functions import cosc, cotc, exponential, sinc, sinc1


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


@jax.tree_util.register_static
@dataclass(frozen=True)
class SOn(Rotations):
    """n x n rotation matrices; coordinates (12, 13, .., 23, ..) with hat(xi)_ij = +xi for i < j, n >= 4."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 4:
            raise InvalidInput(f"SOn needs n >= 4, but n = {self.n} was given: use SO2() or SO3()")

    @property
    def size(self) -> int:
        return self.n

    def hat(self, xi: Array) -> Array:
        starts = [i * (2 * self.n - i - 1) // 2 for i in range(self.n + 1)]
        rows = [jnp.concatenate([jnp.zeros(i + 1), xi[starts[i] : starts[i + 1]]]) for i in range(self.n)]
        upper = jnp.stack(rows)
        return upper - upper.T

    def vee(self, matrix: Array) -> Array:
        skew = 0.5 * (matrix - matrix.T)
        return jnp.concatenate([skew[i, i + 1 :] for i in range(self.n - 1)])

    def exp(self, xi: Array) -> Array:
        return exponential(self.hat(xi), xi @ xi)

    def principal_log(self, g: Array) -> Array:
        """Angles and planes from eigenvectors, then Newton's method on the group while it improves."""

        def defect(xi: Array) -> Array:
            return self.vee(_small_log(self.exp(-xi) @ g))

        def improve(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
            xi, error = state
            candidate = xi + jnp.linalg.solve(columns(partial(self.dexp, xi), self.dim), error)
            remaining = defect(candidate)
            better = remaining @ remaining < error @ error
            return jnp.where(better, candidate, xi), jnp.where(better, remaining, error)

        start = self.vee(_spectral_log(g))
        return jax.lax.fori_loop(0, 3, improve, (start, defect(start)))[0]

    def mean(self, omega: Array, v: Array) -> Array:
        return exponential(_border(self.hat(omega), v), omega @ omega)[: self.n, self.n]

    def mean_inverse(self, omega: Array, v: Array) -> Array:
        return solve(columns(partial(self.mean, omega), self.n), v)

    def resolvent_fraction(self, omega: Array) -> tuple[Array, float]:
        one = jnp.eye(self.n)
        return solve(one - 0.5 * self.hat(omega), one), 1.0


def SO(n: int) -> Rotations:
    """SO(n), as `SO2` or `SO3` where closed forms exist."""
    special: dict[int, Rotations] = {2: SO2(), 3: SO3()}
    return special[n] if n in special else SOn(n)


def _border(matrix: Array, column: Array) -> Array:
    """[[X, v], [0, 0]]."""
    top = jnp.concatenate([matrix, column[:, None]], axis=1)
    return jnp.concatenate([top, jnp.zeros((1, len(matrix) + 1))], axis=0)


def _small_log(g: Array) -> Array:
    """log g = asinh of the skew part K, K - K^3/6 + 3 K^5/40, for g close to 1."""
    skew = 0.5 * (g - g.T)
    square = skew @ skew
    return skew @ (jnp.eye(len(g)) - square @ (jnp.eye(len(g)) / 6.0 - square * (3.0 / 40.0)))


def _spectral_log(g: Array) -> Array:
    """A logarithm to a few digits, from the unitary eigenvectors of a Hermitian matrix that commutes with g.

    That matrix is a combination of (g + g^T)/2 and (g - g^T)/2i, whose eigenvalues separate those of g. A small fixed
    skew matrix decides the sense of the rotation in planes where the angle is pi to rounding.
    """
    index = np.arange(1.0, len(g) + 1.0)
    sense = 1e-13 * np.sin(np.outer(index, index**2) - np.outer(index**2, index))
    symmetric, skew = 0.5 * (g + g.T), 0.5 * (g - g.T)
    _, vectors = jnp.linalg.eigh(0.8 * symmetric - 0.6j * (skew + sense))

    def expectation(matrix: Array) -> Array:
        return jnp.sum(vectors.conj() * (matrix @ vectors), axis=0)

    sine, cosine = expectation(skew).imag, expectation(symmetric).real
    angle = jnp.sign(expectation(skew + sense).imag) * jnp.arctan2(jnp.abs(sine), cosine)
    return -jnp.imag((vectors * angle) @ vectors.conj().T)
