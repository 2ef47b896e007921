"""Rigid motions: SE(2), SE(3) and SE(n), semidirect products of rotations and translations."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..kernels import compile_function
from ..numerics import TOLERANCE, TRACED_TOLERANCE, parse, vector
from ..numerics.types import Angles, BorderedMatrix, Covector, FourVector, Matrix, Number, Scalar, Vector, Velocity
from .base import Group, MatrixGroup
from .coordinates import EULER, AlgebraAxis, Numbers, read_rotation
from .functions import cosc, cotc, d_cosc, d_cotc, d_sinc1, exponential, sinc1
from .so import SO2, SO3, Rotations, SOn, turn


@dataclass(frozen=True)
class Motions(MatrixGroup):
    """Matrices [[R, x], [0, 1]] of size n + 1; algebra coordinates are (omega, v), omega those of so(n)."""

    @property
    @abc.abstractmethod
    def rotations(self) -> Rotations:
        """The group of the rotation parts."""

    @property
    def size(self) -> int:
        """The n of SE(n)."""
        return self.rotations.size

    @property
    def dim(self) -> int:
        return self.rotations.dim + self.size

    @property
    def side(self) -> int:
        return self.size + 1

    def __str__(self) -> str:
        return f"SE({self.size})"

    def is_motion_group(self, size: int | None = None) -> bool:
        return size in (None, self.size)

    @property
    def picture(self) -> str:
        return {2: "plane", 3: "body"}.get(self.size, "")

    def split(self, xi: Velocity) -> tuple[Array, Array]:
        """(omega, v)."""
        return xi[: self.rotations.dim], xi[self.rotations.dim :]

    def parts(self, g: Matrix) -> tuple[Array, Array]:
        """(R, x)."""
        return g[: self.size, : self.size], g[: self.size, self.size]

    def motion(self, rotation: Matrix, translation: Vector, corner: Scalar = 1.0) -> BorderedMatrix:
        """[[R, x], [0, corner]]."""
        top = jnp.concatenate([rotation, translation[:, None]], axis=1)
        bottom = jnp.concatenate([jnp.zeros((1, self.size)), jnp.full((1, 1), corner)], axis=1)
        return jnp.concatenate([top, bottom], axis=0)

    def compose(self, g: Matrix, h: Matrix) -> Matrix:
        (r, x), (q, y) = self.parts(g), self.parts(h)
        return self.motion(r @ q, r @ y + x)

    def inverse(self, g: Matrix) -> Matrix:
        r, x = self.parts(g)
        return self.motion(r.T, -(x @ r))

    def hat(self, xi: Velocity) -> Matrix:
        omega, v = self.split(xi)
        return self.motion(self.rotations.hat(omega), v, corner=0.0)

    def vee(self, matrix: Matrix) -> Velocity:
        rotation, v = self.parts(matrix)
        return jnp.concatenate([self.rotations.vee(rotation), v])

    def exp(self, xi: Velocity) -> Matrix:
        omega, v = self.split(xi)
        return self.motion(self.rotations.exp(omega), self.rotations.mean(omega, v))

    def principal_log(self, g: Matrix) -> Velocity:
        r, x = self.parts(g)
        omega = self.rotations.log(r)
        return jnp.concatenate([omega, self.rotations.mean_inverse(omega, x)])

    def cayley(self, xi: Velocity) -> Matrix:
        omega, v = self.split(xi)
        return self.motion(self.rotations.cayley(omega), self.rotations.resolvent(omega) @ v)

    def resolvent_fraction(self, xi: Velocity) -> tuple[Array, Array | float]:
        """(N, c) with (1 - xi/2)^-1 = N/c."""
        omega, v = self.split(xi)
        numerator, c = self.rotations.resolvent_fraction(omega)
        return self.motion(numerator, 0.5 * (numerator @ v), c), c

    def principal_cayley_inverse(self, g: Matrix) -> Velocity:
        r, x = self.parts(g)
        omega = self.rotations.cayley_inverse(r)
        return jnp.concatenate([omega, x - 0.5 * (self.rotations.hat(omega) @ x)])

    def Ad(self, g: Matrix, xi: Velocity) -> Velocity:
        r, x = self.parts(g)
        omega, v = self.split(xi)
        turned = self.rotations.Ad(r, omega)
        return jnp.concatenate([turned, r @ v - self.rotations.hat(turned) @ x])

    def Ad_star(self, g: Matrix, mu: Covector) -> Covector:
        r, x = self.parts(g)
        torque, force = self.split(mu)
        turned = self.rotations.Ad_star(r, torque - self.rotations.moment(x, force))
        return jnp.concatenate([turned, force @ r])

    def ad(self, xi: Velocity, eta: Velocity) -> Velocity:
        (omega, v), (chi, u) = self.split(xi), self.split(eta)
        hat = self.rotations.hat
        return jnp.concatenate([self.rotations.ad(omega, chi), hat(omega) @ u - hat(chi) @ v])

    def ad_star(self, xi: Velocity, mu: Covector) -> Covector:
        (omega, v), (torque, force) = self.split(xi), self.split(mu)
        turned = self.rotations.ad_star(omega, torque) - self.rotations.moment(v, force)
        return jnp.concatenate([turned, force @ self.rotations.hat(omega)])

    def dcayley(self, xi: Velocity, eta: Velocity) -> Velocity:
        """(1 + xi/2)^-1 eta (1 - xi/2)^-1, with translation part (1 + omega/2)^-1 (u + chi (1 - omega/2)^-1 v/2)."""
        (omega, v), (chi, u) = self.split(xi), self.split(eta)
        inverse = self.rotations.resolvent(omega)
        moved = u + 0.5 * (self.rotations.hat(chi) @ (inverse @ v))
        return jnp.concatenate([self.rotations.dcayley(omega, chi), moved @ inverse])

    def dcayley_inverse(self, xi: Velocity, eta: Velocity) -> Velocity:
        """(1 + xi/2) eta (1 - xi/2)."""
        (omega, v), (chi, u) = self.split(xi), self.split(eta)
        hat = self.rotations.hat
        rotated = self.rotations.dcayley_inverse(omega, chi)
        moved = u - 0.5 * (hat(chi) @ v)
        return jnp.concatenate([rotated, moved + 0.5 * (hat(omega) @ moved)])

    def velocity(self, g: Matrix, dg: Matrix) -> Velocity:
        (r, _), (dr, dx) = self.parts(g), self.parts(dg)
        return jnp.concatenate([self.rotations.velocity(r, dr), dx @ r])

    def tangent(self, g: Matrix, xi: Velocity) -> Matrix:
        r, _ = self.parts(g)
        omega, v = self.split(xi)
        return self.motion(r @ self.rotations.hat(omega), r @ v, corner=0.0)

    def angles(self, g: Matrix) -> Angles:
        return self.rotations.angles(self.parts(g)[0])

    def chart(self, g: Matrix) -> Array:
        return jnp.concatenate([self.angles(g), self.parts(g)[1]])

    def winding(self, g0: Matrix, g1: Matrix) -> Angles:
        return self.rotations.winding(self.parts(g0)[0], self.parts(g1)[0])

    def element(self, value: Any) -> Matrix:
        return self.corrected(parse(value, str(self), {(self.side, self.side): "a matrix [[R, x], [0, 1]]"}))

    def flaws(self, g: Matrix) -> tuple[Number, ...]:
        return *self.rotations.flaws(self.parts(g)[0]), jnp.max(jnp.abs(g[-1] - jnp.eye(self.side)[-1]))

    def is_near(self, *flaws: Any) -> Any:
        return self.rotations.is_near(*flaws[:2]) & (flaws[2] <= TRACED_TOLERANCE)

    def refuse(self, matrix: Matrix, *flaws: Any) -> None:
        self.rotations.refuse(matrix, *flaws[:2], group=self)
        if not flaws[2] <= TOLERANCE:
            last = np.asarray(matrix)[-1].tolist()
            raise InvalidInput(f"the last row of an element of {self} must be (0, ..., 0, 1), but it is {last}")

    def distance(self, g: Matrix) -> Number:
        return self.rotations.distance(self.parts(g)[0])

    def normalise(self, g: Matrix) -> Matrix:
        r, x = self.parts(g)
        return self.motion(self.rotations.normalise(r), x)

    def restore(self, g: Matrix) -> Matrix:
        r, x = self.parts(g)
        return self.motion(self.rotations.restore(r), x)

    def axes(self) -> list[AlgebraAxis]:
        moving = [AlgebraAxis(f"v{i + 1}", "m s-1", "kg m s-1", "N") for i in range(self.size)]
        return self.rotations.axes() + moving

    def from_table(self, given: Mapping[str, Any]) -> Matrix:
        """From a rotation, as SO(n) takes it, and a position; either may be left out."""
        matrix = np.eye(self.side)
        matrix[:-1, :-1] = self.rotations.element(read_rotation(given, self.size, str(self), ("position",)))
        matrix[:-1, -1] = vector(given.get("position", [0.0] * self.size), self.size, "position")
        return self.element(matrix)

    def describe(self, g: Any, angles: Any = (), convention: str = "") -> dict[str, Any]:
        rotation, position = map(np.asarray, self.parts(g))
        return self.rotations.describe(rotation, angles, convention) | {"position": position.tolist()}

    identity_table = Group.identity_table

    def path(self, kind: str, g: Any, angles: Any = (), convention: str = EULER) -> Numbers | None:
        n, values = self.size, np.asarray(g)
        if kind == "position":
            return values[..., :n, n]
        if kind == "pose" and n == 2:
            return np.concatenate([np.asarray(angles)[..., :1], values[..., :2, 2]], axis=-1)
        return self.rotations.path(kind, values[..., :n, :n], angles, convention)


@dataclass(frozen=True)
class SE2(Motions):
    """Poses in the plane, of sleighs and vehicles: 3 x 3 matrices [[R, x], [0, 1]].

    The velocity (omega, v1, v2) is seen from the body: turning, forward, to the left.
    """

    rotations = SO2()

    def dexp(self, xi: Velocity, eta: Velocity) -> Velocity:
        """1 - (1 - cos t)/t^2 ad + (t - sin t)/t^3 ad^2, since ad^3 = -t^2 ad."""
        x = xi[0] * xi[0]
        once = self.ad(xi, eta)
        return eta - cosc(x) * once + sinc1(x) * self.ad(xi, once)

    def dexp_inverse(self, xi: Velocity, eta: Velocity) -> Velocity:
        """1 + ad/2 + (1 - (t/2) cot(t/2))/t^2 ad^2."""
        once = self.ad(xi, eta)
        return eta + 0.5 * once + cotc(xi[0] * xi[0]) * self.ad(xi, once)

    def mean_dcayley(self, xi: Velocity) -> Velocity:
        return jnp.broadcast_to(1.0 + 0.25 * xi[0] * xi[0], (3,))

    def element(self, value: Any) -> Matrix:
        """A matrix, or (angle, x, y)."""
        array = parse(value, str(self), {(3, 3): "a matrix [[R, x], [0, 1]]", (3,): "(angle, x, y)"})
        if array.ndim == 1:
            return _pose(self, array)
        return self.corrected(array)

    def series_start(self, g: Matrix) -> FourVector:
        """(cos, sin, x, y)."""
        return jnp.stack([g[0, 0], g[1, 0], g[0, 2], g[1, 2]])

    def series_rate(self, q: FourVector, xi: Velocity) -> FourVector:
        (c, s, _, _), (w, u, v) = q, xi
        return jnp.stack([-s * w, c * w, c * u - s * v, s * u + c * v])

    def series_element(self, g: Matrix, q: FourVector) -> Matrix:
        c, s, x, y = q
        return jnp.array([[c, -s, x], [s, c, y], [0.0, 0.0, 1.0]])


@partial(compile_function, place=False)
def _pose(group: SE2, given: Vector) -> Matrix:
    return group.motion(turn(given[0]), given[1:])


@dataclass(frozen=True)
class SE3(Motions):
    """Poses in space: 4 x 4 matrices [[R, x], [0, 1]]; the velocity (omega, v), 3 + 3 numbers, is in the body."""

    rotations = SO3()

    def dexp(self, xi: Velocity, eta: Velocity) -> Velocity:
        """1 - (c - x c') ad + (b - x b') ad^2 + c' ad^3 - b' ad^4 with c = (1 - cos t)/t^2, b = (t - sin t)/t^3.

        Hermite interpolation of (1 - exp(-z))/z, since ad (ad^2 + x)^2 = 0, x = t^2 (Selig 2005, section 7.5).
        """
        x = xi[:3] @ xi[:3]
        c, dc, b, db = cosc(x), d_cosc(x), sinc1(x), d_sinc1(x)
        one = self.ad(xi, eta)
        two = self.ad(xi, one)
        three = self.ad(xi, two)
        return eta - (c - x * dc) * one + (b - x * db) * two + dc * three - db * self.ad(xi, three)

    def dexp_inverse(self, xi: Velocity, eta: Velocity) -> Velocity:
        """1 + ad/2 + (d - x d') ad^2 - d' ad^4 with d = (1 - (t/2) cot(t/2))/t^2, x = t^2."""
        x = xi[:3] @ xi[:3]
        d, dd = cotc(x), d_cotc(x)
        one = self.ad(xi, eta)
        two = self.ad(xi, one)
        return eta + 0.5 * one + (d - x * dd) * two - dd * self.ad(xi, self.ad(xi, two))


@dataclass(frozen=True)
class SEn(Motions):
    """Matrices [[R, x], [0, 1]] of size n + 1; algebra coordinates (those of so(n), v); n >= 4."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 4:
            raise InvalidInput(f"SEn needs n >= 4, but n = {self.n} was given: use SE2() or SE3()")

    @property
    def rotations(self) -> SOn:
        return SOn(self.n)

    def exp(self, xi: Velocity) -> Matrix:
        omega, _ = self.split(xi)
        rotation, translation = self.parts(exponential(self.hat(xi), omega @ omega))
        return self.motion(rotation, translation)


def SE(n: int) -> Motions:
    """The rigid motions SE(n): `SE2`, `SE3`, or `SEn` for n >= 4."""
    return SE2() if n == 2 else SE3() if n == 3 else SEn(n)
