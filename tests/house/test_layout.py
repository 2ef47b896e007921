"""Imports go one way, the public names are few, and the mathematics needs nothing but jax and numpy."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import dalembert

ROOT = Path(dalembert.__file__).parent
REPOSITORY = ROOT.parents[1]
FILES = sorted(ROOT.rglob("*.py"))
OPTIONAL = ("scipy", "llvmlite", "typer", "rich", "matplotlib", "xarray", "h5netcdf", "cupy", "pandas")
PACKAGES = [name for _, name, _ in pkgutil.walk_packages([str(ROOT)], "dalembert.") if not name.endswith("__main__")]


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module of the package, parsed once for all tests."""
    return {path: ast.parse(path.read_text()) for path in FILES}


def definitions() -> list[tuple[str, str, bool]]:
    """The package, the name, and whether it is a function, of all classes and functions of modules."""
    return [
        (path.relative_to(ROOT).parts[0], node.name, isinstance(node, ast.FunctionDef))
        for path, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]


def test_imports_go_one_way():
    """The contracts of import-linter in pyproject.toml; CONTRIBUTING.md lists the same packages."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout


def test_contributing_and_the_contracts_say_the_same():
    layers = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0][
        "layers"
    ]
    rows = re.findall(r"^\| (`[^|]+`) \|", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == [set(layer.split(" | ")) for layer in layers]


def test_few_public_names_and_their_stub():
    namespaces = {path.name for path in ROOT.iterdir() if path.is_dir()} | {"errors"}
    names = [name for name in dalembert.__all__ if name not in namespaces]
    assert 30 <= len(names) <= 45 and dir(dalembert) == sorted(dalembert.__all__)
    for name in dalembert.__all__:
        assert getattr(dalembert, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        dalembert.simulat  # noqa: B018


@pytest.mark.parametrize(
    "package",
    [
        "analysis",
        "plotting",
        "io",
        "sweeps",
        "papers",
        "mechanics",
        "models",
        "integrators",
        "simulation",
        "studio",
        "optimise",
    ],
)
def test_names_of_lazy_packages_exist(package):
    module = importlib.import_module(f"dalembert.{package}")
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize(
    "name, hint", [("Experiment", "it is dalembert.optimise.Experiment"), ("simulat", "'simulate'")]
)
def test_a_name_that_is_elsewhere_is_found(name, hint):
    with pytest.raises(AttributeError, match=hint):
        getattr(importlib.import_module("dalembert"), name)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_function_has_the_name_of_its_module(name):
    own = getattr(importlib.import_module(name), name.rsplit(".", 1)[1], None)
    assert not (inspect.isfunction(own) and own.__module__ == name)


MEAN_THE_SAME = {
    "Carry": "what the method of a file carries from step to step",
    **dict.fromkeys(("animate", "compare", "convergence", "sweep"), "the command does what the function does"),
    "prepare": "the one for users wraps that of the simulation",
    "register": "a decorator that enters what it decorates in the registry of its package",
}


def test_a_public_name_has_one_meaning():
    """No class and no function has the name of another one in another package, but for those that mean the same."""
    packages: dict[str, set[str]] = {}
    for package, name, _ in definitions():
        packages.setdefault(name, set()).add(package)
    assert {name for name, own in packages.items() if len(own) > 1 and name[0] != "_"} == set(MEAN_THE_SAME)


def test_functions_are_no_participles():
    """A function does something, or is named for what it returns; `@styled` reads like `@cached`."""
    words = {name.strip("_") for _, name, is_function in definitions() if is_function}
    found = {word for word in words if re.fullmatch(r"[a-z]+[^e]ed|kept|known|made|held|driven", word)}
    assert len(words) > 1000 and found == {"embed", "styled"}


def test_late_imports():
    """None of our modules is imported late."""
    late = [
        path.relative_to(ROOT).as_posix()
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level and node not in tree.body
    ]
    assert not late


def test_nothing_reaches_into_jax():
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith(("jax._src", "jaxlib")), path
            if isinstance(node, ast.Import):
                assert not any(name.name.startswith(("jax._src", "jaxlib")) for name in node.names), path
            if isinstance(node, ast.Attribute):
                assert not (node.attr == "_src" and isinstance(node.value, ast.Name) and node.value.id == "jax"), path


def test_the_mathematics_needs_jax_and_numpy_alone():
    """A GPU machine may have nothing else: import, build a system and take a step with everything else blocked."""
    program = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocked())
import dalembert as da
system = da.models.chaplygin_sleigh()
run = da.simulate(system, da.RungeKutta(), system.state(xi=[0.5, -1.0, 0.0]), step=0.1, steps=2, backend="xla")
assert run.check().status == "ok" and run.backend == "xla"
assert not [name for name in {OPTIONAL!r} if name in sys.modules]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_turns_on_64_bits():
    import jax.numpy as jnp

    assert jnp.ones(1).dtype == jnp.float64
