"""The Taylor series of the solution of y' = f(y), as one operation: order by order through the scalar program of f.

With y_k the k-th coefficient in time, (k + 1) y_{k+1} is the k-th coefficient of f(y), and every operation of f has a rule for
its k-th coefficient in terms of those of its arguments and of its own lower ones (Moore 1966; Jorba, Zou 2005, section 2). The
kernels unroll the recursion into scalar code, zeros folded and common terms shared; XLA gets it as a loop over the orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from . import elementary, rules
from .builder import COMPARE, Builder
from .lower import STRUCTURES, Lowering
from .program import LoweringError, Value
from .series_graph import Graph, coefficient, jumps

# ---- the recursion in two arithmetics


def _inside_out(k: int) -> list[int]:
    """0 ... k, those next to the ends last: what was computed last comes last, and the sum need not wait for it."""
    return sorted(range(k + 1), key=lambda j: -min(j, k - j))


class Unrolled:
    """Lists of a program's values."""

    def __init__(self, builder: Builder):
        self.builder, self.zero = builder, builder.const(0.0)
        self.terms: dict[Value, list[Value]] = {}

    def number(self, x: float) -> Value:
        return self.builder.const(x)

    def get(self, value: Value, k: int) -> Value:
        if value.op == "const":
            return self.builder.const(value.data, value.type) if k == 0 else self.zero
        found = self.terms[value]
        return found[k] if k < len(found) else self.zero

    def combine(self, op: str, *args: Value) -> Value:
        b = self.builder
        if op in COMPARE:
            return b.compare(op, *args)
        return getattr(b, op)(*args)

    def first(self, value: Value, args: Sequence[Value]) -> Value:
        b, op = self.builder, value.op
        if op in elementary.FUNCTIONS:
            return elementary.FUNCTIONS[op](b, *args)
        if op == "quotient":
            return b.div(*args)
        if op in COMPARE:
            return b.compare(op, *args)
        if hasattr(b, op):
            return getattr(b, op)(*args)
        return b.emit(op, value.type, *args)

    def _sum(self, pairs: Sequence[tuple[Value, Value]]) -> Value:
        return rules.total(self.builder, (self.builder.mul(x, y) for x, y in pairs), self.zero)

    def product(self, u: Value, v: Value, k: int) -> Value:
        b = self.builder
        if u is v:
            half = self._sum([(self.get(u, j), self.get(u, k - j)) for j in reversed(range((k + 1) // 2))])
            middle = self.get(u, k // 2)
            return b.add(half, half) if k % 2 else b.add(b.mul(middle, middle), b.add(half, half))
        return self._sum([(self.get(u, j), self.get(v, k - j)) for j in _inside_out(k)])

    def integral(self, pairs: Sequence[tuple[Value, Value]], k: int) -> Value:
        """The k-th coefficient of c with c' = sum p x'."""
        b = self.builder
        slopes = [(b.mul(b.const(float(j)), self.get(x, j)), self.get(p, k - j)) for j in _inside_out(k) if j for x, p in pairs]
        return b.mul(b.const(1.0 / k), self._sum(slopes))


def unrolled(lowering: Lowering, params: dict, args: list[np.ndarray]) -> list[np.ndarray]:
    """The coefficients (order + 1, n) as a program's values."""
    graph, b = params["graph"], lowering.builder
    known = [value for array in args for value in array.ravel()]
    captured = [value for data in graph.captured for value in lowering.capture(data).ravel()]
    a = Unrolled(b)
    b.notes["parallel sums"] = True
    for name, value in zip([*graph.constants, *graph.y, *graph.captured_inputs], [*known, *captured], strict=True):
        a.terms[name] = [value]
    for value in graph.order:
        if value.op not in ("input", "const"):
            a.terms[value] = [a.first(value, [a.get(x, 0) for x in graph.args(value)])]
    moving = [value for value in graph.order if value in graph.varying and not jumps(value)]
    for k in range(params["order"]):
        if k:
            for value in moving:
                a.terms[value].append(coefficient(graph, a, value, k))
        for y, f in zip(graph.y, graph.f, strict=True):
            a.terms[y].append(b.mul(b.const(1.0 / (k + 1)), a.get(f, k)))
    table = [a.terms[y][k] for k in range(params["order"] + 1) for y in graph.y]
    return [rules.packed(table, (params["order"] + 1, len(graph.y)))]


class Compact:
    """Arrays (order + 1,) of numbers for what varies, for a loop over k."""

    def __init__(self, order: int):
        self.order, self.places = order, jnp.arange(order + 1)
        self.terms: dict[Value, Any] = {}

    def number(self, x: float) -> float:
        return x

    def at(self, value: Value) -> Any:
        return value.data if value.op == "const" else self.terms[value]

    def get(self, value: Value, k: Any) -> Any:
        found = self.at(value)
        if jnp.ndim(found):
            return jax.lax.dynamic_index_in_dim(found, k, keepdims=False)
        return found if isinstance(k, int) and k == 0 else 0.0

    def combine(self, op: str, *args: Any) -> Any:
        return OPERATIONS[op](*args)

    def first(self, value: Value, args: Sequence[Any]) -> Any:
        if value.op not in OPERATIONS:
            raise LoweringError(f"XLA has no Taylor series with the operation '{value.op}'")
        return OPERATIONS[value.op](*args)

    def product(self, u: Value, v: Value, k: Any) -> Any:
        x, y = self.at(u), self.at(v)
        if jnp.ndim(x) and jnp.ndim(y):
            return self._convolved(x, y, k)
        return x * self.get(v, k) if jnp.ndim(y) else y * self.get(u, k)

    def _convolved(self, x: Any, y: Any, k: Any) -> Any:
        """The sum of x_j y_{k-j} over j."""
        backwards = jnp.concatenate([y[::-1], jnp.zeros(self.order)])
        return x @ jax.lax.dynamic_slice_in_dim(backwards, self.order - k, self.order + 1)

    def integral(self, pairs: Sequence[tuple[Value, Value]], k: Any) -> Any:
        rates = [(self.places * self.at(x), self.at(p)) for x, p in pairs]
        return sum(self._convolved(x, p, k) if jnp.ndim(p) else x[k] * p for x, p in rates) / k


OPERATIONS: dict[str, Callable] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "quotient": jnp.divide,
    "neg": jnp.negative, "abs": jnp.abs, "min": jnp.minimum, "max": jnp.maximum, "copysign": jnp.copysign,
    "fma": lambda x, y, z: x * y + z, "select": jnp.where, "lt": jnp.less, "le": jnp.less_equal, "eq": jnp.equal,
    "ne": jnp.not_equal, "and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor, "not": jnp.invert,
    "float": lambda x: jnp.asarray(x, float), "int": lambda x: jnp.asarray(x, int), "sqrt": jnp.sqrt,
    "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round, "trunc": jnp.trunc, "sin": jnp.sin, "cos": jnp.cos,
    "tan": jnp.tan, "asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan, "atan2": jnp.arctan2, "sinh": jnp.sinh,
    "cosh": jnp.cosh, "tanh": jnp.tanh, "asinh": jnp.arcsinh, "acosh": jnp.arccosh, "atanh": jnp.arctanh,
    "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1, "log": jnp.log, "log1p": jnp.log1p,
    "logistic": jax.nn.sigmoid, "pow": jnp.power, "cbrt": jnp.cbrt,
}


def compact(*args: Any, graph: Graph, order: int) -> Any:
    """The coefficients (order + 1, n) by a loop over the orders."""
    a = Compact(order)
    known = [x for array in [*args, *map(jnp.asarray, graph.captured)] for x in jnp.ravel(array)]
    names = [*graph.constants, *graph.y, *graph.captured_inputs]
    a.terms = dict(zip(names, known, strict=True))
    for value in graph.order:
        if value.op not in ("input", "const"):
            a.terms[value] = a.first(value, [x.data if x.op == "const" else a.terms[x] for x in graph.args(value)])
    moving = [value for value in graph.order if value in graph.varying and not jumps(value)]
    fixed = {name: x for name, x in a.terms.items() if name not in graph.varying or jumps(name)}
    begin = {name: jnp.where(a.places == 0, a.terms[name], 0.0) for name in [*graph.y, *moving]}

    def slopes(terms: dict, k: Any) -> dict:
        a.terms = fixed | terms
        return {y: terms[y].at[k + 1].set(a.get(f, k) / (k + 1)) for y, f in zip(graph.y, graph.f, strict=True)}

    def body(k: Any, rows: list) -> list:
        terms = dict(zip(begin, rows, strict=True))
        for value in moving:
            a.terms = fixed | terms
            terms[value] = terms[value].at[k].set(coefficient(graph, a, value, k))
        return list((terms | slopes(terms, k)).values())

    rows = jax.lax.fori_loop(1, order, body, list((begin | slopes(begin, 0)).values()))
    return jnp.stack(rows[: len(graph.y)], axis=1)


# ---- the operation


series_p = core.Primitive("taylor_series")


def solution_series(field: Callable, constants: Any, y: Any, order: int) -> Any:
    """The Taylor coefficients (order + 1, n) at time 0 of y' = field(constants, y), for y flattened to n numbers.

    A field with a loop or another operation that has no series, or one of too many operations, raises `LoweringError`.
    """
    leaves, structure = jax.tree.flatten((constants, y))
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    closed = jax.make_jaxpr(lambda *flat: jax.tree.leaves(field(*jax.tree.unflatten(structure, flat))))(*shapes)
    graph = Graph(closed, len(jax.tree.leaves(y)))
    graph.require_size(order)
    return series_p.bind(*leaves, graph=graph, order=order)


def _abstract(*avals: Any, graph: Graph, order: int) -> Any:
    return jax.core.ShapedArray((order + 1, len(graph.y)), np.dtype(float))


def _batched(args: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, int]:
    return jax.vmap(partial(compact, **params), axes)(*args), 0


def _tangents(primals: Sequence[Any], tangents: Sequence[Any], *, graph: Graph, order: int) -> tuple[Any, Any]:
    """The series of the variational equation beside that of y."""
    count, run = graph.count, core.jaxpr_as_fun(graph.closed)
    given = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    moved = sorted({*given, *range(len(primals) - count, len(primals))})

    def field(constants, y):
        (own, shift), (state, direction) = constants, y
        point = [*own, *state]
        slopes = [jnp.zeros_like(x) for x in point]
        for i, tangent in zip(moved, [*shift, *direction], strict=True):
            slopes[i] = tangent
        return jax.jvp(run, point, slopes)

    filled = [ad.instantiate_zeros(tangents[i]) for i in moved]
    own, state = list(primals[:-count]), list(primals[-count:])
    both = solution_series(field, (own, filled[:-count]), (state, filled[-count:]), order)
    n = len(graph.y)
    return both[:, :n], both[:, n:]


series_p.def_abstract_eval(_abstract)
series_p.def_impl(lambda *args, **params: jax.jit(partial(compact, **params))(*args))
batching.primitive_batchers[series_p] = _batched
ad.primitive_jvps[series_p] = _tangents
mlir.register_lowering(series_p, mlir.lower_fun(compact, multiple_results=False))
STRUCTURES["taylor_series"] = unrolled
