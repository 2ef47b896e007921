"""Free rigid bodies on SO(3) and SO(n)."""

from __future__ import annotations

import numpy as np

from ..errors import InvalidInput
from ..groups import SO, SO3
from ..invariant import InvariantSystem, inertia_of_mass


def rigid_body(inertia) -> InvariantSystem:
    """The free rigid body on SO(3), L = <I w, w>/2: m' = m x I^-1 m (Euler 1765). `inertia`: three moments or a 3x3 tensor."""
    return InvariantSystem(SO3(), inertia)


def rigid_body_n(mass) -> InvariantSystem:
    """The free rigid body on SO(n), <I xi, xi> = tr(xi J xi^T): M' = [M, xi], M = J xi + xi J (Manakov 1976). `mass`: J, n numbers or n x n."""
    mass = mass_tensor(mass)
    return InvariantSystem(SO(mass.shape[0]), inertia_of_mass(SO(mass.shape[0]), mass))


def mass_tensor(mass) -> np.ndarray:
    """A mass matrix J (n, n) whose inertia is positive: J_i + J_j > 0 for its eigenvalues."""
    array = np.asarray(mass, float)
    array = np.diag(array) if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] < 2 or not np.all(np.isfinite(array)):
        raise InvalidInput(f"mass has shape {array.shape}; allowed: n numbers, or a finite symmetric n x n matrix, n >= 2")
    if np.abs(array - array.T).max() > 1e-12 * np.abs(array).max():
        raise InvalidInput(f"mass must be symmetric; given {array.tolist()}")
    low = np.linalg.eigvalsh(array)[:2]
    if low.sum() <= 0:
        raise InvalidInput(f"mass has eigenvalues {low.tolist()} whose sum is not positive: the inertia J_i + J_j must be positive")
    return array
