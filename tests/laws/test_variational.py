"""Trajectories are critical points of the action sum under constrained variations (Theorem 3.2 of fedorov-zenkov)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import CAYLEY, EXPONENTIAL, case, more, sampled

import dalembert as da

H, STEPS = 0.1, 8


def _inner_and_velocity(group, retraction, s, g0, g1):
    """(g~, xi) with g~ = g0 tau(s xi) and g1 = g~ tau((1-s) xi), in closed form for s = 0, 1/2, 1."""
    step = group.compose(group.inverse(g0), g1)
    halfway = group.exp(0.5 * group.log(step))
    xi = 2 * retraction.inverse(group, halfway) if s == 0.5 else retraction.inverse(group, step)
    return group.compose(g0, retraction.tau(group, s * xi)), xi / H


def _action(system, retraction, s, t, path):
    """Sum of h L(g~, xi), plus the work h <F, eta~> of the forces as a function with the right differential."""
    group = system.group

    def one(t, g0, g1):
        inner, v = _inner_and_velocity(group, retraction, s, g0, g1)
        fixed, held = jax.lax.stop_gradient((inner, v))
        moved = group.log(group.compose(group.inverse(fixed), inner))
        return H * (system.L(t + s * H, inner, v) + system.F(t + s * H, fixed, held, None) @ moved)

    first, last = jax.tree.map(lambda leaf: leaf[:-1], path), jax.tree.map(lambda leaf: leaf[1:], path)
    return jnp.sum(jax.vmap(one)(t[:-1], first, last))


def _slope(group, action, path, points):
    """The left-trivialised derivative of the action at each point of the path, shape (points, n)."""

    def varied(eta):
        return action(jax.vmap(lambda g, e: group.compose(g, group.exp(e)))(path, eta))

    return np.asarray(jax.jit(jax.grad(varied))(jnp.zeros((points, group.dim))))


CASES = [
    ("particle", CAYLEY, 0.0),
    ("particle", CAYLEY, 0.5),
    ("driven", CAYLEY, 0.5),
    ("quartic", CAYLEY, 1.0),
    ("heavy_suslov", CAYLEY, 0.5),
    pytest.param("heavy_suslov", EXPONENTIAL, 1.0, marks=pytest.mark.heavy),
    more("knife_edge", CAYLEY, 0.0),
    more("ball", CAYLEY, 0.0),
]


@pytest.mark.parametrize(
    "key, retraction, node", CASES, ids=lambda v: type(v).__name__ if isinstance(v, da.groups.Retraction) else str(v)
)
def test_lagrange_dalembert(key, retraction, node):
    system, state = case(key)
    run = da.simulate(system, da.LagrangeDAlembert(retraction, node), state, step=H, steps=STEPS).check()
    slope = _slope(system.group, lambda path: _action(system, retraction, node, run.t, path), run.g, STEPS + 1)[1:-1]
    inside = jax.tree.map(lambda leaf: leaf[1:-1], run.g)
    rows = np.asarray(jax.jit(jax.vmap(system.A))(run.t[1:-1], inside))
    # dS + h A^T l = 0 at every inner node: zero on D, and off D it is the reaction that the run reports.
    reaction = np.einsum("kmi,km->ki", rows, run.multipliers[2:])
    assert np.abs(slope + H * reaction).max() < 1e-11
    assert np.abs(slope).max() > 1e-3
    frames = np.stack([da.numerics.null_basis(row) for row in rows])
    assert np.abs(np.einsum("kia,ki->ka", frames, slope)).max() < 1e-11
    first, last = jax.tree.map(lambda leaf: leaf[:-1], run.g), jax.tree.map(lambda leaf: leaf[1:], run.g)

    def residual(t, a, b):
        return system.residual(t, *_inner_and_velocity(system.group, retraction, node, a, b))

    assert np.abs(jax.jit(jax.vmap(residual))(run.t[:-1] + node * H, first, last)).max() < 1e-11


@pytest.mark.parametrize("key", sampled(["suslov", "suslov_4"]))
def test_moser_veselov(key):
    """l_d(W) = -tr(W J)/h with the mass matrix J of the inertia, W in the image of the Cayley map on d."""
    system, state = case(key)
    group = system.group
    run = da.simulate(system, da.EulerPoincareSuslov("moser-veselov"), state, step=H, steps=STEPS).check()
    mass = system.mass_matrix()

    def action(path):
        return jnp.sum(jax.vmap(lambda a, b: -jnp.trace(a.T @ b @ mass) / H)(path[:-1], path[1:]))

    slope = _slope(group, action, run.g, STEPS + 1)[1:-1]
    assert np.abs(slope @ system.subspace).max() < 1e-12
    assert np.abs(slope).max() > 1e-3
    np.testing.assert_allclose(slope, -H * np.asarray(run.multipliers[1:-1]) @ system.annihilator, atol=1e-12)
    steps = jax.jit(jax.vmap(lambda a, b: group.cayley_inverse(a.T @ b)))(run.g[:-1], run.g[1:])
    assert np.abs(steps @ system.annihilator.T).max() < 1e-13
    np.testing.assert_allclose(steps / H, run.increment[:-1], atol=1e-12)


@pytest.mark.parametrize("key, retraction", [("suslov", EXPONENTIAL), ("sleigh", CAYLEY)])
def test_retraction_lagrangian(key, retraction):
    system, state = case(key)
    group = system.group
    run = da.simulate(system, da.EulerPoincareSuslov("retraction", retraction), state, step=H, steps=STEPS).check()

    def action(path):
        def one(a, b):
            w = retraction.inverse(group, group.compose(group.inverse(a), b)) / H
            return 0.5 * H * w @ system.inertia @ w

        return jnp.sum(jax.vmap(one)(path[:-1], path[1:]))

    slope = _slope(group, action, run.g, STEPS + 1)[1:-1]
    assert np.abs(slope @ system.subspace).max() < 1e-12
    np.testing.assert_allclose(slope, -H * np.asarray(run.multipliers[1:-1]) @ system.annihilator, atol=1e-12)
    assert np.abs(slope).max() > 1e-3
