"""Is a constraint really nonholonomic? Iterated brackets of D, the growth vector, and what of the constraint is integrable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._echelon import echelon, null_basis
from .._jaxpr import depends
from .._linalg import solve
from ..distribution import bracket
from ..groups import Euclidean, Group, Product
from ..kernels.evaluate import evaluated
from ..system import MechanicalSystem

NEARBY = 2
"""Configurations near g where the brackets must reach no more than at g: integrability belongs to a neighbourhood."""
RADIUS = 0.1


def _none(*shape: int) -> Any:
    return field(default_factory=lambda: np.zeros(shape))


@dataclass(frozen=True)
class Nonholonomy:
    """The growth vector (rank D, rank D + [D, D], ...) of iterated brackets at a point, and what is integrable of the constraint.

    `covectors` (c, n) span the integrable combinations of rows that are not declared holonomic: each is the derivative dphi at g, up to
    a factor, of a phi that every admissible motion keeps; `rates` (c,) are their phi_t, not 0 only where the constraint is affine or
    depends on time, and `combinations` (c, m) say which rows of A they add up. `declared` rows are of `System(holonomic=)`.
    """

    growth: tuple[int, ...]
    dimension: int
    declared: int = 0
    covectors: np.ndarray = _none(0, 0)
    rates: np.ndarray = _none(0)
    combinations: np.ndarray = _none(0, 0)
    note: str = ""

    @property
    def holonomic_combinations(self) -> int:
        """How many independent combinations of the constraints are known to be integrable, declared ones included."""
        return self.declared + len(self.covectors)

    @property
    def integrable(self) -> bool:
        """Whether all of the constraint is holonomic."""
        return self.holonomic_combinations == self.dimension - self.growth[0]

    @property
    def bracket_generating(self) -> bool:
        """Whether every direction is reached (Chow-Rashevskii): no function of the configuration is conserved by D."""
        return self.growth[-1] == self.dimension

    @property
    def advice(self) -> str:
        """What to do about integrable constraints that are not declared holonomic; empty where there is nothing to do."""
        count, m = self.combinations.shape
        if not count:
            return ""
        moving = bool(np.any(self.rates))
        what = (
            "this constraint is holonomic"
            if count == m
            else f"{count} combination(s) of the {m} constraint rows are holonomic"
        )
        keeps = "its integral keeps" if count == 1 else "the integrals keep"
        leaf = (
            "a leaf that moves in time"
            if moving
            else f"a leaf of dimension {self.dimension - self.holonomic_combinations}"
        )
        vectors = [f"dphi = {_short(row)}" for row in self.covectors]
        if moving:
            vectors = [f"{text}, phi_t = {rate:.6g}" for text, rate in zip(vectors, self.rates, strict=True)]
        return (
            f"{what}; {keeps} the motion on {leaf} ({'; '.join(vectors)} here, up to factors). Write it as holonomic=phi in "
            "place of these rows, with phi = 0 at the start, to have it enforced on positions too"
        )

    def __str__(self) -> str:
        growth = f"growth vector ({', '.join(map(str, self.growth))}) of {self.dimension}"
        if self.growth[0] == self.dimension:
            return f"unconstrained: {growth}"
        if self.bracket_generating:
            return f"nonholonomic: {growth}, every configuration can be reached"
        known = f", {self.declared} declared holonomic" if self.declared else ""
        kind = "integrable" if self.integrable else "partly integrable" if len(self.covectors) else "nonholonomic"
        return "; ".join(text for text in (f"{kind}: {growth}{known}", self.note, self.advice) if text)


def nonholonomy(
    system: MechanicalSystem, g=None, *, t: float = 0.0, depth: int = 4, tolerance: float = 1e-8
) -> Nonholonomy:
    """Whether the constraint is really nonholonomic at g: ranks of D, D + [D, D], ... up to `depth` brackets.

    In the growth vector the linear part A counts. A combination of rows is integrable if it vanishes on all brackets, and these are closed
    (Frobenius), here and at configurations nearby. Where b is not 0 or the constraint depends on time this is asked in space and time.
    """
    group, clock = system.group, jnp.asarray(t, float)
    g = group.identity() if g is None else group.element(g)
    rows, drift = np.asarray(system.A(t, g)), np.asarray(system.b(t, g))
    m, k = rows.shape[0], system.holonomic_constraints
    growth, closed, span = _closure(group, lambda q: system.A(t, q), g, k, depth, tolerance)
    rheonomic = depends(lambda s: (system.A(s, g), system.b(s, g)), clock)
    moving = (
        rheonomic or bool(drift.any()) or depends(lambda eta: system.b(t, group.shift(g, eta)), jnp.zeros(group.dim))
    )
    if moving and m:
        where = Product((group, Euclidean(1)))
        _, closed, span = _closure(where, partial(_with_time, system), (g, clock[None]), k, depth, tolerance)
        rows = np.column_stack([rows, -drift])
    found = null_basis(span).T if closed and m < group.dim else np.zeros((0, rows.shape[1]))
    new = _beside(found, rows[m - k :])
    shares = np.linalg.lstsq(rows.T, new.T, rcond=None)[0].T
    rates = new[:, group.dim] if new.shape[1] > group.dim else np.zeros(len(new))
    note = (
        ""
        if closed
        else "the brackets do not close here (more of them, or those of nearby configurations, reach further)"
    )
    return Nonholonomy(growth, group.dim, k, new[:, : group.dim], rates, shares, note)


def _with_time(system: MechanicalSystem, place) -> Array:
    """The rows (A, -b) of the constraint in space and time."""
    g, (t,) = place
    return jnp.concatenate([system.A(t, g), -system.b(t, g)[:, None]], axis=1)


def _closure(
    group: Group, rows: Callable[[Any], Array], g, known: int, depth: int, tolerance: float
) -> tuple[tuple[int, ...], bool, np.ndarray]:
    """(the growth vector at g, whether the brackets close, independent vectors (r, n) that span them at g) of the field of ker A.

    `known` covectors are those of holonomic constraints: n - known is all that can be reached.
    """
    begin = np.asarray(rows(g))
    reference, pivots = null_basis(begin), echelon(begin)[1]

    def frame(q):
        """The reference moved along the pivots onto ker A(q)."""
        A = rows(q)
        shift = solve(A[:, np.array(pivots)], A @ reference) if pivots else jnp.zeros((0, reference.shape[1]))
        return jnp.asarray(reference).at[np.array(pivots, int)].add(-shift)

    fields: list[Callable] = [lambda q, a=a: frame(q)[:, a] for a in range(reference.shape[1])]
    points = _around(group, g)
    level, vectors, ranks = fields, _values(fields, points) if fields else np.zeros((1 + NEARBY, 0, group.dim)), []
    while True:
        ranks.append([_rank(here, tolerance) for here in vectors])
        settled = min(ranks[-1]) == group.dim - known or (len(ranks) > 1 and ranks[-1] == ranks[-2])
        if settled or len(ranks) == depth:
            break
        pairs = combinations(fields, 2) if len(ranks) == 1 else ((x, y) for x in fields for y in level)
        level = [bracket(group, x, y) for x, y in pairs]
        vectors = np.concatenate([vectors, _values(level, points)], axis=1) if level else vectors
    growth = [rank[0] for rank in ranks]
    while len(growth) > 1 and growth[-1] == growth[-2]:
        growth.pop()
    closed = settled and len(set(ranks[-1])) == 1
    *_, right = np.linalg.svd(vectors[0], full_matrices=False)
    return tuple(growth), closed, right[: ranks[-1][0]]


def _around(group: Group, g) -> Any:
    """g and some configurations near it, stacked."""
    keys = jax.random.split(jax.random.PRNGKey(0), NEARBY)
    steps = [jnp.zeros(group.dim), *(RADIUS * jax.random.normal(key, (group.dim,)) for key in keys)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[group.compose(g, group.exp(step)) for step in steps])


def _values(fields: list[Callable], points) -> np.ndarray:
    """The fields at the points, shape (points, fields, n); a point where they are not defined repeats the first."""
    lanes = jax.tree.leaves(points)[0].shape[0]  # as a run of no steps: XLA would compile nested brackets for minutes
    values = evaluated(lambda _, q: jnp.stack([one(q) for one in fields]), (), points, lanes=lanes)
    good = np.isfinite(values).all(axis=(1, 2), keepdims=True)
    return np.where(good, values, values[:1])


def _rank(vectors: np.ndarray, tolerance: float) -> int:
    values = np.linalg.svd(vectors, compute_uv=False)
    return int(np.count_nonzero(values > tolerance * values[:1]))


def _beside(covectors: np.ndarray, declared: np.ndarray) -> np.ndarray:
    """What the span of the covectors has beside that of the declared rows, in echelon form."""
    count = len(covectors) - len(declared)
    if count <= 0:
        return covectors[:0]
    basis = np.linalg.svd(declared)[2][len(declared) :] if len(declared) else np.eye(covectors.shape[1])
    left = np.linalg.svd(covectors @ basis.T @ basis, full_matrices=False)[2][:count]
    return echelon(left)[0] + 0.0


def _short(vector: np.ndarray) -> str:
    return "(" + ", ".join(f"{entry:.6g}" for entry in vector) + ")"
