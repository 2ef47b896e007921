"""Imports go downward only, and the mathematics needs nothing but jax and numpy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dalembert

ROOT = Path(dalembert.__file__).parent
LAYERS = [
    {"kernels"},
    {"errors", "_linalg", "_series", "_jaxpr", "_toml", "sensitivity"},
    {"_newton", "_input", "_echelon"},
    {"groups"},
    {"retractions"},
    {"holonomic"},
    {"admissible"},
    {"system"},
    {"invariant", "vector_field"},
    {"right_invariant"},
    {"differences"},
    {"discretisation", "distribution", "forces", "nonlinear"},
    {"ehresmann"},
    {"integrators"},
    {"trajectory"},
    {"loop"},
    {"events"},
    {"dense"},
    {"watch"},
    {"crossings"},
    {"accurate"},
    {"sampling"},
    {"simulate"},
    {"diagnostics"},
    {"models"},
    {"analysis"},
    {"atomic", "coordinates", "event_tables", "portable", "user_system"},
    {"plotting", "report"},
    {"papers"},
    {"data", "config", "compare"},
    {"files", "demo", "convergence", "notebook", "template"},
    {"resume", "animate", "sweep", "verification"},
    {"studio"},
    {"cli", "__main__"},
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
OPTIONAL = ("scipy", "llvmlite", "typer", "rich", "matplotlib", "xarray", "h5netcdf", "cupy", "pandas")


def top_level(tree: ast.Module) -> list[ast.stmt]:
    """The statements that run on import: module and class level, not under TYPE_CHECKING."""
    found: list[ast.stmt] = []
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        found.append(node)
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef) and not typing_only:
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found


def imports(path: Path, nodes) -> set[str]:
    """The modules of the package that a file imports, as paths below dalembert."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = tuple(node.module.split(".")) if node.module else ()
            found |= {".".join((*base, *module))} if module else {".".join((*base, name.name)) for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dalembert"):
            found.add(node.module.removeprefix("dalembert").lstrip("."))
        elif isinstance(node, ast.Import):
            found |= {name.name.removeprefix("dalembert.") for name in node.names if name.name.startswith("dalembert.")}
    return found


def layer(module: str) -> str:
    return module.split(".")[0]


def test_every_module_has_a_layer():
    names = {path.relative_to(ROOT).with_suffix("").parts[0] for path in FILES}
    assert names <= set(HEIGHT), names - set(HEIGHT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward(path):
    own = layer(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for module in imports(path, top_level(ast.parse(path.read_text()))):
        if layer(module) != own:
            assert HEIGHT[layer(module)] < HEIGHT[own], f"{own} (top level) imports {module}"


def test_there_is_no_cycle_between_modules():
    graph = {}
    for path in FILES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        graph[name] = imports(path, top_level(ast.parse(path.read_text())))
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"cycle: {' -> '.join((*trail, name))}"
        if name in graph and name not in done:
            for other in graph[name]:
                # `from .package import thing` inside the package runs its __init__ only once, on the way here
                if not name.startswith(other + "."):
                    visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    assert len(done) > 20


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
