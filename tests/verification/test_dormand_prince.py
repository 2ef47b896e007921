"""Dormand and Prince's method with its own substeps: as accurate as it is asked to be, on the group and on D,
natively.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import case, gap, sampled

import dalembert as da
from dalembert.integrators.explicit import dop853_tableau

T = 3.0


def run(key, tolerance, step=T, steps=1, **options):
    system, state = case(key)
    return da.simulate(system, da.DormandPrince(tolerance), state, step=step, steps=steps, **options)


def test_the_tableau_satisfies_the_order_conditions_of_quadrature_and_its_row_sums():
    A, b, c, fifth, third = dop853_tableau()
    assert np.abs(A.sum(axis=1) - c).max() < 1e-14
    assert max(abs(b @ c**k - 1 / (k + 1)) for k in range(8)) < 1e-14
    assert abs(fifth.sum()) < 1e-14 and abs(third.sum()) < 1e-14


@pytest.mark.parametrize("key", sampled(["sleigh", "heavy_suslov", "particle"]))
def test_the_error_follows_the_tolerance(key):
    system, state = case(key)
    exact = da.simulate(system, da.integrators.Reference(), state, step=T, steps=1).check().last
    errors = [gap(run(key, tolerance).check().last, exact) for tolerance in (1e-5, 1e-9)]
    assert errors[0] < 1e-2 and errors[1] < 1e-6
    assert errors[1] < 1e-2 * errors[0]


def test_members_equal_single_runs_bit_for_bit():
    system, state = case("particle")
    speeds = [0.5, 1.0, 1.7]
    states = [system.state(state.g, speed * state.xi) for speed in speeds]
    together = da.State(*(jnp.stack(leaves) for leaves in zip(*states, strict=True)))
    many = da.ensemble(system, da.DormandPrince(1e-7), together, step=0.5, steps=4)
    for k, each in enumerate(states):
        single = da.simulate(system, da.DormandPrince(1e-7), each, step=0.5, steps=4)
        assert np.array_equal(many.g[k], single.g)


@pytest.mark.parametrize("tolerance", [0.0, -1e-6, 1.0, float("nan"), True])
def test_a_tolerance_that_means_nothing_is_refused(tolerance):
    with pytest.raises(da.errors.InvalidInput, match="tolerance is"):
        da.DormandPrince(tolerance)


def test_an_ensemble_of_references_is_as_accurate_as_one():
    system, state = case("particle")
    together = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    many = da.ensemble(system, da.integrators.Reference(), together, step=1.0, steps=3)
    single = da.simulate(system, da.integrators.Reference(), state, step=1.0, steps=3)
    assert np.abs(many.g[1] - single.g).max() < 1e-11


def test_a_reference_run_knows_what_it_keeps():
    system, state = case("particle")
    peaks = da.simulate(system, da.integrators.Reference(1e-5), state, step=0.5, steps=10, monitor=True).final.peaks
    assert float(peaks.energy) == pytest.approx(float(system.energy(state.t, state.g, state.xi)))
    assert 0.0 < float(peaks.energy_error) < 1e-4 and float(peaks.constraint) < 1e-12


def test_projected_runge_kutta_is_back_on_the_group():
    """One Newton-Schulz step is not enough there: it left 3e-6."""
    system = da.models.rolling_ball(slope=0.1)
    run = da.simulate(
        system, da.integrators.ProjectedRungeKutta(), system.state(xi=[3.0, 5.0, 2.0, 5.0, -3.0]), step=0.1, steps=50
    )
    assert float(np.max(run.check().group_distance())) < 1e-14
