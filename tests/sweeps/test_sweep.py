"""Sweeps: what is varied, what is refused, what each member comes to, and that a store can be gone on with."""

from __future__ import annotations

import copy
import json
import math
import sys
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import dalembert as da
from dalembert.cli import app
from dalembert.errors import InvalidInput
from dalembert.io.config import parse_job as parse
from dalembert.plotting.studies import select_variable, sweep_words
from dalembert.sweeps.execute import share_out
from dalembert.sweeps.plan import SweepMembers, compute_block, parse_axis, parse_sample, substitute
from dalembert.sweeps.plan import make_plan as plan

SUSLOV = {
    "system": {"name": "suslov", "inertia": [[3, 0, 1], [0, 4, 0.5], [1, 0.5, 5]]},
    "method": {"name": "euler-poincare-suslov", "lagrangian": "moser-veselov"},
    "initial": {"momentum": [3.0, 2.0]},
    "run": {"step": 0.05, "steps": 12},
}
CVT = {
    "system": {"name": "pendulum-cvt", "epsilon": 0.1},
    "method": {"name": "leapfrog"},
    "initial": {"configuration": [1.0, 0.0, 0.0], "velocity": [0.3, 0.0, 2.0]},
    "run": {"step": 0.1, "steps": 12},
}


def with_sweep(base, **section):
    return {**copy.deepcopy(base), "sweep": section}


# -- axes -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "spec",
    [
        {"linspace": [0.0, 1.0, 23]},
        {"logspace": [1e-3, 10.0, 23]},
        {"grid": [0.0, 2.2, 0.1]},
        {"random": [2.0, 3.0], "count": 23, "seed": 7},
        list(range(23)),
    ],
    ids=str,
)
def test_any_part_of_an_axis_is_that_part_of_the_whole(spec):
    one = parse_axis("run.step", spec)
    whole = one.at(0, one.size)["run.step"]
    assert one.size == 23 and len(set(np.asarray(whole).tolist())) == 23
    for lo, hi in ((0, 5), (3, 4), (5, 23), (22, 23)):
        assert np.array_equal(one.at(lo, hi)["run.step"], whole[lo:hi])


@pytest.mark.parametrize("kind", ["random", "latin", "sobol"])
def test_samples_fill_their_box_and_come_in_parts(kind):
    one = parse_sample({kind: 64, "seed": 3, "ranges": {"run.step": [0.1, 0.2], "system": {"a": [-1.0, 1.0]}}})
    whole = one.at(0, 64)
    assert one.names == ("run.step", "system.a") and whole["run.step"].min() >= 0.1 and whole["run.step"].max() < 0.2
    assert np.array_equal(one.at(10, 30)["system.a"], whole["system.a"][10:30])
    strata = np.floor((whole["run.step"] - 0.1) / 0.1 * 64)
    assert (len(set(strata)) == 64) == (kind != "random")  # Latin and Sobol points: one in each of 64 strips


def test_ends_are_met_exactly():
    values = parse_axis("x.y", {"logspace": [0.1, 0.7, 9]}).at(0, 9)["x.y"]
    assert values[0] == 0.1 and values[-1] == 0.7 and np.allclose(np.diff(np.log(values)), math.log(7) / 8)


# -- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "section, says",
    [
        ({"run": {"stepp": [0.1]}}, "Did you mean 'step'"),
        ({"system": {"inertai": [1.0]}}, "Did you mean 'inertia'"),
        ({"method": {"retractoin": ["cayley"]}}, "Did you mean 'retraction'"),
        ({"runn": {"step": [0.1]}}, "Did you mean 'run'"),
        ({"run": {"step": {"linspac": [0, 1, 2]}}}, "Did you mean 'linspace'"),
        ({"run": {"t0": {"linspac": [0, 1, 2]}}}, "Did you mean 'linspace'"),  # the file leaves t0 out
        ({"run": {"step": {"linspace": [0, 1, 2], "values": [1]}}}, "exactly one of values"),
        ({"run": {"step": 0.1}}, "sweep of run.step is 0.1; allowed: a list"),
        (
            {"run": {"step": {"linspace": [0.1, 1.0, 10**6]}}, "initial": {"energy": {"linspace": [1.0, 2.0, 10**6]}}},
            "1e+12 members",
        ),
        ({"run": {"step": [0.1, 0.2]}, "initial": {"energy": [1.0]}, "combine": "zip"}, "one size"),
        ({"run": {"step": [0.1, 0.0]}}, "step is 0"),
        ({"run": {"step": [0.1], "save_every": [1]}}, "cannot vary run.save_every"),
        ({"system": {"inertia": {"0": {"5": [1.0]}}}}, "no place in"),
        ({"system": {"inertia": {"0": {"0": {"linspace": [3.0, -3.0, 9]}}}}}, "positive definite"),
        ({"run": {"step": [0.1]}, "keep": ["last"]}, "keep"),
        ({"sample": {"sobol": 8}}, "ranges"),
        ({"keep": ["final"]}, "varies nothing"),
        ({"run": {"step": [0.1]}, "chunk": 0}, "chunk"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_bad_sweeps_are_refused(section, says):
    with pytest.raises(InvalidInput) as caught:
        da.sweep(with_sweep(SUSLOV, **section))
    assert says in str(caught.value)


def test_bad_calls_are_refused(tmp_path):
    good = with_sweep(SUSLOV, run={"step": [0.1]})
    for options, says in (
        ({"executor": "dusk"}, "Did you mean 'dask'"),
        ({"resume": True}, "needs out"),
        ({"scheduler": "tcp://x:1"}, "give --executor dask"),
        ({"out": tmp_path / "a.nc"}, "ends in .zarr"),
        ({"reductions": {"a": 3}}, "allowed: (start, update)"),
    ):
        with pytest.raises(InvalidInput) as caught:
            da.sweep(good, **options)
        assert says in str(caught.value)


def test_a_missing_package_is_told_before_there_is_a_store(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InvalidInput, match=r"pip install 'dalembert\[dask\]'"):
        da.sweep(with_sweep(SUSLOV, run={"step": [0.1]}), out=tmp_path / "a.zarr", executor="dask")
    assert not (tmp_path / "a.zarr").exists()


def test_dimensions_and_variables_are_shown_in_words():
    data = da.sweep(with_sweep(SUSLOV, run={"step": [0.1]}, initial={"momentum": {"1": [0.2, 0.3]}})).dataset()
    names = ("run_step", "initial_momentum_1", "final_velocity.w1", "final_momentum.0", "status", "energy_error_max")
    found = [sweep_words(data, name) for name in names]
    assert found[:3] == [("step $h$", "s"), ("initial momentum 1", ""), ("final w1", "rad s-1")]
    assert found[3:] == [("final momentum of w1", "kg m2 s-1"), ("status", ""), ("energy error, largest", "J")]
    older = xarray.Dataset(coords={"initial_velocity_1": [0.1]})  # of a store without names
    assert sweep_words(older, "initial_velocity_1") == ("initial velocity 1", "")


def test_a_reduction_that_fails_is_told_with_its_line():
    def update(value, system, state, h):
        return value + state.velocity

    with pytest.raises(InvalidInput) as caught:
        da.sweep(with_sweep(SUSLOV, run={"step": [0.1]}), reductions={"sum": (lambda system, state, h: 0.0, update)})
    line = update.__code__.co_firstlineno + 1
    assert "of the reduction sum fails: AttributeError" in str(caught.value)
    assert f"(test_sweep.py, line {line})" in str(caught.value)


def test_a_member_whose_reduction_is_not_finite_has_failed():
    """1 / (a - 0.02) at the second step: the run itself is good. A minimum may begin at infinity."""
    pole = (lambda system, state, h: 0.0, lambda value, system, state, h: value + 1.0 / (h - 0.02))
    least = (lambda system, state, h: jnp.inf, lambda value, system, state, h: jnp.minimum(value, state.xi[0]))
    config = with_sweep(SUSLOV, run={"step": [0.01, 0.02, 0.03]}, keep=["extremes"])
    result = da.sweep(config, reductions={"pole": pole, "least": least})
    data = result.dataset()
    steps = int(config["run"]["steps"])
    assert data.status.values.tolist() == [0, 5, 0] and result.failed == 1
    assert (
        data.failed_step.values.tolist() == [-2, steps, -2] and "5 a reduction is not finite" in data.status.long_name
    )
    assert np.isinf(data.pole.values[1]) and np.isfinite(data.least).all()


# -- members ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def cvt():
    section = {
        "run": {"step": {"linspace": [0.05, 0.15, 3]}},
        "system": {"epsilon": [0.0, 0.3]},
        "keep": ["final", "extremes", "states"],
        "save_every": 5,
        "chunk": 4,
    }
    config = with_sweep(CVT, **section)
    largest = (lambda system, state, h: state.xi[2], lambda value, system, state, h: jnp.maximum(value, state.xi[2]))
    return config, da.sweep(config, reductions={"fastest": largest}).dataset()


def test_every_member_is_the_run_of_its_own_configuration(cvt):
    config, data = cvt
    assert dict(data.sizes) | {"run_step": 3, "system_epsilon": 2, "save": 4} == dict(data.sizes)
    for i, step in enumerate(data.run_step.values):
        for j, epsilon in enumerate(data.system_epsilon.values):
            job = parse(
                substitute(
                    {k: v for k, v in config.items() if k != "sweep"},
                    {"run.step": float(step), "system.epsilon": float(epsilon)},
                )
            )
            run = da.simulate(job.system, job.integrator, job.state, step=step, steps=12, monitor=True)
            here = data.isel(run_step=i, system_epsilon=j)
            assert np.allclose(here.final_configuration, run.g[-1], rtol=0, atol=1e-14)
            assert np.allclose(here.velocity, np.asarray(run.xi)[[0, 5, 10, 12]], rtol=0, atol=1e-14)
            assert np.isclose(here.energy_error_max, run.final.peaks.energy_error, rtol=1e-10)
            assert np.isclose(here.fastest, np.asarray(run.xi)[:, 2].max(), rtol=0, atol=1e-14)
            assert here.status == 0 and here.failed_step == -2 and np.isclose(here.final_time, 12 * step)


def test_structure_zip_and_steps_from_t_end():
    """Options of methods, steps counted from t_end, entries of lists, all along one dimension."""
    config = with_sweep(
        {**SUSLOV, "run": {"step": 0.05, "t_end": 0.5}},
        method={"retraction": ["cayley", "exponential", "cayley"]},
        run={"step": [0.05, 0.1, 0.125]},
        initial={"momentum": {"1": [2.0, 1.0, 0.5]}},
        combine="zip",
    )
    config["method"]["lagrangian"] = "retraction"
    data = da.sweep(config).dataset()
    assert data.status.dims == ("member",) and list(data.method_retraction.values) == [
        "cayley",
        "exponential",
        "cayley",
    ]
    assert np.allclose(data.final_time, 0.5)
    for k in range(3):
        job = parse(
            {
                **{key: config[key] for key in ("system", "run")},
                "initial": {"momentum": [3.0, [2.0, 1.0, 0.5][k]]},
                "method": {**config["method"], "retraction": str(data.method_retraction.values[k])},
            }
        )
        run = da.simulate(job.system, job.integrator, job.state, step=float(data.run_step[k]), t_end=0.5)
        assert np.allclose(data.final_velocity[k], run.xi[-1], rtol=0, atol=1e-13)


GEARED = """
import dalembert as da

def along(q, ratio):
    return ratio * q

def make(ratio=2.0, stiffness=3.0, arm=0.1):
    made = da.Mechanism("pair")
    made.body("first", mass=1.0, centre=(arm, 0, 0), inertia=(1.0, 1.0, 1.0))
    made.body("second", mass=1.0, centre=(1, 0, 0), inertia=(0.3, 0.3, 0.3))
    made.hinge("input", "ground", "first", at=(0, 0, 0), axis="y")
    made.hinge("output", "ground", "second", axis="y", stiffness=stiffness)
    made.couple("output", "input", along, ratio=ratio)
    return made.system()
"""


def test_mechanisms_of_one_drawing_are_lanes_of_one_program(tmp_path):
    """Numbers of a drawing and starts by names cannot be traced: what they come to goes into one kernel."""
    (tmp_path / "pair.py").write_text(GEARED)
    base = {
        "system": {"python": "pair.py:make"},
        "method": {"name": "runge-kutta"},
        "initial": {"output": 0.4},
        "run": {"step": 0.05, "steps": 9},
    }
    axes = {"system.ratio": [-1.5, 0.5, 3.0], "system.arm": [0.0, 0.1], "initial.output_rate": [0.2, 0.7]}
    members = SweepMembers(plan(with_sweep(base, **axes, **{"run.step": [0.05, 0.03]}), tmp_path, chunk=100))
    assert members.traced == ("run.step",) and members.built == tuple(axes)
    found = compute_block(members, members.plan.block(0))
    assert len(members._families) == 2  # an arm of length 0 is another drawing
    for place in list(np.ndindex(members.plan.shape))[::5]:
        job = parse(members._config(members.plan.member(np.ravel_multi_index(place, members.plan.shape))), tmp_path)
        run = da.simulate(job.system, job.integrator, job.state, step=job.run["step"], steps=9).check()
        np.testing.assert_array_equal(found["final_velocity"][place], run.xi[-1])
    assert np.ptp(found["final_velocity"], axis=(1, 2, 3)).min() > 0.01


def test_a_velocity_varies_by_its_name():
    """As by its number, traced into the kernel, also where the table in [initial] leaves the name out."""
    given = {"system": {"name": "unicycle"}, "method": {"name": "lagrange-dalembert"}, "run": {"step": 0.1, "steps": 3}}
    by_name = with_sweep(given | {"initial": {"velocity": {"v1": 0.5}}}, **{"initial.velocity.w": [0.2, 0.7]})
    by_number = with_sweep(given | {"initial": {"velocity": [0.0, 0.5, 0.0]}}, **{"initial.velocity.0": [0.2, 0.7]})
    found, wanted = (da.sweep(given).dataset() for given in (by_name, by_number))
    assert SweepMembers(plan(by_name, chunk=100)).traced == ("initial.velocity.w",)
    np.testing.assert_array_equal(found.final_velocity, wanted.final_velocity)
    assert found.initial_velocity_w.attrs == wanted.initial_velocity_0.attrs
    base = given | {"system": {"name": "differential-drive"}, "method": {"name": "runge-kutta"}}
    robot = with_sweep(base | {"initial": {"velocity": {"speed": 0.5}}}, **{"initial.velocity.yaw_rate": [0.1, 0.2]})
    assert SweepMembers(plan(robot, chunk=100)).describe("initial.velocity.yaw_rate") == ("initial yaw rate", "rad s-1")
    with pytest.raises(InvalidInput, match=r"velocity.0, or by its name if \[initial\] has velocity = {w = 1.0}"):
        da.sweep(with_sweep(given | {"initial": {"velocity": [0.0, 0.5, 0.0]}}, **{"initial.velocity.w": [0.2, 0.7]}))


TURNTABLE = """
import jax.numpy as jnp
import dalembert as da

def make(spin=0.3):
    def drift(t, g, p):  # the blade does not slip on a table that turns
        return jnp.stack([(p + 0.1 * jnp.sin(t)) * (g[1, 2] * g[1, 0] + g[0, 2] * g[0, 0])])
    names = {"coordinates": ["heading", "x", "y"], "velocities": ["turn", "speed", "slip"]}
    return da.System(da.SE2(), lambda t, g, xi, p: 0.5 * (xi[0] ** 2 + xi[1] ** 2 + (xi[2] + 0.2 * xi[0]) ** 2),
                     lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]), drift=drift, parameters=spin, names=names)

def rod(length=1.0):
    return da.System(da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi @ xi - 9.81 * g[1],
                     holonomic=lambda t, g, p: jnp.stack([jnp.sum(g**2) - p**2]), parameters=length)
"""


@pytest.mark.parametrize(
    "make, initial, varied",
    [
        ("make", {"heading": 0.4, "x": 1.0, "y": 0.5, "turn": 0.3, "speed": 0.6}, {"system.spin": [0.0, 0.2, 0.6]}),
        ("make", {"configuration": [0.4, 1.0, 0.5], "velocity": {"speed": 0.6}}, {"system.spin": [0.1, 0.7]}),
        ("make", {"heading": 0.4, "x": 1.0, "turn": 0.1, "speed": 0.6}, {"run.t0": [0.5, 2.0]}),
        ("rod", {"configuration": [0.6, -0.8], "velocity": [0.8, 0.5]}, {"system.length": [0.8, 1.0, 1.3]}),
    ],
    ids=["names", "velocities by name", "time", "holonomic"],
)
def test_a_start_is_projected_onto_the_constraint_of_each_member(tmp_path, make, initial, varied):
    """One start cannot satisfy constraints that differ; the message names what projects it."""
    (tmp_path / "table.py").write_text(TURNTABLE)
    method = {"name": "lagrange-dalembert"}
    config = {"system": {"python": f"table.py:{make}"}, "method": method, "run": {"step": 0.05, "steps": 4}}
    with pytest.raises(InvalidInput, match="project = true"):
        SweepMembers(plan(with_sweep(config | {"initial": initial}, **varied), tmp_path, chunk=9))
    config["initial"] = initial | {"project": True}
    members = SweepMembers(plan(with_sweep(config, **varied), tmp_path, chunk=9))
    found = compute_block(members, members.plan.block(0))
    assert not found["status"].any()
    for k in range(members.plan.members):
        job = parse(members._config(members.plan.member(k)), tmp_path)
        system, plain = job.system, {key: at for key, at in initial.items() if key not in ("configuration", "velocity")}
        place, moving = (initial.get("configuration"), initial.get("velocity")) if not plain else (None, None)
        start = system.state(place, moving, t=job.run.get("t0", 0.0), project=True, **plain)
        np.testing.assert_array_equal(start.xi, job.state.xi)
        assert np.abs(system.residual(start.t, start.g, start.xi)).max() < 1e-12
        run = da.simulate(system, job.integrator, start, step=0.05, steps=4).check()
        np.testing.assert_allclose(found["final_velocity"][k], run.xi[-1], rtol=0, atol=1e-12)
    assert np.ptp(found["final_velocity"], axis=0).max() > 0.01


@pytest.mark.heavy
def test_an_ensemble_of_mechanisms_is_one_program():
    made = {}
    exec(GEARED, made)
    systems = [made["make"](ratio, stiffness) for ratio, stiffness in ((2.0, 3.0), (-0.5, 1.0), (4.0, 0.2))]
    starts = [system.state(output=0.3, input_rate=0.5) for system in systems]
    together = da.ensemble(systems, da.RungeKutta(), starts, step=0.05, steps=9)
    for k, (system, start) in enumerate(zip(systems, starts, strict=True)):
        alone = da.simulate(system, da.RungeKutta(), start, step=0.05, steps=9)
        np.testing.assert_array_equal(together.xi[k], alone.xi)


def test_a_failing_member_stops_nobody():
    """Moser-Veselov has no solution beyond its threshold; a velocity off the constraint is a failure too."""
    config = with_sweep(SUSLOV, run={"step": [0.05, 5.0]}, initial={"energy": [4.0]})
    data = da.sweep(config).dataset()
    assert data.status.values.ravel().tolist() == [0, 1] and data.failed_step.values.ravel().tolist() == [-2, -1]
    off = {**SUSLOV, "initial": {"velocity": [1.0, 0.5, 0.0]}}
    data = da.sweep(
        with_sweep(off, sample={"sobol": 8, "ranges": {"initial.velocity.0": [0.5, 1.5]}}, keep=["extremes"])
    ).dataset()
    assert not data.status.any() and "final_velocity" not in data and (data.energy_error_max < 1e-13).all()


# -- stores and commands ----------------------------------------------------------------------------------------------
def test_a_store_of_an_earlier_version_is_gone_on_with(tmp_path, monkeypatch):
    """It has no coordinates by their names: they stay out."""
    given = {"system": {"name": "car"}, "method": {"name": "lagrange-dalembert"}, "run": {"step": 0.1, "steps": 3}}
    given |= {"initial": {"velocity": [0.0, 1.0, 0.0, 0.1]}}
    config, path = with_sweep(given, system={"mass": {"linspace": [1.0, 2.0, 6]}}, chunk=2), tmp_path / "a.zarr"

    def stop(done, total, rate):
        raise KeyboardInterrupt

    with monkeypatch.context() as before:
        before.setattr("dalembert.sweeps.plan.names_coordinates", lambda system: False)
        assert da.sweep(config, out=path, progress=stop).interrupted
    whole = da.sweep(config, out=path, resume=True)
    expected = da.sweep(config).dataset()
    data = whole.dataset().load()
    assert whole.computed == 4 and "final_coordinate" in expected and "final_coordinate" not in data
    np.testing.assert_array_equal(data.final_velocity, expected.final_velocity)


def test_a_store_is_gone_on_with_and_guards_itself(tmp_path, capsys):
    section = {
        "run": {"step": {"linspace": [0.01, 0.3, 7]}},
        "initial": {"energy": {"logspace": [1.0, 9.0, 4]}},
        "chunk": 4,
    }
    config, path = with_sweep(SUSLOV, **section), tmp_path / "a.zarr"
    whole = da.sweep(config).dataset()
    seen = []

    def stop(done, total, rate):
        seen.append(xarray.open_zarr(path, consolidated=False).status.values)
        if done >= 12:
            raise KeyboardInterrupt

    first = da.sweep(config, out=path, progress=stop)
    assert first.interrupted and first.done == 12 and (seen[-1] == -1).any()
    with pytest.raises(InvalidInput, match="exists already"):
        da.sweep(config, out=path)
    with pytest.raises(InvalidInput, match=r"another sweep \(its sweep\.keep\.0 is None, here 'final'\)"):
        da.sweep(with_sweep(SUSLOV, **{**section, "keep": ["final"]}), out=path, resume=True)
    chunk = path / "final_velocity" / "c" / "1" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-7] + b"damaged")
    second = da.sweep(config, out=path, resume=True)
    assert not second.interrupted and second.computed == 28 - 12 + 4  # the damaged block is computed again
    data = second.dataset().load()
    assert data.drop_vars("block_checksum").equals(whole) and second.failed == int((whole.status != 0).sum())
    third = da.sweep(config, out=path, resume=True)
    assert third.computed == 0 and third.done == 28 and json.loads(third.dataset().attrs["plan"])["blocks"] == [1, 4]
    with pytest.raises(SystemExit):
        app(["sweep-plot", str(path), "--out", str(tmp_path / "a.png"), "--show", "status"])
    assert (tmp_path / "a.png").stat().st_size > 5000 and f"picture: {tmp_path / 'a.png'}" in capsys.readouterr().out
    with pytest.raises(InvalidInput, match="show one: final_velocity"):
        app(
            ["sweep-plot", str(path), "--out", str(tmp_path / "b.png"), "--show", "final_velocity"],
            standalone_mode=False,
        )


def test_texts_in_a_store_have_a_type_that_zarr_specifies(tmp_path):
    config = with_sweep(CVT, method={"name": ["leapfrog", "lagrange-dalembert"]}, keep="final")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        da.sweep(config, out=tmp_path / "a.zarr")
    data = xarray.open_zarr(tmp_path / "a.zarr", consolidated=False)
    assert data.method_name.values.tolist() == ["leapfrog", "lagrange-dalembert"]
    number, name = (f"final_velocity.{each}" for each in (1, data.component.values[1]))
    assert np.array_equal(select_variable(data, name)[1], select_variable(data, number)[1])


def test_the_command(tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_text(
        '[system]\nname = "pendulum-cvt"\n[method]\nname = "leapfrog"\n[initial]\nconfiguration = [1.0, 0.0, 0.0]\n'
        "velocity = [0.3, 0.0, 2.0]\n[run]\nstep = 0.1\nsteps = 9\n"
        '[sweep]\nsystem.epsilon = {linspace = [0.0, 0.3, 4]}\nkeep = "extremes"\nreductions = {work = "r.py:work"}\n'
    )
    (tmp_path / "r.py").write_text("def work():\n    return (lambda s, x, h: 0.0), (lambda v, s, x, h: v + h)\n")
    app(
        ["sweep", str(file), "--json", "--out", str(tmp_path / "a.zarr"), "--set", "run.steps=5"], standalone_mode=False
    )
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["done"] == 4 and summary["failed"] == 0 and summary["shape"] == {"system_epsilon": 4}
    assert "4/4 members" in printed.err and "s left" in printed.err
    app(["sweep-plot", str(tmp_path / "a.zarr"), "--out", str(tmp_path / "a.png")], standalone_mode=False)
    told = capsys.readouterr().err  # a picture of one colour
    assert "every run ended well; --show draws one of" in told and "work" in told and "energy_error_max" in told
    assert np.allclose(xarray.open_zarr(tmp_path / "a.zarr", consolidated=False).work, 0.5)


def test_blocks_go_to_a_function_and_a_hundred_million_members_are_planned_at_once():
    found = []
    da.sweep(
        with_sweep(CVT, system={"epsilon": {"linspace": [0.0, 0.3, 6]}}, chunk=4, keep="extremes"),
        out=lambda block, arrays: found.append((block.ranges, arrays["status"].shape)),
    )
    assert found == [(((0, 4),), (4,)), (((4, 6),), (2,))]
    large = plan(
        with_sweep(
            SUSLOV,
            run={"step": {"linspace": [0.01, 0.1, 10**4]}},
            initial={"energy": {"random": [1.0, 2.0], "count": 10**4}},
        ),
        chunk=1 << 14,
    )
    assert (
        large.members == 10**8 and large.blocks == 10**4 and len(large.values(large.block(9999))["run.step"]) == 10**4
    )


def test_a_dimension_of_texts_is_cut_by_its_text():
    data = da.sweep(
        with_sweep(SUSLOV, run={"step": [0.1, 0.2]}, method={"lagrangian": ["moser-veselov", "retraction"]})
    ).dataset()
    assert select_variable(data, "status").y == "method_lagrangian"
    assert select_variable(data, "status", "run_step", at={"method_lagrangian": "retraction"}).title.endswith(
        "status at lagrangian = retraction"
    )
    middle = select_variable(data, "status", "method_lagrangian", at={"run_step": "0.19"})
    assert middle.title == r"Suslov's body: status at step $h$ = 0.2 $\mathrm{s}$"
    for at, says in (
        ({"method_lagrangian": "gaus"}, "allowed: moser-veselov, retraction"),
        ({"run_step": "a"}, "from 0.1 to 0.2"),
    ):
        with pytest.raises(InvalidInput, match=says):
            select_variable(data, "status", at=at)


def test_a_cluster_gets_enough_blocks_for_all_its_workers():
    """1,200 members were one block, and all workers but one had nothing to do."""
    assert share_out(1200, 16_384) == 75 and share_out(10, 16_384) == 64  # small blocks cost more than they share
    assert share_out(10**6, 16_384) == 16_384 and share_out(10**6, 512) == 512  # long runs are cut finer anyway
