"""The exact flow of the free rigid body over a step, as the constants of the map of `_free_body`.

The scale s, x, y and the phase B follow polynomial equations in time, which Taylor series solve to round-off.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._free_body import Body, Scale, Step, at_smallest, constants, differences

CYCLE = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
TERMS = 16
REACH = 0.18  # of a Taylor substep, in units of I_min/|m|: the series then converges to round-off at order TERMS
NODES, WEIGHTS = (np.polynomial.legendre.leggauss(7)[0] + 1) / 2, np.polynomial.legendre.leggauss(7)[1] / 2
POWERS = NODES[:, None] ** np.arange(TERMS + 1)


def taylor(point: Array, coefficients: Array, dt: Array, terms: int = TERMS) -> Array:
    """Coefficients (terms + 1, 4) of the series in t/dt of the solution through `point` of

    u' = 1 - a v - b w + c v w,  v' = u (d - e w),  w' = u (f - g v),  z' = -c w.
    """
    a, b, c, d, e, f, g = coefficients

    def term(carry, n):
        series, mirror = carry  # mirror holds the coefficients in reverse: the product's coefficient is a dot product
        u, v, w, _ = mirror[0]
        vw, uw, uv = series[:, 1] @ mirror[:, 2], series[:, 0] @ mirror[:, 2], series[:, 0] @ mirror[:, 1]
        first = jnp.where(n == 0, 1.0, 0.0)
        new = dt / (n + 1.0) * jnp.stack([first - a * v - b * w + c * vw, d * u - e * uw, f * u - g * uv, -c * w])
        place = jnp.where(jnp.arange(terms + 1) == n + 1, 1.0, 0.0)
        return (series + place[:, None] * new, jnp.concatenate([new[None], mirror[:-1]])), None

    zero = jnp.zeros((terms, 4))
    start = jnp.concatenate([point[None], zero])
    return jax.lax.scan(term, (start, start), jnp.arange(terms))[0][0]


class Marched(NamedTuple):
    """The solution at half the time and at the time."""

    half: Array
    whole: Array


def _march(gain, size: int, h: Array, rate: Array) -> Marched:
    """The sum of gain(point, dt) over substeps of at most REACH/rate, from 0; compensated, so its error is that of one substep."""
    count = jnp.maximum(1.0, jnp.ceil(0.5 * jnp.abs(h) * rate / REACH))
    dt = 0.5 * h / count

    def substep(state):
        k, half, point, lost = state
        change = gain(point, dt) - lost
        new = point + change
        return k + 1.0, jnp.where(k + 1.0 == count, new, half), new, (new - point) - change

    zero = jnp.zeros(size)
    return Marched(
        *jax.lax.while_loop(lambda state: state[0] < 2 * count, substep, (jnp.zeros(()), zero, zero, zero))[1:3]
    )


def scale_equations(b: Body) -> Array:
    """s' = 1 - (E1 y + E2 x - x y)/D,  x' = s (H - C y/D),  y' = s (H E1 - C - H2 x/D),  B' = -y/D, as `taylor` has them."""
    return jnp.stack([b.E2 / b.D, b.E1 / b.D, 1.0 / b.D, b.H, b.C / b.D, b.K, b.H2 / b.D])


def scale_flow(coefficients: Array, h: Array, rate: Array) -> Array:
    """(s, x, y, B) at the time h by these equations; over many turns `orbit` is the more accurate way."""
    return _march(lambda point, dt: jnp.sum(taylor(point, coefficients, dt)[:0:-1], axis=0), 4, h, rate).whole


def rate(b: Body) -> Array:
    """A bound of |m|/I_min: the fastest rotation on the level."""
    return jax.lax.stop_gradient(jnp.sqrt(b.C * jnp.max(jnp.sum(jnp.abs(b.inverse), axis=1)) ** 2))


class Orbit(NamedTuple):
    """What the polhode gives, without cancellation: (s, x, y, B), and 1 - n_i and v = s/N_b for the ratios n_i = N_i/N_b."""

    scale: Array
    gone: Array
    v: Array


def orbit(b: Body, h: Array) -> Orbit:
    """The set-up of the exact map from Euler's equations, started where the polhode crosses the plane m_b = 0 (b the intermediate axis).

    There m = (M_a a, c_b M_a M_c v, M_c c) with v' = a c, a' = c_a c_b M_c^2 v c, c' = c_c c_b M_a^2 v a (a = cn, c = dn).
    A step from -h/2 to h/2 mirrors m in that plane, and its equations are solved at sight with the values at h/2:
    W = a^2 c^2 + v^2 sum m_i^2/I_i^2,  s = 2 v a c/W,  x = 2 v^2 sum (m_i^2/I_i)/W,  y = 2 v^2 sum (J_i m_i^2/I_i)/W, i = a, c;
    B = -int y/D. By the addition theorem N_a : N_b : N_c = c : 1 : a and s/N_b = v with the values at h.
    """
    L, J, m = jnp.diag(b.inverse), jnp.diag(b.mass), b.m
    difference = differences(L)
    middle = jnp.where((L[0] - L[1]) * (L[0] - L[2]) <= 0, 0, jnp.where((L[1] - L[0]) * (L[1] - L[2]) <= 0, 1, 2))
    pick = lambda options: jnp.where(middle == 0, options[0], jnp.where(middle == 1, options[1], options[2]))
    roll = lambda values: pick([jnp.stack([values[i], values[j], values[k]]) for i, j, k in CYCLE])  # b first
    (Lb, La, Lc), (_, Ja, Jc), (cb, ca, cc), (mb, ma, mc) = roll(L), roll(J), roll(difference), roll(m)
    width = La - Lc
    share = jnp.where(width == 0.0, 1.0, (Lb - Lc) / jnp.where(width == 0.0, 1.0, width))
    A, C = ma * ma + share * mb * mb, mc * mc + (1.0 - share) * mb * mb  # M_a^2, M_c^2
    first, second = -ca * cb * C, -cc * cb * A
    one = jnp.ones(())
    equations = jnp.stack([one, one, one, first, first, second, second])

    def scale(v, d, e):
        a, c = 1.0 - d, 1.0 - e
        fa, fc = A * a * a * La, C * c * c * Lc
        W = (a * c) ** 2 + v * v * (fa * La + fc * Lc)
        return 2 * v * a * c / W, 2 * v * v * (fa + fc) / W, 2 * v * v * (Ja * fa + Jc * fc) / W

    def gain(point, dt):
        series = taylor(jnp.append(point[:3], 0.0), equations, dt)[:, :3]
        inner = POWERS @ series
        phase = WEIGHTS @ jax.vmap(scale)(*inner.T)[2]
        return jnp.append(jnp.sum(series[:0:-1], axis=0), -2.0 * dt * phase / b.D)

    half, (v, d, e, _) = _march(gain, 4, h, rate(b))
    zero = jnp.zeros(())
    ratios = pick([jnp.stack([zero, e, d]), jnp.stack([d, zero, e]), jnp.stack([e, d, zero])])
    return Orbit(jnp.stack([*scale(half[0], half[1], half[2]), half[3]]), ratios, v)


@jax.custom_jvp
def _attached(values: Array, coefficients: Array, h: Array, rate: Array) -> Array:
    """`values` of `scale_flow`, with its derivatives: a Jacobian by forward mode, so that reverse mode need not pass through the loop."""
    return values


@_attached.defjvp
def _attached_jvp(primals, tangents):
    values, coefficients, h, rate = primals
    by_level, by_time = jax.jacfwd(scale_flow, argnums=(0, 1))(coefficients, h, rate)
    return values, by_level @ tangents[1] + by_time * tangents[2]


def exact_step(b: Body, h: Array) -> tuple[Step, Scale]:
    """The constants of the map that is the flow over the time h, once turned back by |m| B about the momentum."""
    found = orbit(*jax.lax.stop_gradient((b, h)))
    s, x, y, B = _attached(found.scale, scale_equations(b), h, rate(b))
    s = jnp.where(jnp.abs(s) < 1e-100, 1e-100, s)  # h is half a period, or a period, to the last bit
    scale = Scale(s, x + 0.5 * b.H * 1e-200, y, B, jnp.asarray(True))
    n = 1.0 - found.gone
    options = []
    for k, i, j in CYCLE:
        ni, nj = jnp.maximum(n[i], 1e-100), jnp.maximum(n[j], 1e-100)
        entries = {i: (found.gone[i] - found.gone[k]) / ni, j: (found.gone[j] - found.gone[k]) / nj, k: jnp.zeros(())}
        options.append(jnp.stack([entries[0], entries[1], entries[2], *(found.v / (ni * nj) * n)]))
    chosen = at_smallest(n, options)
    return constants(b, scale)._replace(p=chosen[:3], r=chosen[3:] * differences(jnp.diag(b.inverse))), scale
