"""Going on with a run that a file holds, so that the file becomes that of the one long run, bit for bit."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .config import Job
from .errors import InvalidInput
from .files import load, open_dataset
from .integrators import Reference
from .records import joined
from .run import Run
from .simulate import simulate

FREE = ("steps", "t_end", "backend")
"""What a configuration may change between a run and its continuation."""


def resumed(job: Job, path: Path, progress: Callable[[int, int], None] | None = None) -> Run:
    """The run of `job` with what the file has of it already; a run that is complete, or failed, comes back as it is."""
    if isinstance(job.integrator, Reference):
        raise InvalidInput("the reference method carries nothing from step to step: run it anew, without --resume")
    _require_same(job.config, path)
    before = load(path, system=job.system, integrator=job.integrator)
    every = job.run.get("save_every", 1)
    kept = int(np.count_nonzero(np.asarray(before.records.steps) % every == 0))
    before = replace(before, records=jax.tree.map(lambda leaf: leaf[:kept], before.records))
    left = job.run["steps"] - int(before.final.steps)
    if left < 0:
        raise InvalidInput(
            f"{path} has {int(before.final.steps)} steps already, more than the {job.run['steps']} asked for"
        )
    if left == 0 or before.status != "ok" or before.stopped_by:
        return load(path, system=job.system, integrator=job.integrator)
    return join(before, _onward(job, before, left, every, progress))


def _onward(job: Job, before: Run, left: int, every: int, progress) -> Run:
    """The missing steps, saved at multiples of `every` from the first start."""
    options: dict[str, Any] = {"step": job.run["step"], "monitor": True, "backend": job.run.get("backend", "auto")}
    options["events"] = job.events
    ahead = min(left, -int(before.final.steps) % every)
    if not ahead:
        return simulate(job.system, job.integrator, before, steps=left, save_every=every, progress=progress, **options)
    part = simulate(job.system, job.integrator, before, steps=ahead, save_every=ahead, **options)
    if ahead == left or part.interrupted or part.status != "ok" or part.stopped_by:
        return part
    rest = simulate(
        job.system, job.integrator, part, steps=left - ahead, save_every=every, progress=progress, **options
    )
    return join(part, rest)


def join(first: Run, second: Run) -> Run:
    """One trajectory of a run and its continuation, whose first record is the last state of the run."""
    records = jax.tree.map(lambda a, b: np.concatenate([a, b[1:]]), first.records, second.records)
    return replace(second, records=records, events=joined(first.events, second.events))


def _require_same(config: Mapping[str, Any], path: Path) -> None:
    """Refuse to go on with a run of something else."""
    text = open_dataset(path).attrs.get("config")
    if text is None:
        raise InvalidInput(f"{path} was not written by `dalembert run`: it holds no configuration to go on with")
    saved = tomllib.loads(text)
    tables = {"event": {"tables": config.get("event", [])}}
    saved["event"] = {"tables": saved.get("event", [])}
    for section, entries in (dict(config) | tables).items():
        mine, theirs = dict(entries), dict(saved.get(section, {}))
        for key in sorted(mine.keys() | theirs.keys()):
            if (section != "run" or key not in FREE) and mine.get(key) != theirs.get(key):
                raise InvalidInput(
                    f"{path} holds another run: its {section}.{key} is {theirs.get(key)!r}, here it is {mine.get(key)!r}; "
                    f"only {', '.join(f'run.{name}' for name in FREE)} may change"
                )
