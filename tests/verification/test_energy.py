"""Discrete gradients on D: order 2, symmetric, D and the energy to round-off, for 10^6 steps too."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import CAYLEY, EXPONENTIAL, case, gap

import dalembert as da
from dalembert.integrators import Prediction
from dalembert.integrators.base import PREDICTION_DEGREE
from dalembert.integrators.discrete_gradient import GRADIENTS
from dalembert.numerics import find_fixed_point

T = 1.6
KINDS = tuple(GRADIENTS)


def transmission(epsilon=0.3):
    system = da.models.pendulum_cvt(epsilon)
    return system, system.state([1.0, 0.0, 0.0], [0.3, 0.0, 2.0])


def chaos(n=3):
    return da.models.chaotic_quartic(n), da.models.quartic_state(0.7, n)


def magnetic():
    """A charged particle: L has a part linear in v; the magnetic force does no work."""

    def lagrangian(t, q, v, p):
        return (
            0.5 * v @ v * (1 + 0.2 * q[0] ** 2) + 0.7 * (q[0] * v[1] - q[1] ** 2 * v[0]) - 0.5 * q @ q - 0.2 * q[0] ** 3
        )

    def constraint(t, q, p):
        return jnp.stack([-q[1], jnp.zeros_like(q[1]), jnp.ones_like(q[1])])[None]

    system = da.System(da.Euclidean(3), lagrangian, constraint)
    q = jnp.array([0.3, 0.5, -0.2])
    return system, system.state(q, system.project(q, [0.9, -0.7, 0.4]))


OWN = {"transmission": transmission, "chaos": chaos, "magnetic": magnetic}


def problem(key):
    return OWN[key]() if key in OWN else case(key)


def off(run) -> float:
    return float(np.abs(jax.vmap(run.system.residual)(run.t, run.g, run.xi)).max(initial=0.0))


def check(kind, key, retraction=CAYLEY):
    """Order 2 against the run of a quarter of the step; D and, but for the quadrature of "average", the energy to
    round-off.
    """
    system, state = problem(key)
    method = da.DiscreteGradient(kind, retraction)
    runs = [da.simulate(system, method, state, step=T / n, steps=n, save_every=n // 16).check() for n in (32, 64, 256)]
    first, second = (gap(run.last, runs[-1].last) for run in runs[:2])
    assert np.log2(first / second) == pytest.approx(np.log2((1 - 1 / 64) / (1 / 4 - 1 / 64)), abs=0.15)
    scale = 1.0 + np.abs(float(system.energy(0.0, state.g, state.xi)))
    assert max(np.abs(np.asarray(run.energy_error())).max() for run in runs) < scale * (
        1e-11 if kind == "average" else 2e-14
    )
    assert max(map(off, runs)) < 4e-15


SYSTEMS = ("transmission", "chaos", "magnetic", "knife_edge", "heavy_suslov", "suslov_4")
"""The claims machine measures the same on its panel: particle, sleigh and heavy top."""


@pytest.mark.parametrize("kind, key", [("gonzalez", "transmission")])
def test_order_energy_and_constraint(kind, key):
    check(kind, key)


@pytest.mark.heavy
@pytest.mark.parametrize("key", SYSTEMS)
@pytest.mark.parametrize("kind", KINDS)
def test_order_energy_and_constraint_on_every_system(kind, key):
    check(kind, key)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_the_exponential_does_as_well(kind):
    check(kind, "heavy_suslov", EXPONENTIAL)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_the_energy_after_a_million_steps(kind):
    """To round-off; the claims machine measures it with every method that claims it, on a chaotic system too, and
    `test_roundoff` where there is no potential, so that all kinds are one.
    """
    system, state = problem("transmission")
    run = da.simulate(
        system, da.DiscreteGradient(kind), state, step=0.05, steps=10**6, save_every=1000, monitor=True
    ).check()
    energy = abs(float(system.energy(0.0, state.g, state.xi)))
    # the pendulum of the transmission turns: its angle grows to 1e5, and the round-off of the angle with it
    assert float(run.final.peaks.energy_error) < 1e-8 * energy
    assert off(run) < 1e-13


def _exact(*digits):
    return jnp.array([float.fromhex(each) for each in digits])


def test_a_cycle_at_round_off_is_no_lost_branch():
    """Step 456 416 of the transmission by itoh-abe: v_x passes 0, where the quotient of V amplifies its round-off to a
    cycle of two
    velocities 1e-14 apart that closes by 1e-3 of its size a turn. The iteration has found what there is to find, and
    says so."""
    system, state = transmission()
    method = da.DiscreteGradient("itoh-abe")
    run = da.simulate(system, method, state, step=0.05, steps=1)
    turn = _exact("0x1.b7a62d8bfdc5ep-1", "0x0.0p+0", "-0x1.0665da92d8ab4p-1", "0x0.0p+0", "0x0.0p+0", "0x1.0p+0")
    prediction = Prediction(
        _exact("-0x1.e71f0606d4666p-7", "0x1.22bb1810c1319p-7", "0x1.5a37a202674d4p+1"),
        jnp.zeros((PREDICTION_DEGREE, 3))
        .at[0]
        .set(_exact("0x1.ee68b1658668dp-6", "-0x1.726fae12629a0p-6", "0x1.1c327c5c80280p-5"))
        .at[1]
        .set(_exact("0x1.23dcfe728efc4p-8", "0x1.aa84765f79140p-10", "-0x1.abecc60832000p-11")),
        jnp.zeros(()),
        jnp.ones(()),
    )
    carry = run.final.carry._replace(
        t=_exact("0x1.6493p+14")[0],
        g=_exact("-0x1.0684e66952244p+0", "-0x1.91686a29b0442p-3", "0x1.aafb6e5164525p+15"),
        xi=_exact("0x1.f683d98a8fa0fp-10", "-0x1.0ffd3870c7f69p-10", "0x1.5c66a59c711cep+1"),
        square=_exact("0x1.da274f574527bp+2")[0],
        reference=turn.reshape(3, 2),
        prediction=prediction,
    )
    there = replace(run, final=run.final._replace(carry=carry))
    on = da.simulate(system, method, there, step=0.05, steps=3).check()
    assert int(on.iterations[1:].max()) < 40
    assert float(np.abs(on.energy_error()[1:]).max()) < 1e-10  # of an angle of 5e4, whose round-off is 7e-12


def test_an_iteration_that_no_longer_closes_in_has_ended():
    """x -> -0.999 x about 1, from 1e-10 off, ends; from 1e-3 off, where it is only slow, it does not count as
    solved.
    """
    found = {off: find_fixed_point(lambda x: 1.0 - 0.999 * (x - 1.0), jnp.array([1.0 + off])) for off in (1e-10, 1e-3)}
    assert bool(found[1e-10].converged) and not bool(found[1e-3].converged)


@pytest.mark.heavy
def test_polynomial_potentials_are_exact_for_the_average_too():
    """V of degree 4 along a segment, Gauss' rule of 4 points: exact to degree 8."""
    system, state = chaos(2)
    run = da.simulate(system, da.DiscreteGradient("average"), state, step=0.2, steps=200).check()
    assert np.abs(np.asarray(run.energy_error())).max() < 1e-13


@pytest.mark.parametrize("kind", KINDS)
def test_a_discrete_gradient_telescopes(kind):
    """dV . x = V(x/2) - V(-x/2), at a segment of no length the gradient, and zero entries of x do no harm."""

    def potential(s):
        return s[0] ** 3 * s[1] - 2 * s[1] ** 4 + s[0] * s[2] + 3 * s[2]

    metric = jnp.diag(jnp.array([1.0, 2.0, 3.0]))
    for x in ([0.7, -0.4, 1.1], [0.7, 0.0, 0.2], [1e-9, 0.3, -1e-12]):
        x = jnp.asarray(x)
        value = GRADIENTS[kind](potential, x, metric) @ x
        assert float(value - potential(x / 2) + potential(-x / 2)) == pytest.approx(0.0, abs=2e-15)
    still = GRADIENTS[kind](potential, jnp.zeros(3), metric)
    np.testing.assert_allclose(still, jax.grad(potential)(jnp.zeros(3)), atol=1e-15)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["transmission", "heavy_suslov", "knife_edge"])
def test_composed_they_have_order_4_and_still_keep_the_energy(kind, key):
    system, state = problem(key)
    method = da.Composition("suzuki-4", base=da.DiscreteGradient(kind))
    runs = [da.simulate(system, method, state, step=T / n, steps=n, save_every=n // 8).check() for n in (16, 32, 128)]
    first, second = (gap(run.last, runs[-1].last) for run in runs[:2])
    assert np.log2(first / second) == pytest.approx(4.0, abs=0.3)
    assert max(np.abs(np.asarray(run.energy_error())).max() for run in runs) < (1e-11 if kind == "average" else 1e-13)


@pytest.mark.heavy
def test_forces_do_their_work_at_the_middle():
    """With drag the energy falls as the continuous motion says, to second order."""
    system, state = case("ball")
    errors = []
    for n in (32, 64):
        run = da.simulate(system, da.DiscreteGradient(), state, step=T / n, steps=n).check()
        errors.append(np.abs(da.analysis.energy_balance(run)).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.2)


def test_a_body_at_rest_in_equilibrium_stays():
    system = da.models.nonholonomic_particle("harmonic")
    run = da.simulate(system, da.DiscreteGradient(), system.state([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]), step=0.1, steps=10)
    assert run.check().status == "ok" and float(np.abs(run.g).max()) == 0.0


def test_what_has_no_energy_to_keep_is_refused():
    table = da.models.ball_on_table(rotation=1.5)  # b = 0 only at the origin, where this starts
    for (system, state), reason in (
        (case("driven"), "depends on time"),
        (case("quartic"), "quadratic in xi"),
        ((table, table.state(xi=[0.3, 0.5, 0.2, 0.5, -0.3])), "b != 0"),
    ):
        with pytest.raises(da.InvalidInput, match=reason):
            da.simulate(system, da.DiscreteGradient(), state, step=0.1, steps=1)
    with pytest.raises(da.errors.UnknownName, match="gonzalez"):
        da.DiscreteGradient("midpoint")
