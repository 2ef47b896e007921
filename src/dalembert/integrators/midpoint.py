"""The implicit midpoint rule for the free rigid body on SO(3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ..errors import InvalidInput
from ..groups import SO3
from ..invariant import InvariantSystem
from ..system import State
from . import _free_body as free
from .base import Claims, Integrator, Prediction, StepInfo, fine, info
from .moser_veselov import require_free_body


class Carry(NamedTuple):
    """Attitude, and the momentum in the body with its guess after the next step."""

    t: Array
    g: Array
    prediction: Prediction  # of the momentum; its x is the present one


@dataclass(frozen=True)
class ImplicitMidpoint(Integrator):
    """m_1 = m_0 + h c x I^-1 c with c = (m_0 + m_1)/2, and g_1 = g_0 cay(h I^-1 c): order 2.

    Since m_1 = cay(h I^-1 c)^T m_0 the spatial momentum is kept; so is the energy. Not symplectic on T*SO(3).
    """

    name = "implicit-midpoint"

    def adjoint(self) -> ImplicitMidpoint:
        return self

    def claims(self, system: InvariantSystem) -> Claims:
        return Claims(2, symmetric=True, reversible=True, group=True, energy=True, momentum=True)

    def start(self, system: InvariantSystem, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        return Carry(state.t, state.g, Prediction.at(state.momentum)), fine(jnp.zeros(0))

    def step(self, system: InvariantSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        m, inverse = carry.prediction.x, free.body(system.inertia, carry.prediction.x).inverse

        def defect(new):
            middle = 0.5 * (m + new)
            return new - m - h * jnp.cross(middle, inverse @ middle)

        root = carry.prediction.solve(defect)
        W = system.group.cayley(0.5 * h * (inverse @ (m + root.x)))
        g = system.group.normalise(carry.g @ W)
        return Carry(carry.t + h, g, carry.prediction.advanced(root)), info(carry.prediction, root, jnp.zeros(0))

    def observe(self, system: InvariantSystem, carry: Carry, h) -> State:
        m = carry.prediction.x
        xi = system.velocity(carry.t, carry.g, m)
        return State(carry.t, carry.g, xi, m, xi)

    def require(self, system, state: State, h: float) -> None:
        require_on_so3(self, system)
        super().require(system, state, h)


def require_on_so3(integrator: Integrator, system) -> None:
    """Refuse what is no free rigid body on SO(3)."""
    require_free_body(integrator, system)
    if not isinstance(system.group, SO3):
        raise InvalidInput(f"{integrator.name} is for bodies on SO(3); the group given is {system.group}")
