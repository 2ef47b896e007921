"""What a method says of itself on a system: its order, symmetry, and what it keeps. `make verify` measures it all (docs/claims.md)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..groups import Euclidean
from ..mechanics import InvariantSystem, LRSystem, NonlinearSystem, System
from ..numerics import depends


# -- what claims depend on ----------------------------------------------------------------------------------------------------
def unconstrained(system: Any) -> bool:
    """D is everything: the method is then a variational integrator."""
    return system.constraints == 0


def conservative(system: Any) -> bool:
    """No forces, nothing depends on time, and A xi = 0: the energy is constant and the motion reversible."""
    if isinstance(system, InvariantSystem | LRSystem):
        return not depends(lambda t: system.L(t, _one(system), jnp.zeros(system.group.dim)), jnp.zeros(()))
    plain = isinstance(system, System) and system.force is None and system.drift is None
    return plain and not isinstance(system, NonlinearSystem) and not _clocked(system)


def _clocked(system: System) -> bool:
    g, xi = _one(system), jnp.zeros(system.group.dim)
    return depends(lambda t: (system.L(t, g, xi + 1.0), system.A(t, g), system.phi(t, g)), jnp.zeros(()))


def inertial(system: Any) -> bool:
    """A left-invariant kinetic energy alone."""
    return isinstance(system, InvariantSystem | LRSystem) and getattr(system, "potential", None) is None


def euclidean(system: Any) -> bool:
    """Q = R^n."""
    return isinstance(system.group, Euclidean)


def flat(system: Any) -> bool:
    """R^n with a kinetic metric that does not depend on the place."""
    g, zero = _one(system), jnp.zeros(system.group.dim)
    return euclidean(system) and system.quadratic and not depends(lambda q: system.metric(0.0, q, zero), g)


def quadratic_potential(system: Any) -> bool:
    """V = 0 on any group, or a quadratic V on R^n: then the energy is a quadratic function of what a frame of D has."""
    zero = jnp.zeros(system.group.dim)
    if inertial(system) or not depends(lambda g: system.L(0.0, g, zero), _one(system)):
        return True
    if not euclidean(system):
        return False
    slope = jax.grad(lambda q: system.L(0.0, q, zero))
    return not depends(jax.jacfwd(slope), _one(system))


def _one(system: Any) -> Any:
    return system.group.identity()
