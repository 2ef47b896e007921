"""Comparisons and moving pictures: numbers that mean something, refusals that are told, files that open."""

from __future__ import annotations

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import dalembert as da
from dalembert.cli import app
from dalembert.errors import InvalidInput

CONFIG = """[system]
name = "rigid-body"
inertia = [0.6, 0.8, 1.0]
[method]
name = "discrete-moser-veselov"
[initial]
momentum = [1.8, 0.4, -0.9]
[run]
step = 0.1
steps = 20
"""


@pytest.fixture(scope="module")
def result():
    body = da.models.rigid_body([0.6, 0.8, 1.0])
    methods = {
        "exact": da.DiscreteMoserVeselov(),
        "second order": da.DiscreteMoserVeselov(order=2),
    }
    return da.compare(body, methods, body.state(momentum=[1.8, 0.4, -0.9]), steps=[0.1, 0.05], t_end=2.0, timing=False)


@pytest.mark.heavy
def test_errors_are_those_of_the_methods(result):
    """Exact means exact, order 2 means a quarter; a method of order 2 shows what it loses, and the count of
    steps fits.
    """
    error = {(row.method, row.step): row.error for row in result.rows}
    assert error["exact", 0.1] < 1e-12 and error["exact", 0.05] < 1e-12
    assert 3.6 < error["second order", 0.1] / error["second order", 0.05] < 4.4
    assert {row.steps for row in result.rows if row.step == 0.05} == {40}
    for row in result.rows:
        if row.status == "ok":
            assert row.energy < 1e-2 and row.group < 1e-14 and row.constraint is None and row.nanoseconds is None


def test_the_figure_has_every_panel(result, tmp_path):
    figure = result.plot(tmp_path / "x.png", title="three methods")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert (tmp_path / "x.png").stat().st_size > 10_000 and "Energy error" in titles
    assert "Largest energy error against the time of the run" in titles  # steps differ
    error = next(axes for axes in figure.axes if axes.get_title(loc="left").startswith("Error"))
    curves = [line for line in error.lines if len(line.get_xdata()) > 2]  # the line of zeros has two points
    assert len(curves) == len(result.runs) + 1 and curves[-1].get_label() == "error of the reference"


def test_with_several_steps_the_cost_is_that_of_the_whole_run(result):
    """Half the step takes twice the steps, although one of them takes as long."""
    timed = replace(result, rows=[replace(row, nanoseconds=100.0) for row in result.rows])
    panel = timed.plot().axes[4]
    assert panel.get_title(loc="left") == "Largest error against the time of the run"
    assert [line.get_label() for line in panel.lines][:2] == ["exact", "second order"]
    assert panel.lines[2].get_ydata()[0] == result.reference.floor[-1]
    narrow = timed.plot(width=3.37)
    assert narrow.get_size_inches() == pytest.approx([3.37, 8.8]) and len(narrow.axes) == 4
    assert panel.lines[1].get_xdata().tolist() == pytest.approx([20 * 1e-7, 40 * 1e-7])


def test_a_step_of_a_closed_form_does_not_take_zero_nanoseconds(result):
    """A run that saves its last state alone takes all steps of such a map at once: 0.4 ns a step were shown as 0."""
    for nanoseconds, shown, told in ((0.43, "0.43", True), (24.6, "25", False), (None, "-", False)):
        timed = replace(result, rows=[replace(row, nanoseconds=nanoseconds) for row in result.rows])
        assert {line[-1] for line in timed.table()[1]} == {shown}
        assert ("takes all steps at once" in str(timed)) is told


def test_a_method_that_refuses_the_system_has_a_row_that_says_so():
    sleigh = da.models.chaplygin_sleigh()
    state = sleigh.state(xi=[0.5, -1.0, 0.0])
    table = da.compare(sleigh, {"dmv": da.DiscreteMoserVeselov()}, state, steps=[0.1, 0.05], t_end=1.0)
    assert table.rows[0].status == "refused" and "SO(n)" in table.rows[0].reason and not table.runs
    assert str(table).count("dmv, refused: ") == 1  # once, not for every step
    with pytest.raises(InvalidInput, match=r"methods are \{\}; allowed: names with methods"):
        da.compare(sleigh, {}, state, steps=[0.1], t_end=1.0)
    with pytest.raises(InvalidInput, match=r"steps is 0\.1; allowed: a list"):
        da.compare(sleigh, {"dmv": da.DiscreteMoserVeselov()}, state, steps=0.1, t_end=1.0)


def test_methods_with_one_reason_share_a_sentence():
    skate = da.System(da.SE2(), lambda t, g, xi, p: 0.5 * xi @ xi)
    methods = {each.name: each for each in (da.EulerPoincareSuslov(), da.RetractionAdapted())}
    table = da.compare(skate, methods, skate.state(), steps=[0.1], t_end=0.2, error=False)
    assert len(table.reasons()) == 1 and table.reasons()[0].startswith(
        f"refused: each of {', '.join(methods)} needs an InvariantSystem"
    )
    alone = da.compare(skate, dict([*methods.items()][:1]), skate.state(), steps=[0.1], t_end=0.2, error=False)
    assert alone.reasons()[0].startswith("refused: euler-poincare-suslov needs an InvariantSystem")


def test_on_the_command_line(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(CONFIG)
    words = [
        "compare",
        str(path),
        "--json",
        "--no-error",
        "--method",
        "discrete-moser-veselov:order=2",
        "--step",
        "0.2",
    ]
    done = CliRunner().invoke(app, words)
    (row,) = json.loads(done.stdout)["rows"]
    assert done.exit_code == 0 and row["method"] == "discrete-moser-veselov:order=2" and row["nanoseconds"] > 0
    assert (row["steps"], row["step"], row["status"], row["error"]) == (10, 0.2, "ok", None)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--method", "rutle"], "Did you mean 'rattle'"),
        (["--method", "rattle:ordr=2"], "Did you mean 'order'"),
        (["--method", "euler-poincare-suslov:lagrangian=x"], "Lagrangian 'x'"),
        (["--plot", "x.txt"], "--plot"),
        (["--step", "0"], "step"),
    ],
)
def test_bad_words_are_refused(words, message, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(CONFIG)
    done = CliRunner().invoke(app, ["compare", str(path), *words])
    assert isinstance(done.exception, InvalidInput) and message in str(done.exception)


def test_notebooks_get_a_table_and_a_picture(result):
    run = next(iter(result.runs.values()))
    text = run._repr_html_()
    assert "SO(3)" in text and "data:image/png;base64" in text and "largest energy error" in text
    assert "basis of d" in run.system._repr_html_() and "free" in run.system._repr_html_()
    assert repr(run) == f"<Trajectory of {run.system.title} on SO(3) by discrete-moser-veselov: 21 states, ok>"


def test_progress_names_each_method_before_it_runs():
    said = []
    body = da.models.rigid_body([0.6, 0.8, 1.0])
    methods = {"first": da.DiscreteMoserVeselov(), "second": da.DiscreteMoserVeselov(order=2)}
    options = {"steps": [0.1], "t_end": 0.5, "error": False, "timing": False}
    start = body.state(momentum=[1.8, 0.4, -0.9])
    da.compare(body, methods, start, **options, progress=lambda *told: said.append(told))
    assert said == [(0, 2, ": first"), (1, 2, ": second")]


def make_skate(stiffness):
    def lagrangian(t, g, xi, p):
        hook = g[:2, 2] + 0.1 * g[:2, 0]
        return 0.4 * (xi[1] ** 2 + xi[2] ** 2) + 0.025 * xi[0] ** 2 - stiffness(hook @ hook)

    skate = da.System(da.SE2(), lagrangian, lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]))
    return skate, skate.state(da.SE2().element([0.4, 1.0, -0.3]), [1.0, 0.5, 0.0])


def test_no_error_is_reported_below_that_of_the_reference():
    """DOP853 at 1e-13 is 3e-11 off here, more than the methods that it was the measure of."""
    skate, state = make_skate(lambda square: 1.5 * square)
    methods = {"coarse": da.Taylor(tolerance=1e-3), "fine": da.Taylor(tolerance=1e-16)}
    table = da.compare(skate, methods, state, steps=[0.2], t_end=20.0, timing=False)
    coarse, fine = table.rows
    assert table.reference.name == "taylor at 1e-16" and fine.error == fine.floor == coarse.floor < 1e-11
    assert coarse.error > 100 * coarse.floor and f"< {fine.floor:.2g}" in str(table)
    assert "whose own error is about" in table.reasons()[-1] and "< marks" in table.reasons()[-1]
    assert (np.diff(table.reference.floor) >= 0).all() and (table.errors["fine"] >= table.reference.floor).all()


@pytest.mark.heavy
def test_where_the_force_has_a_kink_the_better_reference_is_taken():
    """A Taylor series steps over a kink; both references are off there, and the floor says how far."""
    skate, state = make_skate(lambda square: 1.5 * jnp.maximum(square, 1.0) ** 2)
    table = da.compare(skate, {"rk4": da.RungeKutta()}, state, steps=[0.05], t_end=6.0, timing=False)
    finer = da.compare(skate, {"dp": da.DormandPrince(1e-13)}, state, steps=[0.0005], t_end=6.0, timing=False)
    assert table.reference.name == finer.reference.name == "DOP853 at 1e-13"
    assert finer.rows[0].error < 30 * table.rows[0].floor
