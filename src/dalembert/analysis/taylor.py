"""Elementary functions of Laurent series: Taylor coefficients at the limit h = 0, and compositions of these."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from ..kernels.program import BOOL, F64
from .laurent import Field, Number, Scalar, lost


# -- Taylor coefficients f^(k)(x)/k! of the functions that JAX names ------------------------------------------------------------
def _value(function: Callable[[float], float], x: Any, at_zero: int) -> Any:
    """f(x), exact at x = 0."""
    return type(x)(at_zero) if x == 0 else function(float(x))


def _cyclic(first: int) -> Callable[[Any, int], list]:
    """sin (first = 0) and cos (1): the derivatives run through sin, cos, -sin, -cos."""

    def taylor(x, terms):
        cycle = [_value(math.sin, x, 0), _value(math.cos, x, 1)]
        cycle += [-cycle[0], -cycle[1]]
        return [cycle[(first + k) % 4] * Fraction(1, math.factorial(k)) for k in range(terms)]

    return taylor


def _exponential(x, terms):
    return [_value(math.exp, x, 1) * Fraction(1, math.factorial(k)) for k in range(terms)]


def _integrated(value: Callable[[float], float], zero: float, slope: Callable) -> Callable[[Any, int], list]:
    """The Taylor coefficients of a function, 0 at `zero`, from those of its derivative slope(field, x)."""

    def taylor(x, terms):
        field = Field(terms, isinstance(x, Fraction))
        rate = slope(field, field.number(0, [x, 1]))
        first = type(x)(0) if x == zero else value(float(x))
        return [first, *(rate[k] / (k + 1) for k in range(terms - 1))]

    return taylor


def _reciprocal(field: Field, x: Number) -> Number:
    return field.quotient(field.real(1.0), x)


def _one_plus_square(field: Field, x: Number, sign: float) -> Number:
    return field.sum(field.real(1.0), field.product(field.real(sign), field.product(x, x)))


TAYLOR: dict[str, Callable[[Any, int], list]] = {
    "sin": _cyclic(0),
    "cos": _cyclic(1),
    "exp": _exponential,
    "log": _integrated(math.log, 1, _reciprocal),
    "atan": _integrated(math.atan, 0, lambda field, x: _reciprocal(field, _one_plus_square(field, x, 1.0))),
    "asin": _integrated(
        math.asin, 0, lambda field, x: _reciprocal(field, field.root(_one_plus_square(field, x, -1.0)))
    ),
}


# -- functions that are compositions of those with a Taylor series ----------------------------------------------------------------
def _analytic(name: str) -> Callable:
    return lambda field, x: (F64, field.compose(TAYLOR[name], x.data))


def _ratio(top: Callable, bottom: Callable) -> Callable:
    return lambda field, x: (F64, field.quotient(top(field, x)[1], bottom(field, x)[1]))


def _hyperbolic(sign: float) -> Callable:
    def value(field: Field, x: Scalar) -> tuple[str, Number]:
        up = field.compose(TAYLOR["exp"], x.data)
        down = field.product(field.real(sign), field.quotient(field.real(1.0), up))
        return F64, field.product(field.real(0.5), field.sum(up, down))

    return value


def _power(field: Field, x: Scalar, y: Scalar) -> tuple[str, Number]:
    logarithm = field.compose(TAYLOR["log"], x.data)
    return F64, field.compose(TAYLOR["exp"], field.product(logarithm, field.convert(y, F64).data))


def _arctangent(field: Field, y: Scalar, x: Scalar) -> tuple[str, Number]:
    """The angle of the limit, and from there on the arctangent of the relative slope."""
    x0, y0 = (field.real(v.data.limit) for v in (x, y))
    across = field.sum(field.product(y.data, x0), field.negative(field.product(x.data, y0)))
    along = field.sum(field.product(x.data, x0), field.product(y.data, y0))
    turned = field.compose(TAYLOR["atan"], field.quotient(across, along))
    return F64, field.sum(field.real(math.atan2(y.data.limit, x.data.limit)), turned)


FUNCTIONS: dict[str, Callable[..., tuple[str, Any]]] = {
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
    "is_finite": lambda field, x: (BOOL, not lost(x.data)),
}
