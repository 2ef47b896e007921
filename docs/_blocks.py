"""The code on a page of Markdown: found, checked and run. The tests run the tutorials with it, and so does the gallery.

A `python` block runs after those before it, in one namespace; with a title it is saved as the file of that name
instead, as is a `toml` block. A `console` block is typed into the command line. What is too long, or needs a GPU,
stands in a `py` or `bash` block: it is compiled, or its command and options are looked up, but it does not run.

A page is a notebook too: `python docs/_blocks.py FOLDER` writes one of each tutorial, and without FOLDER the six that
are in the repository, in notebooks/.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(\w*)(?: title=\"(.+?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is to be saved as (or ""), its text, and its place."""

    language: str
    title: str
    text: str
    place: str

    @property
    def commands(self) -> list[list[str]]:
        """The arguments of each `dalembert` command, without comments."""
        lines = (line.strip() for line in self.text.splitlines())
        return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("dalembert ")]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    line = lambda found: text.count("\n", 0, found.start()) + 1
    return [Block(f[1], f[2] or "", f[3], f"{page.name}, line {line(f)}") for f in FENCE.finditer(text)]


IMAGE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)\n?")
TUTORIALS = Path(__file__).parent / "tutorials"
NAMES = tomllib.loads((Path(__file__).parent / "api" / "names.toml").read_text(encoding="utf-8"))
IMPORTS = ("import dalembert as da", "import jax.numpy as jnp", "import numpy as np")
NAMESPACES = tomllib.loads((Path(__file__).parent / "api" / "namespaces.toml").read_text(encoding="utf-8"))
NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
SELECTED = {
    "first-steps": TUTORIALS.parent / "quick-start.md",
    "own-vehicle": TUTORIALS / "vehicle.md",
    "fit": TUTORIALS / "fit.md",
    "plan": TUTORIALS / "park.md",
    "a-million-rollouts": TUTORIALS / "rollouts.md",
    "a-figure-of-a-paper": TUTORIALS / "papers.md",
}
"""The notebooks in the repository (`make notebooks` writes them) and the pages that they are made from."""
FILE, TYPED = "%%writefile ", "!"  # how a cell of a notebook is saved as a file, and typed into the command line
SCRIPTS = """import os, sysconfig

# where `dalembert` is, also if its environment is not active
os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]"""
PAGE_LINK = re.compile(r"(?<=\]\()([\w./-]+)\.md(?=[)#])")


def example(name: str) -> str:
    """The program of a public name in api/names.toml, with the imports that it uses."""
    text = NAMES[name]["example"]
    return "\n".join([*(line for line in IMPORTS if re.search(rf"\b{line.split()[-1]}\.", text)), text.rstrip()])


def example_below(key: str) -> str:
    """The program of a name such as "analysis.drift" in api/namespaces.toml, or of the one to which it sends."""
    own = NAMESPACES["example"][key]
    if isinstance(own, str):
        return own.strip()
    return example_below(own["see"]) if own["see"] in NAMESPACES["example"] else example(own["see"].removeprefix("da."))


def example_of_model(model: Any) -> str:
    """A program that runs a model of the registry from its own start."""
    show = lambda given: ", ".join(f"{key}={value!r}" for key, value in given.items())
    initial = dict(model.initial)
    start = {new: initial.pop(old) for old, new in (("velocity", "xi"), ("momentum", "momentum")) if old in initial}
    where = [f"system.group.configuration({initial.pop('configuration')!r})"] if "configuration" in initial else []
    return "\n".join([
        f"system = da.models.{model.build.__name__}({show(model.example)})",
        f"start = system.state({', '.join([*where, *filter(None, [show(initial | start)])])})",
        f"run = da.simulate(system, da.LagrangeDAlembert(), start, step={model.step!r}, steps=10).check()",
    ])  # fmt: skip


def meaning(key: str, argument: str) -> str | None:
    """What an argument of a name means: there, in its namespace, or everywhere."""
    told, namespace = NAMESPACES["arguments"], key.partition(".")[0]
    return next(
        (told[each] for each in (f"{key}.{argument}", f"{namespace}.{argument}", argument) if each in told), None
    )


def notebook(page: Path, folder: Path = NOTEBOOKS, published: bool = False) -> str:
    """The page as a Jupyter notebook, in JSON: text in cells of Markdown, blocks that run in cells of code.

    Links lead from `folder` to the pages; if published, it lies beside its page on the site.
    """
    there = lambda found: os.path.relpath(page.parent / f"{found[1]}.md", folder).replace(os.sep, "/")
    text, cells, end = page.read_text(encoding="utf-8"), [], 0
    text = PAGE_LINK.sub(r"\1.html" if published else there, text)
    for found in FENCE.finditer(text):
        language, title, code = found[1], found[2], found[3].rstrip("\n")
        if title:
            code = f"{FILE}{title}\n{code}"
        elif language == "console":
            code = "\n".join(TYPED + line for line in code.splitlines() if line.startswith("dalembert "))
        elif language != "python":
            continue
        cells.append(("markdown", _without_drawn(text[end : found.start()], cells)))
        if code.startswith(TYPED) and ("code", SCRIPTS) not in cells:
            cells.append(("code", SCRIPTS))
        cells.append(("code", code))
        end = found.end()
    cells.append(("markdown", _without_drawn(text[end:], cells)))
    more = {"markdown": {}, "code": {"execution_count": None, "outputs": []}}
    made = [
        {"cell_type": kind, "id": f"{page.stem}-{k}", "metadata": {}, "source": source, **more[kind]}
        for k, (kind, source) in enumerate(cells)
        if source
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _without_drawn(text: str, before: list[tuple[str, str]]) -> str:
    """Text without the pictures that the cell before it shows: its last line draws them, or is the figure."""
    drawn = before[-1][1].splitlines()[-1] if before else ""
    shown = lambda name: drawn == "figure" or f'plot("{name}"' in drawn
    return IMAGE.sub(lambda found: "" if shown(found[1]) else found[0], text).strip("\n")


def write_notebooks(folder: Path, published: bool = False) -> list[Path]:
    """The notebooks of all tutorials, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{page.stem}.ipynb" for page in sorted(TUTORIALS.glob("[!i]*.md"))]
    for path in made:
        path.write_text(notebook(TUTORIALS / f"{path.stem}.md", folder, published), encoding="utf-8")
    return made


def write_selected() -> list[Path]:
    """The notebooks that are in the repository, each made from its page."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for name, page in SELECTED.items():
        (NOTEBOOKS / f"{name}.ipynb").write_text(notebook(page), encoding="utf-8")
    return [NOTEBOOKS / f"{name}.ipynb" for name in SELECTED]


def cells(file: Path) -> list[Block]:
    """The cells of code of a notebook, as blocks."""
    found = []
    for k, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"]):
        source, place = "".join(cell["source"]), f"{file.name}, cell {k}"
        if cell["cell_type"] == "markdown" or source == SCRIPTS:
            continue
        if source.startswith(FILE):
            title, _, text = source.removeprefix(FILE).partition("\n")
            found.append(Block("text", title, text, place))
        elif source.startswith(TYPED):
            found.append(Block("console", "", source.replace(TYPED, ""), place))
        else:
            found.append(Block("python", "", source, place))
    return found


def run(page: Path, folder: Path) -> dict[str, object]:
    """Run a page or a notebook in a folder and give what its python blocks defined."""
    names: dict[str, object] = {"__name__": page.stem}
    found = blocks(page) if page.suffix == ".md" else cells(page)
    with contextlib.chdir(folder):
        for block in found:
            _run_block(block, names)
    return names


def _run_block(block: Block, names: dict[str, object]) -> None:
    if block.title:
        Path(block.title).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        exec(compile(block.text, block.place, "exec"), names)
    elif block.language == "py":
        compile(block.text, block.place, "exec")
    elif block.language == "console":
        for arguments in block.commands:
            _type(arguments, block.place)
    elif block.language == "bash":
        require_commands(block)


def _type(arguments: list[str], place: str) -> None:
    """One command in a terminal that is not one: it must end with exit code 0."""
    from typer.testing import CliRunner

    from dalembert.cli import app

    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "160", **os.environ})
    if result.exit_code:
        raise RuntimeError(f"{place}: dalembert {shlex.join(arguments)} ended with {result.exit_code}\n{result.output}")


def require_commands(block: Block) -> None:
    """Refuse commands and options that the command line does not have; nothing runs."""
    import typer

    from dalembert.cli import app

    group = typer.main.get_command(app)
    for arguments in block.commands:
        with group.make_context("dalembert", list(arguments)) as context:
            name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
            command.make_context(name, rest, parent=context)


if __name__ == "__main__":
    made = write_notebooks(Path(sys.argv[1])) if len(sys.argv) > 1 else write_selected()
    print("\n".join(map(str, made)))
