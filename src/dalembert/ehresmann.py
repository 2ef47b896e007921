"""Coordinates adapted to D on R^n: an Ehresmann connection v^alpha = -A^alpha_a v^a, and the motion in z = (q, v^a).

Sections 3.1 and 4.1 of jimenez-scheurle. The coordinates of q are split into base (a) and fibre (alpha) ones such that the
constraint can be solved for the fibre velocities; affine, time-dependent and nonlinear constraints go the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._echelon import echelon
from ._jaxpr import depends
from ._linalg import solve
from ._newton import find_root
from .errors import InvalidInput
from .groups import Euclidean
from .system import MechanicalSystem, State


@dataclass(frozen=True, eq=False)
class Ehresmann:
    """The chart z = (q, v^a) of D: `fibre` are the indices alpha, `reference` the v^alpha near which a nonlinear constraint is solved."""

    system: MechanicalSystem
    fibre: tuple[int, ...]
    reference: Array

    @property
    def base(self) -> tuple[int, ...]:
        """The indices a."""
        return tuple(i for i in range(self.system.group.dim) if i not in self.fibre)

    def connection(self, t, q, v) -> Array:
        """A^alpha_a = -dv^alpha/dv^a, shape (m, n-m): the rows of the constraint solved for the fibre (v matters if it is nonlinear)."""
        rows = self.system.rows(t, q)(v)
        base, fibre = self._parts
        return solve(rows[:, fibre], rows[:, base])

    def vertical(self, t, q, v) -> Array:
        """ver v = (0, v^alpha + A^alpha_a v^a), for a linear constraint."""
        base, fibre = self._parts
        return jnp.zeros_like(v).at[fibre].set(v[fibre] + self.connection(t, q, v) @ v[base])

    def horizontal(self, t, q, v) -> Array:
        """hor v = (v^a, -A^alpha_a v^a) in D, for a linear constraint."""
        return v - self.vertical(t, q, v)

    def lift(self, z, t=0.0) -> tuple[Array, Array]:
        """psi(z) = (q, v) in D (27)."""
        q, free = z[: self.system.group.dim], z[self.system.group.dim :]
        return q, self._velocity(t, q, free)

    def coordinates(self, q, v) -> Array:
        """z = (q, v^a), the left inverse (29) of psi."""
        return jnp.concatenate([q, v[self._parts[0]]])

    def slope(self, z, t=0.0) -> Array:
        """The derivative (28) of psi, shape (2n, 2n-m)."""
        return jax.jacfwd(lambda z: jnp.concatenate(self.lift(z, t)))(z)

    def field(self, t, z, u=None) -> Array:
        """z' = (v, v'^a) of the ODE (26), (46) on D."""
        q, v = self.lift(z, t)
        return self.coordinates(v, self.system.acceleration(t, q, v, u)[0])

    def velocity_step(self, z, h, node: float = 0.5, t=0.0, u=None) -> tuple[Array, Array]:
        """(z_{k+1}, l_{k+1}) of the velocity integrator of node beta in these coordinates: (71) for 0, (76) for 1/2, corrected.

        The momentum balance p_{k+1} - p_k = h mu^T l at q = q~_k + (1-beta) h v_k is paired with hor(d_a), which removes l,
        and v_{k+1} in D is solved for its fibre part: n unknowns. The fibre components of the balance then are l.
        """
        base, fibre = self._parts
        inner, before = self.lift(z, t)
        q = inner + (1 - node) * h * before
        p = self._momentum(t, inner, before, node * h, u)

        def balance(v):
            return self._momentum(t + h, q + node * h * v, v, -(1 - node) * h, u) - p

        def mean_rows(v):
            return self.system.rows(t + (1 - node) * h, q)(0.5 * (before + v))

        def equations(v):
            gain, rows = balance(v), mean_rows(v)
            horizontal = gain[base] - solve(rows[:, fibre], rows[:, base]).T @ gain[fibre]
            return jnp.concatenate([horizontal, self.system.residual(t + h, q + node * h * v, v)])

        v = find_root(equations, before).x
        multipliers = solve(mean_rows(v)[:, fibre].T, balance(v)[fibre]) / h
        return self.coordinates(q + node * h * v, v), multipliers

    @property
    def _parts(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.base, int), np.array(self.fibre, int)

    def _momentum(self, t, q, v, share, u) -> Array:
        """L_v + share (L_q + F)."""
        return self.system.momentum(t, q, v) + share * (self.system.L_g(t, q, v) + self.system.F(t, q, v, u))

    def _velocity(self, t, q, free) -> Array:
        base, fibre = self._parts

        def whole(bound):
            return jnp.zeros(self.system.group.dim).at[base].set(free).at[fibre].set(bound)

        def off(bound):
            return self.system.residual(t, q, whole(bound))

        if depends(self.system.rows(t, q), whole(self.reference)):
            return whole(find_root(off, self.reference).x)
        return whole(self.reference - solve(jax.jacfwd(off)(self.reference), off(self.reference)))


def ehresmann(system: MechanicalSystem, state: State, fibre: Sequence[int] | None = None) -> Ehresmann:
    """Coordinates adapted to D near `state`; the fibre indices default to the pivots of the constraint rows there."""
    if not isinstance(system.group, Euclidean):
        raise InvalidInput(f"adapted coordinates (q, v^a) are those of R^n; the system lives on {system.group}")
    system.require_admissible(state.t, state.g, state.xi)
    rows = np.asarray(jax.jit(lambda: system.rows(state.t, state.g)(state.xi))())
    m, n = rows.shape
    chosen = tuple(sorted(echelon(rows)[1])) if fibre is None else tuple(sorted(int(i) for i in fibre))
    if len(set(chosen)) != m or not all(0 <= i < n for i in chosen):
        raise InvalidInput(
            f"fibre = {list(chosen)}; allowed: {m} different indices of 0 to {n - 1}, one for each constraint"
        )
    if m and np.linalg.cond(rows[:, chosen]) > 1e12:
        raise InvalidInput(
            f"the constraint cannot be solved for the velocities of fibre = {list(chosen)} here; "
            f"allowed for example: {sorted(echelon(rows)[1])}"
        )
    return Ehresmann(system, chosen, jnp.asarray(np.asarray(state.xi)[list(chosen)]))
