"""What a run leaves: its records, the events it crossed, how it ended, and how well it kept energy and constraints.

A `Run` needs nothing but numbers; `dalembert.Trajectory` adds files, tables and figures.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, NumericalFailure
from ..integrators import REASONS, Integrator
from ..kernels import compile_function, evaluate
from ..mechanics import MechanicalSystem, NonlinearSystem, State, explain_singular
from ..numerics import array, depends, is_traced, namespace, require_known, vanishes

Numbers = np.ndarray[Any, Any]
R = TypeVar("R", bound="Run")
MAX_HOLONOMIC_RESIDUAL = 1e-3
"""|phi| beyond which `Run.check` calls the holonomic constraints lost."""
MAX_SAVED_STEPS = 100_000
"""Up to so many steps, every state of a run that receives power is saved: its work needs them."""
OUTSIDE = "ask for it outside, or take run.final.status, which is 0 where all is well"
ENERGY_ERROR, ENERGY_BALANCE, ENERGY_CHANGE = "Energy error", "Energy balance", "Energy change"


class Record(NamedTuple):
    """One saved state, how the step that led to it went, and the unwrapped angles."""

    state: State
    residual: Array
    iterations: Array
    multipliers: Array
    angles: Array
    steps: Array
    step_size: Array | None = None  # where a method has steps of several sizes


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("record", "lane", "theta", "direction", "suspects", "tangents"),
    meta_fields=("name", "stop"),
)
@dataclass(frozen=True, eq=False)
class Crossings:
    """All crossings of one event in a run: arrays with one row for each, in order of time (members first).

    A crossing lies in step number `step`, at the fraction `theta` of it. Its state is that of the method's own step of
    this fraction, at or just beyond the event. Only a change of sign between the ends of a step is seen; `suspects`
    counts, for each member, the steps in which a parabola through three values says that the function may have crossed
    zero twice. `tangents` are derivatives of the crossings, if the run was asked for them.
    """

    name: str
    stop: bool
    record: Record
    lane: Numbers
    theta: Numbers
    direction: Numbers
    suspects: Numbers
    tangents: Record | None = None

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
        """The number of the step in which each crossing lies; the first step is 1."""
        return self.record.steps

    def of(self, member: int) -> Crossings:
        """Return the crossings of one member of an ensemble."""
        own = self.suspects[member : member + 1]
        return replace(self.select(np.asarray(self.lane) == member), suspects=own)

    def select(self, rows: Any) -> Crossings:
        """Return some of the crossings: a mask, a slice or indices."""
        rows = np.asarray(rows, None if len(rows) else int) if isinstance(rows, list) else rows
        columns = (self.record, self.lane, self.theta, self.direction)
        taken = jax.tree.map(lambda leaf: (leaf if is_traced(leaf) else np.asarray(leaf))[rows], columns)
        record, lane, theta, direction = taken
        tangents = self.tangents
        if tangents is not None:
            front = (slice(None),) * (np.ndim(tangents.state.t) - 1)  # directions
            tangents = jax.tree.map(lambda leaf: leaf[(*front, rows)], tangents)
        return replace(self, record=record, lane=lane, theta=theta, direction=direction, tangents=tangents)

    def __repr__(self) -> str:
        return f"<{len(self)} crossings of {self.name!r}>"


def join_crossings(first: Mapping[str, Crossings], second: Mapping[str, Crossings]) -> dict[str, Crossings]:
    """Return the crossings of a run and of its continuation."""

    def join(a: Crossings, b: Crossings) -> Crossings:
        columns = [(c.record, c.lane, c.theta, c.direction) for c in (a, b)]
        record, lane, theta, direction = jax.tree.map(lambda x, y: np.concatenate([x, y]), *columns)
        return Crossings(b.name, b.stop, record, lane, theta, direction, np.asarray(a.suspects) + b.suspects)

    return {name: join(first[name], found) if name in first else found for name, found in second.items()}


@dataclass(frozen=True)
class RunSummary:
    """A run in numbers: status, steps, largest errors; None where there is no finite number.

    The largest errors are over all steps if the run was monitored, else over its saved states.
    """

    method: str
    step: float
    steps: int  # good ones
    time: float  # of the last state
    status: str
    failed_at: int | None
    reason: str | None
    stopped_by: str | None
    interrupted: bool
    backend: str
    receives_power: bool | None = None
    energy_title: str = ENERGY_ERROR  # what `energy_defect` is
    energy_initial: float | None = None
    energy_final: float | None = None
    energy_error: float | None = None  # largest |E - E(0)|
    energy_balance: float | None = None  # largest |E - E(0) - work|, where power enters and the work is known
    work: float | None = None  # what entered up to the end, there
    power: float | None = None  # largest |P| at saved states, there
    constraint: float | None = None  # largest |A xi - b|
    holonomic: float | None = None  # largest |phi|
    group: float | None = None  # largest distance from the group

    @property
    def energy_defect(self) -> float | None:
        """The largest error of the energy: of its balance with the work, where that is known, else |E - E(0)|."""
        return self.energy_error if self.energy_balance is None else self.energy_balance


@dataclass(frozen=True, eq=False)
class Run:
    """The result of a run: the saved states as arrays, how it ended, and how well it conserved the energy."""

    system: MechanicalSystem
    integrator: Integrator
    step: Array
    records: Record
    final: Any  # the LoopState from which the run can go on
    backend: str = "xla"
    note: str = ""
    interrupted: bool = False
    batched: bool = False
    controlled: bool = False  # whether controls were given
    tangents: Record | None = None  # derivatives of the records, where a run was asked for them
    events: dict[str, Crossings] = field(default_factory=dict)  # what it found of each, by their names
    controls: Any = None  # one row for each step of this run
    every: int | None = None  # most steps between two saved states; None where that is not known

    def __getattr__(self, name: str) -> Any:
        """Make the last loop of a run that was left with `finish_later`."""
        if name != "final" or "_finish" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.__dict__["final"] = self.__dict__["_finish"]()
        return self.__dict__["final"]

    @classmethod
    def of_loop(
        cls, system: MechanicalSystem, integrator: Integrator, step: Any, records: Any, finish: Callable[[], Any],
        controls: Any, every: int, tangents: Record | None = None,
    ) -> Self:  # fmt: skip
        """Return a run of native code that ended well; its fields are set at once, for one by one takes longer."""
        made = object.__new__(cls)
        made.__dict__.update(
            system=system, integrator=integrator, step=step, records=records, backend="llvm", note="",
            interrupted=False, batched=False, controlled=controls is not None, tangents=tangents, events={},
            controls=controls, every=every, _finish=finish,
        )  # fmt: skip
        return made

    def finish_later(self, finish: Callable[[], Any]) -> Self:
        """Return this run, whose last loop is made when somebody asks for it."""
        del self.__dict__["final"]
        self.__dict__["_finish"] = finish
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "final": self.final, "_finish": None}

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
        """Velocities xi = g^-1 g' in the body, shape (saves, n)."""
        return self.records.state.xi

    @property
    def momentum(self) -> Array:
        """The method's own momenta, shape (saves, n); for retraction-adapted those restricted to D, (saves, r)."""
        return self.records.state.momentum

    @property
    def increment(self) -> Array:
        """Mean velocities tau^-1(W)/h of the method's steps, W the displacement of a step; shape (saves, n)."""
        return self.records.state.increment

    @property
    def multipliers(self) -> Array:
        """Lagrange multipliers of the step to each state, shape (saves, m); at the start those of the motion."""
        return self.records.multipliers

    @property
    def angles(self) -> Array:
        """Angles of the planar rotations in g, with whole turns counted, shape (saves, number of angles)."""
        return self.records.angles

    @property
    def residual(self) -> Array:
        """Residual of the nonlinear equations of the step to each state, shape (saves,)."""
        return self.records.residual

    @property
    def iterations(self) -> Array:
        """Iterations of the step to each state (Newton's; substeps of adaptive methods), shape (saves,)."""
        return self.records.iterations

    @property
    def step_sizes(self) -> Array:
        """The size of the step that led to each state (at the start: of the first step), shape (saves,)."""
        if (own := self.records.step_size) is not None:
            return own
        step = jnp.asarray(self.step)
        return jnp.broadcast_to(step.reshape(step.shape + (1,) * (np.ndim(self.t) - step.ndim)), np.shape(self.t))

    @property
    def last(self) -> State:
        """The last saved state."""
        last: State = jax.tree.map(lambda leaf: leaf[-1], self.records.state)
        return last

    @property
    def steps(self) -> Any:
        """How many steps succeeded, counted from the start of the first run; an array for an ensemble."""
        return self.final.steps if is_traced(self.final.steps) or np.ndim(self.final.steps) else int(self.final.steps)

    @property
    def status(self) -> Any:
        """ "ok", "failed", or "interrupted" where Ctrl-C ended the run; an array of these for an ensemble."""
        require_known("run.status", self.final.status, OUTSIDE)
        well, codes = "interrupted" if self.interrupted else "ok", np.asarray(self.final.status)
        return np.where(codes == 0, well, "failed") if codes.ndim else (well if codes == 0 else "failed")

    @property
    def failed_at(self) -> Any:
        """After how many good steps the run failed (-1: at the start), or None; for ensembles an array (-2: not)."""
        require_known("run.failed_at", (self.final.status, self.final.steps), OUTSIDE)
        codes, counts = np.asarray(self.final.status), np.asarray(self.final.steps).astype(int)
        if codes.ndim:
            return np.where(codes == 0, -2, counts)
        return None if codes == 0 else int(counts)

    @property
    def reason(self) -> Any:
        """Why the run failed, or an empty string."""
        require_known("run.reason", self.final.status, OUTSIDE)
        codes = np.asarray(self.final.status)
        if codes.ndim:
            return np.vectorize(REASONS.get, otypes=[object])(codes)
        return Run._failure_reason(self, int(codes), int(self.final.steps)) if codes else ""

    @property
    def stopped_by(self) -> Any:
        """The name of the event that stopped the run, or None; an array of names for an ensemble, "" where none did."""
        names = np.full(np.shape(self.final.status) or (1,), "", object)
        for found in self.events.values():
            if found.stop:  # inside a transformation there is a row for each member, NaN where it was not stopped
                here = np.ones(len(found), bool) if is_traced(found.t) else ~np.isnan(found.t)
                names[np.asarray(found.lane)[here]] = found.name
        return names if np.ndim(self.final.status) else (names[0] or None)

    @property
    def _is_many(self) -> bool:
        """Whether `jax.vmap` returned this: runs side by side, of which each has its own system and step."""
        return np.ndim(self.step) > 0

    def _require_one(self, what: str, members: bool = True) -> None:
        """Refuse what the numbers of a run that JAX traces, or of many runs, do not give; an ensemble unless it may."""
        require_known(what, self.records)
        if self._is_many:
            raise InvalidInput(
                f"{what} needs one run, but jax.vmap returned {np.shape(self.step)[0]}: take one of them, "
                "jax.tree.map(lambda leaf: leaf[k], run), or let da.ensemble make them"
            )
        if np.ndim(self.final.status) and not members:
            raise InvalidInput(f"{what} needs one run, and this is an ensemble: simulate the member alone")

    @property
    def holonomic_constraints(self) -> int:
        """The number of holonomic constraints of the system."""
        return int(np.shape(self.final.peaks.holonomic)[-1])

    @property
    def monitored(self) -> bool:
        """Whether the run was monitored: `final.peaks` then has the largest errors over all steps, else zeros."""
        require_known("run.monitored", self.final.peaks, OUTSIDE)
        return any(np.any(np.asarray(leaf) != 0.0) for leaf in jax.tree.leaves(self.final.peaks))

    def check(self) -> Self:
        """Return the run itself, or raise `NumericalFailure` with step and reason if it (or any member) failed.

        If Ctrl-C ended the run, it raises `KeyboardInterrupt`, so that a program that needs whole runs stops. It
        also raises if a method that does not enforce holonomic constraints let |phi| grow beyond
        `MAX_HOLONOMIC_RESIDUAL`.
        """
        require_known("run.check()", self.final.status, OUTSIDE)
        codes = np.atleast_1d(np.asarray(self.final.status))
        if codes.any():
            member = int(np.argmax(codes != 0))
            count = int(np.atleast_1d(np.asarray(self.final.steps))[member])
            many = np.ndim(self.final.status)
            who = f"member {member} ({np.count_nonzero(codes)} of {codes.size} failed)" if many else "the run"
            when = "at its start" if count < 0 else f"after {count} good steps"
            raise NumericalFailure(f"{who} failed {when}: {self._failure_reason(int(codes[member]), count)}")
        if self.interrupted:
            raise KeyboardInterrupt("the run was interrupted: without check() it can be looked at and continued")
        if self.holonomic_constraints:
            error = np.asarray(self.holonomic_residual())
            if error.max() > MAX_HOLONOMIC_RESIDUAL:
                t = float(np.ravel(self.t)[np.argmax(np.ravel(error) > MAX_HOLONOMIC_RESIDUAL)])
                raise NumericalFailure(
                    f"the run left the holonomic constraint: |phi| exceeds {MAX_HOLONOMIC_RESIDUAL:g} at t = {t:g} and "
                    f"reaches {error.max():.3g}; {self.integrator.name} satisfies it only up to its own error. "
                    "Take a smaller step, or lagrange-dalembert"
                )
        return self

    def _failure_reason(self, code: int, count: int) -> str:
        """Return the reason of a failure after `count` good steps."""
        first = count <= 0 and not np.ndim(self.final.status)
        return (first and explain_singular(self.system, *self.last[:3])) or REASONS[code]

    def summary(self, conservation: Conservation | None = None) -> RunSummary:
        """Sum up a single run in numbers; `conservation` is its energy conservation, if that is known already."""
        if np.ndim(self.final.status):
            raise InvalidInput("a summary describes one run; an ensemble has arrays: status, steps, final.peaks")
        require_known("run.summary()", (self.records, self.final))
        known: dict[str, Any] = {"reason": self.reason or None, "steps": max(0, int(self.steps))}
        known |= {name: getattr(self, name) for name in ("status", "failed_at", "stopped_by", "interrupted", "backend")}
        made = RunSummary(self.integrator.name, float(self.step), time=float(self.t[-1]), **known)
        if self.failed_at == -1:
            return made
        title = _energy_title(self) if conservation is None else conservation.title
        if self.monitored:
            peaks = self.final.peaks
            values = (peaks.energy, _final_energy(self.system, (self.last, None)), peaks.energy_error)
            extremes = (peaks.constraint, np.max(peaks.holonomic, initial=0.0), peaks.group)
        else:
            energy = np.asarray(self.energy())
            values = (energy[0], energy[-1], np.abs(energy - energy[0]).max())
            along = (self.constraint_residual(), self.holonomic_residual(), self.group_distance())
            extremes = tuple(np.abs(np.asarray(each)).max() for each in along)
        found = dict(zip(("energy_initial", "energy_final", "energy_error"), map(to_json, values), strict=True))
        found |= zip(("constraint", "holonomic", "group"), map(to_json, extremes), strict=True)
        if not self.multipliers.shape[-1]:
            del found["constraint"]
        if not self.holonomic_constraints:
            del found["holonomic"]
        if title == ENERGY_BALANCE:
            balance = conservation or energy_conservation(self)
            entered = {"work": to_json(balance.work[-1]), "power": to_json(np.abs(balance.power).max())}
            found |= {"energy_balance": balance.peak, **entered}
        powered = self.controlled or receives_power(self.system)
        return replace(made, receives_power=powered, energy_title=title, **found)

    def energy(self) -> Array:
        """The energy <dL/dxi, xi> - L at each saved state, shape (saves,), at the admissible velocity."""
        return self._at_states("energy")

    def energy_error(self) -> Array:
        """The energy error E(t) - E(0) at each saved state, shape (saves,)."""
        energy = self.energy()
        return energy - energy[..., :1]

    def constraint_residual(self) -> Array:
        """How far each saved state is from the constraint: the largest component of |A xi - b|, shape (saves,)."""
        return self._at_states("constraint")

    def holonomic_residual(self) -> Array:
        """The largest component of |phi| at each saved state, shape (saves,); 0 without holonomic constraints."""
        return self._at_states("holonomic")

    def group_distance(self) -> Array:
        """How far g is from the group at each saved state (|R^T R - 1| of rotations), shape (saves,)."""
        return self._at_states("group")

    def controls_at_states(self) -> Any:
        """The controls that act from each saved state on (at the last state: those that acted before it), or None.

        The shape is (saves, inputs), with the members in front in an ensemble.
        """
        held, steps = self.held_controls(), self.records.steps
        xp = namespace(held, steps)
        rows = xp.asarray(steps) - xp.asarray(steps)[..., :1]
        if np.ndim(steps) == 2 and getattr(held, "ndim", 0) == 3:  # each member has its own
            own = xp.asarray(held)
            return own[np.arange(len(own))[:, None], xp.minimum(rows, own.shape[1] - 1)]
        return jax.tree.map(lambda leaf: xp.asarray(leaf)[xp.minimum(rows, len(leaf) - 1)], held)

    def held_controls(self) -> Any:
        """The controls of this run, one row for each step, or None; a file that was written without them is refused."""
        if self.controlled and self.controls is None:
            raise InvalidInput(
                "this run had controls, but its file was written before runs kept them: give them again, as "
                "dataclasses.replace(run, controls=rows) with one row a step"
            )
        return self.controls

    def power(self) -> Numbers:
        """The power P = <F, xi> - L_t + <l, A xi> that enters the system, at each saved state of a single run."""
        self._require_one("run.power()", members=False)
        return _powers(self, slice(None), self.controls_at_states())[0]

    def work(self) -> Numbers:
        """The work done on the system up to each saved state: the integral of the `power` P = dE/dt, to order 4.

        It counts forces and controls, an explicit time dependence of L, and reactions that do work (of affine and of
        nonlinear constraints). The rule is the corrected trapezoidal one. Controls jump from step to step, so every
        state of a controlled run must have been saved.
        """
        require_known("run.work()", self.records, "ask for it outside, or take run.energy()")
        self._require_one("run.work()", members=False)
        states, u = self.records.state, self.held_controls()
        if u is not None and np.any(np.diff(np.asarray(self.records.steps)) != 1):
            raise InvalidInput(
                "controls jump at every step: the work is known where every state is saved: save_every = 1"
            )
        gaps = np.diff(np.asarray(states.t))
        u = jax.tree.map(lambda leaf: leaf[: len(gaps)], u)
        (p0, s0), (p1, s1) = _powers(self, slice(None, -1), u), _powers(self, slice(1, None), u)
        return np.append(0.0, np.cumsum(gaps / 2 * (p0 + p1) + gaps**2 / 12 * (s0 - s1)))

    def reaction(self) -> Array:
        """The reaction A^T l of the constraint at each saved state: torques and forces in the body, shape (saves, n).

        It is dual to the velocity (`Group.axes` names the components and their units) and comes from the equations of
        motion at the saved state, (23) of jimenez-scheurle, under the controls of `controls_at_states`; the method's
        own discrete multipliers belong to its steps and are in `multipliers`.
        """
        return self._at_states("reaction", self.controls_at_states())

    def _at_states(self, name: str, u: Any = None) -> Array:
        """Return one of _AT_STATES at every saved state, of every member: natively unless JAX traces the run."""
        if self._is_many:
            found: Array = jax.vmap(lambda run, u: run._at_states(name, u))(self, u)
            return found
        states, shape = self.records.state, np.shape(self.t)
        states = State(*states[:3], None, None, states.group)  # they ask for no more
        if self.batched or is_traced((states, u)):
            return _map_states(name, np.ndim(self.final.status) == 1, self.batched)(self.system, states, u)
        point = (states, u)
        if len(shape) > 1:
            point = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[len(shape) :])), point)
        found = evaluate(_AT_STATES[name], self.system, point, lanes=math.prod(shape), axes=(None, 0))
        return found if len(shape) == 1 else found.reshape((*shape, *found.shape[1:]))

    def __repr__(self) -> str:
        known = np.ndim(self.final.status) == 0 and not is_traced(self.final.status)
        end = f", failed: {self.reason}" if known and self.status == "failed" else ""
        members = f"{np.size(self.final.status)} members, " if np.ndim(self.final.status) else ""
        what = f"<{type(self).__name__} of {self.system.title} on {self.system.group} by {self.integrator.name}"
        return f"{what}: {members}{np.shape(self.t)[-1]} states{end}>"


def to_json(value: Any) -> Any:
    """Return nested lists of Python floats; None for what is empty or not finite."""
    if isinstance(value, tuple | list):
        return [to_json(entry) for entry in value] or None
    numbers = np.asarray(value, float)
    if numbers.ndim:
        return [to_json(entry) for entry in numbers] or None
    return float(numbers) if np.isfinite(numbers) else None


Point = tuple[State, Any]  # a state and the control there


def _energy(system: MechanicalSystem, point: Point) -> Array:
    z, _ = point
    return system.energy(z.t, z.g, z.xi)


def _residual(system: MechanicalSystem, point: Point) -> Array:
    z, _ = point
    return jnp.max(jnp.abs(system.residual(z.t, z.g, z.xi)), initial=0.0)


def _holonomic_residual(system: MechanicalSystem, point: Point) -> Array:
    z, _ = point
    return jnp.max(jnp.abs(system.phi(z.t, z.g)), initial=0.0)


def _distance(system: MechanicalSystem, point: Point) -> Array:
    return jnp.asarray(system.group.distance(point[0].g))


def _reaction(system: MechanicalSystem, point: Point) -> Array:
    z, u = point
    return system.multipliers(z.t, z.g, z.xi, u) @ system.A(z.t, z.g)


_final_energy = compile_function(_energy)
_AT_STATES: dict[str, Callable[[MechanicalSystem, Point], Array]] = {
    "energy": _energy,
    "constraint": _residual,
    "holonomic": _holonomic_residual,
    "group": _distance,
    "reaction": _reaction,
}


@lru_cache
def _map_states(name: str, members: bool, batched: bool) -> Callable[..., Array]:
    """Return one of _AT_STATES over the saved states of every member, compiled once for systems of a kind."""
    per_state = jax.vmap(lambda system, z, u: _AT_STATES[name](system, (z, u)), in_axes=(None, 0, 0))
    return jax.jit(jax.vmap(per_state, in_axes=(0 if batched else None, 0, 0)) if members else per_state)


class Conservation(NamedTuple):
    """A quantity that should stay zero: its title and formula, its values at saved states, and the largest |value|.

    `power` and `work` that enter stand beside an energy balance; they are empty otherwise.
    """

    title: str
    label: str
    values: Numbers
    peak: float
    power: Numbers = np.zeros(0)
    work: Numbers = np.zeros(0)


_power_known: deque[tuple[MechanicalSystem, list[Any], bool]] = deque(maxlen=16)  # the last, and their numbers


def receives_power(system: MechanicalSystem) -> bool:
    """Whether P = <F, xi> - L_t + <l, A xi> can differ from 0 without controls: a force, an explicit time, a drift b.

    False is a proof, True is not (see `numerics.depends`).
    """
    numbers = jax.tree.leaves(system)
    for known, before, found in tuple(_power_known):
        if known is system and len(before) == len(numbers) and all(map(operator.is_, before, numbers)):
            return found
    found = _receives_power(system)
    _power_known.append((system, numbers, found))
    return found


def _receives_power(system: MechanicalSystem) -> bool:
    t, g, xi = np.zeros(()), system.group.identity(), array(np.ones(system.group.dim))
    if isinstance(system, NonlinearSystem) or system.inputs is None or depends(lambda s: system.L(s, g, xi), t):
        return True
    forced = not vanishes(lambda at: system.F(at[0], at[1], at[2], None), (t, g, xi))
    return forced or not vanishes(lambda point: system.b(*point), (t, g))


def energy_conservation(run: Run) -> Conservation:
    """Return the energy error of a single run; where power enters, the balance E - E(0) - work instead.

    Where the work is not known (not every state was saved, or the controls were not) it is a change.
    """
    title, label = _energy_title(run), "|E - E(0)|"
    if title == ENERGY_BALANCE:
        energy, label = np.asarray(run.energy()), "|E - E(0) - work|"
        power, work = run.power(), run.work()
        values = energy - energy[0] - work
        return Conservation(title, label, values, float(np.abs(values).max()), power, work)
    values = np.asarray(run.energy_error())
    return Conservation(title, label, values, float(np.abs(values).max()))


def _energy_title(run: Run) -> str:
    if not (run.controlled or receives_power(run.system)):
        return ENERGY_ERROR
    steps = np.diff(np.asarray(run.records.steps))
    lost = run.controlled and run.controls is None
    return ENERGY_CHANGE if lost or not len(steps) or np.any(steps > 1) else ENERGY_BALANCE


def _powers(run: Run, part: slice, u: Any) -> tuple[Numbers, Numbers]:
    """P and dP/dt at some states: each is a lane of a run of no steps, for XLA compiles this for a minute."""
    some = jax.tree.map(lambda leaf: leaf[part], run.records.state)
    power, slope = evaluate(_power, run.system, (some, u), lanes=some.xi.shape[0], axes=(None, 0))
    return np.asarray(power), np.asarray(slope)


def _power(system: MechanicalSystem, point: tuple[State, Any]) -> tuple[Array, Array]:
    """(P, dP/dt) along the motion at a state under its control."""
    state, u = point
    rate, _ = system.acceleration(state.t, state.g, state.xi, u)

    def power(s: Any) -> Array:
        t, g, xi = state.t + s, system.group.shift(state.g, s * state.xi), state.xi + s * rate
        entering = system.F(t, g, xi, u) @ xi - jax.grad(system.L)(t, g, xi)
        return jnp.asarray(entering + system.multipliers(t, g, xi, u) @ (system.rows(t, g)(xi) @ xi))

    found: tuple[Array, Array] = jax.jvp(power, (0.0,), (1.0,))
    return found


def save_interval(system: MechanicalSystem, steps: int, every: int) -> int:
    """Return after how many steps to save where every `every`-th state is wanted: 1 where their work is needed."""
    return 1 if steps <= MAX_SAVED_STEPS and receives_power(system) else every


def subsample(run: R, every: int) -> tuple[R, Conservation]:
    """Return a run at every `every`-th of its steps and its last, and its energy conservation at these."""
    conservation, steps = energy_conservation(run), np.asarray(run.records.steps)
    shown = (steps % every == 0) | (np.arange(len(steps)) == len(steps) - 1)
    fewer = replace(run, records=jax.tree.map(lambda leaf: np.asarray(leaf)[shown], run.records), every=None)
    along = ("values", "power", "work") if len(conservation.work) else ("values",)
    return fewer, conservation._replace(**{name: getattr(conservation, name)[shown] for name in along})
