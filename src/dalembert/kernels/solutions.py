"""Solutions of equations, noted by a step forwards and taken from there by the step backwards.

An implicit step spends its time on iterations. Its derivative needs only where they ended: by the implicit function
theorem f(x, p) = 0 gives dx = -f_x^-1 f_p dp. So a program says which of its values are solutions (`lowering.lower`),
and whoever traces the transposed step gives them back in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.extend.core import get_opaque_trace_state

from .ir import LoweringError


class OtherSolutions(LoweringError):
    """A step that solves other equations when it is differentiated: its solutions are found again."""


class Tape:
    """The solutions of one trace of a step. Those of traces inside it (a loop, a routine) are not noted."""

    def __init__(self, given: Sequence[Any] | None):
        self.given = None if given is None else list(given)
        self.found: list[Any] = []
        self.level = _level()


class _Current(threading.local):
    tape: Tape | None = None


_current = _Current()


def _level() -> Any:
    """The trace that is being written."""
    return get_opaque_trace_state(convention="nested")  # type: ignore[no-untyped-call]  # JAX has no types


@contextmanager
def on_tape(given: Sequence[Any] | None = None) -> Iterator[Tape]:
    """Note the solutions of what is traced inside; or take those that are `given`, all of them and in their order."""
    outer, tape = _current.tape, Tape(given)
    _current.tape = tape
    try:
        yield tape
    finally:
        _current.tape = outer
    if tape.given:
        raise OtherSolutions("a step that is differentiated solves fewer equations")


def _tape() -> Tape | None:
    tape = _current.tape
    return tape if tape is not None and tape.level == _level() else None


def take_solution(like: Any) -> Any:
    """The known solution of the equation that is to be solved now; None where it must be solved."""
    tape = _tape()
    if tape is None or tape.given is None:
        return None
    shapes = [jax.tree.map(lambda leaf: (jax.numpy.shape(leaf), leaf.dtype), tree) for tree in (tape.given[:1], [like])]
    if shapes[0] != shapes[1]:
        raise OtherSolutions("a step that is differentiated solves other equations")
    return tape.given.pop(0)


def noted(find: Callable[[], Any], like: Any) -> Any:
    """A value that has no derivative: found by the step forwards, and taken from there by the step backwards."""
    known = take_solution(like)
    value = find() if known is None else known
    note_solution(value)
    return value


def note_solution(solution: Any) -> None:
    """Say that these are the values at which an iteration ended."""
    tape = _tape()
    if tape is not None and tape.given is None:
        tape.found.append(solution)
