"""Figures: motions, what they keep, and studies of methods, in one style."""

from .motion import draw_motion, plot_attitude
from .runs import draw_invariants, plot_comparison, plot_invariants, plot_trajectory
from .studies import plot_convergence, plot_portrait, plot_section, plot_work_precision
from .style import COLOURS, DASHES, FLOOR, MARKERS, STYLE, curve, sheet, styled
from .surfaces import plot_momentum

__all__ = [
    "COLOURS",
    "DASHES",
    "FLOOR",
    "MARKERS",
    "STYLE",
    "curve",
    "draw_invariants",
    "draw_motion",
    "plot_attitude",
    "plot_comparison",
    "plot_convergence",
    "plot_invariants",
    "plot_momentum",
    "plot_portrait",
    "plot_section",
    "plot_trajectory",
    "plot_work_precision",
    "sheet",
    "styled",
]
