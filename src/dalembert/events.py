"""Events: moments at which a function along the motion passes through zero, and what a run found of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import InvalidInput, UnknownName
from .forces import Driven
from .system import MechanicalSystem, State

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


def named(events: Sequence[Event], system: MechanicalSystem, state: State) -> tuple[Event, ...]:
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
