"""What keeps large systems short: frames by loops, and multipliers whose columns need no derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dalembert as da
from dalembert import integrators
from dalembert.kernels import evaluate
from dalembert.mechanics import distribution
from dalembert.numerics import find_root


def make_chain(links, gravity=9.81):
    """Points on bars of length 1; the masses depend on the place, so that the metric is no constant."""

    def lengths(t, q, p):
        places = jnp.concatenate([jnp.zeros((1, 2)), q.reshape(links, 2)])
        return jnp.sum((places[1:] - places[:-1]) ** 2, axis=1) - 1.0

    def lagrangian(t, q, v, p):
        return 0.5 * jnp.sum((1.0 + 0.1 * jnp.sin(q)) * v * v) + 0.02 * (v @ jnp.cos(q)) ** 2 - p * jnp.sum(q[1::2])

    return da.System(da.Euclidean(2 * links), lagrangian, holonomic=lengths, parameters=gravity)


def bent(links):
    """Bars at different angles, at rest."""
    angles = 0.3 * np.arange(links)
    return np.cumsum(np.stack([np.cos(angles), np.sin(angles)], 1), axis=0).ravel(), np.zeros(2 * links)


def frames_of(system, point):
    """(a frame to begin with, one near it and its derivative)."""
    g, near, way = point
    reference = distribution.initial_frame(system, 0.0, g)
    along = lambda q: distribution.orthonormal_frame.__wrapped__(system, 0.0, q, reference)
    return reference, *jax.jvp(along, (near,), (way,))


def test_a_large_frame_is_the_one_written_out(monkeypatch):
    """By loops: orthonormal, on the constraint, and with the derivative of the frame without loops."""
    system, (g, _) = make_chain(3), bent(3)
    rng = np.random.default_rng(0)
    near, way = g + 0.05 * rng.normal(size=6), rng.normal(size=6)
    written = evaluate(frames_of, system, (g, near, way), backend="llvm")
    monkeypatch.setattr(distribution, "MAX_WRITTEN_VECTORS", 2)
    distribution.orthonormal_frame.clear_cache()  # not jax.clear_caches(): what other tests compiled stays
    looped = evaluate(lambda *given: frames_of(*given), system, (g, near, way), backend="llvm")
    for expected, found in zip(written, looped, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)
    frame, metric, rows = looped[1], np.asarray(system.metric(0.0, near, np.zeros(6))), np.asarray(system.A(0.0, near))
    np.testing.assert_allclose(frame.T @ metric @ frame, np.eye(3), atol=1e-14)
    np.testing.assert_allclose(rows @ frame, 0.0, atol=1e-14)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_frame_has_the_derivatives_of_what_it_is(count):
    """Of Y (Y^T M Y)^-1/2 the first by eigenvectors, and the second by differences."""
    rng, n = np.random.default_rng(count), count + 2
    (a, b), (c, d) = 0.1 * rng.normal(size=(2, n, n)), 0.1 * rng.normal(size=(2, n, count))

    def frame(s, t, orthonormalise):
        metric = jnp.eye(n) + s * (a + a.T) + s * t * (b + b.T)
        return orthonormalise(metric, np.eye(n)[:, :count] + 0.3 * (c + s * d + t * t * c))

    def by_eigenvectors(metric, vectors):
        values, turn = jnp.linalg.eigh(vectors.T @ metric @ vectors)
        return vectors @ (turn / jnp.sqrt(values)) @ turn.T

    found, exact = (
        partial(frame, orthonormalise=each)
        for each in (lambda *given: distribution._orthonormalise_nearest(*given)[0], by_eigenvectors)
    )
    along = lambda f, s, t: jax.jvp(f, (s, t), (1.0, 0.5))
    for one, other in zip(along(found, 0.3, 0.4), along(exact, 0.3, 0.4), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
    slope = lambda s, t: along(found, s, t)[1]
    rises = [slope(0.3 + j * 1e-3, 0.4) for j in (-2, -1, 1, 2)]
    expected = (rises[0] - 8 * rises[1] + 8 * rises[2] - rises[3]) / 12e-3
    np.testing.assert_allclose(jax.jacfwd(slope)(0.3, 0.4), expected, rtol=1e-8, atol=1e-9)
    pulled = jax.grad(lambda s, t: jnp.sum(found(s, t) * jnp.cos(found(s, t))), (0, 1))(0.3, 0.4)
    pushed = along(lambda s, t: jnp.sum(found(s, t) * jnp.cos(found(s, t))), 0.3, 0.4)[1]
    np.testing.assert_allclose(pulled[0] + 0.5 * pulled[1], pushed, rtol=1e-12)


@pytest.mark.heavy
def test_known_columns_of_multipliers_may_depend_on_what_is_differentiated():
    """x^3 + a l = 2, a x = 3: the coupling (a, 0) closes over a, of which the root has a derivative."""

    def root(a):
        equations = lambda x: jnp.stack([x[0] ** 3 + a * x[1] - 2.0, a * x[0] - 3.0])
        coupling = lambda x: jnp.stack([a, 0.0 * a])[:, None]
        return find_root(equations, jnp.array([1.4, 0.0]), split=1, coupling=coupling).x

    a = 2.0
    expected = [3.0 / a, (2.0 - 27.0 / a**3) / a]
    np.testing.assert_allclose(root(a), expected, rtol=1e-14)
    np.testing.assert_allclose(jax.jacfwd(root)(a), [-3.0 / a**2, -2.0 / a**2 + 108.0 / a**5], rtol=1e-13)


LARGE = {
    "lagrange-dalembert": integrators.LagrangeDAlembert(),
    "dormand-prince": da.DormandPrince(),
    "gauss": integrators.Gauss(2),
    "discrete-gradient": integrators.DiscreteGradient(),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", LARGE)
def test_ten_pendulums_run_natively(name):
    system, (q, v) = make_chain(10), bent(10)
    run = da.simulate(system, LARGE[name], system.state(q, v), step=0.002, steps=20, backend="llvm").check()
    exact = da.simulate(system, da.RungeKutta(), system.state(q, v), step=0.002, steps=20, backend="llvm").check()
    np.testing.assert_allclose(run.g[-1], exact.g[-1], atol=2e-5)
