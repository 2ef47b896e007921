"""Machine code: the same numbers however hard LLVM works, also in a process that lives long."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from toys import newton

from dalembert import kernels
from dalembert.kernels import llvm

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
