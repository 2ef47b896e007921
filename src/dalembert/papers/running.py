"""Runs for figures: whole or not at all."""

from __future__ import annotations

from typing import Any

from ..integrators import Integrator
from ..run import Run
from ..simulate import simulate as run_whole
from ..system import MechanicalSystem, State


def simulate(system: MechanicalSystem, integrator: Integrator, state: State, **options: Any) -> Run:
    """`dalembert.simulate`, but Ctrl-C ends the figure: half a run must not be drawn as a whole one."""
    run = run_whole(system, integrator, state, **options)
    if run.interrupted:
        raise KeyboardInterrupt
    return run
