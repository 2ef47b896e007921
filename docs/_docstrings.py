"""An extension of Griffe: docstrings are prose with formulas, in which `<` and `*` mean themselves outside code."""

from __future__ import annotations

import re
from typing import Any

import griffe

CODE = re.compile(r"(`+[^`]+`+)")


class Formulas(griffe.Extension):
    """<I xi, xi> is no HTML, and Ad*_W M is no emphasis."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            pieces = CODE.split(obj.docstring.value)
            pieces[::2] = [piece.replace("<", "&lt;").replace("*", r"\*") for piece in pieces[::2]]
            obj.docstring.value = "".join(pieces)
