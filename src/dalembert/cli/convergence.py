"""`dalembert convergence`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ._app import Config, Json, Settings, app, examples, folder, number, print_json, print_table, require_picture, say


@app.command(
    epilog=examples(
        "dalembert convergence examples/particle.toml",
        "dalembert convergence examples/suslov.toml --levels 6 --plot suslov.png --json",
        "dalembert convergence examples/sleigh.toml --local --set method.node=0",
    )
)
def convergence(
    config: Config,
    levels: Annotated[int, typer.Option(help="How many steps: that of the file, and its halves.")] = 5,
    local: Annotated[
        bool, typer.Option("--local", help="The error of one step instead of that of the whole run.")
    ] = False,
    richardson: Annotated[
        bool, typer.Option("--richardson", help="Compare each run with the next finer one instead of DOP853 at 1e-13.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="The picture (.png, .pdf, .svg). Default: out/NAME-convergence.png.")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw/--no-plot", help="Whether to draw the picture.")] = True,
    as_json: Json = False,
    settings: Settings = None,
) -> None:
    """The measured order of a method: positions, velocities, multipliers and energy, as a table and a picture.

    Exit codes: 0 done, 1 every run failed numerically, 2 bad input.
    """
    from ..atomic import replacing
    from ..config import load
    from ..convergence import report, study
    from ..errors import NumericalFailure
    from ..plotting import plot_convergence

    job = load(config, settings or ())
    if draw:
        plot = folder(Path("out")) / f"{config.stem}-convergence.png" if plot is None else plot
        require_picture(plot)
    say(f"{job.names['system']}: {levels} steps from {job.run['step']:g} ...")
    try:
        with job.blaming():
            found = study(job, levels=levels, local=local, richardson=richardson)
    except NumericalFailure as failure:
        print(f"dalembert: {failure}", file=sys.stderr)
        raise typer.Exit(1) from None
    result = report(found, job)
    if draw and plot is not None:
        with replacing(plot) as temporary:
            plot_convergence(found, title=f"{result['system']} with {result['method']}", path=temporary)
    if as_json:
        print_json(result | {"picture": str(plot) if draw else None})
        return
    _print(result)
    if draw:
        print(f"picture: {plot}")


def _print(result: dict[str, Any]) -> None:
    """One line a step, an error and its slope for each quantity; the orders below."""
    quantities = result["quantities"]
    columns = [head for name in quantities for head in (name, "order")]
    lines = []
    for k, step in enumerate(result["step"]):
        cells = []
        for values in quantities.values():
            cells += [number(values["error"][k]), number(values["slope"][k - 1] if k else None, ".2f")]
        lines.append([f"{step:g}", *cells])
    print_table(f"{result['system']} with {result['method']}: {result['errors']} errors", ("step",), columns, lines)
    for name, values in quantities.items():
        order = "exact to round-off, or too few steps" if values["order"] is None else f"order {values['order']:.2f}"
        scale = (
            ""
            if values["order"] is None
            else f", error about {_vector(values['coefficient'])} h^{round(values['order'])}"
        )
        print(f"{name}: {order}{scale}")
    for step, reason in zip(result["step"], result["reason"], strict=True):
        if reason:
            print(f"step {step:g}: {reason}")


def _vector(values: list[float]) -> str:
    return f"({', '.join(format(v, '.3g') for v in values)})"
