"""One-step methods: start, step, observe. `register` adds one of your own to METHODS."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, at_once=True)
