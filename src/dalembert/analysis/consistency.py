"""Consistency of discretisations of nonholonomic problems, measured against the exact motion (jimenez-scheurle).

The exact motion is pure JAX, so that it can be vmapped, differentiated and used inside Newton's method. The exact
discrete constraint D_d^E (Remark 5.4) are the pairs of configurations that the motion joins in time h, the yardstick
for any D_d: shooting decides whether a pair is in it, and by how much another D_d misses it is measured.
`consistency_order` measures the order (p, s) of Definition 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from ..errors import NumericalFailure
from ..integrators import LagrangeDAlembert, derivative
from ..mechanics import Discretisation, MechanicalSystem, State
from ..numerics import find_root, slopes, solve, solve_saddle
from ..numerics.types import Element, Scalar
from ..simulation import simulate

STAGES = 8
MAX_ITERATIONS = 60


def _gauss(stages: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes c, weights b and matrix a of Gauss collocation on [0, 1], through Legendre polynomials."""
    legendre = np.polynomial.legendre
    x, weights = legendre.leggauss(stages)
    values = legendre.legvander(x, stages - 1)
    integrals = np.stack([legendre.legval(x, legendre.legint(unit, lbnd=-1)) for unit in np.eye(stages)], axis=1)
    return (x + 1) / 2, weights / 2, integrals @ np.linalg.inv(values) / 2


NODES, WEIGHTS, MATRIX = _gauss(STAGES)


def gauss_flow(
    field: Callable[[Any, Array], Array], t: Scalar, y: Array, duration: Scalar, pieces: ArrayLike = 1
) -> Array:
    """y(t + duration) of y' = field(t, y), by Gauss collocation of order 16 in `pieces` equal steps."""
    h = duration / pieces
    many = jax.vmap(field)

    def stages(t: Scalar, y: Array) -> Any:
        def improve(state: Any) -> Any:
            slopes, _, change, count = state
            new = many(t + NODES * h, y + h * MATRIX @ slopes)
            return new, change, jnp.max(jnp.abs(new - slopes)), count + 1

        def shrinking(state: Any) -> Any:
            _, before, change, count = state
            return (count < MAX_ITERATIONS) & ((count < 2) | (change < 0.5 * before)) & (change > 0)

        zero = jnp.zeros((), y.dtype)
        begin = (jnp.tile(field(t, y), (STAGES, 1)), zero, zero + jnp.inf, 0)
        return jax.lax.while_loop(shrinking, improve, begin)[0]

    def piece(k: Array, y: Array) -> Array:
        return jnp.asarray(y + h * WEIGHTS @ stages(t + k * h, y))

    end: Array = jax.lax.fori_loop(0, pieces, piece, y)
    return end


def choose_pieces(run: Callable[[int], Array], tolerance: float = 1e-14, limit: int = 128) -> int:
    """The number of pieces from which on halving them leaves the end of a motion, `run(pieces)`, within `tolerance`.

    The tolerance is relative to the size of the end.
    """
    last = np.asarray(run(1))
    for pieces in 2 ** np.arange(int(np.log2(limit)) + 1):
        new = np.asarray(run(2 * int(pieces)))
        if np.abs(new - last).max() <= tolerance * (1 + np.abs(new).max()):
            return int(pieces)
        last = new
    raise NumericalFailure(
        f"the motion is not resolved by {2 * limit} pieces of order {2 * STAGES}: take a shorter time"
    )


STEPS = (0.2, 0.1, 0.05, 0.025)


def exact_motion(
    system: MechanicalSystem, t: Scalar, g: Element, xi: Array, h: Scalar, pieces: ArrayLike
) -> tuple[Any, Array]:
    """(g, xi) after a time h of the motion, to round-off."""
    begin, restore = ravel_pytree((g, xi))

    def field(s: Array, y: Array) -> Array:
        g, xi = restore(y)
        return ravel_pytree(derivative(system, s, g, xi, None))[0]

    g, xi = restore(gauss_flow(field, t, begin, h, pieces))
    return g, xi


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
        end, _ = exact_motion(system, t, g0, x[:n], h, pieces)
        miss = group.log(group.compose(group.inverse(end), g1)) / h
        return jnp.concatenate([miss - along(x)[1] @ x[n:], system.residual(t, g0, x[:n])])

    mean = group.log(group.compose(group.inverse(g0), g1)) / h
    guess = jnp.concatenate([system.project(g0, mean, t), jnp.zeros(m)])
    root = find_root(equations, guess)
    rows, normal = along(root.x)
    return ShootingResult(root.x[:n], rows @ (normal @ root.x[n:]), root.converged)


@dataclass(frozen=True)
class ExactConstraint:
    """D_d^E as the `constraint` of a Discretisation: phi(t, g0, g1, h, system) by shooting, the motion in `pieces`."""

    pieces: int = 1

    def __call__(self, t: Scalar, g0: Element, g1: Element, h: Scalar, system: MechanicalSystem) -> Array:
        found: ShootingResult = solve_shooting(system, t, g0, g1, h, self.pieces)
        return found.phi


def exact_constraint(system: MechanicalSystem, state: State, h: float) -> ExactConstraint:
    """D_d^E with as many pieces as the motion from `state` needs for a step h."""
    run = jax.jit(lambda pieces: exact_motion(system, state.t, state.g, state.xi, h, pieces)[1])
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
    end, xi = exact_motion(system, t, state.g, state.xi, h, pieces)
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
    """The measured order of D_d: 2 for the node 1/2, 1 for other nodes, infinite (round-off) for D_d^E itself."""
    distances = np.array([distance_to_exact(pair, state, h, pieces) for h in steps])
    if distances[-1] <= 1e-13:
        return ConstraintOrder(np.asarray(steps), distances, float("inf"))
    return ConstraintOrder(np.asarray(steps), distances, float(slopes(steps, distances)[-1]) - 1.0)


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
    """The measured order of one step from `state` (of two for the multipliers: the first may be the continuous one)."""
    errors = []
    for h in steps:
        run = simulate(system, integrator, state, step=h, steps=2).check()
        node = np.asarray(integrator.reaction_time(run.t[2], h))
        (q, v, _), (_, _, end), (_, _, inner) = (
            _exact(system, state, float(t), pieces) for t in (run.t[1], run.t[2], node)
        )
        rebuilt = _rebuilt(system, jax.tree.map(lambda leaf: leaf[2], run.records.state))
        found = run.multipliers[2]
        group, first = system.group, jax.tree.map(lambda leaf: leaf[1], run.g)
        shift = group.log(group.compose(group.inverse(q), first))
        gaps = (shift, run.xi[1] - v, found - end, found - inner, rebuilt - end)
        errors.append([float(np.linalg.norm(gap)) for gap in gaps])
    return Consistency(*(float(slopes(steps, column)[-1]) - 1.0 for column in np.array(errors).T))


@jax.jit
def _rebuilt(system: MechanicalSystem, state: State) -> Array:
    return system.multipliers(state.t, state.g, state.xi)


@partial(jax.jit, static_argnums=3)
def _exact(system: MechanicalSystem, state: State, t: Scalar, pieces: int) -> tuple[Any, Array, Array]:
    """(g, xi, l) of the motion from `state` at time t."""
    g, xi = exact_motion(system, state.t, state.g, state.xi, t - state.t, pieces)
    return g, xi, system.multipliers(t, g, xi)
