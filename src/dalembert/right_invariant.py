"""LR systems (G, I, d): the Lagrangian <I xi, xi>/2 is left-invariant, the constraint Ad_g xi in d right-invariant."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from ._linalg import solve
from .groups import Group
from .invariant import InvariantSystem
from .kernels.evaluate import compiled
from .system import MechanicalSystem


@jax.tree_util.register_pytree_node_class
class LRSystem(MechanicalSystem):
    """L = <I xi, xi>/2 with the velocity seen from space, Ad_g xi, in a constant subspace d (Veselov-Veselova 1986).

    `subspace` gives d by the columns of a basis (n, r), `annihilator` by rows (m, n) that vanish on it. The fields a -> a g, a in d,
    are symmetries of L that satisfy the constraint, so the components on d of the momentum seen from space are conserved: restricted
    momenta are these, in the basis of d carried to g by Ad_g^-1.
    """

    def __init__(self, group: Group, inertia, subspace=None, annihilator=None):
        self.group = group
        self.body = InvariantSystem(group, inertia, subspace, annihilator)

    def tree_flatten(self):
        return (self.body,), self.group

    @classmethod
    def tree_unflatten(cls, group, data):
        system = object.__new__(cls)
        system.group, (system.body,) = group, data
        return system

    @property
    def inertia(self) -> Array:
        """I of L = <I xi, xi>/2 (n, n), in the body."""
        return self.body.inertia

    @property
    def subspace(self) -> Array:
        """The basis of d, vectors seen from space (n, r)."""
        return self.body.subspace

    @property
    def annihilator(self) -> Array:
        """Rows (m, n) that vanish on d."""
        return self.body.annihilator

    def mass_matrix(self) -> Array:
        """J with <I xi, xi> = tr(xi J xi^T); see `InvariantSystem.mass_matrix`."""
        return self.body.mass_matrix()

    def L(self, t, g, xi) -> Array:
        return self.body.L(t, g, xi)

    def A(self, t, g) -> Array:
        """Ad*_g of the annihilator: <a, Ad_g xi> = <Ad*_g a, xi>."""
        return jax.vmap(partial(self.group.Ad_star, g))(self.annihilator)

    def b(self, t, g) -> Array:
        return jnp.zeros(self.annihilator.shape[0])

    def F(self, t, g, xi, u) -> Array:
        return jnp.zeros(self.group.dim)

    def basis(self, t, g) -> Array:
        """Ad_g^-1 of the basis of d."""
        return _basis(self, g)

    def velocity(self, t, g, momentum) -> Array:
        basis = self.basis(t, g)
        return basis @ solve(basis.T @ self.inertia @ basis, basis.T @ momentum)

    def spatial_momentum(self, g, momentum) -> Array:
        """Ad*_g^-1 M: the momentum seen from space; its components on d are conserved."""
        return self.group.Ad_star(self.group.inverse(g), momentum)


@compiled
def _basis(system: LRSystem, g) -> Array:
    return jax.vmap(partial(system.group.Ad, system.group.inverse(g)), in_axes=1, out_axes=1)(system.subspace)
