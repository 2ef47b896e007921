"""The command that finds controls for a goal: plan."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import typer

from ..errors import InvalidInput, UnknownName, WriteFailure
from ..io.atomic import atomic_path, output_lock
from ..io.config import (
    Job,
    apply_settings,
    build_state,
    parse_job,
    read_config,
    read_value,
    require_point,
    require_tables,
    to_toml,
)
from ..io.dataset import require_writable, save_run
from ..mechanics import MechanicalSystem, State
from ..numerics import show
from ..optimise.planning import Plan, plan
from ..plotting.style import LIGHT, save, styled
from ..simulation import to_json
from . import shell
from .fits import Angle, known_quantities

PLAN_PICTURE = "Draw the motion beside its controls into this picture (.png, .pdf, .svg)."
PLAN_CONFIG = r"A TOML file with \[system], \[method], \[plan] and what it looks for; \[initial] where it begins."


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
    \[\[cost]] weigh squares of inputs, coordinates and rates (without one: of the inputs, or the time where it is
    free), \[\[bound]] and \[\[obstacle]] keep what is named within limits and out of discs. Ctrl-C keeps the best so
    far. Exit codes: 0 done, 1 no plan was found or it could not be written, 2 bad input, 130 stopped.
    """
    given = apply_settings(read_config(config), settings or ())
    if "plan" not in given:
        raise InvalidInput(f"{config} has no section [plan]: it needs one with steps and duration")
    job = parse_job(given, config.parent)
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
                found = plan(job.system, job.integrator, progress=_reported(bar, task), **task)
        except KeyboardInterrupt:  # a search that has begun keeps its best
            print("dalembert: stopped before the first iteration of the plan was done", file=sys.stderr)
            raise typer.Exit(130) from None
        if out is not None:
            try:
                save_run(found.run, out, {"config": to_toml(read_value(given)), "system": job.names["system"]})
            except WriteFailure as failure:  # what was found is still told
                fault = failure
        if plot is not None:
            with atomic_path(plot) as temporary:
                _draw(found, require_tables("obstacle", given.get("obstacle", [])), temporary)
    _print_plan(found, job, out if fault is None else None, plot, as_json)
    if fault is not None:
        raise fault
    if found.status == "interrupted":
        print("dalembert: stopped; this is the best so far", file=sys.stderr)
    if found.status != "optimal":
        raise typer.Exit(130 if found.status == "interrupted" else 1)


def _reported(bar: Callable[..., None] | None, task: Mapping[str, Any]) -> Callable[[int, float, float], None] | None:
    if bar is None:
        return None
    most = task.get("max_iterations", 300)
    return lambda done, residual, gap: bar(done, most, f": residual {residual:.1e}, goal and gaps {gap:.1e}")


@styled
def _draw(found: Plan, obstacles: list[Mapping[str, Any]], path: Path) -> None:
    """The picture of the plan, with the discs in the plane that it goes around."""
    from matplotlib.patches import Circle

    figure, plane = found.plot(), [("position_0", "position_1"), found.system.coordinate_names[:2]]
    axes = figure.axes[0]
    for each in obstacles:
        if tuple(each["coordinates"]) in plane and axes.get_aspect() == 1.0:
            axes.add_patch(Circle(each["centre"], each["radius"], color=LIGHT))
    save(figure, path)


def _print_plan(found: Plan, job: Job, out: Path | None, plot: Path | None, as_json: bool) -> None:
    files = {name: str(path) for name, path in (("file", out), ("picture", plot)) if path is not None}
    numbers = {name: getattr(found, name) for name in ("cost", "duration", "step", "error", "infeasibility")}
    if as_json:
        about = {**job.names, "status": found.status, "reason": found.reason, "iterations": found.iterations}
        arrays = {"time": found.t, "controls": found.controls, "configuration": found.g, "velocity": found.xi}
        arrays["costates"] = found.costates
        values = {name: to_json(value) for name, value in (numbers | arrays).items()}
        flags = {"strict": found.strict, "kinematic": found.kinematic, "inputs": found.inputs}
        shell.print_json(about | flags | {"coordinates": found.coordinates} | values | files)
        return
    held = "holds" if found.strict else "does not hold: perhaps no isolated minimum"
    rows = [
        ("status", f"{found.status} after {found.iterations} iterations"),
        ("cost", f"{found.cost:.12g}"),
        ("steps, step, duration", f"{len(found.controls)}, {found.step:.6g}, {found.duration:.12g}"),
        ("first-order residual", f"{found.error:.1e}"),
        ("goal and gaps met to", f"{found.infeasibility:.1e}"),
        ("second-order condition", held),
    ]
    for name, row in zip(found.inputs, found.controls.T, strict=True):
        rows.append((name, f"from {row.min():.6g} to {row.max():.6g}"))
    shell.print_table(f"{job.names['system']} with {job.names['method']}", (), (), rows + list(files.items()))
    if found.reason:
        print(f"dalembert: {found.reason}", file=sys.stderr)


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
        return u[self.index] if self.kind == "input" else system.observe(t, g, xi)[self.index]


Readings = Mapping[str, Reading]
Term = tuple[float, Reading | None, float]  # weight (reading - target)^2; the weight itself where nothing is read: time
Disc = tuple[tuple[Reading, ...], tuple[float, ...], float]  # readings, centre and radius


def known_readings(system: MechanicalSystem, kinematic: bool) -> dict[str, Reading]:
    """Inputs, coordinates and rates by their names, and what `show --csv` names."""
    inputs = () if kinematic else system.inputs or ()
    names = (*system.coordinate_names, *system.rate_names)
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
            task[key] = _weighted(job.system, terms[final], final)
    if sides or discs:
        task["path"] = _kept(job.system, sides, discs)
    if "goal" in given:
        task["goal"] = _read_goal(given["goal"], job, readings)
    return task | {"start": job.state, "bounds": bounds}


def _require_reading(what: str, name: str, readings: Readings, of_state: bool = False) -> Reading:
    known = [key for key, reading in readings.items() if not (of_state and reading.kind == "input")]
    if name not in known:
        raise UnknownName(what, name, known)
    return readings[name]


def _read_goal(goal: Any, job: Job, readings: Readings) -> Any:
    """A state, a configuration, or a function that is zero where all that is named has its value."""
    if not isinstance(goal, Mapping) or not goal:
        words = "a configuration, with a velocity or not, or names with their values"
        raise InvalidInput(f"[goal] is {show(goal)}; allowed: a section with {words}")
    states = {name: reading for name, reading in readings.items() if reading.kind != "input"}
    known = states | {name.replace(" ", "_"): reading for name, reading in states.items()}
    if require_point("goal", job.system, goal, known):
        return _reached(job.system, [(known[name], float(value)) for name, value in goal.items()])
    if "velocity" in goal or "momentum" in goal:
        return build_state(job.system, goal, job.run)
    return job.system.group.configuration(goal["configuration"])


def _reached(system: MechanicalSystem, pairs: list[tuple[Reading, float]]) -> Callable[..., Any]:
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


def _weighted(system: MechanicalSystem, terms: list[Term], final: bool) -> Callable[..., Any]:
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


def _kept(system: MechanicalSystem, sides: list[Term], discs: list[Disc]) -> Callable[..., Any]:
    def path(t: Any, g: Any, xi: Any, u: Any) -> Any:
        point = (system, t, g, xi, u)
        parts = [sign * (reading(*point) - side) for sign, reading, side in sides if reading is not None]
        for axes, centre, radius in discs:
            parts.append(sum((axis(*point) - c) ** 2 for axis, c in zip(axes, centre, strict=True)) - radius**2)
        return jnp.stack(parts)

    return path
