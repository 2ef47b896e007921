"""Fedorov and Zenkov (2004): exhibits of the Suslov problem and the Chaplygin sleigh, and the geometry of LL systems.

Beside the exhibits stand symmetric pairs, the sleigh's momentum locus and genera of curves. Symmetric pairs decide when
S = exp d is a submanifold, and which displacements it holds (sections 3 and 6).

Lemma 7.2 describes the momentum locus of the discrete Chaplygin sleigh with Moser-Veselov; here every part is computed.
For b = 0 the paper draws the surface in the coordinates (p_theta, ph, z) with ph = a p1 + 2 m a^2 and z = sin(dtheta).
b is removed by p_theta -> p_theta + b p1, V1 -> V1 - b sin(dtheta). Momenta are impulses (h times physical ones).

The genus of a plane algebraic curve P(u, v) = 0 follows from its monodromy over the u-line (Riemann and Hurwitz). The
sheets v_1, ..., v_d are followed around every branch point. A cycle of length e of the permutation is one place with
ramification e, and a component of degree d has 2 g - 2 = -2 d + sum (e - 1). Nothing is asked of the singularities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import connected_components

from ..analysis.integrals import CriticalPoint, critical_points, discrete_total_turning, equilibrium_line, projective
from ..analysis.legendre import AlgebraicMap, LegendreMap, Locus, constrained_energy, legendre_map
from ..analysis.polynomials import Polynomials, interpolate, vanishing_polynomials
from ..errors import InvalidInput, NumericalFailure
from ..groups import Group
from ..integrators import EulerPoincareSuslov, RungeKutta
from ..mechanics import InvariantSystem, block, generators
from ..models import chaplygin_sleigh, exact_momentum, suslov, total_turning
from ..numerics.types import Element
from ..plotting.runs import headings
from ..plotting.studies import arrow, draw_portrait, draw_surfaces, equilibria, momentum_surface
from ..plotting.style import COLOURS, GREY
from .gallery import MOMENTUM_AXES, Data, Gallery, simulate_uninterrupted

gallery = Gallery("fz")
INERTIA = np.array([[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]])
SCHEME = EulerPoincareSuslov("moser-veselov")
LEVELS = (0.25, 0.5, 0.75, 1.0)  # of Figures 4.1 and 5.2
PANELS = {"a": 0.4, "b": 0.0}  # b of the two panels of Figures 5.2 and 5.3
CENTRE = 1.0  # a of sleighs with m = J = 1
SLEIGH_INERTIA, SLEIGH_MASS, OFFSET = 1.5, 1.0, 1.0  # of Figure 7.2
EXTENT = 6.0
SLEIGH_AXES = (r"$p_\theta$", r"$\hat p_1$", r"$z = \sin\Delta\theta$")
STEP, STEPS = 0.4, 60  # of Figure 7.3
BRACKET_TOLERANCE = 1e-9


def body() -> InvariantSystem:
    """An unbalanced body with e3 as normal and I12 != 0."""
    return suslov(INERTIA)


def _portrait(axes: Any, data: Data, key: str = "") -> None:
    """Orbits with arrows, equilibria filled where stable and open where not, on their line."""
    ends = np.stack([data[f"{key}stable"][-1], data[f"{key}unstable"][-1]])
    axes.plot(*(1.15 * ends).T, color=GREY, linewidth=0.7, zorder=1)
    draw_portrait(axes, list(data[f"{key}orbits"]))
    equilibria(axes, data[f"{key}stable"], stable=True, label="stable")
    equilibria(axes, data[f"{key}unstable"], stable=False, label="unstable")
    axes.set_aspect("equal", adjustable="datalim")


def draw_suslov(axes: Any, data: Data) -> None:
    _portrait(axes, data)
    axes.set(xlabel="$M_1$", ylabel="$M_2$")
    axes.legend(loc="upper right")


@gallery("figure-4.1", draw=draw_suslov, size=(5.6, 5.2))
def suslov_momenta() -> Data:
    block, column = INERTIA[:2, :2], INERTIA[:2, 2]
    line = block @ np.array([-column[1], column[0]])  # momenta of velocities with I13 w1 + I23 w2 = 0

    def energy(M: np.ndarray) -> Any:
        return np.einsum("...i,ij,...j->...", M, np.linalg.inv(block), M) / 2

    line = line / np.sqrt(energy(line))
    across = column / np.sqrt(energy(column))
    lower = np.linalg.cholesky(block)
    rate = np.linalg.norm(np.linalg.solve(lower, column)) / np.linalg.det(lower)  # of the phase, for |L^-1 M| = 1
    phase = np.linspace(-16, 16, 401)
    orbits = [
        exact_momentum(INERTIA, side * level * across, phase / (rate * level * np.sqrt(2)))[:, :2]
        for level in LEVELS
        for side in (-1.0, 1.0)
    ]
    limit = orbits[-1][-1]
    line = line if line @ limit > 0 else -line
    stable = np.array(LEVELS)[:, None] * line
    spread = max(float(np.ptp(energy(orbit)) / energy(orbit).mean()) for orbit in orbits)
    reached = max(float(np.linalg.norm(orbits[2 * k + 1][-1] - stable[k])) for k in range(len(LEVELS)))
    rows = [
        ("direction of the stable equilibria, M2/M1", float(line[1] / line[0])),
        ("largest relative change of (4.6) along an orbit", spread),
        ("largest distance of an orbit's end from its equilibrium", reached),
    ]
    return Data(("", "value"), rows, {"orbits": np.array(orbits), "stable": stable, "unstable": -stable})


def draw_sleigh_momenta(axes: Any, data: Data) -> None:
    for panel, (name, b) in zip(axes, PANELS.items(), strict=True):
        _portrait(panel, data, f"{name} ")
        cusp = data[f"{name} cusp"]
        panel.plot(*np.stack([-cusp, cusp]).T, "--", color=COLOURS[1], linewidth=0.9, label="$v_1 = 0$ (cusps)")
        panel.set(title=f"({name}) $a = 1$, $b = {b:g}$", xlabel=r"$p_\theta$", ylabel="$p_1$")
    axes[0].legend(loc="upper right")


@gallery("figure-5.2", draw=draw_sleigh_momenta, size=(9.6, 4.8), ncols=2)
def sleigh_momenta() -> Data:
    phase = np.linspace(-16, 16, 401)
    radius, side = np.array([(r, side) for r in LEVELS for side in (-1.0, 1.0)]).T[..., None]
    columns = ("panel", "largest relative change of (5.5)", "distance of ends from equilibria", "cusp line, residual")
    data = Data(columns)
    for name, b in PANELS.items():
        tensor = np.asarray(chaplygin_sleigh(a=CENTRE, b=b).inertia)[:2, :2]
        # (p_theta, p1) along V = r tanh s, w = r sqrt(m/Jc) sech s, v1 = V + b w (see `exact_sleigh`)
        w = side * radius * np.sqrt(1 / (1 + CENTRE**2)) / np.cosh(phase)
        orbits = np.stack([w, radius * np.tanh(phase) + b * w], -1) @ tensor
        stable = np.array([[-b * r, r] for r in LEVELS])
        cusp = np.array([1.0, 0.0]) @ tensor
        cusp *= 1.1 * np.abs(orbits).max() / np.abs(cusp).max()
        found = {"orbits": orbits, "stable": stable, "unstable": -stable, "cusp": cusp}
        data.arrays.update({f"{name} {key}": values for key, values in found.items()})
        turning = 1 + (CENTRE**2 + b**2)
        theta, one = orbits[..., 0], orbits[..., 1]
        integral = theta**2 + 2 * b * theta * one + turning * one**2
        change = float((np.ptp(integral, axis=1) / integral.mean(axis=1)).max())
        gap = float(np.linalg.norm(orbits[1::2, -1] - stable, axis=1).max())
        residual = float(np.abs(b * cusp[0] + turning * cusp[1]))
        data.rows.append((f"({name}) b = {b:g}", change, gap, residual))
    return data


def draw_blades(axes: Any, data: Data) -> None:
    for panel, (name, b) in zip(axes, PANELS.items(), strict=True):
        pose = data[name]
        panel.plot(pose[:, 0, 2], pose[:, 1, 2], color=COLOURS[0])
        headings(panel, pose, COLOURS[1], 15)
        panel.plot(0, 0, "o", color="black", markersize=4, label="cusp")
        panel.set_aspect("equal", adjustable="datalim")
        panel.set(title=f"({name}) $a = 1$, $b = {b:g}$", xlabel="$x$", ylabel="$y$")
    axes[0].legend()


@gallery("figure-5.3", draw=draw_blades, size=(10.0, 4.6), ncols=2)
def blades() -> Data:
    data = Data(("panel", "turning from t = -5 to 5", "from -∞ to ∞"))
    for name, b in PANELS.items():
        system = chaplygin_sleigh(a=CENTRE, b=b)
        state = system.state(xi=[1.2, 0.0, 0.0])  # in a cusp, from which Runge-Kutta goes both ways
        options = [{"step": sign * 0.002, "t_end": sign * 5.0, "save_every": 10} for sign in (-1.0, 1.0)]
        back, on = (simulate_uninterrupted(system, RungeKutta(), state, **o).check() for o in options)
        data.arrays[name] = pose = np.concatenate([np.asarray(back.g)[:0:-1], np.asarray(on.g)])
        angle = np.unwrap(np.arctan2(pose[:, 1, 0], pose[:, 0, 0]))
        data.rows.append((f"({name}) b = {b:g}", float(angle[-1] - angle[0]), total_turning(a=CENTRE)))
    return data


def momenta(q: np.ndarray) -> np.ndarray:
    """h M at points (..., 2) = (q1, q2) of the upper hemisphere: rotations with Cayley coordinates x = 2 q/q0."""
    q0 = np.sqrt(np.maximum(1 - np.sum(q**2, axis=-1, keepdims=True), 1e-16))
    return momentum_surface(body(), SCHEME, 1.0, 2 * q / q0)


def ring(low: float, high: float, radii: int = 61, angles: int = 181) -> np.ndarray:
    """(q1, q2) with q0 between `low` and `high`, polar; shape (radii, angles, 2)."""
    half = np.linspace(np.arccos(high), np.arccos(low), radii)
    around = np.linspace(0, 2 * np.pi, angles)
    return np.asarray(np.sin(half)[:, None, None] * np.stack([np.cos(around), np.sin(around)], -1))


def suslov_surface(low: float, high: float, radii: int) -> Data:
    points = momenta(ring(low, high, radii))
    rows = [(f"largest |h M{i + 1}|", float(np.abs(points[..., i]).max())) for i in range(3)]
    return Data(("", "value"), rows, {"surface": points})


for label, region, view in (
    ("figure-6.1", (0.0, 1.0, 91), {"elev": 12, "azim": -120}),
    ("figure-6.2", (0.4, 0.8, 61), {"elev": 14, "azim": -112}),
):
    draw = lambda axes, data: draw_surfaces(axes, [data["surface"]])
    add = gallery(label, draw=draw, size=(6.4, 5.6), labels=MOMENTUM_AXES, **view)
    add(partial(suslov_surface, *region))


@lru_cache
def critical_set() -> tuple[CriticalPoint, ...]:
    return tuple(point for point in critical_points(body(), SCHEME, starts=30) if point.value > 1e-12)


def separatrix() -> float:
    """h*: the energy at the saddles between the ovals about the origin and those near the equator."""
    return min(p.value for p in critical_set() if p.index == 1 and projective(p.coordinates)[2] > 0.01)


def line_of_equilibria() -> np.ndarray:
    """The unit vector (q1, q2) of the stable half of P."""
    return np.asarray(equilibrium_line(body(), SCHEME)[:2])


def draw_curves(axes: Any, data: Data) -> None:
    around = np.linspace(0, 2 * np.pi, 361)  # RP^2 is the upper hemisphere seen from above
    axes.plot(np.cos(around), np.sin(around), color=GREY, linewidth=0.8, linestyle="--")
    axes.set(xlabel="$q_1$", ylabel="$q_2$", aspect="equal")
    grid = data["q1"], data["q2"], data["energy"]
    axes.contour(*grid, levels=np.sort(data["levels"]), colors=COLOURS[0], linewidths=0.8)
    axes.contour(*grid, levels=data["separatrix"], colors=COLOURS[1], linewidths=1.5)
    along = data["line"]
    axes.plot(*np.stack([-along, along]).T, color="black", linewidth=1.2, label="equilibria $P$")
    axes.plot([], [], color=COLOURS[1], linewidth=1.5, label="separatrix $h^*$")
    axes.plot(*data["saddles"].T, "x", color=COLOURS[1], label="saddles")
    axes.plot(*data["centres"].T, "+", color=COLOURS[2], markersize=7, label="centres")
    axes.legend(loc="upper left", bbox_to_anchor=(0.98, 1.0))


@gallery("figure-6.3", draw=draw_curves, size=(6.0, 5.6))
def suslov_curves() -> Data:
    side = np.linspace(-1, 1, 401)
    q1, q2 = np.meshgrid(side, side)
    inside = np.hypot(q1, q2) < 1
    q = np.stack([q1, q2], -1) * np.where(inside, 1.0, 0.0)[..., None]
    energy = np.where(inside, constrained_energy(body(), momenta(q)), np.nan)
    star = separatrix()
    where = [(point.index, projective(point.coordinates)) for point in critical_set()]
    places = {index: np.array([q[:2] for kind, q in where if kind == index and q[2] > 0.01]) for index in (1, 2)}
    top = max(point.value for point in critical_set())
    inner, outer = np.array([0.02, 0.1, 0.25, 0.45, 0.7, 0.9]), np.array([0.25, 0.6, 0.9])
    levels = np.concatenate([inner * star, star + outer * (top - star)])
    rows = [
        ("h*, energy h² E_c of the separatrix", star),
        ("h**, of the centres", top),
        ("slope q2/q1 of the line of equilibria", float(line_of_equilibria()[1] / line_of_equilibria()[0])),
    ]
    arrays = {"q1": side, "q2": side, "energy": energy, "levels": levels, "separatrix": np.array([star])}
    arrays |= {"line": line_of_equilibria(), "saddles": places[1], "centres": places[2]}
    return Data(("", "value"), rows, arrays)


def draw_dynamics(axes: Any, data: Data) -> None:
    orbits = [orbit for name, orbit in data.arrays.items() if name.startswith("orbit")]
    reach = 1.12 * np.nanmax(np.abs(np.concatenate(orbits)))
    along = data["line"]
    axes.plot(*(1.2 * reach * np.stack([-along, along])).T, color=GREY, linewidth=0.8)
    grid = data["q1"], data["q2"], data["energy"]
    axes.contour(*grid, levels=np.sort(data["levels"]), colors=COLOURS[5], linewidths=0.6)
    for orbit in orbits:
        axes.plot(*orbit.T, ".", color=COLOURS[0], markersize=4)
        middle = len(orbit) // 2
        arrow(axes, orbit[middle - 2 : middle + 3], COLOURS[0])
    equilibria(axes, data["stable"], stable=True, label="stable")
    equilibria(axes, -data["stable"], stable=False, label="unstable")
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="$q_1$", ylabel="$q_2$")
    axes.legend(loc="upper right")


@gallery("figure-6.4", draw=draw_dynamics, size=(6.2, 5.6))
def dynamics() -> Data:
    system, f = body(), legendre_map(body(), SCHEME)
    direction, star = line_of_equilibria(), separatrix()
    across = np.array([-direction[1], direction[0]])
    levels = np.array([0.05, 0.2, 0.45]) * star
    arrays: dict[str, Any] = {"line": direction, "levels": levels}
    stable, mismatch = [], []
    for k, level in enumerate(levels):
        for side in (-1.0, 1.0):
            x = _on_level(f, side * across, level)
            both = np.concatenate([f.orbit(x, -60)[:0:-1], f.orbit(x, 60)])
            q = both / 2 / np.sqrt(1 + np.sum(both**2, axis=1, keepdims=True) / 4)
            arrays[f"orbit {2 * k + (side > 0)}"] = q
            mismatch.append(float(np.ptp(constrained_energy(system, f.restriction(both))) / level))
        end = _on_level(f, direction, level)
        stable.append(end / 2 / np.sqrt(1 + end @ end / 4))
    side = np.linspace(-1, 1, 301) * 1.5 * np.max(np.abs(stable))
    q1, q2 = np.meshgrid(side, side)
    energy = constrained_energy(system, momenta(np.stack([q1, q2], -1)))
    arrays |= {"q1": side, "q2": side, "energy": energy, "stable": np.array(stable)}
    last = [float(np.linalg.norm(arrays[f"orbit {i}"][-1] - stable[i // 2])) for i in range(2 * len(levels))]
    rows = [
        ("largest relative change of the energy along an orbit", max(mismatch)),
        ("largest distance of an orbit's end from its equilibrium", max(last)),
        ("(q1, q2) of the stable half line", "(" + ", ".join(f"{v:.6g}" for v in direction) + ")"),
    ]
    return Data(("", "value"), rows, arrays)


def _on_level(f: LegendreMap, direction: np.ndarray, level: float) -> np.ndarray:
    """The point x = s direction nearest to 0 with this energy."""
    from scipy.optimize import brentq

    def energy(s: float) -> float:
        return float(constrained_energy(f.system, f.restriction(s * direction))) - level

    top = 0.05
    while energy(top) < 0:
        top *= 1.2
    return np.asarray(brentq(energy, 0.0, top, xtol=1e-14) * direction)


def draw_sleigh_surface(axes: Any, data: Data) -> None:
    draw_surfaces(axes, [data[name] for name in ("right", "left")])
    axes.set(xlim=(-EXTENT, EXTENT), ylim=(-EXTENT, EXTENT))


def ruled_surface(angles: np.ndarray, lines: int = 121) -> np.ndarray:
    """(p_theta, p1^, z) over turning angles and p1^ = a p1 + 2 m a², inside the window, shape (angles, lines, 3).

    At a given angle both momenta of the discrete Legendre map are affine in the second coordinate of the displacement,
    so that p_theta is affine in p1^: the surface is ruled.
    """
    system = chaplygin_sleigh(SLEIGH_MASS, SLEIGH_INERTIA, OFFSET, 0.0)
    x0 = 2 * np.tan(angles / 2)
    at, there = (momentum_surface(system, SCHEME, 1.0, np.stack([x0, 0 * x0 + x1], -1)) for x1 in (0.0, 1.0))
    rate = there - at
    offset, slope = OFFSET * at[:, 1] + 2 * SLEIGH_MASS * OFFSET**2, OFFSET * rate[:, 1]
    tilt = rate[:, 0] / slope  # of p_theta = foot + tilt p1^
    foot = at[:, 0] - tilt * offset
    edges = np.sort((np.array([[-EXTENT], [EXTENT]]) - foot) / tilt, axis=0)
    low, high = np.clip(edges, -EXTENT, EXTENT)
    height = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, lines)
    theta = foot[:, None] + tilt[:, None] * height
    return np.stack([theta, height, np.broadcast_to(np.sin(angles)[:, None], theta.shape)], -1)


def cubic(p: Any, hat: Any) -> tuple[Any, ...]:
    """The coefficients of z^3, z^2, z and 1 in (7.16) of fedorov-zenkov."""
    J = SLEIGH_INERTIA
    return J**2, -2 * J * p, hat**2 + 2 * J * hat + p**2, -2 * p * hat


@gallery("figure-7.2", draw=draw_sleigh_surface, size=(6.8, 5.6), labels=SLEIGH_AXES, elev=28, azim=-60)
def sleigh_surface() -> Data:
    turn = np.linspace(1e-6, np.pi * (1 - 1e-4), 181)
    parts = {"right": ruled_surface(turn), "left": ruled_surface(-turn)}
    p, hat, z = np.concatenate([part.reshape(-1, 3) for part in parts.values()]).T
    a, b, c, d = cubic(p, hat)
    residual = float(np.abs(a * z**3 + b * z**2 + c * z + d).max())
    rows = [("largest residual of (7.16)", residual), ("largest |z|", float(np.abs(z).max()))]
    places = ((0.0, -1.5), (0.0, 2.0), (3.0, -3.0))
    for p, q in places:
        z = np.roots(cubic(p, q))
        sheets = int(np.sum((np.abs(z.imag) < 1e-9) & (np.abs(z.real) <= 1 + 1e-12)))
        rows.append((f"real z over (p_theta, p1^) = ({p:g}, {q:g})", sheets))
    return Data(("", "value"), rows, parts)


def draw_path(axes: Any, data: Data) -> None:
    axes.plot(*data["flow"].T, color=COLOURS[6], linewidth=0.9, label="continuous")
    axes.plot(*data["discrete"].T, "o", color=COLOURS[0], markersize=3.5, label=f"discrete, h = {STEP:g}")
    axes.plot(*data["discrete"][0], "o", color=COLOURS[1], markersize=6, label="start")
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xlabel="$x$", ylabel="$y$")
    axes.legend()


@gallery("figure-7.3", draw=draw_path, size=(6.6, 5.0))
def path() -> Data:
    system = chaplygin_sleigh(a=0.3, b=0.0)
    state = system.state(xi=[0.5, -1.0, 0.0])
    run = simulate_uninterrupted(system, SCHEME, state, step=STEP, steps=STEPS).check()
    flow = simulate_uninterrupted(system, RungeKutta(), state, step=STEP / 100, steps=100 * STEPS, save_every=5).check()
    gap = np.linalg.norm(np.asarray(run.g)[:, :2, 2] - np.asarray(flow.g)[::20, :2, 2], axis=1)
    rows = [
        ("largest error of the energy", float(np.abs(np.asarray(run.energy_error())).max())),
        ("largest distance of the paths", float(gap.max())),
        ("angle turned, discrete", float(run.angles[-1, 0])),
        ("angle turned, continuous", float(flow.angles[-1, 0])),
        ("from k = -∞ to ∞, discrete", discrete_total_turning(system, SCHEME, state.momentum, STEP)),
        ("from t = -∞ to ∞, continuous", total_turning(a=0.3)),
    ]
    return Data(("", "value"), rows, {"flow": np.asarray(flow.g)[:, :2, 2], "discrete": np.asarray(run.g)[:, :2, 2]})


@dataclass(frozen=True, eq=False)
class CurveGenus:
    """The genus of every irreducible component of a curve, and the sheets that it has over the line."""

    genera: tuple[int, ...]
    sheets: tuple[int, ...]
    branch_points: np.ndarray

    @property
    def genus(self) -> int:
        """The genus of an irreducible curve."""
        if len(self.genera) != 1:
            raise InvalidInput(f"the curve has {len(self.genera)} components of genera {self.genera}")
        return self.genera[0]


def genus(curve: Polynomials, *, generic: bool = True) -> CurveGenus:
    """The genus of the compact Riemann surface of P(u, v) = 0, component by component.

    A random change of coordinates makes the projection generic, with simple branch points. `generic=False` keeps
    (u, v), which is better for a curve of low degree in v and high degree in u, singular at infinity.
    """
    turn = np.random.default_rng(0).normal(size=(2, 2)) if generic else np.eye(2)
    degree = int(curve.degrees.max())
    turned = interpolate(lambda x: curve(x @ turn.T), 2, degree)
    rows = np.zeros((degree + 1, degree + 1), complex)  # [power of v, power of u]
    rows[turned.exponents[:, 1], turned.exponents[:, 0]] = turned.coefficients[:, 0]
    points = _discriminant_roots(rows)
    base = 1.7 * max(np.abs(points).max(initial=0.0), _typical_radius(rows)) * np.exp(0.37j)
    sheets = np.roots(_coefficients(rows, base)[::-1])
    permutations = [_monodromy(rows, base, sheets, point, points) for point in points]
    # along the circle through the base around all branch points: the permutation of infinity, inverted
    turned_sheets = _continue_sheets(rows, sheets, lambda t: base * np.exp(2j * np.pi * t))
    permutations.append(np.array([int(np.abs(sheets - v).argmin()) for v in turned_sheets]))
    graphs = np.eye(len(sheets))[permutations]  # components are the orbits of all, cycles those of one
    component = connected_components(graphs.sum(0))[1]
    genera, counts = [], []
    for name in np.unique(component):
        inside = np.ix_(component == name, component == name)
        count = int(np.sum(component == name))
        ramification = sum(count - connected_components(graph[inside])[0] for graph in graphs)
        genera.append(1 - count + ramification // 2)
        counts.append(count)
    return CurveGenus(tuple(genera), tuple(counts), points)


def _discriminant_roots(rows: np.ndarray) -> np.ndarray:
    """The u at which two sheets meet or one goes to infinity, clusters as one point: zeros of the discriminant in v."""

    def discriminant(u: complex) -> complex:
        coefficients = _coefficients(rows, u)
        roots = np.roots(coefficients[::-1])
        d = len(roots)
        gaps = [roots[i] - roots[j] for i in range(d) for j in range(i)]
        return complex(coefficients[-1] ** (2 * d - 2) * np.prod(gaps) ** 2)

    count = 2 * (len(rows) - 1) ** 2 + 1
    radius = _typical_radius(rows)
    circle = radius * np.exp(2j * np.pi * np.arange(count) / count)
    coefficients = np.fft.fft(np.array([discriminant(u) for u in circle])) / count
    keep = np.flatnonzero(np.abs(coefficients) > 1e-10 * np.abs(coefficients).max())
    roots = radius * np.roots(coefficients[keep[0] : keep[-1] + 1][::-1])
    roots = np.r_[roots, 0.0] if keep[0] > 0 else roots
    clusters: list[list[complex]] = []
    for root in roots:
        near = [c for c in clusters if abs(np.mean(c) - root) < 2e-3 * (radius + abs(root))]
        near[0].append(root) if near else clusters.append([root])
    return np.array([np.mean(c) for c in clusters])


def _typical_radius(rows: np.ndarray) -> float:
    """A circle about 0 that is of the size of the branch points."""
    spread = [np.abs(np.roots(_coefficients(rows.T, v)[::-1])) for v in (0.3, 1.0, 3.0j)]
    return float(np.median(np.concatenate(spread)))


def _coefficients(rows: np.ndarray, u: complex) -> np.ndarray:
    """The coefficients of v^0, v^1, ... at u."""
    values = np.polynomial.polynomial.polyval(u, rows.T)
    return np.asarray(values[: np.flatnonzero(np.abs(rows).max(1) > 0)[-1] + 1])


def _continue_sheets(rows: np.ndarray, sheets: np.ndarray, path: Callable[[float], complex]) -> np.ndarray:
    """The sheets continued along u = path(t), t from 0 to 1, in steps so small that roots cannot be confused."""
    t, step = 0.0, 0.01
    while t < 1:
        new = np.roots(_coefficients(rows, path(min(1.0, t + step)))[::-1])
        distance = np.abs(sheets[:, None] - new[None])
        nearest = distance.argmin(1)
        separation = np.abs(new[:, None] - new[None]) + np.diag(np.full(len(new), np.inf))
        clear = distance.min(1) < 0.2 * separation.min(1)[nearest]
        if len(set(nearest)) == len(new) and np.all(clear):
            sheets, t, step = new[nearest], t + step, min(2 * step, 0.05)
        else:
            step /= 2
            if step < 1e-9:
                raise NumericalFailure("two sheets of the curve come too close on a path between branch points")
    return sheets


def _monodromy(rows: np.ndarray, base: complex, sheets: np.ndarray, point: complex, points: np.ndarray) -> np.ndarray:
    """The permutation of the sheets at the base along a loop around one branch point."""
    others = np.abs(points - point)
    radius = 0.4 * np.min(others[others > 0], initial=np.abs(base - point))
    edge = point + radius * (base - point) / abs(base - point)
    there = _continue_sheets(rows, sheets, lambda t: base + t * (edge - base))
    turned = _continue_sheets(rows, there, lambda t: point + (edge - point) * np.exp(2j * np.pi * t))
    return np.array([int(np.abs(there - v).argmin()) for v in turned])


@dataclass(frozen=True)
class SymmetricPair:
    """g = h + d, and the parts of the brackets that (3.3) of fedorov-zenkov forbids.

    `defects` are the sizes of [h, h] outside h, of [d, d] outside h, and of [h, d] outside d.
    """

    group: Group
    d: np.ndarray
    h: np.ndarray
    defects: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """Whether (3.3) holds: then exp d is the Cartan model of G/H, a smooth submanifold (Proposition 3.1)."""
        return max(self.defects) < BRACKET_TOLERANCE

    @property
    def involution(self) -> np.ndarray:
        """The matrix of sigma = 1 on h, -1 on d: an automorphism of the algebra exactly when (3.3) holds."""
        both = np.hstack([self.h, self.d])
        signs = np.repeat([1.0, -1.0], [self.h.shape[1], self.d.shape[1]])
        return np.asarray(both @ np.diag(signs) @ np.linalg.inv(both))

    def residual(self, W: Element) -> float:
        """|sigma Ad_W sigma Ad_W - 1|: W in exp d satisfies sigma(W) = W^-1, which on SO(n) is (6.6)."""
        matrix, basis = np.asarray(block(self.group.matrix(W))), generators(self.group)
        adjoint = _coordinates(basis, matrix @ basis @ np.linalg.inv(matrix))
        return float(np.abs(self.involution @ adjoint @ self.involution @ adjoint - np.eye(self.group.dim)).max())

    def __str__(self) -> str:
        sizes = dict(zip(("[h, h] in h", "[d, d] in h", "[h, d] in d"), self.defects, strict=True))
        broken = [f"{name} fails by {size:.3g}" for name, size in sizes.items() if size >= BRACKET_TOLERANCE]
        return "a symmetric pair" if not broken else "no symmetric pair: " + ", ".join(broken)


def symmetric_pair(group: Group, subspace: ArrayLike, complement: ArrayLike | None = None) -> SymmetricPair:
    """The test (3.3) for d (columns of `subspace`) and h (`complement`; default: the one that the brackets determine).

    h must contain [d, d] and normalise d. Where [d, d], or the normaliser of d, is a complement of d it is taken.
    """
    d = _orthonormal_basis(np.asarray(subspace, float))
    n = group.dim
    basis = generators(group)
    products = np.einsum("aij,bjk->abik", basis, basis)
    # structure constants (k, i, j): [e_i, e_j] = sum c_kij e_k
    structure = _coordinates(basis, products - products.swapaxes(0, 1)).reshape(n, n, n)

    def brackets(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The brackets of two bases, as columns."""
        return np.asarray(np.einsum("kij,ia,jb->kab", structure, x, y).reshape(n, -1))

    def complements(x: np.ndarray) -> bool:
        rank = np.linalg.matrix_rank(np.hstack([x, d]), tol=BRACKET_TOLERANCE)
        return bool(x.shape[1] == n - d.shape[1] and rank == n)

    if complement is None:
        outside = np.eye(n) - d @ d.T
        _, sizes, right = np.linalg.svd(np.einsum("kl,kij,jb->lbi", outside, structure, d).reshape(-1, n))
        normaliser = right[np.count_nonzero(sizes > BRACKET_TOLERANCE) :].T
        candidates = [x for x in (_orthonormal_basis(brackets(d, d)), normaliser) if complements(x)]
        if not candidates:
            raise InvalidInput(
                "neither [d, d] nor the normaliser of d is a complement of d, so no h is singled out; "
                "give one by its basis (complement)"
            )
        h = candidates[0]
    else:
        h = _orthonormal_basis(np.asarray(complement, float))
        if not complements(h):
            raise InvalidInput(f"complement must span one of d: {n - d.shape[1]} independent columns of length {n}")
    split = np.linalg.inv(np.hstack([h, d]))
    in_h, in_d = split[: h.shape[1]], split[h.shape[1] :]
    parts = in_d @ brackets(h, h), in_d @ brackets(d, d), in_h @ brackets(h, d)
    return SymmetricPair(group, d, h, tuple(float(np.abs(part).max(initial=0.0)) for part in parts))


def rotation_of_sphere(z: ArrayLike) -> np.ndarray:
    """(6.7) of fedorov-zenkov: the rotation exp(theta u ^ e_n) of a point z of the unit sphere.

    z = (cos(theta/2), sin(theta/2) u); z and -z give the same rotation.
    """
    z = np.asarray(z)
    first, rest = float(z[0]), np.asarray(z[1:], float)
    side = 2 * first * rest[:, None]
    return np.block([[np.eye(rest.size) - 2 * np.outer(rest, rest), side], [-side.T, 2 * first**2 - 1]])


def sphere_of_rotation(W: ArrayLike) -> np.ndarray:
    """The inverse of (6.7) of fedorov-zenkov, with the sign that makes z_0 >= 0: exp d is the projective space."""
    W = np.asarray(W)
    cosine = np.sqrt(0.5 * (1.0 + np.clip(W[-1, -1], -1.0, 1.0)))
    if cosine > 1e-8:
        return np.concatenate([[cosine], 0.5 * W[:-1, -1] / cosine])
    square = 0.5 * (np.eye(W.shape[0] - 1) - W[:-1, :-1])  # z z^T at angle pi
    k = int(np.argmax(np.diag(square)))
    return np.concatenate([[0.0], square[:, k] / np.sqrt(square[k, k])])


def _coordinates(basis: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """The coordinates of algebra elements given as matrices (..., N, N), as columns."""
    flat = basis.reshape(len(basis), -1).T
    return np.asarray(np.linalg.lstsq(flat, matrices.reshape(-1, len(flat)).T, rcond=None)[0])


def _orthonormal_basis(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the span."""
    columns = columns[:, None] if columns.ndim == 1 else columns
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > BRACKET_TOLERANCE * max(1.0, sizes.max(initial=0.0))])


@dataclass(frozen=True, eq=False)
class SleighLocus:
    """The surface (p_theta, ph, z) of a sleigh (`models.chaplygin_sleigh`)."""

    system: InvariantSystem

    def __post_init__(self) -> None:
        inertia = np.asarray(self.system.inertia)
        blade = np.allclose(np.asarray(self.system.annihilator), [[0, 0, 1]])
        plane = self.system.group.is_motion_group(2) and inertia[1, 1] == inertia[2, 2] and inertia[1, 2] == 0
        if not (plane and blade):
            raise InvalidInput("this is for the Chaplygin sleigh on SE(2) with v2 = 0; use models.chaplygin_sleigh")

    @property
    def parameters(self) -> tuple[float, float, float, float]:
        """(m, J, a, b) with J about the centre of mass."""
        inertia = np.asarray(self.system.inertia)
        m = float(inertia[1, 1])
        a, b = float(inertia[0, 2]) / m, -float(inertia[0, 1]) / m
        return m, float(inertia[0, 0]) - m * (a * a + b * b), a, b

    @property
    def map(self) -> AlgebraicMap:
        """In coordinates (dtheta, v), v = V1 dtheta/sin(dtheta)."""
        return AlgebraicMap(self.system, SCHEME, angles=True)

    def plane(self, impulse: ArrayLike) -> np.ndarray:
        """(p_theta + b p1, ph) of impulses (..., 3) or restricted ones (..., 2)."""
        m, _, a, b = self.parameters
        impulse = np.asarray(impulse)
        return np.stack([impulse[..., 0] + b * impulse[..., 1], a * impulse[..., 1] + 2 * m * a * a], axis=-1)

    def points(self, angle: ArrayLike, V1: ArrayLike) -> np.ndarray:
        """(p_theta, ph, z) at displacements with these dtheta and V1 = Omega_13 - b sin(dtheta), shape (..., 3)."""
        angle, V1 = np.broadcast_arrays(np.asarray(angle), np.asarray(V1))
        y = np.stack([angle, V1 / np.sinc(angle / np.pi) + self.parameters[3] * angle], axis=-1)
        return np.concatenate([self.plane(self.map.impulse(y)), np.sin(angle)[..., None]], axis=-1)

    def cubic(self) -> Polynomials:
        """(7.16) of fedorov-zenkov by elimination: J^2 z^3 + ..., which vanishes at (p_theta, ph, z) on the surface."""
        rng = np.random.default_rng(0)
        m, J, a, _ = self.parameters
        size = np.sqrt((J + m * a * a) / m)
        found = vanishing_polynomials(self.points(rng.uniform(-2.5, 2.5, 80), size * rng.normal(size=80)), 3)
        if found.coefficients.shape[1] != 1:
            raise InvalidInput("a sleigh with a = 0 is balanced: its surface is a plane and no cubic is singled out")
        (top,) = found.coefficients[np.all(found.exponents == [0, 0, 3], axis=1), 0]
        return Polynomials(found.exponents, found.coefficients.real * (J * J / np.real(top)))

    def folds(self, *, points: int = 401) -> list[np.ndarray]:
        """The discriminant curve of the projection in the (p_theta, ph) plane, as polylines (k, 2)."""
        return [self.plane(image) for _, image in self._locus().discriminant(extent=self._extent(), points=points)]

    def discriminant(self) -> Polynomials:
        """The quartic in (p_theta, ph) of Lemma 7.2 (3) by elimination, ph^4 with coefficient 1."""
        points = np.vstack(self.folds())
        points = points[np.linspace(0, len(points) - 1, 200).astype(int)]
        found = vanishing_polynomials(points, 4, tolerance=1e-9)
        (top,) = found.coefficients[np.all(found.exponents == [0, 4], axis=1), 0]
        return Polynomials(found.exponents, (found.coefficients / top).real)

    def cusps(self) -> np.ndarray:
        """The cusps of the discriminant curve in the (p_theta, ph) plane, shape (k, 2)."""
        return self.plane(self._locus().cusps(extent=self._extent(), points=401)[1])

    def ellipse(self, points: int = 200) -> np.ndarray:
        """(7.17) of fedorov-zenkov: the image of V1 = 0 in the (p_theta, ph) plane, shape (points, 2)."""
        return np.asarray(self.points(np.linspace(0, 2 * np.pi, points), 0.0)[:, :2])

    def _locus(self) -> Locus:
        return Locus(self.system, SCHEME)

    def _extent(self) -> float:
        """|v| in which the triangle lies: its corners have |ph| of the order of J."""
        m, J, a, _ = self.parameters
        return 8 * (J + m * a * a) / (m * abs(a)) if a else 4.0
