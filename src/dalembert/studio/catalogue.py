"""The catalogue: every model and method with its controls, what to look at and what to try.

To start fast nothing is built until it is chosen: `entry` completes a system with its initial state and the methods that take it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..coordinates import axes
from ..errors import InvalidInput, UnknownName
from ..groups.motions import Motions
from ..groups.rotations import Rotations
from ..integrators.registry import METHODS
from ..models.registry import MODELS
from ..system import MechanicalSystem
from ..user_system import function_of
from .controls import Control, control, listed, rounded
from .requests import FRAMES, MOST_FRAMES, OWN, Opened, dependent
from .why import TITLES, TRIES, WHY, help_of
from .words import METHODS_IN_WORDS

FIRST = "chaplygin-sleigh"
STEPS = {
    "chaplygin-sleigh": 160,
    "rattleback": 4000,
    "rolling-disk": 300,
    "rolling-ball": 80,
    "chaplygin-ball": 160,
    "unicycle": 300,
    "sleigh-n": 300,
    "snakeboard": 500,
}
"""How many steps show what a model does, where 400 do not."""


def catalogue(opened: Opened) -> dict[str, Any]:
    """What the page needs to start: nothing is built for it."""
    systems = [_system(name) for name in MODELS]
    if opened.own is not None:
        systems.insert(0, _own(opened))
    return {
        "systems": systems,
        "methods": [_method(name) for name in METHODS],
        "start": start(opened),
        "limits": {"steps": opened.most_steps, "frames": MOST_FRAMES},
    }


def start(opened: Opened) -> dict[str, Any]:
    """What to show first: the file that was opened, or the sleigh."""
    if opened.saved is not None:
        from .seen import config_of_file

        return {"config": config_of_file(opened.saved), "against": None, "frames": FRAMES, "saved": True}
    if opened.config is None:
        return {"config": example(FIRST), "against": None, "frames": FRAMES}
    config = {name: dict(part) for name, part in opened.config.items()}
    if opened.own is not None:
        config["system"] = {"name": OWN, **{key: value for key, value in opened.own.items() if key != "python"}}
    return {"config": config, "against": None, "frames": FRAMES}


def example(name: str) -> dict[str, Any]:
    """A configuration of a model that shows what it does."""
    model = MODELS[name]
    system = {"name": name, **{key: listed(value) for key, value in _parameters(model).items() if value is not None}}
    run = {"step": model.step, "steps": STEPS.get(name, 400)}
    return {"system": system, "method": dict(model.method), "initial": dict(model.initial), "run": run}


def _parameters(model: Any) -> dict[str, Any]:
    """The parameters with the values of the example, or their defaults."""
    return {**model.parameters, **model.example}


def _system(name: str) -> dict[str, Any]:
    model = MODELS[name]
    parameters = [
        control(f"system.{key}", listed(value), optional=model.parameters[key] is None, help=help_of(name, key))
        for key, value in _parameters(model).items()
    ]
    return {
        "name": name,
        "title": TITLES.get(name, name.replace("-", " ").capitalize()),
        "summary": model.summary,
        "why": WHY.get(name, ""),
        "tries": [{"text": text, "place": place, "value": value} for text, place, value in TRIES.get(name, ())],
        "example": example(name),
        "parameters": parameters,
    }


def _own(opened: Opened) -> dict[str, Any]:
    """The user's own system, with the parameters of the function that makes it."""
    assert opened.own is not None and opened.config is not None
    file, _, attribute = opened.own["python"].rpartition(":")
    make = function_of((opened.folder / file).resolve(), attribute)
    defaults = {
        key: p.default
        for key, p in inspect.signature(make).parameters.items()
        if p.default is not inspect.Parameter.empty
    }
    values = {**defaults, **{key: value for key, value in opened.own.items() if key != "python"}}
    known = {
        key: listed(value)
        for key, value in values.items()
        if isinstance(value, bool | int | float | str | list | tuple)
    }
    config = start(opened)["config"]
    return {
        "name": OWN,
        "title": opened.own["python"],
        "summary": (inspect.getdoc(make) or "A system of your own.").splitlines()[0],
        "why": "",
        "tries": [],
        "example": {**config, "system": {"name": OWN, **known}},
        "parameters": [control(f"system.{key}", value) for key, value in known.items()],
    }


def _method(name: str) -> dict[str, Any]:
    method = METHODS[name]
    options = [
        control(f"method.{key}", value, optional=value is None)
        for key, value in method.options.items()
        if key != "base" and (value is None or isinstance(value, bool | int | float | str))
    ]
    return {"name": name, "summary": METHODS_IN_WORDS[name], "options": options, "claims": []}


# -- what is known once a system is chosen --------------------------------------------------------------------------------------
@lru_cache(maxsize=64)
def entry(name: str, opened: Opened) -> dict[str, Any]:
    """A system of the catalogue with its group, its initial state and the methods that take it."""
    found = next((system for system in catalogue(opened)["systems"] if system["name"] == name), None)
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
    config["initial"] = _spelled_out(job.system, config["initial"])
    return found | {
        "example": config,
        "group": str(job.system.group),
        "initial": _initial(job.system, job.state, config["initial"]),
        "methods": [name for name in METHODS if name not in refused],
        "refused": refused,
    }


def _spelled_out(system: MechanicalSystem, initial: Mapping[str, Any]) -> dict[str, Any]:
    """[initial] with its configuration, the identity if it says none."""
    if "configuration" in initial:
        return dict(initial)
    tables = [_identity(factor) for factor in system.group.factors]
    return {"configuration": tables if len(tables) > 1 else tables[0], **initial}


def _identity(group: Any) -> Any:
    if not isinstance(group, Motions | Rotations):
        return [0.0] * group.dim
    if group.size > 3:
        return np.eye(group.size + isinstance(group, Motions)).tolist()
    table: dict[str, Any] = {"angle": 0.0} if group.size == 2 else {"euler": [0.0, 0.0, 0.0], "convention": "ZYX"}
    return table | ({"position": [0.0] * group.size} if isinstance(group, Motions) else {})


def _initial(system: MechanicalSystem, state: Any, initial: Mapping[str, Any]) -> list[Control]:
    """Controls of the initial state; `dependent` entries of a velocity follow from the constraint."""
    names = [axis.name for axis in axes(system.group)]
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
            made |= {"low": -rounded(size), "high": rounded(size)}
            if kind == "velocity":
                made["dependent"] = dependent(np.asarray(system.rows(state.t, state.g)(state.xi)))
            controls.append(made)
    return controls


def _configuration(place: str, group: Any, value: Any) -> list[Control]:
    if isinstance(value, Mapping):
        turns = {"angle": (-np.pi, np.pi), "euler": (-np.pi, np.pi), "position": (-5.0, 5.0)}
        made = [control(f"{place}.{key}", entry) for key, entry in value.items() if key in turns]
        for shown in made:
            shown["low"], shown["high"] = turns[shown["place"].rpartition(".")[2]]
        return made
    if np.ndim(value) == 1:
        made = [control(place, value, entries=[f"q{k + 1}" for k in range(len(value))])]
        reach = rounded(2 * float(np.abs(value).max()) or 5.0)
        made[0] |= {"low": -reach, "high": reach}
        return made
    return []
