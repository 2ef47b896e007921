"""What a run keeps of a moment, and of the events that it passed.

What a run leaves: saved states, how the steps went, and the carry from which it can go on.

What a method should keep of the energy: E - E(0), or where power enters what is left of that when the work is taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import NumericalFailure
from ..integrators import REASONS, Integrator
from ..kernels import evaluated
from ..mechanics import MechanicalSystem, NonlinearSystem, State
from ..numerics import depends, vanishes


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


def join_crossings(first: Mapping[str, Crossings], second: Mapping[str, Crossings]) -> dict[str, Crossings]:
    """The crossings of a run and of its continuation."""

    def both(a: Crossings, b: Crossings) -> Crossings:
        rows = [(c.record, c.lane, c.theta, c.direction) for c in (a, b)]
        record, lane, theta, direction = jax.tree.map(lambda x, y: np.concatenate([x, y]), *rows)
        return Crossings(b.name, b.stop, record, lane, theta, direction, np.asarray(a.suspects) + b.suspects)

    return {name: both(first[name], found) if name in first else found for name, found in second.items()}


MAX_HOLONOMIC_RESIDUAL = 1e-3
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
        return _as_int(self.final.steps)

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
            if off.max() > MAX_HOLONOMIC_RESIDUAL:
                when = float(np.ravel(self.t)[np.argmax(np.ravel(off) > MAX_HOLONOMIC_RESIDUAL)])
                raise NumericalFailure(
                    f"the run left the holonomic constraint: |phi| exceeds {MAX_HOLONOMIC_RESIDUAL:g} at t = {when:g} and reaches {off.max():.3g}; "
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
        return self._along(_constraint_residual)

    def holonomic_residual(self) -> Array:
        """max |phi| at each saved state: 0 where there are no holonomic constraints."""
        return self._along(_holonomic_residual)

    def group_distance(self) -> Array:
        """Distance of g from the group at each saved state."""
        return self._along(_group_distance)

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


def _constraint_residual(system: MechanicalSystem, state: State) -> Array:
    return jnp.max(jnp.abs(system.residual(state.t, state.g, state.xi)), initial=0.0)


def _holonomic_residual(system: MechanicalSystem, state: State) -> Array:
    return jnp.max(jnp.abs(system.phi(state.t, state.g)), initial=0.0)


def _group_distance(system: MechanicalSystem, state: State) -> Array:
    return system.group.distance(state.g)


@lru_cache
def _mapped(function: Callable, members: bool, batched: bool) -> Callable:
    """function(system, state) over the saved states (of every member), compiled once for all systems of a kind."""
    per_state = jax.vmap(function, in_axes=(None, 0))
    return jax.jit(jax.vmap(per_state, in_axes=(0 if batched else None, 0)) if members else per_state)


def _as_int(value):
    return value if isinstance(value, jax.core.Tracer) or np.ndim(value) else int(value)


R = TypeVar("R", bound=Run)
MAX_SAVED_STEPS = 100_000
"""Up to how many steps a run in which power enters is saved whole, so that its work can be told."""


def receives_power(system: MechanicalSystem) -> bool:
    """Whether P = <F, xi> - L_t + <l, A xi> can be other than zero without controls: a force, an explicit time, a constraint that moves.

    False is a proof, True is not (see `_jaxpr`).
    """
    t, g, xi = np.zeros(()), system.group.identity(), np.ones(system.group.dim)
    if isinstance(system, NonlinearSystem) or depends(lambda s: system.L(s, g, xi), t):
        return True
    forced = not vanishes(lambda at: system.F(at[0], at[1], at[2], None), (t, g, xi))
    return forced or not vanishes(lambda point: system.b(*point), (t, g))


def work(run: Run, controls: Any = None) -> np.ndarray:
    """The energy that should have entered up to each saved state; see `diagnostics.work`. `controls` have one row between two of them."""
    states = run.records.state
    gaps = np.diff(np.asarray(states.t))
    begin, end = (jax.tree.map(lambda leaf: leaf[part], states) for part in (slice(None, -1), slice(1, None)))
    (p0, s0), (p1, s1) = _powers(run.system, begin, controls), _powers(run.system, end, controls)
    return np.append(0.0, np.cumsum(gaps / 2 * (p0 + p1) + gaps**2 / 12 * (s0 - s1)))


def _powers(system: MechanicalSystem, states: State, controls: Any) -> tuple[np.ndarray, np.ndarray]:
    """P and dP/dt along the motion at each state: every state is a lane of a run of no steps, for XLA compiles this for a minute."""
    lanes = states.xi.shape[0]
    power, slope = evaluated(_power, system, (states, controls), lanes=lanes, axes=(None, 0))
    return np.asarray(power), np.asarray(slope)


def _power(system: MechanicalSystem, point) -> tuple[Array, Array]:
    """(P, dP/dt) at a state under its control."""
    state, u = point
    rate, _ = system.acceleration(state.t, state.g, state.xi, u)

    def power(s):
        t, g, xi = state.t + s, system.group.shift(state.g, s * state.xi), state.xi + s * rate
        entering = system.F(t, g, xi, u) @ xi - jax.grad(system.L)(t, g, xi)
        return entering + system.multipliers(t, g, xi, u) @ (system.rows(t, g)(xi) @ xi)

    return jax.jvp(power, (0.0,), (1.0,))


def save_interval(system: MechanicalSystem, steps: int, every: int) -> int:
    """How often to save where every `every`-th state is wanted: always where power enters, whose work needs them, unless they are many."""
    return 1 if steps <= MAX_SAVED_STEPS and receives_power(system) else every


class Conservation(NamedTuple):
    """A quantity that should stay zero: its name, how it is written, its values at saved states, its largest size at all of them."""

    title: str
    label: str
    values: np.ndarray
    peak: float


ENERGY_ERROR, ENERGY_BALANCE, ENERGY_CHANGE = "Energy error", "Energy balance", "Energy change"


def energy_conservation(run: Run) -> Conservation:
    """The energy error of a single run; where power enters, the balance E - E(0) - work instead.

    Where the work cannot be told (controls, which a run does not hold, or states that were not saved) it is a change, not an error.
    """
    change = np.asarray(run.energy_error())
    enters = receives_power(run.system)
    if not (enters or run.controlled):
        return _kept(ENERGY_ERROR, "|E - E(0)|", change)
    if run.controlled or len(change) < 2 or np.any(np.diff(np.asarray(run.records.steps)) > 1):
        return _kept(ENERGY_CHANGE, "|E - E(0)|", change)
    return _kept(ENERGY_BALANCE, "|E - E(0) - work|", change - work(run))


def _kept(title: str, label: str, values: np.ndarray) -> Conservation:
    return Conservation(title, label, values, float(np.abs(values).max()))


def subsampled(run: R, every: int) -> tuple[R, Conservation]:
    """A run at every `every`-th of its steps and its last, and there what it keeps of the energy."""
    kept, steps = energy_conservation(run), np.asarray(run.records.steps)
    shown = (steps % every == 0) | (np.arange(len(steps)) == len(steps) - 1)
    fewer = replace(run, records=jax.tree.map(lambda leaf: np.asarray(leaf)[shown], run.records))
    return fewer, kept._replace(values=kept.values[shown])
