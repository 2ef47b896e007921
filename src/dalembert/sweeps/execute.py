"""Who does the work: this machine's cores, its GPU, or the workers of a Dask cluster. Each yields finished blocks, in any order.

Sweeps: many runs of one configuration with other numbers, block by block, into a store that loses nothing.

What is known exactly about a sweep: curves to draw over its pictures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..analysis.branches import largest_step
from ..errors import InvalidInput, UnknownName
from ..io.config import parse_job, read_config
from ..kernels import count_processors
from ..mechanics import InvariantSystem
from ..models import total_turning
from .members import Arrays, SweepMembers, compute_block
from .plan import GridBlock, SweepPlan, Reduction, make_plan
from .store import CallbackSink, MemorySink, BlockSink, open_store, stored_block_size

if TYPE_CHECKING:
    import xarray


EXECUTORS = ("local", "cuda", "dask")
MAX_BLOCK_MEMBERS = {"local": 1 << 15, "dask": 1 << 14, "cuda": 1 << 20}
"""Members of a block at most, unless the sweep says otherwise: enough lanes for every core, few enough to lose little."""
MAX_BLOCK_STEPS = 1 << 25
"""Steps of all members of a block together: half a second on one core, for which Ctrl-C waits."""
MIN_BLOCK_MEMBERS = 512
BLOCKS_PER_WORKER = 2
"""Blocks that a Dask worker has in hand: one is computed while another travels."""

BlockResults = Iterator[tuple[GridBlock, Arrays]]


def default_block_size(config: Mapping[str, Any], name: str) -> int:
    """The size of a block: long runs are cut into smaller ones."""
    steps = config.get("run", {}).get("steps", 1000) if isinstance(config.get("run", {}), Mapping) else 1000
    fitting = MAX_BLOCK_STEPS // steps if isinstance(steps, int) and steps > 0 else MAX_BLOCK_STEPS
    return MAX_BLOCK_MEMBERS[name] if name == "cuda" else max(MIN_BLOCK_MEMBERS, min(MAX_BLOCK_MEMBERS[name], fitting))


class LostCluster(RuntimeError):
    """The scheduler of a Dask cluster is gone, or a block killed every worker it was given to."""


class PlanSource(NamedTuple):
    """What a worker needs to make the plan again."""

    config: Mapping[str, Any]
    folder: str
    reductions: Mapping[str, Any] | None
    chunk: int


@contextmanager
def open_executor(
    name: str, members: SweepMembers, source: PlanSource, scheduler: str | None
) -> Iterator[Callable[[list[int]], BlockResults]]:
    """A function that does the blocks with the given numbers."""
    if name not in EXECUTORS:
        raise UnknownName("executor", name, EXECUTORS)
    if scheduler is not None and name != "dask":
        raise InvalidInput(
            f"--scheduler is the address of a Dask cluster; the executor is {name}: give --executor dask"
        )
    if name != "dask":
        backend: Any = "cuda" if name == "cuda" else members.plan.config["run"].get("backend", "auto")
        yield lambda todo: ((block, compute_block(members, block, backend)) for block in map(members.plan.block, todo))
        return
    with _client(scheduler) as client:
        yield lambda todo: _spread(client, members, source, todo)


@contextmanager
def _client(scheduler: str | None) -> Iterator[Any]:
    """A client of the cluster at an address, or of one that is started here with a process for every core."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as fault:
        raise InvalidInput("the executor dask needs the package distributed: pip install distributed zarr") from fault
    if scheduler is None:
        with (
            LocalCluster(
                n_workers=count_processors(), threads_per_worker=1, processes=True, dashboard_address=None
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = Client(scheduler, timeout="10s")
    except (OSError, ValueError, TimeoutError) as fault:
        raise InvalidInput(f"there is no Dask scheduler at {scheduler}: {fault}") from fault
    with client:
        yield client


def _spread(client: Any, members: SweepMembers, source: PlanSource, todo: list[int]) -> BlockResults:
    """Blocks by the workers; a few wait for each worker, and whatever a lost worker had is done by another."""
    from distributed import as_completed
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    backend = members.plan.config["run"].get("backend", "auto")
    give = lambda number: client.submit(
        remote, source, number, backend, pure=False, key=f"dalembert-{number}-{id(todo)}"
    )
    waiting = iter(todo)
    width = BLOCKS_PER_WORKER * max(1, sum(client.nthreads().values()))
    running = as_completed([give(number) for number in islice(waiting, width)])
    try:
        for future in running:
            number, arrays = future.result()
            future.release()
            for more in islice(waiting, 1):
                running.add(give(more))
            yield members.plan.block(number), arrays
    except (KilledWorker, FutureCancelledError, OSError) as fault:
        raise LostCluster(
            f"the Dask cluster is lost ({type(fault).__name__}: {fault}); what is done stays, go on with --resume"
        ) from fault


def remote(source: PlanSource, number: int, backend: str) -> tuple[int, Arrays]:
    """One block on a worker, on one core for each of the worker's tasks."""
    members = _members(_Hashable(source))
    return number, compute_block(members, members.plan.block(number), backend, threads=1)  # type: ignore[arg-type]


class _Hashable:
    """A source by its contents, so that a worker traces and compiles once."""

    def __init__(self, source: PlanSource):
        self.source = source
        self.text = (
            make_plan(source.config, source.folder, source.reductions, chunk=source.chunk).description + source.folder
        )

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Hashable) and self.text == other.text


@lru_cache(maxsize=8)
def _members(held: _Hashable) -> SweepMembers:
    source = held.source
    return SweepMembers(make_plan(source.config, Path(source.folder), source.reductions, chunk=source.chunk))


Progress = Callable[[int, int, float], None]
"""progress(members done, all members, members a second of this session)."""


@dataclass(frozen=True, eq=False)
class SweepResult:
    """What a sweep came to. `failed` counts members whose status is not 0, of all that are done; `computed` those of this session."""

    plan: SweepPlan
    done: int
    computed: int
    failed: int
    seconds: float
    interrupted: bool
    path: Path | None
    sink: Any

    @property
    def members(self) -> int:
        """The number of runs that the sweep asks for."""
        return self.plan.members

    def dataset(self):
        """The results as an `xarray.Dataset`: opened from the store, or from memory."""
        if isinstance(self.sink, CallbackSink):
            raise InvalidInput("the blocks went to your function: nothing was kept")
        return self.sink.dataset()


def sweep(
    config: Mapping[str, Any] | str | Path,
    *,
    out: str | Path | Callable[[GridBlock, Arrays], Any] | None = None,
    resume: bool = False,
    executor: str = "local",
    scheduler: str | None = None,
    reductions: Mapping[str, Reduction | tuple[Callable, Callable]] | None = None,
    progress: Progress | None = None,
    folder: str | Path = ".",
) -> SweepResult:
    """Run every member of the section [sweep] of a configuration (a TOML file, or nested mappings with its sections).

    `out` is a Zarr store that grows block by block, a function that takes (block, arrays) as they are done, or None: in memory.
    `resume` finishes a store. `executor` is "local" (all cores), "cuda" (one GPU) or "dask" (the cluster at `scheduler`, or a local
    one). `reductions` are named pairs (start(system, state, h), update(value, system, state, h)) of JAX functions: they run in the
    kernel at every good step, and only their last values are kept. Ctrl-C ends with what is done, `interrupted=True`.
    """
    if executor not in EXECUTORS:
        raise UnknownName("executor", executor, EXECUTORS)
    if isinstance(config, str | Path):
        folder, config = Path(config).parent, read_config(config)
    if resume and not isinstance(out, str | Path):
        raise InvalidInput("resume needs out: the store that is to be finished")
    target = Path(out) if isinstance(out, str | Path) else None
    chunk = (stored_block_size(target) if resume and target is not None else None) or default_block_size(config, executor)
    source = PlanSource(config, str(Path(folder).resolve()), reductions, chunk)
    members = SweepMembers(make_plan(config, folder, reductions, chunk=chunk))
    holding = (
        open_store(target, members, resume)
        if target is not None
        else nullcontext(CallbackSink(out) if callable(out) else MemorySink(members))
    )
    with holding as sink:
        return _driven(members, sink, target, source, executor, scheduler, progress)


def _driven(
    members: SweepMembers,
    sink: BlockSink,
    path: Path | None,
    source: PlanSource,
    name: str,
    scheduler: str | None,
    progress: Progress | None,
) -> SweepResult:
    """Compute what the sink lacks; one thread writes a block while the next is computed."""
    plan_, begin = members.plan, time.perf_counter()
    before = sink.done()
    done = old = sum(plan_.block(number).size for number in before)
    failed, interrupted = sum(before.values()), False
    todo = [number for number in range(plan_.blocks) if number not in before]
    with ThreadPoolExecutor(1) as writer:
        pending: tuple[Future, GridBlock, Arrays] | None = None
        try:
            with open_executor(name, members, source, scheduler) as work:
                for block, arrays in work(todo):
                    if pending is not None:
                        pending[0].result()
                    pending = writer.submit(sink.write, block, arrays), block, arrays
                    done, failed = done + block.size, failed + int(np.count_nonzero(arrays["status"]))
                    if progress is not None:
                        progress(done, plan_.members, (done - old) / (time.perf_counter() - begin))
        except KeyboardInterrupt:
            interrupted = True
        if pending is not None:
            pending[0].result()
    return SweepResult(plan_, done, done - old, failed, time.perf_counter() - begin, interrupted, path, sink)


THRESHOLD_STEPS = 20
"""Steps over which a threshold is followed: its time grows like their square, and the gallery's is then settled to 2e-7."""

Curve = tuple[np.ndarray, np.ndarray, str]


def exact_curve(data: xarray.Dataset, show: str, x: str, y: str | None) -> Curve:
    """The exact curve of `show` over these dimensions: the edge of the solvable steps of a Suslov body, or the turning of a sleigh."""
    saved = json.loads(data.attrs["plan"])
    config: dict[str, Any] = saved["config"]
    if show in ("status", "failed_step") and {x, y} == {"run_step", "initial_energy"}:
        return _threshold(config, data, x)
    if config["system"].get("name") == "chaplygin-sleigh" and show == "final_angle.0" and x == "system_a" and y is None:
        return _turning(config, data)
    raise InvalidInput(
        "no exact curve is known for this picture: --exact draws thresholds over run_step and initial_energy, or "
        "final_angle.0 of a sleigh over system_a"
    )


def _threshold(config: dict[str, Any], data: xarray.Dataset, x: str) -> Curve:
    """eps sqrt(E) = const: only the displacement h w enters the equations of an invariant system, so one threshold gives the curve."""
    job = parse_job(config)
    if not isinstance(job.system, InvariantSystem):
        raise InvalidInput("exact thresholds are known for invariant systems alone")
    energy = float(job.system.energy(job.state.t, job.state.g, job.state.xi))
    limit = largest_step(
        job.system, job.integrator, np.asarray(job.state.momentum), steps=min(int(job.run["steps"]), THRESHOLD_STEPS)
    )
    energies = np.geomspace(float(data.initial_energy.min()), float(data.initial_energy.max()), 200)
    steps = limit * np.sqrt(energy / energies)
    inside = (steps >= float(data.run_step.min())) & (steps <= float(data.run_step.max()))
    pair = (steps[inside], energies[inside])
    return (*(pair if x == "run_step" else pair[::-1]), "exact threshold")


def _turning(config: dict[str, Any], data: xarray.Dataset) -> Curve:
    """(pi/a) sqrt((J + m a^2)/m), with J where the picture is cut."""
    a = np.asarray(data.system_a)
    system = config["system"]
    inertia = float(data.system_inertia) if "system_inertia" in data.coords else system.get("inertia", 1.0)
    turning = [total_turning(system.get("mass", 1.0), inertia, float(each)) for each in a]
    return a, np.array(turning), "(pi/a) sqrt((J + m a^2)/m)"
