"""Evaluating a JAX function with Laurent series in h for numbers: the walk over its operations is that of the kernels.

Expansions in the step h, to any order: of a discrete map, of its Legendre map, of the flow, and of their difference.

A step is evaluated as it stands, with truncated Laurent series in h for numbers (`laurent.Field`): the walk over its
operations is that of the kernels. Newton's iteration then gains orders of h as it gains digits, so implicit equations
need nothing special, and 0/0 in a removable singularity (M = h M / h) is a division of series.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np

from ..errors import InvalidInput
from ..integrators import Integrator, derivative
from ..kernels import F64, Lowering, rules
from ..mechanics import MechanicalSystem, State
from .laurent import ELEMENTARY, LaurentField, Laurent, FieldValue, is_undefined

MAX_LOST_ORDERS = 12
"""Orders that divisions by h may cost before an expansion is given up."""


class SeriesLowering(Lowering):
    """The walk of `kernels.lower` over a jaxpr, with numbers of a field in place of a program's values."""

    builder: Any
    polish = True

    def __init__(self, field: LaurentField):
        super().__init__(cast(Any, field))

    def capture(self, data: Any) -> np.ndarray:
        return self.constant(data)

    def tree(self, function: Callable, *args: np.ndarray) -> Any:
        """function(*args) for arrays of scalars, as the pytree that it is, with arrays of Numbers for leaves."""
        shapes = [jax.ShapeDtypeStruct(arg.shape, float) for arg in args]
        closed, result = jax.make_jaxpr(function, return_shape=True)(*shapes)
        leaves = [rules.map_elements(lambda x: x.data, leaf) for leaf in self.closed(closed, args)]
        return jax.tree.unflatten(jax.tree.structure(result), leaves)

    def equation(self, equation: Any, args: list[np.ndarray]) -> list[np.ndarray]:
        name = equation.primitive.name
        if name == "while":
            return self._iterated(equation.params, args)
        if name in ELEMENTARY:
            return [rules.map_elements(lambda *xs: FieldValue(*ELEMENTARY[name](self.builder, *xs)), *args)]
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
        if x.type == F64 and not is_undefined(x.data, y.data):
            old, new = x.data.limit, y.data.limit
            if abs(new - old) > 1e-7 * (1 + abs(old)) and (new - old) % 1.0:
                return False
    return True


@lru_cache
def _contains_loop(jaxpr: Any) -> bool:
    return "while[" in str(jaxpr)


def scalar_array(number: Laurent) -> np.ndarray:
    """A number as the array () that a walk takes."""
    array = np.empty((), object)
    array[()] = FieldValue(F64, number)
    return array


def evaluated(function: Callable, terms: int, exact: bool) -> Any:
    field = LaurentField(terms, exact)
    return SeriesLowering(field).tree(function, scalar_array(field.h))


def coefficients_to_order(order: int, evaluate: Callable[[int], Any], exact: bool) -> Any:
    """Coefficients 0 ... order of what `evaluate(terms)` gives, with as many terms as it takes to know them all."""
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or order < 0:
        raise InvalidInput(f"order is {order!r}; allowed: a whole number of at least 0")
    terms = int(order) + 2
    while True:
        found = evaluate(terms)
        numbers = [x for leaf in jax.tree.leaves(found) for x in leaf.ravel() if isinstance(x, Laurent)]
        known = min((x.end for x in numbers), default=np.inf)
        if known > order:
            return jax.tree.map(lambda leaf: _coefficients(leaf, int(order), exact), found)
        terms += int(order + 1 - known)
        if terms > order + 2 + MAX_LOST_ORDERS:
            raise InvalidInput(f"the expansion in h loses more than {MAX_LOST_ORDERS} orders to divisions by h")


def _coefficients(leaf: np.ndarray, order: int, exact: bool) -> np.ndarray:
    """An array (order + 1, ...) of coefficients from an array of numbers."""
    table = np.empty((order + 1, *leaf.shape), object)
    for place in np.ndindex(leaf.shape):
        found: Any = leaf[place]
        number = found if isinstance(found, Laurent) else Laurent(0, (found,))
        if is_undefined(number) or (number.coefficients and number.start < 0):
            raise InvalidInput(
                "the function has no expansion in nonnegative powers of h at h = 0: it has a pole or a branch point there"
            )
        table[(slice(None), *place)] = [number[k] for k in range(order + 1)]
    kind = object if exact and not any(isinstance(x, float) for x in table.ravel()) else float
    return np.vectorize(Fraction, otypes=[object])(table) if kind is object and table.size else table.astype(float)


def truncated(field: LaurentField, a: Laurent, end: int) -> Laurent:
    return field.number(a.start, a.coefficients[: max(0, end - a.start)], min(a.end, end))


def integral(field: LaurentField, begin: Laurent, slope: Laurent, end: int) -> Laurent:
    """begin + the integral of slope from 0 to h, up to O(h^end)."""
    rates = [slope[k] for k in range(int(min(slope.end, end - 1)))]
    powers = [rate * Fraction(1, k + 1) for k, rate in enumerate(rates)]
    return field.sum(begin, field.number(1, powers, min(end, slope.end + 1)))


Observable = Callable[[State], Any]


def configuration_and_velocity(state: State) -> tuple:
    """What a state of every method has: the configuration and the velocity in D with its restricted momentum."""
    return state.g, state.xi


def expand(function: Callable[[Any], Any], order: int, *, exact: bool = False) -> Any:
    """The coefficients of h^0 ... h^order of h -> function(h) as h -> 0+, leaves of shape (order + 1, ...).

    `function` is any JAX function of the step. With `exact` they are Fractions (float inputs are taken as the rationals
    that they are), unless a transcendental function of another number than 0 is met.
    """
    return coefficients_to_order(order, lambda terms: evaluated(function, terms, exact), exact)


def map_series(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    order: int,
    *,
    observable: Observable = configuration_and_velocity,
    exact: bool = False,
) -> Any:
    """One step of a method from `state` as a series in h: (38) and (45) of garcia-naranjo-jimenez for `state.momentum`."""

    def after(h):
        carry, _ = integrator.start(system, state, h)
        return observable(integrator.observe(system, integrator.step(system, carry, h)[0], h))

    return expand(after, order, exact=exact)


def start_series(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    order: int,
    *,
    observable: Observable,
    exact: bool = False,
) -> Any:
    """What the start of a method makes of `state`, as a series in h: of `increment` it is the inverse Legendre map, (35) and (44)."""

    def before(h):
        return observable(integrator.observe(system, integrator.start(system, state, h)[0], h))

    return expand(before, order, exact=exact)


def flow_series(
    system: MechanicalSystem, state: State, order: int, *, observable: Observable = configuration_and_velocity, exact: bool = False
) -> Any:
    """The motion itself, t0 + h, as a series in h ((16)-(18)): Picard's iteration gains one order a pass."""

    def motion(terms: int) -> Any:
        field = LaurentField(terms, exact)
        walk = SeriesLowering(field)
        begin, structure = jax.tree.flatten((state.g, state.xi))
        first = [walk.constant(leaf) for leaf in begin]
        time = scalar_array(field.sum(walk.constant(state.t).item().data, field.h))
        curve = [rules.map_elements(lambda x: FieldValue(F64, truncated(field, x.data, 1)), leaf) for leaf in first]
        shapes = [jax.ShapeDtypeStruct(leaf.shape, float) for leaf in (time, *first)]

        def field_at(t, *y):
            g, xi = jax.tree.unflatten(structure, y)
            return derivative(system, t, g, xi, None)

        rate = jax.make_jaxpr(field_at)(*shapes)
        for known in range(2, terms + 1):
            slope = walk.closed(rate, [time, *curve])
            curve = [
                rules.map_elements(lambda x, d: FieldValue(F64, integral(field, x.data, d.data, known)), a, b)
                for a, b in zip(first, slope, strict=True)
            ]

        def seen(t, *y):
            g, xi = jax.tree.unflatten(structure, y)
            return observable(State(t, g, xi, system.momentum(t, g, xi), xi))

        return walk.tree(seen, time, *curve)

    return coefficients_to_order(order, motion, exact)


def truncation_error(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    order: int,
    *,
    observable: Observable = configuration_and_velocity,
    exact: bool = False,
) -> Any:
    """The local error of one step as a series in h: the difference of two computed series. The first nonzero one is order p + 1."""
    stepped = map_series(system, integrator, state, order, observable=observable, exact=exact)
    flowed = flow_series(system, state, order, observable=observable, exact=exact)
    return jax.tree.map(lambda a, b: a - b, stepped, flowed)


def local_order(
    system: MechanicalSystem, integrator: Integrator, state: State, *, most: int = 6, tolerance: float = 1e-9
) -> int:
    """The order p of a method at a state, at most `most`: the first error coefficient that is not 0 belongs to h^(p + 1)."""
    for last in sorted({min(3, most), most}):
        errors = jax.tree.leaves(truncation_error(system, integrator, state, last))
        sizes = [max(np.abs(leaf[k]).max(initial=0.0) for leaf in errors) for k in range(last + 1)]
        if max(sizes) > tolerance:
            return int(np.argmax(np.array(sizes) > tolerance)) - 1
    return most
