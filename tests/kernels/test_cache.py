"""The object cache: whole or nothing, verified, private, safe for two writers."""

import gc
import os
import stat
import subprocess
import sys
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import toys
from registry import forget

import dalembert as da
from dalembert.kernels import cache, compile, llvm, make_problem, problem, run_problem

jax.config.update("jax_enable_x64", True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DALEMBERT_CACHE", str(tmp_path / "objects"))
    return tmp_path / "objects"


def built(content=b"machine code"):
    calls = []

    def build():
        calls.append(1)
        return content

    return build, calls


def test_an_object_is_built_once(folder):
    build, calls = built()
    for _ in range(2):
        assert cache.load_or_build("a", build, bytes) == b"machine code" and len(calls) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def flip(path):
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def swap(path):
    cache.load_or_build("b", lambda: b"other code", bytes)
    path.with_name("b").replace(path)


def make_folder(path):
    path.unlink()
    (path / "inside").mkdir(parents=True)


DAMAGES = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "without an end": lambda path: path.write_bytes(path.read_bytes()[:10]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "a bit flipped": flip,
    "foreign": lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]),
    "of an earlier version": lambda path: path.write_bytes(path.read_bytes().replace(b"object 2", b"object 1", 1)),
    "under another's name": swap,
    "unreadable": lambda path: path.chmod(0),
    "a folder": make_folder,
    "a link to nowhere": lambda path: path.unlink() or path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.unlink() or path.symlink_to(path.name),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_entry_with_a_fault_is_built_again_once(folder, damage):
    build, calls = built()
    cache.load_or_build("a", build, bytes)
    DAMAGES[damage](folder / "a")
    for _ in range(2):
        assert cache.load_or_build("a", build, bytes) == b"machine code"
    assert len(calls) == (2 if damage != "unreadable" or os.getuid() else 1)  # root reads everything


def test_an_entry_that_is_of_no_use_is_built_again(folder):
    def use(content):
        if content == b"old":
            raise RuntimeError("no such relocation")
        return content

    cache.load_or_build("a", lambda: b"old", bytes)
    build, calls = built()
    with pytest.warns(UserWarning, match="built again: no such relocation"):
        assert cache.load_or_build("a", build, use) == b"machine code"
    assert cache.load_or_build("a", build, use) == b"machine code" and len(calls) == 1


def test_what_killed_writers_left_is_removed(folder):
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder.mkdir(mode=0o700)
    left = [folder / f".writing-{process}-abc" for process in (gone.pid, os.getpid(), "x")]
    for path in left:
        path.write_bytes(b"half")
    cache._remove_leftovers.cache_clear()
    cache.load_or_build("a", built()[0], bytes)
    assert sorted(os.listdir(folder)) == sorted([f".writing-{os.getpid()}-abc", "a"])


@pytest.mark.parametrize("swapped", [False, True])
def test_entries_of_a_run_that_are_exchanged_or_of_no_use_are_built_again(folder, monkeypatch, swapped):
    """FINDINGS S3: the numbers are the same whatever the folder holds, and nothing has to be deleted by hand."""
    monkeypatch.setattr(cache, "IMPORT_TIME", float("inf"))
    body = da.models.rigid_body([1.0, 2.0, 2.5])

    def simulate():
        forget(monkeypatch)
        return np.asarray(
            da.simulate(body, da.RungeKutta(), body.state(momentum=[1, 2, 3]), step=0.1, steps=5).momentum
        )

    first = simulate()
    entries = sorted(path for path in folder.iterdir() if path.is_file())
    contents = [path.read_bytes() for path in entries]
    assert len(entries) > 2
    for path, other in zip(entries, contents[1:] + contents[:1], strict=True):
        if swapped:
            path.write_bytes(other)
        else:  # intact, but neither an outline of a program nor code
            cache.write_entry(path, b"\x80 or \x7fELF, but no more")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            np.testing.assert_array_equal(simulate(), first)


def test_code_that_nothing_holds_is_unloaded(folder, monkeypatch):
    monkeypatch.setattr(llvm, "MAX_FUNCTIONS", 2)
    monkeypatch.setattr(problem, "MAX_PROGRAMS", 2)
    monkeypatch.setattr(problem, "EVICTIONS_PER_CLEARING", 4)
    cleared: list[int] = []
    monkeypatch.setattr(problem.jax, "clear_caches", lambda: cleared.append(1))  # what other tests compiled stays
    forget(monkeypatch)
    unloaded, steps = [], []
    link = llvm.load_object

    def load(code):
        function = link(code)
        weakref.finalize(function, unloaded.append, 1)
        return function

    monkeypatch.setattr(llvm, "load_object", load)
    for k in range(8):
        steps.append(compile(lambda x, u, p, k=k: (x + k, x), 1.0, backend="llvm"))
        assert steps[-1].run(3).carry == 1.0 + 3 * k
    gc.collect()
    assert len(llvm._functions) == 2 and len(problem._programs) == 2 and len(unloaded) >= 6 and cleared
    assert [float(step.run(2).carry) for step in steps] == [1.0 + 2 * k for k in range(8)]  # compiled again
    with ThreadPoolExecutor(4) as pool:  # all evict each other's
        ends = list(pool.map(lambda k: float(steps[k % 8].run(4).carry), range(24)))
    assert ends == [1.0 + 4 * (k % 8) for k in range(24)]


def test_a_folder_that_others_can_write_is_not_used(folder):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    build, calls = built()
    cache.load_or_build("a", build, bytes)
    cache.load_or_build("a", build, bytes)
    assert len(calls) == 2 and not list(folder.iterdir())


def test_a_linked_folder_is_not_used(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert cache.cache_folder() is None


def test_off_means_off(monkeypatch):
    monkeypatch.setenv("DALEMBERT_CACHE", "off")
    assert cache.cache_folder() is None


def test_nothing_but_entries_stays_behind(folder):
    for name in "abc":
        cache.load_or_build(name, built(name.encode() * 1000)[0], bytes)
    assert sorted(os.listdir(folder)) == ["a", "b", "c"]


WRITER = """
import pathlib, sys
from dalembert.kernels.cache import write_entry
for n in range(200):
    write_entry(pathlib.Path(sys.argv[1]), b"z" * (1000 + 37 * (n % 5)))
"""


@pytest.mark.heavy
def test_two_writers_leave_a_whole_entry_at_every_moment(folder):
    folder.mkdir(mode=0o700)
    command = [sys.executable, "-c", WRITER, str(folder / "a")]
    writers = [subprocess.Popen(command) for _ in range(2)]
    while any(writer.poll() is None for writer in writers):
        exists = (folder / "a").exists()
        content = cache.read_entry(folder / "a")
        assert content is not None or not exists
        assert content is None or set(content) == {ord("z")}
    assert [writer.returncode for writer in writers] == [0, 0]


def test_a_kernel_comes_back_from_the_disk(folder, monkeypatch):
    arguments = (toys.advance, toys.observe, toys.consts(), toys.start())
    forget(monkeypatch)
    first = run_problem(make_problem(*arguments), saves=20, backend="llvm")
    objects = [cache.read_entry(entry) for entry in folder.iterdir()]
    assert len([content for content in objects if content.startswith(b"\x7fELF")]) == 1  # and what is known of it
    forget(monkeypatch)
    monkeypatch.setattr(llvm, "compile_object", lambda text: pytest.fail("compiled again"))
    second = run_problem(make_problem(*arguments), saves=20, backend="llvm")
    np.testing.assert_array_equal(first.records["x"], second.records["x"])
