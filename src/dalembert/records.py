"""What a run keeps of a moment, and of the events that it passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
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


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("record", "lane", "theta", "direction", "suspects"),
    meta_fields=("name", "stop"),
)
@dataclass(frozen=True, eq=False)
class Crossings:
    """Where a run crossed one event, in the order of time (in an ensemble: member by member): arrays with one row a crossing.

    A crossing lies in the step that led to number `step`, a share `theta` of that step after its beginning; its state is that of the
    method's own step of that size, and is at or just beyond the event. `suspects` counts, for each member, the steps in which the
    function may have crossed zero twice: a parabola through its values at three steps says so, which sees only their signs.
    """

    name: str
    stop: bool
    record: Record
    lane: np.ndarray
    theta: np.ndarray
    direction: np.ndarray
    suspects: np.ndarray

    def __len__(self) -> int:
        return len(self.theta)

    @property
    def t(self) -> Array:
        """Times, shape (crossings,)."""
        return self.record.state.t

    @property
    def g(self) -> Any:
        """Configurations, shape (crossings, ...)."""
        return self.record.state.g

    @property
    def xi(self) -> Array:
        """Velocities, shape (crossings, n)."""
        return self.record.state.xi

    @property
    def step(self) -> Array:
        """The number of the step that each crossing lies in: 1 for the first."""
        return self.record.steps

    def of(self, member: int) -> Crossings:
        """The crossings of one member of an ensemble."""
        return replace(
            self.kept(np.asarray(self.lane) == member), suspects=np.asarray(self.suspects)[member : member + 1]
        )

    def kept(self, which: Any) -> Crossings:
        """Some of the crossings: a mask or indices."""
        rows = (self.record, self.lane, self.theta, self.direction)
        record, lane, theta, direction = jax.tree.map(lambda leaf: np.asarray(leaf)[which], rows)
        return replace(self, record=record, lane=lane, theta=theta, direction=direction)

    def __repr__(self) -> str:
        return f"<{len(self)} crossings of {self.name!r}>"


def joined(first: Mapping[str, Crossings], second: Mapping[str, Crossings]) -> dict[str, Crossings]:
    """The crossings of a run and of its continuation."""

    def both(a: Crossings, b: Crossings) -> Crossings:
        rows = [(c.record, c.lane, c.theta, c.direction) for c in (a, b)]
        record, lane, theta, direction = jax.tree.map(lambda x, y: np.concatenate([x, y]), *rows)
        return Crossings(b.name, b.stop, record, lane, theta, direction, np.asarray(a.suspects) + b.suspects)

    return {name: both(first[name], found) if name in first else found for name, found in second.items()}
