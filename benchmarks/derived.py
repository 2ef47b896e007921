"""Equations of motion as SymPy derives them from a Lagrangian in coordinates, for peers that want y' = field(y).

What its users do: write L and the constraints in coordinates, have M = L_vv and f = L_q - (L_v)_q v differentiated, and
solve [M, A^T; A, 0] (v', -l) = (f, -A' v), A being the rows of the constraints (those of positions differentiated
once); or, where the constraints give some velocities by the others, v = S(q) u (a rolling body), solve Kane's S^T M S
u' = S^T (f - M S' u). The functions come from `lambdify` with common subexpressions taken out; the elimination is done
in the arithmetic of whoever calls them, each entry once and zeros left out, so that a peer's expressions do not swell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy as sp

Field = Callable[[Any, Any, Any], list[Any]]


def derive(q: Sequence[Any], v: Sequence[Any], lagrangian: Any, rows: Sequence[Any], given: dict[Any, float]) -> Field:
    """y' of y = (q, v); `rows` are linear in v and vanish, `given` are the numbers of the parameters."""
    metric, forces = differentiate(q, v, lagrangian)
    matrix = [[sp.diff(row, speed) for speed in v] for row in rows]
    bends = [-rate(row, q, v) for row in rows]
    n, m = len(v), len(rows)
    system = [[*metric.row(i), *(matrix[j][i] for j in range(m))] for i in range(n)]
    system += [[*matrix[j], *[0] * m] for j in range(m)]
    return solved(q, v, v, system, [*forces, *bends], given)


def derive_reduced(
    q: Sequence[Any], v: Sequence[Any], lagrangian: Any, speeds: Sequence[Any], u: Sequence[Any], given: dict
) -> Field:
    """y' of y = (q, u), with the velocities v as `speeds` in terms of the independent ones u."""
    metric, forces = differentiate(q, v, lagrangian)
    known = dict(zip(v, speeds, strict=True))
    columns = sp.Matrix([[sp.diff(speed, x) for x in u] for speed in speeds])
    bends = sp.Matrix([rate(speed, q, speeds) for speed in speeds])
    push = columns.T * (sp.Matrix(forces).subs(known, simultaneous=True) - metric * bends)
    return solved(q, u, speeds, (columns.T * metric * columns).tolist(), list(push), given)


def differentiate(q: Sequence[Any], v: Sequence[Any], lagrangian: Any) -> tuple[Any, list[Any]]:
    """M and f of M v' = f + reactions."""
    slopes = [sp.diff(lagrangian, speed) for speed in v]
    metric = sp.Matrix([[sp.diff(slopes[max(i, j)], v[min(i, j)]) for j in range(len(v))] for i in range(len(v))])
    return metric, [sp.diff(lagrangian, x) - rate(slope, q, v) for x, slope in zip(q, slopes, strict=True)]


def solved(q: Sequence[Any], u: Sequence[Any], speeds: Any, matrix: Any, right: Any, given: dict[Any, float]) -> Field:
    """y' of y = (q, u): q' = speeds, and u' are the first unknowns of the equations."""
    n, size, entries = len(q), len(right), [*(entry for row in matrix for entry in row), *right, *speeds]
    zeros, names = [entry == 0 for entry in entries], [*q, *u, *given]
    made: dict[Any, Callable[..., list[Any]]] = {}

    def field(y: Any, cos: Any, sin: Any) -> list[Any]:
        if cos not in made:
            functions = {"cos": cos, "sin": sin, "sqrt": lambda x: x**0.5}
            made[cos] = sp.lambdify(names, entries, modules=[functions], cse=True)
        found = [0 if zero else x for x, zero in zip(made[cos](*y, *given.values()), zeros, strict=True)]
        rows = [found[i * size : (i + 1) * size] for i in range(size)]
        return [*found[-n:], *eliminate(rows, found[size * size : -n])[: len(u)]]

    return field


def is_zero(x: Any) -> bool:
    return isinstance(x, int | float) and x == 0


def eliminate(matrix: list[list[Any]], right: list[Any]) -> list[Any]:
    """x of a symmetric system by elimination without exchanges: M is positive, and so is A M^-1 A^T."""
    count = len(right)
    rows = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    for i in range(count):
        for k in range(i + 1, count):
            if is_zero(rows[k][i]):
                continue
            factor = rows[k][i] / rows[i][i]
            for j in range(i + 1, count + 1):
                if not is_zero(rows[i][j]):
                    rows[k][j] = rows[k][j] - factor * rows[i][j]
    x: list[Any] = [0] * count
    for i in reversed(range(count)):
        total = rows[i][count]
        for j in range(i + 1, count):
            if not is_zero(rows[i][j]):
                total = total - rows[i][j] * x[j]
        x[i] = total / rows[i][i]
    return x


# ---- rotations


def hat(a: Any) -> Any:
    return sp.Matrix([[0, -a[2], a[1]], [a[2], 0, -a[0]], [-a[1], a[0], 0]])


def turn(axis: Sequence[Any], angle: Any) -> Any:
    """A rotation about a unit vector."""
    return sp.eye(3) + sp.sin(angle) * hat(axis) + (1 - sp.cos(angle)) * hat(axis) * hat(axis)


def rate(expression: Any, q: Sequence[Any], v: Sequence[Any]) -> Any:
    """The derivative in time."""
    return sum((sp.diff(expression, x) * dx for x, dx in zip(q, v, strict=True)), 0 * expression)


def spin(rotation: Any, q: Sequence[Any], v: Sequence[Any]) -> Any:
    """The angular velocity in the body."""
    turning = rotation.T * rate(rotation, q, v)
    return sp.Matrix([turning[2, 1], turning[0, 2], turning[1, 0]]).applyfunc(sp.trigsimp)


def exact(value: Any) -> Any:
    """A number as a fraction, so that nothing is rounded while equations are derived."""
    return sp.Matrix(value).applyfunc(sp.nsimplify) if np.ndim(value) else sp.nsimplify(value)


# ---- the systems


def snakeboard(mass: float, inertia: float, rotor: float, wheels: float, length: float) -> Field:
    """Coordinates: place and heading of the board, the angles of rotor and wheels."""
    q, v = sp.symbols("x y theta a b"), sp.symbols("dx dy dtheta da db")
    m, J, Jr, Jw, l = symbols = sp.symbols("m J Jr Jw l", positive=True)
    (_, _, theta, _, b), (dx, dy, w, da, db) = q, v
    lagrangian = (m * (dx**2 + dy**2) + J * w**2 + Jr * (w + da) ** 2 + 2 * Jw * (w**2 + db**2)) / 2
    along, across = (sp.cos(theta) * dx + sp.sin(theta) * dy, sp.cos(theta) * dy - sp.sin(theta) * dx)
    rows = [across, l * sp.cos(b) * w - sp.sin(b) * along]
    return derive(q, v, lagrangian, rows, dict(zip(symbols, (mass, inertia, rotor, wheels, length), strict=True)))


def rolling(mass: float, inertia: Any, gravity: float, support: Callable[[Any], Any]) -> Field:
    """A convex body on a plane, R = Rz(psi) Rx(alpha) Ry(phi); coordinates: place of its centre, psi, alpha, phi."""
    q, v = sp.symbols("x y psi alpha phi"), sp.symbols("dx dy dpsi dalpha dphi")
    angles, rates = q[2:], v[2:]
    axes = sp.eye(3)
    attitude = [turn(axes.row(k), angle) for k, angle in zip((2, 0, 1), angles, strict=True)]
    rotation = attitude[0] * attitude[1] * attitude[2]
    normal = (attitude[1] * attitude[2]).row(2)
    w, n = spin(rotation, angles, rates), sp.symbols("n1 n2 n3")
    down = dict(zip(n, -normal, strict=True))
    height = support(n).subs(down, simultaneous=True)
    contact = sp.Matrix([sp.diff(support(n), x) for x in n]).subs(down, simultaneous=True)
    speed = v[0] ** 2 + v[1] ** 2 + rate(height, angles, rates) ** 2
    m, g = sp.symbols("m g", positive=True)
    lagrangian = (m * speed + (w.T * exact(inertia) * w)[0]) / 2 - m * g * height
    slip = rotation * w.cross(contact)
    return derive_reduced(q, v, lagrangian, [-slip[0], -slip[1], *rates], rates, {m: mass, g: gravity})


def disk(mass: float, radius: float, axial: float, across: float, gravity: float) -> Field:
    r = exact(radius)
    inertia = np.diag([across, axial, across])
    return rolling(mass, inertia, gravity, lambda n: r * sp.sqrt(n[0] ** 2 + n[2] ** 2))


def rattleback(mass: float, inertia: Any, axes: Sequence[float], depth: float, gravity: float) -> Field:
    a, d = [exact(axis) for axis in axes], exact(depth)
    return rolling(
        mass,
        inertia,
        gravity,
        lambda n: sp.sqrt(sum((axis * x) ** 2 for axis, x in zip(a, n, strict=True))) + d * n[2],
    )


def bicycle(system: Any) -> Field:
    """The bicycle of Meijaard, Papadopoulos, Ruina, Schwab (2007), z down: `system` is the module with its numbers."""
    q = sp.symbols("x y yaw lean pitch steer rear front")
    v = sp.symbols("dx dy dyaw dlean dpitch dsteer drear dfront")
    sine, cosine, g = sp.symbols("st ct g")
    axes, p = sp.eye(3), system
    hub_rear, on_axis = exact(p.REAR_HUB), exact(p.ON_AXIS)
    upright = turn(axes.row(2), q[2]) * turn(axes.row(0), q[3])
    frame, steer = upright * turn(axes.row(1), q[4]), turn((sine, 0, cosine), q[5])
    rear_radius, front_radius = exact(p.REAR_RADIUS), exact(p.FRONT_RADIUS)
    hub = sp.Matrix([q[0], q[1], 0]) - rear_radius * upright.col(2)
    fork = frame * steer
    centres = [hub, hub + frame * (exact(p.BODY) - hub_rear)]
    centres += [hub + frame * (on_axis + steer * (exact(x) - on_axis) - hub_rear) for x in (p.FORK, p.FRONT_HUB)]
    speeds = [rate(centre, q, v) for centre in centres]
    frame_spin = (frame.T * rate(frame, q, v), fork.T * rate(fork, q, v))
    spins = [sp.Matrix([w[2, 1], w[0, 2], w[1, 0]]) for w in frame_spin]
    masses = [exact(m) for m in p.MASSES]
    twice = sum(m * s.dot(s) for m, s in zip(masses, speeds, strict=True))
    for w, inertia in zip(spins, (p.BODY_INERTIA, p.FORK_INERTIA), strict=True):
        twice += (w.T * exact(inertia) * w)[0]
    for (across, along), w, own in ((p.REAR_INERTIA, spins[0], v[6]), (p.FRONT_INERTIA, spins[1], v[7])):
        twice += exact(across) * (w[0] ** 2 + w[2] ** 2) + exact(along) * (w[1] + own) ** 2
    lagrangian = twice / 2 + g * sum(m * c[2] for m, c in zip(masses, centres, strict=True))
    axle = fork.col(1)
    below = sp.Matrix([0, 0, 1]) - axle[2] * axle
    lowest = below / sp.sqrt(1 - axle[2] ** 2)
    rolls = [
        speeds[0] + (frame * (spins[0] + v[6] * axes.col(1))).cross(rear_radius * upright.col(2)),
        speeds[3] + (fork * (spins[1] + v[7] * axes.col(1))).cross(front_radius * lowest),
    ]
    height = (centres[3] + front_radius * lowest)[2]
    rows = [rolls[0][0], rolls[0][1], rolls[1][0], rolls[1][1], rate(height, q, v)]
    given = {sine: np.sin(p.TILT), cosine: np.cos(p.TILT), g: p.GRAVITY}
    return derive(q, v, lagrangian, rows, given)
