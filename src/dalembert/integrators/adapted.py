"""Frames of D that are orthonormal in the kinetic metric: in them the energy is |rho|^2/2 + V, and D is kept by construction."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ..errors import InvalidInput
from ..mechanics import InvariantSystem, MechanicalSystem, NonlinearSystem
from ..numerics import solve

ROOT = 4  # Newton steps for an inverse square root: they leave 1e-11 of a distance of 0.3 from 1


def orthonormal(metric: Array, vectors: Array) -> Array:
    """The columns of `vectors` (n, r) made orthonormal in the metric, one after the other (Gram, Schmidt)."""
    columns: list[Array] = []
    for vector in vectors.T:
        for column in columns:
            vector = vector - column * (column @ metric @ vector)
        columns.append(vector * (1.0 / jnp.sqrt(vector @ metric @ vector)))
    return jnp.stack(columns, axis=1) if columns else vectors


def frame(system: MechanicalSystem, t, g, reference: Array) -> Array:
    """X (n, r) with X^T M X = 1 that spans ker A(t, g), smooth in g; where `reference` is such a frame it is X.

    Y = the projection of `reference`, and X = Y (Y^T M Y)^-1/2 (Lowdin): a rotation of the reference rotates X, so that what is
    computed in the frame does not depend on the choice of the reference. The root is Newton's, near 1; Gram and Schmidt round it off.
    """
    metric, vectors = kinetic(system, t, g), system.frame(t, g, reference)
    gram, one = vectors.T @ metric @ vectors, jnp.eye(reference.shape[1])
    root = one
    for _ in range(ROOT):
        root = root @ (1.5 * one - 0.5 * gram @ root @ root)
    return orthonormal(metric, vectors @ root)


def first_frame(system: MechanicalSystem, t, g) -> Array:
    """A frame at g to begin with: the coordinate vectors projected onto D, the longest that remains first."""
    n, metric = system.group.dim, kinetic(system, t, g)
    if isinstance(system, InvariantSystem):
        return orthonormal(metric, system.subspace)
    left, chosen = system.frame(t, g, jnp.eye(n)), []
    for _ in range(n - system.constraints):
        sizes = jnp.einsum("ia,ij,ja->a", left, metric, left)
        longest = left @ (1.0 * (jnp.arange(n) == jnp.argmax(sizes)))
        unit = longest * (1.0 / jnp.sqrt(longest @ metric @ longest))
        left = left - jnp.outer(unit, unit @ metric @ left)
        chosen.append(unit)
    return frame(system, t, g, jnp.stack(chosen, axis=1))


def kinetic(system: MechanicalSystem, t, g) -> Array:
    """The kinetic metric at rest."""
    return system.metric(t, g, jnp.zeros(system.group.dim))


def drift(system: MechanicalSystem, t, g) -> Array:
    """The velocity with A xi = b that is orthogonal to ker A."""
    rows = system.A(t, g)
    weights = solve(kinetic(system, t, g), rows.T)
    return weights @ solve(rows @ weights, system.b(t, g)) if rows.shape[0] else jnp.zeros(system.group.dim)


def along(system: MechanicalSystem, function, t, g, xi, rate: float = 0.0) -> Array:
    """The derivative of function(t, g) along g' = g xi and t' = `rate`."""

    def moved(s, eta):
        return function(t + s, system.group.shift(g, eta))

    zero = jnp.zeros_like(xi[0]), jnp.zeros_like(xi)
    return jax.jvp(moved, zero, (rate * jnp.ones_like(xi[0]), xi))[1]


def require_linear(method, system) -> None:
    """Refuse constraints that are not affine in the velocity, and systems that leave it no freedom."""
    if isinstance(system, NonlinearSystem):
        raise InvalidInput(
            f"{method.name} needs a constraint A(t, g) xi = b(t, g); this one is not affine in xi. Use lagrange-dalembert"
        )
    if system.constraints >= system.group.dim:
        raise InvalidInput(f"{method.name} needs a mechanical system; for a vector field use retraction-map")


def require_quadratic(method, system) -> None:
    """Refuse Lagrangians that are not quadratic in the velocity."""
    if not system.quadratic:
        raise InvalidInput(
            f"{method.name} needs a Lagrangian that is quadratic in xi, for its kinetic metric. Use lagrange-dalembert or gauss"
        )
