"""Files that are written completely or not at all, by one process at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None  # type: ignore[assignment]

from ..errors import InvalidInput, WriteFailure

PART_SUFFIX = ".dalembert.part"
WRITER = "writer.lock"
"""The file in the folder of a file that is being written which its writer has locked."""
LOCKED_BYTE = 1 << 30
"""Windows locks bytes, which nobody else may read then: this one lies behind the number of the process."""


@contextmanager
def atomic_path(path: str | Path, size: int = 0) -> Iterator[Path]:
    """Give a temporary path that replaces `path` at the end, or is removed: `path` is the old file or the new one.

    `size` bytes are reserved on the disk first, because HDF5 notices a full disk late and prints to the terminal. What
    killed writers left in the folder goes.
    """
    folder, handle, path = None, None, Path(path)
    try:
        remove_leftovers(path)
        folder, handle = _make_part(path)
        temporary, old = folder / path.name, folder / f"old-{path.name}"
        if size and hasattr(os, "posix_fallocate"):
            _reserve(temporary, size)
        yield temporary
        for written in [temporary, *(temporary.rglob("*") if temporary.is_dir() else ())]:
            flush_to_disk(written)
        if path.is_dir():  # a Zarr folder: `os.replace` takes the place of an empty folder only
            os.rename(path, old)
        os.replace(temporary, path)
        with suppress(OSError):  # the file is there, and there are disks that cannot flush a folder
            flush_to_disk(path.parent)
    except (OSError, RuntimeError) as fault:  # HDF5 raises either when a disk is full
        if folder is not None:
            _restore(old, path)
        why = os.strerror(fault.errno) if isinstance(fault, OSError) and fault.errno else str(fault)
        before = f"the {path.name} of before is as it was" if os.path.exists(path) else f"there is no {path.name}"
        raise WriteFailure(f"could not write {path}: {why}; {before}") from fault
    finally:
        if folder is not None and handle is not None:
            try:
                _restore(old, path)
            finally:
                os.close(handle)  # before its file goes: Windows removes no file that is open
                shutil.rmtree(folder, ignore_errors=True)


def _restore(old: Path, path: Path) -> None:
    """Put back what `path` was, if it is not there: a Ctrl-C or a fault came between two renames."""
    if os.path.exists(old) and not os.path.exists(path):
        os.rename(old, path)


def _make_part(path: Path) -> tuple[Path, int]:
    """A folder for a file that is being written, locked as long as its writer lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name[:100]}-", suffix=PART_SUFFIX, dir=path.parent))
        try:
            if (handle := _lock(folder / WRITER)) is not None:
                return folder, handle  # or else another writer has just taken it for a leftover
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _lock(path: Path) -> int | None:
    """A handle on a file, made if need be, that this process has locked; None if another has, or if it is gone.

    The system releases a lock when its process ends, even by kill -9. Where it has no locks, files are still complete
    or absent, but nobody knows whether their writers live.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        if fcntl is None or os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def _unlock(path: Path, handle: int) -> None:
    """Remove a lock file and release its lock, in the order in which nobody can take it between the two.

    Windows removes no open file, and so none that another process has just locked; other systems do.
    """
    if fcntl is not None:
        path.unlink(missing_ok=True)
        os.close(handle)
        return
    os.close(handle)
    with suppress(OSError):
        path.unlink()


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers left in the folder of `path`; a Zarr folder that was being replaced comes back."""
    restore_replaced(path)
    if fcntl is None and msvcrt is None:
        return
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(".")]
    locks = tuple(f"{suffix}.lock" for suffix in (".nc", ".zarr"))
    for leftover in (path.parent / name for name in names):
        if leftover.name.endswith(PART_SUFFIX) and (handle := _lock(leftover / WRITER)) is not None:
            os.close(handle)
            shutil.rmtree(leftover, ignore_errors=True)
        elif leftover.name.endswith(locks) and leftover.is_file() and (handle := _lock(leftover)) is not None:
            _unlock(leftover, handle)


def restore_replaced(path: Path) -> None:
    """Finish the replacement of a Zarr folder whose writer was killed between its two renames."""
    if path.suffix != ".zarr" or path.exists() or not path.parent.is_dir():
        return
    for folder in path.parent.glob(f".*{PART_SUFFIX}"):
        if (folder / f"old-{path.name}").is_dir() and (handle := _lock(folder / WRITER)) is not None:
            new, old = folder / path.name, folder / f"old-{path.name}"
            os.rename(new if new.is_dir() else old, path)  # the new one was complete and on the disk
            os.close(handle)


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
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # and flushes only what may be written
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def output_lock(path: Path) -> Iterator[None]:
    """Lock an output file during a run: a second run on it is refused at its start, not at its end.

    The lock file holds the number of the process.
    """
    if fcntl is None and msvcrt is None:  # this system has no such locks: files are still complete or absent
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    try:
        while (handle := _lock(lock)) is None:
            try:
                who = lock.read_text(errors="replace").split()
            except FileNotFoundError:  # the process that held the lock before has just removed its file
                who = []
            if who:
                message = f"another run (process {who[0]}) is writing {path}: wait for it, or give another --out"
                raise InvalidInput(message)
            time.sleep(0.001)  # someone has just taken the lock: either to keep it or to remove it
    except OSError as fault:
        raise InvalidInput(f"{path} cannot be written: {fault.strerror} in the folder {path.parent}") from fault
    try:
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f"{os.getpid()}\n".encode())
        remove_leftovers(path)
        yield
    finally:
        _unlock(lock, handle)
