"""Trajectories as labelled data: an `xarray.Dataset` with names, coordinates, units and where it all came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ._version import made_by
from .coordinates import axes, quaternions
from .groups.motions import Motions
from .groups.rotations import Rotations
from .run import Run

if TYPE_CHECKING:
    import xarray

NAMES = {
    "records.state.t": "time",
    "records.state.xi": "velocity",
    "records.state.momentum": "momentum",
    "records.state.increment": "increment",
    "records.multipliers": "multiplier",
    "records.angles": "angle",
    "records.residual": "residual",
    "records.iterations": "iterations",
    "records.steps": "steps",
    "records.step_size": "step_size",
}
"""The columns that hold the records of a run, by where they are in a `Trajectory`."""

ABOUT: dict[str, tuple[str, str]] = {
    "time": ("time", "s"),
    "configuration": ("configuration g: the matrix of the group element, or a vector", ""),
    "velocity": ("left-trivialised velocity xi = g^-1 g' in D", "of each component: velocity_unit"),
    "momentum": ("momentum as the method has it", "of each component: momentum_unit"),
    "increment": ("tau^-1(W)/h of the method's displacement", "of each component: velocity_unit"),
    "multiplier": ("Lagrange multipliers of the step that led here", "W over the unit of A xi"),
    "reaction": ("reaction of the constraint A^T l, in the body", "of each component: force_unit"),
    "angle": ("unwrapped angles of the planar rotations", "rad"),
    "quaternion": ("attitude (w, x, y, z)", "1"),
    "position": ("position in space", "m"),
    "energy": ("energy <L_xi, xi> - L", "J"),
    "constraint_residual": ("max |A xi - b|", "of A xi"),
    "holonomic_residual": ("max |phi| of the holonomic constraints", "of phi"),
    "group_distance": ("distance from the group, |R^T R - 1|", "1"),
    "residual": ("residual of the step's equations", ""),
    "iterations": ("Newton iterations of the step that led here", "1"),
    "steps": ("number of steps from the start", "1"),
    "step_size": ("size of the step that led here", "s"),
}
"""What each column is, and its unit if the parameters are in SI units ([q]: the unit of the coordinate itself)."""

EVENTS = {
    "event": {"long_name": "the event that is crossed"},
    "event_time": {"long_name": "time of the crossing", "units": "s"},
    "event_step": {"long_name": "number of the step in which it lies", "units": "1"},
    "event_theta": {"long_name": "part of that step before it", "units": "1"},
    "event_direction": {"long_name": "1 upwards, -1 downwards", "units": "1"},
    "event_member": {"long_name": "member of the ensemble", "units": "1"},
}


def to_xarray(trajectory: Run, *, reaction: bool = False) -> xarray.Dataset:
    """A Dataset over `time` (over `member` and `save` for an ensemble) with every saved number and what follows from it.

    `reaction=True` adds the reaction forces A^T l, which take a second or two to compile.
    """
    import xarray

    lead = ("member", "save") if np.ndim(trajectory.final.status) else ("time",)
    columns = _saved(trajectory) | _attitudes(trajectory)
    columns |= {
        "energy": (trajectory.energy(), ()),
        "constraint_residual": (trajectory.constraint_residual(), ()),
        "group_distance": (trajectory.group_distance(), ()),
    }
    if trajectory.holonomic_constraints:
        columns["holonomic_residual"] = (trajectory.holonomic_residual(), ())
    if reaction:
        columns["reaction"] = (trajectory.reaction(), ("component",))
    data = {
        name: ((*lead, *dims), np.asarray(values), _about(name))
        for name, (values, dims) in columns.items()
        if np.size(values)
    }
    coordinates: dict[str, Any] = {"time": (lead, np.asarray(trajectory.t), _about("time"))}
    if any("component" in dims for dims, *_ in data.values()):
        components = axes(trajectory.system.group)
        coordinates["component"] = [axis.name for axis in components]
        for kind in ("velocity", "momentum", "force"):
            coordinates[f"{kind}_unit"] = ("component", [getattr(axis, kind) for axis in components])
    if any("part" in dims for dims, *_ in data.values()):
        coordinates["part"] = list("wxyz")
    return xarray.Dataset(data | _crossings(trajectory), coords=coordinates, attrs=provenance(trajectory))


def _crossings(trajectory: Run) -> dict[str, Any]:
    """The columns over `crossing`: all crossings of all events, with the name of the event beside them."""
    found = [each for each in trajectory.events.values() if len(each)]
    if not found:
        return {}
    stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[each.record for each in found])
    columns: dict[str, tuple[Any, tuple[str, ...]]] = {
        "event": (np.concatenate([[each.name] * len(each) for each in found]), ()),
        "event_time": (stacked.state.t, ()),
        "event_step": (stacked.steps, ()),
        "event_theta": (np.concatenate([each.theta for each in found]), ()),
        "event_direction": (np.concatenate([each.direction for each in found]), ()),
        "event_member": (np.concatenate([each.lane for each in found]), ()),
        "event_velocity": (stacked.state.xi, ("component",)),
    }
    for name, factor in configurations(stacked.state.g).items():
        dims = tuple(f"{name}_{axis}" for axis in ("row", "column")[: np.ndim(factor) - 1])
        columns[f"event_{name}"] = (factor, dims)
    return {name: (("crossing", *dims), values, EVENTS.get(name, {})) for name, (values, dims) in columns.items()}


def _saved(trajectory: Run) -> dict[str, tuple[Any, tuple[str, ...]]]:
    records, state = trajectory.records, trajectory.records.state
    n = trajectory.system.group.dim
    whole = np.shape(state.momentum)[-1] == n
    columns: dict[str, tuple[Any, tuple[str, ...]]] = {
        "velocity": (state.xi, ("component",)),
        "momentum": (state.momentum, ("component" if whole else "restricted",)),
        "increment": (state.increment, ("component",)),
        "multiplier": (records.multipliers, ("constraint",)),
        "angle": (records.angles, ("rotation",)),
        "residual": (records.residual, ()),
        "iterations": (records.iterations, ()),
        "steps": (records.steps, ()),
        "step_size": (trajectory.step_sizes, ()),
    }
    lead = np.ndim(records.residual)
    for name, factor in configurations(trajectory.g).items():
        dims = tuple(f"{name}_{axis}" for axis in ("row", "column")[: np.ndim(factor) - lead])
        columns[name] = (factor, dims)
    return columns


def configurations(g: Any) -> dict[str, Any]:
    """The columns of configurations: one, or one for each factor of a product."""
    return (
        {f"configuration_{k}": factor for k, factor in enumerate(g)} if isinstance(g, tuple) else {"configuration": g}
    )


def _attitudes(trajectory: Run) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Quaternions and positions, for those factors that have them."""
    columns: dict[str, tuple[Any, tuple[str, ...]]] = {}
    factors = trajectory.system.group.factors
    for (name, values), factor in zip(configurations(trajectory.g).items(), factors, strict=True):
        tail = name.removeprefix("configuration")
        size = factor.size if isinstance(factor, Motions | Rotations) else 0
        if size == 3:
            columns[f"quaternion{tail}"] = (quaternions(np.asarray(values)[..., :3, :3]), ("part",))
        if isinstance(factor, Motions):
            columns[f"position{tail}"] = (np.asarray(values)[..., :size, size], (f"space{tail}",))
    return columns


def _about(name: str) -> dict[str, str]:
    head = name if name in ABOUT else name.rpartition("_")[0]
    text, unit = ABOUT[head]
    return {"long_name": text} | ({"units": unit} if unit else {})


def provenance(trajectory: Run) -> dict[str, Any]:
    """What made this run: group, method, step, how it ended, backend, versions, machine and time."""
    failed = np.count_nonzero(np.asarray(trajectory.final.status))
    return {
        "group": str(trajectory.system.group),
        "method": repr(trajectory.integrator),
        "step": float(trajectory.step),
        "status": "failed" if failed else "ok",
        "reason": str(trajectory.reason) if failed and not np.ndim(trajectory.final.status) else "",
        "interrupted": int(trajectory.interrupted),
        "backend": trajectory.backend,
        "note": trajectory.note,
        **made_by(),
        "units": "SI, if the parameters are; [q] is the unit of the coordinate itself",
    }
