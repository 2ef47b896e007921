"""What a paper shows: a figure or a table as data, as a picture, and as a page that says what was printed and why ours differs.

Pages in Markdown: one for each exhibit, and an index of all that were made.

Runs for figures: whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..integrators import Integrator
from ..mechanics import MechanicalSystem, State
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
    """The numbers of an exhibit: arrays by name (curves, surfaces), and a table, ours beside the printed ones where there are any."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


@dataclass(frozen=True)
class Exhibit:
    """A figure or table: `compute` gives its data, `draw` its picture; the texts are for its page."""

    paper: Paper
    label: str
    title: str
    printed: str
    differs: str
    compute: Callable[[], Data]
    draw: Callable[[Data], Figure]

    @property
    def id(self) -> str:
        return f"{self.paper.key}-{self.label}"


@dataclass(frozen=True)
class Gallery:
    """The exhibits of one paper, in the order of the paper; a decorator on the function that computes adds one."""

    paper: Paper
    exhibits: list[Exhibit] = field(default_factory=list)

    def __call__(
        self, label: str, title: str, *, draw: Callable[[Data], Figure], printed: str, differs: str
    ) -> Callable:
        def add(compute: Callable[[], Data]) -> Callable[[], Data]:
            self.exhibits.append(Exhibit(self.paper, label, title, printed, differs, compute, draw))
            return compute

        return add


def exhibit_page(exhibit: Exhibit, data: Data) -> str:
    """What was printed, what we get, and why they differ, around the picture."""
    parts = [
        f"# {exhibit.paper.name}, {exhibit.label.replace('-', ' ')}: {exhibit.title}",
        exhibit.paper.citation,
        f"![{exhibit.title}]({exhibit.id}.png)",
        "## Printed",
        paragraph(exhibit.printed),
        "## Here",
        markdown_table(data.columns, data.rows),
        f"All numbers: [{exhibit.id}.json]({exhibit.id}.json). Made by `dalembert reproduce {exhibit.id}`.",
        "## Why they differ",
        paragraph(exhibit.differs),
    ]
    return "\n\n".join(parts) + "\n"


def paragraph(text: str) -> str:
    """A text of the source as one paragraph."""
    return " ".join(text.split())


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
    lines = ["| " + " | ".join(map(format_cell, columns)) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(map(format_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def format_cell(value: Any) -> str:
    """A number with the digits that matter, a dash for nothing."""
    if value is None or (isinstance(value, float | np.floating) and not np.isfinite(value)):
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    text = format(value, ".6g") if isinstance(value, float | np.floating) else str(value)
    return text.replace("|", "\\|")


def simulate_uninterrupted(system: MechanicalSystem, integrator: Integrator, state: State, **options: Any) -> Run:
    """`dalembert.simulate`, but Ctrl-C ends the figure: half a run must not be drawn as a whole one."""
    run = simulate(system, integrator, state, **options)
    if run.interrupted:
        raise KeyboardInterrupt
    return run
