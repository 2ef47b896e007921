"""What a run keeps of a moment."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from .system import State


class Record(NamedTuple):
    """One saved moment: the state, how the step that led to it went, and the unwrapped angles."""

    state: State
    residual: Array
    iterations: Array
    multipliers: Array
    angles: Array
    steps: Array
    step_size: Array | None = None  # where a method has steps of several sizes
