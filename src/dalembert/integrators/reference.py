"""An accurate motion to compare with: SciPy's DOP853 on the equations of motion."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..errors import NumericalFailure
from ..system import MechanicalSystem, State
from .runge_kutta import RungeKutta, derivative


@dataclass(frozen=True)
class Reference(RungeKutta):
    """DOP853 with relative and absolute tolerance `tolerance` between the saved times; controls are held over each step."""

    tolerance: float = 1e-13
    name = "reference"

    def trajectory(self, system: MechanicalSystem, state: State, times: np.ndarray, controls=None) -> list[State]:
        """The states at `times` (the first is that of `state`); stops early where the motion cannot be continued."""
        flat, restore = ravel_pytree((state.g, state.xi))

        @jax.jit
        def field(t, y, u):
            g, xi = restore(y)
            return ravel_pytree(derivative(system, t, g, xi, u))[0]

        points = [np.asarray(flat)]
        for k in range(len(times) - 1):
            u = None if controls is None else jax.tree.map(lambda leaf: leaf[k], controls)
            try:
                points.append(self._flow(field, times[k], times[k + 1], points[-1], u))
            except NumericalFailure:
                break
        return [self._observe(system, t, *restore(jnp.asarray(y))) for t, y in zip(times, points, strict=False)]

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
