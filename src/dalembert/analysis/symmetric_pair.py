"""Symmetric pairs: when is S = exp d a submanifold, and which displacements does it hold? (fedorov-zenkov, sections 3 and 6)"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import InvalidInput
from ..groups import Group
from ..invariant import block, generators

TOLERANCE = 1e-9


@dataclass(frozen=True)
class SymmetricPair:
    """g = h + d with the parts of the brackets that (3.3) forbids: [h, h] outside h, [d, d] outside h, [h, d] outside d."""

    group: Group
    d: np.ndarray
    h: np.ndarray
    defects: tuple[float, float, float]

    @property
    def holds(self) -> bool:
        """Whether (3.3) holds: then exp d is the Cartan model of G/H, a smooth submanifold (Proposition 3.1)."""
        return max(self.defects) < TOLERANCE

    @property
    def involution(self) -> np.ndarray:
        """The matrix of sigma = 1 on h, -1 on d: an automorphism of the algebra exactly when (3.3) holds."""
        both = np.hstack([self.h, self.d])
        signs = np.repeat([1.0, -1.0], [self.h.shape[1], self.d.shape[1]])
        return both @ np.diag(signs) @ np.linalg.inv(both)

    def residual(self, W) -> float:
        """|sigma Ad_W sigma Ad_W - 1|: W in exp d satisfies sigma(W) = W^-1, which on SO(n) is (6.6)."""
        matrix, basis = np.asarray(block(self.group.matrix(W))), generators(self.group)
        adjoint = _coordinates(basis, matrix @ basis @ np.linalg.inv(matrix))
        return float(np.abs(self.involution @ adjoint @ self.involution @ adjoint - np.eye(self.group.dim)).max())

    def __str__(self) -> str:
        names = ("[h, h] in h", "[d, d] in h", "[h, d] in d")
        broken = [
            f"{name} fails by {size:.3g}" for name, size in zip(names, self.defects, strict=True) if size >= TOLERANCE
        ]
        return "a symmetric pair" if not broken else "no symmetric pair: " + ", ".join(broken)


def symmetric_pair(group: Group, subspace, complement=None) -> SymmetricPair:
    """The test (3.3) for d (columns of `subspace`) and h (`complement`; default: the one that the brackets determine).

    h must contain [d, d] and normalise d. Where [d, d], or the normaliser of d, is a complement of d it is taken.
    """
    d = _orthonormal(np.asarray(subspace, float))
    n = group.dim
    basis = generators(group)
    products = np.einsum("aij,bjk->abik", basis, basis)
    structure = _coordinates(basis, products - products.swapaxes(0, 1)).reshape(
        n, n, n
    )  # (k, i, j): [e_i, e_j] = sum c_kij e_k

    def brackets(x, y):
        """The brackets of two bases, as columns."""
        return np.einsum("kij,ia,jb->kab", structure, x, y).reshape(n, -1)

    def complements(x):
        return x.shape[1] == n - d.shape[1] and np.linalg.matrix_rank(np.hstack([x, d]), tol=TOLERANCE) == n

    if complement is None:
        outside = np.eye(n) - d @ d.T
        normaliser = _kernel(np.einsum("kl,kij,jb->lbi", outside, structure, d).reshape(-1, n))
        candidates = [x for x in (_orthonormal(brackets(d, d)), normaliser) if complements(x)]
        if not candidates:
            raise InvalidInput(
                "neither [d, d] nor the normaliser of d is a complement of d, so no h is singled out; give one by its basis (complement)"
            )
        h = candidates[0]
    else:
        h = _orthonormal(np.asarray(complement, float))
        if not complements(h):
            raise InvalidInput(
                f"complement must span a complement of d: {n - d.shape[1]} independent columns of length {n}"
            )
    split = np.linalg.inv(np.hstack([h, d]))
    in_h, in_d = split[: h.shape[1]], split[h.shape[1] :]
    defects = (
        float(np.abs(in_d @ brackets(h, h)).max(initial=0.0)),
        float(np.abs(in_d @ brackets(d, d)).max(initial=0.0)),
        float(np.abs(in_h @ brackets(h, d)).max(initial=0.0)),
    )
    return SymmetricPair(group, d, h, defects)


def rotation_of_sphere(z) -> np.ndarray:
    """(6.7): the rotation exp(theta u ^ e_n) of a point z = (cos(theta/2), sin(theta/2) u) of the unit sphere; z and -z give the same."""
    first, rest = float(z[0]), np.asarray(z[1:], float)
    side = 2 * first * rest[:, None]
    return np.block([[np.eye(rest.size) - 2 * np.outer(rest, rest), side], [-side.T, 2 * first**2 - 1]])


def sphere_of_rotation(W) -> np.ndarray:
    """The inverse of (6.7), with the sign that makes z_0 >= 0: exp d is the projective space."""
    W = np.asarray(W)
    cosine = np.sqrt(0.5 * (1.0 + np.clip(W[-1, -1], -1.0, 1.0)))
    if cosine > 1e-8:
        return np.concatenate([[cosine], 0.5 * W[:-1, -1] / cosine])
    square = 0.5 * (np.eye(W.shape[0] - 1) - W[:-1, :-1])  # z z^T at angle pi
    k = int(np.argmax(np.diag(square)))
    return np.concatenate([[0.0], square[:, k] / np.sqrt(square[k, k])])


def _coordinates(basis: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """The coordinates of algebra elements given as matrices (..., N, N), as columns."""
    return np.linalg.lstsq(basis.reshape(len(basis), -1).T, matrices.reshape(-1, basis[0].size).T, rcond=None)[0]


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the span."""
    columns = columns[:, None] if columns.ndim == 1 else columns
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, sizes > TOLERANCE * max(1.0, sizes.max(initial=0.0))]


def _kernel(matrix: np.ndarray) -> np.ndarray:
    """An orthonormal basis of {x: matrix x = 0}."""
    _, sizes, right = np.linalg.svd(matrix)
    rank = int(np.count_nonzero(sizes > TOLERANCE))
    return right[rank:].T
