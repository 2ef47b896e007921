"""A run in pieces: short enough for Ctrl-C and for the room that a loop has for notes.

Running a step many times: choose a backend, work in pieces, report, stop when asked, keep what is done.

A function of small arrays as machine code: a run of no steps whose one record is the function's value.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, Protocol

import jax

from .ir import LoweringError
from .problem import Buffers, Problem, layout_of, make_problem

PIECE = 0.05
"""Seconds a piece of work should take: the time a Ctrl-C waits."""
NoteReader = Callable[[Any], tuple[float, bool]]
Progress = Callable[[int, int], None]


class Session(Protocol):
    """A run in pieces: `run` advances the state and writes records into the room that `reserve` made; `keep=False`: they are not needed."""

    name: str

    @property
    def limit(self) -> int: ...
    def reserve(self, capacity: int) -> None: ...
    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None: ...
    def loop(self) -> Any: ...
    def records(self, count: int) -> Any: ...
    def save_state(self) -> Any: ...
    def restore_state(self, state: Any) -> None: ...


class ChunkTimer:
    """How many steps a call should do to last PIECE seconds: a guess at first, then what was measured."""

    def __init__(self, lanes: int | None):
        self.steps = max(1, 4096 // (lanes or 1))
        self.fixed = float("inf")  # what a call costs however few its steps: a launch, a copy of the records

    def run(self, session: Session, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        begin = time.perf_counter()
        session.run(first, count, every, step, keep)
        elapsed = time.perf_counter() - begin
        self.fixed = min(self.fixed, elapsed)
        fitting = int(count * every * PIECE / max(elapsed - self.fixed, 1e-6))
        self.steps = max(1, self.steps // 4, min(fitting, 8 * self.steps))


def split_chunks(
    session: Session, saves: int, every: int, stop: threading.Event, pace: ChunkTimer, step: int = 0, slot: int = 0
) -> Iterator[int]:
    """Do the work in calls of about PIECE seconds; yield the number of records done after each. `slot` is the first one's."""
    done = 0
    while done < saves and not stop.is_set():
        if pace.steps >= every:
            count = max(1, min(saves - done, pace.steps // every, session.limit))
            pace.run(session, slot + done, count, every, step + done * every)
        else:
            count = int(_one_record(session, slot + done, every, stop, pace, step + done * every))
        done += count
        yield done


def _one_record(session: Session, slot: int, every: int, stop: threading.Event, pace: ChunkTimer, step: int) -> bool:
    """One record in several calls; if the run is stopped between them, the state before it comes back."""
    before, taken = session.save_state(), 0
    while taken < every:
        if stop.is_set():
            session.restore_state(before)
            return False
        count = min(pace.steps, every - taken)
        taken += count
        pace.run(session, slot, 1, count, step + taken - count, keep=taken == every)
    return True


class PolledSession:
    """A session whose loop is read between pieces that are short enough for its room."""

    def __init__(self, session: Session, read: NoteReader):
        self.session, self.read, self.most, self.over = session, read, 1 << 62, False
        self.name, self.loop, self.records, self.reserve = session.name, session.loop, session.records, session.reserve
        self.save_state, self.restore_state = session.save_state, session.restore_state

    @property
    def limit(self) -> int:
        return self.session.limit

    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        if self.over or not every:  # a loop that stands still need not be stepped
            return self.session.run(first, count, min(every, 1), step, keep)
        done = 0
        while done < count * every:
            record, within = divmod(done, every)
            whole = within == 0 and self.most >= every
            steps = every if whole else min(self.most, every - within)
            blocks = min(count - record, self.most // every) if whole else 1
            if self._fits(first + record, blocks, steps, step + done, keep and within + steps == every):
                done += blocks * steps
        return None

    def _fits(self, first: int, count: int, every: int, step: int, keep: bool) -> bool:
        before = self.session.save_state()
        self.session.run(first, count, every, step, keep)
        full, self.over = self.read(self.session.loop())
        if full > 1:
            self.session.restore_state(before)
            self.most, self.over = max(1, count * every // 2), False
        elif full <= 0.5:
            self.most = max(self.most, 2 * count * every)
        return full <= 1


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Turn Ctrl-C into a request to stop between pieces; a second one interrupts at once."""
    stop = threading.Event()

    def request(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, request)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def report(progress: Progress | None, done: int, saves: int, stop: threading.Event) -> None:
    """Say how far the run is; whoever is told may raise KeyboardInterrupt to stop it."""
    if progress is not None:
        try:
            progress(done, saves)
        except KeyboardInterrupt:
            stop.set()


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


def run(
    described: Problem,
    *,
    saves: int,
    save_every: int = 1,
    backend: Backend = "auto",
    threads: int | None = None,
    width: int | None = None,
    progress: Progress | None = None,
    initial: bool = False,
    read: NoteReader | None = None,
) -> RunResult:
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
    reading = None if read is None else PolledSession(session, read)
    session = reading or session
    session.reserve(saves + initial)
    if initial:
        session.run(0, 1, 0, 0)  # a block of no steps ends with a record like any other
    with interruptible() as stop:
        done = 0
        for done in split_chunks(session, saves, save_every, stop, ChunkTimer(described.lanes), slot=int(initial)):
            report(progress, done, saves, stop)
            if reading is not None and reading.over:
                break
    records = session.records(done + initial)
    return RunResult(session.loop(), records, session.name, note, stop.is_set() and done < saves, done)


def chunks(
    described: Problem,
    *,
    saves: int,
    save_every: int = 1,
    backend: Backend = "auto",
    threads: int | None = None,
    width: int | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Chunk]:
    """The same run as a stream: `chunk` records at a time, in one buffer's worth of memory however long the run.

    The records of a chunk are views of that buffer: use or copy them before asking for the next chunk.
    """
    _require(described, saves, save_every)
    session, note = open_session(described, backend, threads=threads, width=width)
    record = jax.eval_shape(described.observe, described.const_tree, described.loop_tree)
    words = sum(leaf.size for leaf in jax.tree.leaves(record)) * (described.lanes or 1)
    size = min(saves, chunk or max(1, STREAMED // max(words, 1)))
    session.reserve(size)
    first, pace = 0, ChunkTimer(described.lanes)
    while first < saves:
        wanted, done = min(size, saves - first), 0
        with interruptible() as stop:
            for done in split_chunks(session, wanted, save_every, stop, pace, first * save_every):
                report(progress, first + done, saves, stop)
        stopped = stop.is_set() and first + done < saves
        yield Chunk(first, done, session.records(done), session.loop(), session.name, note, stopped)
        if stopped:
            return
        first += done


def open_session(
    described: Problem, backend: Backend, *, threads: int | None = None, width: int | None = None
) -> tuple[Session, str]:
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
    from . import llvm as native

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


def compiled(function: Callable) -> Callable:
    """The same function, compiled by the kernels; by XLA where they cannot. Inside a JAX transformation it is called as it is.

    A function of this package is then neither traced nor compiled in a process that finds it on disk.
    """
    by_xla = jax.jit(function)

    def observe(args: tuple, nothing: tuple) -> Any:
        return function(*args)

    @wraps(function)
    def call(*args: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return function(*args)
        try:
            session, _ = open_session(make_problem(_stay, observe, args, ()), "llvm")
        except (LoweringError, ImportError):
            return by_xla(*args)
        session.reserve(1)
        session.run(0, 1, 0, 0)
        return jax.device_put(jax.tree.map(lambda leaf: leaf[0], session.records(1)))

    return call


def evaluated(
    function: Callable,
    consts: Any,
    given: Any,
    *,
    lanes: int | None = None,
    axes: Any = None,
    backend: Backend = "auto",
    threads: int | None = None,
) -> Any:
    """function(consts, given) by a backend; with `lanes` of every lane, `axes` = (consts, given) as `problem` has them."""
    described = make_problem(_stay, function, consts, given, lanes=lanes, axes=axes)
    records = run(described, saves=1, backend=backend, threads=threads).records
    return jax.tree.map(lambda leaf: leaf[0] if lanes is None else leaf[:, 0], records)


def _stay(consts: Any, loop: Any, u: Any) -> Any:
    return loop
