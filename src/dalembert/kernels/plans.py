"""Short calls: what all arguments of a kind have in common is found once, and a call then costs microseconds.

A `Problem` is described, lowered and laid out anew at every call: longer than many a run. A `CallPlan` is
what problems with the same functions, structures, shapes and types share: native code, and where the words of their
arguments and records lie. `evaluate` and `compile_function`, runs of no steps, go by plans, and so does a `Chain`: one
trajectory that begins by one program and advances by another, whose words go from buffer to buffer as they are.
Whatever has no plan (it is traced, or XLA has to run it, or it is long) goes the way of `run_problem`, to equal bits.
"""

from __future__ import annotations

import math
import os
import struct
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, wraps
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from . import cuda, llvm
from .adjoints import Marks, pick, real_marks
from .cache import LoweredProgram
from .cuda import BLOCK_THREADS, cuda_kernel
from .execute import (
    CHUNK_SECONDS,
    SMALL_RECORDS,
    Backend,
    catch_interrupt,
    open_session,
    run_problem,
    runs_natively,
)
from .ir import LoweringError
from .llvm import LaneThreads, NativeSession, best_width, call_line, native_function, script_player
from .lowering import join_programs, shape_struct
from .problem import (
    Advance,
    Kernel,
    Observe,
    Problem,
    Stream,
    Streams,
    Words,
    address,
    lane_axes,
    make_layout,
    make_problem,
    pack,
    pack_controls,
    split_in_jax,
)
from .transformations import Directions, SlopeAdvance, SlopeObserve, bind_run, is_transformed

Numbers = np.ndarray[Any, Any]
Leaves = Sequence[Any]
Leaf = tuple[int, int, tuple[int, ...], Any, Any]  # words before it, its size, shape, type in words and own type
Result = TypeVar("Result")

ARRAYS, PLAIN = {np.ndarray}, {np.ndarray, float}
NOTHING: Words = np.empty(0, np.int64)
DOUBLE = np.dtype(float)
"""The type of almost all leaves: to compare with `is` takes a tenth of the time."""
SHORT_STEPS = 4096
"""Lanes of one call, and steps of the first call of a chain: longer runs work in chunks and can be stopped."""
MEASURED_STEPS = 128
"""Steps from which a chain learns its pace, where a run is longer than those before."""
FASTEST_STEP = 5e-9
"""Seconds of a step of one lane, at least: what takes longer than a chunk by this is not tried in one call."""
MAX_WIDTH = 16
"""Lanes of the widest vectors."""
MAX_PLANS = 128
"""Plans held in memory; the one used least recently goes first."""
MANY_NUMBERS = 12
"""Numbers of Python in a system above which they are packed once."""
FIRST_STEPS = 16
"""Steps of all lanes from which the first call of a kind learns how long a step takes."""
MAX_READ, MAX_READ_SIZE = 512, 256
"""Arrays of JAX that are kept as arrays of NumPy too, and the numbers of the largest."""
MAX_CHAINS = 16
"""Chains held in memory; the one used least recently goes first."""
SPACES = struct.Struct("3q")
"""The addresses of the spaces of a chain's script."""
LANE_SPACES = struct.Struct("7q")
"""Those of lanes: constants of begin, of steps and of each lane, starts, rows, carry and what judge found, records."""
MAX_WARM_BYTES = 2**26
"""Memory of lanes that is kept for the next ones."""
UNWATCHED_SECONDS = 2e-3
"""Seconds of a run that is not watched for Ctrl-C, which comes when it is over: to watch takes as long as to pack."""
_NEVER = threading.Event()
TILE_LANES = 512, 4096
"""Lanes that go through all programs before the next do, at least and at most: some for each thread. Their words stay
in the cache of a processor, and many that lie side by side are written faster: ten steps of a body of Suslov take
0.13 us with 4096, 0.17 with 512."""


class CallPlan:
    """Native code for problems of one kind, and where the words of their constants, carry and records lie."""

    def __init__(self, session: NativeSession):
        buffers, problem = session.buffers, session.buffers.problem
        lowered = buffers.lowered
        self.function, self.lanes, self.stride, self.words = (
            session.function,
            problem.lanes,
            buffers.stride,
            lowered.words,
        )
        self.varying = [varies and self.lanes is not None for varies in problem.const_axes]
        self.carried = problem.carry_axes
        captured = pack(lowered.captured, [False] * len(lowered.captured), 1)
        self.captured, self.shared = captured.tobytes(), buffers.shared.size
        self.record, self.record_tree = lay_out(lowered.record)
        self.carry, self.carry_tree = lay_out(problem.carry_tree)
        self.control_row, self.width = buffers.control_row, session.width

    def evaluate(self, leaves: Sequence[Numbers]) -> Any:
        """The record of a run of no steps, with the lanes in front where there are any."""
        if self.lanes is None:
            parts = [leaf.tobytes() if leaf.dtype is DOUBLE else leaf_bytes(leaf) for leaf in leaves]
            parts.insert(len(parts) - len(self.carried), self.captured)
            given, record = bytearray().join(parts), np.empty(self.words, np.int64)
            begin = address(given)
            self.function(begin, 0, begin + 8 * self.shared, 0, address(record), 1, 0, 1, 0, 1, 0, 1, 1)
            return self.record_tree.unflatten(view_leaves(record, self.record))
        shared, varying, state = self._pack_lanes(leaves)
        records = np.empty(self.words * self.stride, np.int64)
        addresses = map(address, (shared, varying, state))
        self.function(*addresses, 0, address(records), 1, 0, 1, 0, self.stride, 0, self.stride, 1)
        lanes = unpack_lanes(records, self.record, self.lanes, self.stride, 1)
        return self.record_tree.unflatten([leaf[:, 0] for leaf in lanes])

    def run(self, leaves: Sequence[Numbers], rows: Sequence[Numbers]) -> tuple[Any, Any]:
        """(last carry, records) of one trajectory with a step and a record for every row of controls."""
        count, steps = len(self.varying), len(rows[0])
        parts = [*map(leaf_bytes, leaves[:count]), self.captured, *map(leaf_bytes, leaves[count:])]
        given, held, words = bytearray().join(parts), flat_rows(rows), np.empty(steps * self.words, np.int64)
        begin = address(given)
        state = begin + 8 * self.shared
        self.function(begin, 0, state, address(held), address(words), steps, 0, steps, 1, 1, 0, 1, 1)
        carry = self.carry_tree.unflatten(view_leaves(given, self.carry, self.shared))
        return carry, self.record_tree.unflatten(view_leaves(words, self.record, 0, steps))

    def _pack_lanes(self, leaves: Sequence[Numbers], room: Words | None = None) -> tuple[Words, Words, Words]:
        """The words of constants that lanes share, of those they do not, and of the carry, these in `room`."""
        count = len(leaves) - len(self.carried)
        pairs = list(zip(leaves[:count], self.varying, strict=False))  # numbers that are packed do not vary
        common = [leaf_bytes(leaf) for leaf, varies in pairs if not varies]
        own = [leaf for leaf, varies in pairs if varies]
        shared = _words(bytearray().join([*common, self.captured]))
        state = pack(leaves[count:], self.carried, self.stride, room=room)
        return shared, pack(own, [True] * len(own), self.stride) if own else NOTHING, state


def unpack_lanes(words: Words, leaves: list[Leaf], lanes: int, stride: int, capacity: int) -> list[Numbers]:
    """The leaves of records, (lanes, capacity, ...): views of 8-byte types."""
    made = []
    for before, size, shape, wide, own in leaves:
        steps = [8 * stride * math.prod(shape[k + 1 :]) for k in range(len(shape))]
        ways = (8, 8 * stride * size, *steps)
        view: Numbers = np.ndarray((lanes, capacity, *shape), wide, words, 8 * before * stride * capacity, ways)
        made.append(view if wide is own else view.astype(own))
    return made


def lay_out(tree: Any) -> tuple[list[Leaf], Any]:
    """Where the words of the leaves of a record lie, leaf after leaf, and the structure of the tree."""
    specs, structure = jax.tree.flatten(tree)
    leaves: list[Leaf] = []
    before = 0
    for spec in specs:
        own = np.dtype(spec.dtype)
        leaves.append((before, spec.size, tuple(spec.shape), own if own.itemsize == 8 else np.dtype(np.int64), own))
        before += spec.size
    return leaves, structure


def leaf_bytes(leaf: Numbers) -> bytes:
    """The words of a leaf."""
    return leaf.tobytes() if leaf.dtype is DOUBLE or leaf.dtype == DOUBLE else leaf.astype(np.int64).tobytes()


def flat_rows(rows: Sequence[Numbers]) -> Numbers:
    """The rows of all leaves side by side, one after the other in memory: `concatenate` keeps columns together."""
    first = rows[0]
    if len(rows) == 1 and first.ndim == 2 and first.dtype is DOUBLE and first.flags.carray:  # a view of JAX is not
        return first
    return np.ascontiguousarray(np.concatenate([leaf.reshape(len(leaf), -1) for leaf in rows], 1, dtype=float))


def view_leaves(
    words: Words | bytearray, leaves: list[Leaf], begin: int = 0, capacity: int | None = None
) -> list[Numbers]:
    """The leaves of one record, or of `capacity` records, in words from `begin` on: views of 8-byte types."""
    rows, front = (1, ()) if capacity is None else (capacity, (capacity,))
    views = []
    for before, _, shape, wide, own in leaves:
        view: Numbers = np.ndarray(front + shape, wide, words, 8 * (begin + rows * before))
        views.append(view if wide is own else view.astype(own))
    return views


_plans: OrderedDict[Any, Any] = OrderedDict()


def remember(key: Any, make: Callable[[], Result]) -> Result | None:
    """What `make` made for this key at some time; None where it has no native code."""
    found: Result | None
    try:
        found = _plans[key]
    except TypeError:  # something in it has no hash
        return None
    except KeyError:
        try:
            found = make()
        except (LoweringError, ImportError):
            found = None
        _plans[key] = found
        while len(_plans) > MAX_PLANS:
            with suppress(KeyError):  # another thread may have taken it out
                _plans.popitem(last=False)
        return found
    if len(_plans) > MAX_PLANS // 2:  # before, none has to go soon
        with suppress(KeyError):
            _plans.move_to_end(key)
    return found


def make_up() -> None:
    """Compile with effort what was compiled `in_haste`; the next call of each finds the better code."""
    if llvm.make_up():
        _plans.clear()


def concrete_leaves(leaves: Sequence[Any]) -> list[Numbers] | None:
    """The leaves as arrays of NumPy; None where JAX traces one of them, or has no 64-bit numbers."""
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]  # JAX makes its options when it runs
        return None
    kinds = set(map(type, leaves))
    if kinds == ARRAYS:
        return list(leaves)
    if kinds == PLAIN:  # the parameters of a mechanism, say: there are up to a hundred
        return [np.array(leaf) if type(leaf) is float else leaf for leaf in leaves]
    made = []
    for leaf in leaves:
        if type(leaf) is float:
            leaf = np.array(leaf)
        elif type(leaf) is not np.ndarray:
            if (known := _read.get(id(leaf))) is not None and known[0] is leaf:
                leaf = known[1]
            elif isinstance(leaf, jax.core.Tracer):
                return None
            else:
                leaf = _read_leaf(leaf)
        made.append(leaf)
    return made


_read: dict[int, tuple[Any, Numbers]] = {}  # arrays of JAX, which nobody can change, as NumPy reads them, by id


def _read_leaf(leaf: Any) -> Numbers:
    """A leaf as an array of NumPy; a small one of JAX is kept, because to read it takes a microsecond."""
    read = np.asarray(leaf)
    if isinstance(leaf, jax.Array) and read.size <= MAX_READ_SIZE:
        if len(_read) >= MAX_READ:
            _read.clear()
        _read[id(leaf)] = leaf, read
    return read


def shapes_of(leaves: Sequence[Numbers]) -> tuple[Any, ...]:
    """Their shapes and types: with the structure of their tree, all that a program knows of its arguments."""
    return tuple([(leaf.shape, leaf.dtype) for leaf in leaves])


_packed: dict[int, tuple[Any, Any, Any, list[Numbers]]] = {}  # by the id of a system, which is the first of these


@lru_cache(maxsize=MAX_PLANS)
def _token(structure: Any) -> object:
    """One object for a structure: to compare the structure of a mechanism takes ten times as long."""
    return object()


class Kept(float):
    """A number of Python that equals no number of JAX: where JAX takes derivatives, one of them may stand there now."""

    __slots__ = ()

    def __jax_array__(self) -> Any:
        raise TypeError("to compare")


def keep(tree: Any) -> Any:
    """The numbers of dicts by names, so that `holds` tells whether they are the same later; None of anything else."""

    def is_plain(part: Any) -> bool:
        if type(part) is not dict:
            return part is None or type(part) is float
        return all(type(name) is str for name in part) and all(map(is_plain, part.values()))

    return jax.tree.map(Kept, tree) if type(tree) is dict and is_plain(tree) else None


def holds(given: Any, kept: Any) -> bool:
    """Whether dicts hold the numbers that they held."""
    try:
        return bool(given == kept)
    except (TypeError, ValueError):  # a number of JAX, or an array
        return False


def words_of(parts: tuple[Any, ...]) -> tuple[Any, list[Numbers]] | None:
    """(what the structure and shapes of a tuple are known by, arrays with its words); None where it is not concrete.

    The numbers of a mechanism are up to a hundred of Python, in dicts of dicts: they are one array, which is made once,
    as long as the dicts hold what they held.
    """
    first = parts[0]
    known = _packed.get(id(first))
    if known is not None and known[0]() is first and holds(first.parameters, known[1]):
        leaves, structure = jax.tree.flatten(parts[1:])
        given = concrete_leaves(leaves)
        return None if given is None else ((known[2], structure, shapes_of(given)), known[3] + given)
    leaves, structure = jax.tree.flatten(parts)
    given = concrete_leaves(leaves)
    if given is not None and len(given) > MANY_NUMBERS and hasattr(first, "parameters"):
        own, of_first = jax.tree.flatten(first)
        if set(map(type, own)) == {float} and (kept := keep(first.parameters)) is not None:
            if len(_packed) >= MAX_PLANS:
                _packed.clear()
            _packed[id(first)] = weakref.ref(first), kept, _token(of_first), [np.array(own)]
            return words_of(parts)
    return None if given is None else ((structure, shapes_of(given)), given)


def find_plan(
    function: Observe, consts: Any, carry: Any, lanes: int | None = None, axes: Any = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[CallPlan, list[Numbers]] | None:  # fmt: skip
    """The plan of function(consts, carry) with the leaves of both; None where it is not for native code.

    `check` is called before the first of a kind is made: it may refuse.
    """
    if (lanes is None and axes is not None) or (lanes or 0) > SHORT_STEPS:
        return None
    if lanes is None or (axes is not None and axes[0] is None):
        found = words_of((*consts, carry) if type(consts) is tuple else (consts, carry))
    else:
        leaves, structure = jax.tree.flatten((consts, carry))
        found = None if (given := concrete_leaves(leaves)) is None else ((structure, shapes_of(given)), given)
    if found is None:
        return None

    def make() -> CallPlan:
        check()
        return plan_of(keep_carry, function, consts, carry, lanes=lanes, axes=axes)

    plan = remember((function, type(consts) is tuple, found[0], lanes, axes), make)
    return None if plan is None else (plan, found[1])


def plan_of(advance: Advance, observe: Observe, consts: Any, carry: Any, controls: Any = None, **axes: Any) -> CallPlan:
    """The plan of a problem."""
    session = open_session(make_problem(advance, observe, consts, carry, controls, **axes), "llvm", threads=1)[0]
    assert isinstance(session, NativeSession)
    return CallPlan(session)


def evaluate(
    function: Observe,
    consts: Any,
    carry: Any,
    *,
    lanes: int | None = None,
    axes: Any = None,
    backend: Backend = "auto",
    threads: int | None = None,
) -> Any:
    """function(consts, carry) on a back end, of every lane if there are `lanes`; `axes` as in `make_problem`."""
    if backend in ("auto", "llvm") and (found := find_plan(function, consts, carry, lanes, axes)):
        return found[0].evaluate(found[1])
    problem = make_problem(keep_carry, function, consts, carry, lanes=lanes, axes=axes)
    return run_problem(problem, saves=1, backend=backend, threads=threads, single=True).records


@dataclass(frozen=True)
class Of:
    """A function with its first argument, which is hashable: two that are equal share their compiled programs."""

    function: Callable[..., Any]
    first: Any

    def __call__(self, *given: Any) -> Any:
        return self.function(self.first, *given)


def evaluate_rows(function: Observe, consts: Any, rows: Any, backend: Backend = "auto") -> Any:
    """function(consts, row) of every row of a tree, side by side."""
    return evaluate(function, consts, rows, lanes=len(jax.tree.leaves(rows)[0]), axes=(None, 0), backend=backend)


def part_of(tree: Any, part: Any) -> Any:
    """The same part of all arrays of a tree."""
    return jax.tree.map(lambda leaf: leaf[part], tree)


def run_rows(
    advance: Advance, observe: Observe, consts: Any, carry: Any, controls: Any, *, lanes: int | None = None
) -> tuple[Any, Any]:
    """(last carry, records) of a run with a step and a record for every row of the controls, read as real numbers.

    With `lanes`, carry and controls have one more axis in front.
    """
    controls = jax.tree.map(lambda u: u if u.dtype.kind == "f" else np.asarray(u, float), controls)
    if lanes is None:
        leaves, structure = jax.tree.flatten((consts, carry))
        rows, form = jax.tree.flatten(controls)
        given = concrete_leaves([*leaves, *rows])
        if given is not None and len(rows[0]) <= SHORT_STEPS:
            key = (advance, observe, structure, form, shapes_of(given))
            plan = remember(key, lambda: plan_of(advance, observe, consts, carry, controls))
            if plan is not None:
                return plan.run(given[: len(leaves)], given[len(leaves) :])
    problem = make_problem(advance, observe, consts, carry, controls, lanes=lanes, axes=(None, 0, 0) if lanes else None)
    result = run_problem(problem, saves=len(jax.tree.leaves(controls)[0][0 if lanes else slice(None)]))
    return result.carry, result.records


class Repeated:
    """Lanes that begin(consts, start) and advance, many times with other numbers of the same shapes and equal controls.

    `axes` = (consts, start, controls) as in `make_problem`. A call gives (last carry, records), these with one before
    the first step. Calls that take longer than a chunk go the way of `run_problem`, where Ctrl-C ends them.
    """

    def __init__(
        self, begin: Observe, advance: Advance, observe: Observe, controls: Any, lanes: int, axes: Any,
        saves: int, every: int, backend: Backend = "auto",
    ):  # fmt: skip
        self.functions, self.controls, self.lanes, self.axes = (begin, advance, observe), controls, lanes, axes
        self.saves, self.every, self.backend = saves, every, backend
        self.plans: tuple[CallPlan, CallPlan, NativeSession] | None = None

    def __call__(self, consts: Any, start: Any) -> tuple[Any, Any]:
        if self.plans is None:
            return self._run_the_long_way(consts, start)
        begin, steps, session = self.plans
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((consts, start))]
        shared, varying, state = begin._pack_lanes(leaves)
        loop, stride, capacity = np.empty(begin.words * begin.stride, np.int64), begin.stride, self.saves + 1
        addresses = map(address, (shared, varying, state))
        begin.function(*addresses, 0, address(loop), 1, 0, 1, 0, stride, 0, stride, 1)
        if begin.captured != steps.captured:
            shared = np.concatenate([shared[: begin.shared - len(begin.captured) // 8], _words(steps.captured)])
        words, held = np.empty(steps.words * stride * capacity, np.int64), session.buffers.controls
        given = (*map(address, (shared, varying, loop)), held.ctypes.data, address(words), capacity)
        rows = session.buffers.control_stride
        steps.function(*given, 0, 1, 0, stride, 0, stride, rows)
        steps.function(*given, 1, capacity, self.every, stride, 0, stride, rows)
        carry = [leaf[:, 0] for leaf in unpack_lanes(loop, steps.carry, self.lanes, stride, 1)]
        records = unpack_lanes(words, steps.record, self.lanes, stride, capacity)
        return steps.carry_tree.unflatten(carry), steps.record_tree.unflatten(records)

    def _run_the_long_way(self, consts: Any, start: Any) -> tuple[Any, Any]:
        begin, advance, observe = self.functions
        options: Any = {"lanes": self.lanes, "backend": self.backend}
        loop = evaluate(begin, consts, start, axes=self.axes[:2], **options)
        axes = (self.axes[0], 0, self.axes[2])
        problem = make_problem(advance, observe, consts, loop, self.controls, lanes=self.lanes, axes=axes)
        clock = time.perf_counter()
        result = run_problem(problem, saves=self.saves, save_every=self.every, initial=True, backend=self.backend)
        if result.interrupted:
            raise KeyboardInterrupt
        if time.perf_counter() - clock < CHUNK_SECONDS and self.backend in ("auto", "llvm"):
            found, session = (
                find_plan(begin, consts, start, self.lanes, self.axes[:2]),
                open_session(problem, "auto")[0],
            )
            if found is not None and isinstance(session, NativeSession) and found[0].stride == session.buffers.stride:
                self.plans = found[0], CallPlan(session), session
        return result.carry, result.records


class LaneRun(NamedTuple):
    """What lanes leave: their records, how to get their last carry, whether all of them are well, and the back end."""

    records: Any
    carry: Callable[[], Any]
    well: bool
    backend: str


_warm: list[Words] = []


def _take_memory(words: int) -> Words:
    """Memory for so many words or more: that of the last lanes, if nobody holds an array of it any more.

    A page that is touched for the first time costs more than to run what fits in it.
    """
    with suppress(IndexError):  # two threads do not share it
        last = _warm.pop()
        if len(last) >= words and sys.getrefcount(last) <= 2:
            return last
    return np.empty(words, np.int64)


class HostLanes:
    """Lanes on this processor that judge(consts, start), begin(consts, (start, u)) -> carry, then advance and observe.

    u is the control of the first step. The words of a carry go from program to program as they are, some lanes after
    others, so that they stay in a cache. Judge, begin and the first record are one program, for they compute much in
    common. A start that is doubtful runs too, and is not looked at.
    """

    def __init__(self, begin: CallPlan, steps: CallPlan, control_axes: list[bool], watch: Watch):
        self.begin, self.steps, self.control_axes, self.watch = begin, steps, control_axes, watch
        assert steps.lanes is not None
        self.lanes, self.stride = steps.lanes, steps.stride
        self.status = steps.carry[watch.status(steps.carry_tree.unflatten(range(len(steps.carry))))][0]
        self.mark = steps.record[watch.marks(steps.record_tree.unflatten(range(len(steps.record))))][0]
        self.workers = LaneThreads(self.stride, steps.width, None if self.lanes >= SHORT_STEPS else 1)
        self.play, self.scripts = script_player()[0], cast("dict[Any, list[Words]]", {})
        self.room: Words | None = None  # for the words of starts: warm memory
        self.pace = 0.0  # seconds of this thread in a step of all lanes, as the last call went: others may be busy

    def __call__(self, leaves: Sequence[list[Numbers]], blocks: Sequence[tuple[int, int]]) -> LaneRun | None:
        """Run blocks of (records, steps before each), after a record of the first carry.

        None where `judge` finds a start doubtful, or where the run is long: then it works in chunks.
        """
        (consts, start, controls), lanes, stride, steps = leaves, self.lanes, self.stride, self.steps
        capacity, total = 1 + sum(saves for saves, _ in blocks), sum(saves * every for saves, every in blocks)
        if 8 * capacity * steps.words * stride > SMALL_RECORDS:
            return None
        first = [leaf[:, 0] if own else leaf[0] for leaf, own in zip(controls, self.control_axes, strict=True)]
        room, self.room = self.room, None  # two threads do not share it
        shared, varying, room = self.begin._pack_lanes([*consts, *start, *first], room)
        held, row, row_stride = pack_controls(controls, self.control_axes, stride)
        again = shared
        if self.begin.captured != steps.captured:
            constants = shared[: len(shared) - len(self.begin.captured) // 8]
            again = np.concatenate([constants, _words(steps.captured)])
        ends = (capacity * steps.words * stride, ((capacity - 1) * steps.words + self.begin.words) * stride)
        whole = _take_memory(ends[1])  # in one piece: large memory comes in large pages
        words, loop = whole[: ends[0]], whole[ends[0] : ends[1]]
        good = loop[len(loop) - stride :][:lanes]  # the last that a beginning makes
        begins = address(whole)
        given = map(address, (shared, again, varying, room))
        bases = LANE_SPACES.pack(*given, held.ctypes.data, begins + 8 * ends[0], begins)

        def run(blocks: Sequence[tuple[int, int]]) -> float:
            clock = time.thread_time()
            scripts = self._find_scripts(tuple(blocks), capacity, row, row_stride)
            self.workers.share(lambda script: self.play(script.ctypes.data, bases), scripts)
            return time.thread_time() - clock

        short = 0.0 < total * self.pace <= UNWATCHED_SECONDS
        with nullcontext(_NEVER) if short else catch_interrupt() as stop:
            if not self.pace and total > FIRST_STEPS:
                run(((1, FIRST_STEPS),))  # code that runs for the first time has to be loaded
                more = min(total, 16 * FIRST_STEPS)
                spent = run(((1, more),)) - run(((1, FIRST_STEPS),))  # without the records, which may take longer
                self.pace = max(1e-12, spent / (more - FIRST_STEPS))
            if total * self.pace > CHUNK_SECONDS:
                self.pace = 0.0  # the next call measures again: something may have been in the way
                return None
            self.pace = max(1e-12, run(blocks) / max(1, total))
        self.room = room
        if stop.is_set():
            raise KeyboardInterrupt
        if np.count_nonzero(good) < lanes:
            return None
        status, mark = self.status * stride, self.mark * stride * capacity
        marks = words[mark : mark + stride * capacity].reshape(capacity, stride)[:, :lanes]
        lost = np.count_nonzero(loop[status : status + lanes] != self.watch.good)
        lost += np.count_nonzero(marks == self.watch.missing)

        def carry() -> Any:
            parts = unpack_lanes(loop, steps.carry, lanes, stride, 1)
            return steps.carry_tree.unflatten([leaf[:, 0] for leaf in parts])

        records = steps.record_tree.unflatten(unpack_lanes(words, steps.record, lanes, stride, capacity))
        if whole.nbytes <= MAX_WARM_BYTES:
            _warm[:] = [whole]
        return LaneRun(records, carry, not lost, "llvm")

    def _find_scripts(
        self, blocks: tuple[tuple[int, int], ...], capacity: int, row: int, row_stride: int
    ) -> list[Words]:
        """What is done with some lanes after others; see LANE_SPACES for the spaces."""
        key = (blocks, capacity)
        if (found := self.scripts.get(key)) is None:
            steps, width, (least, most) = self.steps, self.steps.width, TILE_LANES
            count = max(least, min(most, self.stride // (2 * self.workers.threads))) // width
            vectors, nothing = self.stride // width, (-1, 0)
            found = []
            for first in range(0, vectors, count):
                lanes = self.stride, first * width, min(first + count, vectors) * width
                call = partial(call_line, last=row_stride, lanes=lanes)
                lines = call(self.begin.function, ((0, 0), (2, 0), (3, 0), nothing, (6, 0)), (capacity, 0, 1, 0))
                done, taken = 1, 0
                for saves, every in blocks:
                    given = ((1, 0), (2, 0), (5, 0), (4, 8 * row * taken), (6, 0))
                    lines += call(steps.function, given, (capacity, done, done + saves, every))
                    done, taken = done + saves, taken + saves * every
                found.append(np.array([*lines, 0], np.int64))
            if len(self.scripts) >= MAX_CHAINS:
                self.scripts.clear()
            self.scripts[key] = found
        return found


def find_host_lanes(
    functions: tuple[Observe, Observe, Advance, Observe], trees: tuple[Any, Any, Any], lanes: int,
    axes: tuple[Any, Any, Any], blocks: Sequence[tuple[int, int]], watch: Watch, check: Callable[[], None],
    backend: Backend = "auto",
) -> tuple[Callable[[Any], LaneRun | None], list[list[Numbers]]] | None:  # fmt: skip
    """The lanes of such a run with the leaves of constants, start and controls; None where it is long, or elsewhere.

    `functions` are judge, begin, advance and observe. `check` is called before the first of a kind are made.
    """
    total = sum(saves * every for saves, every in blocks)
    if not runs_natively(lanes, backend) or lanes * total * FASTEST_STEP > CHUNK_SECONDS:
        return None
    found = _remember_by(
        trees, (functions, lanes, axes), check, lambda: _make_host_lanes(functions, trees, lanes, axes, watch)
    )
    return found and (partial(found[0], blocks=blocks), found[1])


def _remember_by(
    trees: tuple[Any, ...], others: tuple[Any, ...], check: Callable[[], None], make: Callable[[], Result | None]
) -> tuple[Result, list[list[Numbers]]] | None:
    """What is made of trees of a kind, and their leaves; None where these are not known, or not for native code."""
    flat = [jax.tree.flatten(tree) for tree in trees]
    given = [part for leaves, _ in flat if (part := concrete_leaves(leaves)) is not None]
    if len(given) < len(flat):
        return None
    key = (*others, tuple(tree for _, tree in flat), tuple(map(shapes_of, given)))

    def make_checked() -> Result | None:
        check()
        return make()

    found = remember(key, make_checked)
    return None if found is None else (found, given)


def _make_host_lanes(
    functions: tuple[Observe, Observe, Advance, Observe], trees: tuple[Any, Any, Any], lanes: int,
    axes: tuple[Any, Any, Any], watch: Watch,
) -> HostLanes | None:  # fmt: skip
    (judge, begin, advance, observe), (consts, start, controls) = functions, trees
    marks = lane_axes(controls, axes[2])
    first = jax.tree.map(lambda leaf: leaf[:, 0] if any(marks) else leaf[0], controls)
    both = (axes[0], (axes[1], axes[2]))
    begun = make_problem(keep_carry, begin, consts, (start, first), lanes=lanes, axes=both).lower().record
    loop = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), (lanes, *leaf.shape)), begun)
    of_steps = plan_of(advance, observe, consts, loop, controls, lanes=lanes, axes=(axes[0], 0, axes[2]))
    beginning = _Beginning(judge, begin, (advance, observe))
    of_begin = plan_of(keep_carry, beginning, consts, (start, first), lanes=lanes, axes=both)
    return HostLanes(of_begin, of_steps, marks, watch) if of_begin.stride == of_steps.stride else None


class Shelf:
    """Named numbers of many rows and lanes in memory that stays: i of row k and lane b is at [i, (k + 1) lanes + b].

    A tree has its leaves one after the other. There is a row before the first one, and room beyond the last, because
    loops run over whole vectors of lanes. With CuPy for `xp` the memory is a GPU's.
    """

    def __init__(self, trees: dict[str, Any], rows: int, lanes: int, xp: Any = np):
        self.rows, self.lanes, self.xp = rows, lanes, xp
        self.specs, self.places, words = {}, {}, 0
        self.views: dict[str, list[Any]] = {}
        for name, tree in trees.items():
            leaves, structure = jax.tree.flatten(tree)
            self.specs[name], self.places[name] = (leaves, structure), words
            words += sum(leaf.size for leaf in leaves)
        self.width = -(-((rows + 2) * lanes + MAX_WIDTH) // MAX_WIDTH) * MAX_WIDTH
        self.data = xp.zeros((words, self.width))
        self.address = self.data.ctypes.data if xp is np else self.data.data.ptr

    def place(self, name: str, row: int = 0) -> int:
        """The address of the first number of a tree in a row."""
        return int(self.address + 8 * (self.places[name] * self.width + (row + 1) * self.lanes))

    def find(self, name: str, row: int = 0, turned: bool = False, fixed: bool = False) -> list[tuple[int, int, int]]:
        """Where the leaves of a tree lie from a row on (backwards if `turned`; the same row always if `fixed`)."""
        found, address = [], self.place(name, row)
        for leaf in self.specs[name][0]:
            found.append((address, 0 if fixed else -self.lanes if turned else self.lanes, self.width))
            address += 8 * leaf.size * self.width
        return found

    def leaves(self, name: str) -> list[Any]:
        """Views of the leaves, (*shape, rows, lanes)."""
        if name in self.views:
            return self.views[name]
        (leaves, _), word, made = self.specs[name], self.places[name], self.views.setdefault(name, [])
        for leaf in leaves:
            part = self.data[word : word + leaf.size, self.lanes : (self.rows + 1) * self.lanes]
            made.append(part.reshape(*leaf.shape, self.rows, self.lanes))
            word += leaf.size
        return made

    def room(self, name: str, lanes: int, rows: int) -> Any:
        """Arrays (lanes, rows, ...) on the host for a tree of so many lanes and rows, empty."""
        leaves, structure = self.specs[name]
        return jax.tree.unflatten(structure, [np.empty((lanes, rows, *leaf.shape)) for leaf in leaves])

    def read(self, name: str, lanes: int, room: Any = None) -> Any:
        """A tree of arrays (lanes, rows, ...) on the host; with `room` its lanes and rows, put there."""
        room = self.room(name, lanes, self.rows) if room is None else room
        for leaf, to in zip(self.leaves(name), jax.tree.leaves(room), strict=True):
            part = leaf[..., : to.shape[1], : len(to)]
            part = part if self.xp is np else part.get()
            to[...] = part.transpose(part.ndim - 1, part.ndim - 2, *range(part.ndim - 2))
        return room

    def first(self, name: str, lanes: int, leaf: int = 0) -> Numbers:
        """Numbers (lanes, ...) of one leaf of a tree in the first row, on the host."""
        part = self.leaves(name)[leaf][..., 0, :lanes]
        return (part if self.xp is np else part.get()).transpose(part.ndim - 1, *range(part.ndim - 1))  # type: ignore[no-any-return]

    def write(self, name: str, tree: Any) -> None:
        """Put in a tree of arrays (lanes, rows, ...); the lanes that fill up a vector have the numbers of the last."""
        for leaf, given in zip(self.leaves(name), jax.tree.leaves(tree), strict=True):
            values = self.xp.asarray(given, float)
            moved = values.transpose(*range(2, values.ndim), 1, 0)
            leaf[..., : moved.shape[-1]] = moved
            leaf[..., moved.shape[-1] :] = moved[..., -1:]


class PlacedLoop:
    """A loop on numbers that stay where they are: advance(consts, carry, rows) -> carry, observe(consts, carry).

    Constants, carry and rows are trees of shapes; every leaf of rows and records has a place of its own (`Shelf.find`).
    A loop that is `once` takes one step: it is compiled in a tenth of the time, and a step is slower. So is a loop that
    is `quick`, until it is `improved`. With a `pool` LLVM compiles there, while the next loop is traced here.
    """

    def __init__(
        self, advance: Advance, observe: Observe, consts: Any, carry: Any, rows: Any, lanes: int, backend: str,
        once: bool = False, pool: Executor | None = None, quick: bool = False,
    ):  # fmt: skip
        def with_axis(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype)  # type: ignore[no-untyped-call]  # JAX has none

        carries, streams = jax.tree.leaves(carry), jax.tree.leaves(rows)
        problem = Problem(
            advance, observe, consts, jax.tree.map(with_axis, carry), jax.tree.map(with_axis, rows), 1,
            [False] * len(jax.tree.leaves(consts)), [True] * len(carries), [False] * len(streams),
        )  # fmt: skip
        self.lowered, self.lanes, self.backend = problem.lower(), lanes, backend
        self.width, self.quick = 1 if lanes == 1 else best_width(lanes), quick and not once
        hasty = quick or (once and self.width == 1)
        placed = Streams(tuple(Stream(tuple(range(leaf.size)), True) for leaf in streams), (), True, hasty)
        self.layout = replace(make_layout(problem, self.lowered), controls_vary=False, streams=placed)
        if backend == "cuda":
            self.kernel = cuda_kernel(self.lowered, self.layout)
            return
        self.workers = LaneThreads(
            -(-lanes // self.width) * self.width, self.width, None if lanes >= SHORT_STEPS else 1
        )
        given = self.lowered, self.layout, self.width
        self._compile = (
            partial(native_function, *given) if pool is None else pool.submit(native_function, *given).result
        )

    @cached_property
    def function(self) -> Kernel:
        """The native loop, when it is compiled."""
        return self._compile()

    def improve(self) -> None:
        """Compile a quick loop with all effort, beside what happens here; until that is done it runs as it is."""
        if not self.quick:
            return
        self.quick, slow = False, replace(cast(Streams, self.layout.streams), once=False)
        work = _improver.submit(native_function, self.lowered, replace(self.layout, streams=slow), self.width)
        work.add_done_callback(lambda done: done.exception() or self.__dict__.update(function=done.result()))
        _improving.append(work)
        _improving[:] = [each for each in _improving if not each.done()]

    def bind(self, state: int, width: int, rows: Any, records: Any, steps: int, every: int) -> BoundLoop:
        """The loop of so many steps with a record after `every` of them, from and to the carry at `state`."""
        return BoundLoop(self, state, (0, 0, steps // every, every, width), rows, records)


_improver, _improving = ThreadPoolExecutor(1), cast("list[Future[Kernel]]", [])
if hasattr(os, "register_at_fork"):  # a child must not find LLVM's lock taken
    os.register_at_fork(before=lambda: wait(_improving))


class BoundLoop:
    """A loop with its places: `set` takes its constants over, and a call costs a microsecond."""

    def __init__(self, loop: PlacedLoop, state: int, counts: tuple[int, ...], rows: Any, records: Any):
        self.loop, self.counts = loop, counts
        shared = np.zeros(loop.lowered.inputs + 1, np.int64)
        self.captured = b"".join(map(leaf_bytes, loop.lowered.captured))
        tables = [np.array([*each, (0, 0, 0)], np.int64) for each in (rows, records)]
        if loop.backend == "cuda":
            import cupy

            self.held = [cupy.asarray(part) for part in (shared, *tables)]
            words = [np.int64(count) for count in (*counts, 0, loop.lanes, 0)]
            self.arguments = (self.held[0], np.int64(0), np.int64(state), *self.held[1:], *words)
        else:
            self.held = [shared, *tables]
            addresses = [part.ctypes.data for part in self.held]
            begin, end = loop.workers.ranges[0]
            self.arguments = (addresses[0], 0, state, *addresses[1:], *counts, begin, end, 0)
        self.set(())

    def set(self, consts: Any) -> None:
        """Take over the constants."""
        words = _words(b"".join([*map(leaf_bytes, map(np.asarray, jax.tree.leaves(consts))), self.captured]))
        place = self.held[0][: len(words)]
        if self.loop.backend == "cuda":
            place.set(words)
        else:
            place[...] = words

    def __call__(self) -> None:
        loop = self.loop
        if loop.backend == "cuda":
            loop.kernel((-(-loop.lanes // BLOCK_THREADS),), (BLOCK_THREADS,), self.arguments)
        elif len(loop.workers.ranges) == 1:
            loop.function(*self.arguments)
        else:
            loop.workers.stride = self.counts[-1]
            loop.workers.call(loop.function, self.arguments[:5], self.counts[:4], 0)


class Spread(NamedTuple):
    """A line of a routine: an array (words, 1, lanes) of a shelf is copied to every row of another."""

    to: Any
    source: Any


class Jump(NamedTuple):
    """A line of a routine: go so many lines on, or back, if `least` to `most` of these flags are not 0."""

    by: int
    flags: Any
    least: int
    most: int


ROUND = "a line of a routine: a round is done, and the last one ends the routine"


class Routine:
    """Bound loops that run in turn, with copies and jumps: as one native call, if one thread of a processor runs them.

    So threads that run routines do not wait for each other, as those do that go back to Python after every loop.
    """

    def __init__(self, lines: Sequence[BoundLoop | Spread | Jump | str]):
        self.lines, self.left = list(lines), np.array([1.0, -1.0])  # rounds, and what each of them adds
        self.loops = [line.loop for line in lines if isinstance(line, BoundLoop)]
        self.play, self.functions, self.script = script_player()[0], cast("list[Kernel]", []), NOTHING

    def __call__(self, rounds: int = 1) -> int:
        """Run at most so many rounds; how many were done."""
        self.left[0] = rounds
        if not self.is_native:
            self._walk()
        else:
            functions = [loop.function for loop in self.loops]
            if functions != self.functions:  # a loop was improved
                self.functions, self.script = functions, self._write()
            self.play(self.script.ctypes.data, b"")
        return rounds - int(self.left[0])

    @cached_property
    def is_native(self) -> bool:
        """Whether one thread of a processor runs all loops."""
        return all(loop.backend != "cuda" and len(loop.workers.ranges) == 1 for loop in self.loops)

    def _write(self) -> Words:
        """The script of the lines."""
        words: list[int] = []
        begins, jumps = [], {}  # where each line begins; the number of the line where each jump ends
        for k, line in enumerate(self.lines):
            begins.append(len(words))
            if isinstance(line, BoundLoop):
                given, places = line.arguments, [(-1, each) for each in line.arguments[:5]]
                words += call_line(line.loop.function, places, given[5:9], given[12], given[9:12])
            elif isinstance(line, Spread):
                rows, lanes = line.to.shape[1:]
                for to, source in zip(line.to, line.source, strict=True):
                    words += [1, -1, to.ctypes.data, -1, source.ctypes.data, lanes, rows - 1, 0, 0]
            else:
                jump, left = line, self.left.ctypes.data
                if not isinstance(jump, Jump):
                    words += [4, -1, left, -1, left + 8, 1, 0, 0, 0]
                    jump = Jump(len(self.lines) - k, self.left[:1], 0, 0)
                jumps[len(words) + 2] = k + jump.by
                words += [8, -1, 0, -1, jump.flags.ctypes.data, len(jump.flags), jump.least, jump.most, 0]
        script = np.array([*words, 0], np.int64)
        begins.append(len(words))
        for place, line_ in jumps.items():
            script[place] = script.ctypes.data + 8 * begins[line_]
        return script

    def _walk(self) -> None:
        """Run the lines from here."""
        at = 0
        while at < len(self.lines):
            line = self.lines[at]
            at += 1
            if isinstance(line, BoundLoop):
                line()
            elif isinstance(line, Spread):
                line.to[...] = line.source
            elif isinstance(line, Jump):
                at += line.by - 1 if line.least <= int(np.count_nonzero(line.flags)) <= line.most else 0
            else:
                self.left[0] -= 1.0
                at = at if self.left[0] else len(self.lines)


def _words(data: bytes | bytearray) -> Words:
    return np.frombuffer(data, np.int64)


def compile_function(function: Callable[..., Result], place: bool = True) -> Callable[..., Result]:
    """A decorator: compile a function of small arrays, by XLA where the kernels cannot.

    A call is a run of no steps whose one record is the value, as arrays of JAX or, if they are not to be put in `place`
    on a device, which takes longer than the rest, of NumPy; a call may say so too. Inside `grad` or `vmap` it is that
    too; where JAX traces a program (`jit`), the function is a part of it. A function that is found on disk is neither
    traced nor compiled.
    """
    by_xla = jax.jit(function)

    def observe(args: tuple[Any, ...], carry: tuple[()]) -> Any:
        return function(*args)

    @wraps(function)
    def call(*args: Any, place: bool = place) -> Any:
        if found := find_plan(observe, args, ()):
            made = found[0].evaluate(found[1])
            return jax.device_put(made) if place else made
        if traced := [leaf for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.core.Tracer)]:
            with suppress(LoweringError):
                if all(map(is_transformed, traced)):
                    return bind_run(make_problem(keep_carry, observe, args, ()), 1, 1, False, "llvm", single=True)[1]
            return function(*args)
        return by_xla(*args) if place else jax.tree.map(np.asarray, by_xla(*args))

    return call


def keep_carry(consts: Any, carry: Any, control: Any) -> Any:
    return carry


class Chain:
    """One trajectory: judge(some, part), begin(consts, (start, u)) -> carry, then advance and observe.

    `some` are the first of the constants and `part` the first leaves of the start, so that all programs read the same
    words. The record of `judge` begins with whether all is well. u is the control of the first step.
    """

    def __init__(self, judge: CallPlan, begin: CallPlan, steps: CallPlan, watch: Watch):
        self.judge, self.begin, self.steps, self.watch = judge, begin, steps, watch
        self.play, self.scripts = script_player()[0], cast("dict[Any, tuple[Words, tuple[int, int, int]]]", {})
        self.judged = 8 * judge.shared - len(judge.captured)
        blocks = (8 * judge.shared, 8 * begin.shared, 8 * steps.shared)
        self.given = sum(blocks)
        self.shared = (0, blocks[0], blocks[0] + blocks[1])
        stride = self.stride = steps.stride  # words from a number to the next: some lanes are one trajectory too
        self.out = judge.words + begin.words * stride  # words before the records
        status = steps.carry[watch.status(steps.carry_tree.unflatten(range(len(steps.carry))))][0]
        self.good, self.status = 0, judge.words + status * stride
        self.mark = steps.record[watch.marks(steps.record_tree.unflatten(range(len(steps.record))))][0]
        self.pace = CHUNK_SECONDS / SHORT_STEPS  # seconds of a step: a guess, then as the last run went

    def constants(self, leaves: Sequence[Numbers]) -> bytes:
        """The words of the constants, as all three programs want them."""
        words = b"".join([leaf.tobytes() if leaf.dtype is DOUBLE else leaf_bytes(leaf) for leaf in leaves])
        first = words[: self.judged]
        return b"".join((first, self.judge.captured, words, self.begin.captured, words, self.steps.captured))

    def run(
        self, constants: bytes, start: Sequence[Numbers], controls: Sequence[Numbers],
        blocks: Sequence[tuple[int, int]], initial: bool, judged: bool = False,
    ) -> Words | None:  # fmt: skip
        """Run blocks of (records, steps before each) from the start; None where `judge` finds it doubtful.

        `initial` records the carry before the first step too. The words that come back end with the records.
        """
        parts = [constants, *[leaf.tobytes() if leaf.dtype is DOUBLE else leaf_bytes(leaf) for leaf in start]]
        if controls:
            parts += [leaf_bytes(leaf[0]) for leaf in controls]
            held = flat_rows(controls)
            rows = address(held)
        else:
            rows = 0
        given = bytearray().join(parts)
        script, capacity, taken = self._find_script(blocks, initial, judged)
        words = np.empty(self.out + capacity * self.steps.words * self.stride, np.int64)
        clock = time.perf_counter()
        self.play(script, SPACES.pack(address(given), address(words), rows))
        self.pace = min((time.perf_counter() - clock) / taken, 2 * self.pace)  # others may have been in the way
        return words if judged or words.item(self.good) else None

    def measure(
        self, constants: bytes, start: Sequence[Numbers], controls: Sequence[Numbers], steps: int, records: int
    ) -> bool:
        """Take a few steps, which are not kept, to learn their pace; whether the run is short enough by that."""
        if steps * FASTEST_STEP > CHUNK_SECONDS or not self._has_room(records):
            return False
        taken, clock = min(steps, MEASURED_STEPS), time.thread_time()  # not of others that are busy
        self.run(constants, start, controls, ((1, taken),), False, judged=True)
        self.pace = (time.thread_time() - clock) / taken
        return self.fits(steps, records)

    def _find_script(self, blocks: Sequence[tuple[int, int]], initial: bool, judged: bool) -> tuple[int, int, int]:
        """(the address of the script, records, steps) of such runs; its spaces are what is given, the words, the rows.

        A start that is doubtful runs too, and is not looked at.
        """
        key = (blocks, initial, judged)
        if (found := self.scripts.get(key)) is None:
            steps, own, nothing = self.steps, (1, 0), (-1, 0)  # what is each lane's own comes first
            capacity = int(initial) + sum(saves for saves, _ in blocks)
            start, state, loop = (0, self.given), self._place_of_state(), (1, 8 * self.judge.words)
            lines, lanes = [], (self.stride, 0, self.stride)
            if state != start or not judged:
                lines += call_line(self.judge.function, ((0, 0), nothing, start, nothing, own), (1, 0, 1, 0))
            given = ((0, self.shared[1]), own, state, nothing, loop)
            lines += call_line(self.begin.function, given, (1, 0, 1, 0), lanes=lanes)
            done, taken = 0, 0
            for saves, every in ((1, 0), *blocks) if initial else blocks:
                rows = (2, 8 * steps.control_row * taken)
                given = ((0, self.shared[2]), own, loop, rows, (1, 8 * self.out))
                lines += call_line(steps.function, given, (capacity, done, done + saves, every), lanes=lanes)
                done, taken = done + saves, taken + saves * every
            words = np.array([*lines, 0], np.int64)
            if len(self.scripts) >= MAX_CHAINS:
                self.scripts.clear()
            self.scripts[key] = found = words, (words.ctypes.data, capacity, max(taken, 1))
        return found[1]

    def _place_of_state(self) -> tuple[int, int]:
        """Where that lies with which `begin` begins: what is given."""
        return 0, self.given

    def fits(self, steps: int, records: int) -> bool:
        """Whether a run is short enough to be done in one call, which Ctrl-C has to wait for."""
        return steps * self.pace <= CHUNK_SECONDS and self._has_room(records)

    def _has_room(self, records: int) -> bool:
        return 8 * records * self.steps.words * self.stride <= SMALL_RECORDS

    def carry(self, words: Words) -> Any:
        """The carry after the last step."""
        return self.steps.carry_tree.unflatten(view_leaves(words, self.steps.carry, self.judge.words))

    def is_well(self, words: Words) -> bool:
        """Whether the status after the last step is good, and no record missing."""
        if words.item(self.status) != self.watch.good:
            return False
        size = self._capacity(words) * self.stride
        begin = self.out + size * self.mark
        if size < FIRST_STEPS:  # of a list it is known sooner
            return self.watch.missing not in words[begin : begin + size].tolist()
        return not np.count_nonzero(words[begin : begin + size] == self.watch.missing)

    def records(self, words: Words, single: bool = False) -> Any:
        """All records; a single one without an axis for their number."""
        capacity = None if single else self._capacity(words)
        return self.steps.record_tree.unflatten(view_leaves(words, self.steps.record, self.out, capacity))

    def _capacity(self, words: Words) -> int:
        return (len(words) - self.out) // (self.steps.words * self.stride)


@dataclass(frozen=True)
class _SlopeBeginning:
    """The beginning of a run with slopes and whether the start is good; what is judged has none, and no control has."""

    judge: Observe
    begin: Observe

    def __call__(self, consts: Any, given: Any) -> Any:
        (start, slopes), control = given
        return self.begin(consts, ((start, control), slopes)), self.judge(consts[0], start)


@dataclass(frozen=True)
class _SlopeRows:
    """The words of lanes as `pack` lays them: slopes of the constants, then the start, its slopes, the first control.

    `slopes(arrays, ())` are those of the constants in two parts, with those of the start between these.
    """

    slopes: Observe
    directions: int | None
    groups: int
    together: int
    stride: int

    def __call__(self, arrays: Any, given: Any) -> Any:
        (of_first, of_start, of_last), (start, control) = self.slopes(arrays, ()), given
        parts = [*map(self._spread, (*of_first, *of_last)), *map(self._repeat, jax.tree.leaves(start))]
        parts += [*map(self._spread, of_start), *map(self._repeat, jax.tree.leaves(control))]
        return jnp.concatenate(parts).ravel()

    def _spread(self, slope: Any) -> Any:
        slope = slope if self.directions is not None else slope[None]
        missing = jnp.zeros((self.groups * self.together - len(slope), *slope.shape[1:]))
        rows = jnp.concatenate([slope, missing]).reshape(self.groups, -1).T
        return jnp.concatenate([rows, jnp.repeat(rows[:, -1:], self.stride - self.groups, 1)], 1)

    def _repeat(self, leaf: Any) -> Any:
        return jnp.broadcast_to(jnp.reshape(leaf, (-1, 1)), (jnp.size(leaf), self.stride))


class SlopeChain(Chain):
    """One trajectory with slopes along directions, which are rows of lanes that a first program fills.

    Constants are those of `slopes`, a function as in `_SlopeRows`, and those of the run; the `moving` of these have
    slopes, and so have all real numbers of the start. What is asked of lanes is asked of the first.
    """

    def __init__(
        self, functions: tuple[Observe, Observe, Advance, Observe], trees: tuple[Any, Any, Any, Any], slopes: Observe,
        moving: Marks, directions: int | None, watch: Watch,
    ):  # fmt: skip
        (judge, begin, advance, observe), (arrays, consts, start, controls) = functions, trees
        first = jax.tree.map(lambda leaf: leaf[0], controls)
        plain = make_problem(advance, observe, consts, evaluate(begin, consts, (start, first)), controls)
        ways = self.ways = Directions(None, directions or 1, lambda: plain.lower().operations)
        lanes, together, still = ways.groups, ways.together or 1, (False,) * len(jax.tree.leaves(controls))
        own, of_start = (
            [np.zeros((lanes, together, *np.shape(leaf))) for leaf in pick(jax.tree.leaves(tree), marks)]
            for tree, marks in ((consts, moving), (start, real_marks(start)))
        )
        pushed = _SlopeBeginning(judge, SlopeObserve(begin, moving, together, (*real_marks(start), *still)))
        given, axes = ((start, of_start), first), ((None, 0), ((None, 0), None))
        beginning = plan_of(keep_carry, pushed, (consts, own), given, lanes=lanes, axes=axes)
        zeros = [np.zeros((lanes, *shape), kind) for _, _, shape, _, kind in beginning.record]
        loop, _ = beginning.record_tree.unflatten(zeros)
        step, record = SlopeAdvance(advance, moving, still, together), SlopeObserve(observe, moving, together)
        steps = plan_of(step, record, (consts, own), loop, (controls, []), lanes=lanes, axes=((None, 0), 0, None))
        rows = _SlopeRows(slopes, directions, lanes, together, steps.stride)
        self.moved = 8 * steps.stride * sum(leaf.size // lanes for leaf in own)
        above = watch._replace(status=lambda pair: watch.status(pair[0]), marks=lambda pair: watch.marks(pair[0]))
        super().__init__(plan_of(keep_carry, rows, arrays, (start, first)), beginning, steps, above)
        self.good, self.front = self.out - self.stride, () if directions is None else (directions,)

    def constants(self, leaves: Sequence[Numbers]) -> bytes:
        """The words of the constants of the slopes and of the run, as the programs want them."""
        words = b"".join(map(leaf_bytes, leaves))
        first, rest = words[: self.judged], words[self.judged :]
        return b"".join((first, self.judge.captured, rest, self.begin.captured, rest, self.steps.captured))

    def _place_of_state(self) -> tuple[int, int]:
        return 1, self.moved

    def carry(self, words: Words) -> Any:
        """The carry after the last step."""
        found = unpack_lanes(words[self.judge.words :], self.steps.carry, 1, self.stride, 1)
        return self.steps.carry_tree.unflatten([leaf[0, 0] for leaf in found])[0]

    def records_with_slopes(self, words: Words) -> tuple[Any, list[Numbers]]:
        """All records, and the slopes of their real leaves with the directions in front, if there are several."""
        ways, capacity = self.ways, self._capacity(words)
        found = unpack_lanes(words[self.out :], self.steps.record, ways.groups, self.stride, capacity)
        records, slopes = self.steps.record_tree.unflatten(found)
        pushed = [ways.from_groups(slope, 1) for slope in slopes]
        return jax.tree.map(lambda leaf: leaf[0], records), pushed if self.front else [slope[0] for slope in pushed]


def find_slope_chain(
    functions: tuple[Observe, Observe, Advance, Observe], trees: tuple[Any, Any, Any, Any], slopes: Observe,
    moving: Marks, directions: int | None, watch: Watch, check: Callable[[], None],
) -> tuple[SlopeChain, list[Numbers], list[Numbers], list[Numbers]] | None:  # fmt: skip
    """The chain of a run with slopes, with the leaves of all constants, start and controls; else as `find_chain`."""
    make = partial(SlopeChain, functions, trees, slopes, moving, directions, watch)
    found = _remember_by(trees, (functions, slopes, moving, directions), check, make)
    return found and (found[0], found[1][0] + found[1][1], found[1][2], found[1][3])


def find_chain(
    judge: tuple[Observe, Any, Any], begin: Observe, advance: Advance, observe: Observe, consts: Any, start: Any,
    controls: Any, watch: Watch, check: Callable[[], None],
) -> tuple[Chain, list[Numbers], list[Numbers], list[Numbers]] | None:  # fmt: skip
    """The chain of such a run, with the leaves of constants, start and controls; None where there is no native code.

    `judge` is (function, its constants, its carry), the first of `consts` and of `start`. `check` is called before the
    first chain of a kind is made: it may refuse. Controls are real numbers.
    """
    of_consts = words_of(consts)  # a tuple
    start_leaves, start_tree = jax.tree.flatten(start)
    control_leaves, control_tree = ([], None) if controls is None else jax.tree.flatten(controls)
    given = concrete_leaves([*start_leaves, *control_leaves])
    if of_consts is None or given is None:
        return None
    n = len(start_leaves)

    def make() -> Chain | None:
        check()
        first = jax.tree.map(lambda leaf: leaf[0], controls)
        of_judge, of_begin = find_plan(*judge), find_plan(begin, consts, (start, first))
        if of_judge is None or of_begin is None or any(leaf.dtype != float for leaf in given[n:]):
            return None
        loop = of_begin[0].evaluate(of_begin[1])
        return Chain(of_judge[0], of_begin[0], plan_of(advance, observe, consts, loop, controls), watch)

    key = (begin, advance, observe, of_consts[0], start_tree, control_tree, shapes_of(given))
    chain = remember(key, make)
    return None if chain is None else (chain, of_consts[1], given[:n], given[n:])


# Many trajectories on a GPU by calls of one kind: their arguments lie there, and what they leave stays there. A call
# is the kernels of a chain, which read the arguments where they lie, and an XLA program that makes arrays of records.


class Watch(NamedTuple):
    """What tells that all is well: the leaf of the carry that is `good` then, the leaf of records never `missing`.

    A run with a missing record gets the status `failed`.
    """

    status: Callable[[Any], int]
    good: int
    marks: Callable[[Any], int]
    missing: int
    failed: int

    def judge(self, status: Any, marks: Any, xp: Any) -> Any:
        """The status, with `failed` where all was good but a record is missing."""
        lost = (marks == self.missing).any(axis=-1)
        return xp.where(lost & (status == self.good), self.failed, status).astype(status.dtype)


@dataclass(frozen=True)
class _Program:
    """One of the kernels of a chain, and what its shared words end with."""

    kernel: Any
    captured: bytes
    words: int
    record: list[Leaf]
    tree: Any

    @classmethod
    def of(cls, gpu: cuda.Gpu, problem: Problem, **placed: Any) -> _Program:
        lowered = problem.lower()
        captured = b"".join(map(leaf_bytes, lowered.captured))
        kernel = gpu.kernel(lowered, replace(make_layout(problem, lowered), **placed))
        return cls(kernel, captured, lowered.words, *lay_out(lowered.record))


@dataclass(frozen=True)
class _OfStart:
    """What is judged, of a start and the control of the first step."""

    judge: Observe

    def __call__(self, consts: Any, given: Any) -> Any:
        return self.judge(consts, given[0])


@dataclass(frozen=True)
class _Beginning:
    """(the carry that begins, whether the start is good) of a start and the control of the first step.

    With a loop (advance, observe), the record of that carry comes first, and the rest are words. It is one program that
    is made of those of its parts: the numbers are the same as if each ran alone.
    """

    judge: Observe
    begin: Observe
    loop: tuple[Advance, Observe] | None = None
    often: ClassVar[bool] = True

    def __call__(self, consts: Any, given: Any) -> Any:
        return self.begin(consts, given), self.judge(consts, given[0])

    def join(self, consts: Any, given: Any, control: Any, budget: int) -> LoweredProgram:
        """The program."""
        parts = [make_problem(keep_carry, each, consts, given) for each in (self.begin, _OfStart(self.judge))]
        begun, good = made = [each.lower(budget) for each in parts]
        if self.loop is None:
            return join_programs(made, (None, None), (0, 1), (begun.record, good.record))
        rows = jax.tree.map(lambda leaf: shape_struct((1, *leaf.shape), leaf.dtype), given[1])
        made.append(make_problem(*self.loop, consts, begun.record, rows).lower(budget))
        words = shape_struct((begun.words + 1,), np.int64)
        return join_programs(made, (None, None, 0), (2, 0, 1), (made[2].record, words))


def _is_same(new: Any, old: Any) -> bool:
    """Whether an array, or a number, is the one that it was."""
    return new is old or (type(new) is np.ndarray and type(old) is np.ndarray and new.tobytes() == old.tobytes())


class LaneChain:
    """Lanes that judge(consts, start), begin(consts, (start, u)) -> carry, then advance and observe, all in one call.

    u is the control of the first step. `blocks` are (records, steps before each) after a record of the first carry.
    """

    def __init__(
        self, gpu: cuda.Gpu, functions: tuple[Observe, Observe, Advance, Observe], trees: tuple[Any, Any, Any],
        lanes: int, axes: tuple[Any, Any, Any], blocks: Sequence[tuple[int, int]], watch: Watch,
    ):  # fmt: skip
        (judge, begin, advance, observe), (consts, start, controls) = functions, trees
        self.gpu, self.lanes, self.blocks = gpu, lanes, blocks
        self.capacity, self.total = 1 + sum(saves for saves, _ in blocks), sum(saves * every for saves, every in blocks)
        self.marks = [lane_axes(tree, prefix) for tree, prefix in zip(trees, axes, strict=True)]
        self.controls_vary = any(self.marks[2])
        own, started, acting = (self._places(tree, marks) for tree, marks in zip(trees, self.marks, strict=True))
        own = tuple(place for place, varies in zip(own, self.marks[0], strict=True) if varies)
        self.row = sum(size for size, _ in acting) // self.total  # words of a control
        pushes = tuple((size // self.total, size if self.controls_vary else 0) for size, _ in acting)
        self.first = np.cumsum([0, *(size for size, _ in pushes)]).tolist()[:-1]  # words before each in a shared row
        first = jax.tree.map(lambda leaf: leaf[:, 0] if self.controls_vary else leaf[0], controls)
        both = (axes[0], (axes[1], axes[2]))
        problem = make_problem(keep_carry, _Beginning(judge, begin), consts, (start, first), lanes=lanes, axes=both)
        self.begin = _Program.of(gpu, problem, own=own, start=(*started, *pushes))
        loop = [np.broadcast_to(np.zeros((), kind), (lanes, *shape)) for _, _, shape, _, kind in self.begin.record]
        carry, _ = self.begin.tree.unflatten(loop)
        self.loop, self.loop_tree = self.begin.record[:-1], jax.tree.structure(carry)
        problem = make_problem(advance, observe, consts, carry, controls, lanes=lanes, axes=(axes[0], 0, axes[2]))
        self.steps = _Program.of(gpu, problem, own=own)
        self.words = self.begin.words + self.capacity * self.steps.words  # of a lane: loop, judgement, records
        status = self.loop[watch.status(jax.tree.unflatten(self.loop_tree, range(len(self.loop))))]
        marks = self.steps.record[watch.marks(self.steps.tree.unflatten(range(len(self.steps.record))))]
        self.watched = [
            (self.begin.words - 1, 1, 1, False),
            (status[0], 1, watch.good, False),
            (self.begin.words + self.capacity * marks[0], self.capacity, watch.missing, True),
        ]
        self.turn, self.split, self.unpack = jax.jit(self._turn), jax.jit(self._split), jax.jit(self._unpack)
        self.lock, self.pace = threading.Lock(), 0.0  # seconds of a step, as the last call went
        self.known: tuple[Leaves, Any, list[int], list[int]] | None = None  # what all lanes shared last time
        self.given: list[Any] = []  # the same as it was given; arrays of NumPy may change, those here are copies
        self.table: tuple[list[int], Any] = ([], None)
        self.room: tuple[Any, Any, Any] | None = None  # words, the same for JAX, and what was last made of them

    def _places(self, tree: Any, marks: Sequence[bool]) -> tuple[tuple[int, int], ...]:
        """The words of each leaf of a lane, and those from a lane to the next: none where lanes share it."""
        pairs = zip(jax.tree.leaves(tree), marks, strict=True)
        sizes = [(math.prod(np.shape(leaf)[varies:]), varies) for leaf, varies in pairs]
        return tuple((size, size if varies else 0) for size, varies in sizes)

    def has_lanes_there(self, leaves: Sequence[Leaves]) -> bool:
        """Whether some numbers of the lanes lie on the GPU."""
        pairs = zip(leaves, self.marks, strict=True)
        each = (leaf for part, marks in pairs for leaf, varies in zip(part, marks, strict=True) if varies)
        return any(map(cuda.on_gpu, each))

    def __call__(self, leaves: Sequence[Leaves]) -> LaneRun | None:
        """Run from these leaves of constants, start and controls; None where a start is doubtful, or the run long."""
        with self.lock:
            return self._run(leaves)

    def _run(self, leaves: Sequence[Leaves]) -> LaneRun | None:
        gpu, lanes = self.gpu, self.lanes
        varying = [
            leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf)
            for part, marks in zip(leaves, self.marks, strict=True)
            for leaf, varies in zip(part, marks, strict=True)
            if varies
        ]
        turned = self.turn(list(leaves[2])) if self.controls_vary else None
        blocks, shared = self._share(leaves)
        words, flat = self._take_room()
        for leaf in varying:
            leaf.block_until_ready()
        table = self._tabulate(varying, shared)
        base, step = gpu.address(words), 8 * lanes
        records, start = base + step * self.begin.words, table + 8 * sum(self.marks[0])
        begin = (blocks[0], table, start, 0, base, 1, 0, 1, 0, lanes, 0, lanes, 1)
        gpu.launch(self.begin.kernel, lanes, begin)
        rows, stride = blocks[2], 1
        if turned is not None:
            turned.block_until_ready()
            rows, stride = turned.unsafe_buffer_pointer(), lanes
        if not self.pace:
            self._measure(begin, (blocks[1], table, base, rows, records), stride)
        if self.total * self.pace > CHUNK_SECONDS:
            gpu.finish()
            self.pace = 0.0  # the next call measures again: something may have been in the way
            return None
        clock, done, taken = time.perf_counter(), 0, 0
        for saves, every in ((1, 0), *self.blocks):
            place = rows + 8 * self.row * stride * taken
            counts = (self.capacity, done, done + saves, every, lanes, 0, lanes, stride)
            gpu.launch(self.steps.kernel, lanes, (blocks[1], table, base, place, records, *counts))
            done, taken = done + saves, taken + saves * every
        watched = [(base + step * row, count * lanes, word, equal) for row, count, word, equal in self.watched]
        doubtful, failed, missing = gpu.find_words(watched)
        self.pace = max(1e-12, (time.perf_counter() - clock) / max(1, self.total))
        if doubtful:
            return None
        loop, made = self.split(gpu.to_jax(words) if flat is None else flat)
        if flat is not None:
            self.room = words, flat, loop
        well, tree = not (failed or missing), self.loop_tree

        def carry() -> Any:
            return jax.tree.unflatten(tree, self.unpack(loop))

        return LaneRun(self.steps.tree.unflatten(made), carry, well, "cuda")

    def _measure(self, begin: Sequence[int], pointers: Sequence[int], stride: int) -> None:
        """Learn how long a step takes."""
        gpu, lanes, count = self.gpu, self.lanes, min(FIRST_STEPS, self.total)
        gpu.launch(self.steps.kernel, lanes, (*pointers, self.capacity, 0, 1, 0, lanes, 0, lanes, stride))  # loads it
        gpu.finish()
        clock = time.perf_counter()
        gpu.launch(self.steps.kernel, lanes, (*pointers, self.capacity, 0, 1, count, lanes, 0, lanes, stride))
        gpu.finish()
        self.pace = (time.perf_counter() - clock) / max(1, count)
        gpu.launch(self.begin.kernel, lanes, begin)

    def _take_room(self) -> tuple[Any, Any]:
        """Memory for the words of a run, and the same for JAX where it is kept from call to call."""
        if self.room is not None:
            words, flat, last = self.room
            if last is not None:
                last.block_until_ready()
            return words, flat
        words = self.gpu.xp.empty(self.words * self.lanes, np.float64)
        if words.nbytes > self.gpu.held_bytes:
            return words, None
        flat = self.gpu.to_jax(words)
        self.room = words, flat, None
        return words, flat

    def _share(self, leaves: Sequence[Leaves]) -> tuple[list[int], list[int]]:
        """Where on the GPU that lies which lanes share: of each kernel, of the controls, and of the start."""
        shared = [
            [leaf for leaf, varies in zip(part, marks, strict=True) if not varies]
            for part, marks in zip(leaves, self.marks, strict=True)
        ]
        given = [leaf for part in shared for leaf in part]
        if self.known is not None and len(given) == len(self.given) and all(map(_is_same, given, self.given)):
            return self.known[2], self.known[3]
        self.given = [leaf if isinstance(leaf, jax.Array | float) else np.array(leaf) for leaf in given]
        consts, start, rows = ([np.asarray(leaf) for leaf in part] for part in shared)
        words = [b"".join(map(leaf_bytes, consts)), *map(leaf_bytes, start), flat_rows(rows).tobytes() if rows else b""]
        if self.known is not None and self.known[0] == words:
            return self.known[2], self.known[3]
        parts = [words[0] + program.captured for program in (self.begin, self.steps)]
        parts += [words[-1], *words[1:-1]]
        held = self.gpu.xp.asarray(np.frombuffer(b"".join(parts) + bytes(8), np.int64))
        begins = [self.gpu.address(held) + each for each in np.cumsum([0, *map(len, parts)]).tolist()]
        self.known = words, held, begins[:3], begins[3:-1]
        return begins[:3], begins[3:-1]

    def _tabulate(self, varying: Sequence[Any], shared: Sequence[int]) -> int:
        """The address of a table of addresses: of the constants of each lane, its start, and its first control."""
        addresses, others = iter([leaf.unsafe_buffer_pointer() for leaf in varying]), iter(shared)
        words = [next(addresses) for varies in self.marks[0] if varies]
        words += [next(addresses) if varies else next(others) for varies in self.marks[1]]
        if self.controls_vary:
            words += list(addresses)
        else:
            assert self.known is not None
            words += [self.known[2][2] + 8 * before for before in self.first]
        if self.table[0] != words:
            self.table = words, self.gpu.xp.asarray(np.array([*words, 0], np.int64))
        return self.gpu.address(self.table[1])

    def _turn(self, controls: list[Any]) -> Any:
        """The words of controls, (steps, scalars, lanes)."""
        rows = [leaf.reshape(self.lanes, self.total, -1).transpose(1, 2, 0) for leaf in controls]
        return jnp.concatenate(rows, 1).reshape(-1)

    def _split(self, words: Any) -> tuple[Any, list[Any]]:
        """The words of the last carry, and the leaves of the records."""
        specs = [(shape, own) for _, _, shape, _, own in self.steps.record]
        records = split_in_jax(words, specs, self.begin.words, self.capacity, self.lanes)
        return words[: self.begin.words * self.lanes], records

    def _unpack(self, loop: Any) -> list[Any]:
        """The leaves of a carry."""
        specs = [(shape, own) for _, _, shape, _, own in self.loop]
        return [leaf[:, 0] for leaf in split_in_jax(loop, specs, 0, 1, self.lanes)]


_chains: OrderedDict[Any, LaneChain | None] = OrderedDict()


def find_lane_chain(
    functions: tuple[Observe, Observe, Advance, Observe], trees: tuple[Any, Any, Any], lanes: int,
    axes: tuple[Any, Any, Any], blocks: Sequence[tuple[int, int]], watch: Watch, check: Callable[[], None],
    backend: Any = "auto",
) -> tuple[LaneChain, list[list[Any]]] | None:  # fmt: skip
    """The chain of such lanes with the leaves of constants, start and controls.

    None where they are not for a GPU, or not there. `check` is called before the first chain of a kind is made.
    """
    if backend not in ("auto", "cuda") or not cuda.has_gpu() or (backend == "auto" and runs_natively(lanes, backend)):
        return None
    flat = [jax.tree.flatten(tree) for tree in trees]
    leaves = [part for part, _ in flat]
    if not any(cuda.on_gpu(leaf) for part in leaves for leaf in part if np.ndim(leaf)):
        return None
    kinds = tuple([(np.shape(leaf), getattr(leaf, "dtype", None)) for part in leaves for leaf in part])
    key = (functions, *(structure for _, structure in flat), lanes, axes, tuple(blocks), kinds)
    try:
        chain = _chains[key]
    except TypeError:  # something in it has no hash
        return None
    except KeyError:
        check()
        chain = _chains[key] = _make_chain(functions, trees, lanes, axes, blocks, watch)
        while len(_chains) > MAX_CHAINS:
            _chains.popitem(last=False)
    _chains.move_to_end(key)
    if chain is None or not chain.has_lanes_there(leaves):
        return None
    return chain, leaves


def _make_chain(
    functions: tuple[Observe, Observe, Advance, Observe], trees: tuple[Any, Any, Any], lanes: int,
    axes: tuple[Any, Any, Any], blocks: Sequence[tuple[int, int]], watch: Watch,
) -> LaneChain | None:  # fmt: skip
    """The chain, or None where there is none: the numbers of lanes are real."""
    marks = [varies for tree, prefix in zip(trees, axes, strict=True) for varies in lane_axes(tree, prefix)]
    pairs = list(zip(jax.tree.leaves(trees), marks, strict=True))
    real = all(leaf.dtype == np.float64 for leaf, varies in pairs if varies)
    kinds = {np.asarray(leaf).dtype for leaf, varies in pairs if not varies}
    if not (real and all(kind == np.float64 or kind.kind in "iub" for kind in kinds)):
        return None
    try:
        return LaneChain(cuda.gpu(), functions, trees, lanes, axes, blocks, watch)
    except (LoweringError, ImportError):
        return None


def kind_of_trees(trees: tuple[Any, ...]) -> Any:
    """The structure and shapes of trees, and which of their arrays are JAX's; None where one is traced."""
    return None if (found := _read_kind(trees)) is None else found[0]


def run_again(chain: Any, trees: tuple[Any, Any, Any], kind: Any) -> LaneRun | None:
    """Run lanes from constants, start and controls of the `kind` that the chain has run; None where they are not."""
    found = _read_kind(trees)
    if found is None or found[0] != kind:
        return None
    leaves = found[1]
    if isinstance(chain, LaneChain):
        return chain(leaves) if chain.has_lanes_there(leaves) else None
    given = [part for each in leaves if (part := concrete_leaves(each)) is not None]
    made: LaneRun | None = chain(given) if len(given) == len(leaves) else None
    return made


def _read_kind(trees: tuple[Any, ...]) -> tuple[Any, list[list[Any]]] | None:
    flat = [jax.tree.flatten(tree) for tree in trees]
    leaves: list[list[Any]] = [part for part, _ in flat]
    shapes: list[Any] = []
    for leaf in [leaf for part in leaves for leaf in part]:
        if (kind := type(leaf)) is np.ndarray:
            shapes.append((leaf.shape, leaf.dtype))
        elif kind is float or kind is int:
            shapes.append(kind)
        elif isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            shapes.append((leaf.shape, leaf.dtype, kind))
        else:
            return None
    return ([structure for _, structure in flat], shapes), leaves
