"""What people look at in a notebook shows itself, without a magic line and without the network."""

import numpy as np
import pytest

import dalembert as da

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
