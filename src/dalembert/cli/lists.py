"""`dalembert list`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ._app import Json, app, console, examples, print_json

LISTS = ("systems", "methods", "papers")
SAME = {"models": "systems", "integrators": "methods", "figures": "papers"}
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
    as_json: Json = False,
) -> None:
    """The systems or methods that a configuration can name, with their parameters, or what `reproduce` can make."""
    from ..errors import UnknownName
    from ..integrators.registry import METHODS
    from ..models.registry import MODELS

    what = SAME.get(what, what)
    if what == "systems":
        entries = {
            m.name: (m.summary, {k: "required" if k in m.example and _empty(v) else v for k, v in m.parameters.items()})
            for m in MODELS.values()
        }
    elif what == "methods":
        entries = {m.name: (m.summary, m.options) for m in METHODS.values()}
    elif what == "papers":
        from ..papers import FIGURES

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
