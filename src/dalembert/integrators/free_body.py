"""One step of the free rigid body as a map with constants: every order of discrete Moser-Veselov, and the exact flow (`_free_flow`).

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

TINY = 1e-120  # its square must not underflow in derivatives


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
    m: Array


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
    return Body(
        inverse,
        mass,
        adj,
        E1,
        jnp.trace(adj),
        mass[0] @ adj[0],
        D,
        m @ m,
        m @ inverse @ m,
        Jm @ Jm,
        m @ inverse @ Jm,
        m,
    )


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
        return (
            ((b.H2 * e + 2 * b.C * E3) * e + (b.C * minors - b.H2 * squares)) * e - 2 * b.H2 * E3
        ) * e - b.C * E3 * E3

    def halve(_, bounds):
        low, high = bounds
        middle = jnp.sqrt(low * high)
        above = sign(middle) > 0
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    low, high = jax.lax.fori_loop(0, 64, halve, jax.lax.stop_gradient((1e-40 * b.E1, b.E1)))
    e1 = jnp.sqrt(low * high)
    return jax.lax.stop_gradient(jnp.sqrt((squares - e1 * e1 + 2 * E3 / e1 + TINY) / (b.C + TINY)))


# -- the map ------------------------------------------------------------------------------------------------------------
def differences(L: Array) -> Array:
    """c with (m x I^-1 m)_i = c_i m_j m_k."""
    return jnp.stack([L[2] - L[1], L[0] - L[2], L[1] - L[0]])


def at_smallest(n: Array, options: list[Array]) -> Array:
    """The option of the smallest n_i: the ratios are 1, dn and cn <= dn, and only cn changes its sign."""
    first = (n[0] < n[1]) & (n[0] < n[2])
    return jnp.where(first, options[0], jnp.where(n[1] < n[2], options[1], options[2]))


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
    rest = jnp.abs(s) * TINY / (b.H + TINY)
    return Step(p, jnp.diag(push) * differences(L), a * L, f * L, rest, b.C, (adj, push, b.inverse, a, f))


def _diagonal(b: Body, x, y, n: Array) -> tuple[Array, Array]:
    """(N_j N_k/nu - 1)_i, free of cancellation, and nu, the product of the two N other than the smallest (they are positive).

    With k the smallest: p_k = 0, p_i = (J_i - J_k)(y - J_j x)/(D N_i). Other divisors than nu are unstable.
    """
    J = jnp.diag(b.mass)
    options = []
    for k, i, j in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        ni, nj = jnp.maximum(n[i], 1e-100), jnp.maximum(n[j], 1e-100)
        pi, pj = (J[i] - J[k]) * (y - J[j] * x) / (b.D * ni), (J[j] - J[k]) * (y - J[i] * x) / (b.D * nj)
        entries = {i: pi, j: pj, k: jnp.zeros_like(pi)}
        options.append(jnp.stack([entries[0], entries[1], entries[2], ni * nj]))
    chosen = at_smallest(n, options)
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
