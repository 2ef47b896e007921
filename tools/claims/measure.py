"""The figures behind claims: one method on one system, by native kernels that serve all its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dalembert.errors import InvalidInput, NumericalFailure, OffConstraint
from dalembert.integrators import EXACT, Integrator, scipy_motion
from dalembert.integrators.properties import conservative, unconstrained
from dalembert.kernels import LoweringError, evaluate
from dalembert.mechanics import MechanicalSystem, State, generators
from dalembert.simulation import Run, simulate

from .cases import Case

COUNTS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
SPAN = 24  # steps of the case in the time over which orders are measured
HIGH, WIDE = 8, 96  # the errors of orders from HIGH on are small: their time is WIDE steps
LONG, SAVES, TRIP = (
    400,
    20,
    20,
)  # steps of a run that should keep things, its saved states, steps of a way there and back
FLOOR = 4e-12  # relative: the reference motion itself is up to 1e-12 off, which below this would show in a slope

Figures = dict[str, Any]


def measure(case: Case, integrator: Integrator) -> Figures:
    """All figures of one method on one system: JSON, null where there is nothing to measure; "refused" or "failed" say why not."""
    try:
        integrator.require(case.system, case.state, case.step)
    except InvalidInput as fault:
        return {"refused": str(fault)}
    try:
        return {
            **_kept(case, integrator),
            "order": order(case, integrator),
            **_ways_back(case, integrator),
            "symplectic": symplectic(case, integrator),
        }
    except LoweringError as fault:
        return {"failed": f"too large for a native kernel ({fault})"}
    except (NumericalFailure, InvalidInput) as fault:
        return {"failed": str(fault)}


def _run(
    case: Case, integrator: Integrator, state: State | Run, step: float, steps: int, saves: int = 1
) -> Run:
    return simulate(
        case.system, integrator, state, step=step, steps=steps, save_every=steps // saves, monitor=True, backend="llvm"
    )


# -- what a run keeps ---------------------------------------------------------------------------------------------------------
def _kept(case: Case, integrator: Integrator) -> Figures:
    """The extremes over a run: |A xi - b|, the distance from the group, the energy and momentum errors, relative to max(1, value)."""
    long = _run(case, integrator, case.state, case.step, LONG, SAVES)
    if long.failed_at == -1:
        raise NumericalFailure(f"the start has no solution: {long.reason}")
    peaks = long.final.peaks
    return {
        "constraint": float(peaks.constraint) if case.system.constraints else None,
        "group": float(peaks.group) if not isinstance(case.state.g, jax.Array) or case.state.g.ndim > 1 else None,
        "energy": float(peaks.energy_error) / max(1.0, abs(float(peaks.energy))),
        "momentum": _momentum(case, long),
        "stopped": None if long.status == "ok" else {"step": int(long.failed_at), "reason": long.reason},
    }


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


# -- order --------------------------------------------------------------------------------------------------------------------
def order(case: Case, integrator: Integrator) -> Figures:
    """Errors of configuration and velocity against DOP853 at 1e-13, in `COUNTS` steps, after half and all of the time."""
    duration = (SPAN if (integrator.claims(case.system).order or 0) < HIGH else WIDE) * case.step
    runs = {n: _run(case, integrator, case.state, duration / n, n, 2) for n in COUNTS}
    good = {n: [_state_at(each, k) for k in (1, 2)] for n, each in runs.items() if each.status == "ok"}
    if not good:
        raise NumericalFailure(f"no run over a time of {duration:g} ends: {runs[COUNTS[-1]].reason}")
    ends = reference(case, tuple(sorted({_when(state) for states in good.values() for state in states})))

    def largest(n: int, name: str) -> float | None:
        return max(_error(getattr(s, name), getattr(ends[_when(s)], name)) for s in good[n]) if n in good else None

    return {part: [largest(n, name) for n in COUNTS] for part, name in (("configuration", "g"), ("velocity", "xi"))}


def _state_at(trajectory: Run, k: int) -> State:
    return jax.tree.map(lambda leaf: leaf[k], trajectory.records.state)


def _when(state: State) -> float:
    return round(float(state.t), 11)


def slope(errors: Sequence[float | None]) -> float | None:
    """The order that errors at `COUNTS` show: between the finest step whose error tells and twice it.

    `EXACT` if none is above what the reference can tell; None if too few are.
    """
    telling = {n: e for n, e in zip(COUNTS, errors, strict=True) if isinstance(e, float) and e > FLOOR}
    if not telling:
        return EXACT
    last = max(telling)
    first = max((n for n in telling if 2 * n <= last), default=None)
    return None if first is None else float(np.log(telling[first] / telling[last]) / np.log(last / first))


def _error(a, b) -> float:
    """The largest difference of two trees of numbers, relative to max(1, size)."""
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    size = max(1.0, *(float(np.abs(y).max(initial=0.0)) for _, y in pairs))
    return max(float(np.abs(x - y).max(initial=0.0)) for x, y in pairs) / size


@cache
def reference(case: Case, times: tuple[float, ...]) -> dict[float, State]:
    """The accurate motion at these times."""
    start = float(case.state.t)
    states = scipy_motion(case.system, case.state, np.array([start, *times]))
    if len(states) <= len(times):
        raise NumericalFailure("the reference motion cannot be continued")
    return dict(zip(times, states[1:], strict=True))


# -- the way back -------------------------------------------------------------------------------------------------------------
def _ways_back(case: Case, integrator: Integrator) -> Figures:
    """{"symmetric", "adjoint", "reversible"}: how far the ways back end from the start, and the mirrored run from the run."""
    steps, h = TRIP, case.step
    forward = _run(case, integrator, case.state, h, steps).check()
    home = _error((case.state.g, case.state.xi), _pair(_returned(case, integrator, forward)))
    adjoint = integrator.adjoint()
    other = None
    if adjoint is not None and adjoint != integrator:
        other = _error((case.state.g, case.state.xi), _pair(_run(case, adjoint, forward.last, -h, steps).check().last))
    mirrored = None
    if conservative(case.system):
        turned = _mirror(case.state)
        ahead = _run(case, integrator, turned, h, steps).check().last
        behind = _run(case, integrator, case.state, -h, steps).check().last
        mirrored = max(home, _error((ahead.g, -ahead.xi), _pair(behind)))
    return {"symmetric": home, "adjoint": other, "reversible": mirrored}


def _returned(case: Case, integrator: Integrator, forward: Run) -> State:
    """The state after as many steps of -h from the end of a run, with the whole carry turned round."""
    if type(integrator).reverse is Integrator.reverse:
        with suppress(OffConstraint):  # a method that does not keep D goes back from where it is
            return _run(case, integrator, forward.last, -case.step, TRIP).check().last
    consts = (case.system, forward.step)
    carry = evaluate(_turning(integrator), consts, forward.final.carry, backend="llvm")
    turned = replace(forward, final=forward.final._replace(carry=carry))
    return _run(case, integrator, turned, -case.step, TRIP).check().last


@cache
def _turning(integrator: Integrator) -> Callable:
    """`reverse` in the form of an observation, which a backend compiles."""
    return lambda consts, carry: integrator.reverse(consts[0], carry, consts[1])


def _pair(state: State) -> tuple[Any, Any]:
    return state.g, state.xi


def _mirror(state: State) -> State:
    return state._replace(xi=-state.xi, momentum=-state.momentum, increment=-state.increment)


# -- symplectic maps ----------------------------------------------------------------------------------------------------------
def symplectic(case: Case, integrator: Integrator) -> float | None:
    """|J^T Omega_1 J - Omega_0| of 2 steps in (g, p), Omega = dp ^ g^-1 dg - p [g^-1 dg, g^-1 dg]; only without constraints and forces."""
    system, state, n = case.system, case.state, case.system.group.dim
    if not (unconstrained(system) and conservative(system)):
        return None
    pushed = [_pushed(case, integrator, direction) for direction in np.eye(2 * n)]
    before = _form(system, np.eye(2 * n), state.momentum)
    after = _form(system, np.array([vector for vector, _ in pushed]), pushed[0][1])
    return float(np.abs(after - before).max() / max(1.0, np.abs(before).max()))


def _pushed(case: Case, integrator: Integrator, direction: np.ndarray) -> tuple[np.ndarray, Any]:
    """(the image of a tangent vector (g^-1 dg, dp) after two steps, the momentum there)."""
    system, state, n = case.system, case.state, case.system.group.dim
    eta, rate = jnp.asarray(direction[:n]), jnp.asarray(direction[n:])

    def curve(s):
        return system, _shifted(system, state, s * eta, s * rate), case.step

    after = simulate(
        system, integrator, state, step=case.step, steps=2, save_every=2, backend="llvm", tangents=curve
    ).check()
    assert after.tangents is not None
    slopes = jax.tree.map(lambda leaf: np.asarray(leaf)[-1], after.tangents.state)
    moved = _trivialised(system, np.asarray(after.last.g), slopes.g)
    return np.concatenate([moved, slopes.momentum]), after.last.momentum


def _shifted(system: MechanicalSystem, state: State, eta, rate) -> State:
    """The state with g exp(eta) and momentum p + rate."""
    g, p = system.group.shift(state.g, eta), state.momentum + rate
    xi = system.velocity(state.t, g, p)
    return State(state.t, g, xi, p, xi)


def _trivialised(system: MechanicalSystem, g, dg) -> np.ndarray:
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
