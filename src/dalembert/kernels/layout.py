"""How pytrees become the buffers that generated functions read and write.

All buffers hold 8-byte words (doubles, integers, booleans as 0 and 1), lanes fastest: consecutive lanes are consecutive
words, which is what vector loads and coalesced GPU accesses want.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .program import LoweringError

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
        data = from_words(buffer[row:row + size], spec.dtype)
        row += size
        one = data[:, 0].reshape(spec.shape) if lanes is None else data[:, :lanes].T.reshape(lanes, *spec.shape)
        leaves.append(one.copy())
    return leaves


def unpack_records(buffer: np.ndarray, specs: Sequence[jax.ShapeDtypeStruct], capacity: int, count: int, stride: int,
                   lanes: int | None) -> list[np.ndarray]:
    """The first `count` records, (count, ...) for one trajectory, (lanes, count, ...) for lanes; views if possible."""
    leaves, start = [], 0
    for spec in specs:
        size = math.prod(spec.shape) * capacity * stride
        data = from_words(buffer[start:start + size], spec.dtype).reshape(capacity, *spec.shape, stride)[:count]
        start += size
        leaves.append(data[..., 0] if lanes is None else np.moveaxis(data[..., :lanes], -1, 0))
    return leaves
