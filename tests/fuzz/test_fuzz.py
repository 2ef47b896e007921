"""Draw configurations, flags and arguments that nobody would write: each is taken, or refused by a sentence.

The strategies are made from the registries of models and methods, the schema of configurations, the tree of commands
and the signatures of the public functions: what is new there is drawn without being named here. What the fuzzer found
stands in `test_found.py`.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import json
import math
import tomllib
import warnings
from functools import cache
from pathlib import Path
from typing import get_type_hints

import jax
import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import dalembert as da
from dalembert import cli
from dalembert.errors import InvalidInput, NumericalFailure
from dalembert.integrators import METHODS, RETRACTIONS
from dalembert.io.config import (
    SCHEMA,
    apply_settings,
    model_template,
    own_system_template,
    parse_job,
    parse_toml,
    read_config,
)
from dalembert.kernels import problem
from dalembert.mechanics import mechanism
from dalembert.models import MODELS
from dalembert.simulation import BACKENDS, QUANTITIES

LONGEST_SENTENCE = 2000
PARTS = 20
"""Parts of the heavy test, that two processes share."""


def fuzz(strategy: st.SearchStrategy, examples: int, number: int = 0):
    """A test of so many examples, always the same ones for one `number`; a failure is shrunk."""
    options = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    options["phases"] = (Phase.generate, Phase.shrink)
    return lambda test: seed(number)(settings(max_examples=examples, **options)(given(drawn=strategy)(test)))


# -- values -----------------------------------------------------------------------------------------------------------
def _nested(depth: int, inner: object = 1.0) -> object:
    return inner if depth == 0 else [_nested(depth - 1, inner)]


NAMES = sorted({*MODELS, *METHODS, *RETRACTIONS, *BACKENDS, *QUANTITIES, "own.py:make", "none.py:make", "file"})
KEYS = sorted({key for section in SCHEMA.values() for key in section} | {"quaternion", "euler", "angle", "position"})
PLAIN = [0, 1, 2, 3, -1, 0.5, -0.3, 1.7, 0.01, 1e-3, 40.0, 1e4, "cayley", "up", True, False]
NUMBERS = [-0.0, 5e-324, 1e-200, 1e-17, 1e17, 1e200, -1e308, math.inf, -math.inf, math.nan]
NUMBERS += [2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**64), 10**30, -(10**30), 10**399, -(10**400)]
TEXTS = ["", " ", "x", "1", "nan", "x" * 300, "../" * 90, "a/b.py:make", "\x7f", "\x00", "é", "[q]", "{}", "%s", "\n"]
LISTS = [[], [[]], [1], [1.0, 2.0], [0, 0, 0], [1, 2, 3], [1.0, 0.5, 0.0, 0.0], [[1, 0], [0, 1]], [[1, 2], [3]], ["a"]]
LISTS += [[True], [math.nan, 1, 1], [10**30, 1, 1], [1e200, 1.0, 1.0], [[1, 0, 0], [0, 1, 0], [0, 0, 1]], [{}], [[[1]]]]
LISTS += [[0.0] * 100, [[1.0] * 9] * 9, [1, "a"], [None], *(_nested(depth) for depth in (5, 14, 30, 200))]
TABLES = [{}, {"a": 1}, {"name": "gauss"}, {"name": ["a"]}, {"name": "own"}, {"": 1}, {"quaternion": [1, 0, 0, 0]}]
TABLES += [{"angle": "x"}, {"euler": [1, 2, 3], "degrees": 1}, {"values": [1]}, {"a": {"b": {"c": 1}}}]
POOL = st.sampled_from([*PLAIN, *PLAIN, *NUMBERS, *TEXTS, *NAMES, *LISTS, *TABLES])
ANY = st.recursive(
    POOL, lambda part: st.lists(part, max_size=4) | st.dictionaries(st.sampled_from(KEYS), part), max_leaves=5
)
VALUES = st.integers(0, 9).flatmap(lambda k: POOL if k < 7 else st.floats(-3, 3) if k < 9 else ANY)
NUMERIC = st.floats(-3, 3) | st.sampled_from([value for value in PLAIN if not isinstance(value, str)] + NUMBERS)
RAW = ["1979-05-27", "07:32:00", "1e400", "-1e400", "0x7fffffffffffffffff", "1_000", "'a'", '"""x"""', "{a = 1}", "[1,"]
RAW += [
    "[" * 3000 + "]" * 3000,
    "{a=" * 2000 + "1" + "}" * 2000,
    "9" * 400,
    "-" + "9" * 30,
    "9" * 5000,
    "=",
    "[",
    "#",
    "",
]
RAW += ["a." * 3000 + "b = 1", "\n[run]", "\n[[event]]", "\n[sweep]", "\n[[run]]", "\ufeff", "\r", "nan", "inf"]


def to_text(value: object) -> str:
    """A value in TOML, as wrong as it may be."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {to_text(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_text, value)) + "]"
    return json.dumps(value).replace("\x7f", "\\u007f").replace("NaN", "nan").replace("Infinity", "inf")


# Hypothesis looks at each new strategy: these are made once.
A_MODEL, A_METHOD, A_QUANTITY = map(st.sampled_from, (sorted(MODELS), sorted(METHODS), QUANTITIES))
A_KEY, A_WORD, ONE_OR_TWO = st.sampled_from([*KEYS, *TEXTS]), st.sampled_from(RAW), st.sampled_from([1, 1, 1, 2])
A_SETTING = A_WORD | VALUES.map(to_text)
A_CHANGE = st.sampled_from(["value"] * 5 + ["gone", "key", "add", "add", "set", "set"])
A_BAD_SETTING = st.sampled_from(["", "=", "run", "run=1", ".=1", "run.=1", ". . =", "run.step.x=1", "a.b.c.d=1"])
AN_ENCODING = st.sampled_from(["utf-8"] * 40 + ["utf-8-sig", "utf-16", "latin-1"])


# -- configurations ---------------------------------------------------------------------------------------------------
def _paths(value: object, *before: str | int) -> list[tuple]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, part in parts for path in ((*before, key), *_paths(part, *before, key))]


def _change(draw, config: dict, known: list[str], sets: list[str]) -> None:
    """Change one thing, in the configuration or by a setting."""
    paths = [path for path in _paths(config) if len(path) > 1]
    path = draw(st.sampled_from(paths if paths and draw(st.integers(0, 9)) else [*_paths(config), ("run",)]))
    holder = config
    for key in path[:-1]:
        holder = holder[key]
    kind = draw(A_CHANGE)
    if kind == "value":
        numeric = path[-1] in holder or isinstance(holder, list)
        numeric = numeric and isinstance(holder[path[-1]], int | float) and draw(st.integers(0, 4))
        holder[path[-1]] = copy.deepcopy(draw(NUMERIC if numeric else VALUES))
    elif kind == "gone" and path[-1] in holder:
        del holder[path[-1]]
    elif kind == "key" and isinstance(holder, dict):
        holder[draw(A_KEY)] = holder.pop(path[-1], 1)
    elif kind == "add":
        section, _, key = draw(st.sampled_from(known)).partition(".")
        part = config.setdefault(section, {})
        if isinstance(part, dict):
            part[key] = copy.deepcopy(draw(VALUES))
    elif kind == "set":
        name = ".".join(map(str, path)) if draw(st.booleans()) else draw(st.sampled_from(known))
        sets.append(f"{name}={draw(A_SETTING)}")
    if draw(st.integers(0, 29)) == 0:
        sets.append(draw(A_BAD_SETTING))


@st.composite
def configurations(draw) -> tuple[bytes, list[str]]:
    """(the bytes of a file, settings): the example of a model with a few things changed."""
    model = MODELS[draw(A_MODEL)]
    steps = draw(st.integers(1, 3))
    config: dict = {"system": {"name": model.name, **model.example}, "method": dict(model.method)}
    config |= {"initial": dict(model.initial), "run": {"step": model.step, "steps": steps}}
    kind = draw(st.integers(0, 99))
    if kind == 0:  # a file is loaded, and its system traced, anew each time
        config |= {"system": {"python": "own.py:make"}, "initial": {"velocity": [0.5, -1.0, 0.0]}}
        config["method"] = {"name": "lagrange-dalembert"}
    elif kind < 26:
        method = METHODS[draw(A_METHOD)]
        config["method"] = {"name": method.name}
        if method.options:
            config["method"][draw(st.sampled_from(sorted(method.options)))] = draw(VALUES)
    elif kind < 41:
        config["event"] = [{"quantity": draw(A_QUANTITY), "index": 0, "value": 0.1}]
    config = json.loads(json.dumps(config))
    known = [f"{name}.{key}" for name in SCHEMA for key in SCHEMA[name]]
    known += [f"system.{key}" for key in model.parameters] + [f"initial.{key}" for key in model.initial]
    sets: list[str] = []
    for _ in range(draw(ONE_OR_TWO)):
        _change(draw, config, known, sets)
    text = "\n".join(f"{json.dumps(name)} = {to_text(part)}" for name, part in config.items())
    if draw(st.integers(0, 24)) == 0:
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(A_WORD) + text[place + draw(st.integers(0, 3)) :]
    encoding = draw(AN_ENCODING)
    return text.encode(encoding, errors="replace"), sets


def take_configuration(folder: Path, text: bytes, sets: list[str]) -> str:
    """What became of a configuration: "read" or "refused". Anything but a short sentence is a failure."""
    try:
        with contextlib.suppress(UnicodeDecodeError):
            given = None
            given = parse_toml(text.decode("ascii"), "job.toml")
        if given is None:  # what the encoding does is seen in a file only
            path = folder / "job.toml"
            path.write_bytes(text)
            given = read_config(path)
        job = parse_job(apply_settings(given, sets), folder)
    except InvalidInput as fault:
        assert 10 < len(str(fault)) < LONGEST_SENTENCE, f"no sentence: {str(fault)[:300]}"
        return "refused"
    assert tomllib.loads(job.text).keys() == job.config.keys()
    return "read"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a configuration, a system of one's own and a data file."""
    path = tmp_path_factory.mktemp("fuzz")
    (path / "own.py").write_text(own_system_template("own")[1])
    (path / "job.toml").write_text(model_template("suslov", "job.toml").replace("steps = 200", "steps = 2"))
    cli_words(["run", str(path / "job.toml"), "--out", str(path / "run.nc")], path)
    return path


@pytest.fixture(scope="module", autouse=True)
def no_work():
    """Work that takes long, or does not end, begins with `Begins` instead."""
    with pytest.MonkeyPatch.context() as patch:
        for place in WORK:
            patch.setattr(f"dalembert.{place}", _begin)
        simulate = cli.runs.simulate
        patch.setattr(
            "dalembert.cli.runs.simulate",
            lambda *given, **options: _begin() if options.get("steps", 9e9) > 100 else simulate(*given, **options),
        )
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        patch.setattr(typer.main, "get_command", lambda app: COMMAND)  # which a process makes once
        patch.setattr(mechanism, "_without_redundant", once_a_mechanism(mechanism._without_redundant))
        yield


def once_a_mechanism(function):
    """Find the redundant constraints of equal mechanisms once: most of those that are drawn differ elsewhere."""
    known = {}

    def find(parts, numbers):
        leaves, tree = jax.tree.flatten(numbers)
        key = parts, tree, tuple((np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in leaves)
        if key not in known:
            known[key] = function(parts, numbers)
        return known[key]

    return find


# -- flags ------------------------------------------------------------------------------------------------------------
class Begins(Exception):
    """All was read and checked: the work would begin."""


def _begin(*given: object, **options: object) -> None:
    raise Begins


WORK = (
    "analysis.comparison.simulation.simulate", "analysis.order.simulate", "cli.runs.run_demo_scene",
    "studio.film.stage", "cli.runs.open_studio", "cli.runs.export_page", "papers.reproduce_exhibits",
    "sweeps.execute._open_executor",
)  # fmt: skip
COMMAND = typer.main.get_command(cli.app)
COMMANDS = COMMAND.commands
FILES = ["job.toml", "job.toml", "job.toml", "run.nc", "own.py", "none.toml", "none.nc", ".", "", "out", "out/x.nc"]
FILES += [
    "x" * 300 + ".toml",
    "x" * 300 + ".nc",
    "x.png",
    "x.txt",
    "x.zarr",
    "x.gif",
    "y.toml",
    "missing/x.png",
    "/dev/null",
]
WORDS = {
    int: ["1", "2", "3", "0", "-1", "60", "9" * 30, "1e3", "x", "", "nan", "9" * 5000],
    float: ["1", "0.05", "0", "-1", "nan", "inf", "1e9", "1e-9", "1e300", "1e-320", "x", "", "9" * 400],
    bool: ["true", "x"],
    Path: FILES,
    str: [*NAMES, *TEXTS, "all", "systems", "energy", "velocity,energy", "x=1", "run_step=1", "local", "dask", "cuda"],
}
WORDS[str] += [
    "gauss:stages=3",
    "gauss:stages=99",
    "gauss:",
    ":",
    "gauss:x=1",
    "adaptive",
    "run.step=0.1",
    "run.step=[",
]
WORDS[str] += ["initial.velocity.0=1", "run.steps=1", f"run.steps={10**30}", "system.name=[1]", "tcp://127.0.0.1:1"]
WORDS[str] = [word for word in WORDS[str] if "\x00" not in word]  # no program can be given one


@st.composite
def flag_sets(draw) -> list[str]:
    """The words of a command: its arguments, some of its options, now and then what it does not have."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    words = [name]

    hints = get_type_hints(COMMANDS[name].callback)

    def value(parameter) -> str:
        kinds = [kind for kind in (int, float, Path, bool) if kind.__name__ in str(hints[parameter.name])]
        return draw(st.sampled_from(WORDS[kinds[0] if kinds else str]))

    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "argument":
            words += [value(parameter)] if parameter.required or draw(st.booleans()) else []
        elif parameter.name not in ("help", "install_completion") and draw(st.integers(0, 2)) == 0:
            flag = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
            for _ in range(draw(st.integers(1, 2)) if parameter.multiple else 1):
                words += [flag] if parameter.is_flag else [flag, value(parameter)]
    if draw(st.integers(0, 14)) == 0:
        words.insert(
            draw(st.integers(0, len(words))), draw(st.sampled_from(["--", "-", "--x", "-h", "--help", "x", "é"]))
        )
    return words


def cli_words(words: list[str], folder: Path) -> tuple[int | str, str]:
    """(exit code or "begins", what was written to stderr) of the command line with these words."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except Begins:
            return "begins", err.getvalue()
        except SystemExit as end:
            return end.code or 0, err.getvalue()
    raise AssertionError("main came back without an exit code")


def take_words(words: list[str], folder: Path) -> int | str:
    """What became of a command; a traceback, or an end without a sentence, is a failure."""
    code, message = cli_words(words, folder)
    assert code in ("begins", 0, 1, 2, 130) and "Traceback" not in message, message
    assert code in ("begins", 0) or len(message) > 10, "no sentence"
    return code


# -- plans and fits ---------------------------------------------------------------------------------------------------
FIT = """
[system]
name = "chaplygin-sleigh"
a = 0.2
[method]
name = "lagrange-dalembert"
[initial]
velocity = [0.4, 1.2, 0.0]
[run]
step = 0.02
steps = 2
[fit]
loss = "huber"
threshold = 1.5
shots = 1
max_runs = 20
[[unknown]]
name = "velocity.w"
low = -3.0
prior = [0.4, 1.0]
[[unknown]]
name = "system.a"
[[column]]
name = "rate"
quantity = "velocity_w"
deviation = 0.1
"""
DATA = "time,rate,other\n0.0,0.4,1\n0.02,,2\n0.04,0.39,3\n"
PARK = (Path(__file__).parents[2] / "examples" / "plan-park.toml").read_text()
TASKS = {"plan": tomllib.loads(PARK), "fit": tomllib.loads(FIT)}
TASK_KEYS = [f"{section}.{key}" for section in SCHEMA for key in SCHEMA[section]]
TASK_WORK = ("optimise.planning._Task.guesses", "optimise.fitting.FitProblem.__call__")


@st.composite
def tasks(draw) -> tuple[str, str, list[str]]:
    """(command, the text of a configuration, settings): a plan or a fit with a few things changed."""
    command = draw(st.sampled_from(sorted(TASKS)))
    config, sets = copy.deepcopy(TASKS[command]), []
    for _ in range(draw(ONE_OR_TWO)):
        _change(draw, config, TASK_KEYS, sets)
    return command, "\n".join(f"{json.dumps(name)} = {to_text(part)}" for name, part in config.items()), sets


def take_task(folder: Path, command: str, text: str, sets: list[str]) -> int | str:
    """What became of a plan or a fit; the search itself does not begin."""
    (folder / "task.toml").write_text(text)
    (folder / "data.csv").write_text(DATA)
    words = [command, "task.toml", *(["data.csv"] if command == "fit" else [])]
    with pytest.MonkeyPatch.context() as patch:
        for place in TASK_WORK:
            patch.setattr(f"dalembert.{place}", _begin)
        return take_words([*words, *(word for one in sets if "\x00" not in one for word in ("--set", one))], folder)


# -- arguments --------------------------------------------------------------------------------------------------------
SLEIGH = da.models.chaplygin_sleigh()
START = SLEIGH.state(xi=[0.5, -1.0, 0.0])
GIVEN: dict[str, object] = {
    "system": SLEIGH, "state": START, "integrator": da.EulerPoincareSuslov(), "group": da.SE2(), "step": 0.1,
    "steps": 2, "lagrangian": lambda t, g, xi, p: 0.5 * xi @ xi, "inertia": np.eye(3), "n": 2,
    "groups": (da.SO2(), da.SE2()),
    "name": "u", "kind": "energy", "function": da.Quantity("energy"), "policy": lambda t, g, xi: 0.0 * xi,
    "path": "none.nc", "integrators": {"rk": da.RungeKutta()}, "t_end": 0.2, "config": {},
}  # fmt: skip
"""Right values of arguments, by name: whatever public function asks for no others is drawn."""
ODDITIES = [
    None,
    True,
    0,
    -1,
    10**30,
    0.5,
    math.nan,
    math.inf,
    1j,
    "0.1",
    "x",
    "",
    b"x",
    [],
    [1],
    (),
    {},
    {"a": 1},
    {1},
]
ODDITIES += [object(), int, da.SE2, da.RungeKutta, da.SE2(), da.SO3(), da.Cayley(), da.RungeKutta(), SLEIGH, START, len]
ODDITIES += [
    np.zeros(0),
    np.zeros(3),
    np.zeros((2, 3)),
    np.full(3, np.nan),
    np.array(["a"]),
    np.array([1j]),
    [[1, 2], [3]],
]
ODDITIES += [
    lambda: 0,
    lambda *given: None,
    lambda *given: "x",
    lambda *given: np.zeros(7),
    Path("none"),
    range(3),
    ["a", "b"],
]
PUBLIC = {name: getattr(da, name) for name in dir(da) if name not in ("State", "Trajectory", "Discretisation")}
PUBLIC |= {f"models.{name}": model.build for name, model in MODELS.items()}
PUBLIC |= {f"methods.{name}": method.build for name, method in METHODS.items()}
PUBLIC |= {"system.state": SLEIGH.state}
GIVEN_TO = {f"models.{name}": model.example for name, model in MODELS.items()} | {"compare": {"steps": [0.1]}}
SEEN = da.optimise.Experiment([0.1, 0.2], {"w": [0.5, 0.4]}, START, 0.1)
GIVEN_TO["fit"] = {"model": SLEIGH, "experiments": SEEN, "unknowns": ["velocity.w"]}
CART = da.System(da.Euclidean(1), lambda t, g, xi, p: 0.5 * xi @ xi, force=lambda t, g, xi, u, p: u, inputs=("push",))
GIVEN_TO["plan"] = {"system": CART, "start": [0.0], "goal": [1.0], "steps": 2, "duration": 1.0}
GIVEN_TO["plan"]["cost"] = lambda t, g, xi, u: u @ u
GIVEN_TO["follow"] = {}
GIVEN_TO["experiment"] = {"times": [0.1, 0.2], "measured": {"w": [0.5, 0.4]}, "state": START}


@cache
def calls() -> dict[str, tuple[list[str], dict[str, object]]]:
    """The names of all arguments, and right values of those that are needed, of what can be called."""
    planned = da.plan(**GIVEN_TO["plan"])
    GIVEN_TO.update(track={"plan": planned}, control={"k": 0, "state": CART.state([0.0], [0.0])})
    tracked = da.track(planned)
    PUBLIC.update(experiment=da.optimise.Experiment, follow=tracked.follow, control=tracked.control)
    found = {}
    for name, function in PUBLIC.items():
        if callable(function) and not (isinstance(function, type) and issubclass(function, Exception)):
            parameters = inspect.signature(function).parameters
            own = GIVEN | dict(GIVEN_TO.get(name, {}))
            needed = [key for key, entry in parameters.items() if entry.default is entry.empty]
            needed += [key for key in ("steps", "xi") if key in parameters and key in own and key not in needed]
            if parameters and all(key in own for key in needed):
                found[name] = list(parameters), {key: own[key] for key in needed} | dict(GIVEN_TO.get(name, {}))
    return found


@st.composite
def misuses(draw) -> tuple[str, dict[str, object]]:
    """(a public function, arguments of which one or two are wrong or swapped)."""
    name = draw(st.sampled_from(sorted(calls())))
    parameters, right = calls()[name]
    given = dict(right)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        key = draw(st.sampled_from(parameters))
        flag = isinstance(inspect.signature(PUBLIC[name]).parameters[key].default, bool)  # which Python itself reads
        others = [value for value in GIVEN.values() if key != "progress" or not callable(value)]  # a user's own fault
        given[key] = draw(st.sampled_from([True, False, None, 1, "x"] if flag else [*ODDITIES, *others]))
    return name, given


def take_call(name: str, arguments: dict[str, object]) -> str:
    """What became of a call: "taken" or "refused". Any other exception is a failure."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            PUBLIC[name](**arguments)
    except (InvalidInput, NumericalFailure) as fault:
        assert 10 < len(str(fault)) < LONGEST_SENTENCE, f"no sentence: {str(fault)[:300]}"
        return "refused"
    except Begins:
        return "taken"
    return "taken"


# -- the tests --------------------------------------------------------------------------------------------------------
@fuzz(configurations(), 400)
def test_configurations(folder, drawn):
    take_configuration(folder, *drawn)


@fuzz(flag_sets(), 300)
def test_flags(folder, drawn):
    take_words(drawn, folder)


@pytest.mark.parametrize("command", TASKS)
def test_plans_and_fits_begin(folder, command):
    """What is changed below is taken as it is."""
    text = "\n".join(f"{json.dumps(name)} = {to_text(part)}" for name, part in TASKS[command].items())
    assert take_task(folder, command, text, []) == "begins"


@fuzz(tasks(), 100)
def test_plans_and_fits(folder, drawn):
    take_task(folder, *drawn)


@fuzz(misuses(), 300)
def test_arguments(drawn):
    take_call(*drawn)


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
def test_a_hundred_thousand(folder, part, monkeypatch):
    """Others than the fast tests draw: 80,000 configurations, 5,000 sets of flags, 4,000 tasks, 15,000 calls."""
    monkeypatch.setattr(problem, "MAX_PROGRAMS", 128)  # as users have it: most of these programs never come again

    def configuration(drawn):
        take_configuration(folder, *drawn)

    def flags(drawn):
        take_words(drawn, folder)

    def task(drawn):
        take_task(folder, *drawn)

    def arguments(drawn):
        take_call(*drawn)

    fuzz(configurations(), 80_000 // PARTS, 1 + part)(configuration)()
    fuzz(flag_sets(), 5_000 // PARTS, 1 + part)(flags)()
    fuzz(tasks(), 4_000 // PARTS, 1 + part)(task)()
    fuzz(misuses(), 15_000 // PARTS, 1 + part)(arguments)()
