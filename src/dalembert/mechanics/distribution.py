"""The distribution D as geometry: Hamel's equations, an Ehresmann connection, and whether D is really nonholonomic.

Hamel's equations are those of retraction-maps, in a frame adapted to D. The Ehresmann connection v^alpha = -A^alpha_a
v^a of jimenez-scheurle (sections 3.1 and 4.1) gives coordinates z = (q, v^a) of D on R^n: the coordinates of q are
split into base (a) and fibre (alpha) ones such that the constraint can be solved for the fibre velocities. Affine,
time-dependent and nonlinear constraints go the same way. Iterated brackets of D give the growth vector and what of the
constraint is integrable. Frames that are orthonormal in the kinetic metric keep D exactly: the energy is |rho|^2/2 + V
in them. Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, islice, permutations, product
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..groups import Euclidean, Group, Product
from ..kernels import Backend, LoweringError, as_routine, evaluate, map_rows, solution_series
from ..numerics import (
    depends,
    echelon,
    find_root,
    finite,
    html_table,
    known_arguments,
    literals,
    null_basis,
    positive,
    positive_int,
    require_instance,
    show,
    solve,
)
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Element, Float, Number, Scalar, Velocity
from .invariant import InvariantSystem
from .system import MechanicalSystem, State, _rows, constraint_at, gradient, jacobian, kinetic_metric

Reals = NDArray[np.float64]
Frame = Float[Array, "n r"]  # its columns
NEWTON_STEPS = 4  # for an inverse square root: they leave 1e-11 of a distance of 0.3 from 1
MAX_WRITTEN_VECTORS = 6  # up to so many vectors a frame is written out; loops make it short for more
Field = Callable[[Element], Array]  # a vector field, left-trivialised


def bracket(group: Group, x: Field, y: Field) -> Field:
    """[X, Y] of vector fields given left-trivialised: DY.X - DX.Y + ad_X Y."""

    def value(g: Element) -> Array:
        def along(field: Field, direction: Array) -> tuple[Array, Array]:
            moved = jax.jvp(lambda eta: field(group.shift(g, eta)), (jnp.zeros(group.dim),), (direction,))
            return cast(tuple[Array, Array], moved)

        here = x(g)
        there, change = along(y, here)
        return change - along(x, there)[1] + group.ad(here, there)

    return value


@dataclass(frozen=True, eq=False)
class Hamel:
    """Hamel's form of the equations of motion, in a frame adapted to TQ = D + D-perp (retraction-maps (3)-(6)).

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
    """Coordinates z = (q, v^a) on D in which the constraint is solved for the velocities v^alpha of the `fibre`.

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
JUDGED = 6  # configurations beside the ends of a plan at which velocities are judged
SMALLEST_PIVOT = 0.1  # of the orthonormal rows of a constraint: below it all velocities are kept
MAX_BRACKETS = 200  # of inputs with motions, times the dimension: each doubles what is to be compiled
MAX_DEPTH = 8  # brackets of brackets: their derivatives grow by a power of it
MAX_DERIVATIVES = 100_000
"""Derivatives of one order up to which brackets are taken: n^order of them."""
MAX_DIRECTIONS = 200
"""Directions up to which derivatives of all orders are taken at once."""


def _none(*shape: int) -> Any:
    return field(default_factory=lambda: np.zeros(shape))


@dataclass(frozen=True)
class Nonholonomy:
    """The result of `nonholonomy`: the `growth` vector (rank D, rank D + [D, D], ...), and the integrable part of D.

    `covectors` (c, n) span the integrable combinations of rows that are not declared holonomic: each is the derivative
    dphi at g, up to a factor, of a phi that is constant along every admissible motion; `rates` (c,) are their phi_t,
    not 0 only where the constraint is affine or depends on time. Row i of `combinations` (c, m) holds the coefficients
    of the rows of A whose sum is covector i. `declared` rows come from `System(holonomic=)`.
    """

    growth: tuple[int, ...]
    dimension: int
    declared: int = 0
    covectors: Reals = _none(0, 0)
    rates: Reals = _none(0)
    combinations: Reals = _none(0, 0)
    note: str = ""

    def _repr_html_(self) -> str:
        rows: dict[str, Any] = {"growth vector": self.growth, "dimension": self.dimension, "verdict": self}
        return html_table("Nonholonomy", rows)

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


@known_arguments("it counts ranks, which have no derivatives: ask for it outside")
def nonholonomy(
    system: MechanicalSystem, g: Any = None, *, t: float = 0.0, depth: int = 4, tolerance: float = 1e-8
) -> Nonholonomy:
    """Is the constraint really nonholonomic, and which directions can be reached? Ranks of D, D + [D, D], ... at g.

    At most `depth` brackets are taken. The growth vector is that of the linear part A. A combination of rows is
    integrable if it vanishes on all brackets, and these are closed (Frobenius), here and at configurations nearby.
    If b is not 0 or the constraint depends on time, the test is made in space and time.
    """
    require_instance("system", system, MechanicalSystem, "a System or InvariantSystem")
    t, tolerance, depth = float(finite("t", t)), float(positive("tolerance", tolerance)), positive_int("depth", depth)
    if depth > MAX_DEPTH:
        raise InvalidInput(f"depth is {show(depth)}; allowed: a whole number from 1 to {MAX_DEPTH}")
    group, clock = system.group, np.asarray(t)
    g = group.identity() if g is None else group.element(g)
    given, k = (system, clock), system.holonomic_constraints
    here, where = (g, clock[None]), Product((group, Euclidean(1)))
    leaves, structure = jax.tree.flatten((given, here))
    kind = structure, tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
    (points, _), both = _around(where, given, here, moves=False)
    m, rows, drift = both.shape[1], both[0, :, :-1], -both[0, :, -1]
    growth, closed, span = _closure(group, _in_space, kind, given, points, both[..., :-1], k, depth, tolerance)
    if m and (drift.any() or _is_driven(*kind)):
        points, both = _around(where, given, here, moves=True)
        _, closed, span = _closure(where, _in_space_and_time, kind, given, points, both, k, depth, tolerance)
        rows = both[0]
    found = null_basis(span).T if closed and m < group.dim else np.zeros((0, rows.shape[1]))
    new = _beside(found, rows[m - k :])
    shares = np.asarray(np.linalg.lstsq(rows.T, new.T, rcond=None)[0].T, float)
    rates = new[:, group.dim] if new.shape[1] > group.dim else np.zeros(len(new))
    note = "the brackets do not close here (more of them, or those of nearby configurations, reach further)"
    return Nonholonomy(growth, group.dim, k, new[:, : group.dim], rates, shares, "" if closed else note)


def choose_velocities(system: MechanicalSystem, t: float, ends: list[Element]) -> tuple[NDArray[Any], bool, bool]:
    """(n - m velocities that determine the others, whether all are kept, whether A and b are everywhere the same).

    They do so at the ends and, if any do, at configurations near the first: what is good at the ends may be singular
    between them. All are kept where none are good.
    """
    n, m, given = system.group.dim, system.constraints, (lambda g: system.A(0.0, g), lambda g: system.b(0.0, g))
    if "_same_everywhere" not in system.__dict__:  # traced once
        system.__dict__["_same_everywhere"] = not any(depends(each, ends[0]) for each in given)
    explicit, known = system.__dict__["_same_everywhere"], system.__dict__.setdefault("_free_velocities", {})
    if not m or (explicit and t in known):
        return known[t] if m else np.arange(n), False, explicit
    if explicit:
        rows = np.asarray(_rows(system, t, ends[0]))[None]
    else:
        ways = np.concatenate([np.zeros((len(ends), n)), np.random.default_rng(0).normal(size=(JUDGED, n))])
        at = jax.tree.map(lambda *leaves: np.stack(leaves), *ends, *([ends[0]] * JUDGED))
        rows = np.asarray(evaluate(_rows_beside, (system, t), (at, ways), lanes=len(ways), axes=(None, 0)))
    bound = np.array(list(islice(combinations(range(n), m), 5000)))
    widths = np.abs(rows).max(axis=(0, 1))

    def sizes_of(rows: Reals) -> Reals:
        """Determinants of the bound columns of orthonormal rows: 1 at most, however the rows are scaled."""
        columns, scales = np.linalg.qr(np.swapaxes(rows, 1, 2))
        scales = np.abs(np.diagonal(scales, axis1=1, axis2=2))
        independent = scales.min(axis=1) > 1e-9 * scales.max(axis=1)
        return cast(Reals, np.abs(np.linalg.det(columns[:, bound])) * independent[:, None])

    # In the user's units or in others, whichever tell the velocities better apart.
    pivots = np.maximum(sizes_of(rows), sizes_of(rows / np.where(widths > 0, widths, 1.0)))
    sizes = pivots.min(axis=0)
    if sizes.max() < SMALLEST_PIVOT:
        sizes = pivots[: len(ends)].min(axis=0)
    best = int(np.argmax(sizes * 1.01 > sizes.max()))  # the first of equals
    free = np.setdiff1d(np.arange(n), bound[best])
    if explicit:
        known[t] = free
    elif sizes[best] < SMALLEST_PIVOT:
        return np.arange(n), True, explicit
    return free, False, explicit


def _rows_beside(consts: tuple[MechanicalSystem, float], lane: tuple[Element, Array]) -> Array:
    (system, t), (g, step) = consts, lane
    return system.A(t, system.group.compose(g, system.group.exp(step)))


class Accessibility(NamedTuple):
    """What inputs can change: growth vectors at a state and `nearby`, and whether the second is known to its end."""

    growth: tuple[int, ...]
    nearby: tuple[int, ...]
    dimension: int
    closed: bool

    @property
    def misses(self) -> bool:
        """Whether there are goals that no input reaches, from nowhere near."""
        return self.closed and self.nearby[-1] < self.dimension


def accessibility(system: MechanicalSystem, state: State, tolerance: float = 1e-8) -> Accessibility:
    """The growth vectors of the inputs of a system in positions and velocities, at a state and at a place near it.

    Their entries are ranks: of the input fields, of these and their brackets with the field of the motion, of these and
    the next brackets, and so on (Sussmann and Jurdjevic 1972). If the last rank nearby is less than the dimension, some
    goals cannot be reached from any state. Full rank is necessary for reaching every goal, but not sufficient, because
    the system keeps moving while the inputs act.
    """
    group, n, inputs, draw = system.group, system.group.dim, len(system.inputs or ()), np.random.default_rng(0)
    dimension, count = 2 * n - system.constraints - system.holonomic_constraints, 4 * n
    g = system.project_configuration(group.compose(state.g, group.exp(jnp.asarray(0.1 * draw.normal(size=n)))), state.t)
    xi = system.project(g, state.xi + (0.1 + np.abs(state.xi)) * draw.normal(size=n), state.t)
    places = jax.tree.map(lambda *leaves: np.stack(leaves), (state.g, state.xi), (g, xi))

    def bracketed(controls: Reals) -> Reals:
        lanes = 2 * len(controls)
        where = jax.tree.map(lambda leaf: np.repeat(leaf, len(controls), axis=0), places)
        lane = ((*where, np.full((lanes, 1), float(state.t))), np.concatenate([controls, controls]))
        found = np.asarray(evaluate(_bracket(controls.shape[1] - 2), system, lane, lanes=lanes, axes=(None, 0)))
        return found[:, :-1].reshape(2, -1, 2 * n)

    alone = np.stack([np.zeros((inputs, inputs)), np.eye(inputs)], axis=1)
    sizes = np.maximum(np.abs(bracketed(alone)).max(axis=(0, 2)), 1e-12)
    vectors, ranks, closed = np.zeros((2, 0, 2 * n)), [[0, 0]], False
    while dimension << (len(ranks) - 1) <= MAX_BRACKETS and not closed:
        try:
            new = bracketed(draw.normal(size=(count, len(ranks) + 1, inputs)) / sizes)
        except LoweringError:  # they are too long
            break
        lengths = np.abs(new).max(axis=2, keepdims=True)  # far below that at the other place: 0 but for round-off
        vectors = np.concatenate([vectors, new / (np.maximum(lengths, 1e-5 * lengths.max(axis=0)) + 1e-300)], axis=1)
        widths = np.abs(vectors).max(axis=1, keepdims=True)
        singular = np.linalg.svd(vectors / np.where(widths > tolerance, widths, 1.0), compute_uv=False)
        ranks.append([int(np.count_nonzero(each > tolerance * each[0])) for each in singular])
        closed = ranks[-1][1] in (dimension, ranks[-2][1])
    growth, nearby = (tuple(each) for each in zip(*(ranks[1:] or ranks), strict=True))
    return Accessibility(growth, nearby, dimension, closed)


@lru_cache(maxsize=8)  # the same function every time, so that compiled programs are found again
def _bracket(order: int) -> Any:
    """value(system, (place, controls)): a field of inputs, bracketed so often with motions under other inputs."""

    def value(system: MechanicalSystem, lane: Any) -> Array:
        def under(u: Array) -> Field:
            def motion(place: Element) -> Array:
                g, xi, (t,) = place
                return jnp.concatenate([xi, system.acceleration(t, g, xi, u)[0], jnp.ones(1)])

            return motion

        place, controls = lane
        before, after, *others = map(under, controls)
        where = Product((system.group, Euclidean(system.group.dim), Euclidean(1)))
        found: Field = lambda place: after(place) - before(place)
        for other in others:
            found = bracket(where, other, found)
        return found(place)

    return value


@lru_cache(maxsize=128)
def _is_driven(structure: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...]) -> bool:
    """Whether the constraint of such a system can depend on time, or its b on the configuration."""
    (system, clock), (g, _) = jax.tree.unflatten(structure, [jnp.zeros(shape, kind) for shape, kind in leaves])
    if depends(lambda t: (system.A(t, g), system.b(t, g)), clock):
        return True
    return depends(lambda eta: system.b(clock, system.group.shift(g, eta)), jnp.zeros(system.group.dim))


def _in_space(given: tuple[MechanicalSystem, Array], g: Element) -> Array:
    """The rows A of the constraint."""
    system, t = given
    return system.A(t, g)


def _in_space_and_time(given: tuple[MechanicalSystem, Array], place: tuple[Element, Array]) -> Array:
    """The rows (A, -b) of the constraint in space and time."""
    system, (g, (t,)) = given[0], place
    return jnp.concatenate([system.A(t, g), -system.b(t, g)[:, None]], axis=1)


@lru_cache(maxsize=64)  # the same function every time, so that compiled programs are found again
def _coefficients(rows: Callable[[Any, Element], Array], group: Group, order: int) -> Any:
    """values(given, (g, w)): the Taylor coefficients (order + 1, m, n) in s of the rows at g exp(s w).

    Those of z with z' = A, g' = g w, which has its rule for every operation: no derivatives are nested.
    """

    def values(given: Any, point: tuple[Element, Array]) -> Array:
        def field(constants: Any, y: Any) -> Any:
            (given, g, way), (q, _) = constants, y
            return group.series_rate(q, way), rows(given, group.series_element(g, q))

        (g, way), shape = point, jax.eval_shape(rows, given, point[0]).shape
        terms = solution_series(field, (given, g, way), (group.series_start(g), jnp.zeros(shape)), order + 1)
        of_rows = terms[1:, terms.shape[1] - math.prod(shape) :] * np.arange(1.0, order + 2)[:, None]
        return cast(Array, of_rows.reshape(order + 1, *shape))

    return values


@lru_cache(maxsize=64)
def _nested_coefficients(rows: Callable[[Any, Element], Array], group: Group, order: int) -> Any:
    """The same by derivatives of derivatives, for rows that have no series: with an iteration in them."""

    def values(given: Any, point: tuple[Element, Array]) -> Array:
        g, way = point

        def jet(k: int, q: Element) -> Array:
            if k == 0:
                return rows(given, q)[None]
            below, slopes = jax.jvp(lambda s: jet(k - 1, group.shift(q, s * way)), (0.0,), (1.0,))
            return jnp.concatenate([below, slopes[-1:]])

        return jet(order, g) / np.cumprod([1.0, *range(1, order + 1)])[:, None, None]

    return values


@lru_cache(maxsize=64)
def _directions(n: int, order: int) -> Reals:
    """Those along which a form of this degree in n variables is known: natural coordinates of this sum."""
    return np.array([[each.count(i) for i in range(n)] for each in _monomials(n, order)], float)


def _monomials(n: int, order: int) -> list[tuple[int, ...]]:
    return list(combinations_with_replacement(range(n), order))


@lru_cache(maxsize=64)
def _polarisation(n: int, order: int, most: int) -> tuple[Reals, NDArray[np.intp]]:
    """(W, places): the derivatives of this order are (W c)[places], by the coefficients c along `_directions(n, most)`.

    Griewank, Utke, Walther, Math. Comp. 69 (2000).
    """
    ways, powers = _directions(n, most), _directions(n, order)
    values, factor = np.ones((len(ways), len(powers))), np.ones(len(powers))
    for way, power in zip(ways.T, powers.T, strict=True):
        values *= way[:, None] ** power
        factor *= [math.factorial(int(each)) for each in power]
    number = {each: i for i, each in enumerate(_monomials(n, order))}
    places = [number[tuple(sorted(each))] for each in product(range(n), repeat=order)]
    return np.linalg.pinv(values) * factor[:, None], np.array(places)


def _at_points(function: Any, given: Any, points: Any, backend: Backend = "auto") -> Reals:
    """The values of a function at stacked points, natively: a point is a lane."""
    lanes = len(jax.tree.leaves(points)[0])
    return np.asarray(evaluate(function, given, points, lanes=lanes, axes=(None, 0), backend=backend))


def _derivatives(
    rows: Any, group: Group, given: Any, points: Element, active: tuple[int, ...], order: int, last: int
) -> Reals:
    """The coefficients (points, directions, order + 1, m, n) of the rows along directions, by one program to `last`."""
    ways = _directions(len(active), order) @ np.eye(group.dim)[list(active)]
    places = jax.tree.map(lambda leaf: np.repeat(leaf, len(ways), axis=0), points)
    lanes = places, np.tile(ways, (1 + NEIGHBOURS, 1))
    try:
        found = _at_points(_coefficients(rows, group, last), given, lanes, "llvm")[:, : order + 1]
    except LoweringError:
        found = _at_points(_nested_coefficients(rows, group, order), given, lanes)
    return found.reshape(1 + NEIGHBOURS, len(ways), *found.shape[1:])


@lru_cache(maxsize=128)
def _active_directions(
    rows: Any, group: Group, structure: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...]
) -> tuple[int, ...]:
    """The left-invariant directions along which the rows of such a system can vary, by their form.

    The others span an ideal: the rows are functions on the quotient.
    """

    def slopes(*flat: Any) -> Array:
        given, here = jax.tree.unflatten(structure, flat)
        g = here[0] if rows is _in_space else here
        return jacobian(lambda eta: rows(given, group.shift(g, eta)), jnp.zeros(group.dim))

    try:
        known = literals(slopes, *(jax.ShapeDtypeStruct(*leaf) for leaf in leaves))  # type: ignore[no-untyped-call]
    except LoweringError:
        return tuple(range(group.dim))
    moves = ~(known == 0.0).all(axis=(0, 1))
    while (wider := moves | _structure_constants(group)[:, :, moves].any(axis=(0, 2))).sum() > moves.sum():
        moves = wider
    return tuple(map(int, np.flatnonzero(moves)))


def _frame_jets(group: Group, A: Reals, reference: Reals, pivots: list[int], active: tuple[int, ...]) -> list[Reals]:
    """The derivatives E_i1 ... E_ik X, for k to the order of A (see `_derivatives`), of a frame X of ker A.

    Each is of shape (points, fields, a, .., a, n), E_i are the left-invariant fields that are `active`. The frame is
    the reference moved along the pivots onto ker A. A point where it is not defined repeats the first.
    """
    most, n, size = A.shape[2] - 1, group.dim, len(active)
    known = np.abs(np.linalg.det(A[:, 0, 0][..., pivots])) > 0.0
    A = np.where(known[:, None, None, None, None], A, np.eye(n)[pivots])  # any rows, where there are none
    bound, right = A[..., pivots], A @ reference
    inverse, shifts, jets = np.linalg.inv(bound[:, :1, 0]), list[Reals](), list[Reals]()
    for k in range(most + 1):
        of_lower = sum(bound[:, :, j] @ shifts[k - j] for j in range(1, k + 1))
        shifts.append(inverse @ (right[:, :, k] - of_lower))
        known = known & np.isfinite(shifts[k]).all(axis=(1, 2, 3))
        field = np.zeros((*A.shape[:2], *reference.shape)) + (reference if k == 0 else 0.0)
        field[:, :, pivots] -= shifts[k]
        weights, places = _polarisation(size, k, most)
        values = np.tensordot(weights, np.where(known[:, None, None, None], field, field[:1]), (1, 1))[places]
        jets.append(np.moveaxis(values, (1, 3), (0, 1)).reshape(len(A), -1, *(size,) * k, n))
    invariant, derived = _invariant_fields(group, active, most), [jets[0]]
    count = jets[0].shape[1]
    for k in range(1, most + 1):
        i, j = np.indices((size, jets[0].shape[1])).reshape(2, -1)
        jets = _leibniz(
            "a", "ab", [np.repeat(each[None, i], len(A), 0) for each in invariant], [jet[:, j] for jet in jets]
        )
        derived.append(np.moveaxis(jets[0].reshape(len(A), *(size,) * k, count, n), k + 1, 1))
    return derived


@lru_cache(maxsize=64)
def _invariant_fields(group: Group, active: tuple[int, ...], most: int) -> list[Reals]:
    """The jets at x = 0 of the fields E_i in the coordinates x of g exp(x): ad_x/(1 - exp(-ad_x)) e_i."""
    own = np.ix_(active, active, active)
    ad, size = _structure_constants(group)[own], len(active)
    shares, jets = [1.0], list[Reals]([np.eye(size)])
    power: Reals = np.eye(size)  # ad_j1 ... ad_jk e_i, of shape (i, j1, .., jk, size)
    for k in range(1, most + 1):
        shares.append(sum(-share * (-1.0) ** (k - j) / math.factorial(k - j + 1) for j, share in enumerate(shares)))
        power = np.moveaxis(np.tensordot(power, ad, (k, 1)), k, 1)
        orders = [(0, *(1 + np.array(order)), k + 1) for order in permutations(range(k))]
        jets.append(shares[k] * np.sum([power.transpose(order) for order in orders], axis=0))
    return jets


@lru_cache(maxsize=64)
def _structure_constants(group: Group) -> Reals:
    """ad, of shape (a, b, c): [e_a, e_b] = ad_abc e_c."""
    n = group.dim
    pairs = np.repeat(np.eye(n), n, axis=0), np.tile(np.eye(n), (n, 1))
    return _at_points(lambda _, pair: group.ad(*pair), (), pairs).reshape(n, n, n)


def _leibniz(first: str, second: str, x: list[Reals], y: list[Reals]) -> list[Reals]:
    """The jets of products of X and Y, pair by pair, by Leibniz' rule for every subset of the derivatives.

    `first` and `second` are the indices of the factors after those of derivatives; where the second has two, the first
    of them is one more derivative of Y.
    """
    found, more = [], len(second) - 1
    for k in range(min(len(x), len(y) - more)):
        terms = [np.einsum(form, x[of_x], y[of_y + more]) for form, of_x, of_y in _products(first, second, k)]
        found.append(sum(terms[1:], terms[0]))
    return found


@lru_cache(maxsize=64)
def _products(first: str, second: str, count: int) -> list[tuple[str, int, int]]:
    """The terms of Leibniz' rule for so many derivatives: the product for `einsum`, derivatives of X and of Y in it."""
    letters, terms = "ijklmnor"[:count], []
    for chosen in product((0, 1), repeat=count):
        of_x = "".join(letter for letter, one in zip(letters, chosen, strict=True) if one)
        of_y = "".join(letter for letter, one in zip(letters, chosen, strict=True) if not one)
        terms.append((f"pq{of_x}{first},pq{of_y}{second}->pq{letters}b", len(of_x), len(of_y)))
    return terms


def _bracket_jets(ad: Reals, active: tuple[int, ...], x: list[Reals], y: list[Reals]) -> list[Reals]:
    """The jets of [X, Y] = Y_X - X_Y + ad_X Y from those of X and Y, pair by pair."""
    moving = [[jet[..., list(active)] for jet in jets] for jets in (x, y)]
    turned = [np.tensordot(jet, ad, 1) for jet in x[: len(y) - 1]]
    parts = _leibniz("a", "ab", moving[0], y), _leibniz("a", "ab", moving[1], x), _leibniz("cb", "c", turned, y)
    return [there - back + turn for there, back, turn in zip(*parts, strict=False)]


def _closure(
    group: Group,
    rows: Any,
    kind: Any,
    given: Any,
    points: Element,
    begin: Reals,
    known: int,
    depth: int,
    tolerance: float,
) -> tuple[tuple[int, ...], bool, Reals]:
    """(the growth vector, whether the brackets close, independent vectors (r, n) that span them) of ker A at a point.

    It is the first of `points`, where the rows are `begin`. `known` covectors are those of holonomic constraints: n -
    known is all that can be reached.
    """
    basis, n, ad = (null_basis(begin[0]), echelon(begin[0])[1]), group.dim, _structure_constants(group)
    active = _active_directions(rows, group, *kind)
    last = next(k for k in range(depth) if k == depth - 1 or len(active) ** (k + 1) > MAX_DERIVATIVES)
    vectors = np.zeros((1 + NEIGHBOURS, 0, n))
    ranks: list[list[int]] = []
    jets: list[Reals] = []  # of the frame: points, fields, derivatives, component
    while True:
        order = len(ranks)
        if basis[0].size:
            if order and not active:
                jets.append(np.zeros((*jets[0].shape[:2], *(0,) * order, n)))
            elif order == len(jets):
                most = last if order and math.comb(len(active) + last - 1, last) <= MAX_DIRECTIONS else order
                begin = _derivatives(rows, group, given, points, active, most, last) if order else begin[:, None, None]
                jets += _frame_jets(group, begin, *basis, active)[order:]
            fields = found = jets[: order + 1]
            for k in range(order):
                count = fields[0].shape[1], found[0].shape[1]
                i, j = np.triu_indices(count[0], 1) if k == 0 else np.indices(count).reshape(2, -1)
                found = _bracket_jets(ad, active, [jet[:, i] for jet in fields], [jet[:, j] for jet in found])
            vectors = np.concatenate([vectors, found[0]], axis=1)
        sizes = np.linalg.svd(vectors, compute_uv=False)
        ranks.append([int(np.count_nonzero(size > tolerance * size[:1])) for size in sizes])
        # at a singular point brackets that vanish there say nothing about the next ones: all points must agree
        stable = len(ranks) > 1 and ranks[-1] == ranks[-2] and len(set(ranks[-1])) == 1
        settled = min(ranks[-1]) == group.dim - known or stable
        if settled or order == last:
            break
    growth = [rank[0] for rank in ranks]
    while len(growth) > 1 and growth[-1] == growth[-2]:
        growth.pop()
    closed = settled and len(set(ranks[-1])) == 1
    *_, right = np.linalg.svd(vectors[0], full_matrices=False)
    return tuple(growth), closed, right[: ranks[-1][0]]


@lru_cache(maxsize=64)
def _neighbour(where: Group) -> Any:
    """values((given, g), x): g exp(x) in space and time, with the rows there."""

    def values(known: tuple[Any, Element], step: Array) -> tuple[Element, Array]:
        given, here = known
        place = where.compose(here, where.exp(step))
        return place, _in_space_and_time(given, place)

    return values


def _around(where: Group, given: Any, here: Element, moves: bool) -> tuple[Element, Reals]:
    """A place in space and time and some near it, at the same time or not, stacked; and the rows there."""
    draw, shape = np.random.default_rng(0), (1 + NEIGHBOURS, where.dim)
    steps = NEIGHBOUR_RADIUS * draw.choice([-1.0, 1.0], shape) * draw.uniform(1.0, 2.0, shape)  # far from 0 in each
    steps[0] = 0.0
    steps[:, -1] *= moves
    points, rows = evaluate(_neighbour(where), (given, here), steps, lanes=len(steps), axes=(None, 0))
    return points, np.asarray(rows)


def _beside(covectors: Reals, declared: Reals) -> Reals:
    """What the span of the covectors has beside that of the declared rows, in echelon form."""
    count = len(covectors) - len(declared)
    if count <= 0:
        return covectors[:0]
    basis = np.linalg.svd(declared)[2][len(declared) :] if len(declared) else np.eye(covectors.shape[1])
    left = np.linalg.svd(covectors @ basis.T @ basis, full_matrices=False)[2][:count]
    return echelon(left)[0] + 0.0  # no minus zeros


# -- frames that are orthonormal in the kinetic metric ----------------------------------------------------------------
def _multiply(a: Array, b: Array) -> Array:
    """A product of matrices, a row after the other where they are large."""
    if min(a.shape[0], b.shape[1]) <= MAX_WRITTEN_VECTORS:
        return a @ b
    rows: Array = map_rows(lambda row: row @ b, a)
    return rows


def orthonormalise(metric: Float[Array, "n n"], vectors: Frame) -> Frame:
    """The columns of `vectors` made orthonormal in the metric, one after the other (Gram, Schmidt)."""
    count = vectors.shape[1]
    if count > MAX_WRITTEN_VECTORS:

        def turn(k: Array, basis: Array) -> Array:
            before, here = jnp.arange(count) < k, jnp.arange(count) == k
            vector = jax.lax.dynamic_index_in_dim(basis, k, axis=1, keepdims=False)
            vector = vector - basis @ jnp.where(before, basis.T @ (metric @ vector), 0.0)
            unit = vector * (1.0 / jnp.sqrt(vector @ (metric @ vector)))
            return jnp.where(here, unit[:, None], basis)

        found: Array = jax.lax.fori_loop(0, count, turn, vectors)
        return found
    columns: list[Array] = []
    for vector in vectors.T:
        for column in columns:
            vector = vector - column * (column @ metric @ vector)
        columns.append(vector * (1.0 / jnp.sqrt(vector @ metric @ vector)))
    return jnp.stack(columns, axis=1) if columns else vectors


@as_routine
def orthonormal_frame(system: MechanicalSystem, t: Scalar, g: Element, reference: Frame) -> Frame:
    """X (n, r) with X^T M X = 1 that spans ker A(t, g), smooth in g; where `reference` is such a frame it is X.

    X = Y (Y^T M Y)^-1/2 (Lowdin), Y the projection of `reference`. A rotation of the reference rotates X, so that what
    is computed in the frame does not depend on the choice of the reference.
    """
    return _orthonormalise_nearest(kinetic_metric(system, t, g), system.frame(t, g, reference))[0]


@jax.custom_jvp
def _orthonormalise_nearest(metric: Float[Array, "n n"], vectors: Frame) -> tuple[Frame, Float[Array, "r r"]]:
    """(X, R) = (Y R, (Y^T M Y)^-1/2) of vectors Y. The root is Newton's, near 1; Gram and Schmidt round X off."""
    one = jnp.eye(vectors.shape[1])
    if len(one) > MAX_WRITTEN_VECTORS:
        gram = _multiply(vectors.T, _multiply(metric, vectors))
        newton = lambda _, root: _multiply(root, 1.5 * one - 0.5 * _multiply(gram, _multiply(root, root)))
        root = jax.lax.fori_loop(0, NEWTON_STEPS, newton, one)
        return orthonormalise(metric, _multiply(vectors, root)), root
    gram, root = vectors.T @ metric @ vectors, one
    for _ in range(NEWTON_STEPS):
        root = root @ (1.5 * one - 0.5 * gram @ root @ root)
    return orthonormalise(metric, vectors @ root), root


@_orthonormalise_nearest.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> Any:
    """dX = dY R + X W and dR = R W, by R (Y^T M Y) R = 1: it takes a part of what Newton's derivative would.

    2 W = C + K with C = -(P + P^T + X^T dM X), P = X^T M dY R, and a skew K that makes dR symmetric:
    R K + K R = C R - R C.
    """
    (metric, _), (d_metric, d_vectors) = primals, tangents
    x, root = _orthonormalise_nearest(*primals)
    moved = _multiply(d_vectors, root)
    along = _multiply(x.T, _multiply(metric, moved))
    change = -(along + along.T + _multiply(x.T, _multiply(d_metric, x)))
    turn = 0.5 * (change + _solve_skew(root, _multiply(change, root) - _multiply(root, change)))
    return (x, root), (moved + _multiply(x, turn), _multiply(root, turn))


def _solve_skew(root: Float[Array, "r r"], right: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """The skew K with R K + K R = `right`, which is skew, for a symmetric R near 1."""
    above = np.triu_indices(len(root), 1)
    if len(above[0]) < 2:  # R K + K R = K tr R
        return right / jnp.trace(root)
    basis = np.zeros((len(above[0]), *root.shape))
    basis[np.arange(len(basis)), *above] = 1.0
    basis -= basis.transpose(0, 2, 1)
    matrix = (root @ basis + basis @ root)[:, *above].T
    return jnp.tensordot(solve(matrix, right[above]), basis, 1)


def initial_frame(system: MechanicalSystem, t: Scalar, g: Element) -> Frame:
    """A frame at g to begin with: the coordinate vectors projected onto D, the longest that remains first."""
    n, metric = system.group.dim, kinetic_metric(system, t, g)
    if isinstance(system, InvariantSystem):
        return orthonormalise(metric, system.subspace)

    def take(left: Array, _: None) -> tuple[Array, Array]:
        sizes = jnp.einsum("ia,ij,ja->a", left, metric, left)
        longest = left @ (1.0 * (jnp.arange(n) == jnp.argmax(sizes)))
        unit = longest * (1.0 / jnp.sqrt(longest @ metric @ longest))
        return left - jnp.outer(unit, unit @ metric @ left), unit

    left, count, chosen = system.frame(t, g, jnp.eye(n)), n - system.constraints, list[Array]()
    if count > MAX_WRITTEN_VECTORS:
        return orthonormal_frame(system, t, g, jax.lax.scan(take, left, None, length=count)[1].T)
    for _ in range(count):
        left, unit = take(left, None)
        chosen.append(unit)
    return orthonormal_frame(system, t, g, jnp.stack(chosen, axis=1))


def orthogonal_drift(system: MechanicalSystem, t: Scalar, g: Element) -> Float[Array, " n"]:
    """The velocity with A xi = b that is orthogonal to ker A."""
    rows, drift = constraint_at(system, t, g)
    weights = solve(kinetic_metric(system, t, g), rows.T)
    return weights @ solve(rows @ weights, drift) if rows.shape[0] else jnp.zeros(system.group.dim)


def derivative_along(
    system: MechanicalSystem,
    function: Callable[[Scalar, Element], Array],
    t: Scalar,
    g: Element,
    xi: Velocity,
    rate: float = 0.0,
) -> Array:
    """The derivative of function(t, g) along g' = g xi and t' = `rate`."""
    zero = jnp.zeros_like(xi[0]), jnp.zeros_like(xi)
    moved = lambda s, eta: function(t + s, system.group.shift(g, eta))
    derivative: Array = jax.jvp(moved, zero, (rate * jnp.ones_like(xi[0]), xi))[1]
    return derivative
