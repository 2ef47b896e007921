"""The papers and their exhibits by name."""

from __future__ import annotations

from ..errors import UnknownName
from . import fedorov_zenkov, garcia_naranjo_jimenez, jimenez_scheurle, mclachlan_zanna, retraction_maps
from .exhibit import Exhibit, Paper

MODULES = (garcia_naranjo_jimenez, fedorov_zenkov, mclachlan_zanna, jimenez_scheurle, retraction_maps)
GALLERIES = tuple(module.gallery for module in MODULES)
PAPERS: dict[str, Paper] = {gallery.paper.key: gallery.paper for gallery in GALLERIES}
FIGURES: dict[str, Exhibit] = {exhibit.id: exhibit for gallery in GALLERIES for exhibit in gallery.exhibits}


def chosen(name: str) -> list[Exhibit]:
    """The exhibits that a name stands for: one id, the key of a paper, or "all"."""
    if name == "all":
        return list(FIGURES.values())
    if name in PAPERS:
        return [exhibit for exhibit in FIGURES.values() if exhibit.paper.key == name]
    if name in FIGURES:
        return [FIGURES[name]]
    raise UnknownName("figure or table", name, ["all", *PAPERS, *FIGURES])
