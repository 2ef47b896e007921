"""One-step methods: start, step, observe."""

from .base import REASONS, Integrator, StepInfo
from .euler_poincare_suslov import EulerPoincareSuslov
from .lagrange_dalembert import LagrangeDAlembert
from .midpoint import ImplicitMidpoint
from .moser_veselov import DiscreteMoserVeselov
from .rattle import Rattle
from .reference import Reference
from .retraction_adapted import RetractionAdapted
from .runge_kutta import RungeKutta
from .splitting import KineticSplitting, LiePoissonSplitting

__all__ = [
    "REASONS",
    "DiscreteMoserVeselov",
    "EulerPoincareSuslov",
    "ImplicitMidpoint",
    "Integrator",
    "KineticSplitting",
    "LagrangeDAlembert",
    "LiePoissonSplitting",
    "Rattle",
    "Reference",
    "RetractionAdapted",
    "RungeKutta",
    "StepInfo",
]

METHOD_CLASSES = (
    LagrangeDAlembert,
    EulerPoincareSuslov,
    RetractionAdapted,
    RungeKutta,
    Reference,
    DiscreteMoserVeselov,
    Rattle,
    LiePoissonSplitting,
    ImplicitMidpoint,
    KineticSplitting,
)
