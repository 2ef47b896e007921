"""RATTLE for the free rigid body: the same map as discrete Moser-Veselov, by another computation (mclachlan-zanna section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ..errors import InvalidInput, UnknownName
from ..groups import SO3
from ..invariant import InvariantSystem
from ..system import State
from . import _free_body as free
from .base import NOT_CONVERGED, OK, Claims, Integrator, Prediction, StepInfo, fine, info
from .moser_veselov import require_free_body, require_physical, scaled

ORDERS = (2, 4, 6, 8)


class Carry(NamedTuple):
    """Attitude, momentum in the body, and the guess of the multiplier S of the next step."""

    t: Array
    g: Array
    m: Array
    scale: Array
    prediction: Prediction  # of the symmetric multiplier, as (11, 22, 33, 12, 13, 23)


@dataclass(frozen=True)
class Rattle(Integrator):
    """X_1 = X_0 + h P J^-1, P = P_0 - (h/2) X_0 S with S symmetric such that X_1 is orthogonal; P_1 is P made tangent at X_1.

    Orders 4, 6 and 8 scale the momentum as DMV4, DMV6 and DMV8 do (the order is that of the momentum).
    """

    order: int = 2
    name = "rattle"

    def __post_init__(self):
        if self.order not in ORDERS or isinstance(self.order, bool):
            raise UnknownName("order of rattle", self.order, [str(order) for order in ORDERS])

    def claims(self, system: InvariantSystem) -> Claims:
        return Claims(
            2,
            velocity_order=None if self.order == 2 else self.order,
            symmetric=True,
            reversible=True,
            group=True,
            energy=True,
            momentum=True,
            symplectic=self.order == 2,
            condition="the attitude is of order 2 whatever the order",
        )

    def start(self, system: InvariantSystem, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        b = free.body(system.inertia, state.momentum)
        s = scaled(b, h, self.order)
        status = jnp.where(jnp.abs(s) < free.largest_scale(b), OK, NOT_CONVERGED)
        carry = Carry(state.t, state.g, state.momentum, s, Prediction.at(jnp.zeros(6)))
        return carry, fine(jnp.zeros(0))._replace(status=status)

    def step(self, system: InvariantSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        J = system.mass_matrix()
        b = free.body(system.inertia, carry.m)
        one, turning = jnp.eye(3), system.group.hat(carry.scale * (b.inverse @ carry.m)) @ J

        def orthogonality(x):
            """(J + D)^T (J + D) - J^2 for the displacement D, without the cancellation of J^2."""
            displacement = turning - symmetric(x)
            product = J @ displacement
            return entries(product + product.T + displacement.T @ displacement)

        root = carry.prediction.solve(orthogonality)
        turn = (turning - symmetric(root.x)) @ (b.cofactor / b.E3)  # W - 1, which is small: so is its round-off
        turn = turn - 0.5 * (turn + one) @ (turn + turn.T + turn.T @ turn)
        # The second multiplier is symmetric and drops out of the momentum, which is therefore W^T m (Theorem 6.1).
        new = Carry(
            carry.t + h,
            system.group.normalise(carry.g + carry.g @ turn),
            carry.m + turn.T @ carry.m,
            carry.scale,
            carry.prediction.advanced(root),
        )
        return new, info(carry.prediction, root, jnp.zeros(0))

    def observe(self, system: InvariantSystem, carry: Carry, h) -> State:
        xi = system.velocity(carry.t, carry.g, carry.m)
        return State(carry.t, carry.g, xi, carry.m, xi)

    def require(self, system, state: State, h: float) -> None:
        require_free_body(self, system)
        if not isinstance(system.group, SO3):
            raise InvalidInput(
                f"{self.name} is for bodies on SO(3), not {system.group}. Use discrete-moser-veselov with order=2"
            )
        require_physical(self, system)
        low = float(jnp.linalg.eigvalsh(system.mass_matrix())[0])
        if low < 1e-8 * float(jnp.trace(system.mass_matrix())):
            raise InvalidInput(
                f"{self.name} divides by the mass matrix, singular for this flat body (eigenvalue {low:.3g}). Use discrete-moser-veselov"
            )
        super().require(system, state, h)


def symmetric(x: Array) -> Array:
    """The symmetric matrix with the entries (11, 22, 33, 12, 13, 23)."""
    a, b, c, d, e, f = x
    return jnp.array([[a, d, e], [d, b, f], [e, f, c]])


def entries(matrix: Array) -> Array:
    """The entries (11, 22, 33, 12, 13, 23): the inverse of `symmetric`."""
    return jnp.stack([matrix[0, 0], matrix[1, 1], matrix[2, 2], matrix[0, 1], matrix[0, 2], matrix[1, 2]])
