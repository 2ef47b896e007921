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
LISTING = (  # how lists begin; other methods follow in the order in which they register
    "lagrange-dalembert", "euler-poincare-suslov", "retraction-adapted", "leapfrog", "geometric-nonholonomic",
    "runge-kutta", "dormand-prince", "taylor", "reference", "discrete-moser-veselov", "rattle", "lie-poisson-splitting",
    "implicit-midpoint", "kinetic-splitting", "tangent-lift", "cotangent-lift", "discrete-lr", "discrete-gradient",
    "gauss", "lobatto", "projected-runge-kutta", "composition", "adaptive",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Method:
    """A named integrator whose options are the fields of its class.

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
        for name in sorted(METHODS, key=lambda name: LISTING.index(name) if name in LISTING else len(LISTING)):
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
