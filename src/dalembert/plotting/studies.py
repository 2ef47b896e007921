"""Studies of a method: cost against accuracy, phase portraits, and momenta on their locus in space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.slopes import Convergence
from ..records import Crossings
from ..run import Run
from .style import COLOURS, DASHES, FLOOR, GREY, MARKERS, headline, save, sheet, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# -- cost and accuracy ------------------------------------------------------------------------------------------------------
@styled
def plot_work_precision(
    points: Mapping[str, tuple[Any, Any]],
    *,
    cost: str = "processor time, s",
    error: str = "error at the end",
    title: str = "",
    path: str | Path | None = None,
) -> Figure:
    """error against cost, both logarithmic: {method: (costs, errors)}, one marker a run; runs that failed are NaN."""
    figure, axes = sheet(size=(6.2, 4.6))
    draw_lines(axes, points)
    axes.set_xlabel(cost)
    axes.set_ylabel(error)
    axes.legend()
    headline(figure, title)
    return save(figure, path)


def draw_lines(axes: Axes, points: Mapping[str, tuple[Any, Any]]) -> None:
    """Labelled curves (x, y) with markers on logarithmic axes; a gap where y is not finite."""
    for (label, (x, y)), colour, dash, marker in zip(
        points.items(), cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False
    ):
        axes.loglog(np.asarray(x), np.asarray(y), marker=marker, linestyle=dash, color=colour, label=label)


def draw_slope(axes: Axes, x: Sequence[float], y: float, order: int) -> None:
    """A grey guide of slope `order` through (x[0], y), labelled."""
    ends = np.asarray(x, float)
    values = y * (ends / ends[0]) ** order
    axes.loglog(ends, values, color=GREY, linewidth=0.9)
    axes.annotate(
        f"order {order}", (ends[-1], values[-1]), color=GREY, fontsize=8, xytext=(3, 0), textcoords="offset points"
    )


@styled
def plot_convergence(found: Convergence, *, title: str = "", path: str | Path | None = None) -> Figure:
    """The errors of every quantity against the step, with a guide of the measured order, rounded, for each order that occurs."""
    figure, axes = sheet(size=(6.2, 4.6))
    steps = np.abs(found.steps)
    draw_lines(axes, {name: (steps, np.maximum(norms, FLOOR)) for name, norms in found.norms.items()})
    orders = {name: round(order) for name in found.norms if (order := found.order(name)) is not None}
    for order in sorted(set(orders.values()) - {0}):
        largest = max(found.norms[name][-1] for name, p in orders.items() if p == order)
        if np.isfinite(largest):
            draw_slope(axes, steps[[0, -1]], 1.8 * largest * (steps[0] / steps[-1]) ** order, order)
    axes.set_xlabel("step h")
    axes.set_ylabel("error after one step" if found.local else "largest error")
    axes.legend()
    headline(figure, title)
    return save(figure, path)


# -- phase portraits --------------------------------------------------------------------------------------------------------
@styled
def plot_portrait(
    trajectory: Run, components: tuple[int, int] = (0, 1), *, title: str = "", path: str | Path | None = None
) -> Figure:
    """The orbits of a run, or of all members of an ensemble, in the plane of two components of the momentum, with arrows."""
    figure, axes = sheet(size=(5.6, 5.2))
    momenta = np.asarray(trajectory.momentum)[..., list(components)]
    draw_portrait(axes, list(momenta) if momenta.ndim == 3 else [momenta])
    axes.set_xlabel(f"$M_{components[0] + 1}$")
    axes.set_ylabel(f"$M_{components[1] + 1}$")
    headline(figure, title)
    return save(figure, path)


@styled
def plot_section(
    sections: Mapping[str, Crossings],
    coordinates: Sequence[Callable[..., Any]],
    *,
    labels: tuple[str, str] = ("", ""),
    title: str = "",
    path: str | Path | None = None,
) -> Figure:
    """Poincare sections, a dot for each crossing: two `coordinates` (functions of t, g, xi at all crossings) against each other."""
    figure, axes = sheet(size=(5.8, 5.2))
    for (label, found), colour in zip(sections.items(), cycle(COLOURS), strict=False):
        x, y = (np.asarray(coordinate(found.t, found.g, found.xi)) for coordinate in coordinates)
        axes.plot(x, y, ".", markersize=2.4, markeredgewidth=0, color=colour, label=label)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    if len(sections) > 1:
        axes.legend(markerscale=4, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    headline(figure, title)
    return save(figure, path)


def draw_portrait(axes: Axes, orbits: Sequence[np.ndarray], *, arrows: bool = True, colour: str = COLOURS[0]) -> None:
    """Orbits (k, 2) in a plane, each with an arrow in its middle that says which way it runs."""
    for orbit in orbits:
        axes.plot(*np.asarray(orbit).T, color=colour, linewidth=1.0)
        if arrows and len(orbit) > 2:
            arrow(axes, np.asarray(orbit), colour)


def arrow(axes: Axes, orbit: np.ndarray, colour: str) -> None:
    """An arrow head at the middle of the length of an orbit."""
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(orbit, axis=0).T))])
    k = int(np.clip(np.searchsorted(along, along[-1] / 2), 1, len(orbit) - 1))
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 0.8, "mutation_scale": 9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=orbit[k], xytext=orbit[k - 1], arrowprops=style)


def equilibria(axes: Axes, points: np.ndarray, *, stable: bool, colour: str = "#000000", label: str = "") -> None:
    """Filled dots for stable points (k, 2), open ones for unstable points."""
    face = colour if stable else "white"
    axes.plot(*np.asarray(points).T, "o", color=colour, markerfacecolor=face, markersize=4.5, label=label, zorder=5)
