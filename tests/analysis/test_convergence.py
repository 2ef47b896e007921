"""Measured orders, their leading coefficients, and `dalembert convergence`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import dalembert as da
from dalembert.analysis.order import OWN_TIME, convergence, convergence_report, reaction_lag, study_convergence
from dalembert.cli import app
from dalembert.errors import InvalidInput, NumericalFailure, UnknownName
from dalembert.io.config import parse_job as parse
from dalembert.numerics import Convergence

EXAMPLES = Path(__file__).parents[2] / "examples"
Q, V = np.array([0.3, 0.5, -0.2]), np.array([1.1, 0.7, 0.55])


@pytest.fixture(scope="module")
def particle():
    system = da.models.nonholonomic_particle()
    return system, system.state(Q, V)


def exact(t):
    q, v = da.models.exact_particle(t, Q, V)
    return jnp.asarray(q), jnp.asarray(v)


def velocity_form(beta):
    return da.LagrangeDAlembert(node=beta, nodes="velocity")


def local_coefficients(beta):
    """(x, z, vx) of Phi - F = h^{p+1} c, REFERENCE.md."""
    y, (u, w), r = Q[1], V[:2], 1 + Q[1] ** 2
    if beta == 0.5:
        return np.array([w * (2 * y**2 - 1) / 12, -w * y / 4, -(w**2) * y / (4 * r)]) * u * w / r**2
    return (1 - 2 * beta) * np.array([y, -1.0, -w / r]) * u * w / (2 * r)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_local_error_and_its_coefficient(beta, particle):
    found = convergence(*_with(particle, velocity_form(beta)), duration=0.4, local=True, exact=exact)
    power = 3 if beta == 0.5 else 2
    assert found.order("configuration") == pytest.approx(power, abs=0.03)
    assert found.order("velocity") == pytest.approx(power, abs=0.03)
    q, v = found.coefficient("configuration"), found.coefficient("velocity")
    np.testing.assert_allclose([q[0], q[2], v[0]], local_coefficients(beta), rtol=2e-3)


@pytest.mark.parametrize("beta, p", [(0.0, 1), (0.5, 2), (1.0, 1)])
def test_the_order_p_s_at_both_time_stamps(beta, p, particle):
    """(p, s) of Definition 4.2: the multipliers of step k are s = 0 at the state, and where they act second order at
    beta = 1/2.
    """
    once = convergence(*_with(particle, velocity_form(beta)), duration=0.4, local=True, exact=exact)
    whole = convergence(*_with(particle, velocity_form(beta)), duration=0.8, exact=exact)
    assert re.search(r"^velocity: order \d\.\d\d, error at the end about \(.*\) h\^\d$", str(whole), re.MULTILINE)
    assert "error of a step about" in repr(once)
    assert list(once.norms)[:4] == ["configuration", "velocity", "energy", "multipliers"]
    assert once.order("multipliers") == pytest.approx(1.0, abs=0.05)  # O(h^{s+1}) with s = 0
    assert [whole.order(name) for name in ("configuration", "velocity", "energy")] == pytest.approx([p] * 3, abs=0.06)
    assert whole.order("multipliers") == pytest.approx(1.0, abs=0.06)
    if beta:
        assert whole.order(OWN_TIME) == pytest.approx(p, abs=0.06)
    else:
        assert OWN_TIME not in whole.norms and reaction_lag(velocity_form(0.0)) == 0.0


def test_three_comparisons_agree(particle):
    method = velocity_form(0.5)
    results = [
        convergence(*_with(particle, method), duration=0.8, counts=(8, 16, 32), exact=kind)
        for kind in (exact, None, "richardson")
    ]
    for found in results:
        assert found.order("configuration") == pytest.approx(2.0, abs=0.02)
    np.testing.assert_allclose(results[0].norms["velocity"], results[1].norms["velocity"], rtol=1e-7)
    for found in results[1:]:
        np.testing.assert_allclose(
            found.coefficient("velocity"), results[0].coefficient("velocity"), rtol=2e-3, atol=1e-9
        )
    back = convergence(*_with(particle, method), duration=-0.8, counts=(8, 16, 32), exact=exact)
    assert back.order("configuration") == pytest.approx(2.0, abs=0.02) and back.steps[0] == -0.1


def _with(case, method):
    system, state = case
    return system, method, state


def test_what_is_exact_has_no_order_and_a_failed_run_no_error():
    """The Moser-Veselov energy is exact; at step 0.06 that map has no solution from this state (garcia-naranjo-jimenez,
    8.1).
    """
    system = da.models.suslov([[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]])
    state = system.state(momentum=[41.07400078, -99.38251558])
    found = convergence(
        system, da.EulerPoincareSuslov(), state, duration=0.12, counts=(2, 16, 32, 64), exact="richardson"
    )
    assert found.order("energy") is None and found.coefficient("energy") is None
    assert found.failures[0] and not found.failures[1] and np.isnan(found.norms["velocity"][0])
    assert found.order("velocity") == pytest.approx(2.0, abs=0.15)
    with pytest.raises(NumericalFailure, match="no run"):
        convergence(system, da.EulerPoincareSuslov(), state, duration=0.12, counts=(1, 2), exact="richardson")


def test_slopes_ignore_round_off():
    steps, norms = np.array([0.4, 0.2, 0.1, 0.05]), np.array([16e-10, 1e-10, 3e-13, 5e-13])
    found = Convergence(False, steps, {"x": norms[:, None]}, {"x": norms}, {"x": 1.0}, ("",) * 4, np.zeros(4))
    assert found.order("x") == pytest.approx(4.0)
    assert found.coefficient("x")[0] == pytest.approx(1e-10 / 0.2**4)
    assert np.isnan(found.slopes("x")[1:]).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"counts": (8,)}, "at least two"),
        ({"counts": (8, 8)}, "at least two"),
        ({"counts": (0, 8)}, "at least two"),
        ({"counts": (8.0, 16)}, "at least two"),
        ({"exact": "richardsen"}, "richardson"),
    ],
)
def test_bad_studies_are_refused(options, message, particle):
    system, state = particle
    with pytest.raises((InvalidInput, UnknownName), match=message):
        convergence(system, da.RungeKutta(), state, **{"duration": 1.0, **options})


def test_the_reference_method_agrees_with_scipy(particle):
    """The comparison is SciPy's own DOP853, so the reference method is measured as every other one."""
    system, state = particle
    found = convergence(system, da.integrators.Reference(), state, duration=1.0, counts=(4, 8))
    assert all(values.max() < 1e-11 for values in found.norms.values())


# -- the command ------------------------------------------------------------------------------------------------------
CONFIG = """
[system]
name = "nonholonomic-particle"
[method]
name = "lagrange-dalembert"
nodes = "velocity"
[initial]
configuration = [0.3, 0.5, -0.2]
velocity = [1.1, 0.7, 0.55]
[run]
step = 0.1
steps = 8
"""


def invoke(*words):
    return CliRunner().invoke(app, ["convergence", *map(str, words)], catch_exceptions=False)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "particle.toml"
    path.write_text(CONFIG)
    return path


def test_the_command_prints_a_table_and_draws(config):
    done = invoke(config, "--levels", 4, "--richardson")
    assert done.exit_code == 0
    assert "order 2.0" in done.stdout and "multipliers" in done.stdout and "0.0125" not in done.stdout
    assert (config.parent / "out" / "particle-convergence.png").stat().st_size > 5000
    other = config.parent / "other.svg"
    assert invoke(config, "--levels", 3, "--richardson", "--plot", other).exit_code == 0 and "<svg" in other.read_text()


def test_the_command_gives_one_object(config):
    done = invoke(config, "--json", "--no-plot", "--levels", 4, "--richardson", "--set", "method.node=0")
    result = json.loads(done.stdout)
    assert result["step"] == pytest.approx([0.1, 0.05, 0.025]) and result["picture"] is None
    assert result["quantities"]["velocity"]["order"] == pytest.approx(1.0, abs=0.1)
    assert len(result["quantities"]["configuration"]["coefficient"]) == 3
    assert not (config.parent / "out").exists()


@pytest.mark.parametrize("words", [("--levels", 1), ("--levels", 2, "--richardson"), ("--plot", "a.txt")])
def test_the_command_refuses_bad_input(words, config):
    with pytest.raises(InvalidInput):
        invoke(config, *words)


def test_a_study_is_that_of_the_library(particle):
    import tomllib

    job = parse(tomllib.loads(CONFIG))
    found = study_convergence(job, levels=3, local=True)
    assert (
        convergence_report(found, job)["errors"] == "local"
        and convergence_report(found, job)["system"] == "nonholonomic-particle"
    )
    direct = convergence(
        *_with(particle, velocity_form(0.5)), duration=0.8, counts=(8, 16, 32), local=True, exact=exact
    )
    np.testing.assert_allclose(found.norms["velocity"], direct.norms["velocity"], rtol=1e-6)
