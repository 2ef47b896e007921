"""Mechanisms against models that were written by hand, and the models that are mechanisms against what is known."""

import jax
import numpy as np
import pytest
from mechanisms import draw_bicycle
from registry import more, sampled

import dalembert as da

models = da.models


def planar(mass, inertia, centre=(0.0, 0.0)):
    """A body on a blade at the origin, its centre of mass anywhere."""
    made = da.Mechanism("body")
    made.body("body", mass=mass, centre=(*centre, 0.0), inertia=(inertia, inertia, inertia))
    made.planar("body")
    made.skate("body", at=(0, 0, 0), name="axle")
    return made


def sleigh(rng):
    (m, J), (a, b) = rng.uniform(0.3, 2.0, 2), rng.normal(size=2)
    return models.chaplygin_sleigh(m, J, a, b), planar(m, J, (a, b)), 0


def unicycle(rng):
    m, J, a = rng.uniform(0.3, 2.0, 3)
    made = planar(m, J, (a, 0.0))
    made.torque("turn", "body", axis="z")
    made.thrust("drive", "body", at=(0, 0, 0), along="x")
    return models.unicycle(m, J, a), made, 2


def car(rng):
    """The mass of the fork is taken from the body, so that both together have the numbers of the model."""
    m, J, length, centre, steering = rng.uniform(0.3, 2.0, 5)
    fork = 0.01
    rest, ahead = m - fork, (m * centre - fork * length) / (m - fork)
    made = planar(rest, J + m * centre**2 - fork * length**2 - rest * ahead**2, (ahead, 0.0))
    made.body("fork", mass=fork, centre=(length, 0, 0), inertia=(steering, steering, steering))
    made.hinge("steer", "body", "fork", at=(length, 0, 0), axis="z")
    made.skate("fork", at=(length, 0, 0), name="front")
    made.thrust("drive", "body", at=(0, 0, 0), along="x")
    made.motor("steer")
    return models.car(m, J, length, centre, steering), made, 2


def racer_of(m, J, rider, J2, front, arm):
    made = planar(m, J)
    made.body("arm", mass=rider, centre=(front + arm, 0, 0), inertia=(J2, J2, J2))
    made.hinge("pivot", "body", "arm", at=(front, 0, 0), axis="z")
    made.skate("arm", at=(front + arm, 0, 0), name="second")
    made.motor("pivot")
    return made


def racer(rng):
    sizes = rng.uniform(0.3, 2.0, 6)
    return models.roller_racer(*sizes), racer_of(*sizes), 1


def board(rng):
    """The masses of rotor and trucks are taken from the board; a gear turns the trucks against each other."""
    m, J, rotor, wheels, length = rng.uniform(0.3, 2.0, 5)
    part = 0.01
    made = da.Mechanism("snakeboard")
    made.body("board", mass=m - 3 * part, inertia=(J, J, J - 2 * part * length**2))
    made.planar("board")
    for name, x, moment in (("rotor", 0.0, rotor), ("front", length, wheels), ("rear", -length, wheels)):
        made.body(name, mass=part, centre=(x, 0, 0), inertia=(moment, moment, moment))
        made.hinge(f"{name} angle", "board", name, axis="z")
        if x:
            made.skate(name, at=(x, 0, 0))
    made.gear("rear angle", "front angle", ratio=-1.0)
    made.motor("rotor angle")
    made.motor("front angle")
    return models.snakeboard(m, J, rotor, wheels, length), made, 2


def sleighs(rng):
    """The second sleigh hangs on the first: no constraint holds the hinge together."""
    m, J, rider, J2, front, arm = rng.uniform(0.3, 2.0, 6)
    made = racer_of(m, J, rider, J2, front, arm)
    return models.hinged_sleighs(m, J, rider, J2, front, arm), made, 1


def in_full(model, g, xi):
    """A state of the hinged sleighs, and the map from rates of (w, v1, v2, s') to those of both sleighs."""
    front, arm = (float(model.parameters[name]) for name in ("front", "arm"))
    pose, s = np.asarray(g[0]), float(g[1][0])
    turn, w, rate = np.array([[np.cos(s), -np.sin(s)], [np.sin(s), np.cos(s)]]), xi[0], xi[3]
    second = np.eye(3)
    second[:2, :2] = pose[:2, :2] @ turn
    second[:2, 2] = pose[:2, 2] + front * pose[:2, 0] + arm * second[:2, 0]

    def spread(each, turned=0.0):
        """(w, v1, v2, w + s', V1, V2) of these rates; `turned` is the change of V with s."""
        moving = turn.T @ np.array([each[1], each[2] + front * each[0]]) + [0.0, arm * (each[0] + each[3])] + turned
        return np.array([*each[:3], each[0] + each[3], *moving])

    seen = turn.T @ np.array([xi[1], xi[2] + front * w])
    return (pose, second), spread(xi), lambda change: spread(change, rate * np.array([seen[1], -seen[0]]))


def both(make, rng):
    """The model, its mechanism, inputs, a state of both, and the rate of the model's velocity from the mechanism's."""
    model, drawn, inputs = make(rng)
    system, u = drawn.system(), rng.normal(size=inputs) if inputs else None
    angles = rng.uniform(-1, 1, system.group.dim - 3)
    pose = np.asarray(da.SE2().element(rng.normal(size=3)))
    g = (pose, angles) if len(angles) else pose
    xi = np.asarray(system.project(g, rng.normal(size=system.group.dim)))
    if make is sleighs:
        there, moving, rates = in_full(model, g, xi)
        return model, system, u, (there, moving), (g, xi), rates
    there = model.group.element([pose, *angles]) if len(angles) else g
    return model, system, u, (there, xi), (g, xi), lambda change: change


EQUAL = [car, board, sleighs, sleigh, unicycle, racer]


@pytest.mark.parametrize("make", [more(make) if make in (board, sleighs) else make for make in EQUAL])
def test_models_are_their_mechanisms(make):
    """Accelerations with random numbers, states and inputs."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        model, system, u, there, here, rates = both(make, rng)
        assert np.abs(model.residual(0.0, *there)).max() < 1e-13
        expected = np.asarray(model.acceleration(0.0, *there, u)[0])
        found = rates(np.asarray(system.acceleration(0.0, *here, u)[0]))
        assert np.abs(found - expected).max() < 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize("make", sampled(EQUAL))
def test_models_move_as_their_mechanisms(make):
    """Half a second in 500 steps with inputs that are held: the place of the first body, and its velocity."""
    model, system, u, there, here, _ = both(make, np.random.default_rng(5))
    held = {} if u is None else {"controls": np.tile(u, (500, 1))}
    ends = []
    for each, start in ((model, there), (system, here)):
        run = da.simulate(each, da.RungeKutta(), each.state(*start), step=1e-3, steps=500, save_every=500, **held)
        run.check()
        ends.append(np.append(np.ravel(jax.tree.leaves(run.g)[0][-1]), run.xi[-1, :3]))
    assert np.abs(ends[1] - ends[0]).max() < 1e-10 * np.abs(ends[0]).max()


def disc(rng):
    m, r, axial, across, g = rng.uniform(0.3, 2.0, 5)
    axial = min(axial, 1.9 * across)  # no body has more
    made = da.Mechanism("disc", gravity=g)
    made.body("disc", mass=m, inertia=(across, axial, across))
    made.free("disc")
    made.roll("disc", radius=r, axis="y")
    return models.rolling_disk(m, r, axial, across, g), made, np.array([r, 0.0, r]), 0.0


def celt(rng):
    (m, g), axes = rng.uniform(0.3, 2.0, 2), rng.uniform(0.3, 2.0, 3)
    depth, J = 0.5 * axes[2], np.array([[1.5, 0.2, 0.1], [0.2, 1.2, -0.1], [0.1, -0.1, 1.1]])
    made = da.Mechanism("celt", gravity=g)
    made.body("celt", mass=m, inertia=J)
    made.free("celt")
    made.roll_ellipsoid("celt", axes=axes, centre=(0, 0, depth))
    return models.rattleback(m, J, axes, depth, g), made, axes, depth


@pytest.mark.parametrize("make", [disc, celt])
def test_bodies_that_roll_are_their_mechanisms(make):
    """The angular accelerations on SO(3) x R^2 and on SE(3), where the height is a constraint."""
    rng = np.random.default_rng(4)
    for _ in range(3):
        model, drawn, axes, depth = make(rng)
        system = drawn.system()
        R = np.asarray(da.SO3().exp(rng.normal(size=3)))
        down = axes**2 * R[2]
        contact = np.array([0.0, 0.0, depth]) - down / np.sqrt(R[2] @ down)
        w = rng.normal(size=3)
        v = -np.cross(w, contact)
        here = np.asarray(model.acceleration(0.0, (R, np.zeros(2)), np.append(w, (R @ v)[:2]))[0])
        pose = system.group.motion(R, np.array([0.0, 0.0, -R[2] @ contact]))
        there = np.asarray(system.acceleration(0.0, pose, np.append(w, v))[0])
        assert np.abs(there[:3] - here[:3]).max() < 1e-10 * np.abs(here).max()


def test_the_bicycle_is_the_published_one():
    """The drawing whose eigenvalues, critical speeds and loads test_linearisation compares with the publication."""
    ours, drawn = models.bicycle(), draw_bicycle().system()
    assert ours.parts.joints == drawn.parts.joints and ours.parts.contacts == drawn.parts.contacts
    for a, b in zip(jax.tree.leaves(ours.parameters), jax.tree.leaves(drawn.parameters), strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-15)


@pytest.mark.heavy
def test_the_tippe_top_keeps_jelletts_integral():
    """J = -(I w) . r with r from the centre of mass to the contact: the reaction acts there, and the top is round."""
    top = models.tippe_top()
    start = top.state(roll=0.3, yaw_rate=40.0)
    run = da.simulate(top, da.integrators.Reference(), start, step=0.02, steps=25).check()
    up, w = np.asarray(run.g)[:, 2, :3], np.asarray(run.xi)[:, :3]
    contact = np.array([0.0, 0.0, 0.005]) - 0.02 * up
    jellett = -np.sum(w * [3.0e-6, 3.0e-6, 3.2e-6] * contact, axis=1)
    assert np.ptp(jellett) < 1e-9 * np.abs(jellett).max() and np.ptp(w[:, 2]) > 1e-3


@pytest.mark.heavy
def test_the_wheels_of_the_ackermann_car_turn_about_one_point():
    """cot(r) - cot(l) = b/L, and each wheel rolls as far as its distance from that point says."""
    length, track, radius = 2.6, 1.5, 0.3
    car = models.ackermann_car(wheelbase=length, track=track, radius=radius, ratio=4.0)
    assert str(car.group) == "SE(2) x R^5" and car.parts.redundant == (
        "front right side force",
        "rear right side force",
    )
    state = car.state(speed=5.0, steer=0.35, steer_rate=0.2)
    names = (*car.coordinate_names, *car.rate_names)
    found = dict(zip(names, np.asarray(car.observe(0.0, state.g, state.xi)).tolist(), strict=True))
    cotangents = [1 / np.tan(found[f"{side} steer"]) for side in ("right", "left")]
    assert cotangents[0] - cotangents[1] == pytest.approx(track / length, rel=1e-13)
    far = length / np.tan(0.35)
    assert found["yaw rate"] == pytest.approx(5.0 / far, rel=1e-13)
    for end, x in (("front", length), ("rear", 0.0)):
        for side, y in (("left", track / 2), ("right", -track / 2)):
            rolled = found["yaw rate"] * np.hypot(x, far - y) / radius
            assert found[f"{end} {side} rate"] == pytest.approx(rolled, rel=1e-13)
    assert found["shaft rate"] == pytest.approx(4.0 * 5.0 / radius, rel=1e-13)
    sine = np.sin(found["left steer"])
    assert found["left steer rate"] == pytest.approx(0.2 * (sine / np.sin(0.35)) ** 2, rel=1e-13)
