"""Explicit methods on the equations of motion g' = g xi, xi' = acceleration, for comparison and for accurate motions.

Taylor's series is that of a curve g' = g xi in the entries of g or, for rotations of space on which the acceleration
does not depend, in a unit quaternion (`SO3.series_start` says why).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache, partial, reduce
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from numpy.typing import NDArray

from ..errors import InvalidInput, require_name
from ..groups import Cayley
from ..kernels import LoweringError, note_loop, solution_series
from ..mechanics import MechanicalSystem, State, kinetic_metric
from ..numerics import depends, require_range, solve
from ..numerics.types import Array, Controls, Element, Scalar, Velocity
from .base import NOT_CONVERGED, NOT_FINITE, OK, Claims, PhaseCarry, PhaseMethod, Prediction, Result, StepInfo
from .properties import is_conservative
from .registry import register

PROJECTIONS = ("constraint", "energy")
BY_TOLERANCE = "accurate to `tolerance` a substep, whatever the step"
MAX_SUBSTEPS = 100_000  # within one step
MIN_SUBSTEP_RATIO = 2.0**-46  # a substep below this share of the step has left the domain
MIN_STEP_RATIO, MAX_STEP_RATIO, SAFETY_FACTOR = 1.0 / 3.0, 6.0, 0.9  # of a substep against the last (HNW II.10)
BITS_OF_ONE = 1023.0 * 2.0**52  # the bits of 1.0


def derivative(system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity, u: Controls) -> tuple[Element, Array]:
    """The right-hand side (g', xi') of the equations of motion, as an ordinary differential equation on D."""
    return system.group.tangent(g, xi), system.acceleration(t, g, xi, u)[0]


@register(
    words="The classical method: accurate on short runs, but constraint, group and energy drift.",
    use_when="a run is short, or you want to compare with a method that is not geometric; not for long runs",
)
@dataclass(frozen=True)
class RungeKutta(PhaseMethod):
    """The classical Runge-Kutta method of order 4, to compare with: it leaves the group and drifts in energy.

    It integrates g' = g xi, xi' = acceleration with the entries of g and xi as plain numbers.
    """

    name = "runge-kutta"

    def claims(self, system: MechanicalSystem) -> Claims:
        return Claims(4)

    def step(self, system: MechanicalSystem, carry: PhaseCarry, h: Scalar, u: Controls = None) -> Result[PhaseCarry]:
        def field(share: float, slope: tuple[Element, Array]) -> tuple[Element, Array]:
            g, xi = jax.tree.map(lambda y, k: y + share * h * k, (carry.g, carry.xi), slope)
            return derivative(system, carry.t + share * h, g, xi, u)

        k1 = derivative(system, carry.t, carry.g, carry.xi, u)
        k2 = field(0.5, k1)
        k3 = field(0.5, k2)
        k4 = field(1.0, k3)
        mean = lambda y, a, b, c, d: y + h / 6 * (a + 2 * b + 2 * c + d)
        g, xi = jax.tree.map(mean, (carry.g, carry.xi), k1, k2, k3, k4)
        return PhaseCarry.at(system, carry.t + h, g, xi, u)


class ProjectedCarry(NamedTuple):
    """The state with the energy it is held to."""

    t: Array
    g: Any
    xi: Array
    energy: Array
    prediction: Prediction  # of the scale of the velocity


@register(
    words="Runge-Kutta with a projection onto the constraint after every step.",
    use_when="an explicit method must satisfy the constraint or conserve the energy, and need not be symmetric",
)
@dataclass(frozen=True)
class ProjectedRungeKutta(PhaseMethod):
    """The classical Runge-Kutta step, then projected onto the group, phi = 0 and D; order 4, not symmetric.

    Hairer, Lubich, Wanner IV.4. `onto` = "energy" also moves (g, xi) along the gradient of the energy, to g tau((z - 1)
    M^-1 E_g) and z xi, back to the energy of the start: only for autonomous systems without forces.
    """

    onto: str = "constraint"
    name = "projected-runge-kutta"
    carry_is_step_free = True

    def __post_init__(self) -> None:
        require_name("projection", self.onto, PROJECTIONS)

    def claims(self, system: MechanicalSystem) -> Claims:
        return Claims(4, constraint=True, group=True, energy=self.onto == "energy" and is_conservative(system))

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[ProjectedCarry]:
        energy = system.energy(state.t, state.g, state.xi)
        carry = ProjectedCarry(state.t, state.g, state.xi, energy, Prediction.at(jnp.ones(1)))
        return carry, StepInfo.at(system, state, u)

    def step(
        self, system: MechanicalSystem, carry: ProjectedCarry, h: Scalar, u: Controls = None
    ) -> Result[ProjectedCarry]:
        after, info = RungeKutta().step(system, PhaseCarry(carry.t, carry.g, carry.xi), h, u)
        near = after.g
        for _ in range(3):  # a Newton step each: Runge-Kutta leaves the group by more than round-off
            near = system.group.normalise(near)
        g = system.project_configuration(near, after.t)
        if self.onto == "constraint":
            return carry._replace(t=after.t, g=g, xi=system.project(g, after.xi, after.t)), info
        slope = -solve(kinetic_metric(system, after.t, g), system.L_g(after.t, g, jnp.zeros_like(after.xi)))

        def moved(z: Array) -> tuple[Element, Array]:
            there = system.group.compose(g, system.group.cayley((z - 1.0) * slope))
            return there, system.project(there, z * after.xi, after.t)

        def excess(z: Array) -> Array:
            """The last term is below round-off, but keeps the equation regular at rest in an equilibrium."""
            return (system.energy(after.t, *moved(z[0])) - carry.energy + 2.0**-60 * (z[0] - 1.0))[None]

        root = carry.prediction.solve(excess)
        g, xi = moved(root.x[0])
        new = ProjectedCarry(after.t, system.group.normalise(g), xi, carry.energy, Prediction.at(jnp.ones(1)))
        return new, StepInfo.from_root(carry.prediction, root, system.multipliers(after.t, g, xi, u))


class Substeps(NamedTuple):
    """Within a step: the time done, the state there, the next or the last substep, their number, and the last error."""

    done: Array
    g: Any
    xi: Array
    substep: Array
    taken: Array
    error: Array


def take_substeps(
    body: Callable[[Substeps], Substeps], system: MechanicalSystem, carry: Any, h: Scalar, first: Array, u: Controls
) -> tuple[Substeps, StepInfo]:
    """What substeps lead to; a step that does not finish left the domain, or ran out of substeps."""

    def unfinished(s: Substeps) -> Array:
        return (s.done != h) & (s.taken < MAX_SUBSTEPS) & (jnp.abs(s.substep) > MIN_SUBSTEP_RATIO * jnp.abs(h))

    zero = jnp.zeros(())
    begin = Substeps(zero, carry.g, carry.xi, first, zero, zero)

    def loop(known: Substeps | None) -> Substeps:
        end: Substeps = jax.lax.while_loop(
            unfinished if known is None else lambda s: s.taken < known.taken, body, begin
        )
        return end

    s = note_loop(loop, begin)
    status = jnp.where(s.done == h, OK, jnp.where(s.taken < MAX_SUBSTEPS, NOT_FINITE, NOT_CONVERGED))
    return s, StepInfo(s.error, s.taken, status, system.multipliers(carry.t + h, s.g, s.xi, u))


@cache
def dop853_tableau() -> tuple[NDArray[np.float64], ...]:
    """(A, b, c, and the weights of the two error estimates of orders 5 and 3) of DOP853."""
    from scipy.integrate import DOP853

    count = DOP853.n_stages
    return DOP853.A[:count, :count], DOP853.B, DOP853.C[:count], DOP853.E5[:count], DOP853.E3[:count]


class DormandPrinceCarry(NamedTuple):
    """The state on D, and the substep that the error allows (0: not known yet)."""

    t: Array
    g: Any
    xi: Array
    substep: Array


@register(
    words="Chooses its substeps for a given tolerance: accurate on motions that are not too long.",
    use_when="you need one accurate motion of any system that is not very long",
)
@dataclass(frozen=True)
class DormandPrince(PhaseMethod):
    """Accurate motions of moderate length: explicit, order 8, substeps with errors below `tolerance` (1 + |y|).

    The pair of Dormand and Prince with the estimates of Hairer and Wanner (DOP853; Hairer, Norsett, Wanner II.10) on
    g' = g xi, xi' = acceleration; g and xi are projected onto G and D. It is neither symmetric nor variational, so it
    is not for long-time statistics. `iterations` counts the substeps.
    """

    tolerance: float = 1e-10
    name = "dormand-prince"

    def __post_init__(self) -> None:
        require_range("tolerance", self.tolerance, 1e-15, 0.1)

    def claims(self, system: MechanicalSystem) -> Claims:
        return Claims(None, constraint=True, group=True, condition=BY_TOLERANCE)

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Any]:
        return DormandPrinceCarry(state.t, state.g, state.xi, jnp.zeros(())), StepInfo.at(system, state, u)

    def step(
        self, system: MechanicalSystem, carry: DormandPrinceCarry, h: Scalar, u: Controls = None
    ) -> Result[DormandPrinceCarry]:
        first = jnp.where(carry.substep == 0.0, 0.1 * h, jnp.sign(h) * jnp.abs(carry.substep))

        def body(s: Substeps) -> Substeps:
            left = h - s.done
            last = jnp.abs(s.substep) >= 0.999 * jnp.abs(left)
            k = jnp.where(last, left, s.substep)
            g, xi, error = self._substep(system, carry.t + s.done, s.g, s.xi, k, u)
            good = error <= 1.0
            ideal = SAFETY_FACTOR / jnp.sqrt(jnp.sqrt(jnp.sqrt(error + 1e-30)))
            grown = jnp.clip(ideal, MIN_STEP_RATIO, MAX_STEP_RATIO)
            share = jnp.where(jnp.isfinite(error), jnp.where(good, grown, jnp.minimum(grown, 1.0)), MIN_STEP_RATIO)
            substep = jnp.where(last & good & (jnp.abs(share * k) < jnp.abs(s.substep)), s.substep, share * k)
            g, xi = jax.tree.map(lambda new, old: jnp.where(good, new, old), (g, xi), (s.g, s.xi))
            done = jnp.where(good, jnp.where(last, h, s.done + k), s.done)
            return Substeps(done, g, xi, substep, s.taken + 1.0, error)

        s, info = take_substeps(body, system, carry, h, first, u)
        new = DormandPrinceCarry(carry.t + h, s.g, s.xi, s.substep)
        return new, info._replace(residual=self.tolerance * s.error)

    def _substep(
        self, system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity, k: Scalar, u: Controls
    ) -> tuple[Any, Array, Array]:
        """(g, xi, error) after one substep k; the error in units of the tolerance."""
        A, b, c, fifth, third = dop853_tableau()
        group, tau, n = system.group, Cayley(), system.group.dim
        slopes: list[Array] = []

        @jax.jit  # traced once, not at every stage
        def field(s: Scalar, y: Array) -> Array:
            """(x', xi') of the configuration g tau(x) and its velocity."""
            x, v = y[:n], y[n:]
            rate = system.acceleration(s, group.compose(g, tau.tau(group, x)), v, u)[0]
            return jnp.concatenate([tau.left_inverse(group, x, v), rate])

        def combined(weights: Iterable[float]) -> Any:
            return sum(float(w) * slope for w, slope in zip(weights, slopes, strict=False) if w != 0.0)

        y = jnp.concatenate([jnp.zeros(n), xi])
        for i, node in enumerate(c):
            slopes.append(field(t + float(node) * k, y + k * combined(A[i])))
        new = y + k * combined(b)
        size = 1.0 + jnp.maximum(jnp.abs(y), jnp.abs(new))
        five, three = (jnp.sum((combined(weights) / size) ** 2) for weights in (fifth, third))
        norm = jnp.sqrt((five + 0.01 * three + 1e-300) * y.size)
        g = group.restore(group.compose(g, tau.tau(group, new[:n])))
        return g, system.project(g, new[n:], t + k), jnp.abs(k) * five / norm / self.tolerance


@register(
    words="A reference motion: Dormand and Prince's method with a tolerance near round-off.",
    use_when="you want to measure the error of another method",
)
@final
@dataclass(frozen=True)
class Reference(DormandPrince):
    """The accurate motion with which other methods are compared: `DormandPrince` at a tolerance near round-off.

    `scipy_motion` gives the same motion by SciPy, independent of our steps and kernels.
    """

    tolerance: float = 1e-13
    name = "reference"

    def claims(self, system: MechanicalSystem) -> Claims:
        return Claims(None, condition="all other methods are measured against it")


@partial(jax.jit, static_argnames="restore")
def _flat_rate(system: MechanicalSystem, restore: Callable[[Array], Any], t: Array, y: Array, u: Controls) -> Array:
    g, xi = restore(y)
    return ravel_pytree(derivative(system, t, g, xi, u))[0]


def scipy_motion(
    system: MechanicalSystem, state: State, times: ArrayLike, controls: Controls = None, tolerance: float = 1e-13
) -> list[State]:
    """The states at `times` by SciPy's DOP853 on g' = g xi, xi' = acceleration, for independent checks of our methods.

    The first time is that of `state`. The list ends early where the motion cannot be continued. Row k of `controls` is
    held from times[k] to times[k + 1]. `tolerance` is the relative and the absolute one.
    """
    from scipy.integrate import solve_ivp

    values, restore = ravel_pytree((state.g, state.xi))
    stamps = np.asarray(times, float)

    def observed(t: float, y: Array) -> State:
        g, xi = restore(jnp.asarray(y))
        return State(jnp.asarray(t), g, xi, system.momentum(t, g, xi), xi, system.group)

    y, states = np.asarray(values), [observed(stamps[0], values)]
    for k, span in enumerate(itertools.pairwise(stamps)):
        u = jax.tree.map(lambda leaf: leaf[k], controls)
        field = lambda t, y, u=u: np.asarray(_flat_rate(system, restore, t, y, u))
        found = solve_ivp(field, span, y, "DOP853", rtol=tolerance, atol=tolerance)
        y = found.y[:, -1]
        if not found.success or not np.all(np.isfinite(y)):
            break
        states.append(observed(span[1], y))
    return states


@register(
    words="Sums the power series of the motion in long substeps: the fastest method for high accuracy.",
    use_when="you need one accurate motion of a small system, to 1e-8 or better",
)
@dataclass(frozen=True)
class Taylor(PhaseMethod):
    """High accuracy at the least cost: the Taylor series of the motion, in substeps, to `tolerance` (1 + |y|).

    Order p = 1 - ln(tolerance)/2 and the substep exp(-2) times the radius of convergence that the last two coefficients
    show are the cheapest pair (Jorba, Zou 2005, sections 3.1 and 3.2). The coefficients come from the equations of
    motion, order by order, without divided differences; g and xi are projected onto G and D. No substep is rejected.
    It is explicit, neither symmetric nor variational, and only for forces that are analytic along the motion.
    `iterations` counts the substeps.
    """

    tolerance: float = 1e-10
    name = "taylor"

    def __post_init__(self) -> None:
        require_range("tolerance", self.tolerance, 1e-16, 0.1)

    @property
    def order(self) -> int:
        """The order of the series."""
        return max(2, math.ceil(1.0 - 0.5 * math.log(self.tolerance)))

    def claims(self, system: MechanicalSystem) -> Claims:
        return Claims(None, constraint=True, group=True, condition=BY_TOLERANCE)

    checks_numbers_of = "nothing"

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        super().require(system, state, h)
        leaves, structure = jax.tree.flatten((system, state.t, state.g, state.xi))
        _trace_series(self, structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))

    def step(self, system: MechanicalSystem, carry: PhaseCarry, h: Scalar, u: Controls = None) -> Result[PhaseCarry]:
        def body(s: Substeps) -> Substeps:
            now, left = carry.t + s.done, h - s.done
            terms, restore = self.series(system, now, s.g, s.xi, u)
            size = self.radius(terms)
            last = size >= jnp.abs(left)
            k = jnp.where(last, left, jnp.copysign(size, h))
            _, g, xi = restore(reduce(lambda total, term: total * k + term, terms[::-1]))
            g, done = system.group.normalise(g), jnp.where(last, h, s.done + k)
            return Substeps(done, g, system.project(g, xi, now + k), k, s.taken + 1.0, s.error)

        s, info = take_substeps(body, system, carry, h, h * jnp.ones(()), u)
        return PhaseCarry(carry.t + h, s.g, s.xi), info

    def series(
        self, system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity, u: Controls = None
    ) -> tuple[Array, Callable[[Array], Any]]:
        """The coefficients (order + 1, n) of (t, g, xi) in time, and the map from n numbers to (t, g, xi)."""
        group = system.group

        def field(constants: Any, y: Any) -> tuple[Array, Element, Array]:
            (system, u, g), (t, q, xi) = constants, y
            rate = system.acceleration(t, group.series_element(g, q), xi, u)[0]
            return jnp.ones_like(t), group.series_rate(q, xi), rate

        q, entries = group.series_start(g), group.series_entries(g)
        if jax.tree.map(jnp.shape, q) != jax.tree.map(jnp.shape, entries):
            q = entries if depends(lambda g: system.acceleration(t, g, xi, u)[0], g) else q
        y = (jnp.asarray(t), q, xi)
        unravel = ravel_pytree(y)[1]

        def restore(flat: Array) -> tuple[Array, Element, Array]:
            t, q, xi = unravel(flat)
            return t, group.series_element(g, q), xi

        try:
            return solution_series(field, (system, u, g), y, self.order), restore
        except LoweringError as fault:
            raise InvalidInput(
                f"taylor differentiates the equations of motion {self.order} times, and cannot: {fault}; allowed: "
                "Lagrangians, constraints and forces of elementary functions, without loops. "
                "dormand-prince takes every system"
            ) from fault

    def radius(self, terms: Array) -> Array:
        """exp(-2) of the smaller radius by the root test of the last two coefficients, with a margin ((3.8) there)."""
        p, weight = self.order, 1.0 / (1.0 + jnp.abs(terms[0]))
        radii = [_inverse_root(_maximum(jnp.abs(terms[k]) * weight) + 1e-300, k) for k in (p - 1, p)]
        return jnp.minimum(*radii) * math.exp(-2.0 - 0.7 / (p - 1))


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
    """x^(-1/k) from the exponent bits of x, 0 to 8 per cent too large; a logarithm would cost a tenth of a substep."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int64).astype(float)
    return jax.lax.bitcast_convert_type((BITS_OF_ONE - (bits - BITS_OF_ONE) / k).astype(jnp.int64), float)


def _maximum(values: Array) -> Array:
    """The maximum, as a tree of comparisons: a chain would be the longest wait of a substep."""
    while (half := values.shape[0] // 2) > 0:
        values = jnp.concatenate([jnp.maximum(values[:half], values[half : 2 * half]), values[2 * half :]])
    return values[0]
