"""On a machine with a GPU: the kernel there computes the bits that the same text computes on the CPU."""

import os
import shutil

import jax
import numpy as np
import pytest
import toys
from emulation import compile_for_cpu

from dalembert.kernels import cuda, make_problem, run_problem
from dalembert.kernels.llvm import NativeSession
from dalembert.kernels.problem import Buffers, make_layout

jax.config.update("jax_enable_x64", True)
pytestmark = [
    pytest.mark.skipif(not cuda.has_gpu(), reason="no GPU, or no CuPy"),
    pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler to compare with"),
]


def test_the_gpu_computes_the_bits_of_the_emulation():
    lanes = 1000
    carry = jax.tree.map(lambda leaf: np.stack([leaf] * lanes), toys.start())
    carry["x"] = carry["x"] + np.random.default_rng(0).normal(size=(lanes, 3))
    carry["x"][5] = 49.9
    problem = make_problem(toys.advance, toys.observe, toys.consts(), carry, lanes=lanes)
    lowered = problem.lower()
    emulated = compile_for_cpu(cuda.cuda_source(lowered.program, make_layout(problem, lowered)))
    session = NativeSession("emulated", emulated, Buffers(problem, lowered, 1), 1, 1)
    session.reserve(20)
    session.run(0, 20, 3, 0)
    on_gpu = run_problem(problem, saves=20, save_every=3, backend="cuda")
    assert on_gpu.backend == "cuda" and on_gpu.carry["status"][5] == 1
    for a, b in zip(jax.tree.leaves(session.records(20)), jax.tree.leaves(on_gpu.records), strict=True):
        np.testing.assert_array_equal(a, b)
