"""Mechanisms that tests share, as a user draws them."""

import numpy as np

from dalembert import Mechanism

TILT = np.pi / 10


def draw_bicycle() -> Mechanism:
    """The benchmark bicycle of Meijaard, Papadopoulos, Ruina and Schwab (2007)."""
    bike = Mechanism("bicycle")
    bike.body("frame", mass=85, centre=(0.3, 0, 0.9), inertia=[[9.2, 0, -2.4], [0, 11, 0], [-2.4, 0, 2.8]])
    bike.body(
        "fork", mass=4, centre=(0.9, 0, 0.7), inertia=[[0.05892, 0, 0.00756], [0, 0.06, 0], [0.00756, 0, 0.00708]]
    )
    bike.free("frame", roll="lean")
    bike.hinge("steer", "frame", "fork", at=(1.1, 0, 0), axis=(np.sin(TILT), 0, -np.cos(TILT)))
    bike.wheel("rear wheel", "frame", at=(0, 0, 0.3), mass=2, inertia=(0.0603, 0.12))
    bike.wheel("front wheel", "fork", at=(1.02, 0, 0.35), mass=3, inertia=(0.1405, 0.28))
    bike.motor("steer", name="steer torque")
    return bike


def draw_robot(base: str = "planar") -> Mechanism:
    """A differential-drive robot with two motors and a castor."""
    robot = Mechanism("robot")
    robot.body("base", mass=9.0, centre=(0.05, 0, 0.15), box=(0.4, 0.3, 0.2))
    getattr(robot, base)("base")
    robot.wheel("left", "base", at=(0, 0.2, 0.1), mass=0.6, motor=True)
    robot.wheel("right", "base", at=(0, -0.2, 0.1), mass=0.6, motor=True)
    robot.castor("castor", "base", at=(0.3, 0), trail=0.04, radius=0.05)
    return robot


def draw_coin(mass: float = 0.5, radius: float = 0.1) -> Mechanism:
    """A thin disc that rolls, leans and turns; its yoke does not spin with it."""
    coin = Mechanism("coin")
    for name in ("track", "lift", "yoke"):
        coin.carrier(name)
    coin.body("coin", mass=mass, centre=(0, 0, radius), cylinder=(radius, 0.0), axis="y")
    coin.planar("track")
    coin.slider("height", "track", "lift", axis="z")
    coin.hinge("lean", "lift", "yoke", axis="x", at=(0, 0, radius))
    coin.hinge("spin", "yoke", "coin", axis="y")
    coin.roll("coin", radius=radius)
    return coin
