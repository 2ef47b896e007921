"""A discrete map is the period map of a periodic perturbation of the motion (Proposition 4.1 of jimenez-scheurle)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rn
from rn import largest, velocity_form

import dalembert as da
from dalembert.papers.jimenez_scheurle import chi0, chi1, chi1_slope, embed, tangent_part

EPS = 0.1
# REFERENCE.md: g(1/2) in (x, z, vx) for eps = 0.1 and in the limit, beta = 1/2
G_HALF = [-0.0225908338301893, -0.0677061837904998, -0.0379154629226799]
G_LIMIT = [-0.0225775792037986, -0.0677327376113959, -0.0379303330623817]


def coefficients(beta, y, u, w):
    """The local error coefficients (x, z, vx) of REFERENCE.md."""
    r = 1 + y * y
    if beta == 0.5:
        return np.array(
            [u * w**2 * (2 * y * y - 1) / (12 * r**2), -u * w**2 * y / (4 * r**2), -u * w**3 * y / (4 * r**3)]
        )
    return (1 - 2 * beta) * np.array([u * w * y / (2 * r), -u * w / (2 * r), -u * w**2 / (2 * r**2)])


@pytest.fixture(scope="module")
def particle():
    system, state = rn.particle()
    embedding = embed(system, velocity_form(0.5), state, step=EPS)
    return embedding, embedding.chart.coordinates(state.g, state.xi)


def test_cut_off():
    """(30), and its derivative; every derivative vanishes at both ends."""
    tau = jnp.array([-1.0, 0.0, 1e-9, 0.25, 0.5, 0.9, 1.0, 2.0])
    start, end, slope, expected = jax.jit(jax.vmap(lambda t: (chi0(t), chi1(t), chi1_slope(t), jax.grad(chi1)(t))))(tau)
    np.testing.assert_allclose(start + end, 1.0, atol=1e-16)
    np.testing.assert_allclose(np.asarray(start)[[0, 1, 2, 4, 6, 7]], [1, 1, 1, 0.5, 0, 0], atol=1e-15)
    np.testing.assert_allclose(slope[1:-1], expected[1:-1], atol=1e-13)
    np.testing.assert_allclose(np.asarray(slope)[[0, 1, -2, -1]], 0.0, atol=1e-15)
    assert float(chi1_slope(0.5)) == pytest.approx(np.pi / 2)


def test_interpolation_stays_in_D(particle):
    """Definition 3.1 and Proposition 3.1: a curve in D between any two points of D."""
    embedding, _ = particle
    system, first = rn.particle()
    last = system.state([1.3, -0.4, 0.8], [0.2, 1.1, -0.08])
    z1, z2 = (embedding.chart.coordinates(state.g, state.xi) for state in (first, last))
    between = lambda tau: embedding.chart.lift(chi0(tau) * z1 + chi1(tau) * z2)
    points = jax.jit(jax.vmap(between))(jnp.linspace(0, 1, 9))
    assert largest(jax.vmap(lambda q, v: system.residual(0.0, q, v))(*points)) < 1e-15
    np.testing.assert_allclose([points[0][0], points[1][0]], [first.g, first.xi], atol=1e-15)
    np.testing.assert_allclose([points[0][-1], points[1][-1]], [last.g, last.xi], atol=1e-15)


def test_perturbation_of_the_particle(particle):
    """g at eps = 0.1 and its limit chi1'(tau) c(z), to the digits of REFERENCE.md; g is periodic in tau."""
    embedding, z = particle
    assert embedding.order == 2
    parts = np.array([0, 2, 3])
    found = np.asarray(embedding.g(0.5, z))
    np.testing.assert_allclose(found[parts], G_HALF, rtol=1e-9)
    np.testing.assert_allclose(embedding.leading(z)[parts], coefficients(0.5, 0.5, 1.1, 0.7), rtol=1e-8)
    np.testing.assert_allclose(embedding.limit(0.5, z)[parts], G_LIMIT, rtol=1e-8)
    np.testing.assert_allclose(embedding.g(3.5, z), found, atol=1e-12)
    for tau in (0.5, 0.2):
        gaps = [largest(embedding.at(eps).g(tau, z) - embedding.limit(tau, z)) for eps in (0.1, 0.05)]
        assert gaps[1] < 0.6 * gaps[0] < 0.02, gaps


@pytest.mark.heavy
def test_period_map_of_the_particle(particle):
    """(38), (45) over a period is one step, and the curve (39) solves it; also (50) on D and the corrected (55)."""
    embedding, z = particle
    step = np.asarray(embedding.map(z))
    assert largest(step - embedding.flow(EPS, z)) > 1e-5
    np.testing.assert_allclose(embedding.period_map(z), step, atol=1e-11)
    np.testing.assert_allclose(embedding.curve(1.0, z), step, atol=1e-15)
    middle = np.asarray(embedding.curve(0.6, z))
    slope = (np.asarray(embedding.curve(0.6 + 1e-5, z)) - np.asarray(embedding.curve(0.6 - 1e-5, z))) / (2e-5 * EPS)
    np.testing.assert_allclose(embedding.field(0.6 * EPS, middle), slope, atol=1e-8)
    lift = jax.jit(embedding.chart.lift)
    x, end = (np.concatenate(lift(point)) for point in (z, step))
    np.testing.assert_allclose(embedding.integrate(embedding.field_on_D, x), end, atol=1e-11)


def test_corrected_55(particle):
    """A part of the perturbation along the reaction is taken up by the multipliers, (1 - P) g_v; as printed g_v would
    drop out.
    """
    embedding, z = particle
    chart, (_, y, _, u, w) = embedding.chart, np.asarray(z)
    x, reaction = np.array([0.3, y, -0.2, u, w, y * u]), np.array([-y, 0.0, 1.0])  # m = 1
    tangent, kept = jax.jit(_tangent_and_kept(chart))(z, jnp.asarray(x), np.concatenate([np.zeros(3), 0.8 * reaction]))
    np.testing.assert_allclose(kept, tangent, atol=1e-14)
    printed = np.concatenate([tangent[:3], reaction * tangent[1] * u / (reaction @ reaction)])
    assert largest(printed - tangent) > 0.1
    pushed = embedding.field_on_D(0.03, x, lambda x: 0.8 * np.concatenate([np.zeros(3), reaction]))
    np.testing.assert_allclose(pushed, embedding.field_on_D(0.03, x), atol=1e-13)


def _tangent_and_kept(chart):
    """A tangent vector of D at x, and what is left of it after a push along the reaction."""

    def both(z, x, push):
        tangent = chart.slope(z) @ jnp.array([0.3, -0.2, 0.5, 0.7, 0.4])
        return tangent, tangent_part(chart.system, x, tangent + push)

    return both


@pytest.mark.heavy
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_particle_at_other_nodes(beta):
    system, state = rn.particle()
    embedding = embed(system, velocity_form(beta), state, step=EPS)
    z = embedding.chart.coordinates(state.g, state.xi)
    assert embedding.order == 1
    np.testing.assert_allclose(embedding.leading(z)[np.array([0, 2, 3])], coefficients(beta, 0.5, 1.1, 0.7), rtol=1e-8)
    np.testing.assert_allclose(embedding.period_map(z), embedding.map(z), atol=1e-11)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name, node, nodes", [("followers", 0.5, "velocity"), ("curved", 0.3, "velocity"), ("cvt", 0.5, "original")]
)
def test_period_map_of_other_systems(name, node, nodes):
    """M(q), two constraints, other nodes: the map is recovered, and g tends to chi1'(tau) c(z)."""
    system, state = rn.SYSTEMS[name]()
    embedding = embed(system, velocity_form(node, nodes), state, step=EPS)
    z = embedding.chart.coordinates(state.g, state.xi)
    assert embedding.order == (2 if node == 0.5 else 1)
    np.testing.assert_allclose(embedding.period_map(z), embedding.map(z), atol=1e-11)
    x, end = (np.concatenate(embedding.chart.lift(point)) for point in (z, embedding.map(z)))
    np.testing.assert_allclose(embedding.integrate(embedding.field_on_D, x), end, atol=1e-11)
    limit = embedding.limit(0.3, z)
    gaps = [largest(embedding.at(eps).g(0.3, z) - limit) for eps in (0.04, 0.02, 0.01)]
    assert gaps[2] < 0.55 * gaps[1] < 0.3 * gaps[0], gaps
    assert gaps[2] < 0.1 * largest(limit), gaps


@pytest.mark.heavy
def test_embedding_on_the_deformed_constraint():
    """(89) on D_eps is the period map of a perturbation of the motion (94) on D_eps, with p = 1 (Remark 6.1)."""
    system, state = rn.particle()
    method = velocity_form(0.5, "deformed")
    v = jnp.array([1.1, 0.7, 1.1 * (0.5 - EPS / 2 * 0.7)])
    state = state._replace(xi=v, momentum=v, increment=v)
    embedding = embed(system, method, state, step=EPS)
    assert embedding.order == 1
    z = embedding.chart.coordinates(state.g, state.xi)
    run = da.simulate(system, method, state, step=EPS, steps=1).check()
    np.testing.assert_allclose(embedding.map(z), embedding.chart.coordinates(run.g[1], run.xi[1]), atol=1e-15)
    np.testing.assert_allclose(embedding.period_map(z), embedding.map(z), atol=1e-11)
    x, end = (np.concatenate(embedding.chart.lift(point)) for point in (z, embedding.map(z)))
    found = embedding.integrate(embedding.field_on_D, x)
    np.testing.assert_allclose(found, end, atol=1e-11)
    assert largest(embedding.chart.system.residual(0.0, jnp.asarray(found[:3]), jnp.asarray(found[3:]))) < 1e-12
    gaps = [largest(embedding.at(eps).g(0.3, z) - embedding.limit(0.3, z)) for eps in (0.04, 0.02)]
    assert gaps[1] < 0.6 * gaps[0], gaps
