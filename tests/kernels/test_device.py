"""Runs and gradients that stay on a GPU: one that this processor plays gives the bits of native code."""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulation import play_gpu
from test_transformations import GIVEN, START, STEPS, agree, loss, many, swing

from dalembert import kernels
from dalembert.kernels import adjoints

pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler to play a GPU")


@pytest.fixture
def gpu(monkeypatch):
    return play_gpu(monkeypatch)


def lanes(backend, save_every):
    """The losses of three starts, each with pushes of its own and the same parameters."""

    def total(p, s, u):
        own = u[None] * jnp.array([1.0, 0.5, -0.3])[:, None, None]
        each = jax.vmap(lambda a, b: loss(p, a, b, backend=backend, save_every=save_every))
        return (each(many(s), own) * jnp.array([1.0, 2.0, -1.0])).sum()

    return jax.grad(total, (0, 1, 2))


@pytest.mark.parametrize("save_every", [1, 3, STEPS])
def test_a_gradient_on_the_gpu_is_that_of_the_processor(save_every, gpu):
    expected = lanes("llvm", save_every)(*GIVEN)
    assert gpu.launches == 0
    agree(lanes("cuda", save_every)(*GIVEN), expected, 0)
    assert gpu.launches >= 2


@pytest.mark.parametrize("save_every", [1, 3, STEPS])
def test_what_does_not_fit_on_the_gpu_is_computed_again(save_every, gpu, monkeypatch):
    expected = lanes("llvm", save_every)(*GIVEN)
    for steps in (1, 5, 7):
        adjoints.memory.entries.clear()
        monkeypatch.setattr(adjoints.NativeAdjoint, "segment_steps", steps)
        agree(lanes("cuda", save_every)(*GIVEN), expected, 0)


def test_a_transpose_on_the_gpu_takes_what_its_run_kept(gpu, monkeypatch):
    gradient = lanes("cuda", 1)
    gradient(*GIVEN)
    before = gpu.launches
    gradient(*GIVEN)
    once = gpu.launches - before
    monkeypatch.setattr(adjoints.memory, "take", lambda key, given: None)
    gradient(*GIVEN)
    assert gpu.launches - before - once > once


def test_a_run_on_the_gpu_keeps_its_bits(gpu):
    carry = {**START, **many({"q": START["q"], "v": START["v"]}), "count": np.zeros(3, int)}
    options = {"inputs": GIVEN[2], "parameters": GIVEN[0], "lanes": 3, "save_every": 2}
    on_gpu, on_cpu = (kernels.run(swing, carry, STEPS, backend=backend, **options) for backend in ("cuda", "llvm"))
    assert on_gpu.backend == "cuda" and gpu.launches
    agree((on_gpu.carry, on_gpu.records), (on_cpu.carry, on_cpu.records), 0)
