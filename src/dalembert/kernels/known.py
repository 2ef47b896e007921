"""Programs that need not be traced again: on disk is what a run must know of its program to find the machine code and fill its buffers.

Tracing and lowering a step take longer than loading its code and running it a million times. What they give is determined by the
sources of this package, the versions of Python, JAX and NumPy, the functions with all they close over, and the structures
and shapes of the arguments: `spelled` writes these down, the same in every process. Only what consists of code of this package (and of
JAX and NumPy) can be written down; a step with a function of the user's own is `Nameless` and is traced in every process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import pickle
import platform
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from . import cache as disk
from .program import LoweringError, Program

ROOT = Path(__file__).parent.parent
PACKAGE = __name__.partition(".")[0]
VERSIONED = (PACKAGE, "jax", "numpy", "builtins")
BEGIN = time.time() - 10
"""No later than the import of this package began."""


@dataclasses.dataclass(eq=False)
class Lowered:
    """What a run must know of its program: its digest, its scalar inputs, the arrays it captured, the shape of what it records."""

    digest: str
    inputs: int
    captured: list[np.ndarray]
    record: Any  # a pytree of ShapeDtypeStruct
    trace: Callable[[], Lowered] | None = None  # where the program itself was not needed yet

    @classmethod
    def of(cls, program: Program, captured: list[np.ndarray], record: Any) -> Lowered:
        """Of a program that was just traced."""
        lowered = cls(program.digest, len(program.constants), captured, record)
        lowered.__dict__["program"] = program
        return lowered

    @cached_property
    def program(self) -> Program:
        """The program itself: traced when something other than machine code from the disk needs it."""
        assert self.trace is not None
        program = self.trace().program
        if program.digest != self.digest:
            raise LoweringError(f"the cache folder {disk.folder()} holds another program than this step's: delete it")
        return program

    @property
    def words(self) -> int:
        """The scalars of a record."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.record))


def known(parts: tuple, trace: Callable[[], Lowered]) -> Lowered:
    """The program that `parts` determine: from the disk if it was traced before, in this process or another."""
    place = disk.folder()
    try:
        path = None if place is None else place / disk.key(*_versions(), *spelled(parts))
    except Nameless:
        path = None
    if path is None:
        return trace()
    content = disk.read(path)
    if content is not None:
        digest, inputs, captured, record = pickle.loads(content)  # ours and whole: `read` has verified it
        return Lowered(digest, inputs, captured, record, trace)
    lowered = trace()
    if _changed() < BEGIN:  # or else the key would say that the code on disk was traced, and not the older one that runs
        with contextlib.suppress(OSError, pickle.PicklingError, AttributeError):
            disk.write(path, pickle.dumps((lowered.digest, lowered.inputs, lowered.captured, lowered.record)))
    return lowered


# ---- sources


@cache
def _versions() -> tuple[str, ...]:
    if _changed() >= BEGIN:
        raise Nameless("the sources changed since they were imported")
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest(), platform.python_version(), jax.__version__, np.__version__


def _sources() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def _changed() -> float:
    """When a source last changed; infinity where they are no files (in an archive, say): then nothing is kept."""
    return max((path.stat().st_ctime for path in _sources()), default=float("inf"))


# ---- names


class Nameless(LookupError):
    """Something that has no name outside this process."""


def spelled(it: Any) -> Iterator[str]:
    """Everything that a traced function can depend on, as text: the same for the same thing in every process."""
    yield f"{type(it).__module__}.{type(it).__qualname__}"
    if it is None or isinstance(it, bool | int | float | complex | str | bytes | np.dtype):
        yield repr(it)
    elif isinstance(it, np.ndarray | np.generic | jax.Array):
        data = np.asarray(it)
        yield f"{data.dtype} {data.shape} {hashlib.sha256(data.tobytes()).hexdigest()}"
    elif isinstance(it, jax.tree_util.PyTreeDef):
        yield from _all(it.node_data(), it.children())
    elif isinstance(it, dict):
        yield from _all(*it.items())
    elif _has_name(it):
        yield f"{it.__module__}.{it.__qualname__}"
    elif isinstance(it, types.FunctionType) and _ours(it.__module__):
        cells = [cell.cell_contents for cell in it.__closure__ or ()]
        yield from _all(it.__module__, it.__code__, it.__defaults__, it.__kwdefaults__, cells)
    elif isinstance(it, types.CodeType):
        yield from _all(it.co_qualname, it.co_firstlineno, it.co_code, it.co_names, it.co_varnames, it.co_freevars, it.co_consts)
    elif isinstance(it, types.MethodType):
        yield from _all(it.__self__, it.__func__)
    elif isinstance(it, functools.partial):
        yield from _all(it.func, it.args, it.keywords)
    elif dataclasses.is_dataclass(it) and _has_name(type(it)):
        yield from _all(*(getattr(it, field.name) for field in dataclasses.fields(it)))
    elif isinstance(it, tuple | list) and _has_name(type(it)):
        yield from _all(*it)
    else:
        raise Nameless(f"{it!r} has no name outside this process")


def _all(*things: Any) -> Iterator[str]:
    yield str(len(things))
    for thing in things:
        yield from spelled(thing)


def _ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == PACKAGE


def _has_name(it: Any) -> bool:
    """Whether a class or function is what its module calls by its name, and the module's code is known by its version."""
    module, name = getattr(it, "__module__", None), getattr(it, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module.partition(".")[0] not in VERSIONED:
        return False
    if it is type(None):
        return True
    with contextlib.suppress(AttributeError, KeyError):
        return attrgetter(name)(sys.modules[module]) is it
    return False
