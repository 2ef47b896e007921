"""The states of a run at any times: from the saved state before each, the method's own steps and a part of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..integrators import Integrator
from ..kernels import evaluate, make_problem, run_problem
from ..mechanics import MechanicalSystem, State
from .events import StepStart, partial_step
from .loop import TIME_TOLERANCE, Constants, RunKernel, run_kernel
from .results import Numbers, Record, Run


def states_at(run: Run, times: Any) -> State:
    """Return the states of a run at any times within it; see `Trajectory.at`."""
    wanted = np.asarray(times, float)
    flat, single = np.atleast_1d(wanted).ravel(), np.ndim(run.final.status) == 0
    records: Record = jax.tree.map(lambda leaf: np.asarray(leaf)[None] if single else np.asarray(leaf), run.records)
    saved, lanes, h = np.asarray(records.state.t), len(records.steps), float(run.step)
    lane, place = np.divmod(np.arange(lanes * flat.size), flat.size)
    t, forward, margin = flat[place], np.sign(h), TIME_TOLERANCE * abs(h)
    rows = [np.searchsorted(forward * saved[k], forward * t[lane == k], side="right") - 1 for k in range(lanes)]
    row = np.clip(np.concatenate(rows), 0, saved.shape[1] - 1)  # the last saved state at or before each time
    inside = (saved[lane].min(axis=1) - margin <= t) & (t <= saved[lane].max(axis=1) + margin)
    if not np.all(inside.reshape(lanes, -1).any(axis=0)):
        low, high = np.sort([saved.min(), saved.max()])
        raise InvalidInput(f"the run goes from t = {low} to {high}; there is no state at t = {t[~inside][0]}")
    first: Record = jax.tree.map(lambda leaf: leaf[lane, row], records)
    index = np.asarray(first.steps - records.steps[lane, 0])
    held = jax.tree.map(np.asarray, run.held_controls())
    system = jax.tree.map(lambda leaf: np.asarray(leaf)[lane], run.system) if run.batched else run.system
    size, count, part = _steps_between(run, records, lane, row, t)
    start = StepStart(first.state, first.angles, 1.0 * first.steps, size)
    if count.any():
        start = _advance_whole_steps(run, system, start, count, held, index)
    state = start.state
    if part.any():
        u = jax.tree.map(lambda leaf: leaf[np.minimum(index + count, len(leaf) - 1)], held)
        axes = (0 if run.batched else None, 0)
        state = evaluate(_partial_state(run.integrator), system, (start, part, u), lanes=len(part), axes=axes)
    state = jax.tree.map(lambda leaf: np.where(inside.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, np.nan), state)
    shape = wanted.shape if single else (lanes, *wanted.shape)
    found: State = jax.tree.map(lambda leaf: leaf.reshape((*shape, *leaf.shape[1:])), state)
    return found


def _steps_between(
    run: Run, records: Record, lane: Numbers, row: Numbers, t: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Return (size of a step, whole steps, part of a step) from the saved state before each time to that time."""
    after = np.minimum(row + 1, records.steps.shape[1] - 1)
    gap = np.maximum(records.steps[lane, after] - records.steps[lane, row], 1)
    size = np.full(len(t), float(run.step))
    if run.integrator.variable_step:
        if gap.max() > 1:
            raise InvalidInput(
                "steps of several sizes between saved states are not known: save every state (save_every = 1)"
            )
        assert records.step_size is not None
        size = np.asarray(records.step_size[lane, after])
    span = (t - np.asarray(records.state.t)[lane, row]) / size
    count = np.clip(np.floor(span + TIME_TOLERANCE), 0, gap - 1)
    part = span - count
    return size, count.astype(int), np.where(np.abs(part) < TIME_TOLERANCE, 0.0, part)


def _advance_whole_steps(
    run: Run, system: MechanicalSystem, start: StepStart, count: Numbers, held: Any, index: Numbers
) -> StepStart:
    """Return where the steps begin in which the times lie."""
    lanes, most = len(count), int(count.max())
    axes, consts, kernel = (0 if run.batched else None, None), (system, run.step), _counted_kernel(run.integrator)
    rows = index[:, None] + np.minimum(np.arange(most), np.maximum(count - 1, 0)[:, None])
    u = jax.tree.map(lambda leaf: leaf[rows], held)
    first = jax.tree.map(lambda leaf: leaf[:, 0], u)
    loop = evaluate(kernel.begin, consts, (start.state, first), lanes=lanes, axes=(axes, 0)), 1.0 * count
    problem = make_problem(kernel.advance, kernel.observe, consts, loop, u, lanes=lanes, axes=(axes, 0, 0))
    state, angles = run_problem(problem, saves=1, save_every=most, initial=True).records
    some = count > 0
    end = jax.tree.map(lambda a, b: np.where(some.reshape(-1, *(1,) * (b.ndim - 1)), a[:, 1], b), state, start.state)
    turned = np.where(some[:, None], angles[:, 1] - angles[:, 0], 0.0)
    return StepStart(end, start.angles + turned, start.steps + count, start.size)


@lru_cache(maxsize=256)
def _counted_kernel(integrator: Integrator) -> RunKernel:
    """Return the loop that advances each lane by its own number of steps."""
    kernel = run_kernel(integrator, False)

    def advance(consts: Constants, given: Any, u: Any) -> Any:
        loop, left = given
        new = kernel.advance(consts, loop, u)
        return jax.tree.map(lambda a, b: jnp.where(left > 0.0, a, b), new, loop), left - 1.0

    def observe(consts: Constants, given: Any) -> Any:
        record = kernel.observe(consts, given[0])
        return record.state, record.angles

    return RunKernel(kernel.begin, advance, observe)


@lru_cache(maxsize=256)
def _partial_state(integrator: Integrator) -> Callable[..., Any]:
    """Return (system, (start, part, u)) -> the state a part of a step after its start; a part of 0 is the start."""
    at = partial_step(integrator)

    def observe(system: MechanicalSystem, given: Any) -> Any:
        start, part, u = given
        here = part == 0.0
        state = at(system, start, jnp.where(here, 1.0, part), u)[0].state
        return jax.tree.map(lambda a, b: jnp.where(here, b, a), state, start.state)

    return observe
