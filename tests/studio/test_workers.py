"""Workers answer side by side, stop when nobody waits, and are ended when they take too much."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dalembert.studio import workers
from dalembert.studio.workers import Busy, Cancelled, OverBudget, Workers


def answer(request, cancelled):
    """What the processes do: a word and a number."""
    word, number = request
    if word == "patient":  # looks whether it is still wanted
        end = time.monotonic() + number
        while time.monotonic() < end:
            if cancelled():
                raise Cancelled
    elif word == "deaf":
        while number:
            pass
    elif word == "sleeps":
        time.sleep(number)
    elif word == "greedy":
        held = b"x" * number
        time.sleep(60)
        return len(held)
    elif word == "dies":
        os._exit(number)
    return word, number, os.getpid()


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr(workers, "GRACE_SECONDS", 0.2)
    made = Workers(answer, "dalembert.studio.workers", seconds=20.0, count=2)
    yield made
    made.close()


def test_the_worker_used_last_is_used_next(pool):
    first = pool.ask(("one", 1))
    assert first[:2] == ("one", 1) and first[2] != os.getpid()
    assert pool.ask(("two", 2))[2] == first[2] and len(pool.all) == 1


def test_a_request_nobody_waits_for_is_given_up_and_its_worker_stays(pool):
    number = pool.ask(("one", 1))[2]
    with pytest.raises(Cancelled):
        pool.ask(("patient", 60), lambda: True)
    assert pool.ask(("two", 2))[2] == number
    with pytest.raises(Cancelled):
        pool.ask(("deaf", 60), lambda: True)
    assert pool.ask(("three", 3))[2] != number


SLOW = [(("deaf", 60), "longer than 0.1 s"), (("sleeps", 60), "longer than 0.1 s"), (("dies", 3), "ended")]


@pytest.mark.parametrize(("request_", "message"), SLOW)
def test_a_request_over_its_budget_is_stopped(pool, request_, message):
    pool.ask(("one", 1))
    pool.seconds = 0.1
    with pytest.raises(OverBudget, match=message):
        pool.ask(request_)
    pool.seconds = 20.0
    assert not pool.all and pool.ask(("two", 2))[0] == "two"


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="this system does not tell the memory of a process")
def test_a_request_that_takes_too_much_memory_is_stopped(pool, monkeypatch):
    monkeypatch.setattr(workers, "MAX_MEMORY", 2**28)
    assert pool.ask(("one", 1))[0] == "one"
    with pytest.raises(OverBudget, match=r"0\.25 GiB"):
        pool.ask(("greedy", 2**29))


def test_one_request_does_not_hold_up_another(pool):
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(pool.ask, ("patient", 60), (gone := threading.Event()).is_set)
        assert pool.ask(("one", 1))[0] == "one" and not slow.done()
        gone.set()
        assert isinstance(slow.exception(), Cancelled)


def test_while_others_wait_a_request_has_less_time(pool, monkeypatch):
    monkeypatch.setattr(workers, "BUSY_SECONDS", 0.1)
    with ThreadPoolExecutor(2) as others:
        slow = [others.submit(pool.ask, ("patient", 60)) for _ in range(2)]
        while pool.turns._value:
            time.sleep(0.01)
        assert pool.ask(("one", 1))[0] == "one"
        pool.seconds = 0.1
        assert all(isinstance(each.exception(), OverBudget) for each in slow)


def test_wedged_requests_leave_their_places_to_those_who_wait(pool, monkeypatch):
    """They go on beside them, as many as there are places; then a request has less time."""
    monkeypatch.setattr(workers, "SLOW_SECONDS", 0.05)
    with ThreadPoolExecutor(2) as others:
        gone = threading.Event()
        slow = [others.submit(pool.ask, ("patient", 60), gone.is_set) for _ in range(2)]
        while pool.turns._value:
            time.sleep(0.01)
        assert pool.ask(("one", 1))[0] == "one" and not any(each.done() for each in slow)
        gone.set()
        assert all(isinstance(each.exception(), Cancelled) for each in slow)
    assert pool.turns._value == pool.spare._value == 2 and len(pool.idle) == len(pool.all) <= 2


def test_too_many_wait(pool, monkeypatch):
    monkeypatch.setattr(workers, "MAX_WAITING", 1)
    monkeypatch.setattr(workers, "MAX_WAITING_SECONDS", 0.3)
    with ThreadPoolExecutor(3) as others:
        gone = threading.Event()
        for _ in range(2):
            others.submit(pool.ask, ("patient", 60), gone.is_set)
        while pool.turns._value:
            time.sleep(0.01)
        waits = others.submit(pool.ask, ("one", 1))
        while not pool.waiting:
            time.sleep(0.01)
        with pytest.raises(Busy):
            pool.ask(("two", 2))
        assert isinstance(waits.exception(), Busy)
        gone.set()
