"""The distribution D as geometry: Hamel's equations, an Ehresmann connection, and whether D is really nonholonomic.

Hamel's equations are those of retraction-maps, in a frame adapted to D. The Ehresmann connection v^alpha = -A^alpha_a
v^a of jimenez-scheurle (sections 3.1 and 4.1) gives coordinates z = (q, v^a) of D on R^n: the coordinates of q are
split into base (a) and fibre (alpha) ones such that the constraint can be solved for the fibre velocities. Affine,
time-dependent and nonlinear constraints go the same way. Iterated brackets of D give the growth vector and what of the
constraint is integrable. Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import combinations, product
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..groups import Euclidean, Group, Product
from ..kernels import as_routine, evaluate
from ..numerics import (
    depends,
    echelon,
    find_root,
    finite,
    null_basis,
    positive,
    positive_int,
    require_instance,
    solve,
)
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Element, Float, Number, Scalar, Velocity
from .system import MechanicalSystem, State, gradient, jacobian

Reals = NDArray[np.float64]
Field = Callable[[Element], Array]  # a vector field, left-trivialised


def bracket(group: Group, x: Field, y: Field) -> Field:
    """[X, Y] of vector fields given left-trivialised: DY.X - DX.Y + ad_X Y."""

    def value(g: Element) -> Array:
        def along(field: Field, direction: Array) -> Array:
            moved = jax.jvp(lambda eta: field(group.shift(g, eta)), (jnp.zeros(group.dim),), (direction,))
            return cast(Array, moved[1])

        return along(y, x(g)) - along(x, y(g)) + group.ad(x(g), y(g))

    return value


@dataclass(frozen=True, eq=False)
class Hamel:
    """The equations of motion in a frame adapted to TQ = D + D-perp (retraction-maps (3)-(6)).

    The frame of D at g is the kinetic projection of the columns of `reference`; the frame of D-perp is M^-1 A^T.
    Velocities are xi = X_a y^a, momenta rho_a = dl/dy^a, for l = L restricted to D. The system must be autonomous, its
    constraints linear (b = 0).
    """

    system: MechanicalSystem
    reference: Array

    def frame(self, g: Element) -> Float[Array, "n r"]:
        """X_a: the vectors (n, r) that span D_g."""
        return self.system.frame(0.0, g, self.reference)

    def complement(self, g: Element) -> Float[Array, "n m"]:
        """X_alpha: the vectors (n, m) that span the kinetic complement of D_g."""
        return solve(self.system.metric(0.0, g, jnp.zeros(self.system.group.dim)), self.system.A(0.0, g).T)

    def structure(self, g: Element) -> Float[Array, "r r r"]:
        """C^c_ab, shape (c, a, b): the part in D of [X_a, X_b] = C^c_ab X_c + C^alpha_ab X_alpha."""
        group, rank = self.system.group, self.reference.shape[1]
        fields: list[Field] = [lambda q, a=a: self.frame(q)[:, a] for a in range(rank)]  # type: ignore[misc]
        brackets = jnp.stack([jnp.stack([bracket(group, x, y)(g) for y in fields], axis=-1) for x in fields], axis=-2)
        both = jnp.concatenate([self.frame(g), self.complement(g)], axis=1)
        return solve(both, brackets.reshape(group.dim, rank * rank)).reshape(group.dim, rank, rank)[:rank]

    def lagrangian(self, g: Element, y: Float[Array, " r"]) -> Number:
        """l(g, y) = L(g, X_a y^a)."""
        return self.system.L(0.0, g, self.frame(g) @ y)

    def quasivelocity(self, g: Element, rho: Float[Array, " r"]) -> Float[Array, " r"]:
        """The inverse of the restricted Legendre map rho = dl/dy."""
        return find_root(lambda y: jax.grad(self.lagrangian, argnums=1)(g, y) - rho, jnp.zeros_like(rho)).x

    def hamiltonian(self, g: Element, rho: Float[Array, " r"]) -> Number:
        """h(g, rho) = rho . y - l(g, y)."""
        y = self.quasivelocity(g, rho)
        return rho @ y - self.lagrangian(g, y)

    def field(self, g: Element, rho: Float[Array, " r"]) -> tuple[Float[Array, " n"], Float[Array, " r"]]:
        """(xi, rho') of (4): xi = X_b dh/drho_b, rho'_a = -C^c_ab rho_c dh/drho_b - X_a[h]."""
        group = self.system.group
        y = jax.grad(self.hamiltonian, argnums=1)(g, rho)
        slope = gradient(lambda eta: self.hamiltonian(group.shift(g, eta), rho), jnp.zeros(group.dim))
        frame = self.frame(g)
        return frame @ y, -jnp.einsum("cab,c,b->a", self.structure(g), rho, y) - frame.T @ slope


def hamel(system: MechanicalSystem, g: Element = None) -> Hamel:
    """Hamel's form of the equations near g (default: the identity), in the frame that extends the basis of D there."""
    g = system.group.identity() if g is None else g
    return Hamel(system, system.basis(0.0, g))


@dataclass(frozen=True, eq=False)
class Ehresmann:
    """The chart z = (q, v^a) of D: `fibre` are the indices alpha.

    `reference` are the v^alpha near which a nonlinear constraint is solved.
    """

    system: MechanicalSystem
    fibre: tuple[int, ...]
    reference: Array

    @property
    def base(self) -> tuple[int, ...]:
        """The indices a."""
        return tuple(i for i in range(self.system.group.dim) if i not in self.fibre)

    def connection(self, t: Scalar, q: Array, v: Velocity) -> Float[Array, "m r"]:
        """A^alpha_a = -dv^alpha/dv^a (m, n-m): the constraint solved for the fibre (v matters if it is nonlinear)."""
        rows = self.system.rows(t, q)(v)
        base, fibre = self._parts
        return solve(rows[:, fibre], rows[:, base])

    def vertical(self, t: Scalar, q: Array, v: Velocity) -> Velocity:
        """ver v = (0, v^alpha + A^alpha_a v^a), for a linear constraint."""
        base, fibre = self._parts
        return jnp.zeros_like(v).at[fibre].set(v[fibre] + self.connection(t, q, v) @ v[base])

    def horizontal(self, t: Scalar, q: Array, v: Velocity) -> Velocity:
        """hor v = (v^a, -A^alpha_a v^a) in D, for a linear constraint."""
        return v - self.vertical(t, q, v)

    def lift(self, z: Float[Array, " z"], t: Scalar = 0.0) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """psi(z) = (q, v) in D (27)."""
        q, free = z[: self.system.group.dim], z[self.system.group.dim :]
        return q, self._velocity(t, q, free)

    def coordinates(self, q: Array, v: Velocity) -> Float[Array, " z"]:
        """z = (q, v^a), the left inverse (29) of psi."""
        return jnp.concatenate([q, v[self._parts[0]]])

    def slope(self, z: Float[Array, " z"], t: Scalar = 0.0) -> Float[Array, "two_n z"]:
        """The derivative (28) of psi, shape (2n, 2n-m)."""
        return jacobian(lambda z: jnp.concatenate(self.lift(z, t)), z)

    def field(self, t: Scalar, z: Float[Array, " z"], u: Controls = None) -> Float[Array, " z"]:
        """z' = (v, v'^a) of the ODE (26), (46) on D."""
        q, v = self.lift(z, t)
        return self.coordinates(v, self.system.acceleration(t, q, v, u)[0])

    def velocity_step(
        self, z: Float[Array, " z"], h: Scalar, node: float = 0.5, t: Scalar = 0.0, u: Controls = None
    ) -> tuple[Float[Array, " z"], Float[Array, " m"]]:
        """(z_{k+1}, l_{k+1}) of the velocity integrator of node beta in these coordinates.

        For beta = 0 it is (71) and for 1/2 (76) of jimenez-scheurle, corrected. The momentum balance p_{k+1} - p_k = h
        mu^T l at q = q~_k + (1-beta) h v_k is paired with hor(d_a), which removes l, and v_{k+1} in D is solved for its
        fibre part: n unknowns. The fibre components of the balance then are l.
        """
        base, fibre = self._parts
        inner, before = self.lift(z, t)
        q = inner + (1 - node) * h * before
        p = self._momentum(t, inner, before, node * h, u)

        def balance(v: Array) -> Array:
            return self._momentum(t + h, q + node * h * v, v, -(1 - node) * h, u) - p

        def mean_rows(v: Array) -> Array:
            return self.system.rows(t + (1 - node) * h, q)(0.5 * (before + v))

        def equations(v: Array) -> Array:
            gain, rows = balance(v), mean_rows(v)
            horizontal = gain[base] - solve(rows[:, fibre], rows[:, base]).T @ gain[fibre]
            return jnp.concatenate([horizontal, self.system.residual(t + h, q + node * h * v, v)])

        v = find_root(equations, before).x
        multipliers = solve(mean_rows(v)[:, fibre].T, balance(v)[fibre]) / h
        return self.coordinates(q + node * h * v, v), multipliers

    @property
    def _parts(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        return np.array(self.base, np.intp), np.array(self.fibre, np.intp)

    def _momentum(self, t: Scalar, q: Array, v: Array, share: Scalar, u: Controls) -> Array:
        """L_v + share (L_q + F)."""
        return self.system.momentum(t, q, v) + share * (self.system.L_g(t, q, v) + self.system.F(t, q, v, u))

    def _velocity(self, t: Scalar, q: Array, free: Array) -> Array:
        base, fibre = self._parts

        def both(bound: Array) -> Array:
            return jnp.zeros(self.system.group.dim).at[base].set(free).at[fibre].set(bound)

        def off(bound: Array) -> Array:
            return self.system.residual(t, q, both(bound))

        if depends(self.system.rows(t, q), both(self.reference)):
            return both(find_root(off, self.reference).x)
        return both(self.reference - solve(jacobian(off, self.reference), off(self.reference)))


def ehresmann(system: MechanicalSystem, state: State, fibre: Sequence[int] | None = None) -> Ehresmann:
    """Coordinates adapted to D near `state`; the fibre indices default to the pivots of the constraint rows there."""
    if not system.group.is_flat:
        raise InvalidInput(f"adapted coordinates (q, v^a) are those of R^n; the system lives on {system.group}")
    system.require_admissible(state.t, state.g, state.xi)
    rows = np.asarray(jax.jit(lambda: system.rows(state.t, state.g)(state.xi))())
    m, n = rows.shape
    chosen = tuple(sorted(echelon(rows)[1])) if fibre is None else tuple(sorted(int(i) for i in fibre))
    if len(set(chosen)) != m or not all(0 <= i < n for i in chosen):
        raise InvalidInput(f"fibre = {list(chosen)}; allowed: {m} different indices of 0 to {n - 1}, one a constraint")
    if m and np.linalg.cond(rows[:, chosen]) > 1e12:
        raise InvalidInput(
            f"the constraint cannot be solved for the velocities of fibre = {list(chosen)} here; "
            f"allowed for example: {sorted(echelon(rows)[1])}"
        )
    return Ehresmann(system, chosen, jnp.asarray(np.asarray(state.xi)[list(chosen)]))


NEIGHBOURS = 2
"""Configurations near g where the brackets must reach no more than at g: integrability belongs to a neighbourhood."""
NEIGHBOUR_RADIUS = 0.1
MAX_DERIVATIVES = 100_000
"""Derivatives of one order up to which brackets are taken: n^order of them."""


def _none(*shape: int) -> Any:
    return field(default_factory=lambda: np.zeros(shape))


@dataclass(frozen=True)
class Nonholonomy:
    """The growth vector (rank D, rank D + [D, D], ...) of iterated brackets at a point, and what D leaves integrable.

    `covectors` (c, n) span the integrable combinations of rows that are not declared holonomic: each is the derivative
    dphi at g, up to a factor, of a phi that every admissible motion keeps; `rates` (c,) are their phi_t, not 0 only
    where the constraint is affine or depends on time, and `combinations` (c, m) say which rows of A they add up.
    `declared` rows are of `System(holonomic=)`.
    """

    growth: tuple[int, ...]
    dimension: int
    declared: int = 0
    covectors: Reals = _none(0, 0)
    rates: Reals = _none(0)
    combinations: Reals = _none(0, 0)
    note: str = ""

    @property
    def holonomic_combinations(self) -> int:
        """How many independent combinations of the constraints are known to be integrable, declared ones included."""
        return self.declared + len(self.covectors)

    @property
    def integrable(self) -> bool:
        """Whether all of the constraint is holonomic."""
        return self.holonomic_combinations == self.dimension - self.growth[0]

    @property
    def bracket_generating(self) -> bool:
        """Whether every direction is reached (Chow-Rashevskii): no function of the configuration is conserved by D."""
        return self.growth[-1] == self.dimension

    @property
    def advice(self) -> str:
        """What to do about integrable constraints that are not declared holonomic; empty where there are none."""
        count, m = self.combinations.shape
        if not count:
            return ""
        moving = bool(np.any(self.rates))
        some = f"{count} combination(s) of the {m} constraint rows are holonomic"
        what = "this constraint is holonomic" if count == m else some
        keeps = "its integral keeps" if count == 1 else "the integrals keep"
        size = f"a leaf of dimension {self.dimension - self.holonomic_combinations}"
        leaf = "a leaf that moves in time" if moving else size
        vectors = [f"dphi = ({', '.join(f'{entry:.6g}' for entry in row)})" for row in self.covectors]
        if moving:
            vectors = [f"{text}, phi_t = {rate:.6g}" for text, rate in zip(vectors, self.rates, strict=True)]
        return (
            f"{what}; {keeps} the motion on {leaf} ({'; '.join(vectors)} here, up to factors). Write it as "
            "holonomic=phi in place of these rows, with phi = 0 at the start, to have it enforced on positions too"
        )

    def __str__(self) -> str:
        growth = f"growth vector ({', '.join(map(str, self.growth))}) of {self.dimension}"
        if self.growth[0] == self.dimension:
            return f"unconstrained: {growth}"
        if self.bracket_generating:
            return f"nonholonomic: {growth}, every configuration can be reached"
        known = f", {self.declared} declared holonomic" if self.declared else ""
        kind = "integrable" if self.integrable else "partly integrable" if len(self.covectors) else "nonholonomic"
        return "; ".join(text for text in (f"{kind}: {growth}{known}", self.note, self.advice) if text)


def nonholonomy(
    system: MechanicalSystem, g: Any = None, *, t: float = 0.0, depth: int = 4, tolerance: float = 1e-8
) -> Nonholonomy:
    """Whether the constraint is really nonholonomic at g: ranks of D, D + [D, D], ... up to `depth` brackets.

    In the growth vector the linear part A counts. A combination of rows is integrable if it vanishes on all brackets,
    and these are closed (Frobenius), here and at configurations nearby. Where b is not 0 or the constraint depends on
    time this is asked in space and time.
    """
    require_instance("system", system, MechanicalSystem, "a System or InvariantSystem")
    t, tolerance, depth = float(finite("t", t)), float(positive("tolerance", tolerance)), positive_int("depth", depth)
    group, clock = system.group, jnp.asarray(t, float)
    g = group.identity() if g is None else group.element(g)
    rows, drift = np.asarray(system.A(t, g)), np.asarray(system.b(t, g))
    m, k = rows.shape[0], system.holonomic_constraints
    given = (system, clock)
    growth, closed, span = _closure(group, _in_space, given, g, k, depth, tolerance)
    rheonomic = depends(lambda s: (system.A(s, g), system.b(s, g)), clock) or bool(drift.any())
    if m and (rheonomic or depends(lambda eta: system.b(t, group.shift(g, eta)), jnp.zeros(group.dim))):
        where = Product((group, Euclidean(1)))
        _, closed, span = _closure(where, _in_space_and_time, given, (g, clock[None]), k, depth, tolerance)
        rows = np.column_stack([rows, -drift])
    found = null_basis(span).T if closed and m < group.dim else np.zeros((0, rows.shape[1]))
    new = _beside(found, rows[m - k :])
    shares = np.linalg.lstsq(rows.T, new.T, rcond=None)[0].T
    rates = new[:, group.dim] if new.shape[1] > group.dim else np.zeros(len(new))
    note = "the brackets do not close here (more of them, or those of nearby configurations, reach further)"
    return Nonholonomy(growth, group.dim, k, new[:, : group.dim], rates, shares, "" if closed else note)


def _in_space(given: tuple[MechanicalSystem, Array], g: Element) -> Array:
    """The rows A of the constraint."""
    system, t = given
    return system.A(t, g)


def _in_space_and_time(given: tuple[MechanicalSystem, Array], place: tuple[Element, Array]) -> Array:
    """The rows (A, -b) of the constraint in space and time."""
    system, (g, (t,)) = given[0], place
    return jnp.concatenate([system.A(t, g), -system.b(t, g)[:, None]], axis=1)


@lru_cache(maxsize=64)  # the same function every time, so that compiled programs are found again
def _derivative(rows: Callable[[Any, Element], Array], group: Group, pivots: tuple[int, ...]) -> Any:
    """values((given, reference), (q, ways)): the derivative along all ways, the first one last, of a frame of ker A."""

    def values(consts: tuple[Any, Array], point: tuple[Element, tuple[Array, ...]]) -> Array:
        (given, reference), (q, ways) = consts, point

        @as_routine
        def frame(q: Element) -> Array:
            """The reference moved along the pivots onto ker A(q)."""
            A = rows(given, q)
            shift = solve(A[:, np.array(pivots)], A @ reference) if pivots else jnp.zeros((0, reference.shape[1]))
            return reference.at[np.array(pivots, int)].add(-shift)

        field: Callable[[Element], Array] = frame
        for way in reversed(ways):
            field = partial(_derive, group, field, way)
        return field(q)

    return values


def _derive(group: Group, field: Callable[[Element], Array], way: Array, q: Element) -> Array:
    """d/ds field(q exp(s way)) at s = 0."""
    found = jax.jvp(lambda s: field(group.shift(q, s * way)), (jnp.zeros(()),), (jnp.ones(()),))
    return cast(Array, found[1])


def _bracket_jets(ad: Reals, x: list[Reals], y: list[Reals]) -> list[Reals]:
    """The jet of [X, Y] = Y_X - X_Y + ad_X Y from those of X and Y: x[k] is E_i1 ... E_ik X, shape (points, n.., n).

    By Leibniz' rule for every subset of the derivatives; E_i are the left-invariant fields of the group.
    """
    found = []
    for k in range(min(len(x), len(y)) - 1):
        letters, total = "ijkl"[:k], 0.0
        for chosen in product((0, 1), repeat=k):
            first = "".join(letter for letter, one in zip(letters, chosen, strict=True) if one)
            rest = "".join(letter for letter, one in zip(letters, chosen, strict=True) if not one)
            moved = f"p{first}a,p{rest}ab->p{letters}b"
            a, b = len(first), len(rest)
            total = total + np.einsum(moved, x[a], y[b + 1]) - np.einsum(moved, y[a], x[b + 1])
            total = total + np.einsum(f"p{first}a,p{rest}b,abc->p{letters}c", x[a], y[b], ad)
        found.append(np.asarray(total))
    return found


def _closure(
    group: Group, rows: Callable[..., Array], given: Any, g: Element, known: int, depth: int, tolerance: float
) -> tuple[tuple[int, ...], bool, Reals]:
    """(the growth vector at g, whether the brackets close, independent vectors (r, n) that span them at g) of ker A.

    `known` covectors are those of holonomic constraints: n - known is all that can be reached.
    """
    begin = np.asarray(evaluate(rows, given, g))
    reference, pivots = null_basis(begin), tuple(echelon(begin)[1])
    points, n = _around(group, g), group.dim
    ad = np.asarray(jax.vmap(lambda x: jax.vmap(lambda y: group.ad(x, y))(jnp.eye(n)))(jnp.eye(n)))
    vectors = np.zeros((1 + NEIGHBOURS, 0, n))
    ranks: list[list[int]] = []
    jets: list[Reals] = []  # of the frame: points, derivatives, component, field
    while True:
        if reference.shape[1]:
            jets.append(_evaluate_jet(_derivative(rows, group, pivots), (given, reference), points, n, len(jets)))
            fields = found = [[jet[..., a] for jet in jets] for a in range(reference.shape[1])]
            for k in range(len(ranks)):
                pairs = combinations(fields, 2) if k == 0 else ((x, y) for x in fields for y in found)
                found = [_bracket_jets(ad, x, y) for x, y in pairs]
            vectors = np.concatenate([vectors, *(one[0][:, None] for one in found)], axis=1)
        sizes = np.linalg.svd(vectors, compute_uv=False)
        ranks.append([int(np.count_nonzero(size > tolerance * size[:1])) for size in sizes])
        # at a singular point brackets that vanish there say nothing about the next ones: all points must agree
        stable = len(ranks) > 1 and ranks[-1] == ranks[-2] and len(set(ranks[-1])) == 1
        settled = min(ranks[-1]) == group.dim - known or stable
        if settled or len(ranks) == depth or n ** len(ranks) > MAX_DERIVATIVES:
            break
    growth = [rank[0] for rank in ranks]
    while len(growth) > 1 and growth[-1] == growth[-2]:
        growth.pop()
    closed = settled and len(set(ranks[-1])) == 1
    *_, right = np.linalg.svd(vectors[0], full_matrices=False)
    return tuple(growth), closed, right[: ranks[-1][0]]


def _around(group: Group, g: Element) -> Element:
    """g and some configurations near it, stacked."""
    keys = jax.random.split(jax.random.PRNGKey(0), NEIGHBOURS)
    steps = [jnp.zeros(group.dim), *(NEIGHBOUR_RADIUS * jax.random.normal(key, (group.dim,)) for key in keys)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[group.compose(g, group.exp(step)) for step in steps])


def _evaluate_jet(derivative: Any, consts: Any, points: Element, n: int, order: int) -> Reals:
    """All derivatives of this order at the points; a point where they are not defined repeats the first.

    Each is a lane of one native evaluation: XLA would compile nested derivatives for minutes.
    """
    count, ways = n**order, [np.eye(n)[index] for index in np.indices((n,) * order).reshape(order, n**order)]
    here = jax.tree.leaves(points)[0].shape[0]
    lanes = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf), count, axis=0), points)
    directions = tuple(np.tile(way, (here, 1)) for way in ways)
    values = np.asarray(evaluate(derivative, consts, (lanes, directions), lanes=here * count, axes=(None, 0)))
    values = values.reshape(here, *(n,) * order, *values.shape[1:])
    good = np.isfinite(values).all(axis=tuple(range(1, values.ndim)), keepdims=True)
    return np.where(good, values, values[:1])


def _beside(covectors: Reals, declared: Reals) -> Reals:
    """What the span of the covectors has beside that of the declared rows, in echelon form."""
    count = len(covectors) - len(declared)
    if count <= 0:
        return covectors[:0]
    basis = np.linalg.svd(declared)[2][len(declared) :] if len(declared) else np.eye(covectors.shape[1])
    left = np.linalg.svd(covectors @ basis.T @ basis, full_matrices=False)[2][:count]
    return echelon(left)[0] + 0.0  # no minus zeros
