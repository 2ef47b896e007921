"""A solver for discrete problems of optimal control: an interior point method whose linear algebra is a Riccati sweep.

    minimise   sum of l(x_k, u_k) over k < N, plus Phi(x_N)
    such that  x_{k+1} = f(x_k, u_k), c(x_k, u_k) >= 0, psi(x_N) = 0 and c_N(x_N) >= 0.

x_k is a point of a manifold: increments d are coordinates of a chart at x_k, and all derivatives are taken there. The
nodes x_k are unknowns too (multiple shooting: Bock and Plitt 1984). An iteration is Newton's step on the conditions of
first order, with the exact second derivatives of the Lagrangian. Its linear equations have the value function
V(d, nu) = d.P d/2 + p.d + nu.L^T d + s.nu - nu.S nu/2, nu the multipliers of psi, that a recursion finds from the end
to the start, so that the cost is linear in N (Rao, Wright and Rawlings 1998). Inequalities have slacks and a
logarithmic barrier (Waechter and Biegler 2006). Several problems of one kind are solved side by side, as lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..kernels import LoweringError, evaluate, run_rows, shapes_of
from ..numerics.types import Array

Numbers = np.ndarray[Any, Any]
Point = Any

FRACTION = 0.995  # of the way to the boundary that a step may go
MAX_SHIFT = 1e9  # of the Hessian, relative to its largest entry
MAX_WEIGHT = 1e6  # on psi = 0, likewise: a minimum on psi = 0 is then one of the sum
MAX_HALVINGS = 25
MEMORY = 4  # merits that an accepted step may fall back to: steps along a curved constraint first raise the merit


class ControlProblem(Protocol):
    """A discrete problem of optimal control, as pure functions of JAX on small arrays; it is hashable."""

    dim: int  # of the manifold of the x
    controls: int  # numbers in u

    def move(self, consts: Any, x: Point, d: Array) -> Point:
        """The point with the coordinates d in the chart at x."""

    def apart(self, consts: Any, x: Point, other: Point) -> Array:
        """The coordinates of the other point in the chart at x: the inverse of `move`."""

    def advance(self, consts: Any, x: Point, u: Array) -> Point:
        """f at (x, u)."""

    def judge(self, consts: Any, x: Point, after: Point, u: Array) -> tuple[Array, Array]:
        """(l, c) of a step from x to `after` under u."""

    def end(self, consts: Any, x: Point, target: Any) -> tuple[Array, Array, Array]:
        """(Phi, psi, c_N) at x."""


@dataclass(frozen=True)
class StageKernel:
    """Value, derivatives and condensed barrier of one stage, at its point moved by dx.

    If not `exact`, the second derivatives of the step are left out (Gauss and Newton): large steps have no others.
    """

    problem: Any
    exact: bool = True

    def __call__(self, consts: Any, lane: Any) -> dict[str, Any]:
        of, (x, dx, x1, dx1, u, costate, after, inner, slack, dual, barrier) = self.problem, lane
        here, next_ = of.move(consts, x, dx), of.move(consts, x1, dx1)
        n, size = of.dim, of.dim + of.controls
        there = of.advance(consts, here, u)

        def moved(d: Array) -> Array:
            return of.apart(consts, there, of.advance(consts, of.move(consts, here, d[:n]), u + d[n:]))  # type: ignore[no-any-return]

        def parts(d: Array, e: Array) -> tuple[Array, Array, Array]:
            end = of.move(consts, there, e)
            cost, held = of.judge(consts, of.move(consts, here, d[:n]), end, u + d[n:])
            return of.apart(consts, next_, end), cost, held

        made = _derive(parts, moved, after, slack, dual, size, n, self.exact)
        own = jnp.concatenate([inner * (made["lagrange"][:n] - costate), made["lagrange"][n:]])
        return made | {"x": here, "sizes": _sizes(made, own, slack, dual, barrier)}


@dataclass(frozen=True)
class EndKernel:
    """The same of the end: psi takes the place of the gap f(x_k, u_k) - x_{k+1}."""

    problem: Any

    def __call__(self, consts: Any, lane: Any) -> dict[str, Any]:
        of, (x, dx, target, costate, after, slack, dual, barrier) = self.problem, lane
        here = of.move(consts, x, dx)

        def parts(d: Array, e: Array) -> tuple[Array, Array, Array]:
            cost, goal, held = of.end(consts, of.move(consts, here, d), target)
            return goal, cost, held

        made = _derive(parts, None, after, slack, dual, of.dim, 0, False)
        return made | {"x": here, "sizes": _sizes(made, made["lagrange"] - costate, slack, dual, barrier)}


def _derive(
    parts: Callable[[Array, Array], tuple[Array, Array, Array]], moved: Callable[[Array], Array] | None,
    multiplier: Array, slack: Array, dual: Array, size: int, steps: int, exact: bool,
) -> dict[str, Any]:  # fmt: skip
    """Derivatives at d = 0 of (equations, cost, constraints), which are parts(d, e) with e = moved(d).

    The step is linearised once, and the chain rule does the rest: with T = (1, De) the Hessian of the Lagrangian is
    T^T D^2 T, plus the second derivatives of e. `plain` leaves those of all equations out. Newton's step in slack and
    dual is eliminated from both.
    """
    zero, n = jnp.zeros(size), multiplier.shape[0]
    pushed = jnp.zeros((0, size))
    if moved is not None:
        moved = jax.jit(moved)  # traced once for both uses
        pushed = jax.jacfwd(moved)(zero)
    along = jnp.concatenate([jnp.eye(size), pushed])

    def stacked(both: Array) -> Array:
        gap, cost, held = parts(both[:size], both[size:])
        return jnp.concatenate([gap, cost[None], held])

    origin = jnp.zeros(size + steps)
    value, wide = stacked(origin), jax.jacfwd(stacked)(origin)
    slopes = wide @ along
    weights = jnp.concatenate([multiplier, jnp.ones(1), -dual])

    def curvature(which: Array) -> Any:
        return along.T @ jax.jacfwd(jax.grad(lambda both: which @ stacked(both)))(origin) @ along

    AB, slope, J = slopes[:n], slopes[n], slopes[n + 1 :]
    barrier = (J.T * (dual / slack)) @ J
    plain = curvature(jnp.concatenate([jnp.zeros(n), weights[n:]]))
    hessian = curvature(weights)
    if exact and moved is not None:
        price = weights @ wide[:, size:]
        hessian = hessian + jax.jacfwd(jax.grad(lambda d: price @ moved(d)))(zero)
    return {
        "gap": value[:n], "cost": value[n], "held": value[n + 1 :], "AB": AB, "slope": slope, "J": J,
        "hessian": (hessian if exact or moved is None else plain) + barrier, "plain": plain + barrier,
        "lagrange": slope + multiplier @ AB - dual @ J,
    }  # fmt: skip


def _sizes(made: dict[str, Any], own: Array, slack: Array, dual: Array, barrier: Array) -> Array:
    """(cost with barrier, sum of what is not met, the largest of: slope, unmet, s y, |s y - barrier|, Hessian)."""
    unmet = jnp.concatenate([made["gap"], made["held"] - slack, jnp.zeros(1)])
    product = jnp.concatenate([slack * dual, barrier[None]])
    return jnp.stack([
        made["cost"] - barrier * jnp.sum(jnp.log(slack)), jnp.sum(jnp.abs(unmet)), jnp.max(jnp.abs(own)),
        jnp.max(jnp.abs(unmet)), jnp.max(product[:-1], initial=0.0), jnp.max(jnp.abs(product - barrier)),
        jnp.max(jnp.abs(made["hessian"])),
    ])  # fmt: skip


class Value(NamedTuple):
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


def sweep_back(consts: Any, after: Value, row: Any) -> Value:
    """V_k from V_{k+1}: the stage's quadratic model plus V_{k+1} along the linearised step, least in u."""
    hessian, slope, J, held, slack, dual, AB, gap, (shift, barrier) = row
    n = after.p.shape[0]
    gradient = slope - (barrier / slack - dual / slack * (held - slack)) @ J
    whole = hessian + AB.T @ (after.P @ AB) + shift * jnp.eye(hessian.shape[0])
    linear = gradient + AB.T @ (after.p + after.P @ gap)
    across = AB.T @ after.L
    columns = jnp.concatenate([whole[n:, :n], linear[n:, None], across[n:]], axis=1)
    solved, pivot = _solve_positive(whole[n:, n:], -columns)
    K, k, M = solved[:, :n], solved[:, n], solved[:, n + 1 :]
    P = whole[:n, :n] + whole[:n, n:] @ K
    return Value(
        0.5 * (P + P.T), linear[:n] + whole[:n, n:] @ k, across[:n] + whole[:n, n:] @ M,
        after.S - across[n:].T @ M, after.s + after.L.T @ gap + across[n:].T @ k, K, k, M,
        jnp.minimum(after.pivot, pivot),
    )  # fmt: skip


def _solve_positive(matrix: Array, columns: Array) -> tuple[Array, Array]:
    """(matrix^-1 columns, least pivot relative to the largest entry) by Gauss's elimination without exchanges."""
    n, rows, right = matrix.shape[0], list(matrix), list(columns)
    scale = jnp.max(jnp.abs(matrix)) + 1e-300
    least = jnp.asarray(jnp.inf)
    for j in range(n):
        least = jnp.minimum(least, rows[j][j] / scale)
        for i in range(j + 1, n):
            factor = rows[i][j] / rows[j][j]
            rows[i], right[i] = rows[i] - factor * rows[j], right[i] - factor * right[j]
    for j in reversed(range(n)):
        for i in range(j + 1, n):
            right[j] = right[j] - rows[j][i] * right[i]
        right[j] = right[j] / rows[j][j]
    return jnp.stack(right), least


def _feedback(consts: Any, value: Value) -> Any:
    return value.P, value.p, value.L, value.K, value.k, value.M


class Motion(NamedTuple):
    """An increment of a node, the multipliers of the goal, the barrier, and what the search has to know.

    That is: the slope of cost and barrier, the longest step of the slacks and of the duals, the largest multiplier.
    """

    d: Any
    nu: Any
    barrier: Any
    known: Any
    record: Any  # (d_{k+1}, u, costate_k, change of slacks, change of duals)


def sweep_forward(consts: Any, before: Motion, row: Any) -> Motion:
    """d_{k+1} = A d + B u + gap with u = K d + k + M nu; costates are the slopes of V."""
    AB, gap, slope, J, held, slack, dual, P, p, L, K, k, M = row
    d, nu = before.d, before.nu
    u = K @ d + k + M @ nu
    z = jnp.concatenate([d, u])
    costate = P @ d + p + L @ nu
    ds, dy = _slack_steps(J @ z, held, slack, dual, before.barrier)
    total, primal, duals, largest = before.known
    known = jnp.stack([
        total + slope @ z - before.barrier * jnp.sum(ds / slack), jnp.minimum(primal, _room(slack, ds)),
        jnp.minimum(duals, _room(dual, dy)), 
        jnp.maximum(largest, jnp.max(jnp.abs(jnp.concatenate([costate, dual + dy])))),
    ])  # fmt: skip
    after = AB @ z + gap
    return Motion(after, nu, before.barrier, known, (after, u, costate, ds, dy))


def _slack_steps(change: Any, held: Any, slack: Any, dual: Any, barrier: Any) -> tuple[Any, Any]:
    """Newton's steps of slack and dual where the constraints change by `change`."""
    ds = change + held - slack
    return ds, barrier / slack - dual - dual / slack * ds


def _room(value: Array, change: Array) -> Array:
    """How far a step may go, at most 1, so that positive numbers keep a part of themselves."""
    limit = jnp.where(change < 0, -FRACTION * value / jnp.where(change < 0, change, -1.0), jnp.inf)
    return jnp.min(limit, initial=1.0)


def _moved(consts: Any, motion: Motion) -> Any:
    return motion.record


@dataclass
class Iterate:
    """Points (B, N + 1, ...), controls (B, N, ...), multipliers, slacks and duals of B problems."""

    x: Any
    u: Numbers
    costate: Numbers  # of the gaps, (B, N, dim)
    nu: Numbers
    slack: Numbers
    dual: Numbers
    end_slack: Numbers
    end_dual: Numbers
    barrier: Numbers
    stages: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    known: Scores | None = None  # of the last evaluation

    def moved(self, primal: Numbers, dual: Numbers, step: Any) -> Iterate:
        """This iterate after parts of a step; its points are still to be moved."""
        du, costate, nu, ds, dy, dse, dye = step
        a2, a3, b2, b3 = primal[:, None], primal[:, None, None], dual[:, None], dual[:, None, None]
        return Iterate(
            self.x, self.u + a3 * du, self.costate + a3 * (costate - self.costate), self.nu + a2 * (nu - self.nu),
            self.slack + a3 * ds, self.dual + b3 * dy, self.end_slack + a2 * dse, self.end_dual + b2 * dye,
            self.barrier,
        )  # fmt: skip


@dataclass
class Solution:
    """What `solve` found for B problems; `status` is "optimal" or says why it stopped."""

    iterate: Iterate
    cost: Numbers
    error: Numbers  # the residual of the conditions of first order
    infeasibility: Numbers
    iterations: Numbers
    status: list[str]
    strict: Numbers  # whether the second-order conditions hold strictly
    gains: Numbers  # (B, N, controls, dim): the feedback of the last sweep
    rank: Numbers  # of the goal's rows, as the linearised motion can reach them
    unreached: Numbers  # (B, rows of psi, rows of psi): the directions of psi that it cannot reach


@dataclass(frozen=True)
class Options:
    """When to stop."""

    tolerance: float = 1e-8
    max_iterations: int = 300
    barrier: float = 0.1


class Solver:
    """Newton's iteration on one kind of problem; d_0 = free @ y with any y."""

    def __init__(self, problem: Any, consts: Any, target: Any, free: Numbers, options: Options, note: Any = None):
        self.problem, self.consts, self.target, self.options, self.note = problem, consts, target, options, note
        self.free = free
        self.stage, self.last = StageKernel(problem), EndKernel(problem)

    def evaluate(self, at: Iterate, dx: Numbers) -> None:
        """Move all points by dx, and find values and derivatives there."""
        at.known = None
        B, N = at.u.shape[:2]
        head, tail = slice(0, N), slice(1, N + 1)
        before = np.concatenate([at.costate[:, :1], at.costate[:, :-1]], axis=1)
        inner = np.ones((B, N))
        inner[:, 0] = 0.0
        lane = (
            _lanes(at.x, head), _lanes(dx, head), _lanes(at.x, tail), _lanes(dx, tail), _merge(at.u), _merge(before),
            _merge(at.costate), inner.reshape(-1), _merge(at.slack), _merge(at.dual), np.repeat(at.barrier, N),
        )  # fmt: skip
        try:
            made = evaluate(self.stage, self.consts, lane, lanes=B * N, axes=(None, 0))
        except LoweringError:
            if not self.stage.exact:
                raise
            self.stage = StageKernel(self.problem, exact=False)  # the step is too large for its second derivatives
            made = evaluate(self.stage, self.consts, lane, lanes=B * N, axes=(None, 0))
        at.stages = {name: _split(leaf, B, N) for name, leaf in made.items() if name != "x"}
        last = (
            jax.tree.map(lambda leaf: leaf[:, -1], at.x), dx[:, -1], self.target, at.costate[:, -1], at.nu,
            at.end_slack, at.end_dual, at.barrier,
        )  # fmt: skip
        at.end = evaluate(self.last, self.consts, last, lanes=B, axes=(None, 0))
        end = at.end.pop("x")
        at.x = jax.tree.map(lambda a, b: np.concatenate([_split(a, B, N), b[:, None]], axis=1), made["x"], end)

    # -- the linear equations ------------------------------------------------------------------------------------------
    def sweep(self, at: Iterate, shift: Numbers, weight: Numbers) -> tuple[Value, Any]:
        """(V_0, V_k and feedback of all stages) with `shift` on the diagonal and `weight` on psi = 0."""
        (B, N), end, of = at.u.shape[:2], at.end, self.problem
        C, n, r = end["AB"], of.dim, of.controls
        rows = end["gap"].shape[1]
        P = end["hessian"] + shift[:, None, None] * np.eye(n) + weight[:, None, None] * _t(C) @ C
        p = self._end_gradient(at) + weight[:, None] * _mv(_t(C), end["gap"])
        first = Value(
            P, p, _t(C), np.zeros((B, rows, rows)), end["gap"], np.zeros((B, r, n)), np.zeros((B, r)),
            np.zeros((B, r, rows)), np.full(B, np.inf),
        )  # fmt: skip
        numbers = np.repeat(np.stack([shift, at.barrier], axis=1)[:, None], N, axis=1)
        stages = at.stages
        row = (*(stages[name] for name in ("hessian", "slope", "J", "held")), at.slack, at.dual, stages["AB"],
               stages["gap"], numbers)  # fmt: skip
        last, all_ = _run(sweep_back, _feedback, first, tuple(leaf[:, ::-1] for leaf in row))
        return last, tuple(leaf[:, ::-1] for leaf in all_)

    def _end_gradient(self, at: Iterate) -> Any:
        end, slack, dual = at.end, at.end_slack, at.end_dual
        if not slack.shape[1]:
            return end["slope"]
        pull = at.barrier[:, None] / slack - dual / slack * (end["held"] - slack)
        return end["slope"] - _mv(_t(end["J"]), pull)

    def begin(self, value: Value, soft: Numbers, nu: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """(d_0, nu, whether V_0 is least there): the free parts of the start, and the multipliers of the goal.

        `soft` lets a step miss the goal where reaching it would take one that is too long: nu stays near its last.
        """
        B, n = value.p.shape
        d, free, q = np.zeros((B, n)), self.free, value.s.shape[1]
        f = free.shape[1]
        if not f + q:
            return d, np.zeros((B, 0)), np.ones(B, bool)
        S, s, good = value.S, value.s, np.ones(B, bool)
        if q and soft.any():
            size = soft * np.abs(S).max(axis=(1, 2))
            S, s = S + size[:, None, None] * np.eye(q), s + size[:, None] * nu
        inverse = _pseudo_inverse(S)
        if f:
            P, L = free.T @ value.P @ free, free.T @ value.L
            reduced = P + L @ inverse @ _t(L)
            right = value.p @ free + _mv(L, _mv(inverse, s))
            sizes = np.linalg.eigvalsh(reduced) if np.isfinite(reduced).all() else np.full((B, f), -1.0)
            good = sizes[:, 0] > 1e-14 * np.abs(sizes).max(axis=1)
            safe = np.where(good[:, None, None], reduced, np.eye(f))
            d = -np.linalg.solve(safe, right[..., None])[..., 0] @ free.T
        return d, _mv(inverse, s + _mv(_t(value.L), d)), good

    def step(self, at: Iterate, shift: Numbers) -> tuple[Any, Numbers, Numbers]:
        """(Newton's step, its shift, whether it is one to a minimum).

        Where the model has no minimum on psi = 0, the weight on psi grows. If that does not help, the second
        derivatives of the equations are left out (Gauss and Newton), and at last the Hessian is shifted.
        """
        scale = self.scores(at).scale
        used, weight = np.where(shift > 1e-9 * scale, shift / 8, 0.0), self.weight * scale
        plain = np.zeros(len(used), bool)
        while True:
            first, values = self.sweep(at, used, weight)
            d, nu, good = self.begin(first, self.soft, at.nu)
            good = good & (first.pivot > 1e-12) & np.isfinite(first.pivot)
            bad = ~good & (used < MAX_SHIFT * scale)
            if not bad.any():
                break
            light = bad & (self.weight < MAX_WEIGHT)
            self.weight[light] *= 1e3
            weight[light] = self.weight[light] * scale[light]
            heavy = bad & ~light
            used[heavy & plain] = np.maximum(8.0 * used[heavy & plain], 1e-6 * scale[heavy & plain])
            if (heavy & ~plain).any():
                self._leave_out(at, heavy & ~plain)
                plain |= heavy
        return self._go(at, d, nu, values, used, weight), used, good

    def _leave_out(self, at: Iterate, mark: Numbers) -> None:
        """Leave the second derivatives of the equations out of the Hessian of some problems."""
        for part in (at.stages, at.end):
            wide = mark.reshape(-1, *(1,) * (part["hessian"].ndim - 1))
            part["hessian"] = np.where(wide, part["plain"], part["hessian"])

    def _go(self, at: Iterate, d: Numbers, nu: Numbers, values: Any, shift: Numbers, weight: Numbers) -> Any:
        """(dx, du, new costates, new nu, steps of slacks and duals, and of the end's), and what the search knows."""
        B, stages, end = len(nu), at.stages, at.end
        of = self.problem
        empty = [np.zeros((B, size)) for size in (of.dim, of.controls, of.dim, *[at.slack.shape[2]] * 2)]
        first = Motion(d, nu, at.barrier, np.tile([0.0, 1.0, 1.0, 0.0], (B, 1)), tuple(empty))
        row = (stages["AB"], stages["gap"], stages["slope"], stages["J"], stages["held"], at.slack, at.dual, *values)
        last, (after, du, costate, ds, dy) = _run(sweep_forward, _moved, first, row)
        C, there = end["AB"], after[:, -1]
        nu = nu + weight[:, None] * (end["gap"] + _mv(C, there))
        final = _mv(end["hessian"], there) + shift[:, None] * there + self._end_gradient(at) + _mv(_t(C), nu)
        dse, dye = _slack_steps(_mv(end["J"], there), end["held"], at.end_slack, at.end_dual, at.barrier[:, None])
        total, primal, duals, largest = last.known.T
        total = total + (end["slope"] * there).sum(axis=1) - at.barrier * (dse / at.end_slack).sum(axis=1)
        if dse.shape[1]:
            primal = np.minimum(primal, _longest(at.end_slack, dse))
            duals = np.minimum(duals, _longest(at.end_dual, dye))
            largest = np.maximum(largest, np.abs(at.end_dual + dye).max(axis=1))
        largest = np.maximum.reduce([largest, _most(nu), _most(final)])
        dx = np.concatenate([d[:, None], after], axis=1)
        costate = np.concatenate([costate[:, 1:], final[:, None]], axis=1)
        return dx, du, costate, nu, ds, dy, dse, dye, total, primal, duals, largest

    # -- the iteration -------------------------------------------------------------------------------------------------
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what is not finite is not accepted
    def solve(self, x: Any, u: Numbers) -> Solution:
        """Solve from the nodes x (B, N + 1, ...) and the controls u (B, N, ...)."""
        options, B = self.options, len(u)
        at, self.weight, self.soft = self.begin_at(x, u), np.ones(B), np.zeros(B)
        shift, penalty, iterations = np.zeros(B), np.zeros(B), np.zeros(B, int)
        status: list[str] = [""] * B
        merits: list[tuple[Numbers, Numbers]] = []
        try:
            for count in range(options.max_iterations + 1):
                scores = self.scores(at)
                lowest = self._lower_barrier(at, scores)
                for b in np.flatnonzero((scores.error <= options.tolerance) & lowest):
                    status[b] = status[b] or "optimal"
                active = np.array([not word for word in status])
                if self.note is not None:
                    self.note(count, scores)
                if not active.any() or count == options.max_iterations:
                    break
                step, shift, good = self.step(at, shift)
                at, accepted, length = self._search(at, step, active, penalty, merits)
                harder, softer = np.where(length < 1, 1.0, 0.01) * self.soft, np.clip(100.0 * self.soft, 1e-6, 1e2)
                self.soft = np.where(active & (length < 0.1), softer, np.where(harder < 1e-9, 0.0, harder))
                iterations[active] += 1
                for b in np.flatnonzero(active & ~accepted):
                    if not good[b] or shift[b] > 1e6:
                        status[b] = "stalled"
                    shift[b] = max(shift[b] * 100.0, 1e-2)
        except KeyboardInterrupt:
            status = [word or "interrupted" for word in status]
        return self._finish(at, iterations, [word or "too many iterations" for word in status])

    def improve(self, at: Iterate, dx: Numbers) -> tuple[Iterate, Numbers]:
        """One Newton step without a search, from points that are still to be moved by dx: (iterate, its own dx)."""
        self.weight, self.soft = np.ones(len(at.u)), np.zeros(len(at.u))
        self.evaluate(at, dx)
        step, _, good = self.step(at, np.zeros(len(at.u)))
        dx, du, costate, nu, ds, dy, dse, dye, _, primal, dual, _ = step
        known = good & np.isfinite(du).all(axis=(1, 2))
        if not known.all():
            return at, np.zeros_like(dx)
        return at.moved(primal, dual, (du, costate, nu, ds, dy, dse, dye)), primal[:, None, None] * dx

    def begin_at(self, x: Any, u: Numbers) -> Iterate:
        """The first iterate: slacks at the constraints where these hold, a little inside where not."""
        (B, N), of = u.shape[:2], self.problem
        one = jax.tree.map(lambda leaf: leaf[0, 0], x)
        given = (self.consts, one, u[0, 0], jax.tree.map(lambda leaf: leaf[0], self.target))
        leaves, structure = jax.tree.flatten(given)
        held, last, rows = _count_rows(of, structure, shapes_of([np.asarray(leaf) for leaf in leaves]))
        barrier = np.full(B, self.options.barrier if held + last else 0.0)
        at = Iterate(
            x, u, np.zeros((B, N, of.dim)), np.zeros((B, rows)), np.ones((B, N, held)), np.ones((B, N, held)),
            np.ones((B, last)), np.ones((B, last)), barrier,
        )  # fmt: skip
        still = np.zeros((B, N + 1, of.dim))
        self.evaluate(at, still)
        if held + last:
            at.slack, at.end_slack = (np.maximum(part["held"], 1e-2) for part in (at.stages, at.end))
            at.dual, at.end_dual = barrier[:, None, None] / at.slack, barrier[:, None] / at.end_slack
            self.evaluate(at, still)
        return at

    def scores(self, at: Iterate) -> Scores:
        """How far the iterate is from the conditions of first order."""
        if at.known is None:
            at.known = self._score(at)
        return at.known

    def _score(self, at: Iterate) -> Scores:
        sizes = np.concatenate([at.stages["sizes"], at.end["sizes"][:, None]], axis=1)
        most, (cost, unmet) = sizes[:, :, 2:].max(axis=1), sizes[:, :, :2].sum(axis=1).T
        slope = most[:, 0]
        if self.free.shape[1]:
            slope = np.maximum(slope, np.abs(at.stages["lagrange"][:, 0, : self.problem.dim] @ self.free).max(axis=1))
        size = max(1, at.costate[0].size + at.nu[0].size + at.dual[0].size)
        total = _sum(np.abs(at.costate)) + _sum(np.abs(at.nu)) + _sum(at.dual) + _sum(at.end_dual)
        scale = np.maximum(1.0, total / size / 100.0)
        rest = np.maximum(slope / scale, most[:, 1])
        error, held = np.maximum(rest, most[:, 2] / scale), np.maximum(rest, most[:, 3] / scale)
        unknown = ~np.isfinite(error + most[:, 4])
        error, held = np.where(unknown, np.inf, error), np.where(unknown, np.inf, held)
        return Scores(error, held, most[:, 1], cost, unmet, 1.0 + most[:, 4])

    def _lower_barrier(self, at: Iterate, scores: Scores) -> Numbers:
        """Lower the barrier where its problem is solved; whether it is as low as the tolerance asks."""
        least = self.options.tolerance / 10.0
        lower = (scores.held <= 10.0 * at.barrier) & (at.barrier > least)
        if lower.any():
            new = np.maximum(least, np.minimum(0.2 * at.barrier, at.barrier**1.5))
            while (again := lower & (scores.held <= 10.0 * new) & (new > least)).any():
                new = np.where(again, np.maximum(least, np.minimum(0.2 * new, new**1.5)), new)
            at.barrier = np.where(lower, new, at.barrier)
        return at.barrier <= 1.01 * least

    def _search(
        self, at: Iterate, step: Any, active: Numbers, penalty: Numbers, merits: list[tuple[Numbers, Numbers]]
    ) -> tuple[Iterate, Numbers, Numbers]:
        """The longest step that lowers the merit: cost and barrier plus a multiple of what is not met."""
        dx, du, costate, nu, ds, dy, dse, dye, total, primal, dual, largest = _stay(~active, at, step)
        scores = self.scores(at)
        cost = scores.cost if not at.slack.size + at.end_slack.size else self._barrier_cost(at)
        penalty[:] = np.maximum(largest, 0.5 * (penalty + largest))
        merits.append((cost, scores.unmet))
        del merits[:-MEMORY]
        reference = np.max([a + penalty * b for a, b in merits], axis=0)
        descent = np.minimum(total - penalty * scores.unmet, 0.0)
        noise = 1e-13 * (1.0 + np.abs(cost + penalty * scores.unmet))
        length, duals = np.where(active, primal, 0.0), np.where(active, dual, 0.0)
        accepted = ~active
        for count in range(MAX_HALVINGS + 1):
            if count == MAX_HALVINGS:  # stay; a step may be infinite
                dx, du, costate, nu, ds, dy, dse, dye = _stay(~accepted, at, step)[:8]
            trial = at.moved(length, duals, (du, costate, nu, ds, dy, dse, dye))
            self.evaluate(trial, length[:, None, None] * dx)
            new = self.scores(trial)
            merit = new.cost + penalty * new.unmet
            known = np.isfinite(merit) & np.isfinite(new.error)
            accepted = accepted | (known & (merit <= reference + 1e-4 * length * descent + noise))
            if accepted.all():
                break
            length = np.where(accepted, length, 0.5 * length)
        return trial, accepted, np.where(accepted, length / np.maximum(primal, 1e-300), 0.0)

    def _barrier_cost(self, at: Iterate) -> Any:
        """Cost and barrier, where the barrier is another one than that of the evaluation."""
        logs = _sum(np.log(at.slack)) + _sum(np.log(at.end_slack))
        return at.stages["cost"].sum(axis=1) + at.end["cost"] - at.barrier * logs

    def _finish(self, at: Iterate, iterations: Numbers, status: list[str]) -> Solution:
        B = len(status)
        scores = self.scores(at)
        first, values = self.sweep(at, np.zeros(B), MAX_WEIGHT * scores.scale)
        strict = self.begin(first, np.zeros(B), at.nu)[2] & (first.pivot > 1e-12) & self.stage.exact
        known = np.where(np.isfinite(first.S), first.S, 0.0)
        sizes, vectors = np.linalg.eigh(known)
        reached = sizes > 1e-12 * np.maximum(sizes.max(axis=1, initial=0.0), 1e-300)[:, None]
        return Solution(
            at, at.stages["cost"].sum(axis=1) + at.end["cost"], scores.error, scores.gap, iterations, status, strict,
            values[3], reached.sum(axis=1), np.where(reached[:, None, :], 0.0, vectors),
        )  # fmt: skip


class Scores(NamedTuple):
    """Residual of the conditions of first order, with and without the barrier; largest gap; cost; sum of all gaps.

    `scale` is the size of the Hessian.
    """

    error: Numbers
    held: Numbers
    gap: Numbers
    cost: Numbers
    unmet: Numbers
    scale: Numbers


@lru_cache(maxsize=64)
def _count_rows(problem: Any, structure: Any, shapes: tuple[Any, ...]) -> tuple[int, int, int]:
    """How many numbers c, c_N and psi have."""
    leaves = [jax.ShapeDtypeStruct(*each) for each in shapes]  # type: ignore[no-untyped-call]  # JAX has no types
    consts, x, u, target = jax.tree.unflatten(structure, leaves)
    held = jax.eval_shape(problem.judge, consts, x, x, u)[1]
    _, rows, last = jax.eval_shape(problem.end, consts, x, target)
    return held.shape[0], last.shape[0], rows.shape[0]


def _run(advance: Any, observe: Any, carry: Any, rows: Any) -> tuple[Any, Any]:
    """A sweep over the stages of B problems: (B, ...) and (B, N, ...)."""
    B = len(jax.tree.leaves(carry)[0])
    if B > 1:
        return run_rows(advance, observe, (), carry, rows, lanes=B)
    last, all_ = run_rows(advance, observe, (), *jax.tree.map(lambda leaf: leaf[0], (carry, rows)))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], (last, all_))  # type: ignore[no-any-return]


def _lanes(tree: Any, part: slice) -> Any:
    return jax.tree.map(lambda leaf: _merge(leaf[:, part]), tree)


def _merge(leaf: Numbers) -> Any:
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _split(leaf: Numbers, B: int, N: int) -> Any:
    return leaf.reshape(B, N, *leaf.shape[1:])


def _stay(mark: Numbers, at: Iterate, step: Any) -> Any:
    """The step, zero for the marked problems: it may be infinite, and costates are not steps."""
    if not mark.any():
        return step
    still = [np.zeros(1)] * len(step)
    still[2:4] = [at.costate, at.nu]
    return tuple(np.where(mark.reshape(-1, *(1,) * (b.ndim - 1)), a, b) for a, b in zip(still, step, strict=True))


def _t(matrix: Numbers) -> Any:
    return np.swapaxes(matrix, -1, -2)


def _mv(matrix: Numbers, vector: Numbers) -> Any:
    return (matrix @ vector[..., None])[..., 0]


def _sum(leaf: Numbers) -> Any:
    return leaf.reshape(len(leaf), -1).sum(axis=1)


def _most(leaf: Numbers) -> Any:
    return np.abs(leaf.reshape(len(leaf), -1)).max(axis=1, initial=0.0)


def _longest(value: Numbers, change: Numbers) -> Any:
    """How far a step may go, at most 1, so that positive numbers keep a part of themselves."""
    with np.errstate(divide="ignore", invalid="ignore"):
        limit = np.where(change < 0, -FRACTION * value / change, np.inf)
    return np.minimum(1.0, limit.reshape(len(value), -1).min(axis=1, initial=np.inf))


def _pseudo_inverse(matrix: Numbers) -> Any:
    """The inverse of symmetric matrices, zero on directions that are null."""
    if not matrix.shape[-1]:
        return matrix
    if not np.isfinite(matrix).all():
        return np.zeros_like(matrix)
    with suppress(np.linalg.LinAlgError):
        inverse = np.linalg.inv(matrix)
        if (np.abs(matrix).sum(axis=-1).max(axis=-1) * np.abs(inverse).sum(axis=-1).max(axis=-1) < 1e10).all():
            return inverse
    sizes, vectors = np.linalg.eigh(matrix)
    small = np.abs(sizes) <= 1e-13 * np.abs(sizes).max(axis=-1, keepdims=True)
    return (vectors * np.where(small, 0.0, 1.0 / np.where(small, 1.0, sizes))[..., None, :]) @ _t(vectors)
