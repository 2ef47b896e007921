"""The members of an ensemble: many states, many systems, or both, along a leading axis."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import InvalidInput
from .integrators import Integrator
from .schedule import traced
from .system import MechanicalSystem, State


@dataclass(frozen=True)
class Members:
    """A system and a state, of which those that are said to vary have a leading axis."""

    system: MechanicalSystem
    state: State
    systems_vary: bool
    states_vary: bool

    @property
    def number(self) -> int:
        """How many there are."""
        return jax.tree.leaves(self.state if self.states_vary else self.system)[0].shape[0]

    def one(self, k: int) -> tuple[MechanicalSystem, State]:
        """The system and the state of member k."""
        pick = lambda tree, varies: jax.tree.map(lambda leaf: leaf[k], tree) if varies else tree
        return pick(self.system, self.systems_vary), pick(self.state, self.states_vary)

    def require(self, integrator: Integrator, step) -> None:
        """The checks of a single run on the member that is farthest off D, and equal numbers of members."""
        if traced((self.system, self.state)):
            return
        sizes = {leaf.shape[0] for leaf in jax.tree.leaves(self.system)} if self.systems_vary else set()
        sizes |= {leaf.shape[0] for leaf in jax.tree.leaves(self.state)} if self.states_vary else set()
        if len(sizes) != 1:
            raise InvalidInput(f"the members disagree in number: leading axes {sorted(sizes)}")
        axes = (0 if self.systems_vary else None, 0 if self.states_vary else None)
        off = np.asarray(jax.jit(jax.vmap(_off, in_axes=axes))(self.system, self.state))
        worst = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
        integrator.require(*self.one(worst), step)


def gathered(system: MechanicalSystem | list, state: State | list, batched_system: bool) -> Members:
    """The members that an `ensemble` is given: lists are stacked."""
    systems: MechanicalSystem = _stack(system, "systems") if isinstance(system, list) else system
    states: State = _stack(state, "states") if isinstance(state, list) else state
    members = Members(systems, states, batched_system or isinstance(system, list), states.xi.ndim == 2)
    if not (members.systems_vary or members.states_vary):
        raise InvalidInput(
            "an ensemble needs a leading axis on the states (state.xi of shape (members, n)) or batched systems; for one run use simulate"
        )
    return members


def _off(system: MechanicalSystem, state: State) -> Array:
    off = jnp.concatenate([system.residual(state.t, state.g, state.xi), system.phi(state.t, state.g)])
    return jnp.max(jnp.abs(off), initial=0.0) + 0.0 * jnp.sum(state.xi)


def _stack(items: list, what: str):
    if not items or len({jax.tree.structure(item) for item in items}) != 1:
        raise InvalidInput(
            f"the {what} of an ensemble must be of one kind (same group, functions and parameter structure), and at least one"
        )
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]), *items)
