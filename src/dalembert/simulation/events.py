"""Events: zeros of a function along the motion. What a user asks for, how the loop notes them, how they are located.

The parts stand in the order in which a run uses them. `Event` and `Quantity` say what to look for. `event_kernel` is
the loop that looks for changes of sign after every step and notes the steps in which there are some. `NoteLog` reads
these notes between chunks of work. `find_crossings` locates the zeros inside the noted steps. `truncate_at_stops`
ends the lanes that an event stops. Between two states of a run, the state is that of the method's own step of a part of
the size (`partial_step`): dense output that belongs to the method, and that `states_at` gives at any times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, require_name
from ..integrators import OK, Integrator
from ..kernels import Backend, evaluate, make_problem, run_problem
from ..mechanics import Driven, MechanicalSystem, State
from ..numerics import finite, is_traced, namespace, own_value, require_instance, show
from .loop import TIME_TOLERANCE, Constants, LoopState, RunKernel, invalidate_unless, run_kernel, update_peaks
from .results import Crossings, Numbers, Record, Run

QUANTITIES = ("configuration", "angles", "velocity", "momentum", "energy", "time")
SCALARS = ("energy", "time")
NOTE_BUFFER_WORDS = 72
"""Words of notes that a run keeps until the host reads them: with more, compiled code copies them at every step. A lane
keeps one note, for it has a sixteenth of the registers (4096 lanes: 17 ns a step without events, 25 with one note, 60
with four)."""
START_TOLERANCE = 1e-9
"""A run that starts within this share of a step before an event starts at the event, which is not counted."""
ULP = 2.0**-52
SEARCH_STEPS = 12
"""Steps of the root finder between two looks at which are done: most crossings need about eight."""
MAX_SEARCH_ROUNDS = 10
JUMP_SHARE = 1e-3
"""A function that changes sign where it is still this share of its change over the step jumps there: no zero."""


@dataclass(frozen=True)
class Quantity:
    """A ready function for an event: a quantity of the motion of this `kind`, minus the `value` that it crosses.

    `kind` is "configuration", "angles", "velocity", "momentum" (dL/dxi), "energy" or "time". `index` picks a component:
    (row, column) of a matrix, the factor of a product first. Angles count whole turns: pi/2 + 4 pi comes after two.
    """

    kind: str
    index: tuple[int, ...] = ()
    value: float = 0.0

    def __post_init__(self) -> None:
        require_name("quantity", self.kind, QUANTITIES)
        if not isinstance(self.index, tuple) or not all(isinstance(k, int) for k in self.index):
            raise InvalidInput(f"the index of a quantity is {self.index!r}; allowed: a tuple of whole numbers, as (1,)")
        finite("the value of an event", self.value)

    def __call__(self, system: MechanicalSystem, state: State, angles: Array) -> Any:
        found = self._all_components(system, state, angles)
        for k in self.index:
            found = found[k]
        return found - self.value

    def _all_components(self, system: MechanicalSystem, state: State, angles: Array) -> Any:
        t, g, xi = state[:3]
        if self.kind in ("momentum", "energy"):
            return getattr(system, self.kind)(t, g, xi)
        return {"configuration": g, "angles": angles, "velocity": xi, "time": t}[self.kind]

    def require(self, system: MechanicalSystem) -> None:
        """Refuse an index that picks no number of this system."""
        group = system.group
        xi = jnp.zeros(group.dim)

        def components(g: Any) -> Any:
            return self._all_components(system, State(jnp.zeros(()), g, xi, xi, xi), group.angles(g))

        left = jax.eval_shape(components, group.identity())
        for k in self.index:
            size = len(left) if isinstance(left, tuple) else (left.shape or (0,))[0]
            if not 0 <= k < size:
                raise InvalidInput(
                    f"index {list(self.index)} of {self.kind}: {k} is not one of 0 to {size - 1} on {group}"
                )
            left = left[k] if isinstance(left, tuple) else jax.eval_shape(lambda x: x[0], left)
        if isinstance(left, tuple) or left.shape:
            what = f"{len(left)} factors" if isinstance(left, tuple) else f"an array of shape {left.shape}"
            raise InvalidInput(
                f"index {list(self.index)} of {self.kind} picks {what} on {group}; an event needs one number: "
                "give a longer index"
            )


@dataclass(frozen=True)
class Event:
    """A moment that a run finds to round-off, and may stop at: a zero of function(t, g, xi, p).

    The function is pure JAX and returns one number, p are the parameters of the system; or it is a `Quantity`. With
    `direction` 1 only upward crossings count, with -1 downward ones, with 0 both. `stop=True` ends the run there (in an
    ensemble: that member).

    Only a change of sign between the ends of a step is detected: not a touch, not two crossings within a step
    (`Crossings.suspects` counts steps where these are likely); a zero at the start does not count. Inside `jax.grad`
    times and states at crossings have derivatives. Under `jit` and `vmap` only events that stop a run have them: one
    row, which is NaN if the event does not happen.
    """

    function: Callable[..., Array]
    direction: int = 0
    stop: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidInput(f"an event needs a function(t, g, xi, p); given {self.function!r}")
        if not isinstance(self.name, str) or "/" in self.name:
            raise InvalidInput(
                f"the name of an event is {self.name!r}; allowed: text without '/', for files have columns of that name"
            )
        if not isinstance(self.direction, int) or self.direction not in (-1, 0, 1):
            raise InvalidInput(f"direction is {show(self.direction)}; allowed: 1 (upwards), -1 (downwards), 0 (both)")

    def value(self, system: MechanicalSystem, state: State, angles: Array) -> Array:
        """Return the function at a state, with the unwrapped angles of its configuration."""
        if isinstance(self.function, Quantity):
            return jnp.asarray(self.function(system, state, angles))
        words = f"the function(t, g, xi, p) of {self.name or 'an event'!r}"
        return own_value(words, self.function, state.t, state.g, state.xi, parameters(system))


def parameters(system: MechanicalSystem) -> Any:
    """Return the pytree p of a system, also of one that forces drive; None where it has none."""
    inner = system.system if isinstance(system, Driven) else system
    return parameters(inner) if inner is not system else getattr(system, "parameters", None)


def check_events(events: Sequence[Event], system: MechanicalSystem, state: State) -> tuple[Event, ...]:
    """Return the events, each with its own name, checked on one state."""
    if isinstance(events, Sequence) and not events:
        return ()
    given = (events,) if isinstance(events, Event) else tuple(events) if isinstance(events, Sequence) else (events,)
    for event in given:
        require_instance("an event", event, Event, "a list of dalembert.Event")
        if is_traced(captured_values(event.function)):
            raise InvalidInput(
                f"the function of {event.name or 'an event'!r} holds a number that JAX traces; allowed: known numbers. "
                "Put it into the parameters p of the system, for function(t, g, xi, p)"
            )
    found = tuple(replace(event, name=event.name or f"event {k}") for k, event in enumerate(given))
    names = [event.name for event in found]
    if len(set(names)) < len(names):
        raise InvalidInput(f"the names of events are {names}; allowed: each once")
    for event in found:
        if isinstance(event.function, Quantity):
            event.function.require(system)
        shape = jax.eval_shape(lambda s, z, event=event: event.value(s, z, s.group.angles(z.g)), system, state)
        if shape.shape or not jnp.issubdtype(shape.dtype, jnp.floating):
            raise InvalidInput(
                f"the function of {event.name!r} gives {shape.dtype}{list(shape.shape)}; allowed: one real number"
            )
    return found


def captured_values(function: Any) -> list[Any]:
    """Return what a function holds beside its arguments: the value of a quantity, what it closes over, its defaults."""
    if isinstance(function, Quantity):
        return [function.value]
    held = [*getattr(function, "args", ()), *getattr(function, "keywords", {}).values()]
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # not filled yet
            held.append(cell.cell_contents)
    return [*held, *(getattr(function, "__defaults__", None) or ())]


# The loop that notes the steps with crossings.


class StepStart(NamedTuple):
    """Where a step begins: the state with unwrapped angles, the number of steps before it, and its size."""

    state: State
    angles: Array
    steps: Any
    size: Any


class CrossingNote(NamedTuple):
    """A step in which something crossed zero: its start, the functions there, and at its end (NaN: not crossed)."""

    start: StepStart
    before: Any
    after: Any


class EventMonitor(NamedTuple):
    """The loop with the functions at its last two states, the number of notes so far, and the last of them."""

    loop: LoopState
    values: Any
    earlier: Any
    noted: Any
    notes: CrossingNote  # a ring: leaves have a row for each note
    suspects: Any
    stopped: Any


@lru_cache(maxsize=256)
def event_kernel(kernel: RunKernel, integrator: Integrator, events: tuple[Event, ...]) -> RunKernel:
    """Return the loop that watches events; its `begin` takes a loop and gives what `note_buffer` needs."""
    direction = np.array([event.direction for event in events])
    stops = np.array([event.stop for event in events])

    def make_note(consts: Constants, loop: LoopState, values: Array, after: Array, size: Any) -> CrossingNote:
        """Note the step that follows `loop`. No method starts from an increment."""
        record = kernel.observe(consts, loop)
        start = StepStart(record.state._replace(increment=None), record.angles, loop.steps, size)
        return CrossingNote(start, values, after)

    def values_at(consts: Constants, loop: LoopState) -> Array:
        record = kernel.observe(consts, loop)
        return jnp.stack([event.value(consts[0], record.state, record.angles) for event in events])

    def begin(consts: Constants, loop: LoopState) -> tuple[Array, CrossingNote]:
        values = values_at(consts, loop)
        return values, make_note(consts, loop, values, values, consts[1] if integrator.variable_step else None)

    def advance(consts: Constants, w: EventMonitor, u: Any) -> EventMonitor:
        loop = kernel.advance(consts, w.loop, u)
        went = (loop.steps > w.loop.steps) & ~w.stopped
        values = jnp.where(went, values_at(consts, loop), w.values)
        up, down = (w.values < 0.0) & (values >= 0.0), (w.values > 0.0) & (values <= 0.0)
        at_start = jnp.isnan(w.earlier) & (jnp.abs(w.values) <= START_TOLERANCE * jnp.abs(values - w.values))
        crossed = went & ~at_start & (up & (direction >= 0) | down & (direction <= 0))
        ends = jnp.any(crossed & stops)

        def write(notes: CrossingNote) -> CrossingNote:
            after = jnp.where(crossed, values, jnp.nan)
            size = loop.carry.size if integrator.variable_step else None
            note = make_note(consts, w.loop, w.values, after, size)
            here = jnp.arange(1.0 * note_capacity(notes)) == w.noted % note_capacity(notes)
            written: CrossingNote = jax.tree.map(
                lambda all, one: jnp.where(here[(...,) + (None,) * jnp.ndim(one)], one, all), notes, note
            )
            return written

        some = jnp.any(crossed)
        notes = jax.lax.cond(some, write, lambda notes: notes, w.notes)
        if stops.any():  # the loop stays before the step in which it stops
            loop = jax.tree.map(lambda a, b: jnp.where(w.stopped | ends, b, a), loop, w.loop)
        suspects = w.suspects + jnp.where(went & _may_cross_twice(w.earlier, w.values, values), 1.0, 0.0)
        earlier, noted = jnp.where(went, w.values, w.earlier), w.noted + jnp.where(some, 1.0, 0.0)
        return EventMonitor(loop, values, earlier, noted, notes, suspects, w.stopped | ends)

    def observe(consts: Constants, w: EventMonitor) -> Any:
        return kernel.observe(consts, w.loop)

    return RunKernel(begin, advance, observe)


def _may_cross_twice(a: Array, b: Array, c: Array) -> Array:
    """Whether the parabola through three values of one sign has its vertex near the middle one, beyond zero."""
    sign = jnp.sign(b)
    bend, slope = 0.5 * sign * (a - 2 * b + c), 0.5 * sign * (c - a)
    inside = (jnp.abs(slope) <= bend) & (slope * slope > 4 * bend * sign * b)
    return inside & (a * b > 0.0) & (b * c > 0.0)


def note_capacity(notes: CrossingNote, lanes: bool = False) -> int:
    """Return the number of notes in the ring (of each lane)."""
    return int(np.shape(notes.start.steps)[int(lanes)])


def note_buffer(loop: LoopState, first: tuple[Array, CrossingNote], lanes: int | None) -> EventMonitor:
    """Return a watched loop before its first step, from what the `begin` of its kernel gave."""
    (values, note), lead = first, () if lanes is None else (lanes,)
    words = sum(np.size(leaf) for leaf in jax.tree.leaves(note)) // (lanes or 1)
    rows = max(1, NOTE_BUFFER_WORDS // words) if lanes is None else 1
    empty = jax.tree.map(lambda leaf: np.zeros((*lead, rows, *np.shape(leaf)[len(lead) :])), note)
    none = np.zeros_like(values)
    return EventMonitor(loop, values, np.full_like(values, np.nan), np.zeros(lead), empty, none, np.zeros(lead, bool))


@dataclass
class NoteLog:
    """The notes of a run, read from its loop between chunks of work."""

    events: tuple[Event, ...]
    lanes: int | None
    count: Any = 0
    notes: list[tuple[Numbers, CrossingNote]] = field(default_factory=list)

    def read(self, w: EventMonitor) -> tuple[float, bool]:
        """Take the new notes; return how full the ring was (above 1: some are lost) and whether all lanes ended."""

        def by_lane(leaf: Any) -> Numbers:
            return np.asarray(leaf) if self.lanes else np.asarray(leaf)[None]

        count, capacity = by_lane(w.noted).astype(int), note_capacity(w.notes, self.lanes is not None)
        new = count - self.count
        if new.max() <= capacity:
            for k in range(new.max()):
                lanes = np.flatnonzero(new > k)
                rows = (count - new + k)[lanes] % capacity
                note = jax.tree.map(lambda leaf, at=(lanes, rows): by_lane(leaf)[at], w.notes)
                self.notes.append((lanes, note))
            self.count = count
        return float(new.max() / capacity), bool(np.all(w.stopped | (w.loop.status != OK)))

    def notes_before(self, number: Any) -> tuple[Numbers, CrossingNote] | None:
        """Return (lanes, notes) of all steps that begin before step `number`, in the order of lanes and steps."""
        if not self.notes:
            return None
        lanes = np.concatenate([lanes for lanes, _ in self.notes])
        notes = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[note for _, note in self.notes])
        order = np.lexsort((notes.start.steps, lanes))
        order = order[notes.start.steps[order] < np.broadcast_to(number, self.lanes or 1)[lanes[order]]]
        return lanes[order], jax.tree.map(lambda leaf: leaf[order], notes)


# Zeros inside the noted steps.


class Located(NamedTuple):
    """The crossings of a run, one row each, in the order of lane, step and theta."""

    lane: Numbers
    which: Numbers  # the number of the event
    theta: Numbers
    direction: Numbers
    record: Record
    row: Numbers  # of the step among those of this run

    def select(self, rows: Any) -> Located:
        """Return some of the crossings: a mask or indices."""
        chosen: Located = take_rows(self, rows)
        return chosen


def rows_of(controls: Any, lane: Any, row: Any, xp: Any) -> Any:
    """Return where in controls the rows of some lanes lie, of which the last stays in force."""
    if controls.ndim == 3:
        return lane, xp.minimum(row, controls.shape[1] - 1)
    return xp.minimum(row, len(controls) - 1)


def take_rows(tree: Any, rows: Any) -> Any:
    """Return the leaves of a tree at some rows, which JAX may trace."""
    return jax.tree.map(lambda leaf: (jnp.asarray(leaf) if is_traced(rows) else leaf)[rows], tree)


def find_crossings(
    log: NoteLog, system: MechanicalSystem, h: Any, integrator: Integrator, controls: Any, first: Numbers, done: int,
    batched: bool, backend: Backend,
) -> Located | None:  # fmt: skip
    """Locate all crossings of a run whose lanes had done `first` steps before it and did `done` in it.

    controls(lane, row) are those of some lanes in some steps. Of the crossings in the step in which a lane stops, those
    before it stops are kept.
    """
    noted = log.notes_before(first + done)
    if noted is None or not len(noted[0]):
        return None
    lanes, notes = noted
    row, which = np.nonzero(~np.isnan(notes.after))
    note, lane = jax.tree.map(lambda leaf: leaf[row], notes), lanes[row]
    index = (note.start.steps - np.broadcast_to(first, log.lanes or 1)[lane]).astype(int)
    u = controls(lane, index)
    pick = np.arange(len(row)), which
    before, after = note.before[pick], note.after[pick]
    own = jax.tree.map(lambda leaf: np.asarray(leaf)[lane], system) if batched else system
    start = note.start._replace(state=note.start.state._replace(increment=note.start.state.xi))
    if not integrator.variable_step:
        start = start._replace(size=np.full(len(row), float(h)))
    query = RootQuery(start, u, which, np.sign(before))
    theta, record, good = locate_roots(own, integrator, log.events, query, before, after - before, batched, backend)
    found = Located(lane, which, theta, -np.sign(before).astype(int), record, index)
    order = np.lexsort((which, theta, note.start.steps, lane))
    found, good = found.select(order), good[order]
    stops = np.array([event.stop for event in log.events])[found.which]
    rows = np.arange(len(good))
    last = np.full(found.lane.max() + 1, len(good))  # row of the crossing that stops each lane
    np.minimum.at(last, found.lane[stops & good], rows[stops & good])
    jumps = np.flatnonzero(stops & ~good & (last[found.lane] == len(good)))
    if len(jumps):
        name, t = log.events[found.which[jumps[0]]].name, found.record.state.t[jumps[0]]
        raise InvalidInput(
            f"the function of {name!r} changes sign at t = {t:.6g} without passing through zero: it jumps there. "
            'A run can stop only at zeros: give a continuous function (an angle: Quantity("angles"))'
        )
    return found.select(good & (rows <= last[found.lane]))


@lru_cache(maxsize=256)
def partial_step(integrator: Integrator) -> Callable[..., tuple[Record, Array]]:
    """Return (system, start, theta, u) -> (record, status) of Phi_{theta h}, started anew from where a step begins.

    A method's step of size theta h has the method's order, whatever theta is. One whose carry does not depend on h
    passes through the next state of the run at theta = 1, to round-off; the others come as near to it as their order
    says.
    """
    method = integrator.method if integrator.variable_step else integrator  # type: ignore[attr-defined]  # its base
    kernel = run_kernel(method, False)

    def at(system: MechanicalSystem, start: StepStart, theta: Any, u: Any) -> tuple[Record, Array]:
        consts, group = (system, theta * start.size), system.group
        loop = kernel.advance(consts, kernel.begin(consts, (start.state, u)), u)
        record = kernel.observe(consts, loop)
        turned = group.angles(group.compose(group.inverse(start.state.g), record.state.g))
        size = consts[1] if integrator.variable_step else None
        steps = (start.steps + 1).astype(int)
        return record._replace(angles=start.angles + turned, steps=steps, step_size=size), loop.status

    return at


class RootQuery(NamedTuple):
    """What a search looks for: the step, its control, the event's number, and the sign of its function before."""

    start: StepStart
    u: Any
    which: Any
    sign: Any


class Bracket(NamedTuple):
    """theta in [a, b] with f(a) < 0 <= f(b), the end replaced last, the next theta to try, and the record at b."""

    a: Any
    fa: Any
    b: Any
    fb: Any
    replaced: Any
    f_replaced: Any
    x: Any
    tries: Any
    done: Any
    found: Record


@lru_cache(maxsize=256)
def root_search(integrator: Integrator, events: tuple[Event, ...]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return (advance, observe) of the search for zeros by Chandrupatla's method (Adv. Eng. Software 28, 1997).

    It is a bisection that interpolates where it is safe to. f = -sign e(Phi_{theta h}); the end found is the one beyond
    the event.
    """
    at = partial_step(integrator)

    def advance(consts: Any, s: Bracket, _: Any) -> Bracket:
        system, query = consts
        record, status = at(system, query.start, s.x, query.u)
        values = [event.value(system, record.state, record.angles) for event in events]
        value = sum((jnp.where(query.which == k, v, 0.0) for k, v in enumerate(values)), jnp.zeros(()))
        f = jnp.where(status == 0, -query.sign * value, jnp.nan)
        after = ~(f < 0.0)
        first = s.tries == 0
        a, fa = jnp.where(after, s.a, s.x), jnp.where(after, s.fa, f)
        replaced, f_replaced = jnp.where(after, s.b, s.a), jnp.where(after, s.fb, s.fa)
        b, fb, found = jax.tree.map(
            lambda new, old: jnp.where(after | first, new, old), (s.x, f, record), (s.b, s.fb, s.found)
        )
        new = Bracket(a, fa, b, fb, replaced, f_replaced, s.x, s.tries + 1.0, s.done, found)
        new = _next_guess(new, after, f)
        kept: Bracket = jax.tree.map(lambda a, b: jnp.where(s.done, b, a), new, s)
        return kept

    def observe(consts: Any, s: Bracket) -> Any:
        return s.b

    return advance, observe


def _next_guess(s: Bracket, after: Array, f: Array) -> Bracket:
    """Look next inside the bracket, or a little beyond the step where the sign has not changed by its end."""
    open_end = s.fb < 0.0
    beyond = 1.0 + jnp.maximum(32.0 * (s.x - 1.0), 4.0 * ULP)
    x2, f2 = jnp.where(after, s.a, s.b), jnp.where(after, s.fa, s.fb)
    x1, f1, x3, f3 = s.x, f, s.replaced, s.f_replaced
    xi, phi, alpha = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2), (x3 - x1) / (x2 - x1)
    smooth = (phi * phi < xi) & ((1.0 - phi) * (1.0 - phi) < 1.0 - xi)
    inverse = f1 / (f1 - f2) * f3 / (f3 - f2) - alpha * f1 / (f3 - f1) * f2 / (f2 - f3)
    secant = jnp.where(f1 == f1, f1 / (f1 - f2), 0.5)
    share = jnp.where(s.tries == 1.0, secant, jnp.where(smooth, inverse, 0.5))
    width = jnp.abs(x2 - x1)
    least = jnp.minimum(0.5, 0.5 * ULP / width)
    inside = x1 + jnp.clip(share, least, 1.0 - least) * (x2 - x1)
    done = jnp.where(open_end, beyond > 2.0, (s.fb == 0.0) | (width <= ULP))
    return s._replace(x=jnp.where(open_end, beyond, inside), done=done)


def locate_roots(
    system: MechanicalSystem, integrator: Integrator, events: tuple[Event, ...], query: RootQuery, before: Numbers,
    change: Numbers, batched: bool, backend: Backend,
) -> tuple[Numbers, Record, Numbers]:  # fmt: skip
    """Return (theta, record, whether it is a zero) of every search, each of them a lane of a run.

    `before` are the values at the beginning of the steps, `change` their changes over the steps.
    """
    lanes = len(before)
    own, one = jax.tree.map(lambda leaf: leaf[0], (system if batched else None, query))
    shapes = jax.eval_shape(partial_step(integrator), own if batched else system, one.start, 1.0, one.u)[0]
    record = jax.tree.map(lambda leaf: np.zeros((lanes, *leaf.shape), leaf.dtype), shapes)
    zeros, ones, minus = np.zeros(lanes), np.ones(lanes), -np.abs(before)
    search = Bracket(zeros, minus, ones, minus, zeros, minus, ones, zeros, np.zeros(lanes, bool), record)
    axes = ((0 if batched else None, 0), 0)
    for _ in range(MAX_SEARCH_ROUNDS):
        problem = make_problem(*root_search(integrator, events), (system, query), search, lanes=lanes, axes=axes)
        search = run_problem(problem, saves=1, save_every=SEARCH_STEPS, backend=backend).carry
        if np.all(search.done):
            break
    good = np.abs(search.fb) <= JUMP_SHARE * np.abs(change)
    return np.asarray(search.b), jax.tree.map(np.asarray, search.found), good


# Crossings inside JAX transformations.


class Table(NamedTuple):
    """The crossings that a transformed run looks for, one row each: of every stopping event and member one.

    Where it `hit` nothing, the other columns mean nothing. Inside `jit`, JAX knows only the lanes and the events.
    """

    lane: Numbers
    which: Numbers
    row: Any
    theta: Any
    direction: Any
    hit: Any

    @classmethod
    def of(cls, found: Located | None, events: tuple[Event, ...], lanes: int) -> Table:
        """Return what was found, with a row for each stopping event and member in front."""
        stops = np.flatnonzero([event.stop for event in events])
        lane, which = np.repeat(np.arange(lanes), len(stops)), np.tile(stops, lanes)
        none = np.zeros(len(lane), int)
        table = cls(lane, which, none, 0.5 + none, none.copy(), none > 0)
        if found is None:
            return table
        stopping = np.isin(found.which, stops)
        ended = found.select(stopping)
        place = ended.lane * len(stops) + np.searchsorted(stops, ended.which)
        for column, values in ((table.row, ended.row), (table.theta, ended.theta), (table.direction, ended.direction)):
            column[place] = values
        table.hit[place] = True
        rest = found.select(~stopping)
        others = cls(rest.lane, rest.which, rest.row, rest.theta, rest.direction, np.ones(len(rest.lane), bool))
        joined: Table = jax.tree.map(lambda a, b: np.concatenate([a, b]), table, others)
        return joined


@lru_cache(maxsize=256)
def counted_kernel(kernel: RunKernel) -> RunKernel:
    """Return the loop that advances each lane by its own number of steps; its records are (record, loop)."""

    def advance(consts: Constants, given: Any, u: Any) -> Any:
        loop, left = given
        new = kernel.advance(consts, loop, u)
        return jax.tree.map(lambda a, b: jnp.where(left > 0.0, a, b), new, loop), left - 1.0

    def observe(consts: Constants, given: Any) -> Any:
        return kernel.observe(consts, given[0]), given[0]

    return RunKernel(kernel.begin, advance, observe)


GRAZING = 1e-8
"""A function whose rate at its zero is this share of its value at the beginning of the step only touches zero there."""


@lru_cache(maxsize=256)
def crossing_kernel(integrator: Integrator, events: tuple[Event, ...]) -> Callable[..., tuple[Array, Record]]:
    """Return ((system, h), (loop, u, theta, which, hit)) -> (theta, record) at a known zero, with its derivatives.

    The share theta of the step at which e(Phi_{theta h}(z; x)) = 0 is a function of all x that the step depends on, and
    d theta/dx = -(de/dx) / (de/dtheta) by the implicit function theorem. Where e only grazes zero, it is NaN.
    """
    kernel, at = run_kernel(integrator, False), partial_step(integrator)

    def value(theta: Any, given: Any) -> Array:
        system, start, u, which, _ = given
        record, _ = at(system, start, theta, u)
        values = [event.value(system, record.state, record.angles) for event in events]
        return sum((jnp.where(which == k, each, 0.0) for k, each in enumerate(values)), jnp.zeros(()))

    @jax.custom_jvp
    def root(theta: Any, given: Any) -> Any:
        return theta

    @root.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        given, theta = primals[1], root(*primals)
        system, start, _, which, hit = given
        values = [event.value(system, start.state, start.angles) for event in events]
        before = sum((jnp.where(which == k, each, 0.0) for k, each in enumerate(values)), jnp.zeros(()))
        _, rate = jax.jvp(lambda share: value(share, given), (theta,), (jnp.ones(()),))
        _, change = jax.jvp(lambda others: value(theta, others), (given,), tangents[1:])
        factor = jnp.where(jnp.abs(rate) > GRAZING * jnp.abs(before), -1.0 / rate, jnp.nan)
        factor = jnp.where(hit > 0.0, factor, 0.0)
        return theta, factor * change

    def crossing(consts: Constants, given: Any) -> tuple[Array, Record]:
        (system, h), (loop, u, theta, *rest) = consts[:2], given
        seen = kernel.observe(consts, loop)
        size = kernel.advance(consts, loop, u).carry.size if integrator.variable_step else h
        start = StepStart(seen.state._replace(increment=seen.state.xi), seen.angles, loop.steps, size)
        share = root(theta, (system, start, u, *rest))
        return share, at(system, start, share, u)[0]

    return crossing


# What a run says of its events, and where it ends.


def crossings_by_event(
    events: tuple[Event, ...], found: Located | None, suspects: Any, like: Any
) -> dict[str, Crossings]:
    """Return the crossings by the names of their events; `like` is a record, for the shapes where there are none."""
    none = np.zeros(0, int)
    record = jax.tree.map(lambda leaf: np.zeros((0, *leaf.shape), leaf.dtype), like)
    empty = Located(none, none, np.zeros(0), none, record, none)
    counts = suspects.astype(int).reshape(-1, len(events))
    result = {}
    for k, event in enumerate(events):
        own = empty if found is None else found.select(np.flatnonzero(found.which == k))
        columns = (own.record, own.lane, own.theta, own.direction, counts[:, k])
        result[event.name] = Crossings(event.name, event.stop, *columns)
    return result


def truncate_at_stops(
    found: Located, stops: Numbers, records: Record, loop: LoopState, every: int, single: bool,
    restart: Callable[[Located, LoopState], LoopState],
) -> tuple[Record, LoopState]:  # fmt: skip
    """Return (records, loop) of a run whose stopped lanes end at their events: the records from there on repeat it.

    `restart` makes the loops at the events from the loops before. A single run ends with the record of its event.
    """
    which = np.flatnonzero(stops[found.which])
    if not len(which):
        return records, loop
    last = found.select(which)
    if single:
        records, loop = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (records, loop))
    first = -(-(last.row + 1) // every)  # the first record at or after the event
    before = jax.tree.map(lambda leaf: np.asarray(leaf)[last.lane], loop)
    late = np.arange(records.steps.shape[1]) >= first[:, None]

    def patch_records(old: Numbers, new: Numbers) -> Numbers:
        shape, old = (*late.shape, *(1,) * (old.ndim - 2)), old.copy()
        old[last.lane] = np.where(late.reshape(shape), new[:, None], old[last.lane])
        return old

    def patch_loop(old: Any, new: Any) -> Numbers:
        patched = np.array(old)
        patched[last.lane] = new
        return patched

    records = jax.tree.map(patch_records, records, last.record)
    loop = jax.tree.map(patch_loop, loop, restart(last, before))
    if single:
        records = jax.tree.map(lambda leaf: leaf[0, : first[0] + 1], records)
        loop = jax.tree.map(lambda leaf: leaf[0], loop)
    return records, loop


@lru_cache(maxsize=256)
def restart_at_event(integrator: Integrator, monitor: bool) -> RunKernel:
    """Return the loop that goes on from the event at which another stopped.

    Its `begin` takes (that loop, the record there, u).
    """
    kernel = run_kernel(integrator, monitor)

    def begin(consts: Constants, given: tuple[LoopState, Record, Any]) -> LoopState:
        (before, record, u), (system, h) = given, consts
        group, state = system.group, record.state
        loop: LoopState = kernel.begin(consts, (state, u))
        ahead = group.angles(group.compose(group.inverse(loop.carry.g), state.g))
        turns = jnp.round((record.angles - ahead - group.angles(loop.carry.g)) / (2 * jnp.pi))
        peaks = update_peaks(system, state, before.peaks) if monitor else before.peaks
        steps = 1.0 * record.steps
        return loop._replace(steps=steps, origin=loop.carry.t - steps * h, turns=turns, peaks=peaks)

    return kernel._replace(begin=begin)


# The states at any times: from the saved state before each, the method's own steps and a part of one.


def states_at(run: Run, times: Any) -> State:
    """Return the states of a run at any times within it; see `Trajectory.at`."""
    if type(times) is float and isinstance(run.t, np.ndarray) and (one := _state_in_the_next_step(run, times)):
        return one
    traced = is_traced((times, run.records, run.step))  # where the system is traced, so are the records
    xp: Any = jnp if traced else np
    wanted = xp.asarray(times, float)
    flat, single = xp.atleast_1d(wanted).ravel(), np.ndim(run.final.status) == 0
    records: Record = jax.tree.map(lambda leaf: xp.asarray(leaf)[None] if single else xp.asarray(leaf), run.records)
    h: Any = run.step if traced else float(run.step)
    saved, lanes = records.state.t, len(records.steps)
    lane, place = np.divmod(np.arange(lanes * flat.size), flat.size)
    t, forward, margin = flat[place], xp.sign(h), TIME_TOLERANCE * abs(h)
    rows = [xp.searchsorted(forward * saved[k], forward * t[lane == k], side="right") - 1 for k in range(lanes)]
    row = xp.clip(xp.concatenate(rows), 0, saved.shape[1] - 1)  # the last saved state at or before each time
    inside = (saved[lane].min(axis=1) - margin <= t) & (t <= saved[lane].max(axis=1) + margin)
    if not traced and not np.all(inside.reshape(lanes, -1).any(axis=0)):
        low, high = np.sort([saved.min(), saved.max()])
        raise InvalidInput(f"the run goes from t = {low} to {high}; there is no state at t = {t[~inside][0]}")
    first: Record = jax.tree.map(lambda leaf: leaf[lane, row], records)
    index = xp.asarray(first.steps - records.steps[lane, 0])
    held = jax.tree.map(xp.asarray, run.held_controls())
    system = jax.tree.map(lambda leaf: xp.asarray(leaf)[lane], run.system) if run.batched else run.system
    size, count, part, most = _steps_between(run, records, lane, row, t, traced)
    start = StepStart(first.state, first.angles, 1.0 * first.steps, size)
    if most:
        start = _advance_whole_steps(run, system, start, count, most, held, lane, index)
    state = start.state
    if traced or part.any():
        u = jax.tree.map(lambda leaf: leaf[rows_of(leaf, lane, index + count, xp)], held)
        axes = (0 if run.batched else None, 0)
        state = evaluate(_partial_state(run.integrator, traced), system, (start, part, u), lanes=len(t), axes=axes)
    if traced:
        state = invalidate_unless(inside, state)
    else:
        state = jax.tree.map(lambda leaf: np.where(inside.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, np.nan), state)
    shape = wanted.shape if single else (lanes, *wanted.shape)
    found: State = jax.tree.map(lambda leaf: leaf.reshape((*shape, *leaf.shape[1:])), state)
    return found


def _state_in_the_next_step(run: Run, t: float) -> State | None:
    """Return the state of a single run at a time that lies in the step after a saved state, in fewer words."""
    saved, h, states = run.t, float(run.step), run.records.state
    plain = np.ndim(saved) == 1 and h > 0.0 and not run.integrator.variable_step
    if not plain or not saved[0] <= t <= saved[-1]:
        return None
    row = int(saved.searchsorted(t, side="right")) - 1
    span = (t - float(saved[row])) / h
    if span > 1.0 - TIME_TOLERANCE and row + 1 < len(saved):
        return None
    state: State = jax.tree.map(lambda leaf: leaf[row, ...], states)
    if span < TIME_TOLERANCE:
        return state
    steps, held = run.records.steps, run.held_controls()
    u = jax.tree.map(lambda leaf: leaf[min(int(steps[row] - steps[0]), len(leaf) - 1)], held)
    start = StepStart(state, run.records.angles[row], float(steps[row]), h)
    found: State = evaluate(_partial_state(run.integrator), run.system, (start, span, u))
    return found


def _steps_between(
    run: Run, records: Record, lane: Numbers, row: Any, t: Any, traced: bool
) -> tuple[Any, Any, Any, int]:
    """Return (size of a step, whole steps, part of a step, most whole steps) from the saved state before each time."""
    xp: Any = jnp if traced else np
    after = xp.minimum(row + 1, records.steps.shape[1] - 1)
    gap = xp.maximum(records.steps[lane, after] - records.steps[lane, row], 1)
    if traced and run.every is None:
        raise InvalidInput(
            "run.at(times) needs to know how many steps lie between saved states, and this run comes from a file or "
            "from several: ask for it outside of jit, grad and vmap"
        )
    widest = run.every if traced else int(gap.max())
    assert widest is not None
    size = xp.full(len(t), run.step if traced else float(run.step))
    if run.integrator.variable_step:
        if widest > 1:
            raise InvalidInput(
                "steps of several sizes between saved states are not known: save every state (save_every = 1)"
            )
        assert records.step_size is not None
        size = xp.asarray(records.step_size[lane, after])
    span = (t - records.state.t[lane, row]) / size
    count = xp.clip(xp.floor(span + TIME_TOLERANCE), 0, gap - 1)
    part = span - count
    small = xp.where(xp.abs(part) < TIME_TOLERANCE, part, 0.0)  # it is lost, but not its derivative
    most = widest - 1 if traced else int(count.max())
    return size, count.astype(int), part - (jax.lax.stop_gradient(small) if traced else small), most


def _advance_whole_steps(
    run: Run, system: MechanicalSystem, start: StepStart, count: Any, most: int, held: Any, lane: Any, index: Any
) -> StepStart:
    """Return where the steps begin in which the times lie, at most so many steps later."""
    lanes, xp = len(count), namespace(count, start, held)
    axes, consts = (0 if run.batched else None, None), (system, run.step)
    kernel = counted_kernel(run_kernel(run.integrator, False))
    rows = index[:, None] + xp.minimum(np.arange(most), xp.maximum(count - 1, 0)[:, None])
    u = jax.tree.map(lambda leaf: leaf[rows_of(leaf, lane[:, None], rows, xp)], held)
    first = jax.tree.map(lambda leaf: leaf[:, 0], u)
    loop = evaluate(kernel.begin, consts, (start.state, first), lanes=lanes, axes=(axes, 0)), 1.0 * count
    problem = make_problem(kernel.advance, kernel.observe, consts, loop, u, lanes=lanes, axes=(axes, 0, 0))
    record, _ = run_problem(problem, saves=1, save_every=most, initial=True).records
    state, angles = record.state, record.angles
    some = count > 0
    end = jax.tree.map(lambda a, b: xp.where(some.reshape(-1, *(1,) * (b.ndim - 1)), a[:, 1], b), state, start.state)
    turned = xp.where(some[:, None], angles[:, 1] - angles[:, 0], 0.0)
    return StepStart(end, start.angles + turned, start.steps + count, start.size)


@lru_cache(maxsize=256)
def _partial_state(integrator: Integrator, moving: bool = False) -> Callable[..., Any]:
    """Return (system, (start, part, u)) -> the state a part of a step after its start; a part of 0 is the start.

    `moving`: that state moves with the part too, as the motion does, to which every method of order 1 is tangent.
    """
    at = partial_step(integrator)

    def observe(system: MechanicalSystem, given: Any) -> Any:
        start, part, u = given
        here = part == 0.0
        state = at(system, start, jnp.where(here, 1.0, part), u)[0].state
        stays = _move_start(system, start, jnp.where(here, part, 0.0), u) if moving else start.state
        return jax.tree.map(lambda a, b: jnp.where(here, b, a), state, stays)

    return observe


def _move_start(system: MechanicalSystem, start: StepStart, part: Any, u: Any) -> State:
    """Return the state where a step starts, with the derivatives of the motion in the part of the step."""
    (t, g, xi, momentum, _), s = start.state[:5], part * start.size
    rate = system.acceleration(t, g, xi, u)[0]
    there = t + s, system.group.shift(g, s * xi), xi + s * rate
    change = system.momentum(*there) - system.momentum(t, g, xi)
    if momentum.shape != change.shape:  # restricted to the subspace of an invariant system
        change = system.subspace.T @ change  # type: ignore[attr-defined]
    return start.state._replace(t=there[0], g=there[1], xi=there[2], momentum=momentum + change)
