"""`dalembert compare`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._app import (
    Config,
    Json,
    Plot,
    Settings,
    app,
    examples,
    number,
    print_json,
    print_table,
    progress,
    require_picture,
)

if TYPE_CHECKING:
    from ..compare import Comparison
    from ..integrators import Integrator

BESIDE = "runge-kutta"


def _complete() -> list[str]:
    from ..integrators.registry import METHODS

    return [*METHODS, "all"]


@app.command(
    epilog=examples(
        "dalembert compare examples/suslov.toml",
        "dalembert compare examples/suslov.toml --step 0.015 --step 0.0075 --plot suslov.png",
        "dalembert compare examples/particle.toml --method lagrange-dalembert:node=0 --method lagrange-dalembert:node=0.5",
        "dalembert compare examples/sleigh.toml --method all --json",
    )
)
def compare(
    config: Config,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME, NAME:option=value,.. or all; repeatable. Default: the file's own beside Runge-Kutta.",
            autocompletion=_complete,
        ),
    ] = None,
    step: Annotated[list[float] | None, typer.Option(help="A step size; repeatable. Default: the file's.")] = None,
    plot: Plot = None,
    as_json: Json = False,
    settings: Settings = None,
    error: Annotated[bool, typer.Option(help="Compare with the motion itself (DOP853 at 1e-13).")] = True,
) -> None:
    """Several methods or steps on the system of a configuration: energy, constraint, group, error and time of a step.

    Exit codes: 0 done, 1 every run failed numerically, 2 bad input, 130 stopped (with the table of what is done).
    """
    from ..atomic import replacing
    from ..compare import compare as run_all
    from ..config import load

    job = load(config, settings or ())
    if plot is not None:
        require_picture(plot)
    integrators, required = _integrators(method, job)
    t_end = float(job.state.t) + job.run["step"] * job.run["steps"]
    with job.blaming(), progress(f"{job.names['system']}, {len(integrators)} methods") as bar:
        for name in required:
            integrators[name].require(job.system, job.state, job.run["step"])
        result = run_all(
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
            with replacing(plot) as temporary:
                result.plot(temporary, title=f"{job.names['system']} to t = {t_end:g}")
    if as_json:
        print_json({"system": job.names["system"], "time": t_end, "rows": [asdict(row) for row in result.rows]})
    else:
        _print_rows(job.names["system"], t_end, result)
        if plot is not None and result.runs:
            print(f"picture: {plot}")
    if result.interrupted:
        print("dalembert: stopped; the table has what was done", file=sys.stderr)
        raise typer.Exit(130)
    if not any(row.status == "ok" for row in result.rows):
        raise typer.Exit(1)


def _integrators(specifications: list[str] | None, job: Any) -> tuple[dict[str, Integrator], list[str]]:
    """The methods by label, and those of them that must not refuse the system."""
    from ..integrators.registry import METHODS

    if not specifications:
        own = {job.names["method"]: job.integrator}
        return own | {BESIDE: METHODS[BESIDE].make({})}, list(own)
    chosen: dict[str, Integrator] = {}
    required = []
    for text in specifications:
        if text == "all":
            chosen |= {name: METHODS[name].make({}) for name in METHODS if name != "reference"}
            continue
        chosen[text] = _integrator(text)
        required.append(text)
    return chosen, required


def _integrator(text: str) -> Integrator:
    """A method from "name:option=value,option=value"."""
    from ..config import method_of, override

    name, _, options = text.partition(":")
    settings = [f"method.{option.strip()}" for option in options.split(",") if option.strip()]
    return method_of(override({"method": {"name": name}}, settings)["method"])


def _print_rows(system: str, t_end: float, result: Comparison) -> None:
    energy = next((kept.title.lower() for kept in result.balances.values()), "energy error")
    columns = (
        "step",
        "steps",
        energy,
        "constraint",
        "group",
        "error",
        "ns per step",
    )
    lines = []
    for row in (row for row in result.rows if row.status != "refused"):
        numbers = map(
            number,
            (row.energy if row.balance is None else row.balance, row.constraint, row.group, row.error, row.nanoseconds),
        )
        lines.append((row.method, row.status, f"{row.step:g}", str(row.steps), *numbers))
    print_table(f"{system} to t = {t_end:g}", ("method", "status"), columns, lines)
    for row in result.rows:
        if row.reason:
            print(f"{row.method}, step {row.step:g}, {row.status}: {row.reason}")
