"""Ready systems: parameters, equations, sources, exact solutions where they exist. Notation: `dalembert.mechanics`.

Each model is registered where it is defined, by `register`; `MODELS` has them by name.
"""

from .._lazy import attach
from .registry import MODELS

__getattr__, __dir__, __all__ = attach(__name__, __file__, at_once=True)

_ORDER = """
    rigid-body satellite rigid-body-n suslov suslov-n chaplygin-sleigh nonholonomic-particle contact-oscillator
    chaotic-quartic pendulum-cvt vertical-disk inclined-disk rolling-disk rolling-ball ball-on-table chaplygin-ball
    rattleback unicycle car snakeboard roller-racer knife-edge sleigh-n veselova chaplygin-sphere pendulum-chain
    skate-on-ellipsoid hinged-sleighs bicycle differential-drive ackermann-car tractor omni-base ball-robot
    tippe-top coin
"""
for _name in _ORDER.split():  # lists, pages and the studio show the models in this order, and others after them
    MODELS[_name] = MODELS.pop(_name)
