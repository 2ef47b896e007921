"""Configuration files: TOML in, a checked job out.

Nothing in a file is evaluated as code, but for a user's own system: `[system] python = "mysystem.py:make"` runs that file.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._toml import dumps
from .coordinates import configuration
from .errors import InvalidInput, UnknownName
from .event_tables import events_of
from .events import Event
from .integrators import Integrator
from .integrators.registry import METHODS
from .models.registry import MODELS
from .schedule import BACKENDS, count_steps
from .simulate import steps_until
from .system import MechanicalSystem, State
from .user_system import blaming, user_system

SECTIONS = ("system", "method", "initial", "run")
INITIAL = ("configuration", "velocity", "momentum")
RUN = ("step", "steps", "t_end", "t0", "save_every", "backend")
EXCLUSIVE = ({"run.steps", "run.t_end"}, {"initial.velocity", "initial.momentum"}, {"system.name", "system.python"})


@dataclass(frozen=True)
class Job:
    """What a configuration file asks for, checked and built."""

    names: Mapping[str, str]  # of the system and the method
    system: MechanicalSystem
    integrator: Integrator
    state: State
    run: Mapping[str, Any]
    config: Mapping[str, Any]  # as given, overrides included
    file: Path | None = None  # of a user's own system
    events: tuple[Event, ...] = ()

    @property
    def text(self) -> str:
        """The configuration as TOML."""
        return dumps(self.config)

    def blaming(self):
        """A context in which an exception from the user's own file becomes a message with its line."""
        return nullcontext() if self.file is None else blaming(self.file)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read and check a configuration file; every fault is an `InvalidInput` that names the place.

    `overrides` are like "run.step=0.01": they replace what the file says.
    """
    return parse(override(read(path), overrides), Path(path).parent)


def read(path: str | Path) -> dict[str, Any]:
    """The sections of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as fault:
        raise InvalidInput(f"{path} is not valid TOML: {fault}") from fault
    except FileNotFoundError as fault:
        raise InvalidInput(
            f"there is no file {path}: `dalembert init NAME` writes a configuration to start from"
        ) from fault
    except UnicodeDecodeError as fault:
        raise InvalidInput(f"{path} is not a configuration: it is not text (in UTF-8)") from fault
    except OSError as fault:
        raise InvalidInput(f"cannot read the configuration {path}: {fault.strerror}") from fault


def override(config: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The configuration with `section.key=value` settings; a value that is not TOML is text.

    A setting drops what it excludes (run.t_end drops run.steps), and another system or method starts with no parameters.
    """
    result = {name: dict(section) if isinstance(section, Mapping) else section for name, section in config.items()}
    for setting in sorted(settings, key=lambda text: not text.partition("=")[0].strip().endswith((".name", ".python"))):
        place, equals, text = setting.partition("=")
        path = [part.strip() for part in place.split(".")]
        if not equals or len(path) < 2 or not all(path):
            raise InvalidInput(f"--set {setting!r}; allowed: section.key=value, such as run.step=0.01")
        section = result.setdefault(path[0], {})
        if not isinstance(section, dict):
            raise InvalidInput(f"[{path[0]}] must be a section of key = value lines; given {section!r}")
        _set(section, path, _value(text))
    return result


def _set(section: dict[str, Any], path: list[str], value: Any) -> None:
    name = ".".join(path[:2])
    for group in EXCLUSIVE:
        if name in group:
            for other in group - {name}:
                section.pop(other.partition(".")[2], None)
    if path[1] in ("name", "python") and section.get(path[1]) != value:
        section.clear()
    for key in path[1:-1]:
        inner = section.get(key)
        section[key] = dict(inner) if isinstance(inner, Mapping) else {}
        section = section[key]
    section[path[-1]] = value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def parse(config: Mapping[str, Any], folder: str | Path = ".") -> Job:
    """Check and build the job of a configuration given as nested mappings; `folder` is where a user's own file is."""
    for name in config:
        if name == "sweep":
            raise InvalidInput(
                "this configuration has a [sweep] of many runs; use `dalembert sweep` (or da.sweep) for it"
            )
        if name not in (*SECTIONS, "event"):
            raise UnknownName("section", name, (*SECTIONS, "event"))
    parts = {name: _section(config, name) for name in SECTIONS}
    with _placed("system"):
        name, system, file = _system(parts["system"], Path(folder))
    with _placed("method"):
        integrator = method_of(parts["method"])
    with _placed("run"):
        run = _run(parts["run"])
    with nullcontext() if file is None else blaming(file):
        with _placed("initial"):
            state = _state(system, parts["initial"], run)
        with _placed("method"):
            integrator.require(system, state, run["step"])
    if integrator.clock and "t_end" in run:
        steps = steps_until(system, integrator, state, step=run["step"], t_end=run["t_end"])
    else:
        steps = count_steps(run["step"], run.get("steps"), run.get("t_end"), float(state.t))
    events = events_of(config.get("event", []), system, state)
    names = {"system": name, "method": integrator.name}
    kept = parts | ({"event": config["event"]} if events else {})
    return Job(names, system, integrator, state, {**run, "steps": steps}, kept, file, events)


@contextmanager
def _placed(section: str) -> Iterator[None]:
    """Let a fault know the section in which it stands."""
    try:
        yield
    except InvalidInput as fault:
        fault.place = section
        raise


def method_of(section: Mapping[str, Any]) -> Integrator:
    """The method that a section [method] names, with its options."""
    return _made(_named("method", section, METHODS), _rest(section))


def _system(section: Mapping[str, Any], folder: Path) -> tuple[str, MechanicalSystem, Path | None]:
    """The name, the system, and the file it came from if it is a user's own."""
    if "python" not in section:
        model = _named("system", section, MODELS)
        return model.name, _made(model, _rest(section)), None
    if "name" in section:
        raise InvalidInput("[system] has both name (a model of dalembert) and python (a system of your own): give one")
    parameters = _rest(section)
    system, file = user_system(parameters.pop("python"), folder, parameters)
    return section["python"], system, file


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
        own = ' (or python = "file.py:function" for one of your own)' if kind == "system" else ""
        raise InvalidInput(f"[{kind}] needs a name{own}; allowed: {', '.join(sorted(registry))}")
    if section["name"] not in registry:
        raise UnknownName(kind, section["name"], registry)
    return registry[section["name"]]


def _made(entry: Any, given: dict[str, Any]) -> Any:
    """The system or method with these parameters; one of the wrong kind is an `InvalidInput` like any other."""
    try:
        return entry.make(given)
    except InvalidInput:
        raise
    except (TypeError, ValueError) as fault:
        raise InvalidInput(f"'{entry.name}' cannot be built from {given}: {fault}") from fault


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
        if not isinstance(initial[key], list | Mapping):
            raise InvalidInput(f"{key} in [initial] is {initial[key]!r}; allowed: a list of numbers")
        entries = initial[key] if len(system.group.factors) > 1 and key == "configuration" else [initial[key]]
        for entry in entries:
            if not isinstance(entry, Mapping):
                _finite(key, entry)
    if ("velocity" in initial) == ("momentum" in initial):
        raise InvalidInput("[initial] needs either velocity or momentum, and may have a configuration")
    given = initial.get("configuration")
    g = None if given is None else configuration(system.group, given)
    return system.state(g, initial.get("velocity"), momentum=initial.get("momentum"), t=run.get("t0", 0.0))


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
