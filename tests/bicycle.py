"""The Whipple bicycle as a user writes it: R^8, one holonomic and four rolling constraints, no algebra by hand.

The numbers are the benchmark of Meijaard, Papadopoulos, Ruina and Schwab (Proc. R. Soc. A 463, 2007): x forward, y to
the right, z down, origin at the rear contact of the upright bicycle.
"""

import jax
import jax.numpy as jnp
import numpy as np

import dalembert as da

BASE, TRAIL, TILT, GRAVITY = 1.02, 0.08, np.pi / 10, 9.81
REAR_RADIUS, REAR_MASS, REAR_INERTIA = 0.3, 2.0, (0.0603, 0.12)
FRONT_RADIUS, FRONT_MASS, FRONT_INERTIA = 0.35, 3.0, (0.1405, 0.28)
BODY, BODY_MASS = np.array([0.3, 0.0, -0.9]), 85.0
BODY_INERTIA = np.array([[9.2, 0.0, 2.4], [0.0, 11.0, 0.0], [2.4, 0.0, 2.8]])
FORK, FORK_MASS = np.array([0.9, 0.0, -0.7]), 4.0
FORK_INERTIA = np.array([[0.05892, 0.0, -0.00756], [0.0, 0.06, 0.0], [-0.00756, 0.0, 0.00708]])
AXIS, ON_AXIS = np.array([np.sin(TILT), 0.0, np.cos(TILT)]), np.array([BASE + TRAIL, 0.0, 0.0])
REAR_HUB, FRONT_HUB = np.array([0.0, 0.0, -REAR_RADIUS]), np.array([BASE, 0.0, -FRONT_RADIUS])
EX, EY, EZ = np.eye(3)
MASSES = REAR_MASS, BODY_MASS, FORK_MASS, FRONT_MASS


def hat(a):
    return jnp.array([[0.0, -a[2], a[1]], [a[2], 0.0, -a[0]], [-a[1], a[0], 0.0]])


def turn(axis, angle):
    return jnp.eye(3) + jnp.sin(angle) * hat(axis) + (1 - jnp.cos(angle)) * hat(axis) @ hat(axis)


def place(q):
    """The attitudes of frame and fork, and the centres of rear wheel, body, fork and front wheel."""
    upright = turn(EZ, q[2]) @ turn(EX, q[3])
    frame, steer = upright @ turn(EY, q[4]), turn(AXIS, q[5])
    hub = jnp.array([q[0], q[1], 0.0]) - REAR_RADIUS * upright @ EZ
    steered = [hub + frame @ (ON_AXIS + steer @ (p - ON_AXIS) - REAR_HUB) for p in (FORK, FRONT_HUB)]
    return frame, frame @ steer, hub, hub + frame @ (BODY - REAR_HUB), *steered


def move(q, v):
    (frame, fork, *centres), (by_frame, by_fork, *speeds) = jax.jvp(place, (q,), (v,))
    spins = [jnp.array([w[2, 1], w[0, 2], w[1, 0]]) for w in (frame.T @ by_frame, fork.T @ by_fork)]
    return frame, fork, centres, spins, speeds


def lagrangian(t, q, v, p):
    _, _, centres, (spin, steered), speeds = move(q, v)
    twice = sum(m * (s @ s) for m, s in zip(MASSES, speeds, strict=True))
    twice += spin @ BODY_INERTIA @ spin + steered @ FORK_INERTIA @ steered
    for (across, along), w, rate in ((REAR_INERTIA, spin, v[6]), (FRONT_INERTIA, steered, v[7])):
        twice += across * (w[0] ** 2 + w[2] ** 2) + along * (w[1] + rate) ** 2
    return 0.5 * twice + GRAVITY * sum(m * c[2] for m, c in zip(MASSES, centres, strict=True))


def lowest(fork):
    """The direction from the front hub to the lowest point of its wheel."""
    axle = fork @ EY
    down = EZ - axle[2] * axle
    return down / jnp.sqrt(down @ down)


def front_height(t, q, p):
    _, fork, *centres = place(q)
    return (centres[3] + FRONT_RADIUS * lowest(fork))[2:]


def slip(q, v):
    """The horizontal velocities of the points of both wheels that touch the ground."""
    frame, fork, _, (spin, steered), speeds = move(q, v)
    rear = speeds[0] + jnp.cross(frame @ (spin + v[6] * EY), REAR_RADIUS * turn(EZ, q[2]) @ turn(EX, q[3]) @ EZ)
    front = speeds[3] + jnp.cross(fork @ (steered + v[7] * EY), FRONT_RADIUS * lowest(fork))
    return jnp.concatenate([rear[:2], front[:2]])


def rows(t, q, p):
    return jax.jacfwd(lambda v: slip(q, v))(jnp.zeros(8))


def make_bicycle():
    """Coordinates: place of the rear contact, yaw, lean, pitch, steer, angles of the wheels."""
    return da.System(da.Euclidean(8), lagrangian, rows, holonomic=front_height)


def on_the_road(system, speed, lean=0.0, steer=0.0, lean_rate=0.0, steer_rate=0.0):
    """A state with this lean and steer exactly: pitch and wheels give way."""
    q = np.array([0.0, 0.0, 0.0, lean, 0.0, steer, 0.0, 0.0])
    for _ in range(8):
        q[4] -= float(front_height(0.0, q, None)[0] / jax.jacfwd(lambda x: front_height(0.0, x, None))(q)[0, 4])
    all_rows = np.asarray(system.A(0.0, q))
    known = np.zeros(8)
    known[[0, 3, 5]] = speed, lean_rate, steer_rate
    rest = [1, 2, 4, 6, 7]
    known[rest] = np.linalg.solve(all_rows[:, rest], -all_rows @ known)
    return q, known
