"""What people look at in a notebook shows itself, without a magic line and without the network."""

import sys
import time
from types import ModuleType

import numpy as np
import pytest

import dalembert as da
from dalembert.numerics import checks

METHODS = {"own": da.LagrangeDAlembert(), "classical": da.RungeKutta()}


@pytest.fixture(scope="module")
def sleigh():
    return da.models.chaplygin_sleigh(a=0.3, b=0.2)


@pytest.fixture(scope="module")
def run(sleigh):
    return da.simulate(sleigh, da.LagrangeDAlembert(), sleigh.state(xi=[0.5, -1.0, 0.0]), step=0.1, steps=30)


def test_runs_figures_and_results_have_pictures_or_tables(sleigh, run):
    assert run.plot()._repr_png_().startswith(b"\x89PNG")
    assert "data:image/png" in run._repr_html_()
    for shown, word in (
        (sleigh, "SE(2)"),
        (da.SE2(), "dimension"),
        (da.LagrangeDAlembert(), "node"),
        (da.nonholonomy(sleigh), "(2, 3)"),
        (da.analysis.drift(da.simulate(sleigh, da.RungeKutta(), run.at(0.0), step=0.1, steps=200)), "verdict"),
    ):
        assert shown._repr_html_().startswith("<table>") and word in shown._repr_html_(), shown


def test_a_comparison_is_a_table(sleigh, run):
    found = da.compare(sleigh, METHODS, run.at(0.0), steps=[0.1], t_end=1.0, error=False, timing=False)
    table = found._repr_html_()
    assert table.count("<tr>") == 3 and "<td>classical</td>" in table
    heads, lines = found.table()
    assert heads[0] == "method" and [line[0] for line in lines] == ["own", "classical"]
    assert len(str(found).splitlines()) == 4 and str(found).splitlines()[2].split()[:3] == ["own", "0.1", "10"]


def test_a_run_plays_in_a_frame_that_needs_no_network(run, tmp_path):
    page = run.show(height=300)
    assert page._repr_html_().startswith("<iframe") and "height:300px" in page._repr_html_()
    page.save(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    assert text == page.html and 'id="show"' in text and "importmap" in text and 'src="http' not in text


def test_a_film_is_shown_and_kept(run, tmp_path):
    film = run.animate(tmp_path / "film.gif", seconds=0.3)
    assert film._repr_html_().startswith("<img") and (tmp_path / "film.gif").read_bytes()[:4] == b"GIF8"


def test_an_ensemble_has_no_player(sleigh):
    states = [sleigh.state(xi=[w, 1.0, 0.0]) for w in (0.1, 0.2)]
    both = da.ensemble(sleigh, da.LagrangeDAlembert(), states, step=0.1, steps=2)
    with pytest.raises(da.InvalidInput, match="one run"):
        both.show()
    assert "2 members" in both._repr_html_() and np.shape(both.t)[0] == 2


@pytest.fixture
def shown(monkeypatch):
    """What a notebook would show of progress, text by text; "" where it is taken away."""
    texts = []

    class Handle:
        def update(self, page):
            texts.append(page)

    def display(page, display_id):
        texts.append(page)
        return Handle()

    module = ModuleType("IPython.display")
    module.HTML, module.display = str, display
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(checks, "PATIENCE", 0.02)
    return texts


def wait_for(condition):
    """Wait until a watching thread has done its work."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    assert condition()


def test_a_long_call_shows_a_bar_in_a_notebook_and_takes_it_away(shown):
    @checks.shows_progress(lambda bar: bar.count)
    def work(*, progress=None):
        wait_for(lambda: shown)
        progress(3, 1000, ": leapfrog")
        wait_for(lambda: "progress" in shown[-1])
        return inner()

    @checks.shows_progress(lambda bar: bar.count)
    def inner(*, progress=None):
        return progress  # a call within a call shows nothing of its own

    assert work() is None
    assert shown[0].startswith("work: compiling, 0") and shown[-1] == ""
    assert any('<progress value="3" max="1000"></progress> work: 3 of 1,000: leapfrog' in text for text in shown)


def test_a_sweep_shows_its_members(shown):
    def look(block, arrays):
        wait_for(lambda: any("members" in text for text in shown))

    config = {
        "system": {"name": "chaplygin-sleigh"},
        "method": {"name": "runge-kutta"},
        "initial": {"velocity": [0.5, 1.0, 0.0]},
        "run": {"step": 0.1, "steps": 2},
        "sweep": {"system": {"a": [0.1, 0.2]}, "chunk": 1, "keep": "extremes"},
    }
    da.sweep(config, out=look)
    assert any("sweep: 1 of 2 members" in text for text in shown) and shown[-1] == ""


def test_a_short_call_shows_nothing_and_an_own_progress_is_left_alone(shown, monkeypatch):
    monkeypatch.setattr(checks, "PATIENCE", 10.0)
    given = checks.shows_progress(lambda bar: bar.count)(lambda *, progress=None: progress)
    assert given(progress=len) is len and given() is not None and shown == []
    monkeypatch.delitem(sys.modules, "ipykernel")
    assert given() is None  # no notebook


@pytest.mark.parametrize(
    ("options", "long"),
    [
        ({"steps": 99_999}, False),
        ({"steps": 100_000}, True),
        ({"t_end": 100.0, "step": 1e-3}, True),
        ({"t_end": 1.0, "step": 0.1}, False),
        ({"t_end": None, "step": 0.1}, False),
        ({"t_end": 1.0, "step": 0.0}, False),
    ],
)
def test_only_long_runs_tell_a_notebook_how_far_they_are(options, long):
    assert checks.is_long_run(options) is long


def test_runs_comparisons_fits_and_plans_show_bars(shown, monkeypatch):
    made = []
    monkeypatch.setattr(checks, "LONG_RUN", 50)
    monkeypatch.setattr(checks.NotebookBar, "count", lambda bar, *told: made.append((bar.title, *told[:2])))
    sleigh = da.models.chaplygin_sleigh()
    start = sleigh.state(xi=[0.9, -1.0, 0.0])
    assert da.simulate(sleigh, da.RungeKutta(), start, step=0.05, steps=60).status == "ok"
    assert made and made[-1] == ("simulate", 60, 60)
    da.compare(sleigh, {"rk": da.RungeKutta()}, start, steps=[0.05], t_end=0.5, timing=False, error=False)
    assert made[-1] == ("compare", 0, 1)
    for name in ("simulate", "ensemble", "compare", "fit", "plan"):
        assert "shows_progress" in getattr(da, name).__code__.co_qualname, name
