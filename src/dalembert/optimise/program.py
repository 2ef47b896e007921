"""The discrete problem of a plan for other solvers, as IPOPT wants it: `NonlinearProgram` has the protocol of cyipopt.

    minimise F(z)  such that  least <= G(z) <= most and low <= z <= high,
    z = (y, u_0, d_1, u_1, d_2, ..., u_{N-1}, d_N).

y are the coordinates of the start that are free, d_k those of node k in the chart at node k of the first guess, so that
configurations stay on the group. G are the gaps f(x_k, u_k) - x_{k+1}, then what the steps hold, the goal, and what the
end holds. Values, slopes and the exact Hessian come from the stages of our own solver, all at once, in native code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..kernels import LoweringError, Of, evaluate, evaluate_rows, part_of
from ..numerics import call_own, finite_reals, show
from ..numerics.types import Array
from .solver import (
    Derived,
    End,
    Iterate,
    Multipliers,
    Options,
    Solution,
    Solver,
    Stages,
    _derive_end,
    count_rows,
    join,
)  # fmt: skip

Numbers = np.ndarray[Any, Any]
FAR = 1e300  # a slack so large that it does not act
LEAST_FACTOR = 1e-20  # of the cost, in place of 0
SLOPPY = 100.0  # tolerances by which the residual of an answer may be larger than the solver said
MULTIPLIERS = ("mult_g", "mult_x_L", "mult_x_U")  # as cyipopt names them
PAST, NEXT = slice(None, -1), slice(1, None)


class Charted(NamedTuple):
    """A point by its coordinates in the chart at a fixed one, and the fixed one of the next stage."""

    at: Any
    d: Any
    next: Any


@dataclass(frozen=True)
class Flat:
    """A problem with its points in fixed charts: they are vectors."""

    problem: Any
    dim: int
    controls: int

    def point(self, consts: Any, x: Charted) -> Any:
        return self.problem.move(consts, x.at, x.d)

    def move(self, consts: Any, x: Charted, d: Array) -> Charted:
        return x._replace(d=x.d + d)

    def apart(self, consts: Any, x: Charted, other: Charted) -> Array:
        return other.d - x.d  # type: ignore[no-any-return]

    def advance(self, consts: Any, x: Charted, u: Array) -> Charted:
        after = self.problem.advance(consts, self.point(consts, x), u)
        return Charted(x.next, self.problem.apart(consts, x.next, after), x.next)

    def judge(self, consts: Any, x: Charted, after: Charted, u: Array) -> Any:
        return self.problem.judge(consts, self.point(consts, x), self.point(consts, after), u)

    def end(self, consts: Any, x: Charted, target: Any) -> Any:
        return self.problem.end(consts, self.point(consts, x), target)


def derive_stage(stages: Stages, consts: Any, lane: Any) -> Derived:
    """The values and derivatives of a stage, without a barrier."""
    x, u, after, costate, dual = lane
    nothing = Iterate(*(jnp.zeros_like(part) for part in (x.d, u, costate, dual, dual)))
    old = Iterate(x, u, costate, jnp.full(dual.shape, FAR), dual)
    row = (old, nothing, jnp.array([0.0, 0.0, 0.0, 1.0]), jnp.ones(()), (after, nothing.x), (costate, nothing.x))
    return stages(consts, (), row)[1]


def derive_end(flat: Flat, consts: Any, lane: Any) -> Derived:
    """The values and derivatives of the end, likewise."""
    x, target, nu, dual = lane
    end = End(nu, jnp.full(dual.shape, FAR), dual)
    return _derive_end(flat, consts, x, target, end, jnp.zeros(()), jnp.ones(()), True, jnp.zeros(flat.dim))


def place(flat: Flat, consts: Any, x: Charted) -> Any:
    """The point that coordinates stand for, and their derivative along those in the chart at that point itself."""
    of, here = flat.problem, flat.point(consts, x)
    return here, jax.jacfwd(lambda e: of.apart(consts, x.at, of.move(consts, here, e)))(jnp.zeros(of.dim))


class NonlinearProgram:
    """The discrete problem of a plan as a nonlinear program: the object that `cyipopt.Problem` takes, and its numbers.

    guess         the first z
    low, high     the bounds of z: those of the inputs
    least, most   the bounds of `constraints(z)`
    objective, gradient, constraints, jacobian, jacobianstructure, hessian, hessianstructure: as cyipopt calls them
    """

    def __init__(
        self, discrete: Any, consts: Any, target: Any, free: Numbers, nodes: Any, controls: Numbers, options: Options,
        note: Any = None,
    ) -> None:  # fmt: skip
        self.tolerance, self.max_iterations = options.tolerance, options.max_iterations
        self.note, self.iterations, self.exact = note, 0, True
        unbounded = replace(discrete, bounded=((), ()))  # the inputs have bounds in z
        self.flat = Flat(unbounded, discrete.dim, discrete.controls)
        self.consts = consts[0], consts[1] | {"low": np.zeros(0), "high": np.zeros(0)}
        self.target, self.free, self.nodes = target, free, jax.tree.map(np.asarray, nodes)
        (self.steps, self.m), (self.n, self.f) = controls.shape, free.shape
        self.after = part_of(self.nodes, np.minimum(np.arange(1, self.steps + 2), self.steps))
        stages = self.f + self.m + np.arange(self.steps) * (self.n + self.m)
        self.begins = np.array([0, *stages])  # where the unknowns of each stage begin in z, and those of the end
        self.guess = np.concatenate([np.zeros(self.f), np.c_[controls, np.zeros((self.steps, self.n))].ravel()])
        self.low, self.high = (np.full(self.guess.shape, side) for side in (-np.inf, np.inf))
        self._controls(self.low)[:], self._controls(self.high)[:] = discrete.limits(consts[1])
        first = part_of(self.split(self.guess)[0], 0)
        self.held, self.end_held, self.goals = count_rows(self.flat, self.consts, first, controls[0], target)
        counts = (self.steps * self.n, self.steps * self.held, self.goals, self.end_held)
        self.cuts = np.cumsum([0, *counts])
        self.least, self.most = np.zeros(self.cuts[-1]), np.repeat([0.0, np.inf, 0.0, np.inf], counts)
        self.z, self.known = self.guess, (b"", None)

    def __repr__(self) -> str:
        return f"<NonlinearProgram of {self.steps} steps: {len(self.guess)} unknowns, {len(self.least)} constraints>"

    def no_multipliers(self) -> dict[str, Any]:
        """Zeros for all multipliers."""
        sizes = (len(self.least), len(self.guess), len(self.guess))
        return {key: np.zeros(size) for key, size in zip(MULTIPLIERS, sizes, strict=True)}

    def _controls(self, z: Numbers) -> Numbers:
        """The controls in z, as a view."""
        return z[self.f :].reshape(self.steps, self.m + self.n)[:, : self.m]

    def split(self, z: Numbers) -> tuple[Charted, Numbers]:
        """(the nodes in their charts, the controls)."""
        rows = z[self.f :].reshape(self.steps, self.m + self.n)
        d = np.concatenate([(self.free @ z[: self.f])[None], rows[:, self.m :]])
        return Charted(self.nodes, d, self.after), rows[:, : self.m]

    def _cut(self, multipliers: Numbers) -> tuple[Numbers, ...]:
        """Multipliers of G by their kinds; those of what is held are not negative at an optimum, as in our solver."""
        costate, dual, nu, end_dual = np.split(np.asarray(multipliers, float), self.cuts[1:-1])
        return costate.reshape(self.steps, self.n), -dual.reshape(self.steps, self.held), nu, -end_dual

    def _evaluate(self, z: Numbers, multipliers: Numbers | None = None) -> tuple[Derived, Derived]:
        """All stages and the end at z. What has no multipliers is remembered: solvers ask for it part by part."""
        z = np.array(z, float)
        if multipliers is None and self.known[0] == z.tobytes():
            return self.known[1]  # type: ignore[return-value]
        costate, dual, nu, end_dual = self._cut(np.zeros(len(self.least)) if multipliers is None else multipliers)
        x, u = self.split(z)
        lane = (part_of(x, PAST), u, part_of(x, NEXT), costate, dual)
        try:
            made = evaluate_rows(Of(derive_stage, Stages(self.flat, self.exact)), self.consts, lane, backend="llvm")
        except LoweringError:
            if not self.exact:
                raise
            self.exact = False  # the step is too large for its second derivatives
            return self._evaluate(z, multipliers)
        last = evaluate(Of(derive_end, self.flat), self.consts, (part_of(x, -1), self.target, nu, end_dual))
        found: tuple[Derived, Derived] = jax.tree.map(np.asarray, (made, last))
        if multipliers is None:
            self.z, self.known = z, (z.tobytes(), found)  # type: ignore[assignment]
        return found

    def _narrow(self, rows: Numbers) -> Numbers:
        """Derivatives in (d_0, u_0), in the free part of d_0 alone."""
        return np.concatenate([rows[..., : self.n] @ self.free, rows[..., self.n :]], axis=-1)

    def _width(self, k: int) -> int:
        """How many unknowns stage k has: of its node and its control."""
        return int((self.n if k else self.f) + (self.m if k < self.steps else 0))

    # -- the protocol --------------------------------------------------------------------------------------------------
    def objective(self, z: Numbers) -> float:
        """F(z)."""
        stages, end = self._evaluate(z)
        return float(stages.sums[:, 0].sum() + end.sums[0])

    def gradient(self, z: Numbers) -> Numbers:
        """The derivative of F."""
        stages, end = self._evaluate(z)
        return np.concatenate([self._narrow(stages.slope[0]), stages.slope[1:].ravel(), end.slope])

    def constraints(self, z: Numbers) -> Numbers:
        """G(z)."""
        stages, end = self._evaluate(z)
        return np.concatenate([stages.gap.ravel(), stages.held.ravel(), end.gap, end.held])

    def jacobian(self, z: Numbers) -> Numbers:
        """The derivatives of G that are not always zero."""
        stages, end = self._evaluate(z)
        parts = [part for rows in (stages.AB, stages.J) for part in (self._narrow(rows[0]), rows[1:])]
        behind = -np.ones(self.steps * self.n)
        return np.concatenate([part.ravel() for part in (*parts, end.AB, end.J, behind)])

    def jacobianstructure(self) -> tuple[Numbers, Numbers]:
        """(rows, columns) of `jacobian`."""
        n, N, cuts = self.n, self.steps, self.cuts
        blocks = [(cuts[0] + k * n, n, k) for k in range(N)]
        blocks += [(cuts[1] + k * self.held, self.held, k) for k in range(N)]
        blocks += [(cuts[2], self.goals, N), (cuts[3], self.end_held, N)]
        places = [
            np.array([[row], [self.begins[k]]]) + np.indices((count, self._width(k))).reshape(2, -1)
            for row, count, k in blocks
        ]
        behind = np.stack([np.arange(N * n), (self.begins[1:, None] + np.arange(n)).ravel()])
        rows, columns = np.concatenate([*places, behind], axis=1)
        return rows, columns

    def hessian(self, z: Numbers, multipliers: Numbers, factor: float) -> Numbers:
        """The lower triangles of the Hessian of factor F + multipliers . G, stage by stage."""
        factor = max(float(factor), LEAST_FACTOR)  # the stages weigh the cost by 1
        stages, end = self._evaluate(z, np.asarray(multipliers) / factor)
        first = self._narrow(self._narrow(stages.hessian[0]).T)
        parts = []
        for k, matrices in ((0, first), (1, stages.hessian[1:]), (self.steps, end.hessian)):
            rows, columns = np.tril_indices(self._width(k))
            parts.append(matrices[..., rows, columns].ravel())
        return factor * np.concatenate(parts)

    def hessianstructure(self) -> tuple[Numbers, Numbers]:
        """(rows, columns) of `hessian`."""
        triangles = [begin + np.array(np.tril_indices(self._width(k))) for k, begin in enumerate(self.begins)]
        rows, columns = np.concatenate(triangles, axis=1)
        return rows, columns

    def intermediate(self, mode: int, iterations: int, value: float, unmet: float, slope: float, *rest: Any) -> bool:
        """What IPOPT reports of an iteration."""
        self.iterations = iterations
        if self.note is not None:
            self.note(iterations, slope, unmet)
        return True

    # -- the answer ----------------------------------------------------------------------------------------------------
    def solution(self, z: Numbers, info: Mapping[str, Any], discrete: Any, consts: Any) -> Solution:
        """Check what another solver found: compute its residual, second-order condition and feedback."""
        x, u = self.split(z)
        given, below, above = (np.asarray(info[key], float) for key in MULTIPLIERS)
        costate, dual, nu, end_dual = self._cut(given)
        nodes, turned = evaluate_rows(Of(place, self.flat), self.consts, x)
        costate = np.einsum("ki,kij->kj", costate, np.asarray(turned)[1:])
        sides = zip((below, above), map(list, discrete.bounded), strict=True)
        dual = np.concatenate([*(self._controls(side)[:, places] for side, places in sides), dual], axis=1)
        known = Multipliers(costate, np.maximum(dual, 0.0), nu, np.maximum(end_dual, 0.0))
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[None], ((nodes, u, self.target), known))
        options = Options(self.tolerance, self.max_iterations, scaled=False)
        found = Solver(discrete, consts, self.free, options).judge(*rows)
        code = info.get("status", 0)
        good = code == 0 and found.error[0] <= SLOPPY * self.tolerance
        word = info.get("word", "optimal" if good else "too many iterations" if code == -1 else "stalled")
        return found._replace(status=[word], iterations=np.array([self.iterations]))


def solve_by(
    solver: Callable[[NonlinearProgram], Any], discrete: Any, consts: Any, free: Numbers, options: Options, note: Any,
    given: Callable[[slice], Any], count: int,
) -> Solution:  # fmt: skip
    """What `solver` finds for problems from nodes, controls and target = given(part), one after another."""
    found = []
    for b in range(count):
        nodes, u, own = part_of(given(slice(b, b + 1)), 0)
        program = NonlinearProgram(discrete, consts, own, free, nodes, u, options, note)
        try:
            z, info = _read_answer(program, call_own("solver(program)", solver, program))
        except KeyboardInterrupt:
            z, info = program.z, {"word": "interrupted"} | program.no_multipliers()
        found.append(program.solution(z, info, discrete, consts))
        if found[-1].status[0] == "interrupted":
            break
    while len(found) < count:
        found.append(found[-1])
    return Solution(*(join(parts) for parts in zip(*found, strict=True)))


def _read_answer(program: NonlinearProgram, answer: Any) -> tuple[Numbers, dict[str, Any]]:
    """(z, multipliers) that a solver gave, checked."""
    allowed = f"solver(program) gave {show(answer)}; allowed: (z, {{{', '.join(MULTIPLIERS)}}}), as cyipopt's solve"
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)):
        raise InvalidInput(allowed)
    info = program.no_multipliers() | dict(answer[1])
    numbers = [
        np.asarray(finite_reals("what solver(program) gave", each)) for each in (answer[0], *map(info.get, MULTIPLIERS))
    ]
    sizes = [len(program.guess), len(program.least), len(program.guess), len(program.guess)]
    if [each.shape for each in numbers] != [(size,) for size in sizes]:
        raise InvalidInput(f"{allowed}, of {sizes[0]} unknowns and {sizes[1]} constraints")
    return numbers[0], info | dict(zip(MULTIPLIERS, numbers[1:], strict=True))


def ipopt(program: NonlinearProgram) -> Any:
    """What IPOPT finds, through cyipopt."""
    try:
        import cyipopt
    except ImportError as fault:
        raise InvalidInput(
            "solver is 'ipopt', which needs the package cyipopt with IPOPT's library: pip install 'dalembert[ipopt]' "
            "where the library is, or conda install cyipopt, which brings it. Without a solver our own finds the plan"
        ) from fault
    sizes = {"n": len(program.guess), "m": len(program.least), "lb": program.low, "ub": program.high}
    problem = cyipopt.Problem(problem_obj=program, cl=program.least, cu=program.most, **sizes)
    options = {"tol": program.tolerance, "max_iter": program.max_iterations, "print_level": 0, "sb": "yes"}
    options["bound_relax_factor"] = 0.0  # what is bounded stays so
    for name, value in options.items():
        problem.add_option(name, value)
    return problem.solve(program.guess)


SOLVERS: dict[str, Callable[[NonlinearProgram], Any]] = {"ipopt": ipopt}
