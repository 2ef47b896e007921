"""Machine code for this computer: LLVM IR compiled by llvmlite, cached on disk, run by ctypes on threads.

ctypes releases the GIL during a call, so blocks of lanes run side by side.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from . import cache as disk
from . import llvm
from .buffers import Buffers
from .known import Lowered
from .layout import ABI, ENTRY, WORDS, Function, Layout
from .llvm import source

PIECES = 4
"""Pieces of work a thread gets, so that an unlucky one does not keep the others waiting."""

LONG = 4000
"""Lines of LLVM IR from which on its passes cost more than they gain."""


@cache
def _host() -> tuple[str, str, str]:
    """Triple, name and features of this processor."""
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.get_process_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


@cache
def _emitter() -> str:
    """The text of the emitter: code that another version of it wrote must not be found again."""
    return "".join(Path(file).read_text(encoding="utf-8") for file in (__file__,))


@cache
def best_width() -> int:
    """The doubles in a vector register of this processor; in two where it has 32 of them, so that one hides the latency of the other."""
    features = _host()[2].split(",")
    return 16 if "+avx512f" in features else 4 if "+avx" in features else 2


_functions: dict[tuple[str, Layout, int], Function] = {}


def function(lowered: Lowered, layout: Layout, width: int) -> Function:
    """The run of a program on `width` lanes at a time, as a native function; compiled once."""
    key = (lowered.digest, layout, width)
    if key not in _functions:
        _functions[key] = compile(lowered, layout, width)
    return _functions[key]


def compile(lowered: Lowered, layout: Layout, width: int) -> Function:
    """Machine code from the disk, or else from LLVM."""
    import llvmlite

    key = disk.key(lowered.digest, repr(layout), str(width), ABI, _emitter(), llvmlite.__version__, *_host())

    def build() -> bytes:
        evaluates = width == 1 and not lowered.program.operations  # no steps: it runs once, and compiling would be all it costs
        text, parallel = source(lowered.program, layout, width), lowered.program.notes.get("parallel sums", False)
        return object_code(text, 0 if evaluates else 2, width == 1 and parallel)

    return load(disk.get(key, build), key)


def object_code(text: str, effort: int = 2, vectorise: bool = False) -> bytes:
    """An object file for this processor; `effort` 0 compiles ten times as fast as 2.

    With `vectorise` LLVM puts equal operations side by side into one: the same numbers, and worth its time for long sums.

    A long text goes to the code generator as it is: what LLVM's passes look for our own optimiser has done, and in small loops,
    where they still find something, they take no time.
    """
    import llvmlite.binding as binding

    triple, cpu, features = _host()
    machine = binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=effort, reloc="pic", codemodel="small")
    module = binding.parse_assembly(text)
    module.triple = triple
    module.data_layout = str(machine.target_data)
    if effort and text.count("\n") < LONG:
        options = binding.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.loop_unrolling = False
        options.slp_vectorization = vectorise
        builder = binding.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


@cache
def _linker() -> Any:
    import llvmlite.binding as binding

    _host()
    return binding.create_lljit_compiler(use_jit_link=True)


_libraries: list[Any] = []  # loaded code lives as long as the process


def load(machine_code: bytes, name: str) -> Function:
    """The function in an object file."""
    import llvmlite.binding as binding

    builder = binding.JITLibraryBuilder().add_object_img(machine_code).add_current_process().export_symbol("enter_run")
    _libraries.append(builder.link(_linker(), f"{name}-{len(_libraries)}"))
    enter, words = ENTRY(_libraries[-1]["enter_run"]), WORDS.pack
    return lambda *arguments: enter(words(*arguments))


def _processors() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class NativeSession:
    """A run in calls of a native function: blocks of `width` lanes, spread over threads."""

    limit = 1 << 62

    def __init__(self, name: str, function: Function, buffers: Buffers, width: int, threads: int | None):
        self.name, self.function, self.buffers, self.width = name, function, buffers, width
        blocks = buffers.stride // width
        self.threads = max(1, min(threads or _processors(), blocks))
        pieces = 1 if self.threads == 1 else min(blocks, PIECES * self.threads)
        self.ranges = [(blocks * i // pieces * width, blocks * (i + 1) // pieces * width) for i in range(pieces)]
        self.pool = ThreadPoolExecutor(self.threads - 1) if self.threads > 1 else None

    def reserve(self, capacity: int) -> None:
        b = self.buffers
        b.reserve(capacity)
        self.addresses = [array.ctypes.data for array in (b.shared, b.varying, b.state, b.controls, b.records)]

    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        b = self.buffers
        shared, varying, state, controls, records = self.addresses
        pointers = (shared, varying, state, controls + 8 * step * b.control_row, records)
        if self.pool is None:
            begin, end = self.ranges[0]
            self.function(*pointers, b.capacity, first, first + count, every, b.stride, begin, end, b.control_stride)
            return

        pieces = iter(self.ranges)  # whoever is free takes the next one

        def work() -> None:
            for begin, end in pieces:
                self.function(*pointers, b.capacity, first, first + count, every, b.stride, begin, end, b.control_stride)

        helpers = [self.pool.submit(work) for _ in range(self.threads - 1)]
        work()  # this thread is one of them: a short call does not wait for two to wake up
        for helper in helpers:
            helper.result()

    def loop(self) -> Any:
        return self.buffers.unpack_loop()

    def records(self, count: int) -> Any:
        return self.buffers.unpack_records(count)

    def save_state(self) -> Any:
        return self.buffers.state.copy()

    def restore_state(self, state: Any) -> None:
        self.buffers.state[...] = state
