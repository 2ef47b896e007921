"""How systems and trajectories show themselves in a notebook."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import Any

import jax
import numpy as np

from .coordinates import axes
from .invariant import InvariantSystem
from .plotting import plot_trajectory
from .system import MechanicalSystem
from .trajectory import Trajectory

DRAWN = 20_000
"""States up to which a trajectory is drawn beside its table."""


def trajectory_html(run: Trajectory) -> str:
    """What ran and how it went, with a picture of a single run."""
    many = bool(np.ndim(run.final.status))
    failed = int(np.count_nonzero(np.asarray(run.final.status)))
    rows: dict[str, Any] = {
        "group": run.system.group,
        "method": run.integrator,
        "step": f"{float(run.step):g}",
        "states": f"{np.shape(run.t)[-1]}" + (f" of each of {np.size(run.final.status)} members" if many else ""),
        "time": f"{float(np.ravel(run.t)[0]):g} to {float(np.ravel(run.t)[-1]):g}",
        "status": (f"{failed} members failed" if many else f"failed after step {run.failed_at}: {run.reason}")
        if failed
        else "ok",
    }
    if many or (failed and run.failed_at == -1):
        return table("Trajectory", rows)
    rows["largest energy error"] = _peak(run.energy_error())
    if run.multipliers.shape[-1]:
        rows["largest constraint residual"] = _peak(run.constraint_residual())
    if run.holonomic_constraints:
        rows["largest |phi|"] = _peak(run.holonomic_residual())
    rows["largest distance from the group"] = _peak(run.group_distance())
    picture = _picture(run) if 1 < len(run.t) <= DRAWN else ""
    return table("Trajectory", rows) + picture


def system_html(system: MechanicalSystem) -> str:
    """Group, components, constraint and parameters."""
    m, k = system.constraints, system.holonomic_constraints
    rows: dict[str, Any] = {
        "configurations": f"{system.group}, dimension {system.group.dim}",
        "velocity": "(" + ", ".join(axis.name for axis in axes(system.group)) + ")",
        "constraints": f"{m}: D has rank {system.group.dim - m}" if m else "none: the system is free",
    }
    if k:
        rows["constraints"] += f"; {k} of them holonomic, phi(g) = 0: configurations stay on a leaf of dimension {system.group.dim - k}"
    if isinstance(system, InvariantSystem):
        rows |= {"inertia": _numbers(system.inertia), "basis of d": _numbers(system.subspace)}
    leaves, _ = jax.tree_util.tree_flatten_with_path(getattr(system, "parameters", None))
    for path, leaf in leaves:
        rows["parameter " + jax.tree_util.keystr(path, simple=True, separator=".")] = _numbers(leaf)
    return table(type(system).__name__, rows)


def table(title: str, rows: dict[str, Any]) -> str:
    cell = "text-align:left; vertical-align:top; font-family:inherit"
    lines = "".join(
        f'<tr><th style="{cell}">{escape(str(name))}</th><td style="{cell}; white-space:pre">{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{lines}</table>"


def _numbers(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=6, threshold=40)


def _peak(values: Any) -> str:
    return f"{np.abs(np.asarray(values)).max():.3g}"


def _picture(run: Trajectory) -> str:
    room = io.BytesIO()
    plot_trajectory(run).savefig(room, format="png", dpi=70)
    return (
        f'<img alt="motion and conservation" src="data:image/png;base64,{base64.b64encode(room.getvalue()).decode()}">'
    )
