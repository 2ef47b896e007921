"""A user's own system: `python = "mysystem.py:make"` in a configuration, where make(**parameters) returns a `System`.

The file is run as a script would be, with its own folder first on the path. Nothing else in a configuration is executed.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from .errors import InvalidInput, UnknownName
from .system import MechanicalSystem

PREFIX = "_dalembert_user_"


def user_system(reference: Any, folder: Path, parameters: Mapping[str, Any]) -> tuple[MechanicalSystem, Path]:
    """The system that "file.py:function" makes of the parameters, and the file."""
    name, _, attribute = str(reference).rpartition(":")
    if not isinstance(reference, str) or not name or not attribute.isidentifier():
        raise InvalidInput(f'python is {reference!r}; allowed: "file.py:function", such as "mysystem.py:make"')
    path = (folder / name).resolve()
    with blaming(path):
        make = function_of(path, attribute)
        _require_parameters(make, f"{path.name}:{attribute}", parameters)
        system = make(**parameters)
        _require_system(system, f"{path.name}:{attribute}", path)
    return system, path


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn what a user's file raises, now or when its functions are traced, into a message with the line at fault."""
    try:
        yield
    except InvalidInput:
        raise
    except (Exception, SystemExit) as fault:
        message = explain(fault, path)
        if message is None:
            raise
        raise InvalidInput(message) from fault


def explain(fault: BaseException, path: Path) -> str | None:
    """Where in the user's file the exception came from, or None if it did not come from there."""
    what = f"{type(fault).__name__}: {fault}"
    if isinstance(fault, SyntaxError) and fault.filename == str(path):
        return f"{path.name}, line {fault.lineno}: {what}\n    {(fault.text or '').strip()}"
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == str(path)]
    if not frames:
        return None
    last = frames[-1]
    return f"{path.name}, line {last.lineno}, in {last.name}: {what}\n    {last.line}"


def function_of(path: Path, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}; python = ... is relative to the folder of the configuration")
    spec = importlib.util.spec_from_file_location(f"{PREFIX}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is not a Python file; allowed: a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    found = {key: entry for key, entry in vars(module).items() if inspect.isfunction(entry) and not key.startswith("_")}
    if not callable(getattr(module, name, None)):
        raise UnknownName(f"function of {path.name}", name, found)
    return getattr(module, name)


def _require_parameters(make: Callable, name: str, given: Mapping[str, Any]) -> None:
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
    functions: dict[str, tuple[Callable, tuple, tuple | None]] = {
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
            if explain(fault, path) is not None:
                raise
            raise InvalidInput(f"{name}: {call}: {fault}") from fault  # such as the wrong number of arguments
        if wanted is not None and shape != wanted:
            what = f"{wanted[0]} numbers" if wanted else "one number"
            raise InvalidInput(f"{name}: {call} gave an array of shape {shape}; allowed: {what}")
