"""Friction takes energy, and the books of what forces and controls bring and take balance."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from newton import PAIRS

import dalembert as da

models = da.models
MIDPOINT = da.LagrangeDAlembert(da.Cayley(), node=0.5)


def balance(system, method, state, step, steps, controls=None):
    """The largest failure of the energy balance over a run, and what the run lost."""
    trajectory = da.simulate(system, method, state, step=step, steps=steps, controls=controls).check()
    energy = np.asarray(trajectory.energy())
    return np.abs(da.analysis.energy_balance(trajectory)).max(), energy


@pytest.mark.parametrize("method", [MIDPOINT, pytest.param(da.RetractionAdapted(node=0.5), marks=pytest.mark.heavy)])
def test_friction_takes_energy_and_the_books_balance_with_the_order_of_the_method(method):
    """A sleigh with viscous and dry friction: the energy only falls, and what the books miss falls like h^2."""
    sleigh = models.chaplygin_sleigh(1.4, 0.8, 0.3, 0.1)
    system = da.with_friction(da.with_friction(sleigh, viscous=0.1), dry=0.3, along=[0.0, 1.0, 0.0], width=0.05)
    state = system.state(xi=[0.9, 1.2, 0.0])
    (first, energy), (second, _) = (balance(system, method, state, 0.04 / k, 50 * k) for k in (1, 2))
    assert np.all(np.diff(energy) < 0) and energy[-1] < 0.4 * energy[0]
    assert np.log2(first / second) == pytest.approx(2.0, abs=0.2) and second < 1e-4


def test_viscous_friction_stops_a_unicycle_exponentially_and_dry_friction_in_finite_time():
    ahead = [0.0, 1.0, 0.0]
    unicycle = models.unicycle(1.4, 0.6)
    state = unicycle.state(xi=[0.0, 1.2, 0.0])
    viscous = da.simulate(
        da.with_friction(unicycle, viscous=0.7, along=ahead), MIDPOINT, state, step=0.01, steps=200
    ).check()
    np.testing.assert_allclose(viscous.xi[:, 1], 1.2 * np.exp(-0.7 / 1.4 * np.asarray(viscous.t)), atol=1e-5)
    sticky = da.with_friction(unicycle, dry=0.7, along=ahead, width=1e-3)
    dry = da.simulate(sticky, MIDPOINT, state, step=0.01, steps=400).check()
    moving = np.asarray(dry.t) < 2.3  # v reaches 0 at t = 1.2 * 1.4/0.7 = 2.4
    np.testing.assert_allclose(dry.xi[moving, 1], 1.2 - 0.5 * np.asarray(dry.t)[moving], atol=1e-4)
    assert np.abs(dry.xi[-100:, 1]).max() < 1e-6


def test_controls_are_in_the_books_although_they_jump():
    """Torques held over each step: the balance of the accurate motion closes to the order of the quadrature, 4."""
    racer, push = PAIRS["roller-racer"][0], np.random.default_rng(0).normal(size=(40, 1))
    state = racer.state(xi=[-0.0, 0.4, 0.0, 0.0])
    left = [balance(racer, da.RungeKutta(), state, 0.1 / k, 40 * k, np.repeat(push, k, axis=0))[0] for k in (1, 2)]
    assert left[1] < 1e-5 and np.log2(left[0] / left[1]) > 3.5
    trajectory = da.simulate(racer, da.RungeKutta(), state, step=0.1, steps=40, controls=push, save_every=2)
    with pytest.raises(da.InvalidInput, match="save_every = 1"):
        trajectory.work()


@pytest.mark.heavy
@pytest.mark.parametrize("name", PAIRS)
def test_every_model_with_friction_balances(name):
    system = da.with_friction(PAIRS[name][0], viscous=0.05, dry=0.02, width=0.1)
    model = models.MODELS[name]
    g = system.group.exp(0.1 * jnp.ones(system.group.dim))
    scale = 0.1 if name == "rattleback" else 1.0
    state = system.state(g, system.project(g, scale * jnp.asarray(model.initial["velocity"])))
    h = 0.2 * model.step
    (first, energy), (second, _) = (balance(system, MIDPOINT, state, h / k, 100 * k) for k in (1, 2))
    assert energy[-1] < energy[0]
    assert np.log2(first / second) == pytest.approx(2.0, abs=0.3)
