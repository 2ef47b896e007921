"""Expansions in h against the corrected formulas of garcia-naranjo-jimenez (ERRATA), exactly, for random inertia
tensors.
"""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from registry import case

import dalembert as da
from dalembert.analysis.series import expand, flow_series, local_order, map_series, truncation_error
from dalembert.errors import InvalidInput
from dalembert.integrators import Prediction
from dalembert.integrators.euler_poincare_suslov import Carry

LAGRANGIANS = ("moser-veselov", "retraction")
MV, CAYLEY = (da.EulerPoincareSuslov(name) for name in LAGRANGIANS)


def random_tensor(seed):
    """(A, B, p, q) = (I11, I22, I13, I23) and (M1, M2) = (A u, B v), all whole numbers: every coefficient is
    rational.
    """
    rng = np.random.default_rng(seed)
    A, B = (int(x) for x in rng.integers(4, 9, 2))
    p, q = (int(x) for x in rng.choice([-2, -1, 1, 2, 3], 2))
    u, v = (int(x) for x in rng.choice([-3, -2, 1, 2, 4], 2))
    system = da.models.suslov([[A, 0, p], [0, B, q], [p, q, 9.0]])
    return [Fraction(x) for x in (A, B, p, q, A * u, B * v)], system, system.state(xi=[u, v, 0.0])


CASES = [random_tensor(seed) for seed in (1, 2)]
MORE = [pytest.param(*random_tensor(seed), marks=pytest.mark.heavy) for seed in range(3, 13)]


def momentum(state):
    return state.momentum[:2]


# -- the formulas, as corrected ---------------------------------------------------------------------------------------
def low(A, B, p, q, x, y):
    """(17): what the flow and both maps share."""
    k = p * B * x + A * q * y
    return [
        (x, y),
        (-y * k / (B**2 * A), x * k / (B * A**2)),
        (
            -k * (p * B * x**2 + 2 * A * q * x * y - A * p * y**2) / (2 * A**3 * B**3),
            k * (q * B * x**2 - 2 * B * p * x * y - A * q * y**2) / (2 * A**3 * B**3),
        ),
    ]


def flow_third(A, B, p, q, x, y):
    """(18) with 1/6 for 1/12, and B^2 in the last term of nu_3."""
    k = p * B * x + A * q * y
    first = -9 * A * p * B * q * x * y**2 - 2 * A**2 * q**2 * y**3 + 3 * p * B**2 * q * x**3
    first += B * (4 * A * q**2 - 5 * p**2 * B) * x**2 * y + A * p**2 * B * y**3
    second = -9 * A * p * B * q * x**2 * y - 2 * B**2 * p**2 * x**3 + 3 * p * A**2 * q * y**3
    second += A * (4 * B * p**2 - 5 * q**2 * A) * x * y**2 + B * q**2 * A * x**3
    return -k * first / (6 * A**4 * B**5), k * second / (6 * A**5 * B**4)


def moser_veselov_third(A, B, p, q, x, y):
    """(39)."""
    k = p * B * x + A * q * y
    first = 2 * p * B**2 * q * x**3 - 8 * A * p * B * q * x * y**2
    first += (A * B**3 + 3 * A * q**2 * B - 4 * p**2 * B**2) * x**2 * y
    first += (A**3 * B - 2 * A**2 * q**2 + A * B * p**2) * y**3
    second = 2 * p * A**2 * q * y**3 - 8 * A * p * B * q * x**2 * y
    second += (A**3 * B + 3 * A * B * p**2 - 4 * q**2 * A**2) * x * y**2
    second += (A * B**3 - 2 * B**2 * p**2 + B * A * q**2) * x**3
    return -k * first / (4 * A**4 * B**5), k * second / (4 * A**5 * B**4)


def cayley_third(A, B, p, q, x, y):
    """(46) as corrected."""
    first = 2 * p**2 * B**3 * q * x**4 + A * B * q * (3 * A * q**2 - 2 * A**2 * B - 12 * p**2 * B) * x**2 * y**2
    first -= p * B**2 * (A**2 * B + A * B**2 - 5 * A * q**2 + 4 * p**2 * B) * x**3 * y
    first += A * p * B * (p**2 * B - A**2 * B - A * B**2 - 10 * A * q**2) * x * y**3
    first -= A * q * (2 * A**3 * B + 2 * A**2 * q**2 - A * p**2 * B) * y**4
    second = 2 * q**2 * A**3 * p * y**4 + B * A * p * (3 * B * p**2 - 2 * B**2 * A - 12 * q**2 * A) * y**2 * x**2
    second -= A**2 * q * (A**2 * B + A * B**2 + 4 * A * q**2 - 5 * p**2 * B) * y**3 * x
    second += B * q * A * (q**2 * A - B**2 * A - B * A**2 - 10 * B * p**2) * y * x**3
    second -= B * p * (2 * B**3 * A + 2 * B**2 * p**2 - B * q**2 * A) * x**4
    return -first / (4 * A**4 * B**5), second / (4 * A**5 * B**4)


def inverse_legendre(name, A, B, p, q, x, y):
    """(35), (36) and (44), the latter with the F2, G2 of ERRATA."""
    k = p * B * x + A * q * y
    if name == "moser-veselov":
        F2 = B**2 * (A * B - p**2) * x**3 + A * (A**2 * B - 2 * A * q**2 + p**2 * B) * x * y**2
        G2 = A**2 * (A * B - q**2) * y**3 + B * (A * B**2 - 2 * B * p**2 + A * q**2) * x**2 * y
    else:
        F2 = -(B**2) * (A * B + p**2) * x**3 - A * (A * B**2 + 2 * A * q**2 - p**2 * B) * x * y**2
        G2 = -(A**2) * (A * B + q**2) * y**3 - B * (A**2 * B + 2 * p**2 * B - A * q**2) * x**2 * y
    F2 += -3 * A * B * p * q * x**2 * y + A**2 * p * q * y**3
    G2 += -3 * A * B * p * q * x * y**2 + B**2 * p * q * x**3
    first = (-k * y / (2 * A**2 * B**2), k * x / (2 * A**2 * B**2))
    return [(x / A, y / B), first, (F2 / (4 * A**4 * B**3), G2 / (4 * A**3 * B**4))]


def velocity_map(name, A, B, p, q, u, v):
    """(32), (33) and (43)."""
    k = p * u + q * v
    A3, B3 = (
        3 * A**2 * p * q * u**3 - 9 * A * p * B * q * u * v**2,
        3 * p * B**2 * q * v**3 - 9 * A * p * B * q * u**2 * v,
    )
    if name == "moser-veselov":
        A3 += A * (2 * A * B**2 - 2 * A**2 * B + 4 * A * q**2 - 5 * p**2 * B) * u**2 * v
        A3 -= B * (2 * A * q**2 - p**2 * B) * v**3
        B3 += B * (2 * B * A**2 - 2 * B**2 * A + 4 * B * p**2 - 5 * q**2 * A) * v**2 * u
        B3 -= A * (2 * B * p**2 - q**2 * A) * u**3
    else:
        A3 += A * (4 * A * q**2 - A * B**2 - 5 * p**2 * B) * u**2 * v + B * (B * p**2 - A * B**2 - 2 * A * q**2) * v**3
        B3 += B * (4 * B * p**2 - B * A**2 - 5 * q**2 * A) * v**2 * u + A * (A * q**2 - B * A**2 - 2 * B * p**2) * u**3
    return [
        (u, v),
        (-v * k / A, u * k / B),
        (
            -k * (A * p * u**2 + 2 * q * A * u * v - B * p * v**2) / (2 * A**2 * B),
            -k * (B * q * v**2 + 2 * p * B * u * v - A * q * u**2) / (2 * A * B**2),
        ),
        (-k * A3 / (4 * A**3 * B**2), k * B3 / (4 * A**2 * B**3)),
    ]


def legendre(name, A, B, p, q, u, v):
    """(37) and (41)."""
    k = p * u + q * v
    square = -(u * u + v * v) / 4 if name == "moser-veselov" else (A * u * u + B * v * v) / 4
    second = (A * u, B * v) if name == "moser-veselov" else (u, v)
    third = -(u * u + v * v) / 8 * k if name == "moser-veselov" else 0
    rows: list = [(A * u, B * v), (k * v / 2, -k * u / 2), (second[0] * square, second[1] * square)]
    return [*rows, (v * third, -u * third)]


def equal(found, expected):
    assert found.tolist() == [list(row) for row in expected]


# -- exact agreement --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("numbers, system, state", CASES + MORE)
def test_the_flow(numbers, system, state):
    equal(flow_series(system, state, 3, observable=momentum, exact=True), [*low(*numbers), flow_third(*numbers)])


@pytest.mark.parametrize("numbers, system, state", CASES[:1] + MORE)
@pytest.mark.parametrize("method, third", [(MV, moser_veselov_third), (CAYLEY, cayley_third)], ids=LAGRANGIANS)
def test_the_momentum_maps(method, third, numbers, system, state):
    equal(map_series(system, method, state, 3, observable=momentum, exact=True), [*low(*numbers), third(*numbers)])


@pytest.mark.parametrize("numbers, system, state", [CASES[1], *MORE])
@pytest.mark.parametrize("name", [LAGRANGIANS[1], pytest.param(LAGRANGIANS[0], marks=pytest.mark.heavy)])
def test_the_inverse_legendre_map(name, numbers, system, state):
    method = da.EulerPoincareSuslov(name)
    found = map_series(system, method, state, 2, steps=0, observable=lambda s: s.increment[:2], exact=True)
    equal(found, inverse_legendre(name, *numbers))


@pytest.mark.parametrize("numbers, system, state", CASES[1:] + MORE)
@pytest.mark.parametrize("name", LAGRANGIANS)
def test_the_velocity_map_and_the_legendre_map(name, numbers, system, state):
    A, B, p, q, u, v = numbers
    method, uv = da.EulerPoincareSuslov(name), jnp.array([float(u), float(v)])

    def velocities(h):
        impulse = method.impulse(system, system.subspace @ (h * uv), h)
        carry = Carry(state.t, state.g, impulse, Prediction.at(h * uv))
        return method.step(system, carry, h)[0].prediction.x / h

    equal(expand(velocities, 3, exact=True), velocity_map(name, A, B, p, q, u, v))
    momenta = expand(lambda h: method.legendre(system, system.subspace @ uv, h)[:2], 3, exact=True)
    equal(momenta, legendre(name, A, B, p, q, u, v))


def test_the_printed_formulas_are_not_the_series():
    """ERRATA: (18) with 1/12 is off by a factor 2, and (44) prints the coefficients of the momentum map."""
    numbers, system, state = CASES[0]
    found = flow_series(system, state, 3, observable=momentum, exact=True)[3]
    assert found[0] == flow_third(*numbers)[0] != flow_third(*numbers)[0] / 2
    assert inverse_legendre("retraction", *numbers)[2][0] != low(*numbers)[2][0]


def test_moser_veselov_runs_ahead_and_cayley_behind():
    """Theorems 5.1 and 6.1, and Remark 8.1 reversed: the local errors have opposite components along the flow (a rule:
    95 % of points).
    """
    numbers, system, state = CASES[0]
    rate, third = np.array(low(*numbers)[1], float), np.array(flow_third(*numbers), float)
    errors = [np.array(map_third(*numbers), float) - third for map_third in (moser_veselov_third, cayley_third)]
    assert errors[0] @ rate > 0 > errors[1] @ rate
    first = truncation_error(system, MV, state, 3, observable=momentum)
    np.testing.assert_allclose(first, [[0, 0]] * 3 + [errors[0]], atol=1e-12)


# -- any method -------------------------------------------------------------------------------------------------------
def test_the_local_error_on_r3_is_the_reference():
    """REFERENCE.md: velocity form, node 1/2, coefficients of h^3 of (x, z, vx)."""
    system = da.models.nonholonomic_particle("free")
    state = system.state([0.3, 0.5, -0.2], [1.1, 0.7, 0.55])
    method = da.LagrangeDAlembert(node=0.5, nodes="velocity")
    g, xi = truncation_error(system, method, state, 3)
    u, w, y = 1.1, 0.7, 0.5
    r = 1 + y**2
    expected = [u * w**2 * (2 * y**2 - 1) / (12 * r**2), -u * w**2 * y / (4 * r**2), -u * w**3 * y / (4 * r**3)]
    np.testing.assert_allclose([g[3][0], g[3][2], xi[3][0]], expected, atol=1e-13)
    assert max(np.abs(g[:3]).max(), np.abs(xi[:3]).max()) < 1e-13


def test_an_order_by_expansion():
    system, state = case("knife_edge")
    assert local_order(system, da.RungeKutta(), state) == 4


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["suslov", "heavy_suslov", "sleigh", "knife_edge", "disk"])
@pytest.mark.parametrize("retraction", [da.Cayley(), da.Exponential()], ids=["cayley", "exponential"])
@pytest.mark.parametrize("node", [0.0, 0.3, 0.5, 1.0])
def test_orders_of_the_retraction_schemes(name, retraction, node):
    """DESIGN: order 2 at s = 1/2, and for every s on force-free systems (the disk's motion is exact with the
    exponential).
    """
    system, state = case(name)
    order = local_order(system, da.RetractionAdapted(retraction, node), state, max_order=3)
    assert order == 1 if system.potential is not None and node != 0.5 else order >= 2


def test_an_expansion_to_high_order_sums_to_the_flow():
    system, state = case("suslov")
    series = flow_series(system, state, 12, observable=lambda s: s.momentum)
    h = 0.05
    exact = da.models.exact_momentum(system.inertia, np.asarray(state.momentum)[:2], h)
    np.testing.assert_allclose(h ** np.arange(13) @ series, exact, rtol=1e-13)


def test_what_has_no_expansion_is_refused():
    with pytest.raises(InvalidInput, match="pole or a branch point"):
        expand(lambda h: 1.0 / h, 2)
    with pytest.raises(InvalidInput, match="pole or a branch point"):
        expand(lambda h: jnp.sqrt(h), 2)
    with pytest.raises(InvalidInput, match="whole number"):
        expand(lambda h: h, -1)


@pytest.mark.parametrize(
    "function, expected",
    [
        (lambda h: jnp.sin(h) / h, [1, 0, -1 / 6, 0, 1 / 120]),
        (lambda h: jnp.sqrt(h * h + h**3) / h, [1, 0.5, -0.125, 0.0625, -0.0390625]),
        (lambda h: jnp.arctan2(1 + h, 1 - h), [np.pi / 4, 1, 0, -1 / 3, 0]),
        (lambda h: jnp.log(2 + h) + jnp.exp(h), [np.log(2) + 1, 1.5, 3 / 8, 1 / 6 + 1 / 24, 1 / 24 - 1 / 64]),
        (lambda h: jnp.tanh(h) ** 2 + jnp.abs(-h), [0, 1, 1, 0, -2 / 3]),
    ],
)
def test_elementary_functions(function, expected):
    np.testing.assert_allclose(expand(function, 4), expected, atol=1e-14)


ANALYTIC = {
    "tan": jnp.tan,
    "acos": lambda h: jnp.arccos(0.3 + h),
    "asinh": jnp.arcsinh,
    "acosh": lambda h: jnp.arccosh(1.5 + h),
    "atanh": jnp.arctanh,
    "exp2": jnp.exp2,
    "logistic": lambda h: 1 / (1 + jnp.exp(-h)),
    "cbrt": lambda h: jnp.cbrt(1 + h),
    "pow": lambda h: (2 + h) ** (0.3 + h),
    "a power of a negative number": lambda h: (h - 2.0) ** 3.0,
    "atan2": lambda h: jnp.arctan2(1 + h, h * h - 2),
}


@pytest.mark.parametrize("function", ANALYTIC.values(), ids=ANALYTIC)
def test_an_expansion_sums_to_the_function(function):
    terms = expand(function, 8)
    np.testing.assert_allclose(sum(terms[k] * 0.01**k for k in range(9)), function(0.01), rtol=1e-13)


def test_exact_values_stay_exact():
    found = expand(lambda h: jnp.exp(h) * jnp.cos(h) + jnp.log1p(h) - jnp.arctan(h), 5, exact=True)
    assert found.dtype == object  # Fractions
    assert found.tolist() == [1, 1, Fraction(-1, 2), Fraction(1, 3), Fraction(-5, 12), Fraction(-1, 30)]
