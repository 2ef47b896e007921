"""Linear and nonlinear equations, the structure of traced functions, checks of input, trends in measured errors."""

from .checks import (
    TOLERANCE,
    array,
    diagonal,
    finite,
    is_traced,
    namespace,
    normalised,
    not_negative,
    parse,
    positive,
    positive_int,
    require_rotation,
)
from .solvers import Root, echelon, find_fixed_point, find_root, follow_root, null_basis, solve, solve_saddle
from .structure import depends, fibre, literals, solve_reduced, vanishes
from .trends import GROWTH_KINDS, MAX_BLOCKS, MIN_SAMPLES, Convergence, Drift, classify, slopes

__all__ = [
    "GROWTH_KINDS", "MAX_BLOCKS", "MIN_SAMPLES", "TOLERANCE", "Convergence", "Drift", "Root", "array", "classify",
    "depends", "diagonal", "echelon", "fibre", "find_fixed_point", "find_root", "finite", "follow_root", "is_traced",
    "literals", "namespace", "normalised", "not_negative", "null_basis", "parse", "positive", "positive_int",
    "require_rotation", "slopes", "solve", "solve_reduced", "solve_saddle", "vanishes",
]  # fmt: skip
