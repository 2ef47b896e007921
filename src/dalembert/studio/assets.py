"""The files of the page."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}


def page_files() -> dict[str, bytes]:
    """The files of the page by their path under /page/: nothing else is ever served."""

    def found(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
        for item in folder.iterdir():
            if item.is_dir():
                yield from found(item, f"{prefix}{item.name}/")
            elif any(item.name.endswith(suffix) for suffix in TYPES):
                yield prefix + item.name, item.read_bytes()

    return dict(found(files(__package__) / "page", ""))
