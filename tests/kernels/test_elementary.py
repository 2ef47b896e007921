"""The elementary functions against long arithmetic, in ulps, where they are hard: near zeros, cuts, ends of ranges."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dalembert.kernels import make_problem, run_problem

jax.config.update("jax_enable_x64", True)
RANDOM = np.random.default_rng(0)


def both_signs(x):
    return np.concatenate([-x, x])


def spread(low, high, n=300):
    """Points at all scales between two positive numbers."""
    return np.exp(RANDOM.uniform(np.log(low), np.log(high), n))


QUARTERS = np.concatenate([np.arange(1, 60), np.arange(1, 60) / 2, RANDOM.integers(1, 2**40, 100)])
TURNS = np.concatenate([QUARTERS * np.pi / 2, np.nextafter(QUARTERS * np.pi / 2, 0)])
ANGLES = both_signs(np.concatenate([spread(1e-300, 1.0), spread(0.1, 1e3), spread(1e3, 1e14), TURNS]))
POSITIVE = np.concatenate([spread(1e-320, 1e308), spread(0.5, 2.0), 1 + spread(1e-15, 0.5), 1 - spread(1e-15, 0.5)])
UNIT = both_signs(np.concatenate([spread(1e-300, 1.0), 1 - spread(1e-15, 0.5)]))
MODERATE = both_signs(np.concatenate([spread(1e-300, 1.0), spread(1e-3, 700.0)]))

CASES = {  # name: function, exact function, points, ulps allowed
    "sin": (jnp.sin, mpmath.sin, ANGLES, 1.0),
    "cos": (jnp.cos, mpmath.cos, ANGLES, 1.0),
    "tan": (jnp.tan, mpmath.tan, ANGLES, 2.0),
    "exp": (jnp.exp, mpmath.exp, MODERATE, 1.0),
    "exp2": (jnp.exp2, lambda x: mpmath.mpf(2) ** x, MODERATE, 1.5),
    "expm1": (jnp.expm1, mpmath.expm1, MODERATE, 1.5),
    "log": (jnp.log, mpmath.log, POSITIVE, 1.0),
    "log1p": (jnp.log1p, mpmath.log1p, np.concatenate([UNIT, POSITIVE]), 1.0),
    "atan": (jnp.arctan, mpmath.atan, both_signs(POSITIVE), 1.5),
    "asin": (jnp.arcsin, mpmath.asin, UNIT, 2.0),
    "acos": (jnp.arccos, mpmath.acos, UNIT, 2.0),
    "sinh": (jnp.sinh, mpmath.sinh, MODERATE, 2.0),
    "cosh": (jnp.cosh, mpmath.cosh, MODERATE, 1.5),
    "tanh": (jnp.tanh, mpmath.tanh, MODERATE, 2.0),
    "asinh": (jnp.arcsinh, mpmath.asinh, both_signs(POSITIVE), 2.0),
    "acosh": (jnp.arccosh, mpmath.acosh, 1 + spread(1e-10, 1e300), 2.0),
    "atanh": (jnp.arctanh, mpmath.atanh, UNIT, 2.0),
    "cbrt": (jnp.cbrt, mpmath.cbrt, POSITIVE, 1.0),
    "rsqrt": (jax.lax.rsqrt, lambda x: 1 / mpmath.sqrt(x), POSITIVE, 1.5),
    "logistic": (jax.nn.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), MODERATE, 2.0),
}


def evaluate(function, *arguments):
    """The function of every point through the native backend, a lane a point."""
    carry = {"x": arguments, "y": np.zeros(len(arguments[0]))}
    lanes = len(arguments[0])
    problem = make_problem(
        lambda c, carry, u: carry | {"y": function(*carry["x"])}, lambda c, carry: carry["y"], None, carry, lanes=lanes
    )
    return run_problem(problem, saves=1, backend="llvm").records[:, 0]


def ulps(found, exact):
    """Errors in units of the last place of the exact value, subnormal values apart."""
    with mpmath.workprec(200):
        errors = [
            abs((mpmath.mpf(f) - e) / np.spacing(abs(float(e))))
            for f, e in zip(found, exact, strict=True)
            if 1e-307 < abs(float(e)) < 1e308
        ]
    return float(max(errors))


@pytest.mark.parametrize("name", CASES)
def test_accuracy(name):
    function, exact, points, allowed = CASES[name]
    with mpmath.workprec(1200 if name in ("sin", "cos", "tan") else 400):
        reference = [exact(mpmath.mpf(float(x))) for x in points]
        reference = [value.real if isinstance(value, mpmath.mpc) else value for value in reference]
    assert ulps(evaluate(function, points), reference) < allowed


def test_atan2_in_all_quadrants():
    y, x = both_signs(spread(1e-10, 1e10, 600)), RANDOM.permutation(both_signs(spread(1e-10, 1e10, 600)))
    reference = [mpmath.atan2(mpmath.mpf(float(a)), mpmath.mpf(float(b))) for a, b in zip(y, x, strict=True)]
    assert ulps(evaluate(jnp.arctan2, y, x), reference) < 2.0


def test_power():
    x, y = spread(1e-3, 1e3, 800), both_signs(spread(1e-3, 90.0, 400))
    with mpmath.workprec(300):
        reference = [mpmath.mpf(float(a)) ** mpmath.mpf(float(b)) for a, b in zip(x, y, strict=True)]
    assert ulps(evaluate(jnp.power, x, y), reference) < 2.0


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e308, -1e308, 5e-324, 1000.0, -1000.0, 0.5, -2.0])


def in_range(name, points):
    return points if name not in ("sin", "cos", "tan") else points[~(np.abs(points) > 1e15)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"rsqrt", "logistic"}))
def test_special_values_are_those_of_libm(name):
    function, points = CASES[name][0], in_range(name, SPECIAL)
    libm = getattr(np, function.__name__)
    np.testing.assert_allclose(evaluate(function, points), libm(points), rtol=1e-15, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "function", [jnp.power, jnp.arctan2, jnp.fmod, jnp.maximum, jnp.minimum, jnp.copysign], ids=lambda f: f.__name__
)
def test_special_pairs_are_those_of_libm(function):
    x, y = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    if function is jnp.fmod:  # good for quotients below 2^52
        near = (np.abs(x) < 1e15 * np.abs(y)) & np.isfinite(x)
        x, y = x[near], y[near]
    np.testing.assert_allclose(evaluate(function, x, y), getattr(np, function.__name__)(x, y), rtol=1e-15, atol=0)


def test_angles_beyond_the_range_are_nan_not_noise():
    assert np.isnan(evaluate(jnp.sin, np.array([1e16, -1e300, np.inf]))).all()
