"""The version, where every floor can read it, and what else made a file."""

from __future__ import annotations

import datetime
import platform

import jax
import numpy as np

__version__ = "0.1.0"


def made_by() -> dict[str, str]:
    """Versions, machine and time."""
    return {
        "dalembert": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
