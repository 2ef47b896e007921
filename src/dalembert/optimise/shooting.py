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
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..integrators import OK, REASONS, Integrator
from ..io.measurements import Measure
from ..kernels import Backend, Repeated, evaluate
from ..mechanics import MechanicalSystem, State
from ..numerics import call_own, own_value, require_instance, solve
from ..simulation import RunKernel, StepStart, partial_step, run_kernel, split_reals

Numbers = np.ndarray[Any, Any]
NEWTON_STEPS = 8  # that put a velocity onto constraints that are not linear in it


@dataclass(frozen=True)
class Form:
    """All of the shots of an experiment but their numbers."""

    build: Callable[..., MechanicalSystem]  # (base, {name: value}) -> system
    parameters: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes
    integrator: Integrator
    measures: tuple[Measure, ...] = ()
    angles: frozenset[str] = frozenset()  # those that are compared up to turns
    moved: tuple[int, ...] = ()  # axes along which the configuration at the start is unknown
    free: tuple[int, ...] = ()  # components of the velocity there that are unknown
    held: tuple[int, ...] = ()  # those that follow from the constraint
    linear: bool = True
    dense: bool = False  # whether times lie between the states

    def system(self, base: Any, p: Any) -> MechanicalSystem:
        """The system with these parameters."""
        values, begin = {}, 0
        for name, shape in self.parameters:
            values[name] = p[begin : begin + math.prod(shape)].reshape(shape)
            begin += math.prod(shape)
        made: MechanicalSystem = call_own("model(...)", lambda: self.build(base, values))
        require_instance("what model(...) gives", made, MechanicalSystem, "a system")
        return made

    def start(self, system: MechanicalSystem, state: State, z: Any) -> State:
        """The state with local coordinates z next to another one, put onto the constraints."""
        group, t, g, unit = system.group, state.t, state.g, np.eye(system.group.dim)
        if self.moved:
            g = group.compose(g, group.exp(unit[:, self.moved] @ z[: len(self.moved)]))
            g = system.project_configuration(g, t)
        xi = state.xi + unit[:, self.free] @ z[len(self.moved) :]
        for _ in range((1 if self.linear else NEWTON_STEPS) if self.held else 0):
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
                off = jnp.ravel(own_value(words, function, system, state)) - target
                parts.append(jnp.arctan2(jnp.sin(off), jnp.cos(off)) if name in self.angles else off)
        return jnp.concatenate(parts)

    def show(self, system: MechanicalSystem, state: State) -> Any:
        """What is compared, log g for configurations: the difference from 0, or from 1."""
        one = system.group.identity()
        return self.compare(system, state, tuple(one if function is None else 0.0 for _, function in self.measures))


def difference(system: MechanicalSystem, g: Any, h: Any) -> Any:
    """log(g^-1 h): the displacement from g to h in the body."""
    return system.group.log(system.group.compose(system.group.inverse(g), h))


class Lane(NamedTuple):
    """What a shot starts from and the next one, and the direction in which it is differentiated."""

    base: Any
    p: Any
    dp: Any
    state: Any
    z: Any
    dz: Any
    next: Any  # (state, z, dz) of the next shot
    h: Any


SHARED = Lane(None, None, 0, 0, 0, 0, 0, None)  # which of them the lanes have in common


class Carried(NamedTuple):
    """The loop with the slopes of its real numbers; the last comparison and its slope."""

    loop: Any
    slopes: list[Any]
    error: Any
    slope: Any


@lru_cache(maxsize=64)
def shot_kernel(form: Form) -> tuple[RunKernel, Callable[..., Any]]:
    """The loop of a shot, and (lane, its end) -> gap to the next shot with its slope.

    They are the same objects every time, so that compiled programs are found again.
    """
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

        def following(p: Any, reals: Any) -> Any:
            system, loop = form.system(lane.base, p), join(reals, others)
            new = kernel.advance((system, lane.h), loop, u)
            seen = kernel.observe((system, lane.h), loop if form.dense else new)
            if form.dense:
                seen = at(system, StepStart(seen.state, seen.angles, loop.steps, lane.h), theta, u)[0]
            return (split_reals(new)[0], form.compare(system, seen.state, targets)), new

        return carry(following, (lane.p, reals), (lane.dp, before.slopes))

    def gap(lane: Lane, end: Carried) -> Any:
        reals, others, join = split_reals(end.loop)
        state, z, dz = lane.next

        def between(p: Any, z: Any, reals: Any) -> Any:
            system = form.system(lane.base, p)
            there, here = kernel.observe((system, lane.h), join(reals, others)).state, form.start(system, state, z)
            apart = difference(system, here.g, there.g)
            return jnp.concatenate([apart[np.array(form.moved)], (there.xi - here.xi)[np.array(form.free)]])

        return jax.jvp(between, (lane.p, z, reals), (lane.dp, dz, end.slopes))

    return RunKernel(begin, advance, lambda lane, now: (now.error, now.slope)), gap


class Failure(NamedTuple):
    """A run that failed on the way: after how many good steps, and why."""

    steps: int
    reason: str


@dataclass(eq=False)
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
    rows: (
        Any  # (u, theta, targets) of every step, after those of the first state; leaves (shots, slots, 1 + length, ..)
    )
    place: tuple[Numbers, Numbers, Numbers]
    backend: Backend = "auto"

    @property
    def count(self) -> int:
        """The number of shots."""
        return len(self.state.t)

    @cached_property
    def ways(self) -> Numbers:
        """The directions: unit vectors of (p, z of the shot, z of the next one where there is one)."""
        starts = len(self.form.moved) + len(self.form.free)
        return np.eye(sum(math.prod(shape) for _, shape in self.form.parameters) + starts * (1 + (self.count > 1)))

    def spread(self, leaf: Any, axes: int = 1) -> Numbers:
        """A leaf of shots (1 axis) or shots and slots (2), for all lanes."""
        lead = (self.count, self.rows[1].shape[1], len(self.ways))
        leaf = np.asarray(leaf)[(slice(None),) * axes + (None,) * (3 - axes)]
        return np.broadcast_to(leaf, (*lead, *leaf.shape[3:])).reshape(math.prod(lead), *leaf.shape[3:])

    @cached_property
    def lanes(self) -> tuple[Any, ...]:
        """What stays of the lanes: directions, the states that shots start from, and those of the next ones."""
        directions = self.spread(np.broadcast_to(self.ways, (self.count, 1, *self.ways.shape)), 3)
        after = jax.tree.map(lambda leaf: self.spread(np.roll(leaf, -1, axis=0)), self.state)
        return directions, jax.tree.map(self.spread, self.state), after

    @cached_property
    def repeated(self) -> tuple[Repeated, Any]:
        """The runs, and the rows that they begin with."""
        first = jax.tree.map(lambda leaf: self.spread(leaf[:, :, 0], 2), self.rows)
        alone = self.rows[1].shape[:2] == (1, 1)  # all lanes have the same rows
        rest = jax.tree.map(lambda leaf: leaf[0, 0, 1:] if alone else self.spread(leaf[:, :, 1:], 2), self.rows)
        axes, saves = (SHARED, 0, None if alone else 0), self.length // self.every
        kernel, lanes = shot_kernel(self.form)[0], len(first[1])
        return Repeated(*kernel, rest, lanes, axes, saves, self.every, self.backend), first

    def run(self, p: Numbers, z: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers, Failure | None]:
        """(errors (N, K), their slopes (N, K, ways), gaps (shots - 1, r), their slopes (.., ways), why it failed)."""
        shots, size, r = self.count, len(p), z.shape[1]
        directions, state, after = self.lanes
        dp, dz, dz1 = directions[:, :size], directions[:, size : size + r], directions[:, size + r :]
        following = (after, self.spread(np.roll(z, -1, axis=0)), dz1) if shots > 1 else None
        lane = Lane(self.base, p, dp, state, self.spread(z), dz, following, np.asarray(self.h))
        repeated, first = self.repeated
        end, records = repeated(lane, first)
        errors, slopes = (leaf.reshape(shots, -1, len(self.ways), *leaf.shape[1:]) for leaf in map(np.asarray, records))
        shot, slot, row = self.place
        found = errors[shot, slot, 0, row], np.moveaxis(slopes[shot, slot, :, row], 1, -1)
        gaps, along = np.zeros((0, r)), np.zeros((0, r, 0))
        if shots > 1:
            made = evaluate(shot_kernel(self.form)[1], lane, end, lanes=len(dz), axes=(SHARED, 0), backend=self.backend)
            gaps, along = (np.asarray(leaf).reshape(shots, -1, len(self.ways), r)[:-1, 0] for leaf in made)
            gaps, along = gaps[:, 0], np.moveaxis(along, 1, -1)
        return *found, gaps, along, self._failure(end)

    def _failure(self, end: Carried) -> Failure | None:
        status = np.asarray(end.loop.status)
        if (status == OK).all():
            return None
        lane = int(np.argmax(status != OK))
        before = lane // (len(status) // self.count) * self.length
        return Failure(before + max(0, int(end.loop.steps[lane])), REASONS[int(status[lane])])
