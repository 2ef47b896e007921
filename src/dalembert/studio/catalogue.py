"""Controls made from values: their kind, and the range of their slider.

A range is a hint: a value typed outside it goes to the model, which judges.

The catalogue: every model and method with its controls, what to look at and what to try.

To start fast nothing is built until it is chosen: `entry` completes a system with its initial state and the methods that take it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import InvalidInput, UnknownName
from ..integrators import METHODS, RETRACTIONS
from ..io.config import load_function
from ..mechanics import MechanicalSystem
from ..models import LAGRANGIANS, MODELS
from .requests import DEFAULT_FRAMES, MAX_FRAMES, OPENED_SYSTEM, StudioInput, config_of_file, dependent_components

Control = dict[str, Any]

RANGES: dict[str, tuple[float, float]] = {
    "slope": (0.0, 0.8),
    "gravity": (0.0, 20.0),
    "epsilon": (-0.5, 1.0),
    "rotation": (-4.0, 4.0),
    "a": (-1.0, 1.0),
    "b": (-1.0, 1.0),
    "centre": (-1.0, 1.0),
    "front": (-1.0, 1.0),
    "arm": (-1.0, 1.0),
    "normal": (-1.0, 1.0),
    "weight": (-5.0, 5.0),
    "depth": (0.0, 0.018),
    "n": (2, 5),
    "directions": (1, 3),
    "node": (0.0, 1.0),
}
"""Parameters whose range does not follow from their value: those of either sign, angles, counts. The others are positive."""
STAND_INS: dict[str, Any] = {"weight": [0.0, 0.0, 0.0], "directions": 1}
"""What a parameter looks like whose default is to be absent; else it is one number."""
CHOICES: dict[str, list[Any]] = {
    "potential": list(LAGRANGIANS),
    "retraction": list(RETRACTIONS),
    "lagrangian": ["moser-veselov", "retraction"],
    "nodes": ["original", "velocity", "deformed"],
    "order": [2, 4, 6, 8, 10],
    "variant": ["moments", "scaled"],
    "onto": ["constraint", "energy"],
    "stages": [1, 2, 3, 4],
    "gradient": ["gonzalez", "average", "itoh-abe"],
}
SYMMETRIC = ("inertia", "mass", "tensor")


# -- controls -------------------------------------------------------------------------------------------------------------------
def control(
    place: str, value: Any, *, optional: bool = False, help: str = "", entries: list[str] | None = None
) -> Control:
    """A control for a value of this kind at a place of the configuration."""
    name = place.rpartition(".")[2]
    shown: Control = {
        "place": place,
        "label": name.replace("_", " "),
        "help": help,
        "value": value,
        "optional": optional,
    }
    model = STAND_INS.get(name, 1.0) if value is None else value
    if name in CHOICES and not isinstance(model, list):
        return shown | {
            "kind": "choice",
            "choices": list(dict.fromkeys([*CHOICES[name], *([] if value is None else [value])])),
        }
    if isinstance(model, bool):
        return shown | {"kind": "flag"}
    if isinstance(model, str):
        return shown | {"kind": "choice", "choices": [model]}
    array = np.asarray(model, float)
    kind = ("integer" if isinstance(model, int) else "number", "vector", "matrix")[array.ndim]
    low, high = RANGES.get(name) or _range(array)
    shown |= {"kind": kind, "low": low, "high": high}
    if kind == "matrix":
        shown["symmetric"] = name in SYMMETRIC
    if kind == "vector":
        shown["entries"] = entries or [str(k + 1) for k in range(len(array))]
    return shown


def _range(array: np.ndarray) -> tuple[float, float]:
    """Around the value: positive numbers stay positive, others go either way."""
    size = float(np.abs(array).max()) or 1.0
    if array.ndim < 2 and np.all(array > 0):
        return two_digits(float(array.min()) / 5), two_digits(3 * size)
    return -two_digits(2 * size), two_digits(2 * size)


def two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def to_lists(value: Any) -> Any:
    """Tuples as the lists that a configuration has."""
    return [to_lists(entry) for entry in value] if isinstance(value, list | tuple) else value


FIRST_MODEL = "chaplygin-sleigh"


def make_catalogue(opened: StudioInput) -> dict[str, Any]:
    """What the page needs to start: nothing is built for it."""
    systems = [_system(name) for name in MODELS]
    if opened.own is not None:
        systems.insert(0, _own(opened))
    return {
        "systems": systems,
        "methods": [_method(name) for name in METHODS],
        "start": start(opened),
        "limits": {"steps": opened.max_steps, "frames": MAX_FRAMES},
    }


def start(opened: StudioInput) -> dict[str, Any]:
    """What to show first: the file that was opened, or the sleigh."""
    if opened.saved is not None:
        return {"config": config_of_file(opened.saved), "against": None, "frames": DEFAULT_FRAMES, "saved": True}
    if opened.config is None:
        return {"config": example(FIRST_MODEL), "against": None, "frames": DEFAULT_FRAMES}
    config = {name: dict(part) for name, part in opened.config.items()}
    if opened.own is not None:
        config["system"] = {
            "name": OPENED_SYSTEM,
            **{key: value for key, value in opened.own.items() if key != "python"},
        }
    return {"config": config, "against": None, "frames": DEFAULT_FRAMES}


def example(name: str) -> dict[str, Any]:
    """A configuration of a model that shows what it does."""
    model = MODELS[name]
    system = {"name": name, **{key: to_lists(value) for key, value in _parameters(model).items() if value is not None}}
    run = {"step": model.step, "steps": model.steps}
    return {"system": system, "method": dict(model.method), "initial": dict(model.initial), "run": run}


def _parameters(model: Any) -> dict[str, Any]:
    """The parameters with the values of the example, or their defaults."""
    return {**model.parameters, **model.example}


def _system(name: str) -> dict[str, Any]:
    model = MODELS[name]
    parameters = [
        control(f"system.{key}", to_lists(value), optional=model.parameters[key] is None, help=model.help(key))
        for key, value in _parameters(model).items()
    ]
    return {
        "name": name,
        "title": model.title,
        "summary": model.summary,
        "why": model.why,
        "tries": [{"text": text, "place": place, "value": value} for text, place, value in model.tries],
        "example": example(name),
        "parameters": parameters,
    }


def _own(opened: StudioInput) -> dict[str, Any]:
    """The user's own system, with the parameters of the function that makes it."""
    assert opened.own is not None and opened.config is not None
    file, _, attribute = opened.own["python"].rpartition(":")
    make = load_function((opened.folder / file).resolve(), attribute)
    defaults = {
        key: p.default
        for key, p in inspect.signature(make).parameters.items()
        if p.default is not inspect.Parameter.empty
    }
    values = {**defaults, **{key: value for key, value in opened.own.items() if key != "python"}}
    known = {
        key: to_lists(value)
        for key, value in values.items()
        if isinstance(value, bool | int | float | str | list | tuple)
    }
    config = start(opened)["config"]
    return {
        "name": OPENED_SYSTEM,
        "title": opened.own["python"],
        "summary": (inspect.getdoc(make) or "A system of your own.").splitlines()[0],
        "why": "",
        "tries": [],
        "example": {**config, "system": {"name": OPENED_SYSTEM, **known}},
        "parameters": [control(f"system.{key}", value) for key, value in known.items()],
    }


def _method(name: str) -> dict[str, Any]:
    method = METHODS[name]
    options = [
        control(f"method.{key}", value, optional=value is None)
        for key, value in method.options.items()
        if key != "base" and (value is None or isinstance(value, bool | int | float | str))
    ]
    return {"name": name, "summary": method.words or method.summary, "options": options, "claims": []}


# -- what is known once a system is chosen --------------------------------------------------------------------------------------
@lru_cache(maxsize=64)
def entry(name: str, opened: StudioInput) -> dict[str, Any]:
    """A system of the catalogue with its group, its initial state and the methods that take it."""
    found = next((system for system in make_catalogue(opened)["systems"] if system["name"] == name), None)
    if found is None:
        raise UnknownName("system", name, MODELS)
    job = opened.job(found["example"])
    refused: dict[str, str] = {}
    for method in METHODS.values():
        try:
            method.make({}).require(job.system, job.state, job.run["step"])
        except (InvalidInput, TypeError) as fault:
            refused[method.name] = str(fault)
    config = dict(found["example"])
    config["initial"] = _with_configuration(job.system, config["initial"])
    return found | {
        "example": config,
        "group": str(job.system.group),
        "initial": _initial(job.system, job.state, config["initial"]),
        "methods": [name for name in METHODS if name not in refused],
        "refused": refused,
    }


def _with_configuration(system: MechanicalSystem, initial: Mapping[str, Any]) -> dict[str, Any]:
    """[initial] with its configuration, the identity if it says none."""
    if "configuration" in initial:
        return dict(initial)
    return {"configuration": system.group.identity_table("ZYX"), **initial}


def _initial(system: MechanicalSystem, state: Any, initial: Mapping[str, Any]) -> list[Control]:
    """Controls of the initial state; `dependent` entries of a velocity follow from the constraint."""
    names = [axis.name for axis in system.group.axes()]
    controls = []
    given = initial["configuration"]
    for k, (factor, value) in enumerate(
        zip(system.group.factors, given if len(system.group.factors) > 1 else [given], strict=False)
    ):
        place = "initial.configuration" + (f".{k}" if len(system.group.factors) > 1 else "")
        controls += _configuration(place, factor, value)
    for kind in ("velocity", "momentum"):
        if kind in initial:
            value = initial[kind]
            entries = names if len(value) == len(names) else [f"on D, {k + 1}" for k in range(len(value))]
            made = control(f"initial.{kind}", value, entries=entries)
            size = 2 * float(np.abs(value).max()) or 1.0
            made |= {"low": -two_digits(size), "high": two_digits(size)}
            if kind == "velocity":
                made["dependent"] = dependent_components(np.asarray(system.rows(state.t, state.g)(state.xi)))
            controls.append(made)
    return controls


def _configuration(place: str, group: Any, value: Any) -> list[Control]:
    if isinstance(value, Mapping):
        turns = {"angle": (-np.pi, np.pi), "euler": (-np.pi, np.pi), "position": (-5.0, 5.0), "log": (-np.pi, np.pi)}
        made = [control(f"{place}.{key}", entry) for key, entry in value.items() if key in turns]
        for shown in made:
            shown["low"], shown["high"] = turns[shown["place"].rpartition(".")[2]]
        return made
    if np.ndim(value) == 1:
        made = [control(place, value, entries=[f"q{k + 1}" for k in range(len(value))])]
        reach = two_digits(2 * float(np.abs(value).max()) or 5.0)
        made[0] |= {"low": -reach, "high": reach}
        return made
    return []
