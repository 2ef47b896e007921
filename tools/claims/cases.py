"""The systems on which claims are measured: every model with its example, and a few with potentials and masses M(q) that no model has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dalembert.groups import SO3, Euclidean
from dalembert.io.config import parse_job as parse
from dalembert.mechanics import InvariantSystem, LRSystem, MechanicalSystem, State, System
from dalembert.models import MODELS, chaotic_quartic, quartic_state, suslov

INERTIA = [[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]]


@dataclass(frozen=True)
class Case:
    """A system with a state and a step at which it is well resolved; `symmetry(g)` are the generators (n, k) of momenta it keeps."""

    name: str
    make: Callable[[], tuple[MechanicalSystem, State]]
    step: float
    symmetry: Callable[[MechanicalSystem, Any], Array] | None = field(default=None, compare=False)

    @cached_property
    def built(self) -> tuple[MechanicalSystem, State]:
        return self.make()

    @property
    def system(self) -> MechanicalSystem:
        return self.built[0]

    @property
    def state(self) -> State:
        return self.built[1]


# -- symmetries -----------------------------------------------------------------------------------------------------------------
def _seen_from_space(system: MechanicalSystem, g) -> Array:
    """All left translations: the momentum in space."""
    group = system.group
    return jax.vmap(lambda e: group.Ad(group.inverse(g), e), in_axes=1, out_axes=1)(jnp.eye(group.dim))


def _about_the_vertical(system: MechanicalSystem, g) -> Array:
    return g.T[:, 2:]


def _on_d(system: MechanicalSystem, g) -> Array:
    assert isinstance(system, LRSystem)
    return system.basis(0.0, g)


def _rotations(system: MechanicalSystem, q) -> Array:
    return jax.vmap(lambda e: jnp.cross(e, q), in_axes=1, out_axes=1)(jnp.eye(3))


# -- systems that no model has ----------------------------------------------------------------------------------------------------
def _started(system: MechanicalSystem, g, xi) -> tuple[MechanicalSystem, State]:
    return system, system.state(g, jax.jit(type(system).project)(system, g, jnp.asarray(xi)))


def _heavy_suslov():
    system = suslov(INERTIA, normal=[0.3, -0.2, 1.0], weight=[0.8, -0.5, 1.5])
    return _started(system, system.group.exp(jnp.array([0.4, 0.7, -0.3])), [0.9, -0.6, 0.2])


def _weight(t, g, p) -> Array:
    return p @ g[2]


def _heavy_top():
    system = InvariantSystem(SO3(), INERTIA, potential=_weight, parameters=jnp.array([0.8, -0.5, 1.5]))
    return _started(system, system.group.exp(jnp.array([0.4, 0.7, -0.3])), [0.9, -0.6, 0.7])


def _central_lagrangian(t, q, v, p) -> Array:
    return 0.5 * v @ v - 0.5 * q @ q - 0.25 * (q @ q) ** 2


def _central():
    return _started(System(Euclidean(3), _central_lagrangian), jnp.array([0.8, 0.2, -0.3]), [0.1, 0.9, 0.5])


def _anharmonic_lagrangian(t, q, v, p) -> Array:
    x, y, z = q
    mass = jnp.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.2], [0.1, -0.2, 1.0]])
    return 0.5 * v @ mass @ v - 0.5 * q @ q - 0.25 * x**4 - 0.5 * x * x * y * y - jnp.cos(z)


def _contact(t, q, p) -> Array:
    return jnp.stack([-q[1], jnp.zeros_like(q[1]), jnp.ones_like(q[1])])[None]


def _anharmonic():
    return _started(
        System(Euclidean(3), _anharmonic_lagrangian, _contact), jnp.array([0.3, 0.5, -0.2]), [1.1, 0.7, 0.5]
    )


def _arms_lagrangian(t, q, v, p) -> Array:
    bend = jnp.cos(q[0] - q[1])
    kinetic = v[0] ** 2 + 0.5 * v[1] ** 2 + bend * v[0] * v[1] + 0.5 * (v[2] ** 2 + v[3] ** 2)
    return kinetic + 2 * jnp.cos(q[0]) + jnp.cos(q[1]) - 0.5 * (q[2] ** 2 + q[3] ** 2)


def _arms_constraint(t, q, p) -> Array:
    zero, one = jnp.zeros_like(q[0]), jnp.ones_like(q[0])
    return jnp.stack([jnp.stack([-jnp.sin(q[1]), zero, one, 0.2 * q[0]]), jnp.stack([zero, -q[2], zero, one])])


def _arms():
    system = System(Euclidean(4), _arms_lagrangian, _arms_constraint)
    return _started(system, jnp.array([0.6, -0.3, 0.4, 0.1]), [0.5, 0.9, 0.0, 0.0])


def _small_quartic():
    return chaotic_quartic(2), quartic_state(1.0, 2)


# -- the list -----------------------------------------------------------------------------------------------------------------
SYMMETRIES = {
    "rigid-body": _seen_from_space,
    "rigid-body-n": _seen_from_space,
    "veselova": _on_d,
    "chaplygin-sphere": _on_d,
}
OTHERS = (
    Case("heavy-suslov", _heavy_suslov, 0.1),
    Case("heavy-top", _heavy_top, 0.1, _about_the_vertical),
    Case("central-force", _central, 0.1, _rotations),
    Case("chaotic-quartic-2", _small_quartic, 0.1),
    Case("anharmonic-particle", _anharmonic, 0.05),
    Case("double-pendulum-with-followers", _arms, 0.05),
)
NOTES = {
    "heavy-suslov": "Suslov's body in a uniform field, a normal that is no axis",
    "heavy-top": "a heavy body on SO(3) with a fixed point, no constraint",
    "central-force": "R^3, V = |q|^2/2 + |q|^4/4, no constraint",
    "chaotic-quartic-2": "the chaotic quartic with n = 2, on R^5: small enough for a native kernel of every method",
    "anharmonic-particle": "z' = y x' on R^3, a full mass matrix, an anharmonic potential",
    "double-pendulum-with-followers": "R^4, two constraints, a mass matrix M(q), a potential",
}


def _model(name: str) -> Case:
    model = MODELS[name]

    def make():
        job = parse(
            {
                "system": {"name": name, **model.example},
                "method": dict(model.method),
                "initial": dict(model.initial),
                "run": {"step": model.step, "steps": 1},
            }
        )
        return job.system, job.state

    return Case(name, make, model.step, SYMMETRIES.get(name))


@cache
def cases() -> dict[str, Case]:
    """All of them by name, the same objects every time."""
    return {case.name: case for case in (*map(_model, MODELS), *OTHERS)}
