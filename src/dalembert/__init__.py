"""dalembert: geometric integrators for nonholonomic systems and free rigid bodies, on Lie groups and on R^n.

Importing it turns on 64-bit numbers in JAX: no integrator here makes sense without them.
"""

import jax

jax.config.update("jax_enable_x64", True)

from . import diagnostics, models
from ._version import __version__
from .analysis.nonholonomy import Nonholonomy, nonholonomy
from .differences import FiniteDifference, check_difference
from .discretisation import (
    Discretisation,
    check_discretisation,
    check_regular,
    chord_pair,
    consistent,
    from_difference,
    invariant_pair,
    moser_veselov,
    regularity_matrix,
    retracted,
)
from .distribution import Hamel, hamel
from .ehresmann import Ehresmann, ehresmann
from .errors import InconsistentDiscretisation, InvalidInput, NumericalFailure, OffConstraint, UnknownName
from .events import Event, Quantity
from .forces import Forced, Friction, Steered, forced, steered, with_friction
from .groups import SE, SE2, SE3, SO, SO2, SO3, Euclidean, Group, Product, SEn, SOn
from .integrators import (
    Adaptive,
    Composition,
    CotangentLift,
    DiscreteGradient,
    DiscreteLR,
    DiscreteMoserVeselov,
    DormandPrince,
    EulerPoincareSuslov,
    Gauss,
    GeometricNonholonomic,
    ImplicitMidpoint,
    Integrator,
    KineticSplitting,
    LagrangeDAlembert,
    Leapfrog,
    LiePoissonSplitting,
    Lobatto,
    ProjectedRungeKutta,
    Rattle,
    Reference,
    RetractionAdapted,
    RetractionMap,
    RungeKutta,
    StepInfo,
    TangentLift,
    Taylor,
)
from .invariant import InvariantSystem, inertia_of_mass
from .nonlinear import NonlinearSystem, deformed, perturbed
from .records import Crossings
from .retractions import Cayley, Exponential, Retraction
from .right_invariant import LRSystem
from .sweep import Reduction, sweep
from .system import MechanicalSystem, State, System
from .trajectory import Trajectory, compare, ensemble, load, simulate
from .vector_field import VectorField
