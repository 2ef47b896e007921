"""Kane's equations of the models by SymPy (`sympy.physics.mechanics`): bodies, frames, points, speeds, no Lagrangian.

A `Kane` has the equations of a mechanism as functions of numbers, and says in SymPy's own geometry what our element of
the group and our velocity are: directions by `dcm`, velocities by `ang_vel_in` and `vel`. `CASES` has each mechanism
beside its model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import sympy as sm
from scipy.integrate import solve_ivp
from sympy.physics.mechanics import KanesMethod, Particle, Point, ReferenceFrame, RigidBody, dynamicsymbols, inertia

import dalembert as da

models = da.models


class Kane:
    """M(q) u' = f(q, u) of a mechanism, with our g(q) and xi(q, u).

    `speeds` are the independent generalised speeds, `dependent` those that `constraints` fix; `constants` are
    parameters and inputs in the order in which numbers for them are given.
    """

    def __init__(
        self, frame, q, speeds, kinematics, bodies, loads, constants, element, velocity, dependent=(), constraints=()
    ):
        u = [*speeds, *dependent]
        method = KanesMethod(
            frame,
            q_ind=q,
            u_ind=speeds,
            kd_eqs=kinematics,
            u_dependent=dependent or None,
            velocity_constraints=constraints or None,
        )
        method.kanes_equations(bodies, loads)
        rates = method.kindiffdict()
        qdot = sm.Matrix([rates[x.diff()] for x in q])
        element, velocity = [sm.Matrix(part) for part in element], sm.Matrix(velocity).xreplace(rates)
        rows = sm.Matrix(constraints).xreplace(rates) if constraints else sm.zeros(0, 1)
        at_rest = dict.fromkeys(u, sm.Integer(0))
        arguments = (q, u, constants)
        motion = [method.mass_matrix, method.forcing, qdot, velocity.jacobian(q), velocity.jacobian(u)]
        self._motion = sm.lambdify(arguments, [part.xreplace(rates) for part in motion], cse=True)
        self._place = sm.lambdify(arguments, [*element, velocity], cse=True)
        self._rows = sm.lambdify((q, constants), [rows.jacobian(u) if rows else rows, rows.xreplace(at_rest)], cse=True)
        self.sizes = len(q), len(speeds), len(dependent)

    def admissible(self, q, speeds, constants):
        """All speeds from the independent ones."""
        if not self.sizes[2]:
            return speeds
        rows, drift = self._rows(q, constants)
        count = len(speeds)
        return np.append(speeds, np.linalg.solve(rows[:, count:], -drift[:, 0] - rows[:, :count] @ speeds))

    def state(self, q, u, constants):
        """(g, xi)."""
        *element, velocity = self._place(q, u, constants)
        element = [part[:, 0] if part.shape[1] == 1 else part for part in element]
        return (element[0] if len(element) == 1 else tuple(element)), velocity[:, 0]

    def rates(self, q, u, constants):
        """(q', u', xi')."""
        mass, force, qdot, along, across = self._motion(q, u, constants)
        udot = np.linalg.solve(mass, force[:, 0])
        return qdot[:, 0], udot, along @ qdot[:, 0] + across @ udot

    def flow(self, q, u, constants, end):
        """(q, u) at the time `end`, by DOP853."""
        count = len(q)
        field = lambda t, y: np.concatenate(self.rates(y[:count], y[count:], constants)[:2])
        y = solve_ivp(field, (0.0, end), np.append(q, u), "DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
        return y[:count], y[count:]


def planar(angle, place):
    """The element of SE(2), as a matrix."""
    return [
        [sm.cos(angle), -sm.sin(angle), place[0]],
        [sm.sin(angle), sm.cos(angle), place[1]],
        [0, 0, 1],
    ]


def placed(attitude, place):
    """The element of SE(3), as a matrix."""
    return sm.Matrix.vstack(sm.Matrix.hstack(attitude, sm.Matrix(place)), sm.Matrix([[0, 0, 0, 1]]))


def turned(angle):
    return [[sm.cos(angle), -sm.sin(angle)], [sm.sin(angle), sm.cos(angle)]]


class Floor:
    """A body frame B that turns by th in the plane N and whose origin P moves with (v1, v2) in B."""

    def __init__(self):
        self.q, self.u = list(dynamicsymbols("th x y")), list(dynamicsymbols("w v1 v2"))
        (th, x, y), (w, v1, v2) = self.q, self.u
        self.N = ReferenceFrame("N")
        self.B = self.N.orientnew("B", "Axis", [th, self.N.z])
        self.B.set_ang_vel(self.N, w * self.B.z)
        self.P = Point("P")
        self.P.set_vel(self.N, v1 * self.B.x + v2 * self.B.y)
        moved = self.P.vel(self.N)
        self.kinematics = [th.diff() - w, x.diff() - moved.dot(self.N.x), y.diff() - moved.dot(self.N.y)]
        self.element, self.velocity = planar(th, (x, y)), [w, v1, v2]

    def body(self, name, frame, point, mass, moment):
        """A body in the plane, `moment` about its centre of mass."""
        return RigidBody(name, point, frame, mass, (inertia(frame, 0, 0, moment), point))

    def joint(self, name, angle, rate, axis=None):
        """A frame turned by `angle` about the vertical of B."""
        frame = self.B.orientnew(name, "Axis", [angle, self.B.z if axis is None else axis])
        frame.set_ang_vel(self.B, rate * (self.B.z if axis is None else axis))
        return frame

    def fixed(self, name, offset, frame=None, origin=None):
        """A point of the body, or of one with another frame and a point of it."""
        origin = origin or self.P
        point = origin.locatenew(name, offset)
        point.v2pt_theory(origin, self.N, frame or self.B)
        return point

    def wheel(self, name, frame, centre, axle, angle, rate, numbers):
        """(body, its frame, the slip of its lowest point): a wheel on a frame, by its (radius, mass, along, across)."""
        radius, mass, along, across = numbers
        turned = frame.orientnew(name, "Axis", [angle, axle])
        turned.set_ang_vel(frame, rate * axle)
        moments = inertia(frame, across, across, across) + (along - across) * axle.outer(axle)
        slip = centre.vel(self.N) + turned.ang_vel_in(self.N).cross(-radius * self.N.z)
        return RigidBody(name, centre, turned, mass, (moments, centre)), turned, slip

    def vehicle(self, joints, speeds, dependent, rows, bodies, loads, constants):
        """The equations of a vehicle whose joints are [(coordinate, rate)], in the order of our R^k."""
        q, rates = zip(*joints, strict=True)
        kinematics = [*self.kinematics, *(x.diff() - v for x, v in joints)]
        return Kane(
            self.N, [*self.q, *q], speeds, kinematics, bodies, loads, constants, [self.element, list(q)],
            [*self.velocity, *rates], dependent, rows,
        )  # fmt: skip


@cache
def sleigh():
    """A body on a blade, with a turning torque and a force along the blade."""
    m, J, a, b, torque, drive = constants = sm.symbols("m J a b torque drive")
    at = Floor()
    G = at.fixed("G", a * at.B.x + b * at.B.y)
    bodies = [at.body("body", at.B, G, m, J)]
    loads = [(at.B, torque * at.B.z), (at.P, drive * at.B.x)]
    w, v1, v2 = at.u
    return Kane(at.N, at.q, [w, v1], at.kinematics, bodies, loads, constants, [at.element], at.velocity, [v2], [v2])


@cache
def push_on_the_blade():
    """The push of the ground on the blade, to its left, as a function of (q, (w, v1), their rates, constants).

    The velocity v2 across the blade is an auxiliary speed: it is 0, and its equation has the push in it.
    """
    m, J, a, b, torque, drive, push = symbols = sm.symbols("m J a b torque drive push")
    at = Floor()
    G = at.fixed("G", a * at.B.x + b * at.B.y)
    loads = [(at.B, torque * at.B.z), (at.P, drive * at.B.x + push * at.B.y)]
    w, v1, v2 = at.u
    kinematics = [row.subs(v2, 0) for row in at.kinematics]
    method = KanesMethod(at.N, q_ind=at.q, u_ind=[w, v1], kd_eqs=kinematics, u_auxiliary=[v2])
    method.kanes_equations([at.body("body", at.B, G, m, J)], loads)
    (found,) = sm.solve(method.auxiliary_eqs, push).values()
    return sm.lambdify((at.q, [w, v1], [w.diff(), v1.diff()], symbols[:-1]), found)


@cache
def knife_edge():
    """A blade under the centre of mass on a slope: the weight is vertical, the slope carries it."""
    m, J, slope, g = constants = sm.symbols("m J slope g")
    at = Floor()
    down = sm.sin(slope) * at.N.x - sm.cos(slope) * at.N.z
    w, v1, v2 = at.u
    bodies = [at.body("body", at.B, at.P, m, J)]
    loads = [(at.P, m * g * down)]
    return Kane(at.N, at.q, [w, v1], at.kinematics, bodies, loads, constants, [at.element], at.velocity, [v2], [v2])


@cache
def upright_disc():
    """A disc on a slope that stays upright: it turns about the normal of the slope and rolls about its axle."""
    m, rolling, turning, r, slope, g = constants = sm.symbols("m rolling turning r slope g")
    phi, spin = dynamicsymbols("phi spin")
    at = Floor()
    wheel = at.joint("W", phi, spin, at.B.y)
    bodies = [RigidBody("disc", at.P, wheel, m, (inertia(at.B, 0, rolling, turning), at.P))]
    loads = [(at.P, m * g * (sm.sin(slope) * at.N.x - sm.cos(slope) * at.N.z))]
    w, v1, v2 = at.u
    slip = at.P.vel(at.N) + wheel.ang_vel_in(at.N).cross(-r * at.N.z)
    return Kane(
        at.N, [*at.q, phi], [w, spin], [*at.kinematics, phi.diff() - spin], bodies, loads, constants,
        [at.element, turned(phi)], [*at.velocity, spin], [v1, v2], [slip.dot(at.B.x), slip.dot(at.B.y)],
    )  # fmt: skip


@cache
def car(shaft=False):
    """A car whose steering is a fork that turns about the vertical, or has the moment of a shaft along the car."""
    m, J, length, centre, steering, drive, torque = constants = sm.symbols("m J length centre steering drive torque")
    s, rate = dynamicsymbols("s rate")
    at = Floor()
    G, F = at.fixed("G", centre * at.B.x), at.fixed("F", length * at.B.x)
    wheel = at.joint("W", s, rate)
    axis = at.B.x if shaft else at.B.z
    turning = at.joint("S", s, rate, axis) if shaft else wheel
    moment = inertia(turning, steering, 0, 0) if shaft else inertia(wheel, 0, 0, steering)
    bodies = [at.body("body", at.B, G, m, J), RigidBody("steering", F, turning, 0, (moment, F))]
    loads = [(at.P, drive * at.B.x), (turning, torque * axis), (at.B, -torque * axis)]
    w, v1, v2 = at.u
    rows = [at.P.vel(at.N).dot(at.B.y), F.vel(at.N).dot(wheel.y)]
    return Kane(
        at.N, [*at.q, s], [v1, rate], [*at.kinematics, s.diff() - rate], bodies, loads, constants,
        [at.element, turned(s)], [*at.velocity, rate], [v2, w], rows,
    )  # fmt: skip


@cache
def snakeboard():
    """A board, a rotor, and two trucks that a gear turns by opposite angles; torques act between board and parts."""
    m, J, rotor, wheels, length, spin, steer = constants = sm.symbols("m J rotor wheels length spin steer")
    a, b, a_rate, b_rate = dynamicsymbols("a b a_rate b_rate")
    at = Floor()
    above, front, rear = at.joint("R", a, a_rate), at.joint("F", b, b_rate), at.joint("H", -b, -b_rate)
    ahead, behind = at.fixed("A", length * at.B.x), at.fixed("Z", -length * at.B.x)
    bodies = [
        at.body("board", at.B, at.P, m, J),
        at.body("rotor", above, at.P, 0, rotor),
        at.body("front", front, ahead, 0, wheels),
        at.body("rear", rear, behind, 0, wheels),
    ]
    up = at.B.z
    loads = [(above, spin * up), (at.B, -spin * up), (front, steer / 2 * up), (rear, -steer / 2 * up)]
    w, v1, v2 = at.u
    rows = [ahead.vel(at.N).dot(front.y), behind.vel(at.N).dot(rear.y)]
    return Kane(
        at.N, [*at.q, a, b], [v1, a_rate, b_rate], [*at.kinematics, a.diff() - a_rate, b.diff() - b_rate], bodies,
        loads, constants, [at.element, turned(a), turned(b)], [*at.velocity, a_rate, b_rate], [w, v2], rows,
    )  # fmt: skip


@cache
def racer(apart=False):
    """Two bodies on an axle each and a pivot with a torque; `apart`: both bodies in full, as the hinged sleighs."""
    m, J, rider, J2, front, arm, torque = constants = sm.symbols("m J rider J2 front arm torque")
    s, rate = dynamicsymbols("s rate")
    at = Floor()
    second = at.joint("S", s, rate)
    pivot = at.fixed("pivot", front * at.B.x)
    axle = pivot.locatenew("axle", arm * second.x)
    axle.v2pt_theory(pivot, at.N, second)
    bodies = [at.body("first", at.B, at.P, m, J), at.body("second", second, axle, rider, J2)]
    loads = [(second, torque * at.B.z), (at.B, -torque * at.B.z)]
    (th, x, y), (w, v1, v2) = at.q, at.u
    rows = [at.P.vel(at.N).dot(at.B.y), axle.vel(at.N).dot(second.y)]
    place = [from_origin + axle.pos_from(at.P).dot(e) for from_origin, e in ((x, at.N.x), (y, at.N.y))]
    moving = [axle.vel(at.N).dot(e) for e in (second.x, second.y)]
    element = [at.element, planar(th + s, place)] if apart else [at.element, turned(s)]
    velocity = [*at.velocity, w + rate, *moving] if apart else [*at.velocity, rate]
    return Kane(
        at.N, [*at.q, s], [w, v1], [*at.kinematics, s.diff() - rate], bodies, loads, constants, element, velocity,
        [rate, v2], rows,
    )  # fmt: skip


WHEEL = "radius mass along across"


def named(words, prefix):
    return sm.symbols([f"{prefix}_{word}" for word in words.split()])


@cache
def robot():
    """A base on two wheels with a torque each, and a castor: a fork that swivels and its wheel."""
    m, J, centre, half = sm.symbols("m J centre half")
    driven, rolled, fork = named(WHEEL, "driven"), named(WHEEL, "castor"), named("mass moment at trail", "fork")
    torques = sm.symbols("left_torque right_torque")
    joints = [dynamicsymbols(f"{name} {name}_rate") for name in ("left", "right", "swivel", "roll")]
    (left, left_rate), (right, right_rate), (swivel, turning), (roll, roll_rate) = joints
    at = Floor()
    place, behind = fork[2], -fork[3]
    frame, pivot = at.joint("F", swivel, turning), at.fixed("pivot", place * at.B.x)
    middle, axle = (at.fixed(name, x * frame.x, frame, pivot) for name, x in (("middle", behind / 2), ("axle", behind)))
    hubs = [at.fixed(name, y * at.B.y) for name, y in (("L", half), ("R", -half))]
    first, one, slip_1 = at.wheel("left", at.B, hubs[0], at.B.y, left, left_rate, driven)
    second, two, slip_2 = at.wheel("right", at.B, hubs[1], at.B.y, right, right_rate, driven)
    third, _, slip_3 = at.wheel("castor", frame, axle, frame.y, roll, roll_rate, rolled)
    base = at.body("base", at.B, at.fixed("G", centre * at.B.x), m, J)
    bodies = [base, first, second, at.body("fork", frame, middle, fork[0], fork[1]), third]
    loads = [(each, torque * at.B.y) for each, torque in zip((one, two), torques, strict=True)]
    loads.append((at.B, -sum(torques) * at.B.y))
    w, v1, v2 = at.u
    rows = [slip_1.dot(at.B.y), slip_1.dot(at.B.x), slip_2.dot(at.B.x), slip_3.dot(frame.y), slip_3.dot(frame.x)]
    constants = [m, J, centre, half, *driven, *fork, *rolled, *torques]
    return at.vehicle(joints, [w, v1], [v2, left_rate, right_rate, turning, roll_rate], rows, bodies, loads, constants)


@cache
def train(trailers=1):
    """A cab that drives its rear axle and steers a fork with an axle, and trailers on an axle each."""
    m, J, centre, base, hitch, length = sm.symbols("m J centre base hitch length")
    wheel, fork, trailer = named(WHEEL, "axle"), named("mass moment", "fork"), named("mass moment", "trailer")
    drive, torque = sm.symbols("drive torque")
    names = ["steer", "rear", "front"] + [f"{word}{k}" for k in range(trailers) for word in ("hitch", "axle")]
    joints = [dynamicsymbols(f"{name} {name}_rate") for name in names]
    (steer, steering), (rear, rear_rate), (front, front_rate), *others = joints
    at = Floor()
    frame, ahead = at.joint("F", steer, steering), at.fixed("ahead", base * at.B.x)
    first, turned, slip = at.wheel("rear", at.B, at.P, at.B.y, rear, rear_rate, wheel)
    second, _, slip_2 = at.wheel("front", frame, ahead, frame.y, front, front_rate, wheel)
    bodies = [at.body("cab", at.B, at.fixed("G", centre * at.B.x), m, J), at.body("fork", frame, ahead, *fork)]
    bodies += [first, second]
    w, v1, v2 = at.u
    rows = [slip.dot(at.B.y), slip_2.dot(frame.y), slip.dot(at.B.x), slip_2.dot(frame.x)]
    dependent, before, end = [v2, w, rear_rate, front_rate], at.B, at.fixed("hitch", -hitch * at.B.x)
    for k in range(trailers):
        (angle, rate), (roll, roll_rate) = others[2 * k : 2 * k + 2]
        following = before.orientnew(f"T{k}", "Axis", [angle, before.z])
        following.set_ang_vel(before, rate * before.z)
        end = at.fixed(f"axle{k}", -length * following.x, following, end)
        rolling, _, slip_k = at.wheel(f"W{k}", following, end, following.y, roll, roll_rate, wheel)
        bodies += [at.body(f"trailer{k}", following, end, *trailer), rolling]
        rows += [slip_k.dot(following.y), slip_k.dot(following.x)]
        dependent += [rate, roll_rate]
        before = following
    loads = [(turned, drive * at.B.y), (frame, torque * at.B.z), (at.B, -drive * at.B.y - torque * at.B.z)]
    constants = [m, J, centre, base, hitch, length, *wheel, *fork, *trailer, drive, torque]
    return at.vehicle(joints, [v1, steering], dependent, rows, bodies, loads, constants)


@cache
def four_wheels():
    """A car with a knuckle for each front wheel, steered about one centre, and a shaft that drives a differential."""
    m, J, centre, base, half, ratio = sm.symbols("m J centre base half ratio")
    wheel, knuckle, shaft = named(WHEEL, "wheel"), named("mass moment", "knuckle"), named("mass along across", "shaft")
    drive, torque = sm.symbols("drive torque")
    names = ["steer", "front_left", "rear_left", "front_right", "rear_right"]
    joints = [dynamicsymbols(f"{name} {name}_rate") for name in names]
    (steer, steering), *turning = joints
    at = Floor()
    w, v1, v2 = at.u
    bodies = [at.body("chassis", at.B, at.fixed("G", centre * at.B.x), m, J)]
    slips = []
    for k, y in ((0, half), (2, -half)):
        angle = sm.atan2(base * sm.sin(steer), base * sm.cos(steer) - y * sm.sin(steer))
        frame = at.joint(f"K{k}", angle, sm.simplify(angle.diff(steer)) * steering)
        hub = at.fixed(f"H{k}", base * at.B.x + y * at.B.y)
        first, _, slip = at.wheel(f"F{k}", frame, hub, frame.y, *turning[k], wheel)
        second, _, slip_2 = at.wheel(f"R{k}", at.B, at.fixed(f"Z{k}", y * at.B.y), at.B.y, *turning[k + 1], wheel)
        bodies += [at.body(f"knuckle{k}", frame, hub, *knuckle), first, second]
        slips += [(slip, frame), (slip_2, at.B)]
    (rear_left, left_rate), (rear_right, right_rate) = turning[1], turning[3]
    spin = ratio / 2 * (left_rate + right_rate)
    turned = at.joint("S", ratio / 2 * (rear_left + rear_right), spin, at.B.x)
    middle = at.fixed("middle", base / 2 * at.B.x)
    bodies.append(RigidBody("shaft", middle, turned, shaft[0], (inertia(at.B, *shaft[1:], shaft[2]), middle)))
    rows = [slips[1][0].dot(at.B.y), slips[0][0].dot(slips[0][1].y), *(slip.dot(frame.x) for slip, frame in slips)]
    dependent = [v2, w, *(rate for _, rate in turning)]
    column = at.joint("C", steer, steering)
    loads = [(turned, drive * at.B.x), (column, torque * at.B.z), (at.B, -drive * at.B.x - torque * at.B.z)]
    constants = [m, J, centre, base, half, ratio, *wheel, *knuckle, *shaft, drive, torque]
    return at.vehicle(joints, [v1, steering], dependent, rows, bodies, loads, constants)


@cache
def omni():
    """A base with three wheels at 120 degrees whose axles point outwards; each holds the ground ahead only."""
    m, J, reach = sm.symbols("m J reach")
    wheel, torques = named(WHEEL, "wheel"), sm.symbols("torque1:4")
    joints = [dynamicsymbols(f"roll{k} rate{k}") for k in range(3)]
    at = Floor()
    bodies, loads, rows = [at.body("base", at.B, at.P, m, J)], [], []
    for k, ((angle, rate), torque) in enumerate(zip(joints, torques, strict=True)):
        frame = at.B.orientnew(f"A{k}", "Axis", [2 * sm.pi * k / 3, at.B.z])
        body, turned, slip = at.wheel(f"W{k}", frame, at.fixed(f"C{k}", reach * frame.x), frame.x, angle, rate, wheel)
        bodies.append(body)
        loads += [(turned, torque * frame.x), (at.B, -torque * frame.x)]
        rows.append(slip.dot(frame.x.cross(at.N.z)))
    return at.vehicle(joints, at.u, [rate for _, rate in joints], rows, bodies, loads, [m, J, reach, *wheel, *torques])


@cache
def tower():
    """A tower on a ball that rolls: both turn about the centre of the ball, with torques between them."""
    m, M, moment, radius, height, g, *moments = sm.symbols("m M moment radius height g I1:4")
    torques = sm.symbols("torque1:4")
    q, turning, speeds = dynamicsymbols("q1:9"), dynamicsymbols("w1:4"), dynamicsymbols("s1:4")
    vx, vy = dynamicsymbols("vx vy")
    N, A, T, G = ReferenceFrame("N"), ReferenceFrame("A"), ReferenceFrame("T"), Point("G")
    kinematics = [x.diff() - v for x, v in zip(q[6:], (vx, vy), strict=True)]
    for frame, angles, u in ((A, q[:3], turning), (T, q[3:6], speeds)):
        frame.orient_body_fixed(N, angles, "ZXY")
        own = sum((v * e for v, e in zip(u, frame, strict=True)), 0 * N.x)
        kinematics += [(frame.ang_vel_in(N) - own).dot(e) for e in frame]
        frame.set_ang_vel(N, own)
    G.set_vel(N, vx * N.x + vy * N.y)
    P = G.locatenew("P", height * T.z)
    P.v2pt_theory(G, N, T)
    bodies = [RigidBody("ball", G, A, m, (inertia(A, moment, moment, moment), G))]
    bodies.append(RigidBody("tower", P, T, M, (inertia(T, *moments), P)))
    twist = sum((u * e for u, e in zip(torques, T, strict=True)), 0 * N.x)
    loads = [(P, -M * g * N.z), (T, twist), (A, -twist)]
    slip = G.vel(N) + A.ang_vel_in(N).cross(-radius * N.z)
    R, middle = N.dcm(A), sm.Matrix([0, 0, radius])
    place = sm.Matrix([q[6], q[7], radius]) - R * middle
    pose = placed(R, place)
    w, v = (sm.Matrix([part.dot(e) for e in A]) for part in (A.ang_vel_in(N), G.vel(N)))
    velocity = [*w, *(v - w.cross(middle)), *(T.ang_vel_in(A).dot(e) for e in T)]
    return Kane(
        N, q, [*turning, *speeds], kinematics, bodies, loads, [m, M, moment, radius, height, g, *moments, *torques],
        [pose, A.dcm(T)], velocity, [vx, vy], [slip.dot(N.x), slip.dot(N.y)],
    )  # fmt: skip


class Space:
    """A body frame B in space by three angles, with the components of its angular velocity in B as speeds."""

    def __init__(self, order="ZXY"):
        self.q, self.w = list(dynamicsymbols("q1:4")), list(dynamicsymbols("w1:4"))
        self.N, self.B = ReferenceFrame("N"), ReferenceFrame("B")
        self.B.orient_body_fixed(self.N, self.q, order)
        self.axes = (self.B.x, self.B.y, self.B.z)
        turning = self.B.ang_vel_in(self.N)
        self.kinematics = [turning.dot(e) - w for e, w in zip(self.axes, self.w, strict=True)]
        self.turning = sum((w * e for e, w in zip(self.axes, self.w, strict=True)), 0 * self.B.x)
        self.B.set_ang_vel(self.N, self.turning)
        self.attitude = self.N.dcm(self.B)


TENSOR = sm.symbols("Ixx Iyy Izz Ixy Iyz Izx")


@cache
def hung_body(in_space=False):
    """A body hung at a point O, its centre of mass G elsewhere; it may not turn about an axis in it, or in space."""
    m, g, *offset = sm.symbols("m g l1 l2 l3")
    normal = sm.symbols("n1:4")
    at = Space()
    O, G = Point("O"), Point("G")
    O.set_vel(at.N, 0)
    G.set_pos(O, sum((l * e for l, e in zip(offset, at.axes, strict=True)), 0 * at.B.x))
    G.v2pt_theory(O, at.N, at.B)
    bodies = [RigidBody("body", G, at.B, m, (inertia(at.B, *TENSOR), G))]
    w1, w2, w3 = at.w
    axes = (at.N.x, at.N.y, at.N.z) if in_space else at.axes
    row = [sum(n * at.turning.dot(e) for n, e in zip(normal, axes, strict=True))]
    return Kane(
        at.N, at.q, [w1, w2], at.kinematics, bodies, [(G, -m * g * at.N.z)], [m, g, *offset, *TENSOR, *normal],
        [at.attitude], at.w, [w3], row,
    )  # fmt: skip


@cache
def ball():
    """A ball with any moments on a slope that turns: its lowest point has the velocity of the slope there."""
    m, g, a, slope, rotation = sm.symbols("m g a slope rotation")
    at = Space()
    x, y, vx, vy = dynamicsymbols("x y vx vy")
    G = Point("G")
    G.set_vel(at.N, vx * at.N.x + vy * at.N.y)
    touching = G.vel(at.N) + at.turning.cross(-a * at.N.z)
    slip = touching - (rotation * at.N.z).cross(x * at.N.x + y * at.N.y)
    bodies = [RigidBody("ball", G, at.B, m, (inertia(at.B, *TENSOR), G))]
    loads = [(G, m * g * (sm.sin(slope) * at.N.x - sm.cos(slope) * at.N.z))]
    return Kane(
        at.N, [*at.q, x, y], at.w, [*at.kinematics, x.diff() - vx, y.diff() - vy], bodies, loads,
        [m, g, a, slope, rotation, *TENSOR], [at.attitude, [x, y]], [*at.w, vx, vy], [vx, vy],
        [slip.dot(at.N.x), slip.dot(at.N.y)],
    )  # fmt: skip


@cache
def celt(in_space=False):
    """An ellipsoid on a plane (Kane, Levinson 1982): its centre of mass G moves by -w x r, r from G to the contact.

    `in_space`: our element is in SE(3), of a drawing in which it stands upright on the origin.
    """
    m, g, depth = sm.symbols("m g depth")
    axes = sm.symbols("a1:4")
    at = Space()
    x, y = dynamicsymbols("x y")
    normal = [at.N.z.dot(e) for e in at.axes]
    size = sm.sqrt(sum((a * n) ** 2 for a, n in zip(axes, normal, strict=True)))
    contact = sum((-(a**2) * n / size * e for a, n, e in zip(axes, normal, at.axes, strict=True)), depth * at.B.z)
    G = Point("G")
    G.set_vel(at.N, contact.cross(at.turning))
    moved = [G.vel(at.N).dot(e) for e in (at.N.x, at.N.y)]
    bodies = [RigidBody("celt", G, at.B, m, (inertia(at.B, *TENSOR), G))]
    element, velocity = [at.attitude, [x, y]], [*at.w, *moved]
    if in_space:
        drawn, place = sm.Matrix([0, 0, axes[2] - depth]), sm.Matrix([x, y, -contact.dot(at.N.z)])
        element = [placed(at.attitude, place - at.attitude * drawn)]
        v = sm.Matrix([G.vel(at.N).dot(e) for e in at.axes])
        velocity = [*at.w, *(v - sm.Matrix(at.w).cross(drawn))]
    return Kane(
        at.N, [*at.q, x, y], at.w, [*at.kinematics, x.diff() - moved[0], y.diff() - moved[1]], bodies,
        [(G, -m * g * at.N.z)], [m, g, depth, *axes, *TENSOR], element, velocity,
    )  # fmt: skip


@cache
def disc(coin=False):
    """SymPy's documented "A rolling disc, with Kane's method", with any two moments instead of a uniform disc's.

    `coin`: our element is in SE(2) x R^3, the track, then height, lean and spin.
    """
    m, r, axial, across, g = constants = sm.symbols("m r axial across g")
    q, u = list(dynamicsymbols("q1:4")), list(dynamicsymbols("u1:4"))
    N = ReferenceFrame("N")
    Y = N.orientnew("Y", "Axis", [q[0], N.z])
    L = Y.orientnew("L", "Axis", [q[1], Y.x])
    R = L.orientnew("R", "Axis", [q[2], L.y])
    turning = R.ang_vel_in(N)
    R.set_ang_vel(N, u[0] * L.x + u[1] * L.y + u[2] * L.z)
    kinematics = [(turning - R.ang_vel_in(N)).dot(e) for e in L]
    C = Point("C")
    C.set_vel(N, 0)
    centre = C.locatenew("centre", r * L.z)
    centre.v2pt_theory(C, N, R)
    body = RigidBody("disc", centre, R, m, (inertia(L, across, axial, across), centre))
    element = [N.dcm(R), [0, 0]]
    velocity = [R.ang_vel_in(N).dot(e) for e in R] + [centre.vel(N).dot(e) for e in (N.x, N.y)]
    if coin:
        turn, lean, spin = q
        place = list(dynamicsymbols("x y"))
        kinematics += [x.diff() - centre.vel(N).dot(e) for x, e in zip(place, (N.x, N.y), strict=True)]
        element = [planar(turn, place), [r * sm.cos(lean) - r, lean, spin]]
        velocity = [turn.diff(), *(centre.vel(N).dot(e) for e in Y), lean.diff(), spin.diff()]
        q = [*q, *place]
    return Kane(N, q, u, kinematics, [body], [(centre, -m * g * Y.z)], constants, element, velocity)


@cache
def chain():
    """Two masses on rods in space, each rod by two angles."""
    m1, m2, l1, l2, g = constants = sm.symbols("m1 m2 l1 l2 g")
    q, u = list(dynamicsymbols("q1:5")), list(dynamicsymbols("u1:5"))
    N, places, particles, point = ReferenceFrame("N"), [], [], Point("O")
    O = point
    O.set_vel(N, 0)
    rates = {x.diff(): v for x, v in zip(q, u, strict=True)}
    for k, (m, length) in enumerate(((m1, l1), (m2, l2))):
        frame = ReferenceFrame(f"F{k}")
        frame.orient_body_fixed(N, (*q[2 * k : 2 * k + 2], 0), "XYZ")
        frame.set_ang_vel(N, frame.ang_vel_in(N).subs(rates))
        following = point.locatenew(f"P{k}", -length * frame.z)
        following.v2pt_theory(point, N, frame)
        particles.append(Particle(f"m{k}", following, m))
        places.append(following)
        point = following
    loads = [(part.point, -part.mass * g * N.z) for part in particles]
    element = [sm.Matrix([P.pos_from(O).dot(e) for P in places for e in N])]
    velocity = [P.vel(N).dot(e) for P in places for e in N]
    return Kane(
        N, q, u, [x.diff() - v for x, v in zip(q, u, strict=True)], particles, loads, constants, element, velocity
    )


@cache
def skate():
    """A skate on an ellipsoid: its third axis n is the normal, so that it stands at A^2 n/|A n|, A being the semi-axes.

    No constraint holds it on the surface; the velocity across the blade is 0.
    """
    m, g = sm.symbols("m g")
    axes = sm.symbols("a1:4")
    at = Space()
    n, change = ([part.dot(e) for e in at.N] for part in (at.B.z, at.turning.cross(at.B.z)))
    size = sm.sqrt(sum((a * x) ** 2 for a, x in zip(axes, n, strict=True)))
    slope = sum(a**2 * x * dx for a, x, dx in zip(axes, n, change, strict=True)) / size**2
    place = [a**2 * x / size for a, x in zip(axes, n, strict=True)]
    moved = [a**2 * (dx - x * slope) / size for a, x, dx in zip(axes, n, change, strict=True)]
    P = Point("P")
    P.set_vel(at.N, sum((v * e for v, e in zip(moved, at.N, strict=True)), 0 * at.N.x))
    bodies = [RigidBody("skate", P, at.B, m, (inertia(at.B, *TENSOR), P))]
    along, across, _ = (P.vel(at.N).dot(e) for e in at.axes)
    element = placed(at.attitude, place)
    w1, w2, w3 = at.w
    return Kane(
        at.N, at.q, [w2, w3], at.kinematics, bodies, [(P, -m * g * at.N.z)], [m, g, *axes, *TENSOR], [element],
        [*at.w, along, across, 0], [w1], [across],
    )  # fmt: skip


# -- the models beside them -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A mechanism and the model of it. draw(rng) = (the model, numbers for Kane's constants but the inputs)."""

    equations: Callable[[], Kane]
    draw: Callable[[np.random.Generator], tuple[da.System, list[float]]]
    inputs: int = 0
    angles: float = 1.2

    def start(self, rng):
        """A random model and state: (system, inputs or None, q, u, constants)."""
        system, constants = self.draw(rng)
        inputs = rng.normal(size=self.inputs)
        constants = np.append(constants, inputs)
        equations = self.equations()
        q = self.angles * rng.uniform(-1, 1, equations.sizes[0])
        u = equations.admissible(q, rng.normal(size=equations.sizes[1]), constants)
        return system, (inputs if self.inputs else None), q, u, constants


def sizes(rng, count):
    return rng.uniform(0.3, 2.0, count)


def tensor(rng, size=1.0):
    """The inertia of random masses, and its six entries in SymPy's order."""
    points = np.sqrt(size) * rng.normal(size=(5, 3))
    points -= points.mean(axis=0)
    J = sum(x @ x * np.eye(3) - np.outer(x, x) for x in points)
    return J, [J[0, 0], J[1, 1], J[2, 2], J[0, 1], J[1, 2], J[0, 2]]


def draw_sleigh(rng):
    m, J = sizes(rng, 2)
    a, b = rng.normal(size=2)
    return models.chaplygin_sleigh(m, J, a, b), [m, J, a, b, 0.0, 0.0]


def draw_unicycle(rng):
    m, J = sizes(rng, 2)
    a = rng.normal()
    return models.unicycle(m, J, a), [m, J, a, 0.0]


def draw_knife_edge(rng):
    m, J, g = sizes(rng, 3)
    slope = rng.uniform(-1, 1)
    return models.knife_edge(m, J, slope, 5 * g), [m, J, slope, 5 * g]


def draw_car(rng):
    values = sizes(rng, 5)
    return models.car(*values), values


def draw_snakeboard(rng):
    values = sizes(rng, 5)
    return models.snakeboard(*values), values


def draw_racer(rng):
    values = sizes(rng, 6) * [1, 1, 1, 1, 1, rng.choice([-1, 1])]
    return models.roller_racer(*values), values


def draw_hinged(rng):
    values = sizes(rng, 6) * [1, 1, 1, 1, 1, rng.choice([-1, 1])]
    return models.hinged_sleighs(*values), values


def draw_suslov(rng):
    J, entries = tensor(rng)
    (m, g), offset, normal = sizes(rng, 2), rng.normal(size=3), rng.normal(size=3)
    about = J + m * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    return models.suslov(about, normal, weight=m * g * offset), [m, g, *offset, *entries, *normal]


def draw_veselova(rng):
    (J, entries), normal = tensor(rng), rng.normal(size=3)
    return models.veselova(J, normal), [1.0, 0.0, 0.0, 0.0, 0.0, *entries, *normal]


def draw_upright(rng):
    values = np.append(sizes(rng, 4), [rng.normal(), 5 * sizes(rng, 1)[0]])
    return models.inclined_disk(*values), values


def draw_chaplygin(rng):
    (m, g, a), (J, entries) = sizes(rng, 3), tensor(rng)
    return models.chaplygin_ball(m, J, a), [m, g, a, 0.0, 0.0, *entries]


def draw_sphere(rng):
    (m, g, a), (J, entries) = sizes(rng, 3), tensor(rng)
    return models.chaplygin_sphere(J, m, a), [m, g, a, 0.0, 0.0, *entries]


def draw_table(rng):
    m, moment, a, g = sizes(rng, 4)
    slope, rotation = rng.normal(size=2)
    constants = [m, g, a, slope, rotation, moment, moment, moment, 0, 0, 0]
    return models.ball_on_table(m, moment, a, rotation, slope, g), constants


def draw_celt(rng):
    (m, g), axes, (J, entries) = sizes(rng, 2), sizes(rng, 3), tensor(rng)
    depth = rng.uniform(0, 0.9) * axes[2]
    return models.rattleback(m, J, axes, depth, 5 * g), [m, 5 * g, depth, *axes, *entries]


def draw_skate(rng):
    (m, g), axes, (J, entries) = sizes(rng, 2), sizes(rng, 3), tensor(rng)
    return models.skate_on_ellipsoid(axes, m, J, 5 * g), [m, 5 * g, *axes, *entries]


def draw_disc(rng):
    values = sizes(rng, 5)
    return models.rolling_disk(*values), values


def draw_chain(rng):
    m1, m2, l1, l2, g = values = sizes(rng, 5)
    return models.pendulum_chain((m1, m2), (l1, l2), g, dimension=3), values


def box(mass, a, b):
    """The moment of a homogeneous box about the axis across its edges a and b."""
    return mass * (a**2 + b**2) / 12


def cylinder(radius, mass, width):
    """(radius, mass, moments along and across the axis)."""
    return [radius, mass, mass * radius**2 / 2, mass * (radius**2 / 4 + width**2 / 12)]


def draw_robot(rng):
    m, a, b, centre, track, radius, wheel, castor, trail, small = sizes(rng, 10)
    system = models.differential_drive(m, (a, b, 0.5), centre, track, radius, wheel, castor, trail, small)
    size = max(trail, small)
    fork = [0.1, box(0.1, size, size / 2), castor, trail]
    driven, rolled = cylinder(radius, wheel, radius / 4), cylinder(small, 0.2, small / 3)
    return system, [m, box(m, a, b), centre, track / 2, *driven, *fork, *rolled]


def draw_train(rng, trailers=1):
    m, base, hitch, trailer, length, radius = sizes(rng, 6) * [30, 1, 1, 10, 1, 1]
    wide, tenth = base / 2, 0.1 * m
    axle, fork = cylinder(radius, tenth, 0.3 * base), [tenth, box(tenth, radius, 0.6 * wide)]
    rest = [trailer, box(trailer, 0.7 * length, wide)]
    system = models.tractor(trailers, m, base, hitch, trailer, length, radius)
    return system, [m, box(m, base, wide), 0.4 * base, base, hitch, length, *axle, *fork, *rest]


def draw_four_wheels(rng):
    m, base, track, centre, height, radius, wheel, knuckle, ratio = sizes(rng, 9) * [50, 2, 1, 1, 1, 1, 9, 30, 1]
    system = models.ackermann_car(m, base, track, centre, height, radius, wheel, knuckle, ratio)
    rolled, shaft = cylinder(radius, wheel, 0.6 * radius), cylinder(0.1 * radius, wheel, 0.6 * base)[1:]
    steered = [knuckle, box(knuckle, radius / 2, radius / 2)]
    return system, [m, box(m, 1.4 * base, track), centre, base, track / 2, ratio, *rolled, *steered, *shaft]


def draw_omni(rng):
    m, reach, radius, wheel = sizes(rng, 4)
    system = models.omni_base(m, reach, radius, wheel)
    return system, [m, m * (0.9 * reach) ** 2 / 2, reach, *cylinder(radius, wheel, 0.4 * radius)]


def draw_tower(rng):
    M, tall, wide, m, radius = sizes(rng, 5)
    moments = [box(M, wide, tall), box(M, wide, tall), box(M, wide, wide)]
    system = models.ball_robot(M, tall, wide, m, radius)
    return system, [m, M, 0.4 * m * radius**2, radius, radius + tall / 2, 9.81, *moments]


def draw_top(rng):
    m, radius, across, g = sizes(rng, 4)
    eccentricity, along = rng.uniform(0.1, 0.9) * radius, rng.uniform(0.3, 1.9) * across
    system = models.tippe_top(m, radius, eccentricity, (across, along), 5 * g)
    return system, [m, 5 * g, eccentricity, radius, radius, radius, across, across, along, 0, 0, 0]


def draw_coin(rng):
    m, radius, thickness, g = sizes(rng, 4)
    along, across = cylinder(radius, m, thickness)[2:]
    return models.coin(m, radius, thickness, 5 * g), [m, radius, along, across, 5 * g]


CASES = {
    "rolling-disk": Case(disc, draw_disc),
    "chaplygin-sleigh": Case(sleigh, draw_sleigh),
    "unicycle": Case(sleigh, draw_unicycle, inputs=2),
    "knife-edge": Case(knife_edge, draw_knife_edge),
    "car": Case(car, draw_car, inputs=2),
    "snakeboard": Case(snakeboard, draw_snakeboard, inputs=2),
    "roller-racer": Case(racer, draw_racer, inputs=1),
    "hinged-sleighs": Case(lambda: racer(apart=True), draw_hinged, inputs=1),
    "inclined-disk": Case(upright_disc, draw_upright),
    "suslov": Case(hung_body, draw_suslov),
    "veselova": Case(lambda: hung_body(in_space=True), draw_veselova),
    "chaplygin-ball": Case(ball, draw_chaplygin),
    "chaplygin-sphere": Case(ball, draw_sphere),
    "ball-on-table": Case(ball, draw_table),
    "rattleback": Case(celt, draw_celt),
    "skate-on-ellipsoid": Case(skate, draw_skate),
    "pendulum-chain": Case(chain, draw_chain),
    "differential-drive": Case(robot, draw_robot, inputs=2),
    "ackermann-car": Case(four_wheels, draw_four_wheels, inputs=2, angles=0.5),
    "tractor": Case(train, draw_train, inputs=2, angles=0.5),
    "two trailers": Case(lambda: train(2), lambda rng: draw_train(rng, 2), inputs=2, angles=0.5),
    "omni-base": Case(omni, draw_omni, inputs=3),
    "ball-robot": Case(tower, draw_tower, inputs=3),
    "tippe-top": Case(lambda: celt(in_space=True), draw_top),
    "coin": Case(lambda: disc(coin=True), draw_coin),
}
