"""One step of the free rigid body as a map with constants: every order of discrete Moser-Veselov, and the exact flow.

A step of the discrete Moser-Veselov method with scale s solves s m = 2 q0 I q + 2 q x I q for the unit quaternion (q0, q)
and turns the body by it; s m' = 2 q0 I q - 2 q x I q. With x = 2 <q, I q>, y = 2 <q, J I q> (both constant on a level of
|m|^2 and of the energy), N = 1 - (y J + x adj J)/det I and w = m + m' this is the explicit map

    m' = |m| P/|P|,   P = adj(N) m + s N (m x I^-1 m),   (q0, q) ~ (s <w, I^-1 w>, 2 x I^-1 w).

The numbers s, x, y are all that a method has to supply: see docs/exact-rigid-body.md. Notation: J = tr(I)/2 - I;
E1, E2, E3 its elementary symmetric functions; D = det I = E1 E2 - E3; C = |m|^2; H = <m, I^-1 m>; H2 = |J m|^2.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._newton import find_root
from .._series import sinc

TINY = 1e-120  # its square must not underflow in derivatives
TERMS = 24
REACH = 0.4  # of a Taylor substep, in units of I_min/|m|: the series then converges to round-off at order TERMS


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
    """What a method supplies: the scale s of the momentum, x = E1 - e1, y = E2 - e2, the phase B, and whether they exist."""

    s: Array
    x: Array
    y: Array
    B: Array
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


def adjugate(matrix: Array) -> Array:
    """adj A, for a symmetric 3 x 3 matrix: its rows are cross products of those of A."""
    a, b, c = matrix
    return jnp.stack([jnp.cross(b, c), jnp.cross(c, a), jnp.cross(a, b)])


def body(inertia: Array, m: Array) -> Body:
    """The body with inertia tensor `inertia` on the level of the momentum m."""
    one = jnp.eye(3)
    cofactor = adjugate(inertia)
    D = inertia[0] @ cofactor[0]
    inverse = cofactor / D
    E1 = 0.5 * jnp.trace(inertia)
    mass = E1 * one - inertia
    adj = adjugate(mass)
    Jm = mass @ m
    return Body(inverse, mass, adj, E1, jnp.trace(adj), mass[0] @ adj[0], D, m @ m, m @ inverse @ m, Jm @ Jm, m @ inverse @ Jm)


# -- the exact flow -----------------------------------------------------------------------------------------------------
def taylor(point: Array, invariants: Array, dt: Array, terms: int = TERMS) -> Array:
    """Coefficients (terms + 1, 4) of the series in t/dt of (s, x, y, B) through `point`:

    s' = 1 - (E1 y + E2 x - x y)/D,  x' = s (H - C y/D),  y' = s (H E1 - C - H2 x/D),  B' = -y/D.
    """
    E1, E2, D, C, H, H2, K = invariants

    def term(carry, n):
        series, mirror = carry  # mirror holds the coefficients in reverse: the product's coefficient is a dot product
        s, x, y, _ = mirror[0]
        xy, sy, sx = series[:, 1] @ mirror[:, 2], series[:, 0] @ mirror[:, 2], series[:, 0] @ mirror[:, 1]
        first = jnp.where(n == 0, 1.0, 0.0)
        slope = jnp.stack([first - (E1 * y + E2 * x - xy) / D, H * s - C / D * sy, K * s - H2 / D * sx, -y / D])
        new = dt / (n + 1.0) * slope
        place = jnp.where(jnp.arange(terms + 1) == n + 1, 1.0, 0.0)
        return (series + place[:, None] * new, jnp.concatenate([new[None], mirror[:-1]])), None

    zero = jnp.zeros((terms, 4))
    start = jnp.concatenate([point[None], zero])
    return jax.lax.scan(term, (start, start), jnp.arange(terms))[0][0]


def _flow(invariants: Array, h: Array, rate: Array) -> Array:
    count = jnp.maximum(1.0, jnp.ceil(jnp.abs(h) * rate / REACH))

    def substep(state):
        k, point, lost = state
        gain = jnp.sum(taylor(point, invariants, h / count)[:0:-1], axis=0) - lost
        new = point + gain
        return k + 1.0, new, (new - point) - gain  # compensated: the error stays that of one substep

    return jax.lax.while_loop(lambda state: state[0] < count, substep, (jnp.zeros(()), jnp.zeros(4), jnp.zeros(4)))[1]


@jax.custom_jvp
def flow(invariants: Array, h: Array, rate: Array) -> Array:
    """(s, x, y, B) of the exact flow over the time h; rate = |m|/I_min sets the number of Taylor substeps."""
    return _flow(invariants, h, rate)


@flow.defjvp
def _flow_jvp(primals, tangents):
    """The Jacobian by forward mode, so that reverse mode need not pass through the loop."""
    invariants, h, rate = primals
    by_level, by_time = jax.jacfwd(_flow, argnums=(0, 1))(invariants, h, rate)
    return flow(invariants, h, rate), by_level @ tangents[0] + by_time * tangents[1]


def invariants(b: Body) -> Array:
    return jnp.stack([b.E1, b.E2, b.D, b.C, b.H, b.H2, b.K])


def rate(b: Body) -> Array:
    """A bound of |m|/I_min: the fastest rotation on the level."""
    return jax.lax.stop_gradient(jnp.sqrt(b.C * jnp.max(jnp.sum(jnp.abs(b.inverse), axis=1)) ** 2))


def exact(b: Body, h: Array) -> Scale:
    """The scale with which one discrete step, turned back by |m| B about the momentum, is the flow over the time h."""
    s, x, y, B = flow(invariants(b), h, rate(b))
    s = jnp.where(jnp.abs(s) < 1e-140, 1e-140, s)  # h is a period to the last bit
    x, y = _refine(b, s, x, y)
    return Scale(s, x, y, B, jnp.asarray(True))


def _refine(b: Body, s, x, y) -> tuple[Array, Array]:
    """Near a full period x and y are small again and must be so to relative accuracy: they follow from s by two quadratics."""
    small = x < 0.05 * b.D / (b.E1 * b.E1)
    u, v = jnp.where(small, x, 0.0), jnp.where(small, y, 0.0)
    for _ in range(3):
        u, v = _newton(b, s, u, v)
    return jnp.where(small, u, x), jnp.where(small, v, y)


def _newton(b: Body, s, x, y) -> tuple[Array, Array]:
    """A step of Newton's method on `quadratics`."""
    first, second = quadratics(b, s, x, y)
    a, d = 2 * (x - b.E1), 2 * (y - b.E2)
    determinant = a * d - 4 * b.E3
    return x - (d * first - 2 * second) / determinant, y - (a * second - 2 * b.E3 * first) / determinant


# -- discrete Moser-Veselov at a given scale ----------------------------------------------------------------------------
def quadratics(b: Body, s, x, y) -> tuple[Array, Array]:
    """e1^2 - 2 e2 = tr J^2 - s^2 C and e2^2 - 2 E3 e1 = tr adj(J)^2 - s^2 H2, for e1 = E1 - x, e2 = E2 - y."""
    return x * x - 2 * b.E1 * x + 2 * y + s * s * b.C, y * y - 2 * b.E2 * y + 2 * b.E3 * x + s * s * b.H2


def discrete(b: Body, s: Array) -> Scale:
    """x and y of discrete Moser-Veselov with scale s, on the branch through the identity; it exists for |s| < s*."""
    limit = largest_scale(b)

    def monotone(state):
        k, x, _ = state
        y = b.E1 * x - 0.5 * (x * x + s * s * b.C)
        defect = y * y - 2 * b.E2 * y + 2 * b.E3 * x + s * s * b.H2
        change = 0.5 * defect / ((b.E1 - x) * (b.E2 - y) - b.E3)
        return k + 1, x + change, change

    def unfinished(state):
        k, x, change = state
        return (k < 60) & (jnp.abs(change) > 1e-15 * x)

    _, x, _ = jax.lax.while_loop(unfinished, monotone, jax.lax.stop_gradient((0, jnp.zeros(()), jnp.ones(()))))
    guess = jnp.stack([x, b.E1 * x - 0.5 * (x * x + s * s * b.C)])
    inside = jnp.abs(s) < limit
    guess = jax.lax.stop_gradient(jnp.where(inside, guess, 0.0))
    root = find_root(lambda z: jnp.stack(quadratics(b, jnp.where(inside, s, 0.0), z[0], z[1])), guess).x
    return Scale(s, root[0], root[1], jnp.zeros(()), inside)


def largest_scale(b: Body) -> Array:
    """s*, where a pair of roots of det(l^2 - l s M - J^2) reaches the imaginary axis: e1 e2 = e3 there.

    Then e1 is the positive root of H2 e^4 + 2 C E3 e^3 + (C tr adj(J)^2 - H2 tr J^2) e^2 - 2 H2 E3 e - C E3^2, which
    has one by Descartes' rule (E3 > 0), and s*^2 = (tr J^2 - e1^2 + 2 E3/e1)/C. A flat body is the limit E3 -> 0.
    """
    E3 = jnp.where(jnp.abs(b.E3) < 1e-30 * b.D, 1e-30 * b.D, b.E3)
    squares, minors = b.E1 * b.E1 - 2 * b.E2, b.E2 * b.E2 - 2 * b.E1 * E3

    def sign(e):
        return (((b.H2 * e + 2 * b.C * E3) * e + (b.C * minors - b.H2 * squares)) * e - 2 * b.H2 * E3) * e - b.C * E3 * E3

    def halve(_, bounds):
        low, high = bounds
        middle = jnp.sqrt(low * high)
        above = sign(middle) > 0
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    low, high = jax.lax.fori_loop(0, 64, halve, jax.lax.stop_gradient((1e-40 * b.E1, b.E1)))
    e1 = jnp.sqrt(low * high)
    return jax.lax.stop_gradient(jnp.sqrt((squares - e1 * e1 + 2 * E3 / e1 + TINY) / (b.C + TINY)))


# -- the map ------------------------------------------------------------------------------------------------------------
def constants(b: Body, scale: Scale) -> Step:
    """The constants of the map for a scale, in principal axes of the body."""
    s, x, y = scale.s, scale.x, scale.y
    one = jnp.eye(3)
    K = (y * b.mass + x * b.cofactor) / b.D
    p, nu = _diagonal(b, x, y, 1.0 - jnp.diag(K))
    adj = (adjugate(K) - jnp.trace(K) * one + K + (1.0 - nu) * one) / nu
    push = s / nu * (one - K)
    sense = jnp.where(s < 0, -1.0, 1.0)
    a, f = 0.25 * jnp.abs(s) / (b.H + TINY), 0.5 * sense * (x + 0.5 * TINY * s * s) / (b.H + TINY)
    L = jnp.diag(b.inverse)
    c = jnp.stack([L[2] - L[1], L[0] - L[2], L[1] - L[0]])
    rest = jnp.abs(s) * TINY / (b.H + TINY)
    return Step(p, jnp.diag(push) * c, a * L, f * L, rest, b.C, (adj, push, b.inverse, a, f))


def _diagonal(b: Body, x, y, n: Array) -> tuple[Array, Array]:
    """(N_j N_k/nu - 1)_i, free of cancellation, and nu, the product of the two N other than the smallest (they are positive).

    With k the smallest: p_k = 0, p_i = (J_i - J_k)(y - J_j x)/(D N_i). Other divisors than nu are unstable.
    """
    J, size = jnp.diag(b.mass), jnp.abs(n)
    smallest = jnp.where(size[0] < size[1], jnp.where(size[0] < size[2], 0, 2), jnp.where(size[1] < size[2], 1, 2))
    options = []
    for k, i, j in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        ni, nj = jnp.maximum(n[i], 1e-100), jnp.maximum(n[j], 1e-100)
        pi, pj = (J[i] - J[k]) * (y - J[j] * x) / (b.D * ni), (J[j] - J[k]) * (y - J[i] * x) / (b.D * nj)
        entries = {i: pi, j: pj, k: jnp.zeros_like(pi)}
        options.append(jnp.stack([entries[0], entries[1], entries[2], ni * nj]))
    chosen = jnp.where(smallest == 0, options[0], jnp.where(smallest == 1, options[1], options[2]))
    return chosen[:3], jax.lax.stop_gradient(chosen[3])


@jax.custom_jvp
def turn(step: Step, m: Array) -> tuple[Array, Array]:
    """(m', Q): the momentum after a step and a multiple of the quaternion that the body turns by."""
    first, second, third = m[0], m[1], m[2]
    products = jnp.stack([second * third, third * first, first * second])
    P = m + (step.p * m + step.r * products)
    return _finish(step, m, P, step.a, step.f)


def _finish(step: Step, m, P, a, f) -> tuple[Array, Array]:
    new = P * jnp.sqrt((step.C + TINY) / (P @ P + TINY))
    w = m + new
    return new, jnp.concatenate([(step.rest + jnp.sum(a * w * w))[None], f * w])


def turn_tensorial(step: Step, m: Array) -> tuple[Array, Array]:
    """`turn` with tensors in place of their diagonals."""
    adj, push, inverse, a, f = step.tensors
    P = m + (adj @ m + push @ jnp.cross(m, inverse @ m))
    new = P * jnp.sqrt((step.C + TINY) / (P @ P + TINY))
    w = m + new
    Lw = inverse @ w
    return new, jnp.concatenate([(step.rest + a * (w @ Lw))[None], f * Lw])


@turn.defjvp
def _turn_jvp(primals, tangents):
    return turn(*primals), jax.jvp(turn_tensorial, primals, tangents)[1]


# -- frames and quaternions ---------------------------------------------------------------------------------------------
def principal_axes(inertia: Array) -> Array:
    """A rotation R with R^T I R diagonal, by Jacobi's method: the identity, and the given order, for a diagonal tensor.

    It is a constant for derivatives: what is computed with it must not depend on the choice of axes.
    """

    def rotate(state, pair):
        A, R = state
        i, j = pair
        gap, off = A[j, j] - A[i, i], A[i, j]
        needed = off != 0.0
        theta = 0.5 * gap / jnp.where(needed, off, 1.0)
        t = jnp.where(theta < 0, -1.0, 1.0) / (jnp.abs(theta) + jnp.sqrt(theta * theta + 1.0))
        t = jnp.where(needed, t, 0.0)
        cosine = 1.0 / jnp.sqrt(t * t + 1.0)
        sine = t * cosine
        ei, ej = jnp.arange(3) == i, jnp.arange(3) == j
        plane = jnp.outer(ei, ei) + jnp.outer(ej, ej)
        G = jnp.where(plane, cosine, jnp.eye(3)) + sine * (1.0 * jnp.outer(ei, ej) - 1.0 * jnp.outer(ej, ei))
        return (G.T @ A @ G, R @ G), None

    pairs = jnp.array([[0, 1], [0, 2], [1, 2]] * 7)
    A = jax.lax.stop_gradient(inertia)
    return jax.lax.scan(rotate, (A, jnp.eye(3)), pairs)[0][1]


def compose(p: Array, q: Array) -> Array:
    """The product p q of two quaternions, scalar first."""
    a, b, c, d = p
    w, x, y, z = q
    return jnp.stack([a * w - b * x - c * y - d * z, a * x + b * w + c * z - d * y, a * y - b * z + c * w + d * x, a * z + b * y - c * x + d * w])


def unit(q: Array) -> Array:
    return q * (1.0 / jnp.sqrt(q @ q))


def rotation(q: Array) -> Array:
    """The rotation matrix of a unit quaternion."""
    a, b, c, d = q
    return jnp.array(
        [
            [1 - 2 * (c * c + d * d), 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), 1 - 2 * (b * b + d * d), 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), 1 - 2 * (b * b + c * c)],
        ]
    )


def about(m: Array, angle: Array) -> Array:
    """The quaternion of the rotation by |m| angle about m, smooth at m = 0."""
    half = 0.5 * angle
    square = (m @ m) * half * half
    return jnp.concatenate([jnp.cos(_root(square))[None], half * sinc(square) * m])


def _root(square: Array) -> Array:
    """The square root, with derivative 0 at 0: under an even function that is right."""
    positive = square > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
