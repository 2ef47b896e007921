"""An extension of Griffe: docstrings are prose with formulas in plain text, which a terminal shows as they are.

On the site they are set (_typeset.py).

Public names have more in the reference than their docstrings: what they are for, a table of their arguments, and an
example, from api/names.toml.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

from dalembert.models import MODELS

sys.path.insert(0, str(Path(__file__).parent))

from _blocks import IMPORTS, NAMES, NAMESPACES, example, example_below, example_of_model, meaning
from _typeset import paragraph


def _arguments(obj: griffe.Object, told: dict[str, str]) -> str:
    defaults = {each.name: each.default for each in getattr(obj, "parameters", ()) if each.default is not None}
    rows = [
        f"| `{name}` | {f'`{defaults[name]}`' if name in defaults else ''} | {text} |".replace("\n", " ")
        for name, text in told.items()
    ]
    return "\n".join(["| argument | default | meaning |", "|---|---|---|", *rows])


class Formulas(griffe.Extension):
    """<I xi, xi> is no HTML, and Ad*_W M is no emphasis."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = "\n\n".join(map(paragraph, obj.docstring.value.split("\n\n")))
            defined = obj.is_function or obj.is_class
            if defined and obj.parent is not None and obj.parent.is_module:
                below = self._below if obj.name not in NAMES else self._reference
                obj.docstring.value = below(obj, obj.docstring.value)

    def _below(self, obj: griffe.Object, text: str) -> str:
        """What a name of a namespace has: the meaning of its arguments, and an example."""
        space = obj.path.split(".")[1]
        key = f"{'optimise' if space == 'numerics' else space}.{obj.name}"
        if key in NAMESPACES["results"]:
            return self._result(obj, key, text)
        model = next((each for each in MODELS.values() if f"models.{each.build.__name__}" == key), None)
        if model is None and key not in NAMESPACES["example"]:
            return text
        taken = [each.name for each in getattr(obj, "parameters", ()) if each.name not in ("self", "cls")]
        told = {name: model.help(name) if model else meaning(key, name) for name in taken}
        program = "\n".join([*IMPORTS[:1], example_of_model(model)]) if model else example_below(key)
        table = [_arguments(obj, {name: words or "" for name, words in told.items()})] if told else []
        return "\n\n".join([text, *table, f"```python\n{program}\n```"])

    def _result(self, obj: griffe.Object, key: str, text: str) -> str:
        """What a function returns has fields instead of arguments: those that mean something outside the program."""
        if "__init__" in obj.members:
            obj.del_member("__init__")
        rows = [f"| `{name}` | {words} |" for name, words in NAMESPACES["results"][key].items()]
        table = ["\n".join(["| field | meaning |", "|---|---|", *rows])] if rows else []
        program = [f"```python\n{example_below(key)}\n```"] if key in NAMESPACES["example"] else []
        return "\n\n".join([text, *table, *program])

    def _reference(self, obj: griffe.Object, text: str) -> str:
        own = NAMES[obj.name]
        _, _, details = text.partition("\n\n")  # the first paragraph says what `for` says, without formulas
        parts = [f"**{own['for']}**", details or text]
        if "arguments" in own:
            parts.append(_arguments(obj, own["arguments"]))
        return "\n\n".join([*parts, f"```python\n{example(obj.name)}\n```"])
