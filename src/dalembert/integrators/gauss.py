"""Gauss collocation on the equations of motion on D."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._newton import find_fixed_point
from ..errors import InvalidInput
from ..retractions import Cayley, Retraction
from ..system import MechanicalSystem, State
from ._adapted import along, drift, first_frame, frame, kinetic, require_linear
from .base import Integrator, Prediction, StepInfo, fine, info
from .claims import Claims, conservative, flat, quadratic_potential, unconstrained

STAGES = (1, 2, 3, 4)


def collocation(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a, b) of the collocation method: a_ij and b_j are the integrals of the Lagrange polynomials to c_i and to 1."""
    powers = np.arange(1, len(nodes) + 1)
    inverse = np.linalg.inv(nodes[:, None] ** (powers - 1))
    return (nodes[:, None] ** powers / powers) @ inverse, (1.0 / powers) @ inverse


class Carry(NamedTuple):
    """The node g with its velocity in D, and a frame of D near g."""

    t: Array
    g: Any
    xi: Array
    reference: Array
    prediction: Prediction  # of the slopes at the stages


@dataclass(frozen=True)
class Gauss(Integrator):
    """The `stages` = 1, 2, 3 or 4 stage Gauss method of order 2, 4, 6 or 8 on (g, rho) with xi = X(g) rho: D exact, symmetric.

    X is a frame of ker A and the configurations are g~ tau(s) about the middle g~ of the step, so that s runs from -x/2 to x/2.
    Stages are found by fixed-point iteration, which needs h times the stiffness of the system to be below about 1. The frame is
    orthonormal, so the energy is |rho|^2/2 + V(g): Gauss methods keep it exactly where there is no V, or V is quadratic on R^n.
    """

    stages: int = 2
    retraction: Retraction = Cayley()
    name = "gauss"
    composes = True

    def __post_init__(self):
        if isinstance(self.stages, bool) or self.stages not in STAGES:
            raise InvalidInput(f"stages is {self.stages!r}; allowed: {', '.join(map(str, STAGES))} (order twice that)")

    @property
    def nodes(self) -> np.ndarray:
        return 0.5 + 0.5 * np.polynomial.legendre.leggauss(self.stages)[0]

    def adjoint(self) -> Gauss:
        return self

    def claims(self, system) -> Claims:
        still = conservative(system)
        canonical = still and unconstrained(system) and flat(system)
        return Claims(
            2 * self.stages,
            symmetric=True,
            reversible=still,
            constraint=True,
            group=True,
            energy=still and quadratic_potential(system),
            momentum=canonical,
            symplectic=canonical,
            condition="energy without potential, or with a quadratic one on R^n; symplectic on R^n with a constant metric",
        )

    def start(self, system, state: State, h, u=None) -> tuple[Carry, StepInfo]:
        t, g, xi = state.t, state.g, state.xi
        reference, (rate, multipliers) = first_frame(system, t, g), system.acceleration(t, g, xi, u)
        slope = jnp.concatenate([xi, _turned(system, t, g, reference, xi, rate)])
        prediction = Prediction.at(jnp.tile(slope, self.stages))
        return Carry(t, g, xi, reference, prediction), fine(multipliers)

    def step(self, system: MechanicalSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        group, n = system.group, system.group.dim
        a, b = map(jnp.asarray, collocation(self.nodes))
        times = carry.t + h * jnp.asarray(self.nodes)
        at_start = carry.xi - drift(system, carry.t, carry.g), kinetic(system, carry.t, carry.g)

        def begun(slopes):
            """(middle, its frame, x, rho at the start) of a step with these slopes."""
            x = h * b @ slopes[:, :n]
            middle = group.compose(carry.g, self.retraction.tau(group, 0.5 * x))
            reference = frame(system, carry.t + 0.5 * h, middle, carry.reference)
            rho = frame(system, carry.t, carry.g, reference).T @ (at_start[1] @ at_start[0])
            return middle, reference, x, rho

        def field(t, s, rho, middle, reference):
            """(s', rho')."""
            g = group.compose(middle, self.retraction.tau(group, s))
            here = frame(system, t, g, reference)
            xi = here @ rho + drift(system, t, g)
            rate = system.acceleration(t, g, xi, u)[0]
            return jnp.concatenate(
                [self.retraction.left_inverse(group, s, xi), _turned(system, t, g, reference, xi, rate)]
            )

        def slopes_of(flat):
            slopes = flat.reshape(len(times), -1)
            middle, reference, x, rho = begun(slopes)
            moved = h * a @ slopes
            stages = jax.vmap(field, in_axes=(0, 0, 0, None, None))
            return stages(times, moved[:, :n] - 0.5 * x, rho + moved[:, n:], middle, reference).reshape(-1)

        root = find_fixed_point(slopes_of, carry.prediction.guess)
        slopes = root.x.reshape(len(times), -1)
        middle, reference, x, rho = begun(slopes)
        t, g = carry.t + h, group.normalise(group.compose(middle, self.retraction.tau(group, 0.5 * x)))
        xi = frame(system, t, g, reference) @ (rho + h * b @ slopes[:, n:]) + drift(system, t, g)
        new = Carry(t, g, xi, reference, carry.prediction.advanced(root))
        return new, info(carry.prediction, root, system.multipliers(t, g, xi, u))

    def observe(self, system, carry: Carry, h) -> State:
        return State(carry.t, carry.g, carry.xi, system.momentum(carry.t, carry.g, carry.xi), carry.xi)

    def reverse(self, system, carry: Carry, h) -> Carry:
        """Back from the same velocity, in the same frame."""
        return carry._replace(prediction=Prediction.at(carry.prediction.x))

    def require(self, system, state: State, h: float) -> None:
        require_linear(self, system)
        super().require(system, state, h)


def _turned(system: MechanicalSystem, t, g, reference, xi, rate) -> Array:
    """rho' of xi = X rho + drift, from xi' = `rate`: X^T M (xi' - X' rho - drift')."""
    here, metric = frame(system, t, g, reference), kinetic(system, t, g)
    rho = here.T @ (metric @ (xi - drift(system, t, g)))

    def velocity(s, q):
        return frame(system, s, q, reference) @ rho + drift(system, s, q)

    return here.T @ (metric @ (rate - along(system, velocity, t, g, xi, 1.0)))
