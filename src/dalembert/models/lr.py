"""LR systems: the Lagrangian is left-invariant, the constraint right-invariant."""

from __future__ import annotations

import numpy as np
from jax import Array

from .._input import namespace, positive
from ..errors import InvalidInput
from ..groups import SO3, Euclidean
from ..invariant import symmetric
from ..right_invariant import LRSystem


def veselova(inertia, normal=(0.0, 0.0, 1.0)) -> LRSystem:
    """A rigid body about a fixed point that may not turn about an axis fixed in space: <normal, R w> = 0 (Veselov-Veselova 1986).

    Suslov's problem with the axis in space instead of in the body. The momentum seen from space keeps its components across the
    normal. The basis of d for the normal e3 is (e1, e2), seen from space.
    """
    normal = np.asarray(normal, float)
    if normal.shape != (3,) or not np.all(np.isfinite(normal)) or not normal.any():
        raise InvalidInput(f"normal is {normal.tolist()}; allowed: three finite numbers, not all 0")
    return LRSystem(SO3(), inertia, annihilator=normal)


def chaplygin_sphere(inertia, mass=1.0, radius=1.0) -> LRSystem:
    """Chaplygin's ball as an LR system on SO(3) x R^2: x' = r W x e3 for the angular velocity W seen from space (Fedorov 2007).

    The components on d of the momentum seen from space are K, the angular momentum about the point of contact: all three are
    conserved. The same motion as `chaplygin_ball`.
    """
    mass, radius = positive("mass", mass), float(positive("radius", radius))
    tensor = symmetric(inertia, 3, "inertia")
    across = np.zeros((3, 2))
    whole = namespace(tensor, mass).block([[tensor, across], [across.T, mass * np.eye(2)]])
    rolling = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, radius, 0.0], [-radius, 0.0, 0.0]]
    return LRSystem(SO3() * Euclidean(2), whole, subspace=rolling)


def conserved_momentum(system: LRSystem, g, momentum) -> Array:
    """The components on d of the momentum seen from space: for Veselova (m1, m2), for the sphere K about the contact."""
    return system.subspace.T @ system.spatial_momentum(g, momentum)
