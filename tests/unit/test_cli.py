"""The command line as a user meets it: numbers, messages, exit codes, files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray
from typer.testing import CliRunner

from dalembert.cli import app
from dalembert.config import parse
from dalembert.errors import InvalidInput

EXAMPLES = Path(__file__).parents[2] / "examples"
SUSLOV = (EXAMPLES / "suslov.toml").read_text()


def invoke(*words: str):
    return CliRunner().invoke(app, list(words))


def run_json(text: str, folder: Path) -> tuple[dict, int]:
    path = folder / "job.toml"
    path.write_text(text)
    result = invoke("run", str(path), "--json")
    return json.loads(result.stdout), result.exit_code


def test_suslov_reference_through_json(tmp_path):
    result, code = run_json(SUSLOV, tmp_path)
    assert code == 0
    assert result["status"] == "ok" and result["failed_at"] is None and result["steps"] == 67
    expected = [-37.65114600527634, 101.1739627033327, -2.410035778463771]
    np.testing.assert_allclose(result["final"]["momentum"], expected, rtol=1e-10)
    assert result["energy"]["initial"] == pytest.approx(1515.789473722025, rel=1e-12)
    assert result["energy"]["max_error"] < 1e-10
    assert result["constraint"]["max"] < 1e-13 and result["group"]["max"] < 1e-14
    assert result["final"]["angles"] is None and len(result["final"]["configuration"]) == 3


def test_cayley_suslov_energy_is_reported_over_all_steps(tmp_path):
    result, _ = run_json(SUSLOV.replace('"moser-veselov" ', '"retraction"'), tmp_path)
    np.testing.assert_allclose(
        result["final"]["momentum"], [-37.16852883706743, 101.3883617161822, -1.762160369745663], rtol=1e-10
    )
    assert result["energy"]["max_error"] == pytest.approx(15.469834099, rel=1e-9)


def test_sleigh_reference_through_json(tmp_path):
    result, code = run_json((EXAMPLES / "sleigh.toml").read_text(), tmp_path)
    assert code == 0
    np.testing.assert_allclose(result["final"]["momentum"][:2], [-0.22973074348379, 1.2175081194661], rtol=1e-10)
    np.testing.assert_allclose(result["final"]["angles"], [9.3477658541293], rtol=1e-10)
    pose = np.array(result["final"]["configuration"])
    np.testing.assert_allclose(pose[:2, 2], [-10.513186295448, 4.7699448851917], rtol=1e-10)


def test_failure_is_data_with_the_step(tmp_path):
    result, code = run_json(SUSLOV.replace("step = 0.015", "step = 0.034"), tmp_path)
    assert code == 1
    assert (result["status"], result["failed_at"]) == ("failed", 3)
    assert "branch" in result["reason"] and result["time"] == pytest.approx(3 * 0.034)


def test_a_start_without_solution_has_no_final_state(tmp_path):
    result, code = run_json(SUSLOV.replace("step = 0.015", "step = 0.036"), tmp_path)
    assert (code, result["failed_at"], result["steps"]) == (1, -1, 0)
    assert set(result["final"].values()) == {None} and result["energy"]["max_error"] is None


def test_out_writes_every_saved_state(tmp_path):
    target = tmp_path / "run.nc"
    result = invoke("run", str(EXAMPLES / "suslov.toml"), "--out", str(target))
    assert result.exit_code == 0 and "67" in result.stdout
    with xarray.open_dataset(target, engine="h5netcdf") as data:
        assert data.sizes["time"] == 68 and data["configuration"].shape == (68, 3, 3)
        assert "moser-veselov" in data.attrs["config"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.nc"]


BAD = {
    "unknown system": ('name = "suslov"', 'name = "suslof"', "Did you mean 'suslov'"),
    "unknown method": ('"euler-poincare-suslov"', '"euler-poincare-suslow"', "Did you mean 'euler-poincare-suslov'"),
    "unknown parameter": ("inertia =", "inertai =", "Did you mean 'inertia'"),
    "unknown option": ("lagrangian =", "lagrangain =", "Did you mean 'lagrangian'"),
    "unknown retraction": ('"cayley" ', '"caylee"', "Did you mean 'cayley'"),
    "unknown Lagrangian": ('"moser-veselov" ', '"moser"', "moser-veselov"),
    "unknown section": ("[run]", "[runs]", "Did you mean 'run'"),
    "unknown key": ("steps = 67", "stepz = 67", "Did you mean"),
    "indefinite inertia": ("[1, 0.5, 5]", "[1, 0.5, -5]", "positive definite"),
    "asymmetric inertia": ("[1, 0.5, 5]", "[2, 0.5, 5]", "symmetric"),
    "wrong shape": ("[[3, 0, 1], [0, 4, 0.5], [1, 0.5, 5]]", "[[3, 0], [0, 4]]", "(3, 3)"),
    "ragged": ("[0, 4, 0.5]", "[0, 4]", "ragged"),
    "text for numbers": ("[0, 4, 0.5]", '[0, "x", 0.5]', "numbers"),
    "NaN": ("-99.38251558", "nan", "finite"),
    "momentum of the wrong length": ("[41.07400078, -99.38251558]", "[1.0]", "(3,)"),
    "zero steps": ("steps = 67", "steps = 0", "at least 1"),
    "fractional steps": ("steps = 67", "steps = 6.5", "whole number"),
    "zero step": ("step = 0.015", "step = 0", "but 0"),
    "infinite step": ("step = 0.015", "step = inf", "finite"),
    "both ends": ("steps = 67", "steps = 67\nt_end = 1.0", "exactly one"),
    "no step": ("step = 0.015\n", "", "needs a step"),
    "not TOML": ("[system]", "[system", "TOML"),
    "velocity off D": ("momentum = [41.07400078, -99.38251558]", "velocity = [1, 2, 3]", "project"),
    "velocity and momentum": ("momentum = [41", "velocity = [1, 2, 0]\nmomentum = [41", "either"),
    "backend": ("steps = 67", 'steps = 67\nbackend = "lllvm"', "Did you mean 'llvm'"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_input_is_refused_before_anything_runs(case, tmp_path, monkeypatch, capsys):
    old, new, message = BAD[case]
    assert old in SUSLOV
    path = tmp_path / "bad.toml"
    path.write_text(SUSLOV.replace(old, new))
    monkeypatch.setattr(sys, "argv", ["dalembert", "run", str(path), "--out", str(tmp_path / "out.nc")])
    from dalembert.cli import main

    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and not captured.out
    assert [p.name for p in tmp_path.iterdir()] == ["bad.toml"]


@pytest.mark.parametrize("out", ["missing/run.nc", "run.txt"])
def test_an_output_that_cannot_be_written_is_refused_first(out, tmp_path, monkeypatch, capsys):
    from dalembert.cli import main

    monkeypatch.setattr(sys, "argv", ["dalembert", "run", str(EXAMPLES / "suslov.toml"), "--out", str(tmp_path / out)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2 and "--out" in capsys.readouterr().err


def test_a_missing_file_and_an_unknown_command_exit_with_2(tmp_path):
    command = [sys.executable, "-m", "dalembert.cli"]
    for words in (["run", str(tmp_path / "none.toml")], ["rum"], ["list", "sistems"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "Traceback" not in done.stderr


def test_lists_name_everything():
    systems = json.loads(invoke("list", "systems", "--json").stdout)
    methods = json.loads(invoke("list", "methods", "--json").stdout)
    assert {"suslov", "chaplygin-sleigh", "rigid-body", "nonholonomic-particle", "vertical-disk", "knife-edge"} <= set(
        systems
    )
    assert {"lagrange-dalembert", "euler-poincare-suslov", "retraction-adapted", "runge-kutta", "reference"} <= set(
        methods
    )
    assert systems["suslov"]["parameters"]["normal"] == [0.0, 0.0, 1.0]
    assert "suslov" in invoke("list", "systems").stdout


def test_beta_is_another_name_for_node():
    config = {
        "system": {"name": "nonholonomic-particle"},
        "method": {"name": "lagrange-dalembert", "beta": 0.25, "nodes": "velocity"},
        "initial": {"configuration": [0.3, 0.5, -0.2], "velocity": [1.1, 0.7, 0.55]},
        "run": {"step": 0.1, "steps": 1},
    }
    assert parse(config).integrator.node == 0.25
    with pytest.raises(InvalidInput, match="both"):
        parse({**config, "method": {**config["method"], "node": 0.5}})
