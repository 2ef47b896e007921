"""The commands on one run: run, show, animate, init, list, demo, and studio, a page in the browser."""

from __future__ import annotations

import json
import sys
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer

from .. import papers  # its exhibits load at first use
from ..analysis.comparison import seconds_per_step
from ..errors import InvalidInput, UnknownName, WriteFailure
from ..integrators import METHODS, DiscreteMoserVeselov, EulerPoincareSuslov, Integrator, RungeKutta
from ..io.atomic import atomic_path, output_lock
from ..io.config import OWN_SYSTEM, Job, load_job, model_template, own_system_template, read_config, resume_run
from ..io.dataset import load_run, open_dataset, require_writable, save_run
from ..mechanics import MechanicalSystem, State, nonholonomy
from ..models import MODELS, chaplygin_sleigh, rigid_body, suslov
from ..plotting.runs import plot_comparison, plot_trajectory
from ..simulation import Crossings, Run, save_interval, simulate, to_json
from ..studio import export as export_page
from ..studio import film, open_studio
from ..studio.catalogue import start
from ..studio.presentation import show as present
from ..studio.requests import MAX_SECONDS, MAX_STEPS, StudioInput, frames_of_file, frames_of_run
from . import shell

PROGRESS_RECORDS = 256
"""Records of a run of which only the last state is wanted: enough for a bar, few enough to cost nothing."""


@shell.command("run")
def run(
    config: shell.ConfigArgument,
    as_json: shell.JsonOption = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the saved states to this file: .nc (NetCDF) or .zarr.")
    ] = None,
    plot: shell.PlotOption = None,
    settings: shell.SettingsOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, bit for bit.")] = False,
    reaction: Annotated[bool, typer.Option("--reaction", help="Write the reaction forces A^T l too.")] = False,
) -> None:
    """Integrate what a configuration file describes.

    Ctrl-C keeps what is done: with --out it is saved, and --resume goes on with it. Exit codes: 0 done, 1 the run
    failed numerically or could not be written, 2 bad input, 130 stopped.
    """
    job = load_job(config, settings or ())
    if (resume or reaction) and out is None:
        raise InvalidInput(f"--{'resume' if resume else 'reaction'} needs --out: the file of the run")
    if out is not None:
        require_writable(out)
    if plot is not None:
        shell.require_picture(plot)
    with output_lock(out) if out is not None else nullcontext(), job.locate_errors():
        before = out if resume and out is not None and out.exists() else None
        trajectory = integrate(job, states=bool(out or plot), before=before)
        fault = None
        if out is not None:
            try:
                save_run(trajectory, out, {"config": job.text, "system": job.names["system"]}, reaction=reaction)
            except WriteFailure as failure:  # what was computed is still told
                fault = failure
        if plot is not None:
            with atomic_path(plot) as temporary:
                plot_trajectory(trajectory, temporary)
    result = run_report(trajectory, job.names)
    if as_json:
        shell.print_json(result)
    else:
        _print_report(result, out if fault is None else None, plot)
    if fault is not None:
        raise fault
    finish(trajectory)


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


def integrate(job: Job, *, states: bool, before: Path | None = None) -> Run:
    """Run a job with a progress bar and keep all its states or only the last; continue the run in the file `before`."""
    options = {key: value for key, value in job.run.items() if key in ("step", "save_every", "backend")} | job.until
    steps = job.run["steps"]
    if not states:  # only the last state is wanted: extremes are kept over all steps anyway; work needs every state
        options["save_every"] = save_interval(job.system, steps, max(1, steps // PROGRESS_RECORDS))
    with shell.progress(f"{job.names['system']}, {steps} steps") as bar:
        if before is not None:
            return resume_run(job, before, bar)
        return simulate(job.system, job.integrator, job.state, monitor=True, progress=bar, events=job.events, **options)


def finish(trajectory: Run) -> None:
    """Exit with 130 if the run was stopped, with 1 if it failed."""
    if trajectory.interrupted:
        print(f"dalembert: stopped after {trajectory.steps} steps; what was done is kept", file=sys.stderr)
        raise typer.Exit(130)
    if trajectory.status != "ok":
        raise typer.Exit(1)


def _print_report(result: dict[str, Any], out: Path | None, plot: Path | None) -> None:
    failed = f"failed after step {result['failed_at']}: {result['reason']}"
    rows = [("status", "ok" if result["status"] == "ok" else failed)]
    if result["stopped_by"]:
        rows.append(("stopped by", result["stopped_by"]))
    rows.append(("steps, step, time", f"{result['steps']}, {result['step']:g}, {result['time']:.12g}"))
    rows += [(key, json.dumps(value)) for key, value in result["final"].items() if value is not None]
    energy = result["energy"]
    rows.append(("energy", f"{shell.format_number(energy['initial'], '.12g')}, {_energy_text(energy)}"))
    maxima = [shell.format_number(result[name]["max"]) for name in ("constraint", "group")]
    rows.append(("constraint, group", ", ".join(maxima)))
    if result["holonomic"]["max"] is not None:
        rows.append(("holonomic, |phi|", shell.format_number(result["holonomic"]["max"])))
    rows += [(event["name"], _event_text(event)) for event in result["events"]]
    rows += [(name, str(path)) for name, path in (("file", out), ("picture", plot)) if path is not None]
    shell.print_table(f"{result['system']} with {result['method']}", (), (), rows)


def _energy_text(energy: dict[str, Any]) -> str:
    """The energy error; where power enters, the change of the energy and the part of it that no work explains."""
    keys = ("max_error", "work", "power", "balance")
    change, work, power, balance = (shell.format_number(energy[key]) for key in keys)
    if energy["balance"] is not None:
        entered = f"work {work}, power up to {power}; E - E(0) - work: largest {balance}"
        return f"changes by up to {change}; {entered}"
    return f"changes by up to {change}" if energy["powered"] else f"largest error {change}"


def _event_text(event: dict[str, Any], shown: int = 4) -> str:
    """How often an event was crossed, the first times, and whether there may have been more."""
    times = ", ".join(format(t, ".12g") for t in event["time"][:shown])
    more = ", ..." if event["count"] > shown else ""
    count, suspects = event["count"], event["suspects"]
    doubt = f"; {suspects} steps may hide two more crossings each: take a smaller step" if suspects else ""
    often = {0: "never", 1: "once"}.get(count, f"{count} times")
    return f"{often}{': t = ' if times else ''}{times}{more}{doubt}"


@shell.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A .nc or .zarr file of `dalembert run --out`, or a configuration.")],
    plot: shell.PlotOption = None,
    config: Annotated[bool, typer.Option("--config", help="Print the configuration that made it.")] = False,
    csv: Annotated[str | None, typer.Option(help="Print these columns (with commas between) over time as CSV.")] = None,
    force: shell.ForceOption = False,
    as_json: shell.JsonOption = False,
) -> None:
    """Show what a data file holds: where it came from, how the run went, and its columns.

    Of a configuration: its system, and whether its constraint is really nonholonomic at the start.
    """
    if file.suffix == ".toml":
        if plot is not None or config or csv is not None:
            raise InvalidInput(
                f"{file} is a configuration; --plot, --config and --csv show a data file: "
                f"dalembert run {file} --out run.nc"
            )
        return _show_configuration(file, as_json)
    data = open_dataset(file, unchecked=force)
    if "damage" in data.attrs:
        print(f"dalembert: {file} is damaged, its numbers may be wrong: {data.attrs['damage']}", file=sys.stderr)
    if plot is not None:
        shell.require_picture(plot)
        with atomic_path(plot) as temporary, shell.progress(f"drawing {plot}"):
            plot_trajectory(load_run(file, unchecked=force), temporary)
    if config:
        if "config" not in data.attrs:
            raise InvalidInput(f"{file} holds no configuration: it was not written by `dalembert run`")
        print(data.attrs["config"], end="")
        return
    if csv is not None:
        _print_csv(data, file, [name.strip() for name in csv.split(",")])
        return
    columns = {
        str(name): {
            "shape": list(column.shape),
            "dimensions": list(map(str, column.dims)),
            "unit": column.attrs.get("units"),
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
    for key in ("system", "group", "method", "step", "status", "reason", "backend", "dalembert", "created"):
        if data.attrs.get(key) not in (None, ""):
            print(f"{key:10} {data.attrs[key]}")
    rows = []
    for name, entry in columns.items():
        numbers = " x ".join(map(str, entry["shape"])), *(shell.format_number(entry[end]) for end in ("min", "max"))
        rows.append((name, entry["what"] or "", entry["unit"] or "", *numbers))
    shell.print_table(str(file), ("column", "what it is", "unit"), ("shape", "least", "largest"), rows)


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


def _print_csv(data: Any, file: Path, names: list[str]) -> None:
    """Print the time, then the components of the wanted columns."""
    columns = [str(name) for name, column in data.variables.items() if column.dtype.kind in "iuf"]
    if data["time"].ndim != 1:
        raise InvalidInput(f"{file} holds an ensemble; --csv prints one run")
    parts, heads = [data["time"].values[:, None]], ["time"]
    for name in names:
        if name not in columns:
            raise UnknownName(f"column of {file}", name, columns)
        values = data[name].values.reshape(len(data["time"]), -1)
        labels = data["component"].values if "component" in data[name].dims else range(values.shape[1])
        heads += [name] if values.shape[1] == 1 else [f"{name}_{label}" for label in labels]
        parts.append(values)
    print(",".join(heads))
    for row in np.concatenate(parts, axis=1):
        print(",".join(format(entry, ".17g") for entry in row))


@shell.command("animate")
def animate(
    file: Annotated[Path, typer.Argument(help="A .nc or .zarr file of `dalembert run --out`, or a configuration.")],
    out: Annotated[Path | None, typer.Option(help="The .mp4 (needs ffmpeg) or .gif. Default: named like FILE.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long the moving picture takes.")] = 8.0,
    fps: Annotated[int, typer.Option(min=1, max=240, help="Frames a second, at most.")] = 20,
    settings: shell.SettingsOption = None,
    force: shell.ForceOption = False,
    as_json: shell.JsonOption = False,
) -> None:
    """Draw a moving picture of a run.

    It shows sleighs and vehicles with their blades and wheels, rolling disks and balls, turning bodies.
    """
    path = out or Path(file.stem + film.default_suffix())
    film.require_film(path)
    if file.suffix == ".toml":
        job = load_job(file, settings or ())
        with job.locate_errors():
            run = frames_of_run(integrate(job, states=True), job)
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
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
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
    for target in texts:
        if target.exists() and not force:
            raise InvalidInput(f"{target} is there already: give another --out, or --force to replace it")
    for target, text in texts.items():
        with atomic_path(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if as_json:
        shell.print_json({"files": [str(target) for target in texts]})
        return
    print(f"wrote {' and '.join(map(str, texts))}; next: dalembert run {path}")


LISTS = ("systems", "methods", "papers")
LIST_SYNONYMS = {"models": "systems", "integrators": "methods", "figures": "papers"}
LIST_HELP = "systems (or models), methods (or integrators), or papers (or figures)."


@shell.command("list")
def list_names(
    what: Annotated[str, typer.Argument(help=LIST_HELP, autocompletion=lambda: [*LISTS])] = "systems",
    as_json: shell.JsonOption = False,
) -> None:
    """List the systems or methods that a configuration can name, with their parameters, or what `reproduce` makes."""
    what = LIST_SYNONYMS.get(what, what)
    entries: dict[str, tuple[str, dict[str, Any]]]
    if what == "systems":
        entries = {
            m.name: (m.summary, {k: "required" if k in m.required else v for k, v in m.parameters.items()})
            for m in MODELS.values()
        }
    elif what == "methods":
        entries = {m.name: (m.text, m.options) for m in METHODS.values()}
    elif what == "papers":
        entries = {e.id: (e.title, {"paper": e.paper.name}) for e in papers.FIGURES.values()}
    else:
        raise UnknownName("list", what, LISTS)
    if as_json:
        shell.print_json({name: {"summary": text, "parameters": options} for name, (text, options) in entries.items()})
        return
    columns = ("name", "what it is", "parameters" if what == "systems" else "options")
    rows = [(name, text, "\n".join(f"{k} = {v}" for k, v in o.items())) for name, (text, o) in entries.items()]
    shell.print_table(what, columns, (), rows, show_lines=True)


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
    """Run three systems, each with a geometric method beside Runge-Kutta at the same step: a table, and figures."""
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
    columns = ("step", "steps", "energy error", "constraint residual", "distance from group", "ns per step")
    lines = []
    for row in rows:
        numbers = [shell.format_number(row[name]) for name in ("energy", "constraint", "group", "nanoseconds")]
        lines.append((row["system"], row["method"], f"{row['step']:g}", str(row["steps"]), *numbers))
    shell.print_table("Geometric methods beside classical Runge-Kutta, same step", ("system", "method"), columns, lines)
    print("figures: " + ", ".join(str(path) for path in figures))


HOST_HELP = "The address to listen on. Other machines see the page only if this is not loopback."
EXPORT_HELP = "Serve nothing: write this folder's index.html, a page that plays offline."


@shell.command("studio")
def studio(
    file: Annotated[
        Path | None, typer.Argument(help="A configuration to start from, or a .nc file to look at.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port. Default: 8314, or the next that is free.")] = None,
    host: Annotated[str, typer.Option(help=HOST_HELP)] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
    max_steps: Annotated[int, typer.Option(help="The most steps that a run on the page may have.")] = MAX_STEPS,
    max_seconds: Annotated[
        float, typer.Option(help="The most processor time that the page may ask for.")
    ] = MAX_SECONDS,
    export: Annotated[Path | None, typer.Option(help=EXPORT_HELP)] = None,
) -> None:
    """See the motion in the browser: pick a system and a method, move a slider, watch what is kept.

    The page is served on this machine alone and runs no code but dalembert's. Ctrl-C ends it.
    """
    given = _studio_input(file, max_steps, max_seconds)
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
    if file is None:
        return StudioInput(**limits)
    if file.suffix == ".toml":
        load_job(file)
        return StudioInput(read_config(file), file.parent, **limits)
    if file.suffix in (".nc", ".zarr"):
        frames_of_file(file, 2)
        return StudioInput(None, file.parent, file, **limits)
    raise InvalidInput(f"{file} is neither a configuration (.toml) nor a data file (.nc, .zarr)")
