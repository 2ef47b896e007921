"""Sweeps that are really killed: after --resume a store equals the one of an uninterrupted run, bit for bit."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zarr

import dalembert as da
from dalembert.sweeps.execute import LostCluster, exact_curve

CONFIG = """
[system]
name = "suslov"
inertia = [[3, 0, 1], [0, 4, 0.5], [1, 0.5, 5]]
[method]
name = "euler-poincare-suslov"
lagrangian = "moser-veselov"
[initial]
momentum = [3.0, 2.0]
[run]
step = 0.05
steps = {steps}
[sweep]
run.step = {{linspace = [0.01, 0.5, {rows}]}}
initial.energy = {{logspace = [0.1, 100.0, 250]}}
chunk = 250
"""


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """A file of 40 blocks, and the store of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("sweeps")
    file = folder / "a.toml"
    file.write_text(CONFIG.format(steps=400, rows=40))
    whole = folder / "whole.zarr"
    assert da.sweep(file, out=whole).done == 10_000
    return file, whole


def command(file: Path, store: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "dalembert.cli", "sweep", str(file), "--out", str(store), *more]


def resume(file: Path, store: Path) -> subprocess.CompletedProcess:
    done = subprocess.run(command(file, store, "--resume"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def assert_same(store: Path, whole: Path) -> None:
    """All arrays, bit for bit, and the same files: nothing torn is left behind."""
    a, b = zarr.open_group(store, mode="r"), zarr.open_group(whole, mode="r")
    assert set(a.array_keys()) == set(b.array_keys())
    for name in b.array_keys():
        assert np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes(), name
    files = lambda path: {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}
    assert files(store) == files(whole)


@pytest.mark.heavy
def test_killed_in_the_middle_of_writes(sweeps, tmp_path):
    """SIGKILL as soon as a block has arrays but no mark yet, five times over."""
    file, whole = sweeps
    store, kills = tmp_path / "a.zarr", 0
    for attempt in range(5):
        process = subprocess.Popen(
            command(file, store, *(["--resume"] if attempt else [])),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        before = len(list((store / "block_checksum" / "c").glob("*"))) if attempt else 0
        while process.poll() is None:
            written = len(list((store / "status" / "c").glob("*/0")))
            marked = len(list((store / "block_checksum" / "c").glob("*")))
            if marked > before + 2 and written > marked:
                process.kill()
                kills += process.wait() == -signal.SIGKILL
                break
            time.sleep(0.0002)
    marks = np.asarray(zarr.open_group(store, mode="r")["block_checksum"])
    print(f"{kills} kills, {np.count_nonzero(marks != -1)} of {marks.size} blocks marked before the last resume")
    assert kills >= 3 and (marks == -1).any()
    resume(file, store)
    assert_same(store, whole)


def test_a_block_whose_mark_is_lost_is_computed_again(sweeps, tmp_path):
    file, whole = sweeps
    store = shutil.copytree(whole, tmp_path / "a.zarr")
    (store / "block_checksum" / "c" / "7").unlink()
    (store / "status" / "c" / "7" / "0").write_bytes(b"torn")
    resume(file, store)
    assert_same(store, whole)


@pytest.mark.heavy
def test_stopped_by_ctrl_c(sweeps, tmp_path):
    file, whole = sweeps
    store = tmp_path / "a.zarr"
    process = subprocess.Popen(command(file, store), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while len(list((store / "block_checksum" / "c").glob("*"))) < 5:
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in said and "Traceback" not in said
    resume(file, store)
    assert_same(store, whole)


@pytest.mark.heavy
def test_a_disk_that_fills(sweeps, tmp_path):
    file, whole = sweeps
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(disk)], capture_output=True, check=False
    ).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        store = disk / "a.zarr"
        full = subprocess.run(command(file, store), capture_output=True, text=True, check=False)
        assert full.returncode == 1 and "No space left" in full.stderr and "--resume" in full.stderr, full.stderr
        assert "Traceback" not in full.stderr
        marks = np.asarray(zarr.open_group(store, mode="r")["block_checksum"])
        assert 0 < np.count_nonzero(marks != -1) < marks.size
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        resume(file, store)
        assert_same(store, whole)
    finally:
        subprocess.run(["umount", str(disk)], check=False)


@pytest.mark.heavy
def test_a_dask_worker_killed_in_the_middle_of_a_block(sweeps, tmp_path):
    distributed = pytest.importorskip("distributed")
    file, whole = sweeps
    store, killed = tmp_path / "a.zarr", []
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = list(client.run(os.getpid).values())

        def kill(done, total, rate):
            if not killed:  # every worker has blocks in hand while others are to come
                killed.append(workers[0])
                os.kill(workers[0], signal.SIGKILL)

        result = da.sweep(file, out=store, executor="dask", scheduler=cluster.scheduler_address, progress=kill)
        assert killed and result.done == 10_000 and result.computed == 10_000
        assert killed[0] not in client.run(os.getpid).values()
    assert_same(store, whole)


@pytest.mark.heavy
def test_a_lost_scheduler(sweeps, tmp_path):
    pytest.importorskip("distributed")
    file, whole = sweeps
    store = tmp_path / "a.zarr"
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert scheduler.stderr is not None
    address = next(found[0] for line in scheduler.stderr if (found := re.findall(r"tcp://[\d.]+:\d+", line)))
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            address,
            "--nthreads",
            "1",
            "--no-dashboard",
            "--death-timeout",
            "60",
        ],
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    try:
        with pytest.raises(LostCluster, match="--resume"):
            da.sweep(file, out=store, executor="dask", scheduler=address, progress=lambda *_: scheduler.kill())
        resume(file, store)
        assert_same(store, whole)
    finally:
        scheduler.kill()
        worker.kill()


# -- what the gallery shows -------------------------------------------------------------------------------------------
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_threshold_of_a_map_is_a_curve_of_constant_step_times_root_of_energy(tmp_path):
    (tmp_path / "a.toml").write_text(CONFIG.format(steps=10, rows=3))
    data = da.sweep(tmp_path / "a.toml").dataset()
    steps, energies, _ = exact_curve(data, "status", "run_step", "initial_energy")
    assert len(steps) > 1 and np.ptp(steps * np.sqrt(energies)) < 1e-6 * steps[0] * np.sqrt(energies[0])


@pytest.mark.heavy
def test_the_suslov_map_fails_exactly_beyond_its_threshold(tmp_path):
    """All 8000 members of the gallery's failure map lie on the right side of the exact curve."""
    data = da.sweep(EXAMPLES / "sweep-suslov.toml").dataset()
    steps, energies, _ = exact_curve(data, "status", "run_step", "initial_energy")
    constant = float(np.median(steps * np.sqrt(energies)))
    failed = np.asarray(data.status) != 0
    beyond = np.asarray(data.run_step)[:, None] * np.sqrt(np.asarray(data.initial_energy)) > constant
    print(
        f"threshold eps sqrt(E) = {constant:.12g}; {failed.sum()} of {failed.size} fail, "
        f"{(failed != beyond).sum()} on the wrong side"
    )
    assert np.array_equal(failed, beyond) and 0 < failed.sum() < failed.size


@pytest.mark.heavy
def test_the_sleigh_turns_by_the_exact_angle():
    data = da.sweep(EXAMPLES / "sweep-sleigh.toml").dataset()
    exact = [[da.models.total_turning(1.0, float(j), float(a)) for j in data.system_inertia] for a in data.system_a]
    error = np.abs(np.asarray(data.final_angle)[..., 0] / exact - 1)
    print(f"turning angles are within {error.max():.3g} of (pi/a) sqrt((J + m a^2)/m)")
    assert error.max() < 1e-4
