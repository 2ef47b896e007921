"""Hooks of MkDocs: pages as every other reader of Markdown sees them, formulas as MathML, the gallery, and nothing from
outside.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "build" / "gallery"
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+[^`\n]+`+)")
LIST = re.compile(r"^(?!\s*(?:[-*]|\d+\.) |\s{2,}|\s*$)(.*)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
TABLE = re.compile(r"^(?!\s*\||\s*$)(.*)\n(?=\|.*\n\|[-:| ]+\|$)", re.MULTILINE)
FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)
OUTSIDE = re.compile(
    r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link(?![^>]*rel="?canonical)[^>]*href="?(?:https?:)?//'
)


def on_files(files, config):
    """Pictures and pages that `docs/_gallery.py` made take their places beside the written ones."""
    for path in sorted(GALLERY.rglob("*.*")):
        place, level = path.relative_to(GALLERY).as_posix(), InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, place, abs_src_path=str(path), inclusion=level))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Python-Markdown wants an empty line before lists and tables, and takes <I xi, xi> for HTML; others do not.

    A tutorial says where its notebook is.
    """
    folder, _, name = page.file.src_uri.rpartition("/")
    if folder == "tutorials" and name != "index.md":
        markdown += f"\n\nThis page is a notebook too: [{Path(name).stem}.ipynb]({Path(name).stem}.ipynb).\n"
    parts = FENCED.split(markdown)
    parts[::2] = [_as_others_read_it(part) for part in parts[::2]]
    return "".join(parts)


def _as_others_read_it(text: str) -> str:
    text = TABLE.sub(r"\1\n\n", LIST.sub(r"\1\n\n", text))
    pieces = CODE.split(text)
    pieces[::2] = [re.sub(r"<(?=\w)", "&lt;", piece) for piece in pieces[::2]]
    return "".join(pieces)


def on_page_content(content: str, **_) -> str:
    """LaTeX becomes MathML, which browsers draw without a script."""
    return FORMULA.sub(
        lambda found: convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline"), content
    )


def on_post_build(config, **_) -> None:
    """The site is self-contained: no page may load anything from elsewhere."""
    for page in Path(config["site_dir"]).rglob("*.html"):
        if found := OUTSIDE.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page} loads something from outside: {found[0]}")
