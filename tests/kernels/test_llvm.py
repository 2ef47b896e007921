"""Machine code: the same numbers however hard LLVM works, also in a process that lives long."""

import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulation import compile_for_cpu
from toys import newton

from dalembert import kernels
from dalembert.kernels import cuda, llvm, make_problem, run_problem
from dalembert.kernels.ir import find_look
from dalembert.kernels.llvm import NativeSession
from dalembert.kernels.lowering import find_late
from dalembert.kernels.problem import Buffers, make_layout

PROGRAM = """
import numpy as np
from dalembert.kernels import llvm
arrays = []
for i in range(150):
    rows = "\\n".join(f"  %a{k} = fmul double %a{k - 1}, {1.0 + k / 7 + i / 1000:.17e}" for k in range(1, 200))
    text = f"define double @enter_run(double %a0) {{\\n{rows}\\n  ret double %a199\\n}}"
    llvm.load_object(llvm.compile_object(text))
    arrays.append(np.empty(40_000_000 // 8 * (1 + i % 7)))  # address space, not memory: constants move away from code
print("done")
"""


@pytest.mark.heavy
def test_code_and_its_constants_stay_within_reach_of_each_other():
    """A linker that puts them more than 2 GiB apart aborts the process (seen with RuntimeDyld)."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr[-500:]


def implicit_pendulum(mark):
    """The midpoint rule by Newton's method; the mark makes it another program with the same numbers."""

    def step(carry, inputs, parameters):
        q, p = carry
        residual = lambda x: jnp.array([x[0] - q - 0.1 * (p + x[1]) / 2, x[1] - p + 0.1 * jnp.sin((q + x[0]) / 2)])
        (q, p), count = newton(residual, jnp.array([q, p]))
        return (q, p), (count, mark)

    return step


@pytest.mark.parametrize("lanes", [None, 21])
def test_numbers_do_not_depend_on_the_effort(lanes, monkeypatch):
    """The fast tests take the least effort, and users have another: one trajectory and lanes, to the last bit."""
    starts = (0.3, 0.1) if lanes is None else (np.linspace(0.1, 3.0, lanes), np.zeros(lanes))
    efforts, compile_object, found = [], llvm.compile_object, []
    monkeypatch.setattr(llvm, "compile_object", lambda *given: efforts.append(given[1]) or compile_object(*given))
    for effort in (0, 1, 2):
        monkeypatch.setattr(llvm, "EFFORT", effort)
        found.append(kernels.run(implicit_pendulum(float(effort)), starts, 50, lanes=lanes, backend="llvm"))
        assert efforts[-1] == effort
    for other in found[1:]:
        np.testing.assert_array_equal(other.carry, found[0].carry)
        np.testing.assert_array_equal(other.records[0], found[0].records[0])


def freezing_step(constants, carry, _):
    """A step that fails where its numbers are not finite or its equations, so to speak, have no solution.

    x, y and w keep what is not finite, z is infinite in one step alone, and w below -1 is a step without a solution.
    The last number is handed on and not read.
    """
    state, status, count = carry
    x, y, _, w, _ = state
    new = jnp.stack([x * x, y + x, constants / (w - 1.0), w - 0.25, x * w])
    solved = new[3] >= -1.0
    good = (status == 0) & solved & jnp.isfinite((new[0] + new[1]) + (new[2] + new[3]))
    after = jnp.where(good, new, state)
    return after, jnp.where(good | (status != 0), status, jnp.where(solved, 3, 2)), count + jnp.where(good, 1.0, 0.0)


def freezing_starts(count=21):
    """Lanes that overflow in x after 10 steps or more or never, that meet z = 1/0, or that have no solution."""
    number = np.arange(count)
    x = np.where(number % 3, 1.0 + 2.0 ** -(number % 11), 1.0)
    w = np.where(number % 4 == 1, 1.0 + 0.25 * (number % 5), 100.0 + 0.01 * number)
    w[number % 7 == 2] = -0.3
    return np.stack([x, np.zeros(count), np.ones(count), w, np.zeros(count)], 1), np.zeros(count, int), np.zeros(count)


def freezing_problem(carry, lanes=None):
    return make_problem(freezing_step, lambda _, carry: carry, np.array(1.5), carry, lanes=lanes)


def test_a_look_at_the_end_of_a_run_finds_what_one_at_every_step_finds():
    """Where numbers are no longer finite is found step by step only in a run that its end shows to be so."""
    starts, counts = freezing_starts(), {"saves": 20, "save_every": 2}
    problem = freezing_problem(starts, lanes=21)
    lowered = problem.lower()
    look, chosen = find_look(lowered.program), lowered.program.next_state
    assert look.places == [0, 1, 3], "x, y and w last"
    assert look.terms == [chosen[2].args[1]], "every step must look at z"
    assert look.held == [2, 4], "z and the last number are not read"
    assert find_late(lowered.program, look) == [chosen[4].args[1], chosen[2], chosen[4]]
    assert look.chosen == [*range(5)], "status and count are no choice"
    expected = run_problem(problem, backend="xla", **counts)
    assert {*expected.carry[1].tolist()} == {0, 2, 3}
    assert len({*expected.carry[2].tolist()}) > 6, "they end at different steps"
    for width in (1, 4, 8):
        found = run_problem(problem, backend="llvm", width=width, **counts)
        jax.tree.map(np.testing.assert_array_equal, (found.carry, found.records), (expected.carry, expected.records))
    text = cuda.cuda_source(lowered.program, make_layout(problem, lowered))
    session = NativeSession("emulated", compile_for_cpu(text), Buffers(problem, lowered, 1), 1, 1)
    session.reserve(20)
    session.run(0, 12, 2, 0)
    session.run(12, 8, 2, 0)
    jax.tree.map(np.testing.assert_array_equal, session.records(20), expected.records)
    for lane in range(7):
        found = run_problem(freezing_problem(tuple(leaf[lane] for leaf in starts)), backend="llvm", **counts)
        mine = jax.tree.map(lambda leaf, lane=lane: leaf[lane], (expected.carry, expected.records))
        jax.tree.map(np.testing.assert_array_equal, (found.carry, found.records), mine)


def test_what_others_were_made_of_need_not_be_looked_at():
    """x y is finite only where x and y are, but x/y also where y is infinite: the sum for a look has fewer terms."""

    def observe(_, carry):
        x, y = carry
        return jnp.isfinite(jnp.sum(jnp.stack([x, x / y, y, x * y, jnp.sqrt(y)])))

    count = make_problem(lambda _, carry, u: carry, observe, None, (1.0, 2.0)).lower().program.count("observe")
    assert count["add"] + count["fma"] == 2, "three terms are left"
    for x, y in itertools.product((1.0, 3.0, -0.0, np.inf, -np.inf, np.nan), repeat=2):
        problem = make_problem(lambda _, carry, u: carry, observe, None, (x, y))
        found = run_problem(problem, saves=1, backend="llvm", single=True).records
        with np.errstate(all="ignore"):
            assert found == np.isfinite([x, y, x * y, np.divide(x, y), np.sqrt(y)]).all(), (x, y)


def test_haste_is_made_up_for(monkeypatch, tmp_path):
    """In haste a step is compiled without effort, then with effort, and the next call runs the better code."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("DALEMBERT_CACHE", str(tmp_path))
    monkeypatch.setattr(llvm, "EFFORT", 2)
    efforts, compile_object, step = [], llvm.compile_object, implicit_pendulum(7.0)
    monkeypatch.setattr(llvm, "compile_object", lambda *given: efforts.append(given[1]) or compile_object(*given))
    with llvm.in_haste():
        hasty = kernels.run(step, (0.3, 0.1), 50, backend="llvm")
    assert efforts == [0]
    kernels.make_up()
    assert efforts == [0, 2]
    better = kernels.run(step, (0.3, 0.1), 50, backend="llvm")
    assert efforts == [0, 2], "it was found on disk"
    np.testing.assert_array_equal(better.carry, hasty.carry)
    assert not llvm.make_up(), "nothing is owed any more"
