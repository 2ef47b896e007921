"""Films: the studio's views drawn with Matplotlib, for every kind of scene and for systems of a user's own."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.models import MODELS
from dalembert.studio.film import animate, stage
from dalembert.studio.requests import RunFrames, frames_of_file, frames_of_run
from dalembert.studio.scenes import make_scene
from dalembert.studio.view import SURFACE


def turning(count: int, n: int) -> np.ndarray:
    """Motions of R^n (n x n rotations, or with a place in the last column)."""
    s = np.linspace(0, 2, count)
    matrices = np.tile(np.eye(n), (count, 1, 1))
    matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 0], matrices[:, 1, 1] = (
        np.cos(s),
        -np.sin(s),
        np.sin(s),
        np.cos(s),
    )
    return matrices


def travelling(count: int) -> np.ndarray:
    poses = turning(count, 3)
    poses[:, 0, 2], poses[:, 1, 2] = np.linspace(0, 3, count), np.linspace(0, 1, count) ** 2
    return poses


T = np.linspace(0, 1, 7)
PLACES = travelling(7)[:, :2, 2]
SCENES = {
    "chaplygin-sleigh": ("SE(2)", (travelling(7),), 3),
    "vertical-disk": ("SE(2) x SO(2)", (travelling(7), turning(7, 2)), 4),
    "car": ("SE(2) x SO(2)", (travelling(7), turning(7, 2)), 4),
    "snakeboard": ("SE(2) x SO(2) x SO(2)", (travelling(7), turning(7, 2), turning(7, 2)), 5),
    "roller-racer": ("SE(2) x SO(2)", (travelling(7), turning(7, 2)), 4),
    "rolling-ball": ("SO(3) x R^2", (turning(7, 3), PLACES), 5),
    "rolling-disk": ("SO(3) x R^2", (turning(7, 3), PLACES), 5),
    "rattleback": ("SO(3) x R^2", (turning(7, 3), PLACES), 5),
    "suslov": ("SO(3)", (turning(7, 3),), 3),
    "rigid-body": ("SO(3)", (turning(7, 3),), 3),
    "a body of mine": ("SE(3)", (turning(7, 4),), 6),
    "nonholonomic-particle": ("R^3", (np.cumsum(turning(7, 3)[:, 0], axis=0),), 3),
    "in the plane": ("R^2", (PLACES,), 2),
    "on a line": ("R^1", (PLACES[:, :1],), 1),
    "an angle": ("SO(2)", (turning(7, 2),), 1),
    "in four dimensions": ("SO(4)", (turning(7, 4),), 6),
    "side by side": ("SO(3) x SO(3)", (turning(7, 3), turning(7, 3)), 6),
}


def run_of(name: str) -> RunFrames:
    group, parts, n = SCENES[name]
    parameters = {**MODELS[name].parameters, **MODELS[name].example} if name in MODELS else {}
    velocity, one, rows = np.ones((7, n)), np.ones(7), np.zeros((7, 1, n))
    rows[:, :, -1] = 1.0
    return RunFrames(T, group, parts, velocity, velocity, one, one, one, rows, velocity, 7, name, parameters)


@pytest.mark.parametrize("name", SCENES)
def test_every_scene_draws_what_moves_and_nothing_of_another_frame(name):
    figure, draw = stage(run_of(name))
    (axes,) = figure.axes

    def drawn(k):
        draw(k)
        (painted,) = axes.collections
        return np.array([path.vertices for path in painted.get_paths()]), len(axes.texts)

    first, texts = drawn(3)
    assert axes.get_title() == "$t$ = 0.50 s"
    assert len(first) > 20 and np.isfinite(first).all()
    later, _ = drawn(6)
    assert len(later) != len(first) or np.abs(later - first).max() > 1e-3
    again, count = drawn(3)
    np.testing.assert_array_equal(first, again)
    assert count == texts


def test_what_is_near_is_painted_over_what_is_far():
    """From above the body of a sleigh lies over its path; its faces are opaque enough to be found by colour."""
    figure, draw = stage(run_of("chaplygin-sleigh"))
    draw(5)
    painted = figure.axes[0].collections[0]
    blue = np.array(to_rgb(SURFACE))
    hue = painted.get_facecolor()[:, :3] / np.maximum(painted.get_facecolor()[:, :3].max(axis=1, keepdims=True), 1e-9)
    body = np.flatnonzero(np.abs(hue - blue / blue.max()).max(axis=1) < 1e-6)
    lines = np.flatnonzero(painted.get_facecolor()[:, 3] == 0)
    assert len(body) and lines.min() < body.min(), "the path comes first"


def test_a_run_without_a_configuration_shows_its_own_constraint():
    """The blade of a user's own sleigh lies along what its constraint leaves."""
    sleigh = da.models.chaplygin_sleigh(mass=1.0, inertia=1.0, a=0.3, b=0.2)
    run = da.simulate(sleigh, da.EulerPoincareSuslov(), sleigh.state(xi=[0.5, -1.0, 0.0]), step=0.1, steps=20)
    frames = frames_of_run(run)
    figure, draw = stage(frames, title="mine")
    draw(10)
    assert "mine" in figure.get_suptitle() and frames.t.shape == (21,)
    assert any("blade" in text.get_text() for text in figure.texts)


def test_a_gif_has_frames_that_differ(tmp_path):
    from PIL import Image, ImageSequence

    assert animate(run_of("chaplygin-sleigh"), tmp_path / "x.gif", seconds=1.0, frames_per_second=3) == 3
    with Image.open(tmp_path / "x.gif") as film:
        frames = [np.asarray(frame.convert("L"), float) for frame in ImageSequence.Iterator(film)]
    assert len(frames) == 3 and all(np.abs(a - b).sum() > 1000 for a, b in pairwise(frames))
    assert [path.name for path in tmp_path.iterdir()] == ["x.gif"]


def test_what_cannot_be_shown_is_refused(tmp_path, monkeypatch):
    run = run_of("in four dimensions")
    with pytest.raises(InvalidInput, match=r"\.mp4 or \.gif"):
        animate(run, tmp_path / "x.avi")
    with pytest.raises(InvalidInput, match="positive"):
        animate(run, tmp_path / "x.gif", seconds=0.0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidInput, match=r"needs ffmpeg.*\.gif"):
        animate(run, tmp_path / "x.mp4")
    with pytest.raises(InvalidInput, match="no file"):
        frames_of_file(tmp_path / "none.nc")


@pytest.mark.parametrize(
    ("model", "title", "labels"),
    [
        ("car", "Car", ("$x$, $\\mathrm{m}$", "$y$, $\\mathrm{m}$")),
        ("contact_oscillator", "Contact oscillator", ("$x$", "$y$")),
    ],
)
def test_a_film_is_headed_by_the_system_and_its_axes_have_units(model, title, labels):
    system = getattr(da.models, model)()
    run = da.simulate(system, da.RungeKutta(), system.state(), step=0.1, steps=2)
    figure, draw = stage(frames_of_run(run))
    draw(1)
    assert figure.get_suptitle() == title
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == labels


def test_a_cusp_is_named_when_it_happens():
    frames = run_of_cusp()
    figure, draw = stage(frames)
    parts = [part for part in make_scene([frames])[0].data()["parts"] if "since" in part]
    since = parts[0]["since"]
    told = []
    for k in (0, since - 1, since, len(frames.t) - 1):
        draw(k)
        told.append("cusp" in [text.get_text() for text in figure.axes[0].texts])
    assert 1 < since < len(frames.t) - 1 and told == [False, False, True, True]


def run_of_cusp():
    sleigh = da.models.chaplygin_sleigh(mass=1.0, inertia=1.0, a=0.5)
    run = da.simulate(sleigh, da.RungeKutta(), sleigh.state(xi=[1.0, -1.0, 0.0]), step=0.1, steps=60)
    return frames_of_run(run)
