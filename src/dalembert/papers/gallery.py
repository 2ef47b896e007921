"""What a paper shows: a figure or a table as data, as a picture, and as a page that says what was printed and why ours differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

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
