"""All benchmarks that run without a GPU, one after another, each in its own process: `python benchmarks`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

SCRIPTS = (
    "calls",
    "fit",
    "plan",
    "gradients",
    "single",
    "parts",
    "taylor",
    "size",
    "plain",
    "ensemble",
    "startup",
    "studio",
    "long",
    "work_precision",
    "sweep",
    "gpu",
)
NEEDS_A_GPU = ("gpu",)


def main() -> None:
    folder, failed = Path(__file__).parent, []
    for name in sys.argv[1:] or SCRIPTS:
        print(f"\n==== {name} ====", flush=True)
        begin = time.perf_counter()
        code = subprocess.run([sys.executable, str(folder / f"{name}.py")]).returncode
        print(f"({time.perf_counter() - begin:.0f} s)")
        if code and name not in NEEDS_A_GPU:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
