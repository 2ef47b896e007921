"""The models by name, as configuration files, the command line and the law tests know them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidInput, UnknownName
from ..system import MechanicalSystem
from .particles import nonholonomic_particle
from .rigid_body import rigid_body, rigid_body_n
from .sleigh import chaplygin_sleigh, knife_edge, vertical_disk
from .suslov import suslov, suslov_n


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
        Model("vertical-disk", vertical_disk, {"radius": 0.7}, {"velocity": [0.8, 0.7, 0.0, 1.0]}, 0.1),
        Model("knife-edge", knife_edge, {"slope": 0.3}, {"velocity": [1.0, 0.2, 0.0]}, 0.05),
    )
}
