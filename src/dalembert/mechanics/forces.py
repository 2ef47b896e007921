"""Forces put on a system from outside: friction that only ever takes energy, and feedback that chooses the controls.

Both leave (Q, L, D) as it is. Coefficients are leaves of the pytree, so ensembles, sweeps and gradients reach them.
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..groups import Group
from ..numerics import not_negative, own_value, positive, real, require_function, require_instance
from ..numerics.types import AnyArray as Array
from ..numerics.types import ArrayLike, Controls, Covector, Element, Float, LinearMap, Number, Scalar, Velocity
from .system import Input, MechanicalSystem, shaped

Force = Callable[[Any, Any, Array], Array]  # (t, g, xi) -> a covector, or the controls


@dataclass(frozen=True, eq=False)
class Driven(MechanicalSystem):
    """A system with another force; everything else is the system's own."""

    system: MechanicalSystem

    @property
    def group(self) -> Group:  # type: ignore[override]  # a field of other systems
        return self.system.group

    @property
    def inputs(self) -> tuple[Input, ...] | None:  # type: ignore[override]  # a field of other systems
        return self.system.inputs

    @property
    def constraints(self) -> int:
        return self.system.constraints

    @property
    def quadratic(self) -> bool:
        return self.system.quadratic

    @property
    def inertia(self) -> Array:
        """Of an invariant system."""
        return cast(Any, self.system).inertia  # type: ignore[no-any-return]

    @property
    def subspace(self) -> Array:
        """Of an invariant system."""
        return cast(Any, self.system).subspace  # type: ignore[no-any-return]

    @property
    def annihilator(self) -> Array:
        """Of an invariant system."""
        return cast(Any, self.system).annihilator  # type: ignore[no-any-return]

    def L(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        return self.system.L(t, g, xi)

    def A(self, t: Scalar, g: Element) -> LinearMap:
        return self.system.A(t, g)

    def b(self, t: Scalar, g: Element) -> Float[Array, " m"]:
        return self.system.b(t, g)

    def phi(self, t: Scalar, g: Element) -> Float[Array, " k"]:
        return self.system.phi(t, g)

    def residual(self, t: Scalar, g: Element, xi: Velocity) -> Float[Array, " m"]:
        return self.system.residual(t, g, xi)

    def rows(self, t: Scalar, g: Element) -> Callable[[Array], Array]:
        return self.system.rows(t, g)

    def project(self, g: Element, xi: Any, t: Scalar = 0.0) -> Velocity:
        return self.system.project(g, xi, t)

    def velocity(self, t: Scalar, g: Element, momentum: Covector, near: Velocity | None = None) -> Velocity:
        return self.system.velocity(t, g, momentum, near)

    def basis(self, t: Scalar, g: Element) -> Float[Array, "n r"]:
        return self.system.basis(t, g)


@partial(jax.tree_util.register_dataclass, data_fields=("system", "force"), meta_fields=())
@dataclass(frozen=True, eq=False)
class Forced(Driven):
    """A system with one more force on it, `force(t, g, xi)` -> covector; see `forced`."""

    force: Force

    def F(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> Covector:
        added = own_value("force(t, g, xi)", self.force, t, g, xi)
        return self.system.F(t, g, xi, u) + shaped("force(t, g, xi)", added, (self.group.dim,))


@partial(jax.tree_util.register_dataclass, data_fields=("system", "policy"), meta_fields=())
@dataclass(frozen=True, eq=False)
class Steered(Driven):
    """A system whose controls are u = `policy(t, g, xi)`: a closed loop; see `steered`."""

    policy: Force
    inputs = ()  # the policy gives them all

    def F(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> Covector:
        return self.system.F(t, g, xi, self.policy(t, g, xi))


def forced(system: MechanicalSystem, force: Force) -> Forced:
    """The system with `force(t, g, xi)` added: a function, or a pytree with `__call__` and parameters as leaves."""
    return Forced(system, _pytree("force", system, force))


def steered(system: MechanicalSystem, policy: Force) -> Steered:
    """The closed loop with the feedback u = `policy(t, g, xi)`: a function, or a pytree with `__call__`."""
    return Steered(system, _pytree("policy", system, policy))


def unforced(system: MechanicalSystem) -> MechanicalSystem:
    """The system without the forces and the feedback that were put on it."""
    return unforced(system.system) if isinstance(system, Driven) else system


def with_friction(
    system: MechanicalSystem,
    *,
    viscous: ArrayLike = 0.0,
    dry: ArrayLike = 0.0,
    along: Any = None,
    width: ArrayLike = 1e-3,
) -> Forced:
    """The system with `Friction` on the velocities `along` @ xi (rows (k, n), or one row; default: all of xi).

    Several kinds add up: with_friction(with_friction(car, viscous=0.1), dry=2.0, along=[0, 1, 0, 0]).
    """
    require_instance("system", system, MechanicalSystem, "a system")
    n = system.group.dim
    rows = jnp.eye(n) if along is None else jnp.atleast_2d(real("along", along))
    if rows.ndim != 2 or rows.shape[1] != n:
        raise InvalidInput(f"along has shape {np.shape(along)}; allowed: ({n},) or (k, {n})")
    values = not_negative("viscous", viscous), not_negative("dry", dry), positive("width", width)
    return Forced(system, Friction(rows, *values))


@partial(jax.tree_util.register_dataclass, data_fields=("along", "viscous", "dry", "width"), meta_fields=())
@dataclass(frozen=True)
class Friction:
    """F = -S^T (viscous + dry/sqrt(|s|^2 + width^2)) s with s = S xi: the gradient of a Rayleigh function.

    `dry` is the largest size of the force (Coulomb's mu N; for a wheel the rolling resistance), reached where |s| is
    many times `width`: below that the force is smooth, and a body creeps instead of sticking. The power <F, xi> is
    never positive.
    """

    along: Any  # rows (k, n); the others are numbers. JAX puts placeholders into them when it flattens
    viscous: Any
    dry: Any
    width: Any

    def __call__(self, t: Scalar, g: Element, xi: Velocity) -> Covector:
        s = self.along @ xi
        size = self.viscous + self.dry / jnp.sqrt(s @ s + self.width**2)
        return cast(Array, -size * (self.along.T @ s))


def _pytree(name: str, system: MechanicalSystem, function: Force) -> Force:
    """A function as a pytree without leaves; what is a pytree already stays one."""
    require_instance("system", system, MechanicalSystem, "a system")
    require_function(name, function, "(t, g, xi)", optional=False)
    is_leaf = jax.tree_util.all_leaves([function])
    return cast(Force, jax.tree_util.Partial(function)) if is_leaf else function  # type: ignore[no-untyped-call]
