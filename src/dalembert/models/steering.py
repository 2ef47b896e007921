"""Feedback that steers: a unicycle, a car and a snakeboard along a path, and a snakeboard by gaits.

A path is the zero set of a function F(x) of the place x (2,), with F' != 0 on it; it is followed with F growing to the left. Nothing has
to be parametrised or projected. With the tangent's angle a(x), the distance e = F/|F'| and the heading error d = theta - a, driving the
curvature a_s - e/reach^2 - 2 sin(d)/reach, a_s being the change of a per metre driven, gives e'' + 2 e'/reach + e/reach^2 = 0 per metre
to first order (Samson 1995, with the derivatives taken by `jax`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from .._input import finite, positive
from ..forces import Steered, steered
from ..groups import SE2
from ..system import System
from .wheeled import coasting_inertia

PATH = ("p", "speed", "reach", "quickness")


@dataclass(frozen=True)
class PathFollower:
    """The parameters p of a vehicle, what is asked of it, and the path.

    `speed` (m/s) is wanted of v1, `reach` (m) is the length over which a distance from the path dies out, `quickness` (1/s) the rate
    at which speed and steering follow what is asked of them.
    """

    p: dict[str, Array]
    speed: Array
    reach: Array
    quickness: Array
    path: Callable

    def curvature(self, pose) -> Array:
        """The curvature to drive at `pose` in SE(2)."""
        place, heading = pose[:2, 2], pose[:2, 0]

        def along(x):
            slope = jax.grad(self.path)(x)
            return jnp.stack([slope[1], -slope[0]])

        tangent, turning = jax.jvp(along, (place,), (heading,))
        square = tangent @ tangent
        bend, sine = _cross(tangent, turning) / square, _cross(tangent, heading) / jnp.sqrt(square)
        return bend - self.path(place) / jnp.sqrt(square) / self.reach**2 - 2 * sine / self.reach

    def with_rate(self, function: Callable, pose, velocity) -> tuple[Array, Array]:
        """function(curvature) and its rate along the motion."""
        moved = lambda eta: function(self.curvature(SE2().shift(pose, eta)))
        return jax.jvp(moved, (jnp.zeros(3),), (velocity,))

    def turn_wheels(self, pose, turned, velocity, rate) -> Array:
        """The acceleration of the steering angle towards tan(angle) = length curvature, critically damped."""
        wanted, wanted_rate = self.with_rate(lambda k: jnp.arctan(self.p["length"] * k), pose, velocity)
        return self.quickness**2 * _ahead(wanted, turned) + 2 * self.quickness * (wanted_rate - rate)


@partial(jax.tree_util.register_dataclass, data_fields=PATH, meta_fields=("path",))
@dataclass(frozen=True)
class UnicycleFollower(PathFollower):
    """(turning torque, drive force) with v1' = quickness (speed - v1), w' = (v1 k)' + quickness (v1 k - w) for the curvature k."""

    def __call__(self, t, g, xi) -> Array:
        (w, v, _), p = xi, self.p
        faster = self.quickness * (self.speed - v)
        curvature, rate = self.with_rate(lambda k: k, g, xi)
        turn = faster * curvature + v * rate + self.quickness * (v * curvature - w)
        lever = p["mass"] * p["centre"]
        return jnp.stack(
            [(p["inertia"] + lever * p["centre"]) * turn + lever * w * v, p["mass"] * faster - lever * w**2]
        )


@partial(jax.tree_util.register_dataclass, data_fields=PATH, meta_fields=("path",))
@dataclass(frozen=True)
class CarFollower(PathFollower):
    """(drive force, steering torque) with v1' = quickness (speed - v1)."""

    def __call__(self, t, g, xi) -> Array:
        pose, turned = g
        cosine, sine, p = turned[0, 0], turned[1, 0], self.p
        spin = xi[0] * sine + xi[1] / p["length"] * cosine
        inertia, slope = coasting_inertia(cosine, sine, p["inertia"] + p["mass"] * p["centre"] ** 2, p)
        faster = self.quickness * (self.speed - xi[1]) / p["length"]
        change = (faster + spin * sine * xi[3]) / cosine
        drive = (inertia * change + slope * xi[3] * spin) / (p["length"] * cosine)
        return jnp.stack([drive, p["steering"] * self.turn_wheels(pose, turned, xi[:3], xi[3])])


@partial(jax.tree_util.register_dataclass, data_fields=PATH, meta_fields=("path",))
@dataclass(frozen=True)
class SnakeboardFollower(PathFollower):
    """(rotor torque, wheel torque): the wheels steer, and while they are turned by b the rotor pumps the spin n = v1/(length cos b).

    M n' + M_b b' n/2 = -sin(b) torque, so that torque = quickness M sin(b) (n - speed/length) never drives n away from what is wanted.
    """

    def __call__(self, t, g, xi) -> Array:
        pose, _, turned = g
        cosine, sine, p = turned[0, 0], turned[1, 0], self.p
        spin = xi[0] * sine + xi[1] / p["length"] * cosine
        inertia, _ = coasting_inertia(cosine, sine, p["inertia"] + 2 * p["wheels"], p)
        pump = self.quickness * inertia * sine * (spin - self.speed / p["length"])
        return jnp.stack([pump, 2 * p["wheels"] * self.turn_wheels(pose, turned, xi[:3], xi[4])])


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("p", "rotor", "wheels", "rotor_rate", "wheel_rate", "lag", "quickness"),
    meta_fields=(),
)
@dataclass(frozen=True)
class Gait:
    """(rotor torque, wheel torque) of a snakeboard that swings a = rotor sin(rotor_rate t), b = wheels sin(wheel_rate t + lag).

    Rates rotor : wheels of 1:1 drive it forward, 2:1 turn it on the spot, 3:2 park it sideways (Lewis-Ostrowski-Burdick-Murray 1994).
    """

    p: dict[str, Array]
    rotor: Array
    wheels: Array
    rotor_rate: Array
    wheel_rate: Array
    lag: Array
    quickness: Array

    def shape(self, t) -> Array:
        """(a, b) wanted at time t."""
        return jnp.stack(
            [self.rotor * jnp.sin(self.rotor_rate * t), self.wheels * jnp.sin(self.wheel_rate * t + self.lag)]
        )

    def __call__(self, t, g, xi) -> Array:
        (_, first, second), p = g, self.p
        angles, (rates, accelerations) = self.shape(t), jax.jvp(jax.jacfwd(self.shape), (t,), (jnp.ones_like(t),))
        lead = jnp.stack([_ahead(angles[0], first), _ahead(angles[1], second)])
        rotor, wheels = accelerations + 2 * self.quickness * (rates - xi[3:]) + self.quickness**2 * lead
        cosine, sine = second[0, 0], second[1, 0]
        spin = xi[0] * sine + xi[1] / p["length"] * cosine
        inertia, slope = coasting_inertia(cosine, sine, p["inertia"] + 2 * p["wheels"], p)
        # rotor (w' + a'') = torque with w' = n' sin b + n cos b b' and M n' + M_b b' n/2 = -sin(b) torque
        carried = spin * xi[4] * (cosine - sine * slope / inertia)
        torque = p["rotor"] * (rotor + carried) / (1 + p["rotor"] * sine**2 / inertia)
        return jnp.stack([torque, 2 * p["wheels"] * wheels])


def _cross(a, b) -> Array:
    return a[0] * b[1] - a[1] * b[0]


def _ahead(angle, turned) -> Array:
    """The angle from a planar rotation to the one by `angle`, in (-pi, pi]."""
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.arctan2(sine * turned[0, 0] - cosine * turned[1, 0], cosine * turned[0, 0] + sine * turned[1, 0])


# -- closed loops -----------------------------------------------------------------------------------------------------------------
def unicycle_on_path(unicycle: System, path: Callable, *, speed=1.0, reach=1.0, quickness=10.0) -> Steered:
    """A `unicycle` that comes onto the path F = 0 and follows it: see `PathFollower`."""
    return steered(unicycle, UnicycleFollower(unicycle.parameters, *_gains(speed, reach, quickness), path))


def car_on_path(car: System, path: Callable, *, speed=1.0, reach=1.0, quickness=10.0) -> Steered:
    """A `car` whose rear axle comes onto the path F = 0 and follows it: see `PathFollower`."""
    return steered(car, CarFollower(car.parameters, *_gains(speed, reach, quickness), path))


def snakeboard_on_path(board: System, path: Callable, *, speed=0.5, reach=0.5, quickness=10.0) -> Steered:
    """A `snakeboard` that comes onto the path F = 0 and follows it, from rest: it can pump only where the path bends."""
    return steered(board, SnakeboardFollower(board.parameters, *_gains(speed, reach, quickness), path))


def snakeboard_gait(
    board: System, *, rotor=1.0, wheels=0.5, rotor_rate=3.0, wheel_rate=3.0, lag=0.0, quickness=10.0
) -> Steered:
    """A `snakeboard` whose rotor and wheels swing: see `Gait`. Angles in radians, rates in rad/s."""
    swings = {"rotor": rotor, "wheels": wheels, "rotor_rate": rotor_rate, "wheel_rate": wheel_rate, "lag": lag}
    checked = {name: finite(name, value) for name, value in swings.items()}
    return steered(board, Gait(board.parameters, **checked, quickness=positive("quickness", quickness)))


def _gains(speed, reach, quickness) -> tuple[Array, Array, Array]:
    return positive("speed", speed), positive("reach", reach), positive("quickness", quickness)
