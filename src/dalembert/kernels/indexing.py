"""Gathers, scatters and dynamic slices: indexing where the index is known, chains of selects where it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from .builder import Builder
from .program import Value
from .rules import Array, packed


def pick(b: Builder, array: Any, index: Sequence[Value]) -> Value:
    """array[index], an index beyond an end taken as that end."""
    if not index:
        return array.item() if isinstance(array, np.ndarray) else array
    first, rest = index[0], index[1:]
    last = len(array) - 1
    if first.op == "const":
        return pick(b, array[min(max(first.data, 0), last)], rest)
    result = pick(b, array[last], rest)
    for i in range(last - 1, -1, -1):
        result = b.select(b.compare("le", first, b.const(i)), pick(b, array[i], rest), result)
    return result


def _inside(b: Builder, start: Sequence[Value], room: Sequence[int]) -> Value:
    """Whether 0 <= start <= room in every direction."""
    result = b.const(True)
    for value, limit in zip(start, room, strict=True):
        result = b.logic("and", result, b.compare("le", b.const(0), value))
        result = b.logic("and", result, b.compare("le", value, b.const(limit)))
    return result


def _drops(mode: Any) -> bool:
    """Whether an index beyond the end means nothing instead of the end."""
    return mode == lax.GatherScatterMode.FILL_OR_DROP


def _fill_value(params: dict, type: str) -> Any:
    if params.get("fill_value") is not None:
        return params["fill_value"]
    return {"f64": math.nan, "i64": -(1 << 63), "i1": True}[type]


def _gather(b: Builder, params: dict, shape: tuple[int, ...], operand: Array, indices: Array) -> Array:
    """XLA's gather: a window of `slice_sizes` at every start index."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    inner = [d for d in range(operand.ndim) if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)]
    starts = numbers.start_index_map
    room = [operand.shape[d] - sizes[d] for d in starts]
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
        value = pick(b, operand[tuple(window)], index)
        if _drops(params["mode"]):
            value = b.select(_inside(b, start, room), value, b.const(_fill_value(params, value.type), value.type))
        result[place] = value
    return result


def _scatter(combine: Callable[[Builder, Value, Value], Value]) -> Callable:
    """XLA's scatter: combine every update with the element at its index."""
    def rule(b: Builder, params: dict, shape: tuple[int, ...], operand: Array, indices: Array, updates: Array) -> Array:
        numbers = params["dimension_numbers"]
        fixed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        inner = [d for d in range(operand.ndim) if d not in fixed]
        targets = numbers.scatter_dims_to_operand_dims
        window = dict(zip(inner, (updates.shape[d] for d in numbers.update_window_dims), strict=True))
        room = [operand.shape[d] - window.get(d, 1) for d in targets]
        result = operand.copy()
        for place in np.ndindex(updates.shape):
            batch = tuple(place[d] for d in range(updates.ndim) if d not in numbers.update_window_dims)
            offset = [0] * operand.ndim
            for d, source in zip(inner, numbers.update_window_dims, strict=True):
                offset[d] = place[source]
            for d, source in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
                offset[d] = batch[source]
            start = [indices[(*batch, k)] for k in range(len(targets))]
            allowed = _inside(b, start, room) if _drops(params["mode"]) else b.const(True)
            _update(b, result, dict(zip(targets, zip(start, room, strict=True), strict=True)), offset, allowed,
                    lambda old, new=updates[place]: combine(b, old, new))
        return result

    return rule


def _update(b: Builder, array: Array, starts: dict[int, tuple[Value, int]], offset: Sequence[int], allowed: Value,
            change: Callable[..., Value]) -> None:
    """array[start + offset] = change(of it), where allowed; every element the start may reach is a candidate."""
    reach = [range(starts[d][1] + 1) if d in starts else range(1) for d in range(array.ndim)]
    for start in np.ndindex(*map(len, reach)):
        here = allowed
        for d, (value, limit) in starts.items():
            here = b.logic("and", here, _at(b, value, start[d], limit))
        if not (here.op == "const" and not here.data):
            place = tuple(s + o for s, o in zip(start, offset, strict=True))
            array[place] = b.select(here, change(array[place]), array[place])


def _at(b: Builder, value: Value, position: int, limit: int) -> Value:
    """Whether the start, clamped to [0, limit], is at this position."""
    if limit == 0:
        return b.const(True)
    op = "le" if position == 0 else "ge" if position == limit else "eq"
    return b.compare(op, value, b.const(position))


def _dynamic_slice(b: Builder, params: dict, shape: tuple[int, ...], operand: Array, *starts: Array) -> Array:
    index = [start.item() for start in starts]
    room = [n - m for n, m in zip(operand.shape, shape, strict=True)]
    values = []
    for place in np.ndindex(shape):
        window = tuple(slice(o, o + r + 1) for o, r in zip(place, room, strict=True))
        values.append(pick(b, operand[window], index))
    return packed(values, shape)


def _dynamic_update_slice(b: Builder, params: dict, shape: tuple[int, ...], operand: Array, update: Array,
                          *starts: Array) -> Array:
    result = operand.copy()
    at = {d: (start.item(), operand.shape[d] - update.shape[d]) for d, start in enumerate(starts)}
    for place in np.ndindex(update.shape):
        _update(b, result, at, place, b.const(True), lambda old, new=update[place]: new)
    return result


RULES: dict[str, Callable] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "scatter": _scatter(lambda b, old, new: new),
    "scatter-add": _scatter(lambda b, old, new: b.add(old, new)),
    "scatter_add": _scatter(lambda b, old, new: b.add(old, new)),
    "scatter-sub": _scatter(lambda b, old, new: b.sub(old, new)),
    "scatter_mul": _scatter(lambda b, old, new: b.mul(old, new)),
    "scatter-mul": _scatter(lambda b, old, new: b.mul(old, new)),
    "scatter-min": _scatter(lambda b, old, new: b.min(old, new)),
    "scatter-max": _scatter(lambda b, old, new: b.max(old, new)),
}
