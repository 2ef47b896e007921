"""The portable back end: the same step under `lax.scan` and `vmap`, differentiable, and the fallback of the others."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .problem import Advance, Observe, Problem

MAX_CALL_RECORDS = 1024
"""Records of one call, so that a run of any length compiles once."""
MAX_CALL_WORDS = 1 << 22
"""Words of the records of one call."""


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
