"""The command line as a user meets it: numbers, messages, exit codes, files."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager, suppress
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray
from typer.testing import CliRunner

import dalembert as da
from dalembert import cli
from dalembert.cli import app
from dalembert.cli.runs import EXTRAS
from dalembert.cli.shell import print_table, progress
from dalembert.errors import InvalidInput, WriteFailure
from dalembert.integrators import METHODS
from dalembert.io.atomic import output_lock
from dalembert.io.config import parse_job as parse

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
    assert stop.value.code == 2 and f"the file is {tmp_path / out}" in capsys.readouterr().err


def test_a_missing_file_and_an_unknown_command_exit_with_2(tmp_path):
    words = ["run", str(tmp_path / "none.toml")]
    done = subprocess.run([sys.executable, "-m", "dalembert.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for words in (["rum"], ["list", "sistems"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(words)
        assert stop.value.code == 2


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
    assert methods["gauss"]["order"].startswith("4") and methods["gauss"]["use_when"]


@pytest.mark.parametrize("width", [40, 80, 132])
@pytest.mark.parametrize("what", ["systems", "methods", "papers"])
def test_lists_fit_the_line(what, width):
    shown = CliRunner().invoke(app, ["list", what], env={"COLUMNS": str(width)}).stdout
    names = json.loads(invoke("list", what, "--json").stdout)
    listed = [line.split()[0] for line in shown.splitlines() if re.match(r"  \S", line)]
    assert sorted(listed) == sorted(names) and max(map(len, shown.splitlines())) <= width


def test_lists_say_the_order_that_a_method_claims():
    system = da.models.nonholonomic_particle("harmonic")
    for method in METHODS.values():
        claimed, said = method.make({}).claims(system).order, method.traits[1]
        assert said.startswith({None: "by tolerance", float("inf"): "exact"}.get(claimed, f"{claimed}")), method.name
        assert method.use_when and method.traits[2]


def test_a_report_begins_with_what_matters_and_rounds(tmp_path):
    shown = CliRunner().invoke(app, ["run", SLEIGH], env={"COLUMNS": "80"}).stdout
    heads = [line.split()[0] for line in shown.splitlines() if not line.startswith(" ")]
    assert heads[1:4] == ["status", "energy", "constraint"] and heads.index("time") < heads.index("velocity")
    assert max(map(len, shown.splitlines())) <= 80 and not re.search(r"\d\.\d{9}", shown)


def test_a_table_keeps_numbers_whole_and_wraps_words(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_table("t", ("method", "what"), ("energy error",), [("leapfrog", "one two three four five six", "1.234e-15")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 40 and lines[4].split()[0] == "leapfrog" and lines[4].endswith("1.234e-15")
    print_table("t", ("unknown",), ("estimate", ""), [("a", "0.3", "")])  # a column without anything
    assert capsys.readouterr().out.splitlines()[-1].split() == ["a", "0.3"]
    assert [line.strip() for line in lines[1:3]] == ["energy", "method    what                     error"]


# -- what there is ----------------------------------------------------------------------------------------------------
def test_examples_are_listed_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    listed = json.loads(invoke("examples", "--json").stdout)
    assert set(listed) == {path.stem for path in EXAMPLES.iterdir() if path.suffix in (".toml", ".py")}
    assert "dalembert fit fit-sleigh.toml fit-sleigh.csv" in invoke("examples").stdout
    assert "next: dalembert run own_system.toml" in invoke("examples", "own_system").stdout
    assert invoke("run", "own_system.toml", "--set", "run.steps=2").exit_code == 0
    assert "is there already" in refused(capsys, monkeypatch, "examples", "own_system")
    assert "Did you mean 'sleigh'" in refused(capsys, monkeypatch, "examples", "slegh")
    assert invoke("examples", "all", "--out", "here").exit_code == 0
    assert {path.name for path in Path("here").iterdir()} == {path.name for path in EXAMPLES.glob("*.*")}
    for each in listed.values():
        words = each["command"].split()[1:]
        assert all((Path("here") / word).exists() for word in words if word.endswith((".toml", ".csv", ".py")))


def test_info_says_what_is_there_and_how_to_get_the_rest(tmp_path, monkeypatch):
    monkeypatch.setenv("DALEMBERT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "entry").write_bytes(b"x" * 1000)
    monkeypatch.setattr("dalembert.cli.runs.EXTRAS", {"nonesuch": (("no-such-package",), "nothing")})
    found = json.loads(invoke("info", "--json").stdout)
    assert found["dalembert"] == da.__version__ and found["packages"]["jax"] == jax.__version__
    assert found["cache"] == {"folder": str(tmp_path / "cache"), "entries": 1, "bytes": 1000}
    assert found["missing"]["nothing"] == "pip install 'dalembert[nonesuch]'" and "cpu" in found["backends"]["xla"]
    monkeypatch.setenv("DALEMBERT_CACHE", "off")
    shown = invoke("info").stdout
    assert "pip install 'dalembert[nonesuch]'" in shown and "unset DALEMBERT_CACHE" in " ".join(shown.split())


def test_extras_are_those_of_the_package():
    extras = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, (packages, _) in EXTRAS.items():
        assert any(needed.startswith(packages) for needed in extras[extra])


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


# -- settings, files, going on ----------------------------------------------------------------------------------------
SLEIGH = str(EXAMPLES / "sleigh.toml")


def refused(capsys, monkeypatch, *words: str) -> str:
    """The message with which the program ends, exit code 2."""
    from dalembert.cli import main

    monkeypatch.setattr(sys, "argv", ["dalembert", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    assert stop.value.code == 2 and "Traceback" not in captured.err and not captured.out
    return captured.err


def same_files(one: Path, other: Path) -> bool:
    trees = [da.load(path) for path in (one, other)]
    leaves = [[np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)] for tree in trees]
    return leaves[0] == leaves[1] and jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])


def test_settings_override_the_file_and_are_kept_with_the_data(tmp_path):
    out = tmp_path / "run.nc"
    done = invoke("run", SLEIGH, "--set", "run.steps=5", "--set", "system.a=0.4", "--json", "--out", str(out))
    assert json.loads(done.stdout)["steps"] == 5
    shown = invoke("show", str(out), "--config").stdout
    assert tomllib.loads(shown)["system"]["a"] == 0.4 and tomllib.loads(shown)["run"]["steps"] == 5


def test_resume_gives_the_file_of_the_long_run(tmp_path):
    long, parts = tmp_path / "long.nc", tmp_path / "parts.nc"
    every = ["--set", "run.save_every=7"]
    assert invoke("run", SLEIGH, *every, "--out", str(long)).exit_code == 0
    for steps in (51, 200):
        done = invoke("run", SLEIGH, *every, "--set", f"run.steps={steps}", "--resume", "--out", str(parts), "--json")
        assert done.exit_code == 0 and json.loads(done.stdout)["steps"] == steps
    assert same_files(long, parts)
    again = invoke("run", SLEIGH, *every, "--resume", "--out", str(parts))
    assert again.exit_code == 0 and same_files(long, parts)


@pytest.mark.heavy
def test_a_stopped_run_keeps_what_is_done_and_goes_on(tmp_path, monkeypatch):
    @contextmanager
    def impatient(title):
        def stop(done, total):
            raise KeyboardInterrupt

        yield stop

    long, stopped = tmp_path / "long.nc", tmp_path / "stopped.nc"
    size = ["--set", "run.steps=20000", "--set", "run.save_every=1000"]
    invoke("run", SLEIGH, *size, "--out", str(long))
    with monkeypatch.context() as patch:
        patch.setattr("dalembert.cli.shell.progress", impatient)
        done = invoke("run", SLEIGH, *size, "--out", str(stopped), "--json")
    assert done.exit_code == 130 and "the finished steps are kept" in done.stderr
    result = json.loads(done.stdout)
    assert 0 < result["steps"] < 20000 and result["interrupted"] and result["status"] == "interrupted"
    assert "interrupted" in invoke("show", str(stopped)).stdout
    assert invoke("run", SLEIGH, *size, "--out", str(stopped), "--resume").exit_code == 0
    assert same_files(long, stopped)


def test_resume_refuses_another_run(tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "run.nc")
    invoke("run", SLEIGH, "--set", "run.steps=9", "--out", out)
    words = ["run", SLEIGH, "--resume", "--out", out]
    assert "its system.a is 0.3, here it is 0.5" in refused(capsys, monkeypatch, *words, "--set", "system.a=0.5")
    assert "9 steps already" in refused(capsys, monkeypatch, *words, "--set", "run.steps=3")
    assert "needs --out" in refused(capsys, monkeypatch, "run", SLEIGH, "--resume")


def test_two_runs_on_one_file_and_a_disk_that_is_full(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run.nc"
    with output_lock(out):
        assert "another run" in refused(capsys, monkeypatch, "run", SLEIGH, "--out", str(out))

    def full(*arguments, **options):
        raise WriteFailure("could not write run.nc: No space left on device")

    monkeypatch.setattr("dalembert.cli.runs.save_run", full)
    done = invoke("run", SLEIGH, "--out", str(out), "--json")
    assert json.loads(done.stdout)["steps"] == 200 and isinstance(done.exception, WriteFailure)
    assert not list(tmp_path.iterdir())


def test_show_tells_what_a_file_holds(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run.nc"
    invoke("run", SLEIGH, "--set", "run.steps=3", "--out", str(out))
    shown = json.loads(invoke("show", str(out), "--json").stdout)
    assert shown["attributes"]["system"] == "chaplygin-sleigh" and shown["columns"]["velocity"]["shape"] == [4, 3]
    lines = invoke("show", str(out), "--csv", "velocity,energy").stdout.splitlines()
    assert lines[0] == "time,velocity_w,velocity_v1,velocity_v2,energy" and len(lines) == 5
    np.testing.assert_allclose([float(x) for x in lines[1].split(",")[:3]], [0.0, 0.5, -1.0], rtol=1e-14)
    head = lines[0].split(",")
    again = invoke("show", str(out), "--csv", f"time,energy,{head[1]},velocity").stdout.splitlines()[0].split(",")
    assert again == ["time", "energy", *(name for name in head if name.startswith("velocity"))]  # no column twice
    assert "Did you mean 'energy'" in refused(capsys, monkeypatch, "show", str(out), "--csv", "enrgy")
    assert "truncated" in refused(capsys, monkeypatch, "show", str(_truncated(out)))


def _truncated(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:5000])
    return path


def test_init_writes_what_run_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert json.loads(invoke("init", "own", "--json").stdout)["files"] == ["mysystem.toml", "mysystem.py"]
    assert "--force" in refused(capsys, monkeypatch, "init", "own")
    assert "Did you mean 'suslov'" in refused(capsys, monkeypatch, "init", "suslow")
    done = invoke("run", "mysystem.toml", "--json", "--plot", "my.png", "--out", "my.nc", "--set", "run.steps=5")
    assert json.loads(done.stdout)["system"] == "mysystem.py:make" and Path("my.png").stat().st_size > 10_000
    assert "load(path, system=" in refused(capsys, monkeypatch, "show", "my.nc", "--plot", "again.png")


def test_a_quaternion_in_and_coordinates_out(tmp_path):
    given = [0.5, -0.5, 0.5, 0.5]
    config = SUSLOV.replace("[initial]", f"[initial]\nconfiguration = {{quaternion = {given}}}")
    result, _ = run_json(config.replace("steps = 67", "steps = 1").replace("step = 0.015", "step = 1e-9"), tmp_path)
    np.testing.assert_allclose(result["final"]["coordinates"]["quaternion"], given, atol=1e-6)


COMMANDS = {command.name: command for command in app.registered_commands}


def test_a_refused_study_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["convergence", str(SLEIGH), "--levels", "1"])
    assert "levels is 1" in str(done.exception) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"studio", "sweep-plot"}))
def test_every_command_has_help_with_examples_and_json(command):
    text = invoke(command, "--help").stdout
    assert f"dalembert {command}" in text and "Examples" in text and "--json" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_what_was_written_and_names_no_file_that_a_wheel_has_not(command):
    """Rich takes [run] for markup and leaves it out; examples/ is a folder of the sources."""
    shown = "".join(CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "400"}).stdout.split())
    options = inspect.signature(COMMANDS[command].callback, eval_str=True).parameters.values()
    helps = [note.help for option in options for note in option.annotation.__metadata__ if note.help]
    for text in [*COMMANDS[command].help.split("\n\n"), *COMMANDS[command].epilog.split("\n\n"), *helps]:
        assert "".join(text.replace("\\[", "[").split()) in shown
    assert "examples/" not in shown


@pytest.mark.parametrize(("word", "list_"), [("models", "systems"), ("integrators", "methods"), ("figures", "papers")])
def test_lists_by_the_words_that_people_use(word, list_):
    assert invoke("list", word, "--json").stdout == invoke("list", list_, "--json").stdout


def test_what_cannot_be_read_written_or_counted(capsys, monkeypatch, tmp_path):
    config = tmp_path / "job.toml"
    assert "dalembert init NAME" in refused(capsys, monkeypatch, "run", str(config))
    config.write_bytes(b"\xff\xfe")
    assert "is not text" in refused(capsys, monkeypatch, "run", str(config))
    config.write_text(SUSLOV)
    assert "Is a directory" in refused(capsys, monkeypatch, "run", str(tmp_path))
    assert "floating point" in refused(capsys, monkeypatch, "run", str(config), "--set", f"run.steps={10**18}")
    (tmp_path / ".x.nc.lock").mkdir()  # root may write anywhere, but not over a folder
    assert "x.nc cannot be written" in refused(capsys, monkeypatch, "run", str(config), "--out", str(tmp_path / "x.nc"))
    assert "Did you mean" not in refused(capsys, monkeypatch, "init", "xyzzy"), "nothing is like it"


SECTIONS = "[system], [method], [initial]"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("run", f"A TOML file with {SECTIONS} and [run]."),
        ("compare", f"A TOML file with {SECTIONS} and [run]."),
        ("sweep", f"A TOML file with {SECTIONS}, [run] and [sweep]."),
        ("sweep", "the values in its section [sweep]"),
        ("reproduce", "[ID|PAPER|all]"),
    ],
)
def test_brackets_are_seen_in_help(command, text):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
    assert text in " ".join(shown.split())


def test_a_unit_in_brackets_is_seen_in_tables(tmp_path):
    out = tmp_path / "run.nc"
    words = ["--set", "run.steps=2", "--out", str(out)]
    assert invoke("run", str(EXAMPLES / "particle.toml"), *words).exit_code == 0
    data = xarray.open_dataset(out, engine="h5netcdf")
    data["energy"].attrs["units"] = "[q] s-1"
    data.load().close()
    data.to_netcdf(tmp_path / "units.nc", engine="h5netcdf")
    assert "[q] s-1" in invoke("show", str(tmp_path / "units.nc"), "--force").stdout


def test_leaving_native_code_is_said_in_one_line_with_the_reason(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import dalembert as da, jax.numpy as jnp\nfrom jax.lax import lgamma\n"
        "def make(): return da.System(da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v - jnp.sum(lgamma(q + 1)))\n"
    )
    (tmp_path / "job.toml").write_text(
        '[system]\npython = "mine.py:make"\n[method]\nname = "runge-kutta"\n[initial]\nvelocity = [1.0, 2.0]\n'
        "[run]\nstep = 0.1\nsteps = 2\n"
    )
    command = [sys.executable, "-m", "dalembert.cli", "run", "job.toml", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["backend"] == "xla"
    (line,) = [line for line in done.stderr.splitlines() if "native code" in line]  # a slow one compiles aloud
    assert line.startswith("dalembert: no native code, but XLA runs this: ") and "gamma" in line


def test_a_bar_says_that_the_step_is_compiled(monkeypatch, capsys):
    monkeypatch.setitem(progress.__wrapped__.__globals__, "COMPILING_SECONDS", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("suslov, 9 steps") as bar:
        time.sleep(0.4)
        bar(1, 9)
    shown = capsys.readouterr().err
    assert "suslov, 9 steps: compiling" in shown


@pytest.mark.parametrize(
    ("words", "work", "says"),
    [
        (("convergence", SLEIGH, "--no-plot"), "studies.study_convergence", "compiling and running"),
        (("demo",), "runs.run_demo_scene", "compiling and running"),
        (("show", SLEIGH), "runs.nonholonomy", "compiling"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_commands_that_compile_for_long_say_so(words, work, says, monkeypatch, capsys, tmp_path):
    def compile_long(*given, **options):
        time.sleep(0.4)
        raise InvalidInput("done")

    monkeypatch.setitem(progress.__wrapped__.__globals__, "COMPILING_SECONDS", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(f"dalembert.cli.{work}", compile_long)
    words = [str(Path(word).resolve()) if word == SLEIGH else word for word in words]
    monkeypatch.chdir(tmp_path)
    with suppress(SystemExit):
        cli.main(words)
    assert f": {says}" in capsys.readouterr().err


def test_a_report_has_the_names_and_units_of_ones_own_system(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("skate.py").write_text(
        "import dalembert as da, jax.numpy as jnp\n"
        "names = {'coordinates': ['heading [rad]', 'x [m]', 'y [m]'], 'velocities': ['turn', 'speed [m s-1]', 'slip']\n"
        "         , 'system': 'Skate'}\n"
        "def make():\n"
        "    return da.System(da.SE2(), lambda t, g, xi, p: 0.5 * xi @ xi, lambda t, g, p: jnp.array([[0.0, 0, 1]]),\n"
        "                     names=names)\n"
    )
    text = '[system]\npython = "skate.py:make"\n[method]\nname = "runge-kutta"\n[initial]\nvelocity = [0.0, 2.0, 0.0]\n'
    Path("skate.toml").write_text(text + "[run]\nstep = 0.4\nt_end = 1.0\n")
    with pytest.warns(UserWarning, match=r"at t = 0\.8; step=0\.333333333333 reaches it in 3 steps"):
        done = invoke("run", "skate.toml")
    shown = " ".join(done.stdout.split())
    assert "heading 0 rad, x 1.6 m, y 0 m" in shown and "speed 2 m s-1" in shown
    assert shown.startswith("Skate with runge-kutta")


def test_an_unknown_of_ones_own_system_has_the_default_of_its_function(tmp_path):
    from dalembert.cli.optimise import with_default

    file = tmp_path / "own.py"
    file.write_text("def make(mass=2.0, a=(0.1, 0.2)):\n    pass\n")
    section = {"python": "own.py:make", "mass": 3.0}
    assert with_default(section, "system.mass", file) == section
    assert with_default(section, "system.a.0", file) == section | {"a": [0.1, 0.2]}
    with pytest.raises(InvalidInput, match=r"'mas'. Did you mean 'mass'"):
        with_default({"python": "own.py:make"}, "system.mas", file)
