"""Retraction-map integrators adapted to a constant subspace (retraction-maps 2026, corrected as the errata say)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp

from ..mechanics import InvariantSystem, MechanicalSystem, State, unforced
from ..numerics import solve
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Covector, Element, Scalar, Velocity
from .base import Claims, NodeMethod, Prediction, Result, StepInfo
from .properties import conservative, purely_inertial, require_invariant, unconstrained
from .registry import register


class Carry(NamedTuple):
    """The node g with its restricted momentum in the basis of d."""

    t: Array
    g: Element
    restricted: Array
    prediction: Prediction


@register(
    words="A midpoint rule for the momenta that the constraint leaves: for bodies with a potential.",
    use_when="a body has a potential and d is constant, as the heavy Suslov body or the knife edge",
)
@dataclass(frozen=True)
class RetractionAdapted(NodeMethod):
    """The cotangent-lifted discretisation map restricted to d* (retraction-maps (11), (12)), for any node s.

    With xi = h B eta, P = I B eta and a = h pi* iota* F - (1 - pi* iota*) ad*_xi P, the step solves iota* mu0 = mubar_k
    for eta and takes mubar_{k+1} = iota* mu1. At s = 0 it is Euler-Poincare-Suslov with l_d = h l(tau^-1(W)/h).
    """

    name = "retraction-adapted"
    carry_is_step_free = True

    def adjoint(self) -> RetractionAdapted:
        return replace(self, node=1 - self.node)

    def claims(self, system: InvariantSystem) -> Claims:
        symmetric, still = self.node == 0.5, conservative(system)
        return Claims(
            2 if symmetric or purely_inertial(system) else 1, symmetric=symmetric, reversible=symmetric and still,
            constraint=True, group=True, momentum=still and unconstrained(system),
            symplectic=still and unconstrained(system),
            condition="order 2 and symmetric at node 1/2, order 2 at every node without potential"
        )  # fmt: skip

    def start(self, system: InvariantSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        basis = system.subspace
        restricted = basis.T @ state.momentum if state.momentum.shape[0] == basis.shape[0] else state.momentum
        eta = self._coordinates(system, restricted)
        unknown = eta if self._closed(system) else jnp.concatenate([eta, jnp.zeros(system.constraints)])
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        return Carry(state.t, state.g, restricted, Prediction.at(unknown)), StepInfo.explicit(multipliers)

    def step(self, system: InvariantSystem, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        group = system.group
        equations = self._on_d if self._closed(system) else self._on_g
        root = carry.prediction.solve(lambda x: equations(system, carry, x, h, u)[0])
        _, restricted = equations(system, carry, root.x, h, u)
        xi = self._velocity(system, root.x)
        g = group.normalise(self.difference.end(group, carry.g, h * xi))
        inner = self.difference.inner(group, carry.g, h * xi)
        multipliers = system.multipliers(carry.t + self.node * h, inner, xi, u)
        new = Carry(carry.t + h, g, restricted, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, multipliers)

    def observe(self, system: InvariantSystem, carry: Carry, h: Scalar) -> State:
        xi = system.subspace @ self._coordinates(system, carry.restricted)
        return State(carry.t, carry.g, xi, carry.restricted, self._velocity(system, carry.prediction.x))

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        require_invariant(self, unforced(system))
        super().require(system, state, h)

    def _closed(self, system: InvariantSystem) -> bool:
        """Whether the discrete Legendre maps have closed forms: then eta is the only unknown."""
        return self.node in (0, 1) or self.difference.explicit(system.group)

    def _on_d(
        self, system: InvariantSystem, carry: Carry, eta: Velocity, h: Scalar, u: Controls
    ) -> tuple[Array, Array]:
        """(iota* mu0 - mubar_k, iota* mu1)."""
        w, momentum, impulse = self._impulse(system, carry, eta, h, u)
        basis, step = system.subspace, (system.group, h * w, momentum, impulse)
        mu0, mu1 = self.difference.momenta(*step)
        gained = self.difference.explicit(system.group)
        end = carry.restricted + basis.T @ self.difference.gain(*step) if gained else basis.T @ mu1
        return basis.T @ mu0 - carry.restricted, end

    def _on_g(self, system: InvariantSystem, carry: Carry, x: Array, h: Scalar, u: Controls) -> tuple[Array, Array]:
        """(what pairs with dxi less P, iota* mu1) for x = (eta, l) and mu0 = pi* mubar_k + A^T l.

        The same equations without inverting dtau*.
        """
        rank = carry.restricted.shape[0]
        w, momentum, impulse = self._impulse(system, carry, x[:rank], h, u)
        mu0 = self._lift(system, carry.restricted) + system.annihilator.T @ x[rank:]
        balance, mu1 = self.difference.reaction(system.group, h * w, mu0, impulse)
        return balance - momentum, system.subspace.T @ mu1

    def _impulse(
        self, system: InvariantSystem, carry: Carry, eta: Velocity, h: Scalar, u: Controls
    ) -> tuple[Array, Array, Array]:
        """(B eta, P, a) of a step with velocity B eta."""
        w = system.subspace @ eta
        momentum, t = system.inertia @ w, carry.t + self.node * h
        inner = self.difference.inner(system.group, carry.g, h * w)

        def onto(covector: Covector) -> Array:  # pi* iota*
            return self._lift(system, system.subspace.T @ covector)

        free = h * system.group.ad_star(w, momentum)
        return w, momentum, onto(h * (system.L_g(t, inner, w) + system.F(t, inner, w, u))) - (free - onto(free))

    def _velocity(self, system: InvariantSystem, x: Array) -> Array:
        return system.subspace @ x[: system.subspace.shape[1]]

    def _lift(self, system: InvariantSystem, restricted: Array) -> Array:
        """pi*: the momentum of the velocity in d with this restricted momentum."""
        return system.inertia @ (system.subspace @ self._coordinates(system, restricted))

    def _coordinates(self, system: InvariantSystem, restricted: Array) -> Array:
        basis = system.subspace
        return solve(basis.T @ system.inertia @ basis, restricted)
