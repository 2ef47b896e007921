"""Measurements of a motion: what was seen when and how well, checked against a system; tables of numbers in files."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import InvalidInput, UnknownName, require_name
from ..kernels import evaluate
from ..mechanics import MechanicalSystem, State, names_of, observe
from ..mechanics.system import unify
from ..numerics import finite_reals, own_value, require_function, require_instance, require_known, show
from ..simulation import TIME_TOLERANCE
from .dataset import open_dataset

Numbers = np.ndarray[Any, Any]
Measure = tuple[str, Callable[[Any, State], Any] | None]  # its name, and (system, state) -> array; None: on the group
STARTS = ("configuration", "velocity")
MAX_STEPS = 10**9  # of a run that is fitted


@dataclass(frozen=True, eq=False)
class Experiment:
    """Measurements of one motion for `fit`: values at any `times`, their errors, and the initial state.

    `measured` has the values by name, one row for each time, NaN where one is missing: "configuration" (elements of the
    group, compared on it; a factor of a product may be missing), "velocity" (xi), coordinates and rates of the system,
    or your own `observables`, functions (system, state) -> array in JAX. Coordinates that are rotations, such as a
    heading, are compared up to whole turns, and so are the observables that `angles` names. `deviations` are standard
    deviations: a number, one for each component, one for each time and component, or a table of these by name; None:
    equal and not known. `covariances` are matrices instead of them.

    The motion starts at `state`, of which `free` names what is to be estimated too: "configuration", "velocity", or
    components such as "velocity.w". Unknown configurations are displacements from the given one, in the algebra.
    `controls` are those of a run.
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
        given = {key: getattr(self, key) for key in ("times", "measured", "state", "deviations", "controls")}
        require_known(
            "an experiment", given, "a fit ends by comparing numbers. Fit outside, or minimise a loss of da.simulate"
        )
        times = finite_reals("the times of an experiment", self.times)
        if times.ndim != 1 or not times.size:
            raise InvalidInput(f"the times of an experiment have shape {times.shape}; allowed: (N,), at least one")
        for name in ("measured", "covariances", "observables"):
            if not isinstance(given := getattr(self, name), Mapping) or not (given or name != "measured"):
                raise InvalidInput(f"{name} is {show(given)}; allowed: a table by name, as {{'velocity': values}}")
        require_instance("the state of an experiment", self.state, State, "a state, as system.state(g, xi)")
        for key in ("angles", "free"):
            names = [given] if isinstance(given := getattr(self, key), str) else given
            if not isinstance(names, Sequence | set) or not all(isinstance(each, str) for each in names):
                raise InvalidInput(f"{key} is {show(given)}; allowed: names")
            object.__setattr__(self, key, tuple(names))
        for name in self.angles:
            require_name("measurement", name, tuple(self.measured))
        if isinstance(self.controls, Mapping):
            held = {k: u if callable(u) else finite_reals(f"the control of {k}", u) for k, u in self.controls.items()}
            object.__setattr__(self, "controls", held)
        elif self.controls is not None and not callable(self.controls):
            rows = finite_reals("controls", self.controls)
            if not rows.ndim:
                raise InvalidInput(f"controls are {show(self.controls)}; allowed: a row a step, or a function of time")
            object.__setattr__(self, "controls", rows)
        for name, function in self.observables.items():
            require_function(f"the observable {name!r}", function, "(system, state)", optional=False)


@dataclass(frozen=True)
class NamedQuantity:
    """A coordinate or a rate of a system by its place, or xi: (system, state) -> number."""

    place: int | None

    def __call__(self, system: MechanicalSystem, state: State) -> Any:
        return state.xi if self.place is None else observe(system, state.t, state.g, state.xi)[self.place]


def off_group(group: Any, g: Any) -> Any:
    """How far a matrix is from its group."""
    return group.distance(g)


def kind_of_experiment(given: Experiment) -> Any:
    """What experiments must have in common to be fitted side by side, as something with a hash."""

    def fixed(number: Any, axes: int) -> Any:
        made = np.asarray(number)
        return made.shape if made.ndim == axes else (made.shape, made.tobytes())

    table = given.deviations if isinstance(given.deviations, Mapping) else {"": given.deviations}
    errors = [(name, fixed(each, 2)) for name, each in table.items()]
    errors += [(name, fixed(each, 3)) for name, each in given.covariances.items()]
    seen = [(name, unify(each)) for name, each in given.observables.items()]
    pushed: Any = given.controls if callable(given.controls) else np.shape(given.controls)
    pushed = id(given.controls) if isinstance(given.controls, Mapping) else pushed
    names = (given.name, *given.measured, *given.angles, *given.free)
    return len(given.times), names, tuple(errors), tuple(seen), given.controls is None, pushed


def read_experiments(given: Any) -> tuple[bool, list[list[Experiment]]]:
    """(whether several fits are asked for, the experiments of each)."""
    listed = isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 0
    several = listed and all(isinstance(each, list | tuple) for each in given)
    fits = given if several else [[given] if isinstance(given, Experiment) else given]
    for each in fits:
        if not isinstance(each, Sequence) or not each:
            raise InvalidInput(
                f"experiments are {show(given)}; allowed: an Experiment, a list of them, or a list of such lists"
            )
        for one in each:
            require_instance("an experiment", one, Experiment, "an Experiment")
    return several, [list(each) for each in fits]


def join_experiments(given: Sequence[Experiment]) -> Experiment:
    """Experiments of one kind as one with the rows of all."""
    if len(given) == 1:
        return given[0]
    lead = given[0]

    def rows(*leaves: Any) -> Numbers:
        return np.concatenate([np.asarray(leaf, float) for leaf in leaves])

    def joined(tables: list[Any], axes: int) -> Any:
        """Tables of errors; those that are the same at all times stay as they are."""
        if not isinstance(tables[0], Mapping):
            return rows(*tables) if np.ndim(tables[0]) == axes else tables[0]
        return {name: joined([table[name] for table in tables], axes) for name in tables[0]}

    measured = {
        name: jax.tree.map(rows, *(each.measured[name] for each in given), is_leaf=lambda leaf: type(leaf) is not tuple)
        for name in lead.measured
    }
    deviations = joined([each.deviations for each in given], 2)
    covariances = joined([each.covariances for each in given], 3)
    times = rows(*(each.times for each in given))
    return replace(lead, times=times, measured=measured, deviations=deviations, covariances=covariances)


@lru_cache(maxsize=64)
def _observable(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The observable, the same object every time, so that JAX traces it once."""
    return partial(own_value, f"the observable {name!r} of (system, state)", function)


def find_angles(given: Experiment, system: MechanicalSystem) -> frozenset[str]:
    """What is compared up to whole turns: what the experiment says, and the rotations among the coordinates."""
    turning = (name for name, turns in zip(*names_of(system), strict=True) if turns and name in given.measured)
    return frozenset((*given.angles, *(name for name in turning if name not in given.observables)))


def warn_of_turns(given: Experiment, angles: Collection[str]) -> None:
    """Say that data look like a wrapped angle that is not compared up to turns, or like rotations, entry by entry."""
    for name in given.measured.keys() - {*angles, *STARTS}:
        each = np.asarray(given.measured[name], float)
        square = each[np.isfinite(each).all(axis=(1, 2))] if each.shape[1:] in ((2, 2), (3, 3)) else each[:0]
        off = np.abs(np.swapaxes(square, 1, -1) @ square - np.eye(each.shape[-1])) if len(square) else np.inf
        if np.max(off) < 0.3:  # noise may be large
            words = f"the data of {name!r} look like rotations, but are fitted as {each[0].size} independent numbers:"
            way = 'as "configuration" (NaN where a factor was not measured) rotations are compared as rotations'
            warnings.warn(f"{words} standard errors come out too small. Given {way}", stacklevel=5)
        for values in each.reshape(len(given.times), -1).T:
            values = values[np.isfinite(values)]
            jump = np.abs(np.diff(values)).max(initial=0.0)
            if jump > math.tau - 1.0 and np.ptp(values) < math.tau + 0.1:
                words = f"the data of {name!r} jump by {jump:.3g}, as an angle does that is wrapped to one turn: if it"
                warnings.warn(f"{words} is one, give angles=[{name!r}], or unwrap the data", stacklevel=5)


def read_measures(given: Experiment, system: MechanicalSystem) -> tuple[tuple[Measure, ...], list[Any], list[Numbers]]:
    """What an experiment measured: functions of a state, finite values (zeros, or 1, for NaN), and which are there."""
    observed = (*names_of(system)[0], *system.rate_names)
    measures: list[Measure] = []
    values, present, count = [], [], len(given.times)
    one, structure = jax.tree.flatten(system.group.identity())
    for name, rows in given.measured.items():
        if name in given.observables:
            function: Any = unify(given.observables[name])
        elif name in observed or name in STARTS:
            function = (
                None if name == "configuration" else NamedQuantity(observed.index(name) if name in observed else None)
            )
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
            shape = jax.eval_shape(_observable(name, function), system, given.state)
            size = [() if np.size(shape) == 1 and leaves[0].ndim == 1 else shape.shape]
        if [leaf.shape for leaf in leaves] != [(count, *shape) for shape in size]:
            shapes, allowed = [leaf.shape for leaf in leaves], [(count, *shape) for shape in size]
            raise InvalidInput(f"the values of {name!r} have shapes {shapes}; allowed: {allowed}, a row for each time")
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
        what = f"the {'covariance' if name in given.covariances else 'deviation'} of {name!r}"
        number = finite_reals(what, given.covariances.get(name, table.get(name, 1.0)))
        allowed = ((size, size), (count, size, size)) if name in given.covariances else ((), (size,), (count, size))
        if number.shape not in allowed or (name in table and not (number > 0).all()):
            shapes = " or ".join(map(str, allowed))
            given_as = f"is {number:g}" if not number.ndim else f"has shape {number.shape}"
            raise InvalidInput(f"{what} {given_as}; allowed: positive, of shape {shapes}")
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


def weigh(weights: Numbers, values: Numbers) -> Numbers:
    """Differences (N, K) or their slopes (N, K, columns), in standard deviations."""
    if weights.ndim == 2:
        return values * weights.reshape(*weights.shape, *(1,) * (values.ndim - 2))
    return np.matmul(weights, values) if values.ndim == 3 else (weights @ values[..., None])[..., 0]


def place_times(times: Numbers, t0: float, h: float) -> tuple[Numbers, Numbers, Numbers, bool]:
    """Find each time in a run: its distance from the start in steps, its step, and its place among the times in it.

    Step k ends at state k; 0 is the first state. The last result is whether times lie between the states.
    """
    with np.errstate(over="ignore"):
        number = (times - t0) / h
    if (number > MAX_STEPS).any():
        late = f"the measurement at t = {times.max():g} is {number.max():.3g} steps of {h:g} after the start"
        raise InvalidInput(f"{late}; allowed: at most {MAX_STEPS:,}. Give a larger step")
    if (number < -TIME_TOLERANCE).any():
        early = f"a measurement at t = {times.min():g} is before the start at t = {t0:g}"
        raise InvalidInput(f"{early}: give a state that is as early")
    dense = bool((np.abs(number - np.round(number)) > TIME_TOLERANCE).any())
    step = np.maximum(np.ceil(number - TIME_TOLERANCE) if dense else np.round(number), 0).astype(int)
    order, slot = np.argsort(step, kind="stable"), np.empty(len(step), int)
    slot[order] = np.arange(len(step)) - np.searchsorted(step[order], step[order])
    return number, step, slot, dense


def log_of(group: Any, g: Any) -> Any:
    """log g."""
    return group.log(g)


def show_values(
    measures: Sequence[Measure], angles: Collection[str], group: Any, values: Sequence[Any]
) -> tuple[list[str], Numbers]:
    """The names of what was measured and its numbers (N, K), log g for configurations, for a picture."""
    names: list[str] = []
    columns = []
    for (name, function), given in zip(measures, values, strict=True):
        shown = np.angle(np.exp(1j * given)) if name in angles else given
        if function is None:
            count = len(jax.tree.leaves(given)[0])
            shown = np.asarray(evaluate(log_of, group, given, lanes=count, axes=(None, 0)))
        columns.append(shown)
        names += [name if shown.shape[1] == 1 else f"{name} {k}" for k in range(shown.shape[1])]
    return names, np.concatenate(columns, axis=1)


def read_data(path: str | Path) -> dict[str, Numbers]:
    """The columns of a file by the names that `show --csv` gives them."""
    path = Path(path)
    if path.suffix in (".nc", ".zarr"):
        return _read_dataset(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as lines:
            reader = csv.reader(lines)
            (_, head), *rows = [(reader.line_num, row) for row in reader if row] or [(1, [])]
    except FileNotFoundError as fault:
        raise InvalidInput(f"there is no file {path}: give a .csv or .nc file with measurements") from fault
    except (UnicodeDecodeError, csv.Error) as fault:
        raise InvalidInput(f"{path} is no table of numbers with a head: {fault}") from fault
    except OSError as fault:
        raise InvalidInput(f"cannot read the data {path}: {fault.strerror}") from fault
    names, numbers = [name.strip() for name in head], []
    for line, row in rows:
        if len(row) != len(names):
            raise InvalidInput(f"{path}: line {line} has {len(row)} cells; allowed: {len(names)}, as the head has")
        try:
            numbers.append([float(cell) if cell.strip() else np.nan for cell in row])
        except ValueError:
            text = show(",".join(row))
            raise InvalidInput(f"{path}: line {line} is {text}; allowed: numbers between commas") from None
    if len(set(names)) < len(names) or not numbers:
        raise InvalidInput(f"{path} has columns {names} and {len(numbers)} rows; allowed: each name once, and rows")
    return dict(zip(names, np.array(numbers).T, strict=True))


def _read_dataset(path: Path) -> dict[str, Numbers]:
    data = open_dataset(path)
    if "time" not in data.variables or data["time"].ndim != 1:
        raise InvalidInput(f"{path} has no times of one run: give a file with a dimension `time`")
    found: dict[str, Numbers] = {"time": np.asarray(data["time"].values, float)}
    for name, column in data.variables.items():
        if column.dims[:1] != ("time",) or column.dtype.kind not in "iuf" or name == "time":
            continue
        values = np.asarray(column.values, float).reshape(len(found["time"]), -1)
        labels = data["component"].values if "component" in column.dims else range(values.shape[1])
        heads = [str(name)] if values.shape[1] == 1 else [f"{name}_{label}" for label in labels]
        found |= dict(zip(heads, values.T, strict=True))
    return found
