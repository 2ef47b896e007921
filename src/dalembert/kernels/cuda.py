"""The GPU backend: C compiled by NVRTC through CuPy, one thread a trajectory; and the same C on the CPU, for tests.

CuPy is imported where it is used: programs are made, and emulated, on machines without a GPU.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from . import cache as disk
from .buffers import Buffers, layout_of
from .csource import THREADS, source
from .known import Lowered
from .layout import ABI, SIGNATURE, Function
from .problem import Problem

ROOM = 1 << 28
"""Bytes of records kept on the device before they are copied to the host."""
OPTIONS = ("--std=c++17", "--fmad=false")


@cache
def available() -> bool:
    """Whether there is CuPy and a GPU that answers."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:  # CuPy raises its own types for a missing driver, library or device
        return False


@cache
def _kernel(text: str) -> Any:
    """A kernel function on the current device."""
    import cupy
    from cupy.cuda import nvrtc

    architecture = f"sm_{cupy.cuda.Device().compute_capability}"
    version = ".".join(map(str, nvrtc.getVersion()))
    key = disk.key(text, ABI, version, architecture, *OPTIONS)
    module = cupy.cuda.function.Module()
    module.load(disk.get(key, lambda: _cubin(text, architecture)))
    return module.get_function("run")


def _cubin(text: str, architecture: str) -> bytes:
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(text, "dalembert.cu", [], [])
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}", *OPTIONS))
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"NVRTC refused generated code:\n{nvrtc.getProgramLog(program)}") from error
    return nvrtc.getCUBIN(program)


class CudaSession:
    """A run in launches that each do many steps; records come to the host after every launch."""

    name = "cuda"

    def __init__(self, problem: Problem, lowered: Lowered):
        import cupy

        self.buffers = Buffers(problem, lowered, 1)
        self.kernel = _kernel(source(lowered.program, layout_of(problem, lowered)))
        b = self.buffers
        words = (b.shared, b.varying, b.state, b.controls)
        self.shared, self.varying, self.state, self.controls = map(cupy.asarray, words)
        self.limit = max(1, ROOM // max(8, 8 * b.stride * lowered.words))
        self.records_room = cupy.empty(0, np.int64)
        self.blocks = -(-b.stride // THREADS)

    def reserve(self, capacity: int) -> None:
        import cupy

        self.buffers.reserve(capacity)
        self.limit = max(1, min(self.limit, capacity))
        size = self.limit * self.buffers.lowered.words * self.buffers.stride
        self.records_room = cupy.empty(size, np.int64)

    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        import cupy

        b = self.buffers
        controls = self.controls.ravel()[step * b.control_row:]
        counts = (self.limit, 0, count, every, b.stride, 0, b.stride, b.control_stride)
        self.kernel((self.blocks,), (THREADS,),
                    (self.shared, self.varying, self.state, controls, self.records_room, *map(np.int64, counts)))
        if not keep:
            return cupy.cuda.get_current_stream().synchronize()
        for kept, new in zip(b.record_leaves(b.records, b.capacity), b.record_leaves(self.records_room, self.limit),
                             strict=True):
            kept[first:first + count] = new[:count].get()

    def loop(self) -> Any:
        self.buffers.state[...] = self.state.get()
        return self.buffers.unpack_loop()

    def records(self, count: int) -> Any:
        return self.buffers.unpack_records(count)

    def save_state(self) -> Any:
        return self.state.copy()

    def restore_state(self, state: Any) -> None:
        self.state[...] = state


# ---- the same text on the CPU


def emulated(text: str) -> Function:
    """The kernel compiled by the C compiler of this machine, called like a native function; lanes go one by one."""
    compiler = os.environ.get("CC", "cc")
    options = ("-std=gnu11", "-O1", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-lm")
    command = [compiler, "kernel.c", "-o", "kernel.so", *options]
    with tempfile.TemporaryDirectory(prefix="dalembert-") as folder:
        Path(folder, "kernel.c").write_text("#include <stdbool.h>\n" + text)
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        library = ctypes.CDLL(str(Path(folder, "kernel.so")))
    return SIGNATURE(("run", library))
