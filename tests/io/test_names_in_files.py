"""What a data file can name: groups, systems, methods, states and formulas. No name leads to code that does more."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import pickle
import pkgutil
import shutil
import sys
from pathlib import Path

import h5py
import pytest
from registry import more

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.io.dataset import ALLOWED_CLASSES, ALLOWED_FUNCTIONS, NotPortable, _resolve, decode, encode

KINDS = ("function", "data", "named", "tree")
HARMLESS = {
    *("abc", "collections", "dataclasses", "fractions", "functools", "itertools", "math", "numpy", "operator", "re"),
    *("types", "typing", "warnings", "jax", "__future__", "jaxtyping", "html", "scipy"),
}
"""Modules of others that an allowed module may import."""
OWN = ("errors", "groups", "integrators", "kernels", "mechanics", "models", "numerics", "simulation", "")
FORBIDDEN = {"open", "eval", "exec", "compile", "__import__", "input", "breakpoint", "globals", "vars", "print"}


def modules():
    names = ["dalembert", *(found.name for found in pkgutil.walk_packages(da.__path__, "dalembert."))]
    return [name for name in names if not name.endswith("__main__")]


def resolved(kind, name):
    try:
        return _resolve(kind, name)
    except InvalidInput:
        return None


def reachable():
    """(kind, "module:name") of all that a file can name, found by trying every attribute of every module."""
    found = set()
    for module in modules():
        for attribute in dir(importlib.import_module(module)):
            found |= {(kind, f"{module}:{attribute}") for kind in KINDS if resolved(kind, f"{module}:{attribute}")}
    return found


REACHABLE = sorted(reachable())


def test_only_the_allowlist_can_be_named():
    places = {name.partition(":")[0].removeprefix("dalembert.") for _, name in REACHABLE}
    assert places <= {place for place in places if place.startswith(ALLOWED_CLASSES)}
    assert {place.partition(".")[0] for place in places} == {
        "groups",
        "integrators",
        "mechanics",
        "models",
        "simulation",
    }
    functions = [name for kind, name in REACHABLE if kind == "function"]
    elsewhere = {name.removeprefix("dalembert.") for name in functions if not name.startswith("dalembert.models.")}
    listed = {f"{place}:{name}" for place, names in ALLOWED_FUNCTIONS.items() for name in names or ()}
    assert elsewhere == listed and len(functions) > 60
    assert not any("registry" in place for place in places)


def test_what_can_be_named_is_data_or_a_formula():
    for kind, name in REACHABLE:
        found = _resolve(kind, name)
        if kind == "function":
            assert inspect.isfunction(found), name
        else:
            assert inspect.isclass(found), name
            assert kind == "tree" or dataclasses.is_dataclass(found) or issubclass(found, tuple), name


@pytest.mark.parametrize("module", sorted({name.partition(":")[0] for _, name in REACHABLE}))
def test_a_module_of_the_allowlist_reads_writes_imports_and_runs_nothing(module):
    """Its source imports mathematics only, and calls nothing that opens files or evaluates text."""
    path = Path(inspect.getsourcefile(sys.modules[module]))
    depth = module.count(".")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= HARMLESS, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.partition(".")[0] in HARMLESS, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            assert {name.partition(".")[0] for name in names} <= set(OWN), ast.unparse(node)
        elif isinstance(node, ast.Name):
            assert node.id not in FORBIDDEN, f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    "form",
    [
        {"function": "dalembert.cli.runs:run_file"},
        {"function": "dalembert.cli:main"},
        {"function": "dalembert.cli.__main__:main"},
        {"function": "dalembert.io.config:load_function"},
        {"function": "dalembert.io.config:load_job"},
        {"function": "dalembert.io.dataset:load_run"},
        {"function": "dalembert.io.atomic:remove_leftovers"},
        {"function": "dalembert.kernels.cache:write_entry"},
        {"function": "dalembert.studio.server:open_studio"},
        {"function": "dalembert.trajectory:simulate"},
        {"function": "dalembert.simulation.driver:simulate"},
        {"function": "dalembert.models.registry:register"},
        {"function": "dalembert.models.bodies:np.fromfile"},
        {"function": "dalembert.models.bodies:np"},
        {"function": "dalembert.models:bodies.np.fromfile"},
        {"data": "dalembert.io.config:Job", "fields": {}},
        {"data": "dalembert.trajectory:Trajectory", "fields": {}},
        {"data": "dalembert.integrators.registry:Method", "fields": {}},
        {"data": "dalembert.groups.so:SO", "fields": {"n": 3}},
        {"tree": "dalembert.mechanics.invariant:symmetric_matrix", "fields": {}},
        {"function": ["dalembert.models.bodies:gravity"]},
        {"function": 3},
        {
            "partial": {
                "function": {"function": "dalembert.cli.runs:run_file"},
                "arguments": {"tuple": []},
                "options": {"dict": {}},
            }
        },
        {"partial": {"function": "print", "arguments": {"tuple": ["x"]}, "options": {"dict": {}}}},
        {
            "partial": {
                "function": {"data": "dalembert.groups.so:SO3", "fields": {}},
                "arguments": {"tuple": []},
                "options": {"dict": {}},
            }
        },
        {"evil": 3},
        {},
    ],
    ids=str,
)
def test_forms_that_name_something_else_are_refused(form):
    with pytest.raises(InvalidInput):
        decode(form, {})


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run.nc"
    disk = da.models.vertical_disk()
    run = da.simulate(
        disk, da.LagrangeDAlembert(), disk.state(xi=[1.0, 0.5, 0.0, 0.5][: disk.group.dim]), step=0.1, steps=2
    )
    run.save(path)
    return path


@pytest.fixture
def saved(saved_once, tmp_path):
    return Path(shutil.copy(saved_once, tmp_path))


def with_form(path, name, form):
    """An attacker's file: one form is another, and nothing has checksums."""
    with h5py.File(path, "a") as file:
        text = json.loads(file["carry"].attrs["trajectory"])
        text["forms"][name] = form
        file["carry"].attrs["trajectory"] = json.dumps(text)
    return path


EVIL = ["dalembert.cli:main", "dalembert.cli.runs:run_file", "dalembert.io.config:load_function"]
PLACES = ["system", "integrator", "final", "note", "events"]


@pytest.mark.parametrize(
    "where, name",
    [
        (where, name) if where == "system" or name == EVIL[-1] else more(where, name)
        for where in PLACES
        for name in EVIL
    ],
)
def test_no_code_runs_when_an_evil_file_is_loaded(saved, where, name, tmp_path, monkeypatch):
    """FINDINGS S1: `partial` of a command as the constraint of a system, and a command called at load."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'evil')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    arguments = {"tuple": ["evil.toml"]}
    form = {"partial": {"function": {"function": name}, "arguments": arguments, "options": {"dict": {}}}}
    fields = {"group": {"data": "dalembert.groups.se:SE2", "fields": {}}, "lagrangian": form, "constraint": form}
    whole = {"data": "dalembert.mechanics.system:System", "fields": fields}
    for evil in (form, whole, {"data": name, "fields": {}}):
        with pytest.raises(InvalidInput, match="that a file can name"):
            da.load(with_form(saved, where, evil), unchecked=True)
    assert not (tmp_path / "evil").exists()


class Pickled:
    def __reduce__(self):
        return exec, ("raise SystemExit(3)",)


@pytest.mark.parametrize("place", ["filters", "compressor"])
def test_a_zarr_file_cannot_bring_pickles(place, tmp_path):
    pytest.importorskip("zarr")
    disk = da.InvariantSystem(da.Euclidean(1), [1.0])
    path = tmp_path / "run.zarr"
    da.simulate(disk, da.RungeKutta(), disk.state(xi=[1.0]), step=0.1, steps=2).save(path)
    about = json.loads((path / "energy" / ".zarray").read_text())
    codec = {"id": "pickle", "protocol": 4}
    about |= {"filters": [codec], "compressor": None} if place == "filters" else {"filters": None, "compressor": codec}
    (path / "energy" / ".zarray").write_text(json.dumps(about))
    (path / "energy" / "0").write_bytes(pickle.dumps(Pickled()))
    for unchecked in (False, True):
        with pytest.raises(InvalidInput):
            da.load(path, unchecked=unchecked)


def test_functions_that_files_cannot_name_cannot_be_packed_either():
    with pytest.raises(NotPortable, match="not part of dalembert"):
        encode(da.simulate, "f", {})
