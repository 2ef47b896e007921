"""What a moving scene is made of: the motion it shows, and artists that come and go.

The shapes of bodies: what moving pictures and the studio both draw.

Bodies on the plane have an outline, wheels and bars in their own frame; numbers may be arrays over time.

Bodies on the plane seen from above, with their blades and wheels.

Scenes that move: bodies in the plane, rolling disks and balls, a body that turns, a point.

A scene draws what stands still and returns `draw(k)`, which draws the k-th moment in place of the one before.

Moving pictures of a run: mp4 through ffmpeg, gif through Pillow.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidInput
from ..io.atomic import replacing
from ..io.config import Job
from ..io.dataset import open_dataset
from ..models import MODELS
from ..simulation import Run
from .style import COLOURS, GREY, LIGHT, headline, space, styled

Draw = Callable[[int], None]
BODY, WHEEL, PATH = COLOURS[5], COLOURS[1], COLOURS[0]


@dataclass(frozen=True)
class Motion:
    """What a scene needs to know of a run: times, the group by name, configurations of each factor, and the system's parameters."""

    t: np.ndarray
    group: str
    parts: tuple[np.ndarray, ...]
    name: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str, default: float) -> float:
        value = self.parameters.get(name, default)
        return float(value) if isinstance(value, int | float) else default


class Stage:
    """Artists that come and go: what was drawn for one moment is removed before the next."""

    def __init__(self, axes: Any, t: np.ndarray):
        self.axes, self.t = axes, t
        self.artists: list[Any] = []

    def clear(self, k: int) -> None:
        while self.artists:
            self.artists.pop().remove()
        self.axes.set_title(f"t = {self.t[k]:.2f}")

    def line(self, points: np.ndarray, **style: Any) -> None:
        self.artists += self.axes.plot(*np.asarray(points).T, **style)

    def patch(self, points: np.ndarray, **style: Any) -> None:
        self.artists += self.axes.fill(*np.asarray(points).T, **style)

    def faces(self, faces: Any, **style: Any) -> None:
        from mpl_toolkits.mplot3d.art3d import Poly3DCollection

        self.artists.append(self.axes.add_collection3d(Poly3DCollection(faces, **style)))


class Stroke(NamedTuple):
    """A short line on the floor plan, a blade, a wheel or a bar: its middle, the angle along which it lies and half its length."""

    x: Any
    y: Any
    angle: Any
    half: float

    def ends(self, k: int) -> np.ndarray:
        """Its two ends (2, 2) at the k-th moment."""
        x, y, angle = (
            float(np.broadcast_to(value, k + 1)[k]) if np.ndim(value) == 0 else value[k] for value in self[:3]
        )
        along = self.half * np.array([np.cos(angle), np.sin(angle)])
        return np.array([x, y]) + np.stack([-along, along])


class Vehicle(NamedTuple):
    """A body on the plane: its outline (n, 2), wheels that roll along themselves and bars that do not touch the floor."""

    outline: np.ndarray
    wheels: list[Stroke]
    bars: list[Stroke] = []  # noqa: RUF012
    centre: tuple[float, float] | None = None  # of mass


def vehicle(motion: Motion) -> Vehicle:
    """The body of a motion on SE(2) and shape angles, large enough to be seen on its path."""
    size = 0.07 * max(float(np.ptp(motion.parts[0][:, :2, 2], axis=0).max()), 1e-3)
    angles = [np.arctan2(part[:, 1, 0], part[:, 0, 0]) for part in motion.parts[1:] if part.shape[1:] == (2, 2)]
    return VEHICLES.get(motion.name, _sleigh)(motion, angles, size)


def ellipse(centre: Iterable[float], length: float, width: float) -> np.ndarray:
    s = np.linspace(0, 2 * np.pi, 49)
    return np.asarray(centre) + np.stack([length * np.cos(s), width * np.sin(s)], -1)


def _sleigh(motion: Motion, angles: list[np.ndarray], size: float) -> Vehicle:
    """An oval body about its centre of mass (a, b), the blade at the origin."""
    a, b = motion.number("a", motion.number("centre", 0.0)), motion.number("b", 0.0)
    offset = float(np.hypot(a, b))
    centre = np.array([a, b]) * (min(1.0, size / offset) if offset > 0 else 0.0)
    length = np.hypot(*centre) + 1.1 * size
    return Vehicle(ellipse(centre, length, 0.6 * length), [Stroke(0.0, 0.0, 0.0, 0.8 * size)], [], tuple(centre))


def _car(motion: Motion, angles: list[np.ndarray], size: float) -> Vehicle:
    """Two rear wheels at the origin and two steered ones ahead."""
    length = max(motion.number("length", 1.0), 1.5 * size)
    half, wheel = 0.3 * length, 0.16 * length
    outline = np.array([[-0.25, -0.3], [1.25, -0.3], [1.25, 0.3], [-0.25, 0.3]]) * length
    steer = angles[0] if angles else 0.0
    wheels = [Stroke(x, y, angle, wheel) for x, angle in ((0.0, 0.0), (length, steer)) for y in (-half, half)]
    return Vehicle(outline, wheels)


def _snakeboard(motion: Motion, angles: list[np.ndarray], size: float) -> Vehicle:
    """A board with an axle at either end, turned by b and -b, and its rotor."""
    length = max(motion.number("length", 0.2), size)
    rotor, steer = angles
    wheels = [Stroke(length, 0.0, steer, 0.3 * length), Stroke(-length, 0.0, -steer, 0.3 * length)]
    bars = [Stroke(0.0, 0.0, rotor + np.pi / 2, 0.5 * length)]
    return Vehicle(ellipse((0, 0), 1.1 * length, 0.25 * length), wheels, bars)


def _roller_racer(motion: Motion, angles: list[np.ndarray], size: float) -> Vehicle:
    """The seat on its axle, and the arm beyond the pivot with its own."""
    front, arm = motion.number("front", 0.5), motion.number("arm", 0.3)
    scale = max(1.0, 1.5 * size / (abs(front) + abs(arm)))
    front, arm, s = scale * front, scale * arm, angles[0]
    half = 0.35 * abs(front) + 0.1 * abs(arm)
    wheels = [Stroke(0.0, y, 0.0, half / 2) for y in (-half, half)]
    wheels.append(Stroke(front + arm * np.cos(s), arm * np.sin(s), s, half / 2))
    bars = [Stroke(front + arm * np.cos(s) / 2, arm * np.sin(s) / 2, s, abs(arm) / 2)]
    return Vehicle(ellipse((front / 2, 0), 0.7 * abs(front) + 1e-9, 0.3 * abs(front) + 1e-9), wheels, bars)


VEHICLES: dict[str, Callable[[Motion, list[np.ndarray], float], Vehicle]] = {
    "car": _car,
    "snakeboard": _snakeboard,
    "roller-racer": _roller_racer,
}


# -- bodies in space ------------------------------------------------------------------------------------------------------------
def circle(radius: float, first: int, second: int, count: int = 49) -> np.ndarray:
    """A circle in the plane of two body axes, (count, 3)."""
    s = np.linspace(0, 2 * np.pi, count)
    points = np.zeros((count, 3))
    points[:, first], points[:, second] = radius * np.cos(s), radius * np.sin(s)
    return points


def globe(
    semi: Any, longitudes: int = 25, latitudes: int = 13, lowest: float = 0.0, highest: float = np.pi
) -> np.ndarray:
    """An ellipsoid with these semi-axes as a grid of points (longitudes, latitudes, 3), between two polar angles."""
    u, v = np.linspace(0, 2 * np.pi, longitudes), np.linspace(lowest, highest, latitudes)
    round_ = [np.outer(np.cos(u), np.sin(v)), np.outer(np.sin(u), np.sin(v)), np.outer(np.ones(longitudes), np.cos(v))]
    return np.stack(round_, -1) * np.asarray(semi, float)


def sides(inertia: Any) -> np.ndarray:
    """Half sides of a homogeneous box with these moments, the longest 0.8; for other inertias some box."""
    moments = np.asarray(inertia if inertia is not None else [1.0, 1.3, 1.5], float)
    moments = np.diag(moments) if moments.ndim == 2 else moments
    squares = (
        np.maximum(moments.sum() / 2 - moments, 0.02 * moments.max())
        if moments.shape == (3,)
        else np.array([3, 2, 1.0])
    )
    lengths = np.sqrt(squares)
    return 0.8 * lengths / lengths.max()


def suslov_wheel(normal: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A sharp wheel that cannot slip about the normal n: (n, its middle across n, its axle); it lies in their plane (Wagner 1941)."""
    n = np.asarray(normal if normal is not None else [0.0, 0.0, 1.0], float)
    n = n / np.linalg.norm(n)
    p = np.cross(n, np.eye(3)[int(np.argmin(np.abs(n)))])
    p /= np.linalg.norm(p)
    return n, 0.92 * p, np.cross(n, p)


class Roller(NamedTuple):
    """A body that rolls: its semi-axes (a disk's middle one is 0), the middle of its shape from its centre of mass."""

    semi: np.ndarray
    shift: np.ndarray

    @classmethod
    def of(cls, motion: Motion) -> Roller:
        radius = motion.number("radius", 1.0)
        semi = np.array(motion.parameters.get("axes", [radius] * 3), float)
        if motion.name == "rolling-disk":
            semi = semi * [1.0, 0.0, 1.0]
        return cls(semi, np.array([0.0, 0.0, motion.number("depth", 0.0)]))

    def contact(self, turns: np.ndarray) -> np.ndarray:
        """The point of contact in the body (k, 3) from the centre of mass: H'(n) at n = -R^T e3, where H(n) = |semi n| + <shift, n>."""
        down = -np.asarray(turns)[..., 2, :]
        length = np.linalg.norm(self.semi * down, axis=-1, keepdims=True)
        return self.semi**2 * down / np.maximum(length, 1e-300) + self.shift

    def centres(self, turns: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The centre of mass in space (k, 3): the body's lowest point is on the floor."""
        down = -np.asarray(turns)[..., 2, :]
        height = np.sum(self.contact(turns) * down, axis=-1)
        return np.concatenate([places, height[..., None]], axis=-1)


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


SUFFIXES = (".mp4", ".gif")


def motion_of_file(path: Path) -> Motion:
    """The motion that a data file holds; nobody's code runs."""
    data = open_dataset(path)
    names = sorted(name for name in map(str, data) if name.startswith("configuration"))
    if not names or "time" not in data.variables:
        raise InvalidInput(f"{path} has no configurations over time; it has: {', '.join(map(str, data))}")
    if data["time"].ndim != 1:
        raise InvalidInput(f"{path} holds an ensemble; a moving picture shows one run")
    system = tomllib.loads(data.attrs.get("config", "")).get("system", {})
    parts = tuple(data[name].values for name in names)
    return _motion(data["time"].values, str(data.attrs.get("group", "")), parts, system)


def motion_of_run(trajectory: Run, job: Job | None = None) -> Motion:
    """The motion of a run, with the parameters of its configuration if there is one."""
    parts = trajectory.g if isinstance(trajectory.g, tuple) else (trajectory.g,)
    system = job.config["system"] if job is not None else {}
    return _motion(np.asarray(trajectory.t), str(trajectory.system.group), tuple(map(np.asarray, parts)), system)


def _motion(t: np.ndarray, group: str, parts: tuple[np.ndarray, ...], system: Any) -> Motion:
    name = str(system.get("name", ""))
    defaults = MODELS[name].parameters if name in MODELS else {}
    return Motion(t, group, parts, name, {**defaults, **system})


def default_suffix() -> str:
    """mp4 where ffmpeg is, else gif."""
    return ".mp4" if shutil.which("ffmpeg") else ".gif"


def require_movie(path: Path) -> None:
    """Refuse a moving picture that cannot be written, before anything is drawn."""
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"--out is {path}; allowed: a file that ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise InvalidInput(f"--out is {path}, but the folder {path.parent} does not exist: create it first")
    if path.suffix == ".mp4" and not shutil.which("ffmpeg"):
        raise InvalidInput(f"--out is {path}, but mp4 needs ffmpeg, which is not installed: give a .gif instead")


@styled
def stage(motion: Motion, title: str = "") -> tuple[Any, Callable[[int], None]]:
    """A figure, and what draws the k-th saved moment into it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.0), dpi=100)
    draw = scene(figure, motion)
    headline(figure, title or motion.name or motion.group)
    return figure, draw


@styled
def animate(
    motion: Motion,
    path: str | Path,
    *,
    seconds: float = 8.0,
    frames_per_second: int = 20,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write a moving picture of `seconds` and return the number of its frames, each a saved state."""
    from matplotlib.animation import FFMpegWriter, FuncAnimation, PillowWriter

    path = Path(path)
    require_movie(path)
    if not (0 < seconds < np.inf) or frames_per_second < 1:
        raise InvalidInput(f"--seconds is {seconds} and --fps {frames_per_second}; allowed: positive numbers")
    count = max(2, round(seconds * frames_per_second))
    moments = np.unique(np.searchsorted(*_increasing(motion.t, np.linspace(motion.t[0], motion.t[-1], count))))
    rate = max(1, round(len(moments) / seconds))
    figure, draw = stage(motion)
    writer = FFMpegWriter(fps=rate) if path.suffix == ".mp4" else PillowWriter(fps=rate)
    frame = lambda k: draw(int(k))
    with replacing(path) as temporary:
        film = FuncAnimation(figure, frame, frames=moments, init_func=lambda: None, cache_frame_data=False)
        film.save(str(temporary), writer=writer, progress_callback=progress)
    return len(moments)


def _increasing(times: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times that grow, for runs into the past too; rounded up to a saved one."""
    sign = 1.0 if times[-1] >= times[0] else -1.0
    return sign * times, np.minimum(sign * wanted, (sign * times).max())
