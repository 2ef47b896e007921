"""A long program has functions and loops instead of copies: the same bits, on every back end."""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulation import compile_for_cpu
from registry import sampled

from dalembert import kernels
from dalembert.kernels import cuda, ir, lowering, make_problem, run_problem
from dalembert.kernels.llvm import NativeSession
from dalembert.kernels.problem import Buffers, make_layout
from dalembert.kernels.transformations import SlopeRun

jax.config.update("jax_enable_x64", True)
STAGES = 6


def rate(p, x):
    """With a branch, a loop, a truth value among the arguments of a call inside a call, and terms of p alone."""
    weights = jnp.exp(jnp.sin(p)) * jnp.arange(1.0, 4.0)[:, None]
    turned = jax.lax.cond(x[0] > 0.2, lambda z: jnp.sin(z) * z[::-1], lambda z: jnp.cos(z) @ weights, x)
    shrink = lambda c: (c[0] * 0.5, c[1] * 0.9)
    _, turned = jax.lax.while_loop(lambda c: jnp.abs(c[0]) > 1.0, shrink, (x[1] * 3, turned))
    return routine_push(x[0] > 0.2, turned, p)


def push(forward, x, p):
    return jnp.where(forward, x, -x) * jnp.sum(p) + jnp.tanh(x)


routine_push, routine_rate = kernels.as_routine(push), kernels.as_routine(rate)


def advance(p, x, control):
    for k in range(STAGES):
        x = x + 0.1 * routine_rate(p, x + 0.01 * k)
    return x


def problem(lanes=None):
    x = np.linspace(-0.3, 0.5, 3) if lanes is None else np.random.default_rng(3).normal(size=(lanes, 3))
    p = np.array([0.3, -0.2, 0.1])
    return make_problem(lambda p, x, u: advance(p, x, u), lambda p, x: (x, x > 0), p, x, lanes=lanes)


def records(problem, session=None):
    found = run_problem(problem, saves=15, backend="llvm").records if session is None else session.records(15)
    return jax.tree.leaves(found)


@pytest.mark.parametrize("lanes", [None, 21])
def test_functions_compute_the_bits_of_what_is_written_out(lanes, monkeypatch):
    plain = problem(lanes)
    written_out = plain.lower().program
    monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", 50)
    called = problem(lanes)
    program = called.lower().program
    assert not written_out.functions and len(program.functions) == 2
    assert sum(len(f.body.statements) for f in program.functions) < written_out.operations / 3
    for a, b in zip(records(plain), records(called), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler")
def test_the_text_for_a_gpu_has_the_same_functions(monkeypatch):
    monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", 50)
    called = problem(7)
    lowered = called.lower()
    text = cuda.cuda_source(lowered.program, make_layout(called, lowered))
    assert text.count("ROUTINE void") == 2
    session = NativeSession("emulated", compile_for_cpu(text), Buffers(called, lowered, 1), 1, 1)
    session.reserve(15)
    session.run(0, 15, 1, 0)
    for a, b in zip(records(called), records(called, session), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_program_does_not_grow_with_its_stages(monkeypatch):
    sizes = []
    for stages in (3, 30):
        monkeypatch.setattr(f"{__name__}.STAGES", stages)
        monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", 50)
        program = problem().lower().program
        sizes.append(sum(1 for _ in lowering.operations(program)))
    assert sizes[1] - sizes[0] < 27 * 12  # each stage: 9 sums and products around the call, not its body


def test_what_follows_from_parameters_is_computed_before_the_run(monkeypatch):
    monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", 50)
    program = problem().lower().program
    assert sum(program.count("setup").values()) > 20  # exp(sin(p)), which no call computes again


def test_a_call_that_parameters_decide_is_computed_before_the_run(monkeypatch):
    """First of x and then of -p: a call in the setup would have no text, nor the values that its function reads."""

    def pushed(p, x, control):
        first = routine_sum(p, x)
        bend = routine_sum(p, -p) + routine_sum(p, 2 * p)
        return x + 0.01 * bend * first + routine_sum(p, bend * x)

    results = []
    for limit in (160_000, 50):
        monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", limit)
        advance = lambda p, x, u: pushed(p, x, u)
        posed = make_problem(advance, lambda p, x: x, np.linspace(0.1, 0.4, 3), np.linspace(-0.3, 0.5, 3))
        results.append((posed.lower().program, records(posed)[0]))
    (_, expected), (program, found) = results
    assert len(program.functions) == 1
    np.testing.assert_array_equal(found, expected)


def implicit(p, x, control):
    """Newton's method by rows and columns: Jacobian, elimination, stages as rows."""
    f = lambda y: y - x - 0.1 * jnp.sin(y[::-1]) * y - 0.01 * routine_sum(p, y)
    for _ in range(2):
        value, slope = kernels.columns(f, x)
        x = x - kernels.eliminate(slope, value[:, None])[0][:, 0]
    return x + 0.01 * jnp.sum(kernels.map_rows(routine_sum, jnp.outer(p, p), jnp.outer(p, x)), axis=0)


@pytest.mark.parametrize("directions", [None, 2, 3])
def test_the_slopes_of_what_is_written_out_are_written_out_too(directions, monkeypatch):
    """A loop over columns would find the slopes of all equations again in every turn: 10 runs instead of 3."""
    monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", 6500)  # of 6000, and 8000 with slopes
    x, front = np.linspace(-0.3, 0.5, 4), () if directions is None else (directions,)
    posed = make_problem(lambda p, x, u: implicit(p, x, u), lambda p, x: x, x + 0.1, x)
    pushed = SlopeRun(posed, [[True], [True], []], [np.ones((*front, 4))] * 2, directions).problem
    assert not posed.lower().long and not pushed.lower().long


def many_sines(p, y):
    return jnp.cos(y) * jnp.sum(jnp.sin(p)) + jnp.tanh(y) + jnp.exp(-y * y) + jnp.sin(jnp.cos(y))


routine_sum = kernels.as_routine(many_sines)


@pytest.mark.parametrize("lanes", sampled([None, 5]))
def test_loops_over_columns_rows_and_pivots_compute_the_same(lanes, monkeypatch):
    p = np.linspace(0.1, 0.4, 12)
    x = np.linspace(-0.3, 0.5, 12) if lanes is None else np.random.default_rng(3).normal(size=(lanes, 12))
    results = []
    monkeypatch.setattr(lowering, "MIN_LOOPED_ROWS", (12, 12))
    for limit in (160_000, 50):
        monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", limit)
        posed = make_problem(lambda p, x, u: implicit(p, x, u), lambda p, x: x, p, x, lanes=lanes)
        results.append((posed.lower().program, records(posed)[0]))
    (written_out, expected), (program, found) = results
    loops = [each for each in lowering.structures(program) if isinstance(each, kernels.Loop)]
    assert not list(lowering.structures(written_out)) and len(loops) >= 4
    assert sum(1 for _ in lowering.operations(program)) < written_out.operations / 2
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("other", "loops"), [(lambda x: x, 0), (lambda x: jnp.linalg.norm(x) * jnp.sin(x), 1)], ids=["nothing", "something"]
)
def test_an_elimination_is_a_loop_only_where_it_is_rarely_done(other, loops, monkeypatch):
    """One arm of two may be taken by steps that fail; where the other does nothing, it is that of all good steps."""
    monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", 50)
    monkeypatch.setattr(lowering, "MIN_LOOPED_ROWS", (12, 16))

    def step(p, x, control):
        solved = lambda x: kernels.eliminate(jnp.diag(2.0 + x) + jnp.outer(p, x), x[:, None])[0][:, 0]
        return jax.lax.cond(jnp.sum(x) > 0.0, solved, other, x)

    posed = make_problem(step, lambda p, x: x, np.linspace(0.1, 0.4, 12), np.linspace(-0.3, 0.5, 12))
    program = posed.lower().program
    found = [each for each in lowering.structures(program) if isinstance(each, kernels.Loop)]
    assert len(found) == loops and any(isinstance(each, ir.Branch) for each in lowering.structures(program))
    expected = run_problem(posed, saves=15, backend="xla").records
    np.testing.assert_allclose(records(posed)[0], expected, rtol=1e-12)


def test_what_a_function_gives_back_unchanged_is_known_without_a_call(monkeypatch):
    """The ones and zeros of a constant matrix still fold; calls with other literals share one function."""
    monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", 50)
    system = kernels.as_routine(lambda x, y: (jnp.eye(3), x, jnp.sin(x) * jnp.exp(y) + jnp.tanh(x + y)))

    def step(p, x, control):
        for y in (jnp.zeros(3), jnp.ones(3), x):
            matrix, same, new = system(x, y)
            x = matrix @ new + 0.5 * (same - x)
        return x

    program = make_problem(step, lambda p, x: x, np.ones(1), np.linspace(0.1, 0.3, 3)).lower().program
    (function,) = program.functions
    assert len(function.params) == 6 and len(function.values) == 3
    assert program.count()["mul"] == 3 * sum(v.op == "mul" for v in function.body.statements if hasattr(v, "op"))


def pulled_rows(p, x, control):
    """The transpose of rows, which JAX takes from the last to the first, in a loop that ends by a condition."""
    rows = lambda p, x: jnp.sum(kernels.map_rows(routine_sum, jnp.outer(p, p), jnp.outer(p, x)), axis=0)
    for _ in range(2):
        p_bar, x_bar = jax.vjp(rows, p, x)[1](jnp.cos(x))
        x = (
            x
            + 0.01 * jax.lax.while_loop(lambda y: y @ y > 1.0, lambda y: 0.5 * y + 0.01 * rows(p, y), x_bar)
            + 0.01 * p_bar
        )
    return x


def test_transposed_rows_are_a_loop_that_keeps_nothing_of_a_row(monkeypatch):
    """They were written out, and what each row kept for its transpose was selected again in a loop: 400,000 operations
    of a gradient by `gauss`, where 200,000 do."""
    p, results = np.linspace(0.1, 0.4, 6), []
    for limit in (160_000, 50):
        monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", limit)
        advance = lambda p, x, u: pulled_rows(p, x, u)
        posed = make_problem(advance, lambda p, x: x, p, np.linspace(-0.3, 0.5, 6))
        results.append((posed.lower().program, records(posed)[0]))
    (_, expected), (program, found) = results
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)
    loops = [each for each in lowering.structures(program) if isinstance(each, kernels.Loop)]
    assert not any(isinstance(each, ir.Call) for each in program.advance.statements), "rows that are written out"
    assert max(len(loop.params) for loop in loops) == 1 + 2 * 36  # the number of the row, and cotangents of both arrays


def test_a_function_that_takes_more_arguments_later_counts_once(monkeypatch):
    """The body for fewer arguments, which no call has any more, counted too: a program seemed longer than it is."""
    monkeypatch.setattr(lowering, "MAX_INLINE_OPERATIONS", 50)
    long = kernels.as_routine(lambda p, y: jnp.sum(jnp.sin(jnp.outer(p, y)) @ jnp.outer(y, p)) * y)

    def widened(p, x, control):
        for each in (p, p, 0.5 * p, x):  # of which the first is known before the run
            x = long(each, x)
        return x

    p = np.linspace(0.1, 0.4, 8)
    given = lambda p, x, u: widened(p, x, u), lambda p, x: x, *(jax.ShapeDtypeStruct((8,), float),) * 2, None
    program = lowering.lower(*given).program
    length = sum(1 for _ in lowering.operations(program))
    assert lowering.lower(*given, budget=int(1.4 * length)).program.operations == program.operations
    assert make_problem(*given[:2], p, p).lower().program.functions


def test_what_no_result_needs_is_not_written_in_a_long_program():
    """Also inside of calls and loops."""

    def inner(y):
        wasted = jax.lax.while_loop(lambda z: z < 3.0, lambda z: z + 1.0, y)
        return jnp.sin(y), wasted * jnp.cos(y)

    def outer(x):
        body = lambda state: (jax.jit(inner)(state[0])[0], state[1] + 1.0)
        return jax.lax.while_loop(lambda state: state[1] < 3.0, body, (x, 0.0))[0]

    closed = jax.make_jaxpr(outer)(0.5)
    assert "cos" in str(closed)
    short = lowering.drop_unused(closed)
    assert "cos" not in str(short) and str(short).count("while") == 1
    assert jax.core.eval_jaxpr(short.jaxpr, short.consts, 0.5) == [outer(0.5)]
