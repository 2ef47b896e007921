"""How pytrees become the buffers that generated functions read and write.

All buffers hold 8-byte words (doubles, integers, booleans as 0 and 1), lanes fastest: consecutive lanes are consecutive
words, which is what vector loads and coalesced GPU accesses want.

What is to be run: two functions, their arguments, and which of these vary over lanes.

The buffers of a run, filled from its arguments and read back as its results.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .cache import Lowered, cached_program
from .ir import BUDGET, LoweringError
from .lowering import lower

POINTERS = ("shared", "varying", "state", "controls", "records")
COUNTS = ("capacity", "first", "last", "every", "stride", "begin", "end", "control_stride")
"""Arguments of every generated function: records first <= i < last of lanes begin <= lane < end, in buffers of `stride`
lanes; `capacity` records have room, each follows `every` steps."""
Function = Callable[..., None]
SIGNATURE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(POINTERS), *[ctypes.c_int64] * len(COUNTS))
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
"""The same, given the address of the words of all arguments."""
WORDS = struct.Struct(f"{len(POINTERS) + len(COUNTS)}q")
ABI = "dalembert-kernel-3"


@dataclass(frozen=True)
class Layout:
    """What the generated function must know of its buffers besides the program.

    All buffers hold 8-byte words, lanes fastest. `varying` says for each constant whether every lane has its own,
    `controls_vary` the same for the controls, `leaves` the sizes of the recorded arrays: leaf after leaf, each
    (records, size, lanes).
    """

    varying: tuple[bool, ...]
    controls_vary: bool
    leaves: tuple[int, ...]

    @property
    def offsets(self) -> list[tuple[int, int, int]]:
        """For each scalar of a record: (words before its leaf, size of its leaf, place in its leaf)."""
        result, before = [], 0
        for size in self.leaves:
            result += [(before, size, place) for place in range(size)]
            before += size
        return result


def axes_of(tree: Any, prefix: Any) -> list[bool]:
    """Whether each leaf of the tree carries a leading lane axis; `prefix` is 0, None or a prefix pytree of these."""

    def marks(axis: int | None, part: Any) -> list[bool]:
        if axis not in (0, None):
            raise ValueError("lanes lie along axis 0: axes are 0 or None")
        return [axis is not None] * len(jax.tree.leaves(part))

    return jax.tree.leaves(jax.tree.map(marks, prefix, tree, is_leaf=lambda node: node is None))


def lanes_of(leaves: Sequence[Any], axes: Sequence[bool]) -> set[int]:
    """The numbers of lanes the leaves have (one, if all is well)."""
    for leaf, varies in zip(leaves, axes, strict=True):
        if varies and not np.ndim(leaf):
            raise ValueError("a scalar has no lane axis")
    return {np.shape(leaf)[0] for leaf, varies in zip(leaves, axes, strict=True) if varies}


def one_lane(leaf: Any, varies: bool) -> jax.ShapeDtypeStruct:
    """The shape and type a leaf has in a single trajectory."""
    shape = np.shape(leaf)[1:] if varies else np.shape(leaf)
    return jax.ShapeDtypeStruct(shape, jnp.result_type(leaf))


def words(leaf: Any) -> np.ndarray:
    """The leaf as 8-byte words of the same shape."""
    data = np.asarray(leaf)
    if data.dtype == np.float64:
        return np.ascontiguousarray(data).view(np.int64).reshape(data.shape)
    if data.dtype.kind in "iub":
        return data.astype(np.int64)
    raise LoweringError(f"no 8-byte words for {data.dtype}")


def from_words(data: np.ndarray, dtype: Any) -> np.ndarray:
    """Words as numbers of the given type, without a copy where the type is 8 bytes wide."""
    dtype = np.dtype(dtype)
    return data.view(dtype) if dtype.itemsize == 8 else data.astype(dtype)


def pack(leaves: Sequence[Any], axes: Sequence[bool], stride: int) -> np.ndarray:
    """Leaves as a (scalars, stride) buffer; lanes beyond the last repeat it and so add no work of their own."""
    rows = []
    for leaf, varies in zip(leaves, axes, strict=True):
        data = words(leaf)
        row = data.reshape(data.shape[0], -1).T if varies else data.reshape(-1, 1)
        rows.append(row[:, np.minimum(np.arange(stride), row.shape[1] - 1)])
    return np.ascontiguousarray(np.concatenate(rows)) if rows else np.empty((0, stride), np.int64)


def unpack(buffer: np.ndarray, specs: Sequence[jax.ShapeDtypeStruct], lanes: int | None) -> list[np.ndarray]:
    """The leaves in a (scalars, stride) buffer, with a leading lane axis if there are lanes."""
    leaves, row = [], 0
    for spec in specs:
        size = math.prod(spec.shape)
        data = from_words(buffer[row : row + size], spec.dtype)
        row += size
        one = data[:, 0].reshape(spec.shape) if lanes is None else data[:, :lanes].T.reshape(lanes, *spec.shape)
        leaves.append(one.copy())
    return leaves


def unpack_records(
    buffer: np.ndarray, specs: Sequence[jax.ShapeDtypeStruct], capacity: int, count: int, stride: int, lanes: int | None
) -> list[np.ndarray]:
    """The first `count` records, (count, ...) for one trajectory, (lanes, count, ...) for lanes; views if possible."""
    leaves, start = [], 0
    for spec in specs:
        size = math.prod(spec.shape) * capacity * stride
        data = from_words(buffer[start : start + size], spec.dtype).reshape(capacity, *spec.shape, stride)[:count]
        start += size
        leaves.append(data[..., 0] if lanes is None else np.moveaxis(data[..., :lanes], -1, 0))
    return leaves


@dataclass
class Problem:
    """advance(consts, loop, u) -> loop and observe(consts, loop) -> record with concrete arguments."""

    advance: Callable
    observe: Callable
    consts: Any
    loop: Any
    controls: Any
    lanes: int | None
    const_axes: list[bool]
    loop_axes: list[bool]
    control_axes: list[bool]

    @cached_property
    def const_tree(self) -> Any:
        """The shapes of the constants of one lane."""
        return _specs(self.consts, self.const_axes)

    @cached_property
    def loop_tree(self) -> Any:
        """The shapes of the loop of one lane."""
        return _specs(self.loop, self.loop_axes)

    @cached_property
    def loop_specs(self) -> list[jax.ShapeDtypeStruct]:
        """The leaves of `loop_tree`."""
        return jax.tree.leaves(self.loop_tree)

    @property
    def control_tree(self) -> Any:
        """The control of one step."""
        rows = _specs(self.controls, self.control_axes)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)

    def require_steps(self, steps: int) -> None:
        """Refuse controls that have not one row a step."""
        for leaf, varies in zip(jax.tree.leaves(self.controls), self.control_axes, strict=True):
            given = np.shape(leaf)[1 if varies else 0]
            if given != steps:
                raise ValueError(f"controls have {given} rows for {steps} steps")

    def lowered(self, budget: int = BUDGET) -> Lowered:
        """The program of this problem, kept for all problems with the same functions and shapes."""
        trees = (self.const_tree, self.loop_tree, self.control_tree)
        leaves, structure = jax.tree.flatten(trees)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        key = (_hashable(self.advance), _hashable(self.observe), structure, shapes, budget)

        def trace() -> Lowered:
            return lower(self.advance, self.observe, *trees, budget=budget)

        return _remembered(key, lambda: cached_program((self.advance, self.observe, structure, shapes, budget), trace))


def make_problem(
    advance: Callable,
    observe: Callable,
    consts: Any,
    loop: Any,
    controls: Any = None,
    *,
    lanes: int | None = None,
    axes: Any = None,
) -> Problem:
    """Check and describe what is to be run; `controls` holds u for every step.

    With `lanes`, `axes` = (consts, loop) or (consts, loop, controls) says like `in_axes` of vmap which leaves have a leading lane
    axis (default: the loop has).
    """
    if axes is None:
        axes = (None, None if lanes is None else 0)
    const_axes, loop_axes = axes_of(consts, axes[0]), axes_of(loop, axes[1])
    control_axes = axes_of(controls, axes[2] if len(axes) > 2 else None)
    found = (
        lanes_of(jax.tree.leaves(consts), const_axes)
        | lanes_of(jax.tree.leaves(loop), loop_axes)
        | lanes_of(jax.tree.leaves(controls), control_axes)
    )
    if lanes is not None:
        found.add(lanes)
    if len(found) > 1:
        raise ValueError(f"leaves disagree about the number of lanes: {sorted(found)}")
    lanes = found.pop() if found else None
    return Problem(advance, observe, consts, loop, controls, lanes, const_axes, loop_axes, control_axes)


def _specs(tree: Any, axes: list[bool]) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [one_lane(leaf, varies) for leaf, varies in zip(leaves, axes, strict=True)])


# ---- programs in memory

_programs: OrderedDict[Any, Lowered | LoweringError] = OrderedDict()
REMEMBERED = 128


class _Identity:
    """Stands for an object that has no hash."""

    def __init__(self, it: Any):
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Identity) and self.it is other.it


def _hashable(function: Any) -> Any:
    try:
        hash(function)
    except TypeError:
        return _Identity(function)
    return function


def _remembered(key: Any, build: Callable[[], Lowered]) -> Lowered:
    if key not in _programs:
        try:
            _programs[key] = build()
        except LoweringError as error:
            _programs[key] = error
        if len(_programs) > REMEMBERED:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    found = _programs[key]
    if isinstance(found, LoweringError):
        raise found
    return found


def layout_of(problem: Problem, lowered: Lowered) -> Layout:
    """Which constants vary over lanes, and how records are laid out."""
    varying: list[bool] = []
    for leaf, varies in zip(jax.tree.leaves(problem.const_tree), problem.const_axes, strict=True):
        varying += [varies and problem.lanes is not None] * leaf.size
    varying += [False] * (lowered.inputs - len(varying))
    leaves = tuple(leaf.size for leaf in jax.tree.leaves(lowered.record))
    return Layout(tuple(varying), any(problem.control_axes), leaves)


class Buffers:
    """The words of a problem: constants shared and per lane, state, controls, records."""

    def __init__(self, problem: Problem, lowered: Lowered, width: int):
        self.problem, self.lowered = problem, lowered
        self.stride = -(-(problem.lanes or 1) // width) * width
        consts = jax.tree.leaves(problem.consts)
        pairs = list(zip(consts, problem.const_axes, strict=True))
        fixed = [leaf for leaf, varies in pairs if not varies] + lowered.captured
        own = [leaf for leaf, varies in pairs if varies]
        self.shared = pack(_typed(fixed), [False] * len(fixed), 1)
        self.varying = pack(_typed(own), [True] * len(own), self.stride)
        specs = problem.loop_specs
        loop = [np.asarray(leaf, spec.dtype) for leaf, spec in zip(jax.tree.leaves(problem.loop), specs, strict=True)]
        self.state = pack(loop, problem.loop_axes, self.stride)
        self.controls, self.control_row, self.control_stride = self._pack_controls()
        self.capacity, self.records = 0, np.empty(0, np.int64)

    def _pack_controls(self) -> tuple[np.ndarray, int, int]:
        """Controls as (steps, scalars, lanes) words, the words of a step, and the lanes (1 where all share them)."""
        leaves, axes = jax.tree.leaves(self.problem.controls), self.problem.control_axes
        if not leaves:
            return np.empty(0, np.int64), 0, 1
        stride = self.stride if any(axes) else 1
        blocks = []
        for leaf, varies in zip(_typed(leaves), axes, strict=True):
            rows = leaf if varies else leaf[None]
            rows = pack([rows.reshape(len(rows), -1)], [True], stride)
            blocks.append(rows.reshape(leaf.shape[1 if varies else 0], -1, stride))
        words = np.ascontiguousarray(np.concatenate(blocks, 1))
        return words, words.shape[1] * stride, stride

    def reserve(self, capacity: int) -> None:
        """Room for so many records."""
        self.capacity = capacity
        self.records = np.empty(capacity * self.lowered.words * self.stride, np.int64)

    def record_leaves(self, room: Any, capacity: int) -> list[Any]:
        """Views (capacity, size, lanes) of the recorded arrays in a buffer on the host or on a device."""
        views, start = [], 0
        for leaf in jax.tree.leaves(self.lowered.record):
            words = math.prod(leaf.shape) * capacity * self.stride
            views.append(room[start : start + words].reshape(capacity, math.prod(leaf.shape), self.stride))
            start += words
        return views

    def unpack_loop(self) -> Any:
        """The loop as the pytree that was given."""
        leaves = unpack(self.state, self.problem.loop_specs, self.problem.lanes)
        return jax.tree.unflatten(jax.tree.structure(self.problem.loop), leaves)

    def unpack_records(self, count: int) -> Any:
        """The first `count` records, with the saves as the first axis (after the lanes)."""
        specs, structure = jax.tree.flatten(self.lowered.record)
        leaves = unpack_records(self.records, specs, self.capacity, count, self.stride, self.problem.lanes)
        return jax.tree.unflatten(structure, leaves)


def _typed(leaves: list[Any]) -> list[np.ndarray]:
    """Leaves as arrays of the types JAX gives them (a Python number is a 64-bit one)."""
    return [np.asarray(leaf) for leaf in leaves]
