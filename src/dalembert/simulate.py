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
from .crossings import Found, Watch, collected, ended, find
from .errors import InvalidInput, NumericalFailure, UnknownName
from .events import Crossings, Event, named
from .integrators import Integrator, Reference
from .integrators.base import OK
from .kernels.run import Backend, Reader, RunResult, run
from .loop import Functions, Loop, functions, lifted
from .sensitivity import pair, tangent_tree
from .system import MechanicalSystem, State
from .trajectory import Trajectory
from .watch import onward, ring, watched

BACKENDS = ("auto", "llvm", "cuda", "xla")
AHEAD = 4096
"""Steps that `steps_until` runs at a time."""


def simulate(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State | Trajectory,
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
    progress: Callable[[int, int], None] | None = None,
) -> Trajectory:
    """Integrate from `state`, or go on from a Trajectory, with `steps` steps or up to `t_end`.

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
    _whole("save_every", save_every)
    if isinstance(state, Trajectory):
        if t0 is not None or state.integrator != integrator:
            raise InvalidInput(
                "a trajectory goes on at its own time and with its own method; for others start from trajectory.last"
            )
        begin, last = state.last, state
    else:
        begin, last = (state if t0 is None else state._replace(t=array(t0))), None
        if not _traced((system, state, step)):
            integrator.require(system, begin, step)
    if integrator.clock and callable(controls):
        raise InvalidInput(
            f"the times of the steps of {integrator.name} are not known before the run: give controls as an array with one row a step, "
            "or a force that depends on time"
        )
    held = held_controls(controls, _clock(state, t0), step, steps)
    watch = _watch(events, system, begin, step, tangents)
    if isinstance(integrator, Reference):
        return reference_run(system, integrator, begin, step, steps, save_every, held, watch)
    loop_functions = functions(integrator, monitor)
    consts = (system, array(step))
    if tangents is not None:
        return _sensitive(loop_functions, tangents, integrator, consts, begin, held, steps, save_every, backend, last)
    if last is None:
        loop = _begin(loop_functions, consts, (begin, _first(held)), backend)
    else:
        loop = last.final
        moved = loop.carry.t - loop.steps * consts[1]  # another step counts from another origin
        loop = loop._replace(origin=jnp.where(consts[1] == last.step, loop.origin, moved))
    found: dict[str, Crossings] = {}
    if watch:
        result, found = _watched(
            watch, integrator, monitor, consts, loop, held, steps, save_every, backend, progress=progress
        )
    else:
        result = _run(loop_functions, consts, loop, held, steps, save_every, backend, progress=progress)
    made = Trajectory(
        system, integrator, consts[1], result.records, result.loop, result.backend, result.note, result.interrupted
    )
    return _truncated(replace(made, events=found))


def _sensitive(plain, curve, integrator, consts, state, held, steps, save_every, backend, last) -> Trajectory:
    """A run with its derivative along a curve of problems."""
    if last is not None:
        raise InvalidInput("tangents need a run from a state: a trajectory does not carry them")
    _, (d_system, d_state, d_step) = jax.jvp(curve, (0.0,), (1.0,))
    functions_pair = lifted(plain)
    consts_pair = pair(consts, (d_system, jnp.asarray(d_step, float)))
    given = pair((state, _first(held)), None)
    given = given._replace(slopes=[*pair(state, d_state).slopes, *pair(_first(held), None).slopes])
    loop = _begin(functions_pair, consts_pair, given, backend)
    result = _run(functions_pair, consts_pair, loop, held, steps, save_every, backend)
    records = result.records
    run = Trajectory(consts[0], integrator, consts[1], records.value, result.loop.value, result.backend, result.note)
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
    progress: Callable[[int, int], None] | None = None,
) -> Trajectory:
    """`simulate` over many members: `state` and/or `system` carry a leading axis (a list is stacked).

    A batched system is one whose leaves have that axis, as `jax.vmap(model)(parameters)` makes it: say so with
    `batched_system=True`. A member that fails stays at its last good state, one that an event stops at that event; the others
    go on. Arrays of the result have shape (members, saves, ...).
    """
    members, batched_system = (
        (_stack(system, "systems"), True) if isinstance(system, list) else (system, batched_system)
    )
    states: State = _stack(state, "states") if isinstance(state, list) else state
    batched_state = states.xi.ndim == 2
    if not (batched_state or batched_system):
        raise InvalidInput(
            "an ensemble needs a leading axis on the states (state.xi of shape (members, n)) or batched systems; for one run use simulate"
        )
    if integrator.clock and t_end is not None:
        raise InvalidInput(
            f"the members of an ensemble by {integrator.name} reach t_end after different numbers of steps: give steps"
        )
    steps = count_steps(step, steps, t_end, float(np.ravel(states.t)[0]))
    _whole("save_every", save_every)
    _require_members(members, integrator, states, step, batched_system, batched_state)
    held = held_controls(controls, float(np.ravel(states.t)[0]), step, steps)
    axes = (0 if batched_system else None, None)
    loop_functions = functions(integrator, monitor)
    consts = (members, array(step))
    lanes = jax.tree.leaves(states if batched_state else members)[0].shape[0]
    begin_axes = (axes, (0 if batched_state else None, None))
    loop = _begin(loop_functions, consts, (states, _first(held)), backend, begin_axes, lanes)
    one = _member(members, states, 0, batched_system, batched_state)
    watch, found = _watch(events, *one, step), dict[str, Crossings]()
    options = (held, steps, save_every, backend, axes, lanes, progress)
    if watch:
        result, found = _watched(watch, integrator, monitor, consts, loop, *options)
    else:
        result = _run(loop_functions, consts, loop, *options)
    return Trajectory(
        members,
        integrator,
        consts[1],
        result.records,
        result.loop,
        result.backend,
        result.note,
        result.interrupted,
        batched_system,
        events=found,
    )


# -- backends -------------------------------------------------------------------------------------------------------------------
def _run(
    loop_functions: Functions,
    consts,
    loop,
    controls,
    steps: int,
    save_every: int,
    backend: Backend,
    axes=None,
    lanes=None,
    progress=None,
    read: Reader | None = None,
) -> RunResult:
    """`steps` steps with a record after every `save_every` of them; a remainder ends with a record too."""
    saves, rest = divmod(steps, save_every)
    parts: list[RunResult] = []
    for count, stride, offset in ((saves, save_every, 0), (1 if rest else 0, rest, saves * save_every)):
        if count and not (parts and parts[-1].saves < saves):  # interrupted, or all lanes stopped
            held = jax.tree.map(lambda leaf: leaf[offset : offset + count * stride], controls)
            options = {} if lanes is None else {"lanes": lanes, "axes": (axes, 0)}
            parts.append(
                run(
                    *loop_functions[1:],
                    consts,
                    loop,
                    held,
                    saves=count,
                    save_every=stride,
                    backend=backend,
                    progress=progress,
                    initial=not parts,
                    read=read,
                    **options,
                )
            )
            loop = parts[-1].loop
    records = [part.records for part in parts]
    joined = jax.tree.map(lambda *leaves: _join(leaves, 0 if lanes is None else 1), *records)
    return replace(parts[-1], records=joined, note=parts[0].note)


def _watch(events: Sequence[Event], system, state: State, step, tangents=None) -> tuple[Event, ...]:
    """The events that a run looks for, checked."""
    if not events:
        return ()
    if tangents is not None or _traced((system, state, step)):
        raise InvalidInput(
            "events are found outside of JAX transformations only, and without tangents: leave out one of the two"
        )
    return named(events, system, state)


def _watched(
    events: tuple[Event, ...],
    integrator: Integrator,
    monitor: bool,
    consts,
    loop: Loop,
    held,
    steps: int,
    save_every: int,
    backend: Backend,
    axes=None,
    lanes=None,
    progress=None,
) -> tuple[RunResult, dict[str, Crossings]]:
    """A run that looks for events: the same steps, with the crossings located when it is done."""
    (system, h), batched = consts, axes is not None and axes[0] == 0
    watch, made = Watch(events, lanes), watched(functions(integrator, monitor), integrator, events)
    begun = ring(loop, _begin(made, consts, loop, backend, (axes, 0), lanes), lanes)
    result = _run(made, consts, begun, held, steps, save_every, backend, axes, lanes, progress, watch.read)
    done = min(save_every * (np.shape(result.records.steps)[-1] - 1), steps)
    found = find(watch, system, h, integrator, held, np.asarray(loop.steps), done, batched, backend)
    records, final = result.records, result.loop.loop
    if found is not None:

        def again(last: Found, before: Loop) -> Loop:
            own = jax.tree.map(lambda leaf: np.asarray(leaf)[last.lane], system) if batched else system
            u = jax.tree.map(lambda leaf: np.asarray(leaf)[last.index], held)
            given, where = (before, last.record, u), ((0 if batched else None, None), 0)
            return _begin(onward(integrator, monitor), (own, h), given, backend, where, len(last.lane))

        stops = np.array([event.stop for event in events])
        records, final = ended(found, stops, records, final, save_every, lanes is None, again)
    one = jax.tree.map(lambda leaf: leaf[0, 0] if lanes is not None else leaf[0], records)
    crossings = collected(watch, found, result.loop.suspects, one)
    return replace(result, records=records, loop=final), crossings


def _join(leaves, axis: int):
    """Arrays put end to end, by NumPy unless one is traced."""
    if len(leaves) == 1:
        return leaves[0]
    return (jnp if _traced(leaves) else np).concatenate(leaves, axis=axis)


def _begin(loop_functions: Functions, consts, given, backend: Backend, axes=None, lanes=None) -> Any:
    """The start as a run of no steps whose one record is the loop: compiled by the same backend."""
    require_backend(backend)
    options = {} if lanes is None else {"lanes": lanes, "axes": axes}
    first = run(_stay, loop_functions.begin, consts, given, saves=1, backend=backend, **options).records
    return jax.tree.map(lambda leaf: leaf[0] if lanes is None else leaf[:, 0], first)


def _stay(consts, loop, u):
    return loop


def require_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise UnknownName("backend", backend, BACKENDS)


# -- input ----------------------------------------------------------------------------------------------------------------------
def count_steps(step, steps, t_end, t0) -> int:
    """The number of steps, from `steps` or from `t_end` (the last state at or before it)."""
    if not _traced(step) and (not np.isfinite(step) or step == 0):
        raise InvalidInput(f"step is {step}; allowed: any finite number but 0 (negative steps go back in time)")
    if (steps is None) == (t_end is None):
        raise InvalidInput("give exactly one of steps and t_end")
    if steps is not None:
        return _whole("steps", steps)
    ratio = (t_end - t0) / step
    if not np.isfinite(ratio) or ratio < 1 - 1e-9:
        raise InvalidInput(f"t_end = {t_end} is not at least one step of {step} away from the start at t = {t0}")
    return int(np.floor(ratio * (1 + 1e-12) + 1e-9))


def steps_until(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State | Trajectory,
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


def _whole(name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidInput(f"{name} is {value!r}; allowed: a whole number of at least 1")
    return int(value)


def _clock(state, t0):
    """The time at which the run begins (None for traced times)."""
    t = t0 if t0 is not None else (state.t[-1] if isinstance(state, Trajectory) else state.t)
    return t if _traced(t) else float(t)


def held_controls(controls, t0, step, steps: int):
    """Controls as arrays with one row a step."""
    if controls is None:
        return None
    if callable(controls):
        return jax.vmap(controls)(t0 + step * (jnp.arange(steps) + 0.5))
    held = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), controls)
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(held)}
    if sizes != {steps}:
        raise InvalidInput(f"controls have {sorted(sizes)} rows; allowed: one row a step, that is {steps}")
    return held


def _first(controls):
    return jax.tree.map(lambda leaf: leaf[0], controls)


def _require_members(system, integrator, state, step, batched_system: bool, batched_state: bool) -> None:
    """The checks of a single run on the member that is farthest off D, and equal numbers of members."""
    if _traced((system, state)):
        return
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(system)} if batched_system else set()
    sizes |= {leaf.shape[0] for leaf in jax.tree.leaves(state)} if batched_state else set()
    if len(sizes) != 1:
        raise InvalidInput(f"the members disagree in number: leading axes {sorted(sizes)}")
    axes = (0 if batched_system else None, 0 if batched_state else None)
    off = np.asarray(jax.jit(jax.vmap(_off, in_axes=axes))(system, state))
    worst = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
    integrator.require(*_member(system, state, worst, batched_system, batched_state), step)


def _member(system, state, number: int, batched_system: bool, batched_state: bool) -> tuple[MechanicalSystem, State]:
    """One system and state of an ensemble."""
    pick = lambda tree, batched: jax.tree.map(lambda leaf: leaf[number], tree) if batched else tree
    return pick(system, batched_system), pick(state, batched_state)


def _off(system: MechanicalSystem, state: State) -> Array:
    off = jnp.concatenate([system.residual(state.t, state.g, state.xi), system.phi(state.t, state.g)])
    return jnp.max(jnp.abs(off), initial=0.0) + 0.0 * jnp.sum(state.xi)


def _stack(items: list, what: str):
    if not items or len({jax.tree.structure(item) for item in items}) != 1:
        raise InvalidInput(
            f"the {what} of an ensemble must be of one kind (same group, functions and parameter structure), and at least one"
        )
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]), *items)


def _truncated(run: Trajectory) -> Trajectory:
    """The good part of a run that failed."""
    if _traced(run.final.status) or int(run.final.status) == OK:
        return run
    good = max(1, int(np.count_nonzero(np.diff(np.asarray(run.records.steps), prepend=-1) > 0)))
    kept = jax.tree.map(lambda leaf: leaf[:good], (run.records, run.tangents))
    return replace(run, records=kept[0], tangents=kept[1])


def _traced(tree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
