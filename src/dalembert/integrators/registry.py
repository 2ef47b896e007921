"""The methods by name, as configuration files, the command line, the studio and the law tests know them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import InvalidInput, UnknownName, require_name
from ..groups import Cayley, Exponential, Retraction
from .base import Integrator

M = TypeVar("M", bound=Integrator)
RETRACTIONS: dict[str, type[Retraction]] = {"cayley": Cayley, "exponential": Exponential}
ALIASES = {"beta": "node"}
CONSTRAINED, HIGH, BODIES = "For systems with constraints", "Of high order", "For rigid bodies"
ACCURATE, COMPARED = "For accuracy alone, over a short time", "To compare with"
LISTING = {  # name: (group, order with the defaults, cost of a step); other methods follow as they register
    "lagrange-dalembert": (CONSTRAINED, "2", "Newton's iteration in velocities and multipliers"),
    "euler-poincare-suslov": (CONSTRAINED, "2", "Newton's iteration in the velocities that the constraint leaves"),
    "retraction-adapted": (CONSTRAINED, "2", "Newton's iteration in the velocities that the constraint leaves"),
    "leapfrog": (CONSTRAINED, "2", "explicit on R^n with a constant mass matrix, else Newton's iteration"),
    "geometric-nonholonomic": (CONSTRAINED, "2", "as leapfrog, or Newton's iteration in the velocities"),
    "runge-kutta": (COMPARED, "4", "explicit, 4 accelerations"),
    "dormand-prince": (ACCURATE, "by tolerance", "explicit, 12 accelerations a substep"),
    "taylor": (ACCURATE, "by tolerance", "explicit, one power series a substep"),
    "reference": (ACCURATE, "by tolerance", "that of dormand-prince at 1e-13"),
    "discrete-moser-veselov": (BODIES, "exact, also 2 to 10", "closed formulas, no iteration"),
    "rattle": (BODIES, "2, of the momentum also 4, 6, 8", "Newton's iteration in 6 unknowns"),
    "lie-poisson-splitting": (BODIES, "2", "explicit, five turns"),
    "implicit-midpoint": (BODIES, "2", "Newton's iteration in 3 unknowns"),
    "kinetic-splitting": (BODIES, "2, also 4", "explicit, one force and one exact free motion"),
    "tangent-lift": (COMPARED, "2", "Newton's iteration in the velocities"),
    "cotangent-lift": (COMPARED, "2", "Newton's iteration in the velocities"),
    "discrete-lr": (CONSTRAINED, "2", "Newton's iteration in the velocities that the constraint leaves"),
    "discrete-gradient": (CONSTRAINED, "2", "Newton's iteration in the velocities that the constraint leaves"),
    "gauss": (HIGH, "4, also 2, 6, 8", "fixed-point iteration, with unknowns for every stage"),
    "lobatto": (HIGH, "4, also 2, 6", "Newton's iteration, with unknowns for every stage"),
    "projected-runge-kutta": (COMPARED, "4", "explicit, 4 accelerations and a projection"),
    "composition": (HIGH, "6, also 4, 8, 10", "several steps of its base: 9 for kahan-li-6"),
    "adaptive": (HIGH, "2, or that of its base", "one step of its base"),
}


@dataclasses.dataclass(frozen=True)
class Method:
    """An entry of METHODS: an integrator by its name, with its options (the fields of its class) and its texts.

    `words` say what it does to somebody who has not read the papers, `use_when` completes "Use it when ...".
    """

    build: type[Integrator]
    words: str = ""
    use_when: str = ""

    @property
    def name(self) -> str:
        """The name in configuration files and on the command line."""
        return self.build.name

    @property
    def traits(self) -> tuple[str, str, str]:
        """Its group in lists, its order with the default options, and what a step costs, where these are known."""
        return LISTING.get(self.name, ("Others", "", ""))

    @property
    def summary(self) -> str:
        """The first line of the method's documentation."""
        return (inspect.getdoc(self.build) or self.name).splitlines()[0]

    @property
    def text(self) -> str:
        """The plain words, when to use it, and the first line of the documentation."""
        advice = f"Use it when {self.use_when}." if self.use_when else ""
        return "\n".join(filter(None, (self.words, advice, self.summary)))

    @property
    def options(self) -> dict[str, Any]:
        """The options with their defaults, as a configuration file writes them."""
        fields = dataclasses.fields(self.build)  # type: ignore[arg-type]  # `register` takes dataclasses only
        found = {field.name: field.default for field in fields if field.name != "pair"}
        if "retraction" in found:
            found["retraction"] = str(found["retraction"]).lower().removesuffix("()")
        return found

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


METHODS: dict[str, Method] = {}


def register(*, words: str = "", use_when: str = "") -> Callable[[type[M]], type[M]]:
    """A decorator that adds an `Integrator` to METHODS: configuration files, `compare` and the studio then know it.

    The class needs a `name`, is a dataclass whose fields are its options, and defines start, step and observe.
    """

    def add(cls: type[M]) -> type[M]:
        lacking = [part for part in ("start", "step", "observe", "name") if getattr(cls, part, None) is None]
        lacking += sorted(getattr(cls, "__abstractmethods__", ()))
        if lacking or not dataclasses.is_dataclass(cls) or not issubclass(cls, Integrator):
            needs = f"it lacks {', '.join(dict.fromkeys(lacking))}" if lacking else "it is no dataclass of that kind"
            raise InvalidInput(
                f"{cls.__name__} cannot be registered as a method: {needs}. "
                "A method is a frozen dataclass, an Integrator with start, step, observe and a name"
            )
        if cls.name in METHODS:
            raise InvalidInput(
                f"the method '{cls.name}' is registered already, by {METHODS[cls.name].build.__qualname__}: "
                f"give {cls.__qualname__} another name"
            )
        METHODS[cls.name] = Method(cls, words, use_when)
        for name in sorted(METHODS, key=lambda name: [*LISTING, name].index(name)):
            METHODS[name] = METHODS.pop(name)
        return cls

    return add


def _read_retraction(name: str) -> Retraction:
    require_name("retraction", name, RETRACTIONS)
    return RETRACTIONS[name]()


def _read_base(section: Any) -> Integrator:
    """The method that [method.base] names, with its options."""
    if not isinstance(section, Mapping) or "name" not in section:
        raise InvalidInput(
            f'base is {section!r}; allowed: a method with its options, such as {{name = "gauss", stages = 2}}'
        )
    require_name("base", section["name"], METHODS)
    return METHODS[section["name"]].make({key: value for key, value in section.items() if key != "name"})


READERS: dict[str, Callable[[Any], Any]] = {"retraction": _read_retraction, "base": _read_base}
