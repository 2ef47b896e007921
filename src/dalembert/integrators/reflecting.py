"""Geometric nonholonomic integrators: an unconstrained variational step, and the momentum reflected in D at every node.

The nonholonomic leapfrog of McLachlan and Perlmutter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..groups import Cayley, Retraction
from ..mechanics import Discretisation, FiniteDifference, MechanicalSystem, State
from ..numerics import depends, solve
from .base import Claims, Integrator, Prediction, StepInfo, fine, info
from .properties import conservative, unconstrained


class Carry(NamedTuple):
    """The node g, its velocity v in D, and the momentum p^- = -D1 L_d with which the next step leaves it."""

    t: Array
    g: Any
    v: Array
    p: Array
    prediction: Prediction  # of the velocity w of a step


class Reflecting(Integrator):
    """p_k^+ = D2 L_d(g_{k-1}, g_k) and p_k^- = -D1 L_d(g_k, g_{k+1}) agree on D, and their mean is the momentum of a v_k in D.

    With the metric's projectors P onto D and Q = 1 - P this is P* p^- = P* p^+, Q* p^- = -Q* p^+ (Ferraro, Iglesias, Martin de
    Diego, Nonlinearity 21, 2008); an affine constraint A v = b moves the mirror (Ferraro, Jimenez, Martin de Diego 2015).
    The map is reversible if L_d is symmetric. The start is p^- = L_v + (h/2) A^T l, with l of the continuous motion.
    """

    @abstractmethod
    def momenta(self, system: MechanicalSystem, t, g, w, h, u) -> tuple[Array, Array]:
        """(-D1 L_d, D2 L_d) of the step from g with velocity w, forces included."""

    @abstractmethod
    def end(self, system: MechanicalSystem, g, w, h) -> Any:
        """Where that step ends."""

    def claims(self, system) -> Claims:
        still = conservative(system)
        return Claims(
            2,
            symmetric=True,
            reversible=still,
            constraint=True,
            group=True,
            momentum=still,
            symplectic=still and unconstrained(system),
            condition="for a symmetric L_d; the way back is that of the whole carry, not of the state alone",
        )

    def affine(self, gap: Callable[[Array], Array], w: Array) -> bool:
        """Whether -D1 L_d is known to be affine in w: then a step needs no iteration."""
        return not depends(jax.jacfwd(gap), w)

    def start(self, system, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        t, g, v = state.t, state.g, state.xi
        multipliers = system.multipliers(t, g, v, u)
        p = system.momentum(t, g, v) + 0.5 * h * system.rows(t, g)(v).T @ multipliers
        return Carry(t, g, v, p, Prediction.at(v)), fine(multipliers)

    def step(self, system, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        def gap(w):
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
        v, leaving, kick = reflect(system, t, g, arriving)
        if explicit:
            return Carry(t, g, v, leaving, prediction._replace(x=w)), fine(kick / h)
        return Carry(t, g, v, leaving, prediction.advanced(root)), info(prediction, root, kick / h)

    def observe(self, system, carry: Carry, h) -> State:
        return State(carry.t, carry.g, carry.v, system.momentum(carry.t, carry.g, carry.v), carry.prediction.x)

    def reverse(self, system, carry: Carry, h) -> Carry:
        """The carry from which a step of -h goes back: it leaves with the momentum that arrived."""
        arrived = 2 * system.momentum(carry.t, carry.g, carry.v) - carry.p
        return carry._replace(p=arrived, prediction=Prediction.at(carry.prediction.x))


def reflect(system: MechanicalSystem, t, g, arriving: Array) -> tuple[Array, Array, Array]:
    """(v, p^-, k): v in D has the restricted momentum of p^+, L_v is the mean of p^+ and p^- = p^+ + A^T k."""
    zero = jnp.zeros_like(arriving)
    affine = system.quadratic and not depends(lambda xi: system.rows(t, g)(xi), zero)
    if not affine:
        v = system.velocity(t, g, arriving)
        rows, leaving = system.rows(t, g)(v), 2 * system.momentum(t, g, v) - arriving
        return v, leaving, solve(rows @ rows.T, rows @ (leaving - arriving))
    metric, rows = system.metric(t, g, zero), system.A(t, g)
    free, weights = solve(metric, arriving - system.momentum(t, g, zero)), solve(metric, rows.T)
    half = solve(rows @ weights, system.b(t, g) - rows @ free)
    return free + weights @ half, arriving + 2 * rows.T @ half, 2 * half


@dataclass(frozen=True)
class GeometricNonholonomic(Reflecting):
    """The GNI of L_d = (h/2)(L o rho_s + L o rho_{1-s}): momenta reflected in D (Ferraro, Iglesias, Martin de Diego 2008).

    rho_s is the finite difference map of (retraction, node); every node gives a reversible method of order 2, node 1/2 the
    midpoint rule and node 0 the leapfrog. `pair` gives any other L_d (its D_d is not used): reversible if that is symmetric.
    """

    retraction: Retraction = Cayley()
    node: float = 0.5
    pair: Discretisation | None = None
    name = "geometric-nonholonomic"

    def __post_init__(self):
        FiniteDifference(self.retraction, self.node)

    def claims(self, system) -> Claims:
        claims = super().claims(system)
        return claims if self.pair is None else replace(claims, order=1, symmetric=False, reversible=False)

    def momenta(self, system: MechanicalSystem, t, g, w, h, u) -> tuple[Array, Array]:
        if self.pair is not None:
            where = (t, g, self.end(system, g, w, h), h)
            return -self.pair.D1(*where, system, u), self.pair.D2(*where, system, u)

        def one(difference: FiniteDifference) -> Array:
            when, inner = t + difference.node * h, difference.inner(system.group, g, h * w)
            impulse = h * (system.L_g(when, inner, w) + system.F(when, inner, w, u))
            return jnp.stack(difference.momenta(system.group, h * w, system.momentum(when, inner, w), impulse))

        # Both maps lead from g to the same end, so that the momenta of the mean of two Lagrangians are the means of momenta.
        here = one(FiniteDifference(self.retraction, self.node))
        mean = here if self.node == 0.5 else 0.5 * (here + one(FiniteDifference(self.retraction, 1 - self.node)))
        return mean[0], mean[1]

    def affine(self, gap, w) -> bool:
        # The work of a pair hides the slope of its force from derivatives: Newton's method finds the root, one step does not.
        return self.pair is None and super().affine(gap, w)

    def end(self, system: MechanicalSystem, g, w, h) -> Any:
        if self.pair is not None:
            return system.group.compose(g, self.retraction.tau(system.group, h * w))
        return FiniteDifference(self.retraction, self.node).end(system.group, g, h * w)


@dataclass(frozen=True)
class Leapfrog(Reflecting):
    """M (q+ - 2q + q-) = h^2 (F + A^T l), A(q) (q+ - q-) = 2h b: explicit, reversible, order 2 (McLachlan, Perlmutter 2006).

    The velocity at q is (q+ - q-)/2h. It is the geometric nonholonomic integrator of L_d = (h/2)(L(q0, w) + L(q1, w)) with
    w = (q1 - q0)/h, and that L_d, with w = tau^-1(g0^-1 g1)/h, defines it for masses M(q) and on groups; there a step is implicit.
    """

    retraction: Retraction = Cayley()
    name = "leapfrog"

    def momenta(self, system: MechanicalSystem, t, g, w, h, u) -> tuple[Array, Array]:
        """tau(xi) = g0^-1 g1 varies by d^R tau_xi(dxi) = eta1 - eta0 seen from g0, and by d^L tau_xi(dxi) seen from g1."""
        group, xi, end = system.group, h * w, self.end(system, g, w, h)

        def half_impulse(t, g):
            return 0.5 * h * (system.L_g(t, g, w) + system.F(t, g, w, u))

        legendre = 0.5 * (system.momentum(t, g, w) + system.momentum(t + h, end, w))
        before = self.retraction.right_inverse_star(group, xi, legendre) - half_impulse(t, g)
        return before, self.retraction.left_inverse_star(group, xi, legendre) + half_impulse(t + h, end)

    def end(self, system: MechanicalSystem, g, w, h) -> Any:
        return system.group.compose(g, self.retraction.tau(system.group, h * w))
