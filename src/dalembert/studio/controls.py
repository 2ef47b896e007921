"""Controls made from values: their kind, and the range of their slider.

A range is a hint: a value typed outside it goes to the model, which judges.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..integrators.registry import RETRACTIONS
from ..models.particles import LAGRANGIANS

Control = dict[str, Any]

RANGES: dict[str, tuple[float, float]] = {
    "slope": (0.0, 0.8),
    "gravity": (0.0, 20.0),
    "epsilon": (-0.5, 1.0),
    "rotation": (-4.0, 4.0),
    "a": (-1.0, 1.0),
    "b": (-1.0, 1.0),
    "centre": (-1.0, 1.0),
    "front": (-1.0, 1.0),
    "arm": (-1.0, 1.0),
    "normal": (-1.0, 1.0),
    "weight": (-5.0, 5.0),
    "depth": (0.0, 0.018),
    "n": (2, 5),
    "directions": (1, 3),
    "node": (0.0, 1.0),
}
"""Parameters whose range does not follow from their value: those of either sign, angles, counts. The others are positive."""
ABSENT: dict[str, Any] = {"weight": [0.0, 0.0, 0.0], "directions": 1}
"""What a parameter looks like whose default is to be absent; else it is one number."""
CHOICES: dict[str, list[Any]] = {
    "potential": list(LAGRANGIANS),
    "retraction": list(RETRACTIONS),
    "lagrangian": ["moser-veselov", "retraction"],
    "nodes": ["original", "velocity", "deformed"],
    "order": [2, 4, 6, 8, 10],
    "variant": ["moments", "scaled"],
    "onto": ["constraint", "energy"],
    "stages": [1, 2, 3, 4],
    "gradient": ["gonzalez", "average", "itoh-abe"],
}
SYMMETRIC = ("inertia", "mass", "tensor")


# -- controls -------------------------------------------------------------------------------------------------------------------
def control(
    place: str, value: Any, *, optional: bool = False, help: str = "", entries: list[str] | None = None
) -> Control:
    """A control for a value of this kind at a place of the configuration."""
    name = place.rpartition(".")[2]
    shown: Control = {
        "place": place,
        "label": name.replace("_", " "),
        "help": help,
        "value": value,
        "optional": optional,
    }
    model = ABSENT.get(name, 1.0) if value is None else value
    if name in CHOICES and not isinstance(model, list):
        return shown | {
            "kind": "choice",
            "choices": list(dict.fromkeys([*CHOICES[name], *([] if value is None else [value])])),
        }
    if isinstance(model, bool):
        return shown | {"kind": "flag"}
    if isinstance(model, str):
        return shown | {"kind": "choice", "choices": [model]}
    array = np.asarray(model, float)
    kind = ("integer" if isinstance(model, int) else "number", "vector", "matrix")[array.ndim]
    low, high = RANGES.get(name) or _range(array)
    shown |= {"kind": kind, "low": low, "high": high}
    if kind == "matrix":
        shown["symmetric"] = name in SYMMETRIC
    if kind == "vector":
        shown["entries"] = entries or [str(k + 1) for k in range(len(array))]
    return shown


def _range(array: np.ndarray) -> tuple[float, float]:
    """Around the value: positive numbers stay positive, others go either way."""
    size = float(np.abs(array).max()) or 1.0
    if array.ndim < 2 and np.all(array > 0):
        return rounded(float(array.min()) / 5), rounded(3 * size)
    return -rounded(2 * size), rounded(2 * size)


def rounded(value: float) -> float:
    return float(f"{value:.2g}")


def listed(value: Any) -> Any:
    """Tuples as the lists that a configuration has."""
    return [listed(entry) for entry in value] if isinstance(value, list | tuple) else value
