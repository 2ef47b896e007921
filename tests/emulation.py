"""The C of a GPU kernel on this machine's processor: what a GPU would compute, without one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from dalembert.kernels.problem import SIGNATURE, Kernel


@lru_cache
def compile_for_cpu(text: str) -> Kernel:
    """The kernel compiled by the C compiler of this machine, called like a native function; lanes go one by one."""
    options = ("-std=gnu11", "-O1", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-lm")
    command = [os.environ.get("CC", "cc"), "kernel.c", "-o", "kernel.so", *options]
    with tempfile.TemporaryDirectory(prefix="dalembert-") as folder:
        Path(folder, "kernel.c").write_text("#include <stdbool.h>\n" + text)
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        library = ctypes.CDLL(str(Path(folder, "kernel.so")))
    return SIGNATURE(("run", library))
