"""The discrete map of an LL system is multivalued: all its branches at a point, and runs that choose among them.

Where the map is algebraic (Cayley; Moser-Veselov on d with exp d = tau(d)) all real and complex branches are found, by
homotopy; elsewhere the real ones in a box, by Newton's method from many starts, which proves nothing about others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from ..errors import InvalidInput, NumericalFailure, UnknownName
from ..integrators.euler_poincare_suslov import EulerPoincareSuslov
from ..invariant import InvariantSystem
from ..retractions import Cayley
from .algebraic import REAL, AlgebraicMap, algebraic_map, legendre_map, logarithm
from .curves import on_one_component
from .homotopy import distinct
from .legendre import LegendreMap
from .thresholds import largest_step, why_lost

__all__ = ["Branches", "branches", "coordinates", "image_tree", "images", "iterate", "largest_step", "real_in_box"]

LARGEST_GRID = 300_000


@dataclass(frozen=True, eq=False)
class Branches:
    """Solutions W of iota* F l_d(W) = a given restricted momentum, the smallest displacement first.

    `increments` (k, n) are tau^-1(W)/h (those of the trajectory), `momenta` (k, n) the full F l_d(W), complex where the solution
    is; `displacements` (k, N, N) the matrices of W. `at_infinity` counts solutions that are limits W outside tau(d).
    `complete` says whether all complex ones are there, or only the real ones of a box.
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
        return np.abs(self.increments.imag).max(-1) < REAL * size

    @property
    def real(self) -> np.ndarray:
        """The increments of the real solutions, shape (number of them, n)."""
        return self.increments[self.is_real].real


def branches(
    system: InvariantSystem, integrator: EulerPoincareSuslov, momentum, step: float, *, box: float = 4.0
) -> Branches:
    """All W in tau(d) with the restricted momentum of `momentum` (n components, or r in the basis of d).

    These are the branches of the inverse Legendre map: (31) and (42) of garcia-naranjo-jimenez for the Suslov problem, the cubic in
    tan(dtheta/2) for the sleigh. `box` bounds |h w| of the real solutions where the map is not algebraic.
    """
    at = _Fibre.of(system, integrator, step)
    return at.over(at.map.target(momentum, step), step, box)


def images(
    system: InvariantSystem, integrator: EulerPoincareSuslov, increment, step: float, *, box: float = 4.0
) -> Branches:
    """All points to which the multivalued map takes the displacement tau(h w), w = `increment` (n components) in d."""
    at = _Fibre.of(system, integrator, step)
    native = legendre_map(system, integrator, step)
    x = coordinates(system, increment, step)
    return at.over(native.transported(x), step, box)


def image_tree(
    system: InvariantSystem, integrator: EulerPoincareSuslov, increment, step: float, depth: int
) -> list[np.ndarray]:
    """The distinct complex increments after 0, 1, ..., depth applications of all branches, each of shape (count, n).

    Their number grows like a polynomial for a correspondence that is integrable in the sense of Veselov, like degree^k in general.
    """
    f = algebraic_map(system, integrator)
    if f is None or not isinstance(integrator.retraction, Cayley):
        raise InvalidInput("all complex images are found for Cayley's retraction with a Lagrangian that has a name")
    levels = [coordinates(system, increment, step)[None].astype(complex)]
    for _ in range(depth):
        found = [f.rational.fibre(f.generic_fibre, target)[0] for target in f.transported(levels[-1])]
        levels.append(distinct(np.concatenate(found)))
    return [x @ f.subspace.T / step for x in levels]


STRATEGIES = ("continuation", "smallest", "component")


def iterate(
    system: InvariantSystem,
    integrator: EulerPoincareSuslov,
    momentum,
    *,
    step: float,
    steps: int,
    branch: str = "continuation",
) -> np.ndarray:
    """Increments w_0, ..., w_steps of a run that chooses a branch at every step, shape (steps + 1, n).

    "continuation" keeps the orientation of Df, as `simulate` does; "smallest" takes the real image with the smallest norm;
    "component" the one on the same connected component of the invariant curve (fedorov-zenkov, the remark before Theorem 6.3;
    two-dimensional d). A run whose branch ends raises `NumericalFailure` with the largest step that its state allows.
    """
    if branch not in STRATEGIES:
        raise UnknownName("branch strategy", branch, STRATEGIES)
    native = legendre_map(system, integrator, step)
    x, exists = native.start(native.target(momentum, step))
    points = [x]
    choose: Callable[[np.ndarray], np.ndarray | None] = {
        "continuation": lambda x: _continued(native, x),
        "smallest": lambda x: _nearest_zero(system, integrator, x, step),
        "component": lambda x: _same_component(system, integrator, x, step),
    }[branch]
    if not exists:
        raise NumericalFailure(f"the run failed at its start: {why_lost(system, integrator, momentum, step, steps=0)}")
    for count in range(steps):
        new = choose(points[-1])
        if new is None:
            here = native.restricted(points[-1]) / step
            raise NumericalFailure(
                f"the run failed after {count} good steps: {why_lost(system, integrator, here, step, steps=1)}"
            )
        points.append(new)
    return np.array(points) @ native.subspace.T / step


def coordinates(system: InvariantSystem, increment, step: float) -> np.ndarray:
    """x with B x = h w, for an increment w in d."""
    increment = np.asarray(increment, float)
    basis = np.asarray(system.subspace)
    if increment.shape[-1:] != (basis.shape[0],):
        raise InvalidInput(
            f"increment has shape {increment.shape}; allowed: (..., {basis.shape[0]}), a vector in the algebra"
        )
    x = np.linalg.lstsq(basis, step * increment.reshape(-1, basis.shape[0]).T, rcond=None)[0].T
    off = np.abs(x @ basis.T - step * increment.reshape(-1, basis.shape[0])).max(initial=0.0)
    if off > 1e-9 * (1 + np.abs(step * increment).max()):
        raise InvalidInput(f"increment is not in d: off by {off / abs(step):.3g}")
    return x.reshape(*increment.shape[:-1], basis.shape[1])


@dataclass(frozen=True, eq=False)
class _Fibre:
    """Where the fibres of f over a restricted momentum come from: the algebraic map, or the traced one and a box."""

    map: LegendreMap

    @staticmethod
    def of(system: InvariantSystem, integrator: EulerPoincareSuslov, step: float) -> _Fibre:
        if not np.isfinite(step) or step == 0:
            raise InvalidInput(f"step is {step}; allowed: a finite number other than 0")
        found = algebraic_map(system, integrator)
        size = 0 if found is None else ((len(found.one) if found.veselov else 3) + 1.0) ** found.rank
        return _Fibre(legendre_map(system, integrator, step) if found is None or size > LARGEST_GRID else found)

    def over(self, target: np.ndarray, step: float, box: float) -> Branches:
        if isinstance(self.map, AlgebraicMap):
            x, gone = self.map.rational.fibre(self.map.generic_fibre, target)
            return self._collected(x, step, gone, complete=True)
        return self._collected(real_in_box(self.map, target, box), step, 0, complete=False)

    def _collected(self, x: np.ndarray, step: float, gone: int, complete: bool) -> Branches:
        x = x[np.argsort(np.round(np.linalg.norm(x, axis=-1), 10), kind="stable")]
        system, integrator = self.map.system, self.map.integrator
        if isinstance(self.map, AlgebraicMap):
            W = self.map.displacement(x)
            native = isinstance(integrator.retraction, Cayley)
            xi = x @ self.map.subspace.T if native else np.array([logarithm(self.map, w) for w in W])
        else:
            xi = x @ self.map.subspace.T
            tau = jax.vmap(lambda y: system.group.matrix(integrator.retraction.tau(system.group, y)))
            W = np.asarray(tau(xi))
        xi = xi.reshape(len(x), self.map.dim)
        return Branches(xi.astype(complex) / step, self.map.impulse(x).astype(complex) / step, W, gone, complete)


def real_in_box(f: LegendreMap, target: np.ndarray, box: float, *, starts: int = 400, seed: int = 0) -> np.ndarray:
    """Real solutions of f(x) = target with |x| < box: Newton's method from many starts, so some may be missed."""
    rng = np.random.default_rng(seed)
    guess = rng.normal(size=(starts, f.rank))
    guess *= box * rng.random((starts, 1)) ** (1 / f.rank) / np.linalg.norm(guess, axis=1, keepdims=True)
    x, good = f.solve(target, np.vstack([np.zeros(f.rank), guess]))
    return distinct(x[good & (np.linalg.norm(x, axis=1) < box)])


def _continued(native: LegendreMap, x: np.ndarray) -> np.ndarray | None:
    new, exists = native.image(x)
    return new if exists else None


def _nearest_zero(system, integrator, x: np.ndarray, step: float) -> np.ndarray | None:
    found = images(system, integrator, np.asarray(system.subspace) @ x / step, step).real
    return coordinates(system, found[0], step) if len(found) else None


def _same_component(system, integrator, x: np.ndarray, step: float) -> np.ndarray | None:
    candidates = images(system, integrator, np.asarray(system.subspace) @ x / step, step).real
    for candidate in coordinates(system, candidates, step):
        if on_one_component(system, integrator, x, candidate):
            return candidate
    return None
