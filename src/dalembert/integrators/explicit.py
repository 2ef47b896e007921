"""Dormand and Prince's method of order 8 with its own steps, inside the compiled step: accuracy at the price of an explicit method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..retractions import Cayley
from ..system import MechanicalSystem, State
from .base import NOT_CONVERGED, NOT_FINITE, OK, Claims, Integrator, StepInfo, fine

SMALLEST, LARGEST, SAFETY = 1.0 / 3.0, 6.0, 0.9  # of a step against the one before (Hairer, Norsett, Wanner, II.10)
LIMIT = 100_000  # substeps within one step
TINY = 2.0**-46  # a substep below this share of the step has left the domain


@cache
def tableau() -> tuple[np.ndarray, ...]:
    """(A, b, c, and the weights of the two error estimates of orders 5 and 3) of DOP853."""
    from scipy.integrate import DOP853

    count = DOP853.n_stages
    return DOP853.A[:count, :count], DOP853.B, DOP853.C[:count], DOP853.E5[:count], DOP853.E3[:count]


class Carry(NamedTuple):
    """The state on D, and the substep that the error allows (0: not known yet)."""

    t: Array
    g: Any
    xi: Array
    substep: Array


class _Substeps(NamedTuple):
    """Within a step: the time done, the state there, the next substep, substeps tried, and the last estimate of the error."""

    done: Array
    g: Any
    xi: Array
    substep: Array
    tried: Array
    error: Array


@dataclass(frozen=True)
class DormandPrince(Integrator):
    """Explicit, order 8, in substeps that keep the estimated error of each below `tolerance` (1 + |y|); g and xi are put back onto G and D.

    The pair of Dormand and Prince with the estimates of Hairer and Wanner (DOP853; Hairer, Norsett, Wanner II.10) on g' = g xi,
    xi' = acceleration. Neither symmetric nor variational: for accurate motions of moderate length, not for long-time statistics.
    `iterations` counts the substeps.
    """

    tolerance: float = 1e-10
    name = "dormand-prince"

    def __post_init__(self):
        if isinstance(self.tolerance, bool) or not (1e-15 <= self.tolerance <= 0.1):
            raise InvalidInput(f"tolerance is {self.tolerance!r}; allowed: 1e-15 to 0.1")

    def claims(self, system) -> Claims:
        return Claims(None, constraint=True, group=True, condition="accurate to `tolerance` a substep, whatever the step")

    def start(self, system, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        return Carry(state.t, state.g, state.xi, jnp.zeros(())), fine(multipliers)

    def step(self, system: MechanicalSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        first = jnp.where(carry.substep == 0.0, 0.1 * h, jnp.sign(h) * jnp.abs(carry.substep))

        def unfinished(s: _Substeps) -> Array:
            return (s.done != h) & (s.tried < LIMIT) & (jnp.abs(s.substep) > TINY * jnp.abs(h))

        def body(s: _Substeps) -> _Substeps:
            left = h - s.done
            last = jnp.abs(s.substep) >= 0.999 * jnp.abs(left)
            k = jnp.where(last, left, s.substep)
            g, xi, error = self._substep(system, carry.t + s.done, s.g, s.xi, k, u)
            good = error <= 1.0
            grown = jnp.clip(SAFETY / jnp.sqrt(jnp.sqrt(jnp.sqrt(error + 1e-30))), SMALLEST, LARGEST)
            share = jnp.where(jnp.isfinite(error), jnp.where(good, grown, jnp.minimum(grown, 1.0)), SMALLEST)
            substep = jnp.where(last & good & (jnp.abs(share * k) < jnp.abs(s.substep)), s.substep, share * k)
            g, xi = jax.tree.map(lambda new, old: jnp.where(good, new, old), (g, xi), (s.g, s.xi))
            done = jnp.where(good, jnp.where(last, h, s.done + k), s.done)
            return _Substeps(done, g, xi, substep, s.tried + 1.0, error)

        zero = jnp.zeros(())
        s = jax.lax.while_loop(unfinished, body, _Substeps(zero, carry.g, carry.xi, first, zero, zero))
        t = carry.t + h
        status = jnp.where(s.done == h, OK, jnp.where(s.tried < LIMIT, NOT_FINITE, NOT_CONVERGED))
        multipliers = system.multipliers(t, s.g, s.xi, u)
        return Carry(t, s.g, s.xi, s.substep), StepInfo(self.tolerance * s.error, s.tried, status, multipliers)

    def _substep(self, system: MechanicalSystem, t, g, xi, k, u) -> tuple[Any, Array, Array]:
        """(g, xi, error) after one substep k; the error in units of the tolerance."""
        A, b, c, fifth, third = tableau()
        group, tau, n = system.group, Cayley(), system.group.dim
        slopes: list[Array] = []

        @jax.jit  # traced once, not at every stage
        def field(s, y):
            """(x', xi') of the configuration g tau(x) and its velocity."""
            x, v = y[:n], y[n:]
            rate = system.acceleration(s, group.compose(g, tau.tau(group, x)), v, u)[0]
            return jnp.concatenate([tau.left_inverse(group, x, v), rate])

        def combined(weights):
            return sum(float(w) * slope for w, slope in zip(weights, slopes, strict=False) if w != 0.0)

        y = jnp.concatenate([jnp.zeros(n), xi])
        for i, node in enumerate(c):
            slopes.append(field(t + float(node) * k, y + k * combined(A[i])))
        new = y + k * combined(b)
        size = 1.0 + jnp.maximum(jnp.abs(y), jnp.abs(new))
        five, three = (jnp.sum((combined(weights) / size) ** 2) for weights in (fifth, third))
        norm = jnp.sqrt((five + 0.01 * three + 1e-300) * y.size)
        g = group.normalise(group.compose(g, tau.tau(group, new[:n])))
        return g, system.project(g, new[n:], t + k), jnp.abs(k) * five / norm / self.tolerance

    def observe(self, system, carry: Carry, h) -> State:
        return State(carry.t, carry.g, carry.xi, system.momentum(carry.t, carry.g, carry.xi), carry.xi)
