"""Give a model a name: with `register`, configuration files, the command line, sweeps, plots and the studio know it.

A model is a function that returns a system; its decorator has an example, a start, a step and texts.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, UnknownName
from ..mechanics import MechanicalSystem, Names, split_unit
from ..numerics import finite, is_traced, namespace, positive, real
from ..numerics.types import Array, ArrayLike

Build = TypeVar("Build", bound=Callable[..., MechanicalSystem])
Real = ArrayLike  # one number
Numbers = ArrayLike | Sequence[float] | Sequence[Sequence[float]]  # a vector or a matrix, as a user writes it
Values = dict[str, Array]  # the parameters p of a model
Reals = NDArray[np.float64]  # what exact solutions return
Try = tuple[str, str, Any]  # what it shows, the place ("system.a"), the value

START_ENTRIES = ("configuration", "velocity", "momentum")
cached_partial = lru_cache(partial)  # one object for all calls, so that compiled programs are found again
RESERVED_NAMES = ("own", "file")  # what `dalembert init` and the studio call a system of a user's own file
SUSLOV_METHOD = {"name": "euler-poincare-suslov", "lagrangian": "moser-veselov", "retraction": "cayley"}
PLACE, TWIST = "heading [rad], x [m], y [m]", "w [rad s-1], v1 [m s-1], v2 [m s-1]"  # on SE(2), as of a vehicle
# Of a body that rolls on a plane, on SO(3) x R^2:
ROLLING_NAMES = "x [m], y [m]", "w1 [rad s-1], w2 [rad s-1], w3 [rad s-1], x rate [m s-1], y rate [m s-1]"
MOMENTS = "three moments, or a symmetric matrix"
PARAMETER_HELP = {
    "inertia": "moments of inertia about the centre of mass",
    "normal": "the axis about which the body may not turn",
    "slope": "angle of the plane",
    "epsilon": "strength of the term that couples the oscillators or breaks their symmetry",
    "moment": "moment of inertia about any axis; absent: a solid ball",
}
"""What parameters mean that several models have."""
PARAMETER_UNITS = {
    "kg": "mass fork_mass wheel_mass knuckle_mass trailer_mass ball_mass rider masses",
    "m": "radius castor_radius a b axes depth centre fork_centre length lengths front arm wheelbase trail size track "
    "castor height width hitch eccentricity thickness",
    "kg m2": "inertia fork_inertia rider_inertia rolling turning axial diametral moment rotor wheels steering tensor",
    "rad": "slope tilt",
    "m s-2": "gravity",
    "rad s-1": "rotation",
    "N m": "weight",
}
"""The units of the parameters of the models, by name; `meaning` may have another, "mass tensor [kg m2]"."""


@dataclass(frozen=True)
class Model:
    """An entry of MODELS: a system by its name, how to build it, an example that shows what it does, and its texts.

    `example` has values of parameters, `initial` the start, as in a configuration file: configuration and velocity or
    momentum, or numbers by the names of a mechanism (`{"speed": 5.0}`). `why` says what to look at and why the body
    does it, `tries` has values worth trying, and `steps` is how many steps show what the model does.
    """

    name: str
    build: Callable[..., MechanicalSystem]
    example: Mapping[str, Any]
    initial: Mapping[str, Any]
    step: float = 0.05
    method: Mapping[str, Any] = field(default_factory=lambda: {"name": "lagrange-dalembert"})
    steps: int = 400
    title: str = ""
    why: str = ""
    tries: Sequence[Try] = ()
    meaning: Mapping[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first line of the model's documentation."""
        return (inspect.getdoc(self.build) or self.title).splitlines()[0]

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters with their defaults (inspect.Parameter.empty where one must be given)."""
        return {name: p.default for name, p in inspect.signature(self.build).parameters.items()}

    @property
    def required(self) -> list[str]:
        """The parameters without a default."""
        return [name for name, default in self.parameters.items() if default is inspect.Parameter.empty]

    @property
    def starts_by_names(self) -> bool:
        """Whether the start has coordinates and rates of a mechanism by their names, each one number."""
        numbers = [isinstance(value, int | float) and key not in START_ENTRIES for key, value in self.initial.items()]
        return bool(numbers) and all(numbers)

    def help(self, parameter: str) -> str:
        """What a parameter means, and its unit; nothing where nobody said it."""
        words = split_unit(self.meaning.get(parameter, PARAMETER_HELP.get(parameter, "")))[0]
        return ", ".join(filter(None, (words, self.unit(parameter))))

    def unit(self, parameter: str) -> str:
        """The unit of a parameter, one of its own or that of its name; "" where it has none."""
        of_name = (unit for unit, names in PARAMETER_UNITS.items() if parameter in names.split())
        return split_unit(self.meaning.get(parameter, ""))[1] or next(of_name, "")

    def make(self, given: Mapping[str, Any]) -> MechanicalSystem:
        """The system with these parameters; unknown and missing ones are named."""
        for name in given:
            if name not in self.parameters:
                raise UnknownName(f"parameter of system '{self.name}'", name, self.parameters)
        missing = [name for name in self.required if name not in given]
        if missing:
            needed = f"system '{self.name}' needs {', '.join(missing)}"
            raise InvalidInput(f"{needed}; for example {missing[0]} = {self.example[missing[0]]}")
        return self.build(**given)


@lru_cache
def with_units(coordinates: str, velocities: str, constraints: str = "") -> Names:
    """The names of a model's things, with their units: "heading [rad], x [m], y [m]"; one object for all calls."""
    given = [[split_unit(each) for each in text.split(",") if each] for text in (coordinates, velocities, constraints)]
    places, rates, loads = (tuple(name for name, _ in own) for own in given)
    return Names("", places, rates, loads, tuple((name, unit) for own in given for name, unit in own if unit))


@lru_cache
def _with_title(names: Names, title: str) -> Names:
    return replace(names, system=title)


MODELS: dict[str, Model] = {}
"""The models by name, as configuration files, the command line and the law tests know them."""


def register(
    name: str,
    *,
    example: Mapping[str, Any],
    initial: Mapping[str, Any],
    step: float = 0.05,
    method: Mapping[str, Any] | None = None,
    steps: int = 400,
    title: str = "",
    why: str = "",
    tries: Iterable[Try] = (),
    meaning: Mapping[str, str] | None = None,
) -> Callable[[Build], Build]:
    """Name the model that a function builds: `@register("skate", example={}, initial={"velocity": [1.0, 0.5, 0.0]})`.

    The arguments are those of `Model`. Without a title the name is taken, without a why the docstring, without a method
    Lagrange-d'Alembert. `del MODELS[name]` removes the model.
    """

    def add(build: Build) -> Build:
        chosen = {"name": "lagrange-dalembert"} if method is None else method
        words = title or name.replace("-", " ").capitalize()
        told = why or " ".join((inspect.getdoc(build) or "").split("\n\n")[0].split())

        @wraps(build)
        def build_with_title(*arguments: Any, **options: Any) -> MechanicalSystem:
            system = build(*arguments, **options)
            if system.title == type(system).__name__:  # nobody gave it one
                object.__setattr__(system, "names", _with_title(system.names or Names(), words))
            return system

        made = cast(Build, build_with_title)
        model = Model(name, made, example, initial, step, chosen, steps, words, told, tuple(tries), meaning or {})
        _check(model)
        MODELS[name] = model
        return made

    return add


def _check(model: Model) -> None:
    """Refuse a model that could not be named, made or started."""
    name, what = model.name, f"model '{model.name}'"
    if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)) or name in RESERVED_NAMES:
        words = f"lower-case words joined by hyphens, but not {' or '.join(RESERVED_NAMES)}"
        raise InvalidInput(f"a model cannot be called {name!r}; allowed: {words}")
    if name in MODELS:
        other = f"{MODELS[name].build.__module__}.{MODELS[name].build.__qualname__}"
        remedy = f"choose another name, or take that one away with del MODELS[{name!r}]"
        raise InvalidInput(f"there is a {what} already, {other}: {remedy}")
    entries = (*START_ENTRIES, *model.initial) if model.starts_by_names else START_ENTRIES
    places = [*(f"system.{key}" for key in model.parameters), *(f"initial.{key}" for key in entries)]
    for kind, given, known in (
        ("parameter", (*model.example, *model.meaning), model.parameters),
        ("entry of initial", model.initial, entries),
        ("place to try", [place for _, place, _ in model.tries], places),
    ):
        for key in given:
            if key not in known:
                raise UnknownName(f"{kind} of {what}", key, known)
    missing = [key for key in model.required if key not in model.example]
    if missing:
        raise InvalidInput(f"the example of {what} has no {', '.join(missing)}, and {missing[0]} has no default")
    if not model.starts_by_names and ("velocity" in model.initial) == ("momentum" in model.initial):
        start = dict(model.initial)
        raise InvalidInput(
            f"initial of {what} must give exactly one of velocity and momentum, or numbers by the names of a "
            f"mechanism; given {start}"
        )
    if not model.step > 0 or model.steps < 1:
        raise InvalidInput(f"{what} has step {model.step!r} and {model.steps!r} steps; allowed: positive numbers")
    if "name" not in model.method:
        raise InvalidInput(f"method of {what} is {dict(model.method)}; allowed: a table with a name, as in a file")


def downhill_force(mass: ArrayLike, slope: ArrayLike, gravity: ArrayLike) -> Array:
    """m g sin(slope): what pulls a body down an inclined plane."""
    mass, gravity = positive("mass", mass), finite("gravity", gravity)
    return cast(Array, mass * gravity * namespace(slope).sin(finite("slope", slope)))


def positive_vector(name: str, values: Numbers, count: int | None = None) -> Array:
    """`values` as a list of positive numbers, or a clear error."""
    given = real(name, values)
    shaped = given.ndim == 1 and given.size and count in (None, given.size)
    if not shaped or not (is_traced(given) or np.all(np.asarray(given) > 0)):
        raise InvalidInput(f"{name} is {values!r}; allowed: {count or 'a list of'} positive numbers")
    return given
