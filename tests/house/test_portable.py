"""What the program does where the system is not Linux: modules that only POSIX has are taken away, locks are those of
Windows, and a command still runs and writes its file.
"""

from __future__ import annotations

import ast
import os
import struct
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dalembert
from dalembert.errors import InvalidInput
from dalembert.io import atomic
from dalembert.kernels import cache

fcntl = pytest.importorskip("fcntl", reason="this system is not POSIX itself: there is nothing to take away")
ROOT = Path(dalembert.__file__).parent
POSIX = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "select")
CALLS = ("fork", "getuid", "geteuid", "pwrite", "posix_fallocate", "sched_getaffinity", "killpg", "sysconf", "uname")

WITHOUT_POSIX = f"""
import multiprocessing, os, pathlib, signal, sys
import jax, numpy, rich.console, rich.table, typer  # what other people's packages import is theirs to guard
import h5netcdf, xarray
for name in {POSIX!r}:
    sys.modules[name] = None
for name in {CALLS!r}:
    if hasattr(os, name):
        delattr(os, name)
for name in ("setitimer", "pthread_sigmask", "SIGALRM", "SIGHUP", "SIGKILL", "SIGCHLD", "SIGPIPE", "SIGUSR1"):
    delattr(signal, name)
read = pathlib.Path.read_text
def read_no_proc(self, *given, **options):
    if str(self).startswith(("/proc", "/sys/fs")):
        raise FileNotFoundError(self)
    return read(self, *given, **options)
pathlib.Path.read_text = read_no_proc
multiprocessing.get_all_start_methods = lambda: ["spawn"]
import dalembert as da
from dalembert.cli import main
from dalembert.kernels.cache import cache_folder
from dalembert.studio.workers import Workers
assert cache_folder() is not None, "there is a cache"
assert Workers(print, "json", 1.0).context.get_start_method() == "spawn"
few = ["--set", "run.steps=5"]
for words in (
    ["init", "suslov"], ["run", "suslov.toml", *few, "--out", "run.nc", "--plot", "run.png"], ["info"],
    ["show", "run.nc"], ["list", "methods"], ["list", "systems"], ["examples", "sweep-suslov"],
    ["compare", "suslov.toml", *few, "--no-error"],
    ["sweep", "sweep-suslov.toml", "--set", "sweep.run.step=[0.1]", "--set", "sweep.initial.energy=[1.0]"],
):
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, words
assert da.load("run.nc").steps == 5
assert sorted(os.listdir()) == ["run.nc", "run.png", "suslov.toml", "sweep-suslov.toml"]
print("all of it ran")
"""


def test_commands_run_without_what_only_posix_has(tmp_path):
    environment = os.environ | {"DALEMBERT_CACHE": str(tmp_path / "cache")}
    place = tmp_path / "empty"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX], capture_output=True, text=True, check=False, cwd=place, env=environment
    )
    assert done.returncode == 0 and done.stdout.endswith("all of it ran\n"), done.stderr


def test_no_module_needs_posix_when_it_is_imported():
    """A module of POSIX is imported inside a function or behind `except ImportError`."""
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not names & set(POSIX), f"{path}: {names}"


def lock_a_byte(handle: int, mode: int, count: int) -> None:
    """`msvcrt.locking`: lock `count` bytes from where the file stands, for this handle alone."""
    start = os.lseek(handle, 0, os.SEEK_CUR)
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, count, 0))


@pytest.fixture
def windows(monkeypatch):
    """The locks of Windows, which hold bytes of files."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        pytest.skip("nothing here behaves like msvcrt.locking")
    monkeypatch.setattr(atomic, "fcntl", None)
    monkeypatch.setattr(atomic, "msvcrt", types.SimpleNamespace(LK_NBLCK=2, locking=lock_a_byte))


def test_two_runs_cannot_hold_one_file_by_the_locks_of_windows(windows, tmp_path):
    path = tmp_path / "run.nc"
    with (
        atomic.output_lock(path),
        pytest.raises(InvalidInput, match=rf"another run \(process {os.getpid()}\) is writing"),
        atomic.output_lock(path),
    ):
        pass
    with atomic.output_lock(path), atomic.atomic_path(path) as temporary:
        temporary.write_text("x")
    assert os.listdir(tmp_path) == ["run.nc"]


def test_what_a_killed_writer_left_goes_and_a_living_writer_stays(windows, tmp_path):
    path, dead = tmp_path / "run.nc", tmp_path / f".run.nc-0{atomic.PART_SUFFIX}"
    dead.mkdir()
    (dead / atomic.WRITER).touch()
    with atomic.atomic_path(path) as mine:
        assert not dead.exists()
        atomic.remove_leftovers(path)
        assert mine.parent.exists(), "its writer lives"
        mine.write_text("x")
    assert os.listdir(tmp_path) == ["run.nc"]


def test_an_entry_of_the_cache_is_closed_before_it_is_renamed(monkeypatch, tmp_path):
    """Windows renames no open file: at the time of the rename nothing of ours is open in the folder."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("nobody tells here which files are open")
    rename, seen = os.replace, []

    def replace(source, target):
        seen.append([name for fd in os.listdir("/proc/self/fd") if (name := read_link(fd)) == str(source)])
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    cache.write_entry(tmp_path / "entry", b"x")
    assert seen == [[]] and cache.read_entry(tmp_path / "entry") == b"x"


def read_link(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""
