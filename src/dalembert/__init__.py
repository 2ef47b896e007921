"""dalembert: geometric integrators for nonholonomic systems and free rigid bodies, on Lie groups and on R^n.

Importing it turns on 64-bit numbers in JAX: no integrator here makes sense without them.
"""

import jax

jax.config.update("jax_enable_x64", True)

from . import diagnostics, models
from .differences import FiniteDifference, check_difference
from .discretisation import (
    Discretisation,
    check_discretisation,
    check_regular,
    consistent,
    from_difference,
    invariant_pair,
    moser_veselov,
    regularity_matrix,
    retracted,
)
from .distribution import Hamel, Nonholonomy, hamel, nonholonomy
from .errors import InconsistentDiscretisation, InvalidInput, NumericalFailure, OffConstraint, UnknownName
from .groups import SE, SE2, SE3, SO, SO2, SO3, Euclidean, Group, Product, SEn, SOn
from .integrators import (
    DiscreteMoserVeselov,
    EulerPoincareSuslov,
    ImplicitMidpoint,
    Integrator,
    KineticSplitting,
    LagrangeDAlembert,
    LiePoissonSplitting,
    Rattle,
    Reference,
    RetractionAdapted,
    RungeKutta,
    StepInfo,
)
from .invariant import InvariantSystem, inertia_of_mass
from .retractions import Cayley, Exponential, Retraction
from .simulate import ensemble, simulate
from .system import MechanicalSystem, State, System
from .trajectory import Trajectory

__version__ = "0.1.0"
