"""dalembert: geometric integrators for nonholonomic systems and free rigid bodies, on Lie groups and on R^n.

Importing it turns on 64-bit numbers in JAX: no integrator here makes sense without them. Names are imported at first
use;
`__init__.pyi` lists them, in the order in which one meets them: group, system, method, run, study.
"""

import jax

from ._lazy import attach
from .errors import __version__ as __version__

jax.config.update("jax_enable_x64", True)

__getattr__, __dir__, __all__ = attach(__name__, __file__)
