"""The methods of retraction-maps (2026): a discretisation map, its two lifts, and the integrator adapted to d.

The discretisation map is D(g, xi) = (g tau(-s xi), g tau((1-s) xi)). Its lifts know nothing of a constraint: they are
the paper's counterexamples. `RetractionAdapted` is corrected as the errata say.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import InvalidInput
from ..groups import Group
from ..mechanics import FiniteDifference, InvariantSystem, MechanicalSystem, State, VectorField, without_forces
from ..numerics import find_root, solve
from ..numerics.types import Array, Controls, Covector, Element, Scalar, Velocity
from .base import Claims, NodeMethod, Prediction, Result, StepInfo
from .properties import is_conservative, is_purely_inertial, is_unconstrained, require_invariant
from .registry import register

Point = tuple[Element, Array]  # of the tangent or the cotangent bundle, left-trivialised


def tangent_lift(
    difference: FiniteDifference, group: Group, g: Element, xi: Velocity, eta: Velocity, zeta: Velocity
) -> tuple[Point, Point]:
    """The tangent lift (8) of the discretisation map, ((g0, xi0), (g1, xi1)): a discretisation map on TG.

    It is the derivative of D after the canonical involution. (eta, zeta) = (g^-1 g', xi') is the tangent vector at
    (g, xi). The involution makes it the variation (xi, zeta + [eta, xi]) of (g, eta), and
    xi_i = Ad_{tau^-1} xi + d^L tau (-s or 1-s) (zeta + [eta, xi]).
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
    """The cotangent lift (9) of the discretisation map, ((g0, mu0), (g1, mu1)): a discretisation map on T*G.

    `rate` is mu' along (g, mu)' = (xi, mu'). Dual to (8): mu1 . xi1 - mu0 . xi0 = mu' . xi + mu . zeta. The
    impulse at g is mu' - ad*_xi mu, the 4th slot of (16).
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
            reversible=symmetric and not isinstance(system, VectorField) and is_conservative(system), group=True,
            condition="order 2 and symmetric at node 1/2"
        )  # fmt: skip

    @abstractmethod
    def _lift(self, system: Any, carry: Carry, w: Velocity, h: Scalar, u: Controls) -> tuple[Array, Array, Array]:
        """(what vanishes at the velocity w of the step, what it carries to its end, the multipliers)."""

    def step(self, system: Any, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        root = carry.prediction.solve(lambda w: self._lift(system, carry, w, h, u)[0])
        _, carried, multipliers = self._lift(system, carry, root.x, h, u)
        g = system.group.restore(self.difference.end(system.group, carry.g, h * root.x))
        new = Carry(carry.t + h, g, carried, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, multipliers)


@dataclass(frozen=True)
class RetractionMap(_Lifted):
    """For first-order equations g' = g X on a group (`VectorField`): order 2 at the node s = 1/2, else 1.

    h X(t~, g~) = xi with g_k = g~ tau(-s xi), g_{k+1} = g~ tau((1-s) xi): (7) of retraction-maps. Lagrange-d'Alembert
    does the same when the constraint xi = X leaves the velocity no freedom.
    """

    name = "retraction-map"

    def start(self, system: VectorField, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        info = StepInfo.explicit(jnp.zeros(system.group.dim))
        return Carry(state.t, state.g, jnp.zeros(0), Prediction.at(state.xi)), info

    def _lift(self, system: Any, carry: Carry, w: Velocity, h: Scalar, u: Controls) -> tuple[Array, Array, Array]:
        inner = self.difference.inner(system.group, carry.g, h * w)
        return w - system.b(carry.t + self.node * h, inner), carry.carried, jnp.zeros_like(w)

    def observe(self, system: VectorField, carry: Carry, h: Scalar) -> State:
        xi = system.b(carry.t, carry.g)
        return State(carry.t, carry.g, xi, xi, carry.prediction.x)

    checks_numbers_of = "nothing"

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        if not isinstance(system, VectorField):
            raise InvalidInput(
                f"{self.name} needs a VectorField(group, field); given {type(system).__name__}. "
                "For a mechanical system use tangent-lift"
            )
        super().require(system, state, h)


@register(
    words="A symmetric rule for the velocities that does not use d'Alembert's principle.",
    use_when="you study the counterexample of retraction-maps on TG",
)
@dataclass(frozen=True)
class TangentLift(_Lifted):
    """The paper's counterexample on TG: a symmetric rule for velocities, under which the constraint drifts.

    The integrator (7) of retraction-maps with the tangent-lifted map (8) for g' = g xi, xi' = acceleration. With eta =
    h xi~ it solves xi_k = xi~ - s d^L tau_{-s eta} h xi~' for xi~ at g~. Order 2 at s = 1/2, else 1.
    """

    name = "tangent-lift"

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        return Carry(state.t, state.g, state.xi, Prediction.at(state.xi)), StepInfo.at(system, state, u)

    def _lift(self, system: Any, carry: Carry, w: Velocity, h: Scalar, u: Controls) -> tuple[Array, Array, Array]:
        inner = self.difference.inner(system.group, carry.g, h * w)
        rate, multipliers = system.acceleration(carry.t + self.node * h, inner, w, u)
        (_, xi0), (_, xi1) = tangent_lift(self.difference, system.group, inner, w, h * w, h * rate)
        return xi0 - carry.carried, xi1, multipliers

    def observe(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> State:
        xi = carry.carried
        return State(carry.t, carry.g, xi, system.momentum(carry.t, carry.g, xi), carry.prediction.x)


@register(
    words="A symmetric rule for the momenta that does not use d'Alembert's principle.",
    use_when="you study the counterexample of retraction-maps on T*G, or a system without constraint",
)
@dataclass(frozen=True)
class CotangentLift(_Lifted):
    """The paper's counterexample on T*G: symplectic without a constraint; with one, constraint and energy drift.

    The unadapted integrator (10) of retraction-maps: the cotangent-lifted map (9) with the field on all of T*G. mu' has
    the reaction A^T l of the constrained motion at (g~, xi~), xi~ in all of the algebra. Without a constraint it is the
    variational integrator.
    """

    name = "cotangent-lift"

    def claims(self, system: MechanicalSystem) -> Claims:
        variational = is_unconstrained(system) and is_conservative(system)
        return replace(super().claims(system), momentum=variational, symplectic=variational)

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        momentum = system.momentum(state.t, state.g, state.xi)
        return Carry(state.t, state.g, momentum, Prediction.at(state.xi)), StepInfo.at(system, state, u)

    def _lift(self, system: Any, carry: Carry, w: Velocity, h: Scalar, u: Controls) -> tuple[Array, Array, Array]:
        t, inner = carry.t + self.node * h, self.difference.inner(system.group, carry.g, h * w)
        multipliers = system.multipliers(t, inner, w, u)
        force = system.L_g(t, inner, w) + system.F(t, inner, w, u) + system.rows(t, inner)(w).T @ multipliers
        balance, mu1 = self.difference.reaction(system.group, h * w, carry.carried, h * force)
        return balance - system.momentum(t, inner, w), mu1, multipliers

    def observe(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> State:
        """The velocity of the whole momentum: it may be off D."""

        def mismatch(xi: Velocity) -> Array:
            return system.momentum(carry.t, carry.g, xi) - carry.carried

        w = carry.prediction.x
        xi = w - solve(jax.jacfwd(mismatch)(w), mismatch(w)) if system.quadratic else find_root(mismatch, w).x
        return State(carry.t, carry.g, xi, carry.carried, w)


class AdaptedCarry(NamedTuple):
    """The node g with its restricted momentum in the basis of d."""

    t: Array
    g: Element
    restricted: Array
    prediction: Prediction


@register(
    words="A midpoint rule for the momenta along the constraint: for bodies with a potential.",
    use_when="a body has a potential and a constraint that is constant in its axes, as the heavy Suslov body",
)
@dataclass(frozen=True)
class RetractionAdapted(NodeMethod):
    """For left-invariant systems with potentials: the constraint is built into the unknowns; order 2 at node 1/2.

    The cotangent-lifted discretisation map restricted to d* (retraction-maps (11), (12)), for any node s. With xi =
    h B eta, P = I B eta and a = h pi* iota* F - (1 - pi* iota*) ad*_xi P, the step solves iota* mu0 = mubar_k for eta
    and takes mubar_{k+1} = iota* mu1. At s = 0 it is Euler-Poincare-Suslov with l_d = h l(tau^-1(W)/h).
    """

    name = "retraction-adapted"
    carry_is_step_free = True
    needs = (lambda method, system: require_invariant(method, without_forces(system)),)
    checks_numbers_of = "nothing"

    def adjoint(self) -> RetractionAdapted:
        return replace(self, node=1 - self.node)

    def claims(self, system: InvariantSystem) -> Claims:
        symmetric, still = self.node == 0.5, is_conservative(system)
        return Claims(
            2 if symmetric or is_purely_inertial(system) else 1, symmetric=symmetric, reversible=symmetric and still,
            constraint=True, group=True, momentum=still and is_unconstrained(system),
            symplectic=still and is_unconstrained(system),
            condition="order 2 and symmetric at node 1/2, order 2 at every node without potential"
        )  # fmt: skip

    def start(self, system: InvariantSystem, state: State, h: Scalar, u: Controls = None) -> Result[AdaptedCarry]:
        basis = system.subspace
        restricted = basis.T @ state.momentum if state.momentum.shape[0] == basis.shape[0] else state.momentum
        eta = self._coordinates(system, restricted)
        unknown = eta if self._closed(system) else jnp.concatenate([eta, jnp.zeros(system.constraints)])
        return AdaptedCarry(state.t, state.g, restricted, Prediction.at(unknown)), StepInfo.at(system, state, u)

    def step(self, system: InvariantSystem, carry: AdaptedCarry, h: Scalar, u: Controls = None) -> Result[AdaptedCarry]:
        group = system.group
        root = carry.prediction.solve(lambda x: self._equations(system, carry, x, h, u)[0])
        _, restricted = self._equations(system, carry, root.x, h, u)
        xi = self._velocity(system, root.x)
        g = group.restore(self.difference.end(group, carry.g, h * xi))
        inner = self.difference.inner(group, carry.g, h * xi)
        multipliers = system.multipliers(carry.t + self.node * h, inner, xi, u)
        new = AdaptedCarry(carry.t + h, g, restricted, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, multipliers)

    def observe(self, system: InvariantSystem, carry: AdaptedCarry, h: Scalar) -> State:
        xi = system.subspace @ self._coordinates(system, carry.restricted)
        return State(carry.t, carry.g, xi, carry.restricted, self._velocity(system, carry.prediction.x))

    def _closed(self, system: InvariantSystem) -> bool:
        """Whether the discrete Legendre maps have closed forms: then eta is the only unknown."""
        return self.node in (0, 1) or self.difference.explicit(system.group)

    def _equations(
        self, system: InvariantSystem, carry: AdaptedCarry, x: Array, h: Scalar, u: Controls
    ) -> tuple[Array, Array]:
        """(iota* mu0 - mubar_k, iota* mu1) for x = eta or, where dtau* is not inverted, x = (eta, l).

        Then mu0 = pi* mubar_k + A^T l, and the equations are those of what pairs with dxi, less P.
        """
        group, basis, w = system.group, system.subspace, self._velocity(system, x)
        P, t, inner = system.inertia @ w, carry.t + self.node * h, self.difference.inner(group, carry.g, h * w)

        def lift(restricted: Array) -> Array:
            """pi*: the momentum of the velocity in d with this restricted momentum."""
            return system.inertia @ (basis @ self._coordinates(system, restricted))

        free = h * group.ad_star(w, P)
        force = lift(basis.T @ (h * (system.L_g(t, inner, w) + system.F(t, inner, w, u))))
        impulse = force - (free - lift(basis.T @ free))
        if not self._closed(system):
            mu0 = lift(carry.restricted) + system.annihilator.T @ x[basis.shape[1] :]
            balance, mu1 = self.difference.reaction(group, h * w, mu0, impulse)
            return balance - P, basis.T @ mu1
        mu0, mu1 = self.difference.momenta(group, h * w, P, impulse)
        end = basis.T @ mu1
        if self.difference.explicit(group):
            end = carry.restricted + basis.T @ self.difference.gain(group, h * w, P, impulse)
        return basis.T @ mu0 - carry.restricted, end

    def _velocity(self, system: InvariantSystem, x: Array) -> Array:
        return system.subspace @ x[: system.subspace.shape[1]]

    def _coordinates(self, system: InvariantSystem, restricted: Array) -> Array:
        basis = system.subspace
        return solve(basis.T @ system.inertia @ basis, restricted)
