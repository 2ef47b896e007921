"""Vehicles drawn as mechanisms: a bicycle, robots, a car, a tractor with trailers, a tippe top, a coin.

Each model draws a `Mechanism` (x forward, y to the left, z up; kg, m, N) and returns its system, so that rolling and
contact points come from the geometry, and coordinates, rates, inputs and loads have names. They start by names:
`system.state(speed=4.6, lean_rate=0.5)`, or `[initial] speed = 4.6` in a file. Parameters must be numbers that are
known when the model is drawn; models with the same parts and zeros are one program. Notation: see
`dalembert.mechanics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp

from ..errors import InvalidInput
from ..mechanics import Mechanism, MechanismSystem
from ..numerics import finite, is_traced, positive, vector
from ..numerics.types import Array
from .registry import Numbers, register


@register(
    "bicycle",
    example={},
    initial={"speed": 4.6, "lean_rate": 0.5},
    step=0.02,
    steps=200,
    why="Nobody rides it. Between 4.3 and 6.0 m/s it steers into its fall and comes upright again; slower it weaves "
    "more and more, faster it falls slowly to one side.",
    tries=[
        ("too slow: it weaves until it falls", "initial.speed", 3.7),
        ("too fast: it leans over", "initial.speed", 8.0),
    ],
    meaning={
        "wheelbase": "from the rear contact to the front contact",
        "trail": "how far the front contact lies behind the steering axis on the ground",
        "tilt": "of the steering axis from the vertical",
        "mass": "of the rear frame with its rider",
        "centre": "of the rear frame: ahead of the rear contact, and above the ground",
        "inertia": "of the rear frame: a matrix, x forward and z up",
        "fork_centre": "of fork and handlebar: ahead of the rear contact, and above the ground",
        "fork_inertia": "a matrix, x forward and z up",
        "rear_wheel": "radius, mass, moments across and along the axle of the rear wheel",
        "front_wheel": "radius, mass, moments across and along the axle of the front wheel",
    },
)
def bicycle(
    wheelbase: float = 1.02,
    trail: float = 0.08,
    tilt: float = math.pi / 10,
    mass: float = 85.0,
    centre: Numbers = (0.3, 0.9),
    inertia: Numbers = ((9.2, 0.0, -2.4), (0.0, 11.0, 0.0), (-2.4, 0.0, 2.8)),
    fork_mass: float = 4.0,
    fork_centre: Numbers = (0.9, 0.7),
    fork_inertia: Numbers = ((0.05892, 0.0, 0.00756), (0.0, 0.06, 0.0), (0.00756, 0.0, 0.00708)),
    rear_wheel: Numbers = (0.3, 2.0, 0.0603, 0.12),
    front_wheel: Numbers = (0.35, 3.0, 0.1405, 0.28),
    gravity: float = 9.81,
) -> MechanismSystem:
    """A bicycle (Whipple 1899) that nobody holds: frame with rider, fork and two wheels that roll as thin discs.

    The defaults are the benchmark of Meijaard, Papadopoulos, Ruina and Schwab (2007), whose z points down. Coordinates:
    x, y, z, yaw, lean, pitch of the frame, steer (to the right), and the angles of the wheels. Input: the steer torque.
    """
    wheelbase, mass, fork_mass = _sizes(wheelbase=wheelbase, mass=mass, fork_mass=fork_mass)
    trail, tilt, gravity = _signed(trail=trail, tilt=tilt, gravity=gravity)
    bike = Mechanism("bicycle", gravity=gravity)
    bike.body("frame", mass=mass, centre=_above("centre", centre), inertia=inertia)
    bike.body("fork", mass=fork_mass, centre=_above("fork_centre", fork_centre), inertia=fork_inertia)
    bike.free("frame", roll="lean")
    bike.hinge("steer", "frame", "fork", at=(wheelbase + trail, 0, 0), axis=(math.sin(tilt), 0, -math.cos(tilt)))
    wheels = {"rear wheel": ("frame", 0.0, rear_wheel), "front wheel": ("fork", wheelbase, front_wheel)}
    for name, (parent, place, given) in wheels.items():
        radius, weight, across, along = _list(name, given, 4)
        bike.wheel(name, parent, at=(place, 0, radius), mass=weight, inertia=(across, along))
    bike.motor("steer", name="steer torque")
    return bike.system()


@register(
    "differential-drive",
    example={},
    initial={"speed": 0.6, "yaw_rate": 0.5, "castor_swivel": 1.5},
    step=0.02,
    steps=300,
    why="Two wheels with motors, and a castor that follows. The castor starts across, and swings behind its swivel as "
    "the robot drives: its rolling is a constraint too.",
    meaning={
        "size": "of the base: length, width, height",
        "centre": "how far the centre of mass lies ahead of the axle",
        "track": "from wheel to wheel",
        "radius": "of the driven wheels",
        "wheel_mass": "of each driven wheel",
        "castor": "how far its swivel lies ahead of the axle",
        "trail": "of the castor",
        "castor_radius": "m",
    },
)
def differential_drive(
    mass: float = 9.0,
    size: Numbers = (0.4, 0.3, 0.2),
    centre: float = 0.05,
    track: float = 0.4,
    radius: float = 0.1,
    wheel_mass: float = 0.6,
    castor: float = 0.3,
    trail: float = 0.04,
    castor_radius: float = 0.05,
) -> MechanismSystem:
    """A robot with two driven wheels and a castor, on SE(2) x R^4: motors at the wheels, five rows of rolling.

    Both wheels forbid the same sideways motion: one load carries both side forces ("shared").
    """
    mass, track, radius, wheel_mass = _sizes(mass=mass, track=track, radius=radius, wheel_mass=wheel_mass)
    (castor_radius,) = _sizes(castor_radius=castor_radius)
    centre, castor, trail = _signed(centre=centre, castor=castor, trail=trail)
    robot = Mechanism("differential drive")
    height = radius + _list("size", size, 3)[2] / 4
    robot.body("base", mass=mass, centre=(centre, 0, height), box=size)
    robot.planar("base")
    for name, side in (("left", 1), ("right", -1)):
        robot.wheel(name, "base", at=(0, side * track / 2, radius), mass=wheel_mass, width=radius / 4, motor=True)
    robot.castor("castor", "base", at=(castor, 0), trail=trail, radius=castor_radius)
    return robot.system()


@register(
    "ackermann-car",
    example={},
    initial={"speed": 5.0, "steer": 0.35},
    step=0.02,
    steps=250,
    why="The inner front wheel steers more than the outer one, so that the axles of all four wheels meet in one point, "
    "about which the car turns: no wheel slips. The outer wheels turn faster, and a differential lets them.",
    tries=[("straight on", "initial.steer", 0.0), ("a tight turn", "initial.steer", 0.6)],
    meaning={
        "mass": "of the chassis",
        "wheelbase": "from the rear axle to the front axle",
        "track": "from the left wheels to the right ones",
        "centre": "how far the centre of mass of the chassis lies ahead of the rear axle",
        "height": "of the chassis",
        "radius": "of the wheels",
        "wheel_mass": "of each wheel",
        "knuckle_mass": "of each of the two parts that carry the front wheels",
        "ratio": "of the final drive: turns of the shaft for a turn of both rear wheels",
    },
)
def ackermann_car(
    mass: float = 1200.0,
    wheelbase: float = 2.6,
    track: float = 1.5,
    centre: float = 1.2,
    height: float = 0.8,
    radius: float = 0.3,
    wheel_mass: float = 18.0,
    knuckle_mass: float = 10.0,
    ratio: float = 4.0,
) -> MechanismSystem:
    """A car on four wheels with Ackermann's steering and a differential, on SE(2) x R^5.

    The coordinate `steer` is the angle s of a wheel in the middle of the front axle. With tan(l) = L sin(s)/(L cos(s) -
    (b/2) sin(s)) on the left, and -b on the right, cot(r) - cot(l) = b/L (Ackermann 1818; L is the wheelbase, b the
    track). The shaft turns ratio/2 times as fast as both rear wheels together. Inputs: torques of shaft and steering.
    """
    mass, wheelbase, track, height = _sizes(mass=mass, wheelbase=wheelbase, track=track, height=height)
    radius, wheel_mass, knuckle_mass = _sizes(radius=radius, wheel_mass=wheel_mass, knuckle_mass=knuckle_mass)
    (ratio,), (centre,) = _sizes(ratio=ratio), _signed(centre=centre)
    made = Mechanism("Ackermann car")
    made.body("chassis", mass=mass, centre=(centre, 0, radius + height / 2), box=(1.4 * wheelbase, track, height))
    made.planar("chassis")
    made.carrier("steering")
    made.hinge("steer", "chassis", "steering", axis="z", at=(wheelbase, 0, radius))
    wheel = partial(made.wheel, mass=wheel_mass, width=0.6 * radius)
    for side, y in (("left", track / 2), ("right", -track / 2)):
        knuckle, hub = f"{side} knuckle", (wheelbase, y, radius)
        made.body(knuckle, mass=knuckle_mass, centre=hub, box=(radius / 2, radius / 2, radius))
        made.hinge(f"{side} steer", "chassis", knuckle, axis="z")
        made.couple(f"{side} steer", "steer", ackermann, wheelbase=wheelbase, offset=y)
        wheel(f"front {side}", knuckle, at=hub)
        wheel(f"rear {side}", "chassis", at=(0, y, radius))
    shaft = (0.1 * radius, 0.6 * wheelbase)
    made.body("shaft", mass=wheel_mass, centre=(wheelbase / 2, 0, radius), cylinder=shaft, axis="x")
    made.hinge("shaft", "chassis", "shaft", axis="x")
    made.gear("shaft", ("rear left", "rear right"), ratio=ratio / 2)
    made.motor("shaft", name="drive torque")
    made.motor("steer", name="steer torque")
    return made.system()


def ackermann(steer: Array, wheelbase: Array, offset: Array) -> Array:
    """The angle of a wheel that is `offset` to the left of one that steers by `steer`, about the same centre."""
    sine = jnp.sin(steer)
    return jnp.arctan2(wheelbase * sine, wheelbase * jnp.cos(steer) - offset * sine)


@register(
    "tractor",
    example={"trailers": 1},
    initial={"speed": 1.0, "steer": 0.3},
    step=0.02,
    steps=400,
    why="Each trailer follows the hitch before it, on a smaller circle. Backwards (speed below 0) the same motion is "
    "unstable: the trailers jack-knife.",
    tries=[("backwards: it jack-knifes", "initial.speed", -1.0), ("two trailers", "system.trailers", 2)],
    meaning={
        "trailers": "how many",
        "mass": "of the tractor",
        "wheelbase": "from the rear axle of the tractor to its front axle",
        "hitch": "how far the first hitch lies behind the rear axle of the tractor",
        "trailer_mass": "of each trailer",
        "length": "from a hitch to the axle of its trailer",
        "radius": "of all wheels",
    },
)
def tractor(
    trailers: int = 1,
    mass: float = 60.0,
    wheelbase: float = 1.2,
    hitch: float = 0.2,
    trailer_mass: float = 40.0,
    length: float = 1.5,
    radius: float = 0.2,
) -> MechanismSystem:
    """A tractor with n trailers, on SE(2) x R^(2n + 3): steer, one hitch a trailer, and the roll of every axle.

    Trailers after the first hang on the axle before them (n = 0: the single-track car). Inputs: the torques of the rear
    axle and of the steering.
    """
    if isinstance(trailers, bool) or not isinstance(trailers, int) or not 0 <= trailers <= 20:
        raise InvalidInput(f"trailers is {trailers!r}; allowed: a whole number from 0 to 20")
    mass, wheelbase, trailer_mass = _sizes(mass=mass, wheelbase=wheelbase, trailer_mass=trailer_mass)
    (length, radius), (hitch,) = _sizes(length=length, radius=radius), _signed(hitch=hitch)
    train = Mechanism("tractor")
    wide = 0.5 * wheelbase
    axle = partial(train.wheel, mass=0.1 * mass, width=0.3 * wheelbase)
    train.body("cab", mass=mass, centre=(0.4 * wheelbase, 0, 2 * radius), box=(wheelbase, wide, 2 * radius))
    train.body("fork", mass=0.1 * mass, centre=(wheelbase, 0, radius), box=(radius, 0.6 * wide, radius / 2))
    train.planar("cab")
    axle("rear axle", "cab", at=(0, 0, radius), motor=True)
    train.hinge("steer", "cab", "fork", axis="z")
    axle("front axle", "fork", at=(wheelbase, 0, radius))
    before, place = "cab", -hitch
    for k in range(1, trailers + 1):
        name = f"trailer {k}"
        size = (0.7 * length, wide, 2 * radius)
        train.body(name, mass=trailer_mass, centre=(place - length, 0, 2 * radius), box=size)
        train.hinge(f"hitch {k}", before, name, at=(place, 0, radius), axis="z")
        axle(f"axle {k}", name, at=(place - length, 0, radius))
        before, place = name, place - length
    train.motor("steer")
    return train.system()


@register(
    "omni-base",
    example={},
    initial={"speed": 0.5, "y_rate": 0.3, "yaw_rate": 0.8},
    step=0.02,
    steps=300,
    why="Rollers on the wheels slip across them, so that three wheels allow every motion of the base: rolling fixes "
    "how fast the wheels turn, and nothing else.",
    meaning={"size": "from the middle to each wheel", "radius": "of the wheels", "wheel_mass": "of each wheel"},
)
def omni_base(mass: float = 12.0, size: float = 0.25, radius: float = 0.06, wheel_mass: float = 0.5) -> MechanismSystem:
    """A round base on three omni wheels at 120 degrees with motors, on SE(2) x R^3: one row of rolling a wheel."""
    mass, size, radius, wheel_mass = _sizes(mass=mass, size=size, radius=radius, wheel_mass=wheel_mass)
    base = Mechanism("omni base")
    base.body("base", mass=mass, centre=(0, 0, 2 * radius), cylinder=(0.9 * size, radius))
    base.planar("base")
    for k in range(3):
        x, y = math.cos(2 * math.pi * k / 3), math.sin(2 * math.pi * k / 3)
        at, width = (size * x, size * y, radius), 0.4 * radius
        base.wheel(f"wheel {k + 1}", "base", at=at, mass=wheel_mass, width=width, axis=(x, y, 0), omni=0.0, motor=True)
    return base.system()


@register(
    "ball-robot",
    example={},
    initial={"neck_x": 0.05, "yaw_rate": 1.0},
    step=0.01,
    steps=45,
    why="A tower that balances on one ball. Nothing balances it here: it falls, and the ball rolls away under it. "
    "Three torques between tower and ball (controls) can hold it up.",
    meaning={
        "mass": "of the tower",
        "height": "of the tower",
        "width": "of the tower",
        "radius": "of the ball",
    },
)
def ball_robot(
    mass: float = 10.0, height: float = 1.0, width: float = 0.2, ball_mass: float = 2.5, radius: float = 0.12
) -> MechanismSystem:
    """A tower on a ball that rolls, joined at the centre of the ball, on SE(3) x SO(3).

    Inputs: the torques about the axes of the tower, which act back on the ball (Lauwers-Kantor-Hollis 2006).
    """
    mass, height, width = _sizes(mass=mass, height=height, width=width)
    ball_mass, radius = _sizes(ball_mass=ball_mass, radius=radius)
    robot = Mechanism("ball robot")
    robot.body("ball", mass=ball_mass, centre=(0, 0, radius), ball=radius)
    robot.body("tower", mass=mass, centre=(0, 0, 2 * radius + height / 2), box=(width, width, height))
    robot.free("ball", at=(0, 0, radius))
    robot.ball("neck", "ball", "tower", at=(0, 0, radius))
    robot.roll_ball("ball", radius=radius)
    for axis in "xyz":
        robot.torque(f"torque {axis}", "tower", axis=axis, against="ball")
    return robot.system()


@register(
    "tippe-top",
    example={},
    initial={"roll": 0.3, "yaw_rate": 40.0},
    step=0.002,
    steps=1000,
    why="A ball whose centre of mass lies below its middle, spun fast. It rolls without slipping, so it nods between "
    "two angles for ever: the toy turns over because it slips.",
    meaning={
        "eccentricity": "how far the centre of mass lies below the middle of the ball",
        "inertia": "about the centre of mass, across and along the axis",
    },
)
def tippe_top(
    mass: float = 0.02,
    radius: float = 0.02,
    eccentricity: float = 0.005,
    inertia: Numbers = (3.0e-6, 3.2e-6),
    gravity: float = 9.81,
) -> MechanismSystem:
    """A ball with its centre of mass out of its middle that rolls on the plane, on SE(3) (Routh 1905).

    The moments are across and along the axis of symmetry. Energy, Jellett's integral and Routh's are constant.
    """
    (mass, radius), (eccentricity,) = _sizes(mass=mass, radius=radius), _signed(eccentricity=eccentricity)
    across, along = _list("inertia", inertia, 2)
    top = Mechanism("tippe top", gravity=gravity)
    top.body("top", mass=mass, centre=(0, 0, radius - eccentricity), inertia=(across, across, along))
    top.free("top", at=(0, 0, radius))
    top.roll_ball("top", radius=radius, centre=(0, 0, radius))
    return top.system()


@register(
    "coin",
    example={},
    initial={"lean": 0.4, "spin_rate": 6.0, "yaw_rate": 3.0},
    step=0.01,
    steps=400,
    why="A coin that rolls and leans turns into its lean, and does not fall: the plane of its circle wobbles about a "
    "steady motion.",
)
def coin(mass: float = 0.5, radius: float = 0.1, thickness: float = 0.0, gravity: float = 9.81) -> MechanismSystem:
    """A disc that rolls on its edge, on SE(2) x R^3: track, height, lean, and its spin about the axle.

    The same body is `rolling-disk` on SO(3) x R^2; here the lean and the spin are coordinates.
    """
    mass, radius = _sizes(mass=mass, radius=radius)
    made = Mechanism("coin", gravity=gravity)
    for name in ("track", "lift", "yoke"):
        made.carrier(name)
    made.body("coin", mass=mass, centre=(0, 0, radius), cylinder=(radius, thickness), axis="y")
    made.planar("track")
    made.slider("height", "track", "lift", axis="z")
    made.hinge("lean", "lift", "yoke", axis="x", at=(0, 0, radius))
    made.hinge("spin", "yoke", "coin", axis="y")
    made.roll("coin", radius=radius)
    return made.system()


def _above(name: str, place: Numbers) -> tuple[float, float, float]:
    """A point in the middle plane, from how far ahead and how high it lies."""
    ahead, high = _list(name, place, 2)
    return ahead, 0.0, high


def _list(name: str, given: Numbers, count: int) -> list[float]:
    _require_known(name, given)
    return [float(number) for number in vector(given, count, name)]


def _read(check: Callable[[str, float], Array], **given: float) -> list[float]:
    for name, value in given.items():
        _require_known(name, value)
    return [float(check(name, value)) for name, value in given.items()]


_sizes, _signed = partial(_read, positive), partial(_read, finite)


def _require_known(name: str, value: Numbers) -> None:
    if is_traced(value):
        raise InvalidInput(
            f"{name} is traced by JAX, but a mechanism is drawn with numbers that are known: build the model first, "
            "and put other numbers into system.parameters (dataclasses.replace)"
        )
