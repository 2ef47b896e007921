"""Run a step many times: choose a back end, work in chunks, report, stop when asked, keep what is done.

`compile` and `run` take a step function as a user writes it, step(carry, inputs, parameters) -> (carry, outputs).
They put the outputs into the carry and so make a `Problem` of it; `run_problem` and `stream_problem` run problems.
Every run goes through one `Session` of one back end.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import cuda, llvm
from .adjoints import is_real
from .cache import StaleEntry
from .ir import LoweringError, Program
from .lowering import describe_mismatch
from .problem import Advance, Buffers, Observe, Problem, lane_axes, make_layout, make_problem
from .transformations import SlopeRun, announce_xla, bind_run, execute_by

Backend = Literal["auto", "llvm", "cuda", "xla"]
Step = Callable[[Any, Any, Any], tuple[Any, Any]]  # (carry, inputs, parameters) -> (carry, outputs)
NoteReader = Callable[[Any], tuple[float, bool]]
Progress = Callable[[int, int], None]

CHUNK_SECONDS = 0.05
"""Seconds that a chunk of work should take: a Ctrl-C waits so long."""
MIN_GPU_LANES = 1 << 14
"""Lanes from which "auto" prefers a GPU."""
MEMORY_PER_RECORD = 3
"""What a record takes in all: itself, what is computed of it, and what a file holds (measured: 2.9 at a save)."""
SMALL_RECORDS = 1 << 25
"""Bytes of records up to which nobody asks for memory: asking takes longer than writing them."""
STREAM_WORDS = 1 << 21
"""Words of records in a streamed chunk, unless the caller asks for another number of records."""
MAX_CALL_RECORDS = 1024
"""Records of one call, so that a run of any length compiles once."""
MAX_CALL_WORDS = 1 << 22
"""Words of the records of one call."""


class RecordsTooLarge(MemoryError):
    """Records that do not fit into memory: what one needs in bytes (of all lanes), and how many would fit."""

    def __init__(self, record_bytes: int, saves: int, fitting: int):
        self.record_bytes, self.saves, self.fitting = record_bytes, saves, fitting
        needed, most = record_bytes * saves / 2**30, record_bytes * fitting / 2**30
        super().__init__(
            f"{saves} records of {record_bytes} bytes take {needed:.3g} GiB, and {most:.3g} GiB may be used"
        )


class Session(Protocol):
    """A run on one back end: `run` advances the state and writes records into the memory that `reserve` allocated.

    With `keep=False` the records of a call are not needed.
    """

    name: str
    words: int  # of 8 bytes, in one record of one lane

    @property
    def limit(self) -> int: ...
    def reserve(self, capacity: int) -> None: ...
    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None: ...
    def carry(self) -> Any: ...
    def records(self, count: int) -> Any: ...
    def save_state(self) -> Any: ...
    def restore_state(self, state: Any) -> None: ...


@dataclass(frozen=True)
class RunResult:
    """What a run left: the final carry, `saves` records from number `first` on, and how it was run."""

    carry: Any
    records: Any
    backend: str
    note: str
    interrupted: bool
    saves: int
    first: int = 0


@dataclass(frozen=True)
class CompiledStep:
    """A step function compiled for the shapes of its carry, inputs and parameters; `compile` makes it.

    Other values of these shapes run without a new compilation. What is not given to a call is what `compile` was given.
    """

    problem: Problem
    axes: tuple[Any, Any, Any]
    backend: Backend
    threads: int | None

    def run(
        self,
        steps: int,
        *,
        carry: Any = None,
        inputs: Any = None,
        parameters: Any = None,
        save_every: int = 1,
        progress: Progress | None = None,
    ) -> RunResult:
        """Take `steps` steps and record the outputs of every `save_every`-th.

        Records are (saves, ...), or (lanes, saves, ...) for lanes. `progress(done, saves)` is called about 20 times a
        second; a KeyboardInterrupt ends the run and keeps the records that are done. A run from `carry=result.carry`
        goes on where `result` ended, bit for bit.
        """
        problem, saves = self._with(carry, inputs, parameters), _count_saves(steps, save_every)
        options: Any = {"backend": self.backend, "threads": self.threads, "progress": progress}
        result = run_problem(problem, saves=saves, save_every=save_every, **options)
        return replace(result, carry=result.carry[0])

    def __call__(self, carry: Any, inputs: Any = None, parameters: Any = None) -> tuple[Any, Any]:
        """One step, with the arguments and results of the step function itself."""
        leaves, structure = jax.tree.flatten(inputs)
        step_axes = map(int, lane_axes(inputs, self.axes[1]))
        rows = [np.expand_dims(leaf, axis) for leaf, axis in zip(leaves, step_axes, strict=True)]
        result = self.run(1, carry=carry, inputs=jax.tree.unflatten(structure, rows), parameters=parameters)
        lanes = self.problem.lanes
        return result.carry, jax.tree.map(lambda leaf: leaf[0] if lanes is None else leaf[:, 0], result.records)

    @property
    def program(self) -> Program:
        """The scalar program of the step; print it to read it."""
        return self.problem.lower().program

    def _with(self, carry: Any, inputs: Any, parameters: Any) -> Problem:
        p = self.problem
        given, outputs = (p.carry[0] if carry is None else carry), p.carry[1]
        inputs, parameters = p.controls if inputs is None else inputs, p.consts if parameters is None else parameters
        of_carry, of_inputs, of_parameters = self.axes
        axes = (of_parameters, (of_carry, None), of_inputs)
        problem = make_problem(p.advance, p.observe, parameters, (given, outputs), inputs, axes=axes)
        trees = {"carry": (p.carry_tree[0], problem.carry_tree[0])}
        trees |= {"inputs": (p.control_tree, problem.control_tree), "parameters": (p.const_tree, problem.const_tree)}
        for name, (compiled, new) in trees.items():
            if mismatch := describe_mismatch(compiled, new, name):
                raise ValueError(f"the step was compiled for other shapes: {mismatch}")
        return problem


def compile(
    step: Step,
    carry: Any,
    inputs: Any = None,
    parameters: Any = None,
    *,
    lanes: int | None = None,
    axes: tuple[Any, Any, Any] | None = None,
    backend: Backend = "auto",
    threads: int | None = None,
) -> CompiledStep:
    """Compile step(carry, inputs, parameters) -> (carry, outputs), a pure JAX function on pytrees of small arrays.

    The carry goes from step to step. `inputs` has one row for each step, like `xs` of `jax.lax.scan`; `parameters`
    are the same in all steps. Both are run-time inputs of the compiled code. With `lanes`, every leaf of the carry
    has a leading axis of so many independent trajectories; `axes` = (carry, inputs, parameters) says like `in_axes`
    of `jax.vmap` which leaves have one. `backend` is "llvm" (this processor), "cuda" (a GPU), "xla" or "auto".

    A step that a chosen back end cannot run raises `LoweringError` and says why; "auto" then takes XLA and says so in
    the `note` of the results. XLA compiles at the first run.
    """
    axes = axes or (None if lanes is None else 0, None, None)
    advance = _StepAdvance(step)

    def describe(carry: Any, of_carry: Any) -> Problem:
        in_axes = (axes[2], of_carry, axes[1])
        return make_problem(advance, _last_outputs, parameters, carry, inputs, lanes=lanes, axes=in_axes)

    problem = describe(carry, axes[0])
    result = jax.eval_shape(step, problem.carry_tree, problem.control_tree, problem.const_tree)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError("a step returns two things: the next carry and its outputs (None where it has none)")
    if mismatch := describe_mismatch(problem.carry_tree, result[0], "carry"):
        raise ValueError(f"the step changes its carry: {mismatch}")
    outputs = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), result[1])
    problem = describe((carry, outputs), (axes[0], None))
    if not _is_traced(problem):
        open_session(problem, backend, threads=threads)
    return CompiledStep(problem, axes, backend, threads)


def run(
    step: Step,
    carry: Any,
    steps: int,
    *,
    inputs: Any = None,
    parameters: Any = None,
    save_every: int = 1,
    lanes: int | None = None,
    axes: tuple[Any, Any, Any] | None = None,
    backend: Backend = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Compile a step and run it: `compile(step, ...).run(steps, ...)`; the same step function compiles once."""
    compiled = compile(step, carry, inputs, parameters, lanes=lanes, axes=axes, backend=backend, threads=threads)
    return compiled.run(steps, save_every=save_every, progress=progress)


@dataclass(frozen=True)
class _StepAdvance:
    """The `advance` of a step function; its carry holds the outputs of the last step beside the user's carry."""

    step: Step

    def __call__(self, consts: Any, carry: Any, control: Any) -> tuple[Any, Any]:
        new, outputs = self.step(carry[0], control, consts)
        return new, outputs


def _last_outputs(consts: Any, carry: Any) -> Any:
    return carry[1]


def _count_saves(steps: int, save_every: int) -> int:
    if save_every < 1 or steps < 0 or steps % save_every:
        raise ValueError(f"steps = {steps} must be a multiple of save_every = {save_every}, which is at least 1")
    return steps // save_every


def run_problem(
    problem: Problem,
    *,
    saves: int,
    save_every: int = 1,
    backend: Backend = "auto",
    threads: int | None = None,
    width: int | None = None,
    progress: Progress | None = None,
    initial: bool = False,
    read_notes: NoteReader | None = None,
    single: bool = False,
) -> RunResult:
    """Advance `saves * save_every` steps and keep a record after every `save_every` of them.

    Records are (saves, ...) for one trajectory and (lanes, saves, ...) for lanes. `progress(done, saves)` is called
    between chunks; KeyboardInterrupt ends the run and keeps what is done. `width` overrides the vector width.
    `initial` puts a record of the given carry before the others. `read_notes` is given the carry after every chunk.
    It says how full the carry is of notes (above 1 some did not fit: the chunk is repeated in parts), and whether all
    lanes have ended. `single`: there is one record, and it has no axis for its number.
    """
    _check_counts(problem, saves, save_every)
    if _is_traced(problem):
        return _run_traced(problem, saves, save_every, backend, initial, single)
    session, note = open_session(problem, backend, threads=threads, width=width)
    polled = None if read_notes is None else PolledSession(session, read_notes)
    session = polled or session
    _require_memory(session, problem.lanes or 1, saves + initial)
    session.reserve(saves + initial)
    if initial:
        session.run(0, 1, 0, 0)  # no steps, and then a record like any other
    with catch_interrupt() as stop:
        done = 0
        for done in split_chunks(session, saves, save_every, stop, ChunkTimer(problem.lanes), slot=int(initial)):
            report_progress(progress, done, saves, stop)
            if polled is not None and polled.finished:
                break
    records = session.records(done + initial)
    if single:
        records = jax.tree.map(lambda leaf: leaf[0] if problem.lanes is None else leaf[:, 0], records)
    return RunResult(session.carry(), records, session.name, note, stop.is_set() and done < saves, done)


def run_with_slopes(
    problem: Problem, moving: Sequence[bool], slopes: Sequence[Any], directions: int | None = None, **options: Any
) -> tuple[RunResult, list[Any], list[Any]]:
    """`run_problem` with derivatives: (the run, the slopes of its carry, the slopes of its records).

    `slopes` are those of the `moving` constants and of the real leaves of the carry; those of the results are of real
    leaves too. With `directions`, a slope has a row for each of them in front.
    """
    marks = [moving, [*map(is_real, jax.tree.leaves(problem.carry))], [False] * len(problem.control_axes)]
    pushed = SlopeRun(problem, marks, slopes, directions)
    if (read := options.get("read_notes")) is not None:
        options["read_notes"] = lambda carry: read(pushed.numbers(carry))
    result = run_problem(pushed.problem, **options)
    plain = replace(result, carry=pushed.numbers(result.carry), records=pushed.numbers(result.records))
    return plain, pushed.slopes(result.carry), pushed.slopes(result.records, rows=True)


def stream_problem(
    problem: Problem,
    *,
    saves: int,
    save_every: int = 1,
    backend: Backend = "auto",
    threads: int | None = None,
    width: int | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Iterator[RunResult]:
    """The same run as a stream: `chunk` records at a time, in the memory of one chunk however long the run.

    The records of a chunk are views of one buffer: use or copy them before asking for the next chunk.
    """
    _check_counts(problem, saves, save_every)
    session, note = open_session(problem, backend, threads=threads, width=width)
    size = min(saves, chunk or max(1, STREAM_WORDS // max(session.words * (problem.lanes or 1), 1)))
    session.reserve(size)
    first, timer = 0, ChunkTimer(problem.lanes)
    while first < saves:
        wanted, done = min(size, saves - first), 0
        with catch_interrupt() as stop:
            for done in split_chunks(session, wanted, save_every, stop, timer, first * save_every):
                report_progress(progress, first + done, saves, stop)
        stopped = stop.is_set() and first + done < saves
        yield RunResult(session.carry(), session.records(done), session.name, note, stopped, done, first)
        if stopped:
            return
        first += done


def _require_memory(session: Session, lanes: int, saves: int) -> None:
    """Refuse records that do not fit into memory, before it is reserved."""
    size = 8 * max(1, session.words) * lanes
    if saves * size > SMALL_RECORDS and saves > (fitting := available_memory() // (MEMORY_PER_RECORD * size)):
        raise RecordsTooLarge(size, saves, fitting)


def available_memory() -> int:
    """The bytes that this process can still have: of the machine, its control group and its own limits."""
    found = [1 << 62]
    with suppress(OSError, ValueError, LookupError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].split()[0]))
    groups = (("", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))
    for place, most, used in groups:
        with suppress(OSError, ValueError, LookupError):
            folder = Path("/sys/fs/cgroup") / place
            lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            files = int(lines["inactive_file"]) + int(lines["active_file"])  # which the system gives back
            found.append(int((folder / most).read_text()) - int((folder / used).read_text()) + files)
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
        found += [limit - pages * resource.getpagesize() for limit in limits if limit != resource.RLIM_INFINITY]
    return max(0, min(found))


def open_session(
    problem: Problem, backend: Backend, *, threads: int | None = None, width: int | None = None
) -> tuple[Session, str]:
    """A session of the wanted back end, and a note where "auto" had to take another."""
    if backend not in ("auto", "llvm", "cuda", "xla"):
        raise ValueError(f"unknown backend {backend!r}: choose 'auto', 'llvm', 'cuda' or 'xla'")
    if backend == "xla":
        return XlaSession(problem), ""
    try:
        if backend == "cuda" and not cuda.has_gpu():
            raise LoweringError("backend 'cuda' needs CuPy and a GPU that answers; 'auto' takes what there is")
        lowered = problem.lower()
        if backend == "cuda" or (not lowered.memory and not runs_natively(problem.lanes, backend)):
            return cuda.CudaSession(problem, lowered), ""
        most = 1 if problem.lanes is None else width or llvm.best_width(problem.lanes)
        taken = min(most, width or llvm.fitting_width(lowered))
        function = llvm.native_function(lowered, make_layout(problem, lowered), taken)
        return llvm.NativeSession("llvm", function, Buffers(problem, lowered, most), taken, threads), ""
    except StaleEntry:
        return open_session(problem, backend, threads=threads, width=width)
    except (LoweringError, ImportError) as error:
        announce_xla(backend, error, problem.count_equations)
        return XlaSession(problem), f"ran on XLA: {error}"


def runs_natively(lanes: int | None, backend: Backend) -> bool:
    """Whether so many lanes run on this processor, and not on a GPU or by XLA."""
    return backend == "llvm" or (backend == "auto" and ((lanes or 0) < MIN_GPU_LANES or not cuda.has_gpu()))


def _check_counts(problem: Problem, saves: int, save_every: int) -> None:
    if saves < 0 or save_every < 1:
        raise ValueError(f"saves = {saves} and save_every = {save_every}: need at least 0 and 1")
    problem.require_steps(saves * save_every)


def _is_traced(problem: Problem) -> bool:
    leaves = jax.tree.leaves((problem.consts, problem.carry, problem.controls))
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _run_traced(
    problem: Problem, saves: int, save_every: int, backend: Backend, initial: bool, single: bool
) -> RunResult:
    """Inside a transformation (grad, jit, vmap) the run is a primitive that runs native code, or a `lax.scan`."""
    note = "traced"
    if backend != "xla":
        try:
            final, records = bind_run(problem, saves, save_every, initial, backend, single=single)
            return RunResult(final, records, "llvm" if backend == "auto" else backend, note, False, saves)
        except LoweringError as error:
            announce_xla(backend, error)
            note = f"ran on XLA: {error}"
    final, records = scan_problem(problem, saves, save_every, initial)
    if single:
        records = jax.tree.map(lambda leaf: leaf[0] if problem.lanes is None else leaf[:, 0], records)
    return RunResult(final, records, "xla", note, False, saves)


def _run_concrete(problem: Problem, saves: int, every: int, initial: bool, backend: Backend) -> tuple[Any, Any]:
    """A run of a transformation, when its numbers are known."""
    result = run_problem(problem, saves=saves, save_every=every, initial=initial, backend=backend)
    if result.interrupted:  # what is done has not the shapes that JAX waits for
        raise KeyboardInterrupt
    return result.carry, result.records


class ChunkTimer:
    """How many steps a call should do to last CHUNK_SECONDS: a guess at first, then what was measured."""

    def __init__(self, lanes: int | None):
        self.steps = max(1, 4096 // (lanes or 1))
        self.overhead = float("inf")  # what a call costs however few its steps: a launch, a copy of the records

    def run(self, session: Session, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        begin = time.perf_counter()
        session.run(first, count, every, step, keep)
        elapsed = time.perf_counter() - begin
        self.overhead = min(self.overhead, elapsed)
        fitting = int(count * every * CHUNK_SECONDS / max(elapsed - self.overhead, 1e-6))
        self.steps = max(1, self.steps // 4, min(fitting, 8 * self.steps))


def split_chunks(
    session: Session, saves: int, every: int, stop: threading.Event, timer: ChunkTimer, step: int = 0, slot: int = 0
) -> Iterator[int]:
    """Do the work in calls of about CHUNK_SECONDS; yield the number of records done after each.

    The records go to the places from `slot` on.
    """
    done = 0
    while done < saves and not stop.is_set():
        if timer.steps >= every:
            count = max(1, min(saves - done, timer.steps // every, session.limit))
            timer.run(session, slot + done, count, every, step + done * every)
        else:
            count = int(_run_record(session, slot + done, every, stop, timer, step + done * every))
        done += count
        yield done


def _run_record(session: Session, slot: int, every: int, stop: threading.Event, timer: ChunkTimer, step: int) -> bool:
    """One record in several calls; if the run is stopped between them, the state before it comes back."""
    before, taken = session.save_state(), 0
    while taken < every:
        if stop.is_set():
            session.restore_state(before)
            return False
        count = min(timer.steps, every - taken)
        taken += count
        timer.run(session, slot, 1, count, step + taken - count, keep=taken == every)
    return True


class PolledSession:
    """A session whose carry is read after every chunk; the chunks are short enough for the notes it holds."""

    def __init__(self, session: Session, read_notes: NoteReader):
        self.session, self.read_notes, self.max_steps, self.finished = session, read_notes, 1 << 62, False
        self.name, self.words = session.name, session.words
        self.carry, self.records, self.reserve = session.carry, session.records, session.reserve
        self.save_state, self.restore_state = session.save_state, session.restore_state

    @property
    def limit(self) -> int:
        return self.session.limit

    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        if self.finished or not every:  # a carry that stands still need not be stepped
            return self.session.run(first, count, min(every, 1), step, keep)
        done = 0
        while done < count * every:
            record, within = divmod(done, every)
            complete = within == 0 and self.max_steps >= every
            steps = every if complete else min(self.max_steps, every - within)
            records = min(count - record, self.max_steps // every) if complete else 1
            if self._run_if_notes_fit(first + record, records, steps, step + done, keep and within + steps == every):
                done += records * steps
        return None

    def _run_if_notes_fit(self, first: int, count: int, every: int, step: int, keep: bool) -> bool:
        before = self.session.save_state()
        self.session.run(first, count, every, step, keep)
        fullness, self.finished = self.read_notes(self.session.carry())
        if fullness > 1:
            self.session.restore_state(before)
            self.max_steps, self.finished = max(1, count * every // 2), False
        elif fullness <= 0.5:
            self.max_steps = max(self.max_steps, 2 * count * every)
        return fullness <= 1


@contextmanager
def catch_interrupt() -> Iterator[threading.Event]:
    """Turn Ctrl-C into a request to stop between chunks; a second one interrupts at once."""
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


def report_progress(progress: Progress | None, done: int, saves: int, stop: threading.Event) -> None:
    """Say how far the run is; whoever is told may raise KeyboardInterrupt to stop it."""
    if progress is not None:
        try:
            progress(done, saves)
        except KeyboardInterrupt:
            stop.set()


# The portable back end: the same step under `lax.scan` and `vmap`, differentiable, and the fallback of the others.


def scan_problem(problem: Problem, saves: int, save_every: int, initial: bool = False) -> tuple[Any, Any]:
    """(final carry, records), lanes first, as a traceable function: reverse mode goes through it.

    `initial` puts a record of the given carry before the others.
    """

    def scan_trajectory(consts: Any, carry: Any, controls: Any) -> tuple[Any, Any]:
        """The rows of `controls` are the steps; the records have `saves` rows."""
        grouped = jax.tree.map(lambda leaf: jnp.reshape(leaf, (saves, save_every, *jnp.shape(leaf)[1:])), controls)

        def step(carry: Any, control: Any) -> tuple[Any, None]:
            return problem.advance(consts, carry, control), None

        def save(carry: Any, rows: Any) -> tuple[Any, Any]:
            carry, _ = lax.scan(step, carry, rows, length=save_every)
            return carry, problem.observe(consts, carry)

        final, records = lax.scan(save, jax.tree.map(jnp.asarray, carry), grouped, length=saves)
        if initial:
            first = problem.observe(consts, carry)
            records = jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b]), first, records)
        return final, records

    trees = (problem.consts, problem.carry, problem.controls)
    if problem.lanes is None:
        return scan_trajectory(*trees)
    marks = [0 if varies else None for varies in (*problem.const_axes, *problem.carry_axes, *problem.control_axes)]
    in_axes = jax.tree.unflatten(jax.tree.structure(trees), marks)
    final, records = jax.vmap(scan_trajectory, in_axes=in_axes, axis_size=problem.lanes)(*trees)
    return final, records


execute_by(_run_concrete, scan_problem, runs_natively)


@partial(jax.jit, static_argnames=("advance", "observe", "axes", "capacity"))
def _run_records(
    advance: Advance,
    observe: Observe,
    axes: tuple[int | None, ...] | None,
    capacity: int,
    consts: Any,
    carry: Any,
    controls: Any,
    count: Any,
    every: Any,
) -> tuple[Any, Any]:
    """`count` records, each after `every` steps; both are run-time numbers, so one compilation serves a run."""
    if axes is not None:
        in_axes = jax.tree.unflatten(jax.tree.structure((consts, carry, controls)), axes)
        advance = jax.vmap(advance, in_axes=in_axes)
        observe = jax.vmap(observe, in_axes=in_axes[:2])
    shapes = jax.eval_shape(observe, consts, carry)
    buffer = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), shapes)

    def control(step: Any) -> Any:
        return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, step, keepdims=False), controls)

    def save(i: Any, state: Any) -> Any:
        carry, records = state
        carry = lax.fori_loop(0, every, lambda k, now: advance(consts, now, control(i * every + k)), carry)
        return carry, jax.tree.map(lambda rows, new: rows.at[i].set(new), records, observe(consts, carry))

    final, records = lax.fori_loop(0, count, save, (carry, buffer))
    return final, records


class XlaSession:
    """A run in chunks on the device that JAX uses."""

    name = "xla"

    def __init__(self, problem: Problem):
        self.problem, lanes = problem, problem.lanes
        leaves = jax.tree.leaves(problem.carry)
        if lanes is not None:
            leaves = [
                jnp.asarray(leaf) if varies else jnp.broadcast_to(leaf, (lanes, *np.shape(leaf)))
                for leaf, varies in zip(leaves, problem.carry_axes, strict=True)
            ]
        leaves = [jnp.asarray(leaf, spec.dtype) for leaf, spec in zip(leaves, problem.carry_specs, strict=True)]
        self.state = jax.tree.unflatten(jax.tree.structure(problem.carry), leaves)
        # axis 0 of a control is the step; the lanes, where there are any, follow it
        inputs = zip(jax.tree.leaves(problem.controls), problem.control_axes, strict=True)
        rows = [np.moveaxis(np.asarray(leaf), 0, 1) if varies else np.asarray(leaf) for leaf, varies in inputs]
        self.controls = jax.tree.unflatten(jax.tree.structure(problem.controls), rows)
        self.axes: tuple[int | None, ...] | None = None
        if lanes is not None:
            marks = (*problem.const_axes, *[True] * len(leaves), *problem.control_axes)
            self.axes = tuple(0 if varies else None for varies in marks)
        self.record = jax.eval_shape(problem.observe, problem.const_tree, problem.carry_tree)
        self.words = sum(leaf.size for leaf in jax.tree.leaves(self.record))
        self.limit = max(1, min(MAX_CALL_RECORDS, MAX_CALL_WORDS // max(self.words * (lanes or 1), 1)))
        self.host: list[np.ndarray[Any, Any]] = []

    def reserve(self, capacity: int) -> None:
        front = (capacity,) if self.problem.lanes is None else (capacity, self.problem.lanes)
        self.host = [np.empty((*front, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(self.record)]

    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        rows, length = slice(step, step + count * every), self.limit * max(every, 1)

        def pad(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            """The controls of this call with zeros appended: every call has the same shape."""
            part = leaf[rows]
            return np.concatenate([part, np.zeros((length - len(part), *leaf.shape[1:]), leaf.dtype)])

        p, controls = self.problem, jax.tree.map(pad, self.controls)
        self.state, records = _run_records(
            p.advance, p.observe, self.axes, self.limit, p.consts, self.state, controls, count, every
        )
        for rows_on_host, new in zip(self.host, jax.tree.leaves(records), strict=True):
            if isinstance(new, jax.core.Tracer):
                raise ValueError(
                    "a function of the system holds a number that JAX traces, where it cannot be taken out of it: make "
                    "it a parameter, p of lagrangian(t, g, xi, p)"
                )
            rows_on_host[first : first + count] = np.asarray(new)[:count]

    def records(self, count: int) -> Any:
        leaves = [leaf[:count] if self.problem.lanes is None else np.moveaxis(leaf[:count], 1, 0) for leaf in self.host]
        return jax.tree.unflatten(jax.tree.structure(self.record), leaves)

    def carry(self) -> Any:
        return jax.tree.map(np.asarray, self.state)

    def save_state(self) -> Any:
        return self.state

    def restore_state(self, state: Any) -> None:
        self.state = state
