"""Rotations: SO(2), SO(3) and SO(n)."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..kernels import compile_function
from ..numerics import TOLERANCE, TRACED_TOLERANCE, direction, parse, solve
from ..numerics.types import Angles, Covector, FourVector, Matrix, Number, Scalar, Vector, Velocity
from .base import Group, MatrixGroup, matrix_of
from .coordinates import EULER, AlgebraAxis, Numbers, euler_angles, quaternion_square, quaternions, read_rotation
from .functions import cosc, cotc, exponential, frobenius, sinc, sinc1


@dataclass(frozen=True)
class Rotations(MatrixGroup):
    """n x n rotation matrices, with what rigid motions need of them.

    Coordinates are (12, 13, .., 23, ..) with hat(xi)_ij = +xi for i < j; SO(2) and SO(3) have their own.
    """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The n of SO(n)."""

    @property
    def dim(self) -> int:
        return self.size * (self.size - 1) // 2

    @property
    def side(self) -> int:
        return self.size

    def __str__(self) -> str:
        return f"SO({self.size})"

    def is_rotation_group(self, size: int | None = None) -> bool:
        return size in (None, self.size)

    @property
    def picture(self) -> str:
        return {2: "dial", 3: "attitude"}.get(self.size, "")

    def hat(self, xi: Velocity) -> Matrix:
        starts = [i * (2 * self.size - i - 1) // 2 for i in range(self.size + 1)]
        rows = [jnp.concatenate([jnp.zeros(i + 1), xi[starts[i] : starts[i + 1]]]) for i in range(self.size)]
        upper = jnp.stack(rows)
        return upper - upper.T

    def vee(self, matrix: Matrix) -> Velocity:
        skew = 0.5 * (matrix - matrix.T)
        return jnp.concatenate([skew[i, i + 1 :] for i in range(self.size - 1)])

    def exp(self, xi: Velocity) -> Matrix:
        return exponential(self.hat(xi), xi @ xi)

    def principal_log(self, g: Matrix) -> Velocity:
        """Angles and planes from eigenvectors, then Newton's method on the group while it improves."""

        def defect(xi: Velocity) -> Velocity:
            """log(exp(-xi) g) = asinh of the skew part K, K - K^3/6 + 3 K^5/40, for what is close to 1."""
            rest, one = self.exp(-xi) @ g, jnp.eye(self.size)
            skew = 0.5 * (rest - rest.T)
            square = skew @ skew
            return self.vee(skew @ (one - square @ (one / 6.0 - square * (3.0 / 40.0))))

        def improve(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
            xi, error = state
            candidate = xi + jnp.linalg.solve(matrix_of(partial(self.dexp, xi), self.dim), error)
            remaining = defect(candidate)
            better = remaining @ remaining < error @ error
            return jnp.where(better, candidate, xi), jnp.where(better, remaining, error)

        start = self.vee(_spectral_log(g))
        found: Array = jax.lax.fori_loop(0, 3, improve, (start, defect(start)))[0]
        return found

    def mean(self, omega: Velocity, v: Vector) -> Vector:
        """The mean of the rotated vector, integral of exp(s omega) v over 0 <= s <= 1."""
        top = jnp.concatenate([self.hat(omega), v[:, None]], axis=1)
        bordered = jnp.concatenate([top, jnp.zeros((1, self.size + 1))], axis=0)  # [[omega, v], [0, 0]]
        return exponential(bordered, omega @ omega)[: self.size, self.size]

    def mean_inverse(self, omega: Velocity, v: Vector) -> Vector:
        """The inverse of `mean` in v."""
        return solve(matrix_of(partial(self.mean, omega), self.size), v)

    def resolvent(self, omega: Velocity) -> Matrix:
        """The matrix (1 - omega/2)^-1."""
        numerator, c = self.resolvent_fraction(omega)
        return jnp.asarray(numerator * (1.0 / c))

    def inverse(self, g: Matrix) -> Matrix:
        return g.T

    def ad(self, xi: Velocity, eta: Velocity) -> Velocity:
        product = self.hat(xi) @ self.hat(eta)
        return self.vee(product - product.T)

    def Ad_star(self, g: Matrix, mu: Covector) -> Covector:
        """Ad_(g^-1) mu, since Ad_g is orthogonal in these coordinates."""
        return self.Ad(g.T, mu)

    def ad_star(self, xi: Velocity, mu: Covector) -> Covector:
        return self.ad(mu, xi)

    def moment(self, x: Vector, force: Vector) -> Velocity:
        """The covector omega -> <force, omega x> (on SO(3) the torque x cross force)."""
        return 2.0 * self.vee(jnp.outer(force, x))

    def cayley(self, xi: Velocity) -> Matrix:
        """2 (1 - xi/2)^-1 - 1."""
        return 2.0 * self.resolvent(xi) - jnp.eye(self.size)

    def dcayley(self, xi: Velocity, eta: Velocity) -> Velocity:
        """(1 + xi/2)^-1 eta (1 - xi/2)^-1."""
        inverse = self.resolvent(xi)
        return self.vee(inverse.T @ self.hat(eta) @ inverse)

    def dcayley_inverse(self, xi: Velocity, eta: Velocity) -> Velocity:
        """(1 + xi/2) eta (1 - xi/2)."""
        factor = jnp.eye(self.size) - 0.5 * self.hat(xi)
        return self.vee(factor.T @ self.hat(eta) @ factor)

    def element(self, value: Any) -> Matrix:
        return self.corrected(parse(value, str(self), {(self.size, self.size): "a rotation matrix"}))

    def flaws(self, g: Matrix) -> tuple[Number, ...]:
        return self.distance(g), direction(g, jnp.zeros((self.size, 1)))[1]

    def is_near(self, *flaws: Any) -> Any:
        return (flaws[0] <= TRACED_TOLERANCE) & (flaws[1] >= 0)

    def refuse(self, matrix: Matrix, *flaws: Any, group: Any = None) -> None:
        defect, sign = flaws
        if not defect <= TOLERANCE:
            raise InvalidInput(
                f"a rotation in {group or self} must satisfy |R^T R - 1| <= {TOLERANCE:g}, but it is {defect:.3g}"
            )
        if sign < 0:
            raise InvalidInput(
                f"a rotation in {group or self} must have determinant +1, but a reflection (-1) was given"
            )

    def distance(self, g: Matrix) -> Number:
        return frobenius(g.T @ g - jnp.eye(self.size))

    def normalise(self, g: Matrix) -> Matrix:
        return g @ (1.5 * jnp.eye(self.size) - 0.5 * (g.T @ g))

    def axes(self) -> list[AlgebraAxis]:
        """One angular velocity in the plane, three by axis in space, by plane beyond."""
        n = self.size
        planes = [f"{i + 1}{'.' * (n > 9)}{j + 1}" for i in range(n) for j in range(i + 1, n)]
        names = {2: [""], 3: ["1", "2", "3"]}.get(n, planes)
        return [AlgebraAxis(f"w{name}", "rad s-1", "kg m2 s-1", "N m") for name in names]

    def from_table(self, given: Mapping[str, Any]) -> Matrix:
        """From one of angle, quaternion, euler, rotation_vector and matrix, as the size allows."""
        return self.element(read_rotation(given, self.size, str(self)))

    def describe(self, g: Any, angles: Any = (), convention: str = "") -> dict[str, Any]:
        rotation = np.asarray(g)
        if self.size == 2:
            turns = angles if np.size(angles) else self.angles(jnp.asarray(rotation))
            return {"angle": float(np.ravel(turns)[0])}
        if self.size > 3:
            return {"matrix": rotation.tolist()}
        if convention:
            return {"euler": euler_angles(rotation[None], convention)[0].tolist(), "convention": convention}
        return {"quaternion": quaternions(rotation[None])[0].tolist()}

    identity_table = Group.identity_table

    def path(self, kind: str, g: Any, angles: Any = (), convention: str = EULER) -> Numbers | None:
        if self.size != 3 or kind not in ("quaternion", "euler"):
            return None
        return quaternions(np.asarray(g)) if kind == "quaternion" else euler_angles(np.asarray(g), convention)


@dataclass(frozen=True)
class SO2(Rotations):
    """Rotations of the plane, such as a wheel or a steering angle: 2 x 2 matrices; the velocity is (w,).

    hat((w,)) = [[0, -w], [w, 0]].
    """

    size = 2

    def hat(self, xi: Velocity) -> Matrix:
        (w,) = xi
        return jnp.array([[0.0, -w], [w, 0.0]])

    def vee(self, matrix: Matrix) -> Velocity:
        return 0.5 * (matrix[1, 0] - matrix[0, 1])[None]

    def exp(self, xi: Velocity) -> Matrix:
        return turn(xi[0])

    def principal_log(self, g: Matrix) -> Velocity:
        return self.angles(g)

    def cayley(self, xi: Velocity) -> Matrix:
        half = 0.5 * xi[0]
        scale = 1.0 / (1.0 + half * half)
        cosine, sine = (1.0 - half * half) * scale, 2.0 * half * scale
        return jnp.array([[cosine, -sine], [sine, cosine]])

    def principal_cayley_inverse(self, g: Matrix) -> Velocity:
        """2 tan(angle/2) = 2 sin/(1 + cos) = 2 (1 - cos)/sin, whichever does not cancel."""
        cosine, sine = cosine_and_sine(g)
        right = cosine > 0.0
        return (2.0 * jnp.where(right, sine, 1.0 - cosine) / jnp.where(right, 1.0 + cosine, sine))[None]

    def mean(self, omega: Velocity, v: Vector) -> Vector:
        (w,) = omega
        x = w * w
        along, across = sinc(x), w * cosc(x)
        return jnp.array([along * v[0] - across * v[1], across * v[0] + along * v[1]])

    def mean_inverse(self, omega: Velocity, v: Vector) -> Vector:
        (w,) = omega
        along, across = 1.0 - w * w * cotc(w * w), 0.5 * w
        return jnp.array([along * v[0] + across * v[1], along * v[1] - across * v[0]])

    def resolvent_fraction(self, omega: Velocity) -> tuple[Array, Array]:
        half = 0.5 * omega[0]
        return jnp.array([[1.0, -half], [half, 1.0]]), 1.0 + half * half

    def Ad(self, g: Matrix, xi: Velocity) -> Velocity:
        return xi

    def ad(self, xi: Velocity, eta: Velocity) -> Velocity:
        return jnp.zeros_like(eta)

    def normalise(self, g: Matrix) -> Matrix:
        cosine, sine = cosine_and_sine(g)
        scale = 1.5 - 0.5 * (cosine * cosine + sine * sine)
        cosine, sine = scale * cosine, scale * sine
        return jnp.array([[cosine, -sine], [sine, cosine]])

    def moment(self, x: Vector, force: Vector) -> Velocity:
        return (x[0] * force[1] - x[1] * force[0])[None]

    def dexp(self, xi: Velocity, eta: Velocity) -> Velocity:
        return eta

    dexp_inverse = dexp

    def dcayley(self, xi: Velocity, eta: Velocity) -> Velocity:
        return eta / (1.0 + 0.25 * xi * xi)

    def dcayley_inverse(self, xi: Velocity, eta: Velocity) -> Velocity:
        return eta * (1.0 + 0.25 * xi * xi)

    def mean_dcayley(self, xi: Velocity) -> Velocity:
        return 1.0 + 0.25 * xi * xi

    def element(self, value: Any) -> Matrix:
        """A rotation matrix, or an angle."""
        array = parse(value, str(self), {(2, 2): "a rotation matrix", (): "an angle", (1,): "an angle"})
        if array.ndim < 2:
            return turned(array.reshape(()))
        return super().element(array)

    def angles(self, g: Matrix) -> Angles:
        cosine, sine = cosine_and_sine(g)
        angle = jnp.arctan2(sine, cosine)  # -pi where the sine is -0; it keeps its slope there
        return (angle + jnp.where((sine == 0.0) & (angle < 0.0), 2.0 * jnp.pi, 0.0))[None]

    def winding(self, g0: Matrix, g1: Matrix) -> Angles:
        (c0, s0), (c1, s1) = cosine_and_sine(g0), cosine_and_sine(g1)
        cross = c0 * s1 - s0 * c1
        forward = (s0 >= 0.0) & (s1 < 0.0) & (cross > 0.0)
        backward = (s0 < 0.0) & (s1 >= 0.0) & (cross < 0.0)
        return jnp.where(forward, 1.0, jnp.where(backward, -1.0, 0.0))[None]


def turn(angle: Scalar) -> Matrix:
    """The rotation by an angle."""
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.array([[cosine, -sine], [sine, cosine]])


turned = compile_function(turn, place=False)


def cosine_and_sine(g: Matrix) -> tuple[Array, Array]:
    """The first column of a rotation matrix."""
    return g[0, 0], g[1, 0]


@jax.custom_jvp
def _restore(g: Matrix) -> Matrix:
    return SO3().normalise(g)


@_restore.defjvp
def _restore_jvp(primals: tuple[Matrix], tangents: tuple[Matrix]) -> tuple[Matrix, Matrix]:
    """For g in the group dg -> g hat(w), where the columns a, b, c of g give w = (c.db, -c.da, b.da).

    This is the derivative of `normalise` there, in a chain of operations of a third of the length.
    """
    (g,), (dg,) = primals, tangents
    (a, b, c), (da, db, _) = g.T, dg.T
    x, y, z = c @ db, -(c @ da), b @ da
    return _restore(g), jnp.stack([z * b - y * c, x * c - z * a, y * a - x * b], axis=1)


GENERATORS = np.cross(np.eye(3)[:, None], np.eye(3)).transpose(0, 2, 1)
"""hat(e_k), whose columns are e_k x e_j."""


@dataclass(frozen=True)
class SO3(Rotations):
    """Rotations of space, the attitude of a body: 3 x 3 matrices; the velocity is the angular velocity in the body.

    hat(w) u = w x u.
    """

    size = 3

    def hat(self, xi: Velocity) -> Matrix:
        return jnp.tensordot(xi, GENERATORS, 1)

    def vee(self, matrix: Matrix) -> Velocity:
        m = matrix
        return 0.5 * jnp.array([m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])

    def exp(self, xi: Velocity) -> Matrix:
        """Rodrigues: 1 + sin t/t xi + (1 - cos t)/t^2 xi^2."""
        x = xi @ xi
        return rodrigues(xi, sinc(x), cosc(x))

    def principal_log(self, g: Matrix) -> Velocity:
        """2 atan2(|q|, q0) q/|q| from the quaternion, which is accurate at every angle; q0 = 0 keeps q's sign."""
        scalar, vector = unit_quaternion(g)
        sine = jnp.sqrt(vector @ vector)
        small = sine == 0.0
        half = jnp.arctan2(sine, scalar) / jnp.where(small, 1.0, sine)
        return 2.0 * jnp.where(small, 1.0, half) * vector

    def cayley(self, xi: Velocity) -> Matrix:
        scale = 1.0 / (1.0 + 0.25 * (xi @ xi))
        return rodrigues(xi, scale, 0.5 * scale)

    def principal_cayley_inverse(self, g: Matrix) -> Velocity:
        """2 q/q0."""
        scalar, vector = quaternion_row(g)
        return 2.0 * vector / scalar

    def mean(self, omega: Velocity, v: Vector) -> Vector:
        x = omega @ omega
        return quadratic_in(omega, cosc(x), sinc1(x), v)

    def mean_inverse(self, omega: Velocity, v: Vector) -> Vector:
        return quadratic_in(omega, -0.5, cotc(omega @ omega), v)

    def resolvent_fraction(self, omega: Velocity) -> tuple[Array, Array]:
        """(1 + hat(y) + y y^T, 1 + |y|^2) with y = omega/2."""
        half = 0.5 * omega
        return jnp.eye(3) + self.hat(half) + jnp.outer(half, half), 1.0 + half @ half

    def Ad(self, g: Matrix, xi: Velocity) -> Velocity:
        return g @ xi

    def ad(self, xi: Velocity, eta: Velocity) -> Velocity:
        return jnp.cross(xi, eta)

    def normalise(self, g: Matrix) -> Matrix:
        """Newton's correction of two columns, the third from them: the drift of a step enters only squared."""
        first, second = g[:, 0], g[:, 1]
        first = first * (1.5 - 0.5 * (first @ first))
        second = second - (first @ second) * first
        second = second * (1.5 - 0.5 * (second @ second))
        return jnp.stack([first, second, jnp.cross(first, second)], axis=1)

    def restore(self, g: Matrix) -> Matrix:
        return _restore(g)

    def moment(self, x: Vector, force: Vector) -> Velocity:
        return jnp.cross(x, force)

    def dexp(self, xi: Velocity, eta: Velocity) -> Velocity:
        """1 - (1 - cos t)/t^2 ad + (t - sin t)/t^3 ad^2."""
        x = xi @ xi
        return quadratic_in(xi, -cosc(x), sinc1(x), eta)

    def dexp_inverse(self, xi: Velocity, eta: Velocity) -> Velocity:
        """1 + ad/2 + (1 - (t/2) cot(t/2))/t^2 ad^2."""
        return quadratic_in(xi, 0.5, cotc(xi @ xi), eta)

    def dcayley(self, xi: Velocity, eta: Velocity) -> Velocity:
        """(1 - ad/2)/(1 + |xi|^2/4)."""
        return (eta - 0.5 * jnp.cross(xi, eta)) / (1.0 + 0.25 * (xi @ xi))

    def dcayley_inverse(self, xi: Velocity, eta: Velocity) -> Velocity:
        """1 + ad/2 + xi xi^T/4."""
        return eta + 0.5 * jnp.cross(xi, eta) + 0.25 * (xi @ eta) * xi

    def mean_dcayley(self, xi: Velocity) -> Velocity:
        return jnp.broadcast_to(1.0 + 0.25 * (xi @ xi), (3,))

    def series_start(self, g: Matrix) -> FourVector:
        """The quaternion q(0) = 1 of g(t) = g R(q), scalar first: it turns half as fast as the rotation.

        The series of both are entire, and that of q gives the same accuracy in substeps up to twice as long.
        """
        return jnp.array([1.0, 0.0, 0.0, 0.0])

    def series_entries(self, g: Matrix) -> Matrix:
        return g

    def series_rate(self, q: Array, xi: Velocity) -> Array:
        """q' = q xi/2 of a quaternion, q hat(xi) of a matrix."""
        if q.ndim == 2:
            return q @ self.hat(xi)
        half = 0.5 * xi
        return jnp.concatenate([-(q[1:] @ half)[None], q[0] * half + jnp.cross(q[1:], half)])

    def series_element(self, g: Matrix, q: Array) -> Matrix:
        """g R(q), R(q) u = u + 2 q0 v x u + 2 v x (v x u) for |q| = 1; else a multiple of a rotation by |q|^2."""
        if q.ndim == 2:
            return q
        a, b, c, d = q
        return g @ jnp.array([
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a - b * b + c * c - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a - b * b - c * c + d * d],
        ])  # fmt: skip


def quadratic_in(xi: Velocity, first: Scalar, second: Scalar, eta: Velocity) -> Velocity:
    """eta + first xi x eta + second xi x (xi x eta)."""
    turned = jnp.cross(xi, eta)
    return eta + first * turned + second * jnp.cross(xi, turned)


def rodrigues(xi: Velocity, first: Scalar, second: Scalar) -> Matrix:
    """1 + first hat(xi) + second hat(xi)^2."""
    a, b, c = xi
    fa, fb, fc = first * a, first * b, first * c
    ab, ac, bc = second * a * b, second * a * c, second * b * c
    aa, bb, cc = second * a * a, second * b * b, second * c * c
    return jnp.array([
        [1.0 - (bb + cc), ab - fc, ac + fb],
        [ab + fc, 1.0 - (aa + cc), bc - fa],
        [ac - fb, bc + fa, 1.0 - (aa + bb)],
    ])  # fmt: skip


def quaternion_row(g: Matrix) -> tuple[Array, Array]:
    """A multiple (q0, q) of the quaternion of g with q0 >= 0: the row of 4 q q^T with the largest diagonal entry.

    No entry of that row suffers cancellation (Shepperd 1978), so the small q0 near angle pi comes from the skew part
    and the axis from the symmetric part.
    """
    rows = quaternion_square(g)
    largest, row = rows[0][0], jnp.array(rows[0])
    for k in range(1, 4):
        row = jnp.where(rows[k][k] > largest, jnp.array(rows[k]), row)
        largest = jnp.maximum(rows[k][k], largest)
    row = jnp.where(row[0] < 0.0, -row, row)
    return row[0], row[1:]


def unit_quaternion(g: Matrix) -> tuple[Array, Array]:
    """The quaternion (q0, q) of g with q0 >= 0."""
    scalar, vector = quaternion_row(g)
    scale = 1.0 / jnp.sqrt(scalar * scalar + vector @ vector)
    return scale * scalar, scale * vector


@dataclass(frozen=True)
class SOn(Rotations):
    """n x n rotation matrices, n >= 4, in the coordinates of `Rotations`."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 4:
            raise InvalidInput(f"SOn needs n >= 4, but n = {self.n} was given: use SO2() or SO3()")

    @property
    def size(self) -> int:
        return self.n


def SO(n: int) -> Rotations:
    """The rotations SO(n): `SO2`, `SO3`, or `SOn` for n >= 4."""
    return SO2() if n == 2 else SO3() if n == 3 else SOn(n)


def _spectral_log(g: Matrix) -> Matrix:
    """A logarithm to a few digits, from the unitary eigenvectors of a Hermitian matrix that commutes with g.

    That matrix is a combination of (g + g^T)/2 and (g - g^T)/2i, whose eigenvalues separate those of g. A small fixed
    skew matrix decides the sense of the rotation in planes where the angle is pi to rounding.
    """
    index = np.arange(1.0, len(g) + 1.0)
    sense = 1e-13 * np.sin(np.outer(index, index**2) - np.outer(index**2, index))
    symmetric, skew = 0.5 * (g + g.T), 0.5 * (g - g.T)
    _, vectors = jnp.linalg.eigh(0.8 * symmetric - 0.6j * (skew + sense))

    def expectation(matrix: Matrix) -> Array:
        return jnp.sum(vectors.conj() * (matrix @ vectors), axis=0)

    sine, cosine = expectation(skew).imag, expectation(symmetric).real
    angle = jnp.sign(expectation(skew + sense).imag) * jnp.arctan2(jnp.abs(sine), cosine)
    return -jnp.imag((vectors * angle) @ vectors.conj().T)
