"""The buffers of a run, filled from its arguments and read back as its results."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from .known import Lowered
from .layout import Layout, pack, unpack, unpack_records
from .problem import Problem


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
            views.append(room[start:start + words].reshape(capacity, math.prod(leaf.shape), self.stride))
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
