"""Trajectories into files, NetCDF (.nc) or Zarr (.zarr): written whole or not at all.

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
from .data import to_xarray
from .errors import InvalidInput
from .portable import Arrays, NotPortable, pack
from .run import Run

if TYPE_CHECKING:
    import xarray

SUFFIXES = (".nc", ".zarr")
CARRY = "carry"
PER_VARIABLE = 2048
"""Bytes that a variable may take in a file beside its numbers."""


def save(
    trajectory: Run, path: str | Path, attributes: Mapping[str, Any] | None = None, *, reaction: bool = False
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
        require_zarr()


def _is_zarr(path: Path) -> bool:
    return any((path / name).is_file() for name in ("zarr.json", ".zgroup")) or not any(path.iterdir())


def require_zarr() -> None:
    """Refuse a Zarr file where the package is missing."""
    try:
        import zarr  # noqa: F401
    except ImportError as fault:
        raise InvalidInput("Zarr files need the package zarr: pip install 'zarr>=3'; or write .nc") from fault


def _write(dataset: xarray.Dataset, carry: xarray.Dataset, path: Path, zarr: bool) -> None:
    if zarr:
        dataset.to_zarr(path, mode="w", consolidated=False, zarr_format=2)
        carry.to_zarr(path, mode="a", group=CARRY, consolidated=False, zarr_format=2)
    else:
        dataset.to_netcdf(path, engine="h5netcdf")
        carry.to_netcdf(path, mode="a", group=CARRY, engine="h5netcdf")


def _carry(trajectory: Run) -> xarray.Dataset:
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


def _packed(trajectory: Run) -> tuple[dict[str, Any], Arrays]:
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
