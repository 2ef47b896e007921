"""What is to be run: two functions, their arguments, which of these vary over lanes, and their words in memory.

All buffers hold 8-byte words (doubles, integers, booleans as 0 and 1), lanes fastest: consecutive lanes are consecutive
words, which is what vector loads and coalesced GPU accesses want.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from .cache import LoweredProgram, cached_program
from .ir import MAX_OPERATIONS, LoweringError
from .lowering import count_equations, lower, shape_struct, writing_limits

Words = NDArray[np.int64]
Advance = Callable[[Any, Any, Any], Any]  # (consts, carry, control) -> carry
Observe = Callable[[Any, Any], Any]  # (consts, carry) -> record

POINTER_ARGUMENTS = ("shared", "varying", "state", "controls", "records")
COUNT_ARGUMENTS = ("capacity", "first", "last", "every", "stride", "begin", "end", "control_stride")
"""Arguments of every generated function: records first <= i < last of lanes begin <= lane < end, in buffers of `stride`
lanes that hold `capacity` records; each record follows `every` steps."""
Kernel = Callable[..., None]
SIGNATURE = ctypes.CFUNCTYPE(
    None, *[ctypes.c_void_p] * len(POINTER_ARGUMENTS), *[ctypes.c_int64] * len(COUNT_ARGUMENTS)
)
ENTRY_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
"""The same, given the address of the words of all arguments."""
ARGUMENT_WORDS = struct.Struct(f"{len(POINTER_ARGUMENTS) + len(COUNT_ARGUMENTS)}q")
NO_BYTES = ctypes.c_char * 0
ABI = "dalembert-kernel-4"
PAGE_WORDS = 512
"""Words of a page of memory."""
MAX_PROGRAMS = 128
"""Programs held in memory; the one used least recently goes first."""
EVICTIONS_PER_CLEARING = 256
"""After so many programs went, JAX forgets its traces too: it keeps thousands, each with the functions of a system."""


@dataclass(frozen=True)
class Stream:
    """Rows of some controls in an array of their own: the place of each in a row, or -1 where the program reads none.

    A row belongs to a step, or to all steps before a record ("record"). The row "record begins" is a boolean that holds
    for the first of these steps only.
    """

    places: tuple[int, ...]
    varies: bool  # over the lanes
    clock: str = "step"


@dataclass(frozen=True)
class Streams:
    """Controls and records in arrays of their own, in any order of rows, and numbers `kept` of every step.

    The arguments `controls` and `records` are then tables with three words for each array: its address, the words from
    a row to the next, and those from a number of a row to the next. The argument `control_stride` is the number of the
    first step. What is kept counts through the state before the step, the state after it, and the notes of the step;
    its rows are the last of the records.
    """

    controls: tuple[Stream, ...]
    kept: tuple[int, ...]
    many: bool  # whether there are lanes
    once: bool = False  # whether a run is one step: then compiling is all it costs


@dataclass(frozen=True)
class Layout:
    """What the generated function must know of its buffers besides the program.

    `varying` says for each constant whether every lane has its own, `controls_vary` the same for the controls,
    `leaves` the sizes of the recorded arrays: leaf after leaf, each (records, size, lanes), where there are no streams.
    On a GPU the arguments `varying` and `state` may be tables of the addresses of leaves: `own` and `start` then have
    the size of each, and the words from a lane to the next. Such a state is not written. `single` says that there are
    no lanes: where one is computed at a time, neighbours lie side by side. What runs `often` is worth the time of LLVM
    though it takes no steps.
    """

    varying: tuple[bool, ...]
    controls_vary: bool
    leaves: tuple[int, ...]
    streams: Streams | None = None
    own: tuple[tuple[int, int], ...] | None = None
    start: tuple[tuple[int, int], ...] | None = None
    single: bool = False
    often: bool = False

    @property
    def offsets(self) -> list[tuple[int, int, int]]:
        """For each scalar of a record: (words before its leaf, size of its leaf, place in its leaf)."""
        result, before = [], 0
        for size in self.leaves:
            result += [(before, size, place) for place in range(size)]
            before += size
        return result


def lane_axes(tree: Any, prefix: Any) -> list[bool]:
    """Whether each leaf of the tree has a leading lane axis; `prefix` is 0, None or a prefix pytree of these."""

    def mark(axis: int | None, part: Any) -> list[bool]:
        if axis not in (0, None):
            raise ValueError("lanes lie along axis 0: axes are 0 or None")
        return [axis is not None] * len(jax.tree.leaves(part))

    return jax.tree.leaves(jax.tree.map(mark, prefix, tree, is_leaf=lambda node: node is None))


def lane_counts(tree: Any, axes: Sequence[bool]) -> set[int]:
    """The numbers of lanes that the leaves have (one, if all is well)."""
    shapes = [np.shape(leaf) for leaf, varies in zip(jax.tree.leaves(tree), axes, strict=True) if varies]
    if () in shapes:
        raise ValueError("a scalar has no lane axis")
    return {shape[0] for shape in shapes}


def address(memory: Any) -> int:
    """Where writable memory begins; `array.ctypes.data` takes four times as long."""
    return ctypes.addressof(NO_BYTES.from_buffer(memory))


def to_words(leaf: Any, xp: Any = np) -> Words:
    """The leaf as 8-byte words of the same shape, in arrays of NumPy or, where `xp` is CuPy, on a GPU."""
    data: Any = xp.asarray(leaf)
    if data.dtype == np.float64:
        return xp.ascontiguousarray(data).view(np.int64).reshape(data.shape)  # type: ignore[no-any-return]
    if data.dtype.kind in "iub":
        return data.astype(np.int64)  # type: ignore[no-any-return]
    raise LoweringError(f"no 8-byte words for {data.dtype}")


def from_words(data: Words, dtype: Any) -> np.ndarray[Any, Any]:
    """Words as numbers of the given type, without a copy where the type is 8 bytes wide."""
    dtype = np.dtype(dtype)
    return data.view(dtype) if dtype.itemsize == 8 else data.astype(dtype)


def lane_stride(lanes: int | None, width: int) -> int:
    """The words from a row of lanes to the next: whole vectors, an odd number of them where a row fills a page.

    The caches of a processor put rows that are a multiple of a page apart in the same place, one instead of the other.
    """
    vectors = -(-(lanes or 1) // width)
    return width * (vectors | 1 if width > 1 and vectors * width >= PAGE_WORDS else vectors)


def pack(leaves: Sequence[Any], axes: Sequence[bool], stride: int, xp: Any = np, room: Words | None = None) -> Words:
    """Leaves as a (scalars, stride) buffer; lanes beyond the last repeat it and so add no work of their own."""
    parts = []
    for leaf, varies in zip(leaves, axes, strict=True):
        data = xp.asarray(leaf)
        if data.dtype != np.float64:
            data = to_words(data, xp)
        parts.append(data.reshape(data.shape[0], -1).T if varies else data.reshape(-1, 1))
    words: Words = xp.empty((sum(map(len, parts)), stride), np.int64) if room is None else room
    reals, row, lanes = words.view(np.float64), 0, stride
    for part, varies in zip(parts, axes, strict=True):
        lanes, here = part.shape[1] if varies else lanes, words if part.dtype == np.int64 else reals
        here[row : row + len(part), : lanes if varies else stride] = part
        row += len(part)
    if lanes < stride:
        words[:, lanes:] = words[:, lanes - 1 : lanes]
    return words


def split_in_jax(words: Any, specs: Sequence[tuple[Any, Any]], begin: int, rows: int, lanes: int) -> list[Any]:
    """The leaves, (lanes, rows, ...), of (shape, type) each, that lie one after the other in an array of JAX."""
    made = []
    for shape, own in specs:
        count = rows * math.prod(shape)
        data = words[begin * lanes : (begin + count) * lanes].reshape(rows, *shape, lanes)
        begin, data = begin + count, jnp.moveaxis(data, -1, 0)
        made.append(data if own == np.float64 else lax.bitcast_convert_type(data, np.int64).astype(own))
    return made


def pack_controls(leaves: Sequence[Any], axes: Sequence[bool], stride: int, xp: Any = np) -> tuple[Words, int, int]:
    """Controls as (steps, scalars, lanes) words, the words of a step, and the lanes (1 where all share them)."""
    leaves = [xp.asarray(leaf) for leaf in leaves]
    if not leaves:
        return xp.empty(0, np.int64), 0, 1
    if not any(axes):  # one row a step: a view where there is one array
        flat = [to_words(leaf, xp).reshape(len(leaf), -1) for leaf in leaves]
        words = flat[0] if len(flat) == 1 else xp.concatenate(flat, axis=1)
        return xp.ascontiguousarray(words), words.shape[1], 1
    parts = []
    for leaf, varies in zip(leaves, axes, strict=True):
        rows = leaf if varies else leaf[None]
        packed = pack([rows.reshape(len(rows), -1)], [True], stride, xp)
        parts.append(packed.reshape(leaf.shape[1 if varies else 0], -1, stride))
    words = xp.ascontiguousarray(xp.concatenate(parts, 1))
    return words, words.shape[1] * stride, stride


@dataclass
class Problem:
    """advance(consts, carry, control) -> carry and observe(consts, carry) -> record with concrete arguments."""

    advance: Advance
    observe: Observe
    consts: Any
    carry: Any
    controls: Any
    lanes: int | None
    const_axes: list[bool]
    carry_axes: list[bool]
    control_axes: list[bool]

    @cached_property
    def const_tree(self) -> Any:
        """The shapes of the constants of one lane."""
        return _lane_specs(self.consts, self.const_axes)

    @cached_property
    def carry_tree(self) -> Any:
        """The shapes of the carry of one lane."""
        return _lane_specs(self.carry, self.carry_axes)

    @cached_property
    def carry_specs(self) -> list[jax.ShapeDtypeStruct]:
        """The leaves of `carry_tree`."""
        return jax.tree.leaves(self.carry_tree)

    @property
    def control_tree(self) -> Any:
        """The shapes of the control of one step of one lane."""
        rows = _lane_specs(self.controls, self.control_axes)
        return jax.tree.map(lambda leaf: shape_struct(leaf.shape[1:], leaf.dtype), rows)

    def require_steps(self, steps: int) -> None:
        """Refuse controls that have not one row for each step."""
        for leaf, varies in zip(jax.tree.leaves(self.controls), self.control_axes, strict=True):
            rows = np.shape(leaf)[1 if varies else 0]
            if rows != steps:
                raise ValueError(f"controls have {rows} rows for {steps} steps")

    def count_equations(self) -> int:
        """About so many array operations has what XLA would compile."""
        advance = jax.make_jaxpr(self.advance)(self.const_tree, self.carry_tree, self.control_tree)
        observe = jax.make_jaxpr(self.observe)(self.const_tree, self.carry_tree)
        return count_equations(advance.jaxpr) + count_equations(observe.jaxpr)

    def lower(self, budget: int = MAX_OPERATIONS) -> LoweredProgram:
        """The program of this problem; problems with the same functions and shapes share it."""
        trees = (self.const_tree, self.carry_tree, self.control_tree)
        leaves, structure = jax.tree.flatten(trees)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        key = (_hash_key(self.advance), _hash_key(self.observe), structure, shapes, budget)

        def trace() -> LoweredProgram:
            join: Any = getattr(self.observe, "join", None)
            return join(*trees, budget) if join else lower(self.advance, self.observe, *trees, budget=budget)

        found = _programs.get(key)
        if found is None:
            try:
                parts = (self.advance, self.observe, structure, shapes, budget, writing_limits())
                found = cached_program(parts, trace)
            except LoweringError as error:
                found = error
        _programs[key] = found
        with suppress(KeyError):  # another thread may have taken it out
            _programs.move_to_end(key)
            while len(_programs) > MAX_PROGRAMS:
                _programs.popitem(last=False)
                if next(_evictions) % EVICTIONS_PER_CLEARING == 0:
                    jax.clear_caches()  # type: ignore[no-untyped-call]  # JAX has no types
        if isinstance(found, LoweringError):
            raise found.with_traceback(None)
        return found


def make_problem(
    advance: Advance,
    observe: Observe,
    consts: Any,
    carry: Any,
    controls: Any = None,
    *,
    lanes: int | None = None,
    axes: Any = None,
) -> Problem:
    """Check and describe what is to be run; `controls` has one row for each step.

    With `lanes`, `axes` = (consts, carry) or (consts, carry, controls) says like `in_axes` of `jax.vmap` which leaves
    have a leading lane axis (by default the carry has).
    """
    if axes is None:
        axes = (None, None if lanes is None else 0)
    const_axes, carry_axes = lane_axes(consts, axes[0]), lane_axes(carry, axes[1])
    control_axes = lane_axes(controls, axes[2] if len(axes) > 2 else None)
    counts = lane_counts(consts, const_axes) | lane_counts(carry, carry_axes) | lane_counts(controls, control_axes)
    if lanes is not None:
        counts.add(lanes)
    if len(counts) > 1:
        raise ValueError(f"leaves disagree about the number of lanes: {sorted(counts)}")
    lanes = counts.pop() if counts else None
    return Problem(advance, observe, consts, carry, controls, lanes, const_axes, carry_axes, control_axes)


def _lane_specs(tree: Any, axes: list[bool]) -> Any:
    """The shapes and types that the leaves have in a single trajectory."""
    leaves, structure = jax.tree.flatten(tree)
    shapes = [np.shape(leaf)[1:] if varies else np.shape(leaf) for leaf, varies in zip(leaves, axes, strict=True)]
    specs = [shape_struct(shape, _type_of(leaf)) for shape, leaf in zip(shapes, leaves, strict=True)]
    return jax.tree.unflatten(structure, specs)


def _type_of(leaf: Any) -> Any:
    """The type of a leaf, as JAX has it; it does not know arrays of CuPy."""
    wide: bool = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # JAX makes its options when it runs
    known = wide and type(leaf) is np.ndarray and leaf.dtype in (np.float64, np.int64, np.bool_)
    return leaf.dtype if known or hasattr(leaf, "__cuda_array_interface__") else jnp.result_type(leaf)


_programs: OrderedDict[Any, LoweredProgram | LoweringError] = OrderedDict()
_evictions = itertools.count(1)


class _Identity:
    """Stands for an object that has no hash."""

    def __init__(self, it: Any):
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Identity) and self.it is other.it


def _hash_key(function: Any) -> Any:
    try:
        hash(function)
    except TypeError:
        return _Identity(function)
    return function


def make_layout(problem: Problem, lowered: LoweredProgram) -> Layout:
    """Which constants vary over lanes, and how records are laid out."""
    varying: list[bool] = []
    for leaf, varies in zip(jax.tree.leaves(problem.const_tree), problem.const_axes, strict=True):
        varying += [varies and problem.lanes is not None] * leaf.size
    varying += [False] * (lowered.inputs - len(varying))
    leaves = tuple(leaf.size for leaf in jax.tree.leaves(lowered.record))
    often = getattr(problem.observe, "often", False)
    return Layout(tuple(varying), any(problem.control_axes), leaves, single=problem.lanes is None, often=often)


class Buffers:
    """The words of a problem: constants shared and per lane, state, controls, records; with CuPy, on a GPU."""

    def __init__(self, problem: Problem, lowered: LoweredProgram, width: int, xp: Any = np):
        self.problem, self.lowered, self.xp = problem, lowered, xp
        self.stride = lane_stride(problem.lanes, width)
        pairs = list(zip(jax.tree.leaves(problem.consts), problem.const_axes, strict=True))
        shared = [leaf for leaf, varies in pairs if not varies] + lowered.captured
        varying = [leaf for leaf, varies in pairs if varies]
        self.shared = pack(shared, [False] * len(shared), 1, xp)
        self.varying = pack(varying, [True] * len(varying), self.stride, xp)
        leaves = zip(jax.tree.leaves(problem.carry), problem.carry_specs, strict=True)
        self.state = pack([xp.asarray(leaf, spec.dtype) for leaf, spec in leaves], problem.carry_axes, self.stride, xp)
        controls = jax.tree.leaves(problem.controls)
        packed = pack_controls(controls, problem.control_axes, self.stride, xp)
        self.controls, self.control_row, self.control_stride = packed
        self.capacity, self.records = 0, xp.empty(0, np.int64)

    def reserve(self, capacity: int) -> None:
        """Allocate memory for `capacity` records."""
        self.capacity = capacity
        self.records = self.xp.empty(capacity * self.lowered.words * self.stride, np.int64)

    def record_leaves(self, buffer: Any, capacity: int) -> list[Any]:
        """Views (capacity, size, lanes) of the recorded arrays in a buffer on the host or on a device."""
        views, start = [], 0
        for leaf in jax.tree.leaves(self.lowered.record):
            words = math.prod(leaf.shape) * capacity * self.stride
            views.append(buffer[start : start + words].reshape(capacity, math.prod(leaf.shape), self.stride))
            start += words
        return views

    def unpack_carry(self) -> Any:
        """The carry as the pytree that was given, lanes first."""
        lanes, leaves, row = self.problem.lanes, [], 0
        for spec in self.problem.carry_specs:
            size = math.prod(spec.shape)
            data = from_words(self.state[row : row + size], spec.dtype)
            row += size
            leaf = data[:, 0].reshape(spec.shape) if lanes is None else data[:, :lanes].T.reshape(lanes, *spec.shape)
            leaves.append(leaf.copy())
        return jax.tree.unflatten(jax.tree.structure(self.problem.carry), leaves)

    def unpack_records(self, count: int) -> Any:
        """The first `count` records, (count, ...) or (lanes, count, ...); views where the type is 8 bytes wide."""
        specs, structure = jax.tree.flatten(self.lowered.record)
        lanes, leaves = self.problem.lanes, []
        for spec, words in zip(specs, self.record_leaves(self.records, self.capacity), strict=True):
            data = from_words(words, spec.dtype).reshape(self.capacity, *spec.shape, self.stride)[:count]
            leaves.append(data[..., 0] if lanes is None else self.xp.moveaxis(data[..., :lanes], -1, 0))
        return jax.tree.unflatten(structure, leaves)
