"""Sweeps: many runs of one configuration with other numbers, block by block into a store that survives kill -9.

This machine's cores, its GPU, or the workers of a Dask cluster compute the blocks, in any order. Results go to a Zarr
store that grows block by block, to memory, or to a function of the user.

A block is written variable by variable, each chunk by a rename, and flushed to the disk. Then its checksum is written:
a block without checksum was not written. Zarr checks every chunk (CRC-32C) when anyone reads it; the checksum of a
block is checked when a sweep is resumed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from ..analysis.branches import largest_step
from ..errors import InvalidInput, WriteFailure, require_name, stamp_origin
from ..io.atomic import atomic_path, flush_to_disk, output_lock
from ..io.config import parse_job, read_config, to_toml
from ..io.dataset import Arrays, checksum, checksum_attributes, require_writable
from ..kernels import count_processors
from ..mechanics import InvariantSystem
from ..models import total_turning
from ..numerics import shows_progress
from .plan import GridBlock, Reduction, SweepAxis, SweepMembers, SweepPlan, SweepVariable, compute_block, make_plan

if TYPE_CHECKING:
    import xarray

SweepProgress = Callable[[int, int, float], None]  # (members done, all members, members a second of this session)
BlockResults = Iterator[tuple[GridBlock, Arrays]]
Curve = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], str]

EXECUTORS = ("local", "cuda", "dask")
MAX_BLOCK_MEMBERS = {"local": 1 << 15, "dask": 1 << 14, "cuda": 1 << 20}
"""Unless the sweep says otherwise: enough lanes for every core, few enough to lose little."""
MAX_BLOCK_STEPS = 1 << 25
"""Steps of all members of a block together: half a second on one core, for which Ctrl-C waits."""
MIN_BLOCK_MEMBERS = 512
CLUSTER_BLOCKS, MIN_CLUSTER_BLOCK = 16, 64
"""A cluster gets at least so many blocks, unless they would be smaller than this: every worker has work."""
BLOCKS_PER_WORKER = 2
"""A Dask worker computes one block while another is sent to it."""
THRESHOLD_STEPS = 20
"""Steps over which a threshold is followed: its time grows like their square, and the gallery's settles to 2e-7."""


class LostCluster(RuntimeError):
    """The scheduler of a Dask cluster is gone, or a block killed every worker it was given to."""


@dataclass(frozen=True, eq=False)
class SweepResult:
    """How a sweep ended; `dataset()` has its results.

    `failed` counts the members whose status is not 0, of all that are done; `computed` counts those of this session.
    """

    plan: SweepPlan
    done: int
    computed: int
    failed: int
    seconds: float
    interrupted: bool
    path: Path | None
    sink: BlockSink
    described: Mapping[str, tuple[str, str]]  # by varied name: what it is, and its unit

    @property
    def members(self) -> int:
        """The number of runs that the sweep asks for."""
        return self.plan.members

    def dataset(self) -> xarray.Dataset:
        """The results as an `xarray.Dataset`: opened from the store, or from memory."""
        return self.sink.dataset()


@shows_progress(lambda bar: lambda done, total, rate: bar.count(done, total, f" members, {rate:.3g}/s"))
def sweep(
    config: Mapping[str, Any] | str | Path,
    *,
    out: str | Path | Callable[[GridBlock, Arrays], Any] | None = None,
    resume: bool = False,
    executor: str = "local",
    scheduler: str | None = None,
    reductions: Mapping[str, Reduction | tuple[Callable[..., Any], Callable[..., Any]]] | None = None,
    progress: SweepProgress | None = None,
    folder: str | Path = ".",
) -> SweepResult:
    """Run a configuration for a grid of values of any of its numbers, on all cores, a GPU or a cluster.

    `config` is a TOML file, or nested mappings with its sections; [sweep] says what varies. `out` is a Zarr store that
    grows block by block and survives a crash (`resume` finishes it), or a function that is given (block, arrays); None:
    the results stay in memory. `executor` is "local" (all cores), "cuda" (one GPU) or "dask" (the cluster at
    `scheduler`, or a local one). `reductions` are pairs (start(system, state, h), update(value, system, state, h)) of
    JAX functions by name: they run at every good step, and only their last values are kept. Ctrl-C ends the sweep,
    keeps what is done and sets `interrupted`.
    """
    require_name("executor", executor, EXECUTORS)
    if executor == "dask":
        _import_dask()  # refused before there is a store
    elif scheduler is not None:
        raise InvalidInput(
            f"--scheduler is the address of a Dask cluster; the executor is {executor}: give --executor dask"
        )
    if isinstance(config, str | Path):
        folder, config = Path(config).parent, read_config(config)
    if not isinstance(config, Mapping) or not isinstance(folder, str | Path):
        raise InvalidInput(f"config is {config!r} in the folder {folder!r}; allowed: a TOML file, or its sections")
    if resume and not isinstance(out, str | Path):
        raise InvalidInput("resume needs out: the store that is to be finished")
    path = Path(out) if isinstance(out, str | Path) else None
    chunk = default_block_size(config, executor)
    if executor == "dask":
        chunk = share_out(make_plan(config, folder, reductions, chunk=chunk).members, chunk)
    if resume and path is not None and path.is_dir() and any(path.iterdir()):  # whichever executor began the store
        chunk = math.prod(_stored_plan(path)["blocks"])
    members = SweepMembers(make_plan(config, folder, reductions, chunk=chunk))
    plan, begin, place = members.plan, time.perf_counter(), str(Path(folder).resolve())
    source = PlanSource(plan.description + place, config, place, reductions, chunk)
    opened: AbstractContextManager[BlockSink]
    if path is not None:
        opened = open_store(path, members, resume)
    else:
        opened = nullcontext(BlockSink(out) if callable(out) else MemorySink(members))
    with opened as sink, ThreadPoolExecutor(1) as writer:  # one thread writes a block while the next is computed
        before = sink.done()
        done = old = sum(plan.block(number).size for number in before)
        failed, interrupted = sum(before.values()), False
        missing = [number for number in range(plan.blocks) if number not in before]
        pending: Future[None] | None = None
        try:
            with _open_executor(executor, members, source, scheduler) as compute:
                for block, arrays in compute(missing):
                    if pending is not None:
                        pending.result()
                    pending = writer.submit(sink.write, block, arrays)
                    done, failed = done + block.size, failed + int(np.count_nonzero(arrays["status"]))
                    if progress is not None:
                        progress(done, plan.members, (done - old) / (time.perf_counter() - begin))
        except KeyboardInterrupt:
            interrupted = True
        if pending is not None:
            pending.result()
    described = {name: members.describe(name) for name in plan.names}
    return SweepResult(plan, done, done - old, failed, time.perf_counter() - begin, interrupted, path, sink, described)


def default_block_size(config: Mapping[str, Any], executor: str) -> int:
    """The size of a block: long runs are cut into smaller ones."""
    run = config.get("run", {})
    steps = run.get("steps", 1000) if isinstance(run, Mapping) else 1000
    fitting = MAX_BLOCK_STEPS // steps if isinstance(steps, int) and steps > 0 else MAX_BLOCK_STEPS
    most = MAX_BLOCK_MEMBERS[executor]
    return most if executor == "cuda" else max(MIN_BLOCK_MEMBERS, min(most, fitting))


def share_out(members: int, most: int) -> int:
    """The size of a block of a cluster: at most `most` members, and few enough that every worker has some."""
    return min(most, max(MIN_CLUSTER_BLOCK, -(-members // CLUSTER_BLOCKS)))


@dataclass(frozen=True)
class PlanSource:
    """What a worker needs to make the plan again. Those with one text are equal: a worker traces and compiles once."""

    text: str
    config: Mapping[str, Any] = field(compare=False)
    folder: str = field(compare=False)
    reductions: Mapping[str, Any] | None = field(compare=False)
    chunk: int = field(compare=False)


@contextmanager
def _open_executor(
    name: str, members: SweepMembers, source: PlanSource, scheduler: str | None
) -> Iterator[Callable[[list[int]], BlockResults]]:
    """A function that computes the blocks with the given numbers."""
    plan = members.plan
    backend: Any = "cuda" if name == "cuda" else plan.config["run"].get("backend", "auto")
    if name != "dask":
        yield lambda numbers: ((block, compute_block(members, block, backend)) for block in map(plan.block, numbers))
        return
    with _connect(scheduler) as client:
        yield lambda numbers: _distribute(client, plan, source, backend, numbers)


def _import_dask() -> Any:
    """The package distributed, which is not annotated."""
    try:
        import distributed
    except ImportError as fault:
        message = "the executor dask needs the package distributed: pip install 'dalembert[dask]'"
        raise InvalidInput(message) from fault
    return distributed


@contextmanager
def _connect(scheduler: str | None) -> Iterator[Any]:
    """A client of the cluster at an address, or of one that is started here with a process for every core."""
    dask = _import_dask()
    if scheduler is None:
        workers = {"n_workers": count_processors(), "threads_per_worker": 1, "processes": True}
        quiet = {"dashboard_address": None, "silence_logs": logging.ERROR}  # a worker that ends slowly is no news
        with dask.LocalCluster(**workers, **quiet) as cluster, dask.Client(cluster) as client:
            yield client
        return
    try:
        client = dask.Client(scheduler, timeout="10s")
    except (OSError, ValueError, TimeoutError) as fault:
        raise InvalidInput(f"there is no Dask scheduler at {scheduler}: {fault}") from fault
    with client:
        yield client


def _distribute(client: Any, plan: SweepPlan, source: PlanSource, backend: str, numbers: list[int]) -> BlockResults:
    """Blocks by the workers; a few wait for each worker, and another worker does those of a lost one."""
    from distributed import as_completed
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    def submit(number: int) -> Any:
        key = f"dalembert-{number}-{id(numbers)}"
        return client.submit(compute_remotely, source, number, backend, pure=False, key=key)

    waiting = iter(numbers)
    width = BLOCKS_PER_WORKER * max(1, sum(client.nthreads().values()))
    running: Any = as_completed([submit(number) for number in islice(waiting, width)])  # type: ignore[no-untyped-call]
    try:
        for future in running:
            number, arrays = future.result()
            future.release()
            for following in islice(waiting, 1):
                running.add(submit(following))
            yield plan.block(number), arrays
    except (KilledWorker, FutureCancelledError, OSError) as fault:
        raise LostCluster(
            f"the Dask cluster is lost ({type(fault).__name__}: {fault}); what is done stays, go on with --resume"
        ) from fault


def compute_remotely(source: PlanSource, number: int, backend: Any) -> tuple[int, Arrays]:
    """Compute one block on a worker, on one core for each of the worker's tasks."""
    members = _remote_members(source)
    return number, compute_block(members, members.plan.block(number), backend, threads=1)


@lru_cache(maxsize=8)
def _remote_members(source: PlanSource) -> SweepMembers:
    return SweepMembers(make_plan(source.config, source.folder, source.reductions, chunk=source.chunk))


def exact_curve(data: xarray.Dataset, show: str, x: str, y: str | None) -> Curve:
    """What is known exactly of `show` over these dimensions: a curve to draw over its picture.

    It is the edge of the solvable steps of a Suslov body, or the turning of a sleigh.
    """
    config: dict[str, Any] = json.loads(data.attrs["plan"])["config"]
    if show in ("status", "failed_step") and {x, y} == {"run_step", "initial_energy"}:
        return _threshold(config, data, x)
    system = config["system"]
    if system.get("name") == "chaplygin-sleigh" and show == "final_angle.0" and x == "system_a" and y is None:
        a = np.asarray(data.system_a)
        inertia = float(data.system_inertia) if "system_inertia" in data.coords else system.get("inertia", 1.0)
        turning = [total_turning(system.get("mass", 1.0), inertia, float(each)) for each in a]
        return a, np.array(turning), "(pi/a) sqrt((J + m a^2)/m)"
    raise InvalidInput(
        "no exact curve is known for this picture: --exact draws thresholds over run_step and initial_energy, or "
        "final_angle.0 of a sleigh over system_a"
    )


def _threshold(config: dict[str, Any], data: xarray.Dataset, x: str) -> Curve:
    """eps sqrt(E) = const: one threshold gives the curve, for only h w enters the equations of an invariant system."""
    job = parse_job(config)
    if not isinstance(job.system, InvariantSystem):
        raise InvalidInput("exact thresholds are known for invariant systems alone")
    energy = float(job.system.energy(job.state.t, job.state.g, job.state.xi))
    steps = min(int(job.run["steps"]), THRESHOLD_STEPS)
    limit = largest_step(job.system, job.integrator, np.asarray(job.state.momentum), steps=steps)
    energies = np.geomspace(float(data.initial_energy.min()), float(data.initial_energy.max()), 200)
    edge = limit * np.sqrt(energy / energies)
    inside = (edge >= float(data.run_step.min())) & (edge <= float(data.run_step.max()))
    pair = (edge[inside], energies[inside])
    return (*(pair if x == "run_step" else pair[::-1]), "exact threshold")


MAX_MEMORY_BYTES = 1 << 31
COORDINATE_CHUNK = 1 << 20
"""Values of a coordinate that are written at a time."""
CHECKSUM_NAME = "block_checksum"
NOT_WRITTEN = -1


class BlockSink:
    """Takes the arrays of finished blocks: gives them to a function of the user, and keeps nothing."""

    def __init__(self, function: Callable[[GridBlock, Arrays], Any]):
        self.function = function

    def done(self) -> dict[int, int]:
        """The blocks that are there already, with the number of failed members of each."""
        return {}

    def write(self, block: GridBlock, arrays: Arrays) -> None:
        """Take the arrays of a block."""
        self.function(block, arrays)

    def dataset(self) -> xarray.Dataset:
        """The results."""
        raise InvalidInput("the blocks went to your function: no results were stored")


class MemorySink(BlockSink):
    """Keeps the results in the memory of this process."""

    def __init__(self, members: SweepMembers):
        self.plan, self.variables, self.members = members.plan, members.variables, members
        size = self.plan.members * sum(math.prod(one.shape) * one.dtype.itemsize for one in self.variables.values())
        if size > MAX_MEMORY_BYTES:
            raise InvalidInput(
                f"the results take {size / 2**30:.1f} GiB: give out = 'name.zarr', or a function that takes the blocks"
            )
        self.arrays = {
            name: np.full((*self.plan.shape, *one.shape), one.missing, one.dtype)
            for name, one in self.variables.items()
        }

    def write(self, block: GridBlock, arrays: Arrays) -> None:
        for name, part in arrays.items():
            self.arrays[name][block.region] = part

    def dataset(self) -> xarray.Dataset:
        import xarray

        data = {
            name: ((*self.plan.dims, *one.dims), self.arrays[name], one.attributes(name))
            for name, one in self.variables.items()
        }
        coords = {
            name.replace(".", "_"): (dim, _coordinate(axis, name, 0, axis.size), _describe(self.members, name))
            for name, dim, axis in self.plan.coordinates()
        }
        named = {name: (dim, texts) for name, (dim, texts) in _labels(self.members).items()}
        return xarray.Dataset(data, coords | named, store_attributes(self.members))


class ZarrStore(BlockSink):
    """A Zarr v3 store; its chunks are the blocks of the plan."""

    def __init__(self, path: Path, members: SweepMembers):
        import zarr

        group = zarr.open_group(path, mode="r+")
        self.path, self.plan = path, members.plan
        self.variables = [name for name in members.variables if name in group]  # older stores have fewer
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
        arrays = {name: arrays[name] for name in self.variables}
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
            saved, now = _stored_plan(path), json.loads(members.plan.description)
            if any(saved.get(key) != now[key] for key in now):
                theirs, mine = (
                    {
                        keystr(at, simple=True, separator="."): leaf
                        for at, leaf in tree_leaves_with_path(each, is_leaf=lambda part: not part)
                    }
                    for each in ({key: saved.get(key) for key in now}, now)
                )
                told = "; ".join(
                    f"its {key.removeprefix('config.')} is {theirs.get(key)!r}, here {mine.get(key)!r}"
                    for key in sorted(theirs | mine)
                    if theirs.get(key) != mine.get(key)
                )
                raise InvalidInput(f"{path} holds another sweep ({told}): give another --out")
            for torn in path.rglob("*.partial"):
                torn.unlink(missing_ok=True)
        else:
            if path.exists():
                shutil.rmtree(path)
            with atomic_path(path) as temporary:
                _create(temporary, members)
        yield ZarrStore(path, members)


def _stored_type(values: Any) -> Any:
    """The type of an array in the store; texts have no fixed length, of which Zarr's specification knows nothing."""
    return str if values.dtype.kind == "U" else values.dtype


def _create(path: Path, members: SweepMembers) -> None:
    """Write all metadata and coordinates; chunks come later."""
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    plan, checksums = members.plan, "CRC-32 of the numbers of a block; -1: not computed yet"
    group = zarr.create_group(path, zarr_format=3, attributes=store_attributes(members))
    for name, dim, axis in plan.coordinates():
        size, dtype = axis.size, _stored_type(_coordinate(axis, name, 0, 1))
        options: Any = {"chunks": (min(size, COORDINATE_CHUNK),), "dimension_names": (dim,)}
        options["attributes"] = _describe(members, name)
        coordinate = group.create_array(name.replace(".", "_"), shape=(size,), dtype=dtype, **options)
        for lo in range(0, size, COORDINATE_CHUNK):
            hi = min(lo + COORDINATE_CHUNK, size)
            coordinate[lo:hi] = _coordinate(axis, name, lo, hi)
    for name, (dim, texts) in (labels := _labels(members)).items():
        named = group.create_array(name, shape=(len(texts),), dtype=str, dimension_names=(dim,))
        named[:] = np.array(texts)
    arrays: dict[str, Any] = {
        name: (one, plan.shape, plan.block_shape, plan.dims) for name, one in members.variables.items()
    }
    written = SweepVariable(checksums, dtype=np.dtype("int64"), missing=NOT_WRITTEN)
    arrays[CHECKSUM_NAME] = (written, (plan.blocks,), (1,), ("block",))
    for name, (one, shape, chunks, dims) in arrays.items():
        compressed = one.dtype.kind != "f"  # digits of states do not compress
        units = [label for label, (dim, _) in labels.items() if dim in one.dims and label != dim]
        group.create_array(
            name,
            shape=(*shape, *one.shape),
            chunks=(*chunks, *one.shape),
            dtype=one.dtype,
            fill_value=one.missing,
            dimension_names=(*dims, *one.dims),
            compressors=[ZstdCodec(level=1), Crc32cCodec()] if compressed else [Crc32cCodec()],
            attributes=one.attributes(name) | ({"coordinates": " ".join(units)} if units else {}),
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other implementations may not read the consolidated copy
        zarr.consolidate_metadata(path)


def _stored_plan(path: Path) -> dict[str, Any]:
    try:
        plan: dict[str, Any] = json.loads(
            json.loads((path / "zarr.json").read_text(encoding="utf-8"))["attributes"]["plan"]
        )
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise InvalidInput(f"{path} is not a sweep of dalembert: it cannot be resumed") from fault
    return plan


def _labels(members: SweepMembers) -> dict[str, tuple[str, list[str]]]:
    """The names and units of components and coordinates, each with its dimension, where a variable has them."""
    system, found = members.first.system, dict[str, tuple[str, list[str]]]()
    dims = {dim for one in members.variables.values() for dim in one.dims}
    if "component" in dims:
        texts = {"component": "name", "velocity_unit": "velocity", "momentum_unit": "momentum"}
        found |= {name: ("component", [getattr(axis, text) for axis in system.axes()]) for name, text in texts.items()}
    if "coordinate_name" in dims:
        names, units = list(system.coordinate_names), system.units
        found |= {"coordinate_name": ("coordinate_name", names)}
        found |= {"coordinate_unit": ("coordinate_name", [units[name] for name in names])}
    return found


def _describe(members: SweepMembers, name: str) -> dict[str, str]:
    words, unit = members.describe(name)
    return {"long_name": words} | ({"units": unit} if unit else {})


def _coordinate(axis: SweepAxis, name: str, lo: int, hi: int) -> np.ndarray[Any, Any]:
    """The values of a name along its axis; what is no number is written as text."""
    part = axis.at(lo, hi)[name]
    if isinstance(part, np.ndarray):
        return part
    longest = max(len(str(entry)) for entry in axis.at(0, axis.size)[name])
    return np.array([str(entry) for entry in part], dtype=f"<U{longest}")


def store_attributes(members: SweepMembers) -> dict[str, Any]:
    """What made a store: the system, the plan, the configuration, versions, machine and time."""
    plan, system = members.plan, members.first.system.title
    config = to_toml({**plan.config, "sweep": plan.section})
    attributes = {
        "system": system,
        "plan": plan.description,
        "config": config,
        "members": plan.members,
        **stamp_origin(),
    }
    return attributes | {"checksum": checksum_attributes(attributes)}
