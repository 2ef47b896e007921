"""Reading numbers that a user gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import InvalidInput


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
    array = jnp.asarray(value, float)
    concrete = not isinstance(array, jax.core.Tracer)
    if array.ndim or (concrete and not (np.isfinite(array) and allowed(array))):
        raise InvalidInput(f"{name} is {value!r}; allowed: {description}")
    return array
