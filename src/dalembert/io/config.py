"""Configuration files: read TOML, check it, and build the job that it describes; templates to start from; resumed runs.

A configuration has the sections [system], [method], [initial] and [run], and may have tables [[event]]. Nothing in it
is evaluated as code, except a system of the user's own: `[system] python = "mysystem.py:make"` runs that file as a
script would run, with its own folder first on the path, and make(**parameters) returns a `System`.
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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, UnknownName
from ..groups import Group
from ..integrators import METHODS, Integrator
from ..mechanics import MechanicalSystem, State
from ..models import MODELS, Model
from ..numerics import positive_int
from ..simulation import (
    BACKENDS,
    QUANTITIES,
    SCALARS,
    Event,
    Quantity,
    Run,
    check_events,
    count_steps,
    join_crossings,
    simulate,
)
from .dataset import load_run, open_dataset

Entry = TypeVar("Entry")
Section = Mapping[str, Any]
Progress = Callable[[int, int], None]

SECTIONS = ("system", "method", "initial", "run")
EVENT_KEYS = ("quantity", "index", "value", "direction", "stop", "name")
EVENT_DIRECTIONS = {"both": 0, "up": 1, "down": -1}
INITIAL_KEYS = ("configuration", "velocity", "momentum")
RUN_KEYS = ("step", "steps", "t_end", "t0", "save_every", "backend")
EXCLUSIVE = ({"run.steps", "run.t_end"}, {"initial.velocity", "initial.momentum"}, {"system.name", "system.python"})


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
    return "".join(f"{key} = {_toml_value(entry)}\n" for key, entry in section.items())


def _toml_value(entry: Any) -> str:
    """One value on one line; floats with all their digits."""
    if isinstance(entry, bool):
        return "true" if entry else "false"
    if isinstance(entry, Mapping):
        return "{" + ", ".join(f"{key} = {_toml_value(item)}" for key, item in entry.items()) + "}"
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
    events: tuple[Event, ...] = ()

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
    """The sections of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as fault:
        raise InvalidInput(f"{path} is not valid TOML: {fault}") from fault
    except FileNotFoundError as fault:
        message = f"there is no file {path}: `dalembert init NAME` writes a configuration to start from"
        raise InvalidInput(message) from fault
    except UnicodeDecodeError as fault:
        raise InvalidInput(f"{path} is not a configuration: it is not text (in UTF-8)") from fault
    except OSError as fault:
        raise InvalidInput(f"cannot read the configuration {path}: {fault.strerror}") from fault


def apply_settings(config: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The configuration with `section.key=value` settings; a value that is not TOML is text.

    A setting drops what it excludes (run.t_end drops run.steps); another system or method starts with no parameters.
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
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        for other in exclusive_keys(".".join(path[:2])):
            section.pop(other, None)
        if path[1] in ("name", "python") and section.get(path[1]) != value:
            section.clear()
        for key in path[1:-1]:
            inner = section.get(key)
            section[key] = dict(inner) if isinstance(inner, Mapping) else {}
            section = section[key]
        section[path[-1]] = value
    return result


def exclusive_keys(name: str) -> list[str]:
    """The keys of its section that cannot stand beside `name`, such as "t_end" beside "run.steps"."""
    return [other.partition(".")[2] for group in EXCLUSIVE if name in group for other in group - {name}]


def parse_job(config: Mapping[str, Any], folder: str | Path = ".") -> Job:
    """Check and build the job of a configuration given as nested mappings; `folder` is where a user's own file is."""
    for name in config:
        if name == "sweep":
            raise InvalidInput(
                "this configuration has a [sweep] of many runs; use `dalembert sweep` (or da.sweep) for it"
            )
        if name not in (*SECTIONS, "event"):
            raise UnknownName("section", name, (*SECTIONS, "event"))
    parts: dict[str, Any] = {name: _section(config, name) for name in SECTIONS}
    with _name_section("system"):
        name, system, file = build_system(parts["system"], Path(folder))
    with _name_section("method"):
        integrator = build_method(parts["method"])
    with _name_section("run"):
        run = _check_run(parts["run"])
    with nullcontext() if file is None else locate_errors(file):
        with _name_section("initial"):
            _check_initial(system, parts["initial"])
            state = build_state(system, parts["initial"], run)
        with _name_section("method"):
            integrator.require(system, state, run["step"])
    start = float(state.t)
    steps = count_steps(run["step"], run.get("steps"), run.get("t_end"), start, variable=integrator.variable_step)
    events = parse_events(config.get("event", []), system, state)
    if events:
        parts["event"] = config["event"]
    names = {"system": name, "method": integrator.name}
    return Job(names, system, integrator, state, {**run, "steps": steps}, parts, file, events)


@contextmanager
def _name_section(section: str) -> Iterator[None]:
    """Write into a fault the section in which it stands."""
    try:
        yield
    except InvalidInput as fault:
        fault.place = section
        raise


def _section(config: Mapping[str, Any], name: str) -> Section:
    if name not in config:
        known = ", ".join(f"[{section}]" for section in SECTIONS)
        raise InvalidInput(f"the section [{name}] is missing; a configuration has {known}")
    section = config[name]
    if not isinstance(section, Mapping):
        raise InvalidInput(f"[{name}] must be a section of key = value lines; given {section!r}")
    return section


def build_method(section: Section) -> Integrator:
    """The method that a section [method] names, with its options."""
    integrator: Integrator = _build(_registered("method", section, METHODS), _parameters(section))
    return integrator


def build_system(section: Section, folder: Path) -> tuple[str, MechanicalSystem, Path | None]:
    """The name and the system of a section [system], and the file it came from if it is a user's own.

    Its numbers may be traced by JAX: a sweep builds the systems of its members inside a kernel.
    """
    parameters = _parameters(section)
    if "python" not in section:
        model = _registered("system", section, MODELS)
        return model.name, _build(model, parameters), None
    if "name" in section:
        raise InvalidInput("[system] has both name (a model of dalembert) and python (a system of your own): give one")
    system, file = load_user_system(parameters.pop("python"), folder, parameters)
    return section["python"], system, file


def _registered(kind: str, section: Section, registry: Mapping[str, Entry]) -> Entry:
    if "name" not in section:
        own = ' (or python = "file.py:function" for one of your own)' if kind == "system" else ""
        raise InvalidInput(f"[{kind}] needs a name{own}; allowed: {', '.join(sorted(registry))}")
    if section["name"] not in registry:
        raise UnknownName(kind, section["name"], registry)
    return registry[section["name"]]


def _build(entry: Any, given: dict[str, Any]) -> Any:
    """The system or method with these parameters; one of the wrong kind is an `InvalidInput` like any other."""
    try:
        return entry.make(given)
    except InvalidInput:
        raise
    except (TypeError, ValueError) as fault:
        raise InvalidInput(f"'{entry.name}' cannot be built from {given}: {fault}") from fault


def _parameters(section: Section) -> dict[str, Any]:
    for key, value in section.items():
        _require_finite(key, value)
    return {key: value for key, value in section.items() if key != "name"}


def _require_finite(key: str, value: Any) -> None:
    """Refuse NaN, infinities and ragged or non-numeric lists before they reach any array."""
    if isinstance(value, list):
        for entry in value:
            if not isinstance(entry, int | float | list | jax.Array) or isinstance(entry, bool):
                raise InvalidInput(f"{key} holds {entry!r}; allowed: numbers")
            _require_finite(key, entry)
        if len({len(e) if isinstance(e, list) else None for e in value}) > 1:
            raise InvalidInput(f"{key} is ragged: its rows differ in length: {value}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{key} is {value}; allowed: finite numbers")


def _check_initial(system: MechanicalSystem, initial: Section) -> None:
    for key, given in initial.items():
        if key not in INITIAL_KEYS:
            raise UnknownName("key of [initial]", key, INITIAL_KEYS)
        if not isinstance(given, list | Mapping):
            raise InvalidInput(f"{key} in [initial] is {given!r}; allowed: a list of numbers")
        for entry in given if len(system.group.factors) > 1 and key == "configuration" else [given]:
            if not isinstance(entry, Mapping):
                _require_finite(key, entry)
    if ("velocity" in initial) == ("momentum" in initial):
        raise InvalidInput("[initial] needs either velocity or momentum, and may have a configuration")


def build_state(system: MechanicalSystem, initial: Section, run: Section) -> State:
    """The state of the sections [initial] and [run]; its numbers may be traced by JAX."""
    given = initial.get("configuration")
    g = None if given is None else system.group.configuration(given)
    return system.state(g, initial.get("velocity"), momentum=initial.get("momentum"), t=run.get("t0", 0.0))


def _check_run(section: Section) -> dict[str, Any]:
    for key, value in section.items():
        if key not in RUN_KEYS:
            raise UnknownName("key of [run]", key, RUN_KEYS)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if key != "backend" and not number:
            raise InvalidInput(f"{key} in [run] is {value!r}; allowed: a finite number")
    if "step" not in section:
        raise InvalidInput("[run] needs a step")
    if section["step"] == 0:
        raise InvalidInput("step is 0; allowed: any finite number but 0 (negative steps go back in time)")
    if ("steps" in section) == ("t_end" in section):
        raise InvalidInput("[run] needs exactly one of steps and t_end")
    for key in ("steps", "save_every"):
        if key in section:
            positive_int(key, section[key])
    if section.get("backend", "auto") not in BACKENDS:
        raise UnknownName("backend", section["backend"], BACKENDS)
    return dict(section)


def parse_events(tables: Any, system: MechanicalSystem, state: State) -> tuple[Event, ...]:
    """The events of the tables [[event]], checked on the system: quantities of the motion and the values they pass."""
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise InvalidInput(f"events are tables [[event]] of key = value lines, with two brackets; given {tables!r}")
    return check_events([_parse_event(table) for table in tables], system, state)


def _parse_event(table: Section) -> Event:
    for key in table:
        if key not in EVENT_KEYS:
            raise UnknownName("key of [[event]]", key, EVENT_KEYS)
    if "quantity" not in table:
        raise InvalidInput(f"an [[event]] needs a quantity; allowed: {', '.join(QUANTITIES)}")
    kind = table["quantity"]
    if kind not in QUANTITIES:
        raise UnknownName("quantity", kind, QUANTITIES)
    direction, stop, name = table.get("direction", "both"), table.get("stop", False), table.get("name", "")
    if direction not in EVENT_DIRECTIONS:
        raise UnknownName("direction of an event", direction, EVENT_DIRECTIONS)
    if not isinstance(stop, bool) or not isinstance(name, str):
        raise InvalidInput(f"stop is {stop!r} and name is {name!r} in an [[event]]; allowed: true or false, and text")
    if "index" not in table and kind not in SCALARS:
        raise InvalidInput(
            f"an [[event]] of {kind} needs an index: 0 for the first component, [row, column] in a matrix"
        )
    given = table.get("index", [])
    index = tuple(given) if isinstance(given, list) else (given,)
    if not all(isinstance(k, int) and not isinstance(k, bool) for k in index):
        raise InvalidInput(f"index in an [[event]] is {given!r}; allowed: a whole number, or a list of these")
    value = table.get("value", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"value in an [[event]] is {value!r}; allowed: a finite number")
    place = f"[{','.join(map(str, index))}]" if index else ""
    default = f"{kind}{place} = {float(value):g}"
    return Event(Quantity(kind, index, float(value)), EVENT_DIRECTIONS[direction], stop, name or default)


USER_MODULE_PREFIX = "_dalembert_user_"


def load_user_system(reference: Any, folder: Path, parameters: Section) -> tuple[MechanicalSystem, Path]:
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
    """The function of this name in a Python file, which is run."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}; python = ... is relative to the folder of the configuration")
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
        functions = [key for key, entry in vars(module).items() if inspect.isfunction(entry)]
        raise UnknownName(f"function of {path.name}", name, [key for key in functions if not key.startswith("_")])
    return function


def _require_parameters(make: Callable[..., Any], name: str, given: Section) -> None:
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
    functions: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...] | None]] = {
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


OWN_SYSTEM = "own"
TEMPLATE_STEPS = 200
OWN_SYSTEM_PYTHON = '''"""A system of your own: change it, and run it with `dalembert run {stem}.toml`."""

import jax.numpy as jnp

import dalembert as da


def make(mass=1.0, inertia=0.5, a=0.3):
    """A sleigh: `mass` at distance `a` ahead of a blade that does not slip sideways. Parameters come from [system]."""
    tensor = jnp.array([[inertia + mass * a**2, 0.0, mass * a], [0.0, mass, 0.0], [mass * a, 0.0, mass]])
    return da.System(
        group=da.SE2(),  # configurations g: (theta, x, y); velocities xi = (w, v1, v2) in the body
        lagrangian=lambda t, g, xi, p: 0.5 * xi @ p @ xi,
        constraint=lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]),  # A(t, g) with A xi = 0: here v2 = 0
        # holonomic=lambda t, g, p: g[:1, 2] - 1.0,  # phi(t, g) = 0 on positions, if you have such a constraint: x = 1
        parameters=tensor,
    )
'''


def model_template(name: str, file: str) -> str:
    """The configuration of a model, with all other options as comments."""
    model = MODELS[name]
    system = model.make(model.example)
    head = f"# {model.summary}\n# From `dalembert init {name}`; run it with: dalembert run {file} --plot {name}.png\n"
    count = system.holonomic_constraints
    leaf = f"# the configuration must satisfy {count} holonomic constraint(s); otherwise you are told the nearest one\n"
    section = _with_defaults({"name": name, **model.example}, model.parameters)
    return _template(head, section, model, leaf * bool(count) + _initial_template(system.group, model.initial))


def own_system_template(stem: str) -> tuple[str, str]:
    """(TOML, Python) of a system of the user's own."""
    model = MODELS["chaplygin-sleigh"]
    head = (
        f"# A system of your own, which {stem}.py makes; run it with: dalembert run {stem}.toml --plot {stem}.png\n"
        f"# Is its constraint really nonholonomic? dalembert show {stem}.toml\n"
    )
    comment = "# this file is run; other keys here are the parameters of make"
    section = f'python = "{stem}.py:make"   {comment}\nmass = 1.0\na = 0.3\n'
    initial = _initial_template(model.make(model.example).group, {"velocity": [0.5, -1.0, 0.0]})
    return _template(head, section, Model("", model.build, {}, {}, 0.05), initial), OWN_SYSTEM_PYTHON.format(stem=stem)


def _template(head: str, system: str, model: Model, initial: str) -> str:
    method = METHODS[model.method["name"]]
    t_end = _toml_value(round(TEMPLATE_STEPS * model.step, 12))
    return (
        f"{head}\n[system]\n{system}\n"
        f"[method]   # others: dalembert list methods\n{_with_defaults(model.method, method.options)}\n"
        f"[initial]\n{initial}\n"
        f"[run]\nstep = {_toml_value(model.step)}\nsteps = {TEMPLATE_STEPS}   # or t_end = {t_end}\n"
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


def _initial_template(group: Group, given: Section) -> str:
    names = ", ".join(axis.name for axis in group.axes())
    other = "velocity" if "momentum" in given else "momentum"
    text = f"# configurations in {group}; velocities and momenta have components ({names})\n"
    if "configuration" not in given:
        text += f"# configuration = {_toml_value(group.identity_table())}   # the identity, which is the default\n"
    return text + _toml_lines(given) + f"# or {other} = [...]; a momentum may have its components on D alone\n"


RESUME_FREE_KEYS = ("steps", "t_end", "backend")
"""The keys of [run] that may change between a run and its continuation."""


def resume_run(job: Job, path: Path, progress: Progress | None = None) -> Run:
    """Run the steps of `job` that the file lacks, bit for bit as one long run would.

    A run that is complete, failed or was stopped by an event comes back as it is.
    """
    _require_same_config(job.config, path)
    saved = load_run(path, system=job.system, integrator=job.integrator)
    every = job.run.get("save_every", 1)
    options: dict[str, Any] = {"monitor": True, "backend": job.run.get("backend", "auto"), "events": job.events}
    if "t_end" in job.until:
        return saved if saved.status != "ok" or saved.stopped_by else _resume_to_time(job, saved, every, options)
    done, left = int(saved.final.steps), job.run["steps"] - int(saved.final.steps)
    if left < 0:
        raise InvalidInput(f"{path} has {done} steps already, more than the {job.run['steps']} asked for")
    if left == 0 or saved.status != "ok" or saved.stopped_by:
        return saved
    regular = int(np.count_nonzero(np.asarray(saved.records.steps) % every == 0))
    run = last = replace(saved, records=jax.tree.map(lambda leaf: leaf[:regular], saved.records))
    pieces = [(ahead, ahead)] if (ahead := min(left, -done % every)) else []  # up to the next step that is saved
    pieces += [(left - ahead, every)] if left > ahead else []
    for steps, interval in pieces:
        options |= {"steps": steps, "save_every": interval, "progress": progress if interval == every else None}
        last = simulate(job.system, job.integrator, last, step=job.run["step"], **options)
        run = join_runs(run, last)
        if last.interrupted or last.status != "ok" or last.stopped_by:
            break
    return run


def _resume_to_time(job: Job, saved: Run, every: int, options: Mapping[str, Any]) -> Run:
    """Run the steps up to t_end that a run with variable steps lacks: save all, then keep every `every`-th."""
    h, t_end = job.run["step"], job.until["t_end"]
    if np.sign(h) * (float(saved.t[-1]) - t_end) > 1e-9 * abs(h):
        raise InvalidInput(f"the run is at t = {float(saved.t[-1]):.17g} already, beyond the t_end = {t_end} asked for")
    following = simulate(job.system, job.integrator, saved, step=h, steps=1)
    if following.status == "ok" and np.sign(h) * (float(following.t[-1]) - t_end) > 1e-9 * abs(h):
        return saved
    run = join_runs(saved, simulate(job.system, job.integrator, saved, step=h, t_end=t_end, **options))
    steps = np.asarray(run.records.steps)
    kept = (steps % every == 0) | (np.arange(len(steps)) == len(steps) - 1)
    return replace(run, records=jax.tree.map(lambda leaf: leaf[kept], run.records))


def join_runs(first: Run, second: Run) -> Run:
    """One run of a run and its continuation, whose first record is the last state of the run."""
    records = jax.tree.map(lambda a, b: np.concatenate([a, b[1:]]), first.records, second.records)
    return replace(second, records=records, events=join_crossings(first.events, second.events))


def _require_same_config(config: Mapping[str, Any], path: Path) -> None:
    """Refuse to continue a run of something else."""
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
                    f"{path} holds another run: its {section}.{key} is {theirs.get(key)!r}, here it is "
                    f"{mine.get(key)!r}; only {', '.join(f'run.{name}' for name in RESUME_FREE_KEYS)} may change"
                )
