"""Discrete Euler-Poincare-Suslov equations of invariant systems (fedorov-zenkov 2004, garcia-naranjo-jimenez 2016)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from .._linalg import solve
from .._newton import follow_root
from ..discretisation import (
    Discretisation,
    invariant_pair,
    moser_veselov,
    moser_veselov_legendre,
    reduced_legendre,
    retracted,
)
from ..errors import InvalidInput, UnknownName
from ..invariant import InvariantSystem
from ..retractions import Cayley, Retraction
from ..system import State
from .base import Integrator, Prediction, StepInfo, info

LAGRANGIANS = ("moser-veselov", "retraction")


class Carry(NamedTuple):
    """The node g_k with its momentum M_k = F l_d(W_k) and the coordinates eta of its displacement W_k = tau(h B eta)."""

    t: Array
    g: Any
    momentum: Array
    prediction: Prediction


@dataclass(frozen=True)
class EulerPoincareSuslov(Integrator):
    """iota* M_{k+1} = iota* Ad*_{W_k} M_k with M = F l_d(W) and W in tau(d): (7) of garcia-naranjo-jimenez, (3.8) of fedorov-zenkov.

    l_d is "moser-veselov", "retraction" (h l(tau^-1(W)/h)), or a function (W, h, system) of your own. The map is
    multivalued; a run stays on the branch through 0 and reports the step at which that branch ends. Order 2.
    """

    lagrangian: str | Callable = "moser-veselov"
    retraction: Retraction = Cayley()
    name = "euler-poincare-suslov"

    def __post_init__(self):
        if not callable(self.lagrangian) and self.lagrangian not in LAGRANGIANS:
            raise UnknownName("discrete Lagrangian", self.lagrangian, LAGRANGIANS)

    def pair(self, system: InvariantSystem) -> Discretisation:
        """The pair (L_d, D_d) of this method, for checks and for `LagrangeDAlembert(pair=...)`."""
        return invariant_pair(system, self._reduced(), self.retraction)

    def legendre(self, system: InvariantSystem, w, h) -> Array:
        """M = F l_d(tau(h w)), in closed form for the Lagrangians that have a name."""
        if self.lagrangian == "retraction":
            return self.retraction.right_inverse_star(system.group, h * w, system.inertia @ w)
        W = self.retraction.tau(system.group, h * w)
        if self.lagrangian == "moser-veselov":
            return moser_veselov_legendre(W, h, system)
        return reduced_legendre(self._reduced(), W, h, system)

    def start(self, system: InvariantSystem, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        """Invert the discrete Legendre map on the branch through 0, by continuation from momentum 0."""
        target = system.subspace.T @ state.momentum
        root = follow_root(lambda eta: self._restricted(system, eta, h) - target, jnp.zeros_like(target))
        unknown = Prediction.at(root.x)
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        momentum = self.legendre(system, system.subspace @ root.x, h)
        return Carry(state.t, state.g, momentum, unknown._replace(sign=root.sign)), info(unknown, root, multipliers)

    def step(self, system: InvariantSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        group, rows = system.group, system.annihilator
        displacement = self.retraction.tau(group, h * system.subspace @ carry.prediction.x)
        transported = group.Ad_star(displacement, carry.momentum)
        target = system.subspace.T @ transported
        root = carry.prediction.solve(lambda eta: self._restricted(system, eta, h) - target)
        # The reaction is all that the new momentum takes from F l_d: on d it is the transported one to the last bit, so
        # that the round-off of the solve never enters the energy.
        reaction = solve(rows @ rows.T, rows @ (self.legendre(system, system.subspace @ root.x, h) - transported))
        momentum, multipliers = transported + rows.T @ reaction, reaction / h
        g = group.normalise(group.compose(carry.g, displacement))
        return Carry(carry.t + h, g, momentum, carry.prediction.advanced(root)), info(
            carry.prediction, root, multipliers
        )

    def observe(self, system: InvariantSystem, carry: Carry, h) -> State:
        xi = system.subspace @ self._coordinates(system, carry.momentum)
        return State(carry.t, carry.g, xi, carry.momentum, system.subspace @ carry.prediction.x)

    def require(self, system, state: State, h: float) -> None:
        require_invariant(self, system)
        if system.potential is not None:
            raise InvalidInput(
                f"{self.name} needs a system without potential; use lagrange-dalembert or retraction-adapted"
            )
        if self.lagrangian == "moser-veselov":
            system.mass_matrix()
        super().require(system, state, h)

    def _reduced(self) -> Callable:
        if callable(self.lagrangian):
            return self.lagrangian
        return moser_veselov if self.lagrangian == "moser-veselov" else retracted(self.retraction)

    def _restricted(self, system: InvariantSystem, eta, h) -> Array:
        return system.subspace.T @ self.legendre(system, system.subspace @ eta, h)

    def _coordinates(self, system: InvariantSystem, momentum) -> Array:
        """The coordinates in d of the velocity with the same restricted momentum."""
        basis = system.subspace
        return solve(basis.T @ system.inertia @ basis, basis.T @ momentum)


def require_invariant(integrator: Integrator, system) -> None:
    if not isinstance(system, InvariantSystem):
        raise InvalidInput(
            f"{integrator.name} needs an InvariantSystem (group, inertia, subspace); given {type(system).__name__}. Use LagrangeDAlembert"
        )
