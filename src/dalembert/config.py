"""Configuration files: TOML in, a checked job out. Nothing in a file is ever evaluated as code."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InvalidInput, UnknownName
from .integrators import Integrator
from .integrators.registry import METHODS
from .models.registry import MODELS
from .simulate import BACKENDS, count_steps
from .system import MechanicalSystem, State

SECTIONS = ("system", "method", "initial", "run")
INITIAL = ("configuration", "velocity", "momentum")
RUN = ("step", "steps", "t_end", "t0", "save_every", "backend")


@dataclass(frozen=True)
class Job:
    """What a configuration file asks for, checked and built."""

    names: Mapping[str, str]  # of the system and the method
    system: MechanicalSystem
    integrator: Integrator
    state: State
    run: Mapping[str, Any]

def load(path: str | Path) -> Job:
    """Read and check a configuration file; every fault is an `InvalidInput` that names the place."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise InvalidInput(f"cannot read the configuration {path}: {fault}") from fault
    try:
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as fault:
        raise InvalidInput(f"{path} is not valid TOML: {fault}") from fault


def parse(config: Mapping[str, Any]) -> Job:
    """Check and build the job of a configuration given as nested mappings."""
    for name in config:
        if name not in SECTIONS:
            raise UnknownName("section", name, SECTIONS)
    parts = {name: _section(config, name) for name in SECTIONS}
    model = _named("system", parts["system"], MODELS)
    method = _named("method", parts["method"], METHODS)
    system = model.make(_rest(parts["system"]))
    integrator = method.make(_rest(parts["method"]))
    run = _run(parts["run"])
    state = _state(system, parts["initial"], run)
    integrator.require(system, state, run["step"])
    steps = count_steps(run["step"], run.get("steps"), run.get("t_end"), float(state.t))
    return Job({"system": model.name, "method": method.name}, system, integrator, state, {**run, "steps": steps})


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if name not in config:
        raise InvalidInput(
            f"the section [{name}] is missing; a configuration has {', '.join(f'[{s}]' for s in SECTIONS)}"
        )
    if not isinstance(config[name], Mapping):
        raise InvalidInput(f"[{name}] must be a section of key = value lines; given {config[name]!r}")
    return config[name]


def _named(kind: str, section: Mapping[str, Any], registry: Mapping[str, Any]):
    if "name" not in section:
        raise InvalidInput(f"[{kind}] needs a name; allowed: {', '.join(sorted(registry))}")
    if section["name"] not in registry:
        raise UnknownName(kind, section["name"], registry)
    return registry[section["name"]]


def _rest(section: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in section.items():
        _finite(key, value)
    return {key: value for key, value in section.items() if key != "name"}


def _finite(key: str, value: Any) -> None:
    """Refuse NaN, infinities and ragged or non-numeric lists before they reach any array."""
    if isinstance(value, list):
        for entry in value:
            if not isinstance(entry, int | float | list) or isinstance(entry, bool):
                raise InvalidInput(f"{key} holds {entry!r}; allowed: numbers")
            _finite(key, entry)
        if len({len(e) if isinstance(e, list) else None for e in value}) > 1:
            raise InvalidInput(f"{key} is ragged: its rows differ in length: {value}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{key} is {value}; allowed: finite numbers")


def _state(system: MechanicalSystem, initial: Mapping[str, Any], run: Mapping[str, Any]) -> State:
    for key in initial:
        if key not in INITIAL:
            raise UnknownName("key of [initial]", key, INITIAL)
        _finite(key, initial[key])
    if ("velocity" in initial) == ("momentum" in initial):
        raise InvalidInput("[initial] needs either velocity or momentum, and may have a configuration")
    configuration = initial.get("configuration")
    return system.state(configuration, initial.get("velocity"), momentum=initial.get("momentum"), t=run.get("t0", 0.0))


def _run(section: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in section.items():
        if key not in RUN:
            raise UnknownName("key of [run]", key, RUN)
        if key != "backend" and (
            isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
        ):
            raise InvalidInput(f"{key} in [run] is {value!r}; allowed: a finite number")
    if "step" not in section:
        raise InvalidInput("[run] needs a step")
    if section["step"] == 0:
        raise InvalidInput("step is 0; allowed: any finite number but 0 (negative steps go back in time)")
    if ("steps" in section) == ("t_end" in section):
        raise InvalidInput("[run] needs exactly one of steps and t_end")
    for key in ("steps", "save_every"):
        if key in section and (not isinstance(section[key], int) or section[key] < 1):
            raise InvalidInput(f"{key} is {section[key]!r}; allowed: a whole number of at least 1")
    if section.get("backend", "auto") not in BACKENDS:
        raise UnknownName("backend", section["backend"], BACKENDS)
    return dict(section)
