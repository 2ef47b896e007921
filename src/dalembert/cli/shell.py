"""What all commands share: the application, common options, tables, progress."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
import textwrap
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
import typer.core

from ..errors import InvalidInput, __version__
from ..mechanics import MechanicalSystem, without_forces

SUMMARY = "Simulate systems that roll, skate and turn, with methods that conserve what the motion conserves."


class _PlainFlags:
    """Help in which a flag stands alone: Typer writes <bool> behind it, as if it took a word."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options and arguments of a command."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            each.metavar = "" if getattr(each, "is_flag", False) else each.metavar
        return found


class _Command(_PlainFlags, typer.core.TyperCommand):
    """One command."""


class _Application(_PlainFlags, typer.core.TyperGroup):
    """All commands."""


app = typer.Typer(
    name="dalembert",
    cls=_Application,
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


@app.callback(help=SUMMARY)
def options(version: VersionOption = False) -> None:
    """Take the options that come before a command."""


Command = TypeVar("Command", bound=Callable[..., Any])
TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
GROUPS: dict[str, str] = {name: group for group, names in TEXTS["groups"].items() for name in names}
SECTION_NAMES = r"\[system], \[method], \[initial]"  # Rich takes a word in brackets without "\" for markup
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
ConfigArgument = Annotated[Path, typer.Argument(help=rf"A TOML file with {SECTION_NAMES} and \[run].")]
ForceOption = Annotated[bool, typer.Option("--force", help="Read a damaged file, without checking it.")]
PICTURE_SUFFIXES = (".png", ".pdf", ".svg")
PICTURE_HELP = f"Draw the motion and what is conserved into this picture ({', '.join(PICTURE_SUFFIXES)})."
PlotOption = Annotated[Path | None, typer.Option(help=PICTURE_HELP)]
SETTINGS_HELP = "Change a value of the file for this run, such as run.step=0.01; may be given several times."
SettingsOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SETTINGS_HELP)]


def command(name: str) -> Callable[[Command], Command]:
    """Register a function as the command of this name; its help ends with the examples of `texts.toml`.

    A paragraph of the docstring becomes one line: the terminal breaks it where it ends, not where the source does.
    """

    def add(function: Command) -> Command:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        examples = "\n\n".join(["Examples:", *TEXTS["examples"][name]])
        app.command(name, cls=_Command, help=text, epilog=examples, rich_help_panel=GROUPS[name])(function)
        app.registered_commands.sort(key=lambda command: list(GROUPS).index(command.name or ""))
        return function

    return add


def print_json(value: Any) -> None:
    """Print one object with 17 digits and no NaN; what is neither number, text, list nor table as its text."""
    print(json.dumps(value, allow_nan=False, default=str))


def title_of(name: str, system: MechanicalSystem) -> str:
    """What a table calls a system: the user's own name for it, or where it has none, that of its model or its file."""
    nameless = system.title in (type(system).__name__, type(without_forces(system)).__name__)
    return name if nameless or ".py:" not in name else system.title


def line_width() -> int:
    """The columns of the terminal, or of $COLUMNS; 80 where the text goes into a file or a pipe."""
    return shutil.get_terminal_size((80, 24)).columns


def print_table(title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with words on the left and numbers on the right; without names of columns it has no head.

    Words are wrapped to fit the line, the widest column first; numbers and names are never cut.
    """
    table = [list(row) for row in rows]
    if right and not right[-1] and not any(row[-1] for row in table):  # remarks that nobody made
        right, table = right[:-1], [row[:-1] for row in table]
    words = len(left) if left else 2
    heads = [*left, *right] or ["", ""]
    widths = [max((len(text) for text in column), default=0) for column in zip(*table, strict=True)] or [0] * len(heads)
    widths = [max(width, 1, *map(len, head.split())) for width, head in zip(widths, heads, strict=True)]
    least = [
        max(len(part) for row in [heads, *table] for part in re.split(r"\s+|(?<=-)", row[k])) for k in range(words)
    ]
    while sum(widths) + 2 * len(widths) - 2 > line_width() and any(widths[k] > least[k] for k in range(words)):
        widths[max(range(words), key=lambda k: (widths[k] > least[k], widths[k]))] -= 1
    print(title)
    if left or right:
        _print_row(heads, widths, words, bottom=True)
        print("  ".join("-" * width for width in widths))
    for row in table:
        _print_row(row, widths, words)


def _print_row(row: Sequence[str], widths: Sequence[int], words: int, bottom: bool = False) -> None:
    cells = [textwrap.wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    cells = [[""] * (height - len(lines)) * bottom + lines + [""] * (height - len(lines)) for lines in cells]
    for parts in zip(*(lines[:height] for lines in cells), strict=True):
        left = [text.ljust(width) for text, width in zip(parts[:words], widths, strict=False)]
        right = [text.rjust(width) for text, width in zip(parts[words:], widths[words:], strict=True)]
        print("  ".join([*left, *right]).rstrip())


def print_entries(groups: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """Print names in groups with paragraphs beside them, as wide as the terminal."""
    names = max((len(name) for entries in groups.values() for name in entries), default=0)
    beside = 4 + names if line_width() >= 72 else 6
    for k, (title, entries) in enumerate(groups.items()):
        print("\n" * (k > 0) + textwrap.fill(title, line_width()))
        for name, paragraphs in entries.items():
            wrap = textwrap.TextWrapper(max(24, line_width() - beside), break_long_words=False, break_on_hyphens=False)
            lines = [line for text in paragraphs for line in wrap.wrap(text)]
            first = [lines.pop(0)] if lines and beside > names + 2 else []
            print("  " + "".join([name.ljust(beside - 2), *first]).rstrip())
            for line in lines:
                print(" " * beside + line)


COMPILING_SECONDS = 2.0
"""After so long without a step the bar says that the step is still being compiled."""


@contextmanager
def progress(title: str, waiting: str = "compiling") -> Iterator[Callable[..., None] | None]:
    """Show a bar on a terminal, which takes (done, total, note), and what one is waiting for until it does."""
    if not sys.stderr.isatty() or "JPY_PARENT_PID" in os.environ:  # a cell of a notebook keeps every picture of a bar
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
    return "-" if value is None else "0" if value == 0 else format(value, form)


def round_numbers(value: Any) -> str:
    """Numbers, lists and tables of them as text with six digits; what is next to nothing beside the rest is 0."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {round_numbers(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        numbers = [part for part in value if isinstance(part, float)]
        small = 1e-14 * max(map(abs, numbers), default=0.0)
        return f"({', '.join('0' if part in numbers and abs(part) < small else round_numbers(part) for part in value)})"
    return format(value, ".6g") if isinstance(value, float) else str(value)


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
