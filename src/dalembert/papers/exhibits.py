"""The papers and their exhibits by name; making them: compute, draw, write.

A file appears complete or not at all, and finished exhibits stay when a later one is interrupted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnknownName
from ..io.atomic import atomic_path
from ..plotting.style import save
from ..simulation import to_json
from . import control, fedorov_zenkov, garcia_naranjo_jimenez, jimenez_scheurle, mclachlan_zanna, retraction_maps
from .gallery import Data, Exhibit, Paper, exhibit_page, index_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GALLERIES = tuple(
    module.gallery
    for module in (garcia_naranjo_jimenez, fedorov_zenkov, mclachlan_zanna, jimenez_scheurle, retraction_maps, control)
)
PAPERS: dict[str, Paper] = {gallery.paper.key: gallery.paper for gallery in GALLERIES}
FIGURES: dict[str, Exhibit] = {exhibit.id: exhibit for gallery in GALLERIES for exhibit in gallery.exhibits}


def select_exhibits(name: str) -> list[Exhibit]:
    """The exhibits that a name stands for: one id, the key of a paper, or "all"."""
    if name == "all":
        return list(FIGURES.values())
    if name in PAPERS:
        return [exhibit for exhibit in FIGURES.values() if exhibit.paper.key == name]
    if name in FIGURES:
        return [FIGURES[name]]
    raise UnknownName("figure or table", name, ["all", *PAPERS, *FIGURES])


@dataclass(frozen=True)
class Reproduction:
    """A finished exhibit: its data, its files and the time it took."""

    exhibit: Exhibit
    data: Data
    files: tuple[Path, ...]
    seconds: float

    def summary(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            **json_table(self.exhibit, self.data),
            "paper": self.exhibit.paper.name,
            "files": [str(path) for path in self.files],
            "seconds": self.seconds,
        }


def reproduce_exhibits(
    exhibits: Sequence[Exhibit], folder: Path, formats: Sequence[str] = (".png",)
) -> Iterator[Reproduction]:
    """Make exhibits one after the other: pictures, data and page of each, and the index of what is in the folder."""
    for exhibit in exhibits:
        begin = time.perf_counter()
        data = exhibit.compute()
        files = write_exhibit(exhibit, data, folder, formats)
        there = [known for known in FIGURES.values() if (folder / f"{known.id}.md").exists()]
        _replace_file(folder / "index.md", index_page(there))
        yield Reproduction(exhibit, data, files, time.perf_counter() - begin)


def write_exhibit(exhibit: Exhibit, data: Data, folder: Path, formats: Sequence[str] = (".png",)) -> tuple[Path, ...]:
    """ID.png, which the page shows, and other formats of the picture; ID.json and, last, ID.md."""
    arrays = {  # null where a number is not finite
        name: values.tolist() if np.all(np.isfinite(values)) else to_json(values)
        for name, values in data.arrays.items()
    }
    content = json.dumps(json_table(exhibit, data) | {"arrays": arrays}, allow_nan=False)
    drawn = exhibit.draw(data)
    parts: dict[str, str | Figure] = dict.fromkeys((".png", *formats), drawn)
    parts |= {".json": content, ".md": exhibit_page(exhibit, data)}
    return tuple(_replace_file(folder / f"{exhibit.id}{suffix}", part) for suffix, part in parts.items())


def _replace_file(path: Path, content: str | Figure) -> Path:
    """Write a text or a picture, complete or not at all."""
    with atomic_path(path) as temporary:
        if isinstance(content, str):
            temporary.write_text(content, encoding="utf-8")
        else:
            save(content, temporary)
    return path


def json_table(exhibit: Exhibit, data: Data) -> dict[str, Any]:
    """The table of an exhibit as JSON has it."""

    def cell(value: Any) -> Any:
        if value is None or isinstance(value, str | bool | int):
            return value
        return value.item() if isinstance(value, np.integer | np.bool_) else to_json(value)

    rows = [[cell(value) for value in row] for row in data.rows]
    return {"id": exhibit.id, "title": exhibit.title, "columns": list(data.columns), "rows": rows}
