"""The free rigid body: one step as a map with constants, for every order of discrete Moser-Veselov.

A step of the discrete Moser-Veselov method with scale s solves s m = 2 q0 I q + 2 q x I q for the unit quaternion (q0,
q) and turns the body by it; s m' = 2 q0 I q - 2 q x I q. With x = 2 <q, I q>, y = 2 <q, J I q> (both constant on a
level of |m|^2 and of the energy), N = 1 - (y J + x adj J)/det I and w = m + m' this is the explicit map

    m' = |m| P/|P|,   P = adj(N) m + s N (m x I^-1 m),   (q0, q) ~ (s <w, I^-1 w>, 2 x I^-1 w).

The numbers s, x, y are all that a method has to supply: see docs/exact-rigid-body.md. For the exact flow they and a
turn by |m| B about the momentum follow polynomial equations in time: their Taylor series give the higher orders, and
the derivatives of the exact motion, whose values are those of `polhode`. Notation: J = tr(I)/2 - I; E1, E2, E3 its
elementary symmetric functions; D = det I = E1 E2 - E3; C = |m|^2; H = <m, I^-1 m>; H2 = |J m|^2. Quaternions have the
scalar first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..groups import unit_quaternion
from ..numerics.types import Array, Float, Scalar
from .polhode import TINY, Polhode, at_time, carlson_third, zeta

Vector3 = Float[Array, "3"]
Matrix3 = Float[Array, "3 3"]
Quaternion = Float[Array, "4"]
REGULARISATION = 1e-120  # its square must not underflow in derivatives
CYCLIC = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
SERIES_ORDER = 16
MAX_TURN = 0.18  # of a Taylor substep, in units of I_min/|m|: the series then converges to round-off
MAX_PANEL, PANEL_NODES, ITERATIONS = 1.0, 8, 18  # of a panel, in the same units: these are enough for round-off
MAX_SHAPE_PANEL, REGULAR = 0.75, 1e-2  # of a panel of a quadrature, in periods/4K; what is far from a singular case
PAIRS = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))


def principal_frame(inertia: Matrix3) -> Matrix3:
    """A rotation R with R^T I R diagonal, by Jacobi's method: the identity, and the given order, for a diagonal tensor.

    It is a constant for derivatives: what is computed with it must not depend on the choice of axes.
    """

    def rotate(state: tuple[Array, Array], pair: Array) -> tuple[tuple[Array, Array], None]:
        A, R = state
        i, j = pair
        gap, off = A[j, j] - A[i, i], A[i, j]
        needed = off != 0.0
        theta = 0.5 * gap / jnp.where(needed, off, 1.0)
        tangent = jnp.where(theta < 0, -1.0, 1.0) / (jnp.abs(theta) + jnp.sqrt(theta * theta + 1.0))
        t = jnp.where(needed, tangent, 0.0)
        cosine = 1.0 / jnp.sqrt(t * t + 1.0)
        sine = t * cosine
        ei, ej = jnp.arange(3) == i, jnp.arange(3) == j
        plane = jnp.outer(ei, ei) + jnp.outer(ej, ej)
        G = jnp.where(plane, cosine, jnp.eye(3)) + sine * (1.0 * jnp.outer(ei, ej) - 1.0 * jnp.outer(ej, ei))
        return (G.T @ A @ G, R @ G), None

    pairs = jnp.array([[0, 1], [0, 2], [1, 2]] * 7)
    return jax.lax.scan(rotate, (jax.lax.stop_gradient(inertia), jnp.eye(3)), pairs)[0][1]


@jax.custom_jvp
def turning_frame(inertia: Matrix3) -> Matrix3:
    """`principal_frame` with its derivative, for what depends on the axes; those of equal moments are held, as no
    derivative exists.
    """
    return principal_frame(inertia)


@turning_frame.defjvp
def _turning_frame_jvp(primals: tuple[Matrix3], tangents: tuple[Matrix3]) -> tuple[Matrix3, Matrix3]:
    """dR = R W with W_ij (l_j - l_i) = (R^T dI R)_ij, from I R = R diag(l)."""
    (inertia,), (change,), R = primals, tangents, turning_frame(*primals)
    moments = jnp.diag(R.T @ inertia @ R)
    gap = moments - moments[:, None]
    far = jnp.abs(gap) > 2.0**-40 * jnp.max(jnp.abs(moments))
    return R, R @ jnp.where(far, R.T @ (0.5 * (change + change.T)) @ R / jnp.where(far, gap, 1.0), 0.0)


def quaternion_product(p: Quaternion, q: Quaternion) -> Quaternion:
    """The product p q of two quaternions, scalar first."""
    a, b, c, d = p
    w, x, y, z = q
    real, i, j = a * w - b * x - c * y - d * z, a * x + b * w + c * z - d * y, a * y - b * z + c * w + d * x
    return jnp.stack([real, i, j, a * z + b * y - c * x + d * w])


def quaternion(g: Matrix3) -> Quaternion:
    """The unit quaternion of a rotation matrix."""
    return jnp.concatenate([part.reshape(-1) for part in unit_quaternion(g)])


def unit_multiple(q: Quaternion) -> Quaternion:
    """q/|q|."""
    return q * (1.0 / jnp.sqrt(q @ q))


def rotation_matrix(q: Quaternion) -> Matrix3:
    """The rotation matrix of a unit quaternion."""
    a, b, c, d = q
    return jnp.array([
        [1 - 2 * (c * c + d * d), 2 * (b * c - a * d), 2 * (b * d + a * c)],
        [2 * (b * c + a * d), 1 - 2 * (b * b + d * d), 2 * (c * d - a * b)],
        [2 * (b * d - a * c), 2 * (c * d + a * b), 1 - 2 * (b * b + c * c)],
    ])  # fmt: skip


def rotation_about(m: Vector3, square: Scalar, angle: Scalar) -> Quaternion:
    """The quaternion of the rotation by |m| angle about m, given |m|^2; smooth at m = 0."""
    half = 0.5 * angle
    positive = square > 0.0
    size = jnp.sqrt(jnp.where(positive, square, 1.0))
    turned = jnp.where(positive, size * half, 0.0)
    return jnp.concatenate([jnp.cos(turned)[None], jnp.where(positive, jnp.sin(turned) * (1.0 / size), half) * m])


class Body(NamedTuple):
    """A body and a level: what the constants of a step depend on."""

    inverse: Array  # I^-1
    mass: Array  # J
    cofactor: Array  # adj J
    E1: Array
    E2: Array
    E3: Array
    D: Array
    C: Array
    H: Array
    H2: Array
    K: Array  # H E1 - C = <m, I^-1 J m>


class Scale(NamedTuple):
    """What a method supplies: the scale s of m, x = E1 - e1, y = E2 - e2, and whether they exist."""

    s: Scalar
    x: Array
    y: Array
    exists: Array


class Step(NamedTuple):
    """The constants of the map, in principal axes.

    The vectors are the diagonals of the tensors. Off the diagonal the tensors vanish; their derivatives do not, so a
    gradient in the inertia is right also where two moments are equal and eigenvectors have no derivative.
    """

    p: Array  # adj(N)/nu - 1
    r: Array  # s N c/nu, (m x I^-1 m)_i = c_i m_j m_k
    a: Array  # s I^-1/4H
    f: Array  # x I^-1/2H
    rest: Array  # what (s <w, I^-1 w>/4H) lacks at m = 0
    C: Array
    tensors: tuple[Array, Array, Array, Array, Array]  # adj(N)/nu - 1, s N/nu, I^-1, and the two factors of I^-1 above


def adjugate(matrix: Matrix3) -> Matrix3:
    """adj A, for a symmetric 3 x 3 matrix: its rows are cross products of those of A."""
    a, b, c = matrix
    return jnp.stack([jnp.cross(b, c), jnp.cross(c, a), jnp.cross(a, b)])


def body_on_level(inertia: Matrix3, m: Vector3) -> Body:
    """The body with inertia tensor `inertia` on the level of the momentum m."""
    cofactor = adjugate(inertia)
    D = inertia[0] @ cofactor[0]
    inverse = cofactor / D
    E1 = 0.5 * jnp.trace(inertia)
    own = jnp.diag(inertia)
    one, other = jnp.roll(own, 1), jnp.roll(own, 2)
    mass = jnp.diag(0.5 * (jnp.minimum(one, other) + (jnp.maximum(one, other) - own)))  # needles: no round-off of I
    mass = mass - jnp.where(jnp.eye(3) == 1, 0.0, inertia)
    adj, Jm = adjugate(mass), mass @ m
    E2, E3, H, K = jnp.trace(adj), mass[0] @ adj[0], m @ inverse @ m, m @ inverse @ Jm
    return Body(inverse, mass, adj, E1, E2, E3, D, m @ m, H, Jm @ Jm, K)


def discrete_scale(b: Body, s: Scalar) -> Scale:
    """x and y of discrete Moser-Veselov with scale s, on the branch through the identity; it exists for |s| < s*.

    e1^2 - 2 e2 = tr J^2 - s^2 C and e2^2 - 2 E3 e1 = tr adj(J)^2 - s^2 H2 for e1 = E1 - x, e2 = E2 - y are, solved for
    their linear terms,

        x = (s^2 H + (E2 x^2 + y^2)/D)/2,    y = (s^2 K + (E3 x^2 + E1 y^2)/D)/2:

    nothing cancels, and Newton's method rises from 0 to the first solution; past s* its determinant
    changes its sign.
    """
    e1, e2, e3 = b.E1 / b.D, b.E2 / b.D, b.E3 / b.D

    def improve(x: Array, y: Array) -> tuple[Array, Array, Array]:
        f = 0.5 * (s * s * b.H + e2 * x * x + y * y / b.D) - x
        g = 0.5 * (s * s * b.K + e3 * x * x + e1 * y * y) - y
        p, q = 1.0 - e2 * x, 1.0 - e1 * y
        determinant = p * q - e3 * x * y / b.D
        inside = jnp.minimum(determinant, p)  # positive up to the first solution; other branches lie beyond
        safe = jnp.where(inside > 0.0, determinant, 1.0)
        return (q * f + y / b.D * g) / safe, (p * g + e3 * x * f) / safe, inside

    def rise(state: tuple[Any, Array, Array, Array, Array]) -> tuple[Any, Array, Array, Array, Array]:
        k, x, y, _, _ = state
        dx, dy, inside = improve(x, y)
        good = inside > 0.0
        return k + 1, jnp.where(good, x + dx, x), jnp.where(good, y + dy, y), dx, inside

    def unfinished(state: tuple[Any, Array, Array, Array, Array]) -> Any:
        k, x, _, dx, inside = state
        return (k < 100) & (inside > 0.0) & ((dx > 1e-15 * x) | (k < 2))

    zero, one = jnp.zeros(()), jnp.ones(())
    found = jax.lax.while_loop(unfinished, rise, jax.lax.stop_gradient((0, zero, zero, one, one)))
    exists = (found[4] > 0.0) & (found[0] < 100)
    x, y = (jax.lax.stop_gradient(jnp.where(exists, value, 0.0)) for value in found[1:3])
    for _ in range(2):  # the derivatives of the solution, up to the third
        dx, dy, _ = improve(x, y)
        x, y = x + dx, y + dy
    return Scale(s, x, y, exists)


def largest_scale(b: Body) -> Array:
    """s*, where a pair of roots of det(l^2 - l s M - J^2) reaches the imaginary axis: e1 e2 = e3 there.

    Then e1 is the positive root of H2 e^4 + 2 C E3 e^3 + (C tr adj(J)^2 - H2 tr J^2) e^2 - 2 H2 E3 e - C E3^2, which
    has one by Descartes' rule (E3 > 0), and s*^2 = (tr J^2 - e1^2 + 2 E3/e1)/C. A flat body is the limit E3 -> 0.
    """
    E3 = jnp.where(jnp.abs(b.E3) < 1e-30 * b.D, 1e-30 * b.D, b.E3)
    squares, minors = b.E1 * b.E1 - 2 * b.E2, b.E2 * b.E2 - 2 * b.E1 * E3

    low, high = 1e-40 * b.E1, b.E1
    for _ in range(64):
        e = jnp.sqrt(low * high)
        upper = ((b.H2 * e + 2 * b.C * E3) * e + (b.C * minors - b.H2 * squares)) * e - 2 * b.H2 * E3
        low, high = (low, e) if upper * e - b.C * E3 * E3 > 0 else (e, high)
    e1 = jnp.sqrt(low * high)
    return jnp.sqrt((squares - e1 * e1 + 2 * E3 / e1 + REGULARISATION) / (b.C + REGULARISATION))


def step_constants(b: Body, scale: Scale) -> Step:
    """The constants of the map for a scale, in principal axes of the body."""
    (s, x, y, _), one = scale, jnp.eye(3)
    K = (y * b.mass + x * b.cofactor) / b.D
    p, nu = _stable_diagonal(b, x, y, 1.0 - jnp.diag(K))
    adj = (adjugate(K) - jnp.trace(K) * one + K + (1.0 - nu) * one) / nu
    push = s / nu * (one - K)
    sense = jnp.where(s < 0, -1.0, 1.0)
    L, J, level = jnp.diag(b.inverse), jnp.diag(b.mass), b.H + REGULARISATION
    c = jnp.stack([(J[k] - J[j]) * L[j] * L[k] for _, j, k in CYCLIC])  # (m x I^-1 m)_i = c_i m_j m_k
    a, f = 0.25 * jnp.abs(s) / level, 0.5 * sense * (x + 0.5 * REGULARISATION * s * s) / level
    rest = jnp.abs(s) * REGULARISATION / level
    return Step(p, jnp.diag(push) * c, a * L, f * L, rest, b.C, (adj, push, b.inverse, a, f))


def _stable_diagonal(b: Body, x: Array, y: Array, n: Array) -> tuple[Array, Array]:
    """(N_j N_k/nu - 1)_i, free of cancellation, and nu, the product of the two N other than the smallest.

    The N are in the ratios 1, dn and cn <= dn, and only cn changes its sign. With k the smallest: p_k = 0 and p_i =
    (J_i - J_k)(y - J_j x)/(D N_i). Other divisors than nu are unstable.
    """
    J = jnp.diag(b.mass)
    options = []
    for k, i, j in CYCLIC:
        ni, nj = jnp.maximum(n[i], 1e-100), jnp.maximum(n[j], 1e-100)
        pi, pj = (J[i] - J[k]) * (y - J[j] * x) / (b.D * ni), (J[j] - J[k]) * (y - J[i] * x) / (b.D * nj)
        entries = {i: pi, j: pj, k: jnp.zeros_like(pi)}
        options.append(jnp.stack([entries[0], entries[1], entries[2], ni * nj]))
    first = (n[0] < n[1]) & (n[0] < n[2])
    chosen = jnp.where(first, options[0], jnp.where(n[1] < n[2], options[1], options[2]))
    return chosen[:3], jax.lax.stop_gradient(chosen[3])


@jax.custom_jvp
def advance_body(step: Step, m: Vector3) -> tuple[Vector3, Quaternion]:
    """(m', Q): the momentum after a step and a multiple of the quaternion that the body turns by."""
    first, second, third = m[0], m[1], m[2]
    products = jnp.stack([second * third, third * first, first * second])
    P = m + (step.p * m + step.r * products)
    new = P * (jnp.sqrt(step.C + REGULARISATION) * (1.0 / jnp.sqrt(_add_products(REGULARISATION, P, P))))
    w = m + new
    return new, jnp.concatenate([_add_products(step.rest, step.a * w, w)[None], step.f * w])


def _add_products(first: Any, a: Vector3, b: Vector3) -> Array:
    """first + a_1 b_1 + a_2 b_2 + a_3 b_3, one multiply-add each."""
    total: Array = first + a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return total


def turn_tensorial(step: Step, m: Array) -> tuple[Array, Array]:
    """`advance_body` with tensors in place of their diagonals."""
    adj, push, inverse, a, f = step.tensors
    P = m + (adj @ m + push @ jnp.cross(m, inverse @ m))
    new = P * (jnp.sqrt(step.C + REGULARISATION) * (1.0 / jnp.sqrt(P @ P + REGULARISATION)))
    w = m + new
    Lw = inverse @ w
    return new, jnp.concatenate([(step.rest + a * (w @ Lw))[None], f * Lw])


@advance_body.defjvp
def _turn_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    return advance_body(*primals), jax.jvp(turn_tensorial, primals, tangents)[1]


def taylor_coefficients(point: Array, coefficients: Array, dt: Scalar, terms: int = SERIES_ORDER) -> Array:
    """Coefficients (terms + 1, 4) of the series in t/dt of the solution through `point` of

    u' = 1 - a v - b w + c v w,  v' = u (d - e w),  w' = u (f - g v),  z' = -c w.
    """
    a, b, c, d, e, f, g = coefficients

    def term(carry: tuple[Array, Array], n: Array) -> tuple[tuple[Array, Array], None]:
        series, mirror = carry  # mirror holds the coefficients in reverse: the product's coefficient is a dot product
        u, v, w, _ = mirror[0]
        vw, uw, uv = series[:, 1] @ mirror[:, 2], series[:, 0] @ mirror[:, 2], series[:, 0] @ mirror[:, 1]
        first = jnp.where(n == 0, 1.0, 0.0)
        new = dt / (n + 1.0) * jnp.stack([first - a * v - b * w + c * vw, d * u - e * uw, f * u - g * uv, -c * w])
        place = jnp.where(jnp.arange(terms + 1) == n + 1, 1.0, 0.0)
        return (series + place[:, None] * new, jnp.concatenate([new[None], mirror[:-1]])), None

    start = jnp.concatenate([point[None], jnp.zeros((terms, 4))])
    return jax.lax.scan(term, (start, start), jnp.arange(terms))[0][0]


def scale_equations(b: Body) -> Array:
    """Those of s' = 1 - (E1 y + E2 x - x y)/D, x' = s (H - C y/D), y' = s (H E1 - C - H2 x/D), B' = -y/D, in order."""
    return jnp.stack([b.E2 / b.D, b.E1 / b.D, 1.0 / b.D, b.H, b.C / b.D, b.K, b.H2 / b.D])


def _move(inertia: Matrix3, m: Vector3, g: Matrix3, scale: Callable[[Body], Array]) -> tuple[Vector3, Matrix3]:
    """The exact motion by one step of the map over a short time, in principal axes: right derivatives everywhere.

    `scale` gives s, x, y and B of the time.
    """
    b = body_on_level(inertia, m)
    s, x, y, B = scale(b)
    s = jnp.where(jnp.abs(s) < 1e-100, 1e-100, s)
    new, q = advance_body(step_constants(b, Scale(s, x + 0.5 * b.H * 1e-200, y, jnp.asarray(True))), m)
    return new, g @ rotation_matrix(unit_multiple(quaternion_product(rotation_about(m, b.C, -B), q)))


@jax.custom_jvp
def exact_motion(
    level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar
) -> tuple[Vector3, Matrix3]:
    """(momentum, attitude) at the time t after (m, g), of which `level` is the polhode; its derivatives are the map's.

    inertia, m and the columns of g are given in the principal `axes`, the result in those of the body.
    """
    return at_time(level, t)


class Change(NamedTuple):
    """The derivative of a motion by the inertia (9) and the momentum (3): rows are these directions."""

    momentum: Array  # (12, 3)
    turn: Array  # (12, 3): G^T dG of the rotation G of the body, as vectors
    rotation: Array  # (3, 3): G

    def then(self, later: Change) -> Change:
        """The derivative of this motion and a later one that begins where it ends."""
        fixed = jnp.concatenate([jnp.ones(9), jnp.zeros(3)])[:, None]  # the inertia stays

        def after(by: Array) -> Array:
            return fixed * by + self.momentum @ by[9:]

        turn = self.turn @ later.rotation + after(later.turn)
        return Change(after(later.momentum), turn, self.rotation @ later.rotation)


def _change_by_substeps(level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar) -> Change:
    """The derivatives over the time t, carried along the motion by those of short steps of the map."""
    b = body_on_level(inertia, m)
    count = jnp.maximum(1.0, jnp.ceil(jnp.abs(t) * _rate(b, m) / MAX_TURN))
    level_equations = scale_equations(b)

    def series(equations: Array) -> Array:
        total: Array = jnp.sum(taylor_coefficients(jnp.zeros(4), equations, t / count)[:0:-1], axis=0)
        return total

    value, slope = series(level_equations), jax.jacfwd(series)(level_equations)

    def scale(b: Body) -> Array:
        """The same number in all substeps, for the equations depend on the level alone; their derivatives do not."""
        number: Array = value + slope @ (scale_equations(b) - level_equations)
        return number

    unit = jnp.eye(12)
    directions = unit[:, :9].reshape(12, 3, 3)

    def substep(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, by_m, by_g = state
        here = _motion_in_axes(level, inertia, m, g, axes, k * t / count)

        def push(*change: Array) -> tuple[Array, Array]:
            after: tuple[Array, Array] = jax.jvp(lambda I, m, g: _move(I, m, g, scale), (inertia, *here), change)[1]
            return after

        by_m, by_g = jax.vmap(push)(directions, by_m, by_g)
        return k + 1.0, by_m, by_g

    start = (jnp.zeros(()), unit[:, 9:], jnp.zeros((12, 3, 3)))
    _, by_m, by_g = jax.lax.while_loop(lambda state: state[0] < count, substep, start)
    rotation = _motion_in_axes(level, inertia, m, g, axes, t)[1]
    turns = rotation.T @ by_g
    skew = 0.5 * (turns - turns.transpose(0, 2, 1))
    return Change(by_m, jnp.stack([skew[:, k, j] for _, j, k in CYCLIC], axis=1), rotation)


@cache
def gauss_coefficients(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(c, a, b) of Gauss's collocation, by Legendre polynomials: inverting powers of the nodes would lose digits."""
    x, w = np.polynomial.legendre.leggauss(count)
    values, odd = np.polynomial.legendre.legvander(x, count), 2.0 * np.arange(count) + 1.0
    integrals = np.column_stack([1.0 + x, (values[:, 2:] - values[:, :-2]) / odd[1:]])
    return 0.5 + 0.5 * x, 0.25 * (integrals * odd) @ values[:, :-1].T * w, 0.5 * w


def _change_along(level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar) -> Change:
    """The derivatives over the time t by the equation that they follow, along a motion that is known.

    The momentum in space stays m, so that with the rotation G, L = 1/I and G^T dG = v, V = G v

        V' = G L G^T (dm + m x V) + G dL G^T m,   dm(t) = G^T dm + m(t) x v.

    In axes with m for the third this is an equation for two components, solved by collocation at Gauss's nodes (whose
    equations are iterated), and a quadrature. Changes of the inertia count by their symmetric parts. The same by the
    map: `_change_by_substeps`.
    """
    b = body_on_level(inertia, m)
    panels = jnp.maximum(1.0, jnp.ceil(jnp.abs(t) * _rate(b, m) / MAX_PANEL))
    dt, inverse, size = t / panels, 1.0 / jnp.diag(inertia), jnp.sqrt(b.C)
    third = jnp.where(size > 0, m / jnp.where(size > 0, size, 1.0), jnp.eye(3)[2])
    small = jnp.abs(third)
    other = jnp.where((small[0] <= small[1]) & (small[0] <= small[2]), 0, jnp.where(small[1] <= small[2], 1, 2))
    first = jnp.cross(third, jnp.where(jnp.arange(3) == other, 1.0, 0.0))
    first = first / jnp.sqrt(first @ first)
    frame = jnp.stack([first, jnp.cross(third, first), third])
    nodes, a, weights = gauss_coefficients(PANEL_NODES)

    def at(time: Array) -> tuple[Array, Array]:
        """The factor of the two components, and what does not depend on them, for PAIRS and the parts of dm."""
        momentum, rotation = _motion_in_axes(level, inertia, m, g, axes, time)
        turned = frame @ rotation
        by, velocity = turned * inverse, inverse * momentum
        spatial = by @ turned.T
        forces = [-0.5 * (by[:, i] * velocity[j] + by[:, j] * velocity[i]) for i, j in PAIRS]
        return size * jnp.stack([spatial[:, 1], -spatial[:, 0]], 1), jnp.concatenate([jnp.stack(forces, 1), spatial], 1)

    def panel(state: tuple[Array, Array]) -> tuple[Array, Array]:
        k, V = state

        def fill(j: Array, rows: tuple[Array, Array]) -> tuple[Array, Array]:
            """Row j: in a loop, for written out eight times it is most of what a first derivative compiles."""
            here = jnp.where(jnp.arange(PANEL_NODES) == j, 1.0, 0.0)
            found = at((k + here @ nodes) * dt)
            return rows[0] + here[:, None, None] * found[0], rows[1] + here[:, None, None] * found[1]

        begin = jnp.zeros((PANEL_NODES, 3, 2)), jnp.zeros((PANEL_NODES, 3, 9))
        factor, force = jax.lax.fori_loop(0, PANEL_NODES, fill, begin)

        def advance(j: Array, new: Array) -> Array:
            """Column j, which does not depend on the others."""
            here = jnp.where(jnp.arange(9) == j, 1.0, 0.0)
            own, by = V @ here, force @ here

            def inside(rates: Array) -> Array:
                return own[:2] + dt * (a @ rates)

            def improve(_: Any, rates: Array) -> Array:
                better: Array = jnp.sum(factor[:, :2] * inside(rates)[:, None], 2) + by[:, :2]
                return better

            rates = jax.lax.fori_loop(0, ITERATIONS, improve, by[:, :2])
            last = jnp.sum(factor[:, 2] * inside(rates), 1) + by[:, 2]
            after = own + dt * jnp.concatenate([weights @ rates, weights @ last[:, None]])
            return new + after[:, None] * here

        return k + 1.0, jax.lax.fori_loop(0, 9, advance, jnp.zeros((3, 9)))

    _, V = jax.lax.while_loop(lambda state: state[0] < panels, panel, (jnp.zeros(()), jnp.zeros((3, 9))))
    momentum, rotation = _motion_in_axes(level, inertia, m, g, axes, t)
    places = np.array([0, 3, 4, 3, 1, 5, 4, 5, 2])  # among PAIRS, of the entries of a matrix
    turn = jnp.concatenate([V[:, places], V[:, 6:] @ frame], 1).T @ (frame @ rotation)
    start = jnp.concatenate([jnp.zeros((9, 3)), jnp.eye(3)])
    return Change(start @ rotation + jnp.cross(momentum, turn), turn, rotation)


def _motion_in_axes(
    level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar
) -> tuple[Array, Array]:
    """(momentum, rotation since the start) at a time, in principal axes."""
    momentum, attitude = exact_motion(level, inertia, m, g, axes, t)
    return axes.T @ momentum, g.T @ attitude @ axes


def _rate(b: Body, m: Vector3) -> Array:
    """The inverse time in which s, x and y change: |m|/I_min, and coefficients of s' for moments that no body has."""
    turning = b.C * jnp.max(jnp.sum(jnp.abs(b.inverse), axis=1)) ** 2
    scale = b.E1 * (jnp.abs(m) @ jnp.abs(b.inverse) @ jnp.abs(b.mass) @ jnp.abs(m)) + jnp.abs(b.E2) * b.H
    rate: Array = jax.lax.stop_gradient(jnp.sqrt(turning + scale / b.D))
    return rate


def change_of_motion(level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar) -> Change:
    """The derivatives over the time t. The momentum comes back after a period T, so that with t = n T + r, |r| <= T/2,

        D F_t = D F_r D F_nT,   D F_nT = 1 - n m' dT.

    A momentum that stays comes back at any time: T is a substep there, and the power costs log2 n products.
    """
    none = Change(jnp.concatenate([jnp.zeros((9, 3)), jnp.eye(3)]), jnp.zeros((12, 3)), jnp.eye(3))
    along = jnp.cross(m, body_on_level(inertia, m).inverse @ m)
    moves = (level.speed != 0) & (along @ along > 0)
    back = 2.0 * level.period / jnp.abs(jnp.where(moves, level.speed, 1.0))
    period = jnp.where(moves, back, MAX_TURN / _rate(body_on_level(inertia, m), m))
    sign, whole = jnp.where(t < 0, -1.0, 1.0), jnp.round(jnp.abs(t) / period)
    period = sign * jnp.where(whole > 0, period, 0.0)
    times = jnp.stack([jnp.where(moves, 0.0, period), t - whole * period])

    def take(state: tuple[Array, Change, Change]) -> tuple[Array, Change, Change]:
        """The first of the two times that are left: most runs have the second alone."""
        k, _, last = state
        return k + 1.0, last, _change_along(level, inertia, m, g, axes, jnp.where(k == 0.0, times[0], times[1]))

    first = jnp.where(moves, jnp.where(times[1] == 0.0, 2.0, 1.0), 0.0)
    _, stays, rest = jax.lax.while_loop(lambda state: state[0] < 2.0, take, (first, none, none))
    before = whole * period
    periods = _change_by_period(
        level, inertia, m, along, axes, before, _motion_in_axes(level, inertia, m, g, axes, before)[1]
    )

    def square(state: tuple[Array, Change, Change]) -> tuple[Array, Change, Change]:
        left, power, total = state
        half = jnp.floor(0.5 * left)
        chosen = jax.tree.map(lambda yes, no: jnp.where(left > 2.0 * half, yes, no), total.then(power), total)
        return half, power.then(power), chosen

    _, _, total = jax.lax.while_loop(lambda state: state[0] > 0, square, (jnp.where(moves, 0.0, whole), stays, none))
    total = jax.tree.map(lambda yes, no: jnp.where(moves, yes, no), periods, total)
    found: Change = total.then(rest)
    return found


def push_by_shape(
    level: Polhode, inertia: Matrix3, m: Vector3, axes: Matrix3, t: Scalar, end: tuple[Vector3, Matrix3],
    d_inertia: Matrix3, d_m: Vector3,
) -> tuple[Array, Vector3, Vector3]:  # fmt: skip
    """(whether it is regular, the changes of momentum and turn at the `end`, the time t) by the form of the motion.

    With m = (A cn, B sn, D dn) a change of the level changes the amplitudes, and the phase by t l'/l - Q d(k^2)/2 with
    Q = int sd^2 dt; m' times it is added. Changes of the axes turn the momentum and its start. With Jacobi's function Z
    and S = int_0^K sn^2

        int sn^2 du = u S/K - Z/k^2,   int sd^2 du = (u - int sn^2 du - sn cn/dn)/(1 - k^2).

    It is regular where no moments are nearly equal, the motion is neither near an axis nor near the separatrix, and the
    time is not short.
    """
    b, inverse, (new, rotation) = body_on_level(inertia, m), 1.0 / jnp.diag(inertia), end
    own, (La, _, Lc), (ab, bc, ac), (ea, eb, ec) = _shape(level, inverse, m, axes)
    along, gaps, speed = jnp.cross(m, inverse * m), jnp.min(jnp.abs(jnp.stack([ab, bc, ac]))), jnp.abs(ea * bc)
    far = (gaps > REGULAR * jnp.max(inverse)) & (jnp.abs(eb * ac) > REGULAR * speed) & (level.speed != 0)
    far &= along @ along > (REGULAR * b.C * jnp.max(inverse)) ** 2
    far &= jnp.abs(t) * _rate(b, m) > MAX_PANEL

    def where_far(each: Array) -> Array:
        return jnp.where(far, each, 1.0)

    ab, bc, ac, ea, eb, ec, speed, moving, square = map(where_far, (ab, bc, ac, ea, eb, ec, speed, level.speed, b.C))
    amplitudes = jnp.abs(jnp.stack([ec, ec, ea]) / jnp.stack([ac, bc, ac]))  # the squares of A, B, D
    k2, mc = jnp.abs(ec * ab) / speed, jnp.abs(eb * ac) / speed
    to_own = level.axes.T @ axes / jnp.sqrt(amplitudes)[:, None]
    (cn, sn, dn), (cn0, sn0, dn0) = to_own @ new, to_own @ m
    dn, dn0 = where_far(dn), where_far(dn0)
    (first, mean), (last, _) = zeta(level, level.u0), zeta(level, level.u0 + level.speed * t)
    sines = jnp.where(far, (t * mean - (last - first) / moving) / k2, 0.0)
    quotients = (t - sines - (sn * cn / dn - sn0 * cn0 / dn0) / moving) / mc
    L2, L3 = jnp.roll(inverse, -1), jnp.roll(inverse, -2)
    mixed = (new - m) / jnp.where(far, L3 - L2, 1.0)  # the integrals of m_2 m_3, m_3 m_1 and m_1 m_2
    squares = own @ (amplitudes * jnp.stack([t - sines, sines, t - k2 * sines]))
    velocity, mixing = inverse * m, inverse[:, None] * (d_inertia + d_inertia.T) * inverse
    about = velocity @ d_m - 0.5 * velocity @ d_inertia @ velocity
    work = (
        jnp.diag(d_inertia) * inverse * inverse @ squares
        + jnp.stack([mixing[1, 2], mixing[2, 0], mixing[0, 1]]) @ mixed
    )
    moments = jnp.diag(inertia)
    gap = moments[:, None] - moments
    lean = d_inertia * (0.5 * (1.0 - jnp.eye(3)) / jnp.where(far & (gap != 0), gap, 1.0))
    lean = lean.T - lean
    d_inverse, d_start = -inverse * inverse * jnp.diag(d_inertia), d_m - lean @ m
    d_square, d_energy = 2.0 * m @ d_start, m * m @ d_inverse + 2.0 * velocity @ d_start
    dLa, dLb, dLc = d_inverse @ own
    dea, dec = (d_energy - d_square * L - b.C * dL for L, dL in ((La, dLa), (Lc, dLc)))
    relative = dea / ea + (dLb - dLc) / bc  # of l^2
    d_k2 = ((dLa - dLb) * ec + ab * dec) / speed - k2 * relative
    growth = 0.5 * jnp.stack([dec / ec - (dLa - dLc) / ac, dec / ec - (dLb - dLc) / bc, dea / ea - (dLa - dLc) / ac])

    def shaped(at: Array, ratio: Array) -> Array:
        """The change of a momentum at a fixed phase."""
        change: Array = at * (own @ growth - 0.5 * d_k2 * ratio * ratio * own[:, 2])
        return change

    begun = (d_start - shaped(m, sn0 / dn0)) @ along / where_far(along @ along)
    phase = begun + 0.5 * (t * relative - quotients * d_k2)
    change = shaped(new, sn / dn) + phase * jnp.cross(new, inverse * new) + lean @ new
    across = jnp.cross(new, d_m @ rotation - change)
    return far, change, (across + (t * about - 0.5 * work) * new) / square


def _shape(level: Polhode, inverse: Vector3, m: Vector3, axes: Matrix3) -> tuple[Array, Array, Any, Any]:
    """(which of the principal axes are a, b, c, as columns; L, its differences ab, bc, ac and e_a, e_b, e_c there)."""
    own = jnp.square(axes.T @ level.axes)
    squares, (La, Lb, Lc) = (m * m) @ own, inverse @ own
    ab, bc, ac = La - Lb, Lb - Lc, La - Lc
    ea, ec = -squares[1] * ab - squares[2] * ac, squares[0] * ac + squares[1] * bc
    return own, inverse @ own, (ab, bc, ac), (ea, squares[0] * ab - squares[2] * bc, ec)


def _level_changes(inverse: Vector3, m: Vector3) -> tuple[Array, Array, Array]:
    """The derivatives of L = 1/I, |m|^2 and <m, L m> by the inertia and the momentum."""
    velocity = inverse * m
    by_moments = (jnp.eye(3)[:, :, None] * jnp.eye(3)).reshape(9, 3) * inverse**2
    d_square = jnp.concatenate([jnp.zeros(9), 2.0 * m])
    d_energy = jnp.concatenate([-jnp.outer(velocity, velocity).reshape(9), 2.0 * velocity])
    return -jnp.concatenate([by_moments, jnp.zeros((3, 3))]), d_square, d_energy


def _change_by_period(
    level: Polhode, inertia: Matrix3, m: Vector3, along: Vector3, axes: Matrix3, period: Scalar, rotation: Matrix3
) -> Change:
    """The derivatives over n periods T = 4 K/l of a momentum that moves, in closed form: `along` is m'.

    With L = 1/I and e_i = <m, L m> - L_i |m|^2 the polhode has l^2 = |e_a (L_b - L_c)|, k^2 = |e_c (L_a - L_b)|/l^2 and
    1 - k^2 = |e_b (L_a - L_c)|/l^2; dK = (K - S)/(2 (1 - k^2)) d(k^2) with S = int_0^K sn^2. The turn v of the body has
    v x m = R^T dm - dm(nT), for the momentum in space is conserved, and <v, m>' = dh + <m, dL m>/2, h the energy.
    """
    inverse = 1.0 / jnp.diag(inertia)
    own, (La, _, Lc), (ab, bc, ac), (ea, eb, ec) = _shape(level, inverse, m, axes)
    speed = jnp.abs(ea * bc)
    speed = jnp.where(speed > 0, speed, 1.0)
    k2, mc = jnp.abs(ec * ab) / speed, jnp.maximum(jnp.abs(eb * ac) / speed, TINY)
    K = 0.5 * level.period
    S = carlson_third(mc, jnp.ones(())) / 3.0
    d_inverse, d_square, d_energy = _level_changes(inverse, m)
    dLa, dLb, dLc = (d_inverse @ own).T
    square = m @ m
    dea, dec = (d_energy - d_square * L - square * dL for L, dL in ((La, dLa), (Lc, dLc)))
    relative = dea / jnp.where(ea == 0, 1.0, ea) + (dLb - dLc) / jnp.where(bc == 0, 1.0, bc)  # of l^2
    d_k2 = ((dLa - dLb) * ec + ab * dec) / speed - k2 * relative  # e_c, L_a - L_b and L_b - L_c have one sign
    by_time = period * ((K - S) / (2.0 * mc * K) * d_k2 - 0.5 * relative)
    unit = along / jnp.maximum(along @ along, 1e-300)
    by_time -= jnp.concatenate([jnp.zeros(9), unit * (by_time[9:] @ along)])  # it is constant along the motion
    first = jnp.concatenate([jnp.zeros((9, 3)), jnp.eye(3)])
    momentum = first - jnp.outer(by_time, along)
    amplitudes = jnp.abs(jnp.stack([ec, ec, ea]) / jnp.stack([ac, jnp.where(bc == 0, 1.0, bc), ac]))
    means = own @ (amplitudes * jnp.stack([1.0 - S / K, S / K, 1.0 - k2 * S / K]))  # of the squares of m
    about = 0.5 * period * (d_energy + d_inverse @ means)
    across = jnp.cross(m, first @ rotation - momentum)
    return Change(momentum, (across + about[:, None] * m) / square, rotation)


@jax.custom_jvp
def _hold_change(momentum: Array, turn: Array, motion: tuple[Any, ...]) -> tuple[Array, Array]:
    """What is given, with the derivatives of the change of a motion: second derivatives go along the whole of it."""
    return momentum, turn


@_hold_change.defjvp
def _hold_change_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    return _hold_change(*primals), tuple(jax.jvp(_change_by_substeps, primals[2], tangents[2])[1][:2])


@exact_motion.defjvp
def _exact_motion_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The derivatives by inertia and momentum: a closed form, or a Jacobian as reverse mode passes through no loop."""
    still: Any = jax.lax.stop_gradient(primals)
    level, inertia, m, _, own_axes, t = still
    g, axes = primals[3:5]
    regular, by_shape, turn_by_shape = push_by_shape(
        level, inertia, m, own_axes, t, _motion_in_axes(*still), tangents[1], tangents[2]
    )

    def change_once(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        change = change_of_motion(*still)
        return state[0] + 1.0, change.momentum, change.turn

    begin = jnp.where(regular, 1.0, 0.0), jnp.zeros((12, 3)), jnp.zeros((12, 3))
    momentum, turn = _hold_change(*jax.lax.while_loop(lambda state: state[0] < 1.0, change_once, begin)[1:], primals)
    new, turned = _motion_in_axes(*primals)
    velocity = body_on_level(primals[1], new).inverse @ new
    given = jnp.concatenate([tangents[1].reshape(9), tangents[2]])
    by_shape, turn_by_shape = (jnp.where(regular, each, 0.0) for each in (by_shape, turn_by_shape))
    new_change = by_shape + given @ momentum + tangents[5] * jnp.cross(new, velocity)
    turned_change = -jnp.cross(turn_by_shape + given @ turn + tangents[5] * velocity, turned)
    result = axes @ new_change, (tangents[3] @ turned + g @ turned_change) @ axes.T
    return exact_motion(*primals), result


def map_constants(inertia: Array, m: Array, h: Scalar, order: int, variant: str) -> tuple[Step, Array]:
    """(constants, whether they exist) of the map of this order for a body in principal axes."""
    b = body_on_level(inertia, m)
    if variant == "scaled":
        scale = discrete_scale(b, truncated_scale(b, h, order))
        return step_constants(b, scale), scale.exists
    b = b if order == 2 else modified_body(b, m, h, order)
    scale = discrete_scale(b, h)
    step = step_constants(b, scale)
    # Long steps may modify the moments to such as no body has: then the equation itself is the judge.
    q = unit_multiple(advance_body(step, m)[1])
    Iq = q[1:] / jnp.diag(b.inverse)
    gap = h * m - 2.0 * (q[0] * Iq + jnp.cross(q[1:], Iq))
    solved = gap @ gap <= 1e-20 * h * h * b.C
    return step, scale.exists & solved & jnp.all(jnp.diag(b.inverse) > 0)


class ScaleSeries(NamedTuple):
    """Coefficients in z = h^2 of s/h, x/h^2 and B/h^3 of the exact flow over the time h."""

    s: list[Array]
    x: list[Array]
    B: list[Array]


def scale_series(b: Body, terms: int) -> ScaleSeries:
    """The first `terms` coefficients, by the Taylor recursion from 0."""
    table = taylor_coefficients(jnp.zeros(4), scale_equations(b), jnp.ones(()), 2 * terms + 1)
    places = ((1, 0), (2, 1), (3, 3))
    return ScaleSeries(*[[table[2 * k + first, column] for k in range(terms)] for first, column in places])


def series_product(a: list[Array], b: list[Array]) -> list[Array]:
    """The product of two power series."""
    return [sum((a[j] * b[k - j] for j in range(1, k + 1)), a[0] * b[k]) for k in range(len(a))]


def series_reciprocal(a: list[Array]) -> list[Array]:
    """The reciprocal of a power series."""
    inverse = [1.0 / a[0]]
    for k in range(1, len(a)):
        inverse.append(-sum(a[j] * inverse[k - j] for j in range(1, k + 1)) / a[0])
    return inverse


def truncated_scale(b: Body, h: Scalar, order: int) -> Array:
    """h/(1 + tau3 h^2 + (tau5 - 2 tau3^2) h^4 + ...), cut after the order; the whole series is s of the exact flow."""
    return h / horner(series_reciprocal(scale_series(b, order // 2).s), h * h)


def modified_moments(b: Body, terms: int) -> tuple[list[Array], list[Array]]:
    """Series in h^2 of alpha and beta: with 1/I~ = alpha/I + beta discrete Moser-Veselov is exact.

    Hairer and Vilmart 2006: alpha = (s cos f - c x)^2/(s h) and beta = 2 c (s cos f - c x)/(s h), with f = -|m| B/2 and
    c = sin f/|m|.
    """
    s, x, B = scale_series(b, terms)
    zero = [0.0 * s[0]] * terms
    shift: Callable[[list[Array], int], list[Array]] = lambda a, k: (zero[:k] + a)[:terms]
    square = [-0.25 * b.C * c for c in shift(series_product(B, B), 3)]  # -f^2
    cosine, sine = list(zero), list(zero)
    power, factor = [1.0 + zero[0], *zero[1:]], 1.0
    for k in range(terms // 3 + 1):
        cosine = [a + factor * p for a, p in zip(cosine, power, strict=True)]
        sine = [a + factor / (2 * k + 1) * p for a, p in zip(sine, power, strict=True)]
        power, factor = series_product(power, square), factor / ((2 * k + 1) * (2 * k + 2))
    c = [-0.5 * a for a in series_product(B, sine)]  # c/h^3
    u = [a - e for a, e in zip(series_product(s, cosine), shift(series_product(c, x), 2), strict=True)]
    ratio = series_product(u, series_reciprocal(s))
    return series_product(u, ratio), [2.0 * a for a in shift(series_product(c, ratio), 1)]


def modified_body(b: Body, m: Array, h: Scalar, order: int) -> Body:
    """The body with the modified moments of inertia, alpha and beta cut after the terms that the order needs."""
    alpha, beta = (horner(coefficients, h * h) for coefficients in modified_moments(b, order // 2))
    inverse = alpha * b.inverse + beta * jnp.eye(3)
    cofactor = adjugate(inverse)
    return body_on_level(cofactor / (inverse[0] @ cofactor[0]), m)


def horner(coefficients: list[Array], z: Scalar) -> Array:
    """c_0 + c_1 z + c_2 z^2 + ..."""
    return reduce(lambda value, c: value * z + c, coefficients[::-1])
