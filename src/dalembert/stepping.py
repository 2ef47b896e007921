"""A run on a backend: its start, its steps with a record after every few of them, and the events on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .crossings import Found, Watch, collected, ended, find
from .events import Event
from .integrators import Integrator
from .kernels.evaluate import evaluated
from .kernels.pieces import Progress, Reader
from .kernels.problem import problem
from .kernels.run import Backend, RunResult, run
from .loop import Functions, Loop, functions
from .records import Crossings
from .schedule import require_backend, traced
from .watch import onward, ring, watched


@dataclass(frozen=True)
class Plan:
    """How far a run goes: `steps` steps, a record after every `save_every` of them, with `controls` of one row a step.

    With `lanes`, so many members go together; `batched`: each has a system of its own.
    """

    steps: int
    save_every: int
    controls: Any
    backend: Backend
    progress: Progress | None = None
    lanes: int | None = None
    batched: bool = False

    def axes(self, *others: Any) -> Any:
        """Which of the constants (system, h), and of what comes after them, vary over the lanes."""
        return None if self.lanes is None else ((0 if self.batched else None, None), *others)


def begun(plan: Plan, parts: Functions, consts, given, varies: Any = 0) -> Any:
    """The loop before the first step; `varies` says which of `given` the lanes have each for themselves."""
    require_backend(plan.backend)
    return evaluated(parts.begin, consts, given, lanes=plan.lanes, axes=plan.axes(varies), backend=plan.backend)


def advanced(plan: Plan, parts: Functions, consts, loop, read: Reader | None = None) -> RunResult:
    """The steps of a plan; a remainder of less than `save_every` ends with a record too."""
    saves, rest = divmod(plan.steps, plan.save_every)
    done: list[RunResult] = []
    for count, stride, offset in ((saves, plan.save_every, 0), (1 if rest else 0, rest, saves * plan.save_every)):
        if count and not (done and done[-1].saves < saves):  # interrupted, or all lanes stopped
            held = jax.tree.map(lambda leaf: leaf[offset : offset + count * stride], plan.controls)
            described = problem(parts.advance, parts.observe, consts, loop, held, lanes=plan.lanes, axes=plan.axes(0))
            options: dict[str, Any] = {"backend": plan.backend, "progress": plan.progress, "read": read}
            done.append(run(described, saves=count, save_every=stride, initial=not done, **options))
            loop = done[-1].loop
    joined = jax.tree.map(
        lambda *leaves: _join(leaves, 0 if plan.lanes is None else 1), *[each.records for each in done]
    )
    return replace(done[-1], records=joined, note=done[0].note)


def travelled(
    plan: Plan, integrator: Integrator, monitor: bool, consts, loop: Loop, events: tuple[Event, ...]
) -> tuple[RunResult, dict[str, Crossings]]:
    """A run and what it found of events: these change none of its steps, and are located when it is done."""
    parts = functions(integrator, monitor)
    if not events:
        return advanced(plan, parts, consts, loop), {}
    watch, made = Watch(events, plan.lanes), watched(parts, integrator, events)
    result = advanced(plan, made, consts, ring(loop, begun(plan, made, consts, loop), plan.lanes), watch.read)
    system, h = consts
    done = min(plan.save_every * (np.shape(result.records.steps)[-1] - 1), plan.steps)
    found = find(watch, system, h, integrator, plan.controls, np.asarray(loop.steps), done, plan.batched, plan.backend)
    records, final = result.records, result.loop.loop
    if found is not None:

        def again(last: Found, before: Loop) -> Loop:
            own = jax.tree.map(lambda leaf: np.asarray(leaf)[last.lane], system) if plan.batched else system
            u = jax.tree.map(lambda leaf: np.asarray(leaf)[last.index], plan.controls)
            stopped = replace(plan, lanes=len(last.lane))
            return begun(stopped, onward(integrator, monitor), (own, h), (before, last.record, u))

        stops = np.array([event.stop for event in events])
        records, final = ended(found, stops, records, final, plan.save_every, plan.lanes is None, again)
    one = jax.tree.map(lambda leaf: leaf[0, 0] if plan.lanes is not None else leaf[0], records)
    crossings = collected(watch, found, result.loop.suspects, one)
    return replace(result, records=records, loop=final), crossings


def _join(leaves, axis: int):
    """Arrays put end to end, by NumPy unless one is traced."""
    if len(leaves) == 1:
        return leaves[0]
    return (jnp if traced(leaves) else np).concatenate(leaves, axis=axis)
