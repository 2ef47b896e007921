"""One-step methods: start, step, observe."""

from .base import (
    BRANCH_LOST,
    EXACT,
    MEANINGS,
    NOT_FINITE,
    OK,
    REASONS,
    Claims,
    Integrator,
    Prediction,
    StepInfo,
    fine,
    info,
)
from .collocation import Gauss, Lobatto
from .composition import Adaptive, Composition
from .discrete_gradient import DiscreteGradient
from .euler_poincare_suslov import DiscreteLR, EulerPoincareSuslov, require_invariant
from .explicit import DormandPrince, ProjectedRungeKutta, Reference, RungeKutta, derivative, scipy_motion
from .lagrange_dalembert import LagrangeDAlembert
from .lifted import CotangentLift, RetractionMap, TangentLift, cotangent_lift, tangent_lift
from .moser_veselov import DiscreteMoserVeselov, constants, horner, product, reciprocal, series
from .reflecting import GeometricNonholonomic, Leapfrog
from .registry import METHODS, RETRACTIONS
from .retraction_adapted import RetractionAdapted
from .rigid_body import ImplicitMidpoint, KineticSplitting, LiePoissonSplitting, Rattle
from .taylor import Taylor

__all__ = [
    "BRANCH_LOST",
    "EXACT",
    "MEANINGS",
    "METHODS",
    "NOT_FINITE",
    "OK",
    "REASONS",
    "RETRACTIONS",
    "Adaptive",
    "Claims",
    "Composition",
    "CotangentLift",
    "DiscreteGradient",
    "DiscreteLR",
    "DiscreteMoserVeselov",
    "DormandPrince",
    "EulerPoincareSuslov",
    "Gauss",
    "GeometricNonholonomic",
    "ImplicitMidpoint",
    "Integrator",
    "KineticSplitting",
    "LagrangeDAlembert",
    "Leapfrog",
    "LiePoissonSplitting",
    "Lobatto",
    "Prediction",
    "ProjectedRungeKutta",
    "Rattle",
    "Reference",
    "RetractionAdapted",
    "RetractionMap",
    "RungeKutta",
    "StepInfo",
    "TangentLift",
    "Taylor",
    "constants",
    "cotangent_lift",
    "derivative",
    "fine",
    "horner",
    "info",
    "product",
    "reciprocal",
    "require_invariant",
    "scipy_motion",
    "series",
    "tangent_lift",
]
