"""Points in R^n: the trace, and at places along it the plane in which the velocity must lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..seen import Seen
from ..shapes import CONSTRAINT, DARK, VELOCITY, View, cylinder, label, plane, sphere
from .parts import arrows, facing, unit

PLANES = 16


def point(view: View, seen: Seen) -> str:
    """Three coordinates of a point, with its field of planes; fewer are drawn in the plane, one over time."""
    q = seen.motion.parts[0]
    chosen = _chosen(seen)
    points, velocity = _three(q, chosen, seen), _three(seen.velocity, chosen, seen, rate=True)
    stretch = _evened(points)
    points, velocity = points * stretch, velocity * stretch
    reach = max(float(np.ptp(points, axis=0).max()), 1e-3)
    part: dict[str, Any] = {"run": seen.number}
    view.trace("path", points, seen.colour, width=3.0, **part)
    view.add("particle", sphere(0.03 * reach), seen.colour, position=points, **part)
    tip = points + arrows(velocity, 0.3 * reach)
    view.arrow("velocity", points, tip, VELOCITY, width=0.01 * reach, **part)
    if seen.first:
        _axes(view, points, reach, [f"q{i + 1}" for i in chosen] if q.shape[1] > 1 else ["time", "q1"])
    text = _planes(view, seen, points, chosen, stretch, reach) if seen.rows.shape[1] == 1 and len(chosen) == 3 else ""
    return f"Amber: the velocity. {text}".strip()


def _chosen(seen: Seen) -> list[int]:
    """Which coordinates are drawn: the first three, and of pairs (y, z) the first pair."""
    n = seen.motion.parts[0].shape[1]
    if seen.motion.name == "chaotic-quartic":
        return [0, 1, 1 + (n - 1) // 2]
    return list(range(min(n, 3)))


def _three(values: np.ndarray, chosen: list[int], seen: Seen, rate: bool = False) -> np.ndarray:
    """Some components as points in space."""
    shown = values[:, chosen]
    if values.shape[1] == 1:
        time = np.ones(len(values)) if rate else seen.motion.t * _stretch(seen)
        return np.column_stack([time * (_stretch(seen) if rate else 1.0), shown, np.zeros(len(values))])
    return shown if len(chosen) == 3 else np.column_stack([shown, np.zeros((len(values), 3 - len(chosen)))])


def _stretch(seen: Seen) -> float:
    """How long a unit of time is drawn: the whole run is three times as long as it is high."""
    height = float(np.ptp(seen.motion.parts[0])) or 1.0
    return 3 * height / max(float(np.ptp(seen.motion.t)), 1e-300)


def _axes(view: View, points: np.ndarray, reach: float, names: list[str]) -> None:
    """Axes in the corner of what is seen."""
    corner = points.min(axis=0) - 0.1 * reach
    for name, axis in zip(names, np.eye(3), strict=False):
        end = corner + 0.25 * reach * axis
        view.arrow("", corner, end, DARK, width=0.006 * reach)
        view.add("", label(name), DARK, position=corner + 0.29 * reach * axis)


def _evened(points: np.ndarray) -> np.ndarray:
    """Factors (3,) that make the extents of a path alike where one is many times another."""
    extents = np.ptp(points, axis=0)
    wide = np.where(extents > 1e-3 * max(float(extents.max()), 1e-300), extents, extents.max() or 1.0)
    return wide.max() / wide if wide.max() > 4 * wide.min() else np.ones(3)


def _planes(view: View, seen: Seen, points: np.ndarray, chosen: list[int], stretch: np.ndarray, reach: float) -> str:
    """The plane A v = 0 along the path and at the particle, with its normal crossed out."""
    normals = unit(seen.rows[:, 0, chosen] / stretch)  # covectors: the plane A v = 0 is stretched with the path
    if np.linalg.norm(normals, axis=1).min() < 0.5:
        return ""
    if seen.first:
        gone = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1)))
        spots = np.unique(np.searchsorted(gone, np.linspace(0, gone[-1], PLANES)).clip(0, len(points) - 1))
        for k in spots if len(spots) > 1 else []:
            patch: dict[str, Any] = {"position": points[k], "rotation": facing(normals[k]), "opacity": 0.18}
            view.add("plane along the path", plane(0.16 * reach), CONSTRAINT, **patch)
        across = 0.17 * reach * normals
        view.arrow("forbidden", points - across, points + across, CONSTRAINT, width=0.008 * reach, crossed=True, run=0)
    patch = {"position": points, "rotation": facing(normals), "opacity": 0.5 * seen.opacity, "run": seen.number}
    view.add("plane of allowed velocities", plane(0.36 * reach), CONSTRAINT, **patch)
    if seen.velocity.shape[1] == 3:
        return "Orange-red: the planes in which the velocity must lie, along the path and here; the direction across is crossed out."
    return "Orange-red: the plane in which the velocity would lie if the coordinates that are not drawn stood still."


def chain(view: View, seen: Seen) -> str:
    """Masses on rods, hung from the origin, in the plane (drawn upright) or in space."""
    lengths = np.asarray(seen.motion.parameters.get("lengths", [1.0]), float)
    masses = np.asarray(seen.motion.parameters.get("masses", np.ones(len(lengths))), float)
    places = seen.motion.parts[0].reshape(len(seen.motion.t), len(lengths), -1)
    if places.shape[2] == 2:
        places = np.stack([places[..., 0], 0 * places[..., 0], places[..., 1]], axis=-1)
    above = np.zeros((len(places), 3))
    size = float(lengths.mean())
    for i, (mass, length) in enumerate(zip(masses, lengths, strict=True)):
        here = places[:, i]
        middle, turn = (here + above) / 2, facing(here - above)
        view.add(
            "rod",
            cylinder(0.02 * size, length),
            CONSTRAINT,
            position=middle,
            rotation=turn,
            opacity=seen.opacity,
            run=seen.number,
        )
        radius = 0.1 * size * (mass / masses.max()) ** (1 / 3)
        view.add("mass", sphere(radius), seen.colour, position=here, opacity=seen.opacity, run=seen.number)
        above = here
    view.trace("path of the last mass", above, seen.colour, run=seen.number)
    view.add("support", sphere(0.05 * size), DARK, position=np.zeros(3))
    view.see([[0.0, 0.0, 0.0]], 1.05 * float(lengths.sum()))
    return "Orange-red: the rods, which must keep their lengths. They are drawn with these lengths: a gap is an error of the method."
