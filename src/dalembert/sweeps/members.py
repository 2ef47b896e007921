"""The members of a sweep as lanes of compiled runs: a kernel builds the system of every lane from its numbers.

What cannot be traced (an option of a method, a name, a whole number such as a dimension) is structure: members of one
structure run together, and each structure has its own kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..integrators import OK, Integrator
from ..io.config import Job, build_method, build_state, build_system, parse_job
from ..io.dataset import Arrays
from ..kernels import Backend, evaluate, make_problem, run_problem
from ..mechanics import ADMISSIBLE_TOLERANCE, MechanicalSystem, State
from ..numerics import GROWTH_KINDS, MAX_BLOCKS, MIN_SAMPLES, classify
from ..simulation import LoopState, RunKernel, count_steps, run_kernel
from .plan import GridBlock, SweepPlan, Values, substitute, to_python

Numbers = Mapping[str, Array]  # the traced values of a member, or of many
Structure = tuple[Any, ...]  # the values of the other names, hashable

OFF_CONSTRAINT = 4
"""Status of a member that starts off the constraint: the others go on."""
ENERGY_NAME = "initial.energy"
PROBES_PER_AXIS = 8
"""Places along an axis at which a member is built and checked before anything runs."""
STATE_VARIABLES = ("time", "velocity", "momentum", "angle", "configuration")
NOT_DONE, NOT_CLASSIFIED, NOT_FAILED = -1, -1, -2
SCALAR = jax.ShapeDtypeStruct((), float)  # type: ignore[no-untyped-call]  # JAX does not annotate it


class SweepLoop(NamedTuple):
    """The loop of a run beside the values of the user's reductions."""

    loop: LoopState
    values: dict[str, Any]


class Member(NamedTuple):
    """What a run of a member starts from."""

    system: MechanicalSystem
    state: State
    step: Array


def member_kernel(
    integrator: Integrator, build: Callable[[Numbers], Member], keep: tuple[str, ...], reductions: Mapping[str, Any]
) -> RunKernel:
    """The run of a member: like `run_kernel`, but the constants are its numbers, and reductions go along."""
    kernel = run_kernel(integrator, "extremes" in keep)

    def begin(numbers: Numbers, _: Any) -> SweepLoop:
        system, state, h = build(numbers)
        loop = kernel.begin((system, h), (state, None))
        off = jnp.concatenate([system.residual(state.t, state.g, state.xi), system.phi(state.t, state.g)])
        scale = 1.0 + jnp.max(jnp.abs(system.A(state.t, state.g)), initial=0.0) * jnp.max(jnp.abs(state.xi))
        outside = jnp.max(jnp.abs(off), initial=0.0) > ADMISSIBLE_TOLERANCE * scale
        status = jnp.where(outside, OFF_CONSTRAINT, loop.status)
        loop = loop._replace(status=status, steps=jnp.where(status == OK, loop.steps, -1.0))
        seen = integrator.observe(system, loop.carry, h)
        values = {name: jnp.asarray(one.start(system, seen, h), float) for name, one in reductions.items()}
        return SweepLoop(loop, values)

    def advance(numbers: Numbers, before: SweepLoop, u: Any) -> SweepLoop:
        system, _, h = build(numbers)
        loop = kernel.advance((system, h), before.loop, u)
        if not reductions:
            return SweepLoop(loop, before.values)
        seen, good = integrator.observe(system, loop.carry, h), loop.steps > before.loop.steps
        new = {name: one.update(before.values[name], system, seen, h) for name, one in reductions.items()}
        return SweepLoop(loop, jax.tree.map(lambda a, b: jnp.where(good, a, b), new, before.values))

    def observe(numbers: Numbers, after: SweepLoop) -> dict[str, Array]:
        system, _, h = build(numbers)
        record = kernel.observe((system, h), after.loop)
        state, peaks = record.state, after.loop.peaks
        found = {"status": after.loop.status, "steps": after.loop.steps, **after.values}
        if "extremes" in keep:
            found |= {"energy_error_max": peaks.energy_error, "constraint_max": peaks.constraint}
            found |= {"holonomic_max": peaks.holonomic, "group_distance_max": peaks.group}
        if {"final", "states"} & set(keep):
            parts = state.g if isinstance(state.g, tuple) else (state.g,)
            tails = [f"_{k}" for k in range(len(parts))] if len(parts) > 1 else [""]
            found |= {f"configuration{tail}": part for tail, part in zip(tails, parts, strict=True)}
            found |= {"time": state.t, "velocity": state.xi, "momentum": state.momentum, "angle": record.angles}
        if "drift" in keep:
            found |= {"time": state.t, "energy": system.energy(state.t, state.g, state.xi)}
        return {name: value for name, value in found.items() if value.size}

    return RunKernel(begin, advance, observe)


def fuse_run(kernel: RunKernel) -> Callable[..., dict[str, Array]]:
    """begin, all steps and observe as one function of (numbers, number of steps): its loop never leaves the kernel."""

    def fused(constants: tuple[Numbers, Array], _: Any) -> dict[str, Array]:
        numbers, steps = constants

        def step(counted: tuple[Array, SweepLoop]) -> tuple[Array, SweepLoop]:
            return counted[0] + 1.0, kernel.advance(numbers, counted[1], None)

        start = (jnp.zeros(()), kernel.begin(numbers, ()))
        end = jax.lax.while_loop(lambda counted: counted[0] < steps, step, start)
        last: dict[str, Array] = kernel.observe(numbers, end[1])
        return last

    return fused


@dataclass(frozen=True, eq=False)
class MemberFamily:
    """Members of one structure: the functions of their run, which take the traced numbers as constants."""

    steps: int | None  # None: each member has its own number, from t_end
    kernel: RunKernel
    fused: Callable[..., dict[str, Array]]
    record: dict[str, jax.ShapeDtypeStruct]


class SweepMembers:
    """A plan whose names are checked and split into numbers that a kernel takes and structure."""

    def __init__(self, plan: SweepPlan):
        self.plan = plan
        self.first = self._check(plan.member())
        self.traced = self._find_traceable()
        self.structural = tuple(name for name in plan.names if name not in self.traced)
        self.own_steps = "steps" not in self.first.config["run"] and bool({"run.step", "run.t0"} & set(self.traced))
        self.family = lru_cache(maxsize=256)(self._make_family)
        self.schema = self.family(self.structure(plan.member())).record
        self._probe()
        if "states" in plan.keep and (self.own_steps or {"run.steps", "run.t_end", "run.step"} & set(self.structural)):
            raise InvalidInput('keep = "states" needs one number of steps for all members: give run.steps, not t_end')

    def structure(self, values: Values) -> Structure:
        """The structure of a member."""
        return tuple(_freeze(to_python(values[name])) for name in self.structural)

    def _config(self, values: Values) -> dict[str, Any]:
        return substitute(self.plan.config, {k: v for k, v in values.items() if k != ENERGY_NAME})

    def _check(self, values: Values) -> Job:
        """The job of one member, as `dalembert run` would check it."""
        energy = values.get(ENERGY_NAME)
        if energy is not None and not (isinstance(energy, int | float) and np.isfinite(energy)):
            raise InvalidInput(f"{ENERGY_NAME} is {energy!r}; allowed: a finite number")
        return parse_job(self._config(values), self.plan.folder)

    def _probe(self) -> None:
        """Build members along every axis, the others at their first place: refuse bad values before anything runs."""
        base = self.plan.member()
        for axis in self.plan.axes:
            for place in np.unique(np.linspace(0, axis.size - 1, PROBES_PER_AXIS).astype(int)):
                values = {name: to_python(part[0]) for name, part in axis.at(int(place), int(place) + 1).items()}
                try:
                    self._check({**base, **values})
                except InvalidInput as fault:
                    shown = ", ".join(f"{name} = {value}" for name, value in values.items())
                    raise InvalidInput(f"the sweep comes to {shown}: {fault}") from fault
                if self.family(self.structure({**base, **values})).record != self.schema:
                    raise InvalidInput(
                        f"members differ in shape along {', '.join(axis.names)}: what is kept of them does not fit "
                        'into one array. Sweep them apart, or keep = ["extremes"] only'
                    )

    def _find_traceable(self) -> tuple[str, ...]:
        """The names that a kernel can take as numbers: all numeric ones together, or those that can be traced alone."""
        structural = ("run.steps", "run.t_end", "system.name", "system.python")
        numeric = []
        for axis in self.plan.axes:
            first, last = axis.at(0, 1), axis.at(axis.size - 1, axis.size)
            for name in axis.names:
                array = isinstance(first[name], np.ndarray)
                values = [first[name][0], last[name][0], *([] if array else axis.at(0, axis.size)[name])]
                number = all(isinstance(to_python(value), float | int) for value in values)
                if number and not any(isinstance(to_python(value), bool) for value in values):
                    numeric += [name] if name.split(".")[0] != "method" and name not in structural else []
        if self._can_trace(numeric):
            return tuple(numeric)
        alone = [name for name in numeric if self._can_trace([name])]
        return tuple(alone) if self._can_trace(alone) else ()

    def _can_trace(self, names: list[str]) -> bool:
        rest = {name: value for name, value in self.plan.member().items() if name not in names}
        try:
            jax.eval_shape(self._builder(rest), dict.fromkeys(names, SCALAR))
        except Exception:  # whatever a model or a user's own file does to a number that it cannot know yet
            return False
        return True

    def _builder(self, fixed: Values) -> Callable[[Numbers], Member]:
        """numbers -> member with these fixed values; what does not depend on numbers is built once, here."""
        config, folder = self._config(fixed), self.plan.folder
        numbers = [name for name in self.plan.names if name not in fixed and name != ENERGY_NAME]
        varying = [name for name in numbers if name.startswith(("system.", "initial.", "run.t0"))]
        system = None
        if not any(name.startswith("system.") for name in varying):
            system = build_system(config["system"], folder)[1]
        state = None if system is None or varying else build_state(system, config["initial"], config["run"])

        def build(values: Numbers) -> Member:
            own = substitute(config, {name: value for name, value in values.items() if name != ENERGY_NAME})
            with jax.ensure_compile_time_eval() if system is not None else nullcontext():
                made = build_system(own["system"], folder)[1] if system is None else system
                begin = build_state(made, own["initial"], own["run"]) if state is None else state
            energy = values.get(ENERGY_NAME, fixed.get(ENERGY_NAME))
            begin = begin if energy is None else _scale_to_energy(made, begin, energy)
            return Member(made, begin, jnp.asarray(own["run"]["step"], float))

        return build

    def _make_family(self, structure: Structure) -> MemberFamily:
        fixed = {name: _thaw(value) for name, value in zip(self.structural, structure, strict=True)}
        config = self._config(fixed)
        integrator, run = build_method(config["method"]), config["run"]
        if integrator.variable_step and "t_end" in run:
            raise InvalidInput(
                f"the members of a sweep by {integrator.name} reach t_end after different numbers of steps: "
                "give run.steps"
            )
        kernel = member_kernel(integrator, self._builder(fixed), self.plan.keep, self.plan.reductions)
        step = 1.0 if "run.step" in self.traced else run["step"]
        steps = None if self.own_steps else count_steps(step, run.get("steps"), run.get("t_end"), run.get("t0", 0.0))
        numbers = dict.fromkeys(self.traced, SCALAR)
        loop = jax.eval_shape(kernel.begin, numbers, ())
        return MemberFamily(steps, kernel, fuse_run(kernel), jax.eval_shape(kernel.observe, numbers, loop))

    def step_counts(self, family: MemberFamily, values: Values, count: int) -> np.ndarray[Any, Any]:
        """The number of steps of every member."""
        if family.steps is not None:
            return np.full(count, family.steps)
        run = self.first.config["run"]
        t0, h = (np.broadcast_to(values.get(f"run.{key}", run.get(key, 0.0)), count) for key in ("t0", "step"))
        return np.asarray(np.maximum(np.floor((run["t_end"] - t0) / h * (1 + 1e-12) + 1e-9), 1).astype(int))


def _scale_to_energy(system: MechanicalSystem, state: State, energy: Any) -> State:
    """Scale the velocity to this energy; the kinetic energy has to be quadratic, and the constraint A xi = 0."""
    rest = system.energy(state.t, state.g, jnp.zeros_like(state.xi))
    scale = jnp.sqrt((energy - rest) / (system.energy(state.t, state.g, state.xi) - rest))
    xi, momentum, increment = (scale * each for each in state[2:])
    return state._replace(xi=xi, momentum=momentum, increment=increment)


def _freeze(value: Any) -> Any:
    return ("list", *map(_freeze, value)) if isinstance(value, list) else value


def _thaw(value: Any) -> Any:
    return [_thaw(entry) for entry in value[1:]] if isinstance(value, tuple) else value


class SweepVariable:
    """An array of a sweep: dimensions and shape of one member's part, the type, and the value that means missing."""

    def __init__(self, dims: tuple[str, ...], shape: tuple[int, ...], dtype: str, missing: float, about: str):
        self.dims, self.shape, self.dtype, self.missing, self.about = dims, shape, np.dtype(dtype), missing, about


def describe_variables(members: SweepMembers) -> dict[str, SweepVariable]:
    """The arrays that a sweep stores."""
    plan = members.plan
    status = "0 ok, 1 not converged, 2 branch lost, 3 not finite, 4 starts off the constraint, -1 not computed"
    failed = "good steps before the failure (-1: none at all); -2 where nothing failed"
    found = {
        "status": SweepVariable((), (), "int8", NOT_DONE, status),
        "failed_step": SweepVariable((), (), "int64", NOT_FAILED, failed),
    }
    for name, spec in members.schema.items():
        head, shape = name.rstrip("_0123456789"), spec.shape
        if name in ("status", "steps") or (name == "energy" and head not in plan.reductions):
            continue
        if head not in STATE_VARIABLES:
            dims = tuple(f"{name}_{k}" for k in range(len(shape)))
            found[name] = SweepVariable(dims, shape, "float64", np.nan, name.replace("_", " "))
            continue
        if head == "configuration":
            dims = tuple(f"{name}_{axis}" for axis in ("row", "column")[: len(shape)])
        else:
            vector = "component" if shape == (members.first.system.group.dim,) else "restricted"
            dims = {"time": (), "angle": ("rotation",)}.get(head, (vector,))
        if "final" in plan.keep:
            found[f"final_{name}"] = SweepVariable(dims, shape, "float64", np.nan, f"{name} at the last good state")
        if "states" in plan.keep:
            saves = 1 + -(-int(members.first.run["steps"]) // plan.save_every)
            about = f"{name} at the saved states"
            found[name] = SweepVariable(("save", *dims), (saves, *shape), "float64", np.nan, about)
    if "drift" in plan.keep:
        kinds = f"growth of the energy error: {', '.join(f'{k} {kind}' for k, kind in enumerate(GROWTH_KINDS))}"
        rate = "rate of that growth, see dalembert.analysis.drift"
        found["drift"] = SweepVariable((), (), "int8", NOT_CLASSIFIED, f"{kinds}, -1 not classified")
        found["drift_rate"] = SweepVariable((), (), "float64", np.nan, rate)
    return found


def compute_block(
    members: SweepMembers, block: GridBlock, backend: Backend = "auto", threads: int | None = None
) -> Arrays:
    """The arrays of a block, in its shape. Ctrl-C raises KeyboardInterrupt: a block is complete or absent."""
    values = members.plan.values(block)
    described = describe_variables(members)
    arrays = {name: np.full((block.size, *one.shape), one.missing, one.dtype) for name, one in described.items()}
    where: dict[str, Any] = {"backend": backend, "threads": threads}
    for places, family, steps in _group_members(members, values, block.size):
        numbers = {name: np.asarray(values[name], float)[places] for name in members.traced}
        lanes = len(arrays["status"][places])
        for name, part in _run_group(members.plan, family, numbers, steps, lanes, where).items():
            arrays[name][places] = part
    return {name: array.reshape(*block.shape, *described[name].shape) for name, array in arrays.items()}


def _group_members(members: SweepMembers, values: Values, size: int) -> Iterator[tuple[Any, MemberFamily, int]]:
    """(places, family, steps) of members that run together."""
    groups: dict[Structure, list[int]] = {}
    for place in range(size) if members.structural else ():
        key = members.structure({name: values[name][place] for name in members.structural})
        groups.setdefault(key, []).append(place)
    keys: dict[Structure, Any] = {key: np.array(group) for key, group in groups.items()} or {(): slice(None)}
    for key, places in keys.items():
        family = members.family(key)
        inside = {name: np.asarray(values[name])[places] for name in members.traced}
        counts = members.step_counts(family, inside, size if isinstance(places, slice) else len(places))
        for steps in np.unique(counts):
            yield places if np.all(counts == steps) else np.arange(size)[places][counts == steps], family, int(steps)


def _run_group(
    plan: SweepPlan, family: MemberFamily, numbers: Values, steps: int, lanes: int, where: Mapping[str, Any]
) -> Arrays:
    """Run the members of one structure and number of steps."""
    if not {"states", "drift"} & set(plan.keep):  # one call, into which numbers go and out of which results come
        axes = ((dict.fromkeys(numbers, 0), None), None)
        last = evaluate(family.fused, (numbers, float(steps)), (), lanes=lanes, axes=axes, **where)
        return _select_results(plan, [{name: leaf[:, None] for name, leaf in last.items()}], 1)
    begin, advance, observe = family.kernel
    loop = evaluate(begin, numbers, (), lanes=lanes, axes=(0, None), **where)
    every = plan.save_every if "states" in plan.keep else max(1, steps // (4 * MAX_BLOCKS))
    parts: list[Arrays] = []
    for count, stride in ((steps // every, every), (1, steps % every)):
        if count and stride:
            problem = make_problem(advance, observe, numbers, loop, lanes=lanes, axes=(0, 0))
            done = run_problem(problem, saves=count, save_every=stride, initial=not parts, **where)
            if done.interrupted:
                raise KeyboardInterrupt
            loop = done.carry
            parts.append(done.records)
    return _select_results(plan, parts, steps // every)


def _select_results(plan: SweepPlan, parts: list[Arrays], equidistant: int) -> Arrays:
    """What the plan keeps of the saved records; the first `equidistant` + 1 of them are equally far apart."""
    last = {name: leaf[:, -1] for name, leaf in parts[-1].items()}
    status, steps = last.pop("status"), last.pop("steps")
    failed_step = np.where(status == OK, NOT_FAILED, steps).astype(np.int64)
    found: Arrays = {"status": status.astype(np.int8), "failed_step": failed_step}
    state = [name for name in last if name.rstrip("_0123456789") in STATE_VARIABLES]
    found |= {name: leaf for name, leaf in last.items() if name not in (*state, "energy")}
    if "final" in plan.keep:
        found |= {f"final_{name}": last[name] for name in state}
    if "states" in plan.keep:
        found |= {name: np.concatenate([part[name] for part in parts], axis=1) for name in state}
    if "drift" in plan.keep:
        times, energy = (parts[0][name][:, : equidistant + 1] for name in ("time", "energy"))
        if energy.shape[1] < MIN_SAMPLES:
            raise InvalidInput(f'keep = "drift" needs at least {MIN_SAMPLES} steps; a run has {energy.shape[1] - 1}')
        found["drift"] = np.full(len(energy), NOT_CLASSIFIED, np.int8)
        found["drift_rate"] = np.full(len(energy), np.nan)
        for k in np.flatnonzero(status == OK):
            drift = classify(times[k], energy[k] - energy[k, 0])
            found["drift"][k], found["drift_rate"][k] = GROWTH_KINDS.index(drift.kind), drift.rate
    return found
