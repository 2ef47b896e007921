"""Runs: the motion beside what it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.drift import LEAST, classify
from ..balance import energy_kept
from ..run import Run
from .motion import draw_motion
from .style import COLOURS, DASHES, curve, headline, legend_below, save, sheet, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_trajectory(trajectory: Run, path: str | Path | None = None) -> Figure:
    """The motion, the velocity and the conservation of one run; saved if a path is given."""
    return plot_comparison({trajectory.integrator.name: trajectory}, title=str(trajectory.system.group), path=path)


@styled
def plot_comparison(runs: Mapping[str, Run], *, title: str = "", path: str | Path | None = None) -> Figure:
    """Several runs of one system side by side: the motion, |E - E(0)|, |A xi - b| and the distance from the group.

    Where power enters, the work is taken from E - E(0) (`balance.energy_kept`). Where a method has steps of several sizes, these too.
    """
    from matplotlib.figure import Figure

    several = any(run.integrator.clock for run in runs.values())
    figure = Figure(figsize=(15.5 if several else 12, 4.4), layout="constrained")
    grid = figure.add_gridspec(1, 4 if several else 3, width_ratios=(1.15, 1, 1, 1)[: 4 if several else 3])
    draw_motion(figure, grid[0], runs)
    energy = figure.add_subplot(grid[1])
    kept = figure.add_subplot(grid[2])
    for (label, run), colour in zip(runs.items(), cycle(COLOURS), strict=False):
        shown = energy_kept(run)
        curve(energy, run.t, shown.values, label=label, color=colour)
        curve(kept, run.t, run.group_distance(), label=f"{label}: group", color=colour)
        if run.multipliers.shape[-1]:
            curve(kept, run.t, run.constraint_residual(), label=f"{label}: constraint", color=colour, linestyle=":")
    _finish(energy, shown.title, shown.label)
    _finish(kept, "Distance from the group and from D", "|g - G|, |A xi - b|")
    if several:
        _draw_step_sizes(figure.add_subplot(grid[3]), runs)
    headline(figure, title)
    return save(figure, path)


def _draw_step_sizes(axes: Axes, runs: Mapping[str, Run]) -> None:
    """|h| of the step that led to each saved state."""
    for (label, run), colour in zip(runs.items(), cycle(COLOURS), strict=False):
        curve(axes, run.t, run.step_sizes, label=label, color=colour)
    _finish(axes, "Step sizes", "|h|")


@styled
def plot_invariants(t: Any, errors: Mapping[str, Any], *, title: str = "", path: str | Path | None = None) -> Figure:
    """|errors| of invariants over time on a logarithmic axis, each named with the kind of its drift (`analysis.drift`)."""
    figure, axes = sheet(size=(6.8, 4.2))
    draw_invariants(axes, t, errors)
    headline(figure, title)
    return save(figure, path)


def draw_invariants(axes: Axes, t: Any, errors: Mapping[str, Any]) -> None:
    """The curves of `plot_invariants` on given axes."""
    for (name, values), colour, dash in zip(errors.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        kind = classify(t, values).kind if len(np.asarray(t)) >= LEAST else "too short to tell"
        curve(axes, t, values, label=f"{name}: {kind}", color=colour, linestyle=dash, linewidth=0.9)
    _finish(axes, "", "|error|")


def _finish(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("time")
    axes.set_ylabel(label)
    legend_below(axes)
