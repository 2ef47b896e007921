"""Constraints solved for some velocities as they are written: the reduced solve is the saddle-point solve."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import digamma, gammaln
from registry import case

import dalembert as da
from dalembert.kernels import compile_function
from dalembert.numerics import fibre, solve_reduced, solve_saddle


def units(key):
    system, state = case(key)
    return fibre(system, state.t, state.g, state.xi)


def test_literal_units_are_seen_and_others_are_not():
    assert units("particle") == ((2, 1),)
    assert units("ball") == ((3, 1), (4, 1))
    assert units("heavy_top") == ()  # no constraint
    q = jnp.zeros(3)
    signed = da.System(da.Euclidean(3), lambda t, q, v, p: 0.5 * v @ v, lambda t, q, p: jnp.array([[q[0], -1.0, 3.0]]))
    assert fibre(signed, 0.0, q, q) == ((1, -1),)
    scaled = da.System(
        da.Euclidean(3),
        lambda t, q, v, p: 0.5 * v @ v,
        lambda t, q, p: jnp.array([[p, q[0], 2.0]]),
        parameters=jnp.ones(()),
    )
    assert fibre(scaled, 0.0, q, q) is None  # a parameter that happens to be 1 is no literal


def test_rows_with_units_are_found_among_others():
    """A unit's column may have anything in rows without one, and needs zeros in rows with one."""

    def rows(t, q, p):
        zero, one = jnp.zeros(()), jnp.ones(())
        return jnp.stack(
            [jnp.stack(r) for r in ([q[0], q[1], q[2], q[0]], [zero, zero, -one, zero], [one, one, one, zero])]
        )

    system = da.System(da.Euclidean(4), lambda t, q, v, p: 0.5 * v @ v, rows)
    q = jnp.zeros(4)
    assert fibre(system, 0.0, q, q) in ((None, (2, -1), None), (None, None, (0, 1)), (None, None, (1, 1)))
    system = da.models.snakeboard()
    state = system.state(xi=np.zeros(5))
    assert fibre(system, state.t, state.g, state.xi) == ((2, 1), None)


SOME = [(), ((1, 1),), ((4, -1), (0, 1)), ((2, 1), (3, -1), (0, 1)), ((2, -1), None), (None, (0, 1), (4, -1))]


@pytest.mark.parametrize("columns", SOME)
@pytest.mark.parametrize("definite", [True, False])
def test_the_reduced_solve_is_the_saddle_point_solve(columns, definite):
    """Also for a metric that is regular but not positive, such as that of L = x' y'."""
    rng = np.random.default_rng(len(columns))
    n, m = 5, len(columns)
    root = rng.normal(size=(n, n))
    metric = root @ root.T + np.eye(n) if definite else root + root.T
    rows = rng.normal(size=(m, n))
    with_units = [i for i in range(m) if columns[i] is not None]
    for i in with_units:
        j, sign = columns[i]
        rows[with_units, j] = 0.0
        rows[i, j] = sign
    top, bottom = rng.normal(size=n), rng.normal(size=m)
    given = [jnp.asarray(x) for x in (metric, rows, top, bottom)]
    pairs = compile_function(lambda *given: (solve_reduced(columns, *given), solve_saddle(*given)))(*given)
    for a, b in zip(*pairs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("key", ["particle", "ball", "driven"])
def test_the_acceleration_satisfies_the_equations_that_it_solves(key):
    """Differences of the momentum and of the constraint along the motion: d/dt L_xi - ad* L_xi - L_g - F = A^T l, d/dt
    (A xi - b) = 0.
    """
    system, state = case(key)
    h = 1e-5

    @compile_function
    def sides(system, t, g, xi):
        rate, multipliers = system.acceleration(t, g, xi)

        def at(s):
            there = system.group.compose(g, system.group.exp(s * xi + 0.5 * s * s * rate))
            v = xi + s * rate
            return system.momentum(t + s, there, v), system.residual(t + s, there, v)

        (p1, r1), (p0, r0) = at(h), at(-h)
        force = system.group.ad_star(xi, system.momentum(t, g, xi)) + system.L_g(t, g, xi) + system.F(t, g, xi, None)
        return (p1 - p0) / (2 * h), force + system.rows(t, g)(xi).T @ multipliers, (r1 - r0) / (2 * h)

    left, right, off = sides(system, state.t, state.g, state.xi)
    np.testing.assert_allclose(left, right, atol=1e-8)
    np.testing.assert_allclose(off, np.zeros(len(off)), atol=1e-8)


def test_a_constraint_that_only_xla_knows_is_solved_in_full():
    """An operation without a scalar rule hides the literals, no more."""
    system = da.System(
        da.Euclidean(3), lambda t, q, v, p: 0.5 * v @ v, lambda t, q, p: jnp.array([[gammaln(q[0]), 0.0, 1.0]])
    )
    q, v = jnp.array([0.3, 0.2, 0.7]), jnp.array([1.0, 0.5, -0.2])
    assert fibre(system, 0.0, q, v) is None
    rate, _ = system.acceleration(0.0, q, v)
    moving = digamma(q[0]) * v[0] ** 2 + gammaln(q[0]) * rate[0] + rate[2]  # d/dt (A v)
    np.testing.assert_allclose(moving, 0.0, atol=1e-13)
