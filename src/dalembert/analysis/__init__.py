"""Studies of methods and motions: order, drift, comparison, branches, series, integrals."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
