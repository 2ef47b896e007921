"""Finite difference maps: from two nearby configurations to a velocity at a point between them."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._linalg import solve
from ._newton import find_root
from .errors import InconsistentDiscretisation, InvalidInput
from .groups import Euclidean, Group
from .retractions import Cayley, Exponential, Retraction


@dataclass(frozen=True)
class FiniteDifference:
    """g~ = g0 tau(s xi), g1 = g~ tau((1-s) xi), velocity xi/h at g~ (retraction-maps, section III; rho^beta of jimenez-scheurle (64)).

    The adjoint of node s is node 1-s; s = 1/2 is symmetric, with Cayley too, because both factors share one xi.
    """

    retraction: Retraction = Cayley()
    node: float = 0.5

    def __post_init__(self):
        if not (isinstance(self.node, int | float) and 0.0 <= self.node <= 1.0):
            raise InvalidInput(f"node (beta) is {self.node!r}; allowed: a number in [0, 1]")

    def __call__(self, group: Group, g0, g1, h) -> tuple:
        """rho(g0, g1) = (g~, v)."""
        xi = self.increment(group, g0, g1)
        return self.inner(group, g0, xi), xi / h

    def inner(self, group: Group, g, xi):
        """g~ = g tau(s xi)."""
        return group.compose(g, self.retraction.tau(group, self.node * xi))

    def end(self, group: Group, g, xi):
        """g1 = g tau(s xi) tau((1-s) xi)."""
        return group.compose(self.inner(group, g, xi), self.retraction.tau(group, (1 - self.node) * xi))

    def increment(self, group: Group, g0, g1) -> Array:
        """xi with tau(s xi) tau((1-s) xi) = g0^-1 g1, near the identity."""
        target = group.compose(group.inverse(g0), g1)
        guess = self.retraction.inverse(group, target)

        def gap(xi):
            return group.log(group.compose(group.inverse(target), self.end(group, group.identity(), xi)))

        one_parameter = isinstance(self.retraction, Exponential) or isinstance(group, Euclidean)
        return guess if self.node in (0.0, 1.0) or one_parameter else find_root(gap, guess).x

    def reaction(self, group: Group, xi, mu0, impulse) -> tuple[Array, Array]:
        """(what pairs with dxi, mu1) when mu0 leaves g0 and `impulse` acts at g~.

        The variations of g0 and g1 by those of (g~, xi) turn -mu0 . eta0 + mu1 . eta1 into
        (nu1 - nu0) . eta~ + (s dR_{-s xi}* nu0 + (1-s) dR_{(1-s) xi}* nu1) . dxi, with nu0 = Ad*_{tau(s xi)} mu0 and
        mu1 = Ad*_{tau((1-s) xi)} nu1; the first bracket is the impulse, the second L_xi.
        """
        s, tau = self.node, self.retraction
        nu0 = group.Ad_star(tau.tau(group, s * xi), mu0)
        nu1 = nu0 + impulse
        return self._dual(group, xi, nu0, nu1), group.Ad_star(tau.tau(group, (1 - s) * xi), nu1)

    def momenta(self, group: Group, xi, legendre, impulse) -> tuple[Array, Array]:
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
        matrix = jax.jacfwd(lambda nu: self._dual(group, xi, nu, nu))(zero)
        nu0 = solve(matrix, legendre - self._dual(group, xi, zero, impulse))
        mu0 = group.Ad_star(tau.tau(group, -s * xi), nu0)
        return mu0, group.Ad_star(tau.tau(group, (1 - s) * xi), nu0 + impulse)

    def explicit(self, group: Group) -> bool:
        """Whether the discrete Legendre maps are polynomials in xi: node 1/2, where the mean of d^L tau and d^R tau is a multiple of 1."""
        return self.node == 0.5 and self.retraction.mean(group, jnp.zeros(group.dim)) is not None

    def gain(self, group: Group, xi, legendre, impulse) -> Array:
        """mu1 - mu0 of `momenta` where it is `explicit`: ad*_xi nu + Ad* impulse, since d^L tau^-1 - d^R tau^-1 = ad.

        The difference of the two would have the round-off of both, which never averages out; this has that of a small vector.
        """
        nu = legendre - self._dual(group, xi, jnp.zeros_like(xi), impulse)
        return group.ad_star(xi, nu) + group.Ad_star(self.retraction.tau(group, 0.5 * xi), impulse)

    def _midpoint_momenta(self, group: Group, half, nu, impulse) -> tuple[Array, Array]:
        """With c = 2 (d^L + d^R)^-1 the momentum at g~ is c nu, and Ad* = d^L* (d^R*)^-1 turns it into 2 (d^R*)^-1 nu - c nu."""
        tau = self.retraction
        c = tau.mean(group, half)
        mu0 = 2.0 * tau.right_inverse_star(group, half, nu) - c * nu
        mu1 = 2.0 * tau.left_inverse_star(group, half, nu) - c * nu
        return mu0, mu1 + group.Ad_star(tau.tau(group, half), impulse)

    def _dual(self, group: Group, xi, nu0, nu1) -> Array:
        s, tau = self.node, self.retraction
        before = s * tau.right_star(group, -s * xi, nu0) if s else jnp.zeros_like(xi)
        return before + ((1 - s) * tau.right_star(group, (1 - s) * xi, nu1) if s != 1 else jnp.zeros_like(xi))


def check_difference(difference, group: Group, *, h: float = 0.1, seed: int = 0) -> None:
    """Refuse a map rho(group, g0, g1, h) -> (g~, v) that is no finite difference map (Definition 5.5 of jimenez-scheurle).

    On the diagonal it must give (g, 0), its velocity must be a local diffeomorphism of g1 there, and g~ must cover Q.
    """
    g = group.random(jax.random.PRNGKey(seed))
    inner, velocity = difference(group, g, g, h)
    gap = max(np.abs(np.asarray(a - b)).max() for a, b in zip(jax.tree.leaves(inner), jax.tree.leaves(g), strict=True))
    if gap > 1e-10:
        raise InconsistentDiscretisation(
            f"the difference map moves the diagonal: rho(g, g) lies over a point {gap:.3g} from g"
        )
    if np.abs(np.asarray(velocity)).max() > 1e-10:
        raise InconsistentDiscretisation(
            f"the difference map gives the velocity {np.asarray(velocity).tolist()} to (g, g); it must be 0"
        )
    zero = jnp.zeros(group.dim)
    slope = np.asarray(h * jax.jacfwd(lambda eta: difference(group, g, group.shift(g, eta), h)[1])(zero))
    if np.linalg.svd(slope, compute_uv=False)[-1] < 1e-8:
        raise InconsistentDiscretisation(
            f"the difference map is no local diffeomorphism at the diagonal: d(h v)/dg1 = {slope.tolist()}"
        )
    if np.abs(slope - np.eye(group.dim)).max() > 1e-8:
        raise InconsistentDiscretisation(
            f"h v must agree with g0^-1 dg1 to first order; its derivative at the diagonal is {slope.tolist()}"
        )
