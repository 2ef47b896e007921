"""A scene as data: shapes, and parts that carry them along tracks.

The page draws a `View` in the browser, and `film` draws the same view with Matplotlib. A track is an array (frames, 3)
of positions or (frames, 3, 3) of rotations; what stands still has no first axis. Arrays travel as base64 of float32.
"""

from __future__ import annotations

import base64
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..groups import quaternions
from ..plotting.style import COLOURS

Array = np.ndarray[Any, Any]
Shape = dict[str, Any]
CONSTRAINT, VELOCITY, REACTION, MOMENTUM, SURFACE = COLOURS[1], COLOURS[4], COLOURS[3], "#7b52ab", COLOURS[5]
DARK, GREY, PALE = "#444444", "#888888", "#b8c4cc"
"""One colour has one meaning: what shows how a body turns, and what is a help for the eye, is grey."""
INKS = ("#1b4965", "#8f9a00", "#8a2846", "#5a8f3d", "#b08d57", "#6c757d")
"""Of the components of a vector, and of the axes of n dimensions: these colours mean nothing else."""
DEFORMED, LARGEST = 1e-3, 4.0
"""A body is drawn deformed where a method has left the group so far, at most so many times its size."""
EMPTY: Shape = {"kind": "none"}
TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
"""What the page says about plots and scenes."""


def pack_array(values: Any) -> dict[str, Any]:
    """Pack numbers for the page: NaN becomes 0, and numbers beyond the range of float32 become its largest."""
    largest = float(np.finfo(np.float32).max)
    array = np.clip(np.nan_to_num(np.asarray(values, float), nan=0.0), -largest, largest).astype("<f4")
    return {"f32": base64.b64encode(array.tobytes()).decode("ascii"), "shape": list(array.shape)}


def unpack_array(data: Any) -> Array:
    """The array that `pack_array` packed; a list of numbers as an array."""
    if not isinstance(data, dict):
        return np.asarray(data, float)
    return np.frombuffer(base64.b64decode(data["f32"]), "<f4").reshape(data["shape"]).astype(float)


def box(*size: float) -> Shape:
    return {"kind": "box", "size": [float(s) for s in size]}


def ellipsoid_shape(*axes: float) -> Shape:
    return {"kind": "ellipsoid", "axes": [float(a) for a in axes]}


def sphere_shape(radius: float) -> Shape:
    return ellipsoid_shape(radius, radius, radius)


def cylinder(radius: float, height: float) -> Shape:
    """A cylinder about the z axis with its middle at the origin."""
    return {"kind": "cylinder", "radius": float(radius), "height": float(height)}


def torus(radius: float, tube: float) -> Shape:
    """A ring about the z axis."""
    return {"kind": "torus", "radius": float(radius), "tube": float(tube)}


def plane(size: float) -> Shape:
    """A square patch across the z axis."""
    return {"kind": "plane", "size": float(size)}


def mesh(vertices: Array, faces: Array) -> Shape:
    return {"kind": "mesh", "vertices": pack_array(vertices), "faces": np.asarray(faces, int).tolist()}


def label(text: str) -> Shape:
    return {"kind": "label", "text": text}


def surface(points: Array) -> Shape:
    """A grid of points (i, j, 3) as triangles."""
    rows, columns = points.shape[:2]
    corner = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).ravel()
    lower = np.stack([corner, corner + columns, corner + 1], axis=1)
    upper = np.stack([corner + 1, corner + columns, corner + columns + 1], axis=1)
    return mesh(points.reshape(-1, 3), np.concatenate([lower, upper]))


def prism(outline: Array, height: float) -> Shape:
    """A convex outline (n, 2) extruded from z = 0 to `height`."""
    n = len(outline)
    base = np.column_stack([outline, np.zeros(n)])
    fan = np.stack([np.zeros(n - 2, int), np.arange(1, n - 1), np.arange(2, n)], axis=1)
    here, there = np.arange(n), (np.arange(n) + 1) % n
    sides = np.concatenate([np.stack([here, there, there + n], 1), np.stack([here, there + n, here + n], 1)])
    vertices = np.concatenate([base, base + np.array([0.0, 0.0, height])])
    return mesh(vertices, np.concatenate([fan[:, ::-1], fan + n, sides]))


@dataclass
class View:
    """Parts in space, all rotated by `tilt` (a slope), and the points that the camera must include.

    The page reads `data()`. `flat`, `axis_names` and `scale` are for `film`: whether to look from above, the names of
    the axes (none where coordinates mean nothing), and the factors by which coordinates were multiplied to be drawn;
    `scales` has these by the offset of what is drawn.
    """

    title: str
    tilt: Array = field(default_factory=lambda: np.eye(3))
    parts: list[dict[str, Any]] = field(default_factory=list)
    ground: dict[str, Any] | None = None
    bounds: list[Array] = field(default_factory=list)
    offset: Array = field(default_factory=lambda: np.zeros(3))  # of the parts that are added now
    run: int | None = None  # to which the parts belong that are added now
    camera_direction: tuple[float, float, float] = (0.75, -1.0, 0.7)  # from the middle to the camera
    flat: bool = False
    axis_names: tuple[str, ...] = ("x", "y", "z")
    scale: Array = field(default_factory=lambda: np.ones(3))
    scales: dict[tuple[float, ...], Array] = field(default_factory=dict)

    def add(
        self, name: str, shape: Shape, colour: str, *, position: Any = None, rotation: Any = None, **part: Any
    ) -> int:
        """Add a part and return its number, which the parts that it carries name as their `parent`.

        Further options are its `opacity`, and `shared=True` for a part that belongs to no run.
        """
        if part.get("parent") is None:
            position = (np.zeros(3) if position is None else np.asarray(position, float)) @ self.tilt.T + self.offset
            rotation = self.tilt @ (np.eye(3) if rotation is None else np.asarray(rotation, float))
            self.include(position)
        return self._append(name, shape, colour, position, rotation, **part)

    def trace(self, name: str, points: Any, colour: str, *, width: float = 2.0, whole: bool = True, **part: Any) -> int:
        """Add a curve that grows with the motion; `whole` shows all of it, pale, from the beginning."""
        shape = {"kind": "trace", "points": pack_array(self._to_space(points, part)), "width": width, "whole": whole}
        return self._append(name, shape, colour, **part)

    def line(self, name: str, points: Any, colour: str, *, width: float = 2.0, **part: Any) -> int:
        """Add a curve that stands still."""
        shape = {"kind": "line", "points": pack_array(self._to_space(points, part)), "width": width}
        return self._append(name, shape, colour, **part)

    def arrow(
        self, name: str, start: Any, end: Any, colour: str, *, width: float = 1.0, crossed: bool = False, **part: Any
    ) -> int:
        """Add an arrow; one that is crossed out shows a direction in which nothing may move."""
        start, end = (np.atleast_2d(self._to_space(points, part)) for points in np.broadcast_arrays(start, end))
        shape = {"kind": "arrow", "from": pack_array(start), "to": pack_array(end), "width": width, "crossed": crossed}
        return self._append(name, shape, colour, **part)

    def _append(
        self, name: str, shape: Shape, colour: str, position: Any = None, rotation: Any = None, **part: Any
    ) -> int:
        run = None if part.pop("shared", False) else self.run
        part = {"run": run, "name": name, "colour": colour, "opacity": 1.0, "parent": None, **part}
        part |= {"shape": shape, "position": _fixed_or_track(position), "rotation": None}
        if rotation is not None:  # quaternions (x, y, z, w), as the page wants them
            turns = np.asarray(rotation, float)
            found = np.roll(quaternions(turns.reshape(-1, 3, 3)), -1, axis=1)
            part["rotation"] = _fixed_or_track(found.reshape(*turns.shape[:-2], 4))
            if np.abs(np.swapaxes(turns, -1, -2) @ turns - np.eye(3)).max() > DEFORMED:  # no rotation any more
                part["matrix"] = pack_array(np.clip(turns, -LARGEST, LARGEST).reshape(-1, 9))
        self.parts.append(part)
        return len(self.parts) - 1

    def _to_space(self, points: Any, part: dict[str, Any]) -> Array:
        """Points in space, which the camera includes; points in the frame of a parent are returned as they are."""
        array = np.asarray(points, float)
        if part.get("parent") is not None:
            return array
        array = array @ self.tilt.T + self.offset
        self.include(array)
        return array

    def include(self, points: Any, margin: float = 0.0) -> None:
        """Let the camera include these points (..., 3)."""
        flat = np.asarray(points, float).reshape(-1, 3)
        self.bounds += [flat.min(axis=0) - margin, flat.max(axis=0) + margin]

    def add_floor(self, centre: Any, size: float) -> None:
        """Show the plane z = 0 (tilted with the view) around a point."""
        middle = self.tilt @ [*np.asarray(centre, float)[:2], 0.0]
        self.ground = {"size": float(size), "centre": middle.tolist(), "normal": self.tilt[:, 2].tolist()}

    def limits(self) -> tuple[Array, Array]:
        """The corners of the box that the camera includes."""
        points = np.array(self.bounds) if self.bounds else np.array([[-1.0] * 3, [1.0] * 3])
        return points.min(axis=0), points.max(axis=0)

    def pose(self) -> list[list[Any]]:
        """Where the solid parts that move are in the last frame: [key, position, quaternion], None where it rests."""
        found, counts = [], dict[str, int]()
        for part in self.parts:
            if (kind := part["shape"]["kind"]) in ("trace", "line", "arrow"):
                continue
            name = f"{part['name']} {kind}"
            counts[name] = counts.get(name, 0) + 1
            tracks = [part[key] if isinstance(part[key], dict) else None for key in ("position", "rotation")]
            if any(tracks):
                rows = [None if track is None else unpack_array(track)[-1].tolist() for track in tracks]
                found.append([f"{name} {counts[name]}", *rows])
        return found

    def data(self) -> dict[str, Any]:
        """The view as the page reads it."""
        low, high = self.limits()
        target, reach = (low + high) / 2, max(float(np.linalg.norm(high - low)) / 2, 1e-3)
        direction = np.asarray(self.camera_direction) / np.linalg.norm(self.camera_direction)
        camera = {"position": (target + 2.1 * reach * direction).tolist(), "target": target.tolist()}
        return {"title": self.title, "up": "z", "ground": self.ground, "camera": camera, "parts": self.parts}


def _fixed_or_track(values: Any) -> Any:
    return (
        values if values is None else np.asarray(values, float).tolist() if np.ndim(values) == 1 else pack_array(values)
    )
