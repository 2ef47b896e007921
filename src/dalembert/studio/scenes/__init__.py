"""Scenes: every group, and every model where it has a look of its own, drawn so that the constraint is visible."""

from __future__ import annotations

from .stage import scene

__all__ = ["scene"]
