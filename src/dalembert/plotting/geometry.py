"""The shapes of bodies: what moving pictures and the studio both draw.

Bodies on the plane have an outline, wheels and bars in their own frame; numbers may be arrays over time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from .stage import Motion


class Stroke(NamedTuple):
    """A short line on the floor plan, a blade, a wheel or a bar: its middle, the angle along which it lies and half its length."""

    x: Any
    y: Any
    angle: Any
    half: float

    def ends(self, k: int) -> np.ndarray:
        """Its two ends (2, 2) at the k-th moment."""
        x, y, angle = (
            float(np.broadcast_to(value, k + 1)[k]) if np.ndim(value) == 0 else value[k] for value in self[:3]
        )
        along = self.half * np.array([np.cos(angle), np.sin(angle)])
        return np.array([x, y]) + np.stack([-along, along])


class Vehicle(NamedTuple):
    """A body on the plane: its outline (n, 2), wheels that roll along themselves and bars that do not touch the floor."""

    outline: np.ndarray
    wheels: list[Stroke]
    bars: list[Stroke] = []  # noqa: RUF012
    centre: tuple[float, float] | None = None  # of mass


def vehicle(motion: Motion) -> Vehicle:
    """The body of a motion on SE(2) and shape angles, large enough to be seen on its path."""
    size = 0.07 * max(float(np.ptp(motion.parts[0][:, :2, 2], axis=0).max()), 1e-3)
    angles = [np.arctan2(part[:, 1, 0], part[:, 0, 0]) for part in motion.parts[1:] if part.shape[1:] == (2, 2)]
    return VEHICLES.get(motion.name, _sleigh)(motion, angles, size)


def ellipse(centre: Iterable[float], length: float, width: float) -> np.ndarray:
    s = np.linspace(0, 2 * np.pi, 49)
    return np.asarray(centre) + np.stack([length * np.cos(s), width * np.sin(s)], -1)


def _sleigh(motion: Motion, angles: list[np.ndarray], size: float) -> Vehicle:
    """An oval body about its centre of mass (a, b), the blade at the origin."""
    a, b = motion.number("a", motion.number("centre", 0.0)), motion.number("b", 0.0)
    offset = float(np.hypot(a, b))
    centre = np.array([a, b]) * (min(1.0, size / offset) if offset > 0 else 0.0)
    length = np.hypot(*centre) + 1.1 * size
    return Vehicle(ellipse(centre, length, 0.6 * length), [Stroke(0.0, 0.0, 0.0, 0.8 * size)], [], tuple(centre))


def _car(motion: Motion, angles: list[np.ndarray], size: float) -> Vehicle:
    """Two rear wheels at the origin and two steered ones ahead."""
    length = max(motion.number("length", 1.0), 1.5 * size)
    half, wheel = 0.3 * length, 0.16 * length
    outline = np.array([[-0.25, -0.3], [1.25, -0.3], [1.25, 0.3], [-0.25, 0.3]]) * length
    steer = angles[0] if angles else 0.0
    wheels = [Stroke(x, y, angle, wheel) for x, angle in ((0.0, 0.0), (length, steer)) for y in (-half, half)]
    return Vehicle(outline, wheels)


def _snakeboard(motion: Motion, angles: list[np.ndarray], size: float) -> Vehicle:
    """A board with an axle at either end, turned by b and -b, and its rotor."""
    length = max(motion.number("length", 0.2), size)
    rotor, steer = angles
    wheels = [Stroke(length, 0.0, steer, 0.3 * length), Stroke(-length, 0.0, -steer, 0.3 * length)]
    bars = [Stroke(0.0, 0.0, rotor + np.pi / 2, 0.5 * length)]
    return Vehicle(ellipse((0, 0), 1.1 * length, 0.25 * length), wheels, bars)


def _roller_racer(motion: Motion, angles: list[np.ndarray], size: float) -> Vehicle:
    """The seat on its axle, and the arm beyond the pivot with its own."""
    front, arm = motion.number("front", 0.5), motion.number("arm", 0.3)
    scale = max(1.0, 1.5 * size / (abs(front) + abs(arm)))
    front, arm, s = scale * front, scale * arm, angles[0]
    half = 0.35 * abs(front) + 0.1 * abs(arm)
    wheels = [Stroke(0.0, y, 0.0, half / 2) for y in (-half, half)]
    wheels.append(Stroke(front + arm * np.cos(s), arm * np.sin(s), s, half / 2))
    bars = [Stroke(front + arm * np.cos(s) / 2, arm * np.sin(s) / 2, s, abs(arm) / 2)]
    return Vehicle(ellipse((front / 2, 0), 0.7 * abs(front) + 1e-9, 0.3 * abs(front) + 1e-9), wheels, bars)


VEHICLES: dict[str, Callable[[Motion, list[np.ndarray], float], Vehicle]] = {
    "car": _car,
    "snakeboard": _snakeboard,
    "roller-racer": _roller_racer,
}


# -- bodies in space ------------------------------------------------------------------------------------------------------------
def circle(radius: float, first: int, second: int, count: int = 49) -> np.ndarray:
    """A circle in the plane of two body axes, (count, 3)."""
    s = np.linspace(0, 2 * np.pi, count)
    points = np.zeros((count, 3))
    points[:, first], points[:, second] = radius * np.cos(s), radius * np.sin(s)
    return points


def globe(
    semi: Any, longitudes: int = 25, latitudes: int = 13, lowest: float = 0.0, highest: float = np.pi
) -> np.ndarray:
    """An ellipsoid with these semi-axes as a grid of points (longitudes, latitudes, 3), between two polar angles."""
    u, v = np.linspace(0, 2 * np.pi, longitudes), np.linspace(lowest, highest, latitudes)
    round_ = [np.outer(np.cos(u), np.sin(v)), np.outer(np.sin(u), np.sin(v)), np.outer(np.ones(longitudes), np.cos(v))]
    return np.stack(round_, -1) * np.asarray(semi, float)


def sides(inertia: Any) -> np.ndarray:
    """Half sides of a homogeneous box with these moments, the longest 0.8; for other inertias some box."""
    moments = np.asarray(inertia if inertia is not None else [1.0, 1.3, 1.5], float)
    moments = np.diag(moments) if moments.ndim == 2 else moments
    squares = (
        np.maximum(moments.sum() / 2 - moments, 0.02 * moments.max())
        if moments.shape == (3,)
        else np.array([3, 2, 1.0])
    )
    lengths = np.sqrt(squares)
    return 0.8 * lengths / lengths.max()


def suslov_wheel(normal: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A sharp wheel that cannot slip about the normal n: (n, its middle across n, its axle); it lies in their plane (Wagner 1941)."""
    n = np.asarray(normal if normal is not None else [0.0, 0.0, 1.0], float)
    n = n / np.linalg.norm(n)
    p = np.cross(n, np.eye(3)[int(np.argmin(np.abs(n)))])
    p /= np.linalg.norm(p)
    return n, 0.92 * p, np.cross(n, p)


class Roller(NamedTuple):
    """A body that rolls: its semi-axes (a disk's middle one is 0), the middle of its shape from its centre of mass."""

    semi: np.ndarray
    shift: np.ndarray

    @classmethod
    def of(cls, motion: Motion) -> Roller:
        radius = motion.number("radius", 1.0)
        semi = np.array(motion.parameters.get("axes", [radius] * 3), float)
        if motion.name == "rolling-disk":
            semi = semi * [1.0, 0.0, 1.0]
        return cls(semi, np.array([0.0, 0.0, motion.number("depth", 0.0)]))

    def contact(self, turns: np.ndarray) -> np.ndarray:
        """The point of contact in the body (k, 3) from the centre of mass: H'(n) at n = -R^T e3, where H(n) = |semi n| + <shift, n>."""
        down = -np.asarray(turns)[..., 2, :]
        length = np.linalg.norm(self.semi * down, axis=-1, keepdims=True)
        return self.semi**2 * down / np.maximum(length, 1e-300) + self.shift

    def centres(self, turns: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The centre of mass in space (k, 3): the body's lowest point is on the floor."""
        down = -np.asarray(turns)[..., 2, :]
        height = np.sum(self.contact(turns) * down, axis=-1)
        return np.concatenate([places, height[..., None]], axis=-1)
