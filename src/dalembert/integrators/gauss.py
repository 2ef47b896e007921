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
from ._roundoff import added, resized
from .base import Claims, Integrator, Prediction, StepInfo, fine, info
from .claims import conservative, flat, quadratic_potential, unconstrained

STAGES = (1, 2, 3, 4)


def collocation(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a, b) of the collocation method: a_ij and b_j are the integrals of the Lagrange polynomials to c_i and to 1."""
    powers = np.arange(1, len(nodes) + 1)
    inverse = np.linalg.inv(nodes[:, None] ** (powers - 1))
    return (nodes[:, None] ** powers / powers) @ inverse, (1.0 / powers) @ inverse


def balanced(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(b, a/b - 1/2) of a symplectic collocation method, the second skew to the last bit.

    With L_j = h b_j f(Y_j) the stages are Y_i = y + sum (1/2 + skew_ij) L_j: quadratic invariants are kept whatever the round-off
    of the coefficients (Antonana, Makazaga, Murua, Numer. Algorithms 76, 2017); with a_ij themselves it adds up to a linear drift.
    """
    a, b = collocation(nodes)
    skew = a / b - 0.5
    return b, 0.5 * (skew - skew.T)


class Carry(NamedTuple):
    """The node g with a frame of D there, the velocity in it and its square, and what the last sum lost of that."""

    t: Array
    g: Any
    frame: Array
    rho: Array
    square: Array
    lost: Array
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
        """The zeros c_i of the Legendre polynomial on [0, 1]."""
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
        rho = reference.T @ (kinetic(system, t, g) @ (xi - drift(system, t, g)))
        slope = jnp.concatenate([xi, _turned(system, t, g, reference, xi, rate)])
        prediction = Prediction.at(jnp.tile(slope, self.stages))
        return Carry(t, g, reference, rho, rho @ rho, jnp.zeros(()), prediction), fine(multipliers)

    def step(self, system: MechanicalSystem, carry: Carry, h, u=None) -> tuple[Carry, StepInfo]:
        group, n = system.group, system.group.dim
        weights, skew = map(jnp.asarray, balanced(self.nodes))
        times = carry.t + h * jnp.asarray(self.nodes)
        momenta = kinetic(system, carry.t, carry.g) @ carry.frame

        def begun(slopes):
            """(middle, its frame, rho at the start, the parts of the step) of a step with these slopes."""
            parts = (h * weights)[:, None] * slopes
            middle = group.compose(carry.g, self.retraction.tau(group, 0.5 * jnp.sum(parts[:, :n], axis=0)))
            reference = frame(system, carry.t + 0.5 * h, middle, carry.frame)
            turned = frame(system, carry.t, carry.g, reference) - carry.frame
            return middle, reference, resized(carry.rho + turned.T @ (momenta @ carry.rho), carry.square), parts

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
            middle, reference, rho, parts = begun(flat.reshape(len(times), -1))
            moved = skew @ parts
            within = rho + 0.5 * jnp.sum(parts[:, n:], axis=0) + moved[:, n:]
            stages = jax.vmap(field, in_axes=(0, 0, 0, None, None))
            return stages(times, moved[:, :n], within, middle, reference).reshape(-1)

        root = find_fixed_point(slopes_of, carry.prediction.guess)
        # once more, which the residual of the root needs anyway: what the iteration leaves is smooth and would add up
        middle, reference, rho, parts = begun(slopes_of(root.x).reshape(len(times), -1))
        half, kick = 0.5 * jnp.sum(parts[:, :n], axis=0), jnp.sum(parts[:, n:], axis=0)
        t, g = carry.t + h, group.normalise(group.compose(middle, self.retraction.tau(group, half)))
        square, lost = added(carry.square, kick @ (2.0 * rho + kick), carry.lost)
        new = Carry(t, g, frame(system, t, g, reference), rho + kick, square, lost, carry.prediction.advanced(root))
        return new, info(carry.prediction, root, system.multipliers(t, g, _velocity(system, new), u))

    def observe(self, system, carry: Carry, h) -> State:
        xi = _velocity(system, carry)
        return State(carry.t, carry.g, xi, system.momentum(carry.t, carry.g, xi), xi)

    def reverse(self, system, carry: Carry, h) -> Carry:
        """Back from the same velocity, in the same frame."""
        return carry._replace(prediction=Prediction.at(carry.prediction.x))

    def require(self, system, state: State, h: float) -> None:
        require_linear(self, system)
        super().require(system, state, h)


def _velocity(system: MechanicalSystem, carry: Carry) -> Array:
    return carry.frame @ carry.rho + drift(system, carry.t, carry.g)


def _turned(system: MechanicalSystem, t, g, reference, xi, rate) -> Array:
    """rho' of xi = X rho + drift, from xi' = `rate`: X^T M (xi' - X' rho - drift')."""
    here, metric = frame(system, t, g, reference), kinetic(system, t, g)
    rho = here.T @ (metric @ (xi - drift(system, t, g)))

    def velocity(s, q):
        return frame(system, s, q, reference) @ rho + drift(system, s, q)

    return here.T @ (metric @ (rate - along(system, velocity, t, g, xi, 1.0)))
