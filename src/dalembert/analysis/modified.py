"""Backward error analysis: the vector field that a method solves, exactly for discrete Moser-Veselov and numerically for any.

The iterates of a method with step h lie on a solution of y' = f(y) + h f_2(y) + h^2 f_3(y) + ...
"""

from __future__ import annotations

from math import comb

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..integrators import Integrator
from ..integrators import _free_body as free
from ..integrators.moser_veselov import product, reciprocal, series
from ..invariant import symmetric
from ..simulate import simulate
from ..system import MechanicalSystem, State, vector


def bracket(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[a, b] = a b - b a."""
    return a @ b - b @ a


def velocity(mass, M) -> np.ndarray:
    """The Omega with M = Omega J + J Omega."""
    values, axes = np.linalg.eigh(_matrix(mass))
    return axes @ ((axes.T @ M @ axes) / (values[:, None] + values)) @ axes.T


def derivatives(mass, M, count: int) -> list[np.ndarray]:
    """Omega, Omega', ..., the first `count` derivatives along M' = [M, Omega], by Leibniz' rule."""
    momenta, velocities = [np.asarray(M, float)], [velocity(mass, M)]
    for k in range(count):
        momenta.append(np.sum([comb(k, j) * bracket(momenta[j], velocities[k - j]) for j in range(k + 1)], axis=0))
        velocities.append(velocity(mass, momenta[-1]))
    return velocities


def omegas(mass, M) -> list[np.ndarray]:
    """Omega_0, ..., Omega_4 of w = exp(-h Omega_0 - h^2 Omega_1 - ...), the solution of h M = w^T J - J w, any N ((2.7) to (2.10))."""
    o, d1, d2, d3, d4 = derivatives(mass, M, 4)
    oo = o @ o
    return [
        o,
        d1 / 2,
        d2 / 4 - oo @ o / 6,
        d3 / 8 - (5 * oo @ d1 + 2 * o @ d1 @ o + 5 * d1 @ oo) / 24,
        d4 / 16
        - (4 * d2 @ oo + o @ d2 @ o + 4 * oo @ d2) / 24
        - (4 * d1 @ d1 @ o + 7 * d1 @ o @ d1 + 4 * o @ d1 @ d1) / 24
        + 3 * oo @ oo @ o / 40,
    ]


def f3(mass, M) -> np.ndarray:
    """The h^2 term of the modified field of discrete Moser-Veselov, any N: (2.13)."""
    o, d1, d2 = derivatives(mass, M, 2)
    return bracket(M, d2 - bracket(o, d1) - 2 * o @ o @ o) / 12


def f5(mass, M) -> np.ndarray:
    """The h^4 term, any N: (2.15)."""
    o, d1, d2, d3, d4 = derivatives(mass, M, 4)
    oo = o @ o
    inner = (d4 - bracket(o, d3) + bracket(d1, d2)) / 80 + 3 * (oo @ oo @ o - d1 @ o @ d1) / 40 - o @ d2 @ o / 40
    inner += (bracket(oo @ o, d1) - oo @ d2 - d2 @ oo) / 20 - (d1 @ d1 @ o + o @ d1 @ d1 + o @ bracket(o, d1) @ o) / 40
    return bracket(M, inner)


def taus(inertia, momentum, count: int = 3) -> list[float]:
    """tau_3, tau_5, ...: on SO(3) discrete Moser-Veselov solves m' = (1 + tau_3 h^2 + tau_5 h^4 + ...) m x I^-1 m.

    1 + tau_3 h^2 + ... = T(h)/h, T the inverse of the series s(t) of docs/exact-rigid-body.md (Lagrange's inversion).
    """
    b = free.body(jnp.asarray(symmetric(inertia, 3, "inertia")), vector(momentum, 3, "momentum"))
    inverse = reciprocal(series(b, count + 1).s)
    found = []
    for k in range(1, count + 1):
        power = inverse
        for _ in range(2 * k):
            power = product(power, inverse)
        found.append(float(power[k]) / (2 * k + 1))
    return found


def scaled_taus(inertia, momentum, count: int = 3) -> list[float]:
    """The coefficients of DMV4, DMV6, DMV8: tau_3, tau_5 - 2 tau_3^2, tau_7 - 6 tau_3 tau_5 + 7 tau_3^3."""
    b = free.body(jnp.asarray(symmetric(inertia, 3, "inertia")), vector(momentum, 3, "momentum"))
    return [float(c) for c in reciprocal(series(b, count + 1).s)[1:]]


# -- any method -----------------------------------------------------------------------------------------------------------
def modified_field(
    system: MechanicalSystem, integrator: Integrator, state: State, h: float, *, points: int = 6, both_ways: bool = True
) -> np.ndarray:
    """The modified field at a state, (g^-1 g', mu'), from the derivative of the interpolant of the iterates; error O(h^2points).

    `both_ways` uses steps of h and -h: right for symmetric methods, whose step of -h is the inverse.
    """
    if points < 1 or h == 0:
        raise InvalidInput(f"points = {points}, h = {h}; allowed: at least one point, a step other than 0")
    samples = {0: np.concatenate([np.zeros(system.group.dim), np.asarray(state.momentum)])}
    for sign in (1, -1) if both_ways else (1,):
        count = points if both_ways else 2 * points
        run = simulate(system, integrator, state, step=sign * h, steps=count, backend="xla").check()
        back = system.group.inverse(state.g)
        shifts = jax.vmap(lambda g: system.group.log(system.group.compose(back, g)))(run.g)
        for k in range(1, count + 1):
            samples[sign * k] = np.concatenate([shifts[k], run.momentum[k]])
    nodes = np.array(sorted(samples))
    return np.tensordot(_slopes(nodes), np.array([samples[k] for k in nodes]), 1) / h


def modified_expansion(
    system, integrator, state: State, h: float, *, terms: int = 3, points: int = 6, both_ways: bool = True
) -> list[np.ndarray]:
    """[f, f_3, f_5, ...] (or [f, f_2, f_3, ...] with both_ways=False): coefficients of the modified field, fitted to steps up to h."""
    steps = h * np.cos(np.pi * (np.arange(terms + 2) + 0.5) / (2 * terms + 4))
    fields = np.array(
        [modified_field(system, integrator, state, step, points=points, both_ways=both_ways) for step in steps]
    )
    variable = (steps / h) ** 2 if both_ways else steps / h
    coefficients = np.linalg.solve(np.vander(variable, increasing=True), fields)
    return [c / h ** (2 * k if both_ways else k) for k, c in enumerate(coefficients[:terms])]


def _slopes(nodes: np.ndarray) -> np.ndarray:
    """Weights of the derivative at 0 of the polynomial through values at the nodes, 0 among them."""
    weights = np.zeros(len(nodes))
    at = [float(np.prod([node - other for other in nodes if other != node])) for node in nodes]
    zero = int(np.argmax(nodes == 0))
    for k, node in enumerate(nodes):
        weights[k] = at[zero] / (at[k] * (0.0 - node)) if node else sum(-1.0 / other for other in nodes if other)
    return weights


def _matrix(mass) -> np.ndarray:
    array = np.asarray(mass, float)
    return np.diag(array) if array.ndim == 1 else array
