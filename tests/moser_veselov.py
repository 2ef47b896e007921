"""The equations of mclachlan-zanna 2003 as they are printed, and the Moser-Veselov equation solved in four other ways.

They check the integrator, which has its own explicit map. M = w^T J - J w for an orthogonal w: W = w^T J satisfies
W^2 - M W - J^2 = 0, and its eigenvalues are the roots with positive real part of det(l^2 - l M - J^2) = 0.
"""

from __future__ import annotations

from math import comb

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import expm, schur, solve_sylvester

from dalembert.analysis.branches import free_body_level
from dalembert.errors import NumericalFailure
from dalembert.integrators import free_body as free

SPLITTING_TOLERANCE = 1e-12


def commutator(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[a, b] = a b - b a."""
    return np.asarray(a @ b - b @ a)


def velocity(mass: ArrayLike, M: ArrayLike) -> np.ndarray:
    """The Omega with M = Omega J + J Omega."""
    J = np.diag(mass) if np.ndim(mass) == 1 else np.asarray(mass)
    return np.asarray(solve_sylvester(J, J, np.asarray(M)))


def velocity_derivatives(mass: ArrayLike, M: ArrayLike, count: int) -> list[np.ndarray]:
    """Omega, Omega', ..., the first `count` derivatives along M' = [M, Omega], by Leibniz' rule."""
    momenta, velocities = [np.asarray(M, float)], [velocity(mass, M)]
    for k in range(count):
        momenta.append(np.sum([comb(k, j) * commutator(momenta[j], velocities[k - j]) for j in range(k + 1)], axis=0))
        velocities.append(velocity(mass, momenta[-1]))
    return velocities


def displacement_series(mass: ArrayLike, M: ArrayLike) -> list[np.ndarray]:
    """Omega_0, ..., Omega_4 of w = exp(-h Omega_0 - h^2 Omega_1 - ...), h M = w^T J - J w: (2.7) to (2.10), any N."""
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


def modified_term_3(mass: ArrayLike, M: ArrayLike) -> np.ndarray:
    """The h^2 term of the modified field of discrete Moser-Veselov, any N: (2.13) of mclachlan-zanna."""
    o, d1, d2 = velocity_derivatives(mass, M, 2)
    return commutator(np.asarray(M), d2 - commutator(o, d1) - 2 * o @ o @ o) / 12


def modified_term_5(mass: ArrayLike, M: ArrayLike) -> np.ndarray:
    """The h^4 term, any N: (2.15) of mclachlan-zanna."""
    o, d1, d2, d3, d4 = velocity_derivatives(mass, M, 4)
    oo = o @ o
    inner = (d4 - commutator(o, d3) + commutator(d1, d2)) / 80 + 3 * (oo @ oo @ o - d1 @ o @ d1) / 40 - o @ d2 @ o / 40
    last = d1 @ d1 @ o + o @ d1 @ d1 + o @ commutator(o, d1) @ o
    inner += (commutator(oo @ o, d1) - oo @ d2 - d2 @ oo) / 20 - last / 40
    return commutator(np.asarray(M), inner)


def effective_scale(inertia: ArrayLike, momentum: ArrayLike, h: float, order: int) -> float:
    """The scale s of the momentum in a scaled step; beyond order 2 it tends to 0 as h grows: the motion stops."""
    coefficients = free.series_reciprocal(free.scale_series(free_body_level(inertia, momentum), order // 2).s)
    return float(h / free.horner(coefficients, jnp.asarray(h * h, float)))


def spectrum(mass: ArrayLike, M: ArrayLike) -> np.ndarray:
    """The 2n roots of det(l^2 - l M - J^2) = 0."""
    J, M = _pair(mass, M)
    n = len(J)
    return np.linalg.eigvals(np.block([[np.zeros((n, n)), np.eye(n)], [J @ J, M]]))


def spectrum_splits(mass: ArrayLike, M: ArrayLike) -> bool:
    """Whether the spectrum splits into halves S and -S off the imaginary axis, so that w exists and is unique."""
    roots = spectrum(mass, M)
    return bool(np.all(np.abs(roots.real) > SPLITTING_TOLERANCE * np.abs(roots).max()))


def satisfies_cardoso_leite(mass: ArrayLike, M: ArrayLike) -> bool:
    """The sufficient criterion that M^2/4 + J^2 is positive definite (Cardoso and Leite 2001)."""
    J, M = _pair(mass, M)
    return bool(np.linalg.eigvalsh(M @ M / 4 + J @ J)[0] > 0)


def solve_explicit(mass: ArrayLike, M: ArrayLike) -> np.ndarray:
    """w for 3 x 3 from the roots of a cubic and null vectors of J^2 + l M - l^2: section 8, corrected.

    W x = l x, so W = X diag(l) X^-1; equal roots (symmetric bodies) are beyond this method.
    """
    J, M = _pair(mass, M)
    squares = J @ J
    momentum = np.array([M[2, 1], M[0, 2], M[1, 0]])
    second = (np.trace(squares) ** 2 - np.trace(squares @ squares)) / 2
    quadratic, linear = momentum @ momentum - np.trace(squares), second - np.sum((J @ momentum) ** 2)
    roots = np.sqrt(np.roots([1.0, quadratic, linear, -np.linalg.det(squares)]).astype(complex))
    _require_split(roots)
    root = roots[:, None, None]
    rows = squares + root * M - root**2 * np.eye(3)
    candidates = np.cross(rows[:, [0, 0, 1]], rows[:, [1, 2, 2]])
    best = candidates[range(3), np.linalg.norm(candidates, axis=2).argmax(1)]
    X = (best / np.linalg.norm(best, axis=1, keepdims=True)).T
    W = np.real(X @ np.diag(roots) @ np.linalg.inv(X))
    return np.linalg.solve(J, W.T)


def solve_symmetric_functions(mass: ArrayLike, M: ArrayLike) -> np.ndarray:
    """w for 3 x 3 from the symmetric functions of the roots: (M^2 - e1 M + e2 + J^2) W = e3 + e1 J^2 - M J^2."""
    J, M = _pair(mass, M)
    roots = spectrum(J, M)
    _require_split(roots)
    positive = roots[roots.real > 0]
    e1, e2 = np.sum(positive).real, ((np.sum(positive) ** 2 - np.sum(positive**2)) / 2).real
    squares, one = J @ J, np.eye(3)
    W = np.linalg.solve(M @ M - e1 * M + e2 * one + squares, np.linalg.det(J) * one + e1 * squares - M @ squares)
    return np.linalg.solve(J, W.T)


def solve_schur(mass: ArrayLike, M: ArrayLike) -> np.ndarray:
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


def solve_newton(mass: ArrayLike, M: ArrayLike, stages: int = 16) -> np.ndarray:
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


def _pair(mass: ArrayLike, M: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """J and M as matrices."""
    J = np.asarray(mass, float)
    return np.diag(J) if J.ndim == 1 else J, np.asarray(M, float)


def _require_split(roots: np.ndarray) -> None:
    if np.any(np.abs(roots.real) <= SPLITTING_TOLERANCE * np.abs(roots).max()):
        raise NumericalFailure(
            "the Moser-Veselov equation has roots on the imaginary axis and no unique solution: "
            f"{roots.tolist()}; take a smaller step"
        )
