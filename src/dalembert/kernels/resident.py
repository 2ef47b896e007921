"""Many trajectories on a GPU by calls of one kind: their arguments lie there, and what they leave stays there.

What all calls of a kind have in common is found once, as `plans` does for one trajectory. A call is then the kernels of
a chain, which read the arguments where they lie, and a program of XLA that makes arrays of their records.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import cuda
from .execute import CHUNK_SECONDS, runs_natively
from .ir import LoweringError
from .plans import Leaf, flat_rows, keep_carry, lay_out, leaf_bytes
from .problem import Advance, Observe, Problem, lane_axes, make_layout, make_problem
from .whole import Watch

FIRST_STEPS = 16
"""Steps of all lanes from which the first call of a kind learns how long a step takes."""
MAX_CHAINS = 16
"""Chains held in memory; the one used least recently goes first."""

Leaves = Sequence[Any]


class LaneRun(NamedTuple):
    """What a chain leaves: its records, lanes first, how to get its last carry, and whether all lanes are well."""

    records: Any
    carry: Callable[[], Any]
    well: bool


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
class _Beginning:
    """(the carry that begins, whether the start is good) of a start and the control of the first step."""

    judge: Observe
    begin: Observe

    def __call__(self, consts: Any, given: Any) -> Any:
        return self.begin(consts, given), self.judge(consts, given[0])


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
        return LaneRun(self.steps.tree.unflatten(made), lambda: jax.tree.unflatten(tree, self.unpack(loop)), well)

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
            [np.asarray(leaf) for leaf, varies in zip(part, marks, strict=True) if not varies]
            for part, marks in zip(leaves, self.marks, strict=True)
        ]
        consts, start, rows = shared
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
        records = self._leaves(words, self.steps.record, self.begin.words, self.capacity)
        return words[: self.begin.words * self.lanes], records

    def _unpack(self, loop: Any) -> list[Any]:
        """The leaves of a carry."""
        return [leaf[:, 0] for leaf in self._leaves(loop, self.loop, 0, 1)]

    def _leaves(self, words: Any, specs: list[Leaf], begin: int, rows: int) -> list[Any]:
        lanes, made = self.lanes, []
        for before, size, shape, _, own in specs:
            place = (begin + rows * before) * lanes
            data = jnp.moveaxis(words[place : place + rows * size * lanes].reshape(rows, *shape, lanes), -1, 0)
            made.append(data if own == np.float64 else lax.bitcast_convert_type(data, np.int64).astype(own))
        return made


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
