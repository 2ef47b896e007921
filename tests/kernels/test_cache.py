"""The object cache: whole or nothing, verified, private, safe for two writers."""

import os
import stat
import subprocess
import sys

import jax
import numpy as np
import pytest
import toys

from dalembert.kernels import cache, llvm, make_problem, run_problem

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
    assert cache.load_or_build("a", build) == cache.load_or_build("a", build) == b"machine code" and len(calls) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:10],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"x" + data[1:],
    ],
)
def test_a_corrupt_entry_is_rebuilt(folder, damage):
    build, calls = built()
    cache.load_or_build("a", build)
    (folder / "a").write_bytes(damage((folder / "a").read_bytes()))
    assert cache.load_or_build("a", build) == b"machine code" and len(calls) == 2
    assert cache.load_or_build("a", build) == b"machine code" and len(calls) == 2


def test_a_folder_that_others_can_write_is_not_used(folder):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    build, calls = built()
    cache.load_or_build("a", build)
    cache.load_or_build("a", build)
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
        cache.load_or_build(name, built(name.encode() * 1000)[0])
    assert sorted(os.listdir(folder)) == ["a", "b", "c"]


WRITER = """
import pathlib, sys
from dalembert.kernels.cache import write_entry
for n in range(200):
    write_entry(pathlib.Path(sys.argv[1]), b"z" * (1000 + 37 * (n % 5)))
"""


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
    monkeypatch.setattr(llvm, "_functions", {})
    first = run_problem(make_problem(*arguments), saves=20, backend="llvm")
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(llvm, "_functions", {})
    monkeypatch.setattr(llvm, "compile_object", lambda text: pytest.fail("compiled again"))
    second = run_problem(make_problem(*arguments), saves=20, backend="llvm")
    np.testing.assert_array_equal(first.records["x"], second.records["x"])
