"""URDF files: what is read is the mechanism drawn by hand, what is not read is said, and bad files get sentences."""

import builtins
import warnings
from pathlib import Path

import numpy as np
import pytest
from mechanisms import draw_robot

import dalembert as da
from dalembert.errors import InvalidInput, NotRead
from dalembert.io import urdf
from dalembert.io.urdf import read_urdf

FILES = Path(__file__).parents[1] / "data" / "urdf"
BASE = ("z", "roll", "pitch")  # found by the constraints
WHEELS = ("left_wheel", "right_wheel", "castor_wheel")


def read(name, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotRead)
        return read_urdf(FILES / f"{name}.urdf", **options)


def require_equal_motions(read_, drawn, count=3):
    """The accelerations of two systems with the same coordinates, at random states of both."""
    assert read_.coordinate_names == drawn.coordinate_names and str(read_.group) == str(drawn.group)
    rng = np.random.default_rng(5)
    for _ in range(count):
        shape = {name.replace(" ", "_"): 0.3 * rng.normal() for name in drawn.shape_names if name not in BASE}
        still = drawn.state(**shape)
        xi = drawn.project(still.g, rng.normal(size=drawn.group.dim))
        u = rng.normal(size=len(drawn.inputs))
        here, there = (system.acceleration(0.0, still.g, xi, u)[0] for system in (read_, drawn))
        np.testing.assert_allclose(here, there, atol=1e-12 * max(1.0, np.abs(there).max()))
        assert np.abs(read_.residual(0.0, still.g, xi)).max(initial=0.0) < 1e-12


@pytest.mark.parametrize("base", ["planar", pytest.param("free", marks=pytest.mark.heavy)])
def test_a_differential_drive_is_the_robot_drawn_by_hand(base):
    made = read("differential-drive", base=base, wheels=WHEELS, castors=["castor_fork"])
    system = made.system()
    require_equal_motions(system, draw_robot(base).system(), count=3 if base == "planar" else 1)
    assert [(each.name, each.low, each.high) for each in system.inputs] == [
        ("left torque", -2.0, 2.0),
        ("right torque", -2.0, 2.0),
    ]
    # wheels whose angles were rounded in the file are solids of revolution all the same, and the castor gives way
    joints = {joint.name: joint for joint in system.parts.joints}
    assert joints["left"].spins and joints["right"].spins and joints["castor wheel"].spins
    assert joints["castor swivel"].follows


@pytest.mark.heavy
def test_an_arm_on_a_robot_is_the_one_drawn_by_hand():
    """Frames that are turned against each other: Rz(yaw) Ry(pitch) Rx(roll), as URDF has it."""

    def turn(axis, angle):
        c, s = np.cos(angle), np.sin(angle)
        j, k = [(1, 2), (2, 0), (0, 1)][axis]
        R = np.eye(3)
        R[j, j] = R[k, k] = c
        R[k, j], R[j, k] = s, -s
        return R

    def turned(R, moments):
        return R @ np.asarray(moments) @ R.T

    chassis = turned(turn(2, 0.4), [[0.2, 0.01, 0.02], [0.01, 0.3, -0.01], [0.02, -0.01, 0.4]])
    up, tilted = turn(2, 0.5), turn(2, 0.5) @ turn(1, np.pi / 2) @ turn(0, 0.2)
    h = 0.12  # the radius of the wheels, and the height of the chassis
    shoulder = np.array([0.1, 0, 0.2 + 0.4 + h])
    elbow = shoulder + up @ [0.3, 0, 0]
    arm = da.Mechanism("arm")
    arm.body("chassis", mass=12.0, centre=(0.02, 0, 0.1 + h), inertia=chassis)
    arm.free("chassis", at=(0, 0, h))
    for name, y in (("left", 0.25), ("right", -0.25)):
        arm.wheel(name, "chassis", at=(0, y, h), mass=0.8, inertia=(0.002, 0.004))
    arm.body("lift", mass=2.0, centre=(0.1, 0, 0.4 + h), inertia=(0.02, 0.02, 0.005))
    arm.slider("height", "chassis", "lift", axis="z", damping=15.0)
    inertia = turned(up, np.diag([0.001, 0.0115, 0.012]))
    arm.body("upper arm", mass=1.5, centre=shoulder + up @ [0.15, 0, 0], inertia=inertia)
    arm.hinge("shoulder", "lift", "upper arm", at=shoulder, axis=up @ [0, 1, 0], damping=0.3)
    inertia = turned(tilted @ turn(1, 0.3), np.diag([0.004, 0.005, 0.0015]))
    arm.body("forearm", mass=0.7, centre=elbow + tilted @ [0, 0, 0.1], inertia=inertia)
    arm.hinge("elbow", "upper arm", "forearm", at=elbow, axis=tilted @ [0, 1, 1])
    arm.support("chassis", at=(0.3, 0, 0.03), radius=0.03, name="ball")
    for joint in ("height", "shoulder", "elbow"):
        arm.motor(joint)
    made = read("mobile-arm", wheels={"left_wheel": 0.12, "right_wheel": 0.12}, castors=["ball"])
    system = made.system()
    require_equal_motions(system, arm.system(), count=1)
    assert [(each.name, each.unit, each.high) for each in system.inputs] == [
        ("height force", "N", 80.0),
        ("shoulder torque", "N m", 20.0),
        ("elbow torque", "N m", 10.0),
    ]
    assert "ball load" in system.load_names
    assert any("'height' (0 to 0.4)" in each for each in made.unread)


def test_a_double_pendulum_against_its_formula():
    """The second angle counts from the first: M(q) q'' + h = 0 of two point masses."""
    system = read("double-pendulum", base="fixed").system()
    assert system.coordinate_names == ("top", "middle") and not system.inputs
    (m, M), (a, b), g = (1.3, 0.4), (0.7, 0.5), 9.81
    (p, q), (v, w) = (0.4, -0.9), (1.1, 0.6)
    # the second link lies along z of the drawing at first, downwards: angles from below, p and p + q
    first, second = p, p + q
    vw = v + w
    mass = np.array([[(m + M) * a**2, M * a * b * np.cos(first - second)], [0.0, M * b**2]])
    mass[1, 0] = mass[0, 1]
    force = np.array(
        [
            -M * a * b * np.sin(first - second) * vw**2 - (m + M) * g * a * np.sin(first),
            M * a * b * np.sin(first - second) * v**2 - M * g * b * np.sin(second),
        ]
    )
    expected = np.linalg.solve(mass, force)
    found, _ = system.acceleration(0.0, np.array([p, q]), np.array([v, w]))
    np.testing.assert_allclose([found[0], found[0] + found[1]], expected, rtol=1e-9)


def test_what_is_not_read_is_said():
    with pytest.warns(NotRead, match=r"of differential-drive.urdf this is not read:\n- 1 mesh is not opened"):
        made = read_urdf(FILES / "differential-drive.urdf", base="planar", wheels=WHEELS)
    said = "\n".join(made.unread)
    assert "<gazebo> in line 68 is not read" in said
    assert "friction 0.1 of joint 'right' does not act" in said
    assert "frames without mass on which nothing hangs are left out: laser" in said
    assert "3 angles rpy within 0.002 rad of a multiple of pi/2" in said
    assert "laser" not in made.system().parts.bodies and da.Mechanism("drawn").unread == ()


def test_motors_are_those_of_transmissions_or_those_named():
    some = read("differential-drive", base="planar", wheels=WHEELS, motors=["castor wheel"]).system()
    assert [(each.name, each.high) for each in some.inputs] == [("castor wheel torque", np.inf)]
    assert "0 inputs" in repr(read("mobile-arm", motors=[]))


LINK = "<link name='{}'><inertial><mass value='1'/><inertia ixx='1' iyy='1' izz='1'/></inertial></link>"
A, B, C = (LINK.format(name) for name in "abc")
JOINT = "<joint name='{}' type='{}'><parent link='{}'/><child link='{}'/></joint>"


def with_inertial(inertial):
    return f"<robot name='r'><link name='a'><inertial>{inertial}</inertial></link></robot>"


BAD = {
    "not XML": ("robot: {name: r}", "bad.urdf is not XML"),
    "another format": ("<sdf version='1.6'/>", "its element is <sdf>; allowed: <robot>"),
    "entities": (
        "<!DOCTYPE r [<!ENTITY x SYSTEM 'file:///etc/hostname'>]><robot name='r'>&x;</robot>",
        "has a document type",
    ),
    "xacro": (
        "<robot name='r' xmlns:xacro='http://ros.org/wiki/xacro'><xacro:include filename='a'/></robot>",
        "is written in xacro; expand it: xacro bad.urdf",
    ),
    "no links": ("<robot name='r'/>", "the robot has no links"),
    "unknown link": (f"<robot name='r'>{A}{JOINT.format('j', 'fixed', 'a', 'bb')}</robot>", "link in joint 'j' 'bb'"),
    "two roots": (f"<robot name='r'>{A}{B}</robot>", "links a, b have no parent"),
    "circle": (
        f"<robot name='r'>{A}{B}{JOINT.format('j', 'fixed', 'a', 'b')}{JOINT.format('k', 'fixed', 'b', 'a')}</robot>",
        "links a, b hang on each other in a circle",
    ),
    "circle beside a root": (
        f"<robot name='r'>{A}{B}{C}{JOINT.format('j', 'fixed', 'b', 'c')}{JOINT.format('k', 'fixed', 'c', 'b')}"
        "</robot>",
        "links b, c hang on each other in a circle, not on 'a'",
    ),
    "loop": (
        f"<robot name='r'>{A}{B}{JOINT.format('j', 'fixed', 'a', 'b')}{JOINT.format('k', 'fixed', 'a', 'b')}</robot>",
        "link 'b' is the child of the joints 'j' and 'k'",
    ),
    "two links": (f"<robot name='r'>{A}{A}</robot>", "there are two links called 'a'"),
    "no name": ("<robot name='r'><link/></robot>", r"<link> \(line 1\) has no name"),
    "no parent": (f"<robot name='r'>{A}<joint name='j' type='fixed'/></robot>", "'j' .line 1. has no <parent>"),
    "kind of joint": (
        f"<robot name='r'>{A}{B}{JOINT.format('j', 'screw', 'a', 'b')}</robot>",
        "unknown type of joint 'j' 'screw'",
    ),
    "planar": (f"<robot name='r'>{A}{B}{JOINT.format('j', 'planar', 'a', 'b')}</robot>", "joint 'j' is planar"),
    "no inertia": (with_inertial("<mass value='1'/>"), "<inertial> of link 'a' .line 1. has no <inertia>"),
    "half an inertia": (
        with_inertial("<mass value='1'/><inertia ixx='1' iyy='1'/>"),
        "<inertia> of link 'a' .line 1. has no izz",
    ),
    "negative mass": (
        with_inertial("<mass value='-1'/><inertia ixx='1' iyy='1' izz='1'/>"),
        "bad.urdf: mass of 'a' is -1.0; allowed: one positive number",
    ),
    "no number": (
        with_inertial("<mass value='heavy'/><inertia ixx='1' iyy='1' izz='1'/>"),
        "value of <mass> of link 'a' .line 1. is 'heavy'; allowed: one finite number",
    ),
    "two numbers": (
        with_inertial("<origin xyz='1 2'/><mass value='1'/><inertia ixx='1' iyy='1' izz='1'/>"),
        "xyz of <origin> of link 'a' .line 1. is '1 2'; allowed: 3 finite numbers",
    ),
    "two masses": (
        with_inertial("<mass value='1'/><mass value='2'/><inertia ixx='1' iyy='1' izz='1'/>"),
        "<inertial> of link 'a' .line 1. has two <mass>; allowed: one",
    ),
    "too deep": (
        "<robot name='r'>" + "<x>" * 5000 + "</x>" * 5000 + "</robot>",
        "bad.urdf is not XML: Excessive depth",
    ),
    "a body called ground": (f"<robot name='r'>{LINK.format('ground')}</robot>", "the name 'ground' is taken"),
    "not a number": (with_inertial("<mass value='nan'/><inertia ixx='1' iyy='1' izz='1'/>"), "is 'nan'"),
    "impossible moments": (
        with_inertial("<mass value='1'/><inertia ixx='1' iyy='1' izz='5'/>"),
        "bad.urdf: no body has the principal moments of inertia 1, 1, 5 of 'a'",
    ),
    "moving without mass": (
        f"<robot name='r'>{A}<link name='b'/>{JOINT.format('j', 'continuous', 'a', 'b')}</robot>",
        "link 'b' moves by the joint 'j', and neither it nor what hangs on it has a mass",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_get_sentences(case, tmp_path):
    text, words = BAD[case]
    (tmp_path / "bad.urdf").write_text(text)
    with pytest.raises(InvalidInput, match=words) as raised:
        read_urdf(tmp_path / "bad.urdf")
    assert "bad.urdf" in str(raised.value)


def test_what_has_no_shape_and_no_name_is_read_all_the_same(tmp_path):
    """Pictures without a geometry, a robot without a name, a byte order mark, joints that float or mimic."""
    shapeless = A.replace("</link>", "<visual><geometry/></visual><collision/></link>")
    mimics = JOINT.format("j", "continuous", "a", "b").replace("</joint>", "<mimic joint='k'/></joint>")
    text = f"\ufeff<robot>{shapeless}{B}{C}{mimics}{JOINT.format('k', 'floating', 'a', 'c')}</robot>"
    (tmp_path / "odd.urdf").write_text(text, encoding="utf-8")
    with pytest.warns(NotRead, match="joint 'j' mimics 'k'; here it moves on its own"):
        made = read_urdf(tmp_path / "odd.urdf")
    assert made.name == "robot" and any("joint 'k' floats" in each for each in made.unread)
    assert str(made.system().group) == "SE(3) x SE(3) x R^1"


def test_a_joint_that_mimics_another_is_geared_to_it(tmp_path):
    mimics = JOINT.format("k", "continuous", "b", "c")
    mimics = mimics.replace("</joint>", "<mimic joint='j' multiplier='-2' offset='0.3'/></joint>")
    (tmp_path / "geared.urdf").write_text(
        f"<robot name='r'>{A}{B}{C}{JOINT.format('j', 'continuous', 'a', 'b')}{mimics}</robot>"
    )
    with pytest.warns(NotRead, match="the offset 0.3 of joint 'k', which mimics 'j', is not read"):
        made = read_urdf(tmp_path / "geared.urdf").system()
    assert str(made.group) == "SE(3) x R^1" and made.parameters["gears"] == {"k": {"j": -2.0}}


ASKED = {
    "unknown wheel": ({"wheels": ["left_weel"]}, r"unknown link \(wheel\) 'left_weel'. Did you mean 'left_wheel'"),
    "unknown castor": ({"castors": ["x"]}, r"unknown link \(castor\) 'x'"),
    "unknown motor": ({"motors": ["footprint"]}, "unknown joint with a motor 'footprint'"),
    "unknown base": ({"base": "flying"}, "unknown base 'flying'"),
    "a text": ({"wheels": "left_wheel"}, "names of links"),
    "wheel without an axle": ({"wheels": ["base_link"]}, "wheel 'base_link' hangs by a fixed joint"),
    "no radius": ({"wheels": ["castor_fork"]}, "give it, as in wheels={'castor_fork': 0.1}"),
    "radius below 0": ({"wheels": {"left_wheel": -0.1}}, "radius of 'left_wheel' is -0.1"),
    "no ball": ({"castors": ["laser"]}, "give it, as in castors={'laser': 0.1}"),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_the_file_does_not_have_is_refused(case):
    options, words = ASKED[case]
    with pytest.raises(InvalidInput, match=words):
        read("differential-drive", **options)


def test_files_that_are_missing_or_too_large(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match=r"none.urdf cannot be read: No such file"):
        read_urdf(tmp_path / "none.urdf")
    monkeypatch.setattr(urdf, "MAX_BYTES", 100)
    with pytest.raises(InvalidInput, match=r"mobile-arm.urdf has \d+ bytes; allowed: 100"):
        read("mobile-arm")


def test_without_the_package_a_sentence_says_how_to_get_it(monkeypatch):
    found = builtins.__import__

    def without(name, *rest, **options):
        if name.startswith("yourdfpy"):
            raise ImportError(name)
        return found(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidInput, match=r"need the package yourdfpy: pip install 'dalembert\[urdf\]'"):
        read("double-pendulum")
