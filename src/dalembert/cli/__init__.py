"""The command line: one module a command, each registered by its import here."""

from __future__ import annotations

import gc
import sys

from . import animate, compare, convergence, demo, init, lists, reproduce, run, show, studio, sweep
from ._app import app

__all__ = ["animate", "app", "compare", "convergence", "demo", "init", "lists", "main", "reproduce", "run", "show", "studio", "sweep"]


def main() -> None:
    """The entry point: input faults end with a message and exit code 2, never with a traceback."""
    from ..errors import InvalidInput, WriteFailure
    from ..kernels.cache import keep_xla

    keep_xla()
    gc.freeze()  # what is imported stays: to search it again and again for cycles took a tenth of a cold start
    gc.set_threshold(100_000, 20, 20)
    try:
        app()
    except InvalidInput as fault:
        print(f"dalembert: {fault}", file=sys.stderr)
        raise SystemExit(2) from None
    except WriteFailure as fault:
        print(f"dalembert: {fault}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("dalembert: stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(1) from None
