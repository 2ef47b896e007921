"""Running a step many times: choose a backend, work in pieces, report, stop when asked, keep what is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax

from .pieces import Pace, Progress, Read, Reader, Session, interruptible, pieces, report
from .problem import Problem
from .program import LoweringError

Backend = Literal["auto", "llvm", "cuda", "xla"]
MANY = 1 << 14
"""Lanes from which "auto" prefers a GPU."""
STREAMED = 1 << 21
"""Words of records a streamed chunk holds unless told otherwise."""


@dataclass(frozen=True)
class RunResult:
    """What a run left: the final loop, the records of the first `saves` blocks of steps, and how it was run."""

    loop: Any
    records: Any
    backend: str
    note: str
    interrupted: bool
    saves: int


@dataclass(frozen=True)
class Chunk:
    """Consecutive records, starting with number `first`, and the loop after the last of them."""

    first: int
    count: int
    records: Any
    loop: Any
    backend: str
    note: str
    interrupted: bool


def run(described: Problem, *, saves: int, save_every: int = 1, backend: Backend = "auto", threads: int | None = None,
        width: int | None = None, progress: Progress | None = None, initial: bool = False,
        read: Reader | None = None) -> RunResult:
    """Advance `saves * save_every` steps and keep a record after every `save_every` of them.

    Records are (saves, ...) for one trajectory and (lanes, saves, ...) for lanes. `progress(done, saves)` is called between
    pieces; KeyboardInterrupt ends the run and keeps what is done. `width` overrides the vector width.
    `initial` puts a record of the given loop before the others. `read` is given the loop after every piece, and says how full the
    room is that the loop has for notes (above 1 some did not fit: the piece is done again in parts), and whether no lane goes on.
    """
    _require(described, saves, save_every)
    if _is_traced(described):
        return _traced(described, saves, save_every, backend, initial)
    session, note = open_session(described, backend, threads=threads, width=width)
    reading = None if read is None else Read(session, read)
    session = reading or session
    session.reserve(saves + initial)
    if initial:
        session.run(0, 1, 0, 0)  # a block of no steps ends with a record like any other
    with interruptible() as stop:
        done = 0
        for done in pieces(session, saves, save_every, stop, Pace(described.lanes), slot=int(initial)):
            report(progress, done, saves, stop)
            if reading is not None and reading.over:
                break
    records = session.records(done + initial)
    return RunResult(session.loop(), records, session.name, note, stop.is_set() and done < saves, done)


def chunks(described: Problem, *, saves: int, save_every: int = 1, backend: Backend = "auto", threads: int | None = None,
           width: int | None = None, chunk: int | None = None, progress: Progress | None = None) -> Iterator[Chunk]:
    """The same run as a stream: `chunk` records at a time, in one buffer's worth of memory however long the run.

    The records of a chunk are views of that buffer: use or copy them before asking for the next chunk.
    """
    _require(described, saves, save_every)
    session, note = open_session(described, backend, threads=threads, width=width)
    record = jax.eval_shape(described.observe, described.const_tree, described.loop_tree)
    words = sum(leaf.size for leaf in jax.tree.leaves(record)) * (described.lanes or 1)
    size = min(saves, chunk or max(1, STREAMED // max(words, 1)))
    session.reserve(size)
    first, pace = 0, Pace(described.lanes)
    while first < saves:
        wanted, done = min(size, saves - first), 0
        with interruptible() as stop:
            for done in pieces(session, wanted, save_every, stop, pace, first * save_every):
                report(progress, first + done, saves, stop)
        stopped = stop.is_set() and first + done < saves
        yield Chunk(first, done, session.records(done), session.loop(), session.name, note, stopped)
        if stopped:
            return
        first += done


def open_session(described: Problem, backend: Backend, *, threads: int | None = None,
                 width: int | None = None) -> tuple[Session, str]:
    """A session of the wanted backend, and a note where "auto" had to take another."""
    if backend not in ("auto", "llvm", "cuda", "xla"):
        raise ValueError(f"unknown backend {backend!r}: choose 'auto', 'llvm', 'cuda' or 'xla'")
    from .xla import XlaSession

    if backend == "xla":
        return XlaSession(described), ""
    try:
        if backend == "cuda" or (backend == "auto" and (described.lanes or 0) >= MANY and _has_gpu()):
            return _cuda_session(described), ""
        return _llvm_session(described, threads, width), ""
    except (LoweringError, ImportError) as error:
        if backend != "auto":
            raise
        return XlaSession(described), f"ran on XLA: {error}"


def _llvm_session(described: Problem, threads: int | None, width: int | None) -> Session:
    from . import native
    from .buffers import Buffers, layout_of

    lowered = described.lowered()
    width = 1 if described.lanes is None else width or native.best_width()
    function = native.function(lowered, layout_of(described, lowered), width)
    return native.NativeSession("llvm", function, Buffers(described, lowered, width), width, threads)


def _cuda_session(described: Problem) -> Session:
    from .cuda import CudaSession

    return CudaSession(described, described.lowered())


def _has_gpu() -> bool:
    from .cuda import available

    return available()


def _require(described: Problem, saves: int, save_every: int) -> None:
    if saves < 0 or save_every < 1:
        raise ValueError(f"saves = {saves} and save_every = {save_every}: need at least 0 and 1")
    described.require_steps(saves * save_every)


def _is_traced(described: Problem) -> bool:
    leaves = jax.tree.leaves((described.consts, described.loop, described.controls))
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _traced(described: Problem, saves: int, save_every: int, backend: Backend, initial: bool) -> RunResult:
    """Inside a transformation (grad, jit, vmap) the run is a `lax.scan`."""
    from .xla import traced

    if backend not in ("auto", "xla"):
        raise LoweringError(f"backend {backend!r} cannot run inside a JAX transformation; 'auto' and 'xla' can")
    final, records = traced(described, saves, save_every, initial)
    return RunResult(final, records, "xla", "traced", False, saves)
