"""Special cases that a method computes by other means: they are the general case, to round-off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import registry

import dalembert as da
from dalembert.mechanics import FiniteDifference

GROUPS = [da.SO2(), da.SO3(), da.SE2(), da.SE2() * da.SO2(), da.SO3() * da.Euclidean(2)]


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_the_momenta_of_a_midpoint_step_need_no_solve(group, monkeypatch):
    difference = FiniteDifference(da.Cayley(), 0.5)
    xi, legendre, impulse = np.random.default_rng(0).normal(size=(3, group.dim))
    assert difference.explicit(group)
    explicit = jax.jit(lambda: difference.momenta(group, xi, legendre, impulse))()
    monkeypatch.setattr(FiniteDifference, "explicit", lambda self, group: False)
    general = jax.jit(lambda: difference.momenta(group, xi, legendre, impulse))()
    np.testing.assert_allclose(explicit, general, atol=2e-14)


def _same_motion(reduced, full, scale):
    for a, b in zip(jax.tree.leaves(reduced.g), jax.tree.leaves(full.g), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    np.testing.assert_allclose(reduced.xi, full.xi, atol=1e-12)
    np.testing.assert_allclose(reduced.increment, full.increment, atol=1e-12)
    np.testing.assert_allclose(reduced.multipliers, scale * full.multipliers, atol=1e-10)


def _unknowns(run) -> int:
    return run.final.carry.prediction.x.shape[-1]


@pytest.mark.parametrize("case", registry.sampled(["heavy_suslov", "disk"]))
def test_a_step_on_d_is_the_step_with_multipliers(case):
    """InvariantSystem solves for coordinates of w in d, System for (w, multipliers): the same motion and reactions."""
    invariant, state = getattr(registry, case)()
    general = da.System(
        invariant.group,
        lambda t, g, xi, p: p[0].L(t, g, xi),
        lambda t, g, p: p[1] * p[0].annihilator,
        parameters=(
            invariant,
            jnp.array(2.0),
        ),  # a number of the run: rows with literal units would need no multipliers
    )
    method = da.LagrangeDAlembert(da.Cayley(), node=0.5)
    reduced = da.simulate(invariant, method, state, step=0.05, steps=30)
    full = da.simulate(general, method, general.state(state.g, state.xi), step=0.05, steps=30)
    n, m = general.group.dim, general.constraints
    assert (_unknowns(reduced), _unknowns(full)) == (n - m, n + m)
    _same_motion(reduced, full, 2.0)


ALONG = [
    ("ball", "velocity"),
    registry.more("ball", "original"),
    ("driven", "original"),
    registry.more("driven", "velocity"),
]
ALONG += [registry.more("quartic", "original"), registry.more("quartic", "velocity")]


@pytest.mark.parametrize("case, nodes", ALONG)
def test_a_step_along_a_connection_is_the_step_with_multipliers(case, nodes):
    """Rows with literal units leave n - m unknowns; twice the same rows, by a parameter that is 2, leave all n + m."""
    system, state = getattr(registry, case)()

    def doubled(function):
        return None if function is None else lambda t, g, p: p[1] * function(t, g, p[0])

    general = da.System(
        system.group,
        lambda t, g, xi, p: system.lagrangian(t, g, xi, p[0]),
        doubled(system.constraint),
        drift=doubled(system.drift),
        force=None if system.force is None else lambda t, g, xi, u, p: system.force(t, g, xi, u, p[0]),
        parameters=(system.parameters, jnp.array(2.0)),
    )
    method = da.LagrangeDAlembert(da.Cayley(), node=0.5, nodes=nodes)
    controls = np.linspace(-0.2, 0.3, 90).reshape(30, 3) if case == "driven" else None
    options = {"step": 0.05, "steps": 30, "controls": controls}
    reduced = da.simulate(system, method, state, **options)
    full = da.simulate(general, method, general.state(state.g, state.xi, t=state.t), **options)
    n, m = system.group.dim, system.constraints
    assert (_unknowns(reduced), _unknowns(full)) == (n - m, n + m)
    _same_motion(reduced, full, 2.0)


def test_where_the_mean_is_no_multiple_of_one_nothing_is_explicit():
    assert not FiniteDifference(da.Cayley(), 0.5).explicit(da.SE3())
    assert not FiniteDifference(da.Cayley(), 0.25).explicit(da.SO3())
    assert not FiniteDifference(da.Exponential(), 0.5).explicit(da.SO3())
    assert (da.SE3() * da.SO2()).mean_dcayley(jnp.zeros(7)) is None
