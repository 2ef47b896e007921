"""Systems and helpers that many tests share: a law is tested over lists of these."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dalembert as da
from dalembert.kernels import llvm, plans, problem

GENERIC = [[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]]
FULL = [[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]]
CAYLEY, EXPONENTIAL = da.Cayley(), da.Exponential()


def _turn(group, coordinates):
    return group.exp(jnp.asarray(coordinates, float))


def suslov():
    system = da.models.suslov(GENERIC)
    return system, system.state(_turn(system.group, [0.3, -0.2, 0.5]), momentum=[3.0, 2.0])


def heavy_suslov():
    """The potential depends on g, the normal is no axis, I12 != 0."""
    system = da.models.suslov(FULL, normal=[0.3, -0.2, 1.0], weight=[0.8, -0.5, 1.5])
    g = _turn(system.group, [0.4, 0.7, -0.3])
    return system, system.state(g, system.project(g, [0.9, -0.6, 0.2]))


def suslov_4():
    system = da.models.suslov_n(da.models.MODELS["suslov-n"].example["mass"])
    return system, system.state(momentum=[0.5, -0.3, 0.4])


def sleigh():
    system = da.models.chaplygin_sleigh(1.0, 1.0, 0.3, 0.2)
    return system, system.state(_turn(system.group, [0.5, 0.3, -1.0]), [0.9, -1.0, 0.0])


def knife_edge():
    system = da.models.knife_edge(1.2, 0.7, 0.3, 9.81)
    return system, system.state(_turn(system.group, [0.4, 0.1, 0.2]), [1.3, 0.8, 0.0])


def particle():
    system = da.models.nonholonomic_particle("harmonic")
    return system, system.state([0.3, 0.5, -0.2], [1.1, 0.7, 0.55])


def disk():
    system = da.models.vertical_disk(1.3, 0.5, 0.25, 0.7)
    return system, system.state(xi=[0.8, 0.7, 0.0, 1.0])


def _ball_lagrangian(t, g, xi, p):
    rotation, place = g
    kinetic = 0.5 * xi[:3] @ jnp.diag(p["moments"]) @ xi[:3] + 0.5 * p["mass"] * xi[3:] @ xi[3:]
    return kinetic - p["weight"] @ rotation[2] - 0.5 * p["spring"] * place @ place


def _ball_constraint(t, g, p):
    """x' = r W2, y' = -r W1 with the spatial angular velocity W = R w."""
    slip = p["radius"] * jnp.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]])
    return jnp.concatenate([slip @ g[0], jnp.eye(2)], axis=1)


def _ball_force(t, g, xi, u, p):
    return -p["drag"] * xi * jnp.array([0.0, 0.0, 1.0, 1.0, 1.0])


def ball(drag=0.1):
    """An unbalanced ball that rolls on a plane, with a spring and drag: SO(3) x R^2, A depends on g, m = 2."""
    parameters = {
        "moments": jnp.array([0.7, 0.9, 1.2]),
        "mass": jnp.array(1.1),
        "radius": jnp.array(0.6),
        "weight": jnp.array([0.2, -0.3, 0.5]),
        "spring": jnp.array(0.7),
        "drag": jnp.array(drag),
    }
    group = da.SO3() * da.Euclidean(2)
    system = da.System(group, _ball_lagrangian, _ball_constraint, parameters=parameters, force=_ball_force)
    g = _turn(group, [0.3, -0.5, 0.2, 0.4, -0.1])
    return system, system.state(g, system.project(g, [0.8, 0.4, -0.6, 0.3, 0.2]))


def _driven_lagrangian(t, q, v, p):
    return 0.5 * v @ v * (1 + 0.2 * jnp.sin(t)) - 0.5 * q @ q - 0.3 * jnp.cos(2 * t) * q[0]


def _driven_constraint(t, q, p):
    return jnp.stack([-q[1], 0.3 * jnp.sin(t), jnp.ones_like(q[1])])[None]


def _driven_drift(t, q, p):
    return jnp.stack([0.4 * jnp.cos(t) + 0.2 * q[0]])


def _driven_force(t, q, v, u, p):
    push = jnp.zeros(3) if u is None else u
    return -0.2 * v + push + jnp.stack([jnp.sin(t), 0.0 * t, q[1]])


def driven():
    """Everything at once on R^3: L, A, b and F depend on time, the constraint is affine, the force takes controls."""
    system = da.System(
        da.Euclidean(3), _driven_lagrangian, _driven_constraint, drift=_driven_drift, force=_driven_force
    )
    q, t = jnp.array([0.3, 0.5, -0.2]), 0.4
    return system, system.state(q, system.project(q, [1.1, 0.7, 0.5], t), t=t)


def _top_lagrangian(t, g, xi, p):
    return 0.5 * xi @ p["inertia"] @ xi - p["weight"] @ g[2]


def heavy_top():
    """No constraint: a variational integrator. The symmetry is rotation about the vertical."""
    parameters = {"inertia": jnp.asarray(FULL), "weight": jnp.array([0.8, -0.5, 1.5])}
    system = da.System(da.SO3(), _top_lagrangian, parameters=parameters)
    return system, system.state(_turn(system.group, [0.4, 0.7, -0.3]), [0.9, -0.6, 0.7])


def _quartic_lagrangian(t, q, v, p):
    return 0.5 * v @ v + 0.15 * (v @ v) ** 2 + 0.1 * q[0] * v[0] * v[1] - 0.5 * q @ q


def _contact(t, q, p):
    return jnp.stack([-q[1], jnp.zeros_like(q[1]), jnp.ones_like(q[1])])[None]


def quartic():
    """A Lagrangian that is not quadratic in the velocity."""
    system = da.System(da.Euclidean(3), _quartic_lagrangian, _contact)
    q = jnp.array([0.3, 0.5, -0.2])
    return system, system.state(q, [0.9, -0.7, 0.45])


SYSTEMS = {
    make.__name__: cache(make)
    for make in (suslov, heavy_suslov, suslov_4, sleigh, knife_edge, particle, disk, ball, driven, heavy_top, quartic)
}


def case(name: str):
    """(system, state) of the registry, the same objects every time."""
    return SYSTEMS[name]()


def forget(patch):
    """Let this process know no compiled program, as a new one would, until the test ends."""
    patch.setattr(problem, "_programs", OrderedDict())
    patch.setattr(llvm, "_functions", OrderedDict())
    patch.setattr(plans, "_plans", OrderedDict())


def sampled(cases):
    """The cases of a long family: the first in the fast tests, the others in `make verify`."""
    first, *others = cases
    values = [case if isinstance(case, tuple) else (case,) for case in others]
    return [first, *(more(*value) for value in values)]


def more(*values):
    """A case of `make verify`, like one of the fast cases beside it."""
    return pytest.param(*values, marks=pytest.mark.heavy)


def flow(integrator, system, state, h, n):
    """The state after n steps."""
    return da.simulate(system, integrator, state, step=h, steps=n, save_every=n).check().last


def distance(a, b) -> float:
    """The largest difference between two pytrees of numbers."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.asarray(x) - np.asarray(y)), initial=0.0)) for x, y in pairs)


def gap(a, b) -> float:
    """The largest difference of two states in configuration and velocity."""
    return distance((a.g, a.xi), (b.g, b.xi))
