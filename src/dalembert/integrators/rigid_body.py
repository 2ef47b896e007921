"""Splittings: a free body into rotations about its axes, a body in a potential into its exact free motion and kicks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..errors import InvalidInput, UnknownName
from ..groups.so3 import SO3, unit_quaternion
from ..invariant import InvariantSystem
from ..system import State
from . import _frames as frames
from . import _free_body as free
from .base import EXACT, Claims, Integrator, StepInfo, fine
from .claims import conservative, inertial
from .euler_poincare_suslov import require_invariant
from .midpoint import require_on_so3
from .moser_veselov import constants


class Carry(NamedTuple):
    """Attitude (as a quaternion) and momentum in principal axes."""

    t: Array
    q: Array
    m: Array
    axes: Array

    @property
    def g(self) -> Array:
        return frames.rotation(self.q) @ self.axes.T


class _Body(Integrator):
    """What the splittings share: a body seen in its principal axes, and symmetry."""

    composes = True

    def adjoint(self) -> Integrator:
        return self

    def start(self, system: InvariantSystem, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        axes = frames.principal_axes(system.inertia)
        q = jnp.concatenate([part.reshape(-1) for part in unit_quaternion(state.g @ axes)])
        return Carry(state.t, q, axes.T @ state.momentum, axes), fine(jnp.zeros(0))

    def observe(self, system: InvariantSystem, carry: Carry, h) -> State:
        momentum = carry.axes @ carry.m
        xi = system.velocity(carry.t, carry.g, momentum)
        return State(carry.t, system.group.normalise(carry.g), xi, momentum, xi)


@dataclass(frozen=True)
class LiePoissonSplitting(_Body):
    """Turns about the principal axes 1, 2, 3, 2, 1 by h/2, h/2, h, h/2, h/2 with the energies m_i^2/2I_i (McLachlan 1993): order 2.

    Explicit; it keeps |m| and the spatial momentum, the energy up to a bounded error.
    """

    name = "lie-poisson-splitting"

    def claims(self, system: InvariantSystem) -> Claims:
        return Claims(2, symmetric=True, reversible=True, group=True, momentum=True, symplectic=True)

    def step(self, system: InvariantSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        moments = jnp.diag(carry.axes.T @ system.inertia @ carry.axes)
        m, q = carry.m, carry.q
        for axis, share in ((0, 0.5), (1, 0.5), (2, 1.0), (1, 0.5), (0, 0.5)):
            half = 0.5 * share * h * m[axis] / moments[axis]
            sine, cosine = jnp.sin(half), jnp.cos(half)
            e = jnp.zeros(3).at[axis].set(1.0)
            # exp(-2 half e) m, with the double angles from sine and cosine
            across = jnp.cross(e, m)
            m = m - 2 * sine * (cosine * across - sine * jnp.cross(e, across))
            q = frames.compose(q, jnp.concatenate([cosine[None], sine * e]))
        return carry._replace(t=carry.t + h, q=frames.unit(q), m=m), fine(jnp.zeros(0))

    def require(self, system, state: State, h: float) -> None:
        require_on_so3(self, system)
        super().require(system, state, h)


SUZUKI = 1.0 / (4.0 - 4.0 ** (1.0 / 3.0))
STAGES = {2: (1.0,), 4: (SUZUKI, SUZUKI, 1.0 - 4.0 * SUZUKI, SUZUKI, SUZUKI)}


@dataclass(frozen=True)
class KineticSplitting(_Body):
    """Half a kick by the potential, the exact free motion, half a kick (Strang 1968); order 4 is Suzuki's composition of five.

    The free motion is that of docs/exact-rigid-body.md: without potential the method is exact. Symplectic, symmetric;
    it keeps the momenta of the symmetries of the potential.
    """

    order: int = 2
    name = "kinetic-splitting"

    def __post_init__(self):
        if self.order not in STAGES or isinstance(self.order, bool):
            raise UnknownName("order of kinetic-splitting", self.order, [str(order) for order in STAGES])

    def claims(self, system: InvariantSystem) -> Claims:
        free, still = inertial(system), conservative(system)
        return Claims(
            EXACT if free else self.order,
            symmetric=True,
            reversible=still,
            group=True,
            energy=free,
            momentum=still,
            symplectic=still,
            condition="exact without potential",
        )

    def step(self, system: InvariantSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        inertia = carry.axes.T @ system.inertia @ carry.axes

        def kick(now: Carry, time) -> Carry:
            return now._replace(m=now.m + time * (now.axes.T @ system.L_g(now.t, now.g, jnp.zeros(3))))

        def stage(now: Carry, share):
            now = kick(now, 0.5 * share * h)
            now = drift(now, inertia, share * h)
            return kick(now, 0.5 * share * h), None

        if self.order == 2:
            return stage(carry, 1.0)[0], fine(jnp.zeros(0))
        return jax.lax.scan(stage, carry, jnp.array(STAGES[self.order]))[0], fine(jnp.zeros(0))

    def require(self, system, state: State, h: float) -> None:
        require_invariant(self, system)
        if not isinstance(system.group, SO3) or system.constraints:
            raise InvalidInput(
                f"{self.name} is for free bodies on SO(3); given: {system.group}, {system.constraints} constraints"
            )
        super().require(system, state, h)


def drift(carry: Carry, inertia: Array, h: Array) -> Carry:
    """The free motion over the time h."""
    step, phase, _ = constants(inertia, carry.m, h, "exact", "moments")
    m, turn = free.turn(step, carry.m)
    q = frames.compose(carry.q, frames.compose(frames.about(carry.m, carry.m @ carry.m, -phase), turn))
    return carry._replace(t=carry.t + h, q=frames.unit(q), m=m)
