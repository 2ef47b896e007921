"""Evaluating a JAX function with Laurent series in h for numbers: the walk over its operations is that of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np

from ..errors import InvalidInput
from ..kernels import rules
from ..kernels.lower import Lowering
from ..kernels.program import F64
from .laurent import Field, Number, Scalar, lost
from .taylor import FUNCTIONS

SLACK = 12
"""Orders that divisions by h may cost before an expansion is given up."""


class Walk(Lowering):
    """The walk of `kernels.lower` over a jaxpr, with numbers of a field in place of a program's values."""

    builder: Any
    polish = True

    def __init__(self, field: Field):
        super().__init__(cast(Any, field))

    def capture(self, data: Any) -> np.ndarray:
        return self.constant(data)

    def tree(self, function: Callable, *args: np.ndarray) -> Any:
        """function(*args) for arrays of scalars, as the pytree that it is, with arrays of Numbers for leaves."""
        shapes = [jax.ShapeDtypeStruct(arg.shape, float) for arg in args]
        closed, result = jax.make_jaxpr(function, return_shape=True)(*shapes)
        leaves = [rules.mapped(lambda x: x.data, leaf) for leaf in self.closed(closed, args)]
        return jax.tree.unflatten(jax.tree.structure(result), leaves)

    def equation(self, equation: Any, args: list[np.ndarray]) -> list[np.ndarray]:
        name = equation.primitive.name
        if name == "while":
            return self._iterated(equation.params, args)
        if name in FUNCTIONS:
            return [rules.mapped(lambda *xs: Scalar(*FUNCTIONS[name](self.builder, *xs)), *args)]
        return super().equation(equation, args)

    def _iterated(self, params: dict, args: list[np.ndarray]) -> list[np.ndarray]:
        """A loop as it runs for small h, then polished. Of a loop around loops only the last pass is."""
        tests, bodies = params["cond_nconsts"], params["body_nconsts"]
        test_consts, body_consts, carry = args[:tests], args[tests : tests + bodies], args[tests + bodies :]

        def passed(carry: list[np.ndarray]) -> list[np.ndarray]:
            return self.closed(params["body_jaxpr"], [*body_consts, *carry])

        polish, outer = self.polish, _contains_loop(params["body_jaxpr"].jaxpr)
        self.polish = polish and not outer
        last = None
        while self.closed(params["cond_jaxpr"], [*test_consts, *carry])[0].item().data:
            last, carry = carry, passed(carry)
        self.polish = polish
        if last is None or not polish:
            return carry
        return passed(last) if outer else self._polished(carry, passed)

    def _polished(self, carry: list[np.ndarray], passed: Callable) -> list[np.ndarray]:
        """If more passes leave the limit h = 0 alone the loop is an iteration, Newton's: each pass doubles the orders that
        are right, and so many follow. A loop that counts would move on: it is left where it ended."""
        polished = carry
        for _ in range(self.builder.terms.bit_length()):
            polished = passed(polished)
            if not all(map(_settled, carry, polished)):
                return carry
        return polished


def _settled(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether values at h = 0 stayed; a count of passes (one more each time) may go on, and so may a size that vanishes."""
    for x, y in zip(before.ravel(), after.ravel(), strict=True):
        if x.type == F64 and not lost(x.data, y.data):
            old, new = x.data.limit, y.data.limit
            if abs(new - old) > 1e-7 * (1 + abs(old)) and (new - old) % 1.0:
                return False
    return True


@lru_cache
def _contains_loop(jaxpr: Any) -> bool:
    return "while[" in str(jaxpr)


def point(number: Number) -> np.ndarray:
    """A number as the array () that a walk takes."""
    array = np.empty((), object)
    array[()] = Scalar(F64, number)
    return array


def evaluated(function: Callable, terms: int, exact: bool) -> Any:
    field = Field(terms, exact)
    return Walk(field).tree(function, point(field.h))


def sufficient(order: int, evaluate: Callable[[int], Any], exact: bool) -> Any:
    """Coefficients 0 ... order of what `evaluate(terms)` gives, with as many terms as it takes to know them all."""
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or order < 0:
        raise InvalidInput(f"order is {order!r}; allowed: a whole number of at least 0")
    terms = int(order) + 2
    while True:
        found = evaluate(terms)
        numbers = [x for leaf in jax.tree.leaves(found) for x in leaf.ravel() if isinstance(x, Number)]
        known = min((x.end for x in numbers), default=np.inf)
        if known > order:
            return jax.tree.map(lambda leaf: _coefficients(leaf, int(order), exact), found)
        terms += int(order + 1 - known)
        if terms > order + 2 + SLACK:
            raise InvalidInput(f"the expansion in h loses more than {SLACK} orders to divisions by h")


def _coefficients(leaf: np.ndarray, order: int, exact: bool) -> np.ndarray:
    """An array (order + 1, ...) of coefficients from an array of numbers."""
    table = np.empty((order + 1, *leaf.shape), object)
    for place in np.ndindex(leaf.shape):
        found: Any = leaf[place]
        number = found if isinstance(found, Number) else Number(0, (found,))
        if lost(number) or (number.coefficients and number.start < 0):
            raise InvalidInput(
                "the function has no expansion in nonnegative powers of h at h = 0: it has a pole or a branch point there"
            )
        table[(slice(None), *place)] = [number[k] for k in range(order + 1)]
    kind = object if exact and not any(isinstance(x, float) for x in table.ravel()) else float
    return np.vectorize(Fraction, otypes=[object])(table) if kind is object and table.size else table.astype(float)


def truncated(field: Field, a: Number, end: int) -> Number:
    return field.number(a.start, a.coefficients[: max(0, end - a.start)], min(a.end, end))


def integral(field: Field, begin: Number, slope: Number, end: int) -> Number:
    """begin + the integral of slope from 0 to h, up to O(h^end)."""
    rates = [slope[k] for k in range(int(min(slope.end, end - 1)))]
    powers = [rate * Fraction(1, k + 1) for k, rate in enumerate(rates)]
    return field.sum(begin, field.number(1, powers, min(end, slope.end + 1)))
