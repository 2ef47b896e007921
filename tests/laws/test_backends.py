"""One step, three backends: native code, XLA, and the CUDA source compiled for the CPU agree on every model and method."""

from __future__ import annotations

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dalembert as da
from dalembert.integrators.registry import METHODS
from dalembert.kernels import csource, cuda
from dalembert.kernels.buffers import Buffers, layout_of
from dalembert.kernels.native import NativeSession
from dalembert.kernels.problem import problem
from dalembert.kernels.program import LoweringError
from dalembert.kernels.run import run
from dalembert.loop import functions

MODELS = da.models.MODELS
COMPILER = shutil.which(os.environ.get("CC", "cc"))


def example(model):
    system = model.make(model.example)
    given = dict(model.initial)
    return system, system.state(given.get("configuration"), given.get("velocity"), momentum=given.get("momentum"))


def fits(model, method) -> bool:
    if method.name == "reference":  # it has no step
        return False
    try:
        method.make({}).require(*example(model), model.step)
    except da.InvalidInput:
        return False
    return True


DEFAULT = [(model.name, model.method["name"]) for model in MODELS.values()]
ALL = [(m.name, k.name) for m in MODELS.values() for k in METHODS.values() if fits(m, k)]
REST = [case for case in ALL if case not in DEFAULT]


def whole(consts, loop):
    return loop


def compare(model_name: str, method_name: str, steps: int) -> None:
    """Every step of a native run, repeated from the same loop by XLA and by the emulated CUDA source, and the ends of the runs."""
    model = MODELS[model_name]
    system, state = example(model)
    options = {k: v for k, v in model.method.items() if k != "name"} if method_name == model.method["name"] else {}
    integrator = METHODS[method_name].make(options)
    parts = functions(integrator, False)
    consts = (system, jnp.asarray(model.step))
    begin = jax.jit(parts.begin)(consts, (state, None))
    try:
        native = run(parts.advance, whole, consts, begin, saves=steps, backend="llvm")
    except LoweringError as error:
        pytest.skip(f"too large for native code, runs on XLA: {error}")
    before = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[None], b[:-1]]), begin, native.records)
    by_xla = jax.jit(jax.vmap(parts.advance, in_axes=(None, 0, None)))(consts, before, None)
    assert np.all(np.asarray(native.loop.status) == 0)
    states = jax.jit(jax.vmap(lambda inner, loop: parts.observe(inner, loop).state, in_axes=(None, 0)))
    for a, b in zip(jax.tree.leaves(states(consts, native.records)), jax.tree.leaves(states(consts, by_xla)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13 * max(1.0, np.abs(np.asarray(b)).max()))
    if COMPILER is not None:
        described = problem(parts.advance, whole, consts, before, None, steps, None, 1)
        lowered = described.lowered()
        text = csource.source(lowered.program, layout_of(described, lowered))
        session = NativeSession("emulated", cuda.emulated(text), Buffers(described, lowered, 1), 1, 1)
        session.reserve(1)
        session.run(0, 1, 1, 0)
        emulated = session.loop()
        for a, b in zip(jax.tree.leaves(native.records), jax.tree.leaves(emulated), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("model", "method"), DEFAULT)
def test_backends_agree_on_every_model(model, method):
    compare(model, method, 50)


@pytest.mark.heavy
@pytest.mark.parametrize(("model", "method"), REST)
def test_backends_agree_on_every_pair(model, method):
    compare(model, method, 200)


@pytest.mark.parametrize("width", [1, 4, 8, 16])
def test_lanes_are_single_runs_bit_for_bit(width):
    """Thirteen Suslov bodies, one of which fails at its sixth step: the others do not notice, at any vector width."""
    system = da.models.suslov([[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]])
    scale = jnp.linspace(0.1, 0.9, 13).at[7].set(1.0)
    momenta = scale[:, None] * jnp.array([41.07400078, -99.38251558])
    parts = functions(da.EulerPoincareSuslov(), False)
    consts = (system, jnp.asarray(0.0328))
    states = jax.vmap(lambda m: system.state(momentum=m))(momenta)
    loops = jax.jit(jax.vmap(parts.begin, in_axes=(None, (0, None))))(consts, (states, None))
    lanes = run(parts.advance, parts.observe, consts, loops, saves=40, backend="llvm", lanes=13, width=width)
    assert np.flatnonzero(lanes.loop.status).tolist() == [7] and lanes.loop.steps[7] == 5
    for k in range(13):
        alone = run(parts.advance, parts.observe, consts, jax.tree.map(lambda leaf: leaf[k], loops), saves=40, backend="llvm")
        for a, b in zip(jax.tree.leaves(alone.records), jax.tree.leaves(lanes.records), strict=True):
            np.testing.assert_array_equal(a, b[k])
