"""Figures 4.1, 5.2 and 5.3: the continuous Suslov problem and sleigh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...integrators import RungeKutta
from ...models.sleigh import total_turning
from ...models.suslov import exact_momentum
from ...plotting.motion import headings
from ...plotting.studies import draw_portrait, equilibria
from ...plotting.style import COLOURS, GREY, sheet, styled
from ..exhibit import Data
from ..running import simulate
from .setup import INERTIA, NUMBERS, gallery, sleigh_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVELS = (0.25, 0.5, 0.75, 1.0)


def _portrait(axes: Axes, data: Data, key: str = "") -> None:
    """Orbits with arrows, equilibria filled where stable and open where not, on their line."""
    ends = np.stack([data[f"{key}stable"][-1], data[f"{key}unstable"][-1]])
    axes.plot(*(1.15 * ends).T, color=GREY, linewidth=0.7, zorder=1)
    draw_portrait(axes, list(data[f"{key}orbits"]))
    equilibria(axes, data[f"{key}stable"], stable=True, label="stable")
    equilibria(axes, data[f"{key}unstable"], stable=False, label="unstable")
    axes.set_aspect("equal", adjustable="datalim")


# -- the Suslov problem -------------------------------------------------------------------------------------------------------
@styled
def draw_suslov(data: Data) -> Figure:
    figure, axes = sheet(size=(5.6, 5.2))
    _portrait(axes, data)
    axes.set_xlabel("$M_1$")
    axes.set_ylabel("$M_2$")
    axes.legend(loc="upper right")
    return figure


@gallery(
    "figure-4.1",
    "Momentum dynamics of the Suslov problem",
    draw=draw_suslov,
    printed="""
    Arcs of ellipses in the plane of (M1, M2) that lead from unstable (open dots) to stable equilibria (filled
    dots).
    """,
    differs=f"""
    {NUMBERS}; here I = (3, 4, 5; I12 = 0.4, I13 = 1, I23 = 0.5). Orbits are the exact solutions. In (4.3) the
    bracket belongs in front of I^-1 g x w (docs/errata.md); the arcs are those of the integral (4.6), which is right.
    """,
)
def suslov_momenta() -> Data:
    block, column = INERTIA[:2, :2], INERTIA[:2, 2]
    line = block @ np.array([-column[1], column[0]])  # momenta of velocities with I13 w1 + I23 w2 = 0
    energy = lambda M: np.einsum("...i,ij,...j->...", M, np.linalg.inv(block), M) / 2
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


# -- the sleigh ---------------------------------------------------------------------------------------------------------------
PANELS = {"a": 0.4, "b": 0.0}
"""b of the two panels."""
A = 1.0


def sleigh_orbit(b: float, radius: float, side: float, times: np.ndarray) -> np.ndarray:
    """(p_theta, p1) along V = r tanh s, w = r sqrt(m/Jc) sech s, v1 = V + b w (see `exact_sleigh`)."""
    p, system = sleigh_of(A, b)
    about = p["inertia"] + p["mass"] * p["a"] ** 2
    w = side * radius * np.sqrt(p["mass"] / about) / np.cosh(times)
    velocity = np.stack([w, radius * np.tanh(times) + b * w], -1)
    return velocity @ np.asarray(system.inertia)[:2, :2]


@styled
def draw_sleigh_momenta(data: Data) -> Figure:
    figure, axes = sheet(1, 2, size=(9.6, 4.8))
    for panel, (name, b) in zip(axes, PANELS.items(), strict=True):
        _portrait(panel, data, f"{name} ")
        cusp = data[f"{name} cusp"]
        panel.plot(*np.stack([-cusp, cusp]).T, "--", color=COLOURS[1], linewidth=0.9, label="$v_1 = 0$ (cusps)")
        panel.set_title(f"({name}) a = 1, b = {b:g}")
        panel.set_xlabel(r"$p_\theta$")
        panel.set_ylabel("$p_1$")
    axes[0].legend(loc="upper right")
    return figure


@gallery(
    "figure-5.2",
    "Momentum dynamics of the sleigh",
    draw=draw_sleigh_momenta,
    printed="""
    The plane of (p_theta, p1) for (a) a ≠ 0, b ≠ 0 and (b) a ≠ 0, b = 0: arcs of ellipses from unstable equilibria
    in the lower half plane (open dots) to stable ones in the upper (filled dots), on the line p_theta + b p1 = 0.
    """,
    differs=f"""
    {NUMBERS}; here m = J = a = 1, b = 0.4 and 0. The line on which the trajectories of Figure 5.3 have their cusps,
    v1 = 0, is m b p_theta + (J + m(a² + b²)) p1 = 0, with p_theta in place of the second p_1 of the print
    (docs/errata.md).
    """,
)
def sleigh_momenta() -> Data:
    times = np.linspace(-16, 16, 401)
    arrays: dict[str, np.ndarray] = {}
    rows: list[tuple] = []
    for name, b in PANELS.items():
        p, system = sleigh_of(A, b)
        orbits = np.array([sleigh_orbit(b, r, side, times) for r in LEVELS for side in (-1.0, 1.0)])
        stable = np.array([[-b * r * p["mass"], p["mass"] * r] for r in LEVELS])
        cusp = np.array([1.0, 0.0]) @ np.asarray(system.inertia)[:2, :2]
        cusp *= 1.1 * np.abs(orbits).max() / np.abs(cusp).max()
        arrays |= {
            f"{name} orbits": orbits,
            f"{name} stable": stable,
            f"{name} unstable": -stable,
            f"{name} cusp": cusp,
        }
        mass, turning = p["mass"], p["inertia"] + p["mass"] * (p["a"] ** 2 + b**2)
        theta, one = orbits[..., 0], orbits[..., 1]
        integral = mass * theta**2 + 2 * b * mass * theta * one + turning * one**2
        rows.append(
            (
                f"({name}) b = {b:g}",
                float((np.ptp(integral, axis=1) / integral.mean(axis=1)).max()),
                float(np.linalg.norm(orbits[1::2, -1] - stable, axis=1).max()),
                float(np.abs(mass * b * cusp[0] + turning * cusp[1])),
            )
        )
    columns = ("panel", "largest relative change of (5.5)", "distance of ends from equilibria", "cusp line, residual")
    return Data(columns, rows, arrays)


CUSP = 1.2
UNTIL = 5.0
FINE = 0.002


def blade(b: float) -> np.ndarray:
    """Poses (k, 3, 3) of the blade through a cusp at t = 0, from -UNTIL to UNTIL: Runge-Kutta with a step of 0.002, both ways."""
    _, system = sleigh_of(A, b)
    state = system.state(xi=[CUSP, 0.0, 0.0])
    halves = []
    for step in (-FINE, FINE):
        run = simulate(system, RungeKutta(), state, step=step, t_end=np.sign(step) * UNTIL, save_every=10).check()
        halves.append(np.asarray(run.g))
    return np.concatenate([halves[0][:0:-1], halves[1]])


@styled
def draw_blades(data: Data) -> Figure:
    figure, axes = sheet(1, 2, size=(10.0, 4.6))
    for panel, (name, b) in zip(axes, PANELS.items(), strict=True):
        pose = data[name]
        panel.plot(pose[:, 0, 2], pose[:, 1, 2], color=COLOURS[0])
        headings(panel, pose, COLOURS[1], 15)
        panel.plot(0, 0, "o", color="black", markersize=4, label="cusp")
        panel.set_aspect("equal", adjustable="datalim")
        panel.set_title(f"({name}) a = 1, b = {b:g}")
        panel.set_xlabel("x")
        panel.set_ylabel("y")
    axes[0].legend()
    return figure


@gallery(
    "figure-5.3",
    "Generic trajectories of the blade",
    draw=draw_blades,
    printed="""
    The path of the contact point for (a) b ≠ 0 and (b) b = 0: a curve with one cusp, straight in both limits.
    """,
    differs=f"""
    {NUMBERS}; here those of Figure 5.2, from the cusp v1 = 0 with w = 1.2 both ways, strokes along the blade. The
    speed of the contact point vanishes at the cusp. For every motion and every b the sleigh turns by (π/a) sqrt((J
    + m a²)/m) from t = -∞ to ∞.
    """,
)
def blades() -> Data:
    arrays: dict[str, np.ndarray] = {}
    rows: list[tuple] = []
    for name, b in PANELS.items():
        pose = blade(b)
        arrays[name] = pose
        angle = np.unwrap(np.arctan2(pose[:, 1, 0], pose[:, 0, 0]))
        p, _ = sleigh_of(A, b)
        rows.append(
            (f"({name}) b = {b:g}", float(angle[-1] - angle[0]), total_turning(p["mass"], p["inertia"], p["a"]))
        )
    return Data(("panel", "turning from t = -5 to 5", "from -∞ to ∞"), rows, arrays)
