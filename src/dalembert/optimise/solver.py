"""A solver for discrete problems of optimal control: an interior point method whose linear algebra is a Riccati sweep.

    minimise   sum of l(x_k, u_k) over k < N, plus Phi(x_N)
    such that  x_{k+1} = f(x_k, u_k), c(x_k, u_k) >= 0, psi(x_N) = 0 and c_N(x_N) >= 0.

x_k is a point of a manifold: increments d are coordinates of a chart at x_k, and all derivatives are taken there. The
nodes x_k are unknowns too (multiple shooting: Bock and Plitt 1984). An iteration is Newton's step on the conditions of
first order, with the exact second derivatives of the Lagrangian. Its linear equations have the value function
V(d, nu) = d.P d/2 + p.d + nu.L^T d + s.nu - nu.S nu/2, nu the multipliers of psi, that a recursion finds from the end
to the start, so that the cost is linear in N (Rao, Wright and Rawlings 1998). Inequalities have slacks and a
logarithmic barrier (Waechter and Biegler 2006).

Everything happens in native loops on numbers that stay where they are (`Shelf`): `Stages` evaluates all stages side by
side, `add_up` sums over them, `decide` accepts a step or shortens it, `sweep_back` and `choose` find the feedback and
its start, `sweep_forward` and `finish_step` the next step. Python only calls them in turn. Several problems of
one kind are solved side by side, as lanes, and with CuPy on a GPU; each lane keeps its own state of the search.

A problem is hashable. It has `dim`, of the manifold, `controls`, the numbers in u, and pure functions of JAX:

    move(consts, x, d)          the point with the coordinates d in the chart at x
    apart(consts, x, other)     the coordinates of the other point in that chart: the inverse of `move`
    advance(consts, x, u)       f
    judge(consts, x, after, u)  (l, c) of a step from x to `after`
    end(consts, x, target)      (Phi, c_N, psi)
    inner(consts)               the problem and its constants without what only its end needs: goals share the stages
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..kernels import (
    CHUNK_SECONDS,
    ROUND,
    Jump,
    LoweringError,
    PlacedLoop,
    Routine,
    Shelf,
    Spread,
    StaleEntry,
    best_width,
    count_operations,
    count_processors,
    map_rows,
    part_of,
    shapes_of,
    simplify,
)  # fmt: skip
from ..numerics import solve_positive, solve_semidefinite
from ..numerics.types import Array

Numbers = np.ndarray[Any, Any]

FRACTION = 0.995  # of the way to the boundary that a step may go
MAX_SHIFT = 1e9  # of the Hessian, relative to its largest entry
MAX_WEIGHT = 1e6  # on psi = 0, likewise: a minimum on psi = 0 is then one of the sum
MAX_HALVINGS = 25
NOTHING, LEAST_SLACK = 1e-300, 1e-9  # a dual that does not act; slacks of an iterate that somebody else found
MULTIPLIER, TRIFLE = 10.0, 1e-8  # the largest at first; one so small beside the Hessian is round-off
SOFTNESS = 1e-11  # of constraints
HOPELESS = 1e14  # what is not met, by its multipliers, relative to the cost: these grow where nothing is feasible
MAX_STIFFNESS = 1e9  # of a barrier in the test of second order, times the cost of controls: more would drown this
MAX_WRITTEN, MAX_EXACT = 8_000, 580_000  # operations of a step, roughly: its second derivatives in a loop, or none
FARTHER = 10.0  # times what was not met lately: a step that the filter takes may miss so much
LOCAL = 1e-4  # residual of first order below which a step is taken that lowers it
MEMORY = 4  # merits that an accepted step may fall back to: steps along a curved constraint first raise the merit
LEAST_LANES, SIDE_BY_SIDE = 16, 64  # problems that a thread of a processor solves at once
MOST_STAGES = 4000  # of all of these, where it can be: more would share their loops between threads
MORE_LANES = 8  # up to so many problems at once are compiled without effort at first
KNOWN_BARRIER, BROKEN = 1e-4, 1e-2  # where multipliers are known, unless a constraint is broken by more
WORTH = 5e-5  # seconds of work for each operation of a program that make its compilation with all effort worth it
MAX_MACHINES, MAX_KEPT_BYTES = 16, 1 << 26  # that wait for the next problem of their kind
ACTIVE, OPTIMAL, TOO_LONG, STALLED, INTERRUPTED = range(5)
STATUS = ("", "optimal", "too many iterations", "stalled", "interrupted")


# -- values and derivatives --------------------------------------------------------------------------------------------
class Iterate(NamedTuple):
    """The unknowns of a stage, or their steps: point, control, multiplier of the gap behind it, slacks and duals."""

    x: Any
    u: Any
    costate: Any
    slack: Any
    dual: Any


class Derived(NamedTuple):
    """Values and derivatives in z = (d, u): of the gap f(x_k, u_k) - x_{k+1} (at the end: psi), cost, constraints.

    `hessian` is that of the Lagrangian, `plain` the one without the second derivatives of the equations; both with the
    condensed barrier. `lagrange` is the slope of the Lagrangian.
    """

    gap: Any
    AB: Any
    slope: Any
    J: Any
    held: Any
    hessian: Any
    plain: Any
    lagrange: Any
    sums: Any  # cost, sum of log(slack), sum of what is not met, sum of all multipliers
    most: Any  # the largest of: slope, what is not met, s y, |s y - barrier|, Hessian without the barrier


@dataclass(frozen=True)
class Stages:
    """Evaluate a stage at its point moved along the step, as far as the search goes.

    If not `exact`, the second derivatives of the step are left out (Gauss and Newton): large steps have no others.
    """

    problem: Any
    exact: bool = True

    def __call__(self, consts: Any, _: Any, row: Any) -> tuple[Iterate, Derived]:
        of, (old, step, lengths, inner, (x1, dx1), (before, dbefore)) = self.problem, row
        (primal, dual, barrier, factor), n, size = lengths, of.dim, of.dim + of.controls
        here, next_ = of.move(consts, old.x, _part(primal, step.x)), of.move(consts, x1, _part(primal, dx1))
        along = zip((primal, primal, primal, dual), old[1:], step[1:], strict=True)
        new, zero = Iterate(here, *(a + _part(length, b) for length, a, b in along)), jnp.zeros(size)

        def advance(d: Array) -> Any:
            return of.advance(consts, of.move(consts, here, d[:n]), new.u + d[n:])

        written, shape = jax.make_jaxpr(advance, return_shape=True)(zero)  # traced once for all uses
        count = count_operations(written)
        if self.exact and count > MAX_EXACT:
            raise LoweringError("the step is too long for its second derivatives")
        simple, tree = simplify(written), jax.tree.structure(shape)

        def after(d: Array) -> Any:
            return jax.tree.unflatten(tree, jax.core.eval_jaxpr(simple.jaxpr, simple.consts, d))

        there, push = (after(zero), None) if self.exact else jax.linearize(after, zero)

        def judged(both: Array) -> tuple[Array, Array, Array]:
            d, end = both[:size], of.move(consts, there, both[size:])
            judged = of.judge(consts, of.move(consts, here, d[:n]), end, new.u + d[n:])
            return *judged, of.apart(consts, next_, end)

        def moved(price: Array) -> Any:
            """The derivative of the step in the chart at its end, and the second one of price . step."""
            chart = partial(of.apart, consts, there)
            if push is not None:  # column by column: a loop, where the program is long
                slope = map_rows(lambda way: jax.jvp(chart, (there,), (push(way),))[1], jnp.eye(size))
                return slope.T, 0.0
            return _bend(lambda d: chart(after(d)), zero, (price,), count > MAX_WRITTEN)[1:]

        behind = jnp.where(inner > 0, before + _part(primal, dbefore), 0.0)
        mask = jnp.concatenate([jnp.where(inner > 0, jnp.ones(n), 0.0), jnp.ones(of.controls)])
        return new, _derive(judged, moved, *new[2:], barrier, factor, size, self.exact, behind, mask)


def _part(length: Any, step: Any) -> Any:
    """A part of a step; nothing of a step that is not finite."""
    return jnp.where(length == 0, 0.0, length * step)


def _where(take: Any, new: Any, old: Any) -> Any:
    """The new numbers of a tree where a step is taken, else the old ones."""
    return jax.tree.map(lambda a, b: jnp.where(take, a, b), new, old)


def _bend(function: Callable[[Array], Array], at: Array, prices: tuple[Array, ...], in_turn: bool = False) -> Any:
    """(f, Df, D^2(price . f) for every price) at a point, from one pass of derivatives; in a loop if `in_turn`."""

    def pulled(point: Array) -> tuple[Any, Any]:
        value, pull = jax.vjp(function, point)
        return (value, [pull(price)[0] for price in prices]), value

    if in_turn:
        (value, _), push = jax.linearize(lambda point: pulled(point)[0], at)
        slope, seconds = jax.tree.map(jnp.transpose, map_rows(push, jnp.eye(at.shape[0])))
    else:
        (slope, seconds), value = jax.jacfwd(pulled, has_aux=True)(at)
    return value, slope, *seconds


def _derive(
    judged: Callable[[Array], tuple[Array, Array, Array]], moved: Callable[[Array], tuple[Any, Any]] | None,
    multiplier: Array, slack: Array, dual: Array, barrier: Array, factor: Array, size: int, exact: bool, behind: Array,
    mask: Array,
) -> Derived:  # fmt: skip
    """Derivatives at d = 0 of (cost, constraints, equations) = judged((d, e)) with e = e(d); at the end there is no e.

    The cost counts `factor` times. The step is linearised once, and the chain rule does the rest: with T = (1, De) the
    Hessian is T^T D^2 T, and the second derivatives of e are added with its prices, both from `moved`. Newton's step in
    slack and dual is eliminated.
    """
    held_, along, turned = 1 + slack.shape[0], jnp.eye(size), 0.0
    costs = jnp.concatenate([factor[None], -dual, jnp.zeros_like(multiplier)])
    gaps = jnp.concatenate([jnp.zeros(held_), multiplier])

    def stacked(both: Array) -> Array:
        cost, held, gap = judged(both)
        return jnp.concatenate([cost[None], held, gap])

    at = jnp.zeros(size if moved is None else size + multiplier.shape[0])
    value, wide, curved, *bent = _bend(stacked, at, (costs, gaps) if exact else (costs,))
    cost, held, gap = factor * value[0], value[1:held_], value[held_:]
    if moved is not None:
        pushed, turned = moved((costs + gaps) @ wide[:, size:])
        along = jnp.concatenate([along, pushed])
    slopes = wide @ along
    slope, J, AB = factor * slopes[0], slopes[1:held_], slopes[held_:]
    walls, plain = (J.T * _stiffness(slack, dual)) @ J, along.T @ curved @ along
    hessian = plain + along.T @ bent[0] @ along + turned if exact else plain
    lagrange = slope + multiplier @ AB - dual @ J
    unmet, product = jnp.concatenate([gap, held - slack, jnp.zeros(1)]), jnp.concatenate([slack * dual, barrier[None]])
    off = lagrange.at[: behind.shape[0]].add(-behind)
    sums = (cost, jnp.sum(jnp.log(slack)), jnp.sum(jnp.abs(unmet)), jnp.sum(jnp.abs(multiplier)) + jnp.sum(dual))
    most = (
        jnp.max(jnp.abs(mask * off)), jnp.max(jnp.abs(unmet)), jnp.max(product[:-1], initial=0.0),
        jnp.max(jnp.abs(product - barrier)), jnp.max(jnp.abs(hessian)),
    )  # fmt: skip
    return Derived(gap, AB, slope, J, held, hessian + walls, plain + walls, lagrange, jnp.stack(sums), jnp.stack(most))


def _derive_end(
    of: Any, consts: Any, x: Any, target: Any, end: End, barrier: Array, factor: Array, exact: bool, behind: Array
) -> Derived:
    """The derivatives of the end at a point, with its multipliers, slacks and duals."""
    judged = lambda d: of.end(consts, of.move(consts, x, d), target)
    return _derive(judged, None, *end, barrier, factor, of.dim, exact, behind, jnp.ones(of.dim))


# -- what a lane keeps -------------------------------------------------------------------------------------------------
class Totals(NamedTuple):
    """`Derived.sums` and `most` of all stages so far, and the slope of the first one."""

    sums: Any
    most: Any
    first: Any


class ValueFunction(NamedTuple):
    """The value function V_k with the feedback of its stage, u = K d + k + M nu, and the least pivot so far."""

    P: Any
    p: Any
    L: Any
    S: Any
    s: Any
    K: Any
    k: Any
    M: Any
    pivot: Any


class Motion(NamedTuple):
    """An increment of a node with the multipliers of the goal, and what the search has to know.

    That is: the slope of cost and barrier, the longest step of the slacks and of the duals, the largest multiplier.
    """

    d: Any
    nu: Any
    known: Any
    record: Any  # (iterate, its step, the step of the costate before it)


class End(NamedTuple):
    """The unknowns of the end, or their steps."""

    nu: Any
    slack: Any
    dual: Any


class Multipliers(NamedTuple):
    """Those of the steps (B, N, dim), of what these hold (B, N, rows), of psi, and of what holds at the end."""

    costate: Numbers
    dual: Numbers
    nu: Numbers
    last: Numbers


class Lane(NamedTuple):
    """All that a problem keeps beside its stages: the numbers of its end, and how its search stands."""

    totals: Totals
    value: ValueFunction
    motion: Motion
    x: Any  # the last point
    target: Any
    end: End
    step: End
    made: Derived  # of the end
    merits: Any  # (MEMORY, 2): cost and barrier, and what is not met, of the last iterates
    lengths: Any  # of the step in points and in duals; the barrier; how many times the cost counts
    primal: Any  # the longest step
    barrier: Any
    penalty: Any
    weight: Any  # on psi, relative
    soft: Any  # how much of psi a step may miss
    shift: Any  # of the Hessian, in the last step and in this one
    used: Any
    is_plain: Any
    reference: Any  # the merit that the search may fall back to, its slope along the step, and its noise
    halvings: Any
    iterations: Any
    residual: Any  # of first order, after the last step that was taken
    status: Any
    fresh: Any  # nothing was evaluated before
    take: Any  # the step was accepted, or given up
    bad: Any  # the model has no minimum
    retry: Any  # another model is to be tried
    scores: Any  # error, gap, cost, scale


ERROR, GAP, COST, SCALE = range(4)
SCALARS = [name for name in Lane._fields[Lane._fields.index("primal") : -1] if name != "reference"]


def add_up(consts: Any, before: Totals, row: Any) -> Totals:
    """The totals with one more stage."""
    sums, most, first = row
    return Totals(before.sums + sums, jnp.maximum(before.most, most), first)


@dataclass(frozen=True)
class Decide:
    """Evaluate the end, judge the step, and begin the next one or a shorter one.

    The constants are those of the problem, tolerance, most iterations, least barrier, number of multipliers, and the
    directions in which the start is free. If not `exact`, the second derivatives of the goal are left out.
    """

    problem: Any
    exact: bool = True

    def __call__(self, constants: Any, lane: Lane, row: Any) -> Lane:
        of, (consts, tolerance, longest, least, count, free), (x, dx, behind) = self.problem, constants, row
        (primal, dual, at, factor), n, unit = lane.lengths, of.dim, _unit(lane.penalty)
        here = of.move(consts, x, _part(primal, dx))
        end = End(
            lane.end.nu + _part(primal, lane.step.nu), lane.end.slack + _part(primal, lane.step.slack),
            lane.end.dual + _part(dual, lane.step.dual),
        )  # fmt: skip

        made = _derive_end(of, consts, here, lane.target, end, at, factor, self.exact, behind)
        sums, most = lane.totals.sums + made.sums, jnp.maximum(lane.totals.most, made.most)
        slope = most[0]
        if free.shape[1]:
            slope = jnp.maximum(slope, jnp.max(jnp.abs(lane.totals.first[:n] @ free)))
        size = jnp.maximum(jnp.maximum(unit, sums[3] / count / 100.0), TRIFLE * (most[4] + slope))
        rest = jnp.maximum(slope / size, most[1])
        error, held = jnp.maximum(rest, most[2] / size), jnp.maximum(rest, most[3] / size)
        known = jnp.isfinite(error + most[4] + sums[0])
        error, held, scale = jnp.where(known, error, jnp.inf), jnp.where(known, held, jnp.inf), most[4] + most[0]
        scale = jnp.where(scale > 0, scale, 1.0)  # where nothing costs anything

        # the step of the last search
        active, fresh = lane.status == ACTIVE, lane.fresh > 0
        reference, descent, noise = lane.reference
        merit = sums[0] - at * sums[1] + lane.penalty * sums[2]
        good = merit <= reference + 1e-4 * primal * descent + noise
        worth = jnp.stack([sums[0] - at * sums[1], sums[2]])
        better = worth <= lane.merits - 1e-5 * lane.merits[:, 1:]  # a filter: cheaper or nearer than each of the last
        near = sums[2] <= FARTHER * (1e-3 + jnp.max(lane.merits[:, 1]))  # a filter alone would let it run away
        closer = (lane.residual <= LOCAL) & (error <= 0.9 * lane.residual)  # the merit would cut curved steps
        good = known & jnp.isfinite(merit) & (good | closer | (near & jnp.all(better[:, 0] | better[:, 1])))
        stuck = lane.halvings >= MAX_HALVINGS
        take = active & (fresh | good | stuck)
        again = active & ~take
        halvings = jnp.where(again, lane.halvings + 1.0, 0.0)
        shorter = jnp.where(again & (halvings < MAX_HALVINGS), jnp.stack([0.5 * primal, dual]), 0.0)
        gone = jnp.where(stuck, 0.0, primal / jnp.maximum(lane.primal, 1e-300))
        step = take & ~fresh
        hopeless = step & (lane.penalty * sums[2] > HOPELESS * (unit + jnp.abs(sums[0])))
        stalled = (stuck & step & ((lane.bad > 0) | (lane.shift > 1e6 * scale))) | (fresh & ~known) | hopeless
        shift = jnp.where(stuck & step, jnp.maximum(100.0 * lane.shift, 1e-2 * scale), lane.shift)
        harder = jnp.where(gone < 1, 1.0, 0.01) * lane.soft
        softer = jnp.clip(100.0 * lane.soft, 1e-6, 1e2)
        soft = jnp.where(gone < 0.1, softer, jnp.where(harder < 1e-9, 0.0, harder))
        iterations = lane.iterations + jnp.where(step, 1.0, 0.0)

        # the next one
        barrier = lane.barrier
        for _ in range(9):
            lower = jnp.maximum(least, jnp.minimum(0.2 * barrier, barrier**1.5))
            barrier = jnp.where(take & (held <= 10.0 * barrier), lower, barrier)
        done = (error <= tolerance) & (barrier <= 1.01 * least)
        words = jnp.where(stalled, float(STALLED), jnp.where(iterations >= longest, float(TOO_LONG), float(ACTIVE)))
        status = jnp.where(take, jnp.where(done, float(OPTIMAL), words), lane.status)
        newest = jnp.stack([sums[0] - barrier * sums[1], sums[2]])
        merits = jnp.concatenate([jnp.where(fresh, newest, lane.merits[1:]), newest[None]])
        used = jnp.where(shift > 1e-9 * scale, shift / 8.0, 0.0)
        new = lane._replace(
            x=_where(take, here, x), end=_where(take, end, lane.end), made=made, barrier=barrier,
            merits=jnp.where(take, merits, lane.merits),
            lengths=jnp.concatenate([shorter, jnp.stack([jnp.where(take, barrier, at), factor])]),
            soft=jnp.where(step, soft, lane.soft), shift=jnp.where(take, shift, lane.shift),
            used=jnp.where(take, used, lane.used), is_plain=jnp.where(take, 0.0, lane.is_plain), halvings=halvings,
            iterations=iterations, residual=jnp.where(take, error, lane.residual), status=status,
            fresh=0.0 * lane.fresh, take=jnp.where(take, 1.0, 0.0), bad=jnp.where(take, 0.0, lane.bad),
            scores=jnp.stack([error, most[1], sums[0], scale]),
        )  # fmt: skip
        return new._replace(value=_end_value(new), totals=jax.tree.map(jnp.zeros_like, lane.totals))


def _unit(penalty: Array) -> Any:
    """A small number to compare costs with, known by the multipliers so far: costs may have any unit."""
    return jnp.clip(penalty, 1e-300, 1.0)


def _end_value(lane: Lane) -> ValueFunction:
    """V_N, with `used` on the diagonal of the Hessian and the weight on psi = 0."""
    made, weight, C = lane.made, lane.weight * lane.scores[SCALE], lane.made.AB
    hessian = jnp.where(lane.is_plain > 0, made.plain, made.hessian)
    P = hessian + lane.used * jnp.eye(hessian.shape[0]) + weight * C.T @ C
    p = _condense(made, *lane.end[1:], lane.barrier) + weight * C.T @ made.gap
    zeros = jax.tree.map(jnp.zeros_like, lane.value)
    return zeros._replace(P=P, p=p, L=C.T, s=made.gap, pivot=jnp.asarray(jnp.inf))  # type: ignore[no-any-return]


def _condense(made: Derived, slack: Any, dual: Any, barrier: Any) -> Any:
    """The slope of the cost with that of the barrier, when the steps of slack and dual are eliminated."""
    return made.slope - (dual + _stiffness(slack, dual) * (barrier / dual - made.held)) @ made.J


# -- the linear equations ----------------------------------------------------------------------------------------------
def sweep_back(consts: Any, after: ValueFunction, row: Any) -> ValueFunction:
    """V_k from V_{k+1}: the stage's quadratic model plus V_{k+1} along the linearised step, least in u."""
    made, (slack, dual), (used, is_plain, barrier) = row
    n, AB, gap = after.p.shape[0], made.AB, made.gap
    gradient = _condense(made, slack, dual, barrier)
    model = jnp.where(is_plain > 0, made.plain, made.hessian)
    whole = model + AB.T @ (after.P @ AB) + used * jnp.eye(model.shape[0])
    linear = gradient + AB.T @ (after.p + after.P @ gap)
    across = AB.T @ after.L
    columns = jnp.concatenate([whole[n:, :n], linear[n:, None], across[n:]], axis=1)
    solved, pivot = solve_positive(whole[n:, n:], -columns)
    K, k, M = solved[:, :n], solved[:, n], solved[:, n + 1 :]
    P = whole[:n, :n] + whole[:n, n:] @ K
    return ValueFunction(
        0.5 * (P + P.T), linear[:n] + whole[:n, n:] @ k, across[:n] + whole[:n, n:] @ M,
        after.S - across[n:].T @ M, after.s + after.L.T @ gap + across[n:].T @ k, K, k, M,
        jnp.minimum(after.pivot, pivot),
    )  # fmt: skip


def choose(constants: Any, lane: Lane, _: Any) -> Lane:
    """The free parts of the start and the multipliers of the goal where V_0 is least, if it has a minimum.

    Where the model has none on psi = 0, the weight on psi grows. If that does not help, the second derivatives of the
    equations are left out (Gauss and Newton), and at last the Hessian is shifted. `soft` lets a step miss the goal
    where reaching it would take one that is too long: nu stays near its last.
    """
    value, free, scale = lane.value, constants, lane.scores[SCALE]
    q, f = value.s.shape[0], free.shape[1]
    d, good = jnp.zeros(value.p.shape[0]), (value.pivot > 1e-12) & jnp.isfinite(value.pivot)
    missed = lane.soft * jnp.max(jnp.abs(value.S), initial=0.0)
    across = value.L.T @ free
    right = jnp.concatenate([(value.s + missed * lane.end.nu)[:, None], across], axis=1)
    solved = solve_semidefinite(value.S + missed * jnp.eye(q), right)
    nu = solved[:, 0]
    if f:
        reduced = free.T @ value.P @ free + across.T @ solved[:, 1:]
        y, pivot = solve_positive(reduced, -(free.T @ value.p + across.T @ nu)[:, None])
        d, nu, good = free @ y[:, 0], nu + solved[:, 1:] @ y[:, 0], good & (pivot > 1e-14)
    bad = ~good & (lane.used < MAX_SHIFT * scale) & (lane.status == ACTIVE) & (lane.take > 0)
    light = bad & (lane.weight < MAX_WEIGHT)
    heavy = bad & ~light
    raised = jnp.maximum(8.0 * lane.used, 1e-6 * scale)
    known = jnp.array([0.0, 1.0, 1.0, 0.0])
    new = lane._replace(
        weight=jnp.where(light, 1e3 * lane.weight, lane.weight), 
        bad=jnp.where((lane.take > 0) & good, 0.0, jnp.where(lane.take > 0, 1.0, lane.bad)),
        used=jnp.where(heavy & (lane.is_plain > 0), raised, lane.used), is_plain=jnp.where(heavy, 1.0, lane.is_plain),
        motion=Motion(d, nu, known, jax.tree.map(jnp.zeros_like, lane.motion.record)),
    )  # fmt: skip
    return new._replace(value=_end_value(new), retry=jnp.where(bad, 1.0, 0.0))  # all lanes are swept again


def sweep_forward(consts: Any, before: Motion, row: Any) -> Motion:
    """d_{k+1} = A d + B u + gap with u = K d + k + M nu, costates from V; the last iterate is taken over."""
    old, step, (new, made), P, p, L, K, k, M, behind, (barrier, take) = row
    d, nu, (slack, dual) = before.d, before.nu, (new.slack, new.dual)
    u = K @ d + k + M @ nu
    z = jnp.concatenate([d, u])
    costate = P @ d + p + L @ nu
    ds, dy = _slack_steps(made.J @ z, made.held, slack, dual, barrier)
    total, primal, duals, largest = before.known
    known = jnp.stack([
        total + made.slope @ z - barrier * jnp.sum(ds / slack), jnp.minimum(primal, _room(slack, ds)),
        jnp.minimum(duals, _room(dual, dy)),
        jnp.maximum(largest, jnp.max(jnp.abs(jnp.concatenate([costate, dual + dy])))),
    ])  # fmt: skip
    found = (new, Iterate(d, u, step.costate, ds, dy), costate - behind[0])
    return Motion(made.AB @ z + made.gap, nu, known, _where(take > 0, found, (old, step, behind[1])))


def _slack_steps(change: Any, held: Any, slack: Any, dual: Any, barrier: Any) -> tuple[Any, Any]:
    """Newton's steps of slack and dual where the constraints change by `change`."""
    dy = _stiffness(slack, dual) * (barrier / dual - held - change)
    return change + held - slack + SOFTNESS * dy, dy


def _stiffness(slack: Any, dual: Any) -> Any:
    """What a constraint adds to the Hessian. Without a limit, a strong one would drown the curvature along itself.

    The limit is that of Newton's step for constraints that give way to a change of their duals (Friedlander and Orban
    2012): it does not move the answer.
    """
    return dual / (slack + SOFTNESS * dual)


def _room(value: Array, change: Array) -> Array:
    """How far a step may go, at most 1, so that positive numbers keep a part of themselves."""
    limit = jnp.where(change < 0, -FRACTION * value / jnp.where(change < 0, change, -1.0), jnp.inf)
    return jnp.min(limit, initial=1.0)


def finish_step(consts: Any, lane: Lane, row: Any) -> Lane:
    """The step of the end, and where its search begins: with the longest step."""
    made, end, there, (total, primal, duals, largest) = lane.made, lane.end, lane.motion.d, lane.motion.known
    nu = lane.motion.nu + lane.weight * lane.scores[SCALE] * (made.gap + made.AB @ there)
    ds, dy = _slack_steps(made.J @ there, made.held, end.slack, end.dual, lane.barrier)
    total = total + made.slope @ there - lane.barrier * jnp.sum(ds / end.slack)
    primal, duals = jnp.minimum(primal, _room(end.slack, ds)), jnp.minimum(duals, _room(end.dual, dy))
    hessian = jnp.where(lane.is_plain > 0, made.plain, made.hessian)
    final = hessian @ there + lane.used * there + _condense(made, *end[1:], lane.barrier) + made.AB.T @ nu
    largest = jnp.maximum(largest, jnp.max(jnp.abs(jnp.concatenate([end.dual + dy, nu, final]))))
    penalty = jnp.maximum(largest, 0.5 * (lane.penalty + largest))
    merits = lane.merits[:, 0] + penalty * lane.merits[:, 1]
    unmet = lane.merits[-1, 1]
    descent = jnp.minimum(total - penalty * unmet, 0.0)
    reference = jnp.stack([jnp.max(merits), descent, 1e-13 * (_unit(penalty) + jnp.abs(merits[-1]))])
    active, take = lane.status == ACTIVE, lane.take > 0
    longest = jnp.where(active, jnp.stack([primal, duals]), 0.0)
    lengths = jnp.concatenate([longest, lane.barrier[None], lane.lengths[3:]])
    costate, last, dx = row
    d, behind = _where(take, (there, final - costate), (dx, last))
    found = {
        "step": End(nu - end.nu, ds, dy), "lengths": lengths, "primal": primal, "penalty": penalty,
        "reference": reference, "shift": lane.used,
    }  # fmt: skip
    found = _where(take, found, {name: getattr(lane, name) for name in found})
    return lane._replace(**found, motion=lane.motion._replace(d=d, record=(*lane.motion.record[:2], behind)))


# -- the solver --------------------------------------------------------------------------------------------------------
OLD, STEP, NEW = "x u costate slack dual", "dx du dcostate dslack ddual", "new_x new_u new_costate new_slack new_dual"
FEEDBACK = "P p L K k M"
_nothing = lambda consts, carry: ()  # what the loops record
_feedback: Any = lambda consts, value: tuple(getattr(value, name) for name in FEEDBACK.split())
_recorded = lambda consts, motion: motion.record
_at_the_end = lambda consts, lane: (lane.x, lane.motion.d, lane.motion.record[2])


@dataclass(frozen=True)
class Options:
    """When to stop; `least` is the smallest barrier. If `scaled`, the unit of the cost does not matter."""

    tolerance: float = 1e-8
    max_iterations: int = 300
    barrier: float = 0.1
    least: float | None = None
    scaled: bool = True

    @property
    def feasible(self) -> float:
        """What is missed by less is met."""
        return math.sqrt(self.tolerance)


class Machine:
    """The loops that solve some problems of one kind side by side, on numbers that stay where they are."""

    def __init__(self, problem: Any, kind: Kind, exact: bool = True):
        self.problem, self.kind = problem, kind
        (consts, x, u, target, free), N = kind.shapes(), kind.steps
        n, m, (c, e, q) = problem.dim, problem.controls, count_rows(problem, consts, x, u, target)
        vector, one = _shape(n), _shape()
        old, step = Iterate(x, u, vector, _shape(c), _shape(c)), Iterate(vector, u, vector, _shape(c), _shape(c))
        made, of_end = _derived_shapes(n, n + m, c), _derived_shapes(q, n, e)
        value = ValueFunction(
            _shape(n, n), vector, _shape(n, q), _shape(q, q), _shape(q), _shape(m, n), u, _shape(m, q), one
        )  # fmt: skip
        motion, end = Motion(vector, _shape(q), _shape(4), (old, step, vector)), End(_shape(q), _shape(e), _shape(e))
        lane = Lane(
            Totals(_shape(4), _shape(5), _shape(n + m)), value, motion, x, target, end, end, of_end,
            merits=_shape(MEMORY, 2), lengths=_shape(4), reference=_shape(3), scores=_shape(4),
            **dict.fromkeys(SCALARS, one),
        )  # fmt: skip
        trees = dict(zip(f"{OLD} {STEP} {NEW}".split(), (*old, *step, *old), strict=True)) | made._asdict()
        trees |= {name: getattr(value, name) for name in FEEDBACK.split()} | {"lengths": _shape(4), "inner": one}
        xp, wide = kind.arrays, kind.wide
        s = self.stages = Shelf(trees, N + 1, wide, xp)
        own = self.lane = Shelf(lane._asdict(), 1, wide, xp)
        s.leaves("inner")[0][1:] = 1.0
        self.multipliers, self.exact = max(1.0, float(N * (n + c) + q)), exact
        self.numbers = {name: own.leaves(name)[0][0] for name in SCALARS}
        self.lengths = s.leaves("lengths")[0], own.leaves("lengths")[0]

        def find(names: str, row: int = 0, **options: Any) -> list[Any]:
            return [place for name in names.split() for place in s.find(name, row, **options)]

        def fixed(names: str) -> list[Any]:
            return [place for name in names.split() for place in own.find(name, fixed=True)]

        pool = ThreadPoolExecutor(2)  # LLVM compiles there, while JAX traces the next loop here
        quick = kind.lanes <= MORE_LANES and kind.backend != "cuda"

        def loop(function: Any, observe: Any, consts: Any, name: str, carry: Any, rows: Any, places: Any,
                 records: Any = (), steps: int = 1) -> Any:  # fmt: skip
            made = PlacedLoop(function, observe, consts, carry, rows, wide, kind.backend, steps == 1, pool, quick)
            return made.bind(own.place(name), own.width, places, records, steps, 1 if records else steps)

        with pool:  # the sweeps first, whose code is compiled while the stages are traced, which takes longest
            found, rows = " ".join(Derived._fields), cast(Any, (made, (old.slack, old.dual), (one,) * 3))
            places = find(f"{found} new_slack new_dual", N - 1, turned=True) + fixed("used is_plain barrier")
            records = find(FEEDBACK, N - 1, turned=True)
            self.back = loop(sweep_back, _feedback, (), "value", value, rows, places, records, N)
            rows = (old, step, (old, made), *_feedback((), value), (vector,) * 2, (one,) * 2)
            places = find(f"{OLD} {STEP} {NEW} {found} {FEEDBACK}") + find("new_costate dcostate", -1)
            places, records = places + fixed("barrier take"), find(f"{OLD} {STEP}") + find("dcostate", -1)
            self.forward = loop(sweep_forward, _recorded, (), "motion", motion, rows, places, records, N)
            rows = (old, step, _shape(4), one, (x, vector), (vector, vector))
            places = find(f"{OLD} {STEP} lengths inner") + find("x dx", 1) + find("costate dcostate", -1)
            inner, known = problem.inner(consts)
            all_ = PlacedLoop(
                Stages(inner, exact), _nothing, known, (old, made), rows, N * wide, kind.backend, False, pool, quick
            )
            self.evaluate = all_.bind(s.place("new_x"), s.width, places, (), 1, 1)
            constants, places = (consts, one, one, one, one, free), find("x dx", N) + find("new_costate", N - 1)
            self.decide = loop(Decide(problem, exact), _nothing, constants, "totals", lane, (x, vector, vector), places)
            rows, places = (made.sums, made.most, made.lagrange), find("sums most") + find("lagrange", fixed=True)
            self.add_up = loop(add_up, _nothing, (), "totals", lane.totals, rows, places, steps=N)
            self.choose = loop(choose, _nothing, free, "totals", lane, (), ())
            places, records = find("costate dcostate", N - 1) + find("dx", N), find("x dx", N) + find("dcostate", N - 1)
            self.finish = loop(finish_step, _at_the_end, (), "totals", lane, (vector,) * 3, places, records)
        flags = {name: self.numbers[name][: kind.lanes] for name in ("take", "retry", "status")}
        score = [Spread(*self.lengths), self.evaluate, self.add_up, self.decide]
        advance = [self.back, self.choose, Jump(-2, flags["retry"], 1, kind.lanes), self.forward, self.finish]
        search = [*score, Jump(-len(score), flags["take"], 0, 0), ROUND]
        search.append(Jump(len(advance) + 2, flags["status"], kind.lanes, kind.lanes))
        search += advance
        # evaluates all stages at the end of the step, and decides about it
        self.score = Routine(score)
        # finds the next step; what was accepted is taken over
        self.step = Routine(advance)
        # goes on to the evaluation that ends a round, where a step is accepted in some lane, or to the end of all lanes
        self.search = Routine([*search, Jump(-len(search), flags["take"][:0], 0, 0)])
        bound = (self.evaluate, self.decide, self.back, self.forward, self.add_up, self.choose, self.finish)
        self.loops, self.spent = [each.loop for each in bound], 0.0
        for loop_ in self.loops if kind.backend != "cuda" else ():
            _ = loop_.function  # raises what compiling it raised

    def improve(self, spent: float) -> None:
        """Note seconds of work. Where there is much of it, the loops are compiled with all effort, beside it."""
        self.spent += spent
        if self.spent > WORTH * sum(each.lowered.operations for each in self.loops if each.quick):
            for each in self.loops:
                each.improve()

    def load(self, consts: Any, free: Numbers, options: Options) -> None:
        """Take over the numbers of a problem."""
        self.options = options
        least = options.tolerance / 10.0 if options.least is None else options.least
        numbers = (options.tolerance, float(options.max_iterations), least, self.multipliers)
        self.evaluate.set(self.problem.inner(consts)[1])
        self.decide.set((consts, *map(np.asarray, numbers), free))
        self.choose.set(free)

    def begin(self, x: Any, u: Numbers, target: Any) -> None:
        """Begin anew with this first iterate: slacks at the constraints where these hold, a little inside where not.

        With constraints, whose barrier has to fit to the cost, a first step without them finds how often this counts.
        """
        s, own, xp = self.stages, self.lane, self.kind.arrays
        s.data[s.places["x"] : s.places["gap"]] = own.data[...] = 0.0
        own.write("target", jax.tree.map(lambda leaf: leaf[:, None], target))
        s.write("x", x)
        s.write("u", np.concatenate([u, u[:, -1:]], axis=1))
        self.lengths[1][3] = 1.0
        slacks = (s.leaves("slack")[0], own.leaves("end")[1])
        self.barrier, self.softest = self.options.barrier if sum(leaf.size for leaf in slacks) else 0.0, 1.0
        self._hold((1.0, 1.0), NOTHING, 0.0)
        if self.barrier:
            self.score()
            held = [xp.maximum(leaf, 1e-2) for leaf in (s.leaves("held")[0], own.leaves("made")[4])]
            curved = xp.einsum("iikb->ikb", s.leaves("plain")[0])[self.problem.dim :, :-1]
            least = xp.where(curved > TRIFLE * curved.max(axis=(0, 1)), curved, xp.inf).min(axis=(0, 1))
            self.softest = xp.where(xp.isfinite(least), least, 1.0)
            if self.options.scaled:
                self.step()
                self.scale()
            self._hold(held, self.barrier, self.barrier)

    def _hold(self, slacks: Sequence[Any], product: float, barrier: float) -> None:
        """Begin with these slacks, of the stages and of the end, and with duals that have this product with them."""
        parts = ((self.stages.leaves(name)[0] for name in ("slack", "dual")), self.lane.leaves("end")[1:])
        for (slack, dual), value in zip(parts, slacks, strict=True):
            slack[...] = value
            dual[...] = product / slack
        own = self.lane
        own.data[own.places["primal"] : own.places["scores"]] = 0.0
        self.numbers["weight"][...] = 1.0
        self.lengths[1][:2] = 0.0
        self.begin_anew(barrier)

    def put_in(self, known: Multipliers, barrier: float, factor: float) -> None:
        """Begin at multipliers that are known, where the cost counts so many times; those of other rows are not.

        Slacks lie at the constraints, or as far inside as the barrier asks for, which is that of another search where
        constraints are new or broken.
        """
        lanes, end = len(known.nu), self.lane.read("end", len(known.nu))
        costate, dual = (np.concatenate([part, part[:, -1:]], axis=1) for part in known[:2])
        rows = zip((dual, known.nu, known.last), (self.stages.read("dual", lanes), end.nu, end.dual), strict=True)
        dual, nu, last = (
            factor * part.reshape(like.shape) if part.shape[-1] == like.shape[-1] else 0.0 * like for part, like in rows
        )
        places = ((self.stages.read("held", lanes), dual), (self.lane.read("made", lanes).held, last))
        broken = min(held.min(initial=0.0) for held, _ in places) < -BROKEN
        if barrier and (broken or known.dual.shape[-1] != dual.shape[-1]):
            barrier = self.barrier
        slack, far = (np.maximum(held, barrier / np.maximum(y, 1.0)).clip(LEAST_SLACK) for held, y in places)
        dual = np.maximum(dual, barrier / slack)
        for name, value in (("costate", factor * costate), ("slack", slack), ("dual", dual)):
            self.stages.write(name, value)
        self.lane.write("end", End(nu, far, np.maximum(last, barrier / far)))
        self.lengths[1][3] = factor
        self.begin_anew(barrier or self.barrier)

    def scale(self) -> None:
        """After the first step: let the cost count so many times that the largest multiplier of this step is 10.

        So the way to the answer does not depend on the unit of the cost. The step itself is the same for all units.
        """
        s, own, xp = self.stages, self.lane, self.kind.arrays
        size = xp.maximum(self.numbers["penalty"], TRIFLE * own.leaves("scores")[0][SCALE, 0])
        factor = MULTIPLIER / xp.where((size > 0) & xp.isfinite(size), size, MULTIPLIER)
        parts = [s.leaves("dcostate")[0], own.leaves("step")[0], own.leaves("merits")[0][:, 0], self.lengths[1][3]]
        parts += [own.leaves("reference")[0], *(self.numbers[name] for name in ("penalty", "shift", "used"))]
        for part in parts:
            part *= factor

    def begin_anew(self, barrier: float) -> None:
        """The next evaluation is the first: it is accepted."""
        self.numbers["barrier"][...] = self.lengths[1][2] = barrier
        self.numbers["status"][...] = ACTIVE
        self.numbers["fresh"][...] = 1.0

    def room(self, count: int) -> Solution:
        """Room for what is found for so many problems."""
        s, N, q = self.stages, self.kind.steps, self.lane.specs["end"][0][0].size
        u, costate, dual, gains = (s.room(name, count, N) for name in ("u", "costate", "dual", "K"))
        cost, error, gap, words, good = (np.empty(count, kind) for kind in (float, float, float, int, bool))
        return Solution(
            s.room("x", count, N + 1), u, costate, np.empty((count, q)), dual, cost, error, gap, words, words.copy(),
            good, gains, np.empty((count, q, q)),
        )  # fmt: skip

    def flags(self, name: str) -> Any:
        """A number of every lane."""
        return self.numbers[name][: self.kind.lanes]


class Solver:
    """Newton's iteration on problems of one kind; d_0 = free @ y with any y.

    Problems begin at (x, u, target): nodes x (B, N + 1, ...), controls u (B, N, ...), and what their ends need.
    """

    def __init__(self, problem: Any, consts: Any, free: Numbers, options: Options, note: Any = None,
                 backend: str = "llvm"):  # fmt: skip
        self.problem, self.consts, self.free = problem, consts, free
        self.options, self.note, self.backend, self.stopped = options, note, backend, False
        self.moving = Lock()  # threads that move numbers by NumPy would fight for Python at every move

    def machine(self, x: Any, u: Numbers, target: Any, made: Machine | None = None) -> Machine:
        """The loops for iterates of these shapes, with the first one put in; `made` has run such ones before."""
        if made is None:
            made = take_machine(self.problem, Kind.of(self.consts, x, u, target, self.free, self.backend))
            made.load(self.consts, self.free, self.options)
        made.begin(x, u, target)
        return made

    def judge(self, given: Any, known: Multipliers) -> Solution:
        """What an iterate with its multipliers is worth."""
        at = self.machine(*given)  # it evaluates what is held
        at.put_in(known, 0.0, 1.0)
        at.score()
        found = self._read(at, at.room(at.kind.lanes)).named()
        give_machine(at)
        return found

    def solve(self, given: Callable[[slice], Any], count: int, known: Multipliers | None = None) -> Solution:
        """Solve so many problems from given(part), which says where a part of them begins; one also from multipliers.

        Each thread takes few at once, so that their numbers stay near it. The last part may begin in the one before.
        """
        if self.backend == "cuda" or count <= LEAST_LANES:
            return self._solve(given(slice(count)), known)
        fitting = MOST_STAGES // given(slice(1))[1].shape[1]  # by the number of steps
        most = min(SIDE_BY_SIDE, max(LEAST_LANES, fitting - fitting % LEAST_LANES))
        parts = max(-(-count // most), min(count_processors(), -(-count // LEAST_LANES)))
        size = -(-count // parts)
        rest = iter([*range(0, count - size, size), count - size])
        first = self.machine(*given(slice(size)))
        found, done, threads = first.room(count), [], min(parts, count_processors())

        def work(at: Machine | None = None, note: Any = None) -> None:
            """Solve one part after the other, until another thread has begun the last one."""
            for begin in rest:
                part, ended = slice(begin, begin + size), False
                while not ended:
                    try:
                        with self.moving:
                            x, u, target = given(part)
                            at = self.machine(x, u, target, at)
                        self._search(at)
                        own = self._read(at, part_of(found, part))
                        done.append(begin)
                        ended = True
                        if note is not None:
                            worst = float(own.error.max()), float(own.infeasibility.max())
                            note(min(count, size * len(done)), *worst)
                    except KeyboardInterrupt:
                        self.stopped = True  # the parts end with what they have
            if at is not None:
                give_machine(at)

        with ThreadPoolExecutor(threads - 1 or 1) as pool:
            try:
                others = [pool.submit(work) for _ in range(threads - 1)]
                work(first, self.note)
                while others:
                    try:
                        others[-1].result()
                        others.pop()
                    except KeyboardInterrupt:
                        self.stopped = True
            except BaseException:
                self.stopped = True  # nobody waits for what the others would find
                raise
        return found.named()

    def solve_first(self, given: Callable[[slice], Any], count: int, known: Multipliers | None = None) -> Solution:
        """One problem after the other until one is solved or feasible: all run on the code of the first."""
        for b in range(count):
            found = self._solve(given(slice(b, b + 1)), known)
            if self.stopped or found.status[0] == "optimal" or found.infeasibility[0] <= self.options.feasible:
                break
        return found

    def _solve(self, given: Any, known: Multipliers | None) -> Solution:
        """Solve problems (x, u, target) side by side."""
        at = self.machine(*given)
        if known is not None:  # the largest is 10 then, as after the first step of another search
            largest = max(np.abs(part).max(initial=0.0) for part in known)
            at.put_in(known, at.barrier and KNOWN_BARRIER, MULTIPLIER / largest)
        self._search(at, self.note, known is None)
        found = self._read(at, at.room(at.kind.lanes)).named()
        give_machine(at)
        return found

    def _search(self, at: Machine, note: Any = None, anew: bool = True) -> None:
        """Iterate until all problems have ended, or somebody stops it."""
        begin, count, rounds = time.thread_time(), -1, 1
        try:
            while not self.stopped:
                clock = time.perf_counter()
                count += (done := at.search(rounds))
                if note is not None:
                    worst = (float(at.lane.leaves("scores")[0][k, 0, : at.kind.lanes].min()) for k in (ERROR, GAP))
                    note(count, *worst)
                elif count:
                    rounds = max(1, int(CHUNK_SECONDS * done / (time.perf_counter() - clock)))  # Ctrl-C waits so long
                if at.flags("status").all():
                    break
                at.step()
                if not count and self.options.scaled and not at.barrier and anew:
                    at.scale()
        except KeyboardInterrupt:
            self.stopped = True
        at.numbers["status"][at.numbers["status"] == ACTIVE] = INTERRUPTED
        at.improve(time.thread_time() - begin)

    def _read(self, at: Machine, found: Solution) -> Solution:
        """Put there what the machine found; a last sweep has no shift, and tells whether it is a minimum."""
        at.forward()  # takes over the last iterate
        at.finish()
        at.lengths[1][:2] = 0.0
        for name, number in (("used", 0.0), ("is_plain", 0.0), ("soft", 0.0), ("weight", MAX_WEIGHT)):
            at.numbers[name][...] = number
        at.score()
        count, own, stages, xp = len(found.u), at.lane, at.stages, at.kind.arrays
        factor, scores = own.first("lengths", count)[:, 3], own.first("scores", count).copy()
        if at.barrier:
            for slack, dual in ((stages.leaves("slack")[0], stages.leaves("dual")[0]), own.leaves("end")[1:]):
                slack[...] = xp.maximum(slack, dual / (MAX_STIFFNESS * at.softest * at.lengths[1][3]))
            at.score()
        at.numbers["take"][...] = 1.0
        at.back()
        found.reach[...] = own.first("value", count, ValueFunction._fields.index("S"))
        at.choose()
        parts = (found.x, found.u, found.costate, found.dual, found.gains)
        with self.moving:
            for name, part in zip(("x", "u", "costate", "dual", "K"), parts, strict=True):
                stages.read(name, count, part)
            for part in (found.costate, found.dual):
                part[...] /= factor[:, None, None]
        found.error[...], found.infeasibility[...], found.cost[...], _ = scores.T
        found.cost[...] /= factor
        found.nu[...] = own.first("end", count) / factor[:, None]
        found.iterations[...], found.status[...] = own.first("iterations", count), own.first("status", count)
        found.strict[...] = (own.first("bad", count) == 0) & at.exact
        return found


class Solution(NamedTuple):
    """What `solve` found for B problems; `status` is "optimal" or says why it stopped."""

    x: Any  # (B, N + 1, ...)
    u: Numbers  # (B, N, controls)
    costate: Numbers  # of the gaps, (B, N, dim)
    nu: Numbers  # multipliers of psi
    dual: Numbers  # of the constraints
    cost: Numbers
    error: Numbers  # the residual of the conditions of first order, where multipliers are about 1
    infeasibility: Numbers
    iterations: Numbers
    status: Any  # of each, in words
    strict: Numbers  # whether the second-order conditions hold strictly
    gains: Numbers  # (B, N, controls, dim): the feedback of the last sweep
    reach: Numbers  # (B, rows of psi, rows of psi): zero in directions that the linearised motion cannot reach

    def named(self) -> Solution:
        """The same, with words for the numbers of `status`."""
        return self._replace(status=[STATUS[word] for word in self.status])


def join(parts: tuple[Any, ...]) -> Any:
    """The arrays or lists of several solutions, one after the other."""
    if isinstance(parts[0], list):
        return [each for part in parts for each in part]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


class Kind(NamedTuple):
    """All but the numbers of problems that share their loops."""

    structure: Any
    specs: tuple[Any, ...]
    lanes: int
    steps: int
    backend: str

    @classmethod
    def of(cls, consts: Any, x: Any, u: Numbers, target: Any, free: Numbers, backend: str) -> Kind:
        leaves, structure = jax.tree.flatten((consts, part_of(x, (0, 0)), u[0, 0], part_of(target, 0), free))
        specs = shapes_of([np.asarray(leaf) for leaf in leaves])
        return cls(structure, specs, len(u), u.shape[1], backend)

    def shapes(self) -> Any:
        """Shapes of (consts, x, u, target, free)."""
        return jax.tree.unflatten(self.structure, [_shape(*shape, dtype=dtype) for shape, dtype in self.specs])

    @property
    def arrays(self) -> Any:
        """NumPy, or CuPy for a GPU."""
        if self.backend != "cuda":
            return np
        import cupy

        return cupy

    @property
    def wide(self) -> int:
        """Lanes in whole vectors."""
        width = 1 if self.lanes == 1 or self.backend == "cuda" else best_width(self.lanes)
        return -(-self.lanes // width) * width


def _shape(*shape: int, dtype: Any = float) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # JAX has no types


def _derived_shapes(rows: int, size: int, held: int) -> Derived:
    return Derived(
        _shape(rows), _shape(rows, size), _shape(size), _shape(held, size), _shape(held), _shape(size, size),
        _shape(size, size), _shape(size), _shape(4), _shape(5),
    )  # fmt: skip


def count_rows(problem: Any, consts: Any, x: Any, u: Any, target: Any) -> tuple[int, int, int]:
    """How many numbers c, c_N and psi have."""
    held = jax.eval_shape(problem.judge, consts, x, x, u)[1]
    _, last, rows = jax.eval_shape(problem.end, consts, x, target)
    return held.shape[0], last.shape[0], rows.shape[0]


_machines: OrderedDict[Any, list[Machine]] = OrderedDict()
_inexact: set[Any] = set()


def take_machine(problem: Any, kind: Kind) -> Machine:
    """A machine for such problems that nobody uses."""
    key = (problem, kind)
    with suppress(KeyError, IndexError):
        return _machines[key].pop()
    try:
        return Machine(problem, kind, exact=key not in _inexact)
    except StaleEntry:  # it is gone from the disk now
        pass
    except LoweringError:
        if key in _inexact:
            raise
        _inexact.add(key)  # the step is too large for its second derivatives
    return take_machine(problem, kind)


def give_machine(machine: Machine) -> None:
    """Keep a machine for the next problems of its kind, if it is not large."""
    if machine.stages.data.nbytes > MAX_KEPT_BYTES:
        return
    key = (machine.problem, machine.kind)
    _machines.setdefault(key, []).append(machine)
    _machines.move_to_end(key)
    while len(_machines) > MAX_MACHINES:
        _machines.popitem(last=False)
