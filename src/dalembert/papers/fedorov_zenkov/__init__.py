"""Fedorov and Zenkov (2004): discrete LL systems, the Suslov problem and the Chaplygin sleigh."""

from . import continuous, suslov, sleigh  # noqa: I001  in the order of the paper
from .setup import gallery

__all__ = ["continuous", "gallery", "sleigh", "suslov"]
