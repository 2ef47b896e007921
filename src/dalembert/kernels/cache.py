"""Compiled objects on disk: written whole or not at all, verified before use, in a folder only its user can touch.

The folder is `$DALEMBERT_CACHE`, or `$XDG_CACHE_HOME/dalembert`, or `~/.cache/dalembert`; `DALEMBERT_CACHE=off` turns
the cache off. An entry is a header (magic, length, SHA-256) and the object. A corrupt or foreign entry is rebuilt.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

MAGIC = b"dalembert object 1\n"
_HEADER = struct.Struct(f"<{len(MAGIC)}sQ32s")


def key(*parts: str) -> str:
    """A name for what was compiled: program, interface, compiler and target."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def folder() -> Path | None:
    """The cache folder, made if need be; None where there is none that only this user can write."""
    chosen = os.environ.get("DALEMBERT_CACHE")
    if chosen == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(chosen).expanduser() if chosen else Path(base).expanduser() / "dalembert"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if _is_private(path) else None
    except (OSError, RuntimeError):
        return None


def _is_private(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700


def get(name: str, build: Callable[[], bytes]) -> bytes:
    """The object of this name: from the disk if it is there and whole, built and kept otherwise."""
    place = folder()
    if place is None:
        return build()
    path = place / name
    found = read(path)
    if found is None:
        found = build()
        with contextlib.suppress(OSError):  # a full or read-only disk costs time, not results
            write(path, found)
    return found


def read(path: Path) -> bytes | None:
    """The object in a cache entry, or None if it is missing, cut short, altered or not ours."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            data = file.read()
    except OSError:
        return None
    if len(data) < _HEADER.size:
        return None
    magic, length, checksum = _HEADER.unpack_from(data)
    content = data[_HEADER.size:]
    whole = magic == MAGIC and length == len(content) and checksum == hashlib.sha256(content).digest()
    return content if whole else None


def write(path: Path, content: bytes) -> None:
    """Replace an entry atomically: readers see the old one or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_HEADER.pack(MAGIC, len(content), hashlib.sha256(content).digest()) + content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def keep_xla() -> None:
    """Let JAX keep what XLA compiles for this process in the same folder; a program of its own may do so, an import may not."""
    import jax

    path = folder()
    if path is not None and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(path / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
