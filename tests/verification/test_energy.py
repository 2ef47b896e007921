"""Discrete gradients on D: order 2, symmetric, D and the energy to round-off, for 10^6 steps too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import CAYLEY, EXPONENTIAL, case, gap

import dalembert as da
from dalembert.integrators.discrete_gradient import GRADIENTS

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
    """Order 2 against the run of a quarter of the step; D and, but for the quadrature of "average", the energy to round-off."""
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


SYSTEMS = (
    "particle",
    "transmission",
    "chaos",
    "magnetic",
    "sleigh",
    "knife_edge",
    "heavy_suslov",
    "heavy_top",
    "suslov_4",
)


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
@pytest.mark.parametrize("key", ["chaos", "sleigh", "suslov", "transmission"])
def test_the_energy_after_a_million_steps(key, kind):
    system, state = problem(key)
    run = da.simulate(
        system, da.DiscreteGradient(kind), state, step=0.05, steps=10**6, save_every=1000, monitor=True
    ).check()
    energy = abs(float(system.energy(0.0, state.g, state.xi)))
    # the pendulum of the transmission turns: its angle grows to 1e5, and the round-off of the angle with it
    assert float(run.final.peaks.energy_error) < (1e-8 if key == "transmission" else 5e-12) * energy
    assert off(run) < 1e-13


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
        errors.append(np.abs(da.diagnostics.energy_balance(run)).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.2)


@pytest.mark.heavy
def test_a_body_at_rest_in_equilibrium_stays():
    system = da.models.nonholonomic_particle("harmonic")
    run = da.simulate(system, da.DiscreteGradient(), system.state([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]), step=0.1, steps=10)
    assert run.check().status == "ok" and float(np.abs(run.g).max()) == 0.0


def test_what_has_no_energy_to_keep_is_refused():
    for key, reason in (("driven", "depends on time"), ("quartic", "quadratic in xi")):
        system, state = case(key)
        with pytest.raises(da.InvalidInput, match=reason):
            da.simulate(system, da.DiscreteGradient(), state, step=0.1, steps=1)
    with pytest.raises(da.UnknownName, match="gonzalez"):
        da.DiscreteGradient("midpoint")
