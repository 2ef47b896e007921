"""Bodies on the plane seen from above, with their blades and wheels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .stage import BODY, PATH, WHEEL, Draw, Motion, Stage
from .style import GREY, LIGHT


def planar(figure: Any, motion: Motion) -> Draw:
    """A body on the plane seen from above, with its blade or wheels, and the path of its origin."""
    poses = motion.parts[0]
    angles = [np.arctan2(part[:, 1, 0], part[:, 0, 0]) for part in motion.parts[1:]]
    path = poses[:, :2, 2]
    outline, wheels = VEHICLES.get(motion.name, _sleigh)(motion, 0.07 * max(float(np.ptp(path, axis=0).max()), 1e-3))
    stage = Stage(_floor_plan(figure, path, 1.3 * float(np.hypot(*outline.T).max())), motion.t)

    def draw(k: int) -> None:
        stage.clear(k)
        pose = poses[k]
        shape = [angle[k] for angle in angles]
        stage.line(poses[: k + 1, :2, 2], color=PATH, linewidth=1.2)
        stage.patch(_placed(pose, outline), facecolor=BODY, edgecolor=GREY, alpha=0.8, linewidth=0.8, zorder=3)
        for ends in wheels(shape):
            stage.line(_placed(pose, ends), color=WHEEL, linewidth=3.0, solid_capstyle="round", zorder=4)

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


def _segment(x: float, y: float, angle: float, half: float) -> np.ndarray:
    """A blade or wheel seen from above: a short line at (x, y) along `angle`."""
    along = half * np.array([np.cos(angle), np.sin(angle)])
    return np.array([x, y]) + np.stack([-along, along])


def _ellipse(centre: Iterable[float], length: float, width: float) -> np.ndarray:
    s = np.linspace(0, 2 * np.pi, 49)
    return np.asarray(centre) + np.stack([length * np.cos(s), width * np.sin(s)], -1)


def _sleigh(motion: Motion, size: float):
    """An oval body about its centre of mass (a, b), the blade at the origin."""
    a, b = motion.number("a", motion.number("centre", 0.0)), motion.number("b", 0.0)
    scale = size / max(np.hypot(a, b), 1e-9) if np.hypot(a, b) > 0 else 0.0
    centre = np.array([a, b]) * min(1.0, scale) if scale else np.zeros(2)
    length = np.hypot(*centre) + 1.1 * size
    return _ellipse(centre, length, 0.6 * length), lambda shape: [_segment(0.0, 0.0, 0.0, 0.8 * size)]


def _car(motion: Motion, size: float):
    """Two rear wheels at the origin and two steered ones ahead."""
    length = max(motion.number("length", 1.0), 1.5 * size)
    half, wheel = 0.3 * length, 0.16 * length
    outline = np.array([[-0.25, -0.3], [1.25, -0.3], [1.25, 0.3], [-0.25, 0.3]]) * length

    def wheels(shape):
        steer = shape[0] if len(shape) else 0.0
        return [_segment(x, y, angle, wheel) for x, angle in ((0.0, 0.0), (length, steer)) for y in (-half, half)]

    return outline, wheels


def _snakeboard(motion: Motion, size: float):
    """A board with an axle at either end, turned by b and -b, and its rotor."""
    length = max(motion.number("length", 0.2), size)
    return _ellipse((0, 0), 1.1 * length, 0.25 * length), lambda shape: [
        _segment(length, 0, shape[1], 0.3 * length),
        _segment(-length, 0, -shape[1], 0.3 * length),
        _segment(0, 0, shape[0] + np.pi / 2, 0.5 * length),
    ]


def _roller_racer(motion: Motion, size: float):
    """The seat on its axle, and the arm beyond the pivot with its own."""
    front, arm = motion.number("front", 0.5), motion.number("arm", 0.3)
    scale = max(1.0, 1.5 * size / (abs(front) + abs(arm)))
    front, arm = scale * front, scale * arm

    def wheels(shape):
        s = shape[0]
        end = np.array([front + arm * np.cos(s), arm * np.sin(s)])
        half = 0.35 * abs(front) + 0.1 * abs(arm)
        return [_segment(0, y, 0.0, half / 2) for y in (-half, half)] + [
            np.array([[front, 0.0], end]),
            _segment(end[0], end[1], s, half / 2),
        ]

    return _ellipse((front / 2, 0), 0.7 * abs(front), 0.3 * abs(front)), wheels


VEHICLES = {"car": _car, "snakeboard": _snakeboard, "roller-racer": _roller_racer}
