"""What is known exactly about a sweep: curves to draw over its pictures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import parse
from ..errors import InvalidInput
from ..invariant import InvariantSystem
from ..models.sleigh import total_turning

if TYPE_CHECKING:
    import xarray

FOLLOWED = 20
"""Steps over which a threshold is followed: its time grows like their square, and the gallery's is then settled to 2e-7."""

Curve = tuple[np.ndarray, np.ndarray, str]


def exact_curve(data: xarray.Dataset, show: str, x: str, y: str | None) -> Curve:
    """The exact curve of `show` over these dimensions: the edge of the solvable steps of a Suslov body, or the turning of a sleigh."""
    saved = json.loads(data.attrs["plan"])
    config: dict[str, Any] = saved["config"]
    if show in ("status", "failed_step") and {x, y} == {"run_step", "initial_energy"}:
        return _threshold(config, data, x)
    if config["system"].get("name") == "chaplygin-sleigh" and show == "final_angle.0" and x == "system_a" and y is None:
        return _turning(config, data)
    raise InvalidInput(
        "no exact curve is known for this picture: --exact draws thresholds over run_step and initial_energy, or "
        "final_angle.0 of a sleigh over system_a"
    )


def _threshold(config: dict[str, Any], data: xarray.Dataset, x: str) -> Curve:
    """eps sqrt(E) = const: only the displacement h w enters the equations of an invariant system, so one threshold gives the curve."""
    from ..analysis.thresholds import largest_step

    job = parse(config)
    if not isinstance(job.system, InvariantSystem):
        raise InvalidInput("exact thresholds are known for invariant systems alone")
    energy = float(job.system.energy(job.state.t, job.state.g, job.state.xi))
    limit = largest_step(
        job.system, job.integrator, np.asarray(job.state.momentum), steps=min(int(job.run["steps"]), FOLLOWED)
    )
    energies = np.geomspace(float(data.initial_energy.min()), float(data.initial_energy.max()), 200)
    steps = limit * np.sqrt(energy / energies)
    inside = (steps >= float(data.run_step.min())) & (steps <= float(data.run_step.max()))
    pair = (steps[inside], energies[inside])
    return (*(pair if x == "run_step" else pair[::-1]), "exact threshold")


def _turning(config: dict[str, Any], data: xarray.Dataset) -> Curve:
    """(pi/a) sqrt((J + m a^2)/m), with J where the picture is cut."""
    a = np.asarray(data.system_a)
    system = config["system"]
    inertia = float(data.system_inertia) if "system_inertia" in data.coords else system.get("inertia", 1.0)
    turning = [total_turning(system.get("mass", 1.0), inertia, float(each)) for each in a]
    return a, np.array(turning), "(pi/a) sqrt((J + m a^2)/m)"
