"""Figures: the motion, and how well energy, constraint and group are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0b6e99", "#d1495b", "#edae49", "#4b7f52", "#7a5195", "#555555")
DASHES = ("-", "--", ":", "-.", "-", "--")
FLOOR = 1e-17
TRACED = 300
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.dpi": 100,
}


def plot_trajectory(trajectory: Trajectory, path: str | Path | None = None) -> Figure:
    """The motion, the velocity and the conservation of one run; saved if a path is given."""
    return plot_comparison({trajectory.integrator.name: trajectory}, title=str(trajectory.system.group), path=path)


def plot_comparison(runs: Mapping[str, Trajectory], *, title: str = "", path: str | Path | None = None) -> Figure:
    """Several runs of one system side by side: the motion, |E - E(0)|, |A xi - b| and the distance from the group."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12, 4.4), layout="constrained")
        grid = figure.add_gridspec(1, 3, width_ratios=(1.15, 1, 1))
        draw_motion(figure, grid[0], runs)
        energy = figure.add_subplot(grid[1])
        kept = figure.add_subplot(grid[2])
        for (label, run), colour in zip(runs.items(), COLOURS, strict=False):
            curve(energy, run.t, run.energy_error(), label=label, color=colour)
            curve(kept, run.t, run.group_distance(), label=f"{label}: group", color=colour)
            if run.multipliers.shape[-1]:
                curve(kept, run.t, run.constraint_residual(), label=f"{label}: constraint", color=colour, linestyle=":")
        _finish(energy, "Energy error |E - E(0)|")
        _finish(kept, "Distance from the group and from D")
        figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def curve(axes: Axes, t: Any, values: Any, **style: Any) -> None:
    """|values| on a logarithmic axis; exact zeros stand on the floor."""
    axes.semilogy(np.asarray(t), np.maximum(np.abs(np.asarray(values)), FLOOR), **style)


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel("time")
    _legend(axes)


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=8, ncols=2)


def draw_motion(figure: Figure, cell: Any, runs: Mapping[str, Trajectory]) -> None:
    """The motion as its group shows it best: a path in the plane, a trace on the sphere, or coordinates over time."""
    group = next(iter(runs.values())).system.group
    draw = {"SE(2)": _plane, "SO(3)": _sphere}.get(str(group.factors[0]), _coordinates)
    draw(figure, cell, runs)


def _plane(figure: Figure, cell: Any, runs: Mapping[str, Trajectory]) -> None:
    axes = figure.add_subplot(cell)
    for (label, run), colour, dash in zip(runs.items(), COLOURS, DASHES, strict=False):
        pose = np.asarray(jax.tree.leaves(run.g)[0])
        axes.plot(pose[:, 0, 2], pose[:, 1, 2], dash, color=colour, label=label)
        if dash != "-":
            continue
        for k in np.unique(np.linspace(0, len(pose) - 1, 25).astype(int)):
            heading = 0.015 * np.ptp(pose[:, :2, 2]) * pose[k, :2, 0]
            axes.plot(
                *np.stack([pose[k, :2, 2] - heading, pose[k, :2, 2] + heading], axis=1),
                color=colour,
                linewidth=2.5,
                solid_capstyle="round",
            )
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title("Path of the contact point, with headings", loc="left")
    axes.set_xlabel("x")
    axes.set_ylabel("y")
    _legend(axes)


def _sphere(figure: Figure, cell: Any, runs: Mapping[str, Trajectory]) -> None:
    """R e3 on the unit sphere, for the first saved states."""
    axes = figure.add_subplot(cell, projection="3d")
    u, v = np.mgrid[0 : 2 * np.pi : 33j, 0 : np.pi : 17j]
    axes.plot_wireframe(np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v), color="#dddddd", linewidth=0.35)
    for (label, run), colour, dash in zip(runs.items(), COLOURS, DASHES, strict=False):
        axis = np.asarray(jax.tree.leaves(run.g)[0])[:TRACED, :, 2]
        axes.plot(*axis.T, dash, color=colour, label=label, linewidth=1.0)
        axes.plot(*axis[:1].T, "o", color=colour, markersize=4)
    axes.set_box_aspect((1, 1, 1), zoom=1.2)
    axes.set_axis_off()
    axes.set_title("The body's third axis in space", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), fontsize=8, ncols=2)


def _coordinates(figure: Figure, cell: Any, runs: Mapping[str, Trajectory]) -> None:
    axes = figure.add_subplot(cell)
    for style, (label, run) in zip(DASHES, runs.items(), strict=False):
        values = np.asarray(run.xi if np.ndim(jax.tree.leaves(run.g)[0]) > 2 else jax.tree.leaves(run.g)[0])
        for i, colour in zip(range(values.shape[1]), COLOURS, strict=False):
            axes.plot(np.asarray(run.t), values[:, i], style, color=colour, label=f"{label} {i + 1}")
    axes.set_title("Coordinates", loc="left")
    axes.set_xlabel("time")
    _legend(axes)
