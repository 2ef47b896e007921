"""The framework of retraction-maps: a discretisation map D(g, xi) = (g tau(-s xi), g tau((1-s) xi)) and its two lifts.

The lifts to the tangent and the cotangent bundle know nothing of a constraint: they are the paper's counterexamples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import InvalidInput
from ..groups import Group
from ..mechanics import FiniteDifference, MechanicalSystem, State, VectorField
from ..numerics import Root, find_root, solve
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Covector, Element, Scalar, Velocity
from .base import Claims, NodeMethod, Prediction, Result, StepInfo
from .properties import conservative, unconstrained
from .registry import register

Point = tuple[Element, Array]  # of the tangent or the cotangent bundle, left-trivialised


def tangent_lift(
    difference: FiniteDifference, group: Group, g: Element, xi: Velocity, eta: Velocity, zeta: Velocity
) -> tuple[Point, Point]:
    """((g0, xi0), (g1, xi1)) of (8), the derivative of D after the canonical involution: a discretisation map on TG.

    (eta, zeta) = (g^-1 g', xi') is the tangent vector at (g, xi). The involution makes it the variation
    (xi, zeta + [eta, xi]) of (g, eta), and xi_i = Ad_{tau^-1} xi + d^L tau (-s or 1-s) (zeta + [eta, xi]).
    """
    tau, varied = difference.retraction, zeta + group.ad(eta, xi)

    def end(share: float | int) -> tuple[Element, Array]:
        factor = tau.tau(group, share * eta)
        turned = group.Ad(group.inverse(factor), xi)
        return group.compose(g, factor), turned + share * tau.left(group, share * eta, varied)

    return end(-difference.node), end(1 - difference.node)


def cotangent_lift(
    difference: FiniteDifference, group: Group, g: Element, mu: Covector, xi: Velocity, rate: Array
) -> tuple[Point, Point]:
    """((g0, mu0), (g1, mu1)) of (9), the discretisation map on T*G: `rate` = mu' along (g, mu)' = (xi, mu').

    Dual to (8): mu1 . xi1 - mu0 . xi0 = mu' . xi + mu . zeta. The impulse at g is mu' - ad*_xi mu, the 4th slot of
    (16).
    """
    start = group.compose(g, difference.retraction.tau(group, -difference.node * xi))
    mu0, mu1 = difference.momenta(group, xi, mu, rate - group.ad_star(xi, mu))
    return (start, mu0), (difference.end(group, start, xi), mu1)


class Carry(NamedTuple):
    """The node g, the velocity or momentum that the method carries there, and the velocity w at the inner point."""

    t: Array
    g: Element
    carried: Array
    prediction: Prediction


@dataclass(frozen=True)
class _Lifted(NodeMethod):
    def claims(self, system: MechanicalSystem) -> Claims:
        symmetric = self.node == 0.5
        return Claims(
            2 if symmetric else 1, symmetric=symmetric,
            reversible=symmetric and not isinstance(system, VectorField) and conservative(system), group=True,
            condition="order 2 and symmetric at node 1/2"
        )  # fmt: skip

    def _next_carry(
        self, system: MechanicalSystem, carry: Carry, root: Root, carried: Array, h: Scalar, multipliers: Array
    ) -> Result[Carry]:
        g = system.group.normalise(self.difference.end(system.group, carry.g, h * root.x))
        new = Carry(carry.t + h, g, carried, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, multipliers)


@dataclass(frozen=True)
class RetractionMap(_Lifted):
    """h X(t~, g~) = xi with g_k = g~ tau(-s xi), g_{k+1} = g~ tau((1-s) xi): (7) of retraction-maps.

    For any vector field on a group. Order 2 at s = 1/2, else 1. Lagrange-d'Alembert does the same when the constraint
    xi = X leaves the velocity no freedom.
    """

    name = "retraction-map"

    def start(self, system: VectorField, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        info = StepInfo.explicit(jnp.zeros(system.group.dim))
        return Carry(state.t, state.g, jnp.zeros(0), Prediction.at(state.xi)), info

    def step(self, system: VectorField, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        def gap(w: Velocity) -> Array:
            return w - system.b(carry.t + self.node * h, self.difference.inner(system.group, carry.g, h * w))

        root = carry.prediction.solve(gap)
        return self._next_carry(system, carry, root, carry.carried, h, jnp.zeros(system.group.dim))

    def observe(self, system: VectorField, carry: Carry, h: Scalar) -> State:
        xi = system.b(carry.t, carry.g)
        return State(carry.t, carry.g, xi, xi, carry.prediction.x)

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        if not isinstance(system, VectorField):
            raise InvalidInput(
                f"{self.name} needs a VectorField(group, field); given {type(system).__name__}. "
                "For a mechanical system use tangent-lift"
            )
        super().require(system, state, h)


@register(
    words="A symmetric rule for the velocities that knows nothing of d'Alembert's principle.",
    use_when="you study the counterexample of retraction-maps on TG",
)
@dataclass(frozen=True)
class TangentLift(_Lifted):
    """The framework's integrator (7) with the tangent-lifted map (8) for g' = g xi, xi' = acceleration on TG.

    With eta = h xi~ it solves xi_k = xi~ - s d^L tau_{-s eta} h xi~' for xi~ at g~. Order 2 at s = 1/2, else 1; the
    constraint drifts.
    """

    name = "tangent-lift"

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        return Carry(state.t, state.g, state.xi, Prediction.at(state.xi)), StepInfo.explicit(multipliers)

    def step(self, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        group, t = system.group, carry.t + self.node * h

        def lifted(w: Velocity) -> tuple[Any, Array]:
            inner = self.difference.inner(group, carry.g, h * w)
            rate, multipliers = system.acceleration(t, inner, w, u)
            return tangent_lift(self.difference, group, inner, w, h * w, h * rate), multipliers

        root = carry.prediction.solve(lambda w: lifted(w)[0][0][1] - carry.carried)
        (_, (_, xi)), multipliers = lifted(root.x)
        return self._next_carry(system, carry, root, xi, h, multipliers)

    def observe(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> State:
        xi = carry.carried
        return State(carry.t, carry.g, xi, system.momentum(carry.t, carry.g, xi), carry.prediction.x)


@register(
    words="A symmetric rule for the momenta that knows nothing of d'Alembert's principle.",
    use_when="you study the counterexample of retraction-maps on T*G, or a system without constraint",
)
@dataclass(frozen=True)
class CotangentLift(_Lifted):
    """The unadapted integrator (10) of retraction-maps: the cotangent-lifted map (9) with the field on all of T*G.

    mu' has the reaction A^T l of the constrained motion at (g~, xi~), xi~ in all of the algebra. Without constraint it
    is the variational integrator, symplectic; with one, neither the constraint nor the energy is kept: the paper's
    counterexample.
    """

    name = "cotangent-lift"

    def claims(self, system: MechanicalSystem) -> Claims:
        variational = unconstrained(system) and conservative(system)
        return replace(super().claims(system), momentum=variational, symplectic=variational)

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        momentum = system.momentum(state.t, state.g, state.xi)
        return Carry(state.t, state.g, momentum, Prediction.at(state.xi)), StepInfo.explicit(multipliers)

    def step(self, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        group, t = system.group, carry.t + self.node * h

        def moved(w: Velocity) -> tuple[Array, Array, Array]:
            inner = self.difference.inner(group, carry.g, h * w)
            multipliers = system.multipliers(t, inner, w, u)
            force = system.L_g(t, inner, w) + system.F(t, inner, w, u) + system.rows(t, inner)(w).T @ multipliers
            balance, mu1 = self.difference.reaction(group, h * w, carry.carried, h * force)
            return balance - system.momentum(t, inner, w), mu1, multipliers

        root = carry.prediction.solve(lambda w: moved(w)[0])
        _, mu1, multipliers = moved(root.x)
        return self._next_carry(system, carry, root, mu1, h, multipliers)

    def observe(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> State:
        """The velocity of the whole momentum: it may be off D."""

        def mismatch(xi: Velocity) -> Array:
            return system.momentum(carry.t, carry.g, xi) - carry.carried

        w = carry.prediction.x
        once = system.quadratic  # then one Newton step is the answer
        xi = w - solve(jax.jacfwd(mismatch)(w), mismatch(w)) if once else find_root(mismatch, w).x
        return State(carry.t, carry.g, xi, carry.carried, w)
