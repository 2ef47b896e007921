"""Taylor's method with its own substeps: the series of the motion itself, to the order that a tolerance asks for.

The series is that of a curve g' = g xi in the entries of g or, for rotations of space, in a unit quaternion. A
quaternion turns half as fast as the rotation and has four entries instead of nine: both series are entire, and that of
the quaternion gives the same accuracy in substeps up to twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..errors import InvalidInput
from ..kernels import LoweringError, solution_series
from ..mechanics import MechanicalSystem, State
from ..numerics import require_range
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Element, Scalar, Velocity
from .base import MAX_SUBSTEPS, MIN_SUBSTEP_RATIO, Claims, Integrator, PhaseCarry, Result, StepInfo, observe_phase
from .registry import register

BITS_OF_ONE = 1023.0 * 2.0**52  # the bits of 1.0


class _Substeps(NamedTuple):
    """Within a step: the time done, the state there, the length of the last substep, and how many there were."""

    done: Array
    g: Any
    xi: Array
    last: Array
    taken: Array


@register(
    words="Sums the power series of the motion, term by term, in long steps: the soonest at high accuracy.",
    use_when="you need one accurate motion of a small system, to 1e-8 or better",
)
@dataclass(frozen=True)
class Taylor(Integrator):
    """Explicit: the Taylor series of the motion, its last terms below `tolerance` (1 + |y|) in each substep.

    Order p = 1 - ln(tolerance)/2 and the substep exp(-2) times the radius of convergence that the last two coefficients
    show are the cheapest pair (Jorba, Zou 2005, sections 3.1 and 3.2). The coefficients come from the equations of
    motion, order by order, without divided differences; g and xi are put back onto G and D. Nothing is rejected.
    Neither symmetric nor variational, and only for forces that are analytic along the motion. `iterations` counts the
    substeps.
    """

    tolerance: float = 1e-10
    name = "taylor"
    has_increment = False

    def __post_init__(self) -> None:
        require_range("tolerance", self.tolerance, 1e-16, 0.1)

    @property
    def order(self) -> int:
        """The order of the series."""
        return max(2, math.ceil(1.0 - 0.5 * math.log(self.tolerance)))

    def claims(self, system: MechanicalSystem) -> Claims:
        return Claims(
            None, constraint=True, group=True, condition="accurate to `tolerance` a substep, whatever the step"
        )

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        super().require(system, state, h)
        leaves, structure = jax.tree.flatten((system, state.t, state.g, state.xi))
        _trace_series(self, structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[PhaseCarry]:
        return PhaseCarry.at(system, state.t, state.g, state.xi, u)

    def step(self, system: MechanicalSystem, carry: PhaseCarry, h: Scalar, u: Controls = None) -> Result[PhaseCarry]:
        def unfinished(s: _Substeps) -> Array:
            return (s.done != h) & (s.taken < MAX_SUBSTEPS) & (jnp.abs(s.last) > MIN_SUBSTEP_RATIO * jnp.abs(h))

        def body(s: _Substeps) -> _Substeps:
            now, left = carry.t + s.done, h - s.done
            terms, restore = self.series(system, now, s.g, s.xi, u)
            size = self.radius(terms)
            last = size >= jnp.abs(left)
            k = jnp.where(last, left, jnp.copysign(size, h))
            _, g, xi = restore(reduce(lambda total, term: total * k + term, terms[::-1]))
            g = system.group.normalise(g)
            return _Substeps(jnp.where(last, h, s.done + k), g, system.project(g, xi, now + k), k, s.taken + 1.0)

        zero = jnp.zeros(())
        s = jax.lax.while_loop(unfinished, body, _Substeps(zero, carry.g, carry.xi, h * jnp.ones(()), zero))
        t = carry.t + h
        info = StepInfo.from_substeps(zero, s.taken, s.done == h, system.multipliers(t, s.g, s.xi, u))
        return PhaseCarry(t, s.g, s.xi), info

    def series(
        self, system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity, u: Controls = None
    ) -> tuple[Array, Callable[[Array], Any]]:
        """The coefficients (order + 1, n) of (t, g, xi) in time, and the map from n numbers to (t, g, xi)."""
        group = system.group

        def field(constants: Any, y: Any) -> tuple[Array, Element, Array]:
            (system, u, g), (t, q, xi) = constants, y
            rate = system.acceleration(t, group.series_element(g, q), xi, u)[0]
            return jnp.ones_like(t), group.series_rate(q, xi), rate

        y = (jnp.asarray(t), group.series_start(g), xi)
        unravel = ravel_pytree(y)[1]

        def restore(flat: Array) -> tuple[Array, Element, Array]:
            t, q, xi = unravel(flat)
            return t, group.series_element(g, q), xi

        try:
            return solution_series(field, (system, u, g), y, self.order), restore
        except LoweringError as fault:
            raise InvalidInput(
                f"taylor differentiates the equations of motion {self.order} times, and cannot: {fault}; allowed: "
                "Lagrangians, constraints and forces of elementary functions, without loops and not too large. "
                "dormand-prince takes every system"
            ) from fault

    def radius(self, terms: Array) -> Array:
        """The substep: exp(-2) of the smaller radius by the root test of the last two coefficients, with a margin.

        (3.8) of Jorba and Zou.
        """
        p, weight = self.order, 1.0 / (1.0 + jnp.abs(terms[0]))
        radii = [_inverse_root(_maximum(jnp.abs(terms[k]) * weight) + 1e-300, k) for k in (p - 1, p)]
        return jnp.minimum(*radii) * math.exp(-2.0 - 0.7 / (p - 1))

    def observe(self, system: MechanicalSystem, carry: PhaseCarry, h: Scalar) -> State:
        return observe_phase(system, carry)


@lru_cache(maxsize=256)
def _trace_series(method: Taylor, structure: Any, leaves: tuple[Any, ...]) -> None:
    """Have the series of such a system traced: that refuses one that has none, before anything runs."""

    def series(*flat: Any) -> Array:
        return method.series(*jax.tree.unflatten(structure, flat))[0]

    try:
        shapes = [jax.ShapeDtypeStruct(*leaf) for leaf in leaves]  # type: ignore[no-untyped-call]  # jax has none
        jax.eval_shape(series, *shapes)
    except InvalidInput:
        raise
    except (TypeError, ValueError, AttributeError):
        return  # a force that needs its control u, which is not known yet: the run will see


def _inverse_root(x: Array, k: int) -> Array:
    """x^(-1/k) from the exponent bits of x, 0 to 8 per cent too large.

    A substep needs no more, and a logarithm would cost a tenth of it.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.int64).astype(float)
    return jax.lax.bitcast_convert_type((BITS_OF_ONE - (bits - BITS_OF_ONE) / k).astype(jnp.int64), float)


def _maximum(values: Array) -> Array:
    """The maximum, as a tree of comparisons: a chain would be the longest wait of a substep."""
    while (half := values.shape[0] // 2) > 0:
        values = jnp.concatenate([jnp.maximum(values[:half], values[half : 2 * half]), values[2 * half :]])
    return values[0]
