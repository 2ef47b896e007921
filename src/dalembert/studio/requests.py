"""From what a page asks for to runs at frames.

A request names a configuration without code, within limits; every fault is told with its place. Its runs are integrated
with the native kernels and sampled as `RunFrames`: the motion and, at every frame, velocity, momentum, energy,
constraint and reaction as arrays. A data file gives such frames without running anything.
"""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from .. import simulation
from ..errors import InvalidInput, OffConstraint, UnknownName
from ..groups import Group, factors_named
from ..io.config import Job, build_method, build_system, hold_controls, load_function, parse_job
from ..io.dataset import load_run, open_dataset
from ..kernels import compile_function, evaluate, find_plan, one_at_a_time, plan_of
from ..mechanics import MechanicalSystem, State
from ..mechanics.system import unit_element
from ..models import MODELS
from ..plotting.style import COLOURS
from ..simulation import Conservation, Run, simulate
from .view import Array
from .workers import Cancelled

DEFAULT_FRAMES, MAX_FRAMES = 600, 4000
MAX_STEPS, MAX_SECONDS = 10_000_000, 60.0
FORECAST_SECONDS = 1.0
"""How long a run goes on before it is judged how long all of it will take."""
MAX_DIMENSION, MAX_RECORD_BYTES = 64, 256 * 1024**2
MAX_DEPTH, MAX_NUMBERS, MAX_TEXT, MAX_NUMBER, MAX_WHOLE = 8, 5_000, 300, 1e300, 2**62
MAX_COORDINATE = 1e30
MAX_CONTROLS = 100_000
REHEARSED = 16
"""Frames of a run that stands still: at least as many as a processor takes at once, as of other runs."""
OPENED_SYSTEM = "file"
"""What the page calls the system of the file on the command line: it can name no other code."""
REQUEST_KEYS = ("config", "against", "frames", "saved", "complete", "panes", "controls")


@dataclass(frozen=True, eq=False)
class StudioInput:
    """What the command line or a script opened: a configuration (and its folder), a run's data file, a system."""

    config: Mapping[str, Any] | None = None
    folder: Path = Path()
    saved: Path | None = None
    stories: tuple[Mapping[str, Any], ...] = ()  # of the user's own file
    make: Callable[..., MechanicalSystem] | None = None  # of a system that lives in Python, or in a URDF file
    discs: tuple[tuple[float, float, float], ...] = ()  # obstacles (x, y, radius) of a plan's configuration
    max_steps: int = MAX_STEPS
    max_seconds: float = MAX_SECONDS

    @property
    def own(self) -> Mapping[str, Any] | None:
        """The section [system] of a user's own system."""
        section = (self.config or {}).get("system", {})
        return section if "python" in section else None

    def obstacles(self, request: Mapping[str, Any]) -> list[tuple[float, float, float]]:
        """The obstacles of the configuration that was opened, where its system is asked for."""
        asked, opened = ((each or {}).get("system", {}).get("name") for each in (request.get("config"), self.config))
        return list(self.discs) if asked == (OPENED_SYSTEM if self.own else opened) else []

    def load(self, path: Path, name: str) -> Callable[..., Any]:
        """The function that makes the user's own system."""
        return load_function(path, name) if self.make is None else self.make

    def given(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What a page configures, which can bring no code: only the file given by the user may."""
        sections = {name: part for name, part in config.items() if name != "event"}  # which is a list of tables
        given = {**config} | {name: {k: v for k, v in part.items() if v is not None} for name, part in sections.items()}
        system = given.get("system", {})
        if "python" in system:
            raise at("system", "a page cannot name a Python file; give its configuration on the command line")
        if system.get("name") == OPENED_SYSTEM:
            if self.own is None:
                raise at("system.name", UnknownName("system", OPENED_SYSTEM, ()))
            parameters = {key: value for key, value in system.items() if key != "name"}
            given["system"] = {"python": self.own["python"], **parameters}
        return given

    def job(self, config: Mapping[str, Any]) -> Job:
        """Build what a page configures."""
        given = self.given(config)
        try:
            job = parse_job(given, self.folder, self.load)
        except InvalidInput as fault:
            raise at(_place_of(fault, given), fault) from None
        except Exception as fault:  # whatever the page wrote, it is told
            raise InvalidInput(f"no run can be made of this configuration: {type(fault).__name__}: {fault}") from fault
        _require_most("system", job.system.group.dim, MAX_DIMENSION, "velocities")
        return job


def _place_of(fault: InvalidInput, config: Mapping[str, Mapping[str, Any]]) -> str:
    """Where in the configuration a fault stands: its section, and the key that its message names first."""
    section = fault.place
    keys = {"run": ("step", "steps"), "initial": ("velocity", "momentum", "configuration")}.get(section, ())
    words = str(fault).replace("'", " ").replace(",", " ").replace(":", " ").split()
    named = [word for word in words if word in config.get(section, {}) or word in keys]
    if named and named[0] != "name":
        return f"{section}.{named[0]}"
    return f"{section}.name" if section in ("system", "method") else section


def at(place: str, told: InvalidInput | str) -> InvalidInput:
    """The fault, or one with this message, told to stand at this place of the configuration."""
    fault = InvalidInput(told) if isinstance(told, str) else told
    fault.place = place
    return fault


def check_request(request: Any, opened: StudioInput) -> tuple[int, Path | None]:
    """Count what is asked for, before any work; the number of frames, and the saved run if that is asked for."""
    if not isinstance(request, Mapping):
        raise InvalidInput("a request is an object with config, against and frames")
    for key in request:
        if key not in REQUEST_KEYS:
            raise UnknownName("key of a request", key, REQUEST_KEYS)
    frames = request.get("frames", DEFAULT_FRAMES)
    if isinstance(frames, bool) or not isinstance(frames, int) or not 2 <= frames <= MAX_FRAMES:
        raise at("frames", f"frames is {str(frames)[:40]}; allowed: a whole number from 2 to {MAX_FRAMES}")
    if request.get("saved"):
        if opened.saved is None:
            raise InvalidInput("no data file was given on the command line: there is no saved run")
        return frames, opened.saved
    config, against = request.get("config"), request.get("against")
    sections: dict[str, Any] = {**config, "against": against or {}} if isinstance(config, Mapping) else {"": None}
    events = sections.pop("event", [])
    if not isinstance(events, list) or not all(isinstance(part, Mapping) for part in (*sections.values(), *events)):
        raise InvalidInput("config must have sections of keys and values; against is one, event a list of them")
    _count_numbers("event", events)
    for name, part in sections.items():
        for key, value in part.items():
            count = _count_numbers(f"{name}.{key}", value)
            if key in ("velocity", "momentum"):
                _require_most(f"initial.{key}", count, MAX_DIMENSION, "numbers")
            if key == "name" and not isinstance(value, str):
                raise at(f"{name}.name", f"{name}.name is {str(value)[:40]}; allowed: a text")
    controls = request.get("controls") or {}
    rows = controls if isinstance(controls, list) else []
    if not isinstance(controls, list | Mapping) or not all(isinstance(row, list) and len(row) <= 16 for row in rows):
        raise at("controls", "controls are a list of rows, one a step, or waves by the names of inputs")
    _require_most("controls", sum(map(len, rows)), MAX_CONTROLS, "numbers")
    for key, value in controls.items() if isinstance(controls, Mapping) else enumerate(rows):
        _count_numbers(f"controls.{key}", value)
    run: Mapping[str, Any] = sections.get("run", {})
    kind = "t_end" if "t_end" in run else "steps"
    numbers = [run.get(key, 0) for key in (kind, "t0", "step")]
    if all(isinstance(number, int | float) for number in numbers):  # else the run is refused when it is built
        end, start, step = numbers
        steps = end if kind == "steps" else abs((end - start) / (step or 1.0))
        if steps > opened.max_steps:  # a method whose steps vary is watched while it runs
            text = f"{kind} is {end}, that is {steps:.15g} steps; allowed here: at most {opened.max_steps}"
            raise at(f"run.{kind}", f"{text} (`dalembert studio --max-steps`)")
    return frames, None


def _count_numbers(place: str, value: Any, depth: int = 0) -> int:
    """How many numbers are given; more than a configuration needs, or too large ones, are refused."""
    if isinstance(value, str):
        _require_most(place, len(value), MAX_TEXT, "characters")
    if isinstance(value, int | float) and not abs(value) <= (MAX_WHOLE if isinstance(value, int) else MAX_NUMBER):
        allowed = f"allowed: up to {MAX_NUMBER:g}, whole numbers up to {MAX_WHOLE}"
        raise at(place, f"{place} is too large a number; {allowed}")
    if not isinstance(value, list | Mapping):
        return 1
    _require_most(place, depth + 1, MAX_DEPTH, "lists in each other")
    entries = value if isinstance(value, list) else value.values()
    count = sum(_count_numbers(place, entry, depth + 1) for entry in entries)
    _require_most(place, count, MAX_NUMBERS, "numbers")
    return count


def _require_most(place: str, count: float, most: int, what: str) -> None:
    if count > most:
        allowed = f"allowed on this page: at most {most} (`dalembert run` has no such limit)"
        raise at(place, f"{place} has {count:.15g} {what}; {allowed}")


def jobs_of(request: Mapping[str, Any], opened: StudioInput) -> tuple[list[Job], list[float] | None]:
    """The run that is asked for and the same with another method beside it; the velocity, if it was moved onto D.

    In a request to be completed, the constraint determines some components of the velocity from the others.
    """
    config, against, velocity = request["config"], request.get("against"), None
    given = config.get("initial", {}).get("velocity")
    if request.get("complete") and isinstance(given, list):
        filled = [0.0 if entry is None else entry for entry in given]
        config = {**config, "initial": {**config["initial"], "velocity": filled}}
    try:
        jobs = [opened.job(config)]
    except OffConstraint:
        if not request.get("complete"):
            raise
        initial = dict(config["initial"])
        moved = np.asarray(initial.pop("velocity"), float)
        job = opened.job({**config, "initial": {**initial, "momentum": [0.0] * len(moved)}})
        rows, off = map(np.asarray, _constraint(job.system, job.state.t, job.state.g, moved))
        pivots = dependent_components(rows)
        moved[pivots] -= np.linalg.solve(rows[:, pivots], off)
        velocity = moved.tolist()
        config = {**config, "initial": {**initial, "velocity": velocity}}
        jobs = [opened.job(config)]
    if against is not None:
        try:
            jobs.append(opened.job({**config, "method": against}))
        except InvalidInput as fault:
            raise at(fault.place.replace("method", "against", 1), fault) from None
    return jobs, velocity


def kind_of(request: Mapping[str, Any]) -> str:
    """What the programs of a request depend on, about: the system but for its numbers, and the method."""
    system, method = (request["config"].get(name, {}) for name in ("system", "method"))
    kept = {key: value for key, value in system.items() if isinstance(value, str | int)}
    return json.dumps([kept, sorted(system), method], sort_keys=True)


def compile_steps(request: Mapping[str, Any], opened: StudioInput) -> None:
    """Compile the steps of a run, while another process makes its start and rehearses its scene."""
    with one_at_a_time(kind_of(request)):
        given = opened.given(request["config"])
        system = build_system(given["system"], opened.folder, opened.load)[1]
        kernel = simulation.run_kernel(build_method(given["method"]), True)
        rest = np.zeros(system.group.dim)
        state = State(np.zeros(()), unit_element(system.group), rest, rest, rest, system.group)
        consts = system, np.asarray(given["run"]["step"], float)
        if (begin := find_plan(kernel.begin, consts, (state, None))) is not None:
            plan_of(kernel.advance, kernel.observe, consts, begin[0].evaluate(begin[1]))


def controls_of(request: Mapping[str, Any], job: Job) -> Array | None:
    """The controls of a request, one row a step: as they were driven, or waves amplitude sin(rate t + phase)."""
    given, names = request.get("controls"), [each.name for each in job.system.inputs or ()]
    if not given:
        return cast("Array | None", job.controls)
    steps, step = int(job.run["steps"]), float(job.run["step"])
    if "t_end" in job.until or job.integrator.variable_step:
        raise at("controls", "controls need a method of constant step, which takes one row of them a step")
    _require_most("controls", steps * len(names), MAX_RECORD_BYTES // 8, "numbers")
    if isinstance(given, Mapping):
        try:
            return np.asarray(hold_controls(given, job.system, float(job.state.t), step, steps))
        except InvalidInput as fault:
            raise at("controls", fault) from fault
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for row in given for x in row)
    if not numbers or len(given) != steps or any(len(row) != len(names) for row in given):
        raise at("controls", f"controls have {len(given)} rows; allowed: {steps} rows of {len(names)} numbers")
    return np.array(given, float)


@compile_function
def _constraint(system: MechanicalSystem, t: Any, g: Any, xi: Any) -> tuple[Any, Any]:
    return system.rows(t, g)(xi), system.residual(t, g, xi)


def dependent_components(rows: Array) -> list[int]:
    """The components of a velocity that constraint rows (m, n) determine: pivots, the later ones among equals."""
    left, found = rows * (1 + 1e-6 * np.arange(rows.shape[1])), []
    for _ in rows:
        found.append(int(np.argmax((left**2).sum(axis=0))))
        pivot = left[:, found[-1]] / max(float(np.linalg.norm(left[:, found[-1]])), 1e-300)
        left = left - np.outer(pivot, pivot @ left)
        left[:, found] = 0.0
    return sorted(found)


def frame_interval(job: Job, frames: int) -> int:
    """How many steps a frame takes, so that there are at most `frames` and the last state."""
    return max(1, -(-int(job.run["steps"]) // frames))


def integrate(
    job: Job,
    every: int,
    cancelled: Callable[[], bool] = lambda: False,
    opened: StudioInput | None = None,
    controls: Array | None = None,
) -> tuple[Run, Conservation | None, float | None]:
    """The run of a job, where power enters its energy balance, and the seconds it took, if that is known.

    It is given up when nobody waits for it, and when it takes more steps or, as far as can be foreseen, more time than
    it may.
    """
    limits, begin, problem = opened or StudioInput(), time.process_time(), ""
    saved = simulation.save_interval(job.system, job.run["steps"], every)
    size = 8 * sum(np.size(leaf) for leaf in jax.tree.leaves(job.state)) * job.run["steps"] // saved
    if size > MAX_RECORD_BYTES:
        text = f"the states of this run take {size / 1024**2:.0f} MiB; allowed: {MAX_RECORD_BYTES / 1024**2:.0f}"
        raise at("run.steps", f"{text}: take fewer steps")

    def go_on(done: int, total: int) -> None:
        nonlocal problem
        spent, foreseen = time.process_time() - started, 0.0
        if spent > FORECAST_SECONDS and "t_end" not in job.until:
            foreseen = spent * total / max(done, 1)
        if started - begin + max(spent, foreseen) > limits.max_seconds:
            fewer = int(job.run["steps"] * (limits.max_seconds - (started - begin)) / max(spent, foreseen))
            most = f"{limits.max_seconds:g} s"
            problem = f"the run takes longer than {most}: take fewer steps (about {fewer} can be done)"
        if done * saved > limits.max_steps:
            problem = f"the run takes more than {limits.max_steps} steps: take a smaller t_end"
        if problem or cancelled():
            raise KeyboardInterrupt  # `kernels.run` ends a run so, between pieces

    options: dict[str, Any] = {"step": job.run["step"], "monitor": True, "backend": job.run.get("backend", "auto")}
    options["events"] = job.events
    with job.locate_errors():
        first = None if controls is None else controls[:1]  # one step compiles, if that is still to be done
        simulate(job.system, job.integrator, job.state, steps=1, controls=first, **options)
        started, clock = time.process_time(), time.perf_counter()
        options |= {"save_every": saved, "progress": go_on, "controls": controls}
        run = simulate(job.system, job.integrator, job.state, **job.until, **options)
    seconds = None if job.events else time.perf_counter() - clock  # what finds events is compiled when it finds one
    if run.interrupted:
        if problem:
            raise at("run.steps" if "steps" in job.config["run"] else "run.t_end", problem)
        raise Cancelled
    if simulation.receives_power(job.system) and run.failed_at != -1:
        return *simulation.subsample(run, every), seconds
    return run, None, seconds


@dataclass(frozen=True)
class RunFrames:
    """One run, all its arrays over the same frames: a run that failed stands still at its last good state."""

    t: Array
    group: str
    parts: tuple[Array, ...]  # the configuration, one array for each factor of the group
    velocity: Array
    momentum: Array
    energy: Array
    constraint: Array
    distance: Array  # from the group
    rows: Array  # of the constraint, (frames, m, n)
    reaction: Array  # of the constraint, in the body, (frames, n)
    valid: int  # frames before the run failed
    name: str = ""  # of its model
    parameters: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0  # 0, or 1 for the run beside it
    system: MechanicalSystem | None = None
    trajectory: Run | None = None
    balance: Conservation | None = None  # where power enters, at every frame
    alone: bool = False  # whether it has a scene of its own
    columns: tuple[tuple[str, str], ...] = ()  # the components of the velocity, as their maker calls them, and units

    @property
    def factors(self) -> tuple[Group | None, ...]:
        """The factors of the group; None for a group that is not dalembert's where only its name is known."""
        return factors_named(self.group) if self.system is None else self.system.group.factors

    def parameter(self, name: str, default: float) -> float:
        value = self.parameters.get(name, default)
        return float(value) if isinstance(value, int | float) else default

    @property
    def conservation(self) -> Conservation:
        """What the method should conserve of the energy."""
        if self.balance is not None:
            return self.balance
        change = self.energy - self.energy[0]
        driven = self.trajectory is not None and self.trajectory.controlled
        enters = driven or (self.system is not None and simulation.receives_power(self.system))
        title = simulation.ENERGY_CHANGE if enters else simulation.ENERGY_ERROR
        return Conservation(title, "|E - E(0)|", change, float(np.abs(change).max()))

    @property
    def is_first(self) -> bool:
        """Whether this run also draws what belongs to no run."""
        return self.index == 0 or self.alone

    @property
    def colour(self) -> str:
        return COLOURS[0 if self.index == 0 else 2]

    @property
    def opacity(self) -> float:
        """The body of the second run in a scene is transparent."""
        return 1.0 if self.is_first else 0.45


def frames_of_run(
    run: Run, job: Job | None = None, index: int = 0, times: Array | None = None, balance: Conservation | None = None
) -> RunFrames:
    """A run at the frames `times` (by default saved states, at most 4000), with its configuration's parameters.

    Each frame shows the last state that was saved by then, so that all runs are in step. Nothing is interpolated: runs
    of one step have the same times, and a run that chooses its own steps lags by less than a frame.
    """
    times = np.asarray(run.t)[_spread(len(run.t), MAX_FRAMES)] if times is None else times
    forward, tolerance = (1.0 if float(run.step) > 0 else -1.0), 1e-9 * abs(float(run.step))
    own, wanted = forward * np.asarray(run.t), forward * times
    frames = np.clip(np.searchsorted(own, wanted + tolerance, side="right") - 1, 0, None)
    parts = tuple(_clip(np.asarray(part)[frames]) for part in (run.g if isinstance(run.g, tuple) else (run.g,)))
    states: State = jax.tree.map(lambda leaf: np.asarray(leaf)[frames], run.records.state)
    # each state is a lane of a run of no steps, so that another number of frames compiles nothing
    u = jax.tree.map(lambda rows: rows[frames], run.controls_at_states())
    values = evaluate(_evaluate_state, run.system, (states, u), lanes=len(frames), axes=(None, 0))
    values |= {"velocity": states.xi, "momentum": states.momentum}
    arrays: dict[str, Any] = {name: _clip(np.asarray(column)) for name, column in values.items()}
    arrays |= _model(job.config["system"] if job is not None else {})
    if balance is None and job is None and run.failed_at != -1:  # a run of Python or of a file
        balance = simulation.energy_conservation(run)
    if balance is not None:
        balance = balance._replace(values=_clip(balance.values[frames]))
    arrays["columns"] = tuple((axis.name, axis.velocity) for axis in run.system.axes())
    valid = int(np.count_nonzero(wanted <= own[-1] + tolerance))
    about: dict[str, Any] = {"index": index, "system": run.system, "trajectory": run, "balance": balance}
    return RunFrames(times, str(run.system.group), parts, **arrays, valid=valid, **about)


def rehearse(job: Job) -> RunFrames:
    """A run that stands still: what its frames and its scene need is compiled for it."""
    state = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], REHEARSED, axis=0), State(*job.state))
    values = evaluate(_evaluate_state, job.system, (state, None), lanes=REHEARSED, axes=(None, 0))
    arrays = {name: np.asarray(column) for name, column in values.items()} | _model(job.config["system"])
    parts = state.g if isinstance(state.g, tuple) else (state.g,)
    arrays |= {"velocity": state.xi, "momentum": state.momentum, "system": job.system, "valid": REHEARSED}
    return RunFrames(state.t + np.arange(REHEARSED), str(job.system.group), parts, **arrays)


def _model(system: Mapping[str, Any]) -> dict[str, Any]:
    """The name and the parameters of the model that a section [system] names."""
    name = str(system.get("name", ""))
    return {"name": name, "parameters": {**(MODELS[name].parameters if name in MODELS else {}), **system}}


def _spread(count: int, frames: int) -> Array:
    """About `frames` of the numbers below `count`, evenly spread, and the last of them."""
    return np.unique(np.append(np.arange(0, count, max(1, -(-(count - 1) // frames))), count - 1))


def _clip(values: Array) -> Array:
    """Numbers that can be drawn: a run without a start has none, and numbers that are too large are cut."""
    return np.asarray(np.clip(np.nan_to_num(values, nan=0.0), -MAX_COORDINATE, MAX_COORDINATE))


def _evaluate_state(system: MechanicalSystem, point: tuple[State, Any]) -> dict[str, Any]:
    """Energy, constraint, group distance, constraint rows and, under the controls u, the reaction at a state."""
    (t, g, xi, *_), u = point
    rows, residual = system.rows(t, g)(xi), system.residual(t, g, xi)
    found = {"rows": rows, "reaction": system.multipliers(t, g, xi, u) @ rows, "energy": system.energy(t, g, xi)}
    return found | {"constraint": jnp.max(jnp.abs(residual), initial=0.0), "distance": system.group.distance(g)}


def config_of_file(path: Path, unchecked: bool = False) -> dict[str, Any] | None:
    """The configuration in a data file if it names a model of dalembert; nobody's code runs."""
    try:
        config = tomllib.loads(open_dataset(path, unchecked=unchecked).attrs.get("config", ""))
    except tomllib.TOMLDecodeError:
        return None
    return config if config.get("system", {}).get("name") in MODELS else None


def frames_of_file(path: Path, frames: int = MAX_FRAMES, unchecked: bool = False) -> RunFrames:
    """The run that a data file holds, at about `frames` of its saved states; nobody's code runs."""
    data = open_dataset(path, unchecked=unchecked)
    names = sorted(name for name in map(str, data) if name.startswith("configuration"))
    if not names or "time" not in data.variables:
        raise InvalidInput(f"{path} has no configurations over time; it has: {', '.join(map(str, data))}")
    if data["time"].ndim != 1:
        raise InvalidInput(f"{path} holds an ensemble; a moving picture shows one run")
    if "velocity" not in data or "energy" not in data:
        raise InvalidInput(f"{path} has no velocity and energy over time: it was not written by `dalembert run --out`")
    section = tomllib.loads(data.attrs.get("config", "")).get("system", {})
    states = _spread(data["time"].size, frames)
    try:
        run = load_run(path, unchecked=unchecked)
        return replace(frames_of_run(run, times=np.asarray(run.t)[states]), **_model(section))
    except InvalidInput:
        pass  # a system of the user's own: the file has its numbers, but cannot hold its functions
    t, parts = data["time"].values[states], tuple(_clip(data[name].values[states]) for name in names)
    zero, columns = np.zeros(len(states)), {"constraint": "constraint_residual", "distance": "group_distance"}
    columns |= {name: name for name in ("velocity", "momentum", "energy")}
    arrays: dict[str, Any] = {
        name: _clip(data[column].values[states]) if column in data else zero for name, column in columns.items()
    }
    xi = arrays["velocity"]
    arrays |= {"rows": np.zeros((len(states), 0, xi.shape[1])), "reaction": 0 * xi}
    if "component" in data and "velocity_unit" in data.coords:
        arrays["columns"] = tuple(zip(data["component"].values, data["velocity_unit"].values, strict=True))
    if "work" in data:  # power enters: what the work explains is no error
        kept = data["energy"].values - data["energy"].values[0] - data["work"].values
        words = simulation.ENERGY_BALANCE, "|E - E(0) - work|"
        arrays["balance"] = Conservation(*words, _clip(kept[states]), float(np.abs(kept).max()))
    elif (step := float(data.attrs.get("step") or 0.0)) and abs(t[-1] - t[0]) > 1.5 * abs(step) * (
        data["time"].size - 1
    ):
        change = data["energy"].values - data["energy"].values[0]  # nobody knows the work between saved states
        words = simulation.ENERGY_CHANGE, "|E - E(0)|"
        arrays["balance"] = Conservation(*words, _clip(change[states]), float(np.abs(change).max()))
    return RunFrames(t, str(data.attrs.get("group", "")), parts, **arrays, valid=len(states), **_model(section))
