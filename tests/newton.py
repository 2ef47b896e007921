"""Equations of motion of the models, written down independently: `PAIRS` has each model beside them.

They know nothing of Lagrangians on groups: those of Newton and Euler for bodies that roll, and for vehicles
free planar bodies with the reactions of joints and wheels, the constraints differentiated by a complex step.
"""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

import dalembert as da

models = da.models


# -- bodies that roll -------------------------------------------------------------------------------------------------
HAT = np.cross(np.eye(3)[:, None], np.eye(3)).T  # HAT @ w is the matrix of w x


def cross(a, b):
    """a x b; np.cross takes ten times as long for two vectors of three numbers."""
    return (HAT @ a) @ b


class Roller:
    """An ellipsoid (a disk if one axis is 0, a ball if all are equal) by Newton and Euler: m V' = N + m G, (I w)' = r x
    N in the body.
    """

    def __init__(self, axes, centre, mass, inertia, gravity):
        self.squares, self.centre = np.asarray(axes, float) ** 2, np.asarray(centre, float)
        self.mass, self.inertia, self.gravity = mass, np.asarray(inertia, float), np.asarray(gravity, float)

    def contact(self, normal, change):
        """r and its rate, for the plane's normal in the body."""
        scaled, moved = self.squares * normal, self.squares * change
        size = np.sqrt(normal @ scaled)
        return self.centre - scaled / size, scaled * (normal @ moved) / size**3 - moved / size

    def acceleration(self, R, w):
        """(w', the acceleration of the centre in space)."""
        r, rate = self.contact(R[2], cross(R[2], w))
        v, pull, m = -cross(w, r), self.gravity @ R, self.mass
        carried = -cross(w, rate) + cross(w, v)
        left = self.inertia + m * ((r @ r) * np.eye(3) - np.outer(r, r))
        torque = -cross(w, self.inertia @ w) + m * cross(r, carried - pull)
        turn = np.linalg.solve(left, torque)
        return turn, R @ (carried - cross(turn, r))

    def __call__(self, g, xi, u):
        turn, acceleration = self.acceleration(np.asarray(g[0]), np.asarray(xi[:3]))
        return np.concatenate([turn, acceleration[:2]])

    def flow(self, R, w, times):
        """(R, w) at the times, by DOP853."""

        def field(t, y):
            R, w = y[:9].reshape(3, 3), y[9:]
            return np.concatenate([(R @ (HAT @ w)).ravel(), self.acceleration(R, w)[0]])

        y = solve_ivp(field, (0, times[-1]), np.append(np.ravel(R), w), "DOP853", times, rtol=1e-12, atol=1e-12).y
        return y[:9].T.reshape(-1, 3, 3), y[9:].T


# -- vehicles of free planar bodies -----------------------------------------------------------------------------------
def reacting(masses, rows, q, v, force):
    """q'' of M q'' = force + A^T l with A(q) q' = 0 for constant masses."""
    A, step = rows(q).real, 1e-30
    rate = rows(q + 1j * step * v).imag / step
    size, m = len(q), len(A)
    left = np.block([[np.diag(masses), A.T], [A, np.zeros((m, m))]])
    return np.linalg.solve(left, np.concatenate([force, -rate @ v]))[:size]


def e(angle):
    return np.array([np.cos(angle), np.sin(angle)])


def n(angle):
    return np.array([-np.sin(angle), np.cos(angle)])


def trivialised(angle, w, v, turn, acceleration):
    """(w', v1', v2') from the angular acceleration and the acceleration in space of the body frame's origin."""
    return np.array([turn, e(angle) @ acceleration + w * v[1], n(angle) @ acceleration - w * v[0]])


def angle_of(rotation):
    return np.arctan2(rotation[1, 0], rotation[0, 0])


class Cart:
    """The body of a unicycle or car by its centre of mass, `ahead` of the axle; a car's front wheel has its
    own angle in space.
    """

    def __init__(self, mass, inertia, ahead, length=None, steering=None):
        self.masses = np.array([mass, mass, inertia] + ([] if steering is None else [steering]))
        self.ahead, self.length = ahead, length

    def rows(self, q):
        axle = np.append(n(q[2]), -self.ahead)
        if self.length is None:
            return axle[None]
        lever = (self.length - self.ahead) * np.cos(q[3] - q[2])
        return np.array([[*axle, 0.0], [*n(q[3]), lever, 0.0]])

    def __call__(self, g, xi, u):
        pose, shape = (g, []) if self.length is None else (g[0], [angle_of(g[0]) + angle_of(g[1])])
        theta, w, b = angle_of(pose), xi[0], self.ahead
        speed = xi[1] * e(theta) + xi[2] * n(theta)
        q = np.concatenate([pose[:2, 2] + b * e(theta), [theta], shape])
        v = np.concatenate([speed + b * w * n(theta), [w], w + xi[3:]])
        turning, drive, *steer = (u[0], u[1]) if self.length is None else (-u[1], u[0], u[1])
        a = reacting(self.masses, self.rows, q, v, np.concatenate([drive * e(theta), [turning], steer]))
        origin = a[:2] - b * (a[2] * n(theta) - w**2 * e(theta))
        return np.concatenate([trivialised(theta, w, xi[1:3], a[2], origin), a[3:] - a[2]])


class Board:
    """Board, rotor and two wheel trucks with absolute angles; a gear turns the trucks by opposite angles."""

    def __init__(self, mass, inertia, rotor, wheels, length):
        self.masses, self.length = np.array([mass, mass, inertia, rotor, wheels, wheels]), length

    def rows(self, q):
        def truck(place, angle, column):
            row = np.zeros(6, complex)
            row[:2], row[2] = n(angle), place * np.cos(angle - q[2])
            return row

        gear = np.array([0, 0, -2, 0, 1, 1], complex)
        return np.array([truck(self.length, q[4], 4), truck(-self.length, q[5], 5), gear])

    def __call__(self, g, xi, u):
        theta, a, b = angle_of(g[0]), angle_of(g[1]), angle_of(g[2])
        w = xi[0]
        q = np.array([*g[0][:2, 2], theta, theta + a, theta + b, theta - b])
        v = np.array([*(xi[1] * e(theta) + xi[2] * n(theta)), w, w + xi[3], w + xi[4], w - xi[4]])
        force = np.array([0, 0, -u[0], u[0], u[1] / 2, -u[1] / 2])
        a = reacting(self.masses, self.rows, q, v, force)
        return np.array([*trivialised(theta, w, xi[1:3], a[2], a[:2]), a[3] - a[2], (a[4] - a[5]) / 2])


class Racer:
    """Two bodies on their axles, with a pin joint."""

    def __init__(self, mass, inertia, rider, rider_inertia, front, arm):
        self.masses = np.array([mass, mass, inertia, rider, rider, rider_inertia])
        self.front, self.arm = front, arm

    def rows(self, q):
        pin = np.zeros((2, 6), complex)
        pin[:, :2], pin[:, 3:5] = np.eye(2), -np.eye(2)
        pin[:, 2], pin[:, 5] = self.front * n(q[2]), self.arm * n(q[5])
        zero = np.zeros(3)
        return np.vstack([pin, [*n(q[2]), 0, *zero], [*zero, *n(q[5]), 0]])

    def __call__(self, g, xi, u):
        theta, second = angle_of(g[0]), angle_of(g[0]) + angle_of(g[1])
        w, w2 = xi[0], xi[0] + xi[3]
        place, speed = g[0][:2, 2], xi[1] * e(theta) + xi[2] * n(theta)
        other = place + self.front * e(theta) + self.arm * e(second)
        moving = speed + self.front * w * n(theta) + self.arm * w2 * n(second)
        q, v = np.array([*place, theta, *other, second]), np.array([*speed, w, *moving, w2])
        a = reacting(self.masses, self.rows, q, v, np.array([0, 0, -u[0], 0, 0, u[0]]))
        return np.array([*trivialised(theta, w, xi[1:3], a[2], a[:2]), a[5] - a[2]])


TENSOR = np.array([[0.5, 0.1, -0.05], [0.1, 0.7, 0.02], [-0.05, 0.02, 0.9]])
CELT = np.array([[2e-4, -2e-5, 0.0], [-2e-5, 1.6e-3, 0.0], [0.0, 0.0, 1.7e-3]])
DOWN = np.array([0.0, 0.0, -9.81])
SLOPE = 9.81 * np.array([np.sin(0.3), 0.0, -np.cos(0.3)])


def euler(g, w, u):
    """Euler's equations of a body about its axes, under torques in the body."""
    return np.linalg.solve(TENSOR, u - cross(w, TENSOR @ w))


PAIRS = {
    "satellite": (models.satellite(TENSOR), euler),
    "rolling-disk": (
        models.rolling_disk(1.3, 0.6),
        Roller((0.6, 0, 0.6), np.zeros(3), 1.3, np.diag([0.117, 0.234, 0.117]), DOWN),
    ),
    "rattleback": (models.rattleback(), Roller((0.2, 0.03, 0.02), (0, 0, 0.01), 1.0, CELT, DOWN)),
    "chaplygin-ball": (models.chaplygin_ball(1.4, TENSOR, 0.8), Roller((0.8,) * 3, np.zeros(3), 1.4, TENSOR, DOWN)),
    "rolling-ball": (
        models.rolling_ball(1.4, 0.3, 0.8, 0.3),
        Roller((0.8,) * 3, np.zeros(3), 1.4, 0.3 * np.eye(3), SLOPE),
    ),
    "unicycle": (models.unicycle(1.4, 0.6, 0.3), Cart(1.4, 0.6, 0.3)),
    "car": (models.car(1.4, 0.6, 1.2, 0.5, 0.2), Cart(1.4, 0.6, 0.5, 1.2, 0.2)),
    "snakeboard": (models.snakeboard(2.0, 0.3, 0.2, 0.1, 0.4), Board(2.0, 0.3, 0.2, 0.1, 0.4)),
    "roller-racer": (models.roller_racer(1.4, 0.6, 0.5, 0.2, 0.7, -0.3), Racer(1.4, 0.6, 0.5, 0.2, 0.7, -0.3)),
}
CONTROLS = {"satellite": 3, "unicycle": 2, "car": 2, "snakeboard": 2, "roller-racer": 1}
