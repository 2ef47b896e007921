"""Hooks of MkDocs: pages as every other reader of Markdown sees them, formulas as MathML, the gallery, and nothing from
outside.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from xml.etree import ElementTree

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
LETTER = re.compile(r'<mi mathvariant="([a-z-]+)">(\w)</mi>')
UPRIGHT = re.compile(r'(?:<mi mathvariant="normal">\w</mi>){2,}')
NAME = re.compile(r"(?<!sub>)(?<!sup>)<mi>(?:dim|ker|min|max|det|exp|log|sin|cos|tan)</mi>(?=<m[ins])")
"""A function before its argument; with an exponent (sin^2) it is a child of msup, which has two and no third."""
AFTER = re.compile(r"(?<=</mi>)(?=<mi>(?:exp|log|sin|cos|tan|det)</mi>)")
"""Between a factor and a function: g exp(s eta) is no word."""
CHILDREN = {"msub": 2, "msup": 2, "msubsup": 3, "mfrac": 2, "mover": 2, "munder": 2, "munderover": 3, "mroot": 2}
THIN = '<mspace width="0.17em"/>'
BRACKET = re.compile(r"<mi>(&#x027E[89];|&#x0230[89AB];)</mi>")
ALPHABETS = {"fraktur": (0x1D504, 0x1D51E), "double-struck": (0x1D538, 0x1D552), "script": (0x1D49C, 0x1D4B6)}
HOLES = {0x1D506: "\u212d", 0x1D50B: "\u210c", 0x1D53A: "\u2102", 0x1D545: "\u2115"}  # letters that Unicode had before
HOLES |= {0x1D549: "\u211d", 0x1D551: "\u2124"}
LONG = 44  # characters of TeX from which a formula in a line may be wider than a phone
OUTSIDE = re.compile(
    r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link(?![^>]*rel="?canonical)[^>]*href="?(?:https?:)?//'
)


def on_files(files, config):
    """What `docs/_gallery.py` made takes its place beside the written pages; so does the changelog."""
    for path in sorted(GALLERY.rglob("*.*")):
        place, level = path.relative_to(GALLERY).as_posix(), InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, place, abs_src_path=str(path), inclusion=level))
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=text))
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
    pieces[::2] = [re.sub(r"<(?=\w)(?!div\b)", "&lt;", piece) for piece in pieces[::2]]
    return "".join(pieces)


def on_page_content(content: str, **_) -> str:
    """LaTeX becomes MathML, which browsers draw without a script."""
    return FORMULA.sub(_formula, content)


def _formula(found: re.Match[str]) -> str:
    """A formula in MathML Core. Chromium ignores `mathvariant`: other alphabets are characters of their own."""
    tag, tex = found[1], html.unescape(found[2])
    drawn = convert(tex, display="block" if tag == "div" else "inline")
    drawn = UPRIGHT.sub(lambda word: "<mi>" + LETTER.sub(r"\2", word[0]) + "</mi>", drawn)
    drawn = LETTER.sub(_letter, drawn)
    drawn = AFTER.sub(THIN, NAME.sub(r"\g<0>" + THIN, drawn))
    drawn = BRACKET.sub(r'<mo stretchy="false">\1</mo>', drawn)
    drawn = drawn.replace("<mo>&#x002D9;</mo></mover>", "<mo>.</mo></mover>")  # WebKit hangs the other dot too high
    for element in ElementTree.fromstring(drawn).iter():
        name = element.tag.rpartition("}")[2]
        if len(element) != CHILDREN.get(name, len(element)):
            raise PluginError(f"{tex}: {name} has {len(element)} children, and Firefox draws none of them")
    return f'<{tag} class="formula{" long" if len(tex) > LONG else ""}">{drawn}</{tag}>'


def _letter(found: re.Match[str]) -> str:
    alphabet, letter = ALPHABETS.get(found[1]), found[2]
    if alphabet is None or not (letter.isascii() and letter.isalpha()):
        return found[0]
    code = alphabet[letter.islower()] + ord(letter.lower()) - ord("a")
    return f"<mi>{HOLES.get(code, chr(code))}</mi>"


def on_post_build(config, **_) -> None:
    """The site is self-contained: no page may load anything from elsewhere."""
    for page in Path(config["site_dir"]).rglob("*.html"):
        if found := OUTSIDE.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page} loads something from outside: {found[0]}")
