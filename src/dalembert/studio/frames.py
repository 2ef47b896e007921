"""A run as the studio sees it: the motion and, at every frame, velocity, momentum, energy, constraint and reaction as arrays."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..io.config import Job
from ..io.dataset import open_dataset
from ..kernels import evaluated
from ..mechanics import MechanicalSystem, State
from ..models import MODELS
from ..plotting.scenes import Motion, motion_of_file, motion_of_run
from ..plotting.style import COLOURS
from ..simulation import ENERGY_CHANGE, ENERGY_ERROR, Conservation, Run, receives_power

LARGEST = 1e30
RUN_COLOURS = (COLOURS[0], COLOURS[2])


@dataclass(frozen=True)
class RunFrames:
    """One run, all its arrays over the same frames: a run that failed stands still at its last good state."""

    motion: Motion
    number: int  # 0, or 1 for the run beside it
    velocity: np.ndarray
    momentum: np.ndarray
    energy: np.ndarray
    constraint: np.ndarray
    distance: np.ndarray
    rows: np.ndarray  # of the constraint, (frames, m, n)
    reaction: np.ndarray  # of the constraint, in the body, (frames, n)
    good: int  # frames before the run failed
    system: MechanicalSystem | None = None
    trajectory: Run | None = None
    balance: Conservation | None = None  # where power enters, at every frame

    @property
    def kept(self) -> Conservation:
        """What the method should keep of the energy."""
        if self.balance is not None:
            return self.balance
        change = self.energy - self.energy[0]
        enters = self.system is not None and receives_power(self.system)
        return Conservation(ENERGY_CHANGE if enters else ENERGY_ERROR, "|E - E(0)|", change, float(np.abs(change).max()))

    @property
    def colour(self) -> str:
        return RUN_COLOURS[self.number]

    @property
    def first(self) -> bool:
        """Whether this is the run that also draws what belongs to none."""
        return self.number == 0

    @property
    def opacity(self) -> float:
        """The body of the second run is seen through."""
        return 1.0 if self.first else 0.45


def frames_of(trajectory: Run, job: Job, number: int, times: np.ndarray, balance: Conservation | None = None) -> RunFrames:
    """A run of a job at the frames `times`: each shows the last state that was saved by then, so that all runs are in step.

    Nothing is interpolated: runs of one step have the same times, and one that chooses its own steps lags by less than a frame.
    """
    forward, late = (1.0 if float(trajectory.step) > 0 else -1.0), 1e-9 * abs(float(trajectory.step))
    own, wanted = forward * np.asarray(trajectory.t), forward * times
    frames = np.clip(np.searchsorted(own, wanted + late, side="right") - 1, 0, None)
    motion = motion_of_run(trajectory, job)
    shown = replace(motion, t=times, parts=tuple(drawable(part[frames]) for part in motion.parts))
    arrays: dict[str, Any] = {"velocity": trajectory.xi, "momentum": trajectory.momentum}
    arrays |= measured(trajectory.system, trajectory.records.state)
    held = {name: drawable(np.asarray(values)[frames]) for name, values in arrays.items()}
    good = int(np.count_nonzero(wanted <= own[-1] + late))
    if balance is not None:
        balance = balance._replace(values=drawable(balance.values[frames]))
    return RunFrames(shown, number, **held, good=good, system=trajectory.system, trajectory=trajectory, balance=balance)


def drawable(values: np.ndarray) -> np.ndarray:
    """Numbers that can be drawn: a run without a start has none, and what is too large stands at the edge of the world."""
    return np.clip(np.nan_to_num(values, nan=0.0), -LARGEST, LARGEST)


def measured(system: MechanicalSystem, states: State) -> dict[str, np.ndarray]:
    """Energy, constraint, group distance, constraint rows and reaction at every state: each is a lane of a run of no steps, so
    that another number of frames compiles nothing."""
    lanes = states.xi.shape[0]
    record = evaluated(_measure, system, states, lanes=lanes, axes=(None, 0))
    return {name: np.asarray(values) for name, values in record.items()}


def _measure(system: MechanicalSystem, state: State) -> dict[str, Any]:
    t, g, xi = state.t, state.g, state.xi
    rows = system.rows(t, g)(xi)
    return {
        "energy": system.energy(t, g, xi),
        "constraint": jnp.max(jnp.abs(system.residual(t, g, xi)), initial=0.0),
        "distance": system.group.distance(g),
        "rows": rows,
        "reaction": system.multipliers(t, g, xi) @ rows,
    }


# -- files ----------------------------------------------------------------------------------------------------------------------
def config_of_file(path: Path) -> dict[str, Any] | None:
    """The configuration in a data file if it names a model of dalembert; nobody's code runs."""
    try:
        config = tomllib.loads(open_dataset(path).attrs.get("config", ""))
    except tomllib.TOMLDecodeError:
        return None
    return config if config.get("system", {}).get("name") in MODELS else None


def frames_in_file(path: Path, frames: int) -> RunFrames:
    """The run that a data file holds, at about `frames` of its moments."""
    data = open_dataset(path)
    motion = motion_of_file(path)
    if "velocity" not in data or "energy" not in data:
        raise InvalidInput(f"{path} has no velocity and energy over time: it was not written by `dalembert run --out`")
    count = len(motion.t)
    kept = np.unique(np.append(np.arange(0, count, max(1, -(-(count - 1) // frames))), count - 1))
    config = config_of_file(path)
    system = (
        None
        if config is None
        else MODELS[config["system"]["name"]].make(
            {key: value for key, value in config["system"].items() if key != "name"}
        )
    )
    shown = replace(motion, t=motion.t[kept], parts=tuple(drawable(part[kept]) for part in motion.parts))
    columns: dict[str, Any] = {
        name: drawable(data[column].values[kept]) if column in data else np.zeros(len(kept))
        for name, column in (
            ("velocity", "velocity"),
            ("momentum", "momentum"),
            ("energy", "energy"),
            ("constraint", "constraint_residual"),
            ("distance", "group_distance"),
        )
    }
    n = columns["velocity"].shape[1]
    columns |= {"rows": np.zeros((len(kept), 0, n)), "reaction": np.zeros((len(kept), n))}
    if system is not None:
        g: Any = shown.parts if len(shown.parts) > 1 else shown.parts[0]
        xi = columns["velocity"]
        again = measured(system, State(jnp.asarray(shown.t), g, xi, columns["momentum"], xi))
        columns |= {name: again[name] for name in ("rows", "reaction")}
    return RunFrames(shown, 0, **columns, good=len(kept), system=system)
