"""`dalembert animate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._app import Json, Settings, app, examples, print_json, progress


@app.command(
    epilog=examples(
        "dalembert animate sleigh.nc",
        "dalembert animate sleigh.nc --out sleigh.gif --seconds 5",
        "dalembert animate examples/sleigh.toml --set run.steps=400   (runs it first)",
    )
)
def animate(
    file: Annotated[
        Path, typer.Argument(help="A .nc or .zarr file of `dalembert run --out`, or a configuration .toml.")
    ],
    out: Annotated[Path | None, typer.Option(help="The .mp4 (needs ffmpeg) or .gif. Default: named like FILE.")] = None,
    seconds: Annotated[float, typer.Option(help="How long the moving picture takes.")] = 8.0,
    fps: Annotated[int, typer.Option(help="Frames a second, at most.")] = 20,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """A moving picture of a run: sleighs and vehicles with their blades and wheels, rolling disks and balls, turning bodies."""
    from .. import animate as movies
    from ..errors import InvalidInput

    path = out or Path(file.with_suffix(movies.default_suffix()).name)
    movies.require_movie(path)
    if file.suffix == ".toml":
        from ..config import load
        from .run import integrate

        job = load(file, settings or ())
        with job.blaming():
            motion = movies.motion_of_run(integrate(job, states=True), job)
    elif settings:
        raise InvalidInput("--set changes a configuration; a data file is shown as it is")
    else:
        motion = movies.motion_of_file(file)
    with progress(f"drawing {path}") as bar:
        frames = movies.animate(motion, path, seconds=seconds, frames_per_second=fps, progress=bar)
    if as_json:
        print_json({"file": str(path), "frames": frames})
        return
    hint = "" if out or path.suffix == ".mp4" else " (a gif, since mp4 needs ffmpeg, which is not installed)"
    print(f"wrote {path}: {frames} frames{hint}")
