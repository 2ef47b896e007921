"""Compiled objects and traced programs on disk: complete or absent, verified before use, private to their user.

The folder is `$DALEMBERT_CACHE`, or `dalembert` in `$XDG_CACHE_HOME`, in `%LOCALAPPDATA%` on Windows, or in `~/.cache`;
`DALEMBERT_CACHE=off` turns the cache off. An entry is a header (magic, length, SHA-256 of its name and the object) and
the object. An entry that is corrupt, foreign, under another's name or of no use to its reader is built again; what
killed writers left is removed.

Tracing and lowering a step take longer than loading its code and running it a million times. What they give is
determined by the sources of this package, the versions of Python, JAX and NumPy, the functions with all they close
over, and the structures and shapes of the arguments: `fingerprint` writes these down, the same in every process, and
`cached_program` finds by them what a run must know of its program. What is `Unfingerprintable` is traced in every
process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pickle
import platform
import shutil
import stat
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import numpy as np

from .ir import LoweringError, Program
from .recognition import Unfingerprintable, fingerprint

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE_MAGIC = b"dalembert object 2\n"
TEMPORARY_PREFIX = ".writing-"
_HEADER = struct.Struct(f"<{len(FILE_MAGIC)}sQ32s")


Used = TypeVar("Used")


def entry_key(*parts: str) -> str:
    """A name for what was compiled: program, interface, compiler and target."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def cache_folder() -> Path | None:
    """The cache folder, made if need be; None where there is none that only this user can write."""
    named = os.environ.get("DALEMBERT_CACHE")
    if named == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or (os.name == "nt" and os.environ.get("LOCALAPPDATA")) or "~/.cache"
    path = Path(named).expanduser() if named else Path(base).expanduser() / "dalembert"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except (OSError, RuntimeError):
        return None
    if not hasattr(os, "getuid"):  # Windows: the folders of a user's profile are the user's by their access lists
        return path if stat.S_ISDIR(status.st_mode) else None
    private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
    return path if private and status.st_uid == os.getuid() else None


def has_entry(name: str) -> bool:
    """Whether there is an entry of this name, be it good or not."""
    folder = cache_folder()
    return folder is not None and (folder / name).exists()


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """A context in which one process is at a time, where they share a cache and the system has such locks."""
    folder = cache_folder()
    if folder is None or fcntl is None:
        yield
        return
    with open(folder / f"{entry_key(name)}.lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def load_or_build(name: str, build: Callable[[], bytes], use: Callable[[bytes], Used]) -> Used:
    """What `use` makes of the object of this name: from the disk if that serves, built and stored otherwise."""
    folder = cache_folder()
    content = None if folder is None else read_entry(folder / name)
    if content is not None:
        try:
            return use(content)
        except Exception as fault:  # whatever is wrong with an entry, it can be built again
            warnings.warn(f"the cache entry {name[:12]} cannot be used and is built again: {fault}", stacklevel=2)
    content = build()
    if folder is not None:
        with contextlib.suppress(OSError):  # a full or read-only disk costs time, not results
            write_entry(folder / name, content)
    return use(content)


def read_entry(path: Path) -> bytes | None:
    """The object in a cache entry, or None if it is missing, cut short, altered, another's or not ours."""
    try:
        with open(path, "rb") as file:
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            data = file.read()
    except OSError:
        return None
    content = data[_HEADER.size :]
    return content if data[: _HEADER.size] == _header(path, content) else None


def _header(path: Path, content: bytes) -> bytes:
    return _HEADER.pack(FILE_MAGIC, len(content), hashlib.sha256(path.name.encode() + b"\0" + content).digest())


def write_entry(path: Path, content: bytes) -> None:
    """Replace an entry atomically: readers see the old one or the new one, never a part."""
    _remove_leftovers(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{TEMPORARY_PREFIX}{os.getpid()}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_header(path, content) + content)
            file.flush()
            os.fsync(file.fileno())
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        os.replace(temporary, path)  # after it was closed: Windows renames no file that is open
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@cache
def _remove_leftovers(folder: Path) -> None:
    """Remove what writers left whose processes are gone; once in a process."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        process = path.name.removeprefix(TEMPORARY_PREFIX).partition("-")[0]
        try:
            if os.name == "nt":  # where 0 is no question but Ctrl-C; a file that is being written cannot be removed
                raise ProcessLookupError
            os.kill(int(process), 0)
        except (ValueError, ProcessLookupError):
            with contextlib.suppress(PermissionError):
                path.unlink(missing_ok=True)
        except OSError:  # it lives and is not ours
            pass


def persist_xla_cache() -> None:
    """Let JAX store what XLA compiles in the same folder; for commands, for an import must not decide this."""
    path, configure = cache_folder(), cast(Callable[[str, Any], None], jax.config.update)
    if path is not None and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        configure("jax_compilation_cache_dir", str(path / "xla"))
        configure("jax_persistent_cache_min_compile_time_secs", 0.0)
        configure("jax_persistent_cache_min_entry_size_bytes", -1)


PACKAGE_ROOT = Path(__file__).parent.parent
IMPORT_TIME = time.time() - 10
"""No later than the import of this package began."""


class StaleEntry(LoweringError):
    """A cache entry that told of another program; it is gone, and whoever tries again finds the right one."""


@dataclasses.dataclass(eq=False)
class LoweredProgram:
    """What a run must know of its program: digest, inputs, the arrays it captured, the shape of a record, its size."""

    digest: str
    inputs: int
    captured: list[np.ndarray[Any, Any]]
    record: Any  # a pytree of ShapeDtypeStruct
    trace: Callable[[], LoweredProgram] | None = None  # where the program itself was not needed so far
    entry: Path | None = None  # where this was found
    memory: int = 0  # numbers that a trajectory keeps beside its values
    operations: int = 0  # of a step
    notes: Any = ()  # a pytree of ShapeDtypeStruct: the solutions that a step finds
    noted: tuple[bool, ...] = ()  # which of their scalars there are
    reads: tuple[bool, ...] = ()  # which scalars of a control the program reads
    flows: tuple[int, ...] = ()  # see `lowering.find_flows`
    long: bool = False  # whether it has functions, for it is too long to be written out
    steady: tuple[bool, ...] = ()  # which scalars of the carry a step leaves as they are
    counts: tuple[int, ...] = ()  # see `lowering.find_counts`
    lasting: tuple[int, ...] = ()  # which leaves of the notes say that a step moves, see `lowering.note_value`

    @classmethod
    def of(
        cls, program: Program, captured: list[np.ndarray[Any, Any]], record: Any, notes: Any, reads: tuple[bool, ...],
        flows: tuple[int, ...],
    ) -> LoweredProgram:  # fmt: skip
        """The outline of a program that was just traced."""
        noted = tuple(value is not None for value in program.notes)
        lowered = cls(program.digest, len(program.constants), captured, record, notes=notes, noted=noted, reads=reads)
        lowered.memory, lowered.operations, lowered.long = program.memory, program.operations, bool(program.functions)
        lowered.flows = flows
        lowered.steady = tuple(new is old for new, old in zip(program.next_state, program.state, strict=True))
        lowered.__dict__["program"] = program
        return lowered

    @cached_property
    def program(self) -> Program:
        """The program itself: traced when something other than machine code from the disk needs it."""
        assert self.trace is not None
        traced = self.trace()
        if traced.digest != self.digest:  # the entry told of another program: this one is right from now on
            for name, value in zip(_OUTLINE, _outline(traced), strict=True):
                setattr(self, name, value)
            self.__dict__["program"] = traced.program
            if self.entry is not None:
                self.entry.unlink(missing_ok=True)
            raise StaleEntry("the cache told of another program than this step's")
        return traced.program

    @property
    def words(self) -> int:
        """The scalars of a record."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.record))


def cached_program(parts: tuple[Any, ...], trace: Callable[[], LoweredProgram]) -> LoweredProgram:
    """The program that `parts` determine: from the disk if it was traced before, in this process or another."""
    folder = cache_folder()
    try:
        path = None if folder is None else folder / entry_key(*_versions(), *fingerprint(parts))
    except Unfingerprintable:
        path = None
    if path is None:
        return trace()
    content = read_entry(path)
    if content is not None:
        with contextlib.suppress(Exception):  # an entry that cannot be read is built again
            outline = pickle.loads(content)  # ours and intact: `read_entry` has verified it
            return LoweredProgram(**dict(zip(_OUTLINE, outline, strict=True)), trace=trace, entry=path)
    lowered = trace()
    if _last_change() < IMPORT_TIME:  # or else the key would name the sources on disk, and not the older ones that run
        with contextlib.suppress(OSError, pickle.PicklingError, AttributeError):
            write_entry(path, pickle.dumps(_outline(lowered)))
    return lowered


_OUTLINE = (
    "digest", "inputs", "captured", "record", "memory", "operations", "notes", "noted", "reads", "flows", "long",
    "steady", "counts", "lasting",
)  # fmt: skip


def _outline(lowered: LoweredProgram) -> tuple[Any, ...]:
    """What an entry holds of a program."""
    return tuple(getattr(lowered, name) for name in _OUTLINE)


@cache
def _versions() -> tuple[str, ...]:
    if _last_change() >= IMPORT_TIME:
        raise Unfingerprintable("the sources changed since they were imported")
    digest = hashlib.sha256()
    for path in sorted(PACKAGE_ROOT.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE_ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest(), platform.python_version(), jax.__version__, np.__version__


def _last_change() -> float:
    """When a source last changed; infinity where they are no files (in an archive, say): then nothing is stored."""
    return max((path.stat().st_ctime for path in PACKAGE_ROOT.rglob("*.py")), default=float("inf"))
