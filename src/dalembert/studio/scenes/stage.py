"""Which scene a motion gets: by its model where that has a look of its own, else by its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..seen import Seen
from ..shapes import View
from .frames import basis_images, side_by_side
from .planar import hinged, planar, slope, upright_disk
from .points import chain, point
from .rolling import rolling
from .turning import dial, inertia_of, poinsot, turning, upward

Draw = Callable[[View, Seen], str]
NAMED: dict[str, Draw] = {"hinged-sleighs": hinged, "pendulum-chain": chain}


def scene(runs: Sequence[Seen]) -> tuple[View, str]:
    """The runs in one space, and a caption that says what is drawn in which colour."""
    draw = drawing(runs[0])
    tilt = (
        upward(runs[0]) if draw is poinsot else slope(runs[0]) if draw in (planar, upright_disk, rolling) else np.eye(3)
    )
    view = View(runs[0].motion.name or runs[0].motion.group, tilt)
    captions = [draw(view, seen) for seen in runs]
    return view, captions[0]


def drawing(seen: Seen) -> Draw:
    """What draws a run."""
    motion, group = seen.motion, seen.motion.group
    if motion.name in NAMED:
        return NAMED[motion.name]
    if group == "SE(2) x SO(2)" and "radius" in motion.parameters:
        return upright_disk
    if group.startswith("SE(2)"):
        return planar
    if group == "SO(3) x R^2":
        return rolling
    if " x " in group:
        return partial(side_by_side, draw=drawing)
    if group == "SO(3)" and motion.name == "rigid-body" and inertia_of(seen) is not None and seen.energy[0] > 0:
        return poinsot
    if group in ("SO(3)", "SE(3)"):
        return turning
    if group == "SO(2)":
        return dial
    return point if group.startswith("R^") else basis_images
