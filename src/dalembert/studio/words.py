"""The methods in plain words, for somebody who has not read the papers; the equations are in `dalembert list methods`."""

from __future__ import annotations

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
