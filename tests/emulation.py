"""The C of a GPU kernel on this machine's processor: what a GPU would compute, without one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dalembert.kernels import adjoints, cuda, execute, plans
from dalembert.kernels.problem import SIGNATURE, Kernel


@lru_cache
def compile_for_cpu(text: str) -> Kernel:
    """The kernel compiled by the C compiler of this machine, called like a native function; lanes go one by one."""
    options = ("-std=gnu11", "-O0", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-lm")
    command = [os.environ.get("CC", "cc"), "kernel.c", "-o", "kernel.so", *options]
    with tempfile.TemporaryDirectory(prefix="dalembert-") as folder:
        Path(folder, "kernel.c").write_text("#include <stdbool.h>\n" + text)
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        library = ctypes.CDLL(str(Path(folder, "kernel.so")))
    return SIGNATURE(("run", library))


class PlayedGpu(cuda.Gpu):
    """A GPU that this processor plays: its memory is NumPy's, its kernels are compiled by the C compiler."""

    xp = np
    held_bytes = 0
    launches = 0

    def kernel(self, lowered: Any, layout: Any) -> Kernel:
        return compile_for_cpu(cuda.cuda_source(lowered.program, layout))

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def launch(self, kernel: Kernel, lanes: int, arguments: Any) -> None:
        self.launches += 1
        kernel(*arguments)

    def finish(self) -> None:
        pass

    def free_words(self) -> int:
        return 1 << 24

    def find_words(self, wanted: Any) -> list[bool]:
        found = []
        for address, words, word, equal in wanted:
            given = np.ctypeslib.as_array((ctypes.c_int64 * words).from_address(address))
            found.append(bool(((given == word) == equal).any()))
        return found

    def to_host(self, array: Any) -> Any:
        return np.asarray(array)

    def to_jax(self, array: Any) -> Any:
        return jnp.array(array)


def play_gpu(monkeypatch: Any, lanes: int = 2) -> PlayedGpu:
    """Let this processor play a GPU on which all arrays of JAX lie, and where "auto" runs so many lanes or more."""
    if jax.default_backend() != "cpu":
        pytest.skip("JAX's arrays lie on a GPU here, whose addresses this processor cannot read")
    gpu = PlayedGpu()

    def on_gpu(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)

    monkeypatch.setattr(cuda, "gpu", lambda: gpu)
    monkeypatch.setattr(cuda, "has_gpu", lambda: True)
    monkeypatch.setattr(cuda, "on_gpu", on_gpu)
    monkeypatch.setattr("dalembert.simulation.loop.on_gpu", on_gpu)
    monkeypatch.setattr(execute, "MIN_GPU_LANES", lanes)
    monkeypatch.setattr(plans, "_chains", type(plans._chains)())
    adjoints.find_adjoint.cache_clear()
    adjoints.memory.entries.clear()
    return gpu
