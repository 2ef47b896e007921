"""A process that meets ever new Lagrangians keeps its memory: what nobody uses any more is given back."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc
import jax.numpy as jnp
import dalembert as da
from dalembert.kernels import llvm

llvm.MAX_OPTIMISED_PROGRAMS = 150

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

def simulate(k):
    own = da.System(da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v * (1 + 1e-3 * k) - jnp.cos(q[0] + k) * q[1])
    return da.simulate(own, da.RungeKutta(), own.state([0.1, 0.2], xi=[1.0, 0.5]), step=0.01, steps=10).check()

sizes = []
for k in range(400):
    simulate(float(k))
    if k in (199, 399):
        gc.collect()
        sizes.append(memory())
print((sizes[1] - sizes[0]) / 200)
"""


@pytest.mark.heavy
def test_lagrangians_that_are_not_used_any_more_are_forgotten():
    """5.5 MiB each before programs, code and traces were given back, 0.2 while LLVM's passes ran for every program."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    print(f"{float(done.stdout):.2f} MiB a Lagrangian")
    assert float(done.stdout) < 0.1
