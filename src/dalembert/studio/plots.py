"""What the page plots beside the scene, with a sentence that says what a good method shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..balance import BALANCE, CHANGE, ERROR
from ..plotting.style import FLOOR
from .momentum import momentum_change
from .seen import Seen
from .shapes import packed

ENERGY = {
    ERROR: "A geometric method keeps the error small for ever, or at round-off; a drift that grows is the method's doing.",
    BALANCE: "Power enters here, so the energy changes. What no work explains is the method's doing: it falls with the step.",
    CHANGE: "Power enters here: this is what it does to the energy, no error. With fewer steps the work is taken away.",
}
CONSTRAINT = "Round-off (below 1e-12) means that the body never slips; anything larger is motion across the blade."
MOMENTUM = (
    "Symmetry keeps the momentum (on d) fixed in space: Noether's theorem, which a discrete method may inherit or lose."
)
GROUP = "Rotations must stay rotations: a method that leaves the group deforms the body."


def plots(runs: Sequence[Seen]) -> list[dict[str, Any]]:
    """What should be kept: the energy (or its balance), the constraint and, where a run leaves its group, how far."""
    energy = runs[0].kept
    found = [logarithmic(energy.title, energy.label, runs, [seen.kept.values for seen in runs], ENERGY[energy.title])]
    if runs[0].rows.shape[1]:
        found.append(logarithmic("Constraint", "|A xi - b|", runs, [seen.constraint for seen in runs], CONSTRAINT))
    changes = [momentum_change(seen) for seen in runs]
    known = [(seen, change) for seen, change in zip(runs, changes, strict=True) if change is not None]
    if known:
        shown = [seen for seen, _ in known]
        found.append(
            logarithmic("Momentum in space", "relative change", shown, [change for _, change in known], MOMENTUM)
        )
    if any(seen.distance.max() > 1e-13 for seen in runs):
        found.append(
            logarithmic("Distance from the group", "|R^T R - 1|", runs, [seen.distance for seen in runs], GROUP)
        )
    return found


def logarithmic(
    title: str, label: str, runs: Sequence[Seen], values: Sequence[np.ndarray], help: str
) -> dict[str, Any]:
    """|values| over time; exact zeros stand on the floor."""
    curves = [
        curve(seen, title, seen.motion.t[: seen.good], np.maximum(np.abs(entry[: seen.good]), FLOOR))
        for seen, entry in zip(runs, values, strict=True)
    ]
    return {"group": "kept", "title": title, "x": "time", "y": label, "log": True, "curves": curves, "help": help}


def curve(seen: Seen, label: str, x: Any, y: Any) -> dict[str, Any]:
    return {"run": seen.number, "label": label, "x": packed(x), "y": packed(y)}
