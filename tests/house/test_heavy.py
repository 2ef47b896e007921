"""No heavy test can rot unseen: what it calls, a test that `make test` runs calls too.

A test is heavy where its decorator says so; one with a parameter that is not heavy is a fast one. Its calls are the
names of the package that it uses, and the functions and classes of its module, through tables and helpers.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("test_*.py") if path.parent.name != "browser")  # a browser of its own
ALONE = {
    "LostCluster": "needs a scheduler and a worker of Dask in processes of their own",
    "laws/test_backends.py::others": "the cases that the fast tests leave out",
    "load_run": "the name by which others call it is da.load",
}
WITHOUT_FAST = {"kernels/test_long_life.py"}  # what memory does shows after hundreds of programs only


def is_heavy(test: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("pytest.mark.heavy") for decorator in test.decorator_list)


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` of names and attributes; nothing of any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    before = dotted_name(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before else ""


class Module:
    """The tests of a file, and what each of them calls."""

    def __init__(self, path: Path):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.name = path.relative_to(TESTS).as_posix()
        self.own: dict[str, ast.stmt] = {}
        self.imported: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.own[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.own[node.targets[0].id] = node
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dalembert"):
                self.imported |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                self.imported |= {alias.asname or alias.name for alias in node.names if "dalembert" in alias.name}
        defined = [node for node in self.own.values() if isinstance(node, ast.FunctionDef)]
        self.tests = [node for node in defined if node.name.startswith("test_")]

    def calls(self, node: ast.stmt, seen: set[str]) -> set[str]:
        found = set()
        for part in ast.walk(node):
            dotted = dotted_name(part) if isinstance(part, ast.Attribute) else ""
            if dotted.split(".")[0] in self.imported:
                found.add(dotted)
            names = [part.id] if isinstance(part, ast.Name) else [part.arg] if isinstance(part, ast.arg) else []
            for name in names:
                if name in self.imported:
                    found.add(name)
                elif name in self.own and name not in seen:
                    seen.add(name)
                    if isinstance(self.own[name], ast.FunctionDef | ast.ClassDef):
                        found.add(f"{self.name}::{name}")
                    found |= self.calls(self.own[name], seen)
        return found


@cache
def modules() -> list[Module]:
    """All files of tests, read when a test wants them: every process collects, and one of them runs these tests."""
    return [Module(path) for path in FILES]


def called(heavy: bool) -> dict[str, str]:
    """What heavy or fast tests call, each with one of them."""
    return {
        name: f"{module.name}::{test.name}"
        for module in modules()
        for test in module.tests
        if is_heavy(test) is heavy
        for name in module.calls(test, {test.name})
    }


def test_what_heavy_tests_call_fast_tests_call_too():
    heavy, fast = called(True), called(False)
    assert len(heavy) > 100 and set(ALONE) <= set(heavy)
    alone = {name: test for name, test in heavy.items() if name not in fast and name not in ALONE}
    assert not alone, f"only heavy tests call these: let a case of them, or a smaller one, run in `make test`: {alone}"


def test_every_file_with_heavy_tests_has_fast_ones():
    with_heavy = [module for module in modules() if any(map(is_heavy, module.tests))]
    assert len(with_heavy) > 50
    assert {module.name for module in with_heavy if all(map(is_heavy, module.tests))} == WITHOUT_FAST
