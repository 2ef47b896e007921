"""Which parameters made this motion: least squares through the integrator, with what the data can tell of each.

With measurements y_i of standard deviation s_i at times t_i and the motion q(t; x) of the discrete method, x minimises

    chi^2(x) = sum_i rho(((h(q(t_i; x)) - y_i)/s_i)^2) + sum of priors,

where orientations are compared on the group, log(g_i^-1 g(t_i)). Derivatives are those of the discrete motion, native
and exact. The covariance of the estimate is (J^T J)^-1 (Gauss, Theoria combinationis, 1823; Bard, Nonlinear Parameter
Estimation, 1974, ch. 7), with J the Jacobian of the weighted residuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..mechanics import State
from ..numerics import finite_reals, require_function, require_instance, show

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Unknown:
    """A number or an array to be found: where to begin, its bounds, what was known of it before.

    `prior` is (mean, standard deviation). An unknown of the experiments' `own` has one value in each of them.
    """

    guess: Any
    low: Any = -math.inf
    high: Any = math.inf
    prior: tuple[Any, Any] | None = None
    own: bool = False

    def __post_init__(self) -> None:
        guess = finite_reals("the guess of an unknown", self.guess)
        bounds = f"{show(self.low)} and {show(self.high)}"
        try:
            low, high = (np.broadcast_to(np.asarray(each, float), guess.shape) for each in (self.low, self.high))
        except (TypeError, ValueError) as fault:
            raise InvalidInput(f"the bounds of an unknown are {bounds}; allowed: numbers, one or as many") from fault
        if not (low < high).all():
            raise InvalidInput(f"the bounds of an unknown are {bounds}; allowed: low < high")
        if not ((low <= guess) & (guess <= high)).all():
            raise InvalidInput(f"the guess {show(self.guess)} is not between its bounds, {bounds}: give one that is")
        if self.prior is not None:
            if not isinstance(self.prior, tuple | list) or len(self.prior) != 2:
                raise InvalidInput(f"a prior is {show(self.prior)}; allowed: (mean, standard deviation)")
            mean, deviation = (finite_reals("a prior", each) for each in self.prior)
            if mean.shape not in ((), guess.shape) or not (deviation > 0).all():
                raise InvalidInput(f"a prior is {show(self.prior)}; allowed: (mean, a positive standard deviation)")


@dataclass(frozen=True, eq=False)
class Experiment:
    """Measurements of one motion, at any times; what is missing is NaN.

    `measured` has the values by their names, each with one row a time: "configuration" (elements of the group, compared
    on it), "velocity" (xi), the names of coordinates and rates of the system, or those of your own `observables`,
    functions (system, state) -> array written in JAX. `deviations` are their standard deviations: a number, one for
    each component, or one for each time and component; a table by name where they differ; None: all alike and not
    known. `covariances` have matrices instead. The motion starts at `state`, of which `free` names what is to be
    estimated too: "configuration", "velocity", or single components. `controls` are those of a run.
    """

    times: Any
    measured: Mapping[str, Any]
    state: State
    deviations: Any = None
    covariances: Mapping[str, Any] = field(default_factory=dict)
    observables: Mapping[str, Callable[[Any, State], Any]] = field(default_factory=dict)
    controls: Any = None
    free: Any = ()
    name: str = ""

    def __post_init__(self) -> None:
        times = finite_reals("the times of an experiment", self.times)
        if times.ndim != 1 or not times.size:
            raise InvalidInput(f"the times of an experiment have shape {times.shape}; allowed: (N,), at least one")
        for name, given in (("measured", self.measured), ("covariances", self.covariances)):
            if not isinstance(given, Mapping):
                raise InvalidInput(f"{name} is {show(given)}; allowed: values by their names, as {{'velocity': ...}}")
        if not self.measured:
            raise InvalidInput("an experiment measured nothing: give values by their names")
        require_instance("the state of an experiment", self.state, State, "a state, as system.state(g, xi)")
        for name, function in self.observables.items():
            require_function(f"the observable {name!r}", function, "(system, state)", optional=False)
