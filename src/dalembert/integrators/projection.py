"""Runge-Kutta with projections: what a standard method does when it is put back where the motion lives after every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from .._linalg import solve
from ..errors import InvalidInput
from ..system import MechanicalSystem, State
from ._adapted import kinetic
from .base import Claims, Integrator, Prediction, StepInfo, fine, info
from .claims import conservative
from .runge_kutta import RungeKutta

ONTO = ("constraint", "energy")


class Carry(NamedTuple):
    """The state with the energy it is held to."""

    t: Array
    g: Any
    xi: Array
    energy: Array
    prediction: Prediction  # of the scale of the velocity


@dataclass(frozen=True)
class ProjectedRungeKutta(Integrator):
    """The classical Runge-Kutta step, then back to the group, phi = 0 and D; order 4, not symmetric (Hairer, Lubich, Wanner IV.4).

    `onto` = "energy" also moves (g, xi) down the gradient, g tau((z - 1) M^-1 E_g) and z xi, to the energy of the start: only for
    autonomous systems without forces.
    """

    onto: str = "constraint"
    name = "projected-runge-kutta"
    composes = True

    def __post_init__(self):
        if self.onto not in ONTO:
            raise InvalidInput(f"onto is {self.onto!r}; allowed: {', '.join(ONTO)}")

    def claims(self, system) -> Claims:
        return Claims(4, constraint=True, group=True, energy=self.onto == "energy" and conservative(system))

    def start(self, system, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        energy = system.energy(state.t, state.g, state.xi)
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        return Carry(state.t, state.g, state.xi, energy, Prediction.at(jnp.ones(1))), fine(multipliers)

    def step(self, system: MechanicalSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        plain = RungeKutta()
        after, done = plain.step(system, plain.start(system, self.observe(system, carry, h), h, u)[0], h, u)
        near = after.g
        for _ in range(3):  # a Newton step each: Runge-Kutta leaves the group by more than round-off
            near = system.group.normalise(near)
        g = system.project_configuration(near, after.t)
        if self.onto == "constraint":
            xi = system.project(g, after.xi, after.t)
            return carry._replace(t=after.t, g=g, xi=xi), done
        slope = -solve(kinetic(system, after.t, g), system.L_g(after.t, g, jnp.zeros_like(after.xi)))

        def moved(z):
            there = system.group.compose(g, system.group.cayley((z - 1.0) * slope))
            return there, system.project(there, z * after.xi, after.t)

        def excess(z):
            """The last term is below round-off, but keeps the equation regular at rest in an equilibrium."""
            return (system.energy(after.t, *moved(z[0])) - carry.energy + 2.0**-60 * (z[0] - 1.0))[None]

        root = carry.prediction.solve(excess)
        g, xi = moved(root.x[0])
        new = Carry(after.t, system.group.normalise(g), xi, carry.energy, Prediction.at(jnp.ones(1)))
        return new, info(carry.prediction, root, system.multipliers(after.t, g, xi, u))

    def observe(self, system, carry: Carry, h) -> State:
        return State(carry.t, carry.g, carry.xi, system.momentum(carry.t, carry.g, carry.xi), carry.xi)
