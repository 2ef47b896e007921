"""What a moving scene is made of: the motion it shows, and artists that come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .style import COLOURS

Draw = Callable[[int], None]
BODY, WHEEL, PATH = COLOURS[5], COLOURS[1], COLOURS[0]


@dataclass(frozen=True)
class Motion:
    """What a scene needs to know of a run: times, the group by name, configurations of each factor, and the system's parameters."""

    t: np.ndarray
    group: str
    parts: tuple[np.ndarray, ...]
    name: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str, default: float) -> float:
        value = self.parameters.get(name, default)
        return float(value) if isinstance(value, int | float) else default


class Stage:
    """Artists that come and go: what was drawn for one moment is removed before the next."""

    def __init__(self, axes: Any, t: np.ndarray):
        self.axes, self.t = axes, t
        self.artists: list[Any] = []

    def clear(self, k: int) -> None:
        while self.artists:
            self.artists.pop().remove()
        self.axes.set_title(f"t = {self.t[k]:.2f}")

    def line(self, points: np.ndarray, **style: Any) -> None:
        self.artists += self.axes.plot(*np.asarray(points).T, **style)

    def patch(self, points: np.ndarray, **style: Any) -> None:
        self.artists += self.axes.fill(*np.asarray(points).T, **style)

    def faces(self, faces: Any, **style: Any) -> None:
        from mpl_toolkits.mplot3d.art3d import Poly3DCollection

        self.artists.append(self.axes.add_collection3d(Poly3DCollection(faces, **style)))
