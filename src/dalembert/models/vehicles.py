"""Vehicles on the plane with controls, and the feedback that steers them along a path or by gaits.

They are left-invariant under SE(2), with shape angles that steer and pump. Algebra (w, v1, v2, rates of the shape
angles), with the body frame on the axle (car, racer) or in the middle (snakeboard). Without controls
(`simulate(..., controls=)` or `with_feedback` gives them) the motors are off.

A path is the zero set of a function F(x) of the place x (2,), with F' != 0 on it; it is followed with F growing to the
left. Nothing has to be parametrised or projected. With the tangent's angle a(x), the distance e = F/|F'| and the
heading error d = theta - a, driving the curvature a_s - e/reach^2 - 2 sin(d)/reach, a_s being the change of a per metre
driven, gives e'' + 2 e'/reach + e/reach^2 = 0 per metre to first order (Samson 1995, with the derivatives taken by
`jax`). Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..groups import SE2, SO2, Group
from ..mechanics import Input, Names, Steered, System, gradient, with_feedback
from ..numerics import finite, is_traced, not_negative, positive
from ..numerics.types import Array, Element, Scalar
from .registry import PLACE, TWIST, Numbers, Real, Reals, Values, cached_partial, register, with_units

Path = Callable[[Array], Array]
Formula = Callable[..., Array]
Pose = tuple[Array, Array]  # of SE(2) x SO(2): the place, and the angle that steers
Board = tuple[Array, Array, Array]  # of a snakeboard: the place, the rotor, the wheels


@register(
    "unicycle",
    example={"centre": 0.2},
    initial={"velocity": [0.8, 1.0, 0.0]},
    steps=300,
    why="A body on one axle: the wheel cannot move sideways. Without motors it is the Chaplygin sleigh.",
    meaning={"centre": "how far the centre of mass lies ahead of the axle"},
)
def unicycle(mass: Real = 1.0, inertia: Real = 1.0, centre: Real = 0.0) -> System:
    """A vehicle on one axle, driven by a turning torque (N m) and a drive force (N): Chaplygin's sleigh with motors.

    v2 = 0. `centre` (m) is how far the centre of mass lies ahead of the axle, `inertia` (kg m^2) is about the centre
    of mass (Bloch 2003, 1.7). L = [J w^2 + m v1^2 + m (v2 + centre w)^2]/2 on SE(2). The basis of D is (w, v1).
    """
    parameters = _sizes(mass=mass, inertia=inertia) | {"centre": finite("centre", centre)}
    motors = {0: Input("turning torque", "N m"), 1: Input("drive force", "N")}
    names = with_units(PLACE, TWIST, "side force [N]")
    return _vehicle(SE2(), _body_lagrangian, _blade, parameters, motors, names)


@register(
    "car",
    example={"length": 1.2},
    initial={"velocity": [0.0, 1.0, 0.0, 0.3]},
    why="The rear wheels fix where the car can go, the front wheels how it turns. Nothing turns the front wheels in "
    "space, so the steering angle grows until the car turns as fast as they: it ends on a circle.",
    meaning={
        "centre": "how far the centre of mass lies ahead of the rear axle",
        "length": "from the rear axle to the front wheels",
    },
)
def car(mass: Real = 1.0, inertia: Real = 0.5, length: Real = 1.0, centre: Real = 0.5, steering: Real = 0.1) -> System:
    """A car with steered front wheels, driven by a drive force (N) and a steering torque (N m), on SE(2) x SO(2).

    Its rear axle is at the origin, s is the steering angle. L = [J w^2 + m v1^2 + m (v2 + centre w)^2 + steering (w +
    s')^2]/2; v2 = 0 and length w cos(s) = v1 sin(s) (Kobilarov-Marsden-Sukhatme 2010, with the roll of the wheels in
    the mass). The front wheels turn with the car, so that w + s' is constant without a torque. Controls: (drive force
    N, steering torque N m). `centre` is the centre of mass ahead of the rear axle (m), `steering` the moment of the
    front wheels about the vertical (kg m^2). Without controls: `exact_coasting`.
    """
    parameters = _sizes(mass=mass, inertia=inertia, length=length, steering=steering)
    parameters |= {"centre": finite("centre", centre)}
    motors = {1: Input("drive force", "N"), 3: Input("steering torque", "N m")}
    loads = "rear side force [N], front side force [N]"
    names = with_units(f"{PLACE}, steering [rad]", f"{TWIST}, steering rate [rad s-1]", loads)
    return _vehicle(SE2() * SO2(), _car_lagrangian, _steered_rows, parameters, motors, names)


@register(
    "snakeboard",
    example={"length": 0.2},
    initial={"velocity": [0.0, 0.5, 0.0, 2.0, 0.4]},
    step=0.02,
    steps=500,
    why="The wheels at both ends turn against each other, and a rotor turns above. The board can go only where both "
    "axles allow, so it winds as they turn. With torques on rotor and wheels (see `dalembert examples`) it drives "
    "itself without pushing off.",
    meaning={"length": "half the distance of the wheels"},
)
def snakeboard(
    mass: Real = 6.0, inertia: Real = 0.016, rotor: Real = 0.072, wheels: Real = 0.0013, length: Real = 0.2
) -> System:
    """A board with a rotor on it (angle a) and wheels at both ends that turn by +b and -b, on SE(2) x SO(2) x SO(2).

    L = [m |v|^2 + J w^2 + rotor (w + a')^2]/2 + wheels (w^2 + b'^2); v2 = 0 and length w cos(b) = v1 sin(b), length
    being half the distance of the wheels (Lewis-Ostrowski-Burdick-Murray 1994; Bloch-Krishnaprasad-Marsden-Murray
    1996). Controls: the torques (rotor, wheels) in N m. Valid for |b| < pi/2. Defaults in kg, m as for the Caltech
    board. Without controls the momentum rotor (w + a') and b' are constant and the rest is `exact_coasting`.
    """
    parameters = _sizes(mass=mass, inertia=inertia, rotor=rotor, wheels=wheels, length=length)
    group = SE2() * SO2() * SO2()
    motors = {3: Input("rotor torque", "N m"), 4: Input("wheel torque", "N m")}
    names = with_units(f"{PLACE}, rotor [rad], wheels [rad]", f"{TWIST}, rotor rate [rad s-1], wheel rate [rad s-1]")
    return _vehicle(group, _board_lagrangian, _steered_rows, parameters, motors, names)


@register(
    "roller-racer",
    example={"front": 0.5, "arm": 0.3},
    initial={"velocity": [-0.375, 0.6, 0.0, 1.0]},
    why="Two bodies on an axle each, joined by a pivot: when the arm swings, both axles together allow only one way to "
    "go.",
    meaning={"front": "from the first axle to the pivot", "arm": "from the pivot to the second axle"},
)
def roller_racer(
    mass: Real = 1.0,
    inertia: Real = 0.3,
    rider: Real = 0.2,
    rider_inertia: Real = 0.05,
    front: Real = 0.5,
    arm: Real = 0.3,
) -> System:
    """Two bodies on an axle each, joined by a pivot with the angle s: the arms wiggle and it runs.

    The pivot is `front` ahead of the first axle and the second axle `arm` beyond the pivot (either sign, not 0), each
    body with its mass on its axle (Krishnaprasad-Tsakiris 2001). L = [m |v|^2 + J w^2 + m2 |V|^2 + J2 (w + s')^2]/2
    with V = (v1, v2 + front w) + arm (w + s') (-sin s, cos s); v2 = 0 and front w cos(s) + arm (w + s') = v1 sin(s).
    Control: the torque in the pivot (N m). `rider` (kg) may be 0, as in the source.
    """
    lever = finite("arm", arm)
    if not is_traced(lever) and lever == 0:
        raise InvalidInput("arm is 0; allowed: a distance of either sign, not 0 (the second axle would be the pivot)")
    parameters = _sizes(mass=mass, inertia=inertia, rider_inertia=rider_inertia)
    parameters |= {"rider": not_negative("rider", rider), "front": finite("front", front), "arm": lever}
    loads = "first side force [N], second side force [N]"
    names = with_units(f"{PLACE}, pivot [rad]", f"{TWIST}, pivot rate [rad s-1]", loads)
    motors = {3: Input("pivot torque", "N m")}
    return _vehicle(SE2() * SO2(), _racer_lagrangian, _racer_rows, parameters, motors, names)


def _sizes(**values: Real) -> Values:
    return {name: positive(name, value) for name, value in values.items()}


def _body_lagrangian(t: Scalar, g: Element, xi: Array, p: Values) -> Array:
    w, v1, v2 = xi[:3]
    return cast(Array, 0.5 * (p["inertia"] * w**2 + p["mass"] * (v1**2 + (v2 + p["centre"] * w) ** 2)))


def _blade(t: Scalar, g: Array, p: Values) -> Array:
    return jnp.array([[0.0, 0.0, 1.0]])


def _car_lagrangian(t: Scalar, g: Pose, xi: Array, p: Values) -> Array:
    return _body_lagrangian(t, g, xi, p) + 0.5 * p["steering"] * (xi[0] + xi[3]) ** 2


def _steered_rows(t: Scalar, g: Pose | Board, p: Values) -> Array:
    """v2 and length w cos(s) - v1 sin(s), for the last rotation by s."""
    turned, zeros = g[-1], [jnp.zeros(())] * len(g)
    steering = jnp.stack([p["length"] * turned[0, 0], -turned[1, 0], *zeros])
    return jnp.stack([jnp.eye(2 + len(g))[2], steering])


def _board_lagrangian(t: Scalar, g: Board, xi: Array, p: Values) -> Array:
    w, v1, v2, a, b = xi
    turning = p["inertia"] * w**2 + p["rotor"] * (w + a) ** 2 + 2 * p["wheels"] * (w**2 + b**2)
    return cast(Array, 0.5 * (p["mass"] * (v1**2 + v2**2) + turning))


def _racer_lagrangian(t: Scalar, g: Pose, xi: Array, p: Values) -> Array:
    w, v1, v2, rate = xi
    cosine, sine = g[1][0, 0], g[1][1, 0]
    swing = p["arm"] * (w + rate)
    along, across = v1 - swing * sine, v2 + p["front"] * w + swing * cosine
    first = p["mass"] * (v1**2 + v2**2) + p["inertia"] * w**2
    return cast(Array, 0.5 * (first + p["rider"] * (along**2 + across**2) + p["rider_inertia"] * (w + rate) ** 2))


def _racer_rows(t: Scalar, g: Pose, p: Values) -> Array:
    cosine, sine = g[1][0, 0], g[1][1, 0]
    second = jnp.stack([p["front"] * cosine + p["arm"], -sine, cosine, p["arm"]])
    return jnp.stack([jnp.array([0.0, 0.0, 1.0, 0.0]), second])


def _vehicle(
    group: Group, lagrangian: Formula, rows: Formula, parameters: Values, motors: dict[int, Input], names: Names
) -> System:
    """The system whose inputs are the forces on some components of the velocity."""
    force = cached_partial(_input_force, tuple(motors), group.dim)
    inputs = tuple(motors.values())
    return System(group, lagrangian, rows, parameters=parameters, force=force, inputs=inputs, names=names)


def _input_force(components: tuple[int, ...], dim: int, t: Scalar, g: Element, xi: Array, u: Array, p: Values) -> Array:
    return cast(Array, np.eye(dim)[:, list(components)] @ u)


def coasting_state(turned: Array, xi: Array, turning: Array, p: Values) -> tuple[Array, Array, Array, Array, Array]:
    """(cos(s), sin(s), n, M, M_s/2) of a car or snakeboard steered by s.

    w = n sin(s), v1 = length n cos(s), and M n' + M_s s' n/2 is the drive force times length cos(s), less the torque
    on a wheel or rotor times sin(s), with M = turning sin(s)^2 + m length^2 cos(s)^2.
    """
    cosine, sine = turned[0, 0], turned[1, 0]
    driving = p["mass"] * p["length"] ** 2
    spin = xi[0] * sine + xi[1] / p["length"] * cosine
    return cosine, sine, spin, turning * sine**2 + driving * cosine**2, (turning - driving) * sine * cosine


def exact_coasting(
    t: Numbers, angle: float, rate: float, spin: float, *, turning: float, driving: float, length: float, carried: float
) -> tuple[Reals, Reals]:
    """((angle, spin), (theta, x, y)) at times t of a car or snakeboard without controls, shapes (..., 2) and (..., 3).

    w = spin sin(s), v1 = length spin cos(s), and [turning sin(s)^2 + driving cos(s)^2] spin^2 is constant. Car: turning
    = J + m centre^2, driving = m length^2, and s' + w is constant (carried = 1). Snakeboard: turning = J + 2 wheels,
    driving = m length^2, and s' is (carried = 0). By DOP853 at 1e-13.
    """
    from scipy.integrate import solve_ivp

    t = np.atleast_1d(np.asarray(t, float))

    def spin_at(s: Any) -> Any:
        inertia, first = (turning * np.sin(x) ** 2 + driving * np.cos(x) ** 2 for x in (s, angle))
        return spin * np.sqrt(first / inertia)

    def motion(time: float, y: Reals) -> list[float]:
        s, theta, n = y[0], y[1], spin_at(y[0])
        steering = rate + carried * (spin * np.sin(angle) - n * np.sin(s))
        return [steering, n * np.sin(s), length * n * np.cos(s) * np.cos(theta), length * n * np.cos(s) * np.sin(theta)]

    s, *pose = solve_ivp(motion, (0.0, t.max()), [angle, 0.0, 0.0, 0.0], "DOP853", t, rtol=1e-13, atol=1e-13).y
    return np.stack([s, spin_at(s)], axis=-1), np.stack(pose, axis=-1)


@dataclass(frozen=True)
class PathFollower:
    """The parameters p of a vehicle, what is asked of it, and the path.

    `speed` (m/s) is wanted of v1, `reach` (m) is the length over which a distance from the path dies out, `quickness`
    (1/s) the rate at which speed and steering follow what is asked of them.
    """

    p: Values
    speed: Array
    reach: Array
    quickness: Array
    path: Path = field(metadata={"static": True})

    def curvature(self, pose: Array) -> Array:
        """The curvature to drive at `pose` in SE(2)."""
        place, heading = pose[:2, 2], pose[:2, 0]

        def along(x: Array) -> Array:
            slope = gradient(self.path, x)
            return jnp.stack([slope[1], -slope[0]])

        cross: Callable[[Array, Array], Array] = lambda a, b: a[0] * b[1] - a[1] * b[0]
        tangent: Array
        tangent, turning = jax.jvp(along, (place,), (heading,))
        square = tangent @ tangent
        bend, sine = cross(tangent, turning) / square, cross(tangent, heading) / jnp.sqrt(square)
        return bend - self.path(place) / jnp.sqrt(square) / self.reach**2 - 2 * sine / self.reach

    def with_rate(self, function: Path, pose: Array, velocity: Array) -> tuple[Array, Array]:
        """function(curvature) and its rate along the motion."""
        moved = lambda eta: function(self.curvature(SE2().shift(pose, eta)))
        value, rate = jax.jvp(moved, (jnp.zeros(3),), (velocity,))
        return value, rate

    def turn_wheels(self, pose: Array, turned: Array, velocity: Array, rate: Array) -> Array:
        """The acceleration of the steering angle towards tan(angle) = length curvature, critically damped."""
        wanted, wanted_rate = self.with_rate(lambda k: jnp.arctan(self.p["length"] * k), pose, velocity)
        return self.quickness**2 * _ahead(wanted, turned) + 2 * self.quickness * (wanted_rate - rate)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UnicycleFollower(PathFollower):
    """(turning torque, drive force): v1' = quickness (speed - v1), w' = (v1 k)' + quickness (v1 k - w), curvature k."""

    def __call__(self, t: Scalar, g: Array, xi: Array) -> Array:
        (w, v, _), p = xi, self.p
        faster = self.quickness * (self.speed - v)
        curvature, rate = self.with_rate(lambda k: k, g, xi)
        turn = faster * curvature + v * rate + self.quickness * (v * curvature - w)
        lever = p["mass"] * p["centre"]
        torque = (p["inertia"] + lever * p["centre"]) * turn + lever * w * v
        return jnp.stack([torque, p["mass"] * faster - lever * w**2])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CarFollower(PathFollower):
    """(drive force, steering torque) with v1' = quickness (speed - v1)."""

    def __call__(self, t: Scalar, g: Pose, xi: Array) -> Array:
        (pose, turned), p = g, self.p
        turning = p["inertia"] + p["mass"] * p["centre"] ** 2
        cosine, sine, spin, inertia, slope = coasting_state(turned, xi, turning, p)
        faster = self.quickness * (self.speed - xi[1]) / p["length"]
        change = (faster + spin * sine * xi[3]) / cosine
        turn = self.turn_wheels(pose, turned, xi[:3], xi[3]) + change * sine + spin * cosine * xi[3]  # s'' + w'
        torque = p["steering"] * turn
        drive = (inertia * change + slope * xi[3] * spin + torque * sine) / (p["length"] * cosine)
        return jnp.stack([drive, torque])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SnakeboardFollower(PathFollower):
    """(rotor torque, wheel torque): the wheels steer, and while they are turned by b the rotor pumps the spin n.

    With n = v1/(length cos b), M n' + M_b b' n/2 = -sin(b) torque, so that torque = quickness M sin(b) (n -
    speed/length) never drives n away from what is wanted.
    """

    def __call__(self, t: Scalar, g: Board, xi: Array) -> Array:
        (pose, _, turned), p = g, self.p
        _, sine, spin, inertia, _ = coasting_state(turned, xi, p["inertia"] + 2 * p["wheels"], p)
        pump = self.quickness * inertia * sine * (spin - self.speed / p["length"])
        return jnp.stack([pump, 2 * p["wheels"] * self.turn_wheels(pose, turned, xi[:3], xi[4])])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gait:
    """(rotor torque, wheel torque) for a = rotor sin(rotor_rate t), b = wheels sin(wheel_rate t + lag) on a snakeboard.

    Rates 1:1 drive it forward, 2:1 turn it on the spot, 3:2 park it sideways (Lewis-Ostrowski-Burdick-Murray 1994).
    """

    p: Values
    rotor: Array
    wheels: Array
    rotor_rate: Array
    wheel_rate: Array
    lag: Array
    quickness: Array

    def shape(self, t: Array) -> Array:
        """(a, b) wanted at time t."""
        wheels = self.wheels * jnp.sin(self.wheel_rate * t + self.lag)
        return jnp.stack([self.rotor * jnp.sin(self.rotor_rate * t), wheels])

    def __call__(self, t: Array, g: Board, xi: Array) -> Array:
        (_, first, second), p = g, self.p
        angles, (rates, accelerations) = self.shape(t), jax.jvp(jax.jacfwd(self.shape), (t,), (jnp.ones_like(t),))
        lead = jnp.stack([_ahead(angles[0], first), _ahead(angles[1], second)])
        rotor, wheels = accelerations + 2 * self.quickness * (rates - xi[3:]) + self.quickness**2 * lead
        cosine, sine, spin, inertia, slope = coasting_state(second, xi, p["inertia"] + 2 * p["wheels"], p)
        # rotor (w' + a'') = torque with w' = n' sin b + n cos b b'
        carried = spin * xi[4] * (cosine - sine * slope / inertia)
        torque = p["rotor"] * (rotor + carried) / (1 + p["rotor"] * sine**2 / inertia)
        return jnp.stack([torque, 2 * p["wheels"] * wheels])


def _ahead(angle: Array, turned: Array) -> Array:
    """The angle from a planar rotation to the one by `angle`, in (-pi, pi]."""
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.arctan2(sine * turned[0, 0] - cosine * turned[1, 0], cosine * turned[0, 0] + sine * turned[1, 0])


def unicycle_on_path(
    unicycle: System, path: Path, *, speed: Real = 1.0, reach: Real = 1.0, quickness: Real = 10.0
) -> Steered:
    """A `unicycle` that comes onto the path F = 0 and follows it: see `PathFollower`."""
    return with_feedback(unicycle, UnicycleFollower(unicycle.parameters, *_gains(speed, reach, quickness), path))


def car_on_path(car: System, path: Path, *, speed: Real = 1.0, reach: Real = 1.0, quickness: Real = 10.0) -> Steered:
    """A `car` whose rear axle comes onto the path F = 0 and follows it: see `PathFollower`."""
    return with_feedback(car, CarFollower(car.parameters, *_gains(speed, reach, quickness), path))


def snakeboard_on_path(
    board: System, path: Path, *, speed: Real = 0.5, reach: Real = 0.5, quickness: Real = 10.0
) -> Steered:
    """A `snakeboard` that comes onto the path F = 0 and follows it, from rest: it pumps only where the path bends."""
    return with_feedback(board, SnakeboardFollower(board.parameters, *_gains(speed, reach, quickness), path))


def snakeboard_gait(
    board: System,
    *,
    rotor: Real = 1.0,
    wheels: Real = 0.5,
    rotor_rate: Real = 3.0,
    wheel_rate: Real = 3.0,
    lag: Real = 0.0,
    quickness: Real = 10.0,
) -> Steered:
    """A `snakeboard` whose rotor and wheels swing: see `Gait`. Angles in radians, rates in rad/s."""
    swings = {"rotor": rotor, "wheels": wheels, "rotor_rate": rotor_rate, "wheel_rate": wheel_rate, "lag": lag}
    checked = {name: finite(name, value) for name, value in swings.items()}
    return with_feedback(board, Gait(board.parameters, **checked, quickness=positive("quickness", quickness)))


def _gains(speed: Real, reach: Real, quickness: Real) -> tuple[Array, Array, Array]:
    return positive("speed", speed), positive("reach", reach), positive("quickness", quickness)
