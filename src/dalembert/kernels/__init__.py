"""A compiler for small step functions written in JAX: native code for a processor or a GPU; see docs/kernels.md."""

from .elimination import eliminate
from .execute import Backend, NoteReader, Progress, RunResult, compiled, evaluated, run
from .ir import BOOL, F64, I64, Block, Builder, Loop, LoweringError, Value, inner_blocks
from .llvm import count_processors
from .lowering import Lowering, lower
from .problem import make_problem
from .rules import mapped, packed, scalar_type
from .taylor import solution_series

__all__ = [
    "BOOL",
    "F64",
    "I64",
    "Backend",
    "Block",
    "Builder",
    "Loop",
    "Lowering",
    "LoweringError",
    "NoteReader",
    "Progress",
    "RunResult",
    "Value",
    "compiled",
    "count_processors",
    "eliminate",
    "evaluated",
    "inner_blocks",
    "lower",
    "make_problem",
    "mapped",
    "packed",
    "run",
    "scalar_type",
    "solution_series",
]
