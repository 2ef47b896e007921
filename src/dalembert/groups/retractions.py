"""Retractions: maps tau from the algebra to the group with tau(0) = e, dtau(0) = 1 and tau(-xi) = tau(xi)^-1."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array

from ..numerics.types import Covector, Element, Number, Velocity
from .base import Group, solve_linear, transpose
from .functions import cosc, sinc


@dataclass(frozen=True)
class Retraction(abc.ABC):
    """A retraction with its logarithmic derivatives; a new one needs `tau` and `inverse`, the rest are definitions.

    Since tau(-xi) = tau(xi)^-1, the right derivative at xi is the left derivative at -xi. Retractions are values, as
    groups are, and static in JAX's trees.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_static(cls)

    @abc.abstractmethod
    def tau(self, group: Group, xi: Velocity) -> Element:
        """tau(xi), with tau(0) = e, dtau(0) = 1 and tau(-xi) = tau(xi)^-1."""

    @abc.abstractmethod
    def inverse(self, group: Group, g: Element) -> Velocity:
        """tau^-1(g)."""

    def rodrigues(self, x: Number) -> tuple[Array, Array] | None:
        """(a, b) with tau(w) = 1 + a hat(w) + b hat(w)^2 on SO(3), functions of x = |w|^2; None if not known."""
        return None

    def mean(self, group: Group, xi: Velocity) -> Velocity | None:
        """c with (d^L tau_xi + d^R tau_xi)/2 = 1/c coordinate by coordinate, where that holds, else None."""
        return None

    def left(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        """d^L tau_xi(eta) = tau(xi)^-1 d/dt tau(xi + t eta) at t = 0."""
        return group.velocity(*jax.jvp(partial(self.tau, group), (xi,), (eta,)))

    def left_inverse(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        """The inverse of `left` in eta."""
        return solve_linear(partial(self.left, group, xi), eta)

    def right(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        """d^R tau_xi(eta) = d/dt tau(xi + t eta) tau(xi)^-1 at t = 0, which is Ad_tau(xi) d^L tau_xi(eta)."""
        return self.left(group, -xi, eta)

    def right_inverse(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        """The inverse of `right` in eta."""
        return self.left_inverse(group, -xi, eta)

    def left_star(self, group: Group, xi: Velocity, mu: Covector) -> Covector:
        """<left_star mu, eta> = <mu, left eta>."""
        return transpose(partial(self.left, group, xi), mu)

    def right_star(self, group: Group, xi: Velocity, mu: Covector) -> Covector:
        """<right_star mu, eta> = <mu, right eta>."""
        return self.left_star(group, -xi, mu)

    def left_inverse_star(self, group: Group, xi: Velocity, mu: Covector) -> Covector:
        """<left_inverse_star mu, eta> = <mu, left_inverse eta>."""
        return transpose(partial(self.left_inverse, group, xi), mu)

    def right_inverse_star(self, group: Group, xi: Velocity, mu: Covector) -> Covector:
        """<right_inverse_star mu, eta> = <mu, right_inverse eta>."""
        return self.left_inverse_star(group, -xi, mu)


@dataclass(frozen=True)
class Exponential(Retraction):
    """tau = exp, with tau^-1 = log on rotations by less than pi."""

    def tau(self, group: Group, xi: Velocity) -> Element:
        return group.exp(xi)

    def inverse(self, group: Group, g: Element) -> Velocity:
        return group.log(g)

    def rodrigues(self, x: Number) -> tuple[Array, Array]:
        return sinc(x), cosc(x)

    def left(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        return group.dexp(xi, eta)

    def left_inverse(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        return group.dexp_inverse(xi, eta)


@dataclass(frozen=True)
class Cayley(Retraction):
    """tau(xi) = (1 - xi/2)^-1 (1 + xi/2) in the defining representation, addition on R^n."""

    def tau(self, group: Group, xi: Velocity) -> Element:
        return group.cayley(xi)

    def inverse(self, group: Group, g: Element) -> Velocity:
        return group.cayley_inverse(g)

    def rodrigues(self, x: Number) -> tuple[Array, Array]:
        scale = 1.0 / (1.0 + 0.25 * x)
        return scale, 0.5 * scale

    def mean(self, group: Group, xi: Velocity) -> Velocity | None:
        return group.mean_dcayley(xi)

    def left(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        return group.dcayley(xi, eta)

    def left_inverse(self, group: Group, xi: Velocity, eta: Velocity) -> Velocity:
        return group.dcayley_inverse(xi, eta)
