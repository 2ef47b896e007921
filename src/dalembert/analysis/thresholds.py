"""How large a step may be: where the branch that a run follows ends in a fold.

Along the branch through 0 the Jacobian of the discrete Legendre map f keeps its orientation; the branch ends where f(x) = target and
det Df(x) = 0 hold together, and both are solved together, so that a threshold is exact to round-off.
"""

from __future__ import annotations

import numpy as np

from ..errors import InvalidInput
from ..integrators import DiscreteMoserVeselov, Integrator
from ..integrators.euler_poincare_suslov import EulerPoincareSuslov
from ..invariant import InvariantSystem
from .algebraic import legendre_map
from .homotopy import solve
from .legendre import LegendreMap
from .moser_veselov import largest_free_step

CLOSE = 1e-8


def largest_step(
    system: InvariantSystem, integrator: Integrator, momentum, *, steps: int = 0, up_to: float | None = None
) -> float:
    """The step h at which a run from this momentum first loses its branch, at its start or within `steps` steps; inf: none up to `up_to`.

    `up_to` is by default the h at which |h w| is 100 for the velocity w of the momentum. For h above the threshold the run may exist
    again. Discrete Moser-Veselov of a free body has its own answer (`analysis.moser_veselov`), which this agrees with.
    """
    if isinstance(integrator, DiscreteMoserVeselov):
        return largest_free_step(system.inertia, momentum, integrator.order, integrator.variant)
    if callable(getattr(integrator, "lagrangian", None)):
        raise InvalidInput(
            "largest_step needs a Lagrangian with a name: one of your own may depend on the step in any way"
        )
    f = legendre_map(system, integrator)  # type: ignore[arg-type]
    direction = f.target(momentum, 1.0)
    if not np.any(direction):
        return np.inf
    speed = np.abs(np.linalg.solve(f.jacobian(np.zeros(f.rank)), direction)).max()
    limit = 100.0 / speed if up_to is None else up_to
    good, chain, h = 0.0, np.zeros((steps + 1, f.rank)), min(0.2 / speed, limit)
    confirming = None  # a fold just found: the run must exist up to it
    while good < limit:
        run, lost = _run(f, h * direction, steps)
        if lost is None:
            if confirming is not None:
                return confirming
            good, chain, h = h, run, min(1.15 * h, limit)
            continue
        confirming = _fold(f, direction, good, chain, lost)
        if confirming is not None and not good < confirming <= h * (1 + 1e-12):
            confirming = None
        h = (good + h) / 2 if confirming is None else max(confirming * (1 - CLOSE), (good + confirming) / 2)
        if confirming is None and h - good < 1e-13 * h:
            return h  # no simple fold (the run tends to one, or its displacement leaves tau(d)): by bisection
    return np.inf


def why_lost(system, integrator, momentum, step: float, *, steps: int) -> str:
    """In words: the branch ended `steps` steps (0: at the start) after this momentum, and for which h it goes on."""
    reason = "branch lost: the branch of solutions that the run follows ends before this step"
    if isinstance(integrator, EulerPoincareSuslov) and not callable(integrator.lagrangian):
        threshold = largest_step(system, integrator, momentum, steps=steps, up_to=abs(step))
        if np.isfinite(threshold):
            return f"{reason}: from this momentum it exists for steps below {threshold:.10g}"
    return f"{reason}; take a smaller one"


def _run(f: LegendreMap, target: np.ndarray, steps: int) -> tuple[np.ndarray, int | None]:
    """(x_0, ..., x_steps, index of the first that does not exist or None) from h iota* M."""
    points = np.full((steps + 1, f.rank), np.nan)
    points[0], exists = f.start(target)
    for k in range(steps):
        if not exists:
            return points, k
        points[k + 1], exists = f.image(points[k])
    return points, None if exists else steps


def _fold(f: LegendreMap, direction, h: float, chain: np.ndarray, index: int) -> float | None:
    """Newton's method for f(x) = T(h), Df(x) v = 0, |v| = 1: the fold in which x_index ends; T is the target of that step."""
    x, v = chain[index], np.linalg.svd(f.jacobian(chain[index]))[2][-1]
    r = f.rank
    for _ in range(60):
        target, rate = _target(f, direction, h, chain[:index])
        if target is None:
            return None
        D, D2 = f.jacobian(x), f.curvature(x)
        residual = np.concatenate([f.restricted(x) - target, D @ v, [v @ v - 1]])
        matrix = np.zeros((2 * r + 1, 2 * r + 1))
        matrix[:r, :r], matrix[:r, -1] = D, -rate
        matrix[r : 2 * r, :r], matrix[r : 2 * r, r : 2 * r] = np.einsum("ijk,j->ik", D2, v), D
        matrix[-1, r : 2 * r] = 2 * v
        if not np.isfinite(matrix).all():
            return None
        update = solve(matrix, residual)
        if not np.isfinite(update).all():
            return None
        shrink = min(1.0, 0.5 * (0.1 + np.abs(x).max()) / (1e-300 + np.abs(update[:r]).max()))
        x, v, h = x - shrink * update[:r], v - shrink * update[r : 2 * r], h - shrink * update[-1]
        if np.abs(update).max() < 1e-13 * (1 + np.abs(x).max()):
            return float(h)
    return None


def _target(f: LegendreMap, direction, h: float, chain: np.ndarray):
    """(T(h), T'(h)): the target of the step after `chain` and its derivative along the family of runs."""
    target, rate = h * direction, direction
    for guess in chain:
        x, good = f.solve(target, guess)
        if not good:
            return None, None
        speed = solve(f.jacobian(x), rate)
        target, rate = f.transported(x), f.transported_slope(x) @ speed
    return target, rate
