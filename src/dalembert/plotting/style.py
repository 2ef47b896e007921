"""One look for every figure: fonts, colours that the colour-blind tell apart, dashes that survive black and white."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito (2008), ordered by contrast with white."""
Dash = str | tuple[int, tuple[int, ...]]
DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STROKES = [(COLOURS[k % 7], DASHES[(k + k // 7) % 7]) for k in range(49)]
"""Pairs of a colour and a dash, no two alike: many methods in one picture can be told apart."""
GREY, LIGHT = "#555555", "#dddddd"
FLOOR = 1e-17
STYLE = Path(__file__).with_name("style.mplstyle")


P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a function draw in the house style; Matplotlib is imported when something is drawn, not before."""

    @wraps(draw)
    def draw_in_style(*arguments: P.args, **options: P.kwargs) -> R:
        import matplotlib

        with matplotlib.rc_context(matplotlib.rc_params_from_file(STYLE, use_default_template=False)):
            return draw(*arguments, **options)

    return draw_in_style


def sheet(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (6.4, 4.2), **options: Any
) -> tuple[Figure, Any]:
    """A figure of rows x columns axes, and the axes as `matplotlib.figure.Figure.subplots` gives them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def space(figure: Figure, cell: Any = 111, *, labels: tuple[str, str, str] = ("x", "y", "z"), **view: Any) -> Any:
    """Three-dimensional axes with light panes and labels; `view` is elev, azim."""
    axes: Any = figure.add_subplot(cell, projection="3d")
    for axis, label in zip((axes.xaxis, axes.yaxis, axes.zaxis), labels, strict=True):
        axis.set_pane_color((1.0, 1.0, 1.0, 0.0))
        axis._axinfo["grid"].update(color=LIGHT, linewidth=0.5)
        axis.set_label_text(label)
    axes.view_init(**{"elev": 22, "azim": -58, **view})
    return axes


def curve(axes: Axes, t: Any, values: Any, **style: Any) -> None:
    """|values| on a logarithmic axis; exact zeros stand on the floor."""
    axes.semilogy(np.asarray(t), np.maximum(np.abs(np.asarray(values)), FLOOR), **style)


def legend_below(axes: Axes, columns: int = 2) -> None:
    """The legend of axes under them."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns)


def headline(figure: Figure, text: str) -> None:
    """The title of a figure, at its left."""
    figure.suptitle(text, fontsize=11, fontweight="bold", x=0.01, ha="left")


def save(figure: Figure, path: str | Path | None, title: str | None = None) -> Figure:
    """Give the figure its title, and write it where a path is given: the suffix decides the format."""
    if title is not None:
        headline(figure, title)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
