"""A sleigh with friction, its motion by SciPy on equations derived by hand, and measurements of it."""

import numpy as np
from scipy.integrate import solve_ivp

import dalembert as da
from dalembert.optimise import Experiment

TRUE = {"a": 0.3, "rubbing": 0.15}
METHOD = da.LagrangeDAlembert()


def sleigh(a, rubbing, inertia=1.0):
    """A sleigh that a viscous force holds back along its blade and in its turning."""
    return da.with_friction(da.models.chaplygin_sleigh(a=a, inertia=inertia), viscous=rubbing)


def by_hand(times, a=0.3, rubbing=0.15, inertia=1.0, start=(0.5, 1.5)):
    """(theta, x, y, w, v) of that sleigh with m = 1 by SciPy: v' = a w^2 - c v, (J + a^2) w' = -a w v - c w."""

    def rate(t, y):
        theta, _, _, w, v = y
        turning = (-a * w * v - rubbing * w) / (inertia + a * a)
        return [w, v * np.cos(theta), v * np.sin(theta), turning, a * w * w - rubbing * v]

    found = solve_ivp(rate, (0.0, 1.001 * max(times)), [0.0, 0.0, 0.0, *start], "DOP853", times, rtol=1e-12, atol=1e-12)
    return found.y.T


def place(system, state):
    return state.g[:2, 2]


def launched(system=None, start=(0.5, 1.5)):
    return (system or sleigh(**TRUE)).state(xi=[*start, 0.0])


def poses(rows):
    """Elements of SE(2) from rows (theta, x, y)."""
    c, s, made = np.cos(rows[:, 0]), np.sin(rows[:, 0]), np.tile(np.eye(3), (len(rows), 1, 1))
    made[:, 0, 0], made[:, 0, 1], made[:, 1, 0], made[:, 1, 1] = c, -s, s, c
    made[:, :2, 2] = rows[:, 1:3]
    return made


TIMES = 0.1 * np.arange(1, 61)
EXACT = by_hand(TIMES)


def seen(noise, deviation=0.01, times=TIMES, exact=EXACT, **options):
    """Places of the sleigh with noise."""
    given = {"place": exact[:, 1:3] + deviation * noise}
    return Experiment(times, given, launched(), deviation, observables={"place": place}, **options)


def far(found, true):
    """How far estimates are from the truth, in standard errors."""
    return np.array([(found[name] - value) / found.errors[found.names.index(name)] for name, value in true.items()])
