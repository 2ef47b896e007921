"""The systems of the benchmarks, each with its hand-written C and the start of both."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dalembert as da
from dalembert.integrators import DiscreteMoserVeselov
from dalembert.kernels import make_problem as problem
from dalembert.kernels.execute import open_session
from dalembert.kernels.problem import Problem
from dalembert.mechanics import moser_veselov
from dalembert.models.bodies import GENERIC
from dalembert.simulation import run_kernel as functions

OPTIONS = ("-O3", "-march=native", "-shared", "-fPIC")


@cache
def compiled(name: str, *defines: str) -> ctypes.CDLL:
    """The library of c/<name>.c."""
    source = Path(__file__).parent / "c" / f"{name}.c"
    with tempfile.TemporaryDirectory(prefix="dalembert-bench-") as folder:
        library = Path(folder, f"{name}.so")
        subprocess.run(["gcc", *OPTIONS, *defines, str(source), "-o", str(library), "-lm"], check=True)
        return ctypes.CDLL(str(library))


@dataclass(frozen=True)
class Case:
    """A system with a method, and the C of the same scheme: its file, parameters and state (from the start of
    the run).
    """

    name: str
    system: Any
    integrator: Any
    state: Any
    step: float
    source: str
    parameters: Callable[[Any], Any]
    carried: Callable[[Case, Any], Any]
    defines: tuple[str, ...] = ()

    @cached_property
    def first(self) -> da.Trajectory:
        """The run of one step: its record of the start is where C begins, its final loop where kernels do."""
        return self.simulate(1)

    @property
    def words(self) -> int:
        """Numbers saved per state."""
        return sum(leaf[0].size for leaf in jax.tree.leaves(self.first.records))

    def problem(self) -> Problem:
        consts = (self.system, np.asarray(self.step))
        return problem(*functions(self.integrator, False)[1:], consts, self.first.final)

    def kernel(self, steps: int, backend: str = "llvm") -> Callable[[], Any]:
        """A call that runs `steps` steps from the start and saves them all: machine code alone, memory already
        there.
        """
        session, _ = open_session(self.problem(), backend)  # type: ignore[arg-type]
        session.reserve(steps)
        before = session.save_state()

        def run():
            session.restore_state(before)
            session.run(0, steps, 1, 0)
            return session

        return run

    def simulate(self, steps: int, backend: str = "llvm") -> da.Trajectory:
        return da.simulate(self.system, self.integrator, self.state, step=self.step, steps=steps, backend=backend)

    def by_hand(self, steps: int, *, fresh: bool = False, every: int = 1) -> Callable[[], np.ndarray]:
        """The same call in C: rows of records (steps, words), in memory that is already there or that every call asks
        for; one row after `every` steps.
        """
        run = compiled(self.source, *self.defines).run
        run.restype = ctypes.c_int64
        parameters, before = _doubles(self.parameters(self.system)), self.initial
        room = np.zeros((steps // every, self.words))
        pointer = ctypes.c_void_p

        def call():
            state, out = before.copy(), np.empty_like(room) if fresh else room
            done = run(
                pointer(parameters.ctypes.data),
                ctypes.c_double(self.step),
                ctypes.c_int64(steps // every),
                ctypes.c_int64(every),
                pointer(state.ctypes.data),
                pointer(out.ctypes.data),
            )
            if done != steps:
                raise RuntimeError(f"{self.name} in C failed after {done} steps")
            return out

        return call

    @property
    def initial(self) -> np.ndarray:
        """The state of the C program: origin of time, number of steps, and what its scheme carries."""
        start = jax.tree.map(lambda leaf: np.asarray(leaf[0]), self.first.records.state)
        return _doubles([start.t, 0.0, *self.carried(self, start)])

    def disagreement(self, steps: int = 1000) -> float:
        """max |C - dalembert|/(1 + |dalembert|) over all that is saved after `steps` steps, but residual and
        iterations.
        """
        records = self.simulate(steps).records._replace(residual=np.zeros(0), iterations=np.zeros(0))
        ours = np.concatenate([np.ravel(leaf[-1]) for leaf in jax.tree.leaves(records) if np.size(leaf)])
        words = len(ours) + 2
        at = words - 1 - sum(np.shape(leaf)[-1] for leaf in (records.multipliers, records.angles)) - 2
        theirs = np.delete(self.by_hand(steps)()[-1], [at, at + 1])
        return float(np.max(np.abs(theirs - ours) / (1 + np.abs(ours))))


def members(case: Case, count: int) -> da.State:
    """States around the one of the case: its velocity in D scaled by 0.8 to 1.2."""
    scales = jax.numpy.linspace(0.8, 1.2, count)
    return jax.jit(jax.vmap(lambda scale: case.system.state(case.state.g, scale * case.state.xi)))(scales)


def lanes(case: Case, start: da.Trajectory) -> Problem:
    """Steps of all members of an ensemble, from where it ended."""
    consts, count = (case.system, np.asarray(case.step)), np.shape(start.final.status)[0]
    return problem(*functions(case.integrator, False)[1:], consts, start.final, lanes=count, axes=((None, None), 0))


def _doubles(parts: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(part, float)) for part in parts])


# ---- what the C programs start from


def _displaced(case, start):
    """g, M, h times the increment; no change, bend or orientation yet, nothing solved yet."""
    unknowns = case.system.subspace.T @ start.increment
    return (
        start.g,
        start.momentum,
        case.step * unknowns,
        np.zeros(2 * len(unknowns) + 1),
        np.zeros(3 if len(unknowns) == 2 else 2),
    )


def _motion(g):
    return g[0, 0], g[1, 0], g[0, 2], g[1, 2]


def _angle(g):
    return np.arctan2(g[1, 0], g[0, 0])


def _sleigh(case, start):
    return _motion(start.g), start.momentum, case.step * start.increment[:2], np.zeros(8), _angle(start.g)


def _particle(case, start):
    """The node q = q~ + h w/2 with p = w + h L_q(q~)/2."""
    pull = np.array([-start.g[0], -start.g[1], 0.0])
    q, p = start.g + 0.5 * case.step * start.xi, start.xi + 0.5 * case.step * pull
    return q, p, start.g, start.xi, 0.0, start.xi[:2], np.zeros(7)


def _disk(case, start):
    plane, wheel = start.g
    unknowns = start.xi[0], start.xi[3]
    return _motion(plane), wheel[:, 0], start.momentum, unknowns, np.zeros(9), _angle(plane), _angle(wheel)


def _map(case, start):
    carry, _ = jax.jit(case.integrator.start)(case.system, case.state, case.step)
    if case.integrator.order == "exact":
        return tuple(carry.level)
    s = carry.step
    return carry.q, carry.m, carry.phase, s.p, s.r, s.a, s.f, s.C, carry.axes


def _upper(system):
    return system.inertia[np.triu_indices(3)]


def _sleigh_parameters(system):
    return system.inertia[0, 0], system.inertia[1, 1], system.inertia[0, 2], -system.inertia[0, 1]


def _disk_parameters(system):
    turning, mass, _, rolling = np.diag(system.inertia)
    row = next(row for row in np.asarray(system.annihilator) if row[3])
    return mass, rolling, turning, system.subspace[1, 1], row[1]


def _body(system):
    return system.inertia, np.linalg.inv(system.inertia)


def _inverse(system):
    return (np.linalg.inv(system.inertia),)


def suslov(lagrangian: str | Callable = "moser-veselov", step: float = 0.05) -> Case:
    """The generic Suslov body; a function stands for a discrete Lagrangian that a user wrote, differentiated by JAX."""
    system = da.models.suslov(GENERIC)
    source = "suslov_cayley" if lagrangian == "retraction" else "suslov"
    name = {"moser-veselov": "Suslov, Moser-Veselov", "retraction": "Suslov, Cayley"}.get(
        str(lagrangian), "Suslov, own Lagrangian"
    )
    state = system.state(momentum=[3.0, 2.0])
    return Case(name, system, da.EulerPoincareSuslov(lagrangian), state, step, source, _upper, _displaced)


def sleigh(step: float = 0.05) -> Case:
    system = da.models.chaplygin_sleigh(1.0, 1.0, 0.3, 0.2)
    method, state = da.EulerPoincareSuslov("moser-veselov"), system.state(xi=[0.5, -1.0, 0.0])
    return Case("Chaplygin sleigh", system, method, state, step, "sleigh", _sleigh_parameters, _sleigh)


def particle(*defines: str) -> Case:
    system = da.models.nonholonomic_particle("harmonic")
    state = system.state([0.3, 0.5, -0.2], [1.1, 0.7, 0.55])
    name = "particle, C explicit" if defines else "particle"
    method = da.LagrangeDAlembert(node=0.5, nodes="velocity")
    return Case(name, system, method, state, 0.1, "particle", lambda _: (0.0,), _particle, defines)


def disk() -> Case:
    system = da.models.vertical_disk(radius=0.7)
    state = system.state(xi=[0.8, 0.7, 0.0, 1.0])
    return Case("rolling disk", system, da.LagrangeDAlembert(), state, 0.1, "disk", _disk_parameters, _disk)


def body() -> Case:
    system = da.models.rigid_body([0.6, 0.8, 1.0])
    method, state = da.EulerPoincareSuslov("moser-veselov"), system.state(momentum=[1.8, 0.4, -0.9])
    return Case("rigid body, Newton", system, method, state, 0.1, "body", _body, _displaced)


def body_map(order: int | str) -> Case:
    system = da.models.rigid_body([0.6, 0.8, 1.0])
    source = "body_exact" if order == "exact" else "body_map"
    name, state = f"rigid body, {order}", system.state(momentum=[1.8, 0.4, -0.9])
    return Case(name, system, DiscreteMoserVeselov(order=order), state, 0.1, source, _inverse, _map)


def all_cases() -> list[Case]:
    return [
        suslov(),
        suslov(moser_veselov),
        suslov("retraction"),
        sleigh(),
        particle(),
        particle("-DEXPLICIT"),
        disk(),
        body(),
        body_map(2),
        body_map("exact"),
    ]
