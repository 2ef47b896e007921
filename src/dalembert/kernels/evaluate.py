"""A function of small arrays as machine code: a run of no steps whose one record is the function's value."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from .problem import problem
from .program import LoweringError
from .run import Backend, open_session, run


def compiled(function: Callable) -> Callable:
    """The same function, compiled by the kernels; by XLA where they cannot. Inside a JAX transformation it is called as it is.

    A function of this package is then neither traced nor compiled in a process that finds it on disk.
    """
    by_xla = jax.jit(function)

    def observe(args: tuple, nothing: tuple) -> Any:
        return function(*args)

    @wraps(function)
    def call(*args: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return function(*args)
        try:
            session, _ = open_session(problem(_stay, observe, args, ()), "llvm")
        except (LoweringError, ImportError):
            return by_xla(*args)
        session.reserve(1)
        session.run(0, 1, 0, 0)
        return jax.device_put(jax.tree.map(lambda leaf: leaf[0], session.records(1)))

    return call


def evaluated(function: Callable, consts: Any, given: Any, *, lanes: int | None = None, axes: Any = None,
              backend: Backend = "auto", threads: int | None = None) -> Any:
    """function(consts, given) by a backend; with `lanes` of every lane, `axes` = (consts, given) as `problem` has them."""
    described = problem(_stay, function, consts, given, lanes=lanes, axes=axes)
    records = run(described, saves=1, backend=backend, threads=threads).records
    return jax.tree.map(lambda leaf: leaf[0] if lanes is None else leaf[:, 0], records)


def _stay(consts: Any, loop: Any, u: Any) -> Any:
    return loop
