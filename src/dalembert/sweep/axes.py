"""What a sweep varies: named axes whose values are computed where they are wanted, never all at once."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..errors import InvalidInput, UnknownName

KINDS = ("values", "grid", "linspace", "logspace", "random")
SAMPLES = ("random", "latin", "sobol")
LARGEST_HELD = 10**7
"""Points of a Latin sample, which has to be held as a whole."""

Values = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Axis:
    """One dimension of a sweep: the names it varies together, and their values at the places lo, ..., hi - 1."""

    names: tuple[str, ...]
    size: int
    at: Callable[[int, int], Values]

    @property
    def dim(self) -> str:
        return self.names[0].replace(".", "_") if len(self.names) == 1 else "sample"


def axes_of(section: Mapping[str, Any]) -> list[Axis]:
    """The axes in the order of the file; `sample` is one axis for all its names."""
    found = []
    for key, entry in section.items():
        if key == "sample":
            found.append(sample_axis(entry))
        else:
            found += [axis(name, spec) for name, spec in flattened(key, entry, KINDS)]
    names = [name for one in found for name in one.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(f"[sweep] varies {', '.join(twice)} twice")
    return found


def flattened(name: str, entry: Any, kinds: tuple[str, ...]) -> list[tuple[str, Any]]:
    """`run.step = {...}` is a nested table in TOML: the (dotted name, specification) pairs below it."""
    if not isinstance(entry, Mapping) or set(entry) & set(kinds):
        return [(name, entry)]
    return [pair for key, inner in entry.items() for pair in flattened(f"{name}.{key}", inner, kinds)]


def axis(name: str, spec: Any) -> Axis:
    """The axis of one name: a list, or one of {values | grid | linspace | logspace | random = ...}."""
    if isinstance(spec, list):
        spec = {"values": spec}
    if not isinstance(spec, Mapping):
        raise InvalidInput(
            f"sweep of {name} is {spec!r}; allowed: a list of values, or a table with one of {', '.join(KINDS)}"
        )
    kinds = [key for key in spec if key in KINDS]
    if len(kinds) != 1:
        raise InvalidInput(f"sweep of {name} is {dict(spec)}; allowed: exactly one of {', '.join(KINDS)}")
    kind, rest = kinds[0], {key: value for key, value in spec.items() if key not in kinds}
    allowed = ("count", "seed") if kind == "random" else ()
    for key in rest:
        if key not in allowed:
            raise UnknownName(f"key of the {kind} of {name}", key, (*KINDS, *allowed))
    if kind == "values":
        return _listed(name, spec[kind])
    if kind == "random":
        low, high = numbers(f"random of {name}", spec[kind], "low, high")
        count, seed = whole(f"count of {name}", spec.get("count")), _seed(name, spec)
        return Axis((name,), count, lambda lo, hi: {name: low + (high - low) * _uniform(seed, name, lo, hi)})
    return _spaced(name, kind, spec[kind])


def _listed(name: str, values: Any) -> Axis:
    if not isinstance(values, list) or not values:
        raise InvalidInput(f"values of {name} are {values!r}; allowed: a list with at least one entry")
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if plain and not all(math.isfinite(value) for value in values):
        raise InvalidInput(f"values of {name} are {values}; allowed: finite numbers")
    array = np.asarray(values) if plain else values
    return Axis((name,), len(values), lambda lo, hi: {name: array[lo:hi]})


def _spaced(name: str, kind: str, given: Any) -> Axis:
    """linspace and logspace = [first, last, count], grid = [first, last, spacing]; the last value is met exactly."""
    first, last, third = numbers(
        f"{kind} of {name}", given, "first, last, " + ("spacing" if kind == "grid" else "count")
    )
    if kind == "grid":
        count = 1 + math.floor((last - first) / third * (1 + 1e-12)) if third else 0
        if count < 1:
            raise InvalidInput(f"grid of {name} is {given}; allowed: [first, last, spacing] with at least one point")
        return Axis((name,), count, lambda lo, hi: {name: first + third * np.arange(lo, hi)})
    count = whole(f"count in {kind} of {name}", given[2])
    if kind == "logspace" and not (first > 0 and last > 0):
        raise InvalidInput(
            f"logspace of {name} is {given}; allowed: [first, last, count], the values themselves, positive"
        )

    def at(lo: int, hi: int) -> Values:
        share = np.arange(lo, hi) / max(count - 1, 1)
        inner = first * (last / first) ** share if kind == "logspace" else first + (last - first) * share
        return {name: np.where(share == 1.0, last, inner)}

    return Axis((name,), count, at)


def sample_axis(spec: Any) -> Axis:
    """`sample = {sobol = 1024, seed = 0, ranges = {run.step = [0.01, 0.1], ...}}`: points in a box, as one dimension."""
    if (
        not isinstance(spec, Mapping)
        or len(kinds := [key for key in spec if key in SAMPLES]) != 1
        or "ranges" not in spec
    ):
        raise InvalidInput(
            f"sample is {spec!r}; allowed: {{{' | '.join(SAMPLES)} = count, seed = 0, ranges = {{...}}}}"
        )
    kind = kinds[0]
    for key in spec:
        if key not in (kind, "seed", "ranges"):
            raise UnknownName("key of the sample", key, (*SAMPLES, "seed", "ranges"))
    count, seed = whole(f"count of the {kind} sample", spec[kind]), _seed("sample", spec)
    if kind == "latin" and count > LARGEST_HELD:
        raise InvalidInput(
            f"a Latin sample of {count} points is too large to hold; allowed: {LARGEST_HELD}, or take sobol"
        )
    if not isinstance(spec["ranges"], Mapping) or not spec["ranges"]:
        raise InvalidInput(
            f"ranges of the sample are {spec['ranges']!r}; allowed: a table such as {{run.step = [0.01, 0.1]}}"
        )
    ranges = [pair for key, entry in spec["ranges"].items() for pair in flattened(key, entry, ())]
    names = tuple(name for name, _ in ranges)
    bounds = np.array([numbers(f"range of {name}", given, "low, high") for name, given in ranges])
    unit = partial({"random": _independent, "latin": _latin, "sobol": _sobol}[kind], names, count, seed)

    def at(lo: int, hi: int) -> Values:
        points = bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * unit(lo, hi)
        return dict(zip(names, points.T, strict=True))

    return Axis(names, count, at)


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
def numbers(what: str, given: Any, names: str) -> list[float]:
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
