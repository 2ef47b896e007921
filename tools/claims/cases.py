"""What is measured: systems (every model with its example, and a few that no model has) and methods with their options.

Every method is measured with its defaults on all systems, and with other options on a panel of systems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dalembert.groups import SO3, Euclidean
from dalembert.integrators import METHODS, Integrator, Reference
from dalembert.io.config import parse_job
from dalembert.mechanics import InvariantSystem, LRSystem, MechanicalSystem, State, System
from dalembert.models import MODELS, chaotic_quartic, quartic_state, rigid_body_n, sleigh_n, suslov

MASS_2 = [[1.4, 0.1], [0.1, 1.1]]
MASS_3 = [[1.4, 0.1, 0.2], [0.1, 1.1, -0.1], [0.2, -0.1, 1.7]]
MASS_4 = [[1.4, 0.1, 0.2, 0.0], [0.1, 1.1, -0.1, 0.1], [0.2, -0.1, 1.7, 0.3], [0.0, 0.1, 0.3, 1.2]]
INERTIA = [[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]]


@dataclass(frozen=True)
class Case:
    """A system with a state and a step that resolves its motion.

    `symmetry(system, g)` has the generators (n, k) of the momenta that the system conserves.
    """

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


def _left_translations(system: MechanicalSystem, g) -> Array:
    """All left translations: the momentum in space."""
    group = system.group
    return jax.vmap(lambda e: group.Ad(group.inverse(g), e), in_axes=1, out_axes=1)(jnp.eye(group.dim))


def _vertical_rotation(system: MechanicalSystem, g) -> Array:
    return g.T[:, 2:]


def _basis_of_d(system: MechanicalSystem, g) -> Array:
    assert isinstance(system, LRSystem)
    return system.basis(0.0, g)


def _rotations(system: MechanicalSystem, q) -> Array:
    return jax.vmap(lambda e: jnp.cross(e, q), in_axes=1, out_axes=1)(jnp.eye(3))


def _start_on_constraint(system: MechanicalSystem, g, xi) -> tuple[MechanicalSystem, State]:
    return system, system.state(g, jax.jit(type(system).project)(system, g, jnp.asarray(xi)))


def _heavy_suslov():
    system = suslov(INERTIA, normal=[0.3, -0.2, 1.0], weight=[0.8, -0.5, 1.5])
    return _start_on_constraint(system, system.group.exp(jnp.array([0.4, 0.7, -0.3])), [0.9, -0.6, 0.2])


def _weight(t, g, p) -> Array:
    return p @ g[2]


def _heavy_top():
    system = InvariantSystem(SO3(), INERTIA, potential=_weight, parameters=jnp.array([0.8, -0.5, 1.5]))
    return _start_on_constraint(system, system.group.exp(jnp.array([0.4, 0.7, -0.3])), [0.9, -0.6, 0.7])


def _central_lagrangian(t, q, v, p) -> Array:
    return 0.5 * v @ v - 0.5 * q @ q - 0.25 * (q @ q) ** 2


def _central():
    return _start_on_constraint(System(Euclidean(3), _central_lagrangian), jnp.array([0.8, 0.2, -0.3]), [0.1, 0.9, 0.5])


def _anharmonic_lagrangian(t, q, v, p) -> Array:
    x, y, z = q
    mass = jnp.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.2], [0.1, -0.2, 1.0]])
    return 0.5 * v @ mass @ v - 0.5 * q @ q - 0.25 * x**4 - 0.5 * x * x * y * y - jnp.cos(z)


def _contact(t, q, p) -> Array:
    return jnp.stack([-q[1], jnp.zeros_like(q[1]), jnp.ones_like(q[1])])[None]


def _anharmonic():
    return _start_on_constraint(
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
    return _start_on_constraint(system, jnp.array([0.6, -0.3, 0.4, 0.1]), [0.5, 0.9, 0.0, 0.0])


def _quartic():
    return chaotic_quartic(2), quartic_state(1.0, 2)


def _draw_subspace(body: MechanicalSystem, rank: int, seed: int) -> tuple[MechanicalSystem, State]:
    """The body of a system with a random subspace d of this rank, and a random velocity in it.

    Almost every such d of a rank between 2 and n - 1 is no Lie triple system: [[d, d], d] is not in d.
    """
    assert isinstance(body, InvariantSystem)
    draw = np.random.default_rng(seed)
    d = np.linalg.qr(draw.standard_normal((body.group.dim, rank)))[0]
    system = InvariantSystem(body.group, body.inertia, subspace=d)
    return system, system.state(xi=d @ draw.standard_normal(rank))


def _draw_on_so4() -> tuple[MechanicalSystem, State]:
    return _draw_subspace(rigid_body_n(MASS_4), 5, seed=4)


def _draw_on_se2() -> tuple[MechanicalSystem, State]:
    return _draw_subspace(sleigh_n(MASS_2, [0.3, 0.2]), 2, seed=2)


def _draw_on_se3() -> tuple[MechanicalSystem, State]:
    return _draw_subspace(sleigh_n(MASS_3, [0.3, 0.2, -0.1]), 4, seed=3)


SYMMETRIES = {
    "rigid-body": _left_translations,
    "rigid-body-n": _left_translations,
    "veselova": _basis_of_d,
    "chaplygin-sphere": _basis_of_d,
}
OTHER_CASES = (
    Case("heavy-suslov", _heavy_suslov, 0.1),
    Case("heavy-top", _heavy_top, 0.1, _vertical_rotation),
    Case("central-force", _central, 0.1, _rotations),
    Case("chaotic-quartic-2", _quartic, 0.1),
    Case("anharmonic-particle", _anharmonic, 0.05),
    Case("double-pendulum-with-followers", _arms, 0.05),
    Case("random-subspace-so4", _draw_on_so4, 0.1),
    Case("random-subspace-se2", _draw_on_se2, 0.1),
    Case("random-subspace-se3", _draw_on_se3, 0.1),
)
NOTES = {
    "heavy-suslov": "Suslov's body in a uniform field, a normal that is no axis",
    "heavy-top": "a heavy body on SO(3) with a fixed point, no constraint",
    "central-force": "R^3, V = |q|^2/2 + |q|^4/4, no constraint",
    "chaotic-quartic-2": "the chaotic quartic with n = 2, on R^5: small enough for a native kernel of every method",
    "anharmonic-particle": "z' = y x' on R^3, a full mass matrix, an anharmonic potential",
    "double-pendulum-with-followers": "R^4, two constraints, a mass matrix M(q), a potential",
    "random-subspace-so4": "a body on SO(4) whose velocity lies in a random d of rank 5, no Lie triple system",
    "random-subspace-se2": "a body on SE(2) whose velocity lies in a random d of rank 2",
    "random-subspace-se3": "a body on SE(3) whose velocity lies in a random d of rank 4, no Lie triple system",
}


def _model(name: str) -> Case:
    model = MODELS[name]

    def make():
        job = parse_job(
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
    """All of them by name, the same objects every time; not the mechanisms, whose methods compile for minutes."""
    small = [name for name, model in MODELS.items() if not model.starts_by_names]
    return {case.name: case for case in (*map(_model, small), *OTHER_CASES)}


EXPONENTIAL = "exponential"
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "lagrange-dalembert": [
        {"retraction": EXPONENTIAL},
        {"node": 0.0},
        {"node": 0.3, "retraction": EXPONENTIAL},
        {"nodes": "velocity"},
        {"nodes": "velocity", "node": 0.0},
        {"nodes": "deformed"},
    ],
    "euler-poincare-suslov": [
        {"retraction": EXPONENTIAL},
        {"lagrangian": "retraction"},
        {"lagrangian": "retraction", "retraction": EXPONENTIAL},
    ],
    "retraction-adapted": [{"retraction": EXPONENTIAL}, {"node": 0.0}, {"node": 0.3, "retraction": EXPONENTIAL}],
    "leapfrog": [{"retraction": EXPONENTIAL}],
    "geometric-nonholonomic": [{"node": 0.0}, {"node": 0.3, "retraction": EXPONENTIAL}],
    "discrete-moser-veselov": [
        *({"order": order} for order in (2, 4, 6, 8, 10)),
        *({"order": order, "variant": "scaled"} for order in (4, 6, 8)),
    ],
    "rattle": [{"order": order} for order in (4, 6, 8)],
    "kinetic-splitting": [{"order": 4}],
    "tangent-lift": [{"node": 0.0}],
    "cotangent-lift": [{"node": 0.0}],
    "discrete-lr": [
        {"retraction": EXPONENTIAL},
        {"lagrangian": "retraction"},
        {"lagrangian": "retraction", "retraction": EXPONENTIAL},
    ],
    "discrete-gradient": [{"gradient": "average"}, {"gradient": "itoh-abe"}, {"retraction": EXPONENTIAL}],
    "gauss": [{"stages": 1}, {"stages": 3}, {"stages": 4}, {"retraction": EXPONENTIAL}],
    "lobatto": [
        {"stages": 2},
        {"stages": 4},
        {"retraction": EXPONENTIAL},
        *({"form": "spark", "stages": stages} for stages in (2, 3, 4)),
        {"form": "spark", "family": "C"},
        {"form": "spark", "family": "D"},
    ],
    "projected-runge-kutta": [{"onto": "energy"}],
    "composition": [
        *({"scheme": s} for s in ("yoshida-4", "suzuki-4", "yoshida-6", "suzuki-umeno-8", "kahan-li-8")),
        {"scheme": "suzuki-4", "node": 0.0},
        {"scheme": "suzuki-4", "base": {"name": "discrete-gradient"}},
        {"scheme": "suzuki-4", "base": {"name": "retraction-adapted"}},
        {"scheme": "kahan-li-6", "base": {"name": "gauss", "stages": 1}},
        {"scheme": "sofroniou-spaletta-10"},
    ],
}
PANEL = (
    "nonholonomic-particle",
    "pendulum-cvt",
    "heavy-suslov",
    "chaplygin-sleigh",
    "suslov",
    "double-pendulum-with-followers",
    "veselova",
    "rigid-body",
    "heavy-top",
    "central-force",
)
"""Where the variants are measured: seven nonholonomic systems, then three without constraint."""


@dataclass(frozen=True)
class Variant:
    """A method with its options: the defaults are measured on all systems, others on the panel."""

    label: str
    integrator: Integrator
    options: Mapping[str, Any]

    def fits(self, case: Case) -> bool:
        """Whether this variant is measured there; another retraction is no other method on R^n."""
        if not self.options:
            return True
        if case.name not in PANEL:
            return False
        return set(self.options) != {"retraction"} or not isinstance(case.system.group, Euclidean)


def _label(name: str, options: Mapping[str, Any]) -> str:
    said = [f"{v['name']}" if isinstance(v, Mapping) else f"{k} {v}" for k, v in options.items()]
    return f"{name}, {', '.join(said)}" if said else name


@cache
def variants() -> dict[str, Variant]:
    """All of them by label, the defaults first."""
    wanted: list[tuple[str, dict[str, Any]]] = [
        (name, {}) for name, method in METHODS.items() if method.build is not Reference
    ]
    wanted += [(name, options) for name in METHODS for options in OPTIONS.get(name, [])]
    made = [Variant(_label(name, options), METHODS[name].make(options), options) for name, options in wanted]
    return {variant.label: variant for variant in made}
