"""Methods of higher order by composition: several steps of a symmetric method, or of a method and its adjoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..errors import InvalidInput, UnknownName
from ..system import State
from .base import EXACT, OK, Claims, Integrator, Prediction, StepInfo
from .claims import conservative
from .lagrange_dalembert import LagrangeDAlembert

# The first halves of symmetric sequences, to the digits of their sources; the middle coefficient makes the sum 1.
HALVES: dict[str, tuple[int, tuple[float, ...]]] = {
    # order 4: Yoshida, Phys. Lett. A 150 (1990), and Suzuki, Phys. Lett. A 146 (1990), in closed form
    "yoshida-4": (4, (1 / (2 - 2 ** (1 / 3)),)),
    "suzuki-4": (4, (1 / (4 - 4 ** (1 / 3)),) * 2),
    # order 6: Yoshida 1990, solution A; Kahan and Li, Math. Comp. 66 (1997), 9 stages
    "yoshida-6": (6, (0.78451361047755726381949763, 0.23557321335935813368479318, -1.17767998417887100694641568)),
    "kahan-li-6": (
        6,
        (0.39216144400731413927925056, 0.33259913678935943859974864, -0.70624617255763935980996482, 0.08221359629355080023149045),
    ),
    # order 8: Suzuki and Umeno 1993, 15 stages; Kahan and Li 1997, 17 stages
    "suzuki-umeno-8": (
        8,
        (
            0.74167036435061295344822780, -0.40910082580003159399730010, 0.19075471029623837995387626,
            -0.57386247111608226665638773, 0.29906418130365592384446354, 0.33462491824529818378495798,
            0.31529309239676659663205666,
        ),
    ),
    "kahan-li-8": (
        8,
        (
            0.13020248308889008087881763, 0.56116298177510838456196441, -0.38947496264484728640807860,
            0.15884190655515560089621075, -0.39590389413323757733623154, 0.18453964097831570709183254,
            0.25837438768632204729397911, 0.29501172360931029887096624,
        ),
    ),
    # order 10: Sofroniou and Spaletta 2005, 35 stages
    "sofroniou-spaletta-10": (
        10,
        (
            0.07879572252168641926390768, 0.31309610341510852776481247, 0.02791838323507806610952027,
            -0.22959284159390709415121340, 0.13096206107716486317465686, -0.26973340565451071434460973,
            0.07497334315589143566613711, 0.11199342399981020488957508, 0.36613344954622675119314812,
            -0.39910563013603589787862981, 0.10308739852747107731580277, 0.41143087395589023782070412,
            -0.00486636058313526176219566, -0.39203335370863990644808194, 0.05194250296244964703718290,
            0.05066509075992449633587434, 0.04967437063972987905456880,
        ),
    ),
}  # fmt: skip


def coefficients(scheme: str) -> tuple[float, ...]:
    """gamma_1, ..., gamma_s of a symmetric composition: gamma_{s+1-i} = gamma_i, and their sum is 1."""
    if scheme not in HALVES:
        raise UnknownName("composition", scheme, HALVES)
    half = HALVES[scheme][1]
    return (*half, 1.0 - 2.0 * sum(half), *reversed(half))


class Carry(NamedTuple):
    """The carry of the base method, and for each stage where its own iteration starts."""

    t: Array
    inner: Any
    stages: tuple[Prediction, ...]

    @property
    def g(self) -> Any:
        return self.inner.g


@dataclass(frozen=True)
class Composition(Integrator):
    """Phi_{gamma_s h} o ... o Phi_{gamma_1 h} of a symmetric method Phi (Hairer-Lubich-Wanner V.3), of order 4, 6, 8 or 10.

    A method that is not symmetric takes its steps in halves, Phi_{gamma h/2} o Phi*_{gamma h/2}, with its adjoint Phi*.
    The base is the Lagrange-d'Alembert method of `retraction` and `node`, or any `base` whose carry does not depend on
    the step. D is kept as the base keeps it. The multipliers are those of the equations of motion at the end of the step.
    """

    scheme: str = "kahan-li-6"
    node: float = 0.5
    base: Integrator | None = None
    name = "composition"
    composes = True

    def __post_init__(self):
        coefficients(self.scheme)
        if not self.method.composes:
            raise InvalidInput(
                f"{self.method!r} cannot be composed: what it carries from step to step depends on the size of the step. "
                "Allowed: lagrange-dalembert (original nodes), retraction-adapted, discrete-gradient, gauss and the splittings "
                "of a rigid body"
            )
        if self.method.adjoint() is None:
            raise InvalidInput(f"{self.method!r} has no adjoint here: compose a symmetric method")

    @cached_property
    def method(self) -> Integrator:
        """The method that is composed."""
        return LagrangeDAlembert(node=self.node) if self.base is None else self.base

    def claims(self, system) -> Claims:
        base = self.method.claims(system)
        return replace(
            base,
            order=EXACT if base.order == EXACT else self.order,
            symmetric=True,
            reversible=conservative(system),
            condition="what the base keeps",
        )

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
            return tuple((self.method, gamma) for gamma in coefficients(self.scheme))
        return tuple((each, gamma / 2) for gamma in coefficients(self.scheme) for each in (adjoint, self.method))

    def start(self, system, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        inner, info = self.method.start(system, state, h, u)
        prediction = getattr(inner, "prediction", None)
        return Carry(state.t, inner, () if prediction is None else (prediction,) * len(self.substeps)), info

    def step(self, system, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        inner, stages, infos = carry.inner._replace(t=carry.t), [], []
        once = {method: jax.jit(method.step) for method, _ in self.substeps}  # traced once, not at every stage
        for i, (method, share) in enumerate(self.substeps):
            if carry.stages:
                inner = inner._replace(prediction=carry.stages[i])
            inner, info = once[method](system, inner, share * h, u)
            stages += [inner.prediction] if carry.stages else []
            infos.append(info)
        seen = self.method.observe(system, inner, h)
        multipliers = system.multipliers(seen.t, seen.g, seen.xi, u)
        return Carry(carry.t + h, inner, tuple(stages)), _together(infos)._replace(multipliers=multipliers)

    def observe(self, system, carry: Carry, h) -> State:
        return self.method.observe(system, carry.inner, h)

    def require(self, system, state: State, h: float) -> None:
        self.method.require(system, state, h)

    def adjoint(self) -> Composition:
        return self


def _together(infos: list[StepInfo]) -> StepInfo:
    """The worst residual, all iterations and the first failure of the stages."""
    status = infos[0].status
    for each in infos[1:]:
        status = jnp.where(status == OK, each.status, status)
    residual = jnp.max(jnp.stack([each.residual for each in infos]))
    return infos[-1]._replace(residual=residual, iterations=jnp.sum(jnp.stack([each.iterations for each in infos])), status=status)
