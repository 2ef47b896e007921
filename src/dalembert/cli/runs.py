"""`dalembert run`.

`dalembert show`.

`dalembert animate`.

`dalembert init`.

`dalembert list`.

The first success: three systems, each with a geometric method beside Runge-Kutta at the same step.

`dalembert demo`.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..analysis.comparison import seconds_per_step
from ..analysis.summary import report, to_json
from ..errors import InvalidInput, UnknownName, WriteFailure
from ..integrators import METHODS, DiscreteMoserVeselov, EulerPoincareSuslov, Integrator, RungeKutta
from ..io.atomic import atomic_path, output_lock
from ..io.config import OWN_SYSTEM, Job, model_template, load_job, own_system_template, resume_run
from ..io.dataset import load_run, open_dataset, require_writable, save_run
from ..mechanics import MechanicalSystem, State, nonholonomy
from ..models import MODELS, chaplygin_sleigh, rigid_body, suslov
from ..papers.exhibits import FIGURES
from ..plotting import scenes as movies
from ..plotting.runs import plot_comparison, plot_trajectory
from ..simulation import Run, save_interval, simulate
from .app import (
    ConfigArgument,
    JsonOption,
    PlotOption,
    SettingsOption,
    app,
    console,
    examples,
    make_folder,
    format_number,
    print_json,
    print_table,
    progress,
    require_picture,
    print_status,
)

PROGRESS_RECORDS = 256
"""Into how many records a run is cut whose states nobody wants: enough for a bar, few enough to cost nothing."""


@app.command(
    epilog=examples(
        "dalembert run examples/suslov.toml",
        "dalembert run examples/suslov.toml --set run.step=0.01 --set method.retraction=exponential --json",
        "dalembert run examples/sleigh.toml --out sleigh.nc --plot sleigh.png",
        "dalembert run examples/sleigh.toml --out sleigh.nc --set run.steps=500 --resume",
    )
)
def run(
    config: ConfigArgument,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the saved states to this file: .nc (NetCDF) or .zarr.")
    ] = None,
    plot: PlotOption = None,
    settings: SettingsOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, bit for bit.")] = False,
    reaction: Annotated[bool, typer.Option("--reaction", help="Write the reaction forces A^T l too.")] = False,
) -> None:
    """Integrate what a configuration file describes.

    Ctrl-C keeps what is done: with --out it is saved, and --resume goes on with it. Exit codes: 0 done, 1 the run failed
    numerically or could not be written, 2 bad input, 130 stopped.
    """
    job = load_job(config, settings or ())
    if (resume or reaction) and out is None:
        raise InvalidInput(f"--{'resume' if resume else 'reaction'} needs --out: the file of the run")
    if out is not None:
        require_writable(out)
    if plot is not None:
        require_picture(plot)
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
    result = report(trajectory, job.names)
    if as_json:
        print_json(result)
    else:
        _print_report(result, out if fault is None else None, plot)
    if fault is not None:
        raise fault
    finish(trajectory)


def integrate(job: Job, *, states: bool, before: Path | None = None) -> Run:
    """The run of a job with a progress bar, all its states or only the last; going on from the file `before`."""
    options = {key: value for key, value in job.run.items() if key in ("step", "steps", "save_every", "backend")}
    if (
        not states
    ):  # nothing but the last state is wanted: extremes are kept over all steps anyway; work needs every state
        options["save_every"] = save_interval(job.system, options["steps"], max(1, options["steps"] // PROGRESS_RECORDS))
    with progress(f"{job.names['system']}, {options['steps']} steps") as bar:
        if before is not None:
            return resume_run(job, before, bar)
        return simulate(job.system, job.integrator, job.state, monitor=True, progress=bar, events=job.events, **options)


def finish(trajectory: Run) -> None:
    """The exit code of a run: 130 if it was stopped, 1 if it failed."""
    if trajectory.interrupted:
        print(f"dalembert: stopped after {trajectory.steps} steps; what was done is kept", file=sys.stderr)
        raise typer.Exit(130)
    if trajectory.status != "ok":
        raise typer.Exit(1)


def _print_report(result: dict[str, Any], out: Path | None, plot: Path | None) -> None:
    from rich.table import Table

    table = Table(show_header=False, title=f"{result['system']} with {result['method']}", title_justify="left")
    table.add_row(
        "status",
        result["status"]
        if result["status"] == "ok"
        else f"failed after step {result['failed_at']}: {result['reason']}",
    )
    if result["stopped_by"]:
        table.add_row("stopped by", result["stopped_by"])
    table.add_row("steps, step, time", f"{result['steps']}, {result['step']:g}, {result['time']:.12g}")
    for key, value in result["final"].items():
        if value is not None:
            table.add_row(key, json.dumps(value))
    energy = result["energy"]
    table.add_row("energy", f"{format_number(energy['initial'], '.12g')}, {_energy_kept(energy)}")
    table.add_row("constraint, group", f"{format_number(result['constraint']['max'])}, {format_number(result['group']['max'])}")
    if result["holonomic"]["max"] is not None:
        table.add_row("holonomic, |phi|", format_number(result["holonomic"]["max"]))
    for event in result["events"]:
        table.add_row(event["name"], _crossed(event))
    for name, path in (("file", out), ("picture", plot)):
        if path is not None:
            table.add_row(name, str(path))
    console().print(table)


def _energy_kept(energy: dict[str, Any]) -> str:
    """The energy error; where power enters, how far the energy went and what of that no work explains."""
    change = format_number(energy["max_error"])
    if energy["balance"] is not None:
        return f"changes by up to {change}; E - E(0) - work: largest {format_number(energy['balance'])}"
    return f"changes by up to {change}" if energy["powered"] else f"largest error {change}"


def _crossed(event: dict[str, Any], shown: int = 4) -> str:
    """How often an event was crossed, the first times, and whether there may have been more."""
    times = ", ".join(format(t, ".12g") for t in event["time"][:shown])
    more = ", ..." if event["count"] > shown else ""
    doubt = (
        f"; {event['suspects']} steps may hide two more crossings each: take a smaller step"
        if event["suspects"]
        else ""
    )
    often = {0: "never", 1: "once"}.get(event["count"], f"{event['count']} times")
    return f"{often}{': t = ' if times else ''}{times}{more}{doubt}"


@app.command(
    epilog=examples(
        "dalembert show sleigh.nc",
        "dalembert show sleigh.nc --plot sleigh.png",
        "dalembert show sleigh.nc --config > again.toml",
        "dalembert show sleigh.nc --csv position > path.csv",
        "dalembert show mysystem.toml   (what it describes: is the constraint really nonholonomic?)",
    )
)
def show(
    file: Annotated[
        Path, typer.Argument(help="A .nc or .zarr file that `dalembert run --out` wrote, or a configuration.")
    ],
    plot: PlotOption = None,
    config: Annotated[
        bool, typer.Option("--config", help="Print the configuration that made it, to run it again.")
    ] = False,
    csv: Annotated[str | None, typer.Option(help="Print these columns (with commas between) over time as CSV.")] = None,
    as_json: JsonOption = False,
) -> None:
    """What a data file holds: where it came from, how the run went, and its columns. Of a configuration: its system and constraint."""
    if file.suffix == ".toml":
        if plot is not None or config or csv is not None:
            raise InvalidInput(
                f"{file} is a configuration; --plot, --config and --csv show a data file: dalembert run {file} --out run.nc"
            )
        return _show_configuration(file, as_json)
    data = open_dataset(file)
    if plot is not None:
        require_picture(plot)
        with atomic_path(plot) as temporary:
            plot_trajectory(load_run(file), temporary)
    if config:
        if "config" not in data.attrs:
            raise InvalidInput(f"{file} holds no configuration: it was not written by `dalembert run`")
        print(data.attrs["config"], end="")
    elif csv is not None:
        _print_csv(data, file, [name.strip() for name in csv.split(",")])
    elif as_json:
        print_json({"file": str(file), "attributes": _attributes(data), "columns": _columns(data)})
    else:
        _print_summary(file, data)


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
    with job.locate_errors():
        try:
            found = nonholonomy(system, job.state.g, t=float(job.state.t))
        except InvalidInput as fault:  # not linear in the velocity: brackets say nothing of it
            result["nonholonomy"] = str(fault)
        else:
            result |= {"nonholonomy": str(found), "growth": list(found.growth), "integrable": to_json(found.covectors)}
    if as_json:
        print_json({"file": str(file), **result})
        return
    for key, value in result.items():
        if value is not None:
            print(f"{key:12} {value}")


def _attributes(data: Any) -> dict[str, Any]:
    return {key: value.item() if hasattr(value, "item") else value for key, value in data.attrs.items()}


def _columns(data: Any) -> dict[str, dict[str, Any]]:
    """Shape, unit and range of every column."""
    found = {}
    for name, column in data.variables.items():
        if column.dtype.kind not in "iuf":
            continue
        found[str(name)] = {
            "shape": list(column.shape),
            "dimensions": list(map(str, column.dims)),
            "unit": column.attrs.get("units"),
            "what": column.attrs.get("long_name"),
            "min": to_json(column.min()),
            "max": to_json(column.max()),
        }
    return found


def _print_summary(file: Path, data: Any) -> None:
    shown = ("system", "group", "method", "step", "status", "reason", "backend", "dalembert", "created")
    for key in shown:
        if data.attrs.get(key) not in (None, ""):
            print(f"{key:10} {data.attrs[key]}")
    lines = [
        (
            name,
            entry["what"] or "",
            entry["unit"] or "",
            " x ".join(map(str, entry["shape"])),
            format_number(entry["min"]),
            format_number(entry["max"]),
        )
        for name, entry in _columns(data).items()
    ]
    print_table(str(file), ("column", "what it is", "unit"), ("shape", "least", "largest"), lines)


def _print_csv(data: Any, file: Path, names: list[str]) -> None:
    """time, then the components of the wanted columns."""
    import numpy as np

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


@app.command(
    epilog=examples(
        "dalembert animate sleigh.nc",
        "dalembert animate sleigh.nc --out sleigh.gif --seconds 5",
        "dalembert animate examples/sleigh.toml --set run.steps=400   (runs it first)",
    )
)
def animate(
    file: Annotated[
        Path, typer.Argument(help="A .nc or .zarr file of `dalembert run --out`, or a configuration .toml.")
    ],
    out: Annotated[Path | None, typer.Option(help="The .mp4 (needs ffmpeg) or .gif. Default: named like FILE.")] = None,
    seconds: Annotated[float, typer.Option(help="How long the moving picture takes.")] = 8.0,
    fps: Annotated[int, typer.Option(help="Frames a second, at most.")] = 20,
    settings: SettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    """A moving picture of a run: sleighs and vehicles with their blades and wheels, rolling disks and balls, turning bodies."""
    path = out or Path(file.with_suffix(movies.default_suffix()).name)
    movies.require_movie(path)
    if file.suffix == ".toml":
        job = load_job(file, settings or ())
        with job.locate_errors():
            motion = movies.motion_of_run(integrate(job, states=True), job)
    elif settings:
        raise InvalidInput("--set changes a configuration; a data file is shown as it is")
    else:
        motion = movies.motion_of_file(file)
    with progress(f"drawing {path}") as bar:
        frames = movies.animate(motion, path, seconds=seconds, frames_per_second=fps, progress=bar)
    if as_json:
        print_json({"file": str(path), "frames": frames})
        return
    hint = "" if out or path.suffix == ".mp4" else " (a gif, since mp4 needs ffmpeg, which is not installed)"
    print(f"wrote {path}: {frames} frames{hint}")


def _complete() -> list[str]:
    return [*MODELS, "own"]


@app.command(
    epilog=examples(
        "dalembert init suslov",
        "dalembert init chaplygin-sleigh --out sleigh.toml",
        "dalembert init own --out mysystem.toml   (writes mysystem.py too)",
    )
)
def init(
    name: Annotated[
        str, typer.Argument(help="A system of `dalembert list systems`, or own.", autocompletion=_complete)
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: NAME.toml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented configuration to start from; `own` writes one for a system of your own, with its Python file."""
    if name != OWN_SYSTEM and name not in MODELS:
        raise UnknownName("system", name, [*MODELS, OWN_SYSTEM])
    path = out or Path("mysystem.toml" if name == OWN_SYSTEM else f"{name}.toml")
    if path.suffix != ".toml":
        raise InvalidInput(f"--out is {path}; allowed: a file that ends in .toml")
    if not path.parent.is_dir():
        raise InvalidInput(f"--out is {path}, but the folder {path.parent} does not exist: create it first")
    texts = {path: ""}
    if name == OWN_SYSTEM:
        texts[path], texts[path.with_suffix(".py")] = own_system_template(path.stem)
    else:
        texts[path] = model_template(name, path.name)
    for target in texts:
        if target.exists() and not force:
            raise InvalidInput(f"{target} is there already: give another --out, or --force to replace it")
    for target, text in texts.items():
        with atomic_path(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if as_json:
        print_json({"files": [str(target) for target in texts]})
        return
    print(f"wrote {' and '.join(map(str, texts))}; next: dalembert run {path}")


LISTS = ("systems", "methods", "papers")
LIST_SYNONYMS = {"models": "systems", "integrators": "methods", "figures": "papers"}
"""Other words that people use for them."""


@app.command(
    name="list", epilog=examples("dalembert list systems", "dalembert list methods --json", "dalembert list papers")
)
def list_names(
    what: Annotated[
        str,
        typer.Argument(
            help="systems (or models), methods (or integrators), or papers (or figures).",
            autocompletion=lambda: [*LISTS],
        ),
    ] = "systems",
    as_json: JsonOption = False,
) -> None:
    """The systems or methods that a configuration can name, with their parameters, or what `reproduce` can make."""
    what = LIST_SYNONYMS.get(what, what)
    if what == "systems":
        entries = {
            m.name: (m.summary, {k: "required" if k in m.example and _empty(v) else v for k, v in m.parameters.items()})
            for m in MODELS.values()
        }
    elif what == "methods":
        entries = {m.name: (m.summary, m.options) for m in METHODS.values()}
    elif what == "papers":
        entries = {e.id: (e.title, {"paper": e.paper.name}) for e in FIGURES.values()}
    else:
        raise UnknownName("list", what, LISTS)
    if as_json:
        print_json(
            {name: {"summary": text, "parameters": _jsonable(options)} for name, (text, options) in entries.items()}
        )
        return
    _print_entries(what, entries)


def _empty(value: Any) -> bool:
    import inspect

    return value is inspect.Parameter.empty


def _jsonable(options: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value if isinstance(value, str | int | float | list | tuple | None) else str(value)
        for key, value in options.items()
    }


def _print_entries(what: str, entries: dict[str, tuple[str, dict[str, Any]]]) -> None:
    from rich.table import Table

    table = Table(title=f"{what}", title_justify="left", show_lines=True)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_column("parameters" if what == "systems" else "options")
    for name, (summary, options) in entries.items():
        table.add_row(name, summary, "\n".join(f"{key} = {value}" for key, value in options.items()))
    console().print(table)


TIMED_STEPS = 100_000


@dataclass(frozen=True)
class DemoScene:
    """One system of the demonstration with the step both methods take."""

    name: str
    title: str
    system: MechanicalSystem
    state: State
    geometric: Integrator
    step: float
    steps: int


@dataclass(frozen=True)
class DemoRow:
    """One line of the table."""

    system: str
    method: str
    step: float
    steps: int
    energy: float
    constraint: float | None
    group: float
    nanoseconds: float


def demo_scenes() -> list[DemoScene]:
    """Suslov's body, Chaplygin's sleigh and a free rigid body."""
    disc = suslov([[3, 0, 1], [0, 4, 0.5], [1, 0.5, 5]])
    sleigh = chaplygin_sleigh(mass=1.0, inertia=1.0, a=0.3, b=0.0)
    body = rigid_body([0.6, 0.8, 1.0])
    return [
        DemoScene("suslov", "Suslov body", disc, disc.state(momentum=[30.0, 20.0]), EulerPoincareSuslov(), 0.01, 1000),
        DemoScene(
            "sleigh", "Chaplygin sleigh", sleigh, sleigh.state(xi=[1.5, -3.0, 0.0]), EulerPoincareSuslov(), 0.05, 160
        ),
        DemoScene(
            "rigid-body",
            "Free rigid body",
            body,
            body.state(momentum=[1.8, 0.4, -0.9]),
            DiscreteMoserVeselov(),
            0.2,
            5000,
        ),
    ]


def run_demo_scene(scene: DemoScene) -> dict[str, tuple[Run, DemoRow]]:
    """Both methods on one scene, with the time that a step takes."""
    results = {}
    for integrator in (scene.geometric, RungeKutta()):
        run = simulate(scene.system, integrator, scene.state, step=scene.step, steps=scene.steps).check()
        seconds = seconds_per_step(scene.system, integrator, scene.state, scene.step, count=TIMED_STEPS)
        results[integrator.name] = run, _row(scene, run, seconds or 0.0)
    return results


def _row(scene: DemoScene, run: Run, seconds: float) -> DemoRow:
    def peak(values) -> float:
        return float(np.abs(np.asarray(values)).max())

    constraint = peak(run.constraint_residual()) if run.multipliers.shape[-1] else None
    return DemoRow(
        scene.title,
        run.integrator.name,
        scene.step,
        scene.steps,
        peak(run.energy_error()),
        constraint,
        peak(run.group_distance()),
        1e9 * seconds,
    )


def draw_demo_scene(scene: DemoScene, results: dict[str, tuple[Run, DemoRow]], folder: Path) -> Path:
    """The figure of a scene."""
    path = folder / f"{scene.name}.png"
    plot_comparison(
        {name: run for name, (run, _) in results.items()}, title=f"{scene.title}, step {scene.step}", path=path
    )
    return path


@app.command(epilog=examples("dalembert demo --out out"))
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the figures.")] = Path("out"),
    as_json: JsonOption = False,
) -> None:
    """Three systems, each with a geometric method beside Runge-Kutta at the same step: a table, and figures."""
    from dataclasses import asdict

    make_folder(out)
    rows, figures = [], []
    for scene in demo_scenes():
        print_status(f"simulating the {scene.title} ...")
        results = run_demo_scene(scene)
        rows += [row for _, row in results.values()]
        figures.append(draw_demo_scene(scene, results, out))
    if as_json:
        print_json({"rows": [asdict(row) for row in rows], "figures": [str(path) for path in figures]})
        return
    columns = ("step", "steps", "energy error", "constraint residual", "distance from group", "ns per step")
    lines = [
        (
            row.system,
            row.method,
            f"{row.step:g}",
            str(row.steps),
            *map(format_number, (row.energy, row.constraint, row.group, row.nanoseconds)),
        )
        for row in rows
    ]
    print_table("Geometric methods beside classical Runge-Kutta, same step", ("system", "method"), columns, lines)
    print("figures: " + ", ".join(str(path) for path in figures))
