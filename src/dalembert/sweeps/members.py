"""The run of a member as pure functions of its numbers: the loop of `simulate`, with the user's reductions beside it.

The members of a sweep as one traced function of their numbers: a kernel builds the system of every lane itself.

What cannot be traced (a method's option, a name, a whole number such as a dimension) is structure: members of one structure run together.

The work of a sweep: one block of members, as lanes of compiled runs, into named arrays.
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

from ..errors import InvalidInput, UnknownName
from ..groups import configuration
from ..integrators import OK, Integrator, Reference
from ..io.config import Job, build_method, parse_job, load_user_system
from ..kernels import Backend, evaluate, make_problem, run_problem
from ..mechanics import TOLERANCE, MechanicalSystem, State
from ..models import MODELS
from ..numerics import BLOCKS, KINDS, LEAST, classify
from ..simulation import LoopState, RunKernel, count_steps, run_kernel
from .plan import GridBlock, SweepPlan, Values, to_python, substitute

OFF_CONSTRAINT = 4
"""Status of a member that starts off the constraint: the others go on."""


class SweepLoop(NamedTuple):
    """The loop of a run beside the values of the user's reductions."""

    loop: LoopState
    values: dict[str, Any]


def member_kernel(
    integrator: Integrator, build: Callable, keep: tuple[str, ...], reductions: dict[str, Any]
) -> RunKernel:
    """The run of a member: like `loop.functions`, but the constants are its numbers, and reductions go along."""
    plain_run = run_kernel(integrator, "extremes" in keep)

    def begin(numbers, _) -> SweepLoop:
        system, state, h = build(numbers)
        loop = plain_run.begin((system, h), (state, None))
        off = jnp.concatenate([system.residual(state.t, state.g, state.xi), system.phi(state.t, state.g)])
        scale = 1.0 + jnp.max(jnp.abs(system.A(state.t, state.g)), initial=0.0) * jnp.max(jnp.abs(state.xi))
        outside = jnp.max(jnp.abs(off), initial=0.0) > TOLERANCE * scale
        status = jnp.where(outside, OFF_CONSTRAINT, loop.status)
        loop = loop._replace(status=status, steps=jnp.where(status == OK, loop.steps, -1.0))
        seen = integrator.observe(system, loop.carry, h)
        return SweepLoop(
            loop, {name: jnp.asarray(one.start(system, seen, h), float) for name, one in reductions.items()}
        )

    def advance(numbers, before: SweepLoop, u) -> SweepLoop:
        system, _, h = build(numbers)
        loop = plain_run.advance((system, h), before.loop, u)
        if not reductions:
            return SweepLoop(loop, before.values)
        seen, good = integrator.observe(system, loop.carry, h), loop.steps > before.loop.steps
        new = {name: one.update(before.values[name], system, seen, h) for name, one in reductions.items()}
        return SweepLoop(loop, jax.tree.map(lambda a, b: jnp.where(good, a, b), new, before.values))

    def observe(numbers, after: SweepLoop) -> dict[str, Array]:
        system, _, h = build(numbers)
        record = plain_run.observe((system, h), after.loop)
        found = {"status": after.loop.status, "steps": after.loop.steps, **after.values}
        if "extremes" in keep:
            peaks = after.loop.peaks
            found |= {
                "energy_error_max": peaks.energy_error,
                "constraint_max": peaks.constraint,
                "holonomic_max": peaks.holonomic,
                "group_distance_max": peaks.group,
            }
        if {"final", "states"} & set(keep):
            g = record.state.g if isinstance(record.state.g, tuple) else (record.state.g,)
            tails = [f"_{k}" for k in range(len(g))] if len(g) > 1 else [""]
            found |= {f"configuration{tail}": part for tail, part in zip(tails, g, strict=True)}
            found |= {
                "time": record.state.t,
                "velocity": record.state.xi,
                "momentum": record.state.momentum,
                "angle": record.angles,
            }
        if "drift" in keep:
            found["time"] = record.state.t
            found["energy"] = system.energy(record.state.t, record.state.g, record.state.xi)
        return {name: value for name, value in found.items() if value.size}

    return RunKernel(begin, advance, observe)


def fuse_run(made: RunKernel) -> Callable:
    """begin, all steps and observe as one function."""

    def whole(consts, _):
        numbers, steps = consts

        def go(carried):
            return carried[0] + 1.0, made.advance(numbers, carried[1], None)

        last = jax.lax.while_loop(lambda carried: carried[0] < steps, go, (jnp.zeros(()), made.begin(numbers, ())))
        return made.observe(numbers, last[1])

    return whole


ENERGY = "initial.energy"
PROBES_PER_AXIS = 8
"""Places along an axis at which a member is built and checked before anything runs."""


class Member(NamedTuple):
    system: MechanicalSystem
    state: State
    step: Array


@dataclass(frozen=True, eq=False)
class MemberFamily:
    """Members of one structure: the functions of their run, which take the traced numbers as constants."""

    integrator: Integrator
    steps: int | None  # None: each member's own, from t_end
    functions: RunKernel
    whole: Callable  # (numbers, number of steps) -> the last record, a run without its loop ever leaving the kernel
    record: dict[str, jax.ShapeDtypeStruct]


class SweepMembers:
    """A plan whose names are checked, split into those that a kernel takes as numbers and those that are structure."""

    def __init__(self, plan: SweepPlan):
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
        return tuple(_frozen(to_python(values[name])) for name in self.structural)

    def _checked(self, values: Values) -> Job:
        """The job of one member, as `dalembert run` would check it."""
        energy = values.get(ENERGY)
        if energy is not None and not (isinstance(energy, int | float) and np.isfinite(energy)):
            raise InvalidInput(f"{ENERGY} is {energy!r}; allowed: a finite number")
        return parse_job(
            substitute(self.plan.config, {k: v for k, v in values.items() if k != ENERGY}), self.plan.folder
        )

    def _probe(self) -> None:
        """Build members along every axis, the others at their first place: a bad name or value is refused before anything runs."""
        base = self.plan.member()
        for axis in self.plan.axes:
            for place in np.unique(np.linspace(0, axis.size - 1, PROBES_PER_AXIS).astype(int)):
                values = {name: to_python(part[0]) for name, part in axis.at(int(place), int(place) + 1).items()}
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
                isinstance(to_python(value), float | int) and not isinstance(to_python(value), bool)
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
        config = substitute(self.plan.config, {k: v for k, v in fixed.items() if k != ENERGY})
        numbers = [name for name in self.plan.names if name not in fixed]
        moved = [name for name in numbers if name.startswith(("system.", "initial.", "run.t0")) and name != ENERGY]
        folder = self.plan.folder
        system = None if any(name.startswith("system.") for name in moved) else _system(config, folder)
        state = None if system is None or moved else _state(system, config)

        def build(values: Mapping[str, Array]) -> Member:
            own = substitute(config, {name: value for name, value in values.items() if name != ENERGY})
            with jax.ensure_compile_time_eval() if system is not None else nullcontext():
                made = _system(own, folder) if system is None else system
                begin = _state(made, own) if state is None else state
            energy = values.get(ENERGY, fixed.get(ENERGY))
            begin = begin if energy is None else _with_energy(made, begin, energy)
            return Member(made, begin, jnp.asarray(own["run"]["step"], float))

        return build

    def _family(self, key: tuple) -> MemberFamily:
        fixed = {name: _thawed(value) for name, value in zip(self.structural, key, strict=True)}
        config = substitute(self.plan.config, {k: v for k, v in fixed.items() if k != ENERGY})
        integrator, run = build_method(config["method"]), config["run"]
        if integrator.clock and "t_end" in run:
            raise InvalidInput(
                f"the members of a sweep by {integrator.name} reach t_end after different numbers of steps: give run.steps"
            )
        made = member_kernel(integrator, self._build(fixed), self.plan.keep, dict(self.plan.reductions))
        steps = (
            None
            if self.own_steps
            else count_steps(self._step_of(config), run.get("steps"), run.get("t_end"), run.get("t0", 0.0))
        )
        numbers = {name: jax.ShapeDtypeStruct((), float) for name in self.traced}
        loop = jax.eval_shape(made.begin, numbers, ())
        return MemberFamily(integrator, steps, made, fuse_run(made), jax.eval_shape(made.observe, numbers, loop))

    def _step_of(self, config: Mapping[str, Any]) -> float:
        return 1.0 if "run.step" in self.traced else config["run"]["step"]

    def steps(self, family: MemberFamily, values: Values, count: int) -> np.ndarray:
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
        return load_user_system(parameters.pop("python"), folder, parameters)[0]
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


Arrays = dict[str, np.ndarray]
STATE_VARIABLES = ("time", "velocity", "momentum", "angle", "configuration")
NOT_DONE, NOT_CLASSIFIED = -1, -1


class SweepVariable:
    """An array of a sweep beside its member dimensions: the dimensions and shape of one member's part, the type, what missing is."""

    def __init__(self, dims: tuple[str, ...], shape: tuple[int, ...], dtype: str, missing: float, about: str):
        self.dims, self.shape, self.dtype, self.missing, self.about = dims, shape, np.dtype(dtype), missing, about


def describe_variables(members: SweepMembers) -> dict[str, SweepVariable]:
    """What a sweep stores."""
    plan, schema = members.plan, members.schema
    found = {
        "status": SweepVariable(
            (),
            (),
            "int8",
            NOT_DONE,
            "0 ok, 1 not converged, 2 branch lost, 3 not finite, 4 starts off the constraint, -1 not computed",
        ),
        "failed_step": SweepVariable(
            (), (), "int64", -2, "good steps before the failure (-1: none at all); -2 where nothing failed"
        ),
    }
    for name, spec in schema.items():
        head = name.rstrip("_0123456789")
        if name in ("status", "steps") or (name == "energy" and head not in plan.reductions):
            continue
        if head not in STATE_VARIABLES:
            found[name] = SweepVariable(
                tuple(f"{name}_{k}" for k in range(len(spec.shape))),
                spec.shape,
                "float64",
                np.nan,
                name.replace("_", " "),
            )
            continue
        dims = _dims(name, head, spec.shape, members)
        if "final" in plan.keep:
            found[f"final_{name}"] = SweepVariable(dims, spec.shape, "float64", np.nan, f"{name} at the last good state")
        if "states" in plan.keep:
            saves = 1 + -(-int(members.first.run["steps"]) // plan.save_every)
            found[name] = SweepVariable(
                ("save", *dims), (saves, *spec.shape), "float64", np.nan, f"{name} at the saved states"
            )
    if "drift" in plan.keep:
        kinds = ", ".join(f"{k} {kind}" for k, kind in enumerate(KINDS))
        found["drift"] = SweepVariable(
            (), (), "int8", NOT_CLASSIFIED, f"growth of the energy error: {kinds}, -1 not classified"
        )
        found["drift_rate"] = SweepVariable(
            (), (), "float64", np.nan, "rate of that growth, see dalembert.diagnostics.drift"
        )
    return found


def _dims(name: str, head: str, shape: tuple[int, ...], members: SweepMembers) -> tuple[str, ...]:
    if head == "configuration":
        return tuple(f"{name}_{axis}" for axis in ("row", "column")[: len(shape)])
    whole = shape == (members.first.system.group.dim,)
    return {"time": (), "angle": ("rotation",)}.get(head, ("component" if whole else "restricted",))


def compute_block(members: SweepMembers, block: GridBlock, backend: Backend = "auto", threads: int | None = None) -> Arrays:
    """The arrays of a block, in its shape. Ctrl-C raises KeyboardInterrupt: a block is whole or not there."""
    values = members.plan.values(block)
    described = describe_variables(members)
    arrays = {name: np.full((block.size, *one.shape), one.missing, one.dtype) for name, one in described.items()}
    for places, key, steps in _groups(members, values, block.size):
        family = members.family(key)
        numbers = {name: np.asarray(values[name], float)[places] for name in members.traced}
        for name, part in _run(
            members.plan, family, numbers, steps, len(arrays["status"][places]), backend, threads
        ).items():
            arrays[name][places] = part
    return {name: array.reshape(*block.shape, *described[name].shape) for name, array in arrays.items()}


def _groups(members: SweepMembers, values: Values, size: int):
    """(places, structure, steps) of members that run together."""
    keys = (
        {(): slice(None)}
        if not members.structural
        else _places([members.key({name: values[name][k] for name in members.structural}) for k in range(size)])
    )
    for key, places in keys.items():
        family = members.family(key)
        inside = {name: np.asarray(values[name])[places] for name in members.traced}
        counts = members.steps(family, inside, size if isinstance(places, slice) else len(places))
        for steps in np.unique(counts):
            chosen = places if np.all(counts == steps) else np.arange(size)[places][counts == steps]
            yield chosen, key, int(steps)


def _places(keys: list[tuple]) -> dict[tuple, Any]:
    found: dict[tuple, list[int]] = {}
    for place, key in enumerate(keys):
        found.setdefault(key, []).append(place)
    return {key: np.array(places) for key, places in found.items()}


def _run(
    plan: SweepPlan, family: MemberFamily, numbers: Values, steps: int, lanes: int, backend: Backend, threads: int | None
) -> Arrays:
    """The members of one structure and number of steps."""
    where: dict[str, Any] = {"backend": backend, "threads": threads}
    if not {"states", "drift"} & set(plan.keep):  # one call, into which numbers go and out of which results come
        axes = ((dict.fromkeys(numbers, 0), None), None)
        last = evaluate(family.whole, (numbers, float(steps)), (), lanes=lanes, axes=axes, **where)
        return _kept(plan, [{name: leaf[:, None] for name, leaf in last.items()}], 1)
    begin, advance, observe = family.functions
    loop = evaluate(begin, numbers, (), lanes=lanes, axes=(0, None), **where)
    every = plan.save_every if "states" in plan.keep else max(1, steps // (4 * BLOCKS))
    parts: list[dict[str, np.ndarray]] = []
    for count, stride in ((steps // every, every), (1, steps % every)):
        if count and stride:
            described = make_problem(advance, observe, numbers, loop, lanes=lanes, axes=(0, 0))
            done = run_problem(described, saves=count, save_every=stride, initial=not parts, **where)
            if done.interrupted:
                raise KeyboardInterrupt
            loop = done.loop
            parts.append(done.records)
    return _kept(plan, parts, steps // every)


def _kept(plan: SweepPlan, parts: list[dict[str, np.ndarray]], equidistant: int) -> Arrays:
    last = {name: leaf[:, -1] for name, leaf in parts[-1].items()}
    status, steps = last.pop("status"), last.pop("steps")
    found: Arrays = {
        "status": status.astype(np.int8),
        "failed_step": np.where(status == OK, -2, steps).astype(np.int64),
    }
    state = [name for name in last if name.rstrip("_0123456789") in STATE_VARIABLES]
    found |= {name: leaf for name, leaf in last.items() if name not in (*state, "energy")}
    if "final" in plan.keep:
        found |= {f"final_{name}": last[name] for name in state}
    if "states" in plan.keep:
        found |= {name: np.concatenate([part[name] for part in parts], axis=1) for name in state}
    if "drift" in plan.keep:
        times, energy = (parts[0][name][:, : equidistant + 1] for name in ("time", "energy"))
        found |= _drifts(times, energy, status)
    return found


def _drifts(times: np.ndarray, energy: np.ndarray, status: np.ndarray) -> Arrays:
    """The kind of growth of each member's energy error."""
    kinds, rates = np.full(len(energy), NOT_CLASSIFIED, np.int8), np.full(len(energy), np.nan)
    if energy.shape[1] < LEAST:
        raise InvalidInput(f'keep = "drift" needs at least {LEAST} steps; a run has {energy.shape[1] - 1}')
    for k in np.flatnonzero(status == OK):
        found = classify(times[k], energy[k] - energy[k, 0])
        kinds[k], rates[k] = KINDS.index(found.kind), found.rate
    return {"drift": kinds, "drift_rate": rates}
