"""Configurations to start from: commented TOML for every model, and a file for a system of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ._toml import lines, value
from .coordinates import axes
from .groups import Group
from .groups.motions import Motions
from .groups.rotations import Rotations
from .integrators.registry import METHODS
from .models.registry import MODELS, Model
from .system import MechanicalSystem

OWN = "own"
STEPS = 200

OWN_PYTHON = '''"""A system of your own: change it, and run it with `dalembert run {stem}.toml`."""

import jax.numpy as jnp

import dalembert as da


def make(mass=1.0, inertia=0.5, a=0.3):
    """A sleigh: `mass` at distance `a` ahead of a blade that does not slip sideways. Parameters come from [system]."""
    tensor = jnp.array([[inertia + mass * a**2, 0.0, mass * a], [0.0, mass, 0.0], [mass * a, 0.0, mass]])
    return da.System(
        group=da.SE2(),  # configurations g: (theta, x, y); velocities xi = (w, v1, v2) in the body
        lagrangian=lambda t, g, xi, p: 0.5 * xi @ p @ xi,
        constraint=lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]),  # A(t, g) with A xi = 0: here v2 = 0
        # holonomic=lambda t, g, p: g[:1, 2] - 1.0,  # phi(t, g) = 0 on positions, if there is such a constraint: here x = 1
        parameters=tensor,
    )
'''


def commented(name: str, file: str) -> str:
    """The configuration of a model, with what else could be said in it as comments."""
    model = MODELS[name]
    system = model.make(model.example)
    head = f"# {model.summary}\n# From `dalembert init {name}`; run it with: dalembert run {file} --plot {name}.png\n"
    return _sections(
        head,
        _with_defaults({"name": name, **model.example}, model.parameters),
        model,
        _leaf(system) + _initial(system.group, model.initial),
    )


def own(stem: str) -> tuple[str, str]:
    """(TOML, Python) of a system of the user's own."""
    model = MODELS["chaplygin-sleigh"]
    head = (
        f"# A system of your own, which {stem}.py makes; run it with: dalembert run {stem}.toml --plot {stem}.png\n"
        f"# Is its constraint really nonholonomic? dalembert show {stem}.toml\n"
    )
    section = f'python = "{stem}.py:make"   # this file is run; other keys here are the parameters of make\nmass = 1.0\na = 0.3\n'
    initial = _initial(model.make(model.example).group, {"velocity": [0.5, -1.0, 0.0]})
    plain = Model("", model.build, {}, {}, 0.05)
    return _sections(head, section, plain, initial), OWN_PYTHON.format(stem=stem)


def _sections(head: str, system: str, model: Model, initial: str) -> str:
    method = METHODS[model.method["name"]]
    return (
        f"{head}\n[system]\n{system}\n"
        f"[method]   # others: dalembert list methods\n{_with_defaults(model.method, method.options)}\n"
        f"[initial]\n{initial}\n"
        f"[run]\nstep = {value(model.step)}\nsteps = {STEPS}   # or t_end = {value(round(STEPS * model.step, 12))}\n"
        f'# save_every = 1\n# t0 = 0.0\n# backend = "auto"   # or llvm, cuda, xla\n'
    )


def _with_defaults(given: Mapping[str, Any], all_of_them: Mapping[str, Any]) -> str:
    """What is given, then what is not, as comments with its default."""
    text = lines(given)
    for name, default in all_of_them.items():
        if name not in given and name != "name":
            known = default is not None and default is not inspect.Parameter.empty
            text += f"# {name} = {value(default)}\n" if known else f"# {name} = ...\n"
    return text


def _leaf(system: MechanicalSystem) -> str:
    """What holonomic constraints ask of a configuration."""
    count = system.holonomic_constraints
    return (
        f"# the configuration must satisfy {count} holonomic constraint(s); if it does not, you are told the nearest\n"
        if count
        else ""
    )


def _initial(group: Group, given: Mapping[str, Any]) -> str:
    names = ", ".join(axis.name for axis in axes(group))
    other = "velocity" if "momentum" in given else "momentum"
    text = f"# configurations in {group}; velocities and momenta have components ({names})\n"
    if "configuration" not in given:
        text += f"# configuration = {value(_identity(group))}   # the identity, which is the default\n"
    return text + lines(given) + f"# or {other} = [...]; a momentum may have its components on D alone\n"


def _identity(group: Group) -> Any:
    if len(group.factors) > 1:
        return [_identity(factor) for factor in group.factors]
    if not isinstance(group, Motions | Rotations):
        return [0.0] * group.dim
    attitude: dict[int, dict[str, Any]] = {2: {"angle": 0.0}, 3: {"quaternion": [1.0, 0.0, 0.0, 0.0]}}
    identity = [[float(i == j) for j in range(group.size)] for i in range(group.size)]
    table = dict(attitude.get(group.size, {"matrix": identity}))
    return table | ({"position": [0.0] * group.size} if isinstance(group, Motions) else {})
