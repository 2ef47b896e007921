"""The Taylor series of the solution of y' = f(y), as one JAX primitive: order by order through the scalar program of f.

With y_k the k-th coefficient in time, (k + 1) y_{k+1} is the k-th coefficient of f(y), and every operation of f has a
rule for its k-th coefficient in terms of those of its arguments and of its own lower ones (Moore 1966; Jorba, Zou
2005, section 2). The kernels write the recursion out as scalar code, zeros folded and common terms shared, where that
is not too long; else it is a loop over the orders (heyoka's compact mode: Biscani, Izzo 2021), as XLA always gets it.

The transpose of a series is one more. With the slopes A = f_y, cotangents W_k of the y_k and z_{p-k} of [f]_k,

    z_0 = 0,   z_{m+1} = (W_{p-m} + [A^T z]_m)/(p - m),   and W_0 + [A^T z]_p belongs to y_0:

transposing turns the orders around, and a product of series stays one. So y and z rise together, by the same recursion
with other weights in place of 1/(k + 1), and with sources W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from . import elementary, rules
from .ir import COMPARISONS, F64, GROUP, Builder, Convolve, LoweringError, Value
from .linear_algebra import instantiate_zeros
from .lowering import SCALAR_TYPES, STRUCTURED_RULES, Lowering, shape_struct
from .rules import Arrays, Parameters, ValueArray, flatten_arrays

Partials = tuple[Value, ...]
Weights = tuple[tuple[float, ...], ...] | None
"""Of each number of y that by which the k-th coefficient of f, with a source, gives the next one of y; None: 1/(k + 1),
without sources."""
MAX_WRITTEN_OPERATIONS = 5_500
"""Operations up to which a series is written out; a longer one is a loop over the orders."""


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


@dataclass(eq=False)
class LinearSolve:
    """Unknowns x of A x = b: x_k solves A_0 x_k = b_k minus the k-th coefficient of A x without x_k.

    So a solve costs the products of A x, and A_0 is reduced once for all orders; a pivot is chosen by A_0.
    """

    closed: core.ClosedJaxpr  # x of (what A is made of, b)
    given: Arrays
    right: Arrays
    unknowns: list[Value]
    applied: list[Value]  # A x
    steps: list[Value]  # of the computation of A x from x, in order


class SeriesLowering(Lowering):
    """A lowering that keeps each elementary function and each linear solve as one operation, and has no branches."""

    def lower_equation(self, equation: Any, args: Arrays) -> Arrays:
        name = equation.primitive.name
        if name in PARTIALS:
            return [rules.map_elements(lambda *xs: _apply(self.builder, name, *xs), *args)]
        if name == "custom_linear_solve" and (found := self._linear_solve(equation.params, args)) is not None:
            return found
        return super().lower_equation(equation, args)

    def _linear_solve(self, params: Parameters, args: Arrays) -> Arrays | None:
        """The unknowns as values of their own; None if A x is more than sums of products with entries of x."""
        lengths, jaxprs = params["const_lengths"], params["jaxprs"]
        start = lengths.matvec + lengths.vecmat
        given, right = args[start : start + lengths.solve], args[start + lengths.solve + lengths.transpose_solve :]
        new = lambda _: Value("solution", F64, (), None, self.builder.block)
        unknowns = [rules.map_elements(new, array) for array in right]
        scalars, before = flatten_arrays(unknowns), len(self.builder.block.statements)
        applied = flatten_arrays(self.lower_closed(jaxprs.matvec, [*args[: lengths.matvec], *unknowns]))
        new_values = [value for value in self.builder.block.statements[before:] if isinstance(value, Value)]
        steps = dict.fromkeys(scalars)  # what depends on the unknowns
        for value in new_values:
            if not steps.keys().isdisjoint(value.args):
                if value.op not in ("add", "sub", "neg") and not _scales_unknown(value, set(scalars), set(steps)):
                    return None
                steps[value] = None
        solve = LinearSolve(jaxprs.solve, given, right, scalars, applied, [*steps][len(scalars) :])
        others = dict.fromkeys(arg for value in solve.steps for arg in value.args if arg not in steps)
        for value in scalars:
            value.data, value.args = solve, (*others, *flatten_arrays([*given, *right]))
        return unknowns


def _scales_unknown(value: Value, unknowns: set[Value], steps: set[Value]) -> bool:
    """Whether a value is a number times something that depends on unknowns, or any value times an unknown itself."""
    u, v = value.args if value.args[0] in steps else value.args[::-1]
    return value.op == "mul" and (v.op == "const" or (u in unknowns and v not in steps))


class SeriesGraph:
    """f as scalars in the order of their computation: those that vary with y, and those that do not."""

    def __init__(self, closed: core.ClosedJaxpr, count: int):
        """`closed` maps (constants, y) to f; y are its last `count` inputs."""
        self.closed, self.count = closed, count
        lowering = SeriesLowering(Builder())
        self.builder = lowering.builder
        self.builder.selects = True  # a series has no branches
        args = [rules.source_array(self.builder, "input", variable.aval) for variable in closed.jaxpr.invars]
        self.f = flatten_arrays(lowering.lower_closed(closed, args))
        self.constants, self.y = flatten_arrays(args[:-count]), flatten_arrays(args[-count:])
        self.captured, self.captured_inputs = lowering.captured, lowering.captured_inputs
        if any(not isinstance(statement, Value) for statement in self.builder.setup.statements):
            raise LoweringError("a loop has no Taylor series")
        self.partials: dict[Value, Partials] = {}
        self.solves: list[LinearSolve] = []
        self.varying: set[Value] = set(self.y)
        self.order: list[Value] = []
        self._visit(self.f)
        self.changing = [value for value in self.order if value in self.varying and not is_locally_constant(value)]
        self.products = [*self.changing, *(value for solve in self.solves for value in solve.steps)]
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
            if ready and isinstance(value.data, LinearSolve):
                seen.update(value.data.unknowns)
                self.solves.append(value.data)
                self.order += value.data.unknowns
                if any(arg in self.varying for arg in value.args):
                    self.varying.update(value.data.unknowns)
            elif ready:
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

    def written_length(self, order: int) -> int:
        """About so many operations has the series written out: a product costs order^2, another one its order."""
        nonlinear = [value for value in self.products if value.op not in (*LINEAR, "solution")]
        products = sum(all(x in self.varying for x in self.args(value)[:2]) for value in nonlinear)
        solves = sum(len(solve.unknowns) ** 2 for solve in self.solves)
        return products * (order + 1) * (order + 2) + (len(self.products) + solves) * order


LINEAR = ("add", "sub", "neg", "select", "abs", "min", "max", "copysign")
DIFFERENTIABLE = (*LINEAR, "solution", "mul", "div", "quotient", "sqrt", *PARTIALS)
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


def coefficients(graph: SeriesGraph, a: Any, k: Any) -> None:
    """Compute the k-th coefficients, k > 0, of all values that change."""
    for value in graph.changing:
        if not isinstance(value.data, LinearSolve):
            a.put(value, k, coefficient(graph, a, value, k))
        elif value is value.data.unknowns[0]:
            solve = value.data
            for step in solve.steps:
                a.put(step, k, coefficient(graph, a, step, k))
            right = zip(flatten_arrays(solve.right), solve.applied, strict=True)
            gaps = [a.combine("sub", a.get(b, k), a.get(applied, k)) for b, applied in right]
            for step in solve.steps:  # without x_k: that was no coefficient
                a.drop(step, k)
            for unknown, x in zip(solve.unknowns, a.solve(solve, gaps), strict=True):
                a.put(unknown, k, x)


def is_locally_constant(value: Value) -> bool:
    """Whether a value has only a coefficient of order 0."""
    return value.type != F64 or value.op in LOCALLY_CONSTANT or value.op in COMPARISONS


def _inside_out(k: int) -> list[int]:
    """0 ... k, those next to the ends last: what was computed last comes last, and the sum need not wait for it."""
    return sorted(range(k + 1), key=lambda j: -min(j, k - j))


class ScalarSeries:
    """The arithmetic of coefficients that are values of a program."""

    def __init__(self, lowering: Lowering):
        self.lowering, self.builder = lowering, lowering.builder
        self.zero = self.builder.const(0.0)
        self.terms: dict[Value, list[Value]] = {}

    def number(self, x: float) -> Value:
        return self.builder.const(x)

    def get(self, value: Value, k: int) -> Value:
        if value.op == "const":
            return self.builder.const(value.data, value.type) if k == 0 else self.zero
        found = self.terms.get(value, ())
        return found[k] if k < len(found) else self.zero

    def put(self, value: Value, k: int, x: Value) -> None:
        found = self.terms.setdefault(value, [])
        found += [self.zero] * (k - len(found)) + [x]

    def drop(self, value: Value, k: int) -> None:
        self.terms[value].pop()

    def solve(self, solve: LinearSolve, right: Sequence[Value]) -> list[Value]:
        """A_0^-1 of a right-hand side: what follows from A_0 alone is written once."""
        lowering, entries = self.lowering, iter(right)
        given = [rules.map_elements(lambda x: self.get(x, 0), array) for array in solve.given]
        columns = [rules.map_elements(lambda _: next(entries), array) for array in solve.right]
        outside = lowering.routines, self.builder.selects
        lowering.routines, self.builder.selects = None, True
        try:
            return flatten_arrays(lowering.lower_closed(solve.closed, [*given, *columns]))
        finally:
            lowering.routines, self.builder.selects = outside

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
    graph, order, weights = params["graph"], params["order"], params["weights"]
    args, sources = (args, None) if weights is None else (args[:-1], args[-1])
    given = flatten_arrays([*args, *map(lowering.capture, graph.captured)])
    a = ScalarSeries(lowering)
    for name, value in zip([*graph.constants, *graph.y, *graph.captured_inputs], given, strict=True):
        a.terms[name] = [value]
    for value in graph.order:
        if isinstance(value.data, LinearSolve):
            solve = value.data
            if value is solve.unknowns[0]:
                found = a.solve(solve, [a.get(x, 0) for x in flatten_arrays(solve.right)])
                a.terms |= {unknown: [x] for unknown, x in zip(solve.unknowns, found, strict=True)}
        elif value.op not in ("input", "const"):
            a.terms[value] = [a.first(value, [a.get(x, 0) for x in graph.args(value)])]
    compute = write_out_orders if graph.written_length(order) <= MAX_WRITTEN_OPERATIONS else loop_over_orders
    return [rules.pack_values(compute(graph, a, order, weights, sources), (order + 1, len(graph.y)))]


def write_out_orders(
    graph: SeriesGraph, a: ScalarSeries, order: int, weights: Weights = None, sources: ValueArray | None = None
) -> list[Value]:
    """The coefficients, order by order, each of them written out: zeros fold, and nothing goes through memory."""
    b = a.builder
    b.parallel_sums = True
    for k in range(order):
        if k:
            coefficients(graph, a, k)
        for i, (y, f) in enumerate(zip(graph.y, graph.f, strict=True)):
            share = 1.0 / (k + 1) if weights is None else weights[i][k]
            rate = a.get(f, k) if sources is None else b.add(a.get(f, k), sources[k, i])
            a.terms[y].append(b.mul(b.const(share), rate))
    return [a.terms[y][k] for k in range(order + 1) for y in graph.y]


class Pairs:
    """The pairs of factors whose convolutions the orders need, and where in memory their coefficients lie.

    The k-th coefficient of u v is u_0 v_k + u_k v_0, which are values at hand, and the sum of u_j v_{k-j} over
    0 < j < k, which no operation of order k has to wait for. A factor is stored once for each of its pairs: then all
    sums are taken side by side, eight in a vector register (`ir.Convolve`). The second of a pair may be k v_k, for an
    elementary function.
    """

    def __init__(self, graph: SeriesGraph, order: int):
        self.moving = {*graph.y, *graph.changing}
        self.waits: dict[Value, int] = {}  # about how many roundings one after the other give a k-th coefficient
        for value in graph.changing:
            last = max((self.waits.get(x, 0) for x in graph.args(value)), default=0)
            self.waits[value] = last + (1 if value.op in LINEAR else len(value.args) if value.op == "solution" else 2)
        self.numbers: dict[tuple[Value, Value, bool], int] = {}
        for value in graph.products:
            args = graph.args(value)
            if value in graph.partials:
                for x, p in zip(args, graph.partials[value], strict=True):
                    self._add(p, x, True)
            elif value.op in ("sqrt", "div", "quotient"):
                self._add(value if value.op == "sqrt" else args[1], value)
            elif value.op == "mul":
                self._add(args[0], args[1])
        rows = (order + 1) | 1  # odd: no two groups at places that a cache takes for one
        self.sums = Convolve(graph.y[0], rows, len(self.numbers), 0)
        size = 2 * GROUP * self.sums.rows * self.sums.groups
        self.rows = {y: size + i * self.sums.rows for i, y in enumerate(graph.y)}
        self.result = -(-(size + len(graph.y) * self.sums.rows) // GROUP) * GROUP
        self.memory = self.result + GROUP * self.sums.groups

    def _add(self, u: Value, v: Value, by_slope: bool = False) -> None:
        if {u, v} <= self.moving and self.number(u, v, by_slope) is None:
            self.numbers[u, v, by_slope] = len(self.numbers)

    def number(self, u: Value, v: Value, by_slope: bool = False) -> int | None:
        """Which pair these two are, in either order; None where one of them does not move."""
        found = self.numbers.get((u, v, by_slope))
        return self.numbers.get((v, u, by_slope)) if found is None and not by_slope else found


class LoopSeries(ScalarSeries):
    """The arithmetic of coefficients by a loop over k: the k-th ones are values of its body, all others in memory."""

    def __init__(self, lowering: Lowering, pairs: Pairs):
        super().__init__(lowering)
        self.pairs = pairs
        self.now: dict[Value, Value] = {}  # the k-th coefficients

    def get(self, value: Value, k: Any) -> Value:
        return super().get(value, 0) if isinstance(k, int) else self.now.get(value, self.zero)

    def put(self, value: Value, k: Any, x: Value) -> None:
        self.now[value] = x

    def drop(self, value: Value, k: Any) -> None:
        del self.now[value]

    def keep(self, k: Value) -> None:
        """Store the k-th coefficients of all factors."""
        b, pairs = self.builder, list(self.pairs.numbers)
        for i in range(0, len(pairs), GROUP):
            of_group = pairs[i : i + GROUP]
            slopes = [b.mul(self.number_of(k), self.now[v]) if by_slope else self.now[v] for _, v, by_slope in of_group]
            rows = [self.now[u] for u, _, _ in of_group], slopes
            for row, place in zip(rows, self.pairs.sums.places(i), strict=True):
                b.store([*row, *[self.zero] * (GROUP - len(row))], place, k, GROUP)

    def number_of(self, k: Value, later: int = 0) -> Value:
        """k + later as a float."""
        return self.builder.add(self.builder.convert(k, F64), self.builder.const(float(later)))

    def _inner(self, u: Value, v: Value, by_slope: bool = False) -> Value:
        """The sum of u_j v_{k-j} over 0 < j < k."""
        number = self.pairs.number(u, v, by_slope)
        return self.zero if number is None else self.builder.load(self.pairs.result + number)

    def product(self, u: Value, v: Value, k: Any) -> Value:
        b, inner = self.builder, self._inner(u, v)
        if u is v:
            return b.add(inner, b.mul(b.add(self.get(u, 0), self.get(u, 0)), self.get(u, k)))
        if self.pairs.waits.get(u, 0) > self.pairs.waits.get(v, 0):  # what is known later is added later
            u, v = v, u
        return b.add(b.add(inner, b.mul(self.get(u, k), self.get(v, 0))), b.mul(self.get(u, 0), self.get(v, k)))

    def integral(self, pairs: Sequence[tuple[Value, Value]], k: Any) -> Value:
        b, total, number = self.builder, self.zero, self.number_of(k)
        for x, p in pairs:
            inner = b.add(total, self._inner(p, x, True))
            total = b.add(inner, b.mul(b.mul(number, self.get(x, k)), self.get(p, 0)))
        return b.mul(b.div(b.const(1.0), number), total)


class Weighted:
    """Weights and sources that a loop over the orders reads from memory."""

    def __init__(self, b: Builder, place: int, order: int, weights: Weights, sources: ValueArray | None):
        self.b, self.order, self.place, self.rows = b, order, place, dict[Any, int]()
        self.columns: list[tuple[Any, Any]] = []
        if weights is None or sources is None:
            return
        for share, column in zip(weights, sources.T, strict=True):
            source = None if all(b.is_const(value, 0) for value in column) else tuple(column)
            self._keep(share, map(b.const, share))
            self._keep(source, column)
            self.columns.append((share, source))

    def _keep(self, key: Any, values: Iterable[Value]) -> None:
        if key is not None and key not in self.rows:
            self.rows[key] = self.place
            for k, value in enumerate(values):
                self.b.store([value], self.place + k)
            self.place += self.order

    def next(self, i: int, rate: Value, k: Value | None = None, share: Value | None = None) -> Value:
        """The next coefficient of the i-th number of y; k is None at the first order."""
        b = self.b
        if not self.columns:
            return rate if share is None else b.mul(share, rate)
        weights, source = self.columns[i]
        if source is not None:
            rate = b.add(rate, source[0] if k is None else b.load(self.rows[source], k, 1))
        return b.mul(b.const(weights[0]) if k is None else b.load(self.rows[weights], k, 1), rate)


def loop_over_orders(
    graph: SeriesGraph, first: ScalarSeries, order: int, weights: Weights = None, sources: ValueArray | None = None
) -> list[Value]:
    """The coefficients by a loop over the orders: code as long as that of one f, whatever the order."""
    b, pairs = first.builder, Pairs(graph, order)
    a = LoopSeries(first.lowering, pairs)
    a.terms = first.terms
    weighted = Weighted(b, pairs.memory, order, weights, sources)
    b.memory = max(b.memory, -(-weighted.place // GROUP) * GROUP)
    slopes = list(enumerate(zip(graph.y, graph.f, strict=True)))
    for i, (y, f) in slopes:
        b.store([weighted.next(i, a.get(f, 0))], pairs.rows[y] + 1)

    def body(k: Value) -> None:
        a.now = {y: b.load(pairs.rows[y], k, 1) for y in graph.y}
        b.convolve(replace(pairs.sums, counter=k, result=pairs.result))
        coefficients(graph, a, k)
        a.keep(k)
        share = b.div(b.const(1.0), a.number_of(k, 1))
        for i, (y, f) in slopes:
            b.store([weighted.next(i, a.get(f, k), k, share)], pairs.rows[y] + 1, k, 1)

    b.repeat(1, order, body)
    return [a.get(y, 0) if k == 0 else b.load(pairs.rows[y] + k) for k in range(order + 1) for y in graph.y]


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

    def put(self, value: Value, k: Any, x: Any) -> None:
        row = self.terms[value] if value in self.terms else jnp.zeros(self.order + 1)
        self.terms[value] = row.at[k].set(x)

    def drop(self, value: Value, k: Any) -> None:
        self.put(value, k, 0.0)

    def solve(self, solve: LinearSolve, right: Sequence[Any]) -> list[Any]:
        """A_0^-1 of a right-hand side."""
        entries = iter(right)
        given = [jnp.stack([self.get(x, 0) for x in array.ravel()]).reshape(array.shape) for array in solve.given]
        columns = [jnp.stack([next(entries) for _ in array.ravel()]).reshape(array.shape) for array in solve.right]
        return [x for array in core.jaxpr_as_fun(solve.closed)(*given, *columns) for x in jnp.ravel(array)]

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


def series_in_jax(*args: Any, graph: SeriesGraph, order: int, weights: Weights) -> Any:
    """The coefficients (order + 1, n) by a loop over the orders."""
    a = ArraySeries(order)
    args, sources = (args, jnp.zeros((order, len(graph.y)))) if weights is None else (args[:-1], args[-1])
    shares = jnp.asarray(weights or default_weights(len(graph.y), order))
    given = [x for array in [*args, *map(jnp.asarray, graph.captured)] for x in jnp.ravel(array)]
    names = [*graph.constants, *graph.y, *graph.captured_inputs]
    a.terms = dict(zip(names, given, strict=True))
    for value in graph.order:
        if isinstance(value.data, LinearSolve):
            solve = value.data
            if value is solve.unknowns[0]:
                found = a.solve(solve, [a.get(x, 0) for x in flatten_arrays(solve.right)])
                a.terms |= zip(solve.unknowns, found, strict=True)
        elif value.op not in ("input", "const"):
            a.terms[value] = a.first(value, [a.at(x) for x in graph.args(value)])
    fixed = {name: x for name, x in a.terms.items() if name not in graph.varying or is_locally_constant(name)}
    initial = {name: jnp.where(a.places == 0, a.terms[name], 0.0) for name in [*graph.y, *graph.changing]}

    def slopes(terms: dict[Value, Any], k: Any) -> dict[Value, Any]:
        a.terms = fixed | terms
        rates = [a.get(f, k) + sources[k, i] for i, f in enumerate(graph.f)]
        return {y: terms[y].at[k + 1].set(shares[i, k] * rates[i]) for i, y in enumerate(graph.y)}

    def body(k: Any, rows: list[Any]) -> list[Any]:
        a.terms = fixed | dict(zip(initial, rows, strict=True))
        coefficients(graph, a, k)
        terms = {name: a.terms[name] for name in initial}
        return list((terms | slopes(terms, k)).values())

    rows = jax.lax.fori_loop(1, order, body, list((initial | slopes(initial, 0)).values()))
    return jnp.stack(rows[: len(graph.y)], axis=1)


series_p: Any = core.Primitive("taylor_series")
_in_series: ContextVar[bool] = ContextVar("in a series", default=False)


def in_series() -> bool:
    """Whether a Taylor series is being traced: a linear solve should be a `custom_linear_solve`, which has a rule."""
    return _in_series.get()


def default_weights(count: int, order: int) -> tuple[tuple[float, ...], ...]:
    """Those of a solution."""
    return (tuple(1.0 / (k + 1) for k in range(order)),) * count


def solution_series(
    field: Callable[[Any, Any], Any], constants: Any, y: Any, order: int, weights: Weights = None, sources: Any = None
) -> Any:
    """The Taylor coefficients (order + 1, n) at time 0 of y' = field(constants, y), for y flattened to n numbers.

    `weights` and `sources` (order, n) make another recursion of it. A field with a loop or another operation that has
    no series, or one of too many operations, raises `LoweringError`.
    """
    leaves, structure = jax.tree.flatten((constants, y))
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    shapes = [shape_struct(leaf.shape, leaf.dtype) for leaf in leaves]
    token = _in_series.set(True)
    try:  # JAX must not find what it traced for another purpose: the precision is part of its keys
        with jax.default_matmul_precision("float32"):
            closed = jax.make_jaxpr(lambda *flat: jax.tree.leaves(field(*jax.tree.unflatten(structure, flat))))(*shapes)
    finally:
        _in_series.reset(token)
    graph = SeriesGraph(closed, len(jax.tree.leaves(y)))
    given = [] if weights is None else [sources]
    return series_p.bind(*leaves, *given, graph=graph, order=order, weights=weights)


def _batch(args: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, int]:
    return jax.vmap(partial(series_in_jax, **params), axes)(*args), 0


def _split(args: Sequence[Any], graph: SeriesGraph, weights: Weights) -> tuple[list[Any], list[Any], Any]:
    """The constants, y and the sources."""
    given, sources = (list(args), None) if weights is None else (list(args[:-1]), args[-1])
    return given[: -graph.count], given[-graph.count :], sources


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """The series, and its tangents as a linear function of those of its arguments."""
    fixed = len(primals) - params["graph"].count - (params["weights"] is not None)
    moved = tuple(i for i, tangent in enumerate(tangents) if i >= fixed or type(tangent) is not ad.Zero)
    filled = [instantiate_zeros(tangents[i]) for i in moved]
    return series_p.bind(*primals, **params), tangents_p.bind(*primals, *filled, moved=moved, **params)


def _tangents(*args: Any, graph: SeriesGraph, order: int, weights: Weights, moved: tuple[int, ...]) -> Any:
    """The series of the variational equation beside that of y; the tangents of the moved arguments come last."""
    primals, directions = args[: -len(moved)], dict(zip(moved, args[-len(moved) :], strict=True))
    own, state, sources = _split(primals, graph, weights)
    places = [i for i in moved if i < len(own)]

    def field(constants: Any, y: Any) -> Any:
        (own, shift), (state, direction) = constants, y
        point = [*own, *state]
        slopes = [*map(jnp.zeros_like, own), *direction]
        for i, tangent in zip(places, shift, strict=True):
            slopes[i] = tangent
        return jax.jvp(core.jaxpr_as_fun(graph.closed), point, slopes)

    shift, direction = [directions[i] for i in places], [directions[len(own) + i] for i in range(len(state))]
    more = () if weights is None else (2 * weights, jnp.concatenate([sources, directions[len(primals) - 1]], 1))
    return solution_series(field, (own, shift), (state, direction), order, *more)[:, len(graph.y) :]


def _transpose_tangents(cotangent: Any, *args: Any, moved: tuple[int, ...], **params: Any) -> list[Any]:
    primals = args[: -len(moved)]
    if type(cotangent) is ad.Zero:
        return [None] * len(args)
    return [None] * len(primals) + _adjoint(cotangent, primals, moved=moved, **params)


def _adjoint(
    cotangent: Any, primals: Sequence[Any], graph: SeriesGraph, order: int, weights: Weights, moved: tuple[int, ...]
) -> list[Any]:
    """The cotangents of the moved arguments, by a series of one order more: see the head of this file."""
    own, state, sources = _split(primals, graph, weights)
    n, places = len(graph.y), [i for i in moved if i < len(own)]
    shares = weights or default_weights(n, order)
    shifts = [jnp.zeros_like(own[i]) for i in places]
    count = sum(leaf.size for leaf in shifts)

    def field(own: list[Any], y: Any) -> Any:
        state, z, _ = y

        def slope(shift: list[Any], state: list[Any]) -> list[Any]:
            given = list(own)
            for i, leaf in zip(places, shift, strict=True):
                given[i] = leaf
            found: list[Any] = core.jaxpr_as_fun(graph.closed)(*given, *state)
            return found

        f, pull = jax.vjp(slope, [own[i] for i in places], state)
        of_constants, of_state = pull(z)
        return f, of_state, of_constants

    zeros, nothing = [jnp.zeros_like(leaf) for leaf in state], jnp.zeros((order + 1, n))
    last = (*(0.0 for _ in range(order)), 1.0)
    all_weights = (*((*share, 0.0) for share in shares), *((*share[::-1], 1.0) for share in shares), *(last,) * count)
    given = nothing if sources is None else jnp.concatenate([sources, nothing[:1]])
    from_above = jnp.concatenate([given, cotangent[::-1], jnp.zeros((order + 1, count))], 1)
    rows = solution_series(field, own, (state, zeros, shifts), order + 1, all_weights, from_above)
    leaves = [*state, *shifts]
    found = jnp.split(rows[order + 1, n:], np.cumsum([leaf.size for leaf in leaves])[:-1])
    parts = [part.reshape(leaf.shape) for part, leaf in zip(found, leaves, strict=True)]
    of_sources = [] if sources is None else [rows[1 : order + 1, n : 2 * n][::-1]]
    return [*parts[len(state) :], *parts[: len(state)], *of_sources]


def _jvp_of_tangents(args: Sequence[Any], slopes: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    found: tuple[Any, Any] = jax.jvp(partial(_tangents, **params), list(args), list(map(instantiate_zeros, slopes)))
    return found


def _batch_tangents(args: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, int]:
    return jax.vmap(partial(_tangents, **params), axes)(*args), 0


def _lower_tangents(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    """What JAX makes of the tangents, traced here."""
    shapes = [shape_struct(array.shape, SCALAR_TYPES[array.flat[0].type] if array.size else float) for array in args]
    return lowering.lower_closed(jax.make_jaxpr(partial(_tangents, **params))(*shapes), args)


tangents_p: Any = core.Primitive("tangents_of_series")
for each, in_jax in ((series_p, series_in_jax), (tangents_p, _tangents)):
    each.def_abstract_eval(
        lambda *avals, graph, order, **_: jax.core.ShapedArray((order + 1, len(graph.y)), np.dtype(float))
    )
    each.def_impl(lambda *args, in_jax=in_jax, **params: jax.jit(partial(in_jax, **params))(*args))
    mlir.register_lowering(each, mlir.lower_fun(in_jax, multiple_results=False))
batching.primitive_batchers[series_p], batching.primitive_batchers[tangents_p] = _batch, _batch_tangents
ad.primitive_jvps[series_p], ad.primitive_jvps[tangents_p] = _jvp, _jvp_of_tangents
ad.primitive_transposes[tangents_p] = _transpose_tangents
STRUCTURED_RULES |= {"taylor_series": lower_series, "tangents_of_series": _lower_tangents}
