"""What a method should keep of the energy: E - E(0), or where power enters what is left of that when the work is taken away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array

from ._jaxpr import depends, vanishes
from .kernels.evaluate import evaluated
from .nonlinear import NonlinearSystem
from .run import Run
from .system import MechanicalSystem, State

R = TypeVar("R", bound=Run)
MOST_STATES = 100_000
"""Up to how many steps a run in which power enters is saved whole, so that its work can be told."""


def powered(system: MechanicalSystem) -> bool:
    """Whether P = <F, xi> - L_t + <l, A xi> can be other than zero without controls: a force, an explicit time, a constraint that moves.

    False is a proof, True is not (see `_jaxpr`).
    """
    t, g, xi = np.zeros(()), system.group.identity(), np.ones(system.group.dim)
    if isinstance(system, NonlinearSystem) or depends(lambda s: system.L(s, g, xi), t):
        return True
    forced = not vanishes(lambda at: system.F(at[0], at[1], at[2], None), (t, g, xi))
    return forced or not vanishes(lambda point: system.b(*point), (t, g))


def work(run: Run, controls: Any = None) -> np.ndarray:
    """The energy that should have entered up to each saved state; see `diagnostics.work`. `controls` have one row between two of them."""
    states = run.records.state
    gaps = np.diff(np.asarray(states.t))
    begin, end = (jax.tree.map(lambda leaf: leaf[part], states) for part in (slice(None, -1), slice(1, None)))
    (p0, s0), (p1, s1) = _powers(run.system, begin, controls), _powers(run.system, end, controls)
    return np.append(0.0, np.cumsum(gaps / 2 * (p0 + p1) + gaps**2 / 12 * (s0 - s1)))


def _powers(system: MechanicalSystem, states: State, controls: Any) -> tuple[np.ndarray, np.ndarray]:
    """P and dP/dt along the motion at each state: every state is a lane of a run of no steps, for XLA compiles this for a minute."""
    lanes = states.xi.shape[0]
    power, slope = evaluated(_power, system, (states, controls), lanes=lanes, axes=(None, 0))
    return np.asarray(power), np.asarray(slope)


def _power(system: MechanicalSystem, point) -> tuple[Array, Array]:
    """(P, dP/dt) at a state under its control."""
    state, u = point
    rate, _ = system.acceleration(state.t, state.g, state.xi, u)

    def power(s):
        t, g, xi = state.t + s, system.group.shift(state.g, s * state.xi), state.xi + s * rate
        entering = system.F(t, g, xi, u) @ xi - jax.grad(system.L)(t, g, xi)
        return entering + system.multipliers(t, g, xi, u) @ (system.rows(t, g)(xi) @ xi)

    return jax.jvp(power, (0.0,), (1.0,))


def saving(system: MechanicalSystem, steps: int, every: int) -> int:
    """How often to save where every `every`-th state is wanted: always where power enters, whose work needs them, unless they are many."""
    return 1 if steps <= MOST_STATES and powered(system) else every


class Kept(NamedTuple):
    """A quantity that should stay zero: its name, how it is written, its values at saved states, its largest size at all of them."""

    title: str
    label: str
    values: np.ndarray
    peak: float


ERROR, BALANCE, CHANGE = "Energy error", "Energy balance", "Energy change"


def energy_kept(run: Run) -> Kept:
    """The energy error of a single run; where power enters, the balance E - E(0) - work instead.

    Where the work cannot be told (controls, which a run does not hold, or states that were not saved) it is a change, not an error.
    """
    change = np.asarray(run.energy_error())
    enters = powered(run.system)
    if not (enters or run.controlled):
        return _kept(ERROR, "|E - E(0)|", change)
    if run.controlled or len(change) < 2 or np.any(np.diff(np.asarray(run.records.steps)) > 1):
        return _kept(CHANGE, "|E - E(0)|", change)
    return _kept(BALANCE, "|E - E(0) - work|", change - work(run))


def _kept(title: str, label: str, values: np.ndarray) -> Kept:
    return Kept(title, label, values, float(np.abs(values).max()))


def thinned(run: R, every: int) -> tuple[R, Kept]:
    """A run at every `every`-th of its steps and its last, and there what it keeps of the energy."""
    kept, steps = energy_kept(run), np.asarray(run.records.steps)
    shown = (steps % every == 0) | (np.arange(len(steps)) == len(steps) - 1)
    fewer = replace(run, records=jax.tree.map(lambda leaf: np.asarray(leaf)[shown], run.records))
    return fewer, kept._replace(values=kept.values[shown])
