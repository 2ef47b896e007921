"""A method defined in this file works everywhere: one class and one decorator add a method."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

import dalembert as da
from dalembert.analysis.order import convergence
from dalembert.errors import InvalidInput, UnknownName
from dalembert.integrators import METHODS, Claims, Integrator, PhaseCarry, register
from dalembert.io.config import parse_job
from dalembert.studio.catalogue import make_catalogue
from dalembert.studio.presentation import present
from dalembert.studio.requests import StudioInput

CONFIG = {
    "system": {"name": "chaplygin-sleigh", "mass": 1.0, "inertia": 1.0, "a": 0.2},
    "method": {"name": "heun"},
    "initial": {"velocity": [1.0, 0.5, 0.0]},
    "run": {"step": 0.05, "steps": 20},
}


@dataclass(frozen=True)
class Heun(Integrator):
    """g_1 = g_0 exp(h (xi_0 + k)/2), xi_1 = xi_0 + h (a(xi_0) + a(k))/2 with k = xi_0 + h a(xi_0) (Heun 1900)."""

    weight: float = 0.5
    name = "heun"

    def claims(self, system):
        return Claims(2 if self.weight == 0.5 else 1, group=True)

    def start(self, system, state, h, u=None):
        return PhaseCarry.at(system, state.t, state.g, state.xi, u)

    def step(self, system, carry, h, u=None):
        (t, g, xi), group = carry, system.group
        first, _ = system.acceleration(t, g, xi, u)
        guess = xi + h * first
        second, _ = system.acceleration(t + h, group.compose(g, group.exp(h * xi)), guess, u)
        mean = lambda a, b: (1 - self.weight) * a + self.weight * b
        g = group.compose(g, group.exp(h * mean(xi, guess)))
        return PhaseCarry.at(system, t + h, group.normalise(g), xi + h * mean(first, second), u)

    def observe(self, system, carry, h):
        return da.State(carry.t, carry.g, carry.xi, system.momentum(*carry), carry.xi)


@pytest.fixture(autouse=True)
def heun():
    register(words="The trapezoidal rule, explicit.", use_when="you want an example of a method of your own")(Heun)
    yield Heun()
    del METHODS["heun"]


def case():
    job = parse_job(CONFIG)
    return job.system, job.state


def test_it_comes_last_in_the_list_with_its_texts():
    method = list(METHODS.values())[-1]
    assert method.name == "heun" and method.options == {"weight": 0.5}
    assert method.text.startswith("The trapezoidal rule, explicit.\nUse it when you want an example")
    assert method.summary in method.text


def test_it_runs_on_every_backend_to_the_same_bits(heun):
    system, state = case()
    runs = [
        da.simulate(system, heun, state, step=0.05, steps=20, backend=backend).check() for backend in ("llvm", "xla")
    ]
    np.testing.assert_allclose(runs[0].xi, runs[1].xi, rtol=1e-13, atol=1e-14)
    assert runs[0].backend == "llvm" and runs[0].group_distance().max() < 1e-14


def test_it_has_the_order_that_it_claims(heun):
    system, state = case()
    found = convergence(system, heun, state, duration=1.0, counts=(20, 40, 80))
    assert found.order("velocity") == pytest.approx(heun.claims(system).order, abs=0.1)


def test_it_stands_beside_other_methods_in_a_comparison(heun):
    system, state = case()
    result = da.compare(system, {"heun": heun, "rk": da.RungeKutta()}, state, steps=[0.05], t_end=1.0, timing=False)
    errors = {row.method: row.error for row in result.rows}
    assert 1e-10 < errors["rk"] < errors["heun"] < 1e-2


def test_a_configuration_file_knows_it_and_its_options():
    job = parse_job({**CONFIG, "method": {"name": "heun", "weight": 0.4}})
    assert job.integrator == Heun(0.4)
    with pytest.raises(UnknownName, match="weight"):
        parse_job({**CONFIG, "method": {"name": "heun", "wieght": 0.4}})


def test_a_file_is_saved_and_goes_on_to_the_same_bits(heun, tmp_path):
    system, state = case()
    whole = da.simulate(system, heun, state, step=0.05, steps=20)
    da.simulate(system, heun, state, step=0.05, steps=10).save(tmp_path / "half.nc")
    half = da.load(tmp_path / "half.nc", integrator=heun)
    again = da.simulate(system, heun, half, step=0.05, steps=10)
    assert np.array_equal(again.xi[-1], whole.xi[-1])


def test_it_is_plotted(heun, tmp_path):
    system, state = case()
    run = da.simulate(system, heun, state, step=0.05, steps=20)
    run.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1000


def test_the_studio_shows_it_in_plain_words():
    opened = StudioInput(max_steps=1000)
    entry = next(method for method in make_catalogue(opened)["methods"] if method["name"] == "heun")
    assert entry["summary"] == "The trapezoidal rule, explicit." and len(entry["options"]) == 1
    answer = present({"config": CONFIG, "against": {"name": "runge-kutta"}, "frames": 20}, opened)
    json.dumps(answer, allow_nan=False)
    assert [run["label"] for run in answer["runs"]] == ["heun", "runge-kutta"]


def test_a_method_without_texts_works_too(heun):
    del METHODS["heun"]
    register()(Heun)
    assert METHODS["heun"].words == "" and METHODS["heun"].text == METHODS["heun"].summary


def test_what_is_no_method_is_refused_with_a_sentence(heun):
    with pytest.raises(InvalidInput, match=r"the method 'heun' is registered already, by Heun"):
        register()(Heun)

    @dataclass(frozen=True)
    class Half(Integrator):
        name = "half"

        def start(self, system, state, h, u=None): ...

    with pytest.raises(InvalidInput, match=r"Half cannot be registered as a method: it lacks observe, step"):
        register()(Half)

    class Nameless(Heun):
        name = None

    with pytest.raises(InvalidInput, match=r"it lacks name"):
        register()(Nameless)
    assert list(METHODS)[-1] == "heun"


def test_a_method_that_inherits_its_name_does_not_take_it():
    """A message that explains a name names the class that has it by itself."""

    class Careful(da.LagrangeDAlembert):
        """A method of one's own."""

    sleigh = da.models.chaplygin_sleigh()
    with pytest.raises(da.InvalidInput, match=r"not its name: LagrangeDAlembert\(\)"):
        da.simulate(sleigh, Careful.name, sleigh.state(), step=0.1, steps=2)
