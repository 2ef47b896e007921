"""What one takes away from the page: the configuration, the data, a picture, a film, a page that plays offline.

Files are made in a folder of their own that vanishes; nothing is written where the server runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidInput, UnknownName
from .export import page_with
from .requests import Opened, completed, jobs_of
from .show import integrate, save_every, show

STATES = 20_000
"""The most states in a data file; a longer run saves every so many."""
FILM = {"seconds": 6.0, "frames_per_second": 15}
KINDS = {
    "toml": "application/toml",
    "nc": "application/x-netcdf",
    "png": "image/png",
    "gif": "image/gif",
    "mp4": "video/mp4",
    "html": "text/html; charset=utf-8",
}


def take_away(asked: Any, opened: Opened, cancelled: Callable[[], bool] = lambda: False) -> tuple[str, str, bytes]:
    """The name, type and content of the file that the page asks for."""
    if not isinstance(asked, Mapping) or not isinstance(asked.get("request"), Mapping):
        raise InvalidInput("to save something the page sends its request and a kind")
    kind = asked.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnknownName("kind of file", kind, KINDS)
    request = asked["request"]
    if request.get("saved"):
        name, content = _of_file(request, kind, opened)
    else:
        name, content = _of_run(request, kind, opened, cancelled)
    return f"{name}.{kind}", KINDS[kind], content


def _of_run(request: Mapping[str, Any], kind: str, opened: Opened, cancelled: Callable[[], bool]) -> tuple[str, bytes]:
    if request.get("complete"):
        request, _ = completed(request, opened)
    jobs = jobs_of(request, opened)
    name = jobs[0].names["system"].partition(".py:")[0]
    if kind == "toml":
        return name, jobs[0].text.encode()
    if kind == "html":
        return name, page_with(show(request, opened, cancelled)).encode()
    runs = [integrate(job, save_every(job, STATES), cancelled)[0] for job in jobs]
    return name, _made(kind, lambda path: _write(kind, path, jobs, runs))


def _write(kind: str, path: Path, jobs: Any, runs: Any) -> None:
    from ..animate import animate, motion_of_run
    from ..files import save
    from ..plotting import plot_comparison

    if kind == "nc":
        save(runs[0], path, {"config": jobs[0].text, "system": jobs[0].names["system"]})
    elif kind == "png":
        named = {
            job.names["method"] if k == 0 else f"{job.names['method']} (beside)": run
            for k, (job, run) in enumerate(zip(jobs, runs, strict=True))
        }
        plot_comparison(named, title=jobs[0].names["system"], path=path)
    else:
        animate(motion_of_run(runs[0], jobs[0]), path, **FILM)  # type: ignore[arg-type]


def _of_file(request: Mapping[str, Any], kind: str, opened: Opened) -> tuple[str, bytes]:
    """What can be made of a saved run without running anything."""
    from ..animate import animate, motion_of_file
    from .seen import config_of_file

    answer = show(request, opened)  # checks the request
    path = opened.saved
    assert path is not None
    if kind == "html":
        return path.stem, page_with(answer).encode()
    if kind == "nc" and path.suffix == ".nc":
        return path.stem, path.read_bytes()
    if kind == "toml" and (config := config_of_file(path)) is not None:
        from .._toml import dumps

        return path.stem, dumps(config).encode()
    if kind in ("gif", "mp4"):
        return path.stem, _made(kind, lambda file: animate(motion_of_file(path), file, **FILM))  # type: ignore[arg-type]
    raise InvalidInput(f"a {kind} cannot be made of {path.name}; run its configuration again for one")


def _made(kind: str, write: Callable[[Path], Any]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="dalembert-studio-") as folder:
        path = Path(folder) / f"file.{kind}"
        write(path)
        return path.read_bytes()
