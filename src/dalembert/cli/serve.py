"""The command studio: a page in the browser that shows motions."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidInput
from ..io.config import load_job, read_config
from ..studio.catalogue import start
from ..studio.presentation import show
from ..studio.requests import MAX_SECONDS, MAX_STEPS, StudioInput, frames_of_file
from ..studio.server import export as export_page
from ..studio.server import open_studio
from .app import app, examples

HOST_HELP = "The address to listen on. Other machines see the page only if this is not loopback."
EXPORT_HELP = "Serve nothing: write this folder's index.html, a page that plays offline."


@app.command(
    epilog=examples(
        "dalembert studio",
        "dalembert studio examples/sleigh.toml",
        "dalembert studio sleigh.nc --no-browser",
        "dalembert studio examples/sleigh.toml --export page   (plays offline: open page/index.html)",
    )
)
def studio(
    file: Annotated[
        Path | None, typer.Argument(help="A configuration to start from, or a .nc file to look at.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port. Default: 8314, or the next that is free.")] = None,
    host: Annotated[str, typer.Option(help=HOST_HELP)] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
    max_steps: Annotated[int, typer.Option(help="The most steps that a run on the page may have.")] = MAX_STEPS,
    max_seconds: Annotated[
        float, typer.Option(help="The most processor time that the page may ask for.")
    ] = MAX_SECONDS,
    export: Annotated[Path | None, typer.Option(help=EXPORT_HELP)] = None,
) -> None:
    """See the motion in the browser: pick a system and a method, move a slider, watch what is kept.

    The page is served on this machine alone and runs no code but dalembert's. Ctrl-C ends it.
    """
    given = _studio_input(file, max_steps, max_seconds)
    if export is not None:
        path = export_page(show(start(given), given), export)
        print(f"wrote {path}: open it in a browser, it plays offline")
        return
    with open_studio(host, port, given) as server:
        print(f"dalembert studio at {server.url}  (Ctrl-C ends it)", flush=True)
        if not server.is_loopback:
            print("It listens beyond this machine: whoever reaches it can run simulations here.", flush=True)
        server.prepare()
        if not no_browser:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("\ndalembert studio: ended")


def _studio_input(file: Path | None, max_steps: int, max_seconds: float) -> StudioInput:
    """What the page starts from, checked before anything is served."""
    if max_steps < 1 or not 1 <= max_seconds <= 86_400:
        given = f"--max-steps is {max_steps} and --max-seconds {max_seconds}"
        raise InvalidInput(f"{given}; allowed: a whole number of at least 1, and 1 to 86400")
    limits: dict[str, Any] = {"max_steps": max_steps, "max_seconds": max_seconds}
    if file is None:
        return StudioInput(**limits)
    if file.suffix == ".toml":
        load_job(file)
        return StudioInput(read_config(file), file.parent, **limits)
    if file.suffix in (".nc", ".zarr"):
        frames_of_file(file, 2)
        return StudioInput(None, file.parent, file, **limits)
    raise InvalidInput(f"{file} is neither a configuration (.toml) nor a data file (.nc, .zarr)")
