"""Trees of dalembert's own objects as JSON beside named arrays, and back. Reading runs nobody's code but dalembert's.

A class or function is written as "dalembert.module:name" and read only from this package, so a data file can neither
import nor call anything else. What a user wrote (a lambda, a class of their own) is refused by name: `NotPortable`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .errors import InvalidInput

PACKAGE = __name__.split(".")[0]
Arrays = dict[str, np.ndarray]
MOVED = {"dalembert.trajectory:Record": "dalembert.records:Record"}
"""Where older files say a thing is found, and where it is found now."""


class NotPortable(InvalidInput):
    """An object that a file cannot hold, because its code is not dalembert's."""


def pack(value: Any, path: str, arrays: Arrays) -> Any:
    """JSON for `value`; its arrays go into `arrays` under their paths below `path`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        arrays[path] = np.asarray(value)
        return {"array": path}
    if isinstance(value, dict):
        return {"dict": {key: pack(entry, f"{path}.{key}", arrays) for key, entry in value.items()}}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"named": _name(type(value)), "fields": _entries(value._fields, value, path, arrays)}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [pack(entry, f"{path}.{k}", arrays) for k, entry in enumerate(value)]}
    if inspect.isfunction(value):
        return {"function": _name(value)}
    if isinstance(value, functools.partial):
        parts = {"function": value.func, "arguments": value.args, "options": value.keywords}
        return {"partial": _entries(parts, parts.values(), path, arrays)}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        fields = _entries(names, [getattr(value, name) for name in names], path, arrays)
        return {"data": _name(type(value)), "fields": fields}
    if callable(getattr(type(value), "tree_unflatten", None)):
        children, static = value.tree_flatten()
        parts = {"children": children, "static": static}
        return {"tree": _name(type(value)), "fields": _entries(parts, parts.values(), path, arrays)}
    raise NotPortable(f"{path} is {value!r}, which a file cannot hold")


def unpack(form: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The value that `pack` wrote."""
    if not isinstance(form, dict):
        return form
    kind = next(iter(form))
    if kind == "array":
        return arrays[form["array"]]
    if kind == "dict":
        return {key: unpack(entry, arrays) for key, entry in form["dict"].items()}
    if kind in ("tuple", "list"):
        entries = [unpack(entry, arrays) for entry in form[kind]]
        return tuple(entries) if kind == "tuple" else entries
    if kind == "partial":
        function, arguments, options = (
            unpack(form[kind][name], arrays) for name in ("function", "arguments", "options")
        )
        return functools.partial(function, *arguments, **options)
    found = _find(form[kind])
    if kind == "function" and inspect.isfunction(found):
        return found
    fields = {key: unpack(entry, arrays) for key, entry in form["fields"].items()}
    if (kind == "named" and issubclass(found, tuple)) or (kind == "data" and dataclasses.is_dataclass(found)):
        try:
            return found(**fields)
        except TypeError as fault:
            raise InvalidInput(
                f"the file is of another version of {PACKAGE}, in which {form[kind]} differs: {fault}"
            ) from fault
    if kind == "tree" and callable(getattr(found, "tree_unflatten", None)):
        return found.tree_unflatten(fields["static"], fields["children"])
    raise InvalidInput(f"{form[kind]} is no {kind} of {PACKAGE}")


def _entries(names, values, path: str, arrays: Arrays) -> dict[str, Any]:
    return {name: pack(value, f"{path}.{name}", arrays) for name, value in zip(names, values, strict=True)}


def _name(thing: Any) -> str:
    """Where a class or function is found, if it is found there."""
    name = f"{thing.__module__}:{thing.__qualname__}"
    try:
        if _find(name) is thing:
            return name
    except InvalidInput:
        pass
    raise NotPortable(f"{name} is not part of {PACKAGE}, and a file holds no code")


def _find(name: str) -> Any:
    module, _, attribute = MOVED.get(name, name).partition(":")
    if module != PACKAGE and not module.startswith(f"{PACKAGE}."):
        raise InvalidInput(f"{name} is not part of {PACKAGE}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as fault:
        raise InvalidInput(f"this version of {PACKAGE} has no {name}") from fault
    if getattr(found, "__module__", None) != module:
        raise InvalidInput(f"{name} is not part of {PACKAGE}")
    return found
