"""Figures of runs: the motion beside what it conserves, methods compared, and a run in a notebook."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..errors import InvalidInput
from ..groups import quaternions
from ..mechanics import MechanismSystem, unforced
from ..numerics import MIN_SAMPLES, classify, html_table
from ..simulation import Run, energy_conservation
from .style import (
    COLOURS,
    DASHES,
    LIGHT,
    STROKES,
    curve,
    label_ends,
    legend_below,
    print_unit,
    save,
    sheet,
    show_zeros,
    space,
    styled,
    typeset,
    unit_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Array = np.ndarray[Any, Any]
TIME = "time $t$, s"
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
        named = system.coordinate_names if vector else tuple(axis.name for axis in system.axes())
        for name, column, colour in zip(named, columns, cycle(COLOURS), strict=False):
            words = unit_label(name, system.units.get(name, ""))
            axes.plot(
                np.asarray(run.t),
                column,
                linestyle=dash,
                color=colour,
                label=words if len(runs) == 1 else f"{label}: {words}",
            )
        axes.set(title="Coordinates" if vector else "Velocity", xlabel=TIME, ylabel="" if named else typeset("xi"))
    if picture == "plane":
        axes.set_aspect("equal", adjustable="datalim")
        names = system.coordinate_names[1:3] if system.coordinate_names[2:] else ("x", "y")
        axes.set(title="Path of the contact point, with headings", xlabel=f"{names[0]}, m", ylabel=f"{names[1]}, m")
    if picture != "plane" or len(runs) > 1:
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
    if len(runs) > 1:
        legend_below(axes)


def _draw_shape(axes: Axes, system: MechanismSystem, runs: Mapping[str, Run]) -> None:
    """The coordinates of a mechanism that show how it is bent."""
    for (label, run), dash in zip(runs.items(), cycle(DASHES), strict=False):
        found = system.coordinates(run.g)
        for name, colour in zip(system.shape_names, cycle(COLOURS), strict=False):
            words = unit_label(name if len(runs) == 1 else f"{label}: {name}", system.units[name])
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
        axes.set(ylabel=unit_label(own[0], kind) if len(own) == 1 else print_unit(kind))
    panels[-1, 0].set(xlabel=TIME)
    figure.draw_without_rendering()
    for axes in panels[:, 0]:
        if len(axes.lines) > 1:
            label_ends(axes, 8.0)
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
        axes.set(ylabel=unit_label(one.name, one.unit))
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
    if len(curves) > 1:
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
    _draw_on_sphere(figure, grid[0], {rf"$R\,e_{i + 1}$": attitude[:, :, i] for i in range(3)}, 3)
    parts = figure.add_subplot(grid[1])
    for i, (values, colour, dash) in enumerate(zip(quaternions(attitude).T, COLOURS, DASHES, strict=False)):
        parts.plot(np.asarray(trajectory.t), values, linestyle=dash, color=colour, label=f"$q_{i}$")
    parts.set(xlabel=TIME, ylabel="quaternion")
    legend_below(parts, 4)
    return save(figure, path, "Attitude")


def plot_trajectory(trajectory: Run, path: str | Path | None = None, *, name: str = "") -> Figure:
    """The motion, the velocity and the conservation of one run, under the name of its system; `path` saves it."""
    title, group = name or trajectory.system.title, typeset(str(trajectory.system.group))
    title = f"Motion on {group}" if title.endswith("System") else f"{title} on {group}"
    title = f"{title}, {trajectory.integrator.name}, h = {float(trajectory.step):g} s"
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
        shown, head = balances[label], f"{label}: " if len(runs) > 1 else ""
        curve(energy, run.t, shown.values, label=label, color=colour)
        curve(residual, run.t, run.group_distance(), label=f"{head}group", color=colour)
        if run.multipliers.shape[-1]:
            curve(residual, run.t, run.constraint_residual(), label=f"{head}constraint", color=colour, linestyle=":")
        if "sizes" in more:  # |h| of the step that led to each saved state
            curve(more["sizes"], run.t, run.step_sizes, label=label, color=colour)
        if len(shown.work):
            more["power"].plot(np.asarray(run.t), shown.power, color=colour, linestyle=":", label=f"{head}power, W")
            more["power"].plot(np.asarray(run.t), shown.work, color=colour, label=f"{head}work, J")
    _label_axes(energy, shown.title, f"{typeset(shown.label)}, J")
    _label_axes(residual, "Distance from the group and from $D$", typeset("|g - G|, |A xi - b|"))
    if held is not None:
        for column, each, colour in zip(held.controls_at_states().T, held.system.inputs or (), COLOURS, strict=False):
            label = unit_label(each.name, each.unit)
            more["controls"].step(np.asarray(held.t), column, where="post", color=colour, label=label)
    titles = {
        "sizes": ("Step sizes", f"{typeset('|h|')}, s"),
        "power": ("Power and work", ""),
        "controls": ("Controls", ""),
    }
    titles["shape"] = ("Shape", "angles and travels")
    for name, axes in more.items():
        _label_axes(axes, *titles[name])
    for axes in (energy, *(more[name] for name in more if name == "sizes")):
        if len(runs) == 1 and (legend := axes.get_legend()):
            legend.remove()  # the title has the method
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
    axes.set(title=title, xlabel=TIME, ylabel=label)
    legend_below(axes)


@styled
def plot_methods(comparison: Any, *, title: str = "", path: str | Path | None = None) -> Figure:
    """Error, energy, constraint and distance from the group over time, and the error against the time of a step.

    Every curve and every point has the name of its method beside it.
    """
    figure, panels = sheet(3, 2, size=(11.0, 12.0))
    error, energy, constraint, group, cost, lost = panels.ravel()
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
        (error, "Error in configuration and velocity", "distance from DOP853 at $10^{-13}$"),
    ):
        axes.set(title=heading, xlabel=TIME, ylabel=typeset(unit))
        if not axes.lines:
            axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes, color="#888888")
            axes.set(xticks=[], yticks=[])
            continue
        show_zeros(axes)
    figure.draw_without_rendering()  # the places of labels follow from the sizes of the axes
    for axes in (error, energy, constraint, group):
        label_ends(axes)
    rows = [row for row in comparison.rows if row.energy is not None]
    words = ("error", "largest error"), ("energy", "largest energy error")
    for axes, (field, told) in zip((cost, lost), words, strict=True):
        points = [
            (row.nanoseconds, getattr(row, field), label, colour)
            for row, ((label, _), (colour, _)) in zip(rows, styles, strict=False)
            if row.nanoseconds and getattr(row, field) is not None
        ]
        draw_named_points(axes, points)
        axes.set(title=f"{told.capitalize()} against the time of a step", xlabel="time of a step, ns", ylabel=told)
    return save(figure, path, title)


def draw_named_points(axes: Axes, points: Sequence[tuple[float, float, str, str]]) -> None:
    """Points (x, y, name, colour) on logarithmic axes with their names beside them, and none upon another."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter
    from matplotlib.transforms import Bbox

    shown = sorted(((x, y, name, colour) for x, y, name, colour in points if x > 0.0 and y > 0.0), key=lambda p: -p[1])
    axes.set(xscale="log", yscale="log")
    for x, y, _, colour in shown:
        axes.plot([x], [y], "o", color=colour, markersize=5)
    axes.margins(x=0.25, y=0.15)
    axes.xaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.7)))
    figure: Any = axes.figure
    figure.draw_without_rendering()  # the axes get the size that they will have
    room = axes.get_window_extent()
    dots = [axes.transData.transform((x, y)) for x, y, *_ in shown]
    taken = [Bbox([dot - 3, dot + 3]) for dot in dots]
    places = [
        (side * 6, up, edge) for up in (0, 9, -9, 18, -18, 27, -27) for side, edge in ((1, "left"), (-1, "right"))
    ]
    for x, y, name, colour in shown:
        for k, (right, up, edge) in enumerate(places, start=1):
            line = {"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}
            text = axes.annotate(
                name, (x, y), xytext=(right, up), textcoords="offset points", fontsize=7, color=colour, va="center",
                ha=edge, arrowprops=line if up else None,
            )  # fmt: skip
            text.update_positions(figure._get_renderer())
            box = Text.get_window_extent(text)
            fits = room.x0 < box.x0 and box.x1 < room.x1 and room.y0 < box.y0 and box.y1 < room.y1
            if k == len(places) or (fits and not any(box.overlaps(other) for other in taken)):
                break
            text.remove()
        taken.append(box)


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
