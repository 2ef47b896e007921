"""Plans beside CasADi with IPOPT on the same problem, both warm, in processor time of one run.

Problem 7 of the issue: a unicycle with an offset centre goes 1 m sideways in 5 s, from rest to rest. CasADi has the
midpoint rule in (x, y, theta, v, w), this program the Lagrange-d'Alembert method on SE(2). Then: 1000 steps against 50,
many plans at once against one after another, the update of a receding horizon, and the first plan in a new process.
Targets (issue 20): 5 times as fast as CasADi, 25, 50 (lanes and H200), 1 ms, 5 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _timing import interleaved, median, ratio, table, verdict

import dalembert as da
from dalembert.kernels import has_gpu
from dalembert.papers import control

MASS, MOMENT, OFFSET, DURATION = 1.0, 0.4, 0.2, 5.0
WARM_SECONDS = 4.0
IN_A_ROW = 5  # calls, as a loop makes them: a first call after another program's finds cold caches


def lagrangian(t: Any, g: Any, xi: Any, p: Any) -> Any:
    w, v1, v2 = xi
    m, J, a = p
    return 0.5 * (J + m * a**2) * w**2 + 0.5 * m * (v1**2 + v2**2) + m * a * w * v2


def unicycle() -> da.System:
    return da.System(
        da.SE2(),
        lagrangian,
        constraint=lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]),
        force=lambda t, g, xi, u, p: jnp.stack([u[1], u[0], jnp.zeros(())]),
        parameters=jnp.array([MASS, MOMENT, OFFSET]),
        inputs=("force", "torque"),
    )


def aside(y: float) -> Any:
    return np.array([[1.0, 0.0, 0.0], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def effort(t: Any, g: Any, xi: Any, u: Any) -> Any:
    return u @ u


def make_plan(system: da.System, steps: int, start: Any = None, backend: str = "auto") -> Any:
    goal, first = system.state(aside(1.0), np.zeros(3)), aside(0.0) if start is None else start
    return da.plan(system, start=first, goal=goal, steps=steps, duration=DURATION, cost=effort, backend=backend)


def make_starts(system: da.System, count: int) -> Any:
    """States beside each other, as one state whose arrays have an axis in front."""
    one = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], count, axis=0), system.state(aside(0), [0, 0, 0]))
    return one._replace(g=np.stack([aside(0.3 * k / count) for k in range(count)]))


def casadi_solver(steps: int) -> Callable[[], Any] | None:
    """The same problem as its users write it; the first guess is like ours. None where CasADi is not installed."""
    try:
        import casadi as ca
    except ImportError:
        return None
    h, opti = DURATION / steps, ca.Opti()
    X, U = opti.variable(5, steps + 1), opti.variable(2, steps)
    for k in range(steps):
        _, _, theta, v, w = ca.vertsplit((X[:, k] + X[:, k + 1]) / 2)
        F, torque = U[0, k], U[1, k]
        rate = ca.vertcat(
            v * ca.cos(theta), v * ca.sin(theta), w, F / MASS + OFFSET * w**2,
            (torque - MASS * OFFSET * v * w) / (MOMENT + MASS * OFFSET**2),
        )  # fmt: skip
        opti.subject_to(X[:, k + 1] == X[:, k] + h * rate)
    opti.subject_to(X[:, 0] == 0)
    opti.subject_to(X[:, steps] == ca.vertcat(0, 1, 0, 0, 0))
    opti.minimize(h * ca.sumsqr(U))
    s = np.linspace(0.0, 1.0, steps + 1)
    opti.set_initial(X[2, :], 0.3 * np.sin(np.pi * s))
    opti.set_initial(X[1, :], s)
    opti.solver("ipopt", {"print_time": 0}, {"print_level": 0, "sb": "yes"})
    return opti.solve


def park_by_casadi(steps: int, guess: da.optimise.Plan) -> float:
    """The least cost of problem 6 (CONTROL.md) by the midpoint rule, from equations derived by hand.

    With the rear axle at (x, y), k = tan(delta)/L and w = k v: (M + J k^2) v' = F - k T - J k v delta'/(L cos^2 delta)
    and I (w' + delta'') = T; J is the moment of all masses about the rear axle, I that of the wheels.
    """
    import casadi as ca

    p, h, opti = {name: float(each) for name, each in guess.system.parameters.items()}, 30.0 / steps, ca.Opti()
    X, U = opti.variable(6, steps + 1), opti.variable(2, steps)
    J = p["inertia"] + p["mass"] * p["centre"] ** 2
    for k in range(steps):
        _, _, theta, delta, v, rate = ca.vertsplit((X[:, k] + X[:, k + 1]) / 2)
        bend, (F, T) = ca.tan(delta) / p["length"], ca.vertsplit(U[:, k])
        turning = v * rate / (p["length"] * ca.cos(delta) ** 2)
        push = (F - bend * T - J * bend * turning) / (p["mass"] + J * bend**2)
        swing = T / p["steering"] - bend * push - turning
        change = ca.vertcat(v * ca.cos(theta), v * ca.sin(theta), bend * v, rate, push, swing)
        opti.subject_to(X[:, k + 1] == X[:, k] + h * change)
    opti.subject_to(X[:, 0] == 0)
    opti.subject_to(X[:, steps] == ca.vertcat(0, 2, 0, 0, 0, 0))
    for rows, most in ((X[3, :], np.pi / 4), (U[0, :], 300.0), (U[1, :], 50.0)):
        opti.subject_to(opti.bounded(-most, rows, most))
    opti.minimize(1e-4 * h * ca.sumsqr(U))
    pose, wheel = map(np.asarray, guess.g)
    angles = [np.unwrap(np.arctan2(g[:, 1, 0], g[:, 0, 0])) for g in (pose, wheel)]
    times, known = np.linspace(0.0, 30.0, steps + 1), [*pose[:, :2, 2].T, *angles, *guess.xi[:, [1, 3]].T]
    for k, row in enumerate(known):
        opti.set_initial(X[k, :], np.interp(times, guess.t, row))
    for k, row in enumerate(guess.controls.T):
        opti.set_initial(U[k, :], np.interp(times[1:], guess.t[1:], row))
    opti.solver("ipopt", {"print_time": 0}, {"print_level": 0, "sb": "yes", "tol": 1e-9})
    return 1e4 * float(opti.solve().value(opti.f))


def referee_parking() -> None:
    """Problem 6 by CasADi beside our exhibit, both extrapolated."""
    table(["steps", "found"], [[str(row[1]), f"{row[2]:.1f}"] for row in control.parking().rows])
    costs = [park_by_casadi(steps, control.plan_parking(50, None)) for steps in (100, 200, 400)]
    rows = [[f"CasADi, {steps}", f"{cost:.1f}"] for steps, cost in zip((100, 200, 400), costs, strict=True)]
    table(["steps", "found"], [*rows, ["extrapolated", f"{costs[-1] + (costs[-1] - costs[-2]) / 3:.1f}"]])


def first_plan() -> float:
    """Seconds of a new process with an empty cache, from its start to its first plan; what it does after is not in it.

    (To end Python and JAX takes another half second.)
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    code = f"import os, sys; sys.path.insert(0, {folder!r}); import plan; plan.make_plan(plan.unicycle(), 50)"
    with tempfile.TemporaryDirectory() as cache:
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", f"{code}; os._exit(0)"], check=True, env=os.environ | {"DALEMBERT_CACHE": cache}
        )
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--plans", type=int, default=256)
    parser.add_argument("--parking", action="store_true", help="problem 6 beside CasADi alone")
    given = parser.parse_args()
    if given.parking:
        return referee_parking()
    system = unicycle()
    calls: dict[str, Callable[[], Any]] = {f"{n} steps": (lambda n=n: make_plan(system, n)) for n in (50, 1000)}
    for steps in (50, 1000):
        if (solve := casadi_solver(steps)) is not None:
            calls[f"CasADi, {steps} steps"] = solve
    for call in calls.values():  # until the loops are compiled with all effort, beside the work
        begin = time.perf_counter()
        while time.perf_counter() < begin + WARM_SECONDS:
            call()
    time.sleep(WARM_SECONDS)
    in_a_row = {name: (lambda call=call: [call() for _ in range(IN_A_ROW)]) for name, call in calls.items()}
    spent = {name: [each / IN_A_ROW for each in own] for name, own in interleaved(in_a_row, given.repeats).items()}
    rows = [[name, f"{1e3 * median(own):.1f} ms"] for name, own in spent.items()]
    print(f"cost {make_plan(system, 50).cost:.7f}, {make_plan(system, 50).iterations} iterations")
    for steps in (50, 1000):
        if (other := f"CasADi, {steps} steps") in spent:
            rows.append([f"{other} / ours", verdict(ratio(spent[other], spent[f"{steps} steps"]), 5.0, at_most=False)])
    rows.append(["1000 steps / 50 steps", verdict(ratio(spent["1000 steps"], spent["50 steps"]), 25.0, at_most=True)])
    starts = make_starts(system, given.plans)
    for backend in ("llvm", "cuda") if has_gpu() else ("llvm",):
        clock = time.perf_counter if has_gpu() else time.process_time
        begin = clock()
        made = make_plan(system, 50, starts, backend)
        rows.append([f"{backend}: the first {given.plans} plans", f"{clock() - begin:.1f} s"])
        many = []
        for _ in range(3):
            begin = clock()
            made = make_plan(system, 50, starts, backend)
            many.append(clock() - begin)
        rows.append([f"{backend}: {given.plans} plans at once", f"{1e3 * median(many):.0f} ms"])
        name = f"{backend}: {given.plans} plans one by one / at once"
        rows.append([name, verdict(given.plans * median(spent["50 steps"]) / median(many), 50.0, at_most=False)])
        rows.append([f"{backend}: of these optimal", str(made.status.count("optimal"))])
    plan = make_plan(system, 50)
    tracker, state = da.track(plan, horizon=30), system.state(aside(0.01), np.zeros(3))
    tracker.control(0, state)
    update = [interleaved({"": lambda k=k: tracker.control(k, state)}, 1)[""][0] for k in range(1, 20)]
    rows.append(["update with a horizon of 30", f"{1e3 * median(update):.2f} ms"])
    rows.append(["first plan in a new process", f"{first_plan():.1f} s"])
    table(["", ""], rows)


if __name__ == "__main__":
    main()
