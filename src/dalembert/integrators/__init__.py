"""One-step methods: start, step, observe."""

from .adaptive import Adaptive
from .base import REASONS, Integrator, StepInfo
from .composition import Composition
from .discrete_gradient import DiscreteGradient
from .dormand_prince import DormandPrince
from .euler_poincare_suslov import EulerPoincareSuslov
from .gauss import Gauss
from .gni import GeometricNonholonomic
from .lagrange_dalembert import LagrangeDAlembert
from .leapfrog import Leapfrog
from .lifted import CotangentLift, RetractionMap, TangentLift, cotangent_lift, tangent_lift
from .lobatto import Lobatto
from .lr import DiscreteLR
from .midpoint import ImplicitMidpoint
from .moser_veselov import DiscreteMoserVeselov
from .projection import ProjectedRungeKutta
from .rattle import Rattle
from .reference import Reference
from .retraction_adapted import RetractionAdapted
from .runge_kutta import RungeKutta
from .splitting import KineticSplitting, LiePoissonSplitting
from .taylor import Taylor

__all__ = [
    "REASONS",
    "Adaptive",
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
    "ProjectedRungeKutta",
    "Rattle",
    "Reference",
    "RetractionAdapted",
    "RetractionMap",
    "RungeKutta",
    "StepInfo",
    "TangentLift",
    "Taylor",
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
    DormandPrince,
    Taylor,
    Reference,
    DiscreteMoserVeselov,
    Rattle,
    LiePoissonSplitting,
    ImplicitMidpoint,
    KineticSplitting,
    TangentLift,
    CotangentLift,
    DiscreteLR,
    DiscreteGradient,
    Gauss,
    Lobatto,
    ProjectedRungeKutta,
    Composition,
    Adaptive,
)
