"""What every command shares: the application, the options, tables, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidInput, __version__

app = typer.Typer(
    name="dalembert",
    help="Integrate nonholonomic systems and free rigid bodies with methods that keep the geometry.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dalembert {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Integrate nonholonomic systems and free rigid bodies with methods that keep the geometry."""


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
ConfigArgument = Annotated[Path, typer.Argument(help="A TOML file with [system], [method], [initial] and [run].")]
PlotOption = Annotated[
    Path | None, typer.Option(help="Draw the motion and its conservation into this picture (.png, .pdf, .svg).")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override the file, e.g. run.step=0.01; repeatable."),
]


def examples(*lines: str) -> str:
    """The epilogue of a command's help."""
    return "Examples:\n\n" + "\n\n".join(lines)


def print_json(value: Any) -> None:
    """One object with 17 digits and no NaN."""
    print(json.dumps(value, allow_nan=False))


def console():
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def print_table(title: str, left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with words on the left and numbers on the right."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console().print(table)


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, which appears when there is something to wait for; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_status(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def format_number(value: float | None, form: str = ".3g") -> str:
    return "-" if value is None else format(value, form)


def make_folder(path: Path) -> Path:
    """`--out` as a folder that exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InvalidInput(f"--out is {path}, which cannot be made a folder: {fault}") from fault
    return path


PICTURE_SUFFIXES = (".png", ".pdf", ".svg")


def require_picture(path: Path, option: str = "--plot") -> None:
    """Refuse a picture that cannot be written, before anything runs."""
    if path.suffix not in PICTURE_SUFFIXES:
        raise InvalidInput(f"{option} is {path}; allowed: a file that ends in {', '.join(PICTURE_SUFFIXES)}")
    if not path.parent.is_dir():
        raise InvalidInput(f"{option} is {path}, but the folder {path.parent} does not exist: create it first")
