"""What the studio shows of the motion itself: cusps on the path, velocities by name, and the energy that power
leaves.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import dalembert as da
from dalembert.plotting.style import COLOURS
from dalembert.studio.catalogue import example
from dalembert.studio.presentation import present, velocity_components
from dalembert.studio.requests import StudioInput, frames_of_run
from dalembert.studio.scenes import find_cusps, planar_poses
from dalembert.studio.view import unpack_array as array

OPENED = StudioInput(max_steps=200_000)


def plot(answer, title: str):
    return next(plot for plot in answer["plots"] if plot["title"] == title)


@pytest.fixture(scope="module")
def sleigh():
    return present({"config": example("chaplygin-sleigh"), "against": {"name": "runge-kutta"}}, OPENED)


def test_the_cusp_is_where_the_event_finds_it():
    """Between frames that are far apart to 1 % of the body's size, where the nearest misses it by more; at 5 a second
    to 0.01 %.
    """
    system = da.models.chaplygin_sleigh(1.0, 1.0, 0.3)
    event = da.Event(da.Quantity("velocity", (1,)), name="cusp")
    state = system.state(xi=[0.9, -1.0, 0.0])
    run = da.simulate(system, da.LagrangeDAlembert(), state, step=0.05, steps=128, events=[event])
    (exact,), place = run.events["cusp"].t, np.asarray(run.events["cusp"].g)[0, :2, 2]
    t, g, xi = map(np.asarray, (run.t, run.g, run.xi))
    for every, error in ((16, 5e-3), (4, 5e-5)):
        frames = slice(every // 2, None, every)
        (found,) = find_cusps(t[frames], *planar_poses(g[frames]), xi[frames])
        assert found.name == "cusp" and found.time == pytest.approx(float(exact), abs=0.1 * every * 0.05)
        assert np.abs(found.place - place).max() < error
    far = slice(8, None, 16)
    assert np.abs(g[far][np.argmin(np.abs(t[far] - exact)), :2, 2] - place).max() > 0.01


def test_what_is_no_cusp():
    t, still = np.linspace(0, 1, 11), np.broadcast_to(np.eye(3), (11, 3, 3))
    velocity = np.zeros((11, 3))
    place = np.zeros((11, 2))
    velocity[:, 1] = t - 0.43  # there and back on one line
    (back,) = find_cusps(t, place, still, velocity)
    assert back.name == "turning point" and back.time == pytest.approx(0.43)
    velocity[:, 1] = (t - 0.4) ** 2  # stops, and goes on
    assert find_cusps(t, place, still, velocity) == []
    velocity[:, 1], velocity[:, 2] = (
        np.cos(2.2 * np.pi * t / 0.1),
        np.sin(2.2 * np.pi * t / 0.1),
    )  # runs round between two frames
    assert find_cusps(t, place, still, velocity) == []


def test_the_sleighs_cusp_is_marked_and_without_a_lever_there_is_none(sleigh):
    marks = [part for part in sleigh["scene"]["parts"] if part["name"] == "cusp"]
    assert [part["run"] for part in marks] == [0, 1]
    assert np.abs(np.subtract(marks[0]["position"], marks[1]["position"])).max() < 1e-2
    speed = plot(sleigh, "Forward velocity")["curves"][0]
    before = np.flatnonzero(np.diff(np.sign(array(speed["y"]))))[0]
    told = re.search(r"turns back \(t = ([0-9.]+)\)", sleigh["caption"])
    assert told and array(speed["x"])[before] <= float(told[1]) <= array(speed["x"])[before + 1]
    config = example("chaplygin-sleigh")
    config["system"] = {**config["system"], "a": 0.0}
    circle = present({"config": config}, OPENED)
    assert (
        not [part for part in circle["scene"]["parts"] if part["name"] == "cusp"]
        and "turns back" not in circle["caption"]
    )


def test_the_motion_of_a_body_on_the_plane_has_names_and_units(sleigh):
    motion = {entry["title"]: entry["y"] for entry in sleigh["plots"] if entry["group"] == "motion"}
    assert motion == {
        "Forward velocity": "v1, m/s",
        "Yaw rate": "w, rad/s",
        "Push of the constraint": "N",
        "Energy": "E, J",
    }
    assert [entry["title"] for entry in sleigh["plots"] if entry["group"] == "kept"][:2] == [
        "Energy error",
        "Constraint",
    ]
    assert [curve["run"] for curve in plot(sleigh, "Yaw rate")["curves"]] == [0, 1]
    assert plot(sleigh, "Forward velocity")["level"], "zero is drawn where the velocity passes it"


@pytest.mark.parametrize(
    "group",
    [
        da.SE2(),
        da.SE2() * da.SO2() * da.SO2(),
        da.SO3() * da.Euclidean(2),
        da.SE3(),
        da.groups.SOn(4),
        da.groups.SEn(4),
        da.Euclidean(7),
    ],
    ids=str,
)
def test_components_are_those_of_the_group(group):
    found = velocity_components(group.factors, group.dim)
    assert [component.name for component in found] == [axis.name.partition("_")[0] for axis in group.axes()]
    units = {"rad s-1": "rad/s", "m s-1": "m/s", "[q] s-1": ""}
    assert [component.unit for component in found] == [units[axis.velocity] for axis in group.axes()]


def test_where_power_enters_the_balance_is_shown():
    answer = present({"config": example("ball-on-table"), "frames": 40}, OPENED)
    (run,) = answer["runs"]
    shown = plot(answer, "Energy balance")
    assert answer["plots"][0] is shown and shown["y"] == "|E - E(0) - work|" and run["energy_title"] == "Energy balance"
    energy = array(plot(answer, "Energy")["curves"][0]["y"])
    assert len(energy) == len(array(shown["curves"][0]["y"])) <= 42
    assert array(shown["curves"][0]["y"]).max() <= 1.001 * run["energy_error"] < 1e-2 * np.ptp(energy)


def test_the_push_of_the_constraint_is_that_under_the_controls():
    """A motor turns a vehicle whose centre of mass is off its axle: the wheels push against that."""
    system = da.models.unicycle(centre=0.5)
    start = system.state(xi=[0.5, 1.0, 0.0])
    run = da.simulate(system, da.LagrangeDAlembert(), start, step=0.05, steps=40, controls=0.3 * np.ones((40, 2)))
    push = frames_of_run(run).reaction
    np.testing.assert_allclose(push, run.reaction(), atol=1e-12)
    free = da.simulate(system, da.LagrangeDAlembert(), start, step=0.05, steps=1)
    assert np.abs(push[0] - frames_of_run(free).reaction[0]).max() > 0.05


def test_components_have_colours_that_mean_nothing_else():
    body = present({"config": example("rigid-body"), "against": {"name": "runge-kutta"}}, OPENED)
    shown = {part["colour"] for part in body["scene"]["parts"]} | {run["colour"] for run in body["runs"]}
    colours = {c["colour"] for drawn in body["plots"] for c in drawn["curves"] if c.get("name")}
    assert len(colours) == 3 and not colours & (shown | set(COLOURS))


@pytest.mark.parametrize("name", ["car", "snakeboard"])
def test_what_is_drawn_larger_than_it_is_is_told(name):
    """The floor has a scale, and so has what stands on it."""

    def wheel_and_words(steps: int) -> tuple[float, str]:
        config = {**example(name), "run": {"step": 0.02, "steps": steps}}
        config["system"] = {**config["system"], "length": 0.2}
        shown = present({"config": config}, OPENED)
        radius = next(part["shape"]["radius"] for part in shown["scene"]["parts"] if part["name"] == "wheel")
        return radius, shown["caption"]

    (true, says_nothing), (drawn, caption) = wheel_and_words(2), wheel_and_words(4000)
    told = re.search(r"drawn ([0-9.]+) times as large as it is", caption)
    assert told is not None and float(told[1]) == pytest.approx(drawn / true, abs=0.06), caption
    assert "times as large" not in says_nothing


@pytest.mark.heavy
def test_sentences_of_a_caption_are_apart():
    caption = present({"config": example("skate-on-ellipsoid")}, OPENED)["caption"]
    assert "Orange-red: the blade" in caption and not re.search(r"\.\S", caption), caption
