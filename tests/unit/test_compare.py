"""Comparisons and moving pictures: numbers that mean something, refusals that are told, files that open."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

import dalembert as da
from dalembert.cli.app import app
from dalembert.errors import InvalidInput
from dalembert.models import MODELS
from dalembert.plotting.scenes import Motion, animate, motion_of_file, stage

CONFIG = """[system]
name = "rigid-body"
inertia = [0.6, 0.8, 1.0]
[method]
name = "discrete-moser-veselov"
[initial]
momentum = [1.8, 0.4, -0.9]
[run]
step = 0.1
steps = 20
"""


@pytest.fixture(scope="module")
def result():
    body = da.models.rigid_body([0.6, 0.8, 1.0])
    methods = {
        "exact": da.DiscreteMoserVeselov(),
        "second order": da.DiscreteMoserVeselov(order=2),
    }
    return da.compare(body, methods, body.state(momentum=[1.8, 0.4, -0.9]), steps=[0.1, 0.05], t_end=2.0, timing=False)


def test_errors_are_those_of_the_methods(result):
    """Exact means exact, order 2 means a quarter; a method of order 2 shows what it loses, and the count of steps fits."""
    error = {(row.method, row.step): row.error for row in result.rows}
    assert error["exact", 0.1] < 1e-12 and error["exact", 0.05] < 1e-12
    assert 3.6 < error["second order", 0.1] / error["second order", 0.05] < 4.4
    assert {row.steps for row in result.rows if row.step == 0.05} == {40}
    for row in result.rows:
        if row.status == "ok":
            assert row.energy < 1e-2 and row.group < 1e-14 and row.constraint is None and row.nanoseconds is None


def test_the_figure_has_every_panel(result, tmp_path):
    figure = result.plot(tmp_path / "x.png", title="three methods")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert (tmp_path / "x.png").stat().st_size > 10_000 and "Time of a step" in titles and "Energy error" in titles
    error = next(axes for axes in figure.axes if axes.get_title(loc="left").startswith("Error"))
    assert len(error.lines) == len(result.runs)


def test_a_method_that_refuses_the_system_has_a_row_that_says_so():
    sleigh = da.models.chaplygin_sleigh()
    state = sleigh.state(xi=[0.5, -1.0, 0.0])
    table = da.compare(sleigh, {"dmv": da.DiscreteMoserVeselov()}, state, steps=[0.1], t_end=1.0)
    assert table.rows[0].status == "refused" and "SO(n)" in table.rows[0].reason and not table.runs
    with pytest.raises(InvalidInput, match="at least one"):
        da.compare(sleigh, {}, state, steps=[0.1], t_end=1.0)


def test_on_the_command_line(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(CONFIG)
    words = [
        "compare",
        str(path),
        "--json",
        "--no-error",
        "--method",
        "discrete-moser-veselov:order=2",
        "--step",
        "0.2",
    ]
    done = CliRunner().invoke(app, words)
    (row,) = json.loads(done.stdout)["rows"]
    assert done.exit_code == 0 and row["method"] == "discrete-moser-veselov:order=2" and row["nanoseconds"] > 0
    assert (row["steps"], row["step"], row["status"], row["error"]) == (10, 0.2, "ok", None)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--method", "rutle"], "Did you mean 'rattle'"),
        (["--method", "rattle:ordr=2"], "Did you mean 'order'"),
        (["--method", "euler-poincare-suslov:lagrangian=x"], "Lagrangian 'x'"),
        (["--plot", "x.txt"], "--plot"),
        (["--step", "0"], "step"),
    ],
)
def test_bad_words_are_refused(words, message, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(CONFIG)
    done = CliRunner().invoke(app, ["compare", str(path), *words])
    assert isinstance(done.exception, InvalidInput) and message in str(done.exception)


# -- moving pictures ------------------------------------------------------------------------------------------------------------
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
    "chaplygin-sleigh": ("SE(2)", (travelling(7),)),
    "vertical-disk": ("SE(2) x SO(2)", (travelling(7), turning(7, 2))),
    "car": ("SE(2) x SO(2)", (travelling(7), turning(7, 2))),
    "snakeboard": ("SE(2) x SO(2) x SO(2)", (travelling(7), turning(7, 2), turning(7, 2))),
    "roller-racer": ("SE(2) x SO(2)", (travelling(7), turning(7, 2))),
    "rolling-ball": ("SO(3) x R^2", (turning(7, 3), PLACES)),
    "rolling-disk": ("SO(3) x R^2", (turning(7, 3), PLACES)),
    "rattleback": ("SO(3) x R^2", (turning(7, 3), PLACES)),
    "suslov": ("SO(3)", (turning(7, 3),)),
    "rigid-body": ("SO(3)", (turning(7, 3),)),
    "a body of mine": ("SE(3)", (turning(7, 4),)),
    "nonholonomic-particle": ("R^3", (np.cumsum(turning(7, 3)[:, 0], axis=0),)),
    "in the plane": ("R^2", (PLACES,)),
    "on a line": ("R^1", (PLACES[:, :1],)),
}


@pytest.mark.parametrize("name", SCENES)
def test_every_scene_draws_what_moves_and_takes_it_away_again(name):
    group, parts = SCENES[name]
    parameters = {**MODELS[name].parameters, **MODELS[name].example} if name in MODELS else {}
    figure, draw = stage(Motion(T, group, parts, name, parameters))
    (axes,) = figure.axes

    def drawn(k):
        draw(k)
        return len(axes.lines) + len(axes.patches) + len(axes.collections)

    assert len({drawn(k) for k in (1, 3, 6, 2)}) == 1 and drawn(3) > 1
    assert "t = 0.50" in axes.get_title(loc="left") + axes.get_title()


def test_a_gif_has_frames_that_differ(tmp_path):
    from PIL import Image, ImageSequence

    motion = Motion(T, "SE(2)", (travelling(7),), "chaplygin-sleigh")
    assert animate(motion, tmp_path / "x.gif", seconds=1.0, frames_per_second=3) == 3
    with Image.open(tmp_path / "x.gif") as film:
        frames = [np.asarray(frame.convert("L"), float) for frame in ImageSequence.Iterator(film)]
    assert len(frames) == 3 and all(np.abs(a - b).sum() > 1000 for a, b in pairwise(frames))
    assert [path.name for path in tmp_path.iterdir()] == ["x.gif"]


def test_what_cannot_be_shown_is_refused(tmp_path, monkeypatch):
    motion = Motion(T, "SO(4)", (turning(7, 4),))
    with pytest.raises(InvalidInput, match="no moving picture for"):
        animate(motion, tmp_path / "x.gif")
    with pytest.raises(InvalidInput, match=r"\.mp4 or \.gif"):
        animate(motion, tmp_path / "x.avi")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidInput, match=r"needs ffmpeg.*\.gif"):
        animate(motion, tmp_path / "x.mp4")
    with pytest.raises(InvalidInput, match="no file"):
        motion_of_file(tmp_path / "none.nc")


def test_notebooks_get_a_table_and_a_picture(result):
    run = next(iter(result.runs.values()))
    text = run._repr_html_()
    assert "SO(3)" in text and "data:image/png;base64" in text and "largest energy error" in text
    assert "basis of d" in run.system._repr_html_() and "free" in run.system._repr_html_()
    assert repr(run) == "<Trajectory on SO(3) by discrete-moser-veselov: 21 states>"
