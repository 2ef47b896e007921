"""Pages in Markdown: one for each exhibit, and an index of all that were made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .exhibit import Data, Exhibit


def page(exhibit: Exhibit, data: Data) -> str:
    """What was printed, what we get, and why they differ, around the picture."""
    parts = [
        f"# {exhibit.paper.name}, {exhibit.label.replace('-', ' ')}: {exhibit.title}",
        exhibit.paper.citation,
        f"![{exhibit.title}]({exhibit.id}.png)",
        "## Printed",
        flow(exhibit.printed),
        "## Here",
        table(data.columns, data.rows),
        f"All numbers: [{exhibit.id}.json]({exhibit.id}.json). Made by `dalembert reproduce {exhibit.id}`.",
        "## Why they differ",
        flow(exhibit.differs),
    ]
    return "\n\n".join(parts) + "\n"


def flow(text: str) -> str:
    """A text of the source as one paragraph."""
    return " ".join(text.split())


def index(exhibits: Sequence[Exhibit]) -> str:
    """The list of pages, by paper."""
    lines = ["# Figures and tables of the papers", ""]
    for paper in dict.fromkeys(exhibit.paper for exhibit in exhibits):
        lines += [f"## {paper.name}", "", paper.citation, ""]
        lines += [f"- [{e.label.replace('-', ' ')}: {e.title}]({e.id}.md)" for e in exhibits if e.paper == paper]
        lines.append("")
    return "\n".join(lines)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(map(cell, columns)) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: Any) -> str:
    """A number with the digits that matter, a dash for nothing."""
    if value is None or (isinstance(value, float | np.floating) and not np.isfinite(value)):
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    text = format(value, ".6g") if isinstance(value, float | np.floating) else str(value)
    return text.replace("|", "\\|")
