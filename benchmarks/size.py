"""Systems of real size: what the first call costs, and a step then.

The Whipple bicycle as a user writes it (R^8, tests/bicycle.py) and as a mechanism (SE(3) x R^3, tests/mechanisms.py), a
tractor with five trailers, written by hand (R^9) and as a mechanism (SE(2) x R^13), and a chain of ten pendulums
(R^20); `python benchmarks/size.py chain tractor` takes only those. `first` is processor time of the first call in this
process without a cache on disk: tracing, lowering and LLVM; of methods it is a run of ten steps. `operations` is the
length of the program, `of a step` what one step computes (one iteration where it iterates).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["DALEMBERT_CACHE"] = tempfile.mkdtemp()
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import bicycle
import jax
import jax.numpy as jnp
import mechanisms
import numpy as np

import dalembert as da
from dalembert import integrators
from dalembert.kernels import LoweringError, lowering, problem

ROW = "{:38}{:>8}{:>12}{:>12}{:>10}"
METHODS = {
    "lagrange-dalembert": integrators.LagrangeDAlembert(),
    "runge-kutta": integrators.RungeKutta(),
    "dormand-prince": integrators.DormandPrince(),
    "taylor": integrators.Taylor(),
    "gauss, 1 stage": integrators.Gauss(1),
    "gauss, 2 stages": integrators.Gauss(2),
    "gauss, 3 stages": integrators.Gauss(3),
    "lobatto, 3 stages": integrators.Lobatto(3),
    "discrete-gradient": integrators.DiscreteGradient(),
    "projected-runge-kutta": integrators.ProjectedRungeKutta(),
    "tangent-lift": integrators.TangentLift(),
    "cotangent-lift": integrators.CotangentLift(),
    "adaptive": integrators.Adaptive(),
    "composition, order 8": integrators.Composition("kahan-li-8"),
}


def seconds(call) -> tuple[float, object]:
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


def make_bicycle():
    system = bicycle.make_bicycle()
    q, v = bicycle.on_the_road(system, 5.0, lean=0.05, steer=0.02, lean_rate=0.3)
    return system, system.state(q, v)


def make_drawn_bicycle():
    system = mechanisms.draw_bicycle().system()
    return system, system.state(speed=5.0, lean_rate=0.3)


def make_tractor(trailers=5):
    """(x, y, yaw, steering, yaw of every trailer): no axle slips."""

    def axles(q):
        back = 1.2 * jnp.stack([jnp.cos(q[4:]), jnp.sin(q[4:])], axis=1)
        return jnp.concatenate([q[None, :2], q[:2] - jnp.cumsum(back, axis=0)])

    def yaws(q):
        return jnp.concatenate([q[2:3], q[4:]])

    def lagrangian(t, q, v, p):
        (_, speeds), (_, rates) = jax.jvp(axles, (q,), (v,)), jax.jvp(yaws, (q,), (v,))
        return 1.5 * jnp.sum(speeds**2) + 0.2 * jnp.sum(rates**2) + 0.05 * v[3] ** 2 + 0.1 * v[2] * v[3]

    def slip(q, v):
        speeds, yaw = jax.jvp(axles, (q,), (v,))[1], yaws(q)
        front = speeds[0] + 1.5 * v[2] * jnp.stack([-jnp.sin(q[2]), jnp.cos(q[2])])
        across = lambda yaw, speed: jnp.cos(yaw) * speed[1] - jnp.sin(yaw) * speed[0]
        return jnp.concatenate([across(yaw, speeds.T), across(q[2] + q[3], front)[None]])

    n = 4 + trailers
    system = da.System(da.Euclidean(n), lagrangian, lambda t, q, p: jax.jacfwd(lambda v: slip(q, v))(jnp.zeros(n)))
    q = np.concatenate([[0.0, 0.0, 0.1, 0.2], 0.1 * (np.arange(trailers) - 2.0)])
    return system, system.state(q, system.project(q, np.array([1.0, 0.0, 0.0, 0.1, *[0.0] * trailers])))


def make_drawn_tractor():
    system = da.models.tractor(trailers=5)
    return system, system.state(speed=1.0, steer_rate=0.1)


def make_chain(links=10):
    """Points of unit mass on bars of length 1, let go from the horizontal."""

    def lengths(t, q, p):
        places = jnp.concatenate([jnp.zeros((1, 2)), q.reshape(links, 2)])
        return jnp.sum((places[1:] - places[:-1]) ** 2, axis=1) - 1.0

    def lagrangian(t, q, v, p):
        return 0.5 * v @ v - 9.81 * jnp.sum(q[1::2])

    system = da.System(da.Euclidean(2 * links), lagrangian, holonomic=lengths)
    return system, system.state(np.stack([np.arange(1.0, links + 1), np.zeros(links)], 1).ravel(), np.zeros(2 * links))


CASES = {
    "bicycle, R^8": make_bicycle,
    "bicycle, SE(3) x R^3": make_drawn_bicycle,
    "tractor and 5 trailers, R^9": make_tractor,
    "tractor and 5 trailers, SE(2) x R^13": make_drawn_tractor,
    "chain of 10 pendulums, R^20": make_chain,
}


def measure(name: str, make) -> None:
    programs = []
    lower = problem.lower
    problem.lower = lambda *args, **options: programs.append(lower(*args, **options)) or programs[-1]
    system, state = make()
    point = state.t, state.g, state.xi
    print(ROW.format(name, "first s", "operations", "of a step", "then us"), flush=True)
    for what, call in {
        "system.acceleration": lambda: system.acceleration(*point),
        "system.multipliers": lambda: system.multipliers(*point),
        "da.mechanics.hamel": lambda: da.mechanics.hamel(system, state.g),
        "da.nonholonomy": lambda: da.nonholonomy(system, state.g),
    }.items():
        first, _ = seconds(call)
        later = min(seconds(call)[0] for _ in range(20))
        print(ROW.format(what, f"{first:.2f}", "", "", f"{1e6 * later:.0f}"), flush=True)
    for what, method in METHODS.items():
        programs.clear()
        try:
            first, _ = seconds(lambda: da.simulate(system, method, state, step=0.002, steps=10, backend="llvm").check())
        except (ValueError, RuntimeError, LoweringError) as error:
            print(ROW.format(what, "", "", "", f"{type(error).__name__}: {error}"), flush=True)
            continue
        step = max((each.program for each in programs), key=lambda program: program.operations)
        short, long = (
            min(seconds(lambda: da.simulate(system, method, state, step=1e-4, steps=n))[0] for _ in range(3))
            for n in (10, 1010)
        )
        length = sum(1 for _ in lowering.operations(step))
        print(ROW.format(what, f"{first:.2f}", length, step.operations, f"{1e3 * (long - short):.0f}"), flush=True)
    problem.lower = lower
    print(flush=True)


def main() -> None:
    wanted = sys.argv[1:]
    for name, make in CASES.items():
        if not wanted or any(word in name for word in wanted):
            measure(name, make)


if __name__ == "__main__":
    main()
