"""Direct products of groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput
from ..numerics.types import Number, Velocity
from .base import Group
from .coordinates import EULER, AlgebraAxis, Numbers
from .euclidean import Euclidean
from .functions import frobenius
from .se import SE
from .so import SO

Tuple = tuple[Any, ...]


def _pointwise(name: str) -> Callable[..., Any]:
    """The method of a product that calls this method of each factor with its share: of a tuple, or of coordinates."""

    def method(self: Product, *arguments: Any) -> Tuple:
        shares = (given if isinstance(given, tuple) else self.split(given) for given in arguments)
        return self._points(lambda group, *share: getattr(group, name)(*share), *shares)

    return method


def _concatenated(name: str) -> Callable[..., Any]:
    """The same, where each factor gives coordinates."""
    points = _pointwise(name)
    return lambda self, *arguments: jnp.concatenate(points(self, *arguments))


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

    def split(self, xi: Velocity) -> list[Array]:
        """The coordinates of each factor."""
        ends = list(accumulate(group.dim for group in self.groups))
        return [xi[end - group.dim : end] for group, end in zip(self.groups, ends, strict=True)]

    def _points(self, method: Callable[..., Any], *arguments: Iterable[Any]) -> Tuple:
        """What each factor makes of its share of the arguments."""
        return tuple(method(*share) for share in zip(self.groups, *arguments, strict=True))

    def identity(self) -> Tuple:
        return self._points(lambda group: group.identity())

    compose, inverse, matrix = _pointwise("compose"), _pointwise("inverse"), _pointwise("matrix")
    hat, exp, cayley = _pointwise("hat"), _pointwise("exp"), _pointwise("cayley")
    tangent, normalise = _pointwise("tangent"), _pointwise("normalise")
    series_start, series_rate = _pointwise("series_start"), _pointwise("series_rate")
    series_element = _pointwise("series_element")
    vee, velocity = _concatenated("vee"), _concatenated("velocity")
    principal_log, principal_cayley_inverse = _concatenated("log"), _concatenated("cayley_inverse")
    Ad, Ad_star, ad, ad_star = (_concatenated(name) for name in ("Ad", "Ad_star", "ad", "ad_star"))
    dexp, dexp_inverse = _concatenated("dexp"), _concatenated("dexp_inverse")
    dcayley, dcayley_inverse = _concatenated("dcayley"), _concatenated("dcayley_inverse")
    angles, winding = _concatenated("angles"), _concatenated("winding")

    def mean_dcayley(self, xi: Velocity) -> Velocity | None:
        means = [group.mean_dcayley(x) for group, x in zip(self.factors, self.split(xi), strict=True)]
        known = [mean for mean in means if mean is not None]
        return jnp.concatenate(known) if len(known) == len(means) else None

    def resolvent_fraction(self, xi: Velocity) -> tuple[Tuple, float]:
        """The factors have different denominators: 1 is the common one."""
        fractions = (group.resolvent_fraction(x) for group, x in zip(self.factors, self.split(xi), strict=True))
        return tuple(numerator * (1.0 / c) for numerator, c in fractions), 1.0

    def element(self, value: Any) -> Tuple:
        if not isinstance(value, (tuple, list)) or len(value) != len(self.groups):
            given = f"{len(value)} entries" if isinstance(value, (tuple, list)) else repr(value)
            raise InvalidInput(
                f"an element of {self} must be a tuple of {len(self.groups)} elements, but {given} was given"
            )
        return self._points(lambda group, x: group.element(x), value)

    def distance(self, g: Tuple) -> Number:
        return frobenius(jnp.stack(self._points(lambda group, x: group.distance(x), g)))

    def axes(self) -> list[AlgebraAxis]:
        tails = [f"_{k}" for k in range(len(self.groups))] if len(self.groups) > 1 else [""]
        return [a._replace(name=a.name + tail) for f, tail in zip(self.groups, tails, strict=True) for a in f.axes()]

    def configuration(self, given: Any) -> Tuple:
        if isinstance(given, list | tuple) and len(given) == len(self.groups):
            return self._points(lambda group, x: group.configuration(x), given)
        point: Tuple = super().configuration(given)
        return point

    def from_table(self, given: Mapping[str, Any]) -> Any:
        raise InvalidInput(f"a configuration in {self} is a list with one entry for each factor; given {dict(given)}")

    def describe(self, g: Tuple, angles: Any = (), convention: str = "") -> Any:
        tables = self._points(lambda group, x, turn: group.describe(x, turn, convention), g, self._turns(g, angles))
        return list(tables) if any(tables) else None

    def identity_table(self, convention: str = "") -> Any:
        return [group.identity_table(convention) for group in self.groups]

    def path(self, kind: str, g: Tuple, angles: Any = (), convention: str = EULER) -> Numbers | None:
        found = self._points(lambda group, x, a: group.path(kind, x, a, convention), g, self._turns(g, angles))
        return next((values for values in found if values is not None), None)

    def _turns(self, g: Tuple, angles: Any) -> list[Numbers]:
        """The unwrapped angles (..., a) of each factor; none where none are known."""
        counts = [jax.eval_shape(group.angles, group.identity()).shape[0] for group in self.groups]
        given = np.asarray(angles, float)
        ends = list(accumulate(counts)) if given.size else [0] * len(counts)
        return [given[..., max(end - count, 0) : end] for count, end in zip(counts, ends, strict=True)]


Group._product = Product


def factors_named(name: str) -> tuple[Group | None, ...]:
    """The factors of the group that str() calls `name`, as a data file does; None for one that is not dalembert's."""
    found = [re.fullmatch(r"(SO\(|SE\(|R\^)([1-9][0-9]*)\)?", factor) for factor in name.split(" x ")]
    makers: dict[str, Callable[[int], Group]] = {"SO(": SO, "SE(": SE, "R^": Euclidean}
    return tuple(makers[match[1]](int(match[2])) if match else None for match in found)
