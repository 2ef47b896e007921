"""Moving pictures of a run: mp4 through ffmpeg, gif through Pillow."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .atomic import replacing
from .config import Job
from .errors import InvalidInput
from .files import open_dataset
from .models.registry import MODELS
from .plotting.scenes import scene
from .plotting.stage import Motion
from .plotting.style import headline, styled
from .run import Run

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
