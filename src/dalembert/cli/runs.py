"""The commands on one run: run, show, animate, init, demo, studio; and what there is: list, examples, info."""

from __future__ import annotations

import platform
import shutil
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer

from .. import papers  # its exhibits load at first use
from ..analysis.comparison import seconds_per_step
from ..errors import InvalidInput, UnknownName, WriteFailure, __version__, spell
from ..integrators import METHODS, DiscreteMoserVeselov, EulerPoincareSuslov, Integrator, RungeKutta
from ..io.atomic import atomic_path, output_lock
from ..io.config import (
    OWN_SYSTEM,
    Job,
    load_function,
    load_job,
    model_template,
    own_system_template,
    resume_run,
    split_reference,
)
from ..io.dataset import open_dataset, require_writable, save_run
from ..kernels import best_width, count_processors, evaluate
from ..kernels.cache import PACKAGE_ROOT, cache_folder
from ..mechanics import MechanicalSystem, State, nonholonomy
from ..models import MODELS, chaplygin_sleigh, rigid_body, suslov
from ..plotting.runs import plot_comparison, plot_trajectory
from ..simulation import Crossings, Run, save_interval, simulate, to_json
from ..studio import export as export_page
from ..studio import film, open_studio
from ..studio.catalogue import input_of_file, read_stories, start
from ..studio.presentation import present
from ..studio.requests import MAX_SECONDS, MAX_STEPS, StudioInput, frames_of_file, frames_of_run
from ..trajectory import Trajectory, load
from . import shell

PROGRESS_RECORDS = 256
"""Records of a run of which only the last state is wanted: enough for a bar, few enough to cost nothing."""


@shell.command("run")
def run_file(
    config: shell.ConfigArgument,
    as_json: shell.JsonOption = False,
    out: Annotated[Path | None, typer.Option(help="Save the states in this file: .nc (NetCDF) or .zarr.")] = None,
    plot: shell.PlotOption = None,
    settings: shell.SettingsOption = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run that --out holds: the result is that of one long run, bit for bit."
        ),
    ] = False,
    reaction: Annotated[
        bool, typer.Option("--reaction", help="Write the reaction forces of the constraint too.")
    ] = False,
) -> None:
    """Simulate the system that a configuration file describes.

    Ctrl-C stops the run; with --out the finished steps are saved, and --resume continues the run. Exit codes: 0
    success, 1 the run failed numerically or could not be saved, 2 wrong input, 130 stopped.
    """
    job = load_job(config, settings or ())
    if (resume or reaction) and out is None:
        raise InvalidInput(f"--{'resume' if resume else 'reaction'} needs --out: the file of the run")
    if out is not None:
        require_writable(out)
    if plot is not None:
        shell.require_picture(plot)
    begin = time.perf_counter()
    with output_lock(out) if out is not None else nullcontext(), job.locate_errors():
        before = out if resume and out is not None and out.exists() else None
        trajectory = run_with_progress(job, states=bool(out or plot), before=before)
        seconds = time.perf_counter() - begin
        fault = None
        if out is not None:
            try:
                save_run(trajectory, out, {"config": job.text, "system": job.names["system"]}, reaction=reaction)
            except WriteFailure as failure:  # what was computed is still told
                fault = failure
        if plot is not None:
            with atomic_path(plot) as temporary:
                plot_trajectory(trajectory, temporary, name=_title(job.names["system"]))
    result = run_report(trajectory, job.names)
    if as_json:
        shell.print_json(result)
    else:
        _print_report(result, trajectory.system, seconds, out if fault is None else None, plot)
    if fault is not None:
        raise fault
    exit_after(trajectory)


def _title(name: str) -> str:
    """What stands over the picture of a run of this system; nothing where the run itself knows better."""
    return MODELS[name].title if name in MODELS else ""


def run_report(run: Run, names: Mapping[str, str]) -> dict[str, Any]:
    """Return status, final state, conservation and events of a run as one JSON object; null where there is nothing."""
    summary = run.summary()
    keys = ("step", "steps", "time", "status", "failed_at", "reason", "stopped_by", "interrupted", "backend")
    energy = ("initial", "final", "max_error", "powered", "balance", "work", "power")
    numbers = (summary.energy_initial, summary.energy_final, summary.energy_error, summary.receives_power)
    return {
        "system": names["system"],
        "method": names["method"],
        **{key: getattr(summary, key) for key in keys},
        "final": _final_state(run),
        "named": _named_values(run),
        "energy": dict(zip(energy, (*numbers, summary.energy_balance, summary.work, summary.power), strict=True)),
        **{name: {"max": getattr(summary, name)} for name in ("constraint", "holonomic", "group")},
        "events": [_event_report(found) for found in run.events.values()],
    }


def _final_state(run: Run) -> dict[str, Any]:
    names = ("configuration", "angles", "velocity", "increment", "momentum", "multipliers", "coordinates")
    if run.failed_at == -1:
        return dict.fromkeys(names)
    last, angles = run.last, run.angles[-1]
    increment = last.increment if run.integrator.has_increment else ()
    values = (last.g, angles, last.xi, increment, last.momentum, run.multipliers[-1])
    return dict(zip(names, (*map(to_json, values), run.system.group.describe(last.g, angles)), strict=True))


def _observe(system: Any, state: tuple[Any, Any, Any]) -> Any:
    return system.observe(*state)


def _named_values(run: Run) -> dict[str, dict[str, float]]:
    """The last coordinates, rates and multipliers by their names, those of the user or of a mechanism, with units."""
    system, last = run.system, run.last
    if run.failed_at == -1 or not system.coordinate_names or system.coordinate_names[0] == "q1":
        return {}
    values = iter(np.asarray(evaluate(_observe, system, (last.t, last.g, last.xi))).tolist())
    names = {"coordinates": system.coordinate_names, "rates": system.rate_names}
    found = {kind: {name: next(values) for name in each} for kind, each in names.items()}
    loads = run.multipliers[-1].tolist()
    return found | ({"multipliers": dict(zip(system.load_names, loads, strict=True))} if system.load_names else {})


def _event_report(found: Crossings) -> dict[str, Any]:
    """Return what was found of one event: lists with an entry for each crossing."""
    return {
        "name": found.name,
        "stop": found.stop,
        "count": len(found),
        "suspects": int(np.sum(found.suspects)),
        "time": np.asarray(found.t).tolist(),
        **{key: np.asarray(getattr(found, key)).tolist() for key in ("step", "theta", "direction")},
        "configuration": [to_json(jax.tree.map(lambda leaf: leaf[k], found.g)) for k in range(len(found))],
        "angles": [to_json(row) for row in found.record.angles],
        "velocity": [to_json(row) for row in found.xi],
    }


def run_with_progress(job: Job, *, states: bool, before: Path | None = None) -> Run:
    """Run a job with a progress bar and keep all its states or only the last; continue the run in the file `before`."""
    options = {key: value for key, value in job.run.items() if key in ("step", "save_every", "backend")} | job.until
    steps = job.run["steps"]
    if not states:  # only the last state is wanted: extremes are kept over all steps anyway; work needs every state
        seldom = max(1, steps // PROGRESS_RECORDS) if job.controls is None else 1
        options["save_every"] = save_interval(job.system, steps, seldom)
    with shell.progress(f"{job.names['system']}, {steps} steps") as bar:
        if before is not None:
            return resume_run(job, before, bar)
        options |= {"monitor": True, "progress": bar, "events": job.events, "controls": job.controls}
        return simulate(job.system, job.integrator, job.state, **options)


def exit_after(trajectory: Run) -> None:
    """Exit with 130 if the run was stopped, with 1 if it failed."""
    if trajectory.interrupted:
        print(f"dalembert: stopped after {trajectory.steps} steps; the finished steps are kept", file=sys.stderr)
        raise typer.Exit(130)
    if trajectory.status != "ok":
        raise typer.Exit(1)


def _print_report(
    result: dict[str, Any], system: MechanicalSystem, seconds: float, out: Path | None, plot: Path | None
) -> None:
    """Print what matters first: how it ended, energy, constraint, time; then the last state in six digits."""
    failed = f"failed after step {result['failed_at']}: {result['reason']}"
    ends = {"ok": "ok", "failed": failed, "interrupted": "interrupted: the finished steps are kept"}
    energy, maxima = result["energy"], {key: result[key]["max"] for key in ("constraint", "holonomic", "group")}
    rows = [("status", ends[result["status"]]), ("energy", _energy_text(energy))]
    rows.append(("constraint", f"{shell.format_number(maxima['constraint'])} at most"))
    if maxima["holonomic"] is not None:
        rows.append(("holonomic |phi|", f"{shell.format_number(maxima['holonomic'])} at most"))
    rows.append(("off the group", f"{shell.format_number(maxima['group'])} at most"))
    rows[2:] = [row for row in rows[2:] if not row[1].startswith("-")]
    steps = f"{result['steps']} steps of {result['step']:g}"
    rows.append(("time", f"t = {result['time']:.6g} after {steps}; {seconds:.2g} s elapsed ({result['backend']})"))
    if result["stopped_by"]:
        rows.append(("stopped by", result["stopped_by"]))
    rows += [(event["name"], _event_text(event)) for event in result["events"]]
    last = result["final"]
    parts, places = last["coordinates"], last["configuration"]
    if isinstance(parts, list):  # of a product: factors on R^n are their own coordinates
        parts = [place if part is None else part for part, place in zip(parts, places, strict=True)]
    shown = {"coordinates": parts or places} | {key: last[key] for key in ("velocity", "momentum", "multipliers")}
    if named := result["named"]:
        words = {name: f" {unit}".rstrip() for name, unit in system.units.items()}
        shown = {
            kind: {name: f"{shell.round_numbers(value)}{words[name]}" for name, value in named[kind].items()}
            for kind in named
        }
    rows += [(key, shell.round_numbers(value)) for key, value in shown.items() if value]
    rows += [(name, str(path)) for name, path in (("file", out), ("picture", plot)) if path is not None]
    shell.print_table(f"{shell.title_of(result['system'], system)} with {result['method']}", (), (), rows)


def _energy_text(energy: dict[str, Any]) -> str:
    """The energy error; where power enters, the change of the energy and the part of it that no work explains."""
    keys = ("max_error", "work", "power", "balance")
    change, work, power, balance = (shell.format_number(energy[key]) for key in keys)
    if energy["balance"] is not None:
        entered = f"work {work}, power up to {power}; E - E(0) - work: largest {balance}"
        return f"changes by up to {change}; {entered}"
    text = f"changes by up to {change}" if energy["powered"] else f"largest error {change}"
    return f"{text}, from {shell.format_number(energy['initial'], '.6g')}"


def _event_text(event: dict[str, Any], shown: int = 4) -> str:
    """How often an event was crossed, the first times, and whether there may have been more."""
    times = ", ".join(format(t, ".6g") for t in event["time"][:shown])
    more = ", ..." if event["count"] > shown else ""
    count, suspects = event["count"], event["suspects"]
    doubt = f"; {suspects} steps may hide two more crossings each: take a smaller step" if suspects else ""
    often = {0: "never", 1: "once"}.get(count, f"{count} times")
    return f"{often}{': t = ' if times else ''}{times}{more}{doubt}"


@shell.command("show")
def show_file(
    file: Annotated[Path, typer.Argument(help="A .nc or .zarr file of `dalembert run --out`, or a configuration.")],
    plot: shell.PlotOption = None,
    config: Annotated[bool, typer.Option("--config", help="Print the configuration that made it.")] = False,
    csv: Annotated[str | None, typer.Option(help="Print these columns over time as CSV: NAME or NAME,NAME.")] = None,
    system: Annotated[str | None, typer.Option(help="The FILE.py:FUNCTION that makes the system of the run.")] = None,
    force: shell.ForceOption = False,
    as_json: shell.JsonOption = False,
) -> None:
    """Show the contents of a data file: its origin, how the run ended, and its columns.

    For a configuration, describe the system and say whether its constraint is nonholonomic at the initial state. A
    data file contains no code: if --plot or a name in --csv needs a system that you wrote, give it with --system. It is
    called with the parameters in the file.
    """
    if file.suffix == ".toml":
        if plot is not None or config or csv is not None or system is not None:
            raise InvalidInput(
                f"{file} is a configuration; --plot, --config, --csv and --system show a data file: "
                f"dalembert run {file} --out run.nc"
            )
        return _show_configuration(file, as_json)
    data = open_dataset(file, unchecked=force)
    if "damage" in data.attrs:
        print(f"dalembert: {file} is damaged, its numbers may be wrong: {data.attrs['damage']}", file=sys.stderr)

    def read() -> Trajectory:
        make = None if system is None else load_function(*split_reference(system, Path(), "--system"))
        return load(file, system=make, unchecked=force)

    if plot is not None:
        shell.require_picture(plot)
        with atomic_path(plot) as temporary, shell.progress(f"drawing {plot}"):
            plot_trajectory(read(), temporary, name=_title(data.attrs.get("system", "")))
    if config:
        if "config" not in data.attrs:
            raise InvalidInput(f"{file} holds no configuration: it was not written by `dalembert run`")
        print(data.attrs["config"], end="")
        return
    if csv is not None:
        _print_csv(data, file, [name.strip() for name in csv.split(",")], read)
        return
    columns = {
        str(name): {
            "shape": list(column.shape),
            "dimensions": list(map(str, column.dims)),
            "unit": column.attrs.get("units"),
            "named": _named_parts(data, str(name)),
            "what": column.attrs.get("long_name"),
            "min": to_json(column.min()),
            "max": to_json(column.max()),
        }
        for name, column in data.variables.items()
        if column.dtype.kind in "iuf"
    }
    if as_json:
        attributes = {key: value.item() if hasattr(value, "item") else value for key, value in data.attrs.items()}
        shell.print_json({"file": str(file), "attributes": attributes, "columns": columns})
        return
    keys = ("system", "group", "method", "step", "status", "reason", "backend", "dalembert", "created")
    about = [(key, str(data.attrs[key])) for key in keys if data.attrs.get(key) not in (None, "")]
    shell.print_table(str(file), (), (), about)
    rows = []
    for name, entry in columns.items():
        numbers = " x ".join(map(str, entry["shape"])), *(shell.format_number(entry[end]) for end in ("min", "max"))
        unit = "each its own" if (entry["unit"] or "").startswith("of each") else entry["unit"] or ""
        rows.append((name, entry["what"] or "", "" if entry["named"] else unit, *numbers))
        for part, (own, least, largest) in entry["named"].items():
            rows.append(("", part, own, "", shell.format_number(least), shell.format_number(largest)))
    shell.print_table("", ("column", "what it is", "unit"), ("shape", "least", "largest"), rows)


def _show_configuration(file: Path, as_json: bool) -> None:
    """The system of a configuration, and whether its constraint is really nonholonomic at the start."""
    job = load_job(file)
    system = job.system
    result: dict[str, Any] = {
        **job.names,
        "group": str(system.group),
        "dimension": system.group.dim,
        "constraints": system.constraints,
        "holonomic": system.holonomic_constraints,
    }
    with job.locate_errors(), shell.progress(f"{job.names['system']}: brackets of its constraint"):
        try:
            found = nonholonomy(system, job.state.g, t=float(job.state.t))
        except InvalidInput as fault:  # not linear in the velocity: brackets say nothing of it
            result["nonholonomy"] = str(fault)
        else:
            result |= {"nonholonomy": str(found), "growth": list(found.growth), "integrable": to_json(found.covectors)}
    if as_json:
        shell.print_json({"file": str(file), **result})
        return
    for key, value in result.items():
        if value is not None:
            print(f"{key:12} {value}")


NAMED_COLUMNS = ("coordinate", "velocity", "control")
"""What `run[name]` reads too. Multipliers are those of the steps, and a load is the reaction at the state."""


def _named_parts(data: Any, name: str) -> dict[str, tuple[str, Any, Any]]:
    """The unit, the least and the largest value of what has a name of its own in a column: coordinates, loads, ..."""
    kinds = {"coordinate": "coordinate", "velocity": "velocity", "control": "input", "multiplier": "constraint"}
    last = data[name].dims[-1] if data[name].dims else ""
    if name not in kinds or last not in data.coords or data[last].dtype.kind not in "UOT":
        return {}
    values, unit = data[name].values.reshape(-1, data[name].shape[-1]), f"{kinds[name]}_unit"
    units = data[unit].values if unit in data.coords else [""] * values.shape[1]
    ends = zip(values.min(axis=0), values.max(axis=0), strict=True)
    return {
        str(part): (str(own), to_json(least), to_json(largest))
        for part, own, (least, largest) in zip(data[last].values, units, ends, strict=True)
    }


def _print_csv(data: Any, file: Path, names: list[str], read: Callable[[], Trajectory]) -> None:
    """Print the time, then the wanted columns: whole ones, components by the names that they have here, or run[name].

    In all of them _ may stand for a blank.
    """
    if data["time"].ndim != 1:
        raise InvalidInput(f"{file} holds an ensemble; --csv prints one run")
    over_time = [(str(name), column) for name, column in data.variables.items() if column.dims[:1] == data["time"].dims]
    columns = [name for name, column in over_time if column.dtype.kind in "iuf"]
    known: dict[str, dict[str, Any]] = {"time": {}}  # what a name stands for: columns by their heads
    named: dict[str, Any] = {}  # coordinates, velocities and controls by their own names
    for name in columns:
        values, last = data[name].values.reshape(len(data["time"]), -1), data[name].dims[-1]
        labels = data[last].values if last in data.coords and last != "time" else range(values.shape[1])
        heads = [name] if values.shape[1] == 1 else [f"{name}_{label}" for label in labels]
        own = dict(zip(heads, values.T, strict=True))
        known = {head: {head: column} for head, column in own.items()} | known | ({} if name == "time" else {name: own})
        if name in NAMED_COLUMNS:
            texts = {each: column for each, column in zip(labels, values.T, strict=True) if isinstance(each, str)}
            named = texts | named
    known = {name: {name: column} for name, column in named.items()} | known
    wanted, run = {"time": data["time"].values}, None
    for name in names:
        if (key := spell(name, known)) not in known:
            try:
                run = read() if run is None else run
                known[key] = {spell(name, (*run.system.rate_names, *run.system.load_names)): run[key]}
            except UnknownName:
                system = run.system if run is not None else None
                more = (*system.rate_names, *system.load_names) if system is not None else ()
                raise UnknownName(f"column of {file}", name, {*columns, *named, *more}) from None
            except InvalidInput as fault:  # a system of the user's own, which has to be given
                told = UnknownName(f"column of {file}", name, [*columns, *named])
                raise InvalidInput(f"{told} What is computed from them needs the system: {fault}") from fault
        wanted |= known[key]
    print(",".join(wanted))
    for row in zip(*wanted.values(), strict=True):
        print(",".join(format(entry, ".17g") for entry in row))


@shell.command("animate")
def animate(
    file: Annotated[Path, typer.Argument(help="A .nc or .zarr file of `dalembert run --out`, or a configuration.")],
    out: Annotated[Path | None, typer.Option(help="The .mp4 (needs ffmpeg) or .gif. Default: named like FILE.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="The length of the film.")] = 8.0,
    fps: Annotated[int, typer.Option(min=1, max=240, help="Frames per second, at most.")] = 20,
    settings: shell.SettingsOption = None,
    force: shell.ForceOption = False,
    as_json: shell.JsonOption = False,
) -> None:
    """Make a film of a run.

    It shows sleighs and vehicles with their blades and wheels, rolling disks and balls, turning bodies.
    """
    path = out or Path(file.stem + film.default_suffix())
    film.require_film(path)
    if file.suffix == ".toml":
        job = load_job(file, settings or ())
        with job.locate_errors():
            run = frames_of_run(run_with_progress(job, states=True), job)
    elif settings:
        raise InvalidInput("--set changes a configuration; a data file is shown as it is")
    else:
        run = frames_of_file(file, unchecked=force)
    with shell.progress(f"drawing {path}") as bar:
        frames = film.animate(run, path, seconds=seconds, frames_per_second=fps, progress=bar)
    if as_json:
        shell.print_json({"file": str(path), "frames": frames})
        return
    hint = "" if out or path.suffix == ".mp4" else " (a gif, since mp4 needs ffmpeg, which is not installed)"
    print(f"wrote {path}: {frames} frames{hint}")


INIT_HELP = "A system of `dalembert list systems`, or own."


@shell.command("init")
def init(
    name: Annotated[str, typer.Argument(help=INIT_HELP, autocompletion=lambda: [*MODELS, OWN_SYSTEM])],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: NAME.toml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: shell.JsonOption = False,
) -> None:
    """Write a commented configuration to start from; `own` writes one for your own system, with its Python file."""
    if name != OWN_SYSTEM and name not in MODELS:
        raise UnknownName("system", name, [*MODELS, OWN_SYSTEM])
    path = out or Path("mysystem.toml" if name == OWN_SYSTEM else f"{name}.toml")
    if path.suffix != ".toml":
        raise InvalidInput(f"--out is {path}; allowed: a file that ends in .toml")
    if not path.parent.is_dir():
        raise InvalidInput(f"--out is {path}, but the folder {path.parent} does not exist: create it first")
    if name == OWN_SYSTEM:
        texts = dict(zip((path, path.with_suffix(".py")), own_system_template(path.stem), strict=True))
    else:
        texts = {path: model_template(name, path.name)}
    then = f"; next: dalembert run {path}"
    _write_files({target: text.encode() for target, text in texts.items()}, force, as_json, then)


def _write_files(contents: Mapping[Path, bytes], force: bool, as_json: bool, then: str) -> None:
    """Write new files, and say so; those that are there are only replaced by `force`."""
    for target in contents:
        if target.exists() and not force:
            raise InvalidInput(f"{target} is there already: give another --out, or --force to replace it")
    for target, content in contents.items():
        with atomic_path(target) as temporary:
            temporary.write_bytes(content)
    if as_json:
        shell.print_json({"files": list(map(str, contents))})
        return
    print(f"wrote {', '.join(map(str, contents))}{then}")


LISTS = ("systems", "methods", "papers")
LIST_SYNONYMS = {"models": "systems", "integrators": "methods", "figures": "papers"}
LIST_HELP = "systems (or models), methods (or integrators), or papers (or figures)."
SYSTEM_GROUPS = {
    "bodies": "Rigid bodies that turn",
    "sleigh": "Sleighs, blades and upright disks",
    "rolling": "Disks and balls that roll",
    "particles": "Particles and pendulums on R^n",
    "vehicles": "Vehicles",
    "mechanisms": "Vehicles and machines made of bodies, joints and wheels",
}
"""The modules of `models` in words."""
LAST_GROUPS = ("To compare with", "Others")


@shell.command("list")
def list_names(
    what: Annotated[str, typer.Argument(help=LIST_HELP, autocompletion=lambda: [*LISTS])] = "systems",
    as_json: shell.JsonOption = False,
) -> None:
    """List the systems or methods that a configuration can use, with their parameters, or what `reproduce` makes.

    The list of methods has the order with the default options, the cost of a step, and when to use the method.
    """
    what = LIST_SYNONYMS.get(what, what)
    if what not in LISTS:
        raise UnknownName("list", what, LISTS)
    entries = {"systems": _systems, "methods": _methods, "papers": _exhibits}[what]()
    if as_json:
        shell.print_json({name: {k: v for k, v in entry.items() if k != "shown"} for name, entry in entries.items()})
        return
    groups: dict[str, dict[str, list[str]]] = {}
    for name, entry in entries.items():
        groups.setdefault(entry["group"], {})[name] = entry["shown"]
    order = [*SYSTEM_GROUPS.values(), *(group for group in groups if group not in LAST_GROUPS), *LAST_GROUPS]
    shell.print_entries({group: groups[group] for group in dict.fromkeys(order) if group in groups})


def _systems() -> dict[str, dict[str, Any]]:
    found = {}
    for model in MODELS.values():
        options = {key: "required" if key in model.required else value for key, value in model.parameters.items()}
        shown = [f"{model.title}. {model.summary}", _options_text(options).replace("Options", "Parameters")]
        group = SYSTEM_GROUPS.get(model.build.__module__.rsplit(".", 1)[-1], "Others")
        group = group if model.build.__module__.startswith("dalembert.") else "Others"
        found[model.name] = {"summary": model.summary, "parameters": options, "group": group, "shown": shown}
    return found


def _methods() -> dict[str, dict[str, Any]]:
    found = {}
    for method in METHODS.values():
        group, order, cost = method.traits
        use = f"Use it when {method.use_when}." if method.use_when else ""
        facts = {"order": order, "cost": cost, "use_when": method.use_when}
        head = f"Order: {order}. A step: {cost}." if order else ""
        shown = [head, method.words or method.summary, use]
        found[method.name] = {"summary": method.text, "parameters": method.options, **facts, "group": group}
        found[method.name]["shown"] = [*shown, _options_text(method.options)]
    return found


def _exhibits() -> dict[str, dict[str, Any]]:
    return {
        e.id: {"summary": e.title, "parameters": {"paper": e.paper.name}, "group": e.paper.name, "shown": [e.title]}
        for e in papers.FIGURES.values()
    }


def _options_text(options: Mapping[str, Any]) -> str:
    """Names with their defaults, or that they have to be given."""
    words = [f"{key} (required)" if value == "required" else f"{key} = {value}" for key, value in options.items()]
    return f"Options: {', '.join(words)}." if words else ""


EXAMPLE_HELP = "The example to write, or all. Without a name the examples are listed."
EXAMPLE_COMMANDS = {
    "plan": "dalembert plan {0}.toml",
    "fit": "dalembert fit {0}.toml {0}.csv",
    "sweep": "dalembert sweep {0}.toml --out {0}.zarr",
}
"""What one does with an example, by the first word of its name."""


class Example(NamedTuple):
    """A configuration or a program of the folder examples, the files beside it, and what one does with it."""

    text: str
    files: list[Path]
    command: str


def find_examples() -> dict[str, Example]:
    """The examples by name: they lie in an installed package, or beside its sources."""
    folder = PACKAGE_ROOT / "examples"
    folder = folder if folder.is_dir() else PACKAGE_ROOT.parents[1] / "examples"
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.*")):
        found.setdefault(path.stem, []).append(path)
    examples = {}
    for name, files in found.items():
        main = next((path for path in files if path.suffix == ".toml"), files[0])
        text = main.read_text(encoding="utf-8").splitlines()[0].strip('#" ')
        command = EXAMPLE_COMMANDS.get(name.split("-")[0], "dalembert run {0}.toml")
        command = command if main.suffix == ".toml" else "python {0}.py"
        examples[name] = Example(text, files, command.format(name))
    return examples


@shell.command("examples")
def examples(
    name: Annotated[
        str | None, typer.Argument(help=EXAMPLE_HELP, autocompletion=lambda: [*find_examples(), "all"])
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the files.")] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: shell.JsonOption = False,
) -> None:
    """List the examples, or write one of them into a folder, ready to run and to change."""
    known = find_examples()
    if name is None:
        if as_json:
            shell.print_json({key: {"summary": each.text, "command": each.command} for key, each in known.items()})
            return
        title = "Examples: `dalembert examples NAME` writes one, `dalembert examples all` all of them"
        shell.print_entries({title: {key: [each.text, each.command] for key, each in known.items()}})
        return
    if name != "all" and name not in known:
        raise UnknownName("example", name, [*known, "all"])
    chosen = known if name == "all" else {name: known[name]}
    files = [path for each in chosen.values() for path in each.files]
    place = "" if out == Path(".") else f" in {out}"
    then = f"; next: {known[name].command}{place}" if name != "all" else ""
    _write_files({shell.make_folder(out) / path.name: path.read_bytes() for path in files}, force, as_json, then)


NEEDED_PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "llvmlite", "matplotlib", "xarray", "h5netcdf", "h5py", "typer")
EXTRAS = {
    "zarr": (("zarr",), "Zarr files, and sweeps that write them"),
    "dask": (("distributed",), "sweeps on several machines"),
    "cuda12": (("cupy-cuda12x", "cupy-cuda13x", "cupy"), "NVIDIA GPUs (cuda12 or cuda13, as your driver needs)"),
    "urdf": (("yourdfpy",), "mechanisms from URDF files"),
    "ipopt": (("cyipopt",), "plans by IPOPT"),
}
"""What an extra of the package is for, and the packages of which one is enough."""


@shell.command("info")
def info(as_json: shell.JsonOption = False) -> None:
    """Show versions, back ends, GPUs and the cache on disk; what is missing, and how to install it."""
    folder = cache_folder()
    entries = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder else []
    optional = {extra: _find_installed(names) for extra, (names, _) in EXTRAS.items()}
    gpus = _find_gpus()
    found: dict[str, Any] = {
        "dalembert": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _find_installed((name,)) for name in NEEDED_PACKAGES},
        "extras": optional,
        "ffmpeg": shutil.which("ffmpeg"),
        "backends": {
            "llvm": f"{count_processors()} threads, vectors of {best_width()} doubles",
            "cuda": gpus or "no GPU found",
            "xla": ", ".join(sorted({device.platform for device in jax.devices()})),
        },
        "cache": None if folder is None else {"folder": str(folder), "entries": len(entries), "bytes": sum(entries)},
    }
    wanted = {extra: EXTRAS[extra][1] for extra, version in optional.items() if version is None}
    found["missing"] = {what: f"pip install 'dalembert[{extra}]'" for extra, what in wanted.items()}
    if optional.get("cuda12") and not gpus:
        remedy = "install NVIDIA's driver, and the extra of its version (cuda12 or cuda13)"
        found["missing"]["a GPU that CuPy can see"] = remedy
    if found["ffmpeg"] is None:
        found["missing"]["films in MP4"] = "install the program ffmpeg; without it films are GIFs"
    if folder is None:
        remedy = "unset DALEMBERT_CACHE=off, or give a folder that only you can write (mode 700)"
        found["missing"]["compiled code that is kept between processes"] = remedy
    if as_json:
        shell.print_json(found)
        return
    packages = ", ".join(f"{name} {version or 'MISSING'}" for name, version in found["packages"].items())
    size = "none" if folder is None else f"{folder}: {len(entries)} files, {sum(entries) / 1e6:.1f} MB"
    head = {"python": [f"{found['python']} on {found['system']}"], "packages": [packages], "cache": [size]}
    backends = {name: [", ".join(text) if isinstance(text, list) else text] for name, text in found["backends"].items()}
    there = {extra: [f"{version}: {EXTRAS[extra][1]}"] for extra, version in optional.items() if version}
    missing = {"": [f"{what}: {how}" for what, how in found["missing"].items()]} if found["missing"] else {}
    groups = {f"dalembert {__version__}": head, "Back ends": backends, "Extras found": there, "Not installed": missing}
    shell.print_entries({title: each for title, each in groups.items() if each})


def _find_installed(names: Sequence[str]) -> str | None:
    """The version of the first of these packages that is there."""
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def _find_gpus() -> list[str]:
    """The names of the GPUs that CuPy sees."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        return [cupy.cuda.runtime.getDeviceProperties(k)["name"].decode() for k in range(count)]
    except Exception:  # no package, no driver, or one of another version: whatever it is, there is no GPU to use
        return []


TIMED_STEPS = 100_000


class DemoScene(NamedTuple):
    """One system of the demonstration with the step both methods take."""

    name: str
    title: str
    system: MechanicalSystem
    state: State
    geometric: Integrator
    step: float
    steps: int


def demo_scenes() -> list[DemoScene]:
    """Suslov's body, Chaplygin's sleigh and a free rigid body."""
    disc = suslov([[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]])
    sleigh = chaplygin_sleigh(mass=1.0, inertia=1.0, a=0.3, b=0.0)
    body, reduced = rigid_body([0.6, 0.8, 1.0]), EulerPoincareSuslov()
    spin = body.state(momentum=[1.8, 0.4, -0.9])
    return [
        DemoScene("suslov", "Suslov body", disc, disc.state(momentum=[30, 20]), reduced, 0.01, 1000),
        DemoScene("sleigh", "Chaplygin sleigh", sleigh, sleigh.state(xi=[1.5, -3, 0]), reduced, 0.05, 160),
        DemoScene("rigid-body", "Free rigid body", body, spin, DiscreteMoserVeselov(), 0.2, 5000),
    ]


def run_demo_scene(scene: DemoScene) -> tuple[dict[str, Run], list[dict[str, Any]]]:
    """Run both methods on one scene, and measure the time that a step takes."""
    runs, rows = {}, []
    for integrator in (scene.geometric, RungeKutta()):
        run = simulate(scene.system, integrator, scene.state, step=scene.step, steps=scene.steps).check()
        seconds = seconds_per_step(scene.system, integrator, scene.state, scene.step, count=TIMED_STEPS) or 0.0
        summary = run.summary()
        row = {"system": scene.title, "method": summary.method, "step": scene.step, "steps": scene.steps}
        figures = {"energy": summary.energy_error, "constraint": summary.constraint, "group": summary.group}
        runs[integrator.name] = run
        rows.append(row | figures | {"nanoseconds": 1e9 * seconds})
    return runs, rows


@shell.command("demo")
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the figures.")] = Path("out"),
    as_json: shell.JsonOption = False,
) -> None:
    """Run three systems, each by a geometric method and by Runge-Kutta with the same step: a table and figures."""
    shell.make_folder(out)
    rows: list[dict[str, Any]] = []
    figures = []
    for scene in demo_scenes():
        with shell.progress(f"the {scene.title}", "compiling and running"):
            runs, measured = run_demo_scene(scene)
        rows += measured
        figures.append(out / f"{scene.name}.png")
        plot_comparison(runs, title=f"{scene.title}, step {scene.step}", path=figures[-1])
    if as_json:
        shell.print_json({"rows": rows, "figures": [str(path) for path in figures]})
        return
    lines = []
    for k, row in enumerate(rows):
        numbers = [shell.format_number(row[name], ".1e") for name in ("energy", "constraint", "group")]
        place = f"{row['steps']} steps of {row['step']:g}" if k % 2 else row["system"]  # two methods on each
        cost = row["nanoseconds"]  # below one: closed formulas, which need not take the steps between
        lines.append((place, row["method"], *numbers, f"{cost:.0f}" if cost >= 1.0 else f"{cost:.1g}"))
    columns = ("energy error", "off the constraint", "off the group", "ns per step")
    shell.print_table("Geometric methods and Runge-Kutta with the same step", ("system", "method"), columns, lines)
    print("figures: " + ", ".join(str(path) for path in figures))
    print(
        f"In {figures[1]} the two paths differ. On this short run Runge-Kutta, of order 4, is the more accurate one; "
        "on long runs of these systems it drifts, and the geometric methods do not."
    )


HOST_HELP = "The address to listen on. Other machines see the page only if this is not loopback."
EXPORT_HELP = "Write a page that plays offline, index.html in this folder, instead of serving one."


@shell.command("studio")
def studio(
    file: Annotated[
        Path | None,
        typer.Argument(help="A configuration, a .py that makes a system, a .urdf robot, or a .nc file to look at."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port. Default: 8314, or the next that is free.")] = None,
    host: Annotated[str, typer.Option(help=HOST_HELP)] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, open no browser.")] = False,
    max_steps: Annotated[int, typer.Option(help="The largest number of steps of a run on the page.")] = MAX_STEPS,
    max_seconds: Annotated[float, typer.Option(help="The largest processor time of a run on the page.")] = MAX_SECONDS,
    export: Annotated[Path | None, typer.Option(help=EXPORT_HELP)] = None,
    story: Annotated[Path | None, typer.Option(help="A .toml file with your own stories; they come first.")] = None,
) -> None:
    """Show motions in the browser: choose a system and a method, move a slider, and see what is conserved.

    Only this machine can open the page, unless --host says otherwise. Ctrl-C ends it.
    """
    given = _studio_input(file, max_steps, max_seconds)
    if story is not None:
        given = replace(given, stories=read_stories(story, given))
    if export is not None:
        path = export_page(present(start(given), given), export)
        print(f"wrote {path}: open it in a browser, it plays offline")
        return
    with open_studio(host, port, given) as server:
        print(f"dalembert studio at {server.url}  (Ctrl-C ends it)", flush=True)
        if not server.is_loopback:
            print("It listens beyond this machine: whoever reaches it can run simulations here.", flush=True)
        server.prepare()
        if not no_browser:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("\ndalembert studio: ended")


def _studio_input(file: Path | None, max_steps: int, max_seconds: float) -> StudioInput:
    """What the page starts from, checked before anything is served."""
    if max_steps < 1 or not 1 <= max_seconds <= 86_400:
        given = f"--max-steps is {max_steps} and --max-seconds {max_seconds}"
        raise InvalidInput(f"{given}; allowed: a whole number of at least 1, and 1 to 86400")
    limits: dict[str, Any] = {"max_steps": max_steps, "max_seconds": max_seconds}
    return StudioInput(**limits) if file is None else input_of_file(file, **limits)
