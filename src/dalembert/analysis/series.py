"""Expansions in the step h, to any order: of a discrete map, its Legendre map, the flow, and the modified field.

A step is evaluated as it stands, with truncated Laurent series in h for numbers (`laurent.LaurentField`): the lowering
of its operations is that of the kernels. Newton's iteration then gains orders of h as it gains digits, so implicit
equations need nothing special, and 0/0 in a removable singularity (M = h M / h) is a division of series.

The iterates of a method with step h lie on a solution of the modified equation y' = f(y) + h f_2(y) + h^2 f_3(y) + ...,
whose terms are fitted to runs of any method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np

from ..errors import InvalidInput
from ..integrators import Integrator, derivative
from ..kernels import F64, Lowering, rules
from ..mechanics import MechanicalSystem, State
from ..simulation import simulate
from .laurent import ELEMENTARY, FieldValue, Laurent, LaurentField, is_undefined

MAX_LOST_ORDERS = 12
"""Orders that divisions by h may cost before an expansion is given up."""


class SeriesLowering(Lowering):
    """The lowering of `kernels` over a jaxpr, with numbers of a field in place of a program's values."""

    builder: Any
    polish = True

    def __init__(self, field: LaurentField):
        super().__init__(cast(Any, field))

    def capture(self, data: Any) -> np.ndarray:
        return self.constant(data)

    def tree(self, function: Callable[..., Any], *args: np.ndarray) -> Any:
        """function(*args) for arrays of scalars, as the pytree that it is, with arrays of Numbers for leaves."""
        shapes = _shapes(args)
        closed, result = jax.make_jaxpr(function, return_shape=True)(*shapes)
        leaves = [rules.map_elements(lambda x: x.data, leaf) for leaf in self.lower_closed(closed, args)]
        return jax.tree.unflatten(jax.tree.structure(result), leaves)

    def lower_equation(self, equation: Any, args: list[np.ndarray]) -> list[np.ndarray]:
        name = equation.primitive.name
        if name == "while":
            return self._loop(equation.params, args)
        if name in ELEMENTARY:
            return [rules.map_elements(lambda *xs: FieldValue(*ELEMENTARY[name](self.builder, *xs)), *args)]
        return super().lower_equation(equation, args)

    def _loop(self, params: dict[str, Any], args: list[np.ndarray]) -> list[np.ndarray]:
        """A loop as it runs for small h, then polished; of a loop around loops only the last pass is polished."""
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
        return body(last) if outer else self._polish(carry, body)

    def _polish(
        self, carry: list[np.ndarray], body: Callable[[list[np.ndarray]], list[np.ndarray]]
    ) -> list[np.ndarray]:
        """If more passes leave the limit h = 0 alone the loop is Newton's: each pass doubles the right orders.

        A loop that counts would move on: it is left where it ended.
        """
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


def scalar_array(number: Laurent) -> np.ndarray:
    """A number as the array () that a lowering takes."""
    array = np.empty((), object)
    array[()] = FieldValue(F64, number)
    return array


def _shapes(arrays: Sequence[np.ndarray]) -> list[Any]:
    return [jax.ShapeDtypeStruct(array.shape, float) for array in arrays]  # type: ignore[no-untyped-call]


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
        return SeriesLowering(field).tree(function, scalar_array(field.h))

    return coefficients_to_order(order, evaluate, exact)


def map_series(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    order: int,
    *,
    observable: Observable = configuration_and_velocity,
    exact: bool = False,
) -> Any:
    """One step of a method from `state` as a series in h; of the momentum (38), (45) of garcia-naranjo-jimenez."""

    def after(h: Any) -> Any:
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
    """What the start of a method makes of `state`, as a series in h.

    Of `increment` it is the inverse Legendre map, (35) and (44) of garcia-naranjo-jimenez.
    """

    def before(h: Any) -> Any:
        return observable(integrator.observe(system, integrator.start(system, state, h)[0], h))

    return expand(before, order, exact=exact)


def flow_series(
    system: MechanicalSystem,
    state: State,
    order: int,
    *,
    observable: Observable = configuration_and_velocity,
    exact: bool = False,
) -> Any:
    """The motion itself, at t0 + h, as a series in h: (16) to (18) of garcia-naranjo-jimenez.

    Picard's iteration gains one order a pass.
    """

    def evaluate(terms: int) -> Any:
        field = LaurentField(terms, exact)
        lowering = SeriesLowering(field)
        begin, structure = jax.tree.flatten((state.g, state.xi))
        first = [lowering.constant(leaf) for leaf in begin]
        time = scalar_array(field.sum(lowering.constant(state.t).item().data, field.h))

        def limit(x: FieldValue) -> FieldValue:
            a = x.data
            return FieldValue(F64, field.number(a.start, a.coefficients[: max(0, 1 - a.start)], min(a.end, 1)))

        curve = [rules.map_elements(limit, leaf) for leaf in first]
        shapes = _shapes((time, *first))

        def field_at(t: Any, *y: Any) -> Any:
            g, xi = jax.tree.unflatten(structure, y)
            return derivative(system, t, g, xi, None)

        rate = jax.make_jaxpr(field_at)(*shapes)
        for known in range(2, terms + 1):
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
    """The order p of a method at a state, at most `max_order`: the first nonzero error term is that of h^(p + 1)."""
    for last in sorted({min(3, max_order), max_order}):
        errors = jax.tree.leaves(truncation_error(system, integrator, state, last))
        sizes = [max(np.abs(leaf[k]).max(initial=0.0) for leaf in errors) for k in range(last + 1)]
        if max(sizes) > tolerance:
            return int(np.argmax(np.array(sizes) > tolerance)) - 1
    return max_order


def modified_field(
    system: MechanicalSystem, integrator: Integrator, state: State, h: float, *, points: int = 6, both_ways: bool = True
) -> np.ndarray:
    """The modified field at a state, (g^-1 g', mu'), from the derivative of the interpolant of the iterates.

    The error is O(h^2points). `both_ways` uses steps of h and -h: right for symmetric methods, whose step of -h is the
    inverse.
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
    return np.asarray(np.tensordot(_slope_weights(nodes), np.array([samples[k] for k in nodes]), 1) / h)


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
    """[f, f_3, f_5, ...], terms of the modified field fitted to steps up to h; [f, f_2, ...] if not both_ways."""
    steps = h * np.cos(np.pi * (np.arange(terms + 2) + 0.5) / (2 * terms + 4))
    fields = np.array(
        [modified_field(system, integrator, state, step, points=points, both_ways=both_ways) for step in steps]
    )
    variable = (steps / h) ** 2 if both_ways else steps / h
    coefficients = np.linalg.solve(np.vander(variable, increasing=True), fields)
    return [c / h ** (2 * k if both_ways else k) for k, c in enumerate(coefficients[:terms])]


def _slope_weights(nodes: np.ndarray) -> np.ndarray:
    """Weights of the derivative at 0 of the polynomial through values at the nodes, 0 among them."""
    weights = np.zeros(len(nodes))
    at = [float(np.prod([node - other for other in nodes if other != node])) for node in nodes]
    zero = int(np.argmax(nodes == 0))
    for k, node in enumerate(nodes):
        weights[k] = at[zero] / (at[k] * (0.0 - node)) if node else sum(-1.0 / other for other in nodes if other)
    return weights
