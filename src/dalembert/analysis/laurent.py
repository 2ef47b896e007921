"""The ordered field R((h)) of Laurent series in a small h > 0, truncated: arithmetic that expands whatever it computes.

A number is known from its leading exponent up to O(h^end). Comparisons look at the leading coefficient: they hold for
all sufficiently small h > 0. Coefficients are floats, or Fractions: then every rational operation is exact. Elementary
functions are Taylor series at the limit h = 0, and compositions of these.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..kernels import BOOL, F64, I64, LoweringError

Operation = Callable[[Any, Any], Any]
Taylor = Callable[[Any, int], list[Any]]  # (x, terms) -> f^(k)(x)/k!
Elementary = Callable[..., tuple[str, Any]]  # (field, *values) -> (type, value)
CANCELLATION_TOLERANCE = 1e-13
"""Sums of floats that cancel to this fraction of their terms are zero: what is left is round-off, not an order of h."""


@dataclass(frozen=True)
class Laurent:
    """sum_k coefficients[k] h^(start + k) + O(h^end), coefficients[0] != 0; an exact number has end = infinity."""

    start: int
    coefficients: tuple[Any, ...]
    end: float = math.inf

    def __getitem__(self, exponent: int) -> Any:
        """The coefficient of h^exponent; one that is not known is an error."""
        if exponent >= self.end:
            raise IndexError(exponent)
        k = exponent - self.start
        return self.coefficients[k] if 0 <= k < len(self.coefficients) else 0

    @property
    def sign(self) -> int:
        return (self.coefficients[0] > 0) - (self.coefficients[0] < 0) if self.coefficients else 0

    @property
    def limit(self) -> float:
        """The value at h = 0: infinite at a pole."""
        if self.start < 0:
            return math.copysign(math.inf, self.sign)
        return float(self[0]) if self.end > 0 else math.nan


@dataclass(frozen=True)
class FieldValue:
    """A series, integer or boolean as `kernels.rules` handles it: always a constant."""

    type: str
    data: Any
    op = "const"


UNDEFINED = Laurent(0, (math.nan,))
"""The value of an operation that has none; it may be computed, but not be a result."""


class LaurentField:
    """The arithmetic of `kernels.builder.Builder` on numbers with `terms` known coefficients, carried out at once."""

    def __init__(self, terms: int, exact: bool = False) -> None:
        self.terms, self.exact = terms, exact

    def number(self, start: int, coefficients: Iterable[Any], end: float = math.inf) -> Laurent:
        """The number with zeros before the leading coefficient stripped, cut after `terms` coefficients."""
        values = list(coefficients)
        skipped = next((k for k, c in enumerate(values) if c != 0), len(values))
        values, start = values[skipped:], start + skipped
        while values and values[-1] == 0:
            values.pop()
        if not values:
            return Laurent(0 if end == math.inf else int(end), (), end)
        if len(values) > self.terms:
            end, values = min(end, start + self.terms), values[: self.terms]
        return Laurent(start, tuple(values), end)

    def real(self, value: float) -> Laurent:
        if not math.isfinite(value):
            return UNDEFINED
        return self.number(0, [Fraction(value) if self.exact else float(value)])

    @property
    def h(self) -> Laurent:
        return Laurent(1, (Fraction(1) if self.exact else 1.0,))

    def sum(self, a: Laurent, b: Laurent, combine: Operation = operator.add) -> Laurent:
        if is_undefined(a, b):
            return UNDEFINED
        end = min(a.end, b.end)
        low = min(a.start if a.coefficients else b.start, b.start if b.coefficients else a.start)
        high = max(a.start + len(a.coefficients), b.start + len(b.coefficients))
        return self.number(low, [self._add(a, b, k, combine) for k in range(low, int(min(high, end)))], end)

    def _add(self, a: Laurent, b: Laurent, k: int, combine: Operation) -> Any:
        x, y = a[k], b[k]
        total = combine(x, y)
        cancelled = not self.exact and x and y and abs(total) <= CANCELLATION_TOLERANCE * abs(x)
        return 0.0 if cancelled else total

    def product(self, a: Laurent, b: Laurent) -> Laurent:
        if is_undefined(a, b):
            return UNDEFINED
        x, y = a.coefficients, b.coefficients
        end = min(a.end + (b.start if y else b.end), b.end + (a.start if x else a.end))
        if not x or not y:
            return self.number(0, [], end)
        count = min(len(x) + len(y) - 1, self.terms)
        values = [sum(x[i] * y[k - i] for i in range(max(0, k - len(y) + 1), min(k + 1, len(x)))) for k in range(count)]
        cut = end if count == len(x) + len(y) - 1 else min(end, a.start + b.start + count)
        return self.number(a.start + b.start, values, cut)

    def quotient(self, a: Laurent, b: Laurent) -> Laurent:
        if is_undefined(a, b) or not b.coefficients:
            return UNDEFINED
        if len(b.coefficients) == 1 and b.end == math.inf:
            divided = [c / b.coefficients[0] for c in a.coefficients]
            return self.number(a.start - b.start, divided, a.end - b.start)
        known = int(min(self.terms, b.end - b.start))
        inverse: list[Any] = [1 / b.coefficients[0]]
        for k in range(1, known):
            tail = sum(b.coefficients[i] * inverse[k - i] for i in range(1, min(k + 1, len(b.coefficients))))
            inverse.append(-tail * inverse[0])
        return self.product(a, self.number(-b.start, inverse, -b.start + known))

    def negative(self, a: Laurent) -> Laurent:
        return Laurent(a.start, tuple(-c for c in a.coefficients), a.end)

    def compose(self, taylor: Taylor, a: Laurent) -> Laurent:
        """f(a) from f's Taylor coefficients at the limit of a; a must be finite at h = 0."""
        if is_undefined(a) or a.end <= 0 or a.start < 0:
            return UNDEFINED
        centre = a[0]
        rest = self.sum(a, self.number(0, [centre]), operator.sub)
        try:
            weights = taylor(centre, self.terms)
        except (ValueError, ZeroDivisionError):
            return UNDEFINED
        value = self.number(0, [weights[-1]])
        for weight in reversed(weights[:-1]):
            value = self.sum(self.product(value, rest), self.number(0, [weight]))
        return self.sum(value, self.number(0, [], self.terms)) if rest.coefficients else value

    def root(self, a: Laurent) -> Laurent:
        """The square root; of h^2k c (1 + ...) it is h^k sqrt(c) (1 + ...)."""
        if is_undefined(a) or a.sign < 0 or (a.coefficients and a.start % 2):
            return UNDEFINED
        if not a.coefficients:
            return a if a.end == math.inf else self.number(0, [], a.end / 2)
        unit = Laurent(0, a.coefficients, a.end - a.start)
        return self.product(self.compose(_square_root, unit), self.number(a.start // 2, [1]))

    def const(self, data: Any, type: str | None = None) -> FieldValue:
        if type is None:
            type = BOOL if isinstance(data, bool) else I64 if isinstance(data, int) else F64
        return FieldValue(type, self.real(float(data)) if type == F64 else {I64: int, BOOL: bool}[type](data))

    def is_const(self, value: FieldValue, *among: float) -> bool:
        return not among or (value.type != F64 and value.data in among)

    def _both(self, a: FieldValue, b: FieldValue, series: Operation, number: Operation) -> FieldValue:
        return FieldValue(a.type, (series if a.type == F64 else number)(a.data, b.data))

    def add(self, a: FieldValue, b: FieldValue) -> FieldValue:
        return self._both(a, b, self.sum, operator.add)

    def sub(self, a: FieldValue, b: FieldValue) -> FieldValue:
        return self._both(a, b, lambda x, y: self.sum(x, y, operator.sub), operator.sub)

    def mul(self, a: FieldValue, b: FieldValue) -> FieldValue:
        return self._both(a, b, self.product, operator.mul)

    def div(self, a: FieldValue, b: FieldValue) -> FieldValue:
        return self._both(a, b, self.quotient, lambda x, y: int(x / y))

    def neg(self, a: FieldValue) -> FieldValue:
        return FieldValue(a.type, self.negative(a.data) if a.type == F64 else -a.data)

    def power(self, a: FieldValue, n: int) -> FieldValue:
        result = self.const(1, a.type)
        for _ in range(abs(n)):
            result = self.mul(result, a)
        return self.div(self.const(1.0), result) if n < 0 else result

    def unary(self, op: str, a: FieldValue) -> FieldValue:
        if op == "abs":
            negative = (a.data.sign if a.type == F64 else a.data) < 0
            return self.neg(a) if negative else a
        if op == "sqrt":
            return FieldValue(F64, self.root(a.data))
        raise LoweringError(f"'{op}' has no expansion in h")

    def min(self, a: FieldValue, b: FieldValue) -> FieldValue:
        return a if self._order(a, b) <= 0 else b

    def max(self, a: FieldValue, b: FieldValue) -> FieldValue:
        return a if self._order(a, b) >= 0 else b

    def compare(self, op: str, a: FieldValue, b: FieldValue) -> FieldValue:
        if a.type == F64 and is_undefined(a.data, b.data):
            return FieldValue(BOOL, op == "ne")
        order = self._order(a, b)
        verdicts = {"lt": order < 0, "le": order <= 0, "gt": order > 0, "ge": order >= 0, "eq": order == 0}
        return FieldValue(BOOL, verdicts[op] if op != "ne" else order != 0)

    def _order(self, a: FieldValue, b: FieldValue) -> int:
        if a.type == F64:
            return self.sum(a.data, b.data, operator.sub).sign
        return int(a.data > b.data) - int(a.data < b.data)

    def logic(self, op: str, a: FieldValue, b: FieldValue) -> FieldValue:
        return FieldValue(a.type, {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[op](a.data, b.data))

    def invert(self, a: FieldValue) -> FieldValue:
        return FieldValue(a.type, not a.data if a.type == BOOL else ~a.data)

    def select(self, condition: FieldValue, yes: FieldValue, no: FieldValue) -> FieldValue:
        return yes if condition.data else no

    def convert(self, a: FieldValue, type: str) -> FieldValue:
        if a.type == type:
            return a
        if a.type == F64:
            return self.const(a.data.sign != 0 if type == BOOL else int(a.data.limit), type)
        return self.const(a.data, type)

    def loop(
        self,
        initial: list[FieldValue],
        test: Callable[[list[FieldValue]], FieldValue],
        body: Callable[[list[FieldValue]], list[FieldValue]],
    ) -> list[FieldValue]:
        carry = list(initial)
        while test(carry).data:
            carry = [FieldValue(item.type, item.data) for item in body(carry)]
        return carry


def is_undefined(*numbers: Laurent) -> bool:
    return any(a is UNDEFINED for a in numbers)


def _square_root(x: Any, terms: int) -> list[Any]:
    weights: list[Any] = [math.sqrt(x)]
    if isinstance(x, Fraction):
        top, bottom = math.isqrt(x.numerator), math.isqrt(x.denominator)
        if top * top == x.numerator and bottom * bottom == x.denominator:
            weights = [Fraction(top, bottom)]
    for k in range(1, terms):
        weights.append(weights[-1] * (Fraction(3, 2) - k) / (k * x))
    return weights


def _value(function: Callable[[float], float], x: Any, at_zero: int) -> Any:
    """f(x), exact at x = 0."""
    return type(x)(at_zero) if x == 0 else function(float(x))


def _cyclic(first: int) -> Taylor:
    """sin (first = 0) and cos (1): the derivatives run through sin, cos, -sin, -cos."""

    def taylor(x: Any, terms: int) -> list[Any]:
        cycle = [_value(math.sin, x, 0), _value(math.cos, x, 1)]
        cycle += [-cycle[0], -cycle[1]]
        return [cycle[(first + k) % 4] * Fraction(1, math.factorial(k)) for k in range(terms)]

    return taylor


def _exponential(x: Any, terms: int) -> list[Any]:
    return [_value(math.exp, x, 1) * Fraction(1, math.factorial(k)) for k in range(terms)]


def _antiderivative(
    value: Callable[[float], float], zero: float, slope: Callable[[LaurentField, Laurent], Laurent]
) -> Taylor:
    """The Taylor coefficients of a function, 0 at `zero`, from those of its derivative slope(field, x)."""

    def taylor(x: Any, terms: int) -> list[Any]:
        field = LaurentField(terms, isinstance(x, Fraction))
        rate = slope(field, field.number(0, [x, 1]))
        first = type(x)(0) if x == zero else value(float(x))
        return [first, *(rate[k] / (k + 1) for k in range(terms - 1))]

    return taylor


def _reciprocal(field: LaurentField, x: Laurent) -> Laurent:
    return field.quotient(field.real(1.0), x)


def _one_plus_square(field: LaurentField, x: Laurent, sign: float) -> Laurent:
    return field.sum(field.real(1.0), field.product(field.real(sign), field.product(x, x)))


TAYLOR: dict[str, Taylor] = {
    "sin": _cyclic(0),
    "cos": _cyclic(1),
    "exp": _exponential,
    "log": _antiderivative(math.log, 1, _reciprocal),
    "atan": _antiderivative(math.atan, 0, lambda field, x: _reciprocal(field, _one_plus_square(field, x, 1.0))),
    "asin": _antiderivative(
        math.asin, 0, lambda field, x: _reciprocal(field, field.root(_one_plus_square(field, x, -1.0)))
    ),
}


def _analytic(name: str) -> Elementary:
    return lambda field, x: (F64, field.compose(TAYLOR[name], x.data))


def _ratio(top: Elementary, bottom: Elementary) -> Elementary:
    return lambda field, x: (F64, field.quotient(top(field, x)[1], bottom(field, x)[1]))


def _hyperbolic(sign: float) -> Elementary:
    def value(field: LaurentField, x: FieldValue) -> tuple[str, Laurent]:
        up = field.compose(TAYLOR["exp"], x.data)
        down = field.product(field.real(sign), field.quotient(field.real(1.0), up))
        return F64, field.product(field.real(0.5), field.sum(up, down))

    return value


def _power(field: LaurentField, x: FieldValue, y: FieldValue) -> tuple[str, Laurent]:
    logarithm = field.compose(TAYLOR["log"], x.data)
    return F64, field.compose(TAYLOR["exp"], field.product(logarithm, field.convert(y, F64).data))


def _arctangent(field: LaurentField, y: FieldValue, x: FieldValue) -> tuple[str, Laurent]:
    """The angle of the limit, and from there on the arctangent of the relative slope."""
    x0, y0 = (field.real(v.data.limit) for v in (x, y))
    across = field.sum(field.product(y.data, x0), field.negative(field.product(x.data, y0)))
    along = field.sum(field.product(x.data, x0), field.product(y.data, y0))
    turned = field.compose(TAYLOR["atan"], field.quotient(across, along))
    return F64, field.sum(field.real(math.atan2(y.data.limit, x.data.limit)), turned)


ELEMENTARY: dict[str, Elementary] = {
    **{name: _analytic(name) for name in TAYLOR},
    "tan": _ratio(_analytic("sin"), _analytic("cos")),
    "sinh": _hyperbolic(-1.0),
    "cosh": _hyperbolic(1.0),
    "tanh": _ratio(_hyperbolic(-1.0), _hyperbolic(1.0)),
    "rsqrt": lambda field, x: (F64, field.quotient(field.real(1.0), field.root(x.data))),
    "log1p": lambda field, x: (F64, field.compose(TAYLOR["log"], field.sum(x.data, field.real(1.0)))),
    "expm1": lambda field, x: (F64, field.sum(field.compose(TAYLOR["exp"], x.data), field.real(-1.0))),
    "pow": _power,
    "atan2": _arctangent,
    "sign": lambda field, x: (x.type, field.real(float(x.data.sign))),
    "is_finite": lambda field, x: (BOOL, not is_undefined(x.data)),
}
