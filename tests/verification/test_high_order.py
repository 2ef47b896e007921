"""High order on D: Gauss, Lobatto and projected Runge-Kutta have the order they claim, and stay on D to round-off.

tools/claims measures both on the systems of its panel (R^n, SO(3), SE(2)); here stand systems that it has not: on a
product of groups, with drag, driven, and with a Lagrangian that is not quadratic.
"""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
from registry import ball, case, gap

import dalembert as da
from dalembert.integrators.collocation import LOBATTO_NODES, collocation_coefficients

T = 1.6


def contact():
    system = da.models.contact_oscillator(0.3)
    return system, system.state([1.0, 0.5, 0.4], system.project(np.array([1.0, 0.5, 0.4]), [0.5, 0.2, 1.5]))


def transmission():
    system = da.models.pendulum_cvt(0.3)
    return system, system.state([1.0, 0.5, 1.0], system.project(np.array([1.0, 0.5, 1.0]), [0.5, 0.2, 1.5]))


def frictionless_ball():
    return ball(drag=0.0)


OWN = {make.__name__: cache(make) for make in (contact, transmission, frictionless_ball)}


def problem(key):
    return OWN[key]() if key in OWN else case(key)


@cache
def exact(key):
    """The state at T, by DOP853 at 1e-13."""
    system, state = problem(key)
    return da.simulate(system, da.integrators.Reference(), state, step=T, steps=1).check().last


def measured(key, method, counts, independent=True) -> tuple[float, float]:
    """(the slope over the last two steps, the largest |A xi - b|) of runs to T, against DOP853 or the method's own
    smaller step.
    """
    system, state = problem(key)

    def run(n):
        return da.simulate(system, method, state, step=T / n, steps=n, save_every=n // 4).check()

    runs = [run(n) for n in counts]
    end = exact(key) if independent else run(4 * counts[-1]).last
    errors = [gap(run.last, end) for run in runs]
    off = max(np.abs(jax.vmap(system.residual)(run.t, run.g, run.xi)).max(initial=0.0) for run in runs)
    return float(np.log(errors[-2] / errors[-1]) / np.log(counts[-1] / counts[-2])), float(off)


# the largest steps at which errors fall regularly, and are above those of the comparison
COUNTS = {2: (32, 64), 4: (16, 32), 6: (12, 20), 8: (5, 8)}
METHODS = {
    "gauss-2": (da.Gauss(1), 2),
    "gauss-4": (da.Gauss(2), 4),
    "gauss-6": (da.Gauss(3), 6),
    "gauss-8": (da.Gauss(4), 8),
    "lobatto-2": (da.integrators.Lobatto(2), 2),
    "lobatto-4": (da.integrators.Lobatto(3), 4),
    "lobatto-6": (da.integrators.Lobatto(4), 6),
    "spark-2": (da.integrators.Lobatto(2, form="spark"), 2),
    "spark-4": (da.integrators.Lobatto(3, form="spark"), 4),
    "spark-6": (da.integrators.Lobatto(4, form="spark"), 6),
    "projected": (da.integrators.ProjectedRungeKutta(), 4),
    "projected-energy": (da.integrators.ProjectedRungeKutta("energy"), 4),
}
FAST = [("gauss-4", "knife_edge"), ("lobatto-4", "particle")]
SLOW = [
    *((method, "frictionless_ball") for method in METHODS),
    ("gauss-8", "transmission"),
    ("gauss-4", "driven"),
    ("gauss-4", "quartic"),
    ("gauss-4", "ball"),
    ("lobatto-4", "driven"),
    ("spark-4", "driven"),
    ("lobatto-4", "ball"),
]


# the pendulum of the transmission turns fast: its steps must be small, where errors are those of DOP853
SMALL = {("gauss-8", "transmission"): (14, 18)}


def check_order(name, key, independent):
    method, order = METHODS[name]
    counts = SMALL.get((name, key), COUNTS[order])
    slope, off = measured(key, method, counts, independent and (name, key) not in SMALL)
    assert slope == pytest.approx(order, abs=0.25), slope
    assert off < 4e-15


@pytest.mark.parametrize("name, key", FAST)
def test_the_order_is_the_claimed_one_and_D_is_kept(name, key):
    check_order(name, key, independent=False)


@pytest.mark.heavy
@pytest.mark.parametrize("name, key", SLOW)
def test_the_order_on_systems_without_measured_claims(name, key):
    check_order(name, key, independent=True)


# -- the coefficients -------------------------------------------------------------------------------------------------
def test_the_coefficients_are_those_of_the_tables():
    """Lobatto IIIA with 3 stages (Hairer, Lubich, Wanner II.1.4) and Gauss with 2."""
    a, b = collocation_coefficients(np.array(LOBATTO_NODES[3]))
    np.testing.assert_allclose(a, [[0, 0, 0], [5 / 24, 1 / 3, -1 / 24], [1 / 6, 2 / 3, 1 / 6]], atol=1e-15)
    np.testing.assert_allclose(b, [1 / 6, 2 / 3, 1 / 6], atol=1e-15)
    np.testing.assert_allclose(
        collocation_coefficients(da.Gauss(2).nodes)[0][0], [1 / 4, 1 / 4 - 3**0.5 / 6], atol=1e-15
    )


# -- symmetry, and what it is worth -----------------------------------------------------------------------------------
@pytest.mark.heavy
@pytest.mark.parametrize(
    "method", [da.Gauss(2), da.integrators.Lobatto(3), da.DiscreteGradient()], ids=lambda m: m.name
)
def test_steps_back_undo_steps_forward(method):
    system, state = problem("frictionless_ball")
    assert da.analysis.reversibility(system, method, state, step=0.1, steps=20) < 1e-12


@pytest.mark.heavy
def test_a_projected_step_is_not_symmetric():
    system, state = problem("transmission")
    assert da.analysis.reversibility(system, da.integrators.ProjectedRungeKutta(), state, step=0.1, steps=20) > 1e-8


@pytest.mark.heavy
def test_two_stages_of_lobatto_are_the_leapfrog():
    """On R^n with a constant mass the nodes and velocities agree, from the same first multiplier."""
    system, state = problem("contact")
    a, b = (
        da.simulate(system, m, state, step=0.1, steps=50).check() for m in (da.integrators.Lobatto(2), da.Leapfrog())
    )
    np.testing.assert_allclose(a.g, b.g, atol=1e-12)
    np.testing.assert_allclose(a.xi, b.xi, atol=1e-12)


@pytest.mark.heavy
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_lobatto_fails_where_the_motion_contracts_phase_volume(stages):
    """As the leapfrog does: the error of the multiplier that it carries grows as volume shrinks; Gauss has none to
    carry.
    """
    system, state = case("suslov")
    energy = float(system.energy(0.0, state.g, state.xi))
    run = da.simulate(
        system, da.integrators.Lobatto(stages), state, step=0.05, steps=8000, monitor=True, save_every=100
    )
    assert run.status != "ok" or float(run.final.peaks.energy_error) > 0.3 * energy
    good = da.simulate(system, da.Gauss(2), state, step=0.05, steps=8000, monitor=True, save_every=100).check()
    assert float(good.final.peaks.energy_error) < 1e-12 * energy


# -- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stages", [0, 5, True, 2.5])
def test_other_stages_are_refused(stages):
    for method in (da.Gauss, da.integrators.Lobatto):
        with pytest.raises(da.InvalidInput, match="allowed: "):
            method(stages)


def test_lobatto_needs_a_quadratic_lagrangian_and_says_so():
    system, state = case("quartic")
    with pytest.raises(da.InvalidInput, match="quadratic in xi"):
        da.simulate(system, da.integrators.Lobatto(), state, step=0.1, steps=1)
