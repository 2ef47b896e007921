"""What `fit` does with priors, bounds, outliers, failures and misuse; the command."""

import json
import math
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from fitted import EXACT, METHOD, TIMES, TRUE, far, launched, place, seen, sleigh
from typer.testing import CliRunner

import dalembert as da
from dalembert import cli
from dalembert.errors import InvalidInput, NumericalFailure
from dalembert.io import read_data
from dalembert.io.measurements import find_angles
from dalembert.numerics import LOSSES
from dalembert.optimise import Experiment, Unknown, fit

EXAMPLES = Path(__file__).parents[2] / "examples"
NOISE = np.random.default_rng(1).standard_normal((60, 2))
GUESS = {"a": 0.2, "rubbing": 0.1}


def test_outliers_pull_less_under_robust_losses():
    """Three of 60 places are half a metre off: the linear fit is lost, the others stay within three errors."""
    off = NOISE.copy()
    off[[7, 23, 41]] += 50.0
    lost = fit(sleigh, METHOD, seen(off), GUESS, step=0.02)
    assert lost.p_value < 1e-10 and "WARNING: the model does not describe the data" in str(lost)
    assert np.abs(far(lost, TRUE)).max() > 10.0
    for loss in ("huber", "soft-l1", "cauchy"):
        found = fit(sleigh, METHOD, seen(off), GUESS, step=0.02, loss=loss)
        assert found.converged
        assert np.abs(far(found, TRUE)).max() < 3.5, loss


@pytest.mark.parametrize("loss", ["huber", "soft-l1", "cauchy"])
def test_errors_under_robust_losses_are_the_scatter_of_many_fits(loss):
    """With 256 repetitions the scatter is known to 4.4 %; a prior that says all has its own error."""
    rng, guess = np.random.default_rng(3), {"a": 0.24, "rubbing": 0.05}
    noise = rng.standard_normal((256, 60, 2))
    noise[rng.random(noise.shape) < 0.04] *= 20.0
    made = fit(sleigh, METHOD, [[seen(each)] for each in noise], guess, step=0.02, loss=loss)
    stated, scatter = np.sqrt((made.errors**2).mean(axis=0)), made.values.std(axis=0)
    np.testing.assert_allclose(scatter / stated, 1.0, atol=0.14)
    sure = {"a": Unknown(0.24, prior=(0.3, 1e-6)), "rubbing": 0.05}
    held = fit(sleigh, METHOD, seen(noise[0]), sure, step=0.02, loss=loss)
    assert held.errors[0] == pytest.approx(1e-6, rel=1e-3)


def test_a_loss_is_the_derivative_of_itself():
    z = np.linspace(0.1, 5.0, 40)
    for name in list(LOSSES)[1:]:
        _, first, second = LOSSES[name](z)
        ahead, behind = LOSSES[name](z + 1e-6), LOSSES[name](z - 1e-6)
        smooth = np.abs(z - 1.0) > 1e-3
        np.testing.assert_allclose(first[smooth], ((ahead[0] - behind[0]) / 2e-6)[smooth], rtol=1e-7)
        np.testing.assert_allclose(second[smooth], ((ahead[1] - behind[1]) / 2e-6)[smooth], rtol=1e-6, atol=1e-8)


def test_what_is_determined_does_not_depend_on_unknown_deviations():
    """Without deviations the scatter says how good the data are: a film of a second to 0.01 mm determines an offset.

    The errors used to be right, but what they determine was judged as if every place were a metre off.
    """
    noise = 1e-5 * np.random.default_rng(7).standard_normal((10, 2))
    data = Experiment(TIMES[:10], {"place": EXACT[:10, 1:3] + noise}, launched(), observables={"place": place})
    found = fit(sleigh, METHOD, data, {"a": 0.2, "rubbing": 0.1}, step=0.01)
    assert np.abs(found.errors / found.values).max() < 0.1 and not found.loose


def test_a_search_that_wanders_along_what_is_not_determined_says_so():
    """Mass and inertia of a film have a ratio only: more runs would not help."""
    model = lambda mass, inertia: da.models.chaplygin_sleigh(mass=mass, inertia=inertia, a=0.3)
    found = fit(model, METHOD, seen(NOISE), {"mass": 1.0, "inertia": 2.0}, step=0.02, max_runs=2)
    assert found.loose and not found.converged and found.reason.startswith("2 runs did not suffice: give a prior")


def test_errors_without_standard_deviations_are_those_of_the_scatter():
    given = seen(NOISE)
    known = fit(sleigh, METHOD, given, GUESS, step=0.02)
    data = Experiment(TIMES, given.measured, launched(), observables={"place": place})
    found = fit(sleigh, METHOD, data, GUESS, step=0.02)
    np.testing.assert_allclose(found.values, known.values, atol=1e-6)
    np.testing.assert_allclose(found.errors, known.errors * np.sqrt(known.chi2 / known.dof), rtol=1e-4)
    assert found.p_value is None


def test_bounds_and_priors():
    bounded = fit(sleigh, METHOD, seen(NOISE), {"a": Unknown(0.2, 0.1, 0.25), "rubbing": 0.1}, step=0.02)
    assert bounded.at_bound == ("a",) and abs(bounded["a"] - 0.25) < 1e-6 and bounded.errors[0] == 0.0
    shots = fit(sleigh, METHOD, seen(NOISE), {"a": Unknown(0.2, 0.1, 0.25), "rubbing": 0.1}, step=0.02, shots=3)
    np.testing.assert_allclose(shots.values, bounded.values, atol=1e-5)
    plain = fit(sleigh, METHOD, seen(NOISE), GUESS, step=0.02)
    held = fit(sleigh, METHOD, seen(NOISE), {"a": Unknown(0.2, prior=(0.35, 1e-5)), "rubbing": 0.1}, step=0.02)
    assert abs(held["a"] - 0.35) < 1e-4 < abs(plain["a"] - 0.35) and held.dof == plain.dof + 1


def test_what_is_known_before_makes_the_scale_of_a_satellite_known():
    body = da.models.rigid_body([1.0, 1.4, 2.1])
    run = da.simulate(body, da.RungeKutta(), body.state(xi=[0.7, 0.5, 0.4]), step=0.05, steps=200)
    given = Experiment(run.t, {"velocity": run.xi}, body.state(xi=[0.7, 0.5, 0.4]), 0.01)

    def model(I):
        return da.models.rigid_body(I)

    start = np.array([0.9, 1.3, 2.3])
    free = fit(model, da.RungeKutta(), given, {"I": start}, step=0.05)
    assert [each.names for each in free.loose] == [("I[0]", "I[1]", "I[2]")] and free["I"].shape == (3,)
    prior = (np.array([1.0, 0.0, 0.0]), np.array([0.01, 1e6, 1e6]))
    held = fit(model, da.RungeKutta(), given, {"I": Unknown(start, prior=prior)}, step=0.05)
    assert not held.loose
    np.testing.assert_allclose(held["I"], [1.0, 1.4, 2.1], rtol=1e-5)


def test_numbers_of_a_system_by_their_paths():
    edge = da.models.knife_edge(slope=0.3)
    state = edge.state(xi=[1.0, 0.2, 0.0])
    run = da.simulate(edge, METHOD, state, step=0.02, steps=100)
    given = Experiment(run.t, {"place": run.g[:, :2, 2]}, state, 0.01, observables={"place": place})
    found = fit(da.models.knife_edge(slope=0.2), METHOD, given, ["pull"], step=0.02)
    assert found.names == ("pull",) and abs(found["pull"] - edge.parameters["pull"]) < 1e-8
    np.testing.assert_allclose(found.system().parameters["pull"], edge.parameters["pull"], rtol=1e-8)
    with pytest.raises(InvalidInput, match=r"unknown number of the system 'pul'. Did you mean 'pull'"):
        fit(edge, METHOD, given, ["pul"], step=0.02)


@pytest.mark.heavy
def test_the_trail_of_a_bicycle():
    """Lean and steer by SciPy on the published linear equations (Meijaard and others 2007), of small motions."""
    from scipy.linalg import expm

    M = np.array([[80.81722, 2.31941332208709], [2.31941332208709, 0.29784188199686]])
    C = 5.0 * np.array([[0.0, 33.86641391492494], [-0.85035641456978, 1.68540397397560]])
    K = 9.81 * np.array([[-80.95, -2.59951685249872], [-2.59951685249872, -0.80329488458618]])
    K = K + 25.0 * np.array([[0.0, 76.59734589573222], [0.0, 2.65431523794604]])
    first = np.block([[np.zeros((2, 2)), np.eye(2)], [-np.linalg.solve(M, K), -np.linalg.solve(M, C)]])
    times, size = 0.1 * np.arange(1, 21), 1e-4
    data = np.stack([expm(t * first) @ [0.0, 0.0, size, 0.0] for t in times])[:, :2]
    data = data + 1e-7 * np.random.default_rng(2).standard_normal(data.shape)
    bike = da.models.bicycle()
    state = bike.state(speed=5.0, lean_rate=size)
    given = Experiment(times, {"lean": data[:, 0], "steer": data[:, 1]}, state, 1e-7)
    found = fit(bike, da.RungeKutta(), given, {"joints.steer.at.x": Unknown(1.09, 1.03, 1.2)}, step=0.02)
    assert found.converged and abs(found.values[0] - 1.1) < max(3 * found.errors[0], 2e-5)


def test_gains_of_measured_inputs():
    """A push that was recorded with an unknown gain, in two experiments with a common mass."""

    def cart(mass, gain):
        def lagrangian(t, q, v, p):
            return 0.5 * p["mass"] * v[0] ** 2 - 0.5 * q[0] ** 2

        def push(t, q, v, u, p):
            return p["gain"] * u

        parameters = {"mass": mass, "gain": gain}
        return da.System(da.Euclidean(1), lagrangian, force=push, inputs=("push",), parameters=parameters)

    true = cart(2.0, 0.5)
    experiments = []
    for k, start in enumerate(([0.3], [-0.2])):
        u = np.sin(0.3 * (k + 1) * np.arange(100))[:, None]
        state = true.state(start, [0.0])
        run = da.simulate(true, da.Leapfrog(), state, step=0.05, steps=100, controls=u)
        experiments.append(Experiment(run.t[::4], {"q1": run.g[::4, 0]}, state, 0.01, controls=u, name=f"push {k}"))
    found = fit(cart, da.Leapfrog(), experiments, {"mass": 1.5, "gain": Unknown(1.0, own=True)}, step=0.05)
    assert found.names == ("mass", "gain of push 0", "gain of push 1")
    np.testing.assert_allclose(found.values, [2.0, 0.5, 0.5], rtol=1e-6)


def test_an_interrupt_keeps_the_best():
    calls = []

    def progress(done, total):
        calls.append(done)
        if len(calls) == 4:
            raise KeyboardInterrupt

    for shots in (1, 3):
        calls.clear()
        found = fit(sleigh, METHOD, seen(NOISE), GUESS, step=0.02, progress=progress, shots=shots)
        assert not found.converged and "interrupted" in found.reason and found.runs >= 4
        assert found.chi2 < float(np.sum(fit(sleigh, METHOD, seen(NOISE), GUESS, step=0.02, max_runs=1).chi2))


def test_a_run_that_fails_on_the_way_shortens_the_step():
    """sqrt(stiffness) is no number beyond 0: the first full step goes there, the fit does not."""

    def spring(stiffness):
        def lagrangian(t, q, v, p):
            return 0.5 * v[0] ** 2 - 0.5 * jnp.sqrt(p["stiffness"]) ** 2 * q[0] ** 2

        return da.System(da.Euclidean(1), lagrangian, parameters={"stiffness": stiffness})

    true = spring(1.0)
    run = da.simulate(true, da.Leapfrog(), true.state([1.0], [0.0]), step=0.05, steps=60)
    given = Experiment(run.t, {"q1": run.g[:, 0]}, true.state([1.0], [0.0]), 0.01)
    found = fit(spring, da.Leapfrog(), given, {"stiffness": 4.0}, step=0.05)
    assert found.converged and abs(found.values[0] - 1.0) < 1e-6
    with pytest.raises(NumericalFailure, match=r"the run with the guess fails after 0 steps: .* better guess"):
        fit(spring, da.Leapfrog(), given, {"stiffness": -1.0}, step=0.05)
    with pytest.raises(NumericalFailure, match=r"the run with the guess of fit 0 fails after 0 steps"):
        fit(spring, da.Leapfrog(), [[given], [given]], {"stiffness": -1.0}, step=0.05)


GOOD = {"times": TIMES, "measured": {"place": EXACT[:, 1:3]}, "deviations": 0.01, "observables": {"place": place}}
MISUSE = {
    "too few data": ("2 measured numbers and 0 priors cannot determine 3 unknowns", {"times": [0.5]}, {"inertia": 1.0}),
    "before the start": ("a measurement at t = -1 is before the start", {"times": [-1.0]}, {}),
    "no times": (r"shape \(\); allowed: \(N,\)", {"times": 0.5}, {}),
    "rows": (r"shapes \[\(59, 2\)\]; allowed: \[\(60, 2\)\]", {"measured": {"place": EXACT[:59, 1:3]}}, {}),
    "infinite": (
        "is infinite; allowed: finite numbers, and NaN",
        {"measured": {"place": np.full((60, 2), np.inf)}},
        {},
    ),
    "all missing": ("no value but NaN", {"measured": {"place": np.full((60, 2), np.nan)}}, {}),
    "unknown name": ("unknown measurement 'plaice'. Did you mean 'place'", {"measured": {"plaice": EXACT}}, {}),
    "not on the group": (
        r"a rotation in SE\(2\) must satisfy",
        {"measured": {"configuration": np.ones((60, 3, 3))}},
        {},
    ),
    "deviation": (r"the deviation of 'place' has shape \(3,\)", {"deviations": [0.1, 0.2, 0.3]}, {}),
    "no deviation": (r"the deviation of 'place' is 0; allowed: positive", {"deviations": 0.0}, {}),
    "free": ("unknown component of a start .* 'velocity.v2'", {"free": "velocity.v2"}, {}),
    "a coordinate": ("a shift has the name of a velocity.* 'configuration.x'", {"free": "configuration.x"}, {}),
    "covariance": (r"the covariance of 'place' has shape \(3,\)", {"covariances": {"place": [1.0] * 3}}, {}),
    "controls": ("the system has no inputs", {"controls": np.zeros((300, 1))}, {}),
    "few controls": ("after 10 steps of 0.02, as many as controls", {"controls": np.zeros((10, 1))}, {}),
    "no guess": ("the unknown 'a' has the guess None: give a number", {}, {"a": None}),
    "other parameter": ("unexpected keyword argument 'b'|takes", {}, {"b": 1.0}),
    "singular covariance": (
        "not positive definite",
        {"covariances": {"place": np.ones((2, 2))}, "deviations": None},
        {},
    ),
}


def test_a_model_without_numbers_is_told():
    """Not that the step is too large for it."""

    def spring(k):
        return da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v - p * q @ q, parameters=jnp.sqrt(k - 10.0))

    seen = Experiment([0.1], {"q1": [1.0]}, spring(14.0).state([1.0], [0.0]), deviations=0.1)
    with pytest.raises(InvalidInput, match=r"model\(...\) has NaN in .* with the guess: give a guess"):
        fit(spring, METHOD, seen, {"k": 1.0}, step=0.02)


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_told(case):
    words, changes, unknowns = MISUSE[case]
    given = GOOD | changes
    if "times" in changes:
        given["measured"] = {"place": EXACT[: np.size(changes["times"]), 1:3]}
    with pytest.raises(InvalidInput, match=words):
        fit(sleigh, METHOD, Experiment(state=launched(), **given), GUESS | unknowns, step=0.02)


def test_misuse_of_unknowns_and_options_is_told():
    with pytest.raises(InvalidInput, match=r"model takes \(a.*\), the unknowns are \(b\): "):
        fit(sleigh, METHOD, Experiment(state=launched(), **GOOD), {"b": 1.0}, step=0.02)
    for name in ("a", "velocity.w"):
        with pytest.raises(InvalidInput, match=f"the unknown '{name}' is 2, not between its bounds, 0 and 1"):
            fit(sleigh, METHOD, seen(NOISE), GUESS | {name: Unknown(2.0, 0, 1)}, step=0.02)
    with pytest.raises(InvalidInput, match="low < high"):
        Unknown(1.0, 1, 1)
    with pytest.raises(InvalidInput, match="the guess of an unknown must be finite"):
        Unknown(np.nan)
    with pytest.raises(InvalidInput, match=r"prior .* allowed"):
        Unknown(1.0, prior=(1.0, 0.0))
    with pytest.raises(InvalidInput, match="there is nothing to estimate"):
        fit(lambda: sleigh(**TRUE), METHOD, seen(NOISE), {}, step=0.02)
    with pytest.raises(InvalidInput, match=r"the steps of .* vary, and a fit needs equal ones"):
        fit(sleigh, da.Adaptive(), seen(NOISE), GUESS, step=0.02)
    for tiny in (1e-200, 5e-324):
        with pytest.raises(InvalidInput, match=r"steps of .* after the start; allowed: at most 1,000,000,000"):
            fit(sleigh, METHOD, seen(NOISE), GUESS, step=tiny)
    with pytest.raises(InvalidInput, match="step is -1"):
        fit(sleigh, METHOD, seen(NOISE), GUESS, step=-1)
    with pytest.raises(InvalidInput, match="give standard deviations for all"):
        bare = Experiment(TIMES, {"place": EXACT[:, 1:3]}, launched(), observables={"place": place})
        fit(sleigh, METHOD, bare, GUESS, step=0.02, loss="huber")


@pytest.mark.heavy
def test_the_command(tmp_path, monkeypatch):
    for name in ("fit-sleigh.toml", "fit-sleigh.csv"):
        shutil.copy(EXAMPLES / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["fit", "fit-sleigh.toml", "fit-sleigh.csv"]
    done = CliRunner().invoke(cli.app, [*command, "--plot", "fit.png"])
    assert done.exit_code == 0 and "system.a" in done.output and "degrees of freedom" in done.output
    assert (tmp_path / "fit.png").stat().st_size > 10_000
    found = json.loads(CliRunner().invoke(cli.app, [*command, "--json"]).output)
    truth = {"system.a": 0.3, "velocity.w": 0.5, "velocity.v1": 1.5}
    for name, value in truth.items():
        assert abs(found["unknowns"][name]["estimate"] - value) < 4 * found["unknowns"][name]["error"]
    assert CliRunner().invoke(cli.app, ["run", "fit-sleigh.toml", "--out", "run.nc"]).exit_code == 0
    text = (tmp_path / "fit-sleigh.toml").read_text().partition("[[column]]")[0]
    (tmp_path / "plain.toml").write_text(text + '[[column]]\nname = "position_0"\n')
    again = CliRunner().invoke(cli.app, ["fit", "plain.toml", "run.nc", "--json", "--set", "system.a=0.25"])
    assert abs(json.loads(again.output)["unknowns"]["system.a"]["estimate"] - 0.2) < 1e-8
    other = CliRunner().invoke(cli.app, [*command, "--json", "--set", "fit.search=gauss-newton"])
    values = [json.loads(other.output)["unknowns"][name]["estimate"] for name in truth]
    np.testing.assert_allclose(values, [found["unknowns"][name]["estimate"] for name in truth], rtol=1e-6)
    assert CliRunner().invoke(cli.app, [*command, "--set", "fit.search=newton"]).exit_code != 0
    assert CliRunner().invoke(cli.app, [*command, "--set", "fit.max_runs=1"]).exit_code == 1


def test_the_command_compares_attitudes_on_the_group(tmp_path, monkeypatch):
    """A body whose quaternions a run wrote, and as a .csv file with their signs turned round."""
    monkeypatch.chdir(tmp_path)
    Path("body.toml").write_text(
        """[system]
name = "rigid-body"
inertia = [1.0, 1.4, 2.1]
[method]
name = "runge-kutta"
[initial]
velocity = [0.7, 0.5, 0.4]
[run]
step = 0.05
steps = 60
[[unknown]]
name = "system.inertia.1"
[[unknown]]
name = "system.inertia.2"
"""
    )
    assert CliRunner().invoke(cli.app, ["run", "body.toml", "--out", "run.nc"]).exit_code == 0
    columns = read_data(Path("run.nc"))
    names = ["time", *(f"quaternion_{k}" for k in range(4))]
    rows = [",".join(names)] + [
        ",".join(f"{(-1) ** (k * (name != 'time')) * columns[name][k]:.17g}" for name in names) for k in range(61)
    ]
    Path("data.csv").write_text("\n".join(rows))
    command = ["fit", "body.toml", "data.csv", "--json", "--set", "system.inertia.1=1.3"]
    found = json.loads(CliRunner().invoke(cli.app, command, catch_exceptions=False).output)["unknowns"]
    assert abs(found["system.inertia.1"]["estimate"] - 1.4) < 1e-6
    assert abs(found["system.inertia.2"]["estimate"] - 2.1) < 1e-6


@pytest.mark.parametrize(
    "data, words",
    [
        ("time,x\n0.1,1\n0.2", "line 3 has 1 cells; allowed: 2"),
        ("time,x\n\n0.1,one\n", "line 3 is '0.1,one'; allowed: numbers between commas"),
        ("time;x\n0.1;1\n", "line 2 is '0.1;1'; allowed: numbers between commas"),
        ("time,x,x\n0.1,1,2\n", "each name once"),
        ("when,x\n0.1,1\n", "has no column .time. for the times"),
        ("time,z\n0.1,1\n", "unknown column of .*'x'"),
        ("", "has columns .* and 0 rows"),
    ],
)
def test_the_command_tells_what_is_wrong_with_data(tmp_path, data, words):
    (tmp_path / "data.csv").write_text(data)
    with pytest.raises(InvalidInput, match=words):
        CliRunner().invoke(
            cli.app, ["fit", str(EXAMPLES / "fit-sleigh.toml"), str(tmp_path / "data.csv")], catch_exceptions=False
        )


SKATE = """
import dalembert as da
import jax.numpy as jnp


def kinetic(t, g, xi, p):
    return 0.5 * (0.3 * xi[0] ** 2 + p["m"] * (xi[1] ** 2 + (xi[2] + 0.1 * xi[0]) ** 2))


def skate(mass=2.0):
    names = {"coordinates": ["heading", "x", "y"], "velocities": ["turn", "speed", "slip"]}
    blade = lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]])
    return da.System(da.SE2(), kinetic, blade, parameters={"m": mass}, names=names)
"""
SKATE_TOML = """
[system]
python = "own.py:skate"
mass = 1.5
[method]
name = "lagrange-dalembert"
[initial]
velocity = [3.0, 1.0, 0.0]
[run]
step = 0.05
steps = 60
[[unknown]]
name = "system.mass"
[[column]]
name = "heading"
deviation = 0.01
"""


@pytest.mark.heavy
def test_headings_are_compared_up_to_whole_turns(tmp_path, monkeypatch):
    """Data that count turns, a model that does not: in Python and in the command, for a system with own names."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(SKATE)
    Path("skate.toml").write_text(SKATE_TOML)
    scope: dict = {}
    exec(SKATE, scope)  # as the command loads it
    skate = scope["skate"]
    start = skate().state(xi=[3.0, 1.0, 0.0])
    run = da.simulate(skate(), METHOD, start, step=0.05, steps=60)
    heading = np.unwrap(run["heading"]) + 2 * np.pi
    assert np.ptp(heading) > np.pi
    found = fit(skate, METHOD, Experiment(run.t, {"heading": heading}, start, 0.01), {"mass": 1.5}, step=0.05)
    assert abs(found["mass"] - 2.0) < 1e-6 and "WARNING" not in str(found)
    table = np.column_stack([run.t, heading])
    np.savetxt("data.csv", table, header="time,heading", delimiter=",", comments="", fmt="%.17g")
    told = CliRunner().invoke(cli.app, ["fit", "skate.toml", "data.csv", "--json"], catch_exceptions=False)
    assert abs(json.loads(told.stdout)["unknowns"]["system.mass"]["estimate"] - 2.0) < 1e-6


def test_rotations_among_the_coordinates_are_known_as_angles():
    names = {"coordinates": ["heading", "x", "y"]}
    skate = da.System(da.SE2(), lambda t, g, xi, p: 0.5 * xi @ xi, names=names)
    given = Experiment([0.0], {"heading": [7.0], "x": [1.0]}, skate.state())
    assert find_angles(given, skate) == find_angles(given, da.with_friction(skate, viscous=0.1)) == {"heading"}
    assert da.models.differential_drive().turning_names == ("yaw",)
    assert da.with_friction(da.models.rolling_ball(), viscous=0.1).turning_names == ()


def test_an_unknown_that_only_round_off_shows_stays_where_it_is():
    """A rotor on a cart that springs: its spin cancels in the equations of the cart, but not to the last bit."""

    def rotor(k):
        def energy(t, q, v, p):
            return (0.6 + 0.3 * jnp.sin(q[0]) ** 2) * v[0] ** 2 + 0.07 * (v[0] + v[1]) ** 2 - 0.5 * p * q[0] ** 2

        return da.System(da.Euclidean(2), energy, parameters=jnp.asarray(k))

    method, true = da.LagrangeDAlembert(), rotor(3.0)
    run = da.simulate(true, method, true.state([1.0, 0.0], [0.2, 0.7]), step=0.01, steps=600)
    data = Experiment(
        run.t[10::10], {"place": np.asarray(run.g)[10::10, :1]}, true.state([1.0, 0.0], [0.3, 0.7]), 0.01,
        observables={"place": lambda system, state: state.g[:1]}, free="velocity",
    )  # fmt: skip
    found = fit(rotor, method, data, {"k": 2.0}, step=0.01)
    assert found.converged and found["k"] == pytest.approx(3.0)
    assert found["velocity.v1"] == pytest.approx(0.2) and found["velocity.v2"] == pytest.approx(0.7)
    assert [each.names for each in found.loose] == [("velocity.v2",)]


def test_unnamed_coordinates_are_measured_as_plans_name_them():
    """theta, x and y of SE(2): a heading counts up to whole turns."""
    plain = da.System(da.SE2(), lambda t, g, xi, p: 0.5 * p * (xi @ xi), parameters=jnp.asarray(1.0))
    start = plain.state(xi=[2.0, 0.5, 0.0])
    run = da.simulate(plain, METHOD, start, step=0.05, steps=80, save_every=8)
    names = {"theta": 2.0 * run.t[1:] + 2 * np.pi, "x": np.asarray(run.g)[1:, 0, 2], "y": np.asarray(run.g)[1:, 1, 2]}
    data = Experiment(run.t[1:], names, plain.state(xi=[1.9, 0.4, 0.0]), 0.01, free=["velocity.w", "velocity.v1"])
    assert find_angles(data, plain) == {"theta"}
    found = fit(plain, METHOD, data, {"velocity.w": None, "velocity.v1": None}, step=0.05)
    assert found["velocity.w"] == pytest.approx(2.0, abs=0.01) and found["velocity.v1"] == pytest.approx(0.5, abs=0.01)


def test_rotations_that_are_fitted_entry_by_entry_are_told(recwarn):
    """Nine entries of a rotation have three degrees of freedom: errors are too small by the root of two."""
    body = lambda first: da.models.rigid_body(jnp.diag(jnp.stack([jnp.asarray(first), 2.0, 3.0])))
    start, rng = body(1.0).state(xi=[0.3, 1.0, 0.4]), np.random.default_rng(3)
    run = da.simulate(body(1.0), METHOD, start, step=0.05, steps=40)
    turned = [g @ body(1.0).group.exp(0.02 * rng.standard_normal(3)) for g in run.g]

    def estimate(name, data, **options):
        data = Experiment(run.t, {name: np.array(data)}, start, 0.02, **options)
        return fit(body, METHOD, data, {"first": 1.1}, step=0.05)

    square = lambda system, state: jnp.outer(state.xi, state.xi)
    right = estimate("configuration", turned)
    estimate("square", [np.outer(xi, xi) for xi in run.xi], observables={"square": square})
    assert not recwarn.list  # a matrix, but no rotation
    with pytest.warns(UserWarning, match="'attitude' look like rotations, .* 9 independent numbers: standard errors"):
        loose = estimate("attitude", turned, observables={"attitude": lambda system, state: state.g})
    assert right.errors[0] / loose.errors[0] == pytest.approx(math.sqrt(2.0), rel=0.05)


def test_data_that_jump_by_a_turn_are_said_to_be_a_wrapped_angle(recwarn):
    """A hinge counts its turns; an encoder that does not is told by its jumps. Other data may be as far apart."""
    wheel = da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * p * v @ v - 0.1 * q[0], parameters=jnp.array(1.0))
    start = wheel.state([0.0], [4.0])
    run = da.simulate(wheel, METHOD, start, step=0.05, steps=80)
    turned = np.asarray(run.g)[:, 0]
    for values, options in ((turned % (2 * np.pi), {"angles": ["q1"]}), (turned, {})):
        found = fit(wheel, METHOD, Experiment(run.t, {"q1": values}, start, 0.01, **options), {"": 1.1}, step=0.05)
        assert abs(found.values[0] - 1.0) < 1e-6 and not recwarn
    with pytest.warns(UserWarning, match=r"data of 'q1' jump by 6.*give angles=\['q1'\], or unwrap"):
        fit(wheel, METHOD, Experiment(run.t, {"q1": turned % (2 * np.pi)}, start, 0.01), {"": 1.1}, step=0.05)


def test_controls_by_name_are_those_of_a_run():
    def cart(mass):
        push = lambda t, q, v, u, p: u[:1] + 2 * u[1:]
        return da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * p * v @ v, force=push, parameters=mass,
                         inputs=[da.Input("left motor"), da.Input("right motor")])  # fmt: skip

    state, named = cart(1.0).state([0.0], [0.0]), {"left_motor": np.linspace(0, 1, 60), "right motor": jnp.sin}
    run = da.simulate(cart(1.7), da.Leapfrog(), state, step=0.05, steps=60, controls=named).check()
    film = lambda u: Experiment(run.t[:51:5], {"q1": run.g[:51:5, 0]}, state, 0.01, controls=u)
    found = da.fit(cart, da.Leapfrog(), film(named), {"mass": 1.0}, step=0.05)
    assert abs(found["mass"] - 1.7) < 1e-6
    with pytest.raises(da.errors.InvalidInput, match=r"after 10 steps of 0\.05, as many as controls"):
        da.fit(cart, da.Leapfrog(), film({"left motor": np.ones(10)}), {"mass": 1.0}, step=0.05)
    with pytest.raises(da.errors.InvalidInput, match="the control of left motor"):
        film({"left motor": np.full(60, np.nan)})
