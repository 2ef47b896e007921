"""A compiler for small step functions written in JAX: machine code for this processor or a GPU, and XLA for the rest.

A step is a pure function step(carry, inputs, parameters) -> (carry, outputs) on pytrees of small arrays:

    def step(carry, inputs, parameters):
        q, p = carry
        p = p - parameters["h"] * jnp.sin(q)
        return (q + parameters["h"] * p, p), q

    compiled = kernels.compile(step, (0.1, 0.0), parameters={"h": 0.01})
    result = compiled.run(1_000_000, save_every=1000)  # result.carry, result.records of shape (1000,)

`run` compiles and runs at once. One level below, `make_problem` describes advance(consts, carry, control) -> carry
and observe(consts, carry) -> record, which `run_problem` and `stream_problem` run; `evaluate` and `compile_function`
are runs of no steps. Below that is the program: `lower`, `Lowering`, `Builder`, `Value`, `Block`, `Loop`.

Scalar programs compute in doubles and 64-bit integers. `import dalembert` turns on 64-bit numbers in JAX. Where a
program turns them off again, a step has float32 numbers: "llvm" and "cuda" refuse it, and "auto" runs it on XLA.
"""

from .adjoints import is_real
from .cache import StaleEntry, one_at_a_time
from .cuda import as_jax, has_gpu, in_place, on_gpu, to_host
from .execute import (
    CHUNK_SECONDS,
    Backend,
    CompiledStep,
    NoteReader,
    Progress,
    RecordsTooLarge,
    RunResult,
    available_memory,
    compile,
    run,
    run_problem,
    run_with_slopes,
    stream_problem,
)
from .gradients import bind_whole
from .ir import BOOL, F64, I64, Block, Builder, Loop, LoweringError, Value, inner_blocks
from .linear_algebra import columns, eliminate
from .llvm import best_width, count_processors, in_haste
from .lowering import (
    Lowering,
    as_routine,
    count_operations,
    curvature,
    lower,
    map_rows,
    note_loop,
    note_solution,
    note_value,
    simplify,
    take_solution,
    with_slope,
)
from .plans import (
    ROUND,
    Chain,
    Jump,
    LaneRun,
    Of,
    PlacedLoop,
    Repeated,
    Routine,
    Shelf,
    SlopeChain,
    Spread,
    Watch,
    compile_function,
    concrete_leaves,
    evaluate,
    evaluate_rows,
    find_chain,
    find_host_lanes,
    find_lane_chain,
    find_plan,
    find_slope_chain,
    holds,
    keep,
    keep_carry,
    kind_of_trees,
    make_up,
    part_of,
    plan_of,
    remember,
    run_again,
    run_rows,
    shapes_of,
    words_of,
)
from .problem import Problem, Words, make_problem
from .recognition import Held, Template, hold, is_own, recognise, take_numbers
from .rules import map_elements, pack_values, scalar_type
from .taylor import PARTIALS, in_series, solution_series
from .transformations import known_number, mark_slopes, mark_values

# fmt: off
__all__ = [
    "BOOL", "CHUNK_SECONDS", "F64", "I64", "PARTIALS", "ROUND", "Backend", "Block", "Builder", "Chain",
    "CompiledStep", "Held", "Jump", "LaneRun", "Loop", "Lowering", "LoweringError", "NoteReader", "Of",
    "PlacedLoop", "Problem", "Progress", "RecordsTooLarge", "Repeated", "Routine", "RunResult", "Shelf",
    "SlopeChain", "Spread", "StaleEntry", "Template", "Value", "Watch", "Words",
    "as_jax", "as_routine", "available_memory", "best_width", "bind_whole", "columns", "compile",
    "compile_function", "concrete_leaves", "count_operations", "count_processors", "curvature", "eliminate",
    "evaluate", "evaluate_rows", "find_chain", "find_host_lanes", "find_lane_chain", "find_plan",
    "find_slope_chain", "has_gpu", "hold", "holds", "in_haste", "in_place", "in_series", "inner_blocks", "is_own",
    "is_real", "keep", "keep_carry", "kind_of_trees", "known_number", "lower", "make_problem", "make_up",
    "map_elements", "map_rows", "mark_slopes", "mark_values", "note_loop", "note_solution", "note_value", "on_gpu",
    "one_at_a_time", "pack_values", "part_of", "plan_of", "recognise", "remember", "run", "run_again",
    "run_problem", "run_rows", "run_with_slopes", "scalar_type", "shapes_of", "simplify", "solution_series",
    "stream_problem", "take_numbers", "take_solution", "to_host", "with_slope", "words_of",
]
# fmt: on
