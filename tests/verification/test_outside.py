"""The models against codes that nobody here wrote: SymPy's Kane equations, SciPy's integrator, printed equations.

`kane` has the mechanisms as SymPy's users build them, `newton` the Newton-Euler equations of the rattleback. What is
measured here stands on docs/checked.md, and no difference may become ten times what is written there.
"""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import kane
import numpy as np
import pytest
import sympy as sm
from kane import CASES
from newton import PAIRS, Roller
from registry import more, sampled
from scipy.optimize import brentq
from sympy.physics.mechanics import (
    LagrangesMethod,
    Lagrangian,
    Point,
    ReferenceFrame,
    RigidBody,
    dynamicsymbols,
    inertia,
)

import dalembert as da
from dalembert.kernels import evaluate

models = da.models
PAGE = Path(__file__).parents[2] / "docs" / "checked.md"
REFERENCE = da.integrators.Reference()


def printed(name, column=-1):
    """The figure of the page in the row of `name`."""
    rows = [line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    (row,) = [row for row in rows if row[0].strip().strip("`") == name]
    return float(re.search(r"\d(\.\d)?e-\d+", row[column]).group())


def check(name, found, column=-1):
    """At most ten times the difference that the page has: machines round differently."""
    print(f"{name}: {found:.1e}")
    assert found < 10 * printed(name, column), f"{name}: {found:.2e}; the page has {printed(name, column):.1e}"


def apart(found, expected):
    """The largest difference, relative to the largest component."""
    expected = np.asarray(expected)
    return np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()


# -- Kane's equations by SymPy ----------------------------------------------------------------------------------------
SLOW = ("skate-on-ellipsoid", "differential-drive", "ackermann-car", "tractor", "two trailers", "ball-robot", "coin")
SLOW += ("tippe-top",)  # each takes seconds to derive or to build
FAST = [name for name in CASES if name not in SLOW]


@pytest.mark.parametrize("name, draws", [*((name, 20) for name in FAST[::2]), *(more(name, 500) for name in CASES)])
def test_accelerations_are_those_of_kanes_equations(name, draws):
    """Each draw has its own parameters, inputs and state; the velocities that SymPy finds keep our constraint."""
    case, rng, worst, size = CASES[name], np.random.default_rng(18), 0.0, 0.0
    equations = case.equations()
    for _ in range(draws):
        system, inputs, q, u, constants = case.start(rng)
        g, xi = equations.state(q, u, constants)
        assert np.abs(system.residual(0.0, g, xi)).max() < 1e-12
        expected = equations.rates(q, u, constants)[2]
        worst = max(worst, apart(system.acceleration(0.0, g, xi, inputs)[0], expected))
        size = max(size, np.abs(expected).max())
    assert worst < 1e-10 and size > 0.5
    check(name, worst, 2)


@pytest.mark.parametrize("name", [name if name in ("rolling-disk", "unicycle") else more(name) for name in CASES])
def test_motions_of_a_second_are_those_of_kanes_equations(name):
    """Five draws; Kane's equations by SciPy's DOP853, ours by Dormand and Prince's method natively."""
    case, rng, worst = CASES[name], np.random.default_rng(19), 0.0
    equations = case.equations()
    for _ in range(5):
        system, inputs, q, u, constants = case.start(rng)
        start = system.state(*equations.state(q, u, constants))
        controls = None if inputs is None else np.tile(inputs, (10, 1))
        run = da.simulate(system, REFERENCE, start, step=0.1, steps=10, controls=controls).check()
        g, xi = equations.state(*equations.flow(q, u, constants, 1.0), constants)
        body, expected = jax.tree.leaves(run.g)[0], jax.tree.leaves(g)[0]  # SymPy's disc does not say where it is
        assert np.abs(body[-1] - body[0]).max() > 0.01 and np.abs(run.constraint_residual()).max() < 1e-12
        worst = max(worst, apart(body[-1], expected), apart(run.xi[-1], xi))
    check(name, worst, 3)


def test_a_shaft_along_the_car_is_another_steering():
    """Our front wheels turn with the car; a shaft that lies along it does not, and SymPy sees the difference."""
    system, inputs, q, u, constants = CASES["car"].start(np.random.default_rng(18))
    shaft = kane.car(shaft=True)
    found = system.acceleration(0.0, *shaft.state(q, u, constants), inputs)[0]
    assert apart(found, shaft.rates(q, u, constants)[2]) > 1e-2


def test_the_push_on_the_blade_is_that_of_an_auxiliary_speed():
    rng, worst = np.random.default_rng(20), 0.0
    for _ in range(20):
        system, inputs, q, u, constants = CASES["unicycle"].start(rng)
        push = system.multipliers(0.0, *kane.sleigh().state(q, u, constants), inputs)
        rates = kane.sleigh().rates(q, u, constants)[1]
        worst = max(worst, apart(push, kane.push_on_the_blade()(q, u[:2], rates[:2], constants)))
    check("push on the blade", worst)


# -- the rolling disc, three times ------------------------------------------------------------------------------------
def uniform_disc(rng):
    """A uniform disc with a random state: (system, q, u, constants)."""
    m, r, g = rng.uniform(0.3, 2.0, 3)
    q, u = 1.2 * rng.uniform(-1, 1, 3), rng.normal(size=3)
    return models.rolling_disk(m, r, gravity=5 * g), q, u, [m, r, m * r**2 / 2, m * r**2 / 4, 5 * g]


def test_the_disc_has_the_printed_equations():
    """u1' = (6 u2 u3 r - u3^2 r tan q2 + 4 g sin q2)/(5 r), u2' = -2 u1 u3/3, u3' = u1 (-2 u2 + u3 tan q2)."""
    rng, worst = np.random.default_rng(21), 0.0
    for _ in range(20):
        system, q, u, constants = uniform_disc(rng)
        (u1, u2, u3), lean, (_, r, _, _, g) = u, np.tan(q[1]), constants
        fall = (6 * u2 * u3 * r - u3**2 * r * lean + 4 * g * np.sin(q[1])) / (5 * r)
        expected = np.array([fall, -2 * u1 * u3 / 3, u1 * (-2 * u2 + u3 * lean)])
        place, xi = kane.disc().state(q, u, constants)
        rate = np.asarray(system.acceleration(0.0, place, xi)[0])[:3]
        spin = u2 - u3 * lean  # q3': the speeds u are components in the frame that leans and does not spin
        unspun = np.array([[np.cos(q[2]), 0, np.sin(q[2])], [0, 1, 0], [-np.sin(q[2]), 0, np.cos(q[2])]])
        found = unspun @ rate + spin * np.array([u3, 0, -u1])
        worst = max(worst, apart(found, expected))
    check("printed equations", worst)


def test_sympys_disc_by_lagranges_method_is_another_disc():
    """SymPy's page puts the rolling constraint into L before it differentiates: its equations are not those of a disc.

    SymPy's own Kane equations contradict it, and so do ours (SymPy's issue 27631, which also finds the sign of the
    page's potential wrong; here the sign is right).
    """
    m, r, g = symbols = sm.symbols("m r g")
    q = list(dynamicsymbols("q1:4"))
    N = ReferenceFrame("N")
    Y = N.orientnew("Y", "Axis", [q[0], N.z])
    L = Y.orientnew("L", "Axis", [q[1], Y.x])
    R = L.orientnew("R", "Axis", [q[2], L.y])
    C = Point("C")
    C.set_vel(N, 0)
    centre = C.locatenew("centre", r * L.z)
    centre.v2pt_theory(C, N, R)
    body = RigidBody("disc", centre, R, m, (inertia(L, m * r**2 / 4, m * r**2 / 2, m * r**2 / 4), centre))
    body.potential_energy = m * g * r * sm.cos(q[1])
    method = LagrangesMethod(Lagrangian(N, body), q)
    method.form_lagranges_equations()
    theirs = sm.lambdify((q, [x.diff() for x in q], symbols), [method.mass_matrix, method.forcing], cse=True)
    _, place, u, constants = uniform_disc(np.random.default_rng(22))
    qdot, udot, _ = kane.disc().rates(place, u, constants)
    mass, force = theirs(place, qdot, np.array(constants)[[0, 1, -1]])
    turn2, fall2, spin2 = np.linalg.solve(mass, force[:, 0])
    (turn, fall, _), s, c = qdot, np.sin(place[1]), np.cos(place[1])
    by_lagrange = [fall2, spin2 + turn2 * s + turn * fall * c, turn2 * c - turn * fall * s]
    found = apart(by_lagrange, udot)
    print(f"by Lagrange: {found:.2f}")
    assert found > 1


def upright(system, spin):
    """d(lean', u1', u3')/d(lean, u1, u3) of a disc that rolls upright and straight; `spin` is about its axle."""

    def rates(z):
        lean, u1, u3 = z
        cosine, sine = jnp.cos(lean), jnp.sin(lean)
        R = jnp.stack([jnp.array([1.0, 0.0, 0.0]), jnp.stack([0.0, cosine, -sine]), jnp.stack([0.0, sine, cosine])])
        g, w = (R, jnp.zeros(2)), jnp.stack([u1, spin, u3])
        xi = jnp.concatenate([w, -system.A(0.0, g)[:, :3] @ w])
        turn, rolled = system.acceleration(0.0, g, xi)[0], spin - u3 * sine / cosine
        return jnp.stack([u1, turn[0] + rolled * u3, turn[2] - rolled * u1])

    return jax.jacfwd(rates)(jnp.zeros(3))


def test_a_disc_rolls_upright_above_the_known_speed():
    """spin^2 = m g r It/(Ia (Ia + m r^2)): the three eigenvalues are 0 and +-l, and l^2 changes its sign there."""
    rng, worst = np.random.default_rng(23), 0.0
    for _ in range(5):
        m, r, axial, across, g = rng.uniform(0.3, 2.0, 5)
        system = models.rolling_disk(m, r, axial, across, g)
        square = lambda spin: np.trace(np.linalg.matrix_power(evaluate(upright, system, np.float64(spin)), 2))
        expected = np.sqrt(m * g * r * across / (axial * (axial + m * r**2)))
        assert square(0.9 * expected) > 0 > square(1.1 * expected)
        worst = max(worst, abs(brentq(square, 0.5 * expected, 2 * expected, xtol=1e-14) / expected - 1))
    check("upright disc", worst)


# -- other closed forms -----------------------------------------------------------------------------------------------
def test_a_ball_runs_round_the_table_at_two_sevenths_of_its_rate():
    """A solid ball comes back after 7/2 turns of the table, on a circle of radius 7 |v|/(2 rate)."""
    rate = 1.4
    system = models.ball_on_table(1.3, radius=0.7, rotation=rate)
    g = system.group.element([np.eye(3), [0.5, 0.2]])
    start = system.state(g, system.project(g, np.array([0.3, 0.5, 0.2, 0.4, -0.1])))
    run = da.simulate(system, REFERENCE, start, step=3.5 * 2 * np.pi / rate / 64, steps=64).check()
    place, velocity = np.asarray(run.g[1]), np.asarray(run.xi[:, 3:])
    centre = place[0] + 3.5 / rate * np.array([-velocity[0, 1], velocity[0, 0]])
    distances = np.hypot(*(place - centre).T)
    check("ball on a table", max(apart(place[-1], place[0]), apart(distances, 3.5 / rate * np.hypot(*velocity[0]))))


def test_the_sleighs_total_turn():
    """pi sqrt((J + m a^2)/(m a^2)) from the past to the future, half of it after it turns fastest."""
    rng, worst = np.random.default_rng(24), 0.0
    for _ in range(5):
        m, J, a = rng.uniform(0.3, 2.0, 3)
        system = models.chaplygin_sleigh(m, J, a, 0.0)
        run = da.simulate(system, REFERENCE, system.state(xi=[2.0, 0.0, 0.0]), step=0.5, steps=400).check()
        half = np.pi * np.sqrt((J + m * a**2) / (m * a**2)) / 2
        worst = max(worst, abs(run.angles[-1, 0] / half - 1))
    check("total turn", worst)


# -- the rattleback by Newton and Euler -------------------------------------------------------------------------------
REVERSALS = {
    "pitched, -1 rad/s": ([0.0, 3.0, -1.0], 1.2),
    "-5 rad/s": ([0.5, 0.0, -5.0], 10.0),
    "+5 rad/s": ([0.5, 0.0, 5.0], 25.0),
}


@pytest.mark.parametrize("name, draws", [("rattleback", 20), more("rattleback", 500), more("chaplygin-ball", 500)])
def test_bodies_of_any_shape_accelerate_as_newton_and_euler_say(name, draws):
    """The same draws as for Kane's equations: they say on which side a difference lies."""
    case, rng, worst = CASES[name], np.random.default_rng(18), 0.0
    for _ in range(draws):
        system, _, q, u, constants = case.start(rng)
        g, xi = case.equations().state(q, u, constants)
        m, gravity, size, *axes = constants[:6]
        axes, depth = (axes, size) if name == "rattleback" else ((size,) * 3, 0.0)
        independent = Roller(axes, (0.0, 0.0, depth), m, system.parameters["inertia"], (0.0, 0.0, -gravity))
        worst = max(worst, apart(system.acceleration(0.0, g, xi)[0], independent(g, xi, None)))
    check(f"any {name}", worst)


@pytest.mark.parametrize("name", sampled(list(REVERSALS)))
def test_the_rattleback_reverses_as_newton_and_euler_say(name):
    """In both directions: without friction each sense of spin goes over into the other one (Garcia, Hubbard 1988)."""
    w, end = REVERSALS[name]
    system, independent = PAIRS["rattleback"]
    g = system.group.identity()
    xi = np.concatenate([w, -np.asarray(system.A(0.0, g))[:, :3] @ w])
    steps = round(50 * end)
    run = da.simulate(system, REFERENCE, system.state(g, xi), step=end / steps, steps=steps).check()
    R, turning = independent.flow(np.eye(3), np.array(w), np.asarray(run.t))
    assert turning[0, 2] * turning[-1, 2] < -0.5
    check(name, max(np.abs(run.g[0] - R).max(), apart(run.xi[:, :3], turning)))
