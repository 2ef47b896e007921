"""Backward error analysis: the vector field that a method solves, exactly for discrete Moser-Veselov and numerically for any.

The iterates of a method with step h lie on a solution of y' = f(y) + h f_2(y) + h^2 f_3(y) + ...

The Moser-Veselov equation M = w^T J - J w for an orthogonal w: four ways to solve it, and when it can be solved.

W = w^T J satisfies W^2 - M W - J^2 = 0. Its eigenvalues are the roots with positive real part of
det(l^2 - l M - J^2) = 0; when some root is imaginary there is no such splitting of the spectrum and no map.
These are host functions for study and for checks; the integrator has its own explicit map.
"""

from __future__ import annotations

from itertools import pairwise
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import expm, schur, solve_sylvester

from ..errors import InvalidInput, NumericalFailure
from ..integrators import Integrator, constants, horner, product, reciprocal, series
from ..integrators import free_body as free
from ..mechanics import MechanicalSystem, State, symmetric, vector
from ..simulation import simulate


def commutator(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[a, b] = a b - b a."""
    return a @ b - b @ a


def velocity(mass, M) -> np.ndarray:
    """The Omega with M = Omega J + J Omega."""
    values, axes = np.linalg.eigh(_matrix(mass))
    return axes @ ((axes.T @ M @ axes) / (values[:, None] + values)) @ axes.T


def velocity_derivatives(mass, M, count: int) -> list[np.ndarray]:
    """Omega, Omega', ..., the first `count` derivatives along M' = [M, Omega], by Leibniz' rule."""
    momenta, velocities = [np.asarray(M, float)], [velocity(mass, M)]
    for k in range(count):
        momenta.append(np.sum([comb(k, j) * commutator(momenta[j], velocities[k - j]) for j in range(k + 1)], axis=0))
        velocities.append(velocity(mass, momenta[-1]))
    return velocities


def displacement_series(mass, M) -> list[np.ndarray]:
    """Omega_0, ..., Omega_4 of w = exp(-h Omega_0 - h^2 Omega_1 - ...), the solution of h M = w^T J - J w, any N ((2.7) to (2.10))."""
    o, d1, d2, d3, d4 = velocity_derivatives(mass, M, 4)
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


def modified_term_3(mass, M) -> np.ndarray:
    """The h^2 term of the modified field of discrete Moser-Veselov, any N: (2.13)."""
    o, d1, d2 = velocity_derivatives(mass, M, 2)
    return commutator(M, d2 - commutator(o, d1) - 2 * o @ o @ o) / 12


def modified_term_5(mass, M) -> np.ndarray:
    """The h^4 term, any N: (2.15)."""
    o, d1, d2, d3, d4 = velocity_derivatives(mass, M, 4)
    oo = o @ o
    inner = (d4 - commutator(o, d3) + commutator(d1, d2)) / 80 + 3 * (oo @ oo @ o - d1 @ o @ d1) / 40 - o @ d2 @ o / 40
    inner += (commutator(oo @ o, d1) - oo @ d2 - d2 @ oo) / 20 - (d1 @ d1 @ o + o @ d1 @ d1 + o @ commutator(o, d1) @ o) / 40
    return commutator(M, inner)


def speed_coefficients(inertia, momentum, count: int = 3) -> list[float]:
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


def scaling_coefficients(inertia, momentum, count: int = 3) -> list[float]:
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


SPLITTING_TOLERANCE = 1e-12


def spectrum(mass, M) -> np.ndarray:
    """The 2n roots of det(l^2 - l M - J^2) = 0."""
    J, M = _pair(mass, M)
    n = len(J)
    return np.linalg.eigvals(np.block([[np.zeros((n, n)), np.eye(n)], [J @ J, M]]))


def spectrum_splits(mass, M) -> bool:
    """Whether the spectrum splits into halves S and -S off the imaginary axis, so that w exists and is unique."""
    roots = spectrum(mass, M)
    return bool(np.all(np.abs(roots.real) > SPLITTING_TOLERANCE * np.abs(roots).max()))


def satisfies_cardoso_leite(mass, M) -> bool:
    """The sufficient criterion that M^2/4 + J^2 is positive definite (Cardoso and Leite 2001)."""
    J, M = _pair(mass, M)
    return bool(np.linalg.eigvalsh(M @ M / 4 + J @ J)[0] > 0)


def solve_explicit(mass, M) -> np.ndarray:
    """w for 3 x 3 from the roots of a cubic and the null vectors of J^2 + l M - l^2 (mclachlan-zanna section 8, corrected).

    W x = l x, so W = X diag(l) X^-1; equal roots (symmetric bodies) are beyond this method.
    """
    J, M = _pair(mass, M, size=3)
    squares = J @ J
    momentum = np.array([M[2, 1], M[0, 2], M[1, 0]])
    second = (np.trace(squares) ** 2 - np.trace(squares @ squares)) / 2
    cubic = [
        1.0,
        momentum @ momentum - np.trace(squares),
        second - np.sum((J @ momentum) ** 2),
        -np.linalg.det(squares),
    ]
    roots = np.sqrt(np.roots(cubic).astype(complex))
    _require_split(roots)
    vectors = []
    for root in roots:
        rows = squares + root * M - root**2 * np.eye(3)
        candidates = np.array([np.cross(rows[i], rows[j]) for i, j in ((0, 1), (0, 2), (1, 2))])
        best = candidates[np.argmax(np.linalg.norm(candidates, axis=1))]
        vectors.append(best / np.linalg.norm(best))
    X = np.array(vectors).T
    W = np.real(X @ np.diag(roots) @ np.linalg.inv(X))
    return np.linalg.solve(J, W.T)


def solve_symmetric_functions(mass, M) -> np.ndarray:
    """w for 3 x 3 without eigenvectors: (M^2 - e1 M + e2 + J^2) W = e3 + e1 J^2 - M J^2 with the symmetric functions of the roots."""
    J, M = _pair(mass, M, size=3)
    roots = spectrum(J, M)
    _require_split(roots)
    positive = roots[roots.real > 0]
    e1, e2 = np.sum(positive).real, ((np.sum(positive) ** 2 - np.sum(positive**2)) / 2).real
    squares, one = J @ J, np.eye(3)
    W = np.linalg.solve(M @ M - e1 * M + e2 * one + squares, np.linalg.det(J) * one + e1 * squares - M @ squares)
    return np.linalg.solve(J, W.T)


def solve_schur(mass, M) -> np.ndarray:
    """w for any n from the ordered real Schur form of [[M/2, 1], [M^2/4 + J^2, M/2]] (Cardoso and Leite 2001)."""
    J, M = _pair(mass, M)
    n = len(J)
    riccati = np.block([[M / 2, np.eye(n)], [M @ M / 4 + J @ J, M / 2]])
    _require_split(np.linalg.eigvals(riccati))
    _, Q, count = schur(riccati, sort="rhp")
    if count != n:
        raise NumericalFailure(f"the spectrum does not split: {count} of {2 * n} roots have positive real part")
    S = Q[n:, :n] @ np.linalg.inv(Q[:n, :n])
    return np.linalg.solve(J, (M / 2 + (S + S.T) / 2).T)


def solve_newton(mass, M, stages: int = 16) -> np.ndarray:
    """w for any n by Newton's method on the group, continued from M = 0.

    w -> w exp(-a) changes W = w^T J to exp(a) W, so the increment solves a W + W^T a = M - (W - W^T).
    """
    J, M = _pair(mass, M)
    w = np.eye(len(J))
    for stage in range(1, stages + 1):
        for _ in range(30):
            W = w.T @ J
            residual = stage / stages * M - (W - W.T)
            increment = solve_sylvester(W.T, W, residual)
            w = w @ expm(-increment)
            if np.abs(increment).max() < 1e-14:
                break
        else:
            raise NumericalFailure(
                f"Newton's method on the Moser-Veselov equation did not converge at {stage}/{stages} of the momentum"
            )
    return w


def largest_scale(inertia, momentum) -> float:
    """s*: discrete Moser-Veselov with scaled momentum s m exists for |s| < s*."""
    return float(free.largest_scale(_level(inertia, momentum)))


def failing_steps(
    inertia, momentum, order: int | str = 2, variant: str = "scaled", up_to: float = 100.0
) -> list[tuple[float, float]]:
    """The intervals of steps 0 < h <= up_to at which the method of this order has no solution."""
    if order == "exact":
        return []
    b = _level(inertia, momentum)
    if variant == "scaled":
        limit = float(free.largest_scale(b))
        even = [float(c) for c in reciprocal(series(b, int(order) // 2).s)]
        polynomial = np.zeros(2 * len(even) - 1)
        polynomial[::2] = even
        edges = np.concatenate(
            [np.polynomial.polynomial.polyroots(_minus_h(limit * polynomial, sign)) for sign in (1.0, -1.0)]
        )
        edges = np.sort(edges[np.abs(edges.imag) < 1e-9].real)
        fails = lambda h: abs(h) >= limit * abs(np.polynomial.polynomial.polyval(h, polynomial))
    else:
        tensor, m = jnp.asarray(symmetric(inertia, 3, "inertia")), jnp.asarray(momentum, float)
        exists = jax.jit(jax.vmap(lambda h: constants(tensor, m, h, order, variant)[2]))
        fails = lambda h: ~np.asarray(exists(jnp.atleast_1d(h)))[0]
        edges = _edges(exists, up_to)
    marks = np.concatenate([[0.0], edges[(edges > 0) & (edges < up_to)], [up_to]])
    found: list[tuple[float, float]] = []
    for low, high in pairwise(marks):
        if fails((low + high) / 2):
            joined = found and found[-1][1] == low
            found = [*found[:-1], (found[-1][0], float(high))] if joined else [*found, (float(low), float(high))]
    return found


def largest_free_step(inertia, momentum, order: int | str = 2, variant: str = "scaled", up_to: float = 100.0) -> float:
    """The first step at which the method fails, inf if none below `up_to`; larger ones may work again: see `failing_steps`."""
    intervals = failing_steps(inertia, momentum, order, variant, up_to)
    return intervals[0][0] if intervals else np.inf


def effective_scale(inertia, momentum, h: float, order: int) -> float:
    """The scale s of the momentum in a scaled step. Beyond order 2 it tends to 0 as h grows: the motion stops (section 5)."""
    return float(h / horner(reciprocal(series(_level(inertia, momentum), order // 2).s), jnp.asarray(h * h, float)))


def _edges(exists, up_to: float) -> np.ndarray:
    """Where `exists` changes, on a grid refined by bisection."""
    grid = np.linspace(0, up_to, 401)[1:]
    known = np.asarray(exists(jnp.asarray(grid)))
    change = np.flatnonzero(known[1:] != known[:-1])
    low, high, before = grid[change], grid[change + 1], known[change]
    for _ in range(48 if len(change) else 0):
        middle = (low + high) / 2
        same = np.asarray(exists(jnp.asarray(middle))) == before
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return (low + high) / 2


def _minus_h(polynomial: np.ndarray, sign: float) -> np.ndarray:
    shifted = np.concatenate([polynomial, np.zeros(max(0, 2 - len(polynomial)))])
    shifted[1] -= sign
    return shifted


def _level(inertia, momentum) -> free.Body:
    return free.body(jnp.asarray(symmetric(inertia, 3, "inertia")), vector(momentum, 3, "momentum"))


def _pair(mass, M, size: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    J, M = np.asarray(mass, float), np.asarray(M, float)
    J = np.diag(J) if J.ndim == 1 else J
    if J.shape != M.shape or J.ndim != 2 or (size is not None and len(J) != size):
        n = size or "n"
        raise InvalidInput(
            f"mass and M have shapes {J.shape} and {M.shape}; allowed: ({n}, {n}) both, or ({n},) and ({n}, {n})"
        )
    if np.abs(M + M.T).max() > 1e-12 * max(1.0, np.abs(M).max()):
        raise InvalidInput("M must be skew-symmetric")
    return J, M


def _require_split(roots: np.ndarray) -> None:
    if np.any(np.abs(roots.real) <= SPLITTING_TOLERANCE * np.abs(roots).max()):
        raise NumericalFailure(
            f"the Moser-Veselov equation has roots on the imaginary axis and no unique solution: {roots.tolist()}; take a smaller step"
        )
