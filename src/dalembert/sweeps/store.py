"""Where the results of a sweep go: a Zarr store that grows block by block, memory, or a function of the user.

A block is written variable by variable, each chunk by a rename, and flushed to the disk. Then its checksum is written:
a block without checksum was not written. Zarr checks every chunk (CRC-32C) when anyone reads it; the checksum of a
block is checked when a sweep is resumed.
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
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import InvalidInput, WriteFailure, made_by
from ..io.atomic import atomic_path, flush_to_disk, output_lock
from ..io.config import to_toml
from ..io.dataset import Arrays, checksum, checksum_attributes, require_writable
from .members import SweepMembers, SweepVariable, describe_variables
from .plan import GridBlock, SweepAxis, SweepPlan

if TYPE_CHECKING:
    import xarray

MAX_MEMORY_BYTES = 1 << 31
COORDINATE_CHUNK = 1 << 20
"""Values of a coordinate that are written at a time."""
CHECKSUM_NAME = "block_checksum"
NOT_WRITTEN = -1


class BlockSink(Protocol):
    """Takes the arrays of finished blocks."""

    def done(self) -> dict[int, int]:
        """The blocks that are there already, with the number of failed members of each."""

    def write(self, block: GridBlock, arrays: Arrays) -> None:
        """Take the arrays of a block."""

    def dataset(self) -> xarray.Dataset:
        """The results."""


class CallbackSink:
    """Gives every block to a function of the user and keeps nothing."""

    def __init__(self, function: Callable[[GridBlock, Arrays], Any]):
        self.write = function

    def done(self) -> dict[int, int]:
        return {}

    def dataset(self) -> xarray.Dataset:
        raise InvalidInput("the blocks went to your function: nothing was kept")


class MemorySink:
    """Keeps the results in the memory of this process."""

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
            self.arrays[name][block.region] = part

    def dataset(self) -> xarray.Dataset:
        import xarray

        data = {
            name: ((*self.plan.dims, *one.dims), self.arrays[name], {"long_name": one.about})
            for name, one in self.variables.items()
        }
        coords = {name: (dim, _coordinate(axis, name, 0, size)) for name, dim, size, axis in self.plan.coordinates()}
        return xarray.Dataset(data, coords, provenance(self.plan))


class ZarrStore:
    """A Zarr v3 store; its chunks are the blocks of the plan."""

    def __init__(self, path: Path, members: SweepMembers):
        import zarr

        self.path, self.plan, self.variables = path, members.plan, describe_variables(members)
        group = zarr.open_group(path, mode="r+")
        self.arrays: dict[str, Any] = {name: group[name] for name in (*self.variables, CHECKSUM_NAME)}

    def done(self) -> dict[int, int]:
        """The blocks whose numbers have the checksum that was written; torn or damaged blocks are computed again."""
        checksums, found = np.asarray(self.arrays[CHECKSUM_NAME]), {}
        for number in np.flatnonzero(checksums != NOT_WRITTEN):
            block = self.plan.block(int(number))
            try:
                arrays = {name: np.asarray(self.arrays[name][block.region]) for name in self.variables}
            except (ValueError, OSError):  # Zarr's own checksum of a chunk
                continue
            if checksum(arrays) == checksums[number]:
                found[int(number)] = int(np.count_nonzero(arrays["status"]))
        return found

    def write(self, block: GridBlock, arrays: Arrays) -> None:
        places = [lo // size for (lo, _), size in zip(block.ranges, self.plan.block_shape, strict=True)]
        try:
            for name, part in arrays.items():
                self.arrays[name][block.region] = part
                self._flush(name, places)
            self.arrays[CHECKSUM_NAME][block.number] = checksum(arrays)
            self._flush(CHECKSUM_NAME, [block.number])
        except OSError as fault:
            why = os.strerror(fault.errno) if fault.errno else str(fault)
            message = f"could not write {self.path}: {why}; what is done stays, go on with --resume"
            raise WriteFailure(message) from fault

    def _flush(self, name: str, places: list[int]) -> None:
        """Write the chunk and the entry of its folder to the disk."""
        inner = len(self.arrays[name].shape) - len(places)
        file = self.path.joinpath(name, "c", *map(str, places), *["0"] * inner)
        for path in (file, file.parent):
            if path.exists():  # Zarr leaves out a chunk in which everything is missing
                flush_to_disk(path)

    def dataset(self) -> xarray.Dataset:
        import xarray

        opened: xarray.Dataset = xarray.open_zarr(self.path, consolidated=False)
        return opened


@contextmanager
def open_store(path: Path, members: SweepMembers, resume: bool) -> Iterator[ZarrStore]:
    """The store at `path`, new or resumed, locked against other writers."""
    if path.suffix != ".zarr":
        raise InvalidInput(f"--out is {path}; allowed: a name that ends in .zarr")
    require_writable(path)
    with output_lock(path):
        if path.exists() and any(path.iterdir()):
            if not resume:
                raise InvalidInput(f"{path} exists already: go on with it by --resume, or give another --out")
            _require_same_plan(path, members.plan)
            for torn in path.rglob("*.partial"):
                torn.unlink(missing_ok=True)
        else:
            if path.exists():
                shutil.rmtree(path)
            with atomic_path(path) as temporary:
                _create(temporary, members)
        yield ZarrStore(path, members)


def _create(path: Path, members: SweepMembers) -> None:
    """Write all metadata and coordinates; chunks come later."""
    import zarr

    plan = members.plan
    group = zarr.create_group(path, zarr_format=3, attributes=provenance(plan))
    for name, dim, size, axis in plan.coordinates():
        chunks, dtype = (min(size, COORDINATE_CHUNK),), _coordinate(axis, name, 0, 1).dtype
        coordinate = group.create_array(name, shape=(size,), chunks=chunks, dtype=dtype, dimension_names=(dim,))
        for lo in range(0, size, COORDINATE_CHUNK):
            hi = min(lo + COORDINATE_CHUNK, size)
            coordinate[lo:hi] = _coordinate(axis, name, lo, hi)
    for name, one in describe_variables(members).items():
        _create_array(group, name, plan.shape, plan.block_shape, plan.dims, one)
    checksums = SweepVariable((), (), "int64", NOT_WRITTEN, "CRC-32 of the numbers of a block; -1: not computed yet")
    _create_array(group, CHECKSUM_NAME, (plan.blocks,), (1,), ("block",), checksums)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other implementations may not read the consolidated copy
        zarr.consolidate_metadata(path)


def _create_array(
    group: Any, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dims: tuple[str, ...], one: SweepVariable
) -> None:
    from zarr.codecs import Crc32cCodec, ZstdCodec

    compressed = one.dtype.kind != "f"  # digits of states do not compress
    group.create_array(
        name,
        shape=(*shape, *one.shape),
        chunks=(*chunks, *one.shape),
        dtype=one.dtype,
        fill_value=one.missing,
        dimension_names=(*dims, *one.dims),
        compressors=[ZstdCodec(level=1), Crc32cCodec()] if compressed else [Crc32cCodec()],
        attributes={"long_name": one.about},
    )


def stored_block_size(path: Path) -> int | None:
    """The size of the blocks of a store, whichever executor began it; None where there is no store."""
    return math.prod(_stored_plan(path)["blocks"]) if path.is_dir() and any(path.iterdir()) else None


def _stored_plan(path: Path) -> dict[str, Any]:
    try:
        plan: dict[str, Any] = json.loads(json.loads((path / "zarr.json").read_text())["attributes"]["plan"])
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise InvalidInput(f"{path} is not a sweep of dalembert: it cannot be resumed") from fault
    return plan


def _require_same_plan(path: Path, plan: SweepPlan) -> None:
    """Refuse to continue another sweep, and say what differs."""
    saved, now = _stored_plan(path), json.loads(plan.description)
    differ = [f"{key}: {saved.get(key)} was saved, {now[key]} is asked" for key in now if saved.get(key) != now[key]]
    if differ:
        raise InvalidInput(f"{path} holds another sweep ({'; '.join(differ)}): give another --out")


def _coordinate(axis: SweepAxis, name: str, lo: int, hi: int) -> np.ndarray[Any, Any]:
    """The values of a name along its axis; what is no number is written as text."""
    dotted = next(one for one in axis.names if one.replace(".", "_") == name)
    part = axis.at(lo, hi)[dotted]
    if isinstance(part, np.ndarray):
        return part
    longest = max(len(str(entry)) for entry in axis.at(0, axis.size)[dotted])
    return np.array([str(entry) for entry in part], dtype=f"<U{longest}")


def provenance(plan: SweepPlan) -> dict[str, Any]:
    """What made a store: the plan, the configuration, versions, machine and time."""
    config = to_toml({**plan.config, "sweep": plan.section})
    attributes = {"plan": plan.description, "config": config, "members": plan.members, **made_by()}
    return attributes | {"checksum": checksum_attributes(attributes)}
