"""The gallery: `python docs/_gallery.py FOLDER` runs the tutorials, the models, the examples and every exhibit of the
papers, and writes pages.

`make docs` calls it when the code or the examples have changed. FOLDER has the shape of docs/: the pictures of the
tutorials are in tutorials/, the rest in gallery/.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import _blocks
from PIL import Image, ImageOps

from dalembert import simulate
from dalembert.cli.runs import SYSTEM_GROUPS
from dalembert.io.config import SECTIONS, read_config
from dalembert.io.config import load_job as load
from dalembert.models import MODELS
from dalembert.papers.exhibits import FIGURES, PAPERS
from dalembert.papers.exhibits import reproduce_exhibits as reproduce
from dalembert.papers.gallery import Exhibit
from dalembert.studio.catalogue import example as example_of
from dalembert.studio.catalogue import start
from dalembert.studio.film import stage
from dalembert.studio.presentation import present
from dalembert.studio.requests import RunFrames, StudioInput, frames_of_run
from dalembert.studio.server import page_with

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
PICTURES = (".png", ".gif")


def tutorials(folder: Path) -> None:
    """Run every tutorial and keep the pictures that it draws; each is a notebook too."""
    _blocks.write_notebooks(folder, published=True)
    for page in sorted((HERE / "tutorials").glob("*.md")):
        with tempfile.TemporaryDirectory() as place:
            _blocks.run(page, Path(place))
            for picture in (path for path in Path(place).rglob("*") if path.suffix in PICTURES):
                target = folder / picture.relative_to(place)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(picture.read_bytes())


def models(folder: Path) -> str:
    """Every model with a page that plays its example, and thumbnails of them, in the groups of `list systems`."""
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[str]] = {words: [] for words in SYSTEM_GROUPS.values()}
    for name, model in MODELS.items():
        opened = StudioInput(example_of(name), folder)
        job = opened.job(opened.config)
        run = simulate(job.system, job.integrator, job.state, step=job.run["step"], steps=job.run["steps"]).check()
        _portrait(frames_of_run(run, job), folder / f"{name}.png")
        (folder / f"{name}.html").write_text(page_with(present(start(opened), opened)), encoding="utf-8")
        words = SYSTEM_GROUPS[model.build.__module__.rpartition(".")[2]]
        small = thumbnail(f"models/{name}.png", f"models/{name}.html", model.title, f"`{name}`: {model.summary}")
        groups[words].append(small)
    lead = "Click one to play it as in [the studio](../studio.md). [The table](../models.md) has the equations.\n"
    lines = [f"## The models\n\n{lead}"]
    return "\n".join([*lines, *(f"### {words}\n\n{grid(small)}" for words, small in groups.items())])


def _portrait(frames: RunFrames, path: Path) -> None:
    """A moment of the motion without axes and words, cut to what is drawn, so that it can be seen when it is small."""
    figure, draw = stage(frames, title=" ")
    draw(round(0.7 * (len(frames.t) - 1)))
    for words in figure.texts:
        words.set_visible(False)
    figure.axes[0].set_title("")
    figure.axes[0].set_axis_off()
    figure.savefig(path, dpi=150)
    picture = Image.open(path).convert("RGB")
    ImageOps.expand(picture.crop(ImageOps.invert(picture).getbbox()), 12, "white").save(path)


def example(path: Path, folder: Path) -> str:
    """Run a configuration of examples/ and draw it; its entry on the page has its comment, its end, what it keeps, and
    its text.
    """
    opened = StudioInput(read_config(path), path.parent)
    job = load(path)
    run = simulate(job.system, job.integrator, job.state, step=job.run["step"], steps=job.run["steps"]).check()
    run.plot(folder / f"{path.stem}.png")
    frames = frames_of_run(run, job)
    _portrait(frames, folder / f"{path.stem}-small.png")
    figure, draw = stage(frames)
    draw(len(frames.t) - 1)
    figure.savefig(folder / f"{path.stem}-end.png")
    text = path.read_text(encoding="utf-8")
    shown = "\n\n".join(["```toml\n" + text.rstrip() + "\n```", *_python(path)])
    (folder / f"{path.stem}.html").write_text(page_with(present(start(opened), opened)), encoding="utf-8")
    play = f"[Play it]({path.stem}.html): the run in the page of [the studio](../studio.md); turn it with the mouse."
    pictures = f"![{comment(path)}]({path.stem}-end.png)\n\n![What the run keeps]({path.stem}.png)"
    return f"## {named(path)}\n\n{comment(path)}\n\n{play}\n\n{pictures}\n\n{shown}\n"


def comment(path: Path) -> str:
    """The first line of an example says what it is."""
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()


def named(path: Path) -> str:
    return path.stem.replace("_", " ")


def thumbnail(picture: str, link: str, title: str, text: str) -> str:
    """A small picture that leads to its page; several, a line each, make a grid."""
    return f"[![{title}]({picture}) **{title}** {text}]({link})"


def grid(thumbnails: Iterable[str]) -> str:
    return '<div class="thumbnails" markdown>\n\n' + "\n".join(thumbnails) + "\n\n</div>\n"


def _python(path: Path) -> list[str]:
    """The user's own file behind a configuration, as a block."""
    reference = read_config(path)["system"].get("python", "")
    return [f"```python\n{(path.parent / reference.partition(':')[0]).read_text().rstrip()}\n```"] if reference else []


def exhibits(folder: Path) -> str:
    """Every exhibit of the papers with its own page, and thumbnails of them for the page of the gallery."""
    folder.mkdir(parents=True, exist_ok=True)
    for made in reproduce(list(FIGURES.values()), folder):
        print(f"{made.exhibit.id}: {made.seconds:.1f} s", flush=True)
    lines = ["## The papers\n\nWhat was printed, what comes out here, and why they differ ([list](papers/index.md)).\n"]
    for paper in PAPERS.values():
        own = [exhibit for exhibit in FIGURES.values() if exhibit.paper == paper]
        lines.append(f"### {paper.name}\n\n{paper.citation}\n")
        lines.append(grid(map(_of_exhibit, own)))
    return "\n".join(lines)


def _of_exhibit(exhibit: Exhibit) -> str:
    page = f"papers/{exhibit.id}"
    return thumbnail(f"{page}.png", f"{page}.md", exhibit.label.replace("-", " "), exhibit.title)


def main(folder: Path) -> None:
    gallery = folder / "gallery"
    gallery.mkdir(parents=True, exist_ok=True)
    tutorials(folder / "tutorials")
    runs = [path for path in sorted(EXAMPLES.glob("*.toml")) if set(read_config(path)) <= set(SECTIONS)]
    entries = [example(path, gallery) for path in runs]
    how = "`dalembert examples NAME` writes one into your folder, `dalembert run NAME.toml` runs it, `--set` changes it"
    head = f"# Examples\n\n{how}.\n"
    (gallery / "examples.md").write_text("\n".join([head, *entries]), encoding="utf-8")
    small = [
        thumbnail(f"{path.stem}-small.png", f"examples.md#{named(path).replace(' ', '-')}", named(path), comment(path))
        for path in runs
    ]
    head = "# Gallery\n\nEvery picture is drawn by `make docs`. Click one for what it shows and how it was made.\n"
    of_models = models(gallery / "models")
    text = [head, of_models, "## Examples\n", grid(small), exhibits(gallery / "papers")]
    (gallery / "index.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
