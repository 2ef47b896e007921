"""Files: configurations, data, and how they are written whole or not at all."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
