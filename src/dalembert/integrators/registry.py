"""The methods by name, as configuration files, the command line and the law tests know them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidInput, UnknownName
from ..groups import Cayley, Exponential
from .base import Integrator
from .collocation import Gauss, Lobatto
from .composition import Adaptive, Composition
from .discrete_gradient import DiscreteGradient
from .euler_poincare_suslov import DiscreteLR, EulerPoincareSuslov
from .explicit import DormandPrince, ProjectedRungeKutta, Reference, RungeKutta
from .lagrange_dalembert import LagrangeDAlembert
from .lifted import CotangentLift, TangentLift
from .moser_veselov import DiscreteMoserVeselov
from .reflecting import GeometricNonholonomic, Leapfrog
from .retraction_adapted import RetractionAdapted
from .rigid_body import ImplicitMidpoint, KineticSplitting, LiePoissonSplitting, Rattle
from .taylor import Taylor

METHOD_CLASSES = (
    LagrangeDAlembert,
    EulerPoincareSuslov,
    RetractionAdapted,
    Leapfrog,
    GeometricNonholonomic,
    RungeKutta,
    DormandPrince,
    Taylor,
    Reference,
    DiscreteMoserVeselov,
    Rattle,
    LiePoissonSplitting,
    ImplicitMidpoint,
    KineticSplitting,
    TangentLift,
    CotangentLift,
    DiscreteLR,
    DiscreteGradient,
    Gauss,
    Lobatto,
    ProjectedRungeKutta,
    Composition,
    Adaptive,
)
RETRACTIONS = {"cayley": Cayley, "exponential": Exponential}
ALIASES = {"beta": "node"}


@dataclasses.dataclass(frozen=True)
class Method:
    """A named integrator whose options are the fields of its class."""

    build: Callable[..., Integrator]

    @property
    def name(self) -> str:
        """The name in configuration files and on the command line."""
        return self.build.name  # type: ignore[attr-defined]

    @property
    def summary(self) -> str:
        """The first line of the method's documentation."""
        return inspect.getdoc(self.build).splitlines()[0]  # type: ignore[union-attr]

    @property
    def options(self) -> dict[str, Any]:
        """The options with their defaults, as a configuration file writes them."""
        fields = dataclasses.fields(self.build)  # type: ignore[arg-type]
        plain = {field.name: field.default for field in fields if field.name != "pair"}
        return {
            name: str(value).lower().removesuffix("()") if name == "retraction" else value
            for name, value in plain.items()
        }

    def make(self, given: Mapping[str, Any]) -> Integrator:
        """The integrator with these options; unknown ones are named."""
        options: dict[str, Any] = {}
        for key, value in given.items():
            name = ALIASES.get(key, key)
            if name not in self.options:
                raise UnknownName(f"option of method '{self.name}'", key, self.options)
            if name in options:
                raise InvalidInput(
                    f"method '{self.name}' has both {name} and its other name {', '.join(ALIASES)}: give one"
                )
            options[name] = READERS[name](value) if name in READERS else value
        return self.build(**options)


def _retraction(name):
    if name not in RETRACTIONS:
        raise UnknownName("retraction", name, RETRACTIONS)
    return RETRACTIONS[name]()


def _base(section):
    """The method that [method.base] names, with its options."""
    if not isinstance(section, Mapping) or "name" not in section:
        raise InvalidInput(
            f'base is {section!r}; allowed: a method with its options, such as {{name = "gauss", stages = 2}}'
        )
    if section["name"] not in METHODS:
        raise UnknownName("base", section["name"], METHODS)
    return METHODS[section["name"]].make({key: value for key, value in section.items() if key != "name"})


READERS: dict[str, Callable[[Any], Any]] = {"retraction": _retraction, "base": _base}
METHODS: dict[str, Method] = {cls.name: Method(cls) for cls in METHOD_CLASSES}
