"""Sleighs in n dimensions: a rigid body on SE(n) whose blade holds its reference point (fedorov-zenkov, section 5)."""

from __future__ import annotations

import numpy as np

from ..errors import InvalidInput
from ..groups import SE, SE2, Group
from ..invariant import InvariantSystem, generators, inertia_of_mass
from .rigid_body import mass_tensor
from .sleigh import chaplygin_sleigh

MOST = 6


def sleigh_n(tensor, centre, mass=1.0, directions: int | None = None) -> InvariantSystem:
    """The generalised Chaplygin sleigh on SE(n), n = 2 ... 6: a body with mass tensor J about its centre of mass a (fedorov-zenkov (5.8)).

    `tensor` is J (n numbers or n x n), `centre` a. L = tr(xi JJ xi^T)/2 with JJ = [[J + m a a^T, m a], [m a^T, m]].
    `directions=None`: the matrices (5.10), only the planes that contain e1 turn and v is along e1. `directions=k`: the body turns freely
    and the velocity of the reference point stays in the span of e1, ..., ek of the body. For n = 2 either is the Chaplygin sleigh with
    moment J11 + J22. The basis of d is (12, .., 1n, v1), or (all rotations, v1, .., vk).
    """
    tensor = mass_tensor(tensor)
    n, mass = tensor.shape[0], float(mass)
    centre = np.asarray(centre, float)
    if not 2 <= n <= MOST:
        raise InvalidInput(f"tensor is {n} x {n}; allowed: sizes 2 to {MOST}")
    if centre.shape != (n,) or not np.all(np.isfinite(centre)):
        raise InvalidInput(f"centre is {centre.tolist()}; allowed: {n} finite numbers, as many as the tensor has rows")
    if not (np.isfinite(mass) and mass > 0):
        raise InvalidInput(f"mass is {mass}; allowed: a positive number")
    if directions is not None and directions not in range(1, n):
        raise InvalidInput(f"directions is {directions!r}; allowed: None, or a whole number from 1 to {n - 1}")
    whole = np.block([[tensor + mass * np.outer(centre, centre), mass * centre[:, None]], [mass * centre[None], mass]])
    group = SE(n)
    held = [(i, n) for i in range(directions or 1, n)]
    if directions is None:
        held += [(i, j) for i in range(1, n) for j in range(i + 1, n)]
    return InvariantSystem(group, inertia_of_mass(group, whole), annihilator=entries(group, held))


def entries(group: Group, places: list[tuple[int, int]]) -> np.ndarray:
    """The covectors xi -> hat(xi)_ij, one row for each place (i, j)."""
    basis = generators(group)
    return np.array([basis[:, i, j] for i, j in places]).reshape(len(places), group.dim)


def planar_body(mass=1.0, inertia=1.0, a=0.3, b=0.0) -> InvariantSystem:
    """The sleigh without its blade: a free rigid body on SE(2), whose discrete motion is (7.8) of fedorov-zenkov."""
    return InvariantSystem(SE2(), chaplygin_sleigh(mass, inertia, a, b).inertia)
