"""Frames of D that are orthonormal in the kinetic metric: in them the energy is |rho|^2/2 + V, D is exact."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..kernels import as_routine
from ..mechanics import InvariantSystem, MechanicalSystem, constraint_at, kinetic_metric
from ..numerics import solve
from ..numerics.types import Array, Element, Float, Scalar, Velocity

Frame = Float[Array, "n r"]  # its columns
Field = Callable[[Scalar, Element], Array]
NEWTON_STEPS = 4  # for an inverse square root: they leave 1e-11 of a distance of 0.3 from 1


def orthonormalise(metric: Float[Array, "n n"], vectors: Frame) -> Frame:
    """The columns of `vectors` made orthonormal in the metric, one after the other (Gram, Schmidt)."""
    columns: list[Array] = []
    for vector in vectors.T:
        for column in columns:
            vector = vector - column * (column @ metric @ vector)
        columns.append(vector * (1.0 / jnp.sqrt(vector @ metric @ vector)))
    return jnp.stack(columns, axis=1) if columns else vectors


@as_routine
def orthonormal_frame(system: MechanicalSystem, t: Scalar, g: Element, reference: Frame) -> Frame:
    """X (n, r) with X^T M X = 1 that spans ker A(t, g), smooth in g; where `reference` is such a frame it is X.

    Y = the projection of `reference`, and X = Y (Y^T M Y)^-1/2 (Lowdin). A rotation of the reference rotates X, so that
    what is computed in the frame does not depend on the choice of the reference. The root is Newton's, near 1; Gram and
    Schmidt round it off.
    """
    metric, vectors = kinetic_metric(system, t, g), system.frame(t, g, reference)
    gram, one = vectors.T @ metric @ vectors, jnp.eye(reference.shape[1])
    root = one
    for _ in range(NEWTON_STEPS):
        root = root @ (1.5 * one - 0.5 * gram @ root @ root)
    return orthonormalise(metric, vectors @ root)


def initial_frame(system: MechanicalSystem, t: Scalar, g: Element) -> Frame:
    """A frame at g to begin with: the coordinate vectors projected onto D, the longest that remains first."""
    n, metric = system.group.dim, kinetic_metric(system, t, g)
    if isinstance(system, InvariantSystem):
        return orthonormalise(metric, system.subspace)
    left, chosen = system.frame(t, g, jnp.eye(n)), []
    for _ in range(n - system.constraints):
        sizes = jnp.einsum("ia,ij,ja->a", left, metric, left)
        longest = left @ (1.0 * (jnp.arange(n) == jnp.argmax(sizes)))
        unit = longest * (1.0 / jnp.sqrt(longest @ metric @ longest))
        left = left - jnp.outer(unit, unit @ metric @ left)
        chosen.append(unit)
    return orthonormal_frame(system, t, g, jnp.stack(chosen, axis=1))


def orthogonal_drift(system: MechanicalSystem, t: Scalar, g: Element) -> Float[Array, " n"]:
    """The velocity with A xi = b that is orthogonal to ker A."""
    rows, drift = constraint_at(system, t, g)
    weights = solve(kinetic_metric(system, t, g), rows.T)
    return weights @ solve(rows @ weights, drift) if rows.shape[0] else jnp.zeros(system.group.dim)


def derivative_along(
    system: MechanicalSystem, function: Field, t: Scalar, g: Element, xi: Velocity, rate: float = 0.0
) -> Array:
    """The derivative of function(t, g) along g' = g xi and t' = `rate`."""
    zero = jnp.zeros_like(xi[0]), jnp.zeros_like(xi)
    moved = lambda s, eta: function(t + s, system.group.shift(g, eta))
    derivative: Array = jax.jvp(moved, zero, (rate * jnp.ones_like(xi[0]), xi))[1]
    return derivative
