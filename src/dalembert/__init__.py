"""dalembert: geometric integrators for nonholonomic systems and free rigid bodies, on Lie groups and on R^n.

Importing it turns on 64-bit numbers in JAX: no integrator here makes sense without them. Names are imported at first
use; `__init__.pyi` lists them, in the order in which one meets them: group, system, method, run, study.
"""

import gc
import os
import sys
import warnings
from _signal import SIGINT, default_int_handler, getsignal, signal  # `signal` itself imports for 10 ms more

_command = (getattr(sys, "argv", None) or [""])[0]
if os.path.basename(_command) in ("dalembert", "dalembert.exe") or (
    _command == "-m" and "dalembert.cli" in sys.orig_argv
):  # the command line: `import jax` takes a second, in which Ctrl-C ends it; `cli.main` takes over from here
    _told = b"dalembert: stopped\n"
    if "--multiprocessing-fork" in sys.orig_argv:  # a worker that the command started: the command speaks for it
        _told = b""
    else:
        gc.disable()  # a full collection during the imports, which free nothing, takes 0.1 s; `cli.main` enables it
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, lambda *_: (os.write(2, _told), os._exit(130)))

import jax  # noqa: E402

from ._lazy import attach  # noqa: E402
from .errors import __version__ as __version__  # noqa: E402

jax.config.update("jax_enable_x64", True)
if "ipykernel" in sys.modules:  # `!command` in a cell forks to become that command at once, which is no danger to JAX
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning, "pty")

__getattr__, __dir__, __all__ = attach(__name__, __file__)
