"""Nonlinear systems on R^n with nonholonomic constraints; M(q) varies in two of them, and one has two constraints."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import dalembert as da


def _state(system, q, v):
    q = jnp.asarray(q, float)
    return system, system.state(q, _project(system, q, jnp.asarray(v, float)))


@jax.jit
def _project(system, q, v):
    return system.project(q, v)


def _contact(t, q, p):
    return jnp.stack([-q[1], jnp.zeros_like(q[1]), jnp.ones_like(q[1])])[None]


def _anharmonic(t, q, v, p):
    x, y, z = q
    mass = jnp.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.2], [0.1, -0.2, 1.0]])
    return 0.5 * v @ mass @ v - 0.5 * q @ q - 0.25 * x**4 - 0.5 * x * x * y * y - jnp.cos(z)


def anharmonic():
    """z' = y x' with a full constant mass matrix and an anharmonic potential."""
    return _state(da.System(da.Euclidean(3), _anharmonic, _contact), [0.3, 0.5, -0.2], [1.1, 0.7, 0.5])


def mass_matrix(q):
    return jnp.diag(jnp.stack([1.0 + q[1] ** 2, 2.0 + jnp.sin(q[0]), 1.5 + 0.0 * q[0]])) + 0.2 * jnp.outer(
        jnp.cos(q), jnp.cos(q)
    )


def _curved(t, q, v, p):
    return 0.5 * v @ mass_matrix(q) @ v - 0.5 * q @ q - 0.1 * q[0] ** 4


def _twisted(t, q, p):
    return jnp.stack([jnp.sin(q[1]) - q[2], 0.3 * q[0], 1.0 + 0.1 * q[0] ** 2])[None]


def curved():
    """A mass matrix M(q)."""
    return _state(da.System(da.Euclidean(3), _curved, _twisted), [0.3, -0.4, 0.6], [0.9, -0.7, 0.4])


def _double_pendulum(t, q, v, p):
    """Two coupled arms that carry two followers: M(q) in the arms' block."""
    c = jnp.cos(q[0] - q[1])
    arms = v[0] ** 2 + 0.5 * v[1] ** 2 + c * v[0] * v[1]
    return arms + 0.5 * (v[2] ** 2 + v[3] ** 2) + 2 * jnp.cos(q[0]) + jnp.cos(q[1]) - 0.5 * (q[2] ** 2 + q[3] ** 2)


def _followers(t, q, p):
    zero, one = jnp.zeros_like(q[0]), jnp.ones_like(q[0])
    return jnp.stack([jnp.stack([-jnp.sin(q[1]), zero, one, 0.2 * q[0]]), jnp.stack([zero, -q[2], zero, one])])


def followers():
    """Two constraints, n = 4, and a mass matrix M(q)."""
    return _state(da.System(da.Euclidean(4), _double_pendulum, _followers), [0.6, -0.3, 0.4, 0.1], [0.5, 0.9, 0.0, 0.0])


def _driven_cvt(t, q, v, p):
    x, y, xi = q
    return 0.5 * v @ v - 0.5 * (x * x + y * y) - jnp.cos(xi) + 0.05 * jnp.sin(2 * xi)


def _transmission(t, q, p):
    return jnp.stack([jnp.sin(q[2]), jnp.ones_like(q[2]), jnp.zeros_like(q[2])])[None]


def cvt():
    """The pendulum-driven transmission y' + sin(xi) x' = 0 (Modin-Verdier)."""
    return _state(da.System(da.Euclidean(3), _driven_cvt, _transmission), [1.0, 0.2, 2.5], [0.3, 0.0, 0.6])


def _skate(t, q, v, p):
    x, y, _ = q
    return (
        0.5 * (v[0] ** 2 + v[1] ** 2 + 0.4 * v[2] ** 2) - 0.5 * (x * x + 2 * y * y) - 0.3 * x * y - 0.2 * jnp.sin(q[2])
    )


def _edge(t, q, p):
    return jnp.stack([jnp.sin(q[2]), -jnp.cos(q[2]), jnp.zeros_like(q[2])])[None]


def skate():
    """A knife edge sin(theta) x' = cos(theta) y' in an anisotropic well."""
    return _state(da.System(da.Euclidean(3), _skate, _edge), [0.5, -0.2, 0.4], [0.8, 0.3, 0.6])


SYSTEMS = {make.__name__: cache(make) for make in (anharmonic, curved, followers, cvt, skate)}


def particle(potential="free"):
    """The particle of REFERENCE.md."""
    system = da.models.nonholonomic_particle(potential)
    return system, system.state([0.3, 0.5, -0.2], [1.1, 0.7, 0.55])


def velocity_form(node: float, nodes: str = "velocity") -> da.LagrangeDAlembert:
    return da.LagrangeDAlembert(node=node, nodes=nodes)


def largest(value) -> float:
    return float(np.max(np.abs(np.asarray(value)), initial=0.0))
