"""The plan of a sweep: what the section [sweep] varies, in blocks of members, and these as lanes of compiled runs.

The values of an axis are computed where they are needed and never all at once, so that 10^8 members take no memory.
A kernel builds the system of every lane from its numbers. Where these cannot be traced (a mechanism is drawn, and its
start found from names, with known numbers), systems and states are built here, and their parameters are lanes. What
makes another program (an option of a method, a dimension, another drawing) is structure, with a kernel of its own.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, UnknownName, require_name
from ..integrators import OK, Integrator
from ..io import config as configuration
from ..io.dataset import Arrays, column_text
from ..kernels import Backend, evaluate, make_problem, run_problem
from ..mechanics import ADMISSIBLE_TOLERANCE, MechanicalSystem, State
from ..numerics import GROWTH_KINDS, MAX_BLOCKS, MIN_SAMPLES, classify, own_value, positive_int
from ..simulation import LoopState, RunKernel, count_steps, fail_off_constraint, run_kernel

Values = dict[str, Any]  # name -> values of members
Points = np.ndarray[Any, Any]
Numbers = Mapping[str, Array]  # the traced values of a member, or of many
Structure = tuple[str, ...]  # the values of the other names, as JSON
Member = tuple[MechanicalSystem, State, Array]  # what a run starts from: the system, the state, the step
Base = tuple[MechanicalSystem | None, State | None]  # what of a member does not depend on traced numbers

AXIS_KINDS = ("values", "grid", "linspace", "logspace", "random")
SAMPLE_KINDS = ("random", "latin", "sobol")
MAX_LATIN_POINTS = 10**7
"""A Latin sample is held in memory as a whole."""
SWEEP_OPTIONS = ("combine", "keep", "save_every", "chunk", "reductions")
KEEP_CHOICES = ("final", "extremes", "states", "drift")
FIXED_NAMES = ("run.save_every", "run.backend")
MAX_MEMBERS = 10**9
"""A mistyped grid easily has more members."""
REDUCTION_NOT_FINITE = 5
"""Status of a member with a reduction that is not finite at the end."""
ENERGY_NAME = "initial.energy"
MAX_FAMILIES = 256  # whose functions are kept: members of others make theirs again
PROBES_PER_AXIS = 8
"""Places along an axis at which a member is built and checked before anything runs."""
STATE_VARIABLES = ("time", "velocity", "momentum", "angle", "configuration", "coordinate")
NOT_DONE, NOT_CLASSIFIED, NOT_FAILED = -1, -1, -2
STATUS_TEXT = (
    "0 ok, 1 not converged, 2 branch lost, 3 not finite, 4 starts off the constraint, 5 a reduction is not finite, "
    "-1 not computed"
)
SCALAR = jax.ShapeDtypeStruct((), float)  # type: ignore[no-untyped-call]  # JAX does not annotate it


@dataclass(frozen=True, eq=False)
class SweepAxis:
    """One dimension of a sweep: the names it varies together, and their values at the places lo, ..., hi - 1."""

    names: tuple[str, ...]
    size: int
    at: Callable[[int, int], Values]

    @property
    def dim(self) -> str:
        """The name of the dimension in the results."""
        return self.names[0].replace(".", "_") if len(self.names) == 1 else "sample"


class Reduction(NamedTuple):
    """A number (or array) that a kernel accumulates over a run.

    It is start(system, state, h), and update(value, system, state, h) after every good step.
    """

    start: Callable[..., Any]
    update: Callable[..., Any]


class GridBlock(NamedTuple):
    """A box of members: its number and its range (lo, hi) along every dimension; its members are in C order."""

    number: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(hi - lo for lo, hi in self.ranges)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def region(self) -> tuple[slice, ...]:
        """The place of the block in an array over all members."""
        return tuple(slice(lo, hi) for lo, hi in self.ranges)


@dataclass(frozen=True, eq=False)
class SweepPlan:
    """Everything that determines the numbers of a sweep. `chunk` is the largest number of members of a block."""

    config: Mapping[str, Any]  # without [sweep]
    section: Mapping[str, Any]  # [sweep] as given
    folder: Path
    axes: tuple[SweepAxis, ...]
    zipped: bool
    keep: tuple[str, ...]
    save_every: int
    chunk: int
    reductions: Mapping[str, Reduction]

    @property
    def names(self) -> tuple[str, ...]:
        """What is varied, along all axes."""
        return tuple(name for axis in self.axes for name in axis.names)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of the results; zipped axes have one, `member`."""
        return ("member",) if self.zipped else tuple(axis.dim for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of members along every dimension."""
        return (self.axes[0].size,) if self.zipped else tuple(axis.size for axis in self.axes)

    @property
    def members(self) -> int:
        """The number of runs."""
        return math.prod(self.shape)

    @cached_property
    def block_shape(self) -> tuple[int, ...]:
        """A block spans inner dimensions entirely, a part of one, and single places of the outer ones."""
        left, sizes = self.chunk, []
        for size in reversed(self.shape):
            sizes.append(max(1, min(size, left)))
            left //= size
        return tuple(reversed(sizes))

    @property
    def block_grid(self) -> tuple[int, ...]:
        """The number of blocks along every dimension."""
        return tuple(-(-size // part) for size, part in zip(self.shape, self.block_shape, strict=True))

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return math.prod(self.block_grid)

    def block(self, number: int) -> GridBlock:
        """The block of this number, in C order."""
        places = [int(place) for place in np.unravel_index(number, self.block_grid)]
        parts = zip(places, self.block_shape, self.shape, strict=True)
        return GridBlock(number, tuple((p * part, min((p + 1) * part, size)) for p, part, size in parts))

    def values(self, block: GridBlock) -> Values:
        """The values of all names at the members of a block, in C order."""
        if self.zipped:
            return {key: entry for axis in self.axes for key, entry in axis.at(*block.ranges[0]).items()}
        found: Values = {}
        for k, (axis, place) in enumerate(zip(self.axes, block.ranges, strict=True)):
            before, after = math.prod(block.shape[:k]), math.prod(block.shape[k + 1 :])
            for name, part in axis.at(*place).items():
                if isinstance(part, np.ndarray):
                    found[name] = np.tile(np.repeat(part, after), before)
                else:
                    found[name] = [entry for entry in part for _ in range(after)] * before
        return found

    def member(self, index: int = 0) -> Values:
        """The values of one member."""
        places = np.unravel_index(index, self.shape)
        block = GridBlock(0, tuple((int(p), int(p) + 1) for p in places))
        return {name: to_python(part[0]) for name, part in self.values(block).items()}

    def coordinates(self) -> list[tuple[str, str, SweepAxis]]:
        """(varied name, its dimension, its axis); the coordinate has "_" in the place of "."."""
        return [(name, "member" if self.zipped else axis.dim, axis) for axis in self.axes for name in axis.names]

    @cached_property
    def description(self) -> str:
        """What a store must agree with to be resumed, as JSON."""
        marks = {name: [_fingerprint(part) for part in reduction] for name, reduction in self.reductions.items()}
        parts = {"config": self.config, "sweep": self.section, "blocks": self.block_shape, "reductions": marks}
        return json.dumps(parts, sort_keys=True, default=str)


def make_plan(
    config: Mapping[str, Any], folder: str | Path = ".", reductions: Mapping[str, Any] | None = None, *, chunk: int
) -> SweepPlan:
    """Check the section [sweep]. Names are checked where members are built; `chunk` is used if the section has none."""
    section = config.get("sweep")
    example = "run.step = {linspace = [0.01, 0.1, 10]}"
    if not isinstance(section, Mapping):
        raise InvalidInput(f"the section [sweep] is missing: it names what varies, such as {example}")
    section = configuration.read_value(section, "sweep")
    varied = {key: entry for key, entry in section.items() if key not in SWEEP_OPTIONS}
    for key in varied:
        if key.split(".")[0] not in (*configuration.SECTIONS, "sample"):
            raise UnknownName("key of [sweep]", key, (*configuration.SECTIONS, "sample", *SWEEP_OPTIONS))
    axes = tuple(parse_axes(varied))
    if not axes:
        raise InvalidInput(f"[sweep] varies nothing; give it a name such as {example}")
    for name in (name for axis in axes for name in axis.names):
        if name in FIXED_NAMES or "." not in name or name.split(".")[0] not in configuration.SECTIONS:
            raise InvalidInput(
                f"[sweep] cannot vary {name}; allowed: a parameter of system, method, initial or run such as run.step"
            )
    combine = section.get("combine", "product")
    require_name("combine of [sweep]", combine, ("product", "zip"))
    sizes = {axis.names[0]: axis.size for axis in axes}
    if combine == "zip" and len(set(sizes.values())) > 1:
        raise InvalidInput(f'combine = "zip" needs axes of one size; given {sizes}')
    members = axes[0].size if combine == "zip" else math.prod(sizes.values())
    if members > MAX_MEMBERS:
        product = " x ".join(f"{size} of {name}" for name, size in sizes.items())
        raise InvalidInput(
            f"the sweep has {members:.3g} members ({product}); allowed: {MAX_MEMBERS:.0e}. "
            "Take coarser grids, or a Sobol sample"
        )
    if "controls" in config:
        raise InvalidInput(f"a sweep has no [controls]: {configuration.STEER_INSTEAD}")
    if "event" in config:
        raise InvalidInput(
            "a sweep looks for no events; leave out the tables [[event]], or run its members with dalembert.ensemble"
        )
    keep = section.get("keep", ["final", "extremes"])
    keep = tuple(keep) if isinstance(keep, list) else (keep,)
    for choice in keep:
        require_name("entry of keep in [sweep]", choice, KEEP_CHOICES)
    rest = {key: entry for key, entry in config.items() if key != "sweep"}
    save_every = section.get("save_every", rest.get("run", {}).get("save_every", 1))
    every = positive_int("save_every of [sweep]", save_every)
    chunk = positive_int("chunk of [sweep]", section.get("chunk", chunk))
    checked = _read_reductions(section.get("reductions", {}), Path(folder), reductions or {})
    return SweepPlan(rest, section, Path(folder), axes, combine == "zip", keep, every, chunk, checked)


def _read_reductions(given: Any, folder: Path, own: Mapping[str, Any]) -> dict[str, Reduction]:
    """The reductions of a file (name = "file.py:function", which returns (start, update)) and those that are given."""
    if not isinstance(given, Mapping) or not all(isinstance(entry, str) and ":" in entry for entry in given.values()):
        raise InvalidInput(
            f'reductions of [sweep] are {given!r}; allowed: name = "file.py:function", which returns (start, update)'
        )
    parts = {name: entry.rpartition(":") for name, entry in given.items()}
    named = {
        name: configuration.load_function((folder / file).resolve(), function)()
        for name, (file, _, function) in parts.items()
    }
    for name, pair in (named | dict(own)).items():
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(callable(part) for part in pair)):
            raise InvalidInput(
                f"reduction {name} is {pair!r}; allowed: (start, update), "
                "functions of (system, state, h) and (value, system, state, h)"
            )
        if not name.isidentifier():
            raise InvalidInput(f"reduction {name!r} needs a name of letters, digits and underscores")
    return {name: Reduction(*pair) for name, pair in (named | dict(own)).items()}


def _fingerprint(function: Callable[..., Any]) -> str:
    """Tell a changed function from the one that made a store."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = getattr(getattr(function, "__code__", None), "co_code", b"").hex()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def substitute(config: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """The configuration of a member: `system.inertia.0.2` is an entry of a list."""
    result = copy.deepcopy({name: dict(part) if isinstance(part, Mapping) else part for name, part in config.items()})
    for name, value in values.items():
        *path, last = name.split(".")
        try:
            if len(path) == 2 and not last.isdecimal() and path[1] not in {"configuration", *result.get(path[0], {})}:
                raise InvalidInput(name)  # what the file leaves out is no table: {linspce = [...]}
            configuration.set_value(result, (*path, last), value)
        except InvalidInput:
            if last.isdecimal():
                raise
            if path[-1] in ("velocity", "momentum", "configuration"):
                where = ".".join(path)
                named = f", or by its name if [initial] has velocity = {{{last} = 1.0}}" * (path[-1] == "velocity")
                words = f"allowed: a component by its number, {where}.0{named}"
                raise InvalidInput(f"[sweep] varies {name}; {words}") from None
            raise UnknownName(f"kind of axis (for {'.'.join(path)})", last, AXIS_KINDS) from None
    return result


def to_python(value: Any) -> Any:
    """A NumPy number as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def parse_axes(section: Mapping[str, Any]) -> list[SweepAxis]:
    """The axes in the order of the file; `sample` is one axis for all its names."""
    found = []
    for key, entry in section.items():
        if key == "sample":
            found.append(parse_sample(entry))
        else:
            found += [parse_axis(name, spec) for name, spec in flatten_table(key, entry, AXIS_KINDS)]
    names = [name for one in found for name in one.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(f"[sweep] varies {', '.join(twice)} twice")
    return found


def flatten_table(name: str, entry: Any, kinds: tuple[str, ...]) -> list[tuple[str, Any]]:
    """`run.step = {...}` is a nested table in TOML: the (dotted name, specification) pairs below it."""
    if not isinstance(entry, Mapping) or set(entry) & set(kinds):
        return [(name, entry)]
    return [pair for key, inner in entry.items() for pair in flatten_table(f"{name}.{key}", inner, kinds)]


def parse_axis(name: str, spec: Any) -> SweepAxis:
    """The axis of one name: a list, or one of {values | grid | linspace | logspace | random = ...}."""
    if isinstance(spec, list):
        spec = {"values": spec}
    kinds = [key for key in AXIS_KINDS if isinstance(spec, Mapping) and key in spec]
    if len(kinds) != 1:
        one = ", ".join(AXIS_KINDS)
        raise InvalidInput(f"sweep of {name} is {spec!r}; allowed: a list, or a table with exactly one of {one}")
    kind = kinds[0]
    allowed = ("count", "seed") if kind == "random" else ()
    for key in spec:
        if key not in (kind, *allowed):
            raise UnknownName(f"key of the {kind} of {name}", key, (*AXIS_KINDS, *allowed))
    if kind == "values":
        values = spec[kind]
        if not isinstance(values, list) or not values:
            raise InvalidInput(f"values of {name} are {values!r}; allowed: a list with at least one entry")
        array = np.asarray(values) if configuration.VECTOR.accepts(values) else values
        return SweepAxis((name,), len(values), lambda lo, hi: {name: array[lo:hi]})
    if kind == "random":
        low, high = read_numbers(f"random of {name}", spec[kind], "low, high")
        count, seed = positive_int(f"count of {name}", spec.get("count")), _seed(name, spec)
        return SweepAxis((name,), count, lambda lo, hi: {name: low + (high - low) * _draw_uniform(seed, name, lo, hi)})
    return _spaced_axis(name, kind, spec[kind])


def _spaced_axis(name: str, kind: str, given: Any) -> SweepAxis:
    """linspace and logspace = [first, last, count], grid = [first, last, spacing]; the last value is met exactly."""
    form = "first, last, " + ("spacing" if kind == "grid" else "count")
    first, last, third = read_numbers(f"{kind} of {name}", given, form)
    if kind == "grid":
        count = 1 + math.floor((last - first) / third * (1 + 1e-12)) if third else 0
        if count < 1:
            raise InvalidInput(f"grid of {name} is {given}; allowed: [first, last, spacing] with at least one point")
        return SweepAxis((name,), count, lambda lo, hi: {name: first + third * np.arange(lo, hi)})
    count = positive_int(f"count in {kind} of {name}", given[2])
    if kind == "logspace" and not (first > 0 and last > 0):
        raise InvalidInput(f"logspace of {name} is {given}; allowed: [first, last, count], positive values themselves")

    def at(lo: int, hi: int) -> Values:
        share = np.arange(lo, hi) / max(count - 1, 1)
        inner = first * (last / first) ** share if kind == "logspace" else first + (last - first) * share
        return {name: np.where(share == 1.0, last, inner)}

    return SweepAxis((name,), count, at)


def parse_sample(spec: Any) -> SweepAxis:
    """`sample = {sobol = 1024, seed = 0, ranges = {run.step = [0.01, 0.1], ...}}`: points of a box as one dimension."""
    kinds = [key for key in spec if key in SAMPLE_KINDS] if isinstance(spec, Mapping) else []
    if len(kinds) != 1 or "ranges" not in spec:
        form = f"{{{' | '.join(SAMPLE_KINDS)} = count, seed = 0, ranges = {{...}}}}"
        raise InvalidInput(f"sample is {spec!r}; allowed: {form}")
    kind = kinds[0]
    for key in spec:
        if key not in (kind, "seed", "ranges"):
            raise UnknownName("key of the sample", key, (*SAMPLE_KINDS, "seed", "ranges"))
    count, seed = positive_int(f"count of the {kind} sample", spec[kind]), _seed("sample", spec)
    if kind == "latin" and count > MAX_LATIN_POINTS:
        raise InvalidInput(f"a Latin sample of {count} points is too large; allowed: {MAX_LATIN_POINTS}, or take sobol")
    if not isinstance(spec["ranges"], Mapping) or not spec["ranges"]:
        form = "a table such as {run.step = [0.01, 0.1]}"
        raise InvalidInput(f"ranges of the sample are {spec['ranges']!r}; allowed: {form}")
    ranges = [pair for key, entry in spec["ranges"].items() for pair in flatten_table(key, entry, ())]
    names = tuple(name for name, _ in ranges)
    bounds = np.array([read_numbers(f"range of {name}", given, "low, high") for name, given in ranges])

    def unit_points(lo: int, hi: int) -> Points:
        from scipy.stats import qmc

        if kind == "random":
            return np.stack([_draw_uniform(seed, name, lo, hi) for name in names], axis=1)
        if kind == "latin":
            return _latin(len(names), count, seed)[lo:hi]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a part of a sequence is not a power of two is no fault
            engine = qmc.Sobol(len(names), rng=seed)
            return np.asarray((engine.fast_forward(lo) if lo else engine).random(hi - lo))

    def at(lo: int, hi: int) -> Values:
        points = bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * unit_points(lo, hi)
        return dict(zip(names, points.T, strict=True))

    return SweepAxis(names, count, at)


def _draw_uniform(seed: int, name: str, lo: int, hi: int) -> Points:
    """Numbers lo, ..., hi - 1 of the stream of a name: a counter-based generator starts at any place at once."""
    stream = np.random.Philox(key=[seed, zlib.crc32(name.encode())]).advance(lo // 4)  # four numbers a block
    return np.random.Generator(stream).random(hi - lo // 4 * 4)[lo % 4 :]


@lru_cache(maxsize=2)
def _latin(size: int, count: int, seed: int) -> Points:
    from scipy.stats import qmc

    return np.asarray(qmc.LatinHypercube(size, rng=seed).random(count))


def read_numbers(what: str, given: Any, names: str) -> list[float]:
    """A list with one number for each of the names, or a clear error."""
    if not configuration.VECTOR.accepts(given) or len(given) != names.count(",") + 1:
        raise InvalidInput(f"{what} is {given!r}; allowed: [{names}], finite numbers")
    return [float(x) for x in given]


def _seed(name: str, spec: Mapping[str, Any]) -> int:
    seed = spec.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise InvalidInput(f"seed of {name} is {seed!r}; allowed: a whole number, not negative")
    return seed


# The members as lanes of compiled runs.


class SweepLoop(NamedTuple):
    """The loop of a run beside the values of the user's reductions."""

    loop: LoopState
    values: dict[str, Any]


def member_kernel(
    integrator: Integrator, build: Callable[[Any], Member], keep: tuple[str, ...], reductions: Mapping[str, Any]
) -> RunKernel:
    """The run of a member: like `run_kernel`, but the constants are its numbers, and reductions go along."""
    kernel = run_kernel(integrator, "extremes" in keep)

    def begin(numbers: Numbers, _: Any) -> SweepLoop:
        system, state, h = build(numbers)
        loop = fail_off_constraint(kernel.begin((system, h), (state, None)), system, state, ADMISSIBLE_TOLERANCE)
        seen = integrator.observe(system, loop.carry, h)
        values = {name: _reduce(name, one.start, "start(system, state, h)", system, seen, h)
                  for name, one in reductions.items()}  # fmt: skip
        return SweepLoop(loop, values)

    def advance(numbers: Numbers, before: SweepLoop, u: Any) -> SweepLoop:
        system, _, h = build(numbers)
        loop = kernel.advance((system, h), before.loop, u)
        if not reductions:
            return SweepLoop(loop, before.values)
        seen, good = integrator.observe(system, loop.carry, h), loop.steps > before.loop.steps
        new = {name: _reduce(name, one.update, "update(value, system, state, h)", before.values[name], system, seen, h)
               for name, one in reductions.items()}  # fmt: skip
        return SweepLoop(loop, jax.tree.map(lambda a, b: jnp.where(good, a, b), new, before.values))

    def observe(numbers: Numbers, after: SweepLoop) -> dict[str, Array]:
        system, _, h = build(numbers)
        record = kernel.observe((system, h), after.loop)
        state, peaks = record.state, after.loop.peaks
        found = {"status": after.loop.status, "steps": after.loop.steps, **after.values}
        if "extremes" in keep:
            found |= {"energy_error_max": peaks.energy_error, "constraint_max": peaks.constraint}
            found |= {"holonomic_max": peaks.holonomic, "group_distance_max": peaks.group}
        if {"final", "states"} & set(keep):
            parts = state.g if isinstance(state.g, tuple) else (state.g,)
            tails = [f"_{k}" for k in range(len(parts))] if len(parts) > 1 else [""]
            found |= {f"configuration{tail}": part for tail, part in zip(tails, parts, strict=True)}
            found |= {"time": state.t, "velocity": state.xi, "momentum": state.momentum, "angle": record.angles}
            if names_coordinates(system):
                named = system.observe(state.t, state.g, state.xi)
                found["coordinate"] = named[: len(system.coordinate_names)]
        if "drift" in keep:
            found |= {"time": state.t, "energy": system.energy(state.t, state.g, state.xi)}
        return {name: value for name, value in found.items() if value.size}

    return RunKernel(begin, advance, observe)


def names_coordinates(system: MechanicalSystem) -> bool:
    """Whether the coordinates have names that a user or a mechanism gave."""
    return bool(system.start_names or (system.names and system.names.coordinates))


def _reduce(name: str, function: Callable[..., Any], words: str, *arguments: Any) -> Array:
    return own_value(f"{words} of the reduction {name}", function, *arguments, kinds="iufb")


class MemberFamily(NamedTuple):
    """Members of one structure: the functions of their run, which take the traced numbers as constants."""

    steps: int | None  # None: each member has its own number, from t_end
    kernel: RunKernel
    fused: Callable[..., dict[str, Array]]  # all of the run in one function, whose loop never leaves the kernel
    record: dict[str, jax.ShapeDtypeStruct]


class SweepVariable(NamedTuple):
    """An array of a sweep: dimensions and shape of one member's part, the type, and the value that means missing."""

    about: str
    dims: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: Any = np.dtype(float)
    missing: float = np.nan

    def attributes(self, name: str) -> dict[str, str]:
        """What it is, and its unit where all its numbers have the same: final_time is in s."""
        unit = column_text(name.removeprefix("final_").removesuffix("_max").removesuffix("_error"))[1]
        return {"long_name": self.about} | ({"units": unit} if unit else {})


class SweepMembers:
    """A plan whose names are checked and split into numbers that a kernel takes and structure."""

    def __init__(self, plan: SweepPlan):
        self.plan = plan
        self._load = lru_cache(configuration.load_function)  # one module for all members, whose functions are the same
        self.first = self._check(plan.member())
        self.traced = self._find_traceable()
        self.structural = tuple(name for name in plan.names if name not in self.traced)
        begins = tuple(name for name in self.structural if name.startswith(("system.", "initial.", "run.t0")))
        self.built = tuple(name for name in begins if name != ENERGY_NAME)
        self.own_steps = "steps" not in self.first.config["run"] and bool({"run.step", "run.t0"} & set(self.traced))
        self.base = lru_cache(maxsize=256)(self._make_base)
        self._families: dict[Any, MemberFamily] = {}
        self.schema = self.family(self.structure(plan.member())).record
        self._probe()
        if "states" in plan.keep and (self.own_steps or {"run.steps", "run.t_end", "run.step"} & set(self.structural)):
            raise InvalidInput('keep = "states" needs one number of steps for all members: give run.steps, not t_end')

    def structure(self, values: Values) -> Structure:
        """The structure of a member."""
        return tuple(json.dumps(to_python(values[name])) for name in self.structural)

    def _config(self, values: Values) -> dict[str, Any]:
        return substitute(self.plan.config, {k: v for k, v in values.items() if k != ENERGY_NAME})

    def _check(self, values: Values) -> configuration.Job:
        """The job of one member, as `dalembert run` would check it."""
        energy = values.get(ENERGY_NAME)
        if energy is not None and not (isinstance(energy, int | float) and np.isfinite(energy)):
            raise InvalidInput(f"{ENERGY_NAME} is {energy!r}; allowed: a finite number")
        return configuration.parse_job(self._config(values), self.plan.folder)

    def describe(self, name: str) -> tuple[str, str]:
        """What a varied number is, and its unit: ("initial speed", "m s-1") of initial.velocity.1."""
        section, key, *places = name.split(".")
        system, given = self.first.system, self.first.config["initial"].get(key)
        if section == "initial" and key == "velocity" and places and given is None:  # a rate of a mechanism
            key, *places = places
        if section == "initial" and key in ("velocity", "momentum") and places and len(given) == system.group.dim:
            names = [axis.name.replace(" ", "_") for axis in system.axes()]
            axis = system.axes()[names.index(places[0]) if places[0] in names else int(places[0])]
            return f"initial {'momentum of ' * (key == 'momentum')}{axis.name}", str(getattr(axis, key))
        if (section, key) == ("initial", "configuration") and system.group.is_flat and places:
            coordinate = system.coordinate_names[int(places[0])]
            return f"initial {coordinate}", system.units[coordinate]
        words = section if key in ("name", "python") else " ".join([key.replace("_", " "), *places])
        if section == "system":
            return words, configuration.parameter_unit(self.first.config["system"], key, self.plan.folder, self._load)
        found = {"step": "s", "t0": "s", "t_end": "s", "energy": "J", **system.units}
        return f"initial {words}" if section == "initial" else words, found.get(words, "")

    def _probe(self) -> None:
        """Build members along every axis, the others at their first place: refuse bad values before anything runs."""
        base = self.plan.member()
        for axis in self.plan.axes:
            for place in np.unique(np.linspace(0, axis.size - 1, PROBES_PER_AXIS).astype(int)):
                values = {name: to_python(part[0]) for name, part in axis.at(int(place), int(place) + 1).items()}
                try:
                    self._check({**base, **values})
                except InvalidInput as fault:
                    words = (f"{name} = {value} {self.describe(name)[1]}".rstrip() for name, value in values.items())
                    shown = ", ".join(words)
                    raise InvalidInput(f"the sweep comes to {shown}: {fault}") from fault
                if self.family(self.structure({**base, **values})).record != self.schema:
                    raise InvalidInput(
                        f"members differ in shape along {', '.join(axis.names)}: what is kept of them does not fit "
                        'into one array. Sweep them apart, or keep = ["extremes"] only'
                    )

    def _find_traceable(self) -> tuple[str, ...]:
        """The names that a kernel can take as numbers: all numeric ones together, or those that can be traced alone."""
        structural = ("run.steps", "run.t_end", "system.name", "system.python")
        parts = [entry for axis in self.plan.axes for entry in axis.at(0, 1).items()]
        numeric = [name for name, part in parts if isinstance(part, np.ndarray) and not name.startswith("method.")]
        numeric = [name for name in numeric if name not in structural]
        if self._can_trace(numeric):
            return tuple(numeric)
        alone = [name for name in numeric if self._can_trace([name])]
        return tuple(alone) if self._can_trace(alone) else ()

    def _can_trace(self, names: list[str]) -> bool:
        rest = {name: value for name, value in self.plan.member().items() if name not in names}
        try:
            jax.eval_shape(self._builder(rest, self._begin(rest)), dict.fromkeys(names, SCALAR))
        except Exception:  # whatever a model or a user's own file does to a number that it cannot know yet
            return False
        return True

    def _begin(self, fixed: Values) -> Base:
        """The system and the state with these fixed values, where they do not depend on other numbers."""
        config = self._config(fixed)
        numbers = [name for name in self.plan.names if name not in fixed and name != ENERGY_NAME]
        varying = [name for name in numbers if name.startswith(("system.", "initial.", "run.t0"))]
        if any(name.startswith("system.") for name in varying):
            return None, None
        system = configuration.build_system(config["system"], self.plan.folder, self._load)[1]
        return system, None if varying else configuration.build_state(system, config["initial"], config["run"])

    def _builder(self, fixed: Values, base: Base | None) -> Callable[[Any], Member]:
        """numbers -> member with these fixed values and this base; without one the numbers are (numbers, base)."""
        config, folder = self._config(fixed), self.plan.folder
        known = base is not None and base[0] is not None

        def build(given: Any) -> Member:
            values, (system, state) = (given, base) if base is not None else given
            own = substitute(config, {name: value for name, value in values.items() if name != ENERGY_NAME})
            with jax.ensure_compile_time_eval() if known else nullcontext():
                if (made := system) is None:
                    made = configuration.build_system(own["system"], folder, self._load)[1]
                begin = configuration.build_state(made, own["initial"], own["run"]) if state is None else state
            energy = values.get(ENERGY_NAME, fixed.get(ENERGY_NAME))
            begin = begin if energy is None else _scale_to_energy(made, begin, energy)
            return made, begin, jnp.asarray(own["run"]["step"], float)

        return build

    def _make_base(self, structure: Structure) -> Base:
        """The system and the state of a structure, with numbers of NumPy, where a kernel cannot build them."""
        begun = self._begin(self._fixed(structure)) if self.built else (None, None)
        found: Base = jax.tree.map(lambda leaf: np.asarray(leaf, float), begun)
        return found

    def _fixed(self, structure: Structure) -> Values:
        return dict(zip(self.structural, map(json.loads, structure), strict=True))

    def family(self, structure: Structure, base: Base | None = None) -> MemberFamily:
        """The run of members of a structure: one for all that differ in the numbers of their systems and starts."""
        base = self.base(structure) if base is None else base
        others = tuple(each for name, each in zip(self.structural, structure, strict=True) if name not in self.built)
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(base))
        key = (others, jax.tree.structure(base), shapes) if shapes else (structure, None, ())
        if key not in self._families:
            if len(self._families) == MAX_FAMILIES:
                self._families.pop(next(iter(self._families)))
            self._families[key] = self._make_family(structure, base)
        return self._families[key]

    def _make_family(self, structure: Structure, base: Base) -> MemberFamily:
        fixed = self._fixed(structure)
        config = self._config(fixed)
        integrator, run = configuration.build_method(config["method"]), config["run"]
        if integrator.variable_step and "t_end" in run:
            raise InvalidInput(
                f"the members of a sweep by {integrator.name} reach t_end after different numbers of steps: "
                "give run.steps"
            )
        lanes = bool(jax.tree.leaves(base))
        build = self._builder(fixed, None if lanes else self._begin(fixed))
        kernel = member_kernel(integrator, build, self.plan.keep, self.plan.reductions)
        step = 1.0 if "run.step" in self.traced else run["step"]
        steps = None if self.own_steps else count_steps(step, run.get("steps"), run.get("t_end"), run.get("t0", 0.0))
        numbers: Any = dict.fromkeys(self.traced, SCALAR)
        numbers = (numbers, base) if lanes else numbers
        loop = jax.eval_shape(kernel.begin, numbers, ())

        def fused(constants: tuple[Any, Array], _: Any) -> dict[str, Array]:
            values, count = constants
            start = (jnp.zeros(()), kernel.begin(values, ()))
            advance = lambda counted: (counted[0] + 1.0, kernel.advance(values, counted[1], None))
            end = jax.lax.while_loop(lambda counted: counted[0] < count, advance, start)
            last: dict[str, Array] = kernel.observe(values, end[1])
            return last

        return MemberFamily(steps, kernel, fused, jax.eval_shape(kernel.observe, numbers, loop))

    @cached_property
    def variables(self) -> dict[str, SweepVariable]:
        """The arrays that a sweep stores."""
        plan = self.plan
        failed = "good steps before the failure (-1: none at all); -2 where nothing failed"
        found = {
            "status": SweepVariable(STATUS_TEXT, dtype=np.dtype("int8"), missing=NOT_DONE),
            "failed_step": SweepVariable(failed, dtype=np.dtype("int64"), missing=NOT_FAILED),
        }
        for name, spec in self.schema.items():
            head, shape = name.rstrip("_0123456789"), spec.shape
            if name in ("status", "steps") or (name == "energy" and head not in plan.reductions):
                continue
            if head not in STATE_VARIABLES:
                dims = tuple(f"{name}_{k}" for k in range(len(shape)))
                found[name] = SweepVariable(name.replace("_", " "), dims, shape)
                continue
            if head == "configuration":
                dims = tuple(f"{name}_{axis}" for axis in ("row", "column")[: len(shape)])
            else:
                vector = "component" if shape == (self.first.system.group.dim,) else "restricted"
                dims = {"time": (), "angle": ("rotation",), "coordinate": ("coordinate_name",)}.get(head, (vector,))
            if "final" in plan.keep:
                found[f"final_{name}"] = SweepVariable(f"{name} at the last good state", dims, shape)
            if "states" in plan.keep:
                saves = 1 + -(-int(self.first.run["steps"]) // plan.save_every)
                found[name] = SweepVariable(f"{name} at the saved states", ("save", *dims), (saves, *shape))
        if "drift" in plan.keep:
            kinds = f"growth of the energy error: {', '.join(f'{k} {kind}' for k, kind in enumerate(GROWTH_KINDS))}"
            about = f"{kinds}, -1 not classified"
            found["drift"] = SweepVariable(about, dtype=np.dtype("int8"), missing=NOT_CLASSIFIED)
            found["drift_rate"] = SweepVariable("rate of that growth, see dalembert.analysis.drift")
        return found

    def step_counts(self, family: MemberFamily, values: Values, count: int) -> np.ndarray[Any, Any]:
        """The number of steps of every member."""
        if family.steps is not None:
            return np.full(count, family.steps)
        run = self.first.config["run"]
        t0, h = (np.broadcast_to(values.get(f"run.{key}", run.get(key, 0.0)), count) for key in ("t0", "step"))
        return np.asarray(np.maximum(np.floor((run["t_end"] - t0) / h * (1 + 1e-12) + 1e-9), 1).astype(int))


def _scale_to_energy(system: MechanicalSystem, state: State, energy: Any) -> State:
    """Scale the velocity to this energy; the kinetic energy has to be quadratic, and the constraint A xi = 0."""
    rest = system.energy(state.t, state.g, jnp.zeros_like(state.xi))
    scale = jnp.sqrt((energy - rest) / (system.energy(state.t, state.g, state.xi) - rest))
    xi, momentum, increment = (scale * each for each in state[2:])
    return state._replace(xi=xi, momentum=momentum, increment=increment)


def compute_block(
    members: SweepMembers, block: GridBlock, backend: Backend = "auto", threads: int | None = None
) -> Arrays:
    """The arrays of a block, in its shape. Ctrl-C raises KeyboardInterrupt: a block is complete or absent."""
    values = members.plan.values(block)
    described = members.variables
    arrays = {name: np.full((block.size, *one.shape), one.missing, one.dtype) for name, one in described.items()}
    where: dict[str, Any] = {"backend": backend, "threads": threads}
    for places, family, steps, numbers in _group_members(members, values, block.size):
        lanes = len(arrays["status"][places])
        for name, part in _run_group(members.plan, family, numbers, steps, lanes, where).items():
            arrays[name][places] = part
    return {name: array.reshape(*block.shape, *described[name].shape) for name, array in arrays.items()}


def _group_members(members: SweepMembers, values: Values, size: int) -> Iterator[tuple[Any, MemberFamily, int, Any]]:
    """(places, family, steps, numbers) of members that run together."""
    groups: dict[Structure, list[int]] = {}
    for place in range(size) if members.structural else ():
        key = members.structure({name: values[name][place] for name in members.structural})
        groups.setdefault(key, []).append(place)
    together: dict[int, tuple[MemberFamily, dict[Structure, Base]]] = {}
    for key in groups or [()]:
        base = members.base(key)
        family = members.family(key, base)
        together.setdefault(id(family), (family, {}))[1][key] = base
    for family, keys in together.values():
        places: Any = np.concatenate([groups[key] for key in keys]) if groups else slice(None)
        which = np.repeat(np.arange(len(keys)), [len(groups[key]) for key in keys] if groups else 1)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *keys.values())
        inside = {name: np.asarray(values[name], float)[places] for name in members.traced}
        counts = members.step_counts(family, inside, size if isinstance(places, slice) else len(places))
        for steps in np.unique(counts):
            chosen = slice(None) if np.all(counts == steps) else counts == steps
            numbers: Any = {name: part[chosen] for name, part in inside.items()}
            if jax.tree.leaves(stacked):
                own = which[chosen]
                numbers = numbers, jax.tree.map(lambda leaf, own=own: leaf[own], stacked)
            own_places = places if isinstance(chosen, slice) else np.arange(size)[places][chosen]
            yield own_places, family, int(steps), numbers


def _run_group(
    plan: SweepPlan, family: MemberFamily, numbers: Any, steps: int, lanes: int, where: Mapping[str, Any]
) -> Arrays:
    """Run the members of one structure and number of steps."""
    if not {"states", "drift"} & set(plan.keep):  # one call, into which numbers go and out of which results come
        axes = ((0, None), None)
        last = evaluate(family.fused, (numbers, float(steps)), (), lanes=lanes, axes=axes, **where)
        return _select_results(plan, [{name: leaf[:, None] for name, leaf in last.items()}], 1)
    begin, advance, observe = family.kernel
    loop = evaluate(begin, numbers, (), lanes=lanes, axes=(0, None), **where)
    every = plan.save_every if "states" in plan.keep else max(1, steps // (4 * MAX_BLOCKS))
    parts: list[Arrays] = []
    for count, stride in ((steps // every, every), (1, steps % every)):
        if count and stride:
            problem = make_problem(advance, observe, numbers, loop, lanes=lanes, axes=(0, 0))
            done = run_problem(problem, saves=count, save_every=stride, initial=not parts, **where)
            if done.interrupted:
                raise KeyboardInterrupt
            loop = done.carry
            parts.append(done.records)
    return _select_results(plan, parts, steps // every)


def _select_results(plan: SweepPlan, parts: list[Arrays], equidistant: int) -> Arrays:
    """What the plan keeps of the saved records; the first `equidistant` + 1 of them are equally far apart."""
    last = {name: leaf[:, -1] for name, leaf in parts[-1].items()}
    status, steps = last.pop("status"), last.pop("steps")
    unbounded = [np.any(~np.isfinite(last[name]), axis=tuple(range(1, last[name].ndim))) for name in plan.reductions]
    status = np.where((status == OK) & np.any(unbounded, axis=0), REDUCTION_NOT_FINITE, status)
    failed_step = np.where(status == OK, NOT_FAILED, steps).astype(np.int64)
    found: Arrays = {"status": status.astype(np.int8), "failed_step": failed_step}
    state = [name for name in last if name.rstrip("_0123456789") in STATE_VARIABLES]
    found |= {name: leaf for name, leaf in last.items() if name not in (*state, "energy")}
    if "final" in plan.keep:
        found |= {f"final_{name}": last[name] for name in state}
    if "states" in plan.keep:
        found |= {name: np.concatenate([part[name] for part in parts], axis=1) for name in state}
    if "drift" in plan.keep:
        times, energy = (parts[0][name][:, : equidistant + 1] for name in ("time", "energy"))
        if energy.shape[1] < MIN_SAMPLES:
            raise InvalidInput(f'keep = "drift" needs at least {MIN_SAMPLES} steps; a run has {energy.shape[1] - 1}')
        found["drift"] = np.full(len(energy), NOT_CLASSIFIED, np.int8)
        found["drift_rate"] = np.full(len(energy), np.nan)
        for k in np.flatnonzero(status == OK):
            drift = classify(times[k], energy[k] - energy[k, 0])
            found["drift"][k], found["drift_rate"][k] = GROWTH_KINDS.index(drift.kind), drift.rate
    return found
