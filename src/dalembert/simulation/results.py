"""What a run leaves: saved states, how the steps went, and the carry from which it can go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import NumericalFailure
from .integrators import REASONS, Integrator
from .records import Crossings, Record
from .system import MechanicalSystem, State

DRIFTED = 1e-3
"""|phi| beyond which `Run.check` calls the holonomic constraints lost."""


@dataclass(frozen=True, eq=False)
class Run:
    """The records of a run, how it ended and what it conserved: all of a `Trajectory` that needs nothing but the numbers."""

    system: MechanicalSystem
    integrator: Integrator
    step: Array
    records: Record
    final: Any
    backend: str = "xla"
    note: str = ""
    interrupted: bool = False
    batched: bool = False
    controlled: bool = False  # whether controls were given, which a run does not hold
    tangents: Record | None = None  # derivatives of the records, where a run was asked for them
    events: dict[str, Crossings] = field(default_factory=dict)  # what it found of each, by their names

    # -- the saved states ----------------------------------------------------------------------------------------------
    @property
    def t(self) -> Array:
        """Times, shape (saves,)."""
        return self.records.state.t

    @property
    def g(self) -> Any:
        """Configurations, shape (saves, N, N) for matrix groups, (saves, n) on R^n, a tuple of these on products."""
        return self.records.state.g

    @property
    def xi(self) -> Array:
        """Velocities in D, shape (saves, n)."""
        return self.records.state.xi

    @property
    def momentum(self) -> Array:
        """Momenta as the method has them, shape (saves, n); restricted ones (saves, r) for retraction-adapted."""
        return self.records.state.momentum

    @property
    def increment(self) -> Array:
        """tau^-1(W)/h of the method's displacement, shape (saves, n)."""
        return self.records.state.increment

    @property
    def multipliers(self) -> Array:
        """Lagrange multipliers of the step that led to each state (the continuous ones at the start), shape (saves, m)."""
        return self.records.multipliers

    @property
    def angles(self) -> Array:
        """Unwrapped angles of the planar rotations in g, shape (saves, number of angles)."""
        return self.records.angles

    @property
    def residual(self) -> Array:
        """Residual of each saved step's equations."""
        return self.records.residual

    @property
    def iterations(self) -> Array:
        """Newton iterations of each saved step."""
        return self.records.iterations

    @property
    def step_sizes(self) -> Array:
        """The size of the step that led to each state (of the first step to come, at the start), shape (saves,)."""
        own = self.records.step_size
        return jnp.full(np.shape(self.t), self.step) if own is None else own

    # -- how it ended --------------------------------------------------------------------------------------------------
    @property
    def steps(self) -> Any:
        """The number of good steps from the first start on."""
        return _plain(self.final.steps)

    @property
    def status(self) -> Any:
        """ "ok" or "failed"; an array of these for an ensemble."""
        codes = np.asarray(self.final.status)
        return np.where(codes == 0, "ok", "failed") if codes.ndim else ("ok" if codes == 0 else "failed")

    @property
    def failed_at(self) -> Any:
        """None, or k: states 0..k are good; -1: the start has no solution. For an ensemble an array, -2 where nothing failed."""
        codes, counts = np.asarray(self.final.status), np.asarray(self.final.steps).astype(int)
        if codes.ndim:
            return np.where(codes == 0, -2, counts)
        return None if codes == 0 else int(counts)

    @property
    def reason(self) -> Any:
        """Why the run failed, or an empty string."""
        codes = np.asarray(self.final.status)
        return np.vectorize(REASONS.get, otypes=[object])(codes) if codes.ndim else REASONS[int(codes)]

    @property
    def stopped_by(self) -> Any:
        """The name of the event that stopped the run, or None; an array of names for an ensemble, "" where none did."""
        names = np.full(np.shape(np.atleast_1d(self.final.status)), "", object)
        for found in self.events.values():
            if found.stop:
                names[np.asarray(found.lane)] = found.name
        return names if np.ndim(self.final.status) else (names[0] or None)

    def check(self) -> Self:
        """Raise `NumericalFailure` with the step and the reason if the run (or any member) failed; else return self.

        So it does where a method that keeps holonomic constraints only up to its own error let |phi| grow beyond `DRIFTED`.
        """
        codes = np.atleast_1d(np.asarray(self.final.status))
        if not codes.any():
            return self._on_leaf()
        member = int(np.argmax(codes != 0))
        count = int(np.atleast_1d(np.asarray(self.final.steps))[member])
        who = (
            f"member {member} ({np.count_nonzero(codes)} of {codes.size} failed)"
            if np.asarray(self.final.status).ndim
            else "the run"
        )
        when = "at its start" if count < 0 else f"after {count} good steps"
        raise NumericalFailure(f"{who} failed {when}: {self._why(int(codes[member]), count)}")

    def _on_leaf(self) -> Self:
        """self, if its configurations satisfy the holonomic constraints."""
        if self.holonomic_constraints:
            off = np.asarray(self.holonomic_residual())
            if off.max() > DRIFTED:
                when = float(np.ravel(self.t)[np.argmax(np.ravel(off) > DRIFTED)])
                raise NumericalFailure(
                    f"the run left the holonomic constraint: |phi| exceeds {DRIFTED:g} at t = {when:g} and reaches {off.max():.3g}; "
                    f"{self.integrator.name} keeps it only up to its own error. Take a smaller step, or lagrange-dalembert"
                )
        return self

    def _why(self, code: int, count: int) -> str:
        """The reason of a failure after `count` good steps."""
        return REASONS[code]

    @property
    def holonomic_constraints(self) -> int:
        """How many holonomic constraints the system has."""
        return np.shape(self.final.peaks.holonomic)[-1]

    # -- conservation --------------------------------------------------------------------------------------------------
    def energy(self) -> Array:
        """<L_xi, xi> - L at each saved state, with the velocity in D that has the saved restricted momentum."""
        return self._along(_energy)

    def energy_error(self) -> Array:
        """E - E(0) at each saved state."""
        energy = self.energy()
        return energy - energy[..., :1]

    def constraint_residual(self) -> Array:
        """max |A xi - b| at each saved state."""
        return self._along(_residual)

    def holonomic_residual(self) -> Array:
        """max |phi| at each saved state: 0 where there are no holonomic constraints."""
        return self._along(_off)

    def group_distance(self) -> Array:
        """Distance of g from the group at each saved state."""
        return self._along(_distance)

    def _along(self, function) -> Array:
        """function(system, state) at every saved state, of every member."""
        members = np.ndim(self.final.status) == 1
        return _mapped(function, members, self.batched)(self.system, self.records.state)

    def reaction(self, controls=None) -> Array:
        """The reaction force A^T l of the constraint at each saved state, shape (saves, n), dual to the velocity: torques and
        forces in the body, in physical units (`coordinates.axes` names them).

        It is that of the equations of motion at the saved state, (23) of jimenez-scheurle; the method's own discrete
        multipliers belong to its steps and are in `multipliers`. `controls` has one row a saved state.
        """
        if controls is None:
            return self._along(_reaction)
        return jax.jit(jax.vmap(partial(_reaction, self.system)))(self.records.state, jnp.asarray(controls))

    @property
    def last(self) -> State:
        """The last saved state."""
        return jax.tree.map(lambda leaf: leaf[-1], self.records.state)

    def __repr__(self) -> str:
        known = np.ndim(self.final.status) == 0 and not isinstance(self.final.status, jax.core.Tracer)
        ended = f", failed: {self.reason}" if known and self.status == "failed" else ""
        members = f"{np.size(self.final.status)} members, " if np.ndim(self.final.status) else ""
        return f"<{type(self).__name__} on {self.system.group} by {self.integrator.name}: {members}{np.shape(self.t)[-1]} states{ended}>"


def _reaction(system: MechanicalSystem, state: State, u=None) -> Array:
    return system.multipliers(state.t, state.g, state.xi, u) @ system.A(state.t, state.g)


def _energy(system: MechanicalSystem, state: State) -> Array:
    return system.energy(state.t, state.g, state.xi)


def _residual(system: MechanicalSystem, state: State) -> Array:
    return jnp.max(jnp.abs(system.residual(state.t, state.g, state.xi)), initial=0.0)


def _off(system: MechanicalSystem, state: State) -> Array:
    return jnp.max(jnp.abs(system.phi(state.t, state.g)), initial=0.0)


def _distance(system: MechanicalSystem, state: State) -> Array:
    return system.group.distance(state.g)


@lru_cache
def _mapped(function: Callable, members: bool, batched: bool) -> Callable:
    """function(system, state) over the saved states (of every member), compiled once for all systems of a kind."""
    per_state = jax.vmap(function, in_axes=(None, 0))
    return jax.jit(jax.vmap(per_state, in_axes=(0 if batched else None, 0)) if members else per_state)


def _plain(value):
    return value if isinstance(value, jax.core.Tracer) or np.ndim(value) else int(value)
