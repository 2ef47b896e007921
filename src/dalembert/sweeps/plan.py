"""What a sweep varies: named axes whose values are computed where they are wanted, never all at once.

The plan of a sweep: a checked [sweep] section, its dimensions, and the blocks of members that are worked on together.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidInput, UnknownName
from ..io.config import load_function

AXIS_KINDS = ("values", "grid", "linspace", "logspace", "random")
SAMPLE_KINDS = ("random", "latin", "sobol")
MAX_LATIN_POINTS = 10**7
"""Points of a Latin sample, which has to be held as a whole."""

Values = dict[str, Any]


@dataclass(frozen=True, eq=False)
class SweepAxis:
    """One dimension of a sweep: the names it varies together, and their values at the places lo, ..., hi - 1."""

    names: tuple[str, ...]
    size: int
    at: Callable[[int, int], Values]

    @property
    def dim(self) -> str:
        return self.names[0].replace(".", "_") if len(self.names) == 1 else "sample"


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
    kind, rest = kinds[0], {key: value for key, value in spec.items() if key not in kinds}
    allowed = ("count", "seed") if kind == "random" else ()
    for key in rest:
        if key not in allowed:
            raise UnknownName(f"key of the {kind} of {name}", key, (*AXIS_KINDS, *allowed))
    if kind == "values":
        return _listed(name, spec[kind])
    if kind == "random":
        low, high = require_numbers(f"random of {name}", spec[kind], "low, high")
        count, seed = whole(f"count of {name}", spec.get("count")), _seed(name, spec)
        return SweepAxis((name,), count, lambda lo, hi: {name: low + (high - low) * _uniform(seed, name, lo, hi)})
    return _spaced(name, kind, spec[kind])


def _listed(name: str, values: Any) -> SweepAxis:
    if not isinstance(values, list) or not values:
        raise InvalidInput(f"values of {name} are {values!r}; allowed: a list with at least one entry")
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if plain and not all(math.isfinite(value) for value in values):
        raise InvalidInput(f"values of {name} are {values}; allowed: finite numbers")
    array = np.asarray(values) if plain else values
    return SweepAxis((name,), len(values), lambda lo, hi: {name: array[lo:hi]})


def _spaced(name: str, kind: str, given: Any) -> SweepAxis:
    """linspace and logspace = [first, last, count], grid = [first, last, spacing]; the last value is met exactly."""
    first, last, third = require_numbers(
        f"{kind} of {name}", given, "first, last, " + ("spacing" if kind == "grid" else "count")
    )
    if kind == "grid":
        count = 1 + math.floor((last - first) / third * (1 + 1e-12)) if third else 0
        if count < 1:
            raise InvalidInput(f"grid of {name} is {given}; allowed: [first, last, spacing] with at least one point")
        return SweepAxis((name,), count, lambda lo, hi: {name: first + third * np.arange(lo, hi)})
    count = whole(f"count in {kind} of {name}", given[2])
    if kind == "logspace" and not (first > 0 and last > 0):
        raise InvalidInput(
            f"logspace of {name} is {given}; allowed: [first, last, count], the values themselves, positive"
        )

    def at(lo: int, hi: int) -> Values:
        share = np.arange(lo, hi) / max(count - 1, 1)
        inner = first * (last / first) ** share if kind == "logspace" else first + (last - first) * share
        return {name: np.where(share == 1.0, last, inner)}

    return SweepAxis((name,), count, at)


def parse_sample(spec: Any) -> SweepAxis:
    """`sample = {sobol = 1024, seed = 0, ranges = {run.step = [0.01, 0.1], ...}}`: points in a box, as one dimension."""
    if (
        not isinstance(spec, Mapping)
        or len(kinds := [key for key in spec if key in SAMPLE_KINDS]) != 1
        or "ranges" not in spec
    ):
        raise InvalidInput(
            f"sample is {spec!r}; allowed: {{{' | '.join(SAMPLE_KINDS)} = count, seed = 0, ranges = {{...}}}}"
        )
    kind = kinds[0]
    for key in spec:
        if key not in (kind, "seed", "ranges"):
            raise UnknownName("key of the sample", key, (*SAMPLE_KINDS, "seed", "ranges"))
    count, seed = whole(f"count of the {kind} sample", spec[kind]), _seed("sample", spec)
    if kind == "latin" and count > MAX_LATIN_POINTS:
        raise InvalidInput(
            f"a Latin sample of {count} points is too large to hold; allowed: {MAX_LATIN_POINTS}, or take sobol"
        )
    if not isinstance(spec["ranges"], Mapping) or not spec["ranges"]:
        raise InvalidInput(
            f"ranges of the sample are {spec['ranges']!r}; allowed: a table such as {{run.step = [0.01, 0.1]}}"
        )
    ranges = [pair for key, entry in spec["ranges"].items() for pair in flatten_table(key, entry, ())]
    names = tuple(name for name, _ in ranges)
    bounds = np.array([require_numbers(f"range of {name}", given, "low, high") for name, given in ranges])
    unit = partial({"random": _independent, "latin": _latin, "sobol": _sobol}[kind], names, count, seed)

    def at(lo: int, hi: int) -> Values:
        points = bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * unit(lo, hi)
        return dict(zip(names, points.T, strict=True))

    return SweepAxis(names, count, at)


# -- samples in [0, 1) -----------------------------------------------------------------------------------------------------------
def _uniform(seed: int, name: str, lo: int, hi: int) -> np.ndarray:
    """Numbers lo, ..., hi - 1 of a stream of its own for every name: a counter-based generator is at any place at once."""
    stream = np.random.Philox(key=[seed, zlib.crc32(name.encode())]).advance(lo // 4)  # four numbers a block
    return np.random.Generator(stream).random(hi - lo // 4 * 4)[lo % 4 :]


def _independent(names: tuple[str, ...], count: int, seed: int, lo: int, hi: int) -> np.ndarray:
    return np.stack([_uniform(seed, name, lo, hi) for name in names], axis=1)


@lru_cache(maxsize=2)
def _whole_latin(size: int, count: int, seed: int) -> np.ndarray:
    from scipy.stats import qmc

    return qmc.LatinHypercube(size, rng=seed).random(count)


def _latin(names: tuple[str, ...], count: int, seed: int, lo: int, hi: int) -> np.ndarray:
    return _whole_latin(len(names), count, seed)[lo:hi]


def _sobol(names: tuple[str, ...], count: int, seed: int, lo: int, hi: int) -> np.ndarray:
    import warnings

    from scipy.stats import qmc

    engine = qmc.Sobol(len(names), rng=seed)
    if lo:
        engine.fast_forward(lo)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a part of a sequence is not a power of two is no fault
        return engine.random(hi - lo)


# -- input ----------------------------------------------------------------------------------------------------------------------
def require_numbers(what: str, given: Any, names: str) -> list[float]:
    size = names.count(",") + 1
    good = isinstance(given, list) and len(given) == size
    if not good or not all(isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in given):
        raise InvalidInput(f"{what} is {given!r}; allowed: [{names}], finite numbers")
    return [float(x) for x in given]


def whole(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{what} is {value!r}; allowed: a whole number of at least 1")
    return value


def _seed(name: str, spec: Mapping[str, Any]) -> int:
    seed = spec.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise InvalidInput(f"seed of {name} is {seed!r}; allowed: a whole number, not negative")
    return seed


SECTIONS = ("system", "method", "initial", "run")
SWEEP_OPTIONS = ("combine", "keep", "save_every", "chunk", "reductions")
KEEP_CHOICES = ("final", "extremes", "states", "drift")
FIXED_NAMES = ("run.save_every", "run.backend")
MAX_MEMBERS = 10**9
"""Members of a sweep; a mistyped grid easily has more."""


class Reduction(NamedTuple):
    """A number (or array) that a run accumulates in the kernel: start(system, state, h), then update(value, system, state, h) a step."""

    start: Callable
    update: Callable


class GridBlock(NamedTuple):
    """A box of members: its number and its range (lo, hi) along every dimension. In C order its members are consecutive."""

    number: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(hi - lo for lo, hi in self.ranges)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


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
        return (self.axes[0].size,) if self.zipped else tuple(axis.size for axis in self.axes)

    @property
    def members(self) -> int:
        """The number of runs."""
        return math.prod(self.shape)

    # -- blocks --------------------------------------------------------------------------------------------------------
    @cached_property
    def block_shape(self) -> tuple[int, ...]:
        """Whole inner dimensions, a part of one, and single places of the outer ones."""
        left, sizes = self.chunk, []
        for size in reversed(self.shape):
            sizes.append(max(1, min(size, left)))
            left //= size
        return tuple(reversed(sizes))

    @property
    def block_grid(self) -> tuple[int, ...]:
        """How many blocks there are along every dimension."""
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
                found[name] = _spread(part, before, after)
        return found

    def member(self, index: int = 0) -> Values:
        """The values of one member."""
        places = np.unravel_index(index, self.shape)
        block = GridBlock(0, tuple((int(p), int(p) + 1) for p in places))
        return {name: to_python(part[0]) for name, part in self.values(block).items()}

    def coordinates(self) -> Iterator[tuple[str, str, int, SweepAxis]]:
        """(name of the coordinate, its dimension, its size, its axis) of all varied names."""
        for axis in self.axes:
            dim = "member" if self.zipped else axis.dim
            for name in axis.names:
                yield name.replace(".", "_"), dim, axis.size, axis

    @cached_property
    def description(self) -> str:
        """What a store must agree with to be resumed, as JSON."""
        marks = {name: [_mark(part) for part in reduction] for name, reduction in self.reductions.items()}
        parts = {"config": self.config, "sweep": self.section, "blocks": self.block_shape, "reductions": marks}
        return json.dumps(parts, sort_keys=True, default=str)


def make_plan(
    config: Mapping[str, Any], folder: str | Path = ".", reductions: Mapping[str, Any] | None = None, *, chunk: int
) -> SweepPlan:
    """Check the section [sweep]; names are checked where the members are built. `chunk` unless the section says otherwise."""
    section = config.get("sweep")
    if not isinstance(section, Mapping):
        raise InvalidInput(
            "the section [sweep] is missing: it names what varies, such as run.step = {linspace = [0.01, 0.1, 10]}"
        )
    varied = {key: entry for key, entry in section.items() if key not in SWEEP_OPTIONS}
    for key in varied:
        if key.split(".")[0] not in (*SECTIONS, "sample"):
            raise UnknownName("key of [sweep]", key, (*SECTIONS, "sample", *SWEEP_OPTIONS))
    axes = tuple(parse_axes(varied))
    if not axes:
        raise InvalidInput("[sweep] varies nothing; give it a name such as run.step = {linspace = [0.01, 0.1, 10]}")
    for name in (name for axis in axes for name in axis.names):
        if name in FIXED_NAMES or "." not in name or name.split(".")[0] not in SECTIONS:
            raise InvalidInput(
                f"[sweep] cannot vary {name}; allowed: a parameter of system, method, initial or run such as run.step"
            )
    zipped = _zipped(section.get("combine", "product"), axes)
    members = axes[0].size if zipped else math.prod(axis.size for axis in axes)
    if members > MAX_MEMBERS:
        sizes = " x ".join(f"{axis.size} of {axis.names[0]}" for axis in axes)
        raise InvalidInput(
            f"the sweep has {members:.3g} members ({sizes}); allowed: {MAX_MEMBERS:.0e}. Take coarser grids, or a Sobol sample"
        )
    if "event" in config:
        raise InvalidInput(
            "a sweep looks for no events; leave out the tables [[event]], or run its members with dalembert.ensemble"
        )
    rest = {key: entry for key, entry in config.items() if key != "sweep"}
    every = section.get("save_every", rest.get("run", {}).get("save_every", 1))
    named = {**_named_reductions(section.get("reductions", {}), Path(folder)), **(reductions or {})}
    return SweepPlan(
        rest,
        section,
        Path(folder),
        axes,
        zipped,
        _keep(section.get("keep", ["final", "extremes"])),
        whole("save_every of [sweep]", every),
        whole("chunk of [sweep]", section.get("chunk", chunk)),
        {name: _reduction(name, given) for name, given in named.items()},
    )


def substitute(config: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """The configuration of a member: `system.inertia.0.2` is an entry of a list."""
    result = copy.deepcopy(
        {name: dict(section) if isinstance(section, Mapping) else section for name, section in config.items()}
    )
    for name, value in values.items():
        *path, last = name.split(".")
        place: Any = result
        for key in path:
            place = place[_index(name, place, key)] if isinstance(place, list) else place.setdefault(key, {})
        if not isinstance(place, dict | list):
            raise UnknownName(f"kind of axis (for {'.'.join(path)})", last, AXIS_KINDS)
        if isinstance(place, list):
            place[_index(name, place, last)] = value
        else:
            place[last] = value
        for one, other in (
            ("run.steps", "t_end"),
            ("run.t_end", "steps"),
            ("initial.velocity", "momentum"),
            ("initial.momentum", "velocity"),
        ):
            if name == one:
                result[path[0]].pop(other, None)
    return result


def _index(name: str, entries: list, key: str) -> int:
    if not key.isdigit() or int(key) >= len(entries):
        raise InvalidInput(
            f"[sweep] varies {name}, but {key} is no place in {entries}; allowed: 0 to {len(entries) - 1}"
        )
    return int(key)


def to_python(value: Any) -> Any:
    """A NumPy number as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _spread(part: Any, before: int, after: int) -> Any:
    if isinstance(part, np.ndarray):
        return np.tile(np.repeat(part, after), before)
    return [entry for entry in part for _ in range(after)] * before


def _zipped(combine: Any, axes: tuple[SweepAxis, ...]) -> bool:
    if combine not in ("product", "zip"):
        raise UnknownName("combine of [sweep]", combine, ("product", "zip"))
    sizes = {axis.names[0]: axis.size for axis in axes}
    if combine == "zip" and len(set(sizes.values())) > 1:
        raise InvalidInput(f'combine = "zip" needs axes of one size; given {sizes}')
    return combine == "zip"


def _keep(given: Any) -> tuple[str, ...]:
    for name in given if isinstance(given, list) else [given]:
        if name not in KEEP_CHOICES:
            raise UnknownName("entry of keep in [sweep]", name, KEEP_CHOICES)
    return tuple(given) if isinstance(given, list) else (given,)


def _named_reductions(given: Any, folder: Path) -> dict[str, Any]:
    """Reductions of a file: name = "file.py:function", where function() returns (start, update)."""
    if not isinstance(given, Mapping) or not all(isinstance(entry, str) and ":" in entry for entry in given.values()):
        raise InvalidInput(
            f'reductions of [sweep] are {given!r}; allowed: name = "file.py:function", which returns (start, update)'
        )
    return {
        name: load_function((folder / entry.rpartition(":")[0]).resolve(), entry.rpartition(":")[2])()
        for name, entry in given.items()
    }


def _reduction(name: str, given: Any) -> Reduction:
    if not (isinstance(given, tuple | list) and len(given) == 2 and all(callable(part) for part in given)):
        raise InvalidInput(
            f"reduction {name} is {given!r}; allowed: (start, update), functions of (system, state, h) and (value, system, state, h)"
        )
    if not name.isidentifier():
        raise InvalidInput(f"reduction {name!r} needs a name of letters, digits and underscores")
    return Reduction(*given)


def _mark(function: Callable) -> str:
    """Tells a changed function from the one that made a store."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = getattr(getattr(function, "__code__", None), "co_code", b"").hex()
    return hashlib.sha256(text.encode()).hexdigest()[:16]
