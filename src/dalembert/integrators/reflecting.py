"""Methods that reflect the momentum in D at every node, after an unconstrained variational step.

They are the geometric nonholonomic integrators, and among them the nonholonomic leapfrog of McLachlan and Perlmutter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..groups import Cayley, Retraction
from ..mechanics import Discretisation, FiniteDifference, MechanicalSystem, State
from ..numerics import depends, solve
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Element, Scalar, Velocity
from .base import Claims, Integrator, NodeMethod, Prediction, Result, StepInfo
from .properties import conservative, unconstrained
from .registry import register


class Carry(NamedTuple):
    """The node g, its velocity v in D, and the momentum p^- = -D1 L_d with which the next step leaves it."""

    t: Array
    g: Element
    v: Array
    p: Array
    prediction: Prediction  # of the velocity w of a step


class Reflecting(Integrator):
    """p_k^+ = D2 L_d(g_{k-1}, g_k) and p_k^- = -D1 L_d(g_k, g_{k+1}) agree on D; their mean has its velocity in D.

    With the metric's projectors P onto D and Q = 1 - P this is P* p^- = P* p^+, Q* p^- = -Q* p^+ (Ferraro, Iglesias,
    Martin de Diego, Nonlinearity 21, 2008); an affine constraint A v = b moves the mirror (Ferraro, Jimenez, Martin de
    Diego 2015). The map is reversible if L_d is symmetric. The start is p^- = L_v + (h/2) A^T l, with l of the
    continuous motion.
    """

    @abstractmethod
    def momenta(
        self, system: MechanicalSystem, t: Scalar, g: Element, w: Velocity, h: Scalar, u: Controls
    ) -> tuple[Array, Array]:
        """(-D1 L_d, D2 L_d) of the step from g with velocity w, forces included."""

    @abstractmethod
    def end(self, system: MechanicalSystem, g: Element, w: Velocity, h: Scalar) -> Element:
        """Where that step ends."""

    def claims(self, system: MechanicalSystem) -> Claims:
        still = conservative(system)
        return Claims(
            2, symmetric=True, reversible=still, constraint=True, group=True, momentum=still,
            symplectic=still and unconstrained(system),
            condition="for a symmetric L_d; the way back is that of the whole carry, not of the state alone"
        )  # fmt: skip

    def affine(self, gap: Callable[[Array], Array], w: Array) -> bool:
        """Whether -D1 L_d is known to be affine in w: then a step needs no iteration."""
        return not depends(jax.jacfwd(gap), w)

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        t, g, v = state.t, state.g, state.xi
        multipliers = system.multipliers(t, g, v, u)
        p = system.momentum(t, g, v) + 0.5 * h * system.rows(t, g)(v).T @ multipliers
        return Carry(t, g, v, p, Prediction.at(v)), StepInfo.explicit(multipliers)

    def step(self, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        def gap(w: Velocity) -> Array:
            return self.momenta(system, carry.t, carry.g, w, h, u)[0] - carry.p

        zero, prediction = jnp.zeros_like(carry.v), carry.prediction
        explicit = self.affine(gap, zero)
        if explicit:
            w = -solve(jax.jacfwd(gap)(zero), gap(zero))
        else:
            root = prediction.solve(gap)
            w = root.x
        t, g = carry.t + h, system.group.normalise(self.end(system, carry.g, w, h))
        arriving = self.momenta(system, carry.t, carry.g, w, h, u)[1]
        v, leaving, kick = reflect(system, t, g, arriving, w)
        if explicit:
            return Carry(t, g, v, leaving, prediction._replace(x=w)), StepInfo.explicit(kick / h)
        return Carry(t, g, v, leaving, prediction.after(root)), StepInfo.from_root(prediction, root, kick / h)

    def observe(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> State:
        return State(carry.t, carry.g, carry.v, system.momentum(carry.t, carry.g, carry.v), carry.prediction.x)

    def reverse(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> Carry:
        """The carry from which a step of -h goes back: it leaves with the momentum that arrived."""
        arrived = 2 * system.momentum(carry.t, carry.g, carry.v) - carry.p
        return carry._replace(p=arrived, prediction=Prediction.at(carry.prediction.x))


def reflect(
    system: MechanicalSystem, t: Scalar, g: Element, arriving: Array, w: Velocity
) -> tuple[Array, Array, Array]:
    """(v, p^-, k): v in D, near w, has the restricted momentum of p^+, L_v is the mean of p^+ and p^- = p^+ + A^T k."""
    zero = jnp.zeros_like(arriving)
    affine = system.quadratic and not depends(lambda xi: system.rows(t, g)(xi), zero)
    if not affine:
        v = system.velocity(t, g, arriving, w)
        rows, leaving = system.rows(t, g)(v), 2 * system.momentum(t, g, v) - arriving
        return v, leaving, solve(rows @ rows.T, rows @ (leaving - arriving))
    metric, rows = system.metric(t, g, zero), system.A(t, g)
    free, weights = solve(metric, arriving - system.momentum(t, g, zero)), solve(metric, rows.T)
    half = solve(rows @ weights, system.b(t, g) - rows @ free)
    return free + weights @ half, arriving + 2 * rows.T @ half, 2 * half


@register(
    words="Reflects the momentum at the constraint in every step: reversible, and fails where motion dies out.",
    use_when="the mass matrix depends on the place or Q is a product, the motion is reversible, and runs are long",
)
@dataclass(frozen=True)
class GeometricNonholonomic(NodeMethod, Reflecting):
    """The geometric nonholonomic integrator of L_d = (h/2)(L o rho_s + L o rho_{1-s}): momenta reflected in D.

    Ferraro, Iglesias, Martin de Diego 2008. rho_s is the finite difference map of (retraction, node); every node gives
    a reversible method of order 2, node 1/2 the midpoint rule and node 0 the leapfrog. `pair` gives any other L_d (its
    D_d is not used): reversible if that is symmetric.
    """

    pair: Discretisation | None = None
    name = "geometric-nonholonomic"

    def claims(self, system: MechanicalSystem) -> Claims:
        claims = super().claims(system)
        return claims if self.pair is None else replace(claims, order=1, symmetric=False, reversible=False)

    def momenta(
        self, system: MechanicalSystem, t: Scalar, g: Element, w: Velocity, h: Scalar, u: Controls
    ) -> tuple[Array, Array]:
        if self.pair is not None:
            where = (t, g, self.end(system, g, w, h), h)
            return -self.pair.D1(*where, system, u), self.pair.D2(*where, system, u)

        def one(difference: FiniteDifference) -> Array:
            when, inner = t + difference.node * h, difference.inner(system.group, g, h * w)
            impulse = h * (system.L_g(when, inner, w) + system.F(when, inner, w, u))
            return jnp.stack(difference.momenta(system.group, h * w, system.momentum(when, inner, w), impulse))

        # Both maps lead from g to the same end, so the momenta of the mean of two Lagrangians are the means of momenta.
        here = one(self.difference)
        mean = here if self.node == 0.5 else 0.5 * (here + one(FiniteDifference(self.retraction, 1 - self.node)))
        return mean[0], mean[1]

    def affine(self, gap: Callable[[Array], Array], w: Velocity) -> bool:
        # The work of a pair hides the slope of its force from derivatives: Newton's method finds the root all the same.
        return self.pair is None and super().affine(gap, w)

    def end(self, system: MechanicalSystem, g: Element, w: Velocity, h: Scalar) -> Element:
        if self.pair is not None:
            return system.group.compose(g, self.retraction.tau(system.group, h * w))
        return self.difference.end(system.group, g, h * w)


@register(
    words="Explicit and reversible, the cheapest: holds for ever on oscillators, fails where motion dies out.",
    use_when="Q = R^n with a constant mass matrix, runs are long, and phase volume does not shrink",
)
@dataclass(frozen=True)
class Leapfrog(Reflecting):
    """M (q+ - 2q + q-) = h^2 (F + A^T l), A(q) (q+ - q-) = 2h b: explicit, reversible, order 2.

    McLachlan, Perlmutter 2006. The velocity at q is (q+ - q-)/2h. It is the geometric nonholonomic integrator of L_d =
    (h/2)(L(q0, w) + L(q1, w)) with w = (q1 - q0)/h, and that L_d, with w = tau^-1(g0^-1 g1)/h, defines it for masses
    M(q) and on groups; there a step is implicit.
    """

    retraction: Retraction = Cayley()
    name = "leapfrog"

    def momenta(
        self, system: MechanicalSystem, t: Scalar, g: Element, w: Velocity, h: Scalar, u: Controls
    ) -> tuple[Array, Array]:
        """tau(xi) = g0^-1 g1 varies by d^R tau_xi(dxi) = eta1 - eta0 seen from g0, by d^L tau_xi(dxi) seen from g1."""
        group, xi, end = system.group, h * w, self.end(system, g, w, h)

        def half_impulse(t: Scalar, g: Element) -> Array:
            return 0.5 * h * (system.L_g(t, g, w) + system.F(t, g, w, u))

        legendre = 0.5 * (system.momentum(t, g, w) + system.momentum(t + h, end, w))
        before = self.retraction.right_inverse_star(group, xi, legendre) - half_impulse(t, g)
        return before, self.retraction.left_inverse_star(group, xi, legendre) + half_impulse(t + h, end)

    def end(self, system: MechanicalSystem, g: Element, w: Velocity, h: Scalar) -> Element:
        return system.group.compose(g, self.retraction.tau(system.group, h * w))
