"""What an integrator is, and what methods share.

An integrator has three pure functions on small arrays, which any back end can compile: `start`, `step` and `observe`.
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..groups import Cayley, Retraction
from ..mechanics import FiniteDifference, MechanicalSystem, State
from ..numerics import (
    Root,
    call_own,
    find_root,
    finite,
    html_table,
    is_traced,
    not_zero,
    read_reals,
    require_instance,
    show,
)
from ..numerics.types import Array, Controls, Element, Float, Scalar, Velocity

OK, NOT_CONVERGED, BRANCH_LOST, NOT_FINITE, OFF_CONSTRAINT = range(5)
REASONS = {
    OK: "",
    NOT_CONVERGED: "no solution: the step is too large for this state",
    BRANCH_LOST: "branch lost: the branch of solutions that the run follows ends before this step; take a smaller one",
    NOT_FINITE: "the step produced numbers that are not finite: the motion left the domain of the system",
    OFF_CONSTRAINT: "the initial state is off the constraint or off the group; inside jit, grad and vmap, where its "
    "numbers are not known, it is not refused: project it there, system.state(..., project=True)",
}
EXACT = math.inf  # the order of a method that is the flow itself
MEANINGS = {
    "symmetric": "a step of h, then one of -h, leads back",
    "reversible": "with all velocities turned round, the same steps lead back",
    "constraint": "velocities stay on D to round-off",
    "group": "configurations stay on the group to round-off",
    "energy": "the energy is conserved to the accuracy of the solver",
    "momentum": "momentum maps of symmetries in D are conserved (Noether)",
    "symplectic": "the step is a symplectic map (no constraints, no forces)",
}
PREDICTION_DEGREE = 7
MAX_PARABOLA_UNKNOWNS = 2  # up to so many unknowns an iteration costs less than a higher degree would save


@dataclass(frozen=True)
class Claims:
    """What a method claims on one system: its order, symmetry, and what it conserves. More may hold than is claimed.

    `order` is that of configurations and velocities at the end of a fixed time: `EXACT`, or None where a tolerance
    takes its place. `velocity_order` is that of velocities where it differs. `condition` says what the claims rest on.
    """

    order: float | int | None
    symmetric: bool = False
    reversible: bool = False
    constraint: bool = False
    group: bool = False
    energy: bool = False
    momentum: bool = False
    symplectic: bool = False
    velocity_order: float | int | None = None
    condition: str = ""

    @property
    def property_names(self) -> tuple[str, ...]:
        """The names of the properties that are claimed."""
        return tuple(f.name for f in fields(self) if f.name in MEANINGS and getattr(self, f.name))

    def text(self) -> str:
        """One line: "order 2; symmetric, reversible; keeps constraint, group, energy"."""
        order = _order_in_words(self.order)
        if self.velocity_order is not None:
            order += f" (velocity: {_order_in_words(self.velocity_order).removeprefix('order ')})"
        shape = [name for name in self.property_names if name in ("symmetric", "reversible", "symplectic")]
        keeps = [name for name in self.property_names if name not in shape]
        parts = [order, ", ".join(shape), f"keeps {', '.join(keeps)}" if keeps else ""]
        return "; ".join(part for part in parts if part)

    __str__ = text


def _order_in_words(order: float | int | None) -> str:
    if order is None:
        return "order by tolerance"
    return "exact" if order == EXACT else f"order {order:g}"


class Prediction(NamedTuple):
    """Where Newton's iteration starts: a polynomial through the last solutions, and the orientation of their branch.

    The polynomial is given by backward differences. It is the parabola or, for more than two unknowns, the polynomial
    of degree 7 where that came nearer to the last solution. Where the step resolves the motion, one iteration is then
    enough.
    """

    x: Array
    differences: Array  # (degree, n), of the first order first
    smooth: Array  # 1.0 where the higher degree is the better one
    sign: Array  # of the Jacobian's determinant; 0: not known

    @classmethod
    def at(cls, x: Float[Array, " n"]) -> Prediction:
        """The prediction after one solution."""
        degree = PREDICTION_DEGREE if x.shape[0] > MAX_PARABOLA_UNKNOWNS else 2
        return cls(x, jnp.zeros((degree, *x.shape)), jnp.zeros(()), jnp.zeros((), x.dtype))

    @property
    def _sums(self) -> Array:
        """Row k is the sum of the first k differences: what the polynomial of degree k adds to x."""
        degree = self.differences.shape[0]
        return jnp.asarray(np.tri(degree + 1, degree, -1)) @ self.differences

    @property
    def guess(self) -> Array:
        """The value of the polynomial at the next step."""
        sums = self._sums
        return self.x + (sums[2] if len(sums) == 3 else jnp.where(self.smooth > 0.5, sums[-1], sums[2]))

    def solve(
        self,
        equations: Callable[[Array], Array],
        split: int | None = None,
        coupling: Callable[[Array], Array] | None = None,
        whole: bool = False,
        more: Callable[[Array], Any] | None = None,
    ) -> Root:
        """The root that continues this branch; the other arguments are those of `find_root`."""
        options: dict[str, Any] = {"split": split, "coupling": coupling, "whole": whole, "more": more}
        return find_root(equations, self.guess, anchor=self.x, sign=self.sign, **options)

    def after(self, root: Root) -> Prediction:
        """The prediction once this solution is known."""
        # No root depends on where its iteration begins: what predicts it has no derivative.
        x, before = jax.lax.stop_gradient((root.x, self))
        new = x - before.x - before._sums  # row k is also how far the polynomial of degree k was off
        if len(new) == 3:
            return self._replace(x=root.x, differences=new[:-1], sign=root.sign)
        smooth = jnp.where(new[-1] @ new[-1] < new[2] @ new[2], 1.0, 0.0)
        return Prediction(root.x, new[:-1], smooth, root.sign)

    def status(self, root: Root) -> Array:
        """Whether the branch goes on: along it the Jacobian's determinant keeps its sign."""
        return jnp.where(root.converged, OK, jnp.where(self.sign == 0, NOT_CONVERGED, BRANCH_LOST))


class StepInfo(NamedTuple):
    """How a step went: |residual| of its equations, iterations, status code, and the multipliers of the constraint."""

    residual: Array
    iterations: Array
    status: Array
    multipliers: Array

    @classmethod
    def explicit(cls, multipliers: Float[Array, " m"] | None = None, status: Array | None = None) -> StepInfo:
        """The info of a step that solves nothing; without constraints there are no multipliers."""
        status = jnp.zeros((), int) if status is None else status
        return cls(jnp.zeros(()), jnp.zeros(()), status, jnp.zeros(0) if multipliers is None else multipliers)

    @classmethod
    def from_root(cls, prediction: Prediction, root: Root, multipliers: Float[Array, " m"]) -> StepInfo:
        """The info of a step that found this root from this prediction."""
        return cls(root.residual, root.iterations, prediction.status(root).astype(int), multipliers)

    @classmethod
    def at(cls, system: MechanicalSystem, state: State, u: Controls) -> StepInfo:
        """The info of a start: the multipliers of the equations of motion at this state."""
        return cls.explicit(system.multipliers(state.t, state.g, state.xi, u))


C = TypeVar("C")
Result = tuple[C, StepInfo]  # what start and step return: (carry, info)


class Integrator(ABC):
    """What a method is: `start` makes a carry from a state, `step` advances it, `observe` makes a state of it.

    The carry is a named tuple with `t`, `g` and what else the method needs. `start` and `step` return (carry, info):
    failure is data in `StepInfo`, and `start` can fail too.
    """

    name: ClassVar[str]
    carry_is_step_free: bool = False  # whether the carry does not depend on h, so that steps of other sizes may follow
    self_adjoint: bool = False  # whether a step of h undoes one of -h
    variable_step: bool = False  # whether steps differ in length: the carry then has the `size` of the last step
    has_increment: bool = True  # whether states have the increment of a discrete step; where not, it is the velocity
    needs: ClassVar[tuple[Callable[[Any, Any], Any], ...]] = ()  # checks (method, system) that `require` makes first

    def _repr_html_(self) -> str:
        """The method with its options, for a notebook."""
        names: list[str] = [field.name for field in fields(self)] if is_dataclass(self) else []
        options = {name: getattr(self, name) for name in names}
        about = {"what it is": " ".join((type(self).__doc__ or "").split("\n\n")[0].split())}
        return html_table(self.name, about | options)

    def adjoint(self) -> Integrator | None:
        """The adjoint method, whose step of h undoes a step of -h: itself if symmetric, None if it is not available."""
        return self if self.self_adjoint else None

    @abstractmethod
    def start(self, system: Any, state: State, h: Scalar, u: Controls = None) -> Result[Any]:
        """The carry at `state`."""

    @abstractmethod
    def step(self, system: Any, carry: Any, h: Scalar, u: Controls = None) -> Result[Any]:
        """One step of size h under the control u."""

    @abstractmethod
    def observe(self, system: Any, carry: Any, h: Scalar) -> State:
        """The state that a carry stands for."""

    def reverse(self, system: Any, carry: Any, h: Scalar) -> Any:
        """The carry from which steps of -h go back over the same states."""
        return self.start(system, self.observe(system, carry, h), -1.0 * h)[0]

    def claims(self, system: Any) -> Claims:
        """What the method claims on a system that it accepts; `make verify` measures it (docs/claims.md)."""
        raise NotImplementedError(
            f"{type(self).__name__} states no claims: give it `def claims(self, system) -> Claims` (docs/claims.md)"
        )

    @property
    def checks_numbers_of(self) -> Literal["nothing", "system", "start"]:
        """Whose numbers `require` reads, apart from those that `system.require_admissible` checks.

        If it reads none, it is called once for all systems of a kind; if the system's, once for each; else every time.
        A class that defines `require` defines this too, or its `require` is called every time.
        """
        return "system" if self.needs else "nothing"

    def must_ask(self, system: Any) -> bool:
        """Whether `require` has to be called for a system of a kind that it took before."""
        wanted = self.checks_numbers_of if _says_what_it_checks(type(self)) else "start"
        return wanted == "start" or (wanted == "system" and self not in system.__dict__.get("_taken", ()))

    def ask(self, system: Any, state: State, h: Scalar) -> None:
        """Call `require`, and remember of the system that it passed."""
        self.require(system, state, h)
        system.__dict__.setdefault("_taken", set()).add(self)

    def require(self, system: Any, state: State, h: Scalar) -> None:
        """Raise `InvalidInput`, before anything runs, for a system or state that this method does not accept."""
        for check in self.needs:
            check(self, system)
        system.require_admissible(state.t, state.g, state.xi)


@lru_cache
def _says_what_it_checks(kind: type[Integrator]) -> bool:
    """Whether `checks_numbers_of` is as new as `require`."""
    first, second = (
        next(k for k, base in enumerate(kind.__mro__) if name in base.__dict__)
        for name in ("checks_numbers_of", "require")
    )
    return first <= second


def require_arguments(system: Any, integrator: Any, state: Any, step: Any) -> None:
    """Refuse arguments of a run that are something else, before anything is asked of them."""
    if isinstance(system, Integrator) and isinstance(integrator, MechanicalSystem):
        raise InvalidInput(
            f"system is {show(system)}; allowed: a system. System and method are exchanged: (system, method, state)"
        )
    require_instance("system", system, MechanicalSystem, "a system")
    kind: type[Any] = Integrator
    if isinstance(integrator, str) and (own := _methods_by_name(kind).get(integrator)):
        raise InvalidInput(f"method is {integrator!r}; allowed: a method itself, not its name: {own.__name__}()")
    require_instance("method", integrator, kind, "a method")
    require_instance("state", state, State, "a State as system.state(g, xi) makes it (in an ensemble at least one)")
    require_instance("retraction", getattr(integrator, "retraction", Cayley()), Retraction, "a retraction")
    not_zero("step", step)
    if state.group not in (None, system.group):
        raise InvalidInput(
            f"the state is one of {state.group}, but configurations of the system are in {system.group}: "
            "make the state by system.state(g, xi)"
        )


def require_state(system: MechanicalSystem, state: State, step: Any) -> None:
    """Refuse a single state that is not one of the system's group, or whose time no step can change."""
    if np.ndim(state.xi) > 1:
        raise InvalidInput(
            f"the velocity of the state has shape {jnp.shape(state.xi)}; allowed: ({system.group.dim},). States with a "
            "leading axis are many runs: da.ensemble, or jax.vmap around simulate"
        )
    if is_traced((*state, step)):
        return
    t, n = finite("t0", state.t), system.group.dim
    if t + float(np.asarray(step)) == t:
        raise InvalidInput(f"t0 = {t:g} does not change by a step of {step:g}: begin nearer to 0, or take longer steps")
    if state.group is None:
        system.group.element(state.g)
    momentum = read_reals(state.momentum)
    if momentum is None or momentum.ndim != 1 or len(momentum) > n or not np.isfinite(momentum).all():
        raise InvalidInput(f"momentum of the state is {show(momentum)}; allowed: {n} finite numbers")


def _methods_by_name(kind: type[Integrator]) -> dict[str, type[Integrator]]:
    """The methods that have a name, by it; a class that inherits its name does not take it."""
    found = {name: each for sub in kind.__subclasses__() for name, each in _methods_by_name(sub).items()}
    return found | ({kind.name: kind} if hasattr(kind, "name") else {})


def call_method(integrator: Integrator, part: str, system: Any, *given: Any) -> Any:
    """Call `start`, `step` or `observe` of a method, which may be a user's, and check the type of the result."""
    words = f"{type(integrator).__name__}.{part}(system, {'state' if part == 'start' else 'carry'}, h)"
    made = call_own(words, getattr(integrator, part), system, *given)
    if part == "observe":
        if not isinstance(made, State):
            raise InvalidInput(f"{words} gave {show(made)}; allowed: a State")
        return made._replace(group=system.group)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], StepInfo)):
        raise InvalidInput(f"{words} gave {show(made)}; allowed: (carry, StepInfo)")
    before, after = (jax.tree.map(jnp.shape, tree) for tree in (given[0], made[0]))
    if part == "step" and before != after:
        raise InvalidInput(f"{words} gave a carry of shapes {show(after)}; allowed: those of its own, {show(before)}")
    return made


@dataclass(frozen=True)
class NodeMethod(Integrator):
    """A method of the finite difference map of (retraction, node): g~ = g_k tau(s xi), g_{k+1} = g~ tau((1-s) xi)."""

    retraction: Retraction = Cayley()
    node: float | int = 0.5

    def __post_init__(self) -> None:
        FiniteDifference(self.retraction, self.node)

    @property
    def difference(self) -> FiniteDifference:
        """The finite difference map."""
        return FiniteDifference(self.retraction, self.node)


class PhaseCarry(NamedTuple):
    """The carry of a method that needs nothing but the time, the configuration and the velocity."""

    t: Array
    g: Element
    xi: Array

    @classmethod
    def at(cls, system: MechanicalSystem, t: Array, g: Element, xi: Velocity, u: Controls) -> Result[PhaseCarry]:
        """The carry at this point, with the multipliers of the equations of motion."""
        return cls(t, g, xi), StepInfo.explicit(system.multipliers(t, g, xi, u))


class PhaseMethod(Integrator):
    """A method that starts from the time, the configuration and the velocity, and shows these."""

    has_increment = False

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Any]:
        return PhaseCarry.at(system, state.t, state.g, state.xi, u)

    def observe(self, system: MechanicalSystem, carry: Any, h: Scalar) -> State:
        increment = carry.prediction.x if self.has_increment else carry.xi
        return State(carry.t, carry.g, carry.xi, system.momentum(carry.t, carry.g, carry.xi), increment)


def rescale(rho: Float[Array, " r"], square: Float[Array, ""]) -> Float[Array, " r"]:
    """rho with |rho|^2 = `square`, which it has but for the round-off of frames: that would add up to a drift."""
    own = rho @ rho
    return rho + rho * (0.5 * (square - own) / jnp.where(own > 0.0, own, 1.0))


def add_compensated(total: Array, part: Scalar, lost: Array) -> tuple[Array, Array]:
    """(total + part, what that sum lost), with what the last one lost: compensated summation (Kahan 1965).

    Without it round-off grows in proportion to the number of steps, not to its root.
    """
    part = part - lost
    new = total + part
    return new, (new - total) - part
