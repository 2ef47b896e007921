"""The figures behind claims, by native kernels: one method on one system, and the growth of its energy error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dalembert.errors import InvalidInput, NumericalFailure
from dalembert.integrators import EXACT, Integrator, scipy_motion
from dalembert.integrators.properties import is_conservative, is_unconstrained
from dalembert.kernels import LoweringError, evaluate
from dalembert.mechanics import MechanicalSystem, State, generators
from dalembert.models import chaotic_quartic, pendulum_cvt, quartic_state
from dalembert.numerics import Drift, classify
from dalembert.simulation import Run, RunSummary, ensemble, simulate

from .cases import Case

STEP_COUNTS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
SPAN_STEPS = 24  # steps of the case in the time over which orders are measured
HIGH_ORDER, HIGH_ORDER_SPAN_STEPS = (
    8,
    96,
)  # the errors of orders from HIGH_ORDER on are small: their time is HIGH_ORDER_SPAN_STEPS steps
RUN_STEPS, RUN_SAVES = 400, 20  # of a run that should conserve quantities
RETURN_STEPS = 20  # there, and as many back
ERROR_FLOOR = 4e-12  # relative: the reference motion itself is up to 1e-12 off, which below this would show in a slope
FLOOR_RATIO = 8.0  # where the errors of finer steps show that it is less

Figures = dict[str, Any]


def measure(case: Case, integrator: Integrator, claimed_only: bool = False) -> Figures:
    """All figures of one method on one system as JSON: null where there is nothing to measure.

    "refused" or "failed" say why there are none. `claimed_only` leaves out what costs much and is not claimed: the
    symplecticity of other methods, and the way back by the adjoint.
    """
    try:
        integrator.require(case.system, case.state, case.step)
    except InvalidInput as fault:
        return {"refused": str(fault)}
    try:
        return {
            **_conservation(case, integrator),
            "order": measure_order(case, integrator),
            **_reversal(case, integrator, claimed_only),
            "symplectic": measure_symplecticity(case, integrator)
            if not claimed_only or integrator.claims(case.system).symplectic
            else None,
        }
    except LoweringError as fault:
        return {"failed": f"too large for a native kernel ({fault})"}
    except (NumericalFailure, InvalidInput) as fault:
        return {"failed": str(fault)}


def _run(case: Case, integrator: Integrator, state: State | Run, step: float, steps: int, saves: int = 1) -> Run:
    return simulate(
        case.system, integrator, state, step=step, steps=steps, save_every=steps // saves, monitor=True, backend="llvm"
    )


def _conservation(case: Case, integrator: Integrator) -> Figures:
    """The largest |A xi - b|, distance from the group, energy error and momentum error of a run, per max(1, value)."""
    long = _run(case, integrator, case.state, case.step, RUN_STEPS, RUN_SAVES)
    if long.failed_at == -1:
        raise NumericalFailure(f"the start has no solution: {long.reason}")
    summary = long.summary()
    return {
        "constraint": summary.constraint,
        "group": summary.group
        if not isinstance(case.state.g, jax.Array | np.ndarray) or case.state.g.ndim > 1
        else None,
        "energy": _relative_energy_error(summary),
        "momentum": _momentum(case, long),
        "stopped": _failure(summary),
    }


def _relative_energy_error(summary: RunSummary) -> float:
    error, initial = summary.energy_error, summary.energy_initial
    return float("nan") if error is None or initial is None else error / max(1.0, abs(initial))


def _failure(summary: RunSummary) -> dict[str, Any] | None:
    return None if summary.status == "ok" else {"step": summary.failed_at, "reason": summary.reason}


def _momentum(case: Case, long: Run) -> float | None:
    if case.symmetry is None:
        return None
    values = np.asarray(_maps(case)(long.records.state))
    return float(np.abs(values - values[0]).max() / max(1.0, np.abs(values[0]).max()))


@cache
def _maps(case: Case):
    system, symmetry = case.system, case.symmetry
    assert symmetry is not None
    return jax.jit(jax.vmap(lambda s: system.momentum(s.t, s.g, s.xi) @ symmetry(system, s.g)))


def measure_order(case: Case, integrator: Integrator) -> Figures:
    """Errors of configuration and velocity against DOP853 at 1e-13 with `STEP_COUNTS` steps, at half and full time."""
    duration = (
        SPAN_STEPS if (integrator.claims(case.system).order or 0) < HIGH_ORDER else HIGH_ORDER_SPAN_STEPS
    ) * case.step
    runs = {n: _run(case, integrator, case.state, duration / n, n, 2) for n in STEP_COUNTS}
    good = {n: [_state_at(each, k) for k in (1, 2)] for n, each in runs.items() if each.status == "ok"}
    if not good:
        raise NumericalFailure(f"no run over a time of {duration:g} ends: {runs[STEP_COUNTS[-1]].reason}")
    ends = reference_motion(case, tuple(sorted({_when(state) for states in good.values() for state in states})))

    def largest(n: int, name: str) -> float | None:
        return max(_error(getattr(s, name), getattr(ends[_when(s)], name)) for s in good[n]) if n in good else None

    return {
        part: [largest(n, name) for n in STEP_COUNTS] for part, name in (("configuration", "g"), ("velocity", "xi"))
    }


def _state_at(trajectory: Run, k: int) -> State:
    return jax.tree.map(lambda leaf: leaf[k], trajectory.records.state)


def _when(state: State) -> float:
    return round(float(state.t), 11)


def slope(errors: Sequence[float | None]) -> float | None:
    """The order that errors at `STEP_COUNTS` show: between the finest step whose error tells and twice it.

    An error tells if it is above `ERROR_FLOOR`, or where finer steps have far smaller ones, which bound what the
    reference is off there: above `FLOOR_RATIO` times the third smallest. `EXACT` if none is above `ERROR_FLOOR`; None
    if too few tell.
    """
    known = {n: e for n, e in zip(STEP_COUNTS, errors, strict=True) if isinstance(e, float)}
    if not any(e > ERROR_FLOOR for e in known.values()):
        return EXACT
    floor = min(ERROR_FLOOR, FLOOR_RATIO * sorted(known.values())[min(2, len(known) - 1)])
    telling = {n: e for n, e in known.items() if e > floor}
    last = max(telling)
    first = max((n for n in telling if 2 * n <= last), default=None)
    return None if first is None else float(np.log(telling[first] / telling[last]) / np.log(last / first))


def _error(a, b) -> float:
    """The largest difference of two trees of numbers, relative to max(1, size)."""
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    size = max(1.0, *(float(np.abs(y).max(initial=0.0)) for _, y in pairs))
    return max(float(np.abs(x - y).max(initial=0.0)) for x, y in pairs) / size


@cache
def reference_motion(case: Case, times: tuple[float, ...]) -> dict[float, State]:
    """The accurate motion at these times."""
    start = float(case.state.t)
    states = scipy_motion(case.system, case.state, np.array([start, *times]))
    if len(states) <= len(times):
        raise NumericalFailure("the reference motion cannot be continued")
    return dict(zip(times, states[1:], strict=True))


def _reversal(case: Case, integrator: Integrator, claimed_only: bool = False) -> Figures:
    """The distances between the start and the end of the way back, and between a run and its mirrored run."""
    steps, h = RETURN_STEPS, case.step
    forward = _run(case, integrator, case.state, h, steps).check()
    home = _error((case.state.g, case.state.xi), _pair(_run_back(case, integrator, forward)))
    adjoint = integrator.adjoint()
    other = None
    if adjoint is not None and adjoint != integrator and not claimed_only:
        other = _error((case.state.g, case.state.xi), _pair(_run(case, adjoint, forward.last, -h, steps).check().last))
    mirrored = None
    if is_conservative(case.system):
        turned = _mirror(case.state)
        ahead = _run(case, integrator, turned, h, steps).check().last
        behind = _run(case, integrator, case.state, -h, steps).check().last
        mirrored = max(home, _error((ahead.g, -ahead.xi), _pair(behind)))
    return {"symmetric": home, "adjoint": other, "reversible": mirrored}


def _run_back(case: Case, integrator: Integrator, forward: Run) -> State:
    """The state after as many steps of -h from the end of a run, with the whole carry turned round."""
    if type(integrator).reverse is Integrator.reverse:
        with suppress(InvalidInput):  # a method that does not keep D, or the group, goes back from where it is
            return _run(case, integrator, forward.last, -case.step, RETURN_STEPS).check().last
    consts = (case.system, forward.step)
    carry = evaluate(_reverse_carry(integrator), consts, forward.final.carry, backend="llvm")
    turned = replace(forward, final=forward.final._replace(carry=carry))
    return _run(case, integrator, turned, -case.step, RETURN_STEPS).check().last


@cache
def _reverse_carry(integrator: Integrator) -> Callable:
    """`reverse` in the form of an observation, which a backend compiles."""
    return lambda consts, carry: integrator.reverse(consts[0], carry, consts[1])


def _pair(state: State) -> tuple[Any, Any]:
    return state.g, state.xi


def _mirror(state: State) -> State:
    return state._replace(xi=-state.xi, momentum=-state.momentum, increment=-state.increment)


def measure_symplecticity(case: Case, integrator: Integrator) -> float | None:
    """|J^T Omega_1 J - Omega_0| of 2 steps in (g, p), with Omega = dp ^ g^-1 dg - p [g^-1 dg, g^-1 dg].

    J is of central differences of order eight, by the kernel that the other figures have compiled already. None for
    systems with constraints or forces.
    """
    system, state = case.system, case.state
    if not (is_unconstrained(system) and is_conservative(system)):
        return None

    def end(start: State) -> State:
        return _run(case, integrator, start, case.step, 2).check().last

    at, ends = end(state), [[end(start) for start in row] for row in _neighbours(case)]
    slopes = [_slope([(np.asarray(each.g), np.asarray(each.momentum)) for each in row]) for row in ends]
    pushed = np.array([np.concatenate([_trivialise(system, np.asarray(at.g), dg), dp]) for dg, dp in slopes])
    before, after = _form(system, np.eye(len(pushed)), state.momentum), _form(system, pushed, at.momentum)
    return float(np.abs(after - before).max() / max(1.0, np.abs(before).max()))


SPACING = 0.02
DIFFERENCES = {1: 4 / 5, 2: -1 / 5, 3: 4 / 105, 4: -1 / 280}  # f'(0) = sum c_k (f(k d) - f(-k d)) / d + O(d^8)
PLACES = [sign * k for k in DIFFERENCES for sign in (1, -1)]


def _slope(values: Sequence[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """The derivative at 0 of each part of what has these values at `PLACES` times `SPACING`."""
    weights = [np.sign(place) * DIFFERENCES[abs(place)] / SPACING for place in PLACES]
    return [np.tensordot(weights, np.array(part), 1) for part in zip(*values, strict=True)]


@cache
def _neighbours(case: Case) -> list[list[State]]:
    """The states (g exp(s eta), p + s rate) for each unit vector (eta, rate) and each s of `PLACES` times `SPACING`."""
    system, state, n = case.system, case.state, case.system.group.dim

    def shift(vector) -> State:
        g, p = system.group.compose(state.g, system.group.exp(vector[:n])), state.momentum + vector[n:]
        xi = system.velocity(state.t, g, p)
        return state._replace(g=g, xi=xi, momentum=p, increment=xi)

    directions = SPACING * np.multiply.outer(np.eye(2 * n), PLACES).swapaxes(1, 2)
    made = jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.vmap(shift)))(directions))
    return [[jax.tree.map(lambda leaf: leaf[i, k], made) for k in range(len(PLACES))] for i in range(2 * n)]


def _trivialise(system: MechanicalSystem, g, dg) -> np.ndarray:
    """eta with dg = g eta."""
    if np.ndim(g) == 1:
        return np.asarray(dg)
    basis = generators(system.group)
    return np.linalg.lstsq(basis.reshape(len(basis), -1).T, np.linalg.solve(g, dg).reshape(-1), rcond=None)[0]


def _form(system: MechanicalSystem, vectors: np.ndarray, p) -> np.ndarray:
    """The matrix of Omega on tangent vectors (g^-1 dg, dp) at momentum p."""
    n = system.group.dim
    eta, rate = vectors[:, :n], vectors[:, n:]
    bracket = jax.vmap(jax.vmap(lambda a, b: p @ system.group.ad(a, b), (None, 0)), (0, None))(eta, eta)
    canonical = rate @ eta.T
    return canonical - canonical.T - np.asarray(bracket)


DRIFT_STEP, DRIFT_SAVES, DRIFT_MEMBERS = 0.1, 2000, 32
DRIFT_HORIZONS = {"transmission": 4e4, "quartic": 5e3}
DRIFT_EPSILONS = (0.0, 0.1, 0.3)
DRIFT_PROBLEMS = (*(f"transmission, epsilon = {epsilon:g}" for epsilon in DRIFT_EPSILONS), "chaotic quartic, n = 2")
LONG_RUN_STEPS, LONG_RUN_STEP = 10**6, 0.05


@cache
def drift_problem(name: str) -> tuple[MechanicalSystem, State, float]:
    """(system, state or states, horizon)."""
    if name == DRIFT_PROBLEMS[-1]:
        angles = 2 * np.pi * (np.arange(DRIFT_MEMBERS) + 0.5) / DRIFT_MEMBERS
        return (
            chaotic_quartic(2),
            jax.vmap(lambda a: quartic_state(a, 2))(jnp.asarray(angles)),
            DRIFT_HORIZONS["quartic"],
        )
    system = pendulum_cvt(DRIFT_EPSILONS[DRIFT_PROBLEMS.index(name)])
    return system, system.state([1.0, 0.0, 0.0], [0.3, 0.0, 2.0]), DRIFT_HORIZONS["transmission"]


def measure_drift(name: str, integrator: Integrator) -> dict[str, Any]:
    """The kind and rate of the growth of E - E(0), and its largest size, or why the method refuses the problem."""
    system, state, horizon = drift_problem(name)
    many = state.xi.ndim == 2
    first = jax.tree.map(lambda leaf: leaf[0], state) if many else state
    try:
        integrator.require(system, first, DRIFT_STEP)
    except InvalidInput as fault:
        return {"refused": str(fault)}
    steps = round(horizon / DRIFT_STEP)
    run_all: Any = ensemble if many else simulate
    try:
        run = run_all(
            system,
            integrator,
            state,
            step=DRIFT_STEP,
            steps=steps,
            save_every=steps // DRIFT_SAVES,
            monitor=True,
            backend="llvm",
        )
    except LoweringError as fault:
        return {"failed": f"too large for a native kernel ({fault})"}
    return _classify(run, integrator.variable_step)


def _classify(run: Run, clock: bool) -> dict[str, Any]:
    """Classify the energy errors of the good members over time, or over the number of the save if steps vary."""
    energy = np.atleast_2d(np.asarray(run.energy()))
    times = np.atleast_2d(np.asarray(run.t))[0]
    failed = int(np.count_nonzero(np.asarray(run.final.status)))
    good = np.isfinite(energy).all(axis=1) & (np.atleast_1d(np.asarray(run.final.status)) == 0)
    size = float(np.max(np.asarray(run.final.peaks.energy_error)))
    if not good.any() and energy.shape[0] > 1:
        return {"kind": None, "size": size, "failed_members": failed}
    errors = (energy - energy[:, :1])[good] if good.any() else energy - energy[:, :1]
    times = np.linspace(times[0], times[-1], len(times)) if clock else times
    try:
        found: Drift | None = classify(times, errors)
    except InvalidInput:
        found = None  # too few states before the failure
    return {
        "kind": found.kind if found else None,
        "rate": found.rate if found else None,
        "amplitude": bool(found and found.amplitude),
        "size": size,
        "failed_members": failed,
        "until": float(times[-1]),
    }


def measure_long_run(case: Case, integrator: Integrator) -> dict[str, Any]:
    """The largest |E - E(0)| over 10^6 steps of 0.05, relative to max(1, E(0))."""
    try:
        run = simulate(
            case.system,
            integrator,
            case.state,
            step=LONG_RUN_STEP,
            steps=LONG_RUN_STEPS,
            save_every=LONG_RUN_STEPS,
            monitor=True,
            backend="llvm",
        )
    except LoweringError as fault:
        return {"failed": f"too large for a native kernel ({fault})"}
    except InvalidInput as fault:
        return {"refused": str(fault)}
    summary = run.summary()
    return {
        "energy": _relative_energy_error(summary),
        "constraint": summary.constraint or 0.0,
        "stopped": _failure(summary),
    }
