"""Films and stills of a run: its `View`, as the page draws it, drawn with Matplotlib.

Every part becomes quadrilaterals (a segment of a line is a degenerate one), which are painted from back to front. A
flat view is seen from above, with its coordinates on the axes; every other view is seen in perspective.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidInput
from ..io.atomic import atomic_path
from ..mechanics import without_forces
from ..plotting.runs import align_z, normalise
from ..plotting.studies import grid_faces, light
from ..plotting.style import GREY, headline, space, styled, typeset, unit_label
from .requests import RunFrames
from .scenes import globe, make_scene, revolve
from .view import Array, Shape, View, unpack_array

SUFFIXES = (".mp4", ".gif")
EDGE_POINTS, SEAM_POINTS, POINTS_PER_PIXEL = 0.5, 0.3, 0.5
"""Widths in points: of an edge, of what closes the seam between faces, of a line one pixel wide on the page."""
OPAQUE = np.array([1.0, 1.0, 1.0, 0.0])
"""The exponents with which a factor changes a colour and not its opacity."""
EDGE_COSINE = np.cos(np.radians(30.0))
"""Edges are drawn where the normals of two faces have a smaller cosine than this."""


def default_suffix() -> str:
    """mp4 where ffmpeg is, else gif."""
    return ".mp4" if shutil.which("ffmpeg") else ".gif"


def require_film(path: Path) -> None:
    """Refuse a film that cannot be written, before anything is drawn."""
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"--out is {path}; allowed: a file that ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise InvalidInput(f"--out is {path}, but the folder {path.parent} does not exist: create it first")
    if path.suffix == ".mp4" and not shutil.which("ffmpeg"):
        raise InvalidInput(f"--out is {path}, but mp4 needs ffmpeg, which is not installed: give a .gif instead")


@styled
def animate(
    run: RunFrames,
    path: str | Path,
    *,
    seconds: float = 8.0,
    frames_per_second: int = 20,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write a film of `seconds` and return the number of its frames, each a saved state."""
    from matplotlib.animation import FFMpegWriter, FuncAnimation, PillowWriter

    path = Path(path)
    require_film(path)
    if not (0 < seconds < np.inf) or frames_per_second < 1:
        raise InvalidInput(f"--seconds is {seconds} and --fps {frames_per_second}; allowed: positive numbers")
    count = max(2, round(seconds * frames_per_second))
    sign = 1.0 if run.t[-1] >= run.t[0] else -1.0  # a run into the past has decreasing times
    wanted = np.minimum(sign * np.linspace(run.t[0], run.t[-1], count), (sign * run.t).max())
    moments = np.unique(np.searchsorted(sign * run.t, wanted))
    rate = max(1, round(len(moments) / seconds))
    figure, draw = stage(run)
    writer = FFMpegWriter(fps=rate) if path.suffix == ".mp4" else PillowWriter(fps=rate)
    film = FuncAnimation(figure, draw, frames=moments, init_func=lambda: None, cache_frame_data=False)
    with atomic_path(path) as temporary:
        film.save(str(temporary), writer=writer, progress_callback=progress)
    return len(moments)


@styled
def stage(run: RunFrames, title: str = "") -> tuple[Any, Callable[[int], None]]:
    """A figure, and the function that draws the k-th frame into it."""
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke

    view, caption = make_scene([run])
    caption = textwrap.fill(caption, 112)
    figure = Figure(figsize=(6.4, 5.4), dpi=100)
    headline(figure, title or _title(run))
    figure.text(0.01, 0.012, caption, fontsize=7.5, color=GREY, va="bottom")
    view.axis_names = tuple(unit_label(name, _units(run).get(name, "")) for name in view.axis_names)
    reach = float(np.max(np.subtract(*view.limits()[::-1])))
    parts = [_Part(part, reach) for part in view.parts]
    axes, project = _axes(figure, view, parts, 0.05 + 0.025 * caption.count("\n"))
    tilted = not view.flat and not np.allclose(view.tilt, np.eye(3))
    floor = _floor_lines(view, 0.6 * reach) if view.ground is not None and tilted else None
    painted: Any = PolyCollection([], capstyle="round", joinstyle="round", clip_on=False)
    painted.do_3d_projection = lambda: 0.0  # which `project` has done
    axes.add_collection(painted, autolim=False)

    def draw(k: int) -> None:
        axes.set_title(f"$t$ = {run.t[k]:.2f} s", loc="center")
        for text in tuple(axes.texts):
            text.remove()
        poses: list[tuple[Array, Array]] = []
        faces = [] if floor is None else [floor]
        for part in parts:
            turn, place = _at(part.rotation, k), _at(part.position, k)
            if part.parent is not None:
                carrier, origin = poses[part.parent]
                turn, place = carrier @ turn, carrier @ place + origin
            poses.append((turn, place))
            if k < part.since:
                continue
            found = part.faces_at(k)
            corners = found.corners @ turn.T + place
            shade = np.where(found.is_line, 1.0, light(corners))[:, None] ** OPAQUE
            faces.append(found._replace(corners=corners, fill=found.fill * shade, stroke=found.stroke * shade))
            if part.text:
                (x, y), _ = project(_at(part.text_track, k) @ turn.T + place)
                write = axes.text if view.flat else axes.text2D
                halo = [withStroke(linewidth=2.5, foreground="white")] if part.text.isalpha() else []  # over a path
                style = {"ha": "center", "zorder": 9, "path_effects": halo, **part.text_style}
                write(x, y, part.text, color=part.colour, **style)
        every = _join(*faces)
        corners, depth = project(every.corners)
        edges = np.roll(corners, -1, axis=1)
        facing = np.sum(corners[..., 0] * edges[..., 1] - corners[..., 1] * edges[..., 0], axis=1) > 0
        shown = facing | ~every.one_sided
        typical = 0.5 * (depth.mean(axis=1) + depth.max(axis=1))  # a large face lies behind a small one on it
        order = np.argsort(-(typical + every.behind)[shown], kind="stable")
        painted.set_verts(corners[shown][order])
        fill, stroke, width = (column[shown][order] for column in (every.fill, every.stroke, every.width))
        painted.set(facecolor=fill, edgecolor=stroke, linewidth=width)

    return figure, draw


def _title(run: RunFrames) -> str:
    """What the system is called, by its user or as a model; else its group."""
    if run.system is not None and (system := without_forces(run.system)).title != type(system).__name__:
        return system.title
    return typeset(run.name or run.group)


def _units(run: RunFrames) -> dict[str, str]:
    """The units of what axes show, by name: places are in metres where velocities are in metres a second."""
    if run.system is None:
        return {}
    placed = any(axis.velocity == "m s-1" for axis in run.system.axes())
    return dict.fromkeys("xyz" if placed else "", "m") | run.system.units | {"time": "s"}


def _axes(
    figure: Any, view: View, parts: Sequence[_Part], bottom: float
) -> tuple[Any, Callable[[Array], tuple[Array, Array]]]:
    """Axes for a view, and the projection of points (..., 3) to their plane (..., 2) and to a depth (...)."""
    low, high = view.limits()
    if view.flat:
        limits = np.sort(np.stack([low, high]) @ view.tilt / view.scale, axis=0)
        axes = figure.add_axes((0.11, bottom + 0.09, 0.86, 0.82 - bottom))
        names = dict(zip(("xlabel", "ylabel"), view.axis_names, strict=False))
        axes.set(xlim=limits[:, 0], ylim=limits[:, 1], **names)
        axes.set_aspect(float(view.scale[1] / view.scale[0]), adjustable="box", anchor="C")

        def from_above(points: Array) -> tuple[Array, Array]:
            plan = points @ view.tilt
            return plan[..., :2] / view.scale[:2], -plan[..., 2]

        return axes, from_above
    from mpl_toolkits.mplot3d import proj3d

    level = bool(np.allclose(view.tilt, np.eye(3)))
    visible = level and bool(view.axis_names)
    if level and view.ground is not None:
        low[2] = 0.0
    for part in parts if level else ():  # a table that is larger than the paths on it is shown whole
        found = part.faces_at(0)
        if part.parent is None and len(wide := found.corners[~found.is_line]):
            wide = (wide @ _at(part.rotation, 0).T + _at(part.position, 0)).reshape(-1, 3)[:, :2]
            low[:2], high[:2] = np.minimum(low[:2], wide.min(axis=0)), np.maximum(high[:2], wide.max(axis=0))
    extent = np.maximum(high - low, 0.16 * float((high - low).max()))
    low = low + (high - low - extent) / 2 * [1.0, 1.0, float(view.ground is None)]
    direction = normalise(np.asarray(view.camera_direction))
    elevation, azimuth = np.degrees([np.arcsin(direction[2]), np.arctan2(direction[1], direction[0])])
    x, y, z = (*view.axis_names, "", "", "")[:3]
    axes = space(figure, labels=(x, y, z), elev=elevation, azim=azimuth)
    if not visible:
        axes.set_axis_off()
    axes.set_position((0.02, bottom + 0.04, 0.94, 0.9 - bottom))
    limits = np.stack([low, low + extent]) / view.scale
    axes.set(xlim=limits[:, 0], ylim=limits[:, 1], zlim=limits[:, 2])
    axes.set_box_aspect(tuple(extent), zoom=1.0 if visible else 1.3)
    axes.locator_params(nbins=5)
    matrix = axes.get_proj()

    def in_perspective(points: Array) -> tuple[Array, Array]:
        columns = np.moveaxis(points / view.scale, -1, 0).reshape(3, -1)
        x, y, _ = proj3d.proj_transform(*columns, matrix)
        return np.stack([x, y], axis=-1).reshape(*points.shape[:-1], 2), -(points @ direction)

    return axes, in_perspective


class Faces(NamedTuple):
    """Quadrilaterals (k, 4, 3) with RGBA fill and stroke; the columns of all parts are painted together."""

    corners: Array
    fill: Array
    stroke: Array
    width: Array  # of the stroke in points
    is_line: Array  # not shaded by the light
    one_sided: Array  # seen from outside only
    behind: Array  # added to the depth


def _join(*faces: Faces) -> Faces:
    return Faces(*(np.concatenate(column) for column in zip(*faces, strict=True)))


def _fill(corners: Array, colour: Array, one_sided: bool = False) -> Faces:
    """Faces of a colour. Faces that are nearly opaque have a thin outline, which closes the seams between them."""
    k, fill = len(corners), np.broadcast_to(colour, (len(corners), 4))
    width = np.full(k, SEAM_POINTS if k and fill[0, 3] > 0.5 else 0.0)
    return Faces(corners, fill, fill, width, np.zeros(k, bool), np.full(k, one_sided), np.zeros(k))


def _segments(points: Array, colour: Any, width: float, behind: float) -> Faces:
    """The segments of a curve (k, 3), or separate ones (k, 2, 3)."""
    pairs = points if points.ndim == 3 else np.stack([points[:-1], points[1:]], axis=1)
    k, nothing = len(pairs), np.zeros((len(pairs), 4))
    style = np.broadcast_to(colour, (k, 4)), np.full(k, width)
    return Faces(pairs[:, [0, 1, 1, 0]], nothing, *style, np.ones(k, bool), np.zeros(k, bool), np.full(k, behind))


def _floor_lines(view: View, half: float) -> Faces:
    """A square grid on the floor, behind everything."""
    assert view.ground is not None
    across = np.stack(np.meshgrid(np.linspace(-half, half, 13), [-half, half], indexing="ij"), -1)
    both = np.concatenate([across, across[..., ::-1]]) @ view.tilt[:, :2].T + view.ground["centre"]
    return _segments(both, [0.88, 0.88, 0.88, 1.0], 0.6, 1e6 * half)


def _at(track: Array, k: int) -> Array:
    """The k-th entry of a track; a track of one entry stands still."""
    return np.asarray(track[min(k, len(track) - 1)])


class _Part:
    """A part of a view, ready to be drawn at any frame: its tracks, and its faces in its own frame."""

    def __init__(self, part: dict[str, Any], reach: float):
        from matplotlib.colors import to_rgba
        from scipy.spatial.transform import Rotation

        self.parent, self.colour, shape = part["parent"], part["colour"], part["shape"]
        self.since = int(part.get("since", 0))  # the first frame that shows it
        rgba = np.array(to_rgba(self.colour, part["opacity"]))
        position, rotation = part["position"], part["rotation"]
        self.position = np.zeros((1, 3)) if position is None else np.atleast_2d(unpack_array(position))
        quaternions = [0.0, 0.0, 0.0, 1.0] if rotation is None else unpack_array(rotation)
        self.rotation = Rotation.from_quat(np.atleast_2d(quaternions)).as_matrix()
        self.text, self.text_track = shape.get("text", ""), np.zeros((1, 3))
        self.text_style = {"fontsize": 9, "va": "bottom"}
        if shape["kind"] == "trace":
            points, width = unpack_array(shape["points"]), POINTS_PER_PIXEL * shape["width"]
            pale = np.append(0.7 + 0.3 * rgba[:3], 1.0)
            later = _segments(points if shape["whole"] else points[:1], pale, 0.5 * width, 0.0)
            path = _segments(points, rgba, width, -0.01 * reach)
            self.faces_at: Callable[[int], Faces] = lambda k: _join(later, Faces(*(column[:k] for column in path)))
        elif shape["kind"] == "arrow":
            starts, ends = unpack_array(shape["from"]), unpack_array(shape["to"])
            if shape["crossed"]:
                self.text, self.text_track = "\u2715", (starts + ends) / 2
                self.text_style = {"fontsize": 14, "va": "center"}
            self.faces_at = lambda k: _arrow(_at(starts, k), _at(ends, k), shape["width"], rgba)
        else:
            faces = _shape_faces(shape, rgba, reach)
            self.faces_at = lambda k: faces


def _arrow(start: Array, end: Array, width: float, colour: Array) -> Faces:
    """A shaft and a head; a short arrow is a slim one."""
    length = float(np.linalg.norm(end - start))
    thick = min(width, 0.09 * length)
    tip = 3.6 * thick
    heights, radii = [0.0, 0.0, length - tip, length - tip, length], [0.0, thick / 2, thick / 2, 0.4 * tip, 0.0]
    turn = align_z(end - start) if length > 0 else np.eye(3)
    return _fill(grid_faces(revolve(radii, heights, 9)) @ turn.T + start, colour)


def _shape_faces(shape: Shape, colour: Array, reach: float) -> Faces:
    """The faces of a shape in its own frame, and the edges where they end or meet at an angle."""
    kind, behind, smallest = shape["kind"], -0.01 * reach, reach
    if kind == "line":
        return _segments(unpack_array(shape["points"]), colour, POINTS_PER_PIXEL * shape["width"], behind)
    if kind in ("box", "plane"):
        size = np.array(shape["size"] if kind == "box" else [shape["size"], shape["size"], 0.0])
        corners, smallest = _box(size, reach), float(size[size > 0].min())
    elif kind == "ellipsoid":
        small = max(shape["axes"]) < 0.04 * reach
        corners = grid_faces(globe(shape["axes"], *((13, 7) if small else (33, 17))))[:, ::-1]
        dark = (np.prod(corners.mean(axis=1), axis=1) < 0) & (not small)  # octants show how a body turns
        return _fill(corners, colour * np.where(dark, 0.86, 1.0)[:, None] ** OPAQUE, one_sided=True)
    elif kind == "cylinder":
        radii, half = np.linspace(0, shape["radius"], 5), shape["height"] / 2
        corners = grid_faces(revolve(np.append(radii, radii[::-1]), np.repeat([-half, half], 5), 37))
    elif kind == "torus":
        angle = np.linspace(0, 2 * np.pi, 7)
        radii, heights = shape["radius"] + shape["tube"] * np.cos(angle), shape["tube"] * np.sin(angle)
        return _fill(grid_faces(revolve(radii, heights, 41)), colour)
    elif kind == "mesh":
        corners = unpack_array(shape["vertices"])[np.asarray(shape["faces"])][:, [0, 1, 2, 2]]
    else:
        return _fill(np.zeros((0, 4, 3)), colour)
    faces = _fill(corners, colour, one_sided=kind in ("box", "cylinder"))
    if kind == "cylinder" and shape["height"] < 0.1 * shape["radius"] and colour[3] > 0.5:
        faces = faces._replace(behind=faces.behind + 0.1 * shape["radius"])  # what is let into a plate is seen on it
    if smallest < 0.02 * reach:
        return faces
    ink = colour[:3] if kind == "plane" else 0.1 + 0.1 * colour[:3]
    stroke = np.append(ink, min(1.0, colour[3] + 0.3))
    return _join(faces, _segments(_sharp_edges(corners), stroke, EDGE_POINTS, behind))


def _box(size: Array, reach: float) -> Array:
    """The outer faces (k, 4, 3) of a box, or of a plane of thickness 0, in cells that sort well by their depth."""
    faces = []
    for axis in range(3):
        normal, *sides = np.roll(np.diag(size), -axis, axis=0)
        lengths = [float(side.max()) for side in sides]
        if not all(lengths):
            continue
        cells = [int(np.clip(np.ceil(length / (0.08 * reach)), 1, 8)) + 1 for length in lengths]
        u, v = np.meshgrid(*(np.linspace(-0.5, 0.5, n) for n in cells), indexing="ij")
        for sign in (-0.5, 0.5) if normal.any() else (0.0,):
            grid = sign * normal + u[..., None] * sides[0] + v[..., None] * sides[1]
            faces.append(grid_faces(grid)[:, :: 1 if sign >= 0 else -1])
    return np.concatenate(faces)


def _sharp_edges(corners: Array) -> Array:
    """The edges (e, 2, 3) of faces (k, 4, 3) that belong to one face, or to two that meet at more than 30 degrees."""
    normals = normalise(np.cross(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1]))
    size = max(float(np.abs(corners).max()), 1e-300)
    vertices, numbers = np.unique(np.round(corners.reshape(-1, 3) / size, 6), axis=0, return_inverse=True)
    around = numbers.reshape(-1, 4)
    pairs = np.sort(np.stack([around, np.roll(around, -1, axis=1)], axis=-1).reshape(-1, 2), axis=1)
    proper = pairs[:, 0] < pairs[:, 1]
    owners = np.repeat(np.arange(len(corners)), 4)[proper]
    edges, which, count = np.unique(pairs[proper], axis=0, return_inverse=True, return_counts=True)
    owners, starts = owners[np.argsort(which.ravel(), kind="stable")], np.append(0, np.cumsum(count)[:-1])
    bend = np.sum(normals[owners[starts]] * normals[owners[starts + count - 1]], axis=1)
    return np.asarray(vertices[edges[(count == 1) | (np.abs(bend) < EDGE_COSINE)]] * size)
