"""The plan of a sweep: what the section [sweep] varies, and the blocks of members that are computed together.

The values of an axis are computed where they are needed and never all at once, so that 10^8 members take no memory.
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
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidInput, UnknownName
from ..io.config import SECTIONS, exclusive_keys, load_function
from ..numerics import positive_int

Values = dict[str, Any]  # name -> values of members
Points = np.ndarray[Any, Any]

AXIS_KINDS = ("values", "grid", "linspace", "logspace", "random")
SAMPLE_KINDS = ("random", "latin", "sobol")
MAX_LATIN_POINTS = 10**7
"""A Latin sample is held in memory as a whole."""
SWEEP_OPTIONS = ("combine", "keep", "save_every", "chunk", "reductions")
KEEP_CHOICES = ("final", "extremes", "states", "drift")
FIXED_NAMES = ("run.save_every", "run.backend")
MAX_MEMBERS = 10**9
"""A mistyped grid easily has more members."""


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

    def coordinates(self) -> Iterator[tuple[str, str, int, SweepAxis]]:
        """(name of the coordinate, its dimension, its size, its axis) of all varied names."""
        for axis in self.axes:
            for name in axis.names:
                yield name.replace(".", "_"), "member" if self.zipped else axis.dim, axis.size, axis

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
    varied = {key: entry for key, entry in section.items() if key not in SWEEP_OPTIONS}
    for key in varied:
        if key.split(".")[0] not in (*SECTIONS, "sample"):
            raise UnknownName("key of [sweep]", key, (*SECTIONS, "sample", *SWEEP_OPTIONS))
    axes = tuple(parse_axes(varied))
    if not axes:
        raise InvalidInput(f"[sweep] varies nothing; give it a name such as {example}")
    for name in (name for axis in axes for name in axis.names):
        if name in FIXED_NAMES or "." not in name or name.split(".")[0] not in SECTIONS:
            raise InvalidInput(
                f"[sweep] cannot vary {name}; allowed: a parameter of system, method, initial or run such as run.step"
            )
    combine = section.get("combine", "product")
    if combine not in ("product", "zip"):
        raise UnknownName("combine of [sweep]", combine, ("product", "zip"))
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
    if "event" in config:
        raise InvalidInput(
            "a sweep looks for no events; leave out the tables [[event]], or run its members with dalembert.ensemble"
        )
    keep = section.get("keep", ["final", "extremes"])
    keep = tuple(keep) if isinstance(keep, list) else (keep,)
    for choice in keep:
        if choice not in KEEP_CHOICES:
            raise UnknownName("entry of keep in [sweep]", choice, KEEP_CHOICES)
    rest = {key: entry for key, entry in config.items() if key != "sweep"}
    save_every = section.get("save_every", rest.get("run", {}).get("save_every", 1))
    named = {**_load_reductions(section.get("reductions", {}), Path(folder)), **(reductions or {})}
    checked = {name: _check_reduction(name, given) for name, given in named.items()}
    every = positive_int("save_every of [sweep]", save_every)
    chunk = positive_int("chunk of [sweep]", section.get("chunk", chunk))
    return SweepPlan(rest, section, Path(folder), axes, combine == "zip", keep, every, chunk, checked)


def _load_reductions(given: Any, folder: Path) -> dict[str, Any]:
    """Reductions of a file: name = "file.py:function", where function() returns (start, update)."""
    if not isinstance(given, Mapping) or not all(isinstance(entry, str) and ":" in entry for entry in given.values()):
        raise InvalidInput(
            f'reductions of [sweep] are {given!r}; allowed: name = "file.py:function", which returns (start, update)'
        )
    parts = {name: entry.rpartition(":") for name, entry in given.items()}
    return {name: load_function((folder / file).resolve(), function)() for name, (file, _, function) in parts.items()}


def _check_reduction(name: str, given: Any) -> Reduction:
    if not (isinstance(given, tuple | list) and len(given) == 2 and all(callable(part) for part in given)):
        raise InvalidInput(
            f"reduction {name} is {given!r}; allowed: (start, update), "
            "functions of (system, state, h) and (value, system, state, h)"
        )
    if not name.isidentifier():
        raise InvalidInput(f"reduction {name!r} needs a name of letters, digits and underscores")
    return Reduction(*given)


def _fingerprint(function: Callable[..., Any]) -> str:
    """Tell a changed function from the one that made a store."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = getattr(getattr(function, "__code__", None), "co_code", b"").hex()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def substitute(config: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """The configuration of a member: `system.inertia.0.2` is an entry of a list."""
    sections = {name: dict(part) if isinstance(part, Mapping) else part for name, part in config.items()}
    result = copy.deepcopy(sections)
    for name, value in values.items():
        *path, last = name.split(".")
        place: Any = result
        for key in path:
            place = place[_list_index(name, place, key)] if isinstance(place, list) else place.setdefault(key, {})
        if not isinstance(place, dict | list):
            raise UnknownName(f"kind of axis (for {'.'.join(path)})", last, AXIS_KINDS)
        index: Any = _list_index(name, place, last) if isinstance(place, list) else last
        place[index] = value
        if name.startswith(("run.", "initial.")):
            for other in exclusive_keys(name):
                result[path[0]].pop(other, None)
    return result


def _list_index(name: str, entries: list[Any], key: str) -> int:
    if not key.isdigit() or int(key) >= len(entries):
        raise InvalidInput(f"[sweep] varies {name}: {key} is no place in {entries}; allowed: 0 to {len(entries) - 1}")
    return int(key)


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
    if not isinstance(spec, Mapping):
        raise InvalidInput(
            f"sweep of {name} is {spec!r}; allowed: a list of values, or a table with one of {', '.join(AXIS_KINDS)}"
        )
    kinds = [key for key in spec if key in AXIS_KINDS]
    if len(kinds) != 1:
        raise InvalidInput(f"sweep of {name} is {dict(spec)}; allowed: exactly one of {', '.join(AXIS_KINDS)}")
    kind = kinds[0]
    allowed = ("count", "seed") if kind == "random" else ()
    for key in spec:
        if key not in (kind, *allowed):
            raise UnknownName(f"key of the {kind} of {name}", key, (*AXIS_KINDS, *allowed))
    if kind == "values":
        return _list_axis(name, spec[kind])
    if kind == "random":
        low, high = require_numbers(f"random of {name}", spec[kind], "low, high")
        count, seed = positive_int(f"count of {name}", spec.get("count")), _seed(name, spec)
        return SweepAxis((name,), count, lambda lo, hi: {name: low + (high - low) * _uniform(seed, name, lo, hi)})
    return _spaced_axis(name, kind, spec[kind])


def _list_axis(name: str, values: Any) -> SweepAxis:
    if not isinstance(values, list) or not values:
        raise InvalidInput(f"values of {name} are {values!r}; allowed: a list with at least one entry")
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if numeric and not all(math.isfinite(value) for value in values):
        raise InvalidInput(f"values of {name} are {values}; allowed: finite numbers")
    array = np.asarray(values) if numeric else values
    return SweepAxis((name,), len(values), lambda lo, hi: {name: array[lo:hi]})


def _spaced_axis(name: str, kind: str, given: Any) -> SweepAxis:
    """linspace and logspace = [first, last, count], grid = [first, last, spacing]; the last value is met exactly."""
    form = "first, last, " + ("spacing" if kind == "grid" else "count")
    first, last, third = require_numbers(f"{kind} of {name}", given, form)
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
    bounds = np.array([require_numbers(f"range of {name}", given, "low, high") for name, given in ranges])

    def unit_points(lo: int, hi: int) -> Points:
        if kind == "random":
            return np.stack([_uniform(seed, name, lo, hi) for name in names], axis=1)
        return _latin(len(names), count, seed)[lo:hi] if kind == "latin" else _sobol(len(names), seed, lo, hi)

    def at(lo: int, hi: int) -> Values:
        points = bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * unit_points(lo, hi)
        return dict(zip(names, points.T, strict=True))

    return SweepAxis(names, count, at)


def _uniform(seed: int, name: str, lo: int, hi: int) -> Points:
    """Numbers lo, ..., hi - 1 of the stream of a name: a counter-based generator starts at any place at once."""
    stream = np.random.Philox(key=[seed, zlib.crc32(name.encode())]).advance(lo // 4)  # four numbers a block
    return np.random.Generator(stream).random(hi - lo // 4 * 4)[lo % 4 :]


@lru_cache(maxsize=2)
def _latin(size: int, count: int, seed: int) -> Points:
    from scipy.stats import qmc

    return np.asarray(qmc.LatinHypercube(size, rng=seed).random(count))


def _sobol(size: int, seed: int, lo: int, hi: int) -> Points:
    from scipy.stats import qmc

    engine = qmc.Sobol(size, rng=seed)
    if lo:
        engine.fast_forward(lo)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a part of a sequence is not a power of two is no fault
        return np.asarray(engine.random(hi - lo))


def require_numbers(what: str, given: Any, names: str) -> list[float]:
    """A list with one finite number for each of the names, or a clear error."""
    good = isinstance(given, list) and len(given) == names.count(",") + 1
    if not good or not all(isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in given):
        raise InvalidInput(f"{what} is {given!r}; allowed: [{names}], finite numbers")
    return [float(x) for x in given]


def _seed(name: str, spec: Mapping[str, Any]) -> int:
    seed = spec.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise InvalidInput(f"seed of {name} is {seed!r}; allowed: a whole number, not negative")
    return seed
