"""Expansions in the step h, to any order: of a discrete map, its Legendre map, the flow, and the modified field.

A step is evaluated as it stands, with numbers of the ordered field R((h)) of Laurent series in a small h > 0: the
lowering of its operations is that of the kernels. A number is known from its leading exponent up to O(h^end).
Comparisons look at the leading coefficient: they hold for all sufficiently small h > 0. Coefficients are floats, or
Fractions: then every rational operation is exact. Newton's iteration gains orders of h as it gains digits, so implicit
equations need nothing special, and 0/0 in a removable singularity (M = h M / h) is a division of series.

The iterates of a method with step h lie on a solution of the modified equation y' = f(y) + h f_2(y) + h^2 f_3(y) + ...,
whose terms are fitted to runs of any method.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np

from ..errors import InvalidInput
from ..integrators import Integrator, derivative
from ..kernels import BOOL, F64, I64, PARTIALS, Lowering, LoweringError, rules
from ..mechanics import MechanicalSystem, State
from ..simulation import simulate

Operation = Callable[[Any, Any], Any]
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
        totals = []
        for x, y in ((a[k], b[k]) for k in range(low, int(min(high, end)))):
            total = combine(x, y)
            cancelled = not self.exact and x and y and abs(total) <= CANCELLATION_TOLERANCE * abs(x)
            totals.append(0.0 if cancelled else total)
        return self.number(low, totals, end)

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

    def root(self, a: Laurent) -> Laurent:
        """The square root; of h^2k c (1 + ...) it is h^k sqrt(c) (1 + ...)."""
        if is_undefined(a) or a.sign < 0 or (a.coefficients and a.start % 2):
            return UNDEFINED
        if not a.coefficients:
            return a if a.end == math.inf else self.number(0, [], a.end / 2)
        known, first = int(min(self.terms, a.end - a.start)), a.coefficients[0]
        roots: list[Any] = [math.sqrt(first)]
        if isinstance(first, Fraction):
            top, bottom = math.isqrt(first.numerator), math.isqrt(first.denominator)
            if top * top == first.numerator and bottom * bottom == first.denominator:
                roots = [Fraction(top, bottom)]
        for k in range(1, known):
            roots.append((a[a.start + k] - sum(roots[i] * roots[k - i] for i in range(1, k))) / (2 * roots[0]))
        return self.number(a.start // 2, roots, a.start // 2 + known)

    def emit(self, name: str, type: str, *args: FieldValue) -> FieldValue:
        return FieldValue(type, _elementary(name, self.terms, self.exact, *(self.convert(x, F64).data for x in args)))

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
        if a.type == F64:
            return FieldValue(F64, Laurent(a.data.start, tuple(-c for c in a.data.coefficients), a.data.end))
        return FieldValue(a.type, -a.data)

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
        return FieldValue(BOOL, getattr(operator, op)(self._order(a, b), 0))

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


@lru_cache(maxsize=4096)
def _elementary(name: str, terms: int, exact: bool, *args: Laurent) -> Laurent:
    """An elementary function c(x, y, ...) from its value at h = 0 and c' = c_x x' + c_y y' + ...: one order a turn."""
    if is_undefined(*args) or any(x.start < 0 or x.end <= 0 for x in args):
        return UNDEFINED
    limits = [x[0] for x in args]
    try:
        function = getattr(math, name) if name != "logistic" else lambda x: 1.0 / (1.0 + math.exp(-x))
        value = function(*map(float, limits))
    except (ValueError, OverflowError):
        return UNDEFINED
    if name == "atan2" and not any(limits):
        return UNDEFINED
    if exact and value.is_integer() and all(x in (0, 1) for x in limits):  # sin(0), log(1), ...
        value = Fraction(value)
    if all(x.end == math.inf and not x.coefficients[1 - x.start :] for x in args):
        return LaurentField(terms, exact).number(0, [value])
    if terms == 1:
        return LaurentField(1, exact).number(0, [value], 1)
    field = LaurentField(terms - 1, exact)
    lower = FieldValue(F64, _elementary(name, terms - 1, exact, *args))
    partials, rate = PARTIALS[name](cast(Any, field), lower, *(FieldValue(F64, x) for x in args)), field.real(0.0)
    for x, partial in zip(args, partials, strict=True):
        slope = field.number(x.start - 1, [(x.start + k) * c for k, c in enumerate(x.coefficients)], x.end - 1)
        if slope.coefficients or slope.end < math.inf:
            rate = field.sum(rate, field.product(partial.data, slope))
    if is_undefined(rate) or rate.start < 0:
        return UNDEFINED
    known = int(min(rate.end, terms - 1))
    powers = [value, *(rate[k] * Fraction(1, k + 1) for k in range(known))]
    return LaurentField(terms, exact).number(0, powers, known + 1)


MAX_LOST_ORDERS = 12  # that divisions by h may cost before an expansion is given up


class FieldLowering(Lowering):
    """The lowering of `kernels` over a jaxpr, with numbers of a field in place of a program's values."""

    builder: Any
    polish = True

    def __init__(self, field: LaurentField):
        super().__init__(cast(Any, field))

    def capture(self, data: Any) -> np.ndarray:
        return self.constant(data)

    def tree(self, function: Callable[..., Any], *args: np.ndarray) -> Any:
        """function(*args) for arrays of scalars, as the pytree that it is, with arrays of Numbers for leaves."""
        closed, result = jax.make_jaxpr(function, return_shape=True)(*(np.zeros(array.shape) for array in args))
        leaves = [rules.map_elements(lambda x: x.data, leaf) for leaf in self.lower_closed(closed, args)]
        return jax.tree.unflatten(jax.tree.structure(result), leaves)

    def lower_equation(self, equation: Any, args: list[np.ndarray]) -> list[np.ndarray]:
        name = equation.primitive.name
        if name == "while":
            return self._loop(equation.params, args)
        if name in PARTIALS:
            return [rules.map_elements(lambda *xs: self.builder.emit(name, F64, *xs), *args)]
        if name == "sign":
            return [rules.map_elements(lambda x: FieldValue(x.type, self.builder.real(float(x.data.sign))), *args)]
        if name == "is_finite":
            return [rules.map_elements(lambda x: FieldValue(BOOL, not is_undefined(x.data)), *args)]
        return super().lower_equation(equation, args)

    def _loop(self, params: dict[str, Any], args: list[np.ndarray]) -> list[np.ndarray]:
        """A loop as it runs for small h, then polished; of a loop around loops only the last pass is polished.

        If more passes leave the limit h = 0 alone the loop is Newton's: each pass doubles the right orders. A loop that
        counts would move on: it is left where it ended.
        """
        tests, bodies = params["cond_nconsts"], params["body_nconsts"]
        test_consts, body_consts, carry = args[:tests], args[tests : tests + bodies], args[tests + bodies :]

        def body(carry: list[np.ndarray]) -> list[np.ndarray]:
            return self.lower_closed(params["body_jaxpr"], [*body_consts, *carry])

        polish, outer = self.polish, _contains_loop(params["body_jaxpr"].jaxpr)
        self.polish = polish and not outer
        last = None
        while self.lower_closed(params["cond_jaxpr"], [*test_consts, *carry])[0].item().data:
            last, carry = carry, body(carry)
        self.polish = polish
        if last is None or not polish:
            return carry
        if outer:
            return body(last)
        polished = carry
        for _ in range(self.builder.terms.bit_length()):
            polished = body(polished)
            if not all(map(_limits_unchanged, carry, polished)):
                return carry
        return polished


def _limits_unchanged(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether values at h = 0 stayed; a count of passes may go on by whole numbers, and so may a size that vanishes."""
    for x, y in zip(before.ravel(), after.ravel(), strict=True):
        if x.type == F64 and not is_undefined(x.data, y.data):
            old, new = x.data.limit, y.data.limit
            if abs(new - old) > 1e-7 * (1 + abs(old)) and (new - old) % 1.0:
                return False
    return True


@lru_cache
def _contains_loop(jaxpr: Any) -> bool:
    return "while[" in str(jaxpr)


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
                "the function has no expansion in nonnegative powers of h at h = 0: "
                "it has a pole or a branch point there"
            )
        table[(slice(None), *place)] = [number[k] for k in range(order + 1)]
    kind = object if exact and not any(isinstance(x, float) for x in table.ravel()) else float
    return np.vectorize(Fraction, otypes=[object])(table) if kind is object and table.size else table.astype(float)


Observable = Callable[[State], Any]


def configuration_and_velocity(state: State) -> tuple[Any, Any]:
    """What a state of every method has: the configuration and the velocity in D with its restricted momentum."""
    return state.g, state.xi


def expand(function: Callable[[Any], Any], order: int, *, exact: bool = False) -> Any:
    """The coefficients of h^0 ... h^order of h -> function(h) as h -> 0+, leaves of shape (order + 1, ...).

    `function` is any JAX function of the step. With `exact` they are Fractions (float inputs are taken as the rationals
    that they are), unless a transcendental function of another number than 0 is met.
    """

    def evaluate(terms: int) -> Any:
        field = LaurentField(terms, exact)
        step: Any = FieldValue(F64, field.h)
        return FieldLowering(field).tree(function, rules.pack_values([step], ()))

    return coefficients_to_order(order, evaluate, exact)


def map_series(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    order: int,
    *,
    observable: Observable = configuration_and_velocity,
    steps: int = 1,
    exact: bool = False,
) -> Any:
    """Expand a method: what `steps` steps from `state` give, as a power series in h, for an `observable` of the state.

    For the momentum these are (38) and (45) of garcia-naranjo-jimenez. With `steps` = 0 it is what the start makes of
    `state`: for `increment` the inverse Legendre map, (35) and (44) there.
    """

    def after(h: Any) -> Any:
        carry, _ = integrator.start(system, state, h)
        for _ in range(steps):
            carry, _ = integrator.step(system, carry, h)
        return observable(integrator.observe(system, carry, h))

    return expand(after, order, exact=exact)


def flow_series(
    system: MechanicalSystem,
    state: State,
    order: int,
    *,
    observable: Observable = configuration_and_velocity,
    exact: bool = False,
) -> Any:
    """Expand the exact motion at t0 + h as a power series in h: (16) to (18) of garcia-naranjo-jimenez."""

    def evaluate(terms: int) -> Any:
        field = LaurentField(terms, exact)
        lowering = FieldLowering(field)
        begin, structure = jax.tree.flatten((state.g, state.xi))
        first = [lowering.constant(leaf) for leaf in begin]
        time = rules.map_elements(lambda t: FieldValue(F64, field.sum(t.data, field.h)), lowering.constant(state.t))

        def limit(x: FieldValue) -> FieldValue:
            return FieldValue(F64, field.number(0, [x.data[0]], 1))

        curve = [rules.map_elements(limit, leaf) for leaf in first]

        def field_at(t: Any, *y: Any) -> Any:
            g, xi = jax.tree.unflatten(structure, y)
            return derivative(system, t, g, xi, None)

        rate = jax.make_jaxpr(field_at)(*(np.zeros(array.shape) for array in (time, *first)))
        for known in range(2, terms + 1):  # Picard's iteration gains one order a pass
            slopes = lowering.lower_closed(rate, [time, *curve])

            def picard(x: FieldValue, d: FieldValue) -> FieldValue:
                """x + the integral of d from 0 to h, up to O(h^known)."""
                slope = d.data
                rates = [slope[k] for k in range(int(min(slope.end, known - 1)))]
                powers = [rate * Fraction(1, k + 1) for k, rate in enumerate(rates)]
                return FieldValue(F64, field.sum(x.data, field.number(1, powers, min(known, slope.end + 1))))

            curve = [rules.map_elements(picard, a, b) for a, b in zip(first, slopes, strict=True)]

        def observe(t: Any, *y: Any) -> Any:
            g, xi = jax.tree.unflatten(structure, y)
            return observable(State(t, g, xi, system.momentum(t, g, xi), xi))

        return lowering.tree(observe, time, *curve)

    return coefficients_to_order(order, evaluate, exact)


def truncation_error(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    order: int,
    *,
    observable: Observable = configuration_and_velocity,
    exact: bool = False,
) -> Any:
    """The local error of a step as a series in h: the map's less the flow's. The first nonzero term has order p + 1."""
    stepped = map_series(system, integrator, state, order, observable=observable, exact=exact)
    flowed = flow_series(system, state, order, observable=observable, exact=exact)
    return jax.tree.map(lambda a, b: a - b, stepped, flowed)


def local_order(
    system: MechanicalSystem, integrator: Integrator, state: State, *, max_order: int = 6, tolerance: float = 1e-9
) -> int:
    """The order p of a method at a state, at most `max_order`, by its series: the first error is in h^(p + 1)."""
    for last in sorted({min(3, max_order), max_order}):
        errors = jax.tree.leaves(truncation_error(system, integrator, state, last))
        sizes = [max(np.abs(leaf[k]).max(initial=0.0) for leaf in errors) for k in range(last + 1)]
        if max(sizes) > tolerance:
            return int(np.argmax(np.array(sizes) > tolerance)) - 1
    return max_order


def modified_field(
    system: MechanicalSystem, integrator: Integrator, state: State, h: float, *, points: int = 6, both_ways: bool = True
) -> np.ndarray:
    """The modified equation of a method at a state: the field (g^-1 g', mu') whose exact flow the steps follow.

    It is the derivative of the interpolant of the iterates. The error is O(h^2points). `both_ways` uses steps of h and
    -h: right for symmetric methods, whose step of -h is the inverse.
    """
    if points < 1 or h == 0:
        raise InvalidInput(f"points = {points}, h = {h}; allowed: at least one point, a step other than 0")
    samples = {0: np.concatenate([np.zeros(system.group.dim), np.asarray(state.momentum)])}
    for sign in (1, -1) if both_ways else (1,):
        count = points if both_ways else 2 * points
        run = simulate(system, integrator, state, step=sign * h, steps=count, backend="xla").check()
        back = system.group.inverse(state.g)
        shifts = jax.vmap(lambda g: system.group.log(system.group.compose(back, g)))(run.g)
        for k in range(1, count + 1):
            samples[sign * k] = np.concatenate([shifts[k], run.momentum[k]])
    nodes = np.array(sorted(samples))
    # of the derivative at 0 of the polynomial through the samples, 0 among them
    weights = {k: np.prod([j / (j - k) for j in nodes if j not in (0, k)]) / k for k in nodes if k}
    weights[0] = -sum(1.0 / k for k in nodes if k)
    return np.asarray(sum(weights[k] * samples[k] for k in nodes) / h)


def modified_expansion(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    h: float,
    *,
    terms: int = 3,
    points: int = 6,
    both_ways: bool = True,
) -> list[np.ndarray]:
    """The terms [f, f_3, f_5, ...] of the modified equation of a method, fitted to steps up to h.

    Without `both_ways` they are [f, f_2, f_3, ...]: see `modified_field`.
    """
    steps = h * np.cos(np.pi * (np.arange(terms + 2) + 0.5) / (2 * terms + 4))
    fields = np.array([modified_field(system, integrator, state, s, points=points, both_ways=both_ways) for s in steps])
    variable = (steps / h) ** 2 if both_ways else steps / h
    coefficients = np.linalg.solve(np.vander(variable, increasing=True), fields)
    return [c / h ** (2 * k if both_ways else k) for k, c in enumerate(coefficients[:terms])]
