"""Who does the work: this machine's cores, its GPU, or the workers of a Dask cluster. Each yields finished blocks, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InvalidInput, UnknownName
from .chunk import Arrays, compute
from .members import Members
from .plan import Block, plan

EXECUTORS = ("local", "cuda", "dask")
LANES = {"local": 1 << 15, "dask": 1 << 14, "cuda": 1 << 20}
"""Members of a block at most, unless the sweep says otherwise: enough lanes for every core, few enough to lose little."""
WORK = 1 << 25
"""Steps of all members of a block together: half a second on one core, for which Ctrl-C waits."""
FEWEST = 512
AHEAD = 2
"""Blocks that a Dask worker has in hand: one is computed while another travels."""

Done = Iterator[tuple[Block, Arrays]]


def chunk_of(config: Mapping[str, Any], name: str) -> int:
    """The size of a block: long runs are cut into smaller ones."""
    steps = config.get("run", {}).get("steps", 1000) if isinstance(config.get("run", {}), Mapping) else 1000
    fitting = WORK // steps if isinstance(steps, int) and steps > 0 else WORK
    return LANES[name] if name == "cuda" else max(FEWEST, min(LANES[name], fitting))


class LostCluster(RuntimeError):
    """The scheduler of a Dask cluster is gone, or a block killed every worker it was given to."""


class Source(NamedTuple):
    """What a worker needs to make the plan again."""

    config: Mapping[str, Any]
    folder: str
    reductions: Mapping[str, Any] | None
    chunk: int


@contextmanager
def executor(
    name: str, members: Members, source: Source, scheduler: str | None
) -> Iterator[Callable[[list[int]], Done]]:
    """A function that does the blocks with the given numbers."""
    if name not in EXECUTORS:
        raise UnknownName("executor", name, EXECUTORS)
    if scheduler is not None and name != "dask":
        raise InvalidInput(
            f"--scheduler is the address of a Dask cluster; the executor is {name}: give --executor dask"
        )
    if name != "dask":
        backend: Any = "cuda" if name == "cuda" else members.plan.config["run"].get("backend", "auto")
        yield lambda todo: ((block, compute(members, block, backend)) for block in map(members.plan.block, todo))
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
    from ..kernels.native import _processors

    if scheduler is None:
        with (
            LocalCluster(
                n_workers=_processors(), threads_per_worker=1, processes=True, dashboard_address=None
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


def _spread(client: Any, members: Members, source: Source, todo: list[int]) -> Done:
    """Blocks by the workers; a few wait for each worker, and whatever a lost worker had is done by another."""
    from distributed import as_completed
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    backend = members.plan.config["run"].get("backend", "auto")
    give = lambda number: client.submit(
        remote, source, number, backend, pure=False, key=f"dalembert-{number}-{id(todo)}"
    )
    waiting = iter(todo)
    width = AHEAD * max(1, sum(client.nthreads().values()))
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


def remote(source: Source, number: int, backend: str) -> tuple[int, Arrays]:
    """One block on a worker, on one core for each of the worker's tasks."""
    members = _members(_Hashable(source))
    return number, compute(members, members.plan.block(number), backend, threads=1)  # type: ignore[arg-type]


class _Hashable:
    """A source by its contents, so that a worker traces and compiles once."""

    def __init__(self, source: Source):
        self.source = source
        self.text = (
            plan(source.config, source.folder, source.reductions, chunk=source.chunk).description + source.folder
        )

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Hashable) and self.text == other.text


@lru_cache(maxsize=8)
def _members(held: _Hashable) -> Members:
    source = held.source
    return Members(plan(source.config, Path(source.folder), source.reductions, chunk=source.chunk))
