"""Figures 7.7 and 7.8: the motion at large steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...models.rigid_body import exact
from ...plotting.style import COLOURS, DASHES, sheet, styled
from ..exhibit import Data
from .setup import END, INERTIA, INPUTS, START, body, energy, gallery, momenta

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SHOWN = ("LP2", "IMR", "DMV4", "DMV6")


@styled
def draw_motions(data: Data) -> Figure:
    figure, axes = sheet(len(SHOWN), 1, size=(7.4, 7.6), sharex=True, sharey=True)
    for panel, name in zip(axes, SHOWN, strict=True):
        for i in range(3):
            panel.plot(data["t"], data["exact"][:, i], color=COLOURS[i], linewidth=0.8, alpha=0.6)
            style = {"color": COLOURS[i], "linestyle": DASHES[i], "label": f"$m_{i + 1}$"}
            panel.plot(data["nodes"], data[name][:, i], marker="osD"[i], markersize=3, **style)
        panel.set_ylabel(name)
        panel.set_ylim(-1.15, 1.15)
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, title="markers: method, thin lines: exact")
    axes[-1].set_xlabel("t")
    return figure


def motions(step: float) -> Data:
    """The momenta of the methods at one step beside the exact motion."""
    steps = int(END / step)
    nodes, t = step * np.arange(steps + 1), np.linspace(0, END, 1501)
    truth, there = exact(INERTIA, START, t).momentum, exact(INERTIA, START, nodes).momentum
    arrays = {"t": t, "exact": truth, "nodes": nodes}
    rows = []
    for name in SHOWN:
        found = momenta(name, step, steps)
        found = np.concatenate([found, np.full((steps + 1 - len(found), 3), np.nan)])
        arrays[name] = found
        size, level = np.linalg.norm(found, axis=1), energy(found)
        gaps = (np.linalg.norm(found - there, axis=1), size - 1, level / energy(START) - 1)
        rows.append((name, *(float(np.abs(gap).max()) for gap in gaps), effective(name, step)))
    columns = ("method", "largest error of m", "of |m|", "of H, relative", "speed of the motion")
    return Data(columns, rows, arrays)


def effective(name: str, step: float) -> float | None:
    """Over what time of the exact flow a step of a Moser-Veselov method goes, divided by h; None for the others."""
    if not name.startswith("DMV"):
        return None
    from scipy.optimize import minimize_scalar

    system = body()
    one = momenta(name, step, 1)[-1]
    distance = lambda s: np.linalg.norm(exact(system.inertia, START, s).momentum - one)
    grid = np.linspace(0, 2 * step, 400)
    near = grid[np.argmin([distance(s) for s in grid])]
    found = minimize_scalar(
        distance, bounds=(max(0.0, near - step / 100), near + step / 100), method="bounded", options={"xatol": 1e-12}
    )
    return float(found.x) / step


@gallery(
    "figure-7.7",
    "The motion at a large step, h = 5",
    draw=draw_motions,
    printed="""
    LP2, IMR, DMV4 and DMV6 at h = 5; DMV gives no solution. LP2 loses its shape; DMV4 and DMV6 keep the integrals
    and are much too slow; IMR keeps some form and the integrals.
    """,
    differs=f"""
    The same: DMV4 and DMV6 are exact motions at a slower speed (the last column), LP2 keeps |m| alone. {INPUTS}
    """,
)
def large_step() -> Data:
    return motions(5.0)


@gallery(
    "figure-7.8",
    "The motion at h = 1",
    draw=draw_motions,
    printed="""
    The same methods at h = 1: IMR, DMV4 and DMV6 agree very well with the exact solution.
    """,
    differs=f"""
    The same. {INPUTS}
    """,
)
def moderate_step() -> Data:
    return motions(1.0)
