"""Garcia-Naranjo and Jimenez (2016): two discretisations of the Suslov problem, one of them consistent."""

from . import locus, comparison, work  # noqa: I001  in the order of the paper
from .setup import gallery

__all__ = ["comparison", "gallery", "locus", "work"]
