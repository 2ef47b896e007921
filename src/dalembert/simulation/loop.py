"""The loop of a run as pure functions: start, step, freeze what fails, observe. Any backend can compile them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .integrators import Integrator
from .integrators.base import NOT_FINITE, OK
from .records import Record
from .sensitivity import Pair, push
from .system import MechanicalSystem, State


class Peaks(NamedTuple):
    """Extremes over ALL steps, also those that are not saved: of E at the start, |E - E(0)|, |A xi - b|, |g - G|, |phi|."""

    energy: Array
    energy_error: Array
    constraint: Array
    group: Array
    holonomic: Array | np.ndarray = np.zeros(0)  # one entry a holonomic constraint


class Loop(NamedTuple):
    """Everything a run carries from step to step. A failed member stays at its last good state, with status and count."""

    carry: Any
    origin: Array  # time of the carry before the first step: t = origin + steps h has no drift
    steps: Array  # counted in floating point, so that no step converts integers
    status: Array
    residual: Array
    iterations: Array
    multipliers: Array
    turns: Array
    peaks: Peaks


class Functions(NamedTuple):
    """The pure functions that a backend compiles; `consts` = (system, h) are run-time inputs."""

    begin: Callable
    advance: Callable
    observe: Callable


@lru_cache(maxsize=256)
def functions(integrator: Integrator, monitor: bool) -> Functions:
    """The loop of an integrator; the same objects every time, so that compiled programs are found again."""

    def begin(consts, given) -> Loop:
        (system, h), (state, u) = consts, given
        carry, info = integrator.start(system, state, h, u)
        good = (info.status == OK) & _finite(carry)
        status = jnp.where(good, OK, jnp.where(info.status == OK, NOT_FINITE, info.status))
        zero = jnp.zeros(())
        peaks = Peaks(zero, zero, zero, zero, jnp.zeros(system.holonomic_constraints))
        count = jnp.where(good, 0.0, -1.0)
        turns = jnp.zeros_like(system.group.angles(state.g))
        loop = Loop(carry, carry.t, count, status, info.residual, info.iterations, info.multipliers, turns, peaks)
        if monitor:
            seen = integrator.observe(system, carry, h)
            loop = loop._replace(
                peaks=peaked(system, seen, peaks._replace(energy=system.energy(seen.t, seen.g, seen.xi)))
            )
        return loop

    def advance(consts, loop: Loop, u) -> Loop:
        system, h = consts
        carry, info = integrator.step(system, loop.carry, h, u)
        good = (loop.status == OK) & (info.status == OK) & _finite(carry, loop.carry)
        count = loop.steps + jnp.where(good, 1.0, 0.0)
        carry = carry if integrator.clock else carry._replace(t=loop.origin + count * h)
        failure = jnp.where(info.status == OK, NOT_FINITE, info.status)
        status = jnp.where(good | (loop.status != OK), loop.status, failure)
        turns = loop.turns + system.group.winding(loop.carry.g, carry.g)
        peaks = peaked(system, integrator.observe(system, carry, h), loop.peaks) if monitor else loop.peaks
        new = (carry, info.residual, info.iterations, info.multipliers, turns, peaks)
        old = (loop.carry, loop.residual, loop.iterations, loop.multipliers, loop.turns, loop.peaks)
        kept = jax.tree.map(lambda a, b: a if a is b else jnp.where(good, a, b), new, old)
        return Loop(kept[0], loop.origin, count, status, *kept[1:])

    def observe(consts, loop: Loop) -> Record:
        system, h = consts
        group, state = system.group, integrator.observe(system, loop.carry, h)
        angles = group.angles(loop.carry.g) + 2 * jnp.pi * loop.turns
        if state.g is not loop.carry.g:  # a node between: less than half a turn from the one that is counted
            angles = angles + group.angles(group.compose(group.inverse(loop.carry.g), state.g))
        size = loop.carry.size if integrator.clock else None
        return Record(
            state, loop.residual, loop.iterations.astype(int), loop.multipliers, angles, loop.steps.astype(int), size
        )

    return Functions(begin, advance, observe)


@lru_cache(maxsize=256)
def lifted(plain: Functions) -> Functions:
    """The tangent loop: the same functions on values with slopes. Controls have none."""

    def begin(consts: Pair, given: Pair) -> Pair:
        return push(plain.begin, consts, given)

    def advance(consts: Pair, loop: Pair, u) -> Pair:
        return push(lambda inner, state: plain.advance(inner, state, u), consts, loop)

    def observe(consts: Pair, loop: Pair) -> Pair:
        return push(plain.observe, consts, loop)

    return Functions(begin, advance, observe)


def _finite(new, old=()) -> Array:
    """Whether all leaves that changed are finite, by their sum: cheaper than comparing each, and as a tree it is short."""
    unchanged = {id(leaf) for leaf in jax.tree.leaves(old)}
    values = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(new) if id(leaf) not in unchanged])
    while values.shape[0] > 1:
        half = values.shape[0] // 2
        values = jnp.concatenate([values[:half] + values[half : 2 * half], values[2 * half :]])
    return jnp.isfinite(values[0])


def peaked(system: MechanicalSystem, state: State, peaks: Peaks) -> Peaks:
    """The extremes with those of one more state."""
    energy = system.energy(state.t, state.g, state.xi)
    constraint = jnp.max(jnp.abs(system.residual(state.t, state.g, state.xi)), initial=0.0)
    return Peaks(
        peaks.energy,
        jnp.maximum(peaks.energy_error, jnp.abs(energy - peaks.energy)),
        jnp.maximum(peaks.constraint, constraint),
        jnp.maximum(peaks.group, system.group.distance(state.g)),
        jnp.maximum(peaks.holonomic, jnp.abs(system.phi(state.t, state.g))),
    )
