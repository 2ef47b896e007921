"""What there is to measure, and the processes that do it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator

from dalembert.integrators import Claims

from .cases import cases
from .drifts import PROBLEMS, drift, million
from .measure import measure
from .store import Figures, Store
from .variants import PANEL, variants

Task = tuple[str, str, str]  # what, label of the variant, name of the system
LONG_RUNS = ("chaotic-quartic-2", "chaplygin-sleigh", "suslov", "pendulum-cvt")
WORK: dict[str, Callable[[str, str], Figures]] = {
    "pair": lambda label, name: measure(cases()[name], variants()[label].integrator),
    "drift": lambda label, name: drift(name, variants()[label].integrator),
    "million": lambda label, name: million(cases()[name], variants()[label].integrator),
}


def tasks() -> list[Task]:
    """All of them: defaults on the panel, long runs, other options on the panel, then the other systems."""
    pairs = [("pair", v.label, case.name) for case in cases().values() for v in variants().values() if v.fits(case)]
    drifts = [("drift", label, problem) for label in variants() for problem in PROBLEMS]
    exact = [
        ("million", v.label, name) for name in LONG_RUNS for v in variants().values() if _claims(v.label, name).energy
    ]
    panel = sorted((task for task in pairs if task[2] in PANEL), key=lambda task: PANEL.index(task[2]))
    plain = [task for task in panel if not variants()[task[1]].options]
    alone = [task for task in drifts if task[2] != PROBLEMS[-1]]
    return list(dict.fromkeys([*plain, *alone, *panel, *drifts, *exact, *pairs]))


def _claims(label: str, name: str) -> Claims:
    return variants()[label].integrator.claims(cases()[name].system)


def work(task: Task) -> tuple[Task, Figures, float]:
    begin = time.monotonic()
    what, label, name = task
    try:
        figures = WORK[what](label, name)
    except Exception as fault:  # a defect of the method or of the measurement: the page shows it
        figures = {"failed": f"{type(fault).__name__}: {fault}"}
    return task, figures, time.monotonic() - begin


def key(task: Task) -> str:
    return " | ".join(task)


def missing(store: Store, only: str) -> list[Task]:
    return [task for task in tasks() if key(task) not in store.figures and only in key(task)]


def measured(todo: list[Task], jobs: int) -> Iterator[tuple[Task, Figures, float]]:
    """Results as they come; processes are renewed now and then, for compiled programs stay in memory."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, maxtasksperchild=60) as pool:
        yield from pool.imap_unordered(work, todo)
