"""From data and goals to numbers, through the integrator.

`fit` finds the parameters that made a measured motion, `plan` the controls that bring a system to a goal,
and `track` the feedback that keeps it on a plan.
"""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
