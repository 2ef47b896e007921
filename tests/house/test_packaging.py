"""What is released: the wheel has everything that a command needs, and the files around the package say the same."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import dalembert
from dalembert.integrators import METHODS
from dalembert.models import MODELS

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read_yaml(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_has_what_it_needs():
    cited = read_yaml(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(cited) and cited["cff-version"] == "1.2.0"
    assert cited["version"] == dalembert.__version__ and cited["license"] == "MIT"
    assert all("name" in author or "family-names" in author for author in cited["authors"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_jobs_that_run_what_there_is(path):
    flow = read_yaml(path)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in flow["jobs"].values():
        assert job["runs-on"] and job["steps"]
        assert set(job.get("needs", "").split()) <= set(flow["jobs"])
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            for target in re.findall(r"^make (\S+)", step.get("run", ""), re.MULTILINE):
                assert target in targets
            for test in re.findall(r"\btests/\S+", step.get("run", "")):
                assert (ROOT / test).exists()


def test_workflows_name_three_systems_and_three_pythons():
    tests = read_yaml(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert [name.split("-")[0] for name in tests["os"]] == ["ubuntu", "macos", "windows"]
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert tests["python"] == [line.rsplit(" ", 1)[1] for line in supported if "Python :: 3." in line]


def test_the_paper_cites_what_its_bibliography_has():
    paper = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")
    _, head, text = paper.split("---\n", 2)
    entries = re.findall(r"^@\w+\{(\w+),", (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?<!\w)@(\w+)", text)) == set(entries) and len(entries) == len(set(entries))
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(yaml.safe_load(head))
    assert {"Summary", "Statement of need", "References"} <= set(re.findall(r"^# (.*)$", text, re.MULTILINE))
    assert all((ROOT / "paper" / name).exists() for name in re.findall(r"\]\((\S+\.png)\)", text))
    assert 750 <= len(text.split()) <= 1750, "the journal asks for so many words"
    assert f"{len(METHODS)} methods and {len(MODELS)} systems" in text


@pytest.mark.heavy
def test_the_figure_of_the_paper_is_drawn(tmp_path):
    subprocess.run([sys.executable, ROOT / "paper" / "figure.py", tmp_path / "figure.png"], check=True)
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_data_files_of_the_package_are_named():
    """A file that no pattern of pyproject.toml matches is not in the wheel."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dalembert"]
    package = ROOT / "src" / "dalembert"
    files = [path.relative_to(package) for path in package.rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert len(files) > 30
    assert not [str(path) for path in files if not any(path.match(pattern.removeprefix("**/")) for pattern in patterns)]


def load_setup(monkeypatch, address: str):
    monkeypatch.setenv("DALEMBERT_ADDRESS", address)
    monkeypatch.setenv("DALEMBERT_REF", "v1")
    module = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("setup", ROOT / "setup.py"))
    spec.loader.exec_module(module)
    return module


def test_a_release_has_absolute_links(monkeypatch):
    """An index shows the README without the repository around it."""
    pytest.importorskip("setuptools")
    made = load_setup(monkeypatch, "https://forge.example/us/it/")
    text = made.read_readme()
    assert "](https://forge.example/us/it/raw/v1/docs/studio.png)" in text
    assert "](https://forge.example/us/it/blob/v1/docs/speed.md)" in text
    assert not re.findall(r"\]\((?!https://)[^)]*\)", text)
    assert made.find_addresses()["Issues"] == "https://forge.example/us/it/issues"
    assert load_setup(monkeypatch, "").read_readme() == (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.heavy
def test_a_wheel_runs_in_an_empty_folder(tmp_path):
    """Unpacked before the sources on the path, it has types, pages, tables and examples of its own."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in tracked.stdout.split("\0") if name and (ROOT / name).exists()]
    for name in names:  # a build leaves files in its folder, which later ones would take
        (tmp_path / "sources" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "sources" / name)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path / "dist", tmp_path / "sources"]
    subprocess.run(build, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    package = tmp_path / "site" / "dalembert"
    for name in (name for name in names if name.startswith("src/dalembert/")):
        assert (package / Path(name).relative_to("src/dalembert")).exists(), f"{name} is not in the wheel"
    place = tmp_path / "empty"
    place.mkdir()
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        f"import dalembert; assert dalembert.__file__.startswith({str(tmp_path)!r})\n"
        "from dalembert.cli import main; main()"
    )
    for words in (["demo"], ["examples", "own_system"], ["run", "own_system.toml", "--out", "run.nc"], ["info"]):
        subprocess.run([sys.executable, "-c", program, *words], cwd=place, check=True, capture_output=True)
    written = {path.name for path in place.iterdir()} - {"__pycache__"}
    assert written == {"out", "own_system.py", "own_system.toml", "run.nc"}
