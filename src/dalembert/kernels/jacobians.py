"""A function with its Jacobian as one JAX primitive: how the columns are computed is decided when a program is written.

All at once they share what they have in common, and zeros fold; one after the other they are the body of a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, cast

import jax
import numpy as np
from jax import Array, lax
from jax.interpreters import ad, batching, mlir

from .elimination import instantiate_zeros

columns_p: Any = type(lax.add_p)("columns")
columns_p.multiple_results = True


def columns(f: Callable[[Array], Array], x: Array) -> tuple[Array, Array]:
    """f(x) and its Jacobian."""
    closed = jax.make_jaxpr(f)(x)

    def of_all(x: Array, *values: Any) -> Array:
        """f of x and of what it closes over."""
        value: Array = jax.core.eval_jaxpr(closed.jaxpr, values, x)[0]
        return value

    value, slope = columns_p.bind(x, *closed.consts, function=jax.make_jaxpr(of_all)(x, *closed.consts))
    return value, slope


def _with_values(function: Any, values: tuple[Any, ...]) -> Callable[[Array], Array]:
    return lambda x: cast(Array, jax.core.eval_jaxpr(function.jaxpr, function.consts, x, *values)[0])


def all_columns(function: Any, x: Array, *values: Any) -> tuple[Array, Array]:
    """f(x) and its Jacobian, the columns side by side; `function` is the closed jaxpr of f(x, *values)."""
    f = _with_values(function, values)
    return f(x), jax.jacfwd(f)(x)


def columns_in_turn(function: Any, x: Array, *values: Any) -> tuple[Array, Array]:
    """The same, one column after the other."""
    f = _with_values(function, values)
    along = np.eye(x.shape[0], dtype=x.dtype)
    every, rows = lax.scan(lambda _, e: (None, jax.jvp(f, (x,), (e,))), None, along)[1]
    return every[0], rows.T


def _shapes(x: Any, *values: Any, function: Any) -> tuple[Any, Any]:
    (value,) = function.out_avals
    return value, value.update(shape=(*value.shape, x.shape[0]))


def _jvp(primals: Any, tangents: Any, *, function: Any) -> Any:
    """The derivative in the values that have one: whole numbers and truth values are left as they are."""
    moving = [k for k, primal in enumerate(primals) if np.issubdtype(primal.dtype, np.inexact)]

    def along(*given: Any) -> tuple[Array, Array]:
        every = dict(enumerate(primals)) | dict(zip(moving, given, strict=True))
        return all_columns(function, *(every[k] for k in range(len(primals))))

    return jax.jvp(along, [primals[k] for k in moving], [instantiate_zeros(tangents[k]) for k in moving])


def _batch(args: Any, axes: Any, *, function: Any) -> Any:
    return jax.vmap(partial(all_columns, function), axes)(*args), (0, 0)


@lru_cache(maxsize=64)
def _compiled(function: Any) -> Any:
    return jax.jit(partial(all_columns, function))


columns_p.def_impl(lambda *args, function: _compiled(function)(*args))
columns_p.def_abstract_eval(_shapes)
mlir.register_lowering(
    columns_p, mlir.lower_fun(lambda *args, function: all_columns(function, *args), multiple_results=True)
)
ad.primitive_jvps[columns_p] = _jvp
batching.primitive_batchers[columns_p] = _batch
