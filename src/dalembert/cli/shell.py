"""What all commands share: the application, common options, tables, progress."""

from __future__ import annotations

import json
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

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


VersionOption = Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)]


@app.callback()
def options(version: VersionOption = False) -> None:
    """Integrate nonholonomic systems and free rigid bodies with methods that keep the geometry."""


Command = TypeVar("Command", bound=Callable[..., Any])
TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
SECTION_NAMES = r"\[system], \[method], \[initial]"  # Rich takes a word in brackets without "\" for markup
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
ConfigArgument = Annotated[Path, typer.Argument(help=rf"A TOML file with {SECTION_NAMES} and \[run].")]
ForceOption = Annotated[bool, typer.Option("--force", help="Read a damaged file as it is, without its checksums.")]
PICTURE_SUFFIXES = (".png", ".pdf", ".svg")
PICTURE_HELP = f"Draw the motion and its conservation into this picture ({', '.join(PICTURE_SUFFIXES)})."
PlotOption = Annotated[Path | None, typer.Option(help=PICTURE_HELP)]
SETTINGS_HELP = "Override the file, e.g. run.step=0.01; repeatable."
SettingsOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SETTINGS_HELP)]


def command(name: str) -> Callable[[Command], Command]:
    """Register a function as the command of this name; its help ends with the examples of `texts.toml`."""
    return app.command(name, epilog="\n\n".join(["Examples:", *TEXTS["examples"][name]]))


def print_json(value: Any) -> None:
    """Print one object with 17 digits and no NaN; what is neither number, text, list nor table as its text."""
    print(json.dumps(value, allow_nan=False, default=str))


def print_table(
    title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]], show_lines: bool = False
) -> None:
    """Print a table with words on the left and numbers on the right; without names of columns it has no head."""
    from rich.console import Console
    from rich.table import Table

    head = bool(left or right)
    table = Table(title=title, title_justify="left", show_header=head, show_lines=show_lines)
    for k, name in enumerate(left):
        table.add_column(name, no_wrap=show_lines and k == 0)
    for name in right:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 160
    Console(highlight=False, markup=False, width=width).print(table)  # "[q]" is a unit, no markup


COMPILING_SECONDS = 2.0
"""After so long without a step the bar says that the step is still being compiled."""


@contextmanager
def progress(title: str, waiting: str = "compiling") -> Iterator[Callable[..., None] | None]:
    """Show a bar on a terminal, which takes (done, total, note), and what one is waiting for until it does."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        compiling = threading.Timer(COMPILING_SECONDS, bar.update, (task,), {"description": f"{title}: {waiting}"})

        def report(done: int, total: int, note: str = "") -> None:
            compiling.cancel()
            bar.update(task, description=f"{title}{note}", completed=done, total=total)

        compiling.start()
        try:
            yield report
        finally:
            compiling.cancel()


def format_number(value: float | None, form: str = ".3g") -> str:
    """A number as text, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def make_folder(path: Path) -> Path:
    """Make the folder of `--out`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InvalidInput(f"--out is {path}, which cannot be made a folder: {fault}") from fault
    return path


def require_picture(path: Path, option: str = "--plot") -> None:
    """Refuse a picture that cannot be written, before anything runs."""
    if path.suffix not in PICTURE_SUFFIXES:
        raise InvalidInput(f"{option} is {path}; allowed: a file that ends in {', '.join(PICTURE_SUFFIXES)}")
    if path.is_dir():
        raise InvalidInput(f"{option} is {path}, which is a folder")
    if not path.parent.is_dir():
        raise InvalidInput(f"{option} is {path}, but the folder {path.parent} does not exist: create it first")
