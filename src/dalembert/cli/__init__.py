"""The command line: every module registers its commands with `app.app` when it is imported."""

from __future__ import annotations

import gc
import sys

gc.disable()  # a full collection during the imports, which free nothing, takes 0.1 s
try:
    from ..errors import InvalidInput, WriteFailure
    from ..kernels.cache import persist_xla_cache
    from . import runs, serve, studies
    from .app import app
except KeyboardInterrupt:  # Ctrl-C while all this loads ends like Ctrl-C in a command
    print("dalembert: stopped", file=sys.stderr)
    raise SystemExit(130) from None
finally:
    gc.enable()

__all__ = ["app", "main", "runs", "serve", "studies"]


def main() -> None:
    """Run the command line: input faults end with a message and exit code 2, never with a traceback."""
    persist_xla_cache()
    gc.freeze()  # what is imported stays: to search it again and again for cycles took a tenth of a cold start
    gc.set_threshold(100_000, 20, 20)
    try:
        app()
    except (InvalidInput, WriteFailure) as fault:
        print(f"dalembert: {fault}", file=sys.stderr)
        raise SystemExit(2 if isinstance(fault, InvalidInput) else 1) from None
    except KeyboardInterrupt:
        print("dalembert: stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(1) from None
