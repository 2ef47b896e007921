"""One-step methods: start, step, observe."""

from .base import REASONS, Integrator, StepInfo
from .euler_poincare_suslov import EulerPoincareSuslov
from .lagrange_dalembert import LagrangeDAlembert
from .reference import Reference
from .retraction_adapted import RetractionAdapted
from .runge_kutta import RungeKutta

__all__ = ["REASONS", "EulerPoincareSuslov", "Integrator", "LagrangeDAlembert", "Reference", "RetractionAdapted", "RungeKutta", "StepInfo"]

METHOD_CLASSES = (LagrangeDAlembert, EulerPoincareSuslov, RetractionAdapted, RungeKutta, Reference)
