"""Writing TOML: what `tomllib` reads back as the same mappings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dumps(config: Mapping[str, Any]) -> str:
    """Sections of `key = value` lines; a list of these is an array of tables."""
    return "\n".join(
        f"[[{name}]]\n{lines(table)}" if many else f"[{name}]\n{lines(table)}"
        for name, section in config.items()
        for many in [isinstance(section, list)]
        for table in (section if many else [section])
    )


def lines(section: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {value(entry)}\n" for key, entry in section.items())


def value(entry: Any) -> str:
    """One value on one line; floats with all their digits."""
    if isinstance(entry, bool):
        return "true" if entry else "false"
    if isinstance(entry, Mapping):
        return "{" + ", ".join(f"{key} = {value(item)}" for key, item in entry.items()) + "}"
    if isinstance(entry, list | tuple):
        return "[" + ", ".join(map(value, entry)) + "]"
    if isinstance(entry, int):
        return str(entry)
    if isinstance(entry, float):
        return repr(float(entry))
    return json.dumps(str(entry), ensure_ascii=False).replace("\x7f", "\\u007f")
