"""The discrete Moser-Veselov method for free rigid bodies, from order 2 to exact.

Sources: mclachlan-zanna 2003, docs/exact-rigid-body.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from ..errors import InvalidInput, UnknownName
from ..groups import unit_quaternion
from ..mechanics import InvariantSystem, MechanicalSystem, State
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Scalar
from . import free_body as free
from .base import EXACT, NOT_CONVERGED, OK, Claims, Integrator, Result, StepInfo
from .euler_poincare_suslov import EulerPoincareSuslov
from .properties import require_free_body, require_physical
from .registry import register

ORDERS = (2, 4, 6, 8, 10, "exact")
VARIANTS = ("moments", "scaled")


class Carry(NamedTuple):
    """Attitude (as a quaternion) and momentum in principal axes, the number of steps, and the constants of the map."""

    t: Array
    q: Array
    m: Array
    steps: Array
    phase: Array  # of a step: its attitude is to be turned by -|m| phase about the momentum
    step: free.Step
    axes: Array

    @property
    def g(self) -> Array:
        """The attitude before the phase correction."""
        return free.rotation_matrix(self.q) @ self.axes.T


@register(words="The free rigid body, exactly, with any step.", use_when="a rigid body turns freely")
@dataclass(frozen=True)
class DiscreteMoserVeselov(Integrator):
    """M_k = w_k^T J - J w_k, M_{k+1} = w_k M_k w_k^T with the constants that make it of a given order.

    Moser and Veselov 1991. "exact", the default, is the flow itself to round-off, momentum and attitude, at any step
    (docs/exact-rigid-body.md). Orders 4 to 10 use modified moments of inertia (Hairer and Vilmart 2006), which raise
    the order of both; with variant = "scaled" only the momentum is scaled (mclachlan-zanna section 4), which raises the
    order of the momentum and leaves the attitude at order 2. Energy and momentum are kept to round-off. On SO(n), n >=
    4, only order 2 exists.
    """

    order: int | str = "exact"
    variant: str = "moments"
    name = "discrete-moser-veselov"

    def __post_init__(self) -> None:
        if self.order not in ORDERS or isinstance(self.order, bool):
            raise UnknownName("order of discrete-moser-veselov", self.order, [str(order) for order in ORDERS])
        if self.variant not in VARIANTS:
            raise UnknownName("variant", self.variant, VARIANTS)

    def claims(self, system: InvariantSystem) -> Claims:
        order = EXACT if isinstance(self.order, str) else self.order
        scaled = self.variant == "scaled" and order not in (2, EXACT)
        return Claims(
            2 if scaled else order,
            velocity_order=order if scaled else None,
            symmetric=True,
            reversible=True,
            group=True,
            energy=True,
            momentum=True,
            symplectic=order in (2, EXACT),
            condition="orders 4 to 10: moments that depend on the energy and |m|",
        )

    def start(self, system: InvariantSystem, state: State, h: Scalar, u: Controls = None) -> Result[Any]:
        if not system.group.is_rotation_group(3):
            return METHOD_ON_SO_N.start(system, state, h, u)
        axes = free.principal_axes(system.inertia)
        inertia, m = axes.T @ system.inertia @ axes, axes.T @ state.momentum
        step, phase, exists = free.map_constants(inertia, m, h, self.order, self.variant)
        q = jnp.concatenate([part.reshape(-1) for part in unit_quaternion(state.g @ axes)])
        status = jnp.where(exists, OK, NOT_CONVERGED)
        return Carry(state.t, q, m, jnp.zeros(()), phase, step, axes), StepInfo.explicit(jnp.zeros(0))._replace(
            status=status
        )

    def step(self, system: InvariantSystem, carry: Any, h: Scalar, u: Controls = None) -> Result[Any]:
        if not system.group.is_rotation_group(3):
            return METHOD_ON_SO_N.step(system, carry, h, u)
        m, turn = free.turn(carry.step, carry.m)
        q = free.unit_multiple(free.quaternion_product(carry.q, turn))
        return carry._replace(t=carry.t + h, q=q, m=m, steps=carry.steps + 1.0), StepInfo.explicit(jnp.zeros(0))

    def observe(self, system: InvariantSystem, carry: Any, h: Scalar) -> State:
        if not system.group.is_rotation_group(3):
            return METHOD_ON_SO_N.observe(system, carry, h)
        q = carry.q
        if self.order == "exact":
            q = free.quaternion_product(q, free.rotation_about(carry.m, carry.step.C, -carry.steps * carry.phase))
        momentum = carry.axes @ carry.m
        xi = system.velocity(carry.t, carry.q, momentum)
        return State(carry.t, free.rotation_matrix(q) @ carry.axes.T, xi, momentum, xi)

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        body = require_free_body(self, system)
        if not system.group.is_rotation_group(3) and self.order != 2:
            raise InvalidInput(
                f"{self.name} of order {self.order} exists on SO(3) only; on {system.group} take order=2"
            )
        if system.group.is_rotation_group(3) and self.order != "exact":
            require_physical(self, body)
        super().require(system, state, h)


METHOD_ON_SO_N = EulerPoincareSuslov("moser-veselov")
"""On SO(n) the method is the discrete Euler-Poincare equation with l_d = -tr(W J)/h and no constraint."""
