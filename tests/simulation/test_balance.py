"""Where power enters, what is shown of the energy is its balance: E - E(0) - work, not E - E(0)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import more
from typer.testing import CliRunner

import dalembert as da
from dalembert.cli import app
from dalembert.cli.runs import run_report
from dalembert.models import MODELS
from dalembert.plotting.runs import plot_trajectory
from dalembert.simulation import energy_conservation as energy_kept
from dalembert.simulation import receives_power
from dalembert.simulation import save_interval as saving

TABLE = Path(__file__).parents[2] / "examples" / "table.toml"
CASES = {
    "a force": ({"force": lambda t, g, xi, u, p: -0.1 * xi}, True),
    "a constant force": ({"force": lambda t, g, xi, u, p: jnp.ones(2)}, True),
    "controls that are not given": ({"force": lambda t, g, xi, u, p: u}, False),
    "a moving constraint": (
        {"constraint": lambda t, g, p: jnp.ones((1, 2)), "drift": lambda t, g, p: jnp.ones(1)},
        True,
    ),
    "a drift of zero": ({"constraint": lambda t, g, p: jnp.ones((1, 2)), "drift": lambda t, g, p: jnp.zeros(1)}, False),
    "a constraint that turns": ({"constraint": lambda t, g, p: jnp.stack([jnp.cos(t), jnp.sin(t)])[None]}, False),
    "nothing": ({}, False),
}


@pytest.mark.parametrize("case", CASES)
def test_power_enters_where_something_works(case):
    options, expected = CASES[case]
    kinetic = lambda t, g, xi, p: 0.5 * xi @ xi - 0.5 * g @ g
    assert receives_power(da.System(da.Euclidean(2), kinetic, **options)) is expected
    driven = lambda t, g, xi, p: kinetic(t, g, xi, p) - jnp.sin(t) * g[0]
    assert receives_power(da.System(da.Euclidean(2), driven, **options)) is True


@pytest.mark.parametrize("drawn", [False, more(True)], ids=["written", "drawn"])
def test_models_in_which_power_enters(drawn):
    models = {name: model for name, model in MODELS.items() if model.starts_by_names is drawn}
    working = [name for name, model in models.items() if receives_power(model.make(model.example))]
    assert working == ([] if drawn else ["ball-on-table"])
    assert receives_power(da.with_friction(da.models.car(), viscous=0.1))


@pytest.fixture(scope="module")
def table() -> da.Trajectory:
    """A ball on a turning table, whose energy changes by as much as it has."""
    system = da.models.ball_on_table(rotation=1.5)
    state = system.state(xi=[0.3, 0.5, 0.2, 0.5, -0.3])
    return da.simulate(system, da.LagrangeDAlembert(), state, step=0.05, steps=60, monitor=True).check()


def test_the_balance_is_what_is_kept(table):
    kept = energy_kept(table)
    assert kept.title == "Energy balance" and kept.label == "|E - E(0) - work|"
    np.testing.assert_allclose(kept.values, da.analysis.energy_balance(table), rtol=0, atol=1e-15)
    assert np.abs(kept.values).max() < 1e-2 * np.abs(table.energy_error()).max()


def test_where_work_is_not_known_a_change_is_no_error(table):
    system, state = table.system, table.records.state
    first = jax.tree.map(lambda leaf: leaf[0], state)
    assert saving(system, 1000, 10) == 1 and saving(system, 10**6, 10**3) == 10**3
    sparse = da.simulate(system, da.LagrangeDAlembert(), first, step=0.05, steps=60, save_every=10)
    assert energy_kept(sparse).title == "Energy change"
    board = da.System(
        da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi @ xi, force=CASES["controls that are not given"][0]["force"]
    )
    pushed = da.simulate(
        board, da.LagrangeDAlembert(), board.state(xi=[1.0, 0.0]), step=0.1, steps=5, controls=jnp.ones((5, 2))
    )
    assert energy_kept(pushed).title == "Energy balance"
    assert energy_kept(replace(pushed, controls=None)).title == "Energy change"
    coasting = da.simulate(board, da.LagrangeDAlembert(), board.state(xi=[1.0, 0.0]), step=0.1, steps=5)
    assert energy_kept(coasting).title == "Energy error"


def test_report_plot_and_notebook_show_the_balance(table):
    energy = run_report(table, {"system": "ball-on-table", "method": "lagrange-dalembert"})["energy"]
    size = np.abs(da.analysis.energy_balance(table)).max()
    assert energy["max_error"] == pytest.approx(np.abs(table.energy_error()).max()) and energy[
        "balance"
    ] == pytest.approx(size)
    axes = next(axes for axes in plot_trajectory(table).axes if "Energy" in axes.get_title("left"))
    assert axes.get_title("left") == "Energy balance" and axes.get_ylabel() == "$|E - E(0) - W|$, J"
    assert max(axes.lines[0].get_ydata()) == pytest.approx(size)
    assert "largest energy balance" in table._repr_html_() and "energy error" not in table._repr_html_()


def test_the_command_line_shows_the_balance():
    shown = CliRunner().invoke(app, ["run", str(TABLE), "--set", "run.t_end=2.0"])
    told = " ".join(shown.output.split())
    assert shown.exit_code == 0 and "E - E(0) - work" in told and "largest error" not in told
    told = json.loads(CliRunner().invoke(app, ["run", str(TABLE), "--set", "run.t_end=2.0", "--json"]).output)["energy"]
    assert 0 < told["balance"] < 1e-3 < 0.1 < told["max_error"]
