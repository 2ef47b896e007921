"""Which parameters made this motion: least squares through the integrator, with what the data can tell of each.

With measurements y_i of standard deviation s_i at times t_i and the motion q(t; x) of the discrete method, x minimises

    chi^2(x) = sum_i rho(((h(q(t_i; x)) - y_i)/s_i)^2) + sum of priors,

where orientations are compared on the group, log(g_i^-1 g(t_i)). Derivatives are those of the discrete motion, native
and exact. The covariance of the estimate is (J^T J)^-1 (Gauss, Theoria combinationis, 1823; Bard, Nonlinear Parameter
Estimation, 1974, ch. 7), with J the Jacobian of the weighted residuals.

A run of an experiment is cut into shots of equal length (one, unless a single shot would lose the data). The unknowns
of a shot are parameters p of the system and local coordinates z of its start: the start is (g0 exp(eta), xi) with eta
and the free components of xi in z; the other components of xi follow from A xi = b. A lane is a shot with a direction
(dp, dz): it carries the tangent of the loop along that direction, so that all columns of the Jacobian come from one
call. Measurements are compared inside the loop, in the step in which they lie: a time between two states is that of the
method's own step of a part of the size, as in `Trajectory.at`, and has the order of the method.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, NumericalFailure, require_name
from ..integrators import OK, REASONS, Integrator
from ..io.measurements import (
    STARTS,
    Measure,
    find_angles,
    join_experiments,
    kind_of_experiment,
    place_times,
    read_experiments,
    read_measures,
    read_weights,
    show_values,
    warn_of_turns,
    weigh,
)
from ..io.measurements import Experiment as Experiment
from ..kernels import Backend, Progress, Repeated, evaluate, evaluate_rows, part_of
from ..mechanics import MechanicalSystem, NonlinearSystem, State, name_leaves
from ..mechanics.system import unify
from ..numerics import (
    INTERRUPTED,
    LOSSES,
    SEARCHES,
    TOO_LONG,
    Columns,
    Estimate,
    Evaluation,
    Outcome,
    Search,
    checks,
    echelon,
    find_spread,
    one_blas_thread,
    show,
    solve,
)
from ..numerics import Unknown as Unknown
from ..plotting.studies import plot_fit
from ..plotting.style import label_quantity
from ..simulation import BACKENDS, RunKernel, StepStart, partial_step, run_kernel, sample_controls, split_reals
from ..trajectory import Trajectory, simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = np.ndarray[Any, Any]
Model = MechanicalSystem | Callable[..., MechanicalSystem]
Unknowns = Mapping[str, Any] | Sequence[str]
BETWEEN = " of shot "  # in the names of unknowns that states between shots have
FROM_START = tuple(f"{each}." for each in STARTS)  # how the names of unknowns of a start begin
NEWTON_STEPS = 8  # that put a velocity onto constraints that are not linear in it
SIDE_BY_SIDE = 64  # fits at once
ALONE_RUNS = 30  # that bring the start of a shot to its data


# -- runs beside measurements ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Form:
    """All of the shots of an experiment but their numbers."""

    build: Callable[..., MechanicalSystem]  # (base, {name: value}) -> system
    parameters: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes
    integrator: Integrator
    measures: tuple[Measure, ...] = ()
    angles: frozenset[str] = frozenset()  # those that are compared up to turns
    moved: tuple[int, ...] = ()  # axes along which the configuration at the start is unknown
    free: tuple[int, ...] = ()  # components of the velocity there that are unknown
    held: tuple[int, ...] = ()  # those that follow from the constraint
    linear: bool = True
    dense: bool = False  # whether times lie between the states

    def system(self, base: Any, p: Any) -> MechanicalSystem:
        """The system with these parameters."""
        values, begin = {}, 0
        for name, shape in self.parameters:
            values[name] = p[begin : begin + math.prod(shape)].reshape(shape)
            begin += math.prod(shape)
        made: MechanicalSystem = checks.call_own("model(...)", lambda: self.build(base, values))
        checks.require_instance("what model(...) gives", made, MechanicalSystem, "a system")
        return made

    def start(self, system: MechanicalSystem, lane: tuple[State, Any]) -> State:
        """The state with local coordinates z next to another one, put onto the constraints; (state, z) is given."""
        (state, z), group, unit = lane, system.group, np.eye(system.group.dim)
        t, g = state.t, state.g
        if self.moved:
            g = group.compose(g, group.exp(unit[:, self.moved] @ z[: len(self.moved)]))
            g = system.project_configuration(g, t)
        xi = state.xi + unit[:, self.free] @ z[len(self.moved) :]
        for _ in range((1 if self.linear else NEWTON_STEPS) if self.held else 0):
            rows = system.rows(t, g)(xi)[:, np.array(self.held)]
            xi = xi - unit[:, self.held] @ solve(rows, system.residual(t, g, xi))
        return State(t, g, xi, system.momentum(t, g, xi), xi, group)

    def compare(self, system: MechanicalSystem, state: State, targets: tuple[Any, ...]) -> Any:
        """How far a state is from what was measured, one component after the other."""
        parts = []
        for (name, function), target in zip(self.measures, targets, strict=True):
            if function is None:
                parts.append(difference(system, target, state.g))
            else:
                words = f"the observable {name!r} of (system, state)"
                off = jnp.ravel(checks.own_value(words, function, system, state)) - target
                parts.append(jnp.arctan2(jnp.sin(off), jnp.cos(off)) if name in self.angles else off)
        return jnp.concatenate(parts)

    def show(self, system: MechanicalSystem, state: State) -> Any:
        """What is compared, log g for configurations: the difference from 0, or from 1."""
        one = system.group.identity()
        return self.compare(system, state, tuple(one if function is None else 0.0 for _, function in self.measures))


def difference(system: MechanicalSystem, g: Any, h: Any) -> Any:
    """log(g^-1 h): the displacement from g to h in the body."""
    return system.group.log(system.group.compose(system.group.inverse(g), h))


class Lane(NamedTuple):
    """What a shot starts from and the next one, and the direction in which it is differentiated."""

    base: Any
    p: Any
    dp: Any
    state: Any
    z: Any
    dz: Any
    next: Any  # (state, z, dz) of the next shot
    h: Any


class Carried(NamedTuple):
    """The loop with the slopes of its real numbers; the last comparison and its slope."""

    loop: Any
    slopes: list[Any]
    error: Any
    slope: Any


@lru_cache(maxsize=64)
def shot_kernel(form: Form) -> tuple[RunKernel, Callable[..., Any]]:
    """The loop of a shot, and (lane, its end) -> gap to the next shot with its slope.

    They are the same objects every time, so that compiled programs are found again.
    """
    kernel, at = run_kernel(form.integrator, False), partial_step(form.integrator)

    def carry(function: Callable[..., Any], values: Any, slopes: Any) -> Carried:
        (_, error), (moving, slope), loop = jax.jvp(function, values, slopes, has_aux=True)
        return Carried(loop, moving, error, slope)

    def begin(lane: Lane, row: Any) -> Carried:
        u, _, targets = row

        def first(p: Any, z: Any) -> Any:
            system = form.system(lane.base, p)
            state = form.start(system, (lane.state, z))
            loop = kernel.begin((system, lane.h), (state, u))
            return (split_reals(loop)[0], form.compare(system, state, targets)), loop

        return carry(first, (lane.p, lane.z), (lane.dp, lane.dz))

    def advance(lane: Lane, before: Carried, row: Any) -> Carried:
        u, theta, targets = row
        reals, others, join = split_reals(before.loop)

        def following(p: Any, reals: Any) -> Any:
            system, loop = form.system(lane.base, p), join(reals, others)
            new = kernel.advance((system, lane.h), loop, u)
            seen = kernel.observe((system, lane.h), loop if form.dense else new)
            if form.dense:
                seen = at(system, StepStart(seen.state, seen.angles, loop.steps, lane.h), theta, u)[0]
            return (split_reals(new)[0], form.compare(system, seen.state, targets)), new

        return carry(following, (lane.p, reals), (lane.dp, before.slopes))

    def gap(lane: Lane, end: Carried) -> Any:
        reals, others, join = split_reals(end.loop)
        state, z, dz = lane.next

        def between(p: Any, z: Any, reals: Any) -> Any:
            system = form.system(lane.base, p)
            there, here = kernel.observe((system, lane.h), join(reals, others)).state, form.start(system, (state, z))
            apart = difference(system, here.g, there.g)
            return jnp.concatenate([apart[np.array(form.moved)], (there.xi - here.xi)[np.array(form.free)]])

        return jax.jvp(between, (lane.p, z, reals), (lane.dp, dz, end.slopes))

    return RunKernel(begin, advance, lambda lane, now: (now.error, now.slope)), gap


class Failure(NamedTuple):
    """A run that failed on the way: after how many good steps, and why."""

    steps: int
    reason: str


@dataclass(eq=False)
class Shots:
    """The runs of one experiment, ready for many values of the unknowns: its shots, or one run in each of many fits.

    Measurement i lies in run `place[0][i]`, in its slot `place[1][i]` (measurements in one step have one slot each)
    and in its record `place[2][i]`.
    """

    form: Form
    base: Any
    state: State  # leaves (runs, ...)
    h: float
    length: int  # of a run, in steps
    every: int  # a record after so many steps
    rows: Any  # (u, theta, targets) of every step, after those of the first state; leaves (runs, slots, 1 + length, ..)
    place: tuple[Numbers, Numbers, Numbers]
    fits: int = 1
    backend: Backend = "auto"

    @property
    def count(self) -> int:
        """The number of runs."""
        return len(self.state.t)

    @property
    def chained(self) -> bool:
        """Whether a run goes on where the one before ends."""
        return self.count > self.fits

    @cached_property
    def ways(self) -> Numbers:
        """The directions: unit vectors of (p, z of the run, z of the next one where there is one)."""
        starts = len(self.form.moved) + len(self.form.free)
        return np.eye(sum(math.prod(shape) for _, shape in self.form.parameters) + starts * (1 + self.chained))

    def spread(self, leaf: Any, axes: int = 1) -> Numbers:
        """A leaf of runs (1 axis) or runs and slots (2), for all lanes."""
        lead = (self.count, self.rows[1].shape[1], len(self.ways))
        leaf = np.asarray(leaf)[(slice(None),) * axes + (None,) * (3 - axes)]
        return np.broadcast_to(leaf, (*lead, *leaf.shape[3:])).reshape(math.prod(lead), *leaf.shape[3:])

    @cached_property
    def lanes(self) -> tuple[Any, ...]:
        """What stays of the lanes: directions, the states that runs start from, and those of the next ones."""
        directions = self.spread(np.broadcast_to(self.ways, (self.count, 1, *self.ways.shape)), 3)
        after = jax.tree.map(lambda leaf: self.spread(np.roll(leaf, -1, axis=0)), self.state)
        return directions, jax.tree.map(self.spread, self.state), after

    @property
    def axes(self) -> Lane:
        """Which numbers the lanes have of their own."""
        return Lane(None, None if self.fits == 1 else 0, 0, 0, 0, 0, 0, None)

    @cached_property
    def repeated(self) -> tuple[Repeated, Any]:
        """The runs, and the rows that they begin with."""
        first = jax.tree.map(lambda leaf: self.spread(leaf[:, :, 0], 2), self.rows)
        alone = self.rows[1].shape[:2] == (1, 1)  # all lanes have the same rows
        rest = jax.tree.map(lambda leaf: leaf[0, 0, 1:] if alone else self.spread(leaf[:, :, 1:], 2), self.rows)
        axes, saves = (self.axes, 0, None if alone else 0), self.length // self.every
        kernel, lanes = shot_kernel(self.form)[0], len(first[1])
        return Repeated(*kernel, rest, lanes, axes, saves, self.every, self.backend), first

    def run(self, p: Numbers, z: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers, list[Failure | None]]:
        """(errors (N, K), their slopes (N, K, ways), gaps (runs - 1, r), their slopes (.., ways), why a fit failed).

        `p` (fits, P) are the parameters, and `z` (runs, r) the coordinates of the starts.
        """
        runs, size, r = self.count, p.shape[1], z.shape[1]
        directions, state, after = self.lanes
        dp, dz, dz1 = directions[:, :size], directions[:, size : size + r], directions[:, size + r :]
        following = (after, self.spread(np.roll(z, -1, axis=0)), dz1) if self.chained else None
        own = p[0] if self.fits == 1 else self.spread(p)
        lane = Lane(self.base, own, dp, state, self.spread(z), dz, following, np.asarray(self.h))
        repeated, first = self.repeated
        end, records = repeated(lane, first)
        errors, slopes = (leaf.reshape(runs, -1, len(self.ways), *leaf.shape[1:]) for leaf in map(np.asarray, records))
        run, slot, row = self.place
        found = errors[run, slot, 0, row], np.moveaxis(slopes[run, slot, :, row], 1, -1)
        gaps, along = np.zeros((0, r)), np.zeros((0, r, 0))
        if self.chained:
            gap, axes = shot_kernel(self.form)[1], (self.axes, 0)
            made = evaluate(gap, lane, end, lanes=len(dz), axes=axes, backend=self.backend)
            gaps, along = (np.asarray(leaf).reshape(runs, -1, len(self.ways), r)[:-1, 0] for leaf in made)
            gaps, along = gaps[:, 0], np.moveaxis(along, 1, -1)
        status, steps = (np.asarray(leaf).reshape(self.fits, -1) for leaf in (end.loop.status, end.loop.steps))
        return *found, gaps, along, [self._failure(*pair) for pair in zip(status, steps, strict=True)]

    def _failure(self, status: Numbers, steps: Numbers) -> Failure | None:
        """Why a fit has no result, from the ends of its lanes."""
        if (status == OK).all():
            return None
        lane = int(np.argmax(status != OK))
        before = lane * (self.count // self.fits) // len(status) * self.length
        return Failure(before + max(0, int(steps[lane])), REASONS[int(status[lane])])


# -- what is fitted ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Built:
    """(base, {name: value}) -> system: a function of the values, or the base with other numbers in some leaves."""

    model: Callable[..., MechanicalSystem] | None
    names: tuple[str, ...] = ()  # of all leaves of the base

    def __call__(self, base: Any, values: Mapping[str, Any]) -> MechanicalSystem:
        if self.model is not None:
            return self.model(**values)
        leaves, structure = jax.tree.flatten(base)
        new = [values.get(name, leaf) for name, leaf in zip(self.names, leaves, strict=True)]
        return jax.tree.unflatten(structure, new)  # type: ignore[no-any-return]


def read_model(model: Any, unknowns: Any) -> tuple[Built, dict[str, Unknown | None]]:
    """(how to build a system, the unknowns by name) of a system or a function; None: as a start has it."""
    listed = isinstance(unknowns, Mapping | Sequence) and not isinstance(unknowns, str)
    if not listed or not all(isinstance(name, str) for name in unknowns):
        raise InvalidInput(f"unknowns are {show(unknowns)}; allowed: guesses by name, or names of a system's numbers")
    table = dict(unknowns) if isinstance(unknowns, Mapping) else dict.fromkeys(unknowns)
    if isinstance(model, MechanicalSystem):
        build = Built(None, name_leaves(model))
        leaves = dict(zip(build.names, jax.tree.leaves(model), strict=True))
        for name in (each for each in table if not each.startswith(FROM_START)):
            require_name("number of the system", name, leaves)
            table[name] = np.asarray(leaves[name], float) if table[name] is None else table[name]
    else:
        checks.require_function("model", model, "the parameters by name -> system, or a system", optional=False)
        mine, takes = {name: 0.0 for name in table if not name.startswith(FROM_START)}, None
        try:
            takes = inspect.signature(model)
            takes.bind(**mine)
        except ValueError:  # it has no signature
            pass
        except TypeError as fault:
            raise InvalidInput(f"model takes {takes}, the unknowns are ({', '.join(mine)}): {fault}") from None
        build = Built(unify(model))
    found = {k: v if v is None or isinstance(v, Unknown) else Unknown(v) for k, v in table.items()}
    for name, each in found.items():
        start, guess = name.startswith(FROM_START), None if each is None else each.guess
        if (start and each is not None and np.ndim(each.guess)) or (each is None and not start):
            raise InvalidInput(f"the unknown {name!r} has the guess {show(guess)}: give a number, or Unknown(number)")
    return build, found


class Part(NamedTuple):
    """One experiment, in each of the fits: its runs, where its unknowns stand (-1: known), the weights of its data."""

    shots: Shots
    parameters: Numbers  # (P,)
    coordinates: Numbers  # (shots, R)
    origin: Numbers  # (fits, shots, R), from which the coordinates of starts are measured
    begun: Numbers  # (R,) whether the search begins there
    weights: Numbers  # (N, K), or (N, K, K), N of all fits
    present: Numbers  # (N, K)
    times: Numbers
    values: list[Any]  # what was measured

    def unknowns(self, x: Numbers) -> tuple[Numbers, Numbers]:
        """The parameters of this experiment, and the coordinates of its starts, from rows of unknowns."""
        z = np.where(self.coordinates >= 0, x[:, self.coordinates] - self.origin, 0.0)
        return x[:, self.parameters], z.reshape(len(x) * len(self.coordinates), z.shape[2])

    def of(self, b: int) -> Part:
        """The experiment of one of several fits."""
        shots, count = self.shots, len(self.times) // self.shots.fits
        one, own = slice(b, b + 1), slice(b * count, (b + 1) * count)
        run, slot, row = part_of(shots.place, own)
        data = part_of((self.weights, self.present, self.times, self.values), own)
        state, rows = part_of((shots.state, shots.rows), one)
        alone = replace(shots, state=state, rows=rows, place=(0 * run, slot, row), fits=1)
        return Part(alone, self.parameters, self.coordinates, self.origin[one], self.begun, *data)


def make_part(
    given: Sequence[Experiment], table: dict[str, Unknown | None], places: dict[str, Numbers], columns: Columns,
    label: str, form: Form, base: Any, h: float, shots: int, backend: Backend,
) -> Part:  # fmt: skip
    """Lay out one experiment of every fit; the unknowns of its start, and those of its own, get their columns."""
    mine = {name: table[name] or Unknown(0.0) for name, _ in form.parameters}
    where = [places[name] if name in places else columns.add(name + label, each) for name, each in mine.items()]
    parameters, fits, data = np.concatenate([np.zeros(0, int), *where]), len(given), join_experiments(given)
    system, state = form.system(base, columns.numbers[0, parameters]), data.state
    if no_number := [k for k, leaf in enumerate(jax.tree.leaves(system)) if np.isnan(leaf).any()]:
        where_ = ", ".join(name_leaves(system)[k] for k in no_number)
        raise InvalidInput(f"model(...) has NaN in {where_} with the guess: give a guess for which it has none")
    group, times, early = system.group, np.asarray(data.times, float), [float(each.state.t) for each in given]
    for each in given:
        if each.state.group not in (None, group):
            raise InvalidInput(f"the state of an experiment is in {each.state.group}, but the system moves in {group}")
    measures, values, there = read_measures(data, system)
    angles = find_angles(data, system)
    for each in given:
        warn_of_turns(each, angles)
    present = np.concatenate(there, axis=1)
    if not present.reshape(fits, -1).any(axis=1).all():
        raise InvalidInput("an experiment has no value but NaN: nothing was measured")
    weights = read_weights(data, {name: each for (name, _), each in zip(measures, there, strict=True)})

    rows = np.asarray(system.rows(state.t, state.g)(state.xi)).reshape(-1, group.dim)
    held, lost = (set(echelon(part)[1]) for part in (rows, rows[len(rows) - system.holonomic_constraints :]))
    axes = [axis.name for axis in system.axes()]
    components = [(f"configuration.{axes[k]}", k) for k in range(group.dim) if k not in lost]
    components += [(f"velocity.{axes[k]}", k) for k in range(group.dim) if k not in held]
    wanted = [*data.free, *(name for name in table if name.startswith(FROM_START))]
    for name in wanted:
        require_name("component of a start (a shift has the name of a velocity)", name, (*dict(components), *STARTS))
    chosen = {name for name, _ in components if name in wanted or name.partition(".")[0] in wanted}
    known = [pair for pair in components if shots > 1 or pair[0] in chosen]
    moved, free = (tuple(k for name, k in known if name.startswith(kind)) for kind in STARTS)

    placed = [place_times(each, t0, h) for each, t0 in zip(times.reshape(fits, -1), early, strict=True)]
    *places_in, betweens = zip(*placed, strict=True)
    (number, step, slot), dense = map(np.concatenate, places_in), any(betweens)
    steps = max(1, int(step.max()))
    if shots > steps:
        raise InvalidInput(f"shots is {shots}; allowed: at most as many as there are steps, {steps}")
    pushes = [_push(each.controls, t0, h, steps, times, system) for each, t0 in zip(given, early, strict=True)]
    length = -(-steps // shots)
    shot = np.maximum(step - 1, 0) // length
    row = step - shot * length  # 0: the state before the first step, else the step in which the measurement lies
    run = shot + np.repeat(np.arange(fits), len(times) // fits)  # many fits have one shot each
    every = 1 if dense else int(np.gcd.reduce([length, *row]))
    lead = (fits * shots, int(slot.max()) + 1, length + 1)

    def spread(leaf: Any, unit: Any) -> Numbers:
        """The rows of all steps of all runs and slots; `unit` where nothing is measured."""
        wide = np.broadcast_to(unit, (*lead, *np.shape(leaf)[1:])).astype(float)
        wide[run, slot, row] = leaf
        return wide

    def cut(*leaves: Any) -> Numbers:
        """The controls of all steps of all runs; those of the first before it."""
        short = [(0, shots * length - steps)] + [(0, 0)] * (np.ndim(leaves[0]) - 1)
        padded = np.stack([np.pad(np.asarray(leaf), short) for leaf in leaves])
        wide = padded.reshape(lead[0], 1, length, *padded.shape[2:]).repeat(lead[1], axis=1)
        return np.concatenate([wide[:, :, :1], wide], axis=2)

    units = [group.identity() if function is None else 0.0 for _, function in measures]
    targets = tuple(
        jax.tree.map(spread, value, unit) if isinstance(unit, tuple) else spread(value, unit)
        for value, unit in zip(values, units, strict=True)
    )
    theta = spread(np.where(step > 0, number - step + 1.0, 1.0), 1.0)
    states: State = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, float) for leaf in leaves]), *(
        each.state._replace(group=state.group) for each in given
    ))  # fmt: skip
    whole = replace(
        form, measures=measures, angles=angles, moved=moved, free=free, held=tuple(sorted(held)),
        linear=not isinstance(system, NonlinearSystem), dense=dense,
    )  # fmt: skip
    data_rows = (jax.tree.map(cut, *pushes), theta, targets)
    made = Shots(whole, base, states, h, length, every, data_rows, (run, slot, row // every), fits, backend)
    if shots > 1:
        states = guess_starts(system, made, weights, present, times)
        made = replace(made, state=states)
    origin = np.concatenate([np.zeros((lead[0], len(moved))), np.asarray(states.xi)[:, list(free)]], axis=1)
    origin, coordinates = origin.reshape(fits, shots, len(known)), np.full((shots, len(known)), -1)
    for k, (name, _) in enumerate(known):
        for s in range(0 if name in chosen else 1, shots):
            own = (None if s else table.get(name)) or Unknown(origin[0, s, k])
            coordinates[s, k] = columns.add(name + (f"{BETWEEN}{s}" if s else "") + label, own)[0]
    begun = np.array([table.get(name) is None for name, _ in known], bool)
    return Part(made, parameters, coordinates, origin, begun, weights, present, times, values)


def _push(controls: Any, t0: float, h: float, steps: int, times: Numbers, system: MechanicalSystem) -> Any:
    """The controls of a run of so many steps."""
    rows = controls.values() if isinstance(controls, Mapping) else [controls]
    count = min((len(each) for each in rows if np.ndim(each)), default=steps)
    if count < steps:
        late = f"a measurement at t = {times.max():g} is after {count} steps of {h:g}, as many as controls"
        raise InvalidInput(f"{late}: give more rows, or leave the measurement out")
    if isinstance(controls, Mapping):
        controls = {name: each[:steps] if np.ndim(each) else each for name, each in controls.items()}
    elif np.ndim(controls):
        controls = controls[:steps]
    return sample_controls(controls, t0, h, steps, system.inputs)


def guess_starts(system: MechanicalSystem, shots: Shots, weights: Numbers, present: Numbers, times: Numbers) -> State:
    """The states at which shots begin: each where the one before ends, moved to where it is nearest to its own data.

    So the guess of the parameters leads no shot away, however unstable the motion is. Where one fails, its last good
    state is taken.
    """
    form, (run, slot, row), first = shots.form, shots.place, part_of(shots.state, 0)
    alone, none = replace(form, build=Built(None, name_leaves(system)), parameters=()), np.zeros(0, int)
    columns, r = Columns(), len(form.moved) + len(form.free)
    places = columns.add("", Unknown(np.zeros(r)))
    state = first._replace(momentum=np.asarray(system.momentum(first.t, first.g, first.xi)))  # with the guess
    found = [state]
    for s in range(1, len(shots.rows[1])):
        u = part_of(shots.rows[0], np.s_[s - 1, 0, 1:])
        options = {"step": shots.h, "steps": shots.length, "save_every": shots.length, "controls": u}
        done = simulate(system, form.integrator, state, **options)
        end: State = jax.tree.map(lambda leaf: np.asarray(leaf)[-1:], done.records.state)
        end = end._replace(t=first.t + np.full(1, shots.h * shots.length * s))
        rows, own, z = part_of(shots.rows, slice(s, s + 1)), run == s, np.zeros((1, r))
        one = replace(shots, form=alone, base=system, state=end, rows=rows, place=(0 * run[own], slot[own], row[own]))
        begin = (one, none, places[None], z[None], np.ones(r, bool))
        problem = FitProblem([Part(*begin, weights[own], present[own], times[own], [])], columns)
        if own.any() and (there := problem(z)).failure[0] is None:
            z, _, why, *_ = Search(problem, "linear", 1.0, ALONE_RUNS, None).minimise(z, there)
            if why[0] == INTERRUPTED:  # nothing is found yet that could be kept
                raise KeyboardInterrupt
        state = evaluate(form.start, system, part_of((end, z), 0))._replace(group=state.group)
        found.append(jax.tree.map(np.asarray, state))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)  # type: ignore[no-any-return]


def scatter(rows: Numbers, places: Numbers, size: int) -> Numbers:
    """Rows (M, .., c) whose entries belong at places (M, c) of rows of another size; those at -1 are left out."""
    wide = np.zeros((*rows.shape[:-1], size + 1))
    index = places.reshape(len(places), *(1,) * (rows.ndim - 2), places.shape[1])
    np.put_along_axis(wide, np.broadcast_to(index % (size + 1), rows.shape), rows, axis=-1)
    return wide[..., :size]


@dataclass(eq=False)
class FitProblem:
    """All experiments of one fit, or of many: rows of unknowns go in, residuals and derivatives come out.

    What is missing has the residual 0.
    """

    parts: list[Part]
    columns: Columns

    def __post_init__(self) -> None:
        guess, self.low, self.high, self.mean, self.deviation = self.columns.numbers
        self.fits, self.priors = self.parts[0].shots.fits, np.isfinite(self.deviation)
        self.guess = np.tile(guess, (self.fits, 1))
        for part in self.parts:
            own = (part.coordinates[0] >= 0) & part.begun
            self.guess[:, part.coordinates[0, own]] = part.origin[:, 0, own]
        self.counts = sum(part.present.reshape(self.fits, -1).sum(axis=1) for part in self.parts)
        between = sum(int((part.coordinates[1:] >= 0).sum()) for part in self.parts)
        self.wanted = len(guess) - between  # the states between shots are found beside
        self.freedom = self.counts + int(self.priors.sum()) - self.wanted
        self.measured = sum(part.present.size for part in self.parts) // self.fits

    def of(self, b: int) -> FitProblem:
        """The problem of one of several fits."""
        return self if self.fits == 1 else FitProblem([part.of(b) for part in self.parts], self.columns)

    def __call__(self, x: Numbers) -> Evaluation:
        fits, size = x.shape
        priors = np.flatnonzero(self.priors)
        found = [(x - self.mean)[:, priors] / self.deviation[priors]]
        slopes = [np.tile(np.eye(size)[priors] / self.deviation[priors, None], (fits, 1, 1))]
        gaps, gap_slopes = [np.zeros((fits, 0))], [np.zeros((fits, 0, size))]
        why: list[Failure | None] = [None] * fits
        for part in self.parts:
            p, z = part.unknowns(x)
            errors, along, gap, gap_along, failures = part.shots.run(p, z)
            there, count = part.present, len(part.times) // fits
            finite = np.all(np.isfinite(errors) & np.isfinite(along).all(axis=2) | ~there, axis=1)
            for b in np.flatnonzero(~finite.reshape(fits, -1).all(axis=1)):
                time = part.times[b * count + int(np.argmin(finite[b * count :]))] - float(part.shots.state.t[b])
                words = "a number that is compared, or its slope, is not finite"
                failures[b] = failures[b] or Failure(int(time / part.shots.h), words)
            why = [a or b for a, b in zip(why, failures, strict=True)]
            shots = len(part.coordinates)
            places = np.concatenate([np.tile(part.parameters, (shots, 1)), part.coordinates], axis=1)
            after = np.concatenate([places, np.roll(part.coordinates, -1, axis=0)], axis=1)
            found.insert(-1, weigh(part.weights, np.where(there, errors, 0.0)).reshape(fits, -1))
            rows = scatter(along[..., : places.shape[1]], places[part.shots.place[0] % shots], size)
            slopes.insert(-1, weigh(part.weights, np.where(there[..., None], rows, 0.0)).reshape(fits, -1, size))
            if len(gap):
                gaps.append(gap.reshape(1, -1))
                gap_slopes.append(scatter(gap_along, after[:-1], size).reshape(1, -1, size))
        parts = (found, slopes, gaps, gap_slopes)
        residual, jacobian, gap, gap_jacobian = (np.concatenate(each, axis=1) for each in parts)
        residual[[each is not None for each in why]] = np.nan
        return Evaluation(residual, jacobian, gap, gap_jacobian, why)


@dataclass(frozen=True, eq=False, repr=False)
class Fit(Estimate):
    """The result of `fit`: an `Estimate` of the unknowns, with the fitted systems, initial states and motions."""

    problem: FitProblem
    unknowns: Numbers  # all of them, with the states between shots

    def _part(self, experiment: int) -> tuple[Part, Numbers, Numbers]:
        part = self.problem.parts[experiment]
        return part, *part.unknowns(self.unknowns[None])

    def system(self, experiment: int = 0) -> MechanicalSystem:
        """The fitted system of an experiment, by its number."""
        part, p, _ = self._part(experiment)
        return part.shots.form.system(part.shots.base, p[0])

    def state(self, experiment: int = 0) -> State:
        """The fitted initial state of an experiment."""
        (part, _, z), system = self._part(experiment), self.system(experiment)
        first: State = jax.tree.map(lambda leaf: np.asarray(leaf)[0], part.shots.state)
        found = part.shots.form.start(system, (first, z[0]))
        return system.state(found.g, found.xi, t=float(found.t))

    def run(self, experiment: int = 0) -> Trajectory:
        """The fitted motion of an experiment, as a run."""
        shots = self.problem.parts[experiment].shots
        u = jax.tree.map(lambda leaf: np.concatenate(leaf[:, 0, 1:]), shots.rows[0])
        steps, method = shots.count * shots.length, shots.form.integrator
        return simulate(self.system(experiment), method, self.state(experiment), step=shots.h, steps=steps, controls=u)

    def plot(self, path: str | Path | None = None, *, experiment: int = 0) -> Figure:
        """Draw data and fitted motion over time, and the residuals in standard deviations; `path` saves the figure.

        Configurations are shown as log g. If there are several experiments, `experiment` says which one is drawn.
        """
        part, run = self.problem.parts[experiment], self.run(experiment)
        form, system = part.shots.form, self.system(experiment)
        motion = np.asarray(evaluate_rows(form.show, system, run.records.state))
        names, data = show_values(form.measures, form.angles, system.group, part.values)
        data, names = np.where(part.present, data, np.nan), [label_quantity(name, system.units) for name in names]
        count, left, t = len(self.problem.parts), self.residuals(experiment), np.asarray(run.t)
        title = f"Experiment {experiment} (of 0 to {count - 1}; experiment= shows another)" if count > 1 else None
        return plot_fit(names, part.times, data, left, t, motion, path=path, title=title)

    def residuals(self, experiment: int = 0) -> Numbers:
        """The residuals, computed less measured, in standard deviations, shape (times, components); NaN: no data."""
        part, p, z = self._part(experiment)
        return np.where(part.present, weigh(part.weights, part.shots.run(p, z)[0]), np.nan)


class Fits(Sequence[Fit]):
    """The results of many separate fits: arrays with one row for each fit; `fits[k]` is one `Fit`."""

    def __init__(self, made: list[Callable[[], Fit]]) -> None:
        self._made = made

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> Fit: ...
    @overload
    def __getitem__(self, index: slice) -> Fits: ...
    def __getitem__(self, index: Any) -> Fit | Fits:
        return Fits(self._made[index]) if isinstance(index, slice) else self._made[index]()

    @property
    def values(self) -> Numbers:
        """The estimates, (fits, unknowns)."""
        return np.stack([each.values for each in self])

    @property
    def errors(self) -> Numbers:
        """Their standard errors, likewise."""
        return np.stack([each.errors for each in self])

    @property
    def converged(self) -> list[bool]:
        """Of each fit, whether it converged."""
        return [each.converged for each in self]

    def __repr__(self) -> str:
        return f"<{len(self)} fits, {sum(self.converged)} of them converged>"


@overload
def fit(
    model: Model, integrator: Integrator, experiments: Experiment | Sequence[Experiment], unknowns: Unknowns, *,
    step: float, search: str = ..., loss: str = ..., threshold: float = ..., shots: int = ..., max_runs: int = ...,
    backend: Backend = ..., progress: Progress | None = ...,
) -> Fit: ...  # fmt: skip
@overload
def fit(
    model: Model, integrator: Integrator, experiments: Sequence[Sequence[Experiment]], unknowns: Unknowns, *,
    step: float, search: str = ..., loss: str = ..., threshold: float = ..., shots: int = ..., max_runs: int = ...,
    backend: Backend = ..., progress: Progress | None = ...,
) -> Fits: ...  # fmt: skip
@checks.shows_progress(lambda bar: lambda done, total: bar.say(f"{done} of at most {total}"))
@checks.known_arguments("it ends by comparing numbers: fit outside, or minimise a loss of da.simulate")
def fit(
    model: Model, integrator: Integrator, experiments: Any, unknowns: Unknowns, *, step: float,
    search: str = "levenberg-marquardt", loss: str = "linear", threshold: float = 1.345, shots: int = 1,
    max_runs: int = 200, backend: Backend = "auto", progress: Progress | None = None,
) -> Fit | Fits:  # fmt: skip
    """Fit parameters and initial states to measured motions, by least squares, with standard errors.

    `model` is a function of parameters by name, model(a=..., mass=...) -> system, or a system whose own numbers are
    estimated, by their paths. `experiments` are one `Experiment`, or a list that is fitted together: the result is a
    `Fit`. A list of such lists gives many fits, made side by side where they are alike, as `Fits`. `unknowns` are first
    guesses by name: numbers, arrays, or `Unknown`s with bounds and priors. For parts of an initial state, such as
    "velocity.w", None stands for the value in the experiment.

    `search` is "levenberg-marquardt" (a trust region) or "gauss-newton" (shorter steps where chi^2 would rise). `loss`
    is "linear" (least squares), or "huber", "soft-l1" or "cauchy", which give less weight to residuals beyond
    `threshold` standard deviations. `shots`, for unstable motions, cuts a motion into this many pieces with unknown
    initial states, which join in the result (multiple shooting, Bock 1983); "levenberg-marquardt" then only prepares
    "gauss-newton". If a run fails during the search, the next step of the search is shorter. Ctrl-C returns the best
    fit so far.
    """
    checks.require_instance("method", integrator, Integrator, "a method")
    if integrator.variable_step:
        raise InvalidInput(f"the steps of {integrator.name} vary, and a fit needs equal ones: take its base method")
    h, beyond = float(checks.positive("step", step)), float(checks.positive("threshold", threshold))
    require_name("loss", loss, tuple(LOSSES))
    require_name("search", search, SEARCHES)
    require_name("backend", backend, BACKENDS)
    checks.require_progress(progress, "(done, total)")
    limit, pieces = checks.positive_int("max_runs", max_runs), checks.positive_int("shots", shots)
    several, given = read_experiments(experiments)
    scaled = {each.deviations is None and not each.covariances for each in itertools.chain(*given)}
    if len(scaled) > 1 or (loss != "linear" and True in scaled):
        raise InvalidInput("give standard deviations for all measurements, or (with the linear loss) for none")
    build, table = read_model(model, unknowns)
    base, careful = model if isinstance(model, MechanicalSystem) else None, search == SEARCHES[0]
    mine = {name: each for name, each in table.items() if each and not name.startswith(FROM_START)}
    form = Form(build, tuple((name, np.shape(each.guess)) for name, each in mine.items()), integrator)
    made: dict[int, Callable[[], Fit]] = {}
    stopped, bar = False, progress
    if several and progress is not None:
        bar = lambda *_: progress(len(made), len(given))
    for which in side_by_side(given, alone=not careful or pieces > 1):
        columns, lead = Columns(), given[which[0]]
        places = {name: columns.add(name, each) for name, each in mine.items() if not each.own}
        parts = []
        for k, each in enumerate(lead):
            label = "" if len(lead) == 1 else f" of {each.name or f'experiment {k}'}"
            own = [given[b][k] for b in which]
            parts.append(make_part(own, table, places, columns, label, form, base, h, pieces, backend))
        problem, first = read_problem(parts, columns, which if several else [])
        seeking = Search(problem, loss, beyond, limit, bar)
        with one_blas_thread():
            if careful and pieces == 1:
                found = seeking.minimise(problem.guess, first)
            else:
                found = seeking.minimise_by_gauss_newton(problem.guess, first, prepared=careful)
        if stopped := stopped or INTERRUPTED in found.why:
            limit, found = 1, found._replace(why=np.where(found.why == TOO_LONG, INTERRUPTED, found.why))
        for b, place in enumerate(which):
            made[place] = cache(partial(make_fit, problem, seeking, found, b, True in scaled))
    return Fits([made[b] for b in range(len(given))]) if several else made[0]()


def side_by_side(given: list[list[Experiment]], alone: bool) -> Iterator[list[int]]:
    """The numbers of fits that are alike, some at a time; the last are filled up with fits that were there before.

    Programs are made for so many lanes: with powers of two there are few.
    """
    kinds: dict[Any, list[int]] = {}
    for b, fit_ in enumerate(given):
        kinds.setdefault(b if alone or len(given) == 1 else tuple(map(kind_of_experiment, fit_)), []).append(b)
    for each in kinds.values():
        count = min(SIDE_BY_SIDE, 1 << (len(each) - 1).bit_length())
        for k in range(0, len(each), count):
            yield (each[k : k + count] + each[: count - 1] * count)[:count]


def read_problem(parts: list[Part], columns: Columns, numbers: list[int]) -> tuple[FitProblem, Evaluation]:
    """The problem of these experiments with what it gives at the guess, if it can be solved; by their numbers."""
    problem = FitProblem(parts, columns)
    if not problem.wanted:
        raise InvalidInput("there is nothing to estimate: name unknowns, or the free parts of an initial state")
    if (problem.freedom < 0).any():
        few = f"{min(problem.counts)} measured numbers and {problem.priors.sum()} priors cannot determine"
        raise InvalidInput(f"{few} {problem.wanted} unknowns: measure more, or estimate less")
    first = problem(problem.guess)
    for b, failure in enumerate(first.failure):
        if failure is not None:
            which = f" of fit {numbers[b]}" if numbers else ""
            raise NumericalFailure(
                f"the run with the guess{which} fails after {failure.steps} steps: {failure.reason}. Give a better "
                "guess, a smaller step, or more shots"
            )
    return problem, first


def make_fit(whole: FitProblem, search: Search, outcome: Outcome, b: int, scaled: bool) -> Fit:
    """The result of a fit at the unknowns that were found, without those of the states between shots."""
    found, problem, dof, names = outcome.of(b), whole.of(b), int(whole.freedom[b]), tuple(whole.columns.names)
    x, (r, jacobian, _, gap_jacobian, _), middle = found.x, found.there, None
    chi2 = float(r @ r)
    if search.loss != "linear":  # the sandwich of an M-estimator, psi = rho' r: H = J^T psi' J, M = J^T psi^2 J
        _, weight, bend = search.losses(r * r)
        psi = np.where(np.arange(len(r)) < whole.measured, weight * r, 1.0)  # priors have errors of their own
        middle, (q, triangle) = jacobian.T @ (psi[:, None] ** 2 * jacobian), np.linalg.qr(jacobian)
        curved, ways = np.linalg.eigh(q.T @ ((weight + 2.0 * bend * r * r)[:, None] * q))
        jacobian = np.sqrt(np.maximum(curved, 0.0))[:, None] * (ways.T @ triangle)  # J^T J = H
    scale, guess = np.abs(x), np.abs(whole.guess[b])
    scale = np.where(scale > 1e-3 * guess, scale, guess)  # of what is about 0
    scale[(scale == 0.0) | [name.startswith(FROM_START) for name in names]] = 1.0
    noise = math.sqrt(chi2 / dof) if scaled and dof else 1.0  # the deviation of all data, where it is not known
    with one_blas_thread():
        covariance, loose = find_spread(names, jacobian / (noise or 1.0), middle, scale, found.fixed, gap_jacobian)
    reason = found.reason
    if loose and outcome.why[b] == TOO_LONG:
        reason = f"{reason.partition(':')[0]}: give a prior to an unknown that the data cannot tell, or leave it out"
    kept = np.array([BETWEEN not in name for name in names])
    covariance = covariance[np.ix_(kept, kept)] * (noise > 0)
    bounds = tuple(name for name, fixed in zip(names, found.fixed, strict=True) if fixed)
    shown = tuple(name for name, keep in zip(names, kept, strict=True) if keep)
    return Fit(
        shown, x[kept], covariance, chi2, dof, loose, bounds, found.converged, reason, int(found.runs), scaled,
        problem, x,
    )  # fmt: skip
