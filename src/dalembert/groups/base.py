"""What a Lie group must provide: one abstract class, whose defaults are definitions."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from ..numerics import solve

Element = Any
"""A point of a group: an array, or on a product a tuple of arrays."""

UNROLLED = 6


@dataclass(frozen=True)
class Group(abc.ABC):
    """A Lie group with coordinates on its algebra; every method acts on one element (use `jax.vmap` for many).

    Velocities are left-trivialised, xi = g^-1 g', and algebra elements and covectors are vectors of length `dim`.
    """

    _product: ClassVar[type[Any]]  # `Product`, which names itself here: it is built on this class

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Dimension of the algebra."""

    @abc.abstractmethod
    def __str__(self) -> str: ...

    def __mul__(self, other: Group) -> Group:
        """The direct product, of all factors of both."""
        if not isinstance(other, Group):
            return NotImplemented
        return self._product((*self.factors, *other.factors))

    @property
    def factors(self) -> tuple[Group, ...]:
        """The groups this one is the product of: itself, unless it is a `Product`."""
        return (self,)

    @abc.abstractmethod
    def identity(self) -> Element:
        """The unit e."""

    @abc.abstractmethod
    def compose(self, g: Element, h: Element) -> Element:
        """g h."""

    @abc.abstractmethod
    def inverse(self, g: Element) -> Element:
        """g^-1."""

    @abc.abstractmethod
    def matrix(self, g: Element) -> Any:
        """The defining matrix of g (on a product: a tuple of them)."""

    @abc.abstractmethod
    def hat(self, xi: Array) -> Any:
        """The matrix of the algebra element with coordinates xi."""

    @abc.abstractmethod
    def vee(self, matrix: Any) -> Array:
        """Coordinates of an algebra element: vee(hat(xi)) = xi."""

    @abc.abstractmethod
    def exp(self, xi: Array) -> Element:
        """The end of the one-parameter subgroup g' = g xi from the unit, at time 1."""

    @abc.abstractmethod
    def principal_log(self, g: Element) -> Array:
        """The value of `log`, never differentiated."""

    @abc.abstractmethod
    def cayley(self, xi: Array) -> Element:
        """(1 - xi/2)^-1 (1 + xi/2) in the defining representation."""

    @abc.abstractmethod
    def principal_cayley_inverse(self, g: Element) -> Array:
        """The value of `cayley_inverse`, never differentiated."""

    @abc.abstractmethod
    def Ad(self, g: Element, xi: Array) -> Array:
        """g xi g^-1."""

    @abc.abstractmethod
    def ad(self, xi: Array, eta: Array) -> Array:
        """[xi, eta]."""

    @abc.abstractmethod
    def velocity(self, g: Element, dg: Element) -> Array:
        """xi = g^-1 dg of a tangent vector dg at g."""

    @abc.abstractmethod
    def tangent(self, g: Element, xi: Array) -> Element:
        """g xi, the tangent vector at g with velocity xi."""

    def shift(self, g: Element, eta: Array) -> Element:
        """g + g eta: agrees with g exp(eta) to first order, so it serves to differentiate at eta = 0 at no cost."""
        return jax.tree.map(jnp.add, g, self.tangent(g, eta))

    @abc.abstractmethod
    def element(self, value: Any) -> Element:
        """What a user gave, checked (`InvalidInput` says what is allowed) and projected onto the group."""

    @abc.abstractmethod
    def distance(self, g: Element) -> Array:
        """Distance from the group, |R^T R - 1| (Frobenius) of the rotation parts."""

    @abc.abstractmethod
    def normalise(self, g: Element) -> Element:
        """One Newton-Schulz correction R <- R (3 - R^T R)/2 of the rotation parts."""

    def log(self, g: Element) -> Array:
        """The principal logarithm (all angles at most pi); its derivative is d^L exp^-1."""
        return _log(self, g)

    def cayley_inverse(self, g: Element) -> Array:
        """2 (g - 1)(g + 1)^-1; infinite at angle pi, which the Cayley map does not reach."""
        return _cayley_inverse(self, g)

    def Ad_star(self, g: Element, mu: Array) -> Array:
        """<Ad_star(g, mu), xi> = <mu, Ad(g, xi)>."""
        return transpose(partial(self.Ad, g), mu)

    def ad_star(self, xi: Array, mu: Array) -> Array:
        """<ad_star(xi, mu), eta> = <mu, ad(xi, eta)>."""
        return transpose(partial(self.ad, xi), mu)

    def dexp(self, xi: Array, eta: Array) -> Array:
        """exp(xi)^-1 d/dt exp(xi + t eta) at t = 0."""
        return self.velocity(*jax.jvp(self.exp, (xi,), (eta,)))

    def dexp_inverse(self, xi: Array, eta: Array) -> Array:
        """The inverse of `dexp` in eta."""
        return solve_linear(partial(self.dexp, xi), eta)

    def dcayley(self, xi: Array, eta: Array) -> Array:
        """cay(xi)^-1 d/dt cay(xi + t eta) at t = 0."""
        return self.velocity(*jax.jvp(self.cayley, (xi,), (eta,)))

    def dcayley_inverse(self, xi: Array, eta: Array) -> Array:
        """The inverse of `dcayley` in eta."""
        return solve_linear(partial(self.dcayley, xi), eta)

    @abc.abstractmethod
    def resolvent_fraction(self, xi: Array) -> tuple[Any, Any]:
        """(N, c) with (1 - xi/2)^-1 = N/c in the defining representation, polynomials where they are known."""

    def mean_dcayley(self, xi: Array) -> Array | None:
        """c with (dcay_xi + dcay_-xi)/2 = 1/c, a number for each coordinate; None where this mean is no such multiple of 1."""
        return None

    def angles(self, g: Element) -> Array:
        """Principal angles in (-pi, pi] of the planar rotations in g."""
        return jnp.zeros((0,))

    def winding(self, g0: Element, g1: Element) -> Array:
        """-1, 0 or +1 for each angle: crossings of the cut at pi by the rotation of less than pi from g0 to g1."""
        return jnp.zeros((0,))

    def random(self, key: Array) -> Element:
        """exp of a standard normal algebra element."""
        return self.exp(jax.random.normal(key, (self.dim,)))


def transpose(linear: Any, covector: Array) -> Array:
    """The transpose of a linear map between spaces of equal dimension, applied to a covector."""
    return jax.vjp(linear, jnp.zeros_like(covector))[1](covector)[0]


def columns(linear: Any, dim: int) -> Array:
    """The matrix of a linear map on vectors of length dim."""
    return jax.vmap(linear, out_axes=1)(jnp.eye(dim))


def solve_linear(linear: Any, value: Array) -> Array:
    """The x with linear(x) = value; by LAPACK above dimension 6, where unrolled elimination takes long to compile."""
    matrix = columns(linear, len(value))
    return solve(matrix, value) if len(value) <= UNROLLED else jnp.linalg.solve(matrix, value)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log(group: Group, g: Element) -> Array:
    return group.principal_log(g)


@_log.defjvp
def _log_jvp(group, primals, tangents):
    xi = _log(group, *primals)
    return xi, group.dexp_inverse(xi, group.velocity(*primals, *tangents))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cayley_inverse(group: Group, g: Element) -> Array:
    return group.principal_cayley_inverse(g)


@_cayley_inverse.defjvp
def _cayley_inverse_jvp(group, primals, tangents):
    xi = _cayley_inverse(group, *primals)
    return xi, group.dcayley_inverse(xi, group.velocity(*primals, *tangents))
