"""Running: one trajectory or an ensemble, on any backend, saved, continued, with sensitivities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._input import array
from .accurate import reference_run
from .errors import InvalidInput, NumericalFailure
from .events import Event, named
from .integrators import Integrator, Reference
from .integrators.base import OK
from .kernels.pieces import Progress
from .kernels.run import Backend
from .loop import Functions, Loop, functions, lifted
from .members import gathered
from .run import Run
from .schedule import count_steps, first_row, held_controls, require_known_times, traced, whole
from .sensitivity import pair, tangent_tree
from .stepping import Plan, advanced, begun, travelled
from .system import MechanicalSystem, State

AHEAD = 4096
"""Steps that `steps_until` runs at a time."""


def simulate(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State | Run,
    *,
    step: float,
    steps: int | None = None,
    t_end: float | None = None,
    t0: float | None = None,
    save_every: int = 1,
    controls: Any = None,
    monitor: bool = False,
    backend: Backend = "auto",
    tangents: Callable | None = None,
    events: Sequence[Event] = (),
    progress: Progress | None = None,
) -> Run:
    """Integrate from `state`, or go on from a Run, with `steps` steps or up to `t_end`.

    `step` may be negative. `controls` is an array with one row (or pytree with one leaf row) a step, or a function of
    time, held constant over each step at its midpoint value. Every `save_every`-th state and the last one are saved.
    `monitor=True` keeps the extremes of energy error, constraint and group distance over all steps in `final.peaks`.
    `tangents` is a curve of problems, s -> (system, state, step), that passes through this one at s = 0: the derivative
    of every saved number along it comes back in `Trajectory.tangents`, at the speed of the backend.
    `events` are looked for after every step and located to round-off (see `Event`); what was found is `Trajectory.events`.
    Numerical failure is data: see `Trajectory.status` and `check`.
    """
    if integrator.clock and t_end is not None and steps is None:
        steps, t_end = steps_until(system, integrator, state, step=step, t_end=t_end, t0=t0, backend=backend), None
    steps = count_steps(step, steps, t_end, _clock(state, t0))
    whole("save_every", save_every)
    last = state if isinstance(state, Run) else None
    begin = _start(system, integrator, state, step, t0)
    require_known_times(integrator, controls)
    held = held_controls(controls, _clock(state, t0), step, steps)
    watch = _watch(events, system, begin, step, tangents)
    if isinstance(integrator, Reference):
        run = reference_run(system, integrator, begin, step, steps, save_every, held, watch)
        return replace(run, controlled=controls is not None)
    plan, parts = Plan(steps, save_every, held, backend, progress), functions(integrator, monitor)
    consts = (system, array(step))
    if tangents is not None:
        if last is not None:
            raise InvalidInput("tangents need a run from a state: a trajectory does not carry them")
        return _sensitive(plan, parts, tangents, integrator, consts, begin)
    loop = _goes_on(last, consts[1]) if last else begun(plan, parts, consts, (begin, first_row(held)))
    result, found = travelled(plan, integrator, monitor, consts, loop, watch)
    made = Run(
        system, integrator, consts[1], result.records, result.loop, result.backend, result.note, result.interrupted
    )
    return _truncated(replace(made, events=found, controlled=controls is not None))


def _start(system: MechanicalSystem, integrator: Integrator, state: State | Run, step, t0) -> State:
    """The state from which a run begins, checked."""
    if isinstance(state, Run):
        if t0 is not None or state.integrator != integrator:
            raise InvalidInput(
                "a trajectory goes on at its own time and with its own method; for others start from trajectory.last"
            )
        return state.last
    begin = state if t0 is None else state._replace(t=array(t0))
    if not traced((system, state, step)):
        integrator.require(system, begin, step)
    return begin


def _goes_on(last: Run, h: Array) -> Loop:
    """The loop of a run that is continued: another step counts from another origin."""
    loop = last.final
    moved = loop.carry.t - loop.steps * h
    return loop._replace(origin=jnp.where(h == last.step, loop.origin, moved))


def _watch(events: Sequence[Event], system, state: State, step, tangents=None) -> tuple[Event, ...]:
    """The events that a run looks for, checked."""
    if not events:
        return ()
    if tangents is not None or traced((system, state, step)):
        raise InvalidInput(
            "events are found outside of JAX transformations only, and without tangents: leave out one of the two"
        )
    return named(events, system, state)


def _sensitive(
    plan: Plan, plain: Functions, curve: Callable, integrator: Integrator, consts, state: State
) -> Run:
    """A run with its derivative along a curve of problems."""
    _, (d_system, d_state, d_step) = jax.jvp(curve, (0.0,), (1.0,))
    both, u = lifted(plain), first_row(plan.controls)
    consts_pair = pair(consts, (d_system, jnp.asarray(d_step, float)))
    given = pair((state, u), None)
    given = given._replace(slopes=[*pair(state, d_state).slopes, *pair(u, None).slopes])
    result = advanced(plan, both, consts_pair, begun(plan, both, consts_pair, given))
    records = result.records
    run = Run(consts[0], integrator, consts[1], records.value, result.loop.value, result.backend, result.note)
    return _truncated(replace(run, tangents=tangent_tree(records)))


def ensemble(
    system: MechanicalSystem | list[MechanicalSystem],
    integrator: Integrator,
    state: State | list[State],
    *,
    step: float,
    steps: int | None = None,
    t_end: float | None = None,
    save_every: int = 1,
    controls: Any = None,
    monitor: bool = False,
    backend: Backend = "auto",
    batched_system: bool = False,
    events: Sequence[Event] = (),
    progress: Progress | None = None,
) -> Run:
    """`simulate` over many members: `state` and/or `system` carry a leading axis (a list is stacked).

    A batched system is one whose leaves have that axis, as `jax.vmap(model)(parameters)` makes it: say so with
    `batched_system=True`. A member that fails stays at its last good state, one that an event stops at that event; the others
    go on. Arrays of the result have shape (members, saves, ...).
    """
    members = gathered(system, state, batched_system)
    if integrator.clock and t_end is not None:
        raise InvalidInput(
            f"the members of an ensemble by {integrator.name} reach t_end after different numbers of steps: give steps"
        )
    t0 = float(np.ravel(members.state.t)[0])
    steps = count_steps(step, steps, t_end, t0)
    whole("save_every", save_every)
    members.require(integrator, step)
    require_known_times(integrator, controls)
    held = held_controls(controls, t0, step, steps)
    batched, consts = members.systems_vary, (members.system, array(step))
    plan = Plan(steps, save_every, held, backend, progress, members.number, batched)
    varies = (0 if members.states_vary else None, None)
    loop = begun(plan, functions(integrator, monitor), consts, (members.state, first_row(held)), varies)
    watch = _watch(events, *members.one(0), step)
    result, found = travelled(plan, integrator, monitor, consts, loop, watch)
    made = Run(members.system, integrator, consts[1], result.records, result.loop, result.backend, result.note)
    return replace(made, interrupted=result.interrupted, batched=batched, events=found)


# -- methods with their own clock -----------------------------------------------------------------------------------------------
def steps_until(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State | Run,
    *,
    step: float,
    t_end: float,
    t0: float | None = None,
    backend: Backend = "auto",
) -> int:
    """The number of steps of a method with its own clock to the last state at or before `t_end`, found by running them."""
    count_steps(step, None, t_end, _clock(state, t0))
    done, part, begin = 0, state, t0
    while True:
        part = simulate(system, integrator, part, step=step, steps=AHEAD, t0=begin, backend=backend)
        begin, times = None, np.asarray(part.t)
        within = int(np.count_nonzero((t_end - times[1:]) * np.sign(step) >= -1e-9 * abs(step)))
        done += within
        if within < AHEAD:
            failing = part.status != "ok" and within == len(times) - 1  # the step that fails belongs to the run
            if done + failing == 0:
                raise InvalidInput(
                    f"t_end = {t_end} is not as far as the first step of {integrator.name} goes, {times[1]:.17g}"
                )
            return done + failing
        if times[-1] - times[0] == 0.0:
            raise NumericalFailure(
                f"the steps of {integrator.name} shrink to nothing at t = {times[-1]:.17g}, before t_end = {t_end:g}"
            )


def _clock(state, t0):
    """The time at which the run begins (None for traced times)."""
    t = t0 if t0 is not None else (state.t[-1] if isinstance(state, Run) else state.t)
    return t if traced(t) else float(t)


def _truncated(run: Run) -> Run:
    """The good part of a run that failed."""
    if traced(run.final.status) or int(run.final.status) == OK:
        return run
    good = max(1, int(np.count_nonzero(np.diff(np.asarray(run.records.steps), prepend=-1) > 0)))
    kept = jax.tree.map(lambda leaf: leaf[:good], (run.records, run.tangents))
    return replace(run, records=kept[0], tangents=kept[1])
