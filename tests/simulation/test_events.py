"""Events: what is found, what is not counted, how runs stop there, and what files, reports and configurations make of
them.
"""

from __future__ import annotations

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import dalembert as da
from dalembert.analysis.diagnostics import poincare_section
from dalembert.cli import app
from dalembert.cli.runs import run_report
from dalembert.io.config import parse_job as parse

H = 0.125
METHOD = da.LagrangeDAlembert()


def _free(t, x, v, p):
    return 0.5 * v @ v


def _pushed(t, x, v, u, p):
    return jnp.atleast_1d(u)


FREE = da.System(da.Euclidean(1), _free, force=_pushed)
"""x'' = u: the midpoint rule is exact, and so is every event on it."""
BEGIN = FREE.state([-1.0], [0.5])


def place(t, x, v, p):
    return x[0]


def alternating(t, x, v, p):
    return jnp.sin(jnp.pi * (t / H - 0.5))


def dipping(t, x, v, p):
    return (t - 0.55) ** 2 - 1e-4


def jumping(t, x, v, p):
    return jnp.where(t < 0.3, -1.0, 1.0)


def go(*events, steps=24, state=BEGIN, step=H, u=0.0, **options):
    controls = np.full(steps, u) if np.ndim(u) == 0 else u
    return da.simulate(FREE, METHOD, state, step=step, steps=steps, controls=controls, events=events, **options)


def at(value):
    return da.Event(da.Quantity("time", (), value), name=f"t={value}")


WATCHED = (
    da.Event(place, name="there"),
    *(da.Event(alternating, d, name=f"direction {d}") for d in (1, -1, 0)),
    *map(at, (0.0, 1e-12, 4 * H, 24 * H)),
    da.Event(dipping, name="dip"),
    da.Event(jumping, name="jump"),
)
"""All in one program: it is compiled once."""


@pytest.fixture(scope="module")
def found():
    return go(*WATCHED, state=FREE.state([-1.0], [0.7])).events


# -- what is found ----------------------------------------------------------------------------------------------------
def test_an_event_between_steps_is_found_to_round_off(found):
    there = found["there"]
    assert len(there) == 1 and there.direction[0] == 1 and there.step[0] == 12
    assert abs(there.t[0] - 1 / 0.7) < 1e-15 and abs(there.theta[0] - (1 / 0.7 / H - 11)) < 1e-14
    assert 0.0 <= there.g[0, 0] < 1e-15, "the state is at the event or just beyond it"


def test_controls_act_in_the_step_of_the_event():
    """u = 1 in every second step: x is a piecewise parabola."""
    u = np.tile([0.0, 1.0], 12)
    run = go(*WATCHED, u=u)
    k = int(np.flatnonzero(np.asarray(run.g[:, 0]) > 0)[0]) - 1
    x, v = float(run.g[k, 0]), float(run.xi[k, 0])
    span = -x / v if u[k] == 0 else (-v + np.sqrt(v * v - 2 * x)) / 1.0
    there = run.events["there"]
    assert abs(there.t[0] - (k * H + span)) < 1e-15
    times = np.array([0.3, there.t[0], 2.9])
    assert np.abs(run.at(times).g[1]) < 1e-15
    saved = go(u=u, save_every=5).at(times)
    np.testing.assert_allclose(saved.g, run.at(times).g, atol=1e-15)


def test_directions(found):
    up, down, both = (found[f"direction {d}"] for d in (1, -1, 0))
    assert np.all(up.direction == 1) and np.all(down.direction == -1)
    np.testing.assert_array_equal(np.sort(np.r_[up.t, down.t]), both.t)


def test_a_crossing_in_every_step_does_not_overflow_the_room_for_notes():
    all = go(*WATCHED, steps=300, save_every=7).events["direction 0"]
    np.testing.assert_allclose(all.t, (np.arange(300) + 0.5) * H, rtol=1e-15)
    np.testing.assert_array_equal(all.step, np.arange(1, 301))
    np.testing.assert_allclose(all.theta, 0.5, atol=1e-13)


def test_an_event_at_the_end_of_a_step_is_found_once_and_one_at_the_start_is_not(found):
    assert [len(found[f"t={value}"]) for value in (0.0, 1e-12, 0.5, 3.0)] == [0, 0, 1, 1]
    assert found["t=0.5"].t[0] == 0.5 and found["t=0.5"].step[0] == 4 and found["t=0.5"].theta[0] == 1.0


def test_backward_in_time():
    run = go(*WATCHED, state=FREE.state([1.0], [0.7]), step=-H)
    assert abs(run.events["there"].t[0] + 1 / 0.7) < 1e-15 and run.events["there"].direction[0] == -1
    assert abs(run.at(-1 / 0.7).g[0]) < 1e-15


def test_two_crossings_in_a_step_are_suspected_and_a_jump_is_no_event(found):
    assert len(found["dip"]) == 0 and found["dip"].suspects[0] == 1
    assert len(found["jump"]) == 0
    finer = go(*WATCHED, step=0.01, steps=80).events["dip"]
    np.testing.assert_allclose(finer.t, [0.54, 0.56], atol=1e-14)
    assert finer.suspects[0] == 0
    with pytest.raises(da.InvalidInput, match="jumps"):
        go(STOP, da.Event(jumping, stop=True, name="jump"))


# -- stopping ---------------------------------------------------------------------------------------------------------
STOP = da.Event(place, stop=True, name="there")


def test_a_stopped_run_ends_at_the_event_and_goes_on_from_it():
    long = go()
    for every in (1, 7, 100):
        run = go(
            STOP, da.Event(alternating, name="all"), state=FREE.state([-1.0], [0.7]), save_every=every, monitor=True
        )
        assert run.status == "ok" and run.stopped_by == "there" and run.steps == 12
        assert abs(run.t[-1] - 1 / 0.7) < 1e-15 and run.records.steps[-1] == 12 and len(run.t) == 1 + -(-12 // every)
        assert len(run.events["all"]) == 11, "the one after the stop, in the same step, is not part of the run"
    onward = da.simulate(FREE, METHOD, run, step=H, steps=12, controls=np.zeros(12), events=[STOP])
    assert onward.stopped_by is None and len(onward.events["there"]) == 0 and onward.steps == 24
    assert abs(onward.t[-1] - (1 / 0.7 + 12 * H)) < 1e-15 and abs(onward.g[-1, 0] - 12 * H * 0.7) < 1e-14
    assert long.stopped_by is None and long.events == {}


def test_a_stopped_run_takes_no_more_steps():
    run = go(STOP, steps=4000, save_every=1)
    assert len(run.t) == 17 and run.steps == 16


def test_the_first_of_two_stops_counts():
    late = da.Event(da.Quantity("configuration", (0,), 0.01), stop=True, name="late")
    run = go(late, STOP, state=FREE.state([-1.0], [0.7]))
    assert run.stopped_by == "there" and len(run.events["late"]) == 0


def test_members_stop_each_at_its_own_event():
    speeds = np.array([0.3, 0.5, 0.9, 0.05, 1.7])
    states = [FREE.state([-1.0], [v]) for v in speeds]
    run = da.ensemble(FREE, METHOD, states, step=H, steps=30, save_every=4, controls=np.zeros(30), events=[STOP])
    assert run.stopped_by.tolist() == ["there", "there", "there", "", "there"] and np.all(run.status == "ok")
    moved = speeds != 0.05
    np.testing.assert_allclose(run.t[moved, -1], 1 / speeds[moved], rtol=1e-15)
    np.testing.assert_allclose(run.events["there"].t, 1 / speeds[moved], rtol=1e-15)
    np.testing.assert_array_equal(run.events["there"].lane, [0, 1, 2, 4])
    assert run.t[3, -1] == 30 * H and len(run.events["there"].of(3)) == 0
    found = run.at([0.1, 1.0])
    assert np.isnan(found.g[4, 1, 0]) and found.g[3, 1, 0] == pytest.approx(-0.95)


# -- runs that end otherwise ------------------------------------------------------------------------------------------
def _until_one(t, x, v, p):
    return 0.5 * v @ v + jnp.sqrt(1.0 - t) * x[0]


def test_a_failed_run_keeps_what_it_found():
    system = da.System(da.Euclidean(1), _until_one)
    events = [da.Event(da.Quantity("time", (), value), name=str(value)) for value in (0.5, 1.5)]
    run = da.simulate(system, METHOD, system.state([0.0], [1.0]), step=0.3, steps=20, events=events)
    assert run.status == "failed" and len(run.events["0.5"]) == 1 and len(run.events["1.5"]) == 0


def test_an_interrupted_run_has_the_events_of_what_was_done():
    def interrupt(done, total):
        raise KeyboardInterrupt

    run = go(*WATCHED, steps=200_000, save_every=1000, progress=interrupt)
    assert run.interrupted and len(run.events["direction 0"]) == run.steps < 200_000
    assert run.status == run.summary().status == "interrupted"
    with pytest.raises(KeyboardInterrupt, match="continued"):
        run.check()


# -- what is refused --------------------------------------------------------------------------------------------------
def test_what_is_refused():
    for events, message in [
        (["there"], "dalembert.Event"),
        ([STOP, STOP], "each once"),
        ([da.Event(lambda t, x, v, p: x)], "one real number"),
        ([da.Event(lambda t, x, v, p: x[0] > 0)], "allowed: real numbers"),
        ([da.Event(da.Quantity("velocity", (1,)))], "not one of 0 to 0"),
        ([da.Event(da.Quantity("velocity"))], "longer index"),
    ]:
        with pytest.raises(da.InvalidInput, match=message):
            go(*events)
    with pytest.raises(da.InvalidInput, match="direction"):
        da.Event(place, direction=2)
    with pytest.raises(da.errors.UnknownName, match="velocity"):
        da.Quantity("velocty")
    with pytest.raises(da.InvalidInput, match="no state at t"):
        go().at(3.5)


# -- configurations, reports and files --------------------------------------------------------------------------------
CONFIG = {
    "system": {"name": "nonholonomic-particle", "potential": "harmonic"},
    "method": {"name": "lagrange-dalembert"},
    "initial": {"configuration": [0.3, 0.5, -0.2], "velocity": [1.1, 0.7, 0.55]},
    "run": {"step": 0.1, "steps": 120},
    "event": [
        {"quantity": "configuration", "index": 0, "direction": "down", "name": "fall"},
        {"quantity": "energy", "value": 99.0},
        {"quantity": "velocity", "index": [1], "value": -0.2, "direction": "up", "stop": True, "name": "back"},
    ],
}  # fmt: skip


@pytest.mark.heavy
def test_a_configuration_with_events_runs_resumes_and_is_saved(tmp_path):
    from dalembert.io.config import to_toml

    config, out = tmp_path / "job.toml", tmp_path / "run.nc"
    config.write_text(to_toml(CONFIG))
    short = CliRunner().invoke(app, ["run", str(config), "--out", str(out), "--set", "run.steps=20"])
    assert short.exit_code == 0, short.output
    done = CliRunner().invoke(app, ["run", str(config), "--out", str(out), "--resume", "--json"])
    whole = json.loads(done.stdout)
    assert [event["name"] for event in whole["events"]] == ["fall", "energy = 99", "back"]
    assert whole["stopped_by"] == "back" and whole["status"] == "ok" and whole["time"] == whole["events"][2]["time"][0]
    again = CliRunner().invoke(app, ["run", str(config)])
    assert "stopped by" in again.stdout and "once: t = 3.3498" in again.stdout
    loaded = da.load(out)
    assert loaded.stopped_by == "back" and loaded.events["fall"].t.tolist() == whole["events"][0]["time"]
    job = parse(CONFIG)
    once = da.simulate(job.system, job.integrator, job.state, step=0.1, steps=120, monitor=True, events=job.events)
    np.testing.assert_array_equal(once.events["back"].t, loaded.events["back"].t)
    np.testing.assert_array_equal(once.g, loaded.g)
    assert run_report(once, job.names)["events"] == whole["events"]
    data = loaded.to_xarray()
    assert data["event"].values.tolist() == ["fall", "back"] and data["event_velocity"].shape == (2, 3)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"quantity": "speed"}, "unknown quantity"),
        ({"quantity": "velocity"}, "needs an index"),
        ({"quantity": "velocity", "index": 3}, "not one of 0 to 2"),
        ({"quantity": "velocity", "index": 0.5}, "whole number"),
        ({"quantity": "velocity", "index": 0, "value": "1"}, "finite number"),
        ({"quantity": "time", "value": float("nan")}, "finite number"),
        ({"quantity": "time", "direction": "left"}, "direction"),
        ({"quantity": "time", "stop": "yes"}, "true or false"),
        ({"quantity": "time", "when": 1}, "key of"),
        ({"value": 1.0}, "needs a quantity"),
    ],
)
def test_tables_that_are_refused(change, message):
    with pytest.raises(da.InvalidInput, match=message):
        parse(CONFIG | {"event": [change]})


def test_a_section_is_as_long_as_it_is_asked_to_be():
    job = parse(CONFIG)
    event = replace(job.events[0], name="")
    found = poincare_section(job.system, job.integrator, job.state, event, step=0.1, crossings=80)
    assert len(found) == 80 and np.all(np.diff(found.t) > 0) and np.abs(found.g[:, 0]).max() < 1e-15
    assert (
        len(poincare_section(job.system, job.integrator, job.state, event, step=0.1, crossings=80, max_steps=500)) < 80
    )
