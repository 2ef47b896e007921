"""Makes the modules that tests share (`registry`, `newton`, `exhibits`) importable from every folder of tests.

XLA compiles for tests as fast as it can: without LLVM's optimisations and without the fusion emitters of XLA:CPU, each
of which costs more than everything that tests then compute. `XLA_FLAGS= make test` has the flags that users have.
"""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

if os.environ.get("DALEMBERT_CHECK_SHAPES"):  # before anything imports dalembert
    from jaxtyping import install_import_hook

    PACKAGES = ["dalembert.groups", "dalembert.mechanics", "dalembert.integrators"]
    install_import_hook(PACKAGES, "beartype.beartype")

pytest.register_assert_rewrite("exhibits")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
