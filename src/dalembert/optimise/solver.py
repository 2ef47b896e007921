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
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..kernels import evaluate, run_rows, shapes_of
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

    def step(self, consts: Any, x: Point, u: Array) -> tuple[Point, Array, Array]:
        """(f, l, c) at (x, u)."""

    def end(self, consts: Any, x: Point, target: Any) -> tuple[Array, Array, Array]:
        """(Phi, psi, c_N) at x."""


@dataclass(frozen=True)
class StageKernel:
    """Value, derivatives and condensed barrier of one stage, at its point moved by dx."""

    problem: Any

    def __call__(self, consts: Any, lane: Any) -> dict[str, Any]:
        of, (x, dx, x1, dx1, u, multiplier, slack, dual, barrier) = self.problem, lane
        here, next_ = of.move(consts, x, dx), of.move(consts, x1, dx1)

        def parts(d: Array) -> tuple[Array, Array, Array]:
            there, cost, held = of.step(consts, of.move(consts, here, d[: of.dim]), u + d[of.dim :])
            return of.apart(consts, next_, there), cost, held

        return _derive(parts, multiplier, slack, dual, barrier, of.dim + of.controls) | {"x": here}


@dataclass(frozen=True)
class EndKernel:
    """The same of the end: psi takes the place of the gap f(x_k, u_k) - x_{k+1}."""

    problem: Any

    def __call__(self, consts: Any, lane: Any) -> dict[str, Any]:
        of, (x, dx, target, multiplier, slack, dual, barrier) = self.problem, lane
        here = of.move(consts, x, dx)

        def parts(d: Array) -> tuple[Array, Array, Array]:
            cost, goal, held = of.end(consts, of.move(consts, here, d), target)
            return goal, cost, held

        return _derive(parts, multiplier, slack, dual, barrier, of.dim) | {"x": here}


def _derive(
    parts: Callable[[Array], tuple[Array, Array, Array]],
    multiplier: Array, slack: Array, dual: Array, barrier: Array, size: int,
) -> dict[str, Any]:  # fmt: skip
    """Derivatives at d = 0 of (equations, cost, constraints): Newton's step in slack and dual is eliminated."""

    def stacked(d: Array) -> Array:
        gap, cost, held = parts(d)
        return jnp.concatenate([gap, cost[None], held])

    def lagrangian(d: Array) -> Array:
        gap, cost, held = parts(d)
        return cost + multiplier @ gap - dual @ held

    zero = jnp.zeros(size)
    value, slopes, hessian = stacked(zero), jax.jacfwd(stacked)(zero), jax.jacfwd(jax.grad(lagrangian))(zero)
    n = multiplier.shape[0]
    gap, cost, held = value[:n], value[n], value[n + 1 :]
    AB, slope, J = slopes[:n], slopes[n], slopes[n + 1 :]
    weight, off = dual / slack, held - slack
    return {
        "gap": gap, "cost": cost, "held": held, "AB": AB, "slope": slope, "J": J,
        "hessian": hessian + (J.T * weight) @ J,
        "gradient": slope - J.T @ (barrier / slack - weight * off),
        "lagrange": slope + multiplier @ AB - dual @ J,
    }  # fmt: skip


class Value(NamedTuple):
    """The value function V_k with the feedback of its stage, u = K d + k + M nu, and the least pivot so far."""

    P: Array
    p: Array
    L: Array
    S: Array
    s: Array
    K: Array
    k: Array
    M: Array
    pivot: Array


def sweep_back(consts: Any, after: Value, row: Any) -> Value:
    """V_k from V_{k+1}: the stage's quadratic model plus V_{k+1} along the linearised step, least in u."""
    hessian, gradient, AB, gap, shift = row
    n = after.p.shape[0]
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


def _value(consts: Any, value: Value) -> Value:
    return value


class Motion(NamedTuple):
    """An increment of a node and of the control before it, under the multipliers nu."""

    d: Array
    u: Array
    nu: Array


def sweep_forward(consts: Any, before: Motion, row: Any) -> Motion:
    """d_{k+1} = A d + B u + gap with u = K d + k + M nu."""
    AB, gap, K, k, M = row
    u = K @ before.d + k + M @ before.nu
    return Motion(AB @ jnp.concatenate([before.d, u]) + gap, u, before.nu)


def _motion(consts: Any, motion: Motion) -> tuple[Array, Array]:
    return motion.d, motion.u


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
    """Newton's iteration on one kind of problem."""

    def __init__(self, problem: Any, consts: Any, target: Any, free: Numbers, options: Options, note: Any = None):
        self.problem, self.consts, self.target, self.options, self.note = problem, consts, target, options, note
        self.free = free  # (dim, f): d_0 = free @ y
        self.stage, self.last = StageKernel(problem), EndKernel(problem)

    # -- evaluation ----------------------------------------------------------------------------------------------------
    def evaluate(self, at: Iterate, dx: Numbers) -> None:
        """Move all points by dx, and find values and derivatives there."""
        B, N = at.u.shape[:2]

        def lanes(tree: Any, part: slice) -> Any:
            return jax.tree.map(lambda leaf: _merge(leaf[:, part]), tree)

        head, tail = slice(0, N), slice(1, N + 1)
        lane = (
            lanes(at.x, head), lanes(dx, head), lanes(at.x, tail), lanes(dx, tail), _merge(at.u), _merge(at.costate),
            _merge(at.slack), _merge(at.dual), np.repeat(at.barrier, N),
        )  # fmt: skip
        made = evaluate(self.stage, self.consts, lane, lanes=B * N, axes=(None, 0))
        at.stages = jax.tree.map(lambda leaf: leaf.reshape(B, N, *leaf.shape[1:]), made)
        last = (
            jax.tree.map(lambda leaf: leaf[:, -1], at.x), dx[:, -1], self.target, at.nu, at.end_slack, at.end_dual,
            at.barrier,
        )  # fmt: skip
        at.end = evaluate(self.last, self.consts, last, lanes=B, axes=(None, 0))
        at.x = jax.tree.map(lambda a, b: np.concatenate([a, b[:, None]], axis=1), at.stages.pop("x"), at.end.pop("x"))

    # -- the linear equations ------------------------------------------------------------------------------------------
    def sweep(self, at: Iterate, shift: Numbers, weight: Numbers) -> tuple[Value, Value]:
        """(V_0, V_k and feedback of all stages) with `shift` on the diagonal and `weight` on psi = 0."""
        (B, N), end, of = at.u.shape[:2], at.end, self.problem
        C, n, r = end["AB"], of.dim, of.controls
        rows = end["gap"].shape[1]
        P = end["hessian"] + shift[:, None, None] * np.eye(n) + weight[:, None, None] * _t(C) @ C
        p = end["gradient"] + weight[:, None] * _mv(_t(C), end["gap"])
        first = Value(
            P, p, _t(C), np.zeros((B, rows, rows)), end["gap"], np.zeros((B, r, n)), np.zeros((B, r)),
            np.zeros((B, r, rows)), np.full(B, np.inf),
        )  # fmt: skip
        shifts = np.repeat(shift[:, None], N, axis=1)
        stage = [at.stages[name][:, ::-1] for name in ("hessian", "gradient", "AB", "gap")]
        last, all_ = _run(sweep_back, _value, first, (*stage, shifts))
        return last, jax.tree.map(lambda leaf: leaf[:, ::-1], all_)

    def begin(self, value: Value) -> tuple[Numbers, Numbers, Numbers]:
        """(d_0, nu, whether V_0 is least there): the free parts of the start, and the multipliers of the goal."""
        B, n = value.p.shape
        d, free, q = np.zeros((B, n)), self.free, value.s.shape[1]
        f = free.shape[1]
        if not f + q:
            return d, np.zeros((B, 0)), np.ones(B, bool)
        P, L = free.T @ value.P @ free, free.T @ value.L
        inverse = _pseudo_inverse(value.S)
        reduced = P + L @ inverse @ _t(L)
        good = np.ones(B, bool)
        if f:
            right = value.p @ free + _mv(L, _mv(inverse, value.s))
            sizes = np.linalg.eigvalsh(reduced) if np.isfinite(reduced).all() else np.full((B, f), -1.0)
            good = sizes[:, 0] > 1e-14 * np.abs(sizes).max(axis=1)
            safe = np.where(good[:, None, None], reduced, np.eye(f))
            d = -np.linalg.solve(safe, right[..., None])[..., 0] @ free.T
        nu = _mv(inverse, value.s + _mv(_t(value.L), d))
        return d, nu, good

    def step(self, at: Iterate, shift: Numbers) -> tuple[Any, ...]:
        """Newton's step; `shift` grows where the model has no minimum, and shrinks where it has one."""
        B = len(shift)
        scale = 1.0 + np.abs(at.stages["hessian"]).max(axis=(1, 2, 3))
        used, weight = np.where(shift > 1e-9 * scale, shift / 8, 0.0), self.weight * scale
        while True:
            first, values = self.sweep(at, used, weight)
            d, nu, good = self.begin(first)
            good &= (first.pivot > 1e-12) & np.isfinite(first.pivot)
            bad = ~good & (used < MAX_SHIFT * scale)
            if not bad.any():
                break
            light = bad & (self.weight < MAX_WEIGHT)
            self.weight[light] *= 1e3
            weight[light] = self.weight[light] * scale[light]
            heavy = bad & ~light
            used[heavy] = np.maximum(8.0 * used[heavy], 1e-6 * scale[heavy])
        stages = at.stages
        start = Motion(d, np.zeros((B, self.problem.controls)), nu)
        rows = (stages["AB"], stages["gap"], values.K, values.k, values.M)
        _, (after, du) = _run(sweep_forward, _motion, start, rows)
        dx = np.concatenate([d[:, None], after], axis=1)
        costate = _mv(values.P, dx[:, :-1]) + values.p + np.einsum("bkij,bj->bki", values.L, nu)
        end = at.end
        C = end["AB"]
        # V_N without the weight on psi, whose multiplier changes by what the weight adds
        last = end["hessian"] + used[:, None, None] * np.eye(self.problem.dim)
        nu = nu + weight[:, None] * (end["gap"] + _mv(C, dx[:, -1]))
        final = _mv(last, dx[:, -1]) + end["gradient"] + _mv(_t(C), nu)
        costate = np.concatenate([costate[:, 1:], final[:, None]], axis=1)
        return dx, du, costate, nu, used, good, values

    # -- the iteration -------------------------------------------------------------------------------------------------
    def solve(self, x: Any, u: Numbers) -> Solution:
        """Solve from the nodes x (B, N + 1, ...) and the controls u (B, N, ...)."""
        options, B = self.options, len(u)
        at, self.weight = self._first(x, u), np.ones(B)
        shift, merits, iterations = np.zeros(B), [], np.zeros(B, int)
        status = ["" for _ in range(B)]
        penalty = np.zeros(B)
        values: Value | None = None
        for count in range(options.max_iterations + 1):
            errors, gaps = self.errors(at)
            done = errors <= options.tolerance
            lower = self._lower_barrier(at)
            status = ["optimal" if ok and last else word for ok, last, word in zip(done, lower, status, strict=True)]
            active = np.array([not word for word in status])
            if self.note is not None:
                self.note(count, at, errors, gaps)
            if not active.any() or count == options.max_iterations:
                break
            dx, du, costate, nu, shift, good, values = self.step(at, shift)
            found, accepted = self._search(at, dx, du, costate, nu, active, penalty, merits, shift)
            iterations[active] += 1
            for b in np.flatnonzero(active & ~accepted):
                if not good[b] or shift[b] > 1e6:
                    status[b] = "stalled"
                shift[b] = max(shift[b] * 100.0, 1e-2)
            at = found
        status = [word or "too many iterations" for word in status]
        return self._finish(at, values, iterations, status)

    def _first(self, x: Any, u: Numbers) -> Iterate:
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
        self.evaluate(at, np.zeros((B, N + 1, of.dim)))
        if held + last:
            at.slack, at.end_slack = (np.maximum(part["held"], 1e-2) for part in (at.stages, at.end))
            at.dual, at.end_dual = barrier[:, None, None] / at.slack, barrier[:, None] / at.end_slack
            self.evaluate(at, np.zeros((B, N + 1, of.dim)))
        return at

    def errors(self, at: Iterate) -> tuple[Numbers, Numbers]:
        """(residual of the conditions at barrier 0, infeasibility), the largest of each problem."""
        error, gap = self._residual(at, np.zeros_like(at.barrier))
        return error, gap

    def _residual(self, at: Iterate, barrier: Numbers) -> tuple[Numbers, Numbers]:
        n, stages, end = self.problem.dim, at.stages, at.end
        slope = stages["lagrange"].copy()
        slope[:, 1:, :n] -= at.costate[:, :-1]
        slope[:, 0, :n] = slope[:, 0, :n] @ self.free @ self.free.T
        last = end["lagrange"] - at.costate[:, -1]
        size = max(1, at.costate[0].size + at.nu[0].size + at.dual[0].size)
        total = _sum(np.abs(at.costate)) + _sum(np.abs(at.nu)) + _sum(at.dual) + _sum(at.end_dual)
        scale = np.maximum(1.0, total / size / 100.0)
        gap = np.maximum.reduce([
            _most(stages["gap"]), _most(end["gap"]), _most(stages["held"] - at.slack), _most(end["held"] - at.end_slack)
        ])  # fmt: skip
        slack = np.maximum(
            _most(at.slack * at.dual - barrier[:, None, None]), _most(at.end_slack * at.end_dual - barrier[:, None])
        )
        error = np.maximum.reduce([np.maximum(_most(slope), _most(last)) / scale, gap, slack / scale])
        return np.where(np.isfinite(error), error, np.inf), gap

    def _lower_barrier(self, at: Iterate) -> Numbers:
        """Lower the barrier where its problem is solved; whether it is as low as the tolerance asks."""
        least = self.options.tolerance / 10.0
        while True:
            error = self._residual(at, at.barrier)[0]
            lower = (error <= 10.0 * at.barrier) & (at.barrier > least)
            if not lower.any():
                return at.barrier <= 1.01 * least
            new = np.maximum(least, np.minimum(0.2 * at.barrier, at.barrier**1.5))
            at.barrier = np.where(lower, new, at.barrier)
            self._condense(at)

    def _condense(self, at: Iterate) -> None:
        """The gradients for another barrier."""
        for part, slack, dual, barrier in (
            (at.stages, at.slack, at.dual, at.barrier[:, None, None]),
            (at.end, at.end_slack, at.end_dual, at.barrier[:, None]),
        ):
            pull = barrier / slack - dual / slack * (part["held"] - slack)
            part["gradient"] = part["slope"] - np.einsum("...ij,...i->...j", part["J"], pull)

    def _merit(self, at: Iterate, penalty: Numbers) -> tuple[Numbers, Numbers]:
        """(cost and barrier, sum of what is not met)."""
        stages, end = at.stages, at.end
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = _sum(np.log(at.slack)) + _sum(np.log(at.end_slack))
        cost = stages["cost"].sum(axis=1) + end["cost"] - np.where(at.barrier > 0, at.barrier * logs, 0.0)
        off = [stages["gap"], end["gap"], stages["held"] - at.slack, end["held"] - at.end_slack]
        return cost, np.sum([_sum(np.abs(part)) for part in off], axis=0)

    def _search(
        self, at: Iterate, dx: Numbers, du: Numbers, costate: Numbers, nu: Numbers, active: Numbers, penalty: Numbers,
        merits: list[tuple[Numbers, Numbers]], shift: Numbers,
    ) -> tuple[Iterate, Numbers]:  # fmt: skip
        """The longest step that lowers the merit: cost and barrier plus a multiple of what is not met."""
        stages, end = at.stages, at.end
        dz = np.concatenate([dx[:, :-1], du], axis=2)
        barriers = at.barrier[:, None, None], at.barrier[:, None]
        ds = _mv(stages["J"], dz) + stages["held"] - at.slack
        dse = _mv(end["J"], dx[:, -1]) + end["held"] - at.end_slack
        dy = barriers[0] / at.slack - at.dual - at.dual / at.slack * ds
        dye = barriers[1] / at.end_slack - at.end_dual - at.end_dual / at.end_slack * dse
        primal = np.minimum(_longest(at.slack, ds), _longest(at.end_slack, dse))
        dual = np.minimum(_longest(at.dual, dy), _longest(at.end_dual, dye))
        cost, off = self._merit(at, penalty)
        slope = (
            np.einsum("bki,bki->b", stages["slope"], dz) + np.einsum("bi,bi->b", end["slope"], dx[:, -1])
            - _sum(barriers[0] * ds / at.slack) - _sum(barriers[1] * dse / at.end_slack)
        )  # fmt: skip
        size = np.maximum.reduce([_most(costate), _most(nu), _most(at.dual + dy), _most(at.end_dual + dye)])
        penalty[:] = np.maximum(size, 0.5 * (penalty + size))
        before = cost + penalty * off
        merits.append((cost, off))
        del merits[:-MEMORY]
        reference = np.max([a + penalty * b for a, b in merits], axis=0)
        descent = np.minimum(slope - penalty * off, 0.0)
        length = np.where(active, primal, 0.0)
        accepted = ~active
        for _ in range(MAX_HALVINGS):
            a, a2, a3 = length, length[:, None], length[:, None, None]
            b3, b2 = np.where(active, dual, 0.0)[:, None, None], np.where(active, dual, 0.0)[:, None]
            trial = Iterate(
                at.x, at.u + a3 * du, at.costate + a3 * (costate - at.costate), at.nu + a2 * (nu - at.nu),
                at.slack + a3 * ds, at.dual + b3 * dy, at.end_slack + a2 * dse, at.end_dual + b2 * dye, at.barrier,
            )  # fmt: skip
            self.evaluate(trial, a3 * dx)
            new_cost, new_off = self._merit(trial, penalty)
            merit = new_cost + penalty * new_off
            known = np.isfinite(merit) & np.isfinite(trial.stages["hessian"]).all(axis=(1, 2, 3))
            noise = 1e-13 * (1.0 + np.abs(before))
            enough = merit <= reference + 1e-4 * a * descent + noise
            accepted = accepted | (known & enough)
            if accepted.all():
                break
            length = np.where(accepted, length, 0.5 * length)
        if not accepted.all():  # stay
            length = np.where(accepted, length, 0.0)
            keep = ~accepted
            trial = Iterate(
                at.x, at.u + length[:, None, None] * du,
                *(np.where(_wide(keep, a), a, b) for a, b in (
                    (at.costate, trial.costate), (at.nu, trial.nu), (at.slack, trial.slack), (at.dual, trial.dual),
                    (at.end_slack, trial.end_slack), (at.end_dual, trial.end_dual))),
                at.barrier,
            )  # fmt: skip
            self.evaluate(trial, length[:, None, None] * dx)
        return trial, accepted

    def _finish(self, at: Iterate, values: Value | None, iterations: Numbers, status: list[str]) -> Solution:
        B = len(status)
        scale = 1.0 + np.abs(at.stages["hessian"]).max(axis=(1, 2, 3))
        first, values = self.sweep(at, np.zeros(B), MAX_WEIGHT * scale)
        good = self.begin(first)[2]
        strict = good & (first.pivot > 1e-12)
        error, gap = self.errors(at)
        sizes, vectors = np.linalg.eigh(first.S) if np.isfinite(first.S).all() else (np.ones_like(first.s), first.S)
        reached = sizes > 1e-12 * np.maximum(sizes.max(axis=1, initial=0.0), 1e-300)[:, None]
        unreached = np.where(reached[:, None, :], 0.0, vectors)
        return Solution(
            at, at.stages["cost"].sum(axis=1) + at.end["cost"], error, gap, iterations, status, strict, values.K,
            reached.sum(axis=1), unreached,
        )  # fmt: skip


@lru_cache(maxsize=64)
def _count_rows(problem: Any, structure: Any, shapes: tuple[Any, ...]) -> tuple[int, int, int]:
    """How many numbers c, c_N and psi have."""
    leaves = [jax.ShapeDtypeStruct(*each) for each in shapes]  # type: ignore[no-untyped-call]  # JAX has no types
    consts, x, u, target = jax.tree.unflatten(structure, leaves)
    held = jax.eval_shape(problem.step, consts, x, u)[2]
    _, rows, last = jax.eval_shape(problem.end, consts, x, target)
    return held.shape[0], last.shape[0], rows.shape[0]


def _run(advance: Any, observe: Any, carry: Any, rows: Any) -> tuple[Any, Any]:
    """A sweep over the stages of B problems: (B, ...) and (B, N, ...)."""
    B = len(jax.tree.leaves(carry)[0])
    if B > 1:
        return run_rows(advance, observe, (), carry, rows, lanes=B)
    last, all_ = run_rows(advance, observe, (), *jax.tree.map(lambda leaf: leaf[0], (carry, rows)))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], (last, all_))  # type: ignore[no-any-return]


def _merge(leaf: Numbers) -> Numbers:
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _t(matrix: Numbers) -> Numbers:
    return np.swapaxes(matrix, -1, -2)


def _mv(matrix: Numbers, vector: Numbers) -> Numbers:
    return (matrix @ vector[..., None])[..., 0]


def _sum(leaf: Numbers) -> Numbers:
    return leaf.reshape(len(leaf), -1).sum(axis=1)


def _most(leaf: Numbers) -> Numbers:
    return np.abs(leaf.reshape(len(leaf), -1)).max(axis=1, initial=0.0)


def _wide(mark: Numbers, leaf: Numbers) -> Numbers:
    return mark.reshape(-1, *(1,) * (leaf.ndim - 1))


def _longest(value: Numbers, change: Numbers) -> Numbers:
    """How far a step may go, at most 1, so that positive numbers keep a part of themselves."""
    with np.errstate(divide="ignore", invalid="ignore"):
        limit = np.where(change < 0, -FRACTION * value / change, np.inf)
    return np.minimum(1.0, limit.reshape(len(value), -1).min(axis=1, initial=np.inf))


def _pseudo_inverse(matrix: Numbers) -> Numbers:
    """The inverse of symmetric matrices, zero on directions that are null."""
    if not matrix.shape[-1]:
        return matrix
    if not np.isfinite(matrix).all():
        return np.zeros_like(matrix)
    sizes, vectors = np.linalg.eigh(matrix)
    small = np.abs(sizes) <= 1e-13 * np.abs(sizes).max(axis=-1, keepdims=True)
    return (vectors * np.where(small, 0.0, 1.0 / np.where(small, 1.0, sizes))[..., None, :]) @ _t(vectors)
