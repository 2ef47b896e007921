"""Where a motion may start: configurations and velocities held against the constraints of a system, and what is nearest to them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._input import array
from .errors import InvalidInput, OffConstraint
from .holonomic import nearest
from .kernels.evaluate import compiled

TOLERANCE = 1e-9


def require_admissible(system: Any, t, g, xi) -> None:
    """Refuse a configuration off phi = 0 or a velocity off D, saying how far it is off."""
    if _traced((system, t, g, xi)):
        return
    xi = vector(xi, system.group.dim, "velocity xi")
    rows, off, phi = (np.asarray(value) for value in _constraint(system, t, g, xi))
    k = phi.shape[0]
    if rows.shape[0] and np.linalg.matrix_rank(rows) < rows.shape[0]:
        theirs = f" (the last {k} are the derivative of phi)" if k else ""
        raise InvalidInput(
            f"the {rows.shape[0]} constraint rows A(t, g){theirs} are linearly dependent at the initial state: {rows.tolist()}"
        )
    if np.any(~(np.abs(phi) <= TOLERANCE * (1.0 + np.linalg.norm(rows[rows.shape[0] - k :], axis=1)))):
        raise OffConstraint(
            f"the initial configuration {_listed(g)} is off the holonomic constraint: |phi| = {np.abs(phi).max():.3g}. "
            f"The nearest one is system.project_configuration(g) = {_listed(nearest_configuration(system, g, t))}"
        )
    scale = 1.0 + np.linalg.norm(rows, axis=1) * np.linalg.norm(np.asarray(xi))
    if np.any(np.abs(off) > TOLERANCE * scale):
        raise OffConstraint(
            f"the initial velocity {np.asarray(xi).tolist()} is off the constraint: |A xi - b| = {np.abs(off).max():.3g}. "
            f"The nearest admissible velocity is system.project(g, xi) = {np.asarray(_project(system, t, g, xi)).tolist()}"
        )


def nearest_configuration(system: Any, g, t) -> Any:
    """The configuration with phi = 0 nearest to g in the kinetic metric at g; a clear error where Newton's method finds none."""
    traced = _traced((system, t, g))
    there, found = _nearest(system, t, g if traced else system.group.element(g))
    if not (traced or found):
        raise InvalidInput(f"no configuration with phi = 0 was found near {_listed(g)}: start from one that is nearer")
    return there


def vector(value, size: int, what: str) -> Array:
    """`value` as a finite vector of `size` numbers, or a clear error."""
    given = array(value)
    if given.shape != (size,):
        raise InvalidInput(f"{what} has shape {given.shape}; allowed: ({size},)")
    if not isinstance(given, jax.core.Tracer) and not np.all(np.isfinite(given)):
        raise InvalidInput(f"{what} must be finite; given {np.asarray(given).tolist()}")
    return given


# A system is a pytree, so these are compiled once for all systems of a kind; op by op they would take seconds.
@compiled
def _project(system: Any, t, g, xi):
    return system.project(g, xi, t)


@compiled
def _nearest(system: Any, t, g):
    there, root = nearest(system.group, system.phi, system.metric(t, g, jnp.zeros(system.group.dim)), t, g)
    return there, root.converged


@compiled
def _constraint(system: Any, t, g, xi):
    return system.rows(t, g)(xi), system.residual(t, g, xi), system.phi(t, g)


def _traced(tree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def _listed(g: Any):
    """An element as nested lists of numbers."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), g)
