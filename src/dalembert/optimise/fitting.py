"""Which parameters made this motion: least squares through the integrator, with what the data can tell of each.

With measurements y_i of standard deviation s_i at times t_i and the motion q(t; x) of the discrete method, x minimises

    chi^2(x) = sum_i rho(((h(q(t_i; x)) - y_i)/s_i)^2) + sum of priors,

where orientations are compared on the group, log(g_i^-1 g(t_i)). Derivatives are those of the discrete motion, native
and exact. The covariance of the estimate is (J^T J)^-1 (Gauss, Theoria combinationis, 1823; Bard, Nonlinear Parameter
Estimation, 1974, ch. 7), with J the Jacobian of the weighted residuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ..errors import InvalidInput, NumericalFailure, UnknownName, require_name
from ..integrators import Integrator
from ..kernels import Backend, Progress, evaluate, recognise
from ..mechanics import MechanicalSystem, NonlinearSystem, State
from ..numerics import (
    echelon,
    finite_reals,
    positive,
    positive_int,
    require_function,
    require_instance,
    require_progress,
    show,
)
from ..plotting.studies import plot_fit
from ..simulation import TIME_TOLERANCE, held_controls
from ..trajectory import Trajectory, simulate
from .estimate import Estimate, find_spread
from .shooting import Failure, Form, Measure, Shots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = np.ndarray[Any, Any]
STARTS = ("configuration", "velocity")
FROM_START = tuple(f"{each}." for each in STARTS)  # how the names of unknowns of a start begin


@dataclass(frozen=True)
class Unknown:
    """A number or an array to be found: where to begin, its bounds, what was known of it before.

    `prior` is (mean, standard deviation). An unknown that is the experiments' `own` has one value in each of them.
    """

    guess: Any
    low: Any = -math.inf
    high: Any = math.inf
    prior: tuple[Any, Any] | None = None
    own: bool = False

    def __post_init__(self) -> None:
        guess, bounds = finite_reals("the guess of an unknown", self.guess), f"{show(self.low)} and {show(self.high)}"
        try:
            low, high = (np.broadcast_to(np.asarray(each, float), guess.shape) for each in (self.low, self.high))
            mean, deviation = (0.0, 1.0) if self.prior is None else self.prior
            prior = [np.broadcast_to(np.asarray(each, float), guess.shape) for each in (mean, deviation)]
        except (TypeError, ValueError) as fault:
            given = f"bounds {bounds} and prior {show(self.prior)}"
            raise InvalidInput(f"an unknown has {given}; allowed: numbers, and (mean, standard deviation)") from fault
        if not ((low < high).all() and np.isfinite(prior[0]).all() and (prior[1] > 0).all()):
            given = f"bounds {bounds} and prior {show(self.prior)}"
            raise InvalidInput(f"an unknown has {given}; allowed: low < high, (mean, positive standard deviation)")
        if not ((low <= guess) & (guess <= high)).all():
            raise InvalidInput(f"the guess {show(self.guess)} is not between its bounds, {bounds}: give one that is")


@dataclass(frozen=True, eq=False)
class Experiment:
    """Measurements of one motion, at any times; what is missing is NaN.

    `measured` has the values by their names, each with one row a time: "configuration" (elements of the group, compared
    on it; a factor of a product may be missing), "velocity" (xi), the names of coordinates and rates of the system, or
    those of your own `observables`, functions (system, state) -> array written in JAX; `angles` names those that are
    compared up to whole turns. `deviations` are their standard deviations: a number, one for each component, or one for
    each time and component; a table by name where they differ; None: all alike and not known. `covariances` have
    matrices instead. The motion starts at `state`, of which `free` names what is to be estimated too: "configuration",
    "velocity", or single components such as "velocity.w". Unknown configurations are displacements from the given one,
    in the algebra. `controls` are those of a run.
    """

    times: Any
    measured: Mapping[str, Any]
    state: State
    deviations: Any = None
    covariances: Mapping[str, Any] = field(default_factory=dict)
    observables: Mapping[str, Callable[[Any, State], Any]] = field(default_factory=dict)
    angles: Sequence[str] = ()
    controls: Any = None
    free: Any = ()
    name: str = ""

    def __post_init__(self) -> None:
        times = finite_reals("the times of an experiment", self.times)
        if times.ndim != 1 or not times.size:
            raise InvalidInput(f"the times of an experiment have shape {times.shape}; allowed: (N,), at least one")
        for name in ("measured", "covariances", "observables"):
            if not isinstance(given := getattr(self, name), Mapping) or not (given or name != "measured"):
                raise InvalidInput(f"{name} is {show(given)}; allowed: a table by name, as {{'velocity': values}}")
        require_instance("the state of an experiment", self.state, State, "a state, as system.state(g, xi)")
        for name in self.angles:
            require_name("measurement", name, tuple(self.measured))
        for name, function in self.observables.items():
            require_function(f"the observable {name!r}", function, "(system, state)", optional=False)


# What is given, laid out: the columns of the unknowns, the shots of the experiments, the weights of the data.


@dataclass(frozen=True)
class Changed:
    """A system with other numbers in some of its leaves: (system, {name: value}) -> system."""

    names: tuple[str, ...]  # of all its leaves

    def __call__(self, base: MechanicalSystem, values: Mapping[str, Any]) -> MechanicalSystem:
        leaves, structure = jax.tree.flatten(base)
        pairs = zip(self.names, leaves, strict=True)
        found: MechanicalSystem = jax.tree.unflatten(structure, [values.get(name, leaf) for name, leaf in pairs])
        return found


@dataclass(frozen=True)
class Called:
    """A function of the parameters by name: (None, {name: value}) -> system."""

    model: Callable[..., MechanicalSystem]

    def __call__(self, base: None, values: Mapping[str, Any]) -> MechanicalSystem:
        return self.model(**values)


@dataclass(frozen=True)
class Named:
    """A coordinate or a rate of a system by its place, or xi: (system, state) -> number."""

    place: int | None

    def __call__(self, system: MechanicalSystem, state: State) -> Any:
        return state.xi if self.place is None else system.observe(state.t, state.g, state.xi)[self.place]


def name_leaves(system: MechanicalSystem) -> tuple[str, ...]:
    """The names of the numbers of a system: paths in its parameters, or in its tree where they are no parameters."""

    def paths(tree: Any) -> list[tuple[str, Any]]:
        found = jax.tree_util.tree_flatten_with_path(tree)[0]
        return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in found]

    own = {id(leaf): name for name, leaf in paths(getattr(system, "parameters", None))}
    return tuple(own.get(id(leaf), name) for name, leaf in paths(system))


def off_group(group: Any, g: Any) -> Any:
    """How far a matrix is from its group."""
    return group.distance(g)


def log_of(group: Any, g: Any) -> Any:
    """log g."""
    return group.log(g)


def canonical(function: Callable[..., Any]) -> Callable[..., Any]:
    """One object for all functions that the same code builds again, so that nothing compiles twice."""
    found = recognise(function)
    return function if found is None or found[1] else found[0].function


def read_model(model: Any, unknowns: Any) -> tuple[Callable[..., MechanicalSystem], dict[str, Unknown]]:
    """(how to build a system, the unknowns by name) of a system, or of a function of parameters."""
    if isinstance(unknowns, str) or not isinstance(unknowns, Mapping | Sequence):
        raise InvalidInput(f"unknowns are {show(unknowns)}; allowed: guesses by name, or names of a system's numbers")
    table = dict(unknowns) if isinstance(unknowns, Mapping) else dict.fromkeys(unknowns)
    build: Any
    if isinstance(model, MechanicalSystem):
        build = Changed(name_leaves(model))
        leaves = dict(zip(build.names, jax.tree.leaves(model), strict=True))
        for name in (each for each in table if not str(each).startswith(FROM_START)):
            require_name("number of the system", name, leaves)
            table[name] = np.asarray(leaves[name], float) if table[name] is None else table[name]
    else:
        require_function("model", model, "the parameters by name -> system, or a system", optional=False)
        build = Called(canonical(model))
    for name, guess in table.items():
        if guess is None:
            raise InvalidInput(f"the unknown {name!r} has no guess: give a number, or an Unknown(guess, low, high)")
    return build, {name: guess if isinstance(guess, Unknown) else Unknown(guess) for name, guess in table.items()}


def read_measures(given: Experiment, system: MechanicalSystem) -> tuple[tuple[Measure, ...], list[Any], list[Numbers]]:
    """What an experiment measured: functions of a state, finite values (zeros, or 1, for NaN), and which are there."""
    observed = (*system.coordinate_names, *system.rate_names)
    measures: list[Measure] = []
    values, present, count = [], [], len(given.times)
    one, structure = jax.tree.flatten(system.group.identity())
    for name, rows in given.measured.items():
        if name in given.observables:
            function: Any = canonical(given.observables[name])
        elif name in observed or name in STARTS:
            function = None if name == "configuration" else Named(observed.index(name) if name in observed else None)
        else:
            raise UnknownName("measurement", name, (*STARTS, *observed, *given.observables))
        try:
            leaves = [np.asarray(leaf, float) for leaf in (jax.tree.leaves(rows) if function is None else [rows])]
        except (TypeError, ValueError):
            raise InvalidInput(
                f"the values of {name!r} are {show(rows)}; allowed: numbers, NaN where missing"
            ) from None
        size = [np.shape(leaf) for leaf in one]
        if function is not None:
            shape = jax.eval_shape(function, system, given.state)
            size = [() if np.size(shape) == 1 and leaves[0].ndim == 1 else shape.shape]
        if [leaf.shape for leaf in leaves] != [(count, *shape) for shape in size]:
            shapes, allowed = [leaf.shape for leaf in leaves], [(count, *shape) for shape in size]
            raise InvalidInput(f"the values of {name!r} have shapes {shapes}; allowed: {allowed}, a row a time")
        if any(np.isinf(leaf).any() for leaf in leaves):
            raise InvalidInput(f"a value of {name!r} is infinite; allowed: finite numbers, and NaN where it is missing")
        missing = [np.isnan(leaf.reshape(count, -1)) for leaf in leaves]
        there = ~np.concatenate(missing, axis=1)
        if function is None:  # a factor of the group is there or not
            gone = [each.any(axis=1) for each in missing]
            dims = [factor.dim for factor in system.group.factors]
            there = ~np.repeat(np.stack(gone, axis=1), dims, axis=1)
            masks = [each.reshape(-1, *(1,) * unit.ndim) for each, unit in zip(gone, one, strict=True)]
            filled = [np.where(mask, unit, leaf) for mask, leaf, unit in zip(masks, leaves, one, strict=True)]
            made = jax.tree.unflatten(structure, filled)
            off = np.asarray(evaluate(off_group, system.group, made, lanes=count, axes=(None, 0)))
            worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
            system.group.element(jax.tree.map(lambda leaf: leaf[worst], made))
            values.append(made)
        else:
            values.append(np.nan_to_num(leaves[0]).reshape(count, -1))
        measures.append((name, function))
        present.append(there)
    return tuple(measures), values, present


def read_weights(given: Experiment, present: dict[str, Numbers]) -> Numbers:
    """What differences are multiplied by: 1/s (N, K), or L^-1 of covariances L L^T of what is there (N, K, K)."""
    count, table = len(given.times), given.deviations
    if isinstance(table, Mapping):
        for name in present:
            if name not in table and name not in given.covariances:
                raise InvalidInput(f"{name!r} has no standard deviation: give one for each measurement, or none at all")
    else:
        table = {} if table is None else {name: table for name in present if name not in given.covariances}
    for name in (*table, *given.covariances):
        require_name("measurement", name, tuple(present))
    there, begin = np.concatenate(list(present.values()), axis=1), 0
    variances = np.tile(np.eye(there.shape[1]), (count, 1, 1))
    for name, columns in present.items():
        size = columns.shape[1]
        part = slice(begin, begin + size)
        begin += size
        number = finite_reals(f"the error of {name!r}", given.covariances.get(name, table.get(name, 1.0)))
        allowed = ((size, size), (count, size, size)) if name in given.covariances else ((), (size,), (count, size))
        if number.shape not in allowed or (name in table and not (number > 0).all()):
            shapes = " or ".join(map(str, allowed))
            raise InvalidInput(f"the error of {name!r} has shape {number.shape}; allowed: positive, of shape {shapes}")
        square = np.broadcast_to(number, (count, size)) ** 2 if name not in given.covariances else None
        variances[:, part, part] = number if square is None else square[:, :, None] * np.eye(size)
    if not given.covariances:
        return 1.0 / np.sqrt(np.diagonal(variances, axis1=1, axis2=2))
    weights = np.zeros_like(variances)
    for k, row in enumerate(there):
        block = np.ix_(row, row)
        try:
            weights[k][block] = np.linalg.inv(np.linalg.cholesky(variances[k][block]))
        except np.linalg.LinAlgError:
            raise InvalidInput(f"the covariance at time {k} is not positive definite; allowed: only such") from None
    return weights


class Columns:
    """The unknowns as one vector: names, and for each its guess, bounds, and prior (deviation inf: none)."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers = np.zeros((5, 0))

    def add(self, name: str, unknown: Unknown) -> Numbers:
        """The places of an unknown in the vector."""
        guess, prior = np.asarray(unknown.guess, float), unknown.prior or (0.0, math.inf)
        rows = [np.broadcast_to(each, guess.shape).ravel() for each in (guess, unknown.low, unknown.high, *prior)]
        places = np.ndindex(guess.shape)
        self.names += [f"{name}[{', '.join(map(str, place))}]" if place else name for place in places]
        self.numbers = np.concatenate([self.numbers, rows], axis=1)
        return np.arange(len(self.names) - guess.size, len(self.names))


class Part(NamedTuple):
    """One experiment: its shots, where its unknowns stand in the vector (-1: known), and the weights of its data.

    `origin` is what the coordinates of a start are measured from.
    """

    shots: Shots
    parameters: Numbers  # (P,)
    coordinates: Numbers  # (shots, R)
    origin: Numbers  # (shots, R)
    weights: Numbers  # (N, K), or (N, K, K)
    present: Numbers  # (N, K)
    times: Numbers
    values: list[Any]  # what was measured

    def unknowns(self, x: Numbers) -> tuple[Numbers, Numbers]:
        """The parameters of this experiment, and the coordinates of its starts."""
        return x[self.parameters], np.where(self.coordinates >= 0, x[self.coordinates] - self.origin, 0.0)

    def weigh(self, values: Numbers) -> Numbers:
        """Differences (N, K) or their slopes (N, K, columns), in standard deviations."""
        if self.weights.ndim == 2:
            return values * self.weights.reshape(*self.weights.shape, *(1,) * (values.ndim - 2))
        return np.matmul(self.weights, values) if values.ndim == 3 else (self.weights @ values[..., None])[..., 0]


def make_part(
    given: Experiment, table: dict[str, Unknown], places: dict[str, Numbers], columns: Columns, label: str,
    form: Form, base: Any, h: float, shots: int, backend: Backend,
) -> Part:  # fmt: skip
    """Lay out one experiment; the unknowns of its start, and those of its own, get their columns."""
    where = [places[name] if name in places else columns.add(name + label, table[name]) for name, _ in form.parameters]
    parameters = np.concatenate([*where, np.zeros(0, int)])
    system, state = form.system(base, columns.numbers[0, parameters]), given.state
    group, t0, times = system.group, float(state.t), np.asarray(given.times, float)
    if state.group is not None and state.group != group:
        raise InvalidInput(f"the state of an experiment is in {state.group}, but the system moves in {group}")
    measures, values, there = read_measures(given, system)
    present = np.concatenate(there, axis=1)
    if not present.any():
        raise InvalidInput("an experiment has no value but NaN: nothing was measured")
    weights = read_weights(given, {name: each for (name, _), each in zip(measures, there, strict=True)})

    rows = np.asarray(system.rows(state.t, state.g)(state.xi)).reshape(-1, group.dim)
    held, lost = (set(echelon(part)[1]) for part in (rows, rows[len(rows) - system.holonomic_constraints :]))
    axes = [axis.name for axis in group.axes()]
    components = [(f"configuration.{axes[k]}", k) for k in range(group.dim) if k not in lost]
    components += [(f"velocity.{axes[k]}", k) for k in range(group.dim) if k not in held]
    wanted = (given.free,) if isinstance(given.free, str) else tuple(given.free)
    for name in wanted:
        require_name("component of a start", name, (*dict(components), *STARTS))
    chosen = {name for name, _ in components if name in wanted or name.partition(".")[0] in wanted}
    known = [pair for pair in components if shots > 1 or pair[0] in chosen]
    moved, free = (tuple(k for name, k in known if name.startswith(kind)) for kind in STARTS)

    number = (times - t0) / h
    if (number < -TIME_TOLERANCE).any():
        early = f"a measurement at t = {times.min():g} is before the start at t = {t0:g}"
        raise InvalidInput(f"{early}: give a state that is as early")
    steps, controls = max(1, math.ceil(number.max() - TIME_TOLERANCE)), given.controls
    if controls is not None and not callable(controls):
        if len(controls) < steps:
            late = f"a measurement at t = {times.max():g} is after {len(controls)} steps of {h:g}, as many as controls"
            raise InvalidInput(f"{late}: give more rows, or leave the measurement out")
        controls = np.asarray(controls)[:steps]
    held_u = held_controls(controls, t0, h, steps, system.inputs)
    dense = bool((np.abs(number - np.round(number)) > TIME_TOLERANCE).any())
    step = np.maximum(np.ceil(number - TIME_TOLERANCE) if dense else np.round(number), 0).astype(int)
    length = -(-steps // shots)
    shot = np.maximum(step - 1, 0) // length
    row = step - shot * length  # 0: the state before the first step, else the step in which the measurement lies
    order = np.argsort(step, kind="stable")
    slot = np.empty(len(step), int)  # the place among the measurements of one step
    slot[order] = np.arange(len(step)) - np.searchsorted(step[order], step[order])
    every = 1 if dense else int(np.gcd.reduce([length, *row]))

    def spread(leaf: Any, unit: Any) -> Numbers:
        """The rows of all steps of all shots and slots; `unit` where nothing is measured."""
        wide = np.broadcast_to(unit, (shots, int(slot.max()) + 1, length + 1, *np.shape(leaf)[1:])).astype(float)
        wide[shot, slot, row] = leaf
        return wide

    def cut(leaf: Any) -> Numbers:
        """The controls of all steps of all shots; those of the first before it."""
        padded = np.concatenate([np.asarray(leaf), np.zeros((shots * length - steps, *np.shape(leaf)[1:]))])
        wide = padded.reshape(shots, 1, length, *padded.shape[1:]).repeat(int(slot.max()) + 1, axis=1)
        return np.concatenate([wide[:, :, :1], wide], axis=2)

    units = [group.identity() if function is None else 0.0 for _, function in measures]
    targets = tuple(
        jax.tree.map(spread, value, unit) if isinstance(unit, tuple) else spread(value, unit)
        for value, unit in zip(values, units, strict=True)
    )
    theta = spread(np.where(step > 0, number - step + 1.0, 1.0), 1.0)
    states = guess_starts(system, form.integrator, state, h, length, shots, held_u)
    linear = not isinstance(system, NonlinearSystem)
    whole = replace(
        form, measures=measures, angles=frozenset(given.angles), moved=moved, free=free, held=tuple(sorted(held)),
        linear=linear, dense=dense,
    )  # fmt: skip
    origin = np.concatenate([np.zeros((shots, len(moved))), np.asarray(states.xi)[:, list(free)]], axis=1)
    coordinates = np.full(origin.shape, -1)
    for k, (name, _) in enumerate(known):
        if name in chosen:
            coordinates[0, k] = columns.add(name + label, table.get(name, Unknown(origin[0, k])))[0]
        for s in range(1, shots):
            coordinates[s, k] = columns.add(f"{name}{BETWEEN}{s}{label}", Unknown(origin[s, k]))[0]
    data = (jax.tree.map(cut, held_u), theta, targets)
    made = Shots(whole, base, states, h, length, every, data, (shot, slot, row // every), backend)
    return Part(made, parameters, coordinates, origin, weights, present, times, values)


def guess_starts(
    system: MechanicalSystem, method: Integrator, state: State, h: float, length: int, shots: int, controls: Any
) -> State:
    """The states at which shots begin: those of one run with the guess; where it fails, its last good one."""
    if shots == 1:
        return jax.tree.map(lambda leaf: np.asarray(leaf, float)[None], state)  # type: ignore[no-any-return]
    steps = length * (shots - 1)
    u = jax.tree.map(lambda leaf: np.asarray(leaf)[:steps], controls)
    start = state._replace(momentum=np.asarray(system.momentum(state.t, state.g, state.xi)))  # with the guess
    run = simulate(system, method, start, step=h, steps=steps, save_every=length, controls=u)
    rows = np.minimum(np.arange(shots), len(run.t) - 1)
    found: State = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], run.records.state)
    return found._replace(t=float(state.t) + h * length * np.arange(shots))


class Evaluation(NamedTuple):
    """Weighted residuals with their Jacobian, gaps between shots with theirs, and why there are none."""

    residual: Numbers
    jacobian: Numbers
    gaps: Numbers
    gap_jacobian: Numbers
    failure: Failure | None


def scatter(rows: Numbers, places: Numbers, size: int) -> Numbers:
    """Rows (M, .., c) whose entries belong at places (M, c) of rows of another size; those at -1 are left out."""
    wide = np.zeros((*rows.shape[:-1], size + 1))
    index = places.reshape(len(places), *(1,) * (rows.ndim - 2), places.shape[1])
    np.put_along_axis(wide, np.broadcast_to(index % (size + 1), rows.shape), rows, axis=-1)
    return wide[..., :size]


@dataclass(eq=False)
class Problem:
    """All experiments together: a vector of unknowns goes in, residuals and derivatives come out."""

    parts: list[Part]
    columns: Columns
    runs: int = 0
    last: tuple[bytes, Evaluation] = (b"", Evaluation(*(np.zeros(0),) * 4, None))

    def __post_init__(self) -> None:
        self.data = sum(int(part.present.sum()) for part in self.parts)
        self.guess, self.low, self.high, self.mean, self.deviation = self.columns.numbers
        self.priors = np.isfinite(self.deviation)

    def __call__(self, x: Numbers) -> Evaluation:
        if self.last[0] != x.tobytes():
            self.last = x.tobytes(), self._evaluate(x)
            self.runs += 1
        return self.last[1]

    def _evaluate(self, x: Numbers) -> Evaluation:
        size, priors = len(x), self.priors
        found = [(x - self.mean)[priors] / self.deviation[priors]]
        slopes = [np.eye(size)[priors] / self.deviation[priors, None]]
        gaps, gap_slopes, why = [np.zeros(0)], [np.zeros((0, size))], None
        for part in self.parts:
            p, z = part.unknowns(x)
            errors, along, gap, gap_along, failure = part.shots.run(p, z)
            there = part.present
            finite = np.isfinite(errors) & np.isfinite(along).all(axis=2) | ~there
            if failure is None and not finite.all():
                time = part.times[int(np.argmin(finite.all(axis=1)))] - float(part.shots.state.t[0])
                failure = Failure(int(time / part.shots.h), "a number that is compared, or its slope, is not finite")
            why = why or failure
            places = np.concatenate([np.broadcast_to(part.parameters, (len(z), len(p))), part.coordinates], axis=1)
            after = np.concatenate([places, np.roll(part.coordinates, -1, axis=0)], axis=1)
            found.insert(-1, part.weigh(np.where(there, errors, 0.0))[there])
            rows = scatter(along[..., : places.shape[1]], places[part.shots.place[0]], size)
            slopes.insert(-1, part.weigh(np.where(there[..., None], rows, 0.0))[there])
            gaps.append(gap.ravel())
            if len(gap):
                gap_slopes.append(scatter(gap_along, after[:-1], size).reshape(-1, size))
        residual, jacobian, gap, gap_jacobian = map(np.concatenate, (found, slopes, gaps, gap_slopes))
        return Evaluation(residual if why is None else np.full_like(residual, np.nan), jacobian, gap, gap_jacobian, why)


# The solution: SciPy's trust-region method, whose steps are those of Levenberg and Marquardt, inside bounds.


def _soft_l1(z: Numbers) -> tuple[Numbers, ...]:
    root = np.sqrt(1.0 + z)
    return 2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3


def _huber(z: Numbers) -> tuple[Numbers, ...]:
    root = np.sqrt(np.maximum(z, 1.0))
    return np.where(z <= 1.0, z, 2.0 * root - 1.0), 1.0 / root, np.where(z <= 1.0, 0.0, -0.5 / root**3)


def _cauchy(z: Numbers) -> tuple[Numbers, ...]:
    return np.log1p(z), 1.0 / (1.0 + z), -1.0 / (1.0 + z) ** 2


LOSSES: dict[str, Callable[[Numbers], tuple[Numbers, ...]] | None]
LOSSES = {"linear": None, "huber": _huber, "soft-l1": _soft_l1, "cauchy": _cauchy}
"""rho(z) of a squared residual z, with its first two derivatives (Huber 1981; Triggs and others 2000, section 4)."""
STOPPED = {
    1: "the gradient is zero",
    2: "chi^2 changes no more",
    3: "the unknowns change no more",
    4: "nothing changes",
}
INTERRUPTED = "interrupted; these are the best so far"
BETWEEN = " of shot "  # in the names of unknowns that states between shots have
SMALLEST_PART = 1e-6  # of a step that is tried
CLOSED = 1e-9  # gaps between shots that count as closed


class Outcome(NamedTuple):
    """Where the solution ended: the unknowns, which are at a bound, whether it converged, and why it stopped."""

    x: Numbers
    fixed: Numbers
    converged: bool
    reason: str


@dataclass
class Search:
    """The search for the least chi^2, with the best unknowns so far."""

    problem: Problem
    loss: str
    threshold: float
    max_runs: int
    progress: Progress | None
    best: tuple[float, Numbers] = (math.inf, np.zeros(0))
    weight: float = 0.0  # of the gaps, where they are open

    def losses(self, z: Numbers) -> Numbers:
        """rho of squared residuals with its derivatives; priors and gaps have none."""
        made, data, c = np.stack([z, np.ones_like(z), np.zeros_like(z)]), self.problem.data, self.threshold**2
        if (robust := LOSSES[self.loss]) is not None:
            value, first, second = robust(z[:data] / c)
            made[:, :data] = c * value, first, second / c
        return made

    def residuals(self, x: Numbers) -> Numbers:
        found = self.problem(x)
        r = np.concatenate([found.residual, self.weight * found.gaps]) if self.weight else found.residual
        cost = float(self.losses(r * r)[0].sum())
        if cost < self.best[0]:
            self.best = cost, x.copy()
        if self.progress is not None:
            self.progress(min(self.problem.runs, self.max_runs), self.max_runs)
        return r

    def jacobian(self, x: Numbers) -> Numbers:
        found = self.problem(x)
        return np.concatenate([found.jacobian, self.weight * found.gap_jacobian]) if self.weight else found.jacobian

    def minimise(self, x: Numbers) -> Outcome:
        """Minimise from x on. Where a run fails, the trust region shrinks."""
        from scipy.optimize import least_squares

        problem, self.best = self.problem, (math.inf, x)
        try:
            done = least_squares(
                self.residuals, x, self.jacobian, (problem.low, problem.high), x_scale="jac", ftol=1e-10,
                xtol=1e-10, gtol=1e-12, loss="linear" if self.loss == "linear" else self.losses,
                max_nfev=max(1, self.max_runs - problem.runs),
            )  # fmt: skip
        except KeyboardInterrupt:
            return Outcome(self.best[1], np.zeros(len(x), bool), False, INTERRUPTED)
        reason = STOPPED.get(done.status, f"{problem.runs} runs did not suffice: allow more, or give a better guess")
        return Outcome(done.x, done.active_mask != 0, done.status > 0, reason)

    def join_shots(self, x: Numbers) -> Outcome:
        """Minimise with closed gaps: Gauss-Newton steps along the linearised constraint, as Bock (1983) has them.

        Before that, shots go near the data while gaps cost next to nothing. A part of a step is taken if, beside every
        point before, chi^2 or the gaps are less: a filter (Fletcher and Leyffer 2002), so that gaps may open again.
        """
        self.weight, first = 1.0, self.minimise(x)
        if first.reason == INTERRUPTED:
            return first
        x, problem, part, fixed = first.x, self.problem, 1.0, np.zeros(len(x), bool)
        here, seen, reason = problem(x), [], "no step was better: give a better guess, or other shots"
        try:
            while part > SMALLEST_PART and problem.runs < self.max_runs:
                rho, slope, _ = self.losses(here.residual**2)
                r, jacobian = np.sqrt(slope) * here.residual, np.sqrt(slope)[:, None] * here.jacobian
                step, fixed = constrained_step(r, jacobian, here, problem.low - x, problem.high - x)
                gain = r @ r - ((r + jacobian @ step) ** 2).sum()
                if np.abs(here.gaps).max() < CLOSED and abs(gain) <= 1e-10 * (1.0 + rho.sum()):
                    return Outcome(x, fixed, True, STOPPED[2])
                seen.append((np.abs(here.gaps).sum(), rho.sum()))
                part = 1.0
                while part > SMALLEST_PART and problem.runs < self.max_runs:
                    there = problem(x + part * step)
                    apart, cost = np.abs(there.gaps).sum(), self.losses(there.residual**2)[0].sum()
                    if self.progress is not None:
                        self.progress(min(problem.runs, self.max_runs), self.max_runs)
                    less = 1e-4 * part
                    if all(apart < (1.0 - less) * gap or cost < (1.0 - less) * old for gap, old in seen):
                        x, here = x + part * step, there
                        break
                    part *= 0.5
            if problem.runs >= self.max_runs:
                reason = f"{problem.runs} runs did not suffice: allow more, or give a better guess"
        except KeyboardInterrupt:
            reason = INTERRUPTED
        return Outcome(x, fixed, False, reason)


def constrained_step(
    r: Numbers, jacobian: Numbers, here: Evaluation, low: Numbers, high: Numbers
) -> tuple[Numbers, Numbers]:
    """(the step with the least |r + J d|^2 that closes the gaps, which unknowns it takes to a bound).

    Unknowns that would pass a bound are put there, and the rest is found again.
    """
    unit, fixed, ends = np.eye(len(low)), np.zeros(len(low), bool), np.zeros(len(low))
    while True:
        rows = np.concatenate([here.gap_jacobian, unit[fixed]])
        q, triangle = np.linalg.qr(rows.T, mode="complete")
        held, free = q[:, : len(rows)], q[:, len(rows) :]
        d = held @ np.linalg.solve(triangle[: len(rows)].T, np.concatenate([-here.gaps, ends[fixed]]))
        d = d + free @ np.linalg.lstsq(jacobian @ free, -(r + jacobian @ d))[0]
        beyond = ~fixed & ((d < low) | (d > high))
        if not beyond.any():
            return d, fixed
        fixed, ends = fixed | beyond, np.where(beyond, np.clip(d, low, high), ends)


@dataclass(frozen=True, eq=False, repr=False)
class Fit(Estimate):
    """What `fit` found: an `Estimate`, with the systems, the states and the motions that it stands for."""

    problem: Problem
    unknowns: Numbers  # all of them, with the states between shots

    def system(self, experiment: int = 0) -> MechanicalSystem:
        """The system that was found, in an experiment."""
        part = self.problem.parts[experiment]
        return part.shots.form.system(part.shots.base, part.unknowns(self.unknowns)[0])

    def state(self, experiment: int = 0) -> State:
        """The start that was found, of an experiment."""
        part, system = self.problem.parts[experiment], self.system(experiment)
        first: State = jax.tree.map(lambda leaf: np.asarray(leaf)[0], part.shots.state)
        found = part.shots.form.start(system, first, part.unknowns(self.unknowns)[1][0])
        return system.state(found.g, found.xi, t=float(found.t))

    def run(self, experiment: int = 0) -> Trajectory:
        """The motion that was found, of an experiment."""
        shots = self.problem.parts[experiment].shots
        u = jax.tree.map(lambda leaf: np.concatenate(leaf[:, 0, 1:]), shots.rows[0])
        steps, method = shots.count * shots.length, shots.form.integrator
        return simulate(self.system(experiment), method, self.state(experiment), step=shots.h, steps=steps, controls=u)

    def plot(self, path: str | Path | None = None, *, experiment: int = 0) -> Figure:
        """A figure of an experiment: data and motion over time, and below what is left, in standard deviations.

        Configurations are shown as log g.
        """
        part, run = self.problem.parts[experiment], self.run(experiment)
        form, system, times = part.shots.form, self.system(experiment), part.times
        motion = np.asarray(evaluate(form.show, system, run.records.state, lanes=len(run.t), axes=(None, 0)))
        columns, names = [], []
        for (name, function), values in zip(form.measures, part.values, strict=True):
            shown = np.angle(np.exp(1j * values)) if name in form.angles else values
            if function is None:
                shown = np.asarray(evaluate(log_of, system.group, values, lanes=len(times), axes=(None, 0)))
            columns.append(shown)
            names += [name if shown.shape[1] == 1 else f"{name} {k}" for k in range(shown.shape[1])]
        data = np.where(part.present, np.concatenate(columns, axis=1), np.nan)
        return plot_fit(names, times, data, self.residuals(experiment), np.asarray(run.t), motion, path=path)

    def residuals(self, experiment: int = 0) -> Numbers:
        """Computed less measured, in standard deviations, (times, components); NaN where nothing was measured."""
        part = self.problem.parts[experiment]
        return np.where(part.present, part.weigh(part.shots.run(*part.unknowns(self.unknowns))[0]), np.nan)


def fit(
    model: MechanicalSystem | Callable[..., MechanicalSystem],
    integrator: Integrator,
    experiments: Experiment | Sequence[Experiment],
    unknowns: Mapping[str, Any] | Sequence[str],
    *,
    step: float,
    loss: str = "linear",
    threshold: float = 1.345,
    shots: int = 1,
    max_runs: int = 200,
    backend: Backend = "auto",
    progress: Progress | None = None,
) -> Fit:
    """Find the `unknowns` for which motions agree best with measurements; see `Estimate` for what comes back.

    `model` is a function of parameters by name, model(a=..., mass=...) -> system, or a system whose own numbers are
    estimated, by their paths. `unknowns` are guesses by name, numbers or arrays, or `Unknown`s with bounds and priors.
    `experiments` have the data. `loss` is one of "linear", "huber", "soft-l1", "cauchy", which count less of a residual
    beyond `threshold` standard deviations. `shots` cuts a run into so many pieces, with unknown states between that
    have to agree in the end (multiple shooting, Bock 1983): for motions so unstable that a run from a guess loses the
    data. A run that fails on the way makes the next step of the search shorter. Ctrl-C keeps the best.
    """
    require_instance("method", integrator, Integrator, "a method")
    if integrator.variable_step:
        raise InvalidInput(f"the steps of {integrator.name} vary, and a fit needs equal ones: take its base method")
    h, beyond, pieces = float(positive("step", step)), float(positive("threshold", threshold)), shots
    require_name("loss", loss, tuple(LOSSES))
    require_progress(progress, "(done, total)")
    limit, pieces = positive_int("max_runs", max_runs), positive_int("shots", shots)
    given = [experiments] if isinstance(experiments, Experiment) else experiments
    if not isinstance(given, Sequence) or not given:
        raise InvalidInput(f"experiments are {show(experiments)}; allowed: an Experiment, or a list of them")
    for each in given:
        require_instance("an experiment", each, Experiment, "an Experiment")
    scaled = {each.deviations is None and not each.covariances for each in given}
    if len(scaled) > 1 or (loss != "linear" and True in scaled):
        raise InvalidInput("give standard deviations for all measurements, or (with the linear loss) for none")
    build, table = read_model(model, unknowns)
    columns = Columns()
    mine = {name: each for name, each in table.items() if not name.startswith(FROM_START)}
    places = {name: columns.add(name, each) for name, each in mine.items() if not each.own}
    form = Form(build, tuple((name, np.shape(each.guess)) for name, each in mine.items()), integrator)
    base, parts = model if isinstance(model, MechanicalSystem) else None, []
    for k, each in enumerate(given):
        label = "" if len(given) == 1 else f" of {each.name or f'experiment {k}'}"
        parts.append(make_part(each, table, places, columns, label, form, base, h, pieces, backend))
    problem = Problem(parts, columns)
    gaps = sum((part.coordinates[1:] >= 0).sum() for part in parts)
    wanted, priors = len(columns.names) - int(gaps), int(problem.priors.sum())
    if not wanted:
        raise InvalidInput("there is nothing to find: name unknowns, or what is free of a start")
    if problem.data + priors < wanted:
        few = f"{problem.data} measured numbers and {priors} priors cannot determine {wanted} unknowns"
        raise InvalidInput(f"{few}: measure more, or estimate less")
    if (failure := problem(problem.guess).failure) is not None:
        raise NumericalFailure(
            f"the run with the guess fails after {failure.steps} steps: {failure.reason}. Give a better guess, a "
            "smaller step, or more shots"
        )
    search = Search(problem, loss, beyond, limit, progress)
    found = search.minimise(problem.guess) if pieces == 1 else search.join_shots(problem.guess)
    return describe(search, found, problem.data + priors - wanted, True in scaled)


def describe(search: Search, found: Outcome, dof: int, scaled: bool) -> Fit:
    """The result at the unknowns that were found, without those of the states between shots."""
    problem, x, names = search.problem, found.x, tuple(search.problem.columns.names)
    there = problem(x)
    r, jacobian, middle = there.residual, there.jacobian, None
    chi2 = float(r @ r)
    if search.loss != "linear":  # the sandwich of an M-estimator: H = J^T rho' J, M = J^T (rho' r)^2 J
        weight = search.losses(r * r)[1]
        middle = jacobian.T @ ((weight * r)[:, None] ** 2 * jacobian)
        jacobian = np.sqrt(weight)[:, None] * jacobian
    scale = np.maximum(np.abs(problem.guess), np.abs(x))
    scale[(scale == 0.0) | [name.startswith(FROM_START) for name in names]] = 1.0
    covariance, loose = find_spread(names, jacobian, middle, scale, found.fixed, there.gap_jacobian)
    kept = np.array([BETWEEN not in name for name in names])
    covariance = covariance[np.ix_(kept, kept)] * (chi2 / dof if scaled and dof else 1.0)
    bounds = tuple(name for name, fixed in zip(names, found.fixed, strict=True) if fixed)
    shown = tuple(name for name, keep in zip(names, kept, strict=True) if keep)
    return Fit(
        shown, x[kept], covariance, chi2, dof, loose, bounds, found.converged, found.reason, problem.runs, scaled,
        problem, x,
    )  # fmt: skip
