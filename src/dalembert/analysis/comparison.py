"""Several methods or steps on one system: what each keeps, how far it is from the motion, what a step costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from .. import simulation
from ..errors import InvalidInput
from ..integrators import Integrator, Taylor, require_arguments, scipy_motion
from ..kernels import LoweringError
from ..mechanics import MechanicalSystem, State
from ..numerics import require_known, require_progress, show
from ..plotting.runs import plot_methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED_TIMES = 100  # moments, about, at which runs are compared with the reference motion
TIMED_STEPS, MIN_TIMED_STEPS, MAX_TIMED_STEPS, TIMING_REPEATS = 20_000, 1000, 500_000, 5
"""A step is timed in runs of so many steps, or of fewer where the motion ends, and so many times."""
REFERENCE = Taylor(tolerance=1e-16)
SPLITS = 0.382, 0.618  # a second and a third reference motion cut each stretch here: their round-off differs
GOOD_FLOOR = 1e-9  # a Taylor series that tells no less may have met a force that is not analytic: SciPy is asked too
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class MethodRow:
    """One row of a comparison: a method with one step size, its largest errors over all steps, and the time of a step.

    `error` is the largest error of configuration and velocity at the compared times, and `floor` the least that the
    reference motion can tell: an error that equals it is somewhere below. None: not measured.
    """

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
    floor: float | None = None


class ReferenceMotion(NamedTuple):
    """An accurate motion at `times`, of the method `name`, and up to each of them the error that it has itself."""

    name: str
    times: np.ndarray
    motion: Any  # (g, xi), a row for each time
    floor: np.ndarray


@dataclass(frozen=True)
class Comparison:
    """A table of methods on one problem (`rows`), the `runs` behind it by label, and their errors over time."""

    rows: list[MethodRow]
    runs: dict[str, simulation.Run]
    errors: dict[str, np.ndarray]
    interrupted: bool = False
    balances: dict[str, simulation.Conservation] = field(default_factory=dict)  # energy balances, where power enters
    reference: ReferenceMotion | None = None

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The heads and the rows of the table as text, without methods that refused the system.

        If work is done, the energy column is the balance |E - E(0) - work|: E - E(0) alone has friction's work.
        """
        energy = next((kept.title.lower() for kept in self.balances.values()), "energy error")
        heads = ["method", "step", "steps", energy, "constraint", "group", "error", "ns per step"]
        lines = []
        for row in (row for row in self.rows if row.status != "refused"):
            kept = row.energy if row.balance is None else row.balance
            numbers = (kept, row.constraint, row.group, row.error)
            shown = ["-" if value is None else "0" if value == 0 else format(value, ".2g") for value in numbers]
            shown.append(format_nanoseconds(row.nanoseconds))
            shown[3] = "< " * is_below(row) + shown[3]
            name = row.method if row.status == "ok" else f"{row.method} ({row.status})"
            lines.append([name, f"{row.step:g}", str(row.steps), *shown])
        return heads, lines

    def reasons(self) -> list[str]:
        """Why methods failed (at which step) or refused the system, and what the error is, a sentence each."""
        alike: dict[tuple[str, str], dict[str, None]] = {}  # methods with one reason share a sentence
        for row in (row for row in self.rows if row.reason):
            at = "" if row.status == "refused" else f", step {row.step:g}"
            verb = str(row.reason).removeprefix(f"{row.method} ")  # "needs ...", where the method is the subject
            key = ("refused: ", f" {verb}") if verb != row.reason else ("", f"{at}, {row.status}: {row.reason}")
            alike.setdefault(key, {})[row.method] = None
        told = []
        for (first, words), methods in alike.items():
            each = "each of " if first and len(methods) > 1 else ""
            told.append(f"{first}{each}{', '.join(methods)}{words}")
        if self.reference is not None:
            below = "; < marks errors below that" if any(map(is_below, self.rows)) else ""
            error = f"error: the distance from {self.reference.name}, whose own error is about"
            told.append(f"{error} {self.reference.floor[-1]:.1e}{below}")
        if any(row.nanoseconds is not None and row.nanoseconds < 1 for row in self.rows):
            told.append("ns per step: of runs that save the last state alone; a closed form takes all steps at once")
        return told

    def __str__(self) -> str:
        heads, lines = self.table()
        widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
        rows = [heads, ["-" * width for width in widths], *lines]
        made = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([*made, *self.reasons()])

    def _repr_html_(self) -> str:
        """The table of the methods, for a notebook."""
        heads, rows = self.table()
        lines = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
        told = "".join(f"<p>{escape(each)}</p>" for each in self.reasons())
        return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(lines)}</table>{told}"

    def plot(self, path: str | Path | None = None, title: str = "", *, width: float | None = None) -> Figure:
        """Draw error, energy, constraint and group over time, and error against cost; `path` saves the figure.

        `width` is that of the figure in inches; in one column of a page constraint and group are left out.
        """
        figure: Figure = plot_methods(self, title=title, path=path, width=width)
        return figure


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
    """Compare methods on one problem: what each conserves, how accurate it is, and what a step costs.

    Every method runs with every step size of `steps` from `state` to `t_end`. `error` compares with an accurate motion:
    `taylor` at 1e-16, or SciPy's DOP853 at 1e-13 where `taylor` refuses the system or is less accurate. The error of
    this motion itself is estimated, and no smaller error is reported. `timing` measures the processor time of a step. A
    method that refuses the system gets a row that says so; Ctrl-C ends the comparison and keeps the finished rows.
    `progress(done, total, note)` is called before each method, which the note names.
    """
    if not isinstance(integrators, Mapping) or not integrators:
        raise InvalidInput(f"methods are {show(integrators)}; allowed: names with methods, {{'mine': da.RungeKutta()}}")
    if not isinstance(steps, Sequence) or not steps:
        raise InvalidInput(f"steps is {show(steps)}; allowed: a list of step sizes, such as [0.1, 0.05]")
    for integrator in integrators.values():
        require_arguments(system, integrator, state, steps[0])
    require_progress(progress, "(done, total, note)")
    instead = "compare outside; da.simulate is differentiated"
    given = {"system": system, "state": state, "steps": list(steps), "t_end": t_end}
    require_known("a comparison", given, instead)
    jobs = [(name, integrator, float(h)) for name, integrator in integrators.items() for h in steps]
    rows: list[tuple[str, MethodRow]] = []
    runs: dict[str, simulation.Run] = {}
    balances: dict[str, simulation.Conservation] = {}
    for k, (name, integrator, h) in enumerate(jobs):
        label = name if len(steps) == 1 else f"{name}, h = {h:g}"
        if progress is not None:
            progress(k, len(jobs) + error, f": {label}")
        count = simulation.count_steps(h, None, t_end, float(state.t), variable=integrator.variable_step)
        every = max(1, count // COMPARED_TIMES)
        every_state = integrator.variable_step and count <= simulation.MAX_SAVED_STEPS
        saved = 1 if every_state else simulation.save_interval(system, count, every)
        options: dict[str, Any] = {"step": h, "t_end": t_end, "save_every": saved, "monitor": True, "backend": backend}
        try:
            run = simulation.simulate(system, integrator, state, **options)
        except InvalidInput as fault:
            rows.append((label, MethodRow(name, h, count, "refused", None, None, None, None, None, str(fault))))
            continue
        if run.interrupted:
            break
        started = run.failed_at != -1
        kept = None
        if started:
            runs[label] = run
            if integrator.variable_step or simulation.receives_power(system):  # more were saved than are compared
                interval = max(1, run.steps // COMPARED_TIMES) if integrator.variable_step else every
                runs[label], kept = simulation.subsample(run, interval)
                balances |= {label: kept} if simulation.receives_power(system) else {}
        found = run.summary(kept)
        seconds = seconds_per_step(system, integrator, state, h, backend) if timing and started else None
        numbers = (found.energy_error, found.constraint, found.group, None, None if seconds is None else 1e9 * seconds)
        row = MethodRow(name, found.step, found.steps, found.status, *numbers, found.reason, found.energy_balance)
        rows.append((label, row))
    if progress is not None and error:
        progress(len(jobs), len(jobs) + 1, ": the motion itself")
    errors, reference = _errors(system, state, runs) if error and runs else ({}, None)
    finished = [_with_error(row, runs.get(label), errors.get(label), reference) for label, row in rows]
    interrupted = len(rows) < len(jobs)
    return Comparison(finished, runs, errors, interrupted=interrupted, balances=balances, reference=reference)


def is_below(row: MethodRow) -> bool:
    """Whether the error of a row is below what the reference motion tells."""
    return row.error is not None and row.floor is not None and row.error <= row.floor


def _with_error(
    row: MethodRow, run: simulation.Run | None, errors: np.ndarray | None, reference: ReferenceMotion | None
) -> MethodRow:
    """A row with its largest error, and with the least that the reference tells up to the end of its run."""
    if run is None or errors is None or reference is None or not errors.size:
        return row
    floor = reference.floor[_places(reference.times, np.asarray(run.t))[len(errors) - 1]]
    return replace(row, error=simulation.to_json(errors.max()), floor=simulation.to_json(floor))


def _errors(
    system: MechanicalSystem, state: State, runs: Mapping[str, simulation.Run]
) -> tuple[dict[str, np.ndarray], ReferenceMotion]:
    """The largest difference of configuration and velocity from the reference motion, at each run's saved moments."""
    # The moments of one run are t = t0 + k h, so those of two runs that are meant to be equal may differ by round-off.
    times = np.sort(np.concatenate([np.asarray(run.t) for run in runs.values()]))
    times = times[np.diff(times, prepend=-np.inf) > 16 * np.spacing(np.abs(times).max())]
    reference = find_reference(system, state, times if float(next(iter(runs.values())).step) > 0 else times[::-1])
    result = {}
    for label, run in runs.items():
        places = _places(reference.times, np.asarray(run.t))
        count = int(np.count_nonzero(places < len(reference.floor)))
        motion = jax.tree.map(lambda leaf, at=places[:count]: leaf[at], reference.motion)
        ours = jax.tree.map(lambda leaf, n=count: np.asarray(leaf)[:n], (run.g, run.xi))
        result[label] = np.maximum(_gaps(ours, motion), reference.floor[places[:count]])
    return result, reference


def _places(times: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """The places in `times`, which may run backwards, of moments that stand there but for round-off."""
    middles = 0.5 * (times[1:] + times[:-1])
    forwards = len(times) < 2 or times[1] > times[0]
    return np.searchsorted(middles, moments) if forwards else np.searchsorted(-middles, -moments)


def _gaps(a: Any, b: Any) -> np.ndarray:
    """The largest difference of two motions (g, xi) in each of their rows."""
    gaps = jax.tree.map(lambda x, y: np.abs(x - y).reshape(len(x), -1).max(axis=1, initial=0.0), a, b)
    return np.asarray(np.max(jax.tree.leaves(gaps), axis=0))


def find_reference(system: MechanicalSystem, state: State, times: np.ndarray) -> ReferenceMotion:
    """The accurate motion at `times`, the first that of `state`, up to where it can be continued, and its own error.

    `taylor` at 1e-16 is compared with itself, with other substeps: their round-off, and what a force that is not
    analytic does to the series, differ. Where that leaves more than 1e-9, or `taylor` refuses the system, SciPy's
    DOP853 at 1e-13 is compared with itself at 1e-12, and the better of the two is the reference.
    """
    found = []
    try:
        cuts = [np.stack([times[:-1], times[:-1] + part * np.diff(times)], 1).ravel() for part in SPLITS]
        ours = _taylor_motion(system, state, times)
        others = [_taylor_motion(system, state, np.append(cut, times[-1]))[::2] for cut in cuts]
        found.append(_judge("taylor at 1e-16", times, ours, others))
    except (InvalidInput, LoweringError):  # taylor does not take every system
        pass
    if not found or len(found[0].floor) < len(times) or not found[0].floor[-1] <= GOOD_FLOOR:
        ours, other = (scipy_motion(system, state, times, tolerance=each) for each in (1e-13, 1e-12))
        found.append(_judge("DOP853 at 1e-13", times, ours, [other]))
    return max(found, key=lambda each: (len(each.floor), -each.floor[-1]))


def _taylor_motion(system: MechanicalSystem, state: State, times: np.ndarray) -> list[State]:
    """The states at `times` by native code alone: XLA would take a minute to compile a series of this order."""
    states = [state]
    for span in np.diff(times):
        run = simulation.simulate(system, REFERENCE, states[-1], step=float(span), steps=1, backend="llvm")
        if run.interrupted:
            raise KeyboardInterrupt
        if run.status != "ok":
            break
        states.append(run.last)
    return states


def _judge(name: str, times: np.ndarray, ours: list[State], others: list[list[State]]) -> ReferenceMotion:
    """A motion, and twice its largest distance so far from the others: the same motion but for their errors."""
    count = min(map(len, (ours, *others)))
    motion, *rest = (
        jax.tree.map(lambda *leaves: np.stack(leaves), *[(s.g, s.xi) for s in each[:count]]) for each in (ours, *others)
    )
    floor = 2.0 * np.maximum.accumulate(np.max([_gaps(motion, other) for other in rest], axis=0))
    return ReferenceMotion(name, times, motion, floor)


class StepTime(NamedTuple):
    """Seconds of one step, and the spread of the measurement: half the ranges of both runs, the slowest left out."""

    seconds: float
    spread: float


def measure_step_time(
    run: Callable[[int], int],
    steps: int,
    *,
    repeats: int = TIMING_REPEATS,
    max_steps: int = MAX_TIMED_STEPS,
    clock: Callable[[], float] = time.process_time,
) -> StepTime | None:
    """Time one step of `run(n)`, which takes up to n steps and returns how many it took; None if noise hides the time.

    Runs of 1 and of n steps take turns, so that a load on the machine meets both alike. The time is the difference of
    their medians. n grows until the difference exceeds the spread four times; it is never reported below the spread.
    """

    def sample(count: int) -> float:
        begin = clock()
        run(count)
        return clock() - begin

    while True:
        taken = run(steps)  # a run that fails stands still, in no typical time: time what it takes
        if taken < 2:
            return None
        pairs = np.array([(sample(1), sample(taken)) for _ in range(repeats)])
        difference = float(np.subtract.reduce(np.median(pairs, axis=0)[::-1]))
        spread = float(np.ptp(np.sort(pairs, axis=0)[:-1], axis=0).sum()) / 2
        largest = taken < steps or 4 * steps > max_steps
        if difference > (1 if largest else 4) * spread and difference > 0:
            return StepTime(difference / (taken - 1), spread / (taken - 1))
        if largest:
            return None
        steps *= 4


def format_nanoseconds(value: float | None) -> str:
    """A time of a step for a table: whole nanoseconds, or two digits of few."""
    return "-" if value is None else format(value, ".0f" if value >= 10 else ".2g")


def seconds_per_step(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    step: float,
    backend: Any = "auto",
    count: int = TIMED_STEPS,
) -> float | None:
    """Processor time of a step in runs that save no states; None for fewer than 1000 steps, or if noise hides it."""

    def run(steps: int) -> int:
        end = simulation.simulate(system, integrator, state, step=step, steps=steps, save_every=steps, backend=backend)
        return int(end.steps)

    if run(count) < MIN_TIMED_STEPS:
        return None
    found = measure_step_time(run, count)
    return None if found is None else found.seconds
