"""Principal axes and quaternions (scalar first)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def principal_axes(inertia: Array) -> Array:
    """A rotation R with R^T I R diagonal, by Jacobi's method: the identity, and the given order, for a diagonal tensor.

    It is a constant for derivatives: what is computed with it must not depend on the choice of axes.
    """

    def rotate(state, pair):
        A, R = state
        i, j = pair
        gap, off = A[j, j] - A[i, i], A[i, j]
        needed = off != 0.0
        theta = 0.5 * gap / jnp.where(needed, off, 1.0)
        t = jnp.where(theta < 0, -1.0, 1.0) / (jnp.abs(theta) + jnp.sqrt(theta * theta + 1.0))
        t = jnp.where(needed, t, 0.0)
        cosine = 1.0 / jnp.sqrt(t * t + 1.0)
        sine = t * cosine
        ei, ej = jnp.arange(3) == i, jnp.arange(3) == j
        plane = jnp.outer(ei, ei) + jnp.outer(ej, ej)
        G = jnp.where(plane, cosine, jnp.eye(3)) + sine * (1.0 * jnp.outer(ei, ej) - 1.0 * jnp.outer(ej, ei))
        return (G.T @ A @ G, R @ G), None

    pairs = jnp.array([[0, 1], [0, 2], [1, 2]] * 7)
    A = jax.lax.stop_gradient(inertia)
    return jax.lax.scan(rotate, (A, jnp.eye(3)), pairs)[0][1]


def compose(p: Array, q: Array) -> Array:
    """The product p q of two quaternions, scalar first."""
    a, b, c, d = p
    w, x, y, z = q
    return jnp.stack(
        [
            a * w - b * x - c * y - d * z,
            a * x + b * w + c * z - d * y,
            a * y - b * z + c * w + d * x,
            a * z + b * y - c * x + d * w,
        ]
    )


def unit(q: Array) -> Array:
    """q/|q|."""
    return q * (1.0 / jnp.sqrt(q @ q))


def rotation(q: Array) -> Array:
    """The rotation matrix of a unit quaternion."""
    a, b, c, d = q
    return jnp.array(
        [
            [1 - 2 * (c * c + d * d), 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), 1 - 2 * (b * b + d * d), 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), 1 - 2 * (b * b + c * c)],
        ]
    )


def about(m: Array, square: Array, angle: Array) -> Array:
    """The quaternion of the rotation by |m| angle about m, given |m|^2; smooth at m = 0."""
    half = 0.5 * angle
    positive = square > 0.0
    size = jnp.sqrt(jnp.where(positive, square, 1.0))
    turned = jnp.where(positive, size * half, 0.0)
    return jnp.concatenate([jnp.cos(turned)[None], jnp.where(positive, jnp.sin(turned) * (1.0 / size), half) * m])
