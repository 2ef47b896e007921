"""The order (p, s) of a discretisation of the nonholonomic problem (Definition 4.2 of jimenez-scheurle), measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from ..integrators import LagrangeDAlembert
from ..simulate import simulate
from ..system import MechanicalSystem, State
from .exact_constraint import motion
from .order import slopes

STEPS = (0.016, 0.008, 0.004)


class Consistency(NamedTuple):
    """Local orders: an error O(h^{r+1}) in one step counts as r.

    `multipliers` compares l_{k+1} with l(t_{k+1}), as Definition 4.2 does; `at_node` with l at the time of the node where it
    acts; `rebuilt` is the multiplier (23) of the discrete (q, v) (Remark 4.3).
    """

    position: float
    velocity: float
    multipliers: float
    at_node: float
    rebuilt: float

    @property
    def ps(self) -> tuple[float, float]:
        """(p, s) of Definition 4.2."""
        return min(self.position, self.velocity), self.multipliers


def consistency(
    system: MechanicalSystem,
    integrator: LagrangeDAlembert,
    state: State,
    *,
    steps: Sequence[float] = STEPS,
    pieces: int = 1,
) -> Consistency:
    """The measured order of one step from `state` (of two for the multipliers: the first may be the continuous one)."""
    errors = []
    for h in steps:
        run = simulate(system, integrator, state, step=h, steps=2).check()
        node = integrator.reaction_time(run.t[2], h)
        (q, v, _), (_, _, end), (_, _, inner) = (
            _exact(system, state, float(t), pieces) for t in (run.t[1], run.t[2], node)
        )
        rebuilt = _rebuilt(system, jax.tree.map(lambda leaf: leaf[2], run.records.state))
        found = run.multipliers[2]
        shift = system.group.log(
            system.group.compose(system.group.inverse(q), jax.tree.map(lambda leaf: leaf[1], run.g))
        )
        gaps = (shift, run.xi[1] - v, found - end, found - inner, rebuilt - end)
        errors.append([float(np.linalg.norm(gap)) for gap in gaps])
    return Consistency(*(float(slopes(steps, column)[-1]) - 1.0 for column in np.array(errors).T))


@jax.jit
def _rebuilt(system: MechanicalSystem, state: State) -> Array:
    return system.multipliers(state.t, state.g, state.xi)


@partial(jax.jit, static_argnums=3)
def _exact(system: MechanicalSystem, state: State, t, pieces: int):
    """(g, xi, l) of the motion from `state` at time t."""
    g, xi = motion(system, state.t, state.g, state.xi, t - state.t, pieces)
    return g, xi, system.multipliers(t, g, xi)
