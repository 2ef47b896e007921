"""The classical Runge-Kutta method on the equations of motion, for comparison: it keeps neither the group nor D.

Runge-Kutta with projections: what a standard method does when it is put back where the motion lives after every step.

Dormand and Prince's method of order 8 with its own steps, inside the compiled step: accuracy at the price of an explicit method.

An accurate motion to compare with: SciPy's DOP853 on the equations of motion.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..errors import InvalidInput, NumericalFailure
from ..groups import Cayley
from ..mechanics import MechanicalSystem, State
from ..numerics import solve
from ..numerics.types import Array, ArrayLike, Controls
from .adapted import kinetic
from .base import NOT_CONVERGED, NOT_FINITE, OK, Claims, Integrator, Prediction, StepInfo, fine, info
from .properties import conservative


class RungeKuttaCarry(NamedTuple):
    t: Array
    g: Any
    xi: Array


@dataclass(frozen=True)
class RungeKutta(Integrator):
    """The classical method of order 4 on g' = g xi, xi' = acceleration, with matrices and velocities as plain numbers."""

    name = "runge-kutta"

    def claims(self, system) -> Claims:
        return Claims(4)

    def start(self, system, state: State, h, u=None) -> tuple[RungeKuttaCarry, StepInfo]:
        return RungeKuttaCarry(state.t, state.g, state.xi), fine(system.multipliers(state.t, state.g, state.xi, u))

    def step(self, system, carry: RungeKuttaCarry, h, u=None) -> tuple[RungeKuttaCarry, StepInfo]:
        def field(share, slope):
            g, xi = jax.tree.map(lambda y, k: y + share * h * k, (carry.g, carry.xi), slope)
            return derivative(system, carry.t + share * h, g, xi, u)

        k1 = derivative(system, carry.t, carry.g, carry.xi, u)
        k2 = field(0.5, k1)
        k3 = field(0.5, k2)
        k4 = field(1.0, k3)
        g, xi = jax.tree.map(
            lambda y, a, b, c, d: y + h / 6 * (a + 2 * b + 2 * c + d), (carry.g, carry.xi), k1, k2, k3, k4
        )
        return RungeKuttaCarry(carry.t + h, g, xi), fine(system.multipliers(carry.t + h, g, xi, u))

    def observe(self, system, carry: RungeKuttaCarry, h) -> State:
        return State(carry.t, carry.g, carry.xi, system.momentum(carry.t, carry.g, carry.xi), carry.xi)


def derivative(system: MechanicalSystem, t, g, xi, u) -> tuple[Any, Array]:
    """(g', xi') of the ODE on D."""
    return system.group.tangent(g, xi), system.acceleration(t, g, xi, u)[0]


ONTO = ("constraint", "energy")


class ProjectedCarry(NamedTuple):
    """The state with the energy it is held to."""

    t: Array
    g: Any
    xi: Array
    energy: Array
    prediction: Prediction  # of the scale of the velocity


@dataclass(frozen=True)
class ProjectedRungeKutta(Integrator):
    """The classical Runge-Kutta step, then back to the group, phi = 0 and D; order 4, not symmetric (Hairer, Lubich, Wanner IV.4).

    `onto` = "energy" also moves (g, xi) down the gradient, g tau((z - 1) M^-1 E_g) and z xi, to the energy of the start: only for
    autonomous systems without forces.
    """

    onto: str = "constraint"
    name = "projected-runge-kutta"
    composes = True

    def __post_init__(self):
        if self.onto not in ONTO:
            raise InvalidInput(f"onto is {self.onto!r}; allowed: {', '.join(ONTO)}")

    def claims(self, system) -> Claims:
        return Claims(4, constraint=True, group=True, energy=self.onto == "energy" and conservative(system))

    def start(self, system, state: State, h, u=None) -> tuple[ProjectedCarry, StepInfo]:
        energy = system.energy(state.t, state.g, state.xi)
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        return ProjectedCarry(state.t, state.g, state.xi, energy, Prediction.at(jnp.ones(1))), fine(multipliers)

    def step(self, system: MechanicalSystem, carry: ProjectedCarry, h, u=None) -> tuple[ProjectedCarry, StepInfo]:
        plain = RungeKutta()
        after, done = plain.step(system, plain.start(system, self.observe(system, carry, h), h, u)[0], h, u)
        near = after.g
        for _ in range(3):  # a Newton step each: Runge-Kutta leaves the group by more than round-off
            near = system.group.normalise(near)
        g = system.project_configuration(near, after.t)
        if self.onto == "constraint":
            xi = system.project(g, after.xi, after.t)
            return carry._replace(t=after.t, g=g, xi=xi), done
        slope = -solve(kinetic(system, after.t, g), system.L_g(after.t, g, jnp.zeros_like(after.xi)))

        def moved(z):
            there = system.group.compose(g, system.group.cayley((z - 1.0) * slope))
            return there, system.project(there, z * after.xi, after.t)

        def excess(z):
            """The last term is below round-off, but keeps the equation regular at rest in an equilibrium."""
            return (system.energy(after.t, *moved(z[0])) - carry.energy + 2.0**-60 * (z[0] - 1.0))[None]

        root = carry.prediction.solve(excess)
        g, xi = moved(root.x[0])
        new = ProjectedCarry(after.t, system.group.normalise(g), xi, carry.energy, Prediction.at(jnp.ones(1)))
        return new, info(carry.prediction, root, system.multipliers(after.t, g, xi, u))

    def observe(self, system, carry: ProjectedCarry, h) -> State:
        return State(carry.t, carry.g, carry.xi, system.momentum(carry.t, carry.g, carry.xi), carry.xi)


SMALLEST, LARGEST, SAFETY = 1.0 / 3.0, 6.0, 0.9  # of a step against the one before (Hairer, Norsett, Wanner, II.10)
LIMIT = 100_000  # substeps within one step
TINY = 2.0**-46  # a substep below this share of the step has left the domain


@cache
def tableau() -> tuple[np.ndarray, ...]:
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


class _Substeps(NamedTuple):
    """Within a step: the time done, the state there, the next substep, substeps tried, and the last estimate of the error."""

    done: Array
    g: Any
    xi: Array
    substep: Array
    tried: Array
    error: Array


@dataclass(frozen=True)
class DormandPrince(Integrator):
    """Explicit, order 8, in substeps that keep the estimated error of each below `tolerance` (1 + |y|); g and xi are put back onto G and D.

    The pair of Dormand and Prince with the estimates of Hairer and Wanner (DOP853; Hairer, Norsett, Wanner II.10) on g' = g xi,
    xi' = acceleration. Neither symmetric nor variational: for accurate motions of moderate length, not for long-time statistics.
    `iterations` counts the substeps.
    """

    tolerance: float = 1e-10
    name = "dormand-prince"

    def __post_init__(self):
        if isinstance(self.tolerance, bool) or not (1e-15 <= self.tolerance <= 0.1):
            raise InvalidInput(f"tolerance is {self.tolerance!r}; allowed: 1e-15 to 0.1")

    def claims(self, system) -> Claims:
        return Claims(
            None, constraint=True, group=True, condition="accurate to `tolerance` a substep, whatever the step"
        )

    def start(self, system, state: State, h, u=None) -> tuple[DormandPrinceCarry, StepInfo]:
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        return DormandPrinceCarry(state.t, state.g, state.xi, jnp.zeros(())), fine(multipliers)

    def step(
        self, system: MechanicalSystem, carry: DormandPrinceCarry, h, u=None
    ) -> tuple[DormandPrinceCarry, StepInfo]:
        first = jnp.where(carry.substep == 0.0, 0.1 * h, jnp.sign(h) * jnp.abs(carry.substep))

        def unfinished(s: _Substeps) -> Array:
            return (s.done != h) & (s.tried < LIMIT) & (jnp.abs(s.substep) > TINY * jnp.abs(h))

        def body(s: _Substeps) -> _Substeps:
            left = h - s.done
            last = jnp.abs(s.substep) >= 0.999 * jnp.abs(left)
            k = jnp.where(last, left, s.substep)
            g, xi, error = self._substep(system, carry.t + s.done, s.g, s.xi, k, u)
            good = error <= 1.0
            grown = jnp.clip(SAFETY / jnp.sqrt(jnp.sqrt(jnp.sqrt(error + 1e-30))), SMALLEST, LARGEST)
            share = jnp.where(jnp.isfinite(error), jnp.where(good, grown, jnp.minimum(grown, 1.0)), SMALLEST)
            substep = jnp.where(last & good & (jnp.abs(share * k) < jnp.abs(s.substep)), s.substep, share * k)
            g, xi = jax.tree.map(lambda new, old: jnp.where(good, new, old), (g, xi), (s.g, s.xi))
            done = jnp.where(good, jnp.where(last, h, s.done + k), s.done)
            return _Substeps(done, g, xi, substep, s.tried + 1.0, error)

        zero = jnp.zeros(())
        s = jax.lax.while_loop(unfinished, body, _Substeps(zero, carry.g, carry.xi, first, zero, zero))
        t = carry.t + h
        status = jnp.where(s.done == h, OK, jnp.where(s.tried < LIMIT, NOT_FINITE, NOT_CONVERGED))
        multipliers = system.multipliers(t, s.g, s.xi, u)
        return DormandPrinceCarry(t, s.g, s.xi, s.substep), StepInfo(
            self.tolerance * s.error, s.tried, status, multipliers
        )

    def _substep(self, system: MechanicalSystem, t, g, xi, k, u) -> tuple[Any, Array, Array]:
        """(g, xi, error) after one substep k; the error in units of the tolerance."""
        A, b, c, fifth, third = tableau()
        group, tau, n = system.group, Cayley(), system.group.dim
        slopes: list[Array] = []

        @jax.jit  # traced once, not at every stage
        def field(s, y):
            """(x', xi') of the configuration g tau(x) and its velocity."""
            x, v = y[:n], y[n:]
            rate = system.acceleration(s, group.compose(g, tau.tau(group, x)), v, u)[0]
            return jnp.concatenate([tau.left_inverse(group, x, v), rate])

        def combined(weights):
            return sum(float(w) * slope for w, slope in zip(weights, slopes, strict=False) if w != 0.0)

        y = jnp.concatenate([jnp.zeros(n), xi])
        for i, node in enumerate(c):
            slopes.append(field(t + float(node) * k, y + k * combined(A[i])))
        new = y + k * combined(b)
        size = 1.0 + jnp.maximum(jnp.abs(y), jnp.abs(new))
        five, three = (jnp.sum((combined(weights) / size) ** 2) for weights in (fifth, third))
        norm = jnp.sqrt((five + 0.01 * three + 1e-300) * y.size)
        g = group.normalise(group.compose(g, tau.tau(group, new[:n])))
        return g, system.project(g, new[n:], t + k), jnp.abs(k) * five / norm / self.tolerance

    def observe(self, system, carry: DormandPrinceCarry, h) -> State:
        return State(carry.t, carry.g, carry.xi, system.momentum(carry.t, carry.g, carry.xi), carry.xi)


@final
@dataclass(frozen=True)
class Reference(DormandPrince):
    """`DormandPrince` at a tolerance near round-off: the accurate motion that the other methods are compared with.

    `scipy_motion` gives the same motion by SciPy, independent of our steps and kernels.
    """

    tolerance: float = 1e-13
    name = "reference"

    def claims(self, system) -> Claims:
        return Claims(None, condition="all other methods are measured against it")

    def trajectory(self, system: MechanicalSystem, state: State, times: np.ndarray, controls=None) -> list[State]:
        return scipy_motion(system, state, times, controls, self.tolerance)

    def flow(self, system: MechanicalSystem, like: State) -> Callable[[State, float, Any], State]:
        def flow(state: State, t: float, u=None) -> State:
            controls = None if u is None else jax.tree.map(lambda leaf: leaf[None], u)
            found = scipy_motion(system, state, np.array([float(state.t), t]), controls, self.tolerance)
            if len(found) < 2:
                raise NumericalFailure(f"DOP853 could not pass from t={state.t} to t={t}")
            return found[-1]

        return flow


@partial(jax.jit, static_argnames="restore")
def _flat_derivative(
    system: MechanicalSystem, restore: Callable[[Array], Any], t: Array, y: Array, u: Controls
) -> Array:
    return ravel_pytree(derivative(system, t, *restore(y), u))[0]


def scipy_motion(
    system: MechanicalSystem, state: State, times: ArrayLike, controls: Controls = None, tolerance: float = 1e-13
) -> list[State]:
    """The states at `times` by SciPy's DOP853 on g' = g xi, xi' = acceleration, for independent checks of our methods.

    The first time is that of `state`. The list ends early where the motion cannot be continued. Row k of `controls` is held
    from times[k] to times[k + 1]. `tolerance` is the relative and the absolute one.
    """
    from scipy.integrate import solve_ivp

    values, restore = ravel_pytree((state.g, state.xi))
    stamps = np.asarray(times, float)

    def observed(t: float, y: Array) -> State:
        g, xi = restore(jnp.asarray(y))
        return State(jnp.asarray(t), g, xi, system.momentum(t, g, xi), xi)

    y, states = np.asarray(values), [observed(stamps[0], values)]
    for k, span in enumerate(itertools.pairwise(stamps)):
        u = jax.tree.map(lambda leaf: leaf[k], controls)
        field = lambda t, y, u=u: np.asarray(_flat_derivative(system, restore, t, y, u))
        found = solve_ivp(field, span, y, "DOP853", rtol=tolerance, atol=tolerance)
        y = found.y[:, -1]
        if not found.success or not np.all(np.isfinite(y)):
            break
        states.append(observed(span[1], y))
    return states
