"""Discrete Euler-Poincare-Suslov equations of invariant systems, and their sibling for LR systems.

(G, I, d): fedorov-zenkov 2004, garcia-naranjo-jimenez 2016. Left-invariant L_d with a right-invariant D_d: announced by
fedorov-zenkov 2004, section 8; Fedorov 2007.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp

from ..errors import InvalidInput, require_name
from ..groups import Cayley, Retraction
from ..mechanics import Discretisation, InvariantSystem, LRSystem, MechanicalSystem, State, discretisation
from ..numerics import follow_root, solve
from ..numerics.types import Array, Controls, Element, Scalar, Velocity
from .base import Claims, Integrator, Prediction, Result, StepInfo
from .properties import is_unconstrained, lie_triple_subspace, require_invariant
from .registry import register

LAGRANGIANS = ("moser-veselov", "retraction")
ReducedLagrangian = Callable[[Element, Scalar, Any], Array]  # (W, h, system)


class Carry(NamedTuple):
    """The node g_k with h M_k = h F l_d(W_k) and the coordinates x of its displacement W_k = tau(B x).

    Both are scaled by h, as the papers have them: no step then multiplies or divides by it.
    """

    t: Array
    g: Element
    impulse: Array
    prediction: Prediction


@dataclass(frozen=True)
class _Reduced(Integrator):
    """What both methods share: the reduced discrete Lagrangian l_d, and what a carry shows."""

    lagrangian: str | ReducedLagrangian = "moser-veselov"
    retraction: Retraction = Cayley()

    def __post_init__(self) -> None:
        if not callable(self.lagrangian):
            require_name("discrete Lagrangian", self.lagrangian, LAGRANGIANS)

    def claims(self, system: MechanicalSystem) -> Claims:
        named = not callable(self.lagrangian)
        return Claims(2 if named else 1, symmetric=named, reversible=named, constraint=True, group=True, momentum=True)

    @property
    def reduced(self) -> ReducedLagrangian:
        """l_d as a function (W, h, system)."""
        if callable(self.lagrangian):
            return self.lagrangian
        return (
            discretisation.moser_veselov
            if self.lagrangian == "moser-veselov"
            else discretisation.retracted_lagrangian(self.retraction)
        )

    def pair(self, system: InvariantSystem | LRSystem) -> Discretisation:
        """The pair (L_d, D_d) of this method, for checks and for `LagrangeDAlembert(pair=...)`."""
        return discretisation.invariant_pair(system, self.reduced, self.retraction)

    def observe(self, system: InvariantSystem | LRSystem, carry: Any, h: Scalar) -> State:
        momentum = carry.impulse / h
        xi = system.velocity(carry.t, carry.g, momentum)
        return State(carry.t, carry.g, xi, momentum, system.basis(carry.t, carry.g) @ carry.prediction.x / h)


@register(
    words="The discrete principle reduced by symmetry: conserves the energy of Suslov's body and of the sleigh.",
    use_when="runs are long and the system is left-invariant without potential, as Suslov's body or the sleigh",
)
@dataclass(frozen=True)
class EulerPoincareSuslov(_Reduced):
    """The discrete Euler-Poincare-Suslov equations, for left-invariant systems without force; order 2.

    iota* M_{k+1} = iota* Ad*_{W_k} M_k with M = F l_d(W) and W in tau(d): (7) of garcia-naranjo-jimenez, (3.8) of
    fedorov-zenkov; iota* restricts a momentum to d. l_d is "moser-veselov", which conserves the energy where d is half
    of a symmetric pair, "retraction" (h l(tau^-1(W)/h)), or a function (W, h, system) of your own. The map is
    multivalued; a run stays on the branch through 0 and reports the step at which that branch ends.
    """

    name = "euler-poincare-suslov"

    def claims(self, system: MechanicalSystem) -> Claims:
        return replace(
            super().claims(system), symplectic=is_unconstrained(system),
            energy=self.lagrangian == "moser-veselov" and lie_triple_subspace(system),
            condition="energy: Moser-Veselov with [[d, d], d] in d; a Lagrangian of your own claims order 1"
        )  # fmt: skip

    def impulse(self, system: InvariantSystem, xi: Velocity, h: Scalar) -> Array:
        """h F l_d(tau(xi)), in closed form for the Lagrangians that have a name (they do not need h)."""
        if self.lagrangian == "retraction":
            return self.retraction.right_inverse_star(system.group, xi, system.inertia @ xi)
        if self.lagrangian == "moser-veselov":
            return discretisation.moser_veselov_impulse(self.retraction, xi, system)
        return h * discretisation.reduced_legendre(self.reduced, self.retraction.tau(system.group, xi), h, system)

    def legendre(self, system: InvariantSystem, w: Velocity, h: Scalar) -> Array:
        """M = F l_d(tau(h w))."""
        return self.impulse(system, h * w, h) / h

    def start(self, system: InvariantSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        """Invert the discrete Legendre map on the branch through 0, by continuation from momentum 0."""
        target = h * system.subspace.T @ state.momentum
        root = follow_root(lambda x: self._mismatch(system, x, target, h), jnp.zeros_like(target))
        unknown = Prediction.at(root.x)
        impulse = self.impulse(system, system.subspace @ root.x, h)
        carry = Carry(state.t, state.g, impulse, unknown._replace(sign=root.sign))
        return carry, StepInfo.from_root(unknown, root, system.multipliers(state.t, state.g, state.xi, u))

    def step(self, system: InvariantSystem, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        group, rows = system.group, system.annihilator
        displacement = self.retraction.tau(group, system.subspace @ carry.prediction.x)
        transported = group.Ad_star(displacement, carry.impulse)
        target = system.subspace.T @ transported
        found = lambda x: self.impulse(system, system.subspace @ x, h)
        root = carry.prediction.solve(lambda x: self._mismatch(system, x, target, h), more=found)
        # The new momentum takes only the reaction from F l_d. On d it is the transported one to the last bit, so that
        # the round-off of the solve never enters the energy.
        reaction = solve(rows @ rows.T, rows @ (root.more - transported))
        g = group.restore(group.compose(carry.g, displacement))
        new = Carry(carry.t + h, g, transported + rows.T @ reaction, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, reaction / h**2)

    checks_numbers_of = "system"

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        body = require_invariant(self, system)
        if body.potential is not None:
            raise InvalidInput(
                f"{self.name} needs a system without potential; use lagrange-dalembert or retraction-adapted"
            )
        if self.lagrangian == "moser-veselov":
            body.require_body()
        super().require(system, state, h)

    def _mismatch(self, system: InvariantSystem, x: Array, target: Array, h: Scalar) -> Array:
        """iota* h F l_d(tau(B x)) - target; where it is a quotient, its denominator is taken out (`find_root`)."""
        return system.subspace.T @ self.impulse(system, system.subspace @ x, h) - target


class LRCarry(NamedTuple):
    """The node g, h times its momentum M, the conserved c = h B^T Ad*_{g^-1} M, and y of the displacement tau(B y)."""

    t: Array
    g: Element
    impulse: Array
    conserved: Array
    prediction: Prediction


@register(
    words="For constraints that are fixed in space, as Veselova's: conserves their momentum.",
    use_when="the kinetic energy is left-invariant and the constraint right-invariant",
)
@dataclass(frozen=True)
class DiscreteLR(_Reduced):
    """For bodies whose constraint is fixed in space (LR systems): conserves their momentum on d; order 2.

    B^T m_{k+1} = B^T m_k with m = Ad*_{g^-1} F l_d(W), W = g_k^-1 g_{k+1}, g_{k+1} g_k^-1 in tau(d) and a basis B of d:
    the discrete Lagrange-d'Alembert equations of an LR system. A step inverts the Legendre map once, at a new g. l_d is
    "moser-veselov", "retraction" or a function, as for `EulerPoincareSuslov`.
    """

    name = "discrete-lr"

    def claims(self, system: MechanicalSystem) -> Claims:
        return replace(super().claims(system), condition="the momentum seen from space, on d")

    @property
    def free(self) -> EulerPoincareSuslov:
        """The method with the same l_d for left-invariant systems."""
        return EulerPoincareSuslov(self.lagrangian, self.retraction)

    def impulse(self, system: LRSystem, g: Element, y: Array, h: Scalar) -> Array:
        """h F l_d(W) of the displacement g^-1 tau(B y) g = tau(Ad_{g^-1} B y)."""
        return self.free.impulse(system.body, system.basis(0.0, g) @ y, h)

    def start(self, system: LRSystem, state: State, h: Scalar, u: Controls = None) -> Result[LRCarry]:
        conserved = h * system.basis(state.t, state.g).T @ state.momentum
        root = follow_root(lambda y: self._mismatch(system, state.g, y, conserved, h), jnp.zeros_like(conserved))
        unknown = Prediction.at(root.x)
        impulse = self.impulse(system, state.g, root.x, h)
        carry = LRCarry(state.t, state.g, impulse, conserved, unknown._replace(sign=root.sign))
        return carry, StepInfo.from_root(unknown, root, system.multipliers(state.t, state.g, state.xi, u))

    def step(self, system: LRSystem, carry: LRCarry, h: Scalar, u: Controls = None) -> Result[LRCarry]:
        group = system.group
        displacement = self.retraction.tau(group, system.subspace @ carry.prediction.x)
        g = group.restore(group.compose(displacement, carry.g))
        found = lambda y: self.impulse(system, g, y, h)
        root = carry.prediction.solve(lambda y: self._mismatch(system, g, y, carry.conserved, h), more=found)
        impulse = root.more
        rows = system.A(carry.t, g)
        W = self.retraction.tau(group, system.basis(carry.t, carry.g) @ carry.prediction.x)
        reaction = solve(rows @ rows.T, rows @ (impulse - group.Ad_star(W, carry.impulse)))
        new = LRCarry(carry.t + h, g, impulse, carry.conserved, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, reaction / h**2)

    checks_numbers_of = "system"

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        if not isinstance(system, LRSystem):
            raise InvalidInput(
                f"{self.name} needs an LRSystem (group, inertia, subspace); given {type(system).__name__}"
            )
        if self.lagrangian == "moser-veselov":
            system.body.require_body()
        super().require(system, state, h)

    def _mismatch(self, system: LRSystem, g: Element, y: Array, conserved: Array, h: Scalar) -> Array:
        return system.basis(0.0, g).T @ self.impulse(system, g, y, h) - conserved
