"""Exhibits of the papers: a figure or table as data, as a picture, and as a page that says how ours differs and why."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..integrators import Integrator
from ..mechanics import MechanicalSystem, State
from ..plotting.style import space, styled
from ..simulation import Run, simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Paper:
    """One of the papers; `key` begins the ids of its exhibits."""

    key: str
    name: str
    citation: str


@dataclass(frozen=True)
class Data:
    """The numbers of an exhibit: a table, ours beside the printed ones where there are any, and arrays by name."""

    columns: Sequence[str]
    rows: list[Any] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    note: str = ""  # what could not be computed in this run, for the page

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


MOMENTUM_AXES = ("$M_1$", "$M_2$", "$M_3$")
Compute = Callable[[], Data]
Draw = Callable[[Any, Data], None]


@dataclass(frozen=True)
class Exhibit:
    """A figure or table: `compute` gives its data, `draw` its picture; the texts are for its page."""

    paper: Paper
    label: str
    title: str
    printed: str
    differs: str
    compute: Compute
    draw: Callable[[Data], Figure]

    @property
    def id(self) -> str:
        return f"{self.paper.key}-{self.label}"


TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
"""By the key of a paper: its name and citation, and by label the title and the texts of an exhibit."""


@dataclass(frozen=True)
class Gallery:
    """The exhibits of the paper with this key, in its order; as a decorator it adds what a function computes."""

    key: str
    exhibits: list[Exhibit] = field(default_factory=list)

    @property
    def paper(self) -> Paper:
        return Paper(self.key, TEXTS[self.key]["name"], " ".join(TEXTS[self.key]["citation"].split()))

    def __call__(
        self, label: str, *, draw: Draw, size: tuple[float, float], **axes: Any
    ) -> Callable[[Compute], Compute]:
        """`draw` fills the `axes` of a figure of this size (inches): with labels those of `space`, else subplots."""
        texts = {part: " ".join(text.split()) for part, text in TEXTS[self.key][label].items()}

        @styled
        def draw_figure(data: Data) -> Figure:
            from matplotlib.figure import Figure

            figure = Figure(figsize=size, layout="constrained")
            draw(space(figure, **axes) if "labels" in axes else figure.subplots(**axes), data)
            return figure

        def add(compute: Compute) -> Compute:
            self.exhibits.append(Exhibit(self.paper, label, **texts, compute=compute, draw=draw_figure))
            return compute

        return add


def exhibit_page(exhibit: Exhibit, data: Data) -> str:
    """What was printed, what we get, and why they differ, around the picture, in Markdown."""
    parts = [
        f"# {exhibit.paper.name}, {exhibit.label.replace('-', ' ')}: {exhibit.title}",
        exhibit.paper.citation,
        f"![{exhibit.title}]({exhibit.id}.png)",
        "## Printed",
        exhibit.printed,
        "## Here",
        markdown_table(data.columns, data.rows),
        *([data.note] if data.note else []),
        f"All numbers: [{exhibit.id}.json]({exhibit.id}.json). Made by `dalembert reproduce {exhibit.id}`.",
        "## Why they differ",
        exhibit.differs,
    ]
    return "\n\n".join(parts) + "\n"


def index_page(exhibits: Sequence[Exhibit]) -> str:
    """The list of pages, by paper."""
    lines = ["# Figures and tables of the papers", ""]
    for paper in dict.fromkeys(exhibit.paper for exhibit in exhibits):
        lines += [f"## {paper.name}", "", paper.citation, ""]
        lines += [f"- [{e.label.replace('-', ' ')}: {e.title}]({e.id}.md)" for e in exhibits if e.paper == paper]
        lines.append("")
    return "\n".join(lines)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(map(format_cell, cells)) + " |" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def format_cell(value: Any) -> str:
    """A number with the digits that matter, a dash for nothing."""
    if value is None or (isinstance(value, float | np.floating) and not np.isfinite(value)):
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    text = format(value, ".6g") if isinstance(value, float | np.floating) else str(value)
    return text.replace("|", "\\|")


def simulate_uninterrupted(system: MechanicalSystem, integrator: Integrator, state: State, **options: Any) -> Run:
    """`dalembert.simulate`, but Ctrl-C ends the exhibit: half a run must not be drawn as a whole one."""
    run = simulate(system, integrator, state, **options)
    if run.interrupted:
        raise KeyboardInterrupt
    return run
