"""Trajectories in files, NetCDF (.nc) or Zarr (.zarr): written whole or not at all, read back equal.

The root group is the Dataset of `to_xarray`; the group `carry` holds what else a Trajectory has: the system, the method and
the loop's carry, from which a run goes on bit for bit. A checksum over all of it tells a damaged file from a whole one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .atomic import replacing
from .data import NAMES, to_xarray
from .errors import InvalidInput, UnknownName
from .integrators import Integrator
from .portable import Arrays, NotPortable, pack, unpack
from .system import MechanicalSystem
from .trajectory import Trajectory

if TYPE_CHECKING:
    import xarray

SUFFIXES = (".nc", ".zarr")
CARRY = "carry"
PER_VARIABLE = 2048
"""Bytes that a variable may take in a file beside its numbers."""


# -- writing --------------------------------------------------------------------------------------------------------------------
def save(
    trajectory: Trajectory, path: str | Path, attributes: Mapping[str, Any] | None = None, *, reaction: bool = False
) -> None:
    """Write a NetCDF or Zarr file whole or not at all: beside its place under another name, then renamed.

    Of two runs that write one file the later one stays, whole. `attributes` (such as the configuration) go into the file.
    """
    path = Path(path)
    require_writable(path)
    dataset = to_xarray(trajectory, reaction=reaction).assign_attrs(attributes or {})
    carry = _carry(trajectory)
    variables = len(dataset.variables) + len(carry.variables)
    with replacing(path, room=dataset.nbytes + carry.nbytes + PER_VARIABLE * variables) as temporary:
        _write(dataset, carry, temporary, zarr=path.suffix == ".zarr")


def require_writable(path: Path) -> None:
    """Refuse an output file that cannot be written, before anything runs."""
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"--out is {path}; allowed: a file that ends in .nc (NetCDF) or .zarr (Zarr)")
    if not path.parent.is_dir():
        raise InvalidInput(f"--out is {path}, but the folder {path.parent} does not exist: create it first")
    foreign = path.is_dir() and (path.suffix != ".zarr" or not _is_zarr(path))
    if foreign or (path.suffix == ".zarr" and path.is_file()) or not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"--out is {path}, which cannot be written")
    if path.suffix == ".zarr":
        _require_zarr()


def _is_zarr(path: Path) -> bool:
    return any((path / name).is_file() for name in ("zarr.json", ".zgroup")) or not any(path.iterdir())


def _require_zarr() -> None:
    try:
        import zarr  # noqa: F401
    except ImportError as fault:
        raise InvalidInput("Zarr files need the package zarr: pip install 'dalembert[zarr]'; or write .nc") from fault


def _write(dataset: xarray.Dataset, carry: xarray.Dataset, path: Path, zarr: bool) -> None:
    if zarr:
        dataset.to_zarr(path, mode="w", consolidated=False, zarr_format=2)
        carry.to_zarr(path, mode="a", group=CARRY, consolidated=False, zarr_format=2)
    else:
        dataset.to_netcdf(path, engine="h5netcdf")
        carry.to_netcdf(path, mode="a", group=CARRY, engine="h5netcdf")


def _carry(trajectory: Trajectory) -> xarray.Dataset:
    """Everything but the records, as named arrays and one JSON text."""
    import xarray

    forms, arrays = _packed(trajectory)
    kept = {path: array for path, array in arrays.items() if not path.startswith("records")}
    data = {
        path: (tuple(f"{path}_{k}" for k in range(array.ndim)), array) for path, array in kept.items() if array.size
    }
    shapes = {path: [list(array.shape), array.dtype.str] for path, array in arrays.items()}
    text = json.dumps({"forms": forms, "shapes": shapes, "checksum": checksum(arrays)})
    return xarray.Dataset(data, attrs={"trajectory": text})


def _packed(trajectory: Trajectory) -> tuple[dict[str, Any], Arrays]:
    forms: dict[str, Any] = {}
    arrays: Arrays = {}
    for field in dataclasses.fields(trajectory):
        found: Arrays = {}
        try:
            forms[field.name] = pack(getattr(trajectory, field.name), field.name, found)
            arrays |= found
        except NotPortable as fault:
            if field.name not in ("system", "integrator"):
                raise
            forms[field.name] = {"missing": str(fault)}
    return forms, arrays


def checksum(arrays: Mapping[str, np.ndarray]) -> int:
    """CRC-32 over all arrays, in the order of their names."""
    value = 0
    for path in sorted(arrays):
        value = zlib.crc32(np.ascontiguousarray(arrays[path]).tobytes(), zlib.crc32(path.encode(), value))
    return value


# -- reading --------------------------------------------------------------------------------------------------------------------
def load(
    path: str | Path, *, system: MechanicalSystem | None = None, integrator: Integrator | None = None
) -> Trajectory:
    """The Trajectory that a file holds, equal to the one that was saved.

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
    return Trajectory(**fields)


def open_dataset(path: Path, group: str | None = None) -> xarray.Dataset:
    """The data of a file in memory; a missing, foreign or truncated one is named."""
    import xarray

    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"{path} is no data file; allowed: a file that ends in .nc (NetCDF) or .zarr (Zarr)")
    if not path.exists():
        raise InvalidInput(f"there is no file {path}")
    zarr = path.suffix == ".zarr"
    if zarr:
        _require_zarr()
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

    from .models.registry import MODELS

    try:
        section = dict(tomllib.loads(config)["system"])
        return MODELS[section.pop("name")].make(section)
    except (tomllib.TOMLDecodeError, KeyError, InvalidInput):
        return None
