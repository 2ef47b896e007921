"""A run as one object of plain numbers: what `--json` prints and what tables are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..groups import described
from ..integrators import DormandPrince, RungeKutta, Taylor
from ..kernels import compile_function
from ..simulation import ENERGY_BALANCE, Crossings, Run, energy_conservation, receives_power


def report(trajectory: Run, names: Mapping[str, str]) -> dict[str, Any]:
    """Status, final state and conservation of a monitored run (`simulate(..., monitor=True)`); null where there is nothing."""
    failed_at = trajectory.failed_at
    started = failed_at is None or failed_at >= 0
    return {
        "system": names["system"],
        "method": names["method"],
        "step": float(trajectory.step),
        "steps": max(0, int(trajectory.final.steps)),
        "time": float(trajectory.t[-1]),
        "status": trajectory.status,
        "failed_at": failed_at,
        "reason": trajectory.reason or None,
        "stopped_by": trajectory.stopped_by,
        "interrupted": trajectory.interrupted,
        "backend": trajectory.backend,
        "final": _final(trajectory) if started else dict.fromkeys(FINAL),
        **(
            _conservation(trajectory)
            if started
            else {"energy": dict.fromkeys(ENERGY), **{name: {"max": None} for name in KEPT}}
        ),
        "events": [_crossings(found) for found in trajectory.events.values()],
    }


def _crossings(found: Crossings) -> dict[str, Any]:
    """What was found of one event: lists with an entry for each crossing."""
    return {
        "name": found.name,
        "stop": found.stop,
        "count": len(found),
        "suspects": int(np.sum(found.suspects)),
        "time": np.asarray(found.t).tolist(),
        "step": np.asarray(found.step).tolist(),
        "theta": np.asarray(found.theta).tolist(),
        "direction": np.asarray(found.direction).tolist(),
        "configuration": [to_json(jax.tree.map(lambda leaf: leaf[k], found.g)) for k in range(len(found))],
        "angles": [to_json(row) for row in found.record.angles],
        "velocity": [to_json(row) for row in found.xi],
    }


FINAL = ("configuration", "angles", "velocity", "increment", "momentum", "multipliers", "coordinates")
ENERGY = ("initial", "final", "max_error", "powered", "balance")
KEPT = ("constraint", "holonomic", "group")


def _final(trajectory: Run) -> dict[str, Any]:
    last = trajectory.last
    discrete = not isinstance(trajectory.integrator, RungeKutta | DormandPrince | Taylor)
    values = (
        last.g,
        trajectory.angles[-1],
        last.xi,
        last.increment if discrete else (),
        last.momentum,
        trajectory.multipliers[-1],
    )
    coordinates = described(trajectory.system.group, last.g, trajectory.angles[-1])
    return dict(zip(FINAL, (*map(to_json, values), coordinates), strict=True))


def _conservation(trajectory: Run) -> dict[str, Any]:
    peaks = trajectory.final.peaks
    energy = float(_energy(trajectory.system, trajectory.last))
    enters = receives_power(trajectory.system)
    kept = energy_conservation(trajectory) if enters else None
    balance = kept.peak if kept is not None and kept.title == ENERGY_BALANCE else None
    numbers = map(to_json, (peaks.energy, energy, peaks.energy_error))
    return {
        "energy": dict(zip(ENERGY, (*numbers, enters, balance), strict=True)),
        "constraint": {"max": to_json(peaks.constraint) if trajectory.multipliers.shape[-1] else None},
        "holonomic": {"max": to_json(np.max(peaks.holonomic)) if trajectory.holonomic_constraints else None},
        "group": {"max": to_json(peaks.group)},
    }


@compile_function
def _energy(system, state):
    return system.energy(state.t, state.g, state.xi)


def to_json(value: Any) -> Any:
    """Nested lists of Python floats; None for what is empty or not finite."""
    if isinstance(value, tuple | list):
        return [to_json(entry) for entry in value] or None
    array = np.asarray(value, float)
    if array.ndim:
        return [to_json(entry) for entry in array] or None
    return float(array) if np.isfinite(array) else None
