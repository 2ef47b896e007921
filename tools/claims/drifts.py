"""Long runs: how the energy error of every method grows on the two problems that separate them, and what 10^6 steps leave of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dalembert.errors import InvalidInput
from dalembert.integrators import Integrator
from dalembert.kernels import LoweringError
from dalembert.mechanics import MechanicalSystem, State
from dalembert.models import chaotic_quartic, pendulum_cvt, quartic_state
from dalembert.numerics import Drift, classify
from dalembert.simulation import Run, simulate
from dalembert.simulation.driver import ensemble

from .cases import Case

STEP, SAVES, MEMBERS = 0.1, 2000, 32
HORIZON = {"transmission": 4e4, "quartic": 5e3}
EPSILONS = (0.0, 0.1, 0.3)
PROBLEMS = (*(f"transmission, epsilon = {epsilon:g}" for epsilon in EPSILONS), "chaotic quartic, n = 2")
MILLION, FINE = 10**6, 0.05


@cache
def _problem(name: str) -> tuple[MechanicalSystem, State, float]:
    """(system, state or states, horizon)."""
    if name == PROBLEMS[-1]:
        angles = 2 * np.pi * (np.arange(MEMBERS) + 0.5) / MEMBERS
        return chaotic_quartic(2), jax.vmap(lambda a: quartic_state(a, 2))(jnp.asarray(angles)), HORIZON["quartic"]
    system = pendulum_cvt(EPSILONS[PROBLEMS.index(name)])
    return system, system.state([1.0, 0.0, 0.0], [0.3, 0.0, 2.0]), HORIZON["transmission"]


def drift(name: str, integrator: Integrator) -> dict[str, Any]:
    """The kind and rate of the growth of E - E(0), and its largest size; "refused" where the method does not take the problem."""
    system, state, horizon = _problem(name)
    many = state.xi.ndim == 2
    first = jax.tree.map(lambda leaf: leaf[0], state) if many else state
    try:
        integrator.require(system, first, STEP)
    except InvalidInput as fault:
        return {"refused": str(fault)}
    steps = round(horizon / STEP)
    run_all: Any = ensemble if many else simulate
    try:
        run = run_all(
            system, integrator, state, step=STEP, steps=steps, save_every=steps // SAVES, monitor=True, backend="llvm"
        )
    except LoweringError as fault:
        return {"failed": f"too large for a native kernel ({fault})"}
    return _classified(run, integrator.clock)


def _classified(run: Run, clock: bool) -> dict[str, Any]:
    """The verdict on the good members before their failure, where steps are of one length on the times, else on the number of the save."""
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


def million(case: Case, integrator: Integrator) -> dict[str, Any]:
    """The largest |E - E(0)| over 10^6 steps of 0.05, relative to max(1, E(0))."""
    try:
        run = simulate(
            case.system,
            integrator,
            case.state,
            step=FINE,
            steps=MILLION,
            save_every=MILLION,
            monitor=True,
            backend="llvm",
        )
    except LoweringError as fault:
        return {"failed": f"too large for a native kernel ({fault})"}
    except InvalidInput as fault:
        return {"refused": str(fault)}
    peaks = run.final.peaks
    return {
        "energy": float(peaks.energy_error) / max(1.0, abs(float(peaks.energy))),
        "constraint": float(peaks.constraint),
        "stopped": None if run.status == "ok" else {"step": int(run.failed_at), "reason": run.reason},
    }
