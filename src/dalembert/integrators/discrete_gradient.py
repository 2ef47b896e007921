"""Energy-preserving methods on D: discrete gradients of the potential in an adapted frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, require_name
from ..groups import Cayley, Retraction
from ..kernels import with_slope
from ..mechanics import MechanicalSystem, State, distribution, drift_of, kinetic_metric
from ..numerics import depends, find_fixed_point
from ..numerics.types import Array, Controls, Element, Scalar, Velocity
from .base import Claims, PhaseMethod, Prediction, Result, StepInfo, add_compensated, rescale
from .properties import is_conservative, quadratic_potential, require_linear, require_quadratic
from .registry import register

GAUSS_NODES, GAUSS_WEIGHTS = (tuple(map(float, part)) for part in np.polynomial.legendre.leggauss(4))
MACHINE_EPSILON = 2.0**-52
Potential = Callable[[Array], Array]


def _secant_gradient(potential: Potential, s0: Array, s1: Array, metric: Array) -> Array:
    """Gonzalez' gradient on the segment from s0 to s1: that of the middle, corrected along the segment.

    What is below the round-off of the two values is no correction, but its derivative is: it vanishes where the excess
    changes its sign. On a segment of no length the gradient is that of the middle.
    """
    x = s1 - s0
    slope: Array = jax.grad(potential)(0.5 * (s0 + s1))
    v0, v1 = potential(s0), potential(s1)
    excess, square = v1 - v0 - slope @ x, x @ metric @ x
    size = jnp.abs(v0) + jnp.abs(v1)
    told = (jnp.abs(excess) > MACHINE_EPSILON * size) & (square > 0.0)
    moves = jnp.abs(slope @ x) > MACHINE_EPSILON**0.5 * size  # else the derivative is round-off too
    excess = jnp.where(told, excess, jnp.where(moves, with_slope(jnp.zeros_like(excess), excess), 0.0))
    return slope + excess / jnp.where(square > 0.0, square, 1.0) * (metric @ x)


def gonzalez(potential: Potential, x: Array, metric: Array) -> Array:
    """The gradient at the middle, corrected along x (Gonzalez, J. Nonlinear Sci. 6, 1996)."""
    return _secant_gradient(potential, -0.5 * x, 0.5 * x, metric)


def average_gradient(potential: Potential, x: Array, metric: Array) -> Array:
    """The mean of the gradient on the segment (Harten, Lax, van Leer 1983; Quispel, McLaren 2008).

    By Gauss' rule of 4 points. Exact where the potential is a polynomial of degree 8 along the segment; else its error
    is O(|x|^9) a step.
    """
    means: Array = jax.vmap(lambda node: jax.grad(potential)(0.5 * node * x))(jnp.array(GAUSS_NODES))
    return 0.5 * jnp.array(GAUSS_WEIGHTS) @ means


def itoh_abe(potential: Potential, x: Array, metric: Array) -> Array:
    """Difference quotients coordinate by coordinate (Itoh, Abe 1988), the mean of both orders, which is symmetric."""
    n = x.shape[0]

    def path(order: Iterable[int]) -> Array:
        slopes, s = [jnp.zeros(())] * n, -0.5 * x
        for i in order:
            unit = jnp.eye(n)[i]
            new = s + unit * x[i]
            slopes[i] = _secant_gradient(potential, s, new, jnp.eye(n))[i]
            s = new
        return jnp.stack(slopes)

    return 0.5 * (path(range(n)) + path(reversed(range(n))))


GRADIENTS = {"gonzalez": gonzalez, "average": average_gradient, "itoh-abe": itoh_abe}


class Carry(NamedTuple):
    """The node g with its velocity in D, |rho|^2 there and what its last sum lost, and a frame of D near g."""

    t: Array
    g: Element
    xi: Array
    square: Array
    lost: Array
    reference: Array
    prediction: Prediction  # of the velocity of a step


@register(
    words="Conserves the energy and satisfies the constraint to round-off, with any potential.",
    use_when="the energy must be exact, the system is autonomous, and its constraint is A(g) xi = 0",
)
@dataclass(frozen=True)
class DiscreteGradient(PhaseMethod):
    """Conserve energy and constraint exactly, with any potential: order 2, symmetric; forces do exactly their work.

    (rho_1 - rho_0)/h = K(g~, w) - X(g~)^T dV(g_0, g_1) with w = (rho_0 + rho_1)/2. g_1 = g_0 tau(h v/2) tau(h v/2),
    v = X(g~) w at the middle g~ = g_0 tau(h v/2). xi = X(g) rho in a frame of D that is orthonormal in the kinetic
    metric, so the energy is |rho|^2/2 + V. K are the inertial forces of Hamel's equations, <K, w> = 0, and dV . h v =
    V_1 - V_0 is the discrete `gradient` in the coordinates tau about g~ (Celledoni, Farre, Hoiseth, Martin de Diego
    2016, there on R^n). Forces do the work h <F, v> at g~ exactly. The multipliers are those of the equations of
    motion at the end of the step.
    """

    gradient: str = "gonzalez"
    retraction: Retraction = Cayley()
    name = "discrete-gradient"
    carry_is_step_free = self_adjoint = has_increment = True

    def __post_init__(self) -> None:
        require_name("discrete gradient", self.gradient, GRADIENTS)

    def claims(self, system: MechanicalSystem) -> Claims:
        still = is_conservative(system)
        return Claims(
            2, symmetric=True, reversible=still, constraint=True, group=True,
            energy=still and (self.gradient != "average" or quadratic_potential(system)),
            condition='energy with "average" up to a quadrature, exact where V is a polynomial of degree 8 along a step'
        )  # fmt: skip

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        reference = distribution.initial_frame(system, state.t, state.g)
        square = state.xi @ kinetic_metric(system, state.t, state.g) @ state.xi
        carry = Carry(state.t, state.g, state.xi, square, jnp.zeros(()), reference, Prediction.at(state.xi))
        return carry, StepInfo.at(system, state, u)

    def step(self, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        t, group, metric = carry.t + 0.5 * h, system.group, kinetic_metric(system, carry.t, carry.g)

        def moved(v: Velocity) -> tuple[Element, Array, Array, Array]:
            """(middle, its frame, rho_0, w) of a step with velocity v; the frame of the middle makes it symmetric."""
            middle = group.compose(carry.g, self.retraction.tau(group, 0.5 * (h * v)))
            at_middle = distribution.orthonormal_frame(system, t, middle, carry.reference)
            rho = distribution.orthonormal_frame(system, t, carry.g, at_middle).T @ (metric @ carry.xi)
            rho = rescale(rho, carry.square)
            return middle, at_middle, rho, at_middle.T @ (kinetic_metric(system, t, middle) @ v)

        def velocity(v: Velocity) -> Array:
            middle, at_middle, rho, w = moved(v)
            return at_middle @ (rho + 0.5 * h * self.force(system, t, middle, at_middle, w, at_middle @ (h * w), u))

        root = find_fixed_point(velocity, carry.prediction.guess)
        middle, at_middle, rho, w = moved(root.x)
        y = h * w
        x = at_middle @ y
        force = self.force(system, t, middle, at_middle, w, x, u)
        g = group.restore(group.compose(middle, self.retraction.tau(group, 0.5 * x)))
        # The root has w = rho + h force/2: derivatives need not go through the force again.
        kick = with_slope(h * force, 2.0 * (w - rho))
        xi = distribution.orthonormal_frame(system, t, g, at_middle) @ (rho + kick)
        # The work is V_0 - V_1 with this x, whatever the residual of the iteration and the round-off of h w:
        # h <force, 2 rho + kick> has both, and they do not average out.
        square, lost = add_compensated(carry.square, with_slope(2.0 * force @ y, 2.0 * kick @ w), carry.lost)
        new = Carry(carry.t + h, g, xi, square, lost, at_middle, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, system.multipliers(carry.t + h, g, xi, u))

    def force(
        self, system: MechanicalSystem, t: Scalar, middle: Element, at_middle: Array, w: Velocity, x: Array, u: Controls
    ) -> Array:
        """rho' of Hamel's equations with dV for V_g.

        rho_a' = <M xi, D_xi X_a> + <L_xi, [xi, X_a]> + <L_g - D_xi L_xi(0) + F, X_a>.
        """
        group, zero = system.group, jnp.zeros(system.group.dim)
        xi, metric = at_middle @ w, kinetic_metric(system, t, middle)

        def potential(s: Array) -> Array:
            return -system.L(t, group.compose(middle, self.retraction.tau(group, s)), zero)

        frame = lambda s, g: distribution.orthonormal_frame(system, s, g, at_middle)
        turning = distribution.derivative_along(system, frame, t, middle, xi)
        magnetic = distribution.derivative_along(system, lambda s, g: system.momentum(s, g, zero), t, middle, xi)
        covector = system.L_g(t, middle, xi) - system.L_g(t, middle, zero) + system.F(t, middle, xi, u) - magnetic
        covector = covector + group.ad_star(xi, system.momentum(t, middle, xi))
        slope = GRADIENTS[self.gradient](potential, x, metric)
        return turning.T @ (metric @ xi) + at_middle.T @ (covector - slope)

    def reverse(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> Carry:
        """Back from the same velocity, in the same frame."""
        return carry._replace(prediction=Prediction.at(carry.prediction.x))

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        require_linear(self, system)
        require_quadratic(self, system)

        def parts(t: Scalar) -> tuple[Array, Array, Array]:
            return system.L(t, state.g, state.xi), system.A(t, state.g), system.b(t, state.g)

        driven = depends(parts, jnp.zeros(())) or depends(lambda g: system.b(state.t, g), state.g)
        if driven or np.any(np.asarray(drift_of(system, state.t, state.g)) != 0.0):
            raise InvalidInput(
                f"{self.name} conserves the energy of autonomous systems with A(g) xi = 0; this one depends on time or "
                "has b != 0. Use lagrange-dalembert or gauss"
            )
        super().require(system, state, h)
