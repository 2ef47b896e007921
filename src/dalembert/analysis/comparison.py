"""Several methods or steps on one system: what each keeps, how far it is from the motion, what a step costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from ..errors import InvalidInput
from ..integrators import Integrator, Reference, scipy_motion
from ..mechanics import MechanicalSystem, State
from ..plotting.runs import plot_methods
from ..simulation import (
    ENERGY_BALANCE,
    Conservation,
    Run,
    count_steps,
    receives_power,
    save_interval,
    simulate,
    steps_until,
    subsampled,
)
from .summary import to_json

COMPARED_TIMES = 100
"""At how many moments, about, runs are compared with the reference motion."""
TIMED_STEPS, MIN_TIMED_STEPS, TIMING_REPEATS = 20_000, 1000, 3
"""A step is timed in runs of so many steps, or of fewer where the motion ends, and so many times."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class MethodRow:
    """One run: the largest energy error, constraint residual and distance from the group over all its steps, its largest error
    in configuration and velocity at the compared moments, and the time of a step. None where there is nothing to say."""

    method: str
    step: float
    steps: int
    status: str  # "ok", "failed", or "refused": the method does not take this system
    energy: float | None
    constraint: float | None
    group: float | None
    error: float | None
    nanoseconds: float | None
    reason: str | None = None
    balance: float | None = None  # the largest |E - E(0) - work|, where power enters


@dataclass(frozen=True)
class Comparison:
    """The rows of the table, the runs behind them by label, and their errors at their saved moments."""

    rows: list[MethodRow]
    runs: dict[str, Run]
    errors: dict[str, np.ndarray]
    interrupted: bool = False
    balances: dict[str, Conservation] = field(
        default_factory=dict
    )  # where power enters, what each run keeps of the energy

    def plot(self, path=None, title: str = ""):
        """Energy, constraint, group and error over time, and the cost of a step; `path` saves it."""
        return plot_methods(self, title=title, path=path)


def compare(
    system: MechanicalSystem,
    integrators: Mapping[str, Integrator],
    state: State,
    *,
    steps: Sequence[float],
    t_end: float,
    backend: Any = "auto",
    error: bool = True,
    timing: bool = True,
    progress: Progress | None = None,
) -> Comparison:
    """Run every method with every step size from `state` up to `t_end`.

    `error` compares with `Reference` (DOP853 at 1e-13), `timing` measures a step. A method that refuses the system gets a row
    that says so; Ctrl-C ends the comparison and keeps what is done.
    """
    if not integrators or not steps:
        raise InvalidInput("a comparison needs at least one method and one step size")
    jobs = [(name, integrator, float(h)) for name, integrator in integrators.items() for h in steps]
    rows: list[tuple[str, MethodRow]] = []
    runs: dict[str, Run] = {}
    balances: dict[str, Conservation] = {}
    for k, (name, integrator, h) in enumerate(jobs):
        label = name if len(steps) == 1 else f"{name}, h = {h:g}"
        count = count_steps(h, None, t_end, float(state.t))
        try:
            if integrator.clock:
                count = steps_until(system, integrator, state, step=h, t_end=t_end, backend=backend)
            every = max(1, count // COMPARED_TIMES)
            run = simulate(
                system,
                integrator,
                state,
                step=h,
                steps=count,
                save_every=save_interval(system, count, every),
                monitor=True,
                backend=backend,
            )
        except InvalidInput as fault:
            rows.append((label, MethodRow(name, h, count, "refused", None, None, None, None, None, str(fault))))
            continue
        if run.interrupted:
            break
        started = run.failed_at != -1
        if started and receives_power(system):
            run, balances[label] = subsampled(run, every)
        if started:
            runs[label] = run
        seconds = seconds_per_step(system, integrator, state, h, backend) if timing and started else None
        rows.append((label, _row(name, run, count, seconds, balances.get(label))))
        if progress is not None:
            progress(k + 1, len(jobs) + error)
    errors = _errors(system, state, runs) if error and runs else {}
    finished = [_with_error(row, errors.get(label)) for label, row in rows]
    return Comparison(finished, runs, errors, interrupted=len(rows) < len(jobs), balances=balances)


def _row(name: str, run: Run, steps: int, seconds: float | None, kept: Conservation | None) -> MethodRow:
    peaks, started = run.final.peaks, run.failed_at != -1
    known = not isinstance(run.integrator, Reference)  # it keeps no extremes: those of its saved states serve
    energy = peaks.energy_error if known else np.abs(np.asarray(run.energy_error())).max()
    constraint = peaks.constraint if known else np.asarray(run.constraint_residual()).max()
    group = peaks.group if known else np.asarray(run.group_distance()).max()
    return MethodRow(
        name,
        float(run.step),
        steps if run.status == "ok" else max(0, run.steps),
        run.status,
        to_json(energy) if started else None,
        to_json(constraint) if started and run.multipliers.shape[-1] else None,
        to_json(group) if started else None,
        None,
        None if seconds is None else 1e9 * seconds,
        run.reason or None,
        kept.peak if kept is not None and kept.title == ENERGY_BALANCE else None,
    )


def _with_error(row: MethodRow, errors: np.ndarray | None) -> MethodRow:
    return row if errors is None or not errors.size else replace(row, error=to_json(errors.max()))


def _errors(system: MechanicalSystem, state: State, runs: Mapping[str, Run]) -> dict[str, np.ndarray]:
    """The largest difference of configuration and velocity from the reference motion, at the saved moments of each run."""
    # The moments of one run are t = t0 + k h, so those of two runs that are meant to be equal may differ by round-off.
    moments = {label: np.round(np.asarray(run.t), 12) for label, run in runs.items()}
    times = np.unique(np.concatenate(list(moments.values())))
    if float(next(iter(runs.values())).step) < 0:
        times = times[::-1]
    reference = scipy_motion(system, state, times)
    known = {t: jax.tree.map(np.asarray, (s.g, s.xi)) for t, s in zip(times, reference, strict=False)}
    result = {}
    for label, run in runs.items():
        there = [k for k, t in enumerate(moments[label]) if t in known]
        motion = jax.tree.map(lambda *leaves: np.stack(leaves), *[known[moments[label][k]] for k in there])
        kept = jax.tree.map(lambda leaf: np.asarray(leaf)[there], (run.g, run.xi))
        gaps = jax.tree.map(lambda a, b: np.abs(a - b).reshape(len(there), -1).max(axis=1), kept, motion)
        result[label] = np.max(jax.tree.leaves(gaps), axis=0)
    return result


def seconds_per_step(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    step: float,
    backend: Any = "auto",
    count: int = TIMED_STEPS,
) -> float | None:
    """Processor time of a step in a long run whose states are not saved, less that of a run of one step; the best of three."""
    if isinstance(integrator, Reference):
        return None

    def seconds(steps: int) -> float:
        begin = time.process_time()
        simulate(system, integrator, state, step=step, steps=steps, save_every=steps, backend=backend)
        return time.process_time() - begin

    long = simulate(system, integrator, state, step=step, steps=count, save_every=count, backend=backend)
    good = long.steps  # a run that has failed stands still, in no typical time
    if good < MIN_TIMED_STEPS:
        return None
    return max(0.0, min(map(seconds, [good] * TIMING_REPEATS)) - min(map(seconds, [1] * TIMING_REPEATS))) / good
