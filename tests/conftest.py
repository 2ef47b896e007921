"""Makes the modules that tests share (`registry`, `newton`, `kane`, `exhibits`) importable from every folder of tests.

XLA compiles for tests as fast as it can: without LLVM's optimisations and without the fusion emitters of XLA:CPU, each
of which costs more than everything that tests then compute. `XLA_FLAGS= make test` has the flags that users have.
JAX writes no places of Python sources into what it gives to XLA. LLVM works without effort on our own programs in the
fast tests (the numbers are the same: kernels/test_llvm.py), a sixth of their time; the heavy ones have what users have.
A process of tests meets thousands of programs: it keeps more of them than one of users does, so that JAX need not
forget what it compiled, until they take `MAX_MEMORY`; and Python looks for dead cycles among the many objects of traces
a hundred times less often. Nothing waits until the disk has what was written: a test need not survive a power cut, and
178 tests of four files waited 1,130 times for it, 8 ms each.
"""

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from tools import xla  # noqa: E402

os.environ.setdefault("XLA_FLAGS", xla.QUICK)
os.environ.update(xla.WITHOUT_PLACES | os.environ)
gc.set_threshold(70_000, 20, 20)
os.fsync = lambda handle: None

if os.environ.get("DALEMBERT_CHECK_SHAPES"):  # before anything imports dalembert
    from jaxtyping import install_import_hook

    PACKAGES = ["dalembert.groups", "dalembert.mechanics", "dalembert.integrators"]
    install_import_hook(PACKAGES, "beartype.beartype")

import jax  # noqa: E402

from dalembert.kernels import llvm, plans, problem  # noqa: E402

llvm.MAX_FUNCTIONS = problem.MAX_PROGRAMS = 1024
pytest.register_assert_rewrite("exhibits")


SECONDS = {
    "browser/test_studio_page": 0.7,
    "claims/test_panel": 1,
    "cli/test_plan": 0.6,
    "fuzz/test_fuzz": 20,
    "house/test_docs": 3,
    "integrators/test_adaptive": 0.5,
    "integrators/test_size": 3,
    "io/test_data": 0.4,
    "io/test_faults": 8,
    "kernels/test_fingerprint": 0.5,
    "kernels/test_functions": 0.8,
    "kernels/test_long_life": 60,
    "kernels/test_simplify": 1.0,
    "kernels/test_transformations": 0.6,
    "laws/test_backends": 1,
    "laws/test_events": 1.4,
    "laws/test_fast_paths": 0.8,
    "laws/test_integrators": 0.8,
    "laws/test_linalg": 0.5,
    "laws/test_own_group": 2,
    "laws/test_rigid_body_laws": 0.5,
    "laws/test_shapes": 9.0,
    "laws/test_variational": 0.8,
    "mechanics/test_discretisation": 0.4,
    "mechanics/test_mechanism": 0.5,
    "models/test_mechanisms": 1.1,
    "optimise/test_fit": 5,
    "optimise/test_fit_edges": 0.3,
    "optimise/test_planning": 5,
    "optimise/test_program": 1.1,
    "optimise/test_tracking": 1.8,
    "simulation/test_calls": 0.7,
    "simulation/test_device": 1.1,
    "simulation/test_directions": 1.4,
    "simulation/test_transformed": 3,
    "studio/test_drive": 3.3,
    "studio/test_own": 1.1,
    "studio/test_studio": 1,
    "sweeps/test_sweep": 0.4,
    "verification/test_adaptive": 0.6,
    "verification/test_bicycle": 10,
    "verification/test_branches": 0.5,
    "verification/test_embedding": 10,
    "verification/test_gradients": 2,
    "verification/test_holonomic": 1.3,
    "verification/test_integrals": 0.5,
    "verification/test_jimenez_scheurle": 1.1,
    "verification/test_linearisation": 5,
    "verification/test_locus": 5,
    "verification/test_long_run": 1,
    "verification/test_outside": 0.7,
    "verification/test_papers": 1,
    "verification/test_retraction_maps": 0.9,
    "verification/test_reversible": 0.4,
    "verification/test_rigid_body_exact": 5,
    "verification/test_roundoff": 2,
    "verification/test_sweep_faults": 10,
    "verification/test_taylor": 3,
}
"""What a test of a file takes, where it is far from `USUAL`."""
USUAL = 0.25


MAX_MEMORY = 6 * 1024**3
"""Bytes of a process above which it forgets, before the next file, what it compiled for others."""
MAX_MEMORY_OF_FILE = 8 * 1024**3
"""The same before the next test: the law of gradients compiles for hundreds of pairs, and had 10 GB after 400."""
MAX_SECONDS = 600
"""What a test may take: one that hangs fails with its name. Native code that does not come back ends its process."""


if hasattr(os, "register_at_fork"):  # an alarm of a forked process is its own affair
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    def end(number, frame):
        pytest.fail(f"{item.nodeid} takes more than {MAX_SECONDS} s")

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return (yield)
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    faulthandler.dump_traceback_later(MAX_SECONDS + 60, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_teardown(item, nextitem):
    same = nextitem is not None and nextitem.path == item.path
    if nextitem is not None and used_memory() > (MAX_MEMORY_OF_FILE if same else MAX_MEMORY):
        for kept in (problem._programs, plans._plans, llvm._functions):
            kept.clear()
        jax.clear_caches()
        gc.collect()
        with suppress(AttributeError):  # where C's library has it: what is free goes back, half of all
            ctypes.CDLL(None).malloc_trim(0)


def used_memory() -> int:
    """The bytes of memory that this process has now; 0 where it cannot be known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Scheduling(LoadFileScheduling):
    """A process takes a file at a time, the longest that is left, so that both end together.

    The parts of the heavy fuzzer alone are taken one by one, for they are long, and the law of gradients by systems.
    """

    def _split_scope(self, nodeid: str) -> str:
        if "what_differences_say[" in nodeid:
            return nodeid.partition(", ")[0]
        return nodeid if "test_a_hundred_thousand" in nodeid else super()._split_scope(nodeid)

    def _assign_work_unit(self, node) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._seconds), last=False)
        super()._assign_work_unit(node)

    def _seconds(self, scope: str) -> float:
        file = scope.partition("::")[0].removeprefix("tests/").removesuffix(".py")
        return len(self.workqueue[scope]) * SECONDS.get(file, USUAL)


def pytest_configure(config):
    if config.option.markexpr == "not heavy":
        llvm.EFFORT = 0


def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
