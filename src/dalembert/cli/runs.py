"""`dalembert run`."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._app import Config, Json, Plot, Settings, app, console, examples, number, print_json, progress, require_picture

if TYPE_CHECKING:
    from ..config import Job
    from ..run import Run

PIECES = 256
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
    config: Config,
    as_json: Json = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the saved states to this file: .nc (NetCDF) or .zarr.")
    ] = None,
    plot: Plot = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, bit for bit.")] = False,
    reaction: Annotated[bool, typer.Option("--reaction", help="Write the reaction forces A^T l too.")] = False,
) -> None:
    """Integrate what a configuration file describes.

    Ctrl-C keeps what is done: with --out it is saved, and --resume goes on with it. Exit codes: 0 done, 1 the run failed
    numerically or could not be written, 2 bad input, 130 stopped.
    """
    from ..atomic import replacing, writing
    from ..config import load
    from ..errors import InvalidInput, WriteFailure
    from ..files import require_writable, save
    from ..plotting import plot_trajectory
    from ..report import report

    job = load(config, settings or ())
    if (resume or reaction) and out is None:
        raise InvalidInput(f"--{'resume' if resume else 'reaction'} needs --out: the file of the run")
    if out is not None:
        require_writable(out)
    if plot is not None:
        require_picture(plot)
    with writing(out) if out is not None else nullcontext(), job.blaming():
        before = out if resume and out is not None and out.exists() else None
        trajectory = integrate(job, states=bool(out or plot), before=before)
        fault = None
        if out is not None:
            try:
                save(trajectory, out, {"config": job.text, "system": job.names["system"]}, reaction=reaction)
            except WriteFailure as failure:  # what was computed is still told
                fault = failure
        if plot is not None:
            with replacing(plot) as temporary:
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
    from ..balance import saving
    from ..resume import resumed
    from ..simulate import simulate

    options = {key: value for key, value in job.run.items() if key in ("step", "steps", "save_every", "backend")}
    if (
        not states
    ):  # nothing but the last state is wanted: extremes are kept over all steps anyway; work needs every state
        options["save_every"] = saving(job.system, options["steps"], max(1, options["steps"] // PIECES))
    with progress(f"{job.names['system']}, {options['steps']} steps") as bar:
        if before is not None:
            return resumed(job, before, bar)
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
    table.add_row("energy", f"{number(energy['initial'], '.12g')}, {_energy_kept(energy)}")
    table.add_row("constraint, group", f"{number(result['constraint']['max'])}, {number(result['group']['max'])}")
    if result["holonomic"]["max"] is not None:
        table.add_row("holonomic, |phi|", number(result["holonomic"]["max"]))
    for event in result["events"]:
        table.add_row(event["name"], _crossed(event))
    for name, path in (("file", out), ("picture", plot)):
        if path is not None:
            table.add_row(name, str(path))
    console().print(table)


def _energy_kept(energy: dict[str, Any]) -> str:
    """The energy error; where power enters, how far the energy went and what of that no work explains."""
    change = number(energy["max_error"])
    if energy["balance"] is not None:
        return f"changes by up to {change}; E - E(0) - work: largest {number(energy['balance'])}"
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
