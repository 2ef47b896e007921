"""McLachlan and Zanna (2003): the discrete Moser-Veselov algorithm for the free rigid body, of order 2, 4 and 6."""

from . import modified, spectrum, accuracy, cost, motions  # noqa: I001  in the order of the paper
from .setup import gallery

__all__ = ["accuracy", "cost", "gallery", "modified", "motions", "spectrum"]
