"""Calls that are wrong, each refused by a sentence that names the argument: no traceback, and no numbers."""

from __future__ import annotations

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import GENERIC

import dalembert as da
from dalembert import InvalidInput
from dalembert.integrators import Integrator, PhaseCarry, StepInfo

NAN, INF = math.nan, math.inf
METHOD = da.LagrangeDAlembert()
SE2, R3, R2 = da.SE2(), da.Euclidean(3), da.Euclidean(2)
SUSLOV = da.models.suslov(GENERIC)
STATE = SUSLOV.state(momentum=[3.0, 2.0])
OBJECT = object()


def _kinetic(t, g, xi, p):
    return 0.5 * xi @ xi


FREE = da.System(R3, _kinetic)
PUSHED = da.System(R3, _kinetic, force=lambda t, g, xi, u, p: u[0] * xi)
START = FREE.state(xi=[1.0, 0.5, 0.0])
NONLINEAR = da.mechanics.NonlinearSystem(R3, _kinetic, lambda t, g, xi, p: jnp.stack([xi[2] - xi[0] * xi[1]]))


def own(lagrangian=_kinetic, group=R3, xi=(1.0, 0.5, 0.0), **options):
    """A system of one's own, made and started."""
    return lambda: da.System(group, lagrangian, **options).state(xi=list(xi))


def run(system=FREE, method=METHOD, state=START, **options):
    return lambda: da.simulate(system, method, state, **({"step": 0.1, "steps": 2} | options))


def _branch(t, g, xi, p):
    return 0.5 * xi @ xi if xi[0] > 0 else 0.0


def _numpy(t, g, xi, p):
    return 0.5 * np.dot(np.asarray(xi), xi)


def _float(t, g, xi, p):
    return 0.5 * math.sqrt(xi @ xi)


def _index(t, g, xi, p):
    return [0.5, 1.0, 2.0][jnp.argmax(xi)] * xi @ xi


# -- what a user's functions give -------------------------------------------------------------------------------------
FUNCTIONS = {
    "an if on a traced number": (r"lagrangian\(t, g, xi, p\) .*jnp.where", own(_branch)),
    "an and on traced numbers": ("jnp.where", own(lambda t, g, xi, p: (xi[0] > 0 and xi[1]) * xi @ xi)),
    "max of Python": ("jnp.where", own(lambda t, g, xi, p: max(xi[0], xi[1]) * xi @ xi)),
    "NumPy in a Lagrangian": (r"lagrangian\(t, g, xi, p\) .*jax.numpy", own(_numpy)),
    "a NumPy array of traced numbers": ("jax.numpy", own(lambda t, g, xi, p: np.array([xi[0], xi[1]]) @ xi[:2])),
    "math in a Lagrangian": ("jax.numpy", own(_float)),
    "a traced index": ("index", own(_index)),
    "assignment to an entry": (
        "lagrangian.* fails: TypeError: .*immutable",
        own(lambda t, g, xi, p: xi.__setitem__(0, 1.0)),
    ),
    "a Lagrangian that gives a vector": (
        r"lagrangian\(t, g, xi, p\) gave shape \(3,\); allowed: \(\)",
        own(lambda t, g, xi, p: xi),
    ),
    "a Lagrangian that gives one entry": (r"gave shape \(1,\)", own(lambda t, g, xi, p: xi[:1])),
    "a Lagrangian that gives nothing": ("lagrangian.* gave None", own(lambda t, g, xi, p: None)),
    "a Lagrangian that gives an int": ("lagrangian.* gave .*int.*real", own(lambda t, g, xi, p: 1)),
    "a Lagrangian that gives a bool": ("lagrangian.* gave .*bool", own(lambda t, g, xi, p: xi[0] > 0)),
    "a Lagrangian that gives complex numbers": ("lagrangian.* gave .*complex", own(lambda t, g, xi, p: 1j * xi @ xi)),
    "a Lagrangian that gives text": ("lagrangian.* gave 'L'", own(lambda t, g, xi, p: "L")),
    "a Lagrangian that gives a tuple": (r"lagrangian.* gave shape \(2,\)", own(lambda t, g, xi, p: (xi @ xi, 0.0))),
    "three arguments": (r"called as lagrangian\(t, g, xi, p\).* takes \(q, v, p\)", own(lambda q, v, p: v @ v)),
    "no parameters": (r"called as lagrangian\(t, g, xi, p\).* takes \(t, q, v\)", own(lambda t, q, v: v @ v)),
    "a key that is missing": (
        "lagrangian.* fails: KeyError: 'mass'",
        own(lambda t, g, xi, p: p["mass"] * xi @ xi, parameters={"m": 1.0}),
    ),
    "parameters that are none": (
        "lagrangian.* fails: TypeError: .*NoneType",
        own(lambda t, g, xi, p: p["m"] * xi @ xi),
    ),
    "shapes that do not fit": ("lagrangian.* fails: TypeError", own(lambda t, g, xi, p: xi @ jnp.ones(4))),
    "a constraint with an if": (
        r"constraint\(t, g, p\) .*jnp.where",
        own(constraint=lambda t, g, p: jnp.eye(3)[:1] if g[0] > 0 else jnp.eye(3)[1:2]),
    ),
    "a constraint in NumPy": (
        r"constraint\(t, g, p\) .*jax.numpy",
        own(constraint=lambda t, g, p: np.array([[np.sin(g[0]), 1.0, 0.0]])),
    ),
    "a constraint of the wrong width": (
        r"constraint\(t, g, p\) gave shape \(1, 2\); allowed: \(m, 3\)",
        own(constraint=lambda t, g, p: jnp.ones((1, 2))),
    ),
    "a constraint that gives nothing": (r"constraint\(t, g, p\) gave None", own(constraint=lambda t, g, p: None)),
    "a ragged constraint": (r"constraint\(t, g, p\) gave", own(constraint=lambda t, g, p: [[1.0, 0.0], [0.0]])),
    "a constraint that takes xi": (
        r"called as constraint\(t, g, p\)",
        own(constraint=lambda t, g, xi, p: jnp.eye(3)[:1]),
    ),
    "a drift with an if": (
        r"drift\(t, g, p\) .*jnp.where",
        own(constraint=lambda t, g, p: jnp.eye(3)[2:], drift=lambda t, g, p: jnp.ones(1) if t > 0 else jnp.zeros(1)),
    ),
    "a holonomic constraint in NumPy": (
        r"holonomic\(t, g, p\) .*jax.numpy",
        own(holonomic=lambda t, g, p: np.array([np.hypot(g[0], g[1]) - 1])),
    ),
    "a holonomic constraint that is a number": (
        r"holonomic\(t, g, p\) gave shape \(\); allowed: \(k,\)",
        own(holonomic=lambda t, g, p: g[0]),
    ),
    "a scalar force": (
        r"force\(t, g, xi, u, p\) gave shape \(\); allowed: \(3,\)",
        run(da.System(R3, _kinetic, force=lambda t, g, xi, u, p: -0.1)),
    ),
    "a force of one entry": (
        r"gave shape \(1,\); allowed: \(3,\)",
        run(da.System(R3, _kinetic, force=lambda t, g, xi, u, p: xi[:1])),
    ),
    "a force that gives nothing": (
        r"force\(t, g, xi, u, p\) gave None",
        run(da.System(R3, _kinetic, force=lambda t, g, xi, u, p: None)),
    ),
    "a force with an if": (
        r"force\(t, g, xi, u, p\) .*jnp.where",
        run(da.System(R3, _kinetic, force=lambda t, g, xi, u, p: -xi if xi[0] > 0 else xi)),
    ),
    "an added force that is a number": (
        r"force\(t, g, xi\) gave shape \(\); allowed: \(3,\)",
        run(da.mechanics.with_force(FREE, lambda t, g, xi: 1.0)),
    ),
    "a potential with an if": (
        r"potential\(t, g, p\) .*jnp.where",
        lambda: da.InvariantSystem(SE2, np.eye(3), potential=lambda t, g, p: 1.0 if g[0, 2] > 0 else 0.0).state(
            xi=[1.0, 0, 0]
        ),
    ),
    "a potential that is a vector": (
        r"potential\(t, g, p\) gave shape \(2,\)",
        lambda: da.InvariantSystem(SE2, np.eye(3), potential=lambda t, g, p: g[:2, 2]).state(xi=[1.0, 0, 0]),
    ),
    "a vector field of the wrong width": (
        r"field\(t, g, p\) gave shape \(2,\); allowed: \(3,\)",
        lambda: da.mechanics.VectorField(SE2, lambda t, g, p: jnp.ones(2)).state(),
    ),
}

# -- Lagrangians that do not determine a motion -----------------------------------------------------------------------
SINGULAR = {
    "L = 0": ("singular.* w, v1, v2", own(lambda t, g, xi, p: 0.0 * xi[0], group=SE2)),
    "L linear": ("singular", own(lambda t, g, xi, p: xi[0] + xi[1], group=SE2)),
    "a forgotten mass": ("singular.* v1, v2.*mass", own(lambda t, g, xi, p: 0.5 * xi[0] ** 2, group=SE2)),
    "one forgotten mass": ("singular.* v2", own(lambda t, g, xi, p: 0.5 * (xi[0] ** 2 + xi[1] ** 2), group=SE2)),
    "a relative velocity only": (
        r"singular.* v1 \+ v2",
        own(lambda t, g, xi, p: 0.5 * (xi[0] ** 2 + (xi[1] - xi[2]) ** 2), group=SE2),
    ),
    "no mass along D": (
        "singular.* v1",
        own(
            lambda t, g, xi, p: 0.5 * (xi[0] ** 2 + xi[2] ** 2),
            group=SE2,
            xi=(1.0, 0.5, 0.0),
            constraint=lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]),
        ),
    ),
    "a quartic Lagrangian at rest": (
        "singular",
        own(lambda t, g, xi, p: (xi @ xi) ** 2, group=SE2, xi=(0.0, 0.0, 0.0)),
    ),
    "no second derivative": ("not finite", own(lambda t, g, xi, p: jnp.sqrt(xi @ xi), group=SE2, xi=(0.0, 0.0, 0.0))),
    "an energy that overflows": ("energy .*not finite", own(xi=(1e200, 0.0, 0.0))),
    "a potential that is nan": (
        "energy .*not finite",
        own(lambda t, g, xi, p: 0.5 * xi @ xi + jnp.log(g[0] - 1.0), group=R3),
    ),
    "a momentum without a velocity": (
        "no velocity .*momentum",
        lambda: da.System(SE2, lambda t, g, xi, p: jnp.sqrt(1.0 + xi @ xi)).state(momentum=[2.0, 0.0, 0.0]),
    ),
    "a mass that is 0 in the parameters": (
        "singular.* v3",
        own(lambda t, g, xi, p: 0.5 * xi @ (p["m"] * xi), parameters={"m": np.array([1.0, 2.0, 0.0])}),
    ),
}

# -- systems ----------------------------------------------------------------------------------------------------------
SYSTEMS = {
    "a group as a class": (
        r"group is the class SE2; allowed: a group, such as SE2\(\)",
        lambda: da.System(da.SE2, _kinetic),
    ),
    "a group as a string": ("group is 'SE2'; allowed: a group", lambda: da.System("SE2", _kinetic)),
    "a Lagrangian first": ("group is .*function.*allowed: a group", lambda: da.System(_kinetic, SE2)),
    "no Lagrangian": ("lagrangian is None; allowed: a function", lambda: da.System(SE2, None)),
    "a matrix as a constraint": (
        "constraint is .*; allowed: a function",
        lambda: da.System(R3, _kinetic, np.eye(3)[:1]),
    ),
    "a number as a force": ("force is 1.0; allowed: a function", lambda: da.System(R3, _kinetic, force=1.0)),
    "text in parameters": (r"parameters\['kind'\] is 'fast'; allowed", own(parameters={"kind": "fast"})),
    "NaN in parameters": (r"parameters\['m'\] is nan; allowed: finite", own(parameters={"m": NAN})),
    "complex parameters": (r"parameters\['m'\] .*; allowed: real", own(parameters={"m": 1j})),
    "a group as a class, invariant": ("group is the class SO3", lambda: da.InvariantSystem(da.SO3, np.eye(3))),
    "arguments the wrong way round": ("group is", lambda: da.InvariantSystem(np.eye(3), da.SO3())),
    "a complex inertia": ("inertia .*real", lambda: da.InvariantSystem(da.SO3(), 1j * np.eye(3))),
    "an inertia of text": ("inertia .*real", lambda: da.InvariantSystem(da.SO3(), ["1", "2", "3"])),
    "an inertia of truth values": ("inertia .*real", lambda: da.InvariantSystem(da.SO3(), np.eye(3, dtype=bool))),
    "a ragged inertia": ("inertia .*real", lambda: da.InvariantSystem(da.SO3(), [[1.0, 0.0], [1.0]])),
    "an inertia of objects": ("inertia .*real", lambda: da.InvariantSystem(da.SO3(), [OBJECT] * 3)),
    "no inertia": ("inertia .*real", lambda: da.InvariantSystem(da.SO3(), None)),
    "complex rows": ("annihilator .*real", lambda: da.InvariantSystem(da.SO3(), np.eye(3), annihilator=[1j, 0, 0])),
    "a basis of text": ("subspace .*real", lambda: da.InvariantSystem(da.SO3(), np.eye(3), subspace="xy")),
    "a mass as text": ("mass is '2'; allowed: one positive number", lambda: da.models.chaplygin_sleigh(mass="2")),
    "a mass of None": ("mass is None; allowed: one positive number", lambda: da.models.chaplygin_sleigh(mass=None)),
    "a true mass": ("mass is True; allowed: one positive number", lambda: da.models.chaplygin_sleigh(mass=True)),
    "a complex mass": ("mass is .*j.*; allowed: one positive number", lambda: da.models.chaplygin_sleigh(mass=1 + 1j)),
    "a complex normal": ("normal is .*; allowed: real", lambda: da.models.suslov(GENERIC, [1j, 0, 1])),
    "a weight of text": ("weight .*real", lambda: da.models.suslov(GENERIC, weight=["a", "b", "c"])),
    "complex mass moments": ("mass .*real", lambda: da.models.rigid_body_n([1j, 1.0, 1.0])),
    "friction along text": ("along .*real", lambda: da.with_friction(FREE, viscous=1.0, along="x")),
    "friction on a state": ("system is .*State", lambda: da.with_friction(START, viscous=1.0)),
    "friction that is complex": ("viscous is .*; allowed", lambda: da.with_friction(FREE, viscous=1j)),
}

# -- states -----------------------------------------------------------------------------------------------------------
STATES = {
    "a complex velocity": ("velocity xi .*real", lambda: SUSLOV.state(xi=[1 + 1j, 0, 0])),
    "a velocity of text": ("velocity xi .*real", lambda: SUSLOV.state(xi=["1", "0", "0"])),
    "a velocity of truth values": ("velocity xi .*real", lambda: SUSLOV.state(xi=[True, False, False])),
    "a ragged velocity": ("velocity xi .*real", lambda: SUSLOV.state(xi=[[1.0], 0.0, 0.0])),
    "a velocity of objects": ("velocity xi .*real", lambda: SUSLOV.state(xi=[OBJECT] * 3)),
    "a dictionary": ("unknown velocity 'w'.*Allowed: w1, w2, w3", lambda: SUSLOV.state(xi={"w": 1.0})),
    "a number": (r"velocity xi has shape \(\); allowed: \(3,\)", lambda: SUSLOV.state(xi=1.0)),
    "a whole number beyond doubles": ("velocity xi .*real", lambda: SUSLOV.state(xi=[10**400, 0, 0])),
    "complex JAX numbers": ("velocity xi .*real", lambda: FREE.state(xi=jnp.array([1j, 0, 0]))),
    "a complex momentum": ("momentum .*real", lambda: SUSLOV.state(momentum=[1j, 0])),
    "a momentum of text": ("momentum .*real", lambda: SUSLOV.state(momentum="ab")),
    "a time of text": ("t is '0'; allowed: one finite number", lambda: FREE.state(xi=[1.0, 0, 0], t="0")),
    "a time that is NaN": ("t is nan; allowed: one finite number", lambda: FREE.state(xi=[1.0, 0, 0], t=NAN)),
    "two times": ("t is .*; allowed: one finite number", lambda: FREE.state(xi=[1.0, 0, 0], t=[0.0, 1.0])),
    "a complex configuration": ("an element of SO.3.", lambda: SUSLOV.state(1j * np.eye(3), [1.0, 0, 0])),
    "a configuration of text": ("an element of SO.3.", lambda: SUSLOV.state("up", [1.0, 0, 0])),
    "a configuration of truth values": (
        "an element of SO.3.",
        lambda: SUSLOV.state(np.eye(3, dtype=bool), [1.0, 0, 0]),
    ),
    "a configuration that is NaN": ("an element of R.3", lambda: FREE.state([NAN, 0, 0], [1.0, 0, 0])),
    "velocity and configuration exchanged": (
        "an element of SO.3.|velocity",
        lambda: SUSLOV.state([1.0, 0, 0], np.eye(3)),
    ),
}

# -- runs -------------------------------------------------------------------------------------------------------------
OTHER_GROUP = da.InvariantSystem(da.SO3(), np.eye(3)).state(xi=[1.0, 0.5, 0.0])
PLANE = da.InvariantSystem(SE2, np.eye(3))


class Wrong(Integrator):
    """A method that forgets something."""

    name = "wrong"

    def __init__(self, start=None, step=None, observe=None):
        self.given = {"start": start, "step": step, "observe": observe}

    def start(self, system, state, h, u=None):
        made = PhaseCarry(state.t, state.g, state.xi), StepInfo.explicit()
        return self.given["start"](made) if self.given["start"] else made

    def step(self, system, carry, h, u=None):
        made = carry._replace(t=carry.t + h, g=carry.g + h * carry.xi), StepInfo.explicit()
        return self.given["step"](made) if self.given["step"] else made

    def observe(self, system, carry, h):
        made = da.State(carry.t, carry.g, carry.xi, carry.xi, carry.xi)
        return self.given["observe"](made) if self.given["observe"] else made


RUNS = {
    "no step": ("step is None; allowed: any finite number but 0", run(step=None)),
    "a step of text": ("step is '0.1'; allowed: any finite number but 0", run(step="0.1")),
    "a step of two": ("step is .*; allowed: any finite number but 0", run(step=np.array([0.1, 0.2]))),
    "a complex step": ("step is .*; allowed: any finite number but 0", run(step=0.1 + 0j)),
    "a true step": ("step is True; allowed: any finite number but 0", run(step=True)),
    "steps of text": ("steps is '2'; allowed: a whole number", run(steps="2")),
    "steps of an array": ("steps is .*; allowed: a whole number", run(steps=np.array([2, 3]))),
    "a t_end of text": ("t_end is '1'; allowed: one finite number", run(steps=None, t_end="1")),
    "a t_end of two": ("t_end is .*; allowed: one finite number", run(steps=None, t_end=[1.0, 2.0])),
    "a t0 of text": ("t0 is '0'; allowed: one finite number", run(t0="0")),
    "a t0 that is NaN": ("t0 is nan; allowed: one finite number", run(t0=NAN)),
    "a t0 beyond the steps": (r"t0 = 1e\+300 .*step .*0.1", run(t0=1e300)),
    "a state beyond the steps": (r"t0 = 1e\+300 .*step .*0.1", run(state=FREE.state(xi=[1.0, 0, 0], t=1e300))),
    "save_every of text": ("save_every is '1'; allowed", run(save_every="1")),
    "a backend that is None": ("unknown backend", run(backend=None)),
    "a backend in a list": ("unknown backend", run(backend=["xla"])),
    "a method as a class": (
        r"method is the class LagrangeDAlembert; .* LagrangeDAlembert\(\)",
        run(method=da.LagrangeDAlembert),
    ),
    "a method as a string": (
        r"method is 'lagrange-dalembert'; .* LagrangeDAlembert\(\)",
        run(method="lagrange-dalembert"),
    ),
    "a method nobody knows": ("method is 'leapfrogg'; allowed: a method", run(method="leapfrogg")),
    "no method": ("method is None; allowed: a method", run(method=None)),
    "system and method exchanged": ("system is .*LagrangeDAlembert.*allowed: a system.*exchanged", run(METHOD, FREE)),
    "state and method exchanged": ("method is .*State", run(FREE, START, METHOD)),
    "a model as a function": (r"system is the function suslov; .*suslov\(", run(da.models.suslov, state=STATE)),
    "a system as a string": ("system is 'suslov'; allowed: a system", run("suslov")),
    "a system as a class": ("system is the class System", run(da.System)),
    "an array as the state": (r"state is .*; allowed: .*system.state\(", run(state=np.array([1.0, 0.5, 0.0]))),
    "no state": (r"state is None; allowed: .*system.state\(", run(state=None)),
    "a tuple as the state": (r"state is .*; allowed: .*system.state\(", run(state=tuple(START))),
    "the method of state": (r"state is .*; allowed: .*system.state\(", run(state=FREE.state)),
    "a state of another group": (r"state .*SO\(3\).*SE\(2\)", run(PLANE, state=OTHER_GROUP)),
    "a state of another group by hand": (
        r"SE\(2\)",
        run(PLANE, state=da.State(*OTHER_GROUP)._replace(g=2.0 * jnp.eye(3))),
    ),
    "a run of another group": (
        r"state .*R\^3.*SE\(2\)",
        lambda: da.simulate(PLANE, METHOD, run()(), step=0.1, steps=1),
    ),
    "a state by hand of other shapes": (
        r"element of R\^3",
        run(state=da.State(jnp.zeros(()), jnp.zeros(2), jnp.ones(3), jnp.ones(3), jnp.ones(3))),
    ),
    "a complex velocity by hand": ("velocity xi .*real", run(state=START._replace(xi=1j * jnp.ones(3)))),
    "a momentum by hand": (
        r"momentum of the state is .*; allowed: 3 finite",
        run(state=START._replace(momentum=jnp.ones(4))),
    ),
    "controls of text": ("controls .*real", run(PUSHED, controls=["a", "b"])),
    "complex controls": ("controls .*real", run(PUSHED, controls=1j * np.ones((2, 1)))),
    "controls that are not finite": ("controls row 0: .*nan", run(PUSHED, controls=[[NAN], [1.0]])),
    "a start without info": (
        r"Wrong.start\(.*\) gave .*; allowed: \(carry, StepInfo\)",
        run(method=Wrong(start=lambda made: made[0])),
    ),
    "a step without info": (
        r"Wrong.step\(.*\) gave .*; allowed: \(carry, StepInfo\)",
        run(method=Wrong(step=lambda made: made[0])),
    ),
    "a step that gives nothing": (
        r"Wrong.step\(.*\) gave None; allowed: \(carry, StepInfo\)",
        run(method=Wrong(step=lambda made: None)),
    ),
    "a step with a number as info": (
        r"Wrong.step\(.*\) gave .*; allowed: \(carry, StepInfo\)",
        run(method=Wrong(step=lambda made: (made[0], 0))),
    ),
    "a step that changes its carry": (
        r"Wrong.step\(.*\) .*carry",
        run(method=Wrong(step=lambda made: (made[0]._replace(xi=jnp.ones(2)), made[1]))),
    ),
    "a step with an if": (
        r"Wrong.step\(.*\) .*jnp.where",
        run(method=Wrong(step=lambda made: made if made[0].xi[0] > 0 else None)),
    ),
    "an observe without a State": (
        r"Wrong.observe\(.*\) gave .*; allowed: a State",
        run(method=Wrong(observe=lambda made: made.xi)),
    ),
    "an ensemble of another group": (
        r"state .*SO\(3\).*SE\(2\)",
        lambda: da.ensemble(PLANE, METHOD, [OTHER_GROUP] * 2, step=0.1, steps=1),
    ),
    "an ensemble of arrays": (
        r"state is .*; allowed",
        lambda: da.ensemble(FREE, METHOD, np.ones((2, 3)), step=0.1, steps=1),
    ),
    "an ensemble by a class": (
        "method is the class",
        lambda: da.ensemble(FREE, da.LagrangeDAlembert, [START] * 2, step=0.1, steps=1),
    ),
    "an ensemble with a step of text": (
        "step is '0.1'",
        lambda: da.ensemble(FREE, METHOD, [START] * 2, step="0.1", steps=1),
    ),
    "an ensemble beyond the steps": (
        r"t0 = 1e\+300",
        lambda: da.ensemble(FREE, METHOD, [START._replace(t=jnp.asarray(1e300))] * 2, step=0.1, steps=1),
    ),
    "many systems in a run of one": (
        r"Lagrangian of the system has shape \(2,\); allowed: one number.*batched_system=True",
        lambda: da.simulate(_many_sleighs(), METHOD, da.models.chaplygin_sleigh().state(), step=0.1, steps=1),
    ),
    "an ensemble of many systems that does not say so": (
        "an ensemble needs .* batched_system=True",
        lambda: da.ensemble(_many_sleighs(), METHOD, da.models.chaplygin_sleigh().state(), step=0.1, steps=1),
    ),
    "an ensemble whose energy overflows": (
        "energy .*not finite",
        lambda: da.ensemble(FREE, METHOD, [START, START._replace(xi=jnp.full(3, 1e200))], step=0.1, steps=1),
    ),
}


def _many_sleighs():
    return jax.vmap(da.models.chaplygin_sleigh)(jnp.ones(2))


# -- methods ----------------------------------------------------------------------------------------------------------
METHODS = {
    "a retraction as a class": ("retraction is the class Cayley", lambda: da.LagrangeDAlembert(retraction=da.Cayley)),
    "a retraction as a string": ("retraction is 'cayley'", lambda: da.LagrangeDAlembert(retraction="cayley")),
    "a node of None": (r"node \(beta\) is None; allowed", lambda: da.LagrangeDAlembert(node=None)),
    "a true node": (r"node \(beta\) is True; allowed", lambda: da.LagrangeDAlembert(node=True)),
    "a complex node": (r"node \(beta\) is .*; allowed", lambda: da.LagrangeDAlembert(node=0.5j)),
    "nodes in a list": ("unknown nodes", lambda: da.LagrangeDAlembert(nodes=["velocity"])),
    "a pair that is none": (
        "pair is .*; allowed: a Discretisation",
        lambda: da.LagrangeDAlembert(pair="moser-veselov"),
    ),
    "a Lagrangian of no text": ("unknown discrete Lagrangian", lambda: da.EulerPoincareSuslov(None)),
}
TABLES = {
    "functions": FUNCTIONS,
    "singular": SINGULAR,
    "systems": SYSTEMS,
    "states": STATES,
    "runs": RUNS,
    "methods": METHODS,
}
ROWS = [(table, row) for table, rows in TABLES.items() for row in rows]


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_refused_by_a_sentence(table, row):
    words, call = TABLES[table][row]
    with pytest.raises(InvalidInput, match=f"(?s){words}") as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        call()
    assert 20 < len(str(caught.value)) < 1500


NONSENSE = [
    None,
    True,
    10**30,
    1j,
    "x",
    b"x",
    [],
    (),
    {},
    {"a": 1},
    [[1, 2], [3]],
    ["a"],
    OBJECT,
    int,
    len,
    SUSLOV,
    STATE,
]
NONSENSE += [
    10**400,
    math.nan,
    math.inf,
    np.zeros(0),
    np.zeros((2, 3)),
    np.full(3, np.nan),
    np.array(["a"]),
    range(3),
    SE2,
]


@pytest.mark.parametrize("system", [SUSLOV, NONLINEAR], ids=["linear", "nonlinear"])
@pytest.mark.parametrize("key", ["g", "xi", "t"])
def test_a_projection_of_nonsense_is_refused_by_a_sentence(system, key):
    right = {"g": system.group.identity(), "xi": [0.1, 0.2, 0.3], "t": 0.0}
    for nonsense in NONSENSE:
        try:
            found = system.project(**right | {key: nonsense})
        except InvalidInput as fault:
            assert 20 < len(str(fault)) < 1500
        else:
            assert key == "t" or isinstance(nonsense, range)
            assert np.isfinite(found).all()


def test_the_table_is_long_enough():
    assert len(ROWS) >= 80
