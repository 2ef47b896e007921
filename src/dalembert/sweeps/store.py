"""Where a sweep goes: a Zarr store that grows block by block, the memory of this process, or a function of the user.

A block is written variable by variable, each chunk by a rename, flushed to the disk, and then marked by its checksum: what has no mark
was not written. Zarr checks every chunk (CRC-32C) when anyone reads it; the mark is checked when a sweep is resumed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import InvalidInput, WriteFailure, made_by
from ..io.atomic import atomic_path, output_lock
from ..io.config import to_toml
from ..io.dataset import checksum, require_writable
from .members import Arrays, SweepMembers, SweepVariable, describe_variables
from .plan import SweepAxis, GridBlock, SweepPlan

MAX_MEMORY_BYTES = 1 << 31
"""Bytes of results that may be held in memory."""
COORDINATE_CHUNK = 1 << 20
"""Values of a coordinate written at a time."""
CHECKSUM_NAME = "block_checksum"
NOT_WRITTEN = -1


class BlockSink(Protocol):
    """Takes the arrays of finished blocks."""

    def done(self) -> dict[int, int]:
        """The blocks that are there already, with the number of failed members of each."""

    def write(self, block: GridBlock, arrays: Arrays) -> None: ...


class CallbackSink:
    """Every block goes to a function of the user, and nothing is kept."""

    def __init__(self, function: Callable[[GridBlock, Arrays], Any]):
        self.function = function

    def done(self) -> dict[int, int]:
        return {}

    def write(self, block: GridBlock, arrays: Arrays) -> None:
        self.function(block, arrays)


class MemorySink:
    """Results in the memory of this process."""

    def __init__(self, members: SweepMembers):
        self.plan, self.variables = members.plan, describe_variables(members)
        size = self.plan.members * sum(math.prod(one.shape) * one.dtype.itemsize for one in self.variables.values())
        if size > MAX_MEMORY_BYTES:
            raise InvalidInput(
                f"the results take {size / 2**30:.1f} GiB: give out = 'name.zarr', or a function that takes the blocks"
            )
        self.arrays = {
            name: np.full((*self.plan.shape, *one.shape), one.missing, one.dtype)
            for name, one in self.variables.items()
        }

    def done(self) -> dict[int, int]:
        return {}

    def write(self, block: GridBlock, arrays: Arrays) -> None:
        for name, part in arrays.items():
            self.arrays[name][_region(block)] = part

    def dataset(self) -> Any:
        import xarray

        data = {
            name: ((*self.plan.dims, *one.dims), self.arrays[name], {"long_name": one.about})
            for name, one in self.variables.items()
        }
        coords = {name: (dim, _coordinate(axis, name, 0, size)) for name, dim, size, axis in self.plan.coordinates()}
        return xarray.Dataset(data, coords, provenance(self.plan))


class ZarrStore:
    """A Zarr v3 store; chunks are the blocks of the plan."""

    def __init__(self, path: Path, members: SweepMembers):
        import zarr

        self.path, self.plan, self.variables = path, members.plan, describe_variables(members)
        group = zarr.open_group(path, mode="r+")
        self.arrays: dict[str, Any] = {name: group[name] for name in (*self.variables, CHECKSUM_NAME)}

    def done(self) -> dict[int, int]:
        """The blocks whose numbers are those that their marks tell; the others, torn or damaged, are computed again."""
        marks, found = np.asarray(self.arrays[CHECKSUM_NAME]), {}
        for number in np.flatnonzero(marks != NOT_WRITTEN):
            block = self.plan.block(int(number))
            try:
                arrays = {name: np.asarray(self.arrays[name][_region(block)]) for name in self.variables}
            except (ValueError, OSError):  # Zarr's own checksum of a chunk
                continue
            if checksum(arrays) == marks[number]:
                found[int(number)] = int(np.count_nonzero(arrays["status"]))
        return found

    def write(self, block: GridBlock, arrays: Arrays) -> None:
        try:
            for name, part in arrays.items():
                self.arrays[name][_region(block)] = part
                self._flush(
                    name, [lo // size for (lo, _), size in zip(block.ranges, self.plan.block_shape, strict=True)]
                )
            self.arrays[CHECKSUM_NAME][block.number] = checksum(arrays)
            self._flush(CHECKSUM_NAME, [block.number])
        except OSError as fault:
            why = os.strerror(fault.errno) if fault.errno else str(fault)
            raise WriteFailure(
                f"could not write {self.path}: {why}; what is done stays, go on with --resume"
            ) from fault

    def _flush(self, name: str, places: list[int]) -> None:
        """The chunk and the entry of its folder onto the disk."""
        more = len(self.arrays[name].shape) - len(places)
        file = self.path.joinpath(name, "c", *map(str, places), *["0"] * more)
        for path in (file, file.parent):
            if path.exists():  # Zarr leaves out a chunk in which everything is missing
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def dataset(self) -> Any:
        import xarray

        return xarray.open_zarr(self.path, consolidated=False)


@contextmanager
def open_store(path: Path, members: SweepMembers, resume: bool) -> Iterator[ZarrStore]:
    """The store at `path`, new or gone on with, held against other writers."""
    if path.suffix != ".zarr":
        raise InvalidInput(f"--out is {path}; allowed: a name that ends in .zarr")
    require_writable(path)
    with output_lock(path):
        there = path.exists() and any(path.iterdir())
        if there and not resume:
            raise InvalidInput(f"{path} exists already: go on with it by --resume, or give another --out")
        if there:
            _require_same(path, members.plan)
            for torn in path.rglob("*.partial"):
                torn.unlink(missing_ok=True)
        else:
            if path.exists():
                shutil.rmtree(path)
            with atomic_path(path) as temporary:
                _create(temporary, members)
        yield ZarrStore(path, members)


def _create(path: Path, members: SweepMembers) -> None:
    """All metadata and coordinates; chunks come later."""
    import zarr

    plan = members.plan
    group = zarr.create_group(path, zarr_format=3, attributes=provenance(plan))
    for name, dim, size, axis in plan.coordinates():
        first = _coordinate(axis, name, 0, 1)
        coordinate = group.create_array(
            name, shape=(size,), chunks=(min(size, COORDINATE_CHUNK),), dtype=first.dtype, dimension_names=(dim,)
        )
        for lo in range(0, size, COORDINATE_CHUNK):
            coordinate[lo : lo + COORDINATE_CHUNK] = _coordinate(axis, name, lo, min(lo + COORDINATE_CHUNK, size))
    for name, one in describe_variables(members).items():
        _empty(group, name, plan.shape, plan.block_shape, plan.dims, one)
    mark = SweepVariable((), (), "int64", NOT_WRITTEN, "CRC-32 of the numbers of a block; -1: not computed yet")
    _empty(group, CHECKSUM_NAME, (plan.blocks,), (1,), ("block",), mark)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other implementations may not read the consolidated copy
        zarr.consolidate_metadata(path)


def _empty(group: Any, name: str, shape, chunks, dims, one: SweepVariable) -> None:
    from zarr.codecs import Crc32cCodec, ZstdCodec

    checked = (
        [Crc32cCodec()] if one.dtype.kind == "f" else [ZstdCodec(level=1), Crc32cCodec()]
    )  # digits of states do not compress
    group.create_array(
        name,
        shape=(*shape, *one.shape),
        chunks=(*chunks, *one.shape),
        dtype=one.dtype,
        fill_value=one.missing,
        dimension_names=(*dims, *one.dims),
        compressors=checked,
        attributes={"long_name": one.about},
    )


def stored_block_size(path: Path) -> int | None:
    """The size of the blocks of a store, whichever executor began it; None where there is no store."""
    return math.prod(_saved(path)["blocks"]) if path.is_dir() and any(path.iterdir()) else None


def _saved(path: Path) -> dict[str, Any]:
    try:
        return json.loads(json.loads((path / "zarr.json").read_text())["attributes"]["plan"])
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise InvalidInput(f"{path} is not a sweep of dalembert: it cannot be resumed") from fault


def _require_same(path: Path, plan: SweepPlan) -> None:
    """Refuse to go on with another sweep, saying what differs."""
    saved = _saved(path)
    now = json.loads(plan.description)
    differ = [f"{key}: {saved.get(key)} was saved, {now[key]} is asked" for key in now if saved.get(key) != now[key]]
    if differ:
        raise InvalidInput(f"{path} holds another sweep ({'; '.join(differ)}): give another --out")


def _coordinate(axis: SweepAxis, name: str, lo: int, hi: int) -> np.ndarray:
    """The values of a name along its axis; what is no number is written as text."""
    own = next(one for one in axis.names if one.replace(".", "_") == name)
    part = axis.at(lo, hi)[own]
    return (
        part
        if isinstance(part, np.ndarray)
        else np.array([str(entry) for entry in part], dtype=f"<U{_longest(axis, own)}")
    )


def _longest(axis: SweepAxis, name: str) -> int:
    return max(len(str(entry)) for entry in axis.at(0, axis.size)[name])


def _region(block: GridBlock) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in block.ranges)


def provenance(plan: SweepPlan) -> dict[str, Any]:
    """What made a store: the plan, the configuration, versions, machine and time."""
    return {
        "plan": plan.description,
        "config": to_toml({**plan.config, "sweep": plan.section}),
        "members": plan.members,
        **made_by(),
    }
