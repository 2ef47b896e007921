"""Trajectories in files, NetCDF (.nc) or Zarr (.zarr): read back equal to what was saved.

What a file holds is said in `writing`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .data import NAMES
from .errors import InvalidInput, UnknownName
from .integrators import Integrator
from .models.registry import MODELS
from .portable import Arrays, unpack
from .run import Run
from .system import MechanicalSystem
from .writing import CARRY, SUFFIXES, checksum, require_writable, require_zarr, save

if TYPE_CHECKING:
    import xarray

__all__ = ["checksum", "column_name", "load", "open_dataset", "require_writable", "save"]


def load(
    path: str | Path, *, system: MechanicalSystem | None = None, integrator: Integrator | None = None
) -> Run:
    """The Run that a file holds, equal to the one that was saved.

    A file holds no code: a system of your own (or a method with functions of your own) has to be given again.
    """
    path = Path(path)
    dataset, carry = open_dataset(path), open_dataset(path, CARRY)
    try:
        saved = json.loads(carry.attrs["trajectory"])
        forms, shapes = saved["forms"], saved["shapes"]
    except (KeyError, json.JSONDecodeError) as fault:
        raise InvalidInput(f"{path} is not a trajectory of dalembert: it has no description of one") from fault
    arrays = {name: _array(path, dataset, carry, name, *shapes[name]) for name in shapes}
    if checksum(arrays) != saved["checksum"]:
        raise InvalidInput(f"{path} is damaged: its numbers are not those that were saved (checksum)")
    given = {"system": system, "integrator": integrator}
    fields = {name: _field(path, dataset, name, form, arrays, given.get(name)) for name, form in forms.items()}
    return Run(**fields)


def open_dataset(path: Path, group: str | None = None) -> xarray.Dataset:
    """The data of a file in memory; a missing, foreign or truncated one is named."""
    import xarray

    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"{path} is no data file; allowed: a file that ends in .nc (NetCDF) or .zarr (Zarr)")
    if not path.exists():
        raise InvalidInput(f"there is no file {path}")
    zarr = path.suffix == ".zarr"
    if zarr:
        require_zarr()
    options: dict[str, Any] = {"engine": "zarr", "consolidated": False} if zarr else {"engine": "h5netcdf"}
    try:
        with xarray.open_dataset(path, group=group, **options) as data:
            return data.load()
    except Exception as fault:  # every library below has its own exceptions for a broken file
        what = "a whole trajectory of dalembert" if group else f"a readable {'Zarr' if zarr else 'NetCDF'} file"
        raise InvalidInput(f"{path} is not {what} (truncated, or something else): {fault}") from fault


def _array(path: Path, dataset, carry, name: str, shape: list[int], dtype: str) -> np.ndarray:
    if not np.prod(shape):
        return np.zeros(shape, dtype)
    held, column = (dataset, column_name(name)) if name.startswith("records.") else (carry, name)
    if column not in held:
        raise UnknownName(f"column of {path} (which a trajectory needs, but the file lacks)", column, map(str, held))
    array = held[column].values
    if list(array.shape) != shape or array.dtype != np.dtype(dtype):
        raise InvalidInput(f"{path}: {column} is {array.dtype} {array.shape}, but {dtype} {tuple(shape)} was saved")
    return array


def column_name(path: str) -> str:
    """The column of a record: "configuration_0" for "records.state.g.0"."""
    head = "records.state.g"
    return f"configuration{path.removeprefix(head).replace('.', '_')}" if path.startswith(head) else NAMES[path]


def _field(path: Path, dataset, name: str, form: Any, arrays: Arrays, given: Any) -> Any:
    if given is not None:
        return given
    if not (isinstance(form, dict) and "missing" in form):
        return unpack(form, arrays)
    if name == "system" and (rebuilt := _model(dataset.attrs.get("config", ""))) is not None:
        return rebuilt
    raise InvalidInput(f"{path} cannot hold the {name} of this run ({form['missing']}): give load(path, {name}=...)")


def _model(config: str) -> MechanicalSystem | None:
    """The system of a configuration that names a model of dalembert."""
    import tomllib

    try:
        section = dict(tomllib.loads(config)["system"])
        return MODELS[section.pop("name")].make(section)
    except (tomllib.TOMLDecodeError, KeyError, InvalidInput):
        return None
