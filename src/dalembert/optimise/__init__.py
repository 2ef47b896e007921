"""From data and goals to numbers, through the integrator.

`fit` finds the parameters that made a measured motion, and `plan` the controls that bring a system to a goal.
"""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
