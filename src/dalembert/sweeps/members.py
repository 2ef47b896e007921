"""The members of a sweep as one traced function of their numbers: a kernel builds the system of every lane itself.

What cannot be traced (a method's option, a name, a whole number such as a dimension) is structure: members of one structure run together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..config import Job, method_of, parse
from ..coordinates import configuration
from ..errors import InvalidInput, UnknownName
from ..integrators import Integrator, Reference
from ..loop import Functions
from ..models.registry import MODELS
from ..schedule import count_steps
from ..system import MechanicalSystem, State
from ..user_system import user_system
from .axes import Values
from .lanes import loop_functions, whole_run
from .plan import Plan, plain, substituted

ENERGY = "initial.energy"
PROBES = 8
"""Places along an axis at which a member is built and checked before anything runs."""


class Member(NamedTuple):
    system: MechanicalSystem
    state: State
    step: Array


@dataclass(frozen=True, eq=False)
class Family:
    """Members of one structure: the functions of their run, which take the traced numbers as constants."""

    integrator: Integrator
    steps: int | None  # None: each member's own, from t_end
    functions: Functions
    whole: Callable  # (numbers, number of steps) -> the last record, a run without its loop ever leaving the kernel
    record: dict[str, jax.ShapeDtypeStruct]


class Members:
    """A plan whose names are checked, split into those that a kernel takes as numbers and those that are structure."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.first = self._checked(plan.member())
        if isinstance(self.first.integrator, Reference):
            raise InvalidInput("a sweep needs a method with a step; the reference solution of SciPy has none")
        self.traced = self._traceable()
        self.structural = tuple(name for name in plan.names if name not in self.traced)
        self.own_steps = "steps" not in self.first.config["run"] and bool({"run.step", "run.t0"} & set(self.traced))
        self.family = lru_cache(maxsize=256)(self._family)
        self.schema = self.family(self.key(plan.member())).record
        self._probe()
        if "states" in plan.keep and (self.own_steps or {"run.steps", "run.t_end", "run.step"} & set(self.structural)):
            raise InvalidInput(
                'keep = "states" needs the same number of steps for all members: give run.steps, not t_end'
            )

    def key(self, values: Values) -> tuple:
        """The structure of a member, hashable."""
        return tuple(_frozen(plain(values[name])) for name in self.structural)

    def _checked(self, values: Values) -> Job:
        """The job of one member, as `dalembert run` would check it."""
        energy = values.get(ENERGY)
        if energy is not None and not (isinstance(energy, int | float) and np.isfinite(energy)):
            raise InvalidInput(f"{ENERGY} is {energy!r}; allowed: a finite number")
        return parse(substituted(self.plan.config, {k: v for k, v in values.items() if k != ENERGY}), self.plan.folder)

    def _probe(self) -> None:
        """Build members along every axis, the others at their first place: a bad name or value is refused before anything runs."""
        base = self.plan.member()
        for axis in self.plan.axes:
            for place in np.unique(np.linspace(0, axis.size - 1, PROBES).astype(int)):
                values = {name: plain(part[0]) for name, part in axis.at(int(place), int(place) + 1).items()}
                try:
                    self._checked({**base, **values})
                except InvalidInput as fault:
                    shown = ", ".join(f"{name} = {value}" for name, value in values.items())
                    raise InvalidInput(f"the sweep comes to {shown}: {fault}") from fault
                found = self.family(self.key({**base, **values})).record
                if found != self.schema:
                    raise InvalidInput(
                        f"members differ in shape along {', '.join(axis.names)}: what is kept of them does not fit into one array. "
                        'Sweep them apart, or keep = ["extremes"] only'
                    )

    # -- what a kernel can take as a number -----------------------------------------------------------------------------
    def _traceable(self) -> tuple[str, ...]:
        numeric = [
            name
            for name in self.plan.names
            if name.split(".")[0] != "method"
            and name not in ("run.steps", "run.t_end", "system.name", "system.python")
            and all(
                isinstance(plain(value), float | int) and not isinstance(plain(value), bool)
                for value in self._ends(name)
            )
        ]
        if self._traces(numeric):
            return tuple(numeric)
        alone = [name for name in numeric if self._traces([name])]
        return tuple(alone) if self._traces(alone) else ()

    def _ends(self, name: str) -> list[Any]:
        axis = next(axis for axis in self.plan.axes if name in axis.names)
        first, last = axis.at(0, 1)[name], axis.at(axis.size - 1, axis.size)[name]
        whole = [] if isinstance(first, np.ndarray) else axis.at(0, axis.size)[name]
        return [first[0], last[0], *whole]

    def _traces(self, names: list[str]) -> bool:
        rest = {name: value for name, value in self.plan.member().items() if name not in names}
        try:
            jax.eval_shape(self._build(rest), {name: jax.ShapeDtypeStruct((), float) for name in names})
        except Exception:  # whatever a model or a user's own file does to a number that it cannot know yet
            return False
        return True

    def _build(self, fixed: Values) -> Callable[[Mapping[str, Array]], Member]:
        """numbers -> (system, state, h) of the member with these fixed values; what no number touches is built once, here."""
        config = substituted(self.plan.config, {k: v for k, v in fixed.items() if k != ENERGY})
        numbers = [name for name in self.plan.names if name not in fixed]
        moved = [name for name in numbers if name.startswith(("system.", "initial.", "run.t0")) and name != ENERGY]
        folder = self.plan.folder
        system = None if any(name.startswith("system.") for name in moved) else _system(config, folder)
        state = None if system is None or moved else _state(system, config)

        def build(values: Mapping[str, Array]) -> Member:
            own = substituted(config, {name: value for name, value in values.items() if name != ENERGY})
            with jax.ensure_compile_time_eval() if system is not None else nullcontext():
                made = _system(own, folder) if system is None else system
                begin = _state(made, own) if state is None else state
            energy = values.get(ENERGY, fixed.get(ENERGY))
            begin = begin if energy is None else _with_energy(made, begin, energy)
            return Member(made, begin, jnp.asarray(own["run"]["step"], float))

        return build

    def _family(self, key: tuple) -> Family:
        fixed = {name: _thawed(value) for name, value in zip(self.structural, key, strict=True)}
        config = substituted(self.plan.config, {k: v for k, v in fixed.items() if k != ENERGY})
        integrator, run = method_of(config["method"]), config["run"]
        if integrator.clock and "t_end" in run:
            raise InvalidInput(
                f"the members of a sweep by {integrator.name} reach t_end after different numbers of steps: give run.steps"
            )
        made = loop_functions(integrator, self._build(fixed), self.plan.keep, dict(self.plan.reductions))
        steps = (
            None
            if self.own_steps
            else count_steps(self._step_of(config), run.get("steps"), run.get("t_end"), run.get("t0", 0.0))
        )
        numbers = {name: jax.ShapeDtypeStruct((), float) for name in self.traced}
        loop = jax.eval_shape(made.begin, numbers, ())
        return Family(integrator, steps, made, whole_run(made), jax.eval_shape(made.observe, numbers, loop))

    def _step_of(self, config: Mapping[str, Any]) -> float:
        return 1.0 if "run.step" in self.traced else config["run"]["step"]

    def steps(self, family: Family, values: Values, count: int) -> np.ndarray:
        """The number of steps of every member."""
        if family.steps is not None:
            return np.full(count, family.steps)
        run = self.first.config["run"]
        part = lambda name, default: np.broadcast_to(values.get(f"run.{name}", run.get(name, default)), count)
        ratio = (run["t_end"] - part("t0", 0.0)) / part("step", None)
        return np.maximum(np.floor(ratio * (1 + 1e-12) + 1e-9), 1).astype(int)


# -- one member -----------------------------------------------------------------------------------------------------------------
def _system(config: Mapping[str, Any], folder: Any) -> MechanicalSystem:
    parameters = dict(config["system"])
    if "python" in parameters:
        return user_system(parameters.pop("python"), folder, parameters)[0]
    name = parameters.pop("name")
    if name not in MODELS:
        raise UnknownName("system", name, MODELS)
    return MODELS[name].make(parameters)


def _state(system: MechanicalSystem, config: Mapping[str, Any]) -> State:
    initial = config["initial"]
    given = initial.get("configuration")
    g = None if given is None else configuration(system.group, given)
    xi, momentum = (
        None if (entry := initial.get(key)) is None else jnp.stack([jnp.asarray(x, float) for x in entry])
        for key in ("velocity", "momentum")
    )
    return system.state(g, xi, momentum=momentum, t=config["run"].get("t0", 0.0))


def _with_energy(system: MechanicalSystem, state: State, energy) -> State:
    """The state with its velocity scaled so that it has this energy (of a kinetic energy that is quadratic, under A xi = 0)."""
    rest = system.energy(state.t, state.g, jnp.zeros_like(state.xi))
    scale = jnp.sqrt((energy - rest) / (system.energy(state.t, state.g, state.xi) - rest))
    return State(state.t, state.g, scale * state.xi, scale * state.momentum, scale * state.increment)


def _frozen(value: Any) -> Any:
    return ("list", *map(_frozen, value)) if isinstance(value, list) else value


def _thawed(value: Any) -> Any:
    return [_thawed(entry) for entry in value[1:]] if isinstance(value, tuple) else value
