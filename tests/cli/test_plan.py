"""`dalembert plan`: what a configuration says of a plan is planned, saved and drawn, or refused by a sentence."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import dalembert as da
from dalembert import cli
from dalembert.cli.optimise import read_plan
from dalembert.errors import InvalidInput
from dalembert.io.config import parse_job
from dalembert.mechanics import read_names

EXAMPLE = Path(__file__).parents[2] / "examples" / "plan-park.toml"
FEW = ["--set", "plan.steps=12"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, "park.toml")
    return tmp_path


def invoke(*words):
    return CliRunner().invoke(cli.app, ["plan", "park.toml", *FEW, *words])


def test_the_command(here):
    """The run that it writes ends at the goal, around the post, and its controls cost what is told."""
    done = invoke("--out", "park.nc", "--plot", "park.png")
    assert done.exit_code == 0 and "optimal after" in done.output and "drive force" in done.output
    assert Path("park.png").stat().st_size > 10_000
    run = da.load("park.nc")
    np.testing.assert_allclose(run.g[-1], [[1, 0, 0], [0, 1, 1], [0, 0, 1]], atol=1e-8)
    x, y = np.asarray(run.g)[1:, :2, 2].T
    assert 0.15 - 1e-9 <= np.hypot(x - 0.05, y - 0.6).min() < 0.16
    found = json.loads(invoke("--json").output)
    assert found["status"] == "optimal" and found["strict"]
    np.testing.assert_allclose(found["controls"], run.controls, atol=1e-9)
    assert found["cost"] == pytest.approx(found["step"] * np.sum(run.controls**2), rel=1e-9)
    again = CliRunner().invoke(cli.app, ["show", "park.nc", "--config"]).output
    assert tomllib.loads(again) == tomllib.loads(EXAMPLE.read_text().replace("steps = 50", "steps = 12"))


@pytest.mark.parametrize(
    ("name", "coordinates"),
    [("unicycle", ["x", "y"]), ("unicycle", ["position_0", "position_1"]), ("car", ["y", "x"]), ("car", ["x", "y"])],
)
def test_obstacles_are_drawn_by_any_names_of_the_plane(name, coordinates, tmp_path):
    drawn, system = Figure().add_subplot(aspect="equal"), getattr(da.models, name)()
    found = SimpleNamespace(system=system, plot=lambda: drawn.figure)
    known = cli.optimise.known_readings(system, False)
    centre = [{"x": 1.0, "y": 2.0, "position_0": 1.0, "position_1": 2.0}[each] for each in coordinates]
    assert set(coordinates) <= set(known)
    obstacles = [{"coordinates": coordinates, "centre": centre, "radius": 0.5}]
    cli.optimise._draw(found, [*obstacles, {**obstacles[0], "coordinates": [coordinates[0], "w"]}], tmp_path / "a.png")
    assert [patch.center for patch in drawn.patches] == [(1.0, 2.0)]


def test_an_obstacle_in_the_way_is_named_as_in_the_file(here):
    done = invoke("--set", "obstacle.0.centre=[0.1, 1.0]", "--out", "none.nc")
    assert done.exit_code == 1 and not Path("none.nc").exists()  # there is no plan to write
    assert "the goal itself violates the [[obstacle]] at [0.1, 1.0] of radius 0.15, by about 0.05: " in done.output
    assert "row 0" not in done.output and "path" not in done.output


def test_a_goal_out_of_reach_is_no_wrong_input(here):
    """The controls of the last iterate break their bounds by round-off: simulate refuses them, the command said so."""
    done = invoke("--set", "goal.configuration={angle = 0.0, position = [200.0, 0.0]}", "--out", "none.nc")
    assert done.exit_code == 1 and "missed by" in done.output and "controls row" not in done.output
    assert not Path("none.nc").exists()


def test_what_is_violated_between_two_states_is_named_as_in_the_file():
    given = {"plan": {}, "obstacle": [{"coordinates": ["x", "y"], "centre": [0.05, 0.6], "radius": 0.15}]}
    given["bound"] = [{"name": "position_0", "high": 2.0}, {"name": "w", "low": 0.0}]
    told = "between the states 3 and 4 row 1 of the path is broken by 0.0044 (in 1 of 12 steps something is broken): x"
    named = cli.optimise._name_rows(told, given, da.models.unicycle())
    assert "4 the [[obstacle]] at [0.05, 0.6] of radius 0.15 is violated by about 0.02 (in 1 of 12 steps" in named
    told = "more. The start itself breaks the path (row 1 is -0.012 there), which the first step has to mend"
    assert cli.optimise._name_rows(told, given, da.models.unicycle()) == (
        "more. The start itself violates the [[obstacle]] at [0.05, 0.6] of radius 0.15, by about 0.05, which the "
        "first step has to mend"
    )
    told = "row 0 of the path is broken by 1.3e-05 (in"
    assert cli.optimise._name_rows(told, given, da.models.unicycle()).startswith(
        "the [[bound]] of position_0, high = 2 is violated by about 1e-05 (in"
    )


def test_ctrl_c_keeps_the_best_so_far(here, monkeypatch):
    def stopped(*given, **options):
        def progress(count, residual, gap):
            if count == 3:
                raise KeyboardInterrupt

        return da.plan(*given, **options | {"progress": progress})

    monkeypatch.setattr(cli.optimise, "plan", stopped)
    done = invoke("--out", "park.nc", "--json")
    assert done.exit_code == 130 and "the best so far" in done.stderr
    assert json.loads(done.stdout)["status"] == "interrupted" and da.load("park.nc").controls.shape == (12, 2)

    def before(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.optimise, "plan", before)
    done = invoke("--out", "never.nc")
    assert done.exit_code == 130 and "before the first iteration" in done.stderr
    assert not list(here.glob("*never*"))


@pytest.mark.heavy
def test_no_plan_says_why(here):
    done = invoke(
        "--set",
        "bound.0.high=1e-3",
        "--set",
        "bound.0.low=-1e-3",
        "--set",
        "plan.max_iterations=5",
        "--set",
        "plan.starts=8",
    )
    assert done.exit_code == 1 and "missed by" in done.stderr


KINEMATIC = """[system]
name = "chaplygin-sleigh"
[method]
name = "lagrange-dalembert"
[plan]
steps = 10
duration = [0.5, 4.0]
kinematic = true
[goal]
position_0 = 1.0
angle = 0.0
position_1 = 0.3
[[cost]]
name = "time"
weight = 2.0
[[cost]]
name = "w"
[[cost]]
name = "v1"
weight = 1.0
[[cost]]
name = "position_1"
target = 0.3
final = true
[[bound]]
name = "position_1"
low = -1.0
"""


@pytest.mark.heavy
def test_a_kinematic_plan_with_names_and_free_time(here):
    """What is named in [goal] is met; the price of time and the squares of rates are weighed against each other."""
    Path("park.toml").write_text(KINEMATIC)
    done = CliRunner().invoke(cli.app, ["plan", "park.toml", "--json"], catch_exceptions=False)
    found = json.loads(done.output)
    end = np.array(found["configuration"][-1])
    np.testing.assert_allclose(end, [[1, 0, 1.0], [0, 1, 0.3], [0, 0, 1]], atol=1e-8)
    rates = np.array(found["controls"])
    squares = found["step"] * np.sum(rates**2)
    assert found["cost"] == pytest.approx(2.0 * found["duration"] + squares, rel=1e-9)
    assert squares == pytest.approx(2.0 * found["duration"], rel=1e-6)  # the best time: both prices are equal
    assert found["inputs"] == ["w", "v1"]
    refused = CliRunner().invoke(cli.app, ["plan", "park.toml", "--out", "park.nc"])
    assert isinstance(refused.exception, InvalidInput) and "a kinematic plan has none" in str(refused.exception)


def test_a_mechanism_is_given_by_names():
    """Names of a goal may have _ for spaces, and bounds take the names of coordinates and rates."""
    given = {
        "system": {"name": "differential-drive"},
        "method": {"name": "lagrange-dalembert"},
        "plan": {"steps": 5, "duration": 1.0},
        "goal": {"x": 1.0, "yaw": 0.5, "yaw_rate": 0.0},
        "bound": [{"name": "speed", "high": 2.0}, {"name": "left torque", "low": -1.0, "high": 1.0}],
    }
    job = parse_job(given)
    task = read_plan(given, job)
    state = job.system.state(x=1.5, yaw=0.2, yaw_rate=0.1)
    assert task["goal"] == {"x": 1.0, "yaw": 0.5, "yaw rate": 0.0}
    named, values = read_names(job.system, "goal", task["goal"], True)
    off = named.off(job.system, 0.0, state.g, state.xi, values)
    np.testing.assert_allclose(off, [0.5, -0.3, 0.1], atol=1e-12)
    assert task["bounds"] == {"speed": (-np.inf, 2.0), "left torque": (-1.0, 1.0)}
    assert float(task["cost"](0.0, state.g, state.xi, np.array([1.0, 2.0]))) == 5.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["plan.duration=0"], "duration is 0 in .plan.; allowed: a positive number"),
        (["plan.duration=[3,2]"], "allowed: a positive number, or .shortest, longest."),
        (["plan.steps=0"], "steps is 0 in .plan.; allowed: a whole number of at least 1"),
        (["plan.step=3"], "unknown key of .plan. 'step'"),
        (["plan.free_goal=x"], "free_goal is 'x' in .plan.; allowed: a list of names"),
        (['plan.free_goal=["x"]'], "unknown free_goal 'x'"),
        (["goal.place=1.0"], "unknown key of .goal. 'place'"),
        (["goal.angle=1.0"], "has names .angle. and configuration, velocity"),
        (["goal={}"], "allowed: section.key=value"),
        (["cost.0.name=force"], "unknown name of a cost 'force'. Did you mean 'drive force'"),
        (["cost.0.final=true"], "unknown name of a cost 'drive force'"),
        (["cost.0.weight=x"], "weight is 'x' in .cost.; allowed: a finite number"),
        (["bound.0.low=2.0"], "is from 2 to 1; allowed: low < high"),
        (["bound.0.name=place"], "unknown name of a bound 'place'"),
        (['obstacle.0.coordinates=["position_0"]'], "as many coordinates as its centre has numbers"),
        (['obstacle.0.coordinates=["drive force", "w"]'], "unknown coordinate of an obstacle 'drive force'"),
        (["obstacle.0.radius=-1"], "a positive radius"),
        (["plan.kinematic=true"], "unknown name of a cost 'drive force'"),
        (["system.name=rigid-body", "system.inertia=[1,2,3]"], "unknown name of a cost|configuration"),
    ],
)
def test_bad_input_is_told(here, settings, words):
    refused = invoke(*(word for each in settings for word in ("--set", each)), "--out", "park.nc", "--plot", "park.png")
    assert isinstance(refused.exception, InvalidInput), refused.exception
    with pytest.raises(InvalidInput, match=words):
        raise refused.exception
    assert sorted(path.name for path in here.iterdir() if not path.name.startswith(".")) == ["park.toml"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no section .plan."),
        ("plan = 3\n", "must be a section of key = value lines"),
        ("[plan]\nsteps = 3\n", "needs duration"),
        ("[goal]\n[plan]\nsteps = 3\nduration = 1.0\n", ".goal. is {}; allowed"),
        ("[[cost]]\nweight = 1.0\n[plan]\nsteps = 3\nduration = 1.0\n", "a ..cost.. needs a name"),
        ("[[bound]]\nname = 'w'\n[plan]\nsteps = 3\nduration = 1.0\n", "a ..bound.. needs a name, and low or high"),
        ("[[obstacle]]\nradius = 1.0\n[plan]\nsteps = 3\nduration = 1.0\n", "needs coordinates and centre"),
        ("[[cost]]\nname = 'time'\ntarget = 1.0\n[plan]\nsteps = 3\nduration = 1.0\n", "a weight alone"),
    ],
)
def test_what_is_missing_is_told(here, text, words):
    head = '[system]\nname = "unicycle"\n[method]\nname = "lagrange-dalembert"\n'
    Path("park.toml").write_text(text + head if text.startswith("plan") else head + text)
    refused = CliRunner().invoke(cli.app, ["plan", "park.toml"])
    with pytest.raises(InvalidInput, match=words):
        raise refused.exception
