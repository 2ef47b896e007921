"""Linear and nonlinear equations, the structure of traced functions, checks of input, trends in measured errors."""

from .checks import (
    TOLERANCE,
    array,
    call_own,
    diagonal,
    finite,
    finite_reals,
    is_traced,
    namespace,
    normalised,
    not_negative,
    not_zero,
    own_value,
    parse,
    positive,
    positive_int,
    read_reals,
    real,
    require_function,
    require_instance,
    require_range,
    require_rotation,
    show,
    vector,
)
from .solvers import (
    Root,
    depends,
    echelon,
    fibre,
    find_fixed_point,
    find_root,
    follow_root,
    literals,
    null_basis,
    solve,
    solve_reduced,
    solve_saddle,
    vanishes,
)
from .trends import GROWTH_KINDS, MAX_BLOCKS, MIN_SAMPLES, Convergence, Drift, classify, slopes

__all__ = [
    "GROWTH_KINDS", "MAX_BLOCKS", "MIN_SAMPLES", "TOLERANCE", "Convergence", "Drift", "Root", "array", "call_own",
    "classify", "depends", "diagonal", "echelon", "fibre", "find_fixed_point", "find_root", "finite", "finite_reals",
    "follow_root", "is_traced", "literals", "namespace", "normalised", "not_negative", "not_zero", "null_basis",
    "own_value", "parse", "positive", "positive_int", "read_reals", "real", "require_function", "require_instance",
    "require_range", "require_rotation", "show", "slopes", "solve", "solve_reduced", "solve_saddle", "vanishes",
    "vector",
]  # fmt: skip
