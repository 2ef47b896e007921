"""Taylor series of systems of every size: processor time and error reached at tolerances from 1e-4 to 1e-15.

One call of `simulate` over a unit of time, which is one step in substeps of the method's own choice, from the state
where the examples of `dalembert.models` begin; only the last state is kept, and compilation is not counted. The error
is the largest of configuration and velocity, relative to 1 + |y|, against the same method at 1e-16 in two steps. How
far `dormand-prince` at 1e-14 is from that stands beside it: another method, with another form of the equations.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np
import size
from _timing import once, table
from counts import start_model

import dalembert as da
from dalembert.integrators import METHODS

TOLERANCES = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12, 1e-15)
MODELS = ("rolling-disk", "snakeboard", "car", "rattleback", "hinged-sleighs", "skate-on-ellipsoid", "bicycle")
DURATION = 1.0


def run(system, state, method: str, tolerance: float, steps: int = 1) -> da.Trajectory:
    integrator = METHODS[method].make({"tolerance": tolerance})
    return da.simulate(system, integrator, state, step=DURATION / steps, steps=steps, save_every=steps, backend="llvm")


def last(trajectory: da.Trajectory) -> np.ndarray:
    state = jax.tree.map(lambda leaf: np.ravel(leaf[-1]), (trajectory.g, trajectory.xi))
    return np.concatenate(jax.tree.leaves(state))


def measured(name: str) -> list[str]:
    system, state = size.make_tractor() if name == "five trailers" else start_model(name)
    truth = last(run(system, state, "taylor", 1e-16, 2))
    off = lambda found: np.max(np.abs(last(found) - truth) / (1 + np.abs(truth)))
    row = [name]
    for tolerance in TOLERANCES:
        found = run(system, state, "taylor", tolerance)
        seconds = once(lambda tolerance=tolerance: run(system, state, "taylor", tolerance))
        row.append(f"{1e6 * seconds:.0f} us, {off(found):.0e}")
    jax.clear_caches()
    return [*row, f"{off(run(system, state, 'dormand-prince', 1e-14)):.0e}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="systems whose names contain this")
    given = parser.parse_args()
    names = [name for name in (*MODELS, "five trailers") if given.only in name]
    table(["one unit of time", *(f"{t:.0e}" for t in TOLERANCES), "dormand-prince"], [measured(name) for name in names])


if __name__ == "__main__":
    main()
