from .fitting import Experiment as Experiment
from .fitting import Unknown as Unknown
