"""Runs: the loop, events, what a run leaves, and states between the saved ones."""

from .driver import ensemble, simulate, steps_until
from .events import QUANTITIES, SCALARS, Event, Quantity, named
from .loop import BACKENDS, Loop, RunKernel, count_steps, held_controls, run_kernel
from .results import (
    BALANCE,
    CHANGE,
    ERROR,
    Conservation,
    Crossings,
    Run,
    energy_conservation,
    joined,
    powered,
    save_interval,
    subsampled,
)
from .sampling import states_at

__all__ = [
    "BACKENDS",
    "BALANCE",
    "CHANGE",
    "ERROR",
    "QUANTITIES",
    "SCALARS",
    "Conservation",
    "Crossings",
    "Event",
    "Loop",
    "Quantity",
    "Run",
    "RunKernel",
    "count_steps",
    "energy_conservation",
    "ensemble",
    "held_controls",
    "joined",
    "named",
    "powered",
    "run_kernel",
    "save_interval",
    "simulate",
    "states_at",
    "steps_until",
    "subsampled",
]
