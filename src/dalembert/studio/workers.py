"""Processes that answer requests side by side, each request within a budget of time and memory.

Neither compiling nor XLA can be interrupted in a thread, and tracing keeps Python's lock: one request would hold up all
others. A process can be ended at any moment, and machine code is kept on disk, so that its successor is warm at once.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

Gone = Callable[[], bool]
WORKERS = max(4, min(8, os.cpu_count() or 1))
MAX_WAITING, MAX_WAITING_SECONDS = 64, 30.0
SLOW_SECONDS, BUSY_SECONDS = 2.0, 10.0
"""The processor time after which a request leaves its place to one that waits (and goes on), and is stopped for it."""
WALL_FACTOR = 4.0
"""How much longer than its processor time a request may take by the clock: other programs may keep the machine busy."""
GRACE_SECONDS = 2.0
"""How long a worker may take to stop by itself; then it is ended."""
MAX_MEMORY = 2 * 1024**3
POLL_SECONDS = 0.05
MAX_SESSIONS, SESSION_FACTOR = 8, 10.0
SILENT_SECONDS, WATCH_SECONDS = 10.0, 1.0
"""Sessions at once; how often the processor time of a request one may use; how long a page may be silent."""
CAN_FORK_A_SERVER = "forkserver" in multiprocessing.get_all_start_methods()
_one_at_a_time = threading.Lock()  # of the threads that answer


class Cancelled(Exception):
    """Nobody waits for the answer any more."""


class Busy(Exception):
    """Too many requests wait."""


class OverBudget(Exception):
    """A request that took more time or memory than it may, and was stopped."""


def import_early(*modules: str) -> None:
    """Let the process from which workers are forked import what they need, while this one imports what it needs."""
    if CAN_FORK_A_SERVER and multiprocessing.parent_process() is None:
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(list(modules))
        forkserver.ensure_running()


class Workers:
    """`count` processes, started when they are needed, that call answer(request, cancelled).

    As many again are started while slow requests keep the others. Without a `module` that another process could import
    they are threads of this one, and answer one at a time.
    """

    def __init__(self, answer: Callable[[Any, Gone], Any], module: str, seconds: float, count: int = WORKERS):
        self.answer, self.seconds = answer, seconds
        self.context: Any = None if not module else self._processes(module)
        self.lock, self.count = threading.Lock(), count
        self.turns, self.spare = threading.BoundedSemaphore(count), threading.BoundedSemaphore(count)
        self.waiting = 0
        self.idle: list[_Worker] = []  # the last is the one used last: it knows most
        self.all: set[_Worker] = set()

    @property
    def has_room(self) -> bool:
        """Whether a request may have a second worker, and others would find one still."""
        return self.turns._value > 2

    def _processes(self, module: str) -> Any:
        context: Any = multiprocessing.get_context("forkserver" if CAN_FORK_A_SERVER else "spawn")
        if CAN_FORK_A_SERVER:
            context.set_forkserver_preload([module])  # imported once, for all workers
        return context

    def ask(self, request: Any, gone: Gone = lambda: False) -> Any:
        """The answer to a request. `Cancelled` if its page has gone, `Busy` and `OverBudget` say why there is none."""
        turn = self._take_turn(gone)
        try:
            with self.lock:
                worker = self.idle.pop() if self.idle else None
            if worker is None:
                worker = _Worker(self.context, self.answer, self.seconds)
                self.all.add(worker)
            try:
                answer = self._wait(worker, request, gone, turn)
            except (EOFError, OSError):
                raise OverBudget("the process that worked on this request ended, perhaps for want of memory") from None
            finally:
                if worker.is_ready and worker.usage()[1] < MAX_MEMORY / 2 and len(self.idle) < self.count:
                    self.idle.append(worker)
                else:
                    worker.end()
                    self.all.discard(worker)
        finally:
            turn.pop().release()
        if answer is None:
            raise Cancelled
        return answer

    def _wait(self, worker: _Worker, request: Any, gone: Gone, turn: list[threading.Semaphore]) -> Any:
        clock, (before, _) = time.monotonic(), worker.usage()
        worker.is_ready = False
        worker.pipe.send((request,))
        while not worker.pipe.poll(POLL_SECONDS):
            limit = min(self.seconds, BUSY_SECONDS) if self.waiting else self.seconds
            now, memory = worker.usage()
            slow = self.waiting and turn == [self.turns] and now - before > SLOW_SECONDS
            if slow and self.spare.acquire(blocking=False):  # whoever waits has this turn
                turn.append(self.spare)
                turn.pop(0).release()
            if gone():
                worker.stop()
                raise Cancelled
            if now - before > limit or time.monotonic() - clock > WALL_FACTOR * self.seconds:
                worker.stop()
                others = " while others wait" if limit < self.seconds else ""
                raise OverBudget(f"the request took longer than {limit:g} s, which is the most{others}")
            if memory > MAX_MEMORY:
                raise OverBudget(f"the request needed more than {MAX_MEMORY / 1024**3:g} GiB of memory")
        return worker.receive()

    def _take_turn(self, gone: Gone) -> list[threading.Semaphore]:
        """Wait until a worker is free, unless too many wait already; what is to be released when it is free again."""
        begin = time.monotonic()
        if not self.turns.acquire(blocking=False):
            with self.lock:
                if self.waiting >= MAX_WAITING:
                    raise Busy
                self.waiting += 1
            try:
                while not self.turns.acquire(timeout=POLL_SECONDS):
                    if gone():
                        raise Cancelled
                    if time.monotonic() - begin > MAX_WAITING_SECONDS:
                        raise Busy
            finally:
                with self.lock:
                    self.waiting -= 1
        return [self.turns]

    def close(self) -> None:
        """End all workers."""
        for worker in list(self.all):
            worker.end()


class Sessions:
    """Processes that belong to a page each: a request goes on where the one before it ended.

    A session ends when its page says so or is silent, and when it has used up its processor time.
    """

    def __init__(self, answer: Callable[[Any, Gone], Any], context: Any, seconds: float, most: int = MAX_SESSIONS):
        self.answer, self.context, self.seconds, self.most = answer, context, seconds, most
        self.lock = threading.Lock()
        self.all: dict[str, tuple[_Worker, threading.Lock]] = {}
        self.heard: dict[str, float] = {}

    def open(self) -> str:
        """The name of a new session, which nobody can guess; `Busy` where there are too many."""
        self.end_silent()
        with self.lock:
            if len(self.all) >= self.most:
                raise Busy
            name = secrets.token_urlsafe(16)
            self.all[name] = _Worker(self.context, self.answer, self.seconds), threading.Lock()
            self.heard[name] = time.monotonic()
            if len(self.all) == 1:
                threading.Thread(target=self._watch, daemon=True).start()
        return name

    def ask(self, name: str, request: Any, gone: Gone = lambda: False) -> Any:
        """The answer of a session, one request at a time; `KeyError` where there is no such session (any more)."""
        worker, turn = self.all[name]
        with turn:
            self.heard[name] = begin = time.monotonic()
            try:
                worker.pipe.send((request,))
                while not worker.pipe.poll(POLL_SECONDS):
                    self.heard[name] = time.monotonic()
                    if gone() or time.monotonic() - begin > WALL_FACTOR * self.seconds:
                        raise OverBudget("the session took too long, or its page has gone")
                answer = worker.receive()
                if worker.usage()[0] - worker.begun > SESSION_FACTOR * self.seconds:
                    raise OverBudget(f"the session has used {SESSION_FACTOR * self.seconds:g} s of processor time")
            except (EOFError, OSError) as fault:
                self.close(name)
                raise OverBudget("the process of this session ended") from fault
            except OverBudget:
                self.close(name)
                raise
        return answer

    def hear(self, name: str) -> None:
        """Its page is there, and thinks."""
        with self.lock:
            if name in self.heard:
                self.heard[name] = time.monotonic()

    def close(self, name: str | None = None) -> None:
        """End a session, or all of them."""
        for each in [*self.all] if name is None else [name]:
            with self.lock:
                found = self.all.pop(each, None)
                self.heard.pop(each, None)
            if found is not None:
                found[0].end()

    def end_silent(self) -> None:
        """End the sessions whose pages have not asked for anything for a while."""
        now = time.monotonic()
        for name in [name for name, heard in [*self.heard.items()] if now - heard > SILENT_SECONDS]:
            self.close(name)

    def _watch(self) -> None:
        while self.all:
            time.sleep(WATCH_SECONDS)
            self.end_silent()


class _Worker:
    """One process (without a context one thread of this process), and the pipe to it."""

    def __init__(self, context: Any, answer: Callable[[Any, Gone], Any], seconds: float):
        self.pipe, theirs = (context or multiprocessing).Pipe()
        start = threading.Thread if context is None else context.Process
        self.process = start(target=_work, args=(theirs, answer, seconds, context is None), daemon=True)
        self.process.start()
        if context is not None:
            theirs.close()
        self.is_ready, self.begun = True, self.usage()[0]

    def receive(self) -> Any:
        answer = self.pipe.recv()
        self.is_ready = True
        return answer

    def stop(self) -> None:
        """Ask it to stop; it is ready again if it does."""
        self.pipe.send(())
        if self.pipe.poll(GRACE_SECONDS):
            self.receive()

    def usage(self) -> tuple[float, int]:
        """The seconds of processor time it has used and the bytes it holds; where no one tells, the clock and 0."""
        try:
            pid = getattr(self.process, "pid", None)
            times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return time.monotonic(), 0
        ticks = int(times[11]) + int(times[12])
        return ticks / os.sysconf("SC_CLK_TCK"), int(times[21]) * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> None:
        if hasattr(self.process, "kill"):  # a thread ends when it finds its pipe closed
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _work(pipe: Any, answer: Callable[[Any, Gone], Any], seconds: float, is_thread: bool) -> None:
    """Answer requests until the server has gone. A message without a request, while one is worked on, cancels that."""
    timed = sys.platform != "win32" and not is_thread
    if not is_thread:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    while True:
        try:
            message = pipe.recv()
            if not message:
                continue
            if timed:  # ends it if the server cannot
                signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * seconds + 2 * GRACE_SECONDS)
            try:
                with _one_at_a_time if is_thread else nullcontext():
                    found = answer(message[0], pipe.poll)
            except Cancelled:
                found = None
            if timed:
                signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send(found)
        except (EOFError, OSError):
            return
