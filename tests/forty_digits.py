"""The free rigid body in 50-digit arithmetic and the condition of the problem: what the exact methods are held against.

Nothing of the package is used. The motion is Jacobi's with mpmath's elliptic functions, `by_series` is the same by
Taylor series of the equations of motion.
"""

from typing import NamedTuple

import mpmath as mp
import numpy as np

DIGITS = 50
ULP = 2.0**-52


class Body(NamedTuple):
    """A body, a momentum, a step and the number of steps."""

    inertia: np.ndarray
    momentum: np.ndarray
    step: float
    steps: int
    kind: str


def motion(inertia, momentum, time):
    """(m, g) after `time` from the identity: m' = m x I^-1 m, g' = g hat(I^-1 m), as mpmath numbers."""
    I, m = [mp.mpf(v) for v in inertia], [mp.mpf(v) for v in momentum]
    size = mp.sqrt(mp.fsum(v * v for v in m))
    L = [1 / v for v in I]
    torque = [m[i - 2] * m[i - 1] * (L[i - 1] - L[i - 2]) for i in range(3)]
    if not any(torque):
        return mp.matrix(m), _turn([v * l for v, l in zip(m, L, strict=True)], time)
    a, b, c = sorted(range(3), key=lambda i: L[i])
    if (L[c] - L[b]) * m[c] ** 2 < (L[b] - L[a]) * m[a] ** 2:
        a, c = c, a
    # c is the axis that the polhode encircles: m = (A cn, B sn, D dn)
    share = (L[b] - L[c]) / (L[a] - L[c])
    A2, D2 = m[a] ** 2 + m[b] ** 2 * share, m[c] ** 2 + m[b] ** 2 * (1 - share)
    B2 = A2 / share
    speed = mp.sqrt((L[a] - L[c]) * (L[b] - L[c]) * D2)
    k2 = (L[a] - L[b]) * A2 / ((L[b] - L[c]) * D2)
    sense = mp.sign(torque[b]) if torque[b] else 1
    signs = [mp.sign(m[a]) or 1, mp.sign(m[c]) or 1]
    if not torque[b]:  # at a turning point of m_b the sense is that of (a, b, c)
        sense = signs[0] * signs[1] * (1 if (b - a) % 3 == 1 else -1) * mp.sign(L[a] - L[c])
    sense *= signs[0]  # of sn, for a positive cn
    K = mp.ellipk(k2)
    n = 1 - B2 / A2
    start = mp.atan2(m[b] / mp.sqrt(B2), abs(m[a]) / mp.sqrt(A2))
    u0 = mp.ellipf(start, k2)
    # with a positive cn, m_a = signs[0] A cn for all times, and m_b = B sn(u0 + rate t)
    rate = signs[0] * sense * speed
    u = u0 + rate * time
    turns = mp.nint(u / (2 * K))
    rest = u - 2 * K * turns
    sn = mp.ellipfun("sn", rest, m=k2)
    cn, dn = mp.sqrt(1 - sn**2), mp.sqrt(1 - k2 * sn**2)  # |rest| <= K
    flip = -1 if int(turns) % 2 else 1
    new = [mp.mpf(0)] * 3
    new[a], new[b], new[c] = signs[0] * flip * mp.sqrt(A2) * cn, flip * mp.sqrt(B2) * sn, signs[1] * mp.sqrt(D2) * dn
    # the axis c turns about the momentum by psi
    incomplete = lambda phi: mp.ellippi(n, phi, k2)
    third = incomplete(mp.atan2(sn, cn)) + 2 * turns * mp.ellippi(n, mp.pi / 2, k2) - incomplete(start)
    # psi' = |m| (m_a^2/I_a + m_b^2/I_b)/(m_a^2 + m_b^2) = |m| (L_b + (L_a - L_b) cn^2/(cn^2 + (B2/A2) sn^2))
    # and cn^2/(1 - n sn^2) = 1/n + (1 - 1/n)/(1 - n sn^2)
    if n == 0:
        raise ValueError("two equal moments: perturb them")
    part = (u - u0) / n + (1 - 1 / n) * third
    psi = size * (L[b] * time + (L[a] - L[b]) * part / rate)
    frame = lambda v: _frame([x / size for x in v], c)
    return mp.matrix(new), frame(m) * _turn([0, 0, psi], 1) * frame(new).T


def _turn(omega, time):
    """exp(time hat(omega))."""
    omega = [mp.mpf(v) * time for v in omega]
    angle = mp.sqrt(mp.fsum(v * v for v in omega))
    hat = mp.matrix([[0, -omega[2], omega[1]], [omega[2], 0, -omega[0]], [-omega[1], omega[0], 0]])
    if not angle:
        return mp.eye(3)
    return mp.eye(3) + hat * (mp.sin(angle) / angle) + hat * hat * ((1 - mp.cos(angle)) / angle**2)


def _frame(e, c):
    """Columns: the axis c projected across e, its normal, e."""
    first = [(1 if i == c else 0) - e[c] * e[i] for i in range(3)]
    norm = mp.sqrt(mp.fsum(v * v for v in first))
    first = [v / norm for v in first]
    second = [e[i - 2] * first[i - 1] - e[i - 1] * first[i - 2] for i in range(3)]
    return mp.matrix([[first[i], second[i], e[i]] for i in range(3)])


def by_series(inertia, momentum, time, pieces, terms=36):
    """(m, g) by Taylor series of the equations of motion, `pieces` of them: g as g' = g hat(w) of its rows."""
    L, dt = [1 / mp.mpf(v) for v in inertia], mp.mpf(time) / pieces
    m, g = [mp.mpf(v) for v in momentum], mp.eye(3)
    for _ in range(pieces):
        M, R = [[v] for v in m], [[[mp.mpf(i == j)] for j in range(3)] for i in range(3)]
        W = [[v * l] for v, l in zip(m, L, strict=True)]
        for k in range(terms):
            dot = lambda x, y, k=k: mp.fsum(x[j] * y[k - j] for j in range(k + 1))
            slopes = [dot(M[i - 2], W[i - 1]) - dot(M[i - 1], W[i - 2]) for i in range(3)]
            turned = [[dot(row[j - 2], W[j - 1]) - dot(row[j - 1], W[j - 2]) for j in range(3)] for row in R]
            for i in range(3):
                M[i].append(slopes[i] * dt / (k + 1))
                W[i].append(M[i][-1] * L[i])
                for j in range(3):
                    R[i][j].append(turned[i][j] * dt / (k + 1))
        m = [mp.fsum(v) for v in M]
        g = g * mp.matrix([[mp.fsum(v) for v in row] for row in R])
    return mp.matrix(m), g


def distance(one, other, size):
    """|m - m'|/|m| and |g - g'|, the larger: norms of Frobenius."""
    frobenius = lambda x: mp.sqrt(mp.fsum(v * v for v in x))
    return float(max(frobenius(one[0] - other[0]) / size, frobenius(one[1] - other[1])))


def reference(body):
    """The motion of a body over its steps, and its condition: the largest change for one unit in the last place of a
    moment, of a component of the momentum or of the time, and no less than a unit in the last place of the result.
    """
    with mp.workdps(DIGITS):
        time = mp.mpf(body.step) * body.steps
        given = [mp.mpf(float(v)) for v in (*body.inertia, *body.momentum)] + [time]
        call = lambda values: motion(values[:3], values[3:6], values[6])
        true = call(given)
        size = mp.sqrt(mp.fsum(v * v for v in given[3:6]))
        worst = ULP
        for k in range(7):
            moved = list(given)
            moved[k] *= 1 + mp.mpf(ULP)
            worst = max(worst, distance(call(moved), true, size))
        return true, worst


def error(body, m, g, true):
    """The distance of a computed (m, g) from the true one."""
    with mp.workdps(DIGITS):
        size = mp.sqrt(mp.fsum(mp.mpf(float(v)) ** 2 for v in body.momentum))
        return distance((mp.matrix(np.asarray(m).tolist()), mp.matrix(np.asarray(g).tolist())), true, size)


KINDS = ("any", "no body", "separatrix", "axis", "symmetric", "spherical", "ratios")


def bodies(count, seed):
    """Random bodies, the hard ones among them: every kind in turn, short and long steps, one and 1000 of them."""
    rng = np.random.default_rng(seed)
    return [_body(rng, KINDS[k % len(KINDS)], (1, 1000)[k // len(KINDS) % 2]) for k in range(count)]


def _body(rng, kind, steps):
    inertia, m = np.exp(rng.normal(size=3)), rng.normal(size=3) * 10.0 ** rng.choice([0, 0, -2], size=3)
    if kind == "no body":
        inertia[2] = (inertia[0] + inertia[1]) * 10.0 ** rng.uniform(0, 3)
    if kind == "symmetric":
        inertia[1] = inertia[0] * (1 + 10.0 ** rng.uniform(-14, -2))
    if kind == "spherical":
        inertia = inertia[0] * (1 + 10.0 ** rng.uniform(-14, -2) * rng.normal(size=3))
    if kind == "ratios":
        inertia = 10.0 ** np.array([0.0, rng.uniform(-6, 6), rng.choice([-6.0, 6.0]) + rng.uniform(-1e-6, 1e-6)])
        m = rng.normal(size=3) * 10.0 ** rng.uniform(-6, 0, size=3)
    low, middle, high = np.argsort(inertia)
    if kind == "separatrix":
        below, above = 1 / inertia[low] - 1 / inertia[middle], 1 / inertia[middle] - 1 / inertia[high]
        m[high] = np.sign(m[high]) * abs(m[low]) * np.sqrt(below / above)
        m[high] *= 1 + rng.choice([-1, 1]) * 10.0 ** rng.choice([-12, rng.uniform(-12, -3)])
    if kind == "axis":
        near = rng.choice([middle, middle, low, high])
        m[np.arange(3) != near] *= 10.0 ** rng.uniform(-11, -3)
    order = rng.permutation(3)
    inertia, m = inertia[order], (m * 10.0 ** rng.uniform(-1, 1))[order]
    angle = 10.0 ** rng.choice([rng.uniform(-3, 0), rng.uniform(0, 1.5), rng.uniform(1.5, 4)]) * rng.choice([-1, 1])
    return Body(inertia, m, float(angle / np.linalg.norm(m / inertia) / steps), steps, kind)
