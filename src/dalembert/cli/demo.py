"""`dalembert demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._app import Json, app, examples, folder, number, print_json, print_table, say


@app.command(epilog=examples("dalembert demo --out out"))
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the figures.")] = Path("out"),
    as_json: Json = False,
) -> None:
    """Three systems, each with a geometric method beside Runge-Kutta at the same step: a table, and figures."""
    from dataclasses import asdict

    from ..demo import draw, run_scene, scenes

    folder(out)
    rows, figures = [], []
    for scene in scenes():
        say(f"simulating the {scene.title} ...")
        results = run_scene(scene)
        rows += [row for _, row in results.values()]
        figures.append(draw(scene, results, out))
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
            *map(number, (row.energy, row.constraint, row.group, row.nanoseconds)),
        )
        for row in rows
    ]
    print_table("Geometric methods beside classical Runge-Kutta, same step", ("system", "method"), columns, lines)
    print("figures: " + ", ".join(str(path) for path in figures))
