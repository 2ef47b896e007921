"""Frames of D that are orthonormal in the kinetic metric: in them the energy is |rho|^2/2 + V, D is exact."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..kernels import as_routine, map_rows
from ..mechanics import InvariantSystem, MechanicalSystem, constraint_at, kinetic_metric
from ..numerics import solve
from ..numerics.types import Array, Element, Float, Scalar, Velocity

Frame = Float[Array, "n r"]  # its columns
Field = Callable[[Scalar, Element], Array]
NEWTON_STEPS = 4  # for an inverse square root: they leave 1e-11 of a distance of 0.3 from 1
MAX_WRITTEN_VECTORS = 6  # up to so many vectors a frame is written out; loops make it short for more


def _multiply(a: Array, b: Array) -> Array:
    """A product of matrices, a row after the other where they are large."""
    if min(a.shape[0], b.shape[1]) <= MAX_WRITTEN_VECTORS:
        return a @ b
    rows: Array = map_rows(lambda row: row @ b, a)
    return rows


def orthonormalise(metric: Float[Array, "n n"], vectors: Frame) -> Frame:
    """The columns of `vectors` made orthonormal in the metric, one after the other (Gram, Schmidt)."""
    count = vectors.shape[1]
    if count > MAX_WRITTEN_VECTORS:

        def turn(k: Array, basis: Array) -> Array:
            before, here = jnp.arange(count) < k, jnp.arange(count) == k
            vector = jax.lax.dynamic_index_in_dim(basis, k, axis=1, keepdims=False)
            vector = vector - basis @ jnp.where(before, basis.T @ (metric @ vector), 0.0)
            unit = vector * (1.0 / jnp.sqrt(vector @ (metric @ vector)))
            return jnp.where(here, unit[:, None], basis)

        found: Array = jax.lax.fori_loop(0, count, turn, vectors)
        return found
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
    one = jnp.eye(reference.shape[1])
    if len(one) > MAX_WRITTEN_VECTORS:
        gram = _multiply(vectors.T, _multiply(metric, vectors))
        newton = lambda _, root: _multiply(root, 1.5 * one - 0.5 * _multiply(gram, _multiply(root, root)))
        return orthonormalise(metric, _multiply(vectors, jax.lax.fori_loop(0, NEWTON_STEPS, newton, one)))
    gram, root = vectors.T @ metric @ vectors, one
    for _ in range(NEWTON_STEPS):
        root = root @ (1.5 * one - 0.5 * gram @ root @ root)
    return orthonormalise(metric, vectors @ root)


def initial_frame(system: MechanicalSystem, t: Scalar, g: Element) -> Frame:
    """A frame at g to begin with: the coordinate vectors projected onto D, the longest that remains first."""
    n, metric = system.group.dim, kinetic_metric(system, t, g)
    if isinstance(system, InvariantSystem):
        return orthonormalise(metric, system.subspace)

    def take(left: Array, _: None) -> tuple[Array, Array]:
        sizes = jnp.einsum("ia,ij,ja->a", left, metric, left)
        longest = left @ (1.0 * (jnp.arange(n) == jnp.argmax(sizes)))
        unit = longest * (1.0 / jnp.sqrt(longest @ metric @ longest))
        return left - jnp.outer(unit, unit @ metric @ left), unit

    left, count, chosen = system.frame(t, g, jnp.eye(n)), n - system.constraints, list[Array]()
    if count > MAX_WRITTEN_VECTORS:
        return orthonormal_frame(system, t, g, jax.lax.scan(take, left, None, length=count)[1].T)
    for _ in range(count):
        left, unit = take(left, None)
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
