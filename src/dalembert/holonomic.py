"""Holonomic constraints phi(t, g) = 0: what they ask of velocities, and the nearest configuration that satisfies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ._linalg import solve
from ._newton import Root, find_root
from .groups import Group

Phi = Callable[[Any, Any], Array]


def tangency(group: Group, phi: Phi, t, g) -> tuple[Array, Array]:
    """(dphi, phi_t) with <dphi, eta> = d/ds phi(t, g exp(s eta)): phi = 0 differentiated in time is dphi xi + phi_t = 0."""
    rows = jax.jacfwd(lambda eta: phi(t, group.shift(g, eta)))(jnp.zeros(group.dim))
    time = jnp.asarray(t, float)
    return rows, jax.jvp(lambda s: phi(s, g), (time,), (jnp.ones_like(time),))[1]


def nearest(group: Group, phi: Phi, metric: Array, t, g) -> tuple[Any, Root]:
    """The configuration g exp(eta) with phi = 0 and the least <M eta, eta>, by Newton's method on M eta = (d phi)^T nu.

    It begins with the step of least length that solves the linearised constraint, as projection methods do (Hairer, Lubich, Wanner IV.4).
    """

    def moved(eta):
        return phi(t, group.compose(g, group.exp(eta)))

    n, slope = group.dim, jax.jacfwd(moved)
    metric = metric * (n / jnp.trace(metric))
    size = 1.0 + jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(g)]))
    rows = tangency(group, phi, t, g)[0]
    weights = solve(metric, rows.T)
    pull = -solve(rows @ weights, phi(t, g))

    def equations(shifted):
        """In unknowns of the size of g, for Newton's iteration ends at the round-off of its unknowns."""
        x = shifted - size
        return jnp.concatenate([metric @ x[:n] - slope(x[:n]).T @ x[n:], moved(x[:n])])

    root = find_root(equations, size + jnp.concatenate([weights @ pull, pull]))
    return group.normalise(group.compose(g, group.exp(root.x[:n] - size))), root
