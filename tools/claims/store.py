"""What has been measured, one JSON object a line: a run that was cut short goes on where it was, unless the sources changed."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import dalembert

Figures = dict[str, Any]
SOURCES = Path(dalembert.__file__).parent
BESIDE = (
    "cli",
    "plotting",
    "papers",
    "sweep",
    "verification/page.py",
    "verification/verdicts.py",
    "verification/__main__.py",
)


def fingerprint() -> str:
    """Of all sources on which a figure can depend."""
    files = sorted(
        path for path in SOURCES.rglob("*.py") if not path.relative_to(SOURCES).as_posix().startswith(BESIDE)
    )
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


class Store:
    """Figures by key in a file of lines; lines of other sources are not read (`keep` reads them), nor is one that was cut short."""

    def __init__(self, path: Path, keep: bool = False):
        self.path, self.sources = path, fingerprint()
        self.figures: dict[str, Figures] = {}
        if not path.exists():
            return
        text = path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):  # a line that was cut short: the next one begins anew
            path.write_text(text + "\n", encoding="utf-8")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if keep or entry["sources"] == self.sources:
                self.figures[entry["key"]] = entry["figures"]

    def add(self, key: str, figures: Figures) -> None:
        self.figures[key] = figures = rounded(figures)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "sources": self.sources, "figures": figures}) + "\n")


def rounded(value: Any) -> Any:
    """Numbers to three digits, none that JSON does not know."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.3g}") if math.isfinite(value) else str(value)
    return value
