"""Stories and "Make it fail": what every step's text says is asserted here on the run of its settings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.studio import requests
from dalembert.studio.catalogue import STORIES, example, make_catalogue, read_stories, tell_story
from dalembert.studio.presentation import motion_plots, present, two_figures
from dalembert.studio.requests import RunFrames, StudioInput
from dalembert.studio.view import TEXTS, unpack_array

OPENED = StudioInput()
TOLD = {story["name"]: tell_story(story) for story in STORIES["story"]}
FAST = ("cusp",)


def play(story: str, step: int) -> list[RunFrames]:
    """The runs of a step, the first counted 1, at 300 frames."""
    request = TOLD[story]["steps"][step - 1]["request"]
    jobs, _ = requests.jobs_of(request, OPENED)
    found = []
    for job in jobs:
        controls = requests.controls_of(request, job)
        run, balance, _ = requests.integrate(job, requests.frame_interval(job, 300), controls=controls)
        found.append(requests.frames_of_run(run, job, len(found), balance=balance))
    return found


def error(run: RunFrames) -> float:
    """The largest change of the energy, as a part of what there was at first."""
    return run.conservation.peak / abs(float(run.energy[0]))


def tumbling() -> None:
    (body,) = play("tumbling", 1)
    space = np.einsum("kij,kj->ki", body.parts[0], body.momentum)
    assert error(body) < 1e-13 and np.ptp(space, axis=0).max() < 1e-12
    (flips,) = play("tumbling", 2)
    middle = flips.velocity[:, 1]
    assert np.count_nonzero(np.diff(np.sign(middle))) >= 2, "it flips over and back"
    assert np.mean(np.abs(middle) > 0.9 * np.abs(middle).max()) > 0.5, "and stays a while in between"
    exact, other = play("tumbling", 3)
    assert TOLD["tumbling"]["steps"][2]["request"]["config"]["run"]["step"] == 0.1, "ten steps a second"
    assert "look the same" in present(TOLD["tumbling"]["steps"][2]["request"], OPENED)["verdict"]
    exact, other = play("tumbling", 4)
    assert error(exact) < 1e-13 and other.t[-1] == 40.0
    assert np.all(np.linalg.svd(other.parts[0][-1])[1][1:] < 0.01), "a needle: neither width nor height"
    exact, other = play("tumbling", 5)
    assert error(exact) < 1e-14 and exact.distance.max() < 1e-14 and np.abs(other.parts[0]).max() > 1e18


def transmission() -> None:
    assert error(play("transmission", 1)[0]) < 0.01
    (short,) = play("transmission", 2)
    assert error(short) < 0.02 and short.constraint.max() < 1e-14 and short.t[-1] == pytest.approx(80)
    (symmetric,) = play("transmission", 3)
    assert error(symmetric) < 0.02 and symmetric.t[-1] == pytest.approx(20_000)
    (grows,) = play("transmission", 4)
    assert 6 < grows.energy.max() / grows.energy[0] < 9 and grows.constraint.max() < 1e-14
    wrong, leapfrog = play("transmission", 5)
    assert wrong.energy.max() > 1e4 * wrong.energy[0] and error(leapfrog) < 0.25
    half = len(leapfrog.t) // 2
    early, late = (np.abs(leapfrog.conservation.values[part]).max() for part in (slice(half), slice(half, None)))
    assert late < 1.2 * early, "it swings, and does not grow"


def cusp() -> None:
    (sleigh,) = play("cusp", 1)
    forward = sleigh.velocity[:, 1]
    turned = sleigh.t[np.argmax(forward > 0)]
    assert forward[0] < 0 and 3.5 < turned < 4.5 and np.all(forward[sleigh.t > 4.5] > 0)
    assert play("cusp", 2)[0].t[-1] * TOLD["cusp"]["steps"][1]["begin"] < turned, "the cusp is still to come"
    (circle,) = play("cusp", 3)
    assert np.ptp(circle.velocity, axis=0).max() < 1e-12
    (leads,) = play("cusp", 4)
    assert np.all(leads.velocity[:, 1] < 0) and abs(leads.velocity[-1, 0]) < 0.1 * abs(leads.velocity[0, 0])
    (ends,) = play("cusp", 5)
    assert error(ends) < 1e-13 and abs(ends.velocity[-1, 0]) < 1e-4 * abs(ends.velocity[0, 0])


def rattleback() -> None:
    (right,) = play("rattleback", 1)
    assert right.velocity[:, 2].min() > 0.95 * right.velocity[0, 2]
    (wrong,) = play("rattleback", 2)
    spin = wrong.velocity[:, 2]
    turned = wrong.t[np.argmax(spin > 0)]
    assert spin[0] == pytest.approx(-5) and 5.3 < turned < 5.7 and 0.88 < spin.max() / 5 < 0.95
    assert 0.55 * wrong.t[-1] < turned
    ours, other = play("rattleback", 4)
    assert abs(ours.t[np.argmax(ours.velocity[:, 2] > 0)] - other.t[np.argmax(other.velocity[:, 2] > 0)]) < 0.01
    same = TOLD["rattleback"]["steps"][3]["request"]
    assert example("rattleback")["run"]["step"] / same["config"]["run"]["step"] == 8
    assert "look the same" in present(same, OPENED)["verdict"], "what the page says beside the story"
    ours, other = play("rattleback", 5)
    assert 0.016 / example("rattleback")["run"]["step"] == 8
    assert ours.valid < len(other.t) and other.valid == len(other.t) and error(other) < 1e-4
    rocking = np.abs(other.velocity[:, :2]).max(axis=1)
    assert other.velocity[:, 2].max() < -4.9 and rocking[-20:].max() < 0.25 * rocking[0], "it spins on, and is damped"


def threshold() -> None:
    leans = [np.degrees(np.arcsin(np.abs(play("threshold", step)[0].parts[0][:, 2, 1]).max())) for step in (1, 2, 3, 4)]
    (drawn,) = (plot for plot in motion_plots(play("threshold", 4)) if plot["title"] == "Lean")
    assert np.abs(unpack_array(drawn["curves"][0]["y"])).max() == pytest.approx(leans[3], abs=1e-3)
    assert leans[0] < 0.5 and leans[0] < leans[1] < 2 and 18 < leans[2] < 25 and leans[3] > 40
    spins = [step["request"]["config"]["initial"]["velocity"][1] for step in TOLD["threshold"]["steps"]]
    parameters = example("rolling-disk")["system"]
    critical = np.sqrt(parameters["gravity"] / (3 * parameters["radius"]))
    assert critical == pytest.approx(2.557, abs=1e-3) and spins[2] < critical < spins[1] < 0.5 * spins[0]


def bicycle() -> None:
    def ride(step: int) -> tuple[np.ndarray, np.ndarray]:
        job = OPENED.job(TOLD["bicycle"]["steps"][step - 1]["request"]["config"])
        run = da.simulate(job.system, job.integrator, job.state, **job.run)
        return run["lean"], run["steer"]

    lean, steer = ride(1)
    assert np.all(lean[1:20] * steer[1:20] > 0), "it steers into the fall"
    assert np.abs(lean[-50:]).max() < np.abs(lean).max() / 7.9 and len(lean) == 301
    weave, _ = ride(3)
    peaks = [np.abs(part).max() for part in np.split(weave, np.flatnonzero(np.diff(np.sign(weave[1:]))) + 1)]
    assert peaks[1] > peaks[0], "to the other side further than before"
    fast, _ = ride(4)
    assert np.argmax(np.abs(fast)) == len(fast) - 1 and np.all(fast[1:] * fast[-1] > 0), "it never comes back"
    stable, _ = ride(5)
    assert np.abs(stable[-50:]).max() < 0.15 * np.abs(stable).max()
    study = da.stability(OPENED.job(example("bicycle")).system, "speed", 0.5, 10.0)
    assert study.critical == pytest.approx([4.29238253634111, 6.02426201538837], abs=1e-9)


def branch() -> None:
    (steady,) = play("branch", 1)
    assert np.ptp(steady.velocity[-20:], axis=0).max() < 2e-3
    for step in (2, 3):
        assert error(play("branch", step)[0]) < 1e-14
    (ended,) = play("branch", 4)
    assert ended.trajectory is not None and ended.trajectory.failed_at == -1
    (other,) = play("branch", 5)
    assert other.valid == len(other.t) and other.distance.max() > 0.5 and error(other) < 1e-3


def holonomy() -> None:
    (straight,) = play("holonomy", 1)
    path = straight.parts[1] - straight.parts[1][0]
    assert np.abs(path[:, 0] * path[-1, 1] - path[:, 1] * path[-1, 0]).max() < 1e-9
    for step in (2, 3):
        (ball,) = play("holonomy", step)
        middle = (ball.parts[1].max(axis=0) + ball.parts[1].min(axis=0)) / 2
        radii = np.linalg.norm(ball.parts[1] - middle, axis=1)
        assert np.ptp(radii) < 0.02 * radii.mean(), "a circle"
    (once,) = play("holonomy", 4)
    rate = example("ball-on-table")["system"]["rotation"]
    assert once.t[-1] == pytest.approx(2 * np.pi / (2 * rate / 7)) == pytest.approx(14.66, abs=0.01)
    assert np.linalg.norm(once.parts[1][-1] - once.parts[1][0]) < 0.01
    turned = np.degrees(np.arccos((np.trace(once.parts[0][0].T @ once.parts[0][-1]) - 1) / 2))
    assert turned == pytest.approx(171, abs=0.5)
    (drawn,) = (plot for plot in motion_plots([once]) if plot["title"] == "Turned by")
    assert unpack_array(drawn["curves"][0]["y"])[-1] == pytest.approx(turned, abs=1e-3)


def gait() -> None:
    moved, turned = [], []
    for step in (2, 3, 4):
        (board,) = play("gait", step)
        assert np.all(board.parts[0][0] == np.eye(3)) and np.abs(board.velocity[0, :3]).max() < 1e-30, "from rest"
        moved.append(board.parts[0][-1, :2, 2])
        turned.append(np.degrees(np.arctan2(board.parts[0][-1, 1, 0], board.parts[0][-1, 0, 0])))
        assert board.t[-1] == pytest.approx(5)
    assert np.linalg.norm(moved[0]) > 1.5
    assert abs(turned[1]) > 90 and np.linalg.norm(moved[1]) < 0.1
    assert abs(turned[2]) < 5 and np.linalg.norm(moved[2]) > 0.3 and moved[2][1] > 0.15


def planes() -> None:
    (particle,) = play("planes", 1)
    assert particle.constraint.max() < 1e-14
    ours, other = play("planes", 3)
    assert error(ours) > 90 * error(other) and 1e-6 < other.constraint.max() < 1e-5
    ours, other = play("planes", 4)
    assert other.energy[-1] < 0.5 * other.energy[0] and error(ours) < 0.1 and ours.constraint.max() < 1e-14


def chain() -> None:
    def rods(run: RunFrames) -> np.ndarray:
        first, second = run.parts[0][: run.valid, :2], run.parts[0][: run.valid, 2:]
        return np.stack([np.linalg.norm(first, axis=1), np.linalg.norm(second - first, axis=1)])

    lengths = np.array(example("pendulum-chain")["system"]["lengths"])[:, None]
    ours, other = play("chain", 2)
    assert np.abs(rods(ours) - lengths).max() < 1e-9 and np.abs(rods(other) - lengths).max() < 0.01
    ours, other = play("chain", 3)
    assert error(ours) > 1e-3 and error(other) > 1e-3 and other.valid == len(other.t)
    ours, other = play("chain", 4)
    assert ours.valid == len(ours.t) and np.abs(rods(ours) - lengths).max() < 1e-9
    assert other.trajectory is not None and other.trajectory.status != "ok" and rods(other).max() > 100


CLAIMS: dict[str, Callable[[], None]] = {
    check.__name__: check
    for check in (tumbling, transmission, cusp, rattleback, threshold, bicycle, branch, holonomy, gait, planes, chain)
}


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.heavy) for n in TOLD])
def test_what_a_story_says_is_so(name):
    CLAIMS[name]()


def test_stories_are_of_many_systems_and_have_four_to_six_steps():
    assert set(CLAIMS) == set(TOLD) and len({story["system"] for story in STORIES["story"]}) >= 10
    for story in TOLD.values():
        assert 4 <= len(story["steps"]) <= 6, story["name"]
        assert all(step["plot"] in {None, *TEXTS["plots"]} for step in story["steps"]), "a plot that there is"
    assert [story["name"] for story in make_catalogue(OPENED)["stories"]] == list(TOLD)
    json.dumps(TOLD, allow_nan=False)


PAIRS = [n if n == "chaplygin-sleigh" else pytest.param(n, marks=pytest.mark.heavy) for n in STORIES["fail"]]


@pytest.mark.parametrize("name", PAIRS)
def test_make_it_fail_shows_a_difference(name):
    """The motions come apart, and one of them is wrong by what it should keep: an end, energy, constraint or group."""
    pair = STORIES["fail"][name]
    config = {**example(name), "run": pair["run"]}
    config["method"] = pair.get("method", config["method"])
    answer = present({"config": config, "against": pair["against"], "panes": True, "frames": 60}, OPENED)
    assert "come apart" in answer["verdict"] and answer["beside"]["parts"]
    first, second = answer["runs"]
    energy = next(plot for plot in answer["plots"] if plot["title"] == "Energy")["curves"][0]
    scale = max(abs(unpack_array(energy["y"])[0]), 1e-9)
    ends = (first["status"] == "ok") != (second["status"] == "ok")
    sizes = {key: [run[key] or 0.0 for run in (first, second)] for key in ("energy_error", "constraint", "group")}
    apart = {key: max(pair) > 5 * min(pair) for key, pair in sizes.items()}
    assert (
        ends
        or (apart["energy_error"] and max(sizes["energy_error"]) > 0.05 * scale)
        or (apart["constraint"] and max(sizes["constraint"]) > 0.03)
        or (apart["group"] and max(sizes["group"]) > 0.05)
    ), sizes


@pytest.mark.parametrize("panes", [False, True])
def test_two_motions_of_a_point_are_drawn_and_compared_to_one_scale(panes):
    """One grows to a hundred times the size of the other, beside an angle that turns on in both."""
    pair = STORIES["fail"]["pendulum-cvt"]
    config = {**example("pendulum-cvt"), "run": pair["run"], "method": pair["method"]}
    answer = present({"config": config, "against": pair["against"], "panes": panes, "frames": 200}, OPENED)
    assert float(answer["verdict"].partition("come apart by ")[2].split()[0]) > 30, answer["verdict"]  # per cent
    parts = answer["scene"]["parts"] + (answer["beside"] or {"parts": []})["parts"]
    paths = [unpack_array(part["shape"]["points"]) for part in parts if part["name"] == "path"]
    sides = [np.ptp(path, axis=0) for path in paths]
    assert len(paths) == 2 and sides[0][:2].min() > 100 * sides[1][:2].max()
    assert sides[0][2] == pytest.approx(sides[1][2], rel=0.1)


@pytest.mark.parametrize(
    ("name", "method", "told"),
    [
        ("chaplygin-sleigh", "runge-kutta", "runge-kutta is nearer to the true one"),
        ("chaplygin-sleigh", "leapfrog", "euler-poincare-suslov is nearer to the true one"),
        pytest.param("rigid-body", "runge-kutta", "moser-veselov is nearer to the true one", marks=pytest.mark.heavy),
        pytest.param("rattleback", "runge-kutta", "neither is to be trusted", marks=pytest.mark.heavy),
    ],
)
def test_a_comparison_opens_where_methods_differ_and_says_which_is_nearer_to_the_truth(name, method, told):
    """Also where that is Runge-Kutta: what is said is so of the distance from a run with a fine step."""
    config = {**example(name), "run": STORIES["fail"][name]["run"]}
    request = {"config": config, "against": {"name": method}, "frames": 60}
    verdict = present(request, OPENED)["verdict"]
    assert "come apart" in verdict and told in verdict, verdict
    jobs, _ = requests.jobs_of(request, OPENED)
    step, steps = config["run"]["step"], config["run"]["steps"]
    fine = da.simulate(jobs[0].system, da.RungeKutta(), jobs[0].state, step=step / 40, steps=40 * steps, save_every=40)
    if "nearer" in told:
        runs = [da.simulate(job.system, job.integrator, job.state, step=step, steps=steps) for job in jobs]
        off = [np.abs(np.asarray(run.g) - np.asarray(fine.g)).max() for run in runs]
        assert (off[1] < off[0]) == (method in told), off


STORY = """
[[story]]
name = "mine"
title = "A story of my own"
system = "chaplygin-sleigh"
[[story.step]]
text = "One."
[[story.step]]
text = "Two."
system = {a = 0.5}
run = {steps = 20}
"""


def test_a_story_of_ones_own_changes_what_it_names(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(STORY)
    (story,) = read_stories(file, OPENED)
    one, two = (step["request"]["config"] for step in story["steps"])
    assert one == json.loads(json.dumps(example("chaplygin-sleigh"), default=list))
    assert two["system"] == one["system"] | {"a": 0.5} and two["run"] == one["run"] | {"steps": 20}
    opened = StudioInput(stories=(story,))
    assert make_catalogue(opened)["stories"][0]["name"] == "mine"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("text = \"Two.\"", "txet = \"Two.\"", "story 'mine', step 2: unknown key 'txet'. Did you mean 'text'?"),
        ("text = \"Two.\"", "begin = 0.5", "story 'mine', step 2: text is missing"),
        ("text = \"Two.\"", "text = \"Two.\"\nbegin = 1.5", "begin from 0 to below 1"),
        ("text = \"Two.\"", "text = \"Two.\"\ncamera = [0, 0, 0]", "a camera of 3 numbers, not all 0"),
        ("text = \"Two.\"", "text = \"Two.\"\ncamera = [0, \"up\", 1]", "a camera of 3 numbers"),
        ("text = \"Two.\"", "text = \"Two.\"\nplot = \"Jaw rate\"", "unknown plot 'Jaw rate'. Did you mean"),
        ("text = \"Two.\"", "text = \"Two.\"\npanes = 3", "panes is 3; allowed: true or false"),
        ("chaplygin-sleigh", "chaplygin-sledge", "unknown system of a story 'chaplygin-sledge'. Did you mean"),
        ("a = 0.5", "mass = -1.0", "story 'mine', step 2: mass"),
        ("[[story]]", "[[tale]]", "one or more [[story]]"),
    ],
)  # fmt: skip
def test_a_story_that_cannot_be_told_says_why(tmp_path: Path, before: str, after: str, told: str):
    file = tmp_path / "mine.toml"
    file.write_text(STORY.replace(before, after))
    with pytest.raises(InvalidInput) as fault:
        read_stories(file, OPENED)
    assert told in str(fault.value)


def test_waves_and_rows_are_the_same_controls():
    config = {**example("snakeboard"), "run": {"step": 0.01, "steps": 5}}
    (job,), _ = requests.jobs_of({"config": config}, OPENED)
    waves = requests.controls_of({"controls": {"rotor torque": [2.0, 3.0, 0.5]}}, job)
    assert np.allclose(waves, [[2 * np.sin(3 * 0.01 * (k + 0.5) + 0.5), 0] for k in range(5)], atol=1e-15)
    assert np.array_equal(requests.controls_of({"controls": waves.tolist()}, job), waves)
    assert np.array_equal(requests.controls_of({"controls": {"rotor torque": 1}}, job), [[1.0, 0.0]] * 5)
    bad = ([[0.0, 1.0]] * 4, [[0.0]] * 5, [[0.0, "x"]] * 5, {"rotor": [1, 2, 3]}, {"rotor torque": [1]})
    for given in bad:
        with pytest.raises(InvalidInput):
            requests.controls_of({"controls": given}, job)
    for given, told in itertools.product(([[0.0] * 17], "abc", [[0.0] * 10] * 20_000), ("controls",)):
        with pytest.raises(InvalidInput, match=told):
            requests.check_request({"config": config, "controls": given}, OPENED)


def test_sizes_are_told_as_one_reads_them():
    told = {0.0: "0", 0.0534: "0.053", 3.52e-4: "3.5e-4", 63000.0: "6.3e4", 171.2: "170", 5.5e31: "5.5e31", 1.0: "1"}
    assert {size: two_figures(size) for size in told} == told
