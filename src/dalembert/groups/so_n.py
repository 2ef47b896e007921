"""Rotations in any dimension."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._linalg import solve
from ..errors import InvalidInput
from .base import columns
from .matrix_exponential import exponential
from .rotations import Rotations
from .so2 import SO2
from .so3 import SO3


@jax.tree_util.register_static
@dataclass(frozen=True)
class SOn(Rotations):
    """n x n rotation matrices; coordinates (12, 13, .., 23, ..) with hat(xi)_ij = +xi for i < j, n >= 4."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 4:
            raise InvalidInput(f"SOn needs n >= 4, but n = {self.n} was given: use SO2() or SO3()")

    @property
    def size(self) -> int:
        return self.n

    def hat(self, xi: Array) -> Array:
        starts = [i * (2 * self.n - i - 1) // 2 for i in range(self.n + 1)]
        rows = [jnp.concatenate([jnp.zeros(i + 1), xi[starts[i] : starts[i + 1]]]) for i in range(self.n)]
        upper = jnp.stack(rows)
        return upper - upper.T

    def vee(self, matrix: Array) -> Array:
        skew = 0.5 * (matrix - matrix.T)
        return jnp.concatenate([skew[i, i + 1 :] for i in range(self.n - 1)])

    def exp(self, xi: Array) -> Array:
        return exponential(self.hat(xi), xi @ xi)

    def principal_log(self, g: Array) -> Array:
        """Angles and planes from eigenvectors, then Newton's method on the group while it improves."""

        def defect(xi: Array) -> Array:
            return self.vee(_small_log(self.exp(-xi) @ g))

        def improve(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
            xi, error = state
            candidate = xi + jnp.linalg.solve(columns(partial(self.dexp, xi), self.dim), error)
            remaining = defect(candidate)
            better = remaining @ remaining < error @ error
            return jnp.where(better, candidate, xi), jnp.where(better, remaining, error)

        start = self.vee(_spectral_log(g))
        return jax.lax.fori_loop(0, 3, improve, (start, defect(start)))[0]

    def mean(self, omega: Array, v: Array) -> Array:
        return exponential(_border(self.hat(omega), v), omega @ omega)[: self.n, self.n]

    def mean_inverse(self, omega: Array, v: Array) -> Array:
        return solve(columns(partial(self.mean, omega), self.n), v)

    def resolvent_fraction(self, omega: Array) -> tuple[Array, float]:
        one = jnp.eye(self.n)
        return solve(one - 0.5 * self.hat(omega), one), 1.0


def SO(n: int) -> Rotations:
    """SO(n), as `SO2` or `SO3` where closed forms exist."""
    special: dict[int, Rotations] = {2: SO2(), 3: SO3()}
    return special[n] if n in special else SOn(n)


def _border(matrix: Array, column: Array) -> Array:
    """[[X, v], [0, 0]]."""
    top = jnp.concatenate([matrix, column[:, None]], axis=1)
    return jnp.concatenate([top, jnp.zeros((1, len(matrix) + 1))], axis=0)


def _small_log(g: Array) -> Array:
    """log g = asinh of the skew part K, K - K^3/6 + 3 K^5/40, for g close to 1."""
    skew = 0.5 * (g - g.T)
    square = skew @ skew
    return skew @ (jnp.eye(len(g)) - square @ (jnp.eye(len(g)) / 6.0 - square * (3.0 / 40.0)))


def _spectral_log(g: Array) -> Array:
    """A logarithm to a few digits, from the unitary eigenvectors of a Hermitian matrix that commutes with g.

    That matrix is a combination of (g + g^T)/2 and (g - g^T)/2i, whose eigenvalues separate those of g. A small fixed
    skew matrix decides the sense of the rotation in planes where the angle is pi to rounding.
    """
    index = np.arange(1.0, len(g) + 1.0)
    sense = 1e-13 * np.sin(np.outer(index, index**2) - np.outer(index**2, index))
    symmetric, skew = 0.5 * (g + g.T), 0.5 * (g - g.T)
    _, vectors = jnp.linalg.eigh(0.8 * symmetric - 0.6j * (skew + sense))

    def expectation(matrix: Array) -> Array:
        return jnp.sum(vectors.conj() * (matrix @ vectors), axis=0)

    sine, cosine = expectation(skew).imag, expectation(symmetric).real
    angle = jnp.sign(expectation(skew + sense).imag) * jnp.arctan2(jnp.abs(sine), cosine)
    return -jnp.imag((vectors * angle) @ vectors.conj().T)
