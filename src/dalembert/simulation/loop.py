"""The loop of a run as pure functions that back ends compile: begin, advance by a step, freeze what fails, observe.

What the loop needs before it starts stands first: the number of steps and the controls held over each of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, match_names
from ..integrators import NOT_FINITE, OFF_CONSTRAINT, OK, Integrator, call_method
from ..kernels import (
    as_jax,
    available_memory,
    in_place,
    is_real,
    known_number,
    mark_slopes,
    mark_values,
    note_value,
    on_gpu,
    to_host,
)
from ..mechanics import Input, MechanicalSystem, State
from ..numerics import (
    TRACED_TOLERANCE,
    call_own,
    finite,
    is_traced,
    namespace,
    not_zero,
    positive_int,
    read_reals,
    say_many,
    show,
)
from .results import Record

DOUBLE = np.dtype(float)
BACKENDS = ("auto", "llvm", "cuda", "xla")
NO_RECORD = -2.0
"""The number of steps in a record that is not finite, though the carry of the method is: see `end_before_gaps`."""
MAX_STEPS = 2**53
"""Steps are counted in floating point, which is exact up to this number."""
TIME_TOLERANCE = 1e-9
"""Two times that differ by less than this share of a step are the same."""
END_TOLERANCE = 1e-3
"""A run that ends before t_end by less than this share of a step has reached it."""

Constants = Any  # (system, h), or (system, h, t_end) of a loop that stops at a time


def count_steps(step: Any, steps: int | None, t_end: Any, t0: Any, *, variable: bool = False) -> int:
    """Return the number of steps of size `step`: `steps`, or those to the last state at or before `t_end`.

    Steps stay equal, for what a method conserves rests on that: where they do not end at `t_end`, a warning says so.
    Where the steps are `variable`, the number to `t_end` is an estimate of at least 1.
    """
    not_zero("step", step)
    if (steps is None) == (t_end is None):
        raise InvalidInput("give exactly one of steps and t_end")
    if steps is not None:
        if positive_int("steps", steps) > MAX_STEPS:
            raise InvalidInput(f"steps is {steps}; allowed: at most {MAX_STEPS}: steps are counted in floating point")
        return int(steps)
    given = {"step": step, "t_end": t_end, "t0": t0}
    if unknown := [name for name, value in given.items() if known_number(value) is None]:
        names = " and ".join(unknown)
        raise InvalidInput(f"the number of steps to t_end is not known, for JAX traces {names}: give steps")
    step, t_end, t0 = (known_number(value) for value in given.values())  # whose derivatives change no count
    t_end = finite("t_end", t_end)
    ratio = (t_end - t0) / step
    if variable and np.isfinite(ratio) and ratio > 0:
        return max(1, int(ratio))
    if not np.isfinite(ratio) or ratio < 1 - TIME_TOLERANCE:
        raise InvalidInput(f"t_end = {t_end} is not at least one step of {step} away from the start at t = {t0}")
    count = int(np.floor(ratio * (1 + 1e-12) + TIME_TOLERANCE))
    if ratio - count > END_TOLERANCE:
        near = f"step={(t_end - t0) / (count + 1):.12g} reaches it in {count + 1} steps"
        ends = f"the run ends before it, at t = {t0 + count * step:.6g}"
        warnings.warn(f"t_end = {t_end:g} is not a whole number of steps of {step:g}: {ends}; {near}", stacklevel=2)
    return count


def sample_controls(
    controls: Any, t0: Any, step: Any, steps: int, inputs: tuple[Input, ...] | None = None, members: int | None = None
) -> Any:
    """Return controls as arrays with one row a step: of a function of time u, u_k = u(t0 + (k + 1/2) h).

    They have one column for each of the `inputs`, within its bounds; where these are not known, any pytree is taken.
    A mapping gives columns by the names of inputs. Each of some `members` may have rows of its own.
    """
    if controls is None:
        return None
    if inputs and members is None and (plain := read_rows(controls, steps, inputs)) is not None:
        return plain
    if isinstance(controls, Mapping) and inputs:
        controls = _rows_by_name(controls, lambda: t0 + step * (jnp.arange(steps) + 0.5), steps, inputs)
    if callable(controls):
        needed = 24 * steps * (1 + len(inputs or (1,)))  # bytes: the times, the rows and one copy of both
        if steps > 10**6 and needed > available_memory():
            raise InvalidInput(
                f"controls(t) has a row for each of {steps} steps, and these take {needed / 2**30:.3g} GiB, more than "
                "there is: let the force depend on t, or steer the system (da.with_feedback)"
            )
        controls = call_own("controls(t)", jax.vmap(controls), t0 + step * (jnp.arange(steps) + 0.5))
    rows = inputs is not None and isinstance(controls, list | tuple)
    held = _reals(controls) if rows else jax.tree.map(_reals, as_jax(controls))
    own = members is not None and bool(inputs) and has_members(held)
    sizes = {leaf.shape[int(own)] if leaf.ndim else 0 for leaf in jax.tree.leaves(held)}
    if sizes != {steps}:
        several = say_many(held, (steps, len(inputs or ()))) if isinstance(held, np.ndarray | jax.Array) else ""
        found = " and ".join(map(str, sorted(sizes))) or "no"
        raise InvalidInput(f"controls have {found} rows; allowed: one row a step, that is {steps}{several}")
    if inputs is None:
        return held
    names = ", ".join(each.name for each in inputs)
    if not inputs:
        raise InvalidInput(
            "controls are given, but the system has no inputs: its force does not read u, as far as tracing shows (say "
            "what it reads with System(..., inputs=...)), or a feedback sets them"
        )
    if not isinstance(held, np.ndarray | jax.Array):
        raise InvalidInput(
            f"controls are a {type(controls).__name__}; allowed: an array ({steps}, {len(inputs)}): {names}"
        )
    held = held[:, None] if held.ndim == 1 and len(inputs) == 1 else held
    if held.shape != (*([members] if own else []), steps, len(inputs)):
        several = say_many(held, (steps, len(inputs)))
        each = "" if members is None else f", or ({members}, {steps}, {len(inputs)}) where each member has its own"
        raise InvalidInput(
            f"controls have shape {held.shape}; allowed: ({steps}, {len(inputs)}), a row for each step and a column "
            f"for each input: {names} (System(..., inputs=...) declares them){each or several}"
        )
    if not is_traced(held):
        _require_bounds(held, inputs)
    return held


def read_rows(controls: Any, steps: int, inputs: tuple[Input, ...]) -> np.ndarray[Any, Any] | None:
    """Return a copy of controls that are plain numbers within their bounds, one row a step; None of all others.

    Most calls in a loop have such: to read them takes a few microseconds. What is None here `sample_controls` reads or
    refuses.
    """
    shape = (steps, len(inputs))
    if type(controls) is not np.ndarray and isinstance(controls, jax.Array):
        if is_traced(controls) or on_gpu(controls):
            return None
        controls = np.asarray(controls)
    if type(controls) is np.ndarray:
        if controls.ndim == shape[1] == 1:
            controls = controls[:, None]
        if controls.shape != shape or controls.dtype != DOUBLE:
            return None
        rows = controls.copy()
    elif type(controls) is dict:
        rows, found = np.zeros(shape), 0
        for i, each in enumerate(inputs):
            if (value := controls.get(each.name, rows)) is not rows:
                one_a_step = type(value) is np.ndarray and value.dtype == DOUBLE and value.shape == shape[:1]
                if not one_a_step and type(value) is not float:
                    return None
                rows[:, i], found = value, found + 1
        if found != len(controls):
            return None
    else:
        return None
    bounds = _bounds(inputs)
    inside = np.isfinite(rows) if bounds is None else (bounds[0] <= rows) & (rows <= bounds[1])
    return rows if np.count_nonzero(inside) == inside.size else None


_known_bounds: dict[int, tuple[tuple[Input, ...], Any]] = {}  # by the id of the inputs, which stand there too


def _bounds(inputs: tuple[Input, ...]) -> tuple[Any, Any] | None:
    """Return the least and the largest finite values of inputs; None where none has a bound."""
    if (known := _known_bounds.get(id(inputs))) is not None and known[0] is inputs:
        return known[1]  # type: ignore[no-any-return]
    low, high, most = [each.low for each in inputs], [each.high for each in inputs], np.finfo(float).max
    found = None if np.isinf([low, high]).all() else (np.maximum(low, -most), np.minimum(high, most))
    if len(_known_bounds) >= 256:
        _known_bounds.clear()
    _known_bounds[id(inputs)] = inputs, found
    return found


def depends_on_time(controls: Any) -> bool:
    """Whether controls are a function of time, or have one for an input."""
    return callable(controls) or (isinstance(controls, Mapping) and any(map(callable, controls.values())))


def _rows_by_name(controls: Mapping[str, Any], times: Callable[[], Array], steps: int, inputs: Sequence[Input]) -> Any:
    """Return the rows of controls given by name: a number, one a step, or a function of time; inputs left out are 0."""
    names = [each.name for each in inputs]
    controls, columns = match_names("input", controls, names), []
    for name in names:
        given = controls.get(name, 0.0)
        column = _reals(call_own(f"{name}(t)", jax.vmap(given), times()) if callable(given) else given)
        if column.shape not in ((), (steps,)):
            raise InvalidInput(
                f"the control of {name} has shape {column.shape}; allowed: a number, {steps} numbers (one a step), or "
                "a function of time that gives a number"
            )
        columns.append(column)
    xp = namespace(columns) if not any(map(on_gpu, columns)) else jnp
    return xp.stack([xp.broadcast_to(column, (steps,)) for column in columns], axis=1)


def has_members(controls: Any) -> bool:
    """Whether controls have rows for each member of an ensemble."""
    return isinstance(controls, np.ndarray | jax.Array) and controls.ndim == 3


def _require_bounds(held: Any, inputs: tuple[Input, ...]) -> None:
    data = in_place(held)
    for i, each in enumerate(inputs):
        column = data[..., i]
        inside = (each.low <= column) & (column <= each.high) & (abs(column) < np.inf)
        if not bool(inside.all()):
            place = tuple(map(int, np.argwhere(~to_host(inside))[0]))
            where = f"row {place[-1]}" if len(place) == 1 else f"of member {place[0]}, row {place[1]}"
            allowed = f"a number from {each.low:g} to {each.high:g}"
            given = f"{float(column[place]):g}"
            given = repr(float(column[place])) if given in (f"{each.low:g}", f"{each.high:g}") else given
            raise InvalidInput(f"controls {where}: {each.name} is {given}; allowed: {allowed}")


def _reals(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and leaf.dtype == float and (is_traced(leaf) or on_gpu(leaf)):
        return leaf
    if (given := read_reals(leaf)) is None:
        raise InvalidInput(f"controls are {show(leaf)}; allowed: real numbers")
    return given.astype(float)


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
        (system, h), (state, u) = consts[:2], given
        carry, info = call_method(integrator, "start", system, state, h, u)
        good = (info.status == OK) & all_finite(carry)
        status = jnp.where(good, OK, jnp.where(info.status == OK, NOT_FINITE, info.status))
        zero = jnp.zeros(())
        peaks = Peaks(zero, zero, zero, zero, jnp.zeros(system.holonomic_constraints))
        count = jnp.where(good, 0.0, -1.0)
        turns = jnp.zeros_like(system.group.angles(state.g))
        loop = LoopState(carry, carry.t, count, status, info.residual, info.iterations, info.multipliers, turns, peaks)
        if monitor:
            seen = call_method(integrator, "observe", system, carry, h)
            first = peaks._replace(energy=system.energy(seen.t, seen.g, seen.xi))
            loop = loop._replace(peaks=update_peaks(system, seen, first))
        return loop

    def advance(consts: Constants, loop: LoopState, u: Any) -> LoopState:
        system, h = consts[:2]
        carry, info = call_method(integrator, "step", system, loop.carry, h, u)
        lasting, count = carry, loop.steps + 1.0
        if not integrator.variable_step:  # a time that overflows shows in its record
            lasting, carry = carry._replace(t=loop.carry.t), carry._replace(t=loop.origin + count * h)
        turns, peaks = loop.turns + system.group.winding(loop.carry.g, carry.g), loop.peaks
        if monitor:
            peaks = update_peaks(system, call_method(integrator, "observe", system, carry, h), peaks)

        def is_good() -> Any:
            good = (loop.status == OK) & (info.status == OK) & all_finite(lasting, loop.carry)
            return good & all_finite(peaks, loop.peaks) if monitor else good

        good = note_value(is_good, np.zeros((), bool), lasting=True)
        failure = jnp.where(info.status == OK, NOT_FINITE, info.status)
        status = jnp.where(good | (loop.status != OK), loop.status, failure)
        new = (carry, count, info.residual, info.iterations, info.multipliers, turns, peaks)
        old = (loop.carry, loop.steps, loop.residual, loop.iterations, loop.multipliers, loop.turns, loop.peaks)
        carry, count, *rest = _select(good, new, old)
        return LoopState(carry, loop.origin, count, status, *rest)

    def observe(consts: Constants, loop: LoopState) -> Record:
        system, h = consts[:2]
        group, state = system.group, call_method(integrator, "observe", system, loop.carry, h)
        angles = group.angles(loop.carry.g) + 2 * jnp.pi * loop.turns
        if state.g is not loop.carry.g:  # a node between: less than half a turn from the one that is counted
            angles = angles + group.angles(group.compose(group.inverse(loop.carry.g), state.g))
        size = loop.carry.size if integrator.variable_step else None
        still, (t, g, xi) = jax.lax.stop_gradient((system, state[:3]))  # whether it is finite has no derivative
        known = all_finite((state, still.energy(t, g, xi)), loop.carry) | (loop.status != OK)
        iterations, count = loop.iterations.astype(int), jnp.where(known, loop.steps, NO_RECORD).astype(int)
        return Record(state, loop.residual, iterations, loop.multipliers, angles, count, size)

    return RunKernel(begin, advance, observe)


@lru_cache(maxsize=256)
def find_momentum_first(begin: Callable[..., Any]) -> Callable[..., Any]:
    """Return the beginning from a state without its momentum: this is L_xi, found by the same native code."""

    def begin_there(consts: Constants, given: tuple[State, Any]) -> Any:
        system, (state, u) = consts[0], given
        return begin(consts, (state._replace(momentum=system.momentum(*state[:3])), u))

    return begin_there


def fail_off_constraint(loop: LoopState, system: MechanicalSystem, state: State, tolerance: float) -> LoopState:
    """Return the loop at a start, failed where that is off the constraint, or off the group."""
    (t, g, xi), system = jax.lax.stop_gradient((state[:3], system))
    off = jnp.concatenate([system.residual(t, g, xi), system.phi(t, g)])
    scale = 1.0 + jnp.max(jnp.abs(system.A(t, g)), initial=0.0) * jnp.max(jnp.abs(xi))
    outside = (jnp.max(jnp.abs(off), initial=0.0) > tolerance * scale) | (system.group.distance(g) > tolerance)
    status = jnp.where(outside, OFF_CONSTRAINT, loop.status)
    return loop._replace(status=status, steps=jnp.where(status == OK, loop.steps, -1.0))


@lru_cache(maxsize=256)
def judge_begin(begin: Callable[..., Any]) -> Callable[..., Any]:
    """Return the beginning that fails where `simulate` would refuse the start, if JAX did not trace its numbers."""

    def begin_judged(consts: Constants, given: tuple[State, Any]) -> LoopState:
        return fail_off_constraint(begin(consts, given), consts[0], given[0], TRACED_TOLERANCE)

    return begin_judged


def all_finite(new: Any, old: Any = ()) -> Array:
    """Whether all leaves that changed are finite, by their sum: cheaper than to compare each, and a shallow tree."""
    unchanged = {id(leaf) for leaf in jax.tree.leaves(old)}
    values = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(new) if id(leaf) not in unchanged])
    while values.shape[0] > 1:
        half = values.shape[0] // 2
        values = jnp.concatenate([values[:half] + values[half : 2 * half], values[2 * half :]])
    return jnp.isfinite(values[0])


def end_before_gaps(records: Record, loop: LoopState, lanes: bool) -> tuple[Record, LoopState]:
    """Return the records and the loop of a run that fails where a recorded number is not finite, at the record before.

    Methods carry less than they record: a velocity that no longer exists, or an energy that overflows, shows there.
    A start that has no record fails as one without a solution, and its record stays.
    """
    if not bool((in_place(records.steps) == NO_RECORD).any()):
        return records, loop
    records, loop = to_host((records, loop))
    steps = np.atleast_2d(np.asarray(records.steps))
    lost = steps == NO_RECORD
    last = np.where(lost.any(axis=1), np.maximum(np.argmax(lost, axis=1) - 1, 0), steps.shape[1] - 1)
    kept = np.minimum(np.arange(steps.shape[1]), last[:, None])
    index = (np.arange(len(steps))[:, None], kept) if lanes else (kept[0],)
    records = jax.tree.map(lambda leaf: np.asarray(leaf)[index], records)
    counts = np.where(np.take_along_axis(lost, last[:, None], axis=1), -1, np.take_along_axis(steps, kept, axis=1))
    status, good = np.atleast_1d(np.asarray(loop.status)), np.atleast_1d(np.asarray(loop.steps))
    status = np.where(lost.any(axis=1), NOT_FINITE, status).astype(status.dtype)
    good = np.where(lost.any(axis=1), counts[:, -1], good).astype(good.dtype)
    counts = counts.astype(np.asarray(records.steps).dtype)
    count, code, number = map(jnp.asarray, (counts, status, good) if lanes else (counts[0], status[0], good[0]))
    return records._replace(steps=count), loop._replace(status=code, steps=number)


def mark_failures(
    records: Record, loop: LoopState, made_of: Sequence[tuple[Any, bool]] = ()
) -> tuple[Record, LoopState]:
    """Return the same of a run that JAX transforms: with the status of failure, and derivatives that are NaN then.

    They are NaN in all that the run was `made_of`: numbers, and whether these are those of its members.
    """
    lost = jnp.any(records.steps == int(NO_RECORD), axis=-1)
    status = jnp.where(lost & (loop.status == OK), NOT_FINITE, loop.status)
    # A failed run stays where it was. What it shows there has derivatives, but not those of what was asked for.
    marked: tuple[Record, LoopState] = mark_values(status == OK, (records, loop._replace(status=status)), made_of)
    return marked


@jax.custom_jvp
def invalidate_unless(good: Array, tree: Any) -> Any:
    """Return the tree with numbers and derivatives that are NaN where it is not good."""

    def mask(leaf: Any) -> Any:
        real = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return jnp.where(good.reshape(good.shape + (1,) * (leaf.ndim - good.ndim)), leaf, jnp.nan) if real else leaf

    return jax.tree.map(mask, tree)


@invalidate_unless.defjvp
def _jvp_of_good_runs(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return invalidate_unless(*primals), mark_slopes(primals[0], tangents[1])


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

    def advance(consts: Constants, loop: LoopState, u: Any) -> LoopState:
        _, h, t_end = consts
        new = kernel.advance(consts, loop, u)
        within = (t_end - new.carry.t) * jnp.sign(h) >= -TIME_TOLERANCE * jnp.abs(h)
        chosen: LoopState = _select(within, new, loop)
        return chosen

    return kernel._replace(advance=advance)


def split_reals(tree: Any) -> tuple[list[Any], list[Any], Callable[[list[Any], list[Any]], Any]]:
    """Return (real leaves, other leaves, how to join them again): only real numbers have tangents."""
    leaves, structure = jax.tree.flatten(tree)
    real = list(map(is_real, leaves))

    def join(reals: list[Any], others: list[Any]) -> Any:
        first, second = iter(reals), iter(others)
        return jax.tree.unflatten(structure, [next(first) if mark else next(second) for mark in real])

    marked = list(zip(leaves, real, strict=True))
    return [leaf for leaf, mark in marked if mark], [leaf for leaf, mark in marked if not mark], join
