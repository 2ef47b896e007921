"""Mechanisms against models that were written by hand, and the models that are mechanisms against what is known."""

import jax
import numpy as np
import pytest
from mechanisms import draw_bicycle

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


def racer(rng):
    m, J, rider, J2, front, arm = rng.uniform(0.3, 2.0, 6)
    made = planar(m, J)
    made.body("arm", mass=rider, centre=(front + arm, 0, 0), inertia=(J2, J2, J2))
    made.hinge("pivot", "body", "arm", at=(front, 0, 0), axis="z")
    made.skate("arm", at=(front + arm, 0, 0), name="second")
    made.motor("pivot")
    return models.roller_racer(m, J, rider, J2, front, arm), made, 1


@pytest.mark.parametrize("make", [sleigh, unicycle, racer, car])
def test_models_are_their_mechanisms(make):
    """Accelerations with random numbers, states and inputs."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        model, drawn, inputs = make(rng)
        system, u = drawn.system(), rng.normal(size=inputs)
        pose, angle = rng.normal(size=3), rng.uniform(-1, 1)
        single = len(model.group.factors) == 1
        g = model.group.element(pose if single else [pose, angle])
        h = g if single else (g[0], np.array([angle]))
        xi = np.asarray(model.project(g, rng.normal(size=model.group.dim)))
        expected = np.asarray(model.acceleration(0.0, g, xi, u if inputs else None)[0])
        found = np.asarray(system.acceleration(0.0, h, xi, u if inputs else None)[0])
        assert np.abs(found - expected).max() < 1e-10 * np.abs(expected).max()


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


def test_the_tippe_top_keeps_jelletts_integral():
    """J = -(I w) . r with r from the centre of mass to the contact: the reaction acts there, and the top is round."""
    top = models.tippe_top()
    start = top.state(roll=0.3, yaw_rate=40.0)
    run = da.simulate(top, da.integrators.Reference(), start, step=0.02, steps=25).check()
    up, w = np.asarray(run.g)[:, 2, :3], np.asarray(run.xi)[:, :3]
    contact = np.array([0.0, 0.0, 0.005]) - 0.02 * up
    jellett = -np.sum(w * [3.0e-6, 3.0e-6, 3.2e-6] * contact, axis=1)
    assert np.ptp(jellett) < 1e-9 * np.abs(jellett).max() and np.ptp(w[:, 2]) > 1e-3
