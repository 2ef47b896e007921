"""What was found by fuzzing and by using it: each of these ended in a traceback once, and ends in a sentence now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dalembert as da
from dalembert.cli import main
from dalembert.errors import InvalidInput
from dalembert.io.config import apply_settings, load_job, own_system_template, parse_job, to_toml

EXAMPLES = Path(__file__).parents[2] / "examples"
SUSLOV, SLEIGH = str(EXAMPLES / "suslov.toml"), str(EXAMPLES / "sleigh.toml")
LONG = "x" * 300

SETTINGS = {
    "a list as the name of a system": ('system.name=["a"]', "name is ['a'] in [system]; allowed: text"),
    "a table as the name of a method": ("method.name={a = 1}", "name is {'a': 1} in [method]; allowed: text"),
    "a name in a base that is a list": (
        'method.name=composition\nmethod.base={name = ["gauss"]}',
        "unknown base '['gauss']'",
    ),
    "a list as a retraction": ("method.retraction=[1]", "retraction is [1] in [method]; allowed: text"),
    "a list as a backend": ("run.backend=[1]", "backend is [1] in [run]; allowed: one of auto"),
    "a number of 400 digits": (f"run.step={'9' * 400}", "step in [run] has a whole number beyond 64 bits"),
    "one of 5000 digits": (f"run.step={'9' * 5000}", "is no value in TOML"),
    "-10^30": (f"initial.momentum=[1, {-(10**30)}]", "momentum in [initial] has a whole number beyond 64 bits"),
    "a parameter above 2^63": (f"system.inertia={2**63}", "inertia in [system] has a whole number beyond 64 bits"),
    "a number that overflows": ("initial.momentum=[1e400, 1]", "finite numbers"),
    "lists 3000 deep": (f"system.inertia={'[' * 3000}{']' * 3000}", "no value in TOML"),
    "lists 200 deep": (f"system.inertia={'[' * 200}{']' * 200}", "more than 16 deep"),
    "tables 3000 deep": ("run." + "a." * 3000 + "b=1", "more than 16 deep"),
    "a date": ("run.t0=1979-05-27", "t0 in [run] has datetime.date(1979, 5, 27)"),
    "an entry that is not there": ("initial.momentum.7=1", "7 is no place in [41.07400078, -99.38251558]"),
    "an entry of a number": ("run.step.x=1", "run.step is 0.015, which has no part x"),
    "an entry of what is not there": ("initial.velocity.0=1", "unknown velocity '0'. Allowed: w1, w2, w3"),
    "CUDA without a GPU": ("run.backend=cuda", "no GPU that answers through CuPy"),
    "a long name of a section": (f"{LONG * 20}.a={2**63}", "unknown section 'xxx"),
    "a long name of a key": (f"run.{LONG * 20}={2**63}", "whole number beyond 64 bits"),
    "a long name of an entry": (f"run.step.{LONG * 20}=1", "run.step is 0.015, which has no part xxx"),
    "a long name of a system": (f"system.name={LONG}", "Allowed: ackermann-car"),
    "a file of 300 characters": (f"system.python={LONG}.py:make", "there is no file"),
    "a file of 6000 characters": (f"system.python={LONG * 20}.py:make", "there is no file 'xxxx"),
    "a file with a zero": ('system.python="\\u0000.py:make"', "python in [system] has a character 0"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_is_refused(case):
    setting, message = SETTINGS[case]
    with pytest.raises(InvalidInput) as fault:
        load_job(SUSLOV, setting.splitlines())
    assert message in str(fault.value) and len(str(fault.value)) < 2000


TEXTS = {
    "nested lists": (b"a = " + b"[" * 3000 + b"]" * 3000, "more than 16 deep"),
    "nested keys": (b"a." * 3000 + b"b = 1", "more than 16 deep"),
    "digits": (b"a = " + b"9" * 5000, "not valid TOML"),
    "UTF-16": ("[run]".encode("utf-16"), "not text in UTF-8"),
    "a large file": (b"#" * (1 << 23) + b"##", "8.39e+06"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_file_is_refused(case, tmp_path):
    text, message = TEXTS[case]
    (tmp_path / "job.toml").write_bytes(text)
    with pytest.raises(InvalidInput, match=r"job\.toml|deep") as fault:
        load_job(tmp_path / "job.toml")
    assert message in str(fault.value)


def test_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "job.toml").write_bytes(b"\xef\xbb\xbf" + Path(SUSLOV).read_bytes())
    assert load_job(tmp_path / "job.toml").run == load_job(SUSLOV).run


def test_an_entry_of_a_list_can_be_set():
    changed = load_job(SUSLOV, ["initial.momentum.0=1", "system.inertia.0.0=3.5"])
    assert changed.config["initial"]["momentum"] == [1, -99.38251558]
    assert changed.config["system"]["inertia"][0] == [3.5, 0, 1]
    assert load_job(SUSLOV).config["initial"]["momentum"][0] == 41.07400078


def test_numbers_of_an_own_system_have_64_bits(tmp_path):
    (tmp_path / "own.py").write_text(own_system_template("own")[1])
    config = {"system": {"python": "own.py:make", "mass": 2**63}, "method": {"name": "lagrange-dalembert"}}
    config |= {"initial": {"velocity": [0.5, -1.0, 0.0]}, "run": {"step": 0.1, "steps": 2}}
    with pytest.raises(InvalidInput, match=r"mass in \[system\] has a whole number beyond 64 bits"):
        parse_job(config, tmp_path)


def test_arrays_of_python_are_read_as_numbers():
    config = apply_settings(load_job(SUSLOV).config, ())
    config["system"]["inertia"], config["run"]["steps"] = np.diag([3.0, 4.0, 5.0]), np.int64(3)
    made = parse_job(config)
    assert made.run["steps"] == 3 and "inertia = [[3.0, 0.0, 0.0]" in to_toml(made.config)


def sleigh():
    system = da.models.chaplygin_sleigh(1.0, 1.0, 0.3, 0.2)
    return system, system.state(xi=[0.5, -1.0, 0.0])


NOT_TAKEN = {
    "gravity that is a state": (lambda: da.models.coin(gravity=sleigh()[1]), "gravity is"),
    "moments that are complex": (lambda: da.models.bicycle(inertia=1j), "inertia of 'frame' is 1j"),
    "progress without arguments": (
        lambda: da.simulate(sleigh()[0], da.RungeKutta(), sleigh()[1], step=0.1, steps=2, progress=lambda: None),
        "allowed: a function of (done, total)",
    ),
    "progress that is a class": (
        lambda: da.compare(sleigh()[0], {"rk": da.RungeKutta()}, sleigh()[1], steps=[0.1], t_end=0.2, progress=int),
        "progress is the class int",
    ),
    "events that are nothing": (
        lambda: da.simulate(sleigh()[0], da.RungeKutta(), sleigh()[1], step=0.1, steps=2, events=None),
        "an event is None",
    ),
}


@pytest.mark.parametrize("case", NOT_TAKEN)
def test_what_is_not_taken_is_refused(case):
    call, message = NOT_TAKEN[case]
    with pytest.raises(InvalidInput) as fault:
        call()
    assert message in str(fault.value)


WORDS = {
    "seconds of a film": (["animate", SLEIGH, "--seconds", "1e9"], "--seconds"),
    "frames of a film": (["animate", SLEIGH, "--fps", "1000000000"], "--fps"),
    "no file for a film": (["animate", ""], "allowed: a file that ends in"),
    "levels": (["convergence", SLEIGH, "--no-plot", "--levels", "60"], "levels is 60; allowed here: 23"),
    "a long --out": (["run", SLEIGH, "--out", f"{LONG}.nc"], "File name too long"),
    "a long --plot": (["run", SLEIGH, "--plot", f"{LONG}.png"], "File name too long"),
    "a long configuration": (["run", f"{LONG}.toml"], "File name too long"),
    "a long template": (["init", "suslov", "--out", f"{LONG}.toml"], "File name too long"),
    "a long data file": (["show", f"{LONG}.nc"], "file xxx"),
    "CUDA": (["run", SLEIGH, "--set", "run.backend=cuda"], "CuPy"),
}


@pytest.mark.parametrize("case", WORDS)
def test_a_command_is_refused(case, tmp_path, monkeypatch, capsys):
    words, message = WORDS[case]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(words)
    captured = capsys.readouterr()
    assert stop.value.code == 2 and message in captured.err and "Traceback" not in captured.err
    assert not captured.out and not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["jax", "typer"])
@pytest.mark.parametrize("start", [["-m", "dalembert.cli"], ["dalembert"]], ids=["module", "script"])
def test_ctrl_c_while_it_loads_ends_with_130(start, module, tmp_path):
    """A package in front of the real one presses Ctrl-C as soon as it is imported."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)"
    )  # a shell lets what it starts in the background ignore SIGINT, so the command is started with its default
    (tmp_path / "dalembert").write_text("from dalembert.cli import main\nmain()\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2] / "src")])
    command = [sys.executable, *start, "list", "systems"]
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": path}, "capture_output": True, "text": True}
    default = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    done = subprocess.run(command, check=False, preexec_fn=default, **options)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "dalembert: stopped\n")


def test_ctrl_c_in_a_worker_of_a_command_says_nothing(tmp_path):
    """Workers that Dask starts have the arguments of the command; the command itself tells that it was stopped."""
    tell, press = "print(gc.isenabled(), flush=True)", "os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "jax.py").write_text(f"import gc, os, signal, time\n{tell}\n{press}\ntime.sleep(9)")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2] / "src")])
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'dalembert'; import dalembert",
        "--multiprocessing-fork",
    ]
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": path}, "capture_output": True, "text": True}
    default = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    done = subprocess.run(command, check=False, preexec_fn=default, **options)
    assert (done.returncode, done.stdout, done.stderr) == (130, "True\n", "")


NONE = np.zeros(0)
FILE = Path(__file__).parents[1] / "data/before-the-move/chaplygin-sleigh--composition.nc"
CALLS = {
    "the dimension of a chain": lambda: da.models.pendulum_chain(dimension=NONE),
    "a list for a potential": lambda: da.models.nonholonomic_particle(["free"]),
    "directions of a sleigh": lambda: da.models.sleigh_n([1.0, 2.0], [0.1, 0.2], directions=NONE),
    "the mass of a sleigh": lambda: da.models.sleigh_n([1.0, 2.0], [0.1, 0.2], mass=1j),
    "lengths of rods": lambda: da.models.pendulum_chain(lengths="x"),
    "R^n": lambda: da.Euclidean("2"),
    "a product of a number": lambda: da.Product(2),
    "stages": lambda: da.Gauss(np.ones(2)),
    "a scheme": lambda: da.Composition(scheme=NONE),
    "a discrete Lagrangian": lambda: da.EulerPoincareSuslov(np.eye(2)),
    "the value of a quantity": lambda: da.Quantity("energy", value=[]),
    "the name of an event": lambda: da.Event(da.Quantity("energy"), name=b"x"),
    "a direction": lambda: da.Event(da.Quantity("energy"), direction=np.ones(2)),
    "a path": lambda: da.load(None),
    "a function that makes no system": lambda: da.load(FILE, system=len),
    "a function that needs arguments": lambda: da.load(FILE, system=lambda mass: None),
    "a configuration": lambda: da.sweep(None),
    "an executor": lambda: da.sweep({}, executor=np.ones(2)),
    "no system": lambda: da.nonholonomy(None),
    "brackets without end": lambda: da.nonholonomy(da.models.suslov(np.eye(3)), depth=2**62),
    "the inputs of a system": lambda: da.System(da.SE2(), lambda t, g, xi, p: 0.5 * xi @ xi, inputs=np.eye(2)),
}


@pytest.mark.parametrize("case", CALLS)
def test_an_argument_is_refused(case):
    with pytest.raises(InvalidInput, match=r"allowed|needs|unknown|groups"):
        CALLS[case]()


CART = da.System(da.Euclidean(1), lambda t, g, xi, p: 0.5 * xi @ xi, force=lambda t, g, xi, u, p: u, inputs=("push",))


def push(goal=(1.0,), **options):
    given = {"steps": 2, "duration": 1.0, "cost": lambda t, g, xi, u: u @ u} | options
    return da.plan(CART, start=[0.0], goal=goal, **given)


@pytest.fixture(scope="module")
def tracker():
    return da.track(push([1.0]))


REST = CART.state([0.0], [0.0])
PLANS = {
    "a goal elsewhere": lambda _: push(da.models.chaplygin_sleigh().state(xi=[0.0, 0.0, 0.0])),
    "too many guesses": lambda _: push([1.0], starts=10**30),
    "an array for a back end": lambda _: push([1.0], backend=NONE),
    "a solver that nobody knows": lambda _: push([1.0], solver="snopt"),
    "an array for a solver": lambda _: push([1.0], solver=NONE),
    "text for a weight": lambda it: da.track(it.plan, state_weight="x"),
    "rows of different lengths": lambda it: da.track(it.plan, control_weight=[[1, 2], [3]]),
    "a horizon of True": lambda it: da.track(it.plan, horizon=True),
    "a horizon of 10^30": lambda it: da.track(it.plan, horizon=10**30),
    "half an iteration": lambda it: da.track(it.plan, horizon=2, iterations=0.5),
    "a step before the first": lambda it: it.control(-1, REST),
    "half a step": lambda it: it.control(0.5, REST),
    "no state": lambda it: it.control(0, None),
    "a state elsewhere": lambda it: it.follow(start=da.models.chaplygin_sleigh().state(xi=[0.0, 0.0, 0.0])),
    "a traced goal": lambda _: jax.grad(lambda x: push(jnp.stack([x])).cost)(1.0),
    "a traced weight": lambda it: jax.jit(lambda q: da.track(it.plan, state_weight=q).gains)(1.0),
    "a traced state": lambda it: jax.jit(lambda x: it.control(0, REST._replace(g=x)))(np.zeros(1)),
}


@pytest.mark.parametrize("case", PLANS)
def test_a_plan_or_feedback_is_refused(tracker, case):
    with pytest.raises(InvalidInput, match=r"allowed|needs|unknown|Allowed"):
        PLANS[case](tracker)
