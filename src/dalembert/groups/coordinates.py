"""Configurations as people give them: quaternions, Euler angles, (theta, x, y); names and units of every component.

In: `configuration(group, {"quaternion": [w, x, y, z]})`. Out: `described(group, g)` in the same form, and
`along(trajectory, "euler")` over a run, continuous in time. Euler conventions are SciPy's: three axes, capital letters
for axes that turn with the body ("ZXZ": the classical angles of mechanics), small ones for axes fixed in space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import InvalidInput, UnknownName
from .base import Group
from .euclidean import Euclidean
from .se import Motions
from .so import Rotations

EULER = "ZXZ"
ROTATION = {2: ("angle", "matrix"), 3: ("quaternion", "euler", "rotation_vector", "matrix")}
KINDS = ("quaternion", "euler", "pose", "position")


class Placed(Protocol):
    """Something that moves on a group."""

    @property
    def group(self) -> Group: ...


class Motion(Protocol):
    """Configurations over time with the unwrapped angles of their planar rotations: what `along` needs of a trajectory."""

    @property
    def system(self) -> Placed: ...
    @property
    def g(self) -> Any: ...
    @property
    def angles(self) -> Any: ...


# -- in -------------------------------------------------------------------------------------------------------------------------
def configuration(group: Group, given: Any) -> Any:
    """An element of the group from numbers (as `group.element` takes them) or from a table of named coordinates."""
    if isinstance(given, Mapping):
        return _from_table(group, given)
    factors = group.factors
    if len(factors) > 1 and isinstance(given, list | tuple) and len(given) == len(factors):
        return tuple(configuration(factor, entry) for factor, entry in zip(factors, given, strict=True))
    return group.element(given)


def _from_table(group: Group, given: Mapping[str, Any]) -> Any:
    moving = isinstance(group, Motions)
    if not moving and not isinstance(group, Rotations):
        form = "a list with one entry for each factor" if len(group.factors) > 1 else "a vector"
        raise InvalidInput(f"a configuration in {group} is {form}; given {dict(given)}")
    rotations: Rotations = group.rotations if isinstance(group, Motions) else group  # type: ignore[assignment]
    named = ROTATION.get(rotations.size, ("matrix",))
    allowed = (*named, *(("position",) if moving else ()), *_modifiers(rotations.size))
    for key in given:
        if key not in allowed:
            raise UnknownName(f"coordinate of {group}", key, allowed)
    chosen = [key for key in named if key in given]
    if len(chosen) > 1 or (not chosen and not moving):
        raise InvalidInput(f"a configuration in {group} needs one of {', '.join(named)}; given {', '.join(given)}")
    rotation = rotations.element(_matrix(chosen[0], given) if chosen else np.eye(rotations.size))
    if not isinstance(group, Motions):
        return rotation
    position = _numbers("position", given.get("position", [0.0] * group.size), group.size)
    matrix = np.eye(group.size + 1)
    matrix[:-1, :-1], matrix[:-1, -1] = rotation, position
    return group.element(matrix)


def _modifiers(size: int) -> tuple[str, ...]:
    return {2: ("degrees",), 3: ("convention", "degrees")}.get(size, ())


def _matrix(kind: str, given: Mapping[str, Any]) -> Any:
    """The rotation matrix of one named coordinate."""
    from scipy.spatial.transform import Rotation

    degrees = given.get("degrees", False)
    if not isinstance(degrees, bool):
        raise InvalidInput(f"degrees is {degrees!r}; allowed: true or false")
    if kind == "matrix":
        return given["matrix"]
    if kind == "angle":
        angle = _numbers("angle", [given["angle"]], 1)[0] * (np.pi / 180 if degrees else 1.0)
        return [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    values = _numbers(kind, given[kind], 4 if kind == "quaternion" else 3)
    if kind == "quaternion":
        if not abs(np.linalg.norm(values) - 1) < 1e-4:
            raise InvalidInput(
                f"quaternion is {values.tolist()} with norm {np.linalg.norm(values):.6g}; allowed: (w, x, y, z), norm 1"
            )
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
            f"convention is {name!r}; allowed: three axes, none twice in a row, such as {EULER} (turning with the body) or xyz (fixed)"
        )
    return name


def _numbers(what: str, values: Any, size: int) -> np.ndarray:
    try:
        array = np.asarray(values, float)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if array.shape != (size,) or not np.all(np.isfinite(array)):
        raise InvalidInput(f"{what} is {values!r}; allowed: {size} finite number{'s' if size > 1 else ''}")
    return array


# -- out ------------------------------------------------------------------------------------------------------------------------
def described(group: Group, g: Any, angles: Any = ()) -> Any:
    """g as `configuration` reads it; `angles` are the unwrapped angles of its planar rotations. None on R^n."""
    if len(group.factors) > 1:
        left = list(np.ravel(angles))
        tables = []
        for factor, part in zip(group.factors, g, strict=True):
            tables.append(described(factor, part, left[:1]))
            left = left[_is_planar(factor) :]
        return tables if any(tables) else None
    if isinstance(group, Euclidean):
        return None
    size = group.size  # type: ignore[attr-defined]
    table: dict[str, Any] = {}
    if size == 2:
        table["angle"] = float(np.ravel(angles)[0] if len(np.ravel(angles)) else np.asarray(group.angles(g))[0])
    elif size == 3:
        table["quaternion"] = quaternions(np.asarray(g)[None, :3, :3])[0].tolist()
    else:
        table["matrix"] = np.asarray(g)[:size, :size].tolist()
    if isinstance(group, Motions):
        table["position"] = np.asarray(g)[:size, size].tolist()
    return table


def _is_planar(group: Group) -> bool:
    return isinstance(group, Motions | Rotations) and group.size == 2


def along(trajectory: Motion, kind: str, convention: str = EULER) -> np.ndarray:
    """Coordinates over a run, (saves, number): "quaternion", "euler", "pose" (theta, x, y), "position".

    Angles are unwrapped, quaternions do not jump to their negative, and Euler angles pass their singular positions on
    the branch that continues them. On a product the first factor that has such coordinates is taken.
    """
    if kind not in KINDS:
        raise UnknownName("coordinates", kind, KINDS)
    for k, factor in enumerate(trajectory.system.group.factors):
        g = np.asarray(trajectory.g[k] if isinstance(trajectory.g, tuple) else trajectory.g)
        size = factor.size if isinstance(factor, Motions | Rotations) else 0
        if kind == "position" and isinstance(factor, Motions):
            return g[..., :size, size]
        if kind == "pose" and isinstance(factor, Motions) and size == 2:
            before = sum(map(_is_planar, trajectory.system.group.factors[:k]))
            return np.concatenate([np.asarray(trajectory.angles)[..., [before]], g[..., :2, 2]], axis=-1)
        if kind in ("quaternion", "euler") and size == 3:
            matrices = g[..., :3, :3]
            return quaternions(matrices) if kind == "quaternion" else euler_angles(matrices, convention)
    raise InvalidInput(f"configurations in {trajectory.system.group} have no {kind}")


def quaternions(matrices: np.ndarray) -> np.ndarray:
    """(w, x, y, z) of rotations (..., saves, 3, 3): the first with w >= 0, the others on the side of the one before.

    Each is the row of 4 q q^T with the largest diagonal entry, which suffers no cancellation (Shepperd 1978).
    """
    m = np.moveaxis(matrices, (-2, -1), (0, 1))
    (xx, yy, zz), skew = (m[0, 0], m[1, 1], m[2, 2]), (m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1])
    xy, xz, yz = m[0, 1] + m[1, 0], m[0, 2] + m[2, 0], m[1, 2] + m[2, 1]
    rows = np.array(
        [
            [1 + xx + yy + zz, *skew],
            [skew[0], 1 + xx - yy - zz, xy, xz],
            [skew[1], xy, 1 - xx + yy - zz, yz],
            [skew[2], xz, yz, 1 - xx - yy + zz],
        ]
    )
    largest = np.argmax(np.einsum("ii...->i...", rows), axis=0)
    q = np.moveaxis(np.take_along_axis(rows, largest[None, None], axis=0)[0], 0, -1)
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    q[..., :1, :] *= np.where(q[..., :1, :1] < 0, -1.0, 1.0)
    turned = np.where(np.sum(q[..., 1:, :] * q[..., :-1, :], axis=-1) < 0, -1.0, 1.0)
    q[..., 1:, :] *= np.cumprod(turned, axis=-1)[..., None]
    return q


def euler_angles(matrices: np.ndarray, convention: str = EULER) -> np.ndarray:
    """Euler angles of rotations (..., saves, 3, 3), each triple the one of the two (and their turns) nearest to the one before."""
    import warnings

    from scipy.spatial.transform import Rotation

    sequence = require_convention(convention)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in a singular position the third angle is 0: any other would do as well
        angles = Rotation.from_matrix(matrices.reshape(-1, 3, 3)).as_euler(sequence).reshape(*matrices.shape[:-2], 3)
    proper = sequence[0] == sequence[2]
    other = np.array([np.pi, 0.0 if proper else np.pi, np.pi]) + np.array([1.0, -1.0, 1.0]) * angles
    for k in range(1, angles.shape[-2]):
        before = angles[..., k - 1, :]
        near, far = (_nearest(choice[..., k, :], before) for choice in (angles, other))
        closer = np.abs(near - before).sum(-1, keepdims=True) <= np.abs(far - before).sum(-1, keepdims=True)
        angles[..., k, :] = np.where(closer, near, far)
    return angles


def _nearest(angles: np.ndarray, before: np.ndarray) -> np.ndarray:
    return angles - 2 * np.pi * np.round((angles - before) / (2 * np.pi))


# -- names and units ------------------------------------------------------------------------------------------------------------
class Axis(NamedTuple):
    """One component of the algebra, with the units of velocity, momentum and force along it; [q] is the coordinate's own."""

    name: str
    velocity: str
    momentum: str
    force: str


def axes(group: Group) -> list[Axis]:
    """The components of velocities in the order of the algebra's coordinates; on a product `_k` tells the factors apart."""
    found: list[Axis] = []
    several = len(group.factors) > 1
    for k, factor in enumerate(group.factors):
        tail = f"_{k}" if several else ""
        if isinstance(factor, Motions | Rotations):
            rotations = factor.rotations if isinstance(factor, Motions) else factor
            found += [Axis(f"w{name}{tail}", "rad s-1", "kg m2 s-1", "N m") for name in _planes(rotations)]
        if isinstance(factor, Motions):
            found += [Axis(f"v{i + 1}{tail}", "m s-1", "kg m s-1", "N") for i in range(factor.size)]
        elif not isinstance(factor, Rotations):
            found += [Axis(f"v{i + 1}{tail}", "[q] s-1", "J s [q]-1", "J [q]-1") for i in range(factor.dim)]
    return found


def _planes(rotations: Rotations) -> list[str]:
    """Names of angular velocities: one in the plane, by axis in space, by plane beyond."""
    n = rotations.size
    if n <= 3:
        return [""] if n == 2 else ["1", "2", "3"]
    return [f"{i + 1}{j + 1}" if n < 10 else f"{i + 1}.{j + 1}" for i in range(n) for j in range(i + 1, n)]
