"""A system of real size, the Whipple bicycle of tests/bicycle.py: what the first call costs, and a step then.

`first` is processor time of the first run of ten steps in this process without a cache on disk: tracing, lowering and
LLVM. `operations` is the length of the program, `of a step` what one step computes (one iteration where it iterates).
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
from _timing import table

import dalembert as da
from dalembert import integrators
from dalembert.kernels import lowering, problem

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


def main() -> None:
    programs = []
    lower = problem.lower
    problem.lower = lambda *args, **options: programs.append(lower(*args, **options)) or programs[-1]
    system = bicycle.make_bicycle()
    q, v = bicycle.on_the_road(system, 5.0, lean=0.05, steer=0.02, lean_rate=0.3)
    rows = []
    for name, call in {
        "system.acceleration": lambda: system.acceleration(0.0, q, v),
        "system.project": lambda: system.project(q, v),
        "system.state": lambda: system.state(q, v),
        "da.mechanics.hamel": lambda: da.mechanics.hamel(system, q),
    }.items():
        first, _ = seconds(call)
        later = min(seconds(call)[0] for _ in range(20))
        rows.append([name, f"{first:.2f}", "", "", f"{1e6 * later:.0f}"])
    state = system.state(q, v)
    for name, method in METHODS.items():
        programs.clear()
        first, _ = seconds(lambda: da.simulate(system, method, state, step=0.01, steps=10, backend="llvm").check())
        step = max((each.program for each in programs), key=lambda program: program.operations)
        short, long = (
            min(seconds(lambda: da.simulate(system, method, state, step=1e-4, steps=n))[0] for _ in range(3))
            for n in (10, 1010)
        )
        length = sum(1 for _ in lowering.operations(step))
        rows.append([name, f"{first:.2f}", str(length), str(step.operations), f"{1e6 * (long - short) / 1000:.0f}"])
    table(["bicycle on R^8", "first s", "operations", "of a step", "then us"], rows)


if __name__ == "__main__":
    main()
