"""The discrete Lagrange-d'Alembert principle on any group, for any pair (L_d, D_d)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..differences import FiniteDifference
from ..discretisation import Discretisation
from ..errors import InvalidInput, OffConstraint, UnknownName
from ..retractions import Cayley, Retraction
from ..system import MechanicalSystem, State
from .base import Integrator, Prediction, StepInfo, fine, info

NODES = ("original", "velocity", "deformed")


class Carry(NamedTuple):
    """The node g at time t with its unprojected momentum p, and the last inner point g~ with the velocity w there."""

    t: Array
    g: Any
    p: Array
    inner: Any
    prediction: Prediction  # of (w, impulse h l)


@dataclass(frozen=True)
class LagrangeDAlembert(Integrator):
    """D1 L_d(g_k, g_{k+1}) + D2 L_d(g_{k-1}, g_k) = -h A(g_k)^T l_k, (g_k, g_{k+1}) in D_d, with L_d = h L o rho (jimenez-scheurle (59)).

    rho is the finite difference map of (retraction, node), or `pair` gives any other L_d and D_d. The order is 2 at
    node 1/2, else 1 (2 on force-free invariant systems). What a state means is `nodes`:
    "original": (g_k, v), v in D with the restricted momentum of p_k; composes, does not depend on h.
    "velocity": the redefined nodes (g~, w), on D exactly (Definition 5.6).
    "deformed": (g_{k+1}, w), on the deformed constraint (87)-(89).
    """

    retraction: Retraction = Cayley()
    node: float = 0.5
    nodes: str = "original"
    pair: Discretisation | None = None
    name = "lagrange-dalembert"

    def __post_init__(self):
        FiniteDifference(self.retraction, self.node)
        if self.nodes not in NODES:
            raise UnknownName("nodes", self.nodes, NODES)
        if self.pair is not None and self.nodes != "original":
            raise InvalidInput(
                f'nodes = "{self.nodes}" needs a finite difference map; a pair (L_d, D_d) has only its original nodes'
            )

    @property
    def difference(self) -> FiniteDifference:
        return FiniteDifference(self.retraction, self.node)

    def start(self, system, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        prediction = Prediction.at(jnp.concatenate([state.xi, h * multipliers]))
        if self.nodes == "original":
            return Carry(state.t, state.g, state.momentum, state.g, prediction), fine(multipliers)
        s, group, xi = self.node, system.group, h * state.xi
        shift = self.retraction.tau(group, (1 - s) * xi)
        moved = self.nodes == "velocity"
        inner = state.g if moved else group.compose(state.g, group.inverse(shift))
        g = group.compose(inner, shift) if moved else state.g
        t = state.t if moved else state.t - (1 - s) * h  # of the inner point
        impulse = h * (system.L_g(t, inner, state.xi) + system.F(t, inner, state.xi, u))
        _, p = self.difference.momenta(group, xi, system.momentum(t, inner, state.xi), impulse)
        return Carry(t + (1 - s) * h, g, p, inner, prediction), fine(multipliers)

    def step(self, system, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        n = system.group.dim
        rows = system.A(carry.t, carry.g)

        def equations(x):
            balance, _, off = self._balance(system, carry, x[:n], carry.p + rows.T @ x[n:], h, u)
            return jnp.concatenate([balance, off])

        root = carry.prediction.solve(equations, split=n)
        w, impulse = root.x[:n], root.x[n:]
        _, p, _ = self._balance(system, carry, w, carry.p + rows.T @ impulse, h, u)
        inner = self.difference.inner(system.group, carry.g, h * w)
        g = system.group.normalise(self._end(system.group, carry.g, h * w))
        # A momentum known on D only cannot tell the first reaction: that one is the continuous reaction, from the start.
        first = (carry.prediction.sign == 0) & (self.nodes == "original")
        impulse = jnp.where(first, carry.prediction.x[n:], impulse)
        return Carry(carry.t + h, g, p, inner, carry.prediction.advanced(root)), info(
            carry.prediction, root, impulse / h
        )

    def observe(self, system, carry: Carry, h) -> State:
        n, s = system.group.dim, self.node
        w = carry.prediction.x[:n]
        if self.nodes == "velocity":
            t = carry.t - (1 - s) * h
            return State(t, carry.inner, w, system.momentum(t, carry.inner, w), w)
        if self.nodes == "deformed":
            return State(carry.t, carry.g, w, system.momentum(carry.t, carry.g, w), w)
        xi = system.velocity(carry.t, carry.g, carry.p)
        return State(carry.t, carry.g, xi, system.momentum(carry.t, carry.g, xi), w)

    def require(self, system: MechanicalSystem, state: State, h: float) -> None:
        if self.nodes != "deformed":
            return system.require_admissible(state.t, state.g, state.xi)
        inner = system.group.compose(state.g, self.retraction.tau(system.group, -(1 - self.node) * h * state.xi))
        try:
            system.require_admissible(state.t - (1 - self.node) * h, inner, state.xi)
        except OffConstraint:
            system.require_admissible(state.t, state.g, state.xi)

    def _end(self, group, g, xi):
        return (
            self.difference.end(group, g, xi) if self.pair is None else group.compose(g, self.retraction.tau(group, xi))
        )

    def _balance(self, system: MechanicalSystem, carry: Carry, w, mu0, h, u) -> tuple[Array, Array, Array]:
        """(the balance of momentum, mu1, the discrete constraint) of a step with velocity w that mu0 starts."""
        if self.pair is not None:
            where = (carry.t, carry.g, self._end(system.group, carry.g, h * w), h)
            return (
                mu0 + self.pair.D1(*where, system, u),
                self.pair.D2(*where, system, u),
                self.pair.constraint(*where, system),
            )
        t = carry.t + self.node * h
        inner = self.difference.inner(system.group, carry.g, h * w)
        impulse = h * (system.L_g(t, inner, w) + system.F(t, inner, w, u))
        reaction, mu1 = self.difference.reaction(system.group, h * w, mu0, impulse)
        return reaction - system.momentum(t, inner, w), mu1, system.residual(t, inner, w)
