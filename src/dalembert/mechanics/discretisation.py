"""A discretisation is a pair (L_d, D_d); this module builds pairs, checks their axioms and asks whether they are consistent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._linalg import solve
from .differences import FiniteDifference
from .errors import InconsistentDiscretisation
from .groups import SO3, Group
from .invariant import InvariantSystem, block, generators, zero_rows
from .retractions import Cayley, Retraction
from .right_invariant import LRSystem
from .system import MechanicalSystem


@dataclass(frozen=True)
class Discretisation:
    """L_d = `lagrangian(t, g0, g1, h, system)` and D_d = {`constraint(t, g0, g1, h, system)` = 0} for a system.

    `work(t, g0, g1, h, u, system)`, if given, is a function of (g0, g1) whose differential is the discrete force.
    """

    system: MechanicalSystem
    lagrangian: Callable
    constraint: Callable
    work: Callable | None = None

    def D1(self, t, g0, g1, h, system=None, u=None) -> Array:
        """The left-trivialised derivative of L_d (and of the work) in g0."""
        group = self.system.group
        return jax.grad(lambda eta: self._action(t, group.shift(g0, eta), g1, h, system, u))(jnp.zeros(group.dim))

    def D2(self, t, g0, g1, h, system=None, u=None) -> Array:
        """The left-trivialised derivative of L_d (and of the work) in g1."""
        group = self.system.group
        return jax.grad(lambda eta: self._action(t, g0, group.shift(g1, eta), h, system, u))(jnp.zeros(group.dim))

    def _action(self, t, g0, g1, h, system, u) -> Array:
        system = self.system if system is None else system
        value = self.lagrangian(t, g0, g1, h, system)
        return value if self.work is None else value + self.work(t, g0, g1, h, u, system)


def from_difference(system: MechanicalSystem, difference: Callable, *, node: float | None = None) -> Discretisation:
    """L_d = h L o rho, D_d = rho^-1(D) for any difference map rho(group, g0, g1, h) -> (g~, v) (Proposition 5.2 of jimenez-scheurle).

    `node` says when between t and t + h the point g~ is passed (default: that of a FiniteDifference).
    """
    s = (
        difference.node
        if node is None and isinstance(difference, FiniteDifference)
        else (0.5 if node is None else node)
    )

    def lagrangian(t, g0, g1, h, system):
        return h * system.L(t + s * h, *difference(system.group, g0, g1, h))

    def constraint(t, g0, g1, h, system):
        return system.residual(t + s * h, *difference(system.group, g0, g1, h))

    def work(t, g0, g1, h, u, system):
        inner, v = difference(system.group, g0, g1, h)
        fixed, v = jax.lax.stop_gradient((inner, v))
        shift = system.group.log(system.group.compose(system.group.inverse(fixed), inner))
        return h * system.F(t + s * h, fixed, v, u) @ shift

    return Discretisation(system, lagrangian, constraint, work)


# -- reduced Lagrangians of invariant systems -------------------------------------------------------------------------------
def moser_veselov(W, h, system: InvariantSystem) -> Array:
    """l_d(W) = tr((W-1) J (W-1)^T)/(2h), on SO(n) -tr(W J)/h up to a constant (Moser-Veselov 1991; fedorov-zenkov (5.8))."""
    displacement = block(system.group.matrix(W))
    gap = displacement - jnp.eye(displacement.shape[0])
    return jnp.trace(gap @ system.mass_matrix() @ gap.T) / (2 * h)


def reduced_legendre(reduced: Callable, W, h, system: InvariantSystem) -> Array:
    """F l_d(W), <F l_d(W), eta> = d/ds l_d(exp(s eta) W): (6) of garcia-naranjo-jimenez."""
    group = system.group
    return jax.grad(lambda eta: reduced(group.compose(group.shift(group.identity(), eta), W), h, system))(
        jnp.zeros(group.dim)
    )


def moser_veselov_impulse(tau: Retraction, xi, system: InvariantSystem) -> Array:
    """h F l_d(tau(xi)) of `moser_veselov`: <h M, eta> = tr(eta (W J W^T - W J)) with W = 1 + N.

    Of symmetric matrices a skew eta sees nothing: -N J is left, and in the rows that eta leaves zero (the last one on SE(n)), where W
    is the identity, also the transpose of N J. On SO(3), where tau(xi) = 1 + a xi + b xi^2, h M = a I xi + b (J xi) x xi.
    """
    numerator, c = moser_veselov_fraction(tau, xi, system)
    return numerator / c


def moser_veselov_fraction(tau: Retraction, xi, system: InvariantSystem) -> tuple[Array, Array | float]:
    """`moser_veselov_impulse` as numerator and common denominator; both are polynomials where Cayley's map is a fraction of such.

    With Cayley on SO(3) these make the equations (31) of garcia-naranjo-jimenez.
    """
    group, mass = system.group, system.mass_matrix()
    c = tau.mean(group, xi)
    coefficients = tau.rodrigues(xi @ xi)
    if isinstance(group, SO3) and coefficients is not None:
        first, second = (1.0, 0.5) if c is not None else coefficients
        return first * (system.inertia @ xi) + second * jnp.cross(mass @ xi, xi), 1.0 if c is None else c[0]
    if isinstance(tau, Cayley):  # W - 1 = xi (1 - xi/2)^-1: no digits are lost at small steps.
        numerator, c = group.resolvent_fraction(xi)
        return _paired(group, block(group.hat(xi)) @ block(numerator) @ mass), c
    displacement = block(group.matrix(tau.tau(group, xi)))
    return _paired(group, (displacement - jnp.eye(displacement.shape[0])) @ mass), 1.0


def _paired(group: Group, moved) -> Array:
    """The covector eta -> tr(eta (W J W^T - W J)) for moved = N J."""
    carried = jnp.where(zero_rows(group)[:, None], moved.T, 0.0) - moved
    return jnp.einsum("aij,ji->a", generators(group), carried)


def retracted(retraction: Retraction) -> Callable:
    """l_d(W) = h l(tau^-1(W)/h)."""

    def reduced(W, h, system):
        return h * system.L(0.0, system.group.identity(), retraction.inverse(system.group, W) / h)

    return reduced


def invariant_pair(
    system: InvariantSystem | LRSystem, reduced: Callable, retraction: Retraction | None = None
) -> Discretisation:
    """The pair with L_d(g0, g1) = l_d(g0^-1 g1) and D_d = {g0^-1 g1 in tau(d)} (Definition 2.4 of garcia-naranjo-jimenez).

    Where the constraint is right-invariant it is the displacement seen from space, g1 g0^-1, that lies in tau(d).
    """
    tau = Cayley() if retraction is None else retraction
    return _displaced(system, reduced, tau.inverse)


def chord_pair(system: InvariantSystem | LRSystem, reduced: Callable) -> Discretisation:
    """The pair with D_d = {W: W - 1 satisfies the constraint}: the chord instead of tau^-1(W).

    For the sleigh it is the naive constraint (7.9) of fedorov-zenkov; for a ball rolling on a plane, seen from space, the skew part of
    the rotation is what rolls.
    """

    def chord(group, W):
        one = group.identity()
        return group.vee(jax.tree.map(jnp.subtract, group.matrix(W), group.matrix(one)))

    return _displaced(system, reduced, chord)


def _displaced(system: InvariantSystem | LRSystem, reduced: Callable, coordinates: Callable) -> Discretisation:
    """L_d = l_d(W) with the constraint A coordinates(W) = 0 on the displacement W = g0^-1 g1, or g1 g0^-1 seen from space."""

    def lagrangian(t, g0, g1, h, system):
        return reduced(system.group.compose(system.group.inverse(g0), g1), h, system)

    def constraint(t, g0, g1, h, system):
        group = system.group
        back = group.inverse(g0)
        W = group.compose(g1, back) if isinstance(system, LRSystem) else group.compose(back, g1)
        return system.annihilator @ coordinates(group, W) / h

    return Discretisation(system, lagrangian, constraint)


# -- axioms ---------------------------------------------------------------------------------------------------------------------
def check_discretisation(pair: Discretisation, *, h: float = 0.1, t: float = 0.0, seed: int = 0) -> None:
    """Refuse a pair whose D_d misses the diagonal or is not tangent to D there (Definitions 2.1 and 2.4 of garcia-naranjo-jimenez)."""
    system, group = pair.system, pair.system.group
    g = group.random(jax.random.PRNGKey(seed))
    value = np.asarray(pair.constraint(t, g, g, h, system))
    if np.abs(value).max(initial=0.0) > 1e-10:
        raise InconsistentDiscretisation(
            f"(g, g) is not in D_d: the discrete constraint is {value.tolist()} there; it must vanish on the diagonal"
        )
    zero = jnp.zeros(group.dim)
    first = np.asarray(jax.jacfwd(lambda eta: pair.constraint(t, group.shift(g, eta), g, h, system))(zero))
    second = np.asarray(jax.jacfwd(lambda eta: pair.constraint(t, g, group.shift(g, eta), h, system))(zero))
    rows = np.asarray(system.A(t, g))
    if first.shape != rows.shape:
        raise InconsistentDiscretisation(
            f"the discrete constraint has {first.shape[0]} components; the system has {rows.shape[0]} constraints"
        )
    scale = max(1.0, np.abs(second).max(initial=0.0))
    if np.abs(first + second).max(initial=0.0) > 1e-8 * scale:
        raise InconsistentDiscretisation(
            "T D_d at the diagonal must be {(v, w): v - w in D}: the derivatives in g0 and g1 are not opposite"
        )
    if rows.shape[0] and np.linalg.matrix_rank(np.vstack([second, rows]), tol=1e-8 * scale) > rows.shape[0]:
        raise InconsistentDiscretisation(
            f"D_d is not tangent to D at the diagonal: its differential {second.tolist()} does not span the rows {rows.tolist()}"
        )
    if rows.shape[0] and np.linalg.matrix_rank(second, tol=1e-8 * scale) < rows.shape[0]:
        raise InconsistentDiscretisation(
            f"D_d is no submanifold at the diagonal: its differential {second.tolist()} has dependent rows"
        )


def consistent(
    pair: Discretisation,
    difference: Callable,
    *,
    h: float = 0.1,
    samples: int = 8,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> bool:
    """Whether L_d = h L o rho and rho(D_d) lies in D (Definition 2.3 and Proposition 2.1 of garcia-naranjo-jimenez).

    Random points near the diagonal decide. L_d counts up to a constant, which no equation of motion sees.
    """
    system, group = pair.system, pair.system.group
    built = from_difference(system, difference)

    def sample(key) -> tuple[Array, Array, Array, Array]:
        """(L_d, h L o rho, their difference on the diagonal, the constraint of rho) at a point of D_d."""
        first, second = jax.random.split(key)
        g0 = group.random(first)
        g1 = group.compose(g0, group.exp(0.5 * jax.random.normal(second, (group.dim,))))
        g1 = _onto(pair, g0, g1, h)
        ours, theirs = (one.lagrangian(0.0, g0, g1, h, system) for one in (pair, built))
        offset = pair.lagrangian(0.0, g0, g0, h, system) - built.lagrangian(0.0, g0, g0, h, system)
        return ours, theirs, offset, jnp.max(jnp.abs(built.constraint(0.0, g0, g1, h, system)), initial=0.0)

    ours, theirs, offset, off = jax.jit(jax.vmap(sample))(jax.random.split(jax.random.PRNGKey(seed), samples))
    gap = jnp.abs(ours - theirs - offset[0]) / (1 + jnp.abs(theirs))
    return bool(jnp.max(gap) < tolerance) and bool(jnp.max(off) < tolerance)


def _onto(pair: Discretisation, g0, g1, h):
    """Move g1 onto D_d: Gauss-Newton on the discrete constraint."""
    group = pair.system.group

    def constraint(g1, eta):
        return pair.constraint(0.0, g0, group.shift(g1, eta), h, pair.system)

    def improve(_, g1):
        zero = jnp.zeros(group.dim)
        value, slope = constraint(g1, zero), jax.jacfwd(lambda eta: constraint(g1, eta))(zero)
        return group.compose(g1, group.exp(-slope.T @ solve(slope @ slope.T, value)))

    return jax.lax.fori_loop(0, 20, improve, g1)


def regularity_matrix(pair: Discretisation, g0, g1, h: float, t: float = 0.0) -> np.ndarray:
    """(61) of jimenez-scheurle: [[D1 D2 L_d, A^T], [D2 phi_d, 0]]; the step is defined where it is invertible."""
    system, group = pair.system, pair.system.group
    zero = jnp.zeros(group.dim)
    mixed = jax.jacfwd(lambda eta: pair.D1(t, g0, group.shift(g1, eta), h))(zero)
    slope = jax.jacfwd(lambda eta: pair.constraint(t, g0, group.shift(g1, eta), h, system))(zero)
    rows = system.A(t, g0)
    m = rows.shape[0]
    return np.asarray(jnp.block([[mixed, rows.T], [slope, jnp.zeros((m, m))]]))


def check_regular(pair: Discretisation, g0, g1, h: float, t: float = 0.0) -> None:
    """Refuse a point where the discrete flow is not defined: (61) is singular there."""
    matrix = regularity_matrix(pair, g0, g1, h, t)
    values = np.linalg.svd(matrix, compute_uv=False)
    if values[-1] < 1e-10 * values[0]:
        raise InconsistentDiscretisation(
            f"the discrete step is not defined here: the regularity matrix (61) is singular "
            f"(singular values {values[0]:.3g} ... {values[-1]:.3g}). "
            "The discrete Lagrangian may not depend on the velocity in some admissible direction, or a discrete constraint on g1"
        )
