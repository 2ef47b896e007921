"""Names that a user gives to coordinates, velocities, inputs and constraints go wherever numbers go."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import dalembert as da
from dalembert.cli import app
from dalembert.models import MODELS
from dalembert.plotting.studies import plot_sweep, select_variable
from dalembert.sweeps.plan import SweepMembers, make_plan

NAMES = {
    "system": "Skate",
    "coordinates": ["heading [rad]", "x [m]", "y [m]"],
    "velocities": ["turn [rad s-1]", "speed [m s-1]", "slip [m s-1]"],
    "constraints": ["blade [N]"],
}


def kinetic(t, g, xi, p):
    return 0.5 * (p["J"] * xi[0] ** 2 + p["m"] * (xi[1] ** 2 + (xi[2] + 0.1 * xi[0]) ** 2))


def blade(t, g, p):
    return jnp.array([[0.0, 0.0, 1.0]])


def push(t, g, xi, u, p):
    return jnp.stack([0.0 * u[0], u[0], 0.0 * u[0]])


def make(mass=1.0, names=NAMES, inputs=("push [N]",)):
    parameters = {"J": 0.3, "m": mass}
    return da.System(da.SE2(), kinetic, blade, parameters=parameters, force=push, inputs=list(inputs), names=names)


@pytest.fixture(scope="module")
def run():
    skate = make()
    held = np.full((20, 1), 0.1)
    start = skate.state(xi=[0.5, 1.0, 0.0])
    return da.simulate(skate, da.LagrangeDAlembert(), start, step=0.05, steps=20, controls=held)


def test_a_run_is_read_by_these_names(run):
    theta, x, y = run.coordinates("pose").T
    for name, values in zip(("heading", "x", "y"), (theta, x, y), strict=True):
        np.testing.assert_allclose(run[name], values, rtol=0, atol=1e-14)
    assert np.array_equal(run["speed"], run.xi[:, 1]) and np.array_equal(run["push"], np.full(21, 0.1))
    reaction = np.asarray(run.reaction())[:, 2]
    np.testing.assert_allclose(run["blade"], reaction, rtol=1e-12)
    with pytest.raises(da.InvalidInput, match="blade, heading, push, slip, speed, turn, x, y"):
        run["velocity"]


def test_a_table_has_names_and_units(run):
    data = run.to_xarray()
    assert data["component"].values.tolist() == ["turn", "speed", "slip"]
    assert data["velocity_unit"].values.tolist() == ["rad s-1", "m s-1", "m s-1"]
    assert data["momentum_unit"].values.tolist() == ["kg m2 s-1", "kg m s-1", "kg m s-1"]
    assert data["coordinate"].sel(coordinate_name="x").values.tolist() == run["x"].tolist()
    assert data["coordinate_unit"].values.tolist() == ["rad", "m", "m"]
    assert (data["constraint"].item(), data["constraint_unit"].item()) == ("blade", "N")
    assert (data["input"].item(), data["input_unit"].item()) == ("push", "N")
    assert data.attrs["system"] == "Skate"


def test_a_file_keeps_the_names_and_knows_its_system(run, tmp_path):
    run.save(tmp_path / "skate.nc")
    for system in (make, make()):
        back = da.load(tmp_path / "skate.nc", system=system)
        assert np.array_equal(back["x"], run["x"]) and back.system.names == run.system.names
    with pytest.raises(da.InvalidInput, match="not the one that made the run"):
        da.load(tmp_path / "skate.nc", system=make(1.01))
    with pytest.raises(da.InvalidInput, match="a function without arguments"):
        da.load(tmp_path / "skate.nc", system=lambda: 3)
    assert da.load(tmp_path / "skate.nc", system=make(1.01), unchecked=True).t.tolist() == run.t.tolist()


def test_the_force_is_part_of_what_a_file_knows(run, tmp_path):
    run.save(tmp_path / "skate.nc")
    skate = make()
    other = dataclasses.replace(skate, force=lambda t, g, xi, u, p: 2 * push(t, g, xi, u, p))
    with pytest.raises(da.InvalidInput, match="acceleration"):
        da.load(tmp_path / "skate.nc", system=other)


@pytest.mark.heavy
def test_an_ensemble_of_ones_own_system_is_checked_too(tmp_path):
    skate = make()
    starts = [skate.state(xi=[w, 1.0, 0.0]) for w in (0.1, 0.2)]
    da.ensemble(skate, da.LagrangeDAlembert(), starts, step=0.1, steps=3).save(tmp_path / "two.nc")
    assert da.load(tmp_path / "two.nc", system=make).t.shape == (2, 4)
    with pytest.raises(da.InvalidInput, match="not the one"):
        da.load(tmp_path / "two.nc", system=make(2.0))


def test_messages_name_the_constraint_and_the_component():
    with pytest.raises(da.InvalidInput, match=r"off the constraint \(blade\)"):
        make().state(xi=[0.5, 1.0, 0.2])
    flat = da.System(
        da.Euclidean(3), lambda t, q, v, p: 0.5 * (v[0] ** 2 + v[1] ** 2), names={"velocities": ["a", "b", "c"]}
    )
    with pytest.raises(da.InvalidInput, match="in the directions of c"):
        flat.state(xi=[1.0, 0.0, 0.0])
    rows = da.System(
        da.Euclidean(4), lambda t, q, v, p: 0.5 * v @ v, lambda t, q, p: jnp.eye(4)[jnp.array([0, 1, 0])],
        names={"constraints": ["first", "second", "third"]},
    )  # fmt: skip
    with pytest.raises(da.InvalidInput, match=r"\(first, third\) are linearly dependent"):
        rows.state()


@pytest.mark.parametrize(
    "names, words",
    [
        ({"velocities": ["a"]}, "names has 1 velocities"),
        ({"constraints": ["a", "b"]}, "names has 2 constraints"),
        ({"coordinates": ["a"]}, "names has 1 coordinates"),
        ({"speeds": ["a"]}, "kind of names"),
        ({"velocities": ["a", "a", "b"]}, "two things are called a"),
        ({"velocities": ["a", "push", "b"]}, "two things are called push"),
        ({"velocities": "abc"}, "texts such as"),
        (3, "a dictionary"),
    ],
)
def test_names_that_cannot_be_are_refused(names, words):
    with pytest.raises(da.InvalidInput, match=words):
        make(names=names)


def test_names_change_nothing_else(run):
    plain = make(names=None)
    other = da.simulate(plain, da.LagrangeDAlembert(), run.at(0.0), step=0.05, steps=20, controls=np.full((20, 1), 0.1))
    assert np.array_equal(other.xi, run.xi) and plain.rate_names == ("w", "v1", "v2") and plain.coordinate_names == ()


def test_velocities_on_rn_are_called_after_the_coordinates():
    kinetic = lambda t, q, v, p: 0.5 * v @ v
    plane = da.System(da.Euclidean(2), kinetic, names={"coordinates": ["x [m]", "lean"]})
    assert plane.rate_names == ("x rate", "lean rate") and plane.units == {
        "x": "m", "lean": "", "x rate": "m s-1", "lean rate": "",
    }  # fmt: skip
    assert plane.state(x=2.0, lean_rate=0.5).xi.tolist() == [0.0, 0.5]
    twice = da.System(da.Euclidean(2), kinetic, names={"coordinates": ["x", "x rate"]})
    assert twice.rate_names == ("v1", "v2"), "a name that is taken"


def test_a_product_names_the_coordinates_of_its_factors_in_order():
    names = {"coordinates": ["angle", "heading", "x", "y", "height"]}
    group = da.Product((da.SO2(), da.SE2(), da.Euclidean(1)))
    own = da.System(group, lambda t, g, xi, p: 0.5 * xi @ xi, names=names)
    g = group.configuration([{"angle": 0.1}, {"angle": 0.2, "position": [3.0, 4.0]}, [5.0]])
    found = own.named_coordinates(g)
    assert list(found) == names["coordinates"]
    np.testing.assert_allclose(list(found.values()), [0.1, 0.2, 3.0, 4.0, 5.0])


def test_a_state_by_names():
    skate = make()
    state = skate.state(x=2.0, heading=2.5, speed=0.5)
    theta, x, y = skate.named_coordinates(state.g).values()
    np.testing.assert_allclose([theta, x, y], [2.5, 2.0, 0.0], atol=1e-14)
    assert state.xi.tolist() == [0.0, 0.5, 0.0]
    plane = da.System(da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v)
    assert plane.state(q2=3.0).g.tolist() == [0.0, 3.0]
    for wrong, says in (({"sped": 1.0}, "Did you mean 'speed'"), ({"x": 1.0, "xi": [0, 0, 0]}, "not both"),
                        ({"x": "1 m"}, "x is"), ({"slip": 1.0}, "blade")):  # fmt: skip
        with pytest.raises(da.InvalidInput, match=says):
            skate.state(**wrong)


def test_a_state_by_names_may_be_traced_and_names_may_have_blanks():
    skate = make(names=NAMES | {"velocities": ["turn rate", "speed", "slip"]})
    slope = jax.grad(lambda angle: skate.state(heading=angle, x=1.0, speed=0.5).g[1, 0])(0.3)
    assert abs(slope - np.cos(0.3)) < 1e-14
    states = jax.vmap(lambda angle: skate.state(heading=angle, y=2.0, turn_rate=angle))(jnp.arange(3.0))
    np.testing.assert_allclose(states.g[2], skate.state(heading=2.0, y=2.0).g, rtol=0, atol=1e-14)
    assert states.xi[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert np.array_equal(skate.state(**{"turn rate": 2.0}).xi, skate.state(turn_rate=2.0).xi)


@pytest.mark.parametrize("varied", [{"system.mass": [1.0, 2.0]}, {"initial.x": [0.0, 1.0]}])
def test_a_start_by_names_leaves_the_members_of_a_sweep_to_their_kernel(varied):
    config = {"system": {"name": "car"}, "method": {"name": "lagrange-dalembert"}, "run": {"step": 0.1, "steps": 2}}
    plan = make_plan(config | {"initial": {"x": 1.0, "v1": 1.0}, "sweep": varied}, chunk=10)
    assert SweepMembers(plan).traced == tuple(varied)  # each was built for itself, by JAX op by op: 0.3 s a member


@pytest.mark.parametrize("close", [lambda s: da.with_friction(s, viscous=0.1), lambda s: da.with_feedback(s, at_rest)])
def test_a_mechanism_with_feedback_or_friction_starts_by_names_from_a_file(close, tmp_path):
    (tmp_path / "own.py").write_text("")
    drawn = close(da.models.differential_drive())
    config = {"system": {"python": "own.py:make"}, "method": {"name": "runge-kutta"}, "run": {"step": 0.1, "steps": 2}}
    start = {"speed": 0.5, "castor swivel": 0.2}
    job = da.io.parse_job(config | {"initial": start}, tmp_path, load=lambda path, name: lambda: drawn)
    assert np.array_equal(job.state.xi, drawn.state(speed=0.5, castor_swivel=0.2).xi)


def at_rest(t, g, xi):
    return jnp.zeros(2)


def test_columns_and_starts_of_files_have_these_names(run, tmp_path):
    run.save(tmp_path / "skate.nc")
    result = CliRunner().invoke(app, ["show", str(tmp_path / "skate.nc"), "--csv", "x,speed,push"])
    lines = result.stdout.splitlines()
    assert lines[0] == "time,x,speed,push" and [float(each) for each in lines[-1].split(",")] == [
        run.t[-1], run["x"][-1], run["speed"][-1], run["push"][-1]
    ]  # fmt: skip
    system = {"python": "skate.py:make"}
    config = {"system": system, "method": {"name": "runge-kutta"}, "run": {"step": 0.1, "steps": 2}}
    parse = lambda **start: da.io.parse_job(config | {"initial": start}, load=lambda path, name: make)
    (tmp_path / "skate.py").write_text("")
    job = parse(heading=0.3, speed=0.5)
    start = make().state(heading=0.3, speed=0.5)
    assert np.array_equal(job.state.xi, start.xi) and np.allclose(job.state.g, start.g, rtol=0, atol=1e-15)
    with pytest.raises(da.InvalidInput, match="give one kind"):
        parse(heading=0.3, velocity=[0.0, 0.5, 0.0])
    with pytest.raises(da.InvalidInput, match="Did you mean 'speed'"):
        parse(heading=0.3, sped=0.5)


def test_a_feedback_keeps_the_names():
    driven = da.with_feedback(make(), lambda t, g, xi: jnp.stack([-xi[1]]))
    run = da.simulate(driven, da.RungeKutta(), driven.state(xi=[0.0, 1.0, 0.0]), step=0.1, steps=2)
    assert run.to_xarray()["component"].values.tolist() == ["turn", "speed", "slip"] and run["speed"][-1] < 1.0
    np.testing.assert_array_equal(run["push"], -run["speed"])  # what the policy gave
    braked = da.simulate(
        da.with_friction(driven, viscous=1.0), da.RungeKutta(), driven.state(speed=1.0), step=0.1, steps=2
    )
    np.testing.assert_array_equal(braked["push"], -braked["speed"])


OWN_SKATE = """
from typing import Annotated
import jax.numpy as jnp
import dalembert as da

def make(mass: Annotated[float, "kg"] = 1.0, drag=0.0):
    names = {
        "coordinates": ["heading [rad]", "x [m]", "y [m]"],
        "velocities": ["turn [rad s-1]", "speed [m s-1]", "slip [m s-1]"],
    }
    kinetic = lambda t, g, xi, p: 0.5 * (0.3 * xi[0] ** 2 + p * (xi[1] ** 2 + xi[2] ** 2))
    return da.System(da.SE2(), kinetic, lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]), parameters=mass, names=names)
"""


def test_a_file_of_a_run_gives_its_parameters_to_the_function_that_made_the_system(tmp_path, monkeypatch):
    own = OWN_SKATE.replace('["turn [rad s-1]"', '["turn rate [rad s-1]"')
    own = own.replace('"slip [m s-1]"],', '"slip [m s-1]"],\n        "constraints": ["blade force [N]"],')
    (tmp_path / "skate.py").write_text(own)
    start = "[initial]\nspeed = 0.5\nturn_rate = 0.3\n[run]\nstep = 0.1\nsteps = 2\n"
    text = f'[system]\npython = "skate.py:make"\nmass = 3.0\n[method]\nname = "runge-kutta"\n{start}'
    (tmp_path / "skate.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    do = lambda *words: CliRunner().invoke(app, [*words])
    assert do("run", "skate.toml", "--out", "skate.nc").exit_code == 0
    make_skate = da.io.config.load_function(tmp_path / "skate.py", "make")
    run = da.load("skate.nc", system=make_skate)
    assert run.system.parameters == 3.0 and da.load("skate.nc", system=lambda: make_skate(3.0)).t.size == 3
    with pytest.raises(da.InvalidInput, match="differ"):
        da.load("skate.nc", system=lambda: make_skate(2.0))
    refused = do("show", "skate.nc", "--csv", "blade force")
    assert "--system skate.py:make on the command line" in str(refused.exception)
    wanted = "blade_force,turn_rate,speed"
    lines = do("show", "skate.nc", "--system", "skate.py:make", "--csv", wanted).stdout.splitlines()
    assert lines[0] == "time,blade force,turn rate,speed"
    assert [float(each) for each in lines[-1].split(",")] == [
        run.t[-1], run["blade force"][-1], run["turn_rate"][-1], run["speed"][-1]
    ]  # fmt: skip
    assert do("show", "skate.nc", "--system", "skate.py:make", "--plot", "skate.png").exit_code == 0
    told = do("show", "skate.nc").stdout
    assert all(f"{name} " in told for name in ("heading", "turn rate", "blade force"))


def test_a_sweep_has_names_and_units(tmp_path):
    (tmp_path / "skate.py").write_text(OWN_SKATE)
    varied = {"system.mass": [1.0, 2.0], "initial.velocity.1": [0.5, 1.0], "run.step": [0.1, 0.2], "system.drag": [0]}
    config = {
        "system": {"python": "skate.py:make"}, "method": {"name": "runge-kutta"},
        "initial": {"velocity": [0.1, 1.0, 0.0]}, "run": {"step": 0.1, "steps": 2}, "sweep": varied,
    }  # fmt: skip
    for out in (None, tmp_path / "skate.zarr"):
        data = da.sweep(config, folder=tmp_path, out=out).dataset()
        names = [name.replace(".", "_") for name in varied]
        units = {name: (data[name].attrs["long_name"], data[name].attrs.get("units")) for name in names}
        assert units["system_mass"] == ("mass", "kg") and units["run_step"] == ("step", "s")
        assert units["initial_velocity_1"] == ("initial speed", "m s-1") and units["system_drag"] == ("drag", None)
        assert data["component"].values.tolist() == ["turn", "speed", "slip"]
        assert data["velocity_unit"].values.tolist() == ["rad s-1", "m s-1", "m s-1"]
        assert data["coordinate_unit"].values.tolist() == ["rad", "m", "m"]
        assert data["energy_error_max"].attrs["units"] == "J"
    last = data.sel(coordinate_name="x")["final_coordinate"].transpose(*data["status"].dims)
    assert last.values.tolist() == data["final_configuration"].values[..., 0, 2].tolist()
    with pytest.raises(da.InvalidInput, match=r"unknown component of final_coordinate 'speed'.* heading, x, y"):
        select_variable(data, "final_coordinate.speed", "system_mass", "initial_velocity_1")
    shown = {"velocity.speed": "speed", "coordinate.x": "x", "momentum.speed": "momentum of speed", "time": "time"}
    for show, words in shown.items():
        axes = plot_sweep(select_variable(data, f"final_{show}", "system_mass", "initial_velocity_1")).axes
        assert [axes[0].get_xlabel(), axes[0].get_ylabel()] == [
            r"mass, $\mathrm{kg}$", r"initial speed, $\mathrm{m/s}$"
        ]  # fmt: skip
        assert axes[1].get_ylabel().startswith(f"final {words}, $")


def test_a_refused_member_of_a_sweep_is_named_with_its_unit():
    config = {
        "system": {"name": "unicycle"}, "method": {"name": "runge-kutta"}, "initial": dict(MODELS["unicycle"].initial),
        "run": {"step": 0.1, "steps": 2}, "sweep": {"system.mass": [1.0, -2.0]},
    }  # fmt: skip
    with pytest.raises(da.InvalidInput, match=r"the sweep comes to system.mass = -2\.0 kg: "):
        da.sweep(config)


@pytest.mark.parametrize("name", ["chaplygin-sleigh", "nonholonomic-particle", "car"])
def test_a_system_at_rest(name):
    system = MODELS[name].make({})
    assert not np.any(system.state().xi) and not np.any(system.state().momentum)


def test_the_least_velocity_where_the_constraint_drifts():
    belt = da.System(
        da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v, lambda t, q, p: jnp.array([[1.0, 0.0]]),
        drift=lambda t, q, p: jnp.array([0.7]),
    )  # fmt: skip
    np.testing.assert_allclose(belt.state().xi, [0.7, 0.0], atol=1e-15)
    with pytest.raises(da.InvalidInput, match="not both"):
        belt.state(xi=[0.7, 0.0], momentum=[0.7, 0.0])


def test_an_invariant_system_has_names_too(tmp_path):
    names = {
        "system": "Top",
        "velocities": ["roll rate", "pitch rate", "yaw rate [deg s-1]"],
        "constraints": ["wheel [N m]"],
    }
    top = da.InvariantSystem(da.SO3(), [1.0, 2.0, 3.0], annihilator=[[0.0, 0.0, 1.0]], names=names)
    run = da.simulate(top, da.RungeKutta(), top.state(xi=[1.0, 0.5, 0.0]), step=0.1, steps=3)
    run.save(tmp_path / "top.nc")
    again = da.load(tmp_path / "top.nc").system
    assert again.title == "Top" and again.units == top.units and top.units["yaw rate"] == "deg s-1"
    assert np.array_equal(run["pitch rate"], run.xi[:, 1]) and run["wheel"].shape == (4,)
    with pytest.raises(da.InvalidInput, match="names has 1 velocities"):
        da.InvariantSystem(da.SO3(), [1.0, 2.0, 3.0], names={"velocities": ["spin"]})


def test_a_system_prints_in_one_line():
    """No addresses of functions: the name, the group, inputs and parameters."""
    parameters = {"mass": 2.0, "arm": {"length": 1.0}}
    own = da.System(da.SE2(), lambda t, g, xi, p: 0.5 * xi @ xi, parameters=parameters, inputs=["drive"],
                    force=lambda t, g, xi, u, p: jnp.array([0.0, u[0], 0.0]))  # fmt: skip
    assert repr(own) == "<System on SE(2); inputs drive; parameters arm.length, mass>"
    assert "0x" not in repr(da.models.car())


@pytest.mark.parametrize("inputs", [["push"], 0, [da.Input("push", "N")]])
def test_a_force_that_reads_more_controls_than_there_are_inputs_is_refused(inputs):
    """JAX reads the last control where u[1] is beyond the end: the push was the torque too, in silence."""

    def make(inputs):
        return da.System(
            da.SE2(), lambda t, g, xi, p: 0.5 * xi @ xi, inputs=inputs,
            force=lambda t, g, xi, u, p: jnp.stack([u[1], u[0], 0.0]),
        )  # fmt: skip

    with pytest.raises(da.InvalidInput, match=r"inputs has . \((push|none)\), but force.* reads 2 controls"):
        make(inputs)
    with pytest.raises(da.InvalidInput, match=r"inputs is 1000000000000; allowed: their number \(at most 10000\)"):
        make(10**12)  # it made names until there was no memory left
    assert len(make(["push", "turn"]).inputs) == 2 and len(make(["push", "turn", "spare"]).inputs) == 3


def test_a_force_whose_controls_are_known_is_not_traced_again(monkeypatch):
    """A gradient takes a system apart and together in every call: a car's took 0.8 s, to count its inputs anew."""
    car, traced = da.models.ackermann_car(), []
    again = type(car.force).__call__
    monkeypatch.setattr(type(car.force), "__call__", lambda *given: traced.append(1) or again(*given))
    jax.tree.map(lambda leaf: 1.0 * leaf, car)
    assert not traced

    def make(gain):
        return da.System(
            da.SE2(), lambda t, g, xi, p: 0.5 * xi @ xi, inputs=["turn", "push"],
            force=lambda t, g, xi, u, p: gain * jnp.stack([u[0], u[1], 0.0]),
        )  # fmt: skip

    jax.jit(make).trace(np.ones(3))
    shapes = jax.eval_shape
    monkeypatch.setattr(jax, "eval_shape", lambda *given: traced.append(1) or shapes(*given))
    jax.jit(lambda gain: make(2.0 * gain)).trace(np.ones(3))
    assert not traced
