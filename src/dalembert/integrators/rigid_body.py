"""Methods for rigid bodies: discrete Moser-Veselov, the implicit midpoint rule, splittings, and RATTLE.

The discrete Moser-Veselov method goes from order 2 to exact (mclachlan-zanna 2003, docs/exact-rigid-body.md). RATTLE is
the same map by another computation (mclachlan-zanna section 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, require_name
from ..mechanics import InvariantSystem, MechanicalSystem, State
from ..numerics.types import Array, Controls, Scalar
from . import free_body as free
from . import properties
from .base import EXACT, NOT_CONVERGED, OK, Claims, Integrator, Prediction, Result, StepInfo
from .composition import scheme_coefficients
from .euler_poincare_suslov import EulerPoincareSuslov
from .polhode import Polhode, on_level
from .registry import register

MOSER_VESELOV_ORDERS = (2, 4, 6, 8, 10, "exact")
VARIANTS = ("moments", "scaled")
SUZUKI_STAGES = {2: (1.0,), 4: scheme_coefficients("suzuki-4")}
RATTLE_ORDERS = (2, 4, 6, 8)
ENTRIES = np.array([0, 1, 2, 0, 0, 1]), np.array([0, 1, 2, 1, 2, 2])  # of a symmetric matrix: (11, 22, 33, 12, 13, 23)
SYMMETRIC = np.array([[0, 3, 4], [3, 1, 5], [4, 5, 2]])  # where these stand in the matrix
METHOD_ON_SO_N = EulerPoincareSuslov("moser-veselov")  # the discrete Euler-Poincare equation, l_d = -tr(W J)/h


@jax.custom_jvp
def _velocity(system: InvariantSystem, t: Scalar, g: Array, momentum: Array) -> Array:
    """The velocity of a free body. Its derivative solves for one vector: that of an inverse would for three."""
    return system.velocity(t, g, momentum)


@_velocity.defjvp
def _velocity_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    system, t, g, _ = primals
    xi = _velocity(*primals)
    return xi, _velocity(system, t, g, tangents[3] - tangents[0].inertia @ xi)


class MoserVeselovCarry(NamedTuple):
    """Attitude (as a quaternion) and momentum in principal axes, and the constants of the map.

    The exact method had this carry before November 2026; files hold it, and its runs go on as they began.
    """

    t: Array
    q: Array
    m: Array
    steps: Array
    phase: Array  # of a step: its attitude is to be turned by -|m| phase about the momentum; 0 where no method is exact
    step: free.Step
    axes: Array

    @property
    def g(self) -> Array:
        return free.rotation_matrix(self.q) @ self.axes.T


class ExactCarry(NamedTuple):
    """The start, in principal axes, its polhode and the number of steps since: nothing that collects errors."""

    t: Array
    g: Array
    m: Array
    steps: Array
    level: Polhode
    inertia: Array
    axes: Array
    variation: free.BodyVariation = free.BodyVariation()


@register(words="The exact motion of a free rigid body, with steps of any size.", use_when="a rigid body turns freely")
@dataclass(frozen=True)
class DiscreteMoserVeselov(Integrator):
    """Free rigid bodies: momentum and attitude without error at any step, or the map of Moser and Veselov.

    M_k = w_k^T J - J w_k, M_{k+1} = w_k M_k w_k^T (Moser and Veselov 1991) with constants that give it the `order`.
    "exact", the default, is the flow itself to round-off (docs/exact-rigid-body.md). Orders 4 to 10 use modified
    moments of inertia (Hairer and Vilmart 2006), which raise the order of momentum and attitude; variant = "scaled"
    scales the momentum only (mclachlan-zanna section 4) and leaves the attitude at order 2. Energy and momentum are
    conserved to round-off. Only order 2 exists on SO(n) with n >= 4.
    """

    order: int | str = "exact"
    variant: str = "moments"
    name = "discrete-moser-veselov"

    def __post_init__(self) -> None:
        require_name("order of discrete-moser-veselov", self.order, MOSER_VESELOV_ORDERS)
        require_name("variant", self.variant, VARIANTS)

    def claims(self, system: InvariantSystem) -> Claims:
        order = EXACT if isinstance(self.order, str) else self.order
        scaled = self.variant == "scaled" and order not in (2, EXACT)
        return Claims(
            2 if scaled else order, velocity_order=order if scaled else None, symmetric=True, reversible=True,
            group=True, energy=True, momentum=True, symplectic=order in (2, EXACT),
            condition="orders 4 to 10: moments that depend on the energy and |m|"
        )  # fmt: skip

    def start(self, system: InvariantSystem, state: State, h: Scalar, u: Controls = None) -> Result[Any]:
        if not system.group.is_rotation_group(3):
            return METHOD_ON_SO_N.start(system, state, h, u)
        axes = free.principal_frame(system.inertia)
        inertia, m = axes.T @ system.inertia @ axes, axes.T @ state.momentum
        if isinstance(self.order, str):
            g = state.g @ axes
            level = on_level(*jax.lax.stop_gradient((jnp.diag(inertia), m, g, axes)))
            variation = free.vary(level, inertia, m, g, axes)
            return ExactCarry(state.t, g, m, jnp.zeros(()), level, inertia, axes, variation), StepInfo.explicit()
        step, exists = free.map_constants(inertia, m, h, self.order, self.variant)
        q, zero, status = free.quaternion(state.g @ axes), jnp.zeros(()), jnp.where(exists, OK, NOT_CONVERGED)
        return MoserVeselovCarry(state.t, q, m, zero, zero, step, axes), StepInfo.explicit(status=status)

    def step(self, system: InvariantSystem, carry: Any, h: Scalar, u: Controls = None) -> Result[Any]:
        if not system.group.is_rotation_group(3):
            return METHOD_ON_SO_N.step(system, carry, h, u)
        after = carry._replace(t=carry.t + h)
        if isinstance(self.order, str):
            after = after._replace(steps=carry.steps + 1.0)
        if isinstance(carry, ExactCarry):
            return after, StepInfo.explicit()
        m, turn = free.advance_body(carry.step, carry.m)
        return after._replace(q=free.unit_multiple(free.quaternion_product(carry.q, turn)), m=m), StepInfo.explicit()

    def observe(self, system: InvariantSystem, carry: Any, h: Scalar) -> State:
        if not system.group.is_rotation_group(3):
            return METHOD_ON_SO_N.observe(system, carry, h)
        if isinstance(carry, ExactCarry):
            momentum, g = free.exact_motion(
                carry.level, carry.variation, carry.inertia, carry.m, carry.g, carry.axes, carry.steps * h
            )
        else:
            back = free.rotation_about(carry.m, carry.step.C, -carry.steps * carry.phase)
            q = carry.q if self.order != "exact" else free.quaternion_product(carry.q, back)
            momentum, g = carry.axes @ carry.m, free.rotation_matrix(q) @ carry.axes.T
        xi = _velocity(system, carry.t, g, momentum)
        return State(carry.t, g, xi, momentum, xi)

    checks_numbers_of = "system"

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        body = properties.require_free_body(self, system)
        if not system.group.is_rotation_group(3) and self.order != 2:
            raise InvalidInput(
                f"{self.name} of order {self.order} exists on SO(3) only; on {system.group} take order=2"
            )
        if system.group.is_rotation_group(3) and self.order != "exact":
            properties.require_physical(self, body)
        super().require(system, state, h)


class MidpointCarry(NamedTuple):
    """Attitude, and the momentum in the body with its guess after the next step."""

    t: Array
    g: Array
    prediction: Prediction  # of the momentum; its x is the present one


@register(
    words="The implicit midpoint rule for the momentum of the free rigid body: conserves its energy.",
    use_when="a free body needs a simple implicit method to compare with",
)
@dataclass(frozen=True)
class ImplicitMidpoint(Integrator):
    """The implicit midpoint rule for free rigid bodies: conserves energy and spatial momentum; order 2.

    m_1 = m_0 + h c x I^-1 c with c = (m_0 + m_1)/2, and g_1 = g_0 cay(h I^-1 c), so that m_1 = cay(h I^-1 c)^T m_0. It
    is not symplectic on T*SO(3).
    """

    name = "implicit-midpoint"
    self_adjoint = True
    needs = (properties.require_on_so3,)

    def claims(self, system: InvariantSystem) -> Claims:
        return Claims(2, symmetric=True, reversible=True, group=True, energy=True, momentum=True)

    def start(self, system: InvariantSystem, state: State, h: Scalar, u: Controls = None) -> Result[MidpointCarry]:
        return MidpointCarry(state.t, state.g, Prediction.at(state.momentum)), StepInfo.explicit()

    def step(
        self, system: InvariantSystem, carry: MidpointCarry, h: Scalar, u: Controls = None
    ) -> Result[MidpointCarry]:
        m, inverse = carry.prediction.x, free.body_on_level(system.inertia, carry.prediction.x).inverse

        def defect(new: Array) -> Array:
            middle = 0.5 * (m + new)
            return new - m - h * jnp.cross(middle, inverse @ middle)

        root = carry.prediction.solve(defect)
        g = system.group.restore(carry.g @ system.group.cayley(0.5 * h * (inverse @ (m + root.x))))
        new = MidpointCarry(carry.t + h, g, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, jnp.zeros(0))

    def observe(self, system: InvariantSystem, carry: MidpointCarry, h: Scalar) -> State:
        m = carry.prediction.x
        xi = _velocity(system, carry.t, carry.g, m)
        return State(carry.t, carry.g, xi, m, xi)


class SplittingCarry(NamedTuple):
    """Attitude (as a quaternion) and momentum in principal axes."""

    t: Array
    q: Array
    m: Array
    axes: Array

    @property
    def g(self) -> Array:
        return free.rotation_matrix(self.q) @ self.axes.T


class _Splitting(Integrator):
    """What the splittings share: a body seen in its principal axes, and symmetry."""

    carry_is_step_free = self_adjoint = True
    frame = staticmethod(free.principal_frame)

    def start(self, system: InvariantSystem, state: State, h: Scalar, u: Controls = None) -> Result[SplittingCarry]:
        axes = self.frame(system.inertia)
        m, q = axes.T @ state.momentum, free.quaternion(state.g @ axes)
        return SplittingCarry(state.t, q, m, axes), StepInfo.explicit()

    def observe(self, system: InvariantSystem, carry: SplittingCarry, h: Scalar) -> State:
        momentum = carry.axes @ carry.m
        xi = _velocity(system, carry.t, carry.g, momentum)
        return State(carry.t, system.group.normalise(carry.g), xi, momentum, xi)


@register(
    words="Splits the motion of the free rigid body into rotations about its three axes.",
    use_when="a free body needs a cheap explicit symplectic method",
)
@dataclass(frozen=True)
class LiePoissonSplitting(_Splitting):
    """A cheap explicit symplectic method for free rigid bodies: turns about the principal axes; order 2.

    They are about the axes 1, 2, 3, 2, 1 for the times h/2, h/2, h, h/2, h/2, each by one of the energies m_i^2/(2 I_i)
    (McLachlan 1993). |m| and the spatial momentum are conserved, the energy up to a bounded error.
    """

    name = "lie-poisson-splitting"
    frame = staticmethod(free.turning_frame)  # other axes are another scheme
    needs = (properties.require_on_so3,)

    def claims(self, system: InvariantSystem) -> Claims:
        return Claims(2, symmetric=True, reversible=True, group=True, momentum=True, symplectic=True)

    def step(
        self, system: InvariantSystem, carry: SplittingCarry, h: Scalar, u: Controls = None
    ) -> Result[SplittingCarry]:
        moments = jnp.diag(carry.axes.T @ system.inertia @ carry.axes)
        m, q = carry.m, carry.q
        for axis, share in ((0, 0.5), (1, 0.5), (2, 1.0), (1, 0.5), (0, 0.5)):
            half = 0.5 * share * h * m[axis] / moments[axis]
            sine, cosine = jnp.sin(half), jnp.cos(half)
            e = jnp.zeros(3).at[axis].set(1.0)
            # exp(-2 half e) m, with the double angles from sine and cosine
            across = jnp.cross(e, m)
            m = m - 2 * sine * (cosine * across - sine * jnp.cross(e, across))
            q = free.quaternion_product(q, jnp.concatenate([cosine[None], sine * e]))
        return carry._replace(t=carry.t + h, q=free.unit_multiple(q), m=m), StepInfo.explicit()


@register(
    words="For a body in a potential: half a kick by the force, the exact free motion, half a kick.",
    use_when="a rigid body turns in a potential",
)
@dataclass(frozen=True)
class KineticSplitting(_Splitting):
    """Rigid bodies in a potential: half a kick by it, the exact free motion, half a kick; symplectic, symmetric.

    Strang 1968; order 4 is Suzuki's composition of five of these. The free motion is that of docs/exact-rigid-body.md,
    so without a potential the method is exact. Momenta of the symmetries of the potential are conserved.
    """

    order: int = 2
    name = "kinetic-splitting"

    def __post_init__(self) -> None:
        require_name("order of kinetic-splitting", self.order, SUZUKI_STAGES)

    def claims(self, system: InvariantSystem) -> Claims:
        free, still = properties.is_purely_inertial(system), properties.is_conservative(system)
        return Claims(
            EXACT if free else self.order, symmetric=True, reversible=still, group=True, energy=free, momentum=still,
            symplectic=still, condition="exact without potential"
        )  # fmt: skip

    def step(
        self, system: InvariantSystem, carry: SplittingCarry, h: Scalar, u: Controls = None
    ) -> Result[SplittingCarry]:
        inertia, one = carry.axes.T @ system.inertia @ carry.axes, jnp.eye(3)

        def kick(now: SplittingCarry, time: Scalar) -> SplittingCarry:
            return now._replace(m=now.m + time * (now.axes.T @ system.L_g(now.t, now.g, jnp.zeros(3))))

        def stage(now: SplittingCarry, share: Scalar) -> tuple[SplittingCarry, None]:
            now = kick(now, 0.5 * share * h)
            level = on_level(*jax.lax.stop_gradient((jnp.diag(inertia), now.m)), one, one)
            variation = free.vary(level, inertia, now.m, one, one)
            m, turn = free.exact_motion(level, variation, inertia, now.m, one, one, share * h)
            q = free.unit_multiple(free.quaternion_product(now.q, free.quaternion(turn)))
            return kick(now._replace(t=now.t + share * h, q=q, m=m), 0.5 * share * h), None

        if self.order == 2:
            return stage(carry, 1.0)[0], StepInfo.explicit()
        return jax.lax.scan(stage, carry, jnp.array(SUZUKI_STAGES[self.order]))[0], StepInfo.explicit()

    checks_numbers_of = "system"

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        properties.require_invariant(self, system)
        if not system.group.is_rotation_group(3) or system.constraints:
            given = f"{system.group}{', with constraints' * bool(system.constraints)}"
            raise InvalidInput(f"{self.name} is for free bodies on SO(3); given: {given}")
        super().require(system, state, h)


class RattleCarry(NamedTuple):
    """Attitude, momentum in the body, and the guess of the multiplier S of the next step."""

    t: Array
    g: Array
    m: Array
    scale: Array
    prediction: Prediction  # of the symmetric multiplier, as (11, 22, 33, 12, 13, 23)


@register(
    words="The free rigid body as nine coordinates with the constraint that they form a rotation.",
    use_when="you want to compare RATTLE with other methods on a free body",
)
@dataclass(frozen=True)
class Rattle(Integrator):
    """RATTLE for free rigid bodies, with the nine entries of the rotation as coordinates; to compare with.

    X_1 = X_0 + h P J^-1, P = P_0 - (h/2) X_0 S with S symmetric such that X_1 is orthogonal; P_1 is P made tangent at
    X_1. Orders 4, 6 and 8 scale the momentum as DMV4, DMV6 and DMV8 do (the order is that of the momentum).
    """

    order: int = 2
    name = "rattle"

    def __post_init__(self) -> None:
        require_name("order of rattle", self.order, RATTLE_ORDERS)

    def claims(self, system: InvariantSystem) -> Claims:
        return Claims(
            2, velocity_order=None if self.order == 2 else self.order, symmetric=True, reversible=True, group=True,
            energy=True, momentum=True, symplectic=self.order == 2,
            condition="the attitude is of order 2 whatever the order"
        )  # fmt: skip

    def start(self, system: InvariantSystem, state: State, h: Scalar, u: Controls = None) -> Result[RattleCarry]:
        b = free.body_on_level(system.inertia, state.momentum)
        s = free.truncated_scale(b, h, self.order)
        status = jnp.where(free.discrete_scale(b, s).exists, OK, NOT_CONVERGED)
        carry = RattleCarry(state.t, state.g, state.momentum, s, Prediction.at(jnp.zeros(6)))
        return carry, StepInfo.explicit(status=status)

    def step(self, system: InvariantSystem, carry: RattleCarry, h: Scalar, u: Controls = None) -> Result[RattleCarry]:
        b, one = free.body_on_level(system.inertia, carry.m), jnp.eye(3)
        turning = system.group.hat(carry.scale * (b.inverse @ carry.m)) @ b.mass

        def orthogonality(x: Array) -> Array:
            """(J + D)^T (J + D) - J^2 for the displacement D, without the cancellation of J^2."""
            displacement = turning - x[SYMMETRIC]
            product = b.mass @ displacement
            excess: Array = product + product.T + displacement.T @ displacement
            return excess[ENTRIES]

        root = carry.prediction.solve(orthogonality)
        turn = (turning - root.x[SYMMETRIC]) @ (b.cofactor / b.E3)  # W - 1, which is small: so is its round-off
        turn = turn - 0.5 * (turn + one) @ (turn + turn.T + turn.T @ turn)
        # The second multiplier is symmetric and drops out of the momentum, which is therefore W^T m (Theorem 6.1).
        g, m = system.group.restore(carry.g + carry.g @ turn), carry.m + turn.T @ carry.m
        new = RattleCarry(carry.t + h, g, m, carry.scale, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, jnp.zeros(0))

    def observe(self, system: InvariantSystem, carry: RattleCarry, h: Scalar) -> State:
        xi = _velocity(system, carry.t, carry.g, carry.m)
        return State(carry.t, carry.g, xi, carry.m, xi)

    checks_numbers_of = "system"

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        body = properties.require_free_body(self, system)
        if not system.group.is_rotation_group(3):
            raise InvalidInput(
                f"{self.name} is for bodies on SO(3), not {system.group}. Use discrete-moser-veselov with order=2"
            )
        properties.require_physical(self, body)
        low = float(jnp.linalg.eigvalsh(body.mass_matrix())[0])
        if low < 1e-8 * float(jnp.trace(body.mass_matrix())):
            raise InvalidInput(
                f"{self.name} divides by the mass matrix, singular for this flat body (eigenvalue {low:.3g}). "
                "Use discrete-moser-veselov"
            )
        super().require(system, state, h)
