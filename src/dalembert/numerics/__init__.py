"""Equations, least squares, the structure of traced functions, checks of input, trends in measured errors."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
