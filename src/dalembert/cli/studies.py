"""`dalembert sweep` and `dalembert sweep-plot`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._app import Json, Settings, app, console, examples, print_json, require_picture

if TYPE_CHECKING:
    from ..sweep import SweepResult

LINE = 10.0
"""Seconds between the lines of progress in a log."""
Store = Annotated[Path, typer.Argument(help="The Zarr store of a sweep, finished or growing.")]


@app.command(
    epilog=examples(
        "dalembert sweep examples/sweep-suslov.toml --out suslov.zarr",
        "dalembert sweep examples/sweep-suslov.toml --out suslov.zarr --resume",
        "dalembert sweep examples/sweep-cvt.toml --out cvt.zarr --executor dask --scheduler tcp://10.0.0.1:8786",
    )
)
def sweep(
    config: Annotated[Path, typer.Argument(help="A TOML file with [system], [method], [initial], [run] and [sweep].")],
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(help="The Zarr store that takes the results as they come.")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the store in --out.")] = False,
    executor: Annotated[
        str, typer.Option(help="Who does the work: local (all cores), cuda (one GPU) or dask.")
    ] = "local",
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler; without it a local cluster is started.")
    ] = None,
) -> None:
    """Run a configuration for all the numbers that its section [sweep] names.

    Members that fail are data: see `status` and `failed_step` in the store. Ctrl-C keeps the blocks that are done, and --resume
    finishes the store. Exit codes: 0 done, 1 the store could not be written or the cluster is lost, 2 bad input, 130 stopped.
    """
    from ..config import override, read
    from ..sweep import LostCluster
    from ..sweep import sweep as run_sweep

    given = override(read(config), settings or ())
    try:
        with _progress(config.stem) as progress:
            result = run_sweep(
                given,
                out=out,
                resume=resume,
                executor=executor,
                scheduler=scheduler,
                progress=progress,
                folder=config.parent,
            )
    except LostCluster as fault:
        print(f"dalembert: {fault}", file=sys.stderr)
        raise typer.Exit(1) from None
    summary = _summary(result, executor)
    if as_json:
        print_json(summary)
    else:
        _print(summary)
    if result.interrupted:
        kept = f"; finish it with --out {out} --resume" if out else ""
        print(f"dalembert: stopped after {result.done} of {result.members} members{kept}", file=sys.stderr)
        raise typer.Exit(130)


@app.command(
    "sweep-plot",
    epilog=examples(
        "dalembert sweep-plot suslov.zarr --out failures.png --show status --exact",
        "dalembert sweep-plot cvt.zarr --out cvt.png --show energy_error_max --x system_epsilon",
        "dalembert sweep-plot big.zarr --out slice.png --x run_step --y initial_energy --at system_a=0.3",
    ),
)
def sweep_plot(
    store: Store,
    out: Annotated[Path, typer.Option(help="The picture (.png, .pdf, .svg).")],
    show: Annotated[
        str, typer.Option(help="The variable; one component of an array as name.0 or name.0.1.")
    ] = "status",
    x: Annotated[str | None, typer.Option(help="The dimension to the right; by default the first.")] = None,
    y: Annotated[str | None, typer.Option(help="The dimension upwards; without a second one a curve is drawn.")] = None,
    at: Annotated[
        list[str] | None, typer.Option("--at", metavar="DIM=VALUE", help="Where to cut another dimension; repeatable.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Logarithmic colours (or heights).")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Draw the exact curve over it, where one is known.")] = False,
) -> None:
    """Draw a heat map, a slice or a failure map of any two dimensions of a sweep."""
    from ..atomic import replacing
    from ..errors import InvalidInput
    from ..plotting.sweeps import chosen, open_sweep, plot_sweep
    from ..sweep.theory import exact_curve

    require_picture(out, "--out")
    cuts = {}
    for text in at or ():
        name, _, value = text.partition("=")
        try:
            cuts[name] = float(value)
        except ValueError:
            raise InvalidInput(f"--at {text!r}; allowed: dimension=number, such as run_step=0.1") from None
    picture = chosen(open_sweep(store), show, x, y, cuts)
    curve = exact_curve(picture.data, show, picture.x, picture.y) if exact else None
    with replacing(out) as temporary:
        plot_sweep(picture, log=log, curve=curve, path=temporary)


def _summary(result: SweepResult, executor: str) -> dict[str, Any]:
    rate = result.computed / result.seconds if result.seconds else None
    return {
        "members": result.members,
        "done": result.done,
        "computed": result.computed,
        "failed": result.failed,
        "seconds": result.seconds,
        "rate": rate,
        "executor": executor,
        "shape": dict(zip(result.plan.dims, result.plan.shape, strict=True)),
        "store": None if result.path is None else str(result.path),
        "interrupted": result.interrupted,
    }


def _print(summary: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(show_header=False, title="sweep", title_justify="left")
    table.add_row(
        "members", " x ".join(f"{size} {dim}" for dim, size in summary["shape"].items()) + f" = {summary['members']}"
    )
    table.add_row("done, failed", f"{summary['done']}, {summary['failed']}")
    table.add_row("time", f"{summary['seconds']:.1f} s for {summary['computed']} members ({summary['executor']})")
    if summary["store"]:
        table.add_row("store", summary["store"])
    console().print(table)


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int, float], None]]:
    """A bar with rate and time left on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1, rate="")
        yield lambda done, total, rate: bar.update(task, completed=done, total=total, rate=f"{rate:.3g}/s")


def _lines(title: str) -> Callable[[int, int, float], None]:
    last = time.monotonic()

    def line(done: int, total: int, rate: float) -> None:
        nonlocal last
        if done < total and time.monotonic() - last < LINE:
            return
        last = time.monotonic()
        left = (total - done) / rate if rate else float("inf")
        print(
            f"{title}: {done}/{total} members ({100 * done / total:.1f} %), {rate:.3g}/s, {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    return line
