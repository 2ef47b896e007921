"""Studies of a method: cost against accuracy, phase portraits and sections, momenta on their locus, and sweeps.

A sweep is a heat map, a slice or a map of failures over any two of its dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ..errors import InvalidInput, UnknownName
from ..integrators import EulerPoincareSuslov
from ..kernels import evaluate
from ..mechanics import InvariantSystem
from ..numerics import GROWTH_KINDS, Convergence
from ..simulation import Crossings, Run
from . import style
from .style import (
    COLOURS,
    FLOOR,
    GREY,
    LIGHT,
    POINTS,
    TIME,
    break_turns,
    label_ends,
    name_points,
    save,
    scale_text,
    sheet,
    space,
    styled,
    unit_label,
)

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]


@styled
def plot_eigenvalues(
    over: str,
    values: Array,
    eigenvalues: Array,
    critical: Array,
    stable: Sequence[tuple[float, float]],
    *,
    title: str = "",
    path: str | Path | None = None,
) -> Figure:
    """Plot eigenvalues over a parameter: real parts as dots, imaginary parts as rings, stable intervals shaded."""
    figure, axes = sheet(size=(6.6, 4.6))
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    for k, (a, b) in enumerate(stable):
        axes.axvspan(a, b, color=COLOURS[2], alpha=0.15, label="stable" if not k else None, linewidth=0)
    flat = np.repeat(values, eigenvalues.shape[1])
    real, imaginary = eigenvalues.real.ravel(), eigenvalues.imag.ravel()
    axes.plot(flat, real, ".", color=COLOURS[0], markersize=4, label="real part")
    turning = imaginary > 0
    axes.plot(
        flat[turning], imaginary[turning], "o", color=COLOURS[1], markersize=3, fillstyle="none", label="imaginary part"
    )
    for value in critical:
        axes.axvline(value, color=GREY, linestyle=":", linewidth=0.8)
        axes.annotate(
            f"{value:.4g}",
            (value, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=scale_text(8),
        )
    axes.set(xlabel=over, ylabel="eigenvalues, 1/s")
    axes.legend()
    return save(figure, path, title)


@styled
def plot_work_precision(
    points: Mapping[str, tuple[Any, Any]],
    *,
    cost: str = "processor time, s",
    error: str = "error at the end",
    title: str = "",
    path: str | Path | None = None,
) -> Figure:
    """Plot a work-precision diagram, error against cost: {method: (costs, errors)}; runs that failed are NaN."""
    figure, axes = sheet(size=(6.2, 4.6))
    draw_lines(axes, points)
    axes.set(xlabel=cost, ylabel=error)
    name_lines(axes)
    label_decades(axes)
    return save(figure, path, title)


def draw_lines(axes: Axes, points: Mapping[str, tuple[Any, Any]]) -> None:
    """Labelled curves (x, y) with markers on logarithmic axes; a gap where y is not finite."""
    for (label, (x, y)), (colour, dash, marker) in zip(points.items(), cycle(POINTS), strict=False):
        axes.loglog(np.asarray(x), np.asarray(y), marker=marker, linestyle=dash, color=colour, label=label)


def name_lines(axes: Axes) -> None:
    """Write the label of every line beside its last point, in place of a legend."""
    ends, others = list[tuple[float, float, str, str]](), list[tuple[float, float]]()
    for line in axes.lines:
        data = np.asarray(line.get_data(), float).T
        data = data[np.isfinite(data).all(axis=1) & (data > 0.0).all(axis=1)]
        if len(data) and not str(line.get_label()).startswith("_"):
            ends.append((float(data[-1, 0]), float(data[-1, 1]), str(line.get_label()), str(line.get_color())))
            for a, b in itertools.pairwise(data):  # the line itself is in the way too
                others += [(float(x), float(y)) for x, y in np.geomspace(a, b, 16)[:-1]]
    axes.margins(x=0.2)
    name_points(axes, ends, others)


def label_decades(axes: Axes) -> None:
    """Label the decades of a logarithmic horizontal axis, and some of their multiples where there are few.

    Numbers from 0.001 to 9999 are written out, others as powers of ten.
    """
    from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    if high < 300.0 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 10.0 * low else (1.0, 3.0)))
        if low >= 1e-3 and high < 1e4:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        else:
            axes.xaxis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(2.0, 1.0)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def draw_slope(axes: Axes, x: Sequence[float] | np.ndarray, y: float, order: int) -> None:
    """A grey guide of slope `order` through (x[0], y), labelled."""
    ends = np.asarray(x, float)
    values = y * (ends / ends[0]) ** order
    axes.loglog(ends, values, color=GREY, linewidth=0.9)
    words: dict[str, Any] = {"color": GREY, "fontsize": scale_text(8), "textcoords": "offset points"}
    above = {"xytext": (0, 4 + 5 * order), "va": "bottom"}
    beside: dict[str, Any] = {"xytext": (3, 0)} if ends[-1] > ends[0] else above
    axes.annotate(f"order {order}", (ends[-1], values[-1]), **words, **beside)


@styled
def plot_convergence(found: Convergence, *, title: str = "", path: str | Path | None = None) -> Figure:
    """Plot a convergence study: errors against the step, with a guide of slope p for each measured order p."""
    figure, axes = sheet(size=(6.2, 4.6))
    steps = np.abs(found.steps)
    rising = np.argsort(steps)  # the last point of a curve, beside which its name stands, is that of the largest step
    draw_lines(axes, {name: (steps[rising], np.maximum(e, FLOOR)[rising]) for name, e in found.norms.items()})
    orders = {name: round(order) for name in found.norms if (order := found.order(name)) is not None}
    for order in sorted(set(orders.values()) - {0}):
        largest = max(found.norms[name][-1] for name, p in orders.items() if p == order)
        if np.isfinite(largest):
            draw_slope(axes, steps[[0, -1]], 1.8 * largest * (steps[0] / steps[-1]) ** order, order)
    axes.set(xlabel="step $h$, s", ylabel="error after one step" if found.local else "largest error")
    label_decades(axes)
    figure.draw_without_rendering()  # the places of labels follow from the sizes of the axes
    label_ends(axes, 8.0)
    return save(figure, path, title)


@styled
def plot_portrait(
    trajectory: Run, components: tuple[int, int] = (0, 1), *, title: str = "", path: str | Path | None = None
) -> Figure:
    """Plot a phase portrait: a run, or all members of an ensemble, in the plane of two components of the momentum."""
    figure, axes = sheet(size=(5.6, 5.2))
    momenta = np.asarray(trajectory.momentum)[..., list(components)]
    draw_portrait(axes, list(momenta) if momenta.ndim == 3 else [momenta])
    axes.set(xlabel=f"$M_{components[0] + 1}$", ylabel=f"$M_{components[1] + 1}$")
    return save(figure, path, title)


@styled
def plot_section(
    sections: Mapping[str, Crossings],
    coordinates: Sequence[Callable[..., Any]],
    *,
    labels: tuple[str, str] = ("", ""),
    title: str = "",
    path: str | Path | None = None,
) -> Figure:
    """Plot Poincare sections, a dot for each crossing; the two `coordinates` are functions of (t, g, xi)."""
    figure, axes = sheet(size=(5.8, 5.2))
    for (label, found), colour in zip(sections.items(), cycle(COLOURS), strict=False):
        x, y = (np.asarray(coordinate(found.t, found.g, found.xi)) for coordinate in coordinates)
        axes.plot(x, y, ".", markersize=2.4, markeredgewidth=0, color=colour, label=label)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    if len(sections) > 1:
        axes.legend(markerscale=4, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save(figure, path, title)


def draw_portrait(axes: Axes, orbits: Sequence[Array], *, arrows: bool = True, colour: str = COLOURS[0]) -> None:
    """Orbits (k, 2) in a plane, each with an arrow in its middle that says which way it runs."""
    for orbit in orbits:
        axes.plot(*np.asarray(orbit).T, color=colour, linewidth=1.0)
        if arrows and len(orbit) > 2:
            arrow(axes, np.asarray(orbit), colour)


def arrow(axes: Axes, orbit: Array, colour: str) -> None:
    """An arrow head at the middle of the length of an orbit."""
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(orbit, axis=0).T))])
    k = int(np.clip(np.searchsorted(along, along[-1] / 2), 1, len(orbit) - 1))
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 0.8, "mutation_scale": 9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=orbit[k], xytext=orbit[k - 1], arrowprops=style)


def equilibria(axes: Axes, points: Array, *, stable: bool, colour: str = "#000000", label: str = "") -> None:
    """Filled dots for stable points (k, 2), open ones for unstable points."""
    face = colour if stable else "white"
    axes.plot(*np.asarray(points).T, "o", color=colour, markerfacecolor=face, markersize=4.5, label=label, zorder=5)


LIGHT_DIRECTION = np.array([0.48, -0.36, 0.8])


def momentum_surface(system: InvariantSystem, integrator: EulerPoincareSuslov, step: float, grid: Array) -> Array:
    """M = F l_d(tau(h B x)) at increments x of a grid (..., 2): the discrete momentum locus, shape (..., 3)."""
    if system.group.dim != 3 or system.subspace.shape[1] != 2:
        needed = "the group must have dimension 3 and d dimension 2"
        given = f"given {system.group} with d of dimension {system.subspace.shape[1]}"
        raise InvalidInput(f"a momentum locus is drawn in three dimensions: {needed}; {given}")
    flat = np.asarray(grid, float).reshape(-1, 2)
    made = evaluate(partial(_momentum, integrator), (system, float(step)), flat, lanes=len(flat), axes=(None, 0))
    return np.asarray(made).reshape(*grid.shape[:-1], 3)


def _momentum(integrator: EulerPoincareSuslov, given: tuple[InvariantSystem, float], x: jax.Array) -> jax.Array:
    system, step = given
    return integrator.legendre(system, system.subspace @ x, step)


def momentum_locus(run: Any, count: int) -> tuple[Array, Array]:
    """A grid of count x count increments that covers those of a run, and its momentum surface."""
    reach = 1.15 * np.abs(np.asarray(run.increment) @ np.linalg.pinv(np.asarray(run.system.subspace)).T).max(axis=0)
    sides = [np.linspace(-r, r, count) for r in np.maximum(reach, max(0.3 * reach.max(), 1e-6))]
    grid = np.stack(np.meshgrid(*sides, indexing="ij"), -1)
    return grid, momentum_surface(run.system, run.integrator, float(run.step), grid)


def grid_faces(grid: Array) -> Array:
    """The quadrilaterals (k, 4, 3) between the points of a grid (i, j, 3)."""
    corners = [grid[:-1, :-1], grid[1:, :-1], grid[1:, 1:], grid[:-1, 1:]]
    return np.stack(corners, axis=2).reshape(-1, 4, 3)


def light(faces: Array, scale: Any = 1.0) -> Array:
    """The brightness (k,) of quadrilaterals (k, 4, 3) in diffuse light; `scale` stretches their normals."""
    normals = np.cross(faces[:, 2] - faces[:, 0], faces[:, 3] - faces[:, 1]) * scale
    size = np.maximum(np.linalg.norm(normals, axis=1), 1e-300)
    return np.asarray(0.55 + 0.45 * np.abs(normals @ LIGHT_DIRECTION) / size)


def draw_surfaces(axes: Any, surfaces: Sequence[Array], *, plane: Array | None = None, lines: int = 0) -> None:
    """Opaque surfaces (i, j, 3), whose faces hide one another, and a plane (2, 2, 3) that one sees through.

    What lies behind the plane is drawn before it and the rest after it, so that they cross in a clean line. `lines` > 0
    draws that many coordinate lines of each direction on the first surface.
    """
    from matplotlib.colors import to_rgb
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    parts = [*surfaces, *([] if plane is None else [plane])]
    points = np.concatenate([part.reshape(-1, 3) for part in parts])
    low, high = points.min(axis=0), points.max(axis=0)
    faces = np.concatenate([grid_faces(surface) for surface in surfaces])
    colours = np.outer(light(faces, high - low), to_rgb(COLOURS[5]))
    axes.auto_scale_xyz(*np.stack([low, high], axis=1))
    axes.computed_zorder = False  # the order is the one given here
    near = np.ones(len(faces), bool)
    if plane is not None:
        elevation, azimuth = np.deg2rad([axes.elev, axes.azim])
        to_eye = [np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)]
        normal = np.cross(plane[1, 0] - plane[0, 0], plane[0, 1] - plane[0, 0])
        normal *= np.sign(normal @ (to_eye * (high - low)))
        near = (faces.mean(axis=1) - plane[0, 0]) @ normal > 0.0
        whole = Poly3DCollection(grid_faces(plane), facecolors=COLOURS[4], edgecolors="none", alpha=0.45, zorder=2)
        axes.add_collection3d(whole)
    for side, order in ((~near, 1), (near, 3)):
        if np.any(side):
            looks = {"facecolors": colours[side], "edgecolors": colours[side], "linewidth": 0.4, "zorder": order}
            axes.add_collection3d(Poly3DCollection(faces[side], **looks))
    if lines:
        first = np.moveaxis(surfaces[0], -1, 0)
        looks = {"color": "black", "linewidth": 0.25, "alpha": 0.35, "rcount": lines, "ccount": lines, "zorder": 4}
        axes.plot_wireframe(*first, **looks)


@styled
def plot_momentum(trajectory: Any, path: str | Path | None = None) -> Figure:
    """Plot the momenta of an Euler-Poincare-Suslov run on their surface, beside the plane I(d) of the motion."""
    from matplotlib.figure import Figure

    grid, surface = momentum_locus(trajectory, 61)
    plane = (
        grid[:: len(grid) - 1, :: len(grid) - 1] @ np.asarray(trajectory.system.inertia @ trajectory.system.subspace).T
    )
    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    axes = space(figure, labels=("$M_1$", "$M_2$", "$M_3$"), elev=10, azim=-120)
    draw_surfaces(axes, [surface], plane=plane)
    style: dict[str, Any] = {"color": COLOURS[1], "markersize": 2.5, "linewidth": 0.9, "zorder": 10}
    axes.plot(*np.asarray(trajectory.momentum).T, "o-", label="momenta of the run", **style)
    axes.legend(loc="upper left")
    return save(figure, path, f"Momentum on its locus, step {float(trajectory.step):g}")


ENDS = ("ok", "not converged", "branch lost", "not finite", "starts off the constraint", "a reduction is not finite")
CLASSES = {"status": (*ENDS, "not computed"), "drift": (*GROWTH_KINDS, "not classified")}
"""Variables that hold codes: what the codes 0, 1, ... mean, and -1 at the end."""
CLASS_COLOURS = {
    "status": ("#e8f1f7", COLOURS[1], COLOURS[3], GREY, COLOURS[4], COLOURS[0], "#ffffff"),
    "drift": ("#e8f1f7", COLOURS[5], COLOURS[4], COLOURS[1], "#ffffff"),
}


def open_sweep(path: str | Path) -> xarray.Dataset:
    """The Dataset of a store, finished or growing."""
    import xarray

    if not (Path(path) / "zarr.json").is_file():
        raise InvalidInput(f"there is no Zarr store of a sweep at {path}: `dalembert sweep` writes one")
    data: xarray.Dataset = xarray.open_zarr(path, consolidated=False, chunks=None)
    return data


class SweepSlice(NamedTuple):
    """A variable over one or two dimensions of a sweep, the others cut."""

    data: xarray.Dataset
    array: xarray.DataArray
    show: str
    x: str
    y: str | None
    title: str


def select_variable(
    data: xarray.Dataset,
    show: str = "status",
    x: str | None = None,
    y: str | None = None,
    at: Mapping[str, float | str] | None = None,
) -> SweepSlice:
    """`show` over x and y, by default the first dimensions that `at` does not cut; others are cut in their middle."""
    at = at or {}
    dims = [str(dim) for dim in data["status"].dims]
    for name in (x, y, *at):
        if name is not None and name not in dims:
            raise UnknownName("dimension of the sweep", name, dims)
    left = [dim for dim in dims if dim not in (x, y, *at)]
    if x is None and not left:
        raise InvalidInput(f"every dimension is cut ({', '.join(at)}): leave one for the picture")
    x = x or left.pop(0)
    y = y or (left.pop(0) if left else None)
    cut = {}
    for dim in (dim for dim in dims if dim not in (x, y)):
        values = _values(data, dim)
        try:
            cut[dim] = _nearest(values, at[dim]) if dim in at else len(values) // 2
        except ValueError:
            allowed = f"a number from {values[0]} to {values[-1]}" if values.dtype.kind in "if" else ", ".join(values)
            raise InvalidInput(f"{dim} cannot be cut at {at[dim]!r}; allowed: {allowed}") from None
    parts = [(*sweep_words(data, dim), _values(data, dim)[place]) for dim, place in cut.items()]
    where = ", ".join(
        f"{words} = {value if isinstance(value, str) else format(value, '.6g')} {style.print_unit(unit)}".rstrip()
        for words, unit, value in parts
    )
    data = data.isel(cut)
    array = _variable(data, show).transpose(*((x,) if y is None else (y, x)))
    words = sweep_words(data, show)[0]
    system = data.attrs.get("system", "")
    title = (f"{system}: {words}" if system else words[:1].upper() + words[1:]) + (f" at {where}" if where else "")
    return SweepSlice(data, array, show, x, y, title)


def sweep_words(data: xarray.Dataset, name: str) -> tuple[str, str]:
    """What a dimension or a variable of a sweep is, and its unit: ("final speed", "m s-1") of final_velocity.1."""
    name, *places = name.split(".")
    given = data[name].attrs if name in data.variables else {}
    words, unit = name.replace("_", " "), given.get("units", "")
    if name in data.coords:
        return {"step": "step $h$"}.get(text := given.get("long_name", words), text), unit
    kind = name.removeprefix("final_")
    labels = data.coords.get("coordinate_name" if kind == "coordinate" else "component")
    if labels is not None and len(places) == 1 and labels.name in data[name].dims:
        k = _place(labels, places[0])
        of = f"{kind} of " if kind == "momentum" else ""
        return f"{name.removesuffix(kind).replace('_', ' ')}{of}{labels.values[k]}", data[f"{kind}_unit"].values[k]
    places = places if name not in data or data[name].shape[-1:] != (1,) else []  # the only angle needs no number
    return " ".join([words, *places]).replace(" error max", " error, largest").replace(" max", ", largest"), unit


def _nearest(values: Array, value: float | str) -> int:
    """The place of the number nearest to `value`, or of this text."""
    if values.dtype.kind in "if":
        return int(np.argmin(np.abs(values - float(value))))
    return [str(each) for each in values].index(str(value))


def _place(labels: xarray.DataArray, place: str) -> int:
    """The number of a component that is given by its number or its name; -1 where there is none."""
    names = [str(each) for each in labels.values]
    k = names.index(place) if place in names else int(place) if place.isdigit() else -1
    return k if k < len(names) else -1


@styled
def plot_sweep(cut: SweepSlice, *, log: bool = False, curve: Any = None, path: str | Path | None = None) -> Figure:
    """Plot a variable of a sweep as a heat map, a map of classes, or a curve; `curve` = (x, y, label) goes on top.

    Members that failed are left blank, except in `status` and `failed_step`.
    """
    from matplotlib import colors, patches

    _, array, show, x, y, title = cut
    figure, axes = sheet(size=(6.6, 4.6))
    axes.grid(y is None)
    places = [_place_along(axes, cut.data, dim, which) for dim, which in zip((x, y), "xy", strict=True) if dim]
    edges = [_edges(place, scale) for place, scale in zip(places, (axes.get_xscale(), axes.get_yscale()), strict=False)]
    if y is None:
        axes.plot(*places, np.asarray(array, float), color=COLOURS[0], marker="o", markersize=2.5)
        axes.set(ylabel=unit_label(*sweep_words(cut.data, show)), yscale="log" if log else "linear")
    elif show in CLASSES:
        names, shades, codes = CLASSES[show], CLASS_COLOURS[show], np.asarray(array).astype(int)
        present = [code for code in (*range(len(names) - 1), -1) if np.any(codes == code)]
        index, limits = np.searchsorted(sorted(present), codes), {"vmin": -0.5, "vmax": len(present) - 0.5}
        cmap = colors.ListedColormap([shades[code] for code in sorted(present)])
        axes.pcolormesh(*edges, index, rasterized=True, cmap=cmap, **limits)
        keys = [patches.Patch(facecolor=shades[code], edgecolor=GREY, label=names[code]) for code in present]
        figure.legend(handles=keys, loc="outside lower center", ncols=len(keys))
    else:
        values = np.asarray(array, float)
        values = np.where(values > 0, values, np.nan) if log else values
        axes.set_facecolor("#f2f2f2")
        norm = colors.LogNorm() if log and np.isfinite(values).any() else None
        mesh = axes.pcolormesh(*edges, values, rasterized=True, cmap="viridis", norm=norm)
        figure.colorbar(mesh, ax=axes, label=unit_label(*sweep_words(cut.data, show)))
    if curve is not None:
        axes.plot(curve[0], curve[1], color="black", linewidth=1.4, label=curve[2])
        axes.legend(loc="upper right", frameon=True)
    return save(figure, path, title)


def _variable(data: xarray.Dataset, show: str) -> xarray.DataArray:
    """A variable, or one component by its number or name: final_velocity.0, final_velocity.speed."""
    name, *places = show.split(".")
    labels = data.coords.get("coordinate_name" if name.endswith("coordinate") else "component")
    if labels is not None:
        places = [place if place.isdigit() else str(_place(labels, place)) for place in places]
    dims = data["status"].dims
    known = [str(key) for key in data.data_vars if data[key].dims[: len(dims)] == dims]
    if name not in known:
        raise UnknownName("variable of the sweep", name, known)
    array = data[name]
    inner = array.dims[len(dims) :]
    if places == ["-1"] and labels is not None and inner == labels.dims:
        raise UnknownName(f"component of {name}", show.partition(".")[2], map(str, labels.values))
    fits = [place.isdigit() and int(place) < array.sizes[dim] for place, dim in zip(places, inner, strict=False)]
    if len(places) != len(inner) or not all(fits):
        sizes = [array.sizes[dim] for dim in inner] or "no"
        named = [] if labels is None or inner not in (("coordinate_name",), ("component",)) else labels.values
        one = [f"{name}.{each}" for each in named] or [name + ".0" * len(inner)]
        raise InvalidInput(f"{name} has {sizes} components for each member; show one: {', '.join(one)}")
    array = array.isel(dict(zip(inner, map(int, places), strict=True)))
    if name in ("status", "failed_step"):
        return array
    return array.where(data["status"] == 0, other=-1 if name == "drift" else np.nan)


def _values(array: Any, dim: str) -> Array:
    return np.asarray(array[dim]) if dim in array.coords else np.arange(array.sizes[dim])


def _place_along(axes: Any, data: xarray.Dataset, dim: str, which: str) -> Array:
    """Name the x or y axis, and give the places along it; a geometric progression gets a logarithmic axis."""
    values = _values(data, dim)
    axes.set(**{f"{which}label": unit_label(*sweep_words(data, dim))})
    if values.dtype.kind not in "if":
        places = np.arange(len(values))
        axes.set(**{f"{which}ticks": places, f"{which}ticklabels": list(values)})
        return places
    if len(values) > 3 and np.all(values > 0) and np.allclose(np.diff(np.log(values)), np.log(values[1] / values[0])):
        axes.set(**{f"{which}scale": "log"})
    return values


def _edges(places: Array, scale: str) -> Array:
    """The borders of the cells around places, halfway between them as the axis shows them."""
    if len(places) == 1:
        return np.array([places[0] - 0.5, places[0] + 0.5])
    at = np.log(places) if scale == "log" else np.asarray(places, float)
    inner = 0.5 * (at[1:] + at[:-1])
    found = np.concatenate([[2 * at[0] - inner[0]], inner, [2 * at[-1] - inner[-1]]])
    return np.asarray(np.exp(found) if scale == "log" else found)


@styled
def plot_fit(
    names: Sequence[str],
    times: Array,
    data: Array,
    left: Array,
    t: Array,
    motion: Array,
    path: str | Path | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Plot a fit: data and motion over time, a panel for each component, and the residuals in deviations below."""
    count = len(names)
    columns = min(count, 3)
    rows = -(-count // columns)
    ratios = [3.0, 1.0] * rows
    figure, axes = sheet(
        2 * rows, columns, size=(4.2 * columns, 3.6 * rows), sharex=True, squeeze=False, height_ratios=ratios
    )
    for k in range(rows * columns):
        row, column = divmod(k, columns)
        above, below = axes[2 * row, column], axes[2 * row + 1, column]
        if k >= count:
            above.remove()
            below.remove()
            continue
        above.plot(t, break_turns(motion[:, k]), color=COLOURS[1], label="motion", zorder=3)
        above.plot(times, data[:, k], ".", color=COLOURS[0], markersize=3.5, label="data")
        above.set(ylabel=names[k])
        largest = max(3.2, 1.1 * np.nanmax(np.abs(left[:, k]), initial=0.0))
        below.axhspan(-2.0, 2.0, color=LIGHT, alpha=0.6, linewidth=0)
        below.axhline(0.0, color=GREY, linewidth=0.7)
        below.plot(times, left[:, k], ".", color=COLOURS[0], markersize=3.5)
        below.set(ylim=(-largest, largest), xlabel=TIME, ylabel="residual / sd" if column == 0 else "")
        below.tick_params(labelbottom=True)
        if k == 0:
            above.legend(loc="best")
    return save(figure, path, title)
