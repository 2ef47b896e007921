"""Special cases that a method computes by other means: they are the general case, to round-off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import registry

import dalembert as da
from dalembert.differences import FiniteDifference

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


@pytest.mark.parametrize("case", ["disk", "heavy_suslov"])
def test_a_step_on_d_is_the_step_with_multipliers(case):
    """InvariantSystem solves for coordinates of w in d, System for (w, multipliers): the same motion and reactions."""
    invariant, state = getattr(registry, case)()
    general = da.System(
        invariant.group,
        lambda t, g, xi, p: p.L(t, g, xi),
        lambda t, g, p: p.annihilator,
        parameters=invariant,
    )
    method = da.LagrangeDAlembert(da.Cayley(), node=0.5)
    assert method._reduces(invariant) and not method._reduces(general)
    reduced = da.simulate(invariant, method, state, step=0.05, steps=30)
    full = da.simulate(general, method, general.state(state.g, state.xi), step=0.05, steps=30)
    for a, b in zip(jax.tree.leaves(reduced.g), jax.tree.leaves(full.g), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    np.testing.assert_allclose(reduced.xi, full.xi, atol=1e-12)
    np.testing.assert_allclose(reduced.multipliers, full.multipliers, atol=1e-10)


def test_where_the_mean_is_no_multiple_of_one_nothing_is_explicit():
    assert not FiniteDifference(da.Cayley(), 0.5).explicit(da.SE3())
    assert not FiniteDifference(da.Cayley(), 0.25).explicit(da.SO3())
    assert not FiniteDifference(da.Exponential(), 0.5).explicit(da.SO3())
    assert (da.SE3() * da.SO2()).mean_dcayley(jnp.zeros(7)) is None
