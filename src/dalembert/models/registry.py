"""The models by name, as configuration files, the command line and the law tests know them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidInput, UnknownName
from ..mechanics import MechanicalSystem
from .bodies import chaplygin_sphere, rigid_body, rigid_body_n, suslov, suslov_n, veselova
from .holonomic import hinged_sleighs, pendulum_chain, skate_on_ellipsoid
from .particles import chaotic_quartic, contact_oscillator, nonholonomic_particle, pendulum_cvt
from .rolling import ball_on_table, chaplygin_ball, rattleback, rolling_ball, rolling_disk
from .sleigh import chaplygin_sleigh, inclined_disk, knife_edge, sleigh_n, vertical_disk
from .vehicles import car, roller_racer, snakeboard, unicycle


@dataclass(frozen=True)
class Model:
    """A named system: how to build it, and an example that shows what it does."""

    name: str
    build: Callable[..., MechanicalSystem]
    example: Mapping[str, Any]
    initial: Mapping[str, Any]
    step: float = 0.05
    method: Mapping[str, Any] = field(default_factory=lambda: {"name": "lagrange-dalembert"})

    @property
    def summary(self) -> str:
        """The first line of the model's documentation."""
        return inspect.getdoc(self.build).splitlines()[0]  # type: ignore[union-attr]

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters with their defaults (inspect.Parameter.empty where one must be given)."""
        return {name: p.default for name, p in inspect.signature(self.build).parameters.items()}

    def make(self, given: Mapping[str, Any]) -> MechanicalSystem:
        """The system with these parameters; unknown and missing ones are named."""
        for name in given:
            if name not in self.parameters:
                raise UnknownName(f"parameter of system '{self.name}'", name, self.parameters)
        missing = [
            name
            for name, default in self.parameters.items()
            if default is inspect.Parameter.empty and name not in given
        ]
        if missing:
            raise InvalidInput(
                f"system '{self.name}' needs {', '.join(missing)}; for example {missing[0]} = {self.example[missing[0]]}"
            )
        return self.build(**given)


GENERIC = [[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]]
SUSLOV = {"name": "euler-poincare-suslov", "lagrangian": "moser-veselov", "retraction": "cayley"}

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            "rigid-body",
            rigid_body,
            {"inertia": [0.6, 0.8, 1.0]},
            {"momentum": [1.8, 0.4, -0.9]},
            0.1,
            {"name": "discrete-moser-veselov"},
        ),
        Model(
            "rigid-body-n",
            rigid_body_n,
            {"mass": [1.1, 0.8, 0.6, 0.3]},
            {"momentum": [0.3, -0.2, 0.45, 0.25, -0.35, 0.15]},
            0.25,
            {"name": "discrete-moser-veselov", "order": 2},
        ),
        Model("suslov", suslov, {"inertia": GENERIC}, {"momentum": [3.0, 2.0]}, 0.05, SUSLOV),
        Model(
            "suslov-n",
            suslov_n,
            {"mass": [[1.1, 0.0, 0.0, 0.1], [0.0, 0.8, 0.0, -0.2], [0.0, 0.0, 0.6, 0.15], [0.1, -0.2, 0.15, 0.5]]},
            {"momentum": [0.5, -0.3, 0.4]},
            0.1,
            SUSLOV,
        ),
        Model(
            "chaplygin-sleigh",
            chaplygin_sleigh,
            {"mass": 1.0, "inertia": 1.0, "a": 0.3, "b": 0.2},
            {"velocity": [0.5, -1.0, 0.0]},
            0.1,
            SUSLOV,
        ),
        Model(
            "nonholonomic-particle",
            nonholonomic_particle,
            {"potential": "harmonic"},
            {"configuration": [0.3, 0.5, -0.2], "velocity": [1.1, 0.7, 0.55]},
            0.1,
        ),
        Model(
            "contact-oscillator",
            contact_oscillator,
            {"epsilon": 0.1},
            {"configuration": [1.0, 0.0, 0.0], "velocity": [0.0, 1.0, 1.0]},
            0.1,
            {"name": "leapfrog"},
        ),
        Model(
            "chaotic-quartic",
            chaotic_quartic,
            {"n": 3},
            {
                "configuration": [0.0, 0.6, 0.4, 0.2, 1.0, 1.0, 1.0],
                "velocity": [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            },
            0.1,
            {"name": "leapfrog"},
        ),
        Model(
            "pendulum-cvt",
            pendulum_cvt,
            {"epsilon": 0.1},
            {"configuration": [1.0, 0.0, 0.0], "velocity": [0.3, 0.0, 2.0]},
            0.1,
            {"name": "leapfrog"},
        ),
        Model("vertical-disk", vertical_disk, {"radius": 0.7}, {"velocity": [0.8, 0.7, 0.0, 1.0]}, 0.1),
        Model("inclined-disk", inclined_disk, {"slope": 0.3, "radius": 0.7}, {"velocity": [0.8, 0.7, 0.0, 1.0]}, 0.05),
        Model("rolling-disk", rolling_disk, {"radius": 0.5}, {"velocity": [0.2, 6.0, 0.5, 3.0, -0.1]}, 0.01),
        Model("rolling-ball", rolling_ball, {"slope": 0.1}, {"velocity": [0.3, 0.5, 0.2, 0.5, -0.3]}, 0.05),
        Model("ball-on-table", ball_on_table, {"rotation": 1.5}, {"velocity": [0.3, 0.5, 0.2, 0.5, -0.3]}, 0.05),
        Model("chaplygin-ball", chaplygin_ball, {"inertia": [0.3, 0.4, 0.5]}, {"velocity": [0.9, 0.5, 0.7, 0.5, -0.9]}),
        Model("rattleback", rattleback, {"depth": 0.01}, {"velocity": [0.5, 0.0, -5.0, 0.0, -0.005]}, 0.002),
        Model("unicycle", unicycle, {"centre": 0.2}, {"velocity": [0.8, 1.0, 0.0]}),
        Model("car", car, {"length": 1.2}, {"velocity": [0.0, 1.0, 0.0, 0.3]}),
        Model("snakeboard", snakeboard, {"length": 0.2}, {"velocity": [0.0, 0.5, 0.0, 2.0, 0.4]}, 0.02),
        Model("roller-racer", roller_racer, {"front": 0.5, "arm": 0.3}, {"velocity": [-0.375, 0.6, 0.0, 1.0]}),
        Model("knife-edge", knife_edge, {"slope": 0.3}, {"velocity": [1.0, 0.2, 0.0]}, 0.05),
        Model(
            "sleigh-n",
            sleigh_n,
            {"tensor": [0.5, 0.7, 0.9], "centre": [0.3, 0.1, -0.2]},
            {"momentum": [0.5, -0.3, 0.8]},
            0.1,
            SUSLOV,
        ),
        Model("veselova", veselova, {"inertia": GENERIC}, {"momentum": [3.0, 2.0]}, 0.05, {"name": "discrete-lr"}),
        Model(
            "chaplygin-sphere",
            chaplygin_sphere,
            {"inertia": [0.3, 0.4, 0.5], "radius": 0.6},
            {"momentum": [0.5, -0.3, 0.4]},
            0.1,
            {"name": "discrete-lr"},
        ),
        Model(
            "pendulum-chain",
            pendulum_chain,
            {"masses": [1.0, 0.6], "lengths": [1.0, 0.8]},
            {"configuration": [0.6, -0.8, 1.4, -0.8], "velocity": [0.8, 0.6, 0.8, 1.4]},
            0.02,
        ),
        Model(
            "skate-on-ellipsoid",
            skate_on_ellipsoid,
            {"axes": [1.5, 1.2, 1.0], "inertia": [0.1, 0.2, 0.3]},
            {
                "configuration": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]],
                "velocity": [0.0, 0.8 / 2.25, 1.5, 0.8, 0.0, 0.0],
            },
            0.02,
        ),
        Model(
            "hinged-sleighs",
            hinged_sleighs,
            {"front": 0.5, "arm": 0.3},
            {
                "configuration": [[[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[1, 0, 0.8], [0, 1, 0], [0, 0, 1]]],
                "velocity": [-0.375, 0.6, 0.0, 0.625, 0.6, 0.0],
            },
        ),
    )
}
