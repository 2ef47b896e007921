"""The runs of the reference method: SciPy's accurate motion in the form of any other run, with its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .crossings import Found, Watch, collected
from .dense import JUMP
from .events import Event
from .integrators import Reference
from .integrators.base import NOT_FINITE, OK
from .loop import Peaks, functions, peaked
from .records import Record
from .run import Run
from .system import MechanicalSystem, State
from .watch import START

ULP = 2.0**-52


def reference_run(
    system: MechanicalSystem, integrator: Reference, begin: State, step, steps: int, save_every: int, controls,
    events: tuple[Event, ...] = (),
) -> Run:  # fmt: skip
    """The accurate motion at the times of steps; events are looked for at every one of them, and located on the motion."""
    every = 1 if controls is not None or events else save_every
    counts = np.unique(np.append(np.arange(0, steps + 1, every), steps))
    states = integrator.trajectory(system, begin, float(begin.t) + counts * step, controls)
    status = OK if len(states) == len(counts) else NOT_FINITE
    counts, h = counts[: len(states)], jnp.asarray(step, float)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    records = _records(system, integrator, h, controls)(stacked, jnp.asarray(counts), _turns(system, stacked.g))
    found = _found(system, integrator, records, controls, events)
    kept = (counts % save_every == 0) | (counts == steps) | (counts == counts[-1])
    records, last = _ended(records, kept, found, [event.stop for event in events])
    loop = functions(integrator, False).begin((system, h), (last.state, _row(controls, 0)))
    turns = jnp.round((last.angles - system.group.angles(last.state.g)) / (2 * jnp.pi))
    final = loop._replace(
        steps=last.steps,
        origin=last.state.t - last.steps * h,
        status=jnp.asarray(status),
        turns=turns,
        peaks=_peaks(system, records.state),
    )
    made = Run(system, integrator, h, records, final, "scipy")
    if not events:
        return made
    one = jax.tree.map(lambda leaf: leaf[0], records)
    return replace(made, events=collected(Watch(events, None), found, np.zeros(len(events)), one))


@jax.jit
def _peaks(system: MechanicalSystem, states: State) -> Peaks:
    """The extremes over the saved states: between them the motion is SciPy's."""
    t, g, xi = jax.tree.map(lambda leaf: leaf[0], (states.t, states.g, states.xi))
    zero = jnp.zeros(())
    first = Peaks(system.energy(t, g, xi), zero, zero, zero, jnp.zeros(system.holonomic_constraints))
    each = jax.vmap(lambda state: peaked(system, state, first))(states)
    return jax.tree.map(lambda leaf: jnp.max(leaf, axis=0), each)


def _row(controls, k: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[k], controls)


def _records(system: MechanicalSystem, integrator: Reference, h, controls) -> Callable[..., Record]:
    """(states, counts, turns) -> records."""
    plain = functions(integrator, False)

    def record(state, count, turns):
        u = jax.tree.map(lambda leaf: jnp.asarray(leaf)[jnp.clip(count - 1, 0)], controls)  # of the step that led here
        first = plain.observe((system, h), plain.begin((system, h), (state, u)))
        return first._replace(steps=count, angles=first.angles + 2 * jnp.pi * turns)

    return jax.jit(jax.vmap(record))


def _turns(system: MechanicalSystem, g) -> jax.Array:
    """How often each angle went round up to each state."""
    before, after = (jax.tree.map(lambda leaf: leaf[part], g) for part in (slice(None, -1), slice(1, None)))
    steps = jax.vmap(system.group.winding)(before, after)
    return jnp.concatenate([jnp.zeros_like(steps, shape=(1, *steps.shape[1:])), jnp.cumsum(steps, axis=0)])


def _found(system, integrator: Reference, records: Record, controls, events: tuple[Event, ...]) -> Found | None:
    """The crossings between the states, in the order of time, up to the first that stops the run."""
    if not events:
        return None
    evaluate = jax.jit(lambda state, angles: jnp.stack([event.value(system, state, angles) for event in events]))
    values = np.asarray(jax.vmap(evaluate)(records.state, records.angles))
    a, b = values[:-1], values[1:]
    crossed = ((a < 0) & (b >= 0)) * 1 - ((a > 0) & (b <= 0)) * 1
    wanted = np.array([event.direction for event in events])
    crossed[(wanted != 0) & (crossed != wanted)] = 0
    crossed[:1][np.abs(a[:1]) <= START * np.abs(b[:1] - a[:1])] = 0
    flow = integrator.flow(system, jax.tree.map(lambda leaf: leaf[0], records.state))
    found = []
    for k, which in zip(*np.nonzero(crossed), strict=True):
        begin = jax.tree.map(lambda leaf: leaf[k], records)
        span, u = float(records.state.t[k + 1] - begin.state.t), _row(controls, k)

        def reached(theta, begin=begin, span=span, u=u):
            state = flow(begin.state, float(begin.state.t) + theta * span, u)
            group = system.group
            return state, begin.angles + group.angles(group.compose(group.inverse(begin.state.g), state.g))

        def value(theta, reached=reached, which=which, sign=float(crossed[k, which])) -> float:
            return sign * float(evaluate(*reached(theta))[which])

        theta = _root(value, -abs(float(a[k, which])))
        if abs(value(theta)) <= JUMP * abs(b[k, which] - a[k, which]):
            found.append((k, theta, which, crossed[k, which], *reached(theta)))
    found.sort(key=lambda each: each[:3])
    stops = [i for i, each in enumerate(found) if events[each[2]].stop]
    return _table(system, integrator, found[: stops[0] + 1] if stops else found, controls)


def _root(f: Callable[[float], float], first: float) -> float:
    """The theta beyond which f >= 0, f(0) = `first` < 0, to round-off."""
    from scipy.optimize import brentq

    if f(1.0) < 0:
        return 1.0
    theta = float(brentq(lambda x: first if x == 0.0 else f(x), 0.0, 1.0, xtol=ULP, rtol=4 * ULP))
    beyond = (min(1.0, theta + k * ULP) for k in (0, 1, 2, 4, 8, 16, 64, 256))
    return next((x for x in beyond if f(x) >= 0), theta)


def _table(system, integrator: Reference, found: list, controls) -> Found | None:
    if not found:
        return None
    step, theta, which, direction, states, angles = zip(*found, strict=True)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    turns = (jnp.stack(angles) - jax.vmap(system.group.angles)(stacked.g)) / (2 * jnp.pi)
    index = np.array(step)
    made = _records(system, integrator, 1.0, controls)(stacked, jnp.asarray(index + 1), turns)
    made = jax.tree.map(np.asarray, made)
    return Found(np.zeros(len(index), int), np.array(which), np.array(theta), np.array(direction), made, index)


def _ended(records: Record, kept: np.ndarray, found: Found | None, stops: list[bool]) -> tuple[Record, Record]:
    """(the saved records, the last): up to the event that stopped the run, with that as the last."""
    if found is not None and stops[found.which[-1]]:
        kept = kept & (np.arange(len(kept)) <= found.index[-1])
        event = jax.tree.map(lambda leaf: leaf[-1:], found.record)
        records = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[kept], b]), records, event)
    else:
        records = jax.tree.map(lambda leaf: leaf[kept], records)
    return records, jax.tree.map(lambda leaf: leaf[-1], records)
