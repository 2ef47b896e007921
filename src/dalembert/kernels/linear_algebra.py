"""Linear solves and Jacobians as JAX primitives: how each is computed is decided when a program is written.

`eliminate` is Gaussian elimination: a solve is one line of a jaxpr and not a thousand. `eliminate_rows` is the
algorithm, on lists of scalars: XLA gets it written out in `jax.lax`, the kernels in their own operations. The
derivatives are those of the elimination written out; `numerics.solve` has its own.

`columns` is a function with its Jacobian. All columns at once share what they have in common, and zeros fold; one after
the other they are the body of a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import ad, batching, mlir

from .ir import Builder, Value

ScalarRows = list[list[Any]]
ValueArray = np.ndarray[Any, Any]


def eliminate_rows(a: Any, left: ScalarRows, right: ScalarRows) -> tuple[ScalarRows, Any]:
    """(A^-1 B, sign det A) of A = left and B = right, with partial pivoting; both lists are overwritten.

    `a` has the operations: number, larger, negative, select, neg, mul, sub, reciprocal. The pivot is bubbled up by
    selects, so the code is free of branches and of data-dependent indices.
    """
    size, sign = len(left), a.number(1.0)
    for k in range(size):
        rows = [*left[k][k:], *right[k]]
        for i in range(k + 1, size):
            larger, other = a.larger(left[i][k], rows[0]), [*left[i][k:], *right[i]]
            swapped = [a.select(larger, x, y) for x, y in zip(rows, other, strict=True)]
            rows = [a.select(larger, y, x) for x, y in zip(rows, other, strict=True)]
            left[i][k:], right[i] = swapped[: size - k], swapped[size - k :]
            sign = a.select(larger, a.neg(sign), sign)
        sign = a.select(a.negative(rows[0]), a.neg(sign), sign)
        inverse = a.reciprocal(rows[0])
        rows = [a.mul(x, inverse) for x in rows[1:]]
        left[k][k + 1 :], right[k] = rows[: size - k - 1], rows[size - k - 1 :]
        for i in range(k + 1, size):
            factor = left[i][k]
            pairs = zip(left[i][k + 1 :], left[k][k + 1 :], strict=True)
            left[i][k + 1 :] = [a.sub(x, a.mul(factor, y)) for x, y in pairs]
            right[i] = [a.sub(x, a.mul(factor, y)) for x, y in zip(right[i], right[k], strict=True)]
    for k in reversed(range(size)):
        for i in range(k):
            right[i] = [a.sub(x, a.mul(left[i][k], y)) for x, y in zip(right[i], right[k], strict=True)]
    return right, sign


class _JaxArithmetic:
    """JAX's scalars, and rows of right-hand sides beside them."""

    def __init__(self, dtype: Any):
        self.dtype = dtype

    select, neg = staticmethod(lax.select), staticmethod(lax.neg)
    mul, sub = staticmethod(jnp.multiply), staticmethod(lax.sub)

    def number(self, value: float) -> Array:
        return jnp.asarray(value, self.dtype)

    def larger(self, x: Array, y: Array) -> Array:
        return lax.gt(lax.abs(x), lax.abs(y))

    def negative(self, x: Array) -> Array:
        return lax.lt(x, lax.full_like(x, 0.0))

    def reciprocal(self, x: Array) -> Array:
        return lax.div(lax.full_like(x, 1.0), x)


def _eliminate_in_jax(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    rows, sign = eliminate_rows(_JaxArithmetic(matrix.dtype), [list(row) for row in matrix], [[row] for row in rhs])
    return jnp.stack([row for (row,) in rows]) if rhs.size else rhs, sign


def eliminate(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    """(A^-1 B, sign det A), for A (n, n) and B (n, k), by Gaussian elimination with partial pivoting."""
    matrix, rhs = (jnp.asarray(array, jnp.result_type(matrix, rhs)) for array in (matrix, rhs))
    solution, sign = eliminate_p.bind(matrix, rhs)
    return solution, sign


eliminate_p: Any = type(lax.add_p)("eliminate")  # a Primitive: the import of jax.extend.core would take 40 ms
instantiate_zeros: Any = ad.instantiate_zeros  # JAX does not annotate it
eliminate_p.multiple_results = True
eliminate_p.def_impl(jax.jit(_eliminate_in_jax))


eliminate_p.def_abstract_eval(lambda matrix, rhs: (rhs, rhs.update(shape=())))
mlir.register_lowering(eliminate_p, mlir.lower_fun(_eliminate_in_jax, multiple_results=True))


def _jvp(primals: Any, tangents: Any) -> Any:
    return jax.jvp(_eliminate_in_jax, primals, tuple(map(instantiate_zeros, tangents)))


def _transpose(cotangents: Any, matrix: Any, rhs: Any) -> tuple[None, Any]:
    """The solution is linear in the right-hand side."""
    given, _ = cotangents
    return None, eliminate(matrix.T, instantiate_zeros(given))[0]


def _batch(args: Any, axes: Any) -> Any:
    """Batched right-hand sides of one matrix are more columns."""
    (matrix, rhs), (of_matrix, of_rhs) = args, axes
    if of_matrix is not None:
        return jax.vmap(_eliminate_in_jax, axes)(matrix, rhs), (0, 0)
    columns = jnp.moveaxis(rhs, of_rhs, 1)
    solution, sign = eliminate(matrix, columns.reshape(len(matrix), columns.shape[1] * columns.shape[2]))
    return (solution.reshape(columns.shape), sign), (1, None)


ad.primitive_jvps[eliminate_p] = _jvp
ad.primitive_transposes[eliminate_p] = _transpose
batching.primitive_batchers[eliminate_p] = _batch


class _BuilderArithmetic:
    """The operations of an elimination as a builder writes them."""

    def __init__(self, b: Builder):
        self.number, self.select, self.neg, self.mul, self.sub = b.const, b.select, b.neg, b.mul, b.sub
        self._b = b

    def larger(self, x: Value, y: Value) -> Value:
        return self._b.compare("gt", self._b.unary("abs", x), self._b.unary("abs", y))

    def negative(self, x: Value) -> Value:
        return self._b.compare("lt", x, self._b.const(0.0))

    def reciprocal(self, x: Value) -> Value:
        return self._b.div(self._b.const(1.0), x)


def elimination_rule(b: Builder, params: dict[str, Any], matrix: ValueArray, rhs: ValueArray) -> list[ValueArray]:
    """The elimination written out in the operations of a program."""
    rows, sign = eliminate_rows(_BuilderArithmetic(b), matrix.tolist(), rhs.tolist())
    solution, of_determinant = np.empty(rhs.shape, object), np.empty((), object)
    for place in np.ndindex(rhs.shape):
        solution[place] = rows[place[0]][place[1]]
    of_determinant[()] = sign
    return [solution, of_determinant]


def eliminate_in_loop(b: Builder, matrix: ValueArray, rhs: ValueArray) -> list[ValueArray]:
    """The same by Gauss and Jordan, a turn of a loop for each unknown: short code where it is seldom run.

    The pivot is in the first column; its row goes to the end, and the columns move up.
    """
    a, (size, width) = _BuilderArithmetic(b), (len(matrix), matrix.shape[1] + rhs.shape[1])
    one, end = b.const(1), b.const(size)

    def turn(carry: list[Value]) -> list[Value]:
        done, sign, flat = carry[0], carry[1], carry[2:]
        rows = [flat[i * width : (i + 1) * width] for i in range(size)]
        first = rows[0]
        for i in range(1, size):
            waits = b.compare("lt", b.add(done, b.const(i)), end)
            larger = b.logic("and", waits, a.larger(rows[i][0], first[0]))
            pairs = list(zip(first, rows[i], strict=True))
            first, rows[i] = [b.select(larger, y, x) for x, y in pairs], [b.select(larger, x, y) for x, y in pairs]
            sign = b.select(larger, b.neg(sign), sign)
        sign = b.select(a.negative(first[0]), b.neg(sign), sign)
        inverse = a.reciprocal(first[0])
        pivot = [b.mul(x, inverse) for x in first[1:]]
        after = [[b.sub(x, b.mul(row[0], y)) for x, y in zip(row[1:], pivot, strict=True)] for row in rows[1:]]
        moved = [value for row in (*after, pivot) for value in (*row, b.const(0.0))]
        return [b.add(done, one), sign, *moved]

    flat = [value for row in np.concatenate([matrix, rhs], axis=1).tolist() for value in row]
    start = [b.const(0), b.const(1.0), *flat]
    _, sign, *found = b.loop(start, lambda carry: b.compare("lt", carry[0], end), turn)
    solution, of_determinant = np.empty(rhs.shape, object), np.empty((), object)
    for i, j in np.ndindex(rhs.shape):
        solution[i, j] = found[i * width + j]
    of_determinant[()] = sign
    return [solution, of_determinant]


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


def _shapes_of_columns(x: Any, *values: Any, function: Any) -> tuple[Any, Any]:
    (value,) = function.out_avals
    return value, value.update(shape=(*value.shape, x.shape[0]))


def _jvp_of_columns(primals: Any, tangents: Any, *, function: Any) -> Any:
    """The derivative in the values that have one: whole numbers and truth values are left as they are."""
    moving = [k for k, primal in enumerate(primals) if np.issubdtype(primal.dtype, np.inexact)]

    def along(*given: Any) -> tuple[Array, Array]:
        every = dict(enumerate(primals)) | dict(zip(moving, given, strict=True))
        return all_columns(function, *(every[k] for k in range(len(primals))))

    return jax.jvp(along, [primals[k] for k in moving], [instantiate_zeros(tangents[k]) for k in moving])


def _batch_columns(args: Any, axes: Any, *, function: Any) -> Any:
    return jax.vmap(partial(all_columns, function), axes)(*args), (0, 0)


@lru_cache(maxsize=64)
def _compile(function: Any) -> Any:
    return jax.jit(partial(all_columns, function))


columns_p.def_impl(lambda *args, function: _compile(function)(*args))
columns_p.def_abstract_eval(_shapes_of_columns)
mlir.register_lowering(
    columns_p, mlir.lower_fun(lambda *args, function: all_columns(function, *args), multiple_results=True)
)
ad.primitive_jvps[columns_p] = _jvp_of_columns
batching.primitive_batchers[columns_p] = _batch_columns
