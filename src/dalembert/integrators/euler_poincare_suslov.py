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
    moser_veselov_fraction,
    moser_veselov_impulse,
    reduced_legendre,
    retracted,
)
from ..errors import InvalidInput, UnknownName
from ..groups.rotations import Rotations
from ..invariant import InvariantSystem
from ..retractions import Cayley, Retraction
from ..system import State
from .base import Claims, Integrator, Prediction, StepInfo, info
from .claims import unconstrained

LAGRANGIANS = ("moser-veselov", "retraction")


class Carry(NamedTuple):
    """The node g_k with h M_k = h F l_d(W_k) and the coordinates x of its displacement W_k = tau(B x).

    Both are scaled by h, as the papers have them: no step then multiplies or divides by it.
    """

    t: Array
    g: Any
    impulse: Array
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

    def claims(self, system) -> Claims:
        named = not callable(self.lagrangian)
        return Claims(
            2 if named else 1,
            symmetric=named,
            reversible=named,
            constraint=True,
            group=True,
            energy=self.lagrangian == "moser-veselov" and isinstance(system.group, Rotations),
            momentum=True,
            symplectic=unconstrained(system),
            condition="energy with the Moser-Veselov Lagrangian on SO(n); a Lagrangian of your own claims order 1",
        )

    def pair(self, system: InvariantSystem) -> Discretisation:
        """The pair (L_d, D_d) of this method, for checks and for `LagrangeDAlembert(pair=...)`."""
        return invariant_pair(system, self.reduced, self.retraction)

    def impulse(self, system: InvariantSystem, xi, h) -> Array:
        """h F l_d(tau(xi)), in closed form for the Lagrangians that have a name (they do not need h)."""
        if self.lagrangian == "retraction":
            return self.retraction.right_inverse_star(system.group, xi, system.inertia @ xi)
        if self.lagrangian == "moser-veselov":
            return moser_veselov_impulse(self.retraction, xi, system)
        return h * reduced_legendre(self.reduced, self.retraction.tau(system.group, xi), h, system)

    def legendre(self, system: InvariantSystem, w, h) -> Array:
        """M = F l_d(tau(h w))."""
        return self.impulse(system, h * w, h) / h

    def start(self, system: InvariantSystem, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        """Invert the discrete Legendre map on the branch through 0, by continuation from momentum 0."""
        target = h * system.subspace.T @ state.momentum
        root = follow_root(lambda x: self._mismatch(system, x, target, h), jnp.zeros_like(target))
        unknown = Prediction.at(root.x)
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        impulse = self.impulse(system, system.subspace @ root.x, h)
        return Carry(state.t, state.g, impulse, unknown._replace(sign=root.sign)), info(unknown, root, multipliers)

    def step(self, system: InvariantSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        group, rows = system.group, system.annihilator
        displacement = self.retraction.tau(group, system.subspace @ carry.prediction.x)
        transported = group.Ad_star(displacement, carry.impulse)
        target = system.subspace.T @ transported
        root = carry.prediction.solve(lambda x: self._mismatch(system, x, target, h))
        # The reaction is all that the new momentum takes from F l_d: on d it is the transported one to the last bit, so
        # that the round-off of the solve never enters the energy.
        reaction = solve(rows @ rows.T, rows @ (self.impulse(system, system.subspace @ root.x, h) - transported))
        g = group.normalise(group.compose(carry.g, displacement))
        new = Carry(carry.t + h, g, transported + rows.T @ reaction, carry.prediction.advanced(root))
        return new, info(carry.prediction, root, reaction / h**2)

    def observe(self, system: InvariantSystem, carry: Carry, h) -> State:
        momentum = carry.impulse / h
        xi = system.velocity(carry.t, carry.g, momentum)
        return State(carry.t, carry.g, xi, momentum, system.subspace @ carry.prediction.x / h)

    def require(self, system, state: State, h: float) -> None:
        require_invariant(self, system)
        if system.potential is not None:
            raise InvalidInput(
                f"{self.name} needs a system without potential; use lagrange-dalembert or retraction-adapted"
            )
        if self.lagrangian == "moser-veselov":
            system.require_body()
        super().require(system, state, h)

    @property
    def reduced(self) -> Callable:
        """l_d as a function (W, h, system)."""
        if callable(self.lagrangian):
            return self.lagrangian
        return moser_veselov if self.lagrangian == "moser-veselov" else retracted(self.retraction)

    def _mismatch(self, system: InvariantSystem, x, target, h) -> Array:
        """iota* h F l_d(tau(B x)) - target, multiplied by the common denominator where there is one."""
        xi = system.subspace @ x
        if self.lagrangian == "moser-veselov":
            numerator, c = moser_veselov_fraction(self.retraction, xi, system)
            return system.subspace.T @ numerator - c * target
        return system.subspace.T @ self.impulse(system, xi, h) - target


def require_invariant(integrator: Integrator, system) -> None:
    """Refuse a system that is not (G, I, d)."""
    if not isinstance(system, InvariantSystem):
        raise InvalidInput(
            f"{integrator.name} needs an InvariantSystem (group, inertia, subspace); given {type(system).__name__}. Use LagrangeDAlembert"
        )
