from .fitting import Experiment as Experiment
from .fitting import Fit as Fit
from .fitting import Fits as Fits
from .fitting import Unknown as Unknown
from .fitting import fit as fit
from .planning import Plan as Plan, plan as plan
from .program import NonlinearProgram as NonlinearProgram
from .tracking import Tracker as Tracker, track as track
