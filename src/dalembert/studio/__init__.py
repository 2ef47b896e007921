"""The studio: a local web page that shows runs in three dimensions and lets one change them.

`dalembert.studio(system)` opens it with a system: the package itself can be called.
"""

import sys
from types import ModuleType
from typing import Any

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)


class _Package(ModuleType):
    def __call__(self, system: Any, **options: Any) -> Any:
        """Open the studio with a system; see `dalembert.studio.open_system`."""
        return self.open_system(system, **options)


sys.modules[__name__].__class__ = _Package
