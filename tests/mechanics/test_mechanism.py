"""Mechanisms: what they say when they are drawn wrongly, and what their systems are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import draw_bicycle, draw_robot

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.mechanics import MechanismSystem
from dalembert.mechanics.mechanism import Energy


@pytest.fixture(scope="module")
def bicycle():
    return draw_bicycle().system()


@pytest.fixture(scope="module")
def robot():
    return draw_robot().system()


def one_body(**options):
    made = da.Mechanism("thing", **options)
    made.body("body", mass=1.0, centre=(0, 0, 0.1), ball=0.1)
    return made


def four_bars(length=2.0):
    bars = da.Mechanism("four bars")
    bars.body("crank", mass=1, centre=(0, 0, 0.5), box=(0.05, 0.05, 1))
    bars.body("coupler", mass=1, centre=(1, 0, 1), box=(2, 0.05, 0.05))
    bars.body("rocker", mass=1, centre=(2, 0, 0.5), box=(0.05, 0.05, 1))
    bars.hinge("a", "ground", "crank", at=(0, 0, 0), axis="y")
    bars.hinge("b", "crank", "coupler", at=(0, 0, 1), axis="y")
    bars.hinge("c", "coupler", "rocker", at=(2, 0, 1), axis="y")
    bars.hinge("d", "ground", "rocker", at=(2, 0, 0), axis="y")
    return bars


def test_a_robot_is_a_system_on_the_smallest_group_with_names(robot):
    assert isinstance(robot, da.System) and str(robot.group) == "SE(2) x R^4"
    assert repr(robot) == "<MechanismSystem robot on SE(2) x R^4: 5 bodies, 5 constraints, 2 inputs>"
    assert robot.coordinate_names == ("x", "y", "yaw", "left", "right", "castor swivel", "castor wheel")
    assert [each.name for each in robot.inputs] == ["left torque", "right torque"]
    assert robot.constraints == 5 and robot.parts.redundant == ("right side force",)
    assert "left side force (shared)" in robot.load_names
    assert [axis.name for axis in robot.group.axes()][3:] == [
        f"{name} rate" for name in ("left", "right", "castor swivel", "castor wheel")
    ]


def test_states_are_found_from_names(robot, bicycle):
    state = robot.state(speed=1.0, yaw_rate=0.5)
    rates = dict(zip(robot.rate_names, robot.observe(0.0, state.g, state.xi)[7:], strict=True))
    assert rates["left rate"] == pytest.approx((1.0 - 0.1) / 0.1) and rates["right rate"] == pytest.approx(11.0)
    assert rates["castor wheel rate"] == pytest.approx((1.0) / 0.05, rel=1e-12)
    leaned = bicycle.state(speed=5.0, lean=0.2, steer=0.3, lean_rate=0.1)
    found = bicycle.observe(0.0, leaned.g, leaned.xi)
    names = (*bicycle.coordinate_names, *bicycle.rate_names)
    told = dict(zip(names, np.asarray(found), strict=True))
    assert told["lean"] == pytest.approx(0.2, abs=1e-14) and told["steer"] == pytest.approx(0.3, abs=1e-14)
    assert told["speed"] == pytest.approx(5.0) and told["lean rate"] == pytest.approx(0.1)
    assert told["steer rate"] == pytest.approx(0.0, abs=1e-13)
    assert np.abs(bicycle.phi(0.0, leaned.g)).max() < 1e-13 and abs(told["pitch"]) > 1e-3


def test_names_that_cannot_be_are_refused(bicycle):
    with pytest.raises(InvalidInput, match=r"unknown coordinate or rate of bicycle 'sped'.*Did you mean 'speed'"):
        bicycle.state(sped=5.0)
    with pytest.raises(InvalidInput, match=r"yaw rate = 1 is not possible with .*speed = 5.*constraints make it -?0"):
        bicycle.state(speed=5.0, steer_rate=0.0, lean_rate=0.0, yaw_rate=1.0)
    with pytest.raises(InvalidInput, match=r"not both"):
        bicycle.state(bicycle.group.identity(), speed=5.0)
    with pytest.raises(InvalidInput, match=r"cannot be assembled with z = 0.2, pitch = 0"):
        bicycle.state(z=0.2, pitch=0.0)


def test_the_spinning_wheel_is_the_body_that_turns(bicycle):
    """A solid of revolution is not turned: energy, rows and heights are as if it were."""
    parts = bicycle.parts
    turned = dataclasses.replace(parts, joints=tuple(joint._replace(spins=False) for joint in parts.joints))
    p = jax.tree.map(lambda leaf: leaf, bicycle.parameters, is_leaf=lambda leaf: leaf is None)
    bodies, contacts = dict(p["bodies"]), dict(p["contacts"])
    for name, at in (("rear wheel", {"z": 0.3}), ("front wheel", {"x": 1.02, "z": 0.35})):
        across, along = bodies[name]["inertia"]["across"], bodies[name]["inertia"]["along"]
        inertia = {"xx": across, "yy": along, "zz": across}
        bodies[name] = {"mass": bodies[name]["mass"], "centre": at, "inertia": inertia}
        contacts[name] = contacts[name] | {"centre": at, "axis": {"y": None}}
    p = p | {"bodies": bodies, "contacts": contacts}
    rng = np.random.default_rng(1)
    for _ in range(3):
        g = bicycle.group.exp(jnp.asarray(0.3 * rng.normal(size=9)))
        xi = jnp.asarray(rng.normal(size=9))
        here, there = bicycle.L(0.0, g, xi), Energy(turned)(0.0, g, xi, p)
        assert float(here) == pytest.approx(float(there), rel=1e-12)
        rows = bicycle.constraint(0.0, g, bicycle.parameters)
        np.testing.assert_allclose(rows, type(bicycle.constraint)(turned)(0.0, g, p), atol=1e-12)
        heights = bicycle.holonomic(0.0, g, bicycle.parameters)
        np.testing.assert_allclose(heights, type(bicycle.holonomic)(turned)(0.0, g, p), atol=1e-12)


@pytest.mark.heavy
def test_motors_move_the_robot_and_the_balance_of_energy_holds(robot):
    run = da.simulate(
        robot, da.RungeKutta(), robot.state(), step=0.01, steps=100, controls=np.tile([0.4, 0.2], (100, 1))
    )
    assert run.status == "ok" and run["speed"][-1] > 0.5 and run["yaw rate"][-1] < 0
    assert run["left torque"][0] == 0.4
    assert np.abs(run.summary().energy_balance) < 1e-8 and run.summary().work > 0.1
    assert run["left side force (shared)"].shape == run["castor swivel"].shape == (101,)
    dataset = run.to_xarray()
    assert list(dataset["coordinate_name"].values) == list(robot.coordinate_names)
    assert list(dataset["constraint"].values) == list(robot.load_names)
    with pytest.raises(InvalidInput, match=r"unknown quantity 'sped'"):
        run["sped"]


def test_a_mechanism_is_saved_with_its_run(robot, tmp_path):
    run = da.simulate(robot, da.RungeKutta(), robot.state(speed=1.0, yaw_rate=0.3), step=0.05, steps=5)
    run.save(tmp_path / "run.nc")
    again = da.load(tmp_path / "run.nc")
    assert isinstance(again.system, MechanismSystem) and again.system.parts == robot.parts
    np.testing.assert_array_equal(again["castor swivel"], run["castor swivel"])
    longer = da.simulate(again.system, again.integrator, again, step=0.05, steps=5)
    whole = da.simulate(robot, da.RungeKutta(), robot.state(speed=1.0, yaw_rate=0.3), step=0.05, steps=10)
    np.testing.assert_array_equal(longer.xi[-1], whole.xi[-1])


def test_the_same_drawing_is_the_same_program():
    assert draw_robot().system().lagrangian == draw_robot().system().lagrangian
    assert hash(draw_robot().system().parts) == hash(draw_robot().system().parts)


@pytest.mark.heavy
def test_four_bars_close_and_move():
    bars = four_bars().system()
    assert str(bars.group) == "R^3" and bars.holonomic_constraints == 2
    run = da.simulate(bars, da.RungeKutta(), bars.state(a=0.3, a_rate=1.0), step=0.005, steps=100)
    assert np.abs(run.energy_error()).max() < 1e-7
    np.testing.assert_allclose(run["c"], run["a"], atol=1e-9)  # it is a parallelogram
    np.testing.assert_allclose(run["b"], -run["a"], atol=1e-9)


def test_springs_dampers_and_sliders():
    """m x'' = -k x - c x' on a slider, against the formula."""
    made = da.Mechanism("mass", gravity=0.0)
    made.body("block", mass=2.0, ball=0.1)
    made.slider("x", "ground", "block", axis="x", stiffness=8.0, damping=0.4)
    block = made.system()
    rate, _ = block.acceleration(0.0, np.array([0.3]), np.array([0.5]))
    assert float(rate[0]) == pytest.approx((-8.0 * 0.3 - 0.4 * 0.5) / 2.0)
    pulled = da.Mechanism("pulled", gravity=0.0)
    pulled.body("block", mass=2.0, ball=0.1)
    pulled.slider("x", "ground", "block", axis="x")
    pulled.spring("coil", "ground", (0, 1, 0), "block", (0, 0, 0), stiffness=5.0, length=0.4, damping=0.7)
    stretched = np.hypot(0.3, 1.0)
    along = 0.3 / stretched
    rate, _ = pulled.system().acceleration(0.0, np.array([0.3]), np.array([0.5]))
    assert float(rate[0]) == pytest.approx(-(5.0 * (stretched - 0.4) + 0.7 * 0.5 * along) * along / 2.0)


def test_thrusts_and_torques_act_where_they_should():
    made = da.Mechanism("hover", gravity=0.0)
    made.body("craft", mass=2.0, inertia=(0.1, 0.2, 0.3))
    made.planar("craft")
    made.thrust("jet", "craft", at=(-1, 0.5, 0), along="x")
    made.torque("wheel", "craft", axis="z")
    craft = made.system()
    rate, _ = craft.acceleration(0.0, craft.group.identity(), np.zeros(3), np.array([3.0, 0.7]))
    np.testing.assert_allclose(rate, [(0.7 - 0.5 * 3.0) / 0.3, 1.5, 0.0], atol=1e-14)


def test_a_torque_against_another_body_turns_both():
    made = da.Mechanism("pair", gravity=0.0)
    made.body("one", mass=1.0, inertia=(1.0, 1.0, 2.0))
    made.body("two", mass=1.0, inertia=(1.0, 1.0, 0.5))
    made.free("one")
    made.ball("neck", "one", "two", at=(0, 0, 0))
    made.torque("twist", "two", axis="z", against="one")
    pair = made.system()
    rate, _ = pair.acceleration(0.0, pair.group.identity(), np.zeros(9), np.array([1.0]))
    np.testing.assert_allclose(rate[2], -0.5, atol=1e-12)  # of the first body, by -1 N m
    np.testing.assert_allclose(rate[2] + rate[8], 2.0, atol=1e-12)


def test_a_cart_with_a_pole_against_its_formula():
    """(M + m) x'' + m l (cos q q'' - sin q q'^2) = F,  m l cos q x'' + (I + m l^2) q'' = m g l sin q."""
    made = da.Mechanism("cart and pole")
    made.body("cart", mass=1.1, inertia=0)
    made.slider("x", "ground", "cart", axis="x")
    made.body("pole", mass=0.2, centre=(0, 0, 0.5), inertia=(0.01, 0.01, 0))
    made.hinge("angle", "cart", "pole", axis="y", at=(0, 0, 0))
    made.motor("x", name="push")
    cart = made.system()
    M, m, l, I, q, rate, push = 1.1, 0.2, 0.5, 0.01, 0.3, 0.7, 1.5
    mass = [[M + m, m * l * np.cos(q)], [m * l * np.cos(q), I + m * l**2]]
    force = [push + m * l * np.sin(q) * rate**2, m * 9.81 * l * np.sin(q)]
    found, _ = cart.acceleration(0.0, np.array([0.2, q]), np.array([-0.4, rate]), np.array([push]))
    np.testing.assert_allclose(found, np.linalg.solve(mass, force), rtol=1e-12)
    upright = da.linearise(cart)
    assert upright.controllable and not upright.stable
    grows = np.sqrt((M + m) * m * 9.81 * l / ((M + m) * (I + m * l**2) - (m * l) ** 2))
    assert upright.eigenvalues[0] == pytest.approx(grows, rel=1e-12)


@pytest.mark.heavy
def test_a_slider_crank_against_its_only_freedom():
    """L(q, q') of the angle of the crank, with the rod at sin f = (r/l) sin q."""
    r, l, m1, m2, m3, I1, I2 = 0.1, 0.3, 1.0, 0.5, 0.4, 0.01, 0.005
    made = da.Mechanism("engine")
    made.body("crank", mass=m1, centre=(r / 2, 0, 0), inertia=(0, I1, I1))
    made.body("rod", mass=m2, centre=(r + l / 2, 0, 0), inertia=(0, I2, I2))
    made.body("piston", mass=m3, centre=(r + l, 0, 0), inertia=0)
    made.hinge("crank", "ground", "crank", axis="-y", at=(0, 0, 0))
    made.hinge("knee", "crank", "rod", axis="-y", at=(r, 0, 0))
    made.slider("piston", "ground", "piston", axis="x")
    made.hinge("pin", "piston", "rod", axis="-y", at=(r + l, 0, 0))
    made.motor("crank")
    engine = made.system()
    q, rate, torque = 0.7, 3.0, 0.8
    state = engine.state(crank=q, crank_rate=rate)
    along = r * np.cos(q) + np.sqrt(l**2 - (r * np.sin(q)) ** 2) - r - l
    assert float(engine.coordinates(state.g)["piston"]) == pytest.approx(along, rel=1e-12)

    def places(q):
        f = jnp.arcsin(r / l * jnp.sin(q))
        rod = jnp.stack([r * jnp.cos(q) + l / 2 * jnp.cos(f), r * jnp.sin(q) - l / 2 * jnp.sin(f)])
        return rod, f, r * jnp.cos(q) + l * jnp.cos(f)

    def lagrangian(q, v):
        (rod, _, _), (rod_v, f_v, piston_v) = jax.jvp(places, (q,), (v,))
        kinetic = (I1 + m1 * r**2 / 4) * v**2 + m2 * rod_v @ rod_v + I2 * f_v**2 + m3 * piston_v**2
        return kinetic / 2 - 9.81 * (m1 * r / 2 * jnp.sin(q) + m2 * rod[1])

    slope = jax.grad(lagrangian)(q, rate) + torque
    across = jax.grad(jax.grad(lagrangian, 1), 0)(q, rate) * rate
    expected = (slope - across) / jax.grad(jax.grad(lagrangian, 1), 1)(q, rate)
    found, loads = engine.acceleration(0.0, state.g, state.xi, np.array([torque]))
    assert float(found[0]) == pytest.approx(float(expected), rel=1e-11)
    assert engine.load_names[0] == "pin force x"  # on the piston, the first of the two: it alone moves it
    assert float(loads[0]) == pytest.approx(m3 * float(found[2]), rel=1e-11)


def test_mecanum_wheels_turn_as_the_textbook_says():
    """r w = vx -+ vy -+ (lx + ly) yaw', the upper signs front left and rear right and for yaw' on the left."""
    made = da.Mechanism("mecanum")
    made.body("base", mass=20, centre=(0, 0, 0.2), box=(0.6, 0.4, 0.2))
    made.planar("base")
    for end, x in (("front", 0.3), ("rear", -0.3)):
        for side, y in (("left", 0.2), ("right", -0.2)):
            angle = -np.pi / 4 if x * y > 0 else np.pi / 4
            made.wheel(f"{end} {side}", "base", at=(x, y, 0.1), mass=1, omni=angle, motor=True)
    platform = made.system()
    vx, vy, yaw, reach = 1.0, 0.5, 0.3, 0.5
    state = platform.state(x_rate=vx, y_rate=vy, yaw_rate=yaw)
    turned = [vx - vy - reach * yaw, vx + vy + reach * yaw, vx + vy - reach * yaw, vx - vy + reach * yaw]
    np.testing.assert_allclose(state.xi[3:], np.array(turned) / 0.1, rtol=1e-12)
    assert platform.constraints == 4 and not platform.parts.redundant


@pytest.mark.heavy
def test_a_segway_against_its_formula():
    """With the torque T of each wheel on the rider,

    (M + 2 m + 2 J/r^2) x'' + M l (cos q q'' - sin q q'^2) = 2 T/r,
    M l cos q x'' + (I + M l^2) q'' = M g l sin q - 2 T.
    """
    M, l, I, m, r, J = 10.0, 0.5, 0.4, 1.0, 0.1, 0.006
    made = da.Mechanism("segway")
    made.carrier("axle")
    made.body("rider", mass=M, centre=(0, 0, r + l), inertia=(0.4, I, 0.1))
    made.planar("axle")
    made.hinge("pitch", "axle", "rider", axis="y", at=(0, 0, r))
    for name, y in (("left", 0.25), ("right", -0.25)):
        made.wheel(name, "rider", at=(0, y, r), mass=m, inertia=(J / 2, J), motor=True)
    segway = made.system()
    q, rate, torque = 0.2, 0.6, 1.3
    state = segway.state(pitch=q, pitch_rate=rate, speed=0.9)
    mass = [[M + 2 * m + 2 * J / r**2, M * l * np.cos(q)], [M * l * np.cos(q), I + M * l**2]]
    force = [2 * torque / r + M * l * np.sin(q) * rate**2, M * 9.81 * l * np.sin(q) - 2 * torque]
    found, _ = segway.acceleration(0.0, state.g, state.xi, np.full(2, torque))
    np.testing.assert_allclose([found[1], found[3]], np.linalg.solve(mass, force), rtol=1e-12)


def test_a_ball_on_a_turning_table_against_its_formula():
    """a = 2/7 (W x v + W' x r), of a homogeneous ball on a table with the angular velocity W."""
    made = da.Mechanism("turntable")
    made.body("table", mass=10, centre=(0, 0, 0.5), cylinder=(1, 0.05))
    made.hinge("table", "ground", "table", axis="z")
    made.body("ball", mass=0.2, centre=(0.4, 0.1, 0.55), ball=0.05)
    made.free("ball", at=(0.4, 0.1, 0.55))
    made.roll_ball("ball", radius=0.05, on="table", plane=0.5)
    table = made.system()
    state = table.state(table_rate=2.0, x_rate=0.3, y_rate=-0.2, yaw_rate=1.0)
    rate, load = (np.asarray(part) for part in table.acceleration(0.0, state.g, state.xi))
    c, w, v = np.array([0.4, 0.1, 0.55]), np.asarray(state.xi[:3]), np.asarray(state.xi[3:6])
    found = rate[3:6] + np.cross(rate[:3], c) + np.cross(w, v + np.cross(w, c))
    up = np.array([0.0, 0.0, 1.0])
    expected = 2 / 7 * (2.0 * np.cross(up, [0.3, -0.2, 0.0]) + rate[6] * np.cross(up, c))
    np.testing.assert_allclose(found, expected, atol=1e-13)
    assert load[2] == pytest.approx(0.2 * 9.81, rel=1e-12)


@pytest.mark.heavy
def test_constraints_that_depend_on_each_other_in_one_configuration_only_are_named():
    """Both rear wheels of a chassis on springs hold it sideways: when it leans not by the same row."""

    def car(omni):
        made = da.Mechanism("car")
        made.body("chassis", mass=1200, centre=(1.2, 0, 0.6), inertia=(400, 1800, 2000))
        made.free("chassis")
        for side, y in (("left", 0.7), ("right", -0.7)):
            made.body(f"{side} hub", mass=15, centre=(0, y, 0.3), ball=0.1)
            made.slider(f"{side} travel", "chassis", f"{side} hub", axis="z", stiffness=30_000.0)
            made.wheel(side, f"{side} hub", at=(0, y, 0.3), mass=20, omni=omni if side == "right" else None)
        made.support("chassis", at=(2.5, 0, 0))
        return made.system()

    with pytest.raises(InvalidInput, match=r"constraints of right side force follow from the others.*omni=0.0"):
        car(None).state(speed=5.0)
    loose = car(0.0)
    assert loose.state(speed=5.0).xi[3] == 5.0 and "right side force" not in loose.load_names


WRONG = {
    "no bodies": (lambda m: None, "has no bodies"),
    "disconnected": (lambda m: m.body("b", mass=1, ball=1), "body 'b' is not connected to anything"),
    "no inertia": (lambda m: m.body("b", mass=1), "body 'b' has no inertia; allowed: one of inertia, box"),
    "two shapes": (lambda m: m.body("b", mass=1, ball=1, box=(1, 1, 1)), "has box and ball"),
    "negative mass": (lambda m: m.body("b", mass=-1, ball=1), "mass of 'b' is -1; allowed: one positive number"),
    "wheel below the ground": (
        lambda m: m.wheel("w", "ground", at=(0, 0, -0.1), mass=1),
        "radius of 'w', the height of at, is -0.1; allowed: one positive number",
    ),
    "impossible moments": (lambda m: m.body("b", mass=1, inertia=(1, 1, 3)), "no body has the principal moments"),
    "grams": (lambda m: m.body("b", mass=1e9, ball=1), "looks like another unit"),
    "millimetres": (lambda m: m.body("b", mass=1, centre=(50_000, 0, 0), ball=1), "looks like another unit"),
    "unknown body": (lambda m: m.hinge("h", "ground", "bdy", axis="z"), "unknown body 'bdy'"),
    "ground as a name": (lambda m: m.body("ground", mass=1, ball=1), "'ground' is taken"),
    "carrier as ground": (lambda m: m.carrier("ground"), "'ground' is taken"),
    "negative box": (lambda m: m.body("b", mass=1, box=(-1, 1, 1)), "box of 'b' is .* not negative"),
    "negative cylinder": (lambda m: m.body("b", mass=1, cylinder=(0.1, -1)), "cylinder of 'b' is .* not negative"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_parts_get_sentences(case):
    make, words = WRONG[case]
    made = da.Mechanism("thing")
    with pytest.raises(InvalidInput, match=words):
        make(made)
        made.system()


def hangs_in_the_air():
    made = one_body()
    made.planar("body")
    made.roll_ball("body", radius=0.05)
    return made


def on_itself():
    made = one_body()
    made.body("other", mass=1, ball=1)
    made.hinge("one", "body", "other", axis="z")
    made.hinge("two", "other", "body", axis="z")
    return made


def held_fast():
    made = four_bars()
    made.ball("lock", "ground", "coupler", at=(1, 0, 1))
    return made


def second_place():
    made = one_body()
    made.free("body")
    made.planar("body")
    return made


def free_body(add):
    made = one_body()
    made.free("body")
    add(made)
    return made


def driven_loop():
    made = four_bars()
    made.motor("d")
    return made


def sprung_loop():
    made = four_bars()
    made.hinge("e", "ground", "rocker", at=(2, 0, 0), axis="y", stiffness=100.0)
    return made


WRONG_PARTS = {
    "thrust on the ground": (lambda m: m.thrust("t", "ground", at=(0, 0, 0), along="x"), "nothing moves the ground"),
    "torque on the ground": (lambda m: m.torque("t", "ground", axis="x"), "nothing moves the ground"),
    "rest without a spring": (lambda m: m.slider("s", "ground", "body", axis="x", rest=0.1), "give stiffness too"),
    "damper at a point": (
        lambda m: m.spring("s", "ground", (0, 0, 0), "body", (0, 0, 0), stiffness=1.0, damping=1.0),
        "a damper has no direction",
    ),
    "flat wheel": (lambda m: m.wheel("w", "body", at=(0, 0, 0.1), mass=1, axis="z"), "axle of 'w' is vertical"),
    "quantity called twice": (
        lambda m: m.torque("speed", "body", axis="z"),
        "two quantities of thing are called 'speed'",
    ),
    "a motor of text": (
        lambda m: m.wheel("w", "body", at=(0, 0, 0.1), mass=1, motor="strong"),
        r"motor of 'w' is 'strong'; allowed: True, False, or \(low, high\) in N m",
    ),
    "a support as a wheel is called": (
        lambda m: m.support("glide", "body", at=(0, 0, 0)),
        r"support was called with too many positional arguments; it takes \(body, \*, at, radius=None, name=''\)",
    ),
    "blanks": (lambda m: m.torque("yaw_rate", "body", axis="z"), "two quantities of thing are called"),
}


@pytest.mark.parametrize("case", WRONG_PARTS)
def test_bad_additions_get_sentences(case):
    add, words = WRONG_PARTS[case]
    with pytest.raises(InvalidInput, match=words):
        free_body(add).system()


def test_a_motor_of_a_wheel_takes_bounds():
    made = one_body()
    made.planar("body")
    made.wheel("w", "body", at=(0, 0, 0.1), mass=1, motor=(-1.5, 2))
    (torque,) = made.system().inputs
    assert (torque.name, torque.low, torque.high) == ("w torque", -1.5, 2.0)


def test_two_coordinates_of_a_body_cannot_have_one_name():
    with pytest.raises(InvalidInput, match="coordinate called 'lean' already"):
        one_body().free("body", roll="lean", pitch="lean")


def test_a_spring_of_no_length_pulls_with_the_distance():
    """At the point where both ends meet it does nothing; its distance has no derivative there."""
    made = da.Mechanism("held", gravity=0.0)
    made.body("block", mass=2.0, inertia=(1.0, 1.0, 1.0))
    made.free("block")
    made.spring("coil", "ground", (0, 0, 0), "block", (0, 0, 0), stiffness=8.0)
    held = made.system()
    still = held.acceleration(0.0, held.group.identity(), np.zeros(6))[0]
    np.testing.assert_array_equal(still, np.zeros(6))
    pulled = held.acceleration(0.0, held.state(x=0.3, z=-0.1).g, np.zeros(6))[0]
    np.testing.assert_allclose(pulled, [0, 0, 0, -1.2, 0, 0.4], atol=1e-14)


WRONG_WHOLES = {
    driven_loop: "hinge 'd' closes a loop, because 'rocker' hangs on 'coupler' already",
    sprung_loop: "hinge 'e' closes a loop.*cannot have a motor, a gear, a spring or a damper",
    hangs_in_the_air: "'body' cannot touch or close: it is 0.05 m away in every position",
    on_itself: "hang on each other, and none on the ground",
    held_fast: r"cannot move: its 3 freedoms are held by 3 independent constraints \(",
    second_place: "'body' is free or planar already",
}


@pytest.mark.parametrize("make", WRONG_WHOLES)
def test_bad_mechanisms_get_sentences(make):
    with pytest.raises(InvalidInput, match=WRONG_WHOLES[make]):
        make().system()


def test_a_loop_that_cannot_close_says_so():
    made = da.Mechanism("short")
    made.body("left", mass=1, centre=(0, 0, 0.5), box=(0.1, 0.1, 1))
    made.body("right", mass=1, centre=(3, 0, 0.5), box=(0.1, 0.1, 1))
    made.hinge("a", "ground", "left", at=(0, 0, 0), axis="y")
    made.hinge("b", "ground", "right", at=(3, 0, 0), axis="y")
    made.body("rod", mass=1, centre=(0.5, 0, 1), box=(1, 0.1, 0.1))
    made.hinge("c", "left", "rod", at=(0, 0, 1), axis="y")
    made.spring("s", "rod", (0, 0, 0), "right", (3, 0, 1), stiffness=1.0)
    made.ball("d", "right", "rod", at=(1, 0, 1))  # the point of the rod at x = 1, and that of `right` there: 2 m away
    system = made.system()
    with pytest.raises(InvalidInput, match=r"cannot be assembled with a = -2.*constraints of d force"):
        system.state(a=-2.0, b=2.0)


# -- gears ------------------------------------------------------------------------------------------------------------
def shafts(count=3):
    """Shafts side by side on the ground, with moments 1, 2, ... about the vertical."""
    made = da.Mechanism("shafts", gravity=0.0)
    for k in range(count):
        made.body(f"body {k}", mass=1.0, centre=(k, 0, 0), inertia=(k + 1.0,) * 3)
        made.hinge(f"shaft {k}", "ground", f"body {k}", axis="z")
    return made


def test_a_gear_takes_a_freedom_away_and_carries_inertia_and_torque():
    """(J0 + n^2 J1) q'' = T0 + n T1 - k n^2 q - c n^2 q': moment, motor, spring and damper of a shaft geared by n."""
    n, torque = -2.5, np.array([0.3, 0.7])
    made = da.Mechanism("pair", gravity=0.0)
    for k in range(2):
        made.body(f"body {k}", mass=1.0, centre=(k, 0, 0), inertia=(k + 1.0,) * 3)
    made.hinge("input", "ground", "body 0", axis="z")
    made.hinge("output", "ground", "body 1", axis="z", stiffness=0.8, damping=0.2)
    made.gear("output", "input", ratio=n)
    made.motor("input")
    made.motor("output")
    pair = made.system()
    assert str(pair.group) == "R^1" and pair.coordinate_names == ("input", "output") and not pair.load_names
    rate, _ = pair.acceleration(0.0, np.array([0.4]), np.array([0.9]), torque)
    force = torque[0] + n * torque[1] - n**2 * (0.8 * 0.4 + 0.2 * 0.9)
    assert float(rate[0]) == pytest.approx(force / (1.0 + 2.0 * n**2), rel=1e-14)
    state = pair.state(output=0.5, output_rate=1.0)  # the gear says where the input is
    np.testing.assert_allclose([state.g[0], state.xi[0]], [0.5 / n, 1.0 / n], rtol=1e-14)
    run = da.simulate(pair, da.RungeKutta(), state, step=0.05, steps=20)
    np.testing.assert_allclose(run["output"], n * run["input"], rtol=1e-14)
    np.testing.assert_allclose(run["output rate"], n * run["input rate"], rtol=1e-14)


def test_a_differential_shares_its_torque():
    """The shaft turns n/2 times as fast as both outputs together: each of them gets n/2 times its torque."""
    made, n = shafts(), 4.0
    made.gear("shaft 2", ("shaft 0", "shaft 1"), ratio=(n / 2, n / 2))
    made.motor("shaft 2")
    split = made.system()
    rate, _ = split.acceleration(0.0, np.zeros(2), np.zeros(2), np.array([0.6]))
    mass = np.diag([1.0, 2.0]) + 3.0 * (n / 2) ** 2 * np.ones((2, 2))
    np.testing.assert_allclose(rate, np.linalg.solve(mass, np.full(2, 0.6 * n / 2)), rtol=1e-13)


def crank_angle(q, reach):
    return q + reach * jnp.sin(q)


def test_a_coupling_by_a_function_against_its_only_freedom():
    """L = [J0 + J1 f'(q)^2] q'^2/2: J(q) q'' = -J'(q) q'^2/2; gears behind couplings work too."""
    made = shafts()
    made.couple("shaft 1", "shaft 0", crank_angle, reach=0.4)
    made.gear("shaft 2", "shaft 1", ratio=3.0)
    cam, q, rate = made.system(), 0.7, 1.3
    slope, bend = 1 + 0.4 * np.cos(q), -0.4 * np.sin(q)
    inertia = 1.0 + (2.0 + 9.0 * 3.0) * slope**2
    found, _ = cam.acceleration(0.0, np.array([q]), np.array([rate]))
    assert float(found[0]) == pytest.approx(-(2.0 + 27.0) * slope * bend * rate**2 / inertia, rel=1e-13)
    state = cam.state(shaft_2=1.5)
    assert 3.0 * crank_angle(float(state.g[0]), 0.4) == pytest.approx(1.5, rel=1e-12)
    assert cam.parameters["gears"] == {"shaft 1": {"reach": 0.4}, "shaft 2": {"shaft 1": 3.0}}


WRONG_GEARS = {
    "unknown": (lambda m: m.gear("shaft 1", "shft 0"), "unknown hinge or slider 'shft 0'"),
    "itself": (lambda m: m.gear("shaft 1", "shaft 1"), "then it would move itself"),
    "a circle": (
        lambda m: [m.gear("shaft 1", "shaft 0"), m.gear("shaft 2", "shaft 1"), m.gear("shaft 0", "shaft 2")],
        "'shaft 0' cannot be geared to shaft 2: then it would move itself",
    ),
    "twice": (lambda m: [m.gear("shaft 1", "shaft 0"), m.gear("shaft 1", "shaft 2")], "is geared to shaft 0 already"),
    "no ratio": (lambda m: m.gear("shaft 1", "shaft 0", ratio=0), "ratio of 'shaft 1' is 0; allowed: any finite"),
    "too few ratios": (lambda m: m.gear("shaft 2", ("shaft 0", "shaft 1"), ratio=(1.0,)), "with 1 ratios; allowed"),
    "nothing": (lambda m: m.gear("shaft 1", ()), "geared to nothing"),
    "no function": (lambda m: m.couple("shaft 1", "shaft 0", 3), "by of 'shaft 1' is 3; allowed: a function"),
    "two numbers": (
        lambda m: m.couple("shaft 1", "shaft 0", lambda q: jnp.stack([q, q])),
        "the coupling of 'shaft 1' gave .*; allowed: one finite number",
    ),
    "wrong numbers": (lambda m: m.couple("shaft 1", "shaft 0", crank_angle, length=1.0), "coupling of 'shaft 1' fails"),
}


@pytest.mark.parametrize("case", WRONG_GEARS)
def test_bad_gears_get_sentences(case):
    add, words = WRONG_GEARS[case]
    made = shafts()
    with pytest.raises(InvalidInput, match=words):
        add(made)


def test_a_joint_that_closes_a_loop_cannot_be_geared():
    made = four_bars()
    made.gear("d", "a", ratio=2.0)
    with pytest.raises(InvalidInput, match="hinge 'd' closes a loop"):
        made.system()


@pytest.mark.heavy
def test_friction_keeps_the_names(robot):
    slowed = da.with_friction(robot, viscous=0.3)
    state = slowed.state(speed=1.0)
    run = da.simulate(slowed, da.RungeKutta(), state, step=0.02, steps=20)
    assert run["speed"][0] == pytest.approx(1.0) and run["speed"][-1] < 0.99


def test_states_by_names_are_kept_with_the_numbers_of_the_drawing():
    """A start that is known gives the bits of one that is found; other numbers of the system are another start."""
    system, other = da.models.bicycle(), da.models.bicycle()
    for speed in (2.0, 5.0):
        for found, wanted in zip(
            jax.tree.leaves(system.state(speed=speed, lean=0.1)),
            jax.tree.leaves(da.models.bicycle().state(speed=speed, lean=0.1)),
            strict=True,
        ):
            assert np.array_equal(found, wanted)
    with pytest.raises(da.InvalidInput, match="not possible"):
        system.state(speed=5.0, rear_wheel_rate=1.0)
    with pytest.raises(da.InvalidInput, match="not possible"):
        system.state(speed=4.0, rear_wheel_rate=1.0)
    for each in (system, other):
        each.parameters["contacts"]["rear wheel"]["radius"] *= 1.1
        each.parameters["joints"]["rear wheel"]["at"]["z"] *= 1.1
    changed = system.state(speed=5.0, lean=0.1)
    assert np.array_equal(changed.xi, other.state(speed=5.0, lean=0.1).xi)
    assert changed.xi[-2] != pytest.approx(da.models.bicycle().state(speed=5.0, lean=0.1).xi[-2], rel=0.05)
