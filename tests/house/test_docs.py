"""The documentation is true: its links lead somewhere, its code runs, its commands exist, and no public name is left
out.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dalembert
from dalembert.integrators import METHODS
from dalembert.io.config import SCHEMA
from dalembert.models import MODELS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import _blocks  # noqa: E402
import _typeset  # noqa: E402

NAMES = _blocks.NAMES
PUBLIC = {name for name in dalembert.__all__ if not isinstance(getattr(dalembert, name), ModuleType)}
MADE = {"gallery/index.md", "gallery/examples.md", "changelog.md"}  # by docs/_gallery.py and docs/_site.py

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
TUTORIALS = sorted((DOCS / "tutorials").glob("[!i]*.md"))
HOW_TO = sorted((DOCS / "howto").glob("*.md"))
RUNNING = [DOCS / "quick-start.md", DOCS / "mechanisms.md", *TUTORIALS, *HOW_TO, DOCS / "index.md"]
HEAVY = {
    *("animation", "bicycle", "comparing", "ensembles", "events", "files", "fit", "park", "particle"),
    *("own-system", "rigid-body", "robot", "satellite", "sensitivities", "vehicle"),
    *("figure", "rollouts"),
}
LONG = {"plan", "stability", "track"}  # names whose examples compile for seconds
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def outside_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", _blocks.FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as Markdown readers make them."""
    heads = (re.sub(r"[^\w\- ]", "", head.lower()).strip() for head in HEADING.findall(outside_code(page.read_text())))
    return {re.sub(r"\s+", "-", head) for head in heads}


def drawn(page: Path) -> str:
    """What the blocks of a page may write: the site gets its pictures from there."""
    return "".join(block.text for block in _blocks.blocks(page)) if page in RUNNING else ""


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_resolve(page):
    for link in LINK.findall(outside_code(page.read_text(encoding="utf-8"))):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() and path not in MADE:
            name, folder = Path(path).stem, Path(path).parts[0]
            assert name in drawn(page) and (len(Path(path).parts) == 1 or folder in drawn(page)), (
                f"{link}: nothing there"
            )
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=named(p), marks=[pytest.mark.heavy] * (p.stem in HEAVY)) for p in RUNNING],
)
def test_pages_run(page, tmp_path):
    _blocks.run(page, tmp_path)
    for link in LINK.findall(outside_code(page.read_text(encoding="utf-8"))):
        if link.endswith((".png", ".gif")) and not (page.parent / link).exists():
            assert (tmp_path / link).stat().st_size > 1000, f"{link} was not drawn"


def does_run(language, title):
    return title or language in ("python", "console")


def what_runs(block):
    return block.title, block.commands if block.language == "console" else block.text.strip()


def test_notebooks_have_the_text_and_the_programs_of_their_pages(tmp_path):
    made = {path.stem: path for path in _blocks.write_notebooks(tmp_path)}
    assert set(made) == {page.stem for page in TUTORIALS}
    for page in TUTORIALS:
        notebook = json.loads(made[page.stem].read_text(encoding="utf-8"))
        assert notebook["nbformat"] == 4 and len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
        text = "".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        written = _blocks.FENCE.sub(lambda found: "" if does_run(found[1], found[2]) else found[0], page.read_text())
        for link in filter(lambda each: each.partition("#")[0].endswith(".md"), LINK.findall(text)):
            assert (tmp_path / link.partition("#")[0]).resolve().is_file(), f"{page.name}: {link}"
        text, written = (_blocks.PAGE_LINK.sub(lambda found: Path(found[1]).name, each) for each in (text, written))
        drawn = [block.text.rstrip().splitlines()[-1] for block in _blocks.blocks(page) if block.language == "python"]
        shows = lambda name: any(f'plot("{name}"' in line or line == "figure" for line in drawn)
        shown = lambda found: "" if shows(found[1]) else found[0]
        assert "".join(text.split()) == "".join(_blocks.IMAGE.sub(shown, written).split())
        running = [block for block in _blocks.blocks(page) if does_run(block.language, block.title)]
        assert [what_runs(block) for block in _blocks.cells(made[page.stem])] == [what_runs(block) for block in running]


def test_the_notebooks_in_the_repository_are_those_of_pages_that_run():
    assert {path.stem for path in _blocks.NOTEBOOKS.glob("*.ipynb")} == set(_blocks.SELECTED)
    for name, page in _blocks.SELECTED.items():
        kept = (_blocks.NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
        assert page in RUNNING and kept == _blocks.notebook(page), f"{page.name} has changed: run `make notebooks`"
        assert any(
            block.language == "python" or block.commands for block in _blocks.cells(_blocks.NOTEBOOKS / f"{name}.ipynb")
        )


def test_a_notebook_runs(tmp_path):
    page = next(path for path in _blocks.write_notebooks(tmp_path) if path.stem == "rigid-body")
    _blocks.run(page, tmp_path)
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        assert not link.endswith(".png") or (tmp_path / link).stat().st_size > 1000, f"{link} was not drawn"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist(page):
    for block in _blocks.blocks(page):
        _blocks.require_commands(block)


def test_a_wrong_command_is_found():
    block = _blocks.Block("bash", "", "dalembert run x.toml --nonsense\n", "here")
    with pytest.raises(Exception, match="No such option: --nonsense"):
        _blocks.require_commands(block)


def test_the_readme_runs(tmp_path):
    """Every block of it: its programs are the first of two pages that run, its commands run, `make` has the targets."""
    readme = ROOT / "README.md"
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in _blocks.blocks(readme):
        if block.language == "bash":
            assert all(line.split()[0] == "make" and line.split()[1] in targets for line in block.text.splitlines())
        else:
            assert block.language in ("python", "console"), f"{block.place} would not run"
    programs = [block.text for block in _blocks.blocks(readme) if block.language == "python"]
    pages = [[block.text for block in _blocks.blocks(page) if block.language == "python"] for page in RUNNING[:2]]
    assert programs == [page[0] for page in pages] and not {page.stem for page in RUNNING[:2]} & HEAVY
    typed = _blocks.FENCE.sub(lambda found: found[0] if found[1] == "console" else "", readme.read_text())
    (tmp_path / "typed.md").write_text(typed)
    _blocks.run(tmp_path / "typed.md", tmp_path)
    assert {"sleigh.png", "sleigh.nc", "failures.zarr"} <= {path.name for path in tmp_path.iterdir()}


def test_the_readme_is_short_and_counts_right():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert f"[{len(MODELS)} models]" in text and f"[{len(METHODS)}, with orders up to 10]" in text


def test_every_public_name_is_in_the_reference():
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    listed = {path.rsplit(".", 1)[-1] for path in re.findall(r"^::: (dalembert\.[\w.]+)$", text, re.MULTILINE)}
    assert len(PUBLIC) > 30
    missing = PUBLIC - listed
    assert not missing, f"add to a page of docs/api: {sorted(missing)}"
    assert set(NAMES) == PUBLIC, f"docs/api/names.toml and dalembert differ in {sorted(set(NAMES) ^ PUBLIC)}"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_reference_explains_every_argument(name):
    thing = getattr(dalembert, name)
    plain = isinstance(thing, type) and issubclass(thing, Exception)
    signature = {} if plain else inspect.signature(thing).parameters
    told, taken = set(NAMES[name].get("arguments", {})), set(signature)
    assert told == taken, f"docs/api/names.toml, [{name}.arguments]: {sorted(told ^ taken)} stand on one side only"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.heavy] * (n in LONG)) for n in sorted(NAMES)])
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert re.search(rf"\b{name}\b", NAMES[name]["example"]) or name in ("State", "Trajectory")
    exec(compile(_blocks.example(name), f"names.toml, {name}", "exec"), {})


def below() -> dict[str, Any]:
    """The functions and classes in the namespaces that users work with, by names such as "analysis.drift"."""
    found = {}
    for space in ("analysis", "groups", "io", "models", "optimise", "papers", "plotting", "studio", "sweeps"):
        module = getattr(dalembert, space)
        found |= {f"{space}.{name}": getattr(module, name) for name in module.__all__ if name not in PUBLIC}
    found |= {f"integrators.{each.build.__name__}": each.build for each in METHODS.values()}
    return {key: thing for key, thing in found.items() if callable(thing) and key.partition(".")[2] not in PUBLIC}


def test_every_name_of_a_namespace_has_an_example_and_its_arguments_have_a_meaning():
    things, models = below(), {model.build: model for model in MODELS.values()}
    missing = [key for key, thing in things.items() if thing not in models and key not in _blocks.NAMESPACES["example"]]
    assert len(things) > 100 and not missing, f"docs/api/namespaces.toml has no example of {missing}"
    for key in _blocks.NAMESPACES["example"]:
        assert _blocks.example_below(key), key
        thing = getattr(getattr(dalembert, key.partition(".")[0]), key.partition(".")[2])
        if key not in _blocks.NAMESPACES["results"]:
            taken = [name for name in inspect.signature(thing).parameters if _blocks.meaning(key, name) is None]
            assert not taken, f"namespaces.toml, [arguments]: what is {taken} of {key}?"
    text = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    assert _blocks.NAMESPACES["before"] in text


def test_what_functions_return_has_the_fields_that_the_reference_explains():
    """A field is explained by class: `cost` of a plan is no label of an axis."""
    for key, told in _blocks.NAMESPACES["results"].items():
        space, _, name = key.partition(".")
        thing = getattr(getattr(dalembert, space), name)
        strange = [
            each for each in told if not hasattr(thing, each) and each not in inspect.signature(thing).parameters
        ]
        assert isinstance(thing, type) and not strange, f"namespaces.toml, [results]: {key} has no {strange}"
        assert not any(each.startswith("_") for each in told)


@pytest.mark.heavy
def test_the_examples_of_namespaces_and_models_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(_blocks.NAMESPACES["before"], names)
    for key, text in _blocks.NAMESPACES["example"].items():
        if isinstance(text, str):
            exec(compile(text, f"namespaces.toml, {key}", "exec"), dict(names))
    for model in MODELS.values():
        exec(compile(_blocks.example_of_model(model), model.name, "exec"), dict(names))


@pytest.mark.parametrize("key", ["analysis.reversibility", "models.total_turning", "plotting.sheet"])
def test_the_example_of_a_name_in_a_namespace_runs(key):
    names: dict[str, Any] = {}
    exec(_blocks.NAMESPACES["before"], names)
    exec(compile(_blocks.example_below(key), f"namespaces.toml, {key}", "exec"), names)


@pytest.mark.parametrize(
    ("page", "sections"),
    [("tutorials/fit.md", ("fit", "unknown", "column")), ("planning.md", ("plan", "cost", "bound", "obstacle"))],
)
def test_tables_of_sections_have_all_their_keys(page, sections):
    rows = [line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if line.startswith("| `[")]
    for section in sections:
        (row,) = (line for line in rows if line.startswith((f"| `[{section}]`", f"| `[[{section}]]`")))
        assert not [key for key in SCHEMA[section] if not re.search(rf"`{key}[ `]", row)], section


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        assert re.search(rf"\s{re.escape(page.relative_to(DOCS).as_posix())}$", navigation, re.MULTILINE), page


SET = {
    "L = <I xi, xi>/2 on R^3": "<var>L</var> = ⟨<var>I</var> <var>ξ</var>, <var>ξ</var>⟩/2 on ℝ<sup>3</sup>",
    "W = g0^-1 g_{k+1}": "<var>W</var> = <var>g</var><sub>0</sub><sup>−1</sup> <var>g</var><sub><var>k</var>+1</sub>",
    "R^T R, m a^2/5": "<var>R</var><sup><var>T</var></sup> <var>R</var>, <var>m</var> <var>a</var><sup>2</sup>/5",
    "d'Alembert's principle, a body, A ball": "d'Alembert's principle, a body, A ball",
    "`xi` -> x' >= 0": "`xi` → <var>x</var>′ ≥ 0",
    "inertia (kg m^2)": "inertia (kg m²)",
    "    da.simulate(xi, h^2)": "    da.simulate(xi, h^2)",
}


@pytest.mark.parametrize("plain", SET)
def test_formulas_of_docstrings_are_set(plain):
    assert _typeset.paragraph(plain) == SET[plain]
