"""Fedorov and Zenkov (2004): exhibits of the Suslov problem and the Chaplygin sleigh, continuous and discrete.

Figures 4.1, 5.2 and 5.3 are of the continuous systems, Figures 6.1 to 6.4 of the discrete Suslov problem (its momentum
surface, invariant curves and dynamics on RP^2), Figures 7.2 and 7.3 of the discrete sleigh. The paper prints none of
the numbers of its bodies but J = 1.5 of Figure 7.2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.integrals import CriticalPoint, critical_points, discrete_total_turning, equilibrium_line, projective
from ..analysis.legendre import LegendreMap, constrained_energy, legendre_map
from ..integrators import EulerPoincareSuslov, RungeKutta
from ..mechanics import InvariantSystem
from ..models import chaplygin_sleigh, exact_momentum, suslov, total_turning
from ..plotting.runs import headings
from ..plotting.studies import Patch, arrow, draw_portrait, draw_surfaces, equilibria, momentum_surface
from ..plotting.style import COLOURS, GREY, sheet, space
from .gallery import Data, Gallery, Paper, simulate_uninterrupted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CITATION = (
    "Y. N. Fedorov and D. V. Zenkov, Discrete nonholonomic LL systems on Lie groups, "
    "Nonlinearity 18, 2005 (preprint 2004)."
)
gallery = Gallery(Paper("fz", "fedorov-zenkov", CITATION))
INERTIA = np.array([[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]])
SCHEME = EulerPoincareSuslov("moser-veselov")
NUMBERS = "The paper does not print the numbers of its example"


def body() -> InvariantSystem:
    """An unbalanced body with e3 as normal and I12 != 0."""
    return suslov(INERTIA)


def sleigh_of(a: float, b: float) -> tuple[dict[str, float], InvariantSystem]:
    """The parameters of a sleigh with m = J = 1, and the sleigh."""
    parameters = {"mass": 1.0, "inertia": 1.0, "a": a, "b": b}
    return parameters, chaplygin_sleigh(**parameters)


LEVELS = (0.25, 0.5, 0.75, 1.0)


def _portrait(axes: Axes, data: Data, key: str = "") -> None:
    """Orbits with arrows, equilibria filled where stable and open where not, on their line."""
    ends = np.stack([data[f"{key}stable"][-1], data[f"{key}unstable"][-1]])
    axes.plot(*(1.15 * ends).T, color=GREY, linewidth=0.7, zorder=1)
    draw_portrait(axes, list(data[f"{key}orbits"]))
    equilibria(axes, data[f"{key}stable"], stable=True, label="stable")
    equilibria(axes, data[f"{key}unstable"], stable=False, label="unstable")
    axes.set_aspect("equal", adjustable="datalim")


def draw_suslov(data: Data) -> Figure:
    figure, axes = sheet(size=(5.6, 5.2))
    _portrait(axes, data)
    axes.set(xlabel="$M_1$", ylabel="$M_2$")
    axes.legend(loc="upper right")
    return figure


@gallery(
    "figure-4.1",
    "Momentum dynamics of the Suslov problem",
    draw=draw_suslov,
    printed="""Arcs of ellipses in the plane of (M1, M2) that lead from unstable (open dots) to stable equilibria
    (filled dots).""",
    differs=f"""{NUMBERS}; here I = (3, 4, 5; I12 = 0.4, I13 = 1, I23 = 0.5). Orbits are the exact solutions. In
    (4.3) the bracket belongs in front of I^-1 g x w (docs/errata.md); the arcs are those of the integral (4.6), which
    is right.""",
)
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


PANELS = {"a": 0.4, "b": 0.0}  # b of the two panels
CENTRE = 1.0


def sleigh_orbit(b: float, radius: float, side: float, times: np.ndarray) -> np.ndarray:
    """(p_theta, p1) along V = r tanh s, w = r sqrt(m/Jc) sech s, v1 = V + b w (see `exact_sleigh`)."""
    p, system = sleigh_of(CENTRE, b)
    about = p["inertia"] + p["mass"] * p["a"] ** 2
    w = side * radius * np.sqrt(p["mass"] / about) / np.cosh(times)
    velocity = np.stack([w, radius * np.tanh(times) + b * w], -1)
    return np.asarray(velocity @ np.asarray(system.inertia)[:2, :2])


def draw_sleigh_momenta(data: Data) -> Figure:
    figure, axes = sheet(1, 2, size=(9.6, 4.8))
    for panel, (name, b) in zip(axes, PANELS.items(), strict=True):
        _portrait(panel, data, f"{name} ")
        cusp = data[f"{name} cusp"]
        panel.plot(*np.stack([-cusp, cusp]).T, "--", color=COLOURS[1], linewidth=0.9, label="$v_1 = 0$ (cusps)")
        panel.set(title=f"({name}) a = 1, b = {b:g}", xlabel=r"$p_\theta$", ylabel="$p_1$")
    axes[0].legend(loc="upper right")
    return figure


@gallery(
    "figure-5.2",
    "Momentum dynamics of the sleigh",
    draw=draw_sleigh_momenta,
    printed="""The plane of (p_theta, p1) for (a) a ≠ 0, b ≠ 0 and (b) a ≠ 0, b = 0: arcs of ellipses from unstable
    equilibria in the lower half plane (open dots) to stable ones in the upper (filled dots), on the line p_theta + b p1
    = 0.""",
    differs=f"""{NUMBERS}; here m = J = a = 1, b = 0.4 and 0. The line on which the trajectories of Figure 5.3 have
    their cusps, v1 = 0, is m b p_theta + (J + m(a² + b²)) p1 = 0, with p_theta in place of the second p_1 of the print
    (docs/errata.md).""",
)
def sleigh_momenta() -> Data:
    times = np.linspace(-16, 16, 401)
    arrays: dict[str, np.ndarray] = {}
    rows: list[tuple[object, ...]] = []
    for name, b in PANELS.items():
        p, system = sleigh_of(CENTRE, b)
        orbits = np.array([sleigh_orbit(b, r, side, times) for r in LEVELS for side in (-1.0, 1.0)])
        stable = np.array([[-b * r * p["mass"], p["mass"] * r] for r in LEVELS])
        cusp = np.array([1.0, 0.0]) @ np.asarray(system.inertia)[:2, :2]
        cusp *= 1.1 * np.abs(orbits).max() / np.abs(cusp).max()
        found = {"orbits": orbits, "stable": stable, "unstable": -stable, "cusp": cusp}
        arrays |= {f"{name} {key}": values for key, values in found.items()}
        mass, turning = p["mass"], p["inertia"] + p["mass"] * (p["a"] ** 2 + b**2)
        theta, one = orbits[..., 0], orbits[..., 1]
        integral = mass * theta**2 + 2 * b * mass * theta * one + turning * one**2
        change = float((np.ptp(integral, axis=1) / integral.mean(axis=1)).max())
        gap = float(np.linalg.norm(orbits[1::2, -1] - stable, axis=1).max())
        residual = float(np.abs(mass * b * cusp[0] + turning * cusp[1]))
        rows.append((f"({name}) b = {b:g}", change, gap, residual))
    columns = ("panel", "largest relative change of (5.5)", "distance of ends from equilibria", "cusp line, residual")
    return Data(columns, rows, arrays)


CUSP_RATE = 1.2
END_TIME = 5.0
FINE_STEP = 0.002


def blade(b: float) -> np.ndarray:
    """Poses (k, 3, 3) of the blade through a cusp at t = 0, from -END_TIME to END_TIME, by Runge-Kutta both ways."""
    _, system = sleigh_of(CENTRE, b)
    state = system.state(xi=[CUSP_RATE, 0.0, 0.0])
    halves = []
    for step in (-FINE_STEP, FINE_STEP):
        run = simulate_uninterrupted(
            system, RungeKutta(), state, step=step, t_end=np.sign(step) * END_TIME, save_every=10
        ).check()
        halves.append(np.asarray(run.g))
    return np.concatenate([halves[0][:0:-1], halves[1]])


def draw_blades(data: Data) -> Figure:
    figure, axes = sheet(1, 2, size=(10.0, 4.6))
    for panel, (name, b) in zip(axes, PANELS.items(), strict=True):
        pose = data[name]
        panel.plot(pose[:, 0, 2], pose[:, 1, 2], color=COLOURS[0])
        headings(panel, pose, COLOURS[1], 15)
        panel.plot(0, 0, "o", color="black", markersize=4, label="cusp")
        panel.set_aspect("equal", adjustable="datalim")
        panel.set(title=f"({name}) a = 1, b = {b:g}", xlabel="x", ylabel="y")
    axes[0].legend()
    return figure


@gallery(
    "figure-5.3",
    "Generic trajectories of the blade",
    draw=draw_blades,
    printed="""The path of the contact point for (a) b ≠ 0 and (b) b = 0: a curve with one cusp, straight in both
    limits.""",
    differs=f"""{NUMBERS}; here those of Figure 5.2, from the cusp v1 = 0 with w = 1.2 both ways, strokes along the
    blade. The speed of the contact point vanishes at the cusp. For every motion and every b the sleigh turns by (π/a)
    sqrt((J + m a²)/m) from t = -∞ to ∞.""",
)
def blades() -> Data:
    arrays: dict[str, np.ndarray] = {}
    rows: list[tuple[object, ...]] = []
    for name, b in PANELS.items():
        pose = blade(b)
        arrays[name] = pose
        angle = np.unwrap(np.arctan2(pose[:, 1, 0], pose[:, 0, 0]))
        p, _ = sleigh_of(CENTRE, b)
        total = total_turning(p["mass"], p["inertia"], p["a"])
        rows.append((f"({name}) b = {b:g}", float(angle[-1] - angle[0]), total))
    return Data(("panel", "turning from t = -5 to 5", "from -∞ to ∞"), rows, arrays)


LABELS = ("$M_1$", "$M_2$", "$M_3$")
SAME_BODY = f"{NUMBERS}; here it is that of Figure 4.1, and momenta are h M, as in the paper"


def momenta(q: np.ndarray) -> np.ndarray:
    """h M at points (..., 2) = (q1, q2) of the upper hemisphere: rotations with Cayley coordinates x = 2 q/q0."""
    q0 = np.sqrt(np.maximum(1 - np.sum(q**2, axis=-1, keepdims=True), 1e-16))
    return momentum_surface(body(), SCHEME, 1.0, 2 * q / q0)


def ring(low: float, high: float, radii: int = 61, angles: int = 181) -> np.ndarray:
    """(q1, q2) with q0 between `low` and `high`, polar; shape (radii, angles, 2)."""
    half = np.linspace(np.arccos(high), np.arccos(low), radii)
    around = np.linspace(0, 2 * np.pi, angles)
    return np.asarray(np.sin(half)[:, None, None] * np.stack([np.cos(around), np.sin(around)], -1))


def _draw_momentum_surface(data: Data, view: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = space(figure, labels=LABELS, elev=view[0], azim=view[1])
    draw_surfaces(axes, [Patch(data["surface"], alpha=0.85)], lines=24)
    return figure


def _largest_momenta(points: np.ndarray) -> Data:
    rows = [(f"largest |h M{i + 1}|", float(np.abs(points[..., i]).max())) for i in range(3)]
    return Data(("", "value"), rows, {"surface": points})


@gallery(
    "figure-6.1",
    "The momentum surface U",
    draw=lambda data: _draw_momentum_surface(data, (12, -120)),
    printed="""The surface U in R^3 = (M1, M2, M3) on which discrete momenta lie, for an unbalanced inertia tensor:
    a Steiner surface with pinch points and self-intersections.""",
    differs=f"""{SAME_BODY}. The surface is F l_d at all rotations about axes in d, from the definition; (6.12)
    agrees with it.""",
)
def suslov_surface() -> Data:
    return _largest_momenta(momenta(ring(0.0, 1.0, 91, 181)))


@gallery(
    "figure-6.2",
    "A circular section of the momentum surface",
    draw=lambda data: _draw_momentum_surface(data, (14, -112)),
    printed="""The part of U with 0.4 ≤ q0 ≤ 0.8.""",
    differs=f"""{SAME_BODY}. q0 is the cosine of half the angle of rotation.""",
)
def section() -> Data:
    return _largest_momenta(momenta(ring(0.4, 0.8)))


@lru_cache
def critical_set() -> tuple[CriticalPoint, ...]:
    return tuple(point for point in critical_points(body(), SCHEME, starts=30) if point.value > 1e-12)


def separatrix() -> float:
    """h*: the energy at the saddles between the ovals about the origin and those near the equator."""
    inner = [point.value for point in critical_set() if point.index == 1 and projective(point.coordinates)[2] > 0.01]
    return min(inner)


def line_of_equilibria() -> np.ndarray:
    """The unit vector (q1, q2) of the stable half of P."""
    return np.asarray(equilibrium_line(body(), SCHEME)[:2])


def draw_curves(data: Data) -> Figure:
    figure, axes = sheet(size=(6.0, 5.6))
    around = np.linspace(0, 2 * np.pi, 361)  # RP^2 is the upper hemisphere seen from above
    axes.plot(np.cos(around), np.sin(around), color=GREY, linewidth=0.8, linestyle="--")
    axes.set(xlabel="$q_1$", ylabel="$q_2$", aspect="equal")
    grid = data["q1"], data["q2"], data["energy"]
    axes.contour(*grid, levels=np.sort(data["levels"]), colors=COLOURS[0], linewidths=0.8)
    axes.contour(*grid, levels=data["separatrix"], colors=COLOURS[1], linewidths=1.5)
    along = data["line"]
    axes.plot(*np.stack([-along, along]).T, color="black", linewidth=1.2, label="equilibria P")
    axes.plot([], [], color=COLOURS[1], linewidth=1.5, label="separatrix $h^*$")
    axes.plot(*data["saddles"].T, "x", color=COLOURS[1], label="saddles")
    axes.plot(*data["centres"].T, "+", color=COLOURS[2], markersize=7, label="centres")
    axes.legend(loc="upper left", bbox_to_anchor=(0.98, 1.0))
    return figure


@gallery(
    "figure-6.3",
    "Invariant curves and the line of equilibria on RP²",
    draw=draw_curves,
    printed="""The hemisphere q0 ≥ 0 seen from above: ovals about the origin, ovals near the equator, the separatrix
    h = h* with two saddles between them, two centres at h**, and the segment of equilibria.""",
    differs=f"""{SAME_BODY}. Curves are the levels of the energy of F l_d, which is (6.18) up to a factor. The
    dashed circle is the equator, opposite points of which are one. "Saddles are never stationary" fails only when I11 =
    I22 (docs/errata.md).""",
)
def invariant_curves() -> Data:
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


def draw_dynamics(data: Data) -> Figure:
    figure, axes = sheet(size=(6.2, 5.6))
    reach = 1.12 * np.nanmax(np.abs(np.concatenate([data[name] for name in data.arrays if name.startswith("orbit")])))
    along = data["line"]
    axes.plot(*(1.2 * reach * np.stack([-along, along])).T, color=GREY, linewidth=0.8)
    grid = data["q1"], data["q2"], data["energy"]
    axes.contour(*grid, levels=np.sort(data["levels"]), colors=COLOURS[5], linewidths=0.6)
    for name in (name for name in data.arrays if name.startswith("orbit")):
        orbit = data[name]
        axes.plot(*orbit.T, ".", color=COLOURS[0], markersize=4)
        middle = len(orbit) // 2
        arrow(axes, orbit[middle - 2 : middle + 3], COLOURS[0])
    equilibria(axes, data["stable"], stable=True, label="stable")
    equilibria(axes, -data["stable"], stable=False, label="unstable")
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="$q_1$", ylabel="$q_2$")
    axes.legend(loc="upper right")
    return figure


@gallery(
    "figure-6.4",
    "Discrete dynamics near the origin of RP²",
    draw=draw_dynamics,
    printed="""Points of the map on the ovals about the origin of Figure 6.3: from unstable equilibria (circles) to
    stable ones (dots) on the line P, in one half plane each.""",
    differs=f"""{SAME_BODY}. The stable half of P is the one in Θ+, not in Θ- as Theorem 6.3 has it
    (docs/errata.md); opposite limits are mutually inverse rotations.""",
)
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


SLEIGH_INERTIA = 1.5
SLEIGH_MASS = OFFSET = 1.0
EXTENT = 6.0


def draw_sleigh_surface(data: Data) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 5.6), layout="constrained")
    axes = space(figure, labels=(r"$p_\theta$", r"$\hat p_1$", r"$z = \sin\Delta\theta$"), elev=28, azim=-60)
    draw_surfaces(axes, [Patch(data[name], alpha=0.9) for name in ("right", "left")])
    axes.set(xlim=(-EXTENT, EXTENT), ylim=(-EXTENT, EXTENT))
    return figure


def ruled(angles: np.ndarray, lines: int = 121) -> np.ndarray:
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


@gallery(
    "figure-7.2",
    "The surface Ũ of the sleigh's momenta, J = 1.5",
    draw=draw_sleigh_surface,
    printed="""The surface Ũ in (p_theta, p1^, z = sin Δθ), p1^ = a p1 + 2 m a², for b = 0 and J = 1.5: a cubic
    between the planes z = ±1, one sheet but for a triangular domain over which there are three.""",
    differs="""The same surface, drawn from the discrete Legendre map over the turning angle and p1^ (it is ruled);
    its points satisfy the cubic (7.16). The "four inverse images" of a generic (p_theta, p1) are three, and item (2) of
    Lemma 7.2 fails inside the triangle (docs/errata.md).""",
)
def sleigh_surface() -> Data:
    turn = np.linspace(1e-6, np.pi * (1 - 1e-4), 181)
    parts = {"right": ruled(turn), "left": ruled(-turn)}
    near = np.concatenate([part.reshape(-1, 3) for part in parts.values()])
    p, hat, z = near.T
    a, b, c, d = cubic(p, hat)
    residual = float(np.abs(a * z**3 + b * z**2 + c * z + d).max())
    rows = [("largest residual of (7.16)", residual), ("largest |z|", float(np.abs(near[:, 2]).max()))]
    rows += [
        (f"real z over (p_theta, p1^) = ({p:g}, {q:g})", sheets(p, q))
        for p, q in ((0.0, -1.5), (0.0, 2.0), (3.0, -3.0))
    ]
    return Data(("", "value"), rows, parts)


def sheets(p: float, hat: float) -> int:
    """The number of real roots z in [-1, 1] of the cubic (7.16) of fedorov-zenkov."""
    roots = np.roots(cubic(p, hat))
    real = roots[np.abs(roots.imag) < 1e-9].real
    return int(np.sum(np.abs(real) <= 1 + 1e-12))


STEP, STEPS = 0.4, 60
VELOCITY = (0.5, -1.0, 0.0)


def draw_path(data: Data) -> Figure:
    figure, axes = sheet(size=(6.6, 5.0))
    axes.plot(*data["flow"].T, color=COLOURS[6], linewidth=0.9, label="continuous")
    axes.plot(*data["discrete"].T, "o", color=COLOURS[0], markersize=3.5, label=f"discrete, h = {STEP:g}")
    axes.plot(*data["discrete"][0], "o", color=COLOURS[1], markersize=6, label="start")
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xlabel="x", ylabel="y")
    axes.legend()
    return figure


@gallery(
    "figure-7.3",
    "A discrete trajectory of the sleigh",
    draw=draw_path,
    printed="""The contact points of a discrete sleigh with b = 0 beside the continuous trajectory with its
    cusp.""",
    differs=f"""{NUMBERS}; here m = J = 1, a = 0.3, w = 0.5, v1 = -1, h = 0.4. Both turn back in a cusp; the
    discrete motion keeps the constrained energy (7.21) to round-off.""",
)
def path() -> Data:
    parameters, system = sleigh_of(0.3, 0.0)
    state = system.state(xi=list(VELOCITY))
    run = simulate_uninterrupted(system, SCHEME, state, step=STEP, steps=STEPS).check()
    flow = simulate_uninterrupted(system, RungeKutta(), state, step=STEP / 100, steps=100 * STEPS, save_every=5).check()
    gap = np.linalg.norm(np.asarray(run.g)[:, :2, 2] - np.asarray(flow.g)[::20, :2, 2], axis=1)
    rows = [
        ("largest error of the energy", float(np.abs(np.asarray(run.energy_error())).max())),
        ("largest distance of the paths", float(gap.max())),
        ("angle turned, discrete", float(run.angles[-1, 0])),
        ("angle turned, continuous", float(flow.angles[-1, 0])),
        ("from k = -∞ to ∞, discrete", discrete_total_turning(system, SCHEME, state.momentum, STEP)),
        ("from t = -∞ to ∞, continuous", total_turning(parameters["mass"], parameters["inertia"], parameters["a"])),
    ]
    return Data(("", "value"), rows, {"flow": np.asarray(flow.g)[:, :2, 2], "discrete": np.asarray(run.g)[:, :2, 2]})
