"""What a run leaves: saved states, how the steps went, and the carry from which it can go on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import NumericalFailure
from .integrators import REASONS, Integrator
from .system import MechanicalSystem, State


class Record(NamedTuple):
    """One saved moment: the state, how the step that led to it went, and the unwrapped angles."""

    state: State
    residual: Array
    iterations: Array
    multipliers: Array
    angles: Array
    steps: Array


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("system", "step", "records", "final", "tangents"),
    meta_fields=("integrator", "backend", "note", "interrupted", "batched"),
)
@dataclass(frozen=True, eq=False)
class Trajectory:
    """The saved states of a run; arrays have the saved moments as their first axis (members first in an ensemble).

    A run that failed keeps its good part: `status` is then "failed", `failed_at` the number of good steps (-1: the start
    has no solution) and `reason` says why. `final` is the loop's carry: `simulate(system, integrator, trajectory, ...)`
    goes on from it, and a continued run is bit for bit the long run.
    """

    system: MechanicalSystem
    integrator: Integrator
    step: Array
    records: Record
    final: Any
    backend: str = "xla"
    note: str = ""
    interrupted: bool = False
    batched: bool = False
    tangents: Record | None = None  # derivatives of the records, where a run was asked for them

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

    def check(self) -> Trajectory:
        """Raise `NumericalFailure` with the step and the reason if the run (or any member) failed; else return self."""
        codes = np.atleast_1d(np.asarray(self.final.status))
        if not codes.any():
            return self
        member = int(np.argmax(codes != 0))
        count = int(np.atleast_1d(np.asarray(self.final.steps))[member])
        who = (
            f"member {member} ({np.count_nonzero(codes)} of {codes.size} failed)"
            if np.asarray(self.final.status).ndim
            else "the run"
        )
        when = "at its start" if count < 0 else f"after {count} good steps"
        raise NumericalFailure(f"{who} failed {when}: {REASONS[int(codes[member])]}")

    # -- conservation --------------------------------------------------------------------------------------------------
    def energy(self) -> Array:
        """<L_xi, xi> - L at each saved state, with the velocity in D that has the saved restricted momentum."""
        return self._along(lambda system, s: system.energy(s.t, s.g, s.xi))

    def energy_error(self) -> Array:
        """E - E(0) at each saved state."""
        energy = self.energy()
        return energy - energy[..., :1]

    def constraint_residual(self) -> Array:
        """max |A xi - b| at each saved state."""
        return self._along(lambda system, s: jnp.max(jnp.abs(system.residual(s.t, s.g, s.xi)), initial=0.0))

    def group_distance(self) -> Array:
        """Distance of g from the group at each saved state."""
        return self._along(lambda system, s: system.group.distance(s.g))

    def _along(self, function) -> Array:
        """function(system, state) at every saved state, of every member."""
        ensemble = np.ndim(self.final.status) == 1
        per_state = jax.vmap(function, in_axes=(None, 0))
        if not ensemble:
            return _apply(per_state, self.system, self.records.state)
        return _apply(jax.vmap(per_state, in_axes=(0 if self.batched else None, 0)), self.system, self.records.state)

    @property
    def last(self) -> State:
        """The last saved state."""
        return jax.tree.map(lambda leaf: leaf[-1], self.records.state)

    # -- other forms ---------------------------------------------------------------------------------------------------
    def to_xarray(self):
        """The trajectory as an `xarray.Dataset`."""
        from .data import to_xarray

        return to_xarray(self)

    def plot(self, path=None):
        """A figure of the motion and its conservation; `path` saves it."""
        from .plotting import plot_trajectory

        return plot_trajectory(self, path)


def _apply(function, system, states):
    return jax.jit(function)(system, states)


def _plain(value):
    return value if isinstance(value, jax.core.Tracer) or np.ndim(value) else int(value)
