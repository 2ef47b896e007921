"""A loop over the orders of a Taylor series, through memory: the same bits on every back end, and no more code."""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulation import compile_for_cpu

from dalembert.kernels import as_routine, cuda, lowering, make_problem, run_problem, solution_series, taylor
from dalembert.kernels.ir import Builder, Convolve, Repeat, Store, blocks
from dalembert.kernels.llvm import NativeSession
from dalembert.kernels.problem import Buffers, make_layout

jax.config.update("jax_enable_x64", True)
ORDER = 19


def field(c, y):
    x, v = y
    return v, -c * jnp.sin(x) / jnp.sqrt(1.0 + v * v) + 0.1 * jnp.exp(-x) * jnp.where(x > 0.2, x * v, v)


def advance(c, y, control):
    series = as_routine(lambda c, y: solution_series(field, c, y, ORDER))
    for _ in range(2):
        y = tuple(jnp.sum(series(c, y) * 0.05 ** jnp.arange(ORDER + 1.0)[:, None], axis=0))
    return y


def problem(lanes=None):
    shape = () if lanes is None else (lanes,)
    y = np.random.default_rng(1).normal(size=(2, *shape))
    return make_problem(lambda c, y, u: advance(c, y, u), lambda c, y: y, np.asarray(1.3), tuple(y), lanes=lanes)


@pytest.fixture
def loops(monkeypatch):
    monkeypatch.setattr(taylor, "MAX_WRITTEN_OPERATIONS", 0)


def test_a_program_does_not_grow_with_the_order(loops):
    lengths = []
    for order in (5, 30):
        step = make_problem(
            lambda c, y, u, order=order: tuple(solution_series(field, c, y, order)[order]),
            lambda c, y: y,
            np.asarray(1.3),
            (np.asarray(0.1), np.asarray(0.2)),
        )
        lowered = step.lower()
        found = [statement for block in blocks(lowered.program.advance) for statement in block.statements]
        (repeat,) = (each for each in found if isinstance(each, Repeat))
        assert repeat.last == order and any(isinstance(each, Convolve) for each in repeat.body.statements)
        assert lowered.memory == lowered.program.memory > order * 5
        assert any(isinstance(each, Store) for each in found)
        assert "convolve" in lowered.program.text and "repeat %" in lowered.program.text
        lengths.append(lowered.program.operations)
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize(("inline", "width"), [(24_000, 4), (24_000, 8), (24_000, None), (50, 4)])
def test_lanes_and_routines_have_the_bits_of_a_single_run(loops, monkeypatch, inline, width):
    monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", inline)
    many = problem(5)
    assert bool(many.lower().program.functions) == (inline == 50)
    together = run_problem(many, saves=4, backend="llvm", width=width).records
    start = np.stack(many.carry)
    for lane in range(5):
        y = tuple(np.asarray(x) for x in start[:, lane])
        single = make_problem(lambda c, y, u: advance(c, y, u), lambda c, y: y, np.asarray(1.3), y)
        alone = run_problem(single, saves=4, backend="llvm").records
        assert all(np.array_equal(a[lane], b) for a, b in zip(together, alone, strict=True))


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler")
@pytest.mark.parametrize("inline", [24_000, 50])
def test_the_c_of_a_gpu_has_the_bits_of_llvm(loops, monkeypatch, inline):
    monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", inline)
    many = problem(5)
    lowered = many.lower()
    emulated = compile_for_cpu(cuda.cuda_source(lowered.program, make_layout(many, lowered)))
    session = NativeSession("emulated", emulated, Buffers(many, lowered, 1), 1, 1)
    session.reserve(4)
    session.run(0, 4, 1, 0)
    native = run_problem(many, saves=4, backend="llvm").records
    assert all(np.array_equal(a, b) for a, b in zip(session.records(4), native, strict=True))


def test_a_large_memory_is_not_for_a_gpu(loops, monkeypatch):
    many = problem(5)
    lowered = many.lower()
    monkeypatch.setattr(cuda, "MAX_MEMORY", 10)
    with pytest.raises(taylor.LoweringError, match="does not fit on a GPU"):
        cuda.CudaSession(many, lowered)


def test_a_builder_that_selects_writes_no_branch():
    builder = Builder()
    condition, x, y = (builder.source("input", type) for type in ("i1", "f64", "f64"))
    builder.selects = True
    (chosen,) = builder.branch(condition, lambda: [builder.add(x, y)], lambda: [x])
    assert chosen.op == "select" and [each.op for each in builder.block.statements] == ["add", "select"]
