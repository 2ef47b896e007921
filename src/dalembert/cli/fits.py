"""The command that finds numbers from data: fit."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

from ..errors import InvalidInput, UnknownName
from ..io.atomic import atomic_path
from ..io.config import (
    Job,
    apply_settings,
    build_system,
    load_function,
    parse_job,
    read_config,
    require_tables,
    set_value,
)
from ..io.measurements import Experiment, read_data
from ..mechanics import MechanicalSystem, State, name_leaves
from ..models import MODELS
from ..numerics import is_traced
from ..optimise.fitting import Built, Fit, Unknown, fit
from . import shell

Table = dict[str, np.ndarray[Any, Any]]
STARTS = ("velocity.", "configuration.")
DATA_HELP = "The measurements: a .csv file with a head, or a .nc file; empty cells and NaN are missing."
FIT_PICTURE = "Draw data, motion and residuals into this picture (.png, .pdf, .svg)."


@shell.command("fit")
def fit_data(
    config: Annotated[Path, typer.Argument(help=rf"A TOML file with {shell.SECTION_NAMES}, \[run] and \[\[unknown]].")],
    data: Annotated[Path, typer.Argument(help=DATA_HELP)],
    plot: Annotated[Path | None, typer.Option(help=FIT_PICTURE)] = None,
    as_json: shell.JsonOption = False,
    settings: shell.SettingsOption = None,
) -> None:
    r"""Find the unknowns of a configuration from measurements: estimates, errors, and what the data cannot tell apart.

    A table \[\[unknown]] names a number: system.a, velocity.w of the start, or parameters.joints.steer.at.x of a
    mechanism. A table \[\[column]] says what a column of the data is and its standard deviation. Ctrl-C keeps the best
    so far. Exit codes: 0 done, 1 it did not converge, 2 bad input, 130 stopped.
    """
    given = apply_settings(read_config(config), settings or ())
    if plot is not None:
        shell.require_picture(plot)
    job = parse_job(given, config.parent)
    options = {key: value for table in require_tables("fit", given.get("fit", [])) for key, value in table.items()}
    unknowns = read_unknowns(given, job)
    table = read_data(data)
    experiment = read_experiment(given, job, table, options.pop("time", "time"), data)
    model = Configured(str(config.parent), given["system"])
    try:
        with job.locate_errors(), shell.progress(f"{job.names['system']}, {len(unknowns)} unknowns") as bar:
            find: Any = partial(fit, step=job.run["step"], progress=bar, **options)
            found = find(lambda **values: model.build(values), job.integrator, experiment, unknowns)
            if plot is not None:
                with atomic_path(plot) as temporary:
                    found.plot(temporary)
    except KeyboardInterrupt:  # a search that has begun keeps its best
        print("dalembert: stopped before the first run of the fit was done", file=sys.stderr)
        raise typer.Exit(130) from None
    _print_fit(found, job, data, plot, as_json)
    if not found.converged:
        raise typer.Exit(130 if "interrupted" in found.reason else 1)


def _print_fit(found: Fit, job: Job, data: Path, plot: Path | None, as_json: bool) -> None:
    if as_json:
        shell.print_json({"system": job.names["system"], "data": str(data), **found.to_dict()})
        return
    rows = []
    for name, value, error in zip(found.names, found.values, found.errors, strict=True):
        rows.append((name, f"{value:.8g}", f"{error:.3g}", "at a bound" if name in found.at_bound else ""))
    shell.print_table(f"{job.names['system']} and {data}", ("unknown",), ("estimate", "standard error", ""), rows)
    print("\n".join(str(found).splitlines()[1 + len(found.names) :]))
    if plot is not None:
        print(f"picture: {plot}")
    if "interrupted" in found.reason:
        print("dalembert: stopped; these are the best numbers so far", file=sys.stderr)


def read_unknowns(given: dict[str, Any], job: Job) -> dict[str, Unknown | None]:
    """The tables [[unknown]] by name; None where only the start knows the guess."""
    tables = require_tables("unknown", given.get("unknown", []))
    if not tables:
        raise InvalidInput('a fit needs unknowns: tables [[unknown]] with a name, such as name = "system.a"')
    found: dict[str, Unknown | None] = {}
    for table in tables:
        if "name" not in table:
            raise InvalidInput('an [[unknown]] needs a name, such as "system.a" or "velocity.w"')
        name, bounds = table["name"], {key: table[key] for key in ("low", "high") if key in table}
        if "prior" in table:
            bounds["prior"] = tuple(table["prior"])
        guess: Any = None
        if name.startswith("system."):
            guess = _value_at(with_default(given["system"], name), name.split(".")[1:], name)
        elif name.startswith("parameters."):
            leaves = {f"parameters.{path}": leaf for path, leaf in _leaves(job.system).items()}
            if name not in leaves:
                raise UnknownName("number of the system", name, leaves)
            guess = np.asarray(leaves[name], float)
        elif not name.startswith(STARTS):
            raise InvalidInput(f"the unknown is {name!r}; allowed: system.NAME, parameters.PATH, velocity.NAME")
        if guess is None and bounds:
            guess = _start_guess(job, name)
        found[name] = None if guess is None else Unknown(guess, **bounds)
    return found


def _start_guess(job: Job, name: str) -> float:
    kind, _, axis = name.partition(".")
    axes = [each.name for each in job.system.group.axes()]
    if axis not in axes:
        raise UnknownName("component of a start", name, [f"{kind}.{each}" for each in axes])
    return float(np.asarray(job.state.xi)[axes.index(axis)]) if kind == "velocity" else 0.0


def with_default(section: dict[str, Any], name: str) -> dict[str, Any]:
    """The section [system], with the model's own value of what an unknown names."""
    key, model = name.split(".")[1], MODELS.get(section.get("name", ""))
    if model is not None and key in model.parameters and key not in section:
        return section | {key: _listed(model.parameters[key])}
    return section


def _value_at(holder: Any, path: list[str], name: str) -> Any:
    """The number at a path such as axes, 0."""
    for key in path:
        known = range(len(holder)) if isinstance(holder, list) else holder if isinstance(holder, dict) else ()
        place: Any = int(key) if isinstance(holder, list) and key.isdecimal() else key
        if place not in known:
            raise UnknownName(f"number in [system] ({name})", key, map(str, known))
        holder = holder[place]
    return holder


def _leaves(system: MechanicalSystem) -> dict[str, Any]:
    return {name.removeprefix("parameter "): leaf for name, leaf in system.constants().items()}


@dataclass(frozen=True)
class Configured:
    """The system of a section [system] with other numbers in it, which JAX may trace."""

    folder: str
    section: dict[str, Any]

    def build(self, values: dict[str, Any]) -> MechanicalSystem:
        given = {"system": copy.deepcopy(self.section)}
        for name, value in values.items():
            if name.startswith("system."):
                given["system"] = with_default(given["system"], name)
                set_value(given, name.split("."), value if is_traced(value) else np.asarray(value).tolist())
        system = build_system(given["system"], Path(self.folder), _load_once)[1]
        leaves = {name.removeprefix("parameters."): v for name, v in values.items() if name.startswith("parameters.")}
        return Built(None, name_leaves(system))(system, leaves) if leaves else system


def _listed(value: Any) -> Any:
    return [_listed(part) for part in value] if isinstance(value, list | tuple) else value


_load_once = lru_cache(maxsize=8)(load_function)


@dataclass(frozen=True)
class Place:
    """A coordinate of the place of a body: (system, state) -> number."""

    index: int

    def __call__(self, system: MechanicalSystem, state: State) -> Any:
        first = state.g[0] if isinstance(state.g, tuple) else state.g
        return first[self.index, -1]


@dataclass(frozen=True)
class Angle:
    """A planar angle of the configuration: (system, state) -> number."""

    index: int

    def __call__(self, system: MechanicalSystem, state: State) -> Any:
        points = state.g if isinstance(state.g, tuple) else (state.g,)
        pairs = zip(system.group.factors, points, strict=True)
        turn = [point for group, point in pairs if jax.eval_shape(group.angles, point).shape[0]][self.index]
        return jnp.arctan2(turn[1, 0], turn[0, 0])


@dataclass(frozen=True)
class Rate:
    """A component of the velocity: (system, state) -> number."""

    index: int

    def __call__(self, system: MechanicalSystem, state: State) -> Any:
        return state.xi[self.index]


def read_experiment(given: dict[str, Any], job: Job, table: Table, time: str, path: Path) -> Experiment:
    """The measurements that the tables [[column]] name, or all columns that the system has."""
    system = job.system
    if time not in table:
        raise UnknownName(f"column of times in {path}", time, table)
    observables = known_quantities(system)
    names = (*system.coordinate_names, *system.rate_names)
    inputs = [each.name for each in system.inputs or ()]
    columns = require_tables("column", given.get("column", []))
    listed = columns or [{"name": name} for name in table if name in (*names, *observables, *inputs)]
    measured, deviations, pushes = {}, {}, {}
    for column in listed:
        name = column.get("name", "")
        if name not in table:
            raise UnknownName(f"column of {path}", name, table)
        quantity = column.get("quantity", name)
        if quantity in inputs:
            pushes[quantity] = table[name]
            continue
        if quantity not in names and quantity not in observables:
            raise UnknownName("quantity of a column", quantity, (*names, *observables, *inputs))
        measured[quantity] = table[name]
        if "deviation" in column:
            deviations[quantity] = column["deviation"]
    join_quaternion(system, measured, deviations)
    if not measured:
        raise InvalidInput(f"{path} has no column of this system; allowed: {', '.join((*names, *observables))}")
    if deviations and len(deviations) < len(measured):
        missing = ", ".join(name for name in measured if name not in deviations)
        raise InvalidInput(f"{missing}: no deviation; give one to every [[column]], or to none")
    times = table[time]
    if not np.isfinite(times).all():
        raise InvalidInput(f"column {time} of {path} has times that are not finite: leave these rows out")
    controls = None
    if pushes:
        steps = max(1, int(np.ceil((times.max() - float(job.state.t)) / job.run["step"] - 1e-9)))
        middle = float(job.state.t) + job.run["step"] * (np.arange(steps) + 0.5)
        rows = [np.interp(middle, times, pushes[name]) if name in pushes else np.zeros(steps) for name in inputs]
        controls = np.stack(rows, axis=1)
    own = {name: function for name, function in observables.items() if function and name in measured}
    own = {name: function for name, function in own.items() if name not in names}
    angles = [name for name, function in own.items() if isinstance(function, Angle)]
    return Experiment(times, measured, job.state, deviations or None, observables=own, angles=angles, controls=controls)


def known_quantities(system: MechanicalSystem) -> dict[str, Any]:
    """What a column may be beside coordinates and rates, by the names that `show --csv` gives."""
    group = system.group.factors[0]
    found: dict[str, Any] = {}
    if group.is_motion_group():
        found |= {f"position_{k}": Place(k) for k in range(group.side - 1)}
    count = len(np.asarray(system.group.angles(system.group.identity())))
    found |= {"angle" if count == 1 else f"angle_{k}": Angle(k) for k in range(count)}
    found |= dict.fromkeys(quaternion_names(system))  # compared as a configuration
    return found | {f"velocity_{axis.name}": Rate(k) for k, axis in enumerate(system.group.axes())}


def quaternion_names(system: MechanicalSystem) -> list[str]:
    """The columns of an attitude, where the first factor of the group is SO(3)."""
    factors = system.group.factors
    prefix = "quaternion" if len(factors) == 1 else "quaternion_0"
    return [f"{prefix}_{k}" for k in range(4)] if factors[0].is_rotation_group(3) else []


def join_quaternion(system: MechanicalSystem, measured: dict[str, Any], deviations: dict[str, Any]) -> None:
    """Make configurations of the four columns of a quaternion; the other factors of the group are missing."""
    names = quaternion_names(system)
    given = [name for name in names if name in measured]
    if not given:
        return
    if given != names or len({deviations.get(name) for name in names}) != 1:
        raise InvalidInput(f"an attitude has the columns {', '.join(names)}, with one deviation (in rad) for all four")
    rows, so3 = np.stack([measured.pop(name) for name in names], axis=1), system.group.factors[0]
    whole = np.isfinite(rows).all(axis=1)
    turns = np.full((len(rows), 3, 3), np.nan)
    for k in np.flatnonzero(whole):
        turns[k] = so3.configuration({"quaternion": rows[k] / np.linalg.norm(rows[k])})
    others = [np.full((len(rows), *np.shape(each.identity())), np.nan) for each in system.group.factors[1:]]
    measured["configuration"] = (turns, *others) if others else turns
    spread = [deviations.pop(name) for name in names if name in deviations]
    if spread:
        deviations["configuration"] = spread[0]
