"""What there is to measure, the processes that measure it, and what they have measured so far.

The store has one JSON object a line: a run that was cut short goes on where it was, unless the sources changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dalembert
from dalembert.integrators import Claims

from .cases import PANEL, cases, variants
from .measure import DRIFT_PROBLEMS, Figures, measure, measure_drift, measure_long_run

SOURCES = Path(dalembert.__file__).parent
IRRELEVANT = ("cli", "plotting", "papers", "studio", "sweeps")


def fingerprint() -> str:
    """A hash of all sources on which a figure can depend."""
    library = [path for path in SOURCES.rglob("*.py") if path.relative_to(SOURCES).parts[0] not in IRRELEVANT]
    here = [Path(__file__).with_name(name) for name in ("cases.py", "measure.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in [*sorted(library), *here])).hexdigest()[:16]


class Store:
    """Figures by key in a file of lines. Lines of other sources are not read unless `keep`, nor a line cut short."""

    def __init__(self, path: Path, keep: bool = False):
        self.path, self.sources = path, fingerprint()
        self.figures: dict[str, Figures] = {}
        if not path.exists():
            return
        text = path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):  # a line that was cut short: the next one begins anew
            path.write_text(text + "\n", encoding="utf-8")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if keep or entry["sources"] == self.sources:
                self.figures[entry["key"]] = entry["figures"]

    def add(self, key: str, figures: Figures) -> None:
        self.figures[key] = figures = round_figures(figures)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "sources": self.sources, "figures": figures}) + "\n")


def round_figures(value: Any) -> Any:
    """Numbers to three digits, none that JSON does not know."""
    if isinstance(value, dict):
        return {key: round_figures(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [round_figures(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.3g}") if math.isfinite(value) else str(value)
    return value


Task = tuple[str, str, str]  # what, label of the variant, name of the system
LONG_RUN_SYSTEMS = ("chaotic-quartic-2", "chaplygin-sleigh", "suslov", "pendulum-cvt")
MEASUREMENTS: dict[str, Callable[[str, str], Figures]] = {
    "pair": lambda label, name: measure(cases()[name], variants()[label].integrator),
    "drift": lambda label, name: measure_drift(name, variants()[label].integrator),
    "million": lambda label, name: measure_long_run(cases()[name], variants()[label].integrator),
}


def all_tasks() -> list[Task]:
    """All of them: defaults on the panel, long runs, other options on the panel, then the other systems."""
    pairs = [("pair", v.label, case.name) for case in cases().values() for v in variants().values() if v.fits(case)]
    drifts = [("drift", label, problem) for label in variants() for problem in DRIFT_PROBLEMS]
    exact = [
        ("million", v.label, name)
        for name in LONG_RUN_SYSTEMS
        for v in variants().values()
        if _claims(v.label, name).energy
    ]
    panel = sorted((task for task in pairs if task[2] in PANEL), key=lambda task: PANEL.index(task[2]))
    plain = [task for task in panel if not variants()[task[1]].options]
    alone = [task for task in drifts if task[2] != DRIFT_PROBLEMS[-1]]
    return list(dict.fromkeys([*plain, *alone, *panel, *drifts, *exact, *pairs]))


def _claims(label: str, name: str) -> Claims:
    return variants()[label].integrator.claims(cases()[name].system)


def run_task(task: Task) -> tuple[Task, Figures, float]:
    begin = time.monotonic()
    what, label, name = task
    try:
        figures = MEASUREMENTS[what](label, name)
    except Exception as fault:  # a defect of the method or of the measurement: the page shows it
        figures = {"failed": f"{type(fault).__name__}: {fault}"}
    return task, figures, time.monotonic() - begin


def task_key(task: Task) -> str:
    return " | ".join(task)


def missing_tasks(store: Store, only: str) -> list[Task]:
    return [task for task in all_tasks() if task_key(task) not in store.figures and only in task_key(task)]


def measure_tasks(todo: list[Task], jobs: int) -> Iterator[tuple[Task, Figures, float]]:
    """Results as they come; processes are renewed now and then, for compiled programs stay in memory."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, maxtasksperchild=300) as pool:
        yield from pool.imap_unordered(run_task, todo)
