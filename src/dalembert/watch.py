"""The loop that looks for events after every step, and notes the steps in which there are some."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .dense import Moment
from .events import Event
from .integrators import Integrator
from .loop import Functions, Loop, functions, peaked
from .records import Record

ROOM = 72
"""Words of notes that a run keeps until the host reads them: with more, compiled code copies them at every step. A lane keeps one note,
for it has a sixteenth of the registers (measured with 4096 lanes: 17 ns a step without events, 25 with one note, 60 with four)."""
START = 1e-9
"""A run that starts within this share of a step before an event starts at the event, which is not counted."""


class Note(NamedTuple):
    """A step in which something crossed zero: the moment before it, the functions there, and after it where they crossed (else NaN)."""

    moment: Moment
    before: Array
    after: Array


class Watched(NamedTuple):
    """The loop with the functions at its last two states, how many steps were noted so far, the last notes, and what else there is."""

    loop: Loop
    values: Any
    earlier: Any
    noticed: Any
    notes: Note  # the last ones, a ring: leaves have a row for each
    suspects: Any
    stopped: Any


@lru_cache(maxsize=256)
def watched(plain: Functions, integrator: Integrator, events: tuple[Event, ...]) -> Functions:
    """The loop that watches events; its `begin` takes a loop, and gives what `ring` needs: the functions there, and a note."""
    direction = np.array([event.direction for event in events])
    stops = np.array([event.stop for event in events])

    def noted(consts, loop: Loop, values: Array, following: Array, size: Array | None) -> Note:
        """A note of the step that follows `loop`. No method starts from an increment."""
        record = plain.observe(consts, loop)
        return Note(Moment(record.state._replace(increment=None), record.angles, loop.steps, size), values, following)

    def evaluated(consts, loop: Loop) -> Array:
        record = plain.observe(consts, loop)
        return jnp.stack([event.value(consts[0], record.state, record.angles) for event in events])

    def begin(consts, loop: Loop) -> tuple[Array, Note]:
        values = evaluated(consts, loop)
        return values, noted(consts, loop, values, values, consts[1] if integrator.clock else None)

    def advance(consts, w: Watched, u) -> Watched:
        loop = plain.advance(consts, w.loop, u)
        went = (loop.steps > w.loop.steps) & ~w.stopped
        values = jnp.where(went, evaluated(consts, loop), w.values)
        up, down = (w.values < 0.0) & (values >= 0.0), (w.values > 0.0) & (values <= 0.0)
        at_start = jnp.isnan(w.earlier) & (jnp.abs(w.values) <= START * jnp.abs(values - w.values))
        crossed = went & ~at_start & (up & (direction >= 0) | down & (direction <= 0))
        ends = jnp.any(crossed & stops)

        def written(notes: Note) -> Note:
            after = jnp.where(crossed, values, jnp.nan)
            note = noted(consts, w.loop, w.values, after, loop.carry.size if integrator.clock else None)
            here = jnp.arange(1.0 * slots(notes)) == w.noticed % slots(notes)
            return jax.tree.map(
                lambda all, one: jnp.where(here[(...,) + (None,) * jnp.ndim(one)], one, all), notes, note
            )

        some = jnp.any(crossed)
        notes = jax.lax.cond(some, written, lambda notes: notes, w.notes)
        if stops.any():  # the loop stays before the step in which it stops
            loop = jax.tree.map(lambda a, b: jnp.where(w.stopped | ends, b, a), loop, w.loop)
        suspects = w.suspects + jnp.where(went & _dips(w.earlier, w.values, values), 1.0, 0.0)
        earlier = jnp.where(went, w.values, w.earlier)
        return Watched(loop, values, earlier, w.noticed + jnp.where(some, 1.0, 0.0), notes, suspects, w.stopped | ends)

    def observe(consts, w: Watched) -> Record:
        return plain.observe(consts, w.loop)

    return Functions(begin, advance, observe)


def slots(notes: Note, lane: bool = False) -> int:
    """How many notes the ring holds."""
    return int(np.shape(notes.moment.steps)[int(lane)])


def ring(loop: Loop, begun: tuple[Array, Note], lanes: int | None) -> Watched:
    """A watched loop before its first step, from what `begin` gave."""
    (values, note), lead = begun, () if lanes is None else (lanes,)
    words = sum(np.size(leaf) for leaf in jax.tree.leaves(note)) // (lanes or 1)
    rows = max(1, ROOM // words) if lanes is None else 1
    room = jax.tree.map(lambda leaf: np.zeros((*lead, rows, *np.shape(leaf)[len(lead) :])), note)
    none = np.zeros_like(values)
    return Watched(loop, values, np.full_like(values, np.nan), np.zeros(lead), room, none, np.zeros(lead, bool))


def _dips(a: Array, b: Array, c: Array) -> Array:
    """Whether the parabola through three values of one sign has its vertex near the middle one, beyond zero."""
    sign = jnp.sign(b)
    bend, slope = 0.5 * sign * (a - 2 * b + c), 0.5 * sign * (c - a)
    inside = (jnp.abs(slope) <= bend) & (slope * slope > 4 * bend * sign * b)
    return inside & (a * b > 0.0) & (b * c > 0.0)


@lru_cache(maxsize=256)
def onward(integrator: Integrator, monitor: bool) -> Functions:
    """The loop that goes on from the event at which another stopped: `begin` takes (that loop, the record there, u)."""
    plain = functions(integrator, monitor)

    def begin(consts, given) -> Loop:
        (before, record, u), (system, h) = given, consts
        group, state = system.group, record.state
        loop = plain.begin(consts, (state, u))
        ahead = group.angles(group.compose(group.inverse(loop.carry.g), state.g))
        turns = jnp.round((record.angles - ahead - group.angles(loop.carry.g)) / (2 * jnp.pi))
        peaks = peaked(system, state, before.peaks) if monitor else before.peaks
        steps = 1.0 * record.steps
        return loop._replace(steps=steps, origin=loop.carry.t - steps * h, turns=turns, peaks=peaks)

    return plain._replace(begin=begin)
