"""Variables for the Taylor series of a curve g' = g xi: the entries of g, and for rotations of space the unit quaternion.

A quaternion turns half as fast as the rotation and has four entries instead of nine: the series of both are entire, and that of
the quaternion gives the same accuracy in substeps up to twice as long.

Taylor's method with its own steps: the series of the motion itself, to the order and with the steps that a tolerance asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, reduce, singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from ..errors import InvalidInput
from ..groups import SE2, SO3, Group, Product
from ..kernels import LoweringError, solution_series
from ..mechanics import MechanicalSystem, State
from .base import NOT_CONVERGED, NOT_FINITE, OK, Claims, Integrator, StepInfo, fine
from .explicit import RungeKuttaCarry


class Cover:
    """The entries of g themselves: q(0) = g, q' = q xi."""

    def __init__(self, group: Group):
        self.group = group

    def start(self, g) -> Any:
        return g

    def rate(self, q, xi: Array) -> Any:
        return self.group.tangent(q, xi)

    def element(self, g, q) -> Any:
        """The configuration that q stands for in a substep from g."""
        return q


class Quaternion(Cover):
    """g(t) = g R(q), q(0) = 1, q' = q xi/2, scalar first."""

    def start(self, g) -> Array:
        return jnp.array([1.0, 0.0, 0.0, 0.0])

    def rate(self, q, xi: Array) -> Array:
        half = 0.5 * xi
        return jnp.concatenate([-(q[1:] @ half)[None], q[0] * half + jnp.cross(q[1:], half)])

    def element(self, g, q) -> Array:
        """R(q) u = u + 2 q0 v x u + 2 v x (v x u) for |q| = 1; written without that, as a multiple of a rotation by |q|^2."""
        a, b, c, d = q
        return g @ jnp.array([
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a - b * b + c * c - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a - b * b - c * c + d * d],
        ])  # fmt: skip


class Planar(Cover):
    """(cos, sin, x, y) of a motion of the plane."""

    def start(self, g) -> Array:
        return jnp.stack([g[0, 0], g[1, 0], g[0, 2], g[1, 2]])

    def rate(self, q, xi: Array) -> Array:
        (c, s, _, _), (w, u, v) = q, xi
        return jnp.stack([-s * w, c * w, c * u - s * v, s * u + c * v])

    def element(self, g, q) -> Array:
        c, s, x, y = q
        return jnp.array([[c, -s, x], [s, c, y], [0.0, 0.0, 1.0]])


class Factors(Cover):
    """Each factor of a product in its own variables."""

    def __init__(self, group: Product):
        self.parts, self.split = [cover(factor) for factor in group.factors], group.split

    def start(self, g) -> tuple:
        return tuple(part.start(x) for part, x in zip(self.parts, g, strict=True))

    def rate(self, q, xi: Array) -> tuple:
        return tuple(part.rate(x, v) for part, x, v in zip(self.parts, q, self.split(xi), strict=True))

    def element(self, g, q) -> tuple:
        return tuple(part.element(x, y) for part, x, y in zip(self.parts, g, q, strict=True))


@singledispatch
def cover(group: Group) -> Cover:
    """The variables for the curves of a group."""
    return Cover(group)


@cover.register
def _(group: SO3) -> Cover:
    return Quaternion(group)


@cover.register
def _(group: SE2) -> Cover:
    return Planar(group)


@cover.register
def _(group: Product) -> Cover:
    return Factors(group)


LIMIT = 100_000  # substeps within one step
BIAS = 1023.0 * 2.0**52  # the bits of 1.0
TINY = 2.0**-46  # a substep below this share of the step has left the domain


class _Substeps(NamedTuple):
    """Within a step: the time done, the state there, the length of the last substep, and how many there were."""

    done: Array
    g: Any
    xi: Array
    last: Array
    taken: Array


@dataclass(frozen=True)
class Taylor(Integrator):
    """Explicit: the Taylor series of the motion, its last terms below `tolerance` (1 + |y|) in each substep; g, xi are put back onto G, D.

    Order p = 1 - ln(tolerance)/2 and the substep exp(-2) times the radius of convergence that the last two coefficients show are the
    cheapest pair (Jorba, Zou 2005, sections 3.1 and 3.2). The coefficients come from the equations of motion, order by order, without
    divided differences. Nothing is rejected. Neither symmetric nor variational, and only for forces that are analytic along the motion.
    `iterations` counts the substeps.
    """

    tolerance: float = 1e-10
    name = "taylor"

    def __post_init__(self):
        if isinstance(self.tolerance, bool) or not (1e-16 <= self.tolerance <= 0.1):
            raise InvalidInput(f"tolerance is {self.tolerance!r}; allowed: 1e-16 to 0.1")

    @property
    def order(self) -> int:
        """The order of the series."""
        return max(2, math.ceil(1.0 - 0.5 * math.log(self.tolerance)))

    def claims(self, system) -> Claims:
        return Claims(
            None, constraint=True, group=True, condition="accurate to `tolerance` a substep, whatever the step"
        )

    def require(self, system, state: State, h) -> None:
        super().require(system, state, h)
        leaves, structure = jax.tree.flatten((system, state.t, state.g, state.xi))
        _traced(self, structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))

    def start(self, system, state: State, h, u=None) -> tuple[RungeKuttaCarry, StepInfo]:
        return RungeKuttaCarry(state.t, state.g, state.xi), fine(system.multipliers(state.t, state.g, state.xi, u))

    def step(self, system: MechanicalSystem, carry: RungeKuttaCarry, h, u=None) -> tuple[RungeKuttaCarry, StepInfo]:
        def unfinished(s: _Substeps) -> Array:
            return (s.done != h) & (s.taken < LIMIT) & (jnp.abs(s.last) > TINY * jnp.abs(h))

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
        status = jnp.where(s.done == h, OK, jnp.where(s.taken < LIMIT, NOT_FINITE, NOT_CONVERGED))
        info = StepInfo(zero, s.taken, status, system.multipliers(t, s.g, s.xi, u))
        return RungeKuttaCarry(t, s.g, s.xi), info

    def series(self, system: MechanicalSystem, t, g, xi, u=None) -> tuple[Array, Any]:
        """The coefficients (order + 1, n) of (t, g, xi) in time, and the map from n numbers to (t, g, xi)."""
        chart = cover(system.group)

        def field(constants, y):
            (system, u, g), (t, q, xi) = constants, y
            rate = system.acceleration(t, chart.element(g, q), xi, u)[0]
            return jnp.ones_like(t), chart.rate(q, xi), rate

        y = (jnp.asarray(t), chart.start(g), xi)
        unravel = ravel_pytree(y)[1]

        def restore(flat):
            t, q, xi = unravel(flat)
            return t, chart.element(g, q), xi

        try:
            return solution_series(field, (system, u, g), y, self.order), restore
        except LoweringError as fault:
            raise InvalidInput(
                f"taylor differentiates the equations of motion {self.order} times, and cannot: {fault}; allowed: Lagrangians, constraints "
                f"and forces of elementary functions, without loops and not too large. dormand-prince takes every system"
            ) from fault

    def radius(self, terms: Array) -> Array:
        """The substep: exp(-2) of the smaller radius by the root test of the last two coefficients, and a margin (their (3.8))."""
        p, weight = self.order, 1.0 / (1.0 + jnp.abs(terms[0]))
        radii = [_root(_largest(jnp.abs(terms[k]) * weight) + 1e-300, k) for k in (p - 1, p)]
        return jnp.minimum(*radii) * math.exp(-2.0 - 0.7 / (p - 1))

    def observe(self, system, carry: RungeKuttaCarry, h) -> State:
        return State(carry.t, carry.g, carry.xi, system.momentum(carry.t, carry.g, carry.xi), carry.xi)


@lru_cache(maxsize=256)
def _traced(method: Taylor, structure, leaves) -> None:
    """Have the series of such a system traced: that refuses one that has none, before anything runs."""

    def series(*flat):
        return method.series(*jax.tree.unflatten(structure, flat))[0]

    try:
        jax.eval_shape(series, *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves))
    except InvalidInput:
        raise
    except (TypeError, ValueError, AttributeError):
        return  # a force that needs its control u, which is not known yet: the run will see


def _root(x: Array, k: int) -> Array:
    """x^(-1/k) from the exponent bits of x, 0 to 8 per cent too large: a substep needs no more, a logarithm would cost a tenth of it."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int64).astype(float)
    return jax.lax.bitcast_convert_type((BIAS - (bits - BIAS) / k).astype(jnp.int64), float)


def _largest(values: Array) -> Array:
    """The maximum, as a tree of comparisons: a chain would be the longest wait of a substep."""
    while (half := values.shape[0] // 2) > 0:
        values = jnp.concatenate([jnp.maximum(values[:half], values[half : 2 * half]), values[2 * half :]])
    return values[0]
