"""Runs: backends agree, lanes are single runs bit for bit, chunks add up, interruption keeps what is done."""

import os
import shutil
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from emulation import compile_for_cpu

from dalembert import kernels
from dalembert.kernels import LoweringError, cuda, execute, make_problem, run_problem, stream_problem, transformations
from dalembert.kernels.llvm import NativeSession
from dalembert.kernels.problem import Buffers, make_layout

jax.config.update("jax_enable_x64", True)
C, START = toys.consts(), toys.start()
LANES = 13
FAILING = 5


def toy(carry=START, consts=C, advance=toys.advance, controls=None, lanes=None, axes=None, **options):
    problem = make_problem(advance, toys.observe, consts, carry, controls, lanes=lanes, axes=axes)
    return run_problem(problem, **({"backend": "llvm"} | options))


def equal(a, b):
    return all(
        np.array_equal(x, y, equal_nan=True) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def ensemble():
    """Thirteen starts, one of which leaves the domain at its first step."""
    carry = jax.tree.map(lambda leaf: np.stack([leaf] * LANES), START)
    carry["x"] = carry["x"] + 0.1 * np.arange(LANES)[:, None]
    carry["x"][FAILING] = 49.9
    return carry


def consts_of_lanes():
    """Every lane has its own step size and inertia."""
    steps = 0.01 + 0.001 * np.arange(LANES)
    return C | {"h": steps, "p": C["p"] | {"inertia": C["p"]["inertia"] * (1 + steps[:, None, None])}}


def lane(tree, i, axes=0):
    return jax.tree.map(
        lambda axis, leaf: leaf if axis is None else jax.tree.map(lambda x: x[i], leaf),
        axes,
        tree,
        is_leaf=lambda node: node is None,
    )


def test_llvm_and_xla_agree():
    native, portable = toy(saves=300), toy(saves=300, backend="xla")
    np.testing.assert_allclose(native.records["x"], portable.records["x"], rtol=1e-12, atol=1e-13)
    assert native.backend == "llvm" and portable.backend == "xla" and native.records["x"].shape == (300, 3)
    assert native.records["alive"].dtype == bool and native.records["status"].dtype == portable.records["status"].dtype


@pytest.mark.parametrize("width", [1, 4, 8, 16])
@pytest.mark.parametrize("threads", [1, 2])
def test_lanes_are_single_runs_bit_for_bit(width, threads):
    carry, consts, axes = (
        ensemble(),
        consts_of_lanes(),
        ({"h": 0, "limit": None, "p": {"inertia": 0, "scale": None}}, 0),
    )
    together = toy(carry, consts, saves=60, save_every=2, lanes=LANES, axes=axes, width=width, threads=threads)
    assert together.records["x"].shape == (LANES, 60, 3)
    assert together.carry["status"].tolist() == [int(i == FAILING) for i in range(LANES)]
    for i in range(LANES):
        alone = toy(lane(carry, i), lane(consts, i, axes[0]), saves=60, save_every=2)
        assert equal(alone.records, lane(together.records, i)) and equal(alone.carry, lane(together.carry, i))


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler to emulate the GPU with")
@pytest.mark.parametrize("controlled", [False, True])
def test_the_cuda_source_on_the_cpu_is_llvm_bit_for_bit(controlled):
    controls = np.sin(np.arange(80.0))[:, None] * np.ones(3) if controlled else None
    problem = make_problem(toys.advance, toys.observe, C, ensemble(), controls, lanes=LANES)
    lowered = problem.lower()
    emulated = compile_for_cpu(cuda.cuda_source(lowered.program, make_layout(problem, lowered)))
    session = NativeSession("emulated", emulated, Buffers(problem, lowered, 1), 1, 1)
    session.reserve(40)
    session.run(0, 15, 2, 0)
    session.run(15, 25, 2, 30)
    native = toy(ensemble(), controls=controls, saves=40, save_every=2, lanes=LANES)
    assert equal(session.records(40), native.records) and equal(session.carry(), native.carry)


@pytest.mark.parametrize("backend", ["llvm", "xla"])
def test_controls_shared_and_per_lane(backend):
    controls = 0.1 * np.random.default_rng(0).normal(size=(LANES, 40, 3))
    carry = ensemble()
    shared = toy(carry, controls=controls[3], saves=20, save_every=2, lanes=LANES, backend=backend)
    own = toy(carry, controls=controls, saves=20, save_every=2, lanes=LANES, axes=(None, 0, 0), backend=backend)
    alone = toy(lane(carry, 3), controls=controls[3], saves=20, save_every=2, backend=backend)
    for result in (shared, own):
        np.testing.assert_allclose(lane(result.records, 3)["x"], alone.records["x"], rtol=1e-13)
    assert not np.allclose(own.records["x"][2], shared.records["x"][2])


def test_a_run_in_two_halves_is_the_whole_run():
    whole, first = toy(saves=50), toy(saves=20)
    second = toy(first.carry, saves=30)
    assert equal(whole.carry, second.carry) and np.array_equal(whole.records["x"][20:], second.records["x"])


def test_records_every_few_steps_are_those_of_the_fine_run():
    assert np.array_equal(toy(saves=60).records["x"][4::5], toy(saves=12, save_every=5).records["x"])


@pytest.mark.parametrize("backend", ["llvm", "xla"])
def test_chunks_are_the_run(backend):
    whole = toy(saves=50, save_every=3, backend=backend)
    parts = [
        (part.first, part.records["x"].copy())
        for part in stream_problem(
            make_problem(toys.advance, toys.observe, C, START), saves=50, save_every=3, chunk=16, backend=backend
        )
    ]
    assert [first for first, _ in parts] == [0, 16, 32, 48]
    assert np.array_equal(np.concatenate([x for _, x in parts]), whole.records["x"])


def test_small_chunks_are_the_run(monkeypatch):
    whole = toy(saves=4, save_every=3000)
    monkeypatch.setattr(execute, "CHUNK_SECONDS", 1e-5)
    assert equal(toy(saves=4, save_every=3000).records, whole.records)


def test_ctrl_c_keeps_what_is_done():
    def progress(done, saves):
        if done >= 2000:
            raise KeyboardInterrupt

    stopped = toy(saves=10**6, progress=progress)
    assert stopped.interrupted and 2000 <= stopped.saves < 10**6
    assert len(stopped.records["x"]) == stopped.saves
    assert equal(stopped.carry, toy(saves=stopped.saves).carry)


def test_a_signal_stops_a_run_between_records():
    before = signal.getsignal(signal.SIGINT)

    def interrupt():
        while (
            signal.getsignal(signal.SIGINT) is before
        ):  # wait for the run: an interrupt before it would stop the tests
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    stopped = toy(saves=10, save_every=10**8)
    sender.join()
    assert stopped.interrupted and stopped.saves == 0 and np.array_equal(stopped.carry["x"], START["x"])


def test_progress_is_reported_to_the_end():
    seen = []
    toy(saves=5000, progress=lambda done, saves: seen.append((done, saves)))
    assert seen[-1] == (5000, 5000) and seen == sorted(seen)


def test_auto_falls_back_to_xla_and_says_so():
    def advance(c, carry, u):
        return {"x": jnp.linalg.cholesky(carry["x"])}

    carry = {"x": np.eye(2)}
    problem = make_problem(advance, lambda c, carry: carry, None, carry)
    result = run_problem(problem, saves=3)
    assert result.backend == "xla" and "cholesky" in result.note
    with pytest.raises(LoweringError, match="cholesky"):
        run_problem(problem, saves=3, backend="llvm")


def test_new_parameters_neither_trace_nor_compile():
    traces = []

    def advance(c, carry, u):
        traces.append(1)
        return toys.advance(c, carry, u)

    for h in (0.01, 0.02, 0.03):
        toy(consts=toys.consts(h), advance=advance, saves=5)
    assert len(traces) == 1


def test_gradients_go_through_a_run():
    def final(h):
        problem = make_problem(toys.advance, toys.observe, C | {"h": h}, START)
        return jnp.sum(run_problem(problem, saves=10, save_every=2).carry["x"] ** 2)

    difference = (final(0.01 + 1e-6) - final(0.01 - 1e-6)) / 2e-6
    np.testing.assert_allclose(jax.grad(final)(0.01), difference, rtol=1e-7)


def test_tangents_run_natively():
    """jax.jvp of the step is a step of (state, tangent): its run gives the derivative of the run."""

    def advance(consts, carry, u):
        def moved(x, t, h):
            return toys.advance(consts | {"h": h}, carry["at"] | {"x": x, "t": t}, u)

        at, d = jax.jvp(moved, (carry["at"]["x"], carry["at"]["t"], consts["h"]), (carry["dx"], carry["dt"], 1.0))
        return {"at": at, "dx": d["x"], "dt": d["t"]}

    carry = {"at": START, "dx": np.zeros(3), "dt": 0.0}
    result = run_problem(make_problem(advance, lambda c, carry: carry["dx"], C, carry), saves=20, backend="llvm")
    plus, minus = (toy(consts=toys.consts(0.01 + d), saves=20).records["x"] for d in (1e-6, -1e-6))
    np.testing.assert_allclose(result.records, (plus - minus) / 2e-6, rtol=1e-6, atol=1e-7)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="backend 'fortran'"):
        toy(saves=1, backend="fortran")
    with pytest.raises(ValueError, match="save_every = 0"):
        toy(saves=1, save_every=0)
    with pytest.raises(ValueError, match="number of lanes"):
        toy(ensemble(), saves=1, lanes=LANES + 1)
    with pytest.raises(ValueError, match="7 rows for 8 steps"):
        toy(controls=np.zeros((7, 3)), saves=8)


def test_no_saves_is_an_empty_run():
    result = toy(saves=0)
    assert result.records["x"].shape == (0, 3) and equal(result.carry["x"], START["x"]) and not result.interrupted


def test_auto_refuses_what_xla_would_compile_for_long(monkeypatch):
    """The cost of leaving native code is bounded; who asks for XLA gets it whatever it costs."""
    monkeypatch.setattr(transformations, "MAX_XLA_EQUATIONS", 2)
    problem = make_problem(lambda c, x, u: jax.lax.lgamma(jnp.sin(x) + 2.0) - 1.0, lambda c, x: x, (), np.float64(0.5))
    with pytest.raises(LoweringError, match=r'lgamma.*compile these 4 array operations.*backend="xla"'):
        run_problem(problem, saves=2)
    assert run_problem(problem, saves=2, backend="xla").backend == "xla"

    def end(x):
        return run_problem(make_problem(problem.advance, problem.observe, (), x), saves=2).records[-1]

    for derivative in (jax.jacfwd, jax.grad):
        with pytest.raises(LoweringError, match="goes as far as 2 of them"):
            derivative(end)(jnp.asarray(0.5))


def test_runs_that_are_repeated_have_the_bits_of_new_ones():
    """The first call runs as a problem does; the next ones go by plans, with other constants and starts."""

    def begin(consts, start):
        return {"x": start["x"] * consts[0], "count": start["count"], "fell": start["x"][0] < 0.0}

    def advance(consts, carry, u):
        x = carry["x"] + consts[1] * jnp.sin(carry["x"]) + u
        return {"x": x, "count": carry["count"] + 1, "fell": carry["fell"] | (x[0] < 0.0)}

    def observe(consts, carry):
        return carry["x"][1], carry["count"]

    rng, lanes = np.random.default_rng(0), 5
    controls, axes = rng.standard_normal((lanes, 12, 2)), ((None, 0), 0, 0)
    repeated = kernels.Repeated(begin, advance, observe, controls, lanes, axes, 4, 3)
    for _ in range(3):
        consts = np.asarray(rng.standard_normal()), rng.standard_normal(lanes)
        start = {"x": rng.standard_normal((lanes, 2)), "count": np.arange(lanes)}
        start["fell"] = np.zeros(lanes, bool)
        first = kernels.evaluate(begin, consts, start, lanes=lanes, axes=axes[:2])
        problem = kernels.make_problem(advance, observe, consts, first, controls, lanes=lanes, axes=(axes[0], 0, 0))
        whole = kernels.run_problem(problem, saves=4, save_every=3, initial=True)
        carry, records = repeated(consts, start)
        jax.tree.map(np.testing.assert_array_equal, (carry, records), (whole.carry, whole.records))
    assert repeated.plans is not None


def test_rows_of_whole_numbers_are_read_as_real_ones():
    """They were read as the bits of doubles: 2 became 4.6e18."""

    def advance(consts, carry, u):
        return carry + consts * u

    for rows in (np.array([1, 2, 3]), np.array([1, 2, 3], np.int32), jnp.array([1.0, 2.0, 3.0])):
        last, records = kernels.run_rows(advance, lambda consts, carry: carry, np.float64(2.0), np.float64(0.0), rows)
        assert last == 12.0 and records.tolist() == [2.0, 6.0, 12.0]
