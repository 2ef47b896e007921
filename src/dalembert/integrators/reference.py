"""An accurate motion to compare with: SciPy's DOP853 on the equations of motion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..errors import NumericalFailure
from ..system import MechanicalSystem, State
from .base import Claims
from .dormand_prince import DormandPrince
from .runge_kutta import derivative


@dataclass(frozen=True)
class Reference(DormandPrince):
    """DOP853 with relative and absolute tolerance `tolerance` between the saved times; controls are held over each step.

    One run goes through SciPy, independent of our kernels; in ensembles every step is that of `DormandPrince`.
    """

    tolerance: float = 1e-13
    name = "reference"

    def claims(self, system) -> Claims:
        return Claims(None, condition="all other methods are measured against it")

    def trajectory(self, system: MechanicalSystem, state: State, times: np.ndarray, controls=None) -> list[State]:
        """The states at `times` (the first is that of `state`); stops early where the motion cannot be continued."""
        flow = self.flow(system, state)
        states = [self._observe(system, times[0], state.g, state.xi)]
        for k in range(len(times) - 1):
            u = None if controls is None else jax.tree.map(lambda leaf: leaf[k], controls)
            try:
                states.append(flow(states[-1], times[k + 1], u))
            except NumericalFailure:
                break
        return states

    def flow(self, system: MechanicalSystem, like: State) -> Callable[[State, float, Any], State]:
        """(state, t, u) -> the state at the time t under the control u; compiled once, for states like this one."""
        _, restore = ravel_pytree((like.g, like.xi))

        @jax.jit
        def field(t, y, u):
            g, xi = restore(y)
            return ravel_pytree(derivative(system, t, g, xi, u))[0]

        def flow(state: State, t: float, u=None) -> State:
            begin = np.asarray(ravel_pytree((state.g, state.xi))[0])
            end = self._flow(field, float(state.t), float(t), begin, u)
            return self._observe(system, t, *restore(jnp.asarray(end)))

        return flow

    def _flow(self, field, t0, t1, y, u) -> np.ndarray:
        from scipy.integrate import solve_ivp

        solution = solve_ivp(
            lambda t, y: np.asarray(field(t, y, u)),
            (t0, t1),
            y,
            method="DOP853",
            rtol=self.tolerance,
            atol=self.tolerance,
        )
        if not solution.success or not np.all(np.isfinite(solution.y[:, -1])):
            raise NumericalFailure(f"DOP853 could not pass from t={t0} to t={t1}: {solution.message}")
        return solution.y[:, -1]

    def _observe(self, system, t, g, xi) -> State:
        return State(jnp.asarray(t), g, xi, system.momentum(t, g, xi), xi)
