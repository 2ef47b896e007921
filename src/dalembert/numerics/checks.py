"""Reading numbers that a user gives.

Reading a user's numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput


def array(value) -> Array:
    """`value` as an array of doubles. It compiles nothing, whereas `jnp.asarray` compiles a copy for every shape."""
    if any(isinstance(leaf, Array) for leaf in jax.tree.leaves(value)):
        return jnp.asarray(value, float)
    return jax.device_put(np.asarray(value, float))


def namespace(*values):
    """The functions for these numbers: NumPy's, or JAX's where one is traced. Op by op JAX would compile each."""
    return jnp if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values)) else np


def diagonal(entries) -> Array:
    """The diagonal matrix with these entries."""
    given = array(entries)
    return array(namespace(given).diag(given))


def positive(name: str, value) -> Array:
    """`value` as one positive number, or a clear error."""
    return _one(name, value, lambda x: x > 0, "one positive number")


def not_negative(name: str, value) -> Array:
    """`value` as one number that may be 0, or a clear error."""
    return _one(name, value, lambda x: x >= 0, "one number, not negative")


def finite(name: str, value) -> Array:
    """`value` as one finite number of either sign, or a clear error."""
    return _one(name, value, lambda x: True, "one finite number")


def _one(name: str, value, allowed, description: str) -> Array:
    traced = isinstance(value, jax.core.Tracer)
    # Models compute with it, and op by op JAX would compile.
    number: Any = jnp.asarray(value, float) if traced else np.asarray(value, float)[()]
    if number.ndim or (not traced and not (np.isfinite(number) and allowed(number))):
        raise InvalidInput(f"{name} is {value!r}; allowed: {description}")
    return number


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


def normalised(group: Any, g: Array) -> Array:
    """`group.normalise(g)`, compiled as one: a process that only reads its input would compile each operation alone."""
    element: Array = _normalise(group, g)
    return element


_normalise = jax.jit(lambda group, g: group.normalise(g))
