"""LR systems: Veselova's body and Chaplygin's ball as discrete systems, with their integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import CAYLEY, FULL, flow, gap

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.numerics import slopes

PLACE = [0.3, -0.5, 0.2]


@pytest.fixture(scope="module")
def veselova():
    system = da.models.veselova(FULL, normal=[0.2, -0.1, 1.0])
    g = system.group.exp(jnp.array(PLACE))
    return system, system.state(g, momentum=[2.0, -1.5])


@pytest.fixture(scope="module")
def sphere():
    system = da.models.chaplygin_sphere([0.3, 0.4, 0.55], 1.1, 0.6)
    g = system.group.exp(jnp.array([*PLACE, 0.4, -0.1]))
    return system, system.state(g, momentum=[0.5, -0.3, 0.4])


def kept(system, run):
    """How far the components on d of the momentum seen from space move."""
    values = jax.jit(jax.vmap(lambda g, mu: da.models.conserved_momentum(system, g, mu)))(run.g, run.momentum)
    return float(np.abs(values - values[0]).max())


def test_restricted_momenta_are_the_conserved_ones(veselova):
    system, state = veselova
    np.testing.assert_allclose(da.models.conserved_momentum(system, state.g, state.momentum), [2.0, -1.5], atol=1e-14)
    assert np.abs(system.annihilator @ system.group.Ad(state.g, state.xi)).max() < 1e-14


@pytest.mark.heavy
def test_veselova(veselova):
    """The discrete LR form is Lagrange-d'Alembert with its pair; the momentum across the normal is exact, the energy
    bounded.
    """
    system, state = veselova
    method = da.integrators.DiscreteLR()
    run = da.simulate(system, method, state, step=0.05, steps=2000).check()
    assert run.backend == "llvm"
    assert kept(system, run) < 1e-14
    assert run.constraint_residual().max() < 1e-14 and run.group_distance().max() < 1e-14
    error = np.abs(run.energy_error())
    assert 1e-6 < error[:1000].max() <= error.max() < 1.1 * error[:1000].max() < 1e-3
    same = flow(da.LagrangeDAlembert(pair=method.pair(system)), system, state, 0.05, 20)
    assert gap(jax.tree.map(lambda leaf: leaf[20], run.records.state), same) < 1e-12


@pytest.mark.heavy
def test_the_general_integrator_keeps_the_integrals_too(veselova):
    """Lagrange-d'Alembert with the g-dependent constraint: the symmetries of L that lie in D give the same exact
    momenta.
    """
    system, state = veselova
    run = da.simulate(system, da.LagrangeDAlembert(CAYLEY, 0.5), state, step=0.05, steps=200).check()
    assert kept(system, run) < 1e-13


def test_chaplygins_ball(sphere):
    """K about the point of contact is exact, in all three components; the energy is not, but bounded."""
    system, state = sphere
    run = da.simulate(system, da.integrators.DiscreteLR(), state, step=0.1, steps=2000).check()
    assert run.backend == "llvm" and kept(system, run) < 2e-15
    error = np.abs(run.energy_error())
    assert 1e-6 < error[:1000].max() <= error.max() < 1.1 * error[:1000].max() < 1e-3
    ball = da.models.chaplygin_ball(1.1, [0.3, 0.4, 0.55], 0.6)
    np.testing.assert_allclose(ball.A(0.0, state.g), system.A(0.0, state.g), atol=1e-15)
    assert float(ball.L(0.0, state.g, state.xi)) == pytest.approx(float(system.L(0.0, state.g, state.xi)), rel=1e-14)


def test_a_left_invariant_system_is_refused():
    system = da.models.suslov(FULL)
    with pytest.raises(InvalidInput, match="needs an LRSystem"):
        da.simulate(system, da.integrators.DiscreteLR(), system.state(momentum=[1.0, 0.0]), step=0.1, steps=1)
    with pytest.raises(InvalidInput, match="three finite numbers"):
        da.models.veselova(FULL, normal=[0.0, 0.0, 0.0])
    with pytest.raises(InvalidInput, match="positive"):
        da.models.chaplygin_sphere(FULL, mass=-1.0)


# -- heavy ------------------------------------------------------------------------------------------------------------
@pytest.mark.heavy
@pytest.mark.parametrize("name", ["veselova", "sphere"])
@pytest.mark.parametrize(
    "method",
    [
        da.integrators.DiscreteLR(),
        da.integrators.DiscreteLR("retraction"),
        da.integrators.DiscreteLR("retraction", da.Exponential()),
    ],
)
def test_order_2(name, method, request):
    system, state = request.getfixturevalue(name)
    exact = da.simulate(system, da.integrators.Reference(), state, step=1.0, steps=1).last
    errors = [gap(flow(method, system, state, 1 / n, n), exact) for n in (40, 80)]
    assert slopes((1 / 40, 1 / 80), errors)[0] == pytest.approx(2, abs=0.1)


@pytest.mark.heavy
def test_the_ball_with_the_skew_part_of_its_rotation(sphere):
    """dr = r (skew part of the rotation seen from space) x e3: K exact as well, the energy error smaller, order 2."""
    system, state = sphere
    method = da.LagrangeDAlembert(pair=da.mechanics.chord_pair(system, da.mechanics.moser_veselov))
    runs = {
        m: da.simulate(system, m, state, step=0.1, steps=2000).check() for m in (method, da.integrators.DiscreteLR())
    }
    assert kept(system, runs[method]) < 1e-11
    assert (
        np.abs(runs[method].energy_error()).max() < 0.2 * np.abs(runs[da.integrators.DiscreteLR()].energy_error()).max()
    )
    exact = da.simulate(system, da.integrators.Reference(), state, step=1.0, steps=1).last
    errors = [gap(flow(method, system, state, 1 / n, n), exact) for n in (40, 80)]
    assert slopes((1 / 40, 1 / 80), errors)[0] == pytest.approx(2, abs=0.1)
