"""1/sqrt(x) of a GPU from one approximation: root and quotient are each rounded correctly, as a processor rounds them.

The proof. All numbers scale with powers of four, so 1 <= x < 4; y is within an ulp of 1/sqrt(x). Before their last
rounding, root and quotient are nearer to sqrt(x) and 1/root than 2^-48 and 2^-50 of an ulp. They are rounded to the
right side unless something lies in between where rounding changes sides, an odd multiple o of half an ulp:

- 4x = o^2 + c in units of the root's ulp, for integers |c| < 512. There are few: o is a root of -c modulo 2^54 or 2^55.
- root o = 2^106 + c in units of their ulps, for integers |c| < 8: they are divisors.

The test tries all of them with every such y, and numbers at the ends of the range.
"""

import ctypes
import math
import os
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from emulation import compile_for_cpu

from dalembert.kernels import cuda, make_problem, run_problem
from dalembert.kernels.llvm import NativeSession
from dalembert.kernels.problem import Buffers, make_layout

jax.config.update("jax_enable_x64", True)
compiler = os.environ.get("CC", "cc")
pytestmark = pytest.mark.skipif(shutil.which(compiler) is None, reason="no C compiler")
BOTH = """
void refined(int n, const double *x, const double *y, double *out) {
  for (int i = 0; i < n; ++i) out[i] = round_inverse_root(x[i], y[i]);
}
void whole(int n, const double *x, double *out) { for (int i = 0; i < n; ++i) out[i] = inverse_root(x[i]); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roots")
    Path(folder, "roots.c").write_text(cuda.PRELUDE + BOTH)
    options = ("-O1", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-lm")
    subprocess.run([compiler, "roots.c", "-o", "roots.so", *options], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "roots.so"))


def call(function, *arrays):
    out = np.empty_like(arrays[0])
    function(len(out), *(ctypes.c_void_p(array.ctypes.data) for array in (*arrays, out)))
    return out


def square_roots(square, bits):
    """All odd r < 2^bits with r^2 = square modulo 2^bits, for square = 1 modulo 8."""
    found = {1, 3, 5, 7}
    for k in range(3, bits):
        found = {r for s in found for r in (s, s + 2 ** (k - 1)) if (r * r - square) % 2 ** (k + 1) == 0}
        found |= {(r + 2**k) % 2 ** (k + 1) for r in found}
    return found


def near_midpoints():
    """All x in [1, 4) whose root lies next to a point where rounding changes sides."""
    for c in range(1 - 512, 512, 8):
        for bits in (54, 55):  # x in [1, 2) and in [2, 4)
            for r in square_roots(c, bits):
                for odd in range(r, 2**54, 2**bits):
                    if 2 ** (50 + bits) <= (square := odd * odd - c) // 4 < 2 ** (51 + bits):
                        yield float(square // 2**bits) * 2.0 ** (bits - 106)


def near_quotients():
    """All roots in [1, 2) whose reciprocal lies next to such a point."""
    for c in (each for each in range(-8, 9) if each):
        for divisor in sympy.divisors(2**106 + c):
            if 2**52 <= divisor < 2**53 and (2**106 + c) // divisor % 2:
                yield divisor * 2.0**-52


def neighbours(x, count):
    """x and so many numbers on either side."""
    return np.float64(x) + np.spacing(np.float64(x)) * np.arange(-count, count + 1)


def within_an_ulp(x):
    """All y that differ from 1/sqrt(x) by at most an ulp; above 1/2 it is 2^-53."""
    exact = math.isqrt((1 << 240) // int(x * 2**52) << 52)  # 2^120/sqrt(x)
    tried = neighbours(1.0 / math.sqrt(x), 3)
    return [y for y in tried if abs(int(y * 2**55) * 2**65 - exact) <= 2**67]


def test_every_hard_case_has_the_bits_of_a_root_and_a_quotient(library):
    roots = list(near_quotients())
    assert len(set(near_midpoints())) > 100 and 2.0 - 2.0**-52 in roots
    hard = [*near_midpoints(), *np.concatenate([neighbours(r * r, 4) for r in roots])]
    hard += [*neighbours(1.0, 200), *neighbours(2.0, 200), *neighbours(4.0, 200)]
    pairs = np.array([(x, y) for x in hard if 1 <= x < 4 for y in within_an_ulp(x)])
    x, y = np.ascontiguousarray(pairs.T)
    assert len(x) > 3000 and x.max() == np.nextafter(4.0, 0.0)
    np.testing.assert_array_equal(call(library.refined, x, y), 1.0 / np.sqrt(x))


def test_all_scales_and_the_ends_of_the_range(library):
    rng = np.random.default_rng(0)
    x = np.exp2(rng.uniform(-1074, 1024, 100_000))
    ends = [neighbours(2.0**e, 5) for e in (-1022, -701, -700, -699, -1, 0, 1, 699, 700, 701, 1023)]
    odd = [0.0, -0.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, np.finfo(float).max]
    x = np.concatenate([x, rng.uniform(1, 4, 100_000), 1 + 1e-15 * rng.normal(size=1000), *ends, odd])
    with np.errstate(all="ignore"):
        wanted = 1.0 / np.sqrt(x)
    np.testing.assert_array_equal(call(library.whole, x), wanted)


@pytest.mark.parametrize("also", [False, True])
def test_a_program_shares_the_root_where_nothing_else_reads_it(also):
    def advance(c, x, u):
        size = jax.numpy.sqrt(x @ x)
        return x * (1.0 / size) + (0.1 * size if also else 0.1)

    lanes, start = 50, np.random.default_rng(1).normal(size=(50, 3))
    problem = make_problem(advance, lambda c, x: x, None, start, lanes=lanes)
    lowered = problem.lower()
    text = cuda.cuda_source(lowered.program, make_layout(problem, lowered))
    assert ("= inverse_root(" in text) is not also
    session = NativeSession("emulated", compile_for_cpu(text), Buffers(problem, lowered, 1), 1, 1)
    session.reserve(5)
    session.run(0, 5, 2, 0)
    native = run_problem(problem, saves=5, save_every=2, backend="llvm").records
    np.testing.assert_array_equal(session.records(5), native)


def test_a_step_whose_root_is_out_of_range_is_computed_again():
    """Steps of a GPU take roots without branches; a run in which one was tiny or huge is repeated with them."""

    def advance(consts, carry, u):
        x, status = carry["x"], carry["status"]
        new = 0.9 * x + consts * (1.0 / jnp.sqrt(x * x + 1e-319))
        good = (status == 0) & jnp.isfinite(new.sum())
        kept = jnp.where(good | (status != 0), status, 3)
        return {"x": jnp.where(good, new, x), "status": kept}

    scale = np.array([1.0, 0.0, 1e140, 1e170, *np.logspace(-160, -148, 400)])
    start = {"x": scale[:, None] * np.array([1.0, 0.7]), "status": np.zeros(len(scale), int)}
    problem = make_problem(advance, lambda consts, carry: carry, np.float64(0.3), start, lanes=len(scale))
    lowered = problem.lower()
    text = cuda.cuda_source(lowered.program, make_layout(problem, lowered))
    assert "try_inverse_root" in text
    wanted = run_problem(problem, saves=5, save_every=3, backend="llvm").records
    for source, same in ((text, True), (text.replace("odd >= RANGE", "false"), False)):
        session = NativeSession("emulated", compile_for_cpu(source), Buffers(problem, lowered, 1), 1, 1)
        session.reserve(5)
        session.run(0, 5, 3, 0)
        found = session.records(5)
        np.testing.assert_array_equal(found["status"], wanted["status"])
        assert np.array_equal(found["x"], wanted["x"]) == same
