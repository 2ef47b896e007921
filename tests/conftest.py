"""Makes the modules that tests share (`registry`, `newton`, `exhibits`) importable from every folder of tests."""

import os
import sys
from pathlib import Path

import pytest

if os.environ.get("DALEMBERT_CHECK_SHAPES"):  # before anything imports dalembert
    from jaxtyping import install_import_hook

    PACKAGES = ["dalembert.groups", "dalembert.mechanics", "dalembert.integrators"]
    install_import_hook(PACKAGES, "beartype.beartype")

pytest.register_assert_rewrite("exhibits")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
