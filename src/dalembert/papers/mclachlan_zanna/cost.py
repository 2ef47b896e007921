"""Figure 7.6: cost against accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np

from ...kernels.lower import lower
from ...kernels.program import Block, Loop, Value, inner_blocks
from ...plotting.studies import draw_lines
from ...plotting.style import sheet, styled
from ..exhibit import Data
from ..running import simulate
from .setup import END, METHODS, START, STEPS, body, errors, gallery

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def draw_cost(data: Data) -> Figure:
    figure, axes = sheet(size=(6.4, 4.8))
    draw_lines(axes, {name: (data[f"{name} error"], data[f"{name} operations"]) for name in METHODS})
    axes.invert_xaxis()
    axes.set_xlabel("error at T = 100")
    axes.set_ylabel("floating-point operations")
    axes.legend()
    return figure


@gallery(
    "figure-7.6",
    "Floating-point operations against accuracy",
    draw=draw_cost,
    printed="""
    Floating-point operations (MATLAB's count) against the error at T = 100. DMV, DMV4 and DMV6 cost the same a step
    and differ in accuracy only; DMV6 is the most efficient method, the more so the more accuracy is wanted.
    """,
    differs="""
    Operations are counted in the scalar program of a step that dalembert compiles, with the attitude left out as in
    the paper (adds, multiplications, divisions, roots; a fused multiply-add is two) and Newton's loop as often as
    it runs. Our Moser-Veselov step solves for no eigenvectors, and costs a small part of the paper's; the ranking
    is the same.
    """,
)
def cost_against_accuracy() -> Data:
    arrays: dict[str, np.ndarray] = {}
    rows = []
    for name, values in errors().items():
        count = counter(name)
        each = [count(turns(name, h)) for h in STEPS]
        total = np.array([flops * int(END / h + 1e-9) for flops, h in zip(each, STEPS, strict=True)])
        arrays |= {f"{name} error": np.array(values), f"{name} operations": total}
        rows.append((name, each[3], values[3]))
    return Data(("method", "operations a step (h = 1/2)", "error at h = 1/2"), rows, arrays)


FLOPS = dict.fromkeys(("add", "sub", "mul", "div", "sqrt", "neg"), 1) | {"fma": 2}


def turns(method: str, step: float) -> float:
    """Newton iterations a step."""
    system = body()
    run = simulate(system, METHODS[method], system.state(momentum=START), step=step, steps=int(END / step + 1e-9))
    return float(np.mean(np.asarray(run.iterations)[1:])) if len(run.t) > 1 else 0.0


def counter(method: str) -> Callable[[float], float]:
    """Floating-point operations of a step of the momentum alone, in the compiled program, as a function of Newton's iterations."""
    system, integrator = body(), METHODS[method]
    attitude = "g" if method == "IMR" else "q"

    def advance(consts, carry, u):
        return integrator.step(consts[0], carry, consts[1])[0]._replace(**{attitude: getattr(carry, attitude)})

    def observe(consts, carry):
        return carry.prediction.x if method == "IMR" else carry.m

    consts = (system, np.float64(1.0))
    carry = jax.eval_shape(lambda: integrator.start(system, system.state(momentum=START), 1.0)[0])
    program = lower(advance, observe, jax.eval_shape(lambda: consts), carry, None).program
    return lambda iterations: _count(program.advance, iterations)


def _count(block: Block, iterations: float) -> float:
    """A loop that holds another one follows a lost branch and is not entered."""
    total = 0.0
    for statement in block.statements:
        if isinstance(statement, Value):
            total += FLOPS.get(statement.op, 0) if statement.type == "f64" else 0
        elif isinstance(statement, Loop):
            nested = any(isinstance(inner, Loop) for each in inner_blocks(statement) for inner in each.statements)
            tests = (iterations + 1) * _count(statement.test, iterations)
            total += 0 if nested else iterations * _count(statement.body, iterations) + tests
    return total
