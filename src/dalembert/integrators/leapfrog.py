"""The nonholonomic leapfrog of McLachlan and Perlmutter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax import Array

from ..retractions import Cayley, Retraction
from ..system import MechanicalSystem
from .gni import Reflecting


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
