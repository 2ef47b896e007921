"""One step, three backends: native code, XLA, and the CUDA source compiled for the CPU agree on every model
and method.
"""

from __future__ import annotations

import os
import shutil
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulation import compile_for_cpu
from registry import sampled

import dalembert as da
from dalembert.integrators import METHODS
from dalembert.io.config import build_state
from dalembert.kernels import LoweringError, evaluate, run_problem
from dalembert.kernels import cuda as csource
from dalembert.kernels import make_problem as problem
from dalembert.kernels.llvm import NativeSession
from dalembert.kernels.problem import Buffers, make_layout
from dalembert.mechanics import moser_veselov
from dalembert.simulation import run_kernel as functions

MODELS = da.models.MODELS
COMPILER = shutil.which(os.environ.get("CC", "cc"))


DEFAULT = [(model.name, model.method["name"]) for model in MODELS.values()]
# Tracing and compiling cost seconds a pair. The fast tests take models whose programs differ in kind; `make verify`
# takes every model
# with its own method, and every method on models of each kind: by XLA, which compiles for seconds, on three of them.
BY_XLA = ("rigid-body", "suslov", "nonholonomic-particle")
BY_SOURCE = (*BY_XLA, "chaplygin-sleigh", "knife-edge", "contact-oscillator")
OF_EACH_KIND = (*BY_XLA, "knife-edge", "rolling-ball")
STEPPING = [method for method in METHODS if method != "reference"]


def chosen(names):
    return [case for case in DEFAULT if case[0] in names]


def others(names, kinds):
    every = [(model, method) for model in kinds for method in STEPPING]
    return [case for case in dict.fromkeys(DEFAULT + every) if case not in chosen(names)]


@cache
def loop_and_state(observe):
    return lambda consts, loop: (loop, observe(consts, loop).state)


def native_run(model_name: str, method_name: str, steps: int):
    """(functions, consts, the loops before each step, those after it, the states seen then), natively; skips what does
    not go together.
    """
    model = MODELS[model_name]
    system = model.make(model.example)
    state = build_state(system, model.initial, {})
    options = {k: v for k, v in model.method.items() if k != "name"} if method_name == model.method["name"] else {}
    integrator = METHODS[method_name].make(options)
    try:
        integrator.require(system, state, model.step)
    except da.InvalidInput as error:
        pytest.skip(f"{method_name} does not take this system: {error}")
    parts = functions(integrator, False)
    consts = (system, jnp.asarray(model.step))
    try:
        begin = evaluate(parts.begin, consts, (state, None), backend="llvm")
        described = problem(parts.advance, loop_and_state(parts.observe), consts, begin)
        native = run_problem(described, saves=steps, backend="llvm")
    except LoweringError as error:
        pytest.skip(f"too large for native code, runs on XLA: {error}")
    assert np.all(np.asarray(native.carry.status) == 0)
    after, states = native.records
    before = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[None], b[:-1]]), begin, after)
    return parts, consts, before, after, states


def compare_source(model: str, method: str, steps: int) -> None:
    """Every step of a native run, repeated from the same loop by the emulated CUDA source: bit for bit."""
    parts, consts, before, after, _ = native_run(model, method, steps)
    described = problem(parts.advance, loop_and_state(parts.observe), consts, before, lanes=steps)
    lowered = described.lower()
    text = csource.cuda_source(lowered.program, make_layout(described, lowered))
    session = NativeSession("emulated", compile_for_cpu(text), Buffers(described, lowered, 1), 1, 1)
    session.reserve(1)
    session.run(0, 1, 1, 0)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(session.carry()), strict=True):
        np.testing.assert_array_equal(a, b)


def compare_xla(model: str, method: str, steps: int) -> None:
    """Every step of a native run, repeated from the same loop by XLA: equal but for round-off in the observed
    states.
    """
    parts, consts, before, _, states = native_run(model, method, steps)

    def step(inner, loop):
        return parts.observe(inner, parts.advance(inner, loop, None)).state

    by_xla = jax.jit(jax.vmap(step, in_axes=(None, 0)))(consts, before)
    for a, b in zip(jax.tree.leaves(states), jax.tree.leaves(by_xla), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13 * max(1.0, np.abs(np.asarray(b)).max()))


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(("model", "method"), chosen(BY_SOURCE))
def test_the_cuda_source_is_the_native_code(model, method):
    compare_source(model, method, 20)


@pytest.mark.parametrize(("model", "method"), chosen(BY_XLA))
def test_xla_agrees_with_native_code(model, method):
    compare_xla(model, method, 50)


@pytest.mark.heavy
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(("model", "method"), others(BY_SOURCE, OF_EACH_KIND))
def test_the_cuda_source_is_the_native_code_of_every_model_and_method(model, method):
    compare_source(model, method, 100)


@pytest.mark.heavy
@pytest.mark.parametrize(("model", "method"), others(BY_XLA, BY_XLA))
def test_xla_agrees_on_every_model_and_method(model, method):
    compare_xla(model, method, 100)


REGULAR = (
    "rigid-body",
    "suslov",
    "chaplygin-sleigh",
    "nonholonomic-particle",
    "vertical-disk",
    "knife-edge",
    "ball-on-table",
)


@pytest.mark.heavy
@pytest.mark.parametrize(("model", "method"), chosen(REGULAR))
def test_a_thousand_steps_agree_where_the_motion_is_not_chaotic(model, method):
    """Round-off grows with time at most: the end of 1000 steps is the same on both backends to 1e-10 of its size."""
    given, chosen_model = MODELS[model].initial, MODELS[model]
    system = chosen_model.make(chosen_model.example)
    state = system.state(given.get("configuration"), given.get("velocity"), momentum=given.get("momentum"))
    integrator = METHODS[method].make({k: v for k, v in chosen_model.method.items() if k != "name"})
    ends = [
        da.simulate(system, integrator, state, step=chosen_model.step, steps=1000, save_every=1000, backend=backend)
        for backend in ("llvm", "xla")
    ]
    for a, b in zip(*(jax.tree.leaves((end.g, end.xi, end.momentum)) for end in ends), strict=True):
        np.testing.assert_allclose(a[-1], b[-1], rtol=0, atol=1e-10 * max(1.0, np.abs(np.asarray(b)).max()))


@pytest.mark.parametrize("width", sampled([4, 1, 8, 16]))
def test_lanes_are_single_runs_bit_for_bit(width):
    """Thirteen Suslov bodies, one of which fails at its sixth step: the others do not notice, at any vector width."""
    system = da.models.suslov([[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]])
    scale = jnp.linspace(0.1, 0.9, 13).at[7].set(1.0)
    momenta = scale[:, None] * jnp.array([41.07400078, -99.38251558])
    parts = functions(da.EulerPoincareSuslov(), False)
    consts = (system, jnp.asarray(0.0328))
    states = jax.vmap(lambda m: system.state(momentum=m))(momenta)
    loops = jax.jit(jax.vmap(parts.begin, in_axes=(None, (0, None))))(consts, (states, None))
    described = problem(parts.advance, parts.observe, consts, loops, lanes=13)
    lanes = run_problem(described, saves=40, backend="llvm", width=width)
    assert np.flatnonzero(lanes.carry.status).tolist() == [7] and lanes.carry.steps[7] == 5
    for k in range(13):
        single = problem(parts.advance, parts.observe, consts, jax.tree.map(lambda leaf: leaf[k], loops))
        alone = run_problem(single, saves=40, backend="llvm")
        for a, b in zip(jax.tree.leaves(alone.records), jax.tree.leaves(lanes.records), strict=True):
            np.testing.assert_array_equal(a, b[k])


def test_a_lagrangian_of_ones_own_is_the_named_one():
    """Written as a function of W and differentiated, it is the same method: alone and in lanes, natively and by XLA."""
    system = da.models.suslov([[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]])
    states = jax.vmap(lambda scale: system.state(momentum=scale * jnp.array([3.0, 2.0])))(jnp.array([0.7, 1.0]))
    state, options = jax.tree.map(lambda leaf: leaf[1], states), {"step": 0.05, "steps": 200}
    own, named = da.EulerPoincareSuslov(moser_veselov), da.EulerPoincareSuslov()
    run = da.simulate(system, own, state, **options, backend="llvm")
    both = da.ensemble(system, own, states, **options, backend="llvm")
    assert np.all(run.final.status == 0) and np.max(run.residual) < 1e-14
    for name in ("g", "xi", "momentum"):
        np.testing.assert_array_equal(getattr(both, name)[1], getattr(run, name))
        for other in (
            da.simulate(system, named, state, **options, backend="llvm"),
            da.simulate(system, own, state, **options, backend="xla"),
        ):
            np.testing.assert_allclose(getattr(other, name), getattr(run, name), rtol=0, atol=1e-12)
