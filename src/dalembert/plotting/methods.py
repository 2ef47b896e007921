"""A comparison of methods: what each keeps, its error over time, and what a step costs."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..balance import energy_kept
from .style import STROKES, curve, headline, save, sheet, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def plot_methods(comparison: Any, *, title: str = "", path: str | Path | None = None) -> Figure:
    """Energy error, constraint residual, distance from the group and error over time, and nanoseconds a step."""
    figure, ((energy, constraint, group), (error, cost, names)) = sheet(2, 3, size=(12.0, 6.6))
    styles = list(zip(comparison.runs.items(), cycle(STROKES), strict=False))
    for (label, run), (colour, dash) in styles:
        style = {"color": colour, "linestyle": dash, "label": label}
        kept = comparison.balances.get(label) or energy_kept(run)
        curve(energy, run.t, kept.values, **style)
        curve(group, run.t, run.group_distance(), **style)
        if run.multipliers.shape[-1]:
            curve(constraint, run.t, run.constraint_residual(), **style)
        if label in comparison.errors:
            gaps = comparison.errors[label]
            curve(error, np.asarray(run.t)[: len(gaps)], gaps, **style)
    for axes, heading, unit in (
        (energy, kept.title, kept.label),
        (constraint, "Constraint residual", "|A xi - b|"),
        (group, "Distance from the group", "|R^T R - 1|"),
        (error, "Error in configuration and velocity", "distance from DOP853 at 1e-13"),
    ):
        axes.set(title=heading, xlabel="time", ylabel=unit)
        if not axes.lines:
            axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes, color="#888888")
            axes.set(xticks=[], yticks=[])
    _draw_cost(cost, [row for row in comparison.rows if row.energy is not None], [colour for _, (colour, _) in styles])
    names.set_axis_off()
    names.legend(*energy.get_legend_handles_labels(), loc="center left", fontsize=9)
    headline(figure, title)
    return save(figure, path)


def _draw_cost(axes: Any, rows: list[Any], colours: list[str]) -> None:
    """Bars of the time of a step, in the order of the legend."""
    places = range(len(rows))
    axes.barh(places, [row.nanoseconds or 0.0 for row in rows], color=colours[: len(rows)], height=0.6)
    axes.set(title="Time of a step", xlabel="nanoseconds", yticks=[])
    axes.invert_yaxis()
