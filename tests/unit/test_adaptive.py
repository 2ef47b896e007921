"""Reversible step-size control at its doors: configuration, files, ends of runs, figures, and what is refused."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from registry import case

import dalembert as da
from dalembert.io import config
from dalembert.simulation import steps_until

FREE = da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v - 0.25 * q[0] ** 4)
START = FREE.state([1.0], [0.3])
METHOD = da.Adaptive("arclength")


@pytest.fixture(scope="module")
def run():
    return da.simulate(FREE, METHOD, START, step=0.05, t_end=2.0).check()


def test_t_end_is_the_last_state_at_or_before_it(run):
    longer = da.simulate(FREE, METHOD, START, step=0.05, steps=run.steps + 1).check()
    assert float(run.t[-1]) <= 2.0 < float(longer.t[-1])
    assert steps_until(FREE, METHOD, START, step=0.05, t_end=float(run.t[-1])) == run.steps
    half = da.simulate(FREE, METHOD, START, step=0.05, steps=run.steps // 2)
    on = da.simulate(FREE, METHOD, half, step=0.05, t_end=2.0)
    np.testing.assert_array_equal(on.last.g, run.last.g)
    assert on.steps == run.steps
    back = da.simulate(FREE, METHOD, run, step=-0.05, t_end=1.0)
    assert float(back.t[-1]) >= 1.0 > float(back.t[-1] + back.step_sizes[-1])


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
    assert config.method_of(section) == da.Adaptive("speed", da.Gauss(3))
    assert config.method_of({"name": "adaptive"}) == da.Adaptive()
    nested = {"name": "composition", "scheme": "suzuki-4", "base": {"name": "discrete-gradient"}}
    assert config.method_of({"name": "adaptive", "base": nested}) == da.Adaptive(
        base=da.Composition("suzuki-4", base=da.DiscreteGradient())
    )
    for base in ("gauss", {"stages": 2}):
        with pytest.raises(da.InvalidInput, match="such as"):
            config.method_of({"name": "adaptive", "base": base})
    with pytest.raises(da.errors.UnknownName, match="gauss"):
        config.method_of({"name": "adaptive", "base": {"name": "gaus"}})
    with pytest.raises(da.errors.UnknownName, match="arclength"):
        config.method_of({"name": "adaptive", "pace": "arc"})


ONE_SIDED = [
    da.LagrangeDAlembert(node=0.3),
    da.LagrangeDAlembert(nodes="velocity"),
    da.RungeKutta(),
    da.integrators.ProjectedRungeKutta(),
    da.Lobatto(),
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
    assert steps_until(FREE, steep, START, step=0.2, t_end=1.0) == 1  # so that the run fails, as it must


def test_times_that_are_not_known_before_the_run_are_refused():
    states = [START, FREE.state([0.5], [0.1])]
    with pytest.raises(da.InvalidInput, match="different numbers of steps"):
        da.ensemble(FREE, METHOD, states, step=0.05, t_end=1.0)
    with pytest.raises(da.InvalidInput, match="one row a step"):
        da.simulate(FREE, METHOD, START, step=0.05, steps=3, controls=lambda t: t)
    with pytest.raises(da.InvalidInput, match="one row a step"):
        da.ensemble(FREE, METHOD, [START, START], step=0.05, steps=3, controls=lambda t: t)
    with pytest.raises(da.InvalidInput, match="t_end"):
        da.simulate(FREE, METHOD, START, step=0.05, t_end=0.01)
