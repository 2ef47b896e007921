from .groups import Euclidean as Euclidean, SO2 as SO2, SO3 as SO3, SE2 as SE2, SE3 as SE3, Product as Product
from .groups import Cayley as Cayley, Exponential as Exponential
from .mechanics import System as System, Input as Input, InvariantSystem as InvariantSystem, State as State
from .mechanics import Mechanism as Mechanism
from .mechanics import with_friction as with_friction, with_feedback as with_feedback
from .integrators import LagrangeDAlembert as LagrangeDAlembert, EulerPoincareSuslov as EulerPoincareSuslov
from .integrators import RetractionAdapted as RetractionAdapted, DiscreteMoserVeselov as DiscreteMoserVeselov
from .integrators import Leapfrog as Leapfrog, Gauss as Gauss, DiscreteGradient as DiscreteGradient
from .integrators import Composition as Composition, Adaptive as Adaptive
from .integrators import RungeKutta as RungeKutta, DormandPrince as DormandPrince, Taylor as Taylor
from .simulation import Event as Event, Quantity as Quantity
from .trajectory import simulate as simulate, ensemble as ensemble, Trajectory as Trajectory, load as load
from .trajectory import prepare as prepare, compare as compare
from .sweeps.execute import sweep as sweep
from .mechanics import nonholonomy as nonholonomy
from .analysis.linearisation import linearise as linearise, steady as steady, stability as stability
from .optimise import fit as fit, plan as plan, track as track
from .errors import InvalidInput as InvalidInput, NumericalFailure as NumericalFailure
from . import groups as groups, mechanics as mechanics, integrators as integrators, models as models
from . import simulation as simulation, io as io, plotting as plotting, analysis as analysis, sweeps as sweeps
from . import optimise as optimise, papers as papers, studio as studio, kernels as kernels
from . import numerics as numerics, errors as errors

__version__: str
