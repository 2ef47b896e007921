"""Feedback that keeps a system on a plan: `track` makes it, and it follows the plan with any plant.

The gains are those of the linear quadratic regulator along the plan: the discrete Riccati recursion on the derivatives
of the method's own step, in the charts of the nodes, so that errors of orientation are elements of the algebra. With a
horizon the controls are planned anew at every step from the measured state, a Newton step at a time (real-time
iterations: Diehl, Bock and Schloeder 2005), with the bounds of the inputs kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, match_names
from ..integrators import OK
from ..kernels import Of, Shelf, evaluate, evaluate_rows, map_rows, part_of, run_rows
from ..mechanics import MechanicalSystem, State, names_of, observe
from ..numerics import finite_reals, known_arguments, not_negative, positive_int, require_instance, show, solve
from ..numerics.types import Array
from ..trajectory import Trajectory, simulate
from .planning import Discrete, Node, Plan, linearise_step
from .solver import Options, Solver

Numbers = np.ndarray[Any, Any]
MAX_HORIZON = 100_000
SHARE, TINY = 0.1, 1e-3  # the weight of the largest control by default; less than this share of it is no size
OUTSIDE = "it compares numbers as it goes: track outside, or put gains into a policy of da.simulate"


class TrackedNode(NamedTuple):
    """A node of the motion with what it is compared with: a node and the control of the plan, and the weight of it."""

    node: Node
    planned: Node
    u: Any
    weight: Any


@dataclass(frozen=True)
class Following:
    """The problem of the next steps: stay near the plan. Constants are (system, numbers with the weight R)."""

    discrete: Discrete
    dim: int
    controls: int

    def move(self, consts: Any, x: TrackedNode, d: Array) -> TrackedNode:
        return x._replace(node=self.discrete.move(consts, x.node, d))

    def apart(self, consts: Any, x: TrackedNode, other: TrackedNode) -> Array:
        return self.discrete.apart(consts, x.node, other.node)

    def advance(self, consts: Any, x: TrackedNode, u: Array) -> TrackedNode:
        return x._replace(node=self.discrete.advance(consts, x.node, u))

    def judge(self, consts: Any, x: TrackedNode, after: TrackedNode, u: Array) -> tuple[Array, Array]:
        change, held = u - x.u, self.discrete.judge(consts, x.node, after.node, u)[1]
        return self.end(consts, x, None)[0] + 0.5 * change @ consts[1]["R"] @ change, held

    def end(self, consts: Any, x: TrackedNode, target: Any) -> tuple[Array, Array, Array]:
        off = self.discrete.apart(consts, x.planned, x.node)
        return 0.5 * off @ x.weight @ off, jnp.zeros(0), jnp.zeros(0)

    def inner(self, consts: Any) -> tuple[Any, Any]:
        return self, consts


def steer(of: Discrete, consts: Any, lane: Any) -> Any:
    """u = u_k + K_k (x - x_k), within the bounds of the inputs."""
    state, (planned, u, K, low, high) = lane
    node = planned._replace(g=state.g, w=of.coordinates(consts[1], state.xi))
    return jnp.clip(u + K @ of.apart(consts, planned, node), low, high)


def drive(of: Discrete, consts: Any, carry: Any, row: Any) -> Any:
    """A step of the plant under this feedback."""
    (system, numbers), (state, _, good), method = consts, carry, of.method
    u = steer(of, consts, (state, row))
    begun, info = method.start(system, state, numbers["h"], u)
    new, last = method.step(system, begun, numbers["h"], u)
    good = good & (info.status == OK) & (last.status == OK)
    return method.observe(system, new, numbers["h"])._replace(group=system.group), u, good


_second = lambda consts, carry: carry[1]


@known_arguments(OUTSIDE)
@dataclass(frozen=True, eq=False, repr=False)
class Tracker:
    """Feedback that holds a system on a plan; `track` makes it.

    u = u_k + gains_k @ e_k in step k, where e_k are the coordinates of the error, the measured state seen from the
    planned one; `gains` has the shape (steps, inputs, dim).
    """

    plan: Plan
    gains: Numbers
    nodes: Node
    discrete: Discrete
    numbers: dict[str, Any]
    weights: tuple[Numbers, Numbers]  # Q and S at every node
    horizon: int = 0
    iterations: int = 1
    _known: dict[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        how = f"planned anew over {self.horizon} steps" if self.horizon else f"gains {self.gains.shape}"
        return f"<Tracker of {len(self.plan.controls)} steps of {self.plan.system.title}: {how}>"

    def control(self, k: int, state: State) -> Numbers:
        """The controls (inputs,) of step k for the measured `state`; after the end of the plan its last ones hold."""
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
            raise InvalidInput(f"k is {show(k)}; allowed: the number of a step, 0 for the first")
        self._require_state("state", state)
        if not self.horizon:
            row = part_of(self._rows(), min(k, len(self.plan.controls) - 1))
            return np.asarray(evaluate(Of(steer, self.discrete), (self.plan.system, self.numbers), (state, row)))
        return self._replan(int(k), state)

    def _require_state(self, name: str, state: Any) -> None:
        """Refuse what is no state of the planned system."""
        require_instance(name, state, State, "a state, as plant.state(g, xi) makes it")
        given = [np.shape(leaf) for leaf in jax.tree.leaves((state.g, state.xi))]
        if given != [*(leaf.shape[1:] for leaf in jax.tree.leaves(self.nodes.g)), (self.plan.system.group.dim,)]:
            raise InvalidInput(f"{name} has arrays of shapes {given}; allowed: one state of {self.plan.system.group}")

    def _rows(self) -> Any:
        ends = np.tile(self._ends[:, None], (1, len(self.plan.controls), 1))
        return part_of(self.nodes, slice(-1)), self.plan.controls, self.gains, *ends

    @property
    def _ends(self) -> Numbers:
        """The lower and the upper bounds of the inputs."""
        return np.array([(each.low, each.high) for each in self.plan.system.inputs or ()], float).T

    def _replan(self, k: int, state: State) -> Numbers:
        """The first control of a plan over the horizon, from where the last one ended."""
        H, steps, system = self.horizon, len(self.plan.controls), self.plan.system
        numbers = np.arange(k, k + H + 1)
        index = np.minimum(numbers, steps)
        planned: Node = part_of(self.nodes, index[None])
        wanted = self.plan.controls[np.minimum(numbers, steps - 1)]
        Q, S = (each[index] for each in self.weights)
        ends = (numbers == steps) | ((numbers == k + H) & (numbers < steps))
        weight = np.where(ends[:, None, None], S, np.where((numbers < steps)[:, None, None], Q, 0.0))
        machine, x = self._known.get("machine"), TrackedNode(planned, planned, wanted[None], weight[None])
        if machine is None or self._known["k"] != k - 1:
            options = Options(tolerance=0.0, barrier=1e-4, least=1e-4, scaled=False)  # the barrier stays as it is
            problem = Following(self.discrete, self.discrete.dim, self.discrete.controls)
            solver = Solver(problem, (system, self.numbers), np.zeros((problem.dim, 0)), options)
            machine = self._known["machine"] = solver.machine(x, wanted[None, :-1], None)
            machine.improve(np.inf)  # it will be used often
        else:
            self._shift(machine.stages, x, wanted[-2])
        stages = machine.stages
        point: TrackedNode = jax.tree.unflatten(stages.specs["x"][1], stages.leaves("x"))
        w = self.discrete.coordinates(self.numbers, np.asarray(state.xi))
        measured = Node(float(k), state.g, w, point.node.duration[..., 0, 0], ())
        for leaf, value in zip(jax.tree.leaves(point.node), jax.tree.leaves(measured), strict=True):
            leaf[..., 0, 0] = value
        stages.leaves("dx")[0][:, 0] = 0.0
        for _ in range(self.iterations):
            machine.begin_anew(machine.barrier)
            machine.score()
            machine.step()
            if machine.flags("bad").any() or not np.isfinite(stages.leaves("du")[0]).all():
                machine.lengths[1][:2] = 0.0  # no step: the controls stay
        self._known["k"] = k
        change = machine.lengths[1][0, 0, 0] * stages.leaves("du")[0][:, 0, 0] if machine.lengths[1][0, 0, 0] else 0.0
        return np.asarray(np.clip(stages.leaves("u")[0][:, 0, 0] + change, *self._ends))

    def _shift(self, stages: Shelf, reference: TrackedNode, last: Numbers) -> None:
        """Put the iterate of the last step one stage on, beside the next part of the plan."""
        for name in ("u", "costate", "slack", "dual", "du", "dcostate", "dslack", "ddual"):
            (leaf,) = stages.leaves(name)
            leaf[:, :-2] = leaf[:, 1:-1]
        points = zip(stages.leaves("x"), jax.tree.leaves(reference), strict=True)
        own = len(jax.tree.leaves(reference.node))
        for place, (leaf, value) in enumerate(points):
            new = np.moveaxis(value[0], 0, -1)[..., None]
            if place < own:
                leaf[..., :-1, :] = leaf[..., 1:, :]
                leaf[..., -1, :] = new[..., -1, :]
            else:
                leaf[...] = new
        (dx,) = stages.leaves("dx")
        dx[:, :-1], dx[:, -1] = dx[:, 1:], 0.0
        stages.leaves("u")[0][:, -2, 0] = last

    def follow(self, plant: MechanicalSystem | None = None, start: State | None = None) -> Trajectory:
        """Simulate a plant (default: the planned system) that this feedback drives along the plan from `start`.

        The plant may have other parameters, forces or another start than the plan assumed; its group and inputs are
        those of the plan. The feedback sees the true state before every step.
        """
        plan = self.plan
        plant = plan.system if plant is None else plant
        require_instance("plant", plant, MechanicalSystem, "a system")
        if plant.group != plan.system.group or len(plant.inputs or ()) != len(plan.inputs):
            raise InvalidInput(
                f"the plant has configurations in {plant.group} and {len(plant.inputs or ())} inputs; allowed: those "
                f"of the plan, {plan.system.group} and {len(plan.inputs)}"
            )
        state = part_of(plan.states, 0) if start is None else start
        self._require_state("start", state)
        controls = self._drive(plant, state)
        return simulate(plant, plan.method, state, step=plan.step, steps=len(controls), controls=controls)

    def _drive(self, plant: MechanicalSystem, state: State) -> Numbers:
        """The controls of the closed loop."""
        closed, consts, rows = Of(drive, self.discrete), (plant, self.numbers), self._rows()
        carry = (jax.tree.map(np.asarray, state), np.zeros(len(self.plan.inputs)), np.asarray(True))
        if not self.horizon:
            return np.asarray(run_rows(closed, _second, consts, carry, rows)[1])
        made = []
        for k in range(len(self.plan.controls)):
            made.append(self._replan(k, carry[0]))
            planned, _, gains, *ends = part_of(rows, slice(k, k + 1))
            carry, _ = run_rows(closed, _second, consts, carry, (planned, made[-1][None], 0.0 * gains, *ends))
        return np.stack(made)


@known_arguments(OUTSIDE)
def track(
    plan: Plan, *, state_weight: Any = 1.0, control_weight: Any = None, final_weight: Any = None, horizon: int = 0,
    iterations: int = 1,
) -> Tracker:  # fmt: skip
    """Make the feedback that holds a system on a plan (LQR along it, or model predictive control with a `horizon`).

    It minimises the sum of e.Q e + v.R v over the steps: e are the coordinates of the error in the order of
    `plan.coordinates`, v the change of the controls. The weights Q (`state_weight`) and R (`control_weight`) are names
    with numbers, {"x": 10, "heading": 5}, a number, one for each component, or a matrix. Coordinates and rates that
    are not named have the weight 0. Inputs that are not named have the weight 0.1/(largest control)^2, the largest
    that the bounds allow, or without bounds the largest of the plan. A single number gives no weight to the angles of
    a mechanism's wheels and rotors, nor to rates of rolling wheels, which follow from the motion of the bodies.
    `final_weight` is Q at the end (default: ten times `state_weight`). With `horizon` = H, every step plans the next H
    steps again, by this number of `iterations`.
    """
    require_instance("plan", plan, Plan, "a Plan, as da.plan makes it")
    if plan.kinematic:
        raise InvalidInput("a kinematic plan has no dynamics that feedback could hold: plan with the inputs")
    if plan.status != "optimal":
        gap = f"its states fit together, and the goal is met, to {plan.infeasibility:.1e}"
        warnings.warn(f"the plan to be tracked is not optimal ({plan.status}): {gap}", stacklevel=2)
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or not 0 <= horizon <= MAX_HORIZON:
        raise InvalidInput(f"horizon is {show(horizon)}; allowed: up to {MAX_HORIZON} steps, or 0: fixed gains")
    discrete, numbers, nodes = plan.problem
    n, r, N = len(plan.coordinates), len(plan.inputs), len(plan.controls)
    R = _weigh_controls(plan, control_weight)
    if np.linalg.eigvalsh(R)[0] <= 0:
        raise InvalidInput("control_weight must be positive: otherwise the controls of least cost are unbounded")
    Q = _weigh_states(plan, "state_weight", state_weight)
    S = 10.0 * Q if final_weight is None else _weigh_states(plan, "final_weight", final_weight)
    numbers = numbers | {"R": R}
    lane = (part_of(nodes, slice(-1)), part_of(nodes, slice(1, None)), plan.controls)
    AB = evaluate_rows(Of(linearise_step, discrete), (plan.system, numbers), lane)
    weights = np.zeros((N, n + r, n + r))
    weights[:, :n, :n], weights[:, n:, n:] = Q[:-1], R
    last, rows = (S[-1], np.zeros((r, n))), (np.asarray(AB)[::-1], weights[::-1])
    gains = np.asarray(run_rows(step_riccati, _second, (), last, rows)[1])[::-1]
    return Tracker(plan, gains, nodes, discrete, numbers, (Q, S), horizon, positive_int("iterations", iterations))


def step_riccati(consts: Any, after: Any, row: Any) -> Any:
    """Riccati's recursion: the weight P of the error before a step, and the gain of the step, from those after it."""
    (AB, weight), n = row, after[0].shape[0]
    whole = weight + AB.T @ after[0] @ AB
    gain = -solve(whole[n:, n:], whole[n:, :n])
    P = whole[:n, :n] + whole[:n, n:] @ gain
    return 0.5 * (P + P.T), gain


def _weigh_states(plan: Plan, what: str, given: Any) -> Numbers:
    """The weights (steps + 1, dim, dim) of the errors at the nodes."""
    (discrete, numbers, nodes), system, size = plan.problem, plan.system, len(plan.coordinates)
    shape, n, keeps = (len(nodes.k), size, size), system.group.dim, system.kept_components
    names = (*names_of(system)[0], *system.rate_names, *plan.coordinates)
    if isinstance(given, Mapping):
        values = _by_names(what, given, names)
        weights = [values.pop(name, 0.0) for name in names] + [0.0] * n
    else:
        matrix = _weight(what, given, size)
        if np.ndim(given) or keeps.all():
            return np.broadcast_to(matrix, shape)
        weights = [0.0] * len(names) + list(matrix[0, 0] * keeps[n:])
        weights[-n - size : -size] = matrix[0, 0] * keeps[:n]
    slopes = evaluate_rows(Of(_slopes, discrete), (system, numbers), nodes)
    own = np.flatnonzero(weights)
    return np.asarray(np.einsum("kia,i,kib->kab", slopes[:, own], np.array(weights)[own], slopes[:, own]))


def _weigh_controls(plan: Plan, given: Any) -> Numbers:
    """The weight (inputs, inputs) of a change of the controls."""
    (discrete, numbers, _), count = plan.problem, len(plan.inputs)
    sizes = np.nan_to_num(np.abs(discrete.limits(numbers)), posinf=0.0).max(axis=0)
    used = np.abs(plan.controls).max(axis=0)
    sizes = np.where(sizes > 0, sizes, np.where(used > TINY * used.max(), used, used.max() or 1.0))
    default = SHARE / sizes**2
    if given is None:
        return np.diag(default)
    if not isinstance(given, Mapping):
        return _weight("control_weight", given, count)
    values = _by_names("control_weight", given, plan.inputs)
    return np.diag([values.get(name, own) for name, own in zip(plan.inputs, default, strict=True)])


def _by_names(what: str, given: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Weights by the names that they mean."""
    found = match_names(f"name in {what}", given, dict.fromkeys(names))
    return {name: float(not_negative(f"{what} of {name}", value)) for name, value in found.items()}


def _slopes(of: Discrete, consts: Any, node: Any) -> Any:
    """Derivatives in the chart of a node: of named coordinates and rates, of the chart, and of the velocity alone."""
    n, ways = consts[0].group.dim, jnp.eye(of.dim)

    def seen(d: Array) -> Array:
        motion, own = (of.motion(consts, of.move(consts, node, each)) for each in (d, d.at[:n].set(0.0)))
        return jnp.concatenate([observe(consts[0], *motion), d, own[2]])

    return map_rows(lambda way: jax.jvp(seen, (0.0 * ways[0],), (way,))[1], ways).T


def _weight(name: str, given: Any, size: int) -> Numbers:
    """A symmetric matrix from a number, a diagonal or a matrix."""
    value = np.asarray(finite_reals(name, given))
    if value.shape == ():
        value = np.full(size, float(value))
    matrix = value if value.ndim == 2 else np.diag(value) if value.ndim == 1 else np.zeros((0, 0))
    if matrix.shape != (size, size) or np.linalg.eigvalsh(matrix + matrix.T)[0] < 0:
        raise InvalidInput(
            f"{name} is {show(given)}; allowed: a number, {size} numbers or a {size} x {size} matrix, not negative, or "
            "names with numbers"
        )
    return 0.5 * (matrix + matrix.T)
