"""Figures of runs: the motion beside what it conserves, methods compared, and a run in a notebook."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import numpy as np

from ..errors import InvalidInput, require_name
from ..groups import quaternions
from ..kernels import evaluate
from ..mechanics import MechanicalSystem, MechanismSystem, System, constraint_at, kinetic_metric, without_forces
from ..mechanics.mechanism import MOMENTS, Parts, Picture, direction_of, point_of
from ..numerics import MIN_SAMPLES, classify, html_table
from ..simulation import Conservation, Run, energy_conservation
from .studies import draw_lines, label_decades, name_lines
from .style import (
    COLOURS,
    DASHES,
    GREY,
    LIGHT,
    POINTS,
    STROKES,
    TIME,
    break_turns,
    curve,
    label_directly,
    label_ends,
    legend_below,
    legend_under_all,
    name_points,
    print_unit,
    save,
    scale_text,
    set_symbols,
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
MAX_SPHERE_STATES = 300  # of a run whose trace is drawn on the sphere
LEAST_TRACE, LEAST_PATH = 0.3, 0.01  # a smaller trace on the sphere, or path in metres, is a dot: velocities tell more
LEAST_PANEL = 2.2  # the least width of a panel beside others, in inches
MAX_HEIGHT, LEAST_HEIGHT = 9.0, 2.1  # inches: what a page has room for, and the least height of a panel of a run there
LONG = 2.5  # a path that is so much longer than wide is not drawn in a square
MAX_CURVES, MAX_END_LABEL = 12, 26
"""Runs that a panel over time shows with every step, and letters of a label beside the end of a curve."""
OWN_ERROR = "error of the reference"
MAX_PICTURE_STATES = 20_000  # up to which a trajectory is drawn beside its table in a notebook


def draw_motion(figure: Figure, cell: Any, runs: Mapping[str, Run]) -> None:
    """Draw motions as their group shows them best: a path with the vehicle, a trace on the sphere, or numbers."""
    first = {label: np.asarray(jax.tree.leaves(run.g)[0]) for label, run in runs.items()}
    system = without_forces(next(iter(runs.values())).system)
    pictures, names = [factor.picture for factor in system.group.factors], system.coordinate_names[-2:] or ("x", "y")
    on_plane = pictures == ["attitude", "point"] and [each.velocity for each in system.axes()[3:]] == ["m s-1"] * 2
    if isinstance(system, MechanismSystem) and any(name.startswith("speed") for name in system.rate_names):
        body = next(k for k, joint in enumerate(system.parts.joints) if joint.kind in ("free", "planar"))
        words, names = f"Path of the {system.parts.bodies[body]} from above,\n", system.parts.joints[body].names[:2]
        found = [system.coordinates(run.g) for run in runs.values()]
        paths: list[Any] = [[each[name] for name in names] for each in found]
    elif pictures[0] == "plane":
        words, paths = "Path of the contact point,\n", [part[:, :2, 2].T for part in first.values()]
        names = system.coordinate_names[1:3] if system.coordinate_names[2:] else ("x", "y")
    elif on_plane and max(np.ptp(run.g[1], axis=0).max() for run in runs.values()) > LEAST_PATH:
        words, paths = "Path of the body from above", [np.asarray(run.g[1]).T for run in runs.values()]
    elif pictures[0] == "attitude" and max(np.ptp(each[..., 2], axis=0).max() for each in first.values()) > LEAST_TRACE:
        axes = _draw_on_sphere(figure, cell, {label: part[:MAX_SPHERE_STATES, :, 2] for label, part in first.items()})
        axes.set_title("The body's third axis in space")
        return
    else:
        vector = next(iter(first.values())).ndim <= 2
        columns = {label: (part if vector else np.asarray(runs[label].xi)).T for label, part in first.items()}
        own_names = system.coordinate_names or [f"q{k + 1}" for k in range(len(next(iter(columns.values()))))]
        named = own_names if vector else tuple(axis.name for axis in system.axes())
        values = {label: (runs[label].t, dict(zip(named, part, strict=False))) for label, part in columns.items()}
        draw_by_units(figure, cell, "Coordinates" if vector else "Velocity", values, system.units)
        return
    axes = figure.add_subplot(cell)
    for label, path, own, dash in zip(runs, paths, cycle(COLOURS), cycle(DASHES), strict=False):
        axes.plot(*path, linestyle=dash, color=own, label=label)
    words += _draw_vehicles(axes, next(iter(runs.values())), COLOURS[0]) if words.endswith("\n") else ""
    _keep_scale(axes)
    axes.set(title=words, xlabel=f"{names[0]}, m", ylabel=f"{names[1]}, m")
    if len(runs) > 1:
        legend_below(axes)


def _keep_scale(axes: Axes) -> None:
    """One scale for both directions; a panel as long as what it shows, where that is long."""
    shape, figure = shown_shape(axes), cast(Any, axes.figure)
    fits = shape < 1 / LONG or (shape > LONG and figure.get_figwidth() > 2 * LEAST_PANEL)
    axes.set_aspect("equal", adjustable="box" if fits else "datalim", anchor="NW")


def shown_shape(axes: Any) -> float:
    """The height of what axes show by its width."""
    box = axes.dataLim
    return float(np.clip(box.height / box.width, 0.1, 10.0)) if box.width > 0 and np.isfinite(box.height) else 1.0


def draw_by_units(
    figure: Figure,
    cell: Any,
    title: str,
    values: Mapping[str, tuple[Any, Mapping[str, Any]]],
    units: Mapping[str, str],
    *,
    held: bool = False,
) -> list[Axes]:
    """Quantities over time in one panel that has an axis for each unit: values are {run: (t, {name: column})}.

    Runs have dashes. Colours are those of names, and those of runs where an axis shows one quantity and says its name.
    Columns that are `held` during steps may be one shorter than t.
    """
    names = list(dict.fromkeys(name for _, columns in values.values() for name in columns))
    kinds = list(dict.fromkeys(units.get(name, "") for name in names))
    several, alone = len(values) > 1, len(kinds) == len(names)
    made = [figure.add_subplot(cell)]
    if len(kinds) > 1:
        grid: Any = cast(Any, made[0].get_subplotspec()).subgridspec(len(kinds), 1)
        made[0].remove()
        made = [figure.add_subplot(part) for part in grid]
    for axes, kind in zip(made, kinds, strict=True):
        own = [name for name in names if units.get(name, "") == kind]
        for j, (label, (t, columns)) in enumerate(values.items()):
            for k, name in ((names.index(name), name) for name in own if name in columns):
                words = ": ".join([label] * several + [set_symbols(name)] * (len(own) > 1))
                column, place = np.asarray(columns[name]), j if several and alone else k
                column = np.append(column, column[-1:])[: len(t)] if held else column
                dash = DASHES[(j if several else k // 7) % 7]
                looks: dict[str, Any] = {"color": COLOURS[place % 7], "linestyle": dash, "label": words or "_"}
                axes.plot(np.asarray(t), column, drawstyle="steps-post" if held else "default", **looks)
        last = axes is made[-1]
        axes.set(title=title if axes is made[0] else "", xlabel=TIME)
        axes.set(ylabel=unit_label(own[0], kind) if len(own) == 1 else print_unit(kind))
        letters = 72 * axes.get_position().height * figure.get_figheight() / scale_text(5)  # for which there is room
        if len(own) == 1 and len(own[0]) + len(kind) > letters:
            axes.set_title(set_symbols(own[0]), loc="right", fontsize=scale_text(8))
            axes.set(ylabel=print_unit(kind))
        axes.xaxis.label.set_visible(last)
        axes.tick_params(labelbottom=last)
        if len(own) > 1 or several:
            legend_below(axes, pad=4.2 if last else 0.8)
    figure.align_ylabels(made)
    return made


@styled
def plot_named(
    t: Any,
    values: Mapping[str, Any],
    units: Mapping[str, str],
    *,
    title: str = "",
    path: str | Path | None = None,
    width: float | None = None,
) -> Figure:
    """Plot quantities over time by their names, with one panel for each unit; `width` is in inches."""
    kinds = list(dict.fromkeys(units[name] for name in values))
    narrow = width is not None and width < 2 * LEAST_PANEL
    each = min(1.8 if narrow else 2.1, max(1.3, (MAX_HEIGHT - 0.8) / len(kinds)))
    figure, panels = sheet(len(kinds), 1, size=(width or 7.2, 0.8 + each * len(kinds)), sharex=True, squeeze=False)
    for axes, kind in zip(panels[:, 0], kinds, strict=True):
        own = [name for name in values if units[name] == kind]
        for name, (colour, dash) in zip(own, cycle(STROKES), strict=False):
            shown = break_turns(np.asarray(values[name])) if kind == "rad" else values[name]
            axes.plot(np.asarray(t), shown, color=colour, linestyle=dash, label=name)
        axes.set(ylabel=unit_label(own[0], kind) if len(own) == 1 else print_unit(kind))
    panels[-1, 0].set(xlabel=TIME)
    figure.draw_without_rendering()
    for axes in panels[:, 0]:
        if len(axes.lines) > 1 and narrow:  # names beside the curves would take a third of a column
            columns = 2 if sum(len(str(line.get_label())) + 6 for line in axes.lines) < 14 * float(width or 0.0) else 1
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2)
        elif len(axes.lines) > 1:
            label_ends(axes, 8)
    return save(figure, path, title)


@styled
def plot_controlled(
    motions: Mapping[str, Any], controls: Mapping[str, Array], inputs: Any, path: str | Path | None = None
) -> Figure:
    """Plot motions (runs or plans, by label) beside their `controls` (steps, inputs), which are held during steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    grid = figure.add_gridspec(len(inputs), 2, width_ratios=(1.15, 1.0))
    draw_motion(figure, grid[:, 0], motions)
    if figure.axes[0].get_aspect() == 1.0 and (shape := shown_shape(figure.axes[0])) > 1.0:
        grid.set_width_ratios((max(0.5, 1.15 * shape**-0.7), 1.0))  # a path that is high leaves its room to the inputs
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
    axes.set(xlabel=TIME)
    return save(figure, path, "")


def about(axis: int, angle: Array | float) -> Array:
    """The rotation by an angle, or the track of rotations by angles, about a coordinate axis."""
    angle, (j, k) = np.asarray(angle, float), ((axis + 1) % 3, (axis + 2) % 3)
    turn = np.zeros((*angle.shape, 3, 3))
    turn[..., axis, axis], turn[..., j, j], turn[..., k, k] = 1.0, np.cos(angle), np.cos(angle)
    turn[..., j, k], turn[..., k, j] = -np.sin(angle), np.sin(angle)
    return turn


def angle_of(turns: Array) -> Array:
    """The angle of rotations of the plane, the first two rows and columns of matrices (..., n, n)."""
    return np.asarray(np.arctan2(turns[..., 1, 0], turns[..., 0, 0]))


def align_z(directions: Array) -> Array:
    """Rotations (..., 3, 3) that turn e3 into these directions (..., 3)."""
    z = normalise(np.asarray(directions, float))
    reference = np.eye(3)[int(np.argmin(np.abs(z.reshape(-1, 3)).max(axis=0)))]
    x = normalise(np.cross(np.broadcast_to(reference, z.shape), z))
    return np.stack([x, np.cross(z, x), z], axis=-1)


def normalise(vectors: Array) -> Array:
    """Vectors of length 1; vectors of length 0 stay 0."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-300))


def principal_axes(inertia: Array) -> tuple[Array, Array]:
    """Moments and principal axes (a rotation) of an inertia given by three moments or a tensor."""
    tensor = np.diag(inertia) if np.ndim(inertia) == 1 else np.asarray(inertia, float)
    if not np.any(tensor - np.diag(np.diag(tensor))):
        return np.diag(tensor), np.eye(3)
    moments, axes = np.linalg.eigh(tensor)
    return moments, axes * np.sign(np.linalg.det(axes))


def allowed_directions(rows: Array, components: slice) -> Array:
    """An orthonormal basis (d, k) of the image of ker A, for constraint rows A (m, n), in some components."""
    _, sizes, v = np.linalg.svd(rows)
    free = v[int(np.count_nonzero(sizes > 1e-12)) :][:, components]
    directions, strengths, _ = np.linalg.svd(free.T, full_matrices=False)
    return np.asarray(directions[:, strengths > 1e-9])


class Bar(NamedTuple):
    """A blade, a wheel or a bar on the floor plan: its middle, its angle (numbers or tracks) and half its length."""

    x: Any
    y: Any
    angle: Any
    half: float

    def pose(self, z: float) -> dict[str, Array]:
        """Position and rotation in the frame of its body."""
        x, y, angle = np.broadcast_arrays(*map(np.asarray, self[:3]))
        return {"position": np.stack([x, y, np.full(x.shape, z)], axis=-1), "rotation": about(2, angle)}

    def plan(self, k: int, thick: float) -> Array:
        """Its four corners at a moment, seen from above, in the frame of its body."""
        x, y, angle = (float(np.atleast_1d(each)[k if np.ndim(each) else 0]) for each in self[:3])
        corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [self.half, thick]
        return np.asarray(corners @ about(2, angle)[:2, :2].T + [x, y])


class Vehicle(NamedTuple):
    """A body on the plane: its outline (n, 2), wheels that roll along themselves, bars above the floor."""

    outline: Array
    wheels: list[Bar]
    bars: list[Bar]
    centre: tuple[float, float] | None = None  # of mass
    scale: float = 1.0  # how many times as large as it is it is drawn

    def parts(self, k: int, pose: Array) -> list[tuple[Array, bool]]:
        """Its outlines at a moment and a pose (3, 3), seen from above, each with whether it is a wheel or a blade."""
        size = float(np.ptp(self.outline, axis=0).max()) if len(self.outline) else 2 * self.wheels[0].half
        found = [(self.outline, False)] * bool(len(self.outline))
        found += [(bar.plan(k, 0.02 * size), False) for bar in self.bars]
        found += [(bar.plan(k, 0.025 * size), True) for bar in self.wheels]
        return [(part @ pose[:2, :2].T + pose[:2, 2], is_wheel) for part, is_wheel in found]


def _ellipse(centre: Any, length: float, width: float) -> Array:
    s = np.linspace(0, 2 * np.pi, 49)
    return np.asarray(centre) + np.stack([length * np.cos(s), width * np.sin(s)], -1)


def sleigh_look(numbers: Mapping[str, Any], angles: list[Array], size: float) -> Vehicle:
    """An oval body about its centre of mass (a, b), the blade at the origin."""
    a, b = numbers.get("a", numbers.get("centre", 0.0)), numbers.get("b", 0.0)
    offset = float(np.hypot(a, b))
    centre = np.array([a, b]) * (min(1.0, size / offset) if offset > 0 else 0.0)
    length = np.hypot(*centre) + 1.1 * size
    return Vehicle(_ellipse(centre, length, 0.6 * length), [Bar(0.0, 0.0, 0.0, 0.8 * size)], [], tuple(centre))


def _car(numbers: Mapping[str, Any], angles: list[Array], size: float) -> Vehicle:
    """Two rear wheels at the origin and two steered wheels ahead."""
    known = float(numbers.get("length", 1.0))
    length = max(known, 1.5 * size)
    half, wheel = 0.3 * length, 0.16 * length
    outline = np.array([[-0.25, -0.3], [1.25, -0.3], [1.25, 0.3], [-0.25, 0.3]]) * length
    steer = angles[0] if angles else 0.0
    wheels = [Bar(x, y, angle, wheel) for x, angle in ((0.0, 0.0), (length, steer)) for y in (-half, half)]
    return Vehicle(outline, wheels, [], scale=length / known)


def _snakeboard(numbers: Mapping[str, Any], angles: list[Array], size: float) -> Vehicle:
    """A board with an axle at either end, turned by b and -b, and its rotor."""
    known = float(numbers.get("length", 0.2))
    length = max(known, size)
    rotor, steer = angles
    wheels = [Bar(length, 0.0, steer, 0.3 * length), Bar(-length, 0.0, -steer, 0.3 * length)]
    bars = [Bar(0.0, 0.0, rotor + np.pi / 2, 0.5 * length)]
    return Vehicle(_ellipse((0, 0), 1.1 * length, 0.25 * length), wheels, bars, scale=length / known)


def _roller_racer(numbers: Mapping[str, Any], angles: list[Array], size: float) -> Vehicle:
    """The seat on its axle, and the arm beyond the pivot with its own axle."""
    front, arm = float(numbers.get("front", 0.5)), float(numbers.get("arm", 0.3))
    scale = max(1.0, 1.5 * size / (abs(front) + abs(arm)))
    front, arm, s = scale * front, scale * arm, angles[0]
    half = 0.35 * abs(front) + 0.1 * abs(arm)
    wheels = [Bar(0.0, y, 0.0, half / 2) for y in (-half, half)]
    wheels.append(Bar(front + arm * np.cos(s), arm * np.sin(s), s, half / 2))
    bars = [Bar(front + arm * np.cos(s) / 2, arm * np.sin(s) / 2, s, abs(arm) / 2)]
    outline = _ellipse((front / 2, 0), 0.7 * abs(front) + 1e-9, 0.3 * abs(front) + 1e-9)
    return Vehicle(outline, wheels, bars, scale=scale)


VEHICLES: dict[str, Callable[[Mapping[str, Any], list[Array], float], Vehicle]] = {
    "car": _car,
    "snakeboard": _snakeboard,
    "roller-racer": _roller_racer,
}
"""What models look like from above: (numbers by name, shape angles, least size)."""


class Solid(NamedTuple):
    """A body as it is drawn, in the coordinates of the drawing: kind, half sizes, middle, its axes as columns."""

    kind: str  # box, cylinder, ball, ellipsoid, wheel; the axis of a cylinder is the third
    semi: Array
    middle: Array
    axes: Array

    @property
    def size(self) -> float:
        return float(self.semi.max())

    def points(self) -> Array:
        """Points (k, 3) of its surface, of which outlines are made."""
        if self.kind == "box":
            corners = 2.0 * np.indices((2, 2, 2)).reshape(3, -1).T - 1
            return np.asarray(self.middle + corners * self.semi @ self.axes.T)
        s = np.linspace(0.0, 2 * np.pi, 37)
        heights = (-1.0, 1.0) if self.kind in ("cylinder", "wheel") else np.sin(np.linspace(-1.5, 1.5, 25))
        radii = [1.0 if self.kind in ("cylinder", "wheel") else np.sqrt(1 - z * z) for z in heights]
        rings = [np.stack([q * np.cos(s), q * np.sin(s), 0 * s + z], -1) for q, z in zip(radii, heights, strict=True)]
        return np.asarray(self.middle + np.concatenate(rings) * self.semi @ self.axes.T)

    @classmethod
    def of(cls, parts: Parts, p: Any, body: int) -> Solid:
        """From what touches the ground; else the homogeneous box, cylinder or ball with its mass and inertia."""
        own, joint, kind = p["bodies"][parts.bodies[body]], parts.joints[body], parts.shapes[body]
        inertia, mass = {name: float(value) for name, value in own["inertia"].items()}, float(own["mass"])
        hinge = p["joints"].get(joint.name, {})
        if joint.spins:
            axis = direction_of(hinge["axis"])
            middle = point_of(hinge["at"]) + float(own.get("offset", 0.0)) * axis
            axes, moments = align_z(axis), np.array([inertia["across"], inertia["across"], inertia["along"]])
        else:
            entries = [inertia.get(name, 0.0) for name in MOMENTS]
            xx, yy, zz, xy, xz, yz = entries
            middle = point_of(own["centre"])
            moments, axes = principal_axes(np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]))
        for contact in parts.contacts:
            if contact.body != body or contact.kind not in ("wheel", "omni", "ball", "ellipsoid"):
                continue
            touch = p["contacts"][contact.name]
            middle = point_of(touch["centre"]) if "centre" in touch else middle
            if contact.kind == "ellipsoid":
                return cls("ellipsoid", point_of(touch["axes"]), middle, np.eye(3))
            radius = float(touch["radius"])
            if contact.kind == "ball":
                return cls("ball", np.full(3, radius), middle, np.eye(3))
            axis = direction_of(touch.get("axis") or hinge["axis"])
            width = _cylinder(moments, mass)[2] if kind == "cylinder" else 0.0
            return cls("wheel", np.array([radius, radius, width]), middle, align_z(axis))
        if kind == "cylinder":
            odd = int(np.argmax(np.abs(moments - np.median(moments))))
            turn = np.roll(np.eye(3), odd - 2, axis=1)
            return cls(kind, _cylinder(np.roll(moments, 2 - odd), mass), middle, axes @ turn.T)
        if kind == "ball":
            return cls(kind, np.full(3, np.sqrt(2.5 * moments[0] / mass)), middle, axes)
        semi = np.sqrt(np.maximum(1.5 * (moments.sum() - 2 * moments) / mass, 0.0))
        return cls("box", np.maximum(semi, 0.02 * max(float(semi.max()), 0.05)), middle, axes)


def _cylinder(moments: Array, mass: float) -> Array:
    """(radius, radius, half the length) of a cylinder about its third axis with these moments."""
    radius = np.sqrt(2 * moments[2] / mass)
    return np.array([radius, radius, np.sqrt(max(3 * moments[0] / mass - 0.75 * radius**2, 0.0))])


FORMULAS = {"_car_lagrangian": "car", "_board_lagrangian": "snakeboard", "_racer_lagrangian": "roller-racer"}
"""The Lagrangians of the models in VEHICLES, by which a plot knows a system that was built in Python."""
POSES = 9
"""How many times at most a vehicle is drawn on its path."""
SMALLEST = 0.06
"""Vehicles shorter than this part of their path are drawn larger, and the title of the plot says so."""
LARGEST = 0.3
"""The part of their path to which vehicles are drawn that are larger than all of it: they would hide it."""


def _draw_vehicles(axes: Axes, run: Run, colour: str) -> str:
    """A vehicle or mechanism at some moments of its path, from above and to scale; what to say of it in the title."""
    system = without_forces(run.system)
    found = _look_at(system, run) if isinstance(system, MechanismSystem) else _planar_look(system, run)
    if found is None:
        headings(axes, np.asarray(jax.tree.leaves(run.g)[0]), colour)
        return "with headings"
    place, look = found
    size = max(float(np.ptp(part, axis=0).max()) for part, _ in look(0))
    extent = float(np.ptp(place, axis=0).max())
    scale = LARGEST * extent / size if LARGEST * size < extent < size else max(1.0, SMALLEST * extent / size)
    way = np.append(0.0, np.cumsum(np.hypot(*np.diff(place, axis=0).T)))
    count = int(np.clip(way[-1] / (1.7 * scale * size), 1, POSES - 1))
    apart, chosen = 0.8 * scale * size, [len(place) - 1]
    for k in np.searchsorted(way, np.linspace(0.0, way[-1], count + 1)):
        if np.hypot(*(place[chosen] - place[k]).T).min() > apart:
            chosen.append(int(k))
    for k in chosen:
        for part, is_wheel in look(k):
            x, y = (place[k] + scale * (part - place[k])).T
            alpha = 0.9 if is_wheel else 0.3 if k == chosen[0] else 0.12
            axes.fill(x, y, facecolor=colour, alpha=alpha, edgecolor=colour, linewidth=0.8, zorder=1.5 + 0.1 * is_wheel)
    size_words = f"{scale:.2g} times as large" if scale > 1 else f"at {scale:.2g} of its size"
    return "the body to scale" if scale == 1 else f"the body drawn {size_words}"


Look = Callable[[int], list[tuple[Array, bool]]]
"""The outlines (n, 2) of a vehicle in the plane at a saved state, each with whether it is a wheel or a blade."""


def _look_at(system: MechanismSystem, run: Run) -> tuple[Array, Look] | None:
    """The places of the first body of a mechanism, and what its bodies look like from above."""
    parts, p = system.parts, system.parameters
    kept = evaluate(_picture, system, (run.g, run.xi), lanes=len(run.t), axes=(None, 0))
    turned, placed = np.asarray(kept.turns), np.asarray(kept.places)
    solids = {k: Solid.of(parts, p, k) for k, name in enumerate(parts.bodies) if name in p["bodies"]}
    base = min(solids)
    middles = placed[:, base] + turned[:, base] @ solids[base].middle

    ways = np.stack([np.cos(angle := np.linspace(0.0, 2 * np.pi, 73)), np.sin(angle)])

    def look(k: int) -> list[tuple[Array, bool]]:
        points = {j: (solid.points() @ turned[k, j].T + placed[k, j])[:, :2] for j, solid in solids.items()}
        hulls = {j: each[np.argmax(each @ ways, axis=0)] for j, each in points.items()}  # corners, some of them twice
        return [(hulls[j], solid.kind == "wheel" and j != base) for j, solid in solids.items()]

    return middles[:, :2], look


def _picture(system: MechanismSystem, moving: Any) -> Picture:
    return system.picture(*moving)


def vehicle_model(system: Any) -> tuple[str, Mapping[str, Any]] | None:
    """The model in VEHICLES that a system is, also one with forces or feedback, and its numbers by name."""
    system = without_forces(system) if isinstance(system, MechanicalSystem) else system
    if not isinstance(system, System) or getattr(system.lagrangian, "__module__", "") != "dalembert.models.vehicles":
        return None
    name = FORMULAS.get(getattr(system.lagrangian, "__name__", ""))
    return (name, {key: float(value) for key, value in system.parameters.items()}) if name else None


def _planar_look(system: MechanicalSystem, run: Run) -> tuple[Array, Look] | None:
    """The places of a body on SE(2), and its outline and wheels: those of its model, else an oval of its inertia."""
    factors = [np.asarray(part) for part in jax.tree.leaves(run.g)]
    pose, angles = factors[0], [angle_of(part) for part in factors[1:] if part.shape[1:] == (2, 2)]
    own = vehicle_model(system)
    body = VEHICLES[own[0]](own[1], angles, 0.0) if own else _oval(system, run)
    if body is None:
        return None
    bodies, at = [(pose, body)], system.group.factors[0].dim
    for factor, part in zip(system.group.factors[1:], factors[1:], strict=False):  # another body on SE(2)
        if factor.picture == "plane" and (other := _oval(system, run, at)):
            bodies.append((part, other))
        at += factor.dim

    def look(k: int) -> list[tuple[Array, bool]]:
        return [each for pose, body in bodies for each in body.parts(k, pose[k])]

    return pose[:, :2, 2], look


def _oval(system: MechanicalSystem, run: Run, first: int = 0) -> Vehicle | None:
    """The homogeneous oval with the mass and inertia that a system on SE(2) has, with its blade; a disk that rolls.

    `first` is the first component of the velocity of this body.
    """
    g = jax.tree.map(lambda leaf: np.asarray(leaf)[0], run.g)
    metric, rows = np.asarray(kinetic_metric(system, 0.0, g)), np.asarray(constraint_at(system, 0.0, g)[0])
    rows, metric = rows.reshape(-1, len(metric)), metric[first:, first:]
    mass = float(metric[1, 1])
    ahead = np.linalg.svd(np.vstack([rows, np.eye(rows.shape[1])[0]]))[2][len(rows) + 1 :]  # velocities without turning
    if not first and len(metric) == 4 and len(ahead) == 1 and abs(ahead[0, 1] * ahead[0, 3]) > 1e-9:
        return Vehicle(np.zeros((0, 2)), [Bar(0.0, 0.0, 0.0, abs(float(ahead[0, 1] / ahead[0, 3])))], [])
    if not np.isclose(mass, metric[2, 2]) or mass <= 0:
        return None
    centre = np.array([metric[0, 2], -metric[0, 1]]) / mass
    moment = float(metric[0, 0] - mass * centre @ centre)
    if moment <= 0:
        return None
    length = np.sqrt(4 * moment / (1.36 * mass))
    left = allowed_directions(rows, slice(first + 1, first + 3)) if len(rows) else np.eye(2)
    blade = [Bar(0.0, 0.0, float(np.arctan2(left[1, 0], left[0, 0])), 0.5 * length)] if left.shape[1] == 1 else []
    return Vehicle(_ellipse(centre, length, 0.6 * length), blade, [], tuple(centre))


def headings(axes: Axes, pose: Array, colour: str, count: int = 25) -> None:
    """Short strokes along the blade at some of the poses (k, 3, 3) of a path in the plane."""
    for k in np.unique(np.linspace(0, len(pose) - 1, count).astype(int)):
        stroke = 0.015 * np.ptp(pose[:, :2, 2]) * pose[k, :2, 0]
        ends = np.stack([pose[k, :2, 2] - stroke, pose[k, :2, 2] + stroke], axis=1)
        axes.plot(*ends, color=colour, linewidth=2.5, solid_capstyle="round")


MAX_CHORD = 0.35
"""Points on the unit sphere that are farther apart are dots: chords between them would look like paths."""


def _draw_on_sphere(figure: Figure, cell: Any, curves: Mapping[str, Array], columns: int = 2) -> Any:
    """Curves (k, 3) on the unit sphere, a light wire frame, with a dot where each begins."""
    axes = space(figure, cell)
    u, v = np.mgrid[0 : 2 * np.pi : 33j, 0 : np.pi : 17j]
    axes.plot_wireframe(np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v), color=LIGHT, linewidth=0.35)
    axes.set_box_aspect((1, 1, 1), zoom=1.2)
    axes.set_axis_off()
    for (label, points), colour, dash in zip(curves.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        far = len(points) > 2 and np.median(np.linalg.norm(np.diff(points, axis=0), axis=1)) > MAX_CHORD
        looks = {"linestyle": "", "marker": "."} if far else {"linestyle": dash}
        axes.plot(*points.T, color=colour, label=label, linewidth=1.0, markersize=3, **looks)
        axes.plot(*points[:1].T, "o", color=colour, markersize=4)
    if len(curves) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=columns)
    return axes


@styled
def plot_attitude(trajectory: Run, path: str | Path | None = None) -> Figure:
    """Plot the attitude of a run on SO(3): its three body axes on the unit sphere, and the quaternion over time."""
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
    label_directly(figure)
    return save(figure, path, "Attitude")


def plot_trajectory(
    trajectory: Run,
    path: str | Path | None = None,
    *,
    name: str = "",
    width: float | None = None,
    panels: Sequence[str] = (),
) -> Figure:
    """Plot one run: its motion, energy error and distance from the constraint; `path` saves the figure.

    If the `width`, in inches, is that of a column, panels are stacked; `panels` selects them.
    """
    title, group = name or trajectory.system.title, typeset(str(trajectory.system.group))
    nameless = title in (type(trajectory.system).__name__, type(without_forces(trajectory.system)).__name__)
    title = f"Motion on {group}" if nameless else f"{title[:1].upper()}{title[1:]} on {group}"
    title = f"{title}, {trajectory.integrator.name}, h = {float(trajectory.step):g} s"
    runs = {trajectory.integrator.name: trajectory}
    return plot_comparison(runs, title=title, path=path, width=width, panels=panels)


PANELS = {
    "energy": ("", ""),
    "distance": ("Distance from group and constraint", typeset("|g - G|, |A xi - b|")),
    "group": ("Distance from the group", typeset("|g - G|")),  # "distance" where there is no constraint
    "steps": ("Step sizes", f"{typeset('|h|')}, s"),
}
"""The panels of a run that show magnitudes: their titles, and the labels of their vertical axes."""
LEAST_NEEDED = ("steps", "distance", "power", "shape", "controls")  # left out first where a page has no room for all


@styled
def plot_comparison(
    runs: Mapping[str, Run],
    *,
    title: str = "",
    path: str | Path | None = None,
    width: float | None = None,
    panels: Sequence[str] = (),
) -> Figure:
    """Plot several runs of one system: their motions, |E - E(0)|, |A xi - b| and the distance from the group.

    Where power enters, the work is subtracted from E - E(0), and both are drawn, as are controls and variable steps.
    `width`, in inches, decides how many panels stand side by side; what would make the figure higher than 9 inches is
    left out, and the figure says so. `panels` chooses: "motion", "energy", "distance", "shape", "steps", "power",
    "controls".
    """
    from matplotlib.figure import Figure

    balances = {label: energy_conservation(run) for label, run in runs.items()}
    held = next((run for run in runs.values() if run.controls is not None and run.system.inputs), None)
    shaped = without_forces(next(iter(runs.values())).system)
    there = {"motion": True, "energy": True, "distance": True}
    there["shape"] = isinstance(shaped, MechanismSystem) and bool(shaped.shape_names)
    there["steps"] = any(run.integrator.variable_step for run in runs.values())
    there["power"] = any(len(each.work) for each in balances.values())
    there["controls"] = held is not None
    known = [panel for panel, exists in there.items() if exists]
    for panel in panels:
        require_name("panel of this run", panel, known)
    idle = {"power"} if not any(map(_works, runs.values(), balances.values())) else set()
    shown = list(dict.fromkeys(panels)) or [panel for panel in known if panel not in idle]
    columns = min(len(shown), 2 if len(shown) in (2, 4) else 3)
    columns = columns if width is None else min(columns, max(1, int(width / LEAST_PANEL)))
    left = [] if panels or width is None else [panel for panel in LEAST_NEEDED if panel in shown]
    left = left[: max(0, len(shown) - columns * max(1, int(MAX_HEIGHT / LEAST_HEIGHT)))]
    shown = [panel for panel in shown if panel not in left]
    rows, wide = -(-len(shown) // columns), 4.0 if width is None else width / columns
    high = 1.1 * wide if width is None else min(0.85 * wide, max(LEAST_HEIGHT, MAX_HEIGHT / rows))
    heights, widths = [high] * rows, [wide * each for each in (1.15, 1, 1)[:columns]]
    figure = Figure(figsize=(wide * columns, high * rows), layout="constrained")
    grid = figure.add_gridspec(rows, columns, width_ratios=widths, height_ratios=heights)
    cells = {panel: grid[divmod(k, columns)] for k, panel in enumerate(shown)}
    if "motion" in cells:
        draw_motion(figure, cells["motion"], runs)
        row, column = divmod(shown.index("motion"), columns)
        shape = shown_shape(figure.axes[0]) if figure.axes[0].get_aspect() == 1.0 else 0.0
        if shape and columns == 1:  # a row as high as the path, a column as wide
            heights[row] = float(np.clip(0.85 * wide * shape + scale_text(1.1), 0.5 * high, 1.3 * high))
        elif shape > 1.0 and rows == 1:
            widths[column] *= max(0.5, shape**-0.5)
        elif 0.0 < shape < 1 / LONG and width is None and shown[0] == "motion":  # a long path has a row of its own
            rest, long = shown[1:], figure.axes[0]
            columns = min(len(rest), 2 if len(rest) == 4 else 3)
            heights = [0.85 * wide * columns * shape + scale_text(1.2)] + [high] * -(-len(rest) // columns)
            widths = [wide] * columns
            grid = figure.add_gridspec(len(heights), columns)
            long.set_subplotspec(grid[0, :])
            cells = {panel: grid[1 + k // columns, k % columns] for k, panel in enumerate(rest)}
            figure.set_figwidth(wide * columns)
        grid.set_height_ratios(heights)
        grid.set_width_ratios(widths)
        figure.set_figheight(sum(heights) if width is None else min(sum(heights), MAX_HEIGHT))
    more = {panel: figure.add_subplot(cell) for panel, cell in cells.items() if panel in PANELS}
    if isinstance(shaped, MechanismSystem) and "shape" in cells:
        names = shaped.shape_names
        found = {label: (run.t, shaped.coordinates(run.g)) for label, run in runs.items()}
        bent = {label: (t, {name: each[name] for name in names}) for label, (t, each) in found.items()}
        draw_by_units(figure, cells["shape"], "Shape", bent, shaped.units)
    if "power" in cells:
        work = {label: each for label, each in balances.items() if len(each.work)}
        works = {label: (runs[label].t, {"power": each.power, "work": each.work}) for label, each in work.items()}
        draw_by_units(figure, cells["power"], "Power and work", works, {"power": "W", "work": "J"})
    if held is not None and "controls" in cells:
        inputs = {each.name: each.unit for each in held.system.inputs or ()}
        pushes = held.t, dict(zip(inputs, held.controls_at_states().T, strict=False))
        draw_by_units(figure, cells["controls"], "Controls", {"": pushes}, inputs, held=True)
    for (label, run), colour in zip(runs.items(), cycle(COLOURS), strict=False):
        balance, head = balances[label], f"{label}: " if len(runs) > 1 else ""
        second: dict[str, Any] = {"color": colour if head else COLOURS[1], "linestyle": ":" if head else "-"}
        if "energy" in more:
            curve(more["energy"], run.t, balance.values, label=label, color=colour)
        if "distance" in more:
            curve(more["distance"], run.t, run.group_distance(), label=f"{head}group", color=colour)
            if run.multipliers.shape[-1]:
                curve(more["distance"], run.t, run.constraint_residual(), label=f"{head}constraint", **second)
        if "steps" in more:  # |h| of the step that led to each saved state
            curve(more["steps"], run.t, run.step_sizes, label=label, color=colour)
    free = not any(run.multipliers.shape[-1] for run in runs.values())
    for panel, axes in more.items():
        heading = PANELS["group" if panel == "distance" and free else panel]
        energy = balance.title, typeset(balance.label) + read_units(next(iter(runs.values())))[0]
        _label_axes(axes, *(energy if panel == "energy" else heading))
        if len(axes.lines) == 1 and (legend := axes.get_legend()):
            legend.remove()  # the titles say it
    if width is None:
        label_directly(figure)
    if left:
        words = f"left out: {', '.join(left)}; panels= chooses"
        figure.supxlabel(words, x=0.01, ha="left", fontsize=scale_text(6.5), color=GREY)
    return save(figure, path, title)


def _works(run: Run, balance: Conservation) -> bool:
    """Whether the work that enters is more than round-off of the energy."""
    return bool(len(balance.work)) and bool(np.abs(balance.work).max() > 1e-14 * np.abs(run.energy()).max())


@styled
def plot_invariants(t: Any, errors: Mapping[str, Any], *, title: str = "", path: str | Path | None = None) -> Figure:
    """Plot the errors of invariants over time on a logarithmic axis, each with the kind of its drift in the label."""
    figure, axes = sheet(size=(6.8, 4.2))
    draw_invariants(axes, t, errors)
    return save(figure, path, title)


def draw_invariants(axes: Axes, t: Any, errors: Mapping[str, Any]) -> None:
    """Draw the curves of `plot_invariants` on given axes."""
    for (name, values), colour, dash in zip(errors.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        kind = classify(t, values).kind if len(np.asarray(t)) >= MIN_SAMPLES else "too short to tell"
        curve(axes, t, values, label=f"{name}: {kind}", color=colour, linestyle=dash, linewidth=0.9)
    _label_axes(axes, "", "|error|")


def _label_axes(axes: Axes, title: str, label: str) -> None:
    axes.set(title=title, xlabel=TIME, ylabel=label)
    legend_below(axes)


def read_units(run: Run) -> tuple[str, str]:
    """ ", J" and the unit of |A xi - b|, that of a power over the loads or velocities in rows of length 1; else ""."""
    axes, loads = run.system.axes(), {run.system.units.get(name, "") for name in run.system.load_names}
    rows = np.asarray(constraint_at(run.system, run.t[0], jax.tree.map(lambda leaf: np.asarray(leaf)[0], run.g))[0])
    kinds = {axis.velocity for axis, column in zip(axes, rows.T, strict=True) if np.any(column)}
    unit = {"N": "m s-1", "N m": "rad s-1"}.get(loads.pop(), "") if len(loads) == 1 else ""
    if not unit and len(kinds) == 1 and np.allclose(np.linalg.norm(rows, axis=-1), 1.0):
        unit = kinds.pop().replace("[q] s-1", "")
    return ", J" * any("[q]" not in axis.velocity for axis in axes), f", {print_unit(unit)}" * bool(unit)


@styled
def plot_methods(
    comparison: Any, *, title: str = "", path: str | Path | None = None, width: float | None = None
) -> Figure:
    """Plot a comparison: error, energy, constraint and group over time, and the errors against the cost.

    The cost is the time of a step, or of the whole run where steps differ: then the points of a method are a line. A
    grey line is the error of the reference motion itself. Of more than 12 runs, those with the smallest step of each
    method are drawn over time. In a `width` of one column, in inches, constraint and group are left out.
    """
    from matplotlib.lines import Line2D

    narrow = width is not None and width < 2 * LEAST_PANEL
    size = (11.0, 12.0) if width is None else (width, 8.8) if narrow else (width, 1.2 * width)
    figure, panels = sheet(4 if narrow else 3, 1 if narrow else 2, size=size)
    error, energy, *kept, cost, lost = panels.ravel()
    methods = list(dict.fromkeys(row.method for row in comparison.rows))
    sizes = sorted({row.step for row in comparison.rows}, key=abs)
    several = len(sizes) > 1
    crowded = several and len(comparison.runs) > MAX_CURVES
    looks = dict(zip(methods, cycle(STROKES), strict=False))
    shown, finest = {}, {row.method: row.step for row in sorted(comparison.rows, key=lambda row: -abs(row.step))}
    for row in comparison.rows:
        label = f"{row.method}, h = {row.step:g}" if several else row.method
        if label not in comparison.runs or (crowded and row.step != finest[row.method]):
            continue
        colour, dash = looks[row.method]
        dash = dash if crowded or not several else DASHES[sizes.index(row.step) % 7]
        shown[label] = {"color": colour, "linestyle": dash, "label": row.method if crowded else label}
    reference = comparison.reference
    for label, style in shown.items():
        run = comparison.runs[label]
        balance = comparison.balances.get(label) or energy_conservation(run)
        curve(energy, run.t, balance.values, **style)
        if kept and run.multipliers.shape[-1]:
            curve(kept[0], run.t, run.constraint_residual(), **style)
        if kept:
            curve(kept[1], run.t, run.group_distance(), **style)
        if label in comparison.errors:
            gaps = comparison.errors[label]
            curve(error, np.asarray(run.t)[: len(gaps)], gaps, **style)
    if reference is not None:
        until = reference.times[: len(reference.floor)]
        curve(error, until, reference.floor, color=GREY, linewidth=2.0, alpha=0.5, label=OWN_ERROR)
    of = f"distance from{chr(10) if narrow else ' '}{reference.name}" if reference is not None else "error"
    first = next(iter(comparison.runs.values()), None)
    units = read_units(first) if first else ("", "")
    group = "|R^T R - 1|" if first and str(first.system.group).startswith(("SO", "SE")) else "|g - G|"
    headings = [("Error" if narrow else "Error in configuration and velocity", of), (balance.title, balance.label)]
    headings += [("Constraint residual", "|A xi - b|"), ("Distance from the group", group)]
    for axes, (heading, label), unit in zip((error, energy, *kept), headings, ("", *units, ""), strict=False):
        axes.set(title=heading + ", smallest steps" * crowded, xlabel=TIME, ylabel=typeset(label) + unit)
        if not axes.lines:
            axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes, color="#888888")
            axes.set(xticks=[], yticks=[])
            continue
        show_zeros(axes)
    if narrow or max((len(style["label"]) for style in shown.values()), default=0) > MAX_END_LABEL:
        markers = {look[:2]: look[2] for look in POINTS}
        handles = [Line2D([], [], **style) for style in shown.values()]
        for handle, (colour, dash) in zip(handles, looks.values(), strict=False):
            handle.set_marker(markers[colour, dash] if narrow and crowded else "")
        handles += [Line2D([], [], color=GREY, linewidth=2.0, alpha=0.5, label=OWN_ERROR)] * (reference is not None)
        legend_under_all(figure, handles)
    else:
        figure.draw_without_rendering()  # the places of labels follow from the sizes of the axes
        for axes in (error, energy, *kept):
            label_ends(axes)
    defect = "balance" if comparison.balances else "energy"
    words = ("error", "largest error"), (defect, f"largest {balance.title.lower()}")
    for axes, (field, told), unit in zip((cost, lost), words, ("", units[0]), strict=True):
        timed = [row for row in comparison.rows if row.nanoseconds and getattr(row, field) is not None]
        against = "time of the run" if several else "time of a step"
        heading = f"{told.capitalize()} against the {against}"
        axes.set(title="" if narrow else heading, xlabel=f"{against}, {'s' if several else 'ns'}", ylabel=told + unit)
        floor = reference.floor[-1:] if field == "error" and reference is not None and timed else ()
        if several:
            lines: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in methods}
            for row in timed:
                lines[row.method][0].append(1e-9 * row.nanoseconds * row.steps)
                lines[row.method][1].append(getattr(row, field))
            draw_lines(axes, lines)
            if not narrow:
                name_lines(axes)
            label_decades(axes)
        else:
            named = [(row.nanoseconds, getattr(row, field), row.method, looks[row.method][0]) for row in timed]
            draw_named_points(axes, named, floor)
        for height in floor:
            axes.axhline(height, color=GREY, linewidth=2.0, alpha=0.5, zorder=0)
    return save(figure, path, title)


def draw_named_points(axes: Axes, points: Sequence[tuple[float, float, str, str]], floor: Sequence[float] = ()) -> None:
    """Points (x, y, name, colour) on logarithmic axes with their names beside them: none upon another or a floor."""
    shown = [(x, y, name, colour) for x, y, name, colour in points if x > 0.0 and y > 0.0]
    axes.set(xscale="log", yscale="log")
    for x, y, _, colour in shown:
        axes.plot([x], [y], "o", color=colour, markersize=5)
    for height in floor:  # the axes reach as far as the line that will be there
        axes.update_datalim([(shown[0][0], height)])
    for x, y, _, _ in shown:  # and so far that times that are nearly equal look so
        axes.update_datalim([(0.6 * x, y), (1.7 * x, y)])
    axes.margins(x=0.25, y=0.15)
    label_decades(axes)
    name_points(axes, shown, [(x, height) for height in floor for x in np.geomspace(*axes.get_xlim(), 100)])


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
    data = base64.b64encode(vars(plot_trajectory(run))["_repr_png_"](70)).decode()
    return html_table("Trajectory", rows) + f'<img alt="motion and conservation" src="data:image/png;base64,{data}">'
