"""Discrete LR systems: left-invariant L_d, right-invariant D_d (announced by fedorov-zenkov 2004, section 8; Fedorov 2007)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from .._linalg import solve
from .._newton import follow_root
from ..discretisation import Discretisation, invariant_pair
from ..errors import InvalidInput
from ..retractions import Cayley, Retraction
from ..right_invariant import LRSystem
from ..system import State
from .base import Claims, Integrator, Prediction, StepInfo, info
from .euler_poincare_suslov import EulerPoincareSuslov


class Carry(NamedTuple):
    """The node g with h times its momentum M, the conserved c = h B^T Ad*_g^-1 M, and y: the next displacement is tau(B y)."""

    t: Array
    g: Any
    impulse: Array
    conserved: Array
    prediction: Prediction


@dataclass(frozen=True)
class DiscreteLR(Integrator):
    """B^T m_{k+1} = B^T m_k with m = Ad*_g^-1 F l_d(W), W = g_k^-1 g_{k+1} and g_{k+1} g_k^-1 in tau(d), d with basis B.

    The discrete Lagrange-d'Alembert equations of an LR system say that the momentum seen from space keeps its components on d: each
    step is one inversion of the Legendre map at a new g. l_d is "moser-veselov", "retraction" or a function, as for
    euler-poincare-suslov. Order 2.
    """

    lagrangian: str | Callable = "moser-veselov"
    retraction: Retraction = Cayley()
    name = "discrete-lr"

    def __post_init__(self):
        EulerPoincareSuslov(self.lagrangian, self.retraction)

    def claims(self, system: LRSystem) -> Claims:
        theirs = self.free.claims(system)
        return replace(theirs, energy=False, symplectic=False, condition="the momentum seen from space, on d")

    @property
    def free(self) -> EulerPoincareSuslov:
        """The method with the same l_d for left-invariant systems."""
        return EulerPoincareSuslov(self.lagrangian, self.retraction)

    def pair(self, system: LRSystem) -> Discretisation:
        """The pair (L_d, D_d) of this method, for `LagrangeDAlembert(pair=...)`."""
        return invariant_pair(system, self.free.reduced, self.retraction)

    def impulse(self, system: LRSystem, g, y, h) -> Array:
        """h F l_d(W) of the displacement g^-1 tau(B y) g = tau(Ad_g^-1 B y)."""
        return self.free.impulse(system.body, system.basis(0.0, g) @ y, h)

    def start(self, system: LRSystem, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        conserved = h * system.basis(state.t, state.g).T @ state.momentum
        root = follow_root(lambda y: self._mismatch(system, state.g, y, conserved, h), jnp.zeros_like(conserved))
        unknown = Prediction.at(root.x)
        impulse = self.impulse(system, state.g, root.x, h)
        carry = Carry(state.t, state.g, impulse, conserved, unknown._replace(sign=root.sign))
        return carry, info(unknown, root, system.multipliers(state.t, state.g, state.xi, u))

    def step(self, system: LRSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        group = system.group
        displacement = self.retraction.tau(group, system.subspace @ carry.prediction.x)
        g = group.normalise(group.compose(displacement, carry.g))
        root = carry.prediction.solve(lambda y: self._mismatch(system, g, y, carry.conserved, h))
        impulse = self.impulse(system, g, root.x, h)
        rows = system.A(carry.t, g)
        W = self.retraction.tau(group, system.basis(carry.t, carry.g) @ carry.prediction.x)
        reaction = solve(rows @ rows.T, rows @ (impulse - group.Ad_star(W, carry.impulse)))
        new = Carry(carry.t + h, g, impulse, carry.conserved, carry.prediction.advanced(root))
        return new, info(carry.prediction, root, reaction / h**2)

    def observe(self, system: LRSystem, carry: Carry, h) -> State:
        momentum = carry.impulse / h
        xi = system.velocity(carry.t, carry.g, momentum)
        return State(carry.t, carry.g, xi, momentum, system.basis(carry.t, carry.g) @ carry.prediction.x / h)

    def require(self, system, state: State, h: float) -> None:
        if not isinstance(system, LRSystem):
            raise InvalidInput(
                f"{self.name} needs an LRSystem (group, inertia, subspace); given {type(system).__name__}"
            )
        if self.lagrangian == "moser-veselov":
            system.body.require_body()
        super().require(system, state, h)

    def _mismatch(self, system: LRSystem, g, y, conserved, h) -> Array:
        return system.basis(0.0, g).T @ self.impulse(system, g, y, h) - conserved
