"""Writing TOML: what `tomllib` reads back as the same mappings.

The tables [[event]] of a configuration: quantities of the motion and the values they pass, by names and numbers.

A user's own system: `python = "mysystem.py:make"` in a configuration, where make(**parameters) returns a `System`.

The file is run as a script would be, with its own folder first on the path. Nothing else in a configuration is executed.

Configuration files: TOML in, a checked job out.

Nothing in a file is evaluated as code, but for a user's own system: `[system] python = "mysystem.py:make"` runs that file.

Configurations to start from: commented TOML for every model, and a file for a system of one's own.

Going on with a run that a file holds, so that the file becomes that of the one long run, bit for bit.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, UnknownName
from ..groups import Group, Motions, Rotations, axes, configuration
from ..integrators import METHODS, Integrator, Reference
from ..mechanics import MechanicalSystem, State
from ..models import MODELS, Model
from ..simulation import (
    BACKENDS,
    QUANTITIES,
    SCALARS,
    Event,
    Quantity,
    Run,
    count_steps,
    join_crossings,
    check_events,
    simulate,
    steps_until,
)
from .dataset import load_run, open_dataset


def to_toml(config: Mapping[str, Any]) -> str:
    """Sections of `key = value` lines; a list of these is an array of tables."""
    return "\n".join(
        f"[[{name}]]\n{_toml_lines(table)}" if many else f"[{name}]\n{_toml_lines(table)}"
        for name, section in config.items()
        for many in [isinstance(section, list)]
        for table in (section if many else [section])
    )


def _toml_lines(section: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_toml_value(entry)}\n" for key, entry in section.items())


def _toml_value(entry: Any) -> str:
    """One value on one line; floats with all their digits."""
    if isinstance(entry, bool):
        return "true" if entry else "false"
    if isinstance(entry, Mapping):
        return "{" + ", ".join(f"{key} = {_toml_value(item)}" for key, item in entry.items()) + "}"
    if isinstance(entry, list | tuple):
        return "[" + ", ".join(map(_toml_value, entry)) + "]"
    if isinstance(entry, int):
        return str(entry)
    if isinstance(entry, float):
        return repr(float(entry))
    return json.dumps(str(entry), ensure_ascii=False).replace("\x7f", "\\u007f")


EVENT_KEYS = ("quantity", "index", "value", "direction", "stop", "name")
EVENT_DIRECTIONS = {"both": 0, "up": 1, "down": -1}


def parse_events(tables: Any, system: MechanicalSystem, state: State) -> tuple[Event, ...]:
    """The events of a configuration, checked on its system."""
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise InvalidInput(f"events are tables [[event]] of key = value lines, with two brackets; given {tables!r}")
    return check_events([_event(table) for table in tables], system, state)


def _event(table: Mapping[str, Any]) -> Event:
    for key in table:
        if key not in EVENT_KEYS:
            raise UnknownName("key of [[event]]", key, EVENT_KEYS)
    if "quantity" not in table:
        raise InvalidInput(f"an [[event]] needs a quantity; allowed: {', '.join(QUANTITIES)}")
    if table["quantity"] not in QUANTITIES:
        raise UnknownName("quantity", table["quantity"], QUANTITIES)
    direction, stop, name = table.get("direction", "both"), table.get("stop", False), table.get("name", "")
    if direction not in EVENT_DIRECTIONS:
        raise UnknownName("direction of an event", direction, EVENT_DIRECTIONS)
    if not isinstance(stop, bool) or not isinstance(name, str):
        raise InvalidInput(f"stop is {stop!r} and name is {name!r} in an [[event]]; allowed: true or false, and text")
    quantity = Quantity(table["quantity"], _index(table), _event_value(table))
    return Event(quantity, EVENT_DIRECTIONS[direction], stop, name or _name(quantity))


def _index(table: Mapping[str, Any]) -> tuple[int, ...]:
    if "index" not in table and table["quantity"] not in SCALARS:
        raise InvalidInput(
            f"an [[event]] of {table['quantity']} needs an index: 0 for the first component, [row, column] in a matrix"
        )
    given = table.get("index", [])
    index = given if isinstance(given, list) else [given]
    if not all(isinstance(k, int) and not isinstance(k, bool) for k in index):
        raise InvalidInput(f"index in an [[event]] is {given!r}; allowed: a whole number, or a list of these")
    return tuple(index)


def _event_value(table: Mapping[str, Any]) -> float:
    value = table.get("value", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"value in an [[event]] is {value!r}; allowed: a finite number")
    return float(value)


def _name(quantity: Quantity) -> str:
    index = ",".join(map(str, quantity.index))
    return f"{quantity.kind}{f'[{index}]' if index else ''} = {quantity.value:g}"


PREFIX = "_dalembert_user_"


def load_user_system(reference: Any, folder: Path, parameters: Mapping[str, Any]) -> tuple[MechanicalSystem, Path]:
    """The system that "file.py:function" makes of the parameters, and the file."""
    name, _, attribute = str(reference).rpartition(":")
    if not isinstance(reference, str) or not name or not attribute.isidentifier():
        raise InvalidInput(f'python is {reference!r}; allowed: "file.py:function", such as "mysystem.py:make"')
    path = (folder / name).resolve()
    with locate_errors(path):
        make = load_function(path, attribute)
        _require_parameters(make, f"{path.name}:{attribute}", parameters)
        system = make(**parameters)
        _require_system(system, f"{path.name}:{attribute}", path)
    return system, path


@contextmanager
def locate_errors(path: Path) -> Iterator[None]:
    """Turn what a user's file raises, now or when its functions are traced, into a message with the line at fault."""
    try:
        yield
    except InvalidInput:
        raise
    except (Exception, SystemExit) as fault:
        message = explain_error(fault, path)
        if message is None:
            raise
        raise InvalidInput(message) from fault


def explain_error(fault: BaseException, path: Path) -> str | None:
    """Where in the user's file the exception came from, or None if it did not come from there."""
    what = f"{type(fault).__name__}: {fault}"
    if isinstance(fault, SyntaxError) and fault.filename == str(path):
        return f"{path.name}, line {fault.lineno}: {what}\n    {(fault.text or '').strip()}"
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == str(path)]
    if not frames:
        return None
    last = frames[-1]
    return f"{path.name}, line {last.lineno}, in {last.name}: {what}\n    {last.line}"


def load_function(path: Path, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}; python = ... is relative to the folder of the configuration")
    spec = importlib.util.spec_from_file_location(f"{PREFIX}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is not a Python file; allowed: a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    found = {key: entry for key, entry in vars(module).items() if inspect.isfunction(entry) and not key.startswith("_")}
    if not callable(getattr(module, name, None)):
        raise UnknownName(f"function of {path.name}", name, found)
    return getattr(module, name)


def _require_parameters(make: Callable, name: str, given: Mapping[str, Any]) -> None:
    known = inspect.signature(make).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        for key in given:
            if key not in known:
                raise UnknownName(f"parameter of {name}", key, known)
    try:
        inspect.signature(make).bind(**given)
    except TypeError as fault:
        raise InvalidInput(f"{name} with the parameters of [system]: {fault}") from fault


def _require_system(system: Any, name: str, path: Path) -> None:
    """Refuse what is no system, or one whose functions have the wrong shapes."""
    if not isinstance(system, MechanicalSystem):
        raise InvalidInput(
            f"{name} returned {type(system).__name__}; allowed: a dalembert System (or InvariantSystem)"
            + (": is there a return at its end?" if system is None else "")
        )
    g, xi, t = system.group.identity(), jnp.zeros(system.group.dim), jnp.zeros(())
    functions: dict[str, tuple[Callable, tuple, tuple | None]] = {
        "lagrangian(t, g, xi, p)": (system.L, (t, g, xi), ()),
        "constraint(t, g, p)": (system.A, (t, g), None),
        "drift(t, g, p)": (system.b, (t, g), None),
        "holonomic(t, g, p)": (system.phi, (t, g), None),
        "force(t, g, xi, u, p)": (lambda t, g, xi: system.F(t, g, xi, None), (t, g, xi), xi.shape),
    }
    for call, (function, point, wanted) in functions.items():
        try:
            shape = jax.eval_shape(function, *point).shape
        except TypeError as fault:
            if explain_error(fault, path) is not None:
                raise
            raise InvalidInput(f"{name}: {call}: {fault}") from fault  # such as the wrong number of arguments
        if wanted is not None and shape != wanted:
            what = f"{wanted[0]} numbers" if wanted else "one number"
            raise InvalidInput(f"{name}: {call} gave an array of shape {shape}; allowed: {what}")


SECTIONS = ("system", "method", "initial", "run")
INITIAL_KEYS = ("configuration", "velocity", "momentum")
RUN_KEYS = ("step", "steps", "t_end", "t0", "save_every", "backend")
EXCLUSIVE_KEYS = ({"run.steps", "run.t_end"}, {"initial.velocity", "initial.momentum"}, {"system.name", "system.python"})


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
        return to_toml(self.config)

    def locate_errors(self):
        """A context in which an exception from the user's own file becomes a message with its line."""
        return nullcontext() if self.file is None else locate_errors(self.file)


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read and check a configuration file; every fault is an `InvalidInput` that names the place.

    `overrides` are like "run.step=0.01": they replace what the file says.
    """
    return parse_job(apply_settings(read_config(path), overrides), Path(path).parent)


def read_config(path: str | Path) -> dict[str, Any]:
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


def apply_settings(config: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
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
    for group in EXCLUSIVE_KEYS:
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


def parse_job(config: Mapping[str, Any], folder: str | Path = ".") -> Job:
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
        name, system, file = build_system(parts["system"], Path(folder))
    with _placed("method"):
        integrator = build_method(parts["method"])
    with _placed("run"):
        run = _run(parts["run"])
    with nullcontext() if file is None else locate_errors(file):
        with _placed("initial"):
            state = build_state(system, parts["initial"], run)
        with _placed("method"):
            integrator.require(system, state, run["step"])
    if integrator.clock and "t_end" in run:
        steps = steps_until(system, integrator, state, step=run["step"], t_end=run["t_end"])
    else:
        steps = count_steps(run["step"], run.get("steps"), run.get("t_end"), float(state.t))
    events = parse_events(config.get("event", []), system, state)
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


def build_method(section: Mapping[str, Any]) -> Integrator:
    """The method that a section [method] names, with its options."""
    return _made(_named("method", section, METHODS), _rest(section))


def build_system(section: Mapping[str, Any], folder: Path) -> tuple[str, MechanicalSystem, Path | None]:
    """The name, the system, and the file it came from if it is a user's own."""
    if "python" not in section:
        model = _named("system", section, MODELS)
        return model.name, _made(model, _rest(section)), None
    if "name" in section:
        raise InvalidInput("[system] has both name (a model of dalembert) and python (a system of your own): give one")
    parameters = _rest(section)
    system, file = load_user_system(parameters.pop("python"), folder, parameters)
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


def build_state(system: MechanicalSystem, initial: Mapping[str, Any], run: Mapping[str, Any]) -> State:
    for key in initial:
        if key not in INITIAL_KEYS:
            raise UnknownName("key of [initial]", key, INITIAL_KEYS)
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
        if key not in RUN_KEYS:
            raise UnknownName("key of [run]", key, RUN_KEYS)
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


OWN_SYSTEM = "own"
TEMPLATE_STEPS = 200

OWN_PYTHON = '''"""A system of your own: change it, and run it with `dalembert run {stem}.toml`."""

import jax.numpy as jnp

import dalembert as da


def make(mass=1.0, inertia=0.5, a=0.3):
    """A sleigh: `mass` at distance `a` ahead of a blade that does not slip sideways. Parameters come from [system]."""
    tensor = jnp.array([[inertia + mass * a**2, 0.0, mass * a], [0.0, mass, 0.0], [mass * a, 0.0, mass]])
    return da.System(
        group=da.SE2(),  # configurations g: (theta, x, y); velocities xi = (w, v1, v2) in the body
        lagrangian=lambda t, g, xi, p: 0.5 * xi @ p @ xi,
        constraint=lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]),  # A(t, g) with A xi = 0: here v2 = 0
        # holonomic=lambda t, g, p: g[:1, 2] - 1.0,  # phi(t, g) = 0 on positions, if there is such a constraint: here x = 1
        parameters=tensor,
    )
'''


def model_template(name: str, file: str) -> str:
    """The configuration of a model, with what else could be said in it as comments."""
    model = MODELS[name]
    system = model.make(model.example)
    head = f"# {model.summary}\n# From `dalembert init {name}`; run it with: dalembert run {file} --plot {name}.png\n"
    return _sections(
        head,
        _with_defaults({"name": name, **model.example}, model.parameters),
        model,
        _leaf(system) + _initial(system.group, model.initial),
    )


def own_system_template(stem: str) -> tuple[str, str]:
    """(TOML, Python) of a system of the user's own."""
    model = MODELS["chaplygin-sleigh"]
    head = (
        f"# A system of your own, which {stem}.py makes; run it with: dalembert run {stem}.toml --plot {stem}.png\n"
        f"# Is its constraint really nonholonomic? dalembert show {stem}.toml\n"
    )
    section = f'python = "{stem}.py:make"   # this file is run; other keys here are the parameters of make\nmass = 1.0\na = 0.3\n'
    initial = _initial(model.make(model.example).group, {"velocity": [0.5, -1.0, 0.0]})
    plain = Model("", model.build, {}, {}, 0.05)
    return _sections(head, section, plain, initial), OWN_PYTHON.format(stem=stem)


def _sections(head: str, system: str, model: Model, initial: str) -> str:
    method = METHODS[model.method["name"]]
    return (
        f"{head}\n[system]\n{system}\n"
        f"[method]   # others: dalembert list methods\n{_with_defaults(model.method, method.options)}\n"
        f"[initial]\n{initial}\n"
        f"[run]\nstep = {_toml_value(model.step)}\nsteps = {TEMPLATE_STEPS}   # or t_end = {_toml_value(round(TEMPLATE_STEPS * model.step, 12))}\n"
        f'# save_every = 1\n# t0 = 0.0\n# backend = "auto"   # or llvm, cuda, xla\n'
    )


def _with_defaults(given: Mapping[str, Any], all_of_them: Mapping[str, Any]) -> str:
    """What is given, then what is not, as comments with its default."""
    text = _toml_lines(given)
    for name, default in all_of_them.items():
        if name not in given and name != "name":
            known = default is not None and default is not inspect.Parameter.empty
            text += f"# {name} = {_toml_value(default)}\n" if known else f"# {name} = ...\n"
    return text


def _leaf(system: MechanicalSystem) -> str:
    """What holonomic constraints ask of a configuration."""
    count = system.holonomic_constraints
    return (
        f"# the configuration must satisfy {count} holonomic constraint(s); if it does not, you are told the nearest\n"
        if count
        else ""
    )


def _initial(group: Group, given: Mapping[str, Any]) -> str:
    names = ", ".join(axis.name for axis in axes(group))
    other = "velocity" if "momentum" in given else "momentum"
    text = f"# configurations in {group}; velocities and momenta have components ({names})\n"
    if "configuration" not in given:
        text += f"# configuration = {_toml_value(_identity(group))}   # the identity, which is the default\n"
    return text + _toml_lines(given) + f"# or {other} = [...]; a momentum may have its components on D alone\n"


def _identity(group: Group) -> Any:
    if len(group.factors) > 1:
        return [_identity(factor) for factor in group.factors]
    if not isinstance(group, Motions | Rotations):
        return [0.0] * group.dim
    attitude: dict[int, dict[str, Any]] = {2: {"angle": 0.0}, 3: {"quaternion": [1.0, 0.0, 0.0, 0.0]}}
    identity = [[float(i == j) for j in range(group.size)] for i in range(group.size)]
    table = dict(attitude.get(group.size, {"matrix": identity}))
    return table | ({"position": [0.0] * group.size} if isinstance(group, Motions) else {})


RESUME_FREE_KEYS = ("steps", "t_end", "backend")
"""What a configuration may change between a run and its continuation."""


def resume_run(job: Job, path: Path, progress: Callable[[int, int], None] | None = None) -> Run:
    """The run of `job` with what the file has of it already; a run that is complete, or failed, comes back as it is."""
    if isinstance(job.integrator, Reference):
        raise InvalidInput("the reference method carries nothing from step to step: run it anew, without --resume")
    _require_same(job.config, path)
    before = load_run(path, system=job.system, integrator=job.integrator)
    every = job.run.get("save_every", 1)
    kept = int(np.count_nonzero(np.asarray(before.records.steps) % every == 0))
    before = replace(before, records=jax.tree.map(lambda leaf: leaf[:kept], before.records))
    left = job.run["steps"] - int(before.final.steps)
    if left < 0:
        raise InvalidInput(
            f"{path} has {int(before.final.steps)} steps already, more than the {job.run['steps']} asked for"
        )
    if left == 0 or before.status != "ok" or before.stopped_by:
        return load_run(path, system=job.system, integrator=job.integrator)
    return join_runs(before, _onward(job, before, left, every, progress))


def _onward(job: Job, before: Run, left: int, every: int, progress) -> Run:
    """The missing steps, saved at multiples of `every` from the first start."""
    options: dict[str, Any] = {"step": job.run["step"], "monitor": True, "backend": job.run.get("backend", "auto")}
    options["events"] = job.events
    ahead = min(left, -int(before.final.steps) % every)
    if not ahead:
        return simulate(job.system, job.integrator, before, steps=left, save_every=every, progress=progress, **options)
    part = simulate(job.system, job.integrator, before, steps=ahead, save_every=ahead, **options)
    if ahead == left or part.interrupted or part.status != "ok" or part.stopped_by:
        return part
    rest = simulate(
        job.system, job.integrator, part, steps=left - ahead, save_every=every, progress=progress, **options
    )
    return join_runs(part, rest)


def join_runs(first: Run, second: Run) -> Run:
    """One trajectory of a run and its continuation, whose first record is the last state of the run."""
    records = jax.tree.map(lambda a, b: np.concatenate([a, b[1:]]), first.records, second.records)
    return replace(second, records=records, events=join_crossings(first.events, second.events))


def _require_same(config: Mapping[str, Any], path: Path) -> None:
    """Refuse to go on with a run of something else."""
    text = open_dataset(path).attrs.get("config")
    if text is None:
        raise InvalidInput(f"{path} was not written by `dalembert run`: it holds no configuration to go on with")
    saved = tomllib.loads(text)
    tables = {"event": {"tables": config.get("event", [])}}
    saved["event"] = {"tables": saved.get("event", [])}
    for section, entries in (dict(config) | tables).items():
        mine, theirs = dict(entries), dict(saved.get(section, {}))
        for key in sorted(mine.keys() | theirs.keys()):
            if (section != "run" or key not in RESUME_FREE_KEYS) and mine.get(key) != theirs.get(key):
                raise InvalidInput(
                    f"{path} holds another run: its {section}.{key} is {theirs.get(key)!r}, here it is {mine.get(key)!r}; "
                    f"only {', '.join(f'run.{name}' for name in RESUME_FREE_KEYS)} may change"
                )
