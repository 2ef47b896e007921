"""Reading a user's numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._input import array
from ..errors import InvalidInput

TOLERANCE = 1e-8


def is_traced(value: Any) -> bool:
    """Whether the numbers are unknown because JAX is tracing (then only shapes can be checked)."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def parse(value: Any, group: str, shapes: dict[tuple[int, ...], str]) -> Array:
    """An array-like of finite real numbers with one of the allowed shapes, as a float array."""
    choices = " or ".join(f"{what} of shape {shape}" for shape, what in shapes.items())
    allowed = f"an element of {group} must be {choices}"
    try:
        given = jnp.asarray(value) if is_traced(value) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{allowed}, but {value!r} was given") from error
    if given.dtype.kind not in "iuf":
        raise InvalidInput(f"{allowed}, of real numbers, but {value!r} was given")
    if given.shape not in shapes:
        raise InvalidInput(f"{allowed}, but an array of shape {given.shape} was given")
    if not is_traced(given) and not np.isfinite(given).all():
        raise InvalidInput(f"{allowed}, finite, but {given.tolist()} was given")
    return array(given)


def require_rotation(matrix: Array | np.ndarray, group: str) -> None:
    """Refuse a matrix that is not a rotation within 1e-8."""
    if is_traced(matrix):
        return
    rotation = np.asarray(matrix)
    defect = np.linalg.norm(rotation.T @ rotation - np.eye(len(rotation)))
    if defect > TOLERANCE:
        raise InvalidInput(f"a rotation in {group} must satisfy |R^T R - 1| <= {TOLERANCE:g}, but it is {defect:.3g}")
    if np.linalg.det(rotation) < 0:
        raise InvalidInput(f"a rotation in {group} must have determinant +1, but a reflection (-1) was given")


@jax.jit
def normalised(group: Any, g: Array) -> Array:
    """`group.normalise(g)`, compiled as one: a process that only reads its input would compile each operation alone."""
    return group.normalise(g)
