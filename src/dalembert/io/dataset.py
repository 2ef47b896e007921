"""Runs in files, NetCDF (.nc) or Zarr (.zarr), and as an `xarray.Dataset` with names, units and provenance.

A file is written completely or not at all. Its root group is the Dataset of `to_xarray`; its group `carry` has the rest
of the run: the system, the method and the state of the loop, from which a run continues bit for bit. There is a
checksum of every column (numbers, dimensions, attributes), of the attributes and of the description of the run. Every
command reads files here: what differs from its checksum is refused by name, unless it is asked for `unchecked`.

The group `carry` has one JSON text beside named arrays. A class or function stands there as "dalembert.module:name". A
file can name what ALLOWED_CLASSES and ALLOWED_FUNCTIONS have: groups, systems, methods, the states of methods, and the
formulas that models are made of. These compute and do nothing else; no name leads to anything that reads, writes,
imports or runs (tests/io/test_names_in_files.py walks over the package). What a user wrote (a lambda, a class of their
own) is refused: `NotPortable`. Files from before November 2026 have older names, see `moved.toml`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import os
import tomllib
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, UnknownName, stamp_origin
from ..integrators import Integrator
from ..kernels import evaluate
from ..mechanics import MechanicalSystem, MechanismSystem, State, in_group, without_forces
from ..models import MODELS
from ..numerics import call_own, require_instance
from ..simulation import Run, energy_conservation
from .atomic import atomic_path, restore_replaced

if TYPE_CHECKING:
    import xarray

PACKAGE = __name__.split(".")[0]
Arrays = dict[str, np.ndarray[Any, Any]]
Column = tuple[Any, tuple[str, ...]]  # values, and the names of their dimensions after those of the saves
ALLOWED_CLASSES = ("groups.", "mechanics.", "integrators.", "models.", "simulation.results", "simulation.loop")
"""Packages and modules whose dataclasses, named tuples and trees a file can name; but not the registries."""
ALLOWED_FUNCTIONS = {
    "models.": None,
    "mechanics.system": ("_lagrangian", "_force"),
    "mechanics.discretisation": ("moser_veselov", "moser_veselov_impulse"),
    "integrators.composition": ("arclength_pace", "acceleration_pace", "speed_pace", "potential_gradient_pace"),
    "integrators.discrete_gradient": ("gonzalez", "average_gradient", "itoh_abe"),
}
"""Modules whose functions a file can name (None: all of them): formulas of t, g, xi and parameters."""


class NotPortable(InvalidInput):
    """An object that a file cannot hold, because its code is not dalembert's."""


def encode(value: Any, path: str, arrays: Arrays) -> Any:
    """JSON for `value`; its arrays go into `arrays` under their paths below `path`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        arrays[path] = np.asarray(value)
        return {"array": path}
    if isinstance(value, dict):
        return {"dict": {key: encode(entry, f"{path}.{key}", arrays) for key, entry in value.items()}}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"named": _qualified_name("named", type(value)), "fields": _entries(value._fields, value, path, arrays)}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [encode(entry, f"{path}.{k}", arrays) for k, entry in enumerate(value)]}
    if inspect.isfunction(value):
        return {"function": _qualified_name("function", value)}
    if isinstance(value, functools.partial):
        parts = {"function": value.func, "arguments": value.args, "options": value.keywords}
        return {"partial": _entries(parts, parts.values(), path, arrays)}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        fields = _entries(names, [getattr(value, name) for name in names], path, arrays)
        return {"data": _qualified_name("data", type(value)), "fields": fields}
    if callable(getattr(type(value), "tree_unflatten", None)):
        children, static = value.tree_flatten()
        parts = {"children": children, "static": static}
        return {"tree": _qualified_name("tree", type(value)), "fields": _entries(parts, parts.values(), path, arrays)}
    raise NotPortable(f"{path} is {value!r}, which a file cannot hold")


def decode(form: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """The value that `encode` wrote."""
    if not isinstance(form, dict):
        return form
    kind = next(iter(form), "")
    if kind == "array":
        return arrays[form["array"]]
    if kind == "dict":
        return {key: decode(entry, arrays) for key, entry in form["dict"].items()}
    if kind in ("tuple", "list"):
        entries = [decode(entry, arrays) for entry in form[kind]]
        return tuple(entries) if kind == "tuple" else entries
    if kind == "partial":
        function, arguments, options = (decode(form[kind][key], arrays) for key in ("function", "arguments", "options"))
        if not inspect.isfunction(function):
            raise InvalidInput(f"a file holds a partial of {function!r}, which is no function of {PACKAGE}")
        return functools.partial(function, *arguments, **options)
    found = _resolve(kind, str(form.get(kind)))
    if kind == "function":
        return found
    fields = {key: decode(entry, arrays) for key, entry in form["fields"].items()}
    if kind == "tree":
        return found.tree_unflatten(fields["static"], fields["children"])
    try:
        return found(**fields)
    except TypeError as fault:
        message = f"the file is of another version of {PACKAGE}, in which {form[kind]} differs: {fault}"
        raise InvalidInput(message) from fault


def _entries(names: Iterable[str], values: Iterable[Any], path: str, arrays: Arrays) -> dict[str, Any]:
    return {name: encode(value, f"{path}.{name}", arrays) for name, value in zip(names, values, strict=True)}


def _qualified_name(kind: str, thing: Any) -> str:
    """Where a class or function is found, if it is found there."""
    name = f"{thing.__module__}:{thing.__qualname__}"
    try:
        if _resolve(kind, name) is thing:
            return name
    except InvalidInput:
        pass
    raise NotPortable(f"{name} is not part of {PACKAGE}, and a file holds no code")


@functools.cache
def read_table(name: str) -> dict[str, dict[str, Any]]:
    """A table of this package: `moved` names of older files by what they were, or the `texts` of columns."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def _current_name(name: str) -> str:
    """Where "dalembert.module:name" of an older file is found now."""
    if not name.startswith(f"{PACKAGE}."):
        return name
    old, moved = name.removeprefix(f"{PACKAGE}."), read_table("moved")
    module, _, attribute = old.partition(":")
    here = f"{moved['modules'].get(module, module)}:{attribute}"
    return f"{PACKAGE}.{moved['names'].get(old) or moved['names'].get(here, here)}"


def _resolve(kind: str, name: str) -> Any:
    """The class or function that a file may name so ("data", "named", "tree", "function"), by its older name too."""
    module, _, attribute = _current_name(name).partition(":")
    place = module.removeprefix(f"{PACKAGE}.")
    if kind == "function":
        names = next((names for start, names in ALLOWED_FUNCTIONS.items() if place.startswith(start)), ())
        allowed = names is None or attribute in names
    else:
        allowed = place.startswith(ALLOWED_CLASSES)
    if not module.startswith(f"{PACKAGE}.") or not allowed or place.endswith("registry"):
        raise InvalidInput(f"{name} is no {kind} of {PACKAGE} that a file can name")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as fault:
        raise InvalidInput(f"this version of {PACKAGE} has no {name}") from fault
    is_kind = {
        "function": inspect.isfunction(found),
        "data": inspect.isclass(found) and dataclasses.is_dataclass(found),
        "named": inspect.isclass(found) and issubclass(found, tuple) and hasattr(found, "_fields"),
        "tree": inspect.isclass(found) and callable(getattr(found, "tree_unflatten", None)),
    }
    if getattr(found, "__module__", None) != module or not is_kind.get(kind):
        raise InvalidInput(f"{name} is no {kind} of {PACKAGE} that a file can name")
    return found


RECORD_COLUMNS = {"t": "time", "xi": "velocity", "multipliers": "multiplier", "angles": "angle"}
"""The columns that hold the records of a run, where their name is not that of the field."""


def to_xarray(run: Run, *, reaction: bool = False) -> xarray.Dataset:
    """A Dataset over `time` (`member` and `save` for an ensemble) of all saved numbers and what is computed from them.

    `reaction=True` adds the reaction forces A^T l, which take a second or two to compile.
    """
    import xarray

    lead = ("member", "save") if np.ndim(run.final.status) else ("time",)
    columns = _record_columns(run) | _attitude_columns(run)
    columns["energy"] = (run.energy(), ())
    columns["constraint_residual"] = (run.constraint_residual(), ())
    columns["group_distance"] = (run.group_distance(), ())
    if isinstance(run.controls, np.ndarray | jax.Array):
        columns["control"] = (run.controls_at_states(), ("input",))
    if len(lead) == 1 and len((balance := energy_conservation(run)).work):
        columns |= {"power": (balance.power, ()), "work": (balance.work, ())}
    if run.holonomic_constraints:
        columns["holonomic_residual"] = (run.holonomic_residual(), ())
    if reaction:
        columns["reaction"] = (run.reaction(), ("component",))
    named = without_forces(run.system)
    if isinstance(named, MechanismSystem) or (named.names and named.names.coordinates):
        columns["coordinate"] = (np.stack([*named.named_coordinates(run.g).values()], axis=-1), ("coordinate_name",))
    data = {
        name: ((*lead, *dims), np.asarray(values), _attributes(name))
        for name, (values, dims) in columns.items()
        if np.size(values)
    }
    coordinates: dict[str, Any] = {"time": (lead, np.asarray(run.t), _attributes("time"))}
    if any("component" in dims for dims, *_ in data.values()):
        components = run.system.axes()
        coordinates["component"] = [axis.name for axis in components]
        for kind in ("velocity", "momentum", "force"):
            coordinates[f"{kind}_unit"] = ("component", [getattr(axis, kind) for axis in components])
    if "coordinate" in data:
        coordinates["coordinate_name"] = list(run.system.coordinate_names)
    if run.system.load_names and "multiplier" in data:
        coordinates["constraint"] = list(run.system.load_names)
    for word in {"coordinate_name", "constraint"} & set(coordinates):
        units = [named.units[name] for name in coordinates[word]]
        coordinates[f"{word.removesuffix('_name')}_unit"] = (word, units)
    if "control" in data and run.system.inputs is not None:
        coordinates["input"] = [each.name for each in run.system.inputs]
        coordinates["input_unit"] = ("input", [each.unit for each in run.system.inputs])
    if any("part" in dims for dims, *_ in data.values()):
        coordinates["part"] = list("wxyz")
    return xarray.Dataset(data | _crossing_columns(run), coords=coordinates, attrs=provenance(run))


def _crossing_columns(run: Run) -> dict[str, Any]:
    """The columns over `crossing`: all crossings of all events, with the name of the event beside them."""
    found = [each for each in run.events.values() if len(each)]
    if not found:
        return {}
    stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[each.record for each in found])
    columns: dict[str, Column] = {
        "event": (np.concatenate([[each.name] * len(each) for each in found]), ()),
        "event_time": (stacked.state.t, ()),
        "event_step": (stacked.steps, ()),
        "event_theta": (np.concatenate([each.theta for each in found]), ()),
        "event_direction": (np.concatenate([each.direction for each in found]), ()),
        "event_member": (np.concatenate([each.lane for each in found]), ()),
        "event_velocity": (stacked.state.xi, ("component",)),
    }
    columns |= {f"event_{name}": column for name, column in configuration_columns(stacked.state.g, 1).items()}
    return {name: (("crossing", *dims), values, _attributes(name)) for name, (values, dims) in columns.items()}


def _record_columns(run: Run) -> dict[str, Column]:
    records, state = run.records, run.records.state
    on_group = np.shape(state.momentum)[-1] == run.system.group.dim
    columns: dict[str, Column] = {
        "velocity": (state.xi, ("component",)),
        "momentum": (state.momentum, ("component" if on_group else "restricted",)),
        "increment": (state.increment, ("component",)),
        "multiplier": (records.multipliers, ("constraint",)),
        "angle": (records.angles, ("rotation",)),
        "residual": (records.residual, ()),
        "iterations": (records.iterations, ()),
        "steps": (records.steps, ()),
        "step_size": (run.step_sizes, ()),
    }
    return columns | configuration_columns(run.g, np.ndim(records.residual))


def configuration_columns(g: Any, lead: int) -> dict[str, Column]:
    """The columns of configurations, one for each factor of a product; their first `lead` dimensions count saves."""
    factors = {f"configuration_{k}": part for k, part in enumerate(g)} if isinstance(g, tuple) else {"configuration": g}
    return {
        name: (part, tuple(f"{name}_{axis}" for axis in ("row", "column")[: np.ndim(part) - lead]))
        for name, part in factors.items()
    }


def _attitude_columns(run: Run) -> dict[str, Column]:
    """Quaternions and positions, for those factors that have them."""
    columns: dict[str, Column] = {}
    factors = run.system.group.factors
    for (name, (values, _)), factor in zip(configuration_columns(run.g, 0).items(), factors, strict=True):
        tail = name.removeprefix("configuration")
        for kind, dimension in (("quaternion", "part"), ("position", f"space{tail}")):
            if (found := factor.path(kind, values)) is not None:
                columns[f"{kind}{tail}"] = (found, (dimension,))
    return columns


def column_text(name: str) -> tuple[str, str]:
    """What a column is, and its unit."""
    text, unit = read_table("texts")["columns"].get(name.rstrip("_0123456789"), ("", ""))  # of a factor: numbered
    return text, unit


def _attributes(name: str) -> dict[str, str]:
    text, unit = column_text(name)
    return {key: value for key, value in (("long_name", text), ("units", unit)) if value}


def provenance(run: Run) -> dict[str, Any]:
    """What made this run: group, method, step, how it ended, backend, versions, machine and time."""
    failed = np.count_nonzero(np.asarray(run.final.status))
    return {
        "system": run.system.title,
        "group": str(run.system.group),
        "method": repr(run.integrator),
        "step": float(run.step),
        "status": "failed" if failed else "interrupted" if run.interrupted else "ok",
        "reason": str(run.reason) if failed and not np.ndim(run.final.status) else "",
        "interrupted": int(run.interrupted),
        "backend": run.backend,
        "note": run.note,
        **stamp_origin(),
        "units": "SI, if the parameters are; [q] is the unit of the coordinate itself",
    }


DATA_SUFFIXES = (".nc", ".zarr")
CARRY_GROUP = "carry"
ATTRIBUTES = "attributes"
SEAL = b"dalembert: whole"
DIFFERS = "differs from what was saved (checksum)"
SAMPLED_ENERGIES = 1000  # of an ensemble, that tell whether a given system is the one that was saved
SAME_ANSWER = 1e-7  # how far, relative to 1 + their size, numbers of the same system on two machines may be apart
VARIABLE_OVERHEAD_BYTES = 2048
"""What a variable may take in a file beside its numbers."""


def save_run(
    run: Run, path: str | Path, attributes: Mapping[str, Any] | None = None, *, reaction: bool = False
) -> None:
    """Write a NetCDF or Zarr file completely or not at all: under another name first, which is then renamed.

    If two runs write one file, that of the later remains. `attributes` (such as the configuration) go into the file.
    """
    path = Path(path)
    require_writable(path)
    dataset = to_xarray(run, reaction=reaction).assign_attrs(attributes or {})
    carry = _carry_dataset(run)
    carry.attrs["checksums"] = json.dumps(_checksums(dataset, carry))
    overhead = VARIABLE_OVERHEAD_BYTES * (len(dataset.variables) + len(carry.variables))
    with atomic_path(path, dataset.nbytes + carry.nbytes + overhead) as temporary:
        for group, data in ((None, dataset), (CARRY_GROUP, carry)):
            mode: Any = "w" if group is None else "a"
            if path.suffix == ".zarr":
                data.to_zarr(temporary, mode=mode, group=group, consolidated=False, zarr_format=2)
            else:
                data.to_netcdf(temporary, mode=mode, group=group, engine="h5netcdf")
        if path.suffix == ".nc":
            seal_structure(temporary)


def seal_structure(path: Path) -> None:
    """Append what tells whether the structure of an HDF5 file is whole: CRC-32 of all its bytes but the numbers.

    HDF5 may follow a damaged structure for ever, so it is not to be asked. It ignores what stands behind its own end.
    """
    import h5py

    places: list[tuple[int, int]] = []

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.chunks is None and item.id.get_offset() is not None:
            places.append((item.id.get_offset(), item.id.get_storage_size()))

    with h5py.File(path) as file:
        file.visititems(note)
    places.sort()
    text = json.dumps({"numbers": places, "crc": _structure_checksum(path, places, os.path.getsize(path))}).encode()
    with open(path, "ab") as file:
        file.write(text + len(text).to_bytes(8) + SEAL)


def has_whole_structure(path: Path) -> bool:
    """Whether the structure of a file is as it was saved; files without a seal, and folders, pass."""
    if path.suffix != ".nc" or not path.is_file() or (size := os.path.getsize(path)) < 8 + len(SEAL):
        return True
    with open(path, "rb") as file:
        file.seek(size - 8 - len(SEAL))
        length, mark = int.from_bytes(file.read(8)), file.read()
        end = size - 8 - len(SEAL) - length
        if mark != SEAL:
            return True
        try:
            file.seek(end)
            saved = json.loads(file.read(length))
            return bool(saved["crc"] == _structure_checksum(path, saved["numbers"], end))
        except (ValueError, KeyError, TypeError, OSError):
            return False


def _structure_checksum(path: Path, numbers: list[Any], end: int) -> int:
    """CRC-32 of a file up to `end` but for the places (offset, bytes) of its numbers."""
    value, at = 0, 0
    with open(path, "rb") as file:
        for begin, size in [*numbers, (end, 0)]:
            file.seek(at)
            value, at = zlib.crc32(file.read(begin - at), value), begin + size
    return value


def require_writable(path: Path) -> None:
    """Refuse an output file that cannot be written, before anything runs."""
    if path.suffix not in DATA_SUFFIXES:
        raise InvalidInput(f"the file is {path}; allowed: a file that ends in .nc (NetCDF) or .zarr (Zarr)")
    if not path.parent.is_dir():
        raise InvalidInput(f"the file is {path}, but the folder {path.parent} does not exist: create it first")
    named = any((path / name).is_file() for name in ("zarr.json", ".zgroup"))
    foreign = path.is_dir() and (path.suffix != ".zarr" or not (named or not any(path.iterdir())))
    if foreign or (path.suffix == ".zarr" and path.is_file()) or not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"the file is {path}, which cannot be written")
    if path.suffix == ".zarr":
        require_zarr()


def require_zarr() -> None:
    """Refuse a Zarr file where the package is missing."""
    try:
        import zarr  # noqa: F401
    except ImportError as fault:
        raise InvalidInput("a Zarr file needs the package zarr: pip install 'zarr>=3'") from fault


def _carry_dataset(run: Run) -> xarray.Dataset:
    """Everything but the records, as named arrays and one JSON text."""
    import xarray

    forms: dict[str, Any] = {}
    arrays: Arrays = {}
    for field in dataclasses.fields(run):
        packed: Arrays = {}
        try:
            forms[field.name] = encode(getattr(run, field.name), field.name, packed)
            arrays |= packed
        except NotPortable as fault:
            if field.name not in ("system", "integrator"):
                raise
            forms[field.name] = {"missing": str(fault)}
            if field.name == "system":
                forms[field.name]["answers"] = _answers(run)
    data = {
        path: (tuple(f"{path}_{k}" for k in range(array.ndim)), array)
        for path, array in arrays.items()
        if array.size and not path.startswith("records")
    }
    shapes = {path: [list(array.shape), array.dtype.str] for path, array in arrays.items()}
    return xarray.Dataset(data, attrs={"trajectory": json.dumps({"forms": forms, "shapes": shapes})})


def _answers(run: Run) -> list[float] | None:
    """What tells the system of a run from others: energy, momentum, xi' and multipliers at three of its saved states.

    A file holds no code, so `load_run` asks the system that it is given the same again. Of an ensemble, whose systems
    may differ, it is the energy. None where there is no answer.
    """
    try:
        if np.ndim(run.final.status):
            return [float(each) for each in np.ravel(run.energy())[:SAMPLED_ENERGIES]]
        last = len(run.t) - 1
        u = run.controls_at_states() if run.controlled else run.system.zero_controls() if run.system.inputs else None
        found = []
        for k in (0, last // 2, last):
            state = jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], run.records.state)
            held = jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], u) if run.controlled else u
            found.append(evaluate(_answer, run.system, (state, held)))
        return [float(each) for each in np.ravel(found)]
    except Exception:  # code of a user's own, asked for what the run may not have needed
        return None


def _answer(system: MechanicalSystem, point: tuple[State, Any]) -> Any:
    (t, g, xi, *_), u = point
    rate, multipliers = system._acceleration(t, g, xi, u)
    return jnp.concatenate([system.energy(t, g, xi)[None], system.momentum(t, g, xi), rate, multipliers])


def _require_same(path: Path, run: Run, saved: list[float] | None) -> None:
    """Refuse a given system that answers otherwise than the one that made the run."""
    if saved is None:
        return
    found, wanted = _answers(run), np.asarray(saved)
    if found is not None and len(found) == len(wanted):
        gap = np.abs(np.asarray(found) - wanted) / (1.0 + np.abs(wanted))
        if np.all((gap <= SAME_ANSWER) | (np.isnan(found) & np.isnan(wanted))):
            return
        words = f"energy, momentum, acceleration or reaction at its saved states differ by up to {np.nanmax(gap):.2g}"
    else:
        words = "it does not answer as many numbers at the saved states"
    raise InvalidInput(
        f"the given system is not the one that made the run in {path}: {words}. Give the system with the functions and "
        "parameters of that run; load(..., unchecked=True) takes this one all the same"
    )


def checksum(arrays: Mapping[str, np.ndarray[Any, Any]]) -> int:
    """CRC-32 over all arrays, in the order of their names."""
    value = 0
    for path in sorted(arrays):
        value = zlib.crc32(np.ascontiguousarray(arrays[path]).tobytes(), zlib.crc32(path.encode(), value))
    return value


def _checksums(dataset: xarray.Dataset, carry: xarray.Dataset) -> dict[str, int]:
    """CRC-32 of every column of both groups with its name, and of the attributes of both."""
    found = {}
    for group, prefix in ((dataset, ""), (carry, f"{CARRY_GROUP}/")):
        found[f"{prefix}{ATTRIBUTES}"] = checksum_attributes(group.attrs)
        for name, column in group.variables.items():
            values, words = np.asarray(column.values), column.dtype.kind in "OSU"
            texts = [str(entry) for entry in values.ravel()] if words else values.dtype.str
            about = checksum_attributes({"name": str(name), "dims": list(map(str, column.dims)), "values": texts})
            about = zlib.crc32(checksum_attributes(column.attrs).to_bytes(4), about)
            numbers = b"" if words else np.ascontiguousarray(values).data
            found[f"{prefix}{name}"] = zlib.crc32(numbers, zlib.crc32(str(values.shape).encode(), about))
    return found


def checksum_attributes(attributes: Mapping[Any, Any]) -> int:
    """CRC-32 over names and values of attributes, as they are read back; but for the checksums among them."""
    plain = {str(key): value.tolist() if isinstance(value, np.ndarray | np.generic) else value
             for key, value in attributes.items() if key not in ("checksum", "checksums")}  # fmt: skip
    return zlib.crc32(json.dumps(plain, sort_keys=True, default=str).encode())


def load_run(
    path: str | Path,
    *,
    system: MechanicalSystem | Callable[..., MechanicalSystem] | None = None,
    integrator: Integrator | None = None,
    unchecked: bool = False,
) -> Run:
    """Load a run from a file; it equals the one that was saved.

    A file contains no code: give a system of your own (or a method with functions of your own) again, or a function
    that makes the system. It is called with the parameters of [system] in the file, if it takes them. The system must
    have the energy, momentum and acceleration of the run at its saved states, or it is refused. A damaged file is
    refused, and the message names the damaged part. With `unchecked=True` a file is read as it is, with any system,
    and `note` says what is damaged.
    """
    if not isinstance(path, str | Path):
        raise InvalidInput(f"path is {path!r}; allowed: the name of a file")
    path = Path(path)
    dataset, carry, damage = read_groups(path, unchecked)
    section = _section_of_config(dataset.attrs.get("config", ""))
    if system is not None:
        allowed = "a system, or a function without arguments, or with the parameters in the file, that makes one"
        try:
            if callable(system) and not isinstance(system, MechanicalSystem):
                system = call_own("make()", _with_parameters(system, section))
        except InvalidInput as fault:
            raise InvalidInput(f"system is no function that makes one: {fault}; allowed: {allowed}") from fault
        require_instance("system", system, MechanicalSystem, allowed)
    given = {"system": system, "integrator": integrator}
    try:
        saved = json.loads(carry.attrs["trajectory"])
        arrays = {name: _read_array(path, dataset, carry, name, *about) for name, about in saved["shapes"].items()}
        fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        for name in saved["forms"].keys() - fields.keys():
            form = saved["forms"][name]
            if not (isinstance(form, dict) and "missing" in form):
                fields[name] = decode(form, arrays)
            elif name == "system" and (rebuilt := _model_of_section(section)) is not None:
                fields[name] = rebuilt
            else:
                why = form["missing"]
                here = f", or --system {section['python']} on the command line" if "python" in section else ""
                raise InvalidInput(
                    f"{path} cannot hold the {name} of this run ({why}): give load(path, {name}=...){here}"
                )
        if fields["backend"] == "scipy":  # the reference of before November 2026 counted its steps in integers
            fields["final"] = fields["final"]._replace(steps=np.asarray(fields["final"].steps, float))
        fields["note"] = "; ".join(filter(None, (fields["note"], damage and f"unchecked: {damage}")))
        group, theirs = fields["system"].group, dataset.attrs.get("group", "")
        if theirs not in ("", str(group)):
            raise InvalidInput(f"{path} holds a run on {theirs}, but configurations of the given system are in {group}")
        fields["records"] = in_group(group, fields["records"])
        fields["events"] = {name: in_group(group, found) for name, found in fields.get("events", {}).items()}
        run, form = Run(**fields), saved["forms"]["system"]
        if system is not None and not unchecked and isinstance(form, dict):
            _require_same(path, run, form.get("answers"))
        return run
    except InvalidInput:
        raise
    except Exception as fault:  # a description that dalembert did not write can fail in any way
        what = f"{type(fault).__name__}: {fault}"
        raise InvalidInput(f"{path} is not a trajectory of {PACKAGE}: its description has no sense ({what})") from fault


def open_dataset(path: Path, *, unchecked: bool = False) -> xarray.Dataset:
    """The data of a file in memory, as it was saved; with `unchecked` as it is, and its attribute `damage` says so.

    A missing, foreign, truncated or damaged file is refused, and so is one without checksums.
    """
    dataset, _, damage = read_groups(Path(path), unchecked)
    return dataset.assign_attrs(damage=damage) if damage else dataset


def read_groups(path: Path, unchecked: bool) -> tuple[xarray.Dataset, xarray.Dataset, str]:
    """The two groups of a file, and what is damaged in them, which is refused unless `unchecked`."""
    if not unchecked and not has_whole_structure(path):
        raise InvalidInput(
            f"{path} is damaged: its structure differs from what was saved (checksum), so that HDF5 might not end "
            f"reading it. {_FORCE}, where that is possible"
        )
    dataset, lost = _open_group(path)
    damage = dict.fromkeys(lost, "cannot be read")
    carry = dataset.drop_vars(list(dataset.variables))
    try:
        if "plan" in dataset.attrs:
            damage |= _sweep_damage(dataset)
        else:
            carry, lost = _open_group(path, CARRY_GROUP)
            damage |= dict.fromkeys((f"{CARRY_GROUP}/{name}" for name in lost), "cannot be read")
            damage |= _file_damage(path, dataset, carry)
    except InvalidInput as fault:  # nothing of a trajectory is there
        if not unchecked:
            raise InvalidInput(f"{fault}; {_FORCE}") from fault
        damage["the file"] = "has no checksums"
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        damage["the description of the run"] = f"has no sense ({type(fault).__name__}: {fault})"
    told = [f"{name} {fault}" for name, fault in damage.items()]
    if damage and not unchecked:
        more = f"; and {len(told) - 4} more" if len(told) > 4 else ""
        rest = ", ".join(str(name) for name in dataset.variables if name not in damage)
        raise InvalidInput(f"{path} is damaged: {'; '.join(told[:4])}{more}. {_FORCE} ({rest or 'nothing else'})")
    return dataset, carry, "; ".join(told)


_FORCE = "`dalembert show --force`, or da.load(..., unchecked=True), reads the rest as it is"


def _file_damage(path: Path, dataset: xarray.Dataset, carry: xarray.Dataset) -> dict[str, str]:
    """What differs from its checksum."""
    saved = json.loads(carry.attrs["trajectory"])
    if "checksum" in saved:  # before November 2026 there was one, over the numbers that make a run
        arrays = {name: _read_array(path, dataset, carry, name, *about) for name, about in saved["shapes"].items()}
        return {} if checksum(arrays) == saved["checksum"] else {"some number": DIFFERS}
    wanted, found = json.loads(carry.attrs["checksums"]), _checksums(dataset, carry)
    words = {ATTRIBUTES: "an attribute (what made the run)", f"{CARRY_GROUP}/{ATTRIBUTES}": "the system or the method"}
    differ = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    return {words.get(name, name): DIFFERS if name in found else "is missing" for name in differ}


def _sweep_damage(dataset: xarray.Dataset) -> dict[str, str]:
    """The blocks of a sweep, and its attributes, that differ from their checksums."""
    damage = {}
    if dataset.attrs.get("checksum", wanted := checksum_attributes(dataset.attrs)) != wanted:
        damage["an attribute (what made the sweep)"] = DIFFERS
    shape = json.loads(dataset.attrs["plan"])["blocks"]
    swept = {str(name): column for name, column in dataset.data_vars.items() if name != "block_checksum"}
    sizes = next(iter(swept.values())).shape[: len(shape)]
    for number, place in enumerate(np.ndindex(*(-(-size // part) for size, part in zip(sizes, shape, strict=True)))):
        region = tuple(slice(k * part, (k + 1) * part) for k, part in zip(place, shape, strict=True))
        kept = int(dataset["block_checksum"][number])
        if kept >= 0 and kept != checksum({name: np.asarray(column.values[region]) for name, column in swept.items()}):
            damage[f"block {number}"] = DIFFERS
    return damage


def _open_group(path: Path, group: str | None = None) -> tuple[xarray.Dataset, list[str]]:
    """A group in memory, and the names of the columns that cannot be read."""
    import xarray

    if path.suffix not in DATA_SUFFIXES:
        raise InvalidInput(f"{path} is no data file; allowed: a file that ends in .nc (NetCDF) or .zarr (Zarr)")
    restore_replaced(path)
    if not os.path.exists(path):
        raise InvalidInput(f"there is no file {path}")
    zarr = path.suffix == ".zarr"
    if zarr:
        require_zarr()
    options: dict[str, Any] = {"engine": "zarr", "consolidated": False} if zarr else {"engine": "h5netcdf"}
    lost = []
    try:
        with xarray.open_dataset(path, group=group, decode_times=False, **options) as data:
            for name, column in data.variables.items():
                try:
                    column.load()
                except Exception:  # every library below has its own exceptions for a broken file
                    lost.append(str(name))
            return data.drop_vars(lost).load(), lost
    except Exception as fault:
        what = f"a whole trajectory of {PACKAGE}" if group else f"a readable {'Zarr' if zarr else 'NetCDF'} file"
        raise InvalidInput(f"{path} is not {what} (truncated, or something else): {fault}") from fault


def _read_array(
    path: Path, dataset: xarray.Dataset, carry: xarray.Dataset, name: str, shape: list[int], dtype: str
) -> np.ndarray[Any, Any]:
    if not np.prod(shape):
        return np.zeros(shape, dtype)
    group, column = carry, name
    if name.startswith("records."):  # "configuration_0" for "records.state.g.0"
        group, field, factor = dataset, name.rpartition(".")[2], name.removeprefix("records.state.g")
        column = f"configuration{factor.replace('.', '_')}" if factor != name else RECORD_COLUMNS.get(field, field)
    if column not in group:
        raise UnknownName(f"column of {path} (which a trajectory needs, but the file lacks)", column, map(str, group))
    array = np.asarray(group[column].values)
    if list(array.shape) != shape or array.dtype != np.dtype(dtype):
        raise InvalidInput(f"{path}: {column} is {array.dtype} {array.shape}, but {dtype} {tuple(shape)} was saved")
    return array


def _section_of_config(config: str) -> dict[str, Any]:
    """The section [system] of the configuration in a file; empty where there is none."""
    try:
        return dict(tomllib.loads(config)["system"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError):
        return {}


def _with_parameters(make: Callable[..., Any], section: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with the parameters of a section [system], if it takes them; otherwise as it is."""
    parameters = {key: value for key, value in section.items() if key not in ("name", "python")}
    try:
        inspect.signature(make).bind(**parameters)
    except (TypeError, ValueError):  # it takes others, or has no signature
        return make
    return functools.partial(make, **parameters) if parameters else make


def _model_of_section(section: Mapping[str, Any]) -> MechanicalSystem | None:
    """The system of a section that names a model of dalembert."""
    try:
        return MODELS[section["name"]].make({key: value for key, value in section.items() if key != "name"})
    except (KeyError, InvalidInput):
        return None
