"""Memory is asked for before a run: what does not fit is refused with what would, and long runs take no more."""

from __future__ import annotations

import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dalembert as da
from dalembert.cli import main
from dalembert.errors import InvalidInput
from dalembert.kernels import execute


@pytest.fixture(scope="module")
def body():
    return da.models.rigid_body([1.0, 2.0, 2.5])


@pytest.mark.parametrize("steps", [10**9, 10**12, 10**15])
def test_records_that_do_not_fit_are_refused_with_what_fits(body, steps, monkeypatch):
    monkeypatch.setattr(execute, "available_memory", lambda: 1 << 30)
    start = body.state(momentum=[1.0, 2.0, 3.0])
    with pytest.raises(InvalidInput, match=r"save_every is 1, and \d+ records .*GiB.*: save_every = \d+ fits") as told:
        da.simulate(body, da.RungeKutta(), start, step=0.1, steps=steps)
    fits = int(str(told.value).split("save_every = ")[1].split()[0])
    assert steps / fits < 2e6  # of 200 bytes and more
    with pytest.raises(InvalidInput, match="save_every = "):
        da.simulate(body, da.RungeKutta(), start, step=0.1, steps=steps, save_every=fits // 100)


def test_members_count(body, monkeypatch):
    monkeypatch.setattr(execute, "available_memory", lambda: 1 << 24)
    states = [body.state(momentum=[1.0, 2.0, 3.0 + k]) for k in range(100)]
    with pytest.raises(InvalidInput, match="save_every = 10 fits"):
        da.ensemble(body, da.RungeKutta(), states, step=0.1, steps=2000)
    assert da.ensemble(body, da.RungeKutta(), states, step=0.1, steps=200, save_every=10).t.shape == (100, 21)


def test_the_limits_of_a_process_count():
    program = "import resource; from dalembert.kernels.execute import available_memory as ask; free = ask();"
    program += "resource.setrlimit(resource.RLIMIT_AS, (24 << 30, -1)); print(free, ask())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    free, limited = map(int, done.stdout.split())
    assert 1 << 20 < limited <= free < 1 << 50 and limited < 24 << 30


def command(*arguments):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr("sys.argv", ["dalembert", *map(str, arguments)])
        main()
    return ended.value.code


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "body.toml"
    assert command("init", "rigid-body", "--out", path) == 0
    return path


def test_the_command_line_says_what_fits_and_writes_nothing(config, tmp_path, capsys):
    for steps in (10**12, 10**15):
        out = tmp_path / "body.nc"
        assert command("run", config, "--set", f"run.steps={steps}", "--out", out) == 2
        assert "save_every = 1" in capsys.readouterr().err and not out.exists()
    assert command("animate", config, "--seconds", "1e9", "--out", tmp_path / "x.gif") == 2
    assert "3600" in capsys.readouterr().err
    assert command("convergence", config, "--levels", "60", "--no-plot") == 2
    assert "levels is 60; allowed" in capsys.readouterr().err


@pytest.mark.heavy
def test_a_thousand_million_steps_take_the_memory_of_their_records(body):
    start, method = body.state(momentum=[1.0, 2.0, 3.0]), da.DiscreteMoserVeselov()
    da.simulate(body, method, start, step=0.01, steps=10**6, save_every=10**5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = da.simulate(body, method, start, step=0.01, steps=10**9, save_every=10**7).check()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
    assert len(run.t) == 101 and np.abs(run.energy_error()).max() < 1e-9


@pytest.mark.heavy
def test_the_gradient_of_ten_million_steps_fits_into_100_megabytes():
    sleigh, method, steps = da.models.chaplygin_sleigh(), da.LagrangeDAlembert(), 10**7

    @jax.jit
    @jax.grad
    def slope(spin):
        start = sleigh.state(xi=jnp.array([spin, -1.0, 0.0]))
        return jnp.sum(da.simulate(sleigh, method, start, step=1e-3, steps=steps, save_every=steps).xi[-1] ** 2)

    def energy(spin):
        run = da.simulate(sleigh, method, sleigh.state(xi=[spin, -1.0, 0.0]), step=1e-3, steps=steps, save_every=steps)
        return np.sum(run.xi[-1] ** 2)

    differences = (energy(0.5 + 1e-4) - energy(0.5 - 1e-4)) / 2e-4
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert abs(slope(0.5) - differences) < 1e-7 * abs(differences)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB, compiler included
