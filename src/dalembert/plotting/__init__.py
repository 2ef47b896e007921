"""Figures: motions, what they conserve, and studies of methods, in one style."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
