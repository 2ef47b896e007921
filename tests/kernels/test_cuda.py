"""On a machine with a GPU: the kernel there computes the bits that the same text computes on the CPU."""

import os
import shutil

import jax
import numpy as np
import pytest
import toys
from emulation import compile_for_cpu

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.kernels import cuda, make_problem, run_problem
from dalembert.kernels.llvm import NativeSession
from dalembert.kernels.problem import Buffers, make_layout

jax.config.update("jax_enable_x64", True)
pytestmark = pytest.mark.skipif(not cuda.has_gpu(), reason="no GPU, or no CuPy")


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler to compare with")
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


def bodies(count):
    """A Suslov body and its states, on the host."""
    inertia = np.array([[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]])
    system = da.models.suslov(inertia, normal=[0.0, 0.0, 1.0])
    speed = np.linspace(0.1, 1.0, count)
    xi = np.stack([speed, -speed, 0.0 * speed], 1)
    return system, da.State(np.zeros(count), np.broadcast_to(np.eye(3), (count, 3, 3)).copy(), xi, xi @ inertia, xi)


def test_members_on_the_gpu_stay_there_and_have_the_bits_of_the_host():
    import cupy

    system, host = bodies(2**15)
    method, given = da.LagrangeDAlembert(), {"step": 0.01, "steps": 7, "save_every": 3}
    wanted = da.ensemble(system, method, host, backend="cuda", **given)
    for place in (cupy.asarray, jax.device_put):
        run = da.ensemble(system, method, jax.tree.map(place, host), **given)
        assert run.backend == "cuda" and cuda.on_gpu(run.g) and (run.status == "ok").all()
        for a, b in zip(jax.tree.leaves(run.records), jax.tree.leaves(wanted.records), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_refused_member_and_events_on_the_gpu():
    system, host = bodies(2**15)
    on_gpu = jax.tree.map(jax.device_put, host)
    with pytest.raises(InvalidInput, match="member 7"):
        da.ensemble(system, da.LagrangeDAlembert(), on_gpu._replace(xi=on_gpu.xi.at[7, 2].set(1.0)), step=0.01, steps=2)
    event = da.Event(lambda t, g, xi, p: t - 0.025, stop=True, name="later")
    run = da.ensemble(system, da.LagrangeDAlembert(), on_gpu, step=0.01, steps=5, events=[event])
    np.testing.assert_allclose(np.asarray(run.events["later"].t), 0.025, rtol=1e-12)
