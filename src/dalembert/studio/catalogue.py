"""The catalogue: every model and method with its controls, what to look at and what to try.

To start fast nothing is built until it is chosen: `entry` completes a system with its initial state and the methods
that take it. The range of a control is a hint: a value typed outside it goes to the model, which judges.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import tomllib
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import Parameter, Signature
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, NotRead, UnknownName, require_name
from ..integrators import METHODS, RETRACTIONS
from ..io.config import SECTIONS, load_function, load_job, load_user_system, parse_job, read_config
from ..io.urdf import read_urdf
from ..mechanics import MechanicalSystem, Mechanism, State
from ..mechanics.system import name_leaves
from ..models import LAGRANGIANS, MODELS
from ..numerics import finite_reals
from .requests import (
    DEFAULT_FRAMES,
    MAX_FRAMES,
    OPENED_SYSTEM,
    StudioInput,
    config_of_file,
    dependent_components,
    frames_of_file,
    jobs_of,
)
from .view import TEXTS

Control = dict[str, Any]
FIRST_MODEL = "chaplygin-sleigh"
EITHER_SIGN = ("a", "b", "centre", "front", "arm", "normal")
RANGES: dict[str, tuple[float, float]] = {"slope": (0.0, 0.8), "gravity": (0.0, 20.0), "epsilon": (-0.5, 1.0)}
RANGES |= {"rotation": (-4.0, 4.0), "weight": (-5.0, 5.0), "depth": (0.0, 0.018), "node": (0.0, 1.0)}
RANGES |= {"n": (2, 5), "directions": (1, 3)}
"""Parameters whose range does not follow from their value: signed ones, angles, counts. The others are positive."""
COORDINATE_RANGES = dict.fromkeys(("angle", "euler", "log"), (-np.pi, np.pi)) | {"position": (-5.0, 5.0)}
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
STORIES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("stories.toml").read_text(encoding="utf-8"))
STORY_KEYS = {"name": str, "title": str, "system": str, "step": list}
STEP_KEYS: dict[str, Any] = {"text": str, "system": dict, "initial": dict, "run": dict, "method": dict}
STEP_KEYS |= {"against": dict, "controls": dict, "panes": bool}
STEP_KEYS |= {"camera": list, "follow": bool, "begin": float, "plot": str}
STEP_KINDS = {str: "a text", dict: "a table", bool: "true or false", list: "a list", float: "a number"}


def control(
    place: str, value: Any, *, optional: bool = False, help: str = "", entries: list[str] | None = None
) -> Control:
    """A control for a value of this kind at a place of the configuration."""
    name = place.rpartition(".")[2]
    made: Control = {"place": place, "label": name.replace("_", " "), "help": help}
    made |= {"value": value, "optional": optional}
    model = STAND_INS.get(name, 1.0) if value is None else value
    if name in CHOICES and not isinstance(model, list):
        own = [] if value is None else [value]
        return made | {"kind": "choice", "choices": list(dict.fromkeys([*CHOICES[name], *own]))}
    if isinstance(model, bool):
        return made | {"kind": "flag"}
    if isinstance(model, str):
        return made | {"kind": "choice", "choices": [model]}
    array = np.asarray(model, float)
    kind = ("integer" if isinstance(model, int) else "number", "vector", "matrix")[array.ndim]
    size = float(np.abs(array).max()) or 1.0
    if array.ndim < 2 and np.all(array > 0):  # positive numbers stay positive, others go either way
        low, high = two_digits(float(array.min()) / 5), two_digits(3 * size)
    else:
        low, high = -two_digits(2 * size), two_digits(2 * size)
    if name in EITHER_SIGN:
        high = max(1.0, two_digits(2 * size))
        low = -high
    low, high = RANGES.get(name, (low, high))
    made |= {"kind": kind, "low": low, "high": high}
    if kind == "matrix":
        made["symmetric"] = name in SYMMETRIC
    if kind == "vector":
        made["entries"] = entries or [str(k + 1) for k in range(len(array))]
    return made


def two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def to_lists(value: Any) -> Any:
    """Tuples as the lists that a configuration has."""
    return [to_lists(entry) for entry in value] if isinstance(value, list | tuple) else value


def make_catalogue(opened: StudioInput) -> dict[str, Any]:
    """What the page needs to start: nothing is built for it."""
    methods = []
    for name, method in METHODS.items():
        options = [
            control(f"method.{key}", value, optional=value is None)
            for key, value in method.options.items()
            if key != "base" and isinstance(value, bool | int | float | str | None)
        ]
        methods.append({"name": name, "summary": method.words or method.summary, "options": options})
    return {
        "systems": [*([] if opened.own is None else [_own_system(opened)]), *map(_system, MODELS)],
        "methods": methods,
        "start": start(opened),
        "stories": [*opened.stories, *(tell_story(story) for story in STORIES["story"])],
        "fails": STORIES["fail"],
        "mp4": shutil.which("ffmpeg") is not None,
        "limits": {"steps": opened.max_steps, "frames": MAX_FRAMES},
    }


NOT_IN_NAMES = re.compile(r"\W+", re.ASCII)
UNITS = {"mass": "kg", "inertia": "kg m2", "radius": "m", "offset": "m", "centre": "m", "at": "m", "gravity": "m/s2"}
"""The units of a mechanism's numbers, by a word of their names."""
POSITIVE = ("mass", "radius", "xx", "yy", "zz", "along", "across")
"""The last words of numbers of a mechanism that have to stay positive."""


class Variation:
    """A system as a function of its numbers by name, which become sliders: what is not given stays as it is."""

    def __init__(
        self, system: MechanicalSystem, units: Mapping[str, str], ranges: Mapping[str, Any], file: Path | None = None
    ) -> None:
        self.system, self.file, self.places = system, file, dict[str, tuple[int, str]]()
        self.leaves, self.structure = jax.tree.flatten(system)
        parameters = []
        for k, name in enumerate(name_leaves(system)):
            words = name.split(".")
            keys = [NOT_IN_NAMES.sub("_", " ".join(each)) for each in (words[1:] if words[2:] else words, words)]
            key = next((key for key in keys if key.isidentifier() and key not in self.places), "")
            if not key or iskeyword(key) or np.ndim(self.leaves[k]) > 2 or np.iscomplexobj(self.leaves[k]):
                continue
            self.places[key] = k, words[-1]
            unit = units.get(key, next((UNITS[word] for word in reversed(words[1:]) if word in UNITS), ""))
            hints = (unit, tuple(ranges[key])) if key in ranges else (unit,)
            value = np.asarray(self.leaves[k], float).tolist()
            parameters.append(
                Parameter(key, Parameter.KEYWORD_ONLY, default=value, annotation=Annotated[float, *hints])
            )
        for given in {**units, **ranges}:
            require_name("number of the system", given, self.places)
        parameters.sort(key=lambda each: self.places[each.name][1] not in POSITIVE[:2])
        self.__signature__ = Signature(parameters)
        self.__doc__ = f"{system.title} on {system.group}."

    def __call__(self, **values: Any) -> MechanicalSystem:
        leaves = list(self.leaves)
        for key, value in values.items():
            k, word = self.places[key]
            if np.array_equal(value, self.leaves[k]):
                continue
            leaves[k] = finite_reals(key, value)
            if np.shape(leaves[k]) != np.shape(self.leaves[k]) or (word in POSITIVE and not np.all(leaves[k] > 0)):
                kind = "a positive number" if word in POSITIVE else f"numbers of shape {np.shape(self.leaves[k])}"
                raise InvalidInput(f"{key} is {value}; allowed: {kind}")
        return cast(MechanicalSystem, jax.tree.unflatten(self.structure, leaves))

    def __reduce__(self) -> Any:
        """Another process reads the file again, and says nothing that was said already."""
        return robot_of, (self.file, True)


def robot_of(file: Path, quietly: bool = False) -> Variation:
    """The robot in a URDF file: links named wheels roll on the ground, others named castors or balls support it.

    Without wheels its root is fixed. Whoever wants it otherwise calls `dalembert.io.read_urdf` in a file of Python.
    """
    try:
        links = re.findall(r"<link\s[^>]*name\s*=\s*[\"']([^\"']*)", file.read_text(encoding="utf-8", errors="replace"))
    except OSError as fault:
        raise InvalidInput(f"{file} cannot be read: {fault.strerror or fault}") from fault
    wheels = [name for name in links if "wheel" in name.lower()]
    castors = [name for name in links if name not in wheels and re.search("cast|ball", name.lower())]
    options: dict[str, Any] = {"base": "planar", "wheels": wheels, "castors": castors} if wheels else {"base": "fixed"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if quietly else "default", NotRead)
            return Variation(read_urdf(file, **options).system(), {}, {}, file)
    except InvalidInput as fault:
        told = ", ".join(f"{key} {value}" for key, value in options.items())
        hint = "write make() in a file of Python that calls dalembert.io.read_urdf, and open that"
        raise InvalidInput(f"{fault} (read with {told}; for another choice {hint})") from fault


def config_of_system(
    system: MechanicalSystem,
    reference: str,
    initial: Mapping[str, Any] | None = None,
    method: Any = "lagrange-dalembert",
    step: float = 0.02,
    steps: int = 400,
) -> dict[str, Any]:
    """A configuration of a user's own system.

    It starts with a speed of 1 where the system knows one, else with velocities of 0.5, moved onto the constraint.
    """
    names = system.start_names
    if initial is None:
        initial = {"speed": 1.0} if "speed" in names else dict.fromkeys([*names][:1], 0.0)
        if not names:
            start, speed = system.group.identity(), jnp.full(system.group.dim, 0.5)
            rows, off = np.asarray(system.rows(0.0, start)(speed)), np.asarray(system.residual(0.0, start, speed))
            initial = {"velocity": (np.asarray(speed) - np.linalg.pinv(rows) @ off if len(rows) else speed).tolist()}
    named = {"name": method} if isinstance(method, str) else dict(method)
    run = {"step": step, "steps": steps}
    return {"system": {"python": reference}, "method": named, "initial": dict(initial), "run": run}


def input_of_file(file: Path, **limits: Any) -> StudioInput:
    """What the page starts from: a configuration, a file of Python ("my_vehicle.py:make"), a URDF file or data."""
    if file.suffix == ".toml":
        job, config = load_job(file), read_config(file)
        if task := config.get("plan"):  # it is shown in motion, so that it has a scale, with its obstacles
            longest = float(np.max(task.get("duration", 1.0)))
            run = {"step": longest / int(task.get("steps", 100)), "steps": int(task.get("steps", 100))}
            model = MODELS.get(config["system"].get("name", ""))
            rest = dict(model.initial) if model else {"velocity": [0.0] * job.system.group.dim}
            limits["discs"] = tuple(
                (*map(float, each["centre"]), float(each["radius"]))
                for each in config.get("obstacle", [])
                if tuple(each["coordinates"]) in (("x", "y"), ("position_0", "position_1"))
            )
            config = {"initial": rest, "run": run} | config
        config = {key: config[key] for key in (*SECTIONS, "controls", "event") if key in config}  # what a run has
        return StudioInput(config, file.parent, **limits)
    if file.suffix == ".py" or ".py:" in file.name:
        name, _, attribute = file.name.partition(":")
        reference = f"{name}:{attribute or 'make'}"
        config = config_of_system(load_user_system(reference, file.parent, {}, load_function)[0], reference)
        parse_job(config, file.parent)
        return StudioInput(config, file.parent, **limits)
    if file.suffix in (".urdf", ".xml"):
        robot = robot_of(file)
        return StudioInput(config_of_system(robot.system, f"{file.name}:robot"), file.parent, make=robot, **limits)
    if file.suffix in (".nc", ".zarr"):
        frames_of_file(file, 2)
        return StudioInput(None, file.parent, file, **limits)
    kinds = "a configuration (.toml), a file that makes a system (.py), a robot (.urdf) or a data file (.nc, .zarr)"
    raise InvalidInput(f"{file} cannot be opened; allowed: {kinds}")


def input_of_system(
    system: Any, units: Mapping[str, str] | None = None, ranges: Mapping[str, Any] | None = None, **about: Any
) -> StudioInput:
    """What the page starts from for a system of Python: a system, a mechanism, or a function that makes one."""
    if isinstance(system, Mechanism):
        system = system.system()
    title, make = getattr(system, "__name__", ""), system
    if isinstance(system, MechanicalSystem):
        title, make = system.title, Variation(system, units or {}, ranges or {})
    elif units or ranges:
        raise InvalidInput("a function says units and ranges itself, as in mass: Annotated[float, 'kg', (0.5, 3.0)]")
    if not callable(make):
        raise InvalidInput(f"the studio shows a system, a mechanism or a function that makes one, not {system!r}")
    reference = f"{title or 'system'}:make"
    built, _ = load_user_system(reference, Path(), {}, lambda *_: make)
    opened = StudioInput(config_of_system(built, reference, **about), make=make)
    opened.job(start(opened)["config"])
    return opened


def read_stories(file: Path, opened: StudioInput) -> tuple[dict[str, Any], ...]:
    """The stories of a user's own file, each step of which must be a run that can be made."""
    given = read_config(file)
    if list(given) != ["story"] or not isinstance(given["story"], list):
        raise InvalidInput(f"{file} has {', '.join(given) or 'nothing'}; allowed: one or more [[story]]")
    told = tuple(tell_story(story, opened) for story in given["story"])
    for story in told:
        for number, step in enumerate(story["steps"], 1):
            try:
                jobs_of(step["request"], opened)
            except InvalidInput as fault:
                raise InvalidInput(f"story '{story['name']}', step {number}: {fault}") from fault
    return told


def tell_story(story: Mapping[str, Any], opened: StudioInput | None = None) -> dict[str, Any]:
    """A story with the request of each step: a step changes what it names, and the rest stays as it was."""
    where = f"story '{str(story.get('name', ''))[:40]}'" if isinstance(story, Mapping) else "a story"
    _require_keys(where, story, STORY_KEYS, STORY_KEYS)
    own = story["system"] == OPENED_SYSTEM and opened is not None and opened.own is not None
    if not own and story["system"] not in MODELS:
        raise UnknownName("system of a story", story["system"], MODELS)
    config = start(opened)["config"] if own and opened is not None else example(story["system"])
    request: dict[str, Any] = {"config": config, "against": None, "frames": DEFAULT_FRAMES, "panes": False}
    steps = []
    for number, step in enumerate(story["step"], 1):
        _require_keys(f"{where}, step {number}", step, STEP_KEYS, ("text",))
        request = json.loads(json.dumps(request, default=list))
        for section in ("system", "run"):
            request["config"][section] |= step.get(section, {})
        for section in ("initial", "method"):
            request["config"][section] = dict(step.get(section, request["config"][section]))
        request |= {"against": step["against"] or None} if "against" in step else {}
        request |= {key: step[key] for key in ("panes", "controls") if key in step}
        look = {"camera": step.get("camera"), "follow": step.get("follow", False), "begin": step.get("begin", 0.0)}
        seen, allowed = step.get("camera", [1.0] * 3), "begin from 0 to below 1, a camera of 3 numbers, not all 0"
        directed = len(seen) == 3 and all(isinstance(x, int | float) and abs(x) < 1e9 for x in seen) and any(seen)
        if not 0 <= look["begin"] < 1 or not directed:
            raise InvalidInput(f"{where}, step {number}: allowed: {allowed}")
        if step.get("plot", "Energy") not in TEXTS["plots"]:
            raise InvalidInput(f"{where}, step {number}: {UnknownName('plot', step['plot'], TEXTS['plots'])}")
        steps.append({"text": step["text"], "request": request, "plot": step.get("plot"), **look})
    return {"name": story["name"], "title": story["title"], "steps": steps}


def _require_keys(where: str, given: Any, kinds: Mapping[str, Any], needed: Any) -> None:
    """Refuse a table of a story with keys that it cannot have, of another kind, or without one that it needs."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{where} is {str(given)[:40]}; allowed: a table")
    for key, value in given.items():
        if key not in kinds:
            raise InvalidInput(f"{where}: {UnknownName('key', key, kinds)}")
        kind = int | float if kinds[key] is float else kinds[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidInput(f"{where}: {key} is {str(value)[:40]}; allowed: {STEP_KINDS[kinds[key]]}")
    for key in needed:
        if not given.get(key):
            raise InvalidInput(f"{where}: {key} is missing")


def start(opened: StudioInput) -> dict[str, Any]:
    """What to show first: the file that was opened, or the sleigh."""
    shown: dict[str, Any] = {"against": None, "frames": DEFAULT_FRAMES}
    if opened.saved is not None:
        return shown | {"config": config_of_file(opened.saved), "saved": True}
    config = dict(opened.config or example(FIRST_MODEL))
    if opened.own is not None:
        config["system"] = {"name": OPENED_SYSTEM} | {k: v for k, v in opened.own.items() if k != "python"}
    return shown | {"config": config}


def example(name: str) -> dict[str, Any]:
    """A configuration of a model that shows what it does."""
    model, given = MODELS[name], {**MODELS[name].parameters, **MODELS[name].example}
    system = {"name": name} | {key: to_lists(value) for key, value in given.items() if value is not None}
    run = {"step": model.step, "steps": model.steps}
    return {"system": system, "method": dict(model.method), "initial": dict(model.initial), "run": run}


def _system(name: str) -> dict[str, Any]:
    model = MODELS[name]
    parameters = [
        control(f"system.{key}", to_lists(value), optional=model.parameters[key] is None, help=model.help(key))
        for key, value in {**model.parameters, **model.example}.items()
    ]
    tries = [{"text": text, "place": place, "value": value} for text, place, value in model.tries]
    texts = {"name": name, "title": model.title, "summary": model.summary, "why": model.why, "tries": tries}
    return texts | {"example": example(name), "parameters": parameters}


def _own_system(opened: StudioInput) -> dict[str, Any]:
    """The user's own system, with the parameters of the function that makes it."""
    assert opened.own is not None
    file, _, attribute = opened.own["python"].rpartition(":")
    make = opened.load((opened.folder / file).resolve(), attribute)
    given = [each for each in _signature(make).parameters.values() if each.default is not each.empty]
    values = {each.name: each.default for each in given} | {k: v for k, v in opened.own.items() if k != "python"}
    kinds = (bool, int, float, str, list, tuple)
    known = {key: to_lists(value) for key, value in values.items() if isinstance(value, kinds)}
    summary = (inspect.getdoc(make) or "A system of your own.").splitlines()[0]
    texts = {"name": OPENED_SYSTEM, "title": opened.own["python"], "summary": summary, "why": "", "tries": []}
    config = start(opened)["config"] | {"system": {"name": OPENED_SYSTEM, **known}}
    hints = {each.name: getattr(each.annotation, "__metadata__", ()) for each in given}
    controls = [_with_hints(control(f"system.{key}", value), hints.get(key, ())) for key, value in known.items()]
    return texts | {"example": config, "parameters": controls}


def _signature(make: Callable[..., Any]) -> Signature:
    """The signature of a user's function; its annotations as they are where they cannot be evaluated."""
    try:
        return inspect.signature(make, eval_str=True)
    except Exception:
        return inspect.signature(make)


def _with_hints(made: Control, hints: tuple[Any, ...]) -> Control:
    """A control with the unit (a text) and the range (two numbers) of `Annotated[float, "kg", (0.5, 3.0)]`."""
    for hint in hints:
        if isinstance(hint, str):
            made["help"] = hint
        elif np.shape(hint) == (2,) and "low" in made and hint[0] < hint[1]:
            made |= {"low": float(hint[0]), "high": float(hint[1])}
    return made


@lru_cache(maxsize=64)
def entry(name: str, opened: StudioInput) -> dict[str, Any]:
    """A system of the catalogue with its group, its initial state and the methods that take it."""
    own = name == OPENED_SYSTEM and opened.own is not None
    if not own and name not in MODELS:
        raise UnknownName("system", name, MODELS)
    found = _own_system(opened) if own else _system(name)
    job = opened.job(found["example"])
    refused: dict[str, str] = {}
    for method in METHODS.values():
        try:
            method.make({}).require(job.system, job.state, job.run["step"])
        except (InvalidInput, TypeError) as fault:
            refused[method.name] = str(fault)
    initial = dict(found["example"]["initial"])
    if not job.system.start_names and "configuration" not in initial:
        initial = {"configuration": job.system.group.identity_table("ZYX"), **initial}
    return found | {
        "example": {**found["example"], "initial": initial},
        "group": str(job.system.group),
        "initial": _initial_controls(job.system, job.state, initial),
        "methods": [name for name in METHODS if name not in refused],
        "refused": refused,
    }


def _initial_controls(system: MechanicalSystem, state: State, initial: Mapping[str, Any]) -> list[Control]:
    """Controls of the initial state; `dependent` entries of a velocity follow from the constraint.

    What a mechanism starts with by names comes first, then the other names, which may stay out.
    """
    if system.start_names and not {"velocity", "momentum"} & set(initial):
        names = [*initial, *(name for name in system.start_names if name not in initial)]
        units = {name: system.units.get(name.replace("_", " "), "") for name in names}
        named = [control(f"initial.{k}", initial.get(k), optional=k not in initial, help=units[k]) for k in names]
        return [each if each["label"] == "speed" else each | {"low": -each["high"]} for each in named]  # either way
    place, given = "initial.configuration", initial["configuration"]
    several = len(system.group.factors) > 1
    factors = {f"{place}.{k}": value for k, value in enumerate(given)} if several else {place: given}
    controls = [made for where, value in factors.items() for made in _configuration_controls(where, value)]
    names = [axis.name for axis in system.axes()]
    for kind in ("velocity", "momentum"):
        if kind in initial:
            value = initial[kind]
            entries = names if len(value) == len(names) else [f"on D, {k + 1}" for k in range(len(value))]
            size = two_digits(2 * float(np.abs(value).max()) or 1.0)
            made = control(f"initial.{kind}", value, entries=entries) | {"low": -size, "high": size}
            if kind == "velocity":
                made["dependent"] = dependent_components(np.asarray(system.rows(state.t, state.g)(state.xi)))
            controls.append(made)
    return controls


def _configuration_controls(place: str, value: Any) -> list[Control]:
    """Controls of one factor's configuration: named coordinates, or a vector; none for a matrix."""
    if isinstance(value, Mapping):
        ranges = {key: COORDINATE_RANGES[key] for key in value if key in COORDINATE_RANGES}
        return [control(f"{place}.{k}", value[k]) | {"low": low, "high": high} for k, (low, high) in ranges.items()]
    if np.ndim(value) != 1:
        return []
    reach = two_digits(2 * float(np.abs(value).max()) or 5.0)
    return [control(place, value, entries=[f"q{k + 1}" for k in range(len(value))]) | {"low": -reach, "high": reach}]
