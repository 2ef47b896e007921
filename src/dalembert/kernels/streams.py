"""Native loops whose rows lie anywhere: controls and records in arrays of their own, forwards and backwards.

A run forwards and the run of its transposed steps backwards read and write the same arrays, so nothing is copied,
joined or turned between them. What all numbers of one kind have in common is found once: a call costs microseconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from . import llvm
from .problem import Kernel, Problem, Stream, Streams, Words, from_words, make_layout, pack, to_words

Numbers = np.ndarray[Any, Any]

CALL_SECONDS = 0.05
"""Seconds that a call should take: a Ctrl-C waits so long."""
FIRST_STEPS = 4096
"""Steps of all lanes together in a call, until one was measured."""


class Rows(NamedTuple):
    """The rows of an array in the order of the steps: the address of the first, and the words from each to the next."""

    address: int
    words: int

    def turned(self, count: int) -> Rows:
        """The same `count` rows from the last to the first."""
        return Rows(self.address + 8 * (count - 1) * self.words, -self.words)

    def after(self, count: int) -> Rows:
        """Rows whose number `count` is the first of these."""
        return Rows(self.address - 8 * count * self.words, self.words)


class Piece(NamedTuple):
    """Some steps of a run: `records` records from number `first` on, with `every` steps before each."""

    first: int
    records: int
    every: int
    step: int  # number of the first step
    begins: bool = True  # whether the first step is the first of its record
    ends: bool = True  # whether the last step is the last of its record

    @property
    def steps(self) -> int:
        return self.records * self.every

    def turned(self, saves: int, steps: int) -> Piece:
        """The same steps, counted from the last one of the run."""
        record, step = saves - self.first - self.records, steps - self.step - self.steps
        return Piece(record, self.records, self.every, step, self.ends, self.begins)

    def split(self, most: int) -> Iterator[Piece]:
        """Parts of at most so many steps: whole records where they fit."""
        if self.steps <= most or self.every <= most:
            whole = max(1, most // max(1, self.every))
            for k in range(0, self.records, whole):
                first, last = k == 0, k + whole >= self.records
                part = Piece(self.first + k, min(whole, self.records - k), self.every, self.step + k * self.every)
                yield part._replace(begins=self.begins or not first, ends=self.ends or not last)
            return
        for k in range(self.records):
            for j in range(0, self.every, most):
                length, step = min(most, self.every - j), self.step + k * self.every + j
                begins, ends = j == 0 and (self.begins or k > 0), j + length == self.every
                yield Piece(self.first + k, 1, length, step, begins, ends and (self.ends or k < self.records - 1))


class StreamLoop:
    """The native code of a problem with streams, for all numbers of its shapes."""

    def __init__(self, problem: Problem, controls: Sequence[Stream], kept: Sequence[int] = (), once: bool = False):
        lowered = problem.lower()
        self.lanes, self.const_axes, self.carry_axes = problem.lanes, problem.const_axes, problem.carry_axes
        self.width = 1 if self.lanes is None or lowered.memory else llvm.best_width(self.lanes)
        self.stride = -(-(self.lanes or 1) // self.width) * self.width
        streams = Streams(tuple(controls), tuple(kept), self.lanes is not None, once)
        self.lowered, self.layout = (
            lowered,
            replace(make_layout(problem, lowered), controls_vary=False, streams=streams),
        )
        self.workers = llvm.Workers(self.stride, self.width)
        self.captured, self.kept = join_words(lowered.captured), len(kept)
        self.carry_specs, self.record_specs = problem.carry_specs, jax.tree.leaves(lowered.record)
        self.pace = CALL_SECONDS * self.stride / FIRST_STEPS  # seconds of a step: a guess, then as the last call went

    @cached_property
    def function(self) -> Kernel:
        """The native function, compiled when it is called first."""
        return llvm.native_function(self.lowered, self.layout, self.width)

    def constants(self, leaves: Sequence[Numbers]) -> tuple[Words, Words]:
        """The words of the constants that lanes share, and of the others."""
        pairs = list(zip(leaves, self.const_axes, strict=True))
        shared = [leaf for leaf, varies in pairs if not varies]
        varying = [leaf for leaf, varies in pairs if varies]
        return join_words(shared), pack(varying, [True] * len(varying), self.stride)

    def state(self, leaves: Sequence[Numbers]) -> Words:
        """The words of a carry."""
        given = [np.asarray(leaf, spec.dtype) for leaf, spec in zip(leaves, self.carry_specs, strict=True)]
        if self.lanes is None:
            return join_words(given).reshape(-1, 1)
        return pack(given, self.carry_axes, self.stride)

    def carry(self, state: Words) -> list[Numbers]:
        """The leaves of the carry that these words are, each with the lanes in front where there are any."""
        leaves, row = [], 0
        for spec in self.carry_specs:
            size = math.prod(spec.shape)
            leaves.append(self._leaf(state[row : row + size], spec))
            row += size
        return leaves

    def _leaf(self, words: Words, spec: Any) -> Numbers:
        data = from_words(words, spec.dtype)
        if self.lanes is None:
            return data[:, 0].reshape(spec.shape)
        return data[:, : self.lanes].T.reshape(self.lanes, *spec.shape)

    def control_rows(self, leaf: Any, varies: bool) -> Words:
        """The words of a control, (steps, scalars, lanes) or, where lanes share it, (steps, scalars, 1)."""
        words = np.ascontiguousarray(to_words(leaf))
        if not varies:
            return words.reshape(len(words), -1, 1)
        rows = words.shape[1]
        return pack([words.reshape(len(words), -1)], [True], self.stride).reshape(rows, -1, self.stride)

    def room(self, rows: int) -> list[Words]:
        """Memory for so many records."""
        return [np.empty((rows, math.prod(spec.shape), self.stride), np.int64) for spec in self.record_specs]

    def records(self, room: Sequence[Words]) -> list[Numbers]:
        """The leaves of records, (rows, ...) or (lanes, rows, ...)."""
        return [self.unpack(words, spec) for words, spec in zip(room, self.record_specs, strict=True)]

    def unpack(self, words: Words, spec: Any) -> Numbers:
        """The leaf that rows of words are."""
        data = from_words(words, spec.dtype).reshape(len(words), *spec.shape, words.shape[-1])
        return data[..., 0] if self.lanes is None else np.moveaxis(data[..., : self.lanes], -1, 0)

    def run(
        self, constants: tuple[Words, Words], state: Words, controls: Sequence[Rows], records: Sequence[Rows],
        piece: Piece, later: Sequence[Rows] | None = None,
    ) -> None:  # fmt: skip
        """Take the steps of a piece from the state, which they change.

        `controls` are for pieces at whose first step a record begins, `later` for others. `records` end with the rows
        of what is kept.
        """
        words = np.concatenate([constants[0], self.captured])
        shared, varying = words.ctypes.data, constants[1].ctypes.data
        given, made = np.array(controls, np.int64), np.array(records, np.int64)
        other = given if later is None else np.array(later, np.int64)
        function = self.function  # compiled before the clock starts
        for part in piece.split(max(1, int(CALL_SECONDS / self.pace))):
            table = given if part.begins else other
            pointers = (shared, varying, state.ctypes.data, table.ctypes.data, made.ctypes.data)
            counts, begin = (0, part.first, part.first + part.records, part.every), time.perf_counter()
            self.workers.call(function, pointers, counts, part.step)
            if part.steps:
                self.pace = max(1e-10, (time.perf_counter() - begin) / part.steps)


def join_words(leaves: Sequence[Any]) -> Words:
    """The words of leaves, one after the other."""
    parts = [to_words(leaf).ravel() for leaf in leaves]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
