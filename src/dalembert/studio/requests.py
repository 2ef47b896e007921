"""What a page may ask for, checked: a configuration without code, within the limits, with every fault at its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput, OffConstraint, UnknownName
from ..io.config import Job, parse_job
from ..kernels import compiled
from ..mechanics import MechanicalSystem

FRAMES, MOST_FRAMES = 600, 4000
MOST_STEPS = 10_000_000
OWN = "file"
"""What the page calls the system of the file on the command line: it can name no other code."""
REQUEST = ("config", "against", "frames", "saved", "complete")


@dataclass(frozen=True, eq=False)
class StudioInput:
    """What the command line opened: a configuration (and its folder), or the data file of a run."""

    config: Mapping[str, Any] | None = None
    folder: Path = Path()
    saved: Path | None = None
    most_steps: int = MOST_STEPS

    @property
    def own(self) -> Mapping[str, Any] | None:
        """The section [system] of a user's own system."""
        section = (self.config or {}).get("system", {})
        return section if "python" in section else None

    def job(self, config: Any) -> Job:
        """The checked job of a configuration from the page, which can bring no code: only the file given by the user may."""
        if not isinstance(config, Mapping) or not all(isinstance(part, Mapping) for part in config.values()):
            raise InvalidInput("config must have sections of keys and values")
        given = {
            name: {key: value for key, value in part.items() if value is not None} for name, part in config.items()
        }
        system = given.get("system", {})
        if "python" in system:
            raise at(
                "system", InvalidInput("a page cannot name a Python file; give its configuration on the command line")
            )
        if system.get("name") == OWN:
            if self.own is None:
                raise at("system.name", UnknownName("system", OWN, ()))
            parameters = {key: value for key, value in system.items() if key != "name"}
            given["system"] = {"python": self.own["python"], **parameters}
        try:
            job = parse_job(given, self.folder)
        except InvalidInput as fault:
            raise at(place_of(fault, given), fault) from None
        if job.run["steps"] > self.most_steps:
            text = (
                f"steps is {job.run['steps']}; allowed here: at most {self.most_steps} (`dalembert studio --max-steps`)"
            )
            raise at("run.steps", InvalidInput(text))
        return job


def place_of(fault: InvalidInput, config: Mapping[str, Mapping[str, Any]]) -> str:
    """Where in the configuration a fault stands: its section, and the key that its message names first."""
    section = fault.place
    keys = {"run": ("step", "steps"), "initial": ("velocity", "momentum", "configuration")}.get(section, ())
    words = str(fault).replace("'", " ").replace(",", " ").replace(":", " ").split()
    named = [word for word in words if word in config.get(section, {}) or word in keys]
    if named and named[0] != "name":
        return f"{section}.{named[0]}"
    return f"{section}.name" if section in ("system", "method") else section


def at(place: str, fault: InvalidInput) -> InvalidInput:
    fault.place = place
    return fault


def checked(request: Any, opened: StudioInput) -> tuple[int, Path | None]:
    """The number of frames, and the saved run that is asked for."""
    if not isinstance(request, Mapping):
        raise InvalidInput("a request is an object with config, against and frames")
    for key in request:
        if key not in REQUEST:
            raise UnknownName("key of a request", key, REQUEST)
    frames = request.get("frames", FRAMES)
    if isinstance(frames, bool) or not isinstance(frames, int) or not 2 <= frames <= MOST_FRAMES:
        raise at("frames", InvalidInput(f"frames is {frames!r}; allowed: a whole number from 2 to {MOST_FRAMES}"))
    if not request.get("saved"):
        return frames, None
    if opened.saved is None:
        raise InvalidInput("no data file was given on the command line: there is no saved run")
    return frames, opened.saved


def jobs_of(request: Mapping[str, Any], opened: StudioInput) -> list[Job]:
    """The run that is asked for, and the same with another method beside it."""
    config, against = request.get("config"), request.get("against")
    first = opened.job(config)
    if against is None:
        return [first]
    try:
        return [first, opened.job({**config, "method": against})]  # type: ignore[dict-item]
    except InvalidInput as fault:
        raise at(fault.place.replace("method", "against", 1), fault) from None


def completed(request: Mapping[str, Any], opened: StudioInput) -> tuple[Mapping[str, Any], list[float] | None]:
    """The request with a velocity on D: the components that the constraint determines follow from the others."""
    config: dict[str, Any] = _filled(request.get("config"))
    request = {**request, "config": config}
    try:
        opened.job(config)
    except OffConstraint:
        initial = dict(config["initial"])
        velocity = np.asarray(initial.pop("velocity"), float)
        somewhere = opened.job({**config, "initial": {**initial, "momentum": [0.0] * len(velocity)}})
        rows, off = map(np.asarray, _constraint(somewhere.system, somewhere.state.t, somewhere.state.g, velocity))
        pivots = dependent(rows)
        velocity[pivots] -= np.linalg.solve(rows[:, pivots], off)
        moved = {**config, "initial": {**initial, "velocity": velocity.tolist()}}
        return {**request, "config": moved}, velocity.tolist()
    return request, None


def _filled(config: Any) -> Any:
    """A configuration in which no component of the velocity is left open."""
    velocity = config.get("initial", {}).get("velocity") if isinstance(config, Mapping) else None
    if not isinstance(velocity, list) or None not in velocity:
        return config
    filled = [0.0 if entry is None else entry for entry in velocity]
    return {**config, "initial": {**config["initial"], "velocity": filled}}


@compiled
def _constraint(system: MechanicalSystem, t: Any, g: Any, xi: Any) -> tuple[Any, Any]:
    return system.rows(t, g)(xi), system.residual(t, g, xi)


def dependent(rows: np.ndarray) -> list[int]:
    """The components of a velocity that the constraint rows (m, n) determine from the others: pivots, the later ones where it is open."""
    left, found = rows * (1 + 1e-6 * np.arange(rows.shape[1])), []
    for _ in range(len(rows)):
        norms = np.linalg.norm(left, axis=0)
        pivot = int(np.argmax(norms))
        found.append(pivot)
        along = left[:, pivot] / max(norms[pivot], 1e-300)
        left = left - np.outer(along, along @ left)
    return sorted(found)
