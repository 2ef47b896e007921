"""The discrete Moser-Veselov method for free rigid bodies, from order 2 to exact (mclachlan-zanna 2003, docs/exact-rigid-body.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, UnknownName
from ..groups import SO3, Rotations, unit_quaternion
from ..mechanics import InvariantSystem, State
from . import free_body as flow
from . import free_body as frames
from . import free_body as free
from .base import EXACT, NOT_CONVERGED, OK, Claims, Integrator, StepInfo, fine
from .euler_poincare_suslov import EulerPoincareSuslov, require_invariant

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
        return frames.rotation(self.q) @ self.axes.T


@dataclass(frozen=True)
class DiscreteMoserVeselov(Integrator):
    """M_k = w_k^T J - J w_k, M_{k+1} = w_k M_k w_k^T (Moser and Veselov 1991) with the constants that make it of a given order.

    "exact", the default, is the flow itself to round-off, momentum and attitude, at any step (docs/exact-rigid-body.md).
    Orders 4 to 10 use modified moments of inertia (Hairer and Vilmart 2006), which raise the order of both; with
    variant = "scaled" only the momentum is scaled (mclachlan-zanna section 4), which raises the order of the momentum
    and leaves the attitude at order 2. Energy and momentum are kept to round-off. On SO(n), n >= 4, only order 2 exists.
    """

    order: int | str = "exact"
    variant: str = "moments"
    name = "discrete-moser-veselov"

    def __post_init__(self):
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

    def start(self, system: InvariantSystem, state: State, h, u=None) -> tuple[Any, StepInfo]:
        if not isinstance(system.group, SO3):
            return SO_N.start(system, state, h, u)
        axes = frames.principal_axes(system.inertia)
        inertia, m = axes.T @ system.inertia @ axes, axes.T @ state.momentum
        step, phase, exists = constants(inertia, m, h, self.order, self.variant)
        q = jnp.concatenate([part.reshape(-1) for part in unit_quaternion(state.g @ axes)])
        status = jnp.where(exists, OK, NOT_CONVERGED)
        return Carry(state.t, q, m, jnp.zeros(()), phase, step, axes), fine(jnp.zeros(0))._replace(status=status)

    def step(self, system: InvariantSystem, carry: Any, h, u=None) -> tuple[Any, StepInfo]:
        if not isinstance(system.group, SO3):
            return SO_N.step(system, carry, h, u)
        m, turn = free.turn(carry.step, carry.m)
        q = frames.unit(frames.compose(carry.q, turn))
        return carry._replace(t=carry.t + h, q=q, m=m, steps=carry.steps + 1.0), fine(jnp.zeros(0))

    def observe(self, system: InvariantSystem, carry: Any, h) -> State:
        if not isinstance(system.group, SO3):
            return SO_N.observe(system, carry, h)
        q = carry.q
        if self.order == "exact":
            q = frames.compose(q, frames.about(carry.m, carry.step.C, -carry.steps * carry.phase))
        momentum = carry.axes @ carry.m
        xi = system.velocity(carry.t, carry.q, momentum)
        return State(carry.t, frames.rotation(q) @ carry.axes.T, xi, momentum, xi)

    def require(self, system, state: State, h: float) -> None:
        require_free_body(self, system)
        if not isinstance(system.group, SO3) and self.order != 2:
            raise InvalidInput(
                f"{self.name} of order {self.order} exists on SO(3) only; on {system.group} take order=2"
            )
        if isinstance(system.group, SO3) and self.order != "exact":
            require_physical(self, system)
        super().require(system, state, h)


SO_N = EulerPoincareSuslov("moser-veselov")
"""On SO(n) the method is the discrete Euler-Poincare equation with l_d = -tr(W J)/h and no constraint."""


def constants(inertia: Array, m: Array, h: Array, order: int | str, variant: str) -> tuple[free.Step, Array, Array]:
    """(constants, phase, whether they exist) of the map of this order for a body in principal axes."""
    b = free.body(inertia, m)
    if isinstance(order, str):
        step, scale = flow.exact_step(b, h)
        return step, scale.B, scale.exists
    if variant == "scaled":
        scale = free.discrete(b, scaled(b, h, order))
        return free.constants(b, scale), scale.B, scale.exists
    b = b if order == 2 else modified(b, m, h, order)
    scale = free.discrete(b, h)
    positive = jnp.all(jnp.diag(b.inverse) > 0)
    return free.constants(b, scale), scale.B, scale.exists & positive


# -- series of the exact scale --------------------------------------------------------------------------------------------
class Series(NamedTuple):
    """Coefficients in z = h^2 of s/h, x/h^2 and B/h^3 of the exact flow over the time h."""

    s: list[Array]
    x: list[Array]
    B: list[Array]


def series(b: free.Body, terms: int) -> Series:
    """The first `terms` coefficients, by the Taylor recursion from 0."""
    table = flow.taylor(jnp.zeros(4), flow.scale_equations(b), jnp.ones(()), 2 * terms + 1)
    return Series(*[[table[2 * k + first, column] for k in range(terms)] for first, column in ((1, 0), (2, 1), (3, 3))])


def product(a: list[Array], b: list[Array]) -> list[Array]:
    """The product of two power series."""
    return [sum((a[j] * b[k - j] for j in range(1, k + 1)), a[0] * b[k]) for k in range(len(a))]


def reciprocal(a: list[Array]) -> list[Array]:
    """The reciprocal of a power series."""
    inverse = [1.0 / a[0]]
    for k in range(1, len(a)):
        inverse.append(-sum(a[j] * inverse[k - j] for j in range(1, k + 1)) / a[0])
    return inverse


def scaled(b: free.Body, h: Array, order: int) -> Array:
    """h/(1 + tau3 h^2 + (tau5 - 2 tau3^2) h^4 + ...), with the terms that the order needs: 1/(1 + ...) is s/h of the exact flow."""
    return h / horner(reciprocal(series(b, order // 2).s), h * h)


def moments(b: free.Body, terms: int) -> tuple[list[Array], list[Array]]:
    """Series in h^2 of alpha and beta: with 1/I~ = alpha/I + beta discrete Moser-Veselov is exact (Hairer and Vilmart 2006).

    alpha = (s cos f - c x)^2/(s h) and beta = 2 c (s cos f - c x)/(s h), with f = -|m| B/2 and c = sin f/|m|.
    """
    s, x, B = series(b, terms)
    zero = [0.0 * s[0]] * terms
    shift = lambda a, k: (zero[:k] + a)[:terms]
    square = [-0.25 * b.C * c for c in shift(product(B, B), 3)]  # -f^2
    cosine, sine = list(zero), list(zero)
    power, factor = [1.0 + zero[0], *zero[1:]], 1.0
    for k in range(terms // 3 + 1):
        cosine = [a + factor * p for a, p in zip(cosine, power, strict=True)]
        sine = [a + factor / (2 * k + 1) * p for a, p in zip(sine, power, strict=True)]
        power, factor = product(power, square), factor / ((2 * k + 1) * (2 * k + 2))
    c = [-0.5 * a for a in product(B, sine)]  # c/h^3
    u = [a - e for a, e in zip(product(s, cosine), shift(product(c, x), 2), strict=True)]
    ratio = product(u, reciprocal(s))
    return product(u, ratio), [2.0 * a for a in shift(product(c, ratio), 1)]


def modified(b: free.Body, m: Array, h: Array, order: int) -> free.Body:
    """The body with the modified moments of inertia, alpha and beta cut after the terms that the order needs."""
    alpha, beta = (horner(coefficients, h * h) for coefficients in moments(b, order // 2))
    inverse = alpha * b.inverse + beta * jnp.eye(3)
    cofactor = free.adjugate(inverse)
    return free.body(cofactor / (inverse[0] @ cofactor[0]), m)


def horner(coefficients: list[Array], z: Array) -> Array:
    """c_0 + c_1 z + c_2 z^2 + ..."""
    value = coefficients[-1]
    for c in coefficients[-2::-1]:
        value = value * z + c
    return value


# -- what the method needs ----------------------------------------------------------------------------------------------
def require_free_body(integrator: Integrator, system) -> None:
    """Refuse what is no free rigid body on SO(n)."""
    require_invariant(integrator, system)
    if not isinstance(system.group, Rotations):
        raise InvalidInput(f"{integrator.name} is for rigid bodies on SO(n); the group given is {system.group}")
    if system.constraints:
        raise InvalidInput(
            f"{integrator.name} needs a free body; this one has {system.constraints} constraints. Use euler-poincare-suslov"
        )
    if system.potential is not None:
        raise InvalidInput(
            f"{integrator.name} needs a body without potential; use kinetic-splitting or lagrange-dalembert"
        )
    system.require_body()


def require_physical(integrator: Integrator, system) -> None:
    """Refuse moments of inertia that violate the triangle inequality: J has a negative eigenvalue and no positive branch."""
    values = np.linalg.eigvalsh(system.mass_matrix())
    if values[0] < -1e-12 * values[-1]:
        raise InvalidInput(
            f"{integrator.name} needs moments of inertia that satisfy the triangle inequality; the mass matrix has eigenvalues "
            f'{values.tolist()}. order="exact" takes any positive moments'
        )
