"""Runs beside measurements: how far the motion is from the data, with derivatives in the unknowns, in native code.

A run of an experiment is cut into shots of equal length (one, unless a single shot would lose the data). The unknowns
of a shot are parameters p of the system and local coordinates z of its start: the start is (g0 exp(eta), xi) with eta
and the free components of xi in z; the other components of xi follow from A xi = b. A lane is a shot with a direction
(dp, dz): it carries the tangent of the loop along that direction, so that all columns of the Jacobian come from one
call. Measurements are compared inside the loop, in the step in which they lie: a time between two states is that of the
method's own step of a part of the size, as in `Trajectory.at`, and has the order of the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..integrators import OK, REASONS, Integrator
from ..kernels import Backend, evaluate, make_problem, run_problem
from ..mechanics import MechanicalSystem, State
from ..numerics import call_own, own_value, require_instance, solve
from ..simulation import RunKernel, StepStart, partial_step, run_kernel, split_reals

Numbers = np.ndarray[Any, Any]
Measure = tuple[str, Callable[[Any, State], Any] | None]  # its name, and (system, state) -> array; None: on the group
NEWTON_STEPS = 8  # that put a velocity onto constraints that are not linear in it


@dataclass(frozen=True)
class Form:
    """All of the shots of an experiment but their numbers."""

    build: Callable[..., MechanicalSystem]  # (base, {name: value}) -> system
    parameters: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes
    integrator: Integrator
    measures: tuple[Measure, ...]
    moved: tuple[int, ...]  # axes along which the configuration at the start is unknown
    free: tuple[int, ...]  # components of the velocity there that are unknown
    held: tuple[int, ...]  # those that follow from the constraint
    linear: bool
    dense: bool  # whether times lie between the states

    @property
    def coordinates(self) -> int:
        """The number of coordinates of a start."""
        return len(self.moved) + len(self.free)

    def system(self, base: Any, p: Any) -> MechanicalSystem:
        """The system with these parameters."""
        values, begin = {}, 0
        for name, shape in self.parameters:
            size = math.prod(shape)
            values[name] = p[begin : begin + size].reshape(shape)
            begin += size
        made = call_own("model(...)", lambda: self.build(base, values))
        require_instance("what model(...) gives", made, MechanicalSystem, "a system")
        return made  # type: ignore[no-any-return]

    def start(self, system: MechanicalSystem, state: State, z: Any) -> State:
        """The state with local coordinates z next to another one, put onto the constraints."""
        group, t, g, xi = system.group, state.t, state.g, state.xi
        unit = np.eye(group.dim)
        if self.moved:
            g = group.compose(g, group.exp(unit[:, self.moved] @ z[: len(self.moved)]))
            g = system.project_configuration(g, t)
        xi = xi + unit[:, self.free] @ z[len(self.moved) :]
        if self.held:
            for _ in range(1 if self.linear else NEWTON_STEPS):
                rows = system.rows(t, g)(xi)[:, np.array(self.held)]
                xi = xi - unit[:, self.held] @ solve(rows, system.residual(t, g, xi))
        return State(t, g, xi, system.momentum(t, g, xi), xi, group)

    def compare(self, system: MechanicalSystem, state: State, targets: tuple[Any, ...]) -> Any:
        """How far a state is from what was measured, one component after the other."""
        parts = []
        for (name, function), target in zip(self.measures, targets, strict=True):
            if function is None:
                parts.append(difference(system, target, state.g))
            else:
                words = f"the observable {name!r} of (system, state)"
                parts.append(jnp.ravel(own_value(words, function, system, state)) - target)
        return jnp.concatenate(parts)


def difference(system: MechanicalSystem, g: Any, h: Any) -> Any:
    """log(g^-1 h): the displacement from g to h in the body."""
    group = system.group
    return group.log(group.compose(group.inverse(g), h))


class Lane(NamedTuple):
    """What a shot starts from, and the direction in which it is differentiated."""

    base: Any
    p: Any
    dp: Any
    state: Any
    z: Any
    dz: Any
    h: Any


class Carried(NamedTuple):
    """The loop with the slopes of its real numbers; the last comparison and its slope."""

    loop: Any
    slopes: list[Any]
    error: Any
    slope: Any


@lru_cache(maxsize=64)
def shot_kernel(form: Form) -> RunKernel:
    """The loop of a shot: the same objects every time, so that compiled programs are found again."""
    kernel, at = run_kernel(form.integrator, False), partial_step(form.integrator)

    def carry(function: Callable[..., Any], values: Any, slopes: Any) -> Carried:
        (_, error), (moving, slope), loop = jax.jvp(function, values, slopes, has_aux=True)
        return Carried(loop, moving, error, slope)

    def begin(lane: Lane, row: Any) -> Carried:
        u, _, targets = row

        def first(p: Any, z: Any) -> Any:
            system = form.system(lane.base, p)
            state = form.start(system, lane.state, z)
            loop = kernel.begin((system, lane.h), (state, u))
            return (split_reals(loop)[0], form.compare(system, state, targets)), loop

        return carry(first, (lane.p, lane.z), (lane.dp, lane.dz))

    def advance(lane: Lane, before: Carried, row: Any) -> Carried:
        u, theta, targets = row
        reals, others, join = split_reals(before.loop)

        def next_one(p: Any, reals: Any) -> Any:
            system, loop = form.system(lane.base, p), join(reals, others)
            consts = system, lane.h
            new = kernel.advance(consts, loop, u)
            if form.dense:
                seen = kernel.observe(consts, loop)
                state = at(system, StepStart(seen.state, seen.angles, loop.steps, lane.h), theta, u)[0].state
            else:
                state = kernel.observe(consts, new).state
            return (split_reals(new)[0], form.compare(system, state, targets)), new

        return carry(next_one, (lane.p, reals), (lane.dp, before.slopes))

    def observe(lane: Lane, now: Carried) -> Any:
        return now.error, now.slope

    return RunKernel(begin, advance, observe)


@lru_cache(maxsize=64)
def gap_function(form: Form) -> Callable[..., Any]:
    """(lane of the next shot, what the shot before ended with) -> the gap between both, and its slope."""
    kernel = run_kernel(form.integrator, False)

    def gap(lane: Lane, end: tuple[Any, list[Any]]) -> Any:
        reals, others, join = split_reals(end[0])

        def between(p: Any, z: Any, reals: Any) -> Any:
            system = form.system(lane.base, p)
            there = kernel.observe((system, lane.h), join(reals, others)).state
            here = form.start(system, lane.state, z)
            apart = difference(system, here.g, there.g)[np.array(form.moved)]
            return jnp.concatenate([apart, (there.xi - here.xi)[np.array(form.free)]])

        return jax.jvp(between, (lane.p, lane.z, reals), (lane.dp, lane.dz, end[1]))

    return gap


class Failure(NamedTuple):
    """A run that failed on the way: after how many good steps, and why."""

    steps: int
    reason: str


@dataclass
class Shots:
    """The shots of one experiment with its data, ready for many values of the unknowns.

    Measurement i lies in shot `place[0][i]`, in its slot `place[1][i]` (measurements in one step have one slot each)
    and in its record `place[2][i]`.
    """

    form: Form
    base: Any
    state: State  # leaves (shots, ...)
    h: float
    length: int  # of a shot, in steps
    every: int  # a record after so many steps
    first: Any  # (u, theta, targets) before the first step, leaves (shots, slots, ...)
    rows: Any  # the same for each step, leaves (shots, slots, length, ...)
    place: tuple[Numbers, Numbers, Numbers]
    backend: Backend = "auto"

    @property
    def count(self) -> int:
        """The number of shots."""
        return len(self.state.t)

    def _spread(self, leaf: Any, axes: int, columns: int) -> Numbers:
        """A leaf of shots (1 axis) or shots and slots (2), for all lanes."""
        slots = self.first[1].shape[1]
        leaf = np.asarray(leaf)[(slice(None),) * axes + (None,) * (3 - axes)]
        shape = (self.count, slots, columns, *leaf.shape[3:])
        return np.broadcast_to(leaf, shape).reshape(-1, *leaf.shape[3:])

    def run(self, p: Numbers, z: Numbers, slopes: bool = True) -> tuple[Numbers, Numbers, Any, Failure | None]:
        """(errors (N, K), their derivatives (N, K, columns) in (p, z of the own shot), ends, failure)."""
        kernel = shot_kernel(self.form)
        ways = np.eye(len(p) + z.shape[1]) if slopes else np.zeros((1, len(p) + z.shape[1]))
        columns, shots = len(ways), self.count
        single = self.first[1].size == 1
        tangents = np.broadcast_to(ways, (shots, self.first[1].shape[1], *ways.shape)).reshape(-1, ways.shape[1])
        state, z0 = jax.tree.map(lambda leaf: self._spread(leaf, 1, columns), (self.state, z))
        lane = Lane(self.base, p, tangents[:, : len(p)], state, z0, tangents[:, len(p) :], np.asarray(self.h))
        of_lane = Lane(None, None, 0, 0, 0, 0, None)
        if single:
            first, rows = jax.tree.map(lambda leaf: leaf[0, 0], (self.first, self.rows))
            of_rows = None
        else:
            first, rows = jax.tree.map(lambda leaf: self._spread(leaf, 2, columns), (self.first, self.rows))
            of_rows = 0
        lanes = len(tangents)
        # The rows of the first step are carried by all lanes.
        given = first if not single else jax.tree.map(lambda leaf: np.broadcast_to(leaf, (lanes, *leaf.shape)), first)
        carried = evaluate(kernel.begin, lane, given, lanes=lanes, axes=(of_lane, 0), backend=self.backend)
        problem = make_problem(
            kernel.advance, kernel.observe, lane, carried, rows, lanes=lanes, axes=(of_lane, 0, of_rows)
        )
        saves = self.length // self.every
        done = run_problem(problem, saves=saves, save_every=self.every, backend=self.backend, initial=True)
        if done.interrupted:
            raise KeyboardInterrupt
        errors, along = (np.asarray(leaf).reshape(shots, -1, columns, *leaf.shape[1:]) for leaf in done.records)
        shot, slot, row = self.place
        end = done.carry
        return errors[shot, slot, 0, row], np.moveaxis(along[shot, slot, :, row], 1, -1), end, self._failure(end)

    def _failure(self, end: Carried) -> Failure | None:
        status = np.asarray(end.loop.status)
        if (status == OK).all():
            return None
        lane = int(np.argmax(status != OK))
        shot = lane // (len(status) // self.count)
        return Failure(shot * self.length + max(0, int(end.loop.steps[lane])), REASONS[int(status[lane])])

    def gaps(self, p: Numbers, z: Numbers, end: Carried) -> tuple[Numbers, Numbers]:
        """(gaps (shots - 1, r), derivatives (shots - 1, r, columns) in (p, z of the shot before, z of the next))."""
        size, r, shots = len(p), z.shape[1], self.count
        columns = size + r
        stop = jax.tree.map(
            lambda leaf: np.asarray(leaf).reshape(shots, -1, columns, *leaf.shape[1:])[:-1, 0], (end.loop, end.slopes)
        )
        stop = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf[:, :r]], 1), stop)
        for leaf in stop[1]:
            leaf[:, columns:] = 0.0
        ways = np.zeros((columns + r, columns))
        ways[:size, :size], ways[columns:, size:] = np.eye(size), np.eye(r)
        lanes = (shots - 1) * (columns + r)

        def flat(leaf: Any) -> Numbers:
            return np.asarray(leaf).reshape(lanes, *np.shape(leaf)[2:])

        def spread(leaf: Any) -> Numbers:
            return flat(np.repeat(np.asarray(leaf)[1:, None], columns + r, axis=1))

        tangents = np.tile(ways, (shots - 1, 1))
        state, z0 = jax.tree.map(spread, (self.state, z))
        lane = Lane(self.base, p, tangents[:, :size], state, z0, tangents[:, size:], np.asarray(self.h))
        of_lane = Lane(None, None, 0, 0, 0, 0, None)
        function = gap_function(self.form)
        found = evaluate(function, lane, jax.tree.map(flat, stop), lanes=lanes, axes=(of_lane, 0), backend=self.backend)
        gap, slope = (np.asarray(leaf).reshape(shots - 1, columns + r, -1) for leaf in found)
        return gap[:, 0], np.moveaxis(slope, 1, -1)
