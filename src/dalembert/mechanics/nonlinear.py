"""Constraints phi(t, g, xi) = 0 that are not linear in the velocity, with Chetaev's reaction phi_xi^T l; vector fields.

Theorem 2.1 and Remark 6.1 of jimenez-scheurle: the motion is an ODE on the submanifold phi = 0 wherever phi_xi has full
rank. `RungeKutta` and `Reference` integrate that ODE, `LagrangeDAlembert` keeps phi = 0 at its nodes. A vector field on
a group, g' = g X(t, g), is a system as well: the constraint xi = X(t, g) leaves the velocity no freedom. Notation: see
`dalembert.mechanics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp

from ..errors import InvalidInput
from ..groups import Group
from ..numerics import find_root, follow_root, own_value, solve
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Covector, Element, Float, LinearMap, Number, Parameters, Scalar, Velocity
from .discretisation import FiniteDifference
from .system import MechanicalSystem, State, System, shaped, tangency


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("parameters",),
    meta_fields=("group", "lagrangian", "constraint", "drift", "force", "holonomic", "inputs"),
)
@dataclass(frozen=True, eq=False)
class NonlinearSystem(System):
    """(Q, L, phi): d/dt L_xi - ad*_xi L_xi - L_g - F = phi_xi^T l, phi(t, g, xi) = 0 ((5) of jimenez-scheurle).

    As `System`, but with `constraint(t, g, xi, p)` -> phi (m,); a `drift` b makes it phi = b. Rows of a `holonomic`
    constraint follow.
    """

    def residual(self, t: Scalar, g: Element, xi: Velocity) -> Float[Array, " m"]:
        """phi(t, g, xi), zero on the constraint; then dphi xi + phi_t of the holonomic ones."""
        own = self._own(t, g, xi)
        if self.holonomic is None:
            return own
        rows, rate = tangency(self.group, self.phi, t, g)
        return jnp.concatenate([own, rows @ xi + rate])

    def _own(self, t: Scalar, g: Element, xi: Velocity) -> Array:
        if self.constraint is None:
            return jnp.zeros(0)
        value = own_value("constraint(t, g, xi, p)", self.constraint, t, g, xi, self.parameters)
        if value.ndim != 1 or value.shape[0] >= self.group.dim:
            raise InvalidInput(
                f"constraint(t, g, xi, p) gave shape {value.shape}; allowed: (m,) with m < {self.group.dim}, one entry "
                f"for each constraint on xi in the algebra of {self.group}"
            )
        return value - self.drift(t, g, self.parameters) if self.drift is not None else value

    def rows(self, t: Scalar, g: Element) -> Callable[[Array], Array]:
        """xi -> phi_xi, shape (m, n)."""
        return jax.jacfwd(lambda xi: self.residual(t, g, xi))

    @property
    def constraints(self) -> int:
        return int(jax.eval_shape(self.residual, 0.0, self.group.identity(), self._zero()).shape[0])

    def A(self, t: Scalar, g: Element) -> LinearMap:
        raise InvalidInput(
            "a nonlinear constraint phi(t, g, xi) = 0 has no rows A(t, g), only system.rows(t, g)(xi); allowed for it: "
            "methods that need no more, among them lagrange-dalembert, runge-kutta and reference"
        )

    def b(self, t: Scalar, g: Element) -> Float[Array, " m"]:
        return self.A(t, g)

    def project(self, g: Element, xi: Any, t: Scalar = 0.0) -> Velocity:
        """The admissible velocity nearest to xi in the kinetic metric at (g, xi), by Newton's method from xi."""
        xi = jnp.asarray(xi, float)
        metric = self.metric(t, g, xi)
        return self._admissible(t, g, xi, lambda x: metric @ (x - xi))

    def velocity(self, t: Scalar, g: Element, momentum: Covector, near: Velocity | None = None) -> Velocity:
        """The velocity with L_xi + phi_xi^T l = momentum, phi = 0: from that of the free system."""

        def mismatch(xi: Array) -> Array:
            return self.momentum(t, g, xi) - momentum

        rest = self._zero()
        if self.quadratic:
            return self._admissible(t, g, rest - solve(self.metric(t, g, rest), mismatch(rest)), mismatch)
        return self._admissible(t, g, follow_root(mismatch, rest if near is None else near).x, mismatch)

    def _admissible(self, t: Scalar, g: Element, guess: Array, gradient: Callable[[Array], Array]) -> Array:
        """The critical point on the constraint, gradient(x) + phi_xi(x)^T l = 0, which Newton finds from `guess`."""
        n, m = self.group.dim, self.constraints
        rows = self.rows(t, g)

        def equations(x: Array) -> Array:
            return jnp.concatenate([gradient(x[:n]) + rows(x[:n]).T @ x[n:], self.residual(t, g, x[:n])])

        root = find_root(equations, jnp.concatenate([guess, jnp.zeros(m)]))
        return jnp.where(root.converged, root.x[:n], jnp.nan)


def perturbed(system: MechanicalSystem, g: Callable[..., Array], delta: Scalar = 1.0) -> NonlinearSystem:
    """The system on D_delta = {A xi - b + delta g(t, q, xi) = 0} (Remark 6.1, (91) to (96)); g(t, q, xi) -> (m,).

    `parameters` of the result are {"system", "delta"}: an ensemble may run over delta.
    """

    def constraint(t: Scalar, q: Element, xi: Array, p: dict[str, Any]) -> Array:
        system: MechanicalSystem = p["system"]
        return system.residual(t, q, xi) + jnp.asarray(p["delta"]) * jnp.asarray(g(t, q, xi))

    return _with_constraint(system, constraint, {"delta": jnp.asarray(delta, float)})


def deformed(system: MechanicalSystem, difference: FiniteDifference, h: Scalar) -> NonlinearSystem:
    """The system on D_h = {(g, xi): (g tau(-(1-s) h xi), xi) in D}, which the nodes "deformed" of a method keep.

    For s = 1/2 it is (88) of jimenez-scheurle.
    """

    def constraint(t: Scalar, g: Element, xi: Array, p: dict[str, Any]) -> Array:
        system: MechanicalSystem = p["system"]
        ahead = (1 - difference.node) * p["step"]
        inner = system.group.compose(g, difference.retraction.tau(system.group, -ahead * xi))
        return system.residual(t - ahead, inner, xi)

    return _with_constraint(system, constraint, {"step": jnp.asarray(h, float)})


def _with_constraint(
    system: MechanicalSystem, constraint: Callable[..., Array], parameters: dict[str, Array]
) -> NonlinearSystem:
    both = {"system": system, **parameters}
    return NonlinearSystem(system.group, _lagrangian, constraint, parameters=both, force=_force, inputs=system.inputs)


def _lagrangian(t: Scalar, g: Element, xi: Array, p: dict[str, Any]) -> Array:
    return cast(MechanicalSystem, p["system"]).L(t, g, xi)


def _force(t: Scalar, g: Element, xi: Array, u: Controls, p: dict[str, Any]) -> Array:
    return cast(MechanicalSystem, p["system"]).F(t, g, xi, u)


@partial(jax.tree_util.register_dataclass, data_fields=("parameters",), meta_fields=("group", "field"))
@dataclass(frozen=True, eq=False)
class VectorField(MechanicalSystem):
    """g' = g X with X = `field(t, g, p)` in the algebra (retraction-maps, section III C).

    In the formalism of (Q, L, D) it is A = 1, b = X with L = |xi|^2/2, so that every integrator of constrained systems
    runs it.
    """

    group: Group
    field: Callable[..., Array]
    parameters: Parameters = None

    def L(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        return 0.5 * xi @ xi

    def A(self, t: Scalar, g: Element) -> LinearMap:
        return jnp.eye(self.group.dim)

    def b(self, t: Scalar, g: Element) -> Float[Array, " m"]:
        words = "field(t, g, p)"
        return shaped(words, own_value(words, self.field, t, g, self.parameters), (self.group.dim,))

    def F(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> Covector:
        return jnp.zeros(self.group.dim)

    def velocity(self, t: Scalar, g: Element, momentum: Covector, near: Velocity | None = None) -> Velocity:
        return self.b(t, g)

    def state(self, g: Any = None, xi: Any = None, *, momentum: Any = None, t: Scalar = 0.0) -> State:
        """The state at g: its velocity is the field."""
        g = self.group.identity() if g is None else self.group.element(g)
        return super().state(g, self.b(t, g) if xi is None and momentum is None else xi, momentum=momentum, t=t)
