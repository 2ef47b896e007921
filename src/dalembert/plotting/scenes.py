"""Scenes that move: bodies in the plane, rolling disks and balls, a body that turns, a point.

A scene draws what stands still and returns `draw(k)`, which draws the k-th moment in place of the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InvalidInput
from .geometry import Roller, circle, globe, sides, suslov_wheel
from .stage import BODY, PATH, WHEEL, Draw, Motion, Stage
from .style import COLOURS, GREY, LIGHT, space
from .vehicles import planar


def scene(figure: Any, motion: Motion) -> Draw:
    """The scene of a motion, as its group and its system show it best."""
    upright = motion.group == "SE(2) x SO(2)" and "radius" in motion.parameters
    if upright:
        return _upright_disk(figure, motion)
    if motion.group.startswith("SE(2)"):
        return planar(figure, motion)
    if motion.group == "SO(3) x R^2":
        return _rolling(figure, motion)
    if motion.group in ("SO(3)", "SE(3)"):
        return _turning(figure, motion)
    if motion.group.startswith("R^") and " " not in motion.group:
        return _point(figure, motion)
    raise InvalidInput(
        f"there is no moving picture for {motion.group}; there is one for SE(2) with shape angles, SO(3), SE(3), SO(3) x R^2 and R^n"
    )


def _ground(figure: Any, path: np.ndarray, size: float, height: float) -> Any:
    """Axes in equal units over the floor z = 0 around a path, with room for a body of `size`."""
    axes = space(figure, labels=("x", "y", "z"))
    low, high = path.min(axis=0) - size, path.max(axis=0) + size
    middle, half = (low + high) / 2, max(float((high - low).max()) / 2, height)
    axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half), zlim=(0, height))
    axes.set_box_aspect((2 * half, 2 * half, height), zoom=1.15)
    axes.locator_params(nbins=5)
    axes.locator_params(axis="z", nbins=2)
    return axes


def _flat(path: np.ndarray) -> np.ndarray:
    """A path on the floor, in space."""
    return np.column_stack([path, np.zeros(len(path))])


def _upright_disk(figure: Any, motion: Motion) -> Draw:
    """A disk that rolls upright, with spokes that show its turning and the track of its contact."""
    pose, roll, radius = motion.parts[0], motion.parts[1], motion.number("radius", 1.0)
    axes = _ground(figure, pose[:, :2, 2], radius, 2.2 * radius)
    stage = Stage(axes, motion.t)
    rim = circle(radius, 0, 2)

    def draw(k: int) -> None:
        stage.clear(k)
        angle = np.arctan2(roll[k, 1, 0], roll[k, 0, 0])
        turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
        frame = np.eye(3)
        frame[:2, :2] = pose[k, :2, :2]
        centre = np.append(pose[k, :2, 2], radius)
        stage.line(_flat(pose[: k + 1, :2, 2]), color=PATH)
        _disk(stage, rim @ (frame @ turn).T + centre, centre)

    return draw


def _disk(stage: Stage, rim: np.ndarray, centre: np.ndarray) -> None:
    stage.faces([rim], facecolor=BODY, edgecolor=GREY, alpha=0.75)
    for k in range(0, 48, 12):
        stage.line(np.stack([centre, rim[k]]), color=WHEEL if k == 0 else GREY, linewidth=2.2 if k == 0 else 0.8)


def _rolling(figure: Any, motion: Motion) -> Draw:
    """A ball, a leaning disk or an ellipsoid that rolls: its lowest point is on the floor."""
    turns, place = motion.parts
    body = Roller.of(motion)
    centres, size = body.centres(turns, place), float(body.semi.max())
    axes = _ground(figure, place, size, 2.2 * size)
    stage = Stage(axes, motion.t)
    rim = circle(size, 0, 2)
    lines = [circle(1.0, *pair) * body.semi + body.shift for pair in ((0, 1), (0, 2), (1, 2))]
    points = globe(body.semi) + body.shift
    facets = np.stack([points[:-1, :-1], points[1:, :-1], points[1:, 1:], points[:-1, 1:]], axis=2).reshape(-1, 4, 3)

    def draw(k: int) -> None:
        stage.clear(k)
        stage.line(_flat(place[: k + 1]), color=PATH)
        if not body.semi.all():
            _disk(stage, rim @ turns[k].T + centres[k], centres[k])
            return
        stage.faces(facets @ turns[k].T + centres[k], facecolor=BODY, edgecolor="none", alpha=0.25)
        for line, colour in zip(lines, (WHEEL, COLOURS[2], COLOURS[3]), strict=True):
            stage.line(line @ turns[k].T + centres[k], color=colour, linewidth=1.6)

    return draw


def _turning(figure: Any, motion: Motion) -> Draw:
    """A box of the body's proportions about its fixed point (or its place), the trace of its third axis, and a Suslov body's wheel."""
    frames = motion.parts[0]
    turns, places = frames[:, :3, :3], frames[:, :3, 3] if frames.shape[-1] == 4 else np.zeros((len(frames), 3))
    reach = 1.15 + float(np.abs(places).max())
    axes = space(figure, labels=("x", "y", "z"))
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
    axes.set_box_aspect((1, 1, 1), zoom=1.1)
    axes.locator_params(nbins=5)
    stage = Stage(axes, motion.t)
    corners = _box(sides(motion.parameters.get("inertia")))
    wheel = _wheel(motion.parameters.get("normal")) if motion.name == "suslov" else []

    def draw(k: int) -> None:
        stage.clear(k)
        move = lambda points: points @ turns[k].T + places[k]
        stage.line(turns[: k + 1, :, 2] + places[: k + 1], color=PATH, linewidth=1.0)
        stage.faces(move(corners), facecolor=BODY, edgecolor=GREY, alpha=0.55, linewidth=0.7)
        stage.line(move(np.array([[0, 0, 0], [0, 0, 1.0]])), color=PATH, linewidth=1.8)
        for line in wheel:
            stage.line(move(line), color=WHEEL, linewidth=2.2)

    return draw


def _box(half: np.ndarray) -> np.ndarray:
    """The faces (6, 4, 3) of a box with these half sides."""
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], float)
    faces = [np.insert(square, axis, sign, axis=1) for axis in range(3) for sign in (-1.0, 1.0)]
    return np.array(faces) * half


def _wheel(normal: Any) -> list[np.ndarray]:
    """The rim of a Suslov body's wheel, and the arm that holds it."""
    n, middle, _ = suslov_wheel(normal)
    s = np.linspace(0, 2 * np.pi, 33)
    across = middle / np.linalg.norm(middle)
    return [middle + 0.18 * (np.outer(np.cos(s), across) + np.outer(np.sin(s), n)), np.stack([0 * middle, middle])]


def _point(figure: Any, motion: Motion) -> Draw:
    """A point in R^n: its first three coordinates in space, two in the plane, one over time."""
    q = motion.parts[0]
    points = q[:, :3] if q.shape[1] > 1 else np.column_stack([motion.t, q[:, 0]])
    if points.shape[1] == 3:
        axes = space(figure, labels=("$q_1$", "$q_2$", "$q_3$"))
    else:
        axes = figure.add_subplot(111)
        axes.set(xlabel="$q_1$" if q.shape[1] > 1 else "time", ylabel="$q_2$" if q.shape[1] > 1 else "$q_1$")
    axes.plot(*points.T, color=LIGHT, linewidth=0.8)
    stage = Stage(axes, motion.t)

    def draw(k: int) -> None:
        stage.clear(k)
        stage.line(points[: k + 1], color=PATH, linewidth=1.2)
        stage.line(points[k : k + 1], color=WHEEL, marker="o", markersize=6, linestyle="")

    return draw
