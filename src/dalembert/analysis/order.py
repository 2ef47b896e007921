"""Measured orders: of methods, of discrete Lagrangians and of discrete constraints, against the exact motion.

The exact motion is pure JAX, so that it can be vmapped, differentiated and used inside Newton's method. The exact
discrete constraint D_d^E (Remark 5.4 of jimenez-scheurle) are the pairs of configurations that the motion joins in time
h, the yardstick for any D_d: shooting decides whether a pair is in it, and by how much another D_d misses it is
measured. `consistency_order` measures the order (p, s) of Definition 4.2 there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from numpy.polynomial import legendre

from ..errors import InvalidInput, NumericalFailure, UnknownName
from ..integrators import Integrator, LagrangeDAlembert, RetractionAdapted, derivative, scipy_motion
from ..io.config import Job
from ..kernels import Backend
from ..mechanics import Discretisation, MechanicalSystem, State
from ..numerics import Convergence, find_root, slopes, solve, solve_saddle
from ..numerics.types import Element, Scalar
from ..simulation import Run, simulate, to_json

STEPS = (0.2, 0.1, 0.05, 0.025)


def lagrangian_order(pair: Discretisation, state: State, *, steps: Sequence[float] = STEPS) -> float:
    """Measure the order r of a discrete Lagrangian: L_d(g(0), g(h)) - int_0^h L dt = O(h^{r+1}) along the motion.

    It is 1 in general and 2 at node 1/2 ((56) of jimenez-scheurle). The slope of the two smallest steps is given.
    """
    system, errors = pair.system, []

    def field(t: Scalar, y: Any) -> Any:
        g, xi, _ = y
        return *derivative(system, t, g, xi, None), system.L(t, g, xi)

    run = jax.jit(lambda h, pieces: gauss_flow(field, state.t, (state.g, state.xi, jnp.zeros(())), h, pieces))
    for h in steps:
        g, _, action = run(h, choose_pieces(partial(run, h)))
        errors.append(abs(float(pair.lagrangian(state.t, state.g, g, h, system)) - float(action)))
    return float(slopes(steps, errors)[-1]) - 1.0


Exact = Callable[[float], tuple[Any, Any]]  # t -> (g, xi)
ExactMotion = tuple[State, dict[str, Array]]
"""The states to compare with, the start first, and their multipliers (saves, m) at each time stamp."""
STATE = ("configuration", "velocity", "energy")
OWN_TIME = "multipliers, own time"
MAX_COMPARED_TIMES = 8  # at most so many times are compared


def convergence(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    *,
    duration: float,
    counts: Sequence[int] = (16, 32, 64, 128),
    local: bool = False,
    exact: Exact | str | None = None,
    backend: Backend = "auto",
) -> Convergence:
    """Measure the order of a method: its errors with the steps duration/n, n in `counts`, and their slope.

    Errors are those after the `duration`, or after one step (`local`). They are taken against `exact(t)` -> (g, xi),
    against DOP853 at 1e-13 (None), or, with "richardson", against the run of the method itself with the next smaller
    step. Multipliers are compared at the time of the state, and under "multipliers, own time" where the method's
    discrete reaction acts between states (the (p, s) of Definition 4.2 of jimenez-scheurle, at both time stamps).
    """
    if isinstance(exact, str) and exact != "richardson":
        raise UnknownName("comparison", exact, ("richardson",))
    if exact == "richardson" and integrator.variable_step:
        raise InvalidInput(f"halved steps of {integrator.name} end at other times: compare with the exact motion")
    unique = sorted(n for n in set(counts) if isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0)
    if len(unique) != len(counts) or len(unique) < 2:
        raise InvalidInput(f"counts is {list(counts)}; allowed: at least two different positive numbers of steps")
    saves = 1 if local else max(d for d in range(1, MAX_COMPARED_TIMES + 1) if math.gcd(*unique) % d == 0)

    def run(n: int) -> Run:
        steps, every = (1, 1) if local else (n, n // saves)
        return simulate(system, integrator, state, step=duration / n, steps=steps, save_every=every, backend=backend)

    runs = [run(n) for n in unique]
    if exact == "richardson":
        good = [r.records.state if r.status == "ok" else None for r in runs[1:]]
        truths = [s and (s, {"multipliers": r.multipliers}) for s, r in zip(good, runs[1:], strict=True)]
        return _collect(runs[:-1], truths, local, np.array([float(r.step) for r in runs[1:]]))
    motions = _exact_motions(system, integrator, state, runs, None if isinstance(exact, str) else exact)
    return _collect(runs, motions, local, np.zeros(len(runs)))


def _collect(runs: Sequence[Run], truths: Sequence[ExactMotion | None], local: bool, finer: np.ndarray) -> Convergence:
    gaps = [_gaps(run, truth) if run.status == "ok" and truth else {} for run, truth in zip(runs, truths, strict=True)]
    some = next((g for g in gaps if g), None)
    if some is None:
        raise NumericalFailure(f"no run has an error to measure; the last one failed: {runs[-1].reason}")
    missing = {name: (np.full_like(error, np.nan), value) for name, (error, value) in some.items()}
    errors = {name: np.stack([(g or missing)[name][0] for g in gaps]) for name in some}
    return Convergence(
        local,
        np.array([float(run.step) for run in runs]),
        {name: values[:, -1] for name, values in errors.items()},
        {name: np.abs(values).max(axis=(1, 2)) for name, values in errors.items()},
        {name: max(float(np.abs((g or missing)[name][1]).max()) for g in gaps) for name in some},
        tuple(run.reason for run in runs),
        finer,
    )


def reaction_lag(integrator: Integrator) -> float:
    """How many steps earlier than a state the reaction acts that the method reports with this state."""
    if isinstance(integrator, LagrangeDAlembert):
        return integrator.node if integrator.nodes == "velocity" else 1.0
    return 1.0 - integrator.node if isinstance(integrator, RetractionAdapted) else 0.0


def _exact_motions(
    system: MechanicalSystem, integrator: Integrator, state: State, runs: Sequence[Run], exact: Exact | None
) -> list[ExactMotion]:
    """The exact motion at the times of every run since the start, and at its own times of reaction."""
    begin, lag = float(state.t), reaction_lag(integrator)
    stamps = {"multipliers": 0.0} | ({OWN_TIME: lag} if lag else {})

    def moments(run: Run, lag: float) -> np.ndarray:
        if integrator.variable_step:
            return np.round(np.asarray(run.t) - begin, 13)
        return np.round(np.maximum(np.asarray(run.records.steps) - lag, 0.0) * float(run.step), 13)

    wanted = np.unique(np.concatenate([moments(run, lag) for run in runs for lag in (0.0, *stamps.values())]))
    wanted = wanted if float(runs[0].step) > 0 else wanted[::-1]  # the start comes first
    times = begin + wanted[1:]
    if exact is None:
        found = scipy_motion(system, state, np.concatenate([[begin], times]))
        if len(found) <= len(times):
            raise NumericalFailure(f"the accurate motion cannot be continued beyond t = {float(found[-1].t):.6g}")
    else:
        momentum, pairs = jax.jit(system.momentum), ((t, *exact(float(t))) for t in times)
        found = [state, *(State(jnp.asarray(t), g, xi, momentum(t, g, xi), xi, state.group) for t, g, xi in pairs)]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
    reactions = _reactions(system, states)
    place = {float(moment): k for k, moment in enumerate(wanted)}

    def exact_flow(run: Run) -> ExactMotion:
        rows = {name: np.array([place[float(x)] for x in moments(run, lag)]) for name, lag in stamps.items()}
        chosen = jax.tree.map(lambda leaf: leaf[rows["multipliers"]], states)
        return chosen, {name: reactions[row] for name, row in rows.items()}

    return [exact_flow(run) for run in runs]


@jax.jit
def _reactions(system: MechanicalSystem, states: State) -> Array:
    return jax.vmap(system.multipliers)(states.t, states.g, states.xi)


def _gaps(run: Run, truth: ExactMotion) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(errors, exact values), both (saves, d), of every quantity at the saved states after the start."""
    states, multipliers = truth
    ours, theirs = (jax.tree.map(lambda leaf: leaf[1:], each) for each in (run.records.state, states))
    gaps = jax.tree.map(np.asarray, _state_gaps(run.system, ours, theirs))
    found: dict[str, tuple[np.ndarray, np.ndarray]] = dict(zip(STATE, gaps, strict=True))
    for name, values in multipliers.items():
        if values.shape[1]:
            found[name] = np.asarray(run.multipliers - values)[1:], np.asarray(values)[1:]
    return found


@jax.jit
def _state_gaps(system: MechanicalSystem, ours: State, theirs: State) -> list[tuple[Array, Array]]:
    """(errors, exact values) of the quantities of STATE."""
    group = system.group

    def one(a: State, b: State) -> list[tuple[Array, Array]]:
        shift = group.log(group.compose(group.inverse(b.g), a.g))
        energies = [system.energy(s.t, s.g, s.xi)[None] for s in (a, b)]
        return [(shift, jnp.ones(1)), (a.xi - b.xi, b.xi), (energies[0] - energies[1], energies[1])]

    gaps: list[tuple[Array, Array]] = jax.vmap(one)(ours, theirs)
    return gaps


STEP_LEVELS = 5
MAX_STUDY_STEPS = 10**9
"""Steps of the finest run of a study: minutes of work. A mistyped number of levels easily asks for years."""


def study_convergence(
    job: Job, *, levels: int = STEP_LEVELS, local: bool = False, richardson: bool = False
) -> Convergence:
    """Errors at the end of the run of a configuration (or after one step), with its step halved `levels` - 1 times."""
    if levels < 2 or (richardson and levels < 3):
        raise InvalidInput(f"levels is {levels}; allowed: at least 2 steps to compare, 3 with richardson")
    first, duration = job.run["steps"], job.run["steps"] * job.run["step"]
    most = int(math.log2(max(1, MAX_STUDY_STEPS // first))) + 1
    if levels > most:
        limit = f"the last run has at most {MAX_STUDY_STEPS:.0e} steps"
        raise InvalidInput(f"levels is {levels}; allowed here: {most}, so that {limit}")
    counts, backend = [first * 2**k for k in range(levels)], job.run.get("backend", "auto")
    options: dict[str, Any] = {"local": local, "exact": "richardson" if richardson else None, "backend": backend}
    return convergence(job.system, job.integrator, job.state, duration=duration, counts=counts, **options)


def convergence_report(found: Convergence, job: Job) -> dict[str, Any]:
    """The study as one object of plain numbers; null where a run failed or an error is round-off."""
    return {
        "system": job.names["system"],
        "method": job.names["method"],
        "errors": "local" if found.local else "global",
        "time": float(job.state.t) + (0.0 if found.local else job.run["steps"] * job.run["step"]),
        "step": to_json(found.steps),
        "reason": [reason or None for reason in found.failures],
        "quantities": {
            name: {
                "error": to_json(found.norms[name]),
                "slope": to_json(found.slopes(name)),
                "order": found.order(name),
                "coefficient": None if (c := found.coefficient(name)) is None else to_json(c),
            }
            for name in found.norms
        },
    }


STAGES = 8
MAX_ITERATIONS = 60
_X, _WEIGHTS = legendre.leggauss(STAGES)
_INTEGRALS = legendre.legval(_X, legendre.legint(np.eye(STAGES), lbnd=-1)).T  # of Legendre polynomials up to the nodes
NODES, WEIGHTS = (_X + 1) / 2, _WEIGHTS / 2
MATRIX = _INTEGRALS @ np.linalg.inv(legendre.legvander(_X, STAGES - 1)) / 2
"""c, b and a of Gauss collocation on [0, 1]."""


Point = TypeVar("Point")


def gauss_flow(
    field: Callable[[Any, Point], Point], t: Scalar, y: Point, duration: Scalar, pieces: ArrayLike = 1
) -> Point:
    """y(t + duration) of y' = field(t, y), a pytree, by Gauss collocation of order 16 in `pieces` equal steps."""
    h = duration / pieces
    start, restore = ravel_pytree(y)

    def flat_field(t: Any, y: Array) -> Array:
        return ravel_pytree(field(t, restore(y)))[0]

    def stages(t: Scalar, y: Array) -> Any:
        def improve(state: Any) -> Any:
            slopes, _, change, count = state
            new = jax.vmap(flat_field)(t + NODES * h, y + h * MATRIX @ slopes)
            return new, change, jnp.max(jnp.abs(new - slopes)), count + 1

        def shrinking(state: Any) -> Any:
            _, before, change, count = state
            return (count < MAX_ITERATIONS) & ((count < 2) | (change < 0.5 * before)) & (change > 0)

        zero = jnp.zeros((), y.dtype)
        begin = (jnp.tile(flat_field(t, y), (STAGES, 1)), zero, zero + jnp.inf, 0)
        return jax.lax.while_loop(shrinking, improve, begin)[0]

    def piece(k: Array, y: Array) -> Array:
        return jnp.asarray(y + h * WEIGHTS @ stages(t + k * h, y))

    end: Point = restore(jax.lax.fori_loop(0, pieces, piece, start))
    return end


def choose_pieces(run: Callable[[int], Any], tolerance: float = 1e-14, limit: int = 128) -> int:
    """The number of pieces whose halving leaves the end `run(pieces)` of a motion within a relative `tolerance`."""
    last = ravel_pytree(run(1))[0]
    for pieces in 2 ** np.arange(int(np.log2(limit)) + 1):
        new = ravel_pytree(run(2 * int(pieces)))[0]
        if np.abs(new - last).max() <= tolerance * (1 + np.abs(new).max()):
            return int(pieces)
        last = new
    raise NumericalFailure(f"{2 * limit} pieces of order {2 * STAGES} do not resolve the motion: take a shorter time")


def exact_flow(
    system: MechanicalSystem, t: Scalar, g: Element, xi: Array, h: Scalar, pieces: ArrayLike
) -> tuple[Any, Array]:
    """(g, xi) after a time h of the motion, to round-off."""
    return gauss_flow(lambda s, y: derivative(system, s, *y, None), t, (g, xi), h, pieces)


class ShootingResult(NamedTuple):
    """The velocity xi in D at g0 whose motion comes nearest to g1, and phi = A log(g^-1 g1)/h there: 0 on D_d^E."""

    xi: Array
    phi: Array
    converged: Array


@jax.jit
def solve_shooting(
    system: MechanicalSystem, t: Scalar, g0: Element, g1: Element, h: Scalar, pieces: ArrayLike = 1
) -> ShootingResult:
    """Solve log(g(h)^-1 g1) = h M^-1 A^T s with A xi = b for (xi, s): aimed at g1, the pair is in D_d^E if s = 0.

    The miss is M-orthogonal to D at g0, and phi = A M^-1 A^T s has the scale of A(g~) v of a finite difference.
    """
    group, n, m = system.group, system.group.dim, system.constraints
    rows_at = system.rows(t, g0)

    def along(x: Array) -> tuple[Array, Array]:
        rows = rows_at(x[:n])
        return rows, solve(system.metric(t, g0, x[:n]), rows.T)

    def equations(x: Array) -> Array:
        end, _ = exact_flow(system, t, g0, x[:n], h, pieces)
        miss = group.log(group.compose(group.inverse(end), g1)) / h
        return jnp.concatenate([miss - along(x)[1] @ x[n:], system.residual(t, g0, x[:n])])

    mean = group.log(group.compose(group.inverse(g0), g1)) / h
    guess = jnp.concatenate([system.project(g0, mean, t), jnp.zeros(m)])
    root = find_root(equations, guess)
    rows, normal = along(root.x)
    return ShootingResult(root.x[:n], rows @ (normal @ root.x[n:]), root.converged)


@dataclass(frozen=True)
class ExactConstraint:
    """The exact discrete constraint D_d^E as the `constraint` of a Discretisation.

    It is phi(t, g0, g1, h, system) by shooting, with the motion in `pieces`.
    """

    pieces: int = 1

    def __call__(self, t: Scalar, g0: Element, g1: Element, h: Scalar, system: MechanicalSystem) -> Array:
        found: ShootingResult = solve_shooting(system, t, g0, g1, h, self.pieces)
        return found.phi


def exact_constraint(system: MechanicalSystem, state: State, h: float) -> ExactConstraint:
    """The exact discrete constraint D_d^E for a `Discretisation`: the pairs that a motion joins in time h.

    The motion takes as many pieces as it needs from `state` for a step h.
    """
    run = jax.jit(lambda pieces: exact_flow(system, state.t, state.g, state.xi, h, pieces)[1])
    return ExactConstraint(choose_pieces(run))


def distance_to_exact(pair: Discretisation, state: State, h: float, pieces: int = 2) -> float:
    """How far D_d is from D_d^E at the pair (g(0), g(h)) of the motion: the least kinetic |log(g(h)^-1 g1)| on D_d."""
    distance, off = _distance(pair, pieces, pair.system, state, h)
    if not float(off) <= 1e-11:
        raise NumericalFailure(
            f"no point of D_d was found near the motion with h = {h}: the discrete constraint is {float(off):.3g}"
        )
    return float(distance)


@partial(jax.jit, static_argnums=(0, 1))
def _distance(
    pair: Discretisation, pieces: int, system: MechanicalSystem, state: State, h: Scalar
) -> tuple[Array, Array]:
    group, t = system.group, state.t
    end, xi = exact_flow(system, t, state.g, state.xi, h, pieces)
    metric = system.metric(t + h, end, xi)
    zero = jnp.zeros(group.dim)

    def constraint(eta: Array) -> Array:
        return pair.constraint(t, state.g, group.compose(end, group.exp(eta)), h, system)

    def improve(_: Array, eta: Array) -> Array:
        """Gauss-Newton for the nearest point: the step may bring eta back along D_d as well."""
        slope = jax.jacfwd(constraint)(eta)
        correction, _ = solve_saddle(metric, slope, zero, slope @ eta - constraint(eta))
        return correction

    eta = jax.lax.fori_loop(0, 12, improve, zero)
    return jnp.sqrt(eta @ metric @ eta), jnp.max(jnp.abs(constraint(eta)), initial=0.0)


class ConstraintOrder(NamedTuple):
    """Distances of a D_d from D_d^E for several steps, and r with distance = O(h^{r+1}): the order of D_d."""

    steps: np.ndarray
    distances: np.ndarray
    order: float


def constraint_order(
    pair: Discretisation, state: State, *, steps: Sequence[float] = STEPS, pieces: int = 2
) -> ConstraintOrder:
    """Measure the order of a discrete constraint D_d: 2 at node 1/2, 1 at other nodes, infinite for D_d^E itself."""
    distances = np.array([distance_to_exact(pair, state, h, pieces) for h in steps])
    order = math.inf if distances[-1] <= 1e-13 else float(slopes(steps, distances)[-1]) - 1.0
    return ConstraintOrder(np.asarray(steps), distances, order)


CONSISTENCY_STEPS = (0.016, 0.008, 0.004)


class Consistency(NamedTuple):
    """Local orders: an error O(h^{r+1}) in one step counts as r.

    `multipliers` compares l_{k+1} with l(t_{k+1}), as Definition 4.2 of jimenez-scheurle does; `at_node` with l at the
    time of the node where it acts; `rebuilt` is the multiplier (23) of the discrete (q, v) (Remark 4.3).
    """

    position: float
    velocity: float
    multipliers: float
    at_node: float
    rebuilt: float

    @property
    def ps(self) -> tuple[float, float]:
        """(p, s) of Definition 4.2 of jimenez-scheurle."""
        return min(self.position, self.velocity), self.multipliers


def consistency_order(
    system: MechanicalSystem,
    integrator: LagrangeDAlembert,
    state: State,
    *,
    steps: Sequence[float] = CONSISTENCY_STEPS,
    pieces: int = 1,
) -> Consistency:
    """Measure the orders of one step from `state`: (p, s) of Definition 4.2 of jimenez-scheurle, and more.

    Multipliers are those of two steps, since the first may be the continuous one.
    """
    errors = []
    for h in steps:
        run = simulate(system, integrator, state, step=h, steps=2).check()
        times = (run.t[1], run.t[2], integrator.reaction_time(run.t[2], h))
        (q, v, _), (_, _, end), (_, _, inner) = (_exact_state(system, state, float(t), pieces) for t in times)
        first, last = (jax.tree.map(lambda leaf, k=k: leaf[k], run.records.state) for k in (1, 2))
        shift = system.group.log(system.group.compose(system.group.inverse(q), first.g))
        found, rebuilt = run.multipliers[2], system.multipliers(last.t, last.g, last.xi)
        gaps = (shift, first.xi - v, found - end, found - inner, rebuilt - end)
        errors.append([float(np.linalg.norm(gap)) for gap in gaps])
    return Consistency(*(float(slopes(steps, column)[-1]) - 1.0 for column in np.array(errors).T))


@partial(jax.jit, static_argnums=3)
def _exact_state(system: MechanicalSystem, state: State, t: Scalar, pieces: int) -> tuple[Any, Array, Array]:
    """(g, xi, l) of the motion from `state` at time t."""
    g, xi = exact_flow(system, state.t, state.g, state.xi, t - state.t, pieces)
    return g, xi, system.multipliers(t, g, xi)
