"""The run of a member as pure functions of its numbers: the loop of `simulate`, with the user's reductions beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..admissible import TOLERANCE
from ..integrators import Integrator
from ..integrators.base import OK
from ..loop import Functions, Loop, functions

OFF_CONSTRAINT = 4
"""Status of a member that starts off the constraint: the others go on."""


class SweepLoop(NamedTuple):
    """The loop of a run beside the values of the user's reductions."""

    loop: Loop
    values: dict[str, Any]


def loop_functions(
    integrator: Integrator, build: Callable, keep: tuple[str, ...], reductions: dict[str, Any]
) -> Functions:
    """The run of a member: like `loop.functions`, but the constants are its numbers, and reductions go along."""
    plain_run = functions(integrator, "extremes" in keep)

    def begin(numbers, _) -> SweepLoop:
        system, state, h = build(numbers)
        loop = plain_run.begin((system, h), (state, None))
        off = jnp.concatenate([system.residual(state.t, state.g, state.xi), system.phi(state.t, state.g)])
        scale = 1.0 + jnp.max(jnp.abs(system.A(state.t, state.g)), initial=0.0) * jnp.max(jnp.abs(state.xi))
        outside = jnp.max(jnp.abs(off), initial=0.0) > TOLERANCE * scale
        status = jnp.where(outside, OFF_CONSTRAINT, loop.status)
        loop = loop._replace(status=status, steps=jnp.where(status == OK, loop.steps, -1.0))
        seen = integrator.observe(system, loop.carry, h)
        return SweepLoop(
            loop, {name: jnp.asarray(one.start(system, seen, h), float) for name, one in reductions.items()}
        )

    def advance(numbers, before: SweepLoop, u) -> SweepLoop:
        system, _, h = build(numbers)
        loop = plain_run.advance((system, h), before.loop, u)
        if not reductions:
            return SweepLoop(loop, before.values)
        seen, good = integrator.observe(system, loop.carry, h), loop.steps > before.loop.steps
        new = {name: one.update(before.values[name], system, seen, h) for name, one in reductions.items()}
        return SweepLoop(loop, jax.tree.map(lambda a, b: jnp.where(good, a, b), new, before.values))

    def observe(numbers, after: SweepLoop) -> dict[str, Array]:
        system, _, h = build(numbers)
        record = plain_run.observe((system, h), after.loop)
        found = {"status": after.loop.status, "steps": after.loop.steps, **after.values}
        if "extremes" in keep:
            peaks = after.loop.peaks
            found |= {
                "energy_error_max": peaks.energy_error,
                "constraint_max": peaks.constraint,
                "holonomic_max": peaks.holonomic,
                "group_distance_max": peaks.group,
            }
        if {"final", "states"} & set(keep):
            g = record.state.g if isinstance(record.state.g, tuple) else (record.state.g,)
            tails = [f"_{k}" for k in range(len(g))] if len(g) > 1 else [""]
            found |= {f"configuration{tail}": part for tail, part in zip(tails, g, strict=True)}
            found |= {
                "time": record.state.t,
                "velocity": record.state.xi,
                "momentum": record.state.momentum,
                "angle": record.angles,
            }
        if "drift" in keep:
            found["time"] = record.state.t
            found["energy"] = system.energy(record.state.t, record.state.g, record.state.xi)
        return {name: value for name, value in found.items() if value.size}

    return Functions(begin, advance, observe)


def whole_run(made: Functions) -> Callable:
    """begin, all steps and observe as one function."""

    def whole(consts, _):
        numbers, steps = consts

        def go(carried):
            return carried[0] + 1.0, made.advance(numbers, carried[1], None)

        last = jax.lax.while_loop(lambda carried: carried[0] < steps, go, (jnp.zeros(()), made.begin(numbers, ())))
        return made.observe(numbers, last[1])

    return whole
