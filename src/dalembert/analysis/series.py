"""Expansions in the step h, to any order: of a discrete map, of its Legendre map, of the flow, and of their difference.

A step is evaluated as it stands, with truncated Laurent series in h for numbers (`laurent.Field`): the walk over its
operations is that of the kernels. Newton's iteration then gains orders of h as it gains digits, so implicit equations
need nothing special, and 0/0 in a removable singularity (M = h M / h) is a division of series.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..integrators import Integrator
from ..integrators.runge_kutta import derivative
from ..kernels import rules
from ..kernels.program import F64
from ..system import MechanicalSystem, State
from .expansion import Walk, evaluated, integral, point, sufficient, truncated
from .laurent import Field, Scalar

Observable = Callable[[State], Any]


def placed(state: State) -> tuple:
    """What a state of every method has: the configuration and the velocity in D with its restricted momentum."""
    return state.g, state.xi


def expand(function: Callable[[Any], Any], order: int, *, exact: bool = False) -> Any:
    """The coefficients of h^0 ... h^order of h -> function(h) as h -> 0+, leaves of shape (order + 1, ...).

    `function` is any JAX function of the step. With `exact` they are Fractions (float inputs are taken as the rationals
    that they are), unless a transcendental function of another number than 0 is met.
    """
    return sufficient(order, lambda terms: evaluated(function, terms, exact), exact)


def map_series(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    order: int,
    *,
    observable: Observable = placed,
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
    system: MechanicalSystem, state: State, order: int, *, observable: Observable = placed, exact: bool = False
) -> Any:
    """The motion itself, t0 + h, as a series in h ((16)-(18)): Picard's iteration gains one order a pass."""

    def motion(terms: int) -> Any:
        field = Field(terms, exact)
        walk = Walk(field)
        begin, structure = jax.tree.flatten((state.g, state.xi))
        first = [walk.constant(leaf) for leaf in begin]
        time = point(field.sum(walk.constant(state.t).item().data, field.h))
        curve = [rules.mapped(lambda x: Scalar(F64, truncated(field, x.data, 1)), leaf) for leaf in first]
        shapes = [jax.ShapeDtypeStruct(leaf.shape, float) for leaf in (time, *first)]

        def field_at(t, *y):
            g, xi = jax.tree.unflatten(structure, y)
            return derivative(system, t, g, xi, None)

        rate = jax.make_jaxpr(field_at)(*shapes)
        for known in range(2, terms + 1):
            slope = walk.closed(rate, [time, *curve])
            curve = [
                rules.mapped(lambda x, d: Scalar(F64, integral(field, x.data, d.data, known)), a, b)
                for a, b in zip(first, slope, strict=True)
            ]

        def seen(t, *y):
            g, xi = jax.tree.unflatten(structure, y)
            return observable(State(t, g, xi, system.momentum(t, g, xi), xi))

        return walk.tree(seen, time, *curve)

    return sufficient(order, motion, exact)


def truncation_error(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    order: int,
    *,
    observable: Observable = placed,
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
