"""The first success: three systems, each with a geometric method beside Runge-Kutta at the same step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import models
from .compare import seconds_per_step
from .integrators import DiscreteMoserVeselov, EulerPoincareSuslov, Integrator, RungeKutta
from .run import Run
from .simulate import simulate
from .system import MechanicalSystem, State

TIMED = 100_000


@dataclass(frozen=True)
class Scene:
    """One system of the demonstration with the step both methods take."""

    name: str
    title: str
    system: MechanicalSystem
    state: State
    geometric: Integrator
    step: float
    steps: int


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    system: str
    method: str
    step: float
    steps: int
    energy: float
    constraint: float | None
    group: float
    nanoseconds: float


def scenes() -> list[Scene]:
    """Suslov's body, Chaplygin's sleigh and a free rigid body."""
    disc = models.suslov([[3, 0, 1], [0, 4, 0.5], [1, 0.5, 5]])
    sleigh = models.chaplygin_sleigh(mass=1.0, inertia=1.0, a=0.3, b=0.0)
    body = models.rigid_body([0.6, 0.8, 1.0])
    return [
        Scene("suslov", "Suslov body", disc, disc.state(momentum=[30.0, 20.0]), EulerPoincareSuslov(), 0.01, 1000),
        Scene(
            "sleigh", "Chaplygin sleigh", sleigh, sleigh.state(xi=[1.5, -3.0, 0.0]), EulerPoincareSuslov(), 0.05, 160
        ),
        Scene(
            "rigid-body",
            "Free rigid body",
            body,
            body.state(momentum=[1.8, 0.4, -0.9]),
            DiscreteMoserVeselov(),
            0.2,
            5000,
        ),
    ]


def run_scene(scene: Scene) -> dict[str, tuple[Run, Row]]:
    """Both methods on one scene, with the time that a step takes."""
    results = {}
    for integrator in (scene.geometric, RungeKutta()):
        run = simulate(scene.system, integrator, scene.state, step=scene.step, steps=scene.steps).check()
        seconds = seconds_per_step(scene.system, integrator, scene.state, scene.step, count=TIMED)
        results[integrator.name] = run, _row(scene, run, seconds or 0.0)
    return results


def _row(scene: Scene, run: Run, seconds: float) -> Row:
    def peak(values) -> float:
        return float(np.abs(np.asarray(values)).max())

    constraint = peak(run.constraint_residual()) if run.multipliers.shape[-1] else None
    return Row(
        scene.title,
        run.integrator.name,
        scene.step,
        scene.steps,
        peak(run.energy_error()),
        constraint,
        peak(run.group_distance()),
        1e9 * seconds,
    )


def draw(scene: Scene, results: dict[str, tuple[Run, Row]], folder: Path) -> Path:
    """The figure of a scene."""
    from .plotting import plot_comparison

    path = folder / f"{scene.name}.png"
    plot_comparison(
        {name: run for name, (run, _) in results.items()}, title=f"{scene.title}, step {scene.step}", path=path
    )
    return path
