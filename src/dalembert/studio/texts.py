"""What to look at in every model, and why the body does it: a sentence or two for somebody who never saw it.

The methods in plain words, for somebody who has not read the papers; the equations are in `dalembert list methods`.
"""

from __future__ import annotations

from typing import Any

TITLES = {
    "nonholonomic-particle": "Nonholonomic particle",
    "contact-oscillator": "Contact oscillator",
    "chaotic-quartic": "Chaotic quartic",
    "vertical-disk": "Upright disk",
    "inclined-disk": "Upright disk on a slope",
    "rolling-disk": "Rolling disk",
    "rolling-ball": "Ball on a slope",
    "ball-on-table": "Ball on a turning table",
    "rattleback": "Rattleback",
    "unicycle": "Unicycle",
    "car": "Car",
    "snakeboard": "Snakeboard",
    "roller-racer": "Roller racer",
    "knife-edge": "Knife edge on a slope",
    "pendulum-chain": "Chain of pendulums",
    "skate-on-ellipsoid": "Skate on an ellipsoid",
    "hinged-sleighs": "Hinged sleighs",
    "rigid-body": "Free rigid body",
    "rigid-body-n": "Free rigid body in n dimensions",
    "suslov": "Suslov's body",
    "suslov-n": "Suslov's body in n dimensions",
    "chaplygin-sleigh": "Chaplygin's sleigh",
    "pendulum-cvt": "Pendulum with a variable transmission",
    "chaplygin-ball": "Chaplygin's ball",
    "chaplygin-sphere": "Chaplygin's ball as an LR system",
    "sleigh-n": "Sleigh in n dimensions",
    "veselova": "Veselova's body",
}

WHY = {
    "rigid-body": (
        "Nothing turns this body from outside, so its momentum (pink) stands still in space while the body tumbles: "
        "the ellipsoid rolls on the invariable plane without slipping (Poinsot). Start near the middle axis, and it "
        "flips."
    ),
    "rigid-body-n": (
        "In four dimensions a body turns in planes, not about axes. The arrows are the images of its basis vectors, "
        "seen in three of the four directions."
    ),
    "suslov": (
        "A sharp wheel keeps the body from turning about the crossed axis, which is fixed in the body. The angular "
        "velocity must stay in the plane across it, so it settles on a steady turn: forward and backward in time the "
        "motion ends on the two sides of one line."
    ),
    "suslov-n": (
        "Only planes that contain the last basis vector may turn. The arrows are the images of the basis vectors in "
        "three of the directions."
    ),
    "chaplygin-sleigh": (
        "It is launched backwards, with its centre of mass (dark ball) trailing. The blade cannot slip sideways, so the ground pushes "
        "on it (pink arrow), square to it. The push has a lever, the distance a along the blade to the centre of mass: it swings the "
        "sleigh round like a castor. The blade stops and reverses at the cusp of its path, and the centre of mass leads from then on. "
        "With a = 0 there is no lever, and it circles for ever."
    ),
    "nonholonomic-particle": (
        "At every point the velocity must lie in the plane drawn there (z' = y x'). The planes twist along y, so that "
        "moving round in x and y lifts the particle: no surface contains the motion."
    ),
    "contact-oscillator": (
        "Springs pull the particle to the origin, and a plane at every point says where it may go (x' + y z' = 0). "
        "Watch the energy: reversible methods keep it, others drift."
    ),
    "chaotic-quartic": (
        "Seven coordinates, one constraint, chaos: three of the coordinates are drawn. The energy error of a good "
        "method wanders, that of a bad one runs away."
    ),
    "pendulum-cvt": (
        "A pendulum changes the gear of a transmission between two oscillators. epsilon breaks the symmetry that "
        "saves many methods: compare their energies at epsilon = 0 and 0.1."
    ),
    "vertical-disk": (
        "The disk rolls along its heading and cannot slip across: turning and rolling steadily, it runs on a circle. "
        "The spoke touches the floor once a turn, always where the path has grown by one circumference."
    ),
    "inclined-disk": (
        "Gravity pulls down the slope, but while the disk turns it can only go where it heads: it runs to and fro and "
        "drifts sideways, never down for good."
    ),
    "rolling-disk": (
        "A coin that rolls and leans: the faster it spins the more upright it stays. Where it touches the floor it "
        "does not slip; the two curves, on the floor and on the rim, roll on each other."
    ),
    "rolling-ball": (
        "The ball rolls down the slope without slipping, like a particle with 5/7 of the gravity. The stripes show "
        "how it turns."
    ),
    "ball-on-table": (
        "The table turns under the ball and drives it by friction alone, yet the ball does not fly off: it runs on a "
        "circle, with 2/7 of the table's angular velocity."
    ),
    "chaplygin-ball": (
        "The ball is round, but its mass is not: the stripes wander as it rolls. Its momentum about the point of "
        "contact (pink) is constant in space."
    ),
    "rattleback": (
        "A half ellipsoid whose mass is turned against its shape. Spun the wrong way it begins to rattle, and turns "
        "back: the constraint lets energy pass from the spin to the rocking and back."
    ),
    "unicycle": "A body on one axle: the wheel cannot move sideways. Without motors it is the Chaplygin sleigh.",
    "car": (
        "The rear wheels fix where the car can go, the front wheels how it turns. With constant steering speed the "
        "path winds up."
    ),
    "snakeboard": (
        "The wheels at both ends turn against each other, and a rotor turns above. The board can go only where both axles allow, so it "
        "winds as they turn. With torques on rotor and wheels (examples/snakeboard.toml) it drives itself without pushing off."
    ),
    "roller-racer": (
        "Two bodies on an axle each, joined by a pivot: when the arm swings, both axles together allow only one way "
        "to go."
    ),
    "knife-edge": (
        "A skate on a slope. It wants to slide down, but while it turns it can only go where it heads: it runs on a "
        "cycloid and drifts sideways, never down for good."
    ),
    "sleigh-n": (
        "A body in space on a blade: it moves along its first axis only, and turns in the planes that contain it. The "
        "centre of mass swings ahead, as in the plane."
    ),
    "veselova": (
        "The axis about which this body may not turn is fixed in space (crossed), not in the body as Suslov's is. The "
        "angular velocity stays in the horizontal plane."
    ),
    "chaplygin-sphere": (
        "The same ball, written with the constraint invariant in space: all three components of the momentum about "
        "the contact (pink) are kept exactly by the discrete LR method."
    ),
    "pendulum-chain": (
        "Rods hold the masses at fixed distances: a holonomic constraint, in Cartesian coordinates. Two pendulums are chaotic already; "
        "watch whether the rods keep their length."
    ),
    "skate-on-ellipsoid": (
        "A skate glides on a curved surface, along its blade and never across. The surface is a holonomic constraint, the blade a "
        "nonholonomic one."
    ),
    "hinged-sleighs": (
        "Two sleighs, each on its blade, joined by a hinge: when one turns, the blades together leave one way to go. The hinge must "
        "not come apart."
    ),
}

TRIES: dict[str, list[tuple[str, str, Any]]] = {
    "chaplygin-sleigh": [
        ("a = 0: no lever, it runs on a circle", "system.a", 0.0),
        ("a = -0.3: the centre of mass leads from the start, no cusp", "system.a", -0.3),
        ("a = 0.8: a long lever", "system.a", 0.8),
    ],
    "rigid-body": [
        ("start along the middle axis: it flips", "initial.momentum", [0.01, 1.5, 0.0]),
        ("a long thin body", "system.inertia", [0.2, 1.0, 1.1]),
    ],
    "suslov": [
        ("no coupling: a balanced body turns steadily", "system.inertia", [[3.0, 0, 0], [0, 4.0, 0], [0, 0, 5.0]])
    ],
    "nonholonomic-particle": [("no potential: it drifts away", "system.potential", "free")],
    "contact-oscillator": [("epsilon = 0: no coupling", "system.epsilon", 0.0)],
    "pendulum-cvt": [("epsilon = 0: reversible again", "system.epsilon", 0.0)],
    "rolling-disk": [("slow: it wobbles", "initial.velocity", [0.2, 2.5, 0.5, 1.25, -0.1])],
    "ball-on-table": [
        ("a table at rest", "system.rotation", 0.0),
        ("a table that turns back", "system.rotation", -1.5),
    ],
    "rattleback": [("spun the right way", "initial.velocity", [0.5, 0.0, 5.0, 0.0, -0.005])],
    "knife-edge": [("a level plane: a circle", "system.slope", 0.0), ("steep", "system.slope", 0.7)],
    "inclined-disk": [("a level plane: a circle", "system.slope", 0.0)],
}
"""Values worth trying, one click each: what it shows, the place, the value."""

HELP = {
    "chaplygin-sleigh.a": "how far the centre of mass lies from the contact, to the front of the blade: the lever of the push",
    "chaplygin-sleigh.inertia": "moment of inertia about the centre of mass",
    "chaplygin-sleigh.b": "how far the centre of mass lies to the left, looking to the front of the blade",
    "unicycle.centre": "how far the centre of mass lies ahead of the axle",
    "car.centre": "how far the centre of mass lies ahead of the rear axle",
    "sleigh-n.centre": "where the centre of mass lies, from the blade",
    "rigid-body.inertia": "three moments, or a symmetric matrix",
    "suslov.inertia": "three moments, or a symmetric matrix",
    "veselova.inertia": "three moments, or a symmetric matrix",
    "chaplygin-ball.inertia": "three moments, or a symmetric matrix",
    "chaplygin-sphere.inertia": "three moments, or a symmetric matrix",
    "skate-on-ellipsoid.inertia": "three moments, or a symmetric matrix",
    "rattleback.depth": "how far the centre of mass lies below the middle of the ellipsoid",
    "rattleback.inertia": "about the centre of mass; its off-diagonal entry makes the two senses of spin differ",
    "rattleback.axes": "semi-axes of the ellipsoid, the third one downwards",
    "ball-on-table.rotation": "angular velocity of the table",
    "vertical-disk.rolling": "moment of inertia about the axle",
    "vertical-disk.turning": "moment of inertia about the vertical",
    "snakeboard.length": "half the distance of the wheels",
    "car.length": "from the rear axle to the front wheels",
    "roller-racer.front": "from the first axle to the pivot",
    "roller-racer.arm": "from the pivot to the second axle",
    "hinged-sleighs.front": "from the first blade to the hinge",
    "hinged-sleighs.arm": "from the hinge to the second blade",
    "mass": "kg",
    "inertia": "moments of inertia about the centre of mass",
    "normal": "the axis about which the body may not turn",
    "weight": "m g times the vector from the fixed point to the centre of mass, in the body",
    "slope": "angle of the plane, in radians",
    "gravity": "m/s^2",
    "radius": "m",
    "epsilon": "strength of the term that couples the oscillators or breaks their symmetry",
    "moment": "moment of inertia about any axis; absent: a solid ball",
    "axial": "moment about the axle; absent: a uniform disk",
    "diametral": "moment across the axle; absent: a uniform disk",
    "tensor": "mass tensor J about the centre of mass",
    "directions": "absent: the sleigh of the paper; k: free turning, velocity in the first k directions",
}


def help_of(system: str, parameter: str) -> str:
    """What a parameter means."""
    return HELP.get(f"{system}.{parameter}", HELP.get(parameter, ""))


METHODS_IN_WORDS = {
    "lagrange-dalembert": "D'Alembert's principle made discrete: takes every system, and stays exactly on the constraint.",
    "euler-poincare-suslov": "D'Alembert's principle where all places are alike: keeps the energy of Suslov's body and of the sleigh.",
    "retraction-adapted": "A midpoint rule for the momenta that the constraint leaves: for bodies with a potential.",
    "leapfrog": "Explicit and reversible, the cheapest: holds for ever on oscillators, fails where motion dies out.",
    "geometric-nonholonomic": "Reflects the momentum at the constraint in every step: reversible, and fails where motion dies out.",
    "runge-kutta": "What everybody takes: accurate at first, then it leaves the constraint, the rotations and the energy.",
    "dormand-prince": "Takes as many small steps as the tolerance asks for: accurate, for motions that are not too long.",
    "taylor": "Sums the power series of the motion, term by term, in long steps: the soonest at high accuracy.",
    "reference": "SciPy's accurate motion, to compare with; slow.",
    "discrete-moser-veselov": "The free rigid body, exactly, with any step.",
    "rattle": "The free rigid body as nine coordinates kept on the rotations.",
    "lie-poisson-splitting": "The free rigid body as turns about its three axes, one after the other.",
    "implicit-midpoint": "The free rigid body with the mean momentum of a step: keeps its energy.",
    "kinetic-splitting": "A heavy body: a kick by its weight, the exact free motion, a kick.",
    "tangent-lift": "A symmetric rule for the velocities that knows nothing of d'Alembert's principle.",
    "cotangent-lift": "A symmetric rule for the momenta that knows nothing of d'Alembert's principle.",
    "discrete-lr": "For constraints that are fixed in space, as Veselova's: keeps their momentum.",
    "discrete-gradient": "Keeps the energy and the constraint exactly, whatever the potential.",
    "gauss": "High order from a few points inside every step; energy errors that stay bounded.",
    "lobatto": "High order from points at and between the ends of a step, with the constraint at each.",
    "projected-runge-kutta": "Runge-Kutta, put back onto the constraint after every step.",
    "composition": "Several steps of a simple method, forth and back, that make one of high order.",
    "adaptive": "Steps that shrink where things happen fast, chosen so that the way back is the same.",
}
