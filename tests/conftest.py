"""Makes the modules that tests share (`registry`, `newton`, `exhibits`) importable from every folder of tests."""

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("exhibits")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
