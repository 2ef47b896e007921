"""The motion itself: paths in the plane and on the sphere, attitudes, coordinates over time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..errors import InvalidInput
from ..run import Run
from .style import COLOURS, DASHES, LIGHT, headline, legend_below, save, space, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRACED = 300
HEADINGS = 25


def draw_motion(figure: Figure, cell: Any, runs: Mapping[str, Run]) -> None:
    """The motion as its group shows it best: a path in the plane, a trace on the sphere, or coordinates over time."""
    group = next(iter(runs.values())).system.group
    draw = {"SE(2)": _plane, "SO(3)": _sphere}.get(str(group.factors[0]), _coordinates)
    draw(figure, cell, runs)


def headings(axes: Axes, pose: np.ndarray, colour: str, count: int = HEADINGS) -> None:
    """Short strokes along the blade at some of the poses (k, 3, 3) of a path in the plane."""
    for k in np.unique(np.linspace(0, len(pose) - 1, count).astype(int)):
        stroke = 0.015 * np.ptp(pose[:, :2, 2]) * pose[k, :2, 0]
        ends = np.stack([pose[k, :2, 2] - stroke, pose[k, :2, 2] + stroke], axis=1)
        axes.plot(*ends, color=colour, linewidth=2.5, solid_capstyle="round")


def globe(axes: Any) -> None:
    """The unit sphere as a light wire frame."""
    u, v = np.mgrid[0 : 2 * np.pi : 33j, 0 : np.pi : 17j]
    axes.plot_wireframe(np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v), color=LIGHT, linewidth=0.35)
    axes.set_box_aspect((1, 1, 1), zoom=1.2)
    axes.set_axis_off()


def _plane(figure: Figure, cell: Any, runs: Mapping[str, Run]) -> None:
    axes = figure.add_subplot(cell)
    for (label, run), colour, dash in zip(runs.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        pose = np.asarray(jax.tree.leaves(run.g)[0])
        axes.plot(pose[:, 0, 2], pose[:, 1, 2], linestyle=dash, color=colour, label=label)
        if dash == "-":
            headings(axes, pose, colour)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title("Path of the contact point, with headings")
    axes.set_xlabel("x")
    axes.set_ylabel("y")
    legend_below(axes)


def _sphere(figure: Figure, cell: Any, runs: Mapping[str, Run]) -> None:
    """R e3 on the unit sphere, for the first saved states."""
    axes = space(figure, cell)
    globe(axes)
    for (label, run), colour, dash in zip(runs.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        axis = np.asarray(jax.tree.leaves(run.g)[0])[:TRACED, :, 2]
        axes.plot(*axis.T, linestyle=dash, color=colour, label=label, linewidth=1.0)
        axes.plot(*axis[:1].T, "o", color=colour, markersize=4)
    axes.set_title("The body's third axis in space")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=2)


def _coordinates(figure: Figure, cell: Any, runs: Mapping[str, Run]) -> None:
    axes = figure.add_subplot(cell)
    for style, (label, run) in zip(cycle(DASHES), runs.items(), strict=False):
        vector = np.ndim(jax.tree.leaves(run.g)[0]) <= 2
        values = np.asarray(jax.tree.leaves(run.g)[0] if vector else run.xi)
        for i, colour in zip(range(values.shape[1]), cycle(COLOURS), strict=False):
            axes.plot(np.asarray(run.t), values[:, i], linestyle=style, color=colour, label=f"{label} {i + 1}")
    axes.set_title("Coordinates" if vector else "Velocity")
    axes.set_xlabel("time")
    axes.set_ylabel("q" if vector else "xi")
    legend_below(axes)


@styled
def plot_attitude(trajectory: Run, path: str | Path | None = None) -> Figure:
    """The three body axes on the unit sphere, and the attitude quaternion over time (its sign followed continuously), of a run on SO(3)."""
    from matplotlib.figure import Figure

    attitude = np.asarray(jax.tree.leaves(trajectory.g)[0])
    if attitude.shape[1:] != (3, 3) or str(trajectory.system.group.factors[0]) != "SO(3)":
        raise InvalidInput(f"an attitude is an element of SO(3); this run is on {trajectory.system.group}")
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=(1, 1.2))
    axes = space(figure, grid[0])
    globe(axes)
    for i, colour, dash in zip(range(3), COLOURS, DASHES, strict=False):
        axes.plot(*attitude[:, :, i].T, linestyle=dash, color=colour, label=f"R e{i + 1}", linewidth=1.0)
        axes.plot(*attitude[:1, :, i].T, "o", color=colour, markersize=4)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=3)
    parts = figure.add_subplot(grid[1])
    for i, (values, colour, dash) in enumerate(zip(quaternions(attitude).T, COLOURS, DASHES, strict=False)):
        parts.plot(np.asarray(trajectory.t), values, linestyle=dash, color=colour, label=f"q{i}")
    parts.set_xlabel("time")
    parts.set_ylabel("quaternion")
    legend_below(parts, 4)
    headline(figure, "Attitude")
    return save(figure, path)


def quaternions(attitude: np.ndarray) -> np.ndarray:
    """Unit quaternions (k, 4), scalar first, along a path of rotations (k, 3, 3): the sign that is nearest to the one before."""
    from scipy.spatial.transform import Rotation

    q = np.roll(Rotation.from_matrix(attitude).as_quat(), 1, axis=1)
    turns = np.cumprod(np.where(np.sum(q[1:] * q[:-1], axis=1) < 0, -1.0, 1.0))
    return q * np.concatenate([[1.0], turns])[:, None]
