"""Files that are whole or not there, and one writer at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InvalidInput, WriteFailure


@contextmanager
def atomic_path(path: Path, room: int = 0) -> Iterator[Path]:
    """A temporary path that takes the place of `path` at the end, or is removed; `path` itself is old or new, never half.

    `room` bytes are asked of the disk first: HDF5 on a full disk fails late, and noisily.
    """
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".part", dir=path.parent))
        temporary, old = folder / path.name, folder / f"old-{path.name}"
        _require_room(temporary, room)
        yield temporary
        _flush(temporary)
        if path.is_dir():  # a Zarr folder: only an empty one can be replaced in one go
            os.rename(path, old)
        os.replace(temporary, path)
        _flush(path.parent)
    except (OSError, RuntimeError) as fault:  # HDF5 raises either when a disk is full
        if folder is not None and old.exists() and not path.exists():
            os.rename(old, path)
        why = os.strerror(fault.errno) if isinstance(fault, OSError) and fault.errno else str(fault)
        before = f"the {path.name} of before is as it was" if path.exists() else f"there is no {path.name}"
        raise WriteFailure(f"could not write {path}: {why}; {before}") from fault
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _require_room(path: Path, room: int) -> None:
    """Take `room` bytes of the disk and give them back, or raise the OSError of a full one."""
    if not room or not hasattr(os, "posix_fallocate"):
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, room)
    finally:
        os.close(handle)
        os.unlink(path)


def _flush(path: Path) -> None:
    """Through the machine's buffers onto the disk: the files below a folder too."""
    for name in [path, *(path.rglob("*") if path.is_dir() and path.suffix == ".zarr" else ())]:
        handle = os.open(name, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def output_lock(path: Path) -> Iterator[None]:
    """Hold a file for the length of a run; a second run that wants it is refused at its start, not when it is done."""
    try:
        import fcntl
    except ImportError:  # not on this system: `save` is still whole or nothing
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    handle = _hold(lock, path, lambda number: fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB))
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def _hold(lock: Path, path: Path, take: Callable[[int], None]) -> int:
    """The open lock file with this process's number in it; the lock ends with the process, however that ends."""
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as fault:
            raise InvalidInput(f"{path} cannot be written: {fault.strerror} in the folder {path.parent}") from fault
        try:
            take(handle)
        except OSError as fault:
            who = os.pread(handle, 32, 0).decode(errors="replace").strip()
            os.close(handle)
            raise InvalidInput(
                f"another run (process {who or '?'}) is writing {path}: wait for it, or give another --out"
            ) from fault
        if lock.exists() and os.path.samestat(os.fstat(handle), os.stat(lock)):
            os.truncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            return handle
        os.close(handle)  # the one who held it before has just removed it
