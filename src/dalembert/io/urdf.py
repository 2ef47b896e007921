"""Robots from URDF files: links, joints, dampers and motors become a `Mechanism`, and what is not read is said.

A URDF file describes a tree of links by frames, each relative to that of its parent. A `Mechanism` is drawn in the
coordinates of the ground: all links are placed here with their joints at 0, the root upright, and so high that the
lowest wheel stands on the ground. yourdfpy reads the elements of a tree that was checked before: the size of the file,
no document type (so no entities and no other files), every number, and every name. No mesh is opened.

The format: https://wiki.ros.org/urdf/XML.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput, NotRead, UnknownName, require_name
from ..mechanics import Mechanism

Array = np.ndarray[Any, Any]
Wheels = Mapping[str, float | None] | Iterable[str]

MAX_BYTES = 1 << 23
"""The size of the largest file that is read."""
SNAP = 2e-3  # rad: 1.57, 3.14 and 1.5708 in a file are multiples of pi/2
CHILDREN = {
    "robot": ("link", "joint"),
    "link": ("inertial", "visual", "collision"),
    "inertial": ("origin", "mass", "inertia"),
    "visual": ("origin", "geometry"),
    "collision": ("origin", "geometry"),
    "geometry": ("box", "cylinder", "sphere"),
    "joint": ("origin", "parent", "child", "axis", "limit", "dynamics", "mimic"),
}
"""The elements that are read; others are collected in `Mechanism.unread`, and those of `PICTURES` in one sentence."""
PICTURES = ("material", "mesh")
NEEDED = {"inertial": ("mass", "inertia"), "joint": ("parent", "child")}
TEXTS = {"link": ("name",), "joint": ("name", "type"), "parent": ("link",), "child": ("link",), "mimic": ("joint",)}
NUMBERS = {  # how many numbers an attribute has, and whether it must be there
    "origin": {"xyz": (3, False), "rpy": (3, False)},
    "mass": {"value": (1, True)},
    "inertia": {f"i{pair}": (1, pair[0] == pair[1]) for pair in ("xx", "yy", "zz", "xy", "xz", "yz")},
    "axis": {"xyz": (3, True)},
    "limit": dict.fromkeys(("lower", "upper", "effort", "velocity"), (1, False)),
    "dynamics": {"damping": (1, False), "friction": (1, False)},
    "mimic": {"multiplier": (1, False), "offset": (1, False)},
    "box": {"size": (3, True)},
    "cylinder": {"radius": (1, True), "length": (1, True)},
    "sphere": {"radius": (1, True)},
}
JOINTS = ("revolute", "continuous", "prismatic", "fixed", "floating")


def read_urdf(
    path: str | Path,
    *,
    base: str = "free",
    wheels: Wheels = (),
    castors: Wheels = (),
    motors: Iterable[str] | None = None,
    name: str = "",
    **drawing: Any,
) -> Mechanism:
    """Read a robot from a URDF file: links become bodies, joints keep their names.

        robot = read_urdf("robot.urdf", base="planar", wheels={"left_wheel": 0.1, "right_wheel": None})

    `base` says how the root link moves: "free" in space, "planar" on the ground, or "fixed" to it. `wheels` names the
    links that roll, with their radii in metres; where a radius is None, or only names are given, it is that of the
    cylinder or sphere of the link. `castors` names links that only support the robot: the swivel of a castor, whose
    wheel is among `wheels`; or a ball without a joint, which slides. `motors` names the joints that get an input,
    bounded by the limit of their effort; without it these are the joints of a `<transmission>` or `<ros2_control>`,
    or, where the file has none, all with an effort above 0. `drawing` goes to `Mechanism` (gravity, slope, ground,
    any_size).

    What a mechanism cannot represent of the file is listed in `mechanism.unread`, in sentences, and a warning shows it.
    The mechanism is an ordinary one: you can add springs, skates and more before `system()`.
    """
    require_name("base", base, ("free", "planar", "fixed"))
    file = Path(path)
    root = _parse(file)
    try:
        reader = _Reader(root, base, _radii(wheels), _radii(castors), motors)
        mechanism = reader.draw(Mechanism(name or root.get("name"), **drawing))
    except InvalidInput as fault:
        raise InvalidInput(f"{file.name}: {fault}") from fault
    mechanism.unread = tuple(reader.unread)
    if reader.unread:
        warnings.warn(f"of {file.name} this is not read:\n- " + "\n- ".join(reader.unread), NotRead, stacklevel=2)
    return mechanism


def _radii(given: Wheels) -> dict[str, float | None]:
    if isinstance(given, str):
        raise InvalidInput(f"wheels and castors are names of links, as in ['left_wheel'], not the text '{given}'")
    return dict(given) if isinstance(given, Mapping) else dict.fromkeys(given)


def _parse(file: Path) -> Any:
    """The tree of a file; it has no document type, and so no entities and nothing from elsewhere."""
    try:
        from lxml import etree
    except ImportError as fault:
        raise _missing_package() from fault
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise InvalidInput(f"{file.name} has {size} bytes; allowed: {MAX_BYTES}")
        data = file.read_bytes()
    except OSError as fault:
        raise InvalidInput(f"{file} cannot be read: {fault.strerror or fault}") from fault
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_comments=True, remove_pis=True
    )
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as fault:
        raise InvalidInput(f"{file.name} is not XML: {fault}") from fault
    if root.getroottree().docinfo.doctype:
        raise InvalidInput(f"{file.name} has a document type (<!DOCTYPE ...>), which could name other files: remove it")
    if root.tag != "robot":
        raise InvalidInput(f"{file.name} is not URDF: its element is <{root.tag}>; allowed: <robot>")
    if "xacro" in root.nsmap and any("xacro" in str(each.tag) for each in root.iter()):
        raise InvalidInput(f"{file.name} is written in xacro; expand it: xacro {file.name} > {file.stem}.urdf")
    return root


def _missing_package() -> InvalidInput:
    return InvalidInput("URDF files need the package yourdfpy: pip install 'dalembert[urdf]'")


def _place(element: Any) -> str:
    """An element as people find it: what it belongs to, and its line."""
    owner = next((each for each in element.iterancestors() if each.get("name")), None)
    of = f" of {owner.tag} '{owner.get('name')}'" if owner is not None and owner.tag != "robot" else ""
    own = f" '{element.get('name')}'" if element.get("name") else ""
    return f"<{element.tag}>{own}{of} (line {element.sourceline})"


class _Reader:
    """The links and joints of a file, checked; `draw` places them in a mechanism."""

    def __init__(
        self,
        root: Any,
        base: str,
        wheels: dict[str, float | None],
        castors: dict[str, float | None],
        motors: Iterable[str] | None,
    ) -> None:
        try:
            import yourdfpy
            from lxml import etree
        except ImportError as fault:
            raise _missing_package() from fault

        self.unread: list[str] = []
        self.base, self.wheels, self.castors = base, wheels, castors
        driven = _driven_joints(root)
        root.set("name", root.get("name") or "robot")
        self._check(root)
        robot = yourdfpy.URDF.load(
            io.BytesIO(etree.tostring(root)), build_scene_graph=False, load_meshes=False, filename_handler=str
        ).robot
        self.links = {link.name: link for link in robot.links}
        self.joints = {joint.name: joint for joint in robot.joints}
        self.by_child = {joint.child: joint for joint in robot.joints}
        self._require_tree(robot)
        for kind, given in (("wheel", wheels), ("castor", castors)):
            for link in given:
                if link not in self.links:
                    raise UnknownName(f"link ({kind})", link, self.links)
        self.motors = self._motors(driven, motors)

    # -- what the file says --------------------------------------------------------------------------------------------
    def _check(self, root: Any) -> None:
        """Refuse numbers and names that are not; take away what is not read, and say so."""
        skipped: dict[str, list[int]] = {}
        pictures = snapped = 0
        for element in [root, *root.iterdescendants()]:
            if element.tag not in CHILDREN:
                continue
            for child in [each for each in element if each.tag not in CHILDREN[element.tag]]:
                if child.tag in PICTURES:
                    pictures += child.tag == "mesh"
                elif not (element.tag == "robot" and child.tag in ("transmission", "ros2_control")):
                    skipped.setdefault(str(child.tag), []).append(child.sourceline)
                element.remove(child)
        for element in [*root.iter("visual", "collision")]:
            if element.find("geometry/*") is None:  # of a mesh, or of nothing
                element.getparent().remove(element)
        for element in root.iterdescendants():
            tags = [child.tag for child in element if element.tag != "link" or child.tag == "inertial"]
            if twice := [tag for tag in tags if tags.count(tag) > 1]:
                raise InvalidInput(f"{_place(element)} has two <{twice[0]}>; allowed: one")
            for word in NEEDED.get(element.tag, ()):
                if element.find(word) is None:
                    raise InvalidInput(f"{_place(element)} has no <{word}>")
            for word in TEXTS.get(element.tag, ()):
                if not (element.get(word) or "").strip():
                    raise InvalidInput(f"{_place(element)} has no {word}")
            for word, (count, needed) in NUMBERS.get(element.tag, {}).items():
                self._numbers(element, word, count, needed)
            if element.get("rpy") is not None:
                snapped += _snap(element)
        if pictures:
            many = "meshes are" if pictures > 1 else "mesh is"
            self.unread.append(f"{pictures} {many} not opened: only cylinders and spheres give a wheel its radius")
        for tag, lines in skipped.items():
            shown = ", ".join(map(str, lines[:6])) + (", ..." if len(lines) > 6 else "")
            self.unread.append(f"<{tag}> in line{'s' * (len(lines) > 1)} {shown} is not read")
        if snapped:
            self.unread.append(
                f"{snapped} angles rpy within {SNAP:g} rad of a multiple of pi/2 are taken as that multiple"
            )

    def _numbers(self, element: Any, word: str, count: int, needed: bool) -> None:
        text = element.get(word)
        if text is None:
            if needed:
                raise InvalidInput(f"{_place(element)} has no {word}")
            return
        try:
            values = [float(each) for each in text.split()]
        except ValueError:
            values = []
        if len(values) != count or not np.isfinite(values).all():
            allowed = "one finite number" if count == 1 else f"{count} finite numbers"
            raise InvalidInput(f"{word} of {_place(element)} is '{text[:60]}'; allowed: {allowed}")

    def _require_tree(self, robot: Any) -> None:
        """Refuse what is no tree of links."""
        if not self.links:
            raise InvalidInput("the robot has no links")
        for kind, many, known in (("link", robot.links, self.links), ("joint", robot.joints, self.joints)):
            if len(many) != len(known):
                names = [each.name for each in many]
                raise InvalidInput(f"there are two {kind}s called '{next(x for x in names if names.count(x) > 1)}'")
        for joint in robot.joints:
            for side in (joint.parent, joint.child):
                if side not in self.links:
                    raise UnknownName(f"link in joint '{joint.name}'", side, self.links)
            if (other := self.by_child[joint.child]) is not joint:
                raise InvalidInput(
                    f"link '{joint.child}' is the child of the joints '{joint.name}' and '{other.name}'; a URDF file "
                    "is a tree. Leave one out, and close the loop with hinge, ball or fix of the mechanism"
                )
            if joint.type == "planar":
                raise InvalidInput(
                    f"joint '{joint.name}' is planar, which a mechanism has between its base and the ground only: "
                    "leave it out and read the file with base='planar'"
                )
            require_name(f"type of joint '{joint.name}'", joint.type, JOINTS)
        roots = [link for link in self.links if link not in self.by_child]
        if not roots:
            raise InvalidInput(f"links {', '.join(self.links)} hang on each other in a circle; one must be the root")
        if roots[1:]:
            raise InvalidInput(f"links {', '.join(roots)} have no parent; a URDF file has one root: join them")
        self.root = roots[0]
        if lost := [link for link in self.links if link not in set(self._order())]:
            raise InvalidInput(f"links {', '.join(lost)} hang on each other in a circle, not on '{self.root}'")

    def _order(self) -> Iterator[str]:
        """The links, parents first, as they stand in the file."""
        children: dict[str, list[str]] = {}
        for joint in self.joints.values():
            children.setdefault(joint.parent, []).append(joint.child)
        waiting = [self.root]
        while waiting:
            link = waiting.pop(0)
            yield link
            waiting += children.get(link, [])

    def _motors(self, driven: set[str], named: Iterable[str] | None) -> dict[str, float]:
        """The joints with a motor, and the bounds of their torques."""
        moving = {
            joint.name: joint.limit.effort if joint.limit and joint.limit.effort else math.inf
            for joint in self.joints.values()
            if joint.type in ("revolute", "continuous", "prismatic")
        }
        if named is not None:
            chosen = list(named)
            for joint in chosen:
                if joint not in moving:
                    raise UnknownName("joint with a motor", joint, moving)
            return {joint: moving[joint] for joint in chosen}
        if driven:
            return {joint: bound for joint, bound in moving.items() if joint in driven}
        return {joint: bound for joint, bound in moving.items() if bound < math.inf}

    # -- the drawing ---------------------------------------------------------------------------------------------------
    def draw(self, mechanism: Mechanism) -> Mechanism:
        """Add bodies, joints, wheels and motors to a mechanism."""
        frames = self._frames()
        heavy = self._heavy()
        rolling = {link: self._wheel(link, given, frames) for link, given in self.wheels.items()}
        sliding = {
            link: self._ball(link, given, frames)
            for link, given in self.castors.items()
            if self._type(link) in ("fixed", "root")
        }
        lowest = [centre[2] - radius * math.hypot(axis[0], axis[1]) for radius, centre, axis in rolling.values()]
        lowest += [centre[2] - radius for radius, centre in sliding.values()]
        lift = np.array([0.0, 0.0, -min(lowest, default=0.0)])
        left_out = [link for link in self._order() if link not in heavy and link not in rolling and link not in sliding]
        for link in self._order():
            if link in left_out:
                self._require_frame(link)
                continue
            self._body(mechanism, link, frames[link], lift)
            self._join(mechanism, link, frames[link], lift)
        for link, (radius, centre, axis) in rolling.items():
            mechanism.roll(link, radius=radius, centre=_clean(centre + lift), axis=axis)
        for link, (radius, centre) in sliding.items():
            mechanism.support(link, at=_clean(centre + lift), radius=radius)
        for joint, bound in self.motors.items():
            if self.joints[joint].child not in left_out:
                mechanism.motor(joint, low=-bound, high=bound)
        for joint in self.joints.values():
            if joint.mimic is not None:
                self._gear(mechanism, joint)
        if left_out:
            self.unread.append(f"frames without mass on which nothing hangs are left out: {', '.join(left_out)}")
        self._say_the_rest()
        return mechanism

    def _type(self, link: str) -> str:
        return self.by_child[link].type if link in self.by_child else "root"

    def _frames(self) -> dict[str, Array]:
        """The frame of every link where all joints are 0."""
        frames = {self.root: np.eye(4)}
        for link in self._order():
            if link != self.root:
                joint = self.by_child[link]
                frames[link] = frames[joint.parent] @ (np.eye(4) if joint.origin is None else joint.origin)
        return frames

    def _heavy(self) -> set[str]:
        """The links that have a mass, or carry one."""
        found = set()
        for link in reversed([*self._order()]):
            own = self.links[link].inertial
            if own is not None and (own.mass or np.any(own.inertia)):
                found.add(link)
            if link in found and link in self.by_child:
                found.add(self.by_child[link].parent)
        return found | {self.root}

    def _require_frame(self, link: str) -> None:
        joint = self.by_child[link]
        if joint.type != "fixed":
            raise InvalidInput(
                f"link '{link}' moves by the joint '{joint.name}', and neither it nor what hangs on it has a mass: "
                "give it an <inertial>, or fix the joint"
            )

    def _body(self, mechanism: Mechanism, link: str, frame: Array, lift: Array) -> None:
        own = self.links[link].inertial
        if own is None or not (own.mass or np.any(own.inertia)):
            mechanism.carrier(link)
            return
        placed = frame @ (np.eye(4) if own.origin is None else own.origin)
        R = placed[:3, :3]
        moments = R @ own.inertia @ R.T
        mechanism.body(
            link, mass=own.mass, centre=_clean(placed[:3, 3] + lift), inertia=_clean((moments + moments.T) / 2)
        )

    def _join(self, mechanism: Mechanism, link: str, frame: Array, lift: Array) -> None:
        at = _clean(frame[:3, 3] + lift)
        if link == self.root:
            if self.base == "fixed":
                mechanism.fix("ground", link)
            else:
                getattr(mechanism, self.base)(link, at=at)
            return
        joint = self.by_child[link]
        if joint.type == "fixed":
            mechanism.fix(joint.parent, link, name=joint.name)
            return
        if joint.type == "floating":
            mechanism.free(link, at=at)
            self.unread.append(f"joint '{joint.name}' floats: its coordinates are from the ground, not from its parent")
            return
        damping = float(joint.dynamics.damping or 0.0) if joint.dynamics else 0.0
        options: dict[str, Any] = {"axis": _clean(frame[:3, :3] @ joint.axis), "damping": damping or None}
        if joint.type == "prismatic":
            mechanism.slider(joint.name, joint.parent, link, **options)
        else:
            mechanism.hinge(joint.name, joint.parent, link, at=at, follows=link in self.castors, **options)

    def _gear(self, mechanism: Mechanism, joint: Any) -> None:
        """A joint that mimics another is geared to it."""
        other, ratio = self.joints.get(joint.mimic.joint), joint.mimic.multiplier
        ratio = 1.0 if ratio is None else float(ratio)
        if {joint.type, other.type if other else ""} - {"revolute", "continuous", "prismatic"} or not ratio:
            self.unread.append(
                f"joint '{joint.name}' mimics '{joint.mimic.joint}'; here it moves on its own: a gear is between two "
                "joints that turn or slide, with a ratio that is not 0"
            )
            return
        mechanism.gear(joint.name, joint.mimic.joint, ratio=ratio)
        if joint.mimic.offset:
            self.unread.append(
                f"the offset {float(joint.mimic.offset):g} of joint '{joint.name}', which mimics "
                f"'{joint.mimic.joint}', is not read: all joints are at 0 in the drawing"
            )

    def _wheel(self, link: str, radius: float | None, frames: dict[str, Array]) -> tuple[float, Array, Array]:
        """(radius, centre, axle) of a wheel."""
        if self._type(link) not in ("continuous", "revolute"):
            raise InvalidInput(f"wheel '{link}' hangs by a {self._type(link)} joint; allowed: continuous or revolute")
        frame = frames[link]
        axle = frame[:3, :3] @ self.by_child[link].axis
        axle = _clean(axle / (np.linalg.norm(axle) or 1.0))
        at = frame[:3, 3]
        for geometry, placed in self._shapes(link, frames):
            round_ = geometry.sphere or geometry.cylinder
            if round_ is None or (geometry.cylinder and np.linalg.norm(np.cross(placed[:3, 2], axle)) > SNAP):
                continue
            away = placed[:3, 3] - at
            if np.linalg.norm(np.cross(away, axle)) <= SNAP * round_.radius:
                return round_.radius if radius is None else radius, at + (away @ axle) * axle, axle
        if radius is None:
            raise InvalidInput(
                f"link '{link}' has no cylinder about its joint and no sphere on it that gives the wheel its radius: "
                f"give it, as in wheels={{'{link}': 0.1}}"
            )
        return radius, at, axle

    def _ball(self, link: str, radius: float | None, frames: dict[str, Array]) -> tuple[float, Array]:
        """(radius, centre) of a ball that slides."""
        for geometry, placed in self._shapes(link, frames):
            if geometry.sphere is not None:
                return geometry.sphere.radius if radius is None else radius, placed[:3, 3]
        if radius is None:
            raise InvalidInput(
                f"link '{link}' has no sphere that gives the castor its radius: give it, "
                f"as in castors={{'{link}': 0.1}}"
            )
        return radius, frames[link][:3, 3]

    def _shapes(self, link: str, frames: dict[str, Array]) -> Iterator[tuple[Any, Array]]:
        """The shapes of a link and their frames: of its collisions, then of its pictures."""
        own = self.links[link]
        for each in (*own.collisions, *own.visuals):
            yield each.geometry, frames[link] @ (np.eye(4) if each.origin is None else each.origin)

    def _say_the_rest(self) -> None:
        """What joints have and a mechanism has not."""
        bounded, slow = [], []
        for joint in self.joints.values():
            if joint.dynamics is not None and float(joint.dynamics.friction or 0.0):
                friction = float(joint.dynamics.friction)
                self.unread.append(f"friction {friction:g} of joint '{joint.name}' does not act: only damping does")
            if joint.limit is not None and joint.type in ("revolute", "prismatic"):
                if joint.limit.lower is not None or joint.limit.upper is not None:
                    bounded.append(f"'{joint.name}' ({joint.limit.lower or 0:g} to {joint.limit.upper or 0:g})")
                if joint.limit.velocity:
                    slow.append(f"'{joint.name}'")
        if bounded:
            self.unread.append(f"ends of travel do not stop a joint: {', '.join(bounded)}")
        if slow:
            self.unread.append(f"limits of velocity are not kept: {', '.join(slow)}")


def _driven_joints(root: Any) -> set[str]:
    """The joints that a <transmission> drives, or a <ros2_control> commands."""
    found = {each.get("name") for each in root.findall("transmission/joint")}
    for each in root.findall("ros2_control/joint"):
        if each.find("command_interface") is not None:
            found.add(each.get("name"))
    return {name for name in found if name}


def _snap(element: Any) -> int:
    """Write angles that were rounded as what they are; how many there were."""
    angles = np.array([float(each) for each in element.get("rpy").split()])
    exact = np.round(angles / (math.pi / 2)) * (math.pi / 2)
    off = np.abs(angles - exact)
    near = off < SNAP
    element.set("rpy", " ".join(repr(float(value)) for value in np.where(near, exact, angles)))
    return int((near & (off > 1e-15)).sum())


def _clean(values: Array) -> Array:
    """Without the round-off of cos(pi/2): what is 0 in a drawing is structure."""
    return np.where(np.abs(values) < 1e-15 * max(1.0, float(np.abs(values).max())), 0.0, values)
