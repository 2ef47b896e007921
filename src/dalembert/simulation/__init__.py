"""Runs: `driver` says what happens in which order, `loop` steps, `events` watches, `results` is what a run leaves."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
