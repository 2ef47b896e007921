"""The Moser-Veselov equation M = w^T J - J w for an orthogonal w: four ways to solve it, and when it can be solved.

W = w^T J satisfies W^2 - M W - J^2 = 0. Its eigenvalues are the roots with positive real part of
det(l^2 - l M - J^2) = 0; when some root is imaginary there is no such splitting of the spectrum and no map.
These are host functions for study and for checks; the integrator has its own explicit map.
"""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import expm, schur, solve_sylvester

from ..errors import InvalidInput, NumericalFailure
from ..integrators import _free_body as free
from ..integrators.moser_veselov import constants, horner, reciprocal, series
from ..invariant import symmetric
from ..system import vector

EDGE = 1e-12


def spectrum(mass, M) -> np.ndarray:
    """The 2n roots of det(l^2 - l M - J^2) = 0."""
    J, M = _pair(mass, M)
    n = len(J)
    return np.linalg.eigvals(np.block([[np.zeros((n, n)), np.eye(n)], [J @ J, M]]))


def splits(mass, M) -> bool:
    """Whether the spectrum splits into halves S and -S off the imaginary axis, so that w exists and is unique."""
    roots = spectrum(mass, M)
    return bool(np.all(np.abs(roots.real) > EDGE * np.abs(roots).max()))


def cardoso_leite(mass, M) -> bool:
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
    if np.any(np.abs(roots.real) <= EDGE * np.abs(roots).max()):
        raise NumericalFailure(
            f"the Moser-Veselov equation has roots on the imaginary axis and no unique solution: {roots.tolist()}; take a smaller step"
        )
