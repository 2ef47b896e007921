"""Numbers that a user gives: read as arrays, checked, refused with what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput

TOLERANCE = 1e-8  # by which a matrix that a user gives may be off its group


def is_traced(value: Any) -> bool:
    """Whether the numbers are unknown because JAX is tracing (then only shapes can be checked)."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def array(value: Any) -> Array:
    """`value` as an array of doubles. It compiles nothing, whereas `jnp.asarray` compiles a copy for every shape."""
    if any(isinstance(leaf, Array) for leaf in jax.tree.leaves(value)):
        return jnp.asarray(value, float)
    placed: Array = jax.device_put(np.asarray(value, float))
    return placed


def namespace(*values: Any) -> Any:
    """The functions for these numbers: NumPy's, or JAX's where one is traced. Op by op JAX would compile each."""
    return jnp if is_traced(values) else np


def diagonal(entries: Any) -> Array:
    """The diagonal matrix with these entries."""
    given = array(entries)
    return array(namespace(given).diag(given))


def positive_int(name: str, value: Any) -> int:
    """`value` as a whole number of at least 1, or a clear error."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidInput(f"{name} is {value!r}; allowed: a whole number of at least 1")
    return int(value)


def positive(name: str, value: Any) -> Array:
    """`value` as one positive number, or a clear error."""
    return _one(name, value, lambda x: x > 0, "one positive number")


def not_negative(name: str, value: Any) -> Array:
    """`value` as one number that may be 0, or a clear error."""
    return _one(name, value, lambda x: x >= 0, "one number, not negative")


def finite(name: str, value: Any) -> Array:
    """`value` as one finite number of either sign, or a clear error."""
    return _one(name, value, lambda x: True, "one finite number")


def _one(name: str, value: Any, is_allowed: Callable[[Any], bool], description: str) -> Array:
    traced = isinstance(value, jax.core.Tracer)
    # Models compute with it, and op by op JAX would compile.
    number: Any = jnp.asarray(value, float) if traced else np.asarray(value, float)[()]
    if number.ndim or (not traced and not (np.isfinite(number) and is_allowed(number))):
        raise InvalidInput(f"{name} is {value!r}; allowed: {description}")
    checked: Array = number
    return checked


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


def require_rotation(matrix: Any, group: str) -> None:
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
