"""The command line: run, demo, list."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="dalembert",
    help="Integrate nonholonomic systems and free rigid bodies with methods that keep the geometry.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


PIECES = 256
"""Into how many records a run is cut whose states nobody wants: enough for a bar, few enough to cost nothing."""


@app.command(epilog="Example: dalembert run examples/suslov.toml --json --out out/suslov.nc")
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file with [system], [method], [initial] and [run].")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the saved states to this NetCDF file (.nc).")] = None,
) -> None:
    """Integrate what a configuration file describes."""
    from .config import load
    from .data import require_writable, save
    from .report import report
    from .simulate import simulate

    job = load(config)
    if out is not None:
        require_writable(out)
    options = {key: value for key, value in job.run.items() if key in ("step", "steps", "save_every", "backend")}
    if out is None:  # nothing but the last state is wanted: extremes are kept over all steps anyway
        options["save_every"] = max(1, options["steps"] // PIECES)
    with _progress(f"{job.names['system']}, {options['steps']} steps") as progress:
        trajectory = simulate(job.system, job.integrator, job.state, monitor=True, progress=progress, **options)
    if out is not None:
        save(trajectory, out, {"config": Path(config).read_text(encoding="utf-8")})
    result = report(trajectory, job.names)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print_report(result, out)
    if trajectory.interrupted:
        print(f"dalembert: stopped after {result['steps']} steps; what was done is kept", file=sys.stderr)
        raise typer.Exit(130)
    if trajectory.status != "ok":
        raise typer.Exit(1)


@app.command(epilog="Example: dalembert demo --out out")
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the figures.")] = Path("out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Three systems, each with a geometric method beside Runge-Kutta at the same step: a table, and figures."""
    from dataclasses import asdict

    from .demo import draw, run_scene, scenes
    from .errors import InvalidInput

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InvalidInput(f"--out is {out}, which cannot be made a folder: {fault}") from fault
    rows, figures = [], []
    for scene in scenes():
        _say(f"simulating the {scene.title} ...")
        results = run_scene(scene)
        rows += [row for _, row in results.values()]
        figures.append(draw(scene, results, out))
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "figures": [str(path) for path in figures]}))
        return
    _print_rows(rows)
    print("figures: " + ", ".join(str(path) for path in figures))


@app.command(name="list", epilog="Example: dalembert list systems")
def list_names(
    what: Annotated[str, typer.Argument(help="systems or methods.")] = "systems",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """The systems or methods that a configuration can name, with their parameters."""
    from .errors import UnknownName
    from .integrators.registry import METHODS
    from .models.registry import MODELS

    if what == "systems":
        entries = {
            m.name: (m.summary, {k: "required" if k in m.example and _empty(v) else v for k, v in m.parameters.items()})
            for m in MODELS.values()
        }
    elif what == "methods":
        entries = {m.name: (m.summary, m.options) for m in METHODS.values()}
    else:
        raise UnknownName("list", what, ("systems", "methods"))
    if as_json:
        print(
            json.dumps(
                {name: {"summary": text, "parameters": _jsonable(options)} for name, (text, options) in entries.items()}
            )
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


# -- tables ---------------------------------------------------------------------------------------------------------------------
def _console():
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, which appears when there is something to wait for; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _say(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def _number(value: float | None, form: str = ".3g") -> str:
    return "-" if value is None else format(value, form)


def _print_rows(rows) -> None:
    from rich.table import Table

    table = Table(title="Geometric methods beside classical Runge-Kutta, same step", title_justify="left")
    for name in ("system", "method"):
        table.add_column(name)
    for name in ("step", "steps", "energy error", "constraint residual", "distance from group", "ns per step"):
        table.add_column(name, justify="right")
    for row in rows:
        numbers = map(_number, (row.energy, row.constraint, row.group, row.nanoseconds))
        table.add_row(row.system, row.method, f"{row.step:g}", str(row.steps), *numbers)
    _console().print(table)


def _print_report(result: dict[str, Any], out: Path | None) -> None:
    from rich.table import Table

    table = Table(show_header=False, title=f"{result['system']} with {result['method']}", title_justify="left")
    table.add_row(
        "status",
        result["status"]
        if result["status"] == "ok"
        else f"failed after step {result['failed_at']}: {result['reason']}",
    )
    table.add_row("steps, step, time", f"{result['steps']}, {result['step']:g}, {result['time']:.12g}")
    for key, value in result["final"].items():
        if value is not None:
            table.add_row(key, json.dumps(value))
    energy = result["energy"]
    table.add_row("energy", f"{_number(energy['initial'], '.12g')}, largest error {_number(energy['max_error'])}")
    table.add_row("constraint, group", f"{_number(result['constraint']['max'])}, {_number(result['group']['max'])}")
    if out is not None:
        table.add_row("file", str(out))
    _console().print(table)


def _print_entries(what: str, entries: dict[str, tuple[str, dict[str, Any]]]) -> None:
    from rich.table import Table

    table = Table(title=f"{what}", title_justify="left", show_lines=True)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_column("parameters" if what == "systems" else "options")
    for name, (summary, options) in entries.items():
        table.add_row(name, summary, "\n".join(f"{key} = {value}" for key, value in options.items()))
    _console().print(table)


def main() -> None:
    """The entry point: input faults end with a message and exit code 2, never with a traceback."""
    from .errors import InvalidInput

    try:
        app()
    except InvalidInput as fault:
        print(f"dalembert: {fault}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("dalembert: stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
