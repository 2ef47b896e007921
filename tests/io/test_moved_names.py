"""Files written before the move of November 2026 still load, and every name of the table of moved names exists."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import jax
import numpy as np
import pytest
from registry import more

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.io.dataset import _current_name, _resolve, read_table

FILES = sorted((Path(__file__).parents[1] / "data" / "before-the-move").glob("*.nc"))

EXACT_ENERGY = {
    *("discrete-gradient", "gauss", "discrete-moser-veselov", "implicit-midpoint", "rattle", "euler-poincare-suslov"),
    *("dormand-prince", "reference", "taylor"),
}


@pytest.fixture(scope="module")
def loaded():
    runs = {}

    def load(path: Path):
        if path not in runs:
            runs[path] = da.load(path)
        return runs[path]

    return load


def test_there_are_files_of_many_methods():
    assert len({path.stem.split("--")[1] for path in FILES}) >= 22


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_from_before_the_move_loads(path, loaded):
    run = loaded(path)
    model, method = path.stem.split("--")
    assert run.status == "ok" and run.integrator.name == method and run.steps == 6
    assert float(run.records.steps[-1]) == run.steps and len(run.t) == len(run.records.steps)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.records))
    assert np.abs(np.asarray(run.energy_error())).max() < (1e-14 if method in EXACT_ENERGY else 2e-3)
    assert np.abs(np.asarray(run.constraint_residual())).max(initial=0.0) < 1e-14
    assert type(run.system) is type(da.models.MODELS[model].make(da.models.MODELS[model].example))


LARGE = {"chaplygin-sleigh--composition", "rattleback--lagrange-dalembert", "nonholonomic-particle--gauss"}
"""What takes long to compile: `make verify` goes on with them."""


@pytest.mark.parametrize(
    "path",
    [more(path) if path.stem in LARGE or k % 3 else path for k, path in enumerate(FILES)],  # all of them load above
    ids=lambda path: path.stem,
)
def test_a_run_from_before_the_move_goes_on(path, loaded):
    """One step more from the carry that the file holds is the step that a state alone cannot give."""
    run = loaded(path)
    on = da.simulate(run.system, run.integrator, run, step=float(run.step), steps=1)
    assert on.status == "ok" and on.final.steps == run.final.steps + 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(on.records))
    jump = np.abs(np.asarray(on.records.state.xi)[-1] - np.asarray(run.records.state.xi)[-1]).max()
    assert jump < 0.5 * (1 + np.abs(np.asarray(run.xi)).max())


@pytest.mark.parametrize(("old", "new"), read_table("moved")["modules"].items(), ids=lambda name: name)
def test_a_module_that_moved_exists(old, new):
    """A new module with the name of an older one would be read as that one: its classes could not be in a file."""
    assert inspect.ismodule(importlib.import_module(f"dalembert.{new}"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"dalembert.{old}")


@pytest.mark.parametrize(("old", "new"), read_table("moved")["names"].items(), ids=lambda name: name)
def test_a_name_that_moved_exists(old, new):
    assert _current_name(f"dalembert.{old}") == f"dalembert.{new}"
    kind = "function" if new.rpartition(":")[2].startswith("_") else "named"
    kind = "data" if new.endswith(":Crossings") else kind
    found = _resolve(kind, f"dalembert.{old}")
    assert found is _resolve(kind, f"dalembert.{new}")
    assert found.__module__ == f"dalembert.{new.partition(':')[0]}" and callable(found)


def test_a_name_of_another_package_is_not_moved():
    assert _current_name("os:system") == "os:system"
    with pytest.raises(InvalidInput):
        _resolve("function", "os:system")
