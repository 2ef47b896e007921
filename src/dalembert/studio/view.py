"""What a scene is made of, as data for the page: shapes, and parts that carry them along tracks.

A track is (frames, 3) places or (frames, 3, 3) rotations; what stands still has no first axis. Arrays travel as base64 of float32.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..groups import quaternions
from ..plotting.style import COLOURS

Shape = dict[str, Any]
CONSTRAINT, VELOCITY, REACTION, MOMENTUM, SURFACE = COLOURS[1], COLOURS[4], COLOURS[3], COLOURS[3], COLOURS[5]
DARK, PALE = "#444444", "#b8c4cc"


def packed(values: Any) -> dict[str, Any]:
    """An array of numbers for the page; numbers too large for float32 are cut there."""
    most = float(np.finfo(np.float32).max)
    array = np.clip(np.nan_to_num(np.asarray(values, float), nan=0.0), -most, most).astype("<f4")
    return {"f32": base64.b64encode(array.tobytes()).decode("ascii"), "shape": list(array.shape)}


# -- shapes ---------------------------------------------------------------------------------------------------------------------
def box(*size: float) -> Shape:
    return {"kind": "box", "size": [float(s) for s in size]}


def ellipsoid(*axes: float) -> Shape:
    return {"kind": "ellipsoid", "axes": [float(a) for a in axes]}


def sphere(radius: float) -> Shape:
    return ellipsoid(radius, radius, radius)


def cylinder(radius: float, height: float) -> Shape:
    """About the z axis, its middle at the origin."""
    return {"kind": "cylinder", "radius": float(radius), "height": float(height)}


def torus(radius: float, tube: float) -> Shape:
    """About the z axis."""
    return {"kind": "torus", "radius": float(radius), "tube": float(tube)}


def plane(size: float) -> Shape:
    """A square patch across the z axis."""
    return {"kind": "plane", "size": float(size)}


def mesh(vertices: np.ndarray, faces: np.ndarray) -> Shape:
    return {"kind": "mesh", "vertices": packed(vertices), "faces": np.asarray(faces, int).tolist()}


def label(text: str) -> Shape:
    return {"kind": "label", "text": text}


NOTHING: Shape = {"kind": "none"}


def surface(points: np.ndarray) -> Shape:
    """A grid of points (i, j, 3) as triangles."""
    rows, columns = points.shape[:2]
    corner = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).ravel()
    lower = np.stack([corner, corner + columns, corner + 1], axis=1)
    upper = np.stack([corner + 1, corner + columns, corner + columns + 1], axis=1)
    return mesh(points.reshape(-1, 3), np.concatenate([lower, upper]))


def prism(outline: np.ndarray, height: float) -> Shape:
    """A convex outline (n, 2) raised from z = 0 to `height`."""
    n = len(outline)
    base = np.column_stack([outline, np.zeros(n)])
    fan = np.stack([np.zeros(n - 2, int), np.arange(1, n - 1), np.arange(2, n)], axis=1)
    here, there = np.arange(n), (np.arange(n) + 1) % n
    sides = np.concatenate([np.stack([here, there, there + n], 1), np.stack([here, there + n, here + n], 1)])
    return mesh(
        np.concatenate([base, base + np.array([0.0, 0.0, height])]), np.concatenate([fan[:, ::-1], fan + n, sides])
    )


# -- views ----------------------------------------------------------------------------------------------------------------------
@dataclass
class View:
    """Parts in space, turned by `tilt` as a whole (a slope), with what the camera has to see."""

    title: str
    tilt: np.ndarray = field(default_factory=lambda: np.eye(3))
    parts: list[dict[str, Any]] = field(default_factory=list)
    ground: dict[str, Any] | None = None
    seen: list[np.ndarray] = field(default_factory=list)
    offset: np.ndarray = field(default_factory=lambda: np.zeros(3))  # of what is added now
    towards: tuple[float, float, float] = (0.75, -1.0, 0.7)  # from what is seen to the camera

    def add(
        self,
        name: str,
        shape: Shape,
        colour: str,
        *,
        position: Any = None,
        rotation: Any = None,
        opacity: float = 1.0,
        run: int | None = None,
        parent: int | None = None,
    ) -> int:
        """A part; its number, for the parts that it carries."""
        if parent is None:
            position = (np.zeros(3) if position is None else np.asarray(position, float)) @ self.tilt.T + self.offset
            rotation = self.tilt @ (np.eye(3) if rotation is None else np.asarray(rotation, float))
            self.see(position)
        self.parts.append(
            {
                "run": run,
                "name": name,
                "colour": colour,
                "opacity": opacity,
                "shape": shape,
                "position": _still_or_track(position, 1),
                "rotation": _still_or_track(None if rotation is None else _quaternions(rotation), 1),
                "parent": parent,
            }
        )
        return len(self.parts) - 1

    def trace(self, name: str, points: Any, colour: str, *, width: float = 2.0, whole: bool = True, **part: Any) -> int:
        """A curve that is drawn as the motion goes on."""
        shape = {"kind": "trace", "points": packed(self._placed(points, part)), "width": width, "whole": whole}
        return self._line(name, shape, colour, part)

    def line(self, name: str, points: Any, colour: str, *, width: float = 2.0, **part: Any) -> int:
        """A curve that stands still."""
        return self._line(
            name, {"kind": "line", "points": packed(self._placed(points, part)), "width": width}, colour, part
        )

    def arrow(
        self, name: str, start: Any, end: Any, colour: str, *, width: float = 1.0, crossed: bool = False, **part: Any
    ) -> int:
        """An arrow; crossed out it shows a direction in which nothing may move."""
        start, end = (np.atleast_2d(self._placed(points, part)) for points in np.broadcast_arrays(start, end))
        shape = {"kind": "arrow", "from": packed(start), "to": packed(end), "width": width, "crossed": crossed}
        return self._line(name, shape, colour, part)

    def _line(self, name: str, shape: Shape, colour: str, part: dict[str, Any]) -> int:
        """A part whose points are where they should be already."""
        self.parts.append(
            {"run": None, "opacity": 1.0, "parent": None, **part, "name": name, "colour": colour, "shape": shape}
            | {"position": None, "rotation": None}
        )
        return len(self.parts) - 1

    def _placed(self, points: Any, part: dict[str, Any]) -> np.ndarray:
        """Points in space, where the camera sees them; those in the frame of a parent as they are."""
        points = np.asarray(points, float)
        if part.get("parent") is not None:
            return points
        points = points @ self.tilt.T + self.offset
        self.see(points)
        return points

    def see(self, points: Any, room: float = 0.0) -> None:
        """What the camera should have in its picture."""
        if points is not None:
            flat = np.asarray(points, float).reshape(-1, 3)
            self.seen += [flat.min(axis=0) - room, flat.max(axis=0) + room]

    def floor(self, centre: Any, size: float) -> None:
        """The plane z = 0 (tilted with the view) around a place."""
        middle = self.tilt @ [*np.asarray(centre, float)[:2], 0.0]
        self.ground = {"size": float(size), "centre": middle.tolist(), "normal": self.tilt[:, 2].tolist()}

    def data(self) -> dict[str, Any]:
        """The view as the page reads it."""
        points = np.array(self.seen) if self.seen else np.array([[-1.0] * 3, [1.0] * 3])
        low, high = points.min(axis=0), points.max(axis=0)
        target, reach = (low + high) / 2, max(float(np.linalg.norm(high - low)) / 2, 1e-3)
        direction = np.asarray(self.towards) / np.linalg.norm(self.towards)
        camera = {"position": (target + 2.1 * reach * direction).tolist(), "target": target.tolist()}
        return {"title": self.title, "up": "z", "ground": self.ground, "camera": camera, "parts": self.parts}


def _still_or_track(values: Any, rank: int) -> Any:
    if values is None:
        return None
    array = np.asarray(values, float)
    return array.tolist() if array.ndim == rank else packed(array)


def _quaternions(rotation: Any) -> np.ndarray:
    """(x, y, z, w) of a rotation (3, 3) or of a track of them, for the page."""
    array = np.asarray(rotation, float)
    scalar_first = quaternions(array.reshape(-1, 3, 3))
    return np.roll(scalar_first, -1, axis=1).reshape(*array.shape[:-2], 4)
