"""Left-invariant (LL) systems (G, I, d): kinetic energy <I xi, xi>/2 and a constant subspace d of the algebra.

LR systems (G, I, d): the Lagrangian <I xi, xi>/2 is left-invariant, the constraint Ad_g xi in d right-invariant.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..groups import Group
from ..kernels import compiled, evaluated
from ..numerics import array, diagonal, namespace, null_basis, solve
from .system import MechanicalSystem


@jax.tree_util.register_pytree_node_class
class InvariantSystem(MechanicalSystem):
    """L = <I xi, xi>/2 - V(t, g) on a group with the constraint xi in d.

    `subspace` gives d by the columns of a basis (n, r), `annihilator` by rows (m, n) that vanish on it; neither: d is
    the whole algebra (a free body). Restricted momenta are components in the basis: the given one, or the reduced
    echelon null space of the annihilator ((e1, e2) for e3). `potential(t, g, p)` breaks the invariance of L, not of d.

    The inertia, the parameters and the entries of d are run-time inputs of a compiled step; only zeros and ones in the
    basis of d are structure, so that (e1, e2) costs nothing and another inertia or normal compiles nothing.
    """

    def __init__(
        self,
        group: Group,
        inertia,
        subspace=None,
        annihilator=None,
        potential: Callable | None = None,
        parameters: Any = None,
    ):
        if subspace is not None and annihilator is not None:
            raise InvalidInput("give the subspace d by a basis (subspace) or by its annihilator, not by both")
        n = group.dim
        if annihilator is not None:
            rows = _matrix(annihilator, n, rows=True)
            columns = null_basis(rows)
        elif subspace is not None:
            columns = _matrix(subspace, n, rows=False)
            rows = null_basis(columns.T).T
        else:
            columns, rows = np.eye(n), np.zeros((0, n))
        self.group = group
        self.inertia = symmetric(inertia, n, "inertia")
        self.potential, self.parameters = potential, parameters
        self._entries = array(columns), array(rows)
        self._structure = _structure(columns), _structure(rows)

    def tree_flatten(self):
        return (self.inertia, self._entries, self.parameters), (self.group, self.potential, self._structure)

    @classmethod
    def tree_unflatten(cls, static, data):
        system = object.__new__(cls)
        system.group, system.potential, system._structure = static
        system.inertia, system._entries, system.parameters = data
        return system

    def constants(self) -> dict[str, Any]:
        return {"inertia": self.inertia, "basis of d": self.subspace} | super().constants()

    def __repr__(self) -> str:
        n, m = self.group.dim, self._entries[1].shape[-2]
        return f"<InvariantSystem on {self.group}, {f'd of rank {n - m}' if m else 'free'}>"

    @property
    def subspace(self) -> Array:
        """The basis of d, one column a vector (n, r)."""
        return _impose(self._structure[0], self._entries[0])

    @property
    def annihilator(self) -> Array:
        """Rows (m, n) that vanish on d."""
        return _impose(self._structure[1], self._entries[1])

    @property
    def constraints(self) -> int:
        return self._entries[1].shape[-2]

    def L(self, t, g, xi) -> Array:
        kinetic = 0.5 * xi @ self.inertia @ xi
        return kinetic if self.potential is None else kinetic - self.potential(t, g, self.parameters)

    def A(self, t, g) -> Array:
        return self.annihilator

    def b(self, t, g) -> Array:
        return jnp.zeros(self.annihilator.shape[0])

    def F(self, t, g, xi, u) -> Array:
        return jnp.zeros(self.group.dim)

    def basis(self, t, g) -> Array:
        return self.subspace

    def coordinates(self, xi) -> Array:
        """x with B x = xi, for xi in d."""
        return solve(self.subspace.T @ self.subspace, self.subspace.T @ xi)

    def velocity(self, t, g, momentum) -> Array:
        """B (B^T I B)^-1 B^T momentum: the velocity in d with the same restricted momentum."""
        basis = self.subspace
        restricted = basis.T @ self.inertia @ basis
        inverse = solve(restricted, jnp.eye(restricted.shape[0]))  # a constant of the run: no step computes it
        return basis @ (inverse @ (basis.T @ momentum))

    def acceleration(self, t, g, xi, u=None) -> tuple[Array, Array]:
        """(xi', l) on the constant d: B^T I xi' = B^T f and A^T l = I xi' - f with f = ad*_xi I xi + L_g + F, two small solves."""
        basis, rows = self.subspace, self.annihilator
        force = self.group.ad_star(xi, self.inertia @ xi) + self.L_g(t, g, xi) + self.F(t, g, xi, u)
        rate = basis @ solve(basis.T @ self.inertia @ basis, basis.T @ force)
        return rate, solve(rows @ rows.T, rows @ (self.inertia @ rate - force))

    def mass_matrix(self) -> Array:
        """The symmetric J with <I xi, xi> = tr(xi J xi^T); on SO(3) J = tr(I)/2 - I. Only physical inertias have one."""
        self.require_body()
        projector, _ = mass_projector(self.group)
        numbers = namespace(self.inertia)
        flat = numbers.asarray(self.inertia).reshape(-1)
        size = round(projector.shape[0] ** 0.5)
        # Entry by entry with literal weights: what is zero for every body on this group is then zero in a compiled step too.
        entries = [sum(float(w) * flat[k] for k, w in enumerate(row) if w) for row in projector]
        return array(numbers.stack([numbers.asarray(entry, float) for entry in entries]).reshape(size, size))

    def require_body(self) -> None:
        """Refuse an inertia that no body has on this group."""
        if isinstance(self.inertia, jax.core.Tracer):
            return
        flat = np.asarray(self.inertia).reshape(-1)
        off = np.abs(mass_projector(self.group)[1] @ flat).max()
        if off > 1e-10 * np.abs(flat).max():
            raise InvalidInput(
                f"this inertia on {self.group} is not that of a body: no mass matrix J satisfies <I xi, xi> = tr(xi J xi^T) "
                f"(off by {off:.3g}); the Moser-Veselov Lagrangian needs one. Use the retraction Lagrangian instead"
            )


Structure = tuple[tuple[float | None, ...], ...]


def _structure(matrix: np.ndarray) -> Structure:
    """The zeros and ones of a matrix, None elsewhere."""
    return tuple(tuple(float(x) if x in (-1.0, 0.0, 1.0) else None for x in row) for row in matrix)


def _impose(structure: Structure, entries: Array) -> Array:
    """`entries` with the zeros and ones of `structure` as literals, which a compiler folds."""
    if not structure or not isinstance(entries, jax.core.Tracer):
        return entries
    known = np.array([[x is not None for x in row] for row in structure])
    literal = np.array([[x if x is not None else 0.0 for x in row] for row in structure])
    return jnp.asarray(literal) if known.all() else jnp.where(known, literal, entries)


def inertia_of_mass(group: Group, mass) -> np.ndarray:
    """The inertia I with <I xi, eta> = tr(xi J eta^T) of a body with mass matrix J."""
    basis = generators(group)
    return np.einsum("aij,jk,bik->ab", basis, np.asarray(mass, float), basis)


@lru_cache
def mass_projector(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """(P, Q): J = P vec(I) is the mass matrix of a physical inertia, and Q vec(I) = 0 says that I is physical."""
    basis = generators(group)
    size, n = basis.shape[1], group.dim
    to_inertia = np.einsum("aij,bik->abjk", basis, basis).reshape(n * n, size * size)
    symmetrise = (
        np.eye(size * size) + np.eye(size * size).reshape((size,) * 4).transpose(1, 0, 2, 3).reshape(size**2, size**2)
    ) / 2
    inverse = np.linalg.pinv(to_inertia @ symmetrise)
    exact = np.vectorize(lambda x: float(Fraction(x).limit_denominator(5040)))
    inverse = exact(symmetrise @ inverse)
    return inverse, np.eye(n * n) / 2 + np.eye(n * n).reshape((n,) * 4).transpose(1, 0, 2, 3).reshape(
        n * n, n * n
    ) / 2 - to_inertia @ inverse


@lru_cache
def generators(group: Group) -> np.ndarray:
    """The basis of the algebra as matrices (n, N, N)."""
    return np.asarray(evaluated(_generators, group, np.eye(group.dim)))


def _generators(group: Group, basis: Array) -> Array:
    return jax.vmap(lambda e: block(group.hat(e)))(basis)


@lru_cache
def zero_rows(group: Group) -> np.ndarray:
    """Which rows of the generators are zero: none on SO(n), the last on SE(n)."""
    return np.asarray(~generators(group).any(axis=(0, 2)))


def block(matrix: Any) -> Array:
    """The matrix of an element or generator; on a product the blocks of its factors along the diagonal."""
    return jax.scipy.linalg.block_diag(*matrix) if isinstance(matrix, tuple) else matrix


def symmetric(value, size: int, what: str) -> Array:
    """`value` as a symmetric positive definite matrix, or a clear error; three moments mean a diagonal matrix."""
    matrix = array(value)
    matrix = diagonal(matrix) if matrix.shape == (size,) else matrix
    if matrix.shape != (size, size):
        raise InvalidInput(
            f"{what} has shape {matrix.shape}; allowed: ({size}, {size}), or ({size},) for a diagonal one"
        )
    if isinstance(matrix, jax.core.Tracer):
        return matrix
    values = np.asarray(matrix)
    if not np.all(np.isfinite(values)):
        raise InvalidInput(f"{what} must be finite; given {values.tolist()}")
    if np.abs(values - values.T).max() > 1e-12 * np.abs(values).max():
        raise InvalidInput(f"{what} must be symmetric; given {values.tolist()}")
    lowest = np.linalg.eigvalsh(values)[0]
    if lowest <= 0:
        raise InvalidInput(
            f"{what} must be positive definite; its smallest eigenvalue is {lowest:.6g}: {values.tolist()}"
        )
    return matrix


def _matrix(value, n: int, *, rows: bool) -> np.ndarray:
    """A full-rank basis (n, r) or annihilator (m, n) of a subspace of R^n."""
    array = np.asarray(value, float)
    array = array.reshape(1, n) if rows and array.shape == (n,) else array
    array = array.reshape(n, 1) if not rows and array.shape == (n,) else array
    side = 1 if rows else 0
    what = "annihilator (one row a constraint)" if rows else "subspace (one column a basis vector)"
    if array.ndim != 2 or array.shape[side] != n or array.shape[1 - side] > n or not np.all(np.isfinite(array)):
        shape = f"(m, {n})" if rows else f"({n}, r)"
        raise InvalidInput(f"{what} has shape {array.shape}; allowed: {shape}, finite")
    rank = np.linalg.matrix_rank(array) if array.size else 0
    if rank < array.shape[1 - side]:
        raise InvalidInput(
            f"{what} has dependent {'rows' if rows else 'columns'}: rank {rank} of {array.shape[1 - side]}: {array.tolist()}"
        )
    return array


@jax.tree_util.register_pytree_node_class
class LRSystem(MechanicalSystem):
    """L = <I xi, xi>/2 with the velocity seen from space, Ad_g xi, in a constant subspace d (Veselov-Veselova 1986).

    `subspace` gives d by the columns of a basis (n, r), `annihilator` by rows (m, n) that vanish on it. The fields a -> a g, a in d,
    are symmetries of L that satisfy the constraint, so the components on d of the momentum seen from space are conserved: restricted
    momenta are these, in the basis of d carried to g by Ad_g^-1.
    """

    def __init__(self, group: Group, inertia, subspace=None, annihilator=None):
        self.group = group
        self.body = InvariantSystem(group, inertia, subspace, annihilator)

    def tree_flatten(self):
        return (self.body,), self.group

    @classmethod
    def tree_unflatten(cls, group, data):
        system = object.__new__(cls)
        system.group, (system.body,) = group, data
        return system

    @property
    def inertia(self) -> Array:
        """I of L = <I xi, xi>/2 (n, n), in the body."""
        return self.body.inertia

    @property
    def subspace(self) -> Array:
        """The basis of d, vectors seen from space (n, r)."""
        return self.body.subspace

    @property
    def annihilator(self) -> Array:
        """Rows (m, n) that vanish on d."""
        return self.body.annihilator

    def mass_matrix(self) -> Array:
        """J with <I xi, xi> = tr(xi J xi^T); see `InvariantSystem.mass_matrix`."""
        return self.body.mass_matrix()

    def L(self, t, g, xi) -> Array:
        return self.body.L(t, g, xi)

    def A(self, t, g) -> Array:
        """Ad*_g of the annihilator: <a, Ad_g xi> = <Ad*_g a, xi>."""
        return jax.vmap(partial(self.group.Ad_star, g))(self.annihilator)

    def b(self, t, g) -> Array:
        return jnp.zeros(self.annihilator.shape[0])

    def F(self, t, g, xi, u) -> Array:
        return jnp.zeros(self.group.dim)

    def basis(self, t, g) -> Array:
        """Ad_g^-1 of the basis of d."""
        return _basis(self, g)

    def velocity(self, t, g, momentum) -> Array:
        basis = self.basis(t, g)
        return basis @ solve(basis.T @ self.inertia @ basis, basis.T @ momentum)

    def spatial_momentum(self, g, momentum) -> Array:
        """Ad*_g^-1 M: the momentum seen from space; its components on d are conserved."""
        return self.group.Ad_star(self.group.inverse(g), momentum)


@compiled
def _basis(system: LRSystem, g) -> Array:
    return jax.vmap(partial(system.group.Ad, system.group.inverse(g)), in_axes=1, out_axes=1)(system.subspace)
