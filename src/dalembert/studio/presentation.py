"""A request of the page made into a show: checked, simulated with the native kernels, drawn as data."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..balance import Kept, powered, saving, thinned
from ..config import Job
from ..errors import InvalidInput
from ..integrators import Reference
from ..report import plain
from ..run import Run
from ..simulate import simulate
from .claims import claims_of, judged
from .momentum import momentum_change, momentum_view
from .plots import plots
from .quantities import quantities
from .requests import Opened, at, checked, completed, jobs_of
from .scenes import scene
from .seen import Seen, config_of_file, seen, seen_in_file
from .shapes import packed
from .why import TITLES, WHY

SECONDS = 60.0
"""How long one run may take."""


class Cancelled(Exception):
    """The page that asked does not wait any more."""


def show(request: Any, opened: Opened, cancelled: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """The answer to a request: scene, momentum, plots, and how every run went."""
    frames, saved = checked(request, opened)
    if saved is not None:
        run = seen_in_file(saved, frames)
        return _show([run], [_about_file(saved, run)], saved.name, "")
    request, velocity = completed(request, opened) if request.get("complete") else (request, None)
    jobs = jobs_of(request, opened)
    done = [integrate(job, save_every(job, frames), cancelled) for job in jobs]
    times = max((np.asarray(run.t) for run, *_ in done), key=lambda t: abs(t[-1] - t[0]))
    runs = [seen(run, job, k, times, kept) for k, ((run, kept, _), job) in enumerate(zip(done, jobs, strict=True))]
    about = [_about(entry, job, run, seconds) for entry, job, (run, _, seconds) in zip(runs, jobs, done, strict=True)]
    initial = {} if velocity is None else {"velocity": velocity}
    return _show(runs, about, jobs[0].names["system"], jobs[0].text) | {"initial": initial}


def save_every(job: Job, frames: int) -> int:
    """How many steps a frame takes, so that there are at most `frames` and the last state."""
    return max(1, -(-job.run["steps"] // frames))


def integrate(job: Job, every: int, cancelled: Callable[[], bool]) -> tuple[Run, Kept | None, float]:
    """The run of a job, where power enters its energy balance, and the seconds it took.

    Given up when nobody waits for it, or when it takes too long.
    """
    begin = time.perf_counter()

    def go_on(done: int, total: int) -> None:
        if cancelled() or time.perf_counter() - begin > SECONDS:
            raise KeyboardInterrupt  # `kernels.run` ends a run so, between pieces

    options: dict[str, Any] = {"step": job.run["step"], "monitor": True, "backend": job.run.get("backend", "auto")}
    with job.blaming():
        if not isinstance(job.integrator, Reference):
            simulate(job.system, job.integrator, job.state, steps=1, **options)  # compiles, if that is still to be done
        started = time.perf_counter()
        saved = saving(job.system, job.run["steps"], every)
        run = simulate(
            job.system, job.integrator, job.state, steps=job.run["steps"], save_every=saved, progress=go_on, **options
        )
    seconds = time.perf_counter() - started
    if run.interrupted:
        if cancelled():
            raise Cancelled
        raise at("run.steps", InvalidInput(f"the run takes longer than {SECONDS:g} s: take fewer steps"))
    if powered(job.system) and run.failed_at != -1:
        return *thinned(run, every), seconds
    return run, None, seconds


def _show(runs: list[Seen], about: list[dict[str, Any]], title: str, config: str) -> dict[str, Any]:
    view, caption = scene(runs)
    momentum = momentum_view(runs)
    return {
        "title": TITLES.get(title, title),
        "why": WHY.get(runs[0].motion.name, ""),
        "time": packed(runs[0].motion.t),
        "runs": about,
        "scene": view.data(),
        "momentum": None if momentum is None else momentum.data(),
        "plots": plots(runs) + quantities(runs),
        "caption": caption,
        "config": config,
    }


def _about(entry: Seen, job: Job, run: Run, seconds: float) -> dict[str, Any]:
    """How a run went."""
    peaks, started = run.final.peaks, run.failed_at != -1
    energy = peaks.energy_error if entry.balance is None else entry.balance.peak
    extremes = {"energy_error": energy, "constraint": peaks.constraint, "group": peaks.group}
    numbers = {name: plain(value) if started else None for name, value in extremes.items()}
    change = momentum_change(entry) if started else None
    return {
        "label": job.names["method"],
        "colour": entry.colour,
        "method": job.names["method"],
        "steps": max(0, int(run.steps)),
        "step": float(run.step),
        "seconds": seconds,
        "backend": run.backend,
        "status": run.status,
        "reason": run.reason,
        "failed_at": run.failed_at,
        "time_failed": None if run.status == "ok" else float(np.asarray(run.t)[-1]),
        "claims": judged(
            claims_of(run.integrator, run.system), entry, numbers, None if change is None else change.max()
        ),
        "energy_title": entry.kept.title,
        "energy_error": numbers["energy_error"],
        "constraint": numbers["constraint"],
        "peaks": numbers,
    }


def _about_file(path: Path, entry: Seen) -> dict[str, Any]:
    """How a run in a file went."""
    from ..files import open_dataset

    data = open_dataset(path)
    attributes = data.attrs
    numbers = {
        "energy_error": plain(entry.kept.peak),
        "constraint": plain(entry.constraint.max()),
        "group": plain(entry.distance.max()),
    }
    failed = attributes.get("status") == "failed"
    named = (config_of_file(path) or {}).get("method", {}).get("name", "")
    return {
        "label": named or str(attributes.get("method", "")).partition("(")[0],
        "colour": entry.colour,
        "method": str(attributes.get("method", "")),
        "steps": len(entry.motion.t),
        "step": float(attributes.get("step", 0.0)),
        "seconds": None,
        "backend": str(attributes.get("backend", "")),
        "status": "failed" if failed else "ok",
        "reason": str(attributes.get("reason", "")),
        "failed_at": None,
        "time_failed": float(entry.motion.t[-1]) if failed else None,
        "claims": [],
        "energy_title": entry.kept.title,
        "energy_error": numbers["energy_error"],
        "constraint": numbers["constraint"],
        "peaks": numbers,
    }
