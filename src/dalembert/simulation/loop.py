"""When a run steps: how many steps there are, from where, and what controls are held over each of them.

Forward sensitivities: the derivative of a run along a curve of problems, carried beside the run by the same backend.

The loop of a run as pure functions: start, step, freeze what fails, observe. Any backend can compile them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, UnknownName
from ..integrators import NOT_FINITE, OK, Integrator
from ..mechanics import MechanicalSystem, State
from .results import Record

BACKENDS = ("auto", "llvm", "cuda", "xla")


MAX_STEPS = 2**53


def count_steps(step, steps, t_end, t0) -> int:
    """The number of steps, from `steps` or from `t_end` (the last state at or before it)."""
    if not traced(step) and (not np.isfinite(step) or step == 0):
        raise InvalidInput(f"step is {step}; allowed: any finite number but 0 (negative steps go back in time)")
    if (steps is None) == (t_end is None):
        raise InvalidInput("give exactly one of steps and t_end")
    if steps is not None and positive_int("steps", steps) > MAX_STEPS:
        raise InvalidInput(f"steps is {steps}; allowed: at most {MAX_STEPS}, for steps are counted in floating point")
    if steps is not None:
        return int(steps)
    ratio = (t_end - t0) / step
    if not np.isfinite(ratio) or ratio < 1 - 1e-9:
        raise InvalidInput(f"t_end = {t_end} is not at least one step of {step} away from the start at t = {t0}")
    return int(np.floor(ratio * (1 + 1e-12) + 1e-9))


def positive_int(name: str, value) -> int:
    """A whole number of at least 1, or a clear error."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidInput(f"{name} is {value!r}; allowed: a whole number of at least 1")
    return int(value)


def held_controls(controls, t0, step, steps: int) -> Any:
    """Controls as arrays with one row a step: u_k = u(t0 + (k + 1/2) h) of a function of time."""
    if controls is None:
        return None
    if callable(controls):
        return jax.vmap(controls)(t0 + step * (jnp.arange(steps) + 0.5))
    held = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), controls)
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(held)}
    if sizes != {steps}:
        raise InvalidInput(f"controls have {sorted(sizes)} rows; allowed: one row a step, that is {steps}")
    return held


def require_known_times(integrator: Integrator, controls) -> None:
    """Refuse controls that are functions of time where the times of the steps are not known before the run."""
    if integrator.clock and callable(controls):
        raise InvalidInput(
            f"the times of the steps of {integrator.name} are not known before the run: give controls as an array with one row a step, "
            "or a force that depends on time"
        )


def first_controls(controls) -> Any:
    """The controls of the first step."""
    return jax.tree.map(lambda leaf: leaf[0], controls)


def require_backend(backend: str) -> None:
    """Refuse the name of a backend that there is not."""
    if backend not in BACKENDS:
        raise UnknownName("backend", backend, BACKENDS)


def traced(tree) -> bool:
    """Whether a JAX transformation looks at any leaf."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


class Dual(NamedTuple):
    """A pytree with the tangents of its real leaves, in their order."""

    value: Any
    slopes: list


def split_reals(tree: Any) -> tuple[list, list, Callable[[list, list], Any]]:
    """(real leaves, other leaves, how to put them together again): only real numbers have tangents."""
    leaves, structure = jax.tree.flatten(tree)
    real = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def join(reals: list, others: list) -> Any:
        first, second = iter(reals), iter(others)
        return jax.tree.unflatten(structure, [next(first) if mark else next(second) for mark in real])

    def pick(wanted: bool) -> list:
        return [leaf for leaf, mark in zip(leaves, real, strict=True) if mark is wanted]

    return pick(True), pick(False), join


def make_dual(value: Any, tangent: Any) -> Dual:
    """A pytree with a tangent of the same structure (None: zero)."""
    reals, _, _ = split_reals(value)
    return Dual(value, [jnp.zeros_like(leaf) for leaf in reals] if tangent is None else split_reals(tangent)[0])


def push_forward(function: Callable, *arguments: Dual) -> Dual:
    """`function` at the values of its arguments, with its derivative along their slopes."""
    reals, others, join = split_reals([argument.value for argument in arguments])
    joins: list[Callable] = []

    def on_reals(*leaves):
        result, rest, put = split_reals(function(*join(list(leaves), others)))
        joins.append(put)
        return result, rest

    slopes = [slope for argument in arguments for slope in argument.slopes]
    value, tangent, rest = jax.jvp(on_reals, tuple(reals), tuple(slopes), has_aux=True)
    return Dual(joins[-1](value, rest), tangent)


def tangent_tree(both: Dual) -> Any:
    """The slopes in the shape of the value, zero where a leaf is no real number."""
    _, others, join = split_reals(both.value)
    return join(both.slopes, [jnp.zeros(jnp.shape(leaf)) for leaf in others])


class Peaks(NamedTuple):
    """Extremes over ALL steps, also those that are not saved: of E at the start, |E - E(0)|, |A xi - b|, |g - G|, |phi|."""

    energy: Array
    energy_error: Array
    constraint: Array
    group: Array
    holonomic: Array | np.ndarray = np.zeros(0)  # one entry a holonomic constraint


class LoopState(NamedTuple):
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


class RunKernel(NamedTuple):
    """The pure functions that a backend compiles; `consts` = (system, h) are run-time inputs."""

    begin: Callable
    advance: Callable
    observe: Callable


@lru_cache(maxsize=256)
def run_kernel(integrator: Integrator, monitor: bool) -> RunKernel:
    """The loop of an integrator; the same objects every time, so that compiled programs are found again."""

    def begin(consts, given) -> LoopState:
        (system, h), (state, u) = consts, given
        carry, info = integrator.start(system, state, h, u)
        good = (info.status == OK) & _all_finite(carry)
        status = jnp.where(good, OK, jnp.where(info.status == OK, NOT_FINITE, info.status))
        zero = jnp.zeros(())
        peaks = Peaks(zero, zero, zero, zero, jnp.zeros(system.holonomic_constraints))
        count = jnp.where(good, 0.0, -1.0)
        turns = jnp.zeros_like(system.group.angles(state.g))
        loop = LoopState(carry, carry.t, count, status, info.residual, info.iterations, info.multipliers, turns, peaks)
        if monitor:
            seen = integrator.observe(system, carry, h)
            loop = loop._replace(
                peaks=update_peaks(system, seen, peaks._replace(energy=system.energy(seen.t, seen.g, seen.xi)))
            )
        return loop

    def advance(consts, loop: LoopState, u) -> LoopState:
        system, h = consts
        carry, info = integrator.step(system, loop.carry, h, u)
        good = (loop.status == OK) & (info.status == OK) & _all_finite(carry, loop.carry)
        count = loop.steps + jnp.where(good, 1.0, 0.0)
        carry = carry if integrator.clock else carry._replace(t=loop.origin + count * h)
        failure = jnp.where(info.status == OK, NOT_FINITE, info.status)
        status = jnp.where(good | (loop.status != OK), loop.status, failure)
        turns = loop.turns + system.group.winding(loop.carry.g, carry.g)
        peaks = update_peaks(system, integrator.observe(system, carry, h), loop.peaks) if monitor else loop.peaks
        new = (carry, info.residual, info.iterations, info.multipliers, turns, peaks)
        old = (loop.carry, loop.residual, loop.iterations, loop.multipliers, loop.turns, loop.peaks)
        kept = jax.tree.map(lambda a, b: a if a is b else jnp.where(good, a, b), new, old)
        return LoopState(kept[0], loop.origin, count, status, *kept[1:])

    def observe(consts, loop: LoopState) -> Record:
        system, h = consts
        group, state = system.group, integrator.observe(system, loop.carry, h)
        angles = group.angles(loop.carry.g) + 2 * jnp.pi * loop.turns
        if state.g is not loop.carry.g:  # a node between: less than half a turn from the one that is counted
            angles = angles + group.angles(group.compose(group.inverse(loop.carry.g), state.g))
        size = loop.carry.size if integrator.clock else None
        return Record(
            state, loop.residual, loop.iterations.astype(int), loop.multipliers, angles, loop.steps.astype(int), size
        )

    return RunKernel(begin, advance, observe)


@lru_cache(maxsize=256)
def with_tangents(plain: RunKernel) -> RunKernel:
    """The tangent loop: the same functions on values with slopes. Controls have none."""

    def begin(consts: Dual, given: Dual) -> Dual:
        return push_forward(plain.begin, consts, given)

    def advance(consts: Dual, loop: Dual, u) -> Dual:
        return push_forward(lambda inner, state: plain.advance(inner, state, u), consts, loop)

    def observe(consts: Dual, loop: Dual) -> Dual:
        return push_forward(plain.observe, consts, loop)

    return RunKernel(begin, advance, observe)


def _all_finite(new, old=()) -> Array:
    """Whether all leaves that changed are finite, by their sum: cheaper than comparing each, and as a tree it is short."""
    unchanged = {id(leaf) for leaf in jax.tree.leaves(old)}
    values = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(new) if id(leaf) not in unchanged])
    while values.shape[0] > 1:
        half = values.shape[0] // 2
        values = jnp.concatenate([values[:half] + values[half : 2 * half], values[2 * half :]])
    return jnp.isfinite(values[0])


def update_peaks(system: MechanicalSystem, state: State, peaks: Peaks) -> Peaks:
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
