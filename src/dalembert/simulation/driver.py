"""The members of an ensemble: many states, many systems, or both, along a leading axis.

A run on a backend: its start, its steps with a record after every few of them, and the events on the way.

The runs of the reference method: SciPy's accurate motion in the form of any other run, with its events.

Running: one trajectory or an ensemble, on any backend, saved, continued, with sensitivities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, NumericalFailure
from ..integrators import NOT_FINITE, OK, Integrator, Reference
from ..kernels import Backend, NoteReader, Progress, RunResult, evaluated, make_problem, run
from ..mechanics import MechanicalSystem, State
from ..numerics import array
from .events import (
    JUMP_SHARE,
    START_TOLERANCE,
    Event,
    Located,
    NoteLog,
    check_events,
    crossings_by_event,
    event_kernel,
    find_crossings,
    note_buffer,
    restart_at_event,
    truncate_at_stops,
)
from .loop import (
    LoopState,
    Peaks,
    RunKernel,
    count_steps,
    first_controls,
    held_controls,
    make_dual,
    positive_int,
    require_backend,
    require_known_times,
    run_kernel,
    tangent_tree,
    traced,
    update_peaks,
    with_tangents,
)
from .results import Crossings, Record, Run


@dataclass(frozen=True)
class Members:
    """A system and a state, of which those that are said to vary have a leading axis."""

    system: MechanicalSystem
    state: State
    systems_vary: bool
    states_vary: bool

    @property
    def number(self) -> int:
        """How many there are."""
        return jax.tree.leaves(self.state if self.states_vary else self.system)[0].shape[0]

    def one(self, k: int) -> tuple[MechanicalSystem, State]:
        """The system and the state of member k."""
        pick = lambda tree, varies: jax.tree.map(lambda leaf: leaf[k], tree) if varies else tree
        return pick(self.system, self.systems_vary), pick(self.state, self.states_vary)

    def require(self, integrator: Integrator, step) -> None:
        """The checks of a single run on the member that is farthest off D, and equal numbers of members."""
        if traced((self.system, self.state)):
            return
        sizes = {leaf.shape[0] for leaf in jax.tree.leaves(self.system)} if self.systems_vary else set()
        sizes |= {leaf.shape[0] for leaf in jax.tree.leaves(self.state)} if self.states_vary else set()
        if len(sizes) != 1:
            raise InvalidInput(f"the members disagree in number: leading axes {sorted(sizes)}")
        axes = (0 if self.systems_vary else None, 0 if self.states_vary else None)
        off = np.asarray(jax.jit(jax.vmap(_off, in_axes=axes))(self.system, self.state))
        worst = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
        integrator.require(*self.one(worst), step)


def stack_members(system: MechanicalSystem | list, state: State | list, batched_system: bool) -> Members:
    """The members that an `ensemble` is given: lists are stacked."""
    systems: MechanicalSystem = _stack(system, "systems") if isinstance(system, list) else system
    states: State = _stack(state, "states") if isinstance(state, list) else state
    members = Members(systems, states, batched_system or isinstance(system, list), states.xi.ndim == 2)
    if not (members.systems_vary or members.states_vary):
        raise InvalidInput(
            "an ensemble needs a leading axis on the states (state.xi of shape (members, n)) or batched systems; for one run use simulate"
        )
    return members


def _off(system: MechanicalSystem, state: State) -> Array:
    off = jnp.concatenate([system.residual(state.t, state.g, state.xi), system.phi(state.t, state.g)])
    return jnp.max(jnp.abs(off), initial=0.0) + 0.0 * jnp.sum(state.xi)


def _stack(items: list, what: str):
    if not items or len({jax.tree.structure(item) for item in items}) != 1:
        raise InvalidInput(
            f"the {what} of an ensemble must be of one kind (same group, functions and parameter structure), and at least one"
        )
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]), *items)


@dataclass(frozen=True)
class Schedule:
    """How far a run goes: `steps` steps, a record after every `save_every` of them, with `controls` of one row a step.

    With `lanes`, so many members go together; `batched`: each has a system of its own.
    """

    steps: int
    save_every: int
    controls: Any
    backend: Backend
    progress: Progress | None = None
    lanes: int | None = None
    batched: bool = False

    def axes(self, *others: Any) -> Any:
        """Which of the constants (system, h), and of what comes after them, vary over the lanes."""
        return None if self.lanes is None else ((0 if self.batched else None, None), *others)


def initial_loop(plan: Schedule, parts: RunKernel, consts, given, varies: Any = 0) -> Any:
    """The loop before the first step; `varies` says which of `given` the lanes have each for themselves."""
    require_backend(plan.backend)
    return evaluated(parts.begin, consts, given, lanes=plan.lanes, axes=plan.axes(varies), backend=plan.backend)


def run_steps(plan: Schedule, parts: RunKernel, consts, loop, read: NoteReader | None = None) -> RunResult:
    """The steps of a plan; a remainder of less than `save_every` ends with a record too."""
    saves, rest = divmod(plan.steps, plan.save_every)
    done: list[RunResult] = []
    for count, stride, offset in ((saves, plan.save_every, 0), (1 if rest else 0, rest, saves * plan.save_every)):
        if count and not (done and done[-1].saves < saves):  # interrupted, or all lanes stopped
            held = jax.tree.map(lambda leaf: leaf[offset : offset + count * stride], plan.controls)
            described = make_problem(
                parts.advance, parts.observe, consts, loop, held, lanes=plan.lanes, axes=plan.axes(0)
            )
            options: dict[str, Any] = {"backend": plan.backend, "progress": plan.progress, "read": read}
            done.append(run(described, saves=count, save_every=stride, initial=not done, **options))
            loop = done[-1].loop
    joined = jax.tree.map(
        lambda *leaves: _join(leaves, 0 if plan.lanes is None else 1), *[each.records for each in done]
    )
    return replace(done[-1], records=joined, note=done[0].note)


def run_with_events(
    plan: Schedule, integrator: Integrator, monitor: bool, consts, loop: LoopState, events: tuple[Event, ...]
) -> tuple[RunResult, dict[str, Crossings]]:
    """A run and what it found of events: these change none of its steps, and are located when it is done."""
    parts = run_kernel(integrator, monitor)
    if not events:
        return run_steps(plan, parts, consts, loop), {}
    watch, made = NoteLog(events, plan.lanes), event_kernel(parts, integrator, events)
    result = run_steps(
        plan, made, consts, note_buffer(loop, initial_loop(plan, made, consts, loop), plan.lanes), watch.read
    )
    system, h = consts
    done = min(plan.save_every * (np.shape(result.records.steps)[-1] - 1), plan.steps)
    found = find_crossings(watch, system, h, integrator, plan.controls, np.asarray(loop.steps), done, plan.batched, plan.backend)
    records, final = result.records, result.loop.loop
    if found is not None:

        def again(last: Located, before: LoopState) -> LoopState:
            own = jax.tree.map(lambda leaf: np.asarray(leaf)[last.lane], system) if plan.batched else system
            u = jax.tree.map(lambda leaf: np.asarray(leaf)[last.index], plan.controls)
            stopped = replace(plan, lanes=len(last.lane))
            return initial_loop(stopped, restart_at_event(integrator, monitor), (own, h), (before, last.record, u))

        stops = np.array([event.stop for event in events])
        records, final = truncate_at_stops(found, stops, records, final, plan.save_every, plan.lanes is None, again)
    one = jax.tree.map(lambda leaf: leaf[0, 0] if plan.lanes is not None else leaf[0], records)
    crossings = crossings_by_event(watch, found, result.loop.suspects, one)
    return replace(result, records=records, loop=final), crossings


def _join(leaves, axis: int):
    """Arrays put end to end, by NumPy unless one is traced."""
    if len(leaves) == 1:
        return leaves[0]
    return (jnp if traced(leaves) else np).concatenate(leaves, axis=axis)


ULP = 2.0**-52


def reference_run(
    system: MechanicalSystem, integrator: Reference, begin: State, step, steps: int, save_every: int, controls,
    events: tuple[Event, ...] = (),
) -> Run:  # fmt: skip
    """The accurate motion at the times of steps; events are looked for at every one of them, and located on the motion."""
    every = 1 if controls is not None or events else save_every
    counts = np.unique(np.append(np.arange(0, steps + 1, every), steps))
    states = integrator.trajectory(system, begin, float(begin.t) + counts * step, controls)
    status = OK if len(states) == len(counts) else NOT_FINITE
    counts, h = counts[: len(states)], jnp.asarray(step, float)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    records = _records(system, integrator, h, controls)(stacked, jnp.asarray(counts), _turns(system, stacked.g))
    found = _found(system, integrator, records, controls, events)
    kept = (counts % save_every == 0) | (counts == steps) | (counts == counts[-1])
    records, last = _ended(records, kept, found, [event.stop for event in events])
    loop = run_kernel(integrator, False).begin((system, h), (last.state, _row(controls, 0)))
    turns = jnp.round((last.angles - system.group.angles(last.state.g)) / (2 * jnp.pi))
    final = loop._replace(
        steps=last.steps,
        origin=last.state.t - last.steps * h,
        status=jnp.asarray(status),
        turns=turns,
        peaks=_peaks(system, records.state),
    )
    made = Run(system, integrator, h, records, final, "scipy")
    if not events:
        return made
    one = jax.tree.map(lambda leaf: leaf[0], records)
    return replace(made, events=crossings_by_event(NoteLog(events, None), found, np.zeros(len(events)), one))


@jax.jit
def _peaks(system: MechanicalSystem, states: State) -> Peaks:
    """The extremes over the saved states: between them the motion is SciPy's."""
    t, g, xi = jax.tree.map(lambda leaf: leaf[0], (states.t, states.g, states.xi))
    zero = jnp.zeros(())
    first = Peaks(system.energy(t, g, xi), zero, zero, zero, jnp.zeros(system.holonomic_constraints))
    each = jax.vmap(lambda state: update_peaks(system, state, first))(states)
    return jax.tree.map(lambda leaf: jnp.max(leaf, axis=0), each)


def _row(controls, k: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[k], controls)


def _records(system: MechanicalSystem, integrator: Reference, h, controls) -> Callable[..., Record]:
    """(states, counts, turns) -> records."""
    plain = run_kernel(integrator, False)

    def record(state, count, turns):
        u = jax.tree.map(lambda leaf: jnp.asarray(leaf)[jnp.clip(count - 1, 0)], controls)  # of the step that led here
        first = plain.observe((system, h), plain.begin((system, h), (state, u)))
        return first._replace(steps=count, angles=first.angles + 2 * jnp.pi * turns)

    return jax.jit(jax.vmap(record))


def _turns(system: MechanicalSystem, g) -> jax.Array:
    """How often each angle went round up to each state."""
    before, after = (jax.tree.map(lambda leaf: leaf[part], g) for part in (slice(None, -1), slice(1, None)))
    steps = jax.vmap(system.group.winding)(before, after)
    return jnp.concatenate([jnp.zeros_like(steps, shape=(1, *steps.shape[1:])), jnp.cumsum(steps, axis=0)])


def _found(system, integrator: Reference, records: Record, controls, events: tuple[Event, ...]) -> Located | None:
    """The crossings between the states, in the order of time, up to the first that stops the run."""
    if not events:
        return None
    evaluate = jax.jit(lambda state, angles: jnp.stack([event.value(system, state, angles) for event in events]))
    values = np.asarray(jax.vmap(evaluate)(records.state, records.angles))
    a, b = values[:-1], values[1:]
    crossed = ((a < 0) & (b >= 0)) * 1 - ((a > 0) & (b <= 0)) * 1
    wanted = np.array([event.direction for event in events])
    crossed[(wanted != 0) & (crossed != wanted)] = 0
    crossed[:1][np.abs(a[:1]) <= START_TOLERANCE * np.abs(b[:1] - a[:1])] = 0
    flow = integrator.flow(system, jax.tree.map(lambda leaf: leaf[0], records.state))
    found = []
    for k, which in zip(*np.nonzero(crossed), strict=True):
        begin = jax.tree.map(lambda leaf: leaf[k], records)
        span, u = float(records.state.t[k + 1] - begin.state.t), _row(controls, k)

        def reached(theta, begin=begin, span=span, u=u):
            state = flow(begin.state, float(begin.state.t) + theta * span, u)
            group = system.group
            return state, begin.angles + group.angles(group.compose(group.inverse(begin.state.g), state.g))

        def value(theta, reached=reached, which=which, sign=float(crossed[k, which])) -> float:
            return sign * float(evaluate(*reached(theta))[which])

        theta = _root(value, -abs(float(a[k, which])))
        if abs(value(theta)) <= JUMP_SHARE * abs(b[k, which] - a[k, which]):
            found.append((k, theta, which, crossed[k, which], *reached(theta)))
    found.sort(key=lambda each: each[:3])
    stops = [i for i, each in enumerate(found) if events[each[2]].stop]
    return _table(system, integrator, found[: stops[0] + 1] if stops else found, controls)


def _root(f: Callable[[float], float], first: float) -> float:
    """The theta beyond which f >= 0, f(0) = `first` < 0, to round-off."""
    from scipy.optimize import brentq

    if f(1.0) < 0:
        return 1.0
    theta = float(brentq(lambda x: first if x == 0.0 else f(x), 0.0, 1.0, xtol=ULP, rtol=4 * ULP))
    beyond = (min(1.0, theta + k * ULP) for k in (0, 1, 2, 4, 8, 16, 64, 256))
    return next((x for x in beyond if f(x) >= 0), theta)


def _table(system, integrator: Reference, found: list, controls) -> Located | None:
    if not found:
        return None
    step, theta, which, direction, states, angles = zip(*found, strict=True)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    turns = (jnp.stack(angles) - jax.vmap(system.group.angles)(stacked.g)) / (2 * jnp.pi)
    index = np.array(step)
    made = _records(system, integrator, 1.0, controls)(stacked, jnp.asarray(index + 1), turns)
    made = jax.tree.map(np.asarray, made)
    return Located(np.zeros(len(index), int), np.array(which), np.array(theta), np.array(direction), made, index)


def _ended(records: Record, kept: np.ndarray, found: Located | None, stops: list[bool]) -> tuple[Record, Record]:
    """(the saved records, the last): up to the event that stopped the run, with that as the last."""
    if found is not None and stops[found.which[-1]]:
        kept = kept & (np.arange(len(kept)) <= found.index[-1])
        event = jax.tree.map(lambda leaf: leaf[-1:], found.record)
        records = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[kept], b]), records, event)
    else:
        records = jax.tree.map(lambda leaf: leaf[kept], records)
    return records, jax.tree.map(lambda leaf: leaf[-1], records)


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
    steps = count_steps(step, steps, t_end, _start_time(state, t0))
    positive_int("save_every", save_every)
    last = state if isinstance(state, Run) else None
    begin = _start(system, integrator, state, step, t0)
    require_known_times(integrator, controls)
    held = held_controls(controls, _start_time(state, t0), step, steps)
    watch = _check_events(events, system, begin, step, tangents)
    if isinstance(integrator, Reference):
        run = reference_run(system, integrator, begin, step, steps, save_every, held, watch)
        return replace(run, controlled=controls is not None)
    plan, parts = Schedule(steps, save_every, held, backend, progress), run_kernel(integrator, monitor)
    consts = (system, array(step))
    if tangents is not None:
        if last is not None:
            raise InvalidInput("tangents need a run from a state: a trajectory does not carry them")
        return _run_with_tangents(plan, parts, tangents, integrator, consts, begin)
    loop = _continued_loop(last, consts[1]) if last else initial_loop(plan, parts, consts, (begin, first_controls(held)))
    result, found = run_with_events(plan, integrator, monitor, consts, loop, watch)
    made = Run(
        system, integrator, consts[1], result.records, result.loop, result.backend, result.note, result.interrupted
    )
    return _good_part(replace(made, events=found, controlled=controls is not None))


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


def _continued_loop(last: Run, h: Array) -> LoopState:
    """The loop of a run that is continued: another step counts from another origin."""
    loop = last.final
    moved = loop.carry.t - loop.steps * h
    return loop._replace(origin=jnp.where(h == last.step, loop.origin, moved))


def _check_events(events: Sequence[Event], system, state: State, step, tangents=None) -> tuple[Event, ...]:
    """The events that a run looks for, checked."""
    if not events:
        return ()
    if tangents is not None or traced((system, state, step)):
        raise InvalidInput(
            "events are found outside of JAX transformations only, and without tangents: leave out one of the two"
        )
    return check_events(events, system, state)


def _run_with_tangents(plan: Schedule, plain: RunKernel, curve: Callable, integrator: Integrator, consts, state: State) -> Run:
    """A run with its derivative along a curve of problems."""
    _, (d_system, d_state, d_step) = jax.jvp(curve, (0.0,), (1.0,))
    both, u = with_tangents(plain), first_controls(plan.controls)
    consts_pair = make_dual(consts, (d_system, jnp.asarray(d_step, float)))
    given = make_dual((state, u), None)
    given = given._replace(slopes=[*make_dual(state, d_state).slopes, *make_dual(u, None).slopes])
    result = run_steps(plan, both, consts_pair, initial_loop(plan, both, consts_pair, given))
    records = result.records
    run = Run(consts[0], integrator, consts[1], records.value, result.loop.value, result.backend, result.note)
    return _good_part(replace(run, tangents=tangent_tree(records)))


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
    members = stack_members(system, state, batched_system)
    if integrator.clock and t_end is not None:
        raise InvalidInput(
            f"the members of an ensemble by {integrator.name} reach t_end after different numbers of steps: give steps"
        )
    t0 = float(np.ravel(members.state.t)[0])
    steps = count_steps(step, steps, t_end, t0)
    positive_int("save_every", save_every)
    members.require(integrator, step)
    require_known_times(integrator, controls)
    held = held_controls(controls, t0, step, steps)
    batched, consts = members.systems_vary, (members.system, array(step))
    plan = Schedule(steps, save_every, held, backend, progress, members.number, batched)
    varies = (0 if members.states_vary else None, None)
    loop = initial_loop(plan, run_kernel(integrator, monitor), consts, (members.state, first_controls(held)), varies)
    watch = _check_events(events, *members.one(0), step)
    result, found = run_with_events(plan, integrator, monitor, consts, loop, watch)
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
    count_steps(step, None, t_end, _start_time(state, t0))
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


def _start_time(state, t0):
    """The time at which the run begins (None for traced times)."""
    t = t0 if t0 is not None else (state.t[-1] if isinstance(state, Run) else state.t)
    return t if traced(t) else float(t)


def _good_part(run: Run) -> Run:
    """The good part of a run that failed."""
    if traced(run.final.status) or int(run.final.status) == OK:
        return run
    good = max(1, int(np.count_nonzero(np.diff(np.asarray(run.records.steps), prepend=-1) > 0)))
    kept = jax.tree.map(lambda leaf: leaf[:good], (run.records, run.tangents))
    return replace(run, records=kept[0], tangents=kept[1])
