"""Coordinates and rates by their names: what a start or a goal names, and the configurations that have these values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, match_names
from ..groups import Cayley
from ..kernels import Of, evaluate
from ..numerics import finite, solve
from ..numerics.types import Array, Element, Scalar, Velocity
from .system import MechanicalSystem, State, names_of, observe

Numbers = NDArray[Any]
NEWTON_STEPS = 4  # to a configuration by names


@dataclass(frozen=True)
class Named:
    """Some of the coordinates and rates of a system: their places, and which of them are angles up to turns."""

    places: tuple[int, ...]
    turning: tuple[bool, ...]

    def off(self, system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity, values: Array) -> Array:
        """How far they are from these values."""
        off = observe(system, t, g, xi)[np.array(self.places, int)] - values
        return jnp.where(np.array(self.turning), jnp.arctan2(jnp.sin(off), jnp.cos(off)), off)

    def move(self, consts: Any, lane: Any) -> Any:
        """(The nearest configuration with these values, the slope of the values along its increments.)"""
        (system, t, values), g = consts, lane
        rest = jnp.zeros(system.group.dim)

        def off(d: Array) -> Array:
            return self.off(system, t, system.group.compose(g, system.group.exp(d)), rest, values)

        for _ in range(NEWTON_STEPS):
            slope = jax.jacfwd(off)(rest)
            square = slope @ slope.T + 1e-14 * jnp.eye(len(self.places))  # rates have no slope
            g = system.group.compose(g, system.group.exp(-slope.T @ solve(square, off(rest))))
        return g, jax.jacfwd(off)(rest)


def read_names(system: MechanicalSystem, what: str, given: Mapping[str, Any], rates: bool) -> tuple[Named, Numbers]:
    """What a start or a goal names, and the values."""
    if not given:
        other = "None for no goal" if what == "goal" else "system.state() for rest"
        raise InvalidInput(f"the {what} has no names; allowed: names with values, or {other}")
    names, turning = names_of(system)
    turns = dict(zip(names, turning, strict=True)) | (dict.fromkeys(system.rate_names, False) if rates else {})
    given = match_names(f"name of the {what}", given, turns)
    values = np.array([float(finite(f"{name} of the {what}", value)) for name, value in given.items()])
    return Named(tuple(list(turns).index(name) for name in given), tuple(turns[name] for name in given)), values


def start_by_names(system: MechanicalSystem, given: Mapping[str, Any]) -> tuple[State, Numbers]:
    """A state with the named values, at rest but for named rates, and the directions in which it is free."""
    named, values = read_names(system, "start", given, True)
    seen, (names, _) = dict(zip(named.places, values, strict=True)), names_of(system)
    near, xi = system.group.identity(), np.array([seen.get(len(names) + k, 0.0) for k in range(len(system.rate_names))])
    if len(xi) != system.group.dim:  # rates of a mechanism are more than its velocities
        made = system.state(**{str(name).replace(" ", "_"): value for name, value in given.items()})
        near, xi = made.g, np.asarray(made.xi)
    g, slope = evaluate(Of(Named.move, named), (system, 0.0, values), near)
    _, sizes, vectors = np.linalg.svd(np.asarray(slope))
    ways = vectors[(sizes > 1e-9).sum() :].T
    lane = (g, ways @ np.linspace(0.3, 0.5, ways.shape[1]))
    off = evaluate(Of(_off_beside, named), (system, xi, values), lane)
    if np.abs(off).max(initial=0.0) > 1e-9:
        known = ", ".join(name for k, name in enumerate(names) if k not in seen)
        raise InvalidInput(f"the start names {', '.join(given)}; these cannot hold while {known} are free: name more")
    return system.state(g, xi), ways


def _off_beside(named: Named, consts: Any, lane: Any) -> Array:
    (system, xi, values), (g, d) = consts, lane
    return named.off(system, 0.0, system.group.compose(g, Cayley().tau(system.group, d)), xi, values)
