"""dalembert: geometric integrators for nonholonomic systems and free rigid bodies, on Lie groups and on R^n.

Importing it turns on 64-bit numbers in JAX: no integrator here makes sense without them.
"""

import jax

jax.config.update("jax_enable_x64", True)

from . import diagnostics, models  # noqa: E402
from .differences import FiniteDifference, check_difference  # noqa: E402
from .discretisation import (  # noqa: E402
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
from .distribution import Hamel, Nonholonomy, hamel, nonholonomy  # noqa: E402
from .errors import InconsistentDiscretisation, InvalidInput, NumericalFailure, OffConstraint, UnknownName  # noqa: E402
from .groups import SE, SE2, SE3, SO, SO2, SO3, Euclidean, Group, Product, SEn, SOn  # noqa: E402
from .integrators import (  # noqa: E402
    EulerPoincareSuslov,
    Integrator,
    LagrangeDAlembert,
    Reference,
    RetractionAdapted,
    RungeKutta,
    StepInfo,
)
from .invariant import InvariantSystem, inertia_of_mass  # noqa: E402
from .retractions import Cayley, Exponential, Retraction  # noqa: E402
from .simulate import ensemble, simulate  # noqa: E402
from .system import MechanicalSystem, State, System  # noqa: E402
from .trajectory import Trajectory  # noqa: E402

__version__ = "0.1.0"
