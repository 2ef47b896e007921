"""Sweeps: a grid of runs in chunks, on threads, processes or a cluster, that survives being killed."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
