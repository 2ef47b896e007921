"""Figures of runs: the motion beside what it conserves, methods compared, and a run in a notebook."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..errors import InvalidInput
from ..groups import quaternions
from ..mechanics import MechanismSystem, html_table, unforced
from ..numerics import MIN_SAMPLES, classify
from ..simulation import Run, energy_conservation
from .style import COLOURS, DASHES, LIGHT, STROKES, curve, legend_below, save, sheet, space, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Array = np.ndarray[Any, Any]
MAX_SPHERE_STATES = 300
"""States of a run whose trace is drawn on the sphere."""
MAX_PICTURE_STATES = 20_000
"""States up to which a trajectory is drawn beside its table in a notebook."""


def draw_motion(figure: Figure, cell: Any, runs: Mapping[str, Run]) -> None:
    """The motion as its group shows it best: a path in the plane, a trace on the sphere, or coordinates over time."""
    first = {label: np.asarray(jax.tree.leaves(run.g)[0]) for label, run in runs.items()}
    system = unforced(next(iter(runs.values())).system)
    picture = system.group.factors[0].picture
    if isinstance(system, MechanismSystem) and any(name.startswith("speed") for name in system.rate_names):
        _draw_path(figure.add_subplot(cell), system, runs)
        return
    if picture == "attitude":
        axes = _draw_on_sphere(figure, cell, {label: part[:MAX_SPHERE_STATES, :, 2] for label, part in first.items()})
        axes.set_title("The body's third axis in space")
        return
    axes = figure.add_subplot(cell)
    for (label, part), own, dash in zip(first.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        if picture == "plane":
            axes.plot(part[:, 0, 2], part[:, 1, 2], linestyle=dash, color=own, label=label)
            if dash == "-":
                headings(axes, part, own)
            continue
        vector, run = part.ndim <= 2, runs[label]
        columns = (part if vector else np.asarray(run.xi)).T
        for i, (column, colour) in enumerate(zip(columns, cycle(COLOURS), strict=False)):
            axes.plot(np.asarray(run.t), column, linestyle=dash, color=colour, label=f"{label} {i + 1}")
        axes.set(title="Coordinates" if vector else "Velocity", xlabel="time", ylabel="q" if vector else "xi")
    if picture == "plane":
        axes.set_aspect("equal", adjustable="datalim")
        axes.set(title="Path of the contact point, with headings", xlabel="x", ylabel="y")
    legend_below(axes)


def _draw_path(axes: Axes, system: MechanismSystem, runs: Mapping[str, Run]) -> None:
    """The path of a mechanism, seen from above."""
    body = next(k for k, joint in enumerate(system.parts.joints) if joint.kind in ("free", "planar"))
    x, y = system.parts.joints[body].names[:2]
    for (label, run), colour, dash in zip(runs.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        found = system.coordinates(run.g)
        axes.plot(found[x], found[y], linestyle=dash, color=colour, label=label)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(title=f"Path of the {system.parts.bodies[body]}, from above", xlabel=f"{x}, m", ylabel=f"{y}, m")
    legend_below(axes)


def _draw_shape(axes: Axes, system: MechanismSystem, runs: Mapping[str, Run]) -> None:
    """The coordinates of a mechanism that show how it is bent."""
    for (label, run), dash in zip(runs.items(), cycle(DASHES), strict=False):
        found = system.coordinates(run.g)
        for name, colour in zip(system.shape_names, cycle(COLOURS), strict=False):
            words = f"{name}, {system.units[name]}" if len(runs) == 1 else f"{label}: {name}, {system.units[name]}"
            axes.plot(np.asarray(run.t), found[name], linestyle=dash, color=colour, label=words)


@styled
def plot_named(
    t: Any, values: Mapping[str, Any], units: Mapping[str, str], *, title: str = "", path: str | Path | None = None
) -> Figure:
    """Quantities over time by their names, those of one unit in one panel."""
    kinds = list(dict.fromkeys(units[name] for name in values))
    figure, panels = sheet(len(kinds), 1, size=(7.2, 0.8 + 2.1 * len(kinds)), sharex=True, squeeze=False)
    for axes, kind in zip(panels[:, 0], kinds, strict=True):
        own = [name for name in values if units[name] == kind]
        for name, (colour, dash) in zip(own, cycle(STROKES), strict=False):
            axes.plot(np.asarray(t), values[name], color=colour, linestyle=dash, label=name)
        axes.set(ylabel=kind.replace(" s-1", "/s"))
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    panels[-1, 0].set(xlabel="time, s")
    return save(figure, path, title)


@styled
def plot_controlled(
    motions: Mapping[str, Any], controls: Mapping[str, Array], inputs: Any, path: str | Path | None = None
) -> Figure:
    """Motions (with `system`, `t`, `g` and `xi`) beside their controls (steps, inputs), held during the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    grid = figure.add_gridspec(len(inputs), 2, width_ratios=(1.15, 1.0))
    draw_motion(figure, grid[:, 0], motions)
    shared = None
    for k, one in enumerate(inputs):
        shared = axes = figure.add_subplot(grid[k, 1], sharex=shared)
        for (label, rows), (colour, dash) in zip(controls.items(), cycle(STROKES), strict=False):
            t = np.asarray(motions[label].t)
            axes.stairs(rows[:, k], t, baseline=None, color=colour, linestyle=dash, linewidth=1.3, label=label)
        for side in (one.low, one.high):
            if np.isfinite(side):
                axes.axhline(side, color=LIGHT, linewidth=1.0, linestyle="--")
        axes.set(ylabel=f"{one.name}, {one.unit}" if one.unit else one.name)
        axes.tick_params(labelbottom=k == len(inputs) - 1)
    axes.set(xlabel="time, s")
    return save(figure, path, "")


def headings(axes: Axes, pose: Array, colour: str, count: int = 25) -> None:
    """Short strokes along the blade at some of the poses (k, 3, 3) of a path in the plane."""
    for k in np.unique(np.linspace(0, len(pose) - 1, count).astype(int)):
        stroke = 0.015 * np.ptp(pose[:, :2, 2]) * pose[k, :2, 0]
        ends = np.stack([pose[k, :2, 2] - stroke, pose[k, :2, 2] + stroke], axis=1)
        axes.plot(*ends, color=colour, linewidth=2.5, solid_capstyle="round")


def _draw_on_sphere(figure: Figure, cell: Any, curves: Mapping[str, Array], columns: int = 2) -> Any:
    """Curves (k, 3) on the unit sphere, a light wire frame, with a dot where each begins."""
    axes = space(figure, cell)
    u, v = np.mgrid[0 : 2 * np.pi : 33j, 0 : np.pi : 17j]
    axes.plot_wireframe(np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v), color=LIGHT, linewidth=0.35)
    axes.set_box_aspect((1, 1, 1), zoom=1.2)
    axes.set_axis_off()
    for (label, points), colour, dash in zip(curves.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        axes.plot(*points.T, linestyle=dash, color=colour, label=label, linewidth=1.0)
        axes.plot(*points[:1].T, "o", color=colour, markersize=4)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=columns)
    return axes


@styled
def plot_attitude(trajectory: Run, path: str | Path | None = None) -> Figure:
    """The three body axes on the unit sphere, and the attitude quaternion over time, of a run on SO(3)."""
    from matplotlib.figure import Figure

    attitude = np.asarray(jax.tree.leaves(trajectory.g)[0])
    if attitude.shape[1:] != (3, 3) or trajectory.system.group.factors[0].picture != "attitude":
        raise InvalidInput(f"an attitude is an element of SO(3); this run is on {trajectory.system.group}")
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=(1, 1.2))
    _draw_on_sphere(figure, grid[0], {f"R e{i + 1}": attitude[:, :, i] for i in range(3)}, 3)
    parts = figure.add_subplot(grid[1])
    for i, (values, colour, dash) in enumerate(zip(quaternions(attitude).T, COLOURS, DASHES, strict=False)):
        parts.plot(np.asarray(trajectory.t), values, linestyle=dash, color=colour, label=f"q{i}")
    parts.set(xlabel="time", ylabel="quaternion")
    legend_below(parts, 4)
    return save(figure, path, "Attitude")


def plot_trajectory(trajectory: Run, path: str | Path | None = None) -> Figure:
    """The motion, the velocity and the conservation of one run; saved if a path is given."""
    system = unforced(trajectory.system)
    title = f"{system.parts.name} on {system.group}" if isinstance(system, MechanismSystem) else str(system.group)
    return plot_comparison({trajectory.integrator.name: trajectory}, title=title, path=path)


@styled
def plot_comparison(runs: Mapping[str, Run], *, title: str = "", path: str | Path | None = None) -> Figure:
    """Several runs of one system side by side: the motion, |E - E(0)|, |A xi - b| and the distance from the group.

    Where power enters, the work is taken from E - E(0), and both are drawn; so are controls, and step sizes that vary.
    """
    from matplotlib.figure import Figure

    balances = {label: energy_conservation(run) for label, run in runs.items()}
    held = next((run for run in runs.values() if run.controls is not None and run.system.inputs), None)
    extra = ["sizes"] * any(run.integrator.variable_step for run in runs.values())
    extra += ["power"] * any(len(each.work) for each in balances.values()) + ["controls"] * (held is not None)
    shaped = unforced(next(iter(runs.values())).system)
    bent = isinstance(shaped, MechanismSystem) and bool(shaped.shape_names)
    extra = ["shape"] * bent + extra
    rows = 1 + -(-len(extra) // 3)
    figure = Figure(figsize=(12, 4.4 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 3, width_ratios=(1.15, 1, 1))
    draw_motion(figure, grid[0, 0], runs)
    energy, residual = (figure.add_subplot(grid[0, k]) for k in (1, 2))
    more = {name: figure.add_subplot(grid[1 + k // 3, k % 3]) for k, name in enumerate(extra)}
    if isinstance(shaped, MechanismSystem) and bent:
        _draw_shape(more["shape"], shaped, runs)
    for (label, run), colour in zip(runs.items(), cycle(COLOURS), strict=False):
        shown = balances[label]
        curve(energy, run.t, shown.values, label=label, color=colour)
        curve(residual, run.t, run.group_distance(), label=f"{label}: group", color=colour)
        if run.multipliers.shape[-1]:
            curve(residual, run.t, run.constraint_residual(), label=f"{label}: constraint", color=colour, linestyle=":")
        if "sizes" in more:  # |h| of the step that led to each saved state
            curve(more["sizes"], run.t, run.step_sizes, label=label, color=colour)
        if len(shown.work):
            more["power"].plot(np.asarray(run.t), shown.power, color=colour, linestyle=":", label=f"{label}: power, W")
            more["power"].plot(np.asarray(run.t), shown.work, color=colour, label=f"{label}: work, J")
    _label_axes(energy, shown.title, shown.label)
    _label_axes(residual, "Distance from the group and from D", "|g - G|, |A xi - b|")
    if held is not None:
        for column, each, colour in zip(held.controls_at_states().T, held.system.inputs or (), COLOURS, strict=False):
            label = f"{each.name}, {each.unit}" if each.unit else each.name
            more["controls"].step(np.asarray(held.t), column, where="post", color=colour, label=label)
    titles = {"sizes": ("Step sizes", "|h|"), "power": ("Power and work", "P, W"), "controls": ("Controls", "u")}
    titles["shape"] = ("Shape", "angles and travels")
    for name, axes in more.items():
        _label_axes(axes, *titles[name])
    if isinstance(shaped, MechanismSystem):
        for axes in (energy, residual, *more.values()):
            axes.set(xlabel="time, s")
    return save(figure, path, title)


@styled
def plot_invariants(t: Any, errors: Mapping[str, Any], *, title: str = "", path: str | Path | None = None) -> Figure:
    """|errors| of invariants over time on a logarithmic axis, each named with the kind of its drift."""
    figure, axes = sheet(size=(6.8, 4.2))
    draw_invariants(axes, t, errors)
    return save(figure, path, title)


def draw_invariants(axes: Axes, t: Any, errors: Mapping[str, Any]) -> None:
    """The curves of `plot_invariants` on given axes."""
    for (name, values), colour, dash in zip(errors.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        kind = classify(t, values).kind if len(np.asarray(t)) >= MIN_SAMPLES else "too short to tell"
        curve(axes, t, values, label=f"{name}: {kind}", color=colour, linestyle=dash, linewidth=0.9)
    _label_axes(axes, "", "|error|")


def _label_axes(axes: Axes, title: str, label: str) -> None:
    axes.set(title=title, xlabel="time", ylabel=label)
    legend_below(axes)


@styled
def plot_methods(comparison: Any, *, title: str = "", path: str | Path | None = None) -> Figure:
    """Energy error, constraint residual, distance from the group and error over time, and nanoseconds a step."""
    figure, ((energy, constraint, group), (error, cost, names)) = sheet(2, 3, size=(12.0, 6.6))
    styles = list(zip(comparison.runs.items(), cycle(STROKES), strict=False))
    for (label, run), (colour, dash) in styles:
        style = {"color": colour, "linestyle": dash, "label": label}
        balance = comparison.balances.get(label) or energy_conservation(run)
        curve(energy, run.t, balance.values, **style)
        curve(group, run.t, run.group_distance(), **style)
        if run.multipliers.shape[-1]:
            curve(constraint, run.t, run.constraint_residual(), **style)
        if label in comparison.errors:
            gaps = comparison.errors[label]
            curve(error, np.asarray(run.t)[: len(gaps)], gaps, **style)
    for axes, heading, unit in (
        (energy, balance.title, balance.label),
        (constraint, "Constraint residual", "|A xi - b|"),
        (group, "Distance from the group", "|R^T R - 1|"),
        (error, "Error in configuration and velocity", "distance from DOP853 at 1e-13"),
    ):
        axes.set(title=heading, xlabel="time", ylabel=unit)
        if not axes.lines:
            axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes, color="#888888")
            axes.set(xticks=[], yticks=[])
    rows = [row for row in comparison.rows if row.energy is not None]
    colours = [colour for _, (colour, _) in styles][: len(rows)]  # in the order of the legend
    cost.barh(range(len(rows)), [row.nanoseconds or 0.0 for row in rows], color=colours, height=0.6)
    cost.set(title="Time of a step", xlabel="nanoseconds", yticks=[])
    cost.invert_yaxis()
    names.set_axis_off()
    names.legend(*energy.get_legend_handles_labels(), loc="center left", fontsize=9)
    return save(figure, path, title)


def trajectory_html(run: Run) -> str:
    """What ran and how it went, with a picture of a single run."""
    many, times = bool(np.ndim(run.final.status)), np.ravel(run.t)
    failed = int(np.count_nonzero(np.asarray(run.final.status)))
    members = f" of each of {np.size(run.final.status)} members" if many else ""
    problem = f"{failed} members failed" if many else f"failed after step {run.failed_at}: {run.reason}"
    rows: dict[str, Any] = {"group": run.system.group, "method": run.integrator, "step": f"{float(run.step):g}"}
    rows |= {"states": f"{np.shape(run.t)[-1]}{members}", "time": f"{float(times[0]):g} to {float(times[-1]):g}"}
    rows |= {"status": problem if failed else "ok"}
    if many or (failed and run.failed_at == -1):
        return html_table("Trajectory", rows)
    summary = run.summary()
    rows |= {
        f"largest {summary.energy_title.lower()}": summary.energy_defect,
        "energy that entered (work)": summary.work,
        "largest power": summary.power,
        "largest constraint residual": summary.constraint,
        "largest |phi|": summary.holonomic,
        "largest distance from the group": summary.group,
    }
    known = {name: value for name, value in rows.items() if value is not None}
    rows = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in known.items()}
    if not 1 < len(run.t) <= MAX_PICTURE_STATES:
        return html_table("Trajectory", rows)
    png = io.BytesIO()
    plot_trajectory(run).savefig(png, format="png", dpi=70)
    data = base64.b64encode(png.getvalue()).decode()
    return html_table("Trajectory", rows) + f'<img alt="motion and conservation" src="data:image/png;base64,{data}">'
