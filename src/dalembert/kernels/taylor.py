"""The Taylor series of the solution of y' = f(y), as one JAX primitive: order by order through the scalar program of f.

With y_k the k-th coefficient in time, (k + 1) y_{k+1} is the k-th coefficient of f(y), and every operation of f has a
rule for its k-th coefficient in terms of those of its arguments and of its own lower ones (Moore 1966; Jorba, Zou
2005, section 2). The kernels unroll the recursion into scalar code, zeros folded and common terms shared; XLA gets it
as a loop over the orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from . import elementary, rules
from .elimination import instantiate_zeros
from .ir import COMPARISONS, F64, Builder, LoweringError, Value
from .lowering import STRUCTURED_RULES, Lowering, shape_struct
from .rules import Arrays, Parameters, flatten_arrays

Partials = tuple[Value, ...]
MAX_SERIES_OPERATIONS = 48_000
"""Operations that a step by a Taylor series may have: it is written out."""


def _reciprocal(b: Builder, x: Value) -> Value:
    return b.div(b.const(1.0), x)


def _one_plus_square(b: Builder, x: Value, sign: float = 1.0) -> Value:
    return b.add(b.const(1.0), b.mul(b.const(sign), b.mul(x, x)))


def _apply(b: Builder, name: str, *args: Value) -> Value:
    return b.emit(name, F64, *args)


def _power(b: Builder, c: Value, x: Value, y: Value) -> Partials:
    return b.mul(y, b.div(c, x)), b.mul(c, _apply(b, "log", x))


def _arctangent(b: Builder, c: Value, y: Value, x: Value) -> Partials:
    squares = b.add(b.mul(x, x), b.mul(y, y))
    return b.div(x, squares), b.neg(b.div(y, squares))


PARTIALS: dict[str, Callable[..., Partials]] = {
    "sin": lambda b, c, x: (_apply(b, "cos", x),),
    "cos": lambda b, c, x: (b.neg(_apply(b, "sin", x)),),
    "tan": lambda b, c, x: (_one_plus_square(b, c),),
    "asin": lambda b, c, x: (_reciprocal(b, b.unary("sqrt", _one_plus_square(b, x, -1.0))),),
    "acos": lambda b, c, x: (b.neg(_reciprocal(b, b.unary("sqrt", _one_plus_square(b, x, -1.0)))),),
    "atan": lambda b, c, x: (_reciprocal(b, _one_plus_square(b, x)),),
    "sinh": lambda b, c, x: (_apply(b, "cosh", x),),
    "cosh": lambda b, c, x: (_apply(b, "sinh", x),),
    "tanh": lambda b, c, x: (_one_plus_square(b, c, -1.0),),
    "asinh": lambda b, c, x: (_reciprocal(b, b.unary("sqrt", _one_plus_square(b, x))),),
    "acosh": lambda b, c, x: (_reciprocal(b, b.unary("sqrt", b.sub(b.mul(x, x), b.const(1.0)))),),
    "atanh": lambda b, c, x: (_reciprocal(b, _one_plus_square(b, x, -1.0)),),
    "exp": lambda b, c, x: (c,),
    "exp2": lambda b, c, x: (b.mul(b.const(float(np.log(2.0))), c),),
    "expm1": lambda b, c, x: (b.add(c, b.const(1.0)),),
    "log": lambda b, c, x: (_reciprocal(b, x),),
    "log1p": lambda b, c, x: (_reciprocal(b, b.add(b.const(1.0), x)),),
    "logistic": lambda b, c, x: (b.mul(c, b.sub(b.const(1.0), c)),),
    "cbrt": lambda b, c, x: (_reciprocal(b, b.mul(b.const(3.0), b.mul(c, c))),),
    "pow": _power,
    "atan2": _arctangent,
}
"""The derivatives of c = f(args) by each argument, in terms of c and the arguments."""


class SelectingBuilder(Builder):
    """A builder that computes both arms of a branch and selects: a series has no branches."""

    def branch(
        self, condition: Value, then: Callable[[], list[Value]], other: Callable[[], list[Value]]
    ) -> list[Value]:
        return [self.select(condition, x, y) for x, y in zip(then(), other(), strict=True)]


class SeriesLowering(Lowering):
    """A lowering that keeps each elementary function as one operation."""

    def lower_equation(self, equation: Any, args: Arrays) -> Arrays:
        name = equation.primitive.name
        if name in PARTIALS:
            return [rules.map_elements(lambda *xs: _apply(self.builder, name, *xs), *args)]
        return super().lower_equation(equation, args)


class SeriesGraph:
    """f as scalars in the order of their computation: those that vary with y, and those that do not."""

    def __init__(self, closed: core.ClosedJaxpr, count: int):
        """`closed` maps (constants, y) to f; y are its last `count` inputs."""
        self.closed, self.count = closed, count
        lowering = SeriesLowering(SelectingBuilder(MAX_SERIES_OPERATIONS))
        self.builder = lowering.builder
        args = [rules.source_array(self.builder, "input", variable.aval) for variable in closed.jaxpr.invars]
        self.f = flatten_arrays(lowering.lower_closed(closed, args))
        self.constants, self.y = flatten_arrays(args[:-count]), flatten_arrays(args[-count:])
        self.captured, self.captured_inputs = lowering.captured, lowering.captured_inputs
        if any(not isinstance(statement, Value) for statement in self.builder.setup.statements):
            raise LoweringError("a loop has no Taylor series")
        self.partials: dict[Value, Partials] = {}
        self.varying: set[Value] = set(self.y)
        self.order: list[Value] = []
        self._visit(self.f)
        self.changing = [value for value in self.order if value in self.varying and not is_locally_constant(value)]
        unknown = {value.op for value in self.changing} - {*DIFFERENTIABLE}
        if unknown:
            raise LoweringError(f"no Taylor series is known of: {', '.join(sorted(unknown))}")

    def args(self, value: Value) -> tuple[Value, ...]:
        """What a value is made of; of a quotient the reciprocal is not needed."""
        return value.args[:2] if value.op == "quotient" else value.args

    def _visit(self, wanted: Sequence[Value]) -> None:
        """Put `wanted` and all that they need in order.

        Partial derivatives come after, for only their lower coefficients are needed.
        """
        seen = {*self.y, *self.order}
        late: list[Value] = []
        waiting = [(value, False) for value in reversed(wanted)]
        while waiting:
            value, ready = waiting.pop()
            if ready:
                self.order.append(value)
                if any(arg in self.varying for arg in self.args(value)):
                    self.varying.add(value)
                    if value.op in PARTIALS:
                        self.partials[value] = PARTIALS[value.op](self.builder, value, *value.args)
                        late += [p for x, p in zip(value.args, self.partials[value], strict=True) if x in self.varying]
            elif value not in seen:
                seen.add(value)
                waiting.append((value, True))
                waiting += [(arg, False) for arg in reversed(self.args(value))]
        if any(value not in seen for value in late):
            self._visit(late)

    def require_size(self, order: int) -> None:
        """Refuse a series longer than a program may be: a product costs order^2, another operation its order."""
        varying = [value for value in self.order if value in self.varying]
        nonlinear = [value for value in varying if value.op not in LINEAR]
        products = sum(all(x in self.varying for x in self.args(value)[:2]) for value in nonlinear)
        size = products * (order + 1) * (order + 2) + len(varying) * order
        if size > MAX_SERIES_OPERATIONS:
            raise LoweringError(
                f"its {products} products need about {size} operations to order {order}, more than "
                f"{MAX_SERIES_OPERATIONS} (a larger tolerance needs a lower order)"
            )


LINEAR = ("add", "sub", "neg", "select", "abs", "min", "max", "copysign")
DIFFERENTIABLE = (*LINEAR, "mul", "div", "quotient", "sqrt", *PARTIALS)
"""Operations that have a rule below; of the linear ones the rule has no sum."""
LOCALLY_CONSTANT = ("floor", "ceil", "round", "trunc", "float")
"""Operations whose values do not change where they are smooth."""


def coefficient(graph: SeriesGraph, a: Any, value: Value, k: Any) -> Any:
    """The k-th coefficient, k > 0, of a value; the arithmetic `a` holds those below k, and 0 for those above."""
    args, op = graph.args(value), value.op
    if op in ("add", "sub"):
        return a.combine(op, *(a.get(x, k) for x in args))
    if op == "neg":
        return a.combine("neg", a.get(args[0], k))
    if op == "mul":
        return a.product(*args, k)
    if op in ("div", "quotient"):
        top, bottom = args
        return a.combine("div", a.combine("sub", a.get(top, k), a.product(bottom, value, k)), a.get(bottom, 0))
    if op == "sqrt":
        rest = a.combine("sub", a.get(args[0], k), a.product(value, value, k))
        return a.combine("div", rest, a.combine("add", a.get(value, 0), a.get(value, 0)))
    if op == "select":
        return a.combine("select", a.get(args[0], 0), a.get(args[1], k), a.get(args[2], k))
    if op == "abs":
        negative = a.combine("lt", a.get(args[0], 0), a.number(0.0))
        return a.combine("select", negative, a.combine("neg", a.get(args[0], k)), a.get(args[0], k))
    if op in ("min", "max"):
        first = a.combine("lt", *(a.get(x, 0) for x in (args if op == "min" else args[::-1])))
        return a.combine("select", first, a.get(args[0], k), a.get(args[1], k))
    if op == "copysign":
        same = a.combine("eq", a.get(value, 0), a.get(args[0], 0))
        return a.combine("select", same, a.get(args[0], k), a.combine("neg", a.get(args[0], k)))
    return a.integral([(x, p) for x, p in zip(args, graph.partials[value], strict=True) if x in graph.varying], k)


def is_locally_constant(value: Value) -> bool:
    """Whether a value has only a coefficient of order 0."""
    return value.type != F64 or value.op in LOCALLY_CONSTANT or value.op in COMPARISONS


def _inside_out(k: int) -> list[int]:
    """0 ... k, those next to the ends last: what was computed last comes last, and the sum need not wait for it."""
    return sorted(range(k + 1), key=lambda j: -min(j, k - j))


class ScalarSeries:
    """The arithmetic of coefficients that are values of a program."""

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
        result: Value = b.compare(op, *args) if op in COMPARISONS else getattr(b, op)(*args)
        return result

    def first(self, value: Value, args: Sequence[Value]) -> Value:
        b, op = self.builder, value.op
        if op in elementary.FUNCTIONS:
            return elementary.FUNCTIONS[op](b, *args)
        if op == "quotient":
            return b.div(*args)
        return self.combine(op, *args) if op in COMPARISONS or hasattr(b, op) else b.emit(op, value.type, *args)

    def _sum(self, pairs: Sequence[tuple[Value, Value]]) -> Value:
        return reduce(self.builder.add, (self.builder.mul(x, y) for x, y in pairs), self.zero)

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
        terms = [(j, x, p) for j in _inside_out(k) if j for x, p in pairs]
        slopes = [(b.mul(b.const(float(j)), self.get(x, j)), self.get(p, k - j)) for j, x, p in terms]
        return b.mul(b.const(1.0 / k), self._sum(slopes))


def lower_series(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    """The coefficients (order + 1, n) as a program's values."""
    graph, b = params["graph"], lowering.builder
    given = flatten_arrays([*args, *map(lowering.capture, graph.captured)])
    a = ScalarSeries(b)
    b.parallel_sums = True
    for name, value in zip([*graph.constants, *graph.y, *graph.captured_inputs], given, strict=True):
        a.terms[name] = [value]
    for value in graph.order:
        if value.op not in ("input", "const"):
            a.terms[value] = [a.first(value, [a.get(x, 0) for x in graph.args(value)])]
    for k in range(params["order"]):
        if k:
            for value in graph.changing:
                a.terms[value].append(coefficient(graph, a, value, k))
        for y, f in zip(graph.y, graph.f, strict=True):
            a.terms[y].append(b.mul(b.const(1.0 / (k + 1)), a.get(f, k)))
    table = [a.terms[y][k] for k in range(params["order"] + 1) for y in graph.y]
    return [rules.pack_values(table, (params["order"] + 1, len(graph.y)))]


class ArraySeries:
    """The arithmetic of coefficients in arrays (order + 1,), for a loop over k in JAX."""

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
        return JAX_OPERATIONS[op](*args)

    def first(self, value: Value, args: Sequence[Any]) -> Any:
        if value.op not in JAX_OPERATIONS:
            raise LoweringError(f"XLA has no Taylor series with the operation '{value.op}'")
        return JAX_OPERATIONS[value.op](*args)

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


# fmt: off
JAX_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "quotient": jnp.divide,
    "neg": jnp.negative, "abs": jnp.abs, "min": jnp.minimum, "max": jnp.maximum, "copysign": jnp.copysign,
    "fma": lambda x, y, z: x * y + z, "select": jnp.where,
    "lt": jnp.less, "le": jnp.less_equal, "eq": jnp.equal, "ne": jnp.not_equal,
    "and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor, "not": jnp.invert,
    "float": lambda x: jnp.asarray(x, float), "int": lambda x: jnp.asarray(x, int),
    "sqrt": jnp.sqrt, "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round, "trunc": jnp.trunc,
    "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan, "asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan,
    "atan2": jnp.arctan2, "sinh": jnp.sinh, "cosh": jnp.cosh, "tanh": jnp.tanh,
    "asinh": jnp.arcsinh, "acosh": jnp.arccosh, "atanh": jnp.arctanh,
    "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1, "log": jnp.log, "log1p": jnp.log1p,
    "logistic": jax.nn.sigmoid, "pow": jnp.power, "cbrt": jnp.cbrt,
}
# fmt: on


def series_in_jax(*args: Any, graph: SeriesGraph, order: int) -> Any:
    """The coefficients (order + 1, n) by a loop over the orders."""
    a = ArraySeries(order)
    given = [x for array in [*args, *map(jnp.asarray, graph.captured)] for x in jnp.ravel(array)]
    names = [*graph.constants, *graph.y, *graph.captured_inputs]
    a.terms = dict(zip(names, given, strict=True))
    for value in graph.order:
        if value.op not in ("input", "const"):
            a.terms[value] = a.first(value, [x.data if x.op == "const" else a.terms[x] for x in graph.args(value)])
    fixed = {name: x for name, x in a.terms.items() if name not in graph.varying or is_locally_constant(name)}
    initial = {name: jnp.where(a.places == 0, a.terms[name], 0.0) for name in [*graph.y, *graph.changing]}

    def slopes(terms: dict[Value, Any], k: Any) -> dict[Value, Any]:
        a.terms = fixed | terms
        return {y: terms[y].at[k + 1].set(a.get(f, k) / (k + 1)) for y, f in zip(graph.y, graph.f, strict=True)}

    def body(k: Any, rows: list[Any]) -> list[Any]:
        terms = dict(zip(initial, rows, strict=True))
        for value in graph.changing:
            a.terms = fixed | terms
            terms[value] = terms[value].at[k].set(coefficient(graph, a, value, k))
        return list((terms | slopes(terms, k)).values())

    rows = jax.lax.fori_loop(1, order, body, list((initial | slopes(initial, 0)).values()))
    return jnp.stack(rows[: len(graph.y)], axis=1)


series_p: Any = core.Primitive("taylor_series")


def solution_series(field: Callable[[Any, Any], Any], constants: Any, y: Any, order: int) -> Any:
    """The Taylor coefficients (order + 1, n) at time 0 of y' = field(constants, y), for y flattened to n numbers.

    A field with a loop or another operation that has no series, or one of too many operations, raises `LoweringError`.
    """
    leaves, structure = jax.tree.flatten((constants, y))
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    shapes = [shape_struct(leaf.shape, leaf.dtype) for leaf in leaves]
    closed = jax.make_jaxpr(lambda *flat: jax.tree.leaves(field(*jax.tree.unflatten(structure, flat))))(*shapes)
    graph = SeriesGraph(closed, len(jax.tree.leaves(y)))
    graph.require_size(order)
    return series_p.bind(*leaves, graph=graph, order=order)


def _batch(args: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, int]:
    return jax.vmap(partial(series_in_jax, **params), axes)(*args), 0


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, graph: SeriesGraph, order: int) -> tuple[Any, Any]:
    """The series of the variational equation beside that of y."""
    count, run = graph.count, core.jaxpr_as_fun(graph.closed)
    given = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    moved = sorted({*given, *range(len(primals) - count, len(primals))})

    def field(constants: Any, y: Any) -> Any:
        (own, shift), (state, direction) = constants, y
        point = [*own, *state]
        slopes = [jnp.zeros_like(x) for x in point]
        for i, tangent in zip(moved, [*shift, *direction], strict=True):
            slopes[i] = tangent
        return jax.jvp(run, point, slopes)

    filled = [instantiate_zeros(tangents[i]) for i in moved]
    own, state = list(primals[:-count]), list(primals[-count:])
    both = solution_series(field, (own, filled[:-count]), (state, filled[-count:]), order)
    n = len(graph.y)
    return both[:, :n], both[:, n:]


series_p.def_abstract_eval(
    lambda *avals, graph, order: jax.core.ShapedArray((order + 1, len(graph.y)), np.dtype(float))
)
series_p.def_impl(lambda *args, **params: jax.jit(partial(series_in_jax, **params))(*args))
batching.primitive_batchers[series_p] = _batch
ad.primitive_jvps[series_p] = _jvp
mlir.register_lowering(series_p, mlir.lower_fun(series_in_jax, multiple_results=False))
STRUCTURED_RULES["taylor_series"] = lower_series
