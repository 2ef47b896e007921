"""The studio: a local web page that shows runs in three dimensions and lets one change them."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
