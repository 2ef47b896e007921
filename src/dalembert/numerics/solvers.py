"""Linear and nonlinear equations of a step, and the structure of functions that makes them smaller.

Small dense algebra in plain JAX, and Newton's method to stagnation. There is no LAPACK call, so that a step compiles to
straight scalar code. Roots are differentiated by the implicit function theorem. Null spaces of constraint rows, the
documented bases of D, are computed on plain numbers.

Some questions a function's jaxpr answers without evaluating it. One is whether constraints are already solved for some
velocities: A has literal unit columns, and xi_f = b_f - K xi_a. Then M x + A^T l = top, A x = bottom is n - m equations
in x_a, with the reduced metric B^T M B, B = (1, -K), in place of n + m equations with pivots: the horizontal equations
of an Ehresmann connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..kernels import (
    Builder,
    Lowering,
    LoweringError,
    as_routine,
    columns,
    curvature,
    eliminate,
    in_series,
    map_elements,
    note_solution,
    pack_values,
    scalar_type,
    simplify,
    take_solution,
)
from .checks import is_traced

Numbers = np.ndarray[Any, Any]
Function = Callable[[Array], Array]
Slopes = Callable[[Function, Array], tuple[Array, Array]]  # f and x -> f(x) and the Jacobian there

MIN_PIVOT_SQUARE = 2.0**-40  # of the square of a row, for the square of its pivot
MIN_ROUTINE_ROWS = 5  # from so many unknowns on an elimination is worth a routine


@jax.jit  # traced once for its shapes
def reduce(matrix: Array, *rhs: Array) -> tuple[Array, ...]:
    """(A^-1 B for every B, the pivots) by Gauss-Jordan elimination without exchanges: stable for a definite A."""
    left, right, pivots = matrix, list(rhs), []
    for k in range(matrix.shape[0]):
        here = np.arange(matrix.shape[0])[:, None] == k
        pivot, column = left[k : k + 1, :1], left[:, :1]
        inverse = 1.0 / pivot
        parts = [left[:, 1:], *right]
        rows = [part[k : k + 1] * inverse for part in parts]
        left, *right = (jnp.where(here, row, part - column * row) for part, row in zip(parts, rows, strict=True))
        pivots.append(pivot[0, 0])
    return *right, jnp.array(pivots)


def direction(matrix: Array, rhs: Array, split: int | None = None) -> tuple[Array, Array]:
    """(A^-1 B, sign det A) for Newton's iteration, which corrects what this loses: by cofactors up to four unknowns.

    One division and no pivots, so no chain of comparisons. With `split` = n the matrix is [[K, D], [C, 0]] with a
    regular K of n rows, as a constraint makes it, and its Schur complement C K^-1 D is used.
    """
    size = matrix.shape[0]
    if split is None or split == size:
        return COFACTORS[size](matrix, rhs) if size in COFACTORS else _solve_checked(matrix, rhs)
    (k, d), (c, _) = ((row[:, :split], row[:, split:]) for row in (matrix[:split], matrix[split:]))
    both, sign_k = direction(k, jnp.concatenate([rhs[:split], d], axis=1))
    free, coupling = both[:, : rhs.shape[1]], both[:, rhs.shape[1] :]
    reaction, sign_s = direction(c @ coupling, c @ free - rhs[split:])
    return jnp.concatenate([free - coupling @ reaction, reaction]), sign_k * sign_s


@as_routine
def _solve_checked(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    """Without exchanges of rows unless a pivot is small in its row: a step's matrix is near a metric."""
    (pivots,) = reduce(matrix)
    fair = jnp.all(pivots * pivots > MIN_PIVOT_SQUARE * jnp.sum(matrix * matrix, axis=1))
    sign = jnp.prod(jnp.where(pivots < 0, -1.0, 1.0))
    found: tuple[Array, Array] = jax.lax.cond(
        fair, lambda b: (reduce(matrix, b)[0], sign), lambda b: eliminate(matrix, b), rhs
    )
    return found


def _divide(adjugate: Array, determinant: Array, rhs: Array) -> tuple[Array, Array]:
    return (adjugate @ rhs) * (1.0 / determinant), jnp.where(determinant < 0, -1.0, 1.0)


def _cofactors2(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    (a, b), (c, d) = matrix
    return _divide(jnp.array([[d, -b], [-c, a]]), a * d - b * c, rhs)


def _cofactors3(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    a, b, c = matrix
    first = jnp.cross(b, c)
    return _divide(jnp.stack([first, jnp.cross(c, a), jnp.cross(a, b)], axis=1), a @ first, rhs)


def _cofactors4(matrix: Array, rhs: Array) -> tuple[Array, Array]:
    """By the 2 x 2 minors of the upper and of the lower two rows (Laplace)."""
    a, b, c, d = matrix

    def minors(p: Array, q: Array) -> dict[tuple[int, int], Array]:
        return {(i, j): p[i] * q[j] - q[i] * p[j] for i in range(4) for j in range(i + 1, 4)}

    upper, lower = minors(a, b), minors(c, d)
    signs = {(0, 1): 1, (0, 2): -1, (0, 3): 1, (1, 2): 1, (1, 3): -1, (2, 3): 1}
    other = {(0, 1): (2, 3), (0, 2): (1, 3), (0, 3): (1, 2), (1, 2): (0, 3), (1, 3): (0, 2), (2, 3): (0, 1)}
    determinant = jnp.asarray(sum(sign * upper[key] * lower[other[key]] for key, sign in signs.items()))

    def entry(column: int, row: Array, block: dict[tuple[int, int], Array]) -> Array:
        """(-1)^column times the row expanded along the minors that avoid the column."""
        i, j, k = sorted({0, 1, 2, 3} - {column})
        return (-1 if column % 2 else 1) * (row[i] * block[j, k] - row[j] * block[i, k] + row[k] * block[i, j])

    rows = [[entry(i, b, lower), -entry(i, a, lower), entry(i, d, upper), -entry(i, c, upper)] for i in range(4)]
    return _divide(jnp.array(rows), determinant, rhs)


COFACTORS = {1: lambda a, b: _divide(jnp.ones((1, 1)), a[0, 0], b), 2: _cofactors2, 3: _cofactors3, 4: _cofactors4}


def solve(matrix: Array, rhs: Array) -> Array:
    """A^-1 b for A (n, n) and b (n,) or (n, k); its derivative is A^-1 (db - dA A^-1 b)."""
    return _solve_by(eliminate if len(matrix) < MIN_ROUTINE_ROWS else _eliminate, matrix, rhs)


_eliminate = as_routine(eliminate)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solve_by(method: Callable[[Array, Array], tuple[Array, Array]], matrix: Array, rhs: Array) -> Array:
    columns = rhs if rhs.ndim == 2 else rhs[:, None]
    if in_series():
        apply = lambda x: matrix @ x
        solver, transposed = (lambda _, b, each=each: method(each, b)[0] for each in (matrix, matrix.T))
        solution: Array = jax.lax.custom_linear_solve(apply, columns, solver, transposed)
        return solution.reshape(rhs.shape)
    return method(matrix, columns)[0].reshape(rhs.shape)


@_solve_by.defjvp
def _solve_by_jvp(method: Any, primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (matrix, rhs), (d_matrix, d_rhs) = primals, tangents
    solution = _solve_by(method, matrix, rhs)
    return solution, _solve_by(method, matrix, d_rhs - d_matrix @ solution)


@as_routine
def _solve_on_kernel(metric: Array, rows: Array, top: Array, bottom: Array) -> tuple[Array, Array]:
    """(x, l) of `solve_saddle` by n - m equations on ker A: A^T = Q (R, 0) by Householder's reflections.

    x = Q1 R^-T bottom + Q2 y with Q2^T M Q2 y = Q2^T (top - M Q1 R^-T bottom), and R l = Q1^T (top - M x). Reflections
    need no pivots, and M has to be regular on ker A only (Golub, Van Loan 2013, 5.2.2; Nocedal, Wright 2006, 16.2).
    """
    m, n = rows.shape
    left, mirrors, diagonal = rows.T, [], []
    for k in range(m):
        column = left[k:, k]
        size = jnp.sqrt(column @ column)
        head = jnp.where(column[0] < 0, -size, size)
        mirror = jnp.concatenate([(column[0] + head)[None], column[1:]])
        weight = 1.0 / (size * (size + jnp.abs(column[0])))
        mirrors.append((mirror, weight))
        diagonal.append(-head)
        rest = left[k:, k + 1 :]
        left = left.at[k:, k + 1 :].set(rest - (weight * mirror)[:, None] * (mirror @ rest)[None, :])

    def reflect(k: int, x: Array) -> Array:
        mirror, weight = mirrors[k]
        return jnp.concatenate([x[:k], x[k:] - (weight * mirror)[:, None] * (mirror @ x[k:])[None, :]])

    def unfold(x: Array) -> Array:
        """Q x, of columns."""
        for k in reversed(range(m)):
            x = reflect(k, x)
        return x

    fixed: list[Array] = []  # R^T z = bottom
    for k in range(m):
        fixed.append((bottom[k] - sum((left[i, k] * z for i, z in enumerate(fixed)), jnp.zeros(()))) / diagonal[k])
    placed = unfold(jnp.concatenate([jnp.stack(fixed), jnp.zeros(n - m)])[:, None])[:, 0]
    frame = unfold(jnp.eye(n)[:, m:])
    weighted = metric @ frame
    free, _ = direction(frame.T @ weighted, ((top - metric @ placed) @ frame)[:, None])
    again, _ = direction(frame.T @ weighted, ((top - metric @ placed - weighted @ free[:, 0]) @ frame)[:, None])
    x = placed + (frame @ (free + again))[:, 0]
    balance = (top - metric @ placed - (weighted @ (free + again))[:, 0])[:, None]
    for k in range(m):
        balance = reflect(k, balance)
    forces: list[Array] = [jnp.zeros(())] * m
    for k in reversed(range(m)):
        carried = sum((left[k, i] * forces[i] for i in range(k + 1, m)), jnp.zeros(()))
        forces[k] = (balance[k, 0] - carried) / diagonal[k]
    return x, jnp.stack(forces)


@jax.custom_jvp
def solve_saddle(metric: Array, rows: Array, top: Array, bottom: Array) -> tuple[Array, Array]:
    """(x, l) with M x + A^T l = top and A x = bottom, by n - m equations on ker A."""
    if rows.shape[0] == 0:
        return _solve_by(direction, metric, top), bottom
    if not in_series():
        return _solve_on_kernel(metric, rows, top, bottom)
    apply = lambda z: (metric @ z[0] + rows.T @ z[1], rows @ z[0])
    solver, transposed = (lambda _, b, each=each: _solve_on_kernel(each, rows, *b) for each in (metric, metric.T))
    both: tuple[Array, Array] = jax.lax.custom_linear_solve(apply, (top, bottom), solver, transposed)
    return both


@solve_saddle.defjvp
def _solve_saddle_jvp(primals: Any, tangents: Any) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    metric, rows, _, _ = primals
    d_metric, d_rows, d_top, d_bottom = tangents
    x, l = solution = solve_saddle(*primals)
    return solution, solve_saddle(metric, rows, d_top - d_metric @ x - d_rows.T @ l, d_bottom - d_rows @ x)


def null_basis(rows: Numbers) -> Numbers:
    """Columns that span ker A, unit in the free coordinates, from the reduced echelon form."""
    rows, pivots = echelon(rows)
    free = [j for j in range(rows.shape[1]) if j not in pivots]
    basis = np.zeros((rows.shape[1], len(free)))
    basis[free, range(len(free))] = 1.0
    basis[pivots] = -rows[:, free]
    return basis + 0.0


def echelon(rows: Numbers) -> tuple[Numbers, list[int]]:
    """(the reduced echelon form of A, the columns of its pivots), with the largest entries as pivots."""
    rows = np.array(rows, float)
    m, n = rows.shape
    pivots: list[int] = []
    for i in range(m):
        k, j = divmod(int(np.argmax(np.abs(rows[i:]))), n)
        if np.abs(rows[i + k, j]) < 1e-12 * max(1.0, np.abs(rows).max()):
            raise InvalidInput(f"the {m} constraint rows are linearly dependent: rank {i}")
        rows[[i, i + k]] = rows[[i + k, i]]
        rows[i] /= rows[i, j]
        others = np.arange(m) != i
        rows[others] -= np.outer(rows[others, j], rows[i])
        pivots.append(j)
    return rows, pivots


EPS = 2.0**-52
MAX_ITERATIONS = 40
MAX_STAGNANT_ITERATIONS = 8
HOMOTOPY_STAGES = 16
MAX_DIVIDED_OPERATIONS = 1500
"""Operations up to which equations are divided into parts."""
REGULAR = 2.0**-12
"""How near to 1 the inverse of an affine part's matrix brings back ones: it has then a condition of 1e12 at most."""
MAX_DIRECT_UNKNOWNS = 4
"""Up to so many unknowns a direct trial has code of its own, in which its zeros fold; more make long code."""


MAX_JOINED = 3
"""Numbers for each unknown up to which equations, and what else is asked for at their root, are differentiated as one,
however long they are."""


class Root(NamedTuple):
    """A root with the evidence for it.

    `sign` is that of the Jacobian's determinant at the last iterate: along one branch of solutions it never changes.
    """

    x: Array
    residual: Array
    iterations: Array
    converged: Array
    sign: Array
    more: Any = ()  # what the function gave at the root beside its value


class _Iterate(NamedTuple):
    x: Array
    last: Array  # size of the last update
    iterations: Array
    sign: Array
    settled: Array  # whether the last update leaves x at round-off


Ended = tuple[_Iterate, Array]
"""The last iterate, and whether it is the root that was looked for."""


class Subsystem(NamedTuple):
    """Some equations, for as many unknowns."""

    rows: list[int]
    unknowns: list[int]

    def of(self, f: Function, x: Array) -> Function:
        """These equations as a function of these unknowns, the others being those of x."""
        return lambda y: f(self.put(x, y))[np.array(self.rows)]

    def put(self, x: Array, y: Array) -> Array:
        return jnp.asarray(x).at[np.array(self.unknowns)].set(y)

    def take(self, x: Array) -> Array:
        return x[np.array(self.unknowns)]

    def heads(self, split: int | None) -> int | None:
        """How many of these equations come before the constraints."""
        return None if split is None else sum(i < split for i in self.rows)


class Subsystems(NamedTuple):
    """Equations in the order in which they are solved: Newton's method is for the `rest` alone.

    Those of `first` and `last` are affine in the unknowns that are new there, and are solved by one linear solve each.
    """

    first: list[Subsystem]
    rest: Subsystem
    last: list[Subsystem]

    @property
    def parity(self) -> float:
        """How the order of equations and unknowns changes the sign of the determinant."""
        parts = [*self.first, self.rest, *self.last]
        orders = [[i for part in parts for i in getattr(part, name)] for name in ("rows", "unknowns")]
        return float(np.prod([np.linalg.det(np.eye(len(order))[order]) for order in orders]).round())


def divide_equations(structure: list[tuple[int, int]], split: int | None = None) -> Subsystems:
    """The equations in parts, by what they depend on and where they are not affine (see `kernels.curvature`).

    Equations are in one part if each needs unknowns of the other: strongly connected ones, where every equation is
    there for one unknown. Jointly affine parts that follow each other are one. With a `split` a part has as many
    equations before the constraints as unknowns before the multipliers, in this order, or else all is one part: what
    `direction` inverts first must be regular, also where another order of solving could do without it.
    """
    n = len(structure)
    whole = Subsystems([], Subsystem([*range(n)], [*range(n)]), [])
    owner: dict[int, int] = {}  # the equation that is there for an unknown

    def place(row: int, seen: set[int]) -> bool:
        for j in sorted(range(n), key=lambda j: j != row):
            if structure[row][0] >> j & 1 and j not in seen:
                seen.add(j)
                if j not in owner or place(owner[j], seen):
                    owner[j] = row
                    return True
        return False

    if not all(place(row, set()) for row in range(n)):
        return whole
    unknown = {row: j for j, row in owner.items()}
    needs = [sum(1 << owner[j] for j in range(n) if of >> j & 1) for of, _ in structure]
    for k in range(n):
        needs = [need | needs[k] if need >> k & 1 else need for need in needs]

    def affine(rows: list[int]) -> bool:
        own = [unknown[row] for row in rows]
        return not any(structure[row][1] >> (i * n + j) & 1 for row in rows for i in own for j in own)

    groups = [[i for i in range(n) if needs[i] == need] for need in sorted(set(needs), key=int.bit_count)]
    done, first = 0, []
    last: list[list[int]] = []
    for group in groups:
        mask = sum(1 << i for i in group)
        if affine(group) and not needs[group[0]] & ~mask & ~done:
            done |= mask
            first.append(group)
    others = [group for group in groups if group not in first]
    for group in reversed(others):
        wanted = any(needs[other[0]] >> group[0] & 1 for other in others if other != group and other not in last)
        if affine(group) and not wanted:
            last.insert(0, group)
    rest = sorted(i for group in others if group not in last for i in group)

    def join(groups: list[list[int]]) -> list[Subsystem]:
        joined: list[list[int]] = []
        for group in groups:
            if joined and affine([*joined[-1], *group]):
                joined[-1] = [*joined[-1], *group]
            else:
                joined.append(group)
        parts = [Subsystem(rows, [unknown[row] for row in rows]) for rows in joined]
        return parts if split is None else [Subsystem(sorted(part.rows), sorted(part.unknowns)) for part in parts]

    parts = Subsystems(join(first), Subsystem(rest, sorted(unknown[row] for row in rest)), join(last))
    if split is not None and any(
        part.heads(split) != sum(j < split for j in part.unknowns) for part in (*parts.first, parts.rest, *parts.last)
    ):
        return whole
    return parts


def _solve_part(f: Function, x: Array, part: Subsystem, split: int | None) -> tuple[Array, Array, Array]:
    """(x with the solution of an affine part, the sign of its determinant, whether its matrix is regular).

    Cofactors are corrected, as Newton's next iteration would do it. A matrix that is singular but for round-off has an
    inverse of garbage: it does not give back the vector of ones.
    """
    equations, y, heads = part.of(f, x), part.take(x), part.heads(split)
    there, slope = columns(equations, y)
    if len(part.rows) == 1:
        update, sign = direction(slope, there[:, None], heads)
        return part.put(x, y - update[:, 0]), sign, jnp.array(True)
    both, sign = direction(slope, jnp.stack([there, jnp.sum(slope, axis=1)], axis=1), heads)
    y = y - both[:, 0]
    y = y - direction(slope, equations(y)[:, None], heads)[0][:, 0]
    return part.put(x, y), sign, jnp.max(jnp.abs(both[:, 1] - 1.0)) <= REGULAR


def find_root(
    function: Function,
    guess: Array,
    *,
    anchor: Array | None = None,
    sign: Array | None = None,
    split: int | None = None,
    coupling: Function | None = None,
    whole: bool = False,
    more: Callable[[Array], Any] | None = None,
) -> Root:
    """Solve f(x) = 0 from `guess`; derivatives of the root are -f_x^-1 df, whatever the path of the iteration.

    `anchor` is a point on the branch that the root must continue, and `sign` the orientation of that branch (0: not
    known). When Newton's iteration from the guess fails, or lands where the orientation differs, the homotopy
    f(x) = (1 - s) f(anchor) is followed from the anchor: it ends at the root, or at the fold where the branch ends.
    Equations with an anchor are those of a step, worth a look at their form: affine ones are not iterated (`Parts`),
    unless they are to be solved as a `whole`: where derivatives hide a slope, only iterating finds the root.
    `split`: so many unknowns come before the multipliers of constraints (see `direction`). Where `coupling` gives the
    columns of the Jacobian that belong to the multipliers, only those of the others are found by differentiation.
    `more`: a function of x that shares most of its work with f. The root shows its value there, and the derivatives of
    both are found together.
    """
    divided = anchor is not None and coupling is None and not whole
    anchor = guess if anchor is None else anchor
    sign = jnp.zeros((), guess.dtype) if sign is None else sign

    beside, values = _convert_closure(coupling or _no_columns, guess)[:2]

    equations = _convert_closure(as_routine(function), guess, divided)

    @jax.jit  # its name says that identities of polynomials are worth looking for: see kernels.lowering
    def solved_equations(x: Array, *values: Any) -> Array:
        return equations.call(x, *values)

    def iterate(f: Function, slopes: Slopes, x: Array, anchor: Array, sign: Array, split: int | None) -> Ended:
        stage, yes = jnp.full((), HOMOTOPY_STAGES - 1.0), jnp.array(True)
        begin = _Path(stage, _begin(x), jnp.zeros_like(x), yes, yes)
        return _follow(f, slopes, begin, anchor, sign, split, x.shape[0] <= MAX_DIRECT_UNKNOWNS)

    def solver(f: Function, x: Array, anchor: Array, sign: Array, *values: Any) -> Ended:
        def bordered(f: Function, x: Array) -> tuple[Array, Array]:
            there, slope = columns(lambda head: f(jnp.concatenate([head, x[split:]])), x[:split])
            return there, jnp.concatenate([slope, beside(x, *values)], axis=1)

        parts = equations.divide(split) if divided else None
        if parts is None:
            return iterate(f, bordered if coupling else columns, x, anchor, sign, split)
        turned, good, count = jnp.full((), parts.parity), jnp.array(True), jnp.ones(())
        for part in parts.first:
            x, turn, regular = _solve_part(f, x, part, split)
            turned, good = turned * turn, good & regular
        if (rest := parts.rest).rows:
            turns = [_solve_part(f, x, part, split)[1] for part in parts.last]
            along = sign * turned * jnp.prod(jnp.array(turns, x.dtype))
            end, found = iterate(rest.of(f, x), columns, rest.take(x), rest.take(anchor), along, rest.heads(split))
            x, turned, good, count = rest.put(x, end.x), turned * end.sign, good & found, end.iterations
        for part in parts.last:
            x, turn, regular = _solve_part(f, x, part, split)
            turned, good = turned * turn, good & regular
        end = _Iterate(x, jnp.zeros(()), count, turned, good)
        return end, _is_faithful(end, sign)

    called = equations._replace(call=solved_equations) if divided else equations
    if more is None or (joined := _join(function, more, guess)) is None:
        root = _find_with_slope(called, solver, guess, anchor, sign, *values)
        return root if more is None else root._replace(more=more(root.x))
    root = _find_with_slope(called, solver, guess, anchor, sign, *values, joined=joined)
    _, restore = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.zeros_like, jax.eval_shape(more, guess)))
    return root._replace(more=restore(root.more))


def _no_columns(x: Array) -> Array:
    return x[:0]


def follow_root(function: Function, anchor: Array) -> Root:
    """The root at the end of the homotopy f(x) = (1 - s) f(anchor): the one on the branch through the anchor.

    Where Newton's first step leaves no more of f(anchor) than the last stage begins with, that stage goes on from it.
    """

    def solver(f: Function, x: Array) -> Ended:
        there, slope = columns(f, x)
        update, sign = direction(slope, there[:, None])
        near = x - update[:, 0]
        close = (sign != 0) & (jnp.max(jnp.abs(f(near))) <= jnp.max(jnp.abs(there)) / HOMOTOPY_STAGES)
        stage, first = jnp.where(close, HOMOTOPY_STAGES - 1.0, 0.0), jnp.where(close, near, x)
        begin = _Path(stage, _begin(first), jnp.zeros_like(x), sign != 0, close)
        return _follow(f, columns, begin, x, sign)

    return _find_with_slope(_convert_closure(as_routine(function), anchor), solver, anchor)


def find_fixed_point(function: Function, guess: Array) -> Root:
    """Solve x = f(x) by iterating f until it stagnates: for contractions, where Newton's matrix would be large.

    The round-off of f is not known, only that updates no longer shrink: the last one grew, or none halved in
    `MAX_STAGNANT_ITERATIONS` (round-off can make a cycle of two points that closes by 1e-3 of its size a turn). A
    contraction as slow as that would not end within the limit either.
    """

    def solver(gap: Function, x: Array) -> Ended:
        def body(state: tuple[_Iterate, Array, Array]) -> tuple[_Iterate, Array, Array]:
            at, least, since = state  # the size when it last halved, and the iterations since then
            update = gap(at.x)
            new = at.x - update
            size, last = jnp.max(jnp.abs(new)), jnp.max(jnp.abs(update))
            halved = last <= 0.5 * least
            since = jnp.where(halved, 0.0, since + 1.0)
            stagnant = ((last >= at.last) & (at.iterations > 0.0)) | (since >= MAX_STAGNANT_ITERATIONS)
            settled = (last <= 2.0**-51 * size) | (last <= 2.0**-26 * size) & stagnant
            return _Iterate(new, last, at.iterations + 1.0, at.sign, settled), jnp.where(halved, last, least), since

        def unfinished(state: tuple[_Iterate, Array, Array]) -> Array:
            at, _, _ = state
            return (at.iterations < 3 * MAX_ITERATIONS) & ~at.settled & jnp.isfinite(at.last)

        zero = jnp.zeros((), x.dtype)
        end, _, _ = jax.lax.while_loop(unfinished, body, (_begin(x), zero + jnp.inf, zero))
        return end, _is_faithful(end, zero)

    residual = _convert_closure(as_routine(lambda x: x - function(x)), guess)
    return _find_with_slope(residual, solver, guess, contracts=True)


def _solve_by_contraction(apply: Function, rhs: Array) -> Array:
    """y with A y = b, by y <- y + (b - A y), for an A that differs from one by a contraction; NaN where it is none.

    It ends when the next update would be at round-off, or when a small one no longer shrinks.
    """

    def body(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        y, last, count, _ = state
        update = rhs - apply(y)
        y, size = y + update, jnp.max(jnp.abs(update))
        all_of_it = jnp.max(jnp.abs(y))
        settled = (size == 0.0) | (size * size <= 2.0**-53 * all_of_it * (last - size))
        stalled = (size <= 2.0**-40 * all_of_it) & (size >= last)
        return y, size, count + 1.0, settled | stalled

    def unfinished(state: tuple[Array, Array, Array, Array]) -> Array:
        return (state[2] < 6 * MAX_ITERATIONS) & ~state[3] & jnp.isfinite(state[1])

    zero = jnp.zeros((), rhs.dtype)
    begin = rhs, jnp.max(jnp.abs(rhs)), zero, zero > 0.0
    y, _, _, settled = jax.lax.while_loop(unfinished, body, begin)
    return jnp.where(settled, y, jnp.nan)


class _Equations(NamedTuple):
    """A function f of x and of the values that it closes over."""

    call: Callable[..., Array]
    values: list[Any]  # those that are traced
    closed: Any

    @classmethod
    def of(cls, closed: Any) -> _Equations:
        """Those of a closed jaxpr of x."""
        traced = [is_traced(value) for value in closed.consts]

        def converted(x: Array, *values: Any) -> Array:
            given = iter(values)
            consts = [next(given) if own else value for own, value in zip(traced, closed.consts, strict=True)]
            value: Array = jax.core.eval_jaxpr(closed.jaxpr, consts, x)[0]
            return value

        return cls(converted, [value for own, value in zip(traced, closed.consts, strict=True) if own], closed)

    def divide(self, split: int | None) -> Subsystems | None:
        """The equations in parts; None where they are one, or too long to look at."""
        known = [not is_traced(value) for value in self.closed.consts]
        try:
            parts = divide_equations(curvature(self.closed, known, MAX_DIVIDED_OPERATIONS), split)
        except LoweringError:
            return None
        return parts if parts.first or parts.last else None


def _convert_closure(function: Function, example: Array, solved: bool = False) -> _Equations:
    """function(x) as f(x, *values), with all traced values that the function closes over.

    `solved`: only zeros are looked for (see `kernels.simplify`).

    `jax.closure_convert` leaves integers behind, which a transformation of f meets as constants of another trace.
    """
    return _Equations.of(simplify(jax.make_jaxpr(function)(example), solved))


def _find_with_slope(
    equations: _Equations,
    solver: Callable[..., Ended],
    guess: Array,
    *context: Array,
    contracts: bool = False,
    joined: _Equations | None = None,
) -> Root:
    """The root that solver(f, guess, *context) finds, with the implicit function theorem as its derivative.

    Where x - f(x) is a contraction, so is the equation of the derivative, which is then iterated too: no Jacobian.
    `jax.lax.custom_root` does the same, but traces the equations and their solve again for derivatives that few need.
    `joined`: the equations and what else is asked for at the root, whose derivatives are then taken at once: with
    dx = -f_x^-1 f_p dp, d more = more_p dp + more_x dx.
    """
    # The equations are traced once, not at each of their uses.
    f, parameters, size = equations.call, equations.values, len(guess)
    known = take_solution((guess, (jnp.zeros((), guess.dtype),) * 4))
    whole = equations if joined is None else joined

    @jax.custom_jvp
    def root(start: Any, parameters: list[Any], shared: list[Any]) -> Any:
        if known is None:
            last, found = solver(lambda x: f(x, *parameters), *start)
            residual = jnp.max(jnp.abs(f(last.x, *parameters)))
            start = last.x, (residual, last.iterations, found.astype(guess.dtype), last.sign)
        return *start, whole.call(start[0], *shared)[size:] if joined is not None else jnp.zeros(0)

    @root.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x, evidence, rest), shared = root(*primals), primals[2]
        along, of_x = lambda shared: whole.call(x, *shared), lambda x: whole.call(x, *shared)
        _, change = jax.jvp(along, (shared,), tangents[2:])
        if contracts:
            slope = jax.linearize(of_x, x)[1]
            dx = -jax.lax.custom_linear_solve(slope, change, _solve_by_contraction, _solve_by_contraction)
        else:
            slopes = columns(of_x, x)[1]
            dx = -solve(slopes[:size], change[:size])
            change = change + slopes @ dx
        return (x, evidence, rest), (dx, jax.tree.map(jnp.zeros_like, evidence), change[size:])

    *solution, rest = root((guess, *context) if known is None else known, parameters, whole.values)
    note_solution(tuple(solution))
    x, (residual, count, found, sign) = solution
    return Root(x, residual, count, found > 0.5, sign, () if joined is None else rest)


def _join(function: Function, more: Callable[[Array], Any], example: Array) -> _Equations | None:
    """f and all numbers of `more` one after the other; None where it costs more to find the columns of all of them.

    They are worth it where they are few, and where both together are short.
    """

    def joined(x: Array) -> Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in (function(x), *jax.tree.leaves(more(x)))])

    closed = jax.make_jaxpr(as_routine(joined))(example)
    simple = simplify(closed)
    few = example.size <= MAX_DIRECT_UNKNOWNS and closed.out_avals[0].size <= MAX_JOINED * example.size
    return _Equations.of(simple) if few or simple is not closed else None


def _begin(x: Array) -> _Iterate:
    zero = jnp.zeros((), x.dtype)
    return _Iterate(x, zero, zero, zero + 1.0, zero > 0.0)


def _newton(f: Function, slopes: Slopes, begin: Array, value: Array, split: int | None, twice: bool) -> _Iterate:
    """Newton's iteration for f(x) = value until the update is at round-off.

    A tolerance would bias the energy of long runs linearly. The iteration ends when the update is tiny, or when
    quadratic convergence (d, c d^2, c^3 d^4) proves that the next one will be. With a constraint beside the balance
    (`split`) it also ends when a small update no longer shrinks: near rest the round-off of phi(g)/h is larger than
    that of the velocity.

    `twice`: where d is small, its matrix serves a second update, e = c d^2, which leaves an error of 2 c d e. With
    c = e/d^2 this is 2 e^2/d; where another direction bends more, c |x| is at most 1.
    """

    def body(state: _Iterate) -> _Iterate:
        there, slope = slopes(f, state.x)
        update, sign = direction(slope, (there - value)[:, None], split)
        x = state.x - update[:, 0]
        size, last = jnp.max(jnp.abs(x)), jnp.max(jnp.abs(update))
        tiny = last <= 2.0**-36 * size
        if twice:

            def correct(x: Array) -> tuple[Array, Array]:
                e = direction(slope, (f(x) - value)[:, None], split)[0][:, 0]
                return x - e, jnp.max(jnp.abs(e))

            small = last <= 2.0**-8 * size
            # No loop of one turn: the last pass of a loop around loops is all that a series in h polishes.
            x, second = jax.lax.cond(small & ~tiny, correct, lambda x: (x, jnp.zeros_like(last)), x)
            settled = tiny | small & (second * second <= 2.0**-58 * size * last)
            settled &= last * second <= 2.0**-54 * size * size
            if split is not None:
                settled |= (last <= 2.0**-22 * size) & (2.0 * second >= last)
            return _Iterate(x, last, state.iterations + 1.0, sign, settled)
        converging = (last <= 2.0**-22 * size) & (last * last * last <= 0.125 * EPS * size * state.last * state.last)
        if split is not None:
            tiny |= (last <= 2.0**-22 * size) & (2.0 * last >= state.last) & (state.iterations > 1.0)
        return _Iterate(x, last, state.iterations + 1.0, sign, tiny | converging & (state.iterations > 0.0))

    def unfinished(state: _Iterate) -> Array:
        return (state.iterations < MAX_ITERATIONS) & ~state.settled & ~jnp.isnan(state.last)

    return jax.lax.while_loop(unfinished, body, _begin(begin))


def _is_faithful(state: _Iterate, sign: Array) -> Array:
    """Whether an iteration ended at a root on the branch of this orientation."""
    return state.settled & jnp.all(jnp.isfinite(state.x)) & ((sign == 0) | (state.sign == sign))


class _Path(NamedTuple):
    """A place on the homotopy f(x) = (1 - (s + 1)/STAGES) offset, whose last stage is f(x) = 0 itself."""

    stage: Array
    state: _Iterate
    offset: Array  # f at the anchor
    good: Array  # whether the branch went on as far as this
    direct: Array  # whether the last stage is being tried first, from a guess


def _follow(
    f: Function, slopes: Slopes, path: _Path, anchor: Array, sign: Array, split: int | None = None, apart: bool = False
) -> Ended:
    """The end of a path, and whether it is on the branch; where a direct trial is lost, the path begins at the anchor.

    A direct trial may stand `apart`, before the loop over the stages.
    """

    def body(path: _Path, twice: bool = False) -> _Path:
        value = (1.0 - (path.stage + 1.0) / HOMOTOPY_STAGES) * path.offset
        new = _newton(f, slopes, path.state.x, value, split, twice)
        good = _is_faithful(new, sign)
        lost = path.direct & ~good & (sign != 0)
        state = new._replace(x=jnp.where(lost, anchor, new.x), iterations=path.state.iterations + new.iterations)
        return _Path(jnp.where(lost, 0.0, path.stage + 1.0), state, path.offset, good | lost, jnp.array(False))

    def with_offset(path: _Path) -> _Path:
        """With f at the anchor where the path begins there: a loop of at most one turn, free for other paths."""
        begin = (path.state.x, path.offset, path.stage == 0.0)
        _, offset, _ = jax.lax.while_loop(lambda it: it[2], lambda it: (it[0], f(it[0]), jnp.array(False)), begin)
        return path._replace(offset=offset)

    if apart:
        path = body(path, twice=True)
    path = jax.lax.while_loop(lambda p: (p.stage < HOMOTOPY_STAGES) & p.good, lambda p: body(with_offset(p)), path)
    return path.state, path.good


MOVES = (
    "add", "broadcast_in_dim", "concatenate", "convert_element_type", "dynamic_slice", "gather", "neg", "reshape",
    "slice", "squeeze", "sub", "transpose",
)  # fmt: skip
"""What moves and adds numbers, and leaves zeros zero."""
PICKS = ("dynamic_slice", "gather")  # their further inputs are places
PRODUCTS = ("dot_general", "mul")
"""What is zero where one of its factors is."""
Rule = Callable[[Any, list[bool]], bool]
"""Whether the outputs of an equation have a property, by which of its inputs have it."""


def depends(function: Callable[..., Any], argument: Any) -> bool:
    """Whether the value of `function` can depend on `argument` (False is a proof, True is not)."""

    def is_reached(eqn: Any, inputs: list[bool]) -> bool:
        return any(inputs) and not (eqn.primitive.name == "integer_pow" and eqn.params["y"] == 0)

    closed = jax.make_jaxpr(function)(argument)
    return any(_propagate(closed, [True] * len(closed.jaxpr.invars), is_reached, lambda value: False))


def vanishes(function: Callable[..., Any], argument: Any) -> bool:
    """Whether the value of `function` is zero by its very form (True is a proof, False is not)."""

    def is_null(eqn: Any, inputs: list[bool]) -> bool:
        name = eqn.primitive.name
        return (name in MOVES and all(inputs[: 1 if name in PICKS else None])) or (name in PRODUCTS and any(inputs))

    closed = jax.make_jaxpr(function)(argument)
    nothing = [False] * len(closed.jaxpr.invars)
    return all(_propagate(closed, nothing, is_null, lambda value: not np.asarray(value).any()))


def _propagate(closed: Any, given: list[bool], rule: Rule, of_constant: Callable[[Any], bool]) -> list[bool]:
    """Which outputs have a property, by the inputs that have it, a rule for equations, and one for known numbers."""
    from jax.extend.core import ClosedJaxpr, Jaxpr, Literal  # late, for few runs ask and the import takes its time

    jaxpr = closed.jaxpr
    marks = [*map(of_constant, closed.consts), *given]
    marked = {var for var, mark in zip([*jaxpr.constvars, *jaxpr.invars], marks, strict=True) if mark}

    def has(atom: Any) -> bool:
        return of_constant(atom.val) if isinstance(atom, Literal) else atom in marked

    for eqn in jaxpr.eqns:
        inputs = [has(atom) for atom in eqn.invars]
        inner = next((eqn.params[key] for key in ("jaxpr", "call_jaxpr") if key in eqn.params), None)
        inner = ClosedJaxpr(inner, ()) if isinstance(inner, Jaxpr) and not inner.constvars else inner
        outputs = [rule(eqn, inputs)] * len(eqn.outvars)
        if isinstance(inner, ClosedJaxpr) and len(inner.jaxpr.invars) == len(inputs) and eqn.primitive.name != "scan":
            outputs = _propagate(inner, inputs, rule, of_constant)
        marked |= {var for var, mark in zip(eqn.outvars, outputs, strict=True) if mark}
    return [has(atom) for atom in jaxpr.outvars]


Units = tuple[tuple[int, int] | None, ...]


def fibre(system: Any, t: Any, g: Any, xi: Any) -> Units | None:
    """For rows of the constraint a literal unit (its column, its sign), for all states and parameters; else None.

    Rows with units are solved for these velocities: each column of a unit has zeros in the other rows with units.
    """
    leaves, structure = jax.tree.flatten((system, t, g, xi))
    return _fibre(structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


@lru_cache(maxsize=128)
def _fibre(structure: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...]) -> Units | None:
    def rows(*flat: Any) -> Any:
        system, t, g, xi = jax.tree.unflatten(structure, flat)
        return system.rows(t, g)(xi)

    try:
        shapes = (jax.ShapeDtypeStruct(*leaf) for leaf in leaves)  # type: ignore[no-untyped-call]  # JAX has no types
        known = literals(rows, *shapes)
    except LoweringError:  # an operation that only XLA knows
        return None
    units: dict[int, int] = {}
    zeros = known == 0.0
    for i, j in sorted(np.argwhere(np.abs(known) == 1.0).tolist(), key=lambda at: -np.sum(zeros[:, at[1]])):
        if i not in units and all(zeros[k, j] and zeros[i, units[k]] for k in units):
            units[i] = j
    if known.size and not units:
        return None
    return tuple((units[i], int(known[i, units[i]])) if i in units else None for i in range(len(known)))


def literals(function: Callable[..., Any], *args: Any) -> np.ndarray[Any, Any]:
    """The entries of the function's value that are the same numbers for all arguments, NaN where they are not."""
    lowering = Lowering(Builder())
    inputs = [
        pack_values([lowering.builder.source("input", scalar_type(arg.dtype)) for _ in range(arg.size)], arg.shape)
        for arg in jax.tree.leaves(args)
    ]
    (result,) = lowering.lower_closed(jax.make_jaxpr(function)(*args), inputs)
    return map_elements(lambda value: value.data if value.op == "const" else np.nan, result).astype(float)


def solve_positive(matrix: Array, columns: Array) -> tuple[Array, Array]:
    """(matrix^-1 columns, least pivot relative to its diagonal entry) by Gauss's elimination without exchanges.

    An active bound makes some entries 10^14 times as large as others: one scale for all would call these zero.
    """
    n, rows, right = matrix.shape[0], list(matrix), list(columns)
    scale = jnp.maximum(jnp.abs(jnp.diagonal(matrix)), 1e-8 * jnp.max(jnp.abs(matrix)) + 1e-300)
    least = jnp.asarray(jnp.inf)
    for j in range(n):
        least = jnp.minimum(least, rows[j][j] / scale[j])
        for i in range(j + 1, n):
            factor = rows[i][j] / rows[j][j]
            rows[i], right[i] = rows[i] - factor * rows[j], right[i] - factor * right[j]
    for j in reversed(range(n)):
        for i in range(j + 1, n):
            right[j] = right[j] - rows[j][i] * right[i]
        right[j] = right[j] / rows[j][j]
    return jnp.stack(right), least


def solve_semidefinite(matrix: Array, columns: Array) -> Array:
    """matrix^-1 columns, zero on directions that are null: elimination with the largest pivot on the diagonal next."""
    q = matrix.shape[0]
    if not q:
        return columns
    least, earlier = 1e-13 * jnp.max(jnp.abs(matrix)), np.tril(np.ones((q, q)), -1)

    def eliminate(_: Any, state: Any) -> Any:
        rows, done = state
        open_ = jnp.where(done > 0, -1.0, jnp.diagonal(rows))
        top = jnp.max(open_)
        hit = jnp.where(open_ == top, 1.0, 0.0)
        chosen = jnp.where((hit > 0) & (earlier @ hit == 0) & (top > least), 1.0, 0.0)
        factor = (rows[:, :q] @ chosen - chosen) / jnp.where(top > least, top, 1.0)
        return jnp.where(top > least, rows - jnp.outer(factor, chosen @ rows), rows), done + chosen

    begin = (jnp.concatenate([matrix, columns], axis=1), jnp.zeros(q))
    rows, done = jax.lax.fori_loop(0, q, eliminate, begin)
    return jnp.where(done[:, None] > 0, rows[:, q:], 0.0)


class ReducedMetric(NamedTuple):
    """M and A on the velocities x that are left where `units` are solved for the others: x_bound = fixed - K x."""

    free: Numbers
    bound: Numbers
    solved: Numbers  # the rows with units, and those without
    others: Numbers
    signs: Array
    K: Array
    mixed: Array
    metric: Array  # B^T M B, B = (1, -K)
    rows: Array  # of those without units


def reduce_by_units(units: Units, metric: Array, rows: Array) -> ReducedMetric:
    """M and A where `units` are literal units in rows of A (see `fibre`)."""
    solved = np.array([i for i, unit in enumerate(units) if unit is not None], int)
    others = np.setdiff1d(np.arange(len(units)), solved)
    bound = np.array([unit[0] for unit in units if unit is not None], int)
    signs = jnp.array([unit[1] for unit in units if unit is not None], float)
    free = np.setdiff1d(np.arange(len(metric)), bound)
    K = signs[:, None] * rows[solved][:, free]
    mixed = metric[free][:, bound] - K.T @ metric[bound][:, bound]
    reduced = metric[free][:, free] - K.T @ metric[bound][:, free] - mixed @ K
    symmetric = jnp.triu(reduced) + jnp.triu(reduced, 1).T
    left = rows[others][:, free] - rows[others][:, bound] @ K
    return ReducedMetric(free, bound, solved, others, signs, K, mixed, symmetric, left)


def solve_reduced(units: Units, metric: Array, rows: Array, top: Array, bottom: Array) -> tuple[Array, Array]:
    """(x, l) with M x + A^T l = top and A x = bottom, where `units` are literal units in rows of A (see `fibre`).

    Rows without one are left: they constrain the velocities that are left.
    """
    free, bound, solved, others, signs, K, mixed, symmetric, left = reduce_by_units(units, metric, rows)
    fixed = signs * bottom[solved]
    given = top[free] - K.T @ top[bound] - mixed @ fixed
    if len(others):
        x, forces = solve_saddle(symmetric, left, given, bottom[others] - rows[others][:, bound] @ fixed)
    else:
        x, forces = _solve_by(direction, symmetric, given), jnp.zeros(0)
    full = jnp.zeros_like(top).at[free].set(x).at[bound].set(fixed - K @ x)
    balance = top - metric @ full - rows[others].T @ forces
    return full, jnp.zeros_like(bottom).at[others].set(forces).at[solved].set(signs * balance[bound])
