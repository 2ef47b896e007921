"""A process that meets ever new Lagrangians keeps its memory: what nobody uses any more is given back.

`python tests/kernels/test_long_life.py 10000` runs as many of them and prints the memory as it goes;
`DALEMBERT_LAGRANGIANS=10000` has the test do so.
"""

import gc
import os
import subprocess
import sys
import time

import pytest

LAGRANGIANS = 400
OPTIMISED = 150
"""Programs for which LLVM's passes run where Lagrangians are few: a process of users has 1,000 such programs."""


def _memory() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def _simulate(k: float) -> None:
    import jax.numpy as jnp

    import dalembert as da

    own = da.System(da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v * (1 + 1e-3 * k) - jnp.cos(q[0] + k) * q[1])
    da.simulate(own, da.RungeKutta(), own.state([0.1, 0.2], xi=[1.0, 0.5]), step=0.01, steps=10).check()


def _live(lagrangians: int) -> None:
    """Print the memory twenty times, and in the end what a Lagrangian of the second half left behind, in MiB."""
    from dalembert.kernels import llvm

    if lagrangians <= 2 * llvm.MAX_OPTIMISED_PROGRAMS:
        llvm.MAX_OPTIMISED_PROGRAMS = OPTIMISED
    half = lagrangians // 2
    sizes = {}
    for done in range(1, lagrangians + 1):
        _simulate(float(done))
        if done % max(1, lagrangians // 20) == 0 or done in (half, lagrangians):
            gc.collect()
            sizes[done] = _memory()
            line = f"{done} Lagrangians, {sizes[done]:.0f} MiB, {time.process_time():.0f} s"
            print(line, file=sys.stderr, flush=True)
    print((sizes[lagrangians] - sizes[half]) / (lagrangians - half))


@pytest.mark.heavy
def test_lagrangians_that_are_not_used_any_more_are_forgotten():
    """5.5 MiB each before programs, code and traces were given back, 0.2 while LLVM's passes ran for every program."""
    count = os.environ.get("DALEMBERT_LAGRANGIANS", str(LAGRANGIANS))
    done = subprocess.run([sys.executable, __file__, count], capture_output=True, text=True, check=True)
    print(done.stderr)
    print(f"{float(done.stdout):.3f} MiB a Lagrangian")
    assert float(done.stdout) < 0.1


if __name__ == "__main__":
    _live(int(sys.argv[1]) if len(sys.argv) > 1 else LAGRANGIANS)
