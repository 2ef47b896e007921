"""What the models, friction and steering accept and refuse."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dalembert as da
from dalembert.integrators import METHODS
from dalembert.models import MODELS

models = da.models
NAN = float("nan")


def wave(x):
    return x[1] - jnp.sin(x[0])


REFUSED = {
    "negative mass": ("mass is -1.0; allowed: one positive number", lambda: models.car(mass=-1.0)),
    "NaN slope": ("slope is nan; allowed: one finite number", lambda: models.rolling_ball(slope=NAN)),
    "no wheelbase": ("length is 0.0; allowed: one positive", lambda: models.snakeboard(length=0.0)),
    "negative rider": ("rider is -0.1; allowed: one number, not negative", lambda: models.roller_racer(rider=-0.1)),
    "no arm": ("arm is 0; allowed: a distance of either sign", lambda: models.roller_racer(arm=0.0)),
    "two centres": ("centre is .*; allowed: one finite number", lambda: models.unicycle(centre=[0.1, 0.2])),
    "a flat celt": (
        r"axes is \[0.2, 0.03, 0.0\]; allowed: 3 positive numbers",
        lambda: models.rattleback(axes=[0.2, 0.03, 0.0]),
    ),
    "a celt of infinite size": (r"axes must be finite", lambda: models.rattleback(axes=[0.2, float("inf"), 0.1])),
    "two axes": ("axes is .*; allowed: 3 positive", lambda: models.rattleback(axes=[0.2, 0.03])),
    "celt upside down": ("depth is -0.1; allowed", lambda: models.rattleback(depth=-0.1)),
    "inertia of the wrong shape": (r"inertia has shape \(2,\)", lambda: models.chaplygin_ball(inertia=[0.3, 0.4])),
    "indefinite inertia": ("positive definite", lambda: models.chaplygin_ball(inertia=[0.3, 0.4, -0.1])),
    "table of infinite speed": ("rotation is inf", lambda: models.ball_on_table(rotation=float("inf"))),
    "negative friction": ("viscous is -1.0; allowed", lambda: da.with_friction(models.car(), viscous=-1.0)),
    "no width": ("width is 0.0; allowed: one positive", lambda: da.with_friction(models.car(), dry=1.0, width=0.0)),
    "friction along nothing": (
        r"along has shape \(3,\); allowed: \(4,\)",
        lambda: da.with_friction(models.car(), along=[1, 0, 0]),
    ),
    "a force that is none": ("allowed: a function of", lambda: da.mechanics.with_force(models.car(), 3.0)),
    "standing still": ("speed is 0.0; allowed", lambda: models.car_on_path(models.car(), wave, speed=0.0)),
    "a gait of NaN": ("lag is nan", lambda: models.snakeboard_gait(models.snakeboard(), lag=NAN)),
}


PURE_NUMBERS = ("nonholonomic-particle", "contact-oscillator", "chaotic-quartic", "pendulum-cvt")
"""Models of the literature whose equations (z' = y x') have no units."""


@pytest.mark.parametrize("name", MODELS)
def test_things_have_names_that_people_read_and_units(name):
    system = MODELS[name].make(MODELS[name].example)
    names = [*system.coordinate_names, *system.rate_names, *system.load_names, *(u.name for u in system.inputs or ())]
    assert len(set(names)) == len(names) and system.title != type(system).__name__
    assert not [each for each in names if re.search(r"_\d|^q\d", each)], "a name that a program made"
    assert len(system.load_names) in (0, system.constraints)
    assert len(system.named_coordinates(system.group.identity())) == len(system.coordinate_names)
    assert set(system.units) == {*names, *(system.units if system.start_names else ())}
    if name not in PURE_NUMBERS:
        assert all(system.units.values()) and not [axis for axis in system.axes() if "[q]" in axis.velocity]


@pytest.mark.parametrize("key", REFUSED)
def test_refused(key):
    match, make = REFUSED[key]
    with pytest.raises(da.InvalidInput, match=match):
        make()


def test_controls_of_the_wrong_size_are_refused():
    car = models.car()
    with pytest.raises(da.InvalidInput, match=r"shape \(2, 3\); allowed: \(2, 2\).*: drive force, steering torque"):
        da.simulate(
            car, da.RungeKutta(), car.state(xi=[0.0, 1.0, 0.0, 0.1]), step=0.1, steps=2, controls=np.zeros((2, 3))
        )


def test_every_registered_model_is_made_from_its_example_and_has_a_method():
    for model in models.MODELS.values():
        model.make(model.example)
        assert model.method["name"] in METHODS, model.name


def test_models_are_batched_by_vmap():
    """Parameters are leaves: one program for many cars, balls and celts."""
    cars = jax.vmap(lambda mass: models.car(mass=mass))(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(cars.parameters["mass"], [1.0, 2.0])
    celts = jax.vmap(lambda depth: models.rattleback(depth=depth))(jnp.array([0.0, 0.01]))
    assert celts.parameters["shape"]["centre"].shape == (2, 3)
    rough = jax.vmap(lambda c: da.with_friction(models.unicycle(), viscous=c))(jnp.array([0.1, 0.2]))
    np.testing.assert_array_equal(rough.force.viscous, [0.1, 0.2])


def test_methods_that_know_no_forces_refuse_friction():
    sleigh = da.with_friction(models.chaplygin_sleigh(), viscous=0.1)
    state = sleigh.state(xi=[0.5, 1.0, 0.0])
    with pytest.raises(da.InvalidInput, match="needs an InvariantSystem"):
        da.simulate(sleigh, da.EulerPoincareSuslov(), state, step=0.1, steps=2)
    da.RetractionAdapted().require(sleigh, state, 0.1)


def test_forces_and_feedback_add_up():
    car = models.car()
    g, xi = car.group.identity(), jnp.array([0.0, 2.0, 0.0, 0.5])
    dragged = da.with_friction(car, viscous=0.5, along=[0.0, 1.0, 0.0, 0.0])
    pushed = da.mechanics.with_force(dragged, lambda t, g, xi: jnp.array([0.0, 3.0, 0.0, t]))
    np.testing.assert_allclose(pushed.F(2.0, g, xi, jnp.array([10.0, 20.0])), [0.0, 12.0, 0.0, 22.0])
    steered = da.with_feedback(pushed, lambda t, g, xi: jnp.stack([-xi[1], -xi[3]]))
    np.testing.assert_allclose(steered.F(2.0, g, xi, None), [0.0, 0.0, 0.0, 1.5])


def test_friction_never_does_work():
    rng = np.random.default_rng(0)
    friction = da.with_friction(models.snakeboard(), viscous=0.3, dry=0.7, along=rng.normal(size=(2, 5))).force
    velocities = rng.normal(size=(50, 5)) * 10.0 ** rng.uniform(-6, 3, size=(50, 1))
    power = [float(friction(0.0, None, xi) @ xi) for xi in velocities]
    assert max(power) <= 0.0 and min(power) < -1.0


@pytest.mark.parametrize("kind", [list, tuple, np.array, jnp.array])
def test_viscous_friction_takes_one_number_for_each_velocity_or_a_matrix(kind):
    sleigh, xi = models.chaplygin_sleigh(), jnp.array([2.0, 3.0, 5.0])
    table = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
    each = da.with_friction(sleigh, viscous=kind([0.02, 0.2, 0.0]), dry=0.7)
    np.testing.assert_allclose(
        each.F(0.0, None, xi, None), -(np.array([0.02, 0.2, 0.0]) + 0.7 / np.sqrt(38.0 + 1e-6)) * xi, rtol=1e-15
    )
    whole = da.with_friction(sleigh, viscous=kind(table.tolist()))
    np.testing.assert_allclose(whole.F(0.0, None, xi, None), -table @ xi, rtol=1e-15)
    along = da.with_friction(sleigh, viscous=kind([0.5, 2.0]), along=[[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    np.testing.assert_allclose(along.F(0.0, None, xi, None), [-14.0, -1.5, -14.0], rtol=1e-15)


def test_viscous_friction_that_is_none_is_refused_and_many_runs_are_batched():
    sleigh = models.chaplygin_sleigh()
    for wrong in ([0.1, -0.2, 0.0], -np.eye(3), [[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]):
        with pytest.raises(da.InvalidInput, match=r"viscous is .*; allowed: no negative number, or a symmetric matrix"):
            da.with_friction(sleigh, viscous=wrong)
    with pytest.raises(da.InvalidInput, match=r"shape \(2,\); allowed: one number, \(3,\).*of many runs: da.ens"):
        da.with_friction(sleigh, viscous=[0.1, 0.2])
    rough = [da.with_friction(sleigh, viscous=c * np.array([0.0, 1.0, 0.0])) for c in (0.1, 0.2)]
    start = rough[0].state(xi=[0.0, 1.0, 0.0])
    many = da.ensemble(rough, da.LagrangeDAlembert(), start, step=0.1, steps=2)
    alone = da.simulate(rough[1], da.LagrangeDAlembert(), start, step=0.1, steps=2)
    np.testing.assert_allclose(many.xi[1], alone.xi, rtol=1e-13)
    mapped = jax.vmap(lambda c: da.with_friction(sleigh, viscous=c))(jnp.ones((2, 3)))
    assert mapped.force.viscous.shape == (2, 3)


def test_the_documentation_names_every_model_and_its_parameters():
    lines = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8").splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `") and line.count("|") == 8}
    for model in models.MODELS.values():
        assert model.name in rows, model.name
        if "and " not in rows[model.name]:  # "and slope": what the row above has, and more
            for parameter in model.parameters:
                assert parameter in rows[model.name], (model.name, parameter)
