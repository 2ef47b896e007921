"""`dalembert reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ._app import Json, app, examples, folder, print_json, print_table, progress


@app.command(
    epilog=examples(
        "dalembert reproduce mz-table-4",
        "dalembert reproduce gnj --out figures    (all of one paper)",
        "dalembert reproduce all --json",
    )
)
def reproduce(
    which: Annotated[
        str, typer.Argument(metavar="[ID|PAPER|all]", help="A figure or table, a paper, or all: see `list papers`.")
    ] = "all",
    out: Annotated[Path, typer.Option(help="The folder for pictures, data and pages.")] = Path("out/papers"),
    as_json: Json = False,
) -> None:
    """The figures and tables of the papers: a picture, its data and a page that says why it differs from the printed one."""
    from ..papers import Made, chosen
    from ..papers import reproduce as make

    exhibits = chosen(which)
    folder(out)
    made: list[Made] = []
    try:
        with progress(f"{len(exhibits)} exhibits") as report:
            for done in make(exhibits, out):
                made.append(done)
                if report is not None:
                    report(len(made), len(exhibits))
    except KeyboardInterrupt:
        print(
            f"dalembert: stopped after {len(made)} of {len(exhibits)}; finished ones are kept in {out}", file=sys.stderr
        )
        raise typer.Exit(130) from None
    finally:
        if as_json:
            print_json({"out": str(out), "made": [done.summary() for done in made]})
        elif made:
            rows = [(done.exhibit.id, done.exhibit.title, f"{done.seconds:.1f}") for done in made]
            print_table(f"written to {out} (index.md lists the pages)", ("id", "title"), ("s",), rows)
