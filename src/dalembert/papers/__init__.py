"""Every figure and every table with numbers of the five papers: data, picture, page."""

from .exhibit import Data, Exhibit, Paper
from .registry import FIGURES, PAPERS, chosen
from .reproduce import Made, reproduce

__all__ = ["FIGURES", "PAPERS", "Data", "Exhibit", "Made", "Paper", "chosen", "reproduce"]
