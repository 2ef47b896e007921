"""Faults at random moments: kills, full disks, Ctrl-C, damage, two writers. Nothing is lost, wrong or left behind.

One machine: a case draws a fault from its seed, lets it strike while something is written, and then finishes the work.
What comes out must be the uninterrupted run, bit for bit.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from registry import forget

import dalembert as da
from dalembert.errors import InvalidInput, WriteFailure
from dalembert.io.atomic import atomic_path, output_lock, restore_replaced
from dalembert.io.config import load_job, resume_run
from dalembert.io.dataset import SEAL, has_whole_structure, load_run, save_run
from dalembert.kernels import cache

HALF, WHOLE = 20, 40
CONFIG = """
[system]
name = "rigid-body"
inertia = [1.0, 2.0, 2.5]
[method]
name = "discrete-moser-veselov"
[initial]
momentum = [1.0, 2.0, 3.0]
[run]
step = 0.1
steps = {steps}
"""
MOMENTS = [(os, name) for name in ("open", "replace", "rename", "fsync", "mkdir", "unlink", "close", "posix_fallocate")]
MOMENTS += [(xarray.Dataset, name) for name in ("to_netcdf", "to_zarr")]
"""What a writer calls: a fault comes before or after one of these."""


class Work:
    """A configuration, its run half done and done, and how both are written and compared."""

    def __init__(self, folder):
        self.folder, self.jobs = folder, {}
        for steps in (HALF, WHOLE):
            (folder / f"{steps}.toml").write_text(CONFIG.format(steps=steps))
            self.jobs[steps] = load_job(folder / f"{steps}.toml")
        self.runs = {steps: self.simulate(steps) for steps in self.jobs}
        self.moments = {}  # how many there are in a save, by suffix

    def simulate(self, steps):
        job = self.jobs[steps]
        return da.simulate(job.system, job.integrator, job.state, step=0.1, steps=steps, monitor=True)

    def save(self, steps, path):
        save_run(self.runs[steps], path, {"config": self.jobs[steps].text, "system": "rigid-body"})

    def require_same(self, run, steps=WHOLE):
        for mine, theirs in zip(jax.tree.leaves(run.records), jax.tree.leaves(self.runs[steps].records), strict=True):
            assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()

    def put(self, steps, path):
        """The file of a run, as if it had just been written."""
        template = self.folder / f"{steps}{path.suffix}"
        if not template.exists():
            self.save(steps, template)
        shutil.copytree(template, path) if template.is_dir() else shutil.copy(template, path)

    def filled_cache(self):
        """A cache that a process left behind."""
        objects = self.folder / "objects"
        if not objects.exists():
            with new_process(objects):
                self.swung = swing().tobytes()
            assert all(path.is_file() for path in objects.iterdir())
        return objects

    def finish(self, path):
        """What a user does after a fault: the same command with --resume. Then nothing but the file is there."""
        with output_lock(path):
            if path.exists():
                self.require_same(resume_run(self.jobs[WHOLE], path))
            else:
                self.put(WHOLE, path)
        assert os.listdir(path.parent) == [path.name]


@contextmanager
def new_process(objects):
    """Let this process know no code but that of this cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DALEMBERT_CACHE", str(objects))
        patch.setattr(cache, "IMPORT_TIME", float("inf"))
        forget(patch)
        yield


def pendulum(t, q, v, p):
    return 0.5 * v @ v + jnp.cos(q[0])


def swing():
    """The states of a small system, for its code is made anew in every case."""
    system = da.System(da.Euclidean(1), pendulum)
    run = da.simulate(system, da.RungeKutta(), system.state([0.3], [0.5]), step=0.1, steps=WHOLE, backend="llvm")
    return np.concatenate([run.g, run.xi], axis=1)


@contextmanager
def at_moment(number, fault):
    """Call `fault` at the n-th moment; yield a list that counts them."""
    seen, busy = [], threading.local()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in MOMENTS:
            real = getattr(owner, name)

            def call(*args, real=real, name=name, **options):
                if getattr(busy, "now", False) or threading.current_thread() is not threading.main_thread():
                    return real(*args, **options)
                seen.append(name)
                if len(seen) == number:
                    busy.now = True
                    try:
                        fault(name, *args)
                    finally:
                        busy.now = False
                return real(*args, **options)

            patch.setattr(owner, name, call)
        yield seen


def snapshot(folder, copy, name, *args):
    """What the disk holds if the machine is killed now."""
    shutil.copytree(folder, copy, symlinks=True, ignore_dangling_symlinks=True)


def full(name, *args):
    if name not in ("close", "unlink") and (name != "open" or args[1] & os.O_CREAT):  # these need no room
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(name, *args):
    if name != "close":
        raise KeyboardInterrupt


def strike(work, kind, rng, folder):
    """A save over an older file (or over nothing) that a fault ends, and the work after it."""
    suffix = str(rng.choice(["nc", "zarr"], p=[0.7, 0.3]))  # a folder has a hundred files, all alike
    path = folder / "run" / f"run.{suffix}"
    path.parent.mkdir()
    if suffix not in work.moments:
        work.put(HALF, path)
        with at_moment(-1, full) as seen:
            work.save(WHOLE, path)
        work.moments[suffix] = len(seen)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = rng.random() < 0.7
    if before:
        work.put(HALF, path)
    number, crashed = int(rng.integers(1, work.moments[suffix] + 1)), folder / "crashed"
    faults = {"kill": partial(snapshot, path.parent, crashed), "full disk": full, "interrupt": interrupt}
    with suppress(WriteFailure, KeyboardInterrupt), at_moment(number, faults[kind]):
        work.save(WHOLE, path)
    if kind == "kill":
        if not crashed.exists():
            return
        path = crashed / path.name
    if kind == "full disk":
        assert os.listdir(path.parent) in ([], [path.name])
    if before:  # a Zarr folder between its two renames comes back when it is read
        restore_replaced(path)
        assert path.exists()
    work.finish(path)


def damage_file(work, rng, folder):
    path = folder / "run.nc"
    work.put(HALF, path)
    content = bytearray(path.read_bytes())
    if rng.random() < 0.3:
        del content[int(rng.integers(len(content))) :]
    else:
        for place in rng.integers(len(content), size=rng.integers(1, 9)):
            content[place] ^= int(rng.integers(1, 256))
    path.write_bytes(bytes(content))
    with suppress(InvalidInput):
        work.require_same(resume_run(work.jobs[WHOLE], path))


def damage_cache(work, rng, folder):
    """A process that finds nothing but damaged entries where its code was."""
    shutil.copytree(work.filled_cache(), folder / "objects")
    entries = sorted((folder / "objects").iterdir())
    for path in entries:
        content, other = bytearray(path.read_bytes()), entries[int(rng.integers(len(entries)))]
        kind = rng.integers(6)
        if kind == 0:
            content[int(rng.integers(len(content)))] ^= int(rng.integers(1, 256))
            path.write_bytes(bytes(content))
        elif kind == 1:
            path.write_bytes(bytes(content[: int(rng.integers(len(content)))]))
        elif kind == 2 and other.is_file():
            path.write_bytes(other.read_bytes())
        elif kind == 3:
            path.unlink()
        elif kind == 4:
            path.unlink()
            path.mkdir()
    with new_process(folder / "objects"):
        assert swing().tobytes() == work.swung


def two_writers(work, rng, folder):
    path = folder / f"run.{rng.choice(['nc', 'zarr'])}"
    waits = rng.random(2) * 0.02

    def write(steps, wait):
        time.sleep(wait)
        with atomic_path(path) as temporary:
            if path.suffix == ".zarr":
                temporary.mkdir()
                (temporary / "zarr.json").write_text(str(steps))
            (temporary / "steps" if path.suffix == ".zarr" else temporary).write_text(str(steps) * 1000)

    with pytest.MonkeyPatch.context():
        writers = [threading.Thread(target=write, args=pair) for pair in zip((HALF, WHOLE), waits, strict=True)]
        [writer.start() for writer in writers]
        [writer.join() for writer in writers]
    content = (path / "steps" if path.is_dir() else path).read_text()
    assert content in (str(HALF) * 1000, str(WHOLE) * 1000) and os.listdir(folder) == [path.name]


FAULTS = {
    "kill": lambda work, rng, folder: strike(work, "kill", rng, folder),
    "full disk": lambda work, rng, folder: strike(work, "full disk", rng, folder),
    "interrupt": lambda work, rng, folder: strike(work, "interrupt", rng, folder),
    "damaged file": damage_file,
    "damaged cache": damage_cache,
    "two writers": two_writers,
}
SHARES = {"kill": 4, "full disk": 3, "interrupt": 3, "damaged file": 5, "damaged cache": 2, "two writers": 3}
"""Cases of each kind in twenty."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    pytest.importorskip("zarr")
    return Work(tmp_path_factory.mktemp("work"))


@pytest.fixture
def place(tmp_path):
    """A folder in memory where there is one: faults are played, and nothing has to wait for a disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="dalembert-", dir="/dev/shm") as folder:
        yield Path(folder)


def try_cases(work, kind, seeds, place):
    for seed in seeds:
        folder = place / str(seed)
        folder.mkdir()
        try:
            FAULTS[kind](work, np.random.default_rng(seed), folder)
        except BaseException as fault:
            raise AssertionError(f"{kind}, seed {seed}: {type(fault).__name__}: {fault}") from fault
        shutil.rmtree(folder)


@pytest.mark.filterwarnings("ignore:the cache entry", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", FAULTS)
def test_twenty_faults_lose_nothing(work, kind, place):
    try_cases(work, kind, range(SHARES[kind]), place)


def test_hdf5_never_sees_a_damaged_structure(work, tmp_path, monkeypatch):
    """libhdf5 can follow a damaged structure for ever (seen in H5DSget_num_scales): such a file is refused unopened."""
    path = tmp_path / "run.nc"
    work.put(HALF, path)
    whole = path.read_bytes()
    end = len(whole) - 8 - len(SEAL) - int.from_bytes(whole[-8 - len(SEAL) : -len(SEAL)])
    numbers = json.loads(whole[end : -8 - len(SEAL)])["numbers"]
    begin, size = max(numbers, key=lambda place: place[1])
    structure = [k for k in range(0, end, 97) if not any(first <= k < first + many for first, many in numbers)]

    def flip(place):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])

    assert has_whole_structure(path)
    flip(begin + size // 2)
    with pytest.raises(InvalidInput, match=r"damaged: \w+ differs"):  # HDF5 reads numbers: the column is named
        load_run(path)
    monkeypatch.setattr("xarray.open_dataset", None)
    for place in (9, *structure[::50], end + 2):
        flip(place)
        with pytest.raises(InvalidInput, match="structure differs"):
            resume_run(work.jobs[WHOLE], path)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:the cache entry", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", FAULTS)
def test_a_thousand_faults_lose_nothing(work, kind, place):
    try_cases(work, kind, range(1000, 1000 + 50 * SHARES[kind]), place)


@pytest.mark.heavy
def test_runs_that_are_really_killed(work, tmp_path):
    """`dalembert run --out` again and again, killed by the system at random moments until it is done."""
    config, out = tmp_path / "body.toml", tmp_path / "out" / "body.nc"
    out.parent.mkdir()
    config.write_text(CONFIG.format(steps=WHOLE))
    command = [sys.executable, "-m", "dalembert.cli", "run", str(config), "--out", str(out)]
    rng, begin = np.random.default_rng(5), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    took = time.perf_counter() - begin
    for _ in range(10):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(took * float(rng.uniform(0.5, 1.0)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        work.require_same(load_run(out))
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    work.require_same(load_run(out))
    assert os.listdir(out.parent) == ["body.nc"]
