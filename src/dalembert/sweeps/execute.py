"""Sweeps: many runs of one configuration with other numbers, block by block into a store that survives kill -9.

This machine's cores, its GPU, or the workers of a Dask cluster compute the blocks, in any order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..analysis.branches import largest_step
from ..errors import InvalidInput, UnknownName
from ..io.config import parse_job, read_config
from ..io.dataset import Arrays
from ..kernels import count_processors
from ..mechanics import InvariantSystem
from ..models import total_turning
from .members import SweepMembers, compute_block
from .plan import GridBlock, Reduction, SweepPlan, make_plan
from .store import BlockSink, CallbackSink, MemorySink, open_store, stored_block_size

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
BLOCKS_PER_WORKER = 2
"""A Dask worker computes one block while another is sent to it."""
THRESHOLD_STEPS = 20
"""Steps over which a threshold is followed: its time grows like their square, and the gallery's settles to 2e-7."""


class LostCluster(RuntimeError):
    """The scheduler of a Dask cluster is gone, or a block killed every worker it was given to."""


@dataclass(frozen=True, eq=False)
class SweepResult:
    """What a sweep came to.

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

    @property
    def members(self) -> int:
        """The number of runs that the sweep asks for."""
        return self.plan.members

    def dataset(self) -> xarray.Dataset:
        """The results as an `xarray.Dataset`: opened from the store, or from memory."""
        return self.sink.dataset()


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
    """Run every member of the section [sweep] of a configuration (a TOML file, or nested mappings with its sections).

    `out` is a Zarr store that grows block by block, a function that takes (block, arrays) as they are done, or None:
    the results stay in memory. `resume` finishes a store. `executor` is "local" (all cores), "cuda" (one GPU) or "dask"
    (the cluster at `scheduler`, or a local one). `reductions` are named pairs (start(system, state, h),
    update(value, system, state, h)) of JAX functions: they run in the kernel at every good step, and only their last
    values are kept. Ctrl-C ends the sweep with what is done, `interrupted=True`.
    """
    if executor not in EXECUTORS:
        raise UnknownName("executor", executor, EXECUTORS)
    if scheduler is not None and executor != "dask":
        raise InvalidInput(
            f"--scheduler is the address of a Dask cluster; the executor is {executor}: give --executor dask"
        )
    if isinstance(config, str | Path):
        folder, config = Path(config).parent, read_config(config)
    if resume and not isinstance(out, str | Path):
        raise InvalidInput("resume needs out: the store that is to be finished")
    path = Path(out) if isinstance(out, str | Path) else None
    chunk = (stored_block_size(path) if resume and path is not None else None) or default_block_size(config, executor)
    source = PlanSource(config, str(Path(folder).resolve()), reductions, chunk)
    members = SweepMembers(make_plan(config, folder, reductions, chunk=chunk))
    plan, begin = members.plan, time.perf_counter()
    opened: AbstractContextManager[BlockSink]
    if path is not None:
        opened = open_store(path, members, resume)
    else:
        opened = nullcontext(CallbackSink(out) if callable(out) else MemorySink(members))
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
    return SweepResult(plan, done, done - old, failed, time.perf_counter() - begin, interrupted, path, sink)


def default_block_size(config: Mapping[str, Any], executor: str) -> int:
    """The size of a block: long runs are cut into smaller ones."""
    run = config.get("run", {})
    steps = run.get("steps", 1000) if isinstance(run, Mapping) else 1000
    fitting = MAX_BLOCK_STEPS // steps if isinstance(steps, int) and steps > 0 else MAX_BLOCK_STEPS
    most = MAX_BLOCK_MEMBERS[executor]
    return most if executor == "cuda" else max(MIN_BLOCK_MEMBERS, min(most, fitting))


class PlanSource(NamedTuple):
    """What a worker needs to make the plan again."""

    config: Mapping[str, Any]
    folder: str
    reductions: Mapping[str, Any] | None
    chunk: int


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


@contextmanager
def _connect(scheduler: str | None) -> Iterator[Any]:
    """A client of the cluster at an address, or of one that is started here with a process for every core."""
    try:
        import distributed
    except ImportError as fault:
        raise InvalidInput("the executor dask needs the package distributed: pip install distributed zarr") from fault
    dask: Any = distributed  # it is not annotated
    if scheduler is None:
        workers = {"n_workers": count_processors(), "threads_per_worker": 1, "processes": True}
        with dask.LocalCluster(**workers, dashboard_address=None) as cluster, dask.Client(cluster) as client:
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
    members = _remote_members(_RemotePlan(source))
    return number, compute_block(members, members.plan.block(number), backend, threads=1)


class _RemotePlan:
    """A plan that is hashed by its contents, so that a worker traces and compiles once."""

    def __init__(self, source: PlanSource):
        self.plan = make_plan(source.config, source.folder, source.reductions, chunk=source.chunk)
        self.text = self.plan.description + source.folder

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _RemotePlan) and self.text == other.text


@lru_cache(maxsize=8)
def _remote_members(remote: _RemotePlan) -> SweepMembers:
    return SweepMembers(remote.plan)


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
