"""The states of a run at any times: from the saved state before each, the method's own steps and a part of one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..integrators import Integrator, Reference
from ..kernels import evaluated, make_problem, run
from ..mechanics import State
from .events import StepStart, partial_step
from .loop import RunKernel, run_kernel
from .results import Record, Run

TIME_TOLERANCE = 1e-9
"""Times that miss the ends of a run by less than this share of a step belong to it."""


def states_at(trajectory: Run, times: Any, controls: Any = None) -> State:
    """See `Trajectory.at`."""
    wanted = np.asarray(times, float)
    flat, single = np.atleast_1d(wanted).ravel(), np.ndim(trajectory.final.status) == 0
    records = jax.tree.map(lambda leaf: np.asarray(leaf)[None] if single else np.asarray(leaf), trajectory.records)
    lanes = len(records.steps)
    lane, place = np.divmod(np.arange(lanes * flat.size), flat.size)
    t, h = flat[place], float(trajectory.step)
    row = _before(records.state.t, lane, t, h)
    inside = _inside(records.state.t[lane], t, h)
    if not np.all(inside.reshape(lanes, -1).any(axis=0)):
        low, high = np.sort([records.state.t.min(), records.state.t.max()])
        raise InvalidInput(f"the run goes from t = {low} to {high}; there is no state at t = {t[~inside][0]}")
    begin = jax.tree.map(lambda leaf: leaf[lane, row], records)
    index = begin.steps - records.steps[lane, 0]
    held = None if controls is None else jax.tree.map(np.asarray, controls)
    if single and isinstance(trajectory.integrator, Reference):
        found = _between_states(trajectory, begin.state, np.where(inside, t, begin.state.t), held, index)
    else:
        found = _by_steps(trajectory, begin, _parts(trajectory, records, lane, row, t), held, index, lane)
    found = jax.tree.map(lambda leaf: np.where(inside.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, np.nan), found)
    shape = wanted.shape if single else (lanes, *wanted.shape)
    return jax.tree.map(lambda leaf: leaf.reshape((*shape, *leaf.shape[1:])), found)


def _between_states(trajectory: Run, begin: State, t: np.ndarray, controls, index: np.ndarray) -> State:
    """The accurate motion from saved states to the times t, with the controls of each step on the way."""
    assert isinstance(trajectory.integrator, Reference)
    pick = lambda k: jax.tree.map(lambda leaf: leaf[k], begin)
    row = lambda k: jax.tree.map(lambda leaf: leaf[k], controls)
    flow, h = trajectory.integrator.flow(trajectory.system, pick(0)), float(trajectory.step)
    states = []
    for k, end in enumerate(t):
        state, number = pick(k), int(index[k])
        while controls is not None and (end - state.t) / h > 1.0:
            state, number = flow(state, float(state.t) + h, row(number)), number + 1
        u = None if controls is None else row(min(number, len(jax.tree.leaves(controls)[0]) - 1))
        states.append(flow(state, end, u) if end != state.t else state)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


def _by_steps(trajectory: Run, begin: Record, parts, held, index: np.ndarray, lane: np.ndarray) -> State:
    """The states that so many whole steps and a part of one lead to from the saved ones."""
    size, whole, part = parts
    pick = lambda leaf: np.asarray(leaf)[lane]
    system = jax.tree.map(pick, trajectory.system) if trajectory.batched else trajectory.system
    moment = StepStart(begin.state, begin.angles, 1.0 * begin.steps, size)
    if whole.any():
        moment = _stepped(trajectory, system, moment, whole, held, index)
    return _partial(trajectory, system, moment, part, held, index + whole)


def _before(saved: np.ndarray, lane: np.ndarray, t: np.ndarray, h: float) -> np.ndarray:
    """The number of the last saved state at or before each time."""
    forward = np.sign(h)
    rows = [np.searchsorted(forward * saved[k], forward * t[lane == k], side="right") - 1 for k in range(len(saved))]
    return np.clip(np.concatenate(rows), 0, saved.shape[1] - 1)


def _inside(saved: np.ndarray, t: np.ndarray, h: float) -> np.ndarray:
    margin = TIME_TOLERANCE * abs(h)
    return (saved.min(axis=1) - margin <= t) & (t <= saved.max(axis=1) + margin)


def _parts(trajectory: Run, records, lane, row, t) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(size of a step, whole steps, part of a step) from the saved state before each time to that time."""
    after = np.minimum(row + 1, records.steps.shape[1] - 1)
    gap = np.maximum(records.steps[lane, after] - records.steps[lane, row], 1)
    size = np.full(len(t), float(trajectory.step))
    if trajectory.integrator.clock:
        if gap.max() > 1:
            raise InvalidInput(
                "steps of several sizes between saved states are not known: save every state (save_every = 1)"
            )
        size = records.step_size[lane, after]
    span = (t - records.state.t[lane, row]) / size
    whole = np.clip(np.floor(span + TIME_TOLERANCE), 0, gap - 1)
    part = span - whole
    return size, whole.astype(int), np.where(np.abs(part) < TIME_TOLERANCE, 0.0, part)


@lru_cache(maxsize=256)
def _stepping(integrator: Integrator) -> RunKernel:
    """So many whole steps as a lane wants."""
    plain = run_kernel(integrator, False)

    def begin(consts, given):
        return plain.begin(consts, given)

    def advance(consts, given, u):
        loop, left = given
        new = plain.advance(consts, loop, u)
        return jax.tree.map(lambda a, b: jnp.where(left > 0.0, a, b), new, loop), left - 1.0

    def observe(consts, given):
        record = plain.observe(consts, given[0])
        return record.state, record.angles

    return RunKernel(begin, advance, observe)


def _stepped(trajectory: Run, system, moment: StepStart, whole, held, index) -> StepStart:
    """The moments after the whole steps."""
    lanes, most, batched = len(whole), int(whole.max()), 0 if trajectory.batched else None
    axes, consts, made = (batched, None), (system, trajectory.step), _stepping(trajectory.integrator)
    rows = index[:, None] + np.minimum(np.arange(most), np.maximum(whole - 1, 0)[:, None])
    u = jax.tree.map(lambda leaf: leaf[rows], held)
    first = jax.tree.map(lambda leaf: leaf[:, 0], u)
    given = evaluated(made.begin, consts, (moment.state, first), lanes=lanes, axes=(axes, 0)), 1.0 * whole
    described = make_problem(made.advance, made.observe, consts, given, u, lanes=lanes, axes=(axes, 0, 0))
    state, angles = run(described, saves=1, save_every=most, initial=True).records
    turned = angles[:, 1] - angles[:, 0]
    some = whole > 0
    end = jax.tree.map(lambda a, b: np.where(some.reshape(-1, *(1,) * (b.ndim - 1)), a[:, 1], b), state, moment.state)
    return StepStart(end, moment.angles + np.where(some[:, None], turned, 0.0), moment.steps + whole, moment.size)


@lru_cache(maxsize=256)
def _ending(integrator: Integrator):
    at = partial_step(integrator)

    def observe(system, given) -> State:
        moment, part, u = given
        here = part == 0.0
        state = at(system, moment, jnp.where(here, 1.0, part), u)[0].state
        return jax.tree.map(lambda a, b: jnp.where(here, b, a), state, moment.state)

    return observe


def _partial(trajectory: Run, system, moment: StepStart, part, held, index) -> State:
    """The states a part of a step after the moments."""
    if not part.any():
        return moment.state
    u = jax.tree.map(lambda leaf: leaf[np.minimum(index, len(leaf) - 1)], held)
    axes = (0 if trajectory.batched else None, 0)
    return evaluated(_ending(trajectory.integrator), system, (moment, part, u), lanes=len(part), axes=axes)
