"""What the host makes of a watched run: its notes read between pieces, the crossings located, the lanes that stopped ended there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from .dense import Sought, locate
from .errors import InvalidInput
from .events import Event
from .integrators import Integrator
from .integrators.base import OK
from .kernels.run import Backend
from .loop import Loop
from .records import Crossings, Record
from .system import MechanicalSystem
from .watch import Note, Watched, slots


@dataclass
class Watch:
    """The notes of a run, read from its loop between pieces."""

    events: tuple[Event, ...]
    lanes: int | None
    seen: Any = 0
    notes: list[tuple[np.ndarray, Note]] = field(default_factory=list)

    def read(self, w: Watched) -> tuple[float, bool]:
        """Take the new notes; how full the ring was (more than 1: some are lost), and whether all lanes have ended."""
        lead = lambda leaf: np.asarray(leaf) if self.lanes else np.asarray(leaf)[None]
        count, room = lead(w.noticed).astype(int), slots(w.notes, self.lanes is not None)
        new = count - self.seen
        if new.max() <= room:
            for k in range(new.max()):
                lanes = np.flatnonzero(new > k)
                rows = (count - new + k)[lanes] % room
                self.notes.append((lanes, jax.tree.map(lambda leaf: lead(leaf)[lanes, rows], w.notes)))
            self.seen = count
        return new.max() / room, bool(np.all(w.stopped | (w.loop.status != OK)))

    def noted(self, before: int | np.ndarray) -> tuple[np.ndarray, Note] | None:
        """All notes of steps that begin before number `before`, in the order of lanes and steps."""
        if not self.notes:
            return None
        lanes = np.concatenate([lanes for lanes, _ in self.notes])
        notes = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[note for _, note in self.notes])
        order = np.lexsort((notes.moment.steps, lanes))
        order = order[notes.moment.steps[order] < np.broadcast_to(before, self.lanes or 1)[lanes[order]]]
        return lanes[order], jax.tree.map(lambda leaf: leaf[order], notes)


@dataclass
class Found:
    """The crossings of a run, one row each, in the order of lane, step and theta: which event, where, and what it did."""

    lane: np.ndarray
    which: np.ndarray
    theta: np.ndarray
    direction: np.ndarray
    record: Record
    index: np.ndarray  # of the step among those of this run

    def kept(self, which) -> Found:
        """Some of the crossings: a mask or indices."""
        rows = (self.lane, self.which, self.theta, self.direction, self.record, self.index)
        return Found(*jax.tree.map(lambda leaf: leaf[which], rows))


def find(
    watch: Watch, system: MechanicalSystem, h, integrator: Integrator, controls, first: np.ndarray, done: int,
    batched: bool, backend: Backend,
) -> Found | None:  # fmt: skip
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
    sought = Sought(moment, u, which, np.sign(before))
    theta, record, good = locate(own, integrator, watch.events, sought, before, after - before, batched, backend)
    found = Found(lane, which, theta, -np.sign(before).astype(int), record, index)
    order = np.lexsort((which, theta, note.moment.steps, lane))
    return _until_stops(watch.events, found.kept(order), good[order])


def _until_stops(events: tuple[Event, ...], found: Found, good: np.ndarray) -> Found:
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


def collected(watch: Watch, found: Found | None, suspects, like: Any) -> dict[str, Crossings]:
    """The crossings by the names of their events; `like` is a record of the run, for the shapes where there are none."""
    none = np.zeros(0, int)
    record = jax.tree.map(lambda leaf: np.zeros((0, *leaf.shape), leaf.dtype), like)
    empty = Found(none, none, np.zeros(0), none, record, none)
    counts = np.asarray(suspects).astype(int).reshape(-1, len(watch.events))
    result = {}
    for k, event in enumerate(watch.events):
        mine = empty if found is None else found.kept(found.which == k)
        result[event.name] = Crossings(
            event.name, event.stop, mine.record, mine.lane, mine.theta, mine.direction, counts[:, k]
        )
    return result


def ended(found: Found, stops: np.ndarray, records: Record, loop: Loop, every: int, single: bool, again: Callable):
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
