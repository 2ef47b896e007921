"""The long-run tests of the literature: what separates good methods from bad (REFERENCE.md)."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest

import dalembert as da
from dalembert.errors import InvalidInput

VELOCITY = da.LagrangeDAlembert(node=0.5, nodes="velocity")  # jimenez-scheurle (76): DLA with the midpoint rule


# -- contact oscillator -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [7, 40, 101])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_the_leapfrog_moves_y_with_the_exact_period_n(n, epsilon):
    system = da.models.contact_oscillator(epsilon)
    state = system.state([1.0, 0.0, 0.0], [0.0, 1.0, 1.0])
    assert float(system.energy(0.0, state.g, state.xi)) == pytest.approx(1.5, abs=1e-15)
    h = 2 * np.sin(np.pi / n)
    run = da.simulate(system, da.Leapfrog(), state, step=h, steps=50 * n).check()
    y, speed = np.asarray(run.g)[:-1, 1].reshape(50, n), np.asarray(run.xi)[:-1, 1].reshape(50, n)
    assert np.abs(y - y[0]).max() < 1e-14 and np.abs(speed - speed[0]).max() < 1e-14
    assert np.abs(y[0]).max() > 0.9  # it moves
    assert np.abs(0.5 * np.asarray(run.xi)[0, 1] ** 2 - 0.5) < 1e-15  # H_y = 1/2
    other = da.simulate(system, da.Leapfrog(), state, step=0.99 * h, steps=50 * n).check()
    assert np.abs(np.asarray(other.g)[:-1, 1].reshape(50, n) - y).max() > 0.1  # of another step it is none


# -- pendulum-driven CVT ----------------------------------------------------------------------------------------------
CVT = {  # largest |dE| up to T = 4e4 with h = 0.1
    (0.0, "velocity"): (0.0104, 5e-5),
    (0.1, "velocity"): (3.51, 5e-3),
    (0.3, "velocity"): (224.0, 2.24),
    (0.0, "leapfrog"): (0.01916, 5e-6),
    (0.1, "leapfrog"): (0.01927, 5e-6),
    (0.3, "leapfrog"): (0.01998, 5e-6),
}
METHODS = {"velocity": VELOCITY, "leapfrog": da.Leapfrog(), "gni": da.integrators.GeometricNonholonomic()}


@cache
def cvt(epsilon, method):
    system = da.models.pendulum_cvt(epsilon)
    state = system.state([1.0, 0.0, 0.0], [0.3, 0.0, 2.0])
    return da.simulate(system, METHODS[method], state, step=0.1, steps=400_000, save_every=100, monitor=True).check()


@pytest.mark.parametrize("epsilon, method", CVT)
def test_the_energy_of_the_transmission(epsilon, method):
    expected, digits = CVT[epsilon, method]
    assert float(cvt(epsilon, method).final.peaks.energy_error) == pytest.approx(expected, abs=digits)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_the_reversible_methods_stay_bounded_where_the_midpoint_rule_explodes(epsilon):
    for method in ("leapfrog", "gni"):
        found = da.analysis.drift(cvt(epsilon, method))
        assert found.kind == "bounded" and found.size < 0.021
    midpoint = da.analysis.drift(cvt(epsilon, "velocity"))
    assert midpoint.kind == ("exponential" if epsilon else "bounded")
    if epsilon == 0.3:
        assert midpoint.rate == pytest.approx(1.5e-4, rel=0.02)  # a time of 6600, while the motion's is 1


def test_the_constraint_says_nothing_about_the_energy():
    """Every one of these runs is on D; the one that loses its energy too."""
    for method, bound in (("velocity", 1e-9), ("leapfrog", 1e-15), ("gni", 1e-15)):
        assert float(cvt(0.3, method).final.peaks.constraint) < bound


# -- chaotic quartic --------------------------------------------------------------------------------------------------
def quartic(members, h, t_end, saves=64):
    system = da.models.chaotic_quartic(3)
    angles = 2 * np.pi * np.arange(members) / members
    states = jax.jit(jax.vmap(da.models.quartic_state))(angles)
    steps = round(t_end / h)
    run = da.ensemble(system, da.Leapfrog(), states, step=h, steps=steps, save_every=steps // saves).check()
    return run, np.asarray(run.energy_error())


def test_the_quartic_starts_from_one_energy_for_any_angle_and_number_of_pairs():
    for n, energy in ((2, 0.5 * (1 + 0.36 + 0.09 + 2 + 1 + 0.45)), (3, 3.06), (5, None)):
        system = da.models.chaotic_quartic(n)
        angles = np.array([0.0, 1.0, 4.0])
        states = jax.jit(jax.vmap(lambda a, n=n: da.models.quartic_state(a, n)))(angles)
        energies, off = jax.jit(jax.vmap(lambda s, q=system: (q.energy(s.t, s.g, s.xi), q.residual(s.t, s.g, s.xi))))(
            states
        )
        assert np.ptp(energies) < 1e-14 and np.abs(off).max() == 0.0
        assert energy is None or energies[0] == pytest.approx(energy, abs=1e-14)
    for n in (1, 0, 2.0, True, 2**53 + 1):
        with pytest.raises(InvalidInput, match="from 2, for V"):
            da.models.chaotic_quartic(n)


def test_the_leapfrog_walks_randomly_on_the_chaotic_quartic():
    """A short version: 64 members to t = 2560, where the step h = 0.2 has walked four times as far as h = 0.1."""
    found = {}
    for h in (0.2, 0.1):
        run, _ = quartic(64, h, 2560.0)
        assert run.backend == "llvm"
        drift = da.analysis.drift(run)
        assert drift.kind == "random walk", drift
        found[h] = drift.rate
    assert found[0.1] == pytest.approx(3.2e-4, rel=0.2)
    assert found[0.2] / found[0.1] == pytest.approx(4.0, rel=0.25)


@pytest.mark.heavy
@pytest.mark.parametrize("h, expected", [(0.2, (0.067, 0.092, 0.130)), (0.1, (0.0162, 0.0222, 0.0318))])
def test_the_random_walk_of_512_members(h, expected):
    run, errors = quartic(512, h, 1e4, saves=40)
    for k, value in zip((10, 20, 40), expected, strict=True):
        assert float(run.t[0, k]) == pytest.approx(250.0 * k)
        assert np.sqrt(np.mean(errors[:, k] ** 2)) == pytest.approx(value, rel=0.15)
    drift = da.analysis.drift(run)
    assert drift.kind == "random walk"
    assert drift.rate * 100 == pytest.approx(expected[-1], rel=0.15)


# -- harmonic particle ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("t_end", [100.0, 1000.0])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_only_beta_one_half_keeps_the_energy_of_the_harmonic_particle(beta, t_end):
    system = da.models.nonholonomic_particle("harmonic")
    state = system.state([0.3, 0.5, -0.2], [1.1, 0.7, 0.55])
    method = da.LagrangeDAlembert(node=beta, nodes="velocity")
    found = da.analysis.drift(da.simulate(system, method, state, step=0.1, steps=round(10 * t_end)).check())
    if beta == 0.5:
        assert found.kind == "bounded" and found.size < 6e-4
    else:
        assert found.kind in ("linear", "exponential")
        assert found.rate * (2 * beta - 1) > 0  # beta = 0 loses energy and settles, beta = 1 gains it for ever
        assert found.size > 0.4
