"""The commands that look for numbers: fit, from data, and plan, for a goal."""

from __future__ import annotations

import copy
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

from ..errors import InvalidInput, NumericalFailure, UnknownName, WriteFailure, spell
from ..io.atomic import atomic_path, output_lock
from ..io.config import (
    Job,
    apply_settings,
    build_state,
    build_system,
    load_function,
    parse_job,
    read_config,
    read_value,
    require_point,
    require_tables,
    set_value,
    to_toml,
)
from ..io.dataset import require_writable, save_run
from ..io.measurements import Experiment, read_data
from ..mechanics import MechanicalSystem, State, name_leaves, names_of, observe
from ..models import MODELS
from ..numerics import is_traced, show
from ..optimise.fitting import Built, Fit, Unknown, fit
from ..optimise.planning import Plan, plan
from ..plotting.style import LIGHT, save, styled
from ..simulation import to_json
from . import shell

Table = dict[str, np.ndarray[Any, Any]]
STARTS = ("velocity.", "configuration.")
DATA_HELP = "The measurements: a .csv file with a header line, or a .nc file; empty cells and NaN are missing values."
FIT_PICTURE = "Draw data, motion and residuals into this picture (.png, .pdf, .svg)."


@shell.command("fit")
def fit_data(
    config: Annotated[Path, typer.Argument(help=rf"A TOML file with {shell.SECTION_NAMES}, \[run] and \[\[unknown]].")],
    data: Annotated[Path, typer.Argument(help=DATA_HELP)],
    plot: Annotated[Path | None, typer.Option(help=FIT_PICTURE)] = None,
    as_json: shell.JsonOption = False,
    settings: shell.SettingsOption = None,
) -> None:
    r"""Fit the unknowns of a configuration to measurements: estimates, errors, and what the data cannot determine.

    A table \[\[unknown]] names a number: system.a, velocity.w of the start, or parameters.joints.steer.at.x of a
    mechanism. A table \[\[column]] says what a column of the data is, and its standard deviation. Ctrl-C keeps the best
    fit so far. Exit codes: 0 success, 1 it did not converge, 2 wrong input, 130 stopped.
    """
    given = apply_settings(read_config(config), settings or ())
    if plot is not None:
        shell.require_picture(plot)
    job = parse_job(given, config.parent)
    job.require_uncontrolled("a fit (inputs are columns of the data)")
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
    title = f"{shell.title_of(job.names['system'], job.system)} and {data}"
    shell.print_table(title, ("unknown",), ("estimate", "standard error", ""), rows)
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
        leaves = {f"parameters.{path}": leaf for path, leaf in _leaves(job.system).items()}
        starts = [start + axis.name for start in STARTS for axis in job.system.axes()]
        name = spell(name, (*leaves, *starts))
        if name.startswith("system."):
            given["system"] = with_default(given["system"], name, job.file)
            guess = _value_at(given["system"], name.split(".")[1:], name)
        elif name.startswith("parameters."):
            if name not in leaves:
                raise UnknownName("number of the system", name, leaves)
            guess = np.asarray(leaves[name], float)
        elif not name.startswith(STARTS):
            raise InvalidInput(f"the unknown is {name!r}; allowed: system., parameters., velocity., configuration.NAME")
        if guess is None and bounds and name in starts:  # `fit` refuses other names; a shift begins at 0
            guess = float(np.append(job.state.xi, 0.0 * job.state.xi)[starts.index(name)])
        found[name] = None if guess is None else Unknown(guess, **bounds)
    return found


def with_default(section: dict[str, Any], name: str, file: Path | None) -> dict[str, Any]:
    """The section [system], with the value that the model or the function in a user's file gives to an unknown."""
    key, model = name.split(".")[1], MODELS.get(section.get("name", ""))
    defaults = dict(model.parameters) if model is not None else {}
    if file is not None:
        taken = inspect.signature(_load_once(file, section["python"].rpartition(":")[2])).parameters
        defaults = {each: taken[each].default for each in taken if taken[each].default is not inspect.Parameter.empty}
    if key in section or not defaults:
        return section
    if key not in defaults:
        raise UnknownName(f"number in [system] ({name})", key, defaults)
    return section | {key: _to_list(defaults[key])}


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
                set_value(given, name.split("."), value if is_traced(value) else np.asarray(value).tolist())
        system = build_system(given["system"], Path(self.folder), _load_once)[1]
        leaves = {name.removeprefix("parameters."): v for name, v in values.items() if name.startswith("parameters.")}
        return Built(None, name_leaves(system))(system, leaves) if leaves else system


def _to_list(value: Any) -> Any:
    return [_to_list(part) for part in value] if isinstance(value, list | tuple) else value


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
        raise InvalidInput(
            f"{path} has no column {time!r} for the times; its columns are {', '.join(table)}: name the one with "
            'the times, in seconds, in the configuration: [fit] with time = "NAME"'
        )
    observables = known_quantities(system)
    names = (*system.coordinate_names, *system.rate_names)
    inputs = [each.name for each in system.inputs or ()]
    columns = require_tables("column", given.get("column", []))
    known = (*names, *observables, *inputs)
    listed = columns or [{"name": name} for name in table if spell(name, known) in known]
    measured, deviations, pushes = {}, {}, {}
    for column in listed:
        name = column.get("name", "")
        if name not in table:
            raise UnknownName(f"column of {path}", name, table)
        quantity = spell(column.get("quantity", name), known)
        if quantity in inputs:
            pushes[quantity] = table[name]
            continue
        if quantity not in names and quantity not in observables:
            raise UnknownName("quantity of a column", quantity, known)
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
    return found | {f"velocity_{axis.name}": Rate(k) for k, axis in enumerate(system.axes())}


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


# -- plan --------------------------------------------------------------------------------------------------------------
PLAN_PICTURE = "Draw the motion beside its controls into this picture (.png, .pdf, .svg)."
PLAN_CONFIG = r"A TOML file with \[system], \[method], \[plan] and \[goal]; \[initial] is the initial state."


@shell.command("plan")
def plan_controls(
    config: Annotated[Path, typer.Argument(help=PLAN_CONFIG)],
    out: Annotated[Path | None, typer.Option(help="Write the motion as a run with its controls: .nc or .zarr.")] = None,
    plot: Annotated[Path | None, typer.Option(help=PLAN_PICTURE)] = None,
    as_json: shell.JsonOption = False,
    settings: shell.SettingsOption = None,
) -> None:
    r"""Find the controls of least cost that bring a system to a goal.

    \[plan] has steps and duration; \[goal] is a configuration and a velocity, or names with their values. Tables
    \[\[cost]] weigh squares of inputs, coordinates and rates. Without them the cost is the sum of squares of the
    inputs, or the duration if it is free. \[\[bound]] gives limits, \[\[obstacle]] discs to avoid. Ctrl-C keeps the
    best plan so far. Exit codes: 0 success, 1 no plan was found or it could not be saved, 2 wrong input, 130 stopped.
    """
    given = apply_settings(read_config(config), settings or ())
    if "plan" not in given:
        raise InvalidInput(f"{config} has no section [plan]: it needs one with steps and duration")
    job = parse_job(given, config.parent)
    job.require_uncontrolled("a plan, which finds them")
    task = read_plan(given, job)
    if out is not None:
        if task["kinematic"]:
            raise InvalidInput("--out writes a run, and a kinematic plan has none: --json prints its states")
        require_writable(out)
    if plot is not None:
        shell.require_picture(plot)
    fault = None
    with output_lock(out) if out is not None else nullcontext(), job.locate_errors():
        try:
            with shell.progress(f"{job.names['system']}, {task['steps']} steps") as bar:
                found = plan(job.system, job.integrator, progress=_report(bar, task), **task)
        except KeyboardInterrupt:  # a search that has begun keeps its best
            print("dalembert: stopped before the first iteration of the plan was done", file=sys.stderr)
            raise typer.Exit(130) from None
        if out is not None and found.status not in ("optimal", "feasible", "interrupted"):
            out = None  # there is no plan: its last iterate is no motion that anybody asked for
        if out is not None:
            try:
                save_run(found.run, out, {"config": to_toml(read_value(given)), "system": job.names["system"]})
            except (WriteFailure, NumericalFailure) as failure:  # what was found is still told
                fault = failure
        if plot is not None:
            with atomic_path(plot) as temporary:
                _draw(found, require_tables("obstacle", given.get("obstacle", [])), temporary)
    reason = _name_rows(found.reason, given, job.system)
    _print_plan(found, reason, job, out if fault is None else None, plot, as_json)
    if fault is not None:
        raise fault
    if found.status == "interrupted":
        print("dalembert: stopped; this is the best so far", file=sys.stderr)
    if found.status != "optimal":
        raise typer.Exit(130 if found.status == "interrupted" else 1)


def _report(bar: Callable[..., None] | None, task: Mapping[str, Any]) -> Callable[[int, float, float], None] | None:
    if bar is None:
        return None
    most = task.get("max_iterations", 300)
    return lambda done, residual, gap: bar(done, most, f": residual {residual:.1e}, goal and gaps {gap:.1e}")


@styled
def _draw(found: Plan, obstacles: list[Mapping[str, Any]], path: Path) -> None:
    """The picture of the plan, with the discs in the plane that it goes around."""
    from matplotlib.patches import Circle

    figure = found.plot()
    axes, moved = figure.axes[0], [name for name, turns in zip(*names_of(found.system), strict=True) if not turns]
    for each in obstacles:
        spot = dict(zip(each["coordinates"], each["centre"], strict=True))
        for pair in (("position_0", "position_1"), moved[:2]):
            if spot.keys() == set(pair) and axes.get_aspect() == 1.0:
                axes.add_patch(Circle((spot[pair[0]], spot[pair[1]]), each["radius"], color=LIGHT))
    save(figure, path)


def _print_plan(found: Plan, reason: str, job: Job, out: Path | None, plot: Path | None, as_json: bool) -> None:
    files = {name: str(path) for name, path in (("file", out), ("picture", plot)) if path is not None}
    numbers = {name: getattr(found, name) for name in ("cost", "duration", "step", "error", "infeasibility")}
    if as_json:
        about = {**job.names, "status": found.status, "reason": reason, "iterations": found.iterations}
        arrays = {"time": found.t, "controls": found.controls, "configuration": found.g, "velocity": found.xi}
        arrays["costates"] = found.costates
        values = {name: to_json(value) for name, value in (numbers | arrays).items()}
        flags = {"strict": found.strict, "kinematic": found.kinematic, "inputs": found.inputs}
        shell.print_json(about | flags | {"coordinates": found.coordinates} | values | files)
        return
    held = "holds strictly: a local minimum" if found.strict else "not shown to hold strictly"
    rows = [
        ("status", f"{found.status} after {found.iterations} iterations"),
        ("cost", f"{found.cost:.12g}"),
        ("steps, step, duration", f"{len(found.controls)}, {found.step:.6g}, {found.duration:.12g}"),
        ("first-order residual", f"{found.error:.1e}"),
        ("goal and gaps met to", f"{found.infeasibility:.1e}"),
        *([("second-order condition", held)] if found.status == "optimal" else []),
    ]
    for name, row in zip(found.inputs, found.controls.T, strict=True):
        rows.append((name, f"from {row.min():.6g} to {row.max():.6g} {found.system.units.get(name, '')}".rstrip()))
    title = f"{shell.title_of(job.names['system'], job.system)} with {job.names['method']}"
    shell.print_table(title, (), (), rows + list(files.items()))
    if reason:
        print(f"dalembert: {reason}", file=sys.stderr)


# -- reading -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reading:
    """A number of the motion by its name: (system, t, g, xi, u) -> number."""

    kind: str  # "input", "observed" (a coordinate or rate) or "shown" (what else `show --csv` names)
    index: int = 0
    function: Any = None  # (system, state) -> number of what is shown

    def __call__(self, system: MechanicalSystem, t: Any, g: Any, xi: Any, u: Any) -> Any:
        if self.kind == "shown":
            return self.function(system, State(t, g, xi, xi, xi, system.group))
        return u[self.index] if self.kind == "input" else observe(system, t, g, xi)[self.index]


Readings = Mapping[str, Reading]
Term = tuple[float, Reading | None, float]  # weight (reading - target)^2; the weight itself where nothing is read: time
Disc = tuple[tuple[Reading, ...], tuple[float, ...], float]  # readings, centre and radius


def known_readings(system: MechanicalSystem, kinematic: bool) -> dict[str, Reading]:
    """Inputs, coordinates and rates by their names, and what `show --csv` names."""
    inputs = () if kinematic else system.inputs or ()
    names = (*names_of(system)[0], *system.rate_names)
    found = {each.name: Reading("input", k) for k, each in enumerate(inputs)}
    found = {name: Reading("observed", k) for k, name in enumerate(names)} | found
    shown = {name: Reading("shown", 0, each) for name, each in known_quantities(system).items() if each is not None}
    return shown | found


def read_plan(given: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """What `dalembert.plan` is asked for by the sections [plan], [goal], [[cost]], [[bound]] and [[obstacle]]."""
    task: dict[str, Any] = {"kinematic": False, **given["plan"]}
    readings = known_readings(job.system, task["kinematic"])
    terms = _read_costs(given, readings)
    bounds, sides = _read_bounds(given, readings)
    discs = _read_obstacles(given, readings)
    if not any(terms.values()) and not isinstance(task["duration"], list):
        task["cost"] = _effort
    for final, key in ((False, "cost"), (True, "final_cost")):
        if terms[final]:
            task[key] = _weigh(job.system, terms[final], final)
    if sides or discs:
        task["path"] = _keep(job.system, sides, discs)
    if "goal" in given:
        task["goal"] = _read_goal(given["goal"], job, readings)
    return task | {"start": job.state, "bounds": bounds}


def _require_reading(what: str, name: str, readings: Readings, of_state: bool = False) -> Reading:
    known = [key for key, reading in readings.items() if not (of_state and reading.kind == "input")]
    if (name := spell(name, known)) not in known:
        raise UnknownName(what, name, known)
    return readings[name]


def _read_goal(goal: Any, job: Job, readings: Readings) -> Any:
    """A state, a configuration, names with values, or a function that is zero where all that is named has its value."""
    if not isinstance(goal, Mapping) or not goal:
        words = "a configuration, with a velocity or not, or names with their values"
        raise InvalidInput(f"[goal] is {show(goal)}; allowed: a section with {words}")
    states = {name: reading for name, reading in readings.items() if reading.kind != "input"}
    known = states | {name.replace(" ", "_"): reading for name, reading in states.items()}
    if require_point("goal", job.system, goal, known):
        if all(known[name].kind == "observed" for name in goal):
            names = (*names_of(job.system)[0], *job.system.rate_names)
            return {names[known[name].index]: value for name, value in goal.items()}
        return _reach(job.system, [(known[name], float(value)) for name, value in goal.items()])
    if "velocity" in goal or "momentum" in goal:
        return build_state(job.system, goal, job.run)
    return job.system.group.configuration(goal["configuration"])


def _reach(system: MechanicalSystem, pairs: list[tuple[Reading, float]]) -> Callable[..., Any]:
    def goal(t: Any, g: Any, xi: Any) -> Any:
        off = []
        for reading, value in pairs:
            short = reading(system, t, g, xi, None) - value
            turns = isinstance(reading.function, Angle)
            off.append(jnp.arctan2(jnp.sin(short), jnp.cos(short)) if turns else short)
        return jnp.stack(off)

    return goal


def _read_costs(given: Mapping[str, Any], readings: Readings) -> dict[bool, list[Term]]:
    """The terms of the running cost, and (True) those of the final one."""
    found: dict[bool, list[Term]] = {False: [], True: []}
    for table in require_tables("cost", given.get("cost", [])):
        if "name" not in table:
            raise InvalidInput('a [[cost]] needs a name: of an input, a coordinate or a rate, or "time"')
        name, final, reading = table["name"], table.get("final", False), None
        if name != "time":
            reading = _require_reading("name of a cost", name, readings, of_state=final)
        elif final or "target" in table:
            raise InvalidInput('a [[cost]] of "time" has a weight alone, the price of a second')
        found[final].append((float(table.get("weight", 1.0)), reading, float(table.get("target", 0.0))))
    return found


def _effort(t: Any, g: Any, xi: Any, u: Any) -> Any:
    return u @ u


def _weigh(system: MechanicalSystem, terms: list[Term], final: bool) -> Callable[..., Any]:
    def cost(t: Any, g: Any, xi: Any, u: Any) -> Any:
        value = jnp.zeros(())
        for weight, reading, target in terms:
            value += weight * (1.0 if reading is None else (reading(system, t, g, xi, u) - target) ** 2)
        return value

    def final_cost(t: Any, g: Any, xi: Any) -> Any:
        return cost(t, g, xi, None)

    return final_cost if final else cost


def _read_bounds(given: Mapping[str, Any], readings: Readings) -> tuple[dict[str, Any], list[Term]]:
    """(bounds of what `plan` has names for, (sign, reading, side) of the others: sign (reading - side) >= 0)."""
    held: dict[str, Any] = {}
    sides: list[Term] = []
    for table in require_tables("bound", given.get("bound", [])):
        if "name" not in table or not {"low", "high"} & table.keys():
            raise InvalidInput(f"a [[bound]] needs a name, and low or high; given {show(dict(table))}")
        reading = _require_reading("name of a bound", table["name"], readings)
        low, high = float(table.get("low", -math.inf)), float(table.get("high", math.inf))
        if not low < high:
            raise InvalidInput(f"[[bound]] of {table['name']} is from {low:g} to {high:g}; allowed: low < high")
        if reading.kind == "shown":
            sides += [(sign, reading, side) for sign, side in ((1.0, low), (-1.0, high)) if math.isfinite(side)]
        else:
            held[table["name"]] = (low, high)
    return held, sides


def _read_obstacles(given: Mapping[str, Any], readings: Readings) -> list[Disc]:
    discs = []
    for table in require_tables("obstacle", given.get("obstacle", [])):
        if missing := [key for key in ("coordinates", "centre", "radius") if key not in table]:
            raise InvalidInput(f"an [[obstacle]] needs {' and '.join(missing)}; given {show(dict(table))}")
        names, centre, radius = table["coordinates"], table["centre"], float(table["radius"])
        axes = [_require_reading("coordinate of an obstacle", name, readings, of_state=True) for name in names]
        if not names or len(names) != len(centre) or not radius > 0:
            words = "as many coordinates as its centre has numbers, and a positive radius"
            raise InvalidInput(f"an [[obstacle]] has {words}; given {show(dict(table))}")
        discs.append((tuple(axes), tuple(map(float, centre)), radius))
    return discs


def _name_rows(reason: str, given: Mapping[str, Any], system: MechanicalSystem) -> str:
    """The reason of a plan in words of its file: the rows of `_keep` by their tables, squared distances as lengths."""
    readings, rows = known_readings(system, bool(given["plan"].get("kinematic"))), list[tuple[str, float]]()
    for table in given.get("bound", []):
        if _require_reading("name of a bound", table["name"], readings).kind == "shown":
            sides = [side for side in ("low", "high") if math.isfinite(table.get(side, math.inf))]
            rows += [(f"the [[bound]] of {table['name']}, {side} = {table[side]:g}", 0.0) for side in sides]
    for table in given.get("obstacle", []):
        rows.append((f"the [[obstacle]] at {show(table['centre'])} of radius {table['radius']:g}", table["radius"]))

    def name(found: re.Match[str]) -> str:
        (words, radius), by = rows[int(found[1])], abs(float(found[3]))
        by = radius - math.sqrt(max(radius**2 - by, 0.0)) if radius else by  # of two digits one is left
        return f"{words}{' is violated' if found[2] else ','} by about {by:.1g}"

    reason = re.sub(r"row (\d+)( of the path)? is (?:broken by )?(-?[\d.]+(?:e[+-]?\d+)?)", name, reason)
    reason = reason.replace("breaks the path, as an obstacle that covers it does:", "violates")
    reason = reason.replace(" there (path(t, g, xi, u) must not be negative)", "")
    return re.sub(r"breaks the path \((.*?) there\)", r"violates \1", reason)


def _keep(system: MechanicalSystem, sides: list[Term], discs: list[Disc]) -> Callable[..., Any]:
    def path(t: Any, g: Any, xi: Any, u: Any) -> Any:
        point = (system, t, g, xi, u)
        parts = [sign * (reading(*point) - side) for sign, reading, side in sides if reading is not None]
        for axes, centre, radius in discs:
            parts.append(sum((axis(*point) - c) ** 2 for axis, c in zip(axes, centre, strict=True)) - radius**2)
        return jnp.stack(parts)

    return path
