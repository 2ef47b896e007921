"""Reading numbers that a user gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import InvalidInput


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
