"""A page that plays offline: the studio's own, with style, scripts and one show inside, in a single file that opens from a disk.

Modules cannot import each other from a file, so each becomes a data: address in an import map.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from ..atomic import replacing
from ..errors import InvalidInput
from .assets import page_files

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
IMPORT = re.compile(r'^((?:import|export)\b[^"\n]*)"\./([\w./-]+\.js)"', re.MULTILINE)
MODULE = re.compile(r'<script type="module" src="/?page/([\w./-]+)"></script>')
SCRIPT = re.compile(r'<script src="/?page/([\w./-]+)"></script>')
STYLE = re.compile(r'<link rel="stylesheet" href="/?page/([\w./-]+)">')
ICON = re.compile(r'<link rel="icon" href="/?page/([\w./-]+)">\n?')


def page_with(show: dict[str, Any]) -> str:
    """The page as one text, with a show that it plays."""
    files = {name: content.decode("utf-8") for name, content in page_files().items() if not name.endswith(".svg")}
    html = ICON.sub("", files["index.html"])
    html = STYLE.sub(lambda found: f"<style>\n{files[found[1]]}</style>", html)
    html = SCRIPT.sub(lambda found: f"<script>\n{_inside(files[found[1]])}</script>", html)
    entry = MODULE.search(html)
    if entry is None:
        raise InvalidInput("the page has no module to start from: this installation is not whole")
    imports = {f"studio/{name}": _address(files[name]) for name in _reached(files, entry[1])}
    data = json.dumps(show, allow_nan=False).replace("<", "\\u003c")
    inside = [
        f'<script type="application/json" id="show">{data}</script>',
        f'<script type="importmap">{json.dumps({"imports": imports})}</script>',
        f'<script type="module">import "studio/{entry[1]}";</script>',
    ]
    html = html.replace(entry[0], "\n".join(inside))
    return html.replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
    )


def _reached(files: dict[str, str], entry: str) -> list[str]:
    """The modules that the entry imports, and itself."""
    found: list[str] = []
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.append(name)
            waiting += [found_import[2] for found_import in IMPORT.finditer(files[name])]
    return found


def _address(module: str) -> str:
    """A module as an address, with its imports by the names of the import map."""
    renamed = IMPORT.sub(r'\1"studio/\2"', module)
    return "data:text/javascript;base64," + base64.b64encode(renamed.encode()).decode("ascii")


def _inside(text: str) -> str:
    """A script that may stand in the page: nothing in it ends the element."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


def export(show: dict[str, Any], folder: Path) -> Path:
    """Write folder/index.html, whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InvalidInput(f"--export is {folder}, which cannot be made a folder: {fault}") from fault
    path = folder / "index.html"
    with replacing(path) as temporary:
        Path(temporary).write_text(page_with(show), encoding="utf-8")
    return path
