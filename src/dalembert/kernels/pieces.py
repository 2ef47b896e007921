"""A run in pieces: short enough for Ctrl-C and for the room that a loop has for notes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

PIECE = 0.05
"""Seconds a piece of work should take: the time a Ctrl-C waits."""
Reader = Callable[[Any], tuple[float, bool]]
Progress = Callable[[int, int], None]


class Session(Protocol):
    """A run in pieces: `run` advances the state and writes records into the room that `reserve` made; `keep=False`: they are not needed."""

    name: str

    @property
    def limit(self) -> int: ...
    def reserve(self, capacity: int) -> None: ...
    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None: ...
    def loop(self) -> Any: ...
    def records(self, count: int) -> Any: ...
    def save_state(self) -> Any: ...
    def restore_state(self, state: Any) -> None: ...


class Pace:
    """How many steps a call should do to last PIECE seconds: a guess at first, then what was measured."""

    def __init__(self, lanes: int | None):
        self.steps = max(1, 4096 // (lanes or 1))
        self.fixed = float("inf")  # what a call costs however few its steps: a launch, a copy of the records

    def run(self, session: Session, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        begin = time.perf_counter()
        session.run(first, count, every, step, keep)
        elapsed = time.perf_counter() - begin
        self.fixed = min(self.fixed, elapsed)
        fitting = int(count * every * PIECE / max(elapsed - self.fixed, 1e-6))
        self.steps = max(1, self.steps // 4, min(fitting, 8 * self.steps))


def pieces(session: Session, saves: int, every: int, stop: threading.Event, pace: Pace,
            step: int = 0, slot: int = 0) -> Iterator[int]:
    """Do the work in calls of about PIECE seconds; yield the number of records done after each. `slot` is the first one's."""
    done = 0
    while done < saves and not stop.is_set():
        if pace.steps >= every:
            count = max(1, min(saves - done, pace.steps // every, session.limit))
            pace.run(session, slot + done, count, every, step + done * every)
        else:
            count = int(_one_record(session, slot + done, every, stop, pace, step + done * every))
        done += count
        yield done


def _one_record(session: Session, slot: int, every: int, stop: threading.Event, pace: Pace, step: int) -> bool:
    """One record in several calls; if the run is stopped between them, the state before it comes back."""
    before, taken = session.save_state(), 0
    while taken < every:
        if stop.is_set():
            session.restore_state(before)
            return False
        count = min(pace.steps, every - taken)
        taken += count
        pace.run(session, slot, 1, count, step + taken - count, keep=taken == every)
    return True


class Read:
    """A session whose loop is read between pieces that are short enough for its room."""

    def __init__(self, session: Session, read: Reader):
        self.session, self.read, self.most, self.over = session, read, 1 << 62, False
        self.name, self.loop, self.records, self.reserve = session.name, session.loop, session.records, session.reserve
        self.save_state, self.restore_state = session.save_state, session.restore_state

    @property
    def limit(self) -> int:
        return self.session.limit

    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        if self.over or not every:  # a loop that stands still need not be stepped
            return self.session.run(first, count, min(every, 1), step, keep)
        done = 0
        while done < count * every:
            record, within = divmod(done, every)
            whole = within == 0 and self.most >= every
            steps = every if whole else min(self.most, every - within)
            blocks = min(count - record, self.most // every) if whole else 1
            if self._fits(first + record, blocks, steps, step + done, keep and within + steps == every):
                done += blocks * steps
        return None

    def _fits(self, first: int, count: int, every: int, step: int, keep: bool) -> bool:
        before = self.session.save_state()
        self.session.run(first, count, every, step, keep)
        full, self.over = self.read(self.session.loop())
        if full > 1:
            self.session.restore_state(before)
            self.most, self.over = max(1, count * every // 2), False
        elif full <= 0.5:
            self.most = max(self.most, 2 * count * every)
        return full <= 1


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Turn Ctrl-C into a request to stop between pieces; a second one interrupts at once."""
    stop = threading.Event()

    def request(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, request)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def report(progress: Progress | None, done: int, saves: int, stop: threading.Event) -> None:
    """Say how far the run is; whoever is told may raise KeyboardInterrupt to stop it."""
    if progress is not None:
        try:
            progress(done, saves)
        except KeyboardInterrupt:
            stop.set()
