"""The framework of retraction-maps 2026: lifted discretisation maps, its integrators, and where the unadapted ones
fail.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import CAYLEY, EXPONENTIAL, FULL, case, distance, flow, gap, sampled

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.integrators import cotangent_lift, tangent_lift
from dalembert.numerics import slopes

LIFTED = [(da.SE2(), EXPONENTIAL)]
MORE = [
    (da.SO3(), CAYLEY),
    (da.SO3(), EXPONENTIAL),
    (da.SE2(), CAYLEY),
    (da.SE3(), CAYLEY),
    (da.groups.SOn(4), CAYLEY),
    (da.SE2() * da.SO2(), EXPONENTIAL),
]
QUICKLY = {"xla_backend_optimization_level": 0}


def data(group, count):
    return np.random.default_rng(3).normal(size=(count, group.dim)) * 0.6


# -- the lifts (8) and (9) --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "group, tau", [*LIFTED, *(pytest.param(*pair, marks=pytest.mark.heavy) for pair in MORE)], ids=str
)
def test_the_lifts_are_the_derivative_of_d_and_its_dual(group, tau):
    """(8) differentiates D along a variation of (g, eta); (9) is dual to it: mu1 . xi1 - mu0 . xi0 = mu' . xi + mu .
    zeta.
    """
    difference = da.mechanics.FiniteDifference(tau, 0.3)

    @partial(jax.jit, compiler_options=QUICKLY)
    def compare(place, xi, eta, zeta, mu, rate):
        g = group.exp(place)

        def ends(
            s,
        ):  # the curve g' = g xi, eta' = zeta + [eta, xi], which the involution makes of (xi', g') = (zeta, eta)
            moved, varied = group.compose(g, group.exp(s * xi)), eta + s * (zeta + group.ad(eta, xi))
            return [group.compose(moved, tau.tau(group, share * varied)) for share in (-0.3, 0.7)]

        values, rates = jax.jvp(ends, (0.0,), (1.0,))
        velocities = [group.velocity(value, moving) for value, moving in zip(values, rates, strict=True)]
        (g0, xi0), (g1, xi1) = tangent_lift(difference, group, g, xi, eta, zeta)
        (h0, mu0), (h1, mu1) = cotangent_lift(difference, group, g, mu, eta, rate)
        pairing = mu1 @ xi1 - mu0 @ xi0 - rate @ xi - mu @ zeta
        return (g0, g1, xi0, xi1), (*values, *velocities), (h0, h1), pairing

    lifted, derived, nodes, pairing = compare(*data(group, 6))
    assert distance(lifted, derived) < 1e-13
    assert distance(lifted[:2], nodes) < 1e-13
    assert abs(float(pairing)) < 1e-12


def test_the_inverse_at_node_0_is_the_printed_one():
    """(16): mu = d^L tau* mu_1, xi = tau^-1(W), and its last slot Ad*_W^-1 mu_1 - mu_0 is mu' - ad*_xi mu, not mu'
    (ERRATA).
    """
    group, tau = da.SO3(), CAYLEY
    place, mu, xi, rate = data(group, 4)

    @partial(jax.jit, compiler_options=QUICKLY)
    def inverse(place, mu, xi, rate):
        (g0, mu0), (g1, mu1) = cotangent_lift(
            da.mechanics.FiniteDifference(tau, 0.0), group, group.exp(place), mu, xi, rate
        )
        W = group.compose(group.inverse(g0), g1)
        slot = group.Ad_star(group.inverse(W), mu1) - mu0
        return tau.left_star(group, xi, mu1), tau.inverse(group, W), slot, rate - group.ad_star(xi, mu)

    first, second, slot, expected = inverse(place, mu, xi, rate)
    np.testing.assert_allclose(first, mu, atol=1e-13)
    np.testing.assert_allclose(second, xi, atol=1e-13)
    np.testing.assert_allclose(slot, expected, atol=1e-13)
    assert np.abs(slot - rate).max() > 0.01


# -- (7) for vector fields --------------------------------------------------------------------------------------------
def _turning(t, g, p):
    """The free rigid body as a field on SO(3): X = I^-1 g^T m with the momentum m seen from space."""
    return jnp.asarray(np.linalg.inv(FULL)) @ (g.T @ p)


@pytest.fixture(scope="module")
def field():
    system = da.mechanics.VectorField(da.SO3(), _turning, jnp.array([1.5, -0.8, 2.0]))
    return system, system.state(da.SO3().exp(jnp.array([0.3, -0.2, 0.5])))


def test_the_framework_runs_any_vector_field(field):
    """(7) is Lagrange-d'Alembert whose constraint xi = X(g) leaves no freedom."""
    system, state = field
    method = da.integrators.RetractionMap(CAYLEY, 0.5)
    run = da.simulate(system, method, state, step=0.1, steps=20).check()
    same = flow(da.LagrangeDAlembert(CAYLEY, 0.5), system, state, 0.1, 20)
    assert gap(run.last, same) < 1e-12
    assert float(run.group_distance().max()) < 1e-14 and float(run.constraint_residual().max()) < 1e-14


@pytest.mark.heavy
@pytest.mark.parametrize("node, order", [(0.0, 1), (0.3, 1), (0.5, 2)])
def test_the_order_of_the_framework(field, node, order):
    system, state = field
    body = da.models.rigid_body(FULL)
    turned = da.simulate(body, da.integrators.Reference(), body.state(state.g, state.xi), step=1.0, steps=1).last.g
    errors = [
        distance(flow(da.integrators.RetractionMap(CAYLEY, node), system, state, 1 / n, n).g, turned) for n in (40, 80)
    ]
    assert slopes((1 / 40, 1 / 80), errors)[0] == pytest.approx(order, abs=0.1)


def test_a_mechanical_system_is_no_vector_field(field):
    system, state = case("suslov")
    with pytest.raises(InvalidInput, match="needs a VectorField"):
        da.simulate(system, da.integrators.RetractionMap(), state, step=0.1, steps=1)


# -- the unadapted integrators ----------------------------------------------------------------------------------------
@pytest.mark.heavy
def test_the_unadapted_integrator_is_variational_without_a_constraint():
    system, state = case("heavy_top")
    assert (
        gap(
            flow(da.integrators.CotangentLift(CAYLEY, 0.5), system, state, 0.1, 10),
            flow(da.LagrangeDAlembert(CAYLEY, 0.5), system, state, 0.1, 10),
        )
        < 1e-12
    )


@pytest.mark.parametrize(
    "lift", [da.integrators.CotangentLift, pytest.param(da.integrators.TangentLift, marks=pytest.mark.heavy)]
)
def test_the_unadapted_integrators_leave_the_constraint(lift):
    """Both lifts on the generic Suslov body: order 2, and off D by about h^2, where the adapted one is on D exactly."""
    system, state = case("suslov")
    exact = da.models.exact_momentum(system.inertia, [3.0, 2.0], 1.0)
    runs = [da.simulate(system, lift(CAYLEY, 0.5), state, step=1 / n, steps=n).check() for n in (20, 40)]
    off = [float(np.abs(run.increment[:, 2]).max()) for run in runs]
    assert off[1] > 1e-5 and slopes((1 / 20, 1 / 40), off)[0] == pytest.approx(2, abs=0.3)
    errors = [np.abs(np.asarray(run.momentum[-1])[:2] - exact[:2]).max() for run in runs]
    assert slopes((1 / 20, 1 / 40), errors)[0] == pytest.approx(2, abs=0.3)
    adapted = da.simulate(system, da.RetractionAdapted(CAYLEY, 0.5), state, step=0.05, steps=20).check()
    assert float(np.abs(adapted.increment[:, 2]).max()) == 0.0


# -- the adapted integrator -------------------------------------------------------------------------------------------
def test_the_adapted_integrator_does_not_see_the_basis():
    """d by any basis: the motion is the same, restricted momenta are components in the basis given."""
    system, state = case("suslov")
    change = np.array([[0.8, -1.3], [0.4, 0.9]])
    other = da.InvariantSystem(system.group, system.inertia, subspace=np.asarray(system.subspace) @ change)
    method = da.RetractionAdapted(CAYLEY, 0.5)
    one, two = (flow(method, each, each.state(state.g, state.xi), 0.05, 20) for each in (system, other))
    assert gap(one, two) < 1e-12
    np.testing.assert_allclose(two.momentum, change.T @ one.momentum, atol=1e-12)


@dataclass(frozen=True)
class OnTheGroup(da.RetractionAdapted):
    """The general equations also where closed forms exist."""

    def _closed(self, system):
        return False


@pytest.mark.parametrize("node", sampled([0.5, 0.0, 1.0]))
def test_the_closed_forms_are_the_general_equations(node):
    system, state = case("heavy_suslov")
    one = flow(da.RetractionAdapted(CAYLEY, node), system, state, 0.05, 10)
    assert gap(one, flow(OnTheGroup(CAYLEY, node), system, state, 0.05, 10)) < 1e-12


# -- heavy: groups, potentials and nodes ------------------------------------------------------------------------------
def _spring(t, g, p):
    return 0.5 * p * jnp.sum(jnp.square(g[:3, 3])) + 0.3 * g[2, 0]


def _wells(t, g, p):
    return p * (g[0][0, 2] + 0.4 * jnp.cos(2 * g[1][0])) + 0.2 * g[0][1, 1]


def body_se3():
    """A rigid body in space with a blade: v3 = 0 and w1 = w2, under a spring."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(6, 6))
    rows = [[0, 0, 0, 0, 0, 1.0], [1.0, -1.0, 0, 0, 0, 0]]
    system = da.InvariantSystem(
        da.SE3(), np.eye(6) + 0.1 * root @ root.T, annihilator=rows, potential=_spring, parameters=jnp.array(0.7)
    )
    return system, system.state(momentum=[0.5, -0.3, 0.4, 0.2])


def product():
    """SE(2) x R: a sleigh coupled to a mass, with a potential of both."""
    inertia = np.diag([1.2, 1.0, 1.0, 0.8]) + 0.1
    system = da.InvariantSystem(
        da.SE2() * da.Euclidean(1),
        inertia,
        subspace=[[1, 0], [0.3, 1], [0, 0], [0.5, -1]],
        potential=_wells,
        parameters=jnp.array(0.9),
    )
    return system, system.state(momentum=[0.7, -0.4])


def _moving(t, g, p):
    return p * (g[0, 1] + 0.5 * g[2, 3])


def suslov_4():
    system, _ = case("suslov_4")
    heavy = da.InvariantSystem(
        system.group, system.inertia, annihilator=system.annihilator, potential=_moving, parameters=jnp.array(0.6)
    )
    return heavy, heavy.state(momentum=[0.5, -0.3, 0.4])


@pytest.mark.parametrize("make", sampled([product, body_se3, suslov_4]))
@pytest.mark.parametrize("node, order", sampled([(0.5, 2), (0.0, 1), (0.3, 1), (1.0, 1)]))
def test_orders_with_potentials_on_other_groups(make, node, order):
    system, state = make()
    exact = da.simulate(system, da.integrators.Reference(), state, step=1.0, steps=1).last
    errors = [gap(flow(da.RetractionAdapted(CAYLEY, node), system, state, 1 / n, n), exact) for n in (40, 80)]
    assert slopes((1 / 40, 1 / 80), errors)[0] == pytest.approx(order, abs=0.15)


@pytest.mark.heavy
@pytest.mark.parametrize("make", [body_se3, product])
def test_the_exponential_on_other_groups(make):
    system, state = make()
    exact = da.simulate(system, da.integrators.Reference(), state, step=1.0, steps=1).last
    errors = [gap(flow(da.RetractionAdapted(EXPONENTIAL, 0.5), system, state, 1 / n, n), exact) for n in (20, 40)]
    assert slopes((1 / 20, 1 / 40), errors)[0] == pytest.approx(2, abs=0.15)
