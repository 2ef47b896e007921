"""Measured orders: of a discrete Lagrangian, and of a method on a system or on a configuration with its step halved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from ..errors import InvalidInput, NumericalFailure, UnknownName
from ..integrators import Integrator, LagrangeDAlembert, RetractionAdapted, derivative, scipy_motion
from ..io.config import Job
from ..kernels import Backend
from ..mechanics import Discretisation, MechanicalSystem, State
from ..numerics import Convergence, slopes
from ..numerics.types import Scalar
from ..simulation import Run, simulate, to_json

STEPS = (0.2, 0.1, 0.05, 0.025)


def lagrangian_order(pair: Discretisation, state: State, *, steps: Sequence[float] = STEPS) -> float:
    """The measured order r of L_d: L_d(g(0), g(h)) - int_0^h L dt = O(h^{r+1}) along the motion from `state`.

    It is 1 in general and 2 at node 1/2 ((56) of jimenez-scheurle). The slope of the two smallest steps is given.
    """
    errors = []
    for h in steps:
        g, action = action_along(pair.system, state, h)
        errors.append(abs(float(pair.lagrangian(state.t, state.g, g, h, pair.system)) - action))
    return float(slopes(steps, errors)[-1]) - 1.0


def action_along(system: MechanicalSystem, state: State, h: float) -> tuple[Any, float]:
    """(g(h), int_0^h L dt) of the motion of a system from `state`, by DOP853 at 1e-13."""
    from scipy.integrate import solve_ivp

    begin, restore = ravel_pytree((state.g, state.xi, jnp.zeros(())))

    @jax.jit
    def field(t: Scalar, y: Array) -> Array:
        g, xi, _ = restore(y)
        return ravel_pytree((*derivative(system, t, g, xi, None), system.L(t, g, xi)))[0]

    t0 = float(state.t)
    rate = lambda t, y: np.asarray(field(t, y))
    end = solve_ivp(rate, (t0, t0 + h), np.asarray(begin), method="DOP853", rtol=1e-13, atol=1e-13)
    g, _, action = restore(jnp.asarray(end.y[:, -1]))
    return g, float(action)


Exact = Callable[[float], tuple[Any, Any]]  # t -> (g, xi)
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
    """The errors of `integrator` with the steps duration/n, n in `counts`: after the duration, or one step (`local`).

    They are taken against `exact(t)` -> (g, xi), against DOP853 at 1e-13 (None), or, with "richardson", against the run
    of the method itself with the next smaller step. Multipliers are compared at the time of the state, and under
    "multipliers, own time" where the method's discrete reaction acts between states (the (p, s) of Definition 4.2 of
    jimenez-scheurle, at both time stamps).
    """
    counts = _counts(counts, integrator, exact)
    saves = 1 if local else max(d for d in range(1, MAX_COMPARED_TIMES + 1) if math.gcd(*counts) % d == 0)

    def run(n: int) -> Run:
        steps, every = (1, 1) if local else (n, n // saves)
        return simulate(system, integrator, state, step=duration / n, steps=steps, save_every=every, backend=backend)

    runs = [run(n) for n in counts]
    if exact == "richardson":
        truths = [
            _ExactMotion(r.records.state, {"multipliers": r.multipliers}) if r.status == "ok" else None
            for r in runs[1:]
        ]
        return _collect(runs[:-1], truths, local, np.array([float(r.step) for r in runs[1:]]))
    motions = _exact_motions(system, integrator, state, runs, None if isinstance(exact, str) else exact)
    return _collect(runs, motions, local, np.zeros(len(runs)))


def _collect(runs: Sequence[Run], truths: Sequence[_ExactMotion | None], local: bool, finer: np.ndarray) -> Convergence:
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


def _counts(counts: Sequence[int], integrator: Integrator, exact: Exact | str | None) -> list[int]:
    if isinstance(exact, str) and exact != "richardson":
        raise UnknownName("comparison", exact, ("richardson",))
    if exact == "richardson" and integrator.variable_step:
        raise InvalidInput(
            f"the steps of {integrator.name} end at other times when they are halved: compare with the exact motion"
        )
    unique = sorted(n for n in set(counts) if isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0)
    if len(unique) != len(counts) or len(unique) < 2:
        raise InvalidInput(f"counts is {list(counts)}; allowed: at least two different positive numbers of steps")
    return unique


def reaction_lag(integrator: Integrator) -> float:
    """How many steps before the time of a state the reaction acts that a method reports with it."""
    if isinstance(integrator, LagrangeDAlembert):
        return integrator.node if integrator.nodes == "velocity" else 1.0
    return 1.0 - integrator.node if isinstance(integrator, RetractionAdapted) else 0.0


class _ExactMotion(NamedTuple):
    """The states to compare with, the start first, and their multipliers (saves, m) at each time stamp."""

    states: State
    multipliers: dict[str, Array]


def _exact_motions(
    system: MechanicalSystem, integrator: Integrator, state: State, runs: Sequence[Run], exact: Exact | None
) -> list[_ExactMotion]:
    """The exact motion at the times of every run since the start, and at its own times of reaction."""
    begin, lag = float(state.t), reaction_lag(integrator)
    stamps = {"multipliers": 0.0} | ({OWN_TIME: lag} if lag else {})

    def moments(run: Run, lag: float) -> np.ndarray:
        if integrator.variable_step:
            return np.round(np.asarray(run.t) - begin, 13)
        return np.round(np.maximum(np.asarray(run.records.steps) - lag, 0.0) * float(run.step), 13)

    wanted = np.unique(np.concatenate([moments(run, lag) for run in runs for lag in (0.0, *stamps.values())]))
    wanted = wanted if float(runs[0].step) > 0 else wanted[::-1]  # the start comes first
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *_exact_states(system, state, begin + wanted[1:], exact))
    reactions = _reactions(system, states)
    place = {float(moment): k for k, moment in enumerate(wanted)}

    def exact_motion(run: Run) -> _ExactMotion:
        rows = {name: np.array([place[float(x)] for x in moments(run, lag)]) for name, lag in stamps.items()}
        chosen = jax.tree.map(lambda leaf: leaf[rows["multipliers"]], states)
        return _ExactMotion(chosen, {name: reactions[row] for name, row in rows.items()})

    return [exact_motion(run) for run in runs]


@jax.jit
def _reactions(system: MechanicalSystem, states: State) -> Array:
    return jax.vmap(system.multipliers)(states.t, states.g, states.xi)


def _exact_states(system: MechanicalSystem, state: State, times: np.ndarray, exact: Exact | None) -> list[State]:
    """The start, and the motion at `times`."""
    if exact is None:
        found = scipy_motion(system, state, np.concatenate([[float(state.t)], times]))
        if len(found) <= len(times):
            raise NumericalFailure(f"the accurate motion cannot be continued beyond t = {float(found[-1].t):.6g}")
        return found
    points = [exact(float(t)) for t in times]
    momentum = jax.jit(system.momentum)
    return [
        state,
        *(State(jnp.asarray(t), g, xi, momentum(t, g, xi), xi) for t, (g, xi) in zip(times, points, strict=True)),
    ]


def _gaps(run: Run, truth: _ExactMotion) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(errors, exact values), both (saves, d), of every quantity at the saved states after the start."""
    ours, theirs = (jax.tree.map(lambda leaf: leaf[1:], states) for states in (run.records.state, truth.states))
    gaps = _state_gaps(run.system, ours, theirs)
    found = {name: (np.asarray(gaps[name][0]), np.asarray(gaps[name][1])) for name in STATE}
    for name, values in truth.multipliers.items():
        if values.shape[1]:
            found[name] = np.asarray(run.multipliers - values)[1:], np.asarray(values)[1:]
    return found


@jax.jit
def _state_gaps(system: MechanicalSystem, ours: State, theirs: State) -> dict[str, tuple[Array, Array]]:
    group = system.group

    def one(a: State, b: State) -> dict[str, tuple[Array, Array]]:
        energies = [system.energy(s.t, s.g, s.xi)[None] for s in (a, b)]
        return {
            "configuration": (group.log(group.compose(group.inverse(b.g), a.g)), jnp.ones(1)),
            "velocity": (a.xi - b.xi, b.xi),
            "energy": (energies[0] - energies[1], energies[1]),
        }

    gaps: dict[str, tuple[Array, Array]] = jax.vmap(one)(ours, theirs)
    return gaps


STEP_LEVELS = 5


def study_convergence(
    job: Job, *, levels: int = STEP_LEVELS, local: bool = False, richardson: bool = False
) -> Convergence:
    """Errors at the end of the run of a configuration (or after one step), with its step halved `levels` - 1 times."""
    if levels < 2 or (richardson and levels < 3):
        raise InvalidInput(f"levels is {levels}; allowed: at least 2 steps to compare, 3 with richardson")
    first, duration = job.run["steps"], job.run["steps"] * job.run["step"]
    return convergence(
        job.system,
        job.integrator,
        job.state,
        duration=duration,
        counts=[first * 2**k for k in range(levels)],
        local=local,
        exact="richardson" if richardson else None,
        backend=job.run.get("backend", "auto"),
    )


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
