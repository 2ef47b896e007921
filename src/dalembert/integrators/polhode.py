"""The motion of the free rigid body at any time, in closed form: Jacobi's theta functions, Carlson's integrals.

In principal axes (a, b, c), b the intermediate one and c the one that the momentum encircles, with signs such that m_a
and m_c are not negative, m/|m| = (A cn, B sn, D dn) of u = u0 + l t. The axis c turns about the momentum by psi with

    psi' = |m| (m_a^2/I_a + m_b^2/I_b)/(m_a^2 + m_b^2).

Both are quotients of theta functions (Jacobi 1849; Whittaker, Analytical Dynamics, section 69). What depends on the
level alone, `Polhode`, is computed once and without cancellation; `at_time` then costs a sine, a cosine, an exponential
and five cubics. Symmetric bodies, principal axes and the separatrix are limits and no cases. See
docs/exact-rigid-body.md.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..numerics.types import Array, Float, Scalar

E3 = np.array([0.0, 0.0, 1.0])
TINY = 1e-280  # of 1 - k^2 and k^2: their periods are then 324 and more

Vector3 = Float[Array, "3"]
Matrix3 = Float[Array, "3 3"]


class Polhode(NamedTuple):
    """A level: what (momentum, attitude) at a time are computed from."""

    axes: Array  # columns: a, b, c in the axes of the body
    begin: Array  # the frame of the start, turned back by its angle
    size: Array  # |m|
    u0: Array
    speed: Array  # of u
    period: Array  # 2 K: after it m_a and m_b have changed their signs
    rate: Array  # of the angle
    slope: Array  # of the angle in the remainder of u
    wave: Array  # pi/2K, or pi/2K' where k^2 > 1/2
    nome: Array
    bulge: Array  # A
    cubics: Array  # (5, 4): of the three components of m and of the real and the imaginary part of e^(i psi)
    flags: Array  # (3,): whether k^2 > 1/2, so that functions are hyperbolic; -n = (A/D)^2; I_c is the largest moment


def carlson_first(x: Array, y: Array, z: Array) -> Array:
    """R_F(x, y, z) = 1/2 int_0^oo dt/((t + x)(t + y)(t + z))^1/2 of arrays, by duplication (DLMF 19.36.1)."""

    def spread(state: tuple[Array, Array, Array]) -> Array:
        x, y, z = state
        mean = (x + y + z) / 3.0
        return jnp.max(jnp.maximum(jnp.maximum(jnp.abs(mean - x), jnp.abs(mean - y)), jnp.abs(mean - z)) / mean)

    def duplicate(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, y, z = state
        u, v, w = jnp.sqrt(x), jnp.sqrt(y), jnp.sqrt(z)
        shift = u * (v + w) + v * w
        return 0.25 * (x + shift), 0.25 * (y + shift), 0.25 * (z + shift)

    x, y, z = jax.lax.while_loop(lambda state: spread(state) > 0.008, duplicate, (x, y, z))
    mean = (x + y + z) / 3.0
    X, Y = 1.0 - x / mean, 1.0 - y / mean
    Z = -X - Y
    e2, e3 = X * Y - Z * Z, X * Y * Z
    series = e2 * (-1 / 10 + e2 / 24 - 3 * e3 / 44 - 5 * e2 * e2 / 208 + e2 * e3 / 16) + e3 * (1 / 14 + 3 * e3 / 104)
    return (1.0 + series) / jnp.sqrt(mean)


def carlson_third(y: Scalar, p: Scalar) -> Array:
    """R_J(0, y, 1, p) = 3/2 int_0^oo dt/((t + p)(t (t + y)(t + 1))^1/2) for y <= 1 <= p (DLMF 19.36.2)."""
    delta = p * (p - y) * (p - 1.0)

    def spread(state: tuple[Array, ...]) -> Array:
        x, y, z, p = state[:4]
        mean = (x + y + z + 2.0 * p) / 5.0
        return jnp.maximum(jnp.abs(mean - x), jnp.maximum(jnp.abs(mean - y), jnp.abs(mean - p))) / mean

    def duplicate(state: tuple[Array, ...]) -> tuple[Array, ...]:
        x, y, z, p, power, total = state
        u, v, w, s = jnp.sqrt(x), jnp.sqrt(y), jnp.sqrt(z), jnp.sqrt(p)
        shift = u * (v + w) + v * w
        d = (s + u) * (s + v) * (s + w)
        e = jnp.sqrt(power**3 * delta) / d
        small = e < 1e-8
        share = jnp.where(small, 1.0, jnp.arctan(e) / jnp.where(small, 1.0, e))  # R_C(1, 1 + e^2)
        return *(0.25 * (each + shift) for each in (x, y, z, p)), 0.25 * power, total + 6.0 * power / d * share

    one = jnp.ones(())
    start: tuple[Array, ...] = (0.0 * one, y * one, one, p * one, one, 0.0 * one)
    x, y, z, p, power, total = jax.lax.while_loop(lambda state: spread(state) > 0.008, duplicate, start)
    mean = (x + y + z + 2.0 * p) / 5.0
    X, Y, Z = 1.0 - x / mean, 1.0 - y / mean, 1.0 - z / mean
    P = -0.5 * (X + Y + Z)
    e2, e3 = X * Y + X * Z + Y * Z - 3 * P * P, X * Y * Z + 2 * P * (X * Y + X * Z + Y * Z - 3 * P * P) + 4 * P**3
    e4, e5 = (2 * X * Y * Z + (X * Y + X * Z + Y * Z - 3 * P * P) * P + 3 * P**3) * P, X * Y * Z * P * P
    series = 1 - 3 * e2 / 14 + e3 / 6 + 9 * e2 * e2 / 88 - 3 * e4 / 22 - 9 * e2 * e3 / 52 + 3 * e5 / 26
    series += -(e2**3) / 16 + 3 * e3 * e3 / 40 + 3 * e2 * e4 / 20 + 45 * e2 * e2 * e3 / 272
    series -= 9 * (e3 * e4 + e2 * e5) / 68
    return total + power * series / (mean * jnp.sqrt(mean))


@jax.jit  # traced once for all its uses
def on_level(moments: Vector3, m: Vector3, g: Matrix3, principal: Matrix3) -> Polhode:
    """The polhode of the momentum m at the attitude g, both in the principal axes that are the columns of `principal`.

    k^2 and 1 - k^2, the two parameters -n of the third kind, the speed and the rate are sums and products of positive
    numbers: of components of m, of moments and of differences of moments.
    """
    one, zero = jnp.ones(()), jnp.zeros(())
    largest = jnp.max(jnp.abs(m))
    size = largest * jnp.sqrt(jnp.sum((m / jnp.where(largest > 0, largest, 1.0)) ** 2))
    e = jnp.where(size > 0, m / jnp.where(size > 0, size, 1.0), E3)
    order = jnp.argsort(moments)
    low, b, high = (moments[order[k]] for k in range(3))
    below, above = (b - low) / low, (high - b) / high
    excess = below * e[order[0]] ** 2 - above * e[order[2]] ** 2  # I_b H - C for |m| = 1
    outer = (excess < 0) | ((excess == 0) & (below <= above))
    order = jnp.where(outer, order, order[::-1])
    a, c = jnp.where(outer, low, high), jnp.where(outer, high, low)
    sa, sc = (jnp.where(e[order[k]] < 0, -1.0, 1.0) for k in (0, 2))
    cyclic = jnp.where((order[1] - order[0]) % 3 == 1, 1.0, -1.0)
    axes = jnp.where(jnp.arange(3)[:, None] == order, 1.0, 0.0) * jnp.stack([sa, sa * sc * cyclic, sc])
    ea, eb, ec = e @ axes
    ab, bc, ac = (jnp.abs(i - j) / i / j for i, j in ((a, b), (b, c), (a, c)))
    steady = size * (ea * ea / a + eb * eb / b + ec * ec / c)
    still = (ab * ea * eb == 0) & (bc * eb * ec == 0) & (ac * ea * ec == 0)  # then any axes about m will do
    axes, ea, eb, ec = jnp.where(still, frame_about(e), axes), *jnp.where(still, E3, jnp.stack([ea, eb, ec]))
    ab, bc, ac = jnp.where(still, jnp.array([1.0, 1.0, 2.0]), jnp.stack([ab, bc, ac]))
    share = bc / ac
    A2, D2 = ea * ea + share * eb * eb, ec * ec + ab / ac * eb * eb
    A, D = jnp.sqrt(A2), jnp.sqrt(D2)
    first, second = ab / bc, A2 / D2  # -n of the third kind, and -k^2/n
    k2 = jnp.clip(first * second, TINY, 1.0)
    mc = jnp.clip(jnp.abs(bc * ec * ec - ab * ea * ea) / (bc * D2), TINY, 1.0)
    near, other = k2 > 0.5, first > second
    parameter = jnp.where(near == other, second, first)  # the smaller where k^2 > 1/2, else the larger
    bulge = jnp.where(A > 0, A, 1.0)
    cn2, dn2 = jnp.where(A > 0, ea / bulge, 1.0) ** 2, (ec / D) ** 2
    K, dual, sought, shift = carlson_first(
        jnp.stack([zero, zero, jnp.maximum(cn2, TINY), k2]),
        jnp.stack([mc, k2, jnp.maximum(dn2, TINY), k2 * (1.0 + parameter)]),
        jnp.stack([one, one, one, k2 + parameter]),
    )
    u0, shift = jnp.sqrt(share) * eb / bulge * sought, jnp.sqrt(parameter) * shift
    speed = jnp.where(outer, size, -size) * jnp.sqrt(ac) * jnp.sqrt(bc) * D
    mean = carlson_third(mc, 1.0 + jnp.where(outer, second, first)) / (3.0 * K)
    rate = size * jnp.where(outer, 1.0 / c + ac * second * mean, 1.0 / a + ab * (1.0 + first) * mean)
    q = jnp.maximum(jnp.exp(-jnp.pi * jnp.where(near, K / dual, dual / K)), TINY)
    wave = 0.5 * jnp.pi / jnp.where(near, dual, K)
    x = jnp.where(near, wave * shift, 0.0)
    slope = jnp.where(other, x, -x) + jnp.where(other == outer, 0.0, jnp.where(other, -0.5, 0.5) * jnp.pi)
    scales = jnp.stack([one, jnp.sqrt(1.0 / share), D, one, one])
    cubics = scales[:, None] * theta_cubics(q, near, x, jnp.exp(-jnp.pi * shift / K))
    flags = jnp.where(jnp.stack([near, other, outer]), 1.0, 0.0)
    level = Polhode(
        axes, axes, size, u0, jnp.where(still, 0.0, speed), 2.0 * K, jnp.where(still, steady, rate), slope / K, wave,
        q, A, cubics, flags,
    )  # fmt: skip
    return level._replace(begin=g @ (axes @ turned_frame(level, zero).T), axes=principal @ axes)


def frame_about(e: Vector3) -> Matrix3:
    """A rotation with the last column e (Duff et al. 2017)."""
    x, y, z = e
    sign = jnp.where(z < 0, -1.0, 1.0)
    a = -1.0 / (sign + z)
    b = x * y * a
    return jnp.stack([jnp.stack([1.0 + sign * x * x * a, b, x]), jnp.stack([sign * b, sign + y * y * a, y]),
                      jnp.stack([-sign * x, -y, z])])  # fmt: skip


def theta_cubics(q: Array, near: Array, x: Array, E: Array) -> Array:
    """Coefficients (5, 4) in c = 2 cos 2z, or 2q cosh 2w where `near`, of theta functions of the nome q.

    In this order: those of cn/cos z, sn/sin z and dn but for a factor; theta_4(z + iy) with E = q e^2y, real part and
    imaginary part/sin 2z. Where `near` those of cn, sn/sinh w and dn; theta_2(x - iw), real part/cosh w and imaginary
    part/sinh w.
    """
    one, d2 = jnp.ones(()), jnp.where(near, q * q, 1.0)

    def power(n: int, spared: int) -> Array:
        return jnp.where(near, q ** (n - spared), q**n)

    def cubic(weights: list[Array]) -> Array:
        """sum w_n 2 cos 2nz q^spared, which is c, c^2 - 2 d^2, c^3 - 3 d^2 c."""
        a, b, c, e = weights
        return jnp.stack([a - 2.0 * d2 * c, b - 3.0 * d2 * e, c, e])

    def kernel(weights: list[Array], sign: int) -> Array:
        """sum w_n q^(n(n+1)) (2 cos 2nz + sign 2 cos 2(n-1)z + ... + sign^n)."""
        terms = [[sign ** (n - l) * weights[n] * power(n * (n + 1), l) for n in range(l, 4)] for l in range(4)]
        return cubic([sum(rest, first) for first, *rest in terms])

    even = [one, power(1, 1), power(4, 2), power(9, 3)]
    null2, null3 = 1.0 + q**2 + q**6, 1.0 + 2.0 * (q + q**4 + q**9)
    null4 = 1.0 - 2.0 * (q - q**4 + q**9)
    a = jnp.where(
        near, null2 / null4 * cubic([one, -even[1], even[2], -even[3]]), null4 / null2 * kernel([one] * 4, -1)
    )
    b = jnp.where(near, null3 / null4, null3 / null2) * kernel([one, -one, one, -one], 1)
    c = jnp.where(near, null2, null4) / null3 * cubic(even)
    F = jnp.where(near, 0.0, q * (q / E))
    p, r, s = E + F, (E * E + F * F) * q**2, (E**3 + F**3) * q**6
    u, v, w = E - F, (E * E - F * F) * q**2, (E**3 - F**3) * q**6
    far = cubic([one, -0.5 * p, 0.5 * r, -0.5 * s]), cubic([u + w, -v, w, 0.0 * w])
    real = kernel([jnp.cos((2 * n + 1) * x) for n in range(4)], -1)
    imaginary = kernel([jnp.sin((2 * n + 1) * x) for n in range(4)], 1)
    return jnp.stack([a, b, c, jnp.where(near, real, far[0]), jnp.where(near, imaginary, far[1])])


def _waves(level: Polhode, u: Scalar) -> tuple[Array, ...]:
    """(half periods in u, the remainder, sine, cosine, sinh and cosh of its z = wave * remainder, e^|z|)."""
    turns = jnp.round(u / level.period)
    rest = u - level.period * turns
    z = level.wave * rest
    growth = jnp.expm1(jnp.where(level.flags[0] > 0, jnp.abs(z), 0.0))
    up = 1.0 + growth
    sinh, cosh = jnp.where(z < 0, -0.5, 0.5) * (growth + growth / up), 0.5 * (up + 1.0 / up)
    return turns, rest, jnp.sin(z), jnp.cos(z), sinh, cosh, up


@jax.jit  # traced once for all its uses
def zeta(level: Polhode, u: Scalar) -> tuple[Array, Array]:
    """Jacobi's function Z(u) = E(u) - u E/K and its slope 1 - E/K at 0, by theta functions (DLMF 22.16.30).

    theta_4 = sum a_n cos 2nz or, where functions are hyperbolic, theta_2 = sum a_n cosh (2n + 1)z.
    """
    near, q = level.flags[0] > 0, level.nome
    _, rest, sine, cosine, sinh, cosh, _ = _waves(level, u)
    c, s, sign = jnp.where(near, cosh, cosine), jnp.where(near, sinh, sine), jnp.where(near, 1.0, -1.0)
    one, zero = jnp.ones(()), jnp.zeros(())
    c2, s2, even = c * c + sign * s * s, 2.0 * s * c, [(one, zero)]
    for _ in range(3):  # cosines and sines of 0, 2z, 4z and 6z
        even.append((even[-1][0] * c2 + sign * even[-1][1] * s2, even[-1][1] * c2 + even[-1][0] * s2))
    n, flat = np.arange(4.0), [one, -2.0 * q, 2.0 * q**4, -2.0 * q**9]
    a = jnp.where(near, jnp.stack([one, q**2, q**6, q**12]), jnp.stack(flat))
    by = jnp.where(near, 2.0 * n + 1.0, -2.0 * n)
    cosines, sines = (jnp.stack(each) for each in zip(*even, strict=True))
    c, s, b = jnp.where(near, c, 1.0), jnp.where(near, s, 0.0), a * by
    value, slope = c * (a @ cosines) + s * (a @ sines), c * (b @ sines) + s * (b @ cosines)
    by_rest = jnp.where(near, 2.0 * level.wave / level.period, 0.0)
    curve = sign * level.wave**2 * (b @ by) / jnp.sum(a)
    return level.wave * (slope / value) - by_rest * rest, curve - by_rest


@jax.jit  # traced once for all its uses
def turned_frame(level: Polhode, t: Scalar) -> Matrix3:
    """The rows (the axis c across the momentum, its normal, m/|m|) at the time t, the first two turned by psi."""
    near, other, outer = level.flags > 0
    turns, rest, sine, cosine, sinh, cosh, up = _waves(level, level.u0 + level.speed * t)
    flip = 1.0 - 2.0 * jnp.abs(turns - 2.0 * jnp.round(0.5 * turns))
    x = jnp.where(near, level.nome * (up * up + 1.0 / (up * up)), 2.0 * (cosine - sine) * (cosine + sine))
    k = level.cubics
    values = k[:, 0] + x * (k[:, 1] + x * (k[:, 2] + x * k[:, 3]))
    a, b = jnp.where(near, 1.0, cosine) * values[0], jnp.where(near, sinh, sine) * values[1]
    across = jnp.sqrt(a * a + b * b)
    cphi, sphi = a / across, b / across
    height, width = values[2], level.bulge * across
    norm = jnp.sqrt(height * height + width * width)
    ctheta, stheta = height / norm, width / norm
    real, imaginary = jnp.where(near, cosh, 1.0) * values[3], jnp.where(near, sinh, 2.0 * sine * cosine) * values[4]
    arc_real, arc_imaginary = jnp.where(other, cphi * ctheta, 1.0), jnp.where(other, sphi, 0.0)
    imaginary = jnp.where(other, -imaginary, imaginary)
    p, r = real * arc_real - imaginary * arc_imaginary, real * arc_imaginary + imaginary * arc_real
    angle = level.rate * t + level.slope * rest
    c, s = jnp.cos(angle), jnp.sin(angle)
    scale = jnp.where(outer, flip, 1.0) / jnp.sqrt(p * p + r * r)
    f, h = flip * cphi, flip * sphi
    cpsi, spsi = scale * (c * p - s * r), scale * (s * p + c * r)
    tilted, normal = jnp.stack([-ctheta * f, -ctheta * h, stheta]), jnp.stack([h, -f, 0.0 * h])
    rows = cpsi * tilted - spsi * normal, spsi * tilted + cpsi * normal, jnp.stack([stheta * f, stheta * h, ctheta])
    return jnp.stack(rows)


def at_time(level: Polhode, t: Scalar) -> tuple[Vector3, Matrix3]:
    """(momentum, attitude) at the time t after the start."""
    rows = turned_frame(level, t)
    return level.size * (level.axes @ rows[2]), level.begin @ rows @ level.axes.T
