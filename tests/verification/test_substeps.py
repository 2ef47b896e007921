"""What every method with substeps of its own must do: stay on the group and on D, come back, and report where a motion
ends.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from registry import case, gap

import dalembert as da

T = 3.0
METHODS = pytest.mark.parametrize("method", [da.DormandPrince, da.Taylor])


@METHODS
def test_the_run_stays_on_the_group_and_on_d(method):
    system, state = case("heavy_suslov")
    trajectory = da.simulate(system, method(1e-5), state, step=0.5, steps=40).check()
    assert np.abs(np.asarray(trajectory.constraint_residual())).max() < 1e-14
    assert np.abs(np.einsum("kij,kil->kjl", trajectory.g, trajectory.g) - np.eye(3)).max() < 1e-14


@METHODS
def test_the_way_back_is_as_accurate_as_the_way_out(method):
    system, state = case("particle")
    there = da.simulate(system, method(1e-11), state, step=T, steps=1).check().last
    back = da.simulate(system, method(1e-11), there, step=-T, steps=1).check().last
    assert gap(back, state) < 1e-8


@METHODS
def test_a_motion_that_leaves_the_domain_is_data(method):
    """q' = v, v' = 2 q^3 from q = v = 1: q = 1/(1 - t)."""
    system = da.System(da.Euclidean(1), lambda t, g, xi, p: 0.5 * xi @ xi + 0.5 * jnp.sum(g**4))
    trajectory = da.simulate(system, method(1e-8), system.state([1.0], [1.0]), step=0.3, steps=8)
    assert trajectory.status == "failed" and trajectory.failed_at == 3
    assert abs(float(trajectory.g[3, 0]) - 10.0) < 1e-4
