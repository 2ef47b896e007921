"""The portable backend: the same step under `lax.scan` and `vmap`, differentiable, and the fallback of the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .problem import Problem

LIMIT = 1024
"""Records of one call, so that a run of any length compiles once."""


def scan(
    advance: Callable,
    observe: Callable,
    consts: Any,
    loop: Any,
    controls: Any = None,
    *,
    saves: int,
    save_every: int = 1,
) -> tuple[Any, Any]:
    """(final loop, records) of one trajectory as a traceable function: reverse mode goes through it.

    `controls` leaves have shape (saves * save_every, ...), the records (saves, ...).
    """
    grouped = jax.tree.map(lambda leaf: jnp.reshape(leaf, (saves, save_every, *jnp.shape(leaf)[1:])), controls)

    def step(carry: Any, control: Any) -> tuple[Any, None]:
        return advance(consts, carry, control), None

    def block(carry: Any, block_controls: Any) -> tuple[Any, Any]:
        carry, _ = lax.scan(step, carry, block_controls, length=save_every)
        return carry, observe(consts, carry)

    return lax.scan(block, jax.tree.map(jnp.asarray, loop), grouped, length=saves)


def traced(problem: Problem, saves: int, save_every: int, initial: bool = False) -> tuple[Any, Any]:
    """`scan` over the lanes of a problem: (final loop, records), lanes first; `initial` records the given loop too."""

    def function(consts: Any, loop: Any, controls: Any) -> tuple[Any, Any]:
        final, records = scan(
            problem.advance, problem.observe, consts, loop, controls, saves=saves, save_every=save_every
        )
        if initial:
            first = problem.observe(consts, loop)
            records = jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b]), first, records)
        return final, records

    if problem.lanes is None:
        return function(problem.consts, problem.loop, problem.controls)
    marks = [
        jax.tree.unflatten(jax.tree.structure(tree), [0 if varies else None for varies in axes])
        for tree, axes in (
            (problem.consts, problem.const_axes),
            (problem.loop, problem.loop_axes),
            (problem.controls, problem.control_axes),
        )
    ]
    return jax.vmap(function, in_axes=tuple(marks), axis_size=problem.lanes)(
        problem.consts, problem.loop, problem.controls
    )


@partial(jax.jit, static_argnames=("advance", "observe", "axes", "capacity"))
def _block(
    advance: Callable,
    observe: Callable,
    axes: Any,
    capacity: int,
    consts: Any,
    loop: Any,
    controls: Any,
    count: Any,
    every: Any,
) -> tuple[Any, Any]:
    """`count` records, each after `every` steps; both are run-time numbers, so one compilation serves a whole run."""
    if axes is not None:
        in_axes = jax.tree.unflatten(jax.tree.structure((consts, loop, controls)), axes)
        advance = jax.vmap(advance, in_axes=in_axes)
        observe = jax.vmap(observe, in_axes=in_axes[:2])
    shapes = jax.eval_shape(observe, consts, loop)
    room = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), shapes)

    def control(step: Any) -> Any:
        return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, step, keepdims=False), controls)

    def save(i: Any, carry: Any) -> Any:
        loop, records = carry
        loop = lax.fori_loop(0, every, lambda k, now: advance(consts, now, control(i * every + k)), loop)
        return loop, jax.tree.map(lambda kept, new: kept.at[i].set(new), records, observe(consts, loop))

    return lax.fori_loop(0, count, save, (loop, room))


class XlaSession:
    """A run in pieces on whatever device JAX uses."""

    name = "xla"

    def __init__(self, problem: Problem):
        self.problem = problem
        lanes = problem.lanes
        loop = jax.tree.leaves(problem.loop)
        if lanes is not None:
            loop = [
                jnp.asarray(leaf) if varies else jnp.broadcast_to(leaf, (lanes, *np.shape(leaf)))
                for leaf, varies in zip(loop, problem.loop_axes, strict=True)
            ]
        loop = [jnp.asarray(leaf, spec.dtype) for leaf, spec in zip(loop, problem.loop_specs, strict=True)]
        self.state = jax.tree.unflatten(jax.tree.structure(problem.loop), loop)
        # axis 0 of a control is the step; the lanes, where there are any, follow it
        self.controls = jax.tree.unflatten(
            jax.tree.structure(problem.controls),
            [
                np.moveaxis(np.asarray(leaf), 0, 1) if varies else np.asarray(leaf)
                for leaf, varies in zip(jax.tree.leaves(problem.controls), problem.control_axes, strict=True)
            ],
        )
        self.axes: tuple | None = None
        if lanes is not None:
            self.axes = tuple(
                0 if varies else None for varies in (*problem.const_axes, *[True] * len(loop), *problem.control_axes)
            )
        record = jax.eval_shape(problem.observe, problem.const_tree, problem.loop_tree)
        words = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(record)) * (lanes or 1)
        self.limit = max(1, min(LIMIT, (1 << 22) // max(words, 1)))
        self.record = record
        self.host: list[np.ndarray] = []

    def reserve(self, capacity: int) -> None:
        front = (capacity,) if self.problem.lanes is None else (capacity, self.problem.lanes)
        self.host = [np.empty((*front, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(self.record)]

    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        controls, total = self.controls, count * every
        if jax.tree.leaves(controls):
            controls = jax.tree.map(
                lambda leaf: _padded(leaf[step : step + total], self.limit * max(every, 1)), controls
            )
        self.state, records = _block(
            self.problem.advance,
            self.problem.observe,
            self.axes,
            self.limit,
            self.problem.consts,
            self.state,
            controls,
            count,
            every,
        )
        for kept, new in zip(self.host, jax.tree.leaves(records), strict=True):
            kept[first : first + count] = np.asarray(new)[:count]

    def records(self, count: int) -> Any:
        leaves = [kept[:count] for kept in self.host]
        if self.problem.lanes is not None:
            leaves = [np.moveaxis(leaf, 1, 0) for leaf in leaves]
        return jax.tree.unflatten(jax.tree.structure(self.record), leaves)

    def loop(self) -> Any:
        return jax.tree.map(np.asarray, self.state)

    def save_state(self) -> Any:
        return self.state

    def restore_state(self, state: Any) -> None:
        self.state = state


def _padded(leaf: np.ndarray, length: int) -> np.ndarray:
    """The leaf with zeros appended, so that the last piece of a run has the shape of the others."""
    return np.concatenate([leaf, np.zeros((length - len(leaf), *leaf.shape[1:]), leaf.dtype)])
