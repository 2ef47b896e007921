"""What each JAX primitive does to arrays of scalar values: elementwise, shapes, products, reductions, indexing.

A rule takes the builder, the primitive's parameters and the arguments as object arrays, and returns an object array
(or a list of them). To add a primitive, add a function here and an entry in `RULES`. Gathers, scatters and dynamic
slices stand in `INDEXING_RULES`: they index where the index is known, and chain selects where it is computed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import numpy as np
from jax import lax

from . import elementary
from .ir import BOOL, F64, I64, Block, Builder, LoweringError, Value

ValueArray = np.ndarray[Any, Any]  # its elements are Values
Arrays = list[ValueArray]
Parameters = dict[str, Any]  # those of a primitive
Rule = Callable[..., Any]  # (builder, parameters, *arguments) -> one array or a list of arrays
Combine = Callable[[Builder, Value, Value], Value]

# fmt: off
SHAPE_PRIMITIVES = (
    "reshape", "broadcast_in_dim", "squeeze", "slice", "transpose", "copy", "concatenate", "iota", "split", "stack",
    "unstack", "tile", "rev", "expand_dims", "stop_gradient", "convert_element_type",
)
# fmt: on
ELEMENT_COSTS = dict.fromkeys(elementary.FUNCTIONS, 25) | dict.fromkeys(SHAPE_PRIMITIVES, 0)
ELEMENT_COSTS |= {"dot_general": 3, "eliminate": 30}
"""Rough costs of an element of the result, for deciding about branches."""


def scalar_type(dtype: Any) -> str:
    """The type of the scalars of an array; integers of all sizes are 64 bits wide in a program."""
    dtype = np.dtype(dtype)
    if dtype == np.float64:
        return F64
    if dtype.kind in "iu":
        return I64
    if dtype in (np.bool_, jax.dtypes.float0):  # a derivative of whole numbers is nothing, and no operation takes it
        return BOOL
    doubles = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    hint = "" if doubles else "; jax.config.update('jax_enable_x64', True) turns on doubles"
    raise LoweringError(f"scalar programs have no type {dtype} (doubles, integers and booleans only){hint}")


def pack_values(values: Sequence[Value], shape: tuple[int, ...]) -> ValueArray:
    """An array whose elements are these scalar values."""
    array: ValueArray = np.empty(len(values) if shape else (), object)
    array[...] = values if shape else values[0]
    return array.reshape(shape) if shape else array


def source_array(b: Builder, op: str, like: Any, block: Block | None = None) -> ValueArray:
    """New inputs or loop parameters in an array of the type and shape of `like`."""
    type = scalar_type(like.dtype)
    return pack_values([b.source(op, type, block=block) for _ in range(like.size)], like.shape)


def flatten_arrays(arrays: Sequence[ValueArray]) -> list[Value]:
    """The elements of all arrays in one list."""
    return [value for array in arrays for value in array.ravel()]


def map_elements(function: Callable[..., Any], *arrays: ValueArray) -> ValueArray:
    """The function of every element, arrays broadcast against each other."""
    if not any(array.ndim for array in arrays):
        return pack_values([function(*(array.item() for array in arrays))], ())
    with np.errstate(all="ignore"):  # constants that fold to infinity are the program's, not a fault of this one
        result = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return result if isinstance(result, np.ndarray) else pack_values([result], ())


def _elementwise(function: Callable[..., Value]) -> Rule:
    """The rule of function(builder, *scalars) on every element."""
    return lambda b, params, *args: map_elements(partial(function, b), *args)


def _operation(method: str, *before: str) -> Rule:
    """The rule of a method of the builder, called with these names before the scalars."""
    return lambda b, params, *args: map_elements(partial(getattr(b, method), *before), *args)


def _bitcast(b: Builder, params: Parameters, x: ValueArray) -> ValueArray:
    """Doubles and 64-bit integers seen as each other."""
    target = np.dtype(params["new_dtype"])
    if target.itemsize != 8:
        raise LoweringError(f"no scalar rule for a bitcast to {target}")
    op = "bits" if scalar_type(target) == I64 else "unbits"
    return map_elements(lambda v: v if v.type == scalar_type(target) else b.emit(op, scalar_type(target), v), x)


def _round(b: Builder, params: Parameters, x: ValueArray) -> ValueArray:
    def away_from_zero(v: Value) -> Value:
        size = b.unary("abs", v)
        down = b.unary("floor", size)
        up = b.compare("le", b.const(0.5), b.sub(size, down))
        return b.copysign(b.select(up, b.add(down, b.const(1.0)), down), v)

    if params["rounding_method"] == lax.RoundingMethod.AWAY_FROM_ZERO:
        return map_elements(away_from_zero, x)
    return map_elements(lambda v: b.unary("round", v), x)


def _select_n(b: Builder, params: Parameters, which: ValueArray, *cases: ValueArray) -> ValueArray:
    def choose(index: Value, *values: Value) -> Value:
        if index.type == BOOL:
            return b.select(index, values[1], values[0])
        result = values[-1]
        for i in range(len(values) - 2, -1, -1):
            result = b.select(b.compare("le", index, b.const(i)), values[i], result)
        return result

    return map_elements(choose, which, *cases)


def _iota(b: Builder, params: Parameters) -> ValueArray:
    shape, dimension = params["shape"], params["dimension"]
    type = scalar_type(params["dtype"])
    along = np.arange(shape[dimension]).reshape([-1 if d == dimension else 1 for d in range(len(shape))])
    return np.broadcast_to(map_elements(lambda n: b.const(n, type), along.astype(object)), shape)


def _empty(b: Builder, params: Parameters) -> ValueArray:
    """An array to be written over, as transposed scans have it."""
    shape = params.get("shape", ())
    return pack_values([b.const(0, scalar_type(params["dtype"]))] * math.prod(shape), shape)


def _broadcast_in_dim(b: Builder, params: Parameters, x: ValueArray, *_: ValueArray) -> ValueArray:
    shape = [1] * len(params["shape"])
    for dimension, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[dimension] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _pad(b: Builder, params: Parameters, x: ValueArray, filling: ValueArray) -> ValueArray:
    for axis, (low, high, interior) in enumerate(params["padding_config"]):
        size = x.shape[axis]
        spread = size + max(size - 1, 0) * interior
        shape = list(x.shape)
        shape[axis] = spread + max(low, 0) + max(high, 0)
        result = np.empty(shape, object)
        result[...] = filling.item()
        at: list[Any] = [slice(None)] * x.ndim
        at[axis] = slice(max(low, 0), max(low, 0) + spread, interior + 1)
        result[tuple(at)] = x
        at[axis] = slice(max(-low, 0), shape[axis] - max(-high, 0))
        x = result[tuple(at)]
    return x


def _platform_index(b: Builder, params: Parameters) -> ValueArray:
    """Which of several platform-dependent branches: that for the CPU, or else the default."""
    platforms = params["platforms"]
    named = [i for i, names in enumerate(platforms) if names and "cpu" in names]
    default = [i for i, names in enumerate(platforms) if not names]
    return pack_values([b.const((named + default)[0])], ())


def _nonzeros(b: Builder, x: ValueArray) -> list[list[dict[int, Value]]]:
    """The vectors along the last of three axes, without the entries that are zero for certain."""
    return [[{k: value for k, value in enumerate(row) if not b.is_const(value, 0)} for row in matrix] for matrix in x]


def _dot_general(b: Builder, params: Parameters, x: ValueArray, y: ValueArray) -> ValueArray:
    (x_sum, y_sum), (x_batch, y_batch) = params["dimension_numbers"]
    x_free = [d for d in range(x.ndim) if d not in (*x_sum, *x_batch)]
    y_free = [d for d in range(y.ndim) if d not in (*y_sum, *y_batch)]
    batch = tuple(x.shape[d] for d in x_batch)
    rows, columns = tuple(x.shape[d] for d in x_free), tuple(y.shape[d] for d in y_free)
    size = math.prod(x.shape[d] for d in x_sum)
    left = x.transpose(*x_batch, *x_free, *x_sum).reshape(math.prod(batch), math.prod(rows), size)
    right = y.transpose(*y_batch, *y_free, *y_sum).reshape(math.prod(batch), math.prod(columns), size)
    result = np.empty((math.prod(batch), math.prod(rows), math.prod(columns)), object)
    zero = b.const(0, scalar_type(params["preferred_element_type"] or np.float64))
    lefts, rights = _nonzeros(b, left), _nonzeros(b, right)
    for n, i, j in itertools.product(*map(range, result.shape)):
        row, column = lefts[n][i], rights[n][j]
        result[n, i, j] = reduce(b.add, (b.mul(u, column[k]) for k, u in row.items() if k in column), zero)
    return result.reshape((*batch, *rows, *columns))


def _rows(x: ValueArray, axes: Sequence[int]) -> tuple[ValueArray, tuple[int, ...]]:
    """x as a matrix whose rows are to be reduced, and the shape of the result."""
    others = [d for d in range(x.ndim) if d not in axes]
    shape = tuple(x.shape[d] for d in others)
    return x.transpose(*others, *axes).reshape(math.prod(shape), -1 if x.size else 0), shape


def _reduce(combine: Combine, neutral: Any) -> Rule:
    def rule(b: Builder, params: Parameters, x: ValueArray) -> ValueArray:
        rows, shape = _rows(x, params["axes"])
        values = [reduce(partial(combine, b), row) if len(row) else b.const(neutral) for row in rows]
        return pack_values(values, shape)

    return rule


def _extreme_index(op: str) -> Rule:
    """argmax and argmin: the first best element, and a NaN is the best of all."""

    def rule(b: Builder, params: Parameters, x: ValueArray) -> ValueArray:
        rows, shape = _rows(x, params["axes"])
        return pack_values([best(b, row) for row in rows], shape)

    def best(b: Builder, row: ValueArray) -> Value:
        value, index = row[0], b.const(0)
        for i, candidate in enumerate(row[1:], 1):
            better = b.compare(op, candidate, value)
            if candidate.type == F64:
                is_nan = b.compare("ne", candidate, candidate)
                better = b.logic("and", b.logic("or", better, is_nan), b.compare("eq", value, value))
            value, index = b.select(better, candidate, value), b.select(better, b.const(i), index)
        return index

    return rule


def _cumulative(combine: Combine) -> Rule:
    def rule(b: Builder, params: Parameters, x: ValueArray) -> ValueArray:
        result = np.moveaxis(x, params["axis"], 0).copy()
        order = range(len(result))[::-1] if params["reverse"] else range(len(result))
        for before, after in itertools.pairwise(order):
            pair = result[before : before + 1], result[after : after + 1]
            result[after] = map_elements(partial(combine, b), *pair)[0]
        return np.moveaxis(result, 0, params["axis"])

    return rule


def _sort(b: Builder, params: Parameters, *operands: ValueArray) -> Arrays:
    """A stable insertion network; rows are tiny."""
    axis, keys = params["dimension"], params["num_keys"]
    results = [np.moveaxis(x, axis, -1).copy() for x in operands]

    def before(left: list[Value], right: list[Value]) -> Value:
        """Whether `right` must come first: lexicographic, NaN last."""
        verdict = b.const(False)
        for u, v in reversed(list(zip(left[:keys], right[:keys], strict=True))):
            less, equal = b.compare("lt", v, u), b.compare("eq", v, u)
            if u.type == F64:
                less = b.logic("or", less, b.logic("and", b.compare("ne", u, u), b.compare("eq", v, v)))
            verdict = b.logic("or", less, b.logic("and", equal, verdict))
        return verdict

    for place in np.ndindex(results[0].shape[:-1]):
        rows = [x[place] for x in results]
        for end in range(1, len(rows[0])):
            for i in range(end, 0, -1):
                left, right = [row[i - 1] for row in rows], [row[i] for row in rows]
                swap = before(left, right)
                for row, u, v in zip(rows, left, right, strict=True):
                    row[i - 1], row[i] = b.select(swap, v, u), b.select(swap, u, v)
    return [np.moveaxis(x, -1, axis) for x in results]


_add: Combine = lambda b, u, v: b.add(u, v)
_mul: Combine = lambda b, u, v: b.mul(u, v)
_max: Combine = lambda b, u, v: b.max(u, v) if u.type != BOOL else b.logic("or", u, v)
_min: Combine = lambda b, u, v: b.min(u, v) if u.type != BOOL else b.logic("and", u, v)

# fmt: off
RULES: dict[str, Rule] = {
    **{name: _elementwise(function) for name, function in elementary.FUNCTIONS.items()},
    **{name: _operation(name) for name in ("add", "sub", "mul", "div", "neg")},
    "add_any": _operation("add"), "not": _operation("invert"),
    **{op: _operation("unary", op) for op in ("abs", "sqrt", "floor", "ceil")},
    **{op: _operation("compare", op) for op in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{op: _operation("logic", op) for op in ("and", "or", "xor")},
    "shift_left": _operation("emit", "shl", I64), "shift_right_arithmetic": _operation("emit", "shr", I64),
    **dict.fromkeys(("stop_gradient", "copy", "copy_p", "reduce_precision", "name", "sharding_constraint",
                     "device_put", "optimization_barrier"), lambda b, params, *xs: list(xs)),
    "max": _elementwise(_max), "min": _elementwise(_min),
    "square": lambda b, params, x: map_elements(lambda v: b.mul(v, v), x),
    "one_minus_square": lambda b, params, x: map_elements(lambda v: b.sub(b.const(1.0), b.mul(v, v)), x),
    "integer_pow": lambda b, params, x: map_elements(lambda v: b.power(v, params["y"]), x),
    "convert_element_type": lambda b, params, x: map_elements(
        lambda v: b.convert(v, scalar_type(params["new_dtype"])), x),
    "bitcast_convert_type": _bitcast, "round": _round, "select_n": _select_n,
    "clamp": lambda b, params, low, x, high: map_elements(lambda l, v, h: b.min(b.max(v, l), h), low, x, high),
    "is_finite": lambda b, params, x: map_elements(
        lambda v: b.compare("lt", b.unary("abs", v), b.const(math.inf)), x),
    "empty": _empty, "empty2": _empty, "iota": _iota, "broadcast_in_dim": _broadcast_in_dim, "pad": _pad,
    "slice": lambda b, params, x: x[tuple(
        map(slice, params["start_indices"], params["limit_indices"], params["strides"] or (1,) * x.ndim))],
    "reshape": lambda b, params, x: x.reshape(params["new_sizes"]),
    "squeeze": lambda b, params, x: np.squeeze(x, params["dimensions"]),
    "expand_dims": lambda b, params, x: np.expand_dims(x, params["dimensions"]),
    "transpose": lambda b, params, x: x.transpose(params["permutation"]),
    "rev": lambda b, params, x: np.flip(x, params["dimensions"]),
    "split": lambda b, params, x: np.split(x, np.cumsum(params["sizes"])[:-1], axis=params["axis"]),
    "concatenate": lambda b, params, *xs: np.concatenate(xs, params["dimension"]),
    "stack": lambda b, params, *xs: np.stack(xs, params["axis"]),
    "unstack": lambda b, params, x: list(np.moveaxis(x, params["axis"], 0)),
    "tile": lambda b, params, x: np.tile(x, params["reps"]),
    "platform_index": _platform_index, "dot_general": _dot_general,
    "reduce_sum": _reduce(_add, 0.0), "reduce_prod": _reduce(_mul, 1.0),
    "reduce_max": _reduce(_max, -math.inf), "reduce_min": _reduce(_min, math.inf),
    "reduce_and": _reduce(lambda b, u, v: b.logic("and", u, v), True),
    "reduce_or": _reduce(lambda b, u, v: b.logic("or", u, v), False),
    "reduce_xor": _reduce(lambda b, u, v: b.logic("xor", u, v), False),
    "argmax": _extreme_index("gt"), "argmin": _extreme_index("lt"),
    "cumsum": _cumulative(_add), "cumprod": _cumulative(_mul),
    "cummax": _cumulative(_max), "cummin": _cumulative(_min), "sort": _sort,
}
# fmt: on


def select_element(b: Builder, array: Any, index: Sequence[Value]) -> Value:
    """array[index], an index beyond an end taken as that end."""
    if not index:
        element: Value = array.item() if isinstance(array, np.ndarray) else array
        return element
    first, rest = index[0], index[1:]
    last = len(array) - 1
    if first.op == "const":
        return select_element(b, array[min(max(first.data, 0), last)], rest)
    result = select_element(b, array[last], rest)
    for i in range(last - 1, -1, -1):
        result = b.select(b.compare("le", first, b.const(i)), select_element(b, array[i], rest), result)
    return result


def _is_inside(b: Builder, start: Sequence[Value], last: Sequence[int]) -> Value:
    """Whether 0 <= start <= last in every direction."""
    result = b.const(True)
    for value, limit in zip(start, last, strict=True):
        result = b.logic("and", result, b.compare("le", b.const(0), value))
        result = b.logic("and", result, b.compare("le", value, b.const(limit)))
    return result


def _drops_outside(mode: Any) -> bool:
    """Whether an index beyond the end means nothing instead of the end."""
    return bool(mode == lax.GatherScatterMode.FILL_OR_DROP)


def _gather(
    b: Builder, params: Parameters, shape: tuple[int, ...], operand: ValueArray, indices: ValueArray
) -> ValueArray:
    """XLA's gather: a window of `slice_sizes` at every start index."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    inner = [d for d in range(operand.ndim) if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)]
    starts = numbers.start_index_map
    last_starts = [operand.shape[d] - sizes[d] for d in starts]
    result = np.empty(shape, object)
    for place in np.ndindex(shape):
        batch = tuple(place[d] for d in range(len(shape)) if d not in numbers.offset_dims)
        offsets = dict(zip(inner, (place[d] for d in numbers.offset_dims), strict=True))
        start = [indices[(*batch, k)] for k in range(len(starts))]
        window: list[Any] = []
        for d in range(operand.ndim):
            offset = offsets.get(d, 0)
            if d in numbers.operand_batching_dims:
                offset = batch[numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(d)]]
            reach = operand.shape[d] - sizes[d] if d in starts else 0
            window.append(slice(offset, offset + reach + 1))
        by_dimension = dict(zip(starts, start, strict=True))
        index = [by_dimension.get(d, b.const(0)) for d in range(operand.ndim)]
        value = select_element(b, operand[tuple(window)], index)
        if _drops_outside(params["mode"]):
            filling = params.get("fill_value")
            filling = {F64: math.nan, I64: -(1 << 63), BOOL: True}[value.type] if filling is None else filling
            value = b.select(_is_inside(b, start, last_starts), value, b.const(filling, value.type))
        result[place] = value
    return result


def _scatter(combine: Combine) -> Rule:
    """XLA's scatter: combine every update with the element at its index."""

    def rule(
        b: Builder,
        params: Parameters,
        shape: tuple[int, ...],
        operand: ValueArray,
        indices: ValueArray,
        updates: ValueArray,
    ) -> ValueArray:
        numbers = params["dimension_numbers"]
        fixed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        inner = [d for d in range(operand.ndim) if d not in fixed]
        targets = numbers.scatter_dims_to_operand_dims
        window = dict(zip(inner, (updates.shape[d] for d in numbers.update_window_dims), strict=True))
        last_starts = [operand.shape[d] - window.get(d, 1) for d in targets]
        result = operand.copy()
        for place in np.ndindex(updates.shape):
            batch = tuple(place[d] for d in range(updates.ndim) if d not in numbers.update_window_dims)
            offset = [0] * operand.ndim
            for d, source in zip(inner, numbers.update_window_dims, strict=True):
                offset[d] = place[source]
            for d, source in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
                offset[d] = batch[source]
            start = [indices[(*batch, k)] for k in range(len(targets))]
            allowed = _is_inside(b, start, last_starts) if _drops_outside(params["mode"]) else b.const(True)
            starts = dict(zip(targets, zip(start, last_starts, strict=True), strict=True))
            _update(b, result, starts, offset, allowed, lambda old, new=updates[place]: combine(b, old, new))
        return result

    return rule


def _update(
    b: Builder,
    array: ValueArray,
    starts: dict[int, tuple[Value, int]],
    offset: Sequence[int],
    allowed: Value,
    change: Callable[..., Value],
) -> None:
    """array[start + offset] = change(array[start + offset]) where allowed; the start may reach several elements."""
    reach = [range(starts[d][1] + 1) if d in starts else range(1) for d in range(array.ndim)]
    for start in np.ndindex(*map(len, reach)):
        here = allowed
        for d, (value, limit) in starts.items():
            here = b.logic("and", here, _is_at(b, value, start[d], limit))
        if not (here.op == "const" and not here.data):
            place = tuple(s + o for s, o in zip(start, offset, strict=True))
            array[place] = b.select(here, change(array[place]), array[place])


def _is_at(b: Builder, value: Value, position: int, limit: int) -> Value:
    """Whether the start, clamped to [0, limit], is at this position."""
    if limit == 0:
        return b.const(True)
    op = "le" if position == 0 else "ge" if position == limit else "eq"
    return b.compare(op, value, b.const(position))


def _dynamic_slice(
    b: Builder, params: Parameters, shape: tuple[int, ...], operand: ValueArray, *starts: ValueArray
) -> ValueArray:
    index = [start.item() for start in starts]
    last_starts = [n - m for n, m in zip(operand.shape, shape, strict=True)]
    values = []
    for place in np.ndindex(shape):
        window = tuple(slice(o, o + r + 1) for o, r in zip(place, last_starts, strict=True))
        values.append(select_element(b, operand[window], index))
    return pack_values(values, shape)


def _dynamic_update_slice(
    b: Builder, params: Parameters, shape: tuple[int, ...], operand: ValueArray, update: ValueArray, *starts: ValueArray
) -> ValueArray:
    result = operand.copy()
    at = {d: (start.item(), operand.shape[d] - update.shape[d]) for d, start in enumerate(starts)}
    for place in np.ndindex(update.shape):
        _update(b, result, at, place, b.const(True), lambda old, new=update[place]: new)
    return result


INDEXING_RULES: dict[str, Rule] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "scatter": _scatter(lambda b, old, new: new),
    "scatter-sub": _scatter(lambda b, old, new: b.sub(old, new)),
    "scatter-min": _scatter(lambda b, old, new: b.min(old, new)),
    "scatter-max": _scatter(lambda b, old, new: b.max(old, new)),
    **dict.fromkeys(("scatter-add", "scatter_add"), _scatter(_add)),
    **dict.fromkeys(("scatter-mul", "scatter_mul"), _scatter(_mul)),
}
