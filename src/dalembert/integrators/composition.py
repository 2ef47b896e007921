"""Methods made of the steps of another method: compositions of high order, and reversible control of the step size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, require_name
from ..kernels import as_routine, evaluate
from ..mechanics import MechanicalSystem, State
from ..numerics import own_value, require_instance, solve
from ..numerics.types import Array, Controls, Element, Scalar, Velocity
from .base import EXACT, NOT_CONVERGED, OK, Claims, Integrator, Prediction, Result, StepInfo, add_compensated
from .lagrange_dalembert import LagrangeDAlembert
from .properties import is_conservative
from .registry import register

# The first halves of symmetric sequences, to the digits of their sources; the middle coefficient makes the sum 1.
HALVES: dict[str, tuple[int, tuple[float, ...]]] = {
    # order 4: Yoshida, Phys. Lett. A 150 (1990), and Suzuki, Phys. Lett. A 146 (1990), in closed form
    "yoshida-4": (4, (1 / (2 - 2 ** (1 / 3)),)),
    "suzuki-4": (4, (1 / (4 - 4 ** (1 / 3)),) * 2),
    # order 6: Yoshida 1990, solution A; Kahan and Li, Math. Comp. 66 (1997), 9 stages
    "yoshida-6": (6, (0.78451361047755726381949763, 0.23557321335935813368479318, -1.17767998417887100694641568)),
    "kahan-li-6": (6, (
            0.39216144400731413927925056, 0.33259913678935943859974864, -0.70624617255763935980996482,
            0.08221359629355080023149045,
    )),
    # order 8: Suzuki and Umeno 1993, 15 stages; Kahan and Li 1997, 17 stages
    "suzuki-umeno-8": (8, (
            0.74167036435061295344822780, -0.40910082580003159399730010, 0.19075471029623837995387626,
            -0.57386247111608226665638773, 0.29906418130365592384446354, 0.33462491824529818378495798,
            0.31529309239676659663205666,
    )),
    "kahan-li-8": (8, (
            0.13020248308889008087881763, 0.56116298177510838456196441, -0.38947496264484728640807860,
            0.15884190655515560089621075, -0.39590389413323757733623154, 0.18453964097831570709183254,
            0.25837438768632204729397911, 0.29501172360931029887096624,
    )),
    # order 10: Sofroniou and Spaletta 2005, 35 stages
    "sofroniou-spaletta-10": (10, (
            0.07879572252168641926390768, 0.31309610341510852776481247, 0.02791838323507806610952027,
            -0.22959284159390709415121340, 0.13096206107716486317465686, -0.26973340565451071434460973,
            0.07497334315589143566613711, 0.11199342399981020488957508, 0.36613344954622675119314812,
            -0.39910563013603589787862981, 0.10308739852747107731580277, 0.41143087395589023782070412,
            -0.00486636058313526176219566, -0.39203335370863990644808194, 0.05194250296244964703718290,
            0.05066509075992449633587434, 0.04967437063972987905456880,
    )),
}  # fmt: skip


def scheme_coefficients(scheme: str) -> tuple[float, ...]:
    """gamma_1, ..., gamma_s of a symmetric composition: gamma_{s+1-i} = gamma_i, and their sum is 1."""
    require_name("composition", scheme, HALVES)
    half = HALVES[scheme][1]
    return (*half, 1.0 - 2.0 * sum(half), *reversed(half))


class CompositionCarry(NamedTuple):
    """The carry of the base method, and for each stage where its own iteration starts."""

    t: Array
    inner: Any
    stages: tuple[Prediction, ...]

    @property
    def g(self) -> Element:
        return self.inner.g


@register(
    words="Combines several forward and backward steps of a simple method into one of high order.",
    use_when="the order must be high and there are forces or holonomic constraints",
)
@dataclass(frozen=True)
class Composition(Integrator):
    """Raise the order of a method to 4, 6, 8 or 10 by taking several of its steps, some of them backwards.

    A step is Phi_{gamma_s h} o ... o Phi_{gamma_1 h} with the coefficients gamma of the `scheme` (Hairer, Lubich,
    Wanner V.3); a method that is not symmetric takes each in halves, Phi_{gamma h/2} o Phi*_{gamma h/2}, Phi* its
    adjoint. The base is the Lagrange-d'Alembert method of `retraction` and `node`, or any `base` whose carry does not
    depend on the step. D holds as it does for the base. Multipliers are those of the equations of motion at the end.
    """

    scheme: str = "kahan-li-6"
    node: float | int = 0.5
    base: Integrator | None = None
    name = "composition"
    carry_is_step_free = self_adjoint = True

    def __post_init__(self) -> None:
        scheme_coefficients(self.scheme)
        require_instance("base", self.method, Integrator, "a method, such as Gauss()")
        if not self.method.carry_is_step_free:
            raise InvalidInput(
                f"{self.method!r} cannot be composed: what it carries from step to step depends on the size of the "
                "step. Allowed: lagrange-dalembert (original nodes), retraction-adapted, discrete-gradient, gauss and "
                "the splittings of a rigid body"
            )
        if self.method.adjoint() is None:
            raise InvalidInput(f"{self.method!r} has no adjoint here: compose a symmetric method")

    @cached_property
    def method(self) -> Integrator:
        """The method that is composed."""
        return LagrangeDAlembert(node=self.node) if self.base is None else self.base

    def claims(self, system: MechanicalSystem) -> Claims:
        base = self.method.claims(system)
        order, still = EXACT if base.order == EXACT else self.order, is_conservative(system)
        return replace(base, order=order, symmetric=True, reversible=still, condition="what the base conserves")

    @property
    def order(self) -> int:
        """The order of the scheme, which the composed method has."""
        return HALVES[self.scheme][0]

    @cached_property
    def substeps(self) -> tuple[tuple[Integrator, float], ...]:
        """(method, share of h) of every stage, in the order in which they are done."""
        adjoint = self.method.adjoint()
        assert adjoint is not None
        if adjoint == self.method:
            return tuple((self.method, gamma) for gamma in scheme_coefficients(self.scheme))
        return tuple((each, gamma / 2) for gamma in scheme_coefficients(self.scheme) for each in (adjoint, self.method))

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[CompositionCarry]:
        inner, info = self.method.start(system, state, h, u)
        prediction = getattr(inner, "prediction", None)
        stages = () if prediction is None else (prediction,) * len(self.substeps)
        return CompositionCarry(state.t, inner, stages), info

    def step(
        self, system: MechanicalSystem, carry: CompositionCarry, h: Scalar, u: Controls = None
    ) -> Result[CompositionCarry]:
        inner, stages, infos = carry.inner._replace(t=carry.t), [], []
        once = {method: as_routine(method.step) for method, _ in self.substeps}  # traced once, not at every stage
        for i, (method, share) in enumerate(self.substeps):
            if carry.stages:
                inner = inner._replace(prediction=carry.stages[i])
            inner, info = once[method](system, inner, share * h, u)
            stages += [inner.prediction] if carry.stages else []
            infos.append(info)
        # The worst residual, all iterations and the first failure of the stages
        residuals, iterations, statuses, _ = zip(*infos, strict=True)
        status = reduce(lambda first, later: jnp.where(first == OK, later, first), statuses)
        multipliers = StepInfo.at(system, self.method.observe(system, inner, h), u).multipliers
        info = StepInfo(jnp.max(jnp.stack(residuals)), jnp.sum(jnp.stack(iterations)), status, multipliers)
        return CompositionCarry(carry.t + h, inner, tuple(stages)), info

    def observe(self, system: MechanicalSystem, carry: CompositionCarry, h: Scalar) -> State:
        return self.method.observe(system, carry.inner, h)

    @property
    def checks_numbers_of(self) -> Literal["nothing", "system", "start"]:
        return self.method.checks_numbers_of

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        self.method.require(system, state, h)


Pace = Callable[[MechanicalSystem, Scalar, Element, Velocity], Array]


def arclength_pace(system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity) -> Array:
    """(|xi|^2 + |xi'|^2)^-1/2: one length in phase space (Huang, Leimkuhler 1997). Infinite only in equilibrium."""
    rate, metric = system.acceleration(t, g, xi)[0], system.metric(t, g, xi)
    return (xi @ metric @ xi + rate @ metric @ rate) ** -0.5


def acceleration_pace(system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity) -> Array:
    """|xi'|^-1/2: steps that change the velocity by as much as they move. Infinite where nothing turns or pulls."""
    rate = system.acceleration(t, g, xi)[0]
    return (rate @ system.metric(t, g, xi) @ rate) ** -0.25


def speed_pace(system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity) -> Array:
    """|xi|^-1: steps of one length in the kinetic metric. Infinite at rest, so not for motions that come to rest."""
    return (xi @ system.metric(t, g, xi) @ xi) ** -0.5


def potential_gradient_pace(system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity) -> Array:
    """|dV|^-1/2 in the dual metric: "acceleration" for bodies that a potential drives, cheaper. Infinite at dV = 0."""
    slope = system.L_g(t, g, jnp.zeros_like(xi))
    return (slope @ solve(system.metric(t, g, xi), slope)) ** -0.25


PACES: dict[str, Pace] = {
    "arclength": arclength_pace,
    "acceleration": acceleration_pace,
    "speed": speed_pace,
    "potential-gradient": potential_gradient_pace,
}


class AdaptiveCarry(NamedTuple):
    """The carry of the base method, the density rho of steps with its slope, the size of the last step, what t lost."""

    t: Array
    inner: Any
    density: Array
    slope: Array
    size: Array
    lost: Array

    @property
    def g(self) -> Element:
        return self.inner.g


@register(
    words="Takes smaller steps where the motion is fast, and stays reversible.",
    use_when="the time scales of the motion differ by more than a factor of ten",
)
@dataclass(frozen=True)
class Adaptive(Integrator):
    """Make the steps of a method smaller where the motion is fast and larger where it is slow, and keep it symmetric.

    The integrating controller of Hairer and Soderlind (2005): rho_{n+1/2} = rho_n + eps G(z_n)/2, a step of size
    eps/rho_{n+1/2}, rho_{n+1} = rho_{n+1/2} + eps G(z_{n+1})/2, with rho = 1 at the start; eps is the step that a run
    is given. G = -Q'/Q along the motion for the `pace` Q(system, t, g, xi) > 0, a function or a name of `PACES`, so
    that steps are eps Q/Q(0). Steps of -eps go back over the same points, and a reversible method stays reversible. The
    order in eps is that of the `base` (Lagrange-d'Alembert at node 1/2 unless given), whose carry must not depend on
    the step.
    """

    pace: str | Pace = "arclength"
    base: Integrator | None = None
    name = "adaptive"
    variable_step = self_adjoint = True

    def __post_init__(self) -> None:
        if not callable(self.pace):
            require_name("pace", self.pace, PACES)
        require_instance("base", self.method, Integrator, "a method, such as Gauss()")
        if not (self.method.carry_is_step_free and self.method.adjoint() == self.method):
            raise InvalidInput(
                f"{self.method!r} cannot have reversible steps: that needs a symmetric method whose carry does not "
                "depend on the step. Allowed: lagrange-dalembert (node 1/2, original nodes), retraction-adapted "
                "(node 1/2), discrete-gradient, gauss, the splittings of a rigid body, and compositions of these"
            )

    @cached_property
    def method(self) -> Integrator:
        """The method whose steps vary."""
        return LagrangeDAlembert() if self.base is None else self.base

    @partial(jax.jit, static_argnums=0)
    def quotient(self, system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity) -> Array:
        """Q: what the size of steps is in proportion to."""
        if isinstance(self.pace, str):
            return PACES[self.pace](system, t, g, xi)
        return own_value("pace(system, t, g, xi)", self.pace, system, t, g, xi)

    def claims(self, system: MechanicalSystem) -> Claims:
        condition = "the order is in eps, at the run's own times; steps that vary are not symplectic"
        return replace(self.method.claims(system), symplectic=False, condition=condition)

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[AdaptiveCarry]:
        inner, info = self.method.start(system, state, h, u)
        size = jnp.asarray(h, float)
        slope = self._slope(system, inner, size, u)
        return AdaptiveCarry(state.t, inner, jnp.ones(()), slope, size, jnp.zeros(())), info

    def step(
        self, system: MechanicalSystem, carry: AdaptiveCarry, h: Scalar, u: Controls = None
    ) -> Result[AdaptiveCarry]:
        # The slope at a node belongs to the control of the step on either side of it
        before = carry.slope if u is None else self._slope(system, carry.inner, carry.size, u)
        density = carry.density + 0.5 * h * before
        positive = density > 0.0
        size = h / jnp.where(positive, density, 1.0)
        inner, info = self.method.step(system, carry.inner, size, u)
        t, lost = add_compensated(carry.t, size, carry.lost)
        inner = inner._replace(t=t)
        after = self._slope(system, inner, size, u)
        new = AdaptiveCarry(t, inner, density + 0.5 * h * after, after, size, lost)
        return new, info._replace(status=jnp.where(positive, info.status, NOT_CONVERGED))

    def _slope(self, system: MechanicalSystem, inner: Any, size: Scalar, u: Controls) -> Array:
        """G = -d log Q/dt along the equations of motion."""
        state = self.method.observe(system, inner, size)
        rate = system.acceleration(state.t, state.g, state.xi, u)[0]

        def logarithm(s: Array) -> Array:
            moved = state.t + s, system.group.shift(state.g, s * state.xi), state.xi + s * rate
            return jnp.log(self.quotient(system, *moved))

        slope: Array = jax.jvp(logarithm, (0.0,), (1.0,))[1]
        return -slope

    def observe(self, system: MechanicalSystem, carry: AdaptiveCarry, h: Scalar) -> State:
        return self.method.observe(system, carry.inner, carry.size)

    def reverse(self, system: MechanicalSystem, carry: AdaptiveCarry, h: Scalar) -> AdaptiveCarry:
        """Back from the same density."""
        return carry._replace(inner=self.method.reverse(system, carry.inner, carry.size))

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        self.method.require(system, state, h)
        pace = float(evaluate(_quotient_of(self), system, (state.t, state.g, state.xi)))
        if not (np.isfinite(pace) and pace > 0.0):
            raise InvalidInput(
                f"the pace {self.pace!r} is {pace} at the initial state; allowed: a positive number. Of the named ones "
                '"speed" needs a velocity, "acceleration" an acceleration, "potential-gradient" a potential, '
                '"arclength" any of these'
            )


@lru_cache(maxsize=64)  # the same function every time, so that compiled programs are found again
def _quotient_of(method: Adaptive) -> Callable[[MechanicalSystem, tuple[Scalar, Element, Velocity]], Array]:
    def quotient(system: MechanicalSystem, point: tuple[Scalar, Element, Velocity]) -> Array:
        found: Array = method.quotient(system, *point)
        return found

    return quotient
