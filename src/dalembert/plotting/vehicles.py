"""Bodies on the plane seen from above, with their blades and wheels."""

from __future__ import annotations

from typing import Any

import numpy as np

from .geometry import vehicle
from .stage import BODY, PATH, WHEEL, Draw, Motion, Stage
from .style import GREY, LIGHT


def planar(figure: Any, motion: Motion) -> Draw:
    """A body on the plane seen from above, with its blade or wheels, and the path of its origin."""
    poses = motion.parts[0]
    body = vehicle(motion)
    strokes = [(bar, GREY) for bar in body.bars] + [(wheel, WHEEL) for wheel in body.wheels]
    stage = Stage(_floor_plan(figure, poses[:, :2, 2], 1.3 * float(np.hypot(*body.outline.T).max())), motion.t)

    def draw(k: int) -> None:
        stage.clear(k)
        pose = poses[k]
        stage.line(poses[: k + 1, :2, 2], color=PATH, linewidth=1.2)
        stage.patch(_placed(pose, body.outline), facecolor=BODY, edgecolor=GREY, alpha=0.8, linewidth=0.8, zorder=3)
        for stroke, colour in strokes:
            ends = _placed(pose, stroke.ends(k))
            stage.line(ends, color=colour, linewidth=3.0, solid_capstyle="round", zorder=4)

    return draw


def _placed(pose: np.ndarray, points: np.ndarray) -> np.ndarray:
    return np.asarray(points) @ pose[:2, :2].T + pose[:2, 2]


def _floor_plan(figure: Any, path: np.ndarray, margin: float) -> Any:
    axes = figure.add_subplot(111)
    (left, low), (right, high) = path.min(axis=0) - margin, path.max(axis=0) + margin
    axes.set(xlim=(left, right), ylim=(low, high), xlabel="x", ylabel="y")
    axes.set_aspect("equal", adjustable="box")
    axes.plot(*path.T, color=LIGHT, linewidth=1.0)
    return axes
