"""Sweeps: many runs of one configuration with other numbers, block by block, into a store that loses nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..config import read
from ..errors import InvalidInput, UnknownName
from .chunk import Arrays
from .executors import EXECUTORS, LostCluster, Source, chunk_of
from .executors import executor as opened_executor
from .members import Members
from .plan import Block, Plan, Reduction, plan
from .store import Given, Held, Sink, opened, saved_chunk

__all__ = ["EXECUTORS", "Block", "LostCluster", "Plan", "Reduction", "SweepResult", "sweep"]

Progress = Callable[[int, int, float], None]
"""progress(members done, all members, members a second of this session)."""


@dataclass(frozen=True, eq=False)
class SweepResult:
    """What a sweep came to. `failed` counts members whose status is not 0, of all that are done; `computed` those of this session."""

    plan: Plan
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
        if isinstance(self.sink, Given):
            raise InvalidInput("the blocks went to your function: nothing was kept")
        return self.sink.dataset()


def sweep(
    config: Mapping[str, Any] | str | Path,
    *,
    out: str | Path | Callable[[Block, Arrays], Any] | None = None,
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
        folder, config = Path(config).parent, read(config)
    if resume and not isinstance(out, str | Path):
        raise InvalidInput("resume needs out: the store that is to be finished")
    target = Path(out) if isinstance(out, str | Path) else None
    chunk = (saved_chunk(target) if resume and target is not None else None) or chunk_of(config, executor)
    source = Source(config, str(Path(folder).resolve()), reductions, chunk)
    members = Members(plan(config, folder, reductions, chunk=chunk))
    holding = (
        opened(target, members, resume)
        if target is not None
        else nullcontext(Given(out) if callable(out) else Held(members))
    )
    with holding as sink:
        return _driven(members, sink, target, source, executor, scheduler, progress)


def _driven(
    members: Members,
    sink: Sink,
    path: Path | None,
    source: Source,
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
        pending: tuple[Future, Block, Arrays] | None = None
        try:
            with opened_executor(name, members, source, scheduler) as work:
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
