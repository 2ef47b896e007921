"""One-step methods: start, step, observe. `register` adds one of your own to METHODS."""

from .base import (
    BRANCH_LOST,
    EXACT,
    MEANINGS,
    NOT_FINITE,
    OK,
    REASONS,
    Claims,
    Integrator,
    PhaseCarry,
    Prediction,
    StepInfo,
    call_method,
    require_arguments,
    require_state,
)
from .collocation import Gauss, Lobatto
from .composition import Adaptive, Composition
from .discrete_gradient import DiscreteGradient
from .euler_poincare_suslov import DiscreteLR, EulerPoincareSuslov
from .explicit import DormandPrince, ProjectedRungeKutta, Reference, RungeKutta, Taylor, derivative, scipy_motion
from .free_body import horner, map_constants, scale_series, series_product, series_reciprocal
from .lagrange_dalembert import GeometricNonholonomic, LagrangeDAlembert, Leapfrog
from .properties import conservative, require_invariant, unconstrained
from .registry import METHODS, RETRACTIONS, Method, register
from .retraction_maps import (
    CotangentLift,
    RetractionAdapted,
    RetractionMap,
    TangentLift,
    cotangent_lift,
    tangent_lift,
)
from .rigid_body import DiscreteMoserVeselov, ImplicitMidpoint, KineticSplitting, LiePoissonSplitting, Rattle

__all__ = [
    "BRANCH_LOST", "EXACT", "MEANINGS", "METHODS", "NOT_FINITE", "OK", "REASONS", "RETRACTIONS", "Adaptive", "Claims",
    "Composition", "CotangentLift", "DiscreteGradient", "DiscreteLR", "DiscreteMoserVeselov", "DormandPrince",
    "EulerPoincareSuslov", "Gauss", "GeometricNonholonomic", "ImplicitMidpoint", "Integrator", "KineticSplitting",
    "LagrangeDAlembert", "Leapfrog", "LiePoissonSplitting", "Lobatto", "Method", "PhaseCarry", "Prediction",
    "ProjectedRungeKutta", "Rattle", "Reference", "RetractionAdapted", "RetractionMap", "RungeKutta", "StepInfo",
    "TangentLift", "Taylor", "call_method", "conservative", "cotangent_lift", "derivative", "horner", "map_constants",
    "register", "require_arguments", "require_invariant", "require_state", "scale_series", "scipy_motion",
    "series_product", "series_reciprocal", "tangent_lift", "unconstrained",
]  # fmt: skip
