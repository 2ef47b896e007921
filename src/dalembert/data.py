"""Trajectories as labelled data and files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .errors import InvalidInput
from .trajectory import Trajectory

if TYPE_CHECKING:
    import xarray


def to_xarray(trajectory: Trajectory) -> xarray.Dataset:
    """A Dataset over `time` (and `member`) with configuration, velocity, momentum, multipliers, energy and how the steps went."""
    import xarray

    from . import __version__

    ensemble = np.ndim(trajectory.final.status) == 1
    lead = ("member", "save") if ensemble else ("time",)
    columns = {
        "velocity": (trajectory.xi, ("algebra",)),
        "momentum": (trajectory.momentum, ("dual",)),
        "increment": (trajectory.increment, ("algebra",)),
        "multiplier": (trajectory.multipliers, ("constraint",)),
        "angle": (trajectory.angles, ("rotation",)),
        "energy": (trajectory.energy(), ()),
        "constraint_residual": (trajectory.constraint_residual(), ()),
        "group_distance": (trajectory.group_distance(), ()),
        "residual": (trajectory.residual, ()),
        "iterations": (trajectory.iterations, ()),
    }
    factors = trajectory.g if isinstance(trajectory.g, tuple) else (trajectory.g,)
    for k, factor in enumerate(factors):
        name = "configuration" if len(factors) == 1 else f"configuration_{k}"
        axes = np.ndim(factor) - len(lead)
        columns[name] = (factor, tuple(f"{name}_{axis}" for axis in ("row", "column")[:axes]))
    data = {name: ((*lead, *dims), np.asarray(values)) for name, (values, dims) in columns.items() if np.size(values)}
    coordinates = {"t": (lead, np.asarray(trajectory.t))} if ensemble else {"time": np.asarray(trajectory.t)}
    attributes = {
        "group": str(trajectory.system.group),
        "method": repr(trajectory.integrator),
        "step": float(trajectory.step),
        "status": str(trajectory.status),
        "backend": trajectory.backend,
        "dalembert": __version__,
    }
    return xarray.Dataset(data, coords=coordinates, attrs=attributes)


def require_writable(path: Path) -> None:
    """Refuse an output file that cannot be written, before anything runs."""
    if path.suffix != ".nc":
        raise InvalidInput(f"--out is {path}; allowed: a file that ends in .nc (NetCDF)")
    if not path.parent.is_dir():
        raise InvalidInput(f"--out is {path}, but the folder {path.parent} does not exist: create it first")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"--out is {path}, which cannot be written")


def save(trajectory: Trajectory, path: str | Path, attributes: dict[str, str] | None = None) -> None:
    """Write a NetCDF file whole or not at all: to a temporary file in the same folder, then renamed."""
    path = Path(path)
    require_writable(path)
    dataset = to_xarray(trajectory).assign_attrs(attributes or {})
    handle, temporary = tempfile.mkstemp(suffix=".nc", prefix=f".{path.stem}-", dir=path.parent)
    os.close(handle)
    try:
        dataset.to_netcdf(temporary, engine="h5netcdf")
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
