"""The Suslov problem: a rigid body about a fixed point that may not turn about a body-fixed axis."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..groups import SO, SO3
from ..invariant import InvariantSystem, inertia_of_mass
from .rigid_body import mass_tensor

E3 = (0.0, 0.0, 1.0)


def suslov(inertia, normal=E3, *, weight=None) -> InvariantSystem:
    """A rigid body on SO(3) with L = <I w, w>/2 and <normal, w> = 0 (Suslov 1902; garcia-naranjo-jimenez (12)).

    `weight` = m g l (a vector in the body, from the fixed point to the centre of mass, times m g) adds the potential
    <weight, R^T e3> of gravity. The basis of d for the normal e3 is (e1, e2).
    """
    normal = np.asarray(normal, float)
    if normal.shape != (3,) or not np.all(np.isfinite(normal)) or not normal.any():
        raise InvalidInput(f"normal is {normal.tolist()}; allowed: three finite numbers, not all 0")
    if weight is None:
        return InvariantSystem(SO3(), inertia, annihilator=normal)
    weight = jnp.asarray(weight, float)
    if weight.shape != (3,):
        raise InvalidInput(f"weight has shape {weight.shape}; allowed: (3,), a vector in the body")
    return InvariantSystem(SO3(), inertia, annihilator=normal, potential=gravity, parameters={"weight": weight})


def gravity(t, g, p) -> Array:
    """<weight, R^T e3>."""
    return p["weight"] @ g[2]


def suslov_n(mass) -> InvariantSystem:
    """The n-dimensional Suslov problem on SO(n): only planes that contain e_n turn, w_ij = 0 for i, j < n (fedorov-zenkov (4.10), p = 1).

    `mass` is J, n numbers or n x n. On SO(3) this is `suslov` with the hat map's e3. The basis of d is (1n, 2n, ..).
    """
    mass = mass_tensor(mass)
    n = mass.shape[0]
    group = SO(n)
    if n < 3:
        raise InvalidInput(f"the Suslov problem needs n >= 3; mass is {n} x {n}")
    rows = np.eye(3)[2:] if n == 3 else np.eye(group.dim)[[k for k, (_, j) in enumerate(planes(n)) if j < n - 1]]
    return InvariantSystem(group, inertia_of_mass(group, mass), annihilator=rows)


def planes(n: int) -> list[tuple[int, int]]:
    """The index pairs (i, j), i < j, in the order of the coordinates of so(n)."""
    return [(i, j) for i in range(n) for j in range(i + 1, n)]


def exact_momentum(inertia, momentum, t) -> np.ndarray:
    """M(t) = I w(t) of the Suslov body with normal e3 and restricted momentum (M1, M2), shape (..., 3) for t of shape (...).

    With I12 = L L^T on d and M12 = L u the energy is |u|^2/2, and u = r (cos a, sin a) in the frame of k = L^-1 I_3/det L
    turns by a' = r |k| cos a: the motion is the heteroclinic arc sin a = tanh(r |k| t + c) (fedorov-zenkov, section 4).
    """
    inertia = np.asarray(inertia, float)
    inertia = np.diag(inertia) if inertia.ndim == 1 else inertia
    t = np.asarray(t, float)
    lower = np.linalg.cholesky(inertia[:2, :2])
    u = np.linalg.solve(lower, np.asarray(momentum, float)[:2])
    coupling = np.linalg.solve(lower, inertia[:2, 2])
    radius, strength = np.hypot(*u), np.hypot(*coupling) / np.linalg.det(lower)
    axis = coupling / np.hypot(*coupling) if strength else np.array([1.0, 0.0])
    across, along = axis @ u, axis[0] * u[1] - axis[1] * u[0]
    if strength == 0 or across == 0:  # balanced, or on the line of equilibria
        turned = np.broadcast_to(u, (*t.shape, 2))
    else:
        phase = radius * strength * t + np.arcsinh(along / abs(across))
        perpendicular = np.array([-axis[1], axis[0]])
        turned = radius * (
            np.sign(across) / np.cosh(phase)[..., None] * axis + np.tanh(phase)[..., None] * perpendicular
        )
    return np.concatenate([turned @ lower.T, (turned @ coupling)[..., None]], axis=-1)
