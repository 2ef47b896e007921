"""Machine code in a process that lives long."""

import subprocess
import sys

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


def test_code_and_its_constants_stay_within_reach_of_each_other():
    """A linker that puts them more than 2 GiB apart aborts the process (seen with RuntimeDyld)."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr[-500:]
