"""Packages whose names are imported at first use (PEP 562), as their stub `__init__.pyi` declares them."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def from_above(package: str, name: str) -> Any:
    """A name of a package that stands above the one that asks, imported now: a method may offer what others make."""
    return getattr(import_module(f".{package}", __package__), name)


def attach(
    package: str, init: str, at_once: bool = False
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package from its stub, which type checkers read too.

    `at_once` imports the modules of the stub now, where they register what they define.
    """
    stub = Path(init).with_suffix(".pyi")
    home = _read_stub(stub)

    def get(name: str) -> Any:
        if name not in home:
            rooms = [each for each, module in home.items() if not module]
            inside = [each for each in rooms if name in _read_stub(stub.parent / each / stub.name)]
            near = difflib.get_close_matches(name, home, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(home)}"
            hint = f"it is {package}.{inside[-1]}.{name}" if inside else hint
            raise AttributeError(f"module {package!r} has no attribute {name!r}; {hint}")
        module = home[name]
        found = getattr(import_module(f".{module}", package), name) if module else import_module(f".{name}", package)
        vars(sys.modules[package])[name] = found  # the next time nobody asks here
        return found

    for module in dict.fromkeys(home.values()) if at_once else ():
        import_module(f".{module}", package)
    return get, lambda: list(home), list(home)


def _read_stub(stub: Path) -> dict[str, str | None]:
    """The names that a stub imports, with their modules; none where there is no stub."""
    tree = ast.parse(stub.read_text(encoding="utf-8") if stub.is_file() else "")
    statements = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in statements for alias in node.names}
