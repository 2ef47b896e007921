"""Measured orders."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..discretisation import Discretisation
from ..integrators.runge_kutta import derivative
from ..system import MechanicalSystem, State

STEPS = (0.2, 0.1, 0.05, 0.025)


def lagrangian_order(pair: Discretisation, state: State, *, steps: Sequence[float] = STEPS) -> float:
    """The measured order r of L_d: L_d(g(0), g(h)) - int_0^h L dt = O(h^{r+1}) along the motion from `state`.

    It is 1 in general and 2 at node 1/2 ((56) of jimenez-scheurle). The slope of the two smallest steps is given.
    """
    errors = []
    for h in steps:
        g, action = action_along(pair.system, state, h)
        errors.append(abs(float(pair.lagrangian(state.t, state.g, g, h, pair.system)) - action))
    return float(slopes(steps, errors)[-1]) - 1.0


def slopes(steps: Sequence[float], errors: Sequence[float]) -> np.ndarray:
    """The local orders d log(error)/d log(step)."""
    return np.diff(np.log(errors)) / np.diff(np.log(np.abs(steps)))


def action_along(system: MechanicalSystem, state: State, h: float):
    """(g(h), int_0^h L dt) of the motion of a system from `state`, by DOP853 at 1e-13."""
    from scipy.integrate import solve_ivp

    begin, restore = ravel_pytree((state.g, state.xi, jnp.zeros(())))

    @jax.jit
    def field(t, y):
        g, xi, _ = restore(y)
        return ravel_pytree((*derivative(system, t, g, xi, None), system.L(t, g, xi)))[0]

    t0 = float(state.t)
    end = solve_ivp(
        lambda t, y: np.asarray(field(t, y)), (t0, t0 + h), np.asarray(begin), method="DOP853", rtol=1e-13, atol=1e-13
    )
    g, _, action = restore(jnp.asarray(end.y[:, -1]))
    return g, float(action)
