"""A field y' = f(y) as a graph of scalars, and the rule for the k-th Taylor coefficient of each of its operations (see `series`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend import core

from . import rules
from .builder import BUDGET, COMPARE, Builder
from .lower import Lowering
from .program import F64, LoweringError, Value

Partials = tuple[Value, ...]


# ---- f as a graph of scalars whose elementary functions are whole


def _one_over(b: Builder, x: Value) -> Value:
    return b.div(b.const(1.0), x)


def _one_plus_square(b: Builder, x: Value, sign: float = 1.0) -> Value:
    return b.add(b.const(1.0), b.mul(b.const(sign), b.mul(x, x)))


def _of(b: Builder, name: str, *args: Value) -> Value:
    return b.emit(name, F64, *args)


def _power(b: Builder, c: Value, x: Value, y: Value) -> Partials:
    return b.mul(y, b.div(c, x)), b.mul(c, _of(b, "log", x))


def _arctangent(b: Builder, c: Value, y: Value, x: Value) -> Partials:
    squares = b.add(b.mul(x, x), b.mul(y, y))
    return b.div(x, squares), b.neg(b.div(y, squares))


PARTIALS: dict[str, Callable[..., Partials]] = {
    "sin": lambda b, c, x: (_of(b, "cos", x),),
    "cos": lambda b, c, x: (b.neg(_of(b, "sin", x)),),
    "tan": lambda b, c, x: (_one_plus_square(b, c),),
    "asin": lambda b, c, x: (_one_over(b, b.unary("sqrt", _one_plus_square(b, x, -1.0))),),
    "acos": lambda b, c, x: (b.neg(_one_over(b, b.unary("sqrt", _one_plus_square(b, x, -1.0)))),),
    "atan": lambda b, c, x: (_one_over(b, _one_plus_square(b, x)),),
    "sinh": lambda b, c, x: (_of(b, "cosh", x),),
    "cosh": lambda b, c, x: (_of(b, "sinh", x),),
    "tanh": lambda b, c, x: (_one_plus_square(b, c, -1.0),),
    "asinh": lambda b, c, x: (_one_over(b, b.unary("sqrt", _one_plus_square(b, x))),),
    "acosh": lambda b, c, x: (_one_over(b, b.unary("sqrt", b.sub(b.mul(x, x), b.const(1.0)))),),
    "atanh": lambda b, c, x: (_one_over(b, _one_plus_square(b, x, -1.0)),),
    "exp": lambda b, c, x: (c,),
    "exp2": lambda b, c, x: (b.mul(b.const(float(np.log(2.0))), c),),
    "expm1": lambda b, c, x: (b.add(c, b.const(1.0)),),
    "log": lambda b, c, x: (_one_over(b, x),),
    "log1p": lambda b, c, x: (_one_over(b, b.add(b.const(1.0), x)),),
    "logistic": lambda b, c, x: (b.mul(c, b.sub(b.const(1.0), c)),),
    "cbrt": lambda b, c, x: (_one_over(b, b.mul(b.const(3.0), b.mul(c, c))),),
    "pow": _power,
    "atan2": _arctangent,
}
"""The derivatives of c = f(args) by each argument, in terms of c and the arguments."""


class Whole(Builder):
    """A builder that computes both arms of a branch and chooses, as a series must."""

    def branch(
        self, condition: Value, then: Callable[[], list[Value]], other: Callable[[], list[Value]]
    ) -> list[Value]:
        return [self.select(condition, x, y) for x, y in zip(then(), other(), strict=True)]


class Walk(Lowering):
    """The walk of `lower`, with elementary functions left whole and without loops."""

    def equation(self, equation: Any, args: list[np.ndarray]) -> list[np.ndarray]:
        name = equation.primitive.name
        if name in PARTIALS:
            return [rules.mapped(lambda *xs: _of(self.builder, name, *xs), *args)]
        return super().equation(equation, args)


class Graph:
    """f as scalars in the order of their computation: those that vary with y, and those that do not."""

    def __init__(self, closed: core.ClosedJaxpr, count: int):
        """`closed` maps (constants, y) to f; y are its last `count` inputs."""
        self.closed, self.count = closed, count
        walk = Walk(Whole(BUDGET))
        self.builder = walk.builder
        shapes = [(rules.scalar_type(var.aval.dtype), var.aval.shape) for var in closed.jaxpr.invars]
        args = [
            rules.packed([self.builder.source("input", type) for _ in range(int(np.prod(shape)))], shape)
            for type, shape in shapes
        ]
        results = walk.closed(closed, args)
        self.f = [value for array in results for value in array.ravel()]
        self.constants = [value for array in args[:-count] for value in array.ravel()]
        self.y = [value for array in args[-count:] for value in array.ravel()]
        self.captured, self.captured_inputs = walk.captured, walk.captured_inputs
        if any(not isinstance(statement, Value) for statement in self.builder.setup.statements):
            raise LoweringError("a loop has no Taylor series")
        self.partials: dict[Value, Partials] = {}
        self.varying: set[Value] = set(self.y)
        self.order: list[Value] = []
        self._visit(self.f)
        unknown = {value.op for value in self.order if value in self.varying and not jumps(value)} - {*RULED}
        if unknown:
            raise LoweringError(f"no Taylor series is known of: {', '.join(sorted(unknown))}")

    def args(self, value: Value) -> tuple[Value, ...]:
        """What a value is made of; of a quotient the reciprocal is not needed."""
        return value.args[:2] if value.op == "quotient" else value.args

    def _visit(self, wanted: Sequence[Value]) -> None:
        """Put `wanted` and all that they need in order; partial derivatives come after, for only their lower coefficients are needed."""
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
        """Refuse a series that would be longer than a program may be: a product costs order^2, another operation its order."""
        varying = [value for value in self.order if value in self.varying]
        products = sum(value.op not in LINEAR and all(x in self.varying for x in self.args(value)[:2]) for value in varying)
        size = products * (order + 1) * (order + 2) + len(varying) * order
        if size > BUDGET:
            raise LoweringError(
                f"its {products} products need about {size} operations to order {order}, more than {BUDGET} "
                f"(a larger tolerance needs a lower order)"
            )


# ---- the k-th coefficient of every operation, in any arithmetic


LINEAR = ("add", "sub", "neg", "select", "abs", "min", "max", "copysign")
RULED = (*LINEAR, "mul", "div", "quotient", "sqrt", *PARTIALS)
"""Operations that have a rule below; of the linear ones the rule has no sum."""
STEPS = ("floor", "ceil", "round", "trunc", "float")
"""Operations whose values do not change where they are smooth."""


def coefficient(graph: Graph, a: Any, value: Value, k: Any) -> Any:
    """The k-th coefficient, k > 0, of a value from an arithmetic `a` that holds those below; coefficients not yet known are 0."""
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


def jumps(value: Value) -> bool:
    return value.type != F64 or value.op in STEPS or value.op in COMPARE
