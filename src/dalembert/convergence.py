"""The convergence study of a configuration: its method at its step, and at halves of it."""

from __future__ import annotations

from typing import Any

from .analysis.order import Convergence, convergence
from .config import Job
from .errors import InvalidInput
from .report import plain

LEVELS = 5


def study(job: Job, *, levels: int = LEVELS, local: bool = False, richardson: bool = False) -> Convergence:
    """Errors at the end of the run of a configuration (or after one step), with its step halved `levels` - 1 times."""
    if levels < 2 or (richardson and levels < 3):
        raise InvalidInput(f"levels is {levels}; allowed: at least 2 steps to compare, 3 with richardson")
    first, duration = job.run["steps"], job.run["steps"] * job.run["step"]
    return convergence(
        job.system,
        job.integrator,
        job.state,
        duration=duration,
        counts=[first * 2**k for k in range(levels)],
        local=local,
        exact="richardson" if richardson else None,
        backend=job.run.get("backend", "auto"),
    )


def report(found: Convergence, job: Job) -> dict[str, Any]:
    """The study as one object of plain numbers; null where a run failed or an error is round-off."""
    return {
        "system": job.names["system"],
        "method": job.names["method"],
        "errors": "local" if found.local else "global",
        "time": float(job.state.t) + (0.0 if found.local else job.run["steps"] * job.run["step"]),
        "step": plain(found.steps),
        "reason": [reason or None for reason in found.failures],
        "quantities": {
            name: {
                "error": plain(found.norms[name]),
                "slope": plain(found.slopes(name)),
                "order": found.order(name),
                "coefficient": None if (c := found.coefficient(name)) is None else plain(c),
            }
            for name in found.norms
        },
    }
