"""Reversible step-size control at its doors: configuration, files, ends of runs, figures, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import case, more

import dalembert as da
from dalembert.integrators import composition
from dalembert.io import config

FREE = da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v - 0.25 * q[0] ** 4)
START = FREE.state([1.0], [0.3])
METHOD = da.Adaptive("arclength")


@pytest.fixture(scope="module")
def run():
    return da.simulate(FREE, METHOD, START, step=0.05, t_end=2.0).check()


def test_t_end_is_the_last_state_at_or_before_it(run):
    longer = da.simulate(FREE, METHOD, START, step=0.05, steps=run.steps + 1).check()
    assert float(run.t[-1]) <= 2.0 < float(longer.t[-1])
    assert da.simulate(FREE, METHOD, START, step=0.05, t_end=float(run.t[-1])).steps == run.steps
    half = da.simulate(FREE, METHOD, START, step=0.05, steps=run.steps // 2)
    on = da.simulate(FREE, METHOD, half, step=0.05, t_end=2.0)
    np.testing.assert_array_equal(on.last.g, run.last.g)
    assert on.steps == run.steps
    back = da.simulate(FREE, METHOD, run, step=-0.05, t_end=1.0)
    assert float(back.t[-1]) >= 1.0 > float(back.t[-1] + back.step_sizes[-1])


def same(a, b) -> bool:
    """Whether two pytrees are equal bit for bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.shape(x) == np.shape(y) and np.array_equal(x, y, equal_nan=True) for x, y in pairs)


@pytest.mark.parametrize("backend", ["auto", more("xla")])
@pytest.mark.parametrize("every", [1, 7])
def test_a_run_to_t_end_is_the_run_of_as_many_steps(every, backend):
    options = {"step": 0.05, "save_every": every, "monitor": True, "backend": backend}
    found = da.simulate(FREE, METHOD, START, t_end=20.0, **options)
    counted = da.simulate(FREE, METHOD, START, steps=found.steps, **options)
    pairs = (found.records, found.final), (counted.records, counted.final)
    if backend == "xla":  # which rounds two programs as it likes
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), *pairs)
    else:
        assert same(*pairs)
    assert np.all(np.diff(found.records.steps) > 0)


def test_events_on_the_way_to_t_end_are_those_of_as_many_steps():
    for stop in (False, True):
        options = {"step": 0.05, "save_every": 5, "events": [da.Event(da.Quantity("configuration", (0,)), stop=stop)]}
        found = da.simulate(FREE, METHOD, START, t_end=20.0, **options)
        counted = da.simulate(FREE, METHOD, START, steps=found.steps + 3 * stop, **options)
        assert same((found.records, found.final, found.events), (counted.records, counted.final, counted.events))
        assert len(found.events["event 0"]) == (1 if stop else len(counted.events["event 0"]))


def test_members_stay_at_their_last_states_before_t_end():
    states = [START, FREE.state([0.5], [0.1]), FREE.state([2.0], [0.0])]
    many = da.ensemble(FREE, METHOD, states, step=0.05, t_end=3.0)
    assert len(set(many.steps)) == 3 and many.t.shape == (3, max(many.steps) + 1)
    for k, state in enumerate(states):
        one = da.simulate(FREE, METHOD, state, step=0.05, t_end=3.0)
        assert one.steps == many.steps[k]
        np.testing.assert_allclose(many.g[k, : one.steps + 1], one.g, atol=1e-13)
        assert np.all(many.t[k, one.steps :] == many.t[k, one.steps])


def test_tangents_go_to_t_end_too():
    curve = lambda s: (FREE, FREE.state(START.g + s, START.xi), 0.05)
    found = da.simulate(FREE, METHOD, START, step=0.05, t_end=2.0, tangents=curve)
    counted = da.simulate(FREE, METHOD, START, step=0.05, steps=found.steps, tangents=curve)
    assert same((found.records, found.tangents), (counted.records, counted.tangents))


def test_a_run_to_t_end_takes_its_steps_once(monkeypatch):
    """Steps are counted where they are taken, on the back end that traces none of them away."""
    taken = []
    step = composition.Adaptive.step

    def counted(self, *arguments):
        jax.debug.callback(lambda: taken.append(1))
        return step(self, *arguments)

    monkeypatch.setattr(composition.Adaptive, "step", counted)
    method = da.Adaptive(lambda system, t, g, xi: 1.0 / (1.0 + g @ g))  # a method that no test compiled before
    found = da.simulate(FREE, method, START, step=0.05, t_end=2.0, backend="xla")
    jax.effects_barrier()
    assert found.steps <= len(taken) <= 1.5 * found.steps + 2


def test_a_configuration_is_read_without_running_it():
    read = {
        "system": {"name": "nonholonomic-particle"},
        "method": {"name": "adaptive"},
        "initial": {"configuration": [1.0, 0.0, 0.0], "velocity": [0.0, 1.0, 0.0]},
        "run": {"step": 1e-7, "t_end": 1e6},
    }
    job = config.parse_job(read)
    assert job.until == {"t_end": 1e6}


def test_step_sizes_are_saved(run, tmp_path):
    assert float(run.step_sizes[0]) == 0.05 and np.ptp(run.step_sizes) > 0.001
    np.testing.assert_allclose(np.diff(run.t), run.step_sizes[1:], rtol=1e-12)
    run.save(tmp_path / "run.nc")
    kept = da.load(tmp_path / "run.nc", system=FREE)
    np.testing.assert_array_equal(kept.step_sizes, run.step_sizes)
    assert kept.integrator == METHOD
    np.testing.assert_array_equal(run.to_xarray()["step_size"], run.step_sizes)
    run.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1000


def test_equal_steps_have_sizes_too():
    system, state = case("particle")
    sizes = da.simulate(system, da.Leapfrog(), state, step=0.1, steps=3).step_sizes
    np.testing.assert_array_equal(sizes, [0.1] * 4)


def test_a_configuration_names_the_base_and_the_pace():
    section = {"name": "adaptive", "pace": "speed", "base": {"name": "gauss", "stages": 3}}
    assert config.build_method(section) == da.Adaptive("speed", da.Gauss(3))
    assert config.build_method({"name": "adaptive"}) == da.Adaptive()
    nested = {"name": "composition", "scheme": "suzuki-4", "base": {"name": "discrete-gradient"}}
    assert config.build_method({"name": "adaptive", "base": nested}) == da.Adaptive(
        base=da.Composition("suzuki-4", base=da.DiscreteGradient())
    )
    for base in ("gauss", {"stages": 2}):
        with pytest.raises(da.InvalidInput, match="such as"):
            config.build_method({"name": "adaptive", "base": base})
    with pytest.raises(da.errors.UnknownName, match="gauss"):
        config.build_method({"name": "adaptive", "base": {"name": "gaus"}})
    with pytest.raises(da.errors.UnknownName, match="arclength"):
        config.build_method({"name": "adaptive", "pace": "arc"})


ONE_SIDED = [
    da.LagrangeDAlembert(node=0.3),
    da.LagrangeDAlembert(nodes="velocity"),
    da.RungeKutta(),
    da.integrators.ProjectedRungeKutta(),
    da.integrators.Lobatto(),
    METHOD,
]


@pytest.mark.parametrize("base", ONE_SIDED, ids=lambda m: m.name)
def test_bases_that_are_not_symmetric_or_remember_the_step_are_refused(base):
    with pytest.raises(da.InvalidInput, match="cannot have reversible steps"):
        da.Adaptive(base=base)


def test_a_pace_without_a_value_is_refused():
    still = FREE.state([1.0], [0.0])
    with pytest.raises(da.InvalidInput, match="'speed' is inf"):
        da.simulate(FREE, da.Adaptive("speed"), still, step=0.1, steps=1)
    with pytest.raises(da.InvalidInput, match="allowed: a positive number"):
        da.simulate(FREE, da.Adaptive(lambda system, t, g, xi: -jnp.ones(())), still, step=0.1, steps=1)


def test_a_step_too_large_for_the_controller_fails_and_says_so():
    """Q grows by a factor of e^3 while the first step lasts: rho would not stay positive."""
    steep = da.Adaptive(lambda system, t, g, xi: jnp.exp(50.0 * g[0]))
    failed = da.simulate(FREE, steep, START, step=0.2, steps=5)
    assert failed.failed_at == 0 and "too large" in failed.reason
    assert da.simulate(FREE, steep, START, step=0.2, t_end=1.0).failed_at == 0


def test_times_that_are_not_known_before_the_run_are_refused():
    with pytest.raises(da.InvalidInput, match="give steps"):
        da.simulate(FREE, METHOD, START, step=0.05, t_end=1.0, controls=jnp.zeros((20, 1)))
    with pytest.raises(da.InvalidInput, match="give steps"):
        jax.jit(lambda h: da.simulate(FREE, METHOD, START, step=h, t_end=1.0).last.g)(0.05)
    with pytest.raises(da.InvalidInput, match="one row a step"):
        da.simulate(FREE, METHOD, START, step=0.05, steps=3, controls=lambda t: t)
    with pytest.raises(da.InvalidInput, match="one row a step"):
        da.ensemble(FREE, METHOD, [START, START], step=0.05, steps=3, controls=lambda t: t)
    with pytest.raises(da.InvalidInput, match="t_end"):
        da.simulate(FREE, METHOD, START, step=0.05, t_end=0.01)
