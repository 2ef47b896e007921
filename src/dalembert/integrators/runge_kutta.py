"""The classical Runge-Kutta method on the equations of motion, for comparison: it keeps neither the group nor D."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax import Array

from ..system import MechanicalSystem, State
from .base import Claims, Integrator, StepInfo, fine


class Carry(NamedTuple):
    t: Array
    g: Any
    xi: Array


@dataclass(frozen=True)
class RungeKutta(Integrator):
    """The classical method of order 4 on g' = g xi, xi' = acceleration, with matrices and velocities as plain numbers."""

    name = "runge-kutta"

    def claims(self, system) -> Claims:
        return Claims(4)

    def start(self, system, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        return Carry(state.t, state.g, state.xi), fine(system.multipliers(state.t, state.g, state.xi, u))

    def step(self, system, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        def field(share, slope):
            g, xi = jax.tree.map(lambda y, k: y + share * h * k, (carry.g, carry.xi), slope)
            return derivative(system, carry.t + share * h, g, xi, u)

        k1 = derivative(system, carry.t, carry.g, carry.xi, u)
        k2 = field(0.5, k1)
        k3 = field(0.5, k2)
        k4 = field(1.0, k3)
        g, xi = jax.tree.map(
            lambda y, a, b, c, d: y + h / 6 * (a + 2 * b + 2 * c + d), (carry.g, carry.xi), k1, k2, k3, k4
        )
        return Carry(carry.t + h, g, xi), fine(system.multipliers(carry.t + h, g, xi, u))

    def observe(self, system, carry: Carry, h) -> State:
        return State(carry.t, carry.g, carry.xi, system.momentum(carry.t, carry.g, carry.xi), carry.xi)


def derivative(system: MechanicalSystem, t, g, xi, u) -> tuple[Any, Array]:
    """(g', xi') of the ODE on D."""
    return system.group.tangent(g, xi), system.acceleration(t, g, xi, u)[0]
