"""The figures and tables of the papers, recomputed: what was printed, what comes out here, and why they differ."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
