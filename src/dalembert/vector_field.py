"""A vector field on a group, g' = g X(t, g), as a system: the constraint xi = X(t, g) leaves the velocity no freedom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .groups import Group
from .system import MechanicalSystem, State


@partial(jax.tree_util.register_dataclass, data_fields=("parameters",), meta_fields=("group", "field"))
@dataclass(frozen=True, eq=False)
class VectorField(MechanicalSystem):
    """g' = g X with X = `field(t, g, p)` in the algebra (retraction-maps, section III C).

    In the formalism of (Q, L, D) it is A = 1, b = X with L = |xi|^2/2, so that every integrator of constrained systems runs it.
    """

    group: Group
    field: Callable
    parameters: Any = None

    def L(self, t, g, xi) -> Array:
        return 0.5 * xi @ xi

    def A(self, t, g) -> Array:
        return jnp.eye(self.group.dim)

    def b(self, t, g) -> Array:
        return jnp.asarray(self.field(t, g, self.parameters))

    def F(self, t, g, xi, u) -> Array:
        return jnp.zeros(self.group.dim)

    def velocity(self, t, g, momentum) -> Array:
        return self.b(t, g)

    def state(self, g=None, xi=None, *, momentum=None, t=0.0) -> State:
        """The state at g: its velocity is the field."""
        g = self.group.identity() if g is None else self.group.element(g)
        return super().state(g, self.b(t, g) if xi is None and momentum is None else xi, momentum=momentum, t=t)
