"""Configuration files: read TOML, check it, and build the job that it describes; templates to start from; resumed runs.

A configuration has the sections [system], [method], [initial] and [run], and may have [controls] of the inputs and
tables [[event]]; [fit], tables [[unknown]] and [[column]] say what `dalembert fit` finds from data, and [plan], [goal],
tables [[cost]], [[bound]] and [[obstacle]] what `dalembert plan` looks for. Nothing in it is evaluated as code, except
a system of the user's own: `[system] python = "mysystem.py:make"` runs that file as a script would run, with its own
folder first on the path, and make(**parameters) returns a `System`.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
import math
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from .. import simulation
from ..errors import InvalidInput, UnknownName, match_names, require_name
from ..integrators import METHODS, Integrator, Method
from ..kernels import has_gpu
from ..mechanics import MechanicalSystem, Mechanism, State
from ..models import MODELS, Model
from ..numerics import LOSSES, SEARCHES, is_traced, show
from .dataset import load_run, open_dataset, read_table

Section = Mapping[str, Any]
Progress = Callable[[int, int], None]

SECTIONS = ("system", "method", "initial", "run")
EVENT_DIRECTIONS = {"both": 0, "up": 1, "down": -1}
EXCLUSIVE = ({"run.steps", "run.t_end"}, {"initial.velocity", "initial.momentum"}, {"system.name", "system.python"})
"""Keys of a section that cannot stand beside each other."""
MAX_BYTES = 1 << 23
"""The size of the largest file that is read as a configuration."""
STEER_INSTEAD = "leave the section out, or let make() of your own file return da.with_feedback(system, policy)"
MAX_DEPTH = 16
"""How deep lists and tables may stand in each other."""


@dataclass(frozen=True)
class ValueKind:
    """What a key of a configuration may hold: a test, its words in a message, and the names if these are few."""

    words: str
    accepts: Callable[[Any], bool]
    names: Collection[str] = ()

    def require(self, section: str, key: str, value: Any) -> None:
        """Refuse a value of another kind."""
        if self.names and isinstance(value, str) and value not in self.names:
            raise UnknownName(key if section != "event" else f"{key} of an event", value, self.names)
        if not self.accepts(value):
            raise InvalidInput(f"{key} is {show(value)} in [{section}]; allowed: {self.words}")


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists of numbers, or None for what is no such array."""
    if not isinstance(value, list):
        return () if isinstance(value, int | float) and not isinstance(value, bool) else None
    shapes = {_shape(part) for part in value}
    inner = shapes.pop() if len(shapes) == 1 else None if shapes else ()
    return None if inner is None else (len(value), *inner)


def _is_whole(*values: Any) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _is_duration(value: Any) -> bool:
    pair = [0.0, *value] if isinstance(value, list) else [0.0, value]
    whole = _shape(value) in ((), (2,))
    return whole and all(before < after for before, after in itertools.pairwise(pair))


ANYTHING = ValueKind("numbers, text, true or false, lists, tables", lambda value: True)
TEXT = ValueKind('text, such as "name"', lambda value: isinstance(value, str))
FLAG = ValueKind("true or false", lambda value: isinstance(value, bool))
WHOLE = ValueKind("a whole number", _is_whole)
COUNT = ValueKind("a whole number of at least 1", lambda value: _is_whole(value) and value > 0)
NUMBER = ValueKind("a finite number", lambda value: _shape(value) == ())
STEP = ValueKind(
    "any finite number but 0 (negative steps go back in time)", lambda value: value != 0 and _shape(value) == ()
)
ARRAY = ValueKind("a number, or numbers in rows of one length (not ragged)", lambda value: _shape(value) is not None)
VECTOR = ValueKind("a list of numbers", lambda value: len(_shape(value) or ()) == 1)
VELOCITY = ValueKind(
    "a list of numbers, or a table of names such as {w = 1.0}",
    lambda value: all(map(NUMBER.accepts, value.values())) if isinstance(value, dict) else VECTOR.accepts(value),
)
POINT = ValueKind("a list of numbers, or a table of coordinates", lambda value: isinstance(value, list | dict))
DURATION = ValueKind("a positive number, or [shortest, longest] with 0 < shortest < longest", _is_duration)
WORDS = ValueKind('a list of names, such as ["x", "y"]', lambda v: isinstance(v, list) and all(map(TEXT.accepts, v)))
INDEX = ValueKind(
    "a whole number, or a list of these", lambda v: _is_whole(*v) if isinstance(v, list) else _is_whole(v)
)
BACKEND, QUANTITY, DIRECTION, LOSS, SEARCH = (
    ValueKind(f"one of {', '.join(names)}", TEXT.accepts, names)
    for names in (simulation.BACKENDS, simulation.QUANTITIES, EVENT_DIRECTIONS, LOSSES, SEARCHES)
)
SCHEMA: dict[str, dict[str, ValueKind]] = {
    "system": {"name": TEXT, "python": TEXT},  # and the parameters of the model, see `parameter_kinds`
    "method": {"name": TEXT},
    "initial": {"configuration": POINT, "velocity": VELOCITY, "momentum": VECTOR, "project": FLAG},
    "run": {"step": STEP, "steps": COUNT, "t_end": NUMBER, "t0": NUMBER, "save_every": COUNT, "backend": BACKEND},
    "controls": {},  # the names of the inputs, see `read_signal`
    "event": {"quantity": QUANTITY, "index": INDEX, "value": NUMBER, "direction": DIRECTION}
    | {"stop": FLAG, "name": TEXT},
    "fit": {"time": TEXT, "loss": LOSS, "threshold": NUMBER, "search": SEARCH, "shots": COUNT, "max_runs": COUNT},
    "unknown": {"name": TEXT, "low": NUMBER, "high": NUMBER, "prior": VECTOR},
    "column": {"name": TEXT, "quantity": TEXT, "deviation": NUMBER},
    "plan": {"steps": COUNT, "duration": DURATION, "kinematic": FLAG, "starts": COUNT, "seed": WHOLE}
    | {"free_start": WORDS, "free_goal": WORDS, "periodic": WORDS, "tolerance": NUMBER, "max_iterations": COUNT},
    "goal": {"configuration": POINT, "velocity": VELOCITY, "momentum": VECTOR},  # or names of coordinates and rates
    "cost": {"name": TEXT, "weight": NUMBER, "target": NUMBER, "final": FLAG},
    "bound": {"name": TEXT, "low": NUMBER, "high": NUMBER},
    "obstacle": {"coordinates": WORDS, "centre": VECTOR, "radius": NUMBER},
}
"""The keys of every section. All that is read from a file, from `--set` or from the studio passes through it."""


_type_hints = lru_cache(maxsize=512)(get_type_hints)


def parameter_kinds(entry: Model | Method) -> dict[str, ValueKind]:
    """The kinds of the parameters of a model, or of the options of a method, from the annotations of what builds it."""
    try:
        hints = _type_hints(entry.build)
    except (NameError, TypeError):  # a model of a user's own may be annotated by anything
        hints = {}
    known = {"str": TEXT, "int": WHOLE, "float": NUMBER, "float int": NUMBER}
    kinds = {}
    for key, default in (entry.parameters if isinstance(entry, Model) else entry.options).items():
        hint = hints.get(key)
        parts = {part for part in get_args(hint) or (hint,) if get_origin(part) is not Callable} - {NoneType}
        name = " ".join(sorted(getattr(part, "__name__", "?") for part in parts))
        other = TEXT if isinstance(default, str) and int not in parts else ANYTHING
        kinds[key] = ARRAY if jax.Array in parts else known.get(name, other)
    return kinds


def read_value(value: Any, *place: str) -> Any:
    """A value as plain numbers, text, lists and tables. What is out of range, too deep or no value is refused.

    Whole numbers have 64 bits, as in TOML, and numbers are finite. A None in a table is a key that is not given.
    """
    section, key, *_ = (*(name[:60] for name in place[:2]), "", "")
    where = f"{key} in [{section}]" if key else f"[{section}]"
    if len(place) > MAX_DEPTH:
        raise InvalidInput(f"{where} has lists or tables more than {MAX_DEPTH} deep in each other")
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, Mapping):
        return {str(key): read_value(part, *place, str(key)) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        tables = len(place) == 1 and all(isinstance(part, Mapping) for part in value)  # [[event]]
        return [read_value(part, *place, *([] if tables else [""])) for part in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidInput(
            f"{where} has a whole number beyond 64 bits; allowed: up to {2**63 - 1}, or a number with a point or an "
            "exponent, such as 1e30"
        )
    if isinstance(value, str) and "\0" in value:
        raise InvalidInput(f"{where} has a character 0 in its text, which no name has")
    if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise InvalidInput(f"{where} has {show(value)}; allowed: finite numbers, text, true, false, lists, tables")


def to_toml(config: Mapping[str, Any]) -> str:
    """Write sections of `key = value` lines, which `tomllib` reads back as the same mappings.

    A list of sections is an array of tables. A matrix stays on one line, which TOML libraries do not do.
    """
    return "\n".join(
        f"[[{name}]]\n{_toml_lines(table)}" if isinstance(section, list) else f"[{name}]\n{_toml_lines(table)}"
        for name, section in config.items()
        for table in (section if isinstance(section, list) else [section])
    )


def _toml_lines(section: Section) -> str:
    return "".join(f"{_toml_key(key)} = {_toml_value(entry)}\n" for key, entry in section.items())


def _toml_key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(entry: Any) -> str:
    """One value on one line; floats with all their digits."""
    if isinstance(entry, bool):
        return "true" if entry else "false"
    if isinstance(entry, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in entry.items()) + "}"
    if isinstance(entry, list | tuple):
        return "[" + ", ".join(map(_toml_value, entry)) + "]"
    if isinstance(entry, int | float):
        return str(entry) if isinstance(entry, int) else repr(float(entry))
    return json.dumps(str(entry), ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True)
class Job:
    """What a configuration file asks for, checked and built."""

    names: Mapping[str, str]  # of the system and the method
    system: MechanicalSystem
    integrator: Integrator
    state: State
    run: Section
    config: Mapping[str, Any]  # as given, overrides included
    file: Path | None = None  # of a user's own system
    events: tuple[simulation.Event, ...] = ()
    controls: Any = None  # one row a step, or None

    def require_uncontrolled(self, what: str) -> None:
        """Refuse the section [controls] where a command makes runs without controls."""
        if self.controls is not None:
            raise InvalidInput(f"{what} has no [controls]: {STEER_INSTEAD}")

    @property
    def until(self) -> dict[str, Any]:
        """How far the run goes, for `simulate`: steps, or t_end where steps vary (run["steps"] is an estimate then)."""
        variable = self.integrator.variable_step and "t_end" in self.run
        return {"t_end": self.run["t_end"]} if variable else {"steps": self.run["steps"]}

    @property
    def text(self) -> str:
        """The configuration as TOML."""
        return to_toml(self.config)

    def locate_errors(self) -> AbstractContextManager[None]:
        """A context in which an exception from the user's own file becomes a message with its line."""
        return nullcontext() if self.file is None else locate_errors(self.file)


def load_job(path: str | Path, settings: Sequence[str] = ()) -> Job:
    """Read and check a configuration file; every fault is an `InvalidInput` that names the place.

    `settings` are like "run.step=0.01": they replace what the file says.
    """
    return parse_job(apply_settings(read_config(path), settings), Path(path).parent)


def read_config(path: str | Path) -> dict[str, Any]:
    """The sections of a TOML file, in UTF-8 with or without a byte order mark."""
    try:
        if (size := Path(path).stat().st_size) > MAX_BYTES:
            raise InvalidInput(f"{path} has {size:.3g} bytes; a configuration has at most {MAX_BYTES:.3g}")
        return parse_toml(Path(path).read_text(encoding="utf-8-sig"), str(path))
    except FileNotFoundError as fault:
        message = f"there is no file {path}: `dalembert init NAME` writes a configuration to start from"
        raise InvalidInput(message) from fault
    except UnicodeDecodeError as fault:
        raise InvalidInput(
            f"{path} is not a configuration: it is not text in UTF-8; save it in this encoding"
        ) from fault
    except OSError as fault:
        raise InvalidInput(f"cannot read the configuration {path}: {fault.strerror}") from fault


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The tables of a text in TOML, which messages call `name`."""
    try:
        return tomllib.loads(text)
    except RecursionError as fault:
        raise InvalidInput(f"{name} has lists or tables more than {MAX_DEPTH} deep in each other") from fault
    except ValueError as fault:  # no TOML, or a number of more than 4300 digits
        raise InvalidInput(f"{name} is not valid TOML: {fault}") from fault


def apply_settings(config: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The configuration with `section.key=value` settings; a value that is not TOML is text.

    A setting drops what it excludes (run.t_end drops run.steps); another system or method starts with no parameters.
    `initial.velocity.0=1` changes an entry of a list.
    """
    result: dict[str, Any] = read_value(config)
    for setting in sorted(settings, key=lambda text: not text.partition("=")[0].strip().endswith((".name", ".python"))):
        place, equals, text = setting.partition("=")
        path = [part.strip() for part in place.split(".")]
        if not equals or len(path) < 2 or not all(path):
            raise InvalidInput(f"--set {show(setting)}; allowed: section.key=value, such as run.step=0.01")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        except (RecursionError, ValueError) as fault:
            raise InvalidInput(f"--set {show(setting)} is no value in TOML: {fault}") from fault
        section = result.setdefault(path[0], {})
        if path[1] in ("name", "python") and isinstance(section, dict) and section.get(path[1]) != value:
            section.clear()
        set_value(result, path, value)
    return result


def set_value(config: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the value at a path such as system, inertia, 0, 2 (an entry of a list), and drop what it excludes."""
    holder: Any = config
    for k, key in enumerate(path):
        name = ".".join(path)[:60]
        if isinstance(holder, list) and not (key.isdecimal() and len(key) < 9 and int(key) < len(holder)):
            raise InvalidInput(f"{name}: {key[:60]} is no place in {show(holder)}; allowed: 0 to {len(holder) - 1}")
        if not isinstance(holder, list | dict):
            raise InvalidInput(f"{name}: {'.'.join(path[:k])[:60]} is {show(holder)}, which has no part {key[:60]}")
        place: Any = int(key) if isinstance(holder, list) else key
        if k == len(path) - 1:
            holder[place] = value
        elif isinstance(holder, dict):
            holder = holder.setdefault(place, {})
        else:
            holder = holder[place]
    here = ".".join(path[:2])
    for other in (other for group in EXCLUSIVE if here in group for other in group - {here}):
        config[path[0]].pop(other.partition(".")[2], None)


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is refused, not warned of
def parse_job(
    config: Mapping[str, Any], folder: str | Path = ".", load: Callable[[Path, str], Callable[..., Any]] | None = None
) -> Job:
    """Check and build the job of a configuration given as nested mappings; `folder` is where a user's own file is.

    `load` takes the place of `load_function`, as in `build_system`.
    """
    for name in config:
        if name == "sweep":
            raise InvalidInput(
                "this configuration has a [sweep] of many runs; use `dalembert sweep` (or da.sweep) for it"
            )
        if name not in SCHEMA:
            raise UnknownName("section", name, SCHEMA)
    given = _with_plan(read_value(config))
    for name in SECTIONS:
        if name not in given:
            known = ", ".join(f"[{section}]" for section in SECTIONS)
            raise InvalidInput(f"the section [{name}] is missing; a configuration has {known}")
        if not isinstance(given[name], Mapping):
            raise InvalidInput(f"[{name}] must be a section of key = value lines; given {show(given[name])}")
    parts: dict[str, Any] = {name: given[name] for name in SECTIONS}
    with _name_section("system"):
        name, system, file = build_system(parts["system"], Path(folder), load)
    with _name_section("method"):
        integrator = build_method(parts["method"])
    run = parts["run"]
    with _name_section("run"):
        _require_keys("run", run)
        if "step" not in run:
            raise InvalidInput("[run] needs a step")
        if ("steps" in run) == ("t_end" in run):
            raise InvalidInput("[run] needs exactly one of steps and t_end")
        if run.get("backend") == "cuda" and not has_gpu():
            raise InvalidInput(
                "backend in [run] is cuda, but there is no GPU that answers through CuPy. On a machine with one: "
                "pip install 'dalembert[cuda]'; otherwise leave backend out: auto uses what there is"
            )
    with nullcontext() if file is None else locate_errors(file):
        with _name_section("initial"):
            parts["initial"] = _place_by_names(system, parts["initial"], run)
            if "plan" in given and not {"velocity", "momentum", *system.start_names} & parts["initial"].keys():
                parts["initial"] = {**parts["initial"], "velocity": [0.0] * system.group.dim}
            require_point("initial", system, parts["initial"])
            state = build_state(system, parts["initial"], run)
            if isinstance(parts["initial"].get("velocity"), Mapping):
                parts["initial"] = {**parts["initial"], "velocity": state.xi.tolist()}
        with _name_section("method"):
            integrator.require(system, state, run["step"])
    until, variable = (run.get("steps"), run.get("t_end"), float(state.t)), integrator.variable_step
    steps = simulation.count_steps(run["step"], *until, variable=variable)
    events = parse_events(given.get("event", []), system, state)
    controls = None
    if "controls" in given:
        with _name_section("controls"):
            if variable and "t_end" in run:
                raise InvalidInput(f"{integrator.name} takes steps of its own: with [controls] give run.steps")
            controls = hold_controls(given["controls"], system, float(state.t), run["step"], steps)
        parts["controls"] = given["controls"]
    for section in ("fit", "unknown", "column", "plan", "cost", "bound", "obstacle"):
        require_tables(section, given.get(section, []))
    if events:
        parts["event"] = given["event"]
    names = {"system": name, "method": integrator.name}
    return Job(names, system, integrator, state, {**run, "steps": steps}, parts, file, events, controls)


WAVE = {"amplitude": 0.0, "rate": 0.0, "phase": 0.0, "offset": 0.0}
SIGNALS = (
    "a number; {amplitude, rate, phase, offset}, which is offset + amplitude sin(rate t + phase); [amplitude, rate, "
    "phase]; or {times, values}, lists of one length, where each value holds from its time on"
)


def hold_controls(given: Any, system: MechanicalSystem, t0: float, step: float, steps: int) -> Any:
    """The rows of the inputs, one a step, that signals by their names give in the middle of each step."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"[controls] must be a section of key = value lines; given {show(given)}")
    names = [each.name for each in system.inputs or ()]
    if not names:
        raise InvalidInput("[controls] is given, but the system has no inputs that a run can give")
    signals = {name: read_signal(name, value) for name, value in match_names("input", given, names).items()}
    return simulation.sample_controls(signals, t0, step, steps, system.inputs)


def read_signal(name: str, given: Any) -> float | Callable[[Any], Any]:
    """A constant, or the function of time, that a value of [controls] describes."""
    numbers = given if isinstance(given, Mapping) else {}
    if _shape(given) == ():
        return float(given)
    if _shape(given) == (3,):
        numbers = dict(zip(WAVE, given, strict=False))
    if set(numbers) == {"times", "values"}:
        times, values = (numbers[key] for key in ("times", "values"))
        lists = all(len(_shape(each) or ()) == 1 for each in (times, values)) and len(times) == len(values) > 0
        if lists and np.all(np.diff(times) > 0):
            steps = np.append(0.0, values)
            return lambda t: jnp.asarray(steps)[jnp.searchsorted(jnp.asarray(times), t, side="right")]
    elif numbers and set(numbers) <= set(WAVE) and all(_shape(value) == () for value in numbers.values()):
        wave = WAVE | dict(numbers)
        return lambda t: wave["offset"] + wave["amplitude"] * jnp.sin(wave["rate"] * t + wave["phase"])
    raise InvalidInput(f"{name} is {show(given)} in [controls]; allowed: {SIGNALS}")


def _with_plan(given: dict[str, Any]) -> dict[str, Any]:
    """The sections, with what a [plan] implies: without [initial] it begins at rest, without [run] its steps are it."""
    if "plan" not in given:
        return given
    task = given["plan"]
    if not isinstance(task, Mapping):
        raise InvalidInput(f"[plan] must be a section of key = value lines; given {show(task)}")
    _require_keys("plan", task)
    if missing := [key for key in ("steps", "duration") if key not in task]:
        raise InvalidInput(f"[plan] needs {' and '.join(missing)}")
    longest = task["duration"][-1] if isinstance(task["duration"], list) else task["duration"]
    return {"initial": {}, "run": {"step": longest / task["steps"], "steps": task["steps"]}} | given


def _require_keys(section: str, given: Section, kinds: Mapping[str, ValueKind] | None = None) -> None:
    """Refuse keys that a section does not have, and values of another kind."""
    known = SCHEMA[section] | dict(kinds or {})
    for key, value in given.items():
        if key not in known:
            raise UnknownName(f"key of [{section}]", key, known)
        known[key].require(section, key, value)


def require_tables(name: str, given: Any) -> list[Section]:
    """The tables of a section, [name] or [[name]], with the keys that it has."""
    tables = [given] if isinstance(given, Mapping) else given
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise InvalidInput(f"[{name}] must be sections of key = value lines; given {show(given)}")
    for table in tables:
        _require_keys(name, table)
    return tables


@contextmanager
def _name_section(section: str) -> Iterator[None]:
    """Write into a fault the section in which it stands."""
    try:
        yield
    except InvalidInput as fault:
        fault.place = section
        raise
    except (ArithmeticError, np.linalg.LinAlgError) as fault:
        raise InvalidInput(f"the numbers in [{section}] are out of range: {fault}") from fault


def build_method(section: Section) -> Integrator:
    """The method that a section [method] names, with its options."""
    integrator: Integrator = _build("method", section, METHODS)
    return integrator


def build_system(
    section: Section, folder: Path, load: Callable[[Path, str], Callable[..., Any]] | None = None
) -> tuple[str, MechanicalSystem, Path | None]:
    """The name and the system of a section [system], and the file it came from if it is a user's own.

    Its numbers may be traced by JAX: a sweep builds the systems of its members inside a kernel. `load` takes the place
    of `load_function`, which runs the file every time.
    """
    if "python" not in section:
        return section.get("name", ""), _build("system", section, MODELS), None
    if "name" in section:
        raise InvalidInput("[system] has both name (a model of dalembert) and python (a system of your own): give one")
    parameters = {key: value for key, value in section.items() if key != "python"}
    system, file = load_user_system(section["python"], folder, parameters, load or load_function)
    return section["python"], system, file


def parameter_unit(section: Section, key: str, folder: Path, load: Callable[[Path, str], Callable[..., Any]]) -> str:
    """The unit of a number of [system]: of a model, or of `mass: Annotated[float, "kg"]` in a function of the user."""
    if "python" not in section:
        return MODELS[section["name"]].unit(key)
    file, _, function = section["python"].rpartition(":")
    try:
        hints = get_type_hints(load((folder / file).resolve(), function), include_extras=True)
    except (NameError, TypeError):  # an annotation for a checker alone, or no function
        return ""
    return next((hint for hint in getattr(hints.get(key), "__metadata__", ()) if isinstance(hint, str)), "")


def _build(kind: str, section: Section, registry: Mapping[str, Any]) -> Any:
    """The system or method with these parameters; one of the wrong kind is an `InvalidInput` like any other."""
    if "name" not in section:
        own = ' (or python = "file.py:function" for one of your own)' if kind == "system" else ""
        raise InvalidInput(f"[{kind}] needs a name{own}; allowed: {', '.join(sorted(registry))}")
    TEXT.require(kind, "name", section["name"])
    if section["name"] not in registry:
        raise UnknownName(kind, section["name"], registry)
    entry = registry[section["name"]]
    given = {key: value for key, value in section.items() if key != "name"}
    kinds = parameter_kinds(entry)
    for key, value in given.items():
        if key in kinds and not is_traced(value):
            kinds[key].require(kind, key, value)
    try:
        return entry.make(given)
    except InvalidInput:
        raise
    except (TypeError, ValueError, ArithmeticError) as fault:
        raise InvalidInput(f"'{entry.name}' cannot be built from {show(given)}: {fault}") from fault


def require_point(section: str, system: MechanicalSystem, given: Section, known: Collection[str] | None = None) -> bool:
    """Whether a section is given by names: those of a mechanism, or those `known` of a goal.

    Refuse one that mixes names with others, and an [initial] that has neither a velocity nor a momentum.
    """
    names = dict.fromkeys(system.start_names if known is None else known, NUMBER)
    _require_keys(section, given, names)
    named, others = ([k for k in given if k != "project" and (k in names) is kind] for kind in (True, False))
    if named and others:
        raise InvalidInput(f"[{section}] has names ({', '.join(named)}) and {', '.join(others)}: give one kind")
    both, neither = (({"velocity", "momentum"} & given.keys()) == part for part in ({"velocity", "momentum"}, set()))
    if both or (neither and known is None and (others or not names)):
        raise InvalidInput(f"[{section}] needs either velocity or momentum, and may have a configuration")
    return bool(named)


def _place_by_names(system: MechanicalSystem, given: Section, run: Section) -> Section:
    """An [initial] by the names that `system.state` takes, as configuration and velocity; any other as it is."""
    if system.start_names and isinstance(given.get("velocity"), Mapping):  # the constraints complete them all together
        given = {**{key: at for key, at in given.items() if key != "velocity"}, **given["velocity"]}
    given = {key.replace(" ", "_"): at for key, at in given.items()}
    names = () if system.start_names else (*system.coordinate_names, *system.rate_names)
    known = [name.replace(" ", "_") for name in names if name not in SCHEMA["initial"]]
    if not any(key in known for key in given):
        return given
    require_point("initial", system, given, known)
    state = build_state(system, given, run)
    place, whole = system.group.describe(state.g), not isinstance(state.g, tuple)
    told = [place] if whole else place or [None] * len(state.g)  # None: it has no other form than its entries
    parts = zip(told, (state.g,) if whole else state.g, strict=True)
    written = [np.asarray(part).tolist() if each is None else each for each, part in parts]
    return {"configuration": written[0] if whole else written, "velocity": state.xi.tolist()}


def build_state(system: MechanicalSystem, initial: Section, run: Section) -> State:
    """The state of the sections [initial] and [run], by names where the system has them.

    Its numbers may be traced by JAX, but not what is given by names.
    """
    start: Any = dict(initial)
    if (given := start.pop("configuration", None)) is not None:
        start["g"] = system.group.configuration(given)
    if "velocity" in start:
        start["xi"] = start.pop("velocity")
    return system.state(**start, t=run.get("t0", 0.0))


def parse_events(tables: Any, system: MechanicalSystem, state: State) -> tuple[simulation.Event, ...]:
    """The events of the tables [[event]], checked on the system: quantities of the motion and the values they pass."""
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        given = show(tables)
        raise InvalidInput(f"events are tables [[event]] of key = value lines, with two brackets; given {given}")
    return simulation.check_events([_parse_event(table) for table in tables], system, state)


def _parse_event(table: Section) -> simulation.Event:
    _require_keys("event", table)
    if "quantity" not in table:
        raise InvalidInput(f"an [[event]] needs a quantity; allowed: {', '.join(simulation.QUANTITIES)}")
    kind, given, value = table["quantity"], table.get("index", []), float(table.get("value", 0.0))
    if "index" not in table and kind not in simulation.SCALARS:
        raise InvalidInput(
            f"an [[event]] of {kind} needs an index: 0 for the first component, [row, column] in a matrix"
        )
    index = tuple(given) if isinstance(given, list) else (given,)
    place = f"[{','.join(map(str, index))}]" if index else ""
    name = table.get("name") or f"{kind}{place} = {value:g}"
    direction = EVENT_DIRECTIONS[table.get("direction", "both")]
    return simulation.Event(simulation.Quantity(kind, index, value), direction, table.get("stop", False), name)


MAX_NAME = 300
"""Characters of a path that a message repeats whole."""
USER_MODULE_PREFIX = "_dalembert_user_"


def split_reference(reference: Any, folder: Path, key: str = "python") -> tuple[Path, str]:
    """The file and the function of "file.py:function"."""
    name, _, attribute = str(reference).rpartition(":")
    if not isinstance(reference, str) or not name or not attribute.isidentifier():
        raise InvalidInput(f'{key} is {show(reference)}; allowed: "file.py:function", such as "mysystem.py:make"')
    return (folder / name).resolve(), attribute


def load_user_system(
    reference: Any, folder: Path, parameters: Section, load: Callable[[Path, str], Callable[..., Any]]
) -> tuple[MechanicalSystem, Path]:
    """The system that "file.py:function" makes of the parameters, and the file."""
    path, attribute = split_reference(reference, folder)
    with locate_errors(path):
        make = load(path, attribute)
        signature = inspect.signature(make)
        if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
            for key in parameters:
                require_name(f"parameter of {path.name}:{attribute}", key, signature.parameters)
        try:
            signature.bind(**parameters)
        except TypeError as fault:
            raise InvalidInput(f"{path.name}:{attribute} with the parameters of [system]: {fault}") from fault
        made = make(**parameters)
        system = made.system() if isinstance(made, Mechanism) else made
        _require_system(system, f"{path.name}:{attribute}")
    return system, path


@contextmanager
def locate_errors(path: Path) -> Iterator[None]:
    """Turn what a user's file raises, now or when its functions are traced, into a message with the line at fault."""
    try:
        yield
    except (Exception, SystemExit) as fault:
        cause: BaseException | None = fault.__cause__ if isinstance(fault, InvalidInput) else fault
        while cause is not None:
            what = f"{type(cause).__name__}: {cause}"
            if isinstance(cause, SyntaxError) and cause.filename == str(path):
                text = (cause.text or "").strip()
                raise InvalidInput(f"{path.name}, line {cause.lineno}: {what}\n    {text}") from fault
            frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == str(path)]
            if frames:
                where = f"{path.name}, line {frames[-1].lineno}, in {frames[-1].name}"
                raise InvalidInput(f"{where}: {what}\n    {frames[-1].line}") from fault
            cause = cause.__cause__
        raise


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """The function of this name in a Python file, which is run."""
    if not os.path.isfile(path):  # whereas Path.is_file raises where a name is too long
        shown = path if len(str(path)) < MAX_NAME else show(path.name)
        raise InvalidInput(f"there is no file {shown}; python = ... is relative to the folder of the configuration")
    spec = importlib.util.spec_from_file_location(f"{USER_MODULE_PREFIX}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is not a Python file; allowed: a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        own = {key: entry for key, entry in vars(module).items() if inspect.isfunction(entry)}
        functions = [key for key, entry in own.items() if entry.__module__ == spec.name]  # none that it imports
        raise UnknownName(f"function of {path.name}", name, [key for key in functions if not key.startswith("_")])
    return function


def _require_system(system: Any, name: str) -> None:
    """Refuse what is no system, or one whose functions have the wrong shapes."""
    if not isinstance(system, MechanicalSystem):
        raise InvalidInput(
            f"{name} returned {type(system).__name__}; allowed: a dalembert System, InvariantSystem or Mechanism"
            + (": is there a return at its end?" if system is None else "")
        )
    t, g, xi = jnp.zeros(()), system.group.identity(), jnp.zeros(system.group.dim)
    for function in (system.A, system.b, system.phi):  # a system checks what its functions give
        jax.eval_shape(function, t, g)
    jax.eval_shape(system.L, t, g, xi)
    jax.eval_shape(lambda t, g, xi: system.F(t, g, xi, None), t, g, xi)


OWN_SYSTEM = "own"
TEMPLATE_STEPS = 200


def model_template(name: str, file: str) -> str:
    """The configuration of a model, with all other options as comments."""
    model = MODELS[name]
    system = model.make(model.example)
    head = f"# {model.summary}\n# From `dalembert init {name}`; run it with: dalembert run {file} --plot {name}.png\n"
    count = system.holonomic_constraints
    leaf = f"# the configuration must satisfy {count} holonomic constraint(s); otherwise you are told the nearest one\n"
    count = 0 if model.starts_by_names else count  # names give one that does
    section = _with_defaults({"name": name, **model.example}, model.parameters)
    initial = leaf * bool(count) + _initial_template(system, model.initial)
    driven = [f"# {_toml_key(each.name.replace(' ', '_'))} = 0.0   # {each.unit}\n" for each in system.inputs or ()]
    controls = (
        f"# [controls]   # or {{amplitude = 1.0, rate = 2.0}}, {{times = [...], values = [...]}}\n{''.join(driven)}\n"
    )
    return _template(head, section, model, initial, controls * bool(driven))


def own_system_template(stem: str) -> tuple[str, str]:
    """(TOML, Python) of a system of the user's own."""
    model = MODELS["chaplygin-sleigh"]
    head = (
        f"# A system of your own, which {stem}.py makes; run it with: dalembert run {stem}.toml --plot {stem}.png\n"
        f"# Is its constraint really nonholonomic? dalembert show {stem}.toml\n"
    )
    comment = "# this file is run; other keys here are the parameters of make"
    section = f'python = "{stem}.py:make"   {comment}\nmass = 1.0\na = 0.3\n'
    names = ("turn", "speed", "slip")  # as the Python file calls them
    initial = _initial_template(model.make(model.example), {"velocity": [0.5, -1.0, 0.0]}, names)
    initial += "# or by names, the others are 0: heading = 0.0, turn = 0.5, speed = -1.0, a line each\n"
    python = read_table("texts")["own"]["python"].format(stem=stem)
    return _template(head, section, Model("", model.build, {}, {}, 0.05), initial), python


def _template(head: str, system: str, model: Model, initial: str, controls: str = "") -> str:
    method = METHODS[model.method["name"]]
    t_end = _toml_value(round(TEMPLATE_STEPS * model.step, 12))
    return (
        f"{head}\n[system]\n{system}\n"
        f"[method]   # others: dalembert list methods\n{_with_defaults(model.method, method.options)}\n"
        f"[initial]\n{initial}\n"
        f"{controls}[run]\nstep = {_toml_value(model.step)}\n"
        f"steps = {TEMPLATE_STEPS}   # t_end = {t_end} instead keeps the end where you change the step\n"
        f'# save_every = 1\n# t0 = 0.0\n# backend = "auto"   # or llvm, cuda, xla\n'
    )


def _with_defaults(given: Section, options: Section) -> str:
    """What is given, then what is not, as comments with its default."""
    text = _toml_lines(given)
    for name, default in options.items():
        if name not in given and name != "name":
            known = default is not None and default is not inspect.Parameter.empty
            text += f"# {name} = {_toml_value(default) if known else '...'}\n"
    return text


def _initial_template(system: MechanicalSystem, given: Section, names: Sequence[str] = ()) -> str:
    if system.start_names:
        said = f"# by names, the others follow: {', '.join(system.start_names)}\n"
        return said + _toml_lines(given) + "# or configuration = [...] and velocity = [...]\n"
    group = system.group
    words = ", ".join(names or [axis.name for axis in system.axes()])
    other = "velocity" if "momentum" in given else "momentum"
    text = f"# configurations in {group}; velocities and momenta have components ({words})\n"
    if "configuration" not in given:
        text += f"# configuration = {_toml_value(group.identity_table())}   # the identity, which is the default\n"
    return text + _toml_lines(given) + f"# or {other} = [...]; a momentum may have its components on D alone\n"


RESUME_FREE_KEYS = ("steps", "t_end", "backend")
"""The keys of [run] that may change between a run and its continuation."""


def resume_run(job: Job, path: Path, progress: Progress | None = None) -> simulation.Run:
    """Run the steps of `job` that the file lacks, bit for bit as one long run would.

    A run that is complete, failed or was stopped by an event comes back as it is.
    """
    _require_same_config(job.config, path)
    saved = load_run(path, system=job.system, integrator=job.integrator)
    every = job.run.get("save_every", 1)
    options: dict[str, Any] = {"monitor": True, "backend": job.run.get("backend", "auto"), "events": job.events}
    if "t_end" in job.until:
        return saved if saved.status == "failed" or saved.stopped_by else _resume_to_time(job, saved, every, options)
    done, left = int(saved.final.steps), job.run["steps"] - int(saved.final.steps)
    if left < 0:
        raise InvalidInput(f"{path} has {done} steps already, more than the {job.run['steps']} asked for")
    if left == 0 or saved.status == "failed" or saved.stopped_by:
        return saved
    regular = int(np.count_nonzero(np.asarray(saved.records.steps) % every == 0))
    run = last = replace(saved, records=jax.tree.map(lambda leaf: leaf[:regular], saved.records))
    pieces = [(ahead, ahead)] if (ahead := min(left, -done % every)) else []  # up to the next step that is saved
    pieces += [(left - ahead, every)] if left > ahead else []
    for steps, interval in pieces:
        options |= {"steps": steps, "save_every": interval, "progress": progress if interval == every else None}
        begin = int(last.final.steps)
        options["controls"] = None if job.controls is None else job.controls[begin : begin + steps]
        last = simulation.simulate(job.system, job.integrator, last, step=job.run["step"], **options)
        run = join_runs(run, last)
        if last.status != "ok" or last.stopped_by:
            break
    return run


def _resume_to_time(job: Job, saved: simulation.Run, every: int, options: Mapping[str, Any]) -> simulation.Run:
    """Run the steps up to t_end that a run with variable steps lacks: save all, then keep every `every`-th."""
    h, t_end = job.run["step"], job.until["t_end"]
    if np.sign(h) * (float(saved.t[-1]) - t_end) > 1e-9 * abs(h):
        raise InvalidInput(f"the run is at t = {float(saved.t[-1]):.17g} already, beyond the t_end = {t_end} asked for")
    following = simulation.simulate(job.system, job.integrator, saved, step=h, steps=1)
    if following.status == "ok" and np.sign(h) * (float(following.t[-1]) - t_end) > 1e-9 * abs(h):
        return saved
    run = join_runs(saved, simulation.simulate(job.system, job.integrator, saved, step=h, t_end=t_end, **options))
    steps = np.asarray(run.records.steps)
    kept = (steps % every == 0) | (np.arange(len(steps)) == len(steps) - 1)
    return replace(run, records=jax.tree.map(lambda leaf: leaf[kept], run.records), every=every)


def join_runs(first: simulation.Run, second: simulation.Run) -> simulation.Run:
    """One run of a run and its continuation, whose first record is the last state of the run."""
    records = jax.tree.map(lambda a, b: np.concatenate([a, b[1:]]), first.records, second.records)
    events = simulation.join_crossings(first.events, second.events)
    held = second.controls if second.controls is None else np.concatenate([first.controls, second.controls])
    every = None if first.every is None or second.every is None else max(first.every, second.every)
    return replace(second, records=records, events=events, every=every, controls=held)


def _require_same_config(config: Mapping[str, Any], path: Path) -> None:
    """Refuse to continue a run of something else."""
    text = open_dataset(path).attrs.get("config")
    if text is None:
        raise InvalidInput(f"{path} was not written by `dalembert run`: it holds no configuration to go on with")
    saved = tomllib.loads(text)
    tables = {"event": {"tables": config.get("event", [])}}
    saved["event"] = {"tables": saved.get("event", [])}
    for section, entries in ({"controls": {}} | dict(config) | tables).items():
        mine, theirs = dict(entries), dict(saved.get(section, {}))
        for key in sorted(mine.keys() | theirs.keys()):
            if (section != "run" or key not in RESUME_FREE_KEYS) and mine.get(key) != theirs.get(key):
                raise InvalidInput(
                    f"{path} holds another run: its {section}.{key} is {theirs.get(key)!r}, here it is "
                    f"{mine.get(key)!r}; only {', '.join(f'run.{name}' for name in RESUME_FREE_KEYS)} may change"
                )
