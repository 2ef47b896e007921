"""Direct products of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..errors import InvalidInput
from .base import Group
from .so import frobenius


@jax.tree_util.register_static
@dataclass(frozen=True)
class Product(Group):
    """Elements are tuples, one entry for each factor; algebra coordinates are concatenated."""

    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        if not self.groups:
            raise InvalidInput("a product needs at least one group, but none was given")

    def __str__(self) -> str:
        return " x ".join(map(str, self.groups))

    @property
    def dim(self) -> int:
        return sum(group.dim for group in self.groups)

    @property
    def factors(self) -> tuple[Group, ...]:
        return self.groups

    def split(self, xi: Array) -> list[Array]:
        """The coordinates of each factor."""
        ends = list(accumulate(group.dim for group in self.groups))
        return [xi[end - group.dim : end] for group, end in zip(self.groups, ends, strict=True)]

    def _points(self, method: Callable, *arguments: Iterable) -> tuple[Any, ...]:
        """What each factor makes of its share of the arguments."""
        return tuple(method(*share) for share in zip(self.groups, *arguments, strict=True))

    def _coordinates(self, method: Callable, *arguments: Iterable) -> Array:
        """The same, concatenated."""
        return jnp.concatenate(self._points(method, *arguments))

    def identity(self) -> tuple[Any, ...]:
        return self._points(lambda group: group.identity())

    def compose(self, g: tuple, h: tuple) -> tuple[Any, ...]:
        return self._points(lambda group, x, y: group.compose(x, y), g, h)

    def inverse(self, g: tuple) -> tuple[Any, ...]:
        return self._points(lambda group, x: group.inverse(x), g)

    def matrix(self, g: tuple) -> tuple[Any, ...]:
        return self._points(lambda group, x: group.matrix(x), g)

    def hat(self, xi: Array) -> tuple[Any, ...]:
        return self._points(lambda group, x: group.hat(x), self.split(xi))

    def vee(self, matrix: tuple) -> Array:
        return self._coordinates(lambda group, x: group.vee(x), matrix)

    def exp(self, xi: Array) -> tuple[Any, ...]:
        return self._points(lambda group, x: group.exp(x), self.split(xi))

    def principal_log(self, g: tuple) -> Array:
        return self._coordinates(lambda group, x: group.log(x), g)

    def cayley(self, xi: Array) -> tuple[Any, ...]:
        return self._points(lambda group, x: group.cayley(x), self.split(xi))

    def mean_dcayley(self, xi: Array) -> Array | None:
        means = [group.mean_dcayley(x) for group, x in zip(self.factors, self.split(xi), strict=True)]
        known = [mean for mean in means if mean is not None]
        return jnp.concatenate(known) if len(known) == len(means) else None

    def resolvent_fraction(self, xi: Array) -> tuple[tuple[Any, ...], float]:
        """The factors have different denominators: 1 is the common one."""
        fractions = (group.resolvent_fraction(x) for group, x in zip(self.factors, self.split(xi), strict=True))
        return tuple(numerator * (1.0 / c) for numerator, c in fractions), 1.0

    def principal_cayley_inverse(self, g: tuple) -> Array:
        return self._coordinates(lambda group, x: group.cayley_inverse(x), g)

    def Ad(self, g: tuple, xi: Array) -> Array:
        return self._coordinates(lambda group, x, y: group.Ad(x, y), g, self.split(xi))

    def Ad_star(self, g: tuple, mu: Array) -> Array:
        return self._coordinates(lambda group, x, y: group.Ad_star(x, y), g, self.split(mu))

    def ad(self, xi: Array, eta: Array) -> Array:
        return self._coordinates(lambda group, x, y: group.ad(x, y), self.split(xi), self.split(eta))

    def ad_star(self, xi: Array, mu: Array) -> Array:
        return self._coordinates(lambda group, x, y: group.ad_star(x, y), self.split(xi), self.split(mu))

    def dexp(self, xi: Array, eta: Array) -> Array:
        return self._coordinates(lambda group, x, y: group.dexp(x, y), self.split(xi), self.split(eta))

    def dexp_inverse(self, xi: Array, eta: Array) -> Array:
        return self._coordinates(lambda group, x, y: group.dexp_inverse(x, y), self.split(xi), self.split(eta))

    def dcayley(self, xi: Array, eta: Array) -> Array:
        return self._coordinates(lambda group, x, y: group.dcayley(x, y), self.split(xi), self.split(eta))

    def dcayley_inverse(self, xi: Array, eta: Array) -> Array:
        return self._coordinates(lambda group, x, y: group.dcayley_inverse(x, y), self.split(xi), self.split(eta))

    def velocity(self, g: tuple, dg: tuple) -> Array:
        return self._coordinates(lambda group, x, y: group.velocity(x, y), g, dg)

    def tangent(self, g: tuple, xi: Array) -> tuple[Any, ...]:
        return self._points(lambda group, x, y: group.tangent(x, y), g, self.split(xi))

    def angles(self, g: tuple) -> Array:
        return self._coordinates(lambda group, x: group.angles(x), g)

    def winding(self, g0: tuple, g1: tuple) -> Array:
        return self._coordinates(lambda group, x, y: group.winding(x, y), g0, g1)

    def element(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (tuple, list)) or len(value) != len(self.groups):
            given = f"{len(value)} entries" if isinstance(value, (tuple, list)) else repr(value)
            raise InvalidInput(
                f"an element of {self} must be a tuple of {len(self.groups)} elements, but {given} was given"
            )
        return self._points(lambda group, x: group.element(x), value)

    def distance(self, g: tuple) -> Array:
        return frobenius(jnp.stack(self._points(lambda group, x: group.distance(x), g)))

    def normalise(self, g: tuple) -> tuple[Any, ...]:
        return self._points(lambda group, x: group.normalise(x), g)


Group._product = Product
