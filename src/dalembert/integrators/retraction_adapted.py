"""Retraction-map integrators adapted to a constant subspace (retraction-maps 2026, corrected as the errata say)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from jax import Array

from .._linalg import solve
from ..differences import FiniteDifference
from ..invariant import InvariantSystem
from ..retractions import Cayley, Retraction
from ..system import State
from .base import Integrator, Prediction, StepInfo, fine, info
from .euler_poincare_suslov import require_invariant


class Carry(NamedTuple):
    """The node g with its restricted momentum in the basis of d."""

    t: Array
    g: Any
    restricted: Array
    prediction: Prediction


@dataclass(frozen=True)
class RetractionAdapted(Integrator):
    """The cotangent-lifted discretisation map restricted to d* (retraction-maps (11), (12)), for any node s.

    With xi = h B eta, P = I B eta and a = h pi* iota* F - (1 - pi* iota*) ad*_xi P, the step solves iota* mu0 = mubar_k for eta
    and takes mubar_{k+1} = iota* mu1. At s = 0 it is Euler-Poincare-Suslov with l_d = h l(tau^-1(W)/h).
    """

    retraction: Retraction = Cayley()
    node: float = 0.5
    name = "retraction-adapted"

    def __post_init__(self):
        FiniteDifference(self.retraction, self.node)

    @property
    def difference(self) -> FiniteDifference:
        return FiniteDifference(self.retraction, self.node)

    def start(self, system: InvariantSystem, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        basis = system.subspace
        restricted = basis.T @ state.momentum if state.momentum.shape[0] == basis.shape[0] else state.momentum
        eta = self._coordinates(system, restricted)
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        return Carry(state.t, state.g, restricted, Prediction.at(eta)), fine(multipliers)

    def step(self, system: InvariantSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        basis = system.subspace
        root = carry.prediction.solve(
            lambda eta: basis.T @ self._momenta(system, carry, eta, h, u)[0] - carry.restricted
        )
        _, mu1 = self._momenta(system, carry, root.x, h, u)
        g = system.group.normalise(self.difference.end(system.group, carry.g, h * basis @ root.x))
        xi = basis @ root.x
        middle = self.difference.inner(system.group, carry.g, h * xi)
        multipliers = system.multipliers(carry.t + self.node * h, middle, xi, u)
        return Carry(carry.t + h, g, basis.T @ mu1, carry.prediction.advanced(root)), info(
            carry.prediction, root, multipliers
        )

    def observe(self, system: InvariantSystem, carry: Carry, h) -> State:
        xi = system.subspace @ self._coordinates(system, carry.restricted)
        return State(carry.t, carry.g, xi, carry.restricted, system.subspace @ carry.prediction.x)

    def require(self, system, state: State, h: float) -> None:
        require_invariant(self, system)
        super().require(system, state, h)

    def _coordinates(self, system: InvariantSystem, restricted) -> Array:
        basis = system.subspace
        return solve(basis.T @ system.inertia @ basis, restricted)

    def _momenta(self, system: InvariantSystem, carry: Carry, eta, h, u) -> tuple[Array, Array]:
        """(mu0, mu1) of a step with velocity B eta."""
        group, basis = system.group, system.subspace
        w = basis @ eta
        t = carry.t + self.node * h
        inner = self.difference.inner(group, carry.g, h * w)

        def onto(covector):  # pi* iota*
            return system.inertia @ basis @ self._coordinates(system, basis.T @ covector)

        momentum = system.inertia @ w
        free = h * group.ad_star(w, momentum)
        impulse = onto(h * (system.L_g(t, inner, w) + system.F(t, inner, w, u))) - (free - onto(free))
        return self.difference.momenta(group, h * w, momentum, impulse)
