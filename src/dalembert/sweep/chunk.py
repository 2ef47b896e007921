"""The work of a sweep: one block of members, as lanes of compiled runs, into named arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..analysis.drift import BLOCKS, KINDS, LEAST, classify
from ..errors import InvalidInput
from ..integrators.base import OK
from ..kernels.evaluate import evaluated
from ..kernels.problem import problem
from ..kernels.run import Backend, run
from .axes import Values
from .members import Family, Members
from .plan import Block, Plan

Arrays = dict[str, np.ndarray]
STATE = ("time", "velocity", "momentum", "angle", "configuration")
NOT_DONE, NOT_CLASSIFIED = -1, -1


class Variable:
    """An array of a sweep beside its member dimensions: the dimensions and shape of one member's part, the type, what missing is."""

    def __init__(self, dims: tuple[str, ...], shape: tuple[int, ...], dtype: str, missing: float, about: str):
        self.dims, self.shape, self.dtype, self.missing, self.about = dims, shape, np.dtype(dtype), missing, about


def variables(members: Members) -> dict[str, Variable]:
    """What a sweep stores."""
    plan, schema = members.plan, members.schema
    found = {
        "status": Variable(
            (),
            (),
            "int8",
            NOT_DONE,
            "0 ok, 1 not converged, 2 branch lost, 3 not finite, 4 starts off the constraint, -1 not computed",
        ),
        "failed_step": Variable(
            (), (), "int64", -2, "good steps before the failure (-1: none at all); -2 where nothing failed"
        ),
    }
    for name, spec in schema.items():
        head = name.rstrip("_0123456789")
        if name in ("status", "steps") or (name == "energy" and head not in plan.reductions):
            continue
        if head not in STATE:
            found[name] = Variable(
                tuple(f"{name}_{k}" for k in range(len(spec.shape))),
                spec.shape,
                "float64",
                np.nan,
                name.replace("_", " "),
            )
            continue
        dims = _dims(name, head, spec.shape, members)
        if "final" in plan.keep:
            found[f"final_{name}"] = Variable(dims, spec.shape, "float64", np.nan, f"{name} at the last good state")
        if "states" in plan.keep:
            saves = 1 + -(-int(members.first.run["steps"]) // plan.save_every)
            found[name] = Variable(
                ("save", *dims), (saves, *spec.shape), "float64", np.nan, f"{name} at the saved states"
            )
    if "drift" in plan.keep:
        kinds = ", ".join(f"{k} {kind}" for k, kind in enumerate(KINDS))
        found["drift"] = Variable(
            (), (), "int8", NOT_CLASSIFIED, f"growth of the energy error: {kinds}, -1 not classified"
        )
        found["drift_rate"] = Variable(
            (), (), "float64", np.nan, "rate of that growth, see dalembert.diagnostics.drift"
        )
    return found


def _dims(name: str, head: str, shape: tuple[int, ...], members: Members) -> tuple[str, ...]:
    if head == "configuration":
        return tuple(f"{name}_{axis}" for axis in ("row", "column")[: len(shape)])
    whole = shape == (members.first.system.group.dim,)
    return {"time": (), "angle": ("rotation",)}.get(head, ("component" if whole else "restricted",))


def compute(members: Members, block: Block, backend: Backend = "auto", threads: int | None = None) -> Arrays:
    """The arrays of a block, in its shape. Ctrl-C raises KeyboardInterrupt: a block is whole or not there."""
    values = members.plan.values(block)
    described = variables(members)
    arrays = {name: np.full((block.size, *one.shape), one.missing, one.dtype) for name, one in described.items()}
    for places, key, steps in _groups(members, values, block.size):
        family = members.family(key)
        numbers = {name: np.asarray(values[name], float)[places] for name in members.traced}
        for name, part in _run(
            members.plan, family, numbers, steps, len(arrays["status"][places]), backend, threads
        ).items():
            arrays[name][places] = part
    return {name: array.reshape(*block.shape, *described[name].shape) for name, array in arrays.items()}


def _groups(members: Members, values: Values, size: int):
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
    plan: Plan, family: Family, numbers: Values, steps: int, lanes: int, backend: Backend, threads: int | None
) -> Arrays:
    """The members of one structure and number of steps."""
    where: dict[str, Any] = {"backend": backend, "threads": threads}
    if not {"states", "drift"} & set(plan.keep):  # one call, into which numbers go and out of which results come
        axes = ((dict.fromkeys(numbers, 0), None), None)
        last = evaluated(family.whole, (numbers, float(steps)), (), lanes=lanes, axes=axes, **where)
        return _kept(plan, [{name: leaf[:, None] for name, leaf in last.items()}], 1)
    begin, advance, observe = family.functions
    loop = evaluated(begin, numbers, (), lanes=lanes, axes=(0, None), **where)
    every = plan.save_every if "states" in plan.keep else max(1, steps // (4 * BLOCKS))
    parts: list[dict[str, np.ndarray]] = []
    for count, stride in ((steps // every, every), (1, steps % every)):
        if count and stride:
            described = problem(advance, observe, numbers, loop, lanes=lanes, axes=(0, 0))
            done = run(described, saves=count, save_every=stride, initial=not parts, **where)
            if done.interrupted:
                raise KeyboardInterrupt
            loop = done.loop
            parts.append(done.records)
    return _kept(plan, parts, steps // every)


def _kept(plan: Plan, parts: list[dict[str, np.ndarray]], equidistant: int) -> Arrays:
    last = {name: leaf[:, -1] for name, leaf in parts[-1].items()}
    status, steps = last.pop("status"), last.pop("steps")
    found: Arrays = {
        "status": status.astype(np.int8),
        "failed_step": np.where(status == OK, -2, steps).astype(np.int64),
    }
    state = [name for name in last if name.rstrip("_0123456789") in STATE]
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
