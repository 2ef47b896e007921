"""The commands on many runs: compare, convergence, sweep, sweep-plot and reproduce."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import papers  # its exhibits load at first use
from ..analysis.comparison import compare as compare_methods
from ..analysis.order import convergence_report, study_convergence
from ..errors import InvalidInput, NumericalFailure, require_name
from ..integrators import METHODS, Integrator
from ..io.atomic import atomic_path
from ..io.config import Job, apply_settings, build_method, load_job, read_config
from ..plotting.studies import open_sweep, plot_convergence, plot_sweep, select_variable
from ..sweeps.execute import LostCluster, SweepProgress, SweepResult, exact_curve
from ..sweeps.execute import sweep as run_sweep
from . import shell

BASELINE_METHOD = "runge-kutta"
PICTURE = "The picture (.png, .pdf, .svg)."
RICHARDSON_HELP = "Compare each run with the next finer one, instead of an accurate one (DOP853 at 1e-13)."
CUT_HELP = "The value of another dimension; may be given several times."
FORMAT_HELP = "Also draw the pictures in this format, for print; may be given several times."
EXHIBIT_HELP = "A figure or table, a paper, or all: see `list papers`."
METHOD_HELP = (
    "A method as NAME or NAME:option=value,..., or all; may be given several times. Default: that of the file, and "
    "Runge-Kutta."
)


@shell.command("compare")
def compare(
    config: shell.ConfigArgument,
    method: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=METHOD_HELP, autocompletion=lambda: [*METHODS, "all"])
    ] = None,
    step: Annotated[
        list[float] | None,
        typer.Option(metavar="SIZE", help="A step size; may be given several times. Default: that of the file."),
    ] = None,
    plot: shell.PlotOption = None,
    as_json: shell.JsonOption = False,
    settings: shell.SettingsOption = None,
    error: Annotated[bool, typer.Option(help="Measure the error against an accurate run (taylor at 1e-16).")] = True,
) -> None:
    """Compare methods or steps on the system of a configuration: energy, constraint, group, error, time of a step.

    Exit codes: 0 success, 1 all runs failed numerically, 2 wrong input, 130 stopped (finished runs are in the table).
    """
    job = load_job(config, settings or ())
    job.require_uncontrolled("a comparison of methods")
    if plot is not None:
        shell.require_picture(plot)
    integrators, required = _integrators(method, job)
    t_end = job.until.get("t_end", float(job.state.t) + job.run["step"] * job.run["steps"])
    with job.locate_errors(), shell.progress(f"{job.names['system']}, {len(integrators)} methods") as bar:
        for name in required:
            integrators[name].require(job.system, job.state, job.run["step"])
        result = compare_methods(
            job.system,
            integrators,
            job.state,
            steps=step or [job.run["step"]],
            t_end=t_end,
            backend=job.run.get("backend", "auto"),
            error=error,
            progress=bar,
        )
        if plot is not None and result.runs:
            with atomic_path(plot) as temporary:
                result.plot(temporary, title=f"{job.system.title} to $t$ = {t_end:g} s")
    if as_json:
        shell.print_json({"system": job.names["system"], "time": t_end, "rows": [asdict(row) for row in result.rows]})
    else:
        heads, lines = result.table()
        title = f"{shell.title_of(job.names['system'], job.system)} to t = {t_end:g}"
        shell.print_table(title, heads[:1], heads[1:], lines)
        for reason in result.reasons():
            print(reason)
        if plot is not None and result.runs:
            print(f"picture: {plot}")
    if result.interrupted:
        print("dalembert: stopped; the table has what was done", file=sys.stderr)
        raise typer.Exit(130)
    if not any(row.status == "ok" for row in result.rows):
        raise typer.Exit(1)


def _integrators(specifications: list[str] | None, job: Job) -> tuple[dict[str, Integrator], list[str]]:
    """The methods by label, and those of them that must not refuse the system."""
    if not specifications:
        own = {job.names["method"]: job.integrator}
        return own | {BASELINE_METHOD: METHODS[BASELINE_METHOD].make({})}, list(own)
    chosen: dict[str, Integrator] = {}
    for text in specifications:
        if text == "all":
            chosen |= {name: METHODS[name].make({}) for name in METHODS if name != "reference"}
            continue
        name, _, options = text.partition(":")
        settings = [f"method.{option.strip()}" for option in options.split(",") if option.strip()]
        chosen[text] = build_method(apply_settings({"method": {"name": name}}, settings)["method"])
    return chosen, [text for text in specifications if text != "all"]


@shell.command("convergence")
def convergence(
    config: shell.ConfigArgument,
    levels: Annotated[int, typer.Option(help="How many step sizes: that of the file, its half, a quarter, ...")] = 5,
    local: Annotated[
        bool, typer.Option("--local", help="Measure the error of one step, not of the whole run.")
    ] = False,
    richardson: Annotated[bool, typer.Option("--richardson", help=RICHARDSON_HELP)] = False,
    plot: Annotated[Path | None, typer.Option(help=f"{PICTURE} Default: out/NAME-convergence.png.")] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no picture.")] = False,
    as_json: shell.JsonOption = False,
    settings: shell.SettingsOption = None,
) -> None:
    """Measure the order of a method: positions, velocities, multipliers and energy, as a table and a picture.

    Exit codes: 0 success, 1 all runs failed numerically, 2 wrong input.
    """
    job, draw = load_job(config, settings or ()), not no_plot
    job.require_uncontrolled("a study of convergence")
    if draw and plot is not None:
        shell.require_picture(plot)
    title = f"{job.names['system']}, {levels} steps from {job.run['step']:g}"
    try:
        with job.locate_errors(), shell.progress(title, "compiling and running"):
            found = study_convergence(job, levels=levels, local=local, richardson=richardson)
    except NumericalFailure as failure:
        print(f"dalembert: {failure}", file=sys.stderr)
        raise typer.Exit(1) from None
    result = convergence_report(found, job)
    if draw:
        plot = shell.make_folder(Path("out")) / f"{config.stem}-convergence.png" if plot is None else plot
        with atomic_path(plot) as temporary:
            plot_convergence(found, title=f"{job.system.title} with {result['method']}", path=temporary)
    if as_json:
        shell.print_json(result | {"picture": str(plot) if draw else None})
        return
    lines = []
    for name, values in result["quantities"].items():
        lines.append([name, *(shell.format_number(error) for error in values["error"])])
        lines.append(["  order", "", *(shell.format_number(slope, ".2f") for slope in values["slope"])])
    title = f"{shell.title_of(result['system'], job.system)} with {result['method']}: {result['errors']} errors"
    shell.print_table(title, ("step",), [f"{step:g}" for step in result["step"]], lines)
    print(found)
    if draw:
        print(f"picture: {plot}")


PROGRESS_SECONDS = 10.0
"""Time between the lines of progress in a log."""


@shell.command("sweep")
def sweep(
    config: Annotated[Path, typer.Argument(help=rf"A TOML file with {shell.SECTION_NAMES}, \[run] and \[sweep].")],
    as_json: shell.JsonOption = False,
    out: Annotated[Path | None, typer.Option(help="The Zarr store for the results, written as they come.")] = None,
    settings: shell.SettingsOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Compute the members that --out does not have yet.")] = False,
    executor: Annotated[str, typer.Option(help="Where to compute: local (all cores), cuda (one GPU), dask.")] = "local",
    scheduler: Annotated[
        str | None, typer.Option(help="The address of a Dask scheduler. Default: start one on this machine.")
    ] = None,
) -> None:
    r"""Run a configuration once for every combination of the values in its section \[sweep].

    If a run fails, the sweep continues: `status` and `failed_step` in the store say which runs failed. After Ctrl-C,
    --resume completes the store. Exit codes: 0 success, 1 the store could not be written or the cluster is lost,
    2 wrong input, 130 stopped.
    """
    options: dict[str, Any] = {"out": out, "resume": resume, "executor": executor, "scheduler": scheduler}
    given = apply_settings(read_config(config), settings or ())
    try:
        with shell.progress(config.stem) as bar:
            lines = _progress_lines(config.stem)
            shown = lines if bar is None else lambda done, all, rate: bar(done, all, f" {done}/{all} {rate:.3g}/s")
            result = run_sweep(given, **options, progress=shown, folder=config.parent)
    except LostCluster as fault:
        print(f"dalembert: {fault}", file=sys.stderr)
        raise typer.Exit(1) from None
    summary = {
        **{key: getattr(result, key) for key in ("members", "done", "computed", "failed", "seconds")},
        "rate": result.computed / result.seconds if result.seconds else None,
        "executor": executor,
        "shape": dict(zip(result.plan.dims, result.plan.shape, strict=True)),
        "store": None if result.path is None else str(result.path),
        "interrupted": result.interrupted,
    }
    if as_json:
        shell.print_json(summary)
    else:
        sizes = " x ".join(f"{size} {dim}" for dim, size in zip(result.plan.dims, result.plan.shape, strict=True))
        rows = [("members", f"{sizes} = {result.members}"), *_axis_rows(result)]
        if (plan := result.plan).blocks > 1:
            rows.append(("blocks", f"{plan.blocks} of {math.prod(plan.block_shape)} members (chunk = {plan.chunk})"))
        rows.append(("done, failed", f"{result.done}, {result.failed}"))
        rows.append(("time", f"{result.seconds:.1f} s for {result.computed} members ({executor})"))
        shell.print_table("sweep", (), (), rows + ([("store", str(result.path))] if result.path else []))
    if result.interrupted:
        kept = f"; finish it with --out {out} --resume" if out else ""
        print(f"dalembert: stopped after {result.done} of {result.members} members{kept}", file=sys.stderr)
        raise typer.Exit(130)


def _axis_rows(result: SweepResult) -> list[tuple[str, str]]:
    """What varies: its words, from where to where, and its unit."""
    rows = []
    for name, _, axis in result.plan.coordinates():
        words, unit = result.described[name]
        first, last = (axis.at(k, k + 1)[name][0] for k in (0, axis.size - 1))
        if isinstance(first, int | float):
            rows.append((words, f"{first:.6g}{f' to {last:.6g}' * (axis.size > 1)} {unit}".rstrip()))
        else:
            rows.append((words, ", ".join(map(str, axis.at(0, min(axis.size, 5))[name])) + ", ..." * (axis.size > 5)))
    return rows


@shell.command("sweep-plot")
def sweep_plot(
    store: Annotated[Path, typer.Argument(help="The Zarr store of a sweep, complete or not.")],
    out: Annotated[Path, typer.Option(help=PICTURE)],
    show: Annotated[
        str, typer.Option(help="The variable; a component of an array by number or name: final_velocity.0.")
    ] = "status",
    x: Annotated[str | None, typer.Option(help="The horizontal dimension. Default: the first.")] = None,
    y: Annotated[
        str | None, typer.Option(help="The vertical dimension. Without a second one a curve is drawn.")
    ] = None,
    at: Annotated[list[str] | None, typer.Option("--at", metavar="DIM=VALUE", help=CUT_HELP)] = None,
    log: Annotated[bool, typer.Option("--log", help="Logarithmic colours (or heights).")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Draw the exact curve over it, where one is known.")] = False,
) -> None:
    """Draw a heat map, a slice or a failure map of any two dimensions of a sweep."""
    shell.require_picture(out, "--out")
    cuts: dict[str, float | str] = {}
    for text in at or ():
        name, equals, cuts[name] = text.partition("=")
        if not equals:
            raise InvalidInput(f"--at {text!r}; allowed: dimension=value, such as run_step=0.1")
    picture = select_variable(open_sweep(store), show, x, y, cuts)
    curve = exact_curve(picture.data, show, picture.x, picture.y) if exact else None
    with atomic_path(out) as temporary:
        plot_sweep(picture, log=log, curve=curve, path=temporary)
    print(f"picture: {out}")
    if show == "status" and not picture.array.any():
        dims = {*picture.array.dims}
        more = sorted({str(key) for key, each in picture.data.items() if {*each.dims} >= dims} - {show})
        print(f"dalembert: every run ended well; --show draws one of {', '.join(more)}", file=sys.stderr)


def _progress_lines(title: str) -> SweepProgress:
    """What prints a line with rate and time left now and then, where there is no terminal for a bar."""
    last = time.monotonic()

    def line(done: int, total: int, rate: float) -> None:
        nonlocal last
        if done < total and time.monotonic() - last < PROGRESS_SECONDS:
            return
        last = time.monotonic()
        left = (total - done) / rate if rate else float("inf")
        text = f"{title}: {done}/{total} members ({100 * done / total:.1f} %), {rate:.3g}/s, {left:.0f} s left"
        print(text, file=sys.stderr, flush=True)

    return line


@shell.command("reproduce")
def reproduce(
    which: Annotated[str, typer.Argument(metavar="ID|PAPER|all", help=EXHIBIT_HELP)] = "all",
    out: Annotated[Path, typer.Option(help="The folder for pictures, data and pages.")] = Path("out/papers"),
    picture: Annotated[list[str] | None, typer.Option("--format", metavar="pdf|svg", help=FORMAT_HELP)] = None,
    as_json: shell.JsonOption = False,
) -> None:
    """Reproduce figures and tables of the papers: writes a picture, its data, and how it differs from the print.

    After Ctrl-C the finished ones are kept.
    """
    exhibits = papers.select_exhibits(which)
    formats = [f".{each.removeprefix('.').lower()}" for each in picture or ()]
    for suffix in formats:
        require_name("--format", suffix, shell.PICTURE_SUFFIXES)
    shell.make_folder(out)
    made: list[papers.Reproduction] = []
    try:
        with shell.progress(f"{len(exhibits)} exhibits") as bar:
            for done in papers.reproduce_exhibits(exhibits, out, formats):
                made.append(done)
                if bar is not None:
                    bar(len(made), len(exhibits))
    except KeyboardInterrupt:
        stopped = f"dalembert: stopped after {len(made)} of {len(exhibits)}; finished ones are kept in {out}"
        print(stopped, file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        if as_json:
            shell.print_json({"out": str(out), "made": [done.summary() for done in made]})
        elif made:
            rows = [(done.exhibit.id, done.exhibit.title, f"{done.seconds:.1f}") for done in made]
            shell.print_table(f"written to {out} (index.md lists the pages)", ("id", "title"), ("s",), rows)
