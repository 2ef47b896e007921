"""How trajectories show themselves in a notebook."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

from ._html import table
from .balance import energy_kept
from .plotting import plot_trajectory
from .run import Run

DRAWN = 20_000
"""States up to which a trajectory is drawn beside its table."""


def trajectory_html(run: Run) -> str:
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
    energy = energy_kept(run)
    rows[f"largest {energy.title.lower()}"] = _peak(energy.values)
    if run.multipliers.shape[-1]:
        rows["largest constraint residual"] = _peak(run.constraint_residual())
    if run.holonomic_constraints:
        rows["largest |phi|"] = _peak(run.holonomic_residual())
    rows["largest distance from the group"] = _peak(run.group_distance())
    picture = _picture(run) if 1 < len(run.t) <= DRAWN else ""
    return table("Trajectory", rows) + picture


def _peak(values: Any) -> str:
    return f"{np.abs(np.asarray(values)).max():.3g}"


def _picture(run: Run) -> str:
    room = io.BytesIO()
    plot_trajectory(run).savefig(room, format="png", dpi=70)
    return (
        f'<img alt="motion and conservation" src="data:image/png;base64,{base64.b64encode(room.getvalue()).decode()}">'
    )
