"""Discretisations (L_d, D_d): build such pairs, check their axioms, and ask whether they are consistent.

A finite difference map rho leads from two nearby configurations to a velocity at a point between them; it gives the
pair L_d = h L o rho, D_d = rho^-1(D). Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..errors import InconsistentDiscretisation
from ..groups import Cayley, Exponential, Group, Retraction
from ..kernels import evaluate
from ..numerics import find_root, own_value, require_instance, require_range, solve
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Covector, Element, Float, Number, Scalar, Velocity
from .invariant import InvariantSystem, LRSystem, block, generators, zero_rows
from .system import MechanicalSystem, NonlinearSystem, gradient, jacobian, with_constraint

Difference = Callable[[Group, Any, Any, Any], tuple[Element, Array]]  # rho(group, g0, g1, h) -> (g~, v)


@dataclass(frozen=True)
class FiniteDifference:
    """g~ = g0 tau(s xi), g1 = g~ tau((1-s) xi), velocity xi/h at g~.

    See retraction-maps, section III; in R^n it is rho^beta of jimenez-scheurle (64), with beta for s. The adjoint of
    node s is node 1-s; s = 1/2 is symmetric, with Cayley too, because both factors share one xi.
    """

    retraction: Retraction = Cayley()
    node: float = 0.5

    def __post_init__(self) -> None:
        require_instance("retraction", self.retraction, Retraction, "a retraction")
        require_range("node (beta)", self.node, 0.0, 1.0)

    def __call__(self, group: Group, g0: Element, g1: Element, h: Scalar) -> tuple[Element, Float[Array, " n"]]:
        """rho(g0, g1) = (g~, v)."""
        xi = self.increment(group, g0, g1)
        return self.inner(group, g0, xi), xi / h

    def inner(self, group: Group, g: Element, xi: Velocity) -> Element:
        """g~ = g tau(s xi)."""
        return group.compose(g, self.retraction.tau(group, self.node * xi))

    def end(self, group: Group, g: Element, xi: Velocity) -> Element:
        """g1 = g tau(s xi) tau((1-s) xi)."""
        return group.compose(self.inner(group, g, xi), self.retraction.tau(group, (1 - self.node) * xi))

    def increment(self, group: Group, g0: Element, g1: Element) -> Velocity:
        """xi with tau(s xi) tau((1-s) xi) = g0^-1 g1, near the identity."""
        target = group.compose(group.inverse(g0), g1)
        guess = self.retraction.inverse(group, target)

        def gap(xi: Array) -> Array:
            return group.log(group.compose(group.inverse(target), self.end(group, group.identity(), xi)))

        one_parameter = isinstance(self.retraction, Exponential) or group.is_flat
        return guess if self.node in (0.0, 1.0) or one_parameter else find_root(gap, guess).x

    def reaction(self, group: Group, xi: Velocity, mu0: Covector, impulse: Covector) -> tuple[Covector, Covector]:
        """(what pairs with dxi, mu1) when mu0 leaves g0 and `impulse` acts at g~.

        The variations of g0 and g1 by those of (g~, xi) turn -mu0 . eta0 + mu1 . eta1 into
        (nu1 - nu0) . eta~ + (s dR_{-s xi}* nu0 + (1-s) dR_{(1-s) xi}* nu1) . dxi, with nu0 = Ad*_{tau(s xi)} mu0 and
        mu1 = Ad*_{tau((1-s) xi)} nu1; the first bracket is the impulse, the second L_xi.
        """
        s, tau = self.node, self.retraction
        nu0 = group.Ad_star(tau.tau(group, s * xi), mu0)
        nu1 = nu0 + impulse
        return self._dual(group, xi, nu0, nu1), group.Ad_star(tau.tau(group, (1 - s) * xi), nu1)

    def momenta(self, group: Group, xi: Velocity, legendre: Covector, impulse: Covector) -> tuple[Covector, Covector]:
        """(mu0, mu1) of a step whose L_xi is `legendre`: the discrete Legendre maps -D1 L_d and D2 L_d."""
        s, tau = self.node, self.retraction
        zero = jnp.zeros_like(xi)
        if s == 0:
            nu = tau.right_inverse_star(group, xi, legendre)
            return nu - impulse, group.Ad_star(tau.tau(group, xi), nu)
        if s == 1:
            nu = tau.left_inverse_star(group, xi, legendre)
            return group.Ad_star(tau.tau(group, -xi), nu), nu + impulse
        if self.explicit(group):
            return self._midpoint_momenta(group, 0.5 * xi, legendre - self._dual(group, xi, zero, impulse), impulse)
        matrix = jacobian(lambda nu: self._dual(group, xi, nu, nu), zero)
        nu0 = solve(matrix, legendre - self._dual(group, xi, zero, impulse))
        mu0 = group.Ad_star(tau.tau(group, -s * xi), nu0)
        return mu0, group.Ad_star(tau.tau(group, (1 - s) * xi), nu0 + impulse)

    def explicit(self, group: Group) -> bool:
        """Whether the discrete Legendre maps are polynomials in xi.

        They are at node 1/2 where the mean of d^L tau and d^R tau is a multiple of 1.
        """
        return self.node == 0.5 and self.retraction.mean(group, jnp.zeros(group.dim)) is not None

    def gain(self, group: Group, xi: Velocity, legendre: Covector, impulse: Covector) -> Covector:
        """mu1 - mu0 of `momenta` where it is `explicit`: ad*_xi nu + Ad* impulse, since d^L tau^-1 - d^R tau^-1 = ad.

        The difference of the two would have the round-off of both, which never averages out; this has that of a small
        vector.
        """
        nu = legendre - self._dual(group, xi, jnp.zeros_like(xi), impulse)
        return group.ad_star(xi, nu) + group.Ad_star(self.retraction.tau(group, 0.5 * xi), impulse)

    def _midpoint_momenta(self, group: Group, half: Array, nu: Array, impulse: Array) -> tuple[Array, Array]:
        """With c = 2 (d^L + d^R)^-1 the momentum at g~ is c nu; Ad* = d^L* (d^R*)^-1 makes it 2 (d^R*)^-1 nu - c nu."""
        tau = self.retraction
        c = cast(Array, tau.mean(group, half))  # not None, for this is `explicit`
        mu0 = 2.0 * tau.right_inverse_star(group, half, nu) - c * nu
        mu1 = 2.0 * tau.left_inverse_star(group, half, nu) - c * nu
        return mu0, mu1 + group.Ad_star(tau.tau(group, half), impulse)

    def _dual(self, group: Group, xi: Array, nu0: Array, nu1: Array) -> Array:
        s, tau = self.node, self.retraction
        before = s * tau.right_star(group, -s * xi, nu0) if s else jnp.zeros_like(xi)
        return before + ((1 - s) * tau.right_star(group, (1 - s) * xi, nu1) if s != 1 else jnp.zeros_like(xi))


def deform_constraint(system: MechanicalSystem, difference: FiniteDifference, h: Scalar) -> NonlinearSystem:
    """The system on D_h = {(g, xi): (g tau(-(1-s) h xi), xi) in D}, on which the nodes "deformed" lie.

    For s = 1/2 it is (88) of jimenez-scheurle.
    """

    def constraint(t: Scalar, g: Element, xi: Array, p: dict[str, Any]) -> Array:
        system: MechanicalSystem = p["system"]
        ahead = (1 - difference.node) * p["step"]
        inner = system.group.compose(g, difference.retraction.tau(system.group, -ahead * xi))
        return system.residual(t - ahead, inner, xi)

    return with_constraint(system, constraint, {"step": jnp.asarray(h, float)})


def check_difference(difference: Difference, group: Group, *, h: float = 0.1, seed: int = 0) -> None:
    """Refuse a map rho(group, g0, g1, h) -> (g~, v) that is no finite difference map.

    Definition 5.5 of jimenez-scheurle: on the diagonal it must give (g, 0), its velocity must be a local diffeomorphism
    of g1 there, and g~ must cover Q.
    """
    zero = jnp.zeros(group.dim)

    def at_diagonal(_: Any, g: Element) -> tuple[Element, Array, Array]:
        """rho(g, g) and d(h v)/dg1."""
        slope = h * jacobian(lambda eta: difference(group, g, group.shift(g, eta), h)[1], zero)
        return *difference(group, g, g, h), slope

    g = jax.jit(group.random)(jax.random.PRNGKey(seed))
    inner, velocity, slope = jax.tree.map(np.asarray, evaluate(at_diagonal, (), g))
    gap = max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(inner), jax.tree.leaves(g), strict=True))
    least, off = np.linalg.svd(slope, compute_uv=False)[-1], np.abs(slope - np.eye(group.dim)).max()
    faults = {
        f"moves the diagonal: rho(g, g) lies over a point {gap:.3g} from g": gap > 1e-10,
        f"gives the velocity {velocity.tolist()} to (g, g); it must be 0": np.abs(velocity).max() > 1e-10,
        f"is no local diffeomorphism at the diagonal: d(h v)/dg1 = {slope.tolist()}": least < 1e-8,
        f"must have an h v = g0^-1 dg1 to first order; at the diagonal d(h v)/dg1 = {slope.tolist()}": off > 1e-8,
    }
    for fault, is_there in faults.items():
        if is_there:
            raise InconsistentDiscretisation(f"the difference map {fault}")


@dataclass(frozen=True)
class Discretisation:
    """L_d = `lagrangian(t, g0, g1, h, system)` and D_d = {`constraint(t, g0, g1, h, system)` = 0} for a system.

    `work(t, g0, g1, h, u, system)`, if given, is a function of (g0, g1) whose differential is the discrete force.
    """

    system: MechanicalSystem
    lagrangian: Callable[..., Array]
    constraint: Callable[..., Array]
    work: Callable[..., Array] | None = None

    def D1(
        self, t: Scalar, g0: Element, g1: Element, h: Scalar, system: MechanicalSystem | None = None, u: Controls = None
    ) -> Covector:
        """The left-trivialised derivative of L_d (and of the work) in g0."""
        group = self.system.group
        return gradient(lambda eta: self._action(t, group.shift(g0, eta), g1, h, system, u), jnp.zeros(group.dim))

    def D2(
        self, t: Scalar, g0: Element, g1: Element, h: Scalar, system: MechanicalSystem | None = None, u: Controls = None
    ) -> Covector:
        """The left-trivialised derivative of L_d (and of the work) in g1."""
        group = self.system.group
        return gradient(lambda eta: self._action(t, g0, group.shift(g1, eta), h, system, u), jnp.zeros(group.dim))

    def _action(
        self, t: Scalar, g0: Element, g1: Element, h: Scalar, system: MechanicalSystem | None, u: Controls
    ) -> Array:
        system = self.system if system is None else system
        value = own_value("lagrangian(t, g0, g1, h, system)", self.lagrangian, t, g0, g1, h, system)
        if self.work is None:
            return value
        return value + own_value("work(t, g0, g1, h, u, system)", self.work, t, g0, g1, h, u, system)


def from_difference(system: MechanicalSystem, difference: Difference, *, node: float | None = None) -> Discretisation:
    """L_d = h L o rho, D_d = rho^-1(D) for any difference map rho(group, g0, g1, h) -> (g~, v).

    This is Proposition 5.2 of jimenez-scheurle. `node` says when between t and t + h the point g~ is passed (default:
    that of a FiniteDifference, else 1/2).
    """
    usual = difference.node if isinstance(difference, FiniteDifference) else 0.5
    s = usual if node is None else node

    def lagrangian(t: Scalar, g0: Element, g1: Element, h: Scalar, system: MechanicalSystem) -> Array:
        return h * system.L(t + s * h, *difference(system.group, g0, g1, h))

    def constraint(t: Scalar, g0: Element, g1: Element, h: Scalar, system: MechanicalSystem) -> Array:
        return system.residual(t + s * h, *difference(system.group, g0, g1, h))

    def work(t: Scalar, g0: Element, g1: Element, h: Scalar, u: Controls, system: MechanicalSystem) -> Array:
        inner, v = difference(system.group, g0, g1, h)
        fixed, v = jax.lax.stop_gradient((inner, v))
        shift = system.group.log(system.group.compose(system.group.inverse(fixed), inner))
        return h * system.F(t + s * h, fixed, v, u) @ shift

    return Discretisation(system, lagrangian, constraint, work)


def moser_veselov(W: Element, h: Scalar, system: InvariantSystem) -> Number:
    """l_d(W) = tr((W-1) J (W-1)^T)/(2h), on SO(n) -tr(W J)/h + const (Moser-Veselov 1991; fedorov-zenkov (5.8))."""
    displacement = block(system.group.matrix(W))
    gap = displacement - jnp.eye(displacement.shape[0])
    return jnp.trace(gap @ system.mass_matrix() @ gap.T) / (2 * h)


def reduced_legendre(reduced: Callable[..., Array], W: Element, h: Scalar, system: InvariantSystem) -> Covector:
    """F l_d(W), <F l_d(W), eta> = d/ds l_d(exp(s eta) W): (6) of garcia-naranjo-jimenez."""
    group, zero = system.group, jnp.zeros(system.group.dim)
    return gradient(lambda eta: reduced(group.compose(group.shift(group.identity(), eta), W), h, system), zero)


def moser_veselov_impulse(tau: Retraction, xi: Velocity, system: InvariantSystem) -> Covector:
    """h F l_d(tau(xi)) of `moser_veselov`: <h M, eta> = tr(eta (W J W^T - W J)) with W = 1 + N.

    The pairing of a skew eta with a symmetric matrix vanishes: -N J is left, and in the rows that eta leaves zero (the
    last one on SE(n)), where W is the identity, also the transpose of N J. On SO(3), where tau(xi) = 1 + a xi + b xi^2,
    h M = a I xi + b (J xi) x xi: with Cayley's map a quotient, whose numerator makes (31) of garcia-naranjo-jimenez.
    """
    group, mass = system.group, system.mass_matrix()
    c = tau.mean(group, xi)
    coefficients = tau.rodrigues(xi @ xi)
    if group.is_rotation_group(3) and coefficients is not None:
        first, second = (1.0, 0.5) if c is not None else coefficients
        return (first * (system.inertia @ xi) + second * jnp.cross(mass @ xi, xi)) / (1.0 if c is None else c[0])
    if isinstance(tau, Cayley):  # W - 1 = xi (1 - xi/2)^-1: no digits are lost at small steps.
        numerator, c = group.resolvent_fraction(xi)
        return jnp.asarray(_pair_with(group, block(group.hat(xi)) @ block(numerator) @ mass) / c)
    displacement = block(group.matrix(tau.tau(group, xi)))
    return _pair_with(group, (displacement - jnp.eye(displacement.shape[0])) @ mass)


def _pair_with(group: Group, moved: Array) -> Array:
    """The covector eta -> tr(eta (W J W^T - W J)) for moved = N J."""
    carried = jnp.where(zero_rows(group)[:, None], moved.T, 0.0) - moved
    return jnp.einsum("aij,ji->a", generators(group), carried)


def retracted_lagrangian(retraction: Retraction) -> Callable[..., Array]:
    """l_d(W) = h l(tau^-1(W)/h)."""

    def reduced(W: Element, h: Scalar, system: InvariantSystem) -> Array:
        return h * system.L(0.0, system.group.identity(), retraction.inverse(system.group, W) / h)

    return reduced


def invariant_pair(
    system: InvariantSystem | LRSystem, reduced: Callable[..., Array], retraction: Retraction | None = None
) -> Discretisation:
    """The pair with L_d(g0, g1) = l_d(g0^-1 g1) and D_d = {g0^-1 g1 in tau(d)}.

    This is Definition 2.4 of garcia-naranjo-jimenez. Where the constraint is right-invariant it is the displacement
    seen from space, g1 g0^-1, that lies in tau(d).
    """
    tau = Cayley() if retraction is None else retraction
    return _displace(system, reduced, tau.inverse)


def chord_pair(system: InvariantSystem | LRSystem, reduced: Callable[..., Array]) -> Discretisation:
    """The pair with D_d = {W: W - 1 satisfies the constraint}: the chord instead of tau^-1(W).

    For the sleigh it is the naive constraint (7.9) of fedorov-zenkov; for a ball rolling on a plane, seen from space,
    the skew part of the rotation is what rolls.
    """

    def chord(group: Group, W: Element) -> Array:
        one = group.identity()
        return group.vee(jax.tree.map(jnp.subtract, group.matrix(W), group.matrix(one)))

    return _displace(system, reduced, chord)


def _displace(
    system: InvariantSystem | LRSystem, reduced: Callable[..., Array], coordinates: Callable[[Group, Any], Array]
) -> Discretisation:
    """L_d = l_d(W) with A coordinates(W) = 0 on the displacement W = g0^-1 g1, or g1 g0^-1 seen from space."""

    def lagrangian(t: Scalar, g0: Element, g1: Element, h: Scalar, system: InvariantSystem | LRSystem) -> Array:
        return reduced(system.group.compose(system.group.inverse(g0), g1), h, system)

    def constraint(t: Scalar, g0: Element, g1: Element, h: Scalar, system: InvariantSystem | LRSystem) -> Array:
        group = system.group
        back = group.inverse(g0)
        W = group.compose(g1, back) if isinstance(system, LRSystem) else group.compose(back, g1)
        return system.annihilator @ coordinates(group, W) / h

    return Discretisation(system, lagrangian, constraint)


def check_discretisation(pair: Discretisation, *, h: float = 0.1, t: float = 0.0, seed: int = 0) -> None:
    """Refuse a pair whose D_d misses the diagonal or is not tangent to D there.

    Definitions 2.1 and 2.4 of garcia-naranjo-jimenez.
    """
    system, group, zero = pair.system, pair.system.group, jnp.zeros(pair.system.group.dim)

    def at_diagonal(_: Any, g: Element) -> tuple[Array, ...]:
        """phi_d, its derivatives in g0 and g1, and A."""
        first = jacobian(lambda eta: pair.constraint(t, group.shift(g, eta), g, h, system), zero)
        second = jacobian(lambda eta: pair.constraint(t, g, group.shift(g, eta), h, system), zero)
        return pair.constraint(t, g, g, h, system), first, second, system.A(t, g)

    found = evaluate(at_diagonal, (), jax.jit(group.random)(jax.random.PRNGKey(seed)))
    value, first, second, rows = map(np.asarray, found)
    if np.abs(value).max(initial=0.0) > 1e-10:
        raise InconsistentDiscretisation(
            f"(g, g) is not in D_d: the discrete constraint is {value.tolist()} there; it must vanish on the diagonal"
        )
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
            f"D_d is not tangent to D at the diagonal: its differential {second.tolist()} does not span the rows "
            f"{rows.tolist()}"
        )
    if rows.shape[0] and np.linalg.matrix_rank(second, tol=1e-8 * scale) < rows.shape[0]:
        raise InconsistentDiscretisation(
            f"D_d is no submanifold at the diagonal: its differential {second.tolist()} has dependent rows"
        )


def is_consistent(
    pair: Discretisation,
    difference: Difference,
    *,
    h: float = 0.1,
    samples: int = 8,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> bool:
    """Whether L_d = h L o rho and rho(D_d) lies in D: Definition 2.3 and Proposition 2.1 of garcia-naranjo-jimenez.

    Random points decide: for L_d near the diagonal, on D_d and off it, for its derivatives across D_d are in the
    equations; for the constraint on D_d. L_d counts up to a constant, which no equation of motion sees.
    """
    system, group = pair.system, pair.system.group
    built = from_difference(system, difference)

    def near_diagonal(key: Array) -> tuple[Element, Element]:
        first, second = jax.random.split(key)
        g0 = group.random(first)
        return g0, group.compose(g0, group.exp(0.5 * jax.random.normal(second, (group.dim,))))

    def sample(_: Any, points: tuple[Element, Element]) -> tuple[Array, Array, Array, Array]:
        """(L_d, h L o rho, their difference on the diagonal) near the diagonal, and the constraint of rho on D_d."""
        g0, g1 = points
        ours, theirs = (one.lagrangian(0.0, g0, g1, h, system) for one in (pair, built))
        offset = pair.lagrangian(0.0, g0, g0, h, system) - built.lagrangian(0.0, g0, g0, h, system)
        off = built.constraint(0.0, g0, _onto(pair, g0, g1, h), h, system)
        return ours, theirs, offset, jnp.max(jnp.abs(off), initial=0.0)

    points = jax.jit(jax.vmap(near_diagonal))(jax.random.split(jax.random.PRNGKey(seed), samples))
    ours, theirs, offset, off = map(np.asarray, evaluate(sample, (), points, lanes=samples))
    gap = np.abs(ours - theirs - offset[0]) / (1 + np.abs(theirs))
    return bool(np.max(gap) < tolerance and np.max(off) < tolerance)


def _onto(pair: Discretisation, g0: Element, g1: Element, h: Scalar) -> Element:
    """Move g1 onto D_d: Gauss-Newton on the discrete constraint."""
    group = pair.system.group

    def constraint(g1: Element, eta: Array) -> Array:
        return pair.constraint(0.0, g0, group.shift(g1, eta), h, pair.system)

    def improve(_: Array, g1: Element) -> Element:
        zero = jnp.zeros(group.dim)
        value, slope = constraint(g1, zero), jacobian(lambda eta: constraint(g1, eta), zero)
        return group.compose(g1, group.exp(-slope.T @ solve(slope @ slope.T, value)))

    return jax.lax.fori_loop(0, 20, improve, g1)


def regularity_matrix(pair: Discretisation, g0: Element, g1: Element, h: float, t: float = 0.0) -> NDArray[np.float64]:
    """(61) of jimenez-scheurle: [[D1 D2 L_d, A^T], [D2 phi_d, 0]]; the step is defined where it is invertible."""
    system, group, zero = pair.system, pair.system.group, jnp.zeros(pair.system.group.dim)

    def blocks(_: Any, points: tuple[Element, Element]) -> tuple[Array, Array, Array]:
        g0, g1 = points
        mixed = jacobian(lambda eta: pair.D1(t, g0, group.shift(g1, eta), h), zero)
        slope = jacobian(lambda eta: pair.constraint(t, g0, group.shift(g1, eta), h, system), zero)
        return mixed, slope, system.A(t, g0)

    mixed, slope, rows = map(np.asarray, evaluate(blocks, (), (g0, g1)))
    return np.block([[mixed, rows.T], [slope, np.zeros((len(rows), len(rows)))]])


def check_regular(pair: Discretisation, g0: Element, g1: Element, h: float, t: float = 0.0) -> None:
    """Refuse a point where the discrete flow is not defined: (61) is singular there."""
    values = np.linalg.svd(regularity_matrix(pair, g0, g1, h, t), compute_uv=False)
    if values[-1] < 1e-10 * values[0]:
        raise InconsistentDiscretisation(
            f"the discrete step is not defined here: the regularity matrix (61) is singular "
            f"(singular values {values[0]:.3g} ... {values[-1]:.3g}). "
            "The discrete Lagrangian may not depend on the velocity in some admissible direction, or a discrete "
            "constraint on g1"
        )
