"""Reversible control of the step size: the integrating controller around any symmetric method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._linalg import solve
from ..errors import InvalidInput, UnknownName
from ..system import MechanicalSystem, State
from ._roundoff import added
from .base import NOT_CONVERGED, Claims, Integrator, StepInfo
from .lagrange_dalembert import LagrangeDAlembert

Pace = Callable[[MechanicalSystem, Array, Any, Array], Array]


def _square(system: MechanicalSystem, t, g, xi, vector) -> Array:
    """|vector|^2 in the kinetic metric."""
    return vector @ system.metric(t, g, xi) @ vector


def arclength(system: MechanicalSystem, t, g, xi) -> Array:
    """(|xi|^2 + |xi'|^2)^-1/2: steps of one length in phase space (Huang, Leimkuhler 1997). Infinite only in equilibrium."""
    rate = system.acceleration(t, g, xi)[0]
    return (_square(system, t, g, xi, xi) + _square(system, t, g, xi, rate)) ** -0.5


def acceleration(system: MechanicalSystem, t, g, xi) -> Array:
    """|xi'|^-1/2: steps that change the velocity by as much as they move. Infinite where nothing turns or pulls."""
    return _square(system, t, g, xi, system.acceleration(t, g, xi)[0]) ** -0.25


def speed(system: MechanicalSystem, t, g, xi) -> Array:
    """|xi|^-1: steps of one length in the kinetic metric. Infinite at rest, so not for motions that come to rest."""
    return _square(system, t, g, xi, xi) ** -0.5


def potential_gradient(system: MechanicalSystem, t, g, xi) -> Array:
    """|dV|^-1/2 in the dual metric: like `acceleration` for bodies that a potential drives, and cheaper. Infinite where dV = 0."""
    slope = system.L_g(t, g, jnp.zeros_like(xi))
    return (slope @ solve(system.metric(t, g, xi), slope)) ** -0.25


PACES: dict[str, Pace] = {
    "arclength": arclength,
    "acceleration": acceleration,
    "speed": speed,
    "potential-gradient": potential_gradient,
}


class Carry(NamedTuple):
    """The carry of the base method, the density rho of steps at its node with its slope, the size of the last step, what t lost by it."""

    t: Array
    inner: Any
    density: Array
    slope: Array
    size: Array
    lost: Array

    @property
    def g(self) -> Any:
        return self.inner.g


@dataclass(frozen=True)
class Adaptive(Integrator):
    """A symmetric method with steps of several sizes, and still symmetric: the integrating controller (Hairer, Soderlind 2005).

    rho_{n+1/2} = rho_n + eps G(z_n)/2, a step of eps/rho_{n+1/2}, rho_{n+1} = rho_{n+1/2} + eps G(z_{n+1})/2, with rho = 1 at the start.
    G = -Q'/Q is the derivative along the motion of the `pace` Q(system, t, g, xi) > 0, so that rho Q stays constant and steps are
    eps Q/Q(0): eps is the step that a run is given, and that of its first moment. Explicit and symmetric: steps of -eps go back over
    the same points, and a reversible method stays one. A pace is a function, or "arclength", "acceleration", "speed", "potential-gradient".
    The order in eps is that of the `base` (Lagrange-d'Alembert at node 1/2 unless given), whose carry must not depend on the step.
    """

    pace: str | Pace = "arclength"
    base: Integrator | None = None
    name = "adaptive"
    clock = True

    def __post_init__(self):
        if isinstance(self.pace, str) and self.pace not in PACES:
            raise UnknownName("pace", self.pace, PACES)
        if not (self.method.composes and self.method.adjoint() == self.method):
            raise InvalidInput(
                f"{self.method!r} cannot have reversible steps: that needs a symmetric method whose carry does not depend on the step. "
                "Allowed: lagrange-dalembert (node 1/2, original nodes), retraction-adapted (node 1/2), discrete-gradient, gauss, "
                "the splittings of a rigid body, and compositions of these"
            )

    @cached_property
    def method(self) -> Integrator:
        """The method whose steps vary."""
        return LagrangeDAlembert() if self.base is None else self.base

    def quotient(self, system: MechanicalSystem, t, g, xi) -> Array:
        """Q: what the size of steps is in proportion to."""
        return (PACES[self.pace] if isinstance(self.pace, str) else self.pace)(system, t, g, xi)

    def claims(self, system) -> Claims:
        base = self.method.claims(system)
        return replace(
            base,
            symplectic=False,
            condition="the order is in eps, at the run's own times; steps that vary are not symplectic",
        )

    def adjoint(self) -> Adaptive:
        return self

    def start(self, system, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        inner, info = self.method.start(system, state, h, u)
        size = jnp.asarray(h, float)
        return Carry(state.t, inner, jnp.ones(()), self._slope(system, inner, size, u), size, jnp.zeros(())), info

    def step(self, system, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        # the slope at a node belongs to the control of the step on either side of it
        before = carry.slope if u is None else self._slope(system, carry.inner, carry.size, u)
        density = carry.density + 0.5 * h * before
        positive = density > 0.0
        size = h / jnp.where(positive, density, 1.0)
        inner, info = self.method.step(system, carry.inner, size, u)
        t, lost = added(carry.t, size, carry.lost)
        inner = inner._replace(t=t)
        after = self._slope(system, inner, size, u)
        new = Carry(t, inner, density + 0.5 * h * after, after, size, lost)
        return new, info._replace(status=jnp.where(positive, info.status, NOT_CONVERGED))

    def _slope(self, system: MechanicalSystem, inner, size, u) -> Array:
        """G = -d log Q/dt along the equations of motion."""
        state = self.method.observe(system, inner, size)
        rate = system.acceleration(state.t, state.g, state.xi, u)[0]

        def logarithm(s):
            moved = state.t + s, system.group.shift(state.g, s * state.xi), state.xi + s * rate
            return jnp.log(self.quotient(system, *moved))

        return -jax.jvp(logarithm, (0.0,), (1.0,))[1]

    def observe(self, system, carry: Carry, h) -> State:
        return self.method.observe(system, carry.inner, carry.size)

    def reverse(self, system, carry: Carry, h) -> Carry:
        """Back from the same density."""
        return carry._replace(inner=self.method.reverse(system, carry.inner, carry.size))

    def require(self, system, state: State, h: float) -> None:
        self.method.require(system, state, h)
        pace = float(_quotient(self, system, state.t, state.g, state.xi))
        if not (np.isfinite(pace) and pace > 0.0):
            raise InvalidInput(
                f"the pace {self.pace!r} is {pace} at the initial state; allowed: a positive number. Of the named ones "
                '"speed" needs a motion, "acceleration" one that bends, "potential-gradient" a potential, "arclength" any of these'
            )


@partial(jax.jit, static_argnums=0)
def _quotient(method: Adaptive, system: MechanicalSystem, t, g, xi) -> Array:
    return method.quotient(system, t, g, xi)
