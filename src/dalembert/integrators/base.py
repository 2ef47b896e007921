"""What an integrator is: start, step and observe, pure functions on small arrays that any backend can compile.

What keeps round-off from adding up over many steps: without these it grows in proportion to their number, not to its root.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..mechanics import State
from ..numerics import Root, find_root

OK, NOT_CONVERGED, BRANCH_LOST, NOT_FINITE = range(4)
REASONS = {
    OK: "",
    NOT_CONVERGED: "no solution: the step is too large for this state",
    BRANCH_LOST: "branch lost: the branch of solutions that the run follows ends before this step; take a smaller one",
    NOT_FINITE: "the step produced numbers that are not finite: the motion left the domain of the system",
}


DEGREE = 7
FEW = 2
"""Unknowns whose iteration costs less than a higher degree would save."""


EXACT = math.inf
"""The order of a method that is the flow itself."""

MEANINGS = {
    "symmetric": "a step of h, then one of -h, leads back",
    "reversible": "with all velocities turned round, the same steps lead back",
    "constraint": "velocities stay on D to round-off",
    "group": "configurations stay on the group to round-off",
    "energy": "the energy is kept to the accuracy of the solver",
    "momentum": "momentum maps of symmetries in D are kept (Noether)",
    "symplectic": "the step is a symplectic map (no constraints, no forces)",
}


@dataclass(frozen=True)
class Claims:
    """The claims of one method, with its options, on one system. What is not claimed may hold all the same.

    `order` is that of configurations and velocities at the end of a fixed time: `EXACT`, or None where a tolerance takes its place;
    `velocity_order` that of velocities where it is another. `condition` says in words what the claims rest on.
    """

    order: float | None
    symmetric: bool = False
    reversible: bool = False
    constraint: bool = False
    group: bool = False
    energy: bool = False
    momentum: bool = False
    symplectic: bool = False
    velocity_order: float | None = None
    condition: str = ""

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the properties that are claimed."""
        return tuple(f.name for f in fields(self) if f.name in MEANINGS and getattr(self, f.name))

    def text(self) -> str:
        """One line: "order 2; symmetric, reversible; keeps constraint, group, energy"."""
        order = _order(self.order)
        if self.velocity_order is not None:
            order += f" (velocity: {_order(self.velocity_order).removeprefix('order ')})"
        shape = [name for name in self.kept if name in ("symmetric", "reversible", "symplectic")]
        keeps = [name for name in self.kept if name not in shape]
        parts = [order, ", ".join(shape), f"keeps {', '.join(keeps)}" if keeps else ""]
        return "; ".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.text()


def _order(order: float | None) -> str:
    if order is None:
        return "order by tolerance"
    return "exact" if order == EXACT else f"order {order:g}"


class StepInfo(NamedTuple):
    """How a step went: |residual| of its equations, Newton iterations, status code, and the multipliers of the constraint."""

    residual: Array
    iterations: Array
    status: Array
    multipliers: Array


class Integrator(ABC):
    """A one-step method. Its carry holds `t` and `g` beside what else it needs; failure is data in `StepInfo`.

    `start` and `step` return (carry, info); `start` solves what the first state needs, so it can fail too.
    """

    name: str
    composes = False  # whether the carry does not depend on the step, so that steps of other sizes may follow
    clock = False  # whether its steps differ in length: then the carry has the time, and the `size` of the last step

    def adjoint(self) -> Integrator | None:
        """The method whose step of h undoes a step of -h (itself if it is symmetric), where that is a method here."""
        return None

    @abstractmethod
    def start(self, system: Any, state: State, h: Any, u: Any = None) -> tuple[Any, StepInfo]:
        """The carry at `state`."""

    @abstractmethod
    def step(self, system: Any, carry: Any, h: Any, u: Any = None) -> tuple[Any, StepInfo]:
        """One step of size h under the control u."""

    @abstractmethod
    def observe(self, system: Any, carry: Any, h: Any) -> State:
        """The state that a carry stands for."""

    def reverse(self, system: Any, carry: Any, h: Any) -> Any:
        """The carry from which steps of -h go back; a method whose carry holds more than its state says how."""
        return self.start(system, self.observe(system, carry, h), -h)[0]

    def claims(self, system: Any) -> Claims:
        """What the method says of itself on a system that it takes; `make verify` measures it (docs/claims.md)."""
        raise NotImplementedError(
            f"{type(self).__name__} states no claims: give it `def claims(self, system) -> Claims` (integrators/claims.py)"
        )

    def require(self, system: Any, state: State, h: float) -> None:
        """Refuse, before anything runs, a system or state that this method cannot take."""
        system.require_admissible(state.t, state.g, state.xi)


class Prediction(NamedTuple):
    """Where Newton's iteration starts: a polynomial through the last solutions, and their branch's orientation (0: not known).

    By their backward differences: the parabola or, for more than two unknowns, the polynomial of degree 7 where that came nearer to the
    last solution (where the step resolves the motion, one iteration is then all a step takes).
    """

    x: Array
    differences: Array  # (degree, n), of the first order first
    smooth: Array  # 1.0 where the higher degree is the better one
    sign: Array

    @classmethod
    def at(cls, x: Array) -> Prediction:
        degree = DEGREE if x.shape[0] > FEW else 2
        return cls(x, jnp.zeros((degree, *x.shape)), jnp.zeros(()), jnp.zeros((), x.dtype))

    @property
    def _sums(self) -> Array:
        """Row k is the sum of the first k differences: what the polynomial of degree k adds to x."""
        degree = self.differences.shape[0]
        return jnp.asarray(np.tri(degree + 1, degree, -1)) @ self.differences

    @property
    def guess(self) -> Array:
        sums = self._sums
        return self.x + (sums[2] if len(sums) == 3 else jnp.where(self.smooth > 0.5, sums[-1], sums[2]))

    def solve(self, equations: Callable[[Array], Array], split: int | None = None) -> Root:
        """The root that continues this branch; `split` unknowns come before the multipliers of constraints."""
        return find_root(equations, self.guess, anchor=self.x, sign=self.sign, split=split)

    def advanced(self, root: Root) -> Prediction:
        new = root.x - self.x - self._sums  # row k is also how far the polynomial of degree k was off
        if len(new) == 3:
            return self._replace(x=root.x, differences=new[:-1], sign=root.sign)
        smooth = jnp.where(new[-1] @ new[-1] < new[2] @ new[2], 1.0, 0.0)
        return Prediction(root.x, new[:-1], smooth, root.sign)

    def status(self, root: Root) -> Array:
        """Whether the branch goes on: along it the Jacobian's determinant keeps its sign."""
        return jnp.where(root.converged, OK, jnp.where(self.sign == 0, NOT_CONVERGED, BRANCH_LOST))


def fine(multipliers: Array) -> StepInfo:
    """The info of a step that solves nothing."""
    return StepInfo(jnp.zeros(()), jnp.zeros(()), jnp.zeros((), int), multipliers)


def info(prediction: Prediction, root: Root, multipliers: Array) -> StepInfo:
    return StepInfo(root.residual, root.iterations, prediction.status(root).astype(int), multipliers)


def resized(rho: Array, square: Array) -> Array:
    """rho with |rho|^2 = `square`, which it has but for the round-off of frames: that would add up to a linear drift."""
    own = rho @ rho
    return rho + rho * (0.5 * (square - own) / jnp.where(own > 0.0, own, 1.0))


def added(total: Array, part: Array, lost: Array) -> tuple[Array, Array]:
    """(total + part, what that sum lost), with what the last one lost: compensated summation (Kahan 1965)."""
    part = part - lost
    new = total + part
    return new, (new - total) - part
