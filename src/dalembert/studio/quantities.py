"""What the page plots of the motion itself: velocities by name and unit, the push of the constraint, the energy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from ..plotting.style import COLOURS
from .plots import curve
from .scenes.parts import dimension
from .seen import Seen

ALONG = "Along the blade or the wheels, forward is positive. Where it passes zero the body stops and turns back: its path has a cusp."
YAW = "How fast the body turns: positive to the left."
TURNING = "Components about the axes of the body."
MOVING = "Components of the velocity; on a body, along its own axes."
JOINTS = "How fast the wheels, rotors or joints turn."
PUSH = "The size of the force with which the ground keeps the body on its constraint."
ENERGY = "Kinetic and potential energy together: constant where nothing drives the system."
NEGLIGIBLE = 1e-6
"""A component that stays below this part of the others is not drawn."""


class Component(NamedTuple):
    """One column of the velocity: what it is, its name, and its unit where that is known."""

    kind: str  # "yaw", "turning", "joint", "moving"
    name: str
    unit: str


def components(group: str) -> list[Component]:
    """The columns of velocities on a group by its name, as `coordinates.axes` orders them."""
    factors, found = group.split(" x "), []
    for factor in factors:
        if factor.startswith("R^"):
            found += [Component("moving", f"v{i + 1}", "") for i in range(dimension(factor))]
            continue
        n = int(factor[3:-1])
        turns = [""] if n == 2 else "123" if n == 3 else [f"{i + 1}{j + 1}" for i in range(n) for j in range(i + 1, n)]
        kind = "turning" if n > 2 else "yaw" if factor.startswith("SE") else "joint"
        found += [Component(kind, f"w{turn}", "rad/s") for turn in turns]
        if factor.startswith("SE"):
            found += [Component("moving", f"v{i + 1}", "m/s") for i in range(n)]
    return found


def quantities(runs: Sequence[Seen]) -> list[dict[str, Any]]:
    """The plots of the motion: for a body on the plane how fast it runs and turns, for others the velocities that belong together."""
    columns = components(runs[0].motion.group)
    moving = _columns(columns, runs, "moving")
    forward = "SE(2)" in runs[0].motion.group and {columns[k].name for k in moving} == {"v1"}
    velocity = ("Forward velocity", ALONG) if forward else ("Velocity", MOVING)
    return [
        *_several("Angular velocity", TURNING, columns, runs, _of(columns, "turning")),
        *_several(*velocity, columns, runs, moving),
        *_several("Yaw rate", YAW, columns, runs, _of(columns, "yaw")),
        *_several("Rates of wheels and joints", JOINTS, columns, runs, _of(columns, "joint")),
        *_push(runs, columns),
        _scalar("Energy", "E, J", runs, [seen.energy for seen in runs], ENERGY),
    ]


def _of(columns: list[Component], kind: str) -> list[int]:
    return [k for k, column in enumerate(columns) if column.kind == kind]


def _columns(columns: list[Component], runs: Sequence[Seen], kind: str) -> list[int]:
    """The columns of a kind that are not negligible in every run."""
    own = _of(columns, kind)
    sizes = np.max([np.abs(seen.velocity[:, own]).max(axis=0) for seen in runs], axis=0) if own else np.zeros(0)
    return [k for k, size in zip(own, sizes, strict=True) if size > NEGLIGIBLE * sizes.max()]


def _several(
    title: str, help: str, columns: list[Component], runs: Sequence[Seen], which: list[int]
) -> list[dict[str, Any]]:
    """One plot of several components, each in a colour of its own; none of none. Names of several bodies are numbered."""
    if not which:
        return []
    names = [columns[k].name for k in which]
    if len(set(names)) < len(names):
        names = [f"{name}.{names[: i + 1].count(name)}" for i, name in enumerate(names)]
    unit = columns[which[0]].unit
    label = (f"{names[0]}..{names[-1]}" if len(names) > 1 else names[0]) + (f", {unit}" if unit else "")
    inks = cycle(COLOURS) if len(which) > 1 else [None]
    curves = [
        _curve(seen, name, seen.velocity[:, k], ink)
        for name, k, ink in zip(names, which, inks, strict=False)
        for seen in runs
    ]
    return [_of_motion(title, label, curves, [seen.velocity[:, which] for seen in runs], help)]


def _scalar(title: str, label: str, runs: Sequence[Seen], values: Sequence[np.ndarray], help: str) -> dict[str, Any]:
    curves = [_curve(seen, "", entry, None) for seen, entry in zip(runs, values, strict=True)]
    return _of_motion(title, label, curves, values, help)


def _push(runs: Sequence[Seen], columns: list[Component]) -> list[dict[str, Any]]:
    """The size of the reaction on the components that move, in newtons where those are metres."""
    own = _of(columns, "moving")
    sizes = [np.linalg.norm(seen.reaction[:, own], axis=1) for seen in runs]
    if not own or max(size.max() for size in sizes) < 1e-12:
        return []
    return [_scalar("Push of the constraint", "N" if columns[own[0]].unit else "force", runs, sizes, PUSH)]


def _curve(seen: Seen, name: str, values: np.ndarray, colour: str | None) -> dict[str, Any]:
    """A curve in the colour of its run, or one of several components in a colour of its own, with its name."""
    made = curve(seen, name, seen.motion.t[: seen.good], values[: seen.good])
    return made | ({} if colour is None else {"colour": colour, "name": name})


def _of_motion(
    title: str, label: str, curves: list[dict[str, Any]], values: Sequence[np.ndarray], help: str
) -> dict[str, Any]:
    low, high = min(entry.min() for entry in values), max(entry.max() for entry in values)
    level = [{"label": "", "value": 0.0}] if low < 0 < high or title == "Energy" else []
    return {
        "group": "motion",
        "title": title,
        "x": "time",
        "y": label,
        "log": False,
        "curves": curves,
        "level": level,
        "help": help,
    }
