"""The command line: every module registers its commands with `shell.app` when it is imported."""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from collections.abc import Sequence

from ..errors import InvalidInput, NumericalFailure, WriteFailure
from ..studio.workers import import_early

if sys.argv[1:2] == ["studio"]:  # two processes import at once
    import_early("dalembert.studio.server", __name__)

from ..kernels import LoweringError
from ..kernels.cache import persist_xla_cache
from . import optimise, runs, studies
from .shell import app

__all__ = ["app", "main", "optimise", "runs", "studies"]


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line: input faults end with a message and exit code 2, never with a traceback."""
    try:
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):  # from here on a command keeps what is done
            signal.signal(signal.SIGINT, signal.default_int_handler)
        persist_xla_cache()
        gc.enable()
        gc.freeze()  # what is imported stays: to search it again and again for cycles took a tenth of a cold start
        gc.set_threshold(100_000, 20, 20)
        warnings.showwarning = lambda message, *place: print(f"dalembert: {message}", file=sys.stderr)
        app(words)
        return
    except (InvalidInput, LoweringError) as fault:
        code, message = 2, str(fault)
    except BrokenPipeError:
        raise SystemExit(1) from None
    except (NumericalFailure, WriteFailure) as fault:
        code, message = 1, str(fault)
    except OSError as fault:  # a name that no file can have, a folder that nobody may read
        code, message = 2, f"cannot use the file {str(fault.filename)[:80]}: {fault.strerror or fault}"
    except MemoryError:
        code, message = 1, "there is not enough memory: take fewer steps, or save fewer states by run.save_every"
    except KeyboardInterrupt:
        code, message = 130, "stopped"
    print(f"dalembert: {message}", file=sys.stderr)
    raise SystemExit(code)
