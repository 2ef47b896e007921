"""One-step methods: start, step, observe."""

from .base import REASONS, Integrator, StepInfo
from .euler_poincare_suslov import EulerPoincareSuslov
from .composition import Composition
from .gni import GeometricNonholonomic
from .lagrange_dalembert import LagrangeDAlembert
from .leapfrog import Leapfrog
from .lifted import CotangentLift, RetractionMap, TangentLift, cotangent_lift, tangent_lift
from .lr import DiscreteLR
from .midpoint import ImplicitMidpoint
from .moser_veselov import DiscreteMoserVeselov
from .rattle import Rattle
from .reference import Reference
from .retraction_adapted import RetractionAdapted
from .runge_kutta import RungeKutta
from .splitting import KineticSplitting, LiePoissonSplitting

__all__ = [
    "REASONS",
    "Composition",
    "CotangentLift",
    "DiscreteLR",
    "DiscreteMoserVeselov",
    "EulerPoincareSuslov",
    "GeometricNonholonomic",
    "ImplicitMidpoint",
    "Integrator",
    "KineticSplitting",
    "LagrangeDAlembert",
    "Leapfrog",
    "LiePoissonSplitting",
    "Rattle",
    "Reference",
    "RetractionAdapted",
    "RetractionMap",
    "RungeKutta",
    "StepInfo",
    "TangentLift",
    "cotangent_lift",
    "tangent_lift",
]

METHOD_CLASSES = (
    LagrangeDAlembert,
    EulerPoincareSuslov,
    RetractionAdapted,
    Leapfrog,
    GeometricNonholonomic,
    RungeKutta,
    Reference,
    DiscreteMoserVeselov,
    Rattle,
    LiePoissonSplitting,
    ImplicitMidpoint,
    KineticSplitting,
    TangentLift,
    CotangentLift,
    DiscreteLR,
)
