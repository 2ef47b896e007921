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
from .polhode import TINY, Polhode, at_time, carlson_third, turned_frame, zeta

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
HAT = np.array([[0, 0, 0, 0, 0, -1, 0, 1, 0], [0, 0, 1, 0, 0, 0, -1, 0, 0], [0, -1, 0, 1, 0, 0, 0, 0, 0]])
HAT = HAT.reshape(3, 3, 3).astype(float)  # of the matrices of the cross product
GAPS = np.array([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]])  # differences of the other two
ACROSS = np.array([[0.0, -1.0], [1.0, 0.0]])
PAIRING = np.array([[float(sorted((i, j)) == list(pair)) for pair in PAIRS] for i in range(3) for j in range(3)])
TENSORS = (PAIRING / np.sum(PAIRING, 0)).reshape(3, 3, 6)  # changes of the inertia by each pair of entries
SHARED, DIVIDED = np.eye(3)[[2, 2, 0]], np.eye(3)[[1, 0, 1]]  # A^2, B^2, D^2 are |e_c/(ca)|, |e_c/(bc)|, |e_a/(ca)|


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


class BodyVariation(NamedTuple):
    """How a level changes: zeros, whose derivatives count. They are taken once a run; those of a state follow quickly.

    The axes (a, b, c) are those of the polhode. See `turn_by_shape`.
    """

    shape: Any = np.zeros((3, 3))  # a turn of the start, in the frame of m; relative changes of m; a turn of the axes
    phase: Any = np.zeros(5)  # its changes, at the start and by time; d(k^2); turns about m by time and by int sn^2


@jax.custom_jvp
def exact_motion(
    level: Polhode, variation: BodyVariation, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar
) -> tuple[Vector3, Matrix3]:
    """(momentum, attitude) at the time t after (m, g), of which `level` is the polhode; its derivatives are the map's.

    inertia, m and the columns of g are given in the principal `axes`, the result in those of the body. `variation` is
    that of `vary` there.
    """
    return at_time(level, t)


def _hat(v: Array) -> Array:
    """The matrix of the cross product with v."""
    matrix: Array = jnp.tensordot(v, HAT, 1)
    return matrix


class Change(NamedTuple):
    """The derivative of a motion by the inertia (9) and the momentum (3): rows are these directions."""

    momentum: Array  # (12, 3)
    turn: Array  # (12, 3): G^T dG of the rotation G of the body, as vectors
    rotation: Array  # (3, 3): G


def _change_by_substeps(level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar) -> Change:
    """The derivatives over the time t, carried along the motion by those of short steps of the map."""
    b = body_on_level(inertia, m)
    count = jnp.maximum(1.0, jnp.ceil(jnp.abs(t) * _rate(inertia, m) / MAX_TURN))
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


def _motion_in_axes(
    level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar
) -> tuple[Array, Array]:
    """(momentum, rotation since the start) at a time, in principal axes."""
    variation = vary(level, inertia, m, g, axes)
    momentum, attitude = exact_motion(level, variation, inertia, m, g, axes, t)
    return axes.T @ momentum, g.T @ attitude @ axes


def turn_along(level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar) -> Array:
    """The derivatives (3, 9) of the attitude after the time t, as turns in the frame of m, by the equation they follow.

    The columns belong to the PAIRS of the inertia, whose entries change together, and to the momentum in space, which
    stays. In a frame with m for the third axis, with the rotation G of the body in it, L = 1/I and dG = V x G,

        V' = G L G^T (dm + m x V) + G dL G^T m.

    This is an equation for two components, solved by collocation at Gauss's nodes (whose equations are iterated), and a
    quadrature. It begins at the last whole period before t. The same by the map: `_change_by_substeps`.
    """
    inverse, rate, fixed = 1.0 / jnp.diag(inertia), _rate(inertia, m), level.axes.T @ axes
    long = jnp.abs(t) * rate > MAX_PANEL
    moves, before, start = _turn_before(level, inertia, m, g, axes, t, long)
    panels = jnp.maximum(1.0, jnp.ceil(jnp.abs(t - before) * rate / MAX_PANEL))
    dt = (t - before) / panels
    nodes, a, weights = gauss_coefficients(PANEL_NODES)

    def panel(state: tuple[Array, Array]) -> tuple[Array, Array]:
        k, V = state

        def fill(j: Array, rows: Array) -> Array:
            """Row j: in a loop, for written out eight times it is most of what a first derivative compiles."""
            here = jnp.where(jnp.arange(PANEL_NODES) == j, 1.0, 0.0)
            row: Array = turned_frame(level, before + (k + here @ nodes) * dt) @ fixed
            return rows + here[:, None, None] * row

        turned = jax.lax.fori_loop(0, PANEL_NODES, fill, jnp.zeros((PANEL_NODES, 3, 3)))
        by, velocity = turned * inverse, level.size * turned[:, 2] * inverse
        spatial = by @ turned[:, :2].transpose(0, 2, 1)
        factor = level.size * jnp.stack([spatial[:, :, 1], -spatial[:, :, 0]], 2)

        def advance(j: Array, new: Array) -> Array:
            """Column j, which does not depend on the others."""
            here = jnp.where(jnp.arange(9) == j, 1.0, 0.0)
            along = (here[6:] @ level.begin) @ turned - velocity @ (TENSORS @ here[:6])
            own, force = V @ here, jnp.sum(by * along[:, None], 2)

            def inside(rates: Array) -> Array:
                return own[:2] + dt * (a @ rates)

            def improve(_: Any, rates: Array) -> Array:
                better: Array = jnp.sum(factor[:, :2] * inside(rates)[:, None], 2) + force[:, :2]
                return better

            rates = jax.lax.fori_loop(0, ITERATIONS, improve, force[:, :2])
            last = jnp.sum(factor[:, 2] * inside(rates), 1) + force[:, 2]
            after = own + dt * jnp.concatenate([weights @ rates, weights @ last[:, None]])
            return new + after[:, None] * here

        return k + 1.0, jax.lax.fori_loop(0, 9, advance, jnp.zeros((3, 9)))

    panels = jnp.where((t != before) & (moves | ~long), panels, 0.0)
    found: Array = jax.lax.while_loop(lambda state: state[0] < panels, panel, (jnp.zeros(()), start))[1]
    return found


def _turn_before(
    level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3, t: Scalar, long: Array
) -> tuple[Array, Array, Array]:
    """(whether the momentum moves, the time of n periods T = 4 K/l next to t, the derivatives after it) in closed form.

    There the momentum has changed by dm - n m' dT, dK = (K - S)/(2 (1 - k^2)) d(k^2) with S = int_0^K sn^2, and for the
    turn V of the body V x m = dm - R dm(nT) and <V, m>' = dh + <m, dL m>/2, h the energy. A momentum that stays has an
    equation with constant coefficients: its derivatives are those after the time t itself, where this is `long`.
    """
    form, begun, inverse = _form(level, inertia, m, axes), level.begin.T @ g, 1.0 / jnp.diag(inertia)
    velocity = inverse * m
    along, size = _hat(m) @ velocity, jnp.where(level.size > 0, level.size, 1.0)
    moves, square = form.usable, along @ along
    back = 2.0 * level.period / jnp.abs(jnp.where(moves, level.speed, 1.0))
    before = jnp.where(moves, jnp.where(t < 0, -back, back) * jnp.round(jnp.abs(t) / back), 0.0)
    angle = level.rate * jnp.where(moves, before, t)
    turn = jnp.cos(angle) * jnp.eye(2) + jnp.sin(angle) * ACROSS
    none, d_m = jnp.zeros((3, 6)), level.begin.T
    tensors = jnp.tensordot(velocity, TENSORS, 1)

    own = form.own * form.own
    d_inverse = jnp.concatenate([-inverse[:, None] * inverse[:, None] * own, none.T])
    d_square = jnp.concatenate([jnp.zeros(6), 2.0 * size * d_m[2]])
    d_energy = jnp.concatenate([-velocity @ tensors, 2.0 * (begun @ velocity) @ d_m])
    slopes, K = _slopes(form, d_inverse, d_square, d_energy), 0.5 * level.period
    share = carlson_third(form.mc, jnp.ones(())) / (3.0 * K)  # S/K
    d_time = before * ((1.0 - share) / (2.0 * form.mc) * slopes.k2 - 0.5 * slopes.speed)
    level_stays = jnp.concatenate([jnp.zeros(6), g @ along])  # d_time is constant along the motion
    d_time -= level_stays * (d_time @ level_stays / jnp.where(square > 0, square, 1.0))
    means = form.amplitudes * jnp.stack([1.0 - share, share, 1.0 - form.k2 * share])  # of the squares of m
    d_m = jnp.concatenate([none, d_m], 1)
    periods = d_m[:2] - jnp.outer((begun @ along)[:2], d_time)
    about = 0.5 * before / size * (d_energy + d_inverse @ means)

    by = begun * inverse
    spatial, force = by @ begun.T, jnp.concatenate([-by @ tensors, jnp.zeros((3, 3))], 1)
    excess = spatial[:2, :2] - spatial[2, 2] * jnp.eye(2)
    x = level.size**2 * (excess[0, 0] * excess[1, 1] - excess[0, 1] * excess[1, 0]) * t * t
    half = 0.5 * jnp.sqrt(jnp.abs(x))
    growth = jnp.expm1(jnp.where(x < 0, half, 0.0))
    up = 1.0 + growth
    sine = jnp.where(x < 0, 0.5 * (growth + growth / up), jnp.sin(half)) / jnp.where(half > 0, half, 1.0)
    sine = jnp.where(half > 0, sine, 1.0)  # sin or sinh of half the root of x, divided by it
    once, twice = t * sine * jnp.where(x < 0, 0.5 * (up + 1.0 / up), jnp.cos(half)), 0.5 * (t * sine) ** 2
    pushed = level.size * ACROSS @ excess
    stays = d_m[:2] * (1.0 - 0.5 * x * sine * sine) + once * pushed @ d_m[:2]
    forced = once * force[:2] + twice * level.size * (excess @ ACROSS) @ force[:2]
    across = ACROSS @ (d_m[:2] - turn @ jnp.where(moves, periods, stays)) / size
    across = across + jnp.where(moves, 0.0, turn @ forced)
    turned = jnp.concatenate([across, jnp.where(moves, about, t * (force[2] + spatial[2, 2] * d_m[2]))[None]])
    return moves, before, jnp.where(moves | long, turned, 0.0)


def _rate(inertia: Matrix3, m: Vector3) -> Array:
    """The inverse time in which s, x and y change: |m|/I_min, and coefficients of s' for moments that no body has."""
    moments, size = jnp.diag(inertia), jnp.abs(m)
    half = 0.5 * jnp.sum(moments)
    inverse, mass = 1.0 / moments, half - moments
    D, weighed = jnp.prod(moments), size * size * inverse
    E2 = (D + jnp.prod(mass)) / half
    turning = (m @ m) * jnp.max(jnp.abs(inverse)) ** 2
    scale = half * (weighed @ jnp.abs(mass)) + jnp.abs(E2) * jnp.sum(weighed)
    rate: Array = jax.lax.stop_gradient(jnp.sqrt(turning + scale / D))
    return rate


class BodyForm(NamedTuple):
    """A polhode in its own axes (a, b, c), with e_i = <m, L m> - L_i |m|^2.

    It has l^2 = |e_a (L_b - L_c)|, k^2 = |e_c (L_a - L_b)|/l^2 and 1 - k^2 = |e_b (L_a - L_c)|/l^2. Numbers that others
    are divided by are 1 where it is not usable.
    """

    usable: Array
    own: Array  # (3, 3): the axes
    m: Array
    L: Array  # of 1/I
    gaps: Array  # L_b - L_c, L_c - L_a, L_a - L_b
    excess: Array  # e
    by_gaps: Array
    by_excess: Array
    speed: Array  # l^2
    k2: Array
    mc: Array  # 1 - k^2
    amplitudes: Array  # the squares of A, B and D
    square: Array  # |m|^2
    along: Array  # m'


def _form(level: Polhode, inertia: Matrix3, m: Vector3, axes: Matrix3, regular: bool = False) -> BodyForm:
    """The form of a polhode, usable where the momentum moves.

    `regular`: where no moments are nearly equal, and the motion is neither near an axis nor near the separatrix.
    """
    inverse, own = 1.0 / jnp.diag(inertia), axes.T @ level.axes
    L, m = inverse @ (own * own), m @ own
    gaps, squares, along = L @ GAPS.T, m * m, _hat(m) @ (L * m)
    excess, square, moving = _hat(gaps) @ squares, jnp.sum(squares), along @ along
    speed, least = jnp.abs(excess[0] * gaps[0]), jnp.abs(excess[1] * gaps[1])
    usable = (level.speed != 0) & (moving > 0)
    if regular:
        most = REGULAR * jnp.max(inverse)
        usable &= (jnp.min(jnp.abs(gaps)) > most) & (least > REGULAR * speed) & (moving > (most * square) ** 2)

    def divisor(x: Array) -> Array:
        return jnp.where(usable & (x != 0), x, 1.0)

    by_gaps, by_excess, speed, square = divisor(gaps), divisor(excess), divisor(speed), divisor(square)
    amplitudes = jnp.abs(excess @ SHARED.T / (by_gaps @ DIVIDED.T))
    k2, mc = jnp.abs(excess[2] * gaps[2]) / speed, jnp.maximum(least / speed, TINY)
    return BodyForm(usable, own, m, L, gaps, excess, by_gaps, by_excess, speed, k2, mc, amplitudes, square, along)


class Slopes(NamedTuple):
    """Changes of a polhode: of k^2, and relative ones of l^2, of the squares e and of the differences of L."""

    k2: Array
    speed: Array
    excess: Array
    gaps: Array


def _slopes(form: BodyForm, d_inverse: Array, d_square: Array, d_energy: Array) -> Slopes:
    """The changes with those of 1/I (in the last axis), |m|^2 and <m, m/I>."""
    d_excess = d_energy[..., None] - d_square[..., None] * form.L - form.square * d_inverse
    d_gaps = d_inverse @ GAPS.T
    excess, gaps = d_excess / form.by_excess, d_gaps / form.by_gaps
    speed = excess[..., 0] + gaps[..., 0]
    k2 = (d_gaps[..., 2] * form.excess[2] + form.gaps[2] * d_excess[..., 2]) / form.speed - form.k2 * speed
    return Slopes(k2, speed, excess, gaps)


@jax.custom_jvp
def vary(level: Polhode, inertia: Matrix3, m: Vector3, g: Matrix3, axes: Matrix3) -> BodyVariation:
    """How the level changes with inertia and momentum, both in principal axes, where it is regular."""
    return BodyVariation(jnp.zeros((3, 3)), jnp.zeros(5))


@vary.defjvp
def _vary_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """With m = (A cn, B sn, D dn) a change of the level changes the amplitudes, and the phase by t l'/l - Q d(k^2)/2
    with Q = int sd^2 dt; m' times it is added. Changes of the axes turn the momentum and its start.
    """
    level, inertia, m, g, axes = jax.lax.stop_gradient(primals)
    form = _form(level, inertia, m, axes, regular=True)
    own, here, moments = form.own, form.m, 1.0 / form.L
    d_inertia, gap = own.T @ tangents[1] @ own, GAPS @ moments
    axes_turn = 0.5 * jnp.tensordot(abs(HAT), d_inertia, 2) / jnp.where(form.usable & (gap != 0), gap, 1.0)
    d_inverse = -form.L * form.L * jnp.sum(jnp.eye(3) * d_inertia, 1)
    d_start = own.T @ tangents[2] + _hat(here) @ axes_turn
    d_energy = (here * here) @ d_inverse + 2.0 * (form.L * here) @ d_start
    slopes = _slopes(form, d_inverse, 2.0 * here @ d_start, d_energy)
    growth = 0.5 * (SHARED @ slopes.excess - DIVIDED @ slopes.gaps)
    ratio = _ratio(form, here)
    shaped = here * (growth - jnp.array([0.0, 0.0, 0.5]) * (slopes.k2 * ratio * ratio))
    begun = (d_start - shaped) @ form.along / jnp.where(form.usable, form.along @ form.along, 1.0)
    by_time, by_sines = _squares(form)
    phase = begun, 0.5 * slopes.speed, slopes.k2, 0.5 * (d_energy + d_inverse @ by_time), 0.5 * d_inverse @ by_sines
    turned = level.begin.T @ g @ own @ (axes_turn + _hat(here) @ d_start / form.square)
    found = jnp.stack([turned, growth, axes_turn]), jnp.stack(phase)
    return vary(*primals), BodyVariation(*(jnp.where(form.usable, each, 0.0) for each in found))


def _ratio(form: BodyForm, m: Vector3) -> Array:
    """sn/dn of the phase of a momentum."""
    factor = jnp.sqrt(form.amplitudes[2] / jnp.where(form.usable, form.amplitudes[1], 1.0))
    return factor * m[1] / jnp.where(form.usable, m[2], 1.0)


def _squares(form: BodyForm) -> tuple[Array, Array]:
    """What the integrals of the squares of m are by the time and by int sn^2."""
    return form.amplitudes * np.array([1.0, 0.0, 1.0]), form.amplitudes * jnp.stack([-1.0, 1.0, -form.k2])


def turn_by_shape(
    level: Polhode, variation: BodyVariation, inertia: Matrix3, m: Vector3, axes: Matrix3, t: Scalar, rows: Matrix3
) -> tuple[Array, Array]:
    """(whether it is regular, the change of the attitude after the time t as a turn) in the axes of the polhode.

    `rows` are those of `turned_frame`. It is regular where the level is and the time is not short. With Jacobi's
    function Z and S = int_0^K sn^2

        int sn^2 du = u S/K - Z/k^2,   int sd^2 du = (u - int sn^2 du - sn cn/dn)/(1 - k^2).
    """
    form, new = _form(level, inertia, m, axes, regular=True), level.size * rows[2]
    regular = form.usable & (jnp.abs(t) * _rate(inertia, m) > MAX_PANEL)
    moving, k2 = (jnp.where(form.usable, each, 1.0) for each in (level.speed, form.k2))
    (first, mean), (last, _) = zeta(level, level.u0), zeta(level, level.u0 + level.speed * t)
    root = 1.0 / jnp.sqrt(jnp.where(form.usable, form.amplitudes[0], 1.0))
    ratio, ratio0 = _ratio(form, new), _ratio(form, form.m)
    sines = (t * mean - (last - first) / moving) / k2
    quotients = (t - sines - root * (ratio * new[0] - ratio0 * form.m[0]) / moving) / form.mc
    sines, quotients, square = (jnp.where(regular, each, 0.0) for each in (sines, quotients, ratio * ratio))
    (_, growth, axes_turn), (begun, rate, d_k2, by_time, by_sines) = variation.shape, variation.phase
    phase = begun + t * rate - 0.5 * quotients * d_k2
    change = new * (growth - jnp.array([0.0, 0.0, 0.5]) * (square * d_k2)) + phase * (_hat(new) @ (form.L * new))
    turn = (t * by_time + sines * by_sines) * new - _hat(new) @ change
    return regular, turn * (1.0 / form.square) - axes_turn


@jax.custom_jvp
def _hold_turn(turn: Array, motion: tuple[Any, ...]) -> Array:
    """What is given, with the derivatives of the turn of a motion: second derivatives go along the whole of it."""
    return turn


@_hold_turn.defjvp
def _hold_turn_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    change = jax.jvp(_change_by_substeps, primals[1], tangents[1])[1]
    return _hold_turn(*primals), change.turn


@exact_motion.defjvp
def _exact_motion_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The derivatives by inertia and momentum: a closed form, or a Jacobian as reverse mode passes through no loop.

    With the turn v of the body the momentum changes by A^T dm + m x v, dm its change in space.
    """
    still: Any = jax.lax.stop_gradient((primals[0], *primals[2:]))
    (level, *_, time), (_, _, inertia, _, g, axes, _) = still, primals
    _, d_variation, d_inertia, d_m, d_g, _, d_t = tangents
    rows, (new, attitude) = turned_frame(level, time), exact_motion(*primals)
    regular, by_shape = turn_by_shape(level, d_variation, still[1], still[2], still[4], time, rows)

    def turn_once(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """The loop has the time from its start, so that nothing that depends on it is computed outside."""
        return state[0] + 1.0, jnp.zeros(()), turn_along(*(*still[:-1], state[1]))

    begin = jnp.where(regular, 1.0, 0.0), 1.0 * time, jnp.zeros((3, 9))
    by_given = jax.lax.while_loop(lambda state: state[0] < 1.0, turn_once, begin)[2]
    d_space = g @ d_m
    given = jnp.concatenate([d_inertia.reshape(9) @ PAIRING, d_space])
    turn = rows.T @ (jnp.where(regular, d_variation.shape[0], 0.0) + by_given @ given)
    turn = level.axes @ (turn + jnp.where(regular, by_shape, 0.0))
    later = _hold_turn(jnp.zeros((12, 3)), (level, *primals[2:]))
    cofactor = adjugate(inertia)
    inverse = axes @ (cofactor / (inertia[0] @ cofactor[0])) @ axes.T
    turn = turn + axes @ (jnp.concatenate([d_inertia.reshape(9), d_m]) @ later) + d_t * (inverse @ new)
    change = attitude.T @ d_space + _hat(new) @ turn
    return (new, attitude), (change, (d_g @ g.T + _hat(attitude @ turn)) @ attitude)


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
