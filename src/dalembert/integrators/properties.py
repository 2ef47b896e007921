"""Properties of systems that claims depend on (docs/claims.md); what methods refuse, with a method that takes it."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..groups import Group
from ..kernels import evaluate
from ..mechanics import InvariantSystem, LRSystem, MechanicalSystem, NonlinearSystem, System
from ..numerics import depends
from .base import Integrator


def is_unconstrained(system: MechanicalSystem) -> bool:
    """Whether no constraint limits the velocity: a method is then a variational integrator."""
    return system.constraints == 0


def is_conservative(system: MechanicalSystem) -> bool:
    """Whether the energy is conserved and the motion reversible: no forces, A xi = 0, nothing depends on time."""
    g, xi = system.group.identity(), jnp.zeros(system.group.dim)
    if isinstance(system, InvariantSystem | LRSystem):
        return not depends(lambda t: system.L(t, g, xi), jnp.zeros(()))
    if not isinstance(system, System) or isinstance(system, NonlinearSystem):
        return False
    parts = lambda t: (system.L(t, g, xi + 1.0), system.A(t, g), system.phi(t, g))
    return system.force is None and system.drift is None and not depends(parts, jnp.zeros(()))


def is_purely_inertial(system: MechanicalSystem) -> bool:
    """Whether the Lagrangian is a left-invariant kinetic energy alone."""
    return isinstance(system, InvariantSystem | LRSystem) and getattr(system, "potential", None) is None


@lru_cache(maxsize=64)
def _structure_constants(group: Group) -> Any:
    """c with [e_i, e_j] = c[i, j], of all pairs at once in native code."""
    n = group.dim
    pairs = np.repeat(np.eye(n), n, axis=0), np.tile(np.eye(n), (n, 1))
    return np.asarray(evaluate(partial(_bracket, group), (), pairs, lanes=n * n, axes=(None, 0))).reshape(n, n, n)


def _bracket(group: Group, _: Any, pair: tuple[Array, Array]) -> Array:
    return group.ad(*pair)


def lie_triple_subspace(system: MechanicalSystem) -> bool:
    """Whether [[d, d], d] lies in d, as for half of a symmetric pair, a subalgebra or a line: exp(d) is then tau(d)."""
    basis = np.asarray(system.subspace) if isinstance(system, InvariantSystem) else np.eye(system.group.dim)
    constants = _structure_constants(system.group)
    inner = np.einsum("ia,jb,ijk->abk", basis, basis, constants)
    triple = np.einsum("abi,jc,ijk->kabc", inner, basis, constants).reshape(system.group.dim, -1)
    off = triple - basis @ np.linalg.lstsq(basis, triple, rcond=None)[0]
    return bool(np.abs(off).max(initial=0.0) <= 1e-9 * max(1.0, np.abs(triple).max(initial=0.0)))


def euclidean(system: MechanicalSystem) -> bool:
    """Whether Q = R^n."""
    return bool(system.group.is_flat)


def constant_metric(system: MechanicalSystem) -> bool:
    """Whether Q = R^n with a kinetic metric that does not depend on the place."""
    g, zero = system.group.identity(), jnp.zeros(system.group.dim)
    return euclidean(system) and system.quadratic and not depends(lambda q: system.metric(0.0, q, zero), g)


def quadratic_potential(system: MechanicalSystem) -> bool:
    """Whether V = 0, or V is quadratic on R^n: the energy is then quadratic in what a frame of D has."""
    g, zero = system.group.identity(), jnp.zeros(system.group.dim)
    if is_purely_inertial(system) or not depends(lambda g: system.L(0.0, g, zero), g):
        return True
    return euclidean(system) and not depends(jax.jacfwd(jax.grad(lambda q: system.L(0.0, q, zero))), g)


def require_linear(method: Integrator, system: MechanicalSystem) -> None:
    """Refuse constraints that are not affine in the velocity, and systems that leave it no freedom."""
    if isinstance(system, NonlinearSystem):
        raise InvalidInput(
            f"{method.name} needs a constraint A(t, g) xi = b(t, g); this one is not affine in xi. "
            "Use lagrange-dalembert"
        )
    if system.constraints >= system.group.dim:
        raise InvalidInput(f"{method.name} needs a mechanical system; for a vector field use retraction-map")


def require_quadratic(method: Integrator, system: MechanicalSystem) -> None:
    """Refuse Lagrangians that are not quadratic in the velocity."""
    if not system.quadratic:
        raise InvalidInput(
            f"{method.name} needs a Lagrangian that is quadratic in xi, for its kinetic metric. "
            "Use lagrange-dalembert or gauss"
        )


def require_invariant(method: Integrator, system: MechanicalSystem) -> InvariantSystem:
    """The system, if it is (G, I, d); refuse any other."""
    if not isinstance(system, InvariantSystem):
        raise InvalidInput(
            f"{method.name} needs an InvariantSystem (group, inertia, subspace); given {type(system).__name__}. "
            "Use LagrangeDAlembert, or write the system as da.InvariantSystem(group, inertia, annihilator=rows) "
            "if its energy <I xi, xi>/2 and its rows are constant"
        )
    return system


def require_free_body(method: Integrator, given: MechanicalSystem) -> InvariantSystem:
    """The system, if it is a free rigid body on SO(n); refuse any other."""
    system = require_invariant(method, given)
    if not system.group.is_rotation_group():
        raise InvalidInput(f"{method.name} is for rigid bodies on SO(n); the group given is {system.group}")
    if system.constraints:
        raise InvalidInput(
            f"{method.name} needs a free body; this one has {system.constraints} constraints. Use euler-poincare-suslov"
        )
    if system.potential is not None:
        raise InvalidInput(f"{method.name} needs a body without potential; use kinetic-splitting or lagrange-dalembert")
    system.require_body()
    return system


def require_on_so3(method: Integrator, system: MechanicalSystem) -> None:
    """Refuse what is no free rigid body on SO(3)."""
    require_free_body(method, system)
    if not system.group.is_rotation_group(3):
        raise InvalidInput(f"{method.name} is for bodies on SO(3); the group given is {system.group}")


def require_physical(method: Integrator, system: InvariantSystem) -> None:
    """Refuse moments of inertia that violate the triangle inequality: then J has a negative eigenvalue."""
    values = np.linalg.eigvalsh(system.mass_matrix())
    if values[0] < -1e-12 * values[-1]:
        raise InvalidInput(
            f"{method.name} needs moments of inertia that satisfy the triangle inequality; the mass matrix has "
            f'eigenvalues {values.tolist()}. order="exact" takes any positive moments'
        )
