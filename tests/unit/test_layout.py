"""Imports go downward only, without cycles, and the mathematics needs nothing but jax and numpy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dalembert

ROOT = Path(dalembert.__file__).parent
LAYERS = [  # "" is dalembert/__init__.py
    {"_elimination"},
    {"kernels"},
    {"errors", "_linalg", "_series", "_jaxpr", "_toml", "_version", "sensitivity"},
    {"_newton", "_input", "_echelon", "_fibre"},
    {"groups"},
    {"retractions", "coordinates"},
    {"holonomic", "_html"},
    {"admissible"},
    {"system"},
    {"invariant", "vector_field", "records"},
    {"right_invariant"},
    {"differences"},
    {"discretisation", "distribution", "forces", "nonlinear"},
    {"ehresmann"},
    {"integrators"},
    {"models"},
    {
        f"analysis.{name}"
        for name in ("polynomials", "homotopy", "legendre", "algebraic", "moser_veselov", "thresholds")
    },
    {"events"},
    {"run", "loop"},
    {"dense"},
    {"watch", "sampling"},
    {"crossings"},
    {"atomic", "portable", "data", "balance", "analysis.drift", "analysis.slopes"},
    {"writing", "plotting"},
    {"notebook"},
    {"trajectory"},
    {"accurate", "files", "schedule"},
    {"members", "stepping"},
    {"simulate"},
    {"diagnostics"},
    {"analysis"},
    {"event_tables", "user_system"},
    {"report"},
    {"papers"},
    {"config", "compare"},
    {"demo", "convergence", "template"},
    {"resume", "animate", "sweep"},
    {""},
    {"studio", "verification"},
    {"cli", "__main__"},
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
    for path in sorted(ROOT.rglob("*.py"))
}
FILES = [path for name, path in MODULES.items() if name]
OPTIONAL = ("scipy", "llvmlite", "typer", "rich", "matplotlib", "xarray", "h5netcdf", "cupy", "pandas")


def imports(name: str) -> set[str]:
    """The modules of the package that a module imports, at its top, late in a function, or for its types alone."""
    package = MODULES[name].relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            found |= {".".join(part[1:]) for part in parts if part[0] == "dalembert"}
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "dalembert"):
            base = package[: len(package) - node.level + 1] if node.level else ()
            whole = ".".join((*base, *filter(None, [(node.module or "").removeprefix("dalembert").lstrip(".")])))
            below = {f"{whole}.{alias.name}".lstrip(".") for alias in node.names}
            found |= {module if module in MODULES else whole for module in below}
    return found - {name}


def layer(module: str) -> str:
    """The layer of a module: its own, where it has one, else that of its package."""
    return module if module in HEIGHT else module.split(".")[0]


def test_every_module_has_a_layer():
    names = {path.relative_to(ROOT).with_suffix("").parts[0] for path in FILES}
    assert names <= set(HEIGHT), names - set(HEIGHT)


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_go_downward(name):
    """Late imports too: a room that needs the floor above it is on the wrong floor."""
    for module in imports(name):
        if module.split(".")[0] != name.split(".")[0]:
            assert HEIGHT[layer(module)] < HEIGHT[layer(name)], f"{name} imports {module}"


def packages(module: str) -> list[str]:
    """The packages that Python runs on the way to a module."""
    parts = module.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


def cycle(doors: dict[str, set[str]]) -> str:
    """Modules that lead back to the first of them, if there are such."""
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> str:
        if name in trail:
            return " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            done.add(name)
            return next(filter(None, (visit(other, (*trail, name)) for other in sorted(doors[name]))), "")
        return ""

    return next(filter(None, (visit(name, ()) for name in doors)), "")


def test_there_is_no_cycle_between_modules():
    doors = {name: imports(name) for name in MODULES}
    for name, found in doors.items():
        on_the_way = {package for module in found for package in packages(module)}
        found |= {package for package in on_the_way if not f"{name}.".startswith(f"{package}.")}
    assert len(doors) > 200 and not cycle(doors), cycle(doors)


def test_a_cycle_is_found():
    assert cycle({"run": {"loop"}, "loop": {"records"}, "records": {"loop"}}) == "loop -> records -> loop"
    assert not cycle({"run": {"loop", "records"}, "loop": {"records"}, "records": set()})


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_reaches_into_jax(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("jax._src") and not (node.module or "").startswith("jaxlib")
        if isinstance(node, ast.Import):
            assert not any(name.name.startswith(("jax._src", "jaxlib")) for name in node.names)
        if isinstance(node, ast.Attribute):
            assert not (node.attr == "_src" and isinstance(node.value, ast.Name) and node.value.id == "jax")


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
