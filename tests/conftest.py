"""Makes the modules that tests share (`registry`, `newton`, `kane`, `exhibits`) importable from every folder of tests.

XLA compiles for tests as fast as it can: without LLVM's optimisations and without the fusion emitters of XLA:CPU, each
of which costs more than everything that tests then compute. `XLA_FLAGS= make test` has the flags that users have.
A process of tests meets thousands of programs: it keeps more of them than one of users does, so that JAX need not
forget what it compiled, and Python looks for dead cycles among the many objects of traces a hundred times less often.
"""

import gc
import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from tools import xla  # noqa: E402

os.environ.setdefault("XLA_FLAGS", xla.QUICK)
gc.set_threshold(70_000, 20, 20)

if os.environ.get("DALEMBERT_CHECK_SHAPES"):  # before anything imports dalembert
    from jaxtyping import install_import_hook

    PACKAGES = ["dalembert.groups", "dalembert.mechanics", "dalembert.integrators"]
    install_import_hook(PACKAGES, "beartype.beartype")

from dalembert.kernels import llvm, problem  # noqa: E402

llvm.MAX_FUNCTIONS = problem.MAX_PROGRAMS = 1024
pytest.register_assert_rewrite("exhibits")
