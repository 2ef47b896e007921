"""The distribution D as geometry: brackets of vector fields, adapted frames and Hamel's equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ._linalg import solve
from ._newton import find_root
from .system import MechanicalSystem

Field = Callable[[Any], Array]


def bracket(group, x: Field, y: Field) -> Field:
    """[X, Y] of vector fields given left-trivialised: DY.X - DX.Y + ad_X Y."""

    def value(g):
        def along(field, direction):
            return jax.jvp(lambda eta: field(group.shift(g, eta)), (jnp.zeros(group.dim),), (direction,))[1]

        return along(y, x(g)) - along(x, y(g)) + group.ad(x(g), y(g))

    return value


# -- Hamel's equations ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Hamel:
    """The equations of motion in a frame adapted to TQ = D + D-perp (retraction-maps (3)-(6)).

    The frame of D at g is the kinetic projection of the columns of `reference`; the frame of D-perp is M^-1 A^T.
    Velocities are xi = X_a y^a, momenta rho_a = dl/dy^a, for l = L restricted to D. The system must be autonomous, its
    constraints linear (b = 0).
    """

    system: MechanicalSystem
    reference: Array

    def frame(self, g) -> Array:
        """X_a: the vectors (n, r) that span D_g."""
        return self.system.frame(0.0, g, self.reference)

    def complement(self, g) -> Array:
        """X_alpha: the vectors (n, m) that span the kinetic complement of D_g."""
        return solve(self.system.metric(0.0, g, jnp.zeros(self.system.group.dim)), self.system.A(0.0, g).T)

    def structure(self, g) -> Array:
        """C^c_ab, shape (c, a, b): the part in D of [X_a, X_b] = C^c_ab X_c + C^alpha_ab X_alpha."""
        group, rank = self.system.group, self.reference.shape[1]
        fields = [lambda q, a=a: self.frame(q)[:, a] for a in range(rank)]
        brackets = jnp.stack([jnp.stack([bracket(group, x, y)(g) for y in fields], axis=-1) for x in fields], axis=-2)
        both = jnp.concatenate([self.frame(g), self.complement(g)], axis=1)
        return solve(both, brackets.reshape(group.dim, rank * rank)).reshape(group.dim, rank, rank)[:rank]

    def lagrangian(self, g, y) -> Array:
        """l(g, y) = L(g, X_a y^a)."""
        return self.system.L(0.0, g, self.frame(g) @ y)

    def quasivelocity(self, g, rho) -> Array:
        """The inverse of the restricted Legendre map rho = dl/dy."""
        return find_root(lambda y: jax.grad(self.lagrangian, argnums=1)(g, y) - rho, jnp.zeros_like(rho)).x

    def hamiltonian(self, g, rho) -> Array:
        """h(g, rho) = rho . y - l(g, y)."""
        y = self.quasivelocity(g, rho)
        return rho @ y - self.lagrangian(g, y)

    def field(self, g, rho) -> tuple[Array, Array]:
        """(xi, rho') of (4): xi = X_b dh/drho_b, rho'_a = -C^c_ab rho_c dh/drho_b - X_a[h]."""
        group = self.system.group
        y = jax.grad(self.hamiltonian, argnums=1)(g, rho)
        slope = jax.grad(lambda eta: self.hamiltonian(group.shift(g, eta), rho))(jnp.zeros(group.dim))
        frame = self.frame(g)
        return frame @ y, -jnp.einsum("cab,c,b->a", self.structure(g), rho, y) - frame.T @ slope


def hamel(system: MechanicalSystem, g=None) -> Hamel:
    """Hamel's form of the equations near g (default: the identity), in the frame that extends the basis of D there."""
    g = system.group.identity() if g is None else g
    return Hamel(system, system.basis(0.0, g))
