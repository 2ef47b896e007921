"""Events: moments at which a function along the motion passes through zero, and what a run found of them.

Dense output that belongs to the method: between two steps the state is that of the method's own step of a part of the size.

The loop that looks for events after every step, and notes the steps in which there are some.

What the host makes of a watched run: its notes read between pieces, the crossings located, the lanes that stopped ended there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, UnknownName
from ..integrators import OK, Integrator
from ..kernels import Backend, make_problem, run
from ..mechanics import Driven, MechanicalSystem, State
from .loop import LoopState, RunKernel, run_kernel, update_peaks
from .results import Crossings, Record

QUANTITIES = ("configuration", "angles", "velocity", "momentum", "energy", "time")
SCALARS = ("energy", "time")


@dataclass(frozen=True)
class Quantity:
    """q - value, with a quantity q of the motion by its name.

    `index` picks a component: (row, column) of a matrix, the factor of a product first. "angles" are the unwrapped ones, so that
    pi/2 + 4 pi comes after two turns; "momentum" is the Legendre transform.
    """

    kind: str
    index: tuple[int, ...] = ()
    value: float = 0.0

    def __post_init__(self):
        if self.kind not in QUANTITIES:
            raise UnknownName("quantity", self.kind, QUANTITIES)
        if not isinstance(self.index, tuple) or not all(isinstance(k, int) for k in self.index):
            raise InvalidInput(f"the index of a quantity is {self.index!r}; allowed: a tuple of whole numbers, as (1,)")
        if not np.isfinite(self.value):
            raise InvalidInput(f"the value of an event is {self.value}; allowed: a finite number")

    def __call__(self, system: MechanicalSystem, state: State, angles: Array) -> Array:
        found = self._all(system, state, angles)
        for k in self.index:
            found = found[k]
        return found - self.value

    def _all(self, system: MechanicalSystem, state: State, angles: Array) -> Any:
        t, g, xi = state[:3]
        match self.kind:
            case "configuration":
                return g
            case "angles":
                return angles
            case "velocity":
                return xi
            case "momentum":
                return system.momentum(t, g, xi)
            case "energy":
                return system.energy(t, g, xi)
            case _:
                return t

    def require(self, system: MechanicalSystem) -> None:
        """Refuse an index that picks no number of this system."""
        group = system.group
        xi = jnp.zeros(group.dim)
        shape = lambda g: self._all(system, State(jnp.zeros(()), g, xi, xi, xi), group.angles(g))
        left = jax.eval_shape(shape, group.identity())
        for k in self.index:
            size = len(left) if isinstance(left, tuple) else (left.shape or (0,))[0]
            if not 0 <= k < size:
                raise InvalidInput(
                    f"index {list(self.index)} of {self.kind}: {k} is not one of 0 to {size - 1} on {group}"
                )
            left = left[k] if isinstance(left, tuple) else jax.ShapeDtypeStruct(left.shape[1:], left.dtype)
        if isinstance(left, tuple) or left.shape:
            what = f"{len(left)} factors" if isinstance(left, tuple) else f"an array of shape {left.shape}"
            raise InvalidInput(
                f"index {list(self.index)} of {self.kind} picks {what} on {group}; an event needs one number: give a longer index"
            )


@dataclass(frozen=True)
class Event:
    """The moments at which function(t, g, xi, p) passes through zero: upwards (direction 1), downwards (-1) or either way (0).

    The function is pure JAX with one number as its value, p are the system's parameters; or it is a `Quantity`.
    `stop=True` ends a run (in an ensemble: that member) there. Only a change of sign from one step's end to the next is seen: two
    crossings within a step are not (`Crossings.suspects` counts the steps where a parabola says so), a touch is not, and one at the
    start is not counted.
    """

    function: Callable[..., Array]
    direction: int = 0
    stop: bool = False
    name: str = ""

    def __post_init__(self):
        if not callable(self.function):
            raise InvalidInput(f"an event needs a function(t, g, xi, p); given {self.function!r}")
        if "/" in self.name:
            raise InvalidInput(
                f"the name of an event is {self.name!r}; allowed: text without '/', for files have columns of that name"
            )
        if self.direction not in (-1, 0, 1):
            raise InvalidInput(f"direction is {self.direction!r}; allowed: 1 (upwards), -1 (downwards), 0 (both)")

    def value(self, system: MechanicalSystem, state: State, angles: Array) -> Array:
        """The function at a state, with the unwrapped angles of its configuration."""
        if isinstance(self.function, Quantity):
            return self.function(system, state, angles)
        return jnp.asarray(self.function(state.t, state.g, state.xi, parameters(system)))


def parameters(system: MechanicalSystem) -> Any:
    """The pytree p of a system, also of one that forces drive; None where it has none."""
    inner = system.system if isinstance(system, Driven) else system
    return parameters(inner) if inner is not system else getattr(system, "parameters", None)


def check_events(events: Sequence[Event], system: MechanicalSystem, state: State) -> tuple[Event, ...]:
    """The events, each with a name of its own, checked on one state."""
    given = (events,) if isinstance(events, Event) else tuple(events)
    for event in given:
        if not isinstance(event, Event):
            raise InvalidInput(f"events are {given!r}; allowed: a list of dalembert.Event")
    found = tuple(replace(event, name=event.name or f"event {k}") for k, event in enumerate(given))
    names = [event.name for event in found]
    if len(set(names)) < len(names):
        raise InvalidInput(f"the names of events are {names}; allowed: each once")
    for event in found:
        _require(event, system, state)
    return found


def _require(event: Event, system: MechanicalSystem, state: State) -> None:
    if isinstance(event.function, Quantity):
        event.function.require(system)
    shape = jax.eval_shape(lambda s, z: event.value(s, z, s.group.angles(z.g)), system, state)
    if shape.shape or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise InvalidInput(
            f"the function of {event.name!r} gives {shape.dtype}{list(shape.shape)}; allowed: one real number"
        )


ULP = 2.0**-52
SEARCH_STEPS = 12
"""Steps of the root finder between two looks at who is done: most crossings need about eight."""
MAX_SEARCH_ROUNDS = 10
JUMP_SHARE = 1e-3
"""A function that is still this share of its change over the step, where it changes sign, jumps there: that is no zero."""


class StepStart(NamedTuple):
    """The end of a step: its state with unwrapped angles, its number, and the size of the step that follows."""

    state: State
    angles: Array
    steps: Array
    size: Any


@lru_cache(maxsize=256)
def partial_step(integrator: Integrator) -> Callable:
    """(system, moment, theta, u) -> (record, status) of Phi_{theta h}, started anew from the moment.

    A method's step of size theta h has the method's order, whatever theta is. One whose carry does not depend on h passes through the
    next state of the run at theta = 1, to round-off; the others come as near to it as their order says.
    """
    method = integrator.method if integrator.clock else integrator  # type: ignore[attr-defined]
    plain = run_kernel(method, False)

    def at(system: MechanicalSystem, moment: StepStart, theta: Array, u: Any) -> tuple[Record, Array]:
        consts, group = (system, theta * moment.size), system.group
        loop = plain.advance(consts, plain.begin(consts, (moment.state, u)), u)
        record = plain.observe(consts, loop)
        turned = group.angles(group.compose(group.inverse(moment.state.g), record.state.g))
        size = consts[1] if integrator.clock else None
        steps = (moment.steps + 1).astype(int)
        return record._replace(angles=moment.angles + turned, steps=steps, step_size=size), loop.status

    return at


# -- roots ----------------------------------------------------------------------------------------------------------------------
class RootQuery(NamedTuple):
    """What a search looks for: the event's number, and the sign that its function had before."""

    moment: StepStart
    u: Any
    which: Any
    sign: Any


class Bracket(NamedTuple):
    """theta in [a, b] with f(a) < 0 <= f(b), the end that was replaced last, the next theta to try, and the record at b."""

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
def root_search(integrator: Integrator, events: tuple[Event, ...]) -> tuple[Callable, Callable]:
    """(advance, observe) of the search for zeros: Chandrupatla's method, a bisection that interpolates where it is safe to.

    f = -sign e(Phi_{theta h}); the end found is the one beyond the event. (Chandrupatla, Adv. Eng. Software 28, 1997.)
    """
    at = partial_step(integrator)

    def advance(consts, s: Bracket, _) -> Bracket:
        system, sought = consts
        record, status = at(system, sought.moment, s.x, sought.u)
        values = [event.value(system, record.state, record.angles) for event in events]
        value = sum((jnp.where(sought.which == k, v, 0.0) for k, v in enumerate(values)), jnp.zeros(()))
        f = jnp.where(status == 0, -sought.sign * value, jnp.nan)
        after = ~(f < 0.0)
        first = s.tries == 0
        new = Bracket(
            jnp.where(after, s.a, s.x),
            jnp.where(after, s.fa, f),
            jnp.where(after | first, s.x, s.b),
            jnp.where(after | first, f, s.fb),
            jnp.where(after, s.b, s.a),
            jnp.where(after, s.fb, s.fa),
            s.x,
            s.tries + 1.0,
            s.done,
            jax.tree.map(lambda a, b: jnp.where(after | first, a, b), record, s.found),
        )
        new = _next_guess(new, after, f)
        return jax.tree.map(lambda a, b: jnp.where(s.done, b, a), new, s)

    return advance, _theta


def _next_guess(s: Bracket, after: Array, f: Array) -> Bracket:
    """Where to look next: inside the bracket, or a little beyond the step where the sign has not changed by its end."""
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


def _theta(consts, s: Bracket) -> Array:
    return s.b


def locate_roots(
    system: MechanicalSystem, integrator: Integrator, events: tuple[Event, ...], sought: RootQuery, before: np.ndarray,
    scale: np.ndarray, batched: bool, backend: Backend,
) -> tuple[np.ndarray, Record, np.ndarray]:  # fmt: skip
    """(theta, record, whether it is a zero) of every search, each of them a lane of a run.

    `before` are the values at the beginning of the steps, `scale` their changes over the steps.
    """
    lanes = len(before)
    first = jax.tree.map(lambda leaf: leaf[0], (system, sought) if batched else (None, sought))
    shapes = jax.eval_shape(partial_step(integrator), first[0] if batched else system, first[1].moment, 1.0, first[1].u)[0]
    room = jax.tree.map(lambda leaf: np.zeros((lanes, *leaf.shape), leaf.dtype), shapes)
    zeros, ones, minus = np.zeros(lanes), np.ones(lanes), -np.abs(before)
    search = Bracket(zeros, minus, ones, minus, zeros, minus, ones, zeros, np.zeros(lanes, bool), room)
    axes = ((0 if batched else None, 0), 0)
    for _ in range(MAX_SEARCH_ROUNDS):
        described = make_problem(*root_search(integrator, events), (system, sought), search, lanes=lanes, axes=axes)
        search = run(described, saves=1, save_every=SEARCH_STEPS, backend=backend).loop
        if np.all(search.done):
            break
    good = np.abs(search.fb) <= JUMP_SHARE * np.abs(scale)
    return np.asarray(search.b), jax.tree.map(np.asarray, search.found), good


NOTE_BUFFER_WORDS = 72
"""Words of notes that a run keeps until the host reads them: with more, compiled code copies them at every step. A lane keeps one note,
for it has a sixteenth of the registers (measured with 4096 lanes: 17 ns a step without events, 25 with one note, 60 with four)."""
START_TOLERANCE = 1e-9
"""A run that starts within this share of a step before an event starts at the event, which is not counted."""


class CrossingNote(NamedTuple):
    """A step in which something crossed zero: the moment before it, the functions there, and after it where they crossed (else NaN)."""

    moment: StepStart
    before: Array
    after: Array


class EventMonitor(NamedTuple):
    """The loop with the functions at its last two states, how many steps were noted so far, the last notes, and what else there is."""

    loop: LoopState
    values: Any
    earlier: Any
    noticed: Any
    notes: CrossingNote  # the last ones, a ring: leaves have a row for each
    suspects: Any
    stopped: Any


@lru_cache(maxsize=256)
def event_kernel(plain: RunKernel, integrator: Integrator, events: tuple[Event, ...]) -> RunKernel:
    """The loop that watches events; its `begin` takes a loop, and gives what `ring` needs: the functions there, and a note."""
    direction = np.array([event.direction for event in events])
    stops = np.array([event.stop for event in events])

    def noted(consts, loop: LoopState, values: Array, following: Array, size: Array | None) -> CrossingNote:
        """A note of the step that follows `loop`. No method starts from an increment."""
        record = plain.observe(consts, loop)
        return CrossingNote(
            StepStart(record.state._replace(increment=None), record.angles, loop.steps, size), values, following
        )

    def evaluated(consts, loop: LoopState) -> Array:
        record = plain.observe(consts, loop)
        return jnp.stack([event.value(consts[0], record.state, record.angles) for event in events])

    def begin(consts, loop: LoopState) -> tuple[Array, CrossingNote]:
        values = evaluated(consts, loop)
        return values, noted(consts, loop, values, values, consts[1] if integrator.clock else None)

    def advance(consts, w: EventMonitor, u) -> EventMonitor:
        loop = plain.advance(consts, w.loop, u)
        went = (loop.steps > w.loop.steps) & ~w.stopped
        values = jnp.where(went, evaluated(consts, loop), w.values)
        up, down = (w.values < 0.0) & (values >= 0.0), (w.values > 0.0) & (values <= 0.0)
        at_start = jnp.isnan(w.earlier) & (jnp.abs(w.values) <= START_TOLERANCE * jnp.abs(values - w.values))
        crossed = went & ~at_start & (up & (direction >= 0) | down & (direction <= 0))
        ends = jnp.any(crossed & stops)

        def written(notes: CrossingNote) -> CrossingNote:
            after = jnp.where(crossed, values, jnp.nan)
            note = noted(consts, w.loop, w.values, after, loop.carry.size if integrator.clock else None)
            here = jnp.arange(1.0 * note_capacity(notes)) == w.noticed % note_capacity(notes)
            return jax.tree.map(
                lambda all, one: jnp.where(here[(...,) + (None,) * jnp.ndim(one)], one, all), notes, note
            )

        some = jnp.any(crossed)
        notes = jax.lax.cond(some, written, lambda notes: notes, w.notes)
        if stops.any():  # the loop stays before the step in which it stops
            loop = jax.tree.map(lambda a, b: jnp.where(w.stopped | ends, b, a), loop, w.loop)
        suspects = w.suspects + jnp.where(went & _may_cross_twice(w.earlier, w.values, values), 1.0, 0.0)
        earlier = jnp.where(went, w.values, w.earlier)
        return EventMonitor(
            loop, values, earlier, w.noticed + jnp.where(some, 1.0, 0.0), notes, suspects, w.stopped | ends
        )

    def observe(consts, w: EventMonitor) -> Record:
        return plain.observe(consts, w.loop)

    return RunKernel(begin, advance, observe)


def note_capacity(notes: CrossingNote, lane: bool = False) -> int:
    """How many notes the ring holds."""
    return int(np.shape(notes.moment.steps)[int(lane)])


def note_buffer(loop: LoopState, begun: tuple[Array, CrossingNote], lanes: int | None) -> EventMonitor:
    """A watched loop before its first step, from what `begin` gave."""
    (values, note), lead = begun, () if lanes is None else (lanes,)
    words = sum(np.size(leaf) for leaf in jax.tree.leaves(note)) // (lanes or 1)
    rows = max(1, NOTE_BUFFER_WORDS // words) if lanes is None else 1
    room = jax.tree.map(lambda leaf: np.zeros((*lead, rows, *np.shape(leaf)[len(lead) :])), note)
    none = np.zeros_like(values)
    return EventMonitor(loop, values, np.full_like(values, np.nan), np.zeros(lead), room, none, np.zeros(lead, bool))


def _may_cross_twice(a: Array, b: Array, c: Array) -> Array:
    """Whether the parabola through three values of one sign has its vertex near the middle one, beyond zero."""
    sign = jnp.sign(b)
    bend, slope = 0.5 * sign * (a - 2 * b + c), 0.5 * sign * (c - a)
    inside = (jnp.abs(slope) <= bend) & (slope * slope > 4 * bend * sign * b)
    return inside & (a * b > 0.0) & (b * c > 0.0)


@lru_cache(maxsize=256)
def restart_at_event(integrator: Integrator, monitor: bool) -> RunKernel:
    """The loop that goes on from the event at which another stopped: `begin` takes (that loop, the record there, u)."""
    plain = run_kernel(integrator, monitor)

    def begin(consts, given) -> LoopState:
        (before, record, u), (system, h) = given, consts
        group, state = system.group, record.state
        loop = plain.begin(consts, (state, u))
        ahead = group.angles(group.compose(group.inverse(loop.carry.g), state.g))
        turns = jnp.round((record.angles - ahead - group.angles(loop.carry.g)) / (2 * jnp.pi))
        peaks = update_peaks(system, state, before.peaks) if monitor else before.peaks
        steps = 1.0 * record.steps
        return loop._replace(steps=steps, origin=loop.carry.t - steps * h, turns=turns, peaks=peaks)

    return plain._replace(begin=begin)


@dataclass
class NoteLog:
    """The notes of a run, read from its loop between pieces."""

    events: tuple[Event, ...]
    lanes: int | None
    seen: Any = 0
    notes: list[tuple[np.ndarray, CrossingNote]] = field(default_factory=list)

    def read(self, w: EventMonitor) -> tuple[float, bool]:
        """Take the new notes; how full the ring was (more than 1: some are lost), and whether all lanes have ended."""
        lead = lambda leaf: np.asarray(leaf) if self.lanes else np.asarray(leaf)[None]
        count, room = lead(w.noticed).astype(int), note_capacity(w.notes, self.lanes is not None)
        new = count - self.seen
        if new.max() <= room:
            for k in range(new.max()):
                lanes = np.flatnonzero(new > k)
                rows = (count - new + k)[lanes] % room
                self.notes.append((lanes, jax.tree.map(lambda leaf: lead(leaf)[lanes, rows], w.notes)))
            self.seen = count
        return new.max() / room, bool(np.all(w.stopped | (w.loop.status != OK)))

    def noted(self, before: int | np.ndarray) -> tuple[np.ndarray, CrossingNote] | None:
        """All notes of steps that begin before number `before`, in the order of lanes and steps."""
        if not self.notes:
            return None
        lanes = np.concatenate([lanes for lanes, _ in self.notes])
        notes = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[note for _, note in self.notes])
        order = np.lexsort((notes.moment.steps, lanes))
        order = order[notes.moment.steps[order] < np.broadcast_to(before, self.lanes or 1)[lanes[order]]]
        return lanes[order], jax.tree.map(lambda leaf: leaf[order], notes)


@dataclass
class Located:
    """The crossings of a run, one row each, in the order of lane, step and theta: which event, where, and what it did."""

    lane: np.ndarray
    which: np.ndarray
    theta: np.ndarray
    direction: np.ndarray
    record: Record
    index: np.ndarray  # of the step among those of this run

    def kept(self, which) -> Located:
        """Some of the crossings: a mask or indices."""
        rows = (self.lane, self.which, self.theta, self.direction, self.record, self.index)
        return Located(*jax.tree.map(lambda leaf: leaf[which], rows))


def find_crossings(
    watch: NoteLog, system: MechanicalSystem, h, integrator: Integrator, controls, first: np.ndarray, done: int,
    batched: bool, backend: Backend,
) -> Located | None:  # fmt: skip
    """Locate all crossings of a run whose lanes had done `first` steps before it and did `done` in it."""
    noted = watch.noted(first + done)
    if noted is None or not len(noted[0]):
        return None
    lanes, notes = noted
    row, which = np.nonzero(~np.isnan(notes.after))
    note, lane = jax.tree.map(lambda leaf: leaf[row], notes), lanes[row]
    index = (note.moment.steps - np.broadcast_to(first, watch.lanes or 1)[lane]).astype(int)
    u = jax.tree.map(lambda leaf: np.asarray(leaf)[index], controls)
    pick = np.arange(len(row)), which
    before, after = note.before[pick], note.after[pick]
    own = jax.tree.map(lambda leaf: np.asarray(leaf)[lane], system) if batched else system
    moment = note.moment._replace(state=note.moment.state._replace(increment=note.moment.state.xi))
    if not integrator.clock:
        moment = moment._replace(size=np.full(len(row), float(h)))
    sought = RootQuery(moment, u, which, np.sign(before))
    theta, record, good = locate_roots(own, integrator, watch.events, sought, before, after - before, batched, backend)
    found = Located(lane, which, theta, -np.sign(before).astype(int), record, index)
    order = np.lexsort((which, theta, note.moment.steps, lane))
    return _until_stops(watch.events, found.kept(order), good[order])


def _until_stops(events: tuple[Event, ...], found: Located, good: np.ndarray) -> Located:
    """The crossings that are zeros, and of those in the step in which a lane stops the ones before it stops."""
    stops = np.array([event.stop for event in events])[found.which]
    rows = np.arange(len(good))
    last = np.full(found.lane.max() + 1, len(good))  # of each lane
    np.minimum.at(last, found.lane[stops & good], rows[stops & good])
    jumps = np.flatnonzero(stops & ~good & (last[found.lane] == len(good)))
    if len(jumps):
        name, t = events[found.which[jumps[0]]].name, found.record.state.t[jumps[0]]
        raise InvalidInput(
            f"the function of {name!r} changes sign at t = {t:.6g} without passing through zero: it jumps there. A run can stop only at "
            'zeros: give a continuous function (an angle: Quantity("angles"))'
        )
    return found.kept(good & (rows <= last[found.lane]))


def crossings_by_event(watch: NoteLog, found: Located | None, suspects, like: Any) -> dict[str, Crossings]:
    """The crossings by the names of their events; `like` is a record of the run, for the shapes where there are none."""
    none = np.zeros(0, int)
    record = jax.tree.map(lambda leaf: np.zeros((0, *leaf.shape), leaf.dtype), like)
    empty = Located(none, none, np.zeros(0), none, record, none)
    counts = np.asarray(suspects).astype(int).reshape(-1, len(watch.events))
    result = {}
    for k, event in enumerate(watch.events):
        mine = empty if found is None else found.kept(found.which == k)
        result[event.name] = Crossings(
            event.name, event.stop, mine.record, mine.lane, mine.theta, mine.direction, counts[:, k]
        )
    return result


def truncate_at_stops(
    found: Located, stops: np.ndarray, records: Record, loop: LoopState, every: int, single: bool, again: Callable
):
    """(records, loop) of a run with its stopped lanes at their events: every record from there on, and the loop to go on from.

    `again` makes the loops of the events that stopped lanes, from what these had before. A single run ends with that record.
    """
    which = np.flatnonzero(stops[found.which])
    if not len(which):
        return records, loop
    last = found.kept(which)
    if single:
        records, loop = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (records, loop))
    first = -(-(last.index + 1) // every)  # the first record at or after the event
    before = jax.tree.map(lambda leaf: np.asarray(leaf)[last.lane], loop)
    late = np.arange(records.steps.shape[1]) >= first[:, None]

    def patched(old, new):
        shape = (*late.shape, *(1,) * (old.ndim - 2))
        old = old.copy()
        old[last.lane] = np.where(late.reshape(shape), new[:, None], old[last.lane])
        return old

    def replaced(old, new):
        old = np.array(old)
        old[last.lane] = new
        return old

    records = jax.tree.map(patched, records, last.record)
    loop = jax.tree.map(replaced, loop, again(last, before))
    if single:
        records = jax.tree.map(lambda leaf: leaf[0, : first[0] + 1], records)
        loop = jax.tree.map(lambda leaf: leaf[0], loop)
    return records, loop
