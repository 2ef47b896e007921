"""A run from its start under `jax.grad`, at once: begin, steps and both transposes, and nothing of JAX between them.

JAX takes some 50 us for each array that a transformed operation gives. A run with its beginning is two operations with
20 to 30 arrays each, and a third one marks what failed. Where nothing but a gradient is taken and all numbers are
known, `whole_p` is these three, and its transpose the three transposes. Everywhere else (`jit`, `vmap`, derivatives of
derivatives) it is its parts, which are primitives of their own (`transformations`).
"""

from __future__ import annotations

import ctypes
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any, NamedTuple, cast

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from . import cuda
from .adjoints import Kept, Leaves, Marks, NativeAdjoint, RunSpec, find_adjoint, is_real, pick, replace_leaves
from .cache import StaleEntry
from .execute import open_session, run_problem, runs_natively
from .ir import LoweringError
from .linear_algebra import instantiate_zeros
from .llvm import NativeSession, Place, call_line, script_player
from .lowering import shape_struct
from .plans import Watch, evaluate, keep_carry, plan_of
from .problem import Advance, Observe, Words, lane_axes
from .transformations import (
    FORWARDS,
    SlopeAdvance,
    SlopeObserve,
    adjoint_of,
    as_array,
    fill_zeros,
    is_transformed,
    known_leaves,
    mark_p,
    mark_values,
    place_arrays,
)

MAX_KEPT_RUNS = 2
"""Runs that wait for their transpose."""


class Outline(NamedTuple):
    """What runs of one kind leave: shapes of carry and records, their trees, and where status and marks are."""

    carry: list[Any]
    records: list[Any]
    loop: Any
    record: Any
    status: int
    marks: int

    @property
    def shapes(self) -> list[Any]:
        return [*self.carry, *self.records]


@dataclass(frozen=True)
class WholeRun:
    """All of a run from its start but its numbers: begin(consts, start) -> carry, then the steps of `spec`."""

    begin: RunSpec
    spec: RunSpec
    watch: Watch

    def split(self, leaves: Leaves) -> tuple[list[Any], list[Any], list[Any]]:
        """The leaves of the constants, of the start and of the controls."""
        consts, start, _ = self.begin.split(leaves)
        return consts, start, list(leaves[len(consts) + len(start) :])

    def outline(self, leaves: Leaves) -> Outline:
        return outline_of(self, tuple([(np.shape(leaf), np.dtype(leaf.dtype)) for leaf in leaves]))

    def in_parts(self, *leaves: Any) -> list[Any]:
        """The leaves of the last carry and of the records, by the primitives of the parts."""
        spec, (consts, start, controls) = self.spec, self.split(leaves)
        begun = self.begin.problem([*consts, *start])
        loop = run_problem(begun, saves=1, backend=spec.backend, single=True).records
        problem = spec.problem([*consts, *jax.tree.leaves(loop), *controls])
        options: Any = {"saves": spec.saves, "save_every": spec.every, "initial": spec.initial, "backend": spec.backend}
        result = run_problem(problem, **options)
        outline, watch = self.outline(leaves), self.watch
        found = [*jax.tree.leaves(result.carry), *jax.tree.leaves(result.records)]
        found[outline.status] = watch.judge(found[outline.status], found[outline.marks], jnp)
        axes = (*self.begin.axes[0], *self.begin.axes[1], *spec.axes[2])
        made_of = list(zip(leaves, axes, strict=True))
        marked_found: list[Any] = mark_values(found[outline.status] == watch.good, found, made_of)
        return marked_found


@lru_cache(maxsize=256)
def outline_of(whole: WholeRun, shapes: tuple[Any, ...]) -> Outline:
    """The outline of runs with such leaves."""
    consts, start, controls = whole.split([shape_struct(*shape) for shape in shapes])
    begun = whole.begin.problem([*consts, *start]).lower().record
    loop = whole.begin.shapes([*consts, *start])[1]
    given = [*consts, *loop, *controls]
    carry, records = whole.spec.shapes(given)
    structures = jax.tree.structure(begun), jax.tree.structure(whole.spec.problem(given).lower().record)
    status = whole.watch.status(jax.tree.unflatten(structures[0], range(len(carry))))
    marks = whole.watch.marks(jax.tree.unflatten(structures[1], range(len(records))))
    return Outline(carry, records, *structures, status, len(carry) + marks)


@lru_cache(maxsize=256)
def pushed_run(whole: WholeRun, shapes: tuple[Any, ...], moving: Marks) -> WholeRun:
    """The run with slopes beside its numbers, along one direction in the leaves that move.

    Its constants, start, controls, carry and records are pairs (numbers, slopes of those that move).
    """
    outline, parts = whole.outline([shape_struct(*shape) for shape in shapes]), tuple(map(tuple, whole.split(moving)))
    trees = (*whole.begin.structures[:2], whole.spec.structures[2], outline.loop)
    marks = (*parts, tuple(map(is_real, outline.carry)))
    consts, start, controls, loop = map(_with_slopes, trees, marks)
    axes = [(False,) * each.num_leaves for each in (consts, start, controls, loop)]
    begin = replace(
        whole.begin, observe=SlopeObserve(whole.begin.observe, parts[0], carry=parts[1]),
        structures=(consts, start, whole.begin.structures[2]), axes=(axes[0], axes[1], ()),
    )  # fmt: skip
    spec = replace(
        whole.spec, advance=SlopeAdvance(whole.spec.advance, parts[0], parts[2]),
        observe=SlopeObserve(whole.spec.observe, parts[0]), structures=(consts, loop, controls),
        axes=(axes[0], axes[3], axes[2]),
    )  # fmt: skip
    watch = whole.watch
    above = watch._replace(status=lambda pair: watch.status(pair[0]), marks=lambda pair: watch.marks(pair[0]))
    return WholeRun(begin, spec, above)


def _with_slopes(tree: Any, moving: Marks) -> Any:
    """The structure of (a tree, the slopes of some of its leaves)."""
    return jax.tree.structure((jax.tree.unflatten(tree, range(len(moving))), [0] * sum(moving)))


# Scripts: all native calls of a run, and the moves of words between them, as one call that XLA makes without Python.

MAX_SCRIPT_OPERATIONS = 10_000_000
"""Scalar operations of a run that goes as one call, which Ctrl-C has to wait for: some 10 ms."""


@cache
def _register() -> None:
    """Tell XLA the function that plays scripts."""
    capsule: Any = jax.ffi.pycapsule  # JAX has no types for it
    answer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(script_player()[1])
    jax.ffi.register_ffi_target("dalembert_script", capsule(answer), platform="cpu")


class Script:
    """What is done with the words of arguments to make results; beside these it has room of its own.

    All numbers are doubles or 64-bit integers. `own` are the types that the results shall have.
    """

    def __init__(self, given: Leaves, results: Leaves):
        self.lines: list[int] = []
        self.held: list[Any] = []  # what the words have the addresses of
        self.given, self.own = len(given), list(results)
        self.size = 0  # words of the room, which is the last result

    @cached_property
    def words(self) -> Words:
        _register()
        return np.array([*self.lines, 0], np.int64)

    @cached_property
    def results(self) -> list[Any]:
        """The results as native code makes them."""
        wide = [each if each.dtype == np.float64 else shape_struct(each.shape, np.int64) for each in self.own]
        return [*wide, shape_struct((self.size,), np.int64)]

    @cached_property
    def mark(self) -> Any:
        """Where the script is, and a number that no other process has: a cache of programs must not find this one."""
        return np.array([self.words.ctypes.data, secrets.randbits(62)], np.int64)

    def room(self, count: int) -> Place:
        """Words of the room."""
        self.size += count
        return self.given + len(self.own), 8 * (self.size - count)

    def result(self, number: int) -> Place:
        return self.given + number, 0

    def hold(self, words: Words) -> Place:
        """Words that stay as they are."""
        self.held.append(words)
        return -1, words.ctypes.data

    def do(self, kind: int, to: Place, source: Place, count: int, x: int = 0, y: int = 0, z: int = 0) -> None:
        if count:
            self.lines += [kind, *to, *source, count, x, y, z]

    def copy(self, to: Place, source: Place, count: int) -> None:
        self.do(1, to, source, count)

    def clear(self, to: Place, count: int) -> None:
        self.do(2, to, (-1, 0), count)

    def add(self, to: Place, source: Place, count: int) -> None:
        self.do(4, to, source, count)

    def join(self, parts: Sequence[tuple[Place, int]]) -> Place:
        """Words of the room with these one after the other."""
        to = self.room(sum(count for _, count in parts))
        for (place, count), before in zip(parts, _before([count for _, count in parts]), strict=True):
            self.copy(after(to, before), place, count)
        return to

    def table(self, rows: Sequence[tuple[Place, int]]) -> Place:
        """The table of some arrays, for native code with streams: where each begins, and the words between its rows."""
        to = self.room(3 * len(rows) + 3)
        for k, (place, words) in enumerate(rows):
            self.do(3, after(to, 3 * k), place, 1)
            self.do(3, after(to, 3 * k + 1), (-1, words), 1)
            self.do(3, after(to, 3 * k + 2), (-1, 1), 1)
        return to

    def call(self, function: Any, places: Sequence[Place], counts: Sequence[int], last: int) -> None:
        """Call a kernel for one lane with these pointers and (capacity, first, last, every)."""
        self.held.append(function)
        self.lines += call_line(function, places, counts, last)

    @cached_property
    def play(self) -> Callable[..., list[Any]]:
        """The results of known arrays: XLA calls native code and makes its arrays faster than Python could."""
        return jax.jit(lambda *leaves: self.bind(leaves))

    def bind(self, leaves: Leaves) -> list[Any]:
        """The same of arrays of JAX inside a program."""
        wide = [leaf if leaf.dtype == np.float64 else lax.convert_element_type(leaf, np.int64) for leaf in leaves]
        found = script_p.bind(*wide, script=self)
        return [lax.convert_element_type(leaf, each.dtype) for leaf, each in zip(found, self.own, strict=False)]


def after(place: Place, words: int) -> Place:
    return place[0], place[1] + 8 * words


def _before(sizes: Sequence[int]) -> list[int]:
    """The numbers of words before each of some parts."""
    return [sum(sizes[:k]) for k in range(len(sizes))]


def _lower_script(ctx: Any, *arguments: Any, script: Script) -> Any:
    ctx.module_context.add_keepalive(script)
    lower: Any = jax.ffi.ffi_lowering("dalembert_script")
    return lower(ctx, *arguments, script=script.mark)


script_p: Any = type(lax.add_p)("native_script")
script_p.multiple_results = True
script_p.def_abstract_eval(
    lambda *avals, script: [jax.core.ShapedArray(each.shape, each.dtype) for each in script.results]
)
mlir.register_lowering(script_p, _lower_script, platform="cpu")


class Scripts:
    """The scripts of whole runs of one trajectory with such leaves, `keeps` of which get cotangents.

    What is kept for the transpose are words: the carry before the first step, the one after the last, the status, and
    a row for every step.
    """

    def __init__(self, whole: WholeRun, shapes: tuple[Any, ...], keeps: Marks | None):
        self.whole, self.keeps, spec = whole, keeps, whole.spec
        self.pulls: dict[Marks, Script] = {}
        self.leaves = [shape_struct(*shape) for shape in shapes]
        self.outline = outline = whole.outline(self.leaves)
        self.consts, self.start, self.controls = whole.split(list(range(len(shapes))))
        if len(self.controls) > 1 or any(self.leaves[k].dtype != np.float64 for k in self.controls):
            raise LoweringError("a script has rows of one array of controls")
        trees = [jax.tree.unflatten(tree, zeros) for tree, zeros in self._zeros(whole.begin, outline.carry[:0])]
        self.begin = plan_of(keep_carry, whole.begin.observe, trees[0], trees[1])
        self.size = self.begin.words
        if keeps is None:
            trees = [jax.tree.unflatten(tree, zeros) for tree, zeros in self._zeros(spec, outline.carry)]
            self.plan = plan_of(spec.advance, spec.observe, *trees)
        else:
            given = [[self.leaves[k] for k in part] for part in (self.consts, self.start, self.controls)]
            self.steps = adjoint_of(spec, _moving_leaves(whole, keeps, outline), [*given[0], *outline.carry, *given[2]])
            self.row = self.steps.forwards.kept
            if spec.steps > self.steps.segment_steps:
                raise LoweringError("a script runs in one piece")
            loops = (self.steps.forwards, self.steps.backwards, self.steps.observer)
            self.functions = [loop.function for loop in loops if loop is not None]  # before a script is written

    def _zeros(self, spec: RunSpec, carry: Leaves) -> list[tuple[Any, list[Any]]]:
        parts = [self.consts, self.start, ()] if spec is self.whole.begin else [self.consts, (), self.controls]
        leaves = [[self.leaves[k] for k in part] for part in parts]
        leaves[1] = leaves[1] or list(carry)
        return [
            (tree, [np.zeros(leaf.shape, leaf.dtype) for leaf in part])
            for tree, part in zip(spec.structures, leaves, strict=True)
        ]

    @property
    def kept(self) -> Any:
        """The shape of what is kept."""
        return shape_struct((2 * self.size + 1 + self.whole.spec.steps * self.row,), np.int64)

    @cached_property
    def run(self) -> Script:
        """The leaves of the last carry and of the records, and what is kept, of the leaves of a run."""
        outline, spec, watch = self.outline, self.whole.spec, self.whole.watch
        script = Script(self.leaves, [*outline.shapes, *([] if self.keeps is None else [self.kept])])
        start = script.join([((k, 0), self.leaves[k].size) for k in self.start])
        loop = script.room(self.size) if self.keeps is None else script.result(len(outline.shapes))
        given = self._constants(script, _capture(self.begin.captured)), (-1, 0), start, (-1, 0), loop
        script.call(self.begin.function, given, (1, 0, 1, 0), 1)
        capacity, count = spec.saves + 1, len(outline.carry)
        sizes = [leaf.size // capacity for leaf in outline.records]
        if self.keeps is None:
            records, rows = script.room(capacity * self.plan.words), (self.controls[0], 0) if self.controls else (-1, 0)
            given = self._constants(script, _capture(self.plan.captured)), (-1, 0), loop, rows, records
            script.call(self.plan.function, given, (capacity, 0, 1, 0), 1)
            script.call(self.plan.function, given, (capacity, 1, capacity, spec.every), 1)
            for k, before in enumerate(_before(sizes)):
                script.copy(script.result(count + k), after(records, capacity * before), capacity * sizes[k])
        else:
            begun, loop, steps = loop, after(loop, self.size), self.steps.forwards
            script.copy(loop, begun, self.size)
            pointers = self._constants(script, steps.captured), (-1, 0), loop, script.table(self._inputs(False))
            places = [script.result(count + k) for k in range(len(sizes))]
            first = script.table([*((place, 0) for place in places), ((-1, 0), 0)])
            script.call(steps.function, (*pointers, first), (0, 0, 1, 0), 0)
            later = [(after(place, size), size) for place, size in zip(places, sizes, strict=True)]
            table = script.table([*later, (after(loop, self.size + 1), self.row)])
            script.call(steps.function, (*pointers, table), (0, 0, spec.saves, spec.every), 0)
        for k, before in enumerate(_before([leaf.size for leaf in outline.carry])):
            script.copy(script.result(k), after(loop, before), outline.carry[k].size)
        marks = script.result(outline.marks), capacity, watch.missing, watch.good, watch.failed
        script.do(5, script.result(outline.status), *marks)
        if self.keeps is not None:
            script.copy(after(loop, self.size), script.result(outline.status), 1)
        return script

    def _constants(self, script: Script, captured: Words, steady: Sequence[tuple[Place, int]] = ()) -> Place:
        parts = [((k, 0), self.leaves[k].size) for k in self.consts]
        return script.join([*parts, *steady, (script.hold(captured), captured.size)])

    def _inputs(self, turned: bool) -> list[tuple[Place, int]]:
        steps, rows = self.whole.spec.steps, []
        for k in self.controls:
            words = self.leaves[k].size // steps
            rows.append(_reverse_rows((k, 0), words, steps) if turned else ((k, 0), words))
        return rows

    def pull(self, some: Marks) -> Script:
        """The cotangents of the leaves that `keeps` names, of the leaves, what was kept, and some cotangents."""
        if some not in self.pulls:
            self.pulls[some] = self._write_pull(some)
        return self.pulls[some]

    def _write_pull(self, some: Marks) -> Script:
        assert self.keeps is not None
        outline, spec, watch, back = self.outline, self.whole.spec, self.whole.watch, self.steps.backwards
        real = [each for each in outline.shapes if is_real(each)]
        given = [*self.leaves, self.kept, *pick(real, some)]
        wanted = pick(self.leaves, self.keeps)
        script, kept = Script(given, wanted), (len(self.leaves), 0)
        first = begin_adjoint(self.whole, self.keeps, self.leaves, reached := self.steps.reached(some))
        count, capacity, steps = len(self.steps.own), spec.saves + 1, spec.steps
        sizes = [leaf.size for leaf in real]
        own, shared, acting = (
            [leaf.size for leaf in part] for part in (self.steps.own, self.steps.shared, self.steps.acting)
        )
        total = sum(own) + sum(shared)
        # the cotangents: of the last carry, of the moving constants and controls (and a number), then of the records,
        # of which those that are not given have one row of zeros; NaN or 0 for all
        counted, row_sizes = self.steps.counted, [size // capacity for size in sizes[count:]]
        sizes[count:] = [size if mark else size // capacity for size, mark in zip(sizes, some, strict=True)][count:]
        whole_size = total + sum(acting) + counted + sum(sizes[count:])
        state = script.room(whole_size + 1)
        records, lost = after(state, total + sum(acting) + counted), after(state, whole_size)
        script.clear(state, whole_size + 1)
        places = [after(state, n) for n in _before(own)] + [after(records, n) for n in _before(sizes[count:])]
        source = iter(range(len(self.leaves) + 1, len(given)))
        for place, size, mark in zip(places, sizes, some, strict=True):
            if mark:
                script.copy(place, (next(source), 0), size)
        for number, leaf in enumerate(wanted):
            script.clear(script.result(number), leaf.size)
        script.do(10, (-1, 0), state, whole_size)  # a run that has no cotangents gives none: its derivatives may be NaN
        script.do(7, state, after(kept, 2 * self.size), whole_size, 0, watch.good)
        steps_taken = script.hold(np.array([float(steps)]).view(np.int64))
        script.copy(after(state, total + sum(acting)), steps_taken, int(counted))
        rows = list(zip(places[count:], row_sizes, some[count:], strict=True))

        def add_record(carry: Place, number: int) -> None:
            """Add to the cotangents what one record adds to them."""
            loop = self.steps.observer
            if loop is None:
                return
            of_rows = ((after(place, number * size * mark), size) for place, size, mark in rows)
            seen = script.join([(carry, self.size), *of_rows])
            made = script.room(total)
            each = [(after(made, n), 0) for n in _before([*own, *shared])]
            tables = script.table([]), script.table([*each, ((-1, 0), 0)])
            pointers = self._constants(script, loop.captured), (-1, 0), seen, *tables
            script.call(loop.function, pointers, (0, 0, 1, 0), 0)
            script.add(state, made, total)

        if not self.steps.seen:
            add_record(after(kept, self.size), spec.saves)
        inputs = [_reverse_rows(after(kept, 2 * self.size + 1), self.row, steps), *self._inputs(True)]
        if self.steps.seen:
            inputs += [
                _reverse_rows(after(place, size), size, spec.saves) if mark else (place, 0)
                for place, size, mark in rows
            ]
            if spec.every > 1:
                inputs.append((script.hold(np.array([1, 0], np.int64)), 0))
        pushed = script.room(steps * sum(acting))
        made = script.table([_reverse_rows(pushed, sum(acting), steps)])
        constants = self._constants(script, back.captured, [(after(kept, k), 1) for k in self.steps.fixed])
        pointers = constants, (-1, 0), state, script.table(inputs), made
        script.call(back.function, pointers, (0, 0, spec.saves, spec.every), 0)
        add_record(kept, 0)
        # the cotangents of the start, and what it adds to those of the constants
        loop, sources = first.backwards, [int(word) for word in first.sources]
        words = [((k, 8 * n), 1) for k in self.start for n in range(self.leaves[k].size)]
        held = script.join([words[k] for k in sources])
        starts = [leaf.size for leaf in first.own]
        begun = script.room(sum(starts) + sum(shared))
        script.clear(begun, sum(starts) + sum(shared))
        ends = [(after(state, n), size) for n, size in zip(_before(own), own, strict=True)]
        inputs = [(held, len(sources)), *pick(ends, reached)]
        tables = script.table(inputs), script.table([(script.room(1), 0)])
        pointers = self._constants(script, loop.captured), (-1, 0), begun, *tables
        script.call(loop.function, pointers, (0, 0, 1, 1), 0)
        sums, number = after(state, sum(own)), 0
        script.add(sums, after(begun, sum(starts)), sum(shared))
        real_starts = iter(after(begun, n) for n in _before(starts))
        shared_sums = iter(after(sums, n) for n in _before(shared))
        for k, leaf in enumerate(self.leaves):
            place = next(real_starts) if k in self.start and is_real(leaf) else pushed
            if self.keeps[k]:
                script.copy(script.result(number), next(shared_sums) if k in self.consts else place, leaf.size)
                script.do(9, script.result(number), lost, leaf.size)
                number += 1
        return script


def _capture(words: bytes) -> Words:
    return np.frombuffer(bytearray(words), np.int64)


def _reverse_rows(place: Place, words: int, rows: int) -> tuple[Place, int]:
    """Rows from the last to the first."""
    return after(place, (rows - 1) * words), -words


@lru_cache(maxsize=256)
def _count_operations(whole: WholeRun, shapes: tuple[Any, ...]) -> int:
    consts, _, controls = whole.split([shape_struct(*shape) for shape in shapes])
    carry = whole.outline([shape_struct(*shape) for shape in shapes]).carry
    operations = whole.spec.problem([*consts, *carry, *controls]).lower().operations
    return whole.spec.steps * max(1, operations)


def _fits_script(whole: WholeRun, leaves: Leaves, most: int = MAX_SCRIPT_OPERATIONS) -> bool:
    """Whether a run is one trajectory on this processor, and short, and XLA can call native code."""
    if whole.spec.lanes is not None or not runs_natively(None, whole.spec.backend):
        return False
    if jax.default_backend() != "cpu" or not script_player()[1]:
        return False
    return _count_operations(whole, tuple([(np.shape(leaf), np.dtype(leaf.dtype)) for leaf in leaves])) <= most


@lru_cache(maxsize=64)
def _build_scripts(whole: WholeRun, shapes: tuple[Any, ...], keeps: Marks | None) -> Scripts | None:
    try:
        try:
            return Scripts(whole, shapes, keeps)
        except StaleEntry:  # the disk told of another program
            outline_of.cache_clear()
            find_adjoint.cache_clear()
            return Scripts(whole, shapes, keeps)
    except (LoweringError, ImportError, OSError):
        return None


def find_scripts(whole: WholeRun, leaves: Leaves, keeps: Marks | None) -> Scripts | None:
    """The scripts of such runs; None where there are none."""
    if not _fits_script(whole, leaves):
        return None
    return _build_scripts(whole, tuple([(np.shape(leaf), np.dtype(leaf.dtype)) for leaf in leaves]), keeps)


class Push(NamedTuple):
    """The run with slopes beside its numbers, and where its arguments and results are."""

    whole: WholeRun
    scripts: Scripts
    given: tuple[int, ...]  # the numbers of its leaves among those of the run and the slopes of what moves
    status: int
    slopes: tuple[int, ...]  # the numbers of its results that are slopes

    def leaves(self, primals: Leaves, slopes: Leaves) -> list[Any]:
        """Its leaves."""
        given = [*primals, *slopes]
        return [given[k] for k in self.given]


@lru_cache(maxsize=64)
def _build_push(whole: WholeRun, shapes: tuple[Any, ...], moving: Marks) -> Push | None:
    try:
        pushed, leaves = pushed_run(whole, shapes, moving), [shape_struct(*shape) for shape in shapes]
        slopes, rest = pick(leaves, moving), iter(range(len(leaves), len(leaves) + sum(moving)))
        given: list[int] = []
        for part, marks in zip(whole.split(range(len(leaves))), whole.split(moving), strict=True):
            given += [*part, *(next(rest) for mark in marks if mark)]
        every = [*leaves, *slopes]
        scripts = find_scripts(pushed, [every[k] for k in given], None)
        if scripts is None:
            return None
        found, own = scripts.outline, whole.outline(leaves)
        ends = len(own.carry), len(found.carry), len(found.carry) + len(own.records), len(found.shapes)
        return Push(pushed, scripts, tuple(given), found.status, (*range(*ends[:2]), *range(*ends[2:])))
    except LoweringError:
        return None


def find_push(whole: WholeRun, leaves: Leaves, moving: Marks) -> Push | None:
    """The script of a run with slopes; None where there is none."""
    if not _fits_script(whole, leaves):
        return None
    return _build_push(whole, tuple([(np.shape(leaf), np.dtype(leaf.dtype)) for leaf in leaves]), moving)


GRADIENTS = ("LinearizeTracer", "GradTracer")
TRANSFORMED = (*GRADIENTS, "JVPTracer", "BatchTracer")
whole_p: Any = type(lax.add_p)("run_whole")
slope_p: Any = type(lax.add_p)("run_whole_slopes")
pull_p: Any = type(lax.add_p)("run_whole_transposed")
whole_p.multiple_results = slope_p.multiple_results = pull_p.multiple_results = True
# A run that `keeps` something gives it after its other results; slopes and transposes have it after the leaves.


def bind_whole(
    begin: Observe, advance: Advance, observe: Observe, trees: tuple[Any, Any, Any], lanes: int | None,
    axes: tuple[Any, Any, Any], saves: int, every: int, backend: Any, watch: Watch,
) -> tuple[Any, Any] | None:  # fmt: skip
    """(last carry, records with the first) of a run whose gradient is taken; None where that is not all, or not native.

    What failed has its status, and derivatives that are NaN.
    """
    flat = [jax.tree.flatten(tree) for tree in trees]
    leaves = [as_array(leaf) for part, _ in flat for leaf in part]
    inside = any(map(_is_program, leaves))
    if backend == "xla" or not all(_is_linearised(leaf) or (inside and is_transformed(leaf)) for leaf in leaves):
        return None
    consts, start, controls = (cast(Any, structure) for _, structure in flat)
    marks = [tuple(lane_axes(tree, prefix)) for tree, prefix in zip(trees, axes, strict=True)]
    nothing = jax.tree.structure(None)
    of_begin = RunSpec(
        keep_carry, begin, (consts, start, nothing), (marks[0], marks[1], ()), lanes, 1, 1, False, backend, single=True
    )
    try:
        loop = (
            of_begin.problem([shape_of(leaf) for leaf in leaves[: consts.num_leaves + start.num_leaves]]).lower().record
        )
        structure = cast(Any, jax.tree.structure(loop))
        varies = (lanes is not None,) * structure.num_leaves
        spec = RunSpec(
            advance, observe, (consts, structure, controls), (marks[0], varies, marks[2]), lanes, saves, every, True,
            backend,
        )  # fmt: skip
        whole = WholeRun(of_begin, spec, watch)
        outline = whole.outline(list(map(shape_of, leaves)))
    except LoweringError:
        return None
    short = _fits_script(whole, leaves)
    if not short and (inside or spec.steps == 1):  # one step keeps nothing on the way
        return None
    bind = _as_program(whole) if short and not inside else partial(whole_p.bind, whole=whole, keeps=None)
    found = bind(*leaves)
    count = structure.num_leaves
    return jax.tree.unflatten(structure, found[:count]), jax.tree.unflatten(outline.record, found[count:])


@lru_cache(maxsize=64)
def _as_program(whole: WholeRun) -> Callable[..., list[Any]]:
    """A short run as a program of XLA: JAX remembers the derivative of a program, and takes each new one apart."""
    return jax.jit(lambda *leaves: whole_p.bind(*leaves, whole=whole, keeps=None))


def shape_of(leaf: Any) -> Any:
    return shape_struct(np.shape(leaf), jnp.result_type(leaf))


def _is_program(leaf: Any) -> bool:
    """Whether a number is a part of a program that JAX writes, be it mapped or differentiated there."""
    while isinstance(leaf, jax.core.Tracer):
        kind = type(leaf).__name__
        if kind not in TRANSFORMED:
            return kind == "DynamicJaxprTracer"
        leaf = leaf.val if kind == "BatchTracer" else leaf.primal
    return False


def _is_linearised(leaf: Any) -> bool:
    """Whether a number is known, a part of a program, or one whose gradient is taken and nothing else."""
    if not isinstance(leaf, jax.core.Tracer) or _is_program(leaf):
        return True
    return type(leaf).__name__ in GRADIENTS and not isinstance(leaf.primal, jax.core.Tracer)


class _Waiting(NamedTuple):
    """A run that waits for its transpose."""

    leaves: Leaves
    whole: WholeRun
    keeps: Marks
    adjoint: NativeAdjoint
    kept: Kept
    good: Any  # which lanes are; None: all


_waiting: deque[_Waiting] = deque(maxlen=MAX_KEPT_RUNS)
_lock = threading.Lock()


def _execute(leaves: Leaves, whole: WholeRun, keeps: Marks | None) -> list[Any]:
    """Run at once; `keeps` says which of the leaves will get cotangents."""
    spec = whole.spec
    known = known_leaves(spec, leaves)
    consts, start, controls = whole.split(known)
    outline, watch = whole.outline(leaves), whole.watch
    first = None if keeps is None or spec.lanes is None else _begin_lanes(whole, [*consts, *start])
    loop: Leaves = outline.carry
    if spec.lanes is None:
        trees = map(jax.tree.unflatten, whole.begin.structures[:2], (consts, start))
        loop = jax.tree.leaves(evaluate(whole.begin.observe, *trees, backend=spec.backend))
    elif first is None:
        begun = run_problem(whole.begin.problem([*consts, *start]), saves=1, backend=spec.backend, single=True)
        loop = jax.tree.leaves(begun.records)
    given = [*consts, *loop, *controls]
    if keeps is None:
        options: Any = {"saves": spec.saves, "save_every": spec.every, "initial": True, "backend": spec.backend}
        result = run_problem(spec.problem(given), **options)
        found = [*jax.tree.leaves(result.carry), *jax.tree.leaves(result.records)]
        xp = np if not any(map(cuda.on_gpu, found)) else cuda.gpu().xp
        found[outline.status] = watch.judge(found[outline.status], found[outline.marks], xp)
        return found
    adjoint = adjoint_of(spec, _moving_leaves(whole, keeps, outline), given)
    kept, found, words = adjoint.run_and_keep(given, first if first is None else adjoint.xp.asarray(first))
    status = watch.judge(found[outline.status], found[outline.marks], adjoint.xp)
    good = status == watch.good
    well = bool(good.all())
    if adjoint.gpu is not None and any(map(cuda.on_gpu, leaves)):
        found = adjoint.place(kept, words)
    if not well:
        found[outline.status] = status
    with _lock:
        _waiting.append(_Waiting(leaves, whole, keeps, adjoint, kept, None if well else good))
    return [*found, np.empty(0, np.int64)]


def _begin_lanes(whole: WholeRun, leaves: Leaves) -> Words | None:
    """The words of the carries with which lanes begin; None where native code does not make them."""
    session, _ = open_session(whole.begin.problem(leaves), whole.spec.backend)
    if not isinstance(session, NativeSession | cuda.CudaSession):
        return None
    session.reserve(1)
    session.run(0, 1, 1, 0)
    words: Words = session.buffers.records.reshape(-1, session.buffers.stride)
    return words


def _moving_leaves(whole: WholeRun, keeps: Marks, outline: Outline) -> Marks:
    """Which arguments of the steps have cotangents: of the carry, all real ones."""
    consts, _, controls = whole.split(keeps)
    return (*consts, *map(is_real, outline.carry), *controls)


def begin_adjoint(whole: WholeRun, keeps: Marks, leaves: Leaves, reached: Marks) -> NativeAdjoint:
    """The adjoint of the beginning, of whose real results those that steps reach backwards have cotangents."""
    (consts, start, _), (moving, _, _) = whole.split(leaves), whole.split(keeps)
    return adjoint_of(whole.begin, (*moving, *map(is_real, start)), [*consts, *start], some=reached)


def _take(leaves: Leaves, whole: WholeRun, keeps: Marks) -> _Waiting:
    for _ in range(2):
        with _lock:
            for place, each in enumerate(_waiting):
                same = each.whole == whole and each.keeps == keeps
                if same and all(a is b for a, b in zip(each.leaves, leaves, strict=True)):
                    del _waiting[place]
                    return each
        _execute(leaves, whole, keeps)
    raise AssertionError("a run that was just made is not there")


def _pull(leaves: Leaves, cotangents: Leaves, whole: WholeRun, keeps: Marks, some: Marks) -> list[Any]:
    """The cotangents of the leaves that `keeps` names, from those of some real numbers that the run left."""
    outline, spec = whole.outline(leaves), whole.spec
    waiting = _take(leaves, whole, keeps)
    xp, good = waiting.adjoint.xp, waiting.good
    given = known_leaves(spec, cotangents)
    if good is not None:
        factor = [xp.where(good, 1.0, np.nan).reshape(good.shape + (1,) * (leaf.ndim - good.ndim)) for leaf in given]
        given = [xp.where(leaf == 0.0, 0.0, leaf * each) for leaf, each in zip(given, factor, strict=True)]
    rest = iter(given)
    lost: Any = None
    if good is not None:  # what failed and has cotangents spoils all that it was made of
        lost = ~good & xp.any(xp.stack([(leaf != 0.0).reshape((*good.shape, -1)).any(-1) for leaf in given]), axis=0)
    found = waiting.adjoint.pull_kept(waiting.kept, [next(rest) if mark else None for mark in some])
    parts = spec.split(_moving_leaves(whole, keeps, outline))
    sums, carries = sum(parts[0]), sum(parts[1])
    consts, loop, controls = found[:sums], found[sums : sums + carries], found[sums + carries :]
    known = known_leaves(spec, leaves)
    first = [*whole.split(known)[0], *whole.split(known)[1]]
    starts, reached = whole.split(leaves)[1], waiting.adjoint.reached(some)
    zeros = [None for leaf in starts if is_real(leaf)]
    many = (slice(None),) * (spec.lanes is not None)
    records = [leaf[(*many, None)] if mark else None for leaf, mark in zip(loop, reached, strict=True)]
    before = begin_adjoint(whole, keeps, known, reached).pull(first, [*zeros, *records], False)
    shared = [a + b for a, b in zip(consts, before[:sums], strict=True)]
    begun = pick(before[sums:], pick(whole.split(keeps)[1], list(map(is_real, starts))))
    found = [*shared, *begun, *controls]
    if lost is None or not lost.any():
        return found
    axes = (*whole.begin.axes[0], *whole.begin.axes[1], *spec.axes[2])
    spoilt = [xp.where(lost, np.nan, 0.0) if own and lost.ndim else np.nan for own in pick(axes, keeps)]
    pairs = zip(found, spoilt, strict=True)
    return [leaf + xp.reshape(nan, np.shape(nan) + (1,) * (leaf.ndim - np.ndim(nan))) for leaf, nan in pairs]


@whole_p.def_impl  # type: ignore[untyped-decorator]  # JAX does not annotate it
def _run(*leaves: Any, whole: WholeRun, keeps: Marks | None) -> Any:
    if keeps is not None and (scripts := find_scripts(whole, leaves, keeps)):
        return scripts.run.play(*leaves)
    return place_arrays(_with_fresh(_execute, leaves, whole, keeps), leaves)


def _with_fresh(use: Callable[..., list[Any]], *given: Any) -> list[Any]:
    """What is made; where the disk told of another program, once more."""
    try:
        return use(*given)
    except StaleEntry:
        outline_of.cache_clear()
        return use(*given)


def _shapes(*avals: Any, whole: WholeRun, keeps: Any) -> list[Any]:
    kept = [] if keeps is None else [_keep_shape(whole, avals, keeps)]
    return [jax.core.ShapedArray(each.shape, each.dtype) for each in [*whole.outline(avals).shapes, *kept]]


def _keep_shape(whole: WholeRun, leaves: Leaves, keeps: Marks) -> Any:
    """The shape of what a run keeps; nothing where it waits for its transpose."""
    scripts = find_scripts(whole, leaves, keeps)
    return shape_struct((0,), np.int64) if scripts is None else scripts.kept


def _real_shapes(*avals: Any, whole: WholeRun, keeps: Marks) -> list[Any]:
    return [each for each in _shapes(*avals[: len(keeps)], whole=whole, keeps=None) if is_real(each)]


def _jvp(primals: Leaves, tangents: Leaves, *, whole: WholeRun, keeps: Any) -> tuple[list[Any], list[Any]]:
    given = tuple(not isinstance(each, ad.Zero) and is_real(leaf) for leaf, each in zip(primals, tangents, strict=True))
    later = any(type(tangent).__name__ == "JaxprTracer" for tangent in tangents)
    if keeps is None and later and _has_adjoints(primals, whole, given):
        *found, kept = whole_p.bind(*primals, whole=whole, keeps=given)
    elif any(map(_is_program, (*primals, *tangents))) and find_push(whole, primals, given):
        found, kept = whole_p.bind(*primals, whole=whole, keeps=keeps), np.empty(0, np.int64)
    else:
        return _jvp_in_parts(primals, tangents, whole, keeps)
    slopes = iter(slope_p.bind(*primals, kept, *pick(tangents, given), whole=whole, keeps=given))
    zeros = (ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in found)
    return found, [next(slopes) if is_real(leaf) else zero for leaf, zero in zip(found, zeros, strict=True)]


def _has_adjoints(primals: Leaves, whole: WholeRun, keeps: Marks) -> bool:
    if find_scripts(whole, primals, keeps):
        return True
    if any(isinstance(leaf, jax.core.Tracer) for leaf in primals):
        return False
    outline = whole.outline(primals)
    consts, _, controls = whole.split(list(map(shape_of, primals)))
    try:
        steps = adjoint_of(whole.spec, _moving_leaves(whole, keeps, outline), [*consts, *outline.carry, *controls])
    except LoweringError:
        return False
    return steps.keeps_on_the_way


def _jvp_in_parts(primals: Leaves, tangents: Leaves, whole: WholeRun, keeps: Any) -> tuple[list[Any], list[Any]]:
    found, slopes = _jvp_of_parts(_in_parts, primals, tangents, whole=whole, keeps=keeps)
    zeros = (ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in found)
    pairs = zip(found, slopes, zeros, strict=True)
    return found, [slope if is_real(leaf) else zero for leaf, slope, zero in pairs]


def _slopes_in_parts(*leaves: Any, whole: WholeRun, keeps: Marks) -> list[Any]:
    primals, along = leaves[: len(keeps)], leaves[len(keeps) + 1 :]
    found: list[Any] = jax.jvp(_reals_in_parts(primals, whole, keeps), pick(primals, keeps), list(along))[1]
    return found


def _reals_in_parts(primals: Leaves, whole: WholeRun, keeps: Marks) -> Callable[..., list[Any]]:
    """The real leaves that a run leaves, of those that `keeps` names."""

    def run(*values: Any) -> list[Any]:
        return [leaf for leaf in whole.in_parts(*replace_leaves(list(primals), keeps, values)) if is_real(leaf)]

    return run


def _pull_in_parts(*leaves: Any, whole: WholeRun, keeps: Marks, some: Marks) -> list[Any]:
    primals, given = leaves[: len(keeps)], leaves[len(keeps) + 1 :]
    real = [each for each in whole.outline(primals).shapes if is_real(each)]
    pull = jax.vjp(_reals_in_parts(primals, whole, keeps), *pick(primals, keeps))[1]
    return list(pull(fill_zeros(given, some, real, None, jnp)))


def _transpose(cotangents: Leaves, *leaves: Any, whole: WholeRun, keeps: Marks) -> list[Any]:
    primals, kept = leaves[: len(keeps)], leaves[len(keeps)]
    some = tuple(not isinstance(each, ad.Zero) for each in cotangents)
    given = pick(cotangents, some)
    if not kept.size and any(map(_is_program, (*primals, *given))) and find_scripts(whole, primals, keeps):
        kept = whole_p.bind(*primals, whole=whole, keeps=keeps)[-1]
    if kept.size:
        found = pull_p.bind(*primals, kept, *given, whole=whole, keeps=keeps, some=some)
    elif not any(isinstance(leaf, jax.core.Tracer) for leaf in (*primals, *given)):
        at_once = lambda: place_arrays(_with_fresh(_pull, primals, given, whole, keeps, some), primals)
        found = _pull_or_parts(at_once, (*primals, kept, *given), whole=whole, keeps=keeps, some=some)
    else:
        found = _pull_in_parts(*primals, kept, *given, whole=whole, keeps=keeps, some=some)
    return [None] * (len(keeps) + 1) + list(found)


def _pull_shapes(*avals: Any, whole: WholeRun, keeps: Marks, some: Marks) -> list[Any]:
    return [jax.core.ShapedArray(each.shape, each.dtype) for each in pick(avals[: len(keeps)], keeps)]


def _find_pull(leaves: Leaves, whole: WholeRun, keeps: Marks, some: Marks) -> Script:
    scripts = find_scripts(whole, leaves[: len(keeps)], keeps)
    assert scripts is not None
    return scripts.pull(some)


def _play_pull(*leaves: Any, **params: Any) -> list[Any]:
    return _pull_or_parts(lambda: _find_pull(leaves, **params).play(*leaves), leaves, **params)


def _pull_of_program(*leaves: Any, **params: Any) -> list[Any]:
    return _pull_or_parts(lambda: _find_pull(leaves, **params).bind(leaves), leaves, **params)


def _pull_or_parts(pull: Callable[[], list[Any]], leaves: Leaves, **params: Any) -> list[Any]:
    """What a native transpose gives; in parts where the beginning, which is lowered last, has none."""
    try:
        return pull()
    except LoweringError:
        return _pull_in_parts(*leaves, **params)


def _run_of_program(*leaves: Any, whole: WholeRun, keeps: Any) -> list[Any]:
    scripts = find_scripts(whole, leaves, keeps)
    return _in_parts(*leaves, whole=whole, keeps=keeps) if scripts is None else scripts.run.bind(leaves)


def _in_parts(*leaves: Any, whole: WholeRun, keeps: Any) -> list[Any]:
    """A run in parts keeps nothing: who transposes it, takes it in parts too, and would find a failed run here."""
    found = whole.in_parts(*leaves)
    if keeps is not None:
        kept = _keep_shape(whole, leaves, keeps)
        found = [*found, jnp.full(kept.shape, -1, kept.dtype)]
    return found


def _push_of_program(*leaves: Any, whole: WholeRun, keeps: Marks) -> list[Any]:
    primals, along = leaves[: len(keeps)], leaves[len(keeps) + 1 :]
    push = find_push(whole, primals, keeps)
    if push is None:
        return _slopes_in_parts(*leaves, whole=whole, keeps=keeps)
    found = push.scripts.run.bind(push.leaves(primals, along))
    good = found[push.status] == whole.watch.good
    marked: list[Any] = mark_p.bind(good, *(found[k] for k in push.slopes), back=FORWARDS, roots=())
    return marked


MAX_MAPPED_OPERATIONS = 2_000_000
"""Scalar operations up to which mapped runs go one after the other, as scripts: some 1 ms. To call Python takes as
long; it runs them side by side, as lanes."""


def _batch(
    primitive: Any, function: Callable[..., list[Any]], leaves: Leaves, dims: Sequence[Any], **params: Any
) -> Any:
    """Some short runs in a program that JAX writes go one after the other, as each would alone; others are lanes."""
    pairs = list(zip(leaves, dims, strict=True))
    size = next(leaf.shape[dim] for leaf, dim in pairs if dim is not None)
    shapes = [
        shape_struct(leaf.shape if dim is None else (*leaf.shape[:dim], *leaf.shape[dim + 1 :]), leaf.dtype)
        for leaf, dim in pairs
    ]
    whole = params["whole"]
    count = sum(each.num_leaves for each in (*whole.begin.structures[:2], whole.spec.structures[2]))
    if any(map(_is_program, leaves)) and _fits_script(whole, shapes[:count], MAX_MAPPED_OPERATIONS // size):
        rows = [jnp.moveaxis(leaf, dim, 0) for leaf, dim in pairs if dim is not None]

        def run(row: Any) -> Any:
            rest = iter(row)
            given = [leaf if dim is None else next(rest) for leaf, dim in pairs]
            return primitive.bind(*given, **params)

        found = lax.map(run, rows)
    else:
        found = jax.vmap(lambda *given: function(*given, **params), dims)(*leaves)
    return found, [0] * len(found)


whole_p.def_abstract_eval(_shapes)
slope_p.def_abstract_eval(_real_shapes)
slope_p.def_impl(_slopes_in_parts)
pull_p.def_impl(_play_pull)
pull_p.def_abstract_eval(_pull_shapes)
for primitive, function in ((whole_p, _in_parts), (slope_p, _slopes_in_parts), (pull_p, _pull_in_parts)):
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=True))
    batching.primitive_batchers[primitive] = partial(_batch, primitive, function)
for primitive, function in ((whole_p, _run_of_program), (slope_p, _push_of_program), (pull_p, _pull_of_program)):
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=True), platform="cpu")
ad.primitive_jvps[whole_p] = _jvp
ad.primitive_transposes[slope_p] = _transpose


def _jvp_of_parts(function: Callable[..., list[Any]], primals: Leaves, tangents: Leaves, **params: Any) -> Any:
    real = [is_real(leaf) for leaf in primals]
    along = list(map(instantiate_zeros, pick(tangents, real)))
    return jax.jvp(
        lambda *values: function(*replace_leaves(list(primals), real, values), **params), pick(primals, real), along
    )


# Second derivatives: what a transpose becomes along slopes of the leaves and of the cotangents, and is linear in. It is
# the transpose of the run with slopes: <w, DR(x) v> has the derivative (D^2R(x) v)^T w in x.


class Turn(NamedTuple):
    """Which of the leaves and of the given cotangents have slopes."""

    leaves: Marks
    cotangents: Marks


def _jvp_of_pull(primals: Leaves, tangents: Leaves, *, whole: WholeRun, keeps: Marks, some: Marks) -> Any:
    count = len(keeps)
    moving = tuple(not isinstance(each, ad.Zero) and is_real(x) for x, each in zip(primals, tangents, strict=True))
    turn, params = Turn(moving[:count], moving[count + 1 :]), cast(Any, {"whole": whole, "keeps": keeps, "some": some})
    inside = any(turn.leaves) and any(map(_is_program, (*primals, *tangents)))
    if not (inside and find_turned(primals[:count], turn=turn, **params)):
        return _jvp_of_parts(_pull_in_parts, primals, tangents, **params)
    given = *primals[:count], *primals[count + 1 :]
    return pull_p.bind(*primals, **params), turn_p.bind(*given, *pick(tangents, moving), turn=turn, **params)


class Turned(NamedTuple):
    """The transpose of the run with slopes, and of which of its real results it gets cotangents."""

    push: Push
    keeps: Marks
    some: Marks
    order: tuple[int, ...]  # the numbers of its cotangents among those given and their slopes


def find_turned(leaves: Leaves, *, whole: WholeRun, keeps: Marks, some: Marks, turn: Turn) -> Turned | None:
    """How a script gives such slopes; None where none does."""
    push = find_push(whole, leaves, turn.leaves)
    if push is None:
        return None
    count, given = sum(map(is_real, whole.outline(leaves).carry)), iter(turn.cotangents)
    moves = [mark and next(given) for mark in some]
    marks = (*moves[:count], *some[:count], *moves[count:], *some[count:])
    own, slopes = iter(range(sum(some))), iter(range(sum(some), sum(some) + sum(moves)))
    of_own, of_slopes = ([next(each) if mark else -1 for mark in part] for each, part in ((own, some), (slopes, moves)))
    places = (*of_slopes[:count], *of_own[:count], *of_slopes[count:], *of_own[count:])
    real = push.leaves([True] * len(leaves), [False] * sum(turn.leaves))
    kept = push.leaves(keeps, [False] * sum(turn.leaves))
    above = push.leaves(list(map(shape_of, leaves)), list(map(shape_of, pick(leaves, turn.leaves))))
    assert len(real) == len(kept)
    scripts = find_scripts(push.whole, above, tuple(kept))
    if scripts is None or not any(marks):
        return None
    try:
        scripts.pull(marks)
    except LoweringError:
        return None
    return Turned(push, tuple(kept), marks, tuple(k for k in places if k >= 0))


def _split_turn(leaves: Leaves, keeps: Marks, some: Marks, turn: Turn) -> tuple[Leaves, Leaves, Leaves, Leaves]:
    """The leaves, the cotangents, and the slopes of both."""
    ends = np.cumsum([len(keeps), sum(some), sum(turn.leaves), sum(turn.cotangents)]).tolist()
    return leaves[: ends[0]], leaves[ends[0] : ends[1]], leaves[ends[1] : ends[2]], leaves[ends[2] :]


def _turn_of_program(*leaves: Any, whole: WholeRun, keeps: Marks, some: Marks, turn: Turn) -> list[Any]:
    primals, given, along, moves = _split_turn(leaves, keeps, some, turn)
    found = find_turned(primals, whole=whole, keeps=keeps, some=some, turn=turn)
    if found is None:
        return _turn_in_parts(*leaves, whole=whole, keeps=keeps, some=some, turn=turn)
    above, cotangents = found.push.leaves(primals, along), [*given, *moves]
    kept = whole_p.bind(*above, whole=found.push.whole, keeps=found.keeps)[-1]
    ordered = [cotangents[k] for k in found.order]
    made: list[Any] = pull_p.bind(*above, kept, *ordered, whole=found.push.whole, keeps=found.keeps, some=found.some)
    return made


def _turn_in_parts(*leaves: Any, whole: WholeRun, keeps: Marks, some: Marks, turn: Turn) -> list[Any]:
    primals, given, along, moves = _split_turn(leaves, keeps, some, turn)
    marks, nothing = (*turn.leaves, *turn.cotangents), np.empty(0, np.int64)

    def pull(*values: Any) -> list[Any]:
        new = replace_leaves([*primals, *given], marks, values)
        return _pull_in_parts(*new[: len(keeps)], nothing, *new[len(keeps) :], whole=whole, keeps=keeps, some=some)

    found: list[Any] = jax.jvp(pull, pick([*primals, *given], marks), [*along, *moves])[1]
    return found


def _transpose_turn(cotangents: Leaves, *leaves: Any, whole: WholeRun, keeps: Marks, some: Marks, turn: Turn) -> Any:
    known = len(keeps) + sum(some)
    params: Any = {"whole": whole, "keeps": keeps, "some": some, "turn": turn}
    is_unknown: Any = ad.is_undefined_primal  # JAX does not annotate it
    shapes = [each.aval if is_unknown(each) else shape_of(each) for each in leaves[known:]]
    linear = jax.linear_transpose(lambda *slopes: _turn_in_parts(*leaves[:known], *slopes, **params), *shapes)
    given = list(map(instantiate_zeros, cotangents))
    return [None] * known + list(linear(given))


turn_p: Any = type(lax.add_p)("run_whole_turned")
turn_p.multiple_results = True
turn_p.def_impl(_turn_in_parts)
turn_p.def_abstract_eval(lambda *avals, turn, **params: _pull_shapes(*avals, **params))
mlir.register_lowering(turn_p, mlir.lower_fun(_turn_in_parts, multiple_results=True))
mlir.register_lowering(turn_p, mlir.lower_fun(_turn_of_program, multiple_results=True), platform="cpu")
batching.primitive_batchers[turn_p] = partial(_batch, turn_p, _turn_in_parts)
ad.primitive_jvps[turn_p] = partial(_jvp_of_parts, _turn_in_parts)
ad.primitive_transposes[turn_p] = _transpose_turn
ad.primitive_jvps[slope_p] = partial(_jvp_of_parts, _slopes_in_parts)
ad.primitive_jvps[pull_p] = _jvp_of_pull
