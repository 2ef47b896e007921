"""The loop of a run as pure functions that back ends compile: begin, advance by a step, freeze what fails, observe.

What the loop needs before it starts stands first: the number of steps and the controls held over each of them.
The same loop carries forward tangents: the derivative of a run along a curve of problems.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..integrators import NOT_FINITE, OK, Integrator
from ..mechanics import MechanicalSystem, State
from ..numerics import is_traced, positive_int
from .results import Record

BACKENDS = ("auto", "llvm", "cuda", "xla")
MAX_STEPS = 2**53
"""Steps are counted in floating point, which is exact up to this number."""
TIME_TOLERANCE = 1e-9
"""Two times that differ by less than this share of a step are the same."""

Constants = Any  # (system, h), or (system, h, t_end) of a loop that stops at a time


def count_steps(step: Any, steps: int | None, t_end: Any, t0: Any, *, variable: bool = False) -> int:
    """Return the number of steps of size `step`: `steps`, or those to the last state at or before `t_end`.

    Where the steps are `variable`, the number to `t_end` is an estimate of at least 1.
    """
    if not is_traced(step) and (not np.isfinite(step) or step == 0):
        raise InvalidInput(f"step is {step}; allowed: any finite number but 0 (negative steps go back in time)")
    if (steps is None) == (t_end is None):
        raise InvalidInput("give exactly one of steps and t_end")
    if steps is not None:
        if positive_int("steps", steps) > MAX_STEPS:
            raise InvalidInput(f"steps is {steps}; allowed: at most {MAX_STEPS}: steps are counted in floating point")
        return int(steps)
    if is_traced((step, t_end, t0)):
        raise InvalidInput("the number of steps to t_end is not known inside a JAX transformation: give steps")
    ratio = (t_end - t0) / step
    if variable and np.isfinite(ratio) and ratio > 0:
        return max(1, int(ratio))
    if not np.isfinite(ratio) or ratio < 1 - TIME_TOLERANCE:
        raise InvalidInput(f"t_end = {t_end} is not at least one step of {step} away from the start at t = {t0}")
    return int(np.floor(ratio * (1 + 1e-12) + TIME_TOLERANCE))


def held_controls(controls: Any, t0: Any, step: Any, steps: int) -> Any:
    """Return controls as arrays with one row a step: of a function of time u, u_k = u(t0 + (k + 1/2) h)."""
    if controls is None:
        return None
    if callable(controls):
        return jax.vmap(controls)(t0 + step * (jnp.arange(steps) + 0.5))
    held = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), controls)
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(held)}
    if sizes != {steps}:
        raise InvalidInput(f"controls have {sorted(sizes)} rows; allowed: one row a step, that is {steps}")
    return held


def first_controls(controls: Any) -> Any:
    """Return the controls of the first step."""
    return jax.tree.map(lambda leaf: leaf[0], controls)


class Peaks(NamedTuple):
    """Extremes over ALL steps, saved or not: E at the start, the largest |E - E(0)|, |A xi - b|, |g - G| and |phi|."""

    energy: Array
    energy_error: Array
    constraint: Array
    group: Array
    holonomic: Array | np.ndarray[Any, Any] = np.zeros(0)  # one entry a holonomic constraint


class LoopState(NamedTuple):
    """All that a run carries from step to step. A failed lane stays at its last good state, with its status."""

    carry: Any
    origin: Array  # time of the carry before the first step: t = origin + steps h has no drift
    steps: Array  # counted in floating point, so that no step converts integers; -1 where the start has no solution
    status: Array
    residual: Array
    iterations: Array
    multipliers: Array
    turns: Array
    peaks: Peaks


class RunKernel(NamedTuple):
    """The pure functions of a run that a back end compiles; the constants (system, h) are run-time inputs.

    begin(constants, (state, u)) -> loop; advance(constants, loop, u) -> loop; observe(constants, loop) -> record.
    """

    begin: Callable[..., Any]
    advance: Callable[..., Any]
    observe: Callable[..., Any]


@lru_cache(maxsize=256)
def run_kernel(integrator: Integrator, monitor: bool) -> RunKernel:
    """Return the loop of an integrator: the same objects every time, so that compiled programs are found again."""

    def begin(consts: Constants, given: tuple[State, Any]) -> LoopState:
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
            first = peaks._replace(energy=system.energy(seen.t, seen.g, seen.xi))
            loop = loop._replace(peaks=update_peaks(system, seen, first))
        return loop

    def advance(consts: Constants, loop: LoopState, u: Any) -> LoopState:
        system, h = consts
        carry, info = integrator.step(system, loop.carry, h, u)
        good = (loop.status == OK) & (info.status == OK) & _all_finite(carry, loop.carry)
        count = loop.steps + jnp.where(good, 1.0, 0.0)
        carry = carry if integrator.variable_step else carry._replace(t=loop.origin + count * h)
        failure = jnp.where(info.status == OK, NOT_FINITE, info.status)
        status = jnp.where(good | (loop.status != OK), loop.status, failure)
        turns = loop.turns + system.group.winding(loop.carry.g, carry.g)
        peaks = update_peaks(system, integrator.observe(system, carry, h), loop.peaks) if monitor else loop.peaks
        new = (carry, info.residual, info.iterations, info.multipliers, turns, peaks)
        old = (loop.carry, loop.residual, loop.iterations, loop.multipliers, loop.turns, loop.peaks)
        kept = _select(good, new, old)
        return LoopState(kept[0], loop.origin, count, status, *kept[1:])

    def observe(consts: Constants, loop: LoopState) -> Record:
        system, h = consts
        group, state = system.group, integrator.observe(system, loop.carry, h)
        angles = group.angles(loop.carry.g) + 2 * jnp.pi * loop.turns
        if state.g is not loop.carry.g:  # a node between: less than half a turn from the one that is counted
            angles = angles + group.angles(group.compose(group.inverse(loop.carry.g), state.g))
        size = loop.carry.size if integrator.variable_step else None
        iterations, count = loop.iterations.astype(int), loop.steps.astype(int)
        return Record(state, loop.residual, iterations, loop.multipliers, angles, count, size)

    return RunKernel(begin, advance, observe)


def _all_finite(new: Any, old: Any = ()) -> Array:
    """Whether all leaves that changed are finite, by their sum: cheaper than to compare each, and a shallow tree."""
    unchanged = {id(leaf) for leaf in jax.tree.leaves(old)}
    values = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(new) if id(leaf) not in unchanged])
    while values.shape[0] > 1:
        half = values.shape[0] // 2
        values = jnp.concatenate([values[:half] + values[half : 2 * half], values[2 * half :]])
    return jnp.isfinite(values[0])


def _select(condition: Array, new: Any, old: Any) -> Any:
    """Return the leaves of `new` where the condition holds, else those of `old`."""
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), new, old)


def update_peaks(system: MechanicalSystem, state: State, peaks: Peaks) -> Peaks:
    """Return the extremes with those of one more state."""
    energy = system.energy(state.t, state.g, state.xi)
    constraint = jnp.max(jnp.abs(system.residual(state.t, state.g, state.xi)), initial=0.0)
    return Peaks(
        peaks.energy,
        jnp.maximum(peaks.energy_error, jnp.abs(energy - peaks.energy)),
        jnp.maximum(peaks.constraint, constraint),
        jnp.maximum(peaks.group, system.group.distance(state.g)),
        jnp.maximum(peaks.holonomic, jnp.abs(system.phi(state.t, state.g))),
    )


@lru_cache(maxsize=256)
def stop_at_time(kernel: RunKernel) -> RunKernel:
    """Return the loop that stays at the last state at or before t_end; its constants are (system, h, t_end).

    It is for methods whose steps vary, so that the number of steps is not known before the run.
    """

    def begin(consts: Constants, given: tuple[State, Any]) -> Any:
        return kernel.begin(consts[:2], given)

    def advance(consts: Constants, loop: LoopState, u: Any) -> LoopState:
        system, h, t_end = consts
        new = kernel.advance((system, h), loop, u)
        within = (t_end - new.carry.t) * jnp.sign(h) >= -TIME_TOLERANCE * jnp.abs(h)
        chosen: LoopState = _select(within, new, loop)
        return chosen

    def observe(consts: Constants, loop: LoopState) -> Any:
        return kernel.observe(consts[:2], loop)

    return RunKernel(begin, advance, observe)


class Dual(NamedTuple):
    """A pytree with the tangents of its real leaves, in their order."""

    value: Any
    slopes: list[Any]


def split_reals(tree: Any) -> tuple[list[Any], list[Any], Callable[[list[Any], list[Any]], Any]]:
    """Return (real leaves, other leaves, how to join them again): only real numbers have tangents."""
    leaves, structure = jax.tree.flatten(tree)
    real = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def join(reals: list[Any], others: list[Any]) -> Any:
        first, second = iter(reals), iter(others)
        return jax.tree.unflatten(structure, [next(first) if mark else next(second) for mark in real])

    marked = list(zip(leaves, real, strict=True))
    return [leaf for leaf, mark in marked if mark], [leaf for leaf, mark in marked if not mark], join


def make_dual(value: Any, tangent: Any) -> Dual:
    """Return a pytree with a tangent of the same structure (None: zero)."""
    reals = split_reals(value)[0]
    return Dual(value, [jnp.zeros_like(leaf) for leaf in reals] if tangent is None else split_reals(tangent)[0])


def push_forward(function: Callable[..., Any], *arguments: Dual) -> Dual:
    """Return `function` at the values of its arguments, with its derivative along their slopes."""
    reals, others, join = split_reals([argument.value for argument in arguments])
    joins: list[Callable[[list[Any], list[Any]], Any]] = []

    def on_reals(*leaves: Any) -> tuple[list[Any], list[Any]]:
        result, rest, join_result = split_reals(function(*join(list(leaves), others)))
        joins.append(join_result)
        return result, rest

    slopes = [slope for argument in arguments for slope in argument.slopes]
    value, tangent, rest = jax.jvp(on_reals, tuple(reals), tuple(slopes), has_aux=True)
    return Dual(joins[-1](value, rest), tangent)


def tangent_tree(dual: Dual) -> Any:
    """Return the slopes in the shape of the value, zero where a leaf is no real number."""
    _, others, join = split_reals(dual.value)
    return join(dual.slopes, [jnp.zeros(jnp.shape(leaf)) for leaf in others])


@lru_cache(maxsize=256)
def with_tangents(kernel: RunKernel) -> RunKernel:
    """Return the tangent loop: the same functions on values with slopes. Controls have none."""

    def begin(consts: Dual, given: Dual) -> Dual:
        return push_forward(kernel.begin, consts, given)

    def advance(consts: Dual, loop: Dual, u: Any) -> Dual:
        return push_forward(lambda inner, state: kernel.advance(inner, state, u), consts, loop)

    def observe(consts: Dual, loop: Dual) -> Dual:
        return push_forward(kernel.observe, consts, loop)

    return RunKernel(begin, advance, observe)
