"""Controls for a goal: `plan` finds the motion of least cost that a method can make from a start to a goal.

The discrete problem is the method's own: x_{k+1} is its step from x_k = (g_k, w_k) under the control u_k, which is held
during the step, so that a simulation with the controls of the plan repeats its motion. Configurations stay on the
group, velocities on D: w are n - m of the velocities, and the constraint gives the others. The conditions of first
order are the discrete Euler-Lagrange-Pontryagin equations of this method (Junge, Marsden and Ober-Bloebaum 2005;
Kobilarov and Marsden 2011), and its costates are transported by the adjoint of its step.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, NumericalFailure, UnknownName, match_names, require_name, spell
from ..groups import Cayley, Group, Retraction
from ..integrators import OK, Integrator, LagrangeDAlembert, ProjectedRungeKutta, RungeKutta, require_arguments
from ..integrators.base import NodeMethod, PhaseMethod
from ..kernels import (
    LoweringError,
    Of,
    Template,
    evaluate,
    evaluate_rows,
    has_gpu,
    is_own,
    map_rows,
    part_of,
    run_rows,
    take_numbers,
)
from ..mechanics import (
    Accessibility,
    Input,
    MechanicalSystem,
    Named,
    NonlinearSystem,
    State,
    accessibility,
    choose_velocities,
    names_of,
    nonholonomy,
    observe,
    read_names,
    start_by_names,
)
from ..mechanics.system import constraint_at, unify
from ..numerics import checks, find_root, show, solve
from ..numerics.types import Array, Element, Scalar, Velocity
from ..plotting import plot_controlled
from ..trajectory import Trajectory, simulate
from .program import SOLVERS, solve_by
from .solver import NOTHING, Multipliers, Options, Solution, Solver

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = np.ndarray[Any, Any]
CORRECTIONS = 3  # of a configuration that is not on its group; each squares the defect
AMPLITUDE = 0.3  # of the waves in a first guess
OPEN = (-math.inf, math.inf)
FUNCTIONS = ("cost", "final_cost", "path", "goal")  # of the user's
ENDS = ("wanted", "aims", "cycle", "times", "in final_cost", "in goal")  # numbers of the end alone
ROUGHNESS = 0.1  # weight of T^2 |w'|^2 beside |w|^2 in the roughness of a motion
STAGES = (1.0, 0.1, 0.01, 1e-3, 1e-4, 0.0)  # weights of the roughness beside the cost, both scaled to the same size
REACHED = ("optimal", "feasible")
WITHIN, CROSSED = np.arange(1, 16) / 16, 1e-6  # where in a step the path is asked afterwards, and what is said of it
ENDLESS = 1e12  # a cost below its negative has no end
MAX_STEPS, MAX_STARTS = 1_000_000, 10_000
MORE_STARTS, COARSE_STEPS, MAX_TRIAL = 8, 100, 100  # of plans that are tried where one fails, and their iterations
JUDGED_ENDS = 32  # of many starts and goals, where the choice of velocities is judged
BESIDE = 3  # places at the goal where the path is asked
LOOSE = 1e6  # inverse weight, in a first guess, of velocities whose coordinates the goal does not name
LONGEST_STEP = 2.8  # in times of the fastest motion: where Runge-Kutta steps of order 4 stop being stable
BACKENDS, GPU_PLANS = ("auto", "llvm", "cuda"), 512  # with "auto", so many plans go to a GPU


class Node(NamedTuple):
    """A point of the plan: the number of its step, configuration, free velocities, duration, and the first point."""

    k: Any
    g: Any
    w: Any
    duration: Any  # (1,) where it is free, else (0,)
    first: Any  # (g, w) of the start where the motion is to be periodic, else ()


@dataclass(frozen=True)
class Discrete:
    """The discrete problem of a plan, as the solver wants it. Its constants are (system, numbers)."""

    method: Integrator
    dim: int
    controls: int
    kinematic: bool
    redundant: bool  # w are all velocities, projected onto D
    leaves_group: bool  # the method does, and is put back
    explicit: bool  # the constraint does not depend on g
    free_time: bool
    periodic: bool
    cost: Any
    final_cost: Any
    path: Any
    goal: Any
    named: Named | None  # of a goal by names
    bounded: tuple[tuple[int, ...], tuple[int, ...]]  # inputs with a lower and with an upper bound
    watched: tuple[tuple[int, ...], tuple[int, ...]]  # the same of named coordinates and rates
    chart: Retraction = Cayley()

    # -- points --------------------------------------------------------------------------------------------------------
    def move(self, consts: Any, x: Node, d: Array) -> Node:
        group, n, r = consts[0].group, consts[0].group.dim, x.w.shape[0]
        q = n + r + x.duration.shape[0]
        first = x.first
        if self.periodic:
            turned = group.compose(x.first[0], self.chart.tau(group, d[q : q + n]))
            first = (turned, x.first[1] + d[q + n :])
        g = group.compose(x.g, self.chart.tau(group, d[:n]))
        return Node(x.k, g, x.w + d[n : n + r], x.duration + d[n + r : q], first)

    def apart(self, consts: Any, x: Node, other: Node) -> Array:
        group = consts[0].group

        def turned(a: Element, b: Element) -> Array:
            return self.chart.inverse(group, group.compose(group.inverse(a), b))

        parts = [turned(x.g, other.g), other.w - x.w, other.duration - x.duration]
        if self.periodic:
            parts += [turned(x.first[0], other.first[0]), other.first[1] - x.first[1]]
        return jnp.concatenate(parts)

    def size(self, numbers: Any, x: Node) -> tuple[Array, Array]:
        """(t, h) of a step."""
        h = x.duration[0] / numbers["steps"] if self.free_time else numbers["h"]
        return numbers["t0"] + x.k * h, h

    def velocity(self, consts: Any, t: Scalar, g: Element, w: Array) -> Velocity:
        """The velocity in D with the free velocities w."""
        system, numbers = consts
        if not system.constraints:
            return w
        rows, drift = constraint_at(system, t, g)
        if self.redundant:
            return w - rows.T @ solve(rows @ rows.T, rows @ w - drift)
        free = numbers["free"]
        return solve(jnp.concatenate([rows, free]), jnp.concatenate([drift, w]))

    def motion(self, consts: Any, x: Node) -> tuple[Any, Element, Velocity]:
        """(t, g, xi) at a node; a kinematic one has no velocity of its own."""
        t, _ = self.size(consts[1], x)
        return t, x.g, jnp.zeros(consts[0].group.dim) if self.kinematic else self.velocity(consts, t, x.g, x.w)

    def state(self, consts: Any, x: Node) -> State:
        """The state at a node."""
        system, (t, g, xi) = consts[0], self.motion(consts, x)
        return State(t, g, xi, system.momentum(t, g, xi), xi, system.group)

    # -- the problem ---------------------------------------------------------------------------------------------------
    def advance(self, consts: Any, x: Node, u: Array) -> Node:
        """The method's own step; NaN where it has no solution."""
        system, numbers = consts
        t, h = self.size(numbers, x)
        if self.kinematic:
            return Node(x.k + 1.0, self.drive(consts, t, x.g, u, h)[0].g, x.w, x.duration, x.first)
        carry, info = self.method.start(system, self.state(consts, x), h, u)
        carry, last = self.method.step(system, carry, h, u)
        after, good = self.method.observe(system, carry, h), (info.status == OK) & (last.status == OK)
        w, g = self.coordinates(numbers, after.xi), after.g
        for _ in range(CORRECTIONS if self.leaves_group else 0):
            g = system.group.normalise(g)
        return Node(x.k + 1.0, g, jnp.where(good, w, jnp.nan), x.duration, x.first)

    def judge(self, consts: Any, x: Node, after: Node, u: Array) -> tuple[Array, Array]:
        """(cost of the step, integrated by the trapezoidal rule in the states, what must not be negative)."""
        t, h = self.size(consts[1], x)
        (_, g, xi), (_, g1, xi1), cost = self.motion(consts, x), self.motion(consts, after), jnp.zeros(())
        if self.kinematic:
            driven, cost = self.drive(consts, t, x.g, u, h)
            xi = xi1 = driven.xi
        if self.cost is not None:
            ends = ((t, g, xi), (t + h, g1, xi1))
            cost_at = self.own("cost", consts[1])
            own = 0.5 * h * sum(_number("cost(t, g, xi, u)", cost_at, *each, u) for each in ends)
        else:
            own = h if self.free_time else jnp.zeros(())
        (share, rough), whole = consts[1]["share"], h * consts[1]["steps"]
        w, change = (u, 0.0 * u) if self.kinematic else (after.w, after.w - x.w)  # xi would take long to differentiate
        roughness = h * w @ w + ROUGHNESS * whole**2 * (change @ change) / h
        return cost + share * own + rough * roughness, self.held(consts, t + h, g1, xi1, u)

    def coordinates(self, numbers: Any, xi: Any) -> Any:
        return xi if self.redundant or "free" not in numbers else numbers["free"] @ xi

    def drive(self, consts: Any, t: Scalar, g: Element, u: Array, h: Scalar) -> tuple[State, Array]:
        """One step of g' = g xi with xi in D at the method's own point g~ = g tau(s h xi), and what u has to spare."""
        method, group = self.method, consts[0].group
        assert isinstance(method, NodeMethod)
        s, difference = method.node, method.difference
        xi = self.velocity(consts, t + s * h, g, u)
        if not self.explicit:

            def off(v: Array) -> Array:
                return v - self.velocity(consts, t + s * h, difference.inner(group, g, h * v), u)

            xi = find_root(off, xi).x
        new = group.normalise(group.compose(g, method.retraction.tau(group, h * xi)))
        unused = h * jnp.sum((u - xi) ** 2) if self.redundant else jnp.zeros(())
        return State(t + h, new, xi, jnp.zeros(group.dim), xi, group), unused

    def held(self, consts: Any, t: Scalar, g: Element, xi: Velocity, u: Array) -> Array:
        """What must not be negative: distances from the bounds of u, and of what is bounded at the end of the step."""
        system, numbers = consts
        low, high = (np.array(part, int) for part in self.bounded)
        parts = [u[low] - numbers["low"], numbers["high"] - u[high]]
        if any(self.watched):
            seen = observe(system, t, g, xi)
            low, high = (np.array(part, int) for part in self.watched)
            parts += [seen[low] - numbers["least"], numbers["most"] - seen[high]]
        if self.path is not None:
            parts.append(self.keep_clear(consts, (t, g, xi, u)))
        return jnp.concatenate(parts)

    def limits(self, numbers: Any) -> Numbers:
        """The lower and the upper bounds (2, controls) of the inputs, infinite where there are none."""
        ends = np.tile(np.array([OPEN]).T, self.controls)
        for end, places, side in zip(ends, self.bounded, ("low", "high"), strict=True):
            end[list(places)] = numbers[side]
        return ends

    def keep_clear(self, consts: Any, lane: Any) -> Array:
        """The values (rows,) of the path at (t, g, xi, u)."""
        return jnp.atleast_1d(checks.own_value("path(t, g, xi, u)", self.own("path", consts[1]), *lane))

    def own(self, name: str, numbers: Any) -> Any:
        """The function of the user's with this name, with the numbers that it holds."""
        function = getattr(self, name)
        return function.fill(numbers[f"in {name}"]) if isinstance(function, Template) else function

    def end(self, consts: Any, x: Node, target: Any) -> tuple[Array, Array, Array]:
        numbers, motion = consts[1], self.motion(consts, x)
        cost, parts, held = jnp.zeros(()), [jnp.zeros(0)], jnp.zeros(0)
        if self.final_cost is not None:
            final = _number("final_cost(t, g, xi)", self.own("final_cost", numbers), *motion)
            cost = cost + numbers["share"][0] * final
        if self.goal is not None:
            parts.append(jnp.atleast_1d(checks.own_value("goal(t, g, xi)", self.own("goal", numbers), *motion)))
        if self.named is not None:
            parts.append(self.named.off(consts[0], *motion, numbers["wanted"]))
        for rows, there in (("aims", target), ("cycle", x.first if self.periodic else None)):
            if there is not None:
                aim, own = (Node(x.k, g, w, jnp.zeros(0), ()) for g, w in (there, (x.g, x.w)))
                parts.append(numbers[rows] @ replace(self, periodic=False).apart(consts, aim, own))
        if self.free_time:
            held = jnp.stack([x.duration[0] - numbers["times"][0], numbers["times"][1] - x.duration[0]])
        return cost, held, jnp.concatenate(parts)

    def inner(self, consts: Any) -> tuple[Any, Any]:
        numbers = {name: each for name, each in consts[1].items() if name not in ENDS}
        return replace(self, final_cost=None, goal=None, named=None), (consts[0], numbers)


def _number(words: str, function: Any, *arguments: Any) -> Array:
    value = checks.own_value(words, function, *arguments)
    if value.shape:
        raise InvalidInput(f"{words} gave numbers of shape {value.shape}; allowed: one number")
    return value


# -- what the user gives and gets --------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The result of `plan`: the controls of least cost, the motion under them, and the multipliers.

    `controls` (steps, inputs) has one row for each step, and `states` the steps + 1 states. `status` is "optimal",
    "feasible" if the goal is reached but the cost is not shown to be least, or says why the search stopped. `error`
    is the residual of the first-order conditions; `strict` says whether the second-order conditions are shown to hold
    strictly, so that the plan is a local minimum. `costates` (steps, dim) are the adjoint variables of the steps, in
    the `coordinates`; `goal_multipliers` belong to the rows of the goal, `bound_multipliers` (steps, rows) to bounds
    and `path`.
    """

    system: MechanicalSystem
    method: Integrator
    step: float
    controls: Numbers
    cost: float
    status: str
    explain: Callable[[], str]
    iterations: int
    error: float
    infeasibility: float
    strict: bool
    costates: Numbers
    goal_multipliers: Numbers
    bound_multipliers: Numbers
    gains: Numbers
    coordinates: tuple[str, ...]
    inputs: tuple[str, ...]
    kinematic: bool
    problem: tuple[Discrete, dict[str, Any], Node]  # the discrete problem, its numbers with the step, and its nodes

    @cached_property
    def reason(self) -> str:
        """Why there is no plan, or none of least cost, and what to do; limits that the motion violates between steps.

        To find out, it may solve the problem again without bounds.
        """
        words = "" if self.status == "optimal" else self.explain()
        return ". ".join(part for part in (words, self.crossing if self.status in REACHED else "") if part)

    @cached_property
    def crossing(self) -> str:
        """Where the motion violates `path` or a bound between two steps, in words; at the steps they hold."""
        (discrete, numbers, nodes), u = self.problem, self.controls
        if discrete.path is None and not any(discrete.watched):
            return ""
        parts, shares = len(WITHIN), np.repeat(WITHIN, len(u))
        lane = jax.tree.map(lambda leaf: np.concatenate([leaf[: len(u)]] * parts), (nodes, u))
        lane = (lane[0]._replace(k=lane[0].k / shares), lane[1], shares)
        rows = np.asarray(evaluate_rows(Of(_hold_within, discrete), (self.system, numbers), lane))
        rows = rows[:, sum(map(len, discrete.bounded)) :].reshape(parts, len(u), -1).min(axis=0)
        k, row = np.unravel_index(np.argmin(np.nan_to_num(rows)), rows.shape)
        own, broken = row - sum(map(len, discrete.watched)), (rows < -CROSSED).any(axis=1).sum()
        what = f"row {own} of the path" if own >= 0 else "a bound of the motion"
        return f"between the states {k} and {k + 1} {what} is broken by {-rows[k, row]:.2g} (in {broken} of " \
            f"{len(u)} steps something is broken): take smaller steps, or a margin" if broken else ""  # fmt: skip

    @cached_property
    def states(self) -> State:
        """The states before the first step and after every step."""
        (discrete, numbers, nodes), u = self.problem, self.controls
        before = jax.tree.map(lambda leaf: np.concatenate([leaf[:1], leaf[:-1]]), nodes)
        lane = (nodes, before, np.concatenate([u[:1], u]))
        made: State = evaluate_rows(Of(_state_after, discrete), (self.system, numbers), lane)
        return made._replace(group=self.system.group)

    @property
    def duration(self) -> float:
        """How long the motion takes."""
        return self.step * len(self.controls)

    @property
    def t(self) -> Numbers:
        """The times of the states, shape (steps + 1,)."""
        return np.asarray(self.states.t)

    @property
    def g(self) -> Any:
        """The configurations of the states, shape (steps + 1, ...)."""
        return self.states.g

    @property
    def xi(self) -> Numbers:
        """The velocities of the states, shape (steps + 1, n); if kinematic those of the steps, the last twice."""
        xi = np.asarray(self.states.xi)
        return np.concatenate([xi[1:], xi[-1:]]) if self.kinematic else xi

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the motion beside its controls and their bounds; `path` saves the figure."""
        (discrete, numbers, _), units = self.problem, self.system.units
        limits = zip(self.inputs, discrete.limits(numbers).T.tolist(), strict=True)
        inputs = [Input(name, units.get(name, ""), *ends) for name, ends in limits]
        return plot_controlled({"plan": self}, {"plan": self.controls}, inputs, path)

    def check(self) -> Plan:
        """Return the plan itself, or raise `NumericalFailure` if it is not optimal; warn of a `crossing`."""
        if self.status != "optimal":
            words = "a plan was found that is not optimal" if self.status == "feasible" else "no plan was found"
            raise NumericalFailure(f"{words}: {self.reason}")
        if self.reason:
            warnings.warn(self.reason, stacklevel=2)
        return self

    @cached_property
    def run(self) -> Trajectory:
        """The motion of the plan as an ordinary run with its controls; if there is none, an error says why."""
        if self.kinematic:
            raise InvalidInput("a kinematic plan has velocities as its controls, and no run: see plan.states")
        options: Any = {"step": self.step, "steps": len(self.controls), "controls": self.controls}
        try:
            made = simulate(self.system, self.method, part_of(self.states, 0), **options)
        except InvalidInput as fault:  # the controls of a search that failed may break their bounds
            raise NumericalFailure(f"this plan is {self.status} and no run: {fault}") from fault
        if made.status == "failed":
            self.check()
        return made

    def __repr__(self) -> str:
        held = f"; strict second-order condition {'holds' if self.strict else 'not shown'}"
        told = f"\n {self.reason}" if self.reason else ""
        return (
            f"<Plan of {len(self.controls)} steps, {self.duration:g} s: {self.status}, cost {self.cost:.10g}\n"
            f" after {self.iterations} iterations; first-order residual {self.error:.1e}, goal and gaps met to "
            f"{self.infeasibility:.1e}{held if self.status == 'optimal' else ''}{told}>"
        )


class Plans(Sequence[Plan]):
    """The result of `plan` for several starts: a sequence of plans that were made side by side."""

    def __init__(self, task: _Task, found: Solution, chosen: Numbers) -> None:
        self._task, self._found, self._chosen = task, found, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> Plans: ...
    def __getitem__(self, index: Any) -> Plan | Plans:
        if isinstance(index, slice):
            return Plans(self._task, self._found, self._chosen[index])
        return self._task.plan_of(self._found, int(self._chosen[index]))

    @property
    def status(self) -> list[str]:
        """The status of each plan: "optimal", or why the search stopped."""
        return [self._found.status[b] for b in self._chosen]

    @property
    def cost(self) -> Numbers:
        """The cost of each plan."""
        return self._found.cost[self._chosen]

    @property
    def controls(self) -> Numbers:
        """The controls of all plans, (plans, steps, inputs)."""
        return self._found.u[self._chosen]

    def __repr__(self) -> str:
        return f"<{len(self)} plans, {self.status.count('optimal')} of them optimal>"


Function = Callable[..., Any]
Start = State | Numbers | jax.Array | tuple[Any, ...] | list[float] | list[list[float]] | Mapping[str, Any]
Starts = list[State] | list[Numbers] | list[jax.Array] | list[tuple[Any, ...]]


@overload
def plan(
    system: MechanicalSystem, method: Integrator | None = ..., *, start: Start, goal: Any = ..., steps: int,
    duration: Any, cost: Function | None = ..., final_cost: Function | None = ..., path: Function | None = ...,
    bounds: Mapping[str, Any] | None = ..., kinematic: bool = ..., free_start: Sequence[str] = ...,
    free_goal: Sequence[str] = ..., periodic: Sequence[str] = ..., guess: Any = ..., starts: int = ..., seed: int = ...,
    tolerance: float = ..., max_iterations: int = ..., backend: str = ..., solver: Any = ...,
    progress: Callable[[int, float, float], Any] | None = ...,
) -> Plan: ...  # fmt: skip
@overload
def plan(
    system: MechanicalSystem, method: Integrator | None = ..., *, start: Starts, goal: Any = ..., steps: int,
    duration: Any, cost: Function | None = ..., final_cost: Function | None = ..., path: Function | None = ...,
    bounds: Mapping[str, Any] | None = ..., kinematic: bool = ..., free_start: Sequence[str] = ...,
    free_goal: Sequence[str] = ..., periodic: Sequence[str] = ..., guess: Any = ..., starts: int = ..., seed: int = ...,
    tolerance: float = ..., max_iterations: int = ..., backend: str = ..., solver: Any = ...,
    progress: Callable[[int, float, float], Any] | None = ...,
) -> Plans: ...  # fmt: skip
@checks.shows_progress(lambda bar: lambda count, error, gap: bar.say(f"{count} iterations, residual {error:.1e}"))
@checks.known_arguments("it ends by comparing numbers: plan outside, or minimise a loss of da.simulate in its controls")
def plan(
    system: MechanicalSystem, method: Integrator | None = None, *, start: Any, goal: Any = None, steps: int,
    duration: Any, cost: Function | None = None, final_cost: Function | None = None, path: Function | None = None,
    bounds: Mapping[str, Any] | None = None, kinematic: bool = False,
    free_start: Sequence[str] = (), free_goal: Sequence[str] = (), periodic: Sequence[str] = (), guess: Any = None,
    starts: int = 1, seed: int = 0, tolerance: float = 1e-8, max_iterations: int = 300, backend: str = "auto",
    solver: Any = None, progress: Callable[[int, float, float], Any] | None = None,
) -> Plan | Plans:  # fmt: skip
    """Plan: find the controls of least cost that bring a system from a start to a goal in `steps` steps of a method.

    method      the method whose steps the plan takes: None is LagrangeDAlembert(). It must be able to begin at any
                state, and must not choose its own step
    start       a state. For many plans at once, a list of states, or a state whose arrays have one more axis in front:
                `plan` then returns `Plans`; `goal` is one for all, or a list of the same length
    goal        a state, a configuration, a function (t, g, xi) -> numbers that are zero at the goal, or names with
                values, {"x": 1, "theta": 0}, of coordinates and rates: the others are free. `start` may be given by
                names too: rates that it does not name are 0
    duration    a number, or (shortest, longest): the duration is then free, and is minimised if there is no cost
    cost        (t, g, xi, u) -> rate of the running cost, integrated by the trapezoidal rule; `final_cost`: (t, g, xi)
    path        (t, g, xi, u) -> numbers that must not be negative after any step: obstacles, tip-over, loads
    bounds      {name: (low, high)} of inputs, coordinates and rates; inputs have their own bounds anyway
    kinematic   plan velocities instead of forces: the controls are the components of xi in D; any start is possible
    free_start  names of what is free at the start, `free_goal` at the goal: of `coordinates`, "configuration" or
                "velocity"; `periodic`: what ends as it began
    guess       a Plan of any number of steps, with its multipliers, or controls (steps, inputs) and their motion
    starts      how many first guesses to try (the best plan is returned); if one fails, up to eight coarse ones follow
    backend     "llvm" or "cuda"; "auto" takes a GPU, if there is one, for many plans
    solver      "ipopt" (with cyipopt), or a function of a `NonlinearProgram` -> (z, multipliers) as cyipopt's
                solve gives them; None is our own
    """
    method = LagrangeDAlembert() if method is None else method
    checks.require_instance("system", system, MechanicalSystem, "a system")
    start, ways = start_by_names(system, start) if isinstance(start, Mapping) else (start, None)
    first, several = _as_states(system, start, "start")
    lead: State = part_of(first, 0)
    require_arguments(system, method, lead, 1.0)
    task = _Task(system, method, first, goal, steps, duration, kinematic)
    task.take_functions(cost, final_cost, path)
    task.take_bounds({} if bounds is None else bounds)
    task.take_freedom(free_start, free_goal, periodic, ways)
    limit = checks.positive_int("max_iterations", max_iterations)
    options = Options(float(checks.positive("tolerance", tolerance)), limit)
    checks.require_progress(progress, "(iterations, residual, gap)")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"seed is {show(seed)}; allowed: a whole number that is not negative")
    require_name("backend", backend, BACKENDS)
    if checks.positive_int("starts", starts) > MAX_STARTS:
        raise InvalidInput(f"starts is {show(starts)}; allowed: at most {MAX_STARTS} first guesses")
    if isinstance(solver, str):
        require_name("solver", solver, tuple(SOLVERS))
        solver = SOLVERS[solver]
    checks.require_function("solver", solver, "a NonlinearProgram")
    task.backend, task.solver = backend, solver
    found = task.solve(first, guess, int(starts), seed, options, progress)
    return found if several else found[0]


def _as_states(system: MechanicalSystem, given: Any, name: str) -> tuple[State, bool]:
    """One state or several, as arrays with an axis in front; whether they are several. A configuration means rest."""
    if isinstance(given, State) and np.ndim(given.xi) == 2:
        return jax.tree.map(np.asarray, given), True
    arrays = (State, np.ndarray, jax.Array, tuple)  # a list of numbers, or of their rows, is one configuration
    several = isinstance(given, list) and bool(given) and all(isinstance(each, arrays) for each in given)
    made = [_as_state(system, each, name) for each in (given if several else [given])]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *made), several


def _as_state(system: MechanicalSystem, given: Any, name: str) -> State:
    if isinstance(given, State):
        if given.group not in (None, system.group) or np.shape(given.xi) != (system.group.dim,):
            raise InvalidInput(f"{name} is a state of {given.group}; allowed: one of {system.group}")
        return given
    try:
        return system.state(given, np.zeros(system.group.dim))
    except (TypeError, ValueError) as error:
        more = ", or a function (t, g, xi) -> numbers that are zero there" if name == "goal" else ""
        words = f"a state or a configuration{more}; or for all plans alike names with values, which leave the rest free"
        raise InvalidInput(f"{name} is {show(given)}; allowed: {words}") from error


def _reads_beyond(function: Function | Template, numbers: list[Any], group: Group, count: int) -> bool:
    """Whether a function (t, g, xi, u) reads more controls than there are: JAX would read the last one instead."""
    key = function.digest if isinstance(function, Template) else function, group, count
    if key not in _beyond:
        own, u = function.fill(numbers) if isinstance(function, Template) else function, np.zeros(count)
        given = 0.0, group.identity(), np.zeros(group.dim)
        _beyond[key] = False
        try:
            jax.eval_shape(lambda *motion: jnp.asarray(own(*motion, u)), *given)
        except IndexError:  # NumPy's, not JAX's
            _beyond[key] = True
        except Exception:  # whatever else is wrong with it is said where it is called
            pass
    return _beyond[key]


_beyond: dict[Any, bool] = {}
_group_kept: dict[Any, bool] = {}


def _keeps_group(method: Integrator, system: MechanicalSystem) -> bool:
    """Whether a method claims to stay on the group of such systems."""
    key = method, jax.tree.structure(system)
    if key not in _group_kept:
        _group_kept[key] = method.claims(system).group
    return _group_kept[key]


class _Task:
    """What `plan` was asked for, step by step."""

    backend, solver = "auto", None
    loose: Any = np.zeros(0, bool)  # configurations of which the goal says nothing
    share, smoothed = (1.0, 0.0), 0.0  # weights of the cost and of the roughness; the least weight of the latter

    def __init__(
        self, system: MechanicalSystem, method: Integrator, starts: State, goal: Any, steps: Any, duration: Any,
        kinematic: bool,
    ) -> None:  # fmt: skip
        checks.require_instance("kinematic", kinematic, bool, "True or False")
        self.system, self.method, self.goal, self.kinematic = system, method, goal, kinematic
        if isinstance(system, NonlinearSystem):
            raise InvalidInput("a plan takes constraints A(t, g) xi = b(t, g); this one is not linear in the velocity")
        if kinematic and not isinstance(method, NodeMethod):
            raise InvalidInput(
                f"a kinematic plan takes a method with a retraction and a node, such as LagrangeDAlembert(); given: "
                f"{type(method).__name__}"
            )
        anew = method.carry_is_step_free or isinstance(method, PhaseMethod)
        if not kinematic and (not anew or method.variable_step):
            raise InvalidInput(
                f"{type(method).__name__} carries more than a state from step to step; a plan takes methods that begin "
                "anew from every state: LagrangeDAlembert(), RungeKutta(), Gauss(), ..."
            )
        if not kinematic and not system.inputs:
            raise InvalidInput("the system has no inputs: give it a force(t, g, xi, u, p), or plan with kinematic=True")
        self.steps, self.first = checks.positive_int("steps", steps), part_of(starts, 0)
        self.t0 = float(self.first.t)
        if np.ptp(starts.t):
            raise InvalidInput(f"starts have the times {show(np.unique(starts.t))}; allowed: one time for all plans")
        if self.steps > MAX_STEPS:
            raise InvalidInput(f"steps is {show(steps)}; allowed: at most {MAX_STEPS}. Plan with fewer, longer steps")
        self.named, self.ends = None, None
        if isinstance(goal, Mapping):
            self.named, self.wanted = read_names(system, "goal", goal, not kinematic)
        elif goal is not None and not callable(goal):
            self.ends = _as_states(system, goal, "goal")[0]
            if isinstance(goal, list) and len({isinstance(each, State) for each in goal}) > 1:
                raise InvalidInput("goal has states and configurations; allowed: only states, or only configurations")
        self.times = np.asarray(checks.finite_reals("duration", duration))
        self.free_time = self.times.ndim == 1
        if self.times.shape not in ((), (2,)) or not (np.diff([0.0, *np.atleast_1d(self.times)]) > 0).all():
            raise InvalidInput(f"duration is {show(duration)}; allowed: a positive number or (shortest, longest)")
        given = [starts] if self.ends is None else [starts, self.ends]
        ends = [part_of(each.g, k) for each in given for k in range(0, len(each.t), -(-len(each.t) // JUDGED_ENDS))]
        self.free, self.redundant, self.explicit = choose_velocities(system, self.t0, ends)

    def take_functions(self, cost: Any, final_cost: Any, path: Any) -> None:
        """Check the functions, and know them again."""
        checks.require_function("cost", cost, "(t, g, xi, u)")
        checks.require_function("final_cost", final_cost, "(t, g, xi)")
        checks.require_function("path", path, "(t, g, xi, u)")
        if cost is None and final_cost is None and not self.free_time:
            raise InvalidInput("there is nothing to minimise: give cost, final_cost, or duration=(shortest, longest)")
        given = (cost, final_cost, path, self.goal if callable(self.goal) else None)
        self.functions: dict[str, Any] = dict(zip(FUNCTIONS, map(unify, given), strict=True))
        self.held_numbers: dict[str, list[Any]] = {}  # by these: targets that move compile nothing
        group, count = self.system.group, len(self.free if self.kinematic else self.system.inputs or ())
        motion = 0.0, group.identity(), np.zeros(group.dim)
        for name, own in zip(FUNCTIONS, given, strict=True):
            at: tuple[Any, ...] = (*motion, np.zeros(count)) if name in ("cost", "path") else motion
            found = take_numbers(own, partial(tuple, at), (name, group, count)) if is_own(own) else None
            if found is not None and found[1]:
                self.functions[name], self.held_numbers[name] = found

    def take_bounds(self, bounds: Mapping[str, Any]) -> None:
        """The bounds of inputs, coordinates and rates."""
        checks.require_instance("bounds", bounds, Mapping, "a dictionary {name: (low, high)}")
        system, rates, axes = self.system, self.system.rate_names, self.system.axes()
        declared = [] if self.kinematic else list(system.inputs or ())
        self.inputs = tuple(each.name for each in ([axes[k] for k in self.free] if self.kinematic else declared))
        seen = (*names_of(system)[0], *(() if self.kinematic else rates))
        own = {each.name: (each.low, each.high) for each in declared}
        for name, pair in match_names("bound", bounds, (*self.inputs, *seen)).items():
            try:
                low, high = (side if one is None else float(one) for one, side in zip(pair, OPEN, strict=True))
            except (TypeError, ValueError) as error:
                raise InvalidInput(
                    f"bounds of {name} are {show(pair)}; allowed: (low, high), None where there is none"
                ) from error
            if not low < high:
                raise InvalidInput(f"bounds of {name} are {low:g} and {high:g}; allowed: low < high")
            own[name] = (low, high)

        def sides(names: Sequence[str]) -> Any:
            """Which of them have a lower and which an upper bound, and these."""
            pairs = [own.get(name, OPEN) for name in names]
            marks = [[k for k, pair in enumerate(pairs) if math.isfinite(pair[side])] for side in (0, 1)]
            values = [np.array([pairs[k][side] for k in mark], float) for side, mark in enumerate(marks)]
            return (tuple(marks[0]), tuple(marks[1])), *values

        for name in ("cost", "path"):
            function, held = self.functions[name], self.held_numbers.get(name, [])
            if function is not None and _reads_beyond(function, held, system.group, len(self.inputs)):
                raise InvalidInput(f"{name}(t, g, xi, u) reads more controls than the {len(self.inputs)} of this plan")
        self.bounded, self.low, self.high = sides(self.inputs)
        kept = seen if not self.inputs or self.inputs[0] not in seen else ()
        self.watched, self.least, self.most = sides(kept)

    def take_freedom(self, free_start: Any, free_goal: Any, periodic: Any, ways: Numbers | None) -> None:
        """What is free at the start and at the goal, and what is periodic, by names."""
        system, n = self.system, self.system.group.dim
        named, axes = system.coordinate_names, [axis.name for axis in system.axes()]
        hinges = {f"{name} rate": name for name in named}  # of a mechanism; the axes of its free bodies are their own
        configuration = named if system.group.is_flat and len(named) == n else tuple(
            hinges.get(axis, f"along {axis}") for axis in axes
        )  # fmt: skip
        velocity = () if self.kinematic else tuple(axes[k] for k in self.free)
        self.coordinates = (*configuration, *velocity)
        places: dict[str, Any] = {name: k for k, name in enumerate(self.coordinates)}
        places |= {"configuration": slice(n), "velocity": slice(n, None)}
        dims = [factor.dim for factor in system.group.factors]  # the coordinate of a wheel is that along its rate
        alone = [sum(dims[:k]) for k, dim in enumerate(dims) if dim == 1 and len(named) == n]
        places = {named[k]: k for k in alone} | places

        def chosen(what: str, names: Any) -> Numbers:
            marks = np.zeros(len(self.coordinates), bool)
            if not (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)):
                checks.require_instance(what, names, str, "names, as texts")
            for name in (names,) if isinstance(names, str) else names:
                if (name := spell(name, places)) not in places:
                    words = "'along NAME' is the coordinate, or the way, that the velocity NAME changes"
                    raise InvalidInput(f"{UnknownName(what, name, places)} {words}; NAME alone is that velocity")
                marks[places[name]] = True
            return marks

        self.start_ways = np.eye(len(self.coordinates))[:, chosen("free_start", free_start)]
        if ways is not None:
            self.start_ways = np.concatenate([np.eye(len(self.coordinates))[:, :n] @ ways, self.start_ways], axis=1)
        self.cycle = chosen("periodic", periodic)
        self.goal_marks = ~chosen("free_goal", free_goal)
        if self.ends is not None and not isinstance(self.goal[0] if isinstance(self.goal, list) else self.goal, State):
            self.goal_marks[n:] = False  # a configuration says nothing of velocities
        elif self.kinematic and self.ends is not None and self.ends.xi.any() and "velocity" not in free_goal:
            raise InvalidInput(
                f"the goal has the velocity {show(self.ends.xi)}, which a kinematic plan cannot reach: its velocities "
                'are controls. Give a configuration, free_goal="velocity", or plan the system with its inputs'
            )
        self.goal_marks &= ~self.cycle
        self.is_periodic = bool(self.cycle.any())

    # -- solving -------------------------------------------------------------------------------------------------------
    def problem(self, bounded: bool = True) -> tuple[Discrete, Any, Numbers]:
        """(the discrete problem, its numbers, the directions in which the start is free)."""
        n, size = self.system.group.dim, len(self.coordinates)
        dim = size + self.free_time + (size if self.is_periodic else 0)
        cost, final_cost, path, goal = (self.functions[name] for name in FUNCTIONS)
        discrete = Discrete(
            self.method, dim, len(self.inputs), self.kinematic, self.redundant,
            not (self.kinematic or _keeps_group(self.method, self.system)), self.explicit,
            self.free_time, self.is_periodic, cost, final_cost, path if bounded else None, goal, self.named,
            *((self.bounded, self.watched) if bounded else (((), ()), ((), ()))),
        )  # fmt: skip
        numbers = {
            "t0": np.asarray(self.t0), "steps": np.asarray(float(self.steps)),
            "aims": np.eye(size)[self.goal_marks], "cycle": np.eye(size)[self.cycle],
            "low": self.low, "high": self.high, "least": self.least, "most": self.most, "share": np.array(self.share),
        }  # fmt: skip
        if self.named is not None:
            numbers["wanted"] = self.wanted
        for name, held in self.held_numbers.items():
            if bounded or name != "path":
                numbers[f"in {name}"] = [np.asarray(each, float) for each in held]
        if not bounded:
            numbers |= dict.fromkeys(("low", "high", "least", "most"), np.zeros(0))
        if self.system.constraints and not self.redundant:
            numbers["free"] = np.eye(n)[self.free]
        numbers["times" if self.free_time else "h"] = self.times if self.free_time else self.times / self.steps
        whole = np.eye(dim)
        free = whole[:, :size] + (whole[:, size + self.free_time :] if self.is_periodic else 0.0)
        duration = whole[:, size : size + self.free_time]
        return discrete, numbers, np.concatenate([free @ self.start_ways, duration], axis=1)

    def solve(
        self, first: State, guess: Any, starts: int, seed: int, options: Options, progress: Any, trial: bool = False
    ) -> Plans:
        """The best plan of each problem; in a `trial` the first that is found."""
        discrete, numbers, free = self.solved = self.problem()
        count, ends, target = len(first.t), None, None
        if self.ends is not None and self.goal_marks.any():
            ends = self.ends
            if len(ends.t) not in (1, count):
                raise InvalidInput(f"there are {count} starts and {len(ends.t)} goals; allowed: one goal, or as many")
            ends = part_of(ends, np.arange(count) % len(ends.t))
            target = jax.tree.map(lambda leaf: np.repeat(leaf, starts, axis=0), (ends.g, self.coordinates_of(ends)))
            self.loose = ~self.goal_marks[: self.system.group.dim]
        elif self.named is not None:  # the guess ends there
            consts = (self.system, self.t0, self.wanted)
            g, slope = evaluate_rows(Of(Named.move, self.named), consts, first.g)
            ends = first._replace(g=jax.tree.map(np.asarray, g), xi=np.zeros_like(first.xi))
            self.loose = ~(np.abs(slope) > 1e-9).any(axis=(0, 1))
        starts = 1 if guess is not None else starts
        make, problems = self.guesses(first, ends, guess, starts, seed), count * starts
        self.target, self.options, self.blocked = target, options, self._find_blocked(first, ends)
        hopeless = all(self.blocked)
        if hopeless:
            options = replace(options, max_iterations=1)
        many = self.backend == "auto" and problems >= GPU_PLANS and has_gpu()
        backend = "cuda" if many or self.backend == "cuda" else "llvm"
        given = (discrete, (self.system, numbers), free, options, progress)
        first_guesses = lambda part: (*make(part), part_of(target, part))
        try:
            if self.solver is None:
                search = Solver(*given, backend)
                known = self._known_multipliers(guess) if isinstance(guess, Plan) and count == 1 else None
                find = search.solve_first if trial else search.solve
                found = find(first_guesses, problems, known)
                if known is not None and found.status[0] not in ("optimal", "interrupted"):
                    cold = find(first_guesses, problems)
                    found = min(found, cold, key=lambda each: (each.status[0] != "optimal", each.infeasibility[0]))
            else:
                found = solve_by(self.solver, *given, first_guesses, problems)
        except LoweringError as fault:
            other = "" if isinstance(self.method, LagrangeDAlembert) else "LagrangeDAlembert(), which is short, or "
            raise InvalidInput(
                f"a step of {self.method.name} on this system cannot be differentiated natively: {fault}. Take "
                f"{other}a system with fewer coordinates"
            ) from fault
        starts = len(found.u) // count  # a trial ends with the first that succeeds
        reached = found.infeasibility <= options.feasible
        unfinished = np.isin(found.status, ("stalled", "too many iterations"))
        words = np.where(reached & unfinished, "feasible", found.status).tolist()
        found = found._replace(status=["infeasible"] * len(words) if hopeless else words)
        worth = np.lexsort((found.cost, np.array(words) != "feasible", np.array(words) != "optimal"))
        place = np.argsort(worth).reshape(count, starts)
        best = Plans(self, found, np.arange(count) * starts + np.argmin(place, axis=1))
        if trial or hopeless or guess is not None or count > 1 or {"optimal", "interrupted"} & set(words):
            return best
        smooth = self._plan_by_continuation(first, seed, options, progress)
        if smooth is not None and not (best.status[0] == "feasible" and best.cost[0] <= smooth.cost[0]):
            return smooth
        self.solved, self.target, self.smoothed = (discrete, numbers, free), target, 0.0
        return best

    def _find_blocked(self, first: State, ends: State | None) -> list[str]:
        """Which rows of the path each goal breaks by itself, in words: their values do not change with what is free."""
        (discrete, numbers, _), group, count = self.solved, self.system.group, len(first.t)
        if discrete.path is None or ends is None:
            return [""] * count
        rng, n, lanes = np.random.default_rng(0), group.dim, BESIDE * count
        g, xi = jax.tree.map(lambda leaf: np.tile(leaf, (BESIDE, *(1,) * (leaf.ndim - 1))), (ends.g, ends.xi))
        known = self.goal_marks if self.named is None else np.zeros(len(self.coordinates), bool)
        shift = np.where(known[:n], 0.0, rng.uniform(-1.0, 1.0, (lanes, n)))
        g = evaluate_rows(_shift_from, group, (g, shift))
        if self.named is not None:
            g, _ = evaluate_rows(Of(Named.move, self.named), (self.system, self.t0, self.wanted), g)
        if self.kinematic or not known[n:].all():
            xi = rng.normal(size=xi.shape)
        t = self.t0 + rng.uniform(self.times.min(), self.times.max(), lanes)
        lane = (t, g, xi, rng.normal(size=(lanes, len(self.inputs))))
        rows = evaluate_rows(Of(Discrete.keep_clear, discrete), (self.system, numbers), lane).reshape(BESIDE, count, -1)
        same = np.ptp(rows, axis=0) <= 1e-9 * (1.0 + np.abs(rows[0]))
        return [_say_rows(np.where(mark, each, 0.0)) for mark, each in zip(same, rows[0], strict=True)]

    def coordinates_of(self, states: State) -> Numbers:
        """The free velocities of states, (..., r)."""
        return np.asarray(states.xi)[..., [] if self.kinematic else self.free]

    def guesses(
        self, first: State, ends: State | None, guess: Any, starts: int, seed: int
    ) -> Callable[[slice], tuple[Node, Numbers]]:
        """What makes nodes and controls of some of the problems.

        The nodes lie between start and goal, with waves in all directions that D does not allow to go straight.
        """
        group, N, n, count = self.system.group, self.steps, self.system.group.dim, len(first.t)
        s, T = np.linspace(0.0, 1.0, N + 1)[:, None], float(np.exp(np.log(self.times).mean()))
        end, plans = first if ends is None else ends, np.repeat(np.arange(count), starts)
        way = np.asarray(evaluate_rows(_way, group, (first.g, end.g)))[:, None]
        way = np.where(np.isfinite(way).all(axis=2, keepdims=True), way, 0.0)
        length = np.maximum(np.abs(way).max(axis=2, initial=0.0, keepdims=True), AMPLITUDE)[:, None]
        waves = np.zeros((count, starts, 2, n))
        if starts > 1:
            rng = np.random.default_rng(seed)
            sizes = rng.uniform(0.1, 1.0, (count, starts - 1, 1, 1)) / np.array([[1.0], [2.0]])
            waves[:, 1:] = rng.normal(size=(count, starts - 1, 2, n)) * length * sizes
        if self.system.constraints:
            waves[:, :1, :1] = AMPLITUDE * np.minimum(length, 1.0)
        rates, all_waves = np.pi * np.array([1.0, 2.0]), waves.reshape(-1, 2, n)
        bend, slope, bump = np.sin(s * rates), rates * np.cos(s * rates), np.sin(np.pi * s)
        limits, numbers, ramps = self.solved[0].limits(self.solved[1]), np.arange(N + 1.0), np.hstack([1 - s, s])
        if guess is not None and not isinstance(guess, Plan):
            held = np.asarray(checks.finite_reals("guess", guess))
            if held.shape != (N, len(self.inputs)):
                raise InvalidInput(f"guess has shape {held.shape}; allowed: ({N}, {len(self.inputs)}) or a Plan")

        def make(part: slice) -> tuple[Node, Numbers]:
            which = plans[part]
            B, own, last, aim = len(which), part_of(first, which), part_of(end, which), way[which]
            shift, speed = s * aim + bend @ all_waves[part], (aim + slope @ all_waves[part]) / T
            w0, w1 = (self.coordinates_of(each)[:, None] for each in (own, last))

            def everywhere(tree: Any) -> Any:
                return jax.tree.map(lambda leaf: np.repeat(leaf, N + 1, axis=0), tree)

            def by_plans(tree: Any) -> Any:
                return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(B, N + 1, *leaf.shape[1:]), tree)

            def places() -> Any:
                return evaluate_rows(_shift_from, group, (everywhere(own.g), shift.reshape(-1, n)))

            shift[:, 0] = 0.0
            if self.system.constraints and self.loose.any() and not self.loose.all():  # wheels turn as their body goes
                given = (self.system, self.t0, np.where(self.loose, LOOSE, 1.0))
                made = evaluate_rows(_project_speed, given, (places(), speed.reshape(-1, n)))
                speed = np.asarray(made).reshape(speed.shape)
                turned = np.cumsum(0.5 * (speed[:, 1:] + speed[:, :-1]), axis=1) * T / N
                shift[:, 1:, self.loose] = turned[..., self.loose]
            speed, g = speed[..., self.free], by_plans(places())
            w = (speed * bump)[..., : w0.shape[2]] + ramps @ np.concatenate([w0, w1], axis=1)
            origin = by_plans(everywhere((own.g, w0[:, 0]))) if self.is_periodic else ()
            nodes = Node(np.tile(numbers, (B, 1)), g, w, np.full((B, N + 1, int(self.free_time)), T), origin)
            if isinstance(guess, Plan):
                return self._continue(guess, nodes)
            if guess is not None:
                return self._driven(nodes, np.tile(held, (B, 1, 1)))
            u = speed[:, :-1] if self.kinematic else np.zeros((B, N, len(self.inputs)))
            return nodes, np.clip(u, *limits)

        return make

    def _driven(self, nodes: Node, u: Numbers) -> tuple[Node, Numbers]:
        """The nodes of the motion under these controls, as far as it goes, and the controls."""
        (discrete, numbers, _), first = self.solved, part_of(nodes, np.s_[:, 0])
        made = run_rows(Of(Discrete.advance, discrete), _itself, (self.system, numbers), first, u, lanes=len(u))[1]
        finite = [np.isfinite(leaf).all(axis=tuple(range(2, leaf.ndim))) for leaf in jax.tree.leaves(made)]
        good = np.logical_and.accumulate(np.all(finite, axis=0), axis=1)
        for new, leaf in zip(jax.tree.leaves(made), jax.tree.leaves(nodes), strict=True):
            leaf[:, 1:][good] = np.asarray(new)[good]
        return nodes, u

    def _plan_by_continuation(self, first: State, seed: int, options: Options, progress: Any) -> Plans | None:
        """Find a smooth plan from one of several coarse guesses and refine it; then bring in the cost by stages.

        The roughness is the integral of |w|^2 + T^2 |w'|^2/10. If its weight cannot go down to 0, the plan is only
        feasible. If there is no smooth plan, the cost itself is tried from these guesses.
        """
        counts, spent = [self.steps], 0
        while counts[0] > COARSE_STEPS:
            counts.insert(0, -(-counts[0] // 2))
        short, found = replace(options, max_iterations=min(options.max_iterations, MAX_TRIAL)), cast(Any, None)

        def improve(cost: float, rough: float, steps: int, enough: tuple[str, ...] = REACHED) -> bool:
            nonlocal found, spent
            self.share, self.steps, guess = (cost, rough), steps, None if found is None else self.plan_of(found, 0)
            new = self.solve(first, guess, MORE_STARTS if found is None else 1, seed, short, progress, trial=True)
            spent += int(new._found.iterations[0])
            found = new._found if (good := new.status[0] in enough) else found
            return good

        if good := all(improve(0.0, 1.0, steps) for steps in counts):
            unit = (abs(self._judge(found).cost[0]) or 1.0) / (found.cost[0] or 1.0)
            smooth = found.status[0] == "optimal"
            faded = [*itertools.takewhile(lambda share: improve(1.0, unit * share, counts[-1], REACHED[:1]), STAGES)]
            self.smoothed = unit * faded[-1] if faded else math.inf if smooth else 0.0
            found = found if 0.0 in faded else self._judge(found)
        else:
            found = None
            good = all(improve(1.0, 0.0, steps) for steps in counts)
        self.share, self.steps = (1.0, 0.0), counts[-1]
        self.solved = self.problem()
        return Plans(self, found._replace(iterations=np.array([spent])), np.zeros(1, int)) if good else None

    def _judge(self, found: Solution) -> Solution:
        """Judge a smooth plan by the cost itself."""
        self.share = (1.0, 0.0)
        discrete, numbers, free = self.problem()
        target, options = part_of(self.target, slice(1)), replace(self.options, scaled=False)
        known = Multipliers(found.costate, found.dual, found.nu, np.full((1, 2 * self.free_time), NOTHING))
        solver = Solver(discrete, (self.system, numbers), free, options)
        return solver.judge((found.x, found.u, target), known)._replace(status=["feasible"])

    def _continue(self, guess: Plan, like: Node) -> tuple[Node, Numbers]:
        """The nodes and controls of another plan, which may have another number of steps, from nodes of our own.

        The start is our own. Where it is free it is that of the other plan.
        """
        if guess.inputs != self.inputs or guess.system.group != self.system.group:
            raise InvalidInput(f"guess has the inputs {guess.inputs}; allowed: a plan of this system: {self.inputs}")
        count, B = len(guess.controls), len(like.k)
        places = np.linspace(0.0, count, self.steps + 1)
        index = np.minimum((places + 1e-9).astype(int), count - 1)
        rest, xi = (places - index)[:, None], guess.xi[index]
        lane = (part_of(jax.tree.map(np.asarray, guess.g), index), rest * guess.step * xi)
        g = jax.tree.map(np.asarray, evaluate_rows(_shift_from, self.system.group, lane))
        w = like.w[0] if self.kinematic else (xi + rest * (guess.xi[index + 1] - xi))[:, self.free]
        origin = jax.tree.map(lambda leaf: np.repeat(leaf[:1], len(leaf), axis=0), (g, w)) if self.is_periodic else ()
        node = Node(like.k[0], g, w, np.full_like(like.duration[0], guess.duration), origin)
        nodes = jax.tree.map(lambda leaf: np.repeat(leaf[None], B, axis=0), node)
        (discrete, numbers, free), own = self.solved, part_of(like, np.s_[:, 0])
        consts = (self.system, numbers | {"onto": free @ np.linalg.pinv(free)})
        begun = evaluate_rows(Of(_move_freely, discrete), consts, (own, part_of(nodes, np.s_[:, 0])))
        for leaf, first in zip(jax.tree.leaves(nodes), jax.tree.leaves(begun), strict=True):
            leaf[:, 0] = first
        for leaf, first in zip(jax.tree.leaves(nodes.first), jax.tree.leaves(begun.first), strict=True):
            leaf[...] = np.asarray(first)[:, None]
        return nodes, np.repeat(guess.controls[index[:-1]][None], B, axis=0)

    def _known_multipliers(self, guess: Plan) -> Multipliers | None:
        """The multipliers of another plan that succeeded, at these steps; None where its states were others."""
        if guess.status not in REACHED or guess.costates.shape[1] != self.solved[0].dim or not guess.costates.any():
            return None
        old = np.arange(len(guess.controls)) + 1
        places = np.arange(1, self.steps + 1) * len(old) / self.steps
        costate, dual = (
            np.stack([np.interp(places, old, column) for column in [*part.T, old]], axis=1)[None, :, :-1]
            for part in (guess.costates, guess.bound_multipliers * len(old) / self.steps)
        )
        return Multipliers(costate, dual, guess.goal_multipliers[None], np.zeros((1, 2 * self.free_time)))

    def plan_of(self, found: Solution, b: int) -> Plan:
        """One plan of a solution."""
        kept, size = self._at_fixed_step(found, b), len(self.coordinates)
        return Plan(
            self.system, self.method, float(kept[1]["h"]), found.u[b].copy(), float(found.cost[b]), found.status[b],
            partial(self.explain, found, b, self.options), int(found.iterations[b]), float(found.error[b]),
            float(found.infeasibility[b]), bool(found.strict[b]) and found.status[b] == "optimal",
            found.costate[b].copy(), found.nu[b].copy(), found.dual[b].copy(),
            found.gains[b][:, :, :size].copy(), self.coordinates, self.inputs, self.kinematic, kept,
        )  # fmt: skip

    def _at_fixed_step(self, found: Solution, b: int) -> tuple[Discrete, dict[str, Any], Node]:
        """The discrete problem with the step that was found, its numbers, and its nodes."""
        nodes: Node = jax.tree.map(lambda leaf: leaf[b].copy(), found.x)
        h = float(nodes.duration[0, 0] if self.free_time else self.times) / self.steps
        (discrete, numbers, _), size = self.solved, len(self.coordinates)
        fixed = replace(discrete, free_time=False, periodic=False, dim=size, goal=None, named=None)
        return fixed, numbers | {"h": np.asarray(h)}, nodes._replace(duration=nodes.duration[:, :0], first=())

    def explain(self, found: Solution, b: int, options: Options) -> str:
        """Why there is no plan, and what to do; first, what can be known without a search."""
        if rows := self.blocked[b * len(self.blocked) // len(found.u)]:
            return (
                f"the goal itself breaks the path, as an obstacle that covers it does: {rows} there (path(t, g, xi, u) "
                "must not be negative): move the goal or what is in its way"
            )
        why = self._explain(found, b, options)
        if found.status[b] == "interrupted":
            return why
        return why + self._say_start(found, b) + self._say_step(found, b)

    def _explain(self, found: Solution, b: int, options: Options) -> str:
        word, gap = found.status[b], found.infeasibility[b]
        if word == "interrupted":
            return f"stopped after {found.iterations[b]} iterations; this is the best so far"
        if not np.isfinite([found.cost[b], found.error[b]]).all():
            what = "the cost, the path or a step, or a derivative of them,"
            return f"{what} is not finite on the way: begin with a guess where they are"
        if found.cost[b] < -ENDLESS:
            return f"the cost falls without end, to {found.cost[b]:.1e} so far: bound the inputs, or let them cost more"
        falling = ""
        if found.cost[b] < 0:
            falling = f". The cost is {found.cost[b]:.2g}: one that can fall below zero may have no least value"
        if gap <= options.feasible:
            what, moved = "", ", ".join(self.coordinates[self.system.group.dim :] or self.inputs)
            if self.smoothed:
                least = f"the cost plus {self.smoothed:.2g} times " if self.smoothed < math.inf else ""
                what = f"; least is {least}the integral of |w|^2 + {ROUGHNESS:g} T^2 |w'|^2 (w: {moved})"
            return (
                f"the goal is reached, but the cost is not least{what} (residual {found.error[b]:.1e}): raise "
                "max_iterations, take starts=8, smooth a cost with corners, such as |u|, or let rates and controls "
                f"cost a little that are nearly free: to shake them is often the cheapest way{falling}"
            )
        chosen = found.u[b].size + self.start_ways.shape[1] + self.free_time
        if chosen < (asked := found.nu.shape[1]):
            return f"{self.steps} steps have {chosen} numbers to choose, and the goal asks for {asked}: take more steps"
        if outside := self._outside(b * len(self.ends.t) // len(found.u) if self.ends else 0):
            return f"the goal itself is outside the bounds of {outside}: widen them, or name another goal"
        missed, off = "", 0.0
        sizes, vectors = np.linalg.eigh(np.where(np.isfinite(found.reach[b]), found.reach[b], 0.0))
        unreached = sizes <= 1e-12 * max(sizes.max(initial=0.0), 1e-300)
        if unreached.any() and self.goal is not None:
            names = np.array(self.coordinates)[self.goal_marks]
            if callable(self.goal):
                names = np.array([f"row {k} of goal(t, g, xi)" for k in range(asked)])
            elif self.named is not None:
                names = np.array(list(self.goal))
            weights = np.abs(vectors[: len(names), unreached]).max(axis=1)
            missed = ", ".join(names[weights > 0.3])
            last, target = part_of(found.x, np.s_[b, -1]), part_of(self.target, b)
            psi = evaluate(Of(_miss, self.solved[0]), (self.system, self.solved[1]), (last, target))
            off = np.abs(vectors[:, unreached].T @ np.asarray(psi)).max()
        if off > options.feasible:  # no control changes this part: is the goal on another leaf?
            leaves = nonholonomy(self.system, part_of(found.x.g, np.s_[b, 0]), t=self.t0)
            if len(leaves.covectors):
                return (
                    f"the goal is not reachable: motions from the start fill {leaves.growth[-1]} of {leaves.dimension} "
                    f"dimensions (growth vector {leaves.growth}), for the constraint is holonomic in part, and no "
                    f"control changes {missed}, by {off:.2g}"
                )
            if not self.kinematic and (brackets := self.brackets).misses:
                return (
                    f"the goal is not reachable: the inputs change {brackets.nearby[-1]} of the {brackets.dimension} "
                    f"dimensions of positions and velocities (growth vector {brackets.nearby} of their fields and "
                    f"brackets), and no control changes {missed}, by {off:.2g}. Goals that leave it free may be reached"
                )
        held = any(map(any, (self.bounded, self.watched))) or self.functions["path"] is not None
        if held and self._reaches_without_bounds(found, b, options):
            sure = ("are", "") if word == "stalled" else ("may be", ", or smooth a cost with corners, such as |u|")
            return (
                f"the goal is missed by {gap:.2g}. Without bounds and path it is reached: they {sure[0]} too tight for "
                f"this duration; widen them, or take a longer or free duration{sure[1]}"
            )
        near = f" Near the last iterate the controls cannot change {missed}." if missed else ""
        if not self.kinematic:
            filled, (growth, nearby, whole, _) = max(self.brackets.growth), self.brackets
            near += (
                f" The inputs and up to {len(growth) - 1} Lie brackets of them reach {filled} of {whole} dimensions of "
                f"positions and velocities at the start (growth vector {growth}), "
            )
            near += "which is necessary for reaching every goal, not sufficient." if filled == whole else (
                f"and {max(nearby)} nearby; the others "
                + ("are out of reach." if self.brackets.misses else "take manoeuvres to and fro, or more inputs.")
            )  # fmt: skip
        if full := self._at_bounds(found.u[b]):
            near += f" In most steps {full} is at a bound, which may be too tight for this duration."
        return (
            f"the goal is missed by {gap:.2g} ({'no step helps' if word == 'stalled' else word}).{near}{falling[1:]} "
            f"Take starts={max(8, 4 * len(found.u) // len(self.blocked))}, a longer duration, more steps, a guess that "
            "is nearer, or let the rates cost something too: where steering is nearly free, shaking it is cheaper"
        )

    def _say_start(self, found: Solution, b: int) -> str:
        """That the start breaks bounds or the path, if it does."""
        (discrete, numbers, _), x = self.solved, part_of(found.x, np.s_[b, 0])
        consts, words = (self.system, numbers), ""
        t, g, xi = evaluate(Of(Discrete.motion, discrete), consts, x)
        if outside := self._beyond(dict(enumerate(np.asarray(observe(self.system, t, g, xi))))):
            words = f". The start itself is outside the bounds of {outside}, which the first step has to mend"
        if discrete.path is not None:
            rows = _say_rows(np.asarray(evaluate(Of(Discrete.keep_clear, discrete), consts, (t, g, xi, found.u[b, 0]))))
            words += rows and f". The start itself breaks the path ({rows} there), which the first step has to mend"
        return words

    def _say_step(self, found: Solution, b: int) -> str:
        """That the step is too long for the fastest motion at the start, if it is."""
        if self.kinematic:
            return ""
        discrete, numbers, x = self._at_fixed_step(found, b)
        h = numbers["h"]
        fixed = replace(discrete, method=RungeKutta(), leaves_group=True, cost=None, final_cost=None, path=None)
        consts = (self.system, numbers | {"h": h * 1e-3})
        made = np.asarray(evaluate(Of(_state_derivative, fixed), consts, part_of(x, 0)))
        if not np.isfinite(made).all():
            return ""
        factors = np.linalg.eigvals(made).astype(complex)
        rates = np.log(factors[np.abs(factors) > 1e-3]) / (1e-3 * h)  # 0 is what the projection onto D takes away
        rate = rates[np.argmax(np.abs(rates))] if len(rates) else 0.0
        often = float(h * np.abs(rate))
        if not often > LONGEST_STEP:
            return ""
        shown = f"{rate.real:.3g}" + (f" +- {abs(rate.imag):.3g}i" if abs(rate.imag) > 1e-6 * abs(rate) else "")
        limit = "is not stable above 2.8" if isinstance(self.method, RungeKutta | ProjectedRungeKutta) else (
            "does not resolve it"
        )  # fmt: skip
        return (
            f". The step of {h:.3g} s is {often:.2g} times the time of the fastest motion at the start ({shown} 1/s), "
            f"and {self.method.name} {limit}: take at least {math.ceil(self.steps * often / LONGEST_STEP)} steps"
        )

    @cached_property
    def brackets(self) -> Accessibility:
        """What the inputs can change from the first start on."""
        return accessibility(self.system, self.first)

    def _outside(self, k: int) -> str:
        """What goal k has outside its bounds, by names; nothing that is free."""
        values: dict[int, float] = {}
        if self.named is not None:
            values = dict(zip(self.named.places, self.wanted, strict=True))
        elif self.ends is not None and self.goal_marks[: self.system.group.dim].all():
            seen = np.asarray(observe(self.system, *part_of(self.ends[:3], k)))
            values = dict(enumerate(seen if self.goal_marks.all() else seen[: -self.system.group.dim]))
        return self._beyond(values)

    def _beyond(self, values: Mapping[int, float]) -> str:
        """The names of coordinates and rates, by their places, whose values are outside the bounds."""
        (low, high), names = self.watched, (*names_of(self.system)[0], *self.system.rate_names)
        beyond = [place for place, least in zip(low, self.least, strict=True) if values.get(place, least) < least]
        beyond += [place for place, most in zip(high, self.most, strict=True) if values.get(place, most) > most]
        return ", ".join(names[place] for place in sorted(beyond))

    def _at_bounds(self, u: Numbers) -> str:
        """The inputs that are at a bound in most steps."""
        ends = self.solved[0].limits(self.solved[1])[:, None]
        near = np.isfinite(ends) & (np.abs(u - ends) <= 1e-3 * (1.0 + np.abs(ends)))
        full = (near.mean(axis=1) > 0.5).any(axis=0)
        return ", ".join(name for name, always in zip(self.inputs, full, strict=True) if always)

    def _reaches_without_bounds(self, found: Solution, b: int, options: Options) -> bool:
        discrete, numbers, free = self.problem(bounded=False)
        last = part_of((found.x, found.u, self.target), slice(b, b + 1))
        other = Solver(discrete, (self.system, numbers), free, options).solve(lambda part: part_of(last, part), 1)
        return bool(other.infeasibility[0] <= options.feasible)


_itself = lambda consts, node: node
_miss = lambda of, consts, lane: of.end(consts, *lane)[2]
_way = lambda group, ends: group.log(group.compose(group.inverse(ends[0]), ends[1]))
_move_freely = lambda of, consts, lane: of.move(consts, lane[0], consts[1]["onto"] @ of.apart(consts, *lane))
_shift_from = lambda group, lane: group.compose(lane[0], group.exp(lane[1]))


def _say_rows(rows: Numbers) -> str:
    """The rows of a path that are negative, with their values, in words."""
    return ", ".join(f"row {k} is {value:.2g}" for k, value in enumerate(rows) if value < -1e-6)


def linearise_step(of: Discrete, consts: Any, lane: Any) -> Any:
    """The derivatives (A, B) of a step in the charts of its ends."""
    x, after, u = lane

    def off(z: Array) -> Array:
        return of.apart(consts, after, of.advance(consts, of.move(consts, x, z[: of.dim]), u + z[of.dim :]))

    ways = jnp.eye(of.dim + of.controls)
    return map_rows(lambda way: jax.jvp(off, (0.0 * ways[0],), (way,))[1], ways).T


def _state_derivative(of: Discrete, consts: Any, x: Any) -> Any:
    """The derivative of a step without controls, at a node."""
    u = jnp.zeros(of.controls)
    return linearise_step(of, consts, (x, of.advance(consts, x, u), u))[:, : of.dim]


def _hold_within(of: Discrete, consts: Any, lane: Any) -> Array:
    """What is held after a share of a step, which begins at a node that counts such shares."""
    (system, numbers), (node, u, share) = consts, lane
    consts = system, numbers | {"h": share * numbers["h"]}
    t, h = of.size(consts[1], node)
    end = of.motion(consts, of.advance(consts, node, u))[1:]
    if of.kinematic:
        end = end[0], of.drive(consts, t, node.g, u, h)[0].xi
    return of.held(consts, t + h, *end, u)


def _state_after(of: Discrete, consts: Any, lane: Any) -> State:
    """The state at the end of a step; of a kinematic plan with the velocity of the step."""
    node, before, u = lane
    state = of.state(consts, node)
    if of.kinematic:
        xi = of.drive(consts, of.size(consts[1], before)[0], before.g, u, of.size(consts[1], before)[1])[0].xi
        state = state._replace(xi=xi, increment=xi)
    return state


def _project_speed(consts: Any, lane: Any) -> Any:
    """The velocity in D nearest to another, by the inverse weights of its components."""
    (system, t, inverse), (g, xi) = consts, lane
    rows, drift = constraint_at(system, t, g)
    return xi - inverse * (rows.T @ solve((rows * inverse) @ rows.T, rows @ xi - drift))
