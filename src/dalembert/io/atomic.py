"""Files that are written completely or not at all, by one process at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InvalidInput, WriteFailure


@contextmanager
def atomic_path(path: Path, size: int = 0) -> Iterator[Path]:
    """Give a temporary path that replaces `path` at the end, or is removed: `path` is the old file or the new one.

    `size` bytes are reserved on the disk first, because HDF5 notices a full disk late and prints to the terminal.
    """
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".part", dir=path.parent))
        temporary, old = folder / path.name, folder / f"old-{path.name}"
        if size and hasattr(os, "posix_fallocate"):
            _reserve(temporary, size)
        yield temporary
        for written in [temporary, *(temporary.rglob("*") if temporary.is_dir() else ())]:
            flush_to_disk(written)
        if path.is_dir():  # a Zarr folder: `os.replace` takes the place of an empty folder only
            os.rename(path, old)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
    except (OSError, RuntimeError) as fault:  # HDF5 raises either when a disk is full
        if folder is not None and old.exists() and not path.exists():
            os.rename(old, path)
        why = os.strerror(fault.errno) if isinstance(fault, OSError) and fault.errno else str(fault)
        before = f"the {path.name} of before is as it was" if path.exists() else f"there is no {path.name}"
        raise WriteFailure(f"could not write {path}: {why}; {before}") from fault
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _reserve(path: Path, size: int) -> None:
    """Allocate `size` bytes and give them back, or raise the OSError of a full disk."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)
        os.unlink(path)


def flush_to_disk(path: Path) -> None:
    """Write what the machine buffers of a file, or of the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def output_lock(path: Path) -> Iterator[None]:
    """Lock an output file during a run: a second run on it is refused at its start, not at its end.

    The system releases the lock when the process ends, even by kill -9. The lock file holds the number of the process.
    """
    try:
        import fcntl
    except ImportError:  # this system has no such locks: files are still complete or absent
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as fault:
            raise InvalidInput(f"{path} cannot be written: {fault.strerror} in the folder {path.parent}") from fault
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            who = os.pread(handle, 32, 0).decode(errors="replace").strip() or "?"
            os.close(handle)
            message = f"another run (process {who}) is writing {path}: wait for it, or give another --out"
            raise InvalidInput(message) from fault
        if lock.exists() and os.path.samestat(os.fstat(handle), os.stat(lock)):
            break
        os.close(handle)  # the process that held the lock before has just removed its file
    try:
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)
