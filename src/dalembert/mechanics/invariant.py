"""Left-invariant Lagrangians <I xi, xi>/2 with a constant subspace d of the algebra: LL systems and LR systems.

An LL system (`InvariantSystem`) asks xi in d. An LR system asks Ad_g xi in d: its constraint is right-invariant.
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from .. import numerics
from ..errors import InvalidInput
from ..groups import Group
from ..kernels import Held, compile_function, evaluate, hold
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Covector, Element, Float, LinearMap, Number, Parameters, Scalar, Velocity
from .system import MechanicalSystem, Names, of_part, require_shape, unify

Reals = NDArray[np.float64]
Structure = tuple[tuple[float | None, ...], ...]


@jax.tree_util.register_pytree_node_class
class InvariantSystem(MechanicalSystem):
    """A system with constant inertia and constraint, seen from the body: rigid bodies, Suslov's body, sleighs.

    L = <I xi, xi>/2 - V(t, g) on a group, with xi in a constant subspace d. `subspace` gives d by the columns
    of a basis (n, r), `annihilator` by rows (m, n) that vanish on it; neither: d is the whole algebra (a free
    body). Restricted momenta are components in the basis: the given one, or the reduced echelon null space of the
    annihilator ((e1, e2) for e3). `potential(t, g, p)` breaks the invariance of L, not of d. `names`: see `System`.

    The inertia, the parameters and the entries of d are run-time inputs of a compiled step; only zeros and ones in the
    basis of d are structure, so that (e1, e2) costs nothing and another inertia or normal compiles nothing.
    """

    def __init__(
        self,
        group: Group,
        inertia: Any,
        subspace: Any = None,
        annihilator: Any = None,
        potential: Callable[..., Array] | None = None,
        parameters: Parameters = None,
        names: Any = None,
    ) -> None:
        if subspace is not None and annihilator is not None:
            raise InvalidInput("give the subspace d by a basis (subspace) or by its annihilator, not by both")
        numerics.require_instance("group", group, Group, "a group")
        numerics.require_function("potential", potential, "(t, g, p)")
        n = group.dim
        if annihilator is not None:
            rows = _matrix(annihilator, n, rows=True)
            columns = numerics.null_basis(rows)
        elif subspace is not None:
            columns = _matrix(subspace, n, rows=False)
            rows = numerics.null_basis(columns.T).T
        else:
            columns, rows = np.eye(n), np.zeros((0, n))
        self.group = group
        self.inertia = symmetric_matrix(inertia, n, "inertia")
        at = lambda: (0.0, group.identity(), parameters)
        held = None if potential is None else hold(potential, at, ("potential", group, jax.tree.structure(parameters)))
        self.potential, self.parameters = held or unify(potential), parameters
        self._entries = numerics.array(columns), numerics.array(rows)
        self._structure = _structure(columns), _structure(rows)
        self.names = Names.read(names, self)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        held = isinstance(self.potential, Held)
        static = (self.group, None if held else self.potential, self._structure, self.names)
        return (self.inertia, self._entries, self.parameters, *([self.potential] if held else [])), static

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], data: tuple[Any, ...]) -> InvariantSystem:
        system = object.__new__(cls)
        system.group, system.potential, system._structure, *names = static
        system.names = names[0] if names else None  # files of before November 2026 have none
        system.inertia, system._entries, system.parameters, *held = data
        if held:
            system.potential = held[0]
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

    def L(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        kinetic = 0.5 * xi @ self.inertia @ xi
        if self.potential is None:
            return kinetic
        words = "potential(t, g, p)"
        return kinetic - require_shape(words, numerics.own_value(words, self.potential, t, g, self.parameters), ())

    def A(self, t: Scalar, g: Element) -> LinearMap:
        return self.annihilator

    def basis(self, t: Scalar, g: Element) -> Float[Array, "n r"]:
        return self.subspace

    def coordinates(self, xi: Velocity) -> Float[Array, " r"]:
        """The components x (r,) of a velocity xi in d: B x = xi with the basis B of d."""
        return numerics.solve(self.subspace.T @ self.subspace, self.subspace.T @ xi)

    def velocity(self, t: Scalar, g: Element, momentum: Covector, near: Velocity | None = None) -> Velocity:
        """B (B^T I B)^-1 B^T momentum: the velocity in d with the same restricted momentum."""
        basis = self.subspace
        restricted = basis.T @ self.inertia @ basis
        inverse = numerics.solve(restricted, jnp.eye(restricted.shape[0]))  # a constant of the run: no step computes it
        return basis @ (inverse @ (basis.T @ momentum))

    def _acceleration(
        self, t: Scalar, g: Element, xi: Velocity, u: Controls
    ) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
        """(xi', l) on the constant d: B^T I xi' = B^T f, A^T l = I xi' - f, f = ad*_xi I xi + L_g + F."""
        basis, rows = self.subspace, self.annihilator
        force = self.group.ad_star(xi, self.inertia @ xi) + self.L_g(t, g, xi) + self.F(t, g, xi, u)
        rate = basis @ numerics.solve(basis.T @ self.inertia @ basis, basis.T @ force)
        return rate, numerics.solve(rows @ rows.T, rows @ (self.inertia @ rate - force))

    def mass_matrix(self) -> Array:
        """The mass matrix J with <I xi, xi> = tr(xi J xi^T); on SO(3) J = tr(I)/2 - I. Not every inertia has one."""
        self.require_body()
        projector, _ = mass_projector(self.group)
        numbers = numerics.namespace(self.inertia)
        flat = numbers.asarray(self.inertia).reshape(-1)
        size = round(projector.shape[0] ** 0.5)
        # Entry by entry with literal weights: what is zero for every body on this group is zero in a compiled step too.
        entries = [sum(float(w) * flat[k] for k, w in enumerate(row) if w) for row in projector]
        return numerics.array(numbers.stack([numbers.asarray(entry, float) for entry in entries]).reshape(size, size))

    def require_body(self) -> None:
        """Refuse an inertia that no body has on this group."""
        if numerics.is_traced(self.inertia):
            return
        flat = np.asarray(self.inertia).reshape(-1)
        off = np.abs(mass_projector(self.group)[1] @ flat).max()
        if off > 1e-10 * np.abs(flat).max():
            raise InvalidInput(
                f"this inertia on {self.group} is not that of a body: no mass matrix J satisfies <I xi, xi> = "
                f"tr(xi J xi^T) (off by {off:.3g}); the Moser-Veselov Lagrangian needs one. Use the retraction "
                "Lagrangian instead"
            )


def _structure(matrix: Reals) -> Structure:
    """The zeros and ones of a matrix, None elsewhere."""
    return tuple(tuple(float(x) if x in (-1.0, 0.0, 1.0) else None for x in row) for row in matrix)


def _impose(structure: Structure, entries: Array) -> Array:
    """`entries` with the zeros and ones of `structure` as literals, which a compiler folds."""
    if not structure or not numerics.is_traced(entries):
        return entries
    known = np.array([[x is not None for x in row] for row in structure])
    literal = np.array([[x if x is not None else 0.0 for x in row] for row in structure])
    return jnp.asarray(literal) if known.all() else jnp.where(known, literal, entries)


def inertia_of_mass(group: Group, mass: Any) -> Reals:
    """The inertia I with <I xi, eta> = tr(xi J eta^T) of a body with mass matrix J."""
    basis = generators(group)
    inertia: Reals = np.einsum("aij,jk,bik->ab", basis, np.asarray(mass, float), basis)
    return inertia


def mass_tensor(mass: Any) -> Reals:
    """A mass matrix J (n, n) whose inertia is positive: J_i + J_j > 0 for its eigenvalues."""
    given = np.asarray(numerics.finite_reals("mass", mass))
    J = np.diag(given) if given.ndim == 1 else given
    if J.ndim != 2 or J.shape[0] != J.shape[1] or len(J) < 2:
        allowed = "n numbers, or a finite symmetric n x n matrix, n >= 2"
        raise InvalidInput(f"mass has shape {J.shape}; allowed: {allowed}")
    if np.abs(J - J.T).max() > 1e-12 * np.abs(J).max():
        raise InvalidInput(f"mass must be symmetric; given {J.tolist()}")
    low = np.linalg.eigvalsh(J)[:2]
    if low.sum() <= 0:
        needed = "the inertia J_i + J_j must be positive"
        raise InvalidInput(f"mass has eigenvalues {low.tolist()} whose sum is not positive: {needed}")
    return J


@lru_cache
def mass_projector(group: Group) -> tuple[Reals, Reals]:
    """(P, Q): J = P vec(I) is the mass matrix of a physical inertia, and Q vec(I) = 0 says that I is physical."""
    basis = generators(group)
    size, n = basis.shape[1], group.dim
    to_inertia = np.einsum("aij,bik->abjk", basis, basis).reshape(n * n, size * size)

    def symmetrise(k: int) -> Reals:
        """vec(X) -> vec(X + X^T)/2 for k x k matrices."""
        return (np.eye(k * k) + np.eye(k * k).reshape((k,) * 4).transpose(1, 0, 2, 3).reshape(k * k, k * k)) / 2

    exact = np.vectorize(lambda x: float(Fraction(x).limit_denominator(5040)))
    inverse = exact(symmetrise(size) @ np.linalg.pinv(to_inertia @ symmetrise(size)))
    return inverse, symmetrise(n) - to_inertia @ inverse


@lru_cache
def generators(group: Group) -> Reals:
    """The basis of the algebra as matrices (n, N, N)."""
    return np.asarray(evaluate(_generators, group, np.eye(group.dim)))


def _generators(group: Group, basis: Array) -> Array:
    return jax.vmap(lambda e: block(group.hat(e)))(basis)


@lru_cache
def zero_rows(group: Group) -> NDArray[np.bool_]:
    """Which rows of the generators are zero: none on SO(n), the last on SE(n)."""
    return np.asarray(~generators(group).any(axis=(0, 2)))


def block(matrix: Any) -> Array:
    """The matrix of an element or generator; on a product the blocks of its factors along the diagonal."""
    return cast(Array, jax.scipy.linalg.block_diag(*matrix) if isinstance(matrix, tuple) else matrix)


def symmetric_matrix(value: Any, size: int, what: str) -> Array:
    """`value` as a symmetric positive definite matrix, or a clear error; three moments mean a diagonal matrix."""
    matrix = numerics.real(what, value)
    matrix = numerics.diagonal(matrix) if matrix.shape == (size,) else matrix
    if matrix.shape != (size, size):
        raise InvalidInput(
            f"{what} has shape {matrix.shape}; allowed: ({size}, {size}), or ({size},) for a diagonal one"
        )
    if numerics.is_traced(matrix):
        return matrix
    values = np.asarray(matrix)
    if np.abs(values - values.T).max() > 1e-12 * np.abs(values).max():
        raise InvalidInput(f"{what} must be symmetric; given {values.tolist()}")
    lowest = np.linalg.eigvalsh(values)[0]
    if lowest <= 0:
        least = f"its smallest eigenvalue is {lowest:.6g}"
        raise InvalidInput(f"{what} must be positive definite; {least}: {values.tolist()}")
    return matrix


def _matrix(value: Any, n: int, *, rows: bool) -> Reals:
    """A full-rank basis (n, r) or annihilator (m, n) of a subspace of R^n."""
    what = "annihilator (one row a constraint)" if rows else "subspace (one column a basis vector)"
    given = np.asarray(numerics.finite_reals(what, value))
    if given.shape == (n,):
        given = given.reshape(1, n) if rows else given.reshape(n, 1)
    side = 1 if rows else 0
    if given.ndim != 2 or given.shape[side] != n or given.shape[1 - side] > n:
        raise InvalidInput(f"{what} has shape {given.shape}; allowed: {f'(m, {n})' if rows else f'({n}, r)'}")
    rank, count = int(np.linalg.matrix_rank(given)) if given.size else 0, given.shape[1 - side]
    if rank < count:
        lines = "rows" if rows else "columns"
        raise InvalidInput(f"{what} has dependent {lines}: rank {rank} of {count}: {given.tolist()}")
    return given


@jax.tree_util.register_pytree_node_class
class LRSystem(MechanicalSystem):
    """A body whose constraint is fixed in space, such as Veselova's: an LR system (Veselov-Veselova 1986).

    L = <I xi, xi>/2 with the velocity seen from space, Ad_g xi, in a constant subspace d. `inertia` is I (n, n) in the
    body, `subspace` gives d by the columns of a basis (n, r), vectors seen from space, `annihilator` by rows (m, n)
    that vanish on it. The fields a -> a g, a in d, are symmetries of L that satisfy the constraint, so the components
    on d of the momentum seen from space are conserved: restricted momenta are these, in the basis of d carried to g
    by Ad_g^-1.
    """

    def __init__(
        self, group: Group, inertia: Any, subspace: Any = None, annihilator: Any = None, names: Any = None
    ) -> None:
        self.group = group
        self.body = InvariantSystem(group, inertia, subspace, annihilator)
        self.names = Names.read(names, self)

    def tree_flatten(self) -> tuple[tuple[InvariantSystem], tuple[Group, Names | None]]:
        return (self.body,), (self.group, self.names)

    @classmethod
    def tree_unflatten(cls, static: Any, data: tuple[InvariantSystem]) -> LRSystem:
        system = object.__new__(cls)
        both = static if isinstance(static, tuple) else (static, None)  # files of before November 2026: the group
        (system.group, system.names), (system.body,) = both, data
        return system

    inertia: Array
    subspace: Array
    annihilator: Array
    inertia, subspace, annihilator = of_part("body", "inertia", "subspace", "annihilator")
    L, constraints, mass_matrix = of_part("body", "L", "constraints", "mass_matrix")

    def A(self, t: Scalar, g: Element) -> LinearMap:
        """Ad*_g of the annihilator: <a, Ad_g xi> = <Ad*_g a, xi>."""
        return jax.vmap(partial(self.group.Ad_star, g))(self.annihilator)

    def basis(self, t: Scalar, g: Element) -> Float[Array, "n r"]:
        """Ad_g^-1 of the basis of d."""
        return _basis(self, g)

    def velocity(self, t: Scalar, g: Element, momentum: Covector, near: Velocity | None = None) -> Velocity:
        basis = self.basis(t, g)
        return basis @ numerics.solve(basis.T @ self.inertia @ basis, basis.T @ momentum)

    def spatial_momentum(self, g: Element, momentum: Covector) -> Covector:
        """Ad*_g^-1 M: the momentum seen from space; its components on d are conserved."""
        return self.group.Ad_star(self.group.inverse(g), momentum)


@compile_function
def _basis(system: LRSystem, g: Element) -> Array:
    return jax.vmap(partial(system.group.Ad, system.group.inverse(g)), in_axes=1, out_axes=1)(system.subspace)
