"""Sweeps as heat maps, slices and failure maps of any two of their dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidInput, UnknownName
from .style import COLOURS, GREY, headline, save, sheet, styled

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


Array = np.ndarray[Any, Any]
STATUS = {
    0: ("ok", "#e8f1f7"),
    1: ("not converged", "#d55e00"),
    2: ("branch lost", "#cc79a7"),
    3: ("not finite", "#555555"),
    4: ("starts off the constraint", "#e69f00"),
    -1: ("not computed", "#ffffff"),
}
DRIFT = {
    0: ("bounded", "#e8f1f7"),
    1: ("random walk", "#56b4e9"),
    2: ("linear", "#e69f00"),
    3: ("exponential", "#d55e00"),
    -1: ("not classified", "#ffffff"),
}
CLASSES = {"status": STATUS, "drift": DRIFT}


def open_sweep(path: str | Path) -> xarray.Dataset:
    """The Dataset of a store, finished or growing."""
    import xarray

    if not (Path(path) / "zarr.json").is_file():
        raise InvalidInput(f"{path} is not the Zarr store of a sweep")
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
    at: Mapping[str, float] | None = None,
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
    cut = {dim: _index(data, dim, at.get(dim)) for dim in dims if dim not in (x, y)}
    where = ", ".join(f"{dim} = {_values(data, dim)[place]:.6g}" for dim, place in cut.items())
    data = data.isel(cut)
    array = _variable(data, show).transpose(*((x,) if y is None else (y, x)))
    return SweepSlice(data, array, show, x, y, f"{show}{' at ' + where if where else ''}")


@styled
def plot_sweep(cut: SweepSlice, *, log: bool = False, curve: Any = None, path: str | Path | None = None) -> Figure:
    """A heat map, a map of classes, or a curve; `curve` = (x, y, label) is drawn on top.

    Members that failed are left blank, except in `status` and `failed_step`.
    """
    _, array, show, x, y, title = cut
    figure, axes = sheet(size=(6.6, 4.6))
    axes.grid(False)
    if y is None:
        _draw_slice(axes, array, x, log)
    elif show in CLASSES:
        _draw_classes(figure, axes, array, x, y, CLASSES[show])
    else:
        _draw_heat(figure, axes, array, x, y, log, show)
    if curve is not None:
        axes.plot(curve[0], curve[1], color="black", linewidth=1.4, label=curve[2])
        axes.legend(loc="upper right", frameon=True)
    headline(figure, title)
    return save(figure, path)


def _variable(data: xarray.Dataset, show: str) -> xarray.DataArray:
    """A variable, or one component: final_velocity.0."""
    name, *places = show.split(".")
    dims = data["status"].dims
    known = [str(key) for key in data.data_vars if data[key].dims[: len(dims)] == dims]
    if name not in known:
        raise UnknownName("variable of the sweep", name, known)
    array = data[name]
    inner = array.dims[len(dims) :]
    if len(places) != len(inner) or not all(
        p.isdigit() and int(p) < array.sizes[d] for p, d in zip(places, inner, strict=True)
    ):
        sizes = [array.sizes[dim] for dim in inner]
        raise InvalidInput(
            f"{name} has {sizes or 'no'} components for each member; show one: {name}{''.join('.0' for _ in inner)}"
        )
    array = array.isel(dict(zip(inner, map(int, places), strict=True)))
    return (
        array
        if name in ("status", "failed_step")
        else array.where(data["status"] == 0, other=-1 if name == "drift" else np.nan)
    )


def _values(array: Any, dim: str) -> Array:
    return np.asarray(array[dim]) if dim in array.coords else np.arange(array.sizes[dim])


def _index(array: Any, dim: str, value: float | None) -> int:
    if value is None:
        return int(array.sizes[dim]) // 2
    values = _values(array, dim)
    return int(np.argmin(np.abs(values - value))) if values.dtype.kind in "if" else int(value)


def _positions(values: Array) -> Array:
    return values if values.dtype.kind in "if" else np.arange(len(values))


def _label_axes(axes: Any, array: Any, x: str, y: str | None) -> None:
    """Name the axes; values in geometric progression get a logarithmic one."""
    for dim, which in ((x, "x"), *(((y, "y"),) if y else ())):
        values = _values(array, dim)
        axes.set(**{f"{which}label": dim})
        if values.dtype.kind not in "if":
            axes.set(**{f"{which}ticks": np.arange(len(values)), f"{which}ticklabels": list(values)})
        elif (
            len(values) > 2
            and np.all(values > 0)
            and np.allclose(np.diff(np.log(values)), np.log(values[1] / values[0]))
        ):
            axes.set(**{f"{which}scale": "log"})


def _mesh(axes: Any, array: Any, x: str, y: str, values: Array, **options: Any) -> Any:
    across, up = _positions(_values(array, x)), _positions(_values(array, y))
    _label_axes(axes, array, x, y)
    return axes.pcolormesh(across, up, values, shading="nearest", rasterized=True, **options)


def _draw_heat(figure: Any, axes: Any, array: Any, x: str, y: str, log: bool, show: str) -> None:
    from matplotlib.colors import LogNorm

    values = np.asarray(array, float)
    values = np.where(values > 0, values, np.nan) if log else values
    axes.set_facecolor("#f2f2f2")
    norm = LogNorm() if log and np.isfinite(values).any() else None
    figure.colorbar(_mesh(axes, array, x, y, values, cmap="viridis", norm=norm), ax=axes, label=show)


def _draw_classes(figure: Any, axes: Any, array: Any, x: str, y: str, names: Mapping[int, tuple[str, str]]) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    codes = np.asarray(array).astype(int)
    present = [code for code in names if np.any(codes == code)]
    index = np.searchsorted(sorted(present), codes)
    _mesh(
        axes,
        array,
        x,
        y,
        index,
        cmap=ListedColormap([names[code][1] for code in sorted(present)]),
        vmin=-0.5,
        vmax=len(present) - 0.5,
    )
    patches = [Patch(facecolor=names[code][1], edgecolor=GREY, label=names[code][0]) for code in present]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))


def _draw_slice(axes: Any, array: Any, x: str, log: bool) -> None:
    values = np.asarray(array, float)
    axes.grid(True)
    _label_axes(axes, array, x, None)
    axes.plot(_positions(_values(array, x)), values, color=COLOURS[0], marker="o", markersize=2.5)
    if log:
        axes.set_yscale("log")
    axes.set_ylabel(str(array.name))
