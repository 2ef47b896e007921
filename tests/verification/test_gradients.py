"""Gradients of a final state through `simulate(backend="xla")`, against central differences of native runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import GENERIC, case

import dalembert as da

STEPS = 4
NORMAL = np.cos(np.arange(9.0)).reshape(3, 3)
SYMMETRIC = jnp.asarray(NORMAL + NORMAL.T)


def suslov_end(x, method, backend="xla"):
    """A number that the final attitude and velocity decide, as a function of (inertia, momentum, step) parameters."""
    tensor, momentum, step = x
    system = da.models.suslov(jnp.asarray(GENERIC) + tensor * SYMMETRIC)
    state = system.state(momentum=momentum)
    run = da.simulate(system, method, state, step=step, steps=STEPS, save_every=STEPS, backend=backend)
    return jnp.sum(jnp.sin(run.last.g) * jnp.arange(9.0).reshape(3, 3)) + run.last.xi @ jnp.array([1.0, -2.0, 0.5])


def differences(function, x, e=1e-5):
    """Central differences of fourth order, leaf by leaf."""
    flat, restore = jax.flatten_util.ravel_pytree(x)

    def at(i, s):
        return float(function(restore(flat.at[i].add(s * e))))

    return np.array([(8 * (at(i, 1) - at(i, -1)) - (at(i, 2) - at(i, -2))) / (12 * e) for i in range(flat.size)])


START = (jnp.array(0.05), jnp.array([3.0, 2.0]), jnp.array(0.2))
METHODS = [
    da.EulerPoincareSuslov("moser-veselov"),
    pytest.param(da.LagrangeDAlembert(da.Cayley(), 0.5), marks=pytest.mark.heavy),  # fast below: another system
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_reverse_mode_in_inertia_momentum_and_step(method):
    gradient, _ = jax.flatten_util.ravel_pytree(jax.jit(jax.grad(lambda x: suslov_end(x, method)))(START))
    expected = differences(lambda x: suslov_end(x, method, "llvm"), START)
    np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-8)
    assert np.abs(expected).min() > 1e-3


def test_forward_mode_agrees_and_does_not_depend_on_the_backend_that_ran():
    method = da.LagrangeDAlembert(da.Cayley(), 0.5)
    direction = (jnp.array(0.3), jnp.array([1.0, -0.5]), jnp.array(0.1))
    value, slope = jax.jit(lambda x: jax.jvp(lambda y: suslov_end(y, method), (x,), (direction,)))(START)

    def along(s):
        return suslov_end(jax.tree.map(lambda a, d: a + s * d, START, direction), method, "auto")

    e = 1e-4
    expected = (8 * (along(e) - along(-e)) - (along(2 * e) - along(-2 * e))) / (12 * e)
    np.testing.assert_allclose(value, along(0.0), rtol=1e-13)
    np.testing.assert_allclose(slope, expected, rtol=1e-7)


@pytest.mark.heavy
def test_a_g_dependent_constraint_and_batched_gradients():
    """vmap(grad) in the initial position and velocity of a particle, projected onto D on the way."""
    system, state = case("particle")
    method = da.LagrangeDAlembert(node=0.5, nodes="velocity")

    def end(x):
        q, v = x[:3], system.project(x[:3], x[3:])
        begin = da.State(jnp.zeros(()), q, v, v, v)
        run = da.simulate(system, method, begin, step=0.2, steps=STEPS, save_every=STEPS, backend="xla")
        return jnp.sum(run.last.g * jnp.array([1.0, -1.0, 2.0])) + run.last.xi[0] ** 2

    points = jnp.stack([jnp.concatenate([state.g, state.xi]), jnp.array([0.1, -0.4, 0.2, 0.5, 0.9, -0.3])])
    gradients = jax.jit(jax.vmap(jax.grad(end)))(points)
    plain = jax.jit(end)
    for point, gradient in zip(points, gradients, strict=True):
        np.testing.assert_allclose(gradient, differences(plain, point), rtol=1e-7, atol=1e-8)
    assert np.abs(gradients[0] - gradients[1]).max() > 1e-2
