"""Rotations of space as people give them: quaternions, Euler angles, rotation vectors; names and units of velocities.

Euler conventions are SciPy's: three axes, capital letters for axes that turn with the body ("ZXZ": the classical angles
of mechanics), small ones for axes fixed in space.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, UnknownName
from ..numerics import finite, vector

Numbers = NDArray[np.float64]

EULER = "ZXZ"
PATHS = ("quaternion", "euler", "pose", "position")
"""What `Group.along` can be asked for."""
ROTATIONS = {2: ("angle", "matrix"), 3: ("quaternion", "euler", "rotation_vector", "matrix")}
"""Coordinates that give an element of SO(n); "matrix" alone beyond."""
MODIFIERS = {2: ("degrees",), 3: ("convention", "degrees")}


class AlgebraAxis(NamedTuple):
    """One component of a velocity, with the units of velocity, momentum and force; [q] is the coordinate's own."""

    name: str
    velocity: str = "[q] s-1"
    momentum: str = "J s [q]-1"
    force: str = "J [q]-1"


def read_rotation(given: Mapping[str, Any], size: int, group: str, others: tuple[str, ...] = ()) -> Any:
    """The rotation matrix of a table, which may have `others` beside it; without those it may not be left out."""
    from scipy.spatial.transform import Rotation

    named = ROTATIONS.get(size, ("matrix",))
    allowed = (*named, *others, *MODIFIERS.get(size, ()))
    for key in given:
        if key not in allowed:
            raise UnknownName(f"coordinate of {group}", key, allowed)
    chosen = [key for key in named if key in given]
    if len(chosen) > 1 or (not chosen and not others):
        raise InvalidInput(f"a configuration in {group} needs one of {', '.join(named)}; given {', '.join(given)}")
    if not chosen:
        return np.eye(size)
    (kind,) = chosen
    degrees = given.get("degrees", False)
    if not isinstance(degrees, bool):
        raise InvalidInput(f"degrees is {degrees!r}; allowed: true or false")
    if kind == "matrix":
        return given["matrix"]
    if kind == "angle":
        angle = finite("angle", given["angle"]) * (np.pi / 180 if degrees else 1.0)
        return [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    values = np.asarray(vector(given[kind], 4 if kind == "quaternion" else 3, kind))
    if kind == "quaternion":
        norm = np.linalg.norm(values)
        if not abs(norm - 1) < 1e-4:
            raise InvalidInput(f"quaternion is {values.tolist()} with norm {norm:.6g}; allowed: (w, x, y, z), norm 1")
        return Rotation.from_quat(np.roll(values, -1)).as_matrix()
    if kind == "rotation_vector":
        return Rotation.from_rotvec(values, degrees=degrees).as_matrix()
    return Rotation.from_euler(require_convention(given.get("convention", EULER)), values, degrees=degrees).as_matrix()


def require_convention(name: Any) -> str:
    """A sequence of axes for Euler angles, or a clear error."""
    letters = str(name).upper()
    good = len(letters) == 3 and set(letters) <= set("XYZ") and letters[0] != letters[1] != letters[2]
    if not good or name not in (letters, letters.lower()):
        raise InvalidInput(
            f"convention is {name!r}; allowed: three axes, none twice in a row, such as {EULER} "
            f"(turning with the body) or xyz (fixed)"
        )
    return str(name)


def quaternion_square(m: Any) -> list[list[Any]]:
    """The rows of 4 q q^T, of the quaternion q of a rotation matrix m."""
    (xx, yy, zz), (x, y, z) = (m[0, 0], m[1, 1], m[2, 2]), (m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1])
    xy, xz, yz = m[0, 1] + m[1, 0], m[0, 2] + m[2, 0], m[1, 2] + m[2, 1]
    return [
        [1.0 + xx + yy + zz, x, y, z],
        [x, 1.0 + xx - yy - zz, xy, xz],
        [y, xy, 1.0 - xx + yy - zz, yz],
        [z, xz, yz, 1.0 - xx - yy + zz],
    ]


def quaternions(matrices: Numbers) -> Numbers:
    """(w, x, y, z) of rotations (..., saves, 3, 3): the first with w >= 0, the others on the side of the one before.

    Each is the row of 4 q q^T with the largest diagonal entry, which suffers no cancellation (Shepperd 1978).
    """
    rows = np.array(quaternion_square(np.moveaxis(matrices, (-2, -1), (0, 1))))
    largest = np.argmax(np.einsum("ii...->i...", rows), axis=0)
    q = np.moveaxis(np.take_along_axis(rows, largest[None, None], axis=0)[0], 0, -1)
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    q[..., :1, :] *= np.where(q[..., :1, :1] < 0, -1.0, 1.0)
    turned = np.where(np.sum(q[..., 1:, :] * q[..., :-1, :], axis=-1) < 0, -1.0, 1.0)
    q[..., 1:, :] *= np.cumprod(turned, axis=-1)[..., None]
    return np.asarray(q)


def euler_angles(matrices: Numbers, convention: str = EULER) -> Numbers:
    """Euler angles of rotations (..., saves, 3, 3); of all triples for one rotation, that nearest to the one before."""
    from scipy.spatial.transform import Rotation

    sequence = require_convention(convention)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in a singular position the third angle is 0: any other would do as well
        angles = Rotation.from_matrix(matrices.reshape(-1, 3, 3)).as_euler(sequence).reshape(*matrices.shape[:-2], 3)
    proper = sequence[0] == sequence[2]
    other = np.array([np.pi, 0.0 if proper else np.pi, np.pi]) + np.array([1.0, -1.0, 1.0]) * angles
    for k in range(1, angles.shape[-2]):
        before = angles[..., k - 1, :]
        near, far = (
            choice[..., k, :] - 2 * np.pi * np.round((choice[..., k, :] - before) / (2 * np.pi))
            for choice in (angles, other)
        )
        closer = np.abs(near - before).sum(-1, keepdims=True) <= np.abs(far - before).sum(-1, keepdims=True)
        angles[..., k, :] = np.where(closer, near, far)
    return np.asarray(angles)
