"""Runs: `driver` says what happens in which order, `loop` steps, `events` watches, `results` is what a run leaves."""

from .driver import ensemble, simulate
from .events import QUANTITIES, SCALARS, Event, Quantity, check_events, states_at
from .loop import BACKENDS, LoopState, RunKernel, count_steps, held_controls, run_kernel
from .results import (
    ENERGY_BALANCE,
    ENERGY_CHANGE,
    ENERGY_ERROR,
    MAX_SAVED_STEPS,
    Conservation,
    Crossings,
    Run,
    RunSummary,
    energy_conservation,
    join_crossings,
    receives_power,
    save_interval,
    subsampled,
    to_json,
)  # fmt: skip

__all__ = [
    "BACKENDS", "ENERGY_BALANCE", "ENERGY_CHANGE", "ENERGY_ERROR", "MAX_SAVED_STEPS", "QUANTITIES", "SCALARS",
    "Conservation", "Crossings", "Event", "LoopState", "Quantity", "Run", "RunKernel", "RunSummary",
    "check_events", "count_steps", "energy_conservation", "ensemble", "held_controls", "join_crossings",
    "receives_power", "run_kernel", "save_interval", "simulate", "states_at", "subsampled", "to_json",
]  # fmt: skip
