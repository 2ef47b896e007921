"""The branches of the multivalued discrete map of an LL system: all of them, runs that choose, and where a branch ends.

Where the map is algebraic (Cayley; Moser-Veselov on d with exp d = tau(d)) all real and complex branches are found, by
homotopy; elsewhere the real ones in a box, by Newton's method from many starts, which proves nothing about others.

A run follows the branch through 0, along which the Jacobian of the discrete Legendre map f keeps its orientation. The
branch ends in a fold, where f(x) = target and det Df(x) = 0 hold together; both are solved together, so that the
largest step is exact to round-off.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import ArrayLike

from ..errors import InvalidInput, NumericalFailure, UnknownName
from ..groups import Cayley
from ..integrators import DiscreteMoserVeselov, EulerPoincareSuslov, Integrator
from ..integrators import free_body as free
from ..mechanics import InvariantSystem, MechanicalSystem, symmetric_matrix
from ..numerics import vector
from . import legendre
from .polynomials import deduplicate, solve_batch

FOLD_MARGIN = 1e-8


def largest_step(
    system: InvariantSystem, integrator: Integrator, momentum: ArrayLike, *, steps: int = 0, up_to: float | None = None
) -> float:
    """The largest step: the h at which a run from this momentum first loses its branch, at once or in `steps` steps.

    It is inf if no step up to `up_to` does, by default the h at which |h w| is 100 for the velocity w of the momentum.
    For h above the threshold the run may exist again. Discrete Moser-Veselov of a free body has its own answer
    (`largest_free_step`), with which this agrees.
    """
    if isinstance(integrator, DiscreteMoserVeselov):
        return largest_free_step(system.inertia, momentum, integrator.order, integrator.variant)
    if callable(getattr(integrator, "lagrangian", None)):
        raise InvalidInput("largest_step needs a Lagrangian with a name: your own may depend on the step in any way")
    f = legendre.legendre_map(system, integrator)  # type: ignore[arg-type]
    direction = f.target(momentum, 1.0)
    if not np.any(direction):
        return np.inf
    speed = np.abs(np.linalg.solve(f.jacobian(np.zeros(f.rank)), direction)).max()
    limit = 100.0 / speed if up_to is None else up_to
    good, chain, h = 0.0, np.zeros((steps + 1, f.rank)), min(0.2 / speed, limit)
    confirming = None  # a fold just found: the run must exist up to it
    while good < limit:
        run = f.orbit(f.start(h * direction)[0], steps)
        missing = np.flatnonzero(np.isnan(run).any(axis=1))
        if not len(missing):
            if confirming is not None:
                return confirming
            good, chain, h = h, run, min(1.15 * h, limit)
            continue
        confirming = _fold(f, direction, good, chain, missing[0])
        if confirming is not None and not good < confirming <= h * (1 + 1e-12):
            confirming = None
        h = (good + h) / 2 if confirming is None else max(confirming * (1 - FOLD_MARGIN), (good + confirming) / 2)
        if confirming is None and h - good < 1e-13 * h:
            return h  # no simple fold (the run tends to one, or its displacement leaves tau(d)): by bisection
    return np.inf


def explain_branch_end(
    system: MechanicalSystem, integrator: Integrator, momentum: ArrayLike, step: float, *, steps: int
) -> str:
    """Say that the branch ended `steps` steps (0: at the start) after this momentum, and for which h it continues."""
    reason = "branch lost: the branch of solutions that the run follows ends before this step"
    named = isinstance(integrator, EulerPoincareSuslov) and not callable(integrator.lagrangian)
    if named and isinstance(system, InvariantSystem):
        threshold = largest_step(system, integrator, momentum, steps=steps, up_to=abs(step))
        if np.isfinite(threshold):
            return f"{reason}: from this momentum it exists for steps below {threshold:.10g}"
    return f"{reason}; take a smaller one"


def _fold(f: legendre.LegendreMap, direction: np.ndarray, h: float, chain: np.ndarray, index: int) -> float | None:
    """The h of the fold where x_index ends: Newton's method for f(x) = T(h), its target, Df(x) v = 0, |v| = 1."""
    x, v = chain[index], np.linalg.svd(f.jacobian(chain[index]))[2][-1]
    r = f.rank
    for _ in range(60):
        target, rate = h * direction, direction  # T(h), and T'(h) along the family of runs
        for guess in chain[:index]:
            before, good = f.solve(target, guess)
            if not good:
                return None
            target, rate = f.transport(before), f.transport_slope(before) @ solve_batch(f.jacobian(before), rate)
        D, D2 = f.jacobian(x), f.curvature(x)
        residual = np.concatenate([f.restriction(x) - target, D @ v, [v @ v - 1]])
        matrix = np.zeros((2 * r + 1, 2 * r + 1))
        matrix[:r, :r], matrix[:r, -1] = D, -rate
        matrix[r : 2 * r, :r], matrix[r : 2 * r, r : 2 * r] = np.einsum("ijk,j->ik", D2, v), D
        matrix[-1, r : 2 * r] = 2 * v
        update = solve_batch(matrix, residual)
        if not np.isfinite(update).all():
            return None
        shrink = min(1.0, 0.5 * (0.1 + np.abs(x).max()) / (1e-300 + np.abs(update[:r]).max()))
        x, v, h = x - shrink * update[:r], v - shrink * update[r : 2 * r], h - shrink * update[-1]
        if np.abs(update).max() < 1e-13 * (1 + np.abs(x).max()):
            return float(h)
    return None


def free_body_level(inertia: ArrayLike, momentum: ArrayLike) -> free.Body:
    """The constants of a free body on the level of this momentum."""
    return free.body_on_level(jnp.asarray(symmetric_matrix(inertia, 3, "inertia")), vector(momentum, 3, "momentum"))


def failing_steps(
    inertia: ArrayLike, momentum: ArrayLike, order: int | str = 2, variant: str = "scaled", up_to: float = 100.0
) -> list[tuple[float, float]]:
    """The intervals of steps 0 < h <= up_to at which discrete Moser-Veselov of this order has no solution."""
    if order == "exact":
        return []
    if variant == "scaled":
        body = free_body_level(inertia, momentum)
        limit = float(free.largest_scale(body))
        even = [float(c) for c in free.series_reciprocal(free.scale_series(body, int(order) // 2).s)]
        p = np.zeros(max(2, 2 * len(even) - 1))
        p[: 2 * len(even) : 2] = even
        h = np.eye(len(p))[1]  # edges are real roots of limit p(h) = h and of limit p(h) = -h
        roots = np.concatenate([polynomial.polyroots(limit * p - s * h) for s in (1.0, -1.0)])
        edges = np.sort(roots[np.abs(roots.imag) < 1e-9].real)

        def exists(h: np.ndarray) -> np.ndarray:
            return np.asarray(np.abs(h) < limit * np.abs(polynomial.polyval(h, p)))

    else:
        tensor, m = jnp.asarray(symmetric_matrix(inertia, 3, "inertia")), jnp.asarray(momentum, float)
        known = jax.jit(jax.vmap(lambda h: free.map_constants(tensor, m, h, int(order), variant)[1]))

        def exists(h: np.ndarray) -> np.ndarray:
            return np.asarray(known(jnp.asarray(h)))

        grid = np.linspace(0, up_to, 401)[1:]  # edges are where it changes on a grid, refined by bisection
        on_grid = exists(grid)
        change = np.flatnonzero(on_grid[1:] != on_grid[:-1])
        low, high = grid[change], grid[change + 1]
        for _ in range(48 if len(change) else 0):
            same = exists((low + high) / 2) == on_grid[change]
            low, high = np.where(same, (low + high) / 2, low), np.where(same, high, (low + high) / 2)
        edges = (low + high) / 2

    marks = np.concatenate([[0.0], edges[(edges > 0) & (edges < up_to)], [up_to]])
    found: list[tuple[float, float]] = []
    for low, high, good in zip(marks[:-1], marks[1:], exists((marks[:-1] + marks[1:]) / 2), strict=True):
        if not good:
            joined = found and found[-1][1] == low
            found = [*found[:-1], (found[-1][0], float(high))] if joined else [*found, (float(low), float(high))]
    return found


def largest_free_step(
    inertia: ArrayLike, momentum: ArrayLike, order: int | str = 2, variant: str = "scaled", up_to: float = 100.0
) -> float:
    """The first step at which discrete Moser-Veselov fails, inf if none below `up_to`; see `failing_steps` for more."""
    intervals = failing_steps(inertia, momentum, order, variant, up_to)
    return intervals[0][0] if intervals else np.inf


def on_one_component(
    system: InvariantSystem, integrator: EulerPoincareSuslov, x: np.ndarray, other: np.ndarray
) -> bool:
    """Whether two displacements (coordinates in the basis of d) are on one component of an energy level."""
    chart = legendre.Chart.of(system, integrator, extent=2 + 2 * float(np.abs([x, other]).max()))
    y, z = chart.from_coordinates(np.array([x, other], float))
    level = legendre.impulse_energy(chart.map, y)
    lines = chart.zeros(lambda p: legendre.impulse_energy(chart.map, p) - level)
    label = legendre.connected_components(chart, lines)

    def distance(line: np.ndarray, point: np.ndarray) -> float:
        places = [point, chart.antipode(point)] if chart.projective else [point]
        return min(float(np.linalg.norm(line - place, axis=-1).min()) for place in places)

    if not lines:
        return False
    first, second = (min(range(len(lines)), key=lambda i: distance(lines[i], point)) for point in (y, z))
    return bool(label[first] == label[second])


MAX_GRID_POINTS = 300_000


@dataclass(frozen=True, eq=False)
class Branches:
    """Solutions W of iota* F l_d(W) = a given restricted momentum, the smallest displacement first.

    `increments` (k, n) are tau^-1(W)/h (those of the trajectory), `momenta` (k, n) the full F l_d(W), complex where the
    solution is; `displacements` (k, N, N) the matrices of W. `at_infinity` counts solutions that are limits W outside
    tau(d). `complete` says whether all complex ones are there, or only the real ones of a box.
    """

    increments: np.ndarray
    momenta: np.ndarray
    displacements: np.ndarray
    at_infinity: int
    complete: bool

    def __len__(self) -> int:
        return len(self.increments)

    @property
    def is_real(self) -> np.ndarray:
        """Which solutions are real, shape (k,)."""
        size = 1e-300 + np.abs(self.increments).max(-1)
        return np.asarray(np.abs(self.increments.imag).max(-1) < legendre.IMAGINARY_TOLERANCE * size)

    @property
    def real(self) -> np.ndarray:
        """The increments of the real solutions, shape (number of them, n)."""
        return np.asarray(self.increments[self.is_real].real)


def find_branches(
    system: InvariantSystem, integrator: EulerPoincareSuslov, momentum: ArrayLike, step: float, *, box: float = 4.0
) -> Branches:
    """All discrete solutions of a momentum: displacements W in tau(d) with it (n components, or r in the basis of d).

    These are the branches of the inverse Legendre map: (31) and (42) of garcia-naranjo-jimenez for the Suslov problem,
    the cubic in tan(dtheta/2) for the sleigh. `box` bounds |h w| of the real solutions where the map is not algebraic.
    """
    f = legendre.legendre_map(system, integrator, step)
    return _fibre(f, f.target(momentum, step), step, box)


def images(
    system: InvariantSystem, integrator: EulerPoincareSuslov, increment: ArrayLike, step: float, *, box: float = 4.0
) -> Branches:
    """All points to which the multivalued map takes the displacement tau(h w), w = `increment` (n components) in d."""
    f = legendre.legendre_map(system, integrator, step)
    return _fibre(f, f.transport(displacement_coordinates(system, increment, step)), step, box)


def image_tree(
    system: InvariantSystem, integrator: EulerPoincareSuslov, increment: ArrayLike, step: float, depth: int
) -> list[np.ndarray]:
    """The distinct complex increments after 0, 1, ..., depth applications of all branches, each of shape (count, n).

    Their number grows like a polynomial for a correspondence that is integrable in the sense of Veselov, in general
    like degree^k.
    """
    f = legendre.algebraic_map(system, integrator)
    if f is None or not isinstance(integrator.retraction, Cayley):
        raise InvalidInput("all complex images are found for Cayley's retraction with a Lagrangian that has a name")
    levels = [displacement_coordinates(system, increment, step)[None].astype(complex)]
    for _ in range(depth):
        found = [f.rational.fibre(f.generic_fibre, target)[0] for target in f.transport(levels[-1])]
        levels.append(deduplicate(np.concatenate(found)))
    return [x @ f.subspace.T / step for x in levels]


STRATEGIES = ("continuation", "smallest", "component")


def iterate(
    system: InvariantSystem,
    integrator: EulerPoincareSuslov,
    momentum: ArrayLike,
    *,
    step: float,
    steps: int,
    branch: str = "continuation",
) -> np.ndarray:
    """Increments w_0, ..., w_steps of a run that chooses a branch at every step, shape (steps + 1, n).

    "continuation" keeps the orientation of Df, as `simulate` does; "smallest" takes the real image with the smallest
    norm; "component" the one on the same connected component of the invariant curve (fedorov-zenkov, the remark before
    Theorem 6.3; two-dimensional d). A run whose branch ends raises `NumericalFailure` with the largest step that its
    state allows.
    """
    if branch not in STRATEGIES:
        raise UnknownName("branch strategy", branch, STRATEGIES)
    native = legendre.legendre_map(system, integrator, step)
    x, exists = native.start(native.target(momentum, step))
    points = [x]

    def choose(x: np.ndarray) -> np.ndarray | None:
        if branch == "continuation":
            new, exists = native.image(x)
            return new if exists else None
        found = images(system, integrator, np.asarray(system.subspace) @ x / step, step).real
        for candidate in displacement_coordinates(system, found, step):
            if branch == "smallest" or on_one_component(system, integrator, x, candidate):
                return np.asarray(candidate)
        return None

    if not exists:
        reason = explain_branch_end(system, integrator, momentum, step, steps=0)
        raise NumericalFailure(f"the run failed at its start: {reason}")
    for count in range(steps):
        new = choose(points[-1])
        if new is None:
            here = native.restriction(points[-1]) / step
            reason = explain_branch_end(system, integrator, here, step, steps=1)
            raise NumericalFailure(f"the run failed after {count} good steps: {reason}")
        points.append(new)
    return np.asarray(np.array(points) @ native.subspace.T / step)


def displacement_coordinates(system: InvariantSystem, increment: ArrayLike, step: float) -> np.ndarray:
    """x with B x = h w, for an increment w in d."""
    increment = np.asarray(increment, float)
    basis = np.asarray(system.subspace)
    if increment.shape[-1:] != (basis.shape[0],):
        raise InvalidInput(f"increment has shape {increment.shape}; allowed: (..., {basis.shape[0]}), in the algebra")
    x = np.linalg.lstsq(basis, step * increment.reshape(-1, basis.shape[0]).T, rcond=None)[0].T
    off = np.abs(x @ basis.T - step * increment.reshape(-1, basis.shape[0])).max(initial=0.0)
    if off > 1e-9 * (1 + np.abs(step * increment).max()):
        raise InvalidInput(f"increment is not in d: off by {off / abs(step):.3g}")
    return np.asarray(x.reshape(*increment.shape[:-1], basis.shape[1]))


def _fibre(f: legendre.LegendreMap, target: np.ndarray, step: float, box: float) -> Branches:
    """The solutions of f(x) = target: all of them where f is algebraic and not too large, else the real ones of a box.

    Those are found by Newton's method from many starts, so some may be missed.
    """
    algebraic, gone = legendre.algebraic_map(f.system, f.integrator), 0
    complete = algebraic is not None and (algebraic.degree + 1.0) ** algebraic.rank <= MAX_GRID_POINTS
    if algebraic is not None and complete:
        f, (x, gone) = algebraic, algebraic.rational.fibre(algebraic.generic_fibre, target)
    else:
        x, good = f.solve(target, np.vstack([np.zeros(f.rank), sample_ball(400, f.rank, box)]))
        x = deduplicate(x[good & (np.linalg.norm(x, axis=1) < box)])
    x = x[np.argsort(np.round(np.linalg.norm(x, axis=-1), 10), kind="stable")]
    xi, group, retraction = x @ f.subspace.T, f.system.group, f.integrator.retraction
    if isinstance(f, legendre.AlgebraicMap):
        W = f.displacement(x)
        xi = xi if isinstance(retraction, Cayley) else np.array([legendre.logarithm(f, w) for w in W])
    else:
        W = np.asarray(jax.vmap(lambda y: group.matrix(retraction.tau(group, y)))(xi))
    increments = xi.reshape(len(x), f.dim).astype(complex) / step
    return Branches(increments, f.impulse(x).astype(complex) / step, W, gone, complete)


def sample_ball(count: int, dimension: int, radius: float) -> np.ndarray:
    """Random points of a ball, always the same, shape (count, dimension)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, dimension))
    return np.asarray(x * radius * rng.random((count, 1)) ** (1 / dimension) / np.linalg.norm(x, axis=1, keepdims=True))
