"""`dalembert init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._app import Json, app, examples, print_json


def _complete() -> list[str]:
    from ..models.registry import MODELS

    return [*MODELS, "own"]


@app.command(
    epilog=examples(
        "dalembert init suslov",
        "dalembert init chaplygin-sleigh --out sleigh.toml",
        "dalembert init own --out mysystem.toml   (writes mysystem.py too)",
    )
)
def init(
    name: Annotated[
        str, typer.Argument(help="A system of `dalembert list systems`, or own.", autocompletion=_complete)
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: NAME.toml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented configuration to start from; `own` writes one for a system of your own, with its Python file."""
    from ..atomic import replacing
    from ..errors import InvalidInput, UnknownName
    from ..models.registry import MODELS
    from ..template import OWN, commented, own

    if name != OWN and name not in MODELS:
        raise UnknownName("system", name, [*MODELS, OWN])
    path = out or Path("mysystem.toml" if name == OWN else f"{name}.toml")
    if path.suffix != ".toml":
        raise InvalidInput(f"--out is {path}; allowed: a file that ends in .toml")
    if not path.parent.is_dir():
        raise InvalidInput(f"--out is {path}, but the folder {path.parent} does not exist: create it first")
    texts = {path: ""}
    if name == OWN:
        texts[path], texts[path.with_suffix(".py")] = own(path.stem)
    else:
        texts[path] = commented(name, path.name)
    for target in texts:
        if target.exists() and not force:
            raise InvalidInput(f"{target} is there already: give another --out, or --force to replace it")
    for target, text in texts.items():
        with replacing(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if as_json:
        print_json({"files": [str(target) for target in texts]})
        return
    print(f"wrote {' and '.join(map(str, texts))}; next: dalembert run {path}")
