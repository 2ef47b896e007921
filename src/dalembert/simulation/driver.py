"""Everything that happens between a state and the `Run` that comes back, in the order in which it happens.

`simulate` runs one trajectory and `ensemble` many together. Both do the same:

1. check what they are given, and make a `Schedule`: how far the run goes, where it saves, the controls of each step;
2. begin the loop: the carry of the method at the initial state (`begin_loop`, `RunKernel.begin`);
3. advance the loop on a back end, in blocks of steps with a record after each (`run_steps`, `RunKernel.advance`);
4. locate the events in the steps that were noted, and end stopped members there (`run_with_events`);
5. return the good records with the last loop, from which the run can go on (`Run`).

The loop itself is in `loop.py`, events are in `events.py`, the back ends in `kernels`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, NumericalFailure, require_name
from ..integrators import NOT_FINITE, OK, Integrator, require_arguments, require_state
from ..kernels import (
    Backend,
    Chain,
    LaneRun,
    NoteReader,
    Problem,
    Progress,
    RecordsTooLarge,
    RunResult,
    SlopeChain,
    Template,
    Watch,
    Words,
    as_jax,
    bind_whole,
    concrete_leaves,
    evaluate,
    find_chain,
    find_host_lanes,
    find_lane_chain,
    find_plan,
    find_slope_chain,
    has_gpu,
    in_place,
    is_real,
    keep_carry,
    kind_of_trees,
    known_number,
    make_problem,
    recognise,
    remember,
    run_again,
    run_problem,
    run_with_slopes,
    shapes_of,
    to_host,
    words_of,
)
from ..mechanics import (
    ADMISSIBLE_TOLERANCE,
    SINGULAR_METRIC,
    MechanicalSystem,
    State,
    admit_velocity,
    free_numbers,
    judge_start,
    metric_on_D,
)
from ..numerics import (
    array,
    call_own,
    finite,
    is_traced,
    namespace,
    positive_int,
    require_function,
    require_known,
    require_progress,
)
from .events import (
    Event,
    EventMonitor,
    Located,
    NoteLog,
    Table,
    check_events,
    counted_kernel,
    crossing_kernel,
    crossings_by_event,
    event_kernel,
    find_crossings,
    note_buffer,
    restart_at_event,
    take_rows,
    truncate_at_stops,
)  # fmt: skip
from .loop import (
    BACKENDS,
    NO_RECORD,
    Constants,
    LoopState,
    RunKernel,
    count_steps,
    depends_on_time,
    end_before_gaps,
    find_momentum_first,
    has_members,
    invalidate_unless,
    judge_begin,
    mark_failures,
    read_rows,
    run_kernel,
    sample_controls,
    split_reals,
    stop_at_time,
)  # fmt: skip
from .results import Crossings, Record, Run

FIRST_BLOCK_RECORDS, MAX_BLOCK_RECORDS = 4096, 2**17
"""Records of the first and of the largest block of a run whose number of steps is not known."""
MAX_STALLED_STEPS = 4096
"""A run to t_end fails where so many steps do not change the time."""
PLAIN_OPTIONS = (int, int, bool, float)
"""The types of steps, save_every, monitor and step in a call that is known again."""
WATCH = Watch(lambda loop: loop.status, OK, lambda record: record.steps, int(NO_RECORD), NOT_FINITE)


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
    tangents: Callable[[Any], tuple[MechanicalSystem, State, Any]] | None = None,
    directions: int | None = None,
    events: Sequence[Event] = (),
    progress: Progress | None = None,
) -> Run:
    """Integrate one motion from a state, or continue a run, and return it as a `Trajectory`.

    It takes `steps` steps of size `step` (negative: backwards in time), or goes to the last state at or before `t_end`,
    and saves every `save_every`-th state and the last. A run that fails raises no error: its `status` is "failed", and
    `check()` raises.

    `controls` are the inputs, constant during each step: an array with one row for each step, a function of time, which
    is evaluated at the middle of each step, or a dict of these or of numbers by the names of inputs. The run stores
    them; a run that continues it needs new ones. `monitor=True` stores the largest errors of energy, constraint and
    group over all steps, saved or not, in `final.peaks`. `events` are detected in every step, located to round-off (see
    `Event`) and returned in `run.events`.

    `tangents` is a function s -> (system, state, step), which at s = 0 gives those of this run: the derivatives of all
    saved numbers (and events) with respect to s are in `run.tangents`. With `directions`, s is an array of this
    length, and there are derivatives with respect to each of its entries, on a new first axis.
    """
    calls: list[Callable[..., Run | None]] | None = None
    alone = t_end is None and t0 is None and progress is None and type(events) is tuple and not events
    alone = alone and isinstance(system, MechanicalSystem) and (directions is None or type(directions) is int)
    if alone and (type(steps), type(save_every), type(monitor), type(step)) == PLAIN_OPTIONS:
        found = (None, []) if tangents is None else recognise(tangents, take="numbers", tell=False)
        if found is not None and (found[0] is None or not found[0].asks):
            kind = integrator, step, steps, save_every, monitor, backend, controls is not None, found[0], directions
            known_calls: Any = remember(("simulate", *kind), list)
            calls = known_calls
            if calls and (made := calls[0](system, state, controls, found[1])):
                return made
    given = state.last if isinstance(state, Run) else state
    require_arguments(system, integrator, given, step)
    require_function("tangents", tangents, "s -> (system, state, step)")
    if directions is not None and (positive_int("directions", directions) and tangents is None):
        raise InvalidInput(f"directions is {directions}, but there are no tangents: give tangents=, s -> problem")
    begin = in_doubles(given if t0 is None else given._replace(t=array(finite("t0", t0))))
    require_state(system, begin, step)
    begin_time = begin.t if is_traced(begin.t) else float(begin.t)
    schedule = make_schedule(
        integrator, monitor, step, steps, t_end, begin_time, save_every, controls, system.inputs, backend, progress
    )
    if isinstance(state, Run):
        if state.controlled and controls is None:
            raise InvalidInput(
                "the run that goes on had controls: give controls for the new steps (zeros where nothing acts)"
            )
        if t0 is not None or state.integrator != integrator:
            raise InvalidInput(
                "a trajectory goes on at its own time and with its own method; for others start from trajectory.last"
            )
    else:
        plain = tangents is None and isinstance(events, Sequence) and not events
        if plain and (made := _run_at_once(schedule, system, step, begin, calls)):
            return made
    traced = is_traced((system, given, step))

    def require() -> None:
        if not traced and state is given:
            integrator.require(system, begin, step)

    if tangents is not None and isinstance(state, Run):
        raise InvalidInput("tangents need a run from a state: a trajectory does not carry them")
    if tangents is not None and isinstance(events, Sequence) and not events:
        known = step if is_traced(step) else np.asarray(step, float)
        return _integrate_tangents(schedule, system, known, begin, tangents, directions, require, calls)
    require()
    checked, h = check_events(events, system, begin), array(step)
    if tangents is not None:
        return _integrate_tangents_at_events(schedule, system, h, begin, checked, tangents, directions)
    loop = None
    if isinstance(state, Run):  # another step counts from another origin; so does this one where it is differentiated
        last: LoopState = state.final
        origin = last.carry.t - last.steps * h
        same = jax.lax.stop_gradient(last.origin) + (origin - jax.lax.stop_gradient(origin))
        loop = last._replace(origin=jnp.where(h == state.step, same, origin))
    if traced and schedule.t_end is not None:
        schedule = _count_to_the_end(schedule, (system, h, begin, loop))
    return _integrate(schedule, system, h, begin, loop, checked)


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
    """Integrate many motions at once, with different states, parameters or controls, on all cores or a GPU.

    The members are a list of states or systems (or both), or a state whose arrays have a leading axis. A system whose
    leaves have that axis, as `jax.vmap(model)(parameters)` makes it, needs `batched_system=True`. `controls` are those
    of `simulate`, the same for all, or an array (members, steps, inputs). The result has arrays (members, saves, ...).

    A member that fails keeps its last good state, one that an event stops keeps the state at the event, and one with
    variable steps its last state before `t_end`, while the others continue. Arrays on a GPU, of JAX or CuPy, stay
    there, and so do the results.
    """
    calls: list[Callable[..., Run | None]] | None = None
    alone = t_end is None and progress is None and type(events) is tuple and not events and type(state) is State
    alone = alone and isinstance(system, MechanicalSystem) and type(batched_system) is bool
    if alone and (type(steps), type(save_every), type(monitor), type(step)) == PLAIN_OPTIONS:
        known_calls: Any = remember(
            ("ensemble", integrator, step, steps, save_every, monitor, backend, batched_system), list
        )
        calls = known_calls
        if calls and (made := calls[0](system, state, controls)):
            return made
    first, begin = (each[0] if isinstance(each, list) and each else each for each in (system, state))
    require_arguments(first, integrator, begin, step)
    require_known("an ensemble", {"batched_system": batched_system}, "it is True or False")
    if integrator.variable_step and steps is None:
        instead = f"members take different numbers of steps of {integrator.name} to t_end: give steps"
        require_known("an ensemble to t_end", {"system": system, "state": state, "step": step}, instead)
    members = stack_members(system, state, batched_system)
    t0: Any = 0.0  # where nothing depends on it, it does not come from a GPU
    if t_end is not None or depends_on_time(controls):
        t0 = members.state.t if is_traced(members.state.t) else _first(members.state.t)
    inputs = members.system.inputs
    schedule = make_schedule(
        integrator, monitor, step, steps, t_end, t0, save_every, controls, inputs, backend, progress, members
    )
    plain = isinstance(events, Sequence) and not events
    given = calls if members.system is system and members.state is state else None
    if plain and (made := _run_members_at_once(schedule, members, step, given)):
        return made
    members.require(integrator, step)
    checked = () if plain else check_events(events, *members.one(0))
    if checked or schedule.t_end is not None:  # events and ends are looked for on the host
        members = replace(members, system=to_host(members.system), state=to_host(members.state))
    varies = (0 if members.states_vary else None, 0 if schedule.own_controls else None)
    return _integrate(schedule, members.system, array(step), members.state, None, checked, varies)


def in_doubles(state: State) -> State:
    """Return a state whose numbers have 64 bits, as all of a run have; `_replace` takes any."""
    if all(getattr(leaf, "dtype", None) == np.float64 for leaf in jax.tree.leaves(state)):
        return state

    def widen(leaf: Any) -> Any:
        real = isinstance(leaf, int | float) or leaf.dtype.kind in "fiuV"
        return (jnp if isinstance(leaf, jax.Array) else np).asarray(leaf, float) if real else leaf

    wide: State = jax.tree.map(widen, state)  # what is not real is refused by its name
    return wide


def _first(times: Any) -> float:
    """Return the first of some times; no more of an array on a GPU comes to the host."""
    return float(to_host(in_place(times).reshape(-1)[:1])[0])


# 1. What is given, checked.


@dataclass(frozen=True)
class Schedule:
    """By which method a run goes and how far: `steps` steps, a record after every `save_every` of them.

    A run to `t_end` by a method whose steps vary takes about `steps` steps. `controls` have one row a step. With
    `lanes`, so many members go together; `batched`: each of them has its own system.
    """

    integrator: Integrator
    monitor: bool
    steps: int
    save_every: int
    controls: Any
    backend: Backend
    progress: Progress | None = None
    t_end: float | None = None
    lanes: int | None = None
    batched: bool = False

    @property
    def kernel(self) -> RunKernel:
        """The loop of the method, which stops at t_end where there is one."""
        kernel = run_kernel(self.integrator, self.monitor)
        return kernel if self.t_end is None else stop_at_time(kernel)

    @property
    def first_controls(self) -> Any:
        """The controls of the first step."""
        return jax.tree.map(lambda leaf: leaf[:, 0] if self.own_controls else leaf[0], self.controls)

    @property
    def own_controls(self) -> bool:
        """Whether each member has its own controls."""
        return self.lanes is not None and has_members(self.controls)

    def rows(self, lane: Any, row: Any) -> Any:
        """Return the controls of some lanes in some steps."""
        return take_rows(self.controls, (lane, row) if self.own_controls else row)

    def some_controls(self, first: int, count: int) -> Any:
        """Return the controls of `count` steps from number `first` on."""
        part = slice(first, first + count)
        return jax.tree.map(lambda leaf: leaf[:, part] if self.own_controls else leaf[part], self.controls)

    def constants(self, system: Any, h: Any, t_end: Any) -> Constants:
        """Return the constants of that loop."""
        return (system, h) if self.t_end is None else (system, h, t_end)

    def axes(self, *others: Any) -> Any:
        """Say which of the constants, and of what comes after them, vary over the lanes."""
        shared = (None,) if self.t_end is None else (None, None)
        return None if self.lanes is None else ((0 if self.batched else None, *shared), *others)

    def sources(self, consts: Constants, start: Any, varies: Any = None) -> list[tuple[Any, bool]]:
        """Return all that a run is made of, and whether these are numbers of its members."""
        own = self.lanes is not None and varies is not None and varies[0] is not None
        parts = (consts[0], self.batched), (consts[1:], False), (start, own), (self.controls, self.own_controls)
        return [(leaf, members) for part, members in parts for leaf in jax.tree.leaves(part)]

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield (records, steps before each) of the blocks of the run; without end where the number is not known."""
        saves, rest = divmod(self.steps, self.save_every)
        if self.t_end is None:
            yield from (block for block in ((saves, self.save_every), (1, rest)) if all(block))
            return
        saves = min(saves + 1, FIRST_BLOCK_RECORDS)
        while True:
            yield saves, self.save_every
            saves = min(2 * saves, MAX_BLOCK_RECORDS)


def make_schedule(
    integrator: Integrator, monitor: bool, step: float, steps: int | None, t_end: float | None, t0: Any,
    save_every: int, controls: Any, inputs: Any, backend: Backend, progress: Progress | None,
    members: Members | None = None,
) -> Schedule:  # fmt: skip
    """Return the schedule of a run from t0; where steps vary, the times of steps and their number are not known."""
    count = count_steps(step, steps, t_end, t0, variable=integrator.variable_step)
    positive_int("save_every", save_every)
    if not isinstance(monitor, bool):
        require_known("a run", {"monitor": monitor}, "it is True or False")
    require_name("backend", backend, BACKENDS)
    require_progress(progress, "(done, total)")
    last = known_number(t_end) if integrator.variable_step and steps is None else None
    if integrator.variable_step and (depends_on_time(controls) or (controls is not None and last is not None)):
        raise InvalidInput(
            f"the times of the steps of {integrator.name} are not known before the run: give steps, and controls as an "
            "array with one row a step, or a force that depends on time"
        )
    lanes, batched = (None, False) if members is None else (members.number, members.systems_vary)
    held = sample_controls(controls, t0, step, count, inputs, lanes)
    return Schedule(integrator, monitor, count, save_every, held, backend, progress, last, lanes, batched)


def _count_to_the_end(schedule: Schedule, given: Any) -> Schedule:
    """Return the schedule of a traced run with the number of steps that it takes to t_end: found by running it."""
    leaves, structure = jax.tree.flatten(given)
    numbers = [known_number(leaf) for leaf in leaves]
    if any(number is None for number in numbers):
        raise InvalidInput(
            f"how many steps {schedule.integrator.name} takes to t_end depends on numbers that jax.jit or jax.vmap "
            "does not know, and arrays have fixed shapes there: give steps, or take jax.grad, jvp, jacfwd or jacrev of "
            "simulate without jit and vmap around it"
        )
    system, h, state, loop = jax.tree.unflatten(structure, numbers)
    made = _integrate(replace(schedule, progress=None), system, h, state, loop, ())
    if made.interrupted:
        raise KeyboardInterrupt
    before = 0 if loop is None else int(loop.steps)
    return replace(schedule, t_end=None, steps=max(1, int(made.final.steps) - before))


# 2. to 5. The run.


def _integrate(
    schedule: Schedule, system: MechanicalSystem, h: Array, state: State, loop: LoopState | None,
    events: tuple[Event, ...], varies: Any = None, run: Callable[..., RunResult] = run_problem,
) -> Run:  # fmt: skip
    """Begin the loop, or go on with one, run the schedule with its events, and return what that leaves."""
    consts = schedule.constants(system, h, None if schedule.t_end is None else array(schedule.t_end))
    start, whole = state if loop is None else loop, loop is None and not events and run is run_problem
    if whole and (made := _run_for_gradient(schedule, consts, state, varies)):
        return made
    if loop is None:
        kernel = judge_traced(schedule.kernel, (consts, state))
        loop = begin_loop(schedule, kernel, consts, (state, schedule.first_controls), varies)
    result, crossings = run_with_events(schedule, consts, loop, events, run)
    records, final = result.records, result.carry
    if is_traced(records):
        records, final = mark_failures(records, final, schedule.sources(consts, start, varies))
    else:
        records, final = end_before_gaps(records, final, schedule.lanes is not None)
        records, peaks = as_jax((records, final.peaks))
        final = final._replace(status=to_host(final.status), steps=to_host(final.steps), peaks=peaks)
    controls = schedule.controls
    if controls is not None and not is_traced((loop.steps, final.steps)):  # the rows of the steps that were taken
        controls = schedule.some_controls(0, max(1, int(np.max(final.steps - np.asarray(to_host(loop.steps))))))
    made = Run(
        system, schedule.integrator, h, records, final, result.backend, result.note, result.interrupted,
        schedule.batched, schedule.controls is not None, events=crossings,
        controls=controls, every=schedule.save_every,
    )  # fmt: skip
    if schedule.t_end is not None and not made.interrupted:
        stands = (np.asarray(made.final.status) == OK) & (np.asarray(made.final.steps) == np.asarray(loop.steps))
        if np.all(stands):
            once = replace(schedule, steps=1, save_every=1, t_end=None, progress=None)
            t = float(np.ravel(_integrate(once, system, h, state, loop, ()).t[..., -1])[0])
            name = schedule.integrator.name
            raise InvalidInput(f"t_end = {schedule.t_end} is not as far as the first step of {name} goes, {t:.17g}")
    return _drop_repeated_records(made, schedule)


class Replay:
    """Runs of one kind that were checked before: where the numbers of their starts and records lie is known.

    `records(words)` are the wanted `part` of the records that a run left; a single one has no axis for its number.
    """

    __slots__ = ("_group", "_kinds", "_mark", "_script", "chain", "records")

    def __init__(
        self, chain: Chain, state: State, step: float, blocks: tuple[tuple[int, int], ...], initial: bool,
        part: Callable[[Any], Any],
    ):  # fmt: skip
        self.chain, self._group, self._script = chain, state.group, (step, blocks, initial)
        self._kinds = [(np.ndarray, *kind) for kind in shapes_of(jax.tree.leaves(state))]
        self._mark = None if initial else chain.out + chain.mark
        self.records = _record_reader(chain, part, (1 + sum(saves for saves, _ in blocks),) if initial else ())

    def run(self, constants: bytes, state: Any, rows: list[Any]) -> Words | None:
        """Return the words of a run from a state; None where it is of another kind, or has to be asked or refused."""
        if state.__class__ is not State or state.group is not self._group:
            return None
        t, g, *rest = state
        start, (step, blocks, initial) = [t, *g, *rest] if g.__class__ is tuple else [t, g, *rest], self._script
        try:
            if [(leaf.__class__, leaf.shape, leaf.dtype) for leaf in start] != self._kinds:
                return None
        except AttributeError:  # a number, say
            return None
        now = t.item()
        if now + step == now or not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            return None
        return self.chain.run(constants, start, rows, blocks, initial)

    def is_well(self, words: Words) -> bool:
        """Whether the run ended well, and no record is missing."""
        if (place := self._mark) is None:
            return self.chain.is_well(words)
        return words.item(self.chain.status) == OK and words.item(place) != NO_RECORD


def _record_reader(chain: Chain, part: Callable[[Any], Any], front: tuple[int, ...]) -> Callable[[Words], Any]:
    """Return what finds a part of the records in words: views, whose places are known before."""
    steps, rows = chain.steps, math.prod(front)
    wanted, tree = jax.tree.flatten(part(steps.record_tree.unflatten(range(len(steps.record)))))
    if any(wide is not own for *_, wide, own in steps.record):
        return lambda words: part(chain.records(words, single=not front))
    fields = [steps.record[i] for i in wanted]
    places = [((*front, *shape), own, 8 * (chain.out + rows * before)) for before, _, shape, _, own in fields]
    made = jax.tree.unflatten(tree, wanted)

    def read_state(words: Words) -> State:
        state: State = tuple.__new__(State, [np.ndarray(shape, kind, words, place) for shape, kind, place in places])
        state.group = made.group
        return state

    if made.__class__ is State and set(map(type, made)) == {int}:  # JAX takes twice as long
        return read_state
    join: Any = tree.unflatten  # type: ignore[attr-defined]  # `jax.tree.unflatten` calls it
    return lambda words: join([np.ndarray(shape, kind, words, place) for shape, kind, place in places])


def make_replay(
    chain: Chain, state: State, step: float, blocks: tuple[tuple[int, int], ...], initial: bool,
    part: Callable[[Any], Any] = lambda record: record,
) -> Replay | None:  # fmt: skip
    """Return what runs again from states of this kind; None where a state is not of doubles, or of no group."""
    if state.__class__ is not State or state.group is None:
        return None
    if any(type(leaf) is not np.ndarray or leaf.dtype != float for leaf in jax.tree.leaves(state)):
        return None
    return Replay(chain, state, step, blocks, initial, part)


def _run_again(
    schedule: Schedule, replay: Replay, h: Any, kind: Any, system: Any, state: Any, controls: Any, arrays: list[Any]
) -> Run | None:
    """Return the run of a call that was checked before, whose numbers alone may be others: those of its curve too.

    None where something is of another kind, or has to be asked, or refused.
    """
    if schedule.integrator.must_ask(system) or (found := words_of((system, h))) is None or found[0] != kind[0]:
        return None
    of_curve: Any = arrays and concrete_leaves(arrays)
    if of_curve is None or (of_curve and shapes_of(of_curve) != kind[1]):
        return None
    rows = None if controls is None else read_rows(controls, schedule.steps, system.inputs)
    if rows is None and controls is not None:
        return None
    chain = replay.chain
    words = replay.run(chain.constants(of_curve + found[1]), state, [] if rows is None else [rows])
    if words is None or not math.isfinite(state.t.item() + state.momentum.dot(state.momentum)):  # no program judged it
        return None
    if isinstance(chain, SlopeChain) and not chain.is_well(words):
        return None
    return finish_run(schedule, system, h, chain, words, rows, replay)


def _run_at_once(
    schedule: Schedule, system: MechanicalSystem, step: Any, state: State, known: list[Any] | None,
    along: tuple[Any, list[Any], tuple[bool, ...], int | None] | None = None,
) -> Run | None:  # fmt: skip
    """Return a short run from a state by a `Chain`, the call being `known` then; None where it goes the long way.

    With slopes if there is something `along` which they are: their function, its arrays, what moves, the directions.
    """
    integrator, backend = schedule.integrator, schedule.backend
    if schedule.t_end is not None or schedule.progress is not None or backend not in ("auto", "llvm"):
        return None
    if is_traced(step):
        return None
    kernel, asked = schedule.kernel, False
    h: Any = np.asarray(step, float)

    def require() -> None:
        nonlocal asked
        integrator.ask(system, state, step)
        asked = True

    found: Any
    if along is None:
        judge = admit_velocity, system, tuple(state[:3])
        found = find_chain(judge, *kernel, (system, h), state, schedule.controls, WATCH, require)
    else:
        trees = along[1], (system, h), state, schedule.controls
        found = find_slope_chain((_is_clearly_good, *kernel), trees, along[0], *along[2:], WATCH, require)
    if found is None:
        return None
    chain, constants, start, controls = found
    blocks, given = tuple(schedule.blocks()), chain.constants(constants)
    size = schedule.steps, schedule.steps // schedule.save_every + 2
    if not (chain.fits(*size) or chain.measure(given, start, controls, *size)):
        return None
    if not asked and integrator.must_ask(system):
        require()
    words = chain.run(given, start, controls, blocks, True, judged=asked)
    if words is None:
        require()
        words = chain.run(given, start, controls, blocks, True, judged=True)
        assert words is not None
    if along is not None and not chain.is_well(words):
        return None
    if known is not None and (schedule.controls is None or (system.inputs and len(controls) == 1)):
        replay, kind = make_replay(chain, state, step, blocks, True), words_of((system, h))
        if replay is not None and kind is not None:
            arrays = concrete_leaves([] if along is None else along[1])
            known[:] = [partial(_run_again, schedule, replay, h, (kind[0], shapes_of(arrays or [])))]
    return finish_run(schedule, system, h, chain, words, schedule.controls)


def _run_for_gradient(schedule: Schedule, consts: Constants, state: State, varies: Any) -> Run | None:
    """Return a run whose gradient is taken, from its beginning on; None where it has to go in parts."""
    if schedule.t_end is not None or not is_traced((consts, state, schedule.controls)):
        return None
    found = bind_blocks(schedule, schedule.kernel, consts, (state, schedule.first_controls), varies)
    if found is None:
        return None
    final, records = found
    backend = "llvm" if schedule.backend == "auto" else schedule.backend
    return Run(
        consts[0], schedule.integrator, consts[1], records, final, backend, "traced", False, schedule.batched,
        schedule.controls is not None, controls=schedule.controls, every=schedule.save_every,
    )  # fmt: skip


def bind_blocks(
    schedule: Schedule, kernel: RunKernel, consts: Constants, given: Any, varies: Any = None
) -> tuple[Any, Any] | None:
    """Return (last loop, records) of a traced run, each block of it one native call; None where that is not all.

    A block after the first begins with the loop that the first one left, whose record is there already.
    """
    lanes, begin, parts, done = schedule.lanes, judge_traced(kernel, (consts, given[0])).begin, [], 0
    own, source = None if lanes is None else schedule.axes()[0], (consts, given[0], varies)
    if given[0].system is consts[0]:
        begin, given = find_momentum_first(begin), (given[0]._replace(momentum=None), given[1])
    for saves, every in schedule.blocks():
        held = schedule.some_controls(done, saves * every)
        axes = (own, varies, 0 if schedule.own_controls else None)
        trees, steps = (consts, given, held), kernel[1:]
        found = bind_whole(begin, *steps, trees, lanes, axes, saves, every, schedule.backend, WATCH)
        if found is None:
            return None
        parts.append(found)
        begin, given, varies, done = _go_on, found[0], None if lanes is None else 0, done + saves * every
    if len(parts) == 1:
        return parts[0]
    axis = 0 if lanes is None else 1
    later = [jax.tree.map(lambda leaf: leaf[(slice(None),) * axis + (slice(1, None),)], part[1]) for part in parts[1:]]
    records = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=axis), parts[0][1], *later)
    return mark_failures(records, parts[-1][0], schedule.sources(*source))[::-1]


def _go_on(consts: Constants, loop: LoopState) -> LoopState:
    return loop


def _run_members_at_once(schedule: Schedule, members: Members, step: Any, known: list[Any] | None) -> Run | None:
    """Return a run of members by a `LaneChain` or `HostLanes`, the call being `known` then; else None."""
    if schedule.t_end is not None or schedule.progress is not None or schedule.lanes is None:
        return None
    integrator, system, kernel, asked = schedule.integrator, members.system, schedule.kernel, False
    if is_traced((system, members.state, step, schedule.controls)):
        return None

    def require() -> None:
        nonlocal asked
        members.require(integrator, step)
        system.__dict__.setdefault("_taken", set()).add(integrator)
        asked = True

    h: Any = np.asarray(step, float)
    blocks = tuple(schedule.blocks())
    trees = ((system, h), members.state, schedule.controls)
    states, controls = (0 if varies else None for varies in (members.states_vary, schedule.own_controls))
    axes = (schedule.axes()[0], states, controls)
    functions = (_is_clearly_good, *kernel)
    kind = functions, trees, schedule.lanes, axes, blocks, WATCH, require, schedule.backend
    found = find_lane_chain(*kind) or find_host_lanes(*kind)
    if found is None:
        return None
    if not asked and integrator.must_ask(system):
        require()
    chain, leaves = found
    result = chain(leaves)
    if result is None:
        return None
    if known is not None and (result.backend == "cuda" or not has_gpu()):
        kind = kind_of_trees(trees)
        known[:] = [partial(_run_members_again, schedule, chain, h, kind)] if kind is not None else []
    return _finish_members(schedule, system, h, result)


def _run_members_again(
    schedule: Schedule, chain: Any, h: Any, kind: Any, system: Any, state: Any, controls: Any
) -> Run | None:
    """Return the run of members whose call was checked before: their numbers alone may be others, else None."""
    if schedule.integrator.must_ask(system) or (controls is None) is not (schedule.controls is None):
        return None
    if controls is not None:
        if not isinstance(controls, np.ndarray | jax.Array) or is_traced(controls):
            return None
        held = sample_controls(controls, 0.0, h, schedule.steps, system.inputs, schedule.lanes)
        schedule = replace(schedule, controls=held)
    result = run_again(chain, ((system, h), state, schedule.controls), kind)
    return None if result is None else _finish_members(schedule, system, h, result)


def _finish_members(schedule: Schedule, system: MechanicalSystem, h: Any, result: LaneRun) -> Run:
    """Return the run of members that lanes left."""
    records, final, held = result.records, result.carry, schedule.controls
    if result.well and result.backend == "llvm":
        finish = final
    elif result.well:
        numbers, lanes = (0, float(schedule.steps)), schedule.lanes or ()

        def finish() -> LoopState:
            status, steps = (np.broadcast_to(number, lanes) for number in numbers)
            loop: LoopState = final()._replace(status=status, steps=steps)
            return loop

    else:
        records, loop = end_before_gaps(records, final(), lanes=True)
        records, loop = as_jax(records), loop._replace(status=to_host(loop.status), steps=to_host(loop.steps))
        held = schedule.some_controls(0, max(1, int(np.max(loop.steps))))

        def finish() -> LoopState:
            return loop

    made = Run(
        system, schedule.integrator, h, records, None, result.backend, "", False, schedule.batched, held is not None,
        controls=held, every=schedule.save_every,
    )  # fmt: skip
    return made.finish_later(finish)


def finish_run(
    schedule: Schedule, system: MechanicalSystem, h: Any, chain: Chain, words: Words, held: Any,
    replay: Replay | None = None,
) -> Run:  # fmt: skip
    """Return the run from a state, with the controls that it held, that left these words."""
    if not chain.is_well(words):
        records, final = end_before_gaps(chain.records(words), chain.carry(words), lanes=False)
        held = jax.tree.map(lambda leaf: leaf[: max(1, int(final.steps))], held)
        made = Run(
            system, schedule.integrator, h, records, final, "llvm", controlled=held is not None, controls=held,
            every=schedule.save_every,
        )  # fmt: skip
        return _drop_repeated_records(made, schedule)
    tangents = None
    if isinstance(chain, SlopeChain):
        records, slopes = chain.records_with_slopes(words)
        tangents = _join_slopes(records, slopes, chain.front)
    else:
        records = chain.records(words) if replay is None else replay.records(words)
    finish, every = partial(chain.carry, words), schedule.save_every
    return Run.of_loop(system, schedule.integrator, h, records, finish, held, every, tangents)


def judge_traced(kernel: RunKernel, start: Any) -> RunKernel:
    """Return the loop that fails at a start which nobody judged, because JAX traces its numbers."""
    return kernel._replace(begin=judge_begin(kernel.begin)) if is_traced(start) else kernel


def begin_loop(schedule: Schedule, kernel: RunKernel, consts: Constants, given: Any, varies: Any = 0) -> Any:
    """Return the loop before the first step; `varies` says which parts of `given` differ from lane to lane."""
    axes = schedule.axes(varies)
    return evaluate(kernel.begin, consts, given, lanes=schedule.lanes, axes=axes, backend=schedule.backend)


def run_steps(
    schedule: Schedule, kernel: RunKernel, consts: Constants, loop: Any, read: NoteReader | None = None,
    run: Callable[..., RunResult] = run_problem,
) -> RunResult:  # fmt: skip
    """Advance the loop block by block; a remainder of less than `save_every` steps ends with a record too."""
    parts: list[RunResult] = []
    total, done = -(-schedule.steps // schedule.save_every), 0
    if schedule.t_end is not None:
        read = _stand_still_reader(_loop_state(loop), read)
    for saves, every in schedule.blocks():
        held = schedule.some_controls(done, saves * every)
        axes = schedule.axes(0, 0) if schedule.own_controls else schedule.axes(0)
        options: dict[str, Any] = {"backend": schedule.backend, "initial": not parts, "read_notes": read}
        problem = make_problem(kernel.advance, kernel.observe, consts, loop, held, lanes=schedule.lanes, axes=axes)

        def report(count: int, saves: int, before: int = sum(part.saves for part in parts)) -> None:
            if schedule.progress is not None:
                schedule.progress(before + count, max(total, before + saves))

        try:
            parts.append(run(problem, saves=saves, save_every=every, progress=report, **options))
        except RecordsTooLarge as fault:
            fits = 10 ** math.ceil(math.log10(saves * every / max(fault.fitting - 1, 1)))
            advice = f"save_every = {fits} fits" if fault.fitting > 1 else "not even two do"
            raise InvalidInput(f"save_every is {every}, and {fault}: {advice}") from fault
        before, loop, done = loop, parts[-1].carry, done + saves * every
        if parts[-1].saves < saves:  # interrupted, or no lane goes on
            break
        if schedule.t_end is not None and not _goes_on(schedule, _loop_state(before), _loop_state(loop), saves * every):
            break

    if len(parts) == 1:
        return parts[0]
    records, axis = [part.records for part in parts], 0 if schedule.lanes is None else 1
    joined = jax.tree.map(lambda *leaves: namespace(*leaves).concatenate(leaves, axis=axis), *records)
    return replace(parts[-1], records=joined, note=parts[0].note)


def _loop_state(loop: LoopState | EventMonitor) -> LoopState:
    """Return the loop without what watches it."""
    return loop.loop if isinstance(loop, EventMonitor) else loop


def _stand_still_reader(loop: LoopState, read: NoteReader | None) -> NoteReader:
    """Return a reader that also ends a run when no lane took a step since the last reading: all ended."""
    count = np.asarray(loop.steps)

    def reader(state: Any) -> tuple[float, bool]:
        nonlocal count
        fullness, over = read(state) if read is not None else (0.0, False)
        if fullness <= 1:  # else the steps are done again
            before, count = count, np.asarray(_loop_state(state).steps).copy()
            over = over or bool(np.array_equal(before, count))
        return fullness, over

    return reader


def _goes_on(schedule: Schedule, before: LoopState, after: LoopState, steps: int) -> bool:
    """Whether a lane took all of these steps; if the time stood still meanwhile, that is a failure."""
    taken, start, end = (np.ravel(x) for x in (after.steps - before.steps, before.carry.t, after.carry.t))
    stalled = np.flatnonzero((taken >= MAX_STALLED_STEPS) & (start == end))
    if len(stalled):
        where = f"t = {end[stalled[0]]:.17g}, before t_end = {schedule.t_end:g}"
        raise NumericalFailure(f"the steps of {schedule.integrator.name} shrink to nothing at {where}")
    return bool(np.any(taken == steps))


def run_with_events(
    schedule: Schedule, consts: Constants, loop: LoopState, events: tuple[Event, ...],
    run: Callable[..., RunResult] = run_problem,
) -> tuple[RunResult, dict[str, Crossings]]:  # fmt: skip
    """Run the steps and locate the events afterwards; events never alter the steps."""
    kernel, integrator = schedule.kernel, schedule.integrator
    if not events:
        return run_steps(schedule, kernel, consts, loop, run=run), {}
    if is_traced((consts, loop, schedule.controls)):
        return _run_with_traced_events(schedule, consts, loop, events)
    result, found = _find_events(schedule, consts, loop, events)
    system, h = consts[:2]
    records, final = result.records, result.carry.loop
    if found is not None:

        def restart(last: Located, before: LoopState) -> LoopState:
            own = jax.tree.map(lambda leaf: np.asarray(leaf)[last.lane], system) if schedule.batched else system
            u = schedule.rows(last.lane, last.row)
            stopped = replace(schedule, lanes=len(last.lane), t_end=None)
            begun = begin_loop(
                stopped, restart_at_event(integrator, schedule.monitor), (own, h), (before, last.record, u)
            )
            assert isinstance(begun, LoopState)
            return begun

        stops, single = np.array([event.stop for event in events]), schedule.lanes is None
        records, final = truncate_at_stops(found, stops, records, final, schedule.save_every, single, restart)
    one = jax.tree.map(lambda leaf: leaf[0, 0] if schedule.lanes is not None else leaf[0], records)
    crossings = crossings_by_event(events, found, np.asarray(result.carry.suspects), one)
    return replace(result, records=records, carry=final), crossings


def _find_events(
    schedule: Schedule, consts: Constants, loop: LoopState, events: tuple[Event, ...]
) -> tuple[RunResult, Located | None]:
    """Run the steps that are watched; return what they leave, and the crossings."""
    kernel, integrator = schedule.kernel, schedule.integrator
    log, watching = NoteLog(events, schedule.lanes), event_kernel(kernel, integrator, events)
    first = begin_loop(schedule, watching, consts, loop)
    result = run_steps(schedule, watching, consts, note_buffer(loop, first, schedule.lanes), log.read)
    done = schedule.save_every * (np.shape(result.records.steps)[-1] - 1)
    done = min(done, schedule.steps) if schedule.t_end is None else done
    before, backend, (system, h) = np.asarray(loop.steps), schedule.backend, consts[:2]
    found = find_crossings(log, system, h, integrator, schedule.rows, before, done, schedule.batched, backend)
    return result, found


def _run_with_traced_events(
    schedule: Schedule, consts: Constants, loop: LoopState, events: tuple[Event, ...]
) -> tuple[RunResult, dict[str, Crossings]]:
    """Run inside a JAX transformation: the crossings are found as ever, and then are functions of what JAX traces.

    A run that stops takes the steps before the one in which it does.
    """
    lanes, every, single = schedule.lanes or 1, schedule.save_every, schedule.lanes is None
    table, suspects, known = _look_for_events(schedule, consts, loop, events)
    xp, ends = np if known else jnp, np.flatnonzero([event.stop for event in events])
    hit = table.hit[: lanes * len(ends)].reshape(lanes, len(ends))
    last = np.arange(lanes) * len(ends) + hit.argmax(axis=1) if len(ends) else np.zeros(0, int)  # of each member
    stopped = hit.any(axis=1)
    left = xp.where(stopped, table.row[last], schedule.steps) if len(ends) else np.full(lanes, schedule.steps)
    left = 1.0 * (left[0] if single else left)
    result = run_steps(schedule, counted_kernel(schedule.kernel), consts, (loop, left))
    (records, loops), (final, _) = result.records, result.carry
    found = None
    if len(table.lane):
        row = table.row // every
        begun = take_rows(loops, row if single else (table.lane, row))
        found = _cross(schedule, consts, begun, table, events)
    if found is not None and len(ends):
        chosen = found.select(last)
        before = jax.tree.map(lambda leaf: leaf[None] if single else leaf, final)
        u = schedule.rows(np.arange(lanes), chosen.row)
        stopping = replace(schedule, lanes=lanes, t_end=None)
        kernel = restart_at_event(schedule.integrator, schedule.monitor)
        restarted = begin_loop(stopping, kernel, consts, (before, chosen.record, u))
        final = _choose(stopped, restarted, before)
        first = -(-(chosen.row + 1) // every)
        rows = jax.tree.map(lambda leaf: leaf[None] if single else leaf, records)
        late = stopped[:, None] & (np.arange(rows.steps.shape[1]) >= first[:, None])
        records = _choose(late, jax.tree.map(lambda leaf: leaf[:, None], chosen.record), rows)
        if single:
            records, final = jax.tree.map(lambda leaf: leaf[0], (records, final))
        if single and known and stopped[0]:
            records = jax.tree.map(lambda leaf: leaf[: int(first[0]) + 1], records)
    one = jax.tree.map(lambda leaf: leaf[0] if single else leaf[0, 0], records)
    if found is not None:
        theta, record = invalidate_unless(jnp.asarray(table.hit), (found.theta, found.record))
        found = found._replace(theta=theta, record=record)
    return replace(result, records=records, carry=final), crossings_by_event(events, found, suspects, one)


def _choose(condition: Any, new: Any, old: Any) -> Any:
    """Return the leaves of `new` where the condition holds, which has their first axes; else those of `old`."""

    def choose(a: Any, b: Any) -> Any:
        return jnp.where(condition.reshape(condition.shape + (1,) * (jnp.ndim(b) - condition.ndim)), a, b)

    return jax.tree.map(choose, new, old)


def _look_for_events(
    schedule: Schedule, consts: Constants, loop: LoopState, events: tuple[Event, ...]
) -> tuple[Table, Any, bool]:
    """Return (the crossings, the suspects, whether JAX knows them) of a run inside a transformation."""
    lanes, (leaves, structure) = schedule.lanes or 1, jax.tree.flatten((consts, loop, schedule.controls))

    def look(*numbers: Any) -> tuple[Table, Any]:
        given, begun, controls = jax.tree.unflatten(structure, [np.asarray(number) for number in numbers])
        quiet = replace(schedule, controls=controls, progress=None)
        result, found = _find_events(quiet, given, begun, events)
        if result.interrupted:
            raise KeyboardInterrupt
        return Table.of(found, events, lanes), np.asarray(result.carry.suspects)

    numbers = [known_number(leaf) for leaf in leaves]
    if all(number is not None for number in numbers):
        return *look(*numbers), True
    if going := [event.name for event in events if not event.stop]:
        raise InvalidInput(
            f"events: how often {going[0]!r} is crossed depends on numbers that jax.jit or jax.vmap does not know, and "
            "arrays have fixed shapes there. Give stop=True (one crossing at most), or take jax.grad, jvp, jacfwd or "
            "jacrev of simulate without jit and vmap around it; da.ensemble finds the events of many members"
        )
    table, suspects = Table.of(None, events, lanes), np.zeros((lanes, len(events)))
    wanted = (*table[2:], suspects if schedule.lanes else suspects[0])
    shapes = jax.eval_shape(lambda: [jnp.asarray(column) for column in wanted])

    def columns(*numbers: Any) -> list[Any]:
        found, counts = look(*numbers)
        return [*found[2:], np.asarray(counts, float)]

    found = jax.pure_callback(columns, shapes, *map(jax.lax.stop_gradient, leaves), vmap_method="sequential")
    return Table(table.lane, table.which, *found[:4]), found[4], False


def _cross(schedule: Schedule, consts: Constants, begun: LoopState, table: Table, events: tuple[Event, ...]) -> Located:
    """Return the crossings with their states as functions of what JAX traces; `begun` are the saved loops before."""
    count, every, (system, h) = len(table.lane), schedule.save_every, consts[:2]
    own = jax.tree.map(lambda leaf: leaf[table.lane], system) if schedule.batched else system
    axes = (0 if schedule.batched else None, None)
    if every > 1:
        left = table.row % every
        index = namespace(table.row).minimum((table.row - left)[:, None] + np.arange(every - 1), schedule.steps - 1)
        u = schedule.rows(table.lane[:, None], index)
        kernel = counted_kernel(schedule.kernel)
        options: dict[str, Any] = {"lanes": count, "axes": (axes, 0, 0)}
        problem = make_problem(kernel.advance, kernel.observe, (own, h), (begun, 1.0 * left), u, **options)
        begun, _ = run_problem(problem, saves=1, save_every=every - 1, backend=schedule.backend).carry
    u = schedule.rows(table.lane, table.row)
    given = (begun, u, 1.0 * table.theta, 1.0 * table.which, 1.0 * table.hit)
    options = {"lanes": count, "axes": (axes, 0), "backend": schedule.backend}
    theta, record = evaluate(crossing_kernel(schedule.integrator, events), (own, h), given, **options)
    return Located(table.lane, table.which, theta, table.direction, record, table.row)


def _integrate_tangents_at_events(
    schedule: Schedule, system: MechanicalSystem, h: Array, state: State, events: tuple[Event, ...],
    curve: Callable[[Any], Any], directions: int | None,
) -> Run:  # fmt: skip
    """Run with events; the derivatives along the curve are those that JAX takes of the run with as many steps."""
    made = _integrate(schedule, system, h, state, None, events)
    count = max(1, int(made.final.steps))
    held = jax.tree.map(lambda leaf: leaf[:count], schedule.controls)
    again = replace(schedule, controls=held, steps=count, t_end=None, progress=None)
    reals, others, join = split_reals((system, state, h))
    found = _slopes_of_problems((system, state, h), curve, directions)
    assert not isinstance(found, Run)
    along = [slope for part in found[1] for slope in part]

    def numbers(*values: Any) -> list[list[Any]]:
        system, state, h = join(list(values), others)
        run = _integrate(again, system, h, state, None, events)
        return [split_reals(record)[0] for record in (run.records, *(run.events[each.name].record for each in events))]

    def push(*slopes: Any) -> Any:
        return jax.jvp(numbers, tuple(reals), slopes)[1]

    pushed, front = (push(*along), ()) if directions is None else (jax.vmap(push)(*along), (directions,))

    def tangents_of(record: Record, slopes: list[Any]) -> Record:
        _, others, join = split_reals(record)
        rows = (slice(None),) * len(front) + (slice(len(record.steps)),)
        still = [np.zeros((*front, *leaf.shape)) for leaf in others]
        joined: Record = join([np.asarray(leaf)[rows] for leaf in slopes], still)
        return joined

    crossings = {
        name: replace(found, tangents=tangents_of(found.record, slopes))
        for (name, found), slopes in zip(made.events.items(), pushed[1:], strict=True)
    }
    return replace(made, tangents=tangents_of(made.records, pushed[0]), events=crossings)


def _integrate_tangents(
    schedule: Schedule, system: MechanicalSystem, h: Any, state: State, curve: Callable[[Any], Any],
    directions: int | None, require: Callable[[], None], known: list[Any] | None,
) -> Run:  # fmt: skip
    """Run with the derivatives along a curve of problems, or a surface of them, beside the loop."""
    t_end = None if schedule.t_end is None else array(schedule.t_end)
    consts, given = schedule.constants(system, h, t_end), (state, schedule.first_controls)
    front = () if directions is None else (directions,)

    def run_at_once(slopes: Any, arrays: list[Any], moving: tuple[bool, ...]) -> Run | None:
        step, own = h if is_traced(h) else float(h), None if slopes is _give_slopes else known
        return _run_at_once(schedule, system, step, state, own, (slopes, arrays, moving, directions))

    found = _slopes_of_problems((system, state, h), curve, directions, run_at_once)
    if isinstance(found, Run):
        return found
    moving, (d_system, d_state, d_step) = found
    require()
    still = [np.zeros((*front, *np.shape(leaf))) for leaf in jax.tree.leaves(given[1])]
    of_consts, pushed = [*d_system, *d_step], [*d_state, *still]
    moving = (*moving, False) if len(consts) > 2 else moving
    rows: list[list[Any]] = []

    def run(problem: Problem, **options: Any) -> RunResult:
        nonlocal pushed
        result, pushed, slopes = run_with_slopes(problem, moving, [*of_consts, *pushed], directions, **options)
        rows.append(slopes)
        return result

    first = make_problem(keep_carry, judge_traced(schedule.kernel, (consts, state)).begin, consts, given)
    loop = jax.tree.map(lambda leaf: leaf[0], run(first, saves=1, backend=schedule.backend).records)
    axis = len(front)
    pushed = [leaf.take(0, axis) for leaf in rows.pop()]
    run_made = _integrate(schedule, system, h, state, loop, (), run=run)
    kept = (slice(None),) * axis + (slice(len(run_made.t)),)
    slopes = [namespace(*parts).concatenate(parts, axis)[kept] for parts in zip(*rows, strict=True)]
    return replace(run_made, tangents=_join_slopes(run_made.records, slopes, front))


def _join_slopes(records: Record, slopes: list[Any], front: tuple[int, ...]) -> Record:
    """Return records with the slopes of their real numbers, and zeros for the others."""
    _, others, join = split_reals(records)
    joined: Record = join(slopes, [np.zeros((*front, *leaf.shape)) for leaf in others])
    return joined


@dataclass(frozen=True)
class CurveSlopes:
    """The slopes of the `moving` leaves along a curve of problems, s -> (system, state, step).

    `shapes` are those of the leaves of each part, and whether they are real.
    """

    curve: Template | Callable[[Any], Any]
    shapes: tuple[tuple[tuple[tuple[int, ...], bool], ...], ...]
    directions: int | None
    moving: tuple[tuple[bool, ...], ...]

    def __call__(self, arrays: Any, carry: Any) -> list[list[Any]]:
        def along(direction: Any) -> Any:
            return jax.jvp(partial(self.leaves, arrays), (jnp.zeros_like(direction),), (direction,))[1]

        found: list[list[Any]]
        found = along(jnp.ones(())) if self.directions is None else jax.vmap(along)(jnp.eye(self.directions))
        return found

    def leaves(self, arrays: Any, s: Any) -> list[list[Any]]:
        """Return the moving leaves of each part of the problem at s."""
        made = (self.curve.fill(list(arrays)) if isinstance(self.curve, Template) else self.curve)(s)
        parts = [jax.tree.leaves(part) for part in made] if isinstance(made, tuple) else []
        if [[*map(np.shape, part)] for part in parts] != [[shape for shape, _ in part] for part in self.shapes]:
            raise InvalidInput(
                "tangents(s) is no curve of problems; allowed: s -> (system, state, step), each of its kind"
            )
        pairs = zip(parts, self.moving, strict=True)
        return [[jnp.asarray(leaf, float) for leaf, mark in zip(*each, strict=True) if mark] for each in pairs]

    def find_moving(self, arrays: Any) -> CurveSlopes | None:
        """Return the same of those leaves of system and step alone that depend on s, as the program says.

        None where the curve needs to know the numbers that are its inputs.
        """
        s = np.zeros(() if self.directions is None else self.directions)
        try:
            program = jax.make_jaxpr(self.leaves)(arrays, s).jaxpr
        except Exception:  # whatever it is: the curve is called as it was given, and says it then
            return None
        reached = {id(program.invars[-1])}
        for equation in program.eqns:
            if any(id(each) in reached for each in equation.invars):
                reached.update(map(id, equation.outvars))
        found = iter([id(each) in reached for each in program.outvars])
        system, _, step = (tuple([mark and next(found) for mark in part]) for part in self.moving)
        return replace(self, moving=(system, self.moving[1], step))


def _slopes_of_problems(
    problem: tuple[MechanicalSystem, State, Array],
    curve: Callable[[Any], Any],
    directions: int | None,
    run: Callable[[Any, list[Any], tuple[bool, ...]], Run | None] | None = None,
) -> Run | tuple[tuple[bool, ...], list[list[Any]]]:
    """Return which leaves of the system and the step move, and the slopes of these and of the real leaves of the state.

    A curve that the same code makes again is traced once, with the arrays that it closes over as inputs. What `run`
    makes of a function of these, the arrays and what moves is returned instead; without it all real leaves move.
    """
    parts = [jax.tree.leaves(part) for part in problem]
    shapes = tuple([tuple([(np.shape(leaf), is_real(leaf)) for leaf in part]) for part in parts])
    real = tuple([tuple([mark for _, mark in part]) for part in shapes])
    for take in () if is_traced(parts) or run is None else ("numbers", "arrays", "traced"):
        found = recognise(curve, take=take, tell=False)
        if found is None or (leaves := concrete_leaves(found[1])) is None:
            break
        if leaves and found[0].asks:
            continue
        given = CurveSlopes(found[0], shapes, directions, real)
        known = remember((given, shapes_of(leaves)), partial(given.find_moving, leaves))
        if known is None:
            continue
        moving = known.moving[0] + known.moving[2]
        if made := run and run(known, leaves, moving):
            return made
        if plan := find_plan(known, leaves, ()):
            return moving, plan[0].evaluate(plan[1])
    slopes: Any = call_own("tangents(s)", CurveSlopes(curve, shapes, directions, real), (), ())
    moving = real[0] + real[2]
    if is_traced(slopes):
        return moving, slopes
    slopes = jax.tree.map(np.asarray, slopes)
    return (run and run(_give_slopes, slopes, moving)) or (moving, slopes)


def _give_slopes(slopes: Any, carry: Any) -> Any:
    return slopes


def _drop_repeated_records(made: Run, schedule: Schedule) -> Run:
    """Drop the records after a run failed, or after it came to t_end: it stayed where it was."""
    well = schedule.lanes is not None or is_traced(made.final.status) or int(made.final.status) == OK
    if schedule.t_end is None and well:
        return made
    steps = np.atleast_2d(np.asarray(made.records.steps))
    good = np.count_nonzero(np.any(np.diff(steps, prepend=-2) > 0, axis=0))
    part = (slice(None),) * (schedule.lanes is not None) + (slice(good),)
    return replace(made, records=jax.tree.map(lambda leaf: leaf[part], made.records))


# The members of an ensemble.


@dataclass(frozen=True)
class Members:
    """A system and a state, of which those that vary have a leading axis."""

    system: MechanicalSystem
    state: State
    systems_vary: bool
    states_vary: bool

    @property
    def number(self) -> int:
        """The number of members."""
        return int(jax.tree.leaves(self.state if self.states_vary else self.system)[0].shape[0])

    def one(self, k: int) -> tuple[MechanicalSystem, State]:
        """Return the system and the state of member k."""

        def pick(tree: Any, varies: bool) -> Any:
            return (
                jax.tree.map(lambda leaf: leaf[k] if is_traced(leaf) else to_host(in_place(leaf)[k]), tree)
                if varies
                else tree
            )

        return pick(self.system, self.systems_vary), pick(self.state, self.states_vary)

    def require(self, integrator: Integrator, step: float) -> None:
        """Check that axes agree, and every start at once; then one that is refused, or the first, as that of a run."""
        sizes = {leaf.shape[0] for leaf in jax.tree.leaves(self.system)} if self.systems_vary else set()
        sizes |= {leaf.shape[0] for leaf in jax.tree.leaves(self.state)} if self.states_vary else set()
        if len(sizes) != 1:
            raise InvalidInput(f"the members disagree in number: leading axes {sorted(sizes)}")
        if is_traced((self.system, self.state, step)):
            return
        axes = ((0 if self.systems_vary else None, None), 0 if self.states_vary else None)
        consts = (self.system, np.asarray(step, float))
        clear = evaluate(_is_clearly_good, consts, self.state, lanes=self.number, axes=axes)
        k = 0 if bool(in_place(clear).all()) else self._find_doubtful(consts, axes)
        try:
            require_state(*self.one(k), step)
            integrator.require(*self.one(k), step)
        except InvalidInput as fault:
            fault.args = (f"member {k}: {fault}",)
            raise

    def _find_doubtful(self, consts: Constants, axes: Any) -> int:
        """Return the first member that is refused, else one whose L_xi_xi is indefinite, else the first."""
        found = evaluate(_judge_start, consts, self.state, lanes=self.number, axes=axes)
        good, metric, rows = map(np.asarray, to_host(found))
        some = np.flatnonzero(good)
        some = some[np.linalg.matrix_rank(rows[some]) == rows.shape[1]] if rows.shape[1] else some
        lowest, least = np.full((2, len(good)), -np.inf)
        values = metric_on_D(metric[some], rows[some])[0]
        lowest[some], least[some] = values.min(axis=1, initial=np.inf), np.abs(values).min(axis=1, initial=np.inf)
        refused = ~(least > SINGULAR_METRIC)
        return int(np.argmax(refused if refused.any() else lowest < 0.0))  # that it is indefinite is said of one member


def stack_members(
    system: MechanicalSystem | list[MechanicalSystem], state: State | list[State], batched_system: bool
) -> Members:
    """Return the members that an `ensemble` is given; lists are stacked."""
    systems: MechanicalSystem = _stack(system, "systems") if isinstance(system, list) else system
    states: State = _stack(state, "states") if isinstance(state, list) else state
    systems, states = as_jax((systems, states))
    states = in_doubles(states)
    if batched_system and not isinstance(system, list):
        _require_axes(systems)
    members = Members(systems, states, batched_system or isinstance(system, list), states.xi.ndim == 2)
    if not (members.systems_vary or members.states_vary):
        raise InvalidInput(
            "an ensemble needs a leading axis on the states (state.xi of shape (members, n)), a list of systems, or "
            "one whose leaves have that axis, with batched_system=True; for one run use simulate"
        )
    return members


def _require_axes(systems: MechanicalSystem) -> None:
    """Refuse a system that shall be many, but has numbers without an axis for them."""
    if all(np.ndim(leaf) for leaf in jax.tree.leaves(systems)):
        return
    places = jax.tree_util.tree_leaves_with_path(systems)
    name = next(jax.tree_util.keystr(path) for path, leaf in places if not np.ndim(leaf))
    raise InvalidInput(
        f"batched_system=True, but {name.lstrip('.')} is one number; allowed: a leading axis on every parameter, as "
        "jax.vmap(make)(values) gives it; or jax.vmap around simulate"
    )


def _stack(items: list[Any], what: str) -> Any:
    if len({jax.tree.structure(item) for item in items}) > 1:  # a number in a closure is 0 or 1 in some members, say
        items = list(map(free_numbers, items))
    if len({jax.tree.structure(item) for item in items}) != 1:
        raise InvalidInput(
            f"the {what} of an ensemble must be of one kind (same group, functions and parameter structure), "
            "and at least one"
        )
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]), *items)


def _is_clearly_good(consts: Constants, state: State) -> Array:
    """Return whether a state passes all of `_judge_start` and what follows, far within every bound."""
    (system, h), t = consts, state.t
    good: Array = judge_start(system, state[:3])[0]
    good = good & jnp.isfinite(jnp.sum(state.momentum)) & (t + h != t)
    return good


def _judge_start(consts: Constants, state: State) -> tuple[Array, Array, Array]:
    """Return whether a state is finite and on the constraints, L_xi_xi there, and the rows along which these react."""
    (system, h), (t, g, xi, momentum) = consts, state[:4]
    rows, phi, metric = system.rows(t, g)(xi), system.phi(t, g), system.metric(t, g, xi)
    sizes = jnp.sqrt(jnp.sum(rows * rows, axis=1))
    off = jnp.concatenate([system.residual(t, g, xi), phi])
    scale = jnp.concatenate([1.0 + sizes * jnp.sqrt(xi @ xi), 1.0 + sizes[sizes.shape[0] - phi.shape[0] :]])
    finite = jnp.isfinite(system.energy(t, g, xi) + jnp.sum(metric) + jnp.sum(rows) + jnp.sum(xi) + jnp.sum(momentum))
    return finite & jnp.all(jnp.abs(off) <= ADMISSIBLE_TOLERANCE * scale) & (t + h != t), metric, rows
